//! Passes: graph to graph, each a verb, one ordered list.
//!
//! [`PIPELINE`] gives their order, names and dump points. [`run`] verifies the graph after every pass; a violation there
//! is a bug of that pass. A pass keeps what the graph computes: each is compared with the evaluator before and after.
//!
//! [`multiply_bytes`] multiplies what a file has quantised as it is, where a target has kernels for that, and
//! [`store_halves`] has results stored as `f16` or `bf16` where its kernels take those. [`assign_layouts`] decides which
//! values have their channels in blocks, by what the kernels like, and [`fuse_convs`] which convolutions run in one step with
//! the ones behind them.
//!
//! Two more take what a target adds to a graph's bytes, its [`Footprint`]: [`schedule`] puts the nodes in the order with
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
//! let scheduled = prestow_passes::schedule(&graph, &prestow_passes::Footprint::BARE);
//! assert_eq!(scheduled.order.peak.0, 16, "in place");
//! ```

mod attention;
pub mod bands;
mod bytes;
mod clean;
mod common;
mod convs;
mod dead;
mod epilogue;
mod flow;
mod fold;
mod halves;
mod idiom;
mod layer_norm;
mod layout;
mod norm;
pub mod order;
mod planes;
mod pointwise;
mod schedule;

use ir::{Graph, VerifyError, verify};

pub use attention::find_attention;
pub use bytes::{ByteKernels, find_bytes, multiply_bytes};
pub use clean::{clean, share};
pub use convs::fuse_convs;
pub use dead::remove_dead;
pub use epilogue::fuse_epilogues;
pub use fold::fold_constants;
pub use halves::store_halves;
pub use idiom::find_idioms;
pub use layer_norm::find_norms;
pub use layout::{Wishes, assign_layouts};
pub use norm::{fold_scales, split_norms};
pub use planes::flatten_windows;
pub use pointwise::fuse_pointwise;
pub use schedule::{Counted, Footprint, Scheduled, live_bytes, schedule, tasks};

/// A pass with its name.
pub struct Pass {
    /// The name in dumps and messages.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&Graph) -> Graph,
}

/// All passes in the order in which they run.
pub const PIPELINE: &[Pass] = &[
    Pass { name: "find_bytes", run: find_bytes },
    Pass { name: "fold_constants", run: fold_constants },
    Pass { name: "clean", run: clean },
    Pass { name: "share", run: share },
    Pass { name: "find_norms", run: find_norms },
    Pass { name: "find_attention", run: find_attention },
    Pass { name: "find_idioms", run: find_idioms },
    Pass { name: "remove_dead", run: remove_dead },
    Pass { name: "split_norms", run: split_norms },
    Pass { name: "fold_scales", run: fold_scales },
    Pass { name: "flatten_windows", run: flatten_windows },
    Pass { name: "fuse_epilogues", run: fuse_epilogues },
    Pass { name: "fuse_pointwise", run: fuse_pointwise },
];

/// A pass left a graph that is not one: a bug of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pass `{pass}` broke the graph: {}", .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct BrokenGraph {
    /// The pass, or `load` for the graph as it came.
    pub pass: &'static str,
    /// What is wrong.
    pub errors: Vec<VerifyError>,
}

/// Runs all passes. `watch` sees the graph as it came (named `load`) and after each pass.
///
/// # Errors
/// The first graph that does not verify.
pub fn run(mut graph: Graph, mut watch: impl FnMut(&'static str, &Graph)) -> Result<Graph, BrokenGraph> {
    verify(&graph).map_err(|errors| BrokenGraph { pass: "load", errors })?;
    watch("load", &graph);
    for pass in PIPELINE {
        graph = (pass.run)(&graph);
        verify(&graph).map_err(|errors| BrokenGraph { pass: pass.name, errors })?;
        watch(pass.name, &graph);
    }
    Ok(graph)
}
