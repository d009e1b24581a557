//! Subgraphs: branches that are chosen, and the turns of loops, one behind the other.

use ir::Refusal;
use ir::ops::{Concat, Slice};
use types::{Scope, Tensor};

use super::{Entry, Walk, malformed, node_name};
use crate::common::{self, NodeResult, Operand, axis, refuse};
use crate::onnx::LoadError;
use crate::onnx::model::{self, Node};

/// All loops of a model together are unrolled up to so many turns: loops in loops multiply theirs.
const TURNS_MAX: usize = 4096;

/// Subgraphs in subgraphs are followed this deep.
const DEPTH_MAX: usize = 8;

/// A node with its position, which names it where it has no name.
type At<'n, 'a> = (usize, &'n Node<'a>);

/// What is carried from turn to turn, and what each turn yields beside it, by output.
type Turned = (Vec<Entry>, Vec<Vec<Entry>>);

impl<'a> Walk<'a> {
    /// Puts the branch of an `If` whose condition is known in its place.
    pub(super) fn inline_if(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Entry>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let Some(condition) = inputs.first().and_then(|input| self.number(input.as_ref())) else {
            let reason = "the condition must be known when the model is loaded, but follows from an input";
            return Ok(self.refuse(ix, node, Refusal(reason.to_string())));
        };
        let graph = self.subgraph(ix, node, if condition != 0 { "then_branch" } else { "else_branch" })?;
        self.inline(&graph, Vec::new()).map(Some)
    }

