//! [`save_in_half`]: a training step saves values for its backward pass in half precision.
//!
//! Weights, gradients and sums stay `f32`, and so does every kernel. Only values that wait for the backward pass are stored
//! as `bf16` or `f16`: they are most of a step's memory, and their gradients tolerate the rounding.
//!
//! ```text
//!   conv -> x (f32) -> relu -> ...            saved: x as bf16, half of the bytes
//!           x -> cast -> x' (bf16)
//!                x' -> cast -> x'' (f32) -> weight gradient
//! ```

use ir::ops::Cast;
use ir::{Graph, NodeId, Op, Reuse, Rewrite, ValueId, rewrite};
use smallvec::SmallVec;
use types::{DType, EntityId, Map};

use crate::recompute::{backward_nodes, compared};
use crate::uses::Uses;

/// The least bytes of a value that is worth two casts.
const BYTES_MIN: u64 = 1 << 16;

/// Saves values for the backward pass in `half`. Graphs without a backward pass stay as they are.
///
/// # Panics
/// `half` is not a dtype that casts take.
pub(crate) fn save_in_half(graph: &Graph, half: DType) -> Graph {
    let uses = Uses::new(graph);
    let is_backward = backward_nodes(graph, &uses);
    let plan = HalfPlan { graph, is_halved: halved(graph, &is_backward) };
    let values = graph.values().len();
    let (mut saved, mut again) = (Map::filled(values, None), Map::filled(values, None));
    let mut clones: Vec<std::ops::Range<usize>> = Vec::new();
    let mut new = rewrite(graph, |context, id| {
        let node = graph.node(id);
        let first = context.new.values().len();
        let outputs = match is_backward[id] && node.inputs.iter().any(|&input| plan.root(input).is_some()) {
            false => context.copy(node),
            true => {
                let inputs: SmallVec<[ValueId; 4]> =
                    node.inputs.iter().map(|&input| plan.again(context, &saved, &mut again, input)).collect();
                clones.push(first..context.new.values().len());
                let outputs = context.new.add(node.op.clone(), &inputs, node.scope.clone()).expect("the types stay");
                for (&old, &new) in node.outputs.iter().zip(&outputs) {
                    context.new.value_mut(new).name.clone_from(&graph.value(old).name);
                }
                outputs
            }
        };
        let halved = node.outputs.iter().zip(&outputs).find(|&(&old, _)| plan.is_halved[old]);
        if let Some((&old, &output)) = halved {
            let scope = node.scope.child("half");
            saved[old] = Some(context.add(Cast { to: half }, &[output], &scope).expect("floats are cast"));
        }
        Some(outputs)
    });
    clones.into_iter().flatten().for_each(|ix| new.value_mut(ValueId::from_index(ix)).result_role = None);
    new
}

struct HalfPlan<'a> {
    graph: &'a Graph,
    /// By value whether the backward pass reads it in half precision.
    is_halved: Map<ValueId, bool>,
}

impl HalfPlan<'_> {
    /// The halved value that a value is, or is a view of.
    fn root(&self, value: ValueId) -> Option<ValueId> {
        if self.is_halved[value] {
            return Some(value);
        }
        self.root(viewed(self.graph, value)?)
    }

    /// A value of the copy for the backward pass, cast back to `f32`.
    fn again(
        &self,
        context: &mut Rewrite,
        saved: &Map<ValueId, Option<ValueId>>,
        again: &mut Map<ValueId, Option<ValueId>>,
        old: ValueId,
    ) -> ValueId {
        if self.root(old).is_none() {
            return context.value(old);
        }
        if let Some(clone) = again[old] {
            return clone;
        }
        let node = self.graph.node(self.graph.value(old).producer().expect("halved values and views have a node"));
        let scope = node.scope.child("again");
        let clone = match saved[old] {
            Some(saved) => context.add(Cast { to: DType::F32 }, &[saved], &scope),
            None => {
                let viewed = self.again(context, saved, again, node.inputs[0]);
                context.add(node.op.clone(), &[viewed], &scope)
            }
        };
        let clone = clone.expect("the types stay");
        again[old] = Some(clone);
        clone
    }
}

