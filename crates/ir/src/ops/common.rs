//! What several operators share: walking indices, broadcasting, epilogues, sliding windows.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Unary;
use types::{DType, Element, Shape, Tensor, each_data, strides};

use crate::TensorType;
use crate::op::{Refusal, refuse};

/// The one output of an operator that has one.
pub(super) fn one<T>(item: T) -> SmallVec<[T; 1]> {
    smallvec![item]
}

/// Refuses another number of operands than `want`.
pub(super) fn arity(inputs: &[&TensorType], want: usize) -> Result<(), Refusal> {
    if inputs.len() != want {
        refuse!("takes {want} inputs, not {}", inputs.len());
    }
    Ok(())
}

/// Refuses another dtype than `f32`.
pub(super) fn f32_only(inputs: &[&TensorType]) -> Result<(), Refusal> {
    if let Some(other) = inputs.iter().find(|ty| ty.dtype != DType::F32) {
        refuse!("computes in f32, not in {}", other.dtype);
    }
    Ok(())
}

/// Refuses an axis that the shape does not have.
pub(super) fn axis_in(axis: usize, shape: &Shape) -> Result<(), Refusal> {
    if axis >= shape.rank() {
        refuse!("axis {axis} does not exist in a tensor of shape {shape}");
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

/// A tensor picked element by element from another: `pick` maps an output index to a flat input position, or to none,
/// where `fill` stands.
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

/// A tensor of `dtype` from `f64` elements, rounded to nearest.
pub(super) fn from_f64(shape: Shape, dtype: DType, items: Vec<f64>) -> Tensor {
    Tensor::new(shape, items).expect("the caller fills the shape").cast(dtype)
}

/// What a convolution or matrix product does to each result before it is stored: add a bias, add a residual of the same
/// shape, apply functions, in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// A vector is added along the output channels. It is the operand behind the two factors.
    #[serde(default)]
    pub bias: bool,
    /// A tensor of the output's shape is added. It is the last operand.
    #[serde(default)]
    pub residual: bool,
    /// Functions applied in sequence.
    #[serde(default)]
    pub activation: SmallVec<[Unary; 2]>,
}

impl Epilogue {
    /// An epilogue with nothing but perhaps a bias.
    pub fn bias(bias: bool) -> Epilogue {
        Epilogue { bias, ..Epilogue::default() }
    }

    /// The number of operands it takes.
    pub fn operands(&self) -> usize {
        usize::from(self.bias) + usize::from(self.residual)
    }

    /// Refuses operands behind the two factors that do not fit an output of `shape` with `channels` biases.
    pub(super) fn infer(&self, inputs: &[&TensorType], shape: &Shape, channels: usize) -> Result<(), Refusal> {
        if inputs.len() != 2 + self.operands() {
            refuse!("takes {} inputs, not {}", 2 + self.operands(), inputs.len());
        }
        f32_only(inputs)?;
        if self.bias && inputs[2].shape[..] != [channels] {
            refuse!("the bias has shape {}, not [{channels}]", inputs[2].shape);
        }
        if self.residual && inputs[inputs.len() - 1].shape != *shape {
            refuse!("the residual has shape {}, not {shape}", inputs[inputs.len() - 1].shape);
        }
        Ok(())
    }

    /// Applies bias, residual and functions to `out`, whose bias index is `channel(flat position)`.
    pub(super) fn eval(&self, out: &mut [f64], inputs: &[&Tensor], channel: impl Fn(usize) -> usize) {
        let bias = self.bias.then(|| inputs[2].to_f64());
        let residual = self.residual.then(|| inputs[inputs.len() - 1].to_f64());
        for (at, item) in out.iter_mut().enumerate() {
            *item += bias.as_ref().map_or(0.0, |bias| bias[channel(at)]);
            *item += residual.as_ref().map_or(0.0, |residual| residual[at]);
            *item = self.activation.iter().fold(*item, |x, function| function.eval(x));
        }
    }

    /// Arithmetic operations for an output of `elements`.
    pub(super) fn flops(&self, elements: usize) -> u64 {
        ((self.operands() + self.activation.len()) * elements) as u64
    }
}

/// How many places a window of `kernel` cells takes along `extent` cells with padding, or a refusal.
pub(super) fn window_places(
    extent: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pad: [usize; 2],
) -> Result<usize, Refusal> {
    if kernel == 0 || stride == 0 || dilation == 0 {
        refuse!("kernel, stride and dilation are at least 1");
    }
    let reach = (kernel - 1)
        .checked_mul(dilation)
        .and_then(|reach| reach.checked_add(1))
        .ok_or_else(|| Refusal(format!("a kernel of {kernel} with dilation {dilation} is too large")))?;
    let padded = extent.checked_add(pad[0]).and_then(|sum| sum.checked_add(pad[1]));
    match padded.and_then(|padded| padded.checked_sub(reach)) {
        Some(slack) => Ok(slack / stride + 1),
        None => refuse!("a window of {reach} does not fit in {extent} cells padded by {} and {}", pad[0], pad[1]),
    }
}
