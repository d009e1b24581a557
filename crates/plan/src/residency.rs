//! [`check`]: the rules of a plan that reads constants in every run. If they hold, every step finds its constants in the
//! block, no read overwrites bytes that a step still uses, and no read waits for a step that waits for it.

use types::Bytes;

use crate::image::PAGE;
use crate::{ConstantIx, Phase, Plan, PlanError, Residency, ResidentConstant};

/// Adds every rule that the residency of a plan breaks.
pub(crate) fn check(plan: &Plan, errors: &mut Vec<PlanError>) {
    let Some(residency) = &plan.residency else { return };
    if !plan.target.starts_with("cpu:") || plan.phase != Phase::Inference {
        errors.push(PlanError::ResidencyTarget);
    }
    let (arena, size, limit) = (plan.arena.size(), residency.size, residency.limit);
    if arena.0.checked_add(size.0).is_none_or(|sum| limit.0 < sum) {
        errors.push(PlanError::ResidencyLimit { arena, size, limit });
    }
    if residency.checksums.len() != plan.constants.len() {
        errors.push(PlanError::Checksums { want: plan.constants.len(), got: residency.checksums.len() });
    }
    for (ix, constant) in plan.constants.iter().enumerate().filter(|(_, constant)| 0 < constant.size.0) {
        if !constant.offset.0.is_multiple_of(PAGE) {
            errors.push(PlanError::ConstantAlignment { constant: ix as u32, offset: constant.offset.0 });
        }
    }
    let before = errors.len();
    check_steps(plan, residency, errors);
    // The rules below index steps and constants.
    if errors.len() == before {
        check_places(plan, residency, errors);
    }
    if errors.len() == before {
        check_uses(plan, residency, errors);
    }
}

/// Each constant exists, is in memory within the steps, and reads start in order.
fn check_steps(plan: &Plan, residency: &Residency, errors: &mut Vec<PlanError>) {
    let steps = plan.step_count();
    for (who, resident) in named(residency) {
        let ResidentConstant { constant: ConstantIx(constant), first_step: first, last_step: last, .. } = *resident;
        if plan.constants.len() <= constant as usize {
            errors.push(PlanError::NoSuchConstant { who: who.clone(), constant });
        }
        if last < first || steps <= last {
            errors.push(PlanError::ResidentSteps { who, first, last, steps });
        }
    }
    for (ix, kept) in residency.kept.iter().enumerate() {
        let (first, last) = (kept.first_step, kept.last_step);
        if first <= last && last < steps && (first, last) != (0, steps - 1) {
            errors.push(PlanError::KeptSteps { who: format!("kept constant {ix}"), first, last, steps });
        }
    }
    for (ix, pair) in residency.reads.windows(2).enumerate() {
        if pair[1].first_step < pair[0].first_step {
            errors.push(PlanError::ReadOrder { who: format!("read {}", ix + 1), step: pair[1].first_step });
        }
    }
}

/// Constants that are in memory at one step share no byte, and all are in the block.
fn check_places(plan: &Plan, residency: &Residency, errors: &mut Vec<PlanError>) {
    let buffer = |resident: &ResidentConstant| arena::Buffer {
        alignment: Bytes(PAGE),
        ..arena::Buffer::new(
            arena::Lifetime { first: resident.first_step, end: resident.last_step + 1 },
            plan.resident_size(resident),
        )
    };
    let residents = || residency.kept.iter().chain(&residency.reads);
    let problem = arena::Problem { buffers: residents().map(buffer).collect(), capacity: None };
    let offsets: Vec<Bytes> = residents().map(|resident| resident.offset).collect();
    if let Err(violations) = arena::check(&problem, &offsets, residency.size) {
        errors.extend(violations.iter().map(|violation| PlanError::ResidentPlacement(violation.to_string())));
    }
    let mut lives: Vec<&ResidentConstant> = residents().collect();
    lives.sort_by_key(|resident| (resident.constant, resident.first_step));
    for pair in lives.windows(2) {
        if pair[0].constant == pair[1].constant && pair[1].first_step <= pair[0].last_step {
            let (constant, step) = (pair[1].constant.0, pair[1].first_step);
            errors.push(PlanError::ResidentTwice { constant, step });
        }
    }
}

/// Every step finds its constants in the block, and every read has a step that uses it. The lives of a constant are disjoint,
/// and in the order of their first steps.
fn check_uses(plan: &Plan, residency: &Residency, errors: &mut Vec<PlanError>) {
    let mut by_constant: Vec<Vec<usize>> = vec![Vec::new(); plan.constants.len()];
    let residents: Vec<(String, &ResidentConstant)> = named(residency).collect();
    for (ix, (_, resident)) in residents.iter().enumerate() {
        by_constant[resident.constant.0 as usize].push(ix);
    }
    let mut is_used = vec![false; residents.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        // Another rule reports operands that name no constant.
        for ConstantIx(constant) in plan.constants_of(step) {
            let Some(own) = by_constant.get(constant as usize) else { continue };
            let behind = own.partition_point(|&ix| residents[ix].1.first_step <= at as u32);
            match own[..behind].last().filter(|&&ix| residents[ix].1.is_alive(at as u32)) {
                Some(&ix) => is_used[ix] = true,
                None => errors.push(PlanError::NotResident { step: at as u32, scope: step.scope.clone(), constant }),
            }
        }
    }
    let unused = residents.iter().zip(is_used).filter(|(_, is_used)| !is_used);
    errors.extend(unused.map(|((who, _), _)| PlanError::UnusedRead { who: who.clone() }));
}

/// The constants in memory with their names in messages.
fn named(residency: &Residency) -> impl Iterator<Item = (String, &ResidentConstant)> {
    let kept = residency.kept.iter().enumerate().map(|(ix, own)| (format!("kept constant {ix}"), own));
    kept.chain(residency.reads.iter().enumerate().map(|(ix, own)| (format!("read {ix}"), own)))
}
