//! [`Crest`]: the items that live where the pile will be highest, as a problem of their own.
//!
//! The lower bound is the sum of bytes at the fullest step. Most problems come near it at few other steps, so few items
//! have to lie well: those that live in a section with nearly as many bytes, the *crest*. They are placed first, by
//! themselves, by all that this crate knows, as if there were nothing else; often that is a small problem which a
//! search solves. Then they are fixed, and the others are placed around them: wherever one of those lives, there are
//! bytes to spare, and what the crest left between its items does no harm.
//!
//! ```text
//!  bytes     _____                     The bound is the height of a. Those over a and b are placed first, those that
//!   100 |    |  a  |        _______     live neither in a nor in b have 30 % or more to spare.
//!    70 |- - | - - | - - - | - b - |- -
//!       |____|     |_______|       |___
//!       +------------------------------> steps
//! ```

use std::cmp::Reverse;

use types::{Bytes, EntityId};

use crate::instance::Instance;
use crate::problem::{Buffer, BufferIx, Problem};

/// So many items belong to the largest crest, and not more than one part in so many of all.
const CREST_ITEMS: usize = 2500;
const ITEMS_SHARE: usize = 2;

/// A part of a problem.
pub(crate) struct Crest {
    pub(crate) problem: Problem,
    /// For each buffer of the part, which it is of the whole.
    buffers: Vec<BufferIx>,
}

impl Crest {
    /// All fixed buffers, and the items over the fullest sections: one part in `divisor` of the largest crest, fewer
    /// where several more would come at once; `None` if these are none.
    pub(crate) fn new(whole: &Problem, instance: &Instance, divisor: usize) -> Option<Crest> {
        let n_items = (instance.items.len() / ITEMS_SHARE).min(CREST_ITEMS) / divisor;
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
        Some(Crest { problem: Problem { buffers: part.collect(), capacity: None }, buffers })
    }

    /// The whole with the crest fixed, at offsets by buffer of the part.
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
    fn the_crest_is_what_lives_at_full_steps() {
        // Steps 0 to 6 hold 5, 9, 8, 3, 2, 2 and 2 bytes.
        let lives = [(0, 1, 2), (0, 3, 3), (1, 3, 5), (1, 2, 1), (3, 4, 3), (4, 7, 2)];
        let buffers = lives.map(|(first, end, size)| Buffer::new(Lifetime { first, end }, Bytes(size)));
        let whole = Problem { buffers: buffers.to_vec(), capacity: None };
        let instance = Instance::new(&whole);
        let crest = Crest::new(&whole, &instance, 1).expect("half of them");
        assert_eq!(crest.buffers.iter().map(|ix| ix.index()).collect::<Vec<_>>(), [1, 2, 3]);
        let rest = crest.fixed_in(&whole, &[0, 4, 3]);
        let fixed: Vec<_> = rest.buffers.iter().map(|buffer| buffer.fixed.map(|offset| offset.0)).collect();
        assert_eq!(fixed, [None, Some(0), Some(4), Some(3), None, None]);
        assert!(Crest::new(&whole, &instance, 2).is_none(), "three live at the fullest step, which is more than one");
    }
}
