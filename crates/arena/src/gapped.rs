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
//! 1. Skylines over the pieces, by demand and in order, upright and upside down, then first fit and best fit; each packing
//!    is turned until it settles (`flip.rs`).
//! 2. The items are placed as if they had no gaps, if that can be lower, so that gaps never make an arena larger.
//! 3. For the lowest packings, the items with gaps are fixed at their offsets, and the others are placed anew around them.
//! 4. Hill climbing changes the order of the items for first fit ([`Gapped::climb`]).
//!
//! The exact search that follows (`exact.rs`) takes items whose pieces all start at the offset as they are.

use std::collections::BTreeSet;

use types::{Bytes, EntityId, Random};

use crate::bound::exact_bound;
use crate::flip::{Flip, Side, upside_down};
use crate::hole_fit::{Rule, fit, fit_units_of};
use crate::instance::{Instance, Priority, Work};
use crate::place::{Goals, Packing, Portfolio, pack_part};
use crate::problem::Problem;
use crate::skyline::skyline;

/// The skylines of step 1, apart from the first, may cost one part in this many of the budget.
const SKYLINES_SHARE: u64 = 2;
/// The fits of step 1 may cost one part in this many of the rest.
const FITS_SHARE: u64 = 8;
/// A fit of more units is slow.
const FIT_UNITS_MAX: u64 = 600_000;
/// Placing the items without gaps may cost one part in this many of the rest.
const WHOLE_SHARE: u64 = 8;
/// All that follows may cost one part in this many of the rest.
const GAPS_SHARE: u64 = 3;
/// Of that, placing the other items around those with gaps may cost one part in this many.
const AROUND_SHARE: u64 = 16;
/// The number of packings in which the items with gaps are fixed.
const STARTS: usize = 2;
/// For each item, the orders that are tried without a lower height.
const CLIMB_TRIES: usize = 20;
/// The orders of skylines by demand, best first, and of the others.
const BY_DEMAND: [Priority; 4] = [Priority::PeakWidth, Priority::First, Priority::Width, Priority::Area];
const IN_ORDER: [Priority; 6] =
    [Priority::PeakWidth, Priority::First, Priority::Width, Priority::Area, Priority::Size, Priority::PeakArea];
/// The orders of fits.
const OF_FITS: [Priority; 5] = [Priority::Area, Priority::Size, Priority::Width, Priority::First, Priority::PeakArea];

/// The lowest packing found; `None` if no pass stays below 2^64.
pub(crate) fn pack_gapped(problem: &Problem, instance: &Instance, goals: Goals, work: &mut Work) -> Option<Packing> {
    let turned = upside_down(problem);
    let flip = Flip::new(instance, turned.as_ref());
    let mut search = Gapped::new(problem, instance, &flip, goals);
    search.within(SKYLINES_SHARE, work, Gapped::skylines);
    search.within(FITS_SHARE, work, Gapped::fits);
    search.within(WHOLE_SHARE, work, Gapped::whole);
    search.within(GAPS_SHARE, work, Gapped::improve);
    search.best
}

struct Gapped<'a> {
    problem: &'a Problem,
    instance: &'a Instance,
    flip: &'a Flip<'a>,
    goals: Goals,
    /// The items with gaps.
    items: Vec<u32>,
    /// Their offsets that were tried.
    tried: BTreeSet<Vec<u64>>,
    /// Heights of packings, with the offsets that the items with gaps have there.
    starts: Vec<(u64, Vec<u64>)>,
    best: Option<Packing>,
}

