//! The compiler's pipeline: a model becomes a plan with its constants, and these become an executable.
//!
//! ```text
//! load / build -> verify -> passes -> layouts -> schedule -> lower -> place -> check -> image
//! ```
//!
//! `search` chooses layouts, kernels and order together, for a [`Goal`].
//!
//! [`load()`](source::load) reads a model from the zoo or a file. [`compile`] runs the other stages, once for each batch.
//! [`compile_training`] compiles a step of training and its evaluation. [`Program::join`] combines several plans; [`write_executable`] appends the result to a runner. The same input gives
//! the same bytes.

mod alternatives;
mod budget;
mod executable;
pub mod gpu;
pub mod residency;
mod search;
pub mod source;
mod squeeze;
mod training;
mod tune_cache;
mod volumes;

use arena::{Aim, Limits, Placement};
use ir::{Graph, Node, Op, Target, UNLIMITED};
pub use lower::Constants;
use lower::cpu::{CpuTarget, Layer};
use lower::{Lowered, Selection};
use passes::{MemoryModel, Ordered, Prices, Stage, Volumes};
use plan::{Arena, ArenaLimit, Plan, PlanError};
use types::{Bytes, Certificate, DType, Preprocess};

use budget::Cuts;
pub use budget::{BudgetChanges, Region};
pub use executable::{Program, ProgramWeights, write_executable};
pub use training::{compile_training, training_program};
pub use tune_cache::{TuneOutcome, default_tune_cache, read_tune_rows};

/// A model, ready to be compiled.
#[derive(Clone, Debug)]
pub struct Model {
    /// The graph of the model.
    pub graph: Graph,
    /// The preprocessing of an image input, if the model has one.
    pub preprocess: Option<Preprocess>,
    /// The names of the classes that the first output scores.
    pub labels: Vec<String>,
}

/// A plan and the bytes of its constants.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
    /// The constants' section.
    pub constants: Constants,
    /// The changes that made the arena fit a budget, if any.
    pub fit: Option<BudgetChanges>,
}

