//! [`Adagrad`]: gradients over the root of the sum of their squares.

use serde::{Deserialize, Serialize};

use super::StepScalars;

/// Adagrad (Duchi et al. 2011), in the forms of PyTorch and MXNet:
///
/// ```text
/// d  = g + weight_decay w      s' = s + d d
/// w' = w - rate d / (sqrt(s') + epsilon)        (MXNet: sqrt(s' + epsilon), `epsilon_in_root`)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    /// Added to the root of the sum.
    pub epsilon: f32,
    /// The part of the weight that is added to the gradient.
    pub weight_decay: f32,
    /// Whether `epsilon` is added below the root.
    pub epsilon_in_root: bool,
}

impl Default for Adagrad {
    fn default() -> Adagrad {
        Adagrad { epsilon: 1e-10, weight_decay: 0.0, epsilon_in_root: false }
    }
}

impl Adagrad {
    #[inline(always)]
    pub(super) fn apply(&self, scalars: StepScalars, w: f32, g: f32, [s]: [f32; 1]) -> (f32, [f32; 1]) {
        let d = g + self.weight_decay * w;
        let s = s + d * d;
        let root = match self.epsilon_in_root {
            true => (s + self.epsilon).sqrt(),
            false => s.sqrt() + self.epsilon,
        };
        (w - scalars.learning_rate * (d / root), [s])
    }
}
