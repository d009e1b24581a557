//! [`conv3d_to_conv2d`]: windows over three dimensions become windows over two, for which targets have kernels.
//!
//! A convolution over depth, rows and columns is a sum over the kernel's depth of convolutions over rows and columns. With
//! the depth brought in front of the channels, each tap reads some of the planes, which are images of a batch:
//!
//! ```text
//! [n, c, d, h, w] -> [n, d, c, h, w] -> tap t: planes t, t + stride, ..: [n * d', c, h, w] -> conv -> [n * d', o, h', w']
//!                                                                       sum over taps -> [n, d', o, h', w'] -> [n, o, d', h', w']
//! ```
//!
//! Pointwise operators, concatenations of channels, pools and convolutions behind such a convolution read its planes, not the
//! volume that they are transposed back to. A transposition that nothing reads is removed.
//!
//! The planes of a transposed convolution at one remainder by its stride, a *phase*, are a sum over some of the taps, from the last
//! to the first; phases are interleaved. A maximum or mean of a box is that along its depth of those of its planes: the divisor of
//! a mean is a product of extents. The gradient of such a pool goes the other way: to the planes, then along the depth. Of
//! equal maxima in several planes the first in its plane takes it.
//!
//! Of volumes with few channels, the planes of all taps are stacked as channels of one image, so that a result is written once and
//! not added to for each tap.
//!
//! A convolution of one tap has no need of planes: its volumes are images with as many rows as all planes together.

use ir::ops::{
    Binary, Concat, Conv, ConvTranspose, Epilogue, Expand, Pad, PadMode, Pool, PoolGradient, PoolKind, Reshape, Slice,
    Transpose,
};
use ir::{Graph, Node, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Binary as Function;
use types::{DType, Scope, Shape, Tensor};

use super::dce::dce;
use crate::uses::Uses;

/// Replaces convolutions, transposed ones and pools that slide over more than two dimensions. Planes of zeros are stored in
/// front of and behind the planes of a padded volume.
pub fn conv3d_to_conv2d(graph: &Graph) -> Graph {
    by_planes(graph, Edges::Padded)
}

/// The same without planes of zeros: the first and last planes of a result, which read fewer planes, are convolutions of their own.
pub fn conv3d_to_conv2d_apart(graph: &Graph) -> Graph {
    by_planes(graph, Edges::Apart)
}

/// The most channels of an image of stacked planes.
const STACKED_MAX: usize = 32;

/// The planes of a convolution that the volume does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edges {
    /// Planes of zeros.
    Padded,
    /// None: results that read the same taps are computed together, and concatenated.
    Apart,
}

fn by_planes(graph: &Graph, edges: Edges) -> Graph {
    let has_rank_five = |node: &Node| node.inputs.iter().any(|&input| 4 < graph.ty(input).shape.rank());
    if !graph.nodes().iter().any(|(_, node)| has_rank_five(node)) {
        return graph.clone();
    }
    let uses = Uses::new(graph);
    let new = rewrite(graph, |context, id| {
        let node = graph.node(id);
        let rank = graph.ty(*node.inputs.first()?).shape.rank();
        if rank < 5 {
            return None;
        }
        let x = context.value(node.inputs[0]);
        let mut builder = Builder { context, scope: &node.scope, edges };
        if let Op::Pool(op) = &node.op {
            let depth = graph.ty(node.outputs[0]).shape[2];
            let pooled = builder.pool_of_planes(x, op, depth).unwrap_or_else(|| builder.pool(x, op));
            return Some(smallvec![pooled]);
        }
        if let Op::Unary(_) | Op::Binary(_) | Op::Concat(_) = &node.op {
            return builder.on_planes(node).map(|y| smallvec![y]);
        }
        if let Op::PoolGradient(op) = &node.op
            && !op.positions
        {
            let operand = node.inputs.get(1).map(|&x| builder.context.value(x));
            return Some(smallvec![builder.pool_gradient(x, operand, op)]);
        }
        if !node.op.epilogue().is_some_and(is_plain) || !of_numbers(graph, node) {
            return None;
        }
        if let Op::Conv(op) = &node.op {
            let kernel = Kernel::new(&mut builder, &uses, node);
            return Some(smallvec![builder.conv(x, kernel, op)]);
        }
        let Op::ConvTranspose(op) = &node.op else { return None };
        let kernel = Kernel::new(&mut builder, &uses, node);
        Some(smallvec![builder.conv_transpose(x, kernel, op)])
    });
    dce(&new)
}

