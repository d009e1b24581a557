//! [`Physical`]: a node's op on row-major tensors with the same bytes.
//!
//! Most ops do not care what an axis means. On values whose channels are blocked (`[n, c, h, w]` is stored as
//! `[n, c / 16, h, w, 16]`) a maximum is still a maximum, a concatenation of whole blocks still a concatenation, a crop of
//! rows still a crop of rows: the same op, or one with one more axis, on row-major tensors with the same bytes. This is
//! the node's physical form; kernels, aliasing and schedules use it and do not depend on layouts. Ops that sum over channels
//! or slide windows have none: their kernels take layouts. A transposition that brings channels in front of pixels, or behind
//! them, may have one blocked side: whole blocks of channels change places with pixels.
//!
//! Lanes that pad the last block have unspecified contents. A physical form computes them; nothing reads them.

use std::borrow::Cow;

use smallvec::SmallVec;
use types::{Layout, Shape};

use crate::ops::{Transpose, is_stored};
use crate::{AxisChange, Graph, Node, Op, Reuse, TensorType, ValueDef, ValueId, Work};

/// An op on row-major tensors that have the bytes of a node's values.
#[derive(Clone, Debug, PartialEq)]
pub struct Physical<'a> {
    /// The op.
    pub op: Cow<'a, Op>,
    /// The types of its operands. Constant operands of a node with a blocked result must be blocked as well.
    pub inputs: SmallVec<[TensorType; 4]>,
    /// The type of its first result.
    pub output: TensorType,
}

