//! Queries that several passes share: readers, producers, scalar constants.

use ir::{Graph, Node, NodeId, Op, ValueId, ops};
use smallvec::SmallVec;
use types::pointwise::{Binary, Unary};
use types::{Map, Shape, Tensor};

/// A graph with the readers of its values.
pub(crate) struct Uses<'a> {
    pub(crate) graph: &'a Graph,
    readers: Map<ValueId, SmallVec<[NodeId; 2]>>,
}

impl<'a> Uses<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Uses<'a> {
        Uses { graph, readers: graph.readers() }
    }

    /// The nodes that read a value.
    pub(crate) fn readers(&self, value: ValueId) -> &[NodeId] {
        &self.readers[value]
    }

    /// The only reader of a value that is not an output of the graph.
    pub(crate) fn only_reader(&self, value: ValueId) -> Option<NodeId> {
        match self.readers(value) {
            [reader] if !self.graph.is_output(value) => Some(*reader),
            _ => None,
        }
    }

    /// The node that yields a value.
    pub(crate) fn producer(&self, value: ValueId) -> Option<(NodeId, &'a Node)> {
        let id = self.graph.value(value).producer()?;
        Some((id, self.graph.node(id)))
    }

    /// The tensor of a weight or constant.
    pub(crate) fn constant(&self, value: ValueId) -> Option<&'a Tensor> {
        self.graph.value(value).tensor().map(|tensor| &**tensor)
    }

    /// The element of an `f32` constant with one element, of any rank.
    pub(crate) fn scalar_constant(&self, value: ValueId) -> Option<f32> {
        scalar_constant(self.graph, value)
    }

    /// The operand of `function` if a value is its result.
    pub(crate) fn argument(&self, value: ValueId, function: Unary) -> Option<ValueId> {
        let (_, node) = self.producer(value)?;
        (node.op == Op::Unary(ops::Unary(function))).then(|| node.inputs[0])
    }

    /// Both operands of `function` if a value is its result.
    pub(crate) fn operands(&self, value: ValueId, function: Binary) -> Option<[ValueId; 2]> {
        let (_, node) = self.producer(value)?;
        (node.op == Op::Binary(ops::Binary(function))).then(|| [node.inputs[0], node.inputs[1]])
    }

    /// The dynamic operand and the scalar constant of a commutative `function`, in either order.
    pub(crate) fn with_constant(&self, value: ValueId, function: Binary) -> Option<(ValueId, f32)> {
        let [a, b] = self.operands(value, function)?;
        match (self.scalar_constant(a), self.scalar_constant(b)) {
            (None, Some(number)) => Some((a, number)),
            (Some(number), None) => Some((b, number)),
            _ => None,
        }
    }

    /// `x` and the constant of `x * c`, `c * x` or `x / c` (as `1 / c`), if `x` has the value's type.
    pub(crate) fn scaled_by_constant(&self, value: ValueId) -> Option<(ValueId, f32)> {
        let (_, node) = self.producer(value)?;
        let Op::Binary(ops::Binary(function)) = node.op else { return None };
        let (x, factor) = match function {
            Binary::Mul => self.with_constant(value, Binary::Mul)?,
            Binary::Div => {
                let divisor = self.scalar_constant(node.inputs[1]).filter(|number| *number != 0.0)?;
                (node.inputs[0], 1.0 / divisor)
            }
            _ => return None,
        };
        (self.graph.ty(x) == self.graph.ty(value)).then_some((x, factor))
    }
}

/// The element of an `f32` constant with one element, whatever its rank.
pub(crate) fn scalar_constant(graph: &Graph, value: ValueId) -> Option<f32> {
    match graph.value(value).tensor()?.as_slice::<f32>()? {
        [number] => Some(*number),
        _ => None,
    }
}

/// The elements of an `f32` constant, one per index of `axis` of `shape`, if broadcasting it to `shape` varies along that axis
/// only.
pub(crate) fn per_channel(tensor: &Tensor, shape: &Shape, axis: usize) -> Option<Vec<f32>> {
    let items = tensor.as_slice::<f32>()?;
    if items.len() == 1 && tensor.shape().rank() <= shape.rank() {
        return Some(vec![items[0]; shape[axis]]);
    }
    let missing = shape.rank().checked_sub(tensor.shape().rank())?;
    let fits = (0..tensor.shape().rank()).all(|own| {
        let extent = tensor.shape()[own];
        if own + missing == axis { extent == shape[axis] } else { extent == 1 }
    });
    (fits && missing <= axis).then(|| items.to_vec())
}
