//! [`place`]: offsets for a problem, and the [`Certificate`] that says how good they are.
//!
//! A placement packs rectangles: time runs to the right, bytes upwards, each buffer may move up and down only. The
//! height of the pile is the arena.
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
//! Here x goes first: all three can lie at 0, and it has the largest area, like z but before it. Now y can lie at 64
//! and z still at 0, so z is next, and y is last. Had y gone first, x and z would lie at 32 and the bytes under them be
//! lost.
//!
//! The lower bound (`bound.rs`) is computed first, and greedy passes run until one reaches it or all have run. Each
//! pass starts from an empty arena, takes the items (buffers with a free offset that occupy some byte at some step) one
//! after the other, and never moves one again. A pass is given up as soon as one top is not below the best height so
//! far. The lowest height wins, the earliest pass of equal ones.
//!
//! **Skyline** (`skyline.rs`). The *floor* of a section of time is the highest top of what lies there; all below it is
//! lost. An item can lie at the highest floor under it (for each of its pieces: floor less the window's low end),
//! rounded up to its alignment and, if it meets a fixed buffer there, lifted over that, until it meets none. Always
//! place the item that can lie lowest; among several, the first in the order of priority. Then lift the floor under it
//! to its top. Holes appear only where the lowest item does not reach, and short items get a chance to fill a niche
//! before a long one covers it; this is why it beats orders that look at sizes alone. Looking at every item again
//! whenever the floor rises would cost most for long items in deep piles; `skyline.rs` goes from niche to niche
//! instead, in O(n) steps.
//!
//! **Fit** (`fit.rs`). Take the items strictly in the order of priority. Walk through what lies already and shares a
//! section with the item, by rising start; between the highest top seen so far and the next start may be a hole. First
//! fit takes the lowest hole that is large enough (after alignment), best fit the smallest; without one, the item goes
//! on top. Here an item with gaps counts as whole from its first step to its last; the gaps of fixed buffers are used.
//! One walk is O(n), a pass O(n²) with a very small constant; one that would take too large a share of the work is left
//! out.
//!
//! **By need** (`need.rs`). The same, but which item fills a niche is not for the order alone to say. Every section has
//! a *need*: the bytes that live in it and those that lie wasted in it so far, so the height it will come to if nothing
//! more is wasted. In the niche the section with the greatest need is looked for, and of the items that lie within the
//! niche those over this section go first. Most problems are tight in few sections, at other ones there is slack to
//! lose.
//!
//! **Glue** (`glue.rs`). Where hardly any section has slack, what ends and begins at one time tells which items lie side
//! by side and upon each other. They become blocks, and the portfolio and the search run on the few that are left.
//!
//! **Crest** (`crest.rs`). The items that live where there are most bytes, the *crest*, are placed first, by
//! themselves; then the others are placed around them. Both are problems to which all of this applies again. Three
//! crests are tried, of 2500 items, or half of them all, and of a half and a quarter of that; the others are placed
//! around each that comes out low enough, until one of those is good enough, or around the lowest if none does.
//!
//! **Stack** (`stack.rs`). What lives at the fullest step is stacked so that nothing is wasted there and the free bytes
//! before it and behind it are stairs; a skyline goes on from these.
//!
//! **Tiers** (`tiers.rs`). What could not be glued and is large or lives long is placed by itself, again and again, and
//! what is small is poured in between.
//!
//! **Windows** (`windows.rs`). Where there are too many items for a search, what lies too high in the best packing is
//! placed anew together with what lies beside it in time, by skylines and a search over some hundred items.
//!
//! **Repair** (`repair.rs`). Where there are too many items for a search, skylines by need run again, with more need
//! from the start in those sections that came out too high, as long as that helps.
//!
//! **Search** (`exact.rs`, `search.rs`). What is left between the lowest pass and the bound goes, up to some
//! thousand items, to an exact search, height by height, until the least is found and proved or the work is spent.
//!
//! **Orders** (`handful.rs`). Of a dozen items and fewer, every order is tried, as far as it can still come to
//! something.
//!
//! **Small and many.** With a search to come (up to 3000 items) the passes are: skyline by area, glue, by need, the
//! other skylines, fits, windows where there are some hundred items, then a short search, crests, and the search again.
//! With more items: skyline by area, glue, by need, crests, windows, stack, the other skylines with windows in between,
//! fits, then repair, then windows with all that is left. Where glue comes out at half of what the first skyline is
//! above the goal, or lower, all else is left out: it does not come near. Blocks that are left of glue have tiers behind
//! the skylines, or behind those by area and by need where they are many.
//!
//! What a pass or a search may cost is counted in visits ([`Limits`]), never in seconds, so that every machine gives
//! the same answer.

