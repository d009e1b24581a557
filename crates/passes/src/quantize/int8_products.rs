//! Matrix products and convolutions of dequantized values as products of int8 values.

use ir::ops::{Binary, Cast, Conv, Epilogue, MatMul, Pad, PadMode, Slice, Unary};
use ir::{Graph, INT8_TERMS, Node, NodeId, Op, Operator, Rewrite, ValueId};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary as Function2, Unary as Function};
use types::{DType, Shape, Tensor};

use super::dequantized::Dequantized;
use crate::uses::Uses;

/// Terms of at most 255 * 255 whose sum is below 2^24, so that `f32` represents it exactly.
const EXACT_TERMS: usize = 256;

/// An int8 product without a kernel: exact partial sums in `f32`, added as `i32`.
pub(super) fn sums_of_numbers(context: &mut Rewrite, graph: &Graph, node: &Node) -> Option<SmallVec<[ValueId; 1]>> {
    let Op::MatMul(matmul) = &node.op else { return None };
    let [a, b] = [0, 1].map(|ix| context.value(node.inputs[ix]));
    let terms = *graph.ty(node.inputs[0]).shape.last()?;
    let scope = |part: &str| node.scope.child(part);
    let mut sum = None;
    for start in (0..terms.max(1)).step_by(EXACT_TERMS) {
        let count = EXACT_TERMS.min(terms - start);
        let mut numbers = |x: ValueId, axis_from_end: usize, zero: i32| -> Option<ValueId> {
            let shape = context.new.ty(x).shape.clone();
            let part = Slice::range(&shape, shape.rank() - axis_from_end, start, count);
            let part = context.add(part, &[x], &scope("part")).ok()?;
            let wide = context.add(Cast { to: DType::F32 }, &[part], &scope("number")).ok()?;
            let zero = context.new.add_constant(&format!("{}.zero", node.scope), Tensor::scalar(zero as f32));
            context.add(Binary(Function2::Sub), &[wide, zero], &scope("centred")).ok()
        };
        let (left, right) = (numbers(a, 1, matmul.zero)?, numbers(b, 2, 0)?);
        let part = context.add(MatMul::default(), &[left, right], &node.scope).ok()?;
        let part = context.add(Cast { to: DType::I32 }, &[part], &scope("sum")).ok()?;
        sum = Some(match sum {
            None => part,
            Some(sum) => context.add(Binary(Function2::Add), &[sum, part], &node.scope).ok()?,
        });
    }
    sum.map(|sum| smallvec![sum])
}

/// An operand of a matrix product, zero-padded along the reduced axis to a multiple of [`INT8_TERMS`].
fn padded(context: &mut Rewrite, node: &Node, x: ValueId, axis_from_end: usize) -> Option<ValueId> {
    let value = context.new.value(x);
    let shape = &value.ty.shape;
    let axis = shape.rank() - axis_from_end;
    let more = shape[axis].next_multiple_of(INT8_TERMS) - shape[axis];
    if more == 0 {
        return Some(x);
    }
    let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0; 2], shape.rank());
    pad[axis][1] = more as isize;
    let pad = Pad { mode: PadMode::Constant(0.0), pad };
    match value.tensor() {
        Some(tensor) => {
            let (name, tensor) = (value.name.clone(), pad.eval(&[tensor]).swap_remove(0));
            Some(context.new.add_weight(&name, tensor))
        }
        None => context.add(pad, &[x], &node.scope.child("padded")).ok(),
    }
}

/// The operands of a product, zero-padded if it is a matrix product.
fn padded_operands(context: &mut Rewrite, node: &Node, [a, b]: [ValueId; 2]) -> Option<SmallVec<[ValueId; 4]>> {
    if !matches!(node.op, Op::MatMul(_)) {
        return Some(smallvec![a, b]);
    }
    Some(smallvec![padded(context, node, a, 1)?, padded(context, node, b, 2)?])
}

/// An int8 matrix product with padded operands. `None` if it needs no padding.
pub(super) fn product_of_padded(context: &mut Rewrite, node: &Node) -> Option<SmallVec<[ValueId; 1]>> {
    let given = [0, 1].map(|ix| context.value(node.inputs[ix]));
    let operands = padded_operands(context, node, given)?;
    if operands[..] == given {
        return None;
    }
    Some(smallvec![context.add(node.op.clone(), &operands, &node.scope).ok()?])
}

