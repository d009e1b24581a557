//! [`place`]: offsets for a problem, with the [`Certificate`] of their height.
//!
//! A placement packs rectangles: time runs to the right, bytes upwards, each buffer moves up and down only. The height
//! of the pile is the size of the arena.
//!
//! ```text
//!  bytes
//!   96 |     +-----------+        <- height      x: 0..2, 64 B
//!      |     |     y     |                       y: 1..3, 32 B
//!   64 +-----+-----+-----+-----+                 z: 2..4, 64 B
//!      |           |           |
//!      |     x     |     z     |
//!      |           |           |
//!    0 +-----------+-----------+--> steps
//!      0     1     2     3     4
//! ```
//!
//! All three can start at 0. x has the largest area and comes first among equals, so it is placed first. Then z can still
//! be at 0 and y only at 64, so z is next and y last. With y first, x and z would be at 32, and the bytes below them
//! would be wasted.
//!
//! The lower bound (`bound.rs`) is computed first. Then greedy passes run until one reaches the bound or all have run.
//! Each pass starts from an empty arena and places the *items* (buffers with a free offset that occupy some byte at
//! some step) one after the other. A pass ends early if a top is not below the best height so far. The lowest height
//! wins; among equal ones, the earliest pass.
//!
//! **Skyline** (`skyline.rs`). The *skyline height* of a section of time is the highest top placed there; everything
//! below it counts as used. An item can be placed at the largest skyline height below its pieces, rounded up to its
//! alignment and lifted over fixed buffers. The pass always places the item that can be lowest; among several, the
//! first in the order of priority. Waste appears only where the lowest item is shorter in time than the gap it fills,
//! so short items fill a gap before a long one covers it. This beats orders by size alone.
//!
//! **Hole fit** (`hole_fit.rs`). The items in order of priority, each into a hole between the items placed before:
//! first fit takes the lowest hole that is large enough, best fit the smallest. If no hole is large enough, the item
//! goes on top. An item with gaps goes to the lowest offset at which none of its pieces overlaps. An item is compared with those
//! that share sections with it (`neighbors.rs`): O(n^2) at worst. A pass is skipped if it would take too large a share of the
//! budget.
//!
//! **By demand.** A skyline that chooses by section: the *demand* of a section is the sum of the bytes that live in it
//! and of those wasted in it so far, which is the height it reaches without further waste. In a gap of the skyline,
//! items over the section with the largest demand go first. Most problems are tight in few sections and have slack in
//! the others.
//!
//! **Peak set** (`large/peak_set.rs`). The items that are live at the fullest steps are placed first, by themselves;
//! then the others are placed around them. Both are problems that all passes apply to. Three sizes of the set are
//! tried.
//!
//! **Windows** (`large/windows.rs`). For too many items for a search: the items that are too high in the best packing
//! are placed anew, together with their neighbours in time, by skylines and a search over some hundred items.
//!
//! **Gaps** (`gapped.rs`). If some items have gaps, skylines over all pieces are turned upside down and settle by first fit
//! (`flip.rs`). Then the items with gaps are fixed, and everything else applies to the other items around them.
//!
//! **Exact search** (`exact.rs`, `search.rs`). For up to 3000 items: heights between the bound and the best pass are
//! tried until the least is found and proved, or the budget is spent.
//!
//! **Brute force** (`brute_force.rs`). For at most a dozen items, all orders.
//!
//! **Small and large.** Up to 3000 items: skylines, hole fits and windows, then a short search, peak sets, and the
//! search with the rest of the budget. Beyond: two skylines, peak sets, and the other skylines with windows in
//! between, hole fits, then windows with the rest of the budget.
//!
//! The cost of passes and searches is counted in visits ([`Limits`]), never in seconds, so that the result does not
//! depend on the machine.

use types::{Bytes, Certificate, EntityId};

use crate::bound::exact_bound;
use crate::brute_force::{ITEMS_MAX as BRUTE_FORCE_ITEMS_MAX, lowest_order};
use crate::exact::{ITEMS_MAX, improve};
use crate::gapped::pack_gapped;
use crate::hole_fit::{Rule, fit, fit_units};
use crate::instance::{Instance, Priority, Work};
use crate::large::{PeakSet, lower_tops};
use crate::problem::{Problem, ProblemError};
use crate::skyline::skyline;

