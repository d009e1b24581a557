//! [`decompose_batch_norm`]: batch normalization as one scale and one shift per channel.

use ir::ops::{BatchNorm, Binary, Reshape, Unary};
use ir::{Graph, NodeId, Op, Rewrite, ValueId, rewrite};
use smallvec::smallvec;
use types::pointwise::{self, Binary as Function};
use types::{Shape, Tensor, TensorFunction};

use crate::uses::Uses;

/// Replaces batch normalization by `x * a + b` with one `a` and one `b` per channel: constants computed in `f64` if all
/// statistics are constant, otherwise nodes.
pub fn decompose_batch_norm(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let Op::BatchNorm(BatchNorm { epsilon }) = node.op else { return None };
        let known = |ix: usize| uses.constant(node.inputs[ix]);
        let (Some(scale), Some(shift), Some(mean), Some(variance)) = (known(1), known(2), known(3), known(4)) else {
            return split_at_run_time(context, graph, id, epsilon).ok().map(|y| smallvec![y]);
        };
        let shape = along_channels(scale.elements(), graph.ty(node.inputs[0]).shape.rank());
        let derived = |function: TensorFunction, operands: &[&Tensor]| {
            Tensor::derived(function, operands).expect("verified statistics have one number a channel")
        };
        let a = derived(TensorFunction::NormScale { epsilon, shape: shape.clone() }, &[scale, variance]);
        let b = derived(TensorFunction::NormShift { epsilon, shape }, &[scale, shift, mean, variance]);
        let a = context.new.add_weight(&format!("{}.scale", node.scope), a);
        let b = context.new.add_weight(&format!("{}.shift", node.scope), b);
        let x = context.value(node.inputs[0]);
        let product = context.add(Binary(Function::Mul), &[x, a], &node.scope).ok()?;
        Some(smallvec![context.add(Binary(Function::Add), &[product, b], &node.scope).ok()?])
    })
}

/// The same with dynamic statistics: `a = scale / sqrt(variance + epsilon)`, `b = shift - mean * a`.
fn split_at_run_time(context: &mut Rewrite, graph: &Graph, id: NodeId, epsilon: f32) -> Result<ValueId, ir::Refusal> {
    let node = graph.node(id);
    let ty = graph.ty(node.inputs[0]);
    let [x, scale, shift, mean, variance] = [0, 1, 2, 3, 4].map(|ix: usize| context.value(node.inputs[ix]));
    let epsilon = Tensor::scalar(f64::from(epsilon)).cast(graph.ty(node.inputs[4]).dtype);
    let epsilon = context.new.add_constant(&format!("{}.epsilon", node.scope), epsilon);
    let mut add = |op: Op, inputs: &[ValueId]| context.add(op, inputs, &node.scope);
    let binary = |function: Function| Op::from(Binary(function));
    let sum = add(binary(Function::Add), &[variance, epsilon])?;
    let deviation = add(Op::from(Unary(pointwise::Unary::Sqrt)), &[sum])?;
    let a = add(binary(Function::Div), &[scale, deviation])?;
    let offset = add(binary(Function::Mul), &[mean, a])?;
    let b = add(binary(Function::Sub), &[shift, offset])?;
    let shape = along_channels(graph.ty(node.inputs[1]).shape.elements(), ty.shape.rank());
    let [a, b] = [add(Op::from(Reshape { shape: shape.clone() }), &[a])?, add(Op::from(Reshape { shape }), &[b])?];
    let product = add(binary(Function::Mul), &[x, a])?;
    add(binary(Function::Add), &[product, b])
}

/// A channel axis and extents of 1 behind it, which broadcasts over `[n, c, ..]`.
fn along_channels(channels: usize, rank: usize) -> Shape {
    let mut shape = Shape::from([channels]);
    (2..rank).for_each(|_| shape.push(1));
    shape
}
