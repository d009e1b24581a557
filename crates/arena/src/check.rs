//! [`check`]: verifies placements. It follows the definitions in `problem` literally, evaluates each buffer at every
//! step at which its occupied bytes may change, and shares no code with the planner.

use std::collections::BTreeMap;
use std::fmt;

use types::Bytes;

use crate::problem::{Buffer, BufferIx, Problem};

/// A rule that a placement breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The number of offsets is not the number of buffers; nothing else is checked.
    WrongCount {
        /// The number of buffers.
        n_buffers: usize,
        /// The number of offsets.
        n_offsets: usize,
    },
    /// Two buffers occupy the same byte at the same step.
    Overlap {
        /// The buffer with the lower position.
        a: BufferIx,
        /// The other buffer.
        b: BufferIx,
        /// The first such step.
        step: u32,
    },
    /// An offset is not a multiple of the alignment.
    Misaligned {
        /// The buffer.
        buffer: BufferIx,
        /// Its offset.
        offset: Bytes,
        /// Its alignment.
        alignment: Bytes,
    },
    /// A buffer, live or not, ends above the stated height.
    AboveHeight {
        /// The buffer.
        buffer: BufferIx,
        /// Its offset plus its size, at most `u64::MAX`.
        top: Bytes,
        /// The stated height.
        height: Bytes,
    },
    /// A buffer with a fixed offset has another offset.
    FixedMoved {
        /// The buffer.
        buffer: BufferIx,
        /// The fixed offset.
        fixed: Bytes,
        /// Its offset.
        offset: Bytes,
    },
    /// The stated height exceeds the capacity.
    AboveCapacity {
        /// The capacity.
        capacity: Bytes,
        /// The stated height.
        height: Bytes,
    },
}

