//! [`ImportedNode`]: one node being translated. The formats add access to its operands and attributes; here are the ops that
//! it applies, and compositions that several operators need.

use std::sync::Arc;

use ir::{Op, Refusal, TensorType, ops};
use smallvec::SmallVec;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Element, LoadBudget, Scope, Shape, Tensor};

use super::{Builder, Fold, Narrow, NodeResult, Operand, refuse};

/// One node being translated, with the format's view `N` of it.
pub(crate) struct ImportedNode<'t, N> {
    pub(super) builder: &'t mut Builder,
    /// The node in its file.
    pub(crate) source: N,
    pub(super) scope: Scope,
    /// Number of nodes added so far.
    added: usize,
}

impl<'t, N> ImportedNode<'t, N> {
    pub(crate) fn new(builder: &'t mut Builder, source: N, scope: Scope) -> ImportedNode<'t, N> {
        ImportedNode { builder, source, scope, added: 0 }
    }
}

/// Operands.
impl<N> ImportedNode<'_, N> {
    pub(crate) fn shape(&self, operand: Operand) -> Shape {
        self.builder.ty(operand).shape
    }

    pub(crate) fn dtype(&self, operand: Operand) -> DType {
        self.builder.ty(operand).dtype
    }

    /// The element type of the operand in the file, if that is narrower than its dtype.
    pub(crate) fn narrow(&self, operand: Operand) -> Option<Narrow> {
        self.builder.narrow.get(&operand).copied()
    }

    /// Marks an operand as of a narrow element type; its elements must be numbers of the type.
    pub(crate) fn mark_narrow(&mut self, operand: Operand, narrow: Narrow) {
        self.builder.narrow.insert(operand, narrow);
    }

    /// The elements; `None` if the operand is not constant.
    pub(crate) fn constant_value(&self, operand: Operand) -> Option<Arc<Tensor>> {
        let tensor = self.builder.tensor(operand)?;
        // Callers read the elements. If the budget is exceeded, the reader stops after this node.
        let _ = self.budget().work(tensor.elements() as u64);
        Some(tensor.clone())
    }
}

