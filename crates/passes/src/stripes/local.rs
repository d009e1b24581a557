//! [`part`]: a node that computes a range of its result along one axis, and the ranges of its operands that this reads.

use std::ops::Range;

use ir::{Along, AxisChange, Graph, Node, Op, TensorType, Tile, ValueId};
use smallvec::SmallVec;

/// A node that computes a part of its result.
pub(super) struct Part {
    pub(super) op: Op,
    /// For each operand the range along the axis that is read; `None` for one that is read as a whole: it is a constant, or not
    /// of the region.
    pub(super) inputs: SmallVec<[Option<Range<usize>>; 4]>,
}

/// How `node` computes `range` of its result along `axis` and nothing else, each element exactly as before. `is_inside` is true for
/// values that are computed in ranges themselves, so that none of them is there as a whole.
///
/// `None` if an element depends on more than a window or a band of such an operand along the axis, if an axis of another
/// position is read in ranges, or if the operator cannot be tiled.
pub(super) fn part(
    graph: &Graph,
    node: &Node,
    axis: usize,
    range: &Range<usize>,
    is_inside: &dyn Fn(ValueId) -> bool,
) -> Option<Part> {
    let types: SmallVec<[&TensorType; 4]> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
    let output = graph.ty(node.outputs[0]);
    let map = node.op.axes(&types, output);
    let mut tile = Tile { axis, start: range.start, count: range.len(), read: [range.start, range.len()], pad: [0, 0] };
    let mut inputs = SmallVec::new();
    for (&input, along) in node.inputs.iter().zip(&map.operands) {
        let shape = &graph.ty(input).shape;
        let is_constant = graph.value(input).tensor().is_some();
        inputs.push(match along[axis] {
            Along::Broadcast if is_constant => None,
            // Operands are cut along the same axis, so one of the region must have it.
            Along::Broadcast if axis < shape.rank() => Some(0..shape[axis]),
            Along::Broadcast if !is_inside(input) => None,
            Along::Same(own) if own == axis && !is_constant => Some(range.clone()),
            // Taps of a transposed convolution.
            Along::Whole if is_constant => None,
            Along::Window(window) if window.axis == axis => {
                let (read, pad) = window.read(shape[axis], range)?;
                (tile.read, tile.pad) = ([read.start, read.len()], pad);
                Some(read)
            }
            Along::Band(band) if band.axis == axis && !is_constant => {
                let read = band.read(shape[axis], range)?;
                tile.read = [read.start, read.len()];
                Some(read)
            }
            Along::Broadcast | Along::Same(_) | Along::Window(_) | Along::Band(_) | Along::Whole => return None,
        });
    }
    let op = node.op.with_axes(AxisChange::Tile(tile), &types, output)?;
    Some(Part { op, inputs })
}
