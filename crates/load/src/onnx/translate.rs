//! The walk over the model's nodes: names become operands, and all that cannot be translated is told at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ir::ops::{Concat, Slice};
use ir::{Graph, Refusal};
use types::Scope;

use super::bind::bind;
use super::call::{Call, Called};
use super::model::{self, Model, Node};
use super::{LoadError, Options, Unsupported, ops, tensor};
use crate::build::{self, Builder, Operand, axis};

/// The newest opset of the default domain that the operators know.
const OPSET_NEWEST: i64 = 22;

/// All loops of a model together are unrolled up to so many turns: loops in loops multiply theirs.
const TURNS_MAX: usize = 4096;

/// Subgraphs in subgraphs are followed this deep.
const DEPTH_MAX: usize = 8;

/// Translates a model.
pub(super) fn translate(model: &Model, directory: Option<&Path>, options: &Options) -> Result<Graph, LoadError> {
    let graph = &model.graph;
    let mut walk = Walk {
        builder: Builder::new(graph.name),
        names: BTreeMap::new(),
        defined: Vec::new(),
        opset: default_opset(model)?,
        opsets: model.opsets.iter().map(|opset| (opset.domain, opset.version)).collect(),
        directory,
        unsupported: Vec::new(),
        depth: 0,
        turns: 0,
    };
    // Since IR 4 inputs and initializers exclude each other; before, every initializer was also an input.
    let initializers: BTreeSet<&str> = graph.initializers.iter().map(|tensor| tensor.name).collect();
    let infos: Vec<_> = graph.inputs.iter().filter(|info| !initializers.contains(info.name)).collect();
    let inputs = match bind(&infos, options) {
        Ok(inputs) => inputs,
        // A model that has no translation anyway had better say so first.
        Err(error) => return Err(walk.unknown_operators(graph).unwrap_or(error)),
    };
    for input in inputs {
        let id = walk.builder.graph.add_input(input.name, input.dtype, input.shape);
        walk.define(input.name, Entry::Operand(Operand::Value(id)))?;
    }
    let outputs = walk.graph(graph)?;
    if !walk.unsupported.is_empty() {
        return Err(LoadError::Unsupported(walk.unsupported));
    }
    let mut named: Vec<(String, ir::ValueId)> = Vec::new();
    for (info, entry) in graph.outputs.iter().zip(outputs) {
        let Entry::Operand(operand) = entry else {
            unreachable!("what is refused is in the list of unsupported nodes")
        };
        if named.iter().any(|(name, _)| name == info.name) {
            return Err(malformed(format!("two outputs are named `{}`", info.name)));
        }
        named.push((info.name.to_string(), walk.builder.value(operand)));
    }
    if named.is_empty() {
        return Err(malformed("the graph has no outputs".to_string()));
    }
    walk.builder.graph.set_outputs(named);
    Ok(walk.builder.graph)
}

/// What a name stands for.
#[derive(Clone, Copy)]
enum Entry {
    Operand(Operand),
    /// What a node that was refused would have yielded.
    Refused,
}

struct Walk<'a> {
    builder: Builder,
    names: BTreeMap<&'a str, Entry>,
    /// The keys of `names`, in the order of definition.
    defined: Vec<&'a str>,
    /// The version of the default domain.
    opset: i64,
    opsets: BTreeMap<&'a str, i64>,
    directory: Option<&'a Path>,
    unsupported: Vec<Unsupported>,
    depth: usize,
    /// Turns of loops so far.
    turns: usize,
}

impl<'a> Walk<'a> {
    /// Initializers, nodes and outputs of a graph whose inputs are defined.
    fn graph(&mut self, graph: &model::Graph<'a>) -> Result<Vec<Entry>, LoadError> {
        if graph.sparse {
            return Err(malformed("sparse initializers are not supported".to_string()));
        }
        for proto in &graph.initializers {
            let tensor = tensor::read(proto, self.directory).map_err(|problem| problem.of(proto.name))?;
            let is_learned = tensor.dtype().is_float();
            let operand = self.builder.known(proto.name, tensor, is_learned);
            self.define(proto.name, Entry::Operand(operand))?;
        }
        for (ix, node) in graph.nodes.iter().enumerate() {
            self.node(ix, node)?;
        }
        graph.outputs.iter().map(|info| self.lookup(info.name, "an output of the graph")).collect()
    }