/// Whether a graph has windows over three dimensions.
pub fn has_volumes(graph: &Graph) -> bool {
    let slides = |node: &Node| matches!(node.op, Op::Conv(_) | Op::ConvTranspose(_) | Op::Pool(_));
    graph.nodes().values().any(|node| slides(node) && graph.ty(node.outputs[0]).shape.rank() == 5)
}

/// Whether the epilogue has a bias at most. Later passes add the other parts.
fn is_plain(epilogue: &Epilogue) -> bool {
    !epilogue.residual && epilogue.activation.is_empty()
}

/// Only `f32`: a sum of partial sums must not be rounded to less in between.
fn of_numbers(graph: &Graph, node: &Node) -> bool {
    node.inputs.iter().chain(&node.outputs).all(|&value| graph.ty(value).dtype == DType::F32)
}

/// The weights `[.., .., depth, ..]` of a convolution and its bias.
#[derive(Clone)]
struct Kernel {
    weight: Weight,
    bias: Option<ValueId>,
}

#[derive(Clone)]
enum Weight {
    Known(String, Tensor),
    Computed(ValueId),
}

impl Weight {
    fn value(self, builder: &mut Builder) -> ValueId {
        match self {
            Weight::Known(name, tensor) => builder.context.new.add_weight(&name, tensor),
            Weight::Computed(value) => value,
        }
    }
}

impl Kernel {
    fn new(builder: &mut Builder, uses: &Uses, node: &Node) -> Kernel {
        let weight = match uses.constant(node.inputs[1]) {
            Some(tensor) => Weight::Known(uses.graph.value(node.inputs[1]).name.clone(), tensor.clone()),
            None => Weight::Computed(builder.context.value(node.inputs[1])),
        };
        Kernel { weight, bias: node.inputs.get(2).map(|&bias| builder.context.value(bias)) }
    }

    fn shape(&self, builder: &Builder) -> Shape {
        match &self.weight {
            Weight::Known(_, tensor) => tensor.shape().clone(),
            Weight::Computed(value) => builder.shape(*value),
        }
    }

    /// The kernel's plane at a depth.
    fn tap(&self, builder: &mut Builder, tap: usize) -> Kernel {
        let whole = self.shape(builder);
        let mut shape = whole.clone();
        shape.remove(2);
        let weight = match &self.weight {
            Weight::Known(name, tensor) => {
                let inner: usize = whole[3..].iter().product();
                let source = |at: usize| (at / inner * whole[2] + tap) * inner + at % inner;
                let items = tensor.as_slice::<f32>().expect("windows compute in f32");
                let plane = Tensor::from_fn(shape, |at| items[source(at)]);
                Weight::Computed(builder.context.new.add_weight(&format!("{name}.{tap}"), plane))
            }
            Weight::Computed(value) => {
                let slice = builder.add(Slice::range(&whole, 2, tap, 1), &[*value]);
                Weight::Computed(builder.reshape(slice, shape))
            }
        };
        Kernel { weight, bias: self.bias }
    }

    /// The operands of the convolution of `x`.
    fn operands(self, builder: &mut Builder, x: ValueId) -> SmallVec<[ValueId; 3]> {
        let weight = self.weight.value(builder);
        [x, weight].into_iter().chain(self.bias).collect()
    }

    fn epilogue(&self) -> Epilogue {
        Epilogue { bias: self.bias.is_some(), ..Epilogue::default() }
    }
}

/// The planes that the taps of a kernel's depth read.
struct Taps {
    /// Taps of the kernel, each with the first plane that it reads, counted from the first of the padding.
    starts: Vec<(usize, usize)>,
    /// The distance of the planes of neighboring results.
    step: usize,
    /// Planes of zeros in front of and behind the volume; negative counts remove planes.
    pad: [isize; 2],
    /// Planes of the result.
    count: usize,
}

/// Neighboring planes of a result that read the same taps.
struct Part {
    count: usize,
    /// The numbers of the taps, each with the first plane that it reads.
    taps: Vec<(usize, usize)>,
}

