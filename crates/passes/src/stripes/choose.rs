//! [`choose`]: which regions to run in stripes, and in how many.
//!
//! Regions do not overlap, and the values that cross a region's borders are the same whether it runs in stripes or not. So each range of
//! nodes is judged by itself: the peak of a choice is the largest of its ranges' peaks, its cost their sum, and a walk over the
//! positions from the first to the last finds the best choice: for each position the best way to get there, over all regions
//! that end there and all numbers of stripes ([`Estimate`]).
//!
//! The walk is over the graph in the layouts that kernels are fastest in, so that relayouts count. Regions are those of the graph
//! without them: stripes are cut before layouts are chosen, and a stripe has layouts of its own.

use std::ops::Range;

use ir::{Graph, NodeId, Op, Target};
use types::{EntityId, Layout};

use super::estimate::{Estimate, Stretch, costs};
use super::local::part;
use super::{StripedRegion, split};
use crate::Prices;

/// Numbers of stripes that are tried. More spend more on halos and steps than they save.
const STRIPES: [usize; 11] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
/// Nodes of a region at most: bounds the work for very long graphs.
const REGION_NODES_MAX: usize = 200;
/// Nodes of all stripes of a region at most: each becomes a node of the graph.
const STRIPED_NODES_MAX: usize = 4_000;

/// Nodes of stripes that are estimated for one choice at most.
const WORK: u64 = 150_000;
/// Choices that are made again at most because a region turned out invalid.
const REFUSALS_MAX: usize = 8;

/// Regions to run in stripes, with the estimated peak and cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// The regions, in order.
    pub regions: Vec<StripedRegion>,
    /// The most bytes alive at once, by the estimate that was used to choose.
    pub peak: u64,
    /// The modelled cost, in operations.
    pub cost: u64,
}

/// The best way to a position.
#[derive(Clone)]
struct Way {
    peak: u64,
    cost: u64,
    /// The position before the last step, and the region in between if it runs in stripes.
    from: usize,
    region: Option<StripedRegion>,
}

/// A graph with all that is needed to choose regions of it.
pub struct Tiler {
    graph: Graph,
    estimate: Estimate,
    /// By position in the graph with relayouts: the nodes of the graph without them that come before.
    before: Vec<usize>,
    /// By axis and position whether a node can compute a part of its result along the axis.
    tileable: [Vec<bool>; 3],
}

/// The axes along which regions may be cut: the batch, the tokens of a sequence, and the rows of an image.
const AXES: [usize; 3] = [0, 1, 2];
/// The axis of tokens, or of channels, whose blocks no stripe cuts.
const TOKENS: usize = 1;

impl Tiler {
    /// For the kernels of a target, and the layouts that are cheapest with these prices.
    pub fn new(graph: &Graph, target: &dyn Target, prices: &Prices) -> Tiler {
        let estimate = Estimate::of(graph, target, prices);
        let is_added = |node: &ir::Node| matches!(node.op, Op::Relayout(_));
        let mut before = vec![0];
        for node in estimate.graph.nodes().values() {
            before.push(before[before.len() - 1] + usize::from(!is_added(node)));
        }
        debug_assert_eq!(before.last(), Some(&graph.nodes().len()), "layouts add relayouts and nothing else");
        let tileable = AXES.map(|axis| tileable(&estimate, axis));
        Tiler { graph: graph.clone(), estimate, before, tileable }
    }

    /// Finds the cheapest choice whose live bytes stay within `limit`, or without a limit the one with the least peak.
    ///
    /// Workspaces are the least that kernels can do with. `None` if no choice stays within the limit. `work` is the number of
    /// nodes of stripes that may be estimated, and falls by the work done; each position has an equal part of at most
    /// `WORK` of it.
    pub fn choose(&self, limit: Option<u64>, work: &mut u64) -> Option<Tiling> {
        // The estimate looks at some stripes of a region: others may have no rows to read.
        let mut refused: Vec<StripedRegion> = Vec::new();
        for _ in 0..REFUSALS_MAX {
            let tiling = choose(self, limit, work, &refused)?;
            let wrong = |region: &&StripedRegion| split(&self.graph, std::slice::from_ref(region)).is_none();
            let wrong: Vec<StripedRegion> = tiling.regions.iter().filter(wrong).cloned().collect();
            if wrong.is_empty() {
                return Some(tiling);
            }
            refused.extend(wrong);
        }
        None
    }

    /// A region of the graph with relayouts, as one of the graph without them.
    fn without_relayouts(&self, region: &StripedRegion) -> StripedRegion {
        let nodes = self.before[region.nodes.start]..self.before[region.nodes.end];
        StripedRegion { nodes, ..*region }
    }
}

