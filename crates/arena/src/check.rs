//! [`check`]: the judge of placements. Slow and plain on purpose: it takes the definitions in `problem` word for word,
//! looks at every pair of buffers, and shares no code with what finds placements.

use std::fmt;

use types::{Bytes, EntityId};

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
/// O(n²) pairs of buffers, each looked at more closely only if lifetimes and byte ranges both meet.
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
    for b in 0..n_buffers {
        for a in 0..b {
            let pair = [(&problem.buffers[a], offsets[a]), (&problem.buffers[b], offsets[b])];
            if let Some(step) = first_overlap(pair) {
                let (a, b) = (BufferIx::from_index(a), BufferIx::from_index(b));
                violations.push(Violation::Overlap { a, b, step });
            }
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// The first step at which two placed buffers occupy the same byte.
fn first_overlap([(a, a_offset), (b, b_offset)]: [(&Buffer, Bytes); 2]) -> Option<u32> {
    if !a.lifetime.overlaps(b.lifetime) || !meet((a_offset, Bytes::ZERO, a.size), (b_offset, Bytes::ZERO, b.size)) {
        return None;
    }
    // What is occupied changes at these steps only.
    let mut steps = vec![a.lifetime.first, b.lifetime.first];
    for gap in a.gaps.iter().chain(&b.gaps) {
        steps.extend([gap.lifetime.first, gap.lifetime.end]);
    }
    steps.sort_unstable();
    steps.into_iter().find(|&step| match (a.occupied(step), b.occupied(step)) {
        (Some(x), Some(y)) => meet((a_offset, x.low, x.high), (b_offset, y.low, y.high)),
        _ => false,
    })
}

/// Whether two byte ranges, each `offset + low .. offset + high`, share a byte.
fn meet(a: (Bytes, Bytes, Bytes), b: (Bytes, Bytes, Bytes)) -> bool {
    let ends = |(offset, low, high): (Bytes, Bytes, Bytes)| {
        let offset = u128::from(offset.0);
        (offset + u128::from(low.0), offset + u128::from(high.0))
    };
    let ((a_low, a_high), (b_low, b_high)) = (ends(a), ends(b));
    a_low.max(b_low) < a_high.min(b_high)
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::WrongCount { n_buffers, n_offsets } => {
                write!(f, "`{n_offsets}` offsets for `{n_buffers}` buffers")
            }
            Violation::Overlap { a, b, step } => write!(f, "buffers `{a}` and `{b}` share a byte at step `{step}`"),
            Violation::Misaligned { buffer, offset, alignment } => {
                write!(f, "buffer `{buffer}` at `{}` is not aligned to `{}`", offset.0, alignment.0)
            }
            Violation::AboveHeight { buffer, top, height } => {
                write!(f, "buffer `{buffer}` ends at `{}`, above the height `{}`", top.0, height.0)
            }
            Violation::FixedMoved { buffer, fixed, offset } => {
                write!(f, "buffer `{buffer}` is fixed at `{}` and lies at `{}`", fixed.0, offset.0)
            }
            Violation::AboveCapacity { capacity, height } => {
                write!(f, "the height `{}` is above the capacity `{}`", height.0, capacity.0)
            }
        }
    }
}
