//! Gradients of recurrent layers: a launch for each phase of `cuda/templates/recurrent_gradient.cu`.
//!
//! Launches in order: the sums of all gates; for an LSTM its memories, for a GRU that resets before the product its candidate's
//! sums; then for each step from the last to the first the gradients of its gates (two launches for that GRU); at the end the
//! gradients of weights and first states. A layer that does not save its gates has no sums.

use ir::Call;
use ir::ops::RecurrentGradient;
use types::Bytes;
use types::pointwise::{Term, Unary};
use types::recurrent::{Cell, Direction, Reset};

use super::c_source::{binary, number, unary};
use super::emit::{Block, Emitted, KernelKind, THREADS, Template, call};
use crate::NodeView;

/// The most blocks of a launch. Phases that are larger take several turns.
const BLOCKS_MAX: usize = 1024;

pub(super) fn recurrent_gradient(node: &NodeView, op: &RecurrentGradient) -> Result<Vec<Call>, String> {
    node.all_f32()?;
    if op.values {
        return Err("its kernel computes gates again".into());
    }
    let (y, cell) = (&node.input(op.layer_operands()).shape, &op.recurrent.cell);
    let (seq, directions, batch, units, gates) = (y[0], y[1], y[2], y[3], cell.gates());
    if seq * batch * units == 0 {
        return Err("its kernel has no empty sequences, batches or states".into());
    }
    let phases = Phases::of(cell);
    let launches = phases.before.len() + phases.step.len() * seq + 1;
    let iterations = u32::try_from(launches).map_err(|_| format!("{seq} steps are more than can be counted"))?;
    let states = directions * batch * units;
    let memories = if phases.keeps_memory { seq * states } else { 0 };
    let carries = if matches!(cell, Cell::Rnn { .. }) { 0 } else { states };
    let numbers = seq * states * gates + memories + carries;
    // Sums take a warp each, gradients of weights a thread.
    let threads = (seq * states * gates * 32).max(directions * gates * units * units);
    let grid = [threads.div_ceil(THREADS as usize).clamp(1, BLOCKS_MAX) as u32, 1, 1];
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let mut parameters = node.all_parameters();
    parameters.push(("float*".into(), "workspace".into()));
    let emitted = Emitted {
        kind: KernelKind::RecurrentGradient,
        parameters,
        body: phases.text(op, [seq, batch, units], memories),
        grid,
        block: Block::USUAL,
        iterations: Some(iterations),
        needs: vec![Template::Pointwise, Template::RecurrentGradient],
    };
    let label = format!("gradient of {} of {seq} steps, {directions} x {batch} x {units}", cell.name());
    let workspace = Bytes((numbers * size_of::<f32>()) as u64);
    Ok(vec![Call { workspace, ..call(emitted, label, &operands, &[]) }])
}

/// The text of each launch.
struct Phases {
    /// Before the walk.
    before: Vec<String>,
    /// For each step.
    step: Vec<String>,
    /// The gates whose products have read the state before a step; others have read the state behind the reset gate.
    direct: [usize; 2],
    /// Whether an array of the states of all steps is kept.
    keeps_memory: bool,
    /// Terms of the gradients of the further parameters.
    extras: Option<&'static str>,
}

/// `const Both name = ..`: a function's result and derivative.
fn both(name: &str, function: Unary, x: &str) -> String {
    let (argument, result) = (format!("x_{name}"), format!("y_{name}"));
    let slope = function.derivative().map_or("0.0f".into(), |slope| term(&slope, &argument, &result));
    format!(
        "        const float {argument} = {x}, {result} = {};\n        const Both {name} = {{{result}, {slope}}};\n",
        unary(function, &argument, "float")
    )
}

/// A derivative in C, given the operand and the result of its function.
fn term(expression: &Term, a: &str, y: &str) -> String {
    match expression {
        Term::A => a.into(),
        Term::B => unreachable!("a function of one operand has no second one"),
        Term::Y => y.into(),
        Term::Number(value) => number(*value),
        Term::Unary(function, inner) => unary(*function, &term(inner, a, y), "float"),
        Term::Binary(function, terms) => binary(*function, &term(&terms[0], a, y), &term(&terms[1], a, y), 'f'),
    }
}

/// Sums of the gates, of which `bias` is added to the product of gate 2 instead of the layer's operand.
fn sums(end: usize, bias: bool) -> String {
    let store = match bias {
        true => {
            "at.sums[at.sum_at(state, step, gate)] = sum + (gate == 2 ? at.more(state, 0) : at.gates[at.gate_at(state, step, gate)]);"
        }
        false => "at.sums[at.sum_at(state, step, gate)] = sum + at.gates[at.gate_at(state, step, gate)];",
    };
    format!(
        "        at.products<0, {end}>([=](int state, int step) {{ return at.before(state, step); }}, [=](int state, \
         int step, int gate, float sum) {{\n            {store}\n        }});\n"
    )
}

