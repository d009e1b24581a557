//! [`Tiers`]: the large items first, by themselves, then the others around them.
//!
//! Where hardly any section has slack, a skyline of all items fails at the large ones: what lies below is ragged by the
//! time they are laid, and what is lost under them is lost for good. Small ones lie well anywhere: of what glue
//! (`glue.rs`) could not put together most live in one section only. So what is larger than a share of the goal or lives
//! longer than some sections, the *upper tier*, is placed as if there were nothing else: that is a small problem with
//! the slack of all that is small. The *lower tier* is then poured into what is left, by a skyline that knows the
//! ceilings (`skyline.rs`), the largest areas first.
//!
//! Where to draw the line nobody knows beforehand. There are several ([`LINES`]), and for each some orders for a skyline
//! by need of the upper tier; a line and an order are an *arm*. A run along an arm goes in rounds. The upper tier is
//! laid; while it comes out above the goal and above the best packing, or lower than ever, its sections that are too
//! high need more (as in `repair.rs`: by what they are above the goal, times a weight that doubles in vain) and it is
//! laid again. Else the lower tier is poured, and what both come to is what adds to the need. The run ends when that has
//! been in vain some times.
//!
//! Each line has one run with the first order. From then on runs go along the arm that has come out lowest, with a little
//! handicap for each run it has had, or along any of them one time in three; what is not known of an arm is taken to be
//! as on the same line. From an arm's second run on its order is *blurred*: each item may go a little later.

use types::{Bytes, Random};

use crate::floor::Floor;
use crate::instance::{Instance, Priority, Slot, Work};
use crate::need::Need;
use crate::obstacles::Obstacles;
use crate::place::Packing;
use crate::problem::{Buffer, Lifetime, Problem};
use crate::skyline::skyline;

/// The lower tier is what is not larger than one part in so many of the goal, and does not live in more sections than
/// this.
const LINES: [(u64, usize); 6] = [(16, 1), (64, 1), (256, 1), (8, usize::MAX), (16, usize::MAX), (32, usize::MAX)];
/// The orders of the upper tier, the first that is tried first.
const ORDERS: [Priority; 2] = [Priority::PeakWidth, Priority::Area];
/// Orders are blurred by up to one part in so many of their length.
const BLUR_SHARE: f32 = 4.0;
/// An arm that has had so many runs counts as one that came out twice as high above the goal.
const HANDICAP: u64 = 64;
/// A run ends when so many rounds have been in vain.
const VAIN_MAX: u32 = 4;

/// The lowest packing found that is not above `limit`; none where some item is not plain, or nothing can be told apart.
///
/// A height not above `goal` is low enough. Ends when the work is spent.
pub(crate) fn tiers(instance: &Instance, goal: u64, limit: u64, work: &mut Work) -> Option<Packing> {
    if !instance.is_plain {
        return None;
    }
    let mut lines: Vec<Tiers> = Vec::new();
    for (share, width_max) in LINES {
        let tiers = Tiers::new(instance, goal / share, width_max, goal);
        lines.extend(tiers.filter(|tiers| lines.iter().all(|line| line.upper.len() != tiers.upper.len())));
    }
    let mut arms: Vec<Arm> = Vec::new();
    for order in ORDERS {
        arms.extend((0..lines.len()).map(|line| Arm { line, order, low: u64::MAX, n_runs: 0 }));
    }
    let mut random = Random::new(1);
    let mut best = Best { packing: None, limit };
    let mut n_runs = 0;
    while !arms.is_empty() && !work.is_spent() && !best.is_enough(goal) {
        let arm = match n_runs < lines.len() {
            true => n_runs,
            false if random.below(3) == 0 => random.below(arms.len() as u64) as usize,
            false => (0..arms.len()).min_by_key(|arm| arms[*arm].cost(goal)).unwrap_or(0),
        };
        let Arm { line, order, .. } = arms[arm];
        let mut order = lines[line].part.order(order);
        if 0 < arms[arm].n_runs {
            blur(&mut order, &mut random);
        }
        let low = lines[line].run(&order, &mut best, work);
        // What is not known of the other orders is taken to be the same.
        for other in arms.iter_mut().filter(|other| other.line == line && other.n_runs == 0) {
            other.low = other.low.min(low);
        }
        arms[arm].low = arms[arm].low.min(low);
        arms[arm].n_runs += 1;
        n_runs += 1;
    }
    best.packing
}

