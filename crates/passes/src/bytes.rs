//! Numbers that a file has quantised: stored in a byte each, as whole numbers `q` that stand for `(q - zero) * scale`.
//!
//! A file says where: it makes bytes of a result and numbers of the bytes again before the next operator reads them.
//! [`find_bytes`] gives both their names, chains that read or write bytes. Late, when it is known what follows what,
//! [`multiply_bytes`] turns products of numbers that come from bytes into products of the bytes, whose sums are exact, and
//! what made bytes of their results into a part of their epilogues:
//!
//! ```text
//!    x -> numbers -> conv -> relu -> bytes        becomes       x -> conv of bytes, scale, bias, clip -> bytes
//!    w -> numbers ---^                                          w ---^
//! ```
//!
//! A result differs from that of the graph as it came by the rounding of its sum at most, which may decide to which of two
//! neighbouring whole numbers it goes.

use ir::ops::{Binary, Cast, Chain, ChainStep, Epilogue, Expand, MatMul, PoolKind, Slice, Unary};
use ir::{Graph, Node, NodeId, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary as Function2, Unary as Function};
use types::{DType, Map, Shape, Tensor};

use crate::common::Uses;
use crate::dead::remove_dead;
use crate::epilogue::{epilogue_mut, epilogue_of};
use crate::fold::fold_all;
use crate::pointwise::fuse_pointwise;

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// Finds the nodes that spell `(q - zero) * scale` and `clip(round(x / scale) + zero)`, and makes chains of them. Numbers of
/// bytes are moved (reshaped, transposed, sliced) as bytes.
pub fn find_bytes(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        if matches!(node.op, Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_)) {
            return moved_as_bytes(context, node);
        }
        let (operands, chain) = from_bytes(&uses, node).or_else(|| to_bytes(&uses, node))?;
        let operands: SmallVec<[ValueId; 4]> = operands.into_iter().map(|old| context.value(old)).collect();
        Some(smallvec![context.add(chain, &operands, &node.scope).ok()?])
    })
}

/// A chain under construction: its operands and steps. A number is a step, anything else an operand.
struct Steps<'a> {
    uses: &'a Uses<'a>,
    operands: SmallVec<[ValueId; 3]>,
    steps: Vec<ChainStep>,
}

impl Steps<'_> {
    /// Applies a function to what there is and a known tensor, which has its operand behind the first.
    fn push(&mut self, function: Function2, known: ValueId, operands: usize) {
        let result = match self.steps.len() {
            0 => 0,
            count => operands + count - 1,
        };
        let other = match self.uses.known_number(known) {
            Some(number) => {
                self.steps.push(ChainStep::Constant(number));
                operands + self.steps.len() - 1
            }
            None => {
                self.operands.push(known);
                self.operands.len() - 1
            }
        };
        self.steps.push(ChainStep::Binary(function, result, other));
    }
}

/// `(q - zero) * scale` with a known scale and zero point.
fn from_bytes(uses: &Uses, node: &Node) -> Option<(SmallVec<[ValueId; 3]>, Chain)> {
    let graph = uses.graph;
    let Op::Binary(Binary(Function2::Mul)) = node.op else { return None };
    let scale = node.inputs[1];
    uses.known(scale)?;
    let widened = |value: ValueId| {
        let (_, cast) = uses.producer(value)?;
        let is_cast = cast.op == Op::Cast(Cast { to: DType::F32 }) && is_byte(graph.ty(cast.inputs[0]).dtype);
        is_cast.then_some(cast.inputs[0])
    };
    let (q, zero) = match uses.operands(node.inputs[0], Function2::Sub) {
        Some([x, zero]) if uses.known(zero).is_some() => (widened(x)?, Some(zero)),
        _ => (widened(node.inputs[0])?, None),
    };
    if graph.ty(node.outputs[0]).shape != graph.ty(q).shape {
        return None;
    }
    let tensors = [zero, Some(scale)].into_iter().flatten().filter(|&known| uses.known_number(known).is_none()).count();
    let mut chain = Steps { uses, operands: smallvec![q], steps: Vec::new() };
    if let Some(zero) = zero {
        chain.push(Function2::Sub, zero, 1 + tensors);
    }
    chain.push(Function2::Mul, scale, 1 + tensors);
    Some((chain.operands, Chain { steps: chain.steps, result: None }))
}

