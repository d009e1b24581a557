//! [`rewrite`]: copies a graph node by node and replaces some nodes. Passes are built on it.

use smallvec::SmallVec;
use types::{EntityId, Map, Scope};

use crate::{Destination, Graph, Node, NodeId, Op, Output, Refusal, ValueDef, ValueId};

/// The copy under construction. Ids of both graphs are [`ValueId`]s: names say `old` or `new`.
pub struct Rewrite<'a> {
    /// The graph being copied.
    pub old: &'a Graph,
    /// The copy so far.
    pub new: Graph,
    map: Map<ValueId, Option<ValueId>>,
}

impl Rewrite<'_> {
    /// The new value for an old one. Weights and constants are copied on first use.
    pub fn value(&mut self, old: ValueId) -> ValueId {
        if let Some(new) = self.map[old] {
            return new;
        }
        let value = self.old.value(old);
        let new = match &value.source {
            ValueDef::Weight(tensor) => self.new.add_weight(&value.name, tensor.clone()),
            ValueDef::Constant(tensor) => self.new.add_constant(&value.name, tensor.clone()),
            ValueDef::Input | ValueDef::State { .. } | ValueDef::Node { .. } => {
                unreachable!("inputs, states and earlier nodes are mapped before they are read")
            }
        };
        self.new.value_mut(new).layout = value.layout;
        self.map[old] = Some(new);
        new
    }

    /// Sets the new value for the result of a node that was dropped. Readers of the result must come behind.
    pub fn replace(&mut self, old: ValueId, new: ValueId) {
        self.map[old] = Some(new);
        let role = self.old.value(old).result_role;
        let value = self.new.value_mut(new);
        value.name.clone_from(&self.old.value(old).name);
        if value.producer().is_some() {
            value.result_role = role;
        }
    }

    /// Adds a node to the copy; `inputs` are new values.
    ///
    /// # Errors
    /// The op rejects the operands: the pass has a bug, or gives up its rewrite.
    pub fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId], scope: &Scope) -> Result<ValueId, Refusal> {
        self.new.add1(op.into(), inputs, scope.clone())
    }

    /// Copies a node unchanged.
    pub fn copy(&mut self, node: &Node) -> SmallVec<[ValueId; 1]> {
        let inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&old| self.value(old)).collect();
        let outputs = self.new.add(node.op.clone(), &inputs, node.scope.clone()).expect("the old graph is verified");
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            let old = self.old.value(old);
            let value = self.new.value_mut(new);
            value.name.clone_from(&old.name);
            value.layout = old.layout;
            value.result_role = old.result_role;
        }
        outputs
    }
}

impl Rewrite<'_> {
    /// Gives the values that replace a node's results their roles, and intermediate values the role of the first result.
    /// A value that existed before is another one's result and keeps its own.
    fn keep_roles(&mut self, node: &Node, first_new: usize, outputs: &[ValueId]) {
        let Some(&first) = node.outputs.first() else { return };
        let role = self.old.value(first).result_role;
        for value in (first_new..self.new.values().len()).map(ValueId::from_index) {
            if self.new.value(value).producer().is_some() && !outputs.contains(&value) {
                self.new.value_mut(value).result_role = role;
            }
        }
        for (&old, &new) in node.outputs.iter().zip(outputs) {
            if first_new <= new.index() && self.new.value(new).producer().is_some() {
                self.new.value_mut(new).result_role = self.old.value(old).result_role;
            }
        }
    }
}

/// Copies `old` in order. For each node `replace` returns the new values of its outputs, an empty list to drop the node, or
/// `None` to copy it unchanged. A dropped node must have no readers left in the copy.
pub fn rewrite(old: &Graph, replace: impl FnMut(&mut Rewrite, NodeId) -> Option<SmallVec<[ValueId; 1]>>) -> Graph {
    rewrite_in_order(old, old.nodes().keys(), replace)
}

/// The same nodes in another order, which must be topological and contain each node once.
pub fn reorder(old: &Graph, order: &[NodeId]) -> Graph {
    rewrite_in_order(old, order.iter().copied(), |_, _| None)
}

fn rewrite_in_order(
    old: &Graph,
    order: impl Iterator<Item = NodeId>,
    mut replace: impl FnMut(&mut Rewrite, NodeId) -> Option<SmallVec<[ValueId; 1]>>,
) -> Graph {
    let mut context = Rewrite { old, new: Graph::new(&old.name), map: Map::filled(old.values().len(), None) };
    for &input in old.inputs() {
        let value = old.value(input);
        let new = context.new.add_input(&value.name, value.ty.dtype, value.ty.shape.clone());
        context.new.value_mut(new).layout = value.layout;
        context.map[input] = Some(new);
    }
    for &state in old.states() {
        let value = old.value(state);
        let ValueDef::State { initial, role } = &value.source else {
            unreachable!("a verified graph lists its states")
        };
        let new = context.new.add_state(&value.name, initial.clone(), *role);
        context.new.value_mut(new).layout = value.layout;
        context.map[state] = Some(new);
    }
    for id in order {
        let node = old.node(id);
        let first_new = context.new.values().len();
        let outputs = replace(&mut context, id).unwrap_or_else(|| context.copy(node));
        context.keep_roles(node, first_new, &outputs);
        for (&old_output, new_output) in node.outputs.iter().zip(outputs) {
            context.map[old_output] = Some(new_output);
        }
    }
    let output = |output: &Output| {
        let destination = match output.destination {
            Destination::Caller => Destination::Caller,
            Destination::State(state) => Destination::State(context.value(state)),
        };
        Output { name: output.name.clone(), value: context.value(output.value), destination }
    };
    let outputs = old.outputs().iter().map(output).collect();
    context.new.replace_outputs(outputs);
    context.new
}
