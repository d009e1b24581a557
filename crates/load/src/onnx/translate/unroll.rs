//! Subgraphs: selects branches and unrolls loops.

use ir::Refusal;
use ir::ops::{Concat, Slice};
use types::{Scope, Tensor};

use super::{Entry, Translator, malformed, node_name};
use crate::common::{self, NodeResult, Operand, axis, refuse};
use crate::onnx::LoadError;
use crate::onnx::model::{self, Node};
use crate::onnx::proto::Reader;

/// Most iterations of all loops of a model; those of nested loops multiply.
const ITERATIONS_MAX: usize = 4096;

/// Deepest nesting of subgraphs.
const DEPTH_MAX: usize = 8;

/// A node with its position, which is its name if it has none.
type At<'n, 'a> = (usize, &'n Node<'a>);

/// Loop-carried values, and for each scan output its values of all iterations.
type LoopState = (Vec<Entry>, Vec<Vec<Entry>>);

impl<'a> Translator<'a> {
    /// Replaces an `If` with a constant condition by its branch.
    pub(super) fn inline_if(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Entry>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let Some(condition) = inputs.first().and_then(|input| self.number(input.as_ref())) else {
            let reason = "the condition must be constant, but depends on a run-time input";
            return Ok(self.refuse(ix, node, Refusal(reason.to_string())));
        };
        let graph = self.subgraph(ix, node, if condition != 0 { "then_branch" } else { "else_branch" })?;
        self.inline(&graph, Vec::new()).map(Some)
    }

    /// Unrolls a `Loop`, whose trip count must be constant.
    pub(super) fn unroll_loop(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Entry>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let body = self.subgraph(ix, node, "body")?;
        let optional = |at: usize| inputs.get(at).cloned().flatten();
        let (limit, mut condition) = (optional(0), optional(1));
        let states = inputs.len().saturating_sub(2);
        let wrong = || {
            malformed(format!(
                "the inputs and outputs of the body of node `{}` must fit those of the node",
                node_name(ix, node)
            ))
        };
        if body.inputs.len() != states + 2 || body.outputs.len() < states + 1 {
            return Err(wrong());
        }
        let given: Option<Vec<Entry>> = inputs.iter().skip(2).cloned().collect();
        let mut state: LoopState = (given.ok_or_else(wrong)?, vec![Vec::new(); body.outputs.len() - states - 1]);
        if limit.is_some() && self.number(limit.as_ref()).is_none() {
            return Ok(self.refuse(ix, node, open_count()));
        }
        for iteration in 0.. {
            if self.number(limit.as_ref()).is_some_and(|limit| limit <= iteration) {
                break;
            }
            match (&condition, self.number(condition.as_ref())) {
                (Some(_), None) => return Ok(self.refuse(ix, node, open_count())),
                (Some(_), Some(0)) => break,
                _ => {}
            }
            let number = self.builder.add_constant("iteration", Tensor::scalar(iteration), false);
            let going_on = match condition {
                Some(condition) => condition,
                None => Entry::Operand(self.builder.add_constant("condition", Tensor::scalar(true), false)),
            };
            let entries = [Entry::Operand(number), going_on].into_iter().chain(state.0.drain(..)).collect();
            let Some(mut yielded) = self.iterate((ix, node), &body, entries)? else { return Ok(None) };
            condition = Some(yielded.remove(0));
            record_iteration(yielded, states, &mut state);
        }
        Ok(self.finish_loop(ix, node, state, [&[], &[]]))
    }

