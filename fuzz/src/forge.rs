//! Forged plans: compiled plans, of training too, whose fields are changed. A plan that `plan::check` accepts is written and
//! read, keeps the rules as a second judge states them, stays inside its arena in a run, and has reports.

use std::sync::{Arc, OnceLock};

use compiler::source::TrainableModel;
use ir::ops::{Binary, MatMul};
use ir::{Graph, Trainable};
use lower::cpu::CpuTarget;
use passes::training::Recipe;
use plan::{
    Alternative, ArenaLimit, BufferIx, ConstantIx, Initial, Operand, Persistence, Phase, Place, Plan, Port, Training,
    ValueSpan, image,
};
use report::{Description, Report, View, ViewOptions};
use runtime::{Host, audit};
use types::{Bytes, Certificate, DType, Layout, Scope, Shape, Tensor, pointwise};

use crate::models::{Choices, compile};

/// The largest arena and the largest constants that are run.
const RUN_MAX: u64 = 1 << 20;

/// A model's plans, and the constants that they share.
struct Set {
    plans: Vec<Plan>,
    constants: Vec<u8>,
}

/// A step of training with its evaluation, an arena with a limit, states, and plans of single operators.
fn pool() -> &'static [Set] {
    static POOL: OnceLock<Vec<Set>> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut sets = vec![trained("softmax_cross_entropy", "adam:lr=0.05"), trained("mse", "sgd:momentum=0.9")];
        let small = |case: &cases::Case| case.graph.values().values().all(|value| value.ty.shape.elements() < 200);
        let with_state = |case: &cases::Case| !case.graph.states().is_empty();
        let cases: Vec<cases::Case> = cases::all().into_iter().filter(small).collect();
        let (states, others): (Vec<cases::Case>, Vec<cases::Case>) = cases.into_iter().partition(with_state);
        let chosen = states.into_iter().take(6).chain(others.into_iter().step_by(23).take(20));
        for (ix, case) in chosen.enumerate() {
            let Some(compiled) = compile(case.graph) else { continue };
            let mut plan = compiled.plan;
            let arena = plan.arena.size();
            plan.limit = (ix % 2 == 0).then(|| ArenaLimit {
                bytes: arena + Bytes(64),
                unlimited: arena + Bytes(128),
                time_permille: 1100,
            });
            sets.push(Set { plans: vec![plan], constants: compiled.constants });
        }
        sets
    })
}

/// One layer that is trained.
fn trained(loss: &str, optimizer: &str) -> Set {
    let mut graph = Graph::new("trained");
    let x = graph.add_input("data", DType::F32, Shape::from([2, 3]));
    let weight = graph.add_weight("weight", Tensor::from_fn(Shape::from([3, 4]), |at| at as f32 * 0.1 - 0.5));
    let bias = graph.add_weight("bias", Tensor::full(Shape::from([4]), 0.25f32));
    let product = graph.add1(MatMul::default().into(), &[x, weight], Scope::new("product")).expect("the shapes fit");
    let sum = Binary(pointwise::Binary::Add).into();
    let y = graph.add1(sum, &[product, bias], Scope::new("sum")).expect("the shapes fit");
    graph.set_outputs(vec![("scores".into(), y)]);
    let model = TrainableModel { trainable: Trainable::from(graph), preprocess: None, labels: Vec::new() };
    let recipe = Recipe {
        loss: loss.parse().ok(),
        optimizer: optimizer.parse().expect("it is an optimizer"),
        ..Recipe::default()
    };
    let goal = compiler::Goal::default();
    let compiled = compiler::compile_training(model, &recipe, &CpuTarget::new(), goal, |_, _| {});
    let [step, evaluation] = compiled.expect("it can be trained");
    Set { plans: vec![step.plan, evaluation.plan], constants: step.constants }
}

