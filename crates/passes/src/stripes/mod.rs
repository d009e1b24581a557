//! Tiling under a memory budget: a region of the graph runs in stripes along one axis, so that its large intermediate results
//! are never stored as a whole. The peak falls below that of any order of whole nodes.
//!
//! ```text
//!            whole                         in two stripes of rows
//!   x [3,224]  ->  a [96,112]  ->  y       x rows 0..115   -> a rows 0..57   -> y rows 0..28  \
//!                  4.6 MiB                 x rows 108..224 -> a rows 54..112 -> y rows 28..56  > y
//!                                                             2.4 MiB
//! ```
//!
//! A *region* is a range of nodes. Its *entries* are values that it reads from outside, its *exits* those that are read behind
//! it; other values may pass it by, such as the skip connections around the deep part of a U-Net. [`split`] replaces a region
//! by stripes: each exit's extent along an axis is cut into ranges, and for each range every node computes only the elements
//! that the range depends on. Each operator states which range of each operand a range of its result reads ([`ir::AxisMap`],
//! `local.rs`), so values of several resolutions are cut consistently. Neighboring stripes of rows overlap by the windows' reach,
//! the *halo*, which is computed twice; stripes along the batch (axis 0) do not overlap. Every element is computed from the same
//! operands in the same order as before.
//!
//! A stripe's part of an exit goes into the bytes of the whole at once ([`ir::ops::Insert`]). If an entry of the same type has
//! no reader behind the region, these are the entry's own bytes: its rows are copied one stripe ahead, and a stripe
//! overwrites only rows that no later stripe reads.
//!
//! [`Tiler`] finds the regions and numbers of stripes that keep the live bytes within a limit at the least cost.
//! [`compute_again`] makes long-lived values that are cheap to compute again short-lived, so that a region can contain them.

mod again;
mod borders;
mod choose;
mod estimate;
mod local;

use std::collections::BTreeMap;
use std::ops::Range;

use ir::ops::{Concat, Insert, Pad, PadMode, Slice};
use ir::{Graph, NodeId, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::{EntityId, Scope};

pub use again::compute_again;
pub use choose::{Tiler, Tiling, cost};

use borders::{Borders, Lives};
use local::part;

/// A region and how it is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripedRegion {
    /// The positions of its nodes in the order of execution.
    pub nodes: Range<usize>,
    /// The axis along which its values are cut.
    pub axis: usize,
    /// The number of stripes; at least 2.
    pub stripes: usize,
}

/// Replaces regions by stripes.
///
/// `None` if a region is invalid: it has no exit, a node cannot be tiled along the axis, or an exit has fewer elements along
/// it than there are stripes.
pub fn split(graph: &Graph, regions: &[StripedRegion]) -> Option<Graph> {
    let lives = Lives::of(graph);
    let plans: Vec<Plan> = regions.iter().map(|region| Plan::new(graph, &lives, region)).collect::<Option<_>>()?;
    Some(rewrite(graph, |context, id| {
        let plan = plans.iter().find(|plan| plan.region.nodes.contains(&id.index()))?;
        if id.index() + 1 == plan.region.nodes.end {
            plan.emit(context);
        }
        let last = graph.node(id).outputs[0];
        let is_emitted = id.index() + 1 == plan.region.nodes.end && plan.borders.exits.contains(&last);
        Some(if is_emitted { smallvec![context.value(last)] } else { SmallVec::new() })
    }))
}

/// By value the range along the axis that one stripe needs.
type Needs = BTreeMap<ValueId, Range<usize>>;

/// A region with the ranges that each stripe reads.
struct Plan<'a> {
    region: &'a StripedRegion,
    lives: &'a Lives,
    borders: Borders,
    stripes: Vec<Needs>,
    takes: Takes,
}

/// By exit the entry whose bytes it takes.
type Takes = BTreeMap<ValueId, ValueId>;

/// The entries whose bytes exits may take. `needs` has those of stripes, by their number.
fn takes(graph: &Graph, lives: &Lives, borders: &Borders, region: &StripedRegion, needs: &[(usize, &Needs)]) -> Takes {
    let StripedRegion { nodes, axis, stripes } = region;
    let mut takes = Takes::new();
    for &exit in &borders.exits {
        let is_alike = |entry: ValueId| {
            let (a, b) = (graph.value(exit), graph.value(entry));
            a.ty == b.ty && a.layout == b.layout
        };
        let dies = |entry: ValueId| lives.last_read(entry).is_some_and(|last| last < nodes.end);
        // While a stripe runs, its own rows and those of the next one are copied. All others must be as they were.
        let is_intact = |entry: ValueId| {
            needs.iter().filter(|(stripe, _)| 2 <= *stripe).all(|(stripe, needs)| {
                let written = exit_range(graph.ty(exit).shape[*axis], *stripes, stripe - 2).end;
                needs.get(&entry).is_none_or(|range| written <= range.start)
            })
        };
        let is_free = |entry: &&ValueId| {
            !takes.values().any(|taken| taken == *entry) && is_alike(**entry) && dies(**entry) && is_intact(**entry)
        };
        if let Some(&entry) = borders.entries.iter().find(is_free) {
            takes.insert(exit, entry);
        }
    }
    takes
}