    /// Unrolls a `Scan`: one iteration per slice of its last inputs.
    pub(super) fn unroll_scan(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Entry>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let body = self.subgraph(ix, node, "body")?;
        let wrong = || {
            malformed(format!(
                "the inputs and outputs of the body of node `{}` must fit those of the node",
                node_name(ix, node)
            ))
        };
        let count = node.attributes.iter().find(|attribute| attribute.name == "num_scan_inputs");
        let scanned = count.and_then(|attribute| usize::try_from(attribute.int.unwrap_or(0)).ok()).unwrap_or(0);
        // Before opset 9 the sequence lengths come first.
        let batched = self.opset < 9;
        let (lengths, given) = inputs.split_at(inputs.len().min(usize::from(batched)));
        if lengths.iter().any(Option::is_some) {
            return Ok(self.refuse(ix, node, Refusal("`sequence_lens` is not supported".to_string())));
        }
        let tensor = |input: &Option<Entry>| match input {
            Some(Entry::Operand(operand)) => Some(*operand),
            _ => None,
        };
        let all: Vec<Operand> = given.iter().map(tensor).collect::<Option<_>>().ok_or_else(wrong)?;
        let states = all.len().checked_sub(scanned).filter(|_| scanned != 0).ok_or_else(wrong)?;
        if body.inputs.len() != all.len() || body.outputs.len() < states {
            return Err(wrong());
        }
        if batched {
            return self.scan_examples((ix, node), &body, &all, states);
        }
        let ways = [ints(node, "scan_input_axes"), ints(node, "scan_input_directions")];
        let Some(state) = self.scan((ix, node), &body, &all, states, [&ways[0], &ways[1]])? else { return Ok(None) };
        let ways = [ints(node, "scan_output_axes"), ints(node, "scan_output_directions")];
        Ok(self.finish_loop(ix, node, state, [&ways[0], &ways[1]]))
    }

    /// A `Scan` before opset 9: each element of the batch is scanned separately, with a body that has no batch axis.
    fn scan_examples(
        &mut self,
        (ix, node): At<'_, 'a>,
        body: &model::Graph<'a>,
        all: &[Operand],
        states: usize,
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let directions = ints(node, "directions");
        let examples = self.builder.ty(all[0]).shape.first().copied().unwrap_or(0);
        let mut rows = vec![Vec::new(); body.outputs.len()];
        if ITERATIONS_MAX < examples {
            return Ok(self.refuse(ix, node, too_many()));
        }
        for example in 0..examples {
            let parts = all.iter().map(|&operand| self.slice((ix, node), operand, 0, example)).collect();
            let parts: Vec<Operand> = match parts {
                Ok(parts) => parts,
                Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
            };
            let Some(state) = self.scan((ix, node), body, &parts, states, [&[], &directions])? else {
                return Ok(None);
            };
            let Some(yielded) = self.finish_loop(ix, node, state, [&[], &[]]) else { return Ok(None) };
            rows.iter_mut().zip(yielded).for_each(|(row, entry)| row.push(entry));
        }
        Ok(self.finish_loop(ix, node, (Vec::new(), rows), [&[], &[]]))
    }

    /// Iterates over the slices of all operands after the states, along axes and in directions (1 is reverse).
    fn scan(
        &mut self,
        (ix, node): At<'_, 'a>,
        body: &model::Graph<'a>,
        all: &[Operand],
        states: usize,
        [axes, directions]: [&[i64]; 2],
    ) -> Result<Option<LoopState>, LoadError> {
        let mut state: LoopState = (entries(&all[..states]), vec![Vec::new(); body.outputs.len() - states]);
        let scanned = match self.scanned(&all[states..], axes) {
            Ok(scanned) => scanned,
            Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
        };
        let count = scanned.first().map_or(0, |first| first.2);
        for iteration in 0..count {
            let mut inputs = std::mem::take(&mut state.0);
            for (at, &(operand, axis, extent)) in scanned.iter().enumerate() {
                let place = if directions.get(at) == Some(&1) { extent - 1 - iteration } else { iteration };
                match self.slice((ix, node), operand, axis, place) {
                    Ok(slice) => inputs.push(Entry::Operand(slice)),
                    Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
                }
            }
            let Some(yielded) = self.iterate((ix, node), body, inputs)? else { return Ok(None) };
            record_iteration(yielded, states, &mut state);
        }
        Ok(Some(state))
    }

