//! Lowering: a graph becomes kernel calls over buffers, for a [`Target`].
//!
//! # How kernels are chosen
//!
//! A target answers one question, [`Target::candidates`]: which kernels do the work of a node, in which formats, with how
//! much workspace, at what cost, by which calls? Everything that depends on kernels chooses from these candidates:
//!
//! ```text
//! pass or step              formats in question   taken from the candidates
//! quantization              int8                  whether there is one
//! half precision            f16 or bf16           which operands and results can have it
//! layouts                   each layout           cost and operand layouts, for a minimum cut
//! fusion of convolutions    given, several nodes  workspace of the fused step
//! schedule, stripes         given                 workspace
//! Selection                 given                 the best one, with its calls
//! split-K                   given, with slack     the best one
//! ```
//!
//! A [`Selection`] is the list of best candidates, one for each node. It is built once per graph and passed on: scheduling
//! takes its workspaces, reordering permutes it, [`Selection::peak`] compares orders, [`Selection::with_slack`] requests
//! split-K kernels where the arena has room below its peak, and [`write_plan`] turns its calls into steps. Calls name
//! operands by position, so that a selection is valid for any order of the nodes.
//!
//! Which values share bytes is an analysis of the graph ([`ir::analysis::alias`]), which takes from the selection whether
//! each kernel can work in place. This crate has no other state.
//!
//! # Files
//!
//! - `selection` and `plan_writer` are the two steps; `node_view` is a node in its physical form; `state` adds the copies
//!   that update state at the end of a run.
//! - [`cpu`] and [`cuda`] are the targets. Adding one takes an implementation of [`Target`], in six methods.
//!
//! [`lower`] does both steps. Its plan has buffers with sizes and lifetimes but no offsets.
//!
//! ```
//! use ir::{Graph, Op, ops::Unary};
//! use prestow_lower::{cpu::CpuTarget, lower};
//! use types::{DType, Scope, Shape, pointwise};
//!
//! let mut graph = Graph::new("one");
//! let x = graph.add_input("x", DType::F32, Shape::from([100]));
//! let y = graph.add1(Op::Unary(Unary(pointwise::Unary::Relu)), &[x], Scope::new("relu")).unwrap();
//! graph.set_outputs(vec![("y".into(), y)]);
//! let plan = lower(&graph, &CpuTarget::new()).unwrap().plan;
//! assert_eq!(plan.steps.len(), 1);
//! assert_eq!(plan.buffers.len(), 1, "the result takes the bytes of the input");
//! ```

// The module `cuda` has the name of that crate.
extern crate cuda as cuda_driver;

mod constants;
pub mod cpu;
pub mod cuda;
mod half_precision;
mod node_view;
mod plan_writer;
mod selection;
mod state;

use ir::Graph;
pub use ir::Target;

pub use constants::Constants;
pub(crate) use node_view::NodeView;
pub use plan_writer::{Lowered, draft_plan, write_plan};
pub use selection::{LowerError, Selection};

/// Selects kernels for a graph and writes its plan: [`Selection::new`] and [`write_plan`] in one go.
///
/// # Errors
/// All nodes that the target has no kernel for.
pub fn lower(graph: &Graph, target: &dyn Target) -> Result<Lowered, LowerError> {
    write_plan(graph, target, &Selection::new(graph, target)?)
}
