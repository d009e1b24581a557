//! Writes small ONNX models, and changes the fields of real ones. Field numbers are those of `onnx.proto`.

use types::{DType, Tensor};

/// A message being written.
#[derive(Clone, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    /// An empty message.
    pub fn new() -> Message {
        Message::default()
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Appends a varint field.
    pub fn int(mut self, field: u64, value: i64) -> Message {
        self.raw_varint(field << 3);
        self.raw_varint(value as u64);
        self
    }

    /// Appends a 32-bit float field.
    pub fn float(mut self, field: u64, value: f32) -> Message {
        self.raw_varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a length-delimited field.
    pub fn bytes(mut self, field: u64, bytes: &[u8]) -> Message {
        self.raw_varint(field << 3 | 2);
        self.raw_varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    /// Appends a string field.
    pub fn text(self, field: u64, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    /// Appends an embedded message.
    pub fn message(self, field: u64, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }
}

/// A dimension of an input.
#[derive(Clone, Copy)]
pub enum Dim {
    /// `dim_value`.
    Is(i64),
    /// `dim_param`.
    Named(&'static str),
    /// No value.
    Open,
}

/// An attribute's value.
#[derive(Clone)]
pub enum Attr {
    /// `i`.
    Int(i64),
    /// `ints`.
    Ints(Vec<i64>),
    /// `f`.
    Float(f32),
    /// `floats`.
    Floats(Vec<f32>),
    /// `s`.
    Text(&'static str),
    /// `strings`.
    Texts(Vec<&'static str>),
    /// `t`.
    Tensor(Tensor),
    /// `g`.
    Graph(Message),
}

/// `NodeProto`
pub fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Attr)]) -> Message {
    let mut node = Message::new();
    for input in inputs {
        node = node.text(1, input);
    }
    for output in outputs {
        node = node.text(2, output);
    }
    node = node.text(4, op);
    for (name, value) in attributes {
        node = node.message(5, &attribute(name, value));
    }
    node
}

fn attribute(name: &str, value: &Attr) -> Message {
    let attribute = Message::new().text(1, name);
    match value {
        Attr::Float(value) => attribute.float(2, *value).int(20, 1),
        Attr::Floats(values) => values.iter().fold(attribute, |attribute, &value| attribute.float(7, value)).int(20, 6),
        Attr::Int(value) => attribute.int(3, *value).int(20, 2),
        Attr::Text(value) => attribute.text(4, value).int(20, 3),
        Attr::Texts(values) => values.iter().fold(attribute, |attribute, value| attribute.text(9, value)).int(20, 8),
        Attr::Tensor(value) => attribute.message(5, &tensor("", value)).int(20, 4),
        Attr::Graph(value) => attribute.message(6, value).int(20, 5),
        Attr::Ints(values) => values.iter().fold(attribute, |attribute, &value| attribute.int(8, value)).int(20, 7),
    }
}

/// `TensorProto`
pub fn tensor(name: &str, tensor: &Tensor) -> Message {
    let dims = tensor.shape().iter().fold(Message::new(), |message, &extent| message.int(1, extent as i64));
    dims.int(2, export::data_type(tensor.dtype())).text(8, name).bytes(9, &tensor.to_le_bytes())
}

/// `ValueInfoProto`
pub fn info(name: &str, dtype: DType, dims: &[Dim]) -> Message {
    let shape = dims.iter().fold(Message::new(), |shape, dim| {
        let dim = match dim {
            Dim::Is(extent) => Message::new().int(1, *extent),
            Dim::Named(name) => Message::new().text(2, name),
            Dim::Open => Message::new(),
        };
        shape.message(1, &dim)
    });
    let ty = Message::new().message(1, &Message::new().int(1, export::data_type(dtype)).message(2, &shape));
    Message::new().text(1, name).message(2, &ty)
}

/// A model in parts.
#[derive(Clone)]
pub struct Model {
    /// Version of the file format.
    pub ir_version: i64,
    /// Version of the default operator set.
    pub opset: i64,
    /// `NodeProto`s.
    pub nodes: Vec<Message>,
    /// `TensorProto`s.
    pub initializers: Vec<Message>,
    /// `ValueInfoProto`s.
    pub inputs: Vec<Message>,
    /// Names of the outputs.
    pub outputs: Vec<&'static str>,
}

impl Model {
    /// A model with one output.
    pub fn new(opset: i64, inputs: Vec<Message>, nodes: Vec<Message>, output: &'static str) -> Model {
        Model { ir_version: 8, opset, nodes, initializers: Vec::new(), inputs, outputs: vec![output] }
    }

    /// Adds an initializer.
    pub fn with(mut self, name: &str, value: &Tensor) -> Model {
        self.initializers.push(tensor(name, value));
        self
    }

    /// `GraphProto`
    pub fn graph(&self) -> Message {
        let mut graph = self.nodes.iter().fold(Message::new(), |graph, node| graph.message(1, node)).text(2, "test");
        for initializer in &self.initializers {
            graph = graph.message(5, initializer);
        }
        for input in &self.inputs {
            graph = graph.message(11, input);
        }
        for output in &self.outputs {
            graph = graph.message(12, &Message::new().text(1, output));
        }
        graph
    }

    /// The file.
    pub fn write(&self) -> Vec<u8> {
        let opset = Message::new().text(1, "").int(2, self.opset);
        Message::new().int(1, self.ir_version).message(7, &self.graph()).message(8, &opset).0
    }
}

/// The length-delimited fields of a valid message: number and payload.
pub fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                varint(&mut bytes);
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            wire => panic!("wire type {wire}"),
        };
        if key & 7 == 2 {
            fields.push((key >> 3, &bytes[..length]));
        }
        bytes = &bytes[length..];
    }
    fields
}

