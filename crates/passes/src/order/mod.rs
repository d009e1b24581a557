//! The order of execution with the least peak of live bytes, and its optimality certificate.
//!
//! Tasks and blocks only, no graph. [`least_peak`] finds an [`Order`] and is deterministic.
//!
//! | file | content |
//! | --- | --- |
//! | `problem` | the question, and the judge of answers |
//! | `instance` | the question, laid out for speed |
//! | `cut`, `bound` | the lower bound over all orders |
//! | `walk`, `search` | the exact search, and why it is exact |
//! | `beam` | good orders without a proof |
//! | `window` | improvement of an order around its peak, part by part |
//! | `uncross` | improvement of an order along its whole length, by minimum cuts |

mod beam;
mod bound;
mod cut;
mod instance;
mod problem;
mod search;
mod uncross;
mod walk;
mod window;

use types::{Bytes, Certificate, EntityId};

use cut::Cut;
use instance::{Instance, Position};
pub use problem::{Block, BlockId, Task, TaskId, Tasks};
use search::{Budget, End};

/// An order with its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The tasks as they run.
    pub order: Vec<TaskId>,
    /// The most bytes alive at once, with their lower bounds over all orders.
    pub certificate: Certificate,
    /// The work spent.
    pub effort: Effort,
}

/// How much was done to find an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// States that the search reached.
    pub states: usize,
    /// Task effects that the search evaluated.
    pub search_work: u64,
    /// Blocks and channels that minimum cuts looked at.
    pub bound_work: u64,
}

/// How much may be done to find an order. Counted in work and not in time, so that the answer is the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderLimits {
    /// States of the search.
    pub states: usize,
    /// Words of memory for the states' sets.
    pub words: usize,
    /// Task effects that the search may evaluate.
    pub search_work: u64,
    /// Task effects that each beam may evaluate.
    pub beam_work: u64,
    /// Blocks and channels that minimum cuts, in the improvement of orders, may look at.
    pub uncross_work: u64,
    /// Tasks that the improvement by windows may look at.
    pub window_work: u64,
    /// Blocks and channels that minimum cuts, in the bound by single tasks and in the search, may look at.
    pub bound_work: u64,
    /// The same for the bound by sets of tasks.
    pub set_work: u64,
}

impl OrderLimits {
    /// Limits for which the time of large problems grows less than in proportion to the number of tasks. A state of the beam
    /// or of the exact search costs more the more tasks there are, and the exact search ends for few problems of more than
    /// some hundred tasks: their work falls with the square of the number.
    pub fn for_tasks(count: usize) -> OrderLimits {
        let n_tasks = count.max(1) as u64;
        let shared = |work: u64, least: u64, most: u64| (work / n_tasks).clamp(least, most);
        let each = |work: u64, least: u64, most: u64| (work * n_tasks).clamp(least, most);
        OrderLimits {
            states: 1 << 15,
            words: 1 << 23,
            search_work: shared(200_000_000_000 / n_tasks, 100_000, 10_000_000),
            beam_work: shared(1_000_000_000_000 / n_tasks, 200_000, 10_000_000),
            uncross_work: each(2_500, 1_000_000, 50_000_000),
            window_work: each(350, 350_000, 10_000_000),
            bound_work: each(2_000, 4_000_000, 64_000_000),
            set_work: shared(2_500_000_000, 500_000, 10_000_000),
        }
    }
}

impl Default for OrderLimits {
    /// Some seconds, whatever the number of tasks.
    fn default() -> OrderLimits {
        OrderLimits {
            search_work: 10_000_000,
            beam_work: 10_000_000,
            uncross_work: 10_000_000,
            window_work: 5_000_000,
            bound_work: 8_000_000,
            set_work: 8_000_000,
            ..OrderLimits::for_tasks(1000)
        }
    }
}