/// `clip(round(x / scale) + zero)` to what a byte holds, as a byte.
fn to_bytes(uses: &Uses, node: &Node) -> Option<(SmallVec<[ValueId; 3]>, Chain)> {
    let graph = uses.graph;
    let limits = match node.op {
        Op::Cast(Cast { to: DType::U8 }) => Function::Clip { min: 0.0, max: 255.0 },
        Op::Cast(Cast { to: DType::I8 }) => Function::Clip { min: -128.0, max: 127.0 },
        _ => return None,
    };
    // Known, or one number that comes with the run.
    let steady = |value: ValueId| uses.known(value).is_some() || graph.ty(value).shape.elements() == 1;
    let held = uses.argument(node.inputs[0], limits)?;
    let (rounded, zero) = match uses.operands(held, Function2::Add) {
        Some([rounded, zero]) if steady(zero) => (rounded, Some(zero)),
        _ => (held, None),
    };
    let [x, scale] = uses.operands(uses.argument(rounded, Function::Round)?, Function2::Div)?;
    if !steady(scale) || graph.ty(x).dtype != DType::F32 || graph.ty(x).shape != graph.ty(node.outputs[0]).shape {
        return None;
    }
    let tensors = [zero, Some(scale)].into_iter().flatten().filter(|&known| uses.known_number(known).is_none()).count();
    let mut chain = Steps { uses, operands: smallvec![x], steps: Vec::new() };
    chain.push(Function2::Div, scale, 1 + tensors);
    let divided = tensors + chain.steps.len();
    chain.steps.push(ChainStep::Unary(Function::Round, divided));
    if let Some(zero) = zero {
        chain.push(Function2::Add, zero, 1 + tensors);
    }
    Some((chain.operands, Chain { steps: chain.steps, result: Some(graph.ty(node.outputs[0]).dtype) }))
}

/// A node that moves numbers which a chain made of bytes, by one scale for all: the bytes are moved, and then made numbers.
fn moved_as_bytes(context: &mut Rewrite, node: &Node) -> Option<SmallVec<[ValueId; 1]>> {
    let x = context.value(node.inputs[0]);
    let source = context.new.value(x).producer()?;
    let numbers = Numbers::of(&context.new, source)?;
    let (_, scale) = numbers.as_numbers()?;
    // A maximum stays one where larger bytes are larger numbers.
    if scale <= 0.0 || context.new.value(numbers.q).tensor().is_some() {
        return None;
    }
    let chain = context.new.node(source).op.clone();
    let scope = context.new.node(source).scope.clone();
    let q = context.add(node.op.clone(), &[numbers.q], &node.scope).ok()?;
    Some(smallvec![context.add(chain, &[q], &scope.child("moved")).ok()?])
}

/// A known operand of a chain.
#[derive(Clone, Copy)]
enum Known {
    Number(f32),
    Value(ValueId),
}

/// What a chain that makes numbers of bytes says: `(q - zero) * scale`.
struct Numbers {
    q: ValueId,
    zero: Known,
    scale: Known,
}

impl Numbers {
    fn of(graph: &Graph, id: NodeId) -> Option<Numbers> {
        let node = graph.node(id);
        let Op::Chain(Chain { steps, result: None }) = &node.op else { return None };
        #[derive(Clone, Copy)]
        enum Operand {
            Known(Known),
            Bytes { zero: Known },
            Scaled { zero: Known, scale: Known },
        }
        let (&q, others) = node.inputs.split_first()?;
        if !is_byte(graph.ty(q).dtype) || others.iter().any(|&other| graph.value(other).tensor().is_none()) {
            return None;
        }
        let mut operands: SmallVec<[Operand; 6]> = smallvec![Operand::Bytes { zero: Known::Number(0.0) }];
        operands.extend(others.iter().map(|&other| Operand::Known(Known::Value(other))));
        for step in steps {
            let operand = match *step {
                ChainStep::Constant(number) => Operand::Known(Known::Number(number)),
                ChainStep::Binary(function, a, b) => match (function, operands[a], operands[b]) {
                    (Function2::Sub, Operand::Bytes { .. }, Operand::Known(zero)) if a == 0 => Operand::Bytes { zero },
                    (Function2::Mul, Operand::Bytes { zero }, Operand::Known(scale)) => Operand::Scaled { zero, scale },
                    _ => return None,
                },
                ChainStep::Unary(..) => return None,
            };
            operands.push(operand);
        }
        match operands.last() {
            Some(&Operand::Scaled { zero, scale }) => Some(Numbers { q, zero, scale }),
            _ => None,
        }
    }

