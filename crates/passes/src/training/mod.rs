//! Training: a model and a [`Recipe`] become the graph of one whole step and that of its evaluation ([`build`]).
//!
//! The graphs are ordinary ones: all later passes, kernels, schedules and reports apply to them. [`differentiate`] adds the
//! gradients of a loss; losses, the optimizer's texts and the assembly have a file each.

mod build;
mod deferred;
mod differentiate;
mod gates;
mod half;
mod loss;
mod positions;
mod recipe;

pub use build::{TrainingError, TrainingGraphs, build};
pub use differentiate::{GradientError, differentiate};
pub use gates::save_gates;
pub(crate) use half::save_in_half;
pub use positions::save_positions;
pub use recipe::{Classes, Loss, Optimizer, Recipe};