/// Finds the order with the least peak; the given order if it is equally good.
pub fn least_peak(tasks: &Tasks, limits: OrderLimits) -> Order {
    let instance = Instance::new(tasks);
    let given: Vec<Position> = (0..instance.len()).collect();
    let mut best = Best { peak: instance.peak(&given), order: given.clone() };
    let greedy = beam::greedy(&instance);
    best.offer(&instance, &greedy);
    let mut cut = Cut::new(limits.bound_work);
    let lower_bound = bound::over_all_orders(&instance, &[&given, &greedy], best.peak, &mut cut);
    best.improve(&instance, lower_bound, limits);
    let lower_bound = bound::by_sets(&instance, &best.order, lower_bound, best.peak, limits.set_work);
    let mut is_searched = false;
    let mut effort = Effort::default();
    if lower_bound < best.peak {
        let budget = Budget { states: limits.states, words: limits.words, work: limits.search_work };
        let (end, spent) = search::least_below(&instance, best.peak, lower_bound, budget, &mut cut);
        (effort.states, effort.search_work) = (spent.states, spent.work);
        match end {
            End::Found(order) => {
                best.offer(&instance, &order);
                is_searched = true;
            }
            End::Exhausted => is_searched = true,
            End::GivenUp => {}
        }
    }
    effort.bound_work = limits.bound_work - cut.budget;
    let least = if is_searched { best.peak } else { lower_bound };
    let certificate = Certificate { value: Bytes(best.peak), lower_bound: Bytes(lower_bound), least: Bytes(least) };
    Order { order: best.order.into_iter().map(TaskId::from_index).collect(), certificate, effort }
}

/// Finds an order with a low peak, in less time than [`least_peak`] as nothing is proved; `start` if none is lower. `bound` is a
/// lower bound on the peak of every order: the search ends there.
pub fn good_order(tasks: &Tasks, start: &[TaskId], bound: Bytes, limits: OrderLimits) -> Vec<TaskId> {
    let instance = Instance::new(tasks);
    let start: Vec<Position> = start.iter().map(|task| task.index()).collect();
    let mut best = Best { peak: instance.peak(&start), order: start };
    best.offer(&instance, &beam::greedy(&instance));
    best.improve(&instance, bound.0, limits);
    best.order.into_iter().map(TaskId::from_index).collect()
}

/// A bound on the peak of every order, alone. It is the less sharp the less may be done.
pub fn lower_bound(tasks: &Tasks, limits: OrderLimits) -> Bytes {
    let instance = Instance::new(tasks);
    let given: Vec<Position> = (0..instance.len()).collect();
    let mut cut = Cut::new(limits.bound_work);
    Bytes(bound::over_all_orders(&instance, &[&given], instance.peak(&given), &mut cut))
}

/// The peak of a valid order: [`Tasks::peak`] in less time.
pub fn peak(tasks: &Tasks, order: &[TaskId]) -> Bytes {
    let order: Vec<Position> = order.iter().map(|task| task.index()).collect();
    Bytes(Instance::new(tasks).peak(&order))
}

/// Tasks up to which a wide beam over all of them finds orders that windows and minimum cuts do not.
const WIDE_BEAM_TASKS: usize = 500;

struct Best {
    order: Vec<Position>,
    peak: u64,
}

impl Best {
    fn offer(&mut self, instance: &Instance, order: &[Position]) {
        let peak = instance.peak(order);
        if peak < self.peak {
            *self = Best { order: order.to_vec(), peak };
        }
    }

    /// Lowers the peak by beams, windows and minimum cuts, as far as the work allows. Nothing is left to do at `bound`.
    fn improve(&mut self, instance: &Instance, bound: u64, limits: OrderLimits) {
        let widths = if instance.len() <= WIDE_BEAM_TASKS { &[1, 16][..] } else { &[1] };
        for &width in widths {
            if bound < self.peak
                && let Some(order) = beam::beam(instance, width, self.peak, bound, &mut limits.beam_work.clone())
            {
                self.offer(instance, &order);
            }
        }
        // Minimum cuts move tasks along the whole order, windows around its peak.
        if bound < self.peak {
            let mut order = self.order.clone();
            uncross::improve(instance, &mut order, bound, limits.uncross_work);
            window::improve(instance, &mut order, bound, limits.window_work);
            self.offer(instance, &order);
        }
    }
}
