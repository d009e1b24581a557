//! [`keep_and_stream`]: which items of a cyclic sequence of steps stay in a bounded memory, and when and where the others
//! are read into it.
//!
//! Every run executes the same steps, so the order of accesses is known and repeats. Items are *kept* (in memory at all
//! steps) or *streamed* (read ahead of the step that uses them, in the order of first uses, and dropped after it).
//!
//! ```text
//!  offset
//!         | window |  b b b b   e e e e e
//!         |        |      c c c c c   f f f f
//!         | kept   |  a a a a a a a a a a a a
//!                     0   1   2   3   4   5     steps; b is used at 1, c at 2, e at 4, f at 5
//! ```
//!
//! - *Fewest bytes.* Whatever the policy, at most `capacity` bytes are in memory at a step, and every other item must be
//!   read before the same step of the next run: [`Streaming::least_read`] is a lower bound of all policies. Kept items
//!   meet it up to the window, so the window is as small as it can be: the largest sum of two consecutive steps with
//!   streamed items, so that the items of one are read while the other computes ([`Overlap::Full`]). If the memory is
//!   too small for that, it is the largest step ([`Overlap::Partial`]).
//! - *Large items stay*, since they would determine the window; a limit on the size of streamed items is tried for each
//!   size. Items that several steps use are streamed last, because each use may cost a read.
//! - *Evenly.* Of the items below the limit, those that are streamed are spread over the sequence, so that the reads have
//!   a constant share of the computation to overlap with.
//! - *As early as possible.* A read starts as soon as the window has room for it.

use std::collections::BTreeSet;

use types::Bytes;

use crate::{Aim, Buffer, Lifetime, Limits, Problem, place};

/// Items that steps use, and the memory for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidencyProblem {
    /// By item: its bytes.
    pub sizes: Vec<Bytes>,
    /// By step: the items that must be in memory, each once.
    pub uses: Vec<Vec<usize>>,
    /// The most bytes in memory at a step.
    pub capacity: Bytes,
    /// Offsets are multiples of this, at least 1. Sizes must be multiples of it.
    pub alignment: Bytes,
}

/// An item in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemStay {
    /// The item.
    pub item: usize,
    /// The first step at which it has its bytes. Its read must start after the steps before, and end before its first use.
    pub first_step: u32,
    /// The last step that uses it.
    pub last_step: u32,
    /// Its offset.
    pub offset: Bytes,
}

/// Whether reads overlap with computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The items of a step can be read while the previous step with streamed items computes.
    Full,
    /// Some reads must wait until the step before has ended.
    Partial,
}

/// The items that stay in memory and the reads of each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// Items in memory at all steps.
    pub kept: Vec<ItemStay>,
    /// The reads of a run, in order: neither first steps nor first uses decrease.
    pub reads: Vec<ItemStay>,
    /// The bytes that hold all of them.
    pub size: Bytes,
    /// No policy reads fewer bytes per run with this capacity.
    pub least_read: Bytes,
    /// Whether reads overlap with computation.
    pub overlap: Overlap,
}

/// The items of one step do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the capacity must be at least `{}` bytes, which step `{step}` uses; got `{}` bytes", need.0, capacity.0)]
pub struct StepTooLarge {
    /// The step that uses the most bytes.
    pub step: usize,
    /// These bytes.
    pub need: Bytes,
    /// The capacity.
    pub capacity: Bytes,
}

/// Smaller items are streamed only if the others do not suffice: a read of its own costs more than its bytes.
const SMALL: Bytes = Bytes(64 << 10);

/// The placer's budget for each attempt.
const LIMITS: Limits = Limits { work: 1_000_000, aim: Aim::Capacity };

/// Attempts to place the window, each with reads that start later.
const ATTEMPTS: u64 = 8;

