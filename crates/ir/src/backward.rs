//! [`Backward`]: the part of the graph that an operator uses to add the nodes of its gradient.

use smallvec::SmallVec;
use types::pointwise::{Binary as BinaryFunction, Term, Unary as UnaryFunction};
use types::{DType, Role, Scope, Shape, Tensor};

use crate::op::refuse;
use crate::ops::{Binary, Expand, Reduce, ReduceKind, Reshape, Slice, Transpose, Unary};
use crate::{Along, Graph, Node, Op, Refusal, TensorType, ValueId};

/// The gradients of a node's operands: one for each, `None` for an operand without one.
pub type Gradients = SmallVec<[Option<ValueId>; 4]>;

/// The place where an operator adds the nodes that compute the gradients of its operands.
///
/// New nodes have the scope of the forward node with `gradient` below it, and results with the role of an activation's
/// gradient. Forward values are read where they are: nothing is saved by hand.
pub struct Backward<'a> {
    node: &'a Node,
    required: &'a [bool],
    graph: &'a mut Graph,
    scope: Scope,
}

impl<'a> Backward<'a> {
    /// A place for the gradients of `node`, a copy of a node of `graph`, for those operands for which `required` is true.
    pub fn new(graph: &'a mut Graph, node: &'a Node, required: &'a [bool]) -> Backward<'a> {
        Backward { node, required, graph, scope: node.scope.child("gradient") }
    }

    /// No gradient for any operand.
    pub fn none(&self) -> Gradients {
        SmallVec::from_elem(None, self.node.inputs.len())
    }

    /// An operand of the forward node.
    pub fn operand(&self, ix: usize) -> ValueId {
        self.node.inputs[ix]
    }

    /// The number of operands.
    pub fn operands(&self) -> usize {
        self.node.inputs.len()
    }

    /// A result of the forward node.
    pub fn result(&self, ix: usize) -> ValueId {
        self.node.outputs[ix]
    }

    /// Whether an operand's gradient is required. That of another operand is ignored.
    pub fn needs(&self, ix: usize) -> bool {
        self.required[ix]
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// The shape of a value.
    pub fn shape(&self, value: ValueId) -> Shape {
        self.graph.ty(value).shape.clone()
    }

    /// Adds a node with one result.
    ///
    /// # Errors
    /// The op rejects the operands.
    pub fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<ValueId, Refusal> {
        self.add_all(op, inputs).map(|outputs| outputs[0])
    }

    /// Adds a node.
    ///
    /// # Errors
    /// The op rejects the operands.
    pub fn add_all(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<SmallVec<[ValueId; 1]>, Refusal> {
        let outputs = self.graph.add(op.into(), inputs, self.scope.clone())?;
        for &output in &outputs {
            self.graph.value_mut(output).result_role = Some(Role::ActivationGradient);
        }
        Ok(outputs)
    }

    /// Adds a constant.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        let name = self.scope.as_str().to_string();
        self.graph.add_constant(&name, tensor)
    }

    /// A scalar constant of a float dtype.
    pub fn number(&mut self, number: f32, dtype: DType) -> ValueId {
        self.constant(Tensor::scalar(number).cast(dtype))
    }

    /// The elements of a value that is known before the run.
    pub fn known(&self, value: ValueId) -> Option<&Tensor> {
        self.graph.value(value).tensor().map(|tensor| &**tensor)
    }

    /// The given gradient of a result, or a constant of zeros.
    pub fn or_zeros(&mut self, gradient: Option<ValueId>, result: usize) -> ValueId {
        gradient.unwrap_or_else(|| {
            let TensorType { dtype, shape } = self.ty(self.result(result)).clone();
            self.constant(Tensor::full(shape, 0.0f32).cast(dtype))
        })
    }

    /// Applies a function to each element.
    pub fn unary(&mut self, function: UnaryFunction, x: ValueId) -> Result<ValueId, Refusal> {
        self.add(Unary(function), &[x])
    }

    /// `factor x`.
    pub fn scaled(&mut self, x: ValueId, factor: f32) -> Result<ValueId, Refusal> {
        match factor {
            1.0 => Ok(x),
            -1.0 => self.unary(UnaryFunction::Neg, x),
            _ => self.unary(UnaryFunction::Affine { scale: factor, shift: 0.0 }, x),
        }
    }

    /// Applies a function to pairs of elements, with broadcasting.
    pub fn binary(&mut self, function: BinaryFunction, a: ValueId, b: ValueId) -> Result<ValueId, Refusal> {
        self.add(Binary(function), &[a, b])
    }

    /// The product of two values, with broadcasting.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Refusal> {
        self.binary(BinaryFunction::Mul, a, b)
    }

    /// `gradient * term`, where the term is a derivative of the forward node, a function of up to two operands.
    pub fn times(&mut self, gradient: ValueId, term: &Term) -> Result<ValueId, Refusal> {
        match term {
            Term::Number(number) => self.scaled(gradient, *number),
            Term::Unary(UnaryFunction::Neg, term) => {
                let product = self.times(gradient, term)?;
                self.scaled(product, -1.0)
            }
            Term::Unary(UnaryFunction::Affine { scale, shift: 0.0 }, term) => {
                let product = self.times(gradient, term)?;
                self.scaled(product, *scale)
            }
            Term::Binary(BinaryFunction::Div, terms) => {
                let product = self.times(gradient, &terms[0])?;
                let divisor = self.term(&terms[1])?;
                self.binary(BinaryFunction::Div, product, divisor)
            }
            Term::A | Term::B | Term::Y | Term::Unary(..) | Term::Binary(..) => {
                let factor = self.term(term)?;
                self.mul(gradient, factor)
            }
        }
    }

    fn term(&mut self, term: &Term) -> Result<ValueId, Refusal> {
        match term {
            Term::A => Ok(self.operand(0)),
            Term::B => Ok(self.operand(1)),
            Term::Y => Ok(self.result(0)),
            Term::Number(number) => {
                let dtype = self.ty(self.result(0)).dtype;
                Ok(self.number(*number, dtype))
            }
            Term::Unary(function, term) => {
                let x = self.term(term)?;
                self.unary(*function, x)
            }
            Term::Binary(function, terms) => {
                let (a, b) = (self.term(&terms[0])?, self.term(&terms[1])?);
                self.binary(*function, a, b)
            }
        }
    }

    /// The same elements with another shape.
    pub fn reshape(&mut self, x: ValueId, shape: Shape) -> Result<ValueId, Refusal> {
        if self.ty(x).shape == shape { Ok(x) } else { self.add(Reshape { shape }, &[x]) }
    }

    /// A value repeated along axes with extent 1.
    pub fn expand(&mut self, x: ValueId, shape: Shape) -> Result<ValueId, Refusal> {
        if self.ty(x).shape == shape { Ok(x) } else { self.add(Expand { shape }, &[x]) }
    }

    /// A value with its axes in another order.
    pub fn transpose(&mut self, x: ValueId, order: &[usize]) -> Result<ValueId, Refusal> {
        if order.iter().copied().eq(0..order.len()) {
            return Ok(x);
        }
        self.add(Transpose { order: order.iter().copied().collect() }, &[x])
    }

    /// A value with its last two axes exchanged.
    pub fn transpose_matrix(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        let rank = self.ty(x).shape.rank();
        let mut order: SmallVec<[usize; 6]> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        self.transpose(x, &order)
    }

    /// The elements from `start` on along an axis.
    pub fn slice(&mut self, x: ValueId, axis: usize, start: usize, count: usize) -> Result<ValueId, Refusal> {
        let shape = self.shape(x);
        if (start, count) == (0, shape[axis]) {
            return Ok(x);
        }
        self.add(Slice::range(&shape, axis, start, count), &[x])
    }

    /// The sum over axes, which stay with extent 1. Axes of one element are not summed.
    pub fn sum(&mut self, x: ValueId, axes: impl IntoIterator<Item = usize>) -> Result<ValueId, Refusal> {
        let shape = self.shape(x);
        let axes: SmallVec<[usize; 4]> = axes.into_iter().filter(|&axis| shape[axis] != 1).collect();
        if axes.is_empty() {
            return Ok(x);
        }
        self.add(Reduce { kind: ReduceKind::Sum, axes, keep: true }, &[x])
    }

    /// The sum of a gradient that has the shape of the forward node's result over the axes along which an operand is
    /// broadcast, in the operand's shape.
    pub fn sum_to(&mut self, gradient: ValueId, operand: usize) -> Result<ValueId, Refusal> {
        let (node, graph) = (self.node, &*self.graph);
        let types: Vec<&TensorType> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
        let axes = node.op.axes(&types, graph.ty(node.outputs[0])).operands.swap_remove(operand);
        let broadcast = axes.iter().enumerate().filter(|(_, along)| **along == Along::Broadcast);
        let broadcast: SmallVec<[usize; 6]> = broadcast.map(|(axis, _)| axis).collect();
        let summed = self.sum(gradient, broadcast)?;
        let shape = self.shape(self.operand(operand));
        self.reshape(summed, shape)
    }

    /// A refusal for an operator that passes make from others, which have gradients.
    pub fn refuse_fused(&self) -> Result<Gradients, Refusal> {
        refuse!("`{}` has no gradient; differentiate before passes that fuse operators", self.node.op.name());
    }

    /// A refusal for an operator of a training step.
    pub fn refuse_second(&self) -> Result<Gradients, Refusal> {
        refuse!("`{}` has no gradient: gradients of gradients are not supported", self.node.op.name());
    }
}
