//! The text form of a graph: one line a value or node, printed by [`print()`], read back by [`parse`].
//!
//! ```text
//! graph "tiny"
//! v0: f32[8] = input "x"
//! v1: f32[2] = weight "w" {1,-0.5}
//! v2: f32[64,3,7,7] = weight "conv1.weight" #0f3c5a9d11e0b742
//! v3: f32[8] = unary(v0) "relu" at "stage1/relu"
//! v4: f32[8] = state "last" {0,0,0,0,0,0,0,0}
//! output "y" v3
//! update v4 v3
//! ```
//!
//! Small tensors are part of the text, large tensors of equal elements are `{0.5 ..}`, others are the hash of their bytes, which
//! the caller of [`parse`] resolves. Attributes are the op's JSON. Names, layouts and roles follow if they are not the default.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value as Json;
use smallvec::SmallVec;
use types::{DType, Layout, Map, Role, Scope, Shape, Tensor};

use crate::{Graph, Op, TensorType, ValueDef, ValueId};

/// Tensors with at most this many elements are part of the text.
pub const INLINE_ELEMENTS: usize = 16;

/// The identity of a large tensor in the text: the XXH3 hash of its dtype, shape and little-endian bytes.
pub fn tensor_hash(tensor: &Tensor) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(TensorType::of(tensor).to_string().as_bytes());
    hasher.update(&tensor.to_le_bytes());
    hasher.digest()
}

/// Prints a graph.
pub fn print(graph: &Graph) -> String {
    let mut text = format!("graph {}\n", quoted(&graph.name));
    let mut number: Map<ValueId, Option<usize>> = Map::filled(graph.values().len(), None);
    let mut next = 0;
    for &id in graph.inputs() {
        define(&mut text, graph, id, &mut number, &mut next);
    }
    for &id in graph.states() {
        define(&mut text, graph, id, &mut number, &mut next);
    }
    for node in graph.nodes().values() {
        for &id in &node.inputs {
            if graph.value(id).tensor().is_some() && number[id].is_none() {
                define(&mut text, graph, id, &mut number, &mut next);
            }
        }
        let outputs: Vec<String> = node
            .outputs
            .iter()
            .map(|&id| {
                number[id] = Some(next);
                next += 1;
                format!("v{}: {}", next - 1, graph.ty(id))
            })
            .collect();
        let inputs: Vec<String> = node
            .inputs
            .iter()
            .map(|&id| number[id].map_or_else(|| "?".into(), |number| format!("v{number}")))
            .collect();
        let attributes = match serde_json::to_value(&node.op) {
            Ok(Json::Object(fields)) => fields.into_iter().next().map_or(Json::Null, |(_, attributes)| attributes),
            _ => Json::Null,
        };
        let _ = write!(
            text,
            "{} = {}({}) {attributes} at {}",
            outputs.join(", "),
            node.op.name(),
            inputs.join(", "),
            quoted(node.scope.as_str())
        );
        let names = || node.outputs.iter().map(|&id| &graph.value(id).name);
        if names().enumerate().any(|(output, name)| *name != Graph::output_name(&node.scope, output)) {
            let _ = write!(text, " named {}", names().map(|name| quoted(name)).collect::<Vec<_>>().join(", "));
        }
        let value = graph.value(node.outputs[0]);
        if value.layout != Layout::default() {
            let _ = write!(text, " layout {}", value.layout);
        }
        if node.outputs.iter().any(|&id| graph.value(id).result_role.is_some()) {
            let roles: Vec<&str> = node.outputs.iter().map(|&id| graph.value(id).role().name()).collect();
            let _ = write!(text, " role {}", roles.join(", "));
        }
        text.push('\n');
    }
    for output in graph.outputs() {
        if number[output.value].is_none() {
            define(&mut text, graph, output.value, &mut number, &mut next);
        }
        let value = number[output.value].unwrap_or_default();
        let _ = match output.state() {
            None => writeln!(text, "output {} v{value}", quoted(&output.name)),
            Some(state) => writeln!(text, "update v{} v{value}", number[state].unwrap_or_default()),
        };
    }
    text
}

