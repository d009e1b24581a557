//! [`assign_layouts`]: which values have their channels in blocks.
//!
//! Some kernels are fastest where channels are blocked, some have no such form, most do not care; turning a value from one
//! layout to the other costs time. What is cheapest as a whole is a minimum cut: a node on the source's side of the cut
//! works on row-major values, one on the sink's side on blocked ones. A channel from a node to the sink has the time that
//! the node takes row-major, one from the source to it the time that it takes blocked, and a value that is read on the
//! other side of the cut costs its relayout, once for all readers. The flow's network is built this way, so that the
//! cheapest assignment is found and not only a good one.

use ir::ops::Relayout;
use ir::{Candidate, Formats, Graph, Node, NodeId, Output, Query, Rewrite, Target, ValueDef, ValueId, rewrite};
use smallvec::SmallVec;
use types::{Layout, Map, Scope};

use crate::max_flow::{ENDLESS, Ended, Flow, SINK, SOURCE};
use crate::price::relayout_scope;
use crate::recompute::backward_nodes;
use crate::uses::Uses;

/// The costs of layouts, as one number for each choice. Only their relations matter.
struct LayoutCosts {
    /// The layout that values may have besides row-major.
    blocked: Layout,
    /// By node the cost in row-major and in the other layout; `None` without a kernel.
    cost: Map<NodeId, [Option<u64>; 2]>,
    /// By node: the operands that it reads in the other layout if its result has that.
    reads_blocked: Map<NodeId, SmallVec<[bool; 4]>>,
    /// By node: the operands that it reads in a third layout, converted for it alone, if its result has the other one. The
    /// candidate's cost contains the conversion.
    reads_converted: Map<NodeId, SmallVec<[Option<Layout>; 4]>>,
    /// By node: the results that it writes in the other layout if it works on that.
    writes_blocked: Map<NodeId, SmallVec<[bool; 4]>>,
    /// By value the cost of converting it.
    relayout: Map<ValueId, u64>,
}

impl LayoutCosts {
    fn of(graph: &Graph, target: &dyn Target, blocked: Layout) -> LayoutCosts {
        let mut costs = LayoutCosts {
            blocked,
            cost: Map::new(),
            reads_blocked: Map::new(),
            reads_converted: Map::new(),
            writes_blocked: Map::new(),
            relayout: graph.values().keys().map(|value| target.relayout_cost(graph, value)).collect(),
        };
        for id in graph.nodes().keys() {
            let best = |layout: Layout| {
                let candidates = target.candidates(graph, &[id], &Query::of(Formats::Layout(layout)));
                candidates.ok().and_then(|candidates| candidates.into_iter().next())
            };
            let other = best(blocked);
            let reads =
                |candidate: &Candidate| candidate.operands.iter().map(|operand| operand.layout == blocked).collect();
            let none = |values: &[ValueId]| values.iter().map(|_| false).collect();
            costs.reads_blocked.push(other.as_ref().map_or_else(|| none(&graph.node(id).inputs), reads));
            let third = |layout: Layout| Some(layout).filter(|layout| ![Layout::RowMajor, blocked].contains(layout));
            let converted =
                |candidate: &Candidate| candidate.operands.iter().map(|operand| third(operand.layout)).collect();
            let all_given = || graph.node(id).inputs.iter().map(|_| None).collect();
            costs.reads_converted.push(other.as_ref().map_or_else(all_given, converted));
            let writes = |candidate: &Candidate| {
                let results = [&candidate.result].into_iter().chain(&candidate.further);
                results.map(|result| result.layout == blocked).collect()
            };
            costs.writes_blocked.push(other.as_ref().map_or_else(|| none(&graph.node(id).outputs), writes));
            costs.cost.push([best(Layout::RowMajor), other].map(|candidate| candidate.map(|candidate| candidate.cost)));
        }
        costs
    }
}

/// Channels that may be looked at while the best assignment is sought: far more than networks need.
const BUDGET: u64 = 2_000_000_000;

