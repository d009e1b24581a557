//! Axis maps compared with definitions: a changed element of an operand may change only outputs that the map admits.

use std::collections::BTreeSet;

use ir::{Along, AxisMap, Graph, TensorType, ValueDef, ValueId, Work};
use types::{DType, Map, Random, Tensor};

use crate::judge::inputs;

/// Nodes with more arithmetic than this are skipped: a definition runs once for each changed element.
const FLOPS_MAX: u64 = 1 << 18;
const ELEMENTS_MAX: usize = 1 << 14;
/// Elements changed in each operand.
const CHANGES: usize = 6;

/// Checks the axis maps of all nodes of a graph. Returns the number of nodes checked.
fn check(name: &str, graph: &Graph) -> usize {
    let mut values: Map<ValueId, Option<Tensor>> = Map::filled(graph.values().len(), None);
    for (&id, tensor) in graph.inputs().iter().zip(inputs(graph, 11)) {
        values[id] = Some(tensor);
    }
    for (id, value) in graph.values().iter() {
        if let ValueDef::Weight(tensor) | ValueDef::Constant(tensor) = &value.source {
            values[id] = Some((**tensor).clone());
        }
    }
    let mut random = Random::for_name(6, name);
    let mut checked = 0;
    for node in graph.nodes().values() {
        let operands: Vec<Tensor> =
            node.inputs.iter().map(|&id| values[id].clone().expect("nodes are in topological order")).collect();
        let refs: Vec<&Tensor> = operands.iter().collect();
        let outputs = node.op.eval(&refs);
        let types: Vec<TensorType> = refs.iter().map(|tensor| TensorType::of(tensor)).collect();
        let map = node.op.axes(&types.iter().collect::<Vec<_>>(), graph.ty(node.outputs[0]));
        assert_eq!(map.operands.len(), operands.len(), "{name}: one row for each operand");
        let elements = operands.iter().map(Tensor::elements).sum::<usize>() + outputs[0].elements();
        if graph.node_flops(node) <= FLOPS_MAX && elements <= ELEMENTS_MAX {
            check_shapes(name, &map, &operands, &outputs[0]);
            for ix in 0..operands.len() {
                for _ in 0..CHANGES.min(operands[ix].elements()) {
                    let at = random.below(operands[ix].elements() as u64) as usize;
                    let changed = changed(&operands[ix], at);
                    let mut with = refs.clone();
                    with[ix] = &changed;
                    check_change(name, &map, ix, at, &operands[ix], &outputs[0], &node.op.eval(&with)[0]);
                }
            }
            checked += 1;
        }
        for (&id, tensor) in node.outputs.iter().zip(outputs) {
            values[id] = Some(tensor);
        }
    }
    checked
}

/// Checks that axes mapped to each other have the same extent, that operands of elementwise operators broadcast, and
/// that data movement copies values.
fn check_shapes(name: &str, map: &AxisMap, operands: &[Tensor], output: &Tensor) {
    for (operand, axes) in operands.iter().zip(&map.operands) {
        assert_eq!(axes.len(), output.shape().rank(), "{name}: one entry for each output axis");
        for (axis, along) in axes.iter().enumerate() {
            match *along {
                Along::Same(own) => assert_eq!(operand.shape()[own], output.shape()[axis], "{name}: axis {axis}"),
                Along::Window(window) => assert!(window.axis < operand.shape().rank(), "{name}: axis {axis}"),
                Along::Band(band) => assert!(band.axis < operand.shape().rank(), "{name}: axis {axis}"),
                Along::Broadcast | Along::Whole => {}
            }
        }
        if map.work == Work::Elementwise {
            assert!(!axes.contains(&Along::Whole), "{name}: elementwise");
        }
    }
    if map.work == Work::Movement {
        let bits = |tensor: &Tensor| tensor.to_f64().into_iter().map(f64::to_bits).collect::<BTreeSet<u64>>();
        let from: BTreeSet<u64> = operands.iter().flat_map(bits).collect();
        let others = bits(output).difference(&from).count();
        assert!(others <= 1, "{name}: {others} values are neither copies nor the one constant");
    }
}

/// The tensor with one element changed.
fn changed(tensor: &Tensor, at: usize) -> Tensor {
    let mut items = tensor.to_f64();
    items[at] = match tensor.dtype() {
        DType::Bool => 1.0 - items[at],
        dtype if dtype.is_float() => items[at] + 1.5,
        // Another element of the same operand, so that indices stay valid.
        _ => items.iter().copied().find(|item| *item != items[at]).unwrap_or(items[at]),
    };
    Tensor::new(tensor.shape().clone(), items).expect("the shape is the same").cast(tensor.dtype())
}

fn check_change(name: &str, map: &AxisMap, ix: usize, at: usize, operand: &Tensor, before: &Tensor, after: &Tensor) {
    let index = |flat: usize, tensor: &Tensor| -> Vec<usize> {
        let strides = tensor.shape().row_major_strides();
        (0..tensor.shape().rank()).map(|axis| flat / strides[axis] % tensor.shape()[axis]).collect()
    };
    let from = index(at, operand);
    for (flat, (old, new)) in before.to_f64().iter().zip(after.to_f64()).enumerate() {
        if old.to_bits() == new.to_bits() {
            continue;
        }
        let to = index(flat, before);
        for (axis, along) in map.operands[ix].iter().enumerate() {
            let admitted = match *along {
                Along::Same(own) => from[own] == to[axis],
                Along::Window(window) => window.reads(to[axis], from[window.axis]),
                Along::Band(band) => band.reads(operand.shape()[band.axis], to[axis], from[band.axis]),
                Along::Broadcast | Along::Whole => true,
            };
            assert!(admitted, "{name}: operand {ix} at {from:?} changes output {to:?}, {along:?} along axis {axis}");
        }
    }
}

#[test]
fn axis_maps_admit_every_dependence_of_the_definitions() {
    let (mut checked, mut total) = (0, 0);
    let mut ops = BTreeSet::new();
    for case in crate::all() {
        let nodes = check(&case.name, &case.graph);
        checked += nodes;
        total += case.graph.nodes().len();
        if 0 < nodes {
            ops.extend(case.graph.nodes().values().map(|node| node.op.name()));
        }
    }
    assert!(2 * total < 3 * checked, "{checked} of {total} nodes are small enough");
    assert!(20 <= ops.len(), "{ops:?}");
}