/// A way to go about it, and what came of it.
struct Arm {
    /// Where the line between the tiers is.
    line: usize,
    order: Priority,
    /// The lowest height.
    low: u64,
    n_runs: u64,
}

impl Arm {
    fn cost(&self, goal: u64) -> u64 {
        self.low.saturating_add((self.low.saturating_sub(goal) / HANDICAP).saturating_mul(self.n_runs))
    }
}

/// The lowest packing that is not above a limit.
struct Best {
    packing: Option<Packing>,
    limit: u64,
}

impl Best {
    fn is_enough(&self, goal: u64) -> bool {
        self.packing.as_ref().is_some_and(|packing| packing.height <= goal)
    }

    /// Below what another must come out.
    fn height(&self) -> u64 {
        self.packing.as_ref().map_or(self.limit, |packing| packing.height - 1)
    }
}

/// Moves each item of an order a little way back.
fn blur(order: &mut [u32], random: &mut Random) {
    let reach = order.len() as f32 / BLUR_SHARE;
    let mut keyed: Vec<(f32, u32)> =
        order.iter().enumerate().map(|(at, item)| (at as f32 + reach * random.unit(), *item)).collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
    order.iter_mut().zip(keyed).for_each(|(item, (_, blurred))| *item = blurred);
}

/// The items of an instance, told apart.
struct Tiers<'a> {
    whole: &'a Instance,
    goal: u64,
    /// Items of the upper tier, and those of the lower.
    upper: Vec<u32>,
    lower: Vec<u32>,
    /// The upper tier by itself.
    part: Instance,
    /// The lower tier, with the upper one as obstacles, in the sections of the whole.
    rest: Instance,
    /// The order in which the lower tier goes.
    rest_order: Vec<u32>,
    /// By section of the whole, that of the part; none where nothing of the upper tier lives.
    sections: Vec<Option<u32>>,
}

