//! Quantized models: int8 values `q` that stand for `(q - zero) * scale`.
//!
//! Files write the QDQ pattern: a result is quantized, and dequantized again before the next operator. [`match_qdq`] makes
//! chains of both. Later, when the readers of each value are final, [`lower_quantized`] replaces dequantize, product, quantize
//! by an int8 product with exact sums and a requantizing epilogue:
//!
//! ```text
//!    x -> dequantize -> conv -> relu -> quantize        becomes       x -> int8 conv, scale, bias, clip, quantize
//!    w -> dequantize ---^                                             w ---^
//! ```
//!
//! Results differ from those of the loaded graph by the rounding of a sum (and of the contribution of a dynamic zero point),
//! which may move a result to the neighboring integer.

mod dequantized;
mod int8_products;
mod match_qdq;
mod requantize;
mod residual_sums;
mod simplify_chains;

use ir::ops::{Chain, Pool, PoolKind};
use ir::{Formats, Graph, Node, NodeId, Op, Query, Rewrite, Target, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::{DType, Map};

pub use self::match_qdq::match_qdq;

use self::dequantized::{Dequantized, unsigned};
use self::int8_products::{product_of_bytes, product_of_padded, sum_as_number, sums_of_numbers};
use self::match_qdq::moved_as_bytes;
use self::simplify_chains::shortened;
use crate::fuse::pointwise::{fuse_pointwise, is_pointwise};
use crate::simplify::dce::dce;
use crate::simplify::fold_constants::fold_all;
use crate::uses::Uses;

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// Whether a target has a kernel for a node in other formats than it has.
fn has_kernel(target: &dyn Target, graph: &Graph, id: NodeId, formats: Formats) -> bool {
    target.candidates(graph, &[id], &Query::of(formats)).is_ok_and(|candidates| !candidates.is_empty())
}

/// Rewrites dequantize -> product -> quantize into int8 products that the target has kernels for, and folds the remaining
/// chains of int8 constants.
pub fn lower_quantized(graph: &Graph, target: &dyn Target) -> Graph {
    let fits: &dyn Fn(&Graph, NodeId) -> bool = &|graph, id| has_kernel(target, graph, id, Formats::Int8Operands);
    let uses = Uses::new(graph);
    let moved =
        rewrite(graph, |context, id| int8_maximum(context, id, fits).or_else(|| quantize_parts(context, &uses, id)));
    let graph = unsigned(&moved);
    let uses = Uses::new(&graph);
    let multiplied = rewrite(&graph, |context, id| {
        let node = graph.node(id);
        if graph.ty(node.outputs[0]).dtype == DType::I32 && matches!(node.op, Op::MatMul(_)) {
            return match fits(&graph, id) {
                true => product_of_padded(context, node),
                false => sums_of_numbers(context, &graph, node),
            };
        }
        sum_as_number(context, &uses, id, fits).or_else(|| product_of_bytes(context, &graph, id, fits))
    });
    // Dequantized values without a product left may be fused with their readers.
    let requantized = requantize::fused(&fold_all(&dce(&multiplied)), target);
    let shortened = shortened(&fuse_pointwise(&dequantized_by_readers(&requantized)));
    dce(&fold_all(&residual_sums::fused(&shortened, target)))
}

/// Copies a dequantization with several readers for each of them, if all are elementwise: it is then fused into each, which
/// reads int8, and no `f32` value is stored.
fn dequantized_by_readers(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    let fuses = |value: ValueId, reader: NodeId| {
        is_pointwise(graph, reader) && graph.ty(graph.node(reader).outputs[0]).shape == graph.ty(value).shape
    };
    let is_shared = |id: NodeId| {
        let value = graph.node(id).outputs[0];
        let readers = uses.readers(value);
        1 < readers.len()
            && !graph.is_output(value)
            && Dequantized::of(graph, id).is_some()
            && readers.iter().all(|&reader| fuses(value, reader))
    };
    let mut shared: Map<NodeId, bool> = Map::filled(graph.nodes().len(), false);
    graph.nodes().keys().filter(|&id| is_shared(id)).for_each(|id| shared[id] = true);
    let dequantize = |value: ValueId| uses.producer(value).filter(|&(id, _)| shared[id]).map(|(_, node)| node);
    let copied = rewrite(graph, |context, id| {
        let node = graph.node(id);
        let mut inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&input| context.value(input)).collect();
        let mut copies: SmallVec<[(ValueId, ValueId); 2]> = SmallVec::new();
        for (&old, input) in node.inputs.iter().zip(&mut inputs) {
            let Some(source) = dequantize(old) else { continue };
            if let Some(&(_, copy)) = copies.iter().find(|&&(known, _)| known == old) {
                *input = copy;
                continue;
            }
            let operands: SmallVec<[ValueId; 4]> =
                source.inputs.iter().map(|&operand| context.value(operand)).collect();
            *input = context.add(source.op.clone(), &operands, &source.scope).ok()?;
            copies.push((old, *input));
        }
        (!copies.is_empty()).then_some(())?;
        Some(smallvec![context.add(node.op.clone(), &inputs, &node.scope).ok()?])
    });
    dce(&copied)
}