/// The range of every value of a region, including its entries, that a stripe depends on.
fn needs(graph: &Graph, lives: &Lives, borders: &Borders, region: &StripedRegion, stripe: usize) -> Option<Needs> {
    let StripedRegion { nodes, axis, stripes } = region;
    let mut needs = Needs::new();
    for &exit in &borders.exits {
        let extent = *graph.ty(exit).shape.get(*axis)?;
        if extent < *stripes {
            return None;
        }
        needs.insert(exit, exit_range(extent, *stripes, stripe));
    }
    let is_inside = |value: ValueId| lives.is_inside(nodes, value);
    for ix in nodes.clone().rev() {
        let node = graph.node(NodeId::from_index(ix));
        if node.outputs.len() != 1 {
            return None;
        }
        let Some(range) = needs.get(&node.outputs[0]).cloned() else { continue };
        let part = part(graph, node, *axis, &range, &is_inside)?;
        for (&input, read) in node.inputs.iter().zip(part.inputs) {
            let whole = graph.ty(input).shape.get(*axis).map(|&extent| 0..extent);
            let is_constant = graph.value(input).tensor().is_some();
            let Some(read) = read.or(whole.filter(|_| !is_constant)) else { continue };
            let need = needs.entry(input).or_insert_with(|| read.clone());
            *need = need.start.min(read.start)..need.end.max(read.end);
        }
    }
    Some(needs)
}

/// The part of an exit that a stripe computes.
fn exit_range(extent: usize, stripes: usize, stripe: usize) -> Range<usize> {
    stripe * extent / stripes..(stripe + 1) * extent / stripes
}

