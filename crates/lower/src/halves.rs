//! How nodes take values that are stored in two bytes, as far as that is the same for all targets.

use ir::ops::ResizeMode;
use ir::{Graph, Node, Op, ValueId};
use types::DType;
use types::pointwise::{Binary, Unary};

/// Whether all that a node reads and writes may be stored otherwise: numbers of `f32`, and what is looked up by others.
pub(crate) fn is_of_numbers(graph: &Graph, node: &Node) -> bool {
    let is_number = |&value: &ValueId| graph.ty(value).dtype == DType::F32;
    let looks_up = matches!(node.op, Op::Gather(_)) && is_number(&node.inputs[0]);
    looks_up || node.inputs.iter().chain(&node.outputs).all(is_number)
}

/// Whether a node does its work element by element or row by row, or moves elements: its result is stored like its operands.
pub(crate) fn follows(op: &Op) -> bool {
    match op {
        Op::Resize(resize) => matches!(resize.mode, ResizeMode::Nearest(_)),
        Op::Unary(unary) => unary.0 != Unary::Not,
        Op::Binary(binary) => {
            !matches!(binary.0, Binary::And | Binary::Or | Binary::Xor | Binary::ShiftLeft | Binary::ShiftRight)
        }
        Op::Chain(_) | Op::LayerNorm(_) => true,
        Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::Expand(_)
        | Op::Concat(_)
        | Op::Pad(_)
        | Op::Gather(_) => true,
        _ => false,
    }
}