/// Verifies that `offsets`, one for each buffer, place `problem` in an arena of `height` bytes; otherwise all violations.
///
/// O(n log n) without overlaps; each buffer that overlaps others may add O(n).
pub fn check(problem: &Problem, offsets: &[Bytes], height: Bytes) -> Result<(), Vec<Violation>> {
    let (n_buffers, n_offsets) = (problem.buffers.len(), offsets.len());
    if n_buffers != n_offsets {
        return Err(vec![Violation::WrongCount { n_buffers, n_offsets }]);
    }
    let mut violations = Vec::new();
    if let Some(capacity) = problem.capacity
        && capacity < height
    {
        violations.push(Violation::AboveCapacity { capacity, height });
    }
    for ((buffer, each), &offset) in problem.entries().zip(offsets) {
        if let Some(fixed) = each.fixed
            && fixed != offset
        {
            violations.push(Violation::FixedMoved { buffer, fixed, offset });
        }
        if each.alignment == Bytes::ZERO || offset.0 % each.alignment.0 != 0 {
            violations.push(Violation::Misaligned { buffer, offset, alignment: each.alignment });
        }
        let top = u128::from(offset.0) + u128::from(each.size.0);
        if u128::from(height.0) < top {
            let top = Bytes(u64::try_from(top).unwrap_or(u64::MAX));
            violations.push(Violation::AboveHeight { buffer, top, height });
        }
    }
    violations.extend(overlaps(problem, offsets));
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// The bytes `low..high` that a buffer occupies at the steps `first..end`.
struct Stay {
    buffer: BufferIx,
    first: u32,
    end: u32,
    low: u128,
    high: u128,
}

/// Every pair of buffers that share a byte at a step, with the first such step, by the later buffer, then the other.
///
/// Walks through time with the set of live buffers. Those without overlaps are kept in order of offset, so that a new
/// buffer can only overlap those that start inside it and the last one that starts before. A buffer that overlaps one of
/// them goes to a separate list, and later buffers are compared with all of that list.
fn overlaps(problem: &Problem, offsets: &[Bytes]) -> Vec<Violation> {
    let placed = problem.entries().zip(offsets);
    let stays: Vec<Stay> = placed.flat_map(|((ix, buffer), offset)| stays(ix, buffer, *offset)).collect();
    // At one step, ends go before starts.
    let starts = stays.iter().enumerate().map(|(at, stay)| (stay.first, true, at));
    let ends = stays.iter().enumerate().map(|(at, stay)| (stay.end, false, at));
    let mut edges: Vec<(u32, bool, usize)> = starts.chain(ends).collect();
    edges.sort_unstable();

    let mut found: Vec<(BufferIx, BufferIx, u32)> = Vec::new();
    let mut in_order: BTreeMap<u128, usize> = BTreeMap::new();
    let mut apart: Vec<usize> = Vec::new();
    for (step, is_start, at) in edges {
        let stay = &stays[at];
        if !is_start {
            if in_order.get(&stay.low) == Some(&at) {
                in_order.remove(&stay.low);
            } else {
                apart.retain(|other| *other != at);
            }
            continue;
        }
        let before = in_order.range(..stay.low).next_back().filter(|(_, other)| stay.low < stays[**other].high);
        let inside = in_order.range(stay.low..stay.high);
        let rivals: Vec<usize> = before.into_iter().chain(inside).map(|(_, other)| *other).collect();
        let meets = |other: &&usize| stay.low.max(stays[**other].low) < stay.high.min(stays[**other].high);
        for other in rivals.iter().chain(apart.iter().filter(meets)) {
            let other = stays[*other].buffer;
            found.push((stay.buffer.max(other), stay.buffer.min(other), step));
        }
        if rivals.is_empty() {
            in_order.insert(stay.low, at);
        } else {
            apart.push(at);
        }
    }
    found.sort_unstable();
    found.dedup_by_key(|(b, a, _)| (*b, *a));
    found.into_iter().map(|(b, a, step)| Violation::Overlap { a, b, step }).collect()
}

/// The bytes that a buffer occupies, split at the steps where they change.
fn stays(ix: BufferIx, buffer: &Buffer, offset: Bytes) -> impl Iterator<Item = Stay> {
    let lifetime = buffer.lifetime;
    let mut steps = vec![lifetime.first, lifetime.end];
    steps.extend(buffer.gaps.iter().flat_map(|gap| [gap.lifetime.first, gap.lifetime.end]));
    steps.sort_unstable();
    let stays: Vec<Stay> = steps
        .windows(2)
        .filter_map(|step| {
            let window = buffer.occupied(step[0])?;
            let [low, high] = [window.low, window.high].map(|at| u128::from(offset.0) + u128::from(at.0));
            (step[0] < step[1] && low < high).then_some(Stay { buffer: ix, first: step[0], end: step[1], low, high })
        })
        .collect();
    stays.into_iter()
}

impl Violation {
    /// The message, with buffer names from `name`.
    pub fn text(&self, name: impl Fn(BufferIx) -> String) -> String {
        match *self {
            Violation::WrongCount { n_buffers, n_offsets } => {
                format!("a placement must have one offset for each of the `{n_buffers}` buffers, got `{n_offsets}`")
            }
            Violation::Overlap { a, b, step } => {
                format!("live buffers must not overlap, got `{}` and `{}` at step `{step}`", name(a), name(b))
            }
            Violation::Misaligned { buffer, offset, alignment } => {
                format!(
                    "offset of buffer `{}` must be a multiple of `{}`, got `{}`",
                    name(buffer),
                    alignment.0,
                    offset.0
                )
            }
            Violation::AboveHeight { buffer, top, height } => {
                format!("buffer `{}` must end within the height of `{}`, got `{}`", name(buffer), height.0, top.0)
            }
            Violation::FixedMoved { buffer, fixed, offset } => {
                format!("offset of buffer `{}` must be the fixed `{}`, got `{}`", name(buffer), fixed.0, offset.0)
            }
            Violation::AboveCapacity { capacity, height } => {
                format!("height must be within the capacity of `{}`, got `{}`", capacity.0, height.0)
            }
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|buffer| buffer.to_string()))
    }
}
