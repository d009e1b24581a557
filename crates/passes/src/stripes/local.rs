//! [`part`]: a node that computes a range of its result along one axis, and the ranges of its operands that this reads.

use std::ops::Range;

use ir::{Along, AxisChange, Graph, Node, Op, TensorType, Tile, ValueId};
use smallvec::SmallVec;

/// A node that computes a part of its result.
pub(super) struct Part {
    pub(super) op: Op,
    /// For each operand the range along the axis that is read; `None` for a constant that is read as a whole.
    pub(super) inputs: SmallVec<[Option<Range<usize>>; 4]>,
}

/// How `node` computes `range` of its result along `axis` and nothing else, each element exactly as before.
///
/// `None` if an element depends on more than a window of a computed operand along the axis, if an axis of another position
/// is read in ranges, or if the operator cannot be tiled.
pub(super) fn part(graph: &Graph, node: &Node, axis: usize, range: &Range<usize>) -> Option<Part> {
    let types: SmallVec<[&TensorType; 4]> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
    let output = graph.ty(node.outputs[0]);
    let map = node.op.axes(&types, output);
    let mut tile = Tile { axis, count: range.len(), pad: [0, 0] };
    let mut inputs = SmallVec::new();
    for (&input, along) in node.inputs.iter().zip(&map.operands) {
        let shape = &graph.ty(input).shape;
        inputs.push(match along[axis] {
            Along::Broadcast if is_constant(graph, input) => None,
            // Operands are cut along the same axis, so a computed operand must have it.
            Along::Broadcast if shape.rank() == output.shape.rank() => Some(0..1),
            Along::Same(own) if own == axis && !is_constant(graph, input) && shape.rank() == output.shape.rank() => {
                Some(range.clone())
            }
            Along::Window(window) if window.axis == axis => {
                let (read, pad) = window.read(shape[axis], range)?;
                tile.pad = pad;
                Some(read)
            }
            Along::Broadcast | Along::Same(_) | Along::Window(_) | Along::Whole => return None,
        });
    }
    let op = node.op.with_axes(AxisChange::Tile(tile), &types, output)?;
    Some(Part { op, inputs })
}

fn is_constant(graph: &Graph, value: ValueId) -> bool {
    graph.value(value).tensor().is_some()
}