impl Graph {
    /// The physical form of a node; `None` for ops whose kernels take layouts, unless all their values are row-major.
    pub fn physical<'a>(&self, node: &'a Node) -> Option<Physical<'a>> {
        let values = || node.inputs.iter().chain(&node.outputs);
        if values().all(|&value| self.value(value).layout == Layout::RowMajor) {
            let inputs = node.inputs.iter().map(|&input| self.ty(input).clone()).collect();
            return Some(Physical { op: Cow::Borrowed(&node.op), inputs, output: self.ty(node.outputs[0]).clone() });
        }
        if let Op::Transpose(transpose) = &node.op {
            return self.moved_channels(node, transpose);
        }
        let layout = self.value(node.outputs[0]).layout;
        let op = match layout {
            Layout::RowMajor => return None,
            Layout::ChannelsLast => self.channels_last_op(node)?,
            Layout::ChannelsBlocked(block) => self.blocked_op(node, block)?,
        };
        let out = &self.ty(node.outputs[0]).shape;
        let inputs = node.inputs.iter().map(|&input| {
            let value = self.value(input);
            let shape = match value.tensor() {
                Some(_) => constant_shape(&value.ty.shape, out, layout),
                None => value.layout.physical(&value.ty.shape),
            };
            TensorType { dtype: value.ty.dtype, shape }
        });
        let output = TensorType { dtype: self.ty(node.outputs[0]).dtype, shape: layout.physical(out) };
        Some(Physical { op: Cow::Owned(op), inputs: inputs.collect(), output })
    }

    /// A transposition from `[n, .., c]` to blocked `[n, c, ..]`, or back, of channels that fill blocks.
    fn moved_channels<'a>(&self, node: &Node, transpose: &Transpose) -> Option<Physical<'a>> {
        let [x, y] = [node.inputs[0], node.outputs[0]].map(|value| self.value(value));
        let (to_front, layout, images) = match (x.layout, y.layout) {
            (Layout::RowMajor, layout @ Layout::ChannelsBlocked(_)) => (true, layout, &y.ty.shape),
            (layout @ Layout::ChannelsBlocked(_), Layout::RowMajor) => (false, layout, &x.ty.shape),
            _ => return None,
        };
        let rank = images.rank();
        let moves = if to_front { transpose.brings_channels_to_front() } else { transpose.brings_channels_to_back() };
        let blocked = layout.physical(images);
        if !moves || x.tensor().is_some() || blocked.elements() != images.elements() {
            return None;
        }
        // `[n, .., c / 16, 16]` and `[n, c / 16, .., 16]`.
        let rows: Shape = [&blocked[..1], &blocked[2..rank], &[blocked[1], blocked[rank]]].concat()[..].into();
        let (order, input, output): (SmallVec<[usize; 6]>, Shape, Shape) = match to_front {
            true => ([0, rank - 1].into_iter().chain(1..rank - 1).chain([rank]).collect(), rows, blocked),
            false => ([0].into_iter().chain(2..rank).chain([1, rank]).collect(), blocked, rows),
        };
        let typed = |shape: Shape| TensorType { dtype: x.ty.dtype, shape };
        let op = Cow::Owned(Transpose { order }.into());
        Some(Physical { op, inputs: [typed(input)].into_iter().collect(), output: typed(output) })
    }

    /// The op that computes a node where the channels of its result, and of all operands that vary along them, are
    /// blocked; `None` if there is none.
    pub fn blocked_op(&self, node: &Node, block: u16) -> Option<Op> {
        self.op_with(node, AxisChange::ChannelsBlocked(block))
    }

    /// The op that computes a node where the channels of its result, and of all operands that vary along them, are the last
    /// axis; `None` if there is none.
    pub fn channels_last_op(&self, node: &Node) -> Option<Op> {
        self.op_with(node, AxisChange::ChannelsLast)
    }

    fn op_with(&self, node: &Node, change: AxisChange) -> Option<Op> {
        // They sum over channels: this is known without their axes, which take longer to write down than those of other ops.
        if matches!(node.op, Op::Conv(_) | Op::Pool(_)) {
            return None;
        }
        let output = self.ty(*node.outputs.first()?);
        let inputs: SmallVec<[&TensorType; 4]> = node.inputs.iter().map(|&input| self.ty(input)).collect();
        if node.outputs.len() != 1 || output.shape.rank() < 2 {
            return None;
        }
        if change == AxisChange::ChannelsLast && inputs.first()?.shape.rank() < 2 {
            return None;
        }
        let possible = match node.op.axes(&inputs, output).work {
            Work::Elementwise => {
                is_stored(output.dtype) && node.inputs.iter().all(|&input| self.is_blockable(input, &output.shape))
            }
            Work::Movement | Work::Normalization | Work::Arithmetic => {
                let computed = |&input: &ValueId| self.value(input).tensor().is_none();
                2 <= inputs[0].shape.rank() && (inputs.len() == 1 || node.inputs.iter().all(computed))
            }
        };
        if possible { node.op.with_axes(change, &inputs, output) } else { None }
    }

    /// The bytes that a node's first result may share with its operands, whatever their layouts.
    pub fn reuse(&self, node: &Node) -> Reuse {
        if let Some(physical) = self.physical(node) {
            let inputs: SmallVec<[&TensorType; 4]> = physical.inputs.iter().collect();
            return physical.op.reuse(&inputs, &physical.output);
        }
        if let (Op::Relayout(_), [input]) = (&node.op, &node.inputs[..]) {
            return self.relayout_reuse(*input, node.outputs[0]);
        }
        let inputs: SmallVec<[&TensorType; 4]> = node.inputs.iter().map(|&input| self.ty(input)).collect();
        node.op.reuse(&inputs, self.ty(node.outputs[0]))
    }

    /// Layouts place elements differently only if both the channel axis and another inner axis have several elements.
    fn relayout_reuse(&self, input: ValueId, output: ValueId) -> Reuse {
        let [from, to] = [input, output].map(|value| self.value(value).layout);
        let shape = &self.ty(input).shape;
        let padded = |layout: Layout| layout.physical(shape).elements() != shape.elements();
        let one_place = shape.iter().skip(2).all(|&extent| extent == 1) || shape.get(1) == Some(&1);
        if from == to || (one_place && !padded(from) && !padded(to)) {
            return Reuse::Alias { offset: 0 };
        }
        Reuse::Never
    }

    /// Whether an operand of an elementwise op may be combined with blocked ones.
    fn is_blockable(&self, input: ValueId, out: &Shape) -> bool {
        let ty = self.ty(input);
        let known = matches!(self.value(input).source, ValueDef::Weight(_) | ValueDef::Constant(_));
        let alike = ty.shape.rank() == out.rank() && ty.shape[1] == out[1];
        is_stored(ty.dtype) && (known || alike || ty.shape.elements() == 1)
    }
}

