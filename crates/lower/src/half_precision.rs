//! Half precision, as far as it is the same for all targets.

use ir::{Graph, Node, Op, TensorType, ValueId, Work};
use smallvec::SmallVec;
use types::DType;

/// Whether all values that a node reads and writes may be stored in half precision: `f32` values, and the table of a
/// [`Gather`](ir::ops::Gather), whose indices are integers.
pub(crate) fn is_of_numbers(graph: &Graph, node: &Node) -> bool {
    let is_float = |&value: &ValueId| graph.ty(value).dtype == DType::F32;
    let looks_up = matches!(node.op, Op::Gather(_)) && is_float(&node.inputs[0]);
    looks_up || node.inputs.iter().chain(&node.outputs).all(is_float)
}

/// Whether the result of a node has the dtype of its operands in half precision: operators that work element by element or
/// row by row, or that move elements, and that are defined for half precision.
pub(crate) fn follows(graph: &Graph, node: &Node) -> bool {
    let half = |&input: &ValueId| match graph.ty(input) {
        ty if ty.dtype == DType::F32 => TensorType { dtype: DType::F16, shape: ty.shape.clone() },
        ty => ty.clone(),
    };
    let halves: SmallVec<[TensorType; 4]> = node.inputs.iter().map(half).collect();
    match graph.node_axes(node).work {
        Work::Elementwise | Work::Movement | Work::Normalization => {
            node.op.infer(&halves.iter().collect::<SmallVec<[&TensorType; 4]>>()).is_ok()
        }
        Work::Arithmetic => false,
    }
}