    fn define(&mut self, name: &'a str, entry: Entry) -> Result<(), LoadError> {
        self.defined.push(name);
        match self.names.insert(name, entry) {
            None => Ok(()),
            Some(_) => Err(malformed(format!("`{name}` is defined twice"))),
        }
    }

    fn lookup(&self, name: &str, reader: &str) -> Result<Entry, LoadError> {
        let missing = || malformed(format!("{reader} reads `{name}`, which nothing in front of it yields"));
        self.names.get(name).copied().ok_or_else(missing)
    }

    fn node(&mut self, ix: usize, node: &Node<'a>) -> Result<(), LoadError> {
        let reader = || format!("node `{}`", node_name(ix, node));
        let inputs: Vec<Option<Entry>> = node
            .inputs
            .iter()
            .map(|name| if name.is_empty() { Ok(None) } else { self.lookup(name, &reader()).map(Some) })
            .collect::<Result<_, _>>()?;
        let outputs = self.outputs(ix, node, &inputs)?.unwrap_or_default();
        for (ix, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            self.define(name, outputs.get(ix).copied().unwrap_or(Entry::Refused))?;
        }
        Ok(())
    }

    /// What a node yields, or none if it has no translation or reads what has none.
    fn outputs(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Entry>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let function = match self.function(node) {
            Ok(function) => function,
            Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
        };
        let operands: Option<Vec<Option<Operand>>> = inputs
            .iter()
            .map(|input| match input {
                None => Some(None),
                Some(Entry::Operand(operand)) => Some(Some(*operand)),
                Some(Entry::Refused) => None,
            })
            .collect();
        // Why it is not known was told at the node that was refused.
        let Some(operands) = operands else { return Ok(None) };
        let function = match function {
            Function::If => return self.inline_if(ix, node, &operands),
            Function::Loop => return self.unroll_loop(ix, node, &operands),
            Function::Scan => return self.unroll_scan(ix, node, &operands),
            Function::Row(function) => function,
        };
        let (values_before, knowns_before) = (self.builder.graph.values().len(), self.builder.knowns.len());
        let mut call =
            Call::new(&mut self.builder, Called::new(node, self.opset, operands), Scope::new(&node_name(ix, node)));
        let yielded = function(&mut call).and_then(|yielded| {
            call.refuse_unread_attributes()?;
            let used = node.outputs.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1);
            match yielded.len() < used {
                true => Err(Refusal(format!("output {} (`{}`) is not supported", used - 1, node.outputs[used - 1]))),
                false => Ok(yielded),
            }
        });
        match yielded {
            Err(refusal) => Ok(self.refuse(ix, node, refusal)),
            Ok(yielded) => {
                for (name, operand) in node.outputs.iter().zip(&yielded).filter(|(name, _)| !name.is_empty()) {
                    self.rename(name, *operand, values_before, knowns_before);
                }
                Ok(Some(yielded.into_iter().map(Entry::Operand).collect()))
            }
        }
    }

    /// Gives what a node made the name that the file has for it; what only passed through keeps its own.
    fn rename(&mut self, name: &str, operand: Operand, values_before: usize, knowns_before: usize) {
        use types::EntityId;
        match operand {
            Operand::Value(id) if values_before <= id.index() => {
                self.builder.graph.value_mut(id).name = name.to_string();
            }
            Operand::Known(id) if knowns_before <= id.index() => self.builder.knowns[id].name = name.to_string(),
            _ => {}
        }
    }

    /// Notes a node that has no translation.
    fn refuse<T>(&mut self, ix: usize, node: &Node, refusal: Refusal) -> Option<T> {
        let is_default = is_default_domain(node.domain);
        self.unsupported.push(Unsupported {
            node: node_name(ix, node),
            operator: node.op_type.to_string(),
            opset: if is_default { self.opset } else { self.opsets.get(node.domain).copied().unwrap_or(0) },
            domain: if is_default { String::new() } else { node.domain.to_string() },
            reason: refusal.0,
        });
        None
    }

    fn function(&self, node: &Node) -> Result<Function, Refusal> {
        if !is_default_domain(node.domain) {
            return Err(Refusal(format!("operators of domain `{}` are not supported", node.domain)));
        }
        match node.op_type {
            "If" => return Ok(Function::If),
            "Loop" => return Ok(Function::Loop),
            "Scan" if self.opset < 9 => return Err(Refusal("the form before opset 9 is not supported".to_string())),
            "Scan" => return Ok(Function::Scan),
            _ => {}
        }
        let row = ops::find(node.op_type).ok_or_else(|| Refusal("the operator is not supported".to_string()))?;
        Ok(Function::Row(row))
    }

    /// All nodes whose operator is not known, as an error.
    fn unknown_operators(mut self, graph: &model::Graph) -> Option<LoadError> {
        for (ix, node) in graph.nodes.iter().enumerate() {
            if let Err(refusal) = self.function(node) {
                self.refuse::<()>(ix, node, refusal);
            }
        }
        (!self.unsupported.is_empty()).then_some(LoadError::Unsupported(self.unsupported))
    }

    /// Puts the branch of an `If` whose condition is known in its place.
    fn inline_if(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Operand>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let condition = match inputs {
            [Some(condition)] => self.builder.tensor(*condition).and_then(|tensor| tensor.to_i64().first().copied()),
            _ => None,
        };
        let Some(condition) = condition else {
            let reason = "the condition must be known when the model is loaded, but follows from an input";
            return Ok(self.refuse(ix, node, Refusal(reason.to_string())));
        };
        let graph = self.subgraph(ix, node, if condition != 0 { "then_branch" } else { "else_branch" })?;
        self.inline(&graph, &[]).map(Some)
    }

    /// The graph that is an attribute of a node.
    fn subgraph(&self, ix: usize, node: &Node<'a>, name: &str) -> Result<model::Graph<'a>, LoadError> {
        let bytes = node.attributes.iter().find(|attribute| attribute.name == name).and_then(|found| found.graph);
        let bytes = bytes.ok_or_else(|| malformed(format!("node `{}` has no `{name}`", node_name(ix, node))))?;
        if DEPTH_MAX <= self.depth {
            return Err(malformed(format!("subgraphs are nested more than {DEPTH_MAX} deep")));
        }
        model::Graph::read(bytes)
    }

    /// Nodes of a subgraph, whose inputs stand for these entries, and what they yield. Its names end with it.
    fn inline(&mut self, graph: &model::Graph<'a>, inputs: &[Entry]) -> Result<Vec<Entry>, LoadError> {
        let outer = self.defined.len();
        for (info, entry) in graph.inputs.iter().zip(inputs) {
            self.define(info.name, *entry)?;
        }
        self.depth += 1;
        let outputs = self.graph(graph)?;
        self.depth -= 1;
        for name in self.defined.drain(outer..) {
            self.names.remove(name);
        }
        Ok(outputs)
    }

    /// The number that an operand is, where it is known.
    fn number(&self, operand: Option<Operand>) -> Option<i64> {
        self.builder.tensor(operand?)?.to_i64().first().copied()
    }

    /// Turns of a `Loop`, one behind the other: how often it turns must follow from what is known.
    fn unroll_loop(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Operand>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let body = self.subgraph(ix, node, "body")?;
        let optional = |at: usize| inputs.get(at).copied().flatten();
        let (limit, mut condition) = (optional(0), optional(1));
        let states = inputs.len().saturating_sub(2);
        let wrong = || malformed(format!("the body of node `{}` does not fit its inputs", node_name(ix, node)));
        if body.inputs.len() != states + 2 || body.outputs.len() < states + 1 {
            return Err(wrong());
        }
        let given: Option<Vec<Operand>> = inputs.iter().skip(2).copied().collect();
        let mut carried = given.ok_or_else(wrong)?;
        let mut stacks = vec![Vec::new(); body.outputs.len() - states - 1];
        if limit.is_some() && self.number(limit).is_none() {
            return Ok(self.refuse(ix, node, open_count()));
        }
        for turn in 0.. {
            if self.number(limit).is_some_and(|limit| limit <= turn) {
                break;
            }
            match (condition, self.number(condition)) {
                (Some(_), None) => return Ok(self.refuse(ix, node, open_count())),
                (Some(_), Some(0)) => break,
                _ => {}
            }
            if TURNS_MAX <= self.turns {
                return Ok(self.refuse(ix, node, too_many()));
            }
            let number = self.builder.known("turn", types::Tensor::scalar(turn), false);
            let going_on = match condition {
                Some(condition) => condition,
                None => self.builder.known("condition", types::Tensor::scalar(true), false),
            };
            let entries: Vec<Operand> = [number, going_on].into_iter().chain(carried.iter().copied()).collect();
            let Some(mut yielded) = self.turn(&body, &entries)? else { return Ok(None) };
            condition = Some(yielded.remove(0));
            carried.clear();
            note_turn(yielded, states, &mut carried, &mut stacks);
        }
        Ok(self.turned(ix, node, carried, stacks, [&[], &[]]))
    }

    /// Turns of a `Scan`: one for each slice of its last inputs.
    fn unroll_scan(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Operand>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let body = self.subgraph(ix, node, "body")?;
        let list = |name: &str| {
            let found = node.attributes.iter().find(|attribute| attribute.name == name);
            found.map(|attribute| attribute.ints.clone()).unwrap_or_default()
        };
        let wrong = || malformed(format!("the body of node `{}` does not fit its inputs", node_name(ix, node)));
        let count = node.attributes.iter().find(|attribute| attribute.name == "num_scan_inputs");
        let scanned = count.and_then(|attribute| usize::try_from(attribute.int.unwrap_or(0)).ok()).unwrap_or(0);
        let all: Option<Vec<Operand>> = inputs.iter().copied().collect();
        let all = all.ok_or_else(wrong)?;
        let states = all.len().checked_sub(scanned).filter(|_| scanned != 0).ok_or_else(wrong)?;
        if body.inputs.len() != all.len() || body.outputs.len() < states {
            return Err(wrong());
        }
        let (axes, directions) = (list("scan_input_axes"), list("scan_input_directions"));
        let mut carried = all[..states].to_vec();
        let mut stacks = vec![Vec::new(); body.outputs.len() - states];
        let mut turns = None;
        for (at, &operand) in all[states..].iter().enumerate() {
            let shape = self.builder.ty(operand).shape;
            let axis = match axis(axes.get(at).copied().unwrap_or(0), shape.rank()) {
                Ok(axis) => axis,
                Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
            };
            if *turns.get_or_insert(shape[axis]) != shape[axis] {
                let reason = format!("its inputs do not have as many slices each: one of {shape} along axis {axis}");
                return Ok(self.refuse(ix, node, Refusal(reason)));
            }
        }
        for turn in 0..turns.unwrap_or(0) {
            if TURNS_MAX <= self.turns {
                return Ok(self.refuse(ix, node, too_many()));
            }
            let mut entries = carried.clone();
            for (at, &operand) in all[states..].iter().enumerate() {
                let mut call = build::Call::new(&mut self.builder, (), Scope::new(&node_name(ix, node)));
                let mut shape = call.shape(operand);
                let slice = axis(axes.get(at).copied().unwrap_or(0), shape.rank()).and_then(|axis| {
                    let backwards = directions.get(at) == Some(&1);
                    let start = if backwards { shape[axis] - 1 - turn } else { turn };
                    let slice = call.apply(Slice::range(&shape, axis, start, 1), &[operand])?;
                    shape.remove(axis);
                    call.reshape(slice, shape)
                });
                match slice {
                    Ok(slice) => entries.push(slice),
                    Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
                }
            }
            let Some(yielded) = self.turn(&body, &entries)? else { return Ok(None) };
            carried.clear();
            note_turn(yielded, states, &mut carried, &mut stacks);
        }
        Ok(self.turned(ix, node, carried, stacks, [&list("scan_output_axes"), &list("scan_output_directions")]))
    }

    /// One turn of a loop's body, or none where something in it was refused: once is enough to tell why.
    fn turn(&mut self, body: &model::Graph<'a>, inputs: &[Operand]) -> Result<Option<Vec<Operand>>, LoadError> {
        self.turns += 1;
        let inputs: Vec<Entry> = inputs.iter().copied().map(Entry::Operand).collect();
        let operand = |entry| match entry {
            Entry::Operand(operand) => Some(operand),
            Entry::Refused => None,
        };
        Ok(self.inline(body, &inputs)?.into_iter().map(operand).collect())
    }

    /// What a loop yields behind its last turn.
    fn turned(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        carried: Vec<Operand>,
        stacks: Vec<Vec<Operand>>,
        [axes, directions]: [&[i64]; 2],
    ) -> Option<Vec<Entry>> {
        match self.stacked(ix, node, stacks, axes, directions) {
            Ok(stacks) => Some(carried.into_iter().chain(stacks).map(Entry::Operand).collect()),
            Err(refusal) => self.refuse(ix, node, refusal),
        }
    }

    /// What all turns yielded, joined along a new axis; backwards where the direction is 1.
    fn stacked(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        stacks: Vec<Vec<Operand>>,
        axes: &[i64],
        directions: &[i64],
    ) -> Result<Vec<Operand>, Refusal> {
        let mut call = build::Call::new(&mut self.builder, (), Scope::new(&node_name(ix, node)));
        let mut joined = Vec::new();
        for (at, mut stack) in stacks.into_iter().enumerate() {
            let Some(&first) = stack.first() else {
                return Err(Refusal("it does not turn at all, so that the shape of its results is not known".into()));
            };
            let mut shape = call.shape(first);
            let axis = axis(axes.get(at).copied().unwrap_or(0), shape.rank() + 1)?;
            shape.insert(axis, 1);
            for slice in &mut stack {
                *slice = call.reshape(*slice, shape.clone())?;
            }
            if directions.get(at) == Some(&1) {
                stack.reverse();
            }
            joined.push(match stack[..] {
                [slice] => slice,
                _ => call.apply(Concat { axis }, &stack)?,
            });
        }
        Ok(joined)
    }
}