fn define(text: &mut String, graph: &Graph, id: ValueId, number: &mut Map<ValueId, Option<usize>>, next: &mut usize) {
    let value = graph.value(id);
    number[id] = Some(*next);
    let (kind, tensor) = match &value.source {
        ValueDef::Weight(tensor) => ("weight", Some(tensor)),
        ValueDef::Constant(tensor) => ("constant", Some(tensor)),
        ValueDef::State { initial, role } => (state_kind(*role), Some(initial)),
        ValueDef::Input | ValueDef::Node { .. } => ("input", None),
    };
    let _ = write!(text, "v{next}: {} = {kind} {}", value.ty, quoted(&value.name));
    if let Some(tensor) = tensor {
        if tensor.elements() <= INLINE_ELEMENTS {
            let items: Vec<String> = match tensor.dtype().is_float() {
                true => tensor.to_f64().iter().map(f64::to_string).collect(),
                false => tensor.to_i64().iter().map(i64::to_string).collect(),
            };
            let _ = write!(text, " {{{}}}", items.join(","));
        } else if let Some(item) = repeated(tensor) {
            let _ = write!(text, " {{{item} ..}}");
        } else {
            let _ = write!(text, " #{:016x}", tensor_hash(tensor));
        }
    }
    if value.layout != Layout::default() {
        let _ = write!(text, " layout {}", value.layout);
    }
    text.push('\n');
    *next += 1;
}

/// The word for a state of a role.
fn state_kind(role: Role) -> &'static str {
    match role {
        Role::Weight => "trained_weight",
        Role::OptimizerState => "optimizer_state",
        _ => "state",
    }
}

/// The element of a tensor of equal elements.
fn repeated(tensor: &Tensor) -> Option<String> {
    let first = tensor.to_f64().first().copied()?;
    let equal = tensor.to_f64().iter().all(|item| item.to_bits() == first.to_bits());
    match tensor.dtype().is_float() {
        true => equal.then(|| first.to_string()),
        false => tensor.to_i64().first().filter(|_| equal).map(i64::to_string),
    }
}

fn quoted(text: &str) -> String {
    Json::String(text.to_string()).to_string()
}

/// A syntax or type error in the text form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// The requirement and the text found.
    pub message: String,
}

/// Parses a graph. `resolve` returns a large tensor by its [`tensor_hash`].
///
/// # Errors
/// The first line with a syntax error, an op that rejects its operands, or a tensor that is not found.
pub fn parse(text: &str, mut resolve: impl FnMut(u64) -> Option<Arc<Tensor>>) -> Result<Graph, ParseError> {
    let mut graph = Graph::default();
    let mut known: BTreeMap<String, ValueId> = BTreeMap::new();
    let mut outputs = Vec::new();
    for (ix, line) in text.lines().enumerate() {
        let mut reader = Reader { rest: line.trim() };
        if reader.rest.is_empty() {
            continue;
        }
        parse_line(&mut reader, &mut graph, &mut known, &mut outputs, &mut resolve)
            .map_err(|message| ParseError { line: ix + 1, message })?;
    }
    graph.set_outputs(outputs);
    Ok(graph)
}