/// A maximum of dequantized values as a maximum of int8 values.
fn int8_maximum(
    context: &mut Rewrite,
    id: NodeId,
    fits: &dyn Fn(&Graph, NodeId) -> bool,
) -> Option<SmallVec<[ValueId; 1]>> {
    let graph = context.old;
    let node = graph.node(id);
    let is_max = |node: &Node| {
        let Op::Pool(pool) = &node.op else { return false };
        pool.kind == PoolKind::Max && sees_pixels(graph, node, pool)
    };
    if is_max(node) && fits(graph, id) {
        return moved_as_bytes(context, node);
    }
    // Or a cast to floats and back, which rounds nothing.
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

/// Whether each window contains a pixel. A window of padding only has the maximum -infinity, which int8 cannot represent.
fn sees_pixels(graph: &Graph, node: &Node, pool: &Pool) -> bool {
    let (x, out) = (&graph.ty(node.inputs[0]).shape, &graph.ty(node.outputs[0]).shape);
    (0..pool.kernel.len()).all(|axis| {
        // The last window begins in the picture or in front of it, the first ends behind its begin; cells side by side.
        let last = out[2 + axis].saturating_sub(1) * pool.stride[axis];
        let pad = pool.pad[axis][0];
        0 < x[2 + axis] && pool.dilation[axis] == 1 && pad < pool.kernel[axis] && last < x[2 + axis] + pad
    })
}

/// A quantized concatenation as a concatenation of quantized parts. Only if all parts are dequantized int8 values without other
/// readers, so that each is rounded once.
fn quantize_parts(context: &mut Rewrite, uses: &Uses, id: NodeId) -> Option<SmallVec<[ValueId; 1]>> {
    let graph = uses.graph;
    let node = graph.node(id);
    let Op::Chain(Chain { result: Some(result), .. }) = &node.op else { return None };
    let [joined] = node.inputs[..] else { return None };
    let (join_id, join) = uses.producer(joined)?;
    let is_join = matches!(join.op, Op::Concat(_)) && is_byte(*result) && uses.only_reader(joined) == Some(id);
    let is_own = |&part: &ValueId| {
        let comes_from_bytes =
            uses.producer(part).is_some_and(|(made_by, _)| Dequantized::of(graph, made_by).is_some());
        comes_from_bytes && uses.only_reader(part) == Some(join_id)
    };
    if !is_join || !join.inputs.iter().all(is_own) {
        return None;
    }
    let parts: Option<SmallVec<[ValueId; 8]>> = join
        .inputs
        .iter()
        .enumerate()
        .map(|(number, &part)| {
            let part = context.value(part);
            context.add(node.op.clone(), &[part], &node.scope.child(&number.to_string())).ok()
        })
        .collect();
    Some(smallvec![context.add(join.op.clone(), &parts?, &join.scope).ok()?])
}
