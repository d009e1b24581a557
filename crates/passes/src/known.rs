//! [`Known`]: a target that answers each question about the layouts of one graph once.
//!
//! The rounds of a search choose layouts of the same graph for other prices ([`Prices`](crate::Prices)). The candidates and the
//! costs of relayouts do not depend on prices, so every round after the first gets them from here.

use std::cell::RefCell;

use ir::{Candidate, Formats, Graph, NoKernel, NodeId, Query, Target, ValueId};
use types::{Layout, Map};

/// By node: an answer and the layout in question.
type Answers = Vec<(Layout, Result<Vec<Candidate>, NoKernel>)>;

/// A target with its answers about one graph. Graphs are the same if they have the same address, so the graph is borrowed as long
/// as its answers are kept.
pub struct Known<'a> {
    target: &'a dyn Target,
    graph: &'a Graph,
    candidates: RefCell<Map<NodeId, Answers>>,
    relayouts: RefCell<Map<ValueId, Option<u64>>>,
}

impl<'a> Known<'a> {
    /// A target without answers about `graph` yet.
    pub fn new(target: &'a dyn Target, graph: &'a Graph) -> Known<'a> {
        Known {
            target,
            graph,
            candidates: RefCell::new(Map::filled(graph.nodes().len(), Vec::new())),
            relayouts: RefCell::new(Map::filled(graph.values().len(), None)),
        }
    }
}

impl Target for Known<'_> {
    crate::forward_properties!(target);

    fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel> {
        let (&[id], Formats::Layout(layout)) = (nodes, query.formats) else {
            return self.target.candidates(graph, nodes, query);
        };
        if !std::ptr::eq(graph, self.graph) || *query != Query::of(query.formats) {
            return self.target.candidates(graph, nodes, query);
        }
        if let Some((_, answer)) = self.candidates.borrow()[id].iter().find(|(of, _)| *of == layout) {
            return answer.clone();
        }
        let answer = self.target.candidates(graph, nodes, query);
        self.candidates.borrow_mut()[id].push((layout, answer.clone()));
        answer
    }

    fn relayout_cost(&self, graph: &Graph, value: ValueId) -> u64 {
        if !std::ptr::eq(graph, self.graph) {
            return self.target.relayout_cost(graph, value);
        }
        let known = self.relayouts.borrow()[value];
        known.unwrap_or_else(|| {
            let cost = self.target.relayout_cost(graph, value);
            self.relayouts.borrow_mut()[value] = Some(cost);
            cost
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ir::{Op, ops};
    use types::{Bytes, DType, Scope, Shape, pointwise};

    use super::*;
    use crate::test_target::TestTarget;

    #[test]
    fn target_is_queried_once_about_a_node_and_a_layout() {
        let mut graph = Graph::new("one");
        let x = graph.add_input("x", DType::F32, Shape::from([1, 16, 2, 2]));
        let y = graph.add1(Op::Unary(ops::Unary(pointwise::Unary::Relu)), &[x], Scope::new("y")).unwrap();
        graph.set_outputs(vec![("y".into(), y)]);
        let queries = Cell::new(0);
        let target = TestTarget::new(|graph: &Graph, nodes: &[NodeId], _: &Query| {
            queries.set(queries.get() + 1);
            vec![Candidate { cost: queries.get(), ..Candidate::given(graph, nodes[0]) }]
        });
        let known = Known::new(&target, &graph);
        let ids: Vec<NodeId> = graph.nodes().keys().collect();
        let cost =
            |graph: &Graph, layout| known.candidates(graph, &ids, &Query::of(Formats::Layout(layout))).unwrap()[0].cost;
        let blocked = Layout::ChannelsBlocked(16);
        assert_eq!([cost(&graph, blocked), cost(&graph, blocked)], [1, 1]);
        assert_eq!(cost(&graph, Layout::RowMajor), 2, "another layout is another question");
        assert_eq!(cost(&graph.clone(), blocked), 3, "so is another graph");
        let within = Query { workspace: Bytes(8), ..Query::of(Formats::Layout(blocked)) };
        assert_eq!(known.candidates(&graph, &ids, &within).unwrap()[0].cost, 4, "and another limit of workspace");
    }
}
