//! [`Flip`]: lowers a packing by turning it upside down.
//!
//! In a packing of a greedy pass every item rests on another one, and the waste is above: first fit in the order of
//! offsets lowers nothing. Upside down, the ragged top is the ground. First fit in the order of the turned offsets lays
//! the highest items flat on it, and those that were lowest find holes between them. Then the packing is turned back.
//!
//! Each turn keeps the order of most items, so the rounds settle soon; each costs one pass of first fit.

use types::Bytes;

use crate::hole_fit::{Rule, fit};
use crate::instance::{Instance, Work};
use crate::place::Packing;
use crate::problem::{Buffer, Problem};

/// Turns that are tried without a lower height.
const VAIN_TURNS: usize = 1;
/// Turns at most.
const TURNS: usize = 8;

/// From where a packing is seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Upright,
    UpsideDown,
}

impl Side {
    pub(crate) const BOTH: [Side; 2] = [Side::Upright, Side::UpsideDown];

    fn other(self) -> Side {
        match self {
            Side::Upright => Side::UpsideDown,
            Side::UpsideDown => Side::Upright,
        }
    }
}

/// A problem with the same one upside down.
pub(crate) struct Flip<'a> {
    upright: &'a Instance,
    /// With the same items. A size is a multiple of the alignment.
    turned: Option<&'a Instance>,
    /// All alignments divide it.
    unit: u64,
}

/// A problem upside down. `None` if some buffer is fixed, or if the largest alignment is not a multiple of the others.
pub(crate) fn upside_down(problem: &Problem) -> Option<Instance> {
    let unit = problem.buffers.iter().map(|buffer| buffer.alignment.0).max()?;
    let turned = |buffer: &Buffer| {
        if buffer.fixed.is_some() || !unit.is_multiple_of(buffer.alignment.0) {
            return None;
        }
        let mut turned = Buffer { hint: None, ..buffer.clone() };
        turned.size = Bytes(buffer.size.0.checked_next_multiple_of(buffer.alignment.0)?);
        for window in turned.gaps.iter_mut().filter_map(|gap| gap.window.as_mut()) {
            (window.low, window.high) = (turned.size - window.high, turned.size - window.low);
        }
        Some(turned)
    };
    let buffers = problem.buffers.iter().map(turned).collect::<Option<_>>()?;
    Some(Instance::new(&Problem { buffers, capacity: None }))
}

