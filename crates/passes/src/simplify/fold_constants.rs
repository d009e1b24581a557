//! [`fold_constants`]: evaluation at compile time.

use std::sync::Arc;

use ir::{Graph, Node, NodeId, Op, ValueDef, ValueId, rewrite};
use smallvec::SmallVec;
use types::{DType, Map, Tensor};

/// A folded result may be this much larger than everything it was computed from.
const GROWTH_BYTES_MAX: u64 = 1 << 20;
/// Operations for each element of operands and results that are not counted: those of elementwise functions.
const FREE_OPERATIONS: u64 = 64;
/// Further operations of all folded nodes together, about 20 seconds. Products of constants beyond it are computed at run
/// time.
const OPERATIONS_MAX: u64 = 1 << 34;

/// Replaces every node whose operands are all constant by its results.
///
/// A result of a weight is a weight. A result much larger than its operands (an expanded scalar) is computed at run time,
/// which keeps the image small, and so are products of constants that need much arithmetic. Chains of int8 constants stay
/// until `lower_quantized` has chosen their readers' kernels.
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
    let mut folding = Folding::new(graph, stays);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        if !folding.folds[id] {
            return None;
        }
        let tensors: Vec<Arc<Tensor>> = node.inputs.iter().map(|&input| folding.tensor(graph, input)).collect();
        let operands: Vec<&Tensor> = tensors.iter().map(|tensor| &**tensor).collect();
        let results: Vec<Arc<Tensor>> = node.op.eval(&operands).into_iter().map(Arc::new).collect();
        for &input in &node.inputs {
            folding.release(input);
        }
        for (&output, tensor) in node.outputs.iter().zip(&results).filter(|(output, _)| 0 < folding.readers[**output]) {
            folding.results[output] = Some(tensor.clone());
        }
        if !node.outputs.iter().any(|&output| folding.is_needed[output]) {
            // Only its results' results are in the graph.
            return Some(SmallVec::new());
        }
        let add = |(&output, tensor): (&ValueId, Arc<Tensor>)| {
            let name = &graph.value(output).name;
            match folding.is_weight[output] {
                true => context.new.add_weight(name, tensor),
                false => context.new.add_constant(name, tensor),
            }
        };
        Some(node.outputs.iter().zip(results).map(add).collect())
    })
}

/// The nodes that fold, decided before anything is computed, and results that are still read. A chain of operators on a large
/// weight keeps one result at a time.
struct Folding {
    folds: Map<NodeId, bool>,
    /// By value: whether it follows from a weight.
    is_weight: Map<ValueId, bool>,
    /// By value: folded nodes that will read it.
    readers: Map<ValueId, usize>,
    /// By value: whether the folded graph has it.
    is_needed: Map<ValueId, bool>,
    results: Map<ValueId, Option<Arc<Tensor>>>,
}

impl Folding {
    fn new(graph: &Graph, stays: &dyn Fn(&Node) -> bool) -> Folding {
        let values = graph.values().len();
        let mut folding = Folding {
            folds: Map::filled(graph.nodes().len(), false),
            is_weight: Map::filled(values, false),
            readers: Map::filled(values, 0),
            is_needed: Map::filled(values, false),
            results: Map::filled(values, None),
        };
        let mut is_known: Map<ValueId, bool> = Map::filled(values, false);
        for (id, value) in graph.values().iter() {
            is_known[id] = value.tensor().is_some();
            folding.is_weight[id] = matches!(value.source, ValueDef::Weight(_));
        }
        let mut left = OPERATIONS_MAX;
        for (id, node) in graph.nodes().iter() {
            let may_fold = !node.inputs.is_empty()
                && !stays(node)
                && node.inputs.iter().all(|&input| is_known[input])
                && is_worth_it(graph, node);
            let rest = if may_fold { left.checked_sub(counted_operations(graph, node)) } else { None };
            let folds = rest.is_some();
            left = rest.unwrap_or(left);
            folding.folds[id] = folds;
            for &input in &node.inputs {
                match folds {
                    true => folding.readers[input] += 1,
                    false => folding.is_needed[input] = true,
                }
            }
            let is_weight = node.inputs.iter().any(|&input| folding.is_weight[input]);
            for &output in node.outputs.iter().filter(|_| folds) {
                (is_known[output], folding.is_weight[output]) = (true, is_weight);
            }
        }
        for output in graph.outputs() {
            folding.is_needed[output.value] = true;
        }
        folding
    }

    fn tensor(&self, graph: &Graph, value: ValueId) -> Arc<Tensor> {
        let tensor = self.results[value].as_ref().or(graph.value(value).tensor());
        tensor.expect("operands of a folded node are known").clone()
    }

    /// Releases a result behind the last node that reads it.
    fn release(&mut self, value: ValueId) {
        self.readers[value] -= 1;
        if self.readers[value] == 0 {
            self.results[value] = None;
        }
    }
}

/// The operations of a node beyond those that are free.
fn counted_operations(graph: &Graph, node: &Node) -> u64 {
    let values = node.inputs.iter().chain(&node.outputs);
    let elements = values.map(|&value| graph.ty(value).shape.elements() as u64).fold(0, u64::saturating_add);
    graph.node_flops(node).saturating_sub(elements.saturating_mul(FREE_OPERATIONS))
}

/// Whether the results of a node are small enough in comparison with its operands.
fn is_worth_it(graph: &Graph, node: &Node) -> bool {
    let bytes = |values: &[ValueId]| -> u64 {
        values.iter().map(|&value| graph.ty(value).dtype.size().0 * graph.ty(value).shape.elements() as u64).sum()
    };
    let (input_bytes, output_bytes) = (bytes(&node.inputs), bytes(&node.outputs));
    // Int8 weights without an int8 kernel become floats, four times as large.
    let widens = matches!(node.op, Op::Chain(_) | Op::Cast(_));
    output_bytes <= input_bytes + GROWTH_BYTES_MAX || (widens && output_bytes <= 4 * input_bytes)
}

#[cfg(test)]
mod tests {
    use ir::ops::{Binary, MatMul};
    use types::pointwise::Binary as Function;
    use types::{Scope, Shape};

    use super::*;

    #[test]
    fn products_beyond_the_limit_of_arithmetic_stay() {
        let mut graph = Graph::new("products");
        let large = graph.add_weight("large", Tensor::full(Shape::from([2048, 2048]), 0.5f32));
        let small = graph.add_weight("small", Tensor::full(Shape::from([2048, 8]), 0.5f32));
        let mut add = |op: Op, right| graph.add1(op, &[large, right], Scope::new("node")).unwrap();
        let product = || Op::from(MatMul::default());
        let results = [add(product(), large), add(product(), large), add(product(), small)];
        let sum = add(Binary(Function::Add).into(), large);
        graph.set_outputs(results.into_iter().chain([sum]).map(|value| ("y".into(), value)).collect());
        let folds: Vec<bool> = Folding::new(&graph, &|_| false).folds.values().copied().collect();
        assert_eq!(folds, [true, false, true, true]);
    }
}
