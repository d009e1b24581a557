//! [`improve`]: goes from the greedy passes' height towards the least one, by searches at chosen heights.
//!
//! An instance becomes rectangles for `search.rs`: bytes are counted in *grains*, the greatest common divisor of all
//! sizes, alignments and fixed offsets, and of the sections only those remain that hold a set of buffers which no other
//! section's set contains; the rest is implied. A buffer with gaps counts as whole from its first step to its last:
//! what is found is a placement all the same, but that nothing is found then proves nothing.
//!
//! **One height** is tried by a sequence of runs, restarted after some hundred branches with another order of
//! preference: by area, width, size and tallest section, each blurred by up to a fifth, under both rules of choice.
//! Luck decides a search more than diligence does, so many short runs beat a long one; now and then a run is longer
//! (Luby's sequence), and what failed is remembered, so a small problem is searched through in the end.
//!
//! **Heights** are tried from the lower bound upwards: when one is ruled out the bound rises, when it is neither found
//! nor ruled out the next one is half-way to the best height known, until the steps are small. Then a new round begins,
//! with searches that know nothing of the last ones: what a search learns early can also lead it astray for good. Their
//! work follows Luby's sequence as well.

use types::Random;

use crate::instance::{Instance, Work, gcd};
use crate::search::{Answer, Choice, Guide, Rect, Search};

/// More items than these are left to the passes: one dive costs their square.
pub(crate) const ITEMS_MAX: usize = 3000;
/// So that sums of two do not overflow.
const BYTES_MAX: u64 = 1 << 62;
/// Branches of the shortest run.
const BRANCHES: u64 = 300;
/// Work of the shortest search at one height.
const SEARCH_UNITS: u64 = 2_000_000;

/// What [`improve`] found.
pub(crate) struct Improvement {
    /// Offsets by item and the height they need, if lower than what was known.
    pub(crate) found: Option<(Vec<u64>, u64)>,
    /// No placement is lower than this.
    pub(crate) least: u64,
}

/// Looks for placements lower than `height`: for the least one, or where `goal` is given only for one that is not above
/// it.
///
/// `least` is a height that no placement can go below. The end comes when that is reached, or the work is spent.
pub(crate) fn improve(instance: &Instance, height: u64, least: u64, goal: Option<u64>, work: &mut Work) -> Improvement {
    let mut improvement = Improvement { found: None, least };
    let is_small = height <= BYTES_MAX && instance.items.iter().all(|item| item.alignment <= BYTES_MAX);
    if ITEMS_MAX < instance.items.len() || instance.items.is_empty() || !is_small {
        return improvement;
    }
    let exact = Exact::new(instance);
    let grain = exact.grain;
    let mut height = height;
    // Tops of items are multiples of the grain; only what is no item can end elsewhere.
    let mut ruled_out = if instance.base < least { least.next_multiple_of(grain) } else { least };
    for round in 0.. {
        // Heights tried in this round: `vain` is the highest without a placement.
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
                // Not to the last grain: searches that end in vain cost most.
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
    if exact.proves {
        improvement.least = ruled_out;
    }
    improvement
}

/// An instance as the search wants it.
struct Exact {
    rects: Vec<Rect>,
    /// How many of the rectangles are items; obstacles come behind them.
    n_items: usize,
    n_sections: usize,
    grain: u64,
    /// Whether a search that finds nothing means that there is nothing.
    proves: bool,
    orders: [Vec<f64>; 4],
}

impl Exact {
    fn new(instance: &Instance) -> Exact {
        let items = instance.items.iter().flat_map(|item| [item.size, item.alignment]);
        let obstacles = instance.fixed.iter().flat_map(|slot| [slot.start, slot.top]);
        let grain = items.chain(obstacles).fold(0, gcd).max(1);
        let spans = instance.items.iter().map(|item| item.hull.clone());
        let spans: Vec<_> = spans.chain(instance.fixed.iter().map(|slot| slot.first..slot.end)).collect();
        let (sections, n_sections) = maximal_sections(&spans, instance.n_sections);

        let rect = |span: &std::ops::Range<u32>, size: u64, alignment: u64, fixed: Option<u64>| Rect {
            first: sections[span.start as usize],
            end: sections[span.end as usize - 1] + 1,
            size: size / grain,
            alignment: alignment / grain,
            fixed: fixed.map(|offset| offset / grain),
        };
        let n_items = instance.items.len();
        let items = instance.items.iter().map(|item| rect(&item.hull, item.size, item.alignment, None));
        let obstacles = instance
            .fixed
            .iter()
            .map(|slot| rect(&(slot.first..slot.end), slot.top - slot.start, grain, Some(slot.start)));
        let rects: Vec<Rect> = items.chain(obstacles).collect();

        let mut totals = vec![0u64; n_sections];
        for rect in &rects {
            totals[rect.first as usize..rect.end as usize].iter_mut().for_each(|total| *total += rect.size);
        }
        let peak =
            |rect: &Rect| totals[rect.first as usize..rect.end as usize].iter().max().map_or(0.0, |max| *max as f64);
        let width = |rect: &Rect| f64::from(rect.end - rect.first);
        let order = |key: &dyn Fn(&Rect) -> f64| rects.iter().map(key).collect();
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
            proves: instance.items.iter().all(|item| instance.is_item_plain(item)),
            orders,
            rects,
        }
    }

    /// Searches at one capacity, in grains, until there is an answer or the work is spent.
    fn attempt(&self, capacity: u64, seed: u64, work: &mut Work) -> (Answer, Vec<u64>) {
        let mut search = Search::new(&self.rects, self.n_sections, capacity);
        let mut random = Random::new(seed);
        let mut rank = vec![0; self.rects.len()];
        for run in 0.. {
            let keys = &self.orders[run % self.orders.len()];
            let keys: Vec<f64> = keys.iter().map(|key| key * (1.0 + 0.2 * f64::from(random.unit()))).collect();
            let mut order: Vec<u32> = (0..self.rects.len() as u32).collect();
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

/// Maps sections to those that remain, and says how many do: of neighbours where one holds all that the other does,
/// one.
///
/// A section is followed by one that holds more unless something ends behind it, and so on until something does; a new
/// one begins where something starts after an end.
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
    use super::*;

    #[test]
    fn luby_s_sequence() {
        let sequence: Vec<u64> = (0..15).map(luby).collect();
        assert_eq!(sequence, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }

    #[test]
    fn sections_that_others_contain_fall_away() {
        // Sections 0 to 4 hold {a}, {a b}, {b}, {b c}, {c}.
        let (sections, count) = maximal_sections(&[0..2, 1..4, 3..5], 5);
        assert_eq!((sections, count), (vec![0, 0, 0, 1, 1], 2));
    }
}