fn parse_line(
    reader: &mut Reader,
    graph: &mut Graph,
    known: &mut BTreeMap<String, ValueId>,
    outputs: &mut Vec<(String, ValueId)>,
    resolve: &mut impl FnMut(u64) -> Option<Arc<Tensor>>,
) -> Result<(), String> {
    if reader.take("graph ") {
        graph.name = reader.string()?;
        return Ok(());
    }
    if reader.take("output ") {
        let name = reader.string()?;
        let value = reader.word();
        outputs.push((
            name,
            *known.get(value).ok_or_else(|| format!("value `{value}` must be defined on an earlier line"))?,
        ));
        return Ok(());
    }
    if reader.take("update ") {
        let mut value = || {
            let word = reader.word();
            known.get(word).copied().ok_or_else(|| format!("`{word}` is not defined"))
        };
        let (state, next) = (value()?, value()?);
        if !graph.states().contains(&state) {
            return Err("only a state has an update".into());
        }
        graph.update_state(state, next);
        return Ok(());
    }
    let mut defined: Vec<(String, TensorType)> = Vec::new();
    loop {
        let name = reader.until(':')?.to_string();
        let ty = parse_type(reader.word())?;
        defined.push((name, ty));
        if reader.take("=") {
            break;
        }
    }
    let kind = reader.identifier().to_string();
    let (name, ty) = defined[0].clone();
    match kind.as_str() {
        "input" => {
            let id = graph.add_input(&reader.string()?, ty.dtype, ty.shape);
            parse_layout(reader, graph, id)?;
            known.insert(name, id);
        }
        "weight" | "constant" | "state" | "optimizer_state" | "trained_weight" => {
            let value_name = reader.string()?;
            let tensor = parse_tensor(reader, &ty, resolve)?;
            if TensorType::of(&tensor) != ty {
                return Err(format!("the tensor must be {ty}, got {}", TensorType::of(&tensor)));
            }
            let id = match kind.as_str() {
                "weight" => graph.add_weight(&value_name, tensor),
                "state" => graph.add_state(&value_name, tensor, Role::State),
                "optimizer_state" => graph.add_state(&value_name, tensor, Role::OptimizerState),
                "trained_weight" => graph.add_state(&value_name, tensor, Role::Weight),
                _ => graph.add_constant(&value_name, tensor),
            };
            parse_layout(reader, graph, id)?;
            known.insert(name, id);
        }
        op => {
            let operands = reader.until(')')?.trim_start().trim_start_matches('(').to_string();
            let inputs: Result<SmallVec<[ValueId; 4]>, String> = operands
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(|name| {
                    known.get(name).copied().ok_or_else(|| format!("value `{name}` must be defined on an earlier line"))
                })
                .collect();
            let attributes = reader.json()?;
            let tagged = Json::Object([(op.to_string(), attributes)].into_iter().collect());
            let op: Op = serde_json::from_value(tagged).map_err(|error| format!("`{op}`: {error}"))?;
            if !reader.take("at ") {
                return Err("expected `at \"scope\"` after the attributes".into());
            }
            let scope = Scope::new(&reader.string()?);
            let ids = graph.add(op, &inputs?, scope).map_err(|refusal| refusal.to_string())?;
            if reader.take("named ") {
                for (ix, &id) in ids.iter().enumerate() {
                    if 0 < ix && !reader.take(",") {
                        return Err(format!("expected {} names, got {ix}", ids.len()));
                    }
                    graph.value_mut(id).name = reader.string()?;
                }
            }
            parse_layout(reader, graph, ids[0])?;
            parse_roles(reader, graph, &ids)?;
            for ((name, ty), &id) in defined.into_iter().zip(&ids) {
                if *graph.ty(id) != ty {
                    return Err(format!("{name} must be {}, got {ty}", graph.ty(id)));
                }
                known.insert(name, id);
            }
        }
    }
    if reader.rest.is_empty() { Ok(()) } else { Err(format!("expected the end of the line, got `{}`", reader.rest)) }
}

fn parse_type(text: &str) -> Result<TensorType, String> {
    let text = text.trim_end_matches(',');
    let (dtype, shape) =
        text.split_once('[').ok_or_else(|| format!("expected a type such as `f32[2,3]`, got `{text}`"))?;
    let dtype: DType = dtype.parse()?;
    let extents = shape.trim_end_matches(']').split(',').filter(|part| !part.is_empty());
    let shape: Result<Shape, _> = extents.map(str::parse).collect();
    Ok(TensorType { dtype, shape: shape.map_err(|_| format!("expected a type such as `f32[2,3]`, got `{text}`"))? })
}

fn parse_tensor(
    reader: &mut Reader,
    ty: &TensorType,
    resolve: &mut impl FnMut(u64) -> Option<Arc<Tensor>>,
) -> Result<Arc<Tensor>, String> {
    if reader.take("#") {
        let word = reader.word();
        let hash = u64::from_str_radix(word, 16)
            .map_err(|_| format!("expected a hash of 16 hexadecimal digits, got `#{word}`"))?;
        return resolve(hash).ok_or_else(|| format!("tensor `#{word}` must be known to the caller"));
    }
    let items = reader.until('}')?.trim_start_matches('{');
    // `{0.5 ..}` repeats its element.
    let (items, repeat) = match items.trim().strip_suffix("..") {
        Some(item) => (item, ty.shape.elements()),
        None => (items, 1),
    };
    let items = items.split(',').map(str::trim).filter(|item| !item.is_empty());
    let items = items.flat_map(|item| std::iter::repeat_n(item, repeat));
    let wrong = |item: &str| format!("expected a number, got `{item}`");
    let tensor = match ty.dtype.is_float() {
        true => Tensor::new(
            ty.shape.clone(),
            items.map(|item| item.parse::<f64>().map_err(|_| wrong(item))).collect::<Result<Vec<_>, _>>()?,
        ),
        false => Tensor::new(
            ty.shape.clone(),
            items.map(|item| item.parse::<i64>().map_err(|_| wrong(item))).collect::<Result<Vec<_>, _>>()?,
        ),
    };
    Ok(Arc::new(tensor.map_err(|error| error.to_string())?.cast(ty.dtype)))
}

