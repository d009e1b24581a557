//! One arm for each operator: the calls that do a node's work, by emitted kernels; and the choice between these and a library's.
//!
//! Where a library and an emitted kernel can do a node's work, the faster one by [`times`] is taken, or by a measurement of
//! `--tune`. Both have the same meaning: an emitted kernel computes the activations that the library has no epilogue for.

use cuda_driver::MathMode;
use ir::{Call, CallInput, Op, Pack, RejectedKernel};
use types::{DType, Layout};

use super::c_source::ctype;
use super::emit::Draft;
use super::layout::{FOUR_CHANNELS, Rearranged};
use super::tiling::TensorCores;
use super::{CudaTarget, KernelOrigin, cublas_matmul, cudnn_conv, movement, pointwise, recurrent, recurrent_gradient};
use super::{reduction, times, training, update, window_gradients, windows};
use crate::NodeView;

impl NodeView<'_> {
    /// An operand of a call. Constants are packed in the order of the physical form.
    pub(super) fn read(&self, ix: usize) -> CallInput {
        let shape = &self.input(ix).shape;
        let rank = shape.rank();
        let moves = 2 < rank && shape[rank - 1] != 1 && shape[1..rank - 1].iter().any(|&extent| extent != 1);
        match self.layout == Layout::ChannelsLast && self.is_constant(ix) && moves {
            false => CallInput::Value(ix),
            true => {
                // As the extents are listed, with those that a broadcast adds.
                let mut listed = shape.clone();
                let channels = listed.remove(rank - 1);
                listed.insert(1, channels);
                CallInput::Packed { input: ix, pack: Pack::new(Rearranged::ChannelsInnermost(listed)) }
            }
        }
    }

    /// Refuses values that are neither `f32` nor half precision.
    pub(super) fn all_stored(&self) -> Result<(), String> {
        self.all(|dtype| dtype == DType::F32 || dtype.is_half())
    }

    pub(super) fn all_f32(&self) -> Result<(), String> {
        self.all(|dtype| dtype == DType::F32)
    }

    pub(super) fn all(&self, fits: impl Fn(DType) -> bool) -> Result<(), String> {
        let mut values = self.node.inputs.iter().chain(&self.node.outputs);
        match values.find(|&&value| !fits(self.graph.ty(value).dtype)) {
            Some(&value) => Err(format!("its kernel computes in f32, not with {}", self.graph.ty(value))),
            None => Ok(()),
        }
    }

    /// `const T* a0, ..` for some operands and `T* y` for the result.
    pub(super) fn parameters(&self, operands: &[usize]) -> Vec<(String, String)> {
        let input = |&ix: &usize| (format!("const {}*", ctype(self.input(ix).dtype)), format!("a{ix}"));
        let output = (format!("{}*", ctype(self.output().dtype)), "y".to_string());
        operands.iter().map(input).chain([output]).collect()
    }

    /// `const T* a0, ..` for all operands and `T* y0, ..` for all results of a node in its row-major form.
    pub(super) fn all_parameters(&self) -> Vec<(String, String)> {
        let input = |ix: usize| (format!("const {}*", ctype(self.input(ix).dtype)), format!("a{ix}"));
        let results = self.node.outputs.iter().enumerate();
        let output = |(ix, &value)| (format!("{}*", ctype(self.graph.ty(value).dtype)), format!("y{ix}"));
        (0..self.operand_count()).map(input).chain(results.map(output)).collect()
    }
}

/// The calls of a node, and the kernel of another origin that was not taken.
pub(super) struct Selected {
    pub(super) calls: Vec<Call>,
    pub(super) rejected: Option<RejectedKernel>,
}

/// The calls of a library for a node.
pub(super) struct LibraryCalls {
    /// The library's own call, then emitted ones behind it.
    pub(super) calls: Vec<Call>,
    /// How it computes `f32`.
    pub(super) math: MathMode,
    /// Its description of the layer: the key of measurements.
    pub(super) layer: String,
}