fn choose(tiler: &Tiler, limit: Option<u64>, work: &mut u64, refused: &[StripedRegion]) -> Option<Tiling> {
    let Tiler { estimate, before, tileable, .. } = tiler;
    let is_allowed = |region: &StripedRegion| refused.is_empty() || !refused.contains(&tiler.without_relayouts(region));
    let count = estimate.graph.nodes().len();
    let is_better = |a: &Way, b: &Way| match limit {
        Some(_) => (a.cost, a.peak) < (b.cost, b.peak),
        None => (a.peak, a.cost) < (b.peak, b.cost),
    };
    let work_each = WORK.min(*work) / count.max(1) as u64;
    let mut best: Vec<Option<Way>> = vec![None; count + 1];
    best[0] = Some(Way { peak: 0, cost: 0, from: 0, region: None });
    for to in 1..=count {
        let mut found: Option<Way> = None;
        let mut offer = |way: Way| {
            if limit.is_none_or(|limit| way.peak <= limit) && found.as_ref().is_none_or(|found| is_better(&way, found))
            {
                found = Some(way);
            }
        };
        let then = |from: usize, stretch: Stretch, region: Option<StripedRegion>| {
            let before = best[from].as_ref()?;
            Some(Way { peak: before.peak.max(stretch.peak), cost: before.cost + stretch.cost, from, region })
        };
        if let Some(way) = then(to - 1, estimate.plain(to - 1..to), None) {
            offer(way);
        }
        let (mut left, mut plain_peak) = (work_each, 0);
        let mut axes = vec![0, 1, 2];
        for from in (to.saturating_sub(REGION_NODES_MAX)..to).rev() {
            plain_peak = plain_peak.max(estimate.live[from]);
            axes.retain(|&axis: &usize| tileable[axis][from]);
            if axes.is_empty() || left == 0 {
                break;
            }
            let Some(way) = &best[from] else { continue };
            // Stripes cost more than the whole: they must lower the peak. Relayouts alone are no region.
            if plain_peak <= limit.unwrap_or(way.peak) || before[from] == before[to] {
                continue;
            }
            let nodes = from..to;
            for &axis in &axes {
                if let Some((stretch, region)) = stripes(estimate, &nodes, AXES[axis], limit, &mut left, &is_allowed)
                    && let Some(way) = then(from, stretch, Some(region))
                {
                    offer(way);
                }
            }
        }
        *work -= work_each - left;
        best[to] = found;
    }
    let last = best[count].clone()?;
    let (mut regions, mut at) = (Vec::new(), count);
    while 0 < at {
        let way = best[at].as_ref()?;
        regions.extend(way.region.as_ref().map(|region| tiler.without_relayouts(region)));
        at = way.from;
    }
    regions.reverse();
    Some(Tiling { regions, peak: last.peak, cost: last.cost })
}

/// The modelled cost of running all nodes, in operations.
pub fn cost(graph: &Graph) -> u64 {
    costs(graph).iter().sum()
}

/// By position.
fn tileable(estimate: &Estimate, axis: usize) -> Vec<bool> {
    let graph = &estimate.graph;
    let can = |(id, node): (NodeId, &ir::Node)| {
        let Some(&extent) = node.outputs.first().and_then(|&output| graph.ty(output).shape.get(axis)) else {
            return false;
        };
        let mut values = node.inputs.iter().chain(&node.outputs);
        if axis == TOKENS && values.any(|&value| graph.value(value).layout != Layout::RowMajor) {
            return false;
        }
        let at = id.index();
        // Alone in a region, an operand of another rank is there as a whole.
        let is_inside = |value| estimate.lives.is_inside(&(at..at + 1), value);
        0 < extent && node.outputs.len() == 1 && part(graph, node, axis, &(0..extent.div_ceil(2)), &is_inside).is_some()
    };
    graph.nodes().iter().map(can).collect()
}

/// The fewest stripes that stay within the limit, or the number with the least peak.
fn stripes(
    estimate: &Estimate,
    nodes: &Range<usize>,
    axis: usize,
    limit: Option<u64>,
    left: &mut u64,
    is_allowed: &dyn Fn(&StripedRegion) -> bool,
) -> Option<(Stretch, StripedRegion)> {
    let graph = &estimate.graph;
    let borders = estimate.lives.borders(graph, nodes);
    let extents = borders.exits.iter().map(|&exit| graph.ty(exit).shape.get(axis).copied().unwrap_or(0));
    let extent = extents.min()?;
    if limit.is_some_and(|limit| limit < estimate.held_least(nodes, &borders)) {
        return None;
    }
    let mut best: Option<(Stretch, StripedRegion)> = None;
    for stripes in
        STRIPES.into_iter().filter(|&stripes| stripes <= extent && stripes * nodes.len() <= STRIPED_NODES_MAX)
    {
        *left = left.checked_sub(nodes.len() as u64).unwrap_or_default();
        if *left == 0 {
            break;
        }
        let region = StripedRegion { nodes: nodes.clone(), axis, stripes };
        if !is_allowed(&region) {
            continue;
        }
        let all = estimate.striped(&region, &borders)?;
        let is_worse = best.as_ref().is_some_and(|(best, _)| best.peak + best.peak / 4 < all.peak);
        if best.as_ref().is_none_or(|(best, _)| all.peak < best.peak) {
            best = Some((all, region));
        }
        if is_worse || limit.is_some_and(|limit| all.peak <= limit) {
            break;
        }
    }
    best.filter(|(found, _)| limit.is_none_or(|limit| found.peak <= limit))
}
