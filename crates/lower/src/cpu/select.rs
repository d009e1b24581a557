//! [`select`]: one arm for each operator fills in the parameters of a kernel of `crates/cpu`.

use cpu::{Kernel, Packing, StorageType, Weights};
use ir::ops::{PadMode, ReduceKind, ResizeMode};
use ir::{Call, CallInput, Op, Pack, Packer, Reuse, TensorType};
use types::recurrent::Direction;
use types::{Bytes, DType, Element, Shape, Tensor, WeightFormat, each_data};

use super::{CpuTarget, blocked, bottleneck, pointwise, training, windows};
use crate::NodeView;

impl NodeView<'_> {
    pub(super) fn is_blocked(&self) -> bool {
        self.layout == blocked::LAYOUT
    }

    /// The storage type of an operand.
    pub(super) fn stored(&self, ix: usize) -> StorageType {
        float_of(self.input(ix))
    }

    /// The form of the weights, operand 1.
    pub(super) fn weights(&self) -> Weights {
        if self.is_constant(1) { Weights::Packed } else { Weights::Dynamic }
    }

    /// All operands. Constant weights are packed.
    pub(super) fn with_weights(&self, packing: impl FnOnce() -> Packing) -> Vec<CallInput> {
        let mut inputs = self.values();
        if self.weights() == Weights::Packed {
            inputs[1] = packed(1, packing());
        }
        inputs
    }

    pub(super) fn values(&self) -> Vec<CallInput> {
        (0..self.node.inputs.len()).map(|ix| self.value(ix)).collect()
    }

    /// An operand. A constant that varies along the channels of a blocked result is blocked too.
    pub(super) fn value(&self, ix: usize) -> CallInput {
        // In the physical form of an operand that does not vary along the channels, their block has one lane.
        let varies = self.input(ix).shape.last() != Some(&1);
        if !self.is_blocked() || !self.is_constant(ix) || !varies {
            return CallInput::Value(ix);
        }
        let from = self.graph.ty(self.node.inputs[ix]).shape.clone();
        let to = self.input(ix).shape.clone();
        packed(ix, Packing::Blocked { from, to })
    }
}

/// The ways to do a node's work, best first: each is a list of calls.
///
/// # Errors
/// The reason that there is no kernel.
pub(super) fn select(node: &NodeView, target: &CpuTarget) -> Result<Vec<Vec<Call>>, String> {
    check_extents(node)?;
    if let Op::Conv(conv) = &*node.op
        && node.is_blocked()
    {
        let kernels = blocked::conv_choices(node.graph, node.node, conv, node.workspace, target)?;
        return kernels.into_iter().map(|kernel| Ok(vec![blocked::conv_call(node, conv, kernel)?])).collect();
    }
    if let Op::ConvTranspose(conv) = &*node.op
        && node.is_blocked()
    {
        let kernels = blocked::data_gradient_kernels(node.graph, node.node, conv, node.workspace, target)?;
        return kernels.into_iter().map(|kernel| Ok(vec![blocked::data_gradient_call(node, conv, kernel)?])).collect();
    }
    if let Op::Conv(conv) = &*node.op {
        let kernels = windows::conv_kernels(node, conv, target)?;
        return kernels.into_iter().map(|kernel| Ok(vec![windows::conv_call(node, kernel, &conv.epilogue)?])).collect();
    }
    if let Op::ConvTranspose(conv) = &*node.op {
        let kernels = windows::conv_transpose_kernels(node, conv, target)?;
        return kernels.into_iter().map(|kernel| Ok(vec![windows::conv_call(node, kernel, &conv.epilogue)?])).collect();
    }
    if let Op::ConvChain(chain) = &*node.op {
        let kernels = bottleneck::kernels(node, chain, target.weights)?.into_iter();
        return kernels.map(|kernel| Ok(vec![bottleneck::call_of(node, chain, kernel)?])).collect();
    }
    select_only(node, target).map(|calls| vec![calls])
}

