//! [`fold_constants`]: evaluation at compile time.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ir::analysis::value_size;
use ir::{Graph, Node, NodeId, Op, ValueDef, ValueId, rewrite};
use smallvec::SmallVec;
use types::pointwise::Binary as Function;
use types::{DType, Map, Tensor};

/// A folded result may be this much larger than everything it was computed from.
const GROWTH_BYTES_MAX: u64 = 1 << 20;
/// Results that take more than moves and simple arithmetic may be larger. Together they may have a part of the bytes of all
/// weights, within these bounds.
const COSTLY_SHARE: u64 = 4;
const COSTLY_BYTES: RangeInclusive<u64> = 16 << 20..=64 << 20;
/// Operations for each element of operands and results that are not counted: those of elementwise functions.
const FREE_OPERATIONS: u64 = 64;
/// Further operations of all folded nodes together, about 20 seconds. Products of constants beyond it are computed at run
/// time.
const OPERATIONS_MAX: u64 = 1 << 34;

/// Replaces every node whose operands are all constant by its results.
///
/// A result of a weight is a weight. A result much larger than its operands (an expanded scalar) is computed at run time,
/// which keeps the image small, unless it is a costly function of them, such as a table of sines. Products of constants that
/// need too much arithmetic are computed at run time as well. Chains of int8 constants stay until `lower_quantized` has chosen
/// their readers' kernels.
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
        if !folding.is_evaluated[id] {
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
        if !folding.folds[id] {
            return None;
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
    /// Nodes that fold, and those whose results they need although these are too large to be constants.
    is_evaluated: Map<NodeId, bool>,
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
        let (nodes, values) = (graph.nodes().len(), graph.values().len());
        let mut folding = Folding {
            folds: Map::filled(nodes, false),
            is_evaluated: Map::filled(nodes, false),
            is_weight: Map::filled(values, false),
            readers: Map::filled(values, 0),
            is_needed: Map::filled(values, false),
            results: Map::filled(values, None),
        };
        // Constants, now or when all nodes are folded; and results that are known as well, but too large for a constant.
        let mut is_constant: Map<ValueId, bool> = Map::filled(values, false);
        let mut is_large: Map<ValueId, bool> = Map::filled(values, false);
        let mut weight_bytes = 0;
        for (id, value) in graph.values().iter() {
            is_constant[id] = value.tensor().is_some();
            folding.is_weight[id] = matches!(value.source, ValueDef::Weight(_));
            weight_bytes += if folding.is_weight[id] { bytes(graph, &[id]) } else { 0 };
        }
        let costly_max = (weight_bytes / COSTLY_SHARE).clamp(*COSTLY_BYTES.start(), *COSTLY_BYTES.end());
        let (mut operations, mut costly_bytes) = (OPERATIONS_MAX, costly_max);
        for (id, node) in graph.nodes().iter() {
            let is_known = |&input: &ValueId| is_constant[input] || is_large[input];
            if node.inputs.is_empty() || stays(node) || !node.inputs.iter().all(is_known) {
                continue;
            }
            let constants: SmallVec<[ValueId; 4]> =
                node.inputs.iter().copied().filter(|&input| is_constant[input]).collect();
            let own_bytes = bytes(graph, &node.outputs);
            let (is_small, is_costly) = (is_small(graph, node, &constants), is_costly(&node.op));
            let fits = is_small || (is_costly && own_bytes <= costly_bytes);
            let rest = if fits { operations.checked_sub(counted_operations(graph, node)) } else { None };
            folding.folds[id] = rest.is_some();
            operations = rest.unwrap_or(operations);
            costly_bytes -= if rest.is_some() && !is_small { own_bytes } else { 0 };
            let is_weight = node.inputs.iter().any(|&input| folding.is_weight[input]);
            for &output in &node.outputs {
                is_constant[output] = rest.is_some();
                is_large[output] = rest.is_none() && !is_costly && own_bytes <= costly_max;
                folding.is_weight[output] = is_weight;
            }
        }
        for (id, node) in graph.nodes().iter().rev() {
            let is_read = node.outputs.iter().any(|&output| is_large[output] && 0 < folding.readers[output]);
            folding.is_evaluated[id] = folding.folds[id] || is_read;
            for &input in &node.inputs {
                folding.readers[input] += usize::from(folding.is_evaluated[id]);
                folding.is_needed[input] |= !folding.folds[id];
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

fn bytes(graph: &Graph, values: &[ValueId]) -> u64 {
    values.iter().map(|&value| value_size(graph, value)).sum()
}

/// Whether the results of a node are small enough in comparison with the constants among its operands.
fn is_small(graph: &Graph, node: &Node, constants: &[ValueId]) -> bool {
    let (input_bytes, output_bytes) = (bytes(graph, constants), bytes(graph, &node.outputs));
    // Int8 weights without an int8 kernel become floats, four times as large.
    let widens = matches!(node.op, Op::Chain(_) | Op::Cast(_));
    output_bytes <= input_bytes + GROWTH_BYTES_MAX || (widens && output_bytes <= 4 * input_bytes)
}

/// Whether an element of a result takes more than a move or some instructions of the processor.
fn is_costly(op: &Op) -> bool {
    let is_function = matches!(op, Op::Unary(function) if !function.0.is_simple());
    let is_power = matches!(op, Op::Binary(function) if function.0 == Function::Pow);
    is_function
        || is_power
        || matches!(op, Op::Conv(_) | Op::CumulativeSum(_) | Op::MatMul(_) | Op::Resize(_) | Op::Softmax(_))
}

#[cfg(test)]
mod tests {
    use ir::ops::{Binary, Expand, MatMul, Unary};
    use ir::{evaluate, verify};
    use types::{Random, Scope, Shape, pointwise};

    use super::*;
    use crate::dce;

    #[test]
    fn large_tables_fold_if_they_are_costly() {
        let mut graph = Graph::new("table");
        let mut random = Random::new(3);
        let mut vector = |shape: [usize; 2]| Tensor::from_fn(Shape::from(shape), |_| random.uniform(-1.0, 1.0));
        let (columns, rows) = (vector([1, 700]), vector([700, 1]));
        let [rows, columns] = [("rows", rows), ("columns", columns)].map(|(name, x)| graph.add_weight(name, x));
        let x = graph.add_input("x", DType::F32, Shape::from([700, 700]));
        let mut add = |op: Op, operands: &[ValueId]| graph.add1(op, operands, Scope::new("node")).unwrap();
        // Large and simple: the product is known and computed in each run, and so are simple functions of it.
        let product = add(Binary(Function::Mul).into(), &[rows, columns]);
        let simple = add(Binary(Function::Add).into(), &[product, x]);
        let sines = add(Unary(pointwise::Unary::Sin).into(), &[product]);
        let doubled = add(Binary(Function::Add).into(), &[sines, sines]);
        let costly = add(Binary(Function::Mul).into(), &[doubled, x]);
        let expanded = add(Expand { shape: Shape::from([700, 700]) }.into(), &[columns]);
        let moved = add(Binary(Function::Sub).into(), &[expanded, x]);
        graph.set_outputs(
            [("simple", simple), ("costly", costly), ("moved", moved)].map(|(name, y)| (name.into(), y)).to_vec(),
        );
        let new = dce(&fold_constants(&graph));
        verify(&new).expect("it is valid");
        let names: Vec<&str> = new.nodes().values().map(|node| node.op.name()).collect();
        assert_eq!(names, ["binary", "binary", "binary", "expand", "binary"]);
        let given = [Tensor::from_fn(Shape::from([700, 700]), |ix| (ix % 5) as f32)];
        assert_eq!(evaluate(&new, &given), evaluate(&graph, &given));
    }

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
