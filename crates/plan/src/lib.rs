//! The plan: all that crosses from compile time to run time.
//!
//! A [`Plan`] lists [`Step`]s in order, the offset and lifetime of every [`Buffer`] in the arena, and the packed
//! [`Constant`]s that steps read. It has no graph and no device: a step's kernel is a name and a code in the encoding of
//! its target. [`StatePort`]s are kept between runs. A [`Residency`] states when each constant is in memory, if not all are.
//!
//! - [`check`] validates a plan by itself: every operand is inside its buffer, every buffer is alive when it is used, no
//!   two live buffers share bytes, and no step reads bytes that it overwrites unless it works in place.
//! - [`image`] appends the plans and weights of a model to a runner: versioned, checksummed, page-aligned.
//! - [`dump`] prints a plan as text, for reading and for diffs.
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
mod elf;
pub mod image;
mod model;
mod residency;
mod separate;

pub use check::{PlanError, check};
pub use dump::dump;
pub use model::{
    Alternative, Arena, ArenaLimit, Buffer, BufferIx, Constant, ConstantIx, ConstantRecipe, DeviceCode, Initial,
    KernelChoice, Operand, Persistence, Phase, Place, Plan, Port, RefusedReason, RefusedSharing, Residency,
    ResidentConstant, Sharing, StatePort, Step, Training, ValueSpan,
};
pub use separate::{ConstantSource, SeparateConstants, separate_constants};
