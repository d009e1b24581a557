//! [`Adadelta`]: gradients over the root of their mean square, times the root of the mean square of the steps.

use serde::{Deserialize, Serialize};

use super::StepScalars;

/// Adadelta (Zeiler 2012), in PyTorch's form:
///
/// ```text
/// d  = g + weight_decay w              s' = rho s + (1 - rho) d d
/// e  = sqrt(a + epsilon) / sqrt(s' + epsilon) d
/// a' = rho a + (1 - rho) e e           w' = w - rate e
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adadelta {
    /// The part of both mean squares that is kept.
    pub rho: f32,
    /// Added below both roots.
    pub epsilon: f32,
    /// The part of the weight that is added to the gradient.
    pub weight_decay: f32,
}

impl Default for Adadelta {
    fn default() -> Adadelta {
        Adadelta { rho: 0.9, epsilon: 1e-6, weight_decay: 0.0 }
    }
}

impl Adadelta {
    #[inline(always)]
    pub(super) fn apply(&self, scalars: StepScalars, w: f32, g: f32, [s, a]: [f32; 2]) -> (f32, [f32; 2]) {
        let d = g + self.weight_decay * w;
        let s = self.rho * s + (1.0 - self.rho) * d * d;
        let step = (a + self.epsilon).sqrt() / (s + self.epsilon).sqrt() * d;
        (w - scalars.learning_rate * step, [s, self.rho * a + (1.0 - self.rho) * step * step])
    }
}