impl Phases {
    fn of(cell: &Cell) -> Phases {
        // The gradient of a step's result: from outside, and from the step behind it.
        let incoming = |end: usize, carried: bool| {
            let carry = if carried { "at.carry[state] + " } else { "" };
            format!(
                "        const float dh = dy[at.at(state, step)] + (step == LAST ? dh_last[state] : {carry}at.\
                 through<0, {end}>(state, step + 1));\n"
            )
        };
        let set = |gate: usize, dz: &str, product: &str| {
            format!(
                "        y0[at.gate_at(state, step, {gate})] = {dz};\n        at.sums[at.sum_at(state, step, {gate})] = \
                 {product};\n"
            )
        };
        let sum = |gate: usize| format!("at.sums[at.sum_at(state, step, {gate})]");
        match cell {
            Cell::Rnn { activation } => Phases {
                before: if cell.saves_gates() { vec![sums(1, false)] } else { Vec::new() },
                step: vec![
                    incoming(1, false)
                        + &match cell.saves_gates() {
                            true => both("state_after", *activation, &sum(0)),
                            false => {
                                let slope =
                                    activation.derivative().map_or("0.0f".into(), |slope| term(&slope, "y", "y"));
                                format!(
                                    "        const float y = at.y[at.at(state, step)];\n        const Both state_after = {{y, \
                                     {slope}}};\n"
                                )
                            }
                        }
                        + "        const float dz = dh * state_after.slope;\n"
                        + &set(0, "dz", "dz"),
                ],
                direct: [0, 1],
                keeps_memory: false,
                extras: None,
            },
            Cell::Lstm { activation: [f, g, out], peepholes } => {
                let gate = |name: &str, function: Unary, ix: usize, memory: &str| match *peepholes && ix < 3 {
                    true => both(name, function, &format!("{} + at.more(state, {ix}) * {memory}", sum(ix))),
                    false => both(name, function, &sum(ix)),
                };
                let walk = format!(
                    "        at.for_each_state([=](int state) {{\n        float c = c_first[state];\n        for (int step = \
                     0; step <= LAST; step++) {{\n{}{}{}        c = forget.y * c + input.y * fresh.y;\n        \
                     at.memory[at.at(state, step)] = c;\n        }}\n        }});\n",
                    gate("input", *f, 0, "c"),
                    gate("forget", *f, 2, "c"),
                    gate("fresh", *g, 3, "c"),
                );
                let [p0, p1, p2] = match peepholes {
                    true => [0, 1, 2].map(|ix| format!(" + dz_{ix} * at.more(state, {ix})")),
                    false => [(); 3].map(|()| String::new()),
                };
                let step = incoming(4, false)
                    + "        const float c = step == 0 ? c_first[state] : at.memory[at.at(state, step - 1)], memory = \
                       at.memory[at.at(state, step)];\n"
                    + &gate("input", *f, 0, "c")
                    + &gate("forget", *f, 2, "c")
                    + &gate("fresh", *g, 3, "c")
                    + &both("shown", *out, "memory")
                    + &gate("output", *f, 1, "memory")
                    + "        const float dz_1 = dh * shown.y * output.slope;\n"
                    + &format!(
                        "        const float dc = (step == LAST ? dc_last[state] : at.carry[state]) + dh * output.y * \
                         shown.slope{p1};\n"
                    )
                    + "        const float dz_0 = dc * fresh.y * input.slope, dz_2 = dc * c * forget.slope, dz_3 = dc * \
                       input.y * fresh.slope;\n"
                    + &format!("        at.carry[state] = dc * forget.y{p0}{p2};\n")
                    + &(0..4).map(|ix| set(ix, &format!("dz_{ix}"), &format!("dz_{ix}"))).collect::<String>();
                Phases {
                    before: vec![sums(4, false), walk],
                    step: vec![step],
                    direct: [0, 4],
                    keeps_memory: true,
                    extras: peepholes.then_some(
                        "at.sums[at.sum_at(state, step, which)] * (which == 1 ? at.memory[at.at(state, step)] : step == 0 ? \
                         c_first[state] : at.memory[at.at(state, step - 1)])",
                    ),
                }
            }
            Cell::Gru { activation: [f, g], reset: Reset::AfterProduct } => {
                let step = incoming(3, true)
                    + "        const float h = at.before(state, step), product = at.sums[at.sum_at(state, step, 2)];\n"
                    + &both("update", *f, &sum(0))
                    + &both("reset", *f, &sum(1))
                    + &both("fresh", *g, "at.gates[at.gate_at(state, step, 2)] + reset.y * product")
                    + "        const float dz_update = dh * (h - fresh.y) * update.slope, dz_new = dh * (1.0f - update.y) * \
                       fresh.slope;\n        const float dz_reset = dz_new * product * reset.slope;\n        at.carry[state] = \
                       dh * update.y;\n"
                    + &set(0, "dz_update", "dz_update")
                    + &set(1, "dz_reset", "dz_reset")
                    + &set(2, "dz_new", "dz_new * reset.y");
                Phases {
                    before: vec![sums(3, true)],
                    step: vec![step],
                    direct: [0, 3],
                    keeps_memory: false,
                    extras: Some("at.sums[at.sum_at(state, step, 2)]"),
                }
            }
            Cell::Gru { activation: [f, g], reset: Reset::BeforeProduct } => {
                let reset_of = unary(*f, "at.sums[at.sum_at(state, step, 1)]", "float");
                let kept = format!("{reset_of} * at.before(state, step)");
                let candidate = format!(
                    "        at.products<2, 3>([=](int state, int step) {{ return {kept}; }}, [=](int state, int step, \
                     int gate, float sum) {{\n            at.sums[at.sum_at(state, step, gate)] = sum + \
                     at.gates[at.gate_at(state, step, gate)];\n            at.memory[at.at(state, step)] = {kept};\n        \
                     }});\n"
                );
                let first = incoming(2, true)
                    + &both("update", *f, &sum(0))
                    + &both("fresh", *g, &sum(2))
                    + "        const float dz_update = dh * (at.before(state, step) - fresh.y) * update.slope;\n        const \
                       float dz_new = dh * (1.0f - update.y) * fresh.slope;\n        at.carry[state] = dh * update.y;\n"
                    + &set(0, "dz_update", "dz_update")
                    + &set(2, "dz_new", "dz_new");
                let second = both("reset", *f, &sum(1))
                    + "        const float kept = at.through<2, 3>(state, step);\n        const float dz_reset = kept * \
                       at.before(state, step) * reset.slope;\n        at.carry[state] += kept * reset.y;\n"
                    + &set(1, "dz_reset", "dz_reset");
                Phases {
                    // The gate of the update and of the reset, then the candidate's.
                    before: vec![sums(2, false), candidate],
                    step: vec![first, second],
                    direct: [0, 2],
                    keeps_memory: true,
                    extras: None,
                }
            }
        }
    }