/// The names of a model's inputs, initializers apart.
pub fn input_names(model: &[u8]) -> Vec<String> {
    let graph = graph_of(model);
    let name = |message: &[u8], field: u64| {
        let found = fields(message).into_iter().find(|(number, _)| *number == field);
        found.map_or(String::new(), |(_, text)| String::from_utf8_lossy(text).into_owned())
    };
    let named = |number: u64, field: u64| -> Vec<String> {
        fields(graph).iter().filter(|(got, _)| *got == number).map(|(_, message)| name(message, field)).collect()
    };
    let initializers = named(5, 8);
    named(11, 1).into_iter().filter(|name| !initializers.contains(name)).collect()
}

fn graph_of(model: &[u8]) -> &[u8] {
    fields(model).into_iter().find(|(number, _)| *number == 7).map_or(&[], |(_, graph)| graph)
}

/// The model with inputs fixed to tensors: each becomes an initializer, as old files had it.
pub fn fix_inputs(model: &[u8], fixed: &[(&str, &Tensor)]) -> Vec<u8> {
    with_initializers(model, fixed.iter().map(|(name, value)| tensor(name, value)))
}

/// The model with inputs fixed to serialized `TensorProto`s, whose element types may be any.
pub fn fix_inputs_to(model: &[u8], fixed: &[(&str, &[u8])]) -> Vec<u8> {
    // Of a field that is there twice, the last one counts.
    with_initializers(model, fixed.iter().map(|(name, value)| Message(value.to_vec()).text(8, name)))
}

fn with_initializers(model: &[u8], initializers: impl Iterator<Item = Message>) -> Vec<u8> {
    let mut graph = Message(graph_of(model).to_vec());
    for initializer in initializers {
        graph = graph.message(5, &initializer);
    }
    let mut out = Message::new().int(1, 8).message(7, &graph);
    for (number, payload) in fields(model) {
        if number == 8 {
            out = out.bytes(8, payload);
        }
    }
    out.0
}
