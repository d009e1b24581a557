//! Each rule of [`check`]: a valid plan with one thing wrong is refused for that reason and no other.

use prestow_plan::{
    Arena, Buffer, BufferIx, Constant, ConstantIx, Initial, Operand, Persistence, Phase, Place, Plan, PlanError, Port,
    Sharing, StatePort, Step, Training, ValueSpan, check, dump, image,
};
use types::{Bytes, Certificate, DType, Layout, Role, Scope, Shape, Tag};

const SIZE: Bytes = Bytes(16);

fn buffer(name: &str, role: Role, offset: u64, steps: (u32, u32)) -> Buffer {
    let tag = Tag { scope: Scope::new(name), role };
    let (first_step, last_step) = steps;
    let value = ValueSpan {
        name: name.into(),
        dtype: DType::F32,
        shape: Shape::from([4]),
        layout: Layout::default(),
        offset: Bytes(0),
        first_step,
        last_step,
        sharing: Sharing::Own,
    };
    Buffer {
        tag,
        size: SIZE,
        offset: Bytes(offset),
        first_step,
        last_step,
        persistence: Persistence::Run,
        values: vec![value],
        refused: Vec::new(),
    }
}

fn in_buffer(ix: u32) -> Operand {
    Operand { place: Place::Buffer(BufferIx(ix)), offset: Bytes(0), size: SIZE }
}

fn in_constant(ix: u32) -> Operand {
    Operand { place: Place::Constant(ConstantIx(ix)), offset: Bytes(0), size: SIZE }
}

fn port(name: &str, operand: Operand) -> Port {
    Port { name: name.into(), dtype: DType::F32, shape: Shape::from([4]), layout: Layout::default(), operand }
}

fn step(inputs: &[Operand], outputs: &[Operand], workspace: Option<Operand>) -> Step {
    Step {
        scope: Scope::new("layer"),
        kernel: "kernel".into(),
        label: String::new(),
        code: Vec::new(),
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        workspace,
        flops: 0,
    }
}

/// A valid plan of three steps with an input, an output, a workspace, a state and two constants.
///
/// ```text
/// step      0       1       2
/// offset 0  x       scratch
///       16  a       a
///       32          b       b
///       48  state   state   state
/// ```
fn valid() -> Plan {
    let constant = |name: &str, offset| Constant {
        tag: Tag { scope: Scope::new(name), role: Role::Constant },
        dtype: DType::F32,
        shape: Shape::from([4]),
        offset: Bytes(offset),
        size: SIZE,
    };
    let mut state = buffer("state", Role::State, 48, (0, 2));
    state.persistence = Persistence::Session;
    let peak = Certificate { value: Bytes(64), lower_bound: Bytes(64), least: Bytes(64) };
    Plan {
        inputs: vec![port("x", in_buffer(0))],
        outputs: vec![port("y", in_buffer(2))],
        states: vec![StatePort { port: port("state", in_buffer(3)), initial: Initial::Constant(ConstantIx(1)) }],
        steps: vec![
            step(&[in_buffer(0), in_constant(0)], &[in_buffer(1)], None),
            step(&[in_buffer(1)], &[in_buffer(2)], Some(in_buffer(4))),
            step(&[in_buffer(2)], &[in_buffer(3)], None),
        ],
        buffers: vec![
            buffer("x", Role::Input, 0, (0, 0)),
            buffer("a", Role::Activation, 16, (0, 1)),
            buffer("b", Role::Output, 32, (1, 2)),
            state,
            Buffer { values: Vec::new(), ..buffer("scratch", Role::Workspace, 0, (1, 1)) },
        ],
        arena: Arena { alignment: SIZE, peak_step: 1, certificate: peak },
        order: peak,
        constants: vec![constant("w", 0), constant("state", 16)],
        constants_size: Bytes(32),
        ..Plan::default()
    }
}

/// The errors of the valid plan after a change.
fn errors(change: impl FnOnce(&mut Plan)) -> Vec<PlanError> {
    let mut plan = valid();
    change(&mut plan);
    check(&plan).expect_err("the changed plan is invalid")
}

/// Expects one error, by its message.
#[track_caller]
fn refused(message: &str, change: impl FnOnce(&mut Plan)) {
    let messages: Vec<String> = errors(change).iter().map(PlanError::to_string).collect();
    assert_eq!(messages, [message]);
}