/// How a node is translated.
enum Function {
    If,
    Loop,
    Scan,
    Row(ops::Translate),
}

/// States to the next turn, the rest to their stacks.
fn note_turn(yielded: Vec<Operand>, states: usize, carried: &mut Vec<Operand>, stacks: &mut [Vec<Operand>]) {
    let mut yielded = yielded.into_iter();
    carried.extend(yielded.by_ref().take(states));
    stacks.iter_mut().zip(yielded).for_each(|(stack, operand)| stack.push(operand));
}

fn too_many() -> Refusal {
    Refusal(format!("the model's loops turn more than {TURNS_MAX} times together"))
}

fn open_count() -> Refusal {
    Refusal("how often it turns must be known when the model is loaded, but follows from an input".to_string())
}

fn is_default_domain(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

fn default_opset(model: &Model) -> Result<i64, LoadError> {
    let version = match model.opsets.iter().find(|opset| is_default_domain(opset.domain)) {
        Some(opset) => opset.version,
        // Before IR 3 there was one operator set only.
        None if model.ir_version < 3 => 1,
        None if model.graph.nodes.iter().all(|node| !is_default_domain(node.domain)) => 1,
        None => return Err(malformed("the model does not say which operator set it uses".to_string())),
    };
    match (1..=OPSET_NEWEST).contains(&version) {
        true => Ok(version),
        false => Err(LoadError::Opset { version, newest: OPSET_NEWEST }),
    }
}

fn node_name(ix: usize, node: &Node) -> String {
    if node.name.is_empty() { format!("{}_{ix}", node.op_type) } else { node.name.to_string() }
}

fn malformed(what: String) -> LoadError {
    LoadError::Malformed { what }
}
