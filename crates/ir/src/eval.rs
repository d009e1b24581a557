//! [`evaluate`]: a graph run on the host by the operators' definitions. Slow and obvious; the judge of every executor.

use std::sync::Arc;

use types::{Map, Tensor};

use crate::{Graph, TensorType, ValueDef, ValueId};

/// What does not fit when a graph is evaluated: always the caller's inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum EvalError {
    #[error("the graph takes {want} inputs, not {got}")]
    InputCount { want: usize, got: usize },
    #[error("input `{name}` is {want}, not {got}")]
    InputType { name: String, want: String, got: String },
}

/// Runs `graph` on `inputs`, which are in the graph's order, and returns the outputs in the graph's order.
///
/// # Errors
/// Another number of inputs, or one of another dtype or shape.
pub fn evaluate(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    if inputs.len() != graph.inputs().len() {
        return Err(EvalError::InputCount { want: graph.inputs().len(), got: inputs.len() });
    }
    let mut known: Map<ValueId, Option<Arc<Tensor>>> = Map::filled(graph.values().len(), None);
    for (&id, tensor) in graph.inputs().iter().zip(inputs) {
        let got = TensorType::of(tensor);
        if got != *graph.ty(id) {
            let (name, want) = (graph.value(id).name.clone(), graph.ty(id).to_string());
            return Err(EvalError::InputType { name, want, got: got.to_string() });
        }
        known[id] = Some(Arc::new(tensor.clone()));
    }
    for (id, value) in graph.values().iter() {
        if let ValueDef::Weight(tensor) | ValueDef::Constant(tensor) = &value.source {
            known[id] = Some(tensor.clone());
        }
    }
    // A value is dropped behind its last reader, so that large graphs fit.
    let mut readers_left: Map<ValueId, usize> = graph.readers().values().map(|readers| readers.len()).collect();
    for output in graph.outputs() {
        readers_left[output.value] += 1;
    }
    for node in graph.nodes().values() {
        let operands: Vec<Arc<Tensor>> =
            node.inputs.iter().map(|&id| known[id].clone().expect("nodes stand in a topological order")).collect();
        let operands: Vec<&Tensor> = operands.iter().map(|tensor| &**tensor).collect();
        for (&id, tensor) in node.outputs.iter().zip(node.op.eval(&operands)) {
            known[id] = Some(Arc::new(tensor));
        }
        for &id in &node.inputs {
            readers_left[id] -= 1;
            if readers_left[id] == 0 {
                known[id] = None;
            }
        }
    }
    let take = |id: ValueId| known[id].as_deref().expect("outputs are kept").clone();
    Ok(graph.outputs().iter().map(|output| take(output.value)).collect())
}
