//! Nodes whose state goes from one step of a sequence to the next: a launch a step, or two where a gate has to be there for
//! all units before another is computed.

use ir::Call;
use ir::ops::Recurrent;
use types::Bytes;
use types::recurrent::{Cell, Direction, Reset};

use super::c_source::unary;
use super::emit::{Emitted, GRID_MAX, KernelKind, THREADS, Template, call};
use crate::NodeView;

/// Units of a block, one a warp.
const UNITS: usize = THREADS as usize / 32;

pub(super) fn recurrent(node: &NodeView, op: &Recurrent) -> Result<Vec<Call>, String> {
    node.all_f32()?;
    let (shape, units) = (&node.input(0).shape, node.input(1).shape[2]);
    let (seq, batch, directions) = (shape[0], shape[1], op.direction.count());
    if seq * batch * units == 0 {
        return Err("its kernel has no empty sequences, batches or states".into());
    }
    if (GRID_MAX as usize) < batch {
        return Err(format!("{batch} rows are more than a grid has"));
    }
    let (phases, body) = body(&op.cell);
    let iterations = phases * seq;
    let steps = match phases {
        1 => "    const int step = (int)iteration;\n".to_string(),
        _ => format!("    const int step = (int)iteration / {phases}, phase = (int)iteration % {phases};\n"),
    };
    let (gates, reverse) = (op.cell.gates(), op.direction == Direction::Reverse);
    let body = format!(
        "{steps}    const Walk<{seq}, {batch}, {directions}, {units}, {gates}, {reverse}> at = {{step}};\n    if ({units} <= \
         at.unit) return;\n    const float* h = at.before(a2, y0);\n{body}    y0[at.result(step) + at.unit] = next;\n    if \
         (step == {}) y1[at.state() + at.unit] = next;\n",
        seq - 1
    );
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let mut parameters: Vec<(String, String)> =
        operands.iter().map(|ix| ("const float*".into(), format!("a{ix}"))).collect();
    let results = 2 + usize::from(op.cell.has_memory());
    parameters.extend((0..results).map(|ix| ("float*".into(), format!("y{ix}"))));
    if 1 < phases {
        parameters.push(("float*".into(), "kept".into()));
    }
    let emitted = Emitted {
        kind: KernelKind::Recurrent,
        parameters,
        body,
        grid: [units.div_ceil(UNITS) as u32, directions as u32, batch as u32],
        threads: THREADS,
        iterations: Some(
            u32::try_from(iterations).map_err(|_| format!("{iterations} steps are more than can be counted"))?,
        ),
        needs: vec![Template::Pointwise, Template::Recurrent],
    };
    let label = format!("{} of {seq} steps, {directions} x {batch} x {units}", op.cell.name());
    let mut call = call(emitted, label, &operands, &[]);
    if 1 < phases {
        call.workspace = Bytes((directions * batch * units * size_of::<f32>()) as u64);
    }
    Ok(vec![call])
}

/// The number of launches for each step of the sequence, and the code of the first lanes: `next`, the state after the
/// step. [`Cell`] has the formulas.
fn body(cell: &Cell) -> (usize, String) {
    let first = "    if (at.lane != 0) return;\n";
    match cell {
        Cell::Rnn { activation } => {
            let next = unary(*activation, "at.gate(a0, 0) + sum", "float");
            (1, format!("    const float sum = at.product(a1, h, 0);\n{first}    const float next = {next};\n"))
        }
        Cell::Lstm { activation: [f, g, out], peepholes } => {
            let sums =
                (0..4).map(|gate| format!("sum{gate} = at.product(a1, h, {gate})")).collect::<Vec<_>>().join(", ");
            // Peepholes are of `i`, `o` and `f`: the first three gates.
            let gate = |gate: usize, function, memory: &str| {
                let peephole = match *peepholes && gate < 3 {
                    true => format!(" + at.extra<3>(a4, {gate}) * {memory}"),
                    false => String::new(),
                };
                unary(function, &format!("at.gate(a0, {gate}) + sum{gate}{peephole}"), "float")
            };
            let (input, forget) = (gate(0, *f, "c"), gate(2, *f, "c"));
            let (candidate, output) = (gate(3, *g, "c"), gate(1, *f, "memory"));
            let end = unary(*out, "memory", "float");
            let body = format!(
                "    const float {sums};\n{first}    float* own = y2 + at.state() + at.unit;\n    const float c = step == 0 ? \
                 a3[at.state() + at.unit] : *own;\n    const float input = {input}, forget = {forget};\n    const float \
                 memory = forget * c + input * {candidate};\n    *own = memory;\n    const float next = {output} * {end};\n"
            );
            (1, body)
        }
        Cell::Gru { activation: [f, g], reset: Reset::AfterProduct } => {
            let (update, reset) =
                (unary(*f, "at.gate(a0, 0) + sum0", "float"), unary(*f, "at.gate(a0, 1) + sum1", "float"));
            let candidate = unary(*g, "at.gate(a0, 2) + reset * (sum2 + at.extra<1>(a3, 0))", "float");
            let sums =
                (0..3).map(|gate| format!("sum{gate} = at.product(a1, h, {gate})")).collect::<Vec<_>>().join(", ");
            let body = format!(
                "    const float {sums};\n{first}    const float update = {update}, reset = {reset};\n    const float next = \
                 (1.0f - update) * {candidate} + update * h[at.unit];\n"
            );
            (1, body)
        }
        Cell::Gru { activation: [f, g], reset: Reset::BeforeProduct } => {
            let (update, reset) =
                (unary(*f, "at.gate(a0, 0) + sum0", "float"), unary(*f, "at.gate(a0, 1) + sum", "float"));
            let candidate = unary(*g, "at.gate(a0, 2) + sum2", "float");
            let body = format!(
                "    if (phase == 0) {{\n        const float sum = at.product(a1, h, 1);\n        if (at.lane == 0) \
                 kept[at.state() + at.unit] = {reset} * h[at.unit];\n        return;\n    }}\n    const float sum0 = \
                 at.product(a1, h, 0), sum2 = at.product(a1, kept + at.state(), 2);\n{first}    const float update = \
                 {update};\n    const float next = (1.0f - update) * {candidate} + update * h[at.unit];\n"
            );
            (2, body)
        }
    }
}