impl LayoutCosts {
    /// Whether a value is blocked if its node works on blocked values.
    fn may_be_blocked(&self, graph: &Graph, value: ValueId) -> bool {
        match graph.value(value).source {
            ValueDef::Node { node, output } => self.writes_blocked[node][output],
            _ => false,
        }
    }
}

/// Gives values their layouts, at the least time, and adds the relayouts that it takes. Inputs and results of the graph
/// stay row-major.
pub fn assign_layouts(graph: &Graph, target: &dyn Target) -> Graph {
    let Some(blocked) = target.layout() else { return graph.clone() };
    let costs = &LayoutCosts::of(graph, target, blocked);
    let blocked = cheapest(graph, costs);
    let mut writer = Writer {
        graph,
        costs,
        blocked: &blocked,
        converted_again: converted_again(graph, costs, &blocked),
        twin: [(); 2].map(|()| Map::filled(graph.values().len(), None)),
    };
    let mut new = rewrite(graph, |context, id| Some(writer.node(context, id)));
    let row_major = |(old, own): (&Output, &Output)| {
        let twin = writer.twin[0][old.value].filter(|_| new.value(own.value).layout != Layout::RowMajor);
        Output { value: twin.unwrap_or(own.value), ..own.clone() }
    };
    let outputs = graph.outputs().iter().zip(new.outputs()).map(row_major).collect();
    new.replace_outputs(outputs);
    new
}

/// By node: whether its result is blocked.
fn cheapest(graph: &Graph, costs: &LayoutCosts) -> Map<NodeId, bool> {
    let mut flow = Flow::default();
    flow.clear();
    let points: Map<NodeId, usize> = graph.nodes().keys().map(|_| flow.point()).collect();
    for (id, &point) in points.iter() {
        let [row_major, blocked] = costs.cost[id].map(|cost| cost.unwrap_or(ENDLESS));
        flow.channel(point, SINK, row_major);
        flow.channel(SOURCE, point, blocked);
    }
    for (value, readers) in readers(graph, costs, &points).iter() {
        let maker = match graph.value(value).producer() {
            Some(node) if costs.may_be_blocked(graph, value) => points[node],
            _ => SOURCE,
        };
        let time = costs.relayout[value];
        if graph.value(value).tensor().is_some() || readers.is_empty() || time == 0 {
            continue;
        }
        // To blocked, for readers beyond the cut; and back.
        let (to, back) = (flow.point(), flow.point());
        flow.channel(maker, to, time);
        flow.channel(back, maker, time);
        for &reader in readers {
            if reader != SOURCE {
                flow.channel(to, reader, ENDLESS);
            }
            flow.channel(reader, back, ENDLESS);
        }
    }
    let mut budget = BUDGET;
    match flow.maximum(&mut budget, u64::MAX).1 {
        Ended::Maximum => points.values().map(|&point| !flow.is_before_cut(point)).collect(),
        Ended::Enough | Ended::OutOfWork => Map::filled(points.len(), false),
    }
}

/// By value the points that read it: a node's, or the source for who reads row-major in any case.
fn readers(graph: &Graph, costs: &LayoutCosts, points: &Map<NodeId, usize>) -> Map<ValueId, SmallVec<[usize; 2]>> {
    let mut readers: Map<ValueId, SmallVec<[usize; 2]>> = Map::filled(graph.values().len(), SmallVec::new());
    for (id, node) in graph.nodes().iter() {
        for (ix, &input) in node.inputs.iter().enumerate() {
            let reads_blocked = costs.reads_blocked[id][ix];
            readers[input].push(if reads_blocked { points[id] } else { SOURCE });
        }
    }
    graph.outputs().iter().for_each(|output| readers[output.value].push(SOURCE));
    readers
}

