//! [`fused()`]: quantization behind a product becomes its requantizing epilogue.

use ir::ops::{Chain, ChainStep};
use ir::{Formats, Graph, NodeId, Op, Target, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Unary as Function;
use types::{DType, Map, Tensor};

use super::simplify_chains::affine_of;
use super::{has_kernel, is_byte};
use crate::uses::Uses;

/// A product and the functions behind it.
type Taken = (NodeId, SmallVec<[Function; 4]>);

/// Moves the chain that quantizes a product's result into its epilogue, if nothing else reads the result.
pub(super) fn fused(graph: &Graph, target: &dyn Target) -> Graph {
    let uses = Uses::new(graph);
    // By chain: its product and its functions.
    let mut takes: Map<NodeId, Option<Taken>> = Map::filled(graph.nodes().len(), None);
    let mut taken: Map<NodeId, bool> = Map::filled(graph.nodes().len(), false);
    for (id, node) in graph.nodes().iter() {
        let Some(epilogue) = node.op.epilogue() else { continue };
        let Some(reader) = uses.only_reader(node.outputs[0]) else { continue };
        let Some(functions) = quantizing_functions(graph, reader) else { continue };
        let is_product =
            matches!(node.op, Op::Conv(_) | Op::MatMul(_)) && !epilogue.residual && epilogue.result.is_none();
        let possible = is_product && (epilogue.scale || has_kernel(target, graph, id, Formats::Int8Result));
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
        let epilogue = op.epilogue_mut().expect("it is a product");
        epilogue.result = Some(graph.ty(chain.outputs[0]).dtype);
        let mut functions: SmallVec<[Function; 2]> = epilogue.activation.iter().chain(functions).copied().collect();
        let operand = |ix: usize| graph.value(node.inputs[ix]).tensor().map(|tensor| tensor.to_f64());
        let mut operands: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&old| context.value(old)).collect();
        if epilogue.scale
            && let Some((limits, [factor, shift])) = limits_and_affine(&functions)
            && let Some(scale) = operand(2)
            && let Some(bias) = if epilogue.bias { operand(epilogue.bias_at()) } else { Some(vec![0.0; scale.len()]) }
        {
            // Scale and bias absorb the affine function; limits move to its results.
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
        Some(smallvec![context.add(op, &operands, &chain.scope).expect("an epilogue may have an int8 result")])
    })
}

/// The functions of a quantizing chain: unary functions, and sums and products with constants. The last rounding is excluded,
/// as an int8 result is rounded in any case.
fn quantizing_functions(graph: &Graph, id: NodeId) -> Option<SmallVec<[Function; 4]>> {
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
            // An integer may be added before rounding; only ties may round differently.
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

/// For an optional limit followed by `scale x + shift`: the limits of the result, and the affine function.
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
