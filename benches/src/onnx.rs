//! A graph as an ONNX file, so that other runtimes run the same weights.
//!
//! Only what the zoo's networks are made of, as they are built; anything else is refused by name. The file is a protobuf
//! message by message: <https://protobuf.dev/programming-guides/encoding/>, field numbers from `onnx.proto`.

use ir::ops::{Epilogue, PoolKind, ReduceKind};
use ir::{Graph, Node, Op, Value, ValueId};
use types::{DType, EntityId, Shape, pointwise};

/// The operator set that the nodes are written in.
const OPSET: i64 = 17;

/// Writes a graph of the zoo.
///
/// # Errors
/// An operator, or a form of one, that the zoo does not build.
pub fn export(graph: &Graph) -> Result<Vec<u8>, String> {
    let mut body = Message::default();
    for node in graph.nodes().values() {
        let (node, constants) = translate(graph, node)?;
        body.message(1, &node);
        constants.iter().for_each(|constant| body.message(5, constant));
    }
    body.text(2, &graph.name);
    for (id, value) in graph.values().iter() {
        if let Some(tensor) = value.tensor() {
            let dtype = element(tensor.dtype())?;
            body.message(5, &initializer(&name(graph, id), dtype, tensor.shape(), &tensor.to_le_bytes()));
        }
    }
    for &id in graph.inputs() {
        body.message(11, &port(&name(graph, id), graph.value(id))?);
    }
    for output in graph.outputs() {
        body.message(12, &port(&output.name, graph.value(output.value))?);
    }

    let mut opset = Message::default();
    opset.text(1, "");
    opset.int(2, OPSET);
    let mut model = Message::default();
    model.int(1, 8);
    model.text(2, "prestow");
    model.message(7, &body);
    model.message(8, &opset);
    Ok(model.0)
}

/// The node that does what one of ours does, and constants that it needs besides.
fn translate(graph: &Graph, node: &Node) -> Result<(Message, Vec<Message>), String> {
    let refused = |what: &str| Err(format!("`{}`: {what} is not exported", node.scope));
    let output = name(graph, node.outputs[0]);
    let mut inputs: Vec<String> = node.inputs.iter().map(|&id| name(graph, id)).collect();
    let mut constants = Vec::new();
    let (kind, attributes) = match &node.op {
        Op::Conv(conv) if is_plain(&conv.epilogue) => {
            let mut attributes = window(&conv.stride, &conv.dilation, &conv.pad);
            attributes.push(int("group", conv.groups as i64));
            ("Conv", attributes)
        }
        Op::MatMul(product) if is_plain(&product.epilogue) => {
            (if product.epilogue.bias { "Gemm" } else { "MatMul" }, Vec::new())
        }
        Op::BatchNorm(norm) => ("BatchNormalization", vec![float("epsilon", norm.epsilon)]),
        Op::Unary(ir::ops::Unary(pointwise::Unary::Relu)) => ("Relu", Vec::new()),
        Op::Unary(ir::ops::Unary(pointwise::Unary::Clip { min, max })) => {
            for (part, limit) in [("min", min), ("max", max)] {
                inputs.push(format!("{output}.{part}"));
                constants.push(initializer(&inputs[inputs.len() - 1], FLOAT, &Shape::scalar(), &limit.to_le_bytes()));
            }
            ("Clip", Vec::new())
        }
        Op::Binary(ir::ops::Binary(pointwise::Binary::Add)) => ("Add", Vec::new()),
        Op::Concat(concat) => ("Concat", vec![int("axis", concat.axis as i64)]),
        Op::Softmax(softmax) if !softmax.log => ("Softmax", vec![int("axis", softmax.axis as i64)]),
        Op::Pool(pool) => {
            let mut attributes = window(&pool.stride, &pool.dilation, &pool.pad);
            attributes.push(ints("kernel_shape", pool.kernel.iter().map(|&cells| cells as i64)));
            attributes.push(int("ceil_mode", i64::from(pool.ceil)));
            if pool.kind == PoolKind::Max {
                ("MaxPool", attributes)
            } else {
                // The set's version of the operator knows no dilation, and the zoo has none.
                attributes.remove(1);
                attributes.push(int("count_include_pad", i64::from(pool.kind == PoolKind::MeanWithPadding)));
                ("AveragePool", attributes)
            }
        }
        Op::Reduce(reduce) if reduce.kind == ReduceKind::Mean => {
            let axes = ints("axes", reduce.axes.iter().map(|&axis| axis as i64));
            ("ReduceMean", vec![axes, int("keepdims", i64::from(reduce.keep))])
        }
        Op::Reshape(reshape) => {
            let extents: Vec<u8> = reshape.shape.iter().flat_map(|&extent| (extent as i64).to_le_bytes()).collect();
            inputs.push(format!("{output}.shape"));
            let shape = Shape::from([reshape.shape.rank()]);
            constants.push(initializer(&inputs[inputs.len() - 1], INT64, &shape, &extents));
            ("Reshape", Vec::new())
        }
        other => return refused(other.name()),
    };
    let mut message = Message::default();
    inputs.iter().for_each(|input| message.text(1, input));
    message.text(2, &output);
    message.text(3, &node.scope.to_string());
    message.text(4, kind);
    attributes.iter().for_each(|attribute| message.message(5, attribute));
    Ok((message, constants))
}

