//! [`best`]: the plan for a goal, found by raising the price of bytes where memory is full.
//!
//! Layouts with their padding and relayouts, algorithms and their workspaces are all chosen by cost, and the cost of a
//! candidate is its time and the price of the bytes that it keeps at each step ([`passes::Prices`]). Without prices this
//! is the fastest plan. Each round doubles the price at the steps where the last choice has the most live bytes, and chooses
//! everything again. So the rounds walk from the fastest choice towards the smallest one and spend time only where it saves
//! bytes at the peak. The goal picks one of the choices on the way:
//!
//! ```text
//! time       the first
//! balanced   the fewest bytes among those within 2 % of the least modelled time
//! memory     the fewest bytes, then the least time
//! budget     the least time among those that fit
//! ```
//!
//! The rounds compare live bytes in one order of the nodes. The finalists are placed, and the best is ordered again for the
//! least peak of its own values. The number of rounds bounds the work; there is no clock.

use std::rc::Rc;

use arena::{Aim, Limits, Placement, Problem};
use ir::{Graph, Target, UNLIMITED};
use lower::Selection;
use passes::{Known, Priced, Prices, Stage};
use types::{Bytes, Certificate, EntityId, Proof};

use crate::alternatives::alternatives;
use crate::squeeze::squeezed;
use crate::{
    BudgetChanges, CompileError, Compiled, DRAFT_LIMITS, Goal, Optimize, PLACE_LIMITS, Scheduled, finish,
    in_least_peak, place, schedule,
};

/// A modelled time of 2 % more is traded for bytes.
const BALANCED_TIME: (u64, u64) = (51, 50);
/// Steps whose live bytes are within this part of the peak are full.
pub(crate) const FULL: u64 = 32;
/// The first price of a full step: this part of the price at which all bytes of the peak cost as much as all of the time.
const FIRST_PRICE: u64 = 256;
/// Rounds at most, and nodes of all rounds together at most. With fewer rounds prices rise faster.
const ROUNDS: usize = 32;
const ROUND_NODES: usize = 12_000;
/// All the work of the placer without a budget: bytes are all that matters for `memory`, and the time of compilation matters too for
/// `balanced`.
const BALANCED_LIMITS: Limits = Limits { work: 6_000_000, aim: Aim::Least };
const MEMORY_LIMITS: Limits = Limits { work: 15_000_000, aim: Aim::Least };
/// All the work of the placer lowers the arena of a draft by less than this part.
const DRAFT_GAIN: u64 = 8;
/// Less work, after which a plan that is only compared with the best one is mostly given up: all the work lowers its arena
/// further by less than this part.
const TRIAL_LIMITS: Limits = Limits { work: 2_500_000, aim: Aim::Least };
const TRIAL_GAIN: u64 = 32;
/// An order of its own lowers the arena of a finalist by less than this part.
const ORDER_GAIN: u64 = 32;
/// Choices that are placed.
const FINALISTS: usize = 3;
/// Price steps without a change after which the rounds end; and those after which one round skips the remaining steps: if
/// nothing changes at the last of them, the rounds in between are not needed.
const UNCHANGED: u32 = 10;
const LOOK_AHEAD: u32 = 3;
/// A price that exceeds each difference in time.
pub(crate) const ANY_TIME: u64 = 1 << 30;

/// Everything that is chosen by cost, for some prices.
#[derive(Clone)]
pub(crate) struct Choice {
    /// The graph whose layouts were chosen, in the order in which live bytes were counted.
    source: Rc<Graph>,
    pub(crate) prices: Prices,
    pub(crate) graph: Graph,
    pub(crate) selection: Selection,
    /// By node of `graph`.
    live: Vec<u64>,
    pub(crate) peak: u64,
    pub(crate) time: u64,
}

impl Choice {
    pub(crate) fn new(source: &Rc<Graph>, target: &dyn Target, prices: Prices) -> Result<Choice, CompileError> {
        let graph = passes::run_stage(source, Stage::Layout, target, &prices, |_, _| {})?;
        let selection = Selection::new(&graph, &Priced::new(target, &prices, &graph))?;
        let live = selection.live_bytes(&graph, target)?;
        let (peak, time) = (live.iter().copied().max().unwrap_or(0), selection.time());
        Ok(Choice { source: source.clone(), prices, graph, selection, live, peak, time })
    }

    /// Prices of `2^doublings` times as much at the full steps.
    fn raised(&self, least: u64, doublings: u32) -> Prices {
        let mut prices = self.prices.clone();
        let full = self.peak - self.peak / FULL;
        for (_, node) in self.graph.nodes().iter().filter(|(id, _)| full <= self.live[id.index()]) {
            prices.raise(&node.scope, least, doublings);
        }
        prices
    }