#[test]
fn valid_plan_passes_and_has_a_text() {
    assert_eq!(check(&valid()), Ok(()));
    let text = dump(&valid());
    assert!(text.contains("state `state` f32[4] = b3[0+16], at first c1\n"), "{text}");
    assert!(text.contains("b3: 16 bytes at 48, steps 0..=2, kept between runs, state:state\n"), "{text}");
}

#[test]
fn in_place_output_passes() {
    let mut plan = valid();
    plan.steps[2].inputs = vec![in_buffer(2), in_buffer(3)];
    assert_eq!(check(&plan), Ok(()));
}

#[test]
fn operand_of_a_missing_buffer_or_constant_is_refused() {
    refused("input 0 of step 1 (`layer`) names buffer 9, which does not exist", |plan| {
        plan.steps[1].inputs[0] = in_buffer(9);
    });
    refused("input 1 of step 0 (`layer`) names constant 9, which does not exist", |plan| {
        plan.steps[0].inputs[1] = in_constant(9);
    });
}

#[test]
fn operand_beyond_its_buffer_or_constant_is_refused() {
    refused("output `y` ends at byte 20 of buffer 2, which has 16 B", |plan| {
        plan.outputs[0].operand.offset = Bytes(4);
    });
    refused("input 1 of step 0 (`layer`) ends at byte 18446744073709551615 of constant 0, which has 16 B", |plan| {
        plan.steps[0].inputs[1].size = Bytes(u64::MAX);
    });
}

#[test]
fn write_to_a_constant_is_refused() {
    refused("output 0 of step 0 (`layer`) must not be a constant", |plan| plan.steps[0].outputs[0] = in_constant(0));
    refused("workspace 0 of step 1 (`layer`) must not be a constant", |plan| {
        plan.steps[1].workspace = Some(in_constant(0));
    });
    refused("input `x` must not be a constant", |plan| plan.inputs[0].operand = in_constant(0));
}

#[test]
fn operand_of_a_dead_buffer_is_refused() {
    refused("input 0 of step 2 (`layer`) uses buffer 1 at step 2, but it lives from step 0 to 1", |plan| {
        plan.steps[2].inputs[0] = in_buffer(1);
    });
    refused("input `x` uses buffer 2 at step 0, but it lives from step 1 to 2", |plan| {
        plan.inputs[0].operand = in_buffer(2);
    });
    refused("output `y` uses buffer 1 at step 2, but it lives from step 0 to 1", |plan| {
        plan.outputs[0].operand = in_buffer(1);
    });
}

#[test]
fn partial_overlap_of_operands_is_refused() {
    let half = |ix, offset| Operand { offset: Bytes(offset), size: Bytes(12), ..in_buffer(ix) };
    refused("output 0 of step 1 (`layer`) overlaps input 0 of step 1 (`layer`), but is not the same bytes", |plan| {
        (plan.steps[1].inputs[0], plan.steps[1].outputs[0]) = (half(1, 0), half(1, 4));
    });
    refused(
        "workspace 0 of step 1 (`layer`) overlaps input 0 of step 1 (`layer`), but is not the same bytes",
        |plan| {
            plan.steps[1].workspace = Some(in_buffer(1));
        },
    );
    refused("output 1 of step 1 (`layer`) overlaps output 0 of step 1 (`layer`), but is not the same bytes", |plan| {
        plan.steps[1].outputs.push(in_buffer(2));
    });
}

#[test]
fn port_of_another_size_than_its_type_is_refused() {
    refused("input `x` must have 12 B by its dtype, shape and layout, got 16 B", |plan| {
        plan.inputs[0].shape = Shape::from([3]);
    });
    refused("output `y` must have 8 B by its dtype, shape and layout, got 16 B", |plan| {
        plan.outputs[0].dtype = DType::F16;
    });
}

#[test]
fn lifetime_outside_the_steps_is_refused() {
    let errors = errors(|plan| (plan.buffers[2].first_step, plan.buffers[2].last_step) = (1, 3));
    assert_eq!(errors, [PlanError::Lifetime { buffer: 2, first: 1, last: 3, steps: 3 }]);
    let errors = self::errors(|plan| plan.buffers[4].last_step = 0);
    assert!(errors.contains(&PlanError::Lifetime { buffer: 4, first: 1, last: 0, steps: 3 }), "{errors:?}");
}