/// A product of dequantized values as an int8 product with a scale.
pub(super) fn product_of_bytes(
    context: &mut Rewrite,
    graph: &Graph,
    id: NodeId,
    fits: &dyn Fn(&Graph, NodeId) -> bool,
) -> Option<SmallVec<[ValueId; 1]>> {
    let node = graph.node(id);
    let (Op::Conv(Conv { epilogue, .. }) | Op::MatMul(MatMul { epilogue, .. })) = &node.op else { return None };
    if epilogue.scale || epilogue.residual || epilogue.result.is_some() || !fits(graph, id) {
        return None;
    }
    let x = Dequantized::of(graph, graph.value(node.inputs[0]).producer()?)?;
    let (zero, x_scale) = x.scalars()?;
    if graph.value(x.q).tensor().is_some()
        || graph.ty(x.q).dtype != DType::U8
        || !(0.0..=255.0).contains(&zero)
        || zero.fract() != 0.0
    {
        return None;
    }
    let (weight, scales) = signed_weight(graph, node)?;
    let scales: Vec<f32> = scales.iter().map(|scale| x_scale * scale).collect();

    let mut op = node.op.clone();
    let (Op::Conv(Conv { zero: own, epilogue, .. }) | Op::MatMul(MatMul { zero: own, epilogue, .. })) = &mut op else {
        return None;
    };
    (*own, epilogue.scale) = (zero as i32, true);
    let name = &graph.value(node.inputs[1]).name;
    let weight = context.new.add_weight(name, weight);
    let scale = context.new.add_weight(&format!("{}.scale", node.scope), Tensor::vector(scales));
    let factors = [context.value(x.q), weight];
    let mut operands = padded_operands(context, node, factors)?;
    operands.push(scale);
    operands.extend(node.inputs[2..].iter().map(|&old| context.value(old)));
    Some(smallvec![context.add(op, &operands, &node.scope).ok()?])
}

/// A constant int8 weight without its zero points, and its scales per output channel. `None` if scales vary inside a channel.
fn signed_weight(graph: &Graph, node: &Node) -> Option<(Tensor, Vec<f32>)> {
    let (q, scale) = constant_int8(graph, node.inputs[1])?;
    let (items, shape) = (scale.as_slice::<f32>()?, q.shape());
    let is_conv = matches!(node.op, Op::Conv(_));
    let channels = if is_conv { *shape.first()? } else { *shape.last()? };
    if !is_conv && shape.rank() != 2 || channels == 0 {
        return None;
    }
    let inner = items.len() / channels;
    let channel = |at: usize| if is_conv { at / inner.max(1) } else { at % channels };
    let first = |channel: usize| if is_conv { channel * inner } else { channel };
    let scales: Vec<f32> = (0..channels).map(|channel| items.get(first(channel)).copied()).collect::<Option<_>>()?;
    let one_each = items.iter().enumerate().all(|(at, &scale)| scale == scales[channel(at)]);
    one_each.then_some((q, scales))
}

/// Constant int8 values behind a dequantizing chain and moves: as `i8` without zero points, and the scale of each.
fn constant_int8(graph: &Graph, value: ValueId) -> Option<(Tensor, Tensor)> {
    let producer = graph.value(value).producer()?;
    let node = graph.node(producer);
    if matches!(node.op, Op::Reshape(_) | Op::Transpose(_)) {
        let (q, scale) = constant_int8(graph, node.inputs[0])?;
        return Some((node.op.eval(&[&q]).swap_remove(0), node.op.eval(&[&scale]).swap_remove(0)));
    }
    let numbers = Dequantized::of(graph, producer)?;
    let q = graph.value(numbers.q).tensor()?;
    let [zero, scale] = [numbers.zero, numbers.scale].map(|known| known.spread(graph, q.shape()));
    let (zero, scale) = (zero?, scale?);
    let items: Vec<f32> = q.cast(DType::F32).as_slice::<f32>()?.to_vec();
    let items: Vec<f32> = items.iter().zip(zero.as_slice::<f32>()?).map(|(item, zero)| item - zero).collect();
    let fits = items.iter().all(|item| (-128.0..=127.0).contains(item) && item.fract() == 0.0);
    fits.then(|| Some((Tensor::new(q.shape().clone(), items).ok()?.cast(DType::I8), scale))).flatten()
}

/// An int32 sum that is cast to `f32`, possibly after subtracting the contribution of a zero point: both become the epilogue of
/// the product, each rounded to `f32`.
pub(super) fn sum_as_number(
    context: &mut Rewrite,
    uses: &Uses,
    id: NodeId,
    fits: &dyn Fn(&Graph, NodeId) -> bool,
) -> Option<SmallVec<[ValueId; 1]>> {
    let graph = uses.graph;
    let node = graph.node(id);
    if node.op != Op::Cast(Cast { to: DType::F32 }) {
        return None;
    }
    let (product, moved) = match uses.operands(node.inputs[0], Function2::Sub) {
        Some([product, moved]) => (product, Some(moved)),
        None => (node.inputs[0], None),
    };
    let (producer, sums) = uses.producer(product)?;
    let Op::MatMul(matmul) = &sums.op else { return None };
    if !fits(graph, producer) {
        return None;
    }
    let columns = graph.ty(product).shape.last().copied()?;
    if graph.ty(product).dtype != DType::I32 || moved.is_some_and(|moved| graph.ty(moved).shape[..] != [columns]) {
        return None;
    }
    let factors = [0, 1].map(|ix| context.value(sums.inputs[ix]));
    let mut operands = padded_operands(context, sums, factors)?;
    let name = format!("{}.scale", node.scope);
    operands.push(context.new.add_constant(&name, Tensor::full(Shape::from([columns]), 1.0f32)));
    if let Some(moved) = moved {
        let moved = context.value(moved);
        let moved = context.add(Cast { to: DType::F32 }, &[moved], &node.scope.child("zero")).ok()?;
        operands.push(context.add(Unary(Function::Neg), &[moved], &node.scope.child("bias")).ok()?);
    }
    let mut op = matmul.clone();
    op.epilogue = Epilogue { scale: true, bias: moved.is_some(), ..Epilogue::default() };
    Some(smallvec![context.add(op, &operands, &sums.scope).ok()?])
}
