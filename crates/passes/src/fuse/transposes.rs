//! [`fuse_transposes`]: products read a transposed right factor in place.

use ir::ops::{MatMul, Transpose};
use ir::{Graph, Node, NodeId, Op, Query, Target, ValueDef, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::{DType, Role};

use crate::simplify::dce::dce;

/// In training steps, products whose right factor is a [`Transpose`] of the last two axes read the factor as it is
/// ([`MatMul::transposed`]), if the target has kernels for all of them. A weight that is trained is then never copied: it is
/// read in one order forward and in the other backward.
pub fn fuse_transposes(graph: &Graph, target: &dyn Target) -> Graph {
    let is_trained = |&state: &ValueId| graph.value(state).role() == Role::Weight;
    if !graph.states().iter().any(is_trained) {
        return graph.clone();
    }
    let new = rewrite(graph, |context, id| {
        let (op, factor) = transposed(graph, id)?;
        let node = graph.node(id);
        let inputs: SmallVec<[ValueId; 4]> = node
            .inputs
            .iter()
            .enumerate()
            .map(|(ix, &input)| context.value(if ix == 1 { factor } else { input }))
            .collect();
        Some(smallvec![context.add(op, &inputs, &node.scope).expect("the types stay")])
    });
    let is_transposed = |node: &Node| matches!(&node.op, Op::MatMul(product) if product.transposed);
    let has_kernel =
        |(id, node): (NodeId, &Node)| !is_transposed(node) || target.candidates(&new, &[id], &Query::GIVEN).is_ok();
    if new.nodes().iter().all(has_kernel) { dce(&new) } else { graph.clone() }
}

/// The product that reads its right factor in front of a transposition, and that factor.
fn transposed(graph: &Graph, id: NodeId) -> Option<(MatMul, ValueId)> {
    let node = graph.node(id);
    let Op::MatMul(product) = &node.op else { return None };
    let ValueDef::Node { node: maker, .. } = graph.value(node.inputs[1]).source else { return None };
    let Op::Transpose(Transpose { order }) = &graph.node(maker).op else { return None };
    let factor = graph.node(maker).inputs[0];
    let rank = order.len();
    let swaps = order.iter().copied().eq((0..rank - 2).chain([rank - 1, rank - 2]));
    let all_f32 = node.inputs.iter().chain(&node.outputs).all(|&value| graph.ty(value).dtype == DType::F32);
    let is_constant = graph.value(factor).tensor().is_some();
    let fits = !product.transposed && swaps && all_f32 && !is_constant;
    fits.then(|| (MatMul { transposed: true, ..product.clone() }, factor))
}
