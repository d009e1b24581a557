//! [`within`]: the fastest plan whose arena fits a budget.
//!
//! Three changes make an arena smaller, each at a cost. Kernels with less workspace at the peak may be slower; stripes
//! along the batch repeat steps; stripes of rows also compute halos twice. `passes::stripes` chooses regions by an
//! estimate of the live bytes. The exact size needs a placed plan, so the limit for the estimate is lowered by each
//! plan's excess, until a plan fits or no choice is left.

use ir::{Graph, NodeId, Target};
use lower::Selection;
use passes::stripes::{self, Tiling};
use passes::{MemoryModel, Prices, Stage};
use types::{Bytes, EntityId};

use crate::{CompileError, Compiled, PLACE_LIMITS, finish, place, schedule};

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
    /// The axis that is cut: 0 is the batch, 2 the rows.
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

/// Nodes whose live bytes are estimated while regions are chosen, at most: some seconds. The search then ends with the best
/// that it has found.
const WORK: u64 = 400_000;
/// Limits for the estimate that are tried at most.
const ATTEMPTS: u32 = 16;

/// The fastest plan found for a graph that fits `budget`. `unlimited` is the size of its arena without a budget, `smallest`
/// the least without stripes; both exceed `budget`.
pub(crate) fn within(
    graph: &Graph,
    target: &dyn Target,
    cuts: Cuts,
    budget: Bytes,
    [unlimited, mut smallest]: [Bytes; 2],
) -> Result<Compiled, CompileError> {
    // Returns the plan, or the bytes by which it exceeds the budget.
    let mut attempt = |choice: Option<&Tiling>, aim: u64| -> Result<Result<Compiled, Bytes>, CompileError> {
        let regions = choice.map(|choice| &choice.regions[..]).unwrap_or_default();
        let striped = stripes::split(graph, regions).expect("chosen from this graph");
        let striped = passes::run_stage(&striped, Stage::Layout, target, &Prices::default(), |_, _| {})?;
        let striped = schedule(&striped, target, Bytes::ZERO, |_, _| {})?;
        // A kernel may use the estimated slack below the limit.
        let memory = MemoryModel { alignment: target.alignment(), workspaces: striped.selection.workspaces() };
        let live = passes::live_bytes(&striped.graph, &memory);
        let limit = |id: NodeId| Bytes(memory.workspaces[id].0 + aim.saturating_sub(live[id.index()].0));
        let selection = Selection::within(&striped.graph, target, limit)?;
        let placement = place(&striped.graph, target, &selection, PLACE_LIMITS)?;
        let arena = placement.certificate.value;
        smallest = smallest.min(arena);
        if budget < arena {
            return Ok(Err(arena - budget));
        }
        let mut compiled = finish(&striped, target, &selection, &placement)?;
        let cost = stripes::cost(&striped.graph) as f64 / stripes::cost(graph).max(1) as f64;
        let regions = regions.iter().map(|region| Region {
            first: graph.node(NodeId::from_index(region.nodes.start)).scope.to_string(),
            last: graph.node(NodeId::from_index(region.nodes.end - 1)).scope.to_string(),
            axis: region.axis,
            stripes: region.stripes,
        });
        compiled.fit = Some(BudgetChanges { unlimited, regions: regions.collect(), cost });
        Ok(Ok(compiled))
    };

    if cuts == Cuts::Nothing {
        let mut aim = budget.0;
        return loop {
            match attempt(None, aim)? {
                Ok(compiled) => break Ok(compiled),
                Err(_) if aim == 0 => break Err(CompileError::Budget { budget, smallest }),
                Err(over) => aim = aim.saturating_sub(over.0.max(aim / 64).max(1)),
            }
        };
    }
    let (mut aim, mut work) = (budget.0, WORK);
    for number in 0..ATTEMPTS {
        let Some(choice) = stripes::choose(graph, Some(aim), target, &mut work) else { break };
        match attempt(Some(&choice), aim)? {
            Ok(compiled) => return Ok(compiled),
            // Larger steps as attempts are used up.
            Err(over) => aim = aim.saturating_sub(over.0.max(aim * u64::from(number + 1) / 64).max(1)),
        }
    }
    // The estimate may also be too high: try the choice with the smallest estimate.
    if let Some(choice) = stripes::choose(graph, None, target, &mut WORK.clone())
        && let Ok(compiled) = attempt(Some(&choice), 0)?
    {
        return Ok(compiled);
    }
    match attempt(None, 0)? {
        Ok(compiled) => Ok(compiled),
        Err(_) => Err(CompileError::Budget { budget, smallest }),
    }
}
