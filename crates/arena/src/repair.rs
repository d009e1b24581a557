//! [`repair`]: runs the skyline again and again, each time with those items further ahead in the order that lay too high.
//!
//! An item above the goal found no good place when its turn came, so its turn should come earlier (squeaky wheel
//! optimisation: Joslin, Clements 1999). Each item has a *turn*, a number that starts as its rank in the order of the best
//! pass. Before each pass the turns of the items that ended above the goal in the last one are multiplied by 0.3 to 0.9,
//! by chance from a seed. This goes on until four passes in a row have found nothing lower.

use types::Random;

use crate::instance::{Instance, Work};
use crate::place::Packing;
use crate::skyline::skyline;

/// So many passes may be in vain, one after the other.
const VAIN_MAX: u32 = 4;

/// The lowest packing found, `best` itself if none is lower. A height not above `goal` is low enough.
pub(crate) fn repair(instance: &Instance, best: Packing, goal: u64, work: &mut Work) -> Packing {
    let mut random = Random::new(1);
    let mut turns = vec![0.0; best.order.len()];
    for (rank, item) in best.order.iter().enumerate() {
        turns[*item as usize] = (rank + 1) as f64;
    }
    let mut offsets = best.offsets.clone();
    let mut best = best;
    let mut n_vain = 0;
    while goal < best.height && n_vain < VAIN_MAX {
        for ((item, offset), turn) in instance.items.iter().zip(&offsets).zip(&mut turns) {
            if goal < offset + item.size {
                *turn *= 0.3 + 0.6 * f64::from(random.unit());
            }
        }
        let mut order: Vec<u32> = (0..turns.len() as u32).collect();
        order.sort_unstable_by(|a, b| turns[*a as usize].total_cmp(&turns[*b as usize]).then(a.cmp(b)));
        match skyline(instance, &order, u64::MAX, work) {
            Some(found) => offsets = found,
            None => break,
        }
        let height = instance.height(&offsets);
        n_vain += 1;
        if height < best.height {
            best = Packing { order, offsets: offsets.clone(), height };
            n_vain = 0;
        }
    }
    best
}
