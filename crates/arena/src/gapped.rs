//! [`pack_gapped`]: packings of problems in which some items have gaps.
//!
//! Most passes and the exact search place rectangles. So the items with gaps are placed first and fixed: the others are
//! rectangles around obstacles, a problem that everything applies to, and the gaps of fixed buffers are used.
//!
//! ```text
//!      |      +--------|        g grows at step 2. Fixed at the bottom, its gap is free for x, where a rectangle for
//!      |   x  |        |        the whole life of g would push x up.
//!      |------+   g    |
//!      |      g        |
//!      +---------------+
//! ```
//!
//! 1. The items are placed as if they had no gaps, so that gaps never make an arena larger.
//! 2. Greedy passes place the pieces. For the lowest of these packings, the items with gaps are fixed at their offsets, and
//!    the others are placed anew around them.
//! 3. Hill climbing changes the order of the items for first fit ([`Gapped::climb`]).
//!
//! The exact search that follows (`exact.rs`) takes items whose pieces all start at the offset as they are.

use std::collections::BTreeSet;

use types::{Bytes, EntityId, Random};

use crate::bound::exact_bound;
use crate::hole_fit::{Rule, fit};
use crate::instance::{Instance, Priority, Work};
use crate::place::{Goals, Packing, Portfolio, pack_part};
use crate::problem::Problem;
use crate::skyline::skyline;

/// Placing the items without gaps may cost one part in this many of the budget.
const WHOLE_SHARE: u64 = 8;
/// All that follows may cost one part in this many of the rest.
const GAPS_SHARE: u64 = 2;
/// Of that, placing the other items around those with gaps may cost one part in this many.
const AROUND_SHARE: u64 = 16;
/// The number of packings in which the items with gaps are fixed.
const STARTS: usize = 4;
/// First fit and best fit are too slow for more items.
const FIT_MAX: usize = 3000;
/// For each item, the orders that are tried without a lower height.
const CLIMB_TRIES: usize = 20;

/// The lowest packing found; `None` if no pass stays below 2^64.
pub(crate) fn pack_gapped(problem: &Problem, instance: &Instance, goals: Goals, work: &mut Work) -> Option<Packing> {
    let mut whole = problem.clone();
    whole.buffers.iter_mut().filter(|buffer| buffer.fixed.is_none()).for_each(|buffer| buffer.gaps.clear());
    let enough = exact_bound(&whole).0.try_into().unwrap_or(u64::MAX).max(goals.good_enough);
    let mut part = work.part(work.left() / WHOLE_SHARE);
    let packed = pack_part(&whole, enough, Portfolio::Full, 1, &mut part.work);
    work.spend_part(part);
    let mut part = work.part(work.left() / GAPS_SHARE);
    let mut search = Gapped::new(problem, instance, goals);
    if let Some((offsets, _)) = packed {
        search.take(&offsets);
    }
    search.run(&mut part.work);
    work.spend_part(part);
    search.best
}

struct Gapped<'a> {
    problem: &'a Problem,
    instance: &'a Instance,
    goals: Goals,
    /// The items with gaps.
    items: Vec<u32>,
    /// Their offsets that were tried.
    tried: BTreeSet<Vec<u64>>,
    best: Option<Packing>,
}

