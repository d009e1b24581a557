//! [`improve`]: lowers the height of the greedy passes towards the least one, by searches at chosen heights.
//!
//! An instance becomes rectangles for `search.rs`: bytes are counted in *grains*, the greatest common divisor of all
//! sizes, alignments and fixed offsets. Only sections with a maximal set of buffers remain; the constraints of the
//! others follow. A buffer with gaps is a rectangle whose top has steps. If it is absent for some time, or is without its
//! lowest bytes, it counts as more than it is: a result is still a placement, but a failure proves nothing.
//!
//! **One height** is tried by a sequence of runs. Each is restarted after some hundred branches with another order of
//! preference: by area, width, size and tallest section, each perturbed by up to a fifth, under both branching rules.
//! Many short runs beat a long one; some runs are longer (Luby's sequence). Failed states are remembered, so that small
//! problems are searched completely in the end.
//!
//! **Heights** are tried from the lower bound upwards. If one is excluded the bound rises; if the search stops without
//! an answer, the next height is half-way to the best one known, until the steps are small. Then a new round starts
//! with new searches, because the choices a search learns early can also mislead it. Their budgets follow Luby's
//! sequence as well.

use types::Random;

use crate::instance::{Instance, Item, Work, gcd};
use crate::search::{Answer, Choice, Guide, Rect, Rects, Search, Step, Steps};

/// The most items of an exact search: one dive costs their square.
pub(crate) const ITEMS_MAX: usize = 3000;
/// Sums of two such sizes do not overflow.
const BYTES_MAX: u64 = 1 << 62;
/// Branches of the shortest run.
const BRANCHES: u64 = 300;
/// Work of the shortest search at one height.
const SEARCH_UNITS: u64 = 2_000_000;

/// The result of [`improve`].
pub(crate) struct Improvement {
    /// Offsets by item and their height, if lower than the height known before.
    pub(crate) found: Option<(Vec<u64>, u64)>,
    /// The proved lower bound.
    pub(crate) least: u64,
}

/// Searches for placements lower than `height`: for the least one, or for one not above `goal` if there is a goal.
///
/// `least` is a proved lower bound. Ends when it is reached or the budget is spent.
pub(crate) fn improve(instance: &Instance, height: u64, least: u64, goal: Option<u64>, work: &mut Work) -> Improvement {
    let mut improvement = Improvement { found: None, least };
    let is_small = height <= BYTES_MAX && instance.items.iter().all(|item| item.alignment <= BYTES_MAX);
    if ITEMS_MAX < instance.items.len() || instance.items.is_empty() || !is_small {
        return improvement;
    }
    let exact = Exact::new(instance);
    let grain = exact.grain;
    let mut height = height;
    // Tops of items are multiples of the grain; those of fixed buffers may not be.
    let mut ruled_out = if instance.base < least { least.next_multiple_of(grain) } else { least };
    for round in 0.. {
        // The highest height of this round without a placement.
        let mut vain = None;
        let mut aim = goal.unwrap_or(ruled_out) / grain * grain;
        while aim < height && !work.is_spent() {
            let mut part = work.part(SEARCH_UNITS * luby(round));
            let (answer, offsets) = exact.attempt(aim / grain, round, &mut part.work);
            work.spend_part(part);
            match answer {
                Answer::Fits => {
                    let offsets: Vec<u64> = offsets.into_iter().map(|offset| offset * grain).collect();
                    height = instance.height(&offsets);
                    improvement.found = Some((offsets, height));
                }
                Answer::DoesNotFit => {
                    vain = Some(aim);
                    ruled_out = ruled_out.max(aim + grain);
                }
                Answer::Stopped => vain = Some(aim),
            }
            match vain {
                // Not down to the last grain: failing searches cost most.
                Some(vain) if goal.is_none() && (height - ruled_out) / 6 < height - vain => {
                    aim = vain + ((height - vain) / 2 / grain * grain).max(grain);
                }
                _ => break,
            }
        }
        if height <= ruled_out.max(goal.unwrap_or(0)) || goal.is_some_and(|goal| goal < ruled_out) || work.is_spent() {
            break;
        }
    }
    if exact.is_proof {
        improvement.least = ruled_out;
    }
    improvement
}

/// An instance as rectangles for the search.
struct Exact {
    rects: Rects,
    /// The number of items; obstacles follow them.
    n_items: usize,
    n_sections: usize,
    grain: u64,
    /// Whether a completed search without a result is a proof.
    is_proof: bool,
    orders: [Vec<f64>; 4],
}

