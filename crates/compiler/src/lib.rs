//! The compiler on one page: a model becomes a plan with its constants, and those an executable.
//!
//! ```text
//! load / build -> verify -> passes -> layouts -> schedule -> lower -> place -> check -> image
//! ```
//!
//! [`load`](source::load) reads a model from the zoo or a file; [`compile`] does the rest, once for each batch;
//! [`Program::join`] brings several together; [`write_executable`] puts the result behind a runner. The same input gives the same bytes.

mod budget;
mod executable;
pub mod gpu;
pub mod source;
mod tune_cache;

use arena::{Aim, Limits};
use ir::{Graph, Node, Op, Target, UNLIMITED};
use lower::cpu::{CpuTarget, Layer};
use lower::{Lowered, Selection};
use passes::{MemoryModel, Ordered, Stage};
use plan::{Arena, Plan, PlanError};
use types::{Bytes, Certificate, DType, Preprocess};

use budget::Cuts;
pub use budget::{Fit, Region};
pub use executable::{Program, write_executable};
pub use tune_cache::{TuneOutcome, default_tune_cache, read_tune_rows};

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
    /// What was done to fit a budget, where something was.
    pub fit: Option<Fit>,
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
    /// No plan found stays within the budget.
    #[error("no plan fits into a budget of {budget}: the smallest arena found is {smallest} ({0} bytes)", .smallest.0)]
    Budget {
        /// What was allowed.
        budget: Bytes,
        /// The least that was found.
        smallest: Bytes,
    },
    /// A bug of ours: a pass left a graph that is not one.
    #[error("internal error: {0}")]
    Pass(#[from] passes::PassError),
    /// A bug of ours: the finished plan does not pass its own check.
    #[error("internal error: the plan is not valid: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Plan(Vec<PlanError>),
}

/// The work that the placer may do, in its own units: far more than networks need, bounded for hard cases.
const PLACE_LIMITS: Limits = Limits { work: 30_000_000, aim: Aim::Least };

