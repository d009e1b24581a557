//! Reports: what a plan says about memory, and what a run really used, in one screen of text or as JSON.
//!
//! [`MemoryReport`] is the contract of `EXE memory --json`; [`Description`] that of `EXE describe --json`;
//! [`Latency`] that of `EXE bench --json`, [`StepsReport`] that of `EXE profile --json`. `docs/memory-report.md` explains every field.
//!
//! ```
//! use plan::{Arena, Buffer, Plan};
//! use prestow_profile::MemoryReport;
//! use types::{Bytes, Role, Scope, Tag};
//!
//! let tag = Tag { scope: Scope::new("conv1"), role: Role::Activation };
//! let plan = Plan {
//!     buffers: vec![Buffer { tag, size: Bytes(4096), offset: Bytes(0), first_step: 0, last_step: 3 }],
//!     arena: Arena { size: Bytes(4096), alignment: Bytes(64), lower_bound: Bytes(4096), least: Bytes(4096), ..Arena::default() },
//!     ..Plan::default()
//! };
//! let report = MemoryReport::new(&plan);
//! assert!(report.planned.optimal);
//! assert!(report.text(10).contains("conv1:activation"));
//! ```

mod bench;
mod describe;
mod memory;
mod steps;

pub use bench::{BenchReport, Latency};
pub use describe::{Description, PortReport};
pub use memory::{
    Actual, ActualReport, BufferReport, MemoryReport, OrderReport, Planned, Residual, Verdict, placement_csv,
};
pub use steps::{StepReport, StepsReport};
