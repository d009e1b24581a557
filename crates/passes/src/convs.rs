//! [`fuse_convs`]: convolutions in a row become one step, where a target is faster so.

use ir::ops::{Conv, ConvChain};
use ir::{Graph, NodeId, Op, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::Map;

use crate::common::Uses;

/// Convolutions of a chain at most: expand, depthwise, project.
const LENGTH_MAX: usize = 3;

/// Joins convolutions of which each is read by the next alone. `is_faster` is asked about runs of two and three nodes, in
/// order, the longer ones first; the joined node stands where the last of them stood.
pub fn fuse_convs(graph: &Graph, is_faster: &dyn Fn(&Graph, &[NodeId]) -> bool) -> Graph {
    let uses = Uses::new(graph);
    let mut part: Map<NodeId, Part> = Map::filled(graph.nodes().len(), Part::Keep);
    let mut runs = Vec::new();
    for id in graph.nodes().keys() {
        let run = run_from(&uses, id);
        let Some(run) = (2..=run.len())
            .rev()
            .map(|length| &run[..length])
            .find(|run| run.iter().all(|&node| part[node] == Part::Keep) && is_faster(graph, run))
        else {
            continue;
        };
        run.iter().for_each(|&node| part[node] = Part::Drop);
        part[run[run.len() - 1]] = Part::Emit(runs.len());
        runs.push(run.to_vec());
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
    match &graph.node(id).op {
        Op::Conv(conv) => Some(conv),
        _ => None,
    }
}

/// The convolutions from a node on of which each is the only reader of the one before, and only its first operand.
fn run_from(uses: &Uses, first: NodeId) -> SmallVec<[NodeId; LENGTH_MAX]> {
    let mut run: SmallVec<[NodeId; LENGTH_MAX]> = SmallVec::new();
    let mut next = Some(first);
    while let Some(id) = next.filter(|&id| conv(uses.graph, id).is_some() && run.len() < LENGTH_MAX) {
        run.push(id);
        let node = uses.graph.node(id);
        next = uses.only_reader(node.outputs[0]).filter(|&reader| {
            let operands = &uses.graph.node(reader).inputs;
            let reads = operands.iter().filter(|&&operand| operand == node.outputs[0]).count();
            let has_residual = conv(uses.graph, id).is_some_and(|conv| conv.epilogue.residual);
            operands[0] == node.outputs[0] && reads == 1 && !has_residual
        });
    }
    run
}

#[cfg(test)]
mod tests {
    use types::{DType, Random, Scope, Shape, Tensor};

    use super::*;

    #[test]
    fn runs_are_joined_and_compute_the_same() {
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
        // A convolution with a residual only ends a run; what is read twice is in none.
        let d = add(&mut graph, Conv::square(1, 0), &[3, 3, 1, 1], c, None);
        let e = add(&mut graph, Conv::square(2, 1), &[2, 3, 3, 3], d, None);
        graph.set_outputs(vec![("d".into(), d), ("e".into(), e)]);

        let fused = fuse_convs(&graph, &|_, _| true);
        ir::verify(&fused).unwrap();
        let names: Vec<&str> = fused.nodes().values().map(|node| node.op.name()).collect();
        assert_eq!(names, ["conv_chain", "conv", "conv"]);
        assert_eq!(fused.flops(), graph.flops());
        let x = [tensor(&[1, 3, 6, 6])];
        let (want, got) = (ir::evaluate(&graph, &x).unwrap(), ir::evaluate(&fused, &x).unwrap());
        assert_eq!(want, got);
        assert_eq!(fuse_convs(&graph, &|_, run| run.len() == 2).nodes().len(), 4);
        assert_eq!(fuse_convs(&graph, &|_, _| false).nodes().len(), 5);
    }
}
