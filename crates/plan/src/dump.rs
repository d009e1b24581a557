//! [`dump`]: a plan as text, one line for each port, buffer, constant and step.

use std::fmt::Write;

use crate::{Initial, Operand, Persistence, Place, Plan, StatePort};

/// Prints a plan without the bytes of constants and kernels.
pub fn dump(plan: &Plan) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "plan `{}` for {}, batch {}", plan.model, plan.target, plan.batch);
    let _ = writeln!(
        text,
        "arena {} bytes, lower bound {} at step {}, alignment {}",
        plan.arena.size().0,
        plan.arena.certificate.lower_bound.0,
        plan.arena.peak_step,
        plan.arena.alignment.0
    );
    for (kind, ports) in [("input", &plan.inputs), ("output", &plan.outputs)] {
        for port in ports {
            let _ = writeln!(text, "{kind} `{}` {}{} = {}", port.name, port.dtype, port.shape, operand(&port.operand));
        }
    }
    for StatePort { port, initial } in &plan.states {
        let initial = match initial {
            Initial::Zeros => "zeros".to_string(),
            Initial::Constant(ix) => format!("c{}", ix.0),
        };
        let _ = writeln!(
            text,
            "state `{}` {}{} = {}, at first {initial}",
            port.name,
            port.dtype,
            port.shape,
            operand(&port.operand)
        );
    }
    for (ix, buffer) in plan.buffers.iter().enumerate() {
        let kept = if buffer.persistence == Persistence::Session { ", kept between runs" } else { "" };
        let _ = writeln!(
            text,
            "b{ix}: {} bytes at {}, steps {}..={}{kept}, {}",
            buffer.size.0, buffer.offset.0, buffer.first_step, buffer.last_step, buffer.tag
        );
    }
    for (ix, constant) in plan.constants.iter().enumerate() {
        let _ = writeln!(text, "c{ix}: {} bytes at {}, {}", constant.size.0, constant.offset.0, constant.tag);
    }
    if let Some(residency) = &plan.residency {
        let _ = writeln!(text, "block {} bytes, with the arena at most {}", residency.size.0, residency.limit.0);
        for (kind, residents) in [("kept", &residency.kept), ("read", &residency.reads)] {
            for own in residents {
                let (first, last) = (own.first_step, own.last_step);
                let _ = writeln!(text, "{kind} c{} at {}, steps {first}..={last}", own.constant.0, own.offset.0);
            }
        }
    }
    for (ix, step) in plan.steps.iter().enumerate() {
        let list = |operands: &[Operand]| operands.iter().map(operand).collect::<Vec<_>>().join(", ");
        let workspace = step.workspace.iter().map(|at| format!(" with {}", operand(at))).collect::<String>();
        let _ = writeln!(
            text,
            "{ix}: {} {} ({}) -> {}{workspace} at `{}`",
            step.kernel,
            step.label,
            list(&step.inputs),
            list(&step.outputs),
            step.scope
        );
    }
    text
}

fn operand(operand: &Operand) -> String {
    let name = match operand.place {
        Place::Buffer(ix) => format!("b{}", ix.0),
        Place::Constant(ix) => format!("c{}", ix.0),
    };
    format!("{name}[{}+{}]", operand.offset.0, operand.size.0)
}
