//! [`Sgd`]: stochastic gradient descent.

use serde::{Deserialize, Serialize};

use super::{StepScalars, each0, each1};

/// Stochastic gradient descent with momentum (Sutskever et al. 2013), in the forms of PyTorch and MXNet:
///
/// ```text
/// d = g + weight_decay w
/// torch:  b' = momentum b + d         w' = w - rate b'    (Nesterov: w - rate (d + momentum b'))
/// MXNet:  b' = momentum b - rate d    w' = w + b'         (Nesterov: as torch)
/// ```
///
/// Both give the same weights while the rate is constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sgd {
    /// The part of the buffer that is kept, in `[0, 1)`. The rule has a state only if it is not 0.
    pub momentum: f32,
    /// Whether the gradient is taken ahead of the momentum.
    pub nesterov: bool,
    /// The part of the weight that is added to the gradient.
    pub weight_decay: f32,
    /// Whether the buffer has steps (MXNet) and not gradients (torch).
    pub buffer_of_steps: bool,
}

impl Sgd {
    pub(super) fn states(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum"] }
    }

    #[inline(always)]
    pub(super) fn apply_all(
        &self,
        scalars: StepScalars,
        weight: &mut [f32],
        gradient: &[f32],
        states: &mut [&mut [f32]],
    ) {
        let rate = scalars.learning_rate;
        let decayed = |w: f32, g: f32| g + self.weight_decay * w;
        if self.momentum == 0.0 {
            return each0(weight, gradient, |w, g| w - rate * decayed(w, g));
        }
        if self.nesterov {
            return each1(weight, gradient, states, |w, g, [b]| {
                let d = decayed(w, g);
                let b = self.momentum * b + d;
                (w - rate * (d + self.momentum * b), [b])
            });
        }
        if self.buffer_of_steps {
            return each1(weight, gradient, states, |w, g, [b]| {
                let b = self.momentum * b - rate * decayed(w, g);
                (w + b, [b])
            });
        }
        each1(weight, gradient, states, |w, g, [b]| {
            let b = self.momentum * b + decayed(w, g);
            (w - rate * b, [b])
        });
    }
}
