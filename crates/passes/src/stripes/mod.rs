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
//! A *region* is a range of nodes with a single computed entry and a single exit. [`split`] replaces it by stripes: the exit's
//! extent along an axis is cut into ranges, and for each range every node computes only the elements that the range depends
//! on (`local.rs`, from the operators' axis maps). Neighboring stripes of rows overlap by the windows' reach, the *halo*,
//! which is computed twice; stripes along the batch (axis 0) do not overlap. Every element is computed from the same
//! operands in the same order as before.
//!
//! [`choose`] finds the regions and numbers of stripes that keep the live bytes within a limit at the least cost.

mod choose;
mod local;

use std::collections::BTreeMap;
use std::ops::Range;

use ir::ops::{Concat, Slice};
use ir::{Graph, NodeId, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::{EntityId, Scope};

pub use choose::{Tiling, choose, cost};

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
/// `None` if a region is invalid: it has more than one entry or exit, a node cannot be tiled along the axis, or the exit has
/// fewer elements along it than there are stripes.
pub fn split(graph: &Graph, regions: &[StripedRegion]) -> Option<Graph> {
    let plans: Vec<Plan> = regions.iter().map(|region| plan(graph, region)).collect::<Option<_>>()?;
    Some(rewrite(graph, |context, id| {
        let plan = plans.iter().find(|plan| plan.region.nodes.contains(&id.index()))?;
        let is_last = id.index() + 1 == plan.region.nodes.end;
        Some(if is_last { smallvec![emit(context, plan)] } else { SmallVec::new() })
    }))
}

/// A region with the ranges that each stripe reads.
struct Plan<'a> {
    region: &'a StripedRegion,
    entry: ValueId,
    exit: ValueId,
    stripes: Vec<Needs>,
}

/// By value the range along the axis that one stripe needs.
type Needs = BTreeMap<ValueId, Range<usize>>;

fn plan<'a>(graph: &Graph, region: &'a StripedRegion) -> Option<Plan<'a>> {
    let StripedRegion { nodes, axis, stripes } = region;
    let (entry, exit) = (crossing(graph, nodes.start)?, crossing(graph, nodes.end)?);
    let extent = *graph.ty(exit).shape.get(*axis)?;
    let has_axis = |value: ValueId| *axis < graph.ty(value).shape.rank();
    let inside = || nodes.clone().map(NodeId::from_index).map(|id| graph.node(id));
    let fits = nodes.start < nodes.end
        && 2 <= *stripes
        && *stripes <= extent
        && has_axis(entry)
        && inside().all(|node| node.outputs.len() == 1 && has_axis(node.outputs[0]));
    if !fits {
        return None;
    }
    let range = |stripe: usize| stripe * extent / stripes..(stripe + 1) * extent / stripes;
    let stripes = (0..*stripes).map(|stripe| needs(graph, region, exit, range(stripe))).collect::<Option<_>>()?;
    Some(Plan { region, entry, exit, stripes })
}

/// The range of every value of the region, including its entry, that a range of the exit depends on.
fn needs(graph: &Graph, region: &StripedRegion, exit: ValueId, range: Range<usize>) -> Option<Needs> {
    let mut needs = Needs::from([(exit, range)]);
    for ix in region.nodes.clone().rev() {
        let node = graph.node(NodeId::from_index(ix));
        let Some(range) = needs.get(&node.outputs[0]).cloned() else { continue };
        let part = part(graph, node, region.axis, &range)?;
        for (&input, read) in node.inputs.iter().zip(part.inputs) {
            let Some(read) = read else { continue };
            let need = needs.entry(input).or_insert_with(|| read.clone());
            *need = need.start.min(read.start)..need.end.max(read.end);
        }
    }
    Some(needs)
}

/// Adds the stripes one after the other, then their results as one value.
fn emit(context: &mut Rewrite, plan: &Plan) -> ValueId {
    let graph = context.old;
    let axis = plan.region.axis;
    let parts: Vec<ValueId> =
        plan.stripes.iter().enumerate().map(|(stripe, needs)| emit_stripe(context, plan, stripe, needs)).collect();
    let old = graph.value(plan.exit);
    let scope = old.producer().map(|node| graph.node(node).scope.clone()).unwrap_or_default();
    let whole = context.add(Concat { axis }, &parts, &scope).expect("the stripes are parts of one value");
    context.new.value_mut(whole).name.clone_from(&old.name);
    whole
}

fn emit_stripe(context: &mut Rewrite, plan: &Plan, stripe: usize, needs: &Needs) -> ValueId {
    let (graph, axis) = (context.old, plan.region.axis);
    let name = format!("stripe{stripe}");
    let entry = context.value(plan.entry);
    let whole = 0..graph.ty(plan.entry).shape[axis];
    let mut at: BTreeMap<ValueId, (ValueId, Range<usize>)> = BTreeMap::from([(plan.entry, (entry, whole))]);
    let entry_scope = graph.node(NodeId::from_index(plan.region.nodes.start)).scope.child(&name).child("rows");
    // All nodes of a stripe read one copy of the entry.
    let read = take(context, at[&plan.entry].clone(), &needs[&plan.entry], axis, &entry_scope);
    at.insert(plan.entry, (read, needs[&plan.entry].clone()));
    for ix in plan.region.nodes.clone() {
        let node = graph.node(NodeId::from_index(ix));
        let Some(range) = needs.get(&node.outputs[0]) else { continue };
        let part = part(graph, node, axis, range).expect("planned with the same graph");
        let scope = node.scope.child(&name);
        let inputs: SmallVec<[ValueId; 4]> = node
            .inputs
            .iter()
            .zip(part.inputs)
            .map(|(input, read)| match read {
                Some(read) => take(context, at[input].clone(), &read, axis, &scope.child("rows")),
                None => context.value(*input),
            })
            .collect();
        let new = context.add(part.op, &inputs, &scope).expect("a part fits where the whole does");
        at.insert(node.outputs[0], (new, range.clone()));
    }
    at[&plan.exit].0
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

/// The single computed value, or input of the graph, that is defined before a position and read behind it.
pub(crate) fn crossing(graph: &Graph, position: usize) -> Option<ValueId> {
    crossings(graph).swap_remove(position)
}

/// By position, see [`crossing`]; one more than there are nodes.
fn crossings(graph: &Graph) -> Vec<Option<ValueId>> {
    let count = graph.nodes().len();
    let mut last_read: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (id, node) in graph.nodes().iter() {
        node.inputs.iter().for_each(|&input| {
            last_read.insert(input, id.index());
        });
    }
    graph.outputs().iter().for_each(|output| {
        last_read.insert(output.value, count);
    });
    // Live between the node before a position and the one behind it: how many, and one of them.
    let mut live: Vec<(usize, Option<ValueId>)> = vec![(0, None); count + 1];
    for (id, value) in graph.values().iter() {
        let born = match value.producer() {
            Some(node) => node.index() + 1,
            None if value.tensor().is_none() => 0,
            None => continue,
        };
        let Some(&last) = last_read.get(&id) else { continue };
        for entry in &mut live[born..=last] {
            *entry = (entry.0 + 1, Some(id));
        }
    }
    live.into_iter().map(|(count, value)| value.filter(|_| count == 1)).collect()
}
