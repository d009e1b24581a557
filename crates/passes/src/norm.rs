//! Batch normalisation and other per-channel scales: split into a product and a sum, then folded into weights.

use ir::ops::{BatchNorm, Binary, ConvTranspose, Epilogue, Reshape, Unary};
use ir::{Graph, NodeId, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{self, Binary as Function};
use types::{Map, Shape, Tensor};

use crate::common::{Uses, per_channel};

/// Replaces each batch normalisation by `x * a + b` with one `a` and one `b` a channel: numbers computed in `f64` where the
/// statistics are known, nodes of the run where they are not.
pub fn split_norms(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let Op::BatchNorm(BatchNorm { epsilon }) = node.op else { return None };
        let known = |ix: usize| uses.known(node.inputs[ix]).map(Tensor::to_f64);
        let (Some(scale), Some(shift), Some(mean), Some(variance)) = (known(1), known(2), known(3), known(4)) else {
            return split_at_run_time(context, graph, id, epsilon).ok().map(|y| smallvec![y]);
        };
        let a: Vec<f64> = scale
            .iter()
            .zip(&variance)
            .map(|(scale, variance)| scale / (variance + f64::from(epsilon)).sqrt())
            .collect();
        let b: Vec<f32> = (0..a.len()).map(|c| (shift[c] - mean[c] * a[c]) as f32).collect();
        let a: Vec<f32> = a.into_iter().map(|a| a as f32).collect();
        let shape = along_channels(a.len(), graph.ty(node.inputs[0]).shape.rank());
        let a = context.new.add_weight(&format!("{}.scale", node.scope), known_tensor(&shape, a));
        let b = context.new.add_weight(&format!("{}.shift", node.scope), known_tensor(&shape, b));
        let x = context.value(node.inputs[0]);
        let product = context.add(Binary(Function::Mul), &[x, a], &node.scope).ok()?;
        Some(smallvec![context.add(Binary(Function::Add), &[product, b], &node.scope).ok()?])
    })
}

/// The same with statistics that come with the run: `a = scale / sqrt(variance + epsilon)`, `b = shift - mean * a`.
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

/// One channel axis, then extents of 1 for the rest, broadcasts over `[n, c, ..]`.
fn along_channels(channels: usize, rank: usize) -> Shape {
    let mut shape = Shape::from([channels]);
    (2..rank).for_each(|_| shape.push(1));
    shape
}

fn known_tensor(shape: &Shape, items: Vec<f32>) -> Tensor {
    Tensor::new(shape.clone(), items).expect("one element a channel")
}

/// A convolution or product whose result is scaled and shifted by known numbers per output channel, by nodes that
/// nothing else reads.
struct Scaled {
    scale: Vec<f32>,
    shift: Option<Vec<f32>>,
}

/// Folds known per-channel products and sums behind a convolution or matrix product into its weights and bias.
pub fn fold_scales(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    // For each node that is folded away: nothing, or what the last of them stands for.
    let mut role: Map<NodeId, Fold> = Map::filled(graph.nodes().len(), Fold::Keep);
    let mut found = Vec::new();
    for (id, node) in graph.nodes().iter() {
        let Some((last, scaled, absorbed)) = follow(&uses, id) else { continue };
        if uses.known(node.inputs[1]).is_none() {
            continue;
        }
        role[id] = Fold::Drop;
        absorbed.iter().for_each(|&node| role[node] = Fold::Drop);
        role[last] = Fold::Emit(found.len());
        found.push((id, scaled));
    }
    rewrite(graph, |context, id| match role[id] {
        Fold::Keep => None,
        Fold::Drop => Some(SmallVec::new()),
        Fold::Emit(ix) => Some(smallvec![emit(context, &uses, found[ix].0, &found[ix].1)]),
    })
}

#[derive(Clone, Copy)]
enum Fold {
    Keep,
    Drop,
    Emit(usize),
}

/// The axis of a product's result along which its bias lies, and the op's epilogue.
fn product_axis(graph: &Graph, id: NodeId) -> Option<(usize, &Epilogue)> {
    let node = graph.node(id);
    let rank = graph.ty(*node.outputs.first()?).shape.rank();
    match &node.op {
        Op::Conv(conv) => Some((1, &conv.epilogue)),
        Op::ConvTranspose(conv) => Some((1, &conv.epilogue)),
        Op::MatMul(product) if graph.ty(node.inputs[1]).shape.rank() == 2 => Some((rank - 1, &product.epilogue)),
        _ => None,
    }
}

