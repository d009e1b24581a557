//! [`UpdateRule`]: the step of an optimizer for one element of a parameter, one file for each rule.
//!
//! A rule is arithmetic in `f32` on a weight, its gradient and its states, in the order of the reference that its file
//! names, so that the definition, the CPU kernel and the GPU kernel give the same bits. Gradients arrive as they are to
//! be used: clipping, loss scales and the mean over a batch come before. The learning rate is a run-time scalar, and so is
//! the number of the step for rules that correct a bias with it.

mod adadelta;
mod adagrad;
mod adam;
mod lamb;
mod lion;
mod rms_prop;
mod sgd;

use serde::{Deserialize, Serialize};

pub use adadelta::Adadelta;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use lamb::Lamb;
pub use lion::Lion;
pub use rms_prop::RmsProp;
pub use sgd::Sgd;

/// An optimizer's rule with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant is documented at its struct")]
pub enum UpdateRule {
    Adadelta(Adadelta),
    Adagrad(Adagrad),
    Adam(Adam),
    Lamb(Lamb),
    Lion(Lion),
    RmsProp(RmsProp),
    Sgd(Sgd),
}

/// The numbers of a step that are the same for all elements, computed in `f64` and rounded once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars {
    /// The learning rate.
    pub learning_rate: f32,
    /// A factor of the first moment, with the learning rate for some rules; 1 for rules without a correction.
    pub first: f32,
    /// A factor of the second moment, or of its root; 1 for rules without a correction.
    pub second: f32,
}

impl UpdateRule {
    /// The most states that a rule has.
    pub const MAX_STATES: usize = 3;