use types::{Bytes, Certificate, EntityId};

use crate::bound::exact_bound;
use crate::crest::Crest;
use crate::exact::{ITEMS_MAX, improve};
use crate::fit::{Rule, fit, fit_units};
use crate::glue::{Guess, N_WAYS, Network};
use crate::handful::{HANDFUL, least};
use crate::instance::{Instance, Priority, Work};
use crate::problem::{Problem, ProblemError};
use crate::repair::repair;
use crate::skyline::skyline;
use crate::stack::Halves;
use crate::tiers::tiers;
use crate::windows::lower_tops;

/// How much may be spent on one problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The budget in visits of a node of a tree, or of eight slots in a row: some nanoseconds each.
    ///
    /// From some thousand buffers on, where greedy passes do what they can do with less, the usual budget
    /// ([`Limits::default`]) means some six hundred visits for each buffer, four hundred beyond the first hundred
    /// thousand, and a larger one more in proportion.
    ///
    /// The first pass runs to its end whatever this says, so that there is a placement; zero means that pass only.
    pub work: u64,
    /// When to stop before that.
    pub aim: Aim,
}

/// What is good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// The least height, with a proof that it is.
    Least,
    /// Any height within the problem's capacity; the least where it has none.
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

/// Why there is no placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The problem contradicts itself.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Nothing fits, whatever the planner does.
    #[error(
        "the arena needs at least `{}` bytes at step `{step}`, the limit is `{}` bytes",
        need.0, limit.0
    )]
    DoesNotFit {
        /// The problem's capacity.
        limit: Bytes,
        /// The lower bound.
        need: Bytes,
        /// The step that shows it.
        step: u32,
    },
    /// Nothing fits, as a search has found.
    #[error(
        "no placement fits into `{}` bytes: the lower bound is `{}` bytes, but a search has ruled out all below `{}` bytes",
        limit.0, lower_bound.0, least.0
    )]
    RuledOut {
        /// The problem's capacity.
        limit: Bytes,
        /// The lower bound.
        lower_bound: Bytes,
        /// What no placement can go below.
        least: Bytes,
    },
    /// The best placement found is too high; a better one is not ruled out.
    #[error(
        "the best placement found needs `{}` bytes, the limit is `{}` bytes; the lower bound is `{}` bytes",
        need.0, limit.0, lower_bound.0
    )]
    NotFound {
        /// The problem's capacity.
        limit: Bytes,
        /// The least height found.
        need: Bytes,
        /// What no placement can go below.
        lower_bound: Bytes,
    },
    /// No placement was found whose every end has a 64-bit address.
    #[error("no placement found below 2^64 bytes; the lower bound is `{}` bytes", lower_bound.0)]
    Overflow {
        /// What no placement can go below; `u64::MAX` if it is more than that.
        lower_bound: Bytes,
    },
}

/// Gives every buffer an offset, and the arena the least height that greedy passes and a search find.
///
/// Where buffers have hints, a pass of first fit in the order of the hints comes first; on problems too large for its
/// n² it is left out. If the hints are a valid placement and no buffer has gaps, no buffer then lies above its hint:
/// all that was placed before and shares a section with it had a lower hint, so it ends at or below this one. Of
/// equally low placements this one wins.
///
/// Deterministic. Refuses: what [`Problem::verify`] refuses; a need above the capacity.
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
        part: Part::Whole,
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

