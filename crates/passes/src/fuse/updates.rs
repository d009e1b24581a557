//! [`fuse_updates`]: updates of weights whose gradient is a product, without the gradient.

use ir::ops::{MatMul, Update};
use ir::{Graph, Node, NodeId, Op, Query, Target, ValueDef, ValueId, rewrite};
use smallvec::SmallVec;

use crate::simplify::dce::dce;

/// The least ratio of the elements of a gradient to those of its two factors. The data gradient of the layer reads the weight
/// and must therefore be computed before the update: it is live together with the factors, and is not larger than they are.
const FACTORS_MIN: usize = 4;

/// Gradients of up to this many elements are stored whole: the fused step computes as many at a time.
const ELEMENTS_MIN: usize = 1 << 18;

/// An [`Update`] whose gradient is the product of two much smaller matrices, as in fully connected layers, takes both matrices
/// as operands and computes the product in parts, if the target has a kernel for that. The whole gradient is never stored.
pub fn fuse_updates(graph: &Graph, target: &dyn Target) -> Graph {
    if !graph.nodes().values().any(|node| matches!(node.op, Op::Update(_))) {
        return graph.clone();
    }
    let readers = graph.readers();
    let new = rewrite(graph, |context, id| {
        let (op, inputs) = by_factors(graph, id, |value| readers[value].len() == 1)?;
        let inputs: Vec<ValueId> = inputs.into_iter().map(|input| context.value(input)).collect();
        let scope = graph.node(id).scope.clone();
        Some(context.new.add(op.into(), &inputs, scope).expect("the product has the type of the weight"))
    });
    let is_fused = |node: &Node| matches!(&node.op, Op::Update(update) if update.factors);
    let has_kernel =
        |(id, node): (NodeId, &Node)| !is_fused(node) || target.candidates(&new, &[id], &Query::GIVEN).is_ok();
    if new.nodes().iter().all(has_kernel) { dce(&new) } else { graph.clone() }
}

/// The update by factors, with its operands, in place of an update by a product that nothing else reads.
fn by_factors(
    graph: &Graph,
    id: NodeId,
    is_read_once: impl Fn(ValueId) -> bool,
) -> Option<(Update, SmallVec<[ValueId; 8]>)> {
    let node = graph.node(id);
    let Op::Update(update) = &node.op else { return None };
    let gradient = *node.inputs.get(1)?;
    let ValueDef::Node { node: maker, .. } = graph.value(gradient).source else { return None };
    let product = graph.node(maker);
    let is_product = matches!(&product.op, Op::MatMul(op) if *op == MatMul::default());
    let size = |value: ValueId| graph.ty(value).shape.elements();
    let is_plain = graph.ty(gradient).shape.rank() == 2
        && product.inputs.iter().all(|&factor| graph.ty(factor).dtype == graph.ty(gradient).dtype);
    let of_factors: usize = product.inputs.iter().map(|&factor| size(factor)).sum();
    let pays = ELEMENTS_MIN < size(gradient) && FACTORS_MIN * of_factors <= size(gradient);
    let fits = is_product
        && is_plain
        && pays
        && !update.factors
        && !update.rule.yields_direction()
        && is_read_once(gradient)
        && !graph.is_output(gradient);
    fits.then(|| {
        let mut inputs: SmallVec<[ValueId; 8]> = node.inputs.iter().copied().collect();
        inputs[1] = product.inputs[0];
        inputs.push(product.inputs[1]);
        (Update { factors: true, ..update.clone() }, inputs)
    })
}
