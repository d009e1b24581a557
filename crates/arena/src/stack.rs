//! [`Halves`]: what lives at the fullest step is stacked without waste, which leaves two problems, one before that step
//! and one behind it.
//!
//! At the fullest step nothing may be wasted, a little way from it hardly anything. The items that live there can lie
//! upon each other in any order; this one leaves no holes beside them. What ends soon lies on top, the sooner the
//! higher; what began late lies at the bottom, the later the lower; an item is one or the other, by which of its ends
//! is nearer. Then the free bytes behind the step are all above the stack, as on a stair, and those before it are all
//! under it. What is before the step is turned upside down, and both halves are stairs that a skyline goes on from.
//!
//! ```text
//!            fullest                                     before it, turned over
//!        ......|-----e------|........                    |----e-----|
//!     ---------|---d---|.............                    |----d------
//!     ---------|-------c-------------                    |----c------
//!     .....|---|-----------b---------                    |----b-|
//!     .......|-|------a--------------                    |----a-|
//! ```
//!
//! No item lives on both sides but those of the stack, so that nothing else ties the halves together. If the one that
//! is turned over comes out too high, all is moved up by what is too much.

use std::cmp::Reverse;

use types::Bytes;

use crate::instance::{Instance, Item};
use crate::problem::{Buffer, Lifetime, Problem};

/// Both halves as one problem, in time counted by sections of the instance.
pub(crate) struct Halves {
    /// A buffer for each item, fixed where it is of the stack; behind them what the stack takes before the fullest
    /// section.
    pub(crate) problem: Problem,
    /// The first section of the second half.
    fullest: u32,
    /// The height of the stack.
    height: u64,
}

impl Halves {
    /// `None` if something is fixed already, or some item is not plain.
    pub(crate) fn new(instance: &Instance) -> Option<Halves> {
        if !instance.is_plain {
            return None;
        }
        let totals = instance.totals();
        let fullest = (0..totals.len()).rev().max_by_key(|section| totals[*section])? as u32;
        let before = |item: &Item| fullest - item.hull.start;
        let behind = |item: &Item| item.hull.end - fullest;
        let stack = (0..instance.items.len()).filter(|item| instance.items[*item].hull.contains(&fullest));
        let (mut low, mut high): (Vec<usize>, Vec<usize>) =
            stack.partition(|item| before(&instance.items[*item]) < behind(&instance.items[*item]));
        low.sort_by_key(|item| before(&instance.items[*item]));
        high.sort_by_key(|item| Reverse(behind(&instance.items[*item])));

        let size = |item: &Item| item.size.checked_next_multiple_of(instance.grain);
        let buffer = |item: &Item| {
            let lifetime = Lifetime { first: item.hull.start, end: item.hull.end };
            Some(Buffer { alignment: Bytes(instance.grain), ..Buffer::new(lifetime, Bytes(size(item)?)) })
        };
        let mut buffers: Vec<Buffer> = instance.items.iter().map(buffer).collect::<Option<_>>()?;
        let mut height = 0_u64;
        for item in low.iter().chain(&high) {
            buffers[*item].fixed = Some(Bytes(height));
            buffers[*item].lifetime.first = fullest;
            height = height.checked_add(buffers[*item].size.0)?;
        }
        for item in low.iter().chain(&high) {
            let lifetime = Lifetime { first: instance.items[*item].hull.start, end: fullest };
            let turned = buffers[*item].fixed.map(|offset| Bytes(height - offset.0 - buffers[*item].size.0));
            buffers.push(Buffer { lifetime, fixed: turned, ..buffers[*item].clone() });
        }
        buffers.retain(|buffer| !buffer.lifetime.is_empty());
        Some(Halves { problem: Problem { buffers, capacity: None }, fullest, height })
    }

    /// Offsets by item from offsets of the problem's buffers; `None` if a top passes 64 bits.
    pub(crate) fn offsets(&self, instance: &Instance, by_buffer: &[u64]) -> Option<Vec<u64>> {
        let is_before = |item: usize| instance.items[item].hull.end <= self.fullest;
        let top = |item: usize| by_buffer[item].checked_add(self.problem.buffers[item].size.0);
        let mut height = self.height;
        for item in (0..instance.items.len()).filter(|item| is_before(*item)) {
            height = height.max(top(item)?);
        }
        let place = |item: usize| match is_before(item) {
            true => top(item).map(|top| height - top),
            false => by_buffer[item].checked_add(height - self.height),
        };
        let offsets: Vec<u64> = (0..instance.items.len()).map(place).collect::<Option<_>>()?;
        let are_tops_low = instance.items.iter().zip(&offsets).all(|(item, low)| low.checked_add(item.size).is_some());
        are_tops_low.then_some(offsets)
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;
    use crate::check::check;
    use crate::instance::{Priority, Work};
    use crate::skyline::skyline;

    #[test]
    fn halves_come_together_again() {
        let mut random = Random::new(12);
        for round in 0..500 {
            let mut buffer = || {
                let first = random.below(30) as u32;
                let lifetime = Lifetime { first, end: first + 1 + random.below(20) as u32 };
                Buffer { alignment: Bytes([1, 8][round % 2]), ..Buffer::new(lifetime, Bytes(1 + random.below(40))) }
            };
            let problem = Problem { buffers: (0..1 + round / 10).map(|_| buffer()).collect(), capacity: None };
            let instance = Instance::new(&problem);
            let halves = Halves::new(&instance).expect("all items are plain");
            let turned = Instance::new(&halves.problem);
            let order = turned.order(Priority::Area);
            let found = skyline(&turned, &order, None, u64::MAX, &mut Work::new(u64::MAX)).expect("small numbers");
            let by_buffer = turned.offsets(&halves.problem, &found);
            let offsets = halves.offsets(&instance, &by_buffer).expect("small numbers");
            let placed: Vec<Bytes> = instance.offsets(&problem, &offsets).into_iter().map(Bytes).collect();
            assert_eq!(check(&problem, &placed, Bytes(instance.height(&offsets))), Ok(()), "{problem:#?}");
        }
    }
}
