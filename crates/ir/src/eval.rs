//! [`evaluate`]: runs a graph by the operators' definitions. Slow and obvious; the reference for every executor.

use std::sync::Arc;

use types::{Map, Tensor};

use crate::{Graph, TensorType, ValueDef, ValueId};

/// The caller's inputs do not match the graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum EvalError {
    #[error("the graph must have {want} inputs, got {got}")]
    InputCount { want: usize, got: usize },
    #[error("input `{name}` must be {want}, got {got}")]
    InputType { name: String, want: String, got: String },
    #[error("state `{name}` must be {want}, got {got}")]
    StateType { name: String, want: String, got: String },
}

/// Runs `graph` on `inputs` and returns its outputs, both in the graph's order.
///
/// # Errors
/// A different number of inputs, or an input of another dtype or shape.
pub fn evaluate(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    evaluate_run(graph, inputs, &mut initial_states(graph))
}

/// The states of a graph before its first run, in the graph's order.
pub fn initial_states(graph: &Graph) -> Vec<Tensor> {
    let initial = |&id: &ValueId| match &graph.value(id).source {
        ValueDef::State { initial, .. } => (**initial).clone(),
        _ => unreachable!("a verified graph lists its states"),
    };
    graph.states().iter().map(initial).collect()
}

/// [`evaluate`] as one run of several: reads `states`, which are in the graph's order, and replaces them by their updates.
///
/// # Errors
/// As [`evaluate`]; a state of another dtype or shape.
///
/// # Panics
/// Another number of states than the graph has.
pub fn evaluate_run(graph: &Graph, inputs: &[Tensor], states: &mut [Tensor]) -> Result<Vec<Tensor>, EvalError> {
    assert_eq!(states.len(), graph.states().len(), "there must be a tensor for each state");
    if inputs.len() != graph.inputs().len() {
        return Err(EvalError::InputCount { want: graph.inputs().len(), got: inputs.len() });
    }
    let mut values: Map<ValueId, Option<Arc<Tensor>>> = Map::filled(graph.values().len(), None);
    for (&id, tensor) in graph.inputs().iter().zip(inputs) {
        let got = TensorType::of(tensor);
        if got != *graph.ty(id) {
            let (name, want) = (graph.value(id).name.clone(), graph.ty(id).to_string());
            return Err(EvalError::InputType { name, want, got: got.to_string() });
        }
        values[id] = Some(Arc::new(tensor.clone()));
    }
    for (&id, tensor) in graph.states().iter().zip(&*states) {
        let got = TensorType::of(tensor);
        if got != *graph.ty(id) {
            let (name, want) = (graph.value(id).name.clone(), graph.ty(id).to_string());
            return Err(EvalError::StateType { name, want, got: got.to_string() });
        }
        values[id] = Some(Arc::new(tensor.clone()));
    }
    for (id, value) in graph.values().iter() {
        if let ValueDef::Weight(tensor) | ValueDef::Constant(tensor) = &value.source {
            values[id] = Some(tensor.clone());
        }
    }
    // A value is freed after its last reader, so that large graphs fit into memory.
    let mut readers_left: Map<ValueId, usize> = graph.readers().values().map(|readers| readers.len()).collect();
    for output in graph.outputs() {
        readers_left[output.value] += 1;
    }
    for node in graph.nodes().values() {
        let operands: Vec<Arc<Tensor>> =
            node.inputs.iter().map(|&id| values[id].clone().expect("nodes are in topological order")).collect();
        let operands: Vec<&Tensor> = operands.iter().map(|tensor| &**tensor).collect();
        for (&id, tensor) in node.outputs.iter().zip(node.op.eval(&operands)) {
            values[id] = Some(Arc::new(tensor));
        }
        for &id in &node.inputs {
            readers_left[id] -= 1;
            if readers_left[id] == 0 {
                values[id] = None;
            }
        }
    }
    let take = |id: ValueId| values[id].as_deref().expect("outputs are kept").clone();
    for output in graph.outputs() {
        if let Some(ix) = graph.states().iter().position(|&id| output.state() == Some(id)) {
            states[ix] = take(output.value);
        }
    }
    Ok(graph.results().map(|output| take(output.value)).collect())
}