/// The budget of one call of [`place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The budget in visits of a tree node, or of eight slots of a list: some nanoseconds each.
    ///
    /// Above 3000 buffers the default means about 600 visits for each buffer, 400 beyond the first hundred thousand;
    /// other budgets scale in proportion.
    ///
    /// The first pass always runs to its end, so that there is a placement; zero means that pass only.
    pub work: u64,
    /// The height at which to stop earlier.
    pub aim: Aim,
}

/// The height that is good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// The least height, with a proof.
    Least,
    /// Any height within the problem's capacity; the least height if it has none.
    Capacity,
}

/// An offset for each buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// By the position of the buffer. Zero for a free buffer that occupies nothing.
    pub offsets: Vec<Bytes>,
    /// The step whose live bytes are the lower bound.
    pub peak_step: u32,
    /// The height reached, with its lower bounds: see [`lower_bound`](crate::lower_bound).
    ///
    /// The exact search compares its states by 128-bit hashes, so its proofs are wrong with a probability of about 2^-100.
    pub certificate: Certificate,
}

/// The reason for which [`place`] returns no placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The problem is invalid.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The capacity is below the lower bound.
    #[error(
        "the capacity must be at least `{}` bytes, the live bytes at step `{step}`; got `{}` bytes",
        need.0, limit.0
    )]
    DoesNotFit {
        /// The problem's capacity.
        limit: Bytes,
        /// The lower bound.
        need: Bytes,
        /// The step with the most live bytes.
        step: u32,
    },
    /// An exact search has proved that nothing fits.
    #[error(
        "the capacity must be at least `{}` bytes, proved by exact search (the lower bound is `{}` bytes); got `{}` bytes",
        least.0, lower_bound.0, limit.0
    )]
    RuledOut {
        /// The problem's capacity.
        limit: Bytes,
        /// The lower bound.
        lower_bound: Bytes,
        /// The proved minimum.
        least: Bytes,
    },
    /// The best placement found exceeds the capacity; a better one may exist.
    #[error(
        "no placement found within the capacity of `{}` bytes: the best needs `{}` bytes, the lower bound is `{}` bytes; \
         raise the capacity or the budget",
        limit.0, need.0, lower_bound.0
    )]
    NotFound {
        /// The problem's capacity.
        limit: Bytes,
        /// The least height found.
        need: Bytes,
        /// The lower bound.
        lower_bound: Bytes,
    },
    /// No placement found has all ends below 2^64.
    #[error("no placement found below 2^64 bytes; the lower bound is `{}` bytes", lower_bound.0)]
    Overflow {
        /// The lower bound, at most `u64::MAX`.
        lower_bound: Bytes,
    },
}

/// Places every buffer at the least arena height that greedy passes and a search find.
///
/// If buffers have hints, a pass of first fit in the order of the hints runs first, unless the problem is too large for
/// O(n^2). If the hints are a valid placement and no buffer has gaps, no buffer is then placed above its hint: all that
/// was placed before it and shares a section had a lower hint, so it ends at or below this one. Among equally low
/// placements this one wins.
///
/// Deterministic. Refuses problems that [`Problem::verify`] refuses, and heights above the capacity.
pub fn place(problem: &Problem, limits: Limits) -> Result<Placement, PlaceError> {
    problem.verify()?;
    let (bound, peak_step) = exact_bound(problem);
    let lower_bound = Bytes(u64::try_from(bound).map_err(|_| PlaceError::Overflow { lower_bound: Bytes(u64::MAX) })?);
    if let Some(limit) = problem.capacity
        && limit < lower_bound
    {
        return Err(PlaceError::DoesNotFit { limit, need: lower_bound, step: peak_step });
    }
    let instance = Instance::new(problem);
    let goal = problem.capacity.filter(|_| limits.aim == Aim::Capacity);
    let mut work = Work::new(budget(limits.work, instance.items.len()));
    let good_enough = goal.unwrap_or_default().max(lower_bound);
    let goals = Goals {
        good_enough: good_enough.0,
        least: lower_bound.0,
        capacity: goal.map(|goal| goal.0),
        portfolio: Portfolio::Full,
    };
    let Some((best, least)) = pack(problem, &instance, goals, &mut work) else {
        return Err(PlaceError::Overflow { lower_bound });
    };
    let least = Bytes(least);
    let height = Bytes(best.height);
    if let Some(limit) = problem.capacity
        && limit < height
    {
        return Err(match limit < least {
            true => PlaceError::RuledOut { limit, lower_bound, least },
            false => PlaceError::NotFound { limit, need: height, lower_bound },
        });
    }
    Ok(Placement {
        offsets: instance.offsets(problem, &best.offsets).into_iter().map(Bytes).collect(),
        peak_step,
        certificate: Certificate { value: height, lower_bound, least },
    })
}