#[test]
fn value_outside_its_buffer_is_refused() {
    for change in [
        |value: &mut ValueSpan| value.offset = Bytes(4),
        |value: &mut ValueSpan| value.offset = Bytes(u64::MAX),
        |value: &mut ValueSpan| value.last_step = 2,
        |value: &mut ValueSpan| (value.first_step, value.last_step) = (1, 0),
    ] {
        let errors = errors(|plan| change(&mut plan.buffers[1].values[0]));
        assert_eq!(errors, [PlanError::ValueSpan { buffer: 1, value: 0 }]);
    }
}

#[test]
fn constant_outside_its_section_is_refused() {
    for offset in [17, u64::MAX] {
        let errors = errors(|plan| plan.constants[1].offset = Bytes(offset));
        assert_eq!(errors, [PlanError::ConstantOutside { constant: 1, size: Bytes(32) }]);
    }
}

#[test]
fn wrong_placements_are_refused() {
    let is_placement = |errors: &[PlanError]| matches!(errors, [PlanError::Placement(_), ..]);
    assert!(is_placement(&errors(|plan| plan.buffers[1].offset = Bytes(0))), "two live buffers share bytes");
    assert!(is_placement(&errors(|plan| plan.buffers[3].offset = Bytes(64))), "a buffer ends behind the arena");
    assert!(is_placement(&errors(|plan| plan.buffers[1].offset = Bytes(8))), "an offset is not aligned");
}

#[test]
fn wrong_lower_bound_is_refused() {
    let errors = errors(|plan| {
        plan.arena.certificate.lower_bound = Bytes(48);
        plan.order = Certificate { value: Bytes(48), lower_bound: Bytes(48), least: Bytes(48) };
    });
    assert_eq!(errors, [PlanError::LowerBound { want: Bytes(64), got: Bytes(48) }]);
}

#[test]
fn inconsistent_certificates_are_refused() {
    let wrong = Certificate { value: Bytes(64), lower_bound: Bytes(64), least: Bytes(80) };
    let errors = errors(|plan| plan.arena.certificate = wrong);
    assert_eq!(errors, [PlanError::Certificate { subject: "arena", certificate: wrong }]);
    let errors = self::errors(|plan| plan.order = wrong);
    assert_eq!(errors, [PlanError::Certificate { subject: "order", certificate: wrong }]);
}

#[test]
fn order_of_another_peak_than_the_lower_bound_is_refused() {
    let errors = errors(|plan| plan.order.value = Bytes(80));
    assert_eq!(errors, [PlanError::Peak { want: Bytes(64), got: Bytes(80) }]);
}

#[test]
fn state_in_a_buffer_of_one_run_is_refused() {
    refused("state `state` must be in a buffer that is kept between runs, got buffer 3", |plan| {
        plan.buffers[3].persistence = Persistence::Run;
    });
}

#[test]
fn state_in_a_constant_is_refused() {
    let errors = errors(|plan| plan.states[0].port.operand = in_constant(1));
    assert_eq!(errors, [PlanError::NoState { buffer: 3 }, PlanError::WritesConstant { who: "state `state`".into() }]);
}

#[test]
fn state_of_another_size_than_its_type_is_refused() {
    let errors = errors(|plan| plan.states[0].port.dtype = DType::F16);
    let want = PlanError::PortSize { who: "state `state`".into(), want: Bytes(8), got: SIZE };
    assert!(errors.contains(&want), "{errors:?}");
}

#[test]
fn initial_bytes_of_another_size_are_refused() {
    let want = |got| PlanError::StateInitial { name: "state".into(), want: SIZE, got: Bytes(got) };
    assert_eq!(errors(|plan| plan.constants[1].size = Bytes(8)), [want(8)]);
    assert_eq!(errors(|plan| plan.states[0].initial = Initial::Constant(ConstantIx(7))), [want(0)]);
    let mut zeros = valid();
    zeros.states[0].initial = Initial::Zeros;
    assert_eq!(check(&zeros), Ok(()));
}

