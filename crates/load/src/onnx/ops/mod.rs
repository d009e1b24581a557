//! ONNX operators by theme, and the tables that find them, one per supported domain.
//!
//! A new operator is one function and one row. A function reads operands and attributes from its [`ImportedNode`] as the
//! opset defines them, applies ops, and returns the outputs of the node, or refuses the node with a reason.

mod attention;
mod blocks;
mod boxes;
mod constant;
mod conv;
mod deform;
mod einsum;
mod forest;
mod fused;
mod grid;
mod grouped_attention;
mod index;
mod linear;
mod linear_models;
mod loss;
mod microsoft;
mod ml;
mod normalize;
mod optimizer;
mod pointwise;
mod pool;
mod quantized;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod rotary;
mod scan;
mod scatter;
mod scores;
mod sequence;
mod shape;
mod signal;
mod stateful;
mod text;
mod tree;
mod unique;
mod window;

pub(super) use random::Random;

use super::node::{Entry, ImportedNode};
use crate::common::NodeResult;

/// Translates one node with tensors as operands and outputs.
type Translate = fn(&mut ImportedNode) -> NodeResult;

/// Translates one node that may also have sequences, optionals and random numbers.
type TranslateEntries = fn(&mut ImportedNode) -> NodeResult<Entry>;

/// The function of an operator.
#[derive(Clone, Copy)]
pub(super) enum OperatorFn {
    Tensors(Translate),
    Entries(TranslateEntries),
}

impl OperatorFn {
    /// The outputs of the node.
    pub(super) fn translate(self, node: &mut ImportedNode) -> NodeResult<Entry> {
        match self {
            OperatorFn::Entries(function) => function(node),
            OperatorFn::Tensors(function) => {
                node.only_tensors()?;
                Ok(function(node)?.into_iter().map(Entry::Operand).collect())
            }
        }
    }
}

/// Whether a domain has supported operators; the default one is empty.
pub(super) fn supports_domain(domain: &str) -> bool {
    !table(domain).is_empty()
}

/// The function of an operator.
pub(super) fn find(domain: &str, op_type: &str) -> Option<OperatorFn> {
    if let Some(row) = found(if domain.is_empty() { ENTRIES } else { &[] }, op_type) {
        return Some(OperatorFn::Entries(row));
    }
    found(table(domain), op_type).map(OperatorFn::Tensors)
}

fn table(domain: &str) -> &'static [(&'static str, Translate)] {
    match domain {
        "" => TABLE,
        "ai.onnx.ml" => ML,
        "ai.onnx.preview.training" => TRAINING,
        "com.microsoft" => MICROSOFT,
        _ => &[],
    }
}

fn found<F: Copy>(table: &[(&str, F)], op_type: &str) -> Option<F> {
    let ix = table.binary_search_by_key(&op_type, |row| row.0).ok()?;
    Some(table[ix].1)
}

/// Operators of the default domain with sequences, optionals or random numbers.
const ENTRIES: &[(&str, TranslateEntries)] = &[
    ("Cast", random::cast),
    ("CastLike", random::cast_like),
    ("ConcatFromSequence", sequence::concat),
    ("Div", random::div),
    ("Identity", sequence::identity),
    ("Less", random::less),
    ("Optional", sequence::optional),
    ("OptionalGetElement", sequence::optional_get_element),
    ("OptionalHasElement", sequence::optional_has_element),
    ("RandomUniformLike", random::uniform_like),
    ("SequenceAt", sequence::at),
    ("SequenceConstruct", sequence::construct),
    ("SequenceEmpty", sequence::empty),
    ("SequenceErase", sequence::erase),
    ("SequenceInsert", sequence::insert),
    ("SequenceLength", sequence::length),
    ("SplitToSequence", sequence::split),
];

const ML: &[(&str, Translate)] = &[
    ("ArrayFeatureExtractor", ml::array_feature_extractor),
    ("Binarizer", ml::binarizer),
    ("FeatureVectorizer", linear_models::vectorizer),
    ("Imputer", linear_models::imputer),
    ("LabelEncoder", ml::label_encoder),
    ("LinearClassifier", linear_models::classifier),
    ("LinearRegressor", linear_models::regressor),
    ("Normalizer", linear_models::normalizer),
    ("OneHotEncoder", linear_models::one_hot),
    ("SVMRegressor", linear_models::svm_regressor),
    ("Scaler", linear_models::scaler),
    ("TreeEnsemble", tree::ensemble),
    ("TreeEnsembleClassifier", forest::classifier),
    ("TreeEnsembleRegressor", forest::regressor),
];

const TRAINING: &[(&str, Translate)] =
    &[("Adagrad", optimizer::adagrad), ("Adam", optimizer::adam), ("Momentum", optimizer::momentum)];