    /// Operands with their scan axes and numbers of slices, which must be equal.
    fn scanned(&self, operands: &[Operand], axes: &[i64]) -> Result<Vec<(Operand, usize, usize)>, Refusal> {
        let mut scanned: Vec<(Operand, usize, usize)> = Vec::new();
        for (at, &operand) in operands.iter().enumerate() {
            let shape = self.builder.ty(operand).shape;
            let axis = axis(axes.get(at).copied().unwrap_or(0), shape.rank())?;
            if scanned.first().is_some_and(|first| first.2 != shape[axis]) {
                refuse!("scan inputs must have equal numbers of slices; one has shape {shape} along axis {axis}");
            }
            scanned.push((operand, axis, shape[axis]));
        }
        Ok(scanned)
    }

    /// The slice of a tensor at a position along an axis, which is removed.
    fn slice(
        &mut self,
        (ix, node): At<'_, 'a>,
        operand: Operand,
        along: usize,
        place: usize,
    ) -> Result<Operand, Refusal> {
        let mut call = common::ImportedNode::new(&mut self.builder, (), Scope::new(&node_name(ix, node)));
        let mut shape = call.shape(operand);
        if shape.get(along).is_none_or(|&extent| extent <= place) {
            refuse!("slice {place} along axis {along} must exist, got shape {shape}");
        }
        let slice = call.apply(Slice::range(&shape, along, place, 1), &[operand])?;
        shape.remove(along);
        call.reshape(slice, shape)
    }

    /// Applies a body to each tensor of a sequence. Other sequences are walked in parallel; tensors are passed to each
    /// iteration.
    pub(super) fn map_sequence(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Entry>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let body = self.subgraph(ix, node, "body")?;
        let wrong = || {
            malformed(format!(
                "the inputs and outputs of the body of node `{}` must fit those of the node",
                node_name(ix, node)
            ))
        };
        let given: Vec<Entry> = inputs.iter().cloned().collect::<Option<_>>().ok_or_else(wrong)?;
        let Some(Entry::Sequence(first)) = given.first() else {
            return Ok(self.refuse(ix, node, Refusal("input 0 must be a sequence".to_string())));
        };
        let uneven = |entry: &Entry| matches!(entry, Entry::Sequence(list) if list.len() != first.len());
        if given.iter().any(uneven) {
            return Ok(self.refuse(ix, node, Refusal("the input sequences must have equal lengths".to_string())));
        }
        if body.inputs.len() != given.len() {
            return Err(wrong());
        }
        let mut rows = vec![Vec::new(); body.outputs.len()];
        for iteration in 0..first.len() {
            let part = |entry: &Entry| match entry {
                Entry::Sequence(list) => Entry::Operand(list[iteration]),
                other => other.clone(),
            };
            let parts = given.iter().map(part).collect();
            let Some(yielded) = self.iterate((ix, node), &body, parts)? else { return Ok(None) };
            for (row, entry) in rows.iter_mut().zip(yielded) {
                match entry {
                    Entry::Operand(operand) => row.push(operand),
                    other => {
                        let reason = format!("elements of a sequence must be tensors, got {}", other.kind());
                        return Ok(self.refuse(ix, node, Refusal(reason)));
                    }
                }
            }
        }
        Ok(Some(rows.into_iter().map(Entry::Sequence).collect()))
    }