/// Decides which items stay, and when the others are read.
///
/// # Errors
/// A step uses more bytes than the capacity.
pub fn keep_and_stream(problem: &ResidencyProblem) -> Result<Streaming, StepTooLarge> {
    let capacity = problem.capacity;
    let need = |step: usize| problem.uses[step].iter().map(|&item| problem.sizes[item]).sum::<Bytes>();
    let largest = (0..problem.uses.len()).max_by_key(|&step| (need(step), usize::MAX - step));
    if let Some(step) = largest.filter(|&step| capacity < need(step)) {
        return Err(StepTooLarge { step, need: need(step), capacity });
    }
    let used = Used::new(problem);
    let least_read = Bytes(used.total.0.saturating_sub(capacity.0));
    let choose = |overlap| used.choose(overlap).map(|streamed| (streamed, overlap));
    let (mut streamed, overlap) =
        choose(Overlap::Full).or_else(|| choose(Overlap::Partial)).expect("each step fits alone, if nothing is kept");
    if least_read == Bytes::ZERO {
        streamed.fill(false);
    }
    let kept_size = used.kept_size(&streamed);
    let window = Bytes(capacity.0 - kept_size.0);
    let early = used.place_early(&used.reads(&streamed), used.window(&streamed, overlap), window);
    let (overlap, (reads, height)) = match early {
        Some(placed) => (overlap, placed),
        None => (Overlap::Partial, used.place_late(&streamed)),
    };
    let mut kept = Vec::new();
    let last_step = (problem.uses.len() as u32).saturating_sub(1);
    let mut end = Bytes::ZERO;
    for item in (0..problem.sizes.len()).filter(|&item| !streamed[item] && 0 < used.counts[item]) {
        kept.push(ItemStay { item, first_step: 0, last_step, offset: end });
        end += problem.sizes[item];
    }
    let in_window = |read: &Read| ItemStay {
        item: read.item,
        first_step: read.first_step,
        last_step: read.last_step,
        offset: kept_size + read.offset,
    };
    let reads = reads.iter().map(in_window).collect();
    Ok(Streaming { kept, reads, size: kept_size + height, least_read, overlap })
}

/// A read whose place is in the window.
#[derive(Clone, Copy)]
struct Read {
    item: usize,
    first_step: u32,
    first_use: u32,
    last_step: u32,
    offset: Bytes,
}

/// A problem with figures of its items.
struct Used<'a> {
    problem: &'a ResidencyProblem,
    /// By item: the steps that use it.
    counts: Vec<usize>,
    /// The items in use, by first use.
    order: Vec<usize>,
    /// The bytes of all items in use.
    total: Bytes,
}