/// What may be spent on so many items. Up to [`ITEMS_MAX`] an exact search can use all of it. For more, what greedy
/// passes and windows can use grows with the number of items; a larger or smaller budget than usual buys more or less
/// of it.
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
    /// Enough for the whole portfolio on several thousand buffers; some seconds at most on a usual machine.
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

/// One pass of the portfolio.
#[derive(Clone, Copy)]
enum Pass {
    Skyline(Fill, Priority),
    Fit(Rule, Priority),
    Glue,
    /// Windows in the lowest packing so far; see `windows.rs`.
    Windows,
    /// First the items over the fullest sections; see `crest.rs`.
    Crests,
    /// First what lives at the fullest step.
    Stack,
    /// First what is large; see `tiers.rs`.
    Tiers,
}

/// Which item a niche takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// The first in order.
    InOrder,
    /// The first over the section that needs most.
    ByNeed,
}

/// The last search has all that is left of the work for so many items, and with more of them in proportion less: it
/// hardly ever ends there.
const SEARCH_ITEMS: u64 = 500;
/// So many units are usually spent on each item, so many on each beyond the first ones, or this many on all, where there
/// are too many for an exact search.
const ITEM_UNITS: u64 = 680;
const FIRST_ITEMS: u64 = 100_000;
const FURTHER_ITEM_UNITS: u64 = 400;
const LARGE_UNITS: u64 = 9_000_000;
/// Windows may take one part in this many of what is left of the work as long as other passes are to come.
const WINDOWS_SHARE: u64 = 8;
/// Windows are for so many items at least.
const WINDOWS_ITEMS: usize = 640;
/// Gluing leaves this much for each item, up to a limit, to place what is glued; that may take half of what is left if
/// it is more.
const GLUE_UNITS: u64 = 200;
const GLUE_UNITS_MAX: u64 = 200_000_000;
/// Where what is glued comes out above what is good enough by one part in so many of it, that is near enough.
const GLUE_ENOUGH: u64 = 1000;
/// Where it comes out at one part in so many of what the first skyline is above that, what knows nothing of glue is left
/// out, many items given: it does not come near.
const GLUE_FAR: u64 = 2;
/// What it costs for each item to put them in order, and to make an instance of a part.
const ORDER_UNITS: usize = 10;
const INSTANCE_UNITS: usize = 30;
/// A skyline by need costs about so many quarters of one in order.
const NEED_QUARTERS: u64 = 11;
/// Work for the orders of a handful of items.
const HANDFUL_UNITS: u64 = 20_000_000;
/// A search takes one part in this many of what is left of the work before crests are tried.
const SEARCH_SHARE: u64 = 8;
/// Crests of these sizes may be tried: one part in so many of the largest.
const CREST_DIVISORS: [usize; 3] = [1, 2, 4];
/// Each may take one part in this many of what is left of the work, and then what is laid around one as well; few items
/// not more than a limit.
const CREST_SHARE: u64 = 8;
const CREST_UNITS_MAX: u64 = 10_000_000;
/// A crest is left out where less than this is left for each item.
const CREST_ITEM_UNITS: u64 = 50;
/// Of more items none are stacked: upon so many steps of a stair what lives long lies on what is ragged.
const STACK_ITEMS: usize = 300_000;
/// A fit pass that may cost more than one part in this many of what is left of the work is left out.
const FIT_SHARE: u64 = 16;
/// The pass of the hints may always cost this: some ten thousand items.
const HINT_UNITS: u64 = 1 << 23;

