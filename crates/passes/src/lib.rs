//! Passes: rewrites of a graph, in one ordered list.
//!
//! [`PIPELINE`] has all of them with names, stages and dump points. A graph is verified after every pass; an error is a bug
//! of that pass. A pass keeps the outputs of a graph: tests compare them with the evaluator before and after.
//!
//! Passes of [`Stage::General`] are independent of the target. Later passes query its kernels through [`ir::Target`]: int8 and
//! half precision, weights in fewer bits, layouts as a minimum cut, fused convolutions. [`schedule`] orders nodes for the least peak of live bytes
//! ([`order`] finds the order and its lower bound, on tasks and blocks instead of a graph). [`stripes`] goes below that peak:
//! it tiles regions of the graph under a memory budget. [`training`] runs before all of them.
//!
//! ```
//! use ir::{Graph, Op, ops::Unary};
//! use types::{DType, Scope, Shape, pointwise};
//!
//! let mut graph = Graph::new("twice");
//! let x = graph.add_input("x", DType::F32, Shape::from([4]));
//! let a = graph.add1(Op::Unary(Unary(pointwise::Unary::Relu)), &[x], Scope::new("a")).unwrap();
//! let b = graph.add1(Op::Unary(Unary(pointwise::Unary::Exp)), &[a], Scope::new("b")).unwrap();
//! graph.set_outputs(vec![("y".into(), b)]);
//! let graph = prestow_passes::run(graph, |_, _| {}).unwrap();
//! assert_eq!(graph.nodes().len(), 1, "both functions run in one step");
//! let scheduled = prestow_passes::schedule(&graph, &prestow_passes::MemoryModel::bare(&graph));
//! assert_eq!(scheduled.order.value.0, 16, "in place");
//! ```

/// The methods of [`ir::Target`] that a target around another, its field `$target`, leaves as they are.
macro_rules! forward_properties {
    ($target:ident) => {
        fn name(&self) -> String {
            self.$target.name()
        }

        fn alignment(&self) -> types::Bytes {
            self.$target.alignment()
        }

        fn precision(&self) -> types::DType {
            self.$target.precision()
        }

        fn weight_format(&self) -> Option<types::WeightFormat> {
            self.$target.weight_format()
        }

        fn layout(&self) -> Option<types::Layout> {
            self.$target.layout()
        }

        fn check_call(&self, code: &[u8], sizes: ir::CallSizes) -> Result<(), String> {
            self.$target.check_call(code, sizes)
        }
    };
}
use forward_properties;

mod convert_to_half;
mod fuse;
mod known;
mod layout;
mod max_flow;
pub mod order;
mod patterns;
mod price;
mod quantize;
mod recompute;
mod schedule;
mod simplify;
mod store_weights;
pub mod stripes;
#[cfg(test)]
mod test_target;
mod tie_weights;
pub mod training;
mod uses;

use ir::{Graph, Target, VerifyError, verify};

pub use convert_to_half::convert_to_half;
pub use fuse::conv_chains::fuse_conv_chains;
pub use fuse::epilogues::fuse_epilogues;
pub use fuse::pointwise::fuse_pointwise;
pub use fuse::transposes::fuse_transposes;
pub use fuse::updates::fuse_updates;
pub use known::Known;
pub use layout::assign_layouts;
pub use patterns::activations::match_activations;
pub use patterns::attention::match_attention;
pub use patterns::channel_products::match_channel_products;
pub use patterns::layer_norm::match_layer_norm;
pub use price::{Priced, Prices};
pub use quantize::{lower_quantized, match_qdq};
pub use recompute::recompute;
pub use schedule::{
    Counted, MemoryModel, Ordered, Scheduled, in_good_order, least_of_any_kernels, live_bytes, schedule, tasks,
};
pub use simplify::canonicalize::canonicalize;
pub use simplify::conv_transpose_to_conv::conv_transpose_to_conv;
pub use simplify::conv3d_to_conv2d::{conv3d_to_conv2d, conv3d_to_conv2d_apart, has_volumes};
pub use simplify::cse::cse;
pub use simplify::dce::dce;
pub use simplify::decompose_batch_norm::decompose_batch_norm;
pub use simplify::fold_batch_norm::fold_batch_norm;
pub use simplify::fold_constants::fold_constants;
pub use store_weights::{WeightError, store_weights, weight_errors};
pub use tie_weights::tie_weights;

/// A pass with its name.
pub struct Pass {
    /// The name in dumps and messages.
    pub name: &'static str,
    /// The part of the compilation that the pass belongs to.
    pub stage: Stage,
    /// The rewrite.
    pub run: Run,
}

/// Parts of a compilation, in order. A memory budget repeats the last two on the result of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Independent of the target.
    General,
    /// Dtypes and forms of operands that the target's kernels compute with.
    Precision,
    /// Layouts, and fusion that depends on them.
    Layout,
    /// The order of execution.
    Order,
}