impl Taps {
    /// Of a transposed convolution: the planes `count` of results whose first is at this distance from the first input without
    /// padding, one for each plane of a volume of `depth`.
    fn of_phase(first: isize, [stride, dilation]: [usize; 2], taps: usize, [depth, count]: [usize; 2]) -> Taps {
        let stride = stride as isize;
        let distance = |tap: usize| first - (tap * dilation) as isize;
        let shifts: Vec<(usize, isize)> = (0..taps)
            .filter(|&tap| distance(tap).rem_euclid(stride) == 0)
            .map(|tap| (tap, distance(tap).div_euclid(stride)))
            .collect();
        let extremes = shifts.iter().map(|&(_, shift)| shift).min().zip(shifts.iter().map(|&(_, shift)| shift).max());
        let Some((least, most)) = extremes else {
            // No tap reaches these results: one reads zeros alone.
            return Taps { starts: vec![(0, 0)], step: 1, pad: [count as isize, -(depth as isize)], count };
        };
        let starts = shifts.iter().map(|&(tap, shift)| (tap, (shift - least) as usize)).collect();
        Taps { starts, step: 1, pad: [-least, count as isize + most - depth as isize], count }
    }

    /// The parts of a result whose taps read none but the `depth` planes of the volume. `None` if a plane reads no tap.
    fn parts(&self, depth: usize) -> Option<Vec<Part>> {
        let source = |at: usize, tap: usize| -> Option<usize> {
            let plane = (at * self.step + self.starts[tap].1).checked_add_signed(-self.pad[0])?;
            (plane < depth).then_some(plane)
        };
        let mut parts: Vec<Part> = Vec::new();
        for at in 0..self.count {
            let taps: Vec<(usize, usize)> =
                (0..self.starts.len()).filter_map(|tap| Some((tap, source(at, tap)?))).collect();
            let follows = |part: &Part| {
                let next = part.taps.iter().map(|&(tap, plane)| (tap, plane + part.count * self.step));
                next.eq(taps.iter().copied())
            };
            match parts.last_mut() {
                Some(part) if follows(part) => part.count += 1,
                _ => parts.push(Part { count: 1, taps }),
            }
        }
        parts.iter().all(|part| !part.taps.is_empty()).then_some(parts)
    }
}

/// The planes `[n * d, c, ..]` of a volume `[n, c, d, ..]`.
struct Planes {
    value: ValueId,
    /// `n` and `d`.
    extents: [usize; 2],
}

struct Builder<'a, 'b> {
    context: &'a mut Rewrite<'b>,
    scope: &'a Scope,
    edges: Edges,
}

