//! [`weight_operand`]: the operand of a node whose weights may be stored in fewer bits.

use types::{ChannelAxis, DType};

use crate::{Graph, Node, Op, ValueId};

/// The operand of an `f32` node that is a constant tensor of weights, and where its channels are: the weights of
/// convolutions and products, one channel for each of the output, and the tables of embeddings, one for each row. `None` for
/// other nodes, for depthwise convolutions and for products with a vector, whose weights are few.
pub fn weight_operand(graph: &Graph, node: &Node) -> Option<(usize, ChannelAxis)> {
    let is_known = |value: ValueId| graph.ty(value).dtype == DType::F32 && graph.value(value).tensor().is_some();
    let is_f32 = |value: ValueId| graph.ty(value).dtype == DType::F32;
    let is_of_floats = || node.inputs.iter().chain(&node.outputs).all(|&value| is_f32(value));
    let shape = |ix: usize| &graph.ty(node.inputs[ix]).shape;
    if let Op::Conv(conv) = &node.op {
        let (x, out) = (shape(0), &graph.ty(node.outputs[0]).shape);
        let is_depthwise = 1 < conv.groups && conv.groups == x[1] && conv.groups == out[1];
        let has_weights = is_of_floats() && is_known(node.inputs[1]) && !is_depthwise;
        return has_weights.then_some((1, ChannelAxis::First));
    }
    if let Op::ConvTranspose(conv) = &node.op {
        let is_depthwise = 1 < conv.groups && conv.groups == shape(0)[1] && shape(1)[1] == 1;
        let has_weights = is_of_floats() && is_known(node.inputs[1]) && !is_depthwise;
        return has_weights.then_some((1, ChannelAxis::Groups(conv.groups)));
    }
    if let Op::MatMul(product) = &node.op {
        let [matrices @ .., rows, columns] = &shape(1)[..] else { return None };
        let is_one = matrices.iter().all(|&extent| extent == 1);
        let (has_form, n, axis) = match product.transposed {
            true => (matrices.is_empty(), *rows, ChannelAxis::First),
            false => (is_one, *columns, ChannelAxis::Last),
        };
        let has_weights = is_of_floats() && is_known(node.inputs[1]) && has_form && 1 < n;
        return has_weights.then_some((1, axis));
    }
    if let Op::Gather(gather) = &node.op {
        let is_table = gather.axis == 0 && shape(0).rank() == 2 && is_known(node.inputs[0]);
        return is_table.then_some((0, ChannelAxis::First));
    }
    None
}