/// The physical extents of a constant operand for a result `out` with a layout: aligned on the right, with one block of 1
/// lane if it does not vary along channels.
fn constant_shape(shape: &Shape, out: &Shape, layout: Layout) -> Shape {
    let mut aligned = shape.clone();
    while aligned.rank() < out.rank() {
        aligned.insert(0, 1);
    }
    match (layout, aligned[1]) {
        (Layout::ChannelsBlocked(_), 1) => {
            aligned.push(1);
            aligned
        }
        _ => layout.physical(&aligned),
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;
    use types::pointwise::{Binary as Function2, Unary as Function};
    use types::{DType, Random, Scope, Tensor};

    use super::*;
    use crate::axes::with_channels_last;
    use crate::ops::{
        Binary, Concat, Coordinates, Pad, PadMode, Reduce, ReduceKind, Reshape, Resize, ResizeMode, Rounding, Slice,
        Unary,
    };

    const BLOCK: u16 = 4;

    /// A tensor of `[n, c, ..]` with its channels in blocks; other lanes hold 9.
    fn blocked(tensor: &Tensor, shape: &Shape) -> Tensor {
        let mut aligned = tensor.shape().clone();
        while aligned.rank() + 1 < shape.rank() {
            aligned.insert(0, 1);
        }
        let items = tensor.as_slice::<f32>().expect("it holds f32");
        let strides = aligned.row_major_strides();
        let block = shape[shape.rank() - 1];
        let mut number = 0;
        Tensor::from_fn(shape.clone(), |_| {
            let mut rest = number;
            number += 1;
            let mut index: Vec<usize> = shape
                .iter()
                .rev()
                .map(|&extent| {
                    let at = rest % extent;
                    rest /= extent;
                    at
                })
                .collect();
            index.reverse();
            let lane = index.pop().unwrap_or_default();
            index[1] = index[1] * block + lane;
            let inside = index[1] < aligned[1];
            let at: usize = index.iter().zip(&strides).map(|(ix, stride)| ix * stride).sum();
            if inside { items[at] } else { 9.0 }
        })
    }

    /// A tensor of `[n, c, ..]` with its channels last.
    fn last(tensor: &Tensor, shape: &Shape) -> Tensor {
        let rank = shape.rank();
        let mut aligned = tensor.shape().clone();
        while aligned.rank() < rank {
            aligned.insert(0, 1);
        }
        let items = tensor.as_slice::<f32>().expect("it holds f32");
        let strides: Vec<usize> = with_channels_last(&aligned.row_major_strides()).collect();
        let item = |mut number: usize| {
            let axes = (0..rank).rev().map(|axis| {
                let at = number % shape[axis];
                number /= shape[axis];
                at * strides[axis]
            });
            items[axes.sum::<usize>()]
        };
        Tensor::from_fn(shape.clone(), item)
    }

    /// The physical form of an op computes the op's result in the layout.
    fn check(op: Op, shapes: &[&Shape], known: &[Shape]) {
        check_in(Layout::ChannelsBlocked(BLOCK), op.clone(), shapes, known);
        if !matches!(op, Op::Reshape(_) | Op::Resize(_)) {
            check_in(Layout::ChannelsLast, op, shapes, known);
        }
    }

    fn check_in(layout: Layout, op: Op, shapes: &[&Shape], known: &[Shape]) {
        let laid_out = if layout == Layout::ChannelsLast { last } else { blocked };
        let mut random = Random::new(3);
        let mut graph = Graph::new("one");
        let mut tensor = |shape: &Shape| Tensor::from_fn(shape.clone(), |_| random.uniform(-1.0, 1.0));
        let tensors: Vec<Tensor> = shapes.iter().copied().chain(known).map(&mut tensor).collect();
        let mut inputs: Vec<ValueId> =
            shapes.iter().map(|&shape| graph.add_input("x", DType::F32, shape.clone())).collect();
        inputs.iter().for_each(|&input| graph.value_mut(input).layout = layout);
        inputs.extend(tensors[shapes.len()..].iter().map(|tensor| graph.add_constant("k", tensor.clone())));
        let out = graph.add1(op, &inputs, Scope::new("node")).expect("it is accepted");
        graph.value_mut(out).layout = layout;
        let node = graph.nodes().values().next().expect("there is one");

        let form = graph.physical(node).unwrap_or_else(|| panic!("{:?} has a physical form", node.op));
        let types: Vec<&TensorType> = form.inputs.iter().collect();
        assert_eq!(form.op.infer(&types).expect("it is accepted")[0], form.output, "{:?}", node.op);
        let physical: Vec<Tensor> =
            tensors.iter().zip(&form.inputs).map(|(tensor, ty)| laid_out(tensor, &ty.shape)).collect();
        let got = form.op.eval(&physical.iter().collect::<Vec<_>>());
        let want = node.op.eval(&tensors.iter().collect::<Vec<_>>());
        let real = laid_out(&Tensor::from_fn(want[0].shape().clone(), |_| 1.0f32), &form.output.shape).to_f64();
        let want = laid_out(&want[0], &form.output.shape).to_f64();
        for ((got, want), real) in got[0].to_f64().iter().zip(want).zip(real) {
            assert!(real == 9.0 || *got == want, "{:?}: {got} for {want}", node.op);
        }
    }

    #[test]
    fn physical_forms_match_the_definition() {
        let image = Shape::from([2, 6, 5, 3]);
        let add = || Op::Binary(Binary(Function2::Add));
        check(Op::Unary(Unary(Function::Exp)), &[&image], &[]);
        check(add(), &[&image, &image], &[]);
        check(add(), &[&image, &Shape::from([2, 6, 1, 1])], &[]);
        for known in [&[6, 1, 1][..], &[1], &[3], &[], &[1, 6, 5, 3], &[5, 1], &[1, 1, 5, 3]] {
            check(add(), &[&image], &[known.into()]);
        }
        check(Op::Concat(Concat { axis: 1 }), &[&Shape::from([2, 8, 2, 3]), &Shape::from([2, 5, 2, 3])], &[]);
        check(Op::Concat(Concat { axis: 2 }), &[&Shape::from([2, 5, 2, 3]), &Shape::from([2, 5, 4, 3])], &[]);
        check(Op::Slice(Slice::range(&image, 1, 4, 2)), &[&image], &[]);
        check(Op::Slice(Slice::range(&image, 1, 0, 4)), &[&image], &[]);
        check(Op::Slice(Slice::range(&image, 2, 1, 3)), &[&image], &[]);
        let pad = smallvec![[0, 1], [0, 0], [2, -1], [1, 0]];
        check(Op::Pad(Pad { mode: PadMode::Constant(0.5), pad }), &[&image], &[]);
        check(Op::Reshape(Reshape { shape: Shape::from([2, 6, 15]) }), &[&image], &[]);
        for keep in [false, true] {
            let op = Reduce { kind: ReduceKind::Max, axes: smallvec![2, 3], keep };
            check(Op::Reduce(op), &[&image], &[]);
        }
        for mode in [ResizeMode::Linear, ResizeMode::Nearest(Rounding::Floor)] {
            let resize = Resize {
                shape: Shape::from([2, 6, 10, 6]),
                scale: smallvec![1.0, 1.0, 2.0, 2.0],
                mode,
                coordinates: Coordinates::HalfPixel,
                antialias: false,
                range: None,
            };
            check(Op::Resize(resize), &[&image], &[]);
        }
    }

    #[test]
    fn channels_move_in_blocks() {
        let blocked_layout = Layout::ChannelsBlocked(BLOCK);
        let forms: [(&[usize], &[usize], [Layout; 2]); 6] = [
            (&[2, 5, 8], &[0, 2, 1], [Layout::RowMajor, blocked_layout]),
            (&[2, 8, 5], &[0, 2, 1], [blocked_layout, Layout::RowMajor]),
            (&[2, 5, 3, 8], &[0, 3, 1, 2], [Layout::RowMajor, blocked_layout]),
            (&[2, 8, 5, 3], &[0, 2, 3, 1], [blocked_layout, Layout::RowMajor]),
            (&[2, 6, 5, 3], &[0, 2, 3, 1], [blocked_layout, Layout::RowMajor]),
            (&[2, 8, 5, 3], &[0, 3, 2, 1], [blocked_layout, Layout::RowMajor]),
        ];
        for (shape, order, layouts) in forms {
            let (shape, mut graph, mut random) = (Shape::from(shape), Graph::new("moved"), Random::new(5));
            let tensor = Tensor::from_fn(shape.clone(), |_| random.uniform(-1.0, 1.0));
            let x = graph.add_input("x", DType::F32, shape.clone());
            let op = Transpose { order: order.iter().copied().collect() };
            let y = graph.add1(op.into(), &[x], Scope::new("node")).expect("it is accepted");
            [x, y].into_iter().zip(layouts).for_each(|(value, layout)| graph.value_mut(value).layout = layout);
            let node = graph.nodes().values().next().expect("there is one");
            let Some(form) = graph.physical(node) else {
                assert!(shape[1] == 6 || order[1] == 3, "{shape:?} by {order:?} has a physical form");
                continue;
            };
            let laid_out = |tensor: &Tensor, layout: Layout, shape: &Shape| match layout {
                Layout::RowMajor => tensor.to_f64(),
                _ => blocked(tensor, shape).to_f64(),
            };
            let want = node.op.eval(&[&tensor]);
            let physical = laid_out(&tensor, layouts[0], &layouts[0].physical(&shape));
            let physical = Tensor::from_fn(form.inputs[0].shape.clone(), |at| physical[at] as f32);
            let want = laid_out(&want[0], layouts[1], &layouts[1].physical(want[0].shape()));
            assert_eq!(form.op.eval(&[&physical])[0].to_f64(), want, "{shape:?} by {order:?}");
        }
    }

    #[test]
    fn ops_that_cut_blocks_have_no_blocked_form() {
        let mut graph = Graph::new("cut");
        let x = graph.add_input("x", DType::F32, Shape::from([1, 12, 2, 2]));
        let slice = Slice::range(&Shape::from([1, 12, 2, 2]), 1, 2, 4);
        graph.add1(Op::Slice(slice), &[x], Scope::new("slice")).unwrap();
        let sum = Reduce { kind: ReduceKind::Sum, axes: smallvec![1], keep: true };
        graph.add1(Op::Reduce(sum), &[x], Scope::new("sum")).unwrap();
        assert!(graph.nodes().values().all(|node| graph.blocked_op(node, BLOCK).is_none()));
        // Channels that are last may be cut and summed.
        assert!(graph.nodes().values().all(|node| graph.channels_last_op(node).is_some()));
    }

    #[test]
    fn relayout_of_equal_bytes_is_an_alias() {
        let mut graph = Graph::new("relayout");
        let relayout = |graph: &mut Graph, shape: [usize; 4], layout: Layout| {
            let x = graph.add_input("x", DType::F32, Shape::from(shape));
            let y = graph.add1(Op::Relayout(crate::ops::Relayout {}), &[x], Scope::new("y")).unwrap();
            graph.value_mut(y).layout = layout;
            let node = graph.value(y).producer().unwrap();
            graph.reuse(graph.node(node))
        };
        let blocked = Layout::ChannelsBlocked(BLOCK);
        assert_eq!(relayout(&mut graph, [2, 8, 1, 1], blocked), Reuse::Alias { offset: 0 });
        assert_eq!(relayout(&mut graph, [1, 6, 1, 1], blocked), Reuse::Never);
        assert_eq!(relayout(&mut graph, [1, 8, 1, 2], blocked), Reuse::Never);
        assert_eq!(relayout(&mut graph, [1, 1, 2, 2], blocked), Reuse::Never);
        assert_eq!(relayout(&mut graph, [2, 6, 1, 1], Layout::ChannelsLast), Reuse::Alias { offset: 0 });
        assert_eq!(relayout(&mut graph, [2, 1, 3, 4], Layout::ChannelsLast), Reuse::Alias { offset: 0 });
        assert_eq!(relayout(&mut graph, [1, 8, 1, 2], Layout::ChannelsLast), Reuse::Never);
    }
}