    /// Zero point and scale, where they are one number each.
    fn as_numbers(&self) -> Option<(f32, f32)> {
        match (self.zero, self.scale) {
            (Known::Number(zero), Known::Number(scale)) => Some((zero, scale)),
            _ => None,
        }
    }
}

impl Known {
    /// The tensor with the shape that it is broadcast to.
    fn spread(self, graph: &Graph, shape: &Shape) -> Option<Tensor> {
        let tensor = match self {
            Known::Number(number) => Tensor::full(shape.clone(), number),
            Known::Value(value) => {
                let tensor = graph.value(value).tensor()?;
                Op::from(Expand { shape: shape.clone() }).eval(&[tensor]).swap_remove(0)
            }
        };
        (tensor.shape() == shape).then_some(tensor)
    }
}

/// What a target's kernels do with bytes.
#[derive(Clone, Copy)]
pub struct ByteKernels<'a> {
    /// Whether there is a kernel for a product like this one of bytes, or for a maximum of bytes; the node's operands may
    /// still be numbers.
    pub fits: &'a dyn Fn(&Graph, NodeId) -> bool,
    /// Whether the kernel of a product of numbers can write bytes.
    pub writes: &'a dyn Fn(&Graph, NodeId) -> bool,
}

/// Turns products of numbers that come from bytes into products of the bytes, where there are kernels for those, and has
/// products write bytes that were made of their results. What comes from known bytes otherwise is computed now.
pub fn multiply_bytes(graph: &Graph, kernels: ByteKernels) -> Graph {
    let ByteKernels { fits, writes } = kernels;
    let graph = unsigned(&rewrite(graph, |context, id| maximum_of_bytes(context, id, fits)));
    let uses = Uses::new(&graph);
    let multiplied = rewrite(&graph, |context, id| {
        let node = graph.node(id);
        if graph.ty(node.outputs[0]).dtype == DType::I32 && matches!(node.op, Op::MatMul(_)) {
            return if fits(&graph, id) { None } else { sums_of_numbers(context, &graph, node) };
        }
        sum_as_number(context, &uses, id, fits).or_else(|| product_of_bytes(context, &graph, id, fits))
    });
    // Numbers that products no longer read may go on without being stored.
    remove_dead(&fold_all(&shortened(&fuse_pointwise(&fused(&fold_all(&remove_dead(&multiplied)), writes)))))
}

/// The maximum of numbers that come from bytes, as that of the bytes.
fn maximum_of_bytes(
    context: &mut Rewrite,
    id: NodeId,
    fits: &dyn Fn(&Graph, NodeId) -> bool,
) -> Option<SmallVec<[ValueId; 1]>> {
    let graph = context.old;
    let (node, is_max) =
        (graph.node(id), |node: &Node| matches!(&node.op, Op::Pool(pool) if pool.kind == PoolKind::Max));
    if is_max(node) && fits(graph, id) {
        return moved_as_bytes(context, node);
    }
    // Or cast to numbers and back, as no number is rounded.
    let cast = |node: &Node| matches!(node.op, Op::Cast(_)).then(|| node.inputs[0]);
    let pool_id = graph.value(cast(node)?).producer()?;
    let pool = graph.node(pool_id);
    let q = cast(graph.node(graph.value(*pool.inputs.first()?).producer()?))?;
    let (from, to) = (graph.ty(q).dtype, graph.ty(node.outputs[0]).dtype);
    if !is_max(pool) || !is_byte(to) || from != to || graph.value(q).tensor().is_some() || !fits(graph, pool_id) {
        return None;
    }
    let q = context.value(q);
    Some(smallvec![context.add(pool.op.clone(), &[q], &pool.scope).ok()?])
}

