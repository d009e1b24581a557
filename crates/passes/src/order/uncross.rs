//! Improvement of an order by minimum cuts.
//!
//! A window is the part of an order between two of its points. Let `D` be, of all down-sets between these points, one with the
//! fewest live bytes: a minimum [`Cut`]. The tasks of the window that are in `D` run first then, the others behind them, both
//! in the order that they had. No point of the order has more live bytes than before: each is `P ∩ D` or `P ∪ D` for
//! a point `P` of the old order, `live(P ∩ D) + live(P ∪ D) <= live(P) + live(D)` as live bytes are submodular (see the head of
//! `search`), and both are down-sets of the window, so that neither has less than `live(D)`. While it runs, a task may
//! need more than before, where it worked in place and does not any more: callers compare peaks.
//!
//! Long windows move much at once, short ones smooth the rest. Other improvements look at the peak alone; this
//! one lowers the live bytes along the whole order.

use std::ops::Range;

use super::cut::{Cut, Side};
use super::instance::{Instance, Position};
use super::window::Row;
use crate::max_flow::Ended;

/// Shorter windows are left to the search by parts.
const SHORTEST: usize = 32;

/// Uncrosses the windows of an order until none changes, its peak is `bound`, or `work` runs out, in blocks and channels that
/// cuts look at. In each round the windows of each length have the same share of it: where long windows cost much and
/// change nothing, short ones still have theirs.
pub(crate) fn improve(instance: &Instance, order: &mut [Position], bound: u64, work: u64) {
    let mut row = Row::new(instance, order);
    let mut lengths = windows(order.len());
    let share = work / lengths.len().max(1) as u64;
    let mut cut = Cut::default();
    let mut left = work;
    // By index the time of the last change there; a window without changes since its last cut is not cut again.
    let mut changed = vec![1_usize; order.len()];
    let mut clock = 1;
    let mut is_left = true;
    while std::mem::take(&mut is_left) && 0 < left && bound < row.peak().0 {
        for windows in &mut lengths {
            let given = share.min(left);
            cut.budget = given;
            for window in windows {
                let range = window.start..window.end;
                if changed[range.clone()].iter().all(|&at| at <= window.cut_at) {
                    continue;
                }
                let Some(has_changed) = row.uncross(range.clone(), &mut cut) else {
                    cut.budget = 0;
                    break;
                };
                if has_changed {
                    clock += 1;
                    changed[range].fill(clock);
                    is_left = true;
                }
                window.cut_at = clock;
            }
            left -= given - cut.budget;
        }
    }
    order.copy_from_slice(&row.order);
}

/// A range of indices of an order.
struct Window {
    start: usize,
    end: usize,
    /// The time when it was cut.
    cut_at: usize,
}

/// Windows by length, the longest first; each overlaps the next one of its length by half.
fn windows(count: usize) -> Vec<Vec<Window>> {
    let longest = count.next_power_of_two() / 2;
    let lengths =
        std::iter::successors(Some(longest), |length| Some(length / 2)).take_while(|&length| SHORTEST <= length);
    let of_length = |length: usize| {
        let starts = (0..count).step_by(length / 2).take_while(|start| start + length / 2 < count);
        starts.map(|start| Window { start, end: (start + length).min(count), cut_at: 0 }).collect()
    };
    lengths.map(of_length).collect()
}

impl Row<'_> {
    /// Uncrosses a window. Returns whether that lowers its fewest live bytes; `None` if the work ran out.
    fn uncross(&mut self, range: Range<usize>, cut: &mut Cut) -> Option<bool> {
        let Range { start, end } = range;
        let part = self.part(start, end);
        let mut side = vec![Side::Free; end - start];
        // The points of the order are down-sets of the window too.
        let known = self.before[start..=end].iter().copied().min().unwrap_or(0);
        let (_, ended) = cut.least(&part, &mut side, None, None, known);
        if ended == Ended::Maximum {
            let on =
                |wanted| side.iter().enumerate().filter(move |(_, side)| **side == wanted).map(|(at, _)| start + at);
            let moved = on(Side::Inside).chain(on(Side::Outside)).map(|at| self.order[at]).collect::<Vec<Position>>();
            self.replace(start, &moved);
        }
        match ended {
            Ended::Maximum => Some(true),
            Ended::Enough => Some(false),
            Ended::OutOfWork => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use types::Bytes;

    use super::*;
    use crate::order::Tasks;

    /// Chains of which each makes much from a given block, and reduces it at once, in an order that makes all first.
    fn crossed(chains: usize) -> (Tasks, Vec<Position>) {
        let mut tasks = Tasks::new();
        let given = tasks.add_given(Bytes(1));
        let large: Vec<_> = (0..chains).map(|_| tasks.add1(&[given], Bytes(100))).collect();
        for block in large {
            let small = tasks.add1(&[block], Bytes(1));
            tasks.keep(small);
        }
        let order = (0..2 * chains).collect();
        (tasks, order)
    }

    #[test]
    fn no_point_has_more_live_bytes() {
        let mut random = types::Random::new(5);
        for _ in 0..50 {
            let mut tasks = Tasks::new();
            let mut blocks = vec![tasks.add_given(Bytes(7))];
            for _ in 0..120 {
                let reads = [(); 2].map(|()| blocks[random.below(blocks.len() as u64) as usize]);
                blocks.push(tasks.add1(&reads, Bytes(1 + random.below(99))));
            }
            let instance = Instance::new(&tasks);
            let mut order: Vec<Position> = (0..instance.len()).collect();
            let before = instance.peak(&order);
            let sum = |order: &[Position]| Row::new(&instance, order).before.iter().sum::<u64>();
            let live = sum(&order);
            improve(&instance, &mut order, 0, 1_000_000);
            assert!(instance.peak(&order) <= before, "no task works in place");
            assert!(sum(&order) < live);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..instance.len()));
            let ids: Vec<_> = order.iter().map(|&at| types::EntityId::from_index(at)).collect();
            assert!(tasks.peak(&ids).is_some(), "each task runs behind those that it needs");
        }
    }

    #[test]
    fn cuts_of_all_windows_run_each_chain_to_its_end() {
        let (tasks, mut order) = crossed(200);
        let instance = Instance::new(&tasks);
        assert_eq!(instance.peak(&order), 200 * 100 + 1);
        improve(&instance, &mut order, 0, 100_000_000);
        let peak = instance.peak(&order);
        assert!(peak < 20_000 / 4, "{peak}");
    }

    #[test]
    fn work_bounds_the_improvement() {
        let (tasks, mut order) = crossed(200);
        let given = order.clone();
        improve(&Instance::new(&tasks), &mut order, 0, 10);
        assert_eq!(order, given);
    }
}