impl Builder<'_, '_> {
    fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
        self.context.add(op, inputs, self.scope).expect("parts of an op that was accepted are accepted")
    }

    fn shape(&self, value: ValueId) -> Shape {
        self.context.new.ty(value).shape.clone()
    }

    fn reshape(&mut self, value: ValueId, shape: Shape) -> ValueId {
        if self.shape(value) == shape {
            return value;
        }
        self.add(Reshape { shape }, &[value])
    }

    /// Swaps axes 1 and 2.
    fn swap(&mut self, value: ValueId) -> ValueId {
        let mut order: SmallVec<[usize; 6]> = (0..self.shape(value).rank()).collect();
        order.swap(1, 2);
        self.add(Transpose { order }, &[value])
    }

    /// The planes that a volume was brought back from.
    fn known_planes(&self, volume: ValueId) -> Option<Planes> {
        let maker = |value: ValueId| self.context.new.value(value).producer().map(|id| self.context.new.node(id));
        let swap = maker(volume)?;
        let Op::Transpose(Transpose { order }) = &swap.op else { return None };
        let is_swap = order.len() > 4 && order[..3] == [0, 2, 1] && (3..order.len()).eq(order[3..].iter().copied());
        let apart = maker(swap.inputs[0]).filter(|node| is_swap && matches!(node.op, Op::Reshape(_)))?;
        let (planes, shape) = (self.shape(apart.inputs[0]), self.shape(volume));
        let extents = [shape[0], shape[2]];
        let joined = planes.rank() + 1 == shape.rank()
            && planes[0] == shape[0] * shape[2]
            && planes[1] == shape[1]
            && planes[2..] == shape[3..];
        joined.then_some(Planes { value: apart.inputs[0], extents })
    }

    /// The planes of any volume.
    fn planes(&mut self, volume: ValueId) -> Planes {
        if let Some(planes) = self.known_planes(volume) {
            return planes;
        }
        let shape = self.shape(volume);
        let swapped = self.swap(volume);
        let joined = [&[shape[0] * shape[2], shape[1]], &shape[3..]].concat()[..].into();
        Planes { value: self.reshape(swapped, joined), extents: [shape[0], shape[2]] }
    }

    /// The volume of planes.
    fn volume(&mut self, planes: ValueId, extents: [usize; 2]) -> ValueId {
        let shape = self.shape(planes);
        let apart = self.reshape(planes, [&extents, &shape[1..]].concat()[..].into());
        self.swap(apart)
    }

    /// A function of elements, or a concatenation of channels, of values that were brought back from planes; other operands
    /// of a function may broadcast along images and depth.
    fn on_planes(&mut self, node: &Node) -> Option<ValueId> {
        if matches!(&node.op, Op::Concat(concat) if concat.axis != 1) {
            return None;
        }
        let volumes: Vec<ValueId> = node.inputs.iter().map(|&input| self.context.value(input)).collect();
        let known: Vec<Option<Planes>> = volumes.iter().map(|&volume| self.known_planes(volume)).collect();
        let extents = known.iter().flatten().next()?.extents;
        let rank = self.shape(known.iter().flatten().next()?.value).rank();
        let mut operands: SmallVec<[ValueId; 4]> = SmallVec::new();
        for (planes, &volume) in known.iter().zip(&volumes) {
            let shape = self.shape(volume);
            operands.push(match planes {
                Some(planes) if planes.extents == extents => planes.value,
                Some(_) => return None,
                None if matches!(node.op, Op::Concat(_)) => return None,
                // Without the axes of images and depth it broadcasts along planes.
                None if shape.elements() == 1 => self.reshape(volume, Shape::from([])),
                None => {
                    let lacking = (rank + 1).checked_sub(shape.rank())?;
                    let aligned: Vec<usize> = std::iter::repeat_n(1, lacking).chain(shape.iter().copied()).collect();
                    if aligned[0] != 1 || aligned[2] != 1 {
                        return None;
                    }
                    self.reshape(volume, [&aligned[..2], &aligned[3..]].concat()[..].into())
                }
            });
        }
        // A function of one operand stays with the convolution of each part.
        let maker = self.context.new.value(operands[0]).producer().map(|id| self.context.new.node(id).clone());
        let y = if let (Op::Unary(function), Some(Node { op: Op::Concat(concat), inputs, .. })) = (&node.op, maker)
            && concat.axis == 0
        {
            let parts: Vec<ValueId> = inputs.iter().map(|&part| self.add(function.clone(), &[part])).collect();
            self.add(concat, &parts)
        } else {
            self.context.add(node.op.clone(), &operands, self.scope).ok()?
        };
        Some(self.volume(y, extents))
    }

    /// A pool of values that were brought back from planes, to `count` planes: over each plane, then the maxima of planes that
    /// a window has in one image.
    fn pool_of_planes(&mut self, x: ValueId, op: &Pool, count: usize) -> Option<ValueId> {
        if count == 0 {
            return None;
        }
        let Planes { value, extents: [images, depth] } = self.known_planes(x)?;
        let [along, rest] = by_axes(op);
        let is_plain = along.kernel[0] == 1 && along.stride[0] == 1 && along.pad[0] == [0, 0];
        // Each window along the depth has a plane.
        let has_planes = along.pad[0][0] < along.kernel[0] && (count - 1) * along.stride[0] < along.pad[0][0] + depth;
        let by_planes = images == 1 && op.kind == PoolKind::Max && along.dilation[0] == 1 && has_planes;
        if op.kernel.len() != 3 || !(is_plain || by_planes) {
            return None;
        }
        let mut y = self.pool(value, &rest);
        if !is_plain {
            let front = along.pad[0][0];
            let behind = ((count - 1) * along.stride[0] + along.kernel[0]).saturating_sub(front + depth);
            // A window that reaches beyond the first or last plane has that plane.
            if (front, behind) != (0, 0) {
                let mut pad: SmallVec<[[isize; 2]; 4]> = smallvec![[0, 0]; self.shape(y).rank()];
                pad[0] = [front as isize, behind as isize];
                y = self.add(Pad { mode: PadMode::Edge, pad }, &[y]);
            }
            let starts = 0..along.kernel[0];
            let parts: Vec<ValueId> = starts.map(|start| self.every(y, 0, start, along.stride[0], count)).collect();
            y = parts.into_iter().reduce(|most, part| self.add(Binary(Function::Max), &[most, part]))?;
        }
        Some(self.volume(y, [images, count]))
    }

    /// `count` indices of an axis from `start` on, `step` apart.
    fn every(&mut self, value: ValueId, axis: usize, start: usize, step: usize, count: usize) -> ValueId {
        let mut slice = Slice::range(&self.shape(value), axis, start, count);
        slice.step[axis] = step as isize;
        self.add(slice, &[value])
    }

    /// Zeros in front of and behind an axis; negative counts remove elements. Along the first axis the padded value is a
    /// concatenation, into which the planes are written without a copy.
    fn pad(&mut self, value: ValueId, axis: usize, by: [isize; 2]) -> ValueId {
        if by == [0, 0] {
            return value;
        }
        if axis == 0 && 0 <= by[0].min(by[1]) {
            let [front, behind] = by.map(|count| (0 < count).then(|| self.zeros(value, count as usize)));
            let parts: Vec<ValueId> = [front, Some(value), behind].into_iter().flatten().collect();
            return self.add(Concat { axis: 0 }, &parts);
        }
        let mut pad: SmallVec<[[isize; 2]; 4]> = smallvec![[0, 0]; self.shape(value).rank()];
        pad[axis] = by;
        self.add(Pad { mode: PadMode::Constant(0.0), pad }, &[value])
    }

    /// Zeros of the type of a value, but for the first extent.
    fn zeros(&mut self, value: ValueId, count: usize) -> ValueId {
        let (dtype, mut shape) = (self.context.new.ty(value).dtype, self.shape(value));
        shape[0] = count;
        let zero = self.context.new.add_constant("zero", Tensor::scalar(0.0f32).cast(dtype));
        self.add(Expand { shape }, &[zero])
    }

    /// The planes of a volume with an axis for them, and that axis: that of the images if there is one image, else the one
    /// behind it.
    fn stacked(&mut self, x: ValueId) -> (ValueId, usize) {
        let Planes { value, extents } = self.planes(x);
        if extents[0] == 1 {
            return (value, 0);
        }
        let shape = self.shape(value);
        (self.reshape(value, [&extents, &shape[1..]].concat()[..].into()), 1)
    }

    fn conv(&mut self, x: ValueId, kernel: Kernel, op: &Conv) -> ValueId {
        if op.stride.len() <= 2 {
            let op = Conv { epilogue: kernel.epilogue(), ..op.clone() };
            let operands = kernel.operands(self, x);
            return self.add(op, &operands);
        }
        let inner = Conv {
            stride: op.stride[1..].into(),
            dilation: op.dilation[1..].into(),
            pad: op.pad[1..].into(),
            groups: op.groups,
            zero: op.zero,
            epilogue: Epilogue::default(),
        };
        let is_of_one_tap = kernel.shape(self)[2..].iter().chain(&op.stride).all(|&extent| extent == 1)
            && op.pad.iter().all(|pad| *pad == [0, 0]);
        if is_of_one_tap && self.known_planes(x).is_none() {
            let shape = self.shape(x);
            let image = self.reshape(x, [&[shape[0], shape[1], shape[2] * shape[3]], &shape[4..]].concat()[..].into());
            let kernel = kernel.tap(self, 0);
            let y = self.conv(image, kernel, &inner);
            let channels = self.shape(y)[1];
            return self.reshape(y, [&[shape[0], channels], &shape[2..]].concat()[..].into());
        }
        let (planes, axis) = self.stacked(x);
        let depth = kernel.shape(self)[2];
        let reach = (depth - 1) * op.dilation[0];
        let count = (self.shape(planes)[axis] + op.pad[0][0] + op.pad[0][1] - reach - 1) / op.stride[0] + 1;
        let pad = op.pad[0].map(|pad| pad as isize);
        let starts = (0..depth).map(|tap| (tap, tap * op.dilation[0])).collect();
        let taps = Taps { starts, step: op.stride[0], pad, count };
        let (images, whole) = (self.shape(x)[0], kernel.shape(self));
        // Stacked planes are no more than the results, and a copy of them costs less than to add to results.
        let stacked = inner.stride.iter().product::<usize>() * depth * whole[1];
        let stacks = op.groups == 1 && depth * whole[1] <= STACKED_MAX && stacked <= whole[0];
        let convolve = |builder: &mut Self, x, kernel| builder.conv(x, kernel, &inner);
        let y = self.over_taps((planes, axis), &kernel, &taps, stacks, convolve);
        self.volume(y, [images, count])
    }

    fn conv_transpose(&mut self, x: ValueId, kernel: Kernel, op: &ConvTranspose) -> ValueId {
        if op.stride.len() <= 2 {
            let op = ConvTranspose { epilogue: kernel.epilogue(), ..op.clone() };
            let operands = kernel.operands(self, x);
            return self.add(op, &operands);
        }
        let inner = ConvTranspose {
            stride: op.stride[1..].into(),
            dilation: op.dilation[1..].into(),
            pad: op.pad[1..].into(),
            output_pad: op.output_pad[1..].into(),
            groups: op.groups,
            epilogue: Epilogue::default(),
        };
        let (planes, axis) = self.stacked(x);
        let (images, depth, taps) = (self.shape(x)[0], self.shape(planes)[axis], kernel.shape(self)[2]);
        let (stride, dilation, [front, back]) = (op.stride[0], op.dilation[0], op.pad[0]);
        let count = (depth - 1) * stride + (taps - 1) * dilation + 1 + op.output_pad[0] - front - back;
        let (phases, of_phase) = (stride.min(count.max(1)), count.div_ceil(stride));
        let mut results: Vec<ValueId> = Vec::new();
        for phase in 0..phases {
            let taps = Taps::of_phase((phase + front) as isize, [stride, dilation], taps, [depth, of_phase]);
            results.push(self.over_taps((planes, axis), &kernel, &taps, false, |builder, x, kernel| {
                builder.conv_transpose(x, kernel, &inner)
            }));
        }
        let mut y = results[0];
        if 1 < phases {
            let shape = self.shape(y);
            let parts: Vec<ValueId> = results
                .into_iter()
                .map(|part| self.reshape(part, [&[shape[0], 1], &shape[1..]].concat()[..].into()))
                .collect();
            y = self.add(Concat { axis: 1 }, &parts);
            y = self.reshape(y, [&[images, of_phase * phases], &shape[1..]].concat()[..].into());
            y = if count < of_phase * phases { self.every(y, 1, 0, 1, count) } else { y };
            y = self.reshape(y, [&[images * count], &shape[1..]].concat()[..].into());
        }
        self.volume(y, [images, count])
    }

    /// The sum over a kernel's depth of planes that are convolved with the tap's plane of the kernel. From planes along an axis,
    /// as those of [`Builder::stacked`], to `[n * count, o, ..]`. With `stacks` as one convolution of the planes of all taps.
    fn over_taps(
        &mut self,
        (planes, axis): (ValueId, usize),
        kernel: &Kernel,
        taps: &Taps,
        stacks: bool,
        convolve: impl Fn(&mut Self, ValueId, Kernel) -> ValueId,
    ) -> ValueId {
        let shape = self.shape(planes);
        let images = if axis == 0 { 1 } else { shape[0] };
        let kernels: Vec<Kernel> = taps.starts.iter().map(|&(tap, _)| kernel.tap(self, tap)).collect();
        let apart = taps.parts(shape[axis]).filter(|_| self.edges == Edges::Apart && axis == 0);
        let (planes, parts) = match apart {
            Some(parts) => (planes, parts),
            None => {
                let whole = taps.starts.iter().enumerate().map(|(tap, &(_, start))| (tap, start)).collect();
                (self.pad(planes, axis, taps.pad), vec![Part { count: taps.count, taps: whole }])
            }
        };
        let shape = self.shape(planes);
        let mut results: Vec<ValueId> = Vec::new();
        for Part { count, taps: of_part } in parts {
            let mut terms: Vec<(ValueId, Kernel)> = Vec::new();
            for (tap, start) in of_part {
                let is_whole = start == 0 && taps.step == 1 && count == shape[axis];
                let part = if is_whole { planes } else { self.every(planes, axis, start, taps.step, count) };
                let part = self.reshape(part, [&[images * count], &shape[axis + 1..]].concat()[..].into());
                terms.push((part, kernels[tap].clone()));
            }
            if stacks && 1 < terms.len() {
                terms = vec![self.stack(terms)];
            }
            let mut sum = None;
            for (part, kernel) in terms {
                // Only the first term of the sum has the bias.
                let bias = kernel.bias.filter(|_| sum.is_none());
                let term = convolve(self, part, Kernel { bias, ..kernel });
                sum = Some(match sum {
                    Some(sum) => self.add(Binary(Function::Add), &[term, sum]),
                    None => term,
                });
            }
            results.push(sum.expect("a part has a tap"));
        }
        if results.len() == 1 { results[0] } else { self.add(Concat { axis: 0 }, &results) }
    }

    /// The images of several terms and their weights, each joined along the channels that are summed.
    fn stack(&mut self, terms: Vec<(ValueId, Kernel)>) -> (ValueId, Kernel) {
        let bias = terms[0].1.bias;
        let (images, weights): (Vec<ValueId>, Vec<ValueId>) =
            terms.into_iter().map(|(image, kernel)| (image, kernel.weight.value(self))).unzip();
        let [image, weight] = [images, weights].map(|parts| self.add(Concat { axis: 1 }, &parts));
        (image, Kernel { weight: Weight::Computed(weight), bias })
    }

    fn pool(&mut self, x: ValueId, op: &Pool) -> ValueId {
        if op.kernel.len() <= 2 {
            return self.add(op.clone(), &[x]);
        }
        let shape = self.shape(x);
        let [along, rest] = by_axes(op);
        let x = self.along_depth(x);
        let x = self.add(along, &[x]);
        // Then over each plane, with depths as channels.
        let depth = self.shape(x)[2];
        let x = self.reshape(x, [&[shape[0], shape[1] * depth], &shape[3..]].concat()[..].into());
        let x = self.pool(x, &rest);
        let planes = self.shape(x);
        self.reshape(x, [&[shape[0], shape[1], depth], &planes[2..]].concat()[..].into())
    }

    /// The gradient of [`Builder::pool`] from `dy`; a maximum also has `x`, the pool's operand.
    fn pool_gradient(&mut self, dy: ValueId, x: Option<ValueId>, op: &PoolGradient) -> ValueId {
        let operands = |dy: ValueId, x: Option<ValueId>| [dy].into_iter().chain(x).collect::<SmallVec<[ValueId; 2]>>();
        if op.pool.kernel.len() <= 2 {
            return self.add(op.clone(), &operands(dy, x));
        }
        let (out, extents) = (self.shape(dy), &op.extents);
        let [along, rest] = by_axes(&op.pool);
        let depths = x.map(|x| self.along_depth(x));
        // The operand of the pool over planes.
        let planes = depths.map(|depths| {
            let pooled = self.add(along.clone(), &[depths]);
            self.reshape(pooled, [&[out[0], out[1] * out[2]], &extents[1..]].concat()[..].into())
        });
        let dy = self.reshape(dy, [&[out[0], out[1] * out[2]], &out[3..]].concat()[..].into());
        let rest = PoolGradient { pool: rest, extents: extents[1..].into(), positions: false };
        let dy = self.pool_gradient(dy, planes, &rest);
        let behind = extents[1..].iter().product();
        let dy = self.reshape(dy, Shape::from([out[0], out[1], out[2], behind]));
        let along = PoolGradient { pool: along, extents: smallvec![extents[0], behind], positions: false };
        let dx = self.add(along, &operands(dy, depths));
        self.reshape(dx, [&out[..2], extents].concat()[..].into())
    }

    /// A volume with the axes behind its depth as one.
    fn along_depth(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let behind = shape[3..].iter().product();
        self.reshape(x, Shape::from([shape[0], shape[1], shape[2], behind]))
    }
}