/// Walks from a product through the known per-channel scales and shifts behind it.
fn follow(uses: &Uses, id: NodeId) -> Option<(NodeId, Scaled, Vec<NodeId>)> {
    let graph = uses.graph;
    let (axis, epilogue) = product_axis(graph, id)?;
    if epilogue.residual || !epilogue.activation.is_empty() {
        return None;
    }
    let shape = &graph.ty(graph.node(id).outputs[0]).shape;
    if epilogue.bias && uses.known(graph.node(id).inputs[2]).is_none() {
        return None;
    }
    let mut scaled = Scaled { scale: vec![1.0; shape[axis]], shift: None };
    let (mut last, mut absorbed) = (id, Vec::new());
    while let Some(next) = uses.only_reader(graph.node(last).outputs[0]) {
        let node = graph.node(next);
        let Op::Binary(Binary(function)) = node.op else { break };
        let value = graph.node(last).outputs[0];
        let other_ix = usize::from(node.inputs[0] == value);
        let Some(other) = uses.known(node.inputs[other_ix]) else { break };
        if graph.ty(node.outputs[0]).shape != *shape {
            break;
        }
        let Some(numbers) = per_channel(other, shape, axis) else { break };
        let shift = |scaled: &mut Scaled, sign: f32| {
            let sums = scaled.shift.get_or_insert_with(|| vec![0.0; numbers.len()]);
            sums.iter_mut().zip(&numbers).for_each(|(sum, number)| *sum += sign * number);
        };
        let scale = |scaled: &mut Scaled, factor: &dyn Fn(f32) -> f32| {
            let rows = scaled.scale.iter_mut().zip(&numbers);
            rows.for_each(|(scale, number)| *scale *= factor(*number));
            if let Some(sums) = &mut scaled.shift {
                sums.iter_mut().zip(&numbers).for_each(|(sum, number)| *sum *= factor(*number));
            }
        };
        match (function, other_ix) {
            (Function::Mul, _) => scale(&mut scaled, &|number| number),
            (Function::Div, 1) if numbers.iter().all(|&number| number != 0.0) => {
                scale(&mut scaled, &|number| 1.0 / number)
            }
            (Function::Add, _) => shift(&mut scaled, 1.0),
            (Function::Sub, 1) => shift(&mut scaled, -1.0),
            _ => break,
        }
        absorbed.push(next);
        last = next;
    }
    (last != id).then_some((last, scaled, absorbed))
}

/// The product with its weights scaled and its bias shifted.
fn emit(context: &mut Rewrite, uses: &Uses, id: NodeId, scaled: &Scaled) -> ValueId {
    let graph = uses.graph;
    let node = graph.node(id);
    let weight = uses.known(node.inputs[1]).expect("only products with known weights are folded");
    let channel_of: Box<dyn Fn(usize) -> usize> = match &node.op {
        Op::Conv(_) => {
            let taps: usize = weight.shape()[1..].iter().product();
            Box::new(move |at| at / taps)
        }
        Op::ConvTranspose(ConvTranspose { groups, .. }) => {
            let (group_in, group_out) = (weight.shape()[0] / groups, weight.shape()[1]);
            let taps: usize = weight.shape()[2..].iter().product();
            Box::new(move |at| at / taps / group_out / group_in * group_out + at / taps % group_out)
        }
        _ => {
            let columns = weight.shape()[1];
            Box::new(move |at| at % columns)
        }
    };
    let items = weight.as_slice::<f32>().expect("products compute in f32");
    let new_weight = Tensor::from_fn(weight.shape().clone(), |at| items[at] * scaled.scale[channel_of(at)]);
    let (_, epilogue) = product_axis(graph, id).expect("followed from a product");
    let old_bias = epilogue.bias.then(|| uses.known(node.inputs[2]).expect("checked when followed").to_f64());
    let has_bias = epilogue.bias || scaled.shift.is_some();
    let bias: Vec<f32> = (0..scaled.scale.len())
        .map(|channel| {
            let old = old_bias.as_ref().map_or(0.0, |bias| bias[channel]) * f64::from(scaled.scale[channel]);
            (old + scaled.shift.as_ref().map_or(0.0, |shift| f64::from(shift[channel]))) as f32
        })
        .collect();

    let mut op = node.op.clone();
    match &mut op {
        Op::Conv(conv) => conv.epilogue.bias = has_bias,
        Op::ConvTranspose(conv) => conv.epilogue.bias = has_bias,
        Op::MatMul(product) => product.epilogue.bias = has_bias,
        _ => unreachable!("followed from a product"),
    }
    let x = context.value(node.inputs[0]);
    let weight_name = &graph.value(node.inputs[1]).name;
    let mut inputs: SmallVec<[ValueId; 3]> = smallvec![x, context.new.add_weight(weight_name, new_weight)];
    if has_bias {
        inputs.push(context.new.add_weight(&format!("{}.bias", node.scope), Tensor::vector(bias)));
    }
    context.add(op, &inputs, &node.scope).expect("types are as they were")
}