/// Chains that read or write bytes with as few steps as will do: sums and products with numbers are one step, and nothing is
/// rounded that will be in any case.
fn shortened(graph: &Graph) -> Graph {
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let Op::Chain(chain) = &node.op else { return None };
        let mut values = node.inputs.iter().chain(&node.outputs);
        if !values.any(|&value| is_byte(graph.ty(value).dtype)) {
            return None;
        }
        let chain = shorter(chain, node.inputs.len());
        if let ([ChainStep::Unary(Function::Affine { scale, shift }, 0)], [x]) = (&chain.steps[..], &node.inputs[..])
            && (scale - 1.0).abs() < 1e-4
            && shift.abs() < 1e-2
            && graph.ty(*x) == graph.ty(node.outputs[0])
        {
            // Bytes of numbers of bytes by the same scale: what 255 becomes is not half a step away.
            return Some(smallvec![context.value(*x)]);
        }
        let operands: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&old| context.value(old)).collect();
        Some(smallvec![context.add(chain, &operands, &node.scope).ok()?])
    })
}

fn shorter(chain: &Chain, inputs: usize) -> Chain {
    // By operand: how many steps read it; the number that it is.
    let mut readers = vec![0; inputs + chain.steps.len()];
    let mut numbers: Vec<Option<f32>> = vec![None; inputs];
    for step in &chain.steps {
        match *step {
            ChainStep::Unary(_, a) => readers[a] += 1,
            ChainStep::Binary(_, a, b) => [a, b].into_iter().for_each(|operand| readers[operand] += 1),
            ChainStep::Constant(_) => {}
        }
        numbers.push(if let ChainStep::Constant(number) = *step { Some(number) } else { None });
    }
    let mut steps: Vec<ChainStep> = Vec::new();
    // By old operand: the new one.
    let mut place: Vec<usize> = (0..inputs).collect();
    for (ix, step) in chain.steps.iter().enumerate() {
        let affine = match *step {
            ChainStep::Binary(function, a, b) => affine_of(function, numbers[a], numbers[b]).map(|affine| {
                let own = if numbers[a].is_none() { a } else { b };
                (own, affine)
            }),
            ChainStep::Unary(Function::Affine { scale, shift }, a) => Some((a, [scale, shift])),
            _ => None,
        };
        let Some((a, [scale, shift])) = affine else {
            if let ChainStep::Constant(_) = step {
                // Put where it is needed.
                place.push(usize::MAX);
                continue;
            }
            let mut operand = |old: usize| {
                if let Some(number) = numbers[old] {
                    steps.push(ChainStep::Constant(number));
                    return inputs + steps.len() - 1;
                }
                place[old]
            };
            let step = match *step {
                ChainStep::Unary(function, a) => ChainStep::Unary(function, operand(a)),
                ChainStep::Binary(function, a, b) => ChainStep::Binary(function, operand(a), operand(b)),
                ChainStep::Constant(number) => ChainStep::Constant(number),
            };
            steps.push(step);
            place.push(inputs + steps.len() - 1);
            continue;
        };
        let is_last = ix + 1 == chain.steps.len();
        let is_alone = readers[a] == 1 && place[a] + 1 == inputs + steps.len();
        // A whole number may be added before what is rounded is.
        if is_last && is_alone && chain.result.is_some_and(is_byte) && scale == 1.0 && shift.fract() == 0.0 {
            if let Some(&ChainStep::Unary(Function::Round, before)) = steps.last() {
                steps.pop();
                let follows = before + 1 == inputs + steps.len();
                push_affine(&mut steps, inputs, before, [scale, shift], follows);
                place.push(inputs + steps.len() - 1);
                continue;
            }
        }
        push_affine(&mut steps, inputs, place[a], [scale, shift], is_alone);
        place.push(inputs + steps.len() - 1);
    }
    if chain.result.is_some_and(is_byte)
        && 1 < steps.len()
        && let Some(&ChainStep::Unary(Function::Round, before)) = steps.last()
        && before + 1 == inputs + steps.len() - 1
    {
        steps.pop();
    }
    Chain { steps, result: chain.result }
}

/// `[scale, shift]` of a sum, difference, product or quotient of something and a number.
fn affine_of(function: Function2, a: Option<f32>, b: Option<f32>) -> Option<[f32; 2]> {
    match (function, a, b) {
        (Function2::Add, None, Some(number)) | (Function2::Add, Some(number), None) => Some([1.0, number]),
        (Function2::Sub, None, Some(number)) => Some([1.0, -number]),
        (Function2::Mul, None, Some(number)) | (Function2::Mul, Some(number), None) => Some([number, 0.0]),
        (Function2::Div, None, Some(number)) if number != 0.0 => Some([1.0 / number, 0.0]),
        _ => None,
    }
}

