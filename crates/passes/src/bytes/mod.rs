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
//! A result differs from that of the graph as it came by the rounding of its sum at most (and of what a zero point that comes
//! with the run takes from it), which may decide to which of two neighbouring whole numbers it goes.

mod epilogues;
mod find;
mod numbers;
mod products;
mod shorter;

use ir::ops::PoolKind;
use ir::{Graph, Node, NodeId, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::DType;

pub use self::find::find_bytes;

use self::find::moved_as_bytes;
use self::numbers::unsigned;
use self::products::{product_of_bytes, sum_as_number, sums_of_numbers};
use self::shorter::shortened;
use crate::common::Uses;
use crate::dead::remove_dead;
use crate::fold::fold_all;
use crate::pointwise::fuse_pointwise;

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
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
    remove_dead(&fold_all(&shortened(&fuse_pointwise(&epilogues::fused(&fold_all(&remove_dead(&multiplied)), writes)))))
}

/// The maximum of numbers that come from bytes, as that of the bytes.
fn maximum_of_bytes(
    context: &mut Rewrite,
    id: NodeId,
    fits: &dyn Fn(&Graph, NodeId) -> bool,
) -> Option<SmallVec<[ValueId; 1]>> {
    let graph = context.old;
    // A window that lies in the padding as a whole has no maximum, which bytes have no word for.
    let node = graph.node(id);
    let is_max = |node: &Node| match &node.op {
        Op::Pool(pool) => {
            let pads = pool.pad.iter().zip(&pool.kernel);
            pool.kind == PoolKind::Max
                && !pool.ceil
                && pads.clone().all(|(pad, &kernel)| pad.iter().all(|&pad| pad < kernel))
        }
        _ => false,
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