/// The budget for a number of items. Up to [`ITEMS_MAX`] an exact search can use all of it. Beyond, the budget that
/// passes and windows can use grows with the number of items, and `units` scales it.
fn budget(units: u64, n_items: usize) -> u64 {
    let n_items = n_items as u64;
    if n_items <= ITEMS_MAX as u64 {
        return units;
    }
    let n_first = n_items.min(FIRST_ITEMS);
    let usual = LARGE_UNITS.max(ITEM_UNITS * n_first + FURTHER_ITEM_UNITS * (n_items - n_first));
    let in_proportion = u128::from(units) * u128::from(usual) / u128::from(Limits::default().work);
    units.min(usual).max(u64::try_from(in_proportion).unwrap_or(u64::MAX))
}

impl Default for Limits {
    /// Enough for all passes on several thousand buffers; at most some seconds.
    fn default() -> Limits {
        Limits { work: 200_000_000, aim: Aim::Least }
    }
}

impl Placement {
    /// The bytes of the arena: the highest end of a buffer.
    pub fn height(&self) -> Bytes {
        self.certificate.value
    }

    /// The height less the lower bound: an upper bound on the bytes that a better placement could save.
    pub fn gap(&self) -> Bytes {
        self.height() - self.certificate.lower_bound
    }
}

/// One greedy pass.
#[derive(Clone, Copy)]
enum Pass {
    Skyline(Choice, Priority),
    Fit(Rule, Priority),
    /// Windows in the lowest packing so far; see `large/windows.rs`.
    Windows,
    /// The items over the fullest sections first; see `large/peak_set.rs`.
    PeakSets,
}

/// Which item a skyline pass takes for a gap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The first in order.
    InOrder,
    /// The first over the section with the largest demand.
    ByDemand,
}

/// The last search gets the rest of the budget up to this many items, and a smaller share of it for more: it rarely
/// finishes there.
const SEARCH_ITEMS: u64 = 500;
/// The default budget above [`ITEMS_MAX`] items: units for each of the first items, for each further one, and at least.
const ITEM_UNITS: u64 = 680;
const FIRST_ITEMS: u64 = 100_000;
const FURTHER_ITEM_UNITS: u64 = 400;
const LARGE_UNITS: u64 = 9_000_000;
/// Windows get one part in this many of the remaining budget while other passes are to come.
const WINDOWS_SHARE: u64 = 8;
/// The least number of items for windows.
const WINDOWS_ITEMS: usize = 640;
/// Units for each item to sort them, and to build an instance of a part.
const ORDER_UNITS: usize = 10;
const INSTANCE_UNITS: usize = 30;
/// The cost of a skyline by demand, in quarters of one in order.
const DEMAND_QUARTERS: u64 = 11;
/// The budget of brute force.
const BRUTE_FORCE_UNITS: u64 = 20_000_000;
/// The search before peak sets gets one part in this many of the remaining budget.
const SEARCH_SHARE: u64 = 8;
/// The sizes of peak sets that are tried: the largest divided by these.
const PEAK_SET_DIVISORS: [usize; 3] = [1, 2, 4];
/// A peak set gets one part in this many of the remaining budget, and so do the items around it.
const PEAK_SET_SHARE: u64 = 8;
/// The budget of a part of a problem, if that is small.
const PART_UNITS_MAX: u64 = 10_000_000;
/// Peak sets are skipped if less than this remains for each item.
const PEAK_SET_ITEM_UNITS: u64 = 50;
/// A hole fit that may cost more than one part in this many of the remaining budget is skipped.
const FIT_SHARE: u64 = 16;
/// The pass of the hints may always cost this: some ten thousand items.
const HINT_UNITS: u64 = 1 << 23;

