//! [`save_gates`]: the backward pass of a recurrent layer reads the values of its gates instead of their operands.
//!
//! Both have the same size, and the values may take the bytes of the operands. With the values, the backward pass needs
//! neither the products of states by weights nor the functions of the gates again: a third of its arithmetic.

use ir::ops::{RecurrentGradient, RecurrentWithGates};
use ir::{Graph, Node, NodeId, Op, Query, Target, ValueId, rewrite};
use types::Map;

use crate::uses::Uses;

/// Saves the values of gates for each layer whose gradient follows from them, where the target has kernels for it.
pub fn save_gates(graph: &Graph, target: &dyn Target) -> Graph {
    let computes_again = |node: &Node| matches!(&node.op, Op::RecurrentGradient(op) if !op.values && op.recurrent.cell.gradient_follows_from_gates());
    if !graph.nodes().values().any(computes_again) {
        return graph.clone();
    }
    let uses = Uses::new(graph);
    // By gradient the layer.
    let mut layers: Map<NodeId, Option<NodeId>> = Map::filled(graph.nodes().len(), None);
    let mut is_changed = Map::filled(graph.nodes().len(), false);
    for (gradient, node) in graph.nodes().iter().filter(|(_, node)| computes_again(node)) {
        let Op::RecurrentGradient(op) = &node.op else { continue };
        let (gates, states) = (node.inputs[0], node.inputs[op.layer_operands()]);
        // Other operands may have been computed again for the backward pass, such as joined weights.
        let is_layer = |id: NodeId| {
            let node = graph.node(id);
            node.op == Op::Recurrent(op.recurrent.clone()) && (node.inputs[0], node.outputs[0]) == (gates, states)
        };
        if let Some(&layer) = uses.readers(gates).iter().find(|&&reader| is_layer(reader)) {
            layers[gradient] = Some(layer);
            is_changed[layer] = true;
        }
    }
    let mut values: Map<NodeId, Option<ValueId>> = Map::filled(graph.nodes().len(), None);
    let new = rewrite(graph, |context, id| {
        let node = graph.node(id);
        if let (Op::Recurrent(layer), true) = (&node.op, is_changed[id]) {
            let operands: Vec<ValueId> = node.inputs.iter().map(|&input| context.value(input)).collect();
            let op = RecurrentWithGates { recurrent: layer.clone() };
            let results = context.new.add(op.into(), &operands, node.scope.clone()).expect("the operands fit");
            for (&new, &old) in results[1..].iter().zip(&node.outputs) {
                context.new.value_mut(new).name.clone_from(&graph.value(old).name);
            }
            let name = format!("{}:gates", graph.value(node.outputs[0]).name);
            context.new.value_mut(results[0]).name = name;
            values[id] = Some(results[0]);
            return Some(results[1..].into());
        }
        let (Op::RecurrentGradient(op), Some(layer)) = (&node.op, layers[id]) else { return None };
        let mut operands: Vec<ValueId> = node.inputs.iter().map(|&input| context.value(input)).collect();
        operands[0] = values[layer].expect("a layer is in front of its gradient");
        let op = RecurrentGradient { values: true, ..op.clone() };
        let results = context.new.add(op.into(), &operands, node.scope.clone()).expect("the types stay");
        for (&new, &old) in results.iter().zip(&node.outputs) {
            context.new.value_mut(new).name.clone_from(&graph.value(old).name);
            context.new.value_mut(new).result_role = graph.value(old).result_role;
        }
        Some(results)
    });
    let is_new = |op: &Op| {
        matches!(op, Op::RecurrentWithGates(_) | Op::RecurrentGradient(RecurrentGradient { values: true, .. }))
    };
    let has_kernel = |id: NodeId| target.candidates(&new, &[id], &Query::GIVEN).is_ok_and(|found| !found.is_empty());
    let has_kernels = new.nodes().iter().filter(|(_, node)| is_new(&node.op)).all(|(id, _)| has_kernel(id));
    if has_kernels { new } else { graph.clone() }
}

#[cfg(test)]
mod tests {
    use ir::Candidate;
    use ir::ops::Recurrent;
    use types::recurrent::{Cell, Direction};
    use types::{DType, Random, Scope, Shape, Tensor};

    use super::*;
    use crate::test_target::TestTarget;

    /// A layer and its gradient, with a state that both directions have.
    fn trained(cell: Cell) -> Graph {
        let mut graph = Graph::new("trained");
        let recurrent = Recurrent { cell, direction: Direction::Bidirectional };
        let mut input = |name: &str, shape: &[usize]| graph.add_input(name, DType::F32, Shape::from(shape));
        let columns = recurrent.cell.gates() * 3;
        let gates = input("gates", &[4, 2, 2 * columns]);
        let mut operands = vec![gates, input("r", &[2, columns, 3]), input("h", &[2, 2, 3])];
        if recurrent.cell.has_memory() {
            operands.push(input("c", &[2, 2, 3]));
        }
        let results = graph.add(recurrent.clone().into(), &operands, Scope::new("layer")).expect("the operands fit");
        operands.push(results[0]);
        operands.extend_from_slice(&results);
        let op = RecurrentGradient { recurrent, values: false };
        let gradients = graph.add(op.into(), &operands, Scope::new("gradient")).expect("the operands fit");
        let outputs = results.iter().chain(&gradients).enumerate();
        let outputs: Vec<(String, ValueId)> = outputs.map(|(ix, &value)| (format!("out {ix}"), value)).collect();
        graph.set_outputs(outputs);
        graph
    }

    #[test]
    fn gates_are_saved_where_the_target_has_kernels() {
        let some =
            TestTarget::new(|graph: &Graph, nodes: &[NodeId], _: &Query| vec![Candidate::given(graph, nodes[0])]);
        let none = TestTarget::new(|_: &Graph, _: &[NodeId], _: &Query| Vec::new());
        let lstm = trained(Cell::LSTM);
        let gru = trained(Cell::gru(types::recurrent::Reset::BeforeProduct));
        for same in [save_gates(&lstm, &none), save_gates(&gru, &some)] {
            assert!(same.nodes().values().any(|node| matches!(node.op, Op::Recurrent(_))), "{same:?}");
        }
        let new = save_gates(&lstm, &some);
        ir::verify(&new).expect("it is valid");
        assert!(new.nodes().values().all(|node| !matches!(node.op, Op::Recurrent(_))), "{new:?}");
        let mut random = Random::new(9);
        let inputs: Vec<Tensor> = (lstm.inputs().iter())
            .map(|&input| Tensor::from_fn(lstm.ty(input).shape.clone(), |_| random.uniform(-1.0, 1.0)))
            .collect();
        let [old, new] = [&lstm, &new].map(|graph| ir::evaluate(graph, &inputs).expect("the inputs fit"));
        for (old, new) in old.iter().zip(&new) {
            let near = old.to_f64().iter().zip(new.to_f64()).all(|(old, new)| (old - new).abs() < 1e-5);
            assert!(near, "{old:?} {new:?}");
        }
    }
}
