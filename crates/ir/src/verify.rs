//! [`verify()`]: all errors of a graph at once. Runs after every pass.

use smallvec::SmallVec;
use types::{EntityId, Role};

use crate::{Graph, NodeId, TensorType, ValueDef, ValueId};

/// An invalid graph: a bug of the loader or pass that produced it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum VerifyError {
    #[error("node {node} (`{scope}`) reads {value}, which does not exist")]
    UnknownValue { node: NodeId, scope: String, value: usize },
    #[error("node {node} (`{scope}`) reads {value} before it is computed")]
    OutOfOrder { node: NodeId, scope: String, value: ValueId },
    #[error("node {node} (`{scope}`): {op}: {refusal}")]
    Refused { node: NodeId, scope: String, op: &'static str, refusal: String },
    #[error("node {node} (`{scope}`) must yield {want}, which {op} infers, got {got}")]
    WrongType { node: NodeId, scope: String, op: &'static str, want: String, got: String },
    #[error("value {value} must be defined by node {node}, which yields it")]
    WrongSource { value: ValueId, node: NodeId },
    #[error("value {value}: {refusal}")]
    TooLarge { value: ValueId, refusal: String },
    #[error("value {value} must hold a tensor of its type {ty}, got {tensor}")]
    WrongTensor { value: ValueId, ty: String, tensor: String },
    #[error("{value} must be a node's result to have the role {role} of its own")]
    RoleOfGiven { value: ValueId, role: Role },
    #[error("output `{name}` does not exist")]
    UnknownOutput { name: String },
    #[error("input {value} must be defined as an input")]
    WrongInput { value: ValueId },
    #[error("state {value} must be listed among the states of the graph")]
    UnlistedState { value: ValueId },
    #[error("{value} is listed as a state and must be one, with the role state, optimizer_state or weight")]
    WrongState { value: ValueId },
    #[error("the update of {state} must replace a state of the graph")]
    UpdateOfNoState { state: ValueId },
    #[error("the update of {state} must be {want}, got {got}")]
    WrongUpdate { state: ValueId, want: String, got: String },
    #[error("two states are named `{name}`")]
    TwoStates { name: String },
    #[error("{state} must have one update, got two")]
    TwoUpdates { state: ValueId },
    #[error("output names must be distinct, got `{name}` twice")]
    TwoOutputs { name: String },
    #[error("a graph must have an output")]
    NoOutput,
}

/// Checks ids, order, types and names.
///
/// # Errors
/// All violations, in the order of the graph.
pub fn verify(graph: &Graph) -> Result<(), Vec<VerifyError>> {
    let mut errors = Vec::new();
    let n_values = graph.values().len();

    for (value, data) in graph.values().iter() {
        if let Err(refusal) = data.ty.check_size() {
            errors.push(VerifyError::TooLarge { value, refusal: refusal.0 });
        }
        let tensor = match &data.source {
            ValueDef::State { initial, .. } => Some(initial),
            _ => data.tensor(),
        };
        if let Some(tensor) = tensor
            && TensorType::of(tensor) != data.ty
        {
            let (ty, tensor) = (data.ty.to_string(), TensorType::of(tensor).to_string());
            errors.push(VerifyError::WrongTensor { value, ty, tensor });
        }
        if matches!(data.source, ValueDef::State { .. }) && !graph.states().contains(&value) {
            errors.push(VerifyError::UnlistedState { value });
        }
        if let Some(role) = data.result_role
            && data.producer().is_none()
        {
            errors.push(VerifyError::RoleOfGiven { value, role });
        }
        if let ValueDef::Node { node, output } = data.source
            && graph.nodes().get(node).and_then(|node| node.outputs.get(output)) != Some(&value)
        {
            errors.push(VerifyError::WrongSource { value, node });
        }
    }
    for &value in graph.inputs() {
        if graph.values().get(value).is_none_or(|data| data.source != ValueDef::Input) {
            errors.push(VerifyError::WrongInput { value });
        }
    }

    for (id, node) in graph.nodes().iter() {
        let scope = || node.scope.to_string();
        let mut known = true;
        for &value in node.inputs.iter().chain(&node.outputs) {
            if n_values <= value.index() {
                errors.push(VerifyError::UnknownValue { node: id, scope: scope(), value: value.index() });
                known = false;
            }
        }
        if !known {
            continue;
        }
        for &value in &node.inputs {
            if graph.value(value).producer().is_some_and(|producer| id <= producer) {
                errors.push(VerifyError::OutOfOrder { node: id, scope: scope(), value });
            }
        }
        let types: SmallVec<[&TensorType; 4]> = node.inputs.iter().map(|&value| graph.ty(value)).collect();
        match node.op.infer(&types) {
            Err(refusal) => {
                let refusal = refusal.to_string();
                errors.push(VerifyError::Refused { node: id, scope: scope(), op: node.op.name(), refusal });
            }
            Ok(want) => {
                let got: SmallVec<[TensorType; 1]> =
                    node.outputs.iter().map(|&value| graph.ty(value).clone()).collect();
                if want != got {
                    let print =
                        |types: &[TensorType]| types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ");
                    let (want, got) = (print(&want), print(&got));
                    errors.push(VerifyError::WrongType { node: id, scope: scope(), op: node.op.name(), want, got });
                }
            }
        }
        for (output, &value) in node.outputs.iter().enumerate() {
            if graph.value(value).source != (ValueDef::Node { node: id, output }) {
                errors.push(VerifyError::WrongSource { value, node: id });
            }
        }
    }

    if graph.outputs().is_empty() {
        errors.push(VerifyError::NoOutput);
    }
    for (ix, &value) in graph.states().iter().enumerate() {
        let Some(data) = graph.values().get(value) else {
            errors.push(VerifyError::WrongState { value });
            continue;
        };
        let is_state =
            matches!(data.source, ValueDef::State { role: Role::State | Role::OptimizerState | Role::Weight, .. });
        if !is_state || graph.states()[..ix].contains(&value) {
            errors.push(VerifyError::WrongState { value });
        } else if graph.states()[..ix].iter().any(|&earlier| graph.value(earlier).name == data.name) {
            errors.push(VerifyError::TwoStates { name: data.name.clone() });
        }
    }
    for (ix, output) in graph.outputs().iter().enumerate() {
        if n_values <= output.value.index() {
            errors.push(VerifyError::UnknownOutput { name: output.name.clone() });
        }
        let earlier = &graph.outputs()[..ix];
        match output.state() {
            Some(state) if !graph.states().contains(&state) => errors.push(VerifyError::UpdateOfNoState { state }),
            Some(state) if earlier.iter().any(|earlier| earlier.state() == Some(state)) => {
                errors.push(VerifyError::TwoUpdates { state });
            }
            Some(state) if output.value.index() < n_values && graph.ty(state) != graph.ty(output.value) => {
                let (want, got) = (graph.ty(state).to_string(), graph.ty(output.value).to_string());
                errors.push(VerifyError::WrongUpdate { state, want, got });
            }
            Some(_) => {}
            None if earlier.iter().any(|earlier| earlier.state().is_none() && earlier.name == output.name) => {
                errors.push(VerifyError::TwoOutputs { name: output.name.clone() });
            }
            None => {}
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