/// Applies `scale x + shift` to an operand: in the step that yields it, if that does the like and nobody else reads it.
fn push_affine(steps: &mut Vec<ChainStep>, inputs: usize, operand: usize, [scale, shift]: [f32; 2], is_alone: bool) {
    if is_alone
        && inputs <= operand
        && let Some(ChainStep::Unary(Function::Affine { scale: before, shift: offset }, _)) = steps.last_mut()
    {
        (*before, *offset) = (scale * *before, scale * *offset + shift);
        return;
    }
    steps.push(ChainStep::Unary(Function::Affine { scale, shift }, operand));
}

/// Products of two numbers of at most 255 whose sum is less than 2^24: `f32` holds it.
const EXACT_TERMS: usize = 256;

/// A product of bytes in `f32`, part by part, as `i32`.
fn sums_of_numbers(context: &mut Rewrite, graph: &Graph, node: &Node) -> Option<SmallVec<[ValueId; 1]>> {
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

/// What makes `i8` that is read only to be made numbers again makes `u8` instead, with all zero points moved by 128.
fn unsigned(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    let mut moves: Map<ValueId, bool> = Map::filled(graph.values().len(), false);
    for (id, node) in graph.nodes().iter() {
        let out = node.outputs[0];
        let makes = match &node.op {
            Op::Chain(Chain { result: Some(DType::I8), .. }) => true,
            op if moves_bytes(op) => graph.ty(out).dtype == DType::I8 && moves[node.inputs[0]],
            _ => false,
        };
        moves[out] = makes && ends_as_numbers(&uses, id);
    }
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let Op::Chain(chain) = &node.op else { return None };
        let inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&old| context.value(old)).collect();
        if moves[node.inputs[0]] {
            let (zero, scale) = Numbers::of(graph, id)?.as_numbers()?;
            return Some(smallvec![context.add(numbers_of_bytes(zero + 128.0, scale), &inputs, &node.scope).ok()?]);
        }
        if !moves[node.outputs[0]] {
            return None;
        }
        let (mut steps, last) = (chain.steps.clone(), inputs.len() + chain.steps.len() - 1);
        steps.extend([ChainStep::Constant(128.0), ChainStep::Binary(Function2::Add, last, last + 1)]);
        Some(smallvec![context.add(Chain { steps, result: Some(DType::U8) }, &inputs, &node.scope).ok()?])
    })
}

/// `(q - zero) * scale`
fn numbers_of_bytes(zero: f32, scale: f32) -> Chain {
    use ChainStep::Constant;
    let binary = |function, a, b| ChainStep::Binary(function, a, b);
    let steps = vec![Constant(zero), binary(Function2::Sub, 0, 1), Constant(scale), binary(Function2::Mul, 2, 3)];
    Chain { steps, result: None }
}

/// Whether an op gives some of the bytes that it takes.
fn moves_bytes(op: &Op) -> bool {
    match op {
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) => true,
        Op::Pool(pool) => pool.kind == PoolKind::Max,
        _ => false,
    }
}

/// Whether all that is made of a node's bytes are numbers by one scale.
fn ends_as_numbers(uses: &Uses, id: NodeId) -> bool {
    let (graph, out) = (uses.graph, uses.graph.node(id).outputs[0]);
    !graph.is_output(out)
        && uses.readers(out).iter().all(|&reader| match graph.node(reader).op {
            ref op if moves_bytes(op) => ends_as_numbers(uses, reader),
            _ => Numbers::of(graph, reader).is_some_and(|numbers| numbers.q == out && numbers.as_numbers().is_some()),
        })
}

