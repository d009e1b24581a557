//! The operators of ONNX's default domain, by theme, and the one table that finds them.
//!
//! A new operator is one function and one row. A function reads operands and attributes off its [`Call`], as the opset
//! at hand defines them, applies ops, and yields the node's outputs. What it cannot express it refuses with a reason.

mod constant;
mod conv;
mod index;
mod linear;
mod normalize;
mod pointwise;
mod pool;
mod recurrent;
mod reduce;
mod resize;
mod shape;
mod window;

use ir::Refusal;

use super::builder::Operand;
use super::call::Call;

/// Translates one node.
pub(super) type Translate = fn(&mut Call) -> Result<Vec<Operand>, Refusal>;

/// The function of an operator.
pub(super) fn find(op_type: &str) -> Option<Translate> {
    let ix = TABLE.binary_search_by_key(&op_type, |row| row.0).ok()?;
    Some(TABLE[ix].1)
}

// One row an operator, sorted. `If` is the walk's own.
#[rustfmt::skip]
const TABLE: &[(&str, Translate)] = &[
    ("Abs", pointwise::abs),
    ("Acos", pointwise::acos),
    ("Acosh", pointwise::acosh),
    ("Add", pointwise::add),
    ("And", pointwise::and),
    ("ArgMax", reduce::arg_max),
    ("ArgMin", reduce::arg_min),
    ("Asin", pointwise::asin),
    ("Asinh", pointwise::asinh),
    ("Atan", pointwise::atan),
    ("Atanh", pointwise::atanh),
    ("AveragePool", pool::average),
    ("BatchNormalization", normalize::batch),
    ("BitShift", pointwise::bit_shift),
    ("BitwiseAnd", pointwise::bitwise_and),
    ("BitwiseNot", pointwise::bitwise_not),
    ("BitwiseOr", pointwise::bitwise_or),
    ("BitwiseXor", pointwise::bitwise_xor),
    ("Cast", constant::cast),
    ("CastLike", constant::cast_like),
    ("Ceil", pointwise::ceil),
    ("Celu", pointwise::celu),
    ("Clip", pointwise::clip),
    ("Concat", shape::concat),
    ("Constant", constant::constant),
    ("ConstantOfShape", constant::constant_of_shape),
    ("Conv", conv::conv),
    ("ConvTranspose", conv::conv_transpose),
    ("Cos", pointwise::cos),
    ("Cosh", pointwise::cosh),
    ("DepthToSpace", shape::depth_to_space),
    ("DequantizeLinear", linear::dequantize),
    ("Div", pointwise::div),
    ("Dropout", constant::dropout),
    ("Elu", pointwise::elu),
    ("Equal", pointwise::equal),
    ("Erf", pointwise::erf),
    ("Exp", pointwise::exp),
    ("Expand", shape::expand),
    ("EyeLike", constant::eye_like),
    ("Flatten", shape::flatten),
    ("Floor", pointwise::floor),
    ("GRU", recurrent::gru),
    ("Gather", index::gather),
    ("Gelu", pointwise::gelu),
    ("Gemm", linear::gemm),
    ("GlobalAveragePool", pool::global_average),
    ("GlobalLpPool", pool::global_lp),
    ("GlobalMaxPool", pool::global_max),
    ("Greater", pointwise::greater),
    ("GreaterOrEqual", pointwise::greater_or_equal),
    ("GroupNormalization", normalize::group),
    ("HardSigmoid", pointwise::hard_sigmoid),
    ("HardSwish", pointwise::hard_swish),
    ("Hardmax", index::hardmax),
    ("Identity", constant::identity),
    ("InstanceNormalization", normalize::instance),
    ("IsInf", pointwise::is_inf),
    ("IsNaN", pointwise::is_nan),
    ("LRN", normalize::lrn),
    ("LSTM", recurrent::lstm),
    ("LayerNormalization", normalize::layer),
    ("LeakyRelu", pointwise::leaky_relu),
    ("Less", pointwise::less),
    ("LessOrEqual", pointwise::less_or_equal),
    ("Log", pointwise::log),
    ("LogSoftmax", normalize::log_softmax),
    ("LpNormalization", normalize::lp),
    ("LpPool", pool::lp),
    ("MatMul", linear::mat_mul),
    ("Max", pointwise::max),
    ("MaxPool", pool::max),
    ("Mean", pointwise::mean),
    ("MeanVarianceNormalization", normalize::mean_variance),
    ("Min", pointwise::min),
    ("Mish", pointwise::mish),
    ("Mod", pointwise::modulo),
    ("Mul", pointwise::mul),
    ("Neg", pointwise::neg),
    ("Not", pointwise::not),
    ("OneHot", index::one_hot),
    ("Or", pointwise::or),
    ("PRelu", pointwise::prelu),
    ("Pad", shape::pad),
    ("Pow", pointwise::pow),
    ("QuantizeLinear", linear::quantize),
    ("RNN", recurrent::rnn),
    ("Range", constant::range),
    ("Reciprocal", pointwise::reciprocal),
    ("ReduceL1", reduce::l1),
    ("ReduceL2", reduce::l2),
    ("ReduceLogSum", reduce::log_sum),
    ("ReduceLogSumExp", reduce::log_sum_exp),
    ("ReduceMax", reduce::max),
    ("ReduceMean", reduce::mean),
    ("ReduceMin", reduce::min),
    ("ReduceProd", reduce::prod),
    ("ReduceSum", reduce::sum),
    ("ReduceSumSquare", reduce::sum_square),
    ("Relu", pointwise::relu),
    ("Reshape", shape::reshape),
    ("Resize", resize::resize),
    ("Round", pointwise::round),
    ("Selu", pointwise::selu),
    ("Shape", shape::shape),
    ("Shrink", pointwise::shrink),
    ("Sigmoid", pointwise::sigmoid),
    ("Sign", pointwise::sign),
    ("Sin", pointwise::sin),
    ("Sinh", pointwise::sinh),
    ("Size", shape::size),
    ("Slice", index::slice),
    ("Softmax", normalize::softmax),
    ("Softplus", pointwise::softplus),
    ("Softsign", pointwise::softsign),
    ("SpaceToDepth", shape::space_to_depth),
    ("Split", index::split),
    ("Sqrt", pointwise::sqrt),
    ("Squeeze", shape::squeeze),
    ("Sub", pointwise::sub),
    ("Sum", pointwise::sum),
    ("Tan", pointwise::tan),
    ("Tanh", pointwise::tanh),
    ("ThresholdedRelu", pointwise::thresholded_relu),
    ("Tile", shape::tile),
    ("Transpose", shape::transpose),
    ("Trilu", constant::trilu),
    ("Unsqueeze", shape::unsqueeze),
    ("Upsample", resize::upsample),
    ("Where", pointwise::select),
    ("Xor", pointwise::xor),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(TABLE.is_sorted_by(|a, b| a.0 < b.0), "the table is searched by halves");
        assert!(find("Conv").is_some());
        assert!(find("conv").is_none());
    }
}