/// The passes for few items, by height gained for their cost. By area is enough for most orders of real networks; by
/// demand wins where many sections are tight; by peak and by first step on small problems without slack; hole fits use
/// the bytes that skylines waste below long items.
const PASSES: [Pass; 19] = [
    Pass::Skyline(Choice::InOrder, Priority::Area),
    Pass::Skyline(Choice::ByDemand, Priority::PeakWidth),
    Pass::Skyline(Choice::ByDemand, Priority::Size),
    Pass::Skyline(Choice::ByDemand, Priority::First),
    Pass::Skyline(Choice::ByDemand, Priority::Area),
    Pass::Skyline(Choice::InOrder, Priority::Size),
    Pass::Skyline(Choice::InOrder, Priority::PeakWidth),
    Pass::Skyline(Choice::InOrder, Priority::First),
    Pass::Skyline(Choice::InOrder, Priority::PeakArea),
    Pass::Skyline(Choice::InOrder, Priority::Width),
    Pass::Skyline(Choice::InOrder, Priority::Padding),
    Pass::Fit(Rule::Best, Priority::Size),
    Pass::Fit(Rule::First, Priority::Size),
    Pass::Fit(Rule::Best, Priority::Area),
    Pass::Fit(Rule::First, Priority::Area),
    Pass::Fit(Rule::Best, Priority::Width),
    Pass::Fit(Rule::First, Priority::Width),
    Pass::Fit(Rule::Best, Priority::First),
    Pass::Windows,
];

/// The passes for too many items for an exact search.
const PASSES_LARGE: [Pass; 20] = [
    Pass::Skyline(Choice::InOrder, Priority::Area),
    Pass::Skyline(Choice::ByDemand, Priority::PeakWidth),
    Pass::PeakSets,
    Pass::Windows,
    Pass::Skyline(Choice::InOrder, Priority::First),
    Pass::Windows,
    Pass::Skyline(Choice::ByDemand, Priority::First),
    Pass::Skyline(Choice::ByDemand, Priority::Area),
    Pass::Skyline(Choice::InOrder, Priority::PeakWidth),
    Pass::Skyline(Choice::InOrder, Priority::PeakArea),
    Pass::Skyline(Choice::InOrder, Priority::Width),
    Pass::Windows,
    Pass::Skyline(Choice::InOrder, Priority::Padding),
    Pass::Fit(Rule::Best, Priority::Size),
    Pass::Fit(Rule::First, Priority::Size),
    Pass::Fit(Rule::Best, Priority::Area),
    Pass::Fit(Rule::First, Priority::Area),
    Pass::Fit(Rule::Best, Priority::Width),
    Pass::Fit(Rule::First, Priority::Width),
    Pass::Fit(Rule::Best, Priority::First),
];

/// The passes for many items around a peak set.
const PASSES_AROUND: [Pass; 3] = [
    Pass::Skyline(Choice::InOrder, Priority::Area),
    Pass::Skyline(Choice::ByDemand, Priority::PeakWidth),
    Pass::Windows,
];

/// Offsets by item, and the height they need together with all that is not an item.
pub(crate) struct Packing {
    pub(crate) offsets: Vec<u64>,
    pub(crate) height: u64,
}

impl Packing {
    pub(crate) fn new(instance: &Instance, offsets: Vec<u64>) -> Packing {
        let height = instance.height(&offsets);
        Packing { offsets, height }
    }
}

/// The heights at which to stop.
#[derive(Clone, Copy)]
pub(crate) struct Goals {
    /// A height that ends all passes and searches.
    pub(crate) good_enough: u64,
    /// A proved lower bound.
    least: u64,
    /// The capacity, if no lower height is needed.
    capacity: Option<u64>,
    portfolio: Portfolio,
}

/// Which passes run on many items.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Portfolio {
    /// All of them.
    Full,
    /// Those that go well around a peak set.
    AroundPeakSet,
}

impl Goals {
    /// Whether a lower height than this is not needed or impossible.
    pub(crate) fn are_settled(&self, height: u64) -> bool {
        height <= self.good_enough.max(self.least) || self.capacity.is_some_and(|capacity| capacity < self.least)
    }
}

