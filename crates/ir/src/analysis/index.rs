//! [`index_limits`]: the integers that a value may have because an operator reads it as indices.

use std::collections::BTreeMap;

use crate::{Graph, Op, ValueId};

/// For each value that is an index, directly or through casts and operators that only move or select elements, the smallest
/// extent of the axes that it indexes. Elements in `0..limit` are valid indices. Arithmetic on indices is not followed.
pub fn index_limits(graph: &Graph) -> BTreeMap<ValueId, usize> {
    let mut limits = BTreeMap::new();
    let lower = |limits: &mut BTreeMap<ValueId, usize>, value: ValueId, limit: usize| {
        let own = limits.entry(value).or_insert(limit);
        *own = limit.min(*own);
    };
    for node in graph.nodes().values().rev() {
        let extent = |axis: usize| graph.ty(node.inputs[0]).shape[axis];
        let op = &node.op;
        if let Op::Gather(gather) = op {
            lower(&mut limits, node.inputs[1], extent(gather.axis));
        } else if matches!(op, Op::Scatter(_)) {
            lower(&mut limits, node.inputs[1], extent(0));
        } else if let Op::ScatterAdd(scatter) = op {
            lower(&mut limits, node.inputs[0], scatter.extent);
        } else if matches!(op, Op::SoftmaxCrossEntropy(_)) {
            let shape = &graph.ty(node.inputs[0]).shape;
            lower(&mut limits, node.inputs[1], shape[shape.rank() - 1]);
        }
        let moves = matches!(op, Op::Cast(_) | Op::Concat(_) | Op::Expand(_) | Op::Gather(_) | Op::Relayout(_))
            || matches!(op, Op::Reshape(_) | Op::Slice(_) | Op::StopGradient(_) | Op::Transpose(_))
            || matches!(op, Op::Scatter(_) | Op::ScatterAdd(_) | Op::SoftmaxCrossEntropy(_));
        if !moves {
            continue;
        }
        let Some(&limit) = limits.get(&node.outputs[0]) else { continue };
        // Selected elements of a table may be indices themselves.
        let moved = if matches!(node.op, Op::Gather(_)) { &node.inputs[..1] } else { &node.inputs[..] };
        for &input in moved {
            lower(&mut limits, input, limit);
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use types::{DType, Scope};

    use super::*;
    use crate::ops::{Cast, Gather, Reshape};

    /// The table with the fewest rows counts, also behind a cast and a reshape; another input has no limit.
    #[test]
    fn an_index_has_the_smallest_extent_as_its_limit() {
        let mut graph = Graph::new("tables");
        let ids = graph.add_input("ids", DType::I64, [2, 3].into());
        let types = graph.add_input("types", DType::F32, [2, 3].into());
        let mask = graph.add_input("mask", DType::I64, [2, 3].into());
        let tables = [(50, 4), (2, 4), (7, 4)]
            .map(|(rows, width)| graph.add_input(&format!("table of {rows}"), DType::F32, [rows, width].into()));
        let mut add = |op: Op, inputs: &[ValueId]| graph.add1(op, inputs, Scope::new("node")).expect("it is accepted");
        let cast = add(Cast { to: DType::I32 }.into(), &[types]);
        let flat = add(Reshape { shape: [6].into() }.into(), &[cast]);
        let outputs = [
            add(Gather { axis: 0 }.into(), &[tables[0], ids]),
            add(Gather { axis: 0 }.into(), &[tables[2], ids]),
            add(Gather { axis: 0 }.into(), &[tables[1], flat]),
            add(Gather { axis: 1 }.into(), &[tables[0], flat]),
        ];
        graph.set_outputs(outputs.iter().enumerate().map(|(ix, &id)| (format!("y{ix}"), id)).collect());
        let limits = index_limits(&graph);
        let limit = |id: ValueId| limits.get(&id).copied();
        assert_eq!([ids, types, mask].map(limit), [Some(7), Some(2), None]);
    }
}
