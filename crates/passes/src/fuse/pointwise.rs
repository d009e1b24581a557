//! [`fuse_pointwise`]: adjacent elementwise nodes become one step without intermediate results.

use ir::ops::{Binary, Chain, ChainStep, Unary};
use ir::{Graph, NodeId, Op, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};

use types::{DType, Map};

use crate::uses::Uses;

/// Grows a group backwards from each elementwise node of `f32`: a producer joins if it is elementwise, has the group's shape,
/// and all its readers are in the group. A group of two or more, or one with a scalar constant, becomes a [`Chain`] at the
/// position of its last node. Chains may join; one whose result is not `f32` must be the last of its group.
pub fn fuse_pointwise(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    let mut part: Map<NodeId, Part> = Map::filled(graph.nodes().len(), Part::Keep);
    let mut chains = Vec::new();
    for id in graph.nodes().keys().rev() {
        if part[id] != Part::Keep || !is_pointwise(graph, id) {
            continue;
        }
        let group = grow(&uses, id, &part);
        let Some(chain) = assemble(&uses, &group) else { continue };
        group.iter().for_each(|&node| part[node] = Part::Drop);
        part[id] = Part::Emit(chains.len());
        chains.push(chain);
    }
    rewrite(graph, |context, id| match part[id] {
        Part::Keep => None,
        Part::Drop => Some(SmallVec::new()),
        Part::Emit(ix) => {
            let (inputs, chain) = &chains[ix];
            let inputs: SmallVec<[ValueId; 4]> = inputs.iter().map(|&old| context.value(old)).collect();
            Some(smallvec![context.add(chain.clone(), &inputs, &graph.node(id).scope).expect("types are as they were")])
        }
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Keep,
    Drop,
    Emit(usize),
}

/// Whether a node computes each element from those at the same place, in `f32` or as a chain.
pub(crate) fn is_pointwise(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    if let Op::Chain(_) = node.op {
        // A chain of constants is left to constant folding.
        return node.inputs.iter().any(|&input| graph.value(input).tensor().is_none());
    }
    let in_f32 = node.inputs.iter().chain(&node.outputs).all(|&value| graph.ty(value).dtype == DType::F32);
    in_f32 && matches!(node.op, Op::Unary(_) | Op::Binary(_))
}

/// The group of `root`, sorted: order of execution.
fn grow(uses: &Uses, root: NodeId, part: &Map<NodeId, Part>) -> Vec<NodeId> {
    let graph = uses.graph;
    let shape = &graph.ty(graph.node(root).outputs[0]).shape;
    let mut group = vec![root];
    loop {
        let joins = |candidate: &NodeId| {
            let output = graph.node(*candidate).outputs[0];
            part[*candidate] == Part::Keep
                && !group.contains(candidate)
                && is_pointwise(graph, *candidate)
                && graph.ty(output).dtype == DType::F32
                && graph.ty(output).shape == *shape
                && !graph.is_output(output)
                && uses.readers(output).iter().all(|reader| group.contains(reader))
        };
        let operands = group.iter().flat_map(|&member| graph.node(member).inputs.iter());
        // The latest candidate first: the choice does not depend on how the group came about.
        let next = operands.filter_map(|&value| graph.value(value).producer()).filter(joins).max();
        let Some(next) = next else { return group };
        group.push(next);
        group.sort_unstable();
        if assemble_any(uses, &group).is_none() {
            group.retain(|&member| member != next);
            return group;
        }
    }
}

/// The group as a chain with its inputs, unless a lone node gains nothing by it.
fn assemble(uses: &Uses, group: &[NodeId]) -> Option<(Vec<ValueId>, Chain)> {
    let (inputs, chain) = assemble_any(uses, group)?;
    (chain.steps.len() > 1).then_some((inputs, chain))
}

/// The group as a chain with its inputs, unless it is too large for one.
fn assemble_any(uses: &Uses, group: &[NodeId]) -> Option<(Vec<ValueId>, Chain)> {
    let graph = uses.graph;
    let shape = &graph.ty(graph.node(*group.last()?).outputs[0]).shape;
    let inside = |value: ValueId| graph.value(value).producer().is_some_and(|node| group.contains(&node));
    // A number becomes a step, as long as an input remains that has the result's shape.
    let is_number =
        |value: ValueId| uses.scalar_constant(value).filter(|_| graph.ty(value).shape.rank() <= shape.rank());
    let mut inputs: Vec<ValueId> = Vec::new();
    for &value in group.iter().flat_map(|&member| graph.node(member).inputs.iter()) {
        if !inside(value) && is_number(value).is_none() && !inputs.contains(&value) {
            inputs.push(value);
        }
    }
    let mut broadcast = inputs.iter().map(|&value| &graph.ty(value).shape);
    let spanned = broadcast.try_fold(types::Shape::scalar(), |sum, shape| types::broadcast(&sum, shape).ok());
    if inputs.is_empty() || spanned.as_ref() != Some(shape) {
        return None;
    }
    let mut operand: Vec<(ValueId, usize)> = inputs.iter().copied().zip(0..).collect();
    let mut steps = Vec::new();
    for &member in group {
        let node = graph.node(member);
        let mut find = |steps: &mut Vec<ChainStep>, value: ValueId| {
            if let Some(&(_, ix)) = operand.iter().find(|(known, _)| *known == value) {
                return ix;
            }
            let number = is_number(value).expect("operands are inputs, members or scalar constants");
            steps.push(ChainStep::Constant(number));
            operand.push((value, inputs.len() + steps.len() - 1));
            inputs.len() + steps.len() - 1
        };
        let mut own: Vec<usize> = node.inputs.iter().map(|&input| find(&mut steps, input)).collect();
        let member_steps = if let Op::Chain(chain) = &node.op {
            chain.steps.clone()
        } else if let &Op::Unary(Unary(function)) = &node.op {
            vec![ChainStep::Unary(function, 0)]
        } else {
            let Op::Binary(Binary(function)) = node.op else { return None };
            vec![ChainStep::Binary(function, 0, 1)]
        };
        for step in member_steps {
            steps.push(step.with_operands(|operand| own[operand]));
            own.push(inputs.len() + steps.len() - 1);
        }
        operand.push((node.outputs[0], inputs.len() + steps.len() - 1));
    }
    let fits = inputs.len() <= Chain::MAX_INPUTS && inputs.len() + steps.len() <= Chain::MAX_OPERANDS;
    let result = if let Op::Chain(chain) = &graph.node(*group.last()?).op { chain.result } else { None };
    fits.then_some((inputs, Chain { steps, result }))
}
