//! ONNX's messages, borrowed from the file: only the fields that are needed. Field numbers are those of `onnx.proto3`.
//!
//! Subgraphs stay slices until their node is translated, so that reading does not recurse.

use types::LoadBudget;

use super::LoadError;
use super::proto::{Field, Reader};

/// `ModelProto`
pub(super) struct Model<'a> {
    pub(super) ir_version: i64,
    /// The program that wrote the file.
    pub(super) producer: &'a str,
    pub(super) opsets: Vec<Opset<'a>>,
    pub(super) graph: Graph<'a>,
    /// The bytes of `graph`.
    pub(super) graph_bytes: &'a [u8],
    pub(super) functions: Vec<Function<'a>>,
}

/// `FunctionProto`: an operator that the model defines by nodes.
#[derive(Default)]
pub(super) struct Function<'a> {
    pub(super) domain: &'a str,
    pub(super) name: &'a str,
    /// Distinguishes functions of one name.
    pub(super) overload: &'a str,
    pub(super) inputs: Vec<&'a str>,
    pub(super) outputs: Vec<&'a str>,
    /// Default values of attributes.
    pub(super) defaults: Vec<Attribute<'a>>,
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) opsets: Vec<Opset<'a>>,
}

/// `OperatorSetIdProto`
pub(super) struct Opset<'a> {
    pub(super) domain: &'a str,
    pub(super) version: i64,
}

/// `GraphProto`
#[derive(Default)]
pub(super) struct Graph<'a> {
    pub(super) name: &'a str,
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) initializers: Vec<Tensor<'a>>,
    pub(super) inputs: Vec<ValueInfo<'a>>,
    pub(super) outputs: Vec<ValueInfo<'a>>,
    /// Whether there are initializers in sparse form.
    pub(super) sparse: bool,
}

/// `NodeProto`
#[derive(Clone, Default)]
pub(super) struct Node<'a> {
    pub(super) inputs: Vec<&'a str>,
    pub(super) outputs: Vec<&'a str>,
    pub(super) name: &'a str,
    pub(super) op_type: &'a str,
    pub(super) domain: &'a str,
    /// The overload of a function.
    pub(super) overload: &'a str,
    pub(super) attributes: Vec<Attribute<'a>>,
}

/// `AttributeProto`
#[derive(Clone, Default)]
pub(super) struct Attribute<'a> {
    pub(super) name: &'a str,
    pub(super) float: Option<f32>,
    pub(super) int: Option<i64>,
    pub(super) text: Option<&'a [u8]>,
    pub(super) tensor: Option<Tensor<'a>>,
    /// A `GraphProto`, unread.
    pub(super) graph: Option<&'a [u8]>,
    pub(super) floats: Vec<f32>,
    pub(super) ints: Vec<i64>,
    pub(super) texts: Vec<&'a [u8]>,
    /// `AttributeProto.AttributeType`; 0 in very old files.
    pub(super) kind: i64,
    /// In a function: the attribute of the function whose value it has.
    pub(super) of_function: Option<&'a str>,
}

/// `ValueInfoProto`
#[derive(Default)]
pub(super) struct ValueInfo<'a> {
    pub(super) name: &'a str,
    pub(super) ty: Type<'a>,
}

/// `TypeProto`
#[derive(Default)]
pub(super) enum Type<'a> {
    #[default]
    Missing,
    Tensor {
        /// `TensorProto.DataType`
        element: i64,
        /// The extents; `None` if the rank is dynamic.
        dims: Option<Vec<Dim<'a>>>,
    },
    Other(&'static str),
}

/// `TensorShapeProto.Dimension`
#[derive(Clone, Copy)]
pub(super) enum Dim<'a> {
    Unknown,
    Extent(i64),
    Named(&'a str),
}

/// `TensorProto`
#[derive(Clone, Default)]
pub(super) struct Tensor<'a> {
    pub(super) name: &'a str,
    pub(super) dims: Vec<i64>,
    /// `TensorProto.DataType`
    pub(super) element: i64,
    pub(super) raw: Option<&'a [u8]>,
    pub(super) floats: Vec<f32>,
    pub(super) int32s: Vec<i64>,
    pub(super) int64s: Vec<i64>,
    pub(super) doubles: Vec<f64>,
    pub(super) uint64s: Vec<i64>,
    /// Whether the elements are external data.
    pub(super) is_external: bool,
    /// Keys and values that locate the external data.
    pub(super) external: Vec<(&'a str, &'a str)>,
}

