//! Small problems, where every order can be tried.

use std::collections::BTreeMap;

use types::{Bytes, Proof};

use crate::nets::Random;
use crate::passes::order::{OrderLimits, TaskId, Tasks, least_peak, lower_bound, peak};

/// Up to 8 tasks with workspaces, several results, results that nobody reads, places to take, given and kept blocks.
fn random_tasks(seed: u64) -> Tasks {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut tasks = Tasks::new();
    let mut blocks = Vec::new();
    let mut shared = Vec::new();
    let mut part_of = BTreeMap::new();
    for _ in 0..random.below(5) / 3 {
        shared.push(tasks.add_given(Bytes(random.below(9))));
    }
    for _ in 0..random.below(3) {
        blocks.push(tasks.add_given(Bytes(random.below(6))));
    }
    for _ in 0..2 + random.below(7) {
        let reads = if blocks.is_empty() { 0 } else { random.below(4) };
        let reads = (0..reads).map(|_| blocks[random.below(blocks.len() as u64) as usize]);
        let reads: Vec<_> = reads.flat_map(|block| [Some(block), part_of.get(&block).copied()]).flatten().collect();
        let makes: Vec<Bytes> = (0..1 + random.below(8) / 6).map(|_| Bytes(random.below(6))).collect();
        let task = tasks.add(&reads, &makes);
        if random.below(3) == 0 {
            tasks.set_workspace(task, Bytes(random.below(5)));
        }
        if random.below(2) == 0 {
            reads.iter().for_each(|&read| tasks.allow_in_place(task, &[read]));
            tasks.allow_in_place(task, &reads);
        }
        blocks.extend(tasks.tasks()[task].makes.clone());
        for &block in &shared {
            if random.below(3) == 0 {
                tasks.add_maker(block, task);
                if random.below(2) == 0 {
                    // Whoever reads the block reads what one of its makers makes alone.
                    part_of.insert(block, tasks.tasks()[task].makes[0]);
                    blocks.push(block);
                }
            }
        }
    }
    for block in blocks {
        if random.below(6) == 0 {
            tasks.keep(block);
        }
    }
    tasks
}

/// The least peak of all orders, by trying them.
fn least_of_all(tasks: &Tasks, order: &mut Vec<TaskId>) -> Bytes {
    if order.len() == tasks.tasks().len() {
        return tasks.peak(order).expect("the order is one");
    }
    let mut least = Bytes(u64::MAX);
    for (id, task) in tasks.tasks().iter() {
        let is_made = |makers: &[TaskId]| 1 < makers.len() || makers.iter().all(|maker| order.contains(maker));
        if !order.contains(&id) && task.reads.iter().all(|&block| is_made(&tasks.blocks()[block].makers)) {
            order.push(id);
            least = least.min(least_of_all(tasks, order));
            order.pop();
        }
    }
    least
}

#[test]
fn no_order_of_a_small_problem_is_better() {
    let mut met = 0;
    for seed in 0..1500 {
        let tasks = random_tasks(seed);
        let least = least_of_all(&tasks, &mut Vec::new());
        let found = least_peak(&tasks, OrderLimits::default());
        let certificate = found.certificate;
        assert_eq!(tasks.peak(&found.order), Some(certificate.value), "seed {seed}");
        assert_eq!(peak(&tasks, &found.order), certificate.value, "seed {seed}");
        assert_eq!(certificate.value, least, "seed {seed}");
        assert!(certificate.lower_bound <= least, "seed {seed}");
        assert!(lower_bound(&tasks, OrderLimits::default()) <= least, "seed {seed}");
        for bound_work in [4, 16, 32, 64, 128] {
            let limits = OrderLimits { bound_work, ..OrderLimits::default() };
            assert!(lower_bound(&tasks, limits) <= least, "seed {seed}, work {bound_work}");
        }
        let met_here = certificate.lower_bound == least;
        let state = if met_here { Proof::Bound } else { Proof::Search };
        assert_eq!(certificate.proof(), state, "seed {seed}");
        met += usize::from(met_here);
    }
    println!("the bound is the least peak in {met} of 1500");
    assert!(1300 < met);
}

#[test]
fn an_order_without_search_says_that_a_gap_may_remain() {
    let none = OrderLimits {
        states: 0,
        words: 0,
        search_work: 0,
        beam_work: 0,
        uncross_work: 0,
        window_work: 0,
        bound_work: 0,
        set_work: 0,
    };
    for seed in 0..300 {
        let tasks = random_tasks(seed);
        let found = least_peak(&tasks, none);
        let certificate = found.certificate;
        assert_eq!(tasks.peak(&found.order), Some(certificate.value), "seed {seed}");
        let least = least_peak(&tasks, OrderLimits::default()).certificate.value;
        assert!(certificate.lower_bound <= least && least <= certificate.value, "seed {seed}");
        let met = certificate.lower_bound == certificate.value;
        assert_eq!(certificate.proof() == Proof::Bound, met, "seed {seed}");
    }
}

#[test]
fn an_order_that_is_best_stays() {
    let mut tasks = Tasks::new();
    let x = tasks.add_given(Bytes(4));
    let a = tasks.add1(&[x], Bytes(4));
    let b = tasks.add1(&[x], Bytes(4));
    let y = tasks.add1(&[a, b], Bytes(4));
    tasks.keep(y);
    let found = least_peak(&tasks, OrderLimits::default());
    assert_eq!(found.order, tasks.given_order());
    assert_eq!(found.certificate.proof(), Proof::Bound);
}

#[test]
fn in_place_counts_once_where_the_operand_dies() {
    let mut tasks = Tasks::new();
    let x = tasks.add_given(Bytes(8));
    let sum = tasks.add(&[x], &[Bytes(8)]);
    tasks.allow_in_place(sum, &[x]);
    assert_eq!(tasks.peak(&tasks.given_order()), Some(Bytes(8)));
    let other = tasks.add(&[x], &[Bytes(0)]);
    assert_eq!(tasks.peak(&tasks.given_order()), Some(Bytes(16)), "another task still reads it");
    assert_eq!(tasks.peak(&[other, sum]), Some(Bytes(8)));
    assert_eq!(least_peak(&tasks, OrderLimits::default()).order, [other, sum]);
}

#[test]
fn invalid_order_has_no_peak() {
    let mut tasks = Tasks::new();
    let a = tasks.add1(&[], Bytes(1));
    tasks.add1(&[a], Bytes(1));
    let order = tasks.given_order();
    assert_eq!(tasks.peak(&[order[1], order[0]]), None);
    assert_eq!(tasks.peak(&order[..1]), None);
    assert_eq!(tasks.peak(&[order[0], order[0]]), None);
    assert_eq!(tasks.peak(&order), Some(Bytes(2)));
}
