//! Improvement of an order window by window.
//!
//! The tasks between two points of an order are a problem of their own: the blocks that are alive at its start are given,
//! those that are alive at its end are kept. Its answers have 100 tasks and not thousands, so that a beam and the exact
//! search find better orders than they do for all tasks at once. The cost of a window depends on its own tasks alone:
//! another order inside changes no step outside.

use super::beam::beam;
use super::cut::Cut;
use super::instance::{Instance, List, Position, Span, Work};
use super::search::{Budget, End, least_below};

/// Lengths of windows around the point of the peak.
const LENGTHS: [usize; 3] = [48, 96, 192];
/// Where the peak is in a window, in quarters of its length.
const QUARTERS: [usize; 3] = [2, 3, 1];

/// The searches for the order of a window, the cheapest first.
const SEARCHES: [Search; 3] = [Search::Beam(1), Search::Beam(16), Search::Exact];

/// A search for the order of a window.
#[derive(Clone, Copy)]
enum Search {
    /// A beam of this width.
    Beam(usize),
    /// All orders, within limits.
    Exact,
}

impl Search {
    /// An order with a peak below `peak`, if it is found.
    fn run(self, part: &Instance, peak: u64, left: &mut u64) -> Option<Vec<Position>> {
        match self {
            Search::Beam(width) => beam(part, width, peak, 0, left),
            Search::Exact => {
                let budget = Budget { states: 2000, words: 1 << 16, work: (*left).min(100_000) };
                let mut cut = Cut::new((*left).min(200_000));
                let before = cut.budget;
                let (end, spent) = least_below(part, peak, 0, budget, &mut cut);
                *left = left.saturating_sub(2 * spent.work + before - cut.budget);
                match end {
                    End::Found(order) => Some(order),
                    End::Exhausted | End::GivenUp => None,
                }
            }
        }
    }
}

/// Lowers the peak of an order as long as a window around it allows that and the work that is left suffices.
pub(crate) fn improve(instance: &Instance, order: &mut [Position], bound: u64, mut left: u64) {
    let mut row = Row::new(instance, order);
    loop {
        let (peak, at) = row.peak();
        left = left.saturating_sub(order.len() as u64 / 16);
        if peak <= bound || left == 0 || !row.improve_at(at, peak, &mut left) {
            order.copy_from_slice(&row.order);
            return;
        }
    }
}

/// An order with the bytes that are alive along it.
pub(crate) struct Row<'a> {
    instance: &'a Instance,
    pub(crate) order: Vec<Position>,
    /// By task its index in the order.
    index: Vec<usize>,
    /// By index the bytes alive before the task there runs.
    pub(crate) before: Vec<u64>,
    /// By index the most bytes alive while it runs.
    during: Vec<u64>,
    /// By block its index in the window that is being cut out; `NONE` otherwise.
    ids: Vec<usize>,
}

const NONE: usize = usize::MAX;

impl<'a> Row<'a> {
    pub(crate) fn new(instance: &'a Instance, order: &[Position]) -> Row<'a> {
        let count = order.len();
        let mut row = Row {
            instance,
            order: order.to_vec(),
            index: vec![0; count],
            before: vec![0; count + 1],
            during: vec![0; count],
            ids: vec![NONE; instance.blocks.len()],
        };
        row.before[0] = instance.start();
        order.iter().enumerate().for_each(|(at, &task)| row.index[task] = at);
        row.count_again(0, count);
        row
    }

    /// Computes the bytes alive at `start..end`, from those before `start` on.
    fn count_again(&mut self, start: usize, end: usize) {
        for at in start..end {
            let effect = self.instance.effect_after(|task| self.index[task] < at, self.order[at]);
            self.during[at] = self.before[at] + effect.during;
            self.before[at + 1] = self.before[at] + effect.born - effect.dying;
        }
    }

    /// The peak, and the first index at which a task reaches it.
    pub(crate) fn peak(&self) -> (u64, usize) {
        let most = self.during.iter().copied().max().unwrap_or(0);
        match most <= self.instance.given {
            true => (self.instance.given, 0),
            false => (most, self.during.iter().position(|&bytes| bytes == most).unwrap_or(0)),
        }
    }

    /// Tries windows that contain the task at `at`: all of them with one search before the next one, which costs more and
    /// rarely finds what those before it do not.
    fn improve_at(&mut self, at: usize, peak: u64, left: &mut u64) -> bool {
        let count = self.order.len();
        let around = |length: usize| {
            QUARTERS.map(|quarter| (at.saturating_sub(length * quarter / 4).min(count - length), length))
        };
        let mut windows: Vec<(usize, usize)> =
            LENGTHS.into_iter().flat_map(|length| around(length.min(count))).collect();
        // At an end of the order, and in short orders, some are the same.
        windows.dedup();
        for search in SEARCHES {
            for &(start, length) in &windows {
                *left = left.saturating_sub(16 * length as u64);
                if let Some(found) = search.run(&self.part(start, start + length), peak, left) {
                    let moved: Vec<Position> = found.iter().map(|&at| self.order[start + at]).collect();
                    self.replace(start, &moved);
                    return true;
                }
                if *left == 0 {
                    return false;
                }
            }
        }
        false
    }

    /// Runs the tasks behind `start` in another order.
    pub(crate) fn replace(&mut self, start: usize, tasks: &[Position]) {
        let end = start + tasks.len();
        self.order[start..end].copy_from_slice(tasks);
        tasks.iter().enumerate().for_each(|(at, &task)| self.index[task] = start + at);
        self.count_again(start, end);
    }

    /// The tasks `start..end` of the order as a problem of their own, in which they are in that order.
    pub(crate) fn part(&mut self, start: usize, end: usize) -> Instance {
        let Row { instance, order, index, before, ids, .. } = self;
        let window = start..end;
        let inside = |task: &Position| Some(index[*task]).filter(|at| window.contains(at)).map(|at| at - start);
        let sorted = |tasks: &[Position]| {
            let mut tasks: List = tasks.iter().filter_map(inside).collect();
            tasks.sort_unstable();
            tasks
        };
        let works = || order[window.clone()].iter().map(|&task| &instance.tasks[task]);
        let mut touched: Vec<usize> =
            works().flat_map(|work| work.touches.iter().chain(&work.makes).copied()).collect();
        touched.sort_unstable();
        touched.dedup();
        let mut others = before[start];
        let mut blocks = Vec::with_capacity(touched.len() + 1);
        for &block in &touched {
            let span = &instance.blocks[block];
            let is_made = span.makers.is_empty() || span.makers.iter().any(|&maker| index[maker] < start);
            if is_made && (span.kept || span.last.iter().any(|&last| start <= index[last])) {
                others -= span.bytes;
            }
            ids[block] = blocks.len();
            blocks.push(Span {
                bytes: span.bytes,
                makers: if is_made { List::new() } else { sorted(&span.makers) },
                is_shared: span.is_shared,
                last: sorted(&span.last),
                kept: span.kept || span.last.iter().any(|&last| end <= index[last]),
            });
        }
        blocks.push(Span { bytes: others, makers: List::new(), is_shared: false, last: List::new(), kept: true });
        let tasks = works().map(|work| {
            let of_window = |some: &[usize]| some.iter().map(|&block| ids[block]).collect::<List>();
            let mut shares = of_window(&work.shares);
            shares.retain(|&mut block| !blocks[block].makers.is_empty());
            Work {
                touches: of_window(&work.touches),
                makes: of_window(&work.makes),
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
        touched.iter().for_each(|&block| ids[block] = NONE);
        Instance { tasks, blocks, given: before[start], unread: 0 }
    }
}
