//! Good orders without a proof: the greedy one, and the best of a beam.

use super::instance::{Instance, Position};
use super::walk::Walk;

/// The order in which the ready task that adds the fewest bytes runs next; ties by the order as given.
pub(crate) fn greedy(instance: &Instance) -> Vec<Position> {
    let mut walk = Walk::new(instance);
    while let Some(next) = (0..walk.ready.len()).min_by_key(|&ix| {
        let effect = instance.effect(&walk.done, walk.ready[ix]);
        effect.born as i64 - effect.dying as i64
    }) {
        walk.run(walk.ready[next]);
    }
    walk.moves
}

struct Spot {
    done: Vec<u64>,
    count: usize,
    live: u64,
    peak: u64,
    /// The last of the moves that led here, as an index into all moves.
    last: usize,
}

/// The best order among those that keep, of the states with equally many tasks done, the `width` with the least peak,
/// then with the fewest bytes alive. `None` if all need `known` bytes or more, or more than `work`
/// effects would be looked at. `bound` is a lower bound.
pub(crate) fn beam(instance: &Instance, width: usize, known: u64, bound: u64, work: u64) -> Option<Vec<Position>> {
    let mut walk = Walk::new(instance);
    let mut child = Walk::new(instance);
    walk.peak = walk.peak.max(bound);
    walk.close(walk.peak);
    // Moves with the index of the one before.
    let mut moves: Vec<(Position, usize)> = Vec::new();
    let mut spots: Vec<Vec<Spot>> = Vec::new();
    spots.resize_with(instance.len() + 1, Vec::new);
    let last = note(&mut moves, &walk.moves, usize::MAX);
    spots[walk.count].push(spot(&walk, last));
    for count in 0..instance.len() {
        for spot_here in std::mem::take(&mut spots[count]) {
            if work < walk.work + child.work {
                return None;
            }
            walk.place(&spot_here.done, spot_here.count, spot_here.live, spot_here.peak);
            walk.each_next(&mut child, known, |next| {
                let there = &mut spots[next.count];
                let key = (next.peak, next.live);
                let worst = there.last().map(|worst| (worst.peak, worst.live));
                if (width <= there.len() && worst <= Some(key)) || there.iter().any(|other| other.done == next.done) {
                    return;
                }
                let at = there.partition_point(|other| (other.peak, other.live) <= key);
                let last = note(&mut moves, &next.moves, spot_here.last);
                there.insert(at, spot(next, last));
                there.truncate(width);
            });
        }
    }
    let mut last = spots[instance.len()].first()?.last;
    let mut order = Vec::with_capacity(instance.len());
    while last != usize::MAX {
        order.push(moves[last].0);
        last = moves[last].1;
    }
    order.reverse();
    Some(order)
}

fn spot(walk: &Walk, last: usize) -> Spot {
    Spot { done: walk.done.clone(), count: walk.count, live: walk.live, peak: walk.peak, last }
}

fn note(moves: &mut Vec<(Position, usize)>, new: &[Position], mut last: usize) -> usize {
    for &task in new {
        moves.push((task, last));
        last = moves.len() - 1;
    }
    last
}
