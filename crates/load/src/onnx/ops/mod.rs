//! The operators of ONNX's default domain, by theme, and the one table that finds them.
//!
//! A new operator is one function and one row. A function reads operands and attributes off its [`Call`], as the opset
//! at hand defines them, applies ops, and yields the node's outputs. What it cannot express it refuses with a reason.

mod constant;
mod conv;
mod einsum;
mod grid;
mod index;
mod linear;
mod loss;
mod normalize;
mod pointwise;
mod pool;
mod quantized;
mod recurrent;
mod reduce;
mod resize;
mod scan;
mod scatter;
mod shape;
mod signal;
mod window;

use ir::Refusal;

use super::call::Call;
use crate::build::Operand;

/// Translates one node.
pub(super) type Translate = fn(&mut Call) -> Result<Vec<Operand>, Refusal>;

/// The function of an operator.
pub(super) fn find(op_type: &str) -> Option<Translate> {
    let ix = TABLE.binary_search_by_key(&op_type, |row| row.0).ok()?;
    Some(TABLE[ix].1)
}

// One row an operator, sorted. `If`, `Loop` and `Scan` are the walk's own.
#[rustfmt::skip]
const TABLE: &[(&str, Translate)] = &[
    ("Abs", pointwise::abs),
    ("Acos", pointwise::acos),
    ("Acosh", pointwise::acosh),
    ("Add", pointwise::add),
    ("AffineGrid", grid::affine),
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
    ("BlackmanWindow", signal::blackman),
    ("Cast", constant::cast),
    ("CastLike", constant::cast_like),
    ("Ceil", pointwise::ceil),
    ("Celu", pointwise::celu),
    ("CenterCropPad", shape::center_crop_pad),
    ("Clip", pointwise::clip),
    ("Col2Im", conv::col2im),
    ("Compress", index::compress),
    ("Concat", shape::concat),
    ("Constant", constant::constant),
    ("ConstantOfShape", constant::constant_of_shape),
    ("Conv", conv::conv),
    ("ConvInteger", quantized::conv_integer),
    ("ConvTranspose", conv::conv_transpose),
    ("Cos", pointwise::cos),
    ("Cosh", pointwise::cosh),
    ("CumSum", scan::cum_sum),
    ("DFT", signal::dft),
    ("DepthToSpace", shape::depth_to_space),
    ("DequantizeLinear", linear::dequantize),
    ("Det", linear::det),
    ("Div", pointwise::div),
    ("Dropout", constant::dropout),
    ("DynamicQuantizeLinear", quantized::dynamic_quantize),
    ("Einsum", einsum::einsum),
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
    ("GatherElements", index::gather_elements),
    ("GatherND", index::gather_nd),
    ("Gelu", pointwise::gelu),
    ("Gemm", linear::gemm),
    ("GlobalAveragePool", pool::global_average),
    ("GlobalLpPool", pool::global_lp),
    ("GlobalMaxPool", pool::global_max),
    ("Greater", pointwise::greater),
    ("GreaterOrEqual", pointwise::greater_or_equal),
    ("GridSample", grid::sample),
    ("GroupNormalization", normalize::group),
    ("HammingWindow", signal::hamming),
    ("HannWindow", signal::hann),
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
    ("MatMulInteger", quantized::mat_mul_integer),
    ("Max", pointwise::max),
    ("MaxPool", pool::max),
    ("Mean", pointwise::mean),
    ("MeanVarianceNormalization", normalize::mean_variance),
    ("MelWeightMatrix", signal::mel_weights),
    ("Min", pointwise::min),
    ("Mish", pointwise::mish),
    ("Mod", pointwise::modulo),
    ("Mul", pointwise::mul),
    ("Neg", pointwise::neg),
    ("NegativeLogLikelihoodLoss", loss::negative_log_likelihood),
    ("NonZero", constant::non_zero),
    ("Not", pointwise::not),
    ("OneHot", index::one_hot),
    ("OptionalGetElement", constant::identity),
    ("OptionalHasElement", constant::optional_has_element),
    ("Or", pointwise::or),
    ("PRelu", pointwise::prelu),
    ("Pad", shape::pad),
    ("Pow", pointwise::pow),
    ("QLinearConv", quantized::q_linear_conv),
    ("QLinearMatMul", quantized::q_linear_mat_mul),
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
    ("ReverseSequence", index::reverse_sequence),
    ("Round", pointwise::round),
    ("STFT", signal::stft),
    ("Scatter", scatter::elements),
    ("ScatterElements", scatter::elements),
    ("ScatterND", scatter::nd),
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
    ("SoftmaxCrossEntropyLoss", loss::softmax_cross_entropy),
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
    ("TopK", index::top_k),
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
