//! [`lower_tops`]: places the items that are too high anew, together with their neighbours in time.
//!
//! A pass over many items leaves few of them above the goal, each at a different time. A *window* around such an item
//! is a range of sections: the items that live wholly inside are free again, the others that overlap it are obstacles.
//! That is a small problem with fixed buffers; skylines and then the exact search look for a placement below the goal.
//! If there is none the window is widened, a few times. The result replaces the old offsets of the free items and
//! changes nothing outside.
//!
//! ```text
//!   goal  - - - - - - - - -+####+- - - - - - -        # is too high: the window from | to | frees it and a to d;
//!         -------+  |  +---+----+--+ |  +-----        e, f and g stay.
//!            e   |  |  |  a   | b  | |  |  f
//!         -------+--+--+---+--+----+-+--+-----
//!                g  |   c  |    d    |
//!         ----------+------+---------+--------
//! ```
//!
//! Items that live too long for a window go to a *shelf* below the goal: a pass places them by themselves, upside down.
//! The items that were there are too high now, and get windows or go to the shelf as well. If that does not end, the
//! old placement is restored.
//!
//! **Heights** are tried from the goal upwards: after a failure, half-way to the best height known.

use std::ops::Range;

use types::Bytes;

use crate::exact::improve;
use crate::instance::{Instance, Priority, Work};
use crate::place::Packing;
use crate::problem::{Buffer, Lifetime, Problem};
use crate::segment_tree::RaiseMaxTree;
use crate::skyline::skyline;

/// The numbers of free items of the windows that are tried, each with the units of its search.
const WINDOWS: [(usize, u64); 4] = [(40, 200_000), (80, 400_000), (160, 1_000_000), (320, 2_000_000)];
/// A window with more free items is not tried.
const FREE_MAX: usize = 800;
/// The most items on the shelf.
const SHELF_MAX: usize = 256;
/// How often items may be added to the shelf.
const SHELF_ROUNDS: usize = 12;
/// Windows are for few places: they are skipped if more items than this, and than this part of all, are too
/// high.
const TOO_HIGH_MAX: usize = 50;
const TOO_HIGH_SHARE: usize = 1000;
/// Heights closer than one part in this many count as equal.
const STEP_SHARE: u64 = 4096;

/// A packing lower than `best`, if windows find one; stops at `goal`. Nothing is tried if some item has gaps.
pub(crate) fn lower_tops(instance: &Instance, best: &Packing, goal: u64, work: &mut Work) -> Option<Packing> {
    if instance.items.iter().any(|item| !instance.is_item_plain(item)) || best.height <= goal {
        return None;
    }
    let mut arrangement = Arrangement::new(instance, best.offsets.clone());
    let (mut vain, mut height) = (goal, best.height);
    let mut aim = goal;
    while !work.is_spent() {
        let is_done = arrangement.lower_to(aim, work);
        height = height.min(instance.height(&arrangement.offsets));
        if !is_done {
            vain = aim;
        }
        if height <= goal || height - vain <= height / STEP_SHARE {
            break;
        }
        aim = vain + (height - vain) / 2;
    }
    let found = Packing::new(instance, arrangement.offsets);
    (found.height < best.height).then_some(found)
}

struct Arrangement<'a> {
    instance: &'a Instance,
    offsets: Vec<u64>,
    /// The items on the shelf.
    shelf: Vec<u32>,
    /// By section, how deep the shelf is below the aim.
    depth: Option<RaiseMaxTree>,
}

/// A range of sections with its items.
struct ByteWindow {
    span: Range<u32>,
    free: Vec<u32>,
    obstacles: Vec<u32>,
}

