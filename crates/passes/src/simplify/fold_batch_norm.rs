//! [`fold_batch_norm`]: scales and shifts per channel become part of a product's weights and bias.

use ir::ops::{Binary, ConvTranspose, Epilogue};
use ir::{Graph, NodeId, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Binary as Function;
use types::{ChannelAffine, ChannelAxis, ChannelChange, Map, Tensor, TensorFunction};

use crate::uses::{Uses, per_channel};

/// The constant scale and shift per output channel behind a convolution or product.
struct Scaled {
    affine: ChannelAffine,
    /// The products and sums per channel that it combines, in their order.
    changes: SmallVec<[ChannelChange; 2]>,
    operands: Vec<ValueId>,
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
    let mut scaled = Scaled { affine: ChannelAffine::new(shape[axis]), changes: SmallVec::new(), operands: Vec::new() };
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
        let change = match (function, other_ix) {
            (Function::Mul, _) => ChannelChange::Multiply,
            (Function::Div, 1) if numbers.iter().all(|&number| number != 0.0) => ChannelChange::Divide,
            (Function::Add, _) => ChannelChange::Add,
            (Function::Sub, 1) => ChannelChange::Subtract,
            _ => break,
        };
        scaled.affine.then(change, &numbers);
        scaled.changes.push(change);
        scaled.operands.push(node.inputs[other_ix]);
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
    let channels = if let Op::ConvTranspose(ConvTranspose { groups, .. }) = &node.op {
        ChannelAxis::Groups(*groups)
    } else if let Op::MatMul(_) = &node.op {
        ChannelAxis::Last
    } else {
        ChannelAxis::First
    };
    let numbers = scaled.operands.iter().map(|&value| uses.constant(value).expect("checked when followed"));
    let numbers: Vec<&Tensor> = numbers.collect();
    let derived = |function: TensorFunction, first: Option<&Tensor>| {
        let operands: Vec<&Tensor> = first.into_iter().chain(numbers.iter().copied()).collect();
        Tensor::derived(function, &operands).expect("products compute in f32, by channel as followed")
    };
    let changes = scaled.changes.clone();
    let new_weight = derived(TensorFunction::ScaledWeight { changes: changes.clone(), channels }, Some(weight));
    let (_, epilogue) = product_axis(graph, id).expect("followed from a product");
    let old_bias = epilogue.bias.then(|| uses.constant(node.inputs[2]).expect("checked when followed"));
    let has_bias = epilogue.bias || scaled.affine.shift.is_some();
    let count = scaled.affine.scale.len();

    let mut op = node.op.clone();
    op.epilogue_mut().expect("followed from a product").bias = has_bias;
    let x = context.value(node.inputs[0]);
    let weight_name = &graph.value(node.inputs[1]).name;
    let mut inputs: SmallVec<[ValueId; 3]> = smallvec![x, context.new.add_weight(weight_name, new_weight)];
    if has_bias {
        let bias = derived(TensorFunction::ShiftedBias { changes, count, has_bias: epilogue.bias }, old_bias);
        inputs.push(context.new.add_weight(&format!("{}.bias", node.scope), bias));
    }
    context.add(op, &inputs, &node.scope).expect("types are as they were")
}
