//! MXNet operators by theme, and the table that finds them.
//!
//! A new operator is one function and one row; a row has all names of the operator in all
//! versions. A function reads operands and attributes from its [`ImportedNode`], applies ops, and returns the outputs of
//! inference, or refuses the node with a reason. If a reduction leaves no axis, MXNet keeps one of extent 1.

mod conv;
mod ctc;
mod index;
mod linear;
mod loss;
mod normalize;
mod pointwise;
mod recurrent;
mod reduce;
mod sequence;
mod shape;

use super::node::ImportedNode;
use crate::common::NodeResult;

/// Translates one node.
pub(super) type Translate = fn(&mut ImportedNode) -> NodeResult;

/// The function of an operator.
pub(super) fn find(op: &str) -> Option<Translate> {
    let row = TABLE.iter().find(|row| row.0.contains(&op))?;
    Some(row.1)
}

/// Number of operands that inference reads: losses have labels after the first operand.
pub(super) fn operands_read(op: &str) -> usize {
    const WITH_LABELS: [&str; 6] = [
        "LinearRegressionOutput",
        "LogisticRegressionOutput",
        "MAERegressionOutput",
        "SVMOutput",
        "Softmax",
        "SoftmaxOutput",
    ];
    if WITH_LABELS.contains(&op) { 1 } else { usize::MAX }
}

