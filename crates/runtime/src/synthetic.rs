//! [`synthetic_inputs`]: inputs of a plan that need no data.

use plan::{Plan, Port, Training};
use types::{Random, Tensor};

/// The largest learning rate: a step that runs often on the same inputs must not diverge.
const LEARNING_RATE_MAX: f32 = 1e-3;

/// A tensor for each input of a plan, in its order. Elements are uniform in [-1, 1), or 0 and 1 for integers and booleans, by
/// the seed and the input's name; a training step gets its own learning rate, at most 0.001, and number 1.
pub fn synthetic_inputs(plan: &Plan, seed: u64) -> Vec<Tensor> {
    let tensor = |port: &Port| match (plan.phase.training(), &port.name[..]) {
        (Some(training), Training::LEARNING_RATE) => Tensor::scalar(training.learning_rate.min(LEARNING_RATE_MAX)),
        (Some(_), Training::STEP) => Tensor::scalar(1i64),
        _ => elements(port, seed),
    };
    plan.inputs.iter().map(tensor).collect()
}

fn elements(port: &Port, seed: u64) -> Tensor {
    let mut random = Random::for_name(seed, &port.name);
    match port.dtype {
        dtype if dtype.is_float() => Tensor::from_fn(port.shape.clone(), |_| random.uniform(-1.0, 1.0)).cast(dtype),
        dtype => Tensor::from_fn(port.shape.clone(), |_| random.below(2) as i64).cast(dtype),
    }
}
