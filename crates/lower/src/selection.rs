//! [`Selection`]: the kernel calls of a graph, chosen once for each node and passed on.

use ir::analysis::alias::{AliasSets, KernelReuse};
use ir::analysis::liveness::{self, Liveness, live_bytes};
use ir::{Call, Candidate, Graph, NodeId, Query, Reuse, Target};
use smallvec::SmallVec;
use types::{Bytes, Map};

use crate::state;

/// The chosen kernels of a graph's nodes.
#[derive(Clone, Debug)]
pub struct Selection {
    /// By node the best candidate; `None` for views, which need no kernel.
    nodes: Map<NodeId, Option<Candidate>>,
}

/// Why a graph cannot be compiled for a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// There is no kernel for a node.
    #[error("node `{scope}`: {target} has no kernel for `{op}`: {reason}")]
    Unsupported {
        /// The node.
        scope: String,
        /// Its op.
        op: &'static str,
        /// The target.
        target: String,
        /// The property of the node that no kernel supports.
        reason: String,
    },
    /// A kernel was chosen that requires other operands than the node has: a defect of the target.
    #[error("node `{scope}`: {reason}")]
    Operands {
        /// The node.
        scope: String,
        /// The kernel, the size that it requires and the one that it got.
        reason: String,
    },
    /// There are no kernels for several nodes.
    #[error("{} nodes have no kernel:{}", .0.len(), .0.iter().map(|error| format!("\n  {error}")).collect::<String>())]
    Several(Vec<LowerError>),
}

impl Selection {
    /// The best candidates of a target.
    ///
    /// # Errors
    /// All nodes that the target has no kernel for.
    pub fn new(graph: &Graph, target: &dyn Target) -> Result<Selection, LowerError> {
        Selection::within(graph, target, |_| ir::UNLIMITED)
    }

    /// The best candidates of a target whose workspace stays within a limit for each node if it can.
    ///
    /// # Errors
    /// All nodes that the target has no kernel for.
    pub fn within(
        graph: &Graph,
        target: &dyn Target,
        workspace: impl Fn(NodeId) -> Bytes,
    ) -> Result<Selection, LowerError> {
        let (mut nodes, mut refused) = (Map::new(), Vec::new());
        for id in graph.nodes().keys() {
            let best = best(graph, target, id, &Query { workspace: workspace(id), ..Query::GIVEN });
            nodes.push(best.unwrap_or_else(|error| {
                refused.push(error);
                None
            }));
        }
        match refused.len() {
            0 => Ok(Selection { nodes }),
            1 => Err(refused.swap_remove(0)),
            _ => Err(LowerError::Several(refused)),
        }
    }

    /// The same selection with kernels that are faster in more workspace (split-K), at each node within its slack below the
    /// peak of live bytes. `None` if no node has such a kernel.
    ///
    /// # Errors
    /// Those of [`Selection::new`].
    pub fn with_slack(&self, graph: &Graph, target: &dyn Target) -> Result<Option<Selection>, LowerError> {
        let wants_slack = |candidate: &Option<Candidate>| candidate.as_ref().is_some_and(|best| best.wants_slack);
        if !self.nodes.values().any(wants_slack) {
            return Ok(None);
        }
        let (slack, mut with_slack) = (liveness::slack(graph, target.alignment()), self.clone());
        for (id, _) in self.nodes.iter().filter(|(_, candidate)| wants_slack(candidate)) {
            with_slack.nodes[id] = best(graph, target, id, &Query { slack: slack[id], ..Query::GIVEN })?;
        }
        Ok(Some(with_slack))
    }

    /// Chooses another candidate for a node that needs a kernel.
    pub fn replace(&mut self, id: NodeId, candidate: Candidate) {
        debug_assert!(self.nodes[id].is_some(), "views need no kernel");
        self.nodes[id] = Some(candidate);
    }

    /// Whether values share the same bytes if a node has another candidate.
    pub fn shares_bytes_alike(&self, id: NodeId, other: &Candidate) -> bool {
        reuse_of(self.calls(id)) == reuse_of(&other.calls)
    }

