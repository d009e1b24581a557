//! [`match_layer_norm`]: the nodes that exporters write for layer normalization become one operator.

use ir::ops::{Binary, LayerNorm, Reduce, ReduceKind};
use ir::{Graph, Node, NodeId, Op, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary as Function2, Unary as Function};
use types::{DType, Shape};

use crate::uses::Uses;

/// Matches `(x - mean) / sqrt(variance + epsilon)` over the last axes, the quotient possibly a product with the reciprocal,
/// and a following scale and shift if nothing else reads the intermediate results. Squares must be products, as
/// `canonicalize` writes them. Unread nodes are left to `dce`.
pub fn match_layer_norm(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let Norm { op, x, scale, shift } = find(&uses, id)?;
        let operands = [Some(x), scale, shift].into_iter().flatten();
        let inputs: SmallVec<[ValueId; 3]> = operands.map(|operand| context.value(operand)).collect();
        Some(smallvec![context.add(op, &inputs, &graph.node(id).scope).ok()?])
    })
}

/// A layer normalization and its operands.
struct Norm {
    op: LayerNorm,
    x: ValueId,
    scale: Option<ValueId>,
    shift: Option<ValueId>,
}

/// The normalization whose result a node yields.
fn find(uses: &Uses, id: NodeId) -> Option<Norm> {
    // A product with the scale and a sum with the shift, at most. Rows of sums may be long.
    find_behind(uses, id, 2)
}

/// The same with at most `steps` nodes behind the standardized values.
fn find_behind(uses: &Uses, id: NodeId, steps: usize) -> Option<Norm> {
    let node = uses.graph.node(id);
    if let Some(norm) = standardized(uses, node) {
        return Some(norm);
    }
    let Op::Binary(Binary(function)) = node.op else { return None };
    let steps = steps.checked_sub(1)?;
    let behind = |value: ValueId| {
        uses.only_reader(value)?;
        find_behind(uses, uses.producer(value)?.0, steps)
    };
    [[0, 1], [1, 0]].into_iter().find_map(|[normal, other]| {
        let (normal, other) = (node.inputs[normal], node.inputs[other]);
        let mut norm = behind(normal)?;
        let row: Shape = uses.graph.ty(norm.x).shape[norm.op.axis..].into();
        if uses.graph.ty(other).shape != row || norm.shift.is_some() {
            return None;
        }
        match function {
            Function2::Mul if norm.scale.is_none() => (norm.scale, norm.op.scale) = (Some(other), true),
            Function2::Add => (norm.shift, norm.op.shift) = (Some(other), true),
            _ => return None,
        }
        Some(norm)
    })
}

/// `(x - mean) / sqrt(variance + epsilon)`
fn standardized(uses: &Uses, node: &Node) -> Option<Norm> {
    let Op::Binary(Binary(function)) = node.op else { return None };
    let (a, b) = (node.inputs[0], node.inputs[1]);
    let (centred, deviation) = match function {
        Function2::Div => (a, b),
        Function2::Mul => match (reciprocal(uses, b), reciprocal(uses, a)) {
            (Some(deviation), _) => (a, deviation),
            (None, Some(deviation)) => (b, deviation),
            (None, None) => return None,
        },
        _ => return None,
    };
    let shifted = uses.argument(deviation, Function::Sqrt)?;
    let (variance, epsilon) = uses.with_constant(shifted, Function2::Add)?;
    let [x, mean] = uses.operands(centred, Function2::Sub)?;
    let (squares, axis) = mean_of(uses, variance)?;
    let is_square = uses.operands(squares, Function2::Mul) == Some([centred, centred]);
    (is_square && mean_of(uses, mean) == Some((x, axis)) && uses.graph.ty(x).dtype == DType::F32).then_some(Norm {
        op: LayerNorm { axis, epsilon, scale: false, shift: false },
        x,
        scale: None,
        shift: None,
    })
}

/// `x` of `1 / x`.
fn reciprocal(uses: &Uses, value: ValueId) -> Option<ValueId> {
    uses.argument(value, Function::Reciprocal).or_else(|| {
        let [one, x] = uses.operands(value, Function2::Div)?;
        (uses.scalar_constant(one) == Some(1.0)).then_some(x)
    })
}

/// The operand of a mean over its last axes, and the first of them.
fn mean_of(uses: &Uses, value: ValueId) -> Option<(ValueId, usize)> {
    let (_, node) = uses.producer(value)?;
    let Op::Reduce(Reduce { kind: ReduceKind::Mean, axes, keep: true }) = &node.op else { return None };
    let rank = uses.graph.ty(node.inputs[0]).shape.rank();
    let first = *axes.iter().min()?;
    let to_the_end = axes.len() == rank - first && (first..rank).all(|axis| axes.contains(&axis));
    to_the_end.then_some((node.inputs[0], first))
}

