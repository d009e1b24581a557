//! Updates of optimizers: one pass over weight, gradient and states, one thread an element.
//!
//! Each rule is the text of its file in `types::update`, in the same order. Products are rounded before they are added to
//! anything (`times`), so a GPU gives the bits of the definition.

use ir::Call;
use types::update::{Adadelta, Adagrad, Adam, Lamb, Lion, RmsProp, Sgd, UpdateRule};

use super::c_source::number;
use super::emit::{Block, Emitted, KernelKind, Template, blocks, call};
use super::pointwise::head;
use crate::NodeView;

pub(super) fn update(node: &NodeView, rule: &UpdateRule) -> Vec<Call> {
    let (shape, states) = (&node.output().shape, rule.states().len());
    let rate = 2 + states;
    let mut body = corrections(rule, rate + 1) + &head(shape.elements());
    let lines = lines(rule);
    if lines.iter().any(|line| line.contains("rate")) {
        body.push_str(&format!("    const float rate = a{rate}[0];\n"));
    }
    body.push_str("    float w = a0[i], g = a1[i];\n");
    (0..states).for_each(|ix| body.push_str(&format!("    float s{ix} = a{}[i];\n", 2 + ix)));
    for line in lines {
        body.push_str(&format!("    {line}\n"));
    }
    body.push_str("    y0[i] = w;\n");
    (0..states).for_each(|ix| body.push_str(&format!("    y{}[i] = s{ix};\n", 1 + ix)));
    let emitted = Emitted {
        kind: KernelKind::Update,
        parameters: node.all_parameters(),
        body,
        grid: blocks(shape.elements()),
        block: Block::USUAL,
        iterations: None,
        needs: vec![Template::Pointwise, Template::Rows, Template::Training],
    };
    // A thread reads all of its elements before it writes one.
    let in_place: Vec<usize> = (0..rate).collect();
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    vec![call(emitted, format!("{} on {shape}", rule.name()), &operands, &in_place)]
}

/// `first` and `second` of `types::update::StepScalars`, for rules that read the number of the step: one thread computes
/// them for its block.
fn corrections(rule: &UpdateRule, step: usize) -> String {
    let ([beta1, beta2], first, second) = match *rule {
        UpdateRule::Adam(Adam { beta1, beta2, epsilon_hat: true, .. }) => {
            ([beta1, beta2], "double(a{rate}[0]) * sqrt(second) / first", "1.0")
        }
        UpdateRule::Adam(Adam { beta1, beta2, .. }) => {
            ([beta1, beta2], "double(a{rate}[0]) / first", "1.0 / sqrt(second)")
        }
        UpdateRule::Lamb(Lamb { beta1, beta2, .. }) => ([beta1, beta2], "1.0 / first", "1.0 / second"),
        UpdateRule::Adadelta(_)
        | UpdateRule::Adagrad(_)
        | UpdateRule::Lion(_)
        | UpdateRule::RmsProp(_)
        | UpdateRule::Sgd(_) => return String::new(),
    };
    let first = first.replace("{rate}", &(step - 1).to_string());
    let (beta1, beta2) = (number(beta1), number(beta2));
    format!(
        "    __shared__ float factors[2];\n    if (threadIdx.x == 0) {{\n        const double first = correction({beta1}, \
         a{step}[0]), second = correction({beta2}, a{step}[0]);\n        factors[0] = (float)({first});\n        factors[1] = \
         (float)({second});\n    }}\n    __syncthreads();\n"
    )
}

