//! [`check`]: whether a plan can be run. Runs when a plan is written and again when it is read.

use std::collections::BTreeSet;

use types::{Bytes, Certificate, DType, Scope};

use crate::{
    ArenaLimit, Buffer, BufferIx, ConstantIx, Initial, Operand, Persistence, Phase, Place, Plan, Port, StatePort,
    Training, ValueSpan, residency,
};

/// One reason why a plan cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum PlanError {
    #[error("{who} names {place}, which does not exist")]
    NoSuchPlace { who: String, place: String },
    #[error("{who} ends at byte {end} of {place}, which has {size}")]
    OutsidePlace { who: String, place: String, end: u64, size: Bytes },
    #[error("{who} must not be a constant")]
    WritesConstant { who: String },
    #[error("{who} uses buffer {buffer} at step {step}, but it lives from step {first} to {last}")]
    NotAlive { who: String, buffer: u32, first: u32, last: u32, step: u32 },
    #[error("{who} overlaps {other}, but is not the same bytes")]
    OperandsOverlap { who: String, other: String },
    #[error("{who} must have {want} by its dtype, shape and layout, got {got}")]
    PortSize { who: String, want: Bytes, got: Bytes },
    #[error("buffer {buffer} must live within the {steps} steps, got {first} to {last}")]
    Lifetime { buffer: u32, first: u32, last: u32, steps: u32 },
    #[error("value {value} of buffer {buffer} must have its bytes and its steps within the buffer's")]
    ValueSpan { buffer: u32, value: usize },
    #[error("state `{name}` must be in a buffer that is kept between runs, got buffer {buffer}")]
    StateBuffer { name: String, buffer: u32 },
    #[error("state `{name}` must have initial bytes of {want}, got {got}")]
    StateInitial { name: String, want: Bytes, got: Bytes },
    #[error("two states are named `{name}`")]
    TwoStates { name: String },
    #[error("states `{a}` and `{b}` share bytes")]
    StatesOverlap { a: String, b: String },
    #[error("buffer {buffer} is kept between runs and must live through all {steps} steps, got {first} to {last}")]
    PersistentLifetime { buffer: u32, first: u32, last: u32, steps: u32 },
    #[error("buffer {buffer} is kept between runs, but has no state")]
    NoState { buffer: u32 },
    #[error("input `{name}` must not be in a buffer that is kept between runs, got buffer {buffer}")]
    InputInState { name: String, buffer: u32 },
    #[error("a plan for training must have an {kind} `{name}`{}", .ty.map(|ty| format!(" of `{ty}`")).unwrap_or_default())]
    TrainingPort { kind: &'static str, name: String, ty: Option<&'static str> },
    #[error("constant {constant} must end within the section of {size}")]
    ConstantOutside { constant: u32, size: Bytes },
    #[error("a plan that reads constants in a run must be for a processor and for inference")]
    ResidencyTarget,
    #[error("arena and constants in memory must have at most {limit} together, got {arena} and {size}")]
    ResidencyLimit { arena: Bytes, size: Bytes, limit: Bytes },
    #[error("there must be a checksum for each of the {want} constants, got {got}")]
    Checksums { want: usize, got: usize },
    #[error("constant {constant} must start at a page boundary to be read in a run, got byte {offset}")]
    ConstantAlignment { constant: u32, offset: u64 },
    #[error("{who} names constant {constant}, which does not exist")]
    NoSuchConstant { who: String, constant: u32 },
    #[error("{who} must be in memory within the {steps} steps, got {first} to {last}")]
    ResidentSteps { who: String, first: u32, last: u32, steps: u32 },
    #[error("{who} must be in memory at all {steps} steps, got {first} to {last}")]
    KeptSteps { who: String, first: u32, last: u32, steps: u32 },
    #[error("{who} must not start before the read in front of it, got step {step}")]
    ReadOrder { who: String, step: u32 },
    #[error("{who} has no step that uses it")]
    UnusedRead { who: String },
    #[error("constant {constant} is in memory twice at step {step}")]
    ResidentTwice { constant: u32, step: u32 },
    #[error("the constants in memory are placed wrong: {0}")]
    ResidentPlacement(String),
    #[error("step {step} (`{scope}`) uses constant {constant}, which is not in memory then")]
    NotResident { step: u32, scope: Scope, constant: u32 },
    #[error("the placement is wrong: {0}")]
    Placement(String),
    #[error("the lower bound of the arena must be {want}, the peak of its live buffers, got {got}")]
    LowerBound { want: Bytes, got: Bytes },
    #[error(
        "the certificate of the {subject} must have lower bound <= least <= value, got {} <= {} <= {}",
        .certificate.lower_bound, .certificate.least, .certificate.value
    )]
    Certificate { subject: &'static str, certificate: Certificate },
    #[error("the peak must be a step with live buffers of the arena's lower bound {want}, got step {step} with {got}")]
    PeakStep { step: u32, want: Bytes, got: Bytes },
    #[error("the peak of the order must be the arena's lower bound {want}, got {got}")]
    Peak { want: Bytes, got: Bytes },
    #[error("the bound over any kernels must be at most the arena's lower bound {want}, got {got}")]
    AnyKernels { want: Bytes, got: Bytes },
    #[error("an alternative must save less than the arena's lower bound {want}, got {got} at `{scope}`")]
    Alternative { scope: Scope, want: Bytes, got: Bytes },
    #[error("a choice must name a step and its kernel, got `{kernel}` at `{scope}`")]
    Choice { scope: Scope, kernel: String },
    #[error(
        "an arena of {arena} must have a limit of at least that and less than the arena without a limit, and a ratio of \
         times, got {} < {} at {}", .limit.bytes, .limit.unlimited, .limit.time_permille
    )]
    Limit { arena: Bytes, limit: ArenaLimit },
    #[error("a plan must have fewer than 2^32 {0}")]
    TooMany(&'static str),
    #[error("arena and constants must have less than 2^63 bytes together, got {} and {}", .arena.0, .constants.0)]
    TooLarge { arena: Bytes, constants: Bytes },
}