/// Those first that reach most for their cost. Area alone is enough for most orders of real networks; those by need win
/// where much is tight, and by peak and by first step on small problems without slack; the fits are for what the
/// skylines waste below long items.
const PORTFOLIO: [Pass; 21] = [
    Pass::Skyline(Fill::InOrder, Priority::Area),
    Pass::Glue,
    Pass::Skyline(Fill::ByNeed, Priority::PeakWidth),
    Pass::Skyline(Fill::ByNeed, Priority::Size),
    Pass::Skyline(Fill::ByNeed, Priority::First),
    Pass::Skyline(Fill::ByNeed, Priority::Area),
    Pass::Skyline(Fill::InOrder, Priority::Size),
    Pass::Skyline(Fill::InOrder, Priority::PeakWidth),
    Pass::Skyline(Fill::InOrder, Priority::First),
    Pass::Skyline(Fill::InOrder, Priority::PeakArea),
    Pass::Skyline(Fill::InOrder, Priority::Width),
    Pass::Skyline(Fill::InOrder, Priority::Padding),
    Pass::Tiers,
    Pass::Fit(Rule::Best, Priority::Size),
    Pass::Fit(Rule::First, Priority::Size),
    Pass::Fit(Rule::Best, Priority::Area),
    Pass::Fit(Rule::First, Priority::Area),
    Pass::Fit(Rule::Best, Priority::Width),
    Pass::Fit(Rule::First, Priority::Width),
    Pass::Fit(Rule::Best, Priority::First),
    Pass::Windows,
];

/// The same where there are too many items for an exact search. Windows often do the rest.
const PORTFOLIO_OF_MANY: [Pass; 23] = [
    Pass::Skyline(Fill::InOrder, Priority::Area),
    Pass::Glue,
    Pass::Skyline(Fill::ByNeed, Priority::PeakWidth),
    Pass::Tiers,
    Pass::Crests,
    Pass::Windows,
    Pass::Stack,
    Pass::Skyline(Fill::InOrder, Priority::First),
    Pass::Windows,
    Pass::Skyline(Fill::ByNeed, Priority::First),
    Pass::Skyline(Fill::ByNeed, Priority::Area),
    Pass::Skyline(Fill::InOrder, Priority::PeakWidth),
    Pass::Skyline(Fill::InOrder, Priority::PeakArea),
    Pass::Skyline(Fill::InOrder, Priority::Width),
    Pass::Windows,
    Pass::Skyline(Fill::InOrder, Priority::Padding),
    Pass::Fit(Rule::Best, Priority::Size),
    Pass::Fit(Rule::First, Priority::Size),
    Pass::Fit(Rule::Best, Priority::Area),
    Pass::Fit(Rule::First, Priority::Area),
    Pass::Fit(Rule::Best, Priority::Width),
    Pass::Fit(Rule::First, Priority::Width),
    Pass::Fit(Rule::Best, Priority::First),
];

/// The same for what a crest left.
const PORTFOLIO_OF_REST: [Pass; 3] =
    [Pass::Skyline(Fill::InOrder, Priority::Area), Pass::Skyline(Fill::ByNeed, Priority::PeakWidth), Pass::Windows];

/// The same for what a stack left.
const PORTFOLIO_OF_HALVES: [Pass; 3] =
    [Pass::Skyline(Fill::ByNeed, Priority::PeakWidth), Pass::Skyline(Fill::InOrder, Priority::Area), Pass::Windows];

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

/// How low is low enough, and what is known already.
#[derive(Clone, Copy)]
struct Goals {
    /// A height that ends all efforts.
    good_enough: u64,
    /// No placement is lower than this.
    least: u64,
    /// The capacity, where nothing below it is wanted.
    capacity: Option<u64>,
    /// Of what the items are a part.
    part: Part,
}

/// What items are of the problem that was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All of it.
    Whole,
    /// What was glued, as far as it could be.
    Glued,
    /// A range of that.
    Range,
    /// A crest.
    Crest,
    /// What is to be laid around a crest.
    Rest,
    /// What is to be laid beside a stack.
    Halves,
}

impl Goals {
    /// Whether a height leaves nothing to look for.
    fn are_settled(&self, height: u64) -> bool {
        height <= self.good_enough.max(self.least) || self.capacity.is_some_and(|capacity| capacity < self.least)
    }
}

