//! Reports of runs rather than of memory: what an executable is (`describe`), how long runs take (`bench`), and where the
//! time goes (`steps`).

mod bench;
mod describe;
mod steps;

pub use bench::{BenchReport, Latency};
pub use describe::{Description, PortReport};
pub use steps::{Peaks, StepReport, StepsReport};