impl<'a> Gapped<'a> {
    fn new(problem: &'a Problem, instance: &'a Instance, flip: &'a Flip<'a>, goals: Goals) -> Gapped<'a> {
        let has_gaps = |ix: &u32| !instance.is_item_plain(&instance.items[*ix as usize]);
        let items = (0..instance.items.len() as u32).filter(has_gaps).collect();
        Gapped { problem, instance, flip, goals, items, tried: BTreeSet::new(), starts: Vec::new(), best: None }
    }

    /// A step with one part in `share` of the budget, unless the height is settled.
    fn within(&mut self, share: u64, work: &mut Work, step: impl FnOnce(&mut Self, &mut Work)) {
        if self.is_settled() {
            return;
        }
        let mut part = work.part(work.left() / share);
        step(self, &mut part.work);
        work.spend_part(part);
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

    fn are_fits_slow(&self) -> bool {
        FIT_UNITS_MAX < fit_units_of(self.instance)
    }

    /// Step 1. The first skyline runs to its end with any budget, and is turned until it settles.
    fn skylines(&mut self, work: &mut Work) {
        if self.are_fits_slow() {
            return self.skylines_with_one_turn(work);
        }
        let by_demand = BY_DEMAND.map(|priority| (priority, true));
        for (priority, is_by_demand) in by_demand.into_iter().chain(IN_ORDER.map(|priority| (priority, false))) {
            for side in Side::BOTH {
                let mut unlimited = Work::new(u64::MAX);
                let work = if self.best.is_none() { &mut unlimited } else { &mut *work };
                let Some(instance) = self.flip.instance(side) else { continue };
                let demand = is_by_demand.then(|| instance.demand());
                let Some(offsets) = skyline(instance, &instance.order(priority), demand, u64::MAX, work) else {
                    return;
                };
                self.settle(side, offsets, work);
                if self.is_settled() {
                    return;
                }
            }
        }
    }

    /// Step 1 where fits are slow. A turn costs more than a skyline then: only the lowest one is turned.
    fn skylines_with_one_turn(&mut self, work: &mut Work) {
        let first = (BY_DEMAND[0], true);
        let mut unlimited = Work::new(u64::MAX);
        for (priority, is_by_demand) in [first].into_iter().chain(IN_ORDER.map(|priority| (priority, false))) {
            let work = if self.best.is_none() { &mut unlimited } else { &mut *work };
            let demand = is_by_demand.then(|| self.instance.demand());
            let order = self.instance.order(priority);
            let Some(offsets) = skyline(self.instance, &order, demand, u64::MAX, work) else { break };
            let packing = Packing::new(self.instance, offsets);
            self.starts.push((packing.height, self.offsets(&packing)));
            self.take_packing(packing);
            if self.is_settled() {
                return;
            }
        }
        if let Some(best) = &self.best {
            self.settle(Side::Upright, best.offsets.clone(), &mut unlimited);
        }
    }

    fn fits(&mut self, work: &mut Work) {
        let are_slow = self.are_fits_slow();
        let orders = OF_FITS.iter().filter(|_| !are_slow);
        for (priority, rule) in orders.flat_map(|priority| [Rule::First, Rule::Best].map(|rule| (*priority, rule))) {
            let order = self.instance.order(priority);
            let Some(offsets) = fit(self.instance, rule, &order, u64::MAX, work) else { return };
            self.settle(Side::Upright, offsets, work);
            if self.is_settled() {
                return;
            }
        }
    }

    /// Turns a packing until it settles. The lowest one is a start of step 3.
    fn settle(&mut self, side: Side, offsets: Vec<u64>, work: &mut Work) {
        if let Some(packing) = self.flip.settle(side, offsets, self.goals.good_enough, work) {
            self.starts.push((packing.height, self.offsets(&packing)));
            self.take_packing(packing);
        }
    }

    /// Step 2.
    fn whole(&mut self, work: &mut Work) {
        let mut whole = self.problem.clone();
        whole.buffers.iter_mut().filter(|buffer| buffer.fixed.is_none()).for_each(|buffer| buffer.gaps.clear());
        let bound = exact_bound(&whole).0;
        if self.best.as_ref().is_some_and(|best| u128::from(best.height) <= bound) {
            return;
        }
        let enough = u64::try_from(bound).unwrap_or(u64::MAX).max(self.goals.good_enough);
        if let Some((offsets, height)) = pack_part(&whole, enough, Portfolio::Full, 1, work) {
            self.take(&offsets);
            let of_gapped = |ix: &u32| offsets[self.instance.items[*ix as usize].buffer.index()];
            self.starts.push((height, self.items.iter().map(of_gapped).collect()));
        }
    }

    /// Steps 3 and 4.
    fn improve(&mut self, work: &mut Work) {
        let mut starts = std::mem::take(&mut self.starts);
        starts.sort_unstable();
        for (_, start) in starts.into_iter().take(STARTS) {
            self.around(start, work.left() / AROUND_SHARE, work);
            if self.is_settled() || work.is_spent() {
                return;
            }
        }
        self.climb(work);
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

    /// Reorders items for first fit, from the order that a packing has by offset, upright or upside down: an item that
    /// reaches the height goes before one that shares a section with it. An order is kept unless it is higher.
    fn climb(&mut self, work: &mut Work) {
        let Some(best) = &self.best else { return };
        let mut now = best.offsets.clone();
        let mut random = Random::new(1);
        let mut since = 0;
        while !work.is_spent() && since < CLIMB_TRIES * self.instance.items.len() {
            since += 1;
            let side = Side::BOTH[random.below(2) as usize];
            let Some(instance) = self.flip.instance(side) else { continue };
            let Some(offsets) = self.flip.seen_from(side, &now) else { return };
            let Some(order) = reordered(instance, &offsets, &mut random) else { return };
            let limit = instance.height(&offsets);
            let Some(offsets) = fit(instance, Rule::First, &order, limit, work) else { continue };
            let Some(upright) = self.flip.upright(side, &offsets) else { return };
            let packing = Packing::new(self.instance, upright);
            now.clone_from(&packing.offsets);
            if self.best.as_ref().is_some_and(|best| packing.height < best.height) {
                since = 0;
            }
            self.take_packing(packing);
            if self.is_settled() {
                return;
            }
        }
    }
}

/// The items by offset, but one that reaches the height goes before another one with which it shares a section; sometimes
/// two of the others change places. `None` if the height cannot be lowered.
fn reordered(instance: &Instance, offsets: &[u64], random: &mut Random) -> Option<Vec<u32>> {
    let mut order: Vec<u32> = (0..instance.items.len() as u32).collect();
    order.sort_by_key(|ix| offsets[*ix as usize]);
    let height = instance.height(offsets);
    let is_top = |ix: &u32| offsets[*ix as usize] + instance.items[*ix as usize].size == height;
    let tops: Vec<usize> = (0..order.len()).filter(|at| is_top(&order[*at])).collect();
    let &at = tops.get(random.below(tops.len().max(1) as u64) as usize)?;
    let hull = &instance.items[order[at] as usize].hull;
    let shares = |other: &u32| {
        let other = &instance.items[*other as usize].hull;
        hull.start < other.end && other.start < hull.end
    };
    let before: Vec<usize> = (0..at).filter(|other| shares(&order[*other])).collect();
    let one_of = |random: &mut Random| before.get(random.below(before.len().max(1) as u64) as usize).copied();
    let to = one_of(random)?;
    if random.below(4) == 0 {
        let from = one_of(random)?;
        order.swap(from, to);
    } else {
        order[to..=at].rotate_right(1);
    }
    Some(order)
}
