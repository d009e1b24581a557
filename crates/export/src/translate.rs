//! [`Translator`]: a graph node as ONNX nodes.

use ir::ops::{
    Conv, ConvTranspose, Epilogue, Insert, LayerNorm, Pad, PadMode, Pool, PoolKind, Recurrent, Reduce, ReduceKind,
    Slice,
};
use ir::{Graph, Node, Op, TensorType, ValueId};
use types::pointwise::Unary;
use types::recurrent::{Cell, Direction, Reset};
use types::{DType, Shape, Tensor};

use crate::attribute::Attribute;
use crate::message::Message;
use crate::names::Names;
use crate::pointwise::{comparison, plain};
use crate::{ExportError, data_type};

/// Translates the nodes of a graph and collects further constants that they need.
pub(crate) struct Translator<'g> {
    graph: &'g Graph,
    names: &'g Names,
    constants: Vec<(String, Tensor)>,
}

/// The ONNX nodes of one graph node.
pub(crate) struct Made<'t> {
    /// The name of the first result, the prefix of intermediate names.
    name: String,
    scope: String,
    nodes: Vec<Entry>,
    constants: &'t mut Vec<(String, Tensor)>,
}

struct Entry {
    kind: &'static str,
    inputs: Vec<String>,
    outputs: Vec<String>,
    attributes: Vec<Attribute>,
}

impl<'g> Translator<'g> {
    pub(crate) fn new(graph: &'g Graph, names: &'g Names) -> Translator<'g> {
        Translator { graph, names, constants: Vec::new() }
    }

    /// Constants that are not values of the graph.
    pub(crate) fn constants(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.constants.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The messages of a node, in order.
    pub(crate) fn translate(&mut self, node: &Node) -> Result<Vec<Message>, ExportError> {
        let (graph, names) = (self.graph, self.names);
        let types: Vec<&TensorType> = node.inputs.iter().map(|&id| graph.ty(id)).collect();
        let inputs: Vec<String> = node.inputs.iter().map(|&id| names.of(id).to_string()).collect();
        let outputs: Vec<String> = node.outputs.iter().map(|&id| names.of(id).to_string()).collect();
        let mut made = Made {
            name: outputs[0].clone(),
            scope: node.scope.to_string(),
            nodes: Vec::new(),
            constants: &mut self.constants,
        };
        let out = graph.ty(node.outputs[0]);
        made.operator(&node.op, inputs, &types, out)
            .map_err(|what| ExportError::Node { scope: node.scope.clone(), what })?;
        made.finish(&outputs, |output| is_read(graph, node.outputs[output]))
    }
}

/// Whether a value has a reader: outputs without readers have no name.
fn is_read(graph: &Graph, id: ValueId) -> bool {
    graph.is_output(id) || graph.nodes().values().any(|node| node.inputs.contains(&id))
}

/// A copy.
pub(crate) fn identity(source: &str, output: &str) -> Message {
    let (inputs, outputs) = (vec![source.to_string()], vec![output.to_string()]);
    Entry { kind: "Identity", inputs, outputs, attributes: Vec::new() }.message(output)
}

impl Entry {
    fn message(&self, name: &str) -> Message {
        let mut message = Message::default();
        self.inputs.iter().for_each(|input| message.text(1, input));
        self.outputs.iter().for_each(|output| message.text(2, output));
        message.text(3, name);
        message.text(4, self.kind);
        self.attributes.iter().for_each(|attribute| message.message(5, attribute.message()));
        message
    }
}