    /// The name in the text form and on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            UpdateRule::Adadelta(_) => "adadelta",
            UpdateRule::Adagrad(_) => "adagrad",
            UpdateRule::Adam(Adam { decoupled: true, .. }) => "adamw",
            UpdateRule::Adam(_) => "adam",
            UpdateRule::Lamb(_) => "lamb",
            UpdateRule::Lion(_) => "lion",
            UpdateRule::RmsProp(_) => "rmsprop",
            UpdateRule::Sgd(_) => "sgd",
        }
    }

    /// The names of the states that a parameter has, each of the parameter's type and 0 before the first step.
    pub fn states(&self) -> &'static [&'static str] {
        match self {
            UpdateRule::Adadelta(_) => &["square_average", "delta_average"],
            UpdateRule::Adagrad(_) => &["square_sum"],
            UpdateRule::Adam(_) | UpdateRule::Lamb(_) => &["first_moment", "second_moment"],
            UpdateRule::Lion(_) => &["first_moment"],
            UpdateRule::RmsProp(rule) => rule.states(),
            UpdateRule::Sgd(rule) => rule.states(),
        }
    }

    /// Whether the rule reads the number of the step.
    pub fn reads_step(&self) -> bool {
        matches!(self, UpdateRule::Adam(_) | UpdateRule::Lamb(_))
    }

    /// Whether the result that replaces the weight is instead a direction: the learning rate and a ratio of norms are
    /// applied behind the rule ([`Lamb`]).
    pub fn yields_direction(&self) -> bool {
        matches!(self, UpdateRule::Lamb(_))
    }

    /// The reason why the constants are invalid, if they are.
    ///
    /// # Errors
    /// The requirement and the value found.
    pub fn check(&self) -> Result<(), String> {
        type Named<'a> = &'a [(&'a str, f32)];
        let (fractions, others): (Named, Named) = match self {
            UpdateRule::Adadelta(rule) => (&[("rho", rule.rho)], &[("epsilon", rule.epsilon)]),
            UpdateRule::Adagrad(rule) => (&[], &[("epsilon", rule.epsilon)]),
            UpdateRule::Adam(rule) => (&[("beta1", rule.beta1), ("beta2", rule.beta2)], &[("epsilon", rule.epsilon)]),
            UpdateRule::Lamb(rule) => (&[("beta1", rule.beta1), ("beta2", rule.beta2)], &[("epsilon", rule.epsilon)]),
            UpdateRule::Lion(rule) => (&[("beta1", rule.beta1), ("beta2", rule.beta2)], &[]),
            UpdateRule::RmsProp(rule) => {
                (&[("rho", rule.rho), ("momentum", rule.momentum)], &[("epsilon", rule.epsilon)])
            }
            UpdateRule::Sgd(rule) => (&[("momentum", rule.momentum)], &[]),
        };
        if let Some((name, value)) = fractions.iter().find(|(_, value)| !(0.0..1.0).contains(value)) {
            return Err(format!("{name} of {} must be in [0, 1), got {value}", self.name()));
        }
        let decay = [("weight_decay", self.weight_decay())];
        let invalid = others.iter().chain(&decay).find(|(_, value)| !(value.is_finite() && 0.0 <= *value));
        if let Some((name, value)) = invalid {
            return Err(format!("{name} of {} must be >= 0 and finite, got {value}", self.name()));
        }
        if let UpdateRule::Sgd(Sgd { momentum: 0.0, nesterov: true, .. }) = self {
            return Err("nesterov of sgd must have a momentum above 0, got 0".into());
        }
        Ok(())
    }

    /// The part of the weight that each step removes, or adds to the gradient.
    pub fn weight_decay(&self) -> f32 {
        match self {
            UpdateRule::Adadelta(rule) => rule.weight_decay,
            UpdateRule::Adagrad(rule) => rule.weight_decay,
            UpdateRule::Adam(rule) => rule.weight_decay,
            UpdateRule::Lamb(rule) => rule.weight_decay,
            UpdateRule::Lion(rule) => rule.weight_decay,
            UpdateRule::RmsProp(rule) => rule.weight_decay,
            UpdateRule::Sgd(rule) => rule.weight_decay,
        }
    }

    /// The rule with another weight decay: biases and scales usually have none.
    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f32) -> UpdateRule {
        *match &mut self {
            UpdateRule::Adadelta(rule) => &mut rule.weight_decay,
            UpdateRule::Adagrad(rule) => &mut rule.weight_decay,
            UpdateRule::Adam(rule) => &mut rule.weight_decay,
            UpdateRule::Lamb(rule) => &mut rule.weight_decay,
            UpdateRule::Lion(rule) => &mut rule.weight_decay,
            UpdateRule::RmsProp(rule) => &mut rule.weight_decay,
            UpdateRule::Sgd(rule) => &mut rule.weight_decay,
        } = weight_decay;
        self
    }

    /// The scalars of a step. Steps count from 1; an earlier one is taken as 1.
    pub fn scalars(&self, learning_rate: f32, step: i64) -> StepScalars {
        match self {
            UpdateRule::Adam(rule) => rule.scalars(learning_rate, step),
            UpdateRule::Lamb(rule) => rule.scalars(learning_rate, step),
            UpdateRule::Adadelta(_)
            | UpdateRule::Adagrad(_)
            | UpdateRule::Lion(_)
            | UpdateRule::RmsProp(_)
            | UpdateRule::Sgd(_) => StepScalars { learning_rate, first: 1.0, second: 1.0 },
        }
    }

    /// Replaces weights and states by those after the step, element by element. All slices have one length; there is one
    /// of `states` for each of [`UpdateRule::states`].
    ///
    /// Inlined, so that a kernel compiles it for its own instruction set.
    #[inline(always)]
    pub fn apply(&self, scalars: StepScalars, weight: &mut [f32], gradient: &[f32], states: &mut [&mut [f32]]) {
        match self {
            UpdateRule::Adadelta(rule) => each2(weight, gradient, states, |w, g, s| rule.apply(scalars, w, g, s)),
            UpdateRule::Adagrad(rule) => each1(weight, gradient, states, |w, g, s| rule.apply(scalars, w, g, s)),
            UpdateRule::Adam(rule) => each2(weight, gradient, states, |w, g, s| rule.apply(scalars, w, g, s)),
            UpdateRule::Lamb(rule) => each2(weight, gradient, states, |w, g, s| rule.apply(scalars, w, g, s)),
            UpdateRule::Lion(rule) => each1(weight, gradient, states, |w, g, s| rule.apply(scalars, w, g, s)),
            UpdateRule::RmsProp(rule) => rule.apply_all(scalars, weight, gradient, states),
            UpdateRule::Sgd(rule) => rule.apply_all(scalars, weight, gradient, states),
        }
    }
}

/// A rule without states, over slices.
#[inline(always)]
fn each0(weight: &mut [f32], gradient: &[f32], rule: impl Fn(f32, f32) -> f32) {
    for (w, &g) in weight.iter_mut().zip(gradient) {
        *w = rule(*w, g);
    }
}

/// A rule with one state, over slices.
#[inline(always)]
fn each1(
    weight: &mut [f32],
    gradient: &[f32],
    states: &mut [&mut [f32]],
    rule: impl Fn(f32, f32, [f32; 1]) -> (f32, [f32; 1]),
) {
    let [a] = states else { unreachable!("the rule has one state") };
    for ((w, &g), a) in weight.iter_mut().zip(gradient).zip(a.iter_mut()) {
        (*w, [*a]) = rule(*w, g, [*a]);
    }
}

