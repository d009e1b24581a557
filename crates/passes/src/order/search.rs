//! The order with the least peak, found by a search over down-sets, and the proof that it is the least.
//!
//! A state is a *down-set*: the tasks done so far. How many bytes are alive follows from it, however it was reached; so the
//! least peak is the bottleneck of a way from nothing done to all done, and a best-first search by the peak so far (ties:
//! the deeper state, then the order as given) finds it. Three rules make it small. All decide "is there an order with a peak
//! of at most M", with M the peak so far, below which nothing is left to find. `live(D)` are the bytes alive at `D`. It is
//! a directed cut, hence submodular: `live(A ∪ B) + live(A ∩ B) <= live(A) + live(B)`. A task at `D` needs `live(D)`, the
//! bytes it makes and its workspace, less those it takes in place; the more is done, the more dies with it, so the more places it
//! can take, and the fewer of the blocks that several tasks make are still to be made. So with
//! `live(E ∪ S) <= live(E)`, a task that fits at `E` fits at `E ∪ S`.
//!
//! 1. *Free moves.* At `D`, let tasks run one after the other, within M, up to `S` such that no down-set between `D` and
//!    `S` has fewer bytes alive than `S`. Then they may run at once. Proof: take any order from `D` within M, and move
//!    those tasks to its front. Its other tasks now run at `E ∪ S` in place of `E`, and
//!    `live(E ∪ S) <= live(E) + live(S) - live(E ∩ S) <= live(E)`, as `E ∩ S` is between `D` and `S`. A single task with
//!    no net growth is such a move, and so is a chain of tasks, each fed by the one before, up to the first point at which
//!    no more is alive than at its start: all sets in between are its prefixes.
//! 2. *Commitment.* When a state `S` is taken up, all others wait at the same peak or a greater one. If they all descend
//!    from `D`, as `S` does, and rule 1 holds for `D` and `S` (a minimum [`Cut`] says so), they can be forgotten.
//! 3. *Cuts.* A task that every other one comes before or after splits the order: when a state that holds it is taken up,
//!    all states that do not can be forgotten. The parts are solved one by one.
//!
//! States that need as much as the best order found so far are never expanded; if none is left, that order is optimal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cut::{Cut, Side};
use super::instance::{Instance, Position, contains, has, insert};
use super::walk::Walk;
use crate::max_flow::Ended;

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// This order has the least peak.
    Found(Vec<Position>),
    /// No order has a peak below that of the best order found.
    Exhausted,
    /// The budget was spent.
    GivenUp,
}

/// The limits of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) states: usize,
    pub(crate) words: usize,
    pub(crate) work: u64,
}

/// The work of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) states: usize,
    pub(crate) work: u64,
}

/// Searches for the order with the least peak below `known`; `bound` is a lower bound on it.
pub(crate) fn least_below(instance: &Instance, known: u64, bound: u64, budget: Budget, cut: &mut Cut) -> (End, Spent) {
    let mut walk = Walk::new(instance);
    let mut child = Walk::new(instance);
    walk.peak = walk.peak.max(bound);
    walk.close(walk.peak);
    let mut states = States::new(instance.words());
    states.add(&walk, NONE);
    let mut forced = Forced::new(instance);
    let end = loop {
        let Some(at) = states.next() else { break End::Exhausted };
        if !contains(states.done(at), &forced.base) {
            continue;
        }
        let state = &states.all[at];
        walk.place(states.done(at), state.count, state.live, state.peak);
        if walk.is_at_end() {
            break End::Found(states.way_to(at));
        }
        if budget.states <= states.all.len()
            || budget.words <= states.bits.len()
            || budget.work <= walk.work + child.work
        {
            break End::GivenUp;
        }
        forced.commit(instance, &walk, cut);
        walk.each_next(&mut child, known, |next| states.add(next, at));
    };
    (end, Spent { states: states.all.len(), work: walk.work + child.work })
}

/// The down-set that all orders still considered pass through.
struct Forced {
    base: Vec<u64>,
    live: u64,
    /// The lengths of beginnings of the order as given that every order begins with, in some order; next one last.
    cuts: Vec<usize>,
}

impl Forced {
    fn new(instance: &Instance) -> Forced {
        Forced { base: vec![0; instance.words()], live: instance.start(), cuts: cuts(instance) }
    }