/// The lines that replace the weight `w` and the states `s0, ..` by those after the step, from the gradient `g` and the
/// learning rate `rate`.
fn lines(rule: &UpdateRule) -> Vec<String> {
    /// `beta s + (1 - beta) x`.
    fn mixed(beta: f32, s: &str, x: &str) -> String {
        format!("times({}, {s}) + times({}, {x})", number(beta), number(1.0 - beta))
    }
    /// `beta s + (1 - beta) x x`, by two products.
    fn mixed_square(beta: f32, s: &str, x: &str) -> String {
        format!("times({}, {s}) + times(times({}, {x}), {x})", number(beta), number(1.0 - beta))
    }
    /// The decay added to the gradient.
    fn decayed(decay: f32) -> String {
        format!("const float d = g + times({}, w);", number(decay))
    }
    /// The root of a mean square.
    fn root(square: &str, epsilon: f32, in_root: bool) -> String {
        match in_root {
            true => format!("sqrt({square} + {})", number(epsilon)),
            false => format!("(sqrt({square}) + {})", number(epsilon)),
        }
    }
    match *rule {
        UpdateRule::Adadelta(Adadelta { rho, epsilon, weight_decay }) => vec![
            decayed(weight_decay),
            format!("s0 = {};", mixed_square(rho, "s0", "d")),
            format!("const float change = times(sqrt(s1 + {0}) / sqrt(s0 + {0}), d);", number(epsilon)),
            "w = w - times(rate, change);".into(),
            format!("s1 = {};", mixed_square(rho, "s1", "change")),
        ],
        UpdateRule::Adagrad(Adagrad { epsilon, weight_decay, epsilon_in_root }) => vec![
            decayed(weight_decay),
            "s0 = s0 + times(d, d);".into(),
            format!("w = w - times(rate, d / {});", root("s0", epsilon, epsilon_in_root)),
        ],
        UpdateRule::Adam(Adam { beta1, beta2, epsilon, weight_decay, decoupled, epsilon_hat: _ }) => {
            let decay = match decoupled {
                true => format!("w = w - times(times(rate, {}), w);", number(weight_decay)),
                false => format!("g = g + times({}, w);", number(weight_decay)),
            };
            vec![
                decay,
                format!("s0 = {};", mixed(beta1, "s0", "g")),
                format!("s1 = {};", mixed_square(beta2, "s1", "g")),
                format!("w = w - times(factors[0], s0) / (times(sqrt(s1), factors[1]) + {});", number(epsilon)),
            ]
        }
        UpdateRule::Lamb(Lamb { beta1, beta2, epsilon, weight_decay }) => vec![
            format!("s0 = {};", mixed(beta1, "s0", "g")),
            format!("s1 = {};", mixed_square(beta2, "s1", "g")),
            format!(
                "w = times(s0, factors[0]) / (sqrt(times(s1, factors[1])) + {}) + times({}, w);",
                number(epsilon),
                number(weight_decay)
            ),
        ],
        UpdateRule::Lion(Lion { beta1, beta2, weight_decay }) => vec![
            format!("const float mix = {};", mixed(beta1, "s0", "g")),
            format!("w = w - times(times(rate, {}), w);", number(weight_decay)),
            "w = w - times(rate, mix > 0.0f ? 1.0f : mix < 0.0f ? -1.0f : 0.0f);".into(),
            format!("s0 = {};", mixed(beta2, "s0", "g")),
        ],
        UpdateRule::RmsProp(RmsProp { rho, epsilon, momentum, centered, weight_decay, epsilon_in_root }) => {
            let mut lines = vec![decayed(weight_decay), format!("s0 = {};", mixed_square(rho, "s0", "d"))];
            if centered {
                lines.push(format!("s1 = {};", mixed(rho, "s1", "d")));
            }
            let square = if centered { "s0 - times(s1, s1)" } else { "s0" };
            let step = format!("d / {}", root(square, epsilon, epsilon_in_root));
            if momentum == 0.0 {
                lines.push(format!("w = w - times(rate, {step});"));
            } else {
                let buffer = if centered { "s2" } else { "s1" };
                lines.push(format!("{buffer} = times({}, {buffer}) + {step};", number(momentum)));
                lines.push(format!("w = w - times(rate, {buffer});"));
            }
            lines
        }
        UpdateRule::Sgd(Sgd { momentum, nesterov, weight_decay, buffer_of_steps }) => {
            let momentum_of = |x: &str| format!("times({}, {x})", number(momentum));
            let steps = match () {
                () if momentum == 0.0 => vec!["w = w - times(rate, d);".to_string()],
                () if nesterov => vec![
                    format!("s0 = {} + d;", momentum_of("s0")),
                    format!("w = w - times(rate, d + {});", momentum_of("s0")),
                ],
                () if buffer_of_steps => {
                    vec![format!("s0 = {} - times(rate, d);", momentum_of("s0")), "w = w + s0;".into()]
                }
                () => vec![format!("s0 = {} + d;", momentum_of("s0")), "w = w - times(rate, s0);".into()],
            };
            [vec![decayed(weight_decay)], steps].concat()
        }
    }
}