/// Checks a plan without running it.
///
/// # Errors
/// Every rule that the plan breaks.
pub fn check(plan: &Plan) -> Result<(), Vec<PlanError>> {
    let mut errors = Vec::new();
    for (count, noun) in
        [(plan.steps.len(), "steps"), (plan.buffers.len(), "buffers"), (plan.constants.len(), "constants")]
    {
        if u32::try_from(count).is_err() {
            return Err(vec![PlanError::TooMany(noun)]);
        }
    }
    // Sums and differences of bytes then fit into 64 bits with a sign.
    let (arena, constants) = (plan.arena.size(), plan.constants_size);
    if arena.0.checked_add(constants.0).is_none_or(|sum| 1 << 63 <= sum) {
        return Err(vec![PlanError::TooLarge { arena, constants }]);
    }
    check_placement(plan, &mut errors);
    for (ix, constant) in plan.constants.iter().enumerate() {
        if constant.offset.0.checked_add(constant.size.0).is_none_or(|end| plan.constants_size.0 < end) {
            errors.push(PlanError::ConstantOutside { constant: ix as u32, size: plan.constants_size });
        }
    }
    let last = plan.step_count() - 1;
    plan.inputs.iter().for_each(|port| check_port(plan, port, "input", 0, &mut errors));
    plan.outputs.iter().for_each(|port| check_port(plan, port, "output", last, &mut errors));
    for port in &plan.inputs {
        if let Place::Constant(_) = port.operand.place {
            errors.push(PlanError::WritesConstant { who: format!("input `{}`", port.name) });
        }
    }
    residency::check(plan, &mut errors);
    check_choices(plan, &mut errors);
    check_states(plan, &mut errors);
    check_phase(plan, &mut errors);
    for ix in 0..plan.steps.len() {
        check_step(plan, ix as u32, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Lifetimes and value spans; then, if they are valid, `arena::check` over all buffers and the certificates.
fn check_placement(plan: &Plan, errors: &mut Vec<PlanError>) {
    let steps = plan.step_count();
    for (ix, buffer) in plan.buffers.iter().enumerate() {
        if buffer.last_step < buffer.first_step || steps <= buffer.last_step {
            let (first, last) = (buffer.first_step, buffer.last_step);
            errors.push(PlanError::Lifetime { buffer: ix as u32, first, last, steps });
        }
    }
    for (ix, buffer) in plan.buffers.iter().enumerate() {
        let is_inside = |span: &ValueSpan| {
            let end = span.offset.0.checked_add(span.size().0);
            end.is_some_and(|end| end <= buffer.size.0)
                && buffer.first_step <= span.first_step
                && span.first_step <= span.last_step
                && span.last_step <= buffer.last_step
        };
        if let Some(value) = buffer.values.iter().position(|span| !is_inside(span)) {
            errors.push(PlanError::ValueSpan { buffer: ix as u32, value });
        }
    }
    if !errors.is_empty() {
        return;
    }
    let problem = plan.problem();
    let offsets: Vec<Bytes> = plan.buffers.iter().map(|buffer| buffer.offset).collect();
    if let Err(violations) = arena::check(&problem, &offsets, plan.arena.size()) {
        errors.extend(violations.iter().map(|violation| PlanError::Placement(violation.to_string())));
        return;
    }
    let want = arena::lower_bound(&problem).height;
    let got = plan.arena.certificate.lower_bound;
    if got != want {
        errors.push(PlanError::LowerBound { want, got });
    }
    let step = plan.arena.peak_step;
    let occupied = problem.buffers.iter().filter_map(|buffer| buffer.occupied(step));
    // At one step buffers are disjoint and inside the arena, so that the sum does not wrap.
    let live: Bytes = occupied.map(|window| window.high - window.low).sum();
    if steps <= step || live != want {
        errors.push(PlanError::PeakStep { step, want, got: live });
    }
    for (subject, certificate) in [("arena", plan.arena.certificate), ("order", plan.order)] {
        if !certificate.is_consistent() {
            errors.push(PlanError::Certificate { subject, certificate });
        }
    }
    if plan.order.value != got {
        errors.push(PlanError::Peak { want: got, got: plan.order.value });
    }
    if got < plan.any_kernels {
        errors.push(PlanError::AnyKernels { want: got, got: plan.any_kernels });
    }
    let arena = plan.arena.size();
    let is_kept = |limit: &ArenaLimit| arena <= limit.bytes && limit.bytes < limit.unlimited && 0 < limit.time_permille;
    if let Some(limit) = plan.limit.filter(|limit| !is_kept(limit)) {
        errors.push(PlanError::Limit { arena, limit });
    }
    for other in plan.alternatives.iter().filter(|other| got <= other.saves) {
        errors.push(PlanError::Alternative { scope: other.scope.clone(), want: got, got: other.saves });
    }
}

/// The choices between kernels.
fn check_choices(plan: &Plan, errors: &mut Vec<PlanError>) {
    let steps: BTreeSet<(&Scope, &str)> = plan.steps.iter().map(|step| (&step.scope, &step.kernel[..])).collect();
    for choice in plan.choices.iter().filter(|choice| !steps.contains(&(&choice.scope, &choice.taken[..]))) {
        errors.push(PlanError::Choice { scope: choice.scope.clone(), kernel: choice.taken.clone() });
    }
}

/// States and the buffers that are kept between runs.
fn check_states(plan: &Plan, errors: &mut Vec<PlanError>) {
    let steps = plan.step_count();
    let buffer_of = |port: &Port| match port.operand.place {
        Place::Buffer(BufferIx(ix)) => plan.buffers.get(ix as usize).map(|buffer| (ix, buffer)),
        Place::Constant(_) => None,
    };
    for (ix, buffer) in plan.buffers.iter().enumerate() {
        let buffer_ix = ix as u32;
        if buffer.persistence == Persistence::Run {
            continue;
        }
        if (buffer.first_step, buffer.last_step) != (0, steps - 1) {
            let (first, last) = (buffer.first_step, buffer.last_step);
            errors.push(PlanError::PersistentLifetime { buffer: buffer_ix, first, last, steps });
        }
        if plan.states.iter().all(|state| buffer_of(&state.port).is_none_or(|(ix, _)| ix != buffer_ix)) {
            errors.push(PlanError::NoState { buffer: buffer_ix });
        }
    }
    for (ix, StatePort { port, initial }) in plan.states.iter().enumerate() {
        for step in [0, steps - 1] {
            check_port(plan, port, "state", step, errors);
        }
        let name = || port.name.clone();
        match (port.operand.place, buffer_of(port)) {
            (Place::Constant(_), _) => errors.push(PlanError::WritesConstant { who: format!("state `{}`", port.name) }),
            (_, Some((buffer, Buffer { persistence: Persistence::Run, .. }))) => {
                errors.push(PlanError::StateBuffer { name: name(), buffer });
            }
            _ => {}
        }
        if let Initial::Constant(ConstantIx(constant)) = initial {
            let got = plan.constants.get(*constant as usize).map_or(Bytes::ZERO, |constant| constant.size);
            if got != port.operand.size {
                errors.push(PlanError::StateInitial { name: name(), want: port.operand.size, got });
            }
        }
        for other in plan.states[..ix].iter().map(|state| &state.port) {
            if other.name == port.name {
                errors.push(PlanError::TwoStates { name: name() });
            }
            let (a, b) = (plan.arena_range(&other.operand), plan.arena_range(&port.operand));
            if a.zip(b).is_some_and(|(a, b)| a.start < b.end && b.start < a.end) {
                errors.push(PlanError::StatesOverlap { a: other.name.clone(), b: name() });
            }
        }
    }
    for port in &plan.inputs {
        if let Some((buffer, Buffer { persistence: Persistence::Session, .. })) = buffer_of(port) {
            errors.push(PlanError::InputInState { name: port.name.clone(), buffer });
        }
    }
}

/// The ports that the loop of a training uses.
fn check_phase(plan: &Plan, errors: &mut Vec<PlanError>) {
    let Some(training) = plan.phase.training() else { return };
    let mut require = |ports: &[Port], kind, name: &str, scalar: Option<(DType, &'static str)>| {
        let fits = |port: &&Port| scalar.is_none_or(|(dtype, _)| port.dtype == dtype && port.shape.rank() == 0);
        if !ports.iter().any(|port| port.name == name && fits(&port)) {
            let ty = scalar.map(|(_, ty)| ty);
            errors.push(PlanError::TrainingPort { kind, name: name.to_string(), ty });
        }
    };
    if let Phase::Training(_) = plan.phase {
        require(&plan.inputs, "input", Training::LEARNING_RATE, Some((DType::F32, "f32[]")));
        require(&plan.outputs, "output", Training::LOSS, Some((DType::F32, "f32[]")));
    } else {
        require(&plan.outputs, "output", Training::LOSS, None);
    }
    for label in &training.labels {
        require(&plan.inputs, "input", label, None);
    }
    if let Some(prediction) = &training.prediction {
        require(&plan.outputs, "output", prediction, None);
    }
}

fn check_port(plan: &Plan, port: &Port, kind: &str, step: u32, errors: &mut Vec<PlanError>) {
    let who = format!("{kind} `{}`", port.name);
    let want = port.layout.size(&port.shape, port.dtype);
    if want != port.operand.size {
        errors.push(PlanError::PortSize { who: who.clone(), want, got: port.operand.size });
    }
    check_operand(plan, &port.operand, &who, step, errors);
}

fn check_step(plan: &Plan, ix: u32, errors: &mut Vec<PlanError>) {
    let step = &plan.steps[ix as usize];
    let who = |kind: &str, operand: usize| format!("{kind} {operand} of step {ix} (`{}`)", step.scope);
    let named = |kind: &'static str, operands: &[Operand]| -> Vec<(String, Operand)> {
        operands.iter().enumerate().map(|(at, operand)| (who(kind, at), *operand)).collect()
    };
    let inputs = named("input", &step.inputs);
    let mut written = named("output", &step.outputs);
    written.extend(step.workspace.iter().map(|operand| (who("workspace", 0), *operand)));

    for (who, operand) in inputs.iter().chain(&written) {
        check_operand(plan, operand, who, ix, errors);
    }
    for (at, (who, operand)) in written.iter().enumerate() {
        if let Place::Constant(_) = operand.place {
            errors.push(PlanError::WritesConstant { who: who.clone() });
        }
        let range = plan.arena_range(operand);
        let is_output = at < step.outputs.len();
        for (other, against) in inputs.iter().chain(&written[..at]) {
            let other_range = plan.arena_range(against);
            let same = is_output && range == other_range && written.iter().all(|(written, _)| written != other);
            let overlap = range
                .as_ref()
                .zip(other_range.as_ref())
                .is_some_and(|(a, b)| a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty());
            if overlap && !same {
                errors.push(PlanError::OperandsOverlap { who: who.clone(), other: other.clone() });
            }
        }
    }
}

fn check_operand(plan: &Plan, operand: &Operand, who: &str, step: u32, errors: &mut Vec<PlanError>) {
    let (place, size) = match operand.place {
        Place::Buffer(BufferIx(ix)) => {
            let buffer = plan.buffers.get(ix as usize);
            if let Some(buffer) = buffer
                && !(buffer.first_step..=buffer.last_step).contains(&step)
            {
                let (first, last) = (buffer.first_step, buffer.last_step);
                errors.push(PlanError::NotAlive { who: who.to_string(), buffer: ix, first, last, step });
            }
            (format!("buffer {ix}"), buffer.map(|buffer| buffer.size))
        }
        Place::Constant(ConstantIx(ix)) => {
            (format!("constant {ix}"), plan.constants.get(ix as usize).map(|constant| constant.size))
        }
    };
    let Some(size) = size else {
        errors.push(PlanError::NoSuchPlace { who: who.to_string(), place });
        return;
    };
    let end = operand.offset.0.saturating_add(operand.size.0);
    if size.0 < end {
        errors.push(PlanError::OutsidePlace { who: who.to_string(), place, end, size });
    }
}
