//! [`conv_transpose_to_conv`]: transposed convolutions without a stride as convolutions.

use ir::ops::{Conv, ConvTranspose, Reshape, Slice, Transpose};
use ir::{Graph, Node, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::Shape;

use crate::uses::Uses;

/// Results that the convolution may have for each pixel of its input: products by its padding are computed.
const GROWTH_MAX: usize = 2;

/// Replaces transposed convolutions with a stride of 1 and constant weights by convolutions with the taps in reverse order, for
/// which there are more kernels. [`fold_constants`](crate::fold_constants) then stores the weights in that order.
pub fn conv_transpose_to_conv(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let Op::ConvTranspose(transposed) = &node.op else { return None };
        let [x, weight] = [node.inputs[0], node.inputs[1]];
        // Other readers of the weights need them as they are.
        if uses.constant(weight).is_none() || uses.readers(weight).len() != 1 {
            return None;
        }
        let area = |value: ValueId| graph.ty(value).shape[2..].iter().product::<usize>();
        if GROWTH_MAX * area(x) < area(node.outputs[0]) {
            return None;
        }
        let conv = convolution(transposed, &graph.ty(weight).shape[2..])?;
        let weight = reversed(context, node, transposed.groups);
        let mut inputs: SmallVec<[ValueId; 3]> = node.inputs.iter().map(|&input| context.value(input)).collect();
        inputs[1] = weight;
        Some(smallvec![context.add(conv, &inputs, &node.scope).expect("the result has the same type")])
    })
}

/// The convolution that computes the same with the taps in reverse order; none if there is a stride, or if inputs are cut off.
fn convolution(transposed: &ConvTranspose, kernel: &[usize]) -> Option<Conv> {
    let ConvTranspose { stride, dilation, pad, output_pad, groups, epilogue } = transposed;
    if stride.iter().any(|&stride| stride != 1) {
        return None;
    }
    let mut own = pad.clone();
    for (axis, own) in own.iter_mut().enumerate() {
        let reach = (kernel[axis] - 1) * dilation[axis];
        *own = [reach.checked_sub(pad[axis][0])?, (reach + output_pad[axis]).checked_sub(pad[axis][1])?];
    }
    let (stride, dilation) = (stride.clone(), dilation.clone());
    Some(Conv { stride, dilation, pad: own, groups: *groups, zero: 0, epilogue: epilogue.clone() })
}

/// Weights `[in_channels, out_channels / groups, ..kernel]` as `[out_channels, in_channels / groups, ..kernel]`, with the taps in
/// reverse order.
fn reversed(context: &mut Rewrite, node: &Node, groups: usize) -> ValueId {
    let weight = context.value(node.inputs[1]);
    let shape = context.new.ty(weight).shape.clone();
    let (ins, outs, kernel) = (shape[0] / groups, shape[1], &shape[2..]);
    let with_kernel = |first: &[usize]| -> Shape { first.iter().chain(kernel).copied().collect() };
    let mut order: SmallVec<[usize; 6]> = (0..shape.rank() + 1).collect();
    order.swap(1, 2);
    let mut slice = Slice::whole(&with_kernel(&[groups * outs, ins]));
    for (axis, &taps) in kernel.iter().enumerate() {
        slice.start[axis + 2] = taps - 1;
        slice.step[axis + 2] = -1;
    }
    let steps: [Op; 4] = [
        Reshape { shape: with_kernel(&[groups, ins, outs]) }.into(),
        Transpose { order }.into(),
        Reshape { shape: slice.count.clone() }.into(),
        slice.into(),
    ];
    let reversed = steps.into_iter().fold(weight, |value, op| {
        context.add(op, &[value], &node.scope).expect("the weights have the shape of the convolution")
    });
    let name = context.new.value(weight).name.clone();
    context.new.value_mut(reversed).name = name;
    reversed
}