impl Made<'_> {
    /// Adds a node and returns the name of its result.
    pub(crate) fn push<const N: usize>(
        &mut self,
        kind: &'static str,
        inputs: [String; N],
        attributes: Vec<Attribute>,
    ) -> String {
        self.push_all(kind, inputs.into(), attributes)
    }

    pub(crate) fn push_all(&mut self, kind: &'static str, inputs: Vec<String>, attributes: Vec<Attribute>) -> String {
        let output = format!("{}~{}", self.name, self.nodes.len());
        self.nodes.push(Entry { kind, inputs, outputs: vec![output.clone()], attributes });
        output
    }

    /// Adds a constant and returns its name.
    pub(crate) fn constant(&mut self, tensor: Tensor) -> String {
        let name = format!("{}~constant{}", self.name, self.constants.len());
        self.constants.push((name.clone(), tensor));
        name
    }

    fn numbers(&mut self, items: impl IntoIterator<Item = i64>) -> String {
        let items: Vec<i64> = items.into_iter().collect();
        self.constant(Tensor::new(Shape::from([items.len()]), items).expect("as many elements as it has"))
    }

    pub(crate) fn extents(&mut self, items: &[usize]) -> String {
        self.numbers(items.iter().map(|&item| item as i64))
    }

    pub(crate) fn cast(&mut self, x: String, to: DType) -> String {
        self.push("Cast", [x], vec![Attribute::int("to", data_type(to))])
    }

    /// Names the results of the last node.
    fn finish(self, outputs: &[String], is_read: impl Fn(usize) -> bool) -> Result<Vec<Message>, ExportError> {
        let Made { mut nodes, scope, .. } = self;
        if let Some(last) = nodes.last_mut() {
            last.outputs = outputs.to_vec();
            while 1 < last.outputs.len() && !is_read(last.outputs.len() - 1) {
                last.outputs.pop();
            }
        }
        let numbered = |ix: usize| if ix + 1 == nodes.len() { scope.clone() } else { format!("{scope}~{ix}") };
        Ok(nodes.iter().enumerate().map(|(ix, node)| node.message(&numbered(ix))).collect())
    }

    /// Translates an operator; an error names one that ONNX cannot express.
    fn operator(
        &mut self,
        op: &Op,
        mut inputs: Vec<String>,
        types: &[&TensorType],
        out: &TensorType,
    ) -> Result<(), String> {
        let first = || inputs[0].clone();
        let dtype = types.first().map_or(DType::F32, |ty| ty.dtype);
        match op {
            Op::ArgExtreme(op) => {
                let attributes = vec![
                    Attribute::int("axis", op.axis as i64),
                    Attribute::flag("keepdims", op.keep),
                    Attribute::flag("select_last_index", op.last),
                ];
                self.push(if op.max { "ArgMax" } else { "ArgMin" }, [first()], attributes);
            }
            Op::CumulativeSum(op) => {
                let axis = self.constant(Tensor::scalar(op.axis as i64));
                let attributes =
                    vec![Attribute::flag("exclusive", op.exclusive), Attribute::flag("reverse", op.reverse)];
                self.push("CumSum", [first(), axis], attributes);
            }
            Op::TopK(op) => {
                let k = self.extents(&[op.k]);
                let attributes = vec![Attribute::int("axis", op.axis as i64), Attribute::flag("largest", op.largest)];
                self.push("TopK", [first(), k], attributes);
            }
            Op::BatchNorm(op) => {
                self.push_all("BatchNormalization", inputs, vec![Attribute::float("epsilon", op.epsilon)]);
            }
            Op::Binary(op) => {
                let operands = [inputs[0].clone(), inputs[1].clone()];
                let done = self.binary(op.0, operands, dtype, [&types[0].shape, &out.shape]);
                done.ok_or_else(|| format!("`{}` of {dtype}", op.0.name()))?;
            }
            Op::BitCast(op) => {
                self.push("BitCast", [first()], vec![Attribute::int("to", data_type(op.to))]);
            }
            Op::Cast(op) => drop(self.cast(first(), op.to)),
            Op::Compare(op) => drop(self.push_all(comparison(op.0), inputs, vec![])),
            Op::Concat(op) => drop(self.push_all("Concat", inputs, vec![Attribute::int("axis", op.axis as i64)])),
            Op::Conv(op) => self.conv(op, inputs, out),
            Op::ConvTranspose(op) => self.conv_transpose(op, inputs, out),
            Op::Expand(op) => {
                let shape = self.extents(&op.shape);
                self.push("Expand", [first(), shape], vec![]);
            }
            Op::Gather(op) => drop(self.push_all("Gather", inputs, vec![Attribute::int("axis", op.axis as i64)])),
            Op::Insert(op) => self.insert(op, first(), inputs[1].clone(), types),
            Op::LayerNorm(op) => self.layer_norm(op, inputs, types[0]),
            Op::Lrn(op) => {
                let attributes = vec![
                    Attribute::int("size", op.size as i64),
                    Attribute::float("alpha", op.alpha),
                    Attribute::float("beta", op.beta),
                    Attribute::float("bias", op.bias),
                ];
                self.push("LRN", [first()], attributes);
            }
            Op::MatMul(op) if out.dtype == DType::I32 => {
                let zero = Tensor::scalar(f64::from(op.zero)).cast(types[0].dtype);
                inputs.push(self.constant(zero));
                self.push_all("MatMulInteger", inputs, vec![]);
            }
            Op::MatMul(op) if op.transposed => {
                let rank = types[1].shape.rank();
                let order = (0..rank - 2).chain([rank - 1, rank - 2]);
                inputs[1] = self.push("Transpose", [inputs[1].clone()], vec![Attribute::ints("perm", order)]);
                self.matmul(&op.epilogue, inputs, types, out);
            }
            Op::MatMul(op) => self.matmul(&op.epilogue, inputs, types, out),
            Op::Pad(op) => self.pad(op, first(), dtype),
            Op::Pool(op) => self.pool(op, first()),
            Op::Recurrent(op) => self.recurrent(op, inputs, types)?,
            Op::Reduce(op) => self.reduce(op, first()),
            Op::Reshape(op) => {
                let shape = self.extents(&op.shape);
                let attributes = if op.shape.contains(&0) { vec![Attribute::flag("allowzero", true)] } else { vec![] };
                self.push("Reshape", [first(), shape], attributes);
            }
            Op::Resize(op) if op.range.is_some() => return Err("a part of `resize`, which only passes make,".into()),
            Op::Resize(op) => self.resize(op, first(), &types[0].shape)?,
            Op::Scatter(op) => {
                let places: Vec<usize> = types[1].shape.iter().copied().chain([1]).collect();
                let places = self.extents(&places);
                let index = self.cast(inputs[1].clone(), DType::I64);
                let index = self.push("Reshape", [index, places], vec![]);
                let function = op.function.map(|function| Attribute::text("reduction", function.name()));
                let inputs = [first(), index, inputs[2].clone()];
                self.push("ScatterND", inputs, function.into_iter().collect());
            }
            Op::Select(_) => drop(self.push_all("Where", inputs, vec![])),
            Op::Slice(op) => drop(self.slice(op, first())),
            Op::Softmax(op) => {
                let kind = if op.log { "LogSoftmax" } else { "Softmax" };
                self.push(kind, [first()], vec![Attribute::int("axis", op.axis as i64)]);
            }
            Op::StopGradient(_) => drop(self.push("Identity", [first()], vec![])),
            Op::Transpose(op) => {
                self.push("Transpose", [first()], vec![Attribute::ints("perm", op.order.iter().copied())]);
            }
            Op::Unary(op) => drop(self.unary(op.0, first(), dtype)),
            Op::Attention(_) | Op::Chain(_) | Op::ConvChain(_) | Op::Relayout(_) => {
                return Err(format!("`{}`, which only passes make,", op.name()));
            }
            Op::BatchNormGradient(_)
            | Op::BatchNormTraining(_)
            | Op::ConvWeightGradient(_)
            | Op::Ctc(_)
            | Op::CtcGradient(_)
            | Op::Dropout(_)
            | Op::PoolGradient(_)
            | Op::PoolWithPositions(_)
            | Op::RecurrentGradient(_)
            | Op::RecurrentWithGates(_)
            | Op::ScatterAdd(_)
            | Op::SoftmaxCrossEntropy(_)
            | Op::SoftmaxCrossEntropyGradient(_)
            | Op::Update(_) => return Err(format!("`{}`, which only a training step has,", op.name())),
        }
        Ok(())
    }

    /// The epilogue of a product: the residual, then functions.
    fn epilogue(&mut self, epilogue: &Epilogue, x: String, residual: Option<String>, dtype: DType) {
        let mut x = x;
        if let Some(residual) = residual {
            x = self.push("Add", [x, residual], vec![]);
        }
        for &function in &epilogue.activation {
            x = self.unary(function, x, dtype);
        }
    }

    fn conv(&mut self, op: &Conv, mut inputs: Vec<String>, out: &TensorType) {
        let residual = if op.epilogue.residual { inputs.pop() } else { None };
        let mut attributes = window(&op.stride, &op.dilation, &op.pad);
        attributes.push(Attribute::int("group", op.groups as i64));
        let x = self.push_all("Conv", inputs, attributes);
        self.epilogue(&op.epilogue, x, residual, out.dtype);
    }

    fn conv_transpose(&mut self, op: &ConvTranspose, mut inputs: Vec<String>, out: &TensorType) {
        let residual = if op.epilogue.residual { inputs.pop() } else { None };
        let mut attributes = window(&op.stride, &op.dilation, &op.pad);
        attributes.push(Attribute::int("group", op.groups as i64));
        attributes.push(Attribute::ints("output_padding", op.output_pad.iter().copied()));
        let x = self.push_all("ConvTranspose", inputs, attributes);
        self.epilogue(&op.epilogue, x, residual, out.dtype);
    }

    fn matmul(&mut self, epilogue: &Epilogue, mut inputs: Vec<String>, types: &[&TensorType], out: &TensorType) {
        let residual = if epilogue.residual { inputs.pop() } else { None };
        let bias = if epilogue.bias { inputs.pop() } else { None };
        let flat = types[0].shape.rank() == 2 && types[1].shape.rank() == 2;
        let x = match bias {
            Some(bias) if flat => {
                inputs.push(bias);
                self.push_all("Gemm", inputs, vec![])
            }
            Some(bias) => {
                let product = self.push_all("MatMul", inputs, vec![]);
                self.push("Add", [product, bias], vec![])
            }
            None => self.push_all("MatMul", inputs, vec![]),
        };
        self.epilogue(epilogue, x, residual, out.dtype);
    }

    fn layer_norm(&mut self, op: &LayerNorm, mut inputs: Vec<String>, x: &TensorType) {
        if !op.scale {
            let ones = Tensor::full(x.shape[op.axis..].iter().copied().collect(), 1.0f32).cast(x.dtype);
            inputs.insert(1, self.constant(ones));
        }
        let attributes = vec![Attribute::int("axis", op.axis as i64), Attribute::float("epsilon", op.epsilon)];
        self.push_all("LayerNormalization", inputs, attributes);
    }

    fn pad(&mut self, op: &Pad, x: String, dtype: DType) {
        let pads = self.numbers((0..2).flat_map(|side| op.pad.iter().map(move |pad| pad[side] as i64)));
        let mode = match op.mode {
            PadMode::Constant(value) => {
                let value = self.constant(Tensor::scalar(value).cast(dtype));
                self.push("Pad", [x, pads, value], vec![]);
                return;
            }
            PadMode::Edge => "edge",
            PadMode::Reflect => "reflect",
            PadMode::Wrap => "wrap",
        };
        self.push("Pad", [x, pads], vec![Attribute::text("mode", mode)]);
    }

    fn pool(&mut self, op: &Pool, x: String) {
        let mut attributes = window(&op.stride, &op.dilation, &op.pad);
        attributes.push(Attribute::ints("kernel_shape", op.kernel.iter().copied()));
        attributes.push(Attribute::flag("ceil_mode", op.ceil));
        if op.kind != PoolKind::Max {
            attributes.push(Attribute::flag("count_include_pad", op.kind == PoolKind::MeanWithPadding));
        }
        self.push(if op.kind == PoolKind::Max { "MaxPool" } else { "AveragePool" }, [x], attributes);
    }

    fn reduce(&mut self, op: &Reduce, x: String) {
        let kind = match op.kind {
            ReduceKind::Sum => "ReduceSum",
            ReduceKind::Mean => "ReduceMean",
            ReduceKind::Max => "ReduceMax",
            ReduceKind::Min => "ReduceMin",
            ReduceKind::Prod => "ReduceProd",
            ReduceKind::SumSquare => "ReduceSumSquare",
            ReduceKind::L1 => "ReduceL1",
            ReduceKind::L2 => "ReduceL2",
            ReduceKind::LogSum => "ReduceLogSum",
            ReduceKind::LogSumExp => "ReduceLogSumExp",
        };
        let mut attributes = vec![Attribute::flag("keepdims", op.keep)];
        if op.axes.is_empty() {
            attributes.push(Attribute::flag("noop_with_empty_axes", true));
        }
        let axes = self.extents(&op.axes);
        self.push(kind, [x, axes], attributes);
    }

    fn slice(&mut self, op: &Slice, x: String) -> String {
        let mut ends = Vec::with_capacity(op.start.len());
        for ((&start, &step), &count) in op.start.iter().zip(&op.step).zip(&op.count[..]) {
            let (start, step, count) = (start as i64, step as i64, count as i64);
            // One past the last element in the direction of the step; before the axis only the least integer is valid.
            let end = if count == 0 { start } else { start + step * (count - 1) + step.signum() };
            ends.push(if end < 0 { i64::MIN } else { end });
        }
        let starts = self.extents(&op.start);
        let ends = self.numbers(ends);
        let axes = self.numbers(0..op.start.len() as i64);
        let steps = self.numbers(op.step.iter().map(|&step| step as i64));
        self.push("Slice", [x, starts, ends, axes, steps], vec![])
    }

    /// A concatenation of the elements before the part, of the part, and of those behind it.
    fn insert(&mut self, op: &Insert, whole: String, part: String, types: &[&TensorType]) {
        let (shape, count) = (&types[0].shape, types[1].shape[op.axis]);
        let end = op.start + count;
        let before = Slice::range(shape, op.axis, 0, op.start);
        let behind = Slice::range(shape, op.axis, end, shape[op.axis] - end);
        let parts = vec![self.slice(&before, whole.clone()), part, self.slice(&behind, whole)];
        self.push_all("Concat", parts, vec![Attribute::int("axis", op.axis as i64)]);
    }

    /// The input's part of the gates is already computed, so the input weights only select the part of each direction.
    fn recurrent(&mut self, op: &Recurrent, inputs: Vec<String>, types: &[&TensorType]) -> Result<(), String> {
        let (directions, gates) = (op.direction.count(), op.cell.gates());
        let units = types[1].shape[2];
        let (rows, width) = (gates * units, directions * gates * units);
        let pick = Tensor::from_fn(Shape::from([directions, rows, width]), |at| {
            let (direction, row, column) = (at / width / rows, at / width % rows, at % width);
            if column == direction * rows + row { 1.0f32 } else { 0.0 }
        });
        let pick = self.constant(pick);
        let mut rest = inputs.into_iter();
        let mut next = || rest.next().unwrap_or_default();
        let (x, weight, h) = (next(), next(), next());
        let c = if op.cell.has_memory() { next() } else { String::new() };
        let extra = if 0 < op.cell.extras() { next() } else { String::new() };
        let absent = String::new;
        let (kind, functions, mut operands) = match &op.cell {
            Cell::Lstm { activation, .. } => {
                ("LSTM", activation.to_vec(), vec![x, pick, weight, absent(), absent(), h, c, extra])
            }
            Cell::Gru { activation, reset } => {
                let bias = match reset {
                    Reset::BeforeProduct => absent(),
                    Reset::AfterProduct => {
                        let zeros = Tensor::full(Shape::from([directions, 5 * units]), 0.0f32);
                        let zeros = self.constant(zeros);
                        self.push("Concat", [zeros, extra], vec![Attribute::int("axis", 1)])
                    }
                };
                ("GRU", activation.to_vec(), vec![x, pick, weight, bias, absent(), h])
            }
            Cell::Rnn { activation } => ("RNN", vec![*activation], vec![x, pick, weight, absent(), absent(), h]),
        };
        while operands.last().is_some_and(String::is_empty) {
            operands.pop();
        }
        let direction = match op.direction {
            Direction::Forward => "forward",
            Direction::Reverse => "reverse",
            Direction::Bidirectional => "bidirectional",
        };
        let mut attributes = vec![Attribute::int("hidden_size", units as i64), Attribute::text("direction", direction)];
        if matches!(op.cell, Cell::Gru { reset: Reset::AfterProduct, .. }) {
            attributes.push(Attribute::flag("linear_before_reset", true));
        }
        attributes.extend(activations(&functions, directions)?);
        self.push_all(kind, operands, attributes);
        Ok(())
    }
}

