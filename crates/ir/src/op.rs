//! [`Op`]: the closed list of operators, and [`Operator`], the contract that each implements.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{DType, Shape, Tensor};

use crate::ops::{Conv, ConvTranspose, Epilogue, MatMul};
use crate::{AxisChange, AxisMap, Backward, Gradients, ValueId, ops};

/// The dtype and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// The dtype.
    pub dtype: DType,
    /// The extents.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// Most elements of a value: 2^40, so that sizes, offsets and sums of them stay far below the range of `i64`.
    pub const ELEMENTS_MAX: usize = 1 << 40;

    /// Refuses a type with more than [`TensorType::ELEMENTS_MAX`] elements. An extent of 0 counts as 1, so that strides are
    /// bounded as well.
    ///
    /// # Errors
    /// The refusal.
    pub fn check_size(&self) -> Result<(), Refusal> {
        let strided = self.shape.iter().fold(1, |product: usize, &extent| product.saturating_mul(extent.max(1)));
        match strided <= TensorType::ELEMENTS_MAX {
            true => Ok(()),
            false => Err(Refusal(format!("a tensor must have at most 2^40 elements, got shape {}", self.shape))),
        }
    }

    /// The type of a tensor.
    pub fn of(tensor: &Tensor) -> TensorType {
        TensorType { dtype: tensor.dtype(), shape: tensor.shape().clone() }
    }
}

/// `f32[1,3,224,224]`
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// Reason an op rejects its operands. Callers add file and node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Returns a [`Refusal`] with a formatted message.
macro_rules! refuse {
    ($($message:tt)*) => {
        return Err($crate::Refusal(format!($($message)*)))
    };
}
pub(crate) use refuse;

/// The bytes that an op's outputs may share with its inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// No bytes: inputs are still read while the output is written.
    Never,
    /// The first output may take the bytes of any one of these inputs: each element is read before it is written.
    InPlace(SmallVec<[usize; 2]>),
    /// Each output may take the bytes of one input: pairs of output and input number, for an op with several outputs.
    EachInPlace(SmallVec<[[usize; 2]; 4]>),
    /// The output is the bytes of input 0 from this element on: there is no work.
    Alias {
        /// The first element.
        offset: usize,
    },
    /// Each input is a contiguous slice of the output that starts at the given element. An input whose producer writes
    /// it there needs no copy.
    ConcatSlices(SmallVec<[usize; 4]>),
}

/// The contract of an operator. One implementation per file, under `ops/`.
pub trait Operator {
    /// The name in the text form and in messages.
    const NAME: &'static str;

    /// The types of the outputs, or the reason why the operands are invalid. Every check of an operator is here.
    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal>;

    /// The definition: slow and obvious. `inputs` must have types that `infer` accepts.
    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]>;

    /// Adds the nodes that compute the gradients of the operands from those of the outputs. `outputs` has one for each
    /// output, `None` for zero; at least one is there. Returns one for each operand, of the operand's type; `None` for an
    /// operand that no small change of affects the outputs, such as an index. A gradient that is not required may be `None`.
    ///
    /// # Errors
    /// The reason why the operator has no gradient.
    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal>;

    /// How the axes of the first output relate to those of the operands. Tiling, physical forms, half precision and
    /// constant folding are derived from it, so there is no default.
    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap;

    /// The op that computes the same on operands and an output with changed axes; `None` if there is none. `inputs` and
    /// `output` are the types before the change. Callers have checked [`Operator::axes`] first, so this states only how
    /// attributes change, and whether they can.
    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], output: &TensorType) -> Option<Op>;

    /// The bytes that outputs may share with the inputs.
    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::Never
    }

    /// Arithmetic operations. A multiply-add counts as two, a copy as none.
    fn flops(&self, _inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        0
    }
}

macro_rules! operators {
    ($($op:ident),* $(,)?) => {
        /// An operator with its attributes.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "each variant is documented at its struct")]
        pub enum Op {
            $($op(ops::$op)),*
        }

        impl Op {
            /// The name in the text form and in messages.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$op(_) => <ops::$op as Operator>::NAME),*
                }
            }

            /// See [`Operator::infer`]. Operands and results beyond [`TensorType::ELEMENTS_MAX`] are refused here, for
            /// all operators.
            pub fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
                inputs.iter().try_for_each(|ty| ty.check_size())?;
                let outputs = match self {
                    $(Op::$op(op) => op.infer(inputs)),*
                }?;
                outputs.iter().try_for_each(TensorType::check_size)?;
                Ok(outputs)
            }

            /// See [`Operator::eval`].
            pub fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
                match self {
                    $(Op::$op(op) => op.eval(inputs)),*
                }
            }

            /// See [`Operator::gradient`].
            pub fn gradient(
                &self,
                backward: &mut Backward,
                outputs: &[Option<ValueId>],
            ) -> Result<Gradients, Refusal> {
                match self {
                    $(Op::$op(op) => op.gradient(backward, outputs)),*
                }
            }

            /// See [`Operator::axes`].
            pub fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
                match self {
                    $(Op::$op(op) => op.axes(inputs, output)),*
                }
            }

            /// See [`Operator::with_axes`].
            pub fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], output: &TensorType) -> Option<Op> {
                match self {
                    $(Op::$op(op) => op.with_axes(change, inputs, output)),*
                }
            }

            /// See [`Operator::reuse`].
            pub fn reuse(&self, inputs: &[&TensorType], output: &TensorType) -> Reuse {
                match self {
                    $(Op::$op(op) => op.reuse(inputs, output)),*
                }
            }

            /// See [`Operator::flops`].
            pub fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
                match self {
                    $(Op::$op(op) => op.flops(inputs, outputs)),*
                }
            }
        }

        $(
            impl From<ops::$op> for Op {
                fn from(op: ops::$op) -> Op {
                    Op::$op(op)
                }
            }
        )*
    };
}

impl Op {
    /// The arithmetic on each result of a product or convolution before it is stored; `None` for other operators.
    pub fn epilogue(&self) -> Option<&Epilogue> {
        if let Op::Conv(Conv { epilogue, .. })
        | Op::ConvTranspose(ConvTranspose { epilogue, .. })
        | Op::MatMul(MatMul { epilogue, .. }) = self
        {
            return Some(epilogue);
        }
        None
    }

    /// See [`Op::epilogue`].
    pub fn epilogue_mut(&mut self) -> Option<&mut Epilogue> {
        if let Op::Conv(Conv { epilogue, .. })
        | Op::ConvTranspose(ConvTranspose { epilogue, .. })
        | Op::MatMul(MatMul { epilogue, .. }) = self
        {
            return Some(epilogue);
        }
        None
    }
}

// One row an operator, sorted.
operators! {
    ArgExtreme,
    Attention,
    BatchNorm,
    BatchNormGradient,
    BatchNormTraining,
    Binary,
    BitCast,
    Cast,
    Chain,
    Compare,
    Concat,
    Conv,
    ConvChain,
    ConvTranspose,
    ConvWeightGradient,
    Ctc,
    CtcGradient,
    CumulativeSum,
    Dropout,
    Expand,
    Gather,
    Insert,
    LayerNorm,
    Lrn,
    MatMul,
    Pad,
    Pool,
    PoolGradient,
    PoolWithPositions,
    Recurrent,
    RecurrentGradient,
    RecurrentWithGates,
    Reduce,
    Relayout,
    Reshape,
    Resize,
    Scatter,
    ScatterAdd,
    Select,
    Slice,
    Softmax,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGradient,
    StopGradient,
    TopK,
    Transpose,
    Unary,
    Update,
}
