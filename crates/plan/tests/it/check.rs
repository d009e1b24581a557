//! Each rule of [`check`]: a valid plan with one thing wrong is refused for that reason and no other. The file stays whole: all
//! rules change the same valid plan.

use prestow_plan::{
    Alternative, Arena, ArenaLimit, Buffer, BufferIx, Constant, ConstantIx, Initial, KernelChoice, Operand,
    Persistence, Phase, Place, Plan, PlanError, Port, Sharing, StatePort, Step, Training, ValueSpan, check, dump,
    image,
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

pub(crate) fn in_constant(ix: u32) -> Operand {
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
pub(crate) fn valid() -> Plan {
    let constant = |name: &str, offset| Constant {
        tag: Tag { scope: Scope::new(name), role: Role::Constant },
        dtype: DType::F32,
        shape: Shape::from([4]),
        offset: Bytes(offset),
        size: SIZE,
        recipe: None,
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

/// A valid plan in which two buffers have the same bytes of the arena at the same steps: step 0 writes the first half of
/// `whole`, step 1 works in the half that is not written yet, step 2 writes it, step 3 reads all.
///
/// ```text
/// step      0       1       2       3
/// offset 0  left    left    left    whole
///       16          work    right   whole
///       32                          y
/// ```
fn with_window() -> Plan {
    let half = |offset| Operand { offset: Bytes(offset), ..in_buffer(0) };
    let whole = Operand { size: Bytes(32), ..in_buffer(0) };
    let peak = Certificate { value: Bytes(48), lower_bound: Bytes(48), least: Bytes(48) };
    let joined = Buffer { size: Bytes(32), ..buffer("whole", Role::Activation, 0, (0, 3)) };
    Plan {
        outputs: vec![port("y", in_buffer(2))],
        steps: vec![
            step(&[], &[half(0)], None),
            step(&[half(0)], &[], Some(in_buffer(1))),
            step(&[], &[half(16)], None),
            step(&[whole], &[in_buffer(2)], None),
        ],
        buffers: vec![
            joined,
            Buffer { values: Vec::new(), ..buffer("work", Role::Workspace, 16, (1, 1)) },
            buffer("y", Role::Output, 32, (3, 3)),
        ],
        arena: Arena { alignment: SIZE, peak_step: 3, certificate: peak },
        order: peak,
        ..Plan::default()
    }
}

#[test]
fn bytes_that_no_operand_uses_yet_belong_to_others() {
    let plan = with_window();
    assert_eq!(check(&plan), Ok(()));
    let gaps = &plan.problem().buffers[0].gaps;
    let window = arena::ByteWindow { low: Bytes(0), high: Bytes(16) };
    assert_eq!(gaps, &[arena::Gap { lifetime: arena::Lifetime { first: 0, end: 2 }, window: Some(window) }]);
}

#[test]
fn bytes_that_an_operand_uses_belong_to_no_other() {
    let overlap = "the placement is wrong: live buffers must not overlap, got `b0` and `b1` at step `1`";
    let uses: [fn(&mut Plan); 3] = [
        // Step 0 writes all of it.
        |plan| plan.steps[0].outputs[0].size = Bytes(32),
        // Step 1 reads the other half.
        |plan| plan.steps[1].inputs[0].offset = Bytes(16),
        // The half is an input of the model, written before the first step.
        |plan| plan.inputs.push(port("x", Operand { offset: Bytes(16), ..in_buffer(0) })),
    ];
    for change in uses {
        let mut plan = with_window();
        change(&mut plan);
        let errors: Vec<String> = check(&plan).expect_err("it overlaps").iter().map(PlanError::to_string).collect();
        assert!(errors.contains(&overlap.to_string()), "{errors:?}");
    }
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
    // In place, but of another length.
    for (input, output) in [(SIZE, Bytes(12)), (Bytes(12), SIZE)] {
        refused(
            "output 0 of step 1 (`layer`) overlaps input 0 of step 1 (`layer`), but is not the same bytes",
            |plan| {
                plan.steps[1].inputs[0].size = input;
                plan.steps[1].outputs[0] = Operand { size: output, ..in_buffer(1) };
            },
        );
    }
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
    let errors = errors(|plan| plan.buffers[2].values[0].first_step = 0);
    assert_eq!(errors, [PlanError::ValueSpan { buffer: 2, value: 0 }], "the buffer begins at step 1");
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
fn plan_of_two_to_the_63_bytes_is_refused() {
    const MOST: u64 = i64::MAX as u64;
    for (arena, constants) in [(MOST, 1), (1, MOST), (u64::MAX, 1), (MOST - 31, 32)] {
        let errors = errors(|plan| {
            (plan.arena.certificate.value, plan.constants_size) = (Bytes(arena), Bytes(constants));
        });
        let (arena, constants) = (Bytes(arena), Bytes(constants));
        assert_eq!(errors, [PlanError::TooLarge { arena, constants }]);
    }
    let mut plan = valid();
    plan.arena.certificate.value = Bytes(MOST - 32);
    assert_eq!(check(&plan), Ok(()), "a larger arena than its buffers need is no error");
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
fn alternative_that_saves_the_whole_peak_is_refused() {
    let scope = Scope::new("conv");
    let saving = |bytes| Alternative {
        scope: scope.clone(),
        change: "`conv_direct` instead of `conv_winograd`".into(),
        saves: Bytes(bytes),
        time: 1000,
        other_time: 1100,
    };
    let mut plan = valid();
    plan.alternatives.push(saving(63));
    assert_eq!(check(&plan), Ok(()));
    let errors = errors(|plan| plan.alternatives.push(saving(64)));
    assert_eq!(errors, [PlanError::Alternative { scope: scope.clone(), want: Bytes(64), got: Bytes(64) }]);
}

#[test]
fn choice_of_no_step_is_refused() {
    let step = valid().steps[0].clone();
    let choice = |scope: &Scope, taken: &str| KernelChoice {
        scope: scope.clone(),
        taken: taken.into(),
        other: "cuda_conv".into(),
        times: [1, 2],
        measured: false,
    };
    let mut plan = valid();
    plan.choices.push(choice(&step.scope, &step.kernel));
    assert_eq!(check(&plan), Ok(()));
    for (scope, kernel) in [(&Scope::new("nowhere"), &step.kernel[..]), (&step.scope, "another")] {
        let errors = errors(|plan| plan.choices.push(choice(scope, kernel)));
        assert_eq!(errors, [PlanError::Choice { scope: scope.clone(), kernel: kernel.into() }]);
    }
}

#[test]
fn order_of_another_peak_than_the_lower_bound_is_refused() {
    let errors = errors(|plan| plan.order.value = Bytes(80));
    assert_eq!(errors, [PlanError::Peak { want: Bytes(64), got: Bytes(80) }]);
}

#[test]
fn peak_at_another_step_is_refused() {
    let refused_at = |step: u32, live: u64| {
        let message = format!(
            "the peak must be a step with live buffers of the arena's lower bound 64 B, got step {step} with {live} B"
        );
        refused(&message, |plan| plan.arena.peak_step = step);
    };
    refused_at(0, 48);
    refused_at(2, 32);
    refused_at(3, 0);
    // Without steps there is one moment, when the caller writes.
    assert_eq!(check(&Plan { arena: Arena::default(), ..Plan::default() }), Ok(()));
    let errors = check(&Plan { arena: Arena { peak_step: 1, ..Arena::default() }, ..Plan::default() });
    assert_eq!(errors, Err(vec![PlanError::PeakStep { step: 1, want: Bytes(0), got: Bytes(0) }]));
}

#[test]
fn bound_over_kernels_above_the_peak_is_refused() {
    let mut plan = valid();
    plan.any_kernels = Bytes(64);
    assert_eq!(check(&plan), Ok(()));
    let errors = errors(|plan| plan.any_kernels = Bytes(65));
    assert_eq!(errors, [PlanError::AnyKernels { want: Bytes(64), got: Bytes(65) }]);
}

#[test]
fn limit_that_the_arena_exceeds_is_refused() {
    let mut plan = valid();
    let size = plan.arena.size();
    let limit = ArenaLimit { bytes: size, unlimited: Bytes(size.0 + 1), time_permille: 1_500 };
    plan.limit = Some(limit);
    assert_eq!(check(&plan), Ok(()));
    for limit in [
        ArenaLimit { bytes: Bytes(size.0 - 1), ..limit },
        ArenaLimit { unlimited: size, ..limit },
        ArenaLimit { time_permille: 0, ..limit },
    ] {
        assert_eq!(errors(|plan| plan.limit = Some(limit)), [PlanError::Limit { arena: size, limit }]);
    }
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

/// A second state in a buffer of its own behind the first, which may share bytes by its offset in the buffer.
fn with_second_state(first: (u64, u64), second: (u64, u64)) -> Vec<PlanError> {
    let mut plan = valid();
    let state = |name: &str, (offset, size): (u64, u64)| {
        let operand = Operand { offset: Bytes(offset), size: Bytes(size), ..in_buffer(3) };
        let shape = Shape::from([size as usize / 4]);
        StatePort { port: Port { shape, ..port(name, operand) }, initial: Initial::Zeros }
    };
    plan.states = vec![state("state", first), state("other", second)];
    check(&plan).err().unwrap_or_default()
}

#[test]
fn states_may_touch_but_not_overlap() {
    assert_eq!(with_second_state((0, 8), (8, 8)), []);
    assert_eq!(with_second_state((8, 8), (0, 8)), []);
    let overlap = PlanError::StatesOverlap { a: "state".into(), b: "other".into() };
    assert_eq!(with_second_state((0, 12), (8, 8)), std::slice::from_ref(&overlap));
    assert_eq!(with_second_state((4, 12), (0, 8)), [overlap]);
}

#[test]
fn state_without_an_arena_range_overlaps_nothing() {
    let errors = errors(|plan| {
        let other = StatePort { port: port("other", in_buffer(9)), initial: Initial::Zeros };
        plan.states.push(other);
    });
    let missing = |place: &str| PlanError::NoSuchPlace { who: "state `other`".into(), place: place.into() };
    assert_eq!(errors, [missing("buffer 9"), missing("buffer 9")]);
}

#[test]
fn scalar_of_training_has_its_dtype_and_its_rank() {
    for change in [|port: &mut Port| port.dtype = DType::I32, |port: &mut Port| port.shape = Shape::from([1])] {
        let mut plan = step_of_training();
        change(&mut plan.inputs[1]);
        let messages: Vec<String> = check(&plan).expect_err("it is no f32[]").iter().map(ToString::to_string).collect();
        assert_eq!(messages, ["a plan for training must have an input `learning_rate` of `f32[]`"]);
    }
}

#[test]
fn evaluation_needs_its_loss() {
    let mut plan = step_of_training();
    plan.phase = Phase::Evaluation(plan.phase.training().expect("it is a step").clone());
    // The loss of an evaluation may be a loss for each sample.
    plan.outputs[1] = Port { name: Training::LOSS.into(), ..port("y", in_buffer(2)) };
    assert_eq!(check(&plan), Ok(()));
    plan.outputs[1].name = "cost".into();
    let messages: Vec<String> = check(&plan).expect_err("no loss").iter().map(ToString::to_string).collect();
    assert_eq!(messages, ["a plan for training must have an output `loss`"]);
}

#[test]
fn operand_whose_end_wraps_is_refused() {
    let wrapped = Operand { offset: Bytes(u64::MAX), size: Bytes(8), ..in_constant(0) };
    refused("input 1 of step 0 (`layer`) ends at byte 18446744073709551615 of constant 0, which has 16 B", |plan| {
        plan.steps[0].inputs[1] = wrapped;
    });
}

/// Every part of an image: see `crates/plan/src/image.rs`.
mod image_file {
    use prestow_plan::image::{self, ImageError, PAGE, Trailer};

    use super::*;

    fn file() -> Vec<u8> {
        let mut file = Vec::new();
        image::write(&mut file, b"runner", &[valid()], &[7; 32]).expect("memory is writable");
        file
    }

    /// Writes a number of the trailer and its checksum.
    fn with_number(at: usize, number: u64) -> Vec<u8> {
        let mut file = file();
        let trailer = file.len() - Trailer::SIZE;
        file[trailer + at..trailer + at + 8].copy_from_slice(&number.to_le_bytes());
        let sum = xxhash_rust::xxh3::xxh3_64(&file[trailer..file.len() - 8]);
        let end = file.len() - 8;
        file[end..].copy_from_slice(&sum.to_le_bytes());
        file
    }

    fn reason(file: &[u8]) -> String {
        image::read(file).expect_err("the file is damaged").to_string()
    }

    #[test]
    fn sections_start_at_pages_and_the_file_ends_with_the_trailer() {
        let file = file();
        let trailer = Trailer::read(&file, file.len() as u64).expect("it is whole");
        assert_eq!((trailer.plans.start, trailer.constants.start % PAGE), (PAGE, 0));
        assert_eq!(trailer.constants, 2 * PAGE..2 * PAGE + 32);
        assert_eq!(file.len(), 2 * PAGE as usize + 32 + Trailer::SIZE);
        let read = image::read(&file).expect("it is whole");
        assert_eq!((read.plans, &file[read.constants]), (vec![valid()], &[7; 32][..]));
    }

    #[test]
    fn every_number_of_the_trailer_is_checked() {
        let whole = file();
        let trailer = Trailer::read(&whole, whole.len() as u64).expect("it is whole");
        let length = whole.len() as u64;
        let damaged =
            |text: &str| format!("the file is damaged: {text}; copy the file again, or compile the model again");
        for other in [length - 1, length + 1] {
            assert_eq!(reason(&with_number(72, other)), damaged("its length is wrong"));
        }
        assert_eq!(reason(&with_number(16, length)), damaged("the plan is outside the file"));
        assert_eq!(reason(&with_number(24, u64::MAX)), damaged("the plan is outside the file"));
        assert_eq!(reason(&with_number(40, length)), damaged("the constants are outside the file"));
        assert_eq!(reason(&with_number(48, u64::MAX)), damaged("the constants are outside the file"));
        assert_eq!(reason(&with_number(48, 31)), damaged("its sections are not in order"));
        let into_constants = trailer.constants.start - trailer.plans.start + 1;
        assert_eq!(reason(&with_number(24, into_constants)), damaged("its sections are not in order"));
        assert_eq!(reason(&with_number(32, 0)), damaged("the plan's checksum is wrong"));
        assert_eq!(reason(&with_number(56, 0)), damaged("the constants' checksum is wrong"));
        assert_eq!(reason(&with_number(64, 0)), damaged("the checksum of its program is wrong"));
        let mut sum = whole.clone();
        let end = sum.len() - 1;
        sum[end] ^= 1;
        assert_eq!(reason(&sum), damaged("the trailer's checksum is wrong"));
        assert_eq!(image::read(&whole[..40]), Err(ImageError::NoTrailer));
        assert_eq!(image::read(&[]), Err(ImageError::NoTrailer));
    }

    /// Every check of a section is reached, since the checksum of the trailer is right.
    #[test]
    fn marker_and_version_are_checked() {
        assert_eq!(image::read(&with_number(0, 0)), Err(ImageError::NoTrailer));
        for version in [image::FORMAT_VERSION - 1, image::FORMAT_VERSION + 1] {
            assert_eq!(image::read(&with_number(8, version.into())), Err(ImageError::Version { found: version }));
        }
    }

    /// The valid plan, whose first constant has a recipe.
    fn with_recipe() -> Plan {
        let mut plan = valid();
        let tensor = types::Derivation::stored("w");
        plan.constants[0].recipe = Some(prestow_plan::ConstantRecipe { tensor, packing: Vec::new() });
        plan.weights_name = "weights".into();
        plan
    }

    #[test]
    fn file_with_separate_weights_has_the_other_constants_and_the_identity_of_all() {
        let constants: Vec<u8> = (0..32).collect();
        let (mut whole, mut separate) = (Vec::new(), Vec::new());
        image::write(&mut whole, b"runner", &[with_recipe()], &constants).expect("memory is writable");
        image::write_separate(&mut separate, b"runner", &[with_recipe()], &constants).expect("memory is writable");
        let [whole, trailer] = [&whole, &separate].map(|file| Trailer::read(file, file.len() as u64).expect("whole"));
        assert_eq!((whole.is_separate(), trailer.is_separate()), (false, true));
        let identity = |trailer: &Trailer| (trailer.constants_digest, trailer.constants_size);
        assert_eq!(identity(&trailer), identity(&whole));
        let bytes = |range: &std::ops::Range<u64>| separate[range.start as usize..range.end as usize].to_vec();
        assert_eq!(bytes(&trailer.constants), &constants[16..]);
        assert_eq!(trailer.plans(&bytes(&trailer.plans)), Ok(vec![with_recipe()]));
        let refused = ImageError::Separate { weights: "weights".into() };
        assert_eq!(image::read(&separate), Err(refused));
        let nothing = image::write_separate(&mut Vec::new(), b"runner", &[valid()], &constants);
        assert_eq!(nothing.map_err(|error| error.to_string()), Err("no constant has a recipe".into()));
    }

    /// Constants that are written some bytes at a time.
    struct InPieces<'a>(&'a [u8], usize);

    impl image::ConstantBytes for InPieces<'_> {
        fn write_to(self, out: &mut dyn FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
            self.0.chunks(self.1).try_for_each(out)
        }
    }

    #[test]
    fn pieces_of_constants_make_no_difference() {
        let constants: Vec<u8> = (0..32).collect();
        let (mut whole, mut separate) = (Vec::new(), Vec::new());
        image::write(&mut whole, b"runner", &[with_recipe()], &constants).expect("memory is writable");
        image::write_separate(&mut separate, b"runner", &[with_recipe()], &constants).expect("memory is writable");
        for size in [1, 5, 16, 17, 31] {
            let (mut got, plans) = ([Vec::new(), Vec::new()], [with_recipe()]);
            let pieces = || InPieces(&constants, size);
            image::write(&mut got[0], b"runner", &plans, pieces()).expect("memory is writable");
            image::write_separate(&mut got[1], b"runner", &plans, pieces()).expect("memory is writable");
            assert!(got == [whole.clone(), separate.clone()], "pieces of {size} bytes");
        }
    }

    /// One constant of two plans: a recipe in one of them is enough.
    #[test]
    fn recipe_of_a_shared_constant_is_kept() {
        use prestow_plan::ConstantSource;
        for plans in [[valid(), with_recipe()], [with_recipe(), valid()]] {
            let separate = prestow_plan::separate_constants(&plans).expect("no two overlap");
            let sources: Vec<bool> =
                separate.rows.iter().map(|(_, source)| matches!(source, ConstantSource::Recipe(_))).collect();
            assert_eq!(sources, [true, false]);
        }
    }

    #[test]
    fn constants_in_the_file_are_aligned_to_64_bytes() {
        use prestow_plan::ConstantSource;
        let plans = [valid()];
        let separate = prestow_plan::separate_constants(&plans).expect("no two overlap");
        let sources: Vec<ConstantSource> = separate.rows.iter().map(|(_, source)| *source).collect();
        assert_eq!(sources, [ConstantSource::Stored(Bytes(0)), ConstantSource::Stored(Bytes(64))]);
        assert_eq!(separate.stored, Bytes(80));
    }

    #[test]
    fn constants_that_overlap_have_no_separate_form() {
        let error = |change: fn(&mut Plan)| {
            let mut plan = with_recipe();
            change(&mut plan);
            prestow_plan::separate_constants(&[valid(), plan]).map(drop)
        };
        assert_eq!(error(|_| ()), Ok(()));
        let other_size = "two constants of different sizes start at byte 0".to_string();
        assert_eq!(error(|plan| plan.constants[0].size = Bytes(15)), Err(other_size));
        let inside = "a constant ends behind byte 8, where the next one starts".to_string();
        assert_eq!(error(|plan| plan.constants[0].offset = Bytes(8)), Err(inside));
        assert!(
            error(|plan| (plan.constants[1].offset, plan.constants[1].size) = (Bytes(64), Bytes(u64::MAX))).is_err()
        );
    }

    #[test]
    fn size_of_all_constants_is_checked() {
        let damaged = |file: &[u8]| reason(file).contains("the file is damaged");
        assert!(
            damaged(&with_number(112, 31)) && damaged(&with_number(112, 33)) && damaged(&with_number(112, u64::MAX))
        );
    }

    #[test]
    fn sections_may_touch() {
        let whole = file();
        let trailer = Trailer::read(&whole, whole.len() as u64).expect("it is whole");
        let touching = with_number(24, trailer.constants.start - trailer.plans.start);
        let read = Trailer::read(&touching, touching.len() as u64).expect("no byte is in both");
        assert_eq!(read.plans.end, read.constants.start);
    }

    #[test]
    fn invalid_plan_with_right_checksums_is_refused() {
        let mut plan = valid();
        plan.buffers[1].offset = Bytes(17);
        let errors = check(&plan).expect_err("it is not aligned");
        let section = postcard::to_stdvec(&[plan][..]).expect("it can be written");
        let whole = file();
        let trailer = Trailer::read(&whole, whole.len() as u64).expect("it is whole");
        assert_eq!(section.len() as u64, trailer.plans.end - trailer.plans.start, "the test replaces it in place");
        let mut file = with_number(32, xxhash_rust::xxh3::xxh3_64(&section));
        file[PAGE as usize..PAGE as usize + section.len()].copy_from_slice(&section);
        let expected = ImageError::Invalid { count: errors.len(), first: errors[0].clone() };
        assert_eq!(image::read(&file), Err(expected));
    }

    /// The second plan is as invalid as the first one would be.
    #[test]
    fn every_plan_of_an_image_is_checked() {
        let mut first = valid();
        first.states.clear();
        first.buffers[3].persistence = Persistence::Run;
        let mut second = first.clone();
        second.batch = 8;
        let trailer = |section: &[u8]| Trailer {
            plans: PAGE..PAGE + section.len() as u64,
            plans_checksum: xxhash_rust::xxh3::xxh3_64(section),
            constants: 2 * PAGE..2 * PAGE + 32,
            constants_checksum: 0,
            constants_digest: [0; 32],
            constants_size: 32,
            rest_checksum: 0,
        };
        let read = |plans: &[Plan]| {
            let section = postcard::to_stdvec(plans).expect("it can be written");
            trailer(&section).plans(&section).map(|plans| plans.len())
        };
        assert_eq!(read(&[first.clone(), second.clone()]), Ok(2));
        second.buffers[1].offset = Bytes(17);
        let errors = check(&second).expect_err("it is not aligned");
        let expected = ImageError::Invalid { count: errors.len(), first: errors[0].clone() };
        assert_eq!(read(&[first, second]), Err(expected));
    }

    #[test]
    fn interrupted_reads_are_tried_again_and_other_errors_are_returned() {
        use std::io::{Error, ErrorKind, Read, Result};
        struct Failing<'a>(Option<ErrorKind>, &'a [u8]);
        impl Read for Failing<'_> {
            fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
                match self.0.take() {
                    Some(kind) => Err(Error::from(kind)),
                    None => self.1.read(bytes),
                }
            }
        }
        let file = file();
        let trailer = Trailer::read(&file, file.len() as u64).expect("it is whole");
        let rest = &file[trailer.plans.end as usize..];
        let checked = |kind| trailer.check_rest(Failing(Some(kind), &file), rest).map_err(|error| error.kind());
        assert_eq!(checked(ErrorKind::Interrupted), Ok(Ok(())));
        assert_eq!(checked(ErrorKind::TimedOut), Err(ErrorKind::TimedOut));
    }

    #[test]
    fn constants_of_another_size_than_the_plan_says_are_refused() {
        let error = image::write(&mut Vec::new(), b"runner", &[valid()], &[7; 31]).expect_err("a byte is missing");
        assert_eq!(error.to_string(), "the plan needs 32 bytes of constants, got 31");
        // The constants without their first 16 bytes, which are then padding.
        let mut file = file();
        let start = 2 * PAGE + 16;
        let at = file.len() - Trailer::SIZE;
        file[at + 40..at + 48].copy_from_slice(&start.to_le_bytes());
        file[at + 48..at + 56].copy_from_slice(&16u64.to_le_bytes());
        // Fewer bytes than all constants have would be an executable with separate weights.
        file[at + 112..at + 120].copy_from_slice(&16u64.to_le_bytes());
        let sum = xxhash_rust::xxh3::xxh3_64(&file[at..file.len() - 8]);
        let end = file.len() - 8;
        file[end..].copy_from_slice(&sum.to_le_bytes());
        assert!(reason(&file).contains("the constants have the wrong size"), "{}", reason(&file));
    }

    #[test]
    fn plans_of_one_phase_and_batch_or_of_other_models_are_refused() {
        let mut plain = valid();
        plain.states.clear();
        plain.buffers[3].persistence = Persistence::Run;
        let written =
            |plans: &[Plan]| image::write(&mut Vec::new(), b"runner", plans, &[7; 32]).map_err(|e| e.to_string());
        let mut second = plain.clone();
        second.batch = 8;
        assert_eq!(written(&[plain.clone(), second.clone()]), Ok(()));
        let error = written(&[plain.clone(), plain.clone()]).expect_err("both are for batch 0");
        assert_eq!(error, "two plans are for batch 0");
        for change in [|plan: &mut Plan| plan.model = "other".into(), |plan: &mut Plan| plan.target = "other".into()] {
            let mut other = second.clone();
            change(&mut other);
            let error = written(&[plain.clone(), other]).expect_err("they differ");
            assert!(error.contains("other"), "{error}");
        }
        assert_eq!(written(&[]), Err("there is no plan".into()));
        let evaluation = Plan { phase: Phase::Evaluation(Training::default()), ..second };
        let error = written(&[plain, evaluation]).expect_err("an evaluation needs its step");
        assert!(error.contains("must be the first"), "{error}");
    }

    #[test]
    fn evaluation_reads_some_states_of_the_step() {
        let mut step = step_of_training();
        let half = |name: &str, offset| {
            let operand = Operand { offset: Bytes(offset), size: Bytes(8), ..in_buffer(3) };
            StatePort { port: Port { shape: Shape::from([2]), ..port(name, operand) }, initial: Initial::Zeros }
        };
        step.states = vec![half("first", 0), half("second", 8)];
        let mut evaluation = step.clone();
        evaluation.phase = Phase::Evaluation(step.phase.training().expect("it is a step").clone());
        evaluation.states.remove(0);
        let mut file = Vec::new();
        image::write(&mut file, b"runner", &[step, evaluation], &[7; 32]).expect("the step has both states");
        assert!(image::read(&file).is_ok());
    }

    #[test]
    fn evaluation_has_states_of_the_step_with_their_types() {
        let step = step_of_training();
        let mut evaluation = step.clone();
        evaluation.phase = Phase::Evaluation(step.phase.training().expect("it is a step").clone());
        let written =
            |plans: &[Plan]| image::write(&mut Vec::new(), b"runner", plans, &[7; 32]).map_err(|e| e.to_string());
        assert_eq!(written(&[step.clone(), evaluation.clone()]), Ok(()));
        for change in [
            |port: &mut Port| port.dtype = DType::I32,
            |port: &mut Port| port.shape = Shape::from([2, 2]),
            |port: &mut Port| port.name = "other".into(),
        ] {
            let mut other = evaluation.clone();
            change(&mut other.states[0].port);
            let error = written(&[step.clone(), other]).expect_err("the state is another");
            assert!(error.contains("which the step does not train"), "{error}");
        }
        let error = written(&[step.clone(), evaluation.clone(), evaluation]).expect_err("there are three");
        assert!(error.contains("two plans") || error.contains("must be the first"), "{error}");
    }
}

/// The program headers of a runner.
mod program_headers {
    use prestow_plan::image::{self, Trailer};

    use super::*;

    /// A file with a header of headers, and a segment of 0x200 bytes whose memory ends at `memory_end`.
    fn elf(kind: u16, memory_end: u64) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file[16..18].copy_from_slice(&kind.to_le_bytes());
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&2u16.to_le_bytes());
        for (kind, numbers) in [(6u32, [64, 64, 64, 112, 112, 8]), (1, [0, 0, 0, 0x200, memory_end, 0x1000])] {
            file.extend(kind.to_le_bytes());
            file.extend(5u32.to_le_bytes());
            numbers.iter().for_each(|number: &u64| file.extend(number.to_le_bytes()));
        }
        file.resize(0x203, 0xcc);
        file
    }

    fn written(runner: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        image::write(&mut file, runner, &[valid()], &[7; 32]).expect("memory is writable");
        assert!(image::read(&file).is_ok());
        file
    }

    fn number(file: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"))
    }

    #[test]
    fn headers_lie_behind_the_last_segment_in_one_of_their_own() {
        for (memory_end, at) in [(0x300, 0x10000), (0x10000, 0x10000), (0x10001, 0x20000)] {
            let file = written(&elf(3, memory_end));
            assert_eq!(number(&file, 32), at, "the offset of the headers");
            assert_eq!(u16::from_le_bytes([file[56], file[57]]), 3, "the number of headers");
            let header = |ix: usize| &file[at as usize + 56 * ix..at as usize + 56 * (ix + 1)];
            assert_eq!([header(0)[0], header(1)[0], header(2)[0]], [6, 1, 1]);
            for own in [header(0), header(2)] {
                let numbers = [8, 16, 24, 32, 40].map(|field| number(own, field));
                assert_eq!(numbers, [at, at, at, 3 * 56, 3 * 56], "address and offset are the same");
            }
            assert_eq!((header(2)[4], number(header(2), 48)), (4, 0x1000), "only read, aligned as the others");
            assert_eq!(header(1), &elf(3, memory_end)[120..176], "the program's own segment is unchanged");
            let trailer = Trailer::read(&file, file.len() as u64).expect("it is whole");
            assert!(at + 3 * 56 <= trailer.plans.start);
        }
    }

    #[test]
    fn headers_of_other_files_stay() {
        let short = |length: usize| elf(3, 0x300)[..length].to_vec();
        let mut elsewhere = elf(3, 0x300);
        elsewhere[32] = 80;
        let mut narrow = elf(3, 0x300);
        narrow[54] = 32;
        // Not at any address; without segments; with a gap in memory that would become zeros of the file.
        let mut none = elf(3, 0x300);
        none[120] = 7;
        let far = elf(3, 1 << 40);
        for runner in [b"runner".to_vec(), elf(2, 0x300), short(60), short(100), elsewhere, narrow, none, far] {
            assert_eq!(written(&runner)[..runner.len()], runner[..]);
        }
    }
}