/// Whether nothing but a bias is added: what passes fuse is not there yet in a graph as it is built.
fn is_plain(epilogue: &Epilogue) -> bool {
    !epilogue.residual && epilogue.activation.is_empty()
}

/// What the value is called in the file: once only, and as callers know it at the borders.
fn name(graph: &Graph, id: ValueId) -> String {
    let value = graph.value(id);
    let output = graph.outputs().iter().find(|output| output.value == id);
    match output {
        Some(output) => output.name.clone(),
        None if value.role() == types::Role::Input => value.name.clone(),
        None => format!("{}:{}", id.index(), value.name),
    }
}

/// Element types of `TensorProto`.
const FLOAT: i64 = 1;
const INT64: i64 = 7;

fn element(dtype: DType) -> Result<i64, String> {
    match dtype {
        DType::F32 => Ok(FLOAT),
        DType::I64 => Ok(INT64),
        other => Err(format!("tensors of {other} are not exported")),
    }
}

fn initializer(name: &str, dtype: i64, shape: &Shape, bytes: &[u8]) -> Message {
    let mut tensor = Message::default();
    shape.iter().for_each(|&extent| tensor.int(1, extent as i64));
    tensor.int(2, dtype);
    tensor.text(8, name);
    tensor.bytes(9, bytes);
    tensor
}

/// An input or output of the graph.
fn port(name: &str, value: &Value) -> Result<Message, String> {
    let mut shape = Message::default();
    for &extent in value.ty.shape.iter() {
        let mut dimension = Message::default();
        dimension.int(1, extent as i64);
        shape.message(1, &dimension);
    }
    let mut tensor = Message::default();
    tensor.int(1, element(value.ty.dtype)?);
    tensor.message(2, &shape);
    let mut ty = Message::default();
    ty.message(1, &tensor);
    let mut port = Message::default();
    port.text(1, name);
    port.message(2, &ty);
    Ok(port)
}

/// Strides, dilations and padding, in this order.
fn window(stride: &[usize], dilation: &[usize], pad: &[[usize; 2]]) -> Vec<Message> {
    let all = |items: &[usize]| items.iter().map(|&item| item as i64).collect::<Vec<_>>();
    let sides = (0..2).flat_map(|side| pad.iter().map(move |pad| pad[side] as i64));
    vec![ints("strides", all(stride)), ints("dilations", all(dilation)), ints("pads", sides)]
}

fn int(name: &str, value: i64) -> Message {
    let mut attribute = Message::default();
    attribute.text(1, name);
    attribute.int(3, value);
    attribute.int(20, 2);
    attribute
}

fn float(name: &str, value: f32) -> Message {
    let mut attribute = Message::default();
    attribute.text(1, name);
    attribute.float(2, value);
    attribute.int(20, 1);
    attribute
}

fn ints(name: &str, values: impl IntoIterator<Item = i64>) -> Message {
    let mut attribute = Message::default();
    attribute.text(1, name);
    values.into_iter().for_each(|value| attribute.int(8, value));
    attribute.int(20, 7);
    attribute
}

/// The fields of a protobuf message, one behind the other.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn int(&mut self, field: u64, value: i64) {
        self.varint(field << 3);
        self.varint(value as u64);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while 0x80 <= value {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_of_the_zoo_is_exported_and_loads_as_it_was() {
        for spec in zoo::list().iter().filter(|spec| spec.parameters < 10_000_000) {
            let options = zoo::Options::default();
            let built = zoo::build(spec.name, 1, &mut zoo::Seeded(1), options).expect("the zoo has it").graph;
            let file = export(&built).unwrap_or_else(|error| panic!("{}: {error}", spec.name));
            let loaded = load::onnx::load(&file, None, &load::onnx::Options::default());
            let loaded = loaded.unwrap_or_else(|error| panic!("{}: {error}", spec.name));
            assert_eq!(loaded.flops(), built.flops(), "{}", spec.name);
        }
    }
}