/// The pool along the depth, over an operand with the axes behind it as one, and the pool over the other axes.
fn by_axes(op: &Pool) -> [Pool; 2] {
    let part = |axes: std::ops::Range<usize>| Pool {
        kind: op.kind,
        kernel: op.kernel[axes.clone()].into(),
        stride: op.stride[axes.clone()].into(),
        dilation: op.dilation[axes.clone()].into(),
        pad: op.pad[axes].into(),
        ceil: op.ceil,
    };
    let mut along = part(0..1);
    [&mut along.kernel, &mut along.stride, &mut along.dilation].into_iter().for_each(|numbers| numbers.push(1));
    along.pad.push([0, 0]);
    [along, part(1..op.kernel.len())]
}

#[cfg(test)]
mod tests {
    use ir::evaluate;
    use types::Random;

    use super::*;

    /// A convolution or transposed convolution of a volume.
    fn convolution(random: &mut Random) -> Graph {
        let mut between = |low: u64, high: u64| (low + random.below(high - low + 1)) as usize;
        let mut graph = Graph::new("volume");
        let x = [between(1, 2), 2, between(1, 5), between(1, 4), between(2, 4)];
        let kernel = [between(1, 4), between(1, 2), 2];
        let [stride, dilation] = [2, 2].map(|most| [(); 3].map(|()| between(1, most)));
        let reach = [0, 1, 2].map(|axis| (kernel[axis] - 1) * dilation[axis]);
        let (transposed, groups) = (between(0, 1) == 1, between(1, 2));
        let outs = if transposed { 2 } else { [2, 24][between(0, 1)] };
        // Behind, so much that the kernel fits; of a transposed convolution none, so that a result is left.
        let pad = reach.map(|reach| [between(0, reach as u64), if transposed { 0 } else { reach }]);
        let ramp = |shape: &[usize]| Tensor::from_fn(Shape::from(shape), |at| (at * 7 % 11) as f32 - 5.0);
        let value = graph.add_input("x", DType::F32, Shape::from(x));
        let weight = graph.add_weight("w", ramp(&[&[outs, 2 / groups][..], &kernel].concat()));
        let bias = graph.add_weight("b", ramp(&[outs]));
        let [stride, dilation] = [stride, dilation].map(SmallVec::from_iter);
        let (pad, epilogue) = (pad.into_iter().collect(), Epilogue::bias(true));
        let op: Op = if transposed {
            let output_pad = smallvec![0; 3];
            ConvTranspose { stride, dilation, pad, output_pad, groups, epilogue }.into()
        } else {
            Conv { stride, dilation, pad, groups, zero: 0, epilogue }.into()
        };
        let y = graph.add1(op, &[value, weight, bias], Scope::new("conv")).expect("the kernel fits");
        graph.set_outputs(vec![("y".into(), y)]);
        graph
    }