    /// The whole body.
    fn text(&self, op: &RecurrentGradient, [seq, batch, units]: [usize; 3], memories: usize) -> String {
        let ir::ops::Recurrent { cell, direction } = &op.recurrent;
        let (directions, reverse) = (direction.count(), *direction == Direction::Reverse);
        let (gates, extras, has_memory) = (cell.gates(), cell.extras(), cell.has_memory());
        // The operands of the layer, then its result and the gradients of its results.
        let layer = op.layer_operands();
        let first = usize::from(cell.saves_gates());
        let saved = if cell.saves_gates() { "a0" } else { "nullptr" };
        let extra = if 0 < extras { format!("a{}", layer - 1) } else { "nullptr".into() };
        let sums = seq * directions * batch * units * gates;
        let mut text = format!(
            "    constexpr int LAST = {};\n    const Backward<{seq}, {batch}, {directions}, {units}, {gates}, {extras}, \
             {reverse}> at = {{{saved}, a{first}, a{}, {extra}, a{layer}, workspace, workspace + {sums}, workspace + {}}};\n    const float \
             *dy = a{}, *dh_last = a{};\n",
            seq - 1,
            first + 1,
            sums + memories,
            layer + 1,
            layer + 2
        );
        if has_memory {
            text.push_str(&format!("    const float *c_first = a3, *dc_last = a{};\n", layer + 3));
        }
        for (ix, phase) in self.before.iter().enumerate() {
            text.push_str(&format!("    if (iteration == {ix}) {{\n{phase}        return;\n    }}\n"));
        }
        let (before, per_step) = (self.before.len(), self.step.len());
        text.push_str(&format!("    const int turn = (int)iteration - {before};\n"));
        text.push_str(&format!(
            "    if (turn < {}) {{\n        const int step = LAST - turn / {per_step};\n",
            seq * per_step
        ));
        for (ix, phase) in self.step.iter().enumerate() {
            let guard = if per_step == 1 { String::new() } else { format!("if (turn % {per_step} == {ix}) ") };
            text.push_str(&format!("        {guard}at.for_each_state([=](int state) {{\n{phase}        }});\n"));
        }
        text.push_str("        return;\n    }\n");
        let [first, end] = self.direct;
        let carry = if has_memory || matches!(cell, Cell::Rnn { .. }) { "" } else { "at.carry[state] + " };
        let memory = if has_memory { " y3[state] = at.carry[state];" } else { "" };
        text.push_str(&format!(
            "    at.for_each_state([=](int state) {{ y2[state] = {carry}at.through<{first}, {end}>(state, 0);{memory} \
             }});\n"
        ));
        let read = match cell {
            Cell::Gru { reset: Reset::BeforeProduct, .. } => {
                "gate == 2 ? at.memory[at.at(state, step)] : at.before(state, step)"
            }
            _ => "at.before(state, step)",
        };
        text.push_str(&format!("    at.add_weights(y1, [=](int state, int step, int gate) {{ return {read}; }});\n"));
        if let Some(extras) = self.extras {
            text.push_str(&format!(
                "    at.add_extras(y{}, [=](int state, int step, int which) {{ return {extras}; }});\n",
                layer - 1
            ));
        }
        text
    }
}
