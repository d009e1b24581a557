//! The skyline pass: always place next the item that can be lowest. See the head of `place.rs` for the reason.
//!
//! Almost all items are *plain*: one piece, all of their bytes. For them the skyline is stored as runs of sections of
//! equal height (`skyline_runs.rs`). A *gap* is a run that is lower than its neighbours. The plain item that can be
//! lowest is within the lowest gap, at its height. So the gap queries the spatial index (`spatial_index.rs`) for the
//! first item in order within its sections. If there is one, it is placed, and the rest of the gap and its neighbours
//! query again. If there is none, no item will ever fit there, so the gap rises to its lower neighbour and merges with
//! it. Each step places an item or removes a run, so there are O(n) steps; each costs a query, O(log n) for short
//! ranges.
//!
//! **By demand.** A gap that rises wastes bytes in each of its sections. The *demand* of a section is the sum of the
//! bytes that live in it and of those wasted in it so far: the height it reaches if no more is wasted. A pass by demand
//! takes the section of a gap with the largest demand and queries for the first item in order that is within the gap
//! and lives in that section; if there is none, for the first item within the gap. So the sections that must not waste
//! bytes are filled first, from the slack of the others.
//!
//! **The order of gaps** does not matter if all items are plain with one alignment: events in a gap until it reaches
//! its lower neighbour depend on the gap alone, and take only items that no other gap could take. So the gap that
//! changed last continues, which is good for caches.
//!
//! **Ceilings.** With fixed buffers, if all items are plain with one alignment, a gap queries the obstacle with the
//! lowest start above it (`obstacles.rs`): its *ceiling*. If the first item in order does not fit below the obstacles,
//! the index is queried for items below the ceiling that are no larger than the room, and in the same way for the parts
//! of the gap next to the ceiling. If nothing fits, the gap rises to its lower neighbour or its ceiling, whichever is
//! lower; at the ceiling, the sections below the obstacle continue on top of it. So an obstacle costs one step for each
//! run that reaches it.
//!
//! With other items, events wait in a heap by rising offset: the first item of a gap, by rank; a gap that rises, before
//! items at the height to which it rises; and single items, by rank. Single items are those that are not plain, and
//! those found first in a gap that cannot be placed on its floor because of their alignment or a fixed buffer. When a
//! single item leaves the heap its offset is computed from a segment tree; if it has risen, the item goes back. Tops
//! are rounded up to the greatest common divisor of all alignments and lower ends of windows: no item can start in
//! between.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::instance::{Instance, Item, Slot, Work};
use crate::segment_tree::AddMaxTree;
use crate::segment_tree::RaiseMaxTree;
use crate::skyline_runs::SkylineRuns;
use crate::spatial_index::{REMOVED, RangeQuery, Unplaced};

/// Units for a query of the segment tree: two walks to the root.
const LOOK_UNITS: usize = 16;
/// Units for the rest of a step: events, runs, and removing an item from the index.
const STEP_UNITS: usize = 16;
/// Units for a query or an update of the demand.
const DEMAND_UNITS: usize = 40;

/// Offsets by item, or `None` if some top would pass `limit` or the work runs out.
///
/// `order` has every item once; among items that can be equally low the earlier one goes first. With a demand, items
/// over the section of their gap with the largest demand go before the others.
pub(crate) fn skyline(
    instance: &Instance,
    order: &[u32],
    demand: Option<AddMaxTree>,
    limit: u64,
    work: &mut Work,
) -> Option<Vec<u64>> {
    if order.is_empty() {
        return Some(Vec::new());
    }
    Pass::new(instance, order, demand, limit)?.run(work)
}

/// A possible next event; the order is that of a heap, lowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    /// The offset of the item, or the height to which the gap rises.
    offset: u64,
    /// One more than the rank of the item; zero if a gap rises.
    turn: u32,
    /// The gap, or [`ALONE`] for a single item.
    run: u32,
    /// The stamp of the gap when the event was found.
    stamp: u32,
}