impl<'a> Model<'a> {
    pub(super) fn read(bytes: &'a [u8], budget: &'a LoadBudget) -> Result<Model<'a>, LoadError> {
        let mut reader = Reader::new(bytes, "the model", budget);
        let (mut ir_version, mut producer, mut graph) = (None, "", None);
        let (mut opsets, mut functions) = (Vec::new(), Vec::new());
        loop {
            // Bytes that do not begin like a model are another format, not a damaged model.
            let field = match reader.next() {
                Err(_) if ir_version.is_none() && graph.is_none() && budget.exceeded().is_none() => {
                    return Err(LoadError::NotOnnx);
                }
                field => field?,
            };
            match field {
                None => break,
                Some((1, Field::Varint(version))) => ir_version = Some(version as i64),
                // A name that is no text is of no known program.
                Some((2, Field::Bytes(bytes))) => producer = std::str::from_utf8(bytes).unwrap_or_default(),
                Some((7, field @ Field::Bytes(_))) => graph = Some(reader.slice(field)?),
                Some((8, field @ Field::Bytes(_))) => {
                    opsets.push(Opset::read(reader.nested(field, "an operator set")?)?)
                }
                Some((25, field @ Field::Bytes(_))) => {
                    functions.push(Function::read(reader.nested(field, "a function")?)?)
                }
                Some(_) => {}
            }
        }
        let ir_version = ir_version.ok_or(LoadError::NotOnnx)?;
        let graph = graph.ok_or_else(|| reader.malformed("`graph` is missing"))?;
        let graph_bytes = graph;
        let graph = Graph::read(Reader::new(graph, "the graph", budget))?;
        Ok(Model { ir_version, producer, opsets, graph, graph_bytes, functions })
    }
}

impl<'a> Function<'a> {
    fn read(mut reader: Reader<'a>) -> Result<Function<'a>, LoadError> {
        let mut function = Function::default();
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => function.name = reader.name(field)?,
                4 => function.inputs.push(reader.name(field)?),
                5 => function.outputs.push(reader.name(field)?),
                7 => function.nodes.push(Node::read(reader.nested(field, "a node")?)?),
                9 => function.opsets.push(Opset::read(reader.nested(field, "an operator set")?)?),
                10 => function.domain = reader.name(field)?,
                11 => function.defaults.push(Attribute::read(reader.nested(field, "an attribute")?)?),
                13 => function.overload = reader.name(field)?,
                _ => {}
            }
        }
        Ok(function)
    }
}

impl<'a> Opset<'a> {
    fn read(mut reader: Reader<'a>) -> Result<Opset<'a>, LoadError> {
        let mut opset = Opset { domain: "", version: 0 };
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => opset.domain = reader.name(field)?,
                2 => opset.version = reader.int(field)?,
                _ => {}
            }
        }
        Ok(opset)
    }
}

impl<'a> Graph<'a> {
    pub(super) fn read(mut reader: Reader<'a>) -> Result<Graph<'a>, LoadError> {
        let mut graph = Graph::default();
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => graph.nodes.push(Node::read(reader.nested(field, "a node")?)?),
                2 => graph.name = reader.name(field)?,
                5 => graph.initializers.push(Tensor::read(reader.nested(field, "a tensor")?)?),
                11 => graph.inputs.push(ValueInfo::read(reader.nested(field, "an input or output")?)?),
                12 => graph.outputs.push(ValueInfo::read(reader.nested(field, "an input or output")?)?),
                15 => graph.sparse = true,
                _ => {}
            }
        }
        Ok(graph)
    }
}

impl<'a> Node<'a> {
    fn read(mut reader: Reader<'a>) -> Result<Node<'a>, LoadError> {
        let mut node = Node::default();
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => node.inputs.push(reader.name(field)?),
                2 => node.outputs.push(reader.name(field)?),
                3 => node.name = reader.name(field)?,
                4 => node.op_type = reader.name(field)?,
                5 => node.attributes.push(Attribute::read(reader.nested(field, "an attribute")?)?),
                7 => node.domain = reader.name(field)?,
                8 => node.overload = reader.name(field)?,
                _ => {}
            }
        }
        Ok(node)
    }
}

