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
use ir::{Graph, Node, NodeId, Op};
use lower::cpu::{CpuTarget, Layer};
use lower::{FREE_SCRATCH, Lowered, Target};
use passes::{Footprint, Scheduled, Wishes};
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
    let mut graph = passes::run(model.graph, &mut watch)?;
    let bytes = passes::ByteKernels {
        fits: &|graph, node| target.multiplies_bytes(graph, node),
        writes: &|graph, node| target.writes_bytes(graph, node),
    };
    graph = passes::lower_quantized(&graph, bytes);
    ir::verify(&graph).map_err(|errors| passes::PassError { pass: "lower_quantized", errors })?;
    watch("lower_quantized", &graph);
    if target.dtype().is_half() {
        graph = passes::convert_to_half(&graph, target.dtype(), &|graph, node| target.halves(graph, node));
        ir::verify(&graph).map_err(|errors| passes::PassError { pass: "convert_to_half", errors })?;
        watch("convert_to_half", &graph);
    }
    let laid_out = assign_layouts(&graph, target)?;
    watch("assign_layouts", &laid_out);
    let scheduled = schedule(&laid_out, target, FREE_SCRATCH)?;
    watch("schedule", &scheduled.graph);
    let mut compiled = finish(&scheduled, target, |_| FREE_SCRATCH)?;
    if let Some(filling) = target.filling() {
        // What is to spare is an estimate; that nothing grows is none.
        let filled = finish(&scheduled, &*filling, |_| FREE_SCRATCH)?;
        if filled.plan.arena.size() <= compiled.plan.arena.size() {
            compiled = filled;
        }
    }
    if let Some(budget) = budget
        && budget < compiled.plan.arena.size()
    {
        if slides_over_bytes(&graph) {
            // Stripes have no layouts of their own yet, and kernels take bytes from blocks.
            return Err(CompileError::Budget { budget, smallest: compiled.plan.arena.size() });
        }
        // The same holds for halves, whose kernels may take less workspace.
        let cuts = if target.dtype().is_half() { Cuts::Nothing } else { Cuts::Stripes };
        // Stripes are cut before there are layouts: a stripe has layouts of its own.
        let plain = schedule(&graph, target, FREE_SCRATCH)?;
        compiled = budget::within(&plain.graph, target, cuts, budget, compiled.plan.arena.size())?;
    }
    // Of the model as it came: passes fold weights together and multiply-adds away, stripes compute halos twice.
    let plan = &mut compiled.plan;
    (plan.parameters, plan.flops) = (parameters, flops);
    (plan.preprocess, plan.labels) = (model.preprocess, model.labels);
    Ok(compiled)
}

/// Whether a graph has convolutions or pools of bytes.
fn slides_over_bytes(graph: &Graph) -> bool {
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

/// Gives values the layouts that the target's kernels are fastest with, and joins what is faster as one step.
fn assign_layouts(graph: &Graph, target: &dyn Target) -> Result<Graph, CompileError> {
    let Some(blocked) = target.blocked() else { return Ok(graph.clone()) };
    let wishes = Wishes {
        blocked,
        time: &|graph, node, layout| target.time(graph, node, layout),
        reads_blocked: &|graph, node, input| target.reads_blocked(graph, node, input),
        relayout: &|graph, value| target.relayout_time(graph, value),
    };
    let graph = passes::assign_layouts(graph, &wishes);
    ir::verify(&graph).map_err(|errors| passes::PassError { pass: "assign_layouts", errors })?;
    let graph = passes::fuse_conv_chains(&graph, &|graph, run| target.fuses(graph, run));
    ir::verify(&graph).map_err(|errors| passes::PassError { pass: "fuse_conv_chains", errors })?;
    Ok(graph)
}

/// Puts the nodes in the order with the least peak, where kernels take at most `scratch` if they can.
fn schedule(graph: &Graph, target: &dyn Target, scratch: Bytes) -> Result<Scheduled, CompileError> {
    // Nodes without a kernel are refused here, so that what follows may ask for any node's workspace.
    lower::check(graph, target)?;
    let mut scheduled = passes::schedule(graph, &footprint(target, &workspace(target, scratch)));
    // Which of two orders is better with the bytes that are really shared, lowering alone can tell.
    if let Some(whole) = scheduled.whole.take()
        && lower::peak(&whole, target, scratch)? < lower::peak(&scheduled.graph, target, scratch)?
    {
        scheduled.graph = whole;
    }
    ir::verify(&scheduled.graph).map_err(|errors| passes::PassError { pass: "schedule", errors })?;
    Ok(scheduled)
}

/// The workspace of a node that has a kernel.
fn workspace(target: &dyn Target, scratch: Bytes) -> impl Fn(&Graph, NodeId) -> Bytes {
    move |graph, node| lower::workspace(graph, target, node, scratch).unwrap_or_default()
}

/// What a target adds to the bytes of a graph.
fn footprint<'a>(target: &dyn Target, workspace: &'a dyn Fn(&Graph, NodeId) -> Bytes) -> Footprint<'a> {
    Footprint { alignment: target.alignment(), workspace }
}

/// Lowers, places and checks a graph whose nodes stand in their final order.
fn finish(
    scheduled: &Scheduled,
    target: &dyn Target,
    scratch: impl Fn(NodeId) -> Bytes,
) -> Result<Compiled, CompileError> {
    let Lowered { mut plan, constants } = lower::lower_within(&scheduled.graph, target, scratch)?;
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
