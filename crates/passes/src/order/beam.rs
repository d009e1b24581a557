//! Good orders without a proof: the greedy one, and the best of a beam.

use super::instance::{Instance, Position};
use super::walk::{Ready, Walk};

/// The order in which the ready task that adds the fewest bytes runs next; ties by the order as given.
pub(crate) fn greedy(instance: &Instance) -> Vec<Position> {
    let mut walk = Walk::new(instance);
    while let Some(next) = walk.ready.iter().min_by_key(|ready| ready.growth()) {
        walk.run(next.task);
    }
    walk.moves
}

/// A state of the beam.
struct Spot {
    done: Vec<u64>,
    ready: Vec<Ready>,
    count: usize,
    live: u64,
    peak: u64,
    /// The last of the moves that led here, as an index into all moves.
    last: usize,
}

/// A state one task ahead of another, which is only built if it is among the best.
struct Step {
    peak: u64,
    live: u64,
    spot: usize,
    task: Position,
}

/// The best order among those that keep, of the states with equally many tasks done, the `width` with the least peak,
/// then with the fewest bytes alive. `None` if all need `known` bytes or more, or `work` runs out. `bound` is a lower bound.
pub(crate) fn beam(instance: &Instance, width: usize, known: u64, bound: u64, work: &mut u64) -> Option<Vec<Position>> {
    let mut walk = Walk::new(instance);
    walk.peak = walk.peak.max(bound);
    walk.close(walk.peak);
    // Moves with the index of the one before.
    let mut moves: Vec<(Position, usize)> = Vec::new();
    let mut spots: Vec<Vec<Spot>> = Vec::new();
    spots.resize_with(instance.len() + 1, Vec::new);
    let last = note(&mut moves, &walk.moves, usize::MAX);
    spots[walk.count].push(spot(&walk, last));
    let mut steps: Vec<Step> = Vec::new();
    for count in 0..instance.len() {
        let here = std::mem::take(&mut spots[count]);
        steps.clear();
        for (ix, spot) in here.iter().enumerate() {
            steps.extend(spot.ready.iter().filter_map(|ready| {
                let peak = spot.peak.max(spot.live + ready.effect.during);
                let live = spot.live + ready.effect.born - ready.effect.dying;
                (peak < known).then_some(Step { peak, live, spot: ix, task: ready.task })
            }));
        }
        // A state costs its set and its ready tasks, a step one of them.
        let state = (instance.words() / 8 + here.first().map_or(0, |spot| spot.ready.len())) as u64;
        let spent = (steps.len() as u64 + steps.len().min(4 * width) as u64 * state) / 2 + walk.work;
        walk.work = 0;
        *work = work.checked_sub(spent)?;
        // Different tasks often lead to one state: some more than are kept.
        let most = 4 * width;
        if most < steps.len() {
            steps.select_nth_unstable_by_key(most, |step| (step.peak, step.live, step.spot, step.task));
            steps.truncate(most);
        }
        steps.sort_unstable_by_key(|step| (step.peak, step.live, step.spot, step.task));
        for step in &steps {
            let from = &here[step.spot];
            walk.place_ready(&from.done, &from.ready, from.count, from.live, from.peak);
            walk.run(step.task);
            walk.close(walk.peak);
            let there = &mut spots[walk.count];
            let key = (walk.peak, walk.live);
            let worst = there.last().map(|worst| (worst.peak, worst.live));
            if (width <= there.len() && worst <= Some(key)) || there.iter().any(|other| other.done == walk.done) {
                continue;
            }
            let at = there.partition_point(|other| (other.peak, other.live) <= key);
            let last = note(&mut moves, &walk.moves, from.last);
            there.insert(at, spot(&walk, last));
            there.truncate(width);
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
    let (done, ready) = (walk.done.clone(), walk.ready.clone());
    Spot { done, ready, count: walk.count, live: walk.live, peak: walk.peak, last }
}

fn note(moves: &mut Vec<(Position, usize)>, new: &[Position], mut last: usize) -> usize {
    for &task in new {
        moves.push((task, last));
        last = moves.len() - 1;
    }
    last
}
