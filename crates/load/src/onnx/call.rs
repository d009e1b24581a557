//! [`Call`]: one node being translated, as the functions under `ops/` see it.
//!
//! It hands out operands and attributes, applies ops, and has the few compositions that many operators need.

use std::cell::Cell;
use std::sync::Arc;

use ir::{Op, Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Scope, Shape, Tensor};

use super::builder::{Builder, Fold, Operand};
use super::model::{Attribute, Node};
use super::tensor;

/// Returns a [`Refusal`] with a formatted message.
macro_rules! refuse {
    ($($message:tt)*) => {
        return Err(ir::Refusal(format!($($message)*)))
    };
}
pub(super) use refuse;

/// Extents, paddings and strides beyond this are damage.
const INT_MAX: i64 = 1 << 40;

/// One node being translated.
pub(super) struct Call<'t, 'a> {
    builder: &'t mut Builder,
    node: &'t Node<'a>,
    /// The version of the operator set.
    pub(super) opset: i64,
    operands: Vec<Option<Operand>>,
    scope: Scope,
    /// Nodes that were added so far.
    added: usize,
    /// Which attributes were read, a bit each; those behind the 64th count as read.
    read: Cell<u64>,
}

impl<'t, 'a> Call<'t, 'a> {
    pub(super) fn new(
        builder: &'t mut Builder,
        node: &'t Node<'a>,
        opset: i64,
        operands: Vec<Option<Operand>>,
        scope: Scope,
    ) -> Call<'t, 'a> {
        Call { builder, node, opset, operands, scope, added: 0, read: Cell::new(0) }
    }
}

/// Operands.
impl Call<'_, '_> {
    /// An operand that the operator cannot do without.
    pub(super) fn input(&self, ix: usize) -> Result<Operand, Refusal> {
        self.optional(ix).ok_or_else(|| Refusal(format!("input {ix} is missing")))
    }

    /// An operand that may be left out.
    pub(super) fn optional(&self, ix: usize) -> Option<Operand> {
        self.operands.get(ix).copied().flatten()
    }

    /// All operands, of which there is at least one.
    pub(super) fn all_inputs(&self) -> Result<Vec<Operand>, Refusal> {
        if self.operands.is_empty() {
            refuse!("takes at least one input");
        }
        (0..self.operands.len()).map(|ix| self.input(ix)).collect()
    }

    /// How many outputs are named.
    pub(super) fn n_outputs(&self) -> usize {
        self.node.outputs.len()
    }

    /// Whether something may read output `ix`.
    pub(super) fn wants(&self, ix: usize) -> bool {
        self.node.outputs.get(ix).is_some_and(|name| !name.is_empty())
    }

    pub(super) fn shape(&self, operand: Operand) -> Shape {
        self.builder.ty(operand).shape
    }

    pub(super) fn dtype(&self, operand: Operand) -> DType {
        self.builder.ty(operand).dtype
    }

    /// The elements, where they are known.
    pub(super) fn peek(&self, operand: Operand) -> Option<Arc<Tensor>> {
        self.builder.tensor(operand).cloned()
    }

    /// The elements of operand `ix`, which an op here needs as an attribute.
    pub(super) fn known(&self, ix: usize, what: &str) -> Result<Arc<Tensor>, Refusal> {
        self.peek(self.input(ix)?).ok_or_else(|| {
            Refusal(format!(
                "`{what}` must be known when the model is loaded, but follows from an input; export the model with it fixed"
            ))
        })
    }

    /// [`Call::known`], for integers.
    pub(super) fn known_ints(&self, ix: usize, what: &str) -> Result<Vec<i64>, Refusal> {
        let tensor = self.known(ix, what)?;
        if !tensor.dtype().is_integer() {
            refuse!("`{what}` is {}, not integer", tensor.dtype());
        }
        Ok(tensor.to_i64())
    }

    /// [`Call::known`], for one number.
    pub(super) fn known_number(&self, ix: usize, what: &str) -> Result<f64, Refusal> {
        match self.known(ix, what)?.to_f64()[..] {
            [number] => Ok(number),
            ref numbers => refuse!("`{what}` has {} elements, not 1", numbers.len()),
        }
    }
}

