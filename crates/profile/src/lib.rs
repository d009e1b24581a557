//! Reports: what a plan says about memory, and what a run really used, in one screen of text or as JSON.
//!
//! [`MemoryReport`] is the contract of `EXE memory --json`; [`Description`] that of `EXE describe --json`;
//! [`Latency`] that of `EXE bench --json`. `docs/memory-report.md` explains every field.

mod bench;
mod describe;
mod memory;

pub use bench::{BenchReport, Latency};
pub use describe::{Description, PortReport};
pub use memory::{Actual, ActualReport, BufferReport, MemoryReport, Planned, Residual, Verdict};