/// The lowest packing that all passes and searches find, and what no packing can go below.
fn pack(problem: &Problem, instance: &Instance, goals: Goals, work: &mut Work) -> Option<(Packing, u64)> {
    let mut goals = goals;
    let Reached { packing: mut best, is_glued } = run_portfolio(problem, instance, goals, work)?;
    if ITEMS_MAX < instance.items.len() {
        if goals.good_enough < best.height && !is_glued {
            best = repair(instance, best, goals.good_enough, work);
            best = lower_tops(instance, &best, goals.good_enough, work).unwrap_or(best);
        }
        return Some((best, goals.least));
    }
    if instance.items.len() <= HANDFUL && !goals.are_settled(best.height) {
        let (lowest, all) = by_orders(instance, best, &mut goals, work);
        best = lowest;
        if all || goals.are_settled(best.height) {
            return Some((best, goals.least));
        }
    }
    let mut part = work.part(work.left() / SEARCH_SHARE);
    best = search(instance, best, &mut goals, &mut part.work);
    work.spend_part(part);
    if !goals.are_settled(best.height) && !work.is_spent() {
        best = run_crests(problem, instance, goals.good_enough, best.height - 1, work).unwrap_or(best);
    }
    let n_items = (instance.items.len() as u64).max(SEARCH_ITEMS);
    let mut part = work.part((u128::from(work.left()) * u128::from(SEARCH_ITEMS) / u128::from(n_items)) as u64);
    best = search(instance, best, &mut goals, &mut part.work);
    work.spend_part(part);
    Some((best, goals.least))
}

/// The same packing or a lower one by trying the orders of a handful of items, and whether all of them were tried.
fn by_orders(instance: &Instance, best: Packing, goals: &mut Goals, work: &mut Work) -> (Packing, bool) {
    let enough = goals.capacity.unwrap_or(0).max(goals.good_enough).max(goals.least);
    let mut part = work.part(HANDFUL_UNITS);
    let orders = least(instance, best.height, enough, &mut part.work);
    work.spend_part(part);
    let best = orders.found.map_or(best, |(offsets, height)| Packing { offsets, height });
    if orders.proves && enough < best.height {
        goals.least = best.height;
    }
    (best, orders.all)
}

/// The same packing or a lower one, and what is ruled out on the way.
fn search(instance: &Instance, best: Packing, goals: &mut Goals, work: &mut Work) -> Packing {
    if goals.are_settled(best.height) {
        return best;
    }
    let improvement = improve(instance, best.height, goals.least, goals.capacity, work);
    goals.least = improvement.least;
    improvement.found.map_or(best, |(offsets, height)| Packing { offsets, height })
}

/// What a portfolio came to.
struct Reached {
    packing: Packing,
    /// Whether gluing came so much lower than all else that the rest was left out.
    is_glued: bool,
}