impl LibraryCalls {
    pub(super) fn new(calls: Vec<Call>, math: MathMode, layer: String) -> LibraryCalls {
        let behind: String = calls[1..].iter().map(|call| format!(", then {}", call.label)).collect();
        LibraryCalls { calls, math, layer: layer + &behind }
    }
}

/// Whether a library's kernel is taken and not an emitted one, by the times of both.
pub fn is_library_taken([library, emitted]: [u64; 2]) -> bool {
    /// The part of the library's time that the emitted kernel must stay below.
    const WORTHWHILE: f64 = 0.97;
    library as f64 * WORTHWHILE <= emitted as f64
}

impl CudaTarget {
    /// The calls that do a node's work.
    ///
    /// # Errors
    /// The reason that there is no kernel.
    pub(super) fn select(&self, node: &NodeView) -> Result<Selected, String> {
        let emitted = self.emitted(node);
        // Only without an emitted kernel may an engine exceed the limit of workspaces, or read single elements.
        let by_cudnn = self.by_cudnn(node).filter(|library| {
            let fits = library.calls[0].workspace <= node.workspace && cudnn_conv::misaligned(node).is_none();
            emitted.is_err() || fits
        });
        let library = by_cudnn.or_else(|| self.by_cublas(node));
        let Some(library) = library else { return Ok(Selected { calls: emitted?, rejected: None }) };
        let Ok(emitted) = emitted else { return Ok(Selected { calls: library.calls, rejected: None }) };
        let known = self.measured.get(&library.layer).copied();
        let modelled =
            || [times::library(node, &library.calls, library.math), times::emitted(node, self.tensor_cores())];
        let times = known.unwrap_or_else(modelled);
        let by_library = match self.origin {
            KernelOrigin::Faster => is_library_taken(times),
            KernelOrigin::Library => true,
            KernelOrigin::Emitted => false,
        };
        let [library_time, emitted_time] = times;
        let (mut taken, taken_time, other, time) = match by_library {
            true => (library.calls, library_time, emitted, emitted_time),
            false => (emitted, emitted_time, library.calls, library_time),
        };
        let rejected = RejectedKernel { kernel: other[0].kernel, time, taken_time, measured: known.is_some() };
        with_layer(&mut taken, &library.layer);
        Ok(Selected { calls: taken, rejected: Some(rejected) })
    }

    /// The calls of emitted kernels.
    fn emitted(&self, node: &NodeView) -> Result<Vec<Call>, String> {
        if let Op::Conv(conv) = node.op()
            && node.input_layout(0) == Layout::ChannelsLast
            && windows::reads_four_channels(node, conv)
        {
            return Err("the channels of its operand are not padded".into());
        }
        let mut calls = emit(node, self.tensor_cores())?;
        for input in calls.iter_mut().flat_map(|call| &mut call.inputs) {
            if let CallInput::Value(ix) = *input {
                *input = node.read(ix);
            }
        }
        Ok(calls)
    }

    /// The calls of cuDNN for a convolution, if it is enabled and supports it.
    fn by_cudnn(&self, node: &NodeView) -> Option<LibraryCalls> {
        let (Op::Conv(conv), Some(planner)) = (node.op(), &self.cudnn) else { return None };
        // cuDNN does not read padded channels.
        let is_padded = node.input_layout(0) == FOUR_CHANNELS;
        if is_padded { None } else { cudnn_conv::calls(node, conv, planner, node.layout).ok() }
    }

    /// The calls of cuBLASLt for a product, if it is enabled and supports it.
    fn by_cublas(&self, node: &NodeView) -> Option<LibraryCalls> {
        let (Op::MatMul(product), Some(cublas)) = (node.op(), &self.cublas) else { return None };
        if product.transposed { None } else { cublas_matmul::calls(node, product, cublas).ok() }
    }
}

/// Records in the first call which layer of a library does the same work.
fn with_layer(calls: &mut [Call], layer: &str) {
    let mut draft: Draft = postcard::from_bytes(&calls[0].code).expect("calls are encoded here");
    draft.layer = Some(layer.to_string());
    calls[0].code = draft.code();
}

