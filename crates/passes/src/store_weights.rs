//! [`store_weights`]: weights become the numbers that their stored form stands for.
//!
//! Weights that are stored in fewer bits are a property of constants, not of operators: the graph keeps its products of `f32`,
//! and its evaluation with rounded weights is the definition that kernels of compact weights are judged by. Rounding is a
//! projection ([`types::WeightFormat`]), so a kernel's packing finds codes and scales again.

use ir::{Graph, NodeId, Target, ValueDef, ValueId, rewrite, weight_operand};
use smallvec::SmallVec;
use types::{ChannelAxis, Tensor, TensorFunction};

/// Rounds the weights of convolutions, products and embeddings, if the target stores them in fewer bits. A tensor that is
/// read by several stays one if their channels are the same.
pub fn store_weights(graph: &Graph, target: &dyn Target) -> Graph {
    let Some(format) = target.weight_format() else { return graph.clone() };
    let mut rounded: Vec<(ValueId, ChannelAxis, ValueId)> = Vec::new();
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let (operand, channels) = weight_operand(graph, node)?;
        let old = node.inputs[operand];
        let known = rounded.iter().find(|(value, axis, _)| (*value, *axis) == (old, channels)).map(|found| found.2);
        let weight = match known {
            Some(weight) => weight,
            None => {
                let value = graph.value(old);
                let function = TensorFunction::StoredWeight { format, channels };
                let tensor = Tensor::derived(function, &[value.tensor()?]).expect("weights of f32 have channels");
                let weight = match value.source {
                    ValueDef::Weight(_) => context.new.add_weight(&value.name, tensor),
                    _ => context.new.add_constant(&value.name, tensor),
                };
                rounded.push((old, channels, weight));
                weight
            }
        };
        let own = |(ix, &input): (usize, &ValueId)| if ix == operand { weight } else { context.value(input) };
        let inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().enumerate().map(own).collect();
        let outputs = context.new.add(node.op.clone(), &inputs, node.scope.clone()).expect("the types stay");
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            context.new.value_mut(new).name.clone_from(&graph.value(old).name);
        }
        Some(outputs)
    })
}

/// How far the weights of a node are from those of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightError {
    /// The scope of the node.
    pub node: String,
    /// The name of its operator.
    pub op: &'static str,
    /// The largest error, relative to the largest weight of the tensor.
    pub largest: f64,
    /// The mean error, relative to the mean weight.
    pub mean: f64,
    /// Whether the model's weights are all finite.
    pub is_finite: bool,
}

/// The errors of all weights that [`store_weights`] rounded, in the order of nodes. Both graphs have the same nodes.
pub fn weight_errors(before: &Graph, after: &Graph) -> Vec<WeightError> {
    let items = |graph: &Graph, id: NodeId, operand: usize| -> Option<Vec<f32>> {
        let tensor = graph.value(graph.node(id).inputs[operand]).tensor()?;
        Some(tensor.as_slice::<f32>()?.to_vec())
    };
    let error = |id: NodeId| {
        let node = before.node(id);
        let (operand, _) = weight_operand(before, node)?;
        let (own, stored) = (items(before, id, operand)?, items(after, id, operand)?);
        let [mut largest, mut sum, mut largest_error, mut errors] = [0.0f64; 4];
        for (&own, &stored) in own.iter().zip(&stored) {
            let (size, error) = (f64::from(own).abs(), (f64::from(own) - f64::from(stored)).abs());
            (largest, sum) = (largest.max(size), sum + size);
            (largest_error, errors) = (largest_error.max(error), errors + error);
        }
        let relative = |error: f64, size: f64| if error == 0.0 { 0.0 } else { error / size };
        Some(WeightError {
            node: node.scope.to_string(),
            op: node.op.name(),
            largest: relative(largest_error, largest),
            mean: relative(errors, sum),
            is_finite: own.iter().all(|weight| weight.is_finite()),
        })
    };
    before.nodes().keys().filter_map(error).collect()
}