    /// The subgraph in attribute `name` of a node.
    fn subgraph(&self, ix: usize, node: &Node<'a>, name: &str) -> Result<model::Graph<'a>, LoadError> {
        let bytes = node.attributes.iter().find(|attribute| attribute.name == name).and_then(|found| found.graph);
        let bytes = bytes
            .ok_or_else(|| malformed(format!("attribute `{name}` is missing at node `{}`", node_name(ix, node))))?;
        if DEPTH_MAX <= self.depth {
            return Err(malformed(format!("subgraphs must be nested at most {DEPTH_MAX} deep")));
        }
        model::Graph::read(Reader::new(bytes, "a subgraph", self.budget))
    }

    /// Translates the nodes of a subgraph with these inputs and returns its outputs. Its names are removed afterwards.
    fn inline(&mut self, graph: &model::Graph<'a>, inputs: Vec<Entry>) -> Result<Vec<Entry>, LoadError> {
        let outer = self.defined.len();
        for (info, entry) in graph.inputs.iter().zip(inputs) {
            self.define(info.name, entry)?;
        }
        self.depth += 1;
        let outputs = self.graph(graph)?;
        self.depth -= 1;
        for name in self.defined.drain(outer..) {
            self.names.remove(name);
        }
        Ok(outputs)
    }

    /// The first element of an operand; `None` if it is not constant.
    fn number(&self, entry: Option<&Entry>) -> Option<i64> {
        match entry? {
            Entry::Operand(operand) => self.builder.tensor(*operand)?.to_i64().first().copied(),
            _ => None,
        }
    }

    /// One iteration of a loop body; `None` if a node in it is not supported, which is reported once.
    fn iterate(
        &mut self,
        (ix, node): At<'_, 'a>,
        body: &model::Graph<'a>,
        inputs: Vec<Entry>,
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        if ITERATIONS_MAX <= self.iterations {
            return Ok(self.refuse(ix, node, too_many()));
        }
        self.iterations += 1;
        let yielded = self.inline(body, inputs)?;
        Ok((!yielded.iter().any(|entry| matches!(entry, Entry::Refused))).then_some(yielded))
    }

    /// The outputs of a loop after its last iteration.
    fn finish_loop(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        (carried, stacks): LoopState,
        [axes, directions]: [&[i64]; 2],
    ) -> Option<Vec<Entry>> {
        match self.stacked(ix, node, stacks, axes, directions) {
            Ok(stacks) => Some(carried.into_iter().chain(entries(&stacks)).collect()),
            Err(refusal) => self.refuse(ix, node, refusal),
        }
    }

    /// Scan outputs of all iterations, stacked along a new axis; reversed if the direction is 1.
    fn stacked(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        stacks: Vec<Vec<Entry>>,
        axes: &[i64],
        directions: &[i64],
    ) -> NodeResult {
        let mut call = common::ImportedNode::new(&mut self.builder, (), Scope::new(&node_name(ix, node)));
        let mut joined = Vec::new();
        for (at, stack) in stacks.into_iter().enumerate() {
            let mut slices = Vec::new();
            for entry in stack {
                match entry {
                    Entry::Operand(operand) => slices.push(operand),
                    other => refuse!("scan outputs must be tensors, got {}", other.kind()),
                }
            }
            let Some(&first) = slices.first() else {
                refuse!("a loop with scan outputs must have at least one iteration");
            };
            let mut shape = call.shape(first);
            let axis = axis(axes.get(at).copied().unwrap_or(0), shape.rank() + 1)?;
            if let Some(other) = slices.iter().map(|&slice| call.shape(slice)).find(|other| *other != shape) {
                refuse!("scan outputs of all iterations must have equal shapes, got {shape} and {other}");
            }
            shape.insert(axis, 1);
            for slice in &mut slices {
                *slice = call.reshape(*slice, shape.clone())?;
            }
            if directions.get(at) == Some(&1) {
                slices.reverse();
            }
            joined.push(match slices[..] {
                [slice] => slice,
                _ => call.apply(Concat { axis }, &slices)?,
            });
        }
        Ok(joined)
    }
}

/// Moves states to the next iteration and the other values to their stacks.
fn record_iteration(yielded: Vec<Entry>, states: usize, (carried, stacks): &mut LoopState) {
    let mut yielded = yielded.into_iter();
    *carried = yielded.by_ref().take(states).collect();
    stacks.iter_mut().zip(yielded).for_each(|(stack, entry)| stack.push(entry));
}

fn entries(operands: &[Operand]) -> Vec<Entry> {
    operands.iter().copied().map(Entry::Operand).collect()
}

/// A list of integers in an attribute; empty if absent.
fn ints(node: &Node, name: &str) -> Vec<i64> {
    let found = node.attributes.iter().find(|attribute| attribute.name == name);
    found.map(|attribute| attribute.ints.clone()).unwrap_or_default()
}

fn too_many() -> Refusal {
    Refusal(format!("loops of the model must have at most {ITERATIONS_MAX} iterations in total"))
}

fn open_count() -> Refusal {
    Refusal("the trip count must be constant, but depends on a run-time input".to_string())
}
