//! Shared by several operators: iteration over indices, broadcasting, epilogues, sliding windows.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{QuantizedSum, Unary};
use types::{DType, Element, Shape, Tensor, each_data, strides};

use crate::axes::{OperandAxes, same_axes, vector_axes};
use crate::op::{Refusal, refuse};
use crate::{Backward, Gradients, TensorType, ValueId};

/// A product of counts of arithmetic operations. Saturates: it is an estimate of work, and bounded by it only.
pub(super) fn product(counts: impl IntoIterator<Item = usize>) -> u64 {
    counts.into_iter().fold(1, |product: u64, count| product.saturating_mul(count as u64))
}

/// The list of outputs of an operator with one output.
pub(super) fn one<T>(item: T) -> SmallVec<[T; 1]> {
    smallvec![item]
}

/// Refuses a number of operands other than `want`.
pub(super) fn arity(inputs: &[&TensorType], want: usize) -> Result<(), Refusal> {
    if inputs.len() != want {
        refuse!("expected {want} inputs, got {}", inputs.len());
    }
    Ok(())
}

/// Refuses dtypes other than `f32`.
pub(super) fn f32_only(inputs: &[&TensorType]) -> Result<(), Refusal> {
    if let Some(other) = inputs.iter().find(|ty| ty.dtype != DType::F32) {
        refuse!("operands must be f32, got {}; cast them first", other.dtype);
    }
    Ok(())
}

/// Refuses operands other than `f32`, `f16` and `bf16`. Operators that take them compute in `f32` or better and round
/// results once.
pub(super) fn f32_or_half(inputs: &[&TensorType]) -> Result<(), Refusal> {
    if let Some(other) = inputs.iter().find(|ty| !is_f32_or_half(ty.dtype)) {
        refuse!("operands must be f32, f16 or bf16, got {}; cast them first", other.dtype);
    }
    Ok(())
}

/// Refuses operands other than `f32`, `f16`, `bf16`, `u8` and `i8`.
pub(super) fn stored_numbers(inputs: &[&TensorType]) -> Result<(), Refusal> {
    if let Some(other) = inputs.iter().find(|ty| !is_stored(ty.dtype)) {
        refuse!("operands must be f32, f16, bf16, u8 or i8, got {}; cast them first", other.dtype);
    }
    Ok(())
}

fn is_f32_or_half(dtype: DType) -> bool {
    dtype == DType::F32 || dtype.is_half()
}

pub(crate) fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// Whether results that are computed in `f32` may be stored in a dtype.
pub(crate) fn is_stored(dtype: DType) -> bool {
    is_f32_or_half(dtype) || is_byte(dtype)
}

/// The dtype of results that an attribute names, `f32` by default.
pub(super) fn result_dtype(named: Option<DType>) -> Result<DType, Refusal> {
    match named.unwrap_or(DType::F32) {
        dtype if is_stored(dtype) => Ok(dtype),
        other => Err(Refusal(format!("result must be f32, f16, bf16, u8 or i8, got {other}"))),
    }
}

/// Refuses an axis that the shape does not have.
pub(super) fn axis_in(axis: usize, shape: &Shape) -> Result<(), Refusal> {
    if axis >= shape.rank() {
        refuse!("axis must be below the rank of {shape}, got {axis}");
    }
    Ok(())
}