/// Compiles a model for a target: the fastest plan, within a budget for the arena if there is one. `watch` sees the graph
/// as it came and after each pass.
///
/// # Errors
/// What the target cannot do, memory that cannot be placed, a budget that nothing fits.
pub fn compile(
    model: Model,
    target: &dyn Target,
    budget: Option<Bytes>,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<Compiled, CompileError> {
    let (parameters, flops) = (model.graph.parameters(), model.graph.flops());
    let graph = passes::run(model.graph, &mut watch)?;
    let graph = passes::run_stage(graph, Stage::Precision, target, &mut watch)?;
    let laid_out = passes::run_stage(graph.clone(), Stage::Layout, target, &mut watch)?;
    let scheduled = schedule(&laid_out, target, UNLIMITED, &mut watch)?;
    let mut compiled = finish(&scheduled, target, &scheduled.selection)?;
    if let Some(split_k) = scheduled.selection.with_slack(&scheduled.graph, target)? {
        // The slack is only an estimate: keep the split-K plan only if the placed arena did not grow.
        let with_split_k = finish(&scheduled, target, &split_k)?;
        if with_split_k.plan.arena.size() <= compiled.plan.arena.size() {
            compiled = with_split_k;
        }
    }
    if let Some(budget) = budget
        && budget < compiled.plan.arena.size()
    {
        if has_int8_windows(&graph) {
            // Stripes have no layouts of their own yet, and int8 kernels read blocked layouts.
            return Err(CompileError::Budget { budget, smallest: compiled.plan.arena.size() });
        }
        // The same holds for half precision, whose kernels may take less workspace.
        let cuts = if target.precision().is_half() { Cuts::Nothing } else { Cuts::Stripes };
        // Stripes are cut before there are layouts: a stripe has layouts of its own.
        let plain = schedule(&graph, target, UNLIMITED, |_, _| {})?;
        compiled = budget::within(&plain.graph, target, cuts, budget, compiled.plan.arena.size())?;
    }
    // Of the model as it came: passes fold weights together and multiply-adds away, stripes compute halos twice.
    let plan = &mut compiled.plan;
    (plan.parameters, plan.flops) = (parameters, flops);
    (plan.preprocess, plan.labels) = (model.preprocess, model.labels);
    Ok(compiled)
}

/// Whether a graph has convolutions or pools of 8-bit integers.
fn has_int8_windows(graph: &Graph) -> bool {
    let slides = |node: &Node| matches!(node.op, Op::Conv(_) | Op::Pool(_));
    let mut values =
        graph.nodes().values().filter(|node| slides(node)).flat_map(|node| node.inputs.iter().chain(&node.outputs));
    values.any(|&value| matches!(graph.ty(value).dtype, DType::U8 | DType::I8))
}

/// The layers of a model that the CPU can compute in several ways, for someone to measure.
///
/// # Errors
/// A bug of ours: a pass left a graph that is not one.
pub fn tunable(graph: Graph, target: &CpuTarget) -> Result<Vec<Layer>, CompileError> {
    Ok(lower::cpu::layers(&passes::run(graph, |_, _| {})?, target))
}

/// A graph in its order of execution, with its kernels.
struct Scheduled {
    graph: Graph,
    selection: Selection,
    /// The peak of live bytes in this order, with its lower bounds over all orders.
    order: Certificate,
}

/// Selects kernels with at most this workspace if they can, and orders the nodes for the least peak.
fn schedule(
    graph: &Graph,
    target: &dyn Target,
    workspace: Bytes,
    watch: impl FnMut(&'static str, &Graph),
) -> Result<Scheduled, CompileError> {
    let selection = Selection::within(graph, target, |_| workspace)?;
    let memory = MemoryModel { alignment: target.alignment(), workspaces: selection.workspaces() };
    let passes::Scheduled { ordered, order, whole } = passes::schedule(graph, &memory);
    let with_kernels = |ordered: Ordered| (selection.reordered(&ordered.nodes), ordered.graph);
    let (mut selection, mut graph) = with_kernels(ordered);
    // Which of two orders is better depends on the bytes that values really share, and so on the kernels.
    if let Some((whole_selection, whole)) = whole.map(with_kernels)
        && whole_selection.peak(&whole, target)? < selection.peak(&graph, target)?
    {
        (selection, graph) = (whole_selection, whole);
    }
    Ok(Scheduled { graph: passes::checked("schedule", graph, watch)?, selection, order })
}

/// Writes, places and checks the plan of a graph whose nodes have their final order.
fn finish(scheduled: &Scheduled, target: &dyn Target, selection: &Selection) -> Result<Compiled, CompileError> {
    let Lowered { mut plan, constants } = lower::write_plan(&scheduled.graph, target, selection)?;
    place(&mut plan)?;
    plan.order = order_certificate(&scheduled.order, plan.arena.certificate.lower_bound);
    plan::check(&plan).map_err(CompileError::Plan)?;
    Ok(Compiled { plan, constants, fit: None })
}

/// The certificate of the order for the buffers that lowering made, whose lower bound is `peak`.
///
/// The scheduler's bounds count a concatenation slice by slice, from when each is written; buffers may need more. So
/// they hold for an order that was chosen with whole concatenations too.
fn order_certificate(scheduled: &Certificate, peak: Bytes) -> Certificate {
    if peak < scheduled.lower_bound {
        // Lowering shares bytes that the scheduler's bound counts twice: it does not hold for these buffers.
        return Certificate { value: peak, ..Certificate::default() };
    }
    Certificate { value: peak, least: scheduled.least.clamp(scheduled.lower_bound, peak), ..*scheduled }
}

/// Gives every buffer its offset and the arena its size and bound.
fn place(plan: &mut Plan) -> Result<(), CompileError> {
    let alignment = plan.arena.alignment;
    let placement = arena::place(&plan.problem(), PLACE_LIMITS)?;
    for (buffer, offset) in plan.buffers.iter_mut().zip(&placement.offsets) {
        buffer.offset = *offset;
    }
    plan.arena = Arena { alignment, peak_step: placement.peak_step, certificate: placement.certificate };
    Ok(())
}