/// The rewrite of a pass.
#[derive(Clone, Copy)]
pub enum Run {
    /// Independent of the target.
    Graph(fn(&Graph) -> Graph),
    /// Queries the target's kernels.
    Target(fn(&Graph, &dyn Target) -> Graph),
    /// [`schedule`], which needs the selected kernels: the compiler runs it and passes the graph to [`checked`].
    Schedule,
}

const fn general(name: &'static str, run: fn(&Graph) -> Graph) -> Pass {
    Pass { name, stage: Stage::General, run: Run::Graph(run) }
}

const fn for_target(name: &'static str, stage: Stage, run: fn(&Graph, &dyn Target) -> Graph) -> Pass {
    Pass { name, stage, run: Run::Target(run) }
}

/// All passes in the order in which they run.
pub const PIPELINE: &[Pass] = &[
    general("match_qdq", match_qdq),
    general("conv_transpose_to_conv", conv_transpose_to_conv),
    general("fold_constants", fold_constants),
    general("canonicalize", canonicalize),
    general("cse", cse),
    general("match_layer_norm", match_layer_norm),
    general("match_attention", match_attention),
    general("match_activations", match_activations),
    general("dce", dce),
    general("decompose_batch_norm", decompose_batch_norm),
    general("fold_batch_norm", fold_batch_norm),
    general("match_channel_products", match_channel_products),
    general("conv3d_to_conv2d", conv3d_to_conv2d),
    general("save_positions", training::save_positions),
    general("recompute", recompute),
    general("fuse_epilogues", fuse_epilogues),
    general("fuse_pointwise", fuse_pointwise),
    for_target("save_gates", Stage::Precision, training::save_gates),
    for_target("lower_quantized", Stage::Precision, lower_quantized),
    for_target("convert_to_half", Stage::Precision, convert_to_half),
    for_target("tie_weights", Stage::Precision, tie_weights),
    for_target("store_weights", Stage::Precision, store_weights),
    for_target("fuse_transposes", Stage::Precision, fuse_transposes),
    for_target("fuse_updates", Stage::Precision, fuse_updates),
    for_target("assign_layouts", Stage::Layout, assign_layouts),
    for_target("fuse_conv_chains", Stage::Layout, fuse_conv_chains),
    Pass { name: "schedule", stage: Stage::Order, run: Run::Schedule },
];

/// A pass left an invalid graph: a bug of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pass `{pass}` left an invalid graph: {}", .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct PassError {
    /// The pass, or `load` for the graph before the first.
    pub pass: &'static str,
    /// All errors of the graph.
    pub errors: Vec<VerifyError>,
}

/// Runs the passes that are independent of the target. `watch` sees the graph before the first (named `load`) and after
/// each.
///
/// # Errors
/// The first graph that does not verify.
pub fn run(graph: Graph, watch: impl FnMut(&'static str, &Graph)) -> Result<Graph, PassError> {
    run_for(graph, Volumes::Padded, watch)
}

/// The operands of windows over three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volumes {
    /// Planes, for which there are kernels in all layouts, between planes of zeros: [`conv3d_to_conv2d`].
    Padded,
    /// The same without planes of zeros: [`conv3d_to_conv2d_apart`].
    Apart,
    /// Volumes as they are in the file.
    Whole,
}

/// [`run`] for a choice of operands of windows over three dimensions.
///
/// # Errors
/// The first graph that does not verify.
pub fn run_for(
    graph: Graph,
    volumes: Volumes,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<Graph, PassError> {
    let mut graph = checked("load", graph, &mut watch)?;
    for pass in PIPELINE {
        if let Run::Graph(run) = pass.run {
            let run = match volumes {
                Volumes::Apart if pass.name == "conv3d_to_conv2d" => conv3d_to_conv2d_apart,
                Volumes::Whole if pass.name == "conv3d_to_conv2d" => continue,
                _ => run,
            };
            graph = checked(pass.name, run(&graph), &mut watch)?;
        }
    }
    Ok(graph)
}

/// Runs the passes of a stage that query the target, where bytes have a price. The first pass gets `graph` itself, so that
/// a target can recognize the graph that it has answers about ([`Known`]).
///
/// # Errors
/// The first graph that does not verify.
pub fn run_stage(
    graph: &Graph,
    stage: Stage,
    target: &dyn Target,
    prices: &Prices,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<Graph, PassError> {
    let mut last: Option<Graph> = None;
    for pass in PIPELINE.iter().filter(|pass| pass.stage == stage) {
        if let Run::Target(run) = pass.run {
            let from = last.as_ref().unwrap_or(graph);
            last = Some(checked(pass.name, run(from, &Priced::new(target, prices, from)), &mut watch)?);
        }
    }
    Ok(last.unwrap_or_else(|| graph.clone()))
}

/// The graph that a pass returned, once it is verified and `watch` has seen it.
///
/// # Errors
/// The graph does not verify.
pub fn checked(
    pass: &'static str,
    graph: Graph,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<Graph, PassError> {
    verify(&graph).map_err(|errors| PassError { pass, errors })?;
    watch(pass, &graph);
    Ok(graph)
}
