//! Each rule of a plan that reads constants in every run: a valid plan with one thing wrong is refused for that reason and
//! no other.

use prestow_plan::{ConstantIx, Phase, Plan, PlanError, Residency, ResidentConstant, Training, check, dump, image};
use types::{Bytes, Role, Scope, Tag};

use crate::check::{in_constant, valid};

/// The valid plan with two more constants, one kept and two read.
///
/// ```text
/// step        0   1   2
/// byte     0  w   w   w    kept, used at step 0
///       4096  v   v        used at step 1
///       8192      u   u    used at step 2
/// ```
fn paged() -> Plan {
    let mut plan = valid();
    plan.target = "cpu:x86-64".into();
    let own = plan.constants[0].clone();
    for (name, step) in [("v", 1), ("u", 2)] {
        let tag = Tag { scope: Scope::new(name), role: Role::Constant };
        plan.steps[step].inputs.push(in_constant(plan.constants.len() as u32));
        plan.constants.push(prestow_plan::Constant { tag, ..own.clone() });
    }
    plan.constants.iter_mut().enumerate().for_each(|(ix, constant)| constant.offset = Bytes(4096 * ix as u64));
    plan.constants_size = Bytes(3 * 4096 + 16);
    let resident = |constant, offset, (first_step, last_step)| ResidentConstant {
        constant: ConstantIx(constant),
        offset: Bytes(offset),
        first_step,
        last_step,
    };
    plan.residency = Some(Residency {
        limit: Bytes(64 + 3 * 4096),
        size: Bytes(3 * 4096),
        kept: vec![resident(0, 0, (0, 2))],
        reads: vec![resident(2, 4096, (0, 1)), resident(3, 8192, (1, 2))],
        checksums: vec![0; 4],
    });
    plan
}

/// Expects one error, by its message.
#[track_caller]
fn refused(message: &str, change: impl FnOnce(&mut Plan, &mut Residency)) {
    let mut plan = paged();
    let mut residency = plan.residency.take().expect("it has one");
    change(&mut plan, &mut residency);
    plan.residency = Some(residency);
    let errors = check(&plan).expect_err("the changed plan is invalid");
    assert_eq!(errors.iter().map(PlanError::to_string).collect::<Vec<_>>(), [message]);
}

#[test]
fn valid_residency_passes_and_has_a_text() {
    assert_eq!(check(&paged()), Ok(()));
    let text = dump(&paged());
    assert!(text.contains("block 12288 bytes, with the arena at most 12352\n"), "{text}");
    assert!(text.contains("kept c0 at 0, steps 0..=2\nread c2 at 4096, steps 0..=1\n"), "{text}");
}

#[test]
fn bytes_read_per_run_and_their_bound_follow_from_the_plan() {
    let mut plan = paged();
    assert_eq!((plan.read_size(), plan.least_read_size()), (Bytes(2 * 4096), Bytes(0)));
    plan.residency.as_mut().expect("it has one").limit = Bytes(64 + 4096);
    assert_eq!(plan.least_read_size(), Bytes(2 * 4096));
}

#[test]
fn gpus_and_training_are_refused() {
    let message = "a plan that reads constants in a run must be for a processor and for inference";
    refused(message, |plan, _| plan.target = "cuda:sm_90".into());
    let mut plan = paged();
    plan.phase = Phase::Evaluation(Training::default());
    let errors = check(&plan).expect_err("it is for evaluation");
    assert!(errors.contains(&PlanError::ResidencyTarget), "{errors:?}");
}

#[test]
fn arena_and_block_above_the_limit_are_refused() {
    refused("arena and constants in memory must have at most 12.06 KiB together, got 64 B and 12.00 KiB", |_, own| {
        own.limit.0 -= 1;
    });
    let mut plan = paged();
    plan.residency.as_mut().expect("it has one").size = Bytes(u64::MAX);
    assert!(matches!(check(&plan).expect_err("the sum is too large")[0], PlanError::ResidencyLimit { .. }));
}

#[test]
fn missing_checksum_is_refused() {
    refused("there must be a checksum for each of the 4 constants, got 3", |_, own| _ = own.checksums.pop());
}

