//! The compiler on one page: a model becomes a plan with its constants, and those an executable.
//!
//! ```text
//! load / build -> verify -> passes -> verify -> lower -> place -> check -> image
//! ```
//!
//! [`load`](source::load) reads a model from the zoo or a file; [`compile`] does the rest; [`write_executable`] puts the
//! result behind a runner. The same input gives the same bytes.

mod executable;
pub mod source;

use arena::{Aim, Limits};
use ir::Graph;
use lower::{Lowered, Target};
use plan::{Arena, Fault, Plan};
use types::Preprocess;

pub use executable::{WriteError, write_executable};

/// A model, ready to be compiled.
#[derive(Clone, Debug)]
pub struct Model {
    /// What it computes.
    pub graph: Graph,
    /// How a picture becomes its input, where it is one.
    pub preprocess: Option<Preprocess>,
    /// The names of the classes its first output scores.
    pub labels: Vec<String>,
}

/// A plan and the bytes of its constants.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
    /// The constants' section.
    pub constants: Vec<u8>,
}

/// Why a model does not become a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The target has no kernel for something.
    #[error(transparent)]
    Lower(#[from] lower::LowerError),
    /// The buffers have no place.
    #[error("the memory of the model cannot be placed: {0}")]
    Place(#[from] arena::PlaceError),
    /// A bug of ours: a pass left a graph that is not one.
    #[error("internal error: {0}")]
    Pass(#[from] passes::BrokenGraph),
    /// A bug of ours: the finished plan does not pass its own check.
    #[error("internal error: the plan is not valid: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Plan(Vec<Fault>),
}

/// The work that the placer may do, in its own units: far more than networks need, bounded for hard cases.
const PLACE_LIMITS: Limits = Limits { work: 30_000_000, aim: Aim::Least };

/// Compiles a model for a target. `watch` sees the graph as it came and after each pass.
///
/// # Errors
/// What the target cannot do, and memory that cannot be placed.
pub fn compile(
    model: Model,
    target: &dyn Target,
    watch: impl FnMut(&'static str, &Graph),
) -> Result<Compiled, CompileError> {
    let (parameters, flops) = (model.graph.parameters(), model.graph.flops());
    let graph = passes::run(model.graph, watch)?.graph;
    let Lowered { mut plan, constants } = lower::lower(&graph, target)?;
    // Of the model as it came: passes fold weights together and multiply-adds away.
    (plan.parameters, plan.flops) = (parameters, flops);
    (plan.preprocess, plan.labels) = (model.preprocess, model.labels);
    place(&mut plan)?;
    plan::check(&plan).map_err(CompileError::Plan)?;
    Ok(Compiled { plan, constants })
}

/// Gives every buffer its offset and the arena its size and bound.
fn place(plan: &mut Plan) -> Result<(), CompileError> {
    let alignment = plan.arena.alignment;
    let placement = arena::place(&plan.problem(), PLACE_LIMITS)?;
    for (buffer, offset) in plan.buffers.iter_mut().zip(&placement.offsets) {
        buffer.offset = *offset;
    }
    let certificate = placement.certificate;
    plan.arena = Arena {
        size: placement.height,
        alignment,
        lower_bound: certificate.lower_bound,
        peak_step: certificate.peak_step,
    };
    Ok(())
}
