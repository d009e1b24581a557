//! [`lower_bound`]: a lower bound on the height of every placement, and the step that proves it.
//!
//! The bound is the largest of three numbers:
//!
//! 1. *Live bytes.* Let `g` be the greatest common divisor of all alignments and of the lower ends of all windows, so
//!    that every occupied range starts at a multiple of `g`. At one step the occupied ranges are disjoint; take them in
//!    order of offset. The distance from the start of one to the start of the next is at least its size rounded up to a
//!    multiple of `g`; the topmost needs only its size. So the height is at least the sum of the rounded sizes, less
//!    the padding of one range, and the largest padding is the safe choice. With one alignment for all buffers, `g` is
//!    that alignment; with mixed alignments the bound is weaker, and with `g = 1` it is the plain sum. If sizes are
//!    multiples of the alignment there is no padding, and the bound is reached more often.
//! 2. *One buffer.* Every buffer is inside the arena, live or not: its size.
//! 3. *One fixed buffer.* Its offset plus its size.

use std::collections::BTreeMap;

use types::Bytes;

use crate::problem::{Buffer, Problem};

/// A lower bound on the height of every placement of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The bound, at most `u64::MAX`.
    pub height: Bytes,
    /// The first step with that many live bytes, or the first step of the buffer that needs it alone.
    pub step: u32,
}

/// The lower bound on the height of every placement; the head of `bound.rs` has the proof.
///
/// O(n log n). Accepts problems that [`Problem::verify`] refuses.
pub fn lower_bound(problem: &Problem) -> Bound {
    let (height, step) = exact_bound(problem);
    Bound { height: Bytes(u64::try_from(height).unwrap_or(u64::MAX)), step }
}

/// The bound in 128 bits.
pub(crate) fn exact_bound(problem: &Problem) -> (u128, u32) {
    let mut best = live_bound(problem);
    for buffer in &problem.buffers {
        let top = u128::from(buffer.fixed.unwrap_or_default().0) + u128::from(buffer.size.0);
        if best.0 < top {
            best = (top, buffer.lifetime.first);
        }
    }
    best
}

fn live_bound(problem: &Problem) -> (u128, u32) {
    let grain = problem.buffers.iter().fold(0, |grain, buffer| gcd(grain, buffer_grain(buffer))).max(1);
    let mut edges: Vec<(u32, Edge)> = Vec::with_capacity(2 * problem.buffers.len());
    for piece in problem.buffers.iter().flat_map(Buffer::pieces) {
        let size = u128::from(piece.window.high.0 - piece.window.low.0);
        let rounded = size.next_multiple_of(u128::from(grain));
        let padding = rounded - size;
        edges.push((piece.lifetime.first, Edge::Start { rounded, padding }));
        edges.push((piece.lifetime.end, Edge::End { rounded, padding }));
    }
    edges.sort_unstable_by_key(|(step, _)| *step);

    let mut best: (u128, u32) = (0, 0);
    let mut live: u128 = 0;
    let mut paddings: BTreeMap<u128, u32> = BTreeMap::new();
    for (ix, &(step, edge)) in edges.iter().enumerate() {
        match edge {
            Edge::Start { rounded, padding } => {
                live += rounded;
                *paddings.entry(padding).or_insert(0) += 1;
            }
            Edge::End { rounded, padding } => {
                // Its start is at an earlier step, so it has been counted.
                live -= rounded;
                let count = paddings.get_mut(&padding).expect("every end follows its start");
                *count -= 1;
                if *count == 0 {
                    paddings.remove(&padding);
                }
            }
        }
        let step_is_over = edges.get(ix + 1).is_none_or(|(next, _)| step < *next);
        if step_is_over && best.0 < live {
            let need = live - paddings.last_key_value().map_or(0, |(padding, _)| *padding);
            if best.0 < need {
                best = (need, step);
            }
        }
    }
    best
}

#[derive(Clone, Copy)]
enum Edge {
    Start { rounded: u128, padding: u128 },
    End { rounded: u128, padding: u128 },
}

/// The start of every range that the buffer occupies is a multiple of this.
fn buffer_grain(buffer: &Buffer) -> u64 {
    let windows = buffer.gaps.iter().filter_map(|gap| gap.window);
    windows.fold(buffer.alignment.0, |grain, window| gcd(grain, window.low.0))
}

/// Greatest common divisor; `gcd(0, x) = x`.
fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
