//! [`fold_constants`]: evaluation at compile time.

use std::sync::Arc;

use ir::{Graph, Node, Op, ValueDef, rewrite};
use types::{DType, Tensor};

/// A folded result may be this much larger than everything it was computed from.
const GROWTH_BYTES_MAX: u64 = 1 << 20;

/// Replaces every node whose operands are all constant by its results.
///
/// A result of a weight is a weight. A result much larger than its operands (an expanded scalar) is computed at run time,
/// which keeps the image small. Chains of int8 constants stay until `lower_quantized` has chosen their readers' kernels.
pub fn fold_constants(graph: &Graph) -> Graph {
    fold(graph, &|node| {
        let is_byte = |dtype: DType| matches!(dtype, DType::U8 | DType::I8);
        matches!(node.op, Op::Chain(_)) && node.inputs.iter().any(|&input| is_byte(graph.ty(input).dtype))
    })
}

/// The same, including chains of int8 constants.
pub(crate) fn fold_all(graph: &Graph) -> Graph {
    fold(graph, &|_| false)
}

fn fold(graph: &Graph, stays: &dyn Fn(&Node) -> bool) -> Graph {
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        if node.inputs.is_empty() || stays(node) {
            return None;
        }
        let inputs: Vec<_> = node.inputs.iter().map(|&input| context.value(input)).collect();
        let tensors: Option<Vec<Arc<Tensor>>> =
            inputs.iter().map(|&input| context.new.value(input).tensor().cloned()).collect();
        let tensors = tensors?;
        let input_bytes: u64 = tensors.iter().map(|tensor| tensor.size().0).sum();
        let output_bytes: u64 = node
            .outputs
            .iter()
            .map(|&output| graph.ty(output).dtype.size().0 * graph.ty(output).shape.elements() as u64)
            .sum();
        // Int8 weights without an int8 kernel become floats, four times as large.
        let widens = matches!(node.op, Op::Chain(_) | Op::Cast(_));
        if input_bytes + GROWTH_BYTES_MAX < output_bytes && !(widens && output_bytes <= 4 * input_bytes) {
            return None;
        }
        let learned = inputs.iter().any(|&input| matches!(context.new.value(input).source, ValueDef::Weight(_)));
        let operands: Vec<&Tensor> = tensors.iter().map(|tensor| &**tensor).collect();
        let results = node.op.eval(&operands);
        let add = |(&output, tensor): (&_, Tensor)| {
            let name = &graph.value(output).name;
            match learned {
                true => context.new.add_weight(name, tensor),
                false => context.new.add_constant(name, tensor),
            }
        };
        Some(node.outputs.iter().zip(results).map(add).collect())
    })
}