impl<'a> Tiers<'a> {
    /// `None` if the upper tier would be empty, or not the smaller one.
    fn new(whole: &'a Instance, size_max: u64, width_max: usize, goal: u64) -> Option<Tiers<'a>> {
        let is_large = |item: &u32| {
            let item = &whole.items[*item as usize];
            size_max < item.size || width_max < item.hull.len()
        };
        let (upper, lower): (Vec<u32>, Vec<u32>) = (0..whole.items.len() as u32).partition(is_large);
        if upper.is_empty() || lower.len() < upper.len() {
            return None;
        }
        let buffer = |item: &u32| {
            let item = &whole.items[*item as usize];
            let lifetime = Lifetime { first: item.hull.start, end: item.hull.end };
            Buffer { alignment: Bytes(item.alignment), ..Buffer::new(lifetime, Bytes(item.size)) }
        };
        let part = Instance::new(&Problem { buffers: upper.iter().map(buffer).collect(), capacity: None });
        // Obstacles lie one upon the other at first; what counts is when they live.
        let mut top = 0_u64;
        let mut obstacle = |item: &u32| {
            let low = top;
            top = top.checked_add(whole.items[*item as usize].size)?;
            Some(Buffer { fixed: Some(Bytes(low)), ..Buffer { alignment: Bytes(1), ..buffer(item) } })
        };
        let obstacles: Vec<Buffer> = upper.iter().map(&mut obstacle).collect::<Option<_>>()?;
        let buffers = lower.iter().map(buffer).chain(obstacles).collect();
        let rest = Instance::new(&Problem { buffers, capacity: None });
        let rest_order = rest.order(Priority::Area);

        let hulls = upper.iter().map(|item| &whole.items[*item as usize].hull);
        let mut cuts: Vec<u32> = hulls.flat_map(|hull| [hull.start, hull.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let section = |section: u32| {
            let at = cuts.partition_point(|cut| *cut <= section);
            at.checked_sub(1).filter(|at| *at < part.n_sections).map(|at| at as u32)
        };
        let sections = (0..whole.n_sections as u32).map(section).collect();
        Some(Tiers { whole, goal, upper, lower, part, rest, rest_order, sections })
    }

    /// Rounds along an arm; the lowest height.
    fn run(&mut self, order: &[u32], best: &mut Best, work: &mut Work) -> u64 {
        let mut need = self.part.need();
        // Of the upper tier alone, and of both: the lowest height, and how many rounds have been in vain.
        let (mut low, mut n_vain, mut low_alone, mut n_vain_alone) = (u64::MAX, 0, u64::MAX, 0);
        while n_vain <= VAIN_MAX && !work.is_spent() {
            let Some(upper) = skyline(&self.part, order, Some(need.clone()), u64::MAX, work) else { break };
            let alone = self.part.height(&upper);
            let mut tops = Floor::new(self.whole.n_sections);
            self.raise(&mut tops, &self.upper, &upper);
            n_vain_alone = if alone < low_alone { 0 } else { n_vain_alone + 1 };
            low_alone = low_alone.min(alone);
            if self.goal < alone && (best.height() < alone || n_vain_alone == 0) {
                if VAIN_MAX < n_vain_alone {
                    low = low.min(alone);
                    break;
                }
                self.worry(&mut need, &tops, 1 << n_vain_alone, work);
                continue;
            }
            let Some(lower) = self.pour(&upper, work) else { break };
            self.raise(&mut tops, &self.lower, &lower);
            let mut offsets = vec![0; self.whole.items.len()];
            let both = self.upper.iter().zip(&upper).chain(self.lower.iter().zip(&lower));
            both.for_each(|(item, offset)| offsets[*item as usize] = *offset);
            let packing = Packing::new(self.whole, offsets);
            let height = packing.height;
            if height <= best.height() {
                best.packing = Some(packing);
            }
            if best.is_enough(self.goal) {
                return height;
            }
            if height < low {
                (low, n_vain) = (height, 0);
            }
            self.worry(&mut need, &tops, 1 << n_vain, work);
            n_vain += 1;
        }
        low
    }

    /// Lays the lower tier around the upper one.
    fn pour(&mut self, upper: &[u64], work: &mut Work) -> Option<Vec<u64>> {
        let slot = |(item, offset): (&u32, &u64)| {
            let item = &self.whole.items[*item as usize];
            Slot { start: *offset, top: offset + item.size, first: item.hull.start, end: item.hull.end }
        };
        self.rest.obstacles = Obstacles::new(self.upper.iter().zip(upper).map(slot).collect());
        skyline(&self.rest, &self.rest_order, None, u64::MAX, work)
    }

    fn raise(&self, tops: &mut Floor, items: &[u32], offsets: &[u64]) {
        for (item, offset) in items.iter().zip(offsets) {
            let item = &self.whole.items[*item as usize];
            tops.raise(item.hull.start as usize, item.hull.end as usize, offset + item.size);
        }
    }

    /// Adds to the need of the sections that came out too high.
    fn worry(&self, need: &mut Need, tops: &Floor, weight: u64, work: &mut Work) {
        work.spend(self.whole.n_sections);
        for (section, of_part) in self.sections.iter().enumerate() {
            let above = tops.height(section, section + 1).saturating_sub(self.goal);
            if let (1.., Some(section)) = (above, *of_part) {
                need.add(section, section + 1, above.saturating_mul(weight));
            }
        }
    }
}