    #[test]
    fn planes_between_zeros_and_planes_apart_have_the_results_of_volumes() {
        let (mut random, mut parts, mut stacked) = (Random::new(3), 0, 0);
        for _ in 0..200 {
            let graph = convolution(&mut random);
            let shape = graph.ty(graph.inputs()[0]).shape.clone();
            let x = [Tensor::from_fn(shape, |at| (at * 5 % 13) as f32 - 6.0)];
            let want = evaluate(&graph, &x).expect("it verifies");
            for convert in [conv3d_to_conv2d, conv3d_to_conv2d_apart] {
                assert_eq!(evaluate(&convert(&graph), &x).expect("it verifies"), want, "{graph:?}");
            }
            let apart = conv3d_to_conv2d_apart(&graph);
            assert!(!has_volumes(&apart));
            let is_joined = |node: &Node| matches!(&node.op, Op::Concat(concat) if concat.axis == 0);
            parts += usize::from(apart.nodes().values().any(is_joined));
            let is_stacked = |node: &Node| matches!(&node.op, Op::Concat(concat) if concat.axis == 1);
            stacked += usize::from(apart.nodes().values().any(is_stacked));
        }
        assert!(10 < stacked, "only {stacked} convolutions stack planes");
        assert!(40 < parts, "only {parts} results have planes that read fewer taps");
    }
}