/// Why a model cannot be compiled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// The target has no kernel for an operator.
    #[error(transparent)]
    Lower(#[from] lower::LowerError),
    /// The placer cannot place the buffers.
    #[error("the memory of the model cannot be placed: {0}")]
    Place(#[from] arena::PlaceError),
    /// No plan found stays within the budget.
    #[error("no plan fits: the smallest arena found needs {smallest} ({0} bytes), limit {budget}", .smallest.0)]
    Budget {
        /// The budget.
        budget: Bytes,
        /// The smallest arena found.
        smallest: Bytes,
    },
    /// The model cannot be trained as asked.
    #[error(transparent)]
    Training(#[from] passes::training::TrainingError),
    /// Internal error: a pass produced an invalid graph.
    #[error("internal error: {0}")]
    Pass(#[from] passes::PassError),
    /// Internal error: the finished plan fails its check.
    #[error("internal error: the plan is not valid: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Plan(Vec<PlanError>),
}

/// The placer's work limits, in its own units: far more than networks need, but bounded for hard cases.
const PLACE_LIMITS: Limits = Limits { work: 10_000_000, aim: Aim::Least };
/// Those of plans that are only compared with each other.
const DRAFT_LIMITS: Limits = Limits { work: 500_000, aim: Aim::Least };

/// The quantity that a plan minimizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optimize {
    /// The least time.
    Time,
    /// The fewest bytes of the arena in at most 2 % more than the least modelled time.
    #[default]
    Balanced,
    /// The fewest bytes of the arena.
    Memory,
}

/// The quantity that a plan minimizes, and the limit of its arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goal {
    /// The quantity to minimize.
    pub optimize: Optimize,
    /// The largest arena: of the plans that fit, the fastest one.
    pub budget: Option<Bytes>,
}

impl Goal {
    /// This goal with a limit for the arena.
    pub fn within(budget: Bytes) -> Goal {
        Goal { budget: Some(budget), ..Goal::default() }
    }
}

impl From<Optimize> for Goal {
    fn from(optimize: Optimize) -> Goal {
        Goal { optimize, budget: None }
    }
}

/// Compiles a model for a target and a goal. `watch` receives the original graph and the graph after each pass.
///
/// # Errors
/// The target does not support the model, its memory cannot be placed, or no plan fits the budget.
pub fn compile(
    model: Model,
    target: &dyn Target,
    goal: Goal,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<Compiled, CompileError> {
    let (parameters, flops) = (model.graph.parameters(), model.graph.flops());
    let (graph, best) = if passes::has_volumes(&model.graph) {
        volumes::best_of_forms(&model.graph, target, goal, &mut watch)?
    } else {
        let graph = prepared(model.graph, Volumes::Padded, target, &mut watch)?;
        let best = search::best(&graph, target, goal, &mut watch)?;
        (graph, best)
    };
    let search::Best { mut compiled, unlimited, least_time, .. } = best;
    if let Some(budget) = goal.budget
        && budget < compiled.plan.arena.size()
    {
        if has_int8_windows(&graph) {
            // Stripes have no layouts of their own yet, and int8 kernels read blocked layouts.
            return Err(CompileError::Budget { budget, smallest: compiled.plan.arena.size() });
        }
        // Half precision and states have no stripes either, but kernels may take less workspace.
        let cuts =
            if target.precision().is_half() || !graph.states().is_empty() { Cuts::Nothing } else { Cuts::Stripes };
        // The stripes are cut before layouts are chosen: a stripe has layouts of its own.
        let plain = schedule(&graph, target, UNLIMITED, |_, _| {})?;
        let arenas = [unlimited, compiled.plan.arena.size()];
        compiled = budget::within(&plain.graph, target, cuts, budget, least_time, arenas)?;
    }
    // The counts of the original model: passes fold weights and remove multiply-adds, stripes compute halos twice.
    let plan = &mut compiled.plan;
    (plan.parameters, plan.flops) = (parameters, flops);
    (plan.preprocess, plan.labels) = (model.preprocess, model.labels);
    plan.limit = goal.budget.zip(compiled.fit.as_ref()).map(|(bytes, fit)| ArenaLimit {
        bytes,
        unlimited: fit.unlimited,
        time_permille: ((fit.cost * 1e3).round() as u64).max(1),
    });
    Ok(compiled)
}

/// A graph after the passes in front of those that choose layouts.
fn prepared(
    graph: Graph,
    volumes: Volumes,
    target: &dyn Target,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<Graph, CompileError> {
    let graph = passes::run_for(graph, volumes, &mut watch)?;
    Ok(passes::run_stage(&graph, Stage::Precision, target, &Prices::default(), &mut watch)?)
}

/// Whether a graph has convolutions or pools of 8-bit integers.
fn has_int8_windows(graph: &Graph) -> bool {
    let slides = |node: &Node| matches!(node.op, Op::Conv(_) | Op::Pool(_));
    let mut values =
        graph.nodes().values().filter(|node| slides(node)).flat_map(|node| node.inputs.iter().chain(&node.outputs));
    values.any(|&value| matches!(graph.ty(value).dtype, DType::U8 | DType::I8))
}

/// The layers of a model for which the CPU has several algorithms, to be measured.
///
/// # Errors
/// Internal error: a pass produced an invalid graph.
pub fn tunable(graph: Graph, target: &CpuTarget) -> Result<Vec<Layer>, CompileError> {
    Ok(lower::cpu::layers(&passes::run(graph, |_, _| {})?, target))
}

/// A graph in its order of execution, with its kernels.
#[derive(Clone)]
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
    in_least_peak(graph, &Selection::within(graph, target, |_| workspace)?, target, watch)
}

/// Orders nodes with their kernels for the least peak.
fn in_least_peak(
    graph: &Graph,
    selection: &Selection,
    target: &dyn Target,
    watch: impl FnMut(&'static str, &Graph),
) -> Result<Scheduled, CompileError> {
    let memory = MemoryModel { alignment: target.alignment(), workspaces: selection.workspaces() };
    let passes::Scheduled { ordered, order, whole } = passes::schedule(graph, &memory);
    let with_kernels = |ordered: Ordered| (selection.reordered(&ordered.nodes), ordered.graph);
    let (mut selection, mut graph) = with_kernels(ordered);
    // The better of two orders depends on the bytes that values share after lowering, and therefore on the kernels.
    if let Some((whole_selection, whole)) = whole.map(with_kernels)
        && whole_selection.peak(&whole, target)? < selection.peak(&graph, target)?
    {
        (selection, graph) = (whole_selection, whole);
    }
    Ok(Scheduled { graph: passes::checked("schedule", graph, watch)?, selection, order })
}

/// The places of all buffers of a graph whose nodes have their final order.
fn place(graph: &Graph, target: &dyn Target, selection: &Selection, limits: Limits) -> Result<Placement, CompileError> {
    Ok(arena::place(&lower::draft_plan(graph, target, selection)?.problem(), limits)?)
}

/// Writes and checks the plan of a graph whose buffers are placed.
fn finish(
    scheduled: &Scheduled,
    target: &dyn Target,
    selection: &Selection,
    placement: &Placement,
) -> Result<Compiled, CompileError> {
    let Lowered { mut plan, constants } = lower::write_plan(&scheduled.graph, target, selection)?;
    for (buffer, offset) in plan.buffers.iter_mut().zip(&placement.offsets) {
        buffer.offset = *offset;
    }
    let Arena { alignment, .. } = plan.arena;
    plan.arena = Arena { alignment, peak_step: placement.peak_step, certificate: placement.certificate };
    plan.order = order_certificate(&scheduled.order, plan.arena.certificate.lower_bound);
    let any_kernels = passes::least_of_any_kernels(&scheduled.graph);
    if any_kernels <= plan.order.value {
        // It holds for these kernels too.
        plan.any_kernels = any_kernels;
        plan.order.lower_bound = plan.order.lower_bound.max(any_kernels);
        plan.order.least = plan.order.least.max(any_kernels);
    }
    plan::check(&plan).map_err(CompileError::Plan)?;
    Ok(Compiled { plan, constants, fit: None })
}

/// The certificate of the order for the buffers of the lowered plan, whose lower bound is `peak`.
///
/// The scheduler's bounds count a concatenation slice by slice, from the step that writes each; buffers may need more.
/// The bounds therefore also hold for an order that was chosen with whole concatenations.
fn order_certificate(scheduled: &Certificate, peak: Bytes) -> Certificate {
    if peak < scheduled.lower_bound {
        // Lowering shares bytes that the scheduler's bound counts twice: it does not hold for these buffers.
        return Certificate { value: peak, ..Certificate::default() };
    }
    Certificate { value: peak, least: scheduled.least.clamp(scheduled.lower_bound, peak), ..*scheduled }
}