/// Forges the plans of an input. Returns whether they are accepted.
pub(crate) fn run(bytes: &[u8]) -> bool {
    let mut choices = Choices { bytes };
    let sets = pool();
    let set = &sets[choices.below(sets.len())];
    let mut plans = set.plans.clone();
    if choices.below(6) == 0 {
        plans.rotate_left(1);
    }
    for _ in 0..choices.below(6) {
        let ix = choices.below(plans.len());
        change(&mut plans[ix], &mut choices);
    }
    // Most forgeries would be refused for a certificate that is not that of their buffers.
    if choices.below(8) != 0 {
        plans.iter_mut().for_each(certify);
    }
    accepted(&plans, &set.constants)
}

/// A number near `old`, or one at which checks change their mind.
fn number(old: u64, choices: &mut Choices) -> u64 {
    match choices.below(12) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old.wrapping_add(64),
        3 => old.wrapping_sub(64),
        4 => old.wrapping_mul(2),
        5 => old / 2,
        6 => 0,
        7 => u64::MAX - choices.below(65) as u64,
        8 => u64::from(u32::MAX),
        9 => 1 << choices.below(64),
        _ => choices.below(300) as u64,
    }
}

fn small(old: u32, choices: &mut Choices) -> u32 {
    number(u64::from(old), choices) as u32
}

fn bytes(value: &mut Bytes, choices: &mut Choices) {
    value.0 = number(value.0, choices);
}

/// One of a list, if it has any.
fn one<'a, T>(items: &'a mut [T], choices: &mut Choices) -> Option<&'a mut T> {
    let length = items.len();
    items.get_mut(choices.below(length))
}

fn change_operand(operand: &mut Operand, choices: &mut Choices) {
    match choices.below(4) {
        0 => bytes(&mut operand.offset, choices),
        1 => bytes(&mut operand.size, choices),
        2 => {
            let (buffer, constant) = match operand.place {
                Place::Buffer(BufferIx(ix)) | Place::Constant(ConstantIx(ix)) => (ix, small(ix, choices)),
            };
            operand.place = match choices.below(2) {
                0 => Place::Buffer(BufferIx(constant)),
                _ => Place::Constant(ConstantIx(buffer)),
            };
        }
        _ => {
            if let Place::Buffer(BufferIx(ix)) = &mut operand.place {
                *ix = small(*ix, choices);
            }
        }
    }
}

fn change_type(dtype: &mut DType, shape: &mut Shape, layout: &mut Layout, choices: &mut Choices) {
    match choices.below(5) {
        0 => *dtype = [DType::F32, DType::F64, DType::U8, DType::I64, DType::Bf16, DType::Bool][choices.below(6)],
        1 => {
            if let Some(extent) = one(shape, choices) {
                *extent = number(*extent as u64, choices) as usize;
            }
        }
        2 => shape.push(choices.below(3)),
        3 => *shape = Shape::from(&shape[..shape.rank().saturating_sub(1)]),
        _ => {
            let blocked = Layout::ChannelsBlocked(number(16, choices) as u16);
            *layout = [Layout::RowMajor, Layout::ChannelsLast, blocked][choices.below(3)];
        }
    }
}

fn change_port(port: &mut Port, choices: &mut Choices) {
    match choices.below(3) {
        0 => change_operand(&mut port.operand, choices),
        1 => change_type(&mut port.dtype, &mut port.shape, &mut port.layout, choices),
        _ => port.name = names()[choices.below(names().len())].into(),
    }
}

/// Names that plans give a meaning.
fn names() -> [&'static str; 8] {
    ["", "data", "weight", "label", Training::LOSS, Training::LEARNING_RATE, Training::STEP, Training::KEY]
}

fn change_certificate(certificate: &mut Certificate, choices: &mut Choices) {
    let field = [&mut certificate.value, &mut certificate.lower_bound, &mut certificate.least];
    let [value, lower, least] = field;
    bytes([value, lower, least][choices.below(3)], choices);
}

fn change_span(span: &mut ValueSpan, choices: &mut Choices) {
    match choices.below(4) {
        0 => bytes(&mut span.offset, choices),
        1 => span.first_step = small(span.first_step, choices),
        2 => span.last_step = small(span.last_step, choices),
        _ => change_type(&mut span.dtype, &mut span.shape, &mut span.layout, choices),
    }
}