/// The lowest packing that passes and searches find, and the proved lower bound.
fn pack(problem: &Problem, instance: &Instance, goals: Goals, work: &mut Work) -> Option<(Packing, u64)> {
    let mut goals = goals;
    let has_gaps = instance.items.iter().any(|item| !instance.is_item_plain(item));
    let mut best = match has_gaps {
        true => pack_gapped(problem, instance, goals, work)?,
        false => run_passes(problem, instance, goals, work)?,
    };
    if goals.are_settled(best.height) {
        return Some((best, goals.least));
    }
    if ITEMS_MAX < instance.items.len() {
        if goals.good_enough < best.height {
            best = lower_tops(instance, &best, goals.good_enough, work).unwrap_or(best);
        }
        return Some((best, goals.least));
    }
    if instance.items.len() <= BRUTE_FORCE_ITEMS_MAX && !goals.are_settled(best.height) {
        let (lowest, all) = by_brute_force(instance, best, &mut goals, work);
        best = lowest;
        if all || goals.are_settled(best.height) {
            return Some((best, goals.least));
        }
    }
    let mut part = work.part(work.left() / SEARCH_SHARE);
    best = search(instance, best, &mut goals, &mut part.work);
    work.spend_part(part);
    // With gaps, peak sets take as long as all other passes, and rarely lower a packing.
    if !has_gaps && !goals.are_settled(best.height) && !work.is_spent() {
        best = run_peak_sets(problem, instance, goals.good_enough, best.height - 1, work).unwrap_or(best);
    }
    let n_items = (instance.items.len() as u64).max(SEARCH_ITEMS);
    let mut part = work.part((u128::from(work.left()) * u128::from(SEARCH_ITEMS) / u128::from(n_items)) as u64);
    best = search(instance, best, &mut goals, &mut part.work);
    work.spend_part(part);
    Some((best, goals.least))
}

/// The packing or a lower one by brute force, and whether all orders were tried.
fn by_brute_force(instance: &Instance, best: Packing, goals: &mut Goals, work: &mut Work) -> (Packing, bool) {
    let enough = goals.capacity.unwrap_or(0).max(goals.good_enough).max(goals.least);
    let mut part = work.part(BRUTE_FORCE_UNITS);
    let orders = lowest_order(instance, best.height, enough, &mut part.work);
    work.spend_part(part);
    let best = orders.found.map_or(best, |(offsets, height)| Packing { offsets, height });
    if orders.is_proof && enough < best.height {
        goals.least = best.height;
    }
    (best, orders.all)
}

/// The packing or a lower one by exact search, which may also raise `goals.least`.
fn search(instance: &Instance, best: Packing, goals: &mut Goals, work: &mut Work) -> Packing {
    if goals.are_settled(best.height) {
        return best;
    }
    let improvement = improve(instance, best.height, goals.least, goals.capacity, work);
    goals.least = improvement.least;
    improvement.found.map_or(best, |(offsets, height)| Packing { offsets, height })
}

/// The lowest packing of all passes, or the first not above `good_enough`; `None` if no pass stays below 2^64.
///
/// Skips skylines whose order was tried before, and passes that cost more than the remaining budget.
fn run_passes(problem: &Problem, instance: &Instance, goals: Goals, work: &mut Work) -> Option<Packing> {
    let good_enough = goals.good_enough;
    let mut best: Option<Packing> = None;
    let mut tried: Vec<(Choice, Vec<u32>)> = Vec::new();
    // The cost of the first pass.
    let mut pass_units = 0;
    let hinted = instance.has_hints().then_some(Pass::Fit(Rule::First, Priority::Hint));
    let passes: &[Pass] = match (instance.items.len(), goals.portfolio) {
        (..=ITEMS_MAX, _) => &PASSES,
        (_, Portfolio::AroundPeakSet) => &PASSES_AROUND,
        (_, Portfolio::Full) => &PASSES_LARGE,
    };
    // The height that windows did not lower.
    let mut settled = None;
    for pass in hinted.into_iter().chain(passes.iter().copied()) {
        let order = match pass {
            Pass::Skyline(Choice::InOrder, _) if best.is_some() && work.left() < pass_units => continue,
            Pass::Skyline(Choice::ByDemand, _) if work.left() < pass_units.saturating_mul(DEMAND_QUARTERS) / 4 => {
                continue;
            }
            Pass::Fit(..) if affordable(&best, work) < fit_units(instance.items.len()) => continue,
            Pass::Fit(_, priority) | Pass::Skyline(_, priority) => instance.order(priority),
            // On fewer items a search does as much as windows.
            Pass::Windows if instance.items.len() < WINDOWS_ITEMS => continue,
            Pass::Windows if settled == best.as_ref().map(|best| best.height) => continue,
            Pass::Windows | Pass::PeakSets => Vec::new(),
        };
        if best.is_some() {
            work.spend(ORDER_UNITS * order.len());
        }
        if let Pass::Skyline(choice, _) = pass {
            if tried.iter().any(|(other, tried)| *other == choice && *tried == order) {
                continue;
            }
            tried.push((choice, order.clone()));
        }
        // `good_enough < height` holds for the best so far, so a height one lower exists.
        let limit = best.as_ref().map_or(u64::MAX, |best| best.height - 1);
        let found = match (pass, &best) {
            (Pass::Windows, Some(low)) => {
                let mut part = work.part(work.left() / WINDOWS_SHARE);
                let found = lower_tops(instance, low, good_enough, &mut part.work);
                work.spend_part(part);
                settled = Some(found.as_ref().map_or(low.height, |found| found.height));
                found
            }
            (Pass::PeakSets, _) => run_peak_sets(problem, instance, good_enough, limit, work),
            (_, None) => {
                let mut unlimited = Work::new(u64::MAX);
                let found = run_pass(instance, pass, &order, limit, &mut unlimited);
                pass_units = u64::MAX - unlimited.left();
                work.spend(usize::try_from(pass_units).unwrap_or(usize::MAX));
                found
            }
            (_, Some(_)) => run_pass(instance, pass, &order, limit, work),
        };
        let Some(found) = found else { continue };
        if found.height <= good_enough {
            return Some(found);
        }
        best = Some(found);
    }
    best
}

