//! The items that stay in memory and the reads of each run: against a judge that follows the definition step by step, and
//! against the least bytes of all policies of small problems.

use prestow_arena::{ItemStay, Overlap, ResidencyProblem, StepTooLarge, Streaming, keep_and_stream};
use types::{Bytes, Random};

use crate::effort;

fn problem(sizes: &[u64], uses: &[&[usize]], capacity: u64) -> ResidencyProblem {
    ResidencyProblem {
        sizes: sizes.iter().copied().map(Bytes).collect(),
        uses: uses.iter().map(|items| items.to_vec()).collect(),
        capacity: Bytes(capacity),
        alignment: Bytes(1),
    }
}

/// Plans, and checks all properties step by step.
#[track_caller]
fn planned(problem: &ResidencyProblem) -> Streaming {
    let found = keep_and_stream(problem).unwrap_or_else(|error| panic!("{error}: {problem:?}"));
    let all: Vec<&ItemStay> = found.kept.iter().chain(&found.reads).collect();
    let range = |own: &ItemStay| own.offset.0..own.offset.0 + problem.sizes[own.item].0;
    assert!(found.size <= problem.capacity, "{problem:?}");
    for own in &all {
        assert!(range(own).end <= found.size.0, "{own:?} of {found:?}");
        assert_eq!(own.offset.0 % problem.alignment.0, 0);
    }
    for (step, items) in problem.uses.iter().enumerate() {
        let is_alive = |own: &&&ItemStay| own.first_step as usize <= step && step <= own.last_step as usize;
        let alive: Vec<&&ItemStay> = all.iter().filter(is_alive).collect();
        for (at, a) in alive.iter().enumerate() {
            for b in &alive[..at] {
                assert!(range(a).end <= range(b).start || range(b).end <= range(a).start, "{a:?} {b:?} at {step}");
                assert_ne!(a.item, b.item, "twice in memory at step {step}");
            }
        }
        for item in items {
            assert!(alive.iter().any(|own| own.item == *item), "item {item} at step {step}: {problem:?} {found:?}");
        }
    }
    for own in &all {
        let mut steps = own.first_step as usize..=own.last_step as usize;
        assert!(steps.any(|step| problem.uses[step].contains(&own.item)), "{own:?} is used");
    }
    assert!(found.reads.is_sorted_by_key(|read| read.first_step), "{found:?}");
    found
}

fn read_bytes(problem: &ResidencyProblem, found: &Streaming) -> u64 {
    found.reads.iter().map(|read| problem.sizes[read.item].0).sum()
}

/// The least bytes that any policy reads in a run that leaves the memory as it was at its start: each item stays, or not,
/// from each use to the next one, which may be in the next run. `None` if some step does not fit.
fn brute_force(problem: &ResidencyProblem) -> Option<u64> {
    let steps = problem.uses.len();
    // The steps strictly between a use and the next one, for each use of each item.
    let mut gaps: Vec<(u64, Vec<usize>)> = Vec::new();
    for (item, size) in problem.sizes.iter().enumerate() {
        let uses: Vec<usize> = (0..steps).filter(|&step| problem.uses[step].contains(&item)).collect();
        for (at, &first) in uses.iter().enumerate() {
            let next = uses.get(at + 1).map_or(uses[0] + steps, |&next| next);
            gaps.push((size.0, (first + 1..next).map(|step| step % steps).collect()));
        }
    }
    let used: Vec<u64> =
        problem.uses.iter().map(|items| items.iter().map(|&item| problem.sizes[item].0).sum()).collect();
    let all: u64 = gaps.iter().map(|(size, _)| size).sum();
    let reads = (0u32..1 << gaps.len()).filter_map(|held| {
        let mut live = used.clone();
        let mut saved = 0;
        for (_, (size, between)) in gaps.iter().enumerate().filter(|(at, _)| held >> at & 1 == 1) {
            between.iter().for_each(|&step| live[step] += size);
            saved += size;
        }
        live.iter().all(|&live| live <= problem.capacity.0).then_some(all - saved)
    });
    reads.min()
}

fn random(random: &mut Random, items: u64, uses_each: u64) -> ResidencyProblem {
    let steps = 1 + random.below(6) as usize;
    let sizes: Vec<u64> = (0..1 + random.below(items)).map(|_| 1 + random.below(20)).collect();
    let mut uses = vec![Vec::new(); steps];
    for item in 0..sizes.len() {
        for _ in 0..1 + random.below(uses_each) {
            let step = &mut uses[random.below(steps as u64) as usize];
            if !step.contains(&item) {
                step.push(item);
            }
        }
    }
    let largest: u64 = uses.iter().map(|own: &Vec<usize>| own.iter().map(|&item| sizes[item]).sum()).max().unwrap_or(0);
    let capacity = largest + random.below(sizes.iter().sum::<u64>() + 1);
    ResidencyProblem {
        sizes: sizes.into_iter().map(Bytes).collect(),
        uses,
        capacity: Bytes(capacity),
        alignment: Bytes(1),
    }
}