/// By node the values of the forward pass that it converts for the backward pass alone, though a node of the forward pass
/// reads them in that layout too: the backward pass reads the same values in their own layout, so that they are saved
/// anyway, and both would be alive in between.
fn converted_again(
    graph: &Graph,
    costs: &LayoutCosts,
    blocked: &Map<NodeId, bool>,
) -> Map<NodeId, SmallVec<[bool; 4]>> {
    let is_backward = backward_nodes(graph, &Uses::new(graph));
    let is_other = |id: NodeId, ix: usize| {
        let value = graph.node(id).inputs[ix];
        let own =
            graph.value(value).producer().is_some_and(|maker| blocked[maker]) && costs.may_be_blocked(graph, value);
        own != (blocked[id] && costs.reads_blocked[id][ix])
    };
    let mut is_saved = Map::filled(graph.values().len(), false);
    for (id, node) in graph.nodes().iter().filter(|(id, _)| is_backward[*id]) {
        for (ix, &input) in node.inputs.iter().enumerate() {
            let is_of_forward = graph.value(input).producer().is_some_and(|maker| !is_backward[maker]);
            is_saved[input] |= is_of_forward && !is_other(id, ix);
        }
    }
    let of_node = |(id, node): (NodeId, &Node)| {
        let is_again = |(ix, &input): (usize, &ValueId)| is_backward[id] && is_saved[input] && is_other(id, ix);
        node.inputs.iter().enumerate().map(is_again).collect()
    };
    graph.nodes().iter().map(of_node).collect()
}

struct Writer<'a> {
    graph: &'a Graph,
    costs: &'a LayoutCosts,
    blocked: &'a Map<NodeId, bool>,
    converted_again: Map<NodeId, SmallVec<[bool; 4]>>,
    /// By old value: the new value in the other layout than its own, once there is one. The second is that of the backward
    /// pass alone.
    twin: [Map<ValueId, Option<ValueId>>; 2],
}

impl Writer<'_> {
    fn node(&mut self, context: &mut Rewrite, id: NodeId) -> SmallVec<[ValueId; 1]> {
        let node = self.graph.node(id);
        let inputs: SmallVec<[ValueId; 4]> = node
            .inputs
            .iter()
            .enumerate()
            .map(|(ix, &input)| {
                let blocked = self.blocked[id] && self.costs.reads_blocked[id][ix];
                let read = self.read(context, input, blocked, usize::from(self.converted_again[id][ix]));
                match self.costs.reads_converted[id][ix].filter(|_| self.blocked[id]) {
                    Some(layout) => relayout(context, read, &node.scope, layout),
                    None => read,
                }
            })
            .collect();
        let outputs = context.new.add(node.op.clone(), &inputs, node.scope.clone()).expect("the types stay");
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            context.new.value_mut(new).name.clone_from(&self.graph.value(old).name);
            if self.blocked[id] && self.costs.may_be_blocked(self.graph, old) {
                context.new.value_mut(new).layout = self.costs.blocked;
                if self.graph.is_output(old) {
                    self.twin[0][old] = Some(relayout(context, new, &node.scope, Layout::RowMajor));
                }
            }
        }
        outputs
    }

    /// A value in the layout of a reader.
    fn read(&mut self, context: &mut Rewrite, old: ValueId, blocked: bool, pass: usize) -> ValueId {
        let value = self.graph.value(old);
        let is_blocked =
            value.producer().is_some_and(|node| self.blocked[node]) && self.costs.may_be_blocked(self.graph, old);
        if value.tensor().is_some() || is_blocked == blocked {
            return context.value(old);
        }
        if let Some(twin) = self.twin[pass][old] {
            return twin;
        }
        let scope =
            value.producer().map_or_else(|| Scope::new(&value.name), |node| self.graph.node(node).scope.clone());
        let new = context.value(old);
        let layout = if blocked { self.costs.blocked } else { Layout::RowMajor };
        let twin = relayout(context, new, &scope, layout);
        self.twin[pass][old] = Some(twin);
        twin
    }
}

fn relayout(context: &mut Rewrite, value: ValueId, scope: &Scope, layout: Layout) -> ValueId {
    let twin = context.add(Relayout {}, &[value], &relayout_scope(scope)).expect("it takes anything");
    context.new.value_mut(twin).layout = layout;
    twin
}

#[cfg(test)]
mod tests {
    use ir::{Op, ops};
    use types::pointwise::Binary;
    use types::{DType, EntityId, Random, Shape};