/// No gap.
const ALONE: u32 = u32::MAX;

/// The waiting events.
enum Events {
    /// The lowest is next.
    Lowest(BinaryHeap<Reverse<Event>>),
    /// The last is next.
    Last(Vec<Event>),
}

impl Events {
    fn push(&mut self, event: Event) {
        match self {
            Events::Lowest(heap) => heap.push(Reverse(event)),
            Events::Last(stack) => stack.push(event),
        }
    }

    fn pop(&mut self) -> Option<Event> {
        match self {
            Events::Lowest(heap) => heap.pop().map(|Reverse(event)| event),
            Events::Last(stack) => stack.pop(),
        }
    }
}

struct Pass<'a> {
    instance: &'a Instance,
    order: &'a [u32],
    limit: u64,
    runs: SkylineRuns,
    unplaced: Unplaced<'a>,
    demand: Option<AddMaxTree>,
    /// The skyline as a tree; `None` if all items are plain with one alignment.
    floor: Option<RaiseMaxTree>,
    /// Whether gaps have ceilings: all items are plain with one alignment, and there are obstacles.
    has_ceilings: bool,
    events: Events,
    offsets: Vec<u64>,
    n_left: usize,
    /// Parts of a gap that are still to be queried.
    parts: Vec<(u32, u32)>,
    /// Nodes of trees visited since units were last spent.
    n_seen: usize,
}

