//! [`RmsProp`]: gradients over the root of their mean square.

use serde::{Deserialize, Serialize};

use super::{StepScalars, each1, each2, each3};

/// RMSProp (Tieleman & Hinton 2012; centered: Graves 2013), in the forms of PyTorch and MXNet:
///
/// ```text
/// d  = g + weight_decay w              s' = rho s + (1 - rho) d d
/// centered: a' = rho a + (1 - rho) d   and s' - a' a' instead of s' below
/// root = sqrt(s') + epsilon            (MXNet: sqrt(s' + epsilon), `epsilon_in_root`)
/// w' = w - rate d / root               (momentum: b' = momentum b + d / root, w' = w - rate b')
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsProp {
    /// The part of the mean square that is kept.
    pub rho: f32,
    /// Added to the root of the mean square.
    pub epsilon: f32,
    /// The part of the momentum that is kept. The rule has a state for it only if it is not 0.
    pub momentum: f32,
    /// Whether the mean gradient is subtracted: one state more.
    pub centered: bool,
    /// The part of the weight that is added to the gradient.
    pub weight_decay: f32,
    /// Whether `epsilon` is added below the root.
    pub epsilon_in_root: bool,
}

impl Default for RmsProp {
    fn default() -> RmsProp {
        RmsProp { rho: 0.99, epsilon: 1e-8, momentum: 0.0, centered: false, weight_decay: 0.0, epsilon_in_root: false }
    }
}

impl RmsProp {
    pub(super) fn states(&self) -> &'static [&'static str] {
        match (self.centered, self.momentum == 0.0) {
            (false, true) => &["square_average"],
            (true, true) => &["square_average", "average"],
            (false, false) => &["square_average", "momentum"],
            (true, false) => &["square_average", "average", "momentum"],
        }
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
        let square = |d: f32, s: f32| self.rho * s + (1.0 - self.rho) * d * d;
        let mean = |d: f32, a: f32| self.rho * a + (1.0 - self.rho) * d;
        let decayed = |w: f32, g: f32| g + self.weight_decay * w;
        let root = |s: f32| match self.epsilon_in_root {
            true => (s + self.epsilon).sqrt(),
            false => s.sqrt() + self.epsilon,
        };
        match (self.centered, self.momentum == 0.0) {
            (false, true) => each1(weight, gradient, states, |w, g, [s]| {
                let d = decayed(w, g);
                let s = square(d, s);
                (w - rate * (d / root(s)), [s])
            }),
            (true, true) => each2(weight, gradient, states, |w, g, [s, a]| {
                let d = decayed(w, g);
                let (s, a) = (square(d, s), mean(d, a));
                (w - rate * (d / root(s - a * a)), [s, a])
            }),
            (false, false) => each2(weight, gradient, states, |w, g, [s, b]| {
                let d = decayed(w, g);
                let s = square(d, s);
                let b = self.momentum * b + d / root(s);
                (w - rate * b, [s, b])
            }),
            (true, false) => each3(weight, gradient, states, |w, g, [s, a, b]| {
                let d = decayed(w, g);
                let (s, a) = (square(d, s), mean(d, a));
                let b = self.momentum * b + d / root(s - a * a);
                (w - rate * b, [s, a, b])
            }),
        }
    }
}
