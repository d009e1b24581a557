//! [`repair`]: runs the skyline by need again and again, each time with more need where it came out too high.
//!
//! A section whose pile passes the goal wasted more than it could afford, often before it was the one that needed most.
//! So it is said to need more from the start: what its pile is above the goal, times a weight, is added to its need for
//! the passes that follow (squeaky wheel optimisation: Joslin, Clements 1999). The weight is 1 at first and doubles
//! after every pass in vain, until six in a row have been.

use crate::floor::Floor;
use crate::instance::{Instance, Priority, Work};
use crate::place::Packing;
use crate::skyline::skyline;

/// So many passes may be in vain, one after the other.
const VAIN_MAX: u32 = 6;

/// The lowest packing found, `best` itself if none is lower. A height not above `goal` is low enough.
pub(crate) fn repair(instance: &Instance, best: Packing, goal: u64, work: &mut Work) -> Packing {
    let order = instance.order(Priority::PeakWidth);
    let mut need = instance.need();
    let mut offsets = best.offsets.clone();
    let mut best = best;
    let mut n_vain = 0;
    while goal < best.height && n_vain < VAIN_MAX && work.spend(instance.n_sections) {
        let mut tops = Floor::new(instance.n_sections);
        for (item, offset) in instance.items.iter().zip(&offsets) {
            tops.raise(item.hull.start as usize, item.hull.end as usize, offset + item.size);
        }
        for section in 0..instance.n_sections {
            let above = tops.height(section, section + 1).saturating_sub(goal);
            if 0 < above {
                need.add(section as u32, section as u32 + 1, above.saturating_mul(1 << n_vain));
            }
        }
        match skyline(instance, &order, Some(need.clone()), u64::MAX, work) {
            Some(found) => offsets = found,
            None => break,
        }
        let height = instance.height(&offsets);
        n_vain += 1;
        if height < best.height {
            best = Packing { offsets: offsets.clone(), height };
            n_vain = 0;
        }
    }
    best
}