    fn commit(&mut self, instance: &Instance, walk: &Walk, cut: &mut Cut) {
        while let Some(&length) = self.cuts.last()
            && walk.is_done(length - 1)
        {
            self.cuts.pop();
            (0..length).for_each(|task| insert(&mut self.base, task));
            self.live = instance.live(&self.base);
        }
        if self.live < walk.live || walk.done == self.base {
            return;
        }
        let side = |task| match (has(&self.base, task), walk.is_done(task)) {
            (true, _) => Side::Inside,
            (false, true) => Side::Free,
            (false, false) => Side::Outside,
        };
        let mut side: Vec<Side> = (0..instance.len()).map(side).collect();
        // The walk itself is between both, so that it has the fewest if no fewer are found.
        if cut.least(instance, &mut side, None, None, walk.live).1 == Ended::Enough {
            self.base.copy_from_slice(&walk.done);
            self.live = walk.live;
        }
    }
}

/// Lengths of the order as given at which a task stands that all before it lead to and all behind it follow from; the
/// least last.
fn cuts(instance: &Instance) -> Vec<usize> {
    // By task: where the last of those before it is read for the first time; beyond all where one is never read.
    let mut read_by = Vec::with_capacity(instance.len());
    let mut latest = 0;
    for task in &instance.tasks {
        read_by.push(latest);
        latest = latest.max(task.feeds.first().copied().unwrap_or(usize::MAX));
    }
    let mut cuts = Vec::new();
    // Where the last need stands of each task behind, the least of them, from 1; 0 where one has no needs.
    let mut needed = usize::MAX;
    for (task, &read_by) in read_by.iter().enumerate().rev() {
        if read_by <= task && task < needed {
            cuts.push(task + 1);
        }
        needed = needed.min(instance.tasks[task].needs.last().map_or(0, |need| need + 1));
    }
    cuts
}

struct States {
    words: usize,
    bits: Vec<u64>,
    all: Vec<State>,
    moves: Vec<u32>,
    /// By hash: a state, or [`NONE`]; a power of two in length.
    table: Vec<usize>,
    heap: BinaryHeap<Reverse<(u64, usize, usize)>>,
}

struct State {
    peak: u64,
    live: u64,
    count: usize,
    parent: usize,
    /// The range of moves from the parent.
    moves: (usize, usize),
    taken_up: bool,
}

const NONE: usize = usize::MAX;

impl States {
    fn new(words: usize) -> States {
        let table = vec![NONE; 1024];
        States { words, bits: Vec::new(), all: Vec::new(), moves: Vec::new(), table, heap: BinaryHeap::new() }
    }

    fn done(&self, at: usize) -> &[u64] {
        &self.bits[at * self.words..(at + 1) * self.words]
    }

    /// The state to take up next.
    fn next(&mut self) -> Option<usize> {
        while let Some(Reverse((peak, _, at))) = self.heap.pop() {
            if !self.all[at].taken_up && self.all[at].peak == peak {
                self.all[at].taken_up = true;
                return Some(at);
            }
        }
        None
    }

    /// Adds the state that a walk has reached, unless it was reached with at most the same peak before.
    fn add(&mut self, walk: &Walk, parent: usize) {
        let slot = self.slot(&walk.done);
        let at = self.table[slot];
        let moves = (self.moves.len(), self.moves.len() + walk.moves.len());
        let state = State { peak: walk.peak, live: walk.live, count: walk.count, parent, moves, taken_up: false };
        let at = if at == NONE {
            self.table[slot] = self.all.len();
            self.bits.extend(&walk.done);
            self.all.push(state);
            self.all.len() - 1
        } else if !self.all[at].taken_up && walk.peak < self.all[at].peak {
            self.all[at] = state;
            at
        } else {
            return;
        };
        self.moves.extend(walk.moves.iter().map(|&task| task as u32));
        self.heap.push(Reverse((walk.peak, usize::MAX - walk.count, at)));
        if self.table.len() < 2 * self.all.len() {
            self.table = vec![NONE; 4 * self.table.len()];
            for at in 0..self.all.len() {
                let slot = self.slot(&self.bits[at * self.words..(at + 1) * self.words]);
                self.table[slot] = at;
            }
        }
    }

    /// The position of a set in the table, or the position to insert it.
    fn slot(&self, done: &[u64]) -> usize {
        let mut hash = 0u64;
        for &word in done {
            hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        while self.table[slot] != NONE && self.done(self.table[slot]) != done {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn way_to(&self, mut at: usize) -> Vec<Position> {
        let mut parts = Vec::new();
        while at != NONE {
            let (first, end) = self.all[at].moves;
            parts.push(&self.moves[first..end]);
            at = self.all[at].parent;
        }
        parts.iter().rev().flat_map(|part| part.iter().map(|&task| task as usize)).collect()
    }
}