fn change(plan: &mut Plan, choices: &mut Choices) {
    match choices.below(16) {
        0 | 1 => {
            let Some(step) = one(&mut plan.steps, choices) else { return };
            let mut operands: Vec<&mut Operand> =
                step.inputs.iter_mut().chain(&mut step.outputs).chain(&mut step.workspace).collect();
            let length = operands.len();
            if let Some(operand) = operands.get_mut(choices.below(length)) {
                change_operand(operand, choices);
            }
        }
        2 | 3 => {
            let Some(buffer) = one(&mut plan.buffers, choices) else { return };
            match choices.below(5) {
                0 => bytes(&mut buffer.size, choices),
                1 => bytes(&mut buffer.offset, choices),
                2 => buffer.first_step = small(buffer.first_step, choices),
                3 => buffer.last_step = small(buffer.last_step, choices),
                _ => {
                    buffer.persistence = match buffer.persistence {
                        Persistence::Run => Persistence::Session,
                        Persistence::Session => Persistence::Run,
                    }
                }
            }
        }
        4 => {
            let Some(buffer) = one(&mut plan.buffers, choices) else { return };
            match one(&mut buffer.values, choices) {
                Some(span) if choices.below(4) != 0 => change_span(span, choices),
                Some(span) => {
                    let copy = span.clone();
                    buffer.values.push(copy);
                }
                None => {}
            }
        }
        5 => {
            let Some(constant) = one(&mut plan.constants, choices) else { return };
            match choices.below(3) {
                0 => bytes(&mut constant.offset, choices),
                1 => bytes(&mut constant.size, choices),
                _ => change_type(&mut constant.dtype, &mut constant.shape, &mut Layout::default(), choices),
            }
        }
        6 | 7 => {
            let ports = plan.inputs.iter_mut().chain(&mut plan.outputs);
            let mut ports: Vec<&mut Port> = ports.chain(plan.states.iter_mut().map(|state| &mut state.port)).collect();
            let length = ports.len();
            if let Some(port) = ports.get_mut(choices.below(length)) {
                change_port(port, choices);
            }
        }
        8 => {
            let Some(state) = one(&mut plan.states, choices) else { return };
            match choices.below(3) {
                0 => state.initial = Initial::Zeros,
                1 => state.initial = Initial::Constant(ConstantIx(choices.below(4) as u32)),
                _ => {
                    let copy = state.clone();
                    plan.states.push(copy);
                }
            }
        }
        9 => match choices.below(4) {
            0 => bytes(&mut plan.arena.alignment, choices),
            1 => plan.arena.peak_step = small(plan.arena.peak_step, choices),
            2 => change_certificate(&mut plan.arena.certificate, choices),
            _ => change_certificate(&mut plan.order, choices),
        },
        10 => match &mut plan.limit {
            Some(limit) => match choices.below(4) {
                0 => bytes(&mut limit.bytes, choices),
                1 => bytes(&mut limit.unlimited, choices),
                2 => limit.time_permille = number(limit.time_permille, choices),
                _ => plan.limit = None,
            },
            None => {
                let arena = plan.arena.size();
                plan.limit = Some(ArenaLimit { bytes: arena, unlimited: arena, time_permille: 1000 });
            }
        },
        11 => {
            let (mut saves, time) = (plan.arena.size(), number(1000, choices));
            bytes(&mut saves, choices);
            let (scope, change, other_time) = (Scope::new("other"), "other".into(), number(time, choices));
            plan.alternatives.push(Alternative { scope, change, saves, time, other_time });
        }
        12 => {
            let length = plan.steps.len();
            let (a, b) = (choices.below(length), choices.below(length));
            match choices.below(4) {
                0 if 0 < length => plan.steps.swap(a, b),
                1 if 0 < length => drop(plan.steps.remove(a)),
                2 if 0 < length => plan.steps.push(plan.steps[a].clone()),
                _ => {
                    let Some(step) = one(&mut plan.steps, choices) else { return };
                    let flops = number(step.flops, choices);
                    step.flops = flops;
                    if let Some(byte) = one(&mut step.code, choices) {
                        *byte = choices.below(256) as u8;
                    }
                }
            }
        }
        13 => change_phase(plan, choices),
        14 => match choices.below(5) {
            0 => bytes(&mut plan.constants_size, choices),
            1 => bytes(&mut plan.any_kernels, choices),
            2 => plan.batch = number(plan.batch, choices),
            3 => plan.flops = number(plan.flops, choices),
            _ => plan.parameters = number(plan.parameters, choices),
        },
        _ => {
            let length = plan.buffers.len();
            let (a, b) = (choices.below(length), choices.below(length));
            if a < length && b < length {
                let offset = plan.buffers[a].offset;
                plan.buffers[a].offset = plan.buffers[b].offset;
                plan.buffers[b].offset = offset;
            }
        }
    }
}