    /// Turns of a `Loop`, one behind the other: how often it turns must follow from what is known.
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
        let wrong = || malformed(format!("the body of node `{}` does not fit its inputs", node_name(ix, node)));
        if body.inputs.len() != states + 2 || body.outputs.len() < states + 1 {
            return Err(wrong());
        }
        let given: Option<Vec<Entry>> = inputs.iter().skip(2).cloned().collect();
        let mut turned: Turned = (given.ok_or_else(wrong)?, vec![Vec::new(); body.outputs.len() - states - 1]);
        if limit.is_some() && self.number(limit.as_ref()).is_none() {
            return Ok(self.refuse(ix, node, open_count()));
        }
        for turn in 0.. {
            if self.number(limit.as_ref()).is_some_and(|limit| limit <= turn) {
                break;
            }
            match (&condition, self.number(condition.as_ref())) {
                (Some(_), None) => return Ok(self.refuse(ix, node, open_count())),
                (Some(_), Some(0)) => break,
                _ => {}
            }
            let number = self.builder.add_constant("turn", Tensor::scalar(turn), false);
            let going_on = match condition {
                Some(condition) => condition,
                None => Entry::Operand(self.builder.add_constant("condition", Tensor::scalar(true), false)),
            };
            let entries = [Entry::Operand(number), going_on].into_iter().chain(turned.0.drain(..)).collect();
            let Some(mut yielded) = self.turn((ix, node), &body, entries)? else { return Ok(None) };
            condition = Some(yielded.remove(0));
            note_turn(yielded, states, &mut turned);
        }
        Ok(self.behind(ix, node, turned, [&[], &[]]))
    }

    /// Turns of a `Scan`: one for each slice of its last inputs.
    pub(super) fn unroll_scan(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Entry>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let body = self.subgraph(ix, node, "body")?;
        let wrong = || malformed(format!("the body of node `{}` does not fit its inputs", node_name(ix, node)));
        let count = node.attributes.iter().find(|attribute| attribute.name == "num_scan_inputs");
        let scanned = count.and_then(|attribute| usize::try_from(attribute.int.unwrap_or(0)).ok()).unwrap_or(0);
        // Before opset 9 the lengths of the sequences come first.
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
        let Some(turned) = self.scan((ix, node), &body, &all, states, [&ways[0], &ways[1]])? else { return Ok(None) };
        let ways = [ints(node, "scan_output_axes"), ints(node, "scan_output_directions")];
        Ok(self.behind(ix, node, turned, [&ways[0], &ways[1]]))
    }

    /// A `Scan` before opset 9: each example of a batch is scanned for itself, and the body knows nothing of the batch.
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
        if TURNS_MAX < examples {
            return Ok(self.refuse(ix, node, too_many()));
        }
        for example in 0..examples {
            let parts = all.iter().map(|&operand| self.slice((ix, node), operand, 0, example)).collect();
            let parts: Vec<Operand> = match parts {
                Ok(parts) => parts,
                Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
            };
            let Some(turned) = self.scan((ix, node), body, &parts, states, [&[], &directions])? else {
                return Ok(None);
            };
            let Some(yielded) = self.behind(ix, node, turned, [&[], &[]]) else { return Ok(None) };
            rows.iter_mut().zip(yielded).for_each(|(row, entry)| row.push(entry));
        }
        Ok(self.behind(ix, node, (Vec::new(), rows), [&[], &[]]))
    }

    /// Turns over the slices of all operands behind the states, along axes and in directions (1 is backwards).
    fn scan(
        &mut self,
        (ix, node): At<'_, 'a>,
        body: &model::Graph<'a>,
        all: &[Operand],
        states: usize,
        [axes, directions]: [&[i64]; 2],
    ) -> Result<Option<Turned>, LoadError> {
        let mut turned: Turned = (entries(&all[..states]), vec![Vec::new(); body.outputs.len() - states]);
        let scanned = match self.scanned(&all[states..], axes) {
            Ok(scanned) => scanned,
            Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
        };
        let turns = scanned.first().map_or(0, |first| first.2);
        for turn in 0..turns {
            let mut inputs = std::mem::take(&mut turned.0);
            for (at, &(operand, axis, extent)) in scanned.iter().enumerate() {
                let place = if directions.get(at) == Some(&1) { extent - 1 - turn } else { turn };
                match self.slice((ix, node), operand, axis, place) {
                    Ok(slice) => inputs.push(Entry::Operand(slice)),
                    Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
                }
            }
            let Some(yielded) = self.turn((ix, node), body, inputs)? else { return Ok(None) };
            note_turn(yielded, states, &mut turned);
        }
        Ok(Some(turned))
    }

    /// Operands with the axes along which they are scanned and how many slices they have there: all as many.
    fn scanned(&self, operands: &[Operand], axes: &[i64]) -> Result<Vec<(Operand, usize, usize)>, Refusal> {
        let mut scanned: Vec<(Operand, usize, usize)> = Vec::new();
        for (at, &operand) in operands.iter().enumerate() {
            let shape = self.builder.ty(operand).shape;
            let axis = axis(axes.get(at).copied().unwrap_or(0), shape.rank())?;
            if scanned.first().is_some_and(|first| first.2 != shape[axis]) {
                refuse!("its inputs do not have as many slices each: one of {shape} along axis {axis}");
            }
            scanned.push((operand, axis, shape[axis]));
        }
        Ok(scanned)
    }

    /// The slice of a tensor at a place along an axis, which goes.
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
            refuse!("an input of shape {shape} has no slice {place} along axis {along}");
        }
        let slice = call.apply(Slice::range(&shape, along, place, 1), &[operand])?;
        shape.remove(along);
        call.reshape(slice, shape)
    }

    /// A body for each tensor of a sequence. Other sequences go along with the first one; tensors are the same each time.
    pub(super) fn map_sequence(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: &[Option<Entry>],
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let body = self.subgraph(ix, node, "body")?;
        let wrong = || malformed(format!("the body of node `{}` does not fit its inputs", node_name(ix, node)));
        let given: Vec<Entry> = inputs.iter().cloned().collect::<Option<_>>().ok_or_else(wrong)?;
        let Some(Entry::Sequence(first)) = given.first() else {
            return Ok(self.refuse(ix, node, Refusal("input 0 is not a sequence".to_string())));
        };
        let uneven = |entry: &Entry| matches!(entry, Entry::Sequence(list) if list.len() != first.len());
        if given.iter().any(uneven) {
            return Ok(self.refuse(ix, node, Refusal("its sequences do not have as many tensors each".to_string())));
        }
        if body.inputs.len() != given.len() {
            return Err(wrong());
        }
        let mut rows = vec![Vec::new(); body.outputs.len()];
        for turn in 0..first.len() {
            let part = |entry: &Entry| match entry {
                Entry::Sequence(list) => Entry::Operand(list[turn]),
                other => other.clone(),
            };
            let parts = given.iter().map(part).collect();
            let Some(yielded) = self.turn((ix, node), &body, parts)? else { return Ok(None) };
            for (row, entry) in rows.iter_mut().zip(yielded) {
                match entry {
                    Entry::Operand(operand) => row.push(operand),
                    other => {
                        let reason = format!("an element of a sequence is a tensor, not {}", other.kind());
                        return Ok(self.refuse(ix, node, Refusal(reason)));
                    }
                }
            }
        }
        Ok(Some(rows.into_iter().map(Entry::Sequence).collect()))
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

    /// The number that an operand is, where it is known.
    fn number(&self, entry: Option<&Entry>) -> Option<i64> {
        match entry? {
            Entry::Operand(operand) => self.builder.tensor(*operand)?.to_i64().first().copied(),
            _ => None,
        }
    }

    /// One turn of a loop's body, or none where something in it was refused: once is enough to tell why.
    fn turn(
        &mut self,
        (ix, node): At<'_, 'a>,
        body: &model::Graph<'a>,
        inputs: Vec<Entry>,
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        if TURNS_MAX <= self.turns {
            return Ok(self.refuse(ix, node, too_many()));
        }
        self.turns += 1;
        let yielded = self.inline(body, inputs)?;
        Ok((!yielded.iter().any(|entry| matches!(entry, Entry::Refused))).then_some(yielded))
    }

    /// What a loop yields behind its last turn.
    fn behind(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        (carried, stacks): Turned,
        [axes, directions]: [&[i64]; 2],
    ) -> Option<Vec<Entry>> {
        match self.stacked(ix, node, stacks, axes, directions) {
            Ok(stacks) => Some(carried.into_iter().chain(entries(&stacks)).collect()),
            Err(refusal) => self.refuse(ix, node, refusal),
        }
    }

    /// What all turns yielded, joined along a new axis; backwards where the direction is 1.
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
                    other => refuse!("what its turns yield is {}, which cannot be joined", other.kind()),
                }
            }
            let Some(&first) = slices.first() else {
                refuse!("it does not turn at all, so that the shape of its results is not known");
            };
            let mut shape = call.shape(first);
            let axis = axis(axes.get(at).copied().unwrap_or(0), shape.rank() + 1)?;
            if let Some(other) = slices.iter().map(|&slice| call.shape(slice)).find(|other| *other != shape) {
                refuse!("its turns yield {shape} and {other}, which do not join");
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

/// States to the next turn, the rest to their stacks.
fn note_turn(yielded: Vec<Entry>, states: usize, (carried, stacks): &mut Turned) {
    let mut yielded = yielded.into_iter();
    *carried = yielded.by_ref().take(states).collect();
    stacks.iter_mut().zip(yielded).for_each(|(stack, entry)| stack.push(entry));
}

fn entries(operands: &[Operand]) -> Vec<Entry> {
    operands.iter().copied().map(Entry::Operand).collect()
}

/// A list of integers that is an attribute of a node; empty where it is not given.
fn ints(node: &Node, name: &str) -> Vec<i64> {
    let found = node.attributes.iter().find(|attribute| attribute.name == name);
    found.map(|attribute| attribute.ints.clone()).unwrap_or_default()
}

fn too_many() -> Refusal {
    Refusal(format!("the model's loops turn more than {TURNS_MAX} times together"))
}

fn open_count() -> Refusal {
    Refusal("how often it turns must be known when the model is loaded, but follows from an input".to_string())
}
