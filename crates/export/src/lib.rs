//! Graphs as ONNX files with their weights, for other runtimes: [`onnx`].
//!
//! - Each node becomes one ONNX node if ONNX has the operator, otherwise a few. Every graph of a loader or the zoo can be
//!   exported. Nodes that passes make for kernels (fused chains, blocked layouts) are refused by name.
//! - Names of inputs, outputs and parameters are kept; scopes become names of nodes.
//! - Field numbers are those of `onnx.proto`; operators are those of opset 20, or of 26 for a
//!   graph with `BitCast`.
//!
//! ```text
//! graph -> names -> nodes (translate, by operator) -> messages
//! ```

mod attribute;
mod message;
mod names;
mod pointwise;
mod resize;
mod translate;

use ir::{Graph, Value};
use types::{DType, Scope, Shape, Tensor};

use message::Message;
use names::Names;
use translate::Translator;

/// The opset of the nodes, and the IR version released with it.
const OPSET: [i64; 2] = [20, 9];
/// Those of graphs with [`BitCast`](ir::ops::BitCast), which is an operator since then.
const OPSET_OF_BIT_CAST: [i64; 2] = [26, 13];
/// The most bytes of a protobuf message.
const LARGEST: usize = i32::MAX as usize;

/// The reason for which a graph cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// ONNX has no operators for a node.
    #[error("`{scope}`: {what} has no form in ONNX")]
    Node {
        /// The scope of the node.
        scope: Scope,
        /// The operator and the property that ONNX lacks.
        what: String,
    },
    /// ONNX has no state between runs.
    #[error("ONNX has no state: `{0}` is kept between runs; make it an input and an output")]
    State(String),
    /// The file exceeds the limit of protobuf.
    #[error("an ONNX file must be below 2 GiB, got {0} bytes")]
    TooLarge(usize),
}

/// Writes a graph as a serialized `ModelProto`.
///
/// # Errors
/// A node that only passes make, one that ONNX cannot express, more than 2 GiB.
pub fn onnx(graph: &Graph) -> Result<Vec<u8>, ExportError> {
    if let Some(&state) = graph.states().first() {
        return Err(ExportError::State(graph.value(state).name.clone()));
    }
    let size: usize =
        graph.values().values().filter_map(|value| value.tensor()).map(|tensor| tensor.size().0 as usize).sum();
    if LARGEST < size {
        return Err(ExportError::TooLarge(size));
    }
    let names = Names::new(graph);
    let mut body = Message::default();
    let mut translator = Translator::new(graph, &names);
    for node in graph.nodes().values() {
        for made in translator.translate(node)? {
            body.message(1, &made);
        }
    }
    for (output, source) in names.copies() {
        body.message(1, &translate::identity(source, output));
    }
    body.text(2, &graph.name);
    for (name, tensor) in translator.constants() {
        body.message(5, &initializer(name, tensor));
    }
    for (id, value) in graph.values().iter() {
        if let Some(tensor) = value.tensor() {
            body.message(5, &initializer(names.of(id), tensor));
        }
    }
    for &id in graph.inputs() {
        body.message(11, &port(names.of(id), graph.value(id)));
    }
    for output in graph.outputs() {
        body.message(12, &port(&output.name, graph.value(output.value)));
    }

    let has_bit_cast = graph.nodes().values().any(|node| matches!(node.op, ir::Op::BitCast(_)));
    let [version, ir_version] = if has_bit_cast { OPSET_OF_BIT_CAST } else { OPSET };
    let mut opset = Message::default();
    opset.text(1, "");
    opset.int(2, version);
    let mut model = Message::default();
    model.int(1, ir_version);
    model.text(2, "prestow");
    model.text(3, env!("CARGO_PKG_VERSION"));
    model.message(7, &body);
    model.message(8, &opset);
    let bytes = model.into_bytes();
    if LARGEST < bytes.len() { Err(ExportError::TooLarge(bytes.len())) } else { Ok(bytes) }
}

/// The number of a dtype in `TensorProto.DataType`.
pub fn data_type(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::Bf16 => 16,
    }
}

fn initializer(name: &str, tensor: &Tensor) -> Message {
    let mut message = Message::default();
    tensor.shape().iter().for_each(|&extent| message.int(1, extent as i64));
    message.int(2, data_type(tensor.dtype()));
    message.text(8, name);
    message.bytes(9, &tensor.to_le_bytes());
    message
}

/// An input or output of the graph.
fn port(name: &str, value: &Value) -> Message {
    let mut tensor = Message::default();
    tensor.int(1, data_type(value.ty.dtype));
    tensor.message(2, &extents(&value.ty.shape));
    let mut ty = Message::default();
    ty.message(1, &tensor);
    let mut port = Message::default();
    port.text(1, name);
    port.message(2, &ty);
    port
}

fn extents(shape: &Shape) -> Message {
    let mut extents = Message::default();
    for &extent in shape.iter() {
        let mut dimension = Message::default();
        dimension.int(1, extent as i64);
        extents.message(1, &dimension);
    }
    extents
}
