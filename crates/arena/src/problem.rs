//! [`Problem`]: the buffers to place, and [`ProblemError`]: the reasons for which a problem is refused.
//!
//! Time is counted in steps and all intervals of time are half-open. A buffer occupies, at each step of its lifetime,
//! the bytes `[offset, offset + size)`; a gap removes some steps, or leaves only a window of those bytes. No two buffers
//! occupy the same byte at the same step. Every buffer is inside the arena as a whole, with or without gaps.
//!
//! ```text
//!              size +---------+    +------+         Buffer { lifetime: 0..9, size: 4, gaps: [
//!                   |         |    |      |             Gap { lifetime: 3..5, window: None },
//!                   |         |    |      +---+         Gap { lifetime: 8..9, window: Some(0..2) },
//!                   |         |    |          |     ] }
//!            offset +---------+    +----------+
//!              step 0         3    5      8   9
//! ```

use std::collections::BTreeMap;
use std::fmt;

use types::{Bytes, EntityId};

types::entity!(
    /// The position of a buffer in [`Problem::buffers`], and of its offset in a placement.
    pub BufferIx, "b"
);

/// The steps `first..end` at which a buffer holds its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// The first step at which the buffer is live.
    pub first: u32,
    /// The first step at which it is dead again; equal to `first` if it never lives.
    pub end: u32,
}

impl Lifetime {
    /// Whether it has no steps.
    pub fn is_empty(self) -> bool {
        self.end <= self.first
    }

    /// Whether it contains `step`.
    pub fn contains(self, step: u32) -> bool {
        self.first <= step && step < self.end
    }

    /// Whether the two share a step.
    pub fn overlaps(self, other: Lifetime) -> bool {
        self.first.max(other.first) < self.end.min(other.end)
    }
}

/// The bytes `low..high` of a buffer, counted from its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteWindow {
    /// The first byte.
    pub low: Bytes,
    /// The byte after the last.
    pub high: Bytes,
}

/// Steps at which a buffer is absent, or occupies only a window of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The steps, within the buffer's lifetime.
    pub lifetime: Lifetime,
    /// The bytes occupied at these steps; `None` if absent.
    pub window: Option<ByteWindow>,
}

/// Bytes that live from one step to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The steps at which it is live.
    pub lifetime: Lifetime,
    /// Its bytes; may be zero.
    pub size: Bytes,
    /// The offset must be a multiple of this; >= 1, not necessarily a power of two.
    pub alignment: Bytes,
    /// The offset it must have, if any.
    pub fixed: Option<Bytes>,
    /// A preferred offset, for example from an earlier placement; not binding: see [`place`](crate::place()).
    pub hint: Option<Bytes>,
    /// The times at which it is absent or smaller; disjoint, in any order.
    pub gaps: Vec<Gap>,
}

/// The buffers to place, and the capacity of the arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// The buffers, indexed by [`BufferIx`].
    pub buffers: Vec<Buffer>,
    /// The largest height allowed, if any.
    pub capacity: Option<Bytes>,
}

/// The reason for which a problem is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemError {
    /// An alignment of zero.
    ZeroAlignment {
        /// The buffer.
        buffer: BufferIx,
    },
    /// A lifetime that ends before it begins.
    EndBeforeFirst {
        /// The buffer.
        buffer: BufferIx,
        /// Its first step.
        first: u32,
        /// Its end.
        end: u32,
    },
    /// A gap outside the lifetime, with an end before its first step, that overlaps another gap, or with a window
    /// outside the buffer.
    BadGap {
        /// The buffer.
        buffer: BufferIx,
        /// The position in the buffer's gaps.
        gap: usize,
    },
    /// A fixed offset that is not a multiple of the buffer's alignment.
    FixedMisaligned {
        /// The buffer.
        buffer: BufferIx,
        /// The fixed offset.
        offset: Bytes,
        /// Its alignment.
        alignment: Bytes,
    },
    /// A fixed buffer that ends above 2^64.
    FixedTooHigh {
        /// The buffer.
        buffer: BufferIx,
        /// The fixed offset.
        offset: Bytes,
        /// Its size.
        size: Bytes,
    },
    /// Two fixed buffers that occupy the same byte at the same step.
    FixedCollision {
        /// The buffer with the lower position.
        a: BufferIx,
        /// The other buffer.
        b: BufferIx,
        /// A step at which they share a byte.
        step: u32,
    },
}

impl ProblemError {
    /// The message, with buffer names from `name`.
    pub fn text(&self, name: impl Fn(BufferIx) -> String) -> String {
        match *self {
            ProblemError::ZeroAlignment { buffer } => {
                format!("alignment of buffer `{}` must be >= 1, got `0`", name(buffer))
            }
            ProblemError::EndBeforeFirst { buffer, first, end } => {
                format!("end of buffer `{}` must be >= its first step `{first}`, got `{end}`", name(buffer))
            }
            ProblemError::BadGap { buffer, gap } => format!(
                "gap `{gap}` of buffer `{}` must be within the buffer's lifetime and size and overlap no other gap",
                name(buffer)
            ),
            ProblemError::FixedMisaligned { buffer, offset, alignment } => format!(
                "fixed offset of buffer `{}` must be a multiple of its alignment `{}`, got `{}`",
                name(buffer),
                alignment.0,
                offset.0
            ),
            ProblemError::FixedTooHigh { buffer, offset, size } => {
                format!(
                    "buffer `{}` of `{}` bytes must end below 2^64, got the fixed offset `{}`",
                    name(buffer),
                    size.0,
                    offset.0
                )
            }
            ProblemError::FixedCollision { a, b, step } => {
                format!("fixed buffers must not overlap, got `{}` and `{}` at step `{step}`", name(a), name(b))
            }
        }
    }
}