    /// The selection for the same nodes in another order: `order` has the old node of each new one.
    #[must_use]
    pub fn reordered(&self, order: &[NodeId]) -> Selection {
        Selection { nodes: order.iter().map(|&id| self.nodes[id].clone()).collect() }
    }

    /// The chosen candidate of a node; `None` for views.
    pub fn candidate(&self, id: NodeId) -> Option<&Candidate> {
        self.nodes[id].as_ref()
    }

    /// The calls that do a node's work, in order. None for views.
    pub fn calls(&self, id: NodeId) -> &[Call] {
        self.nodes[id].as_ref().map_or(&[], |candidate| &candidate.calls)
    }

    /// By node the largest workspace of its calls.
    pub fn workspaces(&self) -> Map<NodeId, Bytes> {
        self.nodes.values().map(|candidate| candidate.as_ref().map_or(Bytes::ZERO, |best| best.workspace)).collect()
    }

    /// The selection with kernels for nodes that a graph has behind the selected ones.
    pub(crate) fn extended(&self, graph: &Graph, target: &dyn Target) -> Result<Selection, LowerError> {
        let mut extended = self.clone();
        for id in graph.nodes().keys().skip(self.nodes.len()) {
            extended.nodes.push(best(graph, target, id, &Query::GIVEN)?);
        }
        Ok(extended)
    }

    /// The modelled time of all kernels, in the unit of the target's costs.
    pub fn time(&self) -> u64 {
        self.nodes.values().flatten().map(|candidate| candidate.cost).fold(0, u64::saturating_add)
    }

    /// The peak of live bytes, workspaces included, in the order of the graph's nodes.
    ///
    /// # Errors
    /// The target has no kernel for the copy that updates a state.
    pub fn peak(&self, graph: &Graph, target: &dyn Target) -> Result<Bytes, LowerError> {
        Ok(Bytes(self.live_bytes(graph, target)?.into_iter().max().unwrap_or(0)))
    }

    /// By node, in the order of the graph, the bytes that are live while it runs, workspaces included. The copies that update
    /// states come behind them.
    ///
    /// # Errors
    /// The target has no kernel for the copy that updates a state.
    pub fn live_bytes(&self, graph: &Graph, target: &dyn Target) -> Result<Vec<u64>, LowerError> {
        let (graph, selection) = &state::with_copies(graph, target, self)?;
        let alignment = target.alignment();
        let live = live_bytes(graph, &Liveness::of(graph), &selection.alias_sets(graph), alignment);
        let workspaces = selection.workspaces();
        let workspaces = workspaces.values().map(|workspace| workspace.align_up(alignment).0);
        Ok(live.into_iter().zip(workspaces.chain([0])).map(|(live, own)| live + own).collect())
    }

    /// Which values share bytes with these kernels.
    pub(crate) fn alias_sets(&self, graph: &Graph) -> AliasSets {
        let reuse = |id| reuse_of(self.calls(id));
        AliasSets::in_order(graph, &graph.nodes().keys().map(reuse).collect())
    }
}

/// How calls write the results of their node.
fn reuse_of(calls: &[Call]) -> KernelReuse {
    KernelReuse {
        by_slice: calls.iter().all(|call| call.slice.is_some()),
        in_place: match calls {
            // Calls behind a copy of the operand that is in place write over it.
            [first, others @ ..] if first.slice.is_some() || others.iter().all(Call::is_postprocessing) => {
                first.in_place.clone()
            }
            _ => SmallVec::new(),
        },
    }
}

/// The best candidate for a node as it is; `None` for a view.
fn best(graph: &Graph, target: &dyn Target, id: NodeId, query: &Query) -> Result<Option<Candidate>, LowerError> {
    let node = graph.node(id);
    if let Reuse::Alias { .. } = graph.reuse(node) {
        return Ok(None);
    }
    let unsupported = |reason: String| LowerError::Unsupported {
        scope: node.scope.to_string(),
        op: node.op.name(),
        target: target.name(),
        reason,
    };
    let candidates = target.candidates(graph, &[id], query).map_err(|error| unsupported(error.0))?;
    candidates.into_iter().next().map(Some).ok_or_else(|| unsupported("the target lists no candidate".into()))
}
