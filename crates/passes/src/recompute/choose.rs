//! [`Choice`]: which of the values that can be computed again are kept instead, for the least peak of live bytes.
//!
//! A kept value is alive from its node to its last reader of the backward pass. One that is computed again is alive during
//! the forward pass, and from its first reader of the backward pass to its last; its operands are needed at the first. So
//! computing a value again moves bytes to its operands and to a later time, and a long row of values that depend on one
//! another is alive at once at the time of its last one:
//!
//! ```text
//!   all kept           r1 r2 r3 r4 | grad4 grad3 grad2 grad1     four values at the end of the forward pass
//!   all computed       x           | r1 r2 r3 r4  grad4 ...      four values at the first gradient
//!   r2 kept            x r2        | r3 r4  grad4 grad3  r1 ...  three
//! ```
//!
//! Bytes of everything else differ from step to step, which decides where rows are best cut. The search starts with the best
//! of several uniform lengths of rows, then changes one value at a time among those alive at the peak. It counts bytes in the
//! order of the nodes, without workspaces. Each choice is judged by a mean of high order over all steps, which is close
//! to the peak but also falls if one of several equal peaks does, plus a small part of the bytes computed again.

use std::cmp::Reverse;

use ir::analysis::value_size;
use ir::{Graph, NodeId, Reuse, ValueId};
use types::{EntityId, Map};

use crate::uses::Uses;

/// The uniform lengths of rows that the search starts with.
const LENGTHS: [u32; 10] = [0, 1, 2, 3, 4, 6, 8, 12, 16, u32::MAX];
/// Rounds of the search, and values that each tries.
const ROUNDS: usize = 200;
const TRIES: usize = 128;
/// The mean is of this power of 2.
const POWER: u32 = 6;
/// Bytes computed again that are worth a byte of the peak.
const BYTES_FOR_ONE: f64 = 1000.0;
/// The least relative improvement of a round.
const LEAST_GAIN: f64 = 1e-6;

/// How a value of the forward pass can be there during the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Inputs, states and constants are always there.
    Given,
    /// It is saved if it is needed.
    Saved,
    /// It is saved, or computed again from the operands of its node.
    Cheap,
    /// A view of the first operand of its node.
    View,
}

/// Steps from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: usize,
    last: usize,
}

impl Span {
    fn join(span: &mut Option<Span>, other: Span) {
        *span = Some(match *span {
            Some(own) => Span { first: own.first.min(other.first), last: own.last.max(other.last) },
            None => other,
        });
    }
}

/// The values from which a start of the search computes others again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// Those that the backward pass reads, and others computed again.
    OfSaved,
    /// Also those that are saved for nothing else.
    OfAny,
}

/// Which values are kept, as far as they are needed.
pub(super) struct Choice {
    /// By value whether the backward pass has it from the forward pass. Of cheap values and their views only.
    pub(super) is_kept: Map<ValueId, bool>,
    /// By value whether a step of the backward pass, or a value that is computed again, reads it.
    pub(super) is_needed: Map<ValueId, bool>,
}

impl Choice {
    /// The best choice that the search finds.
    pub(super) fn least(
        uses: &Uses,
        is_backward: &Map<NodeId, bool>,
        forms: &Map<ValueId, Form>,
        operands: &dyn Fn(NodeId) -> Vec<ValueId>,
    ) -> Choice {
        let problem = Problem::new(uses, is_backward, forms, operands);
        let mut room = Room::new(&problem);
        let starts =
            [Rows::OfSaved, Rows::OfAny].map(|rows| problem.improved(problem.start(rows, &mut room), &mut room));
        let [first, second] = starts;
        let is_kept = if second.0 < first.0 { second.1 } else { first.1 };
        problem.score(&is_kept, &mut room);
        Choice { is_kept, is_needed: room.needs.values().map(Option::is_some).collect() }
    }
}

/// A forward and a backward pass, with everything that does not depend on the choice.
struct Problem<'a> {
    graph: &'a Graph,
    forms: &'a Map<ValueId, Form>,
    /// The forward pass, the last node first, with the operands from which its first result is computed again.
    forward: Vec<(NodeId, Vec<ValueId>)>,
    sizes: Map<ValueId, u64>,
    /// By value of the forward pass its life there, views included.
    lives: Map<ValueId, Span>,
    /// By value of the forward pass when nodes of the backward pass read it.
    reads: Map<ValueId, Option<Span>>,
    /// By step the change of the bytes of all other values.
    others: Vec<i64>,
}

/// What [`Problem::score`] computes.
struct Room {
    needs: Map<ValueId, Option<Span>>,
    /// By step the change of live bytes, then live bytes.
    live: Vec<i64>,
    /// By step the largest value that is computed again for that step alone.
    between: Vec<u64>,
}