/// A product of numbers that come from bytes, as a product of those.
fn product_of_bytes(
    context: &mut Rewrite,
    graph: &Graph,
    id: NodeId,
    fits: &dyn Fn(&Graph, NodeId) -> bool,
) -> Option<SmallVec<[ValueId; 1]>> {
    let node = graph.node(id);
    let epilogue = match &node.op {
        Op::Conv(conv) => &conv.epilogue,
        Op::MatMul(product) => &product.epilogue,
        _ => return None,
    };
    if epilogue.scale || epilogue.residual || epilogue.result.is_some() || !fits(graph, id) {
        return None;
    }
    let x = Numbers::of(graph, graph.value(node.inputs[0]).producer()?)?;
    let (zero, x_scale) = x.as_numbers()?;
    if graph.ty(x.q).dtype != DType::U8 || !(0.0..=255.0).contains(&zero) || zero.fract() != 0.0 {
        return None;
    }
    let (weight, scales) = signed_weight(graph, node)?;
    let scales: Vec<f32> = scales.iter().map(|scale| x_scale * scale).collect();

    let mut op = node.op.clone();
    match &mut op {
        Op::Conv(conv) => conv.zero = zero as i32,
        Op::MatMul(product) => product.zero = zero as i32,
        _ => unreachable!("products alone come here"),
    }
    epilogue_mut(&mut op).expect("products have one").scale = true;
    let name = &graph.value(node.inputs[1]).name;
    let weight = context.new.add_weight(name, weight);
    let scale = context.new.add_weight(&format!("{}.scale", node.scope), Tensor::vector(scales));
    let mut operands: SmallVec<[ValueId; 4]> = smallvec![context.value(x.q), weight, scale];
    operands.extend(node.inputs[2..].iter().map(|&old| context.value(old)));
    Some(smallvec![context.add(op, &operands, &node.scope).ok()?])
}