/// Calls `visit` with each index of `shape`, in row-major order.
pub(super) fn for_each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, shape.len());
    loop {
        visit(&index);
        let mut axis = shape.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// The flat position of an index.
pub(super) fn position(index: &[usize], strides: &[usize]) -> usize {
    index.iter().zip(strides).map(|(ix, stride)| ix * stride).sum()
}

/// Strides of `shape` inside `out`, aligned on the right; 0 where `shape` is broadcast.
pub(super) fn broadcast_strides(shape: &Shape, out: &Shape) -> SmallVec<[usize; 6]> {
    let own = strides(shape);
    let missing = out.rank() - shape.rank();
    (0..out.rank())
        .map(|axis| if axis < missing || shape[axis - missing] == 1 { 0 } else { own[axis - missing] })
        .collect()
}

/// A tensor of elements of another: `pick` maps an output index to a flat input position, or to `None` for `fill`.
pub(super) fn pick(x: &Tensor, shape: &Shape, fill: f64, mut pick: impl FnMut(&[usize]) -> Option<usize>) -> Tensor {
    fn run<T: Element>(
        items: &[T],
        shape: &Shape,
        fill: f64,
        pick: &mut dyn FnMut(&[usize]) -> Option<usize>,
    ) -> Tensor {
        let mut out = Vec::with_capacity(shape.elements());
        for_each_index(shape, |index| out.push(pick(index).map_or(T::from_f64(fill), |at| items[at])));
        Tensor::new(shape.clone(), out).expect("one element was pushed for each index")
    }
    each_data!(x.data(), items => run(items, shape, fill, &mut pick))
}

/// A tensor of `dtype` from `f64` elements, rounded to nearest. Int8 rounds ties to even and saturates.
pub(super) fn from_f64(shape: Shape, dtype: DType, mut items: Vec<f64>) -> Tensor {
    if let Some([low, high]) = dtype.byte_limits().map(|limits| limits.map(f64::from)) {
        items.iter_mut().for_each(|item| *item = item.round_ties_even().clamp(low, high));
    }
    Tensor::new(shape, items).expect("the caller fills the shape").cast(dtype)
}

/// Arithmetic of a convolution or matrix product on each result before it is stored: multiply by a scale, add a bias, add a
/// residual of the same shape, apply functions, in this order. With a quantized sum, the residual is added last, to the rounded
/// result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// Int8 sums are multiplied by a vector along the output channels, the operand behind the two factors.
    #[serde(default, skip_serializing_if = "is_false")]
    pub scale: bool,
    /// A vector is added along the output channels. It is the operand behind the two factors and the scale.
    #[serde(default)]
    pub bias: bool,
    /// A tensor of the output's shape is added. It is the last operand.
    #[serde(default)]
    pub residual: bool,
    /// How the int8 residual is added to the int8 result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantized_sum: Option<QuantizedSum>,
    /// Functions applied in sequence.
    #[serde(default)]
    pub activation: SmallVec<[Unary; 2]>,
    /// The dtype of the results if not `f32`: `f16`, `bf16`, `u8` or `i8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<DType>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Whether both factors are int8, whose products are summed exactly in `i32`.
pub(crate) fn are_bytes(inputs: &[&TensorType]) -> bool {
    inputs.iter().take(2).all(|ty| is_byte(ty.dtype))
}

/// Refuses a zero point that the first factor's dtype cannot represent, or any but 0 for floats.
pub(super) fn zero_fits(zero: i32, inputs: &[&TensorType]) -> Result<(), Refusal> {
    let possible = match inputs[0].dtype {
        DType::U8 if are_bytes(inputs) => 0..=255,
        DType::I8 if are_bytes(inputs) => -128..=127,
        _ => 0..=0,
    };
    if !possible.contains(&zero) {
        refuse!("zero point must be representable in {}, got {zero}", inputs[0].dtype);
    }
    Ok(())
}

pub(super) fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl Epilogue {
    /// An epilogue with a bias or without any arithmetic.
    pub fn bias(bias: bool) -> Epilogue {
        Epilogue { bias, ..Epilogue::default() }
    }

    /// The number of operands it takes.
    pub fn operands(&self) -> usize {
        usize::from(self.scale) + usize::from(self.bias) + usize::from(self.residual)
    }

    /// The operand number of the bias, if present.
    pub fn bias_at(&self) -> usize {
        2 + usize::from(self.scale)
    }

    /// The type of an output of `shape` with `channels` scales and biases. A residual must have the output's dtype, so that
    /// it may be updated in place. Int8 sums without a scale are `i32` and have no epilogue.
    pub(super) fn infer(
        &self,
        inputs: &[&TensorType],
        shape: Shape,
        channels: usize,
    ) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        if inputs.len() != 2 + self.operands() {
            refuse!("expected {} inputs, got {}", 2 + self.operands(), inputs.len());
        }
        let bytes = are_bytes(inputs);
        if bytes && *self == Epilogue::default() {
            return Ok(one(TensorType { dtype: DType::I32, shape }));
        }
        if self.scale != bytes {
            refuse!("an epilogue must have a scale if and only if the factors are u8 or i8");
        }
        if bytes && inputs[2..self.bias_at()].iter().any(|scale| scale.dtype != DType::F32) {
            refuse!("scale must be f32; cast it first");
        }
        f32_or_half(&inputs[if bytes { 2 } else { 0 }..inputs.len() - usize::from(self.residual)])?;
        let output = TensorType { dtype: result_dtype(self.result)?, shape };
        for (at, name) in [(2, "scale"), (self.bias_at(), "bias")] {
            let is_there = if name == "scale" { self.scale } else { self.bias };
            if is_there && inputs[at].shape[..] != [channels] {
                refuse!("{name} must have shape [{channels}], got {}", inputs[at].shape);
            }
        }
        if self.quantized_sum.is_some() != (self.residual && is_byte(output.dtype)) {
            refuse!("an epilogue must have a quantized sum if and only if it adds a residual to u8 or i8");
        }
        if self.residual && *inputs[inputs.len() - 1] != output {
            refuse!("residual must be {output}, got {}", inputs[inputs.len() - 1]);
        }
        Ok(one(output))
    }

    /// Applies the epilogue to `out` and rounds it; `channel` maps a flat position to a channel.
    pub(super) fn eval(
        &self,
        shape: Shape,
        mut out: Vec<f64>,
        inputs: &[&Tensor],
        channel: impl Fn(usize) -> usize,
    ) -> SmallVec<[Tensor; 1]> {
        let are_bytes = inputs[..2].iter().all(|input| is_byte(input.dtype()));
        if are_bytes && !self.scale {
            return one(from_f64(shape, DType::I32, out));
        }
        let scale = self.scale.then(|| inputs[2].to_f64());
        let bias = self.bias.then(|| inputs[self.bias_at()].to_f64());
        let residual = self.residual.then(|| inputs[inputs.len() - 1].to_f64());
        let added = if self.quantized_sum.is_none() { residual.as_ref() } else { None };
        for (at, item) in out.iter_mut().enumerate() {
            *item *= scale.as_ref().map_or(1.0, |scale| scale[channel(at)]);
            *item += bias.as_ref().map_or(0.0, |bias| bias[channel(at)]);
            *item += added.map_or(0.0, |residual| residual[at]);
            *item = self.activation.iter().fold(*item, |x, function| function.eval(x));
        }
        // Wider operands are those of a reference: they are not rounded.
        let wide = if inputs[0].dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let dtype = self.result.unwrap_or(wide);
        let (Some(sum), Some(residual)) = (self.quantized_sum, residual) else {
            return one(from_f64(shape, dtype, out));
        };
        let own = from_f64(shape.clone(), dtype, out).to_f64();
        let sums = own.iter().zip(&residual).map(|(&own, &residual)| sum.eval(own, residual)).collect();
        one(from_f64(shape, dtype, sums))
    }

    /// Refuses an epilogue that passes made: only a bias has a gradient.
    pub(super) fn has_gradient(&self) -> Result<(), Refusal> {
        if *self != Epilogue::bias(self.bias) {
            refuse!("an epilogue other than a bias has no gradient; differentiate before passes that fuse operators");
        }
        Ok(())
    }

    /// Sets the gradient of the bias, if there is one: the sum of the output's gradient over all axes but `channels`.
    pub(super) fn bias_gradient(
        &self,
        backward: &mut Backward,
        dy: ValueId,
        channels: usize,
        gradients: &mut Gradients,
    ) -> Result<(), Refusal> {
        if self.bias && backward.needs(self.bias_at()) {
            let rank = backward.ty(dy).shape.rank();
            let sum = backward.sum(dy, (0..rank).filter(|&axis| axis != channels))?;
            let shape = backward.shape(backward.operand(self.bias_at()));
            gradients[self.bias_at()] = Some(backward.reshape(sum, shape)?);
        }
        Ok(())
    }

    /// The axes of its operands, for an output of `rank` axes with its channels along `channels`.
    pub(super) fn axes(&self, channels: usize, rank: usize) -> impl Iterator<Item = OperandAxes> {
        let vectors = usize::from(self.scale) + usize::from(self.bias);
        let residual = self.residual.then(|| same_axes(rank));
        std::iter::repeat_n(vector_axes(channels, rank), vectors).chain(residual)
    }

    /// Arithmetic operations for an output of `elements`.
    pub(super) fn flops(&self, elements: usize) -> u64 {
        product([self.operands() + self.activation.len(), elements])
    }
}

