//! [`save_positions`]: the backward pass of a maximum pool reads positions of one byte instead of the pool's operand.
//!
//! The gradient of a maximum goes to the largest cell of each window. Without positions it is searched again in the operand,
//! which costs no memory if the operand is saved for another reader anyway. Else positions are saved instead of the operand:
//! a byte for each result.

use ir::ops::{PoolGradient, PoolWithPositions};
use ir::{Graph, Node, NodeId, Op, ValueId, rewrite};
use types::{DType, Map};

use crate::uses::Uses;

/// Saves positions for each maximum pool whose operand has no other reader in the backward pass than the pool's gradient.
pub fn save_positions(graph: &Graph) -> Graph {
    let is_search = |node: &Node| matches!(&node.op, Op::PoolGradient(op) if node.inputs.len() == 2 && !op.positions);
    if !graph.nodes().values().any(is_search) {
        return graph.clone();
    }
    let uses = Uses::new(graph);
    let is_backward = crate::recompute::backward_nodes(graph, &uses);
    // By gradient the maximum pool whose operand it reads.
    let mut pools: Map<NodeId, Option<NodeId>> = Map::filled(graph.nodes().len(), None);
    let mut is_changed = Map::filled(graph.nodes().len(), false);
    for (gradient, node) in graph.nodes().iter().filter(|(_, node)| is_search(node)) {
        let Op::PoolGradient(op) = &node.op else { continue };
        let x = node.inputs[1];
        let readers = uses.readers(x);
        let is_alone = readers.iter().all(|&reader| reader == gradient || !is_backward[reader]);
        let is_saved_anyway = graph.value(x).producer().is_none() || graph.is_output(x);
        let pool = readers.iter().find(|&&reader| graph.node(reader).op == Op::Pool(op.pool.clone()));
        // Kernels with positions compute with f32, over at most two axes.
        let ty = graph.ty(x);
        let has_kernel = ty.dtype == DType::F32 && ty.shape.rank() <= 4;
        let cells = op.pool.kernel.iter().product::<usize>();
        if let Some(&pool) = pool
            && is_alone
            && !is_saved_anyway
            && has_kernel
            && cells <= PoolWithPositions::CELLS_MAX
        {
            pools[gradient] = Some(pool);
            is_changed[pool] = true;
        }
    }
    let mut positions: Map<NodeId, Option<ValueId>> = Map::filled(graph.nodes().len(), None);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        if let (Op::Pool(pool), true) = (&node.op, is_changed[id]) {
            let x = context.value(node.inputs[0]);
            let op = PoolWithPositions { pool: pool.clone() };
            let results = context.new.add(op.into(), &[x], node.scope.clone()).expect("the operand fits");
            context.new.value_mut(results[0]).name.clone_from(&graph.value(node.outputs[0]).name);
            positions[id] = Some(results[1]);
            return Some(results[..1].into());
        }
        let (Op::PoolGradient(op), Some(pool)) = (&node.op, pools[id]) else { return None };
        let op = PoolGradient { positions: true, ..op.clone() };
        let operands = [context.value(node.inputs[0]), positions[pool].expect("a pool is in front of its gradient")];
        let results = context.new.add(op.into(), &operands, node.scope.clone()).expect("the types stay");
        context.new.value_mut(results[0]).name.clone_from(&graph.value(node.outputs[0]).name);
        Some(results)
    })
}

#[cfg(test)]
mod tests {
    use ir::ops::{Pool, PoolKind, Unary};
    use types::pointwise::Unary as Function;
    use types::{Random, Role, Scope, Shape, Tensor};

    use super::*;

    /// The gradient of a pool behind a function. With `square`, the backward pass also reads the function's result.
    fn pooled(square: bool) -> Graph {
        let mut graph = Graph::new("pooled");
        let x = graph.add_input("x", DType::F32, Shape::from([2, 3, 9, 9]));
        let x = graph.add1(Unary(Function::Tanh).into(), &[x], Scope::new("tanh")).unwrap();
        let pool = Pool::square(PoolKind::Max, 3, 2, 1);
        let y = graph.add1(pool.clone().into(), &[x], Scope::new("pool")).unwrap();
        let shape = graph.ty(y).shape.clone();
        let dy = graph.add_input("dy", DType::F32, shape);
        let op = PoolGradient { pool, extents: [9, 9].into_iter().collect(), positions: false };
        let dx = graph.add1(op.into(), &[dy, x], Scope::new("gradient")).unwrap();
        graph.value_mut(dx).result_role = Some(Role::ActivationGradient);
        let mut outputs = vec![("y".to_string(), y), ("dx".to_string(), dx)];
        if square {
            let other = graph.add1(Unary(Function::Abs).into(), &[x], Scope::new("other")).unwrap();
            graph.value_mut(other).result_role = Some(Role::ActivationGradient);
            outputs.push(("other".to_string(), other));
        }
        graph.set_outputs(outputs);
        graph
    }

    #[test]
    fn positions_are_saved_where_the_operand_is_not() {
        for (square, want) in [(false, 1), (true, 0)] {
            let graph = pooled(square);
            let new = save_positions(&graph);
            ir::verify(&new).unwrap();
            let pools = new.nodes().values().filter(|node| matches!(node.op, Op::PoolWithPositions(_))).count();
            assert_eq!(pools, want);
            let mut random = Random::new(9);
            let inputs: Vec<Tensor> = (graph.inputs().iter())
                .map(|&input| Tensor::from_fn(graph.ty(input).shape.clone(), |_| random.uniform(-1.0, 1.0)))
                .collect();
            assert_eq!(ir::evaluate(&graph, &inputs).unwrap(), ir::evaluate(&new, &inputs).unwrap());
        }
    }
}