#[test]
fn states_of_one_name_or_shared_bytes_are_refused() {
    let errors = errors(|plan| plan.states.push(plan.states[0].clone()));
    let (a, b) = ("state".to_string(), "state".to_string());
    assert_eq!(errors, [PlanError::TwoStates { name: a.clone() }, PlanError::StatesOverlap { a, b }]);
}

#[test]
fn persistent_buffer_that_dies_is_refused() {
    let errors = errors(|plan| plan.buffers[3].first_step = 1);
    assert!(errors.contains(&PlanError::PersistentLifetime { buffer: 3, first: 1, last: 2, steps: 3 }), "{errors:?}");
}

#[test]
fn persistent_buffer_without_a_state_is_refused() {
    assert_eq!(errors(|plan| plan.states.clear()), [PlanError::NoState { buffer: 3 }]);
}

#[test]
fn input_in_a_persistent_buffer_is_refused() {
    refused("input `x` must not be in a buffer that is kept between runs, got buffer 3", |plan| {
        plan.inputs[0].operand = in_buffer(3);
    });
}

#[test]
fn image_refuses_what_check_refuses_and_several_plans_with_state() {
    let written = |plans: &[Plan]| image::write(&mut Vec::new(), b"runner", plans, &[0; 32]).map_err(|e| e.to_string());
    assert_eq!(written(&[valid()]), Ok(()));
    let mut other = valid();
    other.batch = 2;
    let error = written(&[valid(), other]).expect_err("there are two plans");
    assert!(error.contains("a model with state must have one plan, got 2"), "{error}");
    let mut invalid = valid();
    invalid.states.clear();
    assert!(written(&[invalid]).is_err());
}

/// The valid plan as a step of training: its output is the loss, its input the learning rate.
fn step_of_training() -> Plan {
    let scalar = |name: &str, place| {
        let operand = Operand { size: Bytes(4), ..in_buffer(place) };
        Port { name: name.into(), shape: Shape::scalar(), operand, ..port(name, in_buffer(place)) }
    };
    let mut plan = valid();
    plan.inputs.push(scalar(Training::LEARNING_RATE, 0));
    plan.outputs.push(scalar(Training::LOSS, 2));
    plan.phase =
        Phase::Training(Training { labels: vec!["x".into()], prediction: Some("y".into()), ..Training::default() });
    plan
}

#[test]
fn step_of_training_needs_its_ports() {
    assert_eq!(check(&step_of_training()), Ok(()));
    let messages = |change: fn(&mut Plan)| {
        let mut plan = step_of_training();
        change(&mut plan);
        let errors = check(&plan).expect_err("a port is missing");
        errors.iter().map(PlanError::to_string).collect::<Vec<String>>()
    };
    let rate = "a plan for training must have an input `learning_rate` of `f32[]`";
    let loss = "a plan for training must have an output `loss` of `f32[]`";
    let named = ["a plan for training must have an input `x`", "a plan for training must have an output `y`"];
    assert_eq!(messages(|plan| drop(plan.inputs.pop())), [rate]);
    assert_eq!(messages(|plan| plan.outputs[1].name = "cost".into()), [loss]);
    assert_eq!(messages(|plan| plan.inputs[0].name = "z".into()), [named[0]]);
    assert_eq!(messages(|plan| plan.outputs[0].name = "z".into()), [named[1]]);
}

#[test]
fn image_has_a_step_and_its_evaluation() {
    let written = |plans: &[Plan]| image::write(&mut Vec::new(), b"runner", plans, &[0; 32]).map_err(|e| e.to_string());
    let (step, mut evaluation) = (step_of_training(), step_of_training());
    evaluation.phase = Phase::Evaluation(step.phase.training().expect("it is a step").clone());
    assert_eq!(written(std::slice::from_ref(&step)), Ok(()));
    assert_eq!(written(&[step.clone(), evaluation.clone()]), Ok(()));
    let refused = |plans: &[Plan], reason: &str| {
        let error = written(plans).expect_err("the plans do not belong together");
        assert!(error.contains(reason), "{error}");
    };
    refused(&[evaluation.clone(), step.clone()], "a plan for a step of training must be the first");
    refused(&[evaluation.clone()], "a plan for a step of training must be the first");
    evaluation.states[0].port.name = "other".into();
    refused(&[step, evaluation], "the evaluation reads the state `other`, which the step does not train");
}
