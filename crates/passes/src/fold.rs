//! [`fold_constants`]: what is known before a run is computed now.

use std::sync::Arc;

use ir::{Graph, Source, rewrite};
use types::Tensor;

/// A folded result may be this much larger than everything it was computed from.
const GROWTH_BYTES_MAX: u64 = 1 << 20;

/// Replaces every node whose operands are all known by its results.
///
/// What comes from a weight stays a weight. A result much larger than its operands (an expanded scalar) is left to the
/// run, so that the image does not swell.
pub fn fold_constants(graph: &Graph) -> Graph {
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        if node.inputs.is_empty() {
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
        if input_bytes + GROWTH_BYTES_MAX < output_bytes {
            return None;
        }
        let learned = inputs.iter().any(|&input| matches!(context.new.value(input).source, Source::Weight(_)));
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
