//! A lower bound on the peak of every order.
//!
//! When a task runs, the tasks done form a down-set that contains all its predecessors and none of its successors. The cheapest
//! such set is a minimum [`Cut`]; with the bytes that the task itself makes it bounds the peak of every order, and the greatest
//! over all tasks is the bound. A task is skipped if some order runs it at no more bytes than the bound
//! already has.
//!
//! One task determines the sides of few others: in wide graphs most tasks are free at its moment, and the cut passes where it is
//! narrow. A set determines more. Take a down-set `S`: the last of its tasks that runs is a maximal one, and at that moment all others of
//! `S` are done. So the least over the maximal tasks of the cuts that have all others of `S` inside bounds the peak of every order
//! as well. A maximal task whose cut is no greater than the bound is removed from the set; the cuts of all others can only fall
//! then, so that no set with a greater bound is missed inside of the first one. (With more inside, cuts are greater: the
//! union of two sets with a greater bound is one too.) The same holds for the first task of an up-set, with all others outside.
//!
//! In place counts where it is possible at all: exactly where a task has one set of blocks to take (the
//! bytes count unless all their other readers are inside), as certain where it has several.

use super::cut::{Cut, Side};
use super::instance::{Instance, Position, insert};
use crate::max_flow::Ended;

/// The greatest bound found before it met `peak`, or tasks or work ran out.
pub(crate) fn over_all_orders(instance: &Instance, orders: &[&[Position]], peak: u64, cut: &mut Cut) -> u64 {
    let end: u64 = instance.blocks.iter().filter(|block| block.kept).map(|block| block.bytes).sum();
    let mut bound = instance.given.max(end);
    let mut estimate = vec![u64::MAX; instance.len()];
    for order in orders {
        lower_along(instance, order, &mut estimate);
    }
    let mut moment = Moment::new(instance);
    let mut done = vec![0; instance.words()];
    while bound < peak {
        let next = (0..instance.len()).max_by_key(|&task| (estimate[task], std::cmp::Reverse(task)));
        let Some(task) = next.filter(|&task| bound < estimate[task]) else { break };
        estimate[task] = 0;
        let (least, ended) = moment.least(task, |_| Side::Free, cut, peak);
        bound = bound.max(least.min(peak));
        if ended != Ended::Maximum {
            break;
        }
        let side = &moment.side;
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

/// A bound that is at least `bound`, from sets of tasks: see the head of the file. The first set is the beginning of `order` up to
/// its peak, or all behind it. `work` is shared by both, in blocks and channels that cuts look at.
pub(crate) fn by_sets(instance: &Instance, order: &[Position], mut bound: u64, peak: u64, work: u64) -> u64 {
    if peak <= bound {
        return bound;
    }
    let at = peak_of(instance, order);
    let from_first: Vec<Position> = order.iter().skip(at).copied().collect();
    let from_last: Vec<Position> = order.iter().take(at + 1).rev().copied().collect();
    for (end, members) in [(End::Last, from_last), (End::First, from_first)] {
        let mut set = Set { end, has: vec![false; instance.len()], members };
        set.members.iter().for_each(|&task| set.has[task] = true);
        let mut cut = Cut::new(work / 2);
        while bound < peak
            && let Some(least) = set.shrink(instance, bound, peak, &mut cut)
        {
            bound = least.max(bound);
        }
    }
    bound.min(peak)
}

/// The task of a set that runs last, or first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Last,
    First,
}

/// A down-set, whose last task counts, or an up-set, whose first task counts.
struct Set {
    end: End,
    /// By task whether it is in the set.
    has: Vec<bool>,
    /// At least the tasks of the set, those near to the end first.
    members: Vec<Position>,
}

impl Set {
    /// Removes the tasks that may be at the end at no more bytes than `bound`, until there are none. Returns the bound of the
    /// set that is left; cuts end at `peak`. `None` if the set is empty then, or the work ran out.
    fn shrink(&mut self, instance: &Instance, bound: u64, peak: u64, cut: &mut Cut) -> Option<u64> {
        let mut moment = Moment::new(instance);
        let side = match self.end {
            End::Last => Side::Inside,
            End::First => Side::Outside,
        };
        loop {
            let (mut least, mut has_shrunk) = (None::<u64>, false);
            self.members.retain(|&task| self.has[task]);
            for &task in &self.members {
                let beyond = match self.end {
                    End::Last => &instance.tasks[task].feeds,
                    End::First => &instance.tasks[task].needs,
                };
                if beyond.iter().any(|&other| self.has[other]) {
                    continue;
                }
                let of = |other: Position| if self.has[other] { side } else { Side::Free };
                let (bytes, ended) = moment.least(task, of, cut, peak);
                if ended == Ended::OutOfWork && bytes <= bound {
                    return None;
                }
                if bytes <= bound {
                    self.has[task] = false;
                    has_shrunk = true;
                } else {
                    least = Some(least.map_or(bytes, |least| least.min(bytes)));
                }
            }
            if !has_shrunk {
                return least;
            }
        }
    }
}

/// The index of the first task that reaches the peak of an order.
fn peak_of(instance: &Instance, order: &[Position]) -> usize {
    let mut done = vec![0; instance.words()];
    let (mut live, mut most, mut at) = (instance.start(), 0, 0);
    for (ix, &task) in order.iter().enumerate() {
        let effect = instance.effect(&done, task);
        if most < live + effect.during {
            (most, at) = (live + effect.during, ix);
        }
        live = live + effect.born - effect.dying;
        insert(&mut done, task);
    }
    at
}

/// The moment at which a task runs, kept for its memory.
struct Moment<'a> {
    instance: &'a Instance,
    /// By task its side of the last cut.
    side: Vec<Side>,
    stack: Vec<Position>,
    others: Vec<Position>,
}

impl<'a> Moment<'a> {
    fn new(instance: &'a Instance) -> Moment<'a> {
        Moment { instance, side: vec![Side::Free; instance.len()], stack: Vec::new(), others: Vec::new() }
    }

    /// The fewest bytes alive while a task runs, if the other tasks are on these sides. A lower bound on them if they are
    /// `enough` or the work ran out.
    fn least(&mut self, task: Position, of: impl Fn(Position) -> Side, cut: &mut Cut, enough: u64) -> (u64, Ended) {
        let Moment { instance, side, stack, others } = self;
        side.iter_mut().enumerate().for_each(|(other, side)| *side = of(other));
        side[task] = Side::Free;
        mark(instance, task, Side::Inside, side, stack);
        mark(instance, task, Side::Outside, side, stack);
        let work = &instance.tasks[task];
        others.clear();
        let mut own = work.extra;
        let mut bonus = None;
        if !work.in_place.is_empty() {
            own -= work.first;
        }
        if let [over] = &work.in_place[..] {
            let last = over.iter().flat_map(|&block| &instance.blocks[block].last);
            others.extend(last.filter(|&&other| other != task));
            bonus = Some((work.first, &others[..]));
        }
        let (bytes, ended) = cut.least(instance, side, Some(task), bonus, enough.saturating_sub(own));
        (bytes + own, ended)
    }
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