/// Refuses a window whose attributes are beyond any tensor, so that arithmetic with them cannot overflow.
pub(super) fn window_fits(kernel: usize, stride: usize, dilation: usize, pad: [usize; 2]) -> Result<(), Refusal> {
    // Kernels count the cells of a window below this, so that sums of two products of them fit in 64 bits.
    const MOST: usize = (1 << 28) - 1;
    if kernel == 0 || stride == 0 || dilation == 0 {
        refuse!("kernel, stride and dilation must be >= 1, got {kernel}, {stride} and {dilation}");
    }
    if [kernel, stride, dilation, pad[0], pad[1]].iter().any(|&count| MOST < count) {
        refuse!(
            "kernel, stride, dilation and padding must be below 2^28, got {kernel}, {stride}, {dilation} and {pad:?}"
        );
    }
    Ok(())
}

/// The number of positions of a window of `kernel` cells along `extent` padded cells.
pub(super) fn window_places(
    extent: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pad: [usize; 2],
) -> Result<usize, Refusal> {
    window_fits(kernel, stride, dilation, pad)?;
    let reach = (kernel - 1) * dilation + 1;
    let padded = extent.checked_add(pad[0]).and_then(|sum| sum.checked_add(pad[1]));
    match padded.and_then(|padded| padded.checked_sub(reach)) {
        Some(slack) => Ok(slack / stride + 1),
        None => refuse!("a window of {reach} must fit in {extent} cells padded by {} and {}", pad[0], pad[1]),
    }
}

