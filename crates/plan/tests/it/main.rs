//! Plans through the crate's public items.

mod check;
mod residency;