/// The units that a hole fit may cost. The pass of the hints, which comes first, may cost some with any budget.
fn affordable(best: &Option<Packing>, work: &Work) -> u64 {
    let share = work.left() / FIT_SHARE;
    if best.is_none() { share.max(HINT_UNITS) } else { share }
}

fn run_pass(instance: &Instance, pass: Pass, order: &[u32], limit: u64, work: &mut Work) -> Option<Packing> {
    let offsets = match pass {
        Pass::Skyline(Choice::InOrder, _) => skyline(instance, order, None, limit, work),
        Pass::Skyline(Choice::ByDemand, _) => skyline(instance, order, Some(instance.demand()), limit, work),
        Pass::Fit(rule, _) => fit(instance, rule, order, limit, work),
        _ => unreachable!("only skylines and hole fits take items in an order"),
    }?;
    let packing = Packing::new(instance, offsets);
    debug_assert!(packing.height <= limit);
    Some(packing)
}

/// Places peak sets by themselves, and the other items around each set that is low enough; around the lowest set if none
/// is.
fn run_peak_sets(
    problem: &Problem,
    instance: &Instance,
    good_enough: u64,
    limit: u64,
    work: &mut Work,
) -> Option<Packing> {
    let mut best: Option<Packing> = None;
    let mut lowest: Option<(u64, Problem)> = None;
    let around = |rest: &Problem, height: u64, work: &mut Work| {
        let (offsets, _) = pack_part(rest, good_enough.max(height), Portfolio::AroundPeakSet, PEAK_SET_SHARE, work)?;
        Some(Packing::new(instance, instance.items.iter().map(|item| offsets[item.buffer.index()]).collect()))
    };
    for divisor in PEAK_SET_DIVISORS {
        if work.left() < PEAK_SET_ITEM_UNITS * instance.items.len() as u64 {
            break;
        }
        let Some(set) = PeakSet::new(problem, instance, divisor) else { break };
        let Some((offsets, height)) = pack_part(&set.problem, good_enough, Portfolio::Full, PEAK_SET_SHARE, work)
        else {
            break;
        };
        let rest = set.fixed_in(problem, &offsets);
        if good_enough < height {
            lowest = lowest.into_iter().chain([(height, rest)]).min_by_key(|(height, _)| *height);
            continue;
        }
        best = best.into_iter().chain(around(&rest, height, work)).min_by_key(|packing| packing.height);
        if best.as_ref().is_some_and(|best| best.height <= good_enough) {
            break;
        }
    }
    if let (None, Some((height, rest))) = (&best, lowest.filter(|(height, _)| *height <= limit)) {
        best = around(&rest, height, work);
    }
    best.filter(|packing| packing.height <= limit)
}

/// Offsets by buffer for a part of a problem and their height, found with one part in `share` of the budget.
pub(crate) fn pack_part(
    problem: &Problem,
    good_enough: u64,
    portfolio: Portfolio,
    share: u64,
    work: &mut Work,
) -> Option<(Vec<u64>, u64)> {
    let instance = Instance::new(problem);
    let units = work.left() / share;
    let mut share = work.part(if instance.items.len() <= ITEMS_MAX { units.min(PART_UNITS_MAX) } else { units });
    share.work.spend(INSTANCE_UNITS * problem.buffers.len());
    let goals = Goals { good_enough, least: good_enough, capacity: None, portfolio };
    let packed = pack(problem, &instance, goals, &mut share.work);
    work.spend_part(share);
    let (packing, _) = packed?;
    Some((instance.offsets(problem, &packing.offsets), packing.height))
}