impl<'a> Attribute<'a> {
    fn read(mut reader: Reader<'a>) -> Result<Attribute<'a>, LoadError> {
        let mut attribute = Attribute::default();
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => attribute.name = reader.name(field)?,
                2 => attribute.float = Some(reader.float(field)?),
                3 => attribute.int = Some(reader.int(field)?),
                4 => attribute.text = Some(reader.slice(field)?),
                5 => attribute.tensor = Some(Tensor::read(reader.nested(field, "a tensor")?)?),
                6 => attribute.graph = Some(reader.slice(field)?),
                7 => reader.floats(field, &mut attribute.floats)?,
                8 => reader.ints(field, &mut attribute.ints)?,
                9 => attribute.texts.push(reader.slice(field)?),
                20 => attribute.kind = reader.int(field)?,
                21 => attribute.of_function = Some(reader.name(field)?).filter(|name| !name.is_empty()),
                _ => {}
            }
        }
        Ok(attribute)
    }
}

impl<'a> ValueInfo<'a> {
    fn read(mut reader: Reader<'a>) -> Result<ValueInfo<'a>, LoadError> {
        let mut info = ValueInfo::default();
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => info.name = reader.name(field)?,
                2 => info.ty = Type::read(reader.nested(field, "a type")?)?,
                _ => {}
            }
        }
        Ok(info)
    }
}

impl<'a> Type<'a> {
    fn read(mut reader: Reader<'a>) -> Result<Type<'a>, LoadError> {
        let mut ty = Type::Missing;
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => ty = Type::read_tensor(reader.nested(field, "a tensor type")?)?,
                4 => ty = Type::Other("a sequence"),
                5 => ty = Type::Other("a map"),
                8 => ty = Type::Other("a sparse tensor"),
                9 => ty = Type::Other("an optional"),
                _ => {}
            }
        }
        Ok(ty)
    }

    fn read_tensor(mut reader: Reader<'a>) -> Result<Type<'a>, LoadError> {
        let (mut element, mut dims) = (0, None);
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => element = reader.int(field)?,
                2 => dims = Some(Dim::read_all(reader.nested(field, "a shape")?)?),
                _ => {}
            }
        }
        Ok(Type::Tensor { element, dims })
    }
}

impl<'a> Dim<'a> {
    fn read_all(mut reader: Reader<'a>) -> Result<Vec<Dim<'a>>, LoadError> {
        let mut dims = Vec::new();
        while let Some((number, field)) = reader.next()? {
            if number == 1 {
                dims.push(Dim::read(reader.nested(field, "a dimension")?)?);
            }
        }
        Ok(dims)
    }

    fn read(mut reader: Reader<'a>) -> Result<Dim<'a>, LoadError> {
        let mut dim = Dim::Unknown;
        while let Some((number, field)) = reader.next()? {
            match number {
                // Exporters write 0 and -1 for dynamic dimensions.
                1 => dim = Some(reader.int(field)?).filter(|&extent| 0 < extent).map_or(Dim::Unknown, Dim::Extent),
                2 => dim = Dim::Named(reader.name(field)?),
                _ => {}
            }
        }
        Ok(dim)
    }
}

impl<'a> Tensor<'a> {
    pub(super) fn read(mut reader: Reader<'a>) -> Result<Tensor<'a>, LoadError> {
        let mut tensor = Tensor::default();
        while let Some((number, field)) = reader.next()? {
            match number {
                1 => reader.ints(field, &mut tensor.dims)?,
                2 => tensor.element = reader.int(field)?,
                3 => return Err(reader.malformed("segmented tensors are not supported")),
                4 => reader.floats(field, &mut tensor.floats)?,
                5 => reader.ints(field, &mut tensor.int32s)?,
                7 => reader.ints(field, &mut tensor.int64s)?,
                8 => tensor.name = reader.name(field)?,
                9 => tensor.raw = Some(reader.slice(field)?),
                10 => reader.doubles(field, &mut tensor.doubles)?,
                11 => reader.ints(field, &mut tensor.uint64s)?,
                13 => {
                    let (key, text) = read_entry(reader.nested(field, "a reference to external data")?)?;
                    if text.contains('\n') {
                        return Err(
                            reader.malformed(&format!("external data must be in a path of one line, got {text:?}"))
                        );
                    }
                    tensor.external.push((key, text));
                }
                14 => tensor.is_external = reader.int(field)? == 1,
                _ => {}
            }
        }
        Ok(tensor)
    }
}

/// `StringStringEntryProto`
pub(super) fn read_entry<'a>(mut reader: Reader<'a>) -> Result<(&'a str, &'a str), LoadError> {
    let mut entry = ("", "");
    while let Some((number, field)) = reader.next()? {
        match number {
            1 => entry.0 = reader.text(field)?,
            2 => entry.1 = reader.text(field)?,
            _ => {}
        }
    }
    Ok(entry)
}
