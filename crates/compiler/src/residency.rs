//! [`within`]: a program that reads its constants in every run, so that arena and constants stay within a limit.

use arena::{ItemStay, ResidencyProblem, StepTooLarge, keep_and_stream};
use plan::image::{PAGE, checksum};
use plan::{ConstantIx, Plan, Residency, ResidentConstant};
use types::Bytes;

use crate::Program;

/// Reason why a program does not stay within a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "step {step} (`{scope}`){} needs its constants of {constants} and the arena of {arena} in memory at once: --resident \
     must be at least {least} ({} bytes), got {limit}", batch_text(*.batch), .least.0
)]
pub struct ResidencyError {
    /// The batch, if there are several.
    batch: Option<u64>,
    /// The step that needs the most.
    step: usize,
    /// Its node.
    scope: String,
    /// Its constants, in whole pages.
    constants: Bytes,
    /// The arena of all plans.
    arena: Bytes,
    /// The least limit.
    pub least: Bytes,
    /// The limit.
    limit: Bytes,
}

fn batch_text(batch: Option<u64>) -> String {
    batch.map(|batch| format!(" of batch {batch}")).unwrap_or_default()
}

/// The constants of a program, compared with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// All of them fit together with the arena: the program is unchanged.
    Whole,
    /// Some are read in every run.
    Reads,
}

/// Plans which constants stay in memory, and when the others are read, so that the arena of all plans and the constants in
/// memory take at most `limit` bytes.
///
/// # Errors
/// A step whose own constants do not fit together with the arena.
pub fn within(program: &mut Program, limit: Bytes) -> Result<Within, ResidencyError> {
    let arena = program.plans.iter().map(|plan| plan.arena.size()).max().unwrap_or_default();
    let capacity = Bytes(limit.0.saturating_sub(arena.0));
    let problems: Vec<ResidencyProblem> = program.plans.iter().map(|plan| problem(plan, capacity)).collect();
    let all = |problem: &ResidencyProblem| problem.sizes.iter().copied().sum::<Bytes>();
    if arena <= limit && problems.iter().all(|problem| all(problem) <= capacity) {
        return Ok(Within::Whole);
    }
    let needs = program.plans.iter().zip(&problems).map(|(plan, problem)| (plan, largest_step(plan, problem)));
    let (plan, (step, constants)) = needs.max_by_key(|(_, (_, need))| *need).expect("a program has a plan");
    if limit < arena || capacity < constants {
        return Err(ResidencyError {
            batch: (1 < program.plans.len()).then_some(plan.batch),
            step,
            scope: plan.steps.get(step).map(|step| step.scope.to_string()).unwrap_or_default(),
            constants,
            arena,
            least: arena + constants,
            limit,
        });
    }
    let found: Result<Vec<arena::Streaming>, StepTooLarge> = problems.iter().map(keep_and_stream).collect();
    let found = found.expect("the largest step fits");
    // The file is read in whole pages.
    let moved = program.constants.realign(Bytes(PAGE));
    for plan in &mut program.plans {
        plan.constants_size = program.constants.size();
        for constant in &mut plan.constants {
            constant.offset = moved[&(constant.offset, constant.size)];
        }
    }
    for (plan, found) in program.plans.iter_mut().zip(found) {
        let place = |resident: &ItemStay| ResidentConstant {
            constant: ConstantIx(resident.item as u32),
            offset: resident.offset,
            first_step: resident.first_step,
            last_step: resident.last_step,
        };
        let bytes = |constant: &plan::Constant| checksum(&program.constants.bytes((constant.offset, constant.size)));
        plan.residency = Some(Residency {
            limit,
            size: found.size,
            kept: found.kept.iter().map(place).collect(),
            reads: found.reads.iter().map(place).collect(),
            checksums: plan.constants.iter().map(bytes).collect(),
        });
    }
    Ok(Within::Reads)
}

/// The step whose constants take the most bytes, and these.
fn largest_step(plan: &Plan, problem: &ResidencyProblem) -> (usize, Bytes) {
    let need = |items: &Vec<usize>| items.iter().map(|&item| problem.sizes[item]).sum::<Bytes>();
    let steps = problem.uses.iter().map(need).enumerate();
    let largest = steps.max_by_key(|&(step, need)| (need, usize::MAX - step));
    largest.unwrap_or((plan.arena.peak_step as usize, Bytes::ZERO))
}

/// The constants of a plan, in whole pages, and the steps that use them.
fn problem(plan: &Plan, capacity: Bytes) -> ResidencyProblem {
    let items = |step: &plan::Step| plan.constants_of(step).into_iter().map(|ConstantIx(ix)| ix as usize).collect();
    let uses = plan.steps.iter().map(items).collect();
    let sizes = plan.constants.iter().map(|constant| constant.size.align_up(Bytes(PAGE))).collect();
    ResidencyProblem { sizes, uses, capacity, alignment: Bytes(PAGE) }
}
