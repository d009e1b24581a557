//! [`fold_batch_norm`]: scales and shifts per channel become part of a product's weights and bias.

use ir::ops::{Binary, ConvTranspose, Epilogue};
use ir::{Graph, NodeId, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Binary as Function;
use types::{Map, Tensor};

use crate::uses::{Uses, per_channel};

/// The constant scale and shift per output channel behind a convolution or product.
struct Scaled {
    scale: Vec<f32>,
    shift: Option<Vec<f32>>,
}

/// Folds constant per-channel products and sums behind a convolution or matrix product into its weights and bias.
pub fn fold_batch_norm(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    // The last node of each fold is replaced, the others are dropped.
    let mut role: Map<NodeId, Fold> = Map::filled(graph.nodes().len(), Fold::Keep);
    let mut found = Vec::new();
    for (id, node) in graph.nodes().iter() {
        let Some((last, scaled, absorbed)) = follow(&uses, id) else { continue };
        if uses.constant(node.inputs[1]).is_none() {
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

/// The channel axis of a product's result, and the op's epilogue.
fn product_axis(graph: &Graph, id: NodeId) -> Option<(usize, &Epilogue)> {
    let node = graph.node(id);
    let rank = graph.ty(*node.outputs.first()?).shape.rank();
    let epilogue = node.op.epilogue()?;
    match matches!(node.op, Op::MatMul(_)) {
        true => (graph.ty(node.inputs[1]).shape.rank() == 2).then(|| (rank - 1, epilogue)),
        false => Some((1, epilogue)),
    }
}

/// Follows the constant per-channel scales and shifts behind a product.
fn follow(uses: &Uses, id: NodeId) -> Option<(NodeId, Scaled, Vec<NodeId>)> {
    let graph = uses.graph;
    let (axis, epilogue) = product_axis(graph, id)?;
    if epilogue.residual || !epilogue.activation.is_empty() {
        return None;
    }
    let shape = &graph.ty(graph.node(id).outputs[0]).shape;
    if epilogue.bias && uses.constant(graph.node(id).inputs[2]).is_none() {
        return None;
    }
    let mut scaled = Scaled { scale: vec![1.0; shape[axis]], shift: None };
    let (mut last, mut absorbed) = (id, Vec::new());
    while let Some(next) = uses.only_reader(graph.node(last).outputs[0]) {
        let node = graph.node(next);
        let Op::Binary(Binary(function)) = node.op else { break };
        let value = graph.node(last).outputs[0];
        let other_ix = usize::from(node.inputs[0] == value);
        let Some(other) = uses.constant(node.inputs[other_ix]) else { break };
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
    let weight = uses.constant(node.inputs[1]).expect("only products with constant weights are folded");
    let channel_of: Box<dyn Fn(usize) -> usize> = if let Op::ConvTranspose(ConvTranspose { groups, .. }) = &node.op {
        let (group_in, group_out) = (weight.shape()[0] / groups, weight.shape()[1]);
        let taps: usize = weight.shape()[2..].iter().product();
        Box::new(move |at| at / taps / group_out / group_in * group_out + at / taps % group_out)
    } else if let Op::MatMul(_) = &node.op {
        let columns = weight.shape()[1];
        Box::new(move |at| at % columns)
    } else {
        let taps: usize = weight.shape()[1..].iter().product();
        Box::new(move |at| at / taps)
    };
    let items = weight.as_slice::<f32>().expect("products compute in f32");
    let new_weight = Tensor::from_fn(weight.shape().clone(), |at| items[at] * scaled.scale[channel_of(at)]);
    let (_, epilogue) = product_axis(graph, id).expect("followed from a product");
    let old_bias = epilogue.bias.then(|| uses.constant(node.inputs[2]).expect("checked when followed").to_f64());
    let has_bias = epilogue.bias || scaled.shift.is_some();
    let bias: Vec<f32> = (0..scaled.scale.len())
        .map(|channel| {
            let old = old_bias.as_ref().map_or(0.0, |bias| bias[channel]) * f64::from(scaled.scale[channel]);
            (old + scaled.shift.as_ref().map_or(0.0, |shift| f64::from(shift[channel]))) as f32
        })
        .collect();

    let mut op = node.op.clone();
    op.epilogue_mut().expect("followed from a product").bias = has_bias;
    let x = context.value(node.inputs[0]);
    let weight_name = &graph.value(node.inputs[1]).name;
    let mut inputs: SmallVec<[ValueId; 3]> = smallvec![x, context.new.add_weight(weight_name, new_weight)];
    if has_bias {
        inputs.push(context.new.add_weight(&format!("{}.bias", node.scope), Tensor::vector(bias)));
    }
    context.add(op, &inputs, &node.scope).expect("types are as they were")
}