/// The operand of a view.
fn viewed(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let node = graph.node(graph.value(value).producer()?);
    (node.inputs.len() == 1 && matches!(graph.reuse(node), Reuse::Alias { .. })).then(|| node.inputs[0])
}

/// By value whether it is saved in half precision: a large `f32` result of the forward pass that depends on the inputs and
/// that the backward pass reads, neither for comparison nor as logits of a loss.
fn halved(graph: &Graph, is_backward: &Map<NodeId, bool>) -> Map<ValueId, bool> {
    let values = graph.values().len();
    let mut varies = Map::filled(values, false);
    graph.inputs().iter().for_each(|&input| varies[input] = true);
    for node in graph.nodes().values() {
        let depends = node.inputs.iter().any(|&input| varies[input]);
        node.outputs.iter().for_each(|&output| varies[output] = depends);
    }
    // Readers of views read the value.
    let mut is_read: Map<ValueId, bool> = Map::filled(values, false);
    let mut is_exact = compared(graph, is_backward);
    for (id, node) in graph.nodes().iter().rev() {
        let is_loss = matches!(node.op, Op::SoftmaxCrossEntropyGradient(_) | Op::CtcGradient(_));
        for &input in &node.inputs {
            is_read[input] |= is_backward[id];
            is_exact[input] |= is_loss;
        }
        for &output in &node.outputs {
            if let Some(operand) = viewed(graph, output) {
                is_read[operand] |= is_read[output];
                is_exact[operand] |= is_exact[output];
            }
        }
    }
    let mut halved = Map::filled(values, false);
    for (_, node) in graph.nodes().iter().filter(|&(id, _)| !is_backward[id]) {
        let Some(&value) = node.outputs.first() else { continue };
        let ty = graph.ty(value);
        let is_large = BYTES_MIN <= 4 * ty.shape.elements() as u64 && 2 <= ty.shape.rank();
        let is_kept = is_exact[value] || graph.is_output(value) || viewed(graph, value).is_some();
        halved[value] = ty.dtype == DType::F32 && is_large && varies[value] && is_read[value] && !is_kept;
    }
    halved
}

#[cfg(test)]
mod tests {
    use ir::ops::{Binary, Reshape, Unary};
    use types::pointwise::{Binary as Function2, Unary as Function};
    use types::{Random, Role, Scope, Shape, Tensor};

    use super::*;

    #[test]
    fn backward_pass_reads_rounded_values_and_the_forward_pass_exact_ones() {
        let mut graph = Graph::new("saved");
        let shape = Shape::from([64, 300]);
        let x = graph.add_input("x", DType::F32, shape.clone());
        let a = graph.add1(Unary(Function::Tanh).into(), &[x], Scope::new("tanh")).unwrap();
        let flat = Shape::from([64 * 300]);
        let view = graph.add1(Reshape { shape: flat.clone() }.into(), &[a], Scope::new("view")).unwrap();
        let y = graph.add1(Unary(Function::Exp).into(), &[a], Scope::new("y")).unwrap();
        let dy = graph.add_input("dy", DType::F32, flat);
        let dx = graph.add1(Binary(Function2::Mul).into(), &[dy, view], Scope::new("gradient")).unwrap();
        graph.value_mut(dx).result_role = Some(Role::ActivationGradient);
        graph.set_outputs(vec![("y".into(), y), ("dx".into(), dx)]);

        let new = save_in_half(&graph, DType::Bf16);
        ir::verify(&new).unwrap();
        let mut random = Random::new(4);
        let inputs: Vec<Tensor> = (graph.inputs().iter())
            .map(|&input| Tensor::from_fn(graph.ty(input).shape.clone(), |_| random.uniform(-1.0, 1.0)))
            .collect();
        let (want, got) = (ir::evaluate(&graph, &inputs).unwrap(), ir::evaluate(&new, &inputs).unwrap());
        assert_eq!(want[0], got[0], "the forward pass stays");
        let (want, got) = (want[1].to_f64(), got[1].to_f64());
        assert_ne!(want, got);
        for (want, got) in want.iter().zip(&got) {
            assert!((want - got).abs() <= want.abs() / 256.0, "{got} is not {want} rounded to bf16");
        }
    }
}
