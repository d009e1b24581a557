//! Other forms of a case: in half precision, with TF32 constants, without activations.

use std::collections::BTreeMap;

use ir::{Graph, Node, Op, ValueDef, ValueId};
use types::{DType, Tensor};

/// The graph with every `f32` value stored in half precision; `None` if an operator rejects that dtype.
pub fn to_half_precision(graph: &Graph, dtype: DType) -> Option<Graph> {
    let stored = |own: DType| if own == DType::F32 { dtype } else { own };
    let mut new = Graph::new("halves");
    let mut values = BTreeMap::new();
    for (id, value) in graph.values().iter() {
        let own = match &value.source {
            ValueDef::Input => new.add_input(&value.name, stored(value.ty.dtype), value.ty.shape.clone()),
            ValueDef::Weight(tensor) => new.add_weight(&value.name, tensor.cast(stored(tensor.dtype()))),
            ValueDef::Constant(tensor) => new.add_constant(&value.name, tensor.cast(stored(tensor.dtype()))),
            ValueDef::State { .. } => unreachable!("no case has state"),
            ValueDef::Node { .. } => continue,
        };
        values.insert(id, own);
    }
    for node in graph.nodes().values() {
        let mut op = node.op.clone();
        if let Some(epilogue) = op.epilogue_mut() {
            epilogue.result = Some(dtype);
        }
        if let Op::Chain(chain) = &mut op {
            chain.result = Some(dtype);
        }
        let operands: Vec<ValueId> = node.inputs.iter().map(|input| values[input]).collect();
        let outputs = new.add(op, &operands, node.scope.clone()).ok()?;
        values.extend(node.outputs.iter().copied().zip(outputs));
    }
    let outputs = graph.outputs().iter().map(|output| (output.name.clone(), values[&output.value]));
    new.set_outputs(outputs.collect());
    Some(new)
}

/// The graph with its weights and constants replaced.
pub fn map_constants(graph: &Graph, replace: impl Fn(&Tensor) -> Tensor) -> Graph {
    rebuilt(graph, replace, Op::clone)
}

/// The graph without the activations of its products and convolutions.
pub fn without_activation(graph: &Graph) -> Graph {
    rebuilt(graph, Tensor::clone, |op| {
        let mut op = op.clone();
        if let Some(epilogue) = op.epilogue_mut() {
            epilogue.activation.clear();
        }
        op
    })
}

/// The graph with its weights and constants replaced, and its operators by others with the same types.
fn rebuilt(graph: &Graph, constant: impl Fn(&Tensor) -> Tensor, operator: impl Fn(&Op) -> Op) -> Graph {
    let mut new = Graph::new(&graph.name);
    let mut values = BTreeMap::new();
    for (id, value) in graph.values().iter() {
        let own = match &value.source {
            ValueDef::Input => new.add_input(&value.name, value.ty.dtype, value.ty.shape.clone()),
            ValueDef::Weight(tensor) => new.add_weight(&value.name, constant(tensor)),
            ValueDef::Constant(tensor) => new.add_constant(&value.name, constant(tensor)),
            ValueDef::State { .. } => unreachable!("no case has state"),
            ValueDef::Node { .. } => continue,
        };
        values.insert(id, own);
    }
    for node in graph.nodes().values() {
        let operands: Vec<ValueId> = node.inputs.iter().map(|input| values[input]).collect();
        let outputs = new.add(operator(&node.op), &operands, node.scope.clone()).expect("it was accepted");
        values.extend(node.outputs.iter().copied().zip(outputs));
    }
    new.set_outputs(graph.outputs().iter().map(|output| (output.name.clone(), values[&output.value])).collect());
    new
}

/// `number` rounded to the nearest TF32 number, ties away from zero: the definition, in `f64`.
pub fn round_to_tf32(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    // Subnormal numbers have the spacing of `f32::MIN_POSITIVE`, whose exponent is the least.
    let exponent = (number.abs().log2().floor()).max(-126.0);
    let step = 2f64.powf(exponent - 10.0);
    // `round` rounds ties away from zero.
    let rounded = (number / step).round() * step;
    if f64::from(f32::MAX) < rounded.abs() { f64::INFINITY.copysign(number) } else { rounded }
}

/// A tensor with its `f32` elements rounded to TF32.
pub fn tensor_to_tf32(tensor: &Tensor) -> Tensor {
    if tensor.dtype() != DType::F32 {
        return tensor.clone();
    }
    let items = tensor.to_f64();
    Tensor::from_fn(tensor.shape().clone(), |ix| round_to_tf32(items[ix]) as f32)
}

/// Whether a graph is a recurrent layer that tensor cores compute: its weights are constant.
pub fn is_recurrent(graph: &Graph) -> bool {
    let is_one = |node: &Node| matches!(node.op, Op::Recurrent(_)) && graph.value(node.inputs[1]).tensor().is_some();
    graph.nodes().values().any(is_one)
}

/// Whether a graph is one product or convolution, apart from operators that only move elements.
pub fn is_one_product(graph: &Graph) -> bool {
    let of = |is: fn(&Op) -> bool| graph.nodes().values().filter(|node| is(&node.op)).count();
    let products = of(|op| matches!(op, Op::MatMul(_) | Op::Conv(_)));
    let moves = of(|op| matches!(op, Op::Reshape(_) | Op::Slice(_) | Op::Transpose(_)));
    products == 1 && products + moves == graph.nodes().len()
}

/// Whether a graph is one `f32` product or convolution, whose operands tensor cores may round.
pub fn is_product(graph: &Graph) -> bool {
    is_one_product(graph) && graph.values().values().all(|value| value.ty.dtype == DType::F32)
}

/// Whether a product or convolution has an activation, which may amplify differences.
pub fn has_activation(graph: &Graph) -> bool {
    graph.nodes().values().any(|node| node.op.epilogue().is_some_and(|epilogue| !epilogue.activation.is_empty()))
}
