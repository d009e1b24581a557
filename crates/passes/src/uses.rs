//! Questions that several passes ask of a graph.

use ir::{Graph, Node, NodeId, Op, ValueId, ops};
use smallvec::SmallVec;
use types::pointwise::{Binary, Unary};
use types::{Map, Shape, Tensor};

/// A graph with its readers counted once.
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

    /// The one node that reads a value which is no output of the graph.
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

    /// The tensor of a value that is known before a run.
    pub(crate) fn known(&self, value: ValueId) -> Option<&'a Tensor> {
        self.graph.value(value).tensor().map(|tensor| &**tensor)
    }

    /// The number that a known `f32` value is, whatever its rank.
    pub(crate) fn known_number(&self, value: ValueId) -> Option<f32> {
        known_number(self.graph, value)
    }

    /// The argument of a value that is `function` of it.
    pub(crate) fn argument(&self, value: ValueId, function: Unary) -> Option<ValueId> {
        let (_, node) = self.producer(value)?;
        (node.op == Op::Unary(ops::Unary(function))).then(|| node.inputs[0])
    }

    /// The operands of a value that is `function` of two.
    pub(crate) fn operands(&self, value: ValueId, function: Binary) -> Option<[ValueId; 2]> {
        let (_, node) = self.producer(value)?;
        (node.op == Op::Binary(ops::Binary(function))).then(|| [node.inputs[0], node.inputs[1]])
    }

    /// The other operand of a value that is `function` of something and a known number, in either order: for functions whose
    /// operands can change places.
    pub(crate) fn beside_number(&self, value: ValueId, function: Binary) -> Option<(ValueId, f32)> {
        let [a, b] = self.operands(value, function)?;
        match (self.known_number(a), self.known_number(b)) {
            (None, Some(number)) => Some((a, number)),
            (Some(number), None) => Some((b, number)),
            _ => None,
        }
    }

    /// `x` and the number of `x * number`, `number * x` or `x / number`, where `x` has the value's type.
    pub(crate) fn scaled_by_number(&self, value: ValueId) -> Option<(ValueId, f32)> {
        let (_, node) = self.producer(value)?;
        let Op::Binary(ops::Binary(function)) = node.op else { return None };
        let (x, factor) = match function {
            Binary::Mul => self.beside_number(value, Binary::Mul)?,
            Binary::Div => {
                let divisor = self.known_number(node.inputs[1]).filter(|number| *number != 0.0)?;
                (node.inputs[0], 1.0 / divisor)
            }
            _ => return None,
        };
        (self.graph.ty(x) == self.graph.ty(value)).then_some((x, factor))
    }
}

/// The number that a known `f32` value is, whatever its rank.
pub(crate) fn known_number(graph: &Graph, value: ValueId) -> Option<f32> {
    match graph.value(value).tensor()?.as_slice::<f32>()? {
        [number] => Some(*number),
        _ => None,
    }
}

/// The elements of a known `f32` tensor as one number per index of `axis` of `shape`, where broadcasting it to `shape`
/// varies along that axis only.
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
