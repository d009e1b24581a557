//! [`check`]: the judge of placements. It takes the definitions in `problem` word for word, asks each buffer what it
//! occupies at each step at which that may change, and shares no code with what finds placements.

use std::collections::BTreeMap;
use std::fmt;

use types::Bytes;

use crate::problem::{Buffer, BufferIx, Problem};

/// A rule that a placement breaks, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// There is not one offset for each buffer; nothing else is looked at.
    WrongCount {
        /// How many buffers there are.
        n_buffers: usize,
        /// How many offsets.
        n_offsets: usize,
    },
    /// Two buffers occupy the same byte at the same step.
    Overlap {
        /// The one with the lower position.
        a: BufferIx,
        /// The other.
        b: BufferIx,
        /// The first step at which they do.
        step: u32,
    },
    /// An offset is not a multiple of the alignment.
    Misaligned {
        /// Whose.
        buffer: BufferIx,
        /// Where it lies.
        offset: Bytes,
        /// What that should be a multiple of.
        alignment: Bytes,
    },
    /// A buffer, live or not, ends above the stated height.
    AboveHeight {
        /// Which.
        buffer: BufferIx,
        /// Its offset plus its size; `u64::MAX` if the sum passes that.
        top: Bytes,
        /// The stated height.
        height: Bytes,
    },
    /// A buffer with a fixed offset lies elsewhere.
    FixedMoved {
        /// Which.
        buffer: BufferIx,
        /// Where it should lie.
        fixed: Bytes,
        /// Where it lies.
        offset: Bytes,
    },
    /// The stated height is more than the problem allows.
    AboveCapacity {
        /// What the problem allows.
        capacity: Bytes,
        /// The stated height.
        height: Bytes,
    },
}

/// Whether `offsets`, one for each buffer, place `problem` in an arena of `height` bytes; if not, every reason.
///
/// O(n log n) without overlaps; every buffer that overlaps others may cost a look at all that live later.
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
/// Goes through time and keeps what is live. The part of it that is free of overlaps lies in order of offset, so that a
/// newcomer meets those that start inside it and perhaps the last that starts before; a newcomer that meets one of them
/// is kept apart, and everyone who comes later is held against those one by one.
fn overlaps(problem: &Problem, offsets: &[Bytes]) -> Vec<Violation> {
    let placed = problem.entries().zip(offsets);
    let stays: Vec<Stay> = placed.flat_map(|((ix, buffer), offset)| stays(ix, buffer, *offset)).collect();
    // At one step, what ends goes before what starts.
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

/// What a buffer occupies, cut where that changes.
fn stays(ix: BufferIx, buffer: &Buffer, offset: Bytes) -> impl Iterator<Item = Stay> {
    let lifetime = buffer.lifetime;
    let mut steps = vec![lifetime.first, lifetime.end];
    steps.extend(buffer.gaps.iter().flat_map(|gap| [gap.lifetime.first, gap.lifetime.end]));
    steps.retain(|step| lifetime.first <= *step && *step <= lifetime.end);
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
    /// What is wrong, each buffer called what its owner calls it.
    pub fn text(&self, name: impl Fn(BufferIx) -> String) -> String {
        match *self {
            Violation::WrongCount { n_buffers, n_offsets } => {
                format!("`{n_offsets}` offsets for `{n_buffers}` buffers")
            }
            Violation::Overlap { a, b, step } => {
                format!("buffers `{}` and `{}` share a byte at step `{step}`", name(a), name(b))
            }
            Violation::Misaligned { buffer, offset, alignment } => {
                format!("buffer `{}` at `{}` is not aligned to `{}`", name(buffer), offset.0, alignment.0)
            }
            Violation::AboveHeight { buffer, top, height } => {
                format!("buffer `{}` ends at `{}`, above the height `{}`", name(buffer), top.0, height.0)
            }
            Violation::FixedMoved { buffer, fixed, offset } => {
                format!("buffer `{}` is fixed at `{}` and lies at `{}`", name(buffer), fixed.0, offset.0)
            }
            Violation::AboveCapacity { capacity, height } => {
                format!("the height `{}` is above the capacity `{}`", height.0, capacity.0)
            }
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|buffer| buffer.to_string()))
    }
}
