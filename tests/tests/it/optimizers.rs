//! Rules of optimizers against the formulas of their papers, written down again in `f64`.

use types::update::{Adadelta, Adagrad, Adam, Lamb, Lion, RmsProp, Sgd, UpdateRule};

/// The papers' formulas in `f64` with explicit moments: weight, step, gradient and states `m`, `v`, `u`, each 0 at first,
/// to the weight. The learning rate is 0.05.
type Reference = fn(f64, i32, f64, &mut [f64; 3]) -> f64;

const RATE: f64 = 0.05;

#[test]
fn rules_match_the_formulas_of_their_papers() {
    let sgd = Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1, ..Sgd::default() };
    let adam = Adam { beta1: 0.8, beta2: 0.95, epsilon: 1e-3, weight_decay: 0.1, ..Adam::default() };
    let rms_prop =
        RmsProp { rho: 0.9, epsilon: 1e-2, momentum: 0.7, centered: true, weight_decay: 0.1, epsilon_in_root: false };
    let cases: [(UpdateRule, Reference); 10] = [
        (UpdateRule::Sgd(sgd), |w, _, g, [m, ..]| {
            let d = g + 0.1 * w;
            *m = 0.9 * *m + d;
            w - RATE * (d + 0.9 * *m)
        }),
        (UpdateRule::Sgd(Sgd { nesterov: false, ..sgd }), |w, _, g, [m, ..]| {
            *m = 0.9 * *m + g + 0.1 * w;
            w - RATE * *m
        }),
        (UpdateRule::Adam(adam), |w, step, g, [m, v, _]| {
            let d = g + 0.1 * w;
            (*m, *v) = (0.8 * *m + 0.2 * d, 0.95 * *v + 0.05 * d * d);
            let (first, second) = (*m / (1.0 - 0.8f64.powi(step)), *v / (1.0 - 0.95f64.powi(step)));
            w - RATE * first / (second.sqrt() + 1e-3)
        }),
        (UpdateRule::Adam(Adam { decoupled: true, ..adam }), |w, step, g, [m, v, _]| {
            (*m, *v) = (0.8 * *m + 0.2 * g, 0.95 * *v + 0.05 * g * g);
            let (first, second) = (*m / (1.0 - 0.8f64.powi(step)), *v / (1.0 - 0.95f64.powi(step)));
            w - RATE * (first / (second.sqrt() + 1e-3) + 0.1 * w)
        }),
        (UpdateRule::Adam(Adam { epsilon_hat: true, ..adam }), |w, step, g, [m, v, _]| {
            let d = g + 0.1 * w;
            (*m, *v) = (0.8 * *m + 0.2 * d, 0.95 * *v + 0.05 * d * d);
            let rate = RATE * (1.0 - 0.95f64.powi(step)).sqrt() / (1.0 - 0.8f64.powi(step));
            w - rate * *m / (v.sqrt() + 1e-3)
        }),
        (UpdateRule::RmsProp(rms_prop), |w, _, g, [v, m, u]| {
            let d = g + 0.1 * w;
            (*v, *m) = (0.9 * *v + 0.1 * d * d, 0.9 * *m + 0.1 * d);
            *u = 0.7 * *u + d / ((*v - *m * *m).sqrt() + 1e-2);
            w - RATE * *u
        }),
        (
            UpdateRule::Adagrad(Adagrad { epsilon: 1e-2, weight_decay: 0.1, epsilon_in_root: true }),
            |w, _, g, [v, ..]| {
                let d = g + 0.1 * w;
                *v += d * d;
                w - RATE * d / (*v + 1e-2).sqrt()
            },
        ),
        (UpdateRule::Adadelta(Adadelta { rho: 0.8, epsilon: 1e-2, weight_decay: 0.1 }), |w, _, g, [v, u, _]| {
            let d = g + 0.1 * w;
            *v = 0.8 * *v + 0.2 * d * d;
            let change = ((*u + 1e-2) / (*v + 1e-2)).sqrt() * d;
            *u = 0.8 * *u + 0.2 * change * change;
            w - RATE * change
        }),
        (UpdateRule::Lion(Lion { beta1: 0.7, beta2: 0.9, weight_decay: 0.1 }), |w, _, g, [m, ..]| {
            let sign = (0.7 * *m + 0.3 * g).signum();
            *m = 0.9 * *m + 0.1 * g;
            w - RATE * (sign + 0.1 * w)
        }),
        // The direction of the first stage.
        (
            UpdateRule::Lamb(Lamb { beta1: 0.8, beta2: 0.95, epsilon: 1e-3, weight_decay: 0.1 }),
            |w, step, g, [m, v, _]| {
                (*m, *v) = (0.8 * *m + 0.2 * g, 0.95 * *v + 0.05 * g * g);
                let (first, second) = (*m / (1.0 - 0.8f64.powi(step)), *v / (1.0 - 0.95f64.powi(step)));
                first / (second.sqrt() + 1e-3) + 0.1 * w
            },
        ),
    ];
    for (rule, reference) in cases {
        let mut random = types::Random::new(8);
        for _ in 0..20 {
            let first = random.uniform(-1.0, 1.0);
            let (mut w, mut states) = (vec![first], vec![vec![0.0f32]; rule.states().len()]);
            let (mut want, mut own) = (f64::from(first), [0.0; 3]);
            for step in 1..=12 {
                let gradient = random.uniform(-1.0, 1.0);
                let mut parts: Vec<&mut [f32]> = states.iter_mut().map(|state| &mut state[..]).collect();
                rule.apply(rule.scalars(RATE as f32, i64::from(step)), &mut w, &[gradient], &mut parts);
                want = reference(want, step, f64::from(gradient), &mut own);
                let got = f64::from(w[0]);
                assert!((got - want).abs() < 2e-5 * (1.0 + want.abs()), "{rule:?}, step {step}: {got} is not {want}");
            }
        }
    }
}
