//! [`within`]: the fastest plan whose arena fits a budget.
//!
//! Four changes make an arena smaller, each at a cost. Kernels with less workspace at the peak may be slower; stripes
//! along the batch repeat steps; stripes of rows also compute halos twice; values that are read late may be computed again.
//! `passes::stripes` chooses regions by an estimate of the live bytes. The exact size needs a placed plan, so the limit for the
//! estimate is lowered in proportion to each plan's excess, until a plan fits or no choice is left. The number of estimates, of
//! plans, and of their nodes bounds the work; there is no clock.

use ir::{Graph, NodeId, Target};
use lower::Selection;
use passes::stripes::{self, StripedRegion, Tiler, Tiling};
use passes::{Priced, Prices, Stage};
use types::{Bytes, EntityId};

use crate::search::ANY_TIME;
use crate::{CompileError, Compiled, DRAFT_LIMITS, PLACE_LIMITS, finish, place, schedule};

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

/// Nodes of stripes whose live bytes are estimated at most: for choices within limits, and for those with the least peak.
const WORK: [u64; 2] = [10_000_000, 4_000_000];
/// Plans that are made at most for the same prices, and nodes of all of them together, beyond which no other is made. The search
/// ends with the best plan that it has found.
const ATTEMPTS: usize = 6;
const NODES: usize = 40_000;
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
        Search { target, budget, unlimited, least_time, cost, smallest, work: WORK, attempts: 0, nodes: 0 };
    let found = match cuts {
        Cuts::Nothing => search.attempt(graph, &[], &Prices::default())?.ok().map(|fit| fit.compiled),
        Cuts::Stripes => search.with_stripes(graph)?,
    };
    found.ok_or(CompileError::Budget { budget, smallest: search.smallest })
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
    /// The rest of [`WORK`].
    work: [u64; 2],
    /// Plans made so far, and their nodes.
    attempts: usize,
    nodes: usize,
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
    fn with_stripes(&mut self, graph: &Graph) -> Result<Option<Compiled>, CompileError> {
        let again = stripes::compute_again(graph, self.budget.0);
        let graphs: Vec<&Graph> = [graph].into_iter().chain(&again).collect();
        // At the first price, the bytes of all steps together cost as much as their time.
        let price = (self.least_time / self.unlimited.0.max(1) / graph.nodes().len().max(1) as u64).max(1);
        let mut best: Option<Fit> = None;
        let mut least: Vec<(u64, Prices, &Graph, Tiling)> = Vec::new();
        for price in [0, price, price.saturating_mul(16)].into_iter().take(if self.least_time == 0 { 1 } else { 3 }) {
            let prices = Prices::everywhere(price);
            let source = |&graph| Source { graph, tiler: Tiler::new(graph, self.target, &prices) };
            let sources: Vec<Source> = graphs.iter().map(source).collect();
            self.attempts = 0;
            if let Some(fit) = self.within_limits(&sources, &prices)?
                && best.as_ref().is_none_or(|best| fit.cost < best.cost)
            {
                best = Some(fit);
            }
            if best.is_none() {
                let work = &mut self.work[1];
                let tilings =
                    sources.iter().filter_map(|source| Some((source.graph, source.tiler.choose(None, work)?)));
                least.extend(tilings.map(|(graph, tiling)| (tiling.peak, prices.clone(), graph, tiling)));
            }
        }
        if let Some(fit) = best {
            return Ok(Some(fit.compiled));
        }
        // The estimates may also be too high: try the choices with the smallest ones, at last with kernels without workspace.
        least.sort_by_key(|(peak, _, _, tiling)| (*peak, tiling.cost));
        let mut last = least.clone();
        last.iter_mut().for_each(|(_, prices, _, _)| *prices = Prices::everywhere(ANY_TIME));
        for tried in [least, last] {
            (self.attempts, self.nodes) = (0, 0);
            for (_, prices, graph, tiling) in tried {
                if !self.may_go_on() {
                    break;
                }
                if let Ok(fit) = self.attempt(graph, &tiling.regions, &prices)? {
                    best = best.filter(|best| best.cost <= fit.cost).or(Some(fit));
                }
            }
            if let Some(fit) = best {
                return Ok(Some(fit.compiled));
            }
        }
        Ok(self.attempt(graph, &[], &Prices::default())?.ok().map(|fit| fit.compiled))
    }

    /// The first plan that fits, for estimates within the budget and within ever lower limits.
    fn within_limits(&mut self, sources: &[Source], prices: &Prices) -> Result<Option<Fit>, CompileError> {
        let mut aim = self.budget.0;
        while self.may_go_on() {
            let work = &mut self.work[0];
            let choices =
                sources.iter().filter_map(|source| Some((source.graph, source.tiler.choose(Some(aim), work)?)));
            let Some((graph, tiling)) = choices.min_by_key(|(_, tiling)| tiling.cost) else { break };
            match self.attempt(graph, &tiling.regions, prices)? {
                Ok(fit) => return Ok(Some(fit)),
                Err(arena) => aim = self.lowered(aim, arena),
            }
        }
        Ok(None)
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

    /// The plan with regions in stripes, or its arena if that exceeds the budget.
    fn attempt(
        &mut self,
        graph: &Graph,
        regions: &[StripedRegion],
        prices: &Prices,
    ) -> Result<Result<Fit, Bytes>, CompileError> {
        let striped = stripes::split(graph, regions).expect("chosen from this graph");
        self.attempts += 1;
        self.nodes += striped.nodes().len();
        let striped = passes::run_stage(&striped, Stage::Layout, self.target, prices, |_, _| {})?;
        let target = &Priced::new(self.target, prices, &striped);
        let striped = schedule(&striped, target, Bytes::ZERO, |_, _| {})?;
        // Kernels may take the bytes that are free at their step, if the plan can still be placed then.
        let workspaces = striped.selection.workspaces();
        let live = striped.selection.live_bytes(&striped.graph, self.target)?;
        let mut selection = striped.selection.clone();
        let mut placement = place(&striped.graph, self.target, &selection, DRAFT_LIMITS)?;
        if placement.certificate.lower_bound <= self.budget {
            let free = |id: NodeId| self.budget.0.saturating_sub(live[id.index()]);
            let limit = |id: NodeId| Bytes(workspaces[id].0 + free(id));
            let faster = Selection::within(&striped.graph, target, limit)?;
            let other = place(&striped.graph, self.target, &faster, PLACE_LIMITS)?;
            if other.certificate.value <= self.budget {
                (selection, placement) = (faster, other);
            } else if self.budget < placement.certificate.value {
                placement = place(&striped.graph, self.target, &selection, PLACE_LIMITS)?;
            }
        }
        let arena = placement.certificate.value;
        self.smallest = self.smallest.min(arena);
        if self.budget < arena {
            return Ok(Err(arena));
        }
        let mut compiled = finish(&striped, self.target, &selection, &placement)?;
        let cost = match self.least_time {
            0 => stripes::cost(&striped.graph) as f64 / self.cost.max(1) as f64,
            least => selection.time() as f64 / least as f64,
        };
        let regions = regions.iter().map(|region| Region {
            first: graph.node(NodeId::from_index(region.nodes.start)).scope.to_string(),
            last: graph.node(NodeId::from_index(region.nodes.end - 1)).scope.to_string(),
            axis: region.axis,
            stripes: region.stripes,
        });
        compiled.fit = Some(BudgetChanges { unlimited: self.unlimited, regions: regions.collect(), cost });
        Ok(Ok(Fit { compiled, cost }))
    }
}
