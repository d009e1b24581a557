//! [`part`]: a node that computes a range of its result along one axis, and the ranges of its operands which that takes.

use std::ops::Range;

use ir::ops::{Conv, Pool, PoolKind, Slice};
use ir::{Graph, Node, Op, ValueId};
use smallvec::SmallVec;

/// A node that computes a part of its result.
pub(super) struct Part {
    pub(super) op: Op,
    /// For each operand the range along the axis that is read; `None` for one that is read as a whole and known before
    /// the run.
    pub(super) inputs: SmallVec<[Option<Range<usize>>; 4]>,
}

/// How `node` computes `range` of its result along `axis` and nothing else, each element exactly as before.
///
/// `None` where an element depends on more than a window of its operands along that axis, and for ops that move elements
/// from one axis to another.
pub(super) fn part(graph: &Graph, node: &Node, axis: usize, range: &Range<usize>) -> Option<Part> {
    let same = |op: Op| Some(Part { op, inputs: pointwise(graph, node, axis, range)? });
    match &node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Chain(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_) => {
            same(node.op.clone())
        }
        Op::Concat(concat) if concat.axis != axis => same(node.op.clone()),
        Op::Softmax(softmax) if softmax.axis != axis => same(node.op.clone()),
        Op::Lrn(_) if axis != 1 => same(node.op.clone()),
        Op::Slice(slice) => {
            let extent = graph.ty(node.inputs[0]).shape[axis];
            let whole = slice.start[axis] == 0 && slice.step[axis] == 1 && slice.count[axis] == extent;
            let mut count = slice.count.clone();
            count[axis] = range.len();
            if whole { same(Slice { count, ..slice.clone() }.into()) } else { None }
        }
        Op::Conv(conv) => {
            let (op, read) = conv_part(graph, node, conv, axis, range)?;
            let mut inputs: SmallVec<_> = smallvec::smallvec![Some(read)];
            let residual = conv.epilogue.residual.then(|| node.inputs.len() - 1);
            for ix in 1..node.inputs.len() {
                let reads_range = Some(ix) == residual;
                if !reads_range && !is_known(graph, node.inputs[ix]) {
                    return None;
                }
                inputs.push(reads_range.then(|| range.clone()));
            }
            Some(Part { op: op.into(), inputs })
        }
        Op::Pool(pool) => {
            let (op, read) = pool_part(graph, node, pool, axis, range)?;
            Some(Part { op: op.into(), inputs: smallvec::smallvec![Some(read)] })
        }
        _ => None,
    }
}

/// Every operand has the result's extent along the axis and is read in the same range, or does not vary along it.
fn pointwise(
    graph: &Graph,
    node: &Node,
    axis: usize,
    range: &Range<usize>,
) -> Option<SmallVec<[Option<Range<usize>>; 4]>> {
    let out = &graph.ty(node.outputs[0]).shape;
    let read = |&input: &ValueId| {
        let shape = &graph.ty(input).shape;
        let own = (axis + shape.rank()).checked_sub(out.rank());
        match own.map(|own| shape[own]) {
            None | Some(1) if is_known(graph, input) => Some(None),
            _ if is_known(graph, input) || shape.rank() != out.rank() => None,
            Some(1) => Some(Some(0..1)),
            _ => Some(Some(range.clone())),
        }
    };
    node.inputs.iter().map(read).collect()
}

fn is_known(graph: &Graph, value: ValueId) -> bool {
    graph.value(value).tensor().is_some()
}

/// The cells of an input of `extent` that the window's places `range` see, and the padding that remains in front of and
/// behind them. `None` where they see padding only.
fn window_part(
    extent: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    front: usize,
    range: &Range<usize>,
) -> Option<(Range<usize>, [usize; 2])> {
    let first = range.start * stride;
    let end = (range.end - 1) * stride + (kernel - 1) * dilation + 1;
    // Counted from the first cell of the padding.
    let cells = first.max(front)..end.min(front + extent);
    if cells.is_empty() {
        return None;
    }
    Some((cells.start - front..cells.end - front, [cells.start - first, end - cells.end]))
}

fn conv_part(
    graph: &Graph,
    node: &Node,
    conv: &Conv,
    axis: usize,
    range: &Range<usize>,
) -> Option<(Conv, Range<usize>)> {
    let mut part = conv.clone();
    let Some(spatial) = axis.checked_sub(2) else { return (axis == 0).then(|| (part, range.clone())) };
    let (extent, kernel) = (graph.ty(node.inputs[0]).shape[axis], graph.ty(node.inputs[1]).shape[axis]);
    let (stride, dilation, front) = (conv.stride[spatial], conv.dilation[spatial], conv.pad[spatial][0]);
    let (read, pad) = window_part(extent, kernel, stride, dilation, front, range)?;
    part.pad[spatial] = pad;
    Some((part, read))
}

fn pool_part(
    graph: &Graph,
    node: &Node,
    pool: &Pool,
    axis: usize,
    range: &Range<usize>,
) -> Option<(Pool, Range<usize>)> {
    let mut part = pool.clone();
    // Pictures and channels do not see each other.
    let Some(spatial) = axis.checked_sub(2) else { return Some((part, range.clone())) };
    let extent = graph.ty(node.inputs[0]).shape[axis];
    let (kernel, stride, dilation) = (pool.kernel[spatial], pool.stride[spatial], pool.dilation[spatial]);
    let [front, back] = pool.pad[spatial];
    let (read, pad) = window_part(extent, kernel, stride, dilation, front, range)?;
    let overhang = (read.end + pad[1]).saturating_sub(extent + back);
    // What hangs over the end counts neither as input nor as padding: a mean over padding tells the two apart.
    if pool.kind == PoolKind::MeanWithPadding && 0 < overhang {
        return None;
    }
    part.pad[spatial] = pad;
    Some((part, read))
}