impl<'a> Arrangement<'a> {
    fn new(instance: &'a Instance, offsets: Vec<u64>) -> Arrangement<'a> {
        Arrangement { instance, offsets, shelf: Vec::new(), depth: None }
    }

    /// Lowers items below a height; whether all are below it now.
    fn lower_to(&mut self, aim: u64, work: &mut Work) -> bool {
        let too_high = self.too_high(aim, work);
        let (long, short): (Vec<u32>, Vec<u32>) = too_high.into_iter().partition(|item| self.is_long(*item));
        let is_lower = self.lower_items(&short, aim, work);
        if long.is_empty() || !is_lower {
            return is_lower;
        }
        let before = self.offsets.clone();
        let is_done = self.lower_with_shelf(long, aim, work);
        if !is_done {
            self.offsets = before;
        }
        (self.shelf, self.depth) = (Vec::new(), None);
        is_done
    }

    fn lower_with_shelf(&mut self, long: Vec<u32>, aim: u64, work: &mut Work) -> bool {
        let mut long = long;
        for _ in 0..SHELF_ROUNDS {
            self.shelf.append(&mut long);
            if SHELF_MAX < self.shelf.len() || !self.hang_shelf(aim, work) {
                return false;
            }
            let too_high = self.too_high(aim, work);
            let (more, short): (Vec<u32>, Vec<u32>) = too_high.into_iter().partition(|item| self.is_long(*item));
            if more.is_empty() {
                return self.lower_items(&short, aim, work);
            }
            long = more;
        }
        false
    }

    /// Places the items of the shelf upside down, around fixed buffers.
    fn hang_shelf(&mut self, aim: u64, work: &mut Work) -> bool {
        let items = self.shelf.iter().map(|item| &self.instance.items[*item as usize]);
        // Upside down, an offset is a multiple of the alignment if the end was one.
        let is_even = |unit: u64| items.clone().all(|item| item.alignment == unit && item.size.is_multiple_of(unit));
        let unit = items.clone().next().map_or(1, |item| item.alignment);
        if !is_even(unit) {
            return false;
        }
        let ceiling = aim / unit * unit;
        let buffers = items.clone().map(|item| {
            let lifetime = Lifetime { first: item.hull.start, end: item.hull.end };
            Buffer { alignment: Bytes(unit), ..Buffer::new(lifetime, Bytes(item.size)) }
        });
        let below = self.instance.fixed.iter().filter(|slot| slot.start < ceiling);
        let fixed = below.map(|slot| {
            let top = slot.top.min(ceiling);
            Buffer {
                fixed: Some(Bytes(ceiling - top)),
                ..Buffer::new(Lifetime { first: slot.first, end: slot.end }, Bytes(top - slot.start))
            }
        });
        let hung = Instance::new(&Problem { buffers: buffers.chain(fixed).collect(), capacity: None });
        let order = hung.order(Priority::Width);
        let Some(offsets) = skyline(&hung, &order, None, ceiling, work) else { return false };
        let mut depth = RaiseMaxTree::new(self.instance.n_sections);
        for (item_ix, low) in self.shelf.iter().zip(offsets) {
            let item = &self.instance.items[*item_ix as usize];
            let high = low + item.size;
            self.offsets[*item_ix as usize] = ceiling - high;
            depth.raise(item.hull.start as usize, item.hull.end as usize, high + (aim - ceiling));
        }
        self.depth = Some(depth);
        true
    }

    /// The items above a height or on bytes of the shelf, by rising time.
    fn too_high(&self, aim: u64, work: &mut Work) -> Vec<u32> {
        work.spend(self.offsets.len() / 8);
        let mut found: Vec<u32> =
            (0..self.offsets.len() as u32).filter(|item| self.is_too_high(*item, aim, work)).collect();
        found.retain(|item| !self.shelf.contains(item));
        found.sort_by_key(|item| self.instance.items[*item as usize].hull.start);
        found
    }

    fn is_too_high(&self, item_ix: u32, aim: u64, work: &mut Work) -> bool {
        let item = &self.instance.items[item_ix as usize];
        let top = self.offsets[item_ix as usize] + item.size;
        match &self.depth {
            _ if aim < top => true,
            None => false,
            Some(depth) => {
                work.spend(8);
                aim - top < depth.max(item.hull.start as usize, item.hull.end as usize)
            }
        }
    }

    /// Whether no window is large enough for an item.
    fn is_long(&self, item: u32) -> bool {
        let hull = &self.instance.items[item as usize].hull;
        FREE_MAX / 2 < self.instance.index.count_inside(hull.start, hull.end, FREE_MAX)
    }

    fn lower_items(&mut self, too_high: &[u32], aim: u64, work: &mut Work) -> bool {
        if TOO_HIGH_MAX < too_high.len() && too_high.len() > self.offsets.len() / TOO_HIGH_SHARE {
            return false;
        }
        let mut is_done = true;
        for item in too_high {
            if !work.is_spent() && self.is_too_high(*item, aim, work) {
                is_done &= WINDOWS.iter().any(|(n_free, units)| self.lower_window(*item, aim, *n_free, *units, work));
            }
            if work.is_spent() || (!is_done && self.depth.is_some()) {
                return false;
            }
        }
        is_done
    }

    /// Searches for a placement of a window around an item.
    fn lower_window(&mut self, item: u32, aim: u64, n_free: usize, units: u64, work: &mut Work) -> bool {
        let Some(window) = self.window(item, n_free, work) else { return false };
        let instance = Instance::new(&self.problem(&window, aim));
        let mut found = None;
        for priority in [Priority::PeakWidth, Priority::Area, Priority::Size, Priority::First] {
            let order = instance.order(priority);
            found = found.or_else(|| skyline(&instance, &order, Some(instance.demand()), aim, work));
            found = found.or_else(|| skyline(&instance, &order, None, aim, work));
        }
        if found.is_none() {
            let mut part = work.part(units);
            let improvement = improve(&instance, aim + 1, 0, Some(aim), &mut part.work);
            work.spend_part(part);
            found = improvement.found.map(|(offsets, _)| offsets);
        }
        let Some(offsets) = found else { return false };
        window.free.iter().zip(offsets).for_each(|(item, offset)| self.offsets[*item as usize] = offset);
        true
    }

    /// A window around an item with at least `n_free` free items, if the problem has that many.
    fn window(&self, item: u32, n_free: usize, work: &mut Work) -> Option<ByteWindow> {
        let hull = self.instance.items[item as usize].hull.clone();
        let n_sections = self.instance.n_sections as u32;
        let mut margin = 4;
        loop {
            let span = hull.start.saturating_sub(margin)..hull.end.saturating_add(margin).min(n_sections);
            let mut window = ByteWindow { span: span.clone(), free: Vec::new(), obstacles: Vec::new() };
            let mut n_seen = 0;
            self.instance.index.each_meeting(span.start, span.end, |point| {
                n_seen += 1;
                let is_inside = span.start <= point.first && point.end <= span.end;
                let list = if is_inside { &mut window.free } else { &mut window.obstacles };
                list.push(point.item);
            });
            work.spend(64 + n_seen);
            if FREE_MAX < window.free.len() {
                return None;
            }
            if n_free <= window.free.len() || span == (0..n_sections) {
                for shelf in &self.shelf {
                    if let Some(at) = window.free.iter().position(|free| free == shelf) {
                        window.obstacles.push(window.free.swap_remove(at));
                    }
                }
                return Some(window);
            }
            margin = margin * 3 / 2;
        }
    }

    /// The free items of a window, and fixed buffers for its obstacles.
    fn problem(&self, window: &ByteWindow, aim: u64) -> Problem {
        let clip =
            |first: u32, end: u32| Lifetime { first: first.max(window.span.start), end: end.min(window.span.end) };
        let free = window.free.iter().map(|item| {
            let item = &self.instance.items[*item as usize];
            let lifetime = clip(item.hull.start, item.hull.end);
            Buffer { alignment: Bytes(item.alignment), ..Buffer::new(lifetime, Bytes(item.size)) }
        });
        let mut obstacles: Vec<(u32, u32, u64, u64)> = Vec::new();
        for item_ix in &window.obstacles {
            let item = &self.instance.items[*item_ix as usize];
            let offset = self.offsets[*item_ix as usize];
            // With a shelf, all items that are too high must move.
            let is_loose = self.depth.is_some()
                && !self.shelf.contains(item_ix)
                && self.is_too_high(*item_ix, aim, &mut Work::new(u64::MAX));
            if !is_loose {
                let life = clip(item.hull.start, item.hull.end);
                obstacles.push((life.first, life.end, offset, (offset + item.size).min(aim)));
            }
        }
        for slot in &self.instance.fixed {
            let life = clip(slot.first, slot.end);
            obstacles.push((life.first, life.end, slot.start, slot.top.min(aim)));
        }
        obstacles.retain(|(first, end, low, high)| first < end && low < high);
        obstacles.sort_unstable();
        // Adjacent obstacles with the same lifetime become one.
        obstacles.dedup_by(|upper, lower| {
            let is_one = (lower.0, lower.1, lower.3) == (upper.0, upper.1, upper.2);
            lower.3 = if is_one { upper.3 } else { lower.3 };
            is_one
        });
        let fixed = obstacles.into_iter().map(|(first, end, low, high)| Buffer {
            fixed: Some(Bytes(low)),
            ..Buffer::new(Lifetime { first, end }, Bytes(high - low))
        });
        Problem { buffers: free.chain(fixed).collect(), capacity: None }
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    /// Also fixed buffers below the goal, where the shelf is.
    #[test]
    fn lowered_items_overlap_nothing() {
        let mut random = Random::new(3);
        let mut lowered = 0;
        for _ in 0..12 {
            let short = (0..900u32).map(|step| (step, step + 1 + random.below(4) as u32, 1 + random.below(30)));
            let mut lives: Vec<(u32, u32, u64)> = short.collect();
            lives.extend(
                (0..30).map(|_| (random.below(300) as u32, 600 + random.below(300) as u32, 1 + random.below(9))),
            );
            let buffers = lives.into_iter().map(|(first, end, words)| Buffer {
                alignment: Bytes(64),
                ..Buffer::new(Lifetime { first, end }, Bytes(64 * words))
            });
            let mut problem = Problem { buffers: buffers.collect(), capacity: None };
            let pack = |problem: &Problem, priority| {
                let instance = Instance::new(problem);
                let order = instance.order(priority);
                let offsets =
                    skyline(&instance, &order, None, u64::MAX, &mut Work::new(u64::MAX)).expect("it has room");
                (Packing::new(&instance, offsets), instance)
            };
            let (first, instance) = pack(&problem, Priority::Width);
            let offsets = instance.offsets(&problem, &first.offsets);
            for (buffer, offset) in problem.buffers.iter_mut().zip(offsets) {
                if first.height / 2 < offset && random.below(2) == 0 {
                    buffer.fixed = Some(Bytes(offset));
                }
            }
            let (best, instance) = pack(&problem, Priority::First);
            let Some(found) = lower_tops(&instance, &best, first.height, &mut Work::new(5_000_000)) else { continue };
            lowered += 1;
            let offsets: Vec<Bytes> = instance.offsets(&problem, &found.offsets).into_iter().map(Bytes).collect();
            assert_eq!(crate::check(&problem, &offsets, Bytes(found.height)), Ok(()));
        }
        assert!(4 < lowered, "{lowered}");
    }
}
