//! [`fuse_epilogues`]: elementwise nodes behind a convolution or matrix product become its epilogue.

use ir::ops::{Binary, Epilogue, Unary};
use ir::{Graph, Node, NodeId, Op, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary as Function2, Unary as Function};
use types::{DType, Map};

use crate::uses::Uses;

/// The maximum number of functions of an epilogue.
const ACTIVATIONS_MAX: usize = 4;

/// Moves the sum with a bias for each column of a matrix product, the sum with a tensor of the same shape, then unary functions,
/// and products and sums with a scalar constant into the convolution or matrix product in front of them, if nothing else reads the
/// intermediate results. The new node has the position of the last of them, so that bias and residual are computed before it.
pub fn fuse_epilogues(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    let mut part: Map<NodeId, Part> = Map::filled(graph.nodes().len(), Part::Keep);
    let mut fusions = Vec::new();
    // Of two products that meet in a sum, the later takes it: its own result is not needed earlier.
    for (id, node) in graph.nodes().iter().rev() {
        let Some(epilogue) = node.op.epilogue() else { continue };
        let Some(fusion) = follow(&uses, id, epilogue, &part) else { continue };
        part[id] = Part::Drop;
        fusion.absorbed.iter().for_each(|&node| part[node] = Part::Drop);
        part[fusion.last] = Part::Emit(fusions.len());
        fusions.push((id, fusion));
    }
    rewrite(graph, |context, id| {
        let ix = match part[id] {
            Part::Keep => return None,
            Part::Drop => return Some(SmallVec::new()),
            Part::Emit(ix) => ix,
        };
        let (product, fusion) = &fusions[ix];
        let node = graph.node(*product);
        let mut op = node.op.clone();
        *op.epilogue_mut().expect("only products are fused") = fusion.epilogue.clone();
        let operands = node.inputs.iter().chain(&fusion.bias).chain(&fusion.residual);
        let inputs: SmallVec<[ValueId; 4]> = operands.map(|&old| context.value(old)).collect();
        Some(smallvec![context.add(op, &inputs, &node.scope).expect("types are as they were")])
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Keep,
    Drop,
    Emit(usize),
}

struct Fusion {
    epilogue: Epilogue,
    bias: Option<ValueId>,
    residual: Option<ValueId>,
    absorbed: Vec<NodeId>,
    last: NodeId,
}

fn follow(uses: &Uses, id: NodeId, own: &Epilogue, part: &Map<NodeId, Part>) -> Option<Fusion> {
    let graph = uses.graph;
    // Int32 sums have no epilogue.
    if graph.ty(graph.node(id).outputs[0]).dtype == DType::I32 {
        return None;
    }
    let takes_residual = !matches!(graph.node(id).op, Op::ConvTranspose(_));
    let mut fusion = Fusion { epilogue: own.clone(), bias: None, residual: None, absorbed: Vec::new(), last: id };
    while let Some(next) = uses.only_reader(graph.node(fusion.last).outputs[0]) {
        let node = graph.node(next);
        let value = graph.node(fusion.last).outputs[0];
        if part[next] != Part::Keep {
            break;
        }
        if let Some(affine) = affine(uses, node, value)
            && fusion.epilogue.activation.len() < ACTIVATIONS_MAX
        {
            push_affine(&mut fusion.epilogue, affine);
            fusion.absorbed.push(next);
            fusion.last = next;
            continue;
        }
        if let Op::Binary(Binary(Function2::Add)) = node.op
            && takes_residual
        {
            let other = node.inputs[usize::from(node.inputs[0] == value)];
            let room = !fusion.epilogue.residual && fusion.epilogue.activation.is_empty();
            if room && !fusion.epilogue.bias && is_bias(graph, id, other) {
                fusion.epilogue.bias = true;
                fusion.bias = Some(other);
                fusion.absorbed.push(next);
                fusion.last = next;
                continue;
            }
            if !room || other == value || graph.ty(other) != graph.ty(value) || uses.constant(other).is_some() {
                break;
            }
            fusion.epilogue.residual = true;
            fusion.residual = Some(other);
        } else if let Op::Unary(Unary(function)) = node.op
            && !gives_bool(function)
            && graph.ty(value).dtype == DType::F32
        {
            if ACTIVATIONS_MAX <= fusion.epilogue.activation.len() {
                break;
            }
            fusion.epilogue.activation.push(function);
        } else {
            break;
        }
        fusion.absorbed.push(next);
        fusion.last = next;
    }
    (fusion.last != id).then_some(fusion)
}

/// Whether a value has an element for each column of a matrix product, and the product's type.
fn is_bias(graph: &Graph, product: NodeId, value: ValueId) -> bool {
    let node = graph.node(product);
    let (ty, result) = (graph.ty(value), graph.ty(node.outputs[0]));
    let columns = result.shape.last();
    matches!(node.op, Op::MatMul(_)) && ty.dtype == result.dtype && ty.shape[..] == [columns.copied().unwrap_or(0)]
}

/// `[scale, shift]` of a product, sum, difference or quotient of `f32` with one scalar constant.
fn affine(uses: &Uses, node: &Node, value: ValueId) -> Option<[f32; 2]> {
    let graph = uses.graph;
    let Op::Binary(Binary(function)) = node.op else { return None };
    let place = usize::from(node.inputs[0] == value);
    let number = uses.scalar_constant(node.inputs[place])?;
    if graph.ty(node.outputs[0]) != graph.ty(value) {
        return None;
    }
    match (function, place) {
        (Function2::Mul, _) => Some([number, 0.0]),
        (Function2::Add, _) => Some([1.0, number]),
        (Function2::Sub, 1) => Some([1.0, -number]),
        (Function2::Sub, _) => Some([-1.0, number]),
        (Function2::Div, 1) if number != 0.0 => Some([1.0 / number, 0.0]),
        _ => None,
    }
}

/// Adds `scale x + shift` to an epilogue, merged with an affine function directly in front of it.
fn push_affine(epilogue: &mut Epilogue, [scale, shift]: [f32; 2]) {
    match epilogue.activation.last_mut() {
        Some(Function::Affine { scale: before, shift: offset }) => {
            *offset = scale * *offset + shift;
            *before *= scale;
        }
        _ => epilogue.activation.push(Function::Affine { scale, shift }),
    }
}

fn gives_bool(function: Function) -> bool {
    matches!(function, Function::IsNan | Function::IsInf { .. } | Function::Not)
}