impl Room {
    fn new(problem: &Problem) -> Room {
        Room { needs: problem.reads.clone(), live: problem.others.clone(), between: Vec::new() }
    }
}

impl Problem<'_> {
    fn new<'a>(
        uses: &Uses<'a>,
        is_backward: &Map<NodeId, bool>,
        forms: &'a Map<ValueId, Form>,
        operands: &dyn Fn(NodeId) -> Vec<ValueId>,
    ) -> Problem<'a> {
        let graph = uses.graph;
        let count = graph.values().len();
        let is_view = |id: NodeId| matches!(graph.reuse(graph.node(id)), Reuse::Alias { .. });
        // By value the last step that reads it or a view of it, in the whole step and in the forward pass.
        let mut last_read: Map<ValueId, usize> = Map::filled(count, 0);
        let mut last_forward: Map<ValueId, usize> = Map::filled(count, 0);
        let mut reads: Map<ValueId, Option<Span>> = Map::filled(count, None);
        let mut forward = Vec::new();
        let end = graph.nodes().len();
        graph.outputs().iter().for_each(|output| last_read[output.value] = end);
        for (id, node) in graph.nodes().iter().rev() {
            let step = id.index();
            let views = |last: &Map<ValueId, usize>| if is_view(id) { last[node.outputs[0]] } else { 0 };
            let (last, last_of_forward) = (step.max(views(&last_read)), step.max(views(&last_forward)));
            for &input in &node.inputs {
                last_read[input] = last_read[input].max(last);
                if is_backward[id] {
                    Span::join(&mut reads[input], Span { first: step, last });
                } else {
                    last_forward[input] = last_forward[input].max(last_of_forward);
                }
            }
            if !is_backward[id] {
                forward.push((id, operands(id)));
            }
        }
        let sizes: Map<ValueId, u64> = graph
            .values()
            .keys()
            .map(|value| match graph.value(value).producer() {
                Some(node) if is_view(node) => 0,
                Some(_) => value_size(graph, value),
                None => 0,
            })
            .collect();
        let mut others = vec![0i64; end + 2];
        let mut lives: Map<ValueId, Span> = Map::filled(count, Span { first: 0, last: 0 });
        for (id, node) in graph.nodes().iter() {
            let step = id.index();
            let dying = |operand: ValueId| {
                let made = graph.value(operand).producer();
                made.is_some_and(|made| is_backward[made]) && last_read[operand] == step
            };
            let takes_operand = match graph.reuse(node) {
                Reuse::InPlace(allowed) => {
                    allowed.iter().any(|&ix| dying(node.inputs[ix]) && sizes[node.inputs[ix]] == sizes[node.outputs[0]])
                }
                _ => false,
            };
            for (number, &output) in node.outputs.iter().enumerate() {
                if !is_backward[id] {
                    lives[output] = Span { first: step, last: last_forward[output].max(step) };
                    continue;
                }
                // Gradients of weights die with their updates, which run as early as they can.
                let is_gradient = graph.value(output).role() == types::Role::ActivationGradient;
                let last = if is_gradient { last_read[output].max(step) } else { step };
                let first = if number == 0 && takes_operand { step + 1 } else { step };
                add(&mut others, sizes[output], Span { first, last });
            }
        }
        Problem { graph, forms, forward, sizes, lives, reads, others }
    }

    /// The best of the uniform lengths.
    fn start(&self, rows: Rows, room: &mut Room) -> (f64, Map<ValueId, bool>) {
        let all = LENGTHS.map(|length| self.uniform(rows, length)).map(|kept| (self.score(&kept, room), kept));
        all.into_iter().min_by(|(a, _), (b, _)| a.total_cmp(b)).expect("there are lengths")
    }

    /// Changes one value at a time, the best first, until none of those that are alive at the peak is worth it.
    fn improved(
        &self,
        (mut least, mut is_kept): (f64, Map<ValueId, bool>),
        room: &mut Room,
    ) -> (f64, Map<ValueId, bool>) {
        for _ in 0..ROUNDS {
            self.score(&is_kept, room);
            let mut found: Option<(f64, ValueId)> = None;
            for value in self.at_peak(&is_kept, room) {
                is_kept[value] ^= true;
                let score = self.score(&is_kept, room);
                is_kept[value] ^= true;
                if score < found.map_or(least * (1.0 - LEAST_GAIN), |(score, _)| score) {
                    found = Some((score, value));
                }
            }
            let Some((score, value)) = found else { break };
            (least, is_kept[value]) = (score, !is_kept[value]);
        }
        (least, is_kept)
    }

    /// Keeps each value that would be the end of a row of more than `length` values computed from one another.
    fn uniform(&self, rows: Rows, length: u32) -> Map<ValueId, bool> {
        let mut is_kept = Map::filled(self.forms.len(), false);
        let mut links: Map<ValueId, u32> = Map::filled(self.forms.len(), 0);
        for (id, operands) in self.forward.iter().rev() {
            let output = self.graph.node(*id).outputs[0];
            let most = operands.iter().map(|&operand| links[operand]).max().unwrap_or(0);
            let saves_more = |&operand: &ValueId| {
                let root = self.root(operand);
                self.forms[root] == Form::Saved && self.reads[operand].or(self.reads[root]).is_none()
            };
            match self.forms[output] {
                Form::Cheap if rows == Rows::OfSaved && operands.iter().any(saves_more) => is_kept[output] = true,
                Form::View => links[output] = most,
                Form::Cheap if length <= most => is_kept[output] = true,
                // Values that only the forward pass reads are no part of a row.
                Form::Cheap => links[output] = most.saturating_add(u32::from(self.reads[output].is_some())),
                Form::Given | Form::Saved => {}
            }
        }
        is_kept
    }

    /// The value that a view shows.
    fn root(&self, mut value: ValueId) -> ValueId {
        while let (Form::View, Some(node)) = (self.forms[value], self.graph.value(value).producer()) {
            value = self.graph.node(node).inputs[0];
        }
        value
    }

    /// The lower the better; needs and live bytes are in `room` afterwards.
    fn score(&self, is_kept: &Map<ValueId, bool>, room: &mut Room) -> f64 {
        room.needs.clone_from(&self.reads);
        room.live.clone_from(&self.others);
        room.between.clear();
        room.between.resize(self.others.len(), 0);
        let mut again = 0u64;
        for (id, operands) in &self.forward {
            let node = self.graph.node(*id);
            for (number, &output) in node.outputs.iter().enumerate() {
                let (size, need) = (self.sizes[output], room.needs[output]);
                let life = self.lives[output];
                let Some(need) = need else {
                    add(&mut room.live, size, life);
                    continue;
                };
                let form = if number == 0 { self.forms[output] } else { Form::Saved };
                match form {
                    Form::View => Span::join(&mut room.needs[operands[0]], need),
                    Form::Cheap if !is_kept[output] => {
                        again += size;
                        add(&mut room.live, size, life);
                        if need.first < need.last {
                            add(&mut room.live, size, need);
                        } else {
                            // Between values that are computed at once, one is there at a time.
                            let most = &mut room.between[need.first];
                            *most = size.max(*most);
                        }
                        let now = Span { first: need.first, last: need.first };
                        operands.iter().for_each(|&operand| Span::join(&mut room.needs[operand], now));
                    }
                    _ => add(&mut room.live, size, Span { first: life.first, last: life.last.max(need.last) }),
                }
            }
        }
        let (mut bytes, mut peak) = (0, 0);
        for (change, &between) in room.live.iter_mut().zip(&room.between) {
            bytes += *change;
            *change = bytes + between as i64;
            peak = peak.max(*change);
        }
        let peak = peak.max(1) as f64;
        let powers = room.live.iter().map(|&bytes| {
            let part = bytes as f64 / peak;
            (0..POWER).fold(part, |power, _| power * power)
        });
        // Square roots round alike everywhere.
        let mean = powers.sum::<f64>() / room.live.len() as f64;
        let mean = (0..POWER).fold(mean, |root, _| root.sqrt());
        peak * mean + again as f64 / BYTES_FOR_ONE
    }

    /// The largest cheap values that are alive at the peak of the last score.
    fn at_peak(&self, is_kept: &Map<ValueId, bool>, room: &Room) -> Vec<ValueId> {
        let Some(peak) = (0..room.live.len()).max_by_key(|&step| (room.live[step], Reverse(step))) else {
            return Vec::new();
        };
        let is_there = |&value: &ValueId| {
            let need = room.needs[value];
            let first = |need: Span| if is_kept[value] { self.lives[value].first } else { need.first };
            self.forms[value] == Form::Cheap && need.is_some_and(|need| (first(need)..=need.last).contains(&peak))
        };
        let outputs = self.forward.iter().map(|(id, _)| self.graph.node(*id).outputs[0]);
        let mut values: Vec<ValueId> = outputs.filter(is_there).collect();
        values.sort_by_key(|&value| (Reverse(self.sizes[value]), value.index()));
        values.truncate(TRIES);
        values
    }
}

/// Counts bytes during some steps.
fn add(changes: &mut [i64], bytes: u64, Span { first, last }: Span) {
    if first <= last {
        let last = last.min(changes.len() - 2);
        changes[first.min(last)] += bytes as i64;
        changes[last + 1] -= bytes as i64;
    }
}
