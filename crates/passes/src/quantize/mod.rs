//! Dequantized that a file has quantised: stored in a byte each, as whole numbers `q` that stand for `(q - zero) * scale`.
//!
//! A file says where: it makes bytes of a result and numbers of the bytes again before the next operator reads them.
//! [`match_qdq`] gives both their names, chains that read or write bytes. Late, when it is known what follows what,
//! [`lower_quantized`] turns products of numbers that come from bytes into products of the bytes, whose sums are exact, and
//! what made bytes of their results into a part of their epilogues:
//!
//! ```text
//!    x -> numbers -> conv -> relu -> bytes        becomes       x -> conv of bytes, scale, bias, clip -> bytes
//!    w -> numbers ---^                                          w ---^
//! ```
//!
//! A result differs from that of the graph as it came by the rounding of its sum at most (and of what a zero point that comes
//! with the run takes from it), which may decide to which of two neighbouring whole numbers it goes.

mod dequantized;
mod int8_products;
mod match_qdq;
mod requantize;
mod simplify_chains;

use ir::ops::{Chain, Pool, PoolKind};
use ir::{Formats, Graph, Node, NodeId, Op, Query, Rewrite, Target, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::DType;

pub use self::match_qdq::match_qdq;

use self::dequantized::{Dequantized, unsigned};
use self::int8_products::{product_of_bytes, sum_as_number, sums_of_numbers};
use self::match_qdq::moved_as_bytes;
use self::simplify_chains::shortened;
use crate::fuse::pointwise::fuse_pointwise;
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

/// Turns products of numbers that come from bytes into products of the bytes, where there are kernels for those, and has
/// products write bytes that were made of their results. What comes from known bytes otherwise is computed now.
pub fn lower_quantized(graph: &Graph, target: &dyn Target) -> Graph {
    let fits: &dyn Fn(&Graph, NodeId) -> bool = &|graph, id| has_kernel(target, graph, id, Formats::Int8Operands);
    let uses = Uses::new(graph);
    let moved = rewrite(graph, |context, id| {
        maximum_of_bytes(context, id, fits).or_else(|| parts_to_bytes(context, &uses, id))
    });
    let graph = unsigned(&moved);
    let uses = Uses::new(&graph);
    let multiplied = rewrite(&graph, |context, id| {
        let node = graph.node(id);
        if graph.ty(node.outputs[0]).dtype == DType::I32 && matches!(node.op, Op::MatMul(_)) {
            return if fits(&graph, id) { None } else { sums_of_numbers(context, &graph, node) };
        }
        sum_as_number(context, &uses, id, fits).or_else(|| product_of_bytes(context, &graph, id, fits))
    });
    // Dequantized values that products no longer read may remain without being stored.
    dce(&fold_all(&shortened(&fuse_pointwise(&requantize::fused(&fold_all(&dce(&multiplied)), target)))))
}

/// The maximum of numbers that come from bytes, as that of the bytes.
fn maximum_of_bytes(
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

/// Whether each window has a pixel: one that lies in the padding as a whole has no maximum, which bytes have no word for.
fn sees_pixels(graph: &Graph, node: &Node, pool: &Pool) -> bool {
    let (x, out) = (&graph.ty(node.inputs[0]).shape, &graph.ty(node.outputs[0]).shape);
    (0..pool.kernel.len()).all(|axis| {
        // The last window begins in the picture or in front of it, the first ends behind its begin; cells side by side.
        let last = out[2 + axis].saturating_sub(1) * pool.stride[axis];
        let pad = pool.pad[axis][0];
        0 < x[2 + axis] && pool.dilation[axis] == 1 && pad < pool.kernel[axis] && last < x[2 + axis] + pad
    })
}

/// Bytes made of parts that stand side by side: of each part, which are then what is joined. Only where all parts come from
/// bytes and nobody else reads them, so that each is rounded once.
fn parts_to_bytes(context: &mut Rewrite, uses: &Uses, id: NodeId) -> Option<SmallVec<[ValueId; 1]>> {
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
