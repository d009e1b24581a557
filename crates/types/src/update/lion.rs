//! [`Lion`]: the sign of a momentum.

use serde::{Deserialize, Serialize};

use super::StepScalars;

/// Lion (Chen et al. 2023, algorithm 2):
///
/// ```text
/// w  = w - rate weight_decay w
/// w' = w - rate sign(beta1 m + (1 - beta1) g)       m' = beta2 m + (1 - beta2) g
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lion {
    /// The part of the momentum in the step.
    pub beta1: f32,
    /// The part of the momentum that is kept.
    pub beta2: f32,
    /// The part of the weight that is removed.
    pub weight_decay: f32,
}

impl Default for Lion {
    fn default() -> Lion {
        Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }
}

impl Lion {
    #[inline(always)]
    pub(super) fn apply(&self, scalars: StepScalars, w: f32, g: f32, [m]: [f32; 1]) -> (f32, [f32; 1]) {
        let rate = scalars.learning_rate;
        let mixed = self.beta1 * m + (1.0 - self.beta1) * g;
        // Rust's signum of 0 is 1.
        let sign = f32::from(u8::from(0.0 < mixed)) - f32::from(u8::from(mixed < 0.0));
        let w = w - rate * self.weight_decay * w;
        (w - rate * sign, [self.beta2 * m + (1.0 - self.beta2) * g])
    }
}
