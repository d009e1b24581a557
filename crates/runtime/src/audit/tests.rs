//! A device whose steps are functions of a test: the audit finds every deviation from the plan, and no other.

use std::sync::Arc;

use plan::{Arena, Buffer, BufferIx, Initial, Persistence, Port, StatePort};
use types::{Bytes, Certificate, DType, Layout, Role, Scope, Shape, Tag};

use super::*;
use crate::device::Backend;

type Script = Box<dyn FnMut(&mut [u8]) + Send>;

/// A device of one plan.
struct Scripted {
    plan: Plan,
    arena: Vec<u8>,
    steps: Vec<Script>,
    fills_workspace: bool,
}

impl Backend for Scripted {
    fn step(&mut self, _: usize, step: usize) -> Result<(), RunError> {
        (self.steps[step])(&mut self.arena);
        Ok(())
    }

    fn run(&mut self, plan: usize) -> Result<(), RunError> {
        (0..self.steps.len()).try_for_each(|step| self.step(plan, step))
    }

    fn write(&mut self, _: usize, operand: &Operand, bytes: &[u8]) -> Result<(), RunError> {
        let range = range(&self.plan, operand).expect("it is in the arena");
        self.arena[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, _: usize, operand: &Operand, bytes: &mut [u8]) -> Result<(), RunError> {
        bytes.copy_from_slice(&self.arena[range(&self.plan, operand).expect("it is in the arena")]);
        Ok(())
    }

    fn arena(&mut self) -> Result<&mut [u8], RunError> {
        Ok(&mut self.arena)
    }

    fn threads(&self) -> usize {
        1
    }

    fn fills_workspace(&self, _: usize, _: usize) -> bool {
        self.fills_workspace
    }

    fn describe(&self) -> String {
        "scripted".into()
    }
}

fn buffer(offset: u64, size: u64, steps: (u32, u32)) -> Buffer {
    Buffer {
        tag: Tag { scope: Scope::new("b"), role: Role::Activation },
        size: Bytes(size),
        offset: Bytes(offset),
        first_step: steps.0,
        last_step: steps.1,
        persistence: Persistence::Run,
        values: Vec::new(),
        refused: Vec::new(),
    }
}

fn whole(plan_buffers: &[Buffer], ix: u32) -> Operand {
    Operand { place: Place::Buffer(BufferIx(ix)), offset: Bytes(0), size: plan_buffers[ix as usize].size }
}

fn port(name: &str, operand: Operand) -> Port {
    let shape = Shape::from([operand.size.0 as usize]);
    Port { name: name.into(), dtype: DType::U8, shape, layout: Layout::default(), operand }
}

fn step(scope: &str, inputs: &[Operand], outputs: &[Operand], workspace: Option<Operand>) -> Step {
    Step {
        scope: Scope::new(scope),
        kernel: String::new(),
        label: String::new(),
        code: Vec::new(),
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        workspace,
        flops: 0,
    }
}

/// Two steps: `a = x + 1`, `y = a + 1` with a workspace, and 4 bytes that no buffer has.
///
/// ```text
/// step     0    1
/// 0..4     x    workspace
/// 4..8     a    a
/// 8..12         y
/// 12..16   nothing
/// ```
fn two_steps() -> Plan {
    let buffers = vec![buffer(0, 4, (0, 0)), buffer(4, 4, (0, 1)), buffer(8, 4, (1, 1)), buffer(0, 4, (1, 1))];
    let operand = |ix| whole(&buffers, ix);
    let size = Certificate { value: Bytes(16), lower_bound: Bytes(12), least: Bytes(12) };
    Plan {
        inputs: vec![port("x", operand(0))],
        outputs: vec![port("y", operand(2))],
        steps: vec![
            step("first", &[operand(0)], &[operand(1)], None),
            step("second", &[operand(1)], &[operand(2)], Some(operand(3))),
        ],
        arena: Arena { alignment: Bytes(1), peak_step: 1, certificate: size },
        buffers,
        ..Plan::default()
    }
}

fn increment(arena: &mut [u8], from: usize, to: usize) {
    (0..4).for_each(|at| arena[to + at] = arena[from + at].wrapping_add(1));
}

fn first(arena: &mut [u8]) {
    increment(arena, 0, 4);
}

fn second(arena: &mut [u8]) {
    arena[0..4].fill(9);
    increment(arena, 4, 8);
}

fn session(plan: Plan, steps: Vec<Script>) -> Session {
    let arena = vec![0; plan.arena.size().0 as usize];
    let backend = Scripted { plan: plan.clone(), arena, steps, fills_workspace: true };
    Session::of_backend(Arc::new(plan), Box::new(backend))
}

/// Audits the plan of two steps.
fn audited(a: impl FnMut(&mut [u8]) + Send + 'static, b: impl FnMut(&mut [u8]) + Send + 'static) -> Audit {
    let mut session = session(two_steps(), vec![Box::new(a), Box::new(b)]);
    audit(&mut session, &[vec![1, 2, 3, 4]]).expect("it does not fail")
}

fn written(audit: &Audit) -> Vec<u64> {
    audit.buffers.iter().map(|buffer| buffer.written).collect()
}

#[test]
fn faithful_run_is_equal_to_its_plan() {
    let audit = audited(first, second);
    assert!(audit.is_equal(), "{audit:?}");
    assert_eq!((audit.planned_bytes, audit.written_bytes, audit.outside_bytes), (12, 12, 0));
    assert_eq!(written(&audit), [4, 4, 4, 4]);
    assert!(audit.buffers.iter().all(|buffer| buffer.assumed == 0 && buffer.outside == 0));
    assert_eq!(audit.live_written, [8, 12]);
    assert_eq!(audit.outside, []);
}

#[test]
fn write_outside_every_buffer_is_found() {
    let audit = audited(first, |arena| {
        second(arena);
        arena[13] ^= 1;
    });
    assert!(!audit.is_equal());
    assert_eq!((audit.outside_bytes, &audit.outside[..]), (2, &[(1, 1), (1, 1)][..]), "once in each run");
    assert!(audit.buffers.iter().all(|buffer| buffer.outside == 0), "no buffer was hit: {audit:?}");
    assert!(audit.same_results);
}

/// The byte belongs to the result of the second step, which the first one must not touch.
#[test]
fn write_outside_that_a_later_step_overwrites_is_found() {
    let audit = audited(
        |arena| {
            first(arena);
            arena[9] ^= 1;
        },
        second,
    );
    assert!(!audit.is_equal());
    assert_eq!(audit.outside, [(0, 1), (0, 1)]);
}

#[test]
fn write_outside_that_does_not_happen_again_is_found() {
    let mut runs = 0;
    let audit = audited(
        move |arena| {
            first(arena);
            runs += 1;
            arena[13] ^= u8::from(runs == 1);
        },
        second,
    );
    assert!(!audit.is_equal());
    assert_eq!((audit.outside_bytes, audit.outside.len()), (1, 1));
}

#[test]
fn common_ranges_are_those_of_single_positions() {
    let mut random = types::Random::new(3);
    for _ in 0..500 {
        let mut bytes = || -> Vec<u8> { (0..40).map(|_| u8::from(random.below(3) != 0)).collect() };
        let (a, b) = (bytes(), bytes());
        let of_both: Vec<u8> = a.iter().zip(&b).map(|(a, b)| a & b).collect();
        let found: Vec<usize> = common(&runs_of(1, &a), &runs_of(1, &b)).into_iter().flatten().collect();
        let want: Vec<usize> = runs_of(1, &of_both).into_iter().flatten().collect();
        assert_eq!(found, want);
    }
}

#[test]
fn write_into_a_live_buffer_of_another_is_found() {
    let audit = audited(first, |arena| {
        second(arena);
        arena[6] ^= 0xff;
    });
    assert!(!audit.is_equal());
    let outside: Vec<u64> = audit.buffers.iter().map(|buffer| buffer.outside).collect();
    assert_eq!((audit.outside_bytes, outside), (2, vec![0, 2, 0, 0]));
}

#[test]
fn byte_that_is_never_written_is_found() {
    let audit = audited(first, |arena| {
        let kept = arena[9];
        second(arena);
        arena[9] = kept;
    });
    assert!(!audit.is_equal());
    assert_eq!((audit.planned_bytes, audit.written_bytes, written(&audit)), (12, 11, vec![4, 4, 3, 4]));
    assert_eq!(audit.live_written, [8, 11]);
}

#[test]
fn byte_that_happens_to_equal_a_pattern_counts_as_written() {
    let constant = |value: u8| {
        audited(first, move |arena| {
            arena[0..4].fill(value);
            arena[8..12].fill(value);
        })
    };
    assert!(constant(0xA5).is_equal());
    assert!(constant(0x5A).is_equal());
}

#[test]
fn unwritten_workspace_is_found_unless_the_step_may_leave_it() {
    let steps = || -> Vec<Script> { vec![Box::new(first), Box::new(|arena| increment(arena, 4, 8))] };
    let mut strict = session(two_steps(), steps());
    let audit_of = |session: &mut Session| audit(session, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert_eq!(written(&audit_of(&mut strict)), [4, 4, 4, 0]);
    let plan = two_steps();
    let backend = Scripted { plan: plan.clone(), arena: vec![0; 16], steps: steps(), fills_workspace: false };
    let mut lenient = Session::of_backend(Arc::new(plan), Box::new(backend));
    let audit = audit_of(&mut lenient);
    assert!(audit.is_equal(), "{audit:?}");
    assert_eq!((written(&audit)[3], audit.buffers[3].assumed), (4, 4));
}

#[test]
fn read_of_uninitialized_bytes_is_found() {
    let audit = audited(first, |arena| {
        increment(arena, 0, 8);
        arena[0..4].fill(9);
    });
    assert!(!audit.same_results && !audit.is_equal());
    assert_eq!(audit.outside_bytes, 0);
}

#[test]
fn read_of_a_dead_buffer_is_found() {
    // Without a workspace nothing else changes the bytes of `x` after step 0.
    let mut plan = two_steps();
    plan.steps[1].workspace = None;
    plan.buffers.pop();
    let mut session = session(plan, vec![Box::new(first), Box::new(|arena| increment(arena, 0, 8))]);
    let audit = audit(&mut session, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(!audit.same_results && audit.outside_bytes == 0, "{audit:?}");
}

#[test]
fn results_that_differ_from_a_plain_run_are_found() {
    // The third run is the plain one.
    let mut runs = 0;
    let audit = audited(first, move |arena| {
        second(arena);
        runs += 1;
        arena[8] = u8::from(runs == 3);
    });
    assert!(!audit.same_results);
    let mut runs = 0;
    let audit = audited(first, move |arena| {
        second(arena);
        runs += 1;
        arena[8] = u8::from(runs == 1);
    });
    assert!(!audit.same_results);
}

#[test]
fn in_place_result_is_assumed_where_it_cannot_be_checked() {
    let mut plan = two_steps();
    plan.steps[1] = step("second", &[whole(&plan.buffers, 1)], &[whole(&plan.buffers, 1)], None);
    plan.outputs = vec![port("y", whole(&plan.buffers, 1))];
    plan.buffers.truncate(2);
    let mut session = session(plan, vec![Box::new(first), Box::new(|arena| increment(arena, 4, 4))]);
    let audit = audit(&mut session, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(audit.is_equal(), "{audit:?}");
    assert_eq!((audit.planned_bytes, audit.live_written), (8, vec![8, 4]));
}

#[test]
fn slices_of_one_result_add_up() {
    // Two steps of one node write halves of `a`; the second may not lose the first.
    let buffers = vec![buffer(0, 4, (0, 1)), buffer(4, 4, (0, 1))];
    let half = |offset| Operand { offset: Bytes(offset), size: Bytes(2), ..whole(&buffers, 1) };
    let certificate = Certificate { value: Bytes(8), lower_bound: Bytes(8), least: Bytes(8) };
    let plan = Plan {
        inputs: vec![port("x", whole(&buffers, 0))],
        outputs: vec![port("y", whole(&buffers, 1))],
        steps: vec![
            step("concat", &[whole(&buffers, 0)], &[half(0)], None),
            step("concat", &[whole(&buffers, 0)], &[half(2)], None),
        ],
        arena: Arena { alignment: Bytes(1), peak_step: 0, certificate },
        buffers,
        ..Plan::default()
    };
    let copy = |from: usize, to: usize| -> Script { Box::new(move |arena| arena.copy_within(from..from + 2, to)) };
    let mut whole_run = session(plan.clone(), vec![copy(0, 4), copy(2, 6)]);
    let all = audit(&mut whole_run, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(all.is_equal(), "{all:?}");
    assert_eq!(all.live_written, [6, 8]);
    let mut lost = session(plan.clone(), vec![copy(0, 4), Box::new(|_| {})]);
    let part = audit(&mut lost, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(!part.is_equal() && part.written_bytes == 6, "{part:?}");
    // The upper half first.
    let mut reversed = plan;
    reversed.steps.swap(0, 1);
    let mut lost = session(reversed, vec![copy(2, 6), Box::new(|_| {})]);
    let part = audit(&mut lost, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(!part.is_equal() && part.written_bytes == 6, "{part:?}");
}

/// A plan of two steps with the same whole output `a`, in 4..8; the first has another output as well.
fn filled_twice(scopes: [&str; 2]) -> Plan {
    let buffers = vec![buffer(0, 4, (0, 1)), buffer(4, 4, (0, 1)), buffer(8, 4, (0, 0))];
    let operand = |ix| whole(&buffers, ix);
    let certificate = Certificate { value: Bytes(12), lower_bound: Bytes(12), least: Bytes(12) };
    Plan {
        inputs: vec![port("x", operand(0))],
        outputs: vec![port("y", operand(1))],
        steps: vec![
            step(scopes[0], &[operand(0)], &[operand(1), operand(2)], None),
            step(scopes[1], &[operand(0)], &[operand(1)], None),
        ],
        arena: Arena { alignment: Bytes(1), peak_step: 0, certificate },
        buffers,
        ..Plan::default()
    }
}

/// The first step writes the lower half of `a`, the second the upper half.
fn halves() -> Vec<Script> {
    let lower = |arena: &mut [u8]| {
        arena.copy_within(0..2, 4);
        arena[8..12].fill(1);
    };
    vec![Box::new(lower), Box::new(|arena| arena.copy_within(2..4, 6))]
}

#[test]
fn second_call_of_a_node_keeps_the_bytes_of_the_first() {
    let mut calls = session(filled_twice(["concat", "concat"]), halves());
    let audit = audit(&mut calls, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(audit.is_equal(), "{audit:?}");
    assert_eq!((audit.buffers[1].written, audit.buffers[1].assumed), (4, 2));
}

#[test]
fn second_node_must_write_its_whole_output() {
    let mut nodes = session(filled_twice(["first", "second"]), halves());
    let audit = audit(&mut nodes, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(!audit.is_equal(), "{audit:?}");
    assert_eq!((audit.buffers[1].written, audit.buffers[1].assumed), (2, 0));
}

#[test]
fn second_call_of_a_node_must_write_another_buffer_at_the_same_place() {
    // The second step's output takes the place of the first one's, which nothing reads.
    let mut plan = filled_twice(["split", "split"]);
    plan.buffers[1].last_step = 0;
    plan.buffers.push(buffer(4, 4, (1, 1)));
    plan.steps[1].outputs = vec![whole(&plan.buffers, 3)];
    plan.outputs = vec![port("y", whole(&plan.buffers, 3))];
    let mut calls = session(plan, halves());
    let audit = audit(&mut calls, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(!audit.is_equal(), "{audit:?}");
    assert_eq!((audit.buffers[3].written, audit.buffers[3].assumed), (2, 0));
}

/// `y = [x + 1, x + 2]`: a step writes the first half of a buffer; the next one works in the bytes of the other half, which the
/// last one writes.
///
/// ```text
/// step     0      1      2
/// 0..4     x      x      x
/// 4..8     left   left   y
/// 8..12           work   y
/// ```
fn with_window() -> Plan {
    let buffers = vec![buffer(0, 4, (0, 2)), buffer(4, 8, (0, 2)), buffer(8, 4, (1, 1))];
    let operand = |ix| whole(&buffers, ix);
    let half = |offset| Operand { offset: Bytes(offset), size: Bytes(4), ..operand(1) };
    let size = Certificate { value: Bytes(12), lower_bound: Bytes(12), least: Bytes(12) };
    Plan {
        inputs: vec![port("x", operand(0))],
        outputs: vec![port("y", operand(1))],
        steps: vec![
            step("left", &[operand(0)], &[half(0)], None),
            step("other", &[operand(0)], &[], Some(operand(2))),
            step("right", &[operand(0)], &[half(4)], None),
        ],
        arena: Arena { alignment: Bytes(1), peak_step: 1, certificate: size },
        buffers,
        ..Plan::default()
    }
}

fn windowed(right: impl FnMut(&mut [u8]) + Send + 'static) -> Audit {
    let other = |arena: &mut [u8]| arena[8..12].fill(7);
    let mut session =
        session(with_window(), vec![Box::new(|arena| increment(arena, 0, 4)), Box::new(other), Box::new(right)]);
    audit(&mut session, &[vec![1, 2, 3, 4]]).expect("it does not fail")
}

#[test]
fn bytes_of_a_window_belong_to_one_buffer_at_a_time() {
    let audit = windowed(|arena| (0..4).for_each(|at| arena[8 + at] = arena[at].wrapping_add(2)));
    assert!(audit.is_equal(), "{audit:?}");
    assert_eq!(written(&audit), [4, 8, 4]);
    assert_eq!(audit.live_written, [8, 12, 12]);
}

#[test]
fn bytes_of_another_buffer_in_a_window_are_not_a_value() {
    let audit = windowed(|arena| arena[8] = arena[8].wrapping_add(1));
    assert!(!audit.is_equal(), "{audit:?}");
    let reads = windowed(|arena| (0..4).for_each(|at| arena[8 + at] = arena[8 + at].wrapping_add(arena[at])));
    assert!(!reads.is_equal(), "{reads:?}");
}

/// The result is the input.
#[test]
fn plan_without_steps_is_written_by_the_caller() {
    let buffers = vec![buffer(0, 4, (0, 0))];
    let port = |name: &str| port(name, whole(&buffers, 0));
    let size = Certificate { value: Bytes(4), lower_bound: Bytes(4), least: Bytes(4) };
    let arena = Arena { alignment: Bytes(1), peak_step: 0, certificate: size };
    let plan =
        Plan { inputs: vec![port("x")], outputs: vec![port("y")], arena, buffers: buffers.clone(), ..Plan::default() };
    let mut session = session(plan, Vec::new());
    let audit = audit(&mut session, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(audit.is_equal(), "{audit:?}");
    assert_eq!((written(&audit), audit.live_written), (vec![4], Vec::new()));
}

/// Two steps; the second replaces a state of 4 bytes.
fn with_state() -> Plan {
    let mut plan = two_steps();
    plan.buffers.push(Buffer { persistence: Persistence::Session, ..buffer(12, 4, (0, 1)) });
    let state = whole(&plan.buffers, 4);
    plan.states = vec![StatePort { port: port("state", state), initial: Initial::Zeros }];
    plan.steps[1].outputs.push(state);
    plan.steps[1].inputs.push(state);
    plan
}

/// The input is dead at the second step, which adds a byte of it to a state. No output shows that.
#[test]
fn state_that_depends_on_a_dead_buffer_is_found() {
    let stale = |arena: &mut [u8]| {
        arena[12] = arena[12].wrapping_add(arena[0]);
        second(arena);
    };
    let mut session = session(with_state(), vec![Box::new(first), Box::new(stale)]);
    let audit = audit(&mut session, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(!audit.same_results && !audit.is_equal(), "{audit:?}");
}

#[test]
fn states_are_results_and_are_kept() {
    let mut session = session(
        with_state(),
        vec![
            Box::new(first),
            Box::new(|arena| {
                second(arena);
                increment(arena, 12, 12);
                arena[8] = arena[12];
            }),
        ],
    );
    session.write_states(&[vec![5, 6, 7, 8]]).expect("it fits");
    let audit = audit(&mut session, &[vec![1, 2, 3, 4]]).expect("it does not fail");
    assert!(audit.is_equal(), "every run starts from the same states: {audit:?}");
    assert_eq!(audit.buffers[4].written, 4);
    assert_eq!(session.states().expect("it does not fail"), [[5, 6, 7, 8]], "the audit restores the states");
}

#[test]
fn common_numbers_of_sorted_lists() {
    assert_eq!(common(&[1..4, 5..9], &[0..2, 3..6, 8..10]), [1..2, 3..4, 5..6, 8..9]);
    assert_eq!(common(&[], &[1..2, 3..4]), []);
}
