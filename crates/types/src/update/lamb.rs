//! [`Lamb`]: Adam's direction, scaled by a ratio of norms.

use serde::{Deserialize, Serialize};

use super::StepScalars;
use super::adam::corrections;

/// LAMB (You et al. 2020), first stage:
///
/// ```text
/// m' = beta1 m + (1 - beta1) g      v' = beta2 v + (1 - beta2) g g
/// r  = (m' / c1) / (sqrt(v' / c2) + epsilon) + weight_decay w           with c_i = 1 - beta_i ^ step
/// ```
///
/// Yields `r`, not the weight: the second stage needs the norms of whole tensors, `w' = w - rate (|w| / |r|) r`, with a
/// ratio of 1 where a norm is 0, and is written with other operators.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lamb {
    /// The part of the first moment that is kept.
    pub beta1: f32,
    /// The part of the second moment that is kept.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// The part of the weight that is added to the direction.
    pub weight_decay: f32,
}

impl Default for Lamb {
    fn default() -> Lamb {
        Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.0 }
    }
}

impl Lamb {
    pub(super) fn scalars(&self, learning_rate: f32, step: i64) -> StepScalars {
        let [first, second] = corrections(self.beta1, self.beta2, step);
        StepScalars { learning_rate, first: (1.0 / first) as f32, second: (1.0 / second) as f32 }
    }

    #[inline(always)]
    pub(super) fn apply(&self, scalars: StepScalars, w: f32, g: f32, [m, v]: [f32; 2]) -> (f32, [f32; 2]) {
        let m = self.beta1 * m + (1.0 - self.beta1) * g;
        let v = self.beta2 * v + (1.0 - self.beta2) * g * g;
        let direction = m * scalars.first / ((v * scalars.second).sqrt() + self.epsilon);
        (direction + self.weight_decay * w, [m, v])
    }
}