/// Refuses extents that kernels of windows do not count, and tables of positions that would fill the memory.
fn check_extents(node: &NodeView) -> Result<(), String> {
    let is_window = matches!(&*node.op, Op::Conv(_) | Op::ConvChain(_) | Op::ConvTranspose(_) | Op::Pool(_));
    let is_filled = matches!(&*node.op, Op::Pad(pad) if matches!(pad.mode, PadMode::Constant(_)));
    let limit = if is_window || is_filled {
        28
    } else if matches!(&*node.op, Op::Pad(_)) {
        24
    } else if matches!(&*node.op, Op::Resize(_)) {
        // Several weights for each output.
        22
    } else {
        return Ok(());
    };
    let shapes = (0..node.node.inputs.len()).map(|ix| &node.input(ix).shape).chain([&node.output().shape]);
    for shape in shapes {
        if shape.iter().any(|&extent| 1 << limit <= extent) {
            return Err(format!("extents must be below 2^{limit}, got {shape}"));
        }
    }
    Ok(())
}

/// The calls that do a node's work if there is one way to do it.
fn select_only(node: &NodeView, target: &CpuTarget) -> Result<Vec<Call>, String> {
    let weights = target.weights_of(node.graph, node.node);
    match &*node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Chain(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_) => {
            pointwise::lower(node).map(|call| vec![call])
        }
        Op::Pool(pool) if node.is_blocked() => blocked::pool(node, pool).map(|call| vec![call]),
        Op::Conv(_) | Op::ConvTranspose(_) | Op::ConvChain(_) => Err("its kernels are chosen before".into()),
        Op::Pool(pool) => windows::pool(node, pool).map(|call| vec![call]),
        Op::MatMul(product) => matmul(node, product, weights).map(|call| vec![call]),
        Op::BatchNorm(_) => Err("its statistics are not known before the run".into()),
        Op::Relayout(_) => blocked::relayout(node).map(|call| vec![call]),
        Op::BitCast(_) | Op::Reshape(_) | Op::StopGradient(_) => Err("it is always an alias".into()),
        Op::Transpose(transpose) => transposed(node, &transpose.order).map(|call| vec![call]),
        Op::Slice(slice) => {
            let x = &node.input(0).shape;
            let strides: Vec<isize> =
                x.row_major_strides().iter().zip(&slice.step).map(|(&stride, step)| stride as isize * step).collect();
            let offset = slice.start.iter().zip(x.row_major_strides()).map(|(start, stride)| start * stride).sum();
            moved(node, &slice.count, offset, strides).map(|call| vec![call])
        }
        Op::Expand(expand) => {
            let x = &node.input(0).shape;
            let strides = broadcast_strides(x, &expand.shape).into_iter().map(|stride| stride as isize).collect();
            moved(node, &expand.shape, 0, strides).map(|call| vec![call])
        }
        Op::Concat(concat) => concatenated(node, concat.axis),
        Op::Insert(insert) => inserted(node, insert),
        Op::Pad(pad) => padded(node, pad),
        Op::Gather(gather) => {
            let (table, index) = (node.input(0), node.input(1));
            let inner: usize = table.shape[gather.axis + 1..].iter().product();
            let kernel = cpu::Gather {
                outer: table.shape[..gather.axis].iter().product(),
                axis: table.shape[gather.axis],
                inner_bytes: inner * table.dtype.size().0 as usize,
                indices: index.shape.elements(),
                wide: index.dtype == DType::I64,
                table: cpu::GatherTable::Rows,
                weights,
            };
            let label = format!("{} rows", index.shape.elements());
            if gather.axis == 0 && is_right_factor(node, 0) {
                let (n, k) = (table.shape[0], table.shape[1]);
                let kernel = cpu::Gather { table: cpu::GatherTable::Packed, ..kernel };
                let inputs = vec![packed(0, Packing::TransposedFactor { k, n, weights }), CallInput::Value(1)];
                return call(kernel, label, inputs).map(|call| vec![call]);
            }
            let mut inputs = node.values();
            if let Some(weights) = weights {
                inputs[0] = packed(0, Packing::Table { rows: kernel.axis, weights });
            }
            call(kernel, label, inputs).map(|call| vec![call])
        }
        Op::Recurrent(op) => recurrent(node, op, false).map(|call| vec![call]),
        Op::RecurrentWithGates(op) => recurrent(node, &op.recurrent, true).map(|call| vec![call]),
        Op::Resize(resize) => resized(node, resize).map(|call| vec![call]),
        Op::Reduce(reduce) => {
            if let Some(call) = blocked::global_pool(node, reduce) {
                return call.map(|call| vec![call]);
            }
            if training::is_channel_sum(node.graph, node.node, reduce) {
                return training::channel_sum(node).map(|call| vec![call]);
            }
            let x = node.input(0);
            let kernel = cpu::Reduce {
                function: reduce_fn(reduce.kind),
                dtype: x.dtype,
                shape: x.shape.to_vec(),
                reduced: (0..x.shape.rank()).map(|axis| reduce.axes.contains(&axis)).collect(),
            };
            call(kernel, format!("{:?} of {}", reduce.kind, x.shape), node.values()).map(|call| vec![call])
        }
        Op::Softmax(softmax) => {
            let (outer, axis, inner) = around(&node.input(0).shape, softmax.axis);
            let kernel = cpu::Softmax { outer, axis, inner, log: softmax.log };
            call(kernel, format!("{outer} x {axis} x {inner}"), node.values()).map(|call| vec![call])
        }
        Op::LayerNorm(norm) => {
            let shape = &node.input(0).shape;
            let (rows, columns) = (shape[..norm.axis].iter().product(), shape[norm.axis..].iter().product());
            let (scale, bias, stored) = (norm.scale, norm.shift, node.stored(0));
            let kernel = cpu::LayerNorm { rows, columns, epsilon: norm.epsilon, scale, bias, stored };
            call(kernel, format!("{rows} x {columns}"), node.values()).map(|call| vec![call])
        }
        Op::Attention(attention) => attended(node, attention).map(|call| vec![call]),
        Op::ArgExtreme(op) => {
            let (outer, axis, inner) = around(&node.input(0).shape, op.axis);
            let kernel = cpu::ArgExtreme { outer, axis, inner, max: op.max, last: op.last };
            call(kernel, format!("{outer} x {axis} x {inner}"), node.values()).map(|call| vec![call])
        }
        Op::CumulativeSum(op) => {
            let ty = node.input(0);
            let (outer, axis, inner) = around(&ty.shape, op.axis);
            let (exclusive, reverse, dtype) = (op.exclusive, op.reverse, ty.dtype);
            let kernel = cpu::CumulativeSum { outer, axis, inner, exclusive, reverse, dtype };
            call(kernel, format!("{outer} x {axis} x {inner}"), node.values()).map(|call| vec![call])
        }
        Op::TopK(op) => {
            let ty = node.input(0);
            let (outer, axis, inner) = around(&ty.shape, op.axis);
            let kernel = cpu::TopK { outer, axis, inner, k: op.k, largest: op.largest, dtype: ty.dtype };
            call(kernel, format!("{} of {outer} x {axis} x {inner}", op.k), node.values()).map(|call| vec![call])
        }
        Op::Lrn(lrn) => {
            let (batch, channels, inner) = around(&node.input(0).shape, 1);
            let (size, alpha, beta, bias) = (lrn.size, lrn.alpha, lrn.beta, lrn.bias);
            let kernel = cpu::Lrn { batch, channels, inner, size, alpha, beta, bias };
            call(kernel, format!("{size} of {channels} channels"), node.values()).map(|call| vec![call])
        }
        Op::BatchNormGradient(op) => training::batch_norm_gradient(node, op.epsilon).map(|call| vec![call]),
        Op::BatchNormTraining(op) => training::batch_norm_training(node, op.epsilon).map(|call| vec![call]),
        Op::ConvWeightGradient(op) => training::weight_gradient(node, op).map(|call| vec![call]),
        Op::Ctc(op) => training::ctc(node, op).map(|call| vec![call]),
        Op::CtcGradient(op) => training::ctc_gradient(node, &op.loss).map(|call| vec![call]),
        Op::Dropout(op) => training::dropout(node, op).map(|call| vec![call]),
        Op::PoolGradient(op) => training::pool_gradient(node, op).map(|call| vec![call]),
        Op::PoolWithPositions(op) => training::pool_with_positions(node, &op.pool).map(|call| vec![call]),
        Op::RecurrentGradient(op) => training::recurrent_gradient(node, op).map(|call| vec![call]),
        Op::Scatter(op) => scattered(node, op).map(|call| vec![call]),
        Op::ScatterAdd(op) => training::scatter_add(node, op).map(|call| vec![call]),
        Op::SoftmaxCrossEntropy(op) => training::cross_entropy(node, op).map(|call| vec![call]),
        Op::SoftmaxCrossEntropyGradient(op) => training::cross_entropy_gradient(node, &op.loss).map(|call| vec![call]),
        Op::Update(op) => training::update(node, op).map(|call| vec![call]),
    }
}