/// The functions of a recurrent cell, repeated for each direction.
fn activations(functions: &[Unary], directions: usize) -> Result<Vec<Attribute>, String> {
    let (mut names, mut alphas, mut betas) = (Vec::new(), Vec::new(), Vec::new());
    for &function in std::iter::repeat_n(functions, directions).flatten() {
        let (alpha, beta) = match function {
            Unary::HardSigmoid { alpha, beta } => (Some(alpha), Some(beta)),
            Unary::Elu { alpha } | Unary::LeakyRelu { alpha } | Unary::ThresholdedRelu { alpha } => (Some(alpha), None),
            Unary::Relu | Unary::Sigmoid | Unary::Softplus | Unary::Softsign | Unary::Tanh => (None, None),
            other => return Err(format!("a recurrent cell with {other:?}")),
        };
        names.extend(plain(function).map(|(name, _)| name));
        alphas.extend(alpha);
        betas.extend(beta);
    }
    let mut attributes = vec![Attribute::texts("activations", &names)];
    for (name, values) in [("activation_alpha", &alphas), ("activation_beta", &betas)] {
        if !values.is_empty() {
            attributes.push(Attribute::floats(name, values));
        }
    }
    Ok(attributes)
}

/// Strides, dilations and padding.
fn window(stride: &[usize], dilation: &[usize], pad: &[[usize; 2]]) -> Vec<Attribute> {
    vec![
        Attribute::ints("strides", stride.iter().copied()),
        Attribute::ints("dilations", dilation.iter().copied()),
        Attribute::ints("pads", (0..2).flat_map(|side| pad.iter().map(move |pad| pad[side]))),
    ]
}
