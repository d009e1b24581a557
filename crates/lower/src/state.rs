//! Updates of states as nodes: [`with_copies`] adds the copies that bring each state's next value into the state's bytes.
//!
//! A copy is a concatenation of one operand. It falls away if the node before it writes its result in place of the state
//! ([`ir::analysis::alias`]).

use std::borrow::Cow;

use ir::ops::{Concat, Reshape};
use ir::{Graph, Reuse, Target, ValueDef, ValueId, reorder};
use types::{Scope, Shape};

use crate::{LowerError, Selection};

/// The graph with a copy node for each update, behind all other nodes, and the selection with kernels for the copies. The
/// copies are the values of the updates.
///
/// A result or next value that shares its bytes with a state is copied before all updates, which could overwrite it.
///
/// # Errors
/// The target has no kernel for a copy.
pub(crate) fn with_copies<'a>(
    graph: &'a Graph,
    target: &dyn Target,
    selection: &'a Selection,
) -> Result<(Cow<'a, Graph>, Cow<'a, Selection>), LowerError> {
    if graph.states().is_empty() {
        return Ok((Cow::Borrowed(graph), Cow::Borrowed(selection)));
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
    let selection = selection.extended(&new, target)?;
    Ok((Cow::Owned(new), Cow::Owned(selection)))
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