impl Exact {
    fn new(instance: &Instance) -> Exact {
        let items = instance.items.iter().flat_map(|item| [item.size, item.alignment]);
        let tops = instance.pieces.iter().map(|piece| piece.high);
        let obstacles = instance.fixed.iter().flat_map(|slot| [slot.start, slot.top]);
        let grain = items.chain(tops).chain(obstacles).fold(0, gcd).max(1);
        let spans = instance.pieces.iter().map(|piece| piece.first..piece.end);
        let spans: Vec<_> = spans.chain(instance.fixed.iter().map(|slot| slot.first..slot.end)).collect();
        let (sections, n_sections) = maximal_sections(&spans, instance.n_sections);

        let rect = |span: &std::ops::Range<u32>, size: u64, alignment: u64, fixed: Option<u64>| Rect {
            first: sections[span.start as usize],
            end: sections[span.end as usize - 1] + 1,
            size: size / grain,
            alignment: alignment / grain,
            fixed: fixed.map(|offset| offset / grain),
            steps: Steps::default(),
        };
        let n_items = instance.items.len();
        let mut rects = Rects { rects: Vec::with_capacity(n_items + instance.fixed.len()), steps: Vec::new() };
        for item in &instance.items {
            let mut own = rect(&item.hull, item.size, item.alignment, None);
            if !instance.is_item_plain(item) {
                own.steps.start = rects.steps.len() as u32;
                rects.steps.extend(steps(instance, item, &own, &sections, grain));
                own.steps.end = rects.steps.len() as u32;
            }
            rects.rects.push(own);
        }
        let obstacles = instance
            .fixed
            .iter()
            .map(|slot| rect(&(slot.first..slot.end), slot.top - slot.start, grain, Some(slot.start)));
        rects.rects.extend(obstacles);

        let totals = rects.totals(n_sections);
        let rects_of = &rects.rects;
        let peak =
            |rect: &Rect| totals[rect.first as usize..rect.end as usize].iter().max().map_or(0.0, |max| *max as f64);
        let width = |rect: &Rect| f64::from(rect.end - rect.first);
        let order = |key: &dyn Fn(&Rect) -> f64| rects_of.iter().map(key).collect();
        let orders = [
            order(&|rect| width(rect) * rect.size as f64),
            order(&width),
            order(&|rect| rect.size as f64),
            order(&|rect| peak(rect) * 1e6 + width(rect) * rect.size as f64),
        ];
        Exact {
            n_items,
            n_sections,
            grain,
            is_proof: instance.items.iter().all(|item| is_flat(instance, item)),
            orders,
            rects,
        }
    }

    /// Searches at one capacity, in grains, until there is an answer or the work is spent.
    fn attempt(&self, capacity: u64, seed: u64, work: &mut Work) -> (Answer, Vec<u64>) {
        let mut search = Search::new(&self.rects, self.n_sections, capacity);
        let mut random = Random::new(seed);
        let mut rank = vec![0; self.rects.rects.len()];
        for run in 0.. {
            let keys = &self.orders[run % self.orders.len()];
            let keys: Vec<f64> = keys.iter().map(|key| key * (1.0 + 0.2 * f64::from(random.unit()))).collect();
            let mut order: Vec<u32> = (0..self.rects.rects.len() as u32).collect();
            order.sort_unstable_by(|a, b| keys[*b as usize].total_cmp(&keys[*a as usize]).then(a.cmp(b)));
            order.iter().enumerate().for_each(|(place, item)| rank[*item as usize] = place as u32);
            let cycle = run / self.orders.len();
            let choice = if cycle.is_multiple_of(2) { Choice::Cases } else { Choice::Failures };
            let guide = Guide { choice, rank: &rank, branches: BRANCHES * luby(cycle as u64) };
            let answer = search.run(&guide, work);
            if answer == Answer::Fits {
                return (answer, search.offsets()[..self.n_items].to_vec());
            }
            if answer == Answer::DoesNotFit || work.is_spent() {
                return (answer, Vec::new());
            }
        }
        unreachable!("runs go on until the work is spent")
    }
}

/// Whether an item starts at its offset in all of its sections, and is never absent: a rectangle with steps describes it.
fn is_flat(instance: &Instance, item: &Item) -> bool {
    let pieces = instance.pieces(item);
    pieces.iter().all(|piece| piece.low == 0)
        && pieces.windows(2).all(|two| two[0].end == two[1].first)
        && pieces.iter().any(|piece| piece.high == item.size)
}

/// The heights of an item with gaps, over the sections of its rectangle. While it is absent it counts as before, and its bytes
/// below a window count too. Some section has the item's size, so that it is inside the arena as a whole.
fn steps(instance: &Instance, item: &Item, rect: &Rect, sections: &[u32], grain: u64) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for piece in instance.pieces(item) {
        let first = sections[piece.first as usize];
        if let Some(last) = steps.last_mut() {
            last.end = first;
        }
        steps.push(Step { first, end: rect.end, height: piece.high / grain });
    }
    if steps.iter().all(|step| step.height < rect.size)
        && let Some(highest) = steps.iter_mut().max_by_key(|step| step.height)
    {
        highest.height = rect.size;
    }
    steps
}

