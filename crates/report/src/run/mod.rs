//! Reports that are not about memory: the summary of an executable (`describe`), latency (`bench`), and time by step
//! (`steps`).

mod bench;
mod describe;
mod steps;

pub use bench::{BenchReport, Latency};
pub use describe::{ChoiceReport, Description, PortReport};
pub use steps::{Peaks, StepReport, StepsReport};
