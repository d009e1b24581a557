//! The skyline pass: always place next the item that can lie lowest. The head of `place.rs` tells the rule and why.
//!
//! Almost all items are *plain*: one piece, all of their bytes. For them the floor is kept as runs of sections of equal
//! height (`runs.rs`). A *niche* is a run that is lower than its neighbours. A plain item that can lie lowest lies
//! within the lowest niche, at its height, so nobody need look at long items again and again while the floor rises
//! under them: the niche asks the stock (`stock.rs`) for the first in order among the items within its sections. If
//! there is one, it is placed, and what is left of the niche and the runs beside it ask again. If there is none,
//! nothing will ever lie there, so the niche rises to its lower neighbour and becomes one with it. Each of these steps
//! places an item or takes a run away, so there are O(n) of them; each costs a query, O(log n) for short ranges.
//!
//! **By need.** A niche that rises wastes the bytes it rises by, in each of its sections. The *need* of a section
//! (`need.rs`) is the sum of the bytes that live in it and of those wasted in it so far: the height it will reach if no
//! more is wasted. A pass by need asks a niche for its section of the greatest need, and the stock for the first in
//! order among the items that lie within the niche and live in that section; only if there is none, for the first of
//! all within. So what must not waste is filled first, and the slack of other sections pays for it.
//!
//! **Which niche is next** makes no difference where all items are plain and have one alignment: what happens in
//! a niche until it has risen to its lower neighbour depends on the niche alone, and takes only items that no other
//! niche could. So the niche that changed last goes on, and what it looks at lies where the last one looked.
//!
//! **Ceilings.** Where there are obstacles, all items are plain and they have one alignment, a niche asks which obstacle
//! starts lowest above its floor (`obstacles.rs`): its *ceiling*. If the first item in order does not fit under what lies
//! above it, the stock is asked for the first among those that live under the ceiling and are not higher than the room
//! below it, and the parts of the niche beside the ceiling are asked in the same way. If nothing fits, the niche rises to
//! its lower neighbour or its ceiling, whichever is lower; at the ceiling those sections that it covers go on on top of
//! it. So nothing is lifted over obstacles one by one, and an obstacle costs a step for each run that comes up to it.
//! What happens in a niche still depends on the niche alone.
//!
//! Where there are other items, what waits to happen lies in a heap, by rising offset: a niche's first item, by rank; a
//! niche that rises, before items at the height to which it rises; and items one by one, by rank. These are the items
//! that are not plain, from the start, and those found first in a niche that cannot lie on its floor because of their
//! alignment or a fixed buffer. Their offset is looked up in a tree (`floor.rs`) when they come out; if it has risen
//! they go back in. Tops are rounded up to the greatest common divisor of all alignments and lower ends of windows: no
//! item can begin in between.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::floor::Floor;
use crate::instance::{Instance, Item, Slot, Work};
use crate::need::Need;
use crate::runs::Runs;
use crate::stock::{Stock, TAKEN, Wanted};

/// What one look at the floor costs, in units of work: two walks up the tree.
const LOOK_UNITS: usize = 16;
/// What one step costs besides: the events, the runs, and taking an item from the stock.
const STEP_UNITS: usize = 16;
/// What it costs to ask for a need, or to add to it.
const NEED_UNITS: usize = 40;

/// Offsets by item, or `None` if some top would pass `limit` or the work runs out.
///
/// `order` names every item once; among items that can lie equally low the earlier one goes first. With a need, one
/// over the section of its niche that needs most goes before the others.
pub(crate) fn skyline(
    instance: &Instance,
    order: &[u32],
    need: Option<Need>,
    limit: u64,
    work: &mut Work,
) -> Option<Vec<u64>> {
    if order.is_empty() {
        return Some(Vec::new());
    }
    Pass::new(instance, order, need, limit)?.run(work)
}

/// What may happen next; where order matters, in this one: lowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    /// Where the item would lie, or to where the niche would rise.
    offset: u64,
    /// One more than the rank of the item; zero if a niche rises.
    turn: u32,
    /// The niche, or [`ALONE`] for an item that waits by itself.
    run: u32,
    /// The stamp of the niche when this was found.
    stamp: u32,
}