/// The lowest packing of the portfolio, or the first not above `good_enough`; `None` if no pass stays below 2^64.
///
/// Orders that have been tried are passed over, and what cannot be paid as the last pass was.
fn run_portfolio(problem: &Problem, instance: &Instance, goals: Goals, work: &mut Work) -> Option<Reached> {
    let Goals { good_enough, part, .. } = goals;
    let mut best: Option<Packing> = None;
    let mut tried: Vec<(Fill, Vec<u32>)> = Vec::new();
    let mut pass_units = 0;
    let hinted = instance.has_hints().then_some(Pass::Fit(Rule::First, Priority::Hint));
    let portfolio: &[Pass] = match instance.items.len() {
        ..=ITEMS_MAX => &PORTFOLIO,
        _ if part == Part::Rest => &PORTFOLIO_OF_REST,
        _ if part == Part::Halves => &PORTFOLIO_OF_HALVES,
        _ => &PORTFOLIO_OF_MANY,
    };
    // The height that windows did not lower.
    let mut settled = None;
    for pass in hinted.into_iter().chain(portfolio.iter().copied()) {
        let order = match pass {
            // What is cheaper than a skyline may still be tried.
            Pass::Skyline(Fill::InOrder, _) | Pass::Glue if best.is_some() && work.left() < pass_units => continue,
            Pass::Skyline(Fill::ByNeed, _) if work.left() < pass_units.saturating_mul(NEED_QUARTERS) / 4 => continue,
            Pass::Fit(..) if affordable(&best, work) < fit_units(instance.items.len()) => continue,
            Pass::Fit(_, priority) | Pass::Skyline(_, priority) => instance.order(priority),
            Pass::Glue if matches!(part, Part::Glued | Part::Range) => continue,
            Pass::Tiers if part != Part::Glued => continue,
            // What a stack leaves free is no good for what is to be laid around it and more.
            Pass::Stack
                if matches!(part, Part::Crest | Part::Rest | Part::Halves | Part::Range)
                    || STACK_ITEMS < instance.items.len() =>
            {
                continue;
            }
            Pass::Stack if work.left() < pass_units || Network::new(instance).is_some() => continue,
            // Of fewer items a search sees hardly more than a window does.
            Pass::Windows if instance.items.len() < WINDOWS_ITEMS => continue,
            Pass::Windows if settled == best.as_ref().map(|best| best.height) => continue,
            Pass::Glue | Pass::Windows | Pass::Crests | Pass::Stack | Pass::Tiers => Vec::new(),
        };
        if best.is_some() {
            work.spend(ORDER_UNITS * order.len());
        }
        if let Pass::Skyline(fill, _) = pass {
            if tried.iter().any(|(other, tried)| *other == fill && *tried == order) {
                continue;
            }
            tried.push((fill, order.clone()));
        }
        // `good_enough < height` holds for the best so far, so there is room for one less.
        let limit = best.as_ref().map_or(u64::MAX, |best| best.height - 1);
        let found = match (pass, &best) {
            (Pass::Windows, Some(low)) => {
                let mut part = work.part(work.left() / WINDOWS_SHARE);
                let found = lower_tops(instance, low, good_enough, &mut part.work);
                work.spend_part(part);
                settled = Some(found.as_ref().map_or(low.height, |found| found.height));
                found
            }
            (Pass::Crests, _) => run_crests(problem, instance, good_enough, limit, work),
            (Pass::Tiers, _) => {
                let mut part = work.part(work.left() / 4 * 3);
                let found = tiers(instance, good_enough, limit, &mut part.work);
                work.spend_part(part);
                found
            }
            (Pass::Stack, _) => run_stack(instance, good_enough, work).filter(|found| found.height <= limit),
            (Pass::Glue, _) => run_glued(instance, good_enough, limit, work),
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
        let above = |packing: &Packing| packing.height.saturating_sub(good_enough);
        let is_glued = matches!(pass, Pass::Glue)
            && ITEMS_MAX < instance.items.len()
            && best.as_ref().is_some_and(|best| above(&found) <= above(best) / GLUE_FAR);
        if is_glued || found.height <= good_enough {
            return Some(Reached { packing: found, is_glued });
        }
        best = Some(found);
    }
    best.map(|packing| Reached { packing, is_glued: false })
}

/// What a fit pass may cost. That of the hints, which comes first, may cost something whatever the budget is.
fn affordable(best: &Option<Packing>, work: &Work) -> u64 {
    let share = work.left() / FIT_SHARE;
    if best.is_none() { share.max(HINT_UNITS) } else { share }
}

fn run_pass(instance: &Instance, pass: Pass, order: &[u32], limit: u64, work: &mut Work) -> Option<Packing> {
    let offsets = match pass {
        Pass::Skyline(Fill::InOrder, _) => skyline(instance, order, None, limit, work),
        Pass::Skyline(Fill::ByNeed, _) => skyline(instance, order, Some(instance.need()), limit, work),
        Pass::Fit(rule, _) => fit(instance, rule, order, limit, work),
        _ => unreachable!("this is no pass over items in an order"),
    }?;
    let packing = Packing::new(instance, offsets);
    debug_assert!(packing.height <= limit);
    Some(packing)
}

/// The items glued to blocks, and those placed by all that is known here: few blocks by a search as well. Where that is
/// not low enough, more is glued and placed.
fn run_glued(instance: &Instance, good_enough: u64, limit: u64, work: &mut Work) -> Option<Packing> {
    let whole = Network::new(instance)?;
    let mut best: Option<Packing> = None;
    let reserve = (GLUE_UNITS * instance.items.len() as u64).min(GLUE_UNITS_MAX);
    // What the first way had for gluing; another one that has less comes to nothing.
    let mut needed = 0;
    for way in 0..N_WAYS {
        if work.left() < needed {
            break;
        }
        let left = work.left();
        let mut network = whole.clone();
        for guess in [Guess::Some, Guess::All] {
            let mut part = work.part(work.left().saturating_sub(reserve));
            let is_less = network.reduce(way, guess, &mut place_range, &mut part.work);
            work.spend_part(part);
            needed = needed.max(left - work.left() + reserve);
            if !is_less {
                break;
            }
            let glued = network.glued();
            let blocks = Instance::new(&glued.problem);
            let mut part = work.part(reserve.max(work.left() / 2).min(GLUE_UNITS_MAX));
            let goals = Goals { good_enough, least: good_enough, capacity: None, part: Part::Glued };
            let packed = pack(&glued.problem, &blocks, goals, &mut part.work);
            work.spend_part(part);
            let packing = Packing::new(instance, network.offsets(&glued, &packed?.0.offsets)?);
            best = best.into_iter().chain([packing]).min_by_key(|packing| packing.height);
            if best.as_ref().is_some_and(|best| best.height - good_enough <= good_enough / GLUE_ENOUGH) {
                return best.filter(|packing| packing.height <= limit);
            }
        }
    }
    best.filter(|packing| packing.height <= limit)
}

/// Offsets for some blocks.
fn place_range(problem: &Problem, height: u64, work: &mut Work) -> Option<Vec<u64>> {
    let part = Instance::new(problem);
    let goals = Goals { good_enough: height, least: height, capacity: None, part: Part::Range };
    let (packing, _) = pack(problem, &part, goals, work)?;
    Some(part.offsets(problem, &packing.offsets))
}

/// Crests placed by themselves, by all that is known here, and the others around each that comes out low enough, or
/// else around that which comes out lowest.
fn run_crests(
    problem: &Problem,
    instance: &Instance,
    good_enough: u64,
    limit: u64,
    work: &mut Work,
) -> Option<Packing> {
    let mut best: Option<Packing> = None;
    let mut lowest: Option<(u64, Problem)> = None;
    let around = |rest: &Problem, height: u64, work: &mut Work| {
        let (offsets, _) = pack_part(rest, good_enough.max(height), Part::Rest, work)?;
        Some(Packing::new(instance, instance.items.iter().map(|item| offsets[item.buffer.index()]).collect()))
    };
    for divisor in CREST_DIVISORS {
        if work.left() < CREST_ITEM_UNITS * instance.items.len() as u64 {
            break;
        }
        let Some(crest) = Crest::new(problem, instance, divisor) else { break };
        let Some((offsets, height)) = pack_part(&crest.problem, good_enough, Part::Crest, work) else { break };
        let rest = crest.fixed_in(problem, &offsets);
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

fn run_stack(instance: &Instance, good_enough: u64, work: &mut Work) -> Option<Packing> {
    let halves = Halves::new(instance)?;
    let (offsets, _) = pack_part(&halves.problem, good_enough, Part::Halves, work)?;
    Some(Packing::new(instance, halves.offsets(instance, &offsets)?))
}

/// Offsets by buffer for a part of a problem and their height, found with a share of the work.
fn pack_part(problem: &Problem, good_enough: u64, part: Part, work: &mut Work) -> Option<(Vec<u64>, u64)> {
    let instance = Instance::new(problem);
    let units = work.left() / CREST_SHARE;
    let mut share = work.part(if instance.items.len() <= ITEMS_MAX { units.min(CREST_UNITS_MAX) } else { units });
    share.work.spend(INSTANCE_UNITS * problem.buffers.len());
    let goals = Goals { good_enough, least: good_enough, capacity: None, part };
    let packed = pack(problem, &instance, goals, &mut share.work);
    work.spend_part(share);
    let (packing, _) = packed?;
    Some((instance.offsets(problem, &packing.offsets), packing.height))
}
