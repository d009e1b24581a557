//! [`Op`]: the closed list of operators, and [`Operator`], the contract that each implements.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{DType, Shape, Tensor};

use crate::{AxisChange, AxisMap, ops};

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

/// The bytes that an op's first output may share with its inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// No bytes: inputs are still read while the output is written.
    Never,
    /// The bytes of any one of these inputs: each element is read before it is written.
    InPlace(SmallVec<[usize; 2]>),
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

    /// How the axes of the first output relate to those of the operands. Tiling, physical forms, half precision and
    /// constant folding are derived from it, so there is no default.
    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap;

    /// The op that computes the same on operands and an output with changed axes; `None` if there is none. `inputs` and
    /// `output` are the types before the change. Callers have checked [`Operator::axes`] first, so this states only how
    /// attributes change, and whether they can.
    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], output: &TensorType) -> Option<Op>;

    /// The bytes that the first output may share with the inputs.
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

            /// See [`Operator::infer`].
            pub fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
                match self {
                    $(Op::$op(op) => op.infer(inputs)),*
                }
            }

            /// See [`Operator::eval`].
            pub fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
                match self {
                    $(Op::$op(op) => op.eval(inputs)),*
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

// One row an operator, sorted.
operators! {
    ArgExtreme,
    Attention,
    BatchNorm,
    Binary,
    Cast,
    Chain,
    Compare,
    Concat,
    Conv,
    ConvChain,
    ConvTranspose,
    Expand,
    Gather,
    LayerNorm,
    Lrn,
    MatMul,
    Pad,
    Pool,
    Recurrent,
    Reduce,
    Relayout,
    Reshape,
    Resize,
    Select,
    Slice,
    Softmax,
    Transpose,
    Unary,
}