/// Attributes.
impl Call<'_, '_> {
    fn attribute(&self, name: &str) -> Option<&Attribute<'_>> {
        let ix = self.node.attributes.iter().position(|attribute| attribute.name == name)?;
        self.read.set(self.read.get() | 1u64.checked_shl(ix as u32).unwrap_or(0));
        Some(&self.node.attributes[ix])
    }

    /// Attributes that change nothing here.
    pub(super) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    /// Refuses what nobody asked for: it would mean something.
    pub(super) fn refuse_unread_attributes(&self) -> Result<(), Refusal> {
        // A hint to an executor of 2017.
        self.ignore(&["consumed_inputs"]);
        let unread = |ix: &usize| *ix < 64 && self.read.get() & (1 << ix) == 0;
        match (0..self.node.attributes.len()).find(unread) {
            Some(ix) => refuse!("attribute `{}` is not supported", self.node.attributes[ix].name),
            None => Ok(()),
        }
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            // Protobuf leaves a 0 away.
            Some(attribute) if attribute.kind == 2 || attribute.kind == 0 => Ok(Some(attribute.int.unwrap_or(0))),
            Some(_) => refuse!("attribute `{name}` is not an integer"),
        }
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, Refusal> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer that is 0 or 1.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        Ok(self.int_or(name, 0)? != 0)
    }

    pub(super) fn float_or(&self, name: &str, default: f32) -> Result<f32, Refusal> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f32>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 1 || attribute.kind == 0 => Ok(Some(attribute.float.unwrap_or(0.0))),
            Some(_) => refuse!("attribute `{name}` is not a floating-point number"),
        }
    }

    pub(super) fn floats(&self, name: &str) -> Result<Option<&[f32]>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 6 || attribute.kind == 0 => Ok(Some(&attribute.floats)),
            Some(_) => refuse!("attribute `{name}` is not a list of floating-point numbers"),
        }
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 7 || attribute.kind == 0 => Ok(Some(attribute.ints.clone())),
            Some(_) => refuse!("attribute `{name}` is not a list of integers"),
        }
    }

    /// A text; what is not UTF-8 is never one of the words that an operator knows.
    pub(super) fn text_or<'c>(&'c self, name: &str, default: &'c str) -> &'c str {
        match self.attribute(name) {
            None => default,
            Some(attribute) => std::str::from_utf8(attribute.text.unwrap_or(b"")).unwrap_or("?"),
        }
    }

    /// A list of texts.
    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<&str>>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 8 || attribute.kind == 0 => {
                Ok(Some(attribute.texts.iter().map(|text| std::str::from_utf8(text).unwrap_or("?")).collect()))
            }
            Some(_) => refuse!("attribute `{name}` is not a list of texts"),
        }
    }

    pub(super) fn tensor_attribute(&self, name: &str) -> Result<Option<Tensor>, Refusal> {
        let Some(attribute) = self.attribute(name) else { return Ok(None) };
        let Some(proto) = &attribute.tensor else { refuse!("attribute `{name}` is not a tensor") };
        match tensor::read(proto, None) {
            Ok(tensor) => Ok(Some(tensor)),
            Err(tensor::Problem::Content(reason) | tensor::Problem::External(reason)) => {
                refuse!("attribute `{name}`: {reason}")
            }
        }
    }

    /// The dtype that an attribute names by its number.
    pub(super) fn dtype_attribute(&self, name: &str) -> Result<Option<DType>, Refusal> {
        let number = self.int(name)?;
        number.map(tensor::dtype).transpose().map_err(|reason| Refusal(format!("attribute `{name}`: {reason}")))
    }

    /// An integer attribute up to opset `last`, an operand (number `ix`) from then on.
    pub(super) fn ints_or_input(&self, name: &str, ix: usize, last: i64) -> Result<Option<Vec<i64>>, Refusal> {
        if self.opset <= last {
            return self.ints(name);
        }
        match self.optional(ix) {
            None => Ok(None),
            Some(_) => self.known_ints(ix, name).map(Some),
        }
    }
}

/// An axis counted from the front; negative ones count from the end.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, Refusal> {
    let counted = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    match usize::try_from(counted) {
        Ok(counted) if counted < rank => Ok(counted),
        _ => refuse!("axis {axis} does not exist in a tensor of rank {rank}"),
    }
}

/// Axes counted from the front, sorted, each once.
pub(super) fn axes(list: &[i64], rank: usize) -> Result<SmallVec<[usize; 4]>, Refusal> {
    let mut sorted: SmallVec<[usize; 4]> = list.iter().map(|&item| axis(item, rank)).collect::<Result<_, _>>()?;
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        refuse!("axes {list:?} name an axis twice");
    }
    Ok(sorted)
}

/// Counts that are at least 0 and not absurd.
pub(super) fn counts(list: &[i64], what: &str) -> Result<SmallVec<[usize; 4]>, Refusal> {
    let count = |&item: &i64| match (0..=INT_MAX).contains(&item) {
        true => Ok(item as usize),
        false => Err(Refusal(format!("`{what}` has the number {item}"))),
    };
    list.iter().map(count).collect()
}