impl<'a> Pass<'a> {
    fn new(instance: &'a Instance, order: &'a [u32], demand: Option<AddMaxTree>, limit: u64) -> Option<Pass<'a>> {
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, item)| rank[*item as usize] = place as u32);
        let has_ceilings = instance.is_even && !instance.obstacles.is_empty();
        let mut pass = Pass {
            instance,
            order,
            limit,
            runs: SkylineRuns::new(instance.n_sections),
            unplaced: Unplaced::new(&instance.index, &rank, has_ceilings),
            demand,
            floor: (!instance.is_even).then(|| RaiseMaxTree::new(instance.n_sections)),
            has_ceilings,
            events: if instance.is_even { Events::Last(Vec::new()) } else { Events::Lowest(BinaryHeap::new()) },
            offsets: vec![0; order.len()],
            n_left: order.len(),
            parts: Vec::new(),
            n_seen: 0,
        };
        if let Some(floor) = &pass.floor {
            for (item, rank) in instance.items.iter().zip(rank) {
                if !instance.is_item_plain(item) {
                    let (offset, n_seen) = lowest(instance, floor, item)?;
                    pass.n_seen += n_seen;
                    pass.events.push(Event { offset, turn: rank + 1, run: ALONE, stamp: 0 });
                }
            }
        }
        pass.update(0);
        Some(pass)
    }

    fn run(mut self, work: &mut Work) -> Option<Vec<u64>> {
        while let Some(Event { offset, turn, run, stamp }) = self.events.pop() {
            if !work.spend(STEP_UNITS + std::mem::take(&mut self.n_seen)) {
                return None;
            }
            if run != ALONE && self.runs.stamp(run) != stamp {
                continue;
            }
            let Some(rank) = turn.checked_sub(1) else {
                self.rise(run, offset);
                continue;
            };
            let item_ix = self.order[rank as usize];
            let item = &self.instance.items[item_ix as usize];
            let found = match &self.floor {
                None => offset,
                Some(floor) => {
                    let (found, n_seen) = lowest(self.instance, floor, item)?;
                    work.spend(item.pieces.len() * LOOK_UNITS + n_seen);
                    found
                }
            };
            if run != ALONE {
                self.unplaced.remove(rank);
            }
            if offset < found {
                self.events.push(Event { offset: found, turn, run: ALONE, stamp: 0 });
                if run != ALONE {
                    self.update(run);
                }
            } else {
                self.place(item_ix, offset)?;
                if self.n_left == 0 {
                    break;
                }
            }
        }
        Some(self.offsets)
    }

    /// Raises a gap to an offset, or onto the obstacle there.
    fn rise(&mut self, run: u32, offset: u64) {
        let (height, end) = (self.runs.height(run), self.runs.end(run));
        if height < offset {
            if let Some(demand) = &mut self.demand {
                demand.add(run, end, offset - height);
                self.n_seen += DEMAND_UNITS;
            }
            let merged = self.runs.set(run, end, offset);
            self.update(merged);
            return;
        }
        let Some(slot) = self.ceiling(run, end, height) else { return };
        self.cover(slot.first.max(run), slot.end.min(end), slot.top);
    }

    /// Sets the height of sections and updates the runs that may be gaps now.
    fn cover(&mut self, first: u32, end: u32, top: u64) {
        let top = top.checked_next_multiple_of(self.instance.grain).unwrap_or(u64::MAX);
        let run = self.runs.set(first, end, top);
        for changed in [self.runs.before(run), Some(run), self.runs.after(run)].into_iter().flatten() {
            self.update(changed);
        }
    }

    /// The obstacle above a height in some sections with the lowest start.
    fn ceiling(&mut self, first: u32, end: u32, height: u64) -> Option<Slot> {
        let (slot, n_nodes) = self.instance.obstacles.lowest_over(first, end, height);
        self.n_seen += n_nodes;
        slot
    }

    /// Places an item at an offset and updates the runs that may be gaps now.
    fn place(&mut self, item_ix: u32, offset: u64) -> Option<()> {
        let item = &self.instance.items[item_ix as usize];
        if self.limit < offset.checked_add(item.size)? {
            return None;
        }
        self.offsets[item_ix as usize] = offset;
        self.n_left -= 1;
        for piece in self.instance.pieces(item) {
            let top = offset + piece.high;
            if let Some(floor) = &mut self.floor {
                floor.raise(piece.first as usize, piece.end as usize, top);
            }
            self.cover(piece.first, piece.end, top);
        }
        Some(())
    }

    /// Finds the next event of a run; earlier events of it become stale.
    fn update(&mut self, run: u32) {
        let stamp = self.runs.renew(run);
        let (height, rim) = (self.runs.height(run), self.runs.rim(run));
        if rim.is_some_and(|rim| rim < height) {
            return;
        }
        let end = self.runs.end(run);
        let ceiling = if self.has_ceilings { self.ceiling(run, end, height) } else { None };
        if ceiling.is_some_and(|slot| slot.start <= height) {
            self.events.push(Event { offset: height, turn: 0, run, stamp });
            return;
        }
        let within = RangeQuery::within(run, end);
        let mut rank = REMOVED;
        if let Some(demand) = &self.demand {
            let section = demand.first_max(run, end);
            self.n_seen += DEMAND_UNITS;
            rank = self.first_fitting(within.meeting(section, section + 1), height, ceiling);
        }
        // In a gap of one section both queries are the same.
        if rank == REMOVED && (self.demand.is_none() || 1 < end - run) {
            rank = self.first_fitting(within, height, ceiling);
        }
        let next = [rim, ceiling.map(|slot| slot.start)].into_iter().flatten().min();
        if rank != REMOVED {
            self.events.push(Event { offset: height, turn: rank + 1, run, stamp });
        } else if let Some(next) = next {
            self.events.push(Event { offset: next, turn: 0, run, stamp });
        }
    }

    /// The first item in order that matches a query and fits below the obstacles.
    fn first_fitting(&mut self, query: RangeQuery, height: u64, ceiling: Option<Slot>) -> u32 {
        let (rank, n_seen) = self.unplaced.first_below(REMOVED, query);
        self.n_seen += n_seen;
        if ceiling.is_none() || rank == REMOVED {
            return rank;
        }
        let item = &self.instance.items[self.order[rank as usize] as usize];
        let (hull, size) = (item.hull.clone(), item.size);
        if self.ceiling(hull.start, hull.end, height).is_none_or(|slot| size <= slot.start - height) {
            return rank;
        }
        // Items below the lowest obstacle, then those next to it, in parts.
        let mut best = REMOVED;
        self.parts.push((query.first, query.end));
        while let Some((first, end)) = self.parts.pop() {
            let here = RangeQuery { first, end, ..query };
            let slot = self.ceiling(first, end, height);
            let under = slot.map_or(here, |slot| RangeQuery {
                size_max: slot.start - height,
                ..here.meeting(slot.first, slot.end)
            });
            let (found, n_seen) = self.unplaced.first_below(best, under);
            self.n_seen += n_seen;
            best = found;
            let Some(slot) = slot else { continue };
            if first < slot.first && query.end_min <= slot.first {
                self.parts.push((first, slot.first));
            }
            if slot.end < end && slot.end <= query.first_max {
                self.parts.push((slot.end, end));
            }
        }
        best
    }
}