impl<'a> Plan<'a> {
    fn new(graph: &Graph, lives: &'a Lives, region: &'a StripedRegion) -> Option<Plan<'a>> {
        let StripedRegion { nodes, stripes, .. } = region;
        if nodes.is_empty() || graph.nodes().len() < nodes.end || *stripes < 2 {
            return None;
        }
        let borders = lives.borders(graph, nodes);
        if borders.exits.is_empty() {
            return None;
        }
        let stripes: Vec<Needs> =
            (0..*stripes).map(|stripe| needs(graph, lives, &borders, region, stripe)).collect::<Option<_>>()?;
        let all: Vec<(usize, &Needs)> = stripes.iter().enumerate().collect();
        let takes = takes(graph, lives, &borders, region, &all);
        Some(Plan { region, lives, borders, stripes, takes })
    }

    /// Adds the stripes one after the other, and maps the exits to their results.
    fn emit(&self, context: &mut Rewrite) {
        let mut wholes: BTreeMap<ValueId, Whole> = BTreeMap::new();
        for (&exit, &entry) in &self.takes {
            wholes.insert(exit, Whole::Value(context.value(entry)));
        }
        let mut ahead = self.rows_of_taken(context, 0, &wholes);
        for stripe in 0..self.stripes.len() {
            let next = self.rows_of_taken(context, stripe + 1, &wholes);
            self.emit_stripe(context, stripe, std::mem::replace(&mut ahead, next), &mut wholes);
        }
        for (exit, whole) in wholes {
            let value = match whole {
                Whole::Parts(parts) => {
                    let scope = scope_of(context.old, exit);
                    let axis = self.region.axis;
                    context.add(Concat { axis }, &parts, &scope).expect("the stripes are parts of one value")
                }
                Whole::Value(value) => value,
            };
            context.replace(exit, value);
        }
    }

    /// The rows that a stripe reads of the entries whose bytes exits take.
    fn rows_of_taken(&self, context: &mut Rewrite, stripe: usize, wholes: &BTreeMap<ValueId, Whole>) -> Held {
        let (graph, axis, mut rows) = (context.old, self.region.axis, Held::new());
        let Some(needs) = self.stripes.get(stripe) else { return rows };
        for (exit, &entry) in &self.takes {
            if let (Some(range), Some(Whole::Value(whole))) = (needs.get(&entry), wholes.get(exit)) {
                let scope = scope_of(graph, *exit).child(&format!("stripe{stripe}")).child("ahead");
                let all = (*whole, 0..graph.ty(entry).shape[axis]);
                rows.insert(entry, (take(context, all, range, axis, &scope), range.clone()));
            }
        }
        rows
    }

    fn emit_stripe(&self, context: &mut Rewrite, stripe: usize, mut at: Held, wholes: &mut BTreeMap<ValueId, Whole>) {
        let (graph, axis, needs) = (context.old, self.region.axis, &self.stripes[stripe]);
        let name = format!("stripe{stripe}");
        let is_inside = |value: ValueId| self.lives.is_inside(&self.region.nodes, value);
        for ix in self.region.nodes.clone() {
            let node = graph.node(NodeId::from_index(ix));
            let Some(range) = needs.get(&node.outputs[0]) else { continue };
            let part = part(graph, node, axis, range, &is_inside).expect("planned with the same graph");
            let scope = node.scope.child(&name);
            let rows = scope.child("rows");
            let mut inputs: SmallVec<[ValueId; 4]> = SmallVec::new();
            for (&input, read) in node.inputs.iter().zip(part.inputs) {
                let Some(read) = read else {
                    inputs.push(context.value(input));
                    continue;
                };
                // All nodes of a stripe read one copy of an entry.
                let held = at.entry(input).or_insert_with(|| {
                    let whole = (context.value(input), 0..graph.ty(input).shape[axis]);
                    (take(context, whole, &needs[&input], axis, &rows), needs[&input].clone())
                });
                inputs.push(take(context, held.clone(), &read, axis, &rows));
            }
            let new = context.add(part.op, &inputs, &scope).expect("a part fits where the whole does");
            at.insert(node.outputs[0], (new, range.clone()));
            if self.borders.exits.contains(&node.outputs[0]) {
                self.keep(context, node.outputs[0], stripe, at[&node.outputs[0]].clone(), wholes);
            }
        }
    }

    /// Puts a stripe's part of an exit into the whole.
    fn keep(
        &self,
        context: &mut Rewrite,
        exit: ValueId,
        stripe: usize,
        held: (ValueId, Range<usize>),
        wholes: &mut BTreeMap<ValueId, Whole>,
    ) {
        let axis = self.region.axis;
        let shape = context.old.ty(exit).shape.clone();
        let range = exit_range(shape[axis], self.stripes.len(), stripe);
        let scope = scope_of(context.old, exit).child(&format!("stripe{stripe}"));
        let part = take(context, held, &range, axis, &scope.child("rows"));
        if shape[..axis].iter().all(|&extent| extent == 1) && !self.takes.contains_key(&exit) {
            // Contiguous parts are written where they belong.
            match wholes.entry(exit).or_insert_with(|| Whole::Parts(Vec::new())) {
                Whole::Parts(parts) => parts.push(part),
                Whole::Value(_) => unreachable!("all parts of an exit have one form"),
            }
            return;
        }
        let scope = scope.child("whole");
        let whole = match wholes.get(&exit) {
            Some(Whole::Value(whole)) => context.add(Insert { axis, start: range.start }, &[*whole, part], &scope),
            _ => {
                let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], shape.rank());
                pad[axis][1] = (shape[axis] - range.end) as isize;
                context.add(Pad { mode: PadMode::Constant(0.0), pad }, &[part], &scope)
            }
        };
        wholes.insert(exit, Whole::Value(whole.expect("the stripes are parts of one value")));
    }
}

/// By value of the region, or entry: the part that a stripe has, and its range.
type Held = BTreeMap<ValueId, (ValueId, Range<usize>)>;

/// An exit under construction.
enum Whole {
    /// The parts so far, to be concatenated.
    Parts(Vec<ValueId>),
    /// The whole with the parts so far.
    Value(ValueId),
}

fn scope_of(graph: &Graph, value: ValueId) -> Scope {
    graph.value(value).producer().map(|node| graph.node(node).scope.clone()).unwrap_or_default()
}

/// A range along the axis of a value that holds another range.
fn take(
    context: &mut Rewrite,
    (value, held): (ValueId, Range<usize>),
    read: &Range<usize>,
    axis: usize,
    scope: &Scope,
) -> ValueId {
    if held == *read {
        return value;
    }
    let slice = Slice::range(&context.new.ty(value).shape, axis, read.start - held.start, read.len());
    context.add(slice, &[value], scope).expect("what is read is held")
}