    /// The plan in the order in which live bytes were counted, whose order is not proved. `None` if the lower bound of its
    /// arena is not wanted: the placer takes longer than the bound.
    fn in_order(&self, target: &dyn Target, is_wanted: impl Fn(Bytes) -> bool) -> Result<Option<Found>, CompileError> {
        let problem = lower::draft_plan(&self.graph, target, &self.selection)?.problem();
        if !is_wanted(arena::lower_bound(&problem).height) {
            return Ok(None);
        }
        let Choice { source, prices, graph, selection, .. } = self.clone();
        let order = Certificate { value: Bytes(self.peak), ..Certificate::default() };
        Ok(Some(Found::placed_as(source, prices, Scheduled { graph, selection, order }, &problem, target)?))
    }
}

/// A plan with the choice that it was made from. Its weights are not packed yet.
#[derive(Clone)]
struct Found {
    source: Rc<Graph>,
    prices: Prices,
    scheduled: Scheduled,
    /// The kernels that were scheduled, or faster ones in more workspace where it is free.
    kernels: Selection,
    placement: Placement,
    time: u64,
}

impl Found {
    fn placed(
        source: Rc<Graph>,
        prices: Prices,
        scheduled: Scheduled,
        target: &dyn Target,
    ) -> Result<Found, CompileError> {
        let problem = lower::draft_plan(&scheduled.graph, target, &scheduled.selection)?.problem();
        Found::placed_as(source, prices, scheduled, &problem, target)
    }

    /// `problem` has the buffers of the scheduled graph.
    fn placed_as(
        source: Rc<Graph>,
        prices: Prices,
        scheduled: Scheduled,
        problem: &Problem,
        target: &dyn Target,
    ) -> Result<Found, CompileError> {
        let (mut kernels, time) = (scheduled.selection.clone(), scheduled.selection.time());
        let mut placement = arena::place(problem, DRAFT_LIMITS)?;
        if let Some(split_k) = kernels.with_slack(&scheduled.graph, target)? {
            // The slack is only an estimate: keep the split-K plan only if the placed arena did not grow.
            let with_split_k = place(&scheduled.graph, target, &split_k, DRAFT_LIMITS)?;
            if with_split_k.certificate.value <= placement.certificate.value {
                (kernels, placement) = (split_k, with_split_k);
            }
        }
        Ok(Found { source, prices, scheduled, kernels, placement, time })
    }

    /// The plan with kernels of less workspace at the steps where the most bytes are live, if the arena is smaller then and the
    /// time stays within `limit`. The rounds compare the kernels that a target lists without a limit of workspace; with one,
    /// there may be smaller ones.
    fn squeezed(self, target: &dyn Target, limit: Option<u64>) -> Result<Found, CompileError> {
        let Scheduled { graph, selection, .. } = &self.scheduled;
        let Some((selection, peak)) = squeezed(graph, selection, target, limit)? else { return Ok(self) };
        let order = Certificate { value: peak, ..Certificate::default() };
        let scheduled = Scheduled { graph: graph.clone(), selection, order };
        let other = Found::placed(self.source.clone(), self.prices.clone(), scheduled, target)?;
        let arena = other.arena().0;
        if self.arena().0 <= arena - arena / ORDER_GAIN {
            return Ok(self);
        }
        let other = other.reordered(target)?;
        Ok(if other.arena() < self.arena() { other } else { self })
    }

    /// The same plan with more work of the placer.
    fn placed_within(mut self, limits: Limits, target: &dyn Target) -> Result<Found, CompileError> {
        if self.placement.certificate.proof() == Proof::Gap {
            let placement = place(&self.scheduled.graph, target, &self.kernels, limits)?;
            if placement.certificate.value <= self.arena() {
                self.placement = placement;
            }
        }
        Ok(self)
    }

    fn arena(&self) -> Bytes {
        self.placement.certificate.value
    }

    /// For these prices, in the order with the least peak.
    fn ordered(source: Rc<Graph>, target: &dyn Target, prices: Prices) -> Result<Found, CompileError> {
        let graph = passes::run_stage(&source, Stage::Layout, target, &prices, |_, _| {})?;
        let scheduled = schedule(&graph, &Priced::new(target, &prices, &graph), UNLIMITED, |_, _| {})?;
        Found::placed(source, prices, scheduled, target)
    }

    /// The same choice in the order with the least peak, if it is not larger; otherwise with the proof of that order, whose
    /// lower bounds hold for all.
    fn reordered(mut self, target: &dyn Target) -> Result<Found, CompileError> {
        let Scheduled { graph, selection, .. } = &self.scheduled;
        let scheduled = in_least_peak(graph, selection, target, |_, _| {})?;
        let other = Found::placed(self.source.clone(), self.prices.clone(), scheduled, target)?;
        if other.arena() <= self.arena() {
            return Ok(other);
        }
        self.scheduled.order = Certificate { value: self.scheduled.order.value, ..other.scheduled.order };
        Ok(self)
    }
}