impl<'a> Flip<'a> {
    /// `turned` is the problem of `upright` [`upside_down`]; without it, nothing is turned.
    pub(crate) fn new(upright: &'a Instance, turned: Option<&'a Instance>) -> Flip<'a> {
        let alignments = turned.iter().flat_map(|turned| turned.items.iter().map(|item| item.alignment));
        Flip { upright, turned, unit: alignments.max().unwrap_or(1) }
    }

    /// The items of a side.
    pub(crate) fn instance(&self, side: Side) -> Option<&'a Instance> {
        match side {
            Side::Upright => Some(self.upright),
            Side::UpsideDown => self.turned,
        }
    }

    /// The offsets of an upright packing, from a side. `None` if they cannot be turned.
    pub(crate) fn seen_from(&self, side: Side, offsets: &[u64]) -> Option<Vec<u64>> {
        match side {
            Side::Upright => Some(offsets.to_vec()),
            Side::UpsideDown => self.turned_over(offsets),
        }
    }

    /// The upright offsets of a packing that is seen from a side. `None` if they cannot be turned.
    pub(crate) fn upright(&self, side: Side, offsets: &[u64]) -> Option<Vec<u64>> {
        // Turned over twice, a packing is as it was.
        self.seen_from(side, offsets)
    }

    /// The same packing, from the other side.
    fn turned_over(&self, offsets: &[u64]) -> Option<Vec<u64>> {
        let sizes = || self.turned.into_iter().flat_map(|turned| turned.items.iter().map(|item| item.size));
        self.turned?;
        let tops = offsets.iter().zip(sizes()).map(|(offset, size)| offset.checked_add(size));
        let top = tops.collect::<Option<Vec<u64>>>()?.into_iter().max()?.checked_next_multiple_of(self.unit)?;
        Some(offsets.iter().zip(sizes()).map(|(offset, size)| top - offset - size).collect())
    }

    /// Turns a packing over until that lowers nothing more, the goal is reached or the budget is spent. Returns the lowest
    /// upright packing.
    pub(crate) fn settle(&self, side: Side, offsets: Vec<u64>, goal: u64, work: &mut Work) -> Option<Packing> {
        let upright = |side, offsets: &[u64]| Some(Packing::new(self.upright, self.upright(side, offsets)?));
        let mut best = upright(side, &offsets)?;
        let (mut side, mut offsets, mut vain) = (side, offsets, 0);
        for _ in 0..TURNS {
            if best.height <= goal || vain == VAIN_TURNS {
                break;
            }
            let Some(over) = self.turned_over(&offsets) else { break };
            side = side.other();
            let Some(instance) = self.instance(side) else { break };
            let mut order: Vec<u32> = (0..over.len() as u32).collect();
            order.sort_by_key(|item| over[*item as usize]);
            let Some(found) = fit(instance, Rule::First, &order, u64::MAX, work) else { break };
            offsets = found;
            let Some(packing) = upright(side, &offsets) else { break };
            vain = if packing.height < best.height { 0 } else { vain + 1 };
            if packing.height < best.height {
                best = packing;
            }
        }
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;
    use crate::check;
    use crate::instance::Priority;
    use crate::problem::{ByteWindow, Gap, Lifetime};
    use crate::skyline::skyline;

    /// Buffers of several alignments. Some occupy only a part of their bytes for some time.
    fn random_problem(random: &mut Random) -> Problem {
        let buffers = (0..2 + random.below(40)).map(|_| {
            let first = random.below(30) as u32;
            let middle = first + 1 + random.below(5) as u32;
            let end = middle + 1 + random.below(5) as u32;
            let size = 1 + random.below(60);
            let mut buffer = Buffer::new(Lifetime { first, end }, Bytes(size));
            buffer.alignment = Bytes([1, 4, 16][random.below(3) as usize]);
            if random.below(3) == 0 {
                let low = random.below(size);
                let window = ByteWindow { low: Bytes(low), high: Bytes(low + 1 + random.below(size - low)) };
                let lifetime = [Lifetime { first, end: middle }, Lifetime { first: middle, end }];
                buffer.gaps.push(Gap { lifetime: lifetime[random.below(2) as usize], window: Some(window) });
            }
            buffer
        });
        Problem { buffers: buffers.collect(), capacity: None }
    }

    #[test]
    fn settled_packings_are_valid_and_no_higher() {
        let mut random = Random::new(3);
        let mut lower = 0;
        for _ in 0..300 {
            let problem = random_problem(&mut random);
            let instance = Instance::new(&problem);
            let turned = upside_down(&problem).expect("no buffer is fixed");
            let flip = Flip::new(&instance, Some(&turned));
            for side in Side::BOTH {
                let from = flip.instance(side).expect("there are two sides");
                let mut work = Work::new(u64::MAX);
                let offsets = skyline(from, &from.order(Priority::Area), None, u64::MAX, &mut work).unwrap();
                let before = from.height(&offsets);
                let packing = flip.settle(side, offsets, 0, &mut work).unwrap();
                let placed: Vec<Bytes> = instance.offsets(&problem, &packing.offsets).into_iter().map(Bytes).collect();
                check(&problem, &placed, Bytes(packing.height)).expect("nothing overlaps");
                if side == Side::Upright {
                    assert!(packing.height <= before);
                }
                lower += u32::from(packing.height < before);
            }
        }
        assert!(100 < lower, "most packings of a skyline can be lowered, {lower} were");
    }

    #[test]
    fn packing_turned_twice_is_the_same() {
        let size = |size| Buffer { alignment: Bytes(4), ..Buffer::new(Lifetime { first: 0, end: 1 }, Bytes(size)) };
        let problem = Problem { buffers: vec![size(8), size(5)], capacity: None };
        let (instance, turned) = (Instance::new(&problem), upside_down(&problem).unwrap());
        let flip = Flip::new(&instance, Some(&turned));
        assert_eq!(flip.turned_over(&[0, 8]), Some(vec![8, 0]));
        assert_eq!(flip.turned_over(&[8, 0]), Some(vec![0, 8]));
    }
}