/// The weight of a product, without its zero points, where it is known and has one scale for each output channel; and those.
fn signed_weight(graph: &Graph, node: &Node) -> Option<(Tensor, Vec<f32>)> {
    let (q, scale) = known_bytes(graph, node.inputs[1])?;
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

/// Known bytes that a chain makes numbers of, which then are perhaps moved: as `i8` without their zero points, and the scale
/// of each.
fn known_bytes(graph: &Graph, value: ValueId) -> Option<(Tensor, Tensor)> {
    let producer = graph.value(value).producer()?;
    let node = graph.node(producer);
    if matches!(node.op, Op::Reshape(_) | Op::Transpose(_)) {
        let (q, scale) = known_bytes(graph, node.inputs[0])?;
        return Some((node.op.eval(&[&q]).swap_remove(0), node.op.eval(&[&scale]).swap_remove(0)));
    }
    let numbers = Numbers::of(graph, producer)?;
    let q = graph.value(numbers.q).tensor()?;
    let [zero, scale] = [numbers.zero, numbers.scale].map(|known| known.spread(graph, q.shape()));
    let (zero, scale) = (zero?, scale?);
    let items: Vec<f32> = q.cast(DType::F32).as_slice::<f32>()?.to_vec();
    let items: Vec<f32> = items.iter().zip(zero.as_slice::<f32>()?).map(|(item, zero)| item - zero).collect();
    let fits = items.iter().all(|item| (-128.0..=127.0).contains(item) && item.fract() == 0.0);
    fits.then(|| Some((Tensor::new(q.shape().clone(), items).ok()?.cast(DType::I8), scale))).flatten()
}

/// A sum of whole numbers, perhaps less what its zero point adds, that is made a number: the product's epilogue does it.
fn sum_as_number(
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
    let mut operands: SmallVec<[ValueId; 4]> = sums.inputs.iter().map(|&old| context.value(old)).collect();
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

/// Draws what makes bytes of a product's result into its epilogue, where nothing else reads that.
fn fused(graph: &Graph, writes: &dyn Fn(&Graph, NodeId) -> bool) -> Graph {
    let uses = Uses::new(graph);
    // By chain: the product that it follows, and what the chain applies.
    let mut takes: Map<NodeId, Option<(NodeId, SmallVec<[Function; 4]>)>> = Map::filled(graph.nodes().len(), None);
    let mut taken: Map<NodeId, bool> = Map::filled(graph.nodes().len(), false);
    for (id, node) in graph.nodes().iter() {
        let Some(epilogue) = epilogue_of(&node.op) else { continue };
        let Some(reader) = uses.only_reader(node.outputs[0]) else { continue };
        let Some(functions) = functions_to_bytes(graph, reader) else { continue };
        let is_product =
            matches!(node.op, Op::Conv(_) | Op::MatMul(_)) && !epilogue.residual && epilogue.result.is_none();
        let possible = is_product && (epilogue.scale || writes(graph, id));
        if possible && graph.node(reader).inputs[0] == node.outputs[0] && graph.ty(node.outputs[0]).dtype == DType::F32
        {
            (takes[reader], taken[id]) = (Some((id, functions)), true);
        }
    }
    rewrite(graph, |context, id| {
        if taken[id] {
            return Some(SmallVec::new());
        }
        let (product, functions) = takes[id].as_ref()?;
        let (chain, node) = (graph.node(id), graph.node(*product));
        let mut op = node.op.clone();
        let epilogue = epilogue_mut(&mut op).expect("it is a product");
        epilogue.result = Some(graph.ty(chain.outputs[0]).dtype);
        let mut functions: SmallVec<[Function; 2]> = epilogue.activation.iter().chain(functions).copied().collect();
        let operand = |ix: usize| graph.value(node.inputs[ix]).tensor().map(|tensor| tensor.to_f64());
        let mut operands: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&old| context.value(old)).collect();
        if epilogue.scale
            && let Some((limits, [factor, shift])) = limits_and_affine(&functions)
            && let Some(scale) = operand(2)
            && let Some(bias) = if epilogue.bias { operand(epilogue.bias_at()) } else { Some(vec![0.0; scale.len()]) }
        {
            // Scale and bias do it, and what limits remain are those of its results.
            let (factor, shift) = (f64::from(factor), f64::from(shift));
            let known = |items: &[f64], shift: f64| -> Tensor {
                Tensor::vector(items.iter().map(|item| (item * factor + shift) as f32).collect::<Vec<f32>>())
            };
            let (scales, biases) = (known(&scale, 0.0), known(&bias, shift));
            operands.truncate(2);
            operands.push(context.new.add_weight(&format!("{}.scale", node.scope), scales));
            operands.push(context.new.add_weight(&format!("{}.bias", node.scope), biases));
            epilogue.bias = true;
            functions = limits.into_iter().map(|[min, max]| Function::Clip { min, max }).collect();
        }
        epilogue.activation = functions;
        Some(smallvec![context.add(op, &operands, &chain.scope).expect("bytes are stored like any numbers")])
    })
}

/// What a chain applies to the numbers that it makes bytes of: functions of one number, sums and products with known ones.
/// The last rounding is not among them, as bytes are rounded in any case.
fn functions_to_bytes(graph: &Graph, id: NodeId) -> Option<SmallVec<[Function; 4]>> {
    let node = graph.node(id);
    let Op::Chain(Chain { steps, result: Some(dtype) }) = &node.op else { return None };
    if node.inputs.len() != 1 || !is_byte(*dtype) {
        return None;
    }
    let mut functions: SmallVec<[Function; 4]> = SmallVec::new();
    let (mut result, mut numbers) = (0, vec![None]);
    for (ix, step) in steps.iter().enumerate() {
        let affine = match *step {
            ChainStep::Constant(number) => {
                numbers.push(Some(number));
                continue;
            }
            ChainStep::Unary(function, a) if a == result => {
                functions.push(function);
                None
            }
            ChainStep::Binary(function, a, b) if a == result => Some(affine_of(function, None, Some(numbers[b]?))?),
            _ => return None,
        };
        if let Some([scale, shift]) = affine {
            // A whole number may be added before what is rounded is: only where two are equally near may that be another.
            let is_round = functions.last() == Some(&Function::Round);
            if is_round && (scale != 1.0 || shift.fract() != 0.0) {
                return None;
            }
            let round = if is_round { functions.pop() } else { None };
            match functions.last_mut() {
                Some(Function::Affine { scale: before, shift: offset }) => {
                    *offset = scale * *offset + shift;
                    *before *= scale;
                }
                _ => functions.push(Function::Affine { scale, shift }),
            }
            functions.extend(round);
        }
        numbers.push(None);
        result = 1 + ix;
    }
    (functions.pop() == Some(Function::Round)).then_some(functions)
}

/// Functions that are limits at most, then `scale x + shift`: the limits of what comes out.
fn limits_and_affine(functions: &[Function]) -> Option<(Option<[f32; 2]>, [f32; 2])> {
    let (&Function::Affine { scale, shift }, front) = functions.split_last()? else { return None };
    let limits = match *front {
        [] => None,
        [Function::Relu] => Some([0.0, f32::INFINITY]),
        [Function::Clip { min, max }] => Some([min, max]),
        _ => return None,
    };
    let moved = |[min, max]: [f32; 2]| [min * scale + shift, max * scale + shift];
    (0.0 < scale).then(|| (limits.map(moved), [scale, shift]))
}
