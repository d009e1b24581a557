//! [`Deferred`]: functions that a training step computes behind a maximum pool instead of in front of it.
//!
//! `max(relu(x)) = relu(max(x))`, and so for every function that does not decrease. Behind the pool the function has fewer
//! elements, and its gradient follows from its result: neither its operand nor the operand of the pool is saved for the
//! backward pass, only the result and the positions of the maxima.
//!
//! ```text
//!   conv -> relu -> pool -> y            saved: the result of relu, y
//!   conv -> pool -> relu -> y            saved: y, a byte of position for each of its elements
//! ```

use std::collections::{BTreeMap, BTreeSet};

use ir::ops::{Pool, PoolKind, Unary};
use ir::{Graph, Op, ValueId};
use types::pointwise::Unary as Function;

use crate::uses::Uses;

/// Functions to move, by values of the model.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// The results of functions that are not computed where they are.
    pub(super) skipped: BTreeSet<ValueId>,
    /// By the result of a pool the function of it.
    pub(super) behind: BTreeMap<ValueId, Op>,
}

impl Deferred {
    pub(super) fn of(graph: &Graph) -> Deferred {
        let (uses, mut deferred) = (Uses::new(graph), Deferred::default());
        for node in graph.nodes().values() {
            if !matches!(&node.op, Op::Pool(pool) if has_cells(pool)) {
                continue;
            }
            let operand = node.inputs[0];
            if uses.only_reader(operand).is_none() {
                continue;
            }
            // A function, or a concatenation of results of one function.
            let parts: &[ValueId] = match uses.producer(operand) {
                Some((_, concat)) if matches!(concat.op, Op::Concat(_)) => &concat.inputs,
                _ => &[operand],
            };
            let functions: Vec<&Op> = parts
                .iter()
                .filter(|&&part| uses.only_reader(part).is_some())
                .filter_map(|&part| uses.producer(part))
                .map(|(_, node)| &node.op)
                .filter(|op| does_not_decrease(op))
                .collect();
            let Some(&first) = functions.first() else { continue };
            if functions.len() == parts.len() && functions.iter().all(|&function| function == first) {
                deferred.skipped.extend(parts);
                deferred.behind.insert(node.outputs[0], first.clone());
            }
        }
        deferred
    }
}

/// Whether a pool takes maxima, and each window has a cell of its operand: the maximum of none is not a function's result.
fn has_cells(pool: &Pool) -> bool {
    let is_inside = |axis: usize| pool.dilation[axis] == 1 && pool.pad[axis].iter().all(|&pad| pad < pool.kernel[axis]);
    pool.kind == PoolKind::Max && (0..pool.kernel.len()).all(is_inside)
}

/// Whether a function never falls, also as computed, and has its gradient from its result.
fn does_not_decrease(op: &Op) -> bool {
    let Op::Unary(Unary(function)) = op else { return false };
    matches!(function, Function::Relu | Function::Clip { .. } | Function::Tanh | Function::Sigmoid)
}

#[cfg(test)]
mod tests {
    use ir::ops::Concat;
    use types::{DType, Scope, Shape};

    use super::*;

    fn unary(graph: &mut Graph, function: Function, x: ValueId) -> ValueId {
        graph.add1(Unary(function).into(), &[x], Scope::new("function")).unwrap()
    }

    fn pool(graph: &mut Graph, x: ValueId) -> ValueId {
        graph.add1(Pool::square(PoolKind::Max, 2, 2, 0).into(), &[x], Scope::new("pool")).unwrap()
    }

    #[test]
    fn functions_move_behind_their_only_reader() {
        let mut graph = Graph::new("functions");
        let x = graph.add_input("x", DType::F32, Shape::from([1, 2, 4, 4]));
        let relu = unary(&mut graph, Function::Relu, x);
        let first = pool(&mut graph, relu);
        let [a, b] = [(); 2].map(|()| unary(&mut graph, Function::Tanh, x));
        let joined = graph.add1(Concat { axis: 1 }.into(), &[a, b], Scope::new("concat")).unwrap();
        let second = pool(&mut graph, joined);
        // A function that falls, a mixture, and a result with another reader stay.
        let falls = unary(&mut graph, Function::Neg, x);
        let third = pool(&mut graph, falls);
        let [c, d] = [Function::Relu, Function::Tanh].map(|function| unary(&mut graph, function, x));
        let mixed = graph.add1(Concat { axis: 1 }.into(), &[c, d], Scope::new("concat")).unwrap();
        let fourth = pool(&mut graph, mixed);
        let shared = unary(&mut graph, Function::Relu, x);
        let fifth = pool(&mut graph, shared);
        let outputs = [first, second, third, fourth, fifth, shared];
        graph.set_outputs(outputs.iter().enumerate().map(|(ix, &value)| (format!("y{ix}"), value)).collect());
        let deferred = Deferred::of(&graph);
        assert_eq!(deferred.skipped, BTreeSet::from([relu, a, b]));
        assert_eq!(deferred.behind.keys().copied().collect::<Vec<_>>(), [first, second]);
    }
}
