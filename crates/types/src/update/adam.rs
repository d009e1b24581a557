//! [`Adam`] and AdamW.

use serde::{Deserialize, Serialize};

use super::StepScalars;

/// Adam (Kingma & Ba 2015), AdamW (Loshchilov & Hutter 2019) if `decoupled`:
///
/// ```text
/// d  = g + weight_decay w                         (AdamW: d = g, w = w - rate weight_decay w)
/// m' = beta1 m + (1 - beta1) d                    v' = beta2 v + (1 - beta2) d d
/// torch:  w' = w - (rate / c1) m' / (sqrt(v') / sqrt(c2) + epsilon)     with c_i = 1 - beta_i ^ step
/// MXNet:  w' = w - (rate sqrt(c2) / c1) m' / (sqrt(v') + epsilon)       (`epsilon_hat`)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    /// The part of the first moment that is kept.
    pub beta1: f32,
    /// The part of the second moment that is kept.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// The part of the weight that is added to the gradient, or removed from the weight if `decoupled`.
    pub weight_decay: f32,
    /// Whether the decay is apart from the gradient (AdamW).
    pub decoupled: bool,
    /// Whether `epsilon` is added before the bias of the second moment is corrected: the end of section 2 of the paper,
    /// as in MXNet.
    pub epsilon_hat: bool,
}

impl Default for Adam {
    fn default() -> Adam {
        Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, decoupled: false, epsilon_hat: false }
    }
}

impl Adam {
    pub(super) fn scalars(&self, learning_rate: f32, step: i64) -> StepScalars {
        let [first, second] = corrections(self.beta1, self.beta2, step);
        let rate = f64::from(learning_rate);
        match self.epsilon_hat {
            true => StepScalars { learning_rate, first: (rate * second.sqrt() / first) as f32, second: 1.0 },
            false => StepScalars { learning_rate, first: (rate / first) as f32, second: (1.0 / second.sqrt()) as f32 },
        }
    }

    #[inline(always)]
    pub(super) fn apply(&self, scalars: StepScalars, w: f32, g: f32, [m, v]: [f32; 2]) -> (f32, [f32; 2]) {
        let (w, g) = match self.decoupled {
            true => (w - scalars.learning_rate * self.weight_decay * w, g),
            false => (w, g + self.weight_decay * w),
        };
        let m = self.beta1 * m + (1.0 - self.beta1) * g;
        let v = self.beta2 * v + (1.0 - self.beta2) * g * g;
        (w - scalars.first * m / (v.sqrt() * scalars.second + self.epsilon), [m, v])
    }
}

/// `1 - beta ^ step` for both moments, with the step at least 1.
pub(super) fn corrections(beta1: f32, beta2: f32, step: i64) -> [f64; 2] {
    [beta1, beta2].map(|beta| 1.0 - f64::from(beta).powf(step.max(1) as f64))
}