fn change_phase(plan: &mut Plan, choices: &mut Choices) {
    let training = match &mut plan.phase {
        Phase::Inference => {
            let training = Training { labels: vec!["label".into()], ..Training::default() };
            plan.phase = if choices.below(2) == 0 { Phase::Training(training) } else { Phase::Evaluation(training) };
            return;
        }
        Phase::Training(training) | Phase::Evaluation(training) => training,
    };
    match choices.below(8) {
        0 => training.labels.push(names()[choices.below(names().len())].into()),
        1 => drop(training.labels.pop()),
        2 => training.prediction = (choices.below(2) == 0).then(|| names()[choices.below(names().len())].into()),
        3 => training.ignored_label = Some(number(0, choices) as i64),
        4 => training.accumulate = small(training.accumulate, choices),
        5 => training.transposed.push(names()[choices.below(names().len())].into()),
        6 => training.learning_rate = f32::from_bits(small(0, choices)),
        _ => plan.phase = Phase::Inference,
    }
}

/// Gives a plan the certificates of its buffers, if they have lifetimes.
fn certify(plan: &mut Plan) {
    let steps = plan.step_count();
    if plan.buffers.iter().any(|buffer| buffer.last_step < buffer.first_step || steps <= buffer.last_step) {
        return;
    }
    let arena::Bound { height, step } = arena::lower_bound(&plan.problem());
    plan.arena.peak_step = step;
    plan.order =
        Certificate { value: height, lower_bound: plan.order.lower_bound.min(height), least: plan.order.least };
    plan.order.least = plan.order.least.clamp(plan.order.lower_bound, height);
    let certificate = &mut plan.arena.certificate;
    certificate.lower_bound = height;
    certificate.value = certificate.value.max(height);
    certificate.least = certificate.least.clamp(height, certificate.value);
    plan.any_kernels = plan.any_kernels.min(height);
}

/// The properties of plans that are accepted.
fn accepted(plans: &[Plan], constants: &[u8]) -> bool {
    let mut file = Vec::new();
    if image::write(&mut file, b"runner", plans, constants).is_err() {
        return false;
    }
    let read = image::read(&file).expect("an image that was written is read");
    assert!(read.plans == plans, "an image holds the plans that were written");
    for plan in plans {
        judge(plan);
        shown(plan);
    }
    let constants = Arc::new(constants.to_vec());
    for plan in plans {
        if RUN_MAX < plan.arena.size().0 || 50 < plan.steps.len() {
            continue;
        }
        let Ok(mut session) = runtime::open(Arc::new(plan.clone()), constants.clone(), &Host { threads: 1 }) else {
            continue;
        };
        let inputs: Vec<Vec<u8>> = plan.inputs.iter().map(|port| vec![1; port.operand.size.0 as usize]).collect();
        let audit = audit::audit(&mut session, &inputs).expect("processors do not fail");
        assert!(audit.outside_bytes == 0, "a plan that was checked writes only its operands");
        let report = Report::new(plan).with_actual(&audit, 0, &runtime::process::ProcessMemory::default());
        assert!(!report.text(View::Actual, &ViewOptions::default()).is_empty());
    }
    true
}

/// An operand in a buffer: its step, its first byte and its end.
type Use = (u32, u64, u64);