/// Applying ops.
impl Call<'_, '_> {
    pub(super) fn apply(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Result<Operand, Refusal> {
        self.apply_fold(op.into(), inputs, Fold::Small)
    }

    /// Applies an op that gives a weight another form: known operands are always computed with.
    pub(super) fn apply_always(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Result<Operand, Refusal> {
        self.apply_fold(op.into(), inputs, Fold::Always)
    }

    fn apply_fold(&mut self, op: Op, inputs: &[Operand], fold: Fold) -> Result<Operand, Refusal> {
        let scope = self.next_scope(&op);
        let before = self.builder.graph.nodes().len();
        let applied = self.builder.apply(op, inputs, &scope, fold)?;
        self.added += self.builder.graph.nodes().len() - before;
        Ok(applied)
    }

    /// Applies an op with several outputs, which is always added.
    pub(super) fn apply_all(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Result<Vec<Operand>, Refusal> {
        let op = op.into();
        let scope = self.next_scope(&op);
        self.added += 1;
        self.builder.add(op, inputs, scope)
    }

    /// The node's own scope for the first op that is added, one below it for the others.
    fn next_scope(&self, op: &Op) -> Scope {
        match self.added {
            0 => self.scope.clone(),
            added => self.scope.child(&format!("{}_{added}", op.name())),
        }
    }

    /// A tensor made here, which is no parameter.
    pub(super) fn constant(&mut self, tensor: Tensor) -> Operand {
        self.builder.known(self.scope.as_str(), tensor, false)
    }

    /// A tensor from the file, which is a parameter if it is floating-point and more than a number.
    pub(super) fn constant_of_file(&mut self, tensor: Tensor) -> Operand {
        let is_learned = tensor.dtype().is_float() && tensor.elements() > 1;
        self.builder.known(self.scope.as_str(), tensor, is_learned)
    }

    /// Refuses a constant that would be too large to be made while loading.
    pub(super) fn reserve(&mut self, dtype: DType, shape: &Shape) -> Result<(), Refusal> {
        self.builder.reserve(dtype, shape.elements())
    }

    /// A number of a dtype.
    pub(super) fn number(&mut self, number: f64, dtype: DType) -> Operand {
        self.constant(Tensor::scalar(number).cast(dtype))
    }

    pub(super) fn unary(&mut self, function: Unary, x: Operand) -> Result<Operand, Refusal> {
        self.apply(ops::Unary(function), &[x])
    }

    pub(super) fn binary(&mut self, function: Binary, a: Operand, b: Operand) -> Result<Operand, Refusal> {
        self.apply(ops::Binary(function), &[a, b])
    }

    pub(super) fn compare(&mut self, function: Compare, a: Operand, b: Operand) -> Result<Operand, Refusal> {
        self.apply(ops::Compare(function), &[a, b])
    }

    pub(super) fn select(&mut self, condition: Operand, a: Operand, b: Operand) -> Result<Operand, Refusal> {
        self.apply(ops::Select {}, &[condition, a, b])
    }

    pub(super) fn cast(&mut self, x: Operand, to: DType) -> Result<Operand, Refusal> {
        if self.dtype(x) == to { Ok(x) } else { self.apply(ops::Cast { to }, &[x]) }
    }

    pub(super) fn reshape(&mut self, x: Operand, shape: Shape) -> Result<Operand, Refusal> {
        if self.shape(x) == shape { Ok(x) } else { self.apply(ops::Reshape { shape }, &[x]) }
    }

    pub(super) fn expand(&mut self, x: Operand, shape: Shape) -> Result<Operand, Refusal> {
        if self.shape(x) == shape { Ok(x) } else { self.apply(ops::Expand { shape }, &[x]) }
    }

    pub(super) fn transpose(&mut self, x: Operand, order: &[usize]) -> Result<Operand, Refusal> {
        if order.iter().copied().eq(0..self.shape(x).rank()) {
            return Ok(x);
        }
        self.apply_always(ops::Transpose { order: order.into() }, &[x])
    }

    pub(super) fn reduce(
        &mut self,
        kind: ops::ReduceKind,
        x: Operand,
        axes: SmallVec<[usize; 4]>,
        keep: bool,
    ) -> Result<Operand, Refusal> {
        self.apply(ops::Reduce { kind, axes, keep }, &[x])
    }

    /// `x` with extents of 1 behind its own, so that its last axis is axis `at` of `rank`.
    pub(super) fn aligned(&mut self, x: Operand, at: usize, rank: usize) -> Result<Operand, Refusal> {
        let mut shape = self.shape(x);
        for _ in at + 1..rank {
            shape.push(1);
        }
        self.reshape(x, shape)
    }

    /// Operands in `f32` where their dtype is one that it holds exactly, with the dtype that the result shall have.
    ///
    /// Several ops compute in `f32` only; narrower floats are widened for them and the result is narrowed again.
    pub(super) fn widen(&mut self, inputs: &[Operand]) -> Result<(SmallVec<[Operand; 4]>, DType), Refusal> {
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

    /// [`Call::apply`] for ops that compute in `f32` only.
    pub(super) fn apply_f32(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Result<Operand, Refusal> {
        let (inputs, dtype) = self.widen(inputs)?;
        let y = self.apply(op, &inputs)?;
        match dtype {
            DType::F16 | DType::Bf16 => self.cast(y, dtype),
            _ => Ok(y),
        }
    }
}
