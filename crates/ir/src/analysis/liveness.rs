//! [`Liveness`]: from which node to which node each value is needed, in the order that the nodes have.
//!
//! [`live_bytes`] sums the alias sets that are live at each node; [`slack`] is the distance of each node to the peak.

use types::{ByteSpan, Bytes, EntityId, Map};

use super::alias::{AliasSets, Location};
use super::value_size;
use crate::{Graph, NodeId, Reuse, ValueId};

/// The positions of the first and the last node at which something is live, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRange {
    /// The node that yields it; 0 for inputs.
    pub first: usize,
    /// The last node that reads it; the number of nodes for results of the graph.
    pub last: usize,
}

impl LiveRange {
    /// The smallest range that covers both.
    pub fn union(self, other: LiveRange) -> LiveRange {
        LiveRange { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// The live range of each value.
#[derive(Clone, Debug)]
pub struct Liveness {
    ranges: Map<ValueId, LiveRange>,
    /// Values that live on to the next run.
    states: Vec<ValueId>,
    nodes: usize,
}

impl Liveness {
    /// The live ranges of a graph's values in the order of its nodes.
    pub fn of(graph: &Graph) -> Liveness {
        let born = |at: usize| LiveRange { first: at, last: at };
        let mut ranges: Map<ValueId, LiveRange> =
            graph.values().values().map(|value| born(value.producer().map_or(0, EntityId::index))).collect();
        for (id, node) in graph.nodes().iter() {
            node.inputs.iter().for_each(|&input| ranges[input].last = id.index());
        }
        graph.outputs().iter().for_each(|output| ranges[output.value].last = graph.nodes().len());
        Liveness { ranges, states: graph.states().to_vec(), nodes: graph.nodes().len() }
    }

    /// The live range of a value.
    pub fn range(&self, value: ValueId) -> LiveRange {
        self.ranges[value]
    }

    /// The live range of the bytes that several values share; `None` for no values. The bytes of a state live to the end.
    pub fn range_of_all(&self, values: &[ValueId]) -> Option<LiveRange> {
        let range = values.iter().map(|&value| self.ranges[value]).reduce(LiveRange::union)?;
        let is_kept = values.iter().any(|value| self.states.contains(value));
        Some(if is_kept { LiveRange { last: self.nodes, ..range } } else { range })
    }
}

/// By position the bytes of the alias sets that are live there: of each set the [hull](types::hulls) of its live values, in
/// multiples of `alignment`. One entry more than there are nodes: the results of the graph live on behind the last node.
pub fn live_bytes(graph: &Graph, liveness: &Liveness, sets: &AliasSets, alignment: Bytes) -> Vec<u64> {
    let hulls = sets.roots().flat_map(|root| hulls(graph, liveness, sets, root, alignment));
    sum_over_ranges(graph.nodes().len() + 1, hulls)
}

/// The bytes of a set that are live, with their positions.
pub(super) fn hulls(
    graph: &Graph,
    liveness: &Liveness,
    sets: &AliasSets,
    root: ValueId,
    alignment: Bytes,
) -> Vec<(LiveRange, Bytes)> {
    let members = sets.members(root);
    let Some(range) = liveness.range_of_all(members) else { return Vec::new() };
    let uses = members.iter().filter_map(|&member| {
        let Location::Buffer { offset, .. } = sets.location(member) else { return None };
        let LiveRange { first, last } = liveness.range(member);
        Some(ByteSpan { bytes: offset..offset + value_size(graph, member), steps: first as u32..last as u32 + 1 })
    });
    let uses: Vec<ByteSpan> = uses.collect();
    if members.iter().any(|member| liveness.states.contains(member)) {
        return vec![(range, Bytes(sets.size(root)).align_up(alignment))];
    }
    let hulls = types::hulls(&uses, alignment).into_iter().map(|hull| {
        let range = LiveRange { first: hull.steps.start as usize, last: hull.steps.end as usize - 1 };
        (range, Bytes(hull.bytes.end - hull.bytes.start))
    });
    hulls.collect()
}

/// By position the sum of the sizes whose ranges cover it.
pub(super) fn sum_over_ranges(positions: usize, sizes: impl Iterator<Item = (LiveRange, Bytes)>) -> Vec<u64> {
    let mut changes = vec![0i64; positions + 1];
    for (range, size) in sizes {
        changes[range.first] += size.0 as i64;
        changes[range.last + 1] -= size.0 as i64;
    }
    changes.pop();
    let mut live = 0;
    let sums = changes.into_iter().map(|change| {
        live += change;
        live as u64
    });
    sums.collect()
}

/// By node the workspace that it may take without raising the peak: the largest live bytes of any node minus its own.
///
/// An estimate: only views share bytes here, and results that take the bytes of an operand which dies with the node. Which
/// values really share bytes depends on the kernels.
pub fn slack(graph: &Graph, alignment: Bytes) -> Map<NodeId, Bytes> {
    let (liveness, sets) = (Liveness::of(graph), AliasSets::views(graph));
    let live = live_bytes(graph, &liveness, &sets, alignment);
    let size = |value: ValueId| Bytes(value_size(graph, value)).align_up(alignment).0;
    let dies_at = |value: ValueId, at: usize| match sets.location(value) {
        Location::Buffer { root, .. } => {
            liveness.range_of_all(sets.members(root)).is_some_and(|range| range.last == at)
        }
        Location::Constant { .. } => false,
    };
    let own = graph.nodes().iter().zip(&live).map(|((id, node), &live)| {
        let result = size(node.outputs[0]);
        let takes = |value: ValueId, result: u64| dies_at(value, id.index()) && size(value) == result;
        let in_place = match graph.reuse(node) {
            Reuse::InPlace(operands) if operands.iter().any(|&ix| takes(node.inputs[ix], result)) => result,
            Reuse::EachInPlace(pairs) => pairs
                .iter()
                .map(|&[output, ix]| (node.inputs[ix], size(node.outputs[output])))
                .filter(|&(value, result)| takes(value, result))
                .map(|(_, result)| result)
                .sum(),
            Reuse::InPlace(_) | Reuse::Never | Reuse::Alias { .. } | Reuse::ConcatSlices(_) => 0,
        };
        live - in_place
    });
    let own: Vec<u64> = own.collect();
    let peak = own.iter().copied().max().unwrap_or_default();
    own.into_iter().map(|live| Bytes(peak - live)).collect()
}

#[cfg(test)]
mod tests {
    use types::pointwise::Unary as Function;
    use types::{DType, Scope, Shape};

    use super::*;
    use crate::ops::{Binary, Concat, Unary};

    #[test]
    fn slack_is_zero_at_the_peak() {
        let mut graph = Graph::new("wide in the middle");
        let x = graph.add_input("x", DType::F32, Shape::from([8]));
        let add = |graph: &mut Graph, a, b, name: &str| {
            graph.add1(Binary(types::pointwise::Binary::Add).into(), &[a, b], Scope::new(name)).unwrap()
        };
        let a = graph.add1(Unary(Function::Relu).into(), &[x], Scope::new("a")).unwrap();
        let b = add(&mut graph, x, a, "b");
        let c = add(&mut graph, b, a, "c");
        let d = graph.add1(Unary(Function::Relu).into(), &[c], Scope::new("d")).unwrap();
        graph.set_outputs(vec![("y".into(), d)]);
        let slack: Vec<u64> = slack(&graph, Bytes(1)).values().map(|bytes| bytes.0).collect();
        // `a` and `b` need 64 bytes, and `c` in the bytes of `b`; `d` is computed in place.
        assert_eq!(slack, [0, 0, 0, 32]);
        let liveness = Liveness::of(&graph);
        assert_eq!(liveness.range(x), LiveRange { first: 0, last: 1 });
        assert_eq!(liveness.range(c), LiveRange { first: 2, last: 3 });
    }

    #[test]
    fn slice_of_a_concatenation_counts_from_its_write_on() {
        let mut graph = Graph::new("two slices");
        let x = graph.add_input("x", DType::F32, Shape::from([64]));
        let unary = |graph: &mut Graph, function, of, name: &str| {
            graph.add1(Unary(function).into(), &[of], Scope::new(name)).unwrap()
        };
        let first = unary(&mut graph, Function::Relu, x, "first");
        let between = unary(&mut graph, Function::Exp, first, "between");
        let second = unary(&mut graph, Function::Sigmoid, between, "second");
        let both = graph.add1(Concat { axis: 0 }.into(), &[first, second], Scope::new("both")).unwrap();
        graph.set_outputs(vec![("y".into(), both)]);
        let sets = AliasSets::optimistic(&graph);
        assert!(sets.is_at(second, both, 256), "both slices are in the result");
        // Of the 512 bytes of the result, `second` writes the last half.
        let live = live_bytes(&graph, &Liveness::of(&graph), &sets, Bytes(1));
        assert_eq!(live, [256 + 256, 256 + 256, 512 + 256, 512, 512]);
    }
}
