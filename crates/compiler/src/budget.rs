//! [`within`]: the fastest plan whose arena fits a budget.
//!
//! Four changes make an arena smaller, each at a cost. Kernels with less workspace at the peak may be slower; stripes
//! along the batch repeat steps; stripes of rows also compute halos twice; values that are read late may be computed again.
//! `passes::stripes` chooses regions by an estimate of the live bytes. The exact size needs a placed plan, so the limit for the
//! estimate is lowered in proportion to each plan's excess, until a plan fits or no choice is left.
//!
//! A plan within a lower limit is also one within the budget, and the estimates of time are not exact: the search goes through
//! several limits ([`LIMITS`]) and prices of bytes, and the fastest plan by the modelled times of its kernels is taken. A choice
//! is only placed if its kernels with any workspace would be faster than the best plan so far.
//!
//! If no plan of these fits, prices rise at the full steps of the choices with the least peaks alone ([`rounds`]), and everywhere
//! at last. The number of estimates, of plans, and of their nodes bounds the work; there is no clock.

use std::rc::Rc;

use ir::{Graph, NodeId, Target};
use lower::Selection;
use passes::stripes::{self, StripedRegion, Tiler, Tiling};
use passes::{Known, Priced, Prices, Stage};
use types::{Bytes, EntityId};

use crate::search::{ANY_TIME, rounds};
use crate::{CompileError, Compiled, DRAFT_LIMITS, Goal, PLACE_LIMITS, finish, place, schedule};

/// The changes that made a plan fit a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetChanges {
    /// The arena without a budget.
    pub unlimited: Bytes,
    /// The regions that run in stripes.
    pub regions: Vec<Region>,
    /// The modeled cost of a run relative to that without a budget; 1 if only workspace was reduced.
    pub cost: f64,
}

/// Nodes that run in stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The scope of the first node.
    pub first: String,
    /// The scope of the last node.
    pub last: String,
    /// The axis that is cut: 0 is the batch, 1 the tokens of a sequence, 2 the rows of an image.
    pub axis: usize,
    /// The number of stripes.
    pub stripes: usize,
}

/// The changes that a graph allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cuts {
    /// Regions of it may run in stripes.
    Stripes,
    /// Only its kernels may take less workspace.
    Nothing,
}

/// Nodes of stripes whose live bytes are estimated at most: for choices within limits, at each price, and for those with the least
/// peak.
const WORK: [u64; 2] = [4_000_000, 4_000_000];
/// The limits that regions are chosen for, in parts of the budget out of [`PARTS`].
const LIMITS: [u128; 4] = [12, 9, 7, 5];
const PARTS: u128 = 12;
/// Plans that are made at most for the same prices and limit, and nodes of all of them together, beyond which no other is made. The
/// search ends with the best plan that it has found.
const ATTEMPTS: usize = 6;
const NODES: usize = 40_000;
/// Choices with the least peaks whose full steps get higher prices, at most.
const RAISED: usize = 3;
/// Each attempt lowers the limit for the estimate by this part, at least.
const STEP: u64 = 64;

/// The fastest plan found for a graph that fits `budget`. `unlimited` is the size of its arena without a budget, `smallest`
/// the least without stripes; both exceed `budget`. `least_time` is the modelled time of the fastest plan.
pub(crate) fn within(
    graph: &Graph,
    target: &dyn Target,
    cuts: Cuts,
    budget: Bytes,
    least_time: u64,
    [unlimited, smallest]: [Bytes; 2],
) -> Result<Compiled, CompileError> {
    let cost = stripes::cost(graph);
    let mut search =
        Search { target, budget, unlimited, least_time, cost, smallest, best: None, work: WORK, attempts: 0, nodes: 0 };
    match cuts {
        Cuts::Nothing => search.attempt(graph, &[], &Prices::default()).map(drop)?,
        Cuts::Stripes => search.with_stripes(graph)?,
    }
    let smallest = search.smallest;
    search.best.map(|fit| fit.compiled).ok_or(CompileError::Budget { budget, smallest })
}

struct Search<'a> {
    target: &'a dyn Target,
    budget: Bytes,
    unlimited: Bytes,
    /// The least modelled time of the graph; 0 if the target models none. Its cost in operations counts then.
    least_time: u64,
    cost: u64,
    /// The smallest arena so far.
    smallest: Bytes,
    /// The fastest plan so far that fits.
    best: Option<Fit>,
    /// The rest of [`WORK`], at the current price and of all prices.
    work: [u64; 2],
    /// Plans made so far, and their nodes.
    attempts: usize,
    nodes: usize,
}