impl Used<'_> {
    fn new(problem: &ResidencyProblem) -> Used<'_> {
        let (mut counts, mut order) = (vec![0; problem.sizes.len()], Vec::new());
        for &item in problem.uses.iter().flatten() {
            if counts[item] == 0 {
                order.push(item);
            }
            counts[item] += 1;
        }
        let total = order.iter().map(|&item| problem.sizes[item]).sum();
        Used { problem, counts, order, total }
    }

    fn size(&self, item: usize) -> u64 {
        self.problem.sizes[item].0
    }

    /// The streamed items with the fewest bytes per run, if the memory is large enough for such an overlap.
    fn choose(&self, overlap: Overlap) -> Option<Vec<bool>> {
        let limits: BTreeSet<u64> = self.order.iter().map(|&item| self.size(item)).collect();
        let mut candidates: Vec<Vec<bool>> = Vec::new();
        for least in [SMALL.0, 0] {
            let within = limits.range(least..);
            candidates.extend(within.filter_map(|&limit| self.choose_within(least..=limit, overlap)));
            if !candidates.is_empty() {
                break;
            }
        }
        candidates.into_iter().min_by_key(|streamed| self.read_size(streamed))
    }

    /// Chooses streamed items of the sizes `within`; every other item stays.
    fn choose_within(&self, within: std::ops::RangeInclusive<u64>, overlap: Overlap) -> Option<Vec<bool>> {
        let mut able: Vec<usize> =
            self.order.iter().copied().filter(|&item| within.contains(&self.size(item))).collect();
        // A stable sort: the order of first uses within each count.
        able.sort_by_key(|&item| self.counts[item]);
        let all: u64 = able.iter().map(|&item| self.size(item)).sum();
        let mut least = self.total.0.saturating_sub(self.problem.capacity.0);
        loop {
            let streamed = self.spread(&able, least);
            let need = self.kept_size(&streamed) + self.window(&streamed, overlap);
            let missing = need.0.saturating_sub(self.problem.capacity.0);
            if missing == 0 {
                return Some(self.kept_where_possible(streamed, overlap));
            }
            let done: u64 = able.iter().filter(|&&item| streamed[item]).map(|&item| self.size(item)).sum();
            if done == all {
                return None;
            }
            least = done + missing.min(all - done);
        }
    }

    /// Streams at least `least` bytes of `able`: items with few uses first, and of those with equally many uses an even
    /// share along the sequence.
    fn spread(&self, able: &[usize], least: u64) -> Vec<bool> {
        let mut streamed = vec![false; self.counts.len()];
        let mut left = least;
        for class in able.chunk_by(|&a, &b| self.counts[a] == self.counts[b]) {
            let all: u64 = class.iter().map(|&item| self.size(item)).sum();
            let share = left.min(all);
            let (mut seen, mut taken) = (0u64, 0u64);
            for &item in class {
                seen += self.size(item);
                // Streamed bytes are at least their share of the bytes so far; at the end, at least the share of all.
                if u128::from(taken) * u128::from(all) < u128::from(seen) * u128::from(share) {
                    streamed[item] = true;
                    taken += self.size(item);
                }
            }
            left = left.saturating_sub(taken);
        }
        streamed
    }

    /// Keeps streamed items, the largest first, as long as they fit.
    fn kept_where_possible(&self, mut streamed: Vec<bool>, overlap: Overlap) -> Vec<bool> {
        let mut by_size: Vec<usize> = self.order.iter().copied().filter(|&item| streamed[item]).collect();
        by_size.sort_by_key(|&item| std::cmp::Reverse(self.size(item) * self.counts[item] as u64));
        let mut kept = self.kept_size(&streamed);
        for item in by_size {
            // Without the item the window may be smaller, or larger, as other steps become neighbors.
            if self.problem.capacity < kept + self.problem.sizes[item] {
                continue;
            }
            streamed[item] = false;
            match kept + self.problem.sizes[item] + self.window(&streamed, overlap) <= self.problem.capacity {
                true => kept += self.problem.sizes[item],
                false => streamed[item] = true,
            }
        }
        streamed
    }

    fn kept_size(&self, streamed: &[bool]) -> Bytes {
        self.order.iter().filter(|&&item| !streamed[item]).map(|&item| self.problem.sizes[item]).sum()
    }

    fn read_size(&self, streamed: &[bool]) -> u64 {
        self.reads(streamed).iter().map(|read| self.size(read.item)).sum()
    }

    /// The steps that use streamed items, with these.
    fn streaming_steps<'b>(&'b self, streamed: &'b [bool]) -> impl Iterator<Item = (u32, Vec<usize>)> + 'b {
        let own = |items: &Vec<usize>| items.iter().copied().filter(|&item| streamed[item]).collect::<Vec<_>>();
        let steps = self.problem.uses.iter().enumerate().map(move |(step, items)| (step as u32, own(items)));
        steps.filter(|(_, items)| !items.is_empty())
    }

    /// The fewest bytes for streamed items.
    fn window(&self, streamed: &[bool], overlap: Overlap) -> Bytes {
        let sum = |items: &[usize]| items.iter().map(|&item| self.size(item)).sum::<u64>();
        let (mut most, mut before): (u64, Vec<usize>) = (0, Vec::new());
        for (_, items) in self.streaming_steps(streamed) {
            let others = before.iter().filter(|item| !items.contains(item)).map(|&item| self.size(item)).sum::<u64>();
            most = most.max(sum(&items) + if overlap == Overlap::Full { others } else { 0 });
            before = items;
        }
        Bytes(most)
    }

    /// The reads of a run. An item stays from one step with streamed items to the next, and is read again for a later one.
    fn reads(&self, streamed: &[bool]) -> Vec<Read> {
        let mut reads: Vec<Read> = Vec::new();
        let mut before: Vec<usize> = Vec::new();
        for (step, items) in self.streaming_steps(streamed) {
            let mut now = Vec::with_capacity(items.len());
            for item in items {
                match before.iter().find(|&&read| reads[read].item == item) {
                    Some(&read) => {
                        reads[read].last_step = step;
                        now.push(read);
                    }
                    None => {
                        now.push(reads.len());
                        let (first_step, first_use, last_step) = (step, step, step);
                        reads.push(Read { item, first_step, first_use, last_step, offset: Bytes::ZERO });
                    }
                }
            }
            before = now;
        }
        reads
    }

    /// Starts reads as early as the window has room, and places them; also the height. `None` if the placer finds no place
    /// even for reads that start as late as a window of `least` bytes requires.
    fn place_early(&self, reads: &[Read], least: Bytes, window: Bytes) -> Option<(Vec<Read>, Bytes)> {
        let spare = window.0 - least.0;
        (0..=ATTEMPTS).find_map(|attempt| {
            let mut early = self.start_early(reads, Bytes(window.0 - spare * attempt / ATTEMPTS));
            let buffer = |read: &Read| Buffer {
                alignment: Bytes(self.problem.alignment.0.max(1)),
                ..Buffer::new(
                    Lifetime { first: read.first_step, end: read.last_step + 1 },
                    self.problem.sizes[read.item],
                )
            };
            let problem = Problem { buffers: early.iter().map(buffer).collect(), capacity: Some(window) };
            let placement = place(&problem, LIMITS).ok().filter(|placement| placement.height() <= window)?;
            early.iter_mut().zip(&placement.offsets).for_each(|(read, &offset)| read.offset = offset);
            Some((early, placement.height()))
        })
    }

    /// Starts each read at the first step from which the window has room for it, in order. An item stays for its next use if
    /// the window has room for it at all steps between.
    fn start_early(&self, reads: &[Read], room: Bytes) -> Vec<Read> {
        let mut live = vec![0u64; self.problem.uses.len()];
        let mut started: Vec<Read> = Vec::with_capacity(reads.len());
        let mut last_of: Vec<Option<usize>> = vec![None; self.counts.len()];
        let mut earliest = 0;
        for read in reads {
            let size = self.size(read.item);
            let fits = |step: &u32| live[*step as usize] + size <= room.0;
            let before = last_of[read.item];
            let free = before.map_or(0, |before| started[before].last_step + 1);
            let first_step = match before {
                Some(before) if (free..read.first_use).all(|step| fits(&step)) => {
                    started[before].last_step = read.last_step;
                    free
                }
                _ => {
                    let steps = (earliest.max(free)..read.first_use).rev().take_while(fits).count() as u32;
                    earliest = read.first_use - steps;
                    last_of[read.item] = Some(started.len());
                    started.push(Read { first_step: earliest, ..*read });
                    earliest
                }
            };
            live[first_step as usize..=read.last_step as usize].iter_mut().for_each(|live| *live += size);
        }
        started
    }

    /// Reads every item just before each step that uses it, one after the other from the start of the window.
    fn place_late(&self, streamed: &[bool]) -> (Vec<Read>, Bytes) {
        let mut reads = Vec::new();
        for (step, items) in self.streaming_steps(streamed) {
            let mut offset = Bytes::ZERO;
            for item in items {
                reads.push(Read { item, first_step: step, first_use: step, last_step: step, offset });
                offset += self.problem.sizes[item];
            }
        }
        (reads, self.window(streamed, Overlap::Partial))
    }
}
