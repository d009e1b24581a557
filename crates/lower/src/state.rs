//! Updates of states as nodes: [`with_copies`] adds the copies that bring each state's next value into the state's bytes.
//!
//! A copy is a concatenation of one operand. It falls away if the node before it writes its result in place of the state
//! (`alias`).

use std::borrow::Cow;

use ir::ops::{Concat, Reshape};
use ir::{Graph, Reuse, ValueDef, ValueId, reorder};
use types::{Scope, Shape};

/// The graph with a copy node for each update, behind all other nodes. The copies are the values of the updates.
///
/// A result or next value that shares its bytes with a state is copied before all updates, which could overwrite it.
pub(crate) fn with_copies(graph: &Graph) -> Cow<'_, Graph> {
    if graph.states().is_empty() {
        return Cow::Borrowed(graph);
    }
    let order: Vec<_> = graph.nodes().keys().collect();
    let mut new = reorder(graph, &order);
    let mut outputs = new.outputs().to_vec();
    // A state that is its own next value stays as it is.
    outputs.retain(|output| output.state() != Some(output.value));
    for output in &mut outputs {
        if is_alias(&new, output.value) {
            output.value = saved(&mut new, output.value, &Scope::new(&output.name).child("save"));
        }
    }
    for output in outputs.iter_mut().filter(|output| output.state().is_some()) {
        output.value = copy(&mut new, output.value, &Scope::new(&output.name).child("update"));
    }
    new.replace_outputs(outputs);
    Cow::Owned(new)
}

/// The value that a copy node writes into the bytes of a state, with that state.
pub(crate) fn updates(graph: &Graph) -> impl Iterator<Item = (ValueId, ValueId)> {
    graph.outputs().iter().filter_map(|output| Some((output.value, output.state()?)))
}

/// The value that an update copies, before views of it: what the state becomes.
pub(crate) fn next(graph: &Graph, update: ValueId) -> Option<ValueId> {
    let mut next = graph.node(graph.value(update).producer()?).inputs[0];
    while let Some(node) = graph.value(next).producer().map(|node| graph.node(node))
        && let Reuse::Alias { offset: 0 } = graph.reuse(node)
        && graph.ty(node.inputs[0]).shape.elements() == graph.ty(next).shape.elements()
    {
        next = node.inputs[0];
    }
    Some(next)
}

/// Whether a value is a state, or a view of one.
fn is_alias(graph: &Graph, mut value: ValueId) -> bool {
    loop {
        match graph.value(value).source {
            ValueDef::State { .. } => return true,
            ValueDef::Node { node, .. } if matches!(graph.reuse(graph.node(node)), Reuse::Alias { .. }) => {
                value = graph.node(node).inputs[0];
            }
            _ => return false,
        }
    }
}

const FITS: &str = "any value can be copied and reshaped to as many elements";

/// A copy of a value, of the same shape.
fn saved(graph: &mut Graph, value: ValueId, scope: &Scope) -> ValueId {
    let copy = copy(graph, value, scope);
    let shape = graph.ty(value).shape.clone();
    match graph.ty(copy).shape == shape {
        true => copy,
        false => graph.add1(Reshape { shape }.into(), &[copy], scope.child("reshape")).expect(FITS),
    }
}

/// A copy of a value. The copy of a scalar has one axis.
fn copy(graph: &mut Graph, mut value: ValueId, scope: &Scope) -> ValueId {
    if graph.ty(value).shape.is_empty() {
        let reshape = Reshape { shape: Shape::from([1]) };
        value = graph.add1(reshape.into(), &[value], scope.child("reshape")).expect(FITS);
    }
    graph.add1(Concat { axis: 0 }.into(), &[value], scope.clone()).expect(FITS)
}