/// The lowest offset on the skyline, clear of fixed buffers, and the number of tree nodes visited; `None` if its top
/// exceeds 64 bits.
fn lowest(instance: &Instance, floor: &RaiseMaxTree, item: &Item) -> Option<(u64, usize)> {
    let pieces = instance.pieces(item);
    let rests =
        pieces.iter().map(|piece| floor.max(piece.first as usize, piece.end as usize).saturating_sub(piece.low));
    let mut offset = item.lift(rests.max().unwrap_or(0))?;
    let mut n_seen = 0;
    if instance.obstacles.is_empty() {
        return Some((offset, n_seen));
    }
    // A lift may push any piece into another obstacle, so repeat until nothing moves.
    loop {
        let before = offset;
        for piece in pieces {
            let (top, n_nodes) = instance.obstacles.top_of_met(piece.at(offset));
            n_seen += n_nodes;
            if 0 < top {
                offset = item.lift(top - piece.low)?;
            }
        }
        if offset == before {
            return Some((offset, n_seen));
        }
    }
}

#[cfg(test)]
mod tests {
    use types::{Bytes, Random};

    use super::*;
    use crate::instance::Priority;
    use crate::problem::{Buffer, ByteWindow, Gap, Lifetime, Problem};

    /// The definition: of all remaining items, take the one that can be lowest, the first in order among those.
    fn plain_rule(instance: &Instance, order: &[u32]) -> Vec<u64> {
        let mut floor = RaiseMaxTree::new(instance.n_sections);
        let mut left = order.to_vec();
        let mut offsets = vec![0; order.len()];
        while !left.is_empty() {
            let all = left.iter().map(|item| lowest(instance, &floor, &instance.items[*item as usize]).unwrap().0);
            let (at, offset) = all.enumerate().min_by_key(|(at, offset)| (*offset, *at)).unwrap();
            let item_ix = left.remove(at) as usize;
            offsets[item_ix] = offset;
            for piece in instance.pieces(&instance.items[item_ix]) {
                floor.raise(piece.first as usize, piece.end as usize, offset + piece.high);
            }
        }
        offsets
    }

    fn random_problem(random: &mut Random, alignments: &[u64], has_gaps: bool, has_fixed: bool) -> Problem {
        let n_steps = 1 + random.below(40);
        let mut buffers: Vec<Buffer> = (0..random.below(60))
            .map(|_| {
                let first = random.below(n_steps);
                let end = first + 1 + random.below(n_steps - first);
                let (first, end) = (first as u32, end as u32);
                let size = 1 + random.below(30);
                let mut buffer = Buffer::new(Lifetime { first, end }, Bytes(size));
                buffer.alignment = Bytes(alignments[random.below(alignments.len() as u64) as usize]);
                if has_gaps && random.below(3) == 0 {
                    let low = random.below(size);
                    let window = (random.below(2) == 0).then_some(ByteWindow { low: Bytes(low), high: Bytes(size) });
                    let middle = first + random.below(u64::from(end - first)) as u32;
                    buffer.gaps.push(Gap { lifetime: Lifetime { first: middle, end }, window });
                }
                buffer
            })
            .collect();
        if has_fixed {
            // One above the other, so that they do not overlap.
            for (at, buffer) in buffers.iter_mut().step_by(5).enumerate() {
                buffer.fixed = Some(Bytes(40 * (at as u64 * buffer.alignment.0)));
                buffer.size = Bytes(buffer.size.0.min(40));
                buffer.alignment = Bytes(1);
                buffer.gaps.clear();
            }
        }
        Problem { buffers, capacity: None }
    }

