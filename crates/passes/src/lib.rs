//! Passes: graph to graph, each a verb, one ordered list.
//!
//! [`PIPELINE`] gives their order, names and dump points. [`run`] verifies the graph after every pass; a violation there
//! is a bug of that pass. A pass keeps what the graph computes: each is compared with the evaluator before and after.
//!
//! [`lower_quantized`] multiplies what a file has quantised as it is, where a target has kernels for that, and
//! [`convert_to_half`] has results stored as `f16` or `bf16` where its kernels take those. [`assign_layouts`] decides which
//! values have their channels in blocks, by what the kernels like, and [`fuse_conv_chains`] which convolutions run in one step with
//! the ones behind them.
//!
//! Two more take what a target adds to a graph's bytes, its [`MemoryModel`]: [`schedule`] puts the nodes in the order with
//! the least peak of live bytes and says what is known about it ([`order`] finds it; it knows tasks and blocks and no
//! graph), [`bands`] goes below that peak by running stretches of the graph part by part.
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

mod convert_to_half;
mod fuse;
mod layout;
mod max_flow;
pub mod order;
mod patterns;
mod quantize;
mod schedule;
mod simplify;
pub mod stripes;
#[cfg(test)]
mod test_target;
mod uses;

use ir::{Graph, VerifyError, verify};

pub use convert_to_half::convert_to_half;
pub use fuse::conv_chains::fuse_conv_chains;
pub use fuse::epilogues::fuse_epilogues;
pub use fuse::pointwise::fuse_pointwise;
pub use layout::assign_layouts;
pub use patterns::activations::match_activations;
pub use patterns::attention::match_attention;
pub use patterns::layer_norm::match_layer_norm;
pub use quantize::{lower_quantized, match_qdq};
pub use schedule::{Counted, MemoryModel, Ordered, Scheduled, live_bytes, schedule, tasks};
pub use simplify::canonicalize::canonicalize;
pub use simplify::conv3d_to_conv2d::conv3d_to_conv2d;
pub use simplify::cse::cse;
pub use simplify::dce::dce;
pub use simplify::decompose_batch_norm::decompose_batch_norm;
pub use simplify::fold_batch_norm::fold_batch_norm;
pub use simplify::fold_constants::fold_constants;

/// A pass with its name.
pub struct Pass {
    /// The name in dumps and messages.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&Graph) -> Graph,
}

/// All passes in the order in which they run.
pub const PIPELINE: &[Pass] = &[
    Pass { name: "match_qdq", run: match_qdq },
    Pass { name: "fold_constants", run: fold_constants },
    Pass { name: "canonicalize", run: canonicalize },
    Pass { name: "cse", run: cse },
    Pass { name: "match_layer_norm", run: match_layer_norm },
    Pass { name: "match_attention", run: match_attention },
    Pass { name: "match_activations", run: match_activations },
    Pass { name: "dce", run: dce },
    Pass { name: "decompose_batch_norm", run: decompose_batch_norm },
    Pass { name: "fold_batch_norm", run: fold_batch_norm },
    Pass { name: "conv3d_to_conv2d", run: conv3d_to_conv2d },
    Pass { name: "fuse_epilogues", run: fuse_epilogues },
    Pass { name: "fuse_pointwise", run: fuse_pointwise },
];

/// A pass left a graph that is not one: a bug of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pass `{pass}` broke the graph: {}", .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct PassError {
    /// The pass, or `load` for the graph as it came.
    pub pass: &'static str,
    /// What is wrong.
    pub errors: Vec<VerifyError>,
}

/// Runs all passes. `watch` sees the graph as it came (named `load`) and after each pass.
///
/// # Errors
/// The first graph that does not verify.
pub fn run(mut graph: Graph, mut watch: impl FnMut(&'static str, &Graph)) -> Result<Graph, PassError> {
    verify(&graph).map_err(|errors| PassError { pass: "load", errors })?;
    watch("load", &graph);
    for pass in PIPELINE {
        graph = (pass.run)(&graph);
        verify(&graph).map_err(|errors| PassError { pass: pass.name, errors })?;
        watch(pass.name, &graph);
    }
    Ok(graph)
}