#[test]
fn constant_within_a_page_is_refused() {
    refused("constant 1 must start at a page boundary to be read in a run, got byte 4160", |plan, _| {
        plan.constants[1].offset = Bytes(4160);
    });
}

#[test]
fn missing_constant_is_refused() {
    refused("read 1 names constant 9, which does not exist", |_, own| own.reads[1].constant = ConstantIx(9));
}

#[test]
fn life_outside_the_steps_is_refused() {
    refused("read 1 must be in memory within the 3 steps, got 1 to 3", |_, own| own.reads[1].last_step = 3);
    refused("read 1 must be in memory within the 3 steps, got 2 to 1", |_, own| {
        (own.reads[1].first_step, own.reads[1].last_step) = (2, 1);
    });
}

#[test]
fn kept_constant_of_some_steps_is_refused() {
    refused("kept constant 0 must be in memory at all 3 steps, got 0 to 1", |_, own| own.kept[0].last_step = 1);
}

#[test]
fn reads_out_of_order_are_refused() {
    refused("read 1 must not start before the read in front of it, got step 0", |_, own| own.reads.swap(0, 1));
}

#[test]
fn read_without_use_is_refused() {
    refused("read 2 has no step that uses it", |_, own| {
        own.reads.push(ResidentConstant { constant: ConstantIx(1), offset: Bytes(4096), first_step: 2, last_step: 2 });
    });
}

#[test]
fn shared_and_outside_bytes_are_refused() {
    let start = "the constants in memory are placed wrong: ";
    refused(&format!("{start}live buffers must not overlap, got `b1` and `b2` at step `1`"), |_, own| {
        own.reads[1].offset = Bytes(4096);
    });
    refused(&format!("{start}buffer `b2` must end within the height of `12288`, got `16384`"), |_, own| {
        own.reads[1].offset = Bytes(3 * 4096);
    });
    refused(&format!("{start}offset of buffer `b2` must be a multiple of `4096`, got `8193`"), |_, own| {
        (own.reads[1].offset, own.size, own.limit) = (Bytes(8193), Bytes(4 * 4096), Bytes(64 + 4 * 4096));
    });
}

#[test]
fn constant_in_memory_twice_is_refused() {
    refused("constant 2 is in memory twice at step 1", |plan, own| {
        plan.steps[2].inputs.pop();
        own.reads[1].constant = ConstantIx(2);
    });
}

#[test]
fn use_outside_of_the_life_is_refused() {
    let message = |step| format!("step {step} (`layer`) uses constant 2, which is not in memory then");
    refused(&message(2), |plan, _| plan.steps[2].inputs.push(in_constant(2)));
    refused(&message(0), |plan, own| {
        plan.steps[0].inputs.push(in_constant(2));
        own.reads[0].first_step = 1;
    });
}

#[test]
fn plans_of_one_image_stay_within_one_limit_together() {
    let write = |plans: &[Plan]| {
        let constants = vec![0; plans[0].constants_size.0 as usize];
        image::write(&mut Vec::new(), b"runner", plans, &constants).map_err(|error| error.to_string())
    };
    let mut plan = paged();
    // A model of several plans has no state.
    plan.states.clear();
    plan.steps[2].outputs.clear();
    plan.buffers.truncate(5);
    plan.buffers.remove(3);
    plan.steps[1].workspace.as_mut().expect("it has one").place =
        prestow_plan::Place::Buffer(prestow_plan::BufferIx(3));
    let peak = types::Certificate { value: Bytes(48), lower_bound: Bytes(48), least: Bytes(48) };
    (plan.arena.certificate, plan.order) = (peak, peak);
    assert_eq!(check(&plan), Ok(()));
    let other = |change: fn(&mut Plan)| {
        let mut other = plan.clone();
        other.batch = 2;
        change(&mut other);
        [plan.clone(), other]
    };
    assert_eq!(write(&other(|_| ())), Ok(()));
    let mixed = write(&other(|plan| plan.residency = None)).expect_err("one is whole");
    assert!(mixed.contains("some read constants within a limit of 12.06 KiB in a run, others do not"), "{mixed}");
    let above = write(&other(|plan| {
        let own = plan.residency.as_mut().expect("it has one");
        own.limit = Bytes(48 + 3 * 4096);
    }));
    assert!(above.is_err(), "limits differ");
}