/// Operators that the quantizer and the optimizer of ONNX Runtime write.
const MICROSOFT: &[(&str, Translate)] = &[
    ("Attention", attention::of_microsoft),
    ("BiasGelu", fused::bias_gelu),
    ("CausalConvWithState", stateful::causal_conv),
    ("DequantizeLinear", linear::dequantize),
    ("DynamicQuantizeMatMul", fused::dynamic_product),
    ("EmbedLayerNormalization", fused::embed),
    ("ExpandDims", microsoft::expand_dims),
    ("FastGelu", fused::fast_gelu),
    ("FusedConv", fused::fused_conv),
    ("FusedGemm", fused::fused_gemm),
    ("FusedMatMul", fused::fused_product),
    ("GatherBlockQuantized", blocks::gather),
    ("GatherND", index::gather_nd),
    ("Gelu", pointwise::gelu),
    ("GridSample", grid::sample),
    ("GroupQueryAttention", grouped_attention::grouped_query),
    ("LinearAttention", stateful::linear_attention),
    ("MRotaryEmbedding", rotary::rotary_of_sections),
    ("MatMulBnb4", blocks::mat_mul_bnb4),
    ("MatMulIntegerToFloat", fused::integer_product),
    ("MatMulNBits", blocks::mat_mul),
    ("MultiHeadAttention", attention::multi_head),
    ("QAttention", attention::quantized),
    ("QGemm", microsoft::gemm),
    ("QLinearAdd", microsoft::add),
    ("QLinearAveragePool", microsoft::average),
    ("QLinearConcat", microsoft::concat),
    ("QLinearConv", microsoft::conv),
    ("QLinearGlobalAveragePool", microsoft::global_average),
    ("QLinearLeakyRelu", microsoft::leaky_relu),
    ("QLinearMul", microsoft::mul),
    ("QLinearSigmoid", microsoft::sigmoid),
    ("QLinearSoftmax", microsoft::softmax),
    ("QLinearWhere", microsoft::select),
    ("QuantizeLinear", linear::quantize),
    ("QuickGelu", fused::quick_gelu),
    ("RotaryEmbedding", rotary::rotary_of_microsoft),
    ("SkipLayerNormalization", fused::skip_layer),
    ("SkipSimplifiedLayerNormalization", fused::skip_rms),
    ("TransposeMatMul", fused::fused_product),
    ("Trilu", constant::trilu),
];

// A row per operator, sorted. `If`, `Loop`, `Scan` and `SequenceMap` are in `translate`.
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
    ("Attention", attention::attention),
    ("AveragePool", pool::average),
    ("BatchNormalization", normalize::batch),
    ("BitCast", constant::bit_cast),
    ("BitShift", pointwise::bit_shift),
    ("BitwiseAnd", pointwise::bitwise_and),
    ("BitwiseNot", pointwise::bitwise_not),
    ("BitwiseOr", pointwise::bitwise_or),
    ("BitwiseXor", pointwise::bitwise_xor),
    ("BlackmanWindow", signal::blackman),
    ("CausalConvWithState", stateful::causal_conv),
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
    ("CumProd", scan::cum_prod),
    ("CumSum", scan::cum_sum),
    ("DFT", signal::dft),
    ("DeformConv", deform::conv),
    ("DepthToSpace", shape::depth_to_space),
    ("DequantizeLinear", linear::dequantize),
    ("Det", linear::det),
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
    ("InstanceNormalization", normalize::instance),
    ("IsInf", pointwise::is_inf),
    ("IsNaN", pointwise::is_nan),
    ("LRN", normalize::lrn),
    ("LSTM", recurrent::lstm),
    ("LayerNormalization", normalize::layer),
    ("LeakyRelu", pointwise::leaky_relu),
    ("LessOrEqual", pointwise::less_or_equal),
    ("LinearAttention", stateful::linear_attention),
    ("Log", pointwise::log),
    ("LogSoftmax", normalize::log_softmax),
    ("LpNormalization", normalize::lp),
    ("LpPool", pool::lp),
    ("MatMul", linear::mat_mul),
    ("MatMulInteger", quantized::mat_mul_integer),
    ("Max", pointwise::max),
    ("MaxPool", pool::max),
    ("MaxUnpool", scatter::max_unpool),
    ("Mean", pointwise::mean),
    ("MeanVarianceNormalization", normalize::mean_variance),
    ("MelWeightMatrix", signal::mel_weights),
    ("Min", pointwise::min),
    ("Mish", pointwise::mish),
    ("Mod", pointwise::modulo),
    ("Mul", pointwise::mul),
    ("Neg", pointwise::neg),
    ("NegativeLogLikelihoodLoss", loss::negative_log_likelihood),
    ("NonMaxSuppression", boxes::non_max_suppression),
    ("NonZero", constant::non_zero),
    ("Not", pointwise::not),
    ("OneHot", index::one_hot),
    ("Or", pointwise::or),
    ("PRelu", pointwise::prelu),
    ("Pad", shape::pad),
    ("Pow", pointwise::pow),
    ("QLinearConv", quantized::q_linear_conv),
    ("QLinearMatMul", quantized::q_linear_mat_mul),
    ("QuantizeLinear", linear::quantize),
    ("RMSNormalization", normalize::rms),
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
    ("RoiAlign", boxes::roi_align),
    ("RotaryEmbedding", rotary::rotary),
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
    ("SimplifiedLayerNormalization", normalize::rms),
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
    ("SwiGLU", pointwise::swiglu),
    ("Swish", pointwise::swish),
    ("Tan", pointwise::tan),
    ("Tanh", pointwise::tanh),
    ("TensorScatter", scatter::runs),
    ("TfIdfVectorizer", text::tf_idf),
    ("ThresholdedRelu", pointwise::thresholded_relu),
    ("Tile", shape::tile),
    ("TopK", index::top_k),
    ("Transpose", shape::transpose),
    ("Trilu", constant::trilu),
    ("Unique", unique::unique),
    ("Unsqueeze", shape::unsqueeze),
    ("Upsample", resize::upsample),
    ("Where", pointwise::select),
    ("Xor", pointwise::xor),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted() {
        for table in [TABLE, ML, TRAINING, MICROSOFT] {
            assert!(table.is_sorted_by(|a, b| a.0 < b.0), "tables are searched by bisection");
        }
        assert!(ENTRIES.is_sorted_by(|a, b| a.0 < b.0), "tables are searched by bisection");
        assert!(find("", "Conv").is_some());
        assert!(find("", "conv").is_none());
        assert!(find("ai.onnx.ml", "Conv").is_none());
    }
}