/// The operands in a buffer that have bytes.
fn uses_of(plan: &Plan, buffer: BufferIx) -> Vec<Use> {
    let at_steps = plan.steps.iter().enumerate().flat_map(|(ix, step)| {
        let operands = step.inputs.iter().chain(&step.outputs).chain(&step.workspace);
        operands.map(move |operand| (ix as u32, operand))
    });
    let inputs = plan.inputs.iter().map(|port| (0, &port.operand));
    let outputs = plan.outputs.iter().map(|port| (plan.step_count() - 1, &port.operand));
    at_steps
        .chain(inputs)
        .chain(outputs)
        .filter(|(_, operand)| operand.place == Place::Buffer(buffer) && operand.size != Bytes::ZERO)
        .map(|(step, operand)| (step, operand.offset.0, operand.offset.0 + operand.size.0))
        .collect()
}

/// The lowest byte of a buffer that is used at or before a step and at or after it, and the end of the highest.
fn live_bytes(uses: &[Use], step: u32) -> Option<(u64, u64)> {
    let mut cuts: Vec<u64> = uses.iter().flat_map(|&(_, low, high)| [low, high]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let is_live = |byte: u64| {
        let over = || uses.iter().filter(|(_, low, high)| (*low..*high).contains(&byte)).map(|(step, ..)| *step);
        over().any(|used| used <= step) && over().any(|used| step <= used)
    };
    let mut live = cuts.windows(2).filter(|pair| is_live(pair[0]));
    let first = live.next()?;
    Some((first[0], live.next_back().unwrap_or(first)[1]))
}

/// The rules again, by looking at bytes and steps one by one.
fn judge(plan: &Plan) {
    let steps = plan.step_count();
    let uses: Vec<Vec<Use>> = (0..plan.buffers.len()).map(|ix| uses_of(plan, BufferIx(ix as u32))).collect();
    for step in 0..steps.min(64) {
        let mut ranges: Vec<(u64, u64)> = plan
            .buffers
            .iter()
            .zip(&uses)
            .filter(|(buffer, _)| (buffer.first_step..=buffer.last_step).contains(&step))
            .filter_map(|(buffer, uses)| {
                let (low, high) = match buffer.persistence {
                    Persistence::Session => (0, buffer.size.0),
                    Persistence::Run => live_bytes(uses, step)?,
                };
                Some((buffer.offset.0 + low, buffer.offset.0 + high))
            })
            .filter(|(low, high)| low < high)
            .collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "buffers share bytes at step {step}");
        assert!(ranges.last().is_none_or(|last| last.1 <= plan.arena.size().0), "a buffer is outside the arena");
    }
    let is_inside = |operand: &Operand, step: u32| {
        let size = match operand.place {
            Place::Buffer(BufferIx(ix)) => {
                let buffer = &plan.buffers[ix as usize];
                assert!(buffer.first_step <= step && step <= buffer.last_step, "a dead buffer is used");
                buffer.size
            }
            Place::Constant(ConstantIx(ix)) => plan.constants[ix as usize].size,
        };
        assert!(u128::from(operand.offset.0) + u128::from(operand.size.0) <= u128::from(size.0), "outside its place");
    };
    for (ix, step) in plan.steps.iter().enumerate() {
        let operands = step.inputs.iter().chain(&step.outputs).chain(&step.workspace);
        operands.for_each(|operand| is_inside(operand, ix as u32));
    }
    plan.inputs.iter().for_each(|port| is_inside(&port.operand, 0));
    plan.outputs.iter().for_each(|port| is_inside(&port.operand, steps - 1));
    for constant in &plan.constants {
        let end = u128::from(constant.offset.0) + u128::from(constant.size.0);
        assert!(end <= u128::from(plan.constants_size.0), "a constant is outside its section");
    }
}

/// Every text that an executable prints about its plan.
fn shown(plan: &Plan) {
    let (report, options) = (Report::new(plan), ViewOptions::default());
    View::ALL.iter().for_each(|view| drop(report.text(*view, &options)));
    let read = report::read(report.to_json().as_bytes());
    read.map(drop).unwrap_or_else(|error| panic!("a report that was written is not read: {error}"));
    drop((report.mxnet_csv(), report.tbd_analysis(), report.trace_json(None), report.pprof()));
    drop((plan::dump(plan), Description::new(plan).text(), report::placement_csv(plan)));
    let _ = train::synthetic_fields(plan);
    let _ = train::metric_of(plan, None);
}
