//! The plan: neck two of the hourglass, the only thing that crosses from compile time to run time.
//!
//! A [`Plan`] says which [`Step`]s run in which order, where in the arena every [`Buffer`] lies from when to when, and
//! which packed [`Constant`]s the steps read. It knows no graph and no device: a step's kernel is a name and a code that
//! only its target understands.
//!
//! - [`check`] judges a plan on its own: every operand inside its buffer, every buffer alive when it is touched, no two
//!   live buffers on the same bytes, no step that reads what it overwrites unless it may.
//! - [`image`] is a model's plans with their weights as bytes behind a runner: versioned, checksummed, page-aligned.
//! - [`dump`] prints a plan for eyes and diffs.
//!
//! ```
//! use prestow_plan::{Plan, check, image};
//!
//! let plan = Plan { model: "nothing".into(), ..Plan::default() };
//! assert!(check(&plan).is_ok());
//! let mut file = Vec::new();
//! image::write(&mut file, b"runner", std::slice::from_ref(&plan), &[]).unwrap();
//! assert_eq!(image::read(&file).unwrap().plans, [plan]);
//! ```

mod check;
mod dump;
pub mod image;
mod model;

pub use check::{PlanError, check};
pub use dump::dump;
pub use model::{
    Arena, Buffer, BufferIx, Constant, ConstantIx, DeviceCode, Initial, Operand, Persistence, Place, Plan, Port,
    RefusedReason, RefusedSharing, Sharing, StatePort, Step, ValueSpan,
};
