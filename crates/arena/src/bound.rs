//! [`lower_bound`]: a height that no placement can go below, and the step that shows it.
//!
//! The bound is the largest of three numbers:
//!
//! 1. *Live bytes.* Let `g` be the greatest common divisor of all alignments and of the lower ends of all windows, so
//!    that whatever is occupied starts at a multiple of `g`. At one step the occupied ranges are disjoint; take them in
//!    order of offset. From the start of one to the start of the next lie at least its bytes rounded up to a multiple
//!    of `g`; the topmost needs its bytes only. So the height is at least the sum of the rounded sizes, less the
//!    padding of one range, and the largest padding is the safe choice. With one alignment for all buffers, `g` is that
//!    alignment; with mixed alignments it is weaker than the truth, and with `g = 1` it is the plain sum. Whoever
//!    rounds sizes up to the alignment beforehand leaves no padding to guess about, and the bound is reached more
//!    often.
//! 2. *One buffer.* Every buffer lies inside the arena, live or not: its size.
//! 3. *One fixed buffer.* Its offset plus its size.

use std::collections::BTreeMap;

use types::Bytes;

use crate::problem::{Buffer, Problem};

/// A height that no placement of a problem can go below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The least height, `u64::MAX` if even that is too little.
    pub height: Bytes,
    /// The first step whose live bytes need it; the first step of the buffer, if one buffer alone needs it.
    pub step: u32,
}

/// The lower bound on the height of every placement; the head of `bound.rs` says why it holds.
///
/// O(n log n). Takes any problem, also one that [`Problem::verify`] refuses.
pub fn lower_bound(problem: &Problem) -> Bound {
    let (height, step) = exact_bound(problem);
    Bound { height: Bytes(u64::try_from(height).unwrap_or(u64::MAX)), step }
}

/// The bound before it is squeezed into 64 bits.
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
                // Its start lies at an earlier step, so it has been counted.
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

/// What the start of every range that the buffer occupies is a multiple of.
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