/// Maps sections to those that remain, and counts these: of two neighbours where one contains all spans of the other,
/// one remains.
///
/// A section contains all spans of the one before it unless a span ends between them; a new one begins at the first
/// start after an end.
fn maximal_sections(spans: &[std::ops::Range<u32>], n_sections: usize) -> (Vec<u32>, usize) {
    let (mut starts, mut ends) = (vec![false; n_sections + 1], vec![false; n_sections + 1]);
    for span in spans {
        starts[span.start as usize] = true;
        ends[span.end as usize] = true;
    }
    let (mut sections, mut number, mut ended) = (Vec::with_capacity(n_sections), 0, false);
    for section in 0..n_sections {
        ended |= ends[section];
        if ended && starts[section] {
            number += 1;
            ended = false;
        }
        sections.push(number);
    }
    (sections, number as usize + 1)
}

/// The sequence 1 1 2 1 1 2 4 1 1 2 ... (Luby, Sinclair, Zuckerman 1993), from 0 on.
fn luby(at: u64) -> u64 {
    let mut size = 1;
    while size < at + 1 {
        size = 2 * size + 1;
    }
    if size == at + 1 { size.div_ceil(2) } else { luby(at - size / 2) }
}

#[cfg(test)]
mod tests {
    use types::Bytes;

    use super::*;
    use crate::check;
    use crate::problem::{Buffer, ByteWindow, Gap, Lifetime, Problem};

    #[test]
    fn luby_sequence() {
        let sequence: Vec<u64> = (0..15).map(luby).collect();
        assert_eq!(sequence, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }

    #[test]
    fn contained_sections_are_dropped() {
        // Sections 0 to 4 hold {a}, {a b}, {b}, {b c}, {c}.
        let (sections, count) = maximal_sections(&[0..2, 1..4, 3..5], 5);
        assert_eq!((sections, count), (vec![0, 0, 0, 1, 1], 2));
    }

    /// Buffers whose occupied bytes all start at their offset, at up to three heights one after the other.
    fn flat_problem(random: &mut Random) -> Problem {
        let buffers = (0..1 + random.below(5)).map(|_| {
            let (first, size) = (random.below(4) as u32, 1 + random.below(4));
            let lengths: Vec<u32> = (0..1 + random.below(3)).map(|_| 1 + random.below(2) as u32).collect();
            let end = first + lengths.iter().sum::<u32>();
            let mut buffer = Buffer::new(Lifetime { first, end }, Bytes(size));
            buffer.alignment = Bytes(1 + random.below(2));
            let mut at = first;
            for length in &lengths[1..] {
                let window = ByteWindow { low: Bytes(0), high: Bytes(1 + random.below(size)) };
                let lifetime = Lifetime { first: at, end: at + length };
                if window.high < buffer.size {
                    buffer.gaps.push(Gap { lifetime, window: Some(window) });
                }
                at += length;
            }
            buffer
        });
        Problem { buffers: buffers.collect(), capacity: None }
    }

    /// The least height, by all offsets of all buffers.
    fn by_all_offsets(problem: &Problem) -> u64 {
        let sizes: u64 = problem.buffers.iter().map(|buffer| buffer.size.0 + buffer.alignment.0 - 1).sum();
        let fits = |height: u64| {
            let mut offsets: Vec<Bytes> = Vec::new();
            descend(problem, height, &mut offsets)
        };
        (0..=sizes).find(|height| fits(*height)).expect("all of them on top of each other fit")
    }

    fn descend(problem: &Problem, height: u64, offsets: &mut Vec<Bytes>) -> bool {
        let n_placed = offsets.len();
        let part = Problem { buffers: problem.buffers[..n_placed].to_vec(), capacity: None };
        if check(&part, offsets, Bytes(height)).is_err() {
            return false;
        }
        if n_placed == problem.buffers.len() {
            return true;
        }
        let buffer = &problem.buffers[n_placed];
        (0..=height.saturating_sub(buffer.size.0)).step_by(buffer.alignment.0 as usize).any(|offset| {
            offsets.push(Bytes(offset));
            let found = descend(problem, height, offsets);
            offsets.pop();
            found
        })
    }

    #[test]
    fn search_over_tops_with_steps_finds_and_proves_the_least_height() {
        let mut random = Random::new(8);
        let mut n_lowered = 0;
        for _ in 0..500 {
            let problem = flat_problem(&mut random);
            let instance = Instance::new(&problem);
            let optimum = by_all_offsets(&problem);
            let height: u64 = 1 + problem.buffers.iter().map(|buffer| buffer.size.0 + buffer.alignment.0).sum::<u64>();
            let Improvement { found, least } = improve(&instance, height, 0, None, &mut Work::new(10_000_000));
            let (offsets, found) = found.expect("the height is above all placements");
            let offsets: Vec<Bytes> = instance.offsets(&problem, &offsets).into_iter().map(Bytes).collect();
            assert_eq!(check(&problem, &offsets, Bytes(found)), Ok(()), "{problem:#?}");
            assert_eq!((found, least), (optimum, optimum), "{problem:#?}");
            let whole = problem.buffers.iter().map(|buffer| Buffer { gaps: Vec::new(), ..buffer.clone() }).collect();
            n_lowered += u32::from(optimum < by_all_offsets(&Problem { buffers: whole, capacity: None }));
        }
        assert!(50 < n_lowered, "windows lower too few of these problems: {n_lowered}");
    }
}