impl<'a> Gapped<'a> {
    fn new(problem: &'a Problem, instance: &'a Instance, goals: Goals) -> Gapped<'a> {
        let has_gaps = |ix: &u32| !instance.is_item_plain(&instance.items[*ix as usize]);
        let items = (0..instance.items.len() as u32).filter(has_gaps).collect();
        Gapped { problem, instance, goals, items, tried: BTreeSet::new(), best: None }
    }

    /// Keeps a packing, given by buffer, if it is the lowest.
    fn take(&mut self, offsets: &[u64]) {
        let by_item = self.instance.items.iter().map(|item| offsets[item.buffer.index()]).collect();
        self.take_packing(Packing::new(self.instance, by_item));
    }

    fn take_packing(&mut self, packing: Packing) {
        if self.best.as_ref().is_none_or(|best| packing.height < best.height) {
            self.best = Some(packing);
        }
    }

    fn is_settled(&self) -> bool {
        self.best.as_ref().is_some_and(|best| self.goals.are_settled(best.height))
    }

    fn run(&mut self, work: &mut Work) {
        let mut starts: Vec<(u64, Vec<u64>)> = self.best.iter().map(|best| (best.height, self.offsets(best))).collect();
        for priority in [Priority::Area, Priority::Size, Priority::Width, Priority::First, Priority::PeakArea] {
            let order = self.instance.order(priority);
            let fits = [Rule::First, Rule::Best].map(|rule| match self.instance.items.len() {
                ..=FIT_MAX => fit(self.instance, rule, &order, u64::MAX, work),
                _ => None,
            });
            let skyline = skyline(self.instance, &order, None, u64::MAX, work);
            for offsets in fits.into_iter().chain([skyline]).flatten() {
                let packing = Packing::new(self.instance, offsets);
                starts.push((packing.height, self.offsets(&packing)));
                self.take_packing(packing);
                if self.is_settled() {
                    return;
                }
            }
        }
        starts.sort_unstable();
        for (_, start) in starts.into_iter().take(STARTS) {
            self.around(start, work.left() / AROUND_SHARE, work);
            if self.is_settled() || work.is_spent() {
                return;
            }
        }
        if self.instance.items.len() <= FIT_MAX {
            self.climb(work);
        }
        if let (false, Some(best)) = (self.is_settled(), &self.best) {
            self.around(self.offsets(best), work.left(), work);
        }
    }

    /// The offsets of the items with gaps.
    fn offsets(&self, packing: &Packing) -> Vec<u64> {
        self.items.iter().map(|ix| packing.offsets[*ix as usize]).collect()
    }

    /// Places the other items around those with gaps, for at most `units`.
    fn around(&mut self, offsets: Vec<u64>, units: u64, work: &mut Work) {
        if !self.tried.insert(offsets.clone()) {
            return;
        }
        let mut rest = self.problem.clone();
        for (ix, offset) in self.items.iter().zip(offsets) {
            rest.buffers[self.instance.items[*ix as usize].buffer.index()].fixed = Some(Bytes(offset));
        }
        let height = self.best.as_ref().map_or(u64::MAX, |best| best.height);
        let bound = exact_bound(&rest).0;
        if u128::from(height) <= bound || rest.verify().is_err() {
            return;
        }
        let enough = self.goals.good_enough.max(bound as u64);
        let mut part = work.part(units);
        let packed = pack_part(&rest, enough, Portfolio::Full, 1, &mut part.work);
        work.spend_part(part);
        if let Some((offsets, _)) = packed {
            self.take(&offsets);
        }
    }

    /// Reorders items for first fit, from the order that the best packing has by offset: an item that reaches the height goes
    /// before one that shares a section with it. An order is kept unless it is higher.
    fn climb(&mut self, work: &mut Work) {
        let (instance, Some(best)) = (self.instance, &self.best) else { return };
        let mut order: Vec<u32> = (0..instance.items.len() as u32).collect();
        order.sort_by_key(|ix| best.offsets[*ix as usize]);
        let Some(offsets) = fit(instance, Rule::First, &order, u64::MAX, work) else { return };
        let mut now = Packing::new(instance, offsets);
        let mut random = Random::new(1);
        let mut since = 0;
        while !work.is_spent() && since < CLIMB_TRIES * instance.items.len() {
            since += 1;
            let is_top = |ix: &u32| now.offsets[*ix as usize] + instance.items[*ix as usize].size == now.height;
            let tops: Vec<usize> = (0..order.len()).filter(|at| is_top(&order[*at])).collect();
            let Some(&at) = tops.get(random.below(tops.len().max(1) as u64) as usize) else { return };
            let hull = &instance.items[order[at] as usize].hull;
            let shares = |other: &u32| {
                let other = &instance.items[*other as usize].hull;
                hull.start < other.end && other.start < hull.end
            };
            let before: Vec<usize> = (0..at).filter(|other| shares(&order[*other])).collect();
            if before.is_empty() {
                return;
            }
            let mut next = order.clone();
            // The top one goes before another one; sometimes two of the others change places.
            let to = before[random.below(before.len() as u64) as usize];
            if random.below(4) == 0 {
                let from = before[random.below(before.len() as u64) as usize];
                next.swap(from, to);
            } else {
                next[to..=at].rotate_right(1);
            }
            let limit = now.height;
            let Some(offsets) = fit(instance, Rule::First, &next, limit, work) else { continue };
            let packing = Packing::new(instance, offsets);
            if packing.height < now.height {
                since = 0;
            }
            (order, now) = (next, packing);
            if self.best.as_ref().is_some_and(|best| now.height < best.height) {
                self.best = Some(Packing { offsets: now.offsets.clone(), height: now.height });
                if self.is_settled() {
                    return;
                }
            }
        }
    }
}