impl fmt::Display for ProblemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|buffer| buffer.to_string()))
    }
}

impl std::error::Error for ProblemError {}

impl Buffer {
    /// A buffer with alignment 1, a free offset and no gaps.
    pub fn new(lifetime: Lifetime, size: Bytes) -> Buffer {
        Buffer { lifetime, size, alignment: Bytes(1), fixed: None, hint: None, gaps: Vec::new() }
    }

    /// The bytes occupied at `step`, counted from the offset: the definition of a gap.
    ///
    /// `None` if the buffer is dead or absent. An empty window occupies nothing.
    pub fn occupied(&self, step: u32) -> Option<ByteWindow> {
        if !self.lifetime.contains(step) {
            return None;
        }
        match self.gaps.iter().find(|gap| gap.lifetime.contains(step)) {
            Some(gap) => gap.window,
            None => Some(ByteWindow { low: Bytes::ZERO, high: self.size }),
        }
    }

    /// The runs of steps with the same occupied bytes, by time, without runs that occupy nothing.
    pub fn pieces(&self) -> Vec<Piece> {
        let whole = ByteWindow { low: Bytes::ZERO, high: self.size };
        let mut gaps = self.gaps.clone();
        gaps.retain(|gap| !gap.lifetime.is_empty());
        gaps.sort_by_key(|gap| gap.lifetime.first);
        let mut pieces = Vec::with_capacity(2 * gaps.len() + 1);
        let mut first = self.lifetime.first;
        for gap in gaps {
            pieces.push(Piece { lifetime: Lifetime { first, end: gap.lifetime.first }, window: whole });
            pieces.extend(gap.window.map(|window| Piece { lifetime: gap.lifetime, window }));
            first = gap.lifetime.end;
        }
        pieces.push(Piece { lifetime: Lifetime { first, end: self.lifetime.end }, window: whole });
        pieces.retain(|piece| !piece.lifetime.is_empty() && piece.window.low < piece.window.high);
        pieces
    }
}

/// A run of steps with the same occupied bytes. Neither the run nor the window is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The steps.
    pub lifetime: Lifetime,
    /// The bytes, counted from the offset of the buffer.
    pub window: ByteWindow,
}

impl Problem {
    /// The buffers with their positions.
    pub fn entries(&self) -> impl Iterator<Item = (BufferIx, &Buffer)> {
        self.buffers.iter().enumerate().map(|(index, buffer)| (BufferIx::from_index(index), buffer))
    }

    /// Refuses problems that no placement satisfies: see [`ProblemError`]. [`place`](crate::place()) calls this first.
    pub fn verify(&self) -> Result<(), ProblemError> {
        for (ix, buffer) in self.entries() {
            verify_buffer(ix, buffer)?;
        }
        verify_fixed(self)
    }
}

fn verify_buffer(ix: BufferIx, buffer: &Buffer) -> Result<(), ProblemError> {
    let Lifetime { first, end } = buffer.lifetime;
    if buffer.alignment == Bytes::ZERO {
        return Err(ProblemError::ZeroAlignment { buffer: ix });
    }
    if end < first {
        return Err(ProblemError::EndBeforeFirst { buffer: ix, first, end });
    }
    for (gap_ix, gap) in buffer.gaps.iter().enumerate() {
        let in_time = first <= gap.lifetime.first && gap.lifetime.first <= gap.lifetime.end && gap.lifetime.end <= end;
        let in_bytes = gap.window.is_none_or(|window| window.low <= window.high && window.high <= buffer.size);
        let alone = buffer.gaps[..gap_ix].iter().all(|other| !other.lifetime.overlaps(gap.lifetime));
        if !(in_time && in_bytes && alone) {
            return Err(ProblemError::BadGap { buffer: ix, gap: gap_ix });
        }
    }
    let Some(offset) = buffer.fixed else { return Ok(()) };
    if !offset.0.is_multiple_of(buffer.alignment.0) {
        return Err(ProblemError::FixedMisaligned { buffer: ix, offset, alignment: buffer.alignment });
    }
    if offset.0.checked_add(buffer.size.0).is_none() {
        return Err(ProblemError::FixedTooHigh { buffer: ix, offset, size: buffer.size });
    }
    Ok(())
}

/// Walks through the fixed pieces by time. The live ones are disjoint, so a new piece can only overlap its neighbours.
fn verify_fixed(problem: &Problem) -> Result<(), ProblemError> {
    /// At one step, ends come before starts.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Edge {
        End,
        Start,
    }
    let mut edges = Vec::new();
    for (ix, buffer) in problem.entries() {
        let Some(offset) = buffer.fixed else { continue };
        for piece in buffer.pieces() {
            let (low, high) = (offset.0 + piece.window.low.0, offset.0 + piece.window.high.0);
            edges.push((piece.lifetime.first, Edge::Start, low, high, ix));
            edges.push((piece.lifetime.end, Edge::End, low, high, ix));
        }
    }
    edges.sort_unstable();
    let mut live: BTreeMap<u64, (u64, BufferIx)> = BTreeMap::new();
    for (step, edge, low, high, ix) in edges {
        if edge == Edge::End {
            live.remove(&low);
            continue;
        }
        let below = live.range(..=low).next_back().filter(|(_, (top, _))| low < *top);
        let above = live.range(low..).next().filter(|(start, _)| **start < high);
        if let Some((_, &(_, other))) = below.or(above) {
            return Err(ProblemError::FixedCollision { a: ix.min(other), b: ix.max(other), step });
        }
        live.insert(low, (high, ix));
    }
    Ok(())
}
