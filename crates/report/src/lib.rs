//! Memory reports: planned and measured memory as text, SVG images, a page, and in the formats of other programs.
//!
//! [`Report`] is the exact model; every view (`view`), every export (`export`) and the page (`page`) is a function of
//! it. `import` makes one from other programs' profiles. `docs/reference/memory-report.md` explains every field of its
//! JSON. [`Description`] is the contract of `EXE describe --json`, [`Latency`] that of `EXE bench --json`,
//! [`StepsReport`] that of `EXE profile --json`.
//!
//! ```
//! use plan::{Arena, Buffer, Plan};
//! use prestow_report::{ViewOptions, Report, View};
//! use types::{Bytes, Certificate, Role, Scope, Tag};
//!
//! let tag = Tag { scope: Scope::new("conv1"), role: Role::Activation };
//! let (persistence, values, refused) = (Default::default(), Vec::new(), Vec::new());
//! let size = Bytes(4096);
//! let certificate = Certificate { value: size, lower_bound: size, least: size };
//! let plan = Plan {
//!     buffers: vec![Buffer { tag, size, offset: Bytes(0), first_step: 0, last_step: 0, persistence, values, refused }],
//!     arena: Arena { alignment: Bytes(64), peak_step: 0, certificate },
//!     ..Plan::default()
//! };
//! let report = Report::new(&plan);
//! assert!(report.planned.optimal);
//! assert!(report.text(View::Top, &ViewOptions::default()).contains("conv1:activation"));
//! assert_eq!(prestow_report::read(report.to_json().as_bytes()), Ok(report));
//! ```

mod export;
mod import;
mod model;
mod page;
mod printable;
mod request;
mod run;
mod view;

pub use export::StepTime;
pub use import::{ImportError, import};
pub use model::{
    Actual, AlternativeRow, AtPeak, BoundsRow, BufferActual, BufferRow, ConstantRow, FORMAT, FreeRange, Measured,
    Opportunity, OpportunityKind, Origin, Outside, PLANNED_MAPPINGS, Planned, ProcessItem, ReadError, Recomputed,
    RefusedRow, Report, Saved, SavedReader, StepRow, Touch, UnavailableItem, Unnamed, VERSION, ValueRow, Verdict, Why,
    WhyKind, placement_csv, read,
};
pub use page::Page;
pub use printable::{printable, printable_message};
pub use request::{Flag, Form, GROUPS_MAX, PROFILE_MAX, ReportRequest};
pub use run::{BenchReport, ChoiceReport, Description, Latency, Peaks, PortReport, StepReport, StepsReport};
pub use view::{
    Analysis, Bar, Bars, Depth, Diff, Fit, Flame, Groups, GroupsError, Largest, Measure, MovedBuffer, TagDelta,
    TagSize, Variant, View, ViewOptions, WhatIf,
};