/// The calls of emitted kernels for a node.
///
/// # Errors
/// The reason that there is no kernel.
fn emit(node: &NodeView, target: TensorCores) -> Result<Vec<Call>, String> {
    match node.op() {
        Op::Unary(_) | Op::Binary(_) | Op::Chain(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_) => {
            pointwise::lower(node).map(|call| vec![call])
        }
        Op::Conv(conv) if node.layout == Layout::ChannelsLast => windows::conv_channels_last(node, conv, target),
        Op::Conv(conv) => windows::conv(node, conv, target),
        Op::ConvTranspose(conv) => windows::conv_transpose(node, conv),
        Op::Pool(pool) => windows::pool(node, pool),
        Op::MatMul(product) => reduction::matmul(node, product, target),
        Op::Softmax(softmax) => reduction::softmax(node, softmax),
        Op::LayerNorm(norm) => reduction::layer_norm(node, norm),
        Op::Attention(attention) => reduction::attention(node, attention, target),
        Op::Reduce(reduce) => reduction::reduce(node, reduce),
        Op::ArgExtreme(extreme) => reduction::arg_extreme(node, extreme),
        Op::TopK(op) => reduction::top_k(node, op),
        Op::CumulativeSum(op) => reduction::cumulative_sum(node, op),
        Op::Lrn(lrn) => reduction::lrn(node, lrn),
        Op::Transpose(transpose) => Ok(movement::transposed(node, &transpose.order)),
        Op::Slice(slice) => Ok(movement::sliced(node, slice)),
        Op::Expand(expand) => Ok(movement::expanded(node, &expand.shape)),
        Op::Concat(concat) => Ok(movement::concatenated(node, concat.axis)),
        Op::Insert(insert) => Ok(movement::inserted(node, insert)),
        Op::Pad(pad) => Ok(movement::padded(node, pad)),
        Op::Gather(gather) => Ok(movement::gathered(node, gather.axis)),
        Op::Resize(resize) => movement::resized(node, resize),
        Op::BitCast(_) | Op::Reshape(_) | Op::StopGradient(_) => Err("it is always an alias".into()),
        Op::BatchNorm(_) => Err("its statistics are not known before the run".into()),
        Op::Recurrent(op) => recurrent::recurrent(node, op, target),
        Op::Relayout(_) => Ok(movement::laid_out(node)),
        Op::ConvChain(_) => Err("it belongs to processors".into()),
        Op::BatchNormGradient(norm) => Ok(training::batch_norm_gradient(node, norm.epsilon)),
        Op::BatchNormTraining(norm) => Ok(training::batch_norm(node, norm.epsilon)),
        Op::ConvWeightGradient(op) => window_gradients::weight_gradient(node, op, target),
        Op::Ctc(loss) => Ok(training::ctc(node, loss)),
        Op::CtcGradient(op) => Ok(training::ctc_gradient(node, &op.loss)),
        Op::Dropout(dropout) => Ok(training::dropout(node, dropout)),
        Op::PoolGradient(op) => window_gradients::pool_gradient(node, op),
        Op::PoolWithPositions(op) => window_gradients::pool_with_positions(node, &op.pool),
        Op::RecurrentGradient(op) => recurrent_gradient::recurrent_gradient(node, op),
        Op::RecurrentWithGates(_) => Err("it belongs to processors".into()),
        Op::Scatter(op) => Ok(movement::scattered(node, op)),
        Op::ScatterAdd(op) => Ok(training::scatter_add(node, op)),
        Op::SoftmaxCrossEntropy(loss) => Ok(training::cross_entropy(node, loss)),
        Op::SoftmaxCrossEntropyGradient(op) => Ok(training::cross_entropy_gradient(node, &op.loss)),
        Op::Update(op) if op.factors => Err("gradients must be given as a whole".into()),
        Op::Update(op) => Ok(update::update(node, &op.rule)),
    }
}