#[rustfmt::skip]
const TABLE: &[(&[&str], Translate)] = &[
    // Convolutions, pooling, matrix products.
    (&["Convolution", "Convolution_v1"], conv::convolution),
    (&["Deconvolution"], conv::deconvolution),
    (&["FullyConnected"], linear::fully_connected),
    (&["Pooling", "Pooling_v1"], conv::pooling),
    (&["UpSampling"], conv::up_sampling),
    (&["_contrib_AdaptiveAvgPooling2D"], conv::adaptive_mean),
    (&["_contrib_BilinearResize2D"], conv::bilinear_resize),
    (&["batch_dot"], linear::batch_dot),
    (&["dot"], linear::dot),
    (&["_linalg_gemm2", "linalg_gemm2"], linear::gemm2),
    (&["_contrib_interleaved_matmul_selfatt_qk"], linear::interleaved_scores),
    (&["_contrib_interleaved_matmul_selfatt_valatt"], linear::interleaved_values),
    (&["RNN"], recurrent::rnn),

    // Normalization and exponentials.
    (&["BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm"], normalize::batch),
    (&["InstanceNorm"], normalize::instance),
    (&["GroupNorm"], normalize::group),
    (&["LayerNorm"], normalize::layer),
    (&["L2Normalization"], normalize::l2),
    (&["LRN"], normalize::lrn),
    (&["softmax"], normalize::softmax),
    (&["softmin"], normalize::softmin),
    (&["log_softmax"], normalize::log_softmax),
    (&["SoftmaxActivation"], normalize::softmax_activation),

    // Losses.
    (&["SoftmaxOutput", "Softmax"], loss::softmax_output),
    (&["LinearRegressionOutput"], loss::linear),
    (&["MAERegressionOutput"], loss::absolute),
    (&["SVMOutput"], loss::margin),
    (&["LogisticRegressionOutput"], loss::logistic),
    (&["MakeLoss", "make_loss"], loss::make_loss),
    (&["softmax_cross_entropy"], loss::softmax_cross_entropy),
    (&["CTCLoss", "ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss"], ctc::ctc_loss),

    // Pointwise functions.
    (&["Activation"], pointwise::activation),
    (&["LeakyReLU"], pointwise::leaky_relu),
    (&["clip"], pointwise::clip),
    (&["abs"], pointwise::abs),
    (&["arccos"], pointwise::acos),
    (&["arccosh"], pointwise::acosh),
    (&["arcsin"], pointwise::asin),
    (&["arcsinh"], pointwise::asinh),
    (&["arctan"], pointwise::atan),
    (&["arctanh"], pointwise::atanh),
    (&["cbrt"], pointwise::cbrt),
    (&["ceil"], pointwise::ceil),
    (&["cos"], pointwise::cos),
    (&["cosh"], pointwise::cosh),
    (&["degrees"], pointwise::degrees),
    (&["erf"], pointwise::erf),
    (&["exp"], pointwise::exp),
    (&["expm1"], pointwise::expm1),
    (&["fix", "trunc"], pointwise::fix),
    (&["floor"], pointwise::floor),
    (&["hard_sigmoid"], pointwise::hard_sigmoid),
    (&["log"], pointwise::log),
    (&["log10"], pointwise::log10),
    (&["log1p"], pointwise::log1p),
    (&["log2"], pointwise::log2),
    (&["logical_not"], pointwise::logical_not),
    (&["mish"], pointwise::mish),
    (&["negative"], pointwise::neg),
    (&["radians"], pointwise::radians),
    (&["rcbrt"], pointwise::rcbrt),
    (&["reciprocal"], pointwise::reciprocal),
    (&["relu"], pointwise::relu),
    (&["rint"], pointwise::rint),
    (&["rsqrt"], pointwise::rsqrt),
    (&["sigmoid"], pointwise::sigmoid),
    (&["sign"], pointwise::sign),
    (&["sin"], pointwise::sin),
    (&["sinh"], pointwise::sinh),
    (&["smooth_l1"], pointwise::smooth_l1),
    (&["softsign"], pointwise::softsign),
    (&["sqrt"], pointwise::sqrt),
    (&["square"], pointwise::square),
    (&["tan"], pointwise::tan),
    (&["tanh"], pointwise::tanh),
    (&["_contrib_div_sqrt_dim"], pointwise::div_sqrt_dim),
    (&["elemwise_add", "_plus", "_add", "_Plus", "_grad_add", "broadcast_add", "broadcast_plus"], pointwise::add),
    (&["elemwise_sub", "_minus", "_sub", "_Minus", "broadcast_sub", "broadcast_minus"], pointwise::sub),
    (&["elemwise_mul", "_mul", "_Mul", "broadcast_mul"], pointwise::mul),
    (&["elemwise_div", "_div", "_Div", "broadcast_div"], pointwise::div),
    (&["_power", "_Power", "broadcast_power"], pointwise::power),
    (&["_maximum", "_Maximum", "broadcast_maximum"], pointwise::maximum),
    (&["_minimum", "_Minimum", "broadcast_minimum"], pointwise::minimum),
    (&["_mod", "_Mod", "broadcast_mod"], pointwise::modulo),
    (&["_hypot", "broadcast_hypot"], pointwise::hypot),
    (&["_equal", "broadcast_equal"], pointwise::equal),
    (&["_not_equal", "broadcast_not_equal"], pointwise::not_equal),
    (&["_greater", "broadcast_greater"], pointwise::greater),
    (&["_greater_equal", "broadcast_greater_equal"], pointwise::greater_equal),
    (&["_lesser", "broadcast_lesser"], pointwise::lesser),
    (&["_lesser_equal", "broadcast_lesser_equal"], pointwise::lesser_equal),
    (&["_logical_and", "broadcast_logical_and"], pointwise::logical_and),
    (&["_logical_or", "broadcast_logical_or"], pointwise::logical_or),
    (&["_logical_xor", "broadcast_logical_xor"], pointwise::logical_xor),
    (&["_plus_scalar", "_PlusScalar"], pointwise::add_scalar),
    (&["_minus_scalar", "_MinusScalar"], pointwise::sub_scalar),
    (&["_rminus_scalar", "_RMinusScalar"], pointwise::scalar_sub),
    (&["_mul_scalar", "_MulScalar"], pointwise::mul_scalar),
    (&["_div_scalar", "_DivScalar"], pointwise::div_scalar),
    (&["_rdiv_scalar", "_RDivScalar"], pointwise::scalar_div),
    (&["_power_scalar", "_PowerScalar"], pointwise::power_scalar),
    (&["_rpower_scalar", "_RPowerScalar"], pointwise::scalar_power),
    (&["_mod_scalar", "_ModScalar"], pointwise::mod_scalar),
    (&["_rmod_scalar", "_RModScalar"], pointwise::scalar_mod),
    (&["_maximum_scalar", "_MaximumScalar"], pointwise::maximum_scalar),
    (&["_minimum_scalar", "_MinimumScalar"], pointwise::minimum_scalar),
    (&["_equal_scalar"], pointwise::equal_scalar),
    (&["_not_equal_scalar"], pointwise::not_equal_scalar),
    (&["_greater_scalar"], pointwise::greater_scalar),
    (&["_greater_equal_scalar"], pointwise::greater_equal_scalar),
    (&["_lesser_scalar"], pointwise::lesser_scalar),
    (&["_lesser_equal_scalar"], pointwise::lesser_equal_scalar),
    (&["add_n", "ElementWiseSum", "_sum"], pointwise::add_n),
    (&["where"], pointwise::select),
    (&["Cast", "cast", "amp_cast"], pointwise::cast),

    // No effect in inference.
    (&["_copy", "identity", "_np_copy", "IdentityAttachKLSparseReg"], shape::identity),
    (&["BlockGrad", "stop_gradient"], shape::stop_gradient),
    (&["Dropout"], shape::dropout),

    // Shapes.
    (&["Flatten", "flatten"], shape::flatten),
    (&["Reshape", "reshape"], shape::reshape),
    (&["reshape_like"], shape::reshape_like),
    (&["transpose"], shape::transpose),
    (&["SwapAxis", "swapaxes"], shape::swap_axes),
    (&["expand_dims"], shape::expand_dims),
    (&["squeeze"], shape::squeeze),
    (&["Concat", "concat"], shape::concat),
    (&["stack"], shape::stack),
    (&["SliceChannel", "split"], shape::slice_channel),
    (&["slice", "crop"], shape::slice),
    (&["slice_axis"], shape::slice_axis),
    (&["slice_like"], shape::slice_like),
    (&["reverse", "flip"], shape::reverse),
    (&["Pad", "pad"], shape::pad),
    (&["tile"], shape::tile),
    (&["repeat"], shape::repeat),
    (&["broadcast_to"], shape::broadcast_to),
    (&["broadcast_axis", "broadcast_axes"], shape::broadcast_axis),
    (&["broadcast_like"], shape::broadcast_like),
    (&["depth_to_space"], shape::depth_to_space),
    (&["space_to_depth"], shape::space_to_depth),
    (&["shape_array"], shape::shape_array),
    (&["size_array"], shape::size_array),
    (&["_zeros"], shape::zeros),
    (&["_ones"], shape::ones),
    (&["_full"], shape::full),
    (&["_arange"], shape::arange),
    (&["zeros_like"], shape::zeros_like),
    (&["ones_like"], shape::ones_like),

    // Reductions.
    (&["sum", "sum_axis"], reduce::sum),
    (&["mean"], reduce::mean),
    (&["max", "max_axis"], reduce::max),
    (&["min", "min_axis"], reduce::min),
    (&["prod"], reduce::prod),
    (&["norm"], reduce::norm),
    (&["argmax"], reduce::argmax),
    (&["argmin"], reduce::argmin),
    (&["argmax_channel"], reduce::argmax_channel),

    // Indexing.
    (&["Embedding"], index::embedding),
    (&["take"], index::take),
    (&["pick", "choose_element_0index"], index::pick),
    (&["one_hot"], index::one_hot),
    (&["SequenceMask"], sequence::mask),
    (&["SequenceLast"], sequence::last),
    (&["SequenceReverse"], sequence::reverse),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_has_one_row() {
        let names: Vec<&str> = TABLE.iter().flat_map(|row| row.0).copied().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(find("Convolution").is_some() && find("convolution").is_none());
    }
}
