//! [`tie_weights`]: a table of embeddings and the projection onto its vocabulary become one constant.
//!
//! ```text
//! ids -> gather(table [n, k]) -> ... -> x -> mat_mul(weight [k, n])          weight = table transposed
//! ids -> gather(table [n, k]) -> ... -> x -> mat_mul(table, transposed)
//! ```
//!
//! Exporters write both, although models share them. The rewrite stays only if the target reads rows of the table in the
//! form in which its product reads columns: two forms of one tensor would save nothing.

use ir::ops::{Gather, MatMul};
use ir::{CallInput, Graph, NodeId, Op, Query, Target, ValueId, rewrite};
use smallvec::SmallVec;
use types::{DType, Map};

/// Gives products whose right factor is the transpose of a gathered table that table.
pub fn tie_weights(graph: &Graph, target: &dyn Target) -> Graph {
    let tables = tables(graph);
    let mut tied: Map<NodeId, Option<ValueId>> = Map::filled(graph.nodes().len(), None);
    for (id, node) in graph.nodes().iter() {
        let Op::MatMul(MatMul { zero: 0, transposed: false, .. }) = node.op else { continue };
        if graph.ty(node.inputs[0]).dtype == DType::F32 {
            tied[id] = tables.iter().map(|&(_, table)| table).find(|&table| is_transpose(graph, table, node.inputs[1]));
        }
    }
    if tied.values().all(Option::is_none) {
        return graph.clone();
    }
    let new = rewrite(graph, |context, id| {
        let table = tied[id]?;
        let node = graph.node(id);
        let Op::MatMul(product) = &node.op else { return None };
        let own = |(ix, &input): (usize, &ValueId)| context.value(if ix == 1 { table } else { input });
        let inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().enumerate().map(own).collect();
        let op = MatMul { transposed: true, ..product.clone() };
        let outputs = context.new.add(op.into(), &inputs, node.scope.clone()).expect("the types stay");
        context.new.value_mut(outputs[0]).name.clone_from(&graph.value(node.outputs[0]).name);
        Some(outputs)
    });
    // Nodes keep their ids.
    let has_kernel = |id: NodeId| target.candidates(&new, &[id], &Query::GIVEN).is_ok_and(|found| !found.is_empty());
    let gathers = tables.iter().filter(|(_, table)| tied.values().any(|tied| *tied == Some(*table)));
    let are_shared = gathers.map(|&(id, _)| id).all(|id| reads_packed(&new, target, id));
    let products = tied.iter().filter(|(_, table)| table.is_some());
    if are_shared && products.map(|(id, _)| id).all(has_kernel) { new } else { graph.clone() }
}

/// The nodes that gather rows of constant matrices of `f32`, with the matrices.
fn tables(graph: &Graph) -> Vec<(NodeId, ValueId)> {
    let gathers = graph.nodes().iter().filter(|(_, node)| matches!(node.op, Op::Gather(Gather { axis: 0 })));
    let tables = gathers.map(|(id, node)| (id, node.inputs[0]));
    tables.filter(|&(_, table)| is_matrix(graph, table)).collect()
}

fn is_matrix(graph: &Graph, value: ValueId) -> bool {
    let ty = graph.ty(value);
    graph.value(value).tensor().is_some() && ty.dtype == DType::F32 && ty.shape.rank() == 2
}

/// Whether one constant matrix has the elements of another, with rows and columns exchanged.
fn is_transpose(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    let [rows, columns] = [graph.ty(a).shape[0], graph.ty(a).shape[1]];
    if !is_matrix(graph, b) || graph.ty(b).shape[..] != [columns, rows] {
        return false;
    }
    let items = |value: ValueId| graph.value(value).tensor().and_then(|tensor| tensor.as_slice::<f32>());
    let (Some(a), Some(b)) = (items(a), items(b)) else { return false };
    a.chunks_exact(columns.max(1)).enumerate().all(|(row, items)| {
        let column = b[row..].iter().step_by(rows.max(1));
        items.iter().zip(column).all(|(a, b)| a.to_bits() == b.to_bits())
    })
}

/// Whether the kernel of a gathering node reads its table as it is packed for a product.
fn reads_packed(graph: &Graph, target: &dyn Target, id: NodeId) -> bool {
    let candidates = target.candidates(graph, &[id], &Query::GIVEN);
    let calls = candidates.ok().and_then(|candidates| Some(candidates.first()?.calls.clone()));
    calls.is_some_and(|calls| calls.iter().any(|call| matches!(call.inputs.first(), Some(CallInput::Packed { .. }))))
}
