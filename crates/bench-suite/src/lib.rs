//! Benchmarks that can be believed.
//!
//! - [`Subject`] is the thing measured: one run of a model or of a function.
//! - [`Scenario`]s drive it as MLPerf's LoadGen does: single stream, multiple streams, a server with an open loop, offline.
//! - [`answer_queries`] lets another program drive it, as LoadGen itself.
//! - [`Summary`] and [`Comparison`] are statistics of raw times: order statistics, bootstrap intervals, a verdict.
//! - [`lines`] are the result lines of the Deep Learning Benchmarking Suite (DLBS), `__key__=json`, written and read.
//! - [`Machine`] has the facts without which a number means little.
//! - [`experiment`] runs a grid of benchmarks as processes; a killed grid resumes without losing or repeating a result.
//! - [`ResultTable`]s of results as text, CSV, Markdown and HTML.
//!
//! ```
//! use prestow_bench_suite::{Comparison, Summary};
//!
//! let summary = Summary::new(&[1_000_000, 1_100_000, 900_000], 1);
//! assert_eq!(summary.p50_ms, 1.0);
//! assert_eq!(summary.p99_ms, None, "the 99th percentile needs 1000 runs");
//! let same = Comparison::new(&[100, 101, 99, 100], &[100, 99, 101, 100], 1);
//! assert!(same.verdict().starts_with("no difference shown"));
//! ```

mod arrivals;
mod clock;
pub mod experiment;
pub mod lines;
mod machine;
mod monitor;
mod peer;
mod queries;
mod result;
mod scenario;
mod statistics;
mod subject;
mod table;

pub use arrivals::poisson_arrivals;
pub use clock::now_ns;
pub use machine::{Machine, MachineWatch};
pub use monitor::{GpuMeter, GpuSample, Monitor, ResourceUsage};
pub use peer::PeerProcess;
pub use queries::answer_queries;
pub use result::{BenchResult, RawSeries, RawTimes};
pub use scenario::{Bisection, Scenario, ScenarioLimits, ScenarioResult, ServerRun, bisect_rate};
pub use statistics::{Comparison, Summary};
pub use subject::Subject;
pub use table::{Plot, ResultTable};
