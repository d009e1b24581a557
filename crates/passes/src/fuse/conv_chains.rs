//! [`fuse_conv_chains`]: consecutive convolutions become one step if the target has a faster kernel for them.

use ir::ops::{Conv, ConvChain};
use ir::{Graph, NodeId, Op, Query, Target, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::{Bytes, Map};

use crate::uses::Uses;

/// The maximum length of a chain: expand, depthwise, project.
const LENGTH_MAX: usize = 3;

/// Joins convolutions each of which alone reads the result of the one before, if the target has a faster kernel for two or
/// three of them as one step. Of all ways to cut a row into runs it takes the one with the least live bytes at a step, and of
/// these the one with the least in sum. The new node has the position of the last one of its run.
pub fn fuse_conv_chains(graph: &Graph, target: &dyn Target) -> Graph {
    let workspace = |run: &[NodeId]| Some(target.candidates(graph, run, &Query::GIVEN).ok()?.first()?.workspace);
    let uses = Uses::new(graph);
    let mut part: Map<NodeId, Part> = Map::filled(graph.nodes().len(), Part::Keep);
    let mut runs: Vec<SmallVec<[NodeId; LENGTH_MAX]>> = Vec::new();
    for id in graph.nodes().keys().filter(|&id| is_head(&uses, id)) {
        let row: Vec<NodeId> = std::iter::successors(Some(id), |&id| next(&uses, id)).collect();
        for run in cut(graph, &row, &workspace) {
            run.iter().for_each(|&node| part[node] = Part::Drop);
            part[run[run.len() - 1]] = Part::Emit(runs.len());
            runs.push(run.into());
        }
    }
    rewrite(graph, |context, id| {
        let run = match part[id] {
            Part::Keep => return None,
            Part::Drop => return Some(SmallVec::new()),
            Part::Emit(ix) => &runs[ix],
        };
        let convs = run.iter().filter_map(|&node| conv(graph, node)).cloned().collect();
        let x = graph.node(run[0]).inputs[0];
        let own = run.iter().flat_map(|&node| &graph.node(node).inputs[1..]);
        let inputs: SmallVec<[ValueId; 8]> = [&x].into_iter().chain(own).map(|&old| context.value(old)).collect();
        let node = graph.node(id);
        let new = context.add(ConvChain { convs }, &inputs, &node.scope).expect("each was accepted by itself");
        let (old, value) = (graph.value(node.outputs[0]), context.new.value_mut(new));
        value.name.clone_from(&old.name);
        value.layout = old.layout;
        Some(smallvec![new])
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Keep,
    Drop,
    Emit(usize),
}

fn conv(graph: &Graph, id: NodeId) -> Option<&Conv> {
    if let Op::Conv(conv) = &graph.node(id).op { Some(conv) } else { None }
}

/// The convolution that is the only reader of a convolution's result, as its first operand.
fn next(uses: &Uses, id: NodeId) -> Option<NodeId> {
    let graph = uses.graph;
    let (before, out) = (conv(graph, id)?, graph.node(id).outputs[0]);
    uses.only_reader(out).filter(|&reader| {
        let operands = &graph.node(reader).inputs;
        let reads = operands.iter().filter(|&&operand| operand == out).count();
        conv(graph, reader).is_some() && operands[0] == out && reads == 1 && !before.epilogue.residual
    })
}

/// Whether a node is the first of a row of convolutions.
fn is_head(uses: &Uses, id: NodeId) -> bool {
    let before = uses.graph.node(id).inputs.first().and_then(|&x| uses.graph.value(x).producer());
    conv(uses.graph, id).is_some() && before.is_none_or(|before| next(uses, before) != Some(id))
}

/// The runs of a row that are fused: dynamic programming from the last node to the first.
fn cut<'a>(
    graph: &Graph,
    row: &'a [NodeId],
    workspace: &dyn Fn(&[NodeId]) -> Option<Bytes>,
) -> impl Iterator<Item = &'a [NodeId]> {
    let bytes = |value: ValueId| {
        let value = graph.value(value);
        value.layout.size(&value.ty.shape, value.ty.dtype).0
    };
    // From each node on: the most bytes of a step, the sum over steps, and the length of the first run.
    let mut best = vec![(0, 0, 1); row.len() + 1];
    for first in (0..row.len()).rev() {
        let lengths = (1..=LENGTH_MAX.min(row.len() - first)).rev();
        let of_length = lengths.filter_map(|length| {
            let run = &row[first..first + length];
            let scratch = if length == 1 { Bytes(0) } else { workspace(run)? };
            let (x, y) = (graph.node(run[0]).inputs[0], graph.node(run[length - 1]).outputs[0]);
            let alive = bytes(x).saturating_add(bytes(y)).saturating_add(scratch.0);
            let (most, sum, _) = best[first + length];
            Some((alive.max(most), alive.saturating_add(sum), length))
        });
        best[first] = of_length.min_by_key(|&(most, sum, _)| (most, sum)).expect("a node may be alone");
    }
    let mut first = 0;
    std::iter::from_fn(move || {
        let &(_, _, length) = best.get(first).filter(|_| first < row.len())?;
        first += length;
        Some(&row[first - length..first])
    })
    .filter(|run| 1 < run.len())
}

#[cfg(test)]
mod tests {
    use types::{DType, Random, Scope, Shape, Tensor};

    use ir::Candidate;

    use super::*;
    use crate::test_target::TestTarget;

    #[test]
    fn fused_chains_match_separate_convolutions() {
        let mut random = Random::new(5);
        let mut graph = Graph::new("runs");
        let mut tensor = |shape: &[usize]| Tensor::from_fn(Shape::from(shape), |_| random.uniform(-1.0, 1.0));
        let x = graph.add_input("x", DType::F32, Shape::from([1, 3, 6, 6]));
        let mut add = |graph: &mut Graph, conv: Conv, weight: &[usize], x: ValueId, residual: Option<ValueId>| {
            let weight = graph.add_weight("w", tensor(weight));
            let mut conv = conv;
            conv.epilogue.residual = residual.is_some();
            let inputs: Vec<ValueId> = [x, weight].into_iter().chain(residual).collect();
            graph.add1(Op::Conv(conv), &inputs, Scope::new("conv")).unwrap()
        };
        let a = add(&mut graph, Conv::square(1, 0), &[4, 3, 1, 1], x, None);
        let b = add(&mut graph, Conv { groups: 4, ..Conv::square(1, 1) }, &[4, 1, 3, 3], a, None);
        let c = add(&mut graph, Conv::square(1, 0), &[3, 4, 1, 1], b, Some(x));
        // A convolution with a residual can only end a run; a result with two readers is in none.
        let d = add(&mut graph, Conv::square(1, 0), &[3, 3, 1, 1], c, None);
        let e = add(&mut graph, Conv::square(2, 1), &[2, 3, 3, 3], d, None);
        graph.set_outputs(vec![("d".into(), d), ("e".into(), e)]);

        type Workspace<'a> = &'a dyn Fn(&Graph, &[NodeId]) -> Option<Bytes>;
        let fuse = |workspace: Workspace| {
            let candidates = |graph: &Graph, run: &[NodeId], _: &Query| {
                let candidate = |workspace| Candidate { workspace, ..Candidate::given(graph, run[run.len() - 1]) };
                workspace(graph, run).map(candidate).into_iter().collect()
            };
            fuse_conv_chains(&graph, &TestTarget::new(candidates))
        };
        let fused = fuse(&|_, _| Some(Bytes(0)));
        ir::verify(&fused).unwrap();
        let names: Vec<&str> = fused.nodes().values().map(|node| node.op.name()).collect();
        assert_eq!(names, ["conv_chain", "conv", "conv"]);
        assert_eq!(fused.flops(), graph.flops());
        let x = [tensor(&[1, 3, 6, 6])];
        let (want, got) = (ir::evaluate(&graph, &x).unwrap(), ir::evaluate(&fused, &x).unwrap());
        assert_eq!(want, got);
        let lengths = |workspace: Workspace| {
            let fused = fuse(workspace);
            let length = |op: &Op| if let Op::ConvChain(chain) = op { chain.convs.len() } else { 1 };
            fused.nodes().values().map(|node| length(&node.op)).collect::<Vec<_>>()
        };
        // 6 x 6 pixels of 3, 4, 4 and 3 channels: either pair leaves 1008 bytes beside the third.
        assert_eq!(lengths(&|_, run| (run.len() == 2).then_some(Bytes(0))), [2, 1, 1, 1]);
        let begins_with = |kernel: usize| {
            move |graph: &Graph, run: &[NodeId]| {
                let is_it = graph.ty(graph.node(run[0]).inputs[1]).shape[2] == kernel;
                (is_it && run.len() == 2).then_some(Bytes(0))
            }
        };
        assert_eq!(lengths(&begins_with(3)), [1, 2, 1, 1]);
        assert_eq!(lengths(&|_, run| (run.len() == 3).then_some(Bytes(1000))), [1; 5], "scratch counts");
        assert_eq!(lengths(&|_, _| None), [1; 5]);
    }
}
