//! [`TestTarget`]: a target for tests, whose candidates a function gives.

use ir::{Candidate, Graph, NoKernel, NodeId, Query, Target, ValueId};
use types::{Bytes, DType, EntityId, Layout};

/// A target without kernel calls.
pub(crate) struct TestTarget<F> {
    pub(crate) precision: DType,
    pub(crate) layout: Option<Layout>,
    pub(crate) candidates: F,
    /// By value.
    pub(crate) relayout_costs: Vec<u64>,
}

impl<F: Fn(&Graph, &[NodeId], &Query) -> Vec<Candidate>> TestTarget<F> {
    pub(crate) fn new(candidates: F) -> TestTarget<F> {
        TestTarget { precision: DType::F32, layout: None, candidates, relayout_costs: Vec::new() }
    }
}

impl<F: Fn(&Graph, &[NodeId], &Query) -> Vec<Candidate>> Target for TestTarget<F> {
    fn name(&self) -> String {
        "test".into()
    }

    fn alignment(&self) -> Bytes {
        Bytes(1)
    }

    fn precision(&self) -> DType {
        self.precision
    }

    fn layout(&self) -> Option<Layout> {
        self.layout
    }

    fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel> {
        Ok((self.candidates)(graph, nodes, query))
    }

    fn relayout_cost(&self, _graph: &Graph, value: ValueId) -> u64 {
        self.relayout_costs.get(value.index()).copied().unwrap_or(0)
    }
}