/// By position of the source and regions: the plans that were made for the same prices.
type Made = Vec<(usize, Vec<StripedRegion>, Outcome)>;

/// The result of an attempt.
#[derive(Clone, Copy)]
enum Outcome {
    /// A plan that fits.
    Fits,
    /// A plan with an arena above the budget.
    Exceeds(Bytes),
    /// No plan: with any workspace it would not be faster than the best one.
    Slower,
}

/// A graph whose regions are to be chosen, with everything that is chosen for the same prices.
struct Source<'a> {
    graph: &'a Graph,
    tiler: Tiler,
}

/// A plan that fits, and its modelled time.
struct Fit {
    compiled: Compiled,
    cost: f64,
}

impl Search<'_> {
    fn with_stripes(&mut self, graph: &Graph) -> Result<(), CompileError> {
        let again = stripes::compute_again(graph, self.budget.0);
        let graphs: Vec<&Graph> = [graph].into_iter().chain(&again).collect();
        // At the first price, the bytes of all steps together cost as much as their time.
        let price = (self.least_time / self.unlimited.0.max(1) / graph.nodes().len().max(1) as u64).max(1);
        let mut least: Vec<(u64, Prices, &Graph, Tiling)> = Vec::new();
        for price in [0, price, price.saturating_mul(16)].into_iter().take(if self.least_time == 0 { 1 } else { 3 }) {
            let prices = Prices::everywhere(price);
            let source = |&graph| Source { graph, tiler: Tiler::new(graph, self.target, &prices) };
            let sources: Vec<Source> = graphs.iter().map(source).collect();
            let mut made = Made::new();
            self.work[0] = WORK[0];
            for part in LIMITS {
                (self.attempts, self.nodes) = (0, 0);
                let limit = (u128::from(self.budget.0) * part / PARTS) as u64;
                if !self.within_limit(&sources, &prices, limit, &mut made)? {
                    break;
                }
            }
            if self.best.is_none() {
                let work = &mut self.work[1];
                let tilings =
                    sources.iter().filter_map(|source| Some((source.graph, source.tiler.choose(None, work)?)));
                least.extend(tilings.map(|(graph, tiling)| (tiling.peak, prices.clone(), graph, tiling)));
            }
        }
        if self.best.is_some() {
            return Ok(());
        }
        // The estimates may also be too high: try the choices with the smallest ones.
        least.sort_by_key(|(peak, _, _, tiling)| (*peak, tiling.cost));
        let mut raised: Vec<(&Graph, &Tiling, Prices)> = Vec::new();
        for (_, _, graph, tiling) in least.iter().take(RAISED) {
            let at_peak = self.raised(graph, tiling)?;
            raised.extend(at_peak.map(|prices| (*graph, tiling, prices)));
        }
        let given = least.iter().map(|(_, prices, graph, tiling)| (*graph, tiling, prices.clone()));
        let everywhere = least.iter().map(|(_, _, graph, tiling)| (*graph, tiling, Prices::everywhere(ANY_TIME)));
        let stages: [Vec<(&Graph, &Tiling, Prices)>; 3] = [given.collect(), raised, everywhere.collect()];
        for tried in stages {
            (self.attempts, self.nodes) = (0, 0);
            for (graph, tiling, prices) in tried {
                if !self.may_go_on() {
                    break;
                }
                self.attempt(graph, &tiling.regions, &prices)?;
            }
            if self.best.is_some() {
                return Ok(());
            }
        }
        self.attempt(graph, &[], &Prices::default()).map(drop)
    }

    /// Makes the plan for regions that are chosen within a limit, and for ever lower limits until one fits. Whether lower limits
    /// may have other plans.
    fn within_limit(
        &mut self,
        sources: &[Source],
        prices: &Prices,
        limit: u64,
        made: &mut Made,
    ) -> Result<bool, CompileError> {
        let mut aim = limit;
        while self.may_go_on() {
            let work = &mut self.work[0];
            let choices =
                sources.iter().enumerate().filter_map(|(ix, source)| Some((ix, source.tiler.choose(Some(aim), work)?)));
            let Some((ix, tiling)) = choices.min_by_key(|(_, tiling)| tiling.cost) else { return Ok(false) };
            let known = made.iter().find(|(source, regions, _)| *source == ix && *regions == tiling.regions);
            let outcome = match known {
                Some((_, _, outcome)) => *outcome,
                None => {
                    let outcome = self.attempt(sources[ix].graph, &tiling.regions, prices)?;
                    made.push((ix, tiling.regions, outcome));
                    outcome
                }
            };
            match outcome {
                Outcome::Fits | Outcome::Slower => return Ok(true),
                Outcome::Exceeds(arena) => aim = self.lowered(aim, arena),
            }
        }
        Ok(true)
    }

    /// Prices for regions in stripes that are higher at the full steps alone, so that the live bytes stay within the budget.
    fn raised(&self, graph: &Graph, tiling: &Tiling) -> Result<Option<Prices>, CompileError> {
        if self.least_time == 0 {
            return Ok(None);
        }
        let striped = Rc::new(stripes::split(graph, &tiling.regions).expect("chosen from this graph"));
        let known = Known::new(self.target, &striped);
        let choices = rounds(&striped, &known, Goal::within(self.budget), u64::MAX)?;
        Ok(choices.into_iter().min_by_key(|choice| choice.peak).map(|choice| choice.prices))
    }

    fn may_go_on(&self) -> bool {
        self.attempts < ATTEMPTS && self.nodes < NODES
    }

    /// The next limit for the estimate, after one that led to an arena above the budget.
    fn lowered(&self, aim: u64, arena: Bytes) -> u64 {
        let in_proportion = (u128::from(aim) * u128::from(self.budget.0) / u128::from(arena.0.max(1))) as u64;
        // Larger steps as attempts are used up.
        in_proportion.min(aim.saturating_sub((aim * (self.attempts as u64 + 1) / STEP).max(1)))
    }

    /// Makes the plan with regions in stripes, and keeps it if it is the best.
    fn attempt(&mut self, graph: &Graph, regions: &[StripedRegion], prices: &Prices) -> Result<Outcome, CompileError> {
        let striped = stripes::split(graph, regions).expect("chosen from this graph");
        self.attempts += 1;
        self.nodes += striped.nodes().len();
        let striped = passes::run_stage(&striped, Stage::Layout, self.target, prices, |_, _| {})?;
        let is_slower = |cost: f64, best: &Option<Fit>| best.as_ref().is_some_and(|best| best.cost <= cost);
        // No kernels of these layouts are faster than those with any workspace.
        if is_slower(self.cost_of(&striped, &Selection::new(&striped, self.target)?), &self.best) {
            return Ok(Outcome::Slower);
        }
        let target = &Priced::new(self.target, prices, &striped);
        let striped = schedule(&striped, target, Bytes::ZERO, |_, _| {})?;
        let mut selection = striped.selection.clone();
        let mut placement = place(&striped.graph, self.target, &selection, DRAFT_LIMITS)?;
        if placement.certificate.lower_bound <= self.budget {
            if self.budget < placement.certificate.value {
                placement = place(&striped.graph, self.target, &selection, PLACE_LIMITS)?;
            }
            // Kernels may take the bytes that are free at their step, if the plan can still be placed then: those that are fastest,
            // and those that are cheapest at these prices.
            let workspaces = striped.selection.workspaces();
            let live = striped.selection.live_bytes(&striped.graph, self.target)?;
            let limit = |id: NodeId| Bytes(workspaces[id].0 + self.budget.0.saturating_sub(live[id.index()]));
            for target in [self.target, target] {
                let faster = Selection::within(&striped.graph, target, limit)?;
                let is_fit = placement.certificate.value <= self.budget;
                if is_fit && selection.time() <= faster.time() && self.least_time != 0 {
                    continue;
                }
                let other = place(&striped.graph, self.target, &faster, PLACE_LIMITS)?;
                if other.certificate.value <= self.budget {
                    (selection, placement) = (faster, other);
                }
            }
        }
        let arena = placement.certificate.value;
        self.smallest = self.smallest.min(arena);
        if self.budget < arena {
            return Ok(Outcome::Exceeds(arena));
        }
        let cost = self.cost_of(&striped.graph, &selection);
        if is_slower(cost, &self.best) {
            return Ok(Outcome::Fits);
        }
        let mut compiled = finish(&striped, self.target, &selection, &placement)?;
        let regions = regions.iter().map(|region| Region {
            first: graph.node(NodeId::from_index(region.nodes.start)).scope.to_string(),
            last: graph.node(NodeId::from_index(region.nodes.end - 1)).scope.to_string(),
            axis: region.axis,
            stripes: region.stripes,
        });
        compiled.fit = Some(BudgetChanges { unlimited: self.unlimited, regions: regions.collect(), cost });
        self.best = Some(Fit { compiled, cost });
        Ok(Outcome::Fits)
    }

    /// The modelled cost of a run relative to that without a budget.
    fn cost_of(&self, graph: &Graph, selection: &Selection) -> f64 {
        match self.least_time {
            0 => stripes::cost(graph) as f64 / self.cost.max(1) as f64,
            least => selection.time() as f64 / least as f64,
        }
    }
}
