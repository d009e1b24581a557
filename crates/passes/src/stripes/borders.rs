//! [`Borders`]: the values that lead into a range of nodes and out of it.

use std::collections::BTreeSet;
use std::ops::Range;

use ir::{Graph, NodeId, ValueId};
use types::{EntityId, Map};

/// When values are made and read, in the order of the graph.
pub(super) struct Lives {
    /// By value the position behind the node that makes it; 0 for inputs and constants.
    born: Map<ValueId, usize>,
    /// By value the position of its last reader, the number of nodes for results of the graph; `None` if it is not read.
    last: Map<ValueId, Option<usize>>,
}

/// The values that cross the borders of a range of nodes.
pub(super) struct Borders {
    /// Values from outside that are read inside, apart from constants.
    pub(super) entries: Vec<ValueId>,
    /// Values of the range that are read behind it, in the order of their nodes.
    pub(super) exits: Vec<ValueId>,
}

impl Lives {
    pub(super) fn of(graph: &Graph) -> Lives {
        let born = graph.values().values().map(|value| value.producer().map_or(0, |node| node.index() + 1)).collect();
        let mut last = Map::filled(graph.values().len(), None);
        for (id, node) in graph.nodes().iter() {
            node.inputs.iter().for_each(|&input| last[input] = Some(id.index()));
        }
        graph.outputs().iter().for_each(|output| last[output.value] = Some(graph.nodes().len()));
        Lives { born, last }
    }

    /// Whether a value is made by one of the nodes.
    pub(super) fn is_inside(&self, nodes: &Range<usize>, value: ValueId) -> bool {
        nodes.start < self.born[value] && self.born[value] <= nodes.end
    }

    /// The position of the last reader of a value.
    pub(super) fn last_read(&self, value: ValueId) -> Option<usize> {
        self.last[value]
    }

    pub(super) fn borders(&self, graph: &Graph, nodes: &Range<usize>) -> Borders {
        let (mut entries, mut exits) = (BTreeSet::new(), Vec::new());
        for node in nodes.clone().map(|ix| graph.node(NodeId::from_index(ix))) {
            let is_entry = |&input: &ValueId| !self.is_inside(nodes, input) && graph.value(input).tensor().is_none();
            entries.extend(node.inputs.iter().copied().filter(is_entry));
            exits
                .extend(node.outputs.iter().filter(|&&output| self.last[output].is_some_and(|last| nodes.end <= last)));
        }
        Borders { entries: entries.into_iter().collect(), exits }
    }
}
