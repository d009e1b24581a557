//! [`PeakSet`]: the items that live at the fullest steps, as a problem of their own.
//!
//! The lower bound is the sum of bytes at the fullest step. Most problems come near it at few other steps, so only few
//! items must be placed well: those that live in a section with nearly as many bytes, the *peak set*. They are placed
//! first, by themselves; often that is a small problem which a search solves. Then they are fixed, and the other items
//! are placed around them: those have bytes to spare wherever they live, so that the holes between the items of the peak
//! set do not matter.
//!
//! ```text
//!  bytes     _____                     The bound is the height of a. Items over a and b are placed first; those that
//!   100 |    |  a  |        _______     live neither in a nor in b have 30 % or more to spare.
//!    70 |- - | - - | - - - | - b - |- -
//!       |____|     |_______|       |___
//!       +------------------------------> steps
//! ```

use std::cmp::Reverse;

use types::{Bytes, EntityId};

use crate::instance::Instance;
use crate::problem::{Buffer, BufferIx, Problem};

/// Limits of the peak set: a number of items, and a fraction of all items as its divisor.
const PEAK_SET_ITEMS: usize = 2500;
const ITEMS_SHARE: usize = 2;

/// A part of a problem.
pub(crate) struct PeakSet {
    pub(crate) problem: Problem,
    /// For each buffer of the part, its position in the whole.
    buffers: Vec<BufferIx>,
}

impl PeakSet {
    /// All fixed buffers, and the items over the fullest sections: at most the size of the largest set divided by
    /// `divisor`; `None` if that leaves no items.
    pub(crate) fn new(whole: &Problem, instance: &Instance, divisor: usize) -> Option<PeakSet> {
        let n_items = (instance.items.len() / ITEMS_SHARE).min(PEAK_SET_ITEMS) / divisor;
        if n_items == 0 {
            return None;
        }
        let mut peaks: Vec<u128> = instance.items.iter().map(|item| item.peak).collect();
        let (_, outside, _) = peaks.select_nth_unstable_by_key(n_items, |peak| Reverse(*peak));
        let items: Vec<_> = instance.items.iter().filter(|item| *outside < item.peak).map(|item| item.buffer).collect();
        if items.is_empty() {
            return None;
        }
        let fixed = whole.entries().filter(|(_, buffer)| buffer.fixed.is_some()).map(|(ix, _)| ix);
        let buffers: Vec<BufferIx> = fixed.chain(items).collect();
        let part = buffers.iter().map(|ix| Buffer { hint: None, ..whole.buffers[ix.index()].clone() });
        Some(PeakSet { problem: Problem { buffers: part.collect(), capacity: None }, buffers })
    }

    /// The whole with the peak set fixed, at offsets by buffer of the part.
    pub(crate) fn fixed_in(&self, whole: &Problem, offsets: &[u64]) -> Problem {
        let unhinted = whole.buffers.iter().map(|buffer| Buffer { hint: None, ..buffer.clone() });
        let mut rest = Problem { buffers: unhinted.collect(), capacity: None };
        for (ix, offset) in self.buffers.iter().zip(offsets) {
            rest.buffers[ix.index()].fixed = Some(Bytes(*offset));
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Lifetime;

    #[test]
    fn peak_set_has_the_items_at_full_steps() {
        // Steps 0 to 6 hold 5, 9, 8, 3, 2, 2 and 2 bytes.
        let lives = [(0, 1, 2), (0, 3, 3), (1, 3, 5), (1, 2, 1), (3, 4, 3), (4, 7, 2)];
        let buffers = lives.map(|(first, end, size)| Buffer::new(Lifetime { first, end }, Bytes(size)));
        let whole = Problem { buffers: buffers.to_vec(), capacity: None };
        let instance = Instance::new(&whole);
        let set = PeakSet::new(&whole, &instance, 1).expect("half of them");
        assert_eq!(set.buffers.iter().map(|ix| ix.index()).collect::<Vec<_>>(), [1, 2, 3]);
        let rest = set.fixed_in(&whole, &[0, 4, 3]);
        let fixed: Vec<_> = rest.buffers.iter().map(|buffer| buffer.fixed.map(|offset| offset.0)).collect();
        assert_eq!(fixed, [None, Some(0), Some(4), Some(3), None, None]);
        assert!(PeakSet::new(&whole, &instance, 2).is_none(), "three items live at the fullest step, more than one");
    }
}