#[test]
fn random_problems_are_valid_and_read_no_less_than_the_least() {
    let mut source = Random::new(11);
    let mut equal = 0;
    for case in 0..2000 * effort() {
        let problem = random(&mut source, 6, 2);
        let found = planned(&problem);
        let (read, least) = (read_bytes(&problem, &found), brute_force(&problem).expect("each step fits"));
        assert!(found.least_read.0 <= least, "case {case}: the bound is below every policy: {problem:?}");
        assert!(least <= read, "case {case}: the judge tries every policy: {problem:?}");
        equal += usize::from(least == read);
    }
    assert!(400 * effort() < equal, "{equal} cases read the least bytes");
}

/// A streamed item that would fit is kept, so the bytes above the bound are at most the window and that item.
#[test]
fn items_used_once_are_read_at_most_a_window_above_the_bound() {
    let mut source = Random::new(12);
    for _ in 0..2000 * effort() {
        let problem = random(&mut source, 12, 1);
        let found = planned(&problem);
        let step = |items: &Vec<usize>| items.iter().map(|&item| problem.sizes[item].0).sum::<u64>();
        let largest = problem.uses.iter().map(step).max().unwrap_or(0);
        let read = read_bytes(&problem, &found);
        assert!(read <= found.least_read.0 + 3 * largest, "{problem:?} {found:?}");
    }
}

#[test]
fn equal_items_are_read_one_above_the_least_to_overlap() {
    for count in 4..10usize {
        let uses: Vec<Vec<usize>> = (0..count).map(|item| vec![item]).collect();
        for capacity in 2..count as u64 {
            let problem = ResidencyProblem {
                sizes: vec![Bytes(10); count],
                uses: uses.clone(),
                capacity: Bytes(10 * capacity),
                alignment: Bytes(10),
            };
            let found = planned(&problem);
            assert_eq!(found.overlap, Overlap::Full);
            assert_eq!(brute_force(&problem), Some(10 * (count as u64 - capacity + 1)));
            assert_eq!(read_bytes(&problem, &found), 10 * (count as u64 - capacity + 2));
            let is_ahead = |read: &ItemStay| problem.uses[read.first_step as usize] != [read.item];
            // Behind the first step, each is read while an earlier step computes.
            assert!(found.reads.iter().filter(|read| read.item != 0).all(is_ahead), "{found:?}");
        }
    }
}

#[test]
fn everything_stays_if_it_fits() {
    let problem = problem(&[5, 6], &[&[0], &[1], &[]], 11);
    let found = planned(&problem);
    assert_eq!((found.reads.len(), found.kept.len(), found.size, found.least_read), (0, 2, Bytes(11), Bytes(0)));
}

#[test]
fn large_item_stays_and_small_ones_are_read() {
    let problem = problem(&[50, 5, 5, 5, 5], &[&[0], &[1], &[2], &[3], &[4]], 60);
    let found = planned(&problem);
    assert_eq!(found.kept.iter().map(|own| own.item).collect::<Vec<_>>(), [0]);
}

#[test]
fn item_of_many_steps_stays() {
    let problem = problem(&[5, 5, 5, 5], &[&[0, 3], &[1, 3], &[2, 3]], 15);
    let found = planned(&problem);
    assert_eq!(found.kept.iter().map(|own| own.item).collect::<Vec<_>>(), [3]);
}

#[test]
fn reads_of_equal_items_are_spread_over_the_sequence() {
    let uses: Vec<Vec<usize>> = (0..12).map(|item| vec![item]).collect();
    let problem = ResidencyProblem { sizes: vec![Bytes(10); 12], uses, capacity: Bytes(80), alignment: Bytes(10) };
    let found = planned(&problem);
    let read: Vec<usize> = found.reads.iter().map(|read| read.item).collect();
    assert_eq!(read, [0, 2, 4, 6, 8, 10]);
}

#[test]
fn without_room_to_overlap_reads_wait_for_the_step_before() {
    let problem = problem(&[6, 6, 6], &[&[0], &[1], &[2]], 10);
    let found = planned(&problem);
    assert_eq!(found.overlap, Overlap::Partial);
    assert_eq!(found.reads.iter().map(|read| read.first_step).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn step_above_the_capacity_is_refused_with_its_need() {
    let problem = problem(&[6, 7, 3], &[&[0], &[1, 2], &[2]], 9);
    let error = keep_and_stream(&problem).expect_err("step 1 uses ten bytes");
    assert_eq!(error, StepTooLarge { step: 1, need: Bytes(10), capacity: Bytes(9) });
}
