//! Conformance and end-to-end tests; see `tests/it`.