    use super::*;
    use crate::test_target::TestTarget;

    const BLOCKED: Layout = Layout::ChannelsBlocked(16);

    fn random_graph(random: &mut Random, nodes: usize) -> Graph {
        let mut graph = Graph::new("random");
        let mut values = vec![graph.add_input("x", DType::F32, Shape::from([1, 16, 2, 2]))];
        for ix in 0..nodes {
            let [a, b] = [0, 1].map(|_| values[random.below(values.len() as u64) as usize]);
            let sum = Op::Binary(ops::Binary(Binary::Add));
            values.push(graph.add1(sum, &[a, b], Scope::new(&format!("n{ix}"))).unwrap());
        }
        graph.set_outputs(vec![("y".into(), *values.last().unwrap()), ("z".into(), values[values.len() / 2])]);
        graph
    }

    #[test]
    fn no_assignment_is_cheaper() {
        let mut random = Random::new(8);
        for round in 0..200 {
            let nodes = 1 + random.below(8) as usize;
            let graph = random_graph(&mut random, nodes);
            let mut time = |_: usize| if random.below(8) == 0 { None } else { Some(random.below(40)) };
            // One of the two is always possible.
            let times: Vec<[Option<u64>; 2]> = (0..nodes)
                .map(|ix| match [time(ix), time(ix)] {
                    [None, None] => [Some(5), None],
                    times => times,
                })
                .collect();
            let stem = random.below(nodes as u64) as usize;
            let relayout: Vec<u64> = (0..graph.values().len()).map(|_| random.below(20)).collect();
            let target = TestTarget {
                layout: Some(BLOCKED),
                relayout_costs: relayout.clone(),
                ..TestTarget::new(|graph: &Graph, nodes: &[NodeId], query: &Query| {
                    let Formats::Layout(layout) = query.formats else { return Vec::new() };
                    let candidate = |cost| {
                        let mut candidate = Candidate { cost, ..Candidate::given(graph, nodes[0]) };
                        candidate.operands.iter_mut().for_each(|operand| operand.layout = layout);
                        candidate.result.layout = layout;
                        if nodes[0].index() == stem {
                            candidate.operands[0].layout = Layout::RowMajor;
                        }
                        candidate
                    };
                    times[nodes[0].index()][usize::from(layout == BLOCKED)].map(candidate).into_iter().collect()
                })
            };

            let cost = |assignment: u32| -> Option<u64> {
                let is_blocked = |node: NodeId| assignment >> node.index() & 1 == 1;
                let mut cost = 0;
                for id in graph.nodes().keys() {
                    cost += times[id.index()][usize::from(is_blocked(id))]?;
                }
                for (value, data) in graph.values().iter() {
                    let own = data.producer().is_some_and(is_blocked);
                    let read = |id: NodeId, ix: usize| is_blocked(id) && !(id.index() == stem && ix == 0);
                    let read_other = graph.nodes().iter().any(|(id, node)| {
                        node.inputs.iter().enumerate().any(|(ix, &input)| input == value && read(id, ix) != own)
                    });
                    if read_other || (own && graph.is_output(value)) {
                        cost += relayout[value.index()];
                    }
                }
                Some(cost)
            };
            let least = (0..1u32 << nodes).filter_map(cost).min().unwrap();
            let found = cheapest(&graph, &LayoutCosts::of(&graph, &target, BLOCKED));
            let chosen = found.iter().map(|(id, &blocked)| u32::from(blocked) << id.index()).sum();
            assert_eq!(cost(chosen), Some(least), "round {round}");

            let laid = assign_layouts(&graph, &target);
            ir::verify(&laid).unwrap();
            let x = types::Tensor::from_fn(Shape::from([1, 16, 2, 2]), |ix| ix as f32);
            let x = std::slice::from_ref(&x);
            assert_eq!(ir::evaluate(&laid, x).unwrap(), ir::evaluate(&graph, x).unwrap());
            assert!(laid.outputs().iter().all(|output| laid.value(output.value).layout == Layout::RowMajor));
        }
    }
}