fn parse_layout(reader: &mut Reader, graph: &mut Graph, id: ValueId) -> Result<(), String> {
    if reader.take("layout ") {
        let word = reader.word();
        let blocked = word.strip_prefix("channels_blocked(").and_then(|rest| rest.strip_suffix(')'));
        graph.value_mut(id).layout = match (word, blocked.map(str::parse)) {
            (_, Some(Ok(block))) => Layout::ChannelsBlocked(block),
            ("row_major", None) => Layout::RowMajor,
            ("channels_last", None) => Layout::ChannelsLast,
            _ => return Err(format!("expected a layout such as `channels_last`, got `{word}`")),
        };
    }
    Ok(())
}

fn parse_roles(reader: &mut Reader, graph: &mut Graph, ids: &[ValueId]) -> Result<(), String> {
    if reader.take("role ") {
        for (ix, &id) in ids.iter().enumerate() {
            let word = reader.word().trim_end_matches(',');
            let role = Role::ALL.into_iter().find(|role| role.name() == word);
            let role =
                role.ok_or_else(|| format!("expected {} roles such as `weight_gradient`, got {ix}", ids.len()))?;
            graph.value_mut(id).result_role = Some(role).filter(|role| *role != Role::Activation);
        }
    }
    Ok(())
}

/// The rest of a line.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, prefix: &str) -> bool {
        match self.rest.trim_start().strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest.trim_start();
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        self.rest = rest[end..].trim_start();
        &rest[..end]
    }

    fn identifier(&mut self) -> &'a str {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }

    fn until(&mut self, end: char) -> Result<&'a str, String> {
        let at = self.rest.find(end).ok_or_else(|| format!("expected `{end}`"))?;
        let before = &self.rest[..at];
        self.rest = self.rest[at + end.len_utf8()..].trim_start();
        Ok(before)
    }

    fn json(&mut self) -> Result<Json, String> {
        let mut stream = serde_json::Deserializer::from_str(self.rest).into_iter::<Json>();
        let value =
            stream.next().ok_or("expected JSON, got the end of the line")?.map_err(|error| error.to_string())?;
        self.rest = self.rest[stream.byte_offset()..].trim_start();
        Ok(value)
    }

    fn string(&mut self) -> Result<String, String> {
        match self.json()? {
            Json::String(text) => Ok(text),
            other => Err(format!("expected a name in quotes, got `{other}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use types::recurrent::{Cell, Direction};

    use super::*;
    use crate::ops::Recurrent;

    #[test]
    fn node_with_several_results_round_trips_with_names() {
        let mut graph = Graph::new("several");
        let shapes: [&[usize]; 4] = [&[3, 1, 8], &[1, 8, 2], &[1, 1, 2], &[1, 1, 2]];
        let inputs = shapes.map(|shape| graph.add_input("x", DType::F32, Shape::from(shape)));
        let op = Op::Recurrent(Recurrent { cell: Cell::LSTM, direction: Direction::Forward });
        let outputs = graph.add(op, &inputs, Scope::new("lstm")).expect("the operands fit");
        graph.set_outputs(vec![("y".into(), outputs[0]), ("c".into(), outputs[2])]);
        let usual = print(&graph);
        assert!(!usual.contains("named"), "{usual}");
        graph.value_mut(outputs[2]).name = "last".into();
        for text in [usual, print(&graph)] {
            assert_eq!(print(&parse(&text, |_| None).expect("what was printed is read")), text);
        }
        let parsed = parse(&print(&graph), |_| None).expect("what was printed is read");
        assert_eq!(parsed, graph);
    }

    #[test]
    fn states_of_each_role_and_their_updates_read_back() {
        let mut graph = Graph::new("states");
        let zeros = || Tensor::from_fn(Shape::from([2]), |_| 0.0f32);
        let x = graph.add_input("x", DType::F32, Shape::from([2]));
        graph.set_outputs(vec![("y".into(), x)]);
        for (name, role) in [("s", Role::State), ("m", Role::OptimizerState), ("w", Role::Weight)] {
            let state = graph.add_state(name, zeros(), role);
            graph.update_state(state, x);
        }
        let text = print(&graph);
        assert!(text.contains("v2: f32[2] = optimizer_state \"m\" {0,0}\n"), "{text}");
        assert!(text.ends_with("update v1 v0\nupdate v2 v0\nupdate v3 v0\n"), "{text}");
        assert_eq!(parse(&text, |_| None), Ok(graph));
    }
}