/// The windows of a convolution over the cells of one plane.
pub(super) struct Windows<'a> {
    /// Extents of the plane.
    pub(super) plane: &'a [usize],
    /// Places of the window, per axis.
    pub(super) places: &'a [usize],
    /// Taps of the window, per axis.
    pub(super) kernel: &'a [usize],
    /// Steps of the window, per axis.
    pub(super) stride: &'a [usize],
    /// Distance between taps, per axis.
    pub(super) dilation: &'a [usize],
    /// Padding in front of and behind each axis.
    pub(super) pad: &'a [[usize; 2]],
}

impl Windows<'_> {
    /// Calls `visit` with each place and the list of the taps there, each with the cell under it, except in padding.
    pub(super) fn for_each_place(&self, visit: impl FnMut(usize, &[[usize; 2]])) {
        for_each_list(self.places, self.kernel, |place, tap| self.cell(place, tap), visit);
    }

    /// Calls `visit` with each tap and the list of its places, each with the cell under it, except in padding.
    pub(super) fn for_each_tap(&self, visit: impl FnMut(usize, &[[usize; 2]])) {
        for_each_list(self.kernel, self.places, |tap, place| self.cell(place, tap), visit);
    }

    /// The flat position of the cell under a tap; `None` in padding.
    fn cell(&self, place: &[usize], tap: &[usize]) -> Option<usize> {
        let mut at = 0;
        for (axis, &extent) in self.plane.iter().enumerate() {
            let reach = place[axis] * self.stride[axis] + tap[axis] * self.dilation[axis];
            at = at * extent + reach.checked_sub(self.pad[axis][0]).filter(|&cell| cell < extent)?;
        }
        Some(at)
    }
}

/// Calls `visit` with the flat position of each index of `outer`, and with those of `inner` that have a cell together with it.
fn for_each_list(
    outer: &[usize],
    inner: &[usize],
    cell: impl Fn(&[usize], &[usize]) -> Option<usize>,
    mut visit: impl FnMut(usize, &[[usize; 2]]),
) {
    let (mut list, mut outer_at) = (Vec::new(), 0);
    for_each_index(outer, |outer| {
        list.clear();
        let mut inner_at = 0;
        for_each_index(inner, |inner| {
            list.extend(cell(outer, inner).map(|cell| [inner_at, cell]));
            inner_at += 1;
        });
        visit(outer_at, &list);
        outer_at += 1;
    });
}