#[cfg(test)]
mod tests {
    use ir::evaluate;
    use ir::ops::Unary;
    use types::{Random, Scope, Tensor};

    use super::*;

    struct Spelling {
        power: bool,
        reciprocal: bool,
        axes: &'static [usize],
        scale: &'static [usize],
        others: bool,
    }

    const PLAIN: Spelling = Spelling { power: true, reciprocal: false, axes: &[2], scale: &[6], others: false };

    /// The ops of a pattern of `[2, 3, 6]` after the pass, which must keep the results.
    fn ops(spelling: &Spelling) -> Vec<&'static str> {
        let mut graph = Graph::new("norm");
        let x = graph.add_input("x", DType::F32, Shape::from([2, 3, 6]));
        let number = |graph: &mut Graph, number: f32| graph.add_constant("number", Tensor::scalar(number));
        let (two, epsilon) = (number(&mut graph, 2.0), number(&mut graph, 1e-5));
        let numbers = |from: f32| {
            let mut next = from;
            Tensor::from_fn(Shape::from(spelling.scale), |_| {
                next += 0.25;
                next
            })
        };
        let (scale, shift) = (graph.add_weight("scale", numbers(0.0)), graph.add_weight("shift", numbers(-1.0)));
        let mut add = |op: Op, inputs: &[ValueId]| graph.add1(op, inputs, Scope::new("node")).unwrap();
        let mean = |axes: &[usize]| -> Op {
            Reduce { kind: ReduceKind::Mean, axes: axes.iter().copied().collect(), keep: true }.into()
        };
        let binary = |function| -> Op { Binary(function).into() };
        let average = add(mean(spelling.axes), &[x]);
        let centred = add(binary(Function2::Sub), &[x, average]);
        let squares = match spelling.power {
            true => add(binary(Function2::Pow), &[centred, two]),
            false => add(binary(Function2::Mul), &[centred, centred]),
        };
        let variance = add(mean(spelling.axes), &[squares]);
        let shifted = add(binary(Function2::Add), &[epsilon, variance]);
        let deviation = add(Unary(Function::Sqrt).into(), &[shifted]);
        let normal = match spelling.reciprocal {
            true => {
                let inverse = add(Unary(Function::Reciprocal).into(), &[deviation]);
                add(binary(Function2::Mul), &[inverse, centred])
            }
            false => add(binary(Function2::Div), &[centred, deviation]),
        };
        let scaled = add(binary(Function2::Mul), &[scale, normal]);
        let y = add(binary(Function2::Add), &[scaled, shift]);
        let mut outputs = vec![("y".to_owned(), y)];
        if spelling.others {
            outputs.push(("normal".into(), normal));
        }
        graph.set_outputs(outputs);

        let found = crate::dce(&match_layer_norm(&crate::canonicalize(&graph)));
        ir::verify(&found).expect("it is a graph");
        let mut random = Random::new(5);
        let input = Tensor::from_fn(Shape::from([2, 3, 6]), |_| random.uniform(-1.0, 3.0));
        let [before, after] = [&graph, &found].map(|graph| evaluate(graph, std::slice::from_ref(&input)).unwrap());
        for (before, after) in before.iter().zip(&after) {
            for (before, after) in before.to_f64().iter().zip(after.to_f64()) {
                assert!((before - after).abs() < 1e-5, "{after} for {before}");
            }
        }
        found.nodes().values().map(|node| node.op.name()).collect()
    }

    #[test]
    fn spellings_become_one_node() {
        for (power, reciprocal) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(ops(&Spelling { power, reciprocal, ..PLAIN }), ["layer_norm"]);
        }
        assert_eq!(ops(&Spelling { axes: &[1, 2], scale: &[3, 6], ..PLAIN }), ["layer_norm"]);
    }

    #[test]
    fn normalization_with_other_readers_keeps_its_scale_outside() {
        assert_eq!(ops(&Spelling { others: true, ..PLAIN }), ["layer_norm", "binary", "binary"]);
    }

    #[test]
    fn scale_of_another_shape_stays_outside() {
        assert_eq!(ops(&Spelling { scale: &[1], ..PLAIN }), ["layer_norm", "binary", "binary"]);
        assert_eq!(ops(&Spelling { axes: &[2], scale: &[3, 6], ..PLAIN }), ["layer_norm", "binary", "binary"]);
    }

    #[test]
    fn mean_over_leading_axes_does_not_match() {
        assert!(!ops(&Spelling { axes: &[1], scale: &[6], ..PLAIN }).contains(&"layer_norm"));
    }
}