/// The plan for a goal, apart from stripes: it may exceed a budget.
pub(crate) fn best(
    graph: &Graph,
    target: &dyn Target,
    goal: Goal,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<Best, CompileError> {
    let mut fastest = Found::ordered(Rc::new(graph.clone()), target, Prices::default())?;
    if goal.budget.is_some_and(|budget| budget < fastest.arena()) {
        fastest = fastest.placed_within(PLACE_LIMITS, target)?;
    }
    let (unlimited, least_time) = (fastest.arena(), fastest.time);
    let budget = goal.budget.filter(|&budget| budget < unlimited);
    let limits = match (goal.budget, goal.optimize) {
        (Some(_), _) | (None, Optimize::Time) => PLACE_LIMITS,
        (None, Optimize::Balanced) => BALANCED_LIMITS,
        (None, Optimize::Memory) => MEMORY_LIMITS,
    };
    // A target that models no time has nothing to trade.
    let is_done = least_time == 0 || (budget.is_none() && goal.optimize == Optimize::Time);
    let in_good_order = (!is_done).then(|| Rc::new(passes::in_good_order(graph).graph));
    // Most of the search is about this graph.
    let known = in_good_order.as_deref().map(|graph| Known::new(target, graph));
    let target = known.as_ref().map_or(target, |known| known);
    let found = match &in_good_order {
        None => fastest.placed_within(limits, target)?,
        Some(in_good_order) => {
            let found = traded(graph, in_good_order, target, Goal { budget, ..goal }, fastest.clone())?;
            // Changes of the fastest plan are only kept if they make it smaller.
            let is_fastest = Rc::ptr_eq(&found.source, &fastest.source) && found.arena() == fastest.arena();
            let found = found.placed_within(limits, target)?;
            // Drafts were compared: with all the work, the fastest plan may still need less.
            let may_be_less = |fastest: &Found, gain: u64| {
                let arena = fastest.arena().0;
                fastest.placement.certificate.least < found.arena() && arena - arena / gain < found.arena().0
            };
            let mut fastest = fastest;
            for (gain, limits) in [(DRAFT_GAIN, TRIAL_LIMITS), (TRIAL_GAIN, limits)] {
                if !is_fastest && may_be_less(&fastest, gain) {
                    fastest = fastest.placed_within(limits, target)?;
                }
            }
            if fastest.arena() < found.arena() { fastest } else { found }
        }
    };
    passes::run_stage(&found.source, Stage::Layout, target, &found.prices, &mut watch)?;
    watch("schedule", &found.scheduled.graph);
    let mut compiled = finish(&found.scheduled, target, &found.kernels, &found.placement)?;
    if least_time != 0 {
        let mut others = alternatives(&found.source, &found.prices, &found.scheduled.graph, &found.kernels, target)?;
        others.retain(|other| other.saves < compiled.plan.order.value);
        compiled.plan.alternatives = others;
    }
    compiled.fit = budget.map(|_| BudgetChanges {
        unlimited,
        regions: Vec::new(),
        cost: if least_time == 0 { 1.0 } else { found.time as f64 / least_time as f64 },
    });
    Ok(Best { compiled, unlimited, time: found.time, least_time })
}

/// The plan for a goal.
pub(crate) struct Best {
    pub(crate) compiled: Compiled,
    /// The arena of the fastest plan.
    pub(crate) unlimited: Bytes,
    /// The modelled time of the plan.
    pub(crate) time: u64,
    /// The modelled time of the fastest plan; 0 if the target models none.
    pub(crate) least_time: u64,
}

/// The longest time of a balanced plan.
pub(crate) fn in_balance(least_time: u64) -> u64 {
    least_time.saturating_mul(BALANCED_TIME.0) / BALANCED_TIME.1
}

/// The best of the plans with prices, and of the fastest one.
fn traded(
    graph: &Graph,
    in_good_order: &Rc<Graph>,
    target: &dyn Target,
    goal: Goal,
    fastest: Found,
) -> Result<Found, CompileError> {
    let limit = in_balance(fastest.time);
    let in_file_order = Rc::new(graph.clone());
    let mut choices = rounds(in_good_order, target, goal, limit)?;
    if goal.optimize != Optimize::Balanced || goal.budget.is_some() {
        for source in [in_good_order, &in_file_order] {
            choices.push(Choice::new(source, target, Prices::everywhere(ANY_TIME))?);
        }
    }
    // Less is better.
    let rank = |bytes: u64, time: u64| match (goal.budget, goal.optimize) {
        (Some(budget), _) => (u64::from(budget.0 < bytes), if bytes <= budget.0 { time } else { bytes }, bytes),
        _ => (0, bytes, time),
    };
    choices.sort_by_key(|choice| rank(choice.peak, choice.time));
    choices.dedup_by_key(|choice| (choice.peak, choice.time));
    let mut best = fastest;
    // The balanced plan is one of those that the others are compared with.
    let limits = if goal.optimize == Optimize::Balanced && goal.budget.is_none() {
        &[Some(limit)][..]
    } else {
        &[Some(limit), None]
    };
    for &limit in limits {
        let allowed = choices.iter().filter(|choice| limit.is_none_or(|limit| choice.time <= limit));
        let mut found: Option<Found> = None;
        for choice in allowed.take(FINALISTS) {
            let least = found.as_ref().unwrap_or(&best);
            // The best plan so far has an order of its own, these get one later.
            let gain = |bytes: Bytes| if found.is_some() { bytes.0 } else { bytes.0 - bytes.0 / ORDER_GAIN };
            let is_better = |bytes: Bytes, time: u64| rank(gain(bytes), time) < rank(least.arena().0, least.time);
            let other = choice.in_order(target, |bound| is_better(bound, choice.time))?;
            if let Some(other) = other.filter(|other| is_better(other.arena(), other.time)) {
                found = Some(other);
            }
        }
        if let Some(found) = found {
            let found = found.reordered(target)?;
            if rank(found.arena().0, found.time) < rank(best.arena().0, best.time) {
                best = found;
            }
        }
    }
    // All choices have the same order of nodes. If none beyond the balanced plan is smaller in it, the choice with the least bytes
    // gets an order of its own: a search that is too slow for every choice.
    let is_met = goal.budget.is_some_and(|budget| best.arena() <= budget);
    if limits.len() == 2 && !is_met && best.time <= limit {
        let other = Found::ordered(in_file_order, target, Prices::everywhere(ANY_TIME))?;
        if rank(other.arena().0, other.time) < rank(best.arena().0, best.time) {
            best = other;
        }
    }
    match (goal.budget, goal.optimize) {
        (Some(budget), _) if best.arena() <= budget => Ok(best),
        (Some(_), _) | (None, Optimize::Memory) => best.squeezed(target, None),
        (None, _) => best.squeezed(target, Some(limit)),
    }
}

/// The choices for rising prices, from the fastest on.
pub(crate) fn rounds(
    source: &Rc<Graph>,
    target: &dyn Target,
    goal: Goal,
    limit: u64,
) -> Result<Vec<Choice>, CompileError> {
    let mut choices = vec![Choice::new(source, target, Prices::default())?];
    let first = &choices[0];
    let price = (first.time / first.peak.max(1) / FIRST_PRICE).max(1);
    let count = (ROUND_NODES / source.nodes().len().max(1)).clamp(4, ROUNDS);
    let doublings = (ROUNDS / count) as u32;
    // Steps of the price since the last change, and whether one of the next is known to bring one.
    let (mut unchanged, mut is_change_ahead) = (0, false);
    while choices.len() <= count {
        let last = &choices[choices.len() - 1];
        let steps = match unchanged == LOOK_AHEAD && !is_change_ahead {
            true => (UNCHANGED - unchanged).min((count + 1 - choices.len()) as u32),
            false => 1,
        };
        let next = Choice::new(source, target, last.raised(price, steps * doublings))?;
        let is_same = (next.peak, next.time) == (last.peak, last.time);
        if 1 < steps && !is_same {
            // The rounds in between find the first change.
            is_change_ahead = true;
            continue;
        }
        (unchanged, is_change_ahead) = if is_same { (unchanged + steps, is_change_ahead) } else { (0, false) };
        let is_enough = match goal.budget {
            Some(budget) => next.peak <= budget.0,
            None => goal.optimize == Optimize::Balanced && limit < next.time && limit < last.time,
        };
        choices.push(next);
        if is_enough || UNCHANGED <= unchanged {
            break;
        }
    }
    Ok(choices)
}

#[cfg(test)]
mod tests {
    use lower::cpu::CpuTarget;

    use crate::{Model, Optimize, compile};

    #[test]
    fn balanced_leaves_no_bytes_that_cost_no_time() {
        let mut listed = 0;
        for network in ["lenet", "squeezenet1.1", "resnet18", "mobilenet_v2"] {
            let options = zoo::NetworkOptions::default();
            let graph = zoo::build(network, 1, &mut zoo::Seeded(3), &options).expect("the zoo has it").graph;
            let model = Model { graph, preprocess: None, labels: Vec::new() };
            let compiled = compile(model, &CpuTarget::new(), Optimize::Balanced.into(), |_, _| {});
            for other in compiled.expect("it compiles").plan.alternatives {
                listed += 1;
                let text = format!("{network}: `{}`: {}", other.scope, other.change);
                assert!(other.time < other.other_time, "{text} saves {} at no time", other.saves);
            }
        }
        assert!(0 < listed, "some plan has alternatives");
    }
}
