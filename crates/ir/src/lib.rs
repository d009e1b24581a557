//! The graph: loaders produce it, passes rewrite it, lowering consumes it.
//!
//! A [`Graph`] holds [`Node`]s in topological order. A node applies one [`Op`] to [`Value`]s and yields values; a value has a
//! dtype, a static shape and a layout. Loaders bind dynamic dimensions and parse strings, so neither exists here.
//!
//! - [`Op`] is a closed list, with one file for each operator under `ops/`: type inference, definition, gradient,
//!   axes, reuse, cost.
//! - [`Backward`] is the place where an operator adds the nodes of its gradient.
//! - [`AxisMap`] states how an operator's output depends on the axes of its operands.
//! - [`verify()`] returns all errors of a graph at once.
//! - [`Physical`] is a node's op on row-major tensors with the same bytes, whatever the layouts of its values.
//! - [`evaluate`] runs a graph by the operators' definitions: slow and obvious, the reference for every executor.
//! - [`Target`] is the interface between passes and kernels.
//! - [`analysis`] has alias sets and liveness, which scheduling and lowering share.
//! - [`text`] prints a graph and parses it back.
//!
//! ```
//! use prestow_ir::{Graph, Op, ops::Unary, text};
//! use types::{DType, Scope, Shape, pointwise};
//!
//! let mut graph = Graph::new("tiny");
//! let x = graph.add_input("x", DType::F32, Shape::from([8]));
//! let y = graph.add1(Op::Unary(Unary(pointwise::Unary::Relu)), &[x], Scope::new("relu")).unwrap();
//! graph.set_outputs(vec![("y".into(), y)]);
//! assert!(prestow_ir::verify(&graph).is_ok());
//! assert!(text::print(&graph).contains("unary"));
//! ```

pub mod analysis;
mod axes;
mod backward;
mod graph;
mod op;
pub mod ops;

mod dot;
mod eval;
mod physical;
mod rewrite;
mod target;
pub mod text;
mod trainable;
mod verify;
mod weight_operand;

pub use axes::{Along, AxisChange, AxisMap, Band, OperandAxes, Tile, Window, Work};
pub use backward::{Backward, Gradients};
pub use dot::{dependencies, dot};
pub use eval::{EvalError, evaluate, evaluate_run, initial_states};
pub use graph::{Destination, Graph, Node, NodeId, Output, Value, ValueDef, ValueId};
pub use op::{Op, Operator, Refusal, Reuse, TensorType};
pub use physical::Physical;
pub use rewrite::{Rewrite, reorder, rewrite};
pub use target::{
    Call, CallInput, CallSizes, Candidate, Format, Formats, INT8_TERMS, NoKernel, Pack, Packer, Query, RejectedKernel,
    Target, UNLIMITED,
};
pub use trainable::{LossForm, LossMean, LossTerm, Moving, Multipliers, Trainable};
pub use verify::{VerifyError, verify};
pub use weight_operand::weight_operand;