/// A rule with two states, over slices.
#[inline(always)]
fn each2(
    weight: &mut [f32],
    gradient: &[f32],
    states: &mut [&mut [f32]],
    rule: impl Fn(f32, f32, [f32; 2]) -> (f32, [f32; 2]),
) {
    let [a, b] = states else { unreachable!("the rule has two states") };
    for (((w, &g), a), b) in weight.iter_mut().zip(gradient).zip(a.iter_mut()).zip(b.iter_mut()) {
        (*w, [*a, *b]) = rule(*w, g, [*a, *b]);
    }
}

/// A rule with three states, over slices.
#[inline(always)]
fn each3(
    weight: &mut [f32],
    gradient: &[f32],
    states: &mut [&mut [f32]],
    rule: impl Fn(f32, f32, [f32; 3]) -> (f32, [f32; 3]),
) {
    let [a, b, c] = states else { unreachable!("the rule has three states") };
    let states = a.iter_mut().zip(b.iter_mut()).zip(c.iter_mut());
    for ((w, &g), ((a, b), c)) in weight.iter_mut().zip(gradient).zip(states) {
        (*w, [*a, *b, *c]) = rule(*w, g, [*a, *b, *c]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rule: UpdateRule, steps: i64) -> f32 {
        let (mut w, mut states) = (vec![1.0f32], vec![vec![0.0f32]; rule.states().len()]);
        for step in 1..=steps {
            let mut parts: Vec<&mut [f32]> = states.iter_mut().map(|state| &mut state[..]).collect();
            rule.apply(rule.scalars(0.1, step), &mut w, &[0.5], &mut parts);
        }
        w[0]
    }

    /// Two steps by hand in exact arithmetic, rounded.
    #[test]
    fn rules_match_hand_computed_steps() {
        let near = |got: f32, want: f64| assert!((f64::from(got) - want).abs() < 1e-6, "{got} is not {want}");
        near(run(UpdateRule::Sgd(Sgd::default()), 2), 0.9);
        near(run(UpdateRule::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }), 2), 1.0 - 0.05 - 0.095);
        let nesterov = Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() };
        near(run(UpdateRule::Sgd(nesterov), 2), 1.0 - 0.095 - 0.1 * (0.5 + 0.9 * 0.95));
        // The moments of a constant gradient are exact after the correction, so each step is the rate.
        near(run(UpdateRule::Adam(Adam { epsilon: 0.0, ..Adam::default() }), 2), 0.8);
        let adamw = Adam { epsilon: 0.0, decoupled: true, weight_decay: 0.5, ..Adam::default() };
        near(run(UpdateRule::Adam(adamw), 1), 0.95 - 0.1);
        near(run(UpdateRule::Lion(Lion::default()), 2), 0.8);
        near(run(UpdateRule::Adagrad(Adagrad { epsilon: 0.0, ..Adagrad::default() }), 2), 0.9 - 0.1 / 2f64.sqrt());
        let rms_prop = RmsProp { rho: 0.75, epsilon: 0.0, ..RmsProp::default() };
        near(run(UpdateRule::RmsProp(rms_prop), 1), 1.0 - 0.1 / 0.5);
        let adadelta = Adadelta { rho: 0.75, epsilon: 0.25, ..Adadelta::default() };
        near(run(UpdateRule::Adadelta(adadelta), 1), 1.0 - 0.1 * 0.5 * (0.25f64 / (0.0625 + 0.25)).sqrt());
        // A direction of length 1, plus the decay of the weight.
        let lamb = Lamb { epsilon: 0.0, weight_decay: 0.5, ..Lamb::default() };
        near(run(UpdateRule::Lamb(lamb), 1), 1.5);
    }

    #[test]
    fn invalid_constants_are_named() {
        let wrong = [
            UpdateRule::Sgd(Sgd { momentum: 1.0, ..Sgd::default() }),
            UpdateRule::Sgd(Sgd { nesterov: true, ..Sgd::default() }),
            UpdateRule::Adam(Adam { beta2: -0.1, ..Adam::default() }),
            UpdateRule::Adam(Adam { weight_decay: f32::NAN, ..Adam::default() }),
            UpdateRule::RmsProp(RmsProp { epsilon: f32::INFINITY, ..RmsProp::default() }),
        ];
        for rule in wrong {
            assert!(rule.check().is_err_and(|said| said.contains(rule.name())), "{rule:?}");
        }
        assert_eq!(UpdateRule::Adam(Adam::default()).check(), Ok(()));
    }
}