    /// The definition for plain items of alignment 1: search the whole skyline for its lowest gap.
    fn plain_rule_by_demand(instance: &Instance, order: &[u32]) -> Vec<u64> {
        let mut demand: Vec<u64> = instance.totals().iter().map(|total| *total as u64).collect();
        let mut floor = vec![0_u64; instance.n_sections];
        let mut left = order.to_vec();
        let mut offsets = vec![0; order.len()];
        while !left.is_empty() {
            // The lowest event of all gaps: rises first, then items by rank.
            let mut next: Option<(u64, usize, usize, usize)> = None;
            let mut first = 0;
            while first < floor.len() {
                let level = floor[first];
                let end = (first..floor.len()).find(|at| floor[*at] != level).unwrap_or(floor.len());
                let walls = [first.checked_sub(1), Some(end)].into_iter().flatten();
                let rim = walls.filter_map(|at| floor.get(at)).min().copied();
                if rim.is_none_or(|rim| level < rim) {
                    let hull = |item: u32| instance.items[item as usize].hull.clone();
                    let is_within = |item: u32| first <= hull(item).start as usize && hull(item).end as usize <= end;
                    let most = demand[first..end].iter().max().unwrap();
                    let tight = (first..end).find(|at| demand[*at] == *most).unwrap() as u32;
                    let over = left.iter().find(|item| is_within(**item) && hull(**item).contains(&tight));
                    let item = over.or_else(|| left.iter().find(|item| is_within(**item)));
                    let turn = item.map(|item| (level, 1 + order.iter().position(|one| one == item).unwrap()));
                    if let Some((offset, turn)) = turn.or(rim.map(|rim| (rim, 0))) {
                        next = next.into_iter().chain([(offset, turn, first, end)]).min();
                    }
                }
                first = end;
            }
            let (offset, turn, first, end) = next.unwrap();
            if turn == 0 {
                demand[first..end].iter_mut().for_each(|demand| *demand += offset - floor[first]);
                floor[first..end].fill(offset);
            } else {
                let item_ix = order[turn - 1];
                left.retain(|item| *item != item_ix);
                offsets[item_ix as usize] = offset;
                let item = &instance.items[item_ix as usize];
                floor[item.hull.start as usize..item.hull.end as usize].fill(offset + item.size);
            }
        }
        offsets
    }

    #[test]
    fn skyline_by_demand_equals_its_definition() {
        let mut random = Random::new(10);
        for _ in 0..2000 {
            let problem = random_problem(&mut random, &[1], false, false);
            let instance = Instance::new(&problem);
            for priority in [Priority::Area, Priority::PeakWidth] {
                let order = instance.order(priority);
                let found = skyline(&instance, &order, Some(instance.demand()), u64::MAX, &mut Work::new(u64::MAX));
                assert_eq!(found.unwrap(), plain_rule_by_demand(&instance, &order), "{problem:#?}");
            }
        }
    }

    #[test]
    fn skyline_equals_its_definition() {
        let mut random = Random::new(6);
        for round in 0..2000 {
            let alignments: &[u64] = [&[1][..], &[8], &[1, 2, 3, 8], &[4, 8, 16]][round % 4];
            let problem = random_problem(&mut random, alignments, round % 3 == 0, round % 5 == 0);
            let instance = Instance::new(&problem);
            for priority in [Priority::Area, Priority::First] {
                let order = instance.order(priority);
                let found = skyline(&instance, &order, None, u64::MAX, &mut Work::new(u64::MAX)).unwrap();
                assert_eq!(found, plain_rule(&instance, &order), "{problem:#?}");
            }
        }
    }
}