/// A call that may not work in place.
///
/// # Errors
/// Extents that the kernel does not count.
pub(super) fn call(kernel: impl Into<Kernel>, label: String, inputs: Vec<CallInput>) -> Result<Call, String> {
    let kernel = kernel.into();
    let sizes = kernel.sizes().map_err(|misfit| misfit.to_string())?;
    Ok(Call {
        kernel: kernel.name(),
        label,
        code: postcard::to_stdvec(&kernel).expect("kernels are plain data"),
        workspace: Bytes(sizes.workspace),
        in_place: inputs
            .iter()
            .enumerate()
            .filter_map(|(ix, input)| match input {
                CallInput::Value(value) if kernel.may_share(ix) => Some(*value),
                _ => None,
            })
            .collect(),
        inputs,
        slice: None,
    })
}

/// A constant operand in the form that a kernel reads.
pub(super) fn packed(input: usize, packing: Packing) -> CallInput {
    let code = postcard::to_stdvec(&packing).expect("packings are plain data");
    let dtype = packing.dtype();
    CallInput::Packed { input, pack: Pack::new(ForProcessor(packing)).with_code(&code).to_dtype(dtype) }
}

/// A packing as the rule of a constant.
struct ForProcessor(Packing);

impl Packer for ForProcessor {
    fn size(&self, tensor: &Tensor) -> Bytes {
        let size = self.0.size(tensor.elements()).expect("kernels that were chosen are valid");
        Bytes(size.expect("a tensor in memory has fewer than 2^64 packed bytes"))
    }

