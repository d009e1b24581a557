//! Criterion benches: `cargo xtask bench`.