/// Applying ops.
impl<N> ImportedNode<'_, N> {
    pub(crate) fn apply(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Result<Operand, Refusal> {
        self.apply_fold(op.into(), inputs, Fold::Small)
    }

    /// Applies an op that changes the layout of a weight: always folded if the operands are constants.
    pub(crate) fn apply_folded(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Result<Operand, Refusal> {
        self.apply_fold(op.into(), inputs, Fold::Always)
    }

    fn apply_fold(&mut self, op: Op, inputs: &[Operand], fold: Fold) -> Result<Operand, Refusal> {
        let scope = self.next_scope(&op);
        let before = self.builder.graph.nodes().len();
        let applied = self.builder.apply(op, inputs, &scope, fold)?;
        self.added += self.builder.graph.nodes().len() - before;
        Ok(applied)
    }

    /// Adds a node for an op with several outputs, without folding.
    pub(crate) fn apply_all(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> NodeResult {
        let op = op.into();
        let scope = self.next_scope(&op);
        self.added += 1;
        self.builder.add(op, inputs, scope)
    }

    /// The node's own scope for the first op, a scope below it for the others.
    fn next_scope(&self, op: &Op) -> Scope {
        match self.added {
            0 => self.scope.clone(),
            added => self.scope.child(&format!("{}_{added}", op.name())),
        }
    }

    /// A constant that is not a parameter.
    pub(crate) fn constant(&mut self, tensor: Tensor) -> Operand {
        self.builder.add_constant(self.scope.as_str(), tensor, false)
    }

    /// A tensor from the file: a parameter if it is floating-point and not a scalar.
    pub(crate) fn constant_of_file(&mut self, tensor: Tensor) -> Operand {
        // Exporters write parameters that are trained as initializers.
        let is_learned = tensor.dtype().is_float() && tensor.elements() > 1 && !self.is_training();
        self.builder.add_constant(self.scope.as_str(), tensor, is_learned)
    }

    /// Takes memory and work for a constant that is about to be computed.
    pub(crate) fn reserve(&mut self, dtype: DType, shape: &Shape) -> Result<(), Refusal> {
        self.builder.reserve(dtype, shape.elements())
    }

    /// Memory and work left for loading.
    pub(crate) fn budget(&self) -> &LoadBudget {
        &self.builder.budget
    }

    /// A constant whose element at each flat row-major position is `item(position)`.
    pub(crate) fn constant_of<T: Element>(
        &mut self,
        shape: impl Into<Shape>,
        item: impl FnMut(usize) -> T,
    ) -> Result<Operand, Refusal> {
        self.constant_as(T::DTYPE, shape, item)
    }

    /// [`ImportedNode::constant_of`], cast to `dtype`.
    pub(crate) fn constant_as<T: Element>(
        &mut self,
        dtype: DType,
        shape: impl Into<Shape>,
        item: impl FnMut(usize) -> T,
    ) -> Result<Operand, Refusal> {
        let shape = shape.into();
        let tensor = self.computed(shape, item)?;
        if dtype == T::DTYPE {
            return Ok(self.constant(tensor));
        }
        self.reserve(dtype, tensor.shape())?;
        Ok(self.constant(tensor.cast(dtype)))
    }

    /// A tensor whose element at each flat row-major position is `item(position)`. The one place where readers make a
    /// tensor from a shape.
    pub(crate) fn computed<T: Element>(
        &mut self,
        shape: Shape,
        item: impl FnMut(usize) -> T,
    ) -> Result<Tensor, Refusal> {
        TensorType::new(T::DTYPE, shape.clone()).check_size()?;
        self.reserve(T::DTYPE, &shape)?;
        Ok(Tensor::from_fn(shape, item))
    }

    /// A scalar constant.
    pub(crate) fn number(&mut self, number: f64, dtype: DType) -> Operand {
        self.constant(Tensor::scalar(number).cast(dtype))
    }

    pub(crate) fn unary(&mut self, function: Unary, x: Operand) -> Result<Operand, Refusal> {
        self.apply(ops::Unary(function), &[x])
    }

    pub(crate) fn binary(&mut self, function: Binary, a: Operand, b: Operand) -> Result<Operand, Refusal> {
        self.apply(ops::Binary(function), &[a, b])
    }

    pub(crate) fn compare(&mut self, function: Compare, a: Operand, b: Operand) -> Result<Operand, Refusal> {
        self.apply(ops::Compare(function), &[a, b])
    }

    pub(crate) fn select(&mut self, condition: Operand, a: Operand, b: Operand) -> Result<Operand, Refusal> {
        self.apply(ops::Select {}, &[condition, a, b])
    }

    pub(crate) fn cast(&mut self, x: Operand, to: DType) -> Result<Operand, Refusal> {
        if self.dtype(x) == to { Ok(x) } else { self.apply(ops::Cast { to }, &[x]) }
    }

    pub(crate) fn reshape(&mut self, x: Operand, shape: Shape) -> Result<Operand, Refusal> {
        if self.shape(x) == shape { Ok(x) } else { self.apply(ops::Reshape { shape }, &[x]) }
    }

    pub(crate) fn expand(&mut self, x: Operand, shape: Shape) -> Result<Operand, Refusal> {
        if self.shape(x) == shape { Ok(x) } else { self.apply(ops::Expand { shape }, &[x]) }
    }

    pub(crate) fn transpose(&mut self, x: Operand, order: &[usize]) -> Result<Operand, Refusal> {
        if order.iter().copied().eq(0..self.shape(x).rank()) {
            return Ok(x);
        }
        self.apply_folded(ops::Transpose { order: order.into() }, &[x])
    }

    pub(crate) fn reduce(
        &mut self,
        kind: ops::ReduceKind,
        x: Operand,
        axes: SmallVec<[usize; 4]>,
        keep: bool,
    ) -> Result<Operand, Refusal> {
        self.apply(ops::Reduce { kind, axes, keep }, &[x])
    }

    /// `x` with extents of 1 appended, so that its last axis becomes axis `at` of `rank`.
    pub(crate) fn aligned(&mut self, x: Operand, at: usize, rank: usize) -> Result<Operand, Refusal> {
        let mut shape = self.shape(x);
        for _ in at + 1..rank {
            shape.push(1);
        }
        self.reshape(x, shape)
    }

    /// Casts narrower floats to `f32` for ops that compute in `f32` only. Also returns the dtype to cast the result to.
    pub(crate) fn widen(&mut self, inputs: &[Operand]) -> Result<(SmallVec<[Operand; 4]>, DType), Refusal> {
        let dtype = self.dtype(inputs[0]);
        let widened = inputs
            .iter()
            .map(|&input| match self.dtype(input) {
                DType::F16 | DType::Bf16 => self.cast(input, DType::F32),
                _ => Ok(input),
            })
            .collect::<Result<_, _>>()?;
        Ok((widened, dtype))
    }

    /// [`ImportedNode::apply`] for ops that compute in `f32` only.
    pub(crate) fn apply_f32(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Result<Operand, Refusal> {
        let (inputs, dtype) = self.widen(inputs)?;
        let y = self.apply(op, &inputs)?;
        match dtype {
            DType::F16 | DType::Bf16 => self.cast(y, dtype),
            _ => Ok(y),
        }
    }
}

/// Products of matrices.
impl<N> ImportedNode<'_, N> {
    /// A batched matrix product. In `f64`, which [`MatMul`](ops::MatMul) does not support, a sum of elementwise products.
    pub(crate) fn mat_mul(&mut self, a: Operand, b: Operand) -> Result<Operand, Refusal> {
        const PRODUCTS_MAX: usize = 1 << 28;
        let (mut a_shape, mut b_shape) = (self.shape(a), self.shape(b));
        if self.dtype(a) != DType::F64 || a_shape.rank() < 2 || b_shape.rank() < 2 {
            return self.apply_f32(ops::MatMul::default(), &[a, b]);
        }
        let products = a_shape.elements().saturating_mul(b_shape[b_shape.rank() - 1]);
        if PRODUCTS_MAX < products {
            refuse!("the f64 product of {a_shape} and {b_shape} is too large; convert the model to f32");
        }
        a_shape.push(1);
        b_shape.insert(b_shape.rank() - 2, 1);
        let (a, b) = (self.reshape(a, a_shape)?, self.reshape(b, b_shape)?);
        let products = self.binary(Binary::Mul, a, b)?;
        let inner = self.shape(products).rank() - 2;
        self.reduce(ops::ReduceKind::Sum, products, SmallVec::from_slice(&[inner]), false)
    }
}

/// Softmax.
impl<N> ImportedNode<'_, N> {
    /// The softmax over an axis, or its logarithm. In `f64`, which [`Softmax`](ops::Softmax) does not support, from its
    /// definition.
    pub(crate) fn softmax(&mut self, x: Operand, axis: usize, log: bool) -> Result<Operand, Refusal> {
        if self.dtype(x) != DType::F64 {
            return self.apply_f32(ops::Softmax { axis, log }, &[x]);
        }
        let along = || SmallVec::from_slice(&[axis]);
        let top = self.reduce(ops::ReduceKind::Max, x, along(), true)?;
        let x = self.binary(Binary::Sub, x, top)?;
        let powers = self.unary(Unary::Exp, x)?;
        let sum = self.reduce(ops::ReduceKind::Sum, powers, along(), true)?;
        if !log {
            return self.binary(Binary::Div, powers, sum);
        }
        let sum = self.unary(Unary::Log, sum)?;
        self.binary(Binary::Sub, x, sum)
    }
}

/// The result of [`ImportedNode::standardize`], with its statistics.
pub(crate) struct Normalized {
    pub(crate) y: Operand,
    pub(crate) mean: Operand,
    pub(crate) variance: Operand,
    pub(crate) inverse: Operand,
}

/// Normalization.
impl<N> ImportedNode<'_, N> {
    /// `(x - mean) / sqrt(variance + epsilon)` over axes.
    pub(crate) fn standardize(
        &mut self,
        x: Operand,
        axes: SmallVec<[usize; 4]>,
        epsilon: f32,
    ) -> Result<Normalized, Refusal> {
        let dtype = self.dtype(x);
        let mean = self.reduce(ops::ReduceKind::Mean, x, axes.clone(), true)?;
        let centred = self.binary(Binary::Sub, x, mean)?;
        let squares = self.binary(Binary::Mul, centred, centred)?;
        let variance = self.reduce(ops::ReduceKind::Mean, squares, axes, true)?;
        let epsilon = self.number(f64::from(epsilon), dtype);
        let shifted = self.binary(Binary::Add, variance, epsilon)?;
        let deviation = self.unary(Unary::Sqrt, shifted)?;
        let inverse = self.unary(Unary::Reciprocal, deviation)?;
        let y = self.binary(Binary::Mul, centred, inverse)?;
        Ok(Normalized { y, mean, variance, inverse })
    }

    /// `y * scale + shift`, with both vectors along axis `at`.
    pub(crate) fn scale_shift(
        &mut self,
        y: Operand,
        [scale, shift]: [Operand; 2],
        at: usize,
    ) -> Result<Operand, Refusal> {
        let rank = self.shape(y).rank();
        let scale = self.aligned(scale, at, rank)?;
        let scaled = self.binary(Binary::Mul, y, scale)?;
        let shift = self.aligned(shift, at, rank)?;
        self.binary(Binary::Add, scaled, shift)
    }
}