    fn parts(&self, tensor: &Tensor) -> usize {
        self.0.parts(tensor)
    }

    fn pack(&self, tensor: &Tensor, part: usize) -> Vec<u8> {
        self.0.pack_part(tensor, part)
    }
}

/// The storage type of a float or int8 value.
pub(super) fn float_of(ty: &TensorType) -> StorageType {
    StorageType::of(ty.dtype).expect("numbers are asked for where values are such")
}

/// The extents in front of an axis, of it, and behind it.
pub(super) fn around(shape: &Shape, axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// Strides of `shape` inside `out`, aligned on the right; 0 where it is broadcast.
pub(super) fn broadcast_strides(shape: &Shape, out: &Shape) -> Vec<usize> {
    let own = shape.row_major_strides();
    let missing = out.rank() - shape.rank();
    let stride = |axis: usize| match axis.checked_sub(missing) {
        Some(axis) if shape[axis] != 1 => own[axis],
        _ => 0,
    };
    (0..out.rank()).map(stride).collect()
}

pub(super) fn epilogue(epilogue: &ir::ops::Epilogue) -> cpu::Epilogue {
    cpu::Epilogue {
        scale: epilogue.scale,
        bias: epilogue.bias,
        residual: epilogue.residual,
        quantized_sum: epilogue.quantized_sum,
        activation: epilogue.activation.clone(),
    }
}

/// `+bias +residual relu` for labels.
pub(super) fn suffix(epilogue: &ir::ops::Epilogue) -> String {
    let mut text = String::new();
    if epilogue.scale {
        text.push_str(" +scale");
    }
    if epilogue.bias {
        text.push_str(" +bias");
    }
    if epilogue.residual {
        text.push_str(if epilogue.quantized_sum.is_some() { " +quantized residual" } else { " +residual" });
    }
    for function in &epilogue.activation {
        text.push(' ');
        text.push_str(function.name());
    }
    text
}

fn matmul(node: &NodeView, product: &ir::ops::MatMul, weights: Option<WeightFormat>) -> Result<Call, String> {
    let (a, b, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let rank = out.rank();
    let mut batch: Shape = out[..rank - 2].into();
    let (mut m, k, n) = (out[rank - 2], a[a.rank() - 1], out[rank - 1]);
    let matrices = |shape: &Shape| broadcast_strides(&shape[..shape.rank() - 2].into(), &batch);
    let (mut a_strides, mut b_strides) = (matrices(a), matrices(b));
    let is_constant = b[..b.rank() - 2].iter().all(|&extent| extent == 1) && node.is_constant(1);
    if b_strides.iter().all(|&stride| stride == 0) && a.rank() == rank && a[..rank - 2] == batch[..] {
        // One right factor for all: the left ones are one tall matrix.
        m *= batch.elements();
        (batch, a_strides, b_strides) = (Shape::scalar(), Vec::new(), Vec::new());
    }
    let mut kernel = cpu::MatMul {
        batch: batch.to_vec(),
        a_strides,
        b_strides,
        m,
        k,
        n,
        b: if product.transposed { cpu::MatMulB::Transposed } else { cpu::MatMulB::Dynamic },
        operands: node.stored(0),
        weights: None,
        zero_point: product.zero as u8,
        // Integer sums have the size of `f32`.
        result: if node.output().dtype == DType::I32 { StorageType::F32 } else { float_of(node.output()) },
        epilogue: epilogue(&product.epilogue),
    };
    let mut inputs = node.values();
    if product.transposed && [kernel.operands, kernel.result] != [StorageType::F32; 2] {
        return Err("its transposed right factor is not f32".into());
    }
    if is_constant && n == 1 && [kernel.operands, kernel.result] == [StorageType::F32; 2] {
        // A vector is its own transpose, and packed it would be sixteen times as large.
        kernel.b = cpu::MatMulB::Transposed;
    } else if is_constant && product.transposed {
        (kernel.b, kernel.weights) = (cpu::MatMulB::Packed, weights);
        inputs[1] = packed(1, Packing::TransposedFactor { k, n, weights });
    } else if is_constant {
        kernel.weights = weights;
        kernel.b = cpu::MatMulB::Packed;
        inputs[1] = packed(1, Packing::RightFactor(kernel.clone()));
    }
    let way = if product.transposed { " transposed" } else { "" };
    let label = format!("{batch}{m}x{k}x{n}{way}{}", suffix(&product.epilogue));
    call(kernel, label, inputs)
}

/// Whether an operand is a constant matrix whose transpose is packed as the right factor of a product.
fn is_right_factor(node: &NodeView, operand: usize) -> bool {
    let value = node.node.inputs[operand];
    let multiplies = |other: &ir::Node| {
        let Op::MatMul(ir::ops::MatMul { transposed: true, .. }) = other.op else { return false };
        other.inputs[1] == value && node.graph.ty(other.inputs[0]).dtype == DType::F32
    };
    let ty = node.graph.ty(value);
    ty.dtype == DType::F32
        && ty.shape.rank() == 2
        && node.is_constant(operand)
        && node.graph.nodes().values().any(multiplies)
}

fn recurrent(node: &NodeView, op: &ir::ops::Recurrent, keeps_gates: bool) -> Result<Call, String> {
    let (gates, units) = (&node.input(0).shape, node.input(1).shape[2]);
    let kernel = cpu::Recurrent {
        cell: op.cell.clone(),
        direction: op.direction,
        seq: gates[0],
        batch: gates[1],
        units,
        weights: node.weights(),
        keeps_gates,
    };
    let inputs = node.with_weights(|| Packing::Recurrent(kernel.clone()));
    let label = recurrent_label(node, op);
    call(kernel, label, inputs)
}

/// The extents of a recurrent layer.
pub(super) fn recurrent_label(node: &NodeView, op: &ir::ops::Recurrent) -> String {
    let (gates, units) = (&node.input(0).shape, node.input(1).shape[2]);
    let way = match op.direction {
        Direction::Forward => "",
        Direction::Reverse => " reverse",
        Direction::Bidirectional => " both ways",
    };
    format!("{} {} steps x {} x {units}{way}", op.cell.name(), gates[0], gates[1])
}

fn attended(node: &NodeView, attention: &ir::ops::Attention) -> Result<Call, String> {
    // The extents and strides of batch, head, token and element.
    let operand = |ix: usize| {
        let (shape, order) = (&node.input(ix).shape, attention.order[ix]);
        let own = shape.row_major_strides();
        (order.sorted([shape[0], shape[1], shape[2], shape[3]]), order.sorted([own[0], own[1], own[2], own[3]]))
    };
    let [(q, q_strides), (k, k_strides), (v, v_strides)] = [0, 1, 2].map(operand);
    let [batch, heads, queries, width] = q;
    let (keys, value_width) = (k[2], v[3]);
    let strides = [q_strides, k_strides, v_strides];
    let mask = attention.mask.then(|| {
        let strides = broadcast_strides(&node.input(3).shape, &Shape::from([batch, heads, queries, keys]));
        cpu::MaskStrides { batch: strides[0], head: strides[1], query: strides[2], key: strides[3] }
    });
    let kernel = cpu::Attention {
        batch,
        heads,
        queries,
        keys,
        width,
        value_width,
        scale: attention.scale,
        strides: strides.map(|[batch, head, token, _]| cpu::HeadStrides { batch, head, token }),
        mask,
        order: attention.result,
        stored: StorageType::of(node.output().dtype).unwrap_or_default(),
    };
    let suffix = if attention.mask { " +mask" } else { "" };
    let label = format!("{batch} x {heads} heads, {queries} x {keys} of {width}{suffix}");
    call(kernel, label, node.values())
}

fn transposed(node: &NodeView, order: &[usize]) -> Result<Call, String> {
    // A large value whose parts change places one by one takes the bytes of its operand.
    let (shape, element) = (&node.input(0).shape, node.input(0).dtype.size().0 as usize);
    if let Some(kernel) = cpu::SwapAxes::of(shape, order, element) {
        let bytes = shape.elements() * element;
        if SWAPPED_BLOCKS_MIN <= kernel.blocks && SWAPPED_BYTES_MIN <= bytes && SWAPPED_RUN_MIN <= kernel.bytes {
            let label = format!("{shape} to {}", node.output().shape);
            return call(kernel, label, node.values());
        }
    }
    let strides = node.input(0).shape.row_major_strides();
    moved(node, &node.output().shape.clone(), 0, order.iter().map(|&axis| strides[axis] as isize).collect())
}

/// The least blocks of a transposition in place: its workspace is one of them.
const SWAPPED_BLOCKS_MIN: usize = 16;
/// The least bytes of a value whose transposition in place saves a part that counts.
const SWAPPED_BYTES_MIN: usize = 1 << 20;
/// The least bytes that stay together.
const SWAPPED_RUN_MIN: usize = 256;

/// A copy that fills the whole output.
fn moved(node: &NodeView, shape: &Shape, in_offset: usize, in_strides: Vec<isize>) -> Result<Call, String> {
    let kernel = cpu::Copy {
        element_size: node.input(0).dtype.size().0 as usize,
        shape: shape.to_vec(),
        in_elements: node.input(0).shape.elements(),
        in_offset,
        in_strides,
        out_elements: shape.elements(),
        out_offset: 0,
        out_strides: shape.row_major_strides().to_vec(),
    };
    call(kernel, format!("{} to {shape}", node.input(0).shape), node.values())
}

/// One copy an operand: into its window where that is contiguous, else into its rows of the whole result.
fn concatenated(node: &NodeView, axis: usize) -> Result<Vec<Call>, String> {
    let in_parts = matches!(node.graph.reuse(node.node), Reuse::ConcatSlices(_));
    let out = &node.output().shape;
    let strides = out.row_major_strides();
    let mut start = 0;
    (0..node.node.inputs.len())
        .map(|ix| {
            let x = &node.input(ix).shape;
            let elements = x.elements();
            let kernel = cpu::Copy {
                element_size: node.output().dtype.size().0 as usize,
                shape: x.to_vec(),
                in_elements: elements,
                in_offset: 0,
                in_strides: x.row_major_strides().iter().map(|&stride| stride as isize).collect(),
                out_elements: if in_parts { elements } else { out.elements() },
                out_offset: if in_parts { 0 } else { start * strides[axis] },
                out_strides: if in_parts { x.row_major_strides().to_vec() } else { strides.to_vec() },
            };
            start += x[axis];
            let part = in_parts.then_some(ix);
            Ok(Call { slice: part, ..call(kernel, format!("part {ix} of {out}"), vec![CallInput::Value(ix)])? })
        })
        .collect()
}

/// A copy of the whole, which falls away in place, and one of the part over it, which keeps the rest.
fn inserted(node: &NodeView, insert: &ir::ops::Insert) -> Result<Vec<Call>, String> {
    let out = &node.output().shape;
    let strides = out.row_major_strides();
    let copy = |ix: usize, out_offset: usize| {
        let x = &node.input(ix).shape;
        let copy = cpu::Copy {
            element_size: node.output().dtype.size().0 as usize,
            shape: x.to_vec(),
            in_elements: x.elements(),
            in_offset: 0,
            in_strides: x.row_major_strides().iter().map(|&stride| stride as isize).collect(),
            out_elements: out.elements(),
            out_offset,
            out_strides: strides.to_vec(),
        };
        (copy, format!("{x} in {out}"))
    };
    let ((whole, whole_label), (part, label)) = (copy(0, 0), copy(1, insert.start * strides[insert.axis]));
    let whole = call(whole, whole_label, vec![CallInput::Value(0)])?;
    let whole = Call { slice: Some(0), in_place: [0].into_iter().collect(), ..whole };
    let part = cpu::Insert { copy: part };
    Ok(vec![whole, call(part, label, vec![CallInput::Value(1), CallInput::Result])?])
}

/// Rows of a copy of the first operand, or of the operand in place, replaced or combined.
fn scattered(node: &NodeView, op: &ir::ops::Scatter) -> Result<Call, String> {
    let (index, out) = (node.input(1), node.output());
    let indices = index.shape.elements();
    let kernel = cpu::Scatter {
        rows: out.shape[0],
        inner: out.shape[1..].iter().product(),
        indices,
        wide: index.dtype == DType::I64,
        dtype: out.dtype,
        function: op.function,
    };
    let call = call(kernel, format!("{indices} rows to {}", out.shape), node.values())?;
    Ok(Call { in_place: [0].into_iter().collect(), ..call })
}

pub(super) fn padded(node: &NodeView, pad: &ir::ops::Pad) -> Result<Vec<Call>, String> {
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let element_size = node.output().dtype.size().0 as usize;
    let label = format!("{x} to {out}");
    let PadMode::Constant(value) = pad.mode else {
        let table = |axis: usize| {
            (0..out[axis]).map(|ix| pad.source(axis, x[axis], ix).unwrap_or(0) as u32).collect::<Vec<u32>>()
        };
        if x.rank() == 0 {
            return moved(node, out, 0, Vec::new()).map(|call| vec![call]);
        }
        let kernel = cpu::Remap { element_size, shape: x.to_vec(), tables: (0..x.rank()).map(table).collect() };
        return call(kernel, label, node.values()).map(|call| vec![call]);
    };
    let fill = cpu::Fill { elements: out.elements(), element_size, pattern: pattern(node.output().dtype, value) };
    // The part of the input that remains, where padding is negative, and its place in the output.
    let kept = |axis: usize| (0..out[axis]).filter(move |&ix| pad.source(axis, x[axis], ix).is_some());
    let first: Vec<usize> = (0..x.rank()).map(|axis| kept(axis).next().unwrap_or(0)).collect();
    let shape: Vec<usize> = (0..x.rank()).map(|axis| kept(axis).count()).collect();
    let in_strides = x.row_major_strides();
    let out_strides = out.row_major_strides();
    let from = |axis: usize| pad.source(axis, x[axis], first[axis]).unwrap_or(0) * in_strides[axis];
    let copy = cpu::Copy {
        element_size,
        shape,
        in_elements: x.elements(),
        in_offset: (0..x.rank()).map(from).sum(),
        in_strides: in_strides.iter().map(|&stride| stride as isize).collect(),
        out_elements: out.elements(),
        out_offset: first.iter().zip(&out_strides).map(|(ix, stride)| ix * stride).sum(),
        out_strides: out_strides.to_vec(),
    };
    Ok(vec![call(fill, format!("{value} in {out}"), Vec::new())?, call(copy, label, node.values())?])
}

/// The bytes of a number in a dtype.
fn pattern(dtype: DType, value: f64) -> [u8; 8] {
    let tensor = Tensor::scalar(value).cast(dtype);
    let mut bytes = [0; 8];
    fn write<T: Element>(items: &[T], bytes: &mut [u8; 8]) {
        items[0].write_le(&mut bytes[..T::DTYPE.size().0 as usize]);
    }
    each_data!(tensor.data(), items => write(items, &mut bytes));
    bytes
}

fn resized(node: &NodeView, resize: &ir::ops::Resize) -> Result<Call, String> {
    let x = &node.input(0).shape;
    let label = format!("{x} to {}", resize.shape);
    let taps = |axis: usize| resize.taps(axis, x[axis]);
    if let ResizeMode::Nearest(_) = resize.mode {
        let tables = (0..x.rank()).map(|axis| taps(axis).index).collect();
        let element_size = node.input(0).dtype.size().0 as usize;
        return call(cpu::Remap { element_size, shape: x.to_vec(), tables }, label, node.values());
    }
    let axis_taps = |axis: usize| {
        if resize.keeps(axis, x[axis]) {
            let index: Vec<u32> = (0..x[axis] as u32).collect();
            return cpu::AxisTaps { weight: vec![1.0; index.len()], index, per_output: 1 };
        }
        let taps = taps(axis);
        cpu::AxisTaps { index: taps.index, weight: taps.weight, per_output: taps.per_output }
    };
    call(cpu::Resize { shape: x.to_vec(), taps: (0..x.rank()).map(axis_taps).collect() }, label, node.values())
}

fn reduce_fn(kind: ReduceKind) -> cpu::ReduceFn {
    match kind {
        ReduceKind::Sum => cpu::ReduceFn::Sum,
        ReduceKind::Mean => cpu::ReduceFn::Mean,
        ReduceKind::Max => cpu::ReduceFn::Max,
        ReduceKind::Min => cpu::ReduceFn::Min,
        ReduceKind::Prod => cpu::ReduceFn::Prod,
        ReduceKind::SumSquare => cpu::ReduceFn::SumSquare,
        ReduceKind::L1 => cpu::ReduceFn::L1,
        ReduceKind::L2 => cpu::ReduceFn::L2,
        ReduceKind::LogSum => cpu::ReduceFn::LogSum,
        ReduceKind::LogSumExp => cpu::ReduceFn::LogSumExp,
    }
}
