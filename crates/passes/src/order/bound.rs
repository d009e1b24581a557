//! A lower bound on the peak of every order.
//!
//! When a task runs, the tasks done form a down-set that contains all its predecessors and none of its successors. The cheapest
//! such set is a minimum [`Cut`]; with the bytes that the task itself makes it bounds the peak of every order, and the greatest
//! over all tasks is the bound. A task is skipped if some order runs it at no more bytes than the bound
//! already has. In place counts where it is possible at all: exactly where a task has one set of blocks to take (the
//! bytes count unless all their other readers are inside), as certain where it has several.

use super::cut::{Cut, Side};
use super::instance::{Instance, Position, insert};

/// The greatest bound found before it met `peak`, or tasks or work ran out.
pub(crate) fn over_all_orders(instance: &Instance, orders: &[&[Position]], peak: u64, cut: &mut Cut) -> u64 {
    let end: u64 = instance.blocks.iter().filter(|block| block.kept).map(|block| block.bytes).sum();
    let mut bound = instance.given.max(end);
    let mut estimate = vec![u64::MAX; instance.len()];
    for order in orders {
        lower_along(instance, order, &mut estimate);
    }
    let mut side = vec![Side::Free; instance.len()];
    let mut stack = Vec::new();
    let mut done = vec![0; instance.words()];
    while bound < peak {
        let next = (0..instance.len()).max_by_key(|&task| (estimate[task], std::cmp::Reverse(task)));
        let Some(task) = next.filter(|&task| bound < estimate[task]) else { break };
        estimate[task] = 0;
        side.fill(Side::Free);
        mark(instance, task, Side::Inside, &mut side, &mut stack);
        mark(instance, task, Side::Outside, &mut side, &mut stack);
        let work = &instance.tasks[task];
        let mut others: Vec<Position> = Vec::new();
        let mut own = work.extra;
        let mut bonus = None;
        if !work.in_place.is_empty() {
            own -= work.first;
        }
        if let [over] = &work.in_place[..] {
            others.extend(over.iter().flat_map(|&block| &instance.blocks[block].last).filter(|&&other| other != task));
            bonus = Some((work.first, &others[..]));
        }
        let Some(least) = cut.least(instance, &mut side, Some(task), bonus) else { break };
        bound = bound.max(least + own);
        done.fill(0);
        (0..instance.len()).filter(|&task| side[task] == Side::Inside).for_each(|task| insert(&mut done, task));
        let live = instance.live(&done);
        for task in (0..instance.len()).filter(|&task| side[task] == Side::Outside) {
            if bound < estimate[task] && instance.is_ready(&done, task) {
                estimate[task] = estimate[task].min(live + instance.effect(&done, task).during);
            }
        }
    }
    bound
}

/// Lowers the upper bound of each task to the bytes at which it runs in an order.
fn lower_along(instance: &Instance, order: &[Position], estimate: &mut [u64]) {
    let mut done = vec![0; instance.words()];
    let mut live = instance.start();
    for &task in order {
        let effect = instance.effect(&done, task);
        estimate[task] = estimate[task].min(live + effect.during);
        live = live + effect.born - effect.dying;
        insert(&mut done, task);
    }
}

/// Puts all that a task needs inside, or the task and all that needs it outside.
fn mark(instance: &Instance, task: Position, to: Side, side: &mut [Side], stack: &mut Vec<Position>) {
    let next = |task: Position| match to {
        Side::Inside => &instance.tasks[task].needs,
        _ => &instance.tasks[task].feeds,
    };
    if to == Side::Outside {
        side[task] = to;
    }
    stack.push(task);
    while let Some(task) = stack.pop() {
        for &other in next(task) {
            if side[other] == Side::Free {
                side[other] = to;
                stack.push(other);
            }
        }
    }
}
