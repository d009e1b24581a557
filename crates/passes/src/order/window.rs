//! Improvement of an order window by window.
//!
//! The tasks between two points of an order are a problem of their own: the blocks that are alive at its start are given,
//! those that are alive at its end are kept. Its answers have 100 tasks and not thousands, so that a beam and the exact
//! search go far beyond what they reach on the whole.

use super::beam::beam;
use super::cut::Cut;
use super::instance::{Instance, Position, Span, Work, has, insert};
use super::search::{Budget, End, least_below};

/// Lengths of windows around the point of the peak.
const LENGTHS: [usize; 3] = [48, 96, 192];
/// Where the peak is in a window, in quarters of its length.
const QUARTERS: [usize; 3] = [2, 3, 1];

/// Lowers the peak of an order as long as a window around it allows that and the work that is left suffices. Returns the
/// peak.
pub(crate) fn improve(instance: &Instance, order: &mut [Position], bound: u64, mut left: u64) -> u64 {
    loop {
        let (peak, at) = peak_of(instance, order);
        left = left.saturating_sub(order.len() as u64);
        if peak <= bound || left == 0 || !improve_at(instance, order, at, peak, &mut left) {
            return peak;
        }
    }
}

/// Tries windows that contain the task at `at`.
fn improve_at(instance: &Instance, order: &mut [Position], at: usize, peak: u64, left: &mut u64) -> bool {
    for length in LENGTHS {
        let length = length.min(order.len());
        for quarter in QUARTERS {
            let start = at.saturating_sub(length * quarter / 4).min(order.len() - length);
            *left = left.saturating_sub(2 * order.len() as u64);
            let part = part(instance, order, start, start + length);
            let found = beam(&part, 16, peak, 0, left).or_else(|| {
                let budget = Budget { states: 2000, words: 1 << 16, work: (*left).min(100_000) };
                let mut cut = Cut::new((*left).min(200_000));
                let before = cut.budget;
                let (end, spent) = least_below(&part, peak, 0, budget, &mut cut);
                *left = left.saturating_sub(2 * spent.work + before - cut.budget);
                match end {
                    End::Found(order) => Some(order),
                    End::Exhausted | End::GivenUp => None,
                }
            });
            if let Some(found) = found {
                let moved: Vec<Position> = found.iter().map(|&at| order[start + at]).collect();
                order[start..start + length].copy_from_slice(&moved);
                return true;
            }
            if length == order.len() {
                return false;
            }
        }
    }
    false
}

/// The peak of an order, and the first index at which a task reaches it.
fn peak_of(instance: &Instance, order: &[Position]) -> (u64, usize) {
    let mut done = vec![0; instance.words()];
    let mut live = instance.start();
    let (mut peak, mut at) = (instance.given, 0);
    for (ix, &task) in order.iter().enumerate() {
        let effect = instance.effect(&done, task);
        if peak < live + effect.during {
            (peak, at) = (live + effect.during, ix);
        }
        live = live + effect.born - effect.dying;
        insert(&mut done, task);
    }
    (peak, at)
}

/// The tasks `start..end` of an order as a problem of their own, in which they are in that order.
fn part(instance: &Instance, order: &[Position], start: usize, end: usize) -> Instance {
    let mut done = vec![0; instance.words()];
    order[..start].iter().for_each(|&task| insert(&mut done, task));
    // By task: its index in the window.
    let mut index = vec![usize::MAX; instance.len()];
    order[start..end].iter().enumerate().for_each(|(ix, &task)| index[task] = ix);
    let inside = |task: &Position| Some(index[*task]).filter(|&ix| ix != usize::MAX);
    let sorted = |tasks: &[Position]| {
        let mut tasks: Vec<Position> = tasks.iter().filter_map(inside).collect();
        tasks.sort_unstable();
        tasks
    };
    let later = |task: &Position| !has(&done, *task) && index[*task] == usize::MAX;
    // By block: its index in the window, if a task of the window makes or reads it.
    let mut ids = vec![usize::MAX; instance.blocks.len()];
    let mut blocks = Vec::new();
    let (mut given, mut others) = (0, 0);
    for (block, span) in instance.blocks.iter().enumerate() {
        let is_made = span.makers.is_empty() || span.makers.iter().any(|&maker| has(&done, maker));
        let is_alive = is_made && (span.kept || span.last.iter().any(|&last| !has(&done, last)));
        if is_alive {
            given += span.bytes;
        }
        if span.makers.iter().chain(&span.last).any(|task| inside(task).is_some()) {
            ids[block] = blocks.len();
            blocks.push(Span {
                bytes: span.bytes,
                makers: if is_made { Vec::new() } else { sorted(&span.makers) },
                is_shared: span.is_shared,
                last: sorted(&span.last),
                kept: span.kept || span.last.iter().any(later),
            });
        } else if is_alive {
            others += span.bytes;
        }
    }
    blocks.push(Span { bytes: others, makers: Vec::new(), is_shared: false, last: Vec::new(), kept: true });
    let tasks = order[start..end].iter().map(|&task| {
        let work = &instance.tasks[task];
        let of_window = |some: &[usize]| some.iter().map(|&block| ids[block]).collect::<Vec<usize>>();
        let mut shares = of_window(&work.shares);
        shares.retain(|&block| !blocks[block].makers.is_empty());
        Work {
            touches: of_window(&work.touches),
            shares,
            needs: sorted(&work.needs),
            feeds: sorted(&work.feeds),
            extra: work.extra,
            born: work.born,
            first: work.first,
            in_place: work.in_place.iter().map(|over| of_window(over)).collect(),
        }
    });
    let tasks = tasks.collect();
    Instance { tasks, blocks, given, unread: 0 }
}