/// In place of a niche: none.
const ALONE: u32 = u32::MAX;

/// What waits to happen.
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
    runs: Runs,
    stock: Stock<'a>,
    need: Option<Need>,
    /// If all items are plain and have one alignment, there is none.
    floor: Option<Floor>,
    /// Whether niches know what lies above them: all items are even, and there are obstacles.
    has_ceilings: bool,
    events: Events,
    offsets: Vec<u64>,
    n_left: usize,
    /// Parts of a niche that are still to be looked at.
    parts: Vec<(u32, u32)>,
    /// Nodes of trees seen since work was last spent.
    n_seen: usize,
}

impl<'a> Pass<'a> {
    fn new(instance: &'a Instance, order: &'a [u32], need: Option<Need>, limit: u64) -> Option<Pass<'a>> {
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, item)| rank[*item as usize] = place as u32);
        let has_ceilings = instance.is_even && !instance.obstacles.is_empty();
        let mut pass = Pass {
            instance,
            order,
            limit,
            runs: Runs::new(instance.n_sections),
            stock: Stock::new(&instance.stock, &rank, has_ceilings),
            need,
            floor: (!instance.is_even).then(|| Floor::new(instance.n_sections)),
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
        pass.ask(0);
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
                self.stock.take(rank);
            }
            if offset < found {
                self.events.push(Event { offset: found, turn, run: ALONE, stamp: 0 });
                if run != ALONE {
                    self.ask(run);
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

    /// Lifts a niche to an offset, or on what lies there already.
    fn rise(&mut self, run: u32, offset: u64) {
        let (height, end) = (self.runs.height(run), self.runs.end(run));
        if height < offset {
            if let Some(need) = &mut self.need {
                need.add(run, end, offset - height);
                self.n_seen += NEED_UNITS;
            }
            let merged = self.runs.set(run, end, offset);
            self.ask(merged);
            return;
        }
        let Some(slot) = self.ceiling(run, end, height) else { return };
        self.cover(slot.first.max(run), slot.end.min(end), slot.top);
    }

    /// Gives sections a floor, and asks for those runs again that may be niches now.
    fn cover(&mut self, first: u32, end: u32, top: u64) {
        let top = top.checked_next_multiple_of(self.instance.grain).unwrap_or(u64::MAX);
        let run = self.runs.set(first, end, top);
        for changed in [self.runs.before(run), Some(run), self.runs.after(run)].into_iter().flatten() {
            self.ask(changed);
        }
    }

    /// What lies lowest over some sections from a height on.
    fn ceiling(&mut self, first: u32, end: u32, height: u64) -> Option<Slot> {
        let (slot, n_nodes) = self.instance.obstacles.lowest_over(first, end, height);
        self.n_seen += n_nodes;
        slot
    }

    /// Lets an item lie at an offset, and asks for those runs again that may be niches now.
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

    /// Finds out what can happen next to a run; what was found earlier no longer counts.
    fn ask(&mut self, run: u32) {
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
        let within = Wanted::within(run, end);
        let mut rank = TAKEN;
        if let Some(need) = &self.need {
            let section = need.greatest(run, end);
            self.n_seen += NEED_UNITS;
            rank = self.first_fitting(within.meeting(section, section + 1), height, ceiling);
        }
        // In one section all that lies within lives there.
        if rank == TAKEN && (self.need.is_none() || 1 < end - run) {
            rank = self.first_fitting(within, height, ceiling);
        }
        let next = [rim, ceiling.map(|slot| slot.start)].into_iter().flatten().min();
        if rank != TAKEN {
            self.events.push(Event { offset: height, turn: rank + 1, run, stamp });
        } else if let Some(next) = next {
            self.events.push(Event { offset: next, turn: 0, run, stamp });
        }
    }

    /// The first in order of what is wanted in a niche and fits under what lies above it.
    fn first_fitting(&mut self, wanted: Wanted, height: u64, ceiling: Option<Slot>) -> u32 {
        let (rank, n_seen) = self.stock.first_below(TAKEN, wanted);
        self.n_seen += n_seen;
        if ceiling.is_none() || rank == TAKEN {
            return rank;
        }
        let item = &self.instance.items[self.order[rank as usize] as usize];
        let (hull, size) = (item.hull.clone(), item.size);
        if self.ceiling(hull.start, hull.end, height).is_none_or(|slot| size <= slot.start - height) {
            return rank;
        }
        // What lies under the lowest obstacle, then what lies beside it, in parts.
        let mut best = TAKEN;
        self.parts.push((wanted.first, wanted.end));
        while let Some((first, end)) = self.parts.pop() {
            let here = Wanted { first, end, ..wanted };
            let slot = self.ceiling(first, end, height);
            let under = slot
                .map_or(here, |slot| Wanted { size_max: slot.start - height, ..here.meeting(slot.first, slot.end) });
            let (found, n_seen) = self.stock.first_below(best, under);
            self.n_seen += n_seen;
            best = found;
            let Some(slot) = slot else { continue };
            if first < slot.first && wanted.end_min <= slot.first {
                self.parts.push((first, slot.first));
            }
            if slot.end < end && slot.end <= wanted.first_max {
                self.parts.push((slot.end, end));
            }
        }
        best
    }
}

/// The lowest offset on the floor, clear of fixed buffers, and how many nodes of their tree were seen; `None` if its
/// top passes 64 bits.
fn lowest(instance: &Instance, floor: &Floor, item: &Item) -> Option<(u64, usize)> {
    let pieces = instance.pieces(item);
    let rests =
        pieces.iter().map(|piece| floor.height(piece.first as usize, piece.end as usize).saturating_sub(piece.low));
    let mut offset = item.lift(rests.max().unwrap_or(0))?;
    let mut n_seen = 0;
    if instance.obstacles.is_empty() {
        return Some((offset, n_seen));
    }
    // A lift may push any piece into another obstacle, hence until nothing moves.
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
    use crate::problem::{Buffer, Gap, Lifetime, Problem, Window};

    /// The rule word for word: look at all that is left, take what can lie lowest, the first in order of those.
    fn plain_rule(instance: &Instance, order: &[u32]) -> Vec<u64> {
        let mut floor = Floor::new(instance.n_sections);
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
                    let window = (random.below(2) == 0).then_some(Window { low: Bytes(low), high: Bytes(size) });
                    let middle = first + random.below(u64::from(end - first)) as u32;
                    buffer.gaps.push(Gap { lifetime: Lifetime { first: middle, end }, window });
                }
                buffer
            })
            .collect();
        if has_fixed {
            // One above the other, so that they do not meet.
            for (at, buffer) in buffers.iter_mut().step_by(5).enumerate() {
                buffer.fixed = Some(Bytes(40 * (at as u64 * buffer.alignment.0)));
                buffer.size = Bytes(buffer.size.0.min(40));
                buffer.alignment = Bytes(1);
                buffer.gaps.clear();
            }
        }
        Problem { buffers, capacity: None }
    }

    /// The rule for plain items of alignment 1, word for word: look at the whole skyline for its lowest niche.
    fn plain_rule_by_need(instance: &Instance, order: &[u32]) -> Vec<u64> {
        let mut need: Vec<u64> = instance.totals().iter().map(|total| *total as u64).collect();
        let mut floor = vec![0_u64; instance.n_sections];
        let mut left = order.to_vec();
        let mut offsets = vec![0; order.len()];
        while !left.is_empty() {
            // Of what can happen to niches next, the lowest: rises first, then items by rank.
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
                    let most = need[first..end].iter().max().unwrap();
                    let tight = (first..end).find(|at| need[*at] == *most).unwrap() as u32;
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
                need[first..end].iter_mut().for_each(|need| *need += offset - floor[first]);
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
    fn the_pass_by_need_follows_the_plain_rule() {
        let mut random = Random::new(10);
        for _ in 0..2000 {
            let problem = random_problem(&mut random, &[1], false, false);
            let instance = Instance::new(&problem);
            for priority in [Priority::Area, Priority::PeakWidth] {
                let order = instance.order(priority);
                let found = skyline(&instance, &order, Some(instance.need()), u64::MAX, &mut Work::new(u64::MAX));
                assert_eq!(found.unwrap(), plain_rule_by_need(&instance, &order), "{problem:#?}");
            }
        }
    }

    #[test]
    fn the_pass_follows_the_plain_rule() {
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
