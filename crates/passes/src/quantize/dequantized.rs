//! [`Dequantized`]: a chain that dequantizes int8 values; and the conversion of `i8` activations to `u8`.

use ir::ops::{Chain, ChainStep, Expand, Pool, PoolKind};
use ir::{Graph, Node, NodeId, Op, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Binary as Function2;
use types::{DType, Map, Shape, Tensor};

use super::is_byte;
use crate::uses::Uses;

/// A constant operand of a chain.
#[derive(Clone, Copy)]
pub(super) enum Constant {
    Number(f32),
    Value(ValueId),
}

/// The parts of a dequantizing chain, `(q - zero) * scale`.
pub(super) struct Dequantized {
    pub(super) q: ValueId,
    pub(super) zero: Constant,
    pub(super) scale: Constant,
}

impl Dequantized {
    pub(super) fn of(graph: &Graph, id: NodeId) -> Option<Dequantized> {
        let node = graph.node(id);
        let Op::Chain(Chain { steps, result: None }) = &node.op else { return None };
        #[derive(Clone, Copy)]
        enum Operand {
            Constant(Constant),
            Bytes { zero: Constant },
            Scaled { zero: Constant, scale: Constant },
        }
        let (&q, others) = node.inputs.split_first()?;
        if !is_byte(graph.ty(q).dtype) || others.iter().any(|&other| graph.value(other).tensor().is_none()) {
            return None;
        }
        let mut operands: SmallVec<[Operand; 6]> = smallvec![Operand::Bytes { zero: Constant::Number(0.0) }];
        operands.extend(others.iter().map(|&other| Operand::Constant(Constant::Value(other))));
        for step in steps {
            let operand = match *step {
                ChainStep::Constant(number) => Operand::Constant(Constant::Number(number)),
                ChainStep::Binary(function, a, b) => match (function, operands[a], operands[b]) {
                    (Function2::Sub, Operand::Bytes { .. }, Operand::Constant(zero)) if a == 0 => {
                        Operand::Bytes { zero }
                    }
                    (Function2::Mul, Operand::Bytes { zero }, Operand::Constant(scale)) => {
                        Operand::Scaled { zero, scale }
                    }
                    _ => return None,
                },
                ChainStep::Unary(..) => return None,
            };
            operands.push(operand);
        }
        match operands.last() {
            Some(&Operand::Scaled { zero, scale }) => Some(Dequantized { q, zero, scale }),
            _ => None,
        }
    }

    /// Zero point and scale, if both are scalars.
    pub(super) fn scalars(&self) -> Option<(f32, f32)> {
        match (self.zero, self.scale) {
            (Constant::Number(zero), Constant::Number(scale)) => Some((zero, scale)),
            _ => None,
        }
    }
}

impl Constant {
    /// The constant as a tensor of a shape that it broadcasts to.
    pub(super) fn spread(self, graph: &Graph, shape: &Shape) -> Option<Tensor> {
        let tensor = match self {
            Constant::Number(number) => Tensor::full(shape.clone(), number),
            Constant::Value(value) => {
                let tensor = graph.value(value).tensor()?;
                Op::from(Expand { shape: shape.clone() }).eval(&[tensor]).swap_remove(0)
            }
        };
        (tensor.shape() == shape).then_some(tensor)
    }
}

/// Chains that write `i8` for chains only write `u8` instead, numbers increased by 128. NaN becomes 0 as before, which now stands
/// for another number.
pub(super) fn unsigned(graph: &Graph) -> Graph {
    let moves = movable(graph);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let Op::Chain(chain) = &node.op else { return None };
        let inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&old| context.value(old)).collect();
        if let Some((zero, scale)) = Dequantized::of(graph, id).and_then(|numbers| numbers.scalars()) {
            let of_unsigned = moves[node.inputs[0]].then(|| dequantize(zero + 128.0, scale))?;
            return Some(smallvec![context.add(of_unsigned, &inputs, &node.scope).ok()?]);
        }
        let (mut new, moved) = (chain.clone(), |&ix: &usize| moves[node.inputs[ix]]);
        (0..inputs.len()).filter(moved).for_each(|ix| new = decreased(&new, inputs.len(), ix));
        if moves[node.outputs[0]] {
            let last = inputs.len() + new.steps.len() - 1;
            new.steps.extend([ChainStep::Constant(128.0), ChainStep::Binary(Function2::Add, last, last + 1)]);
            new.result = Some(DType::U8);
        }
        (new != *chain).then_some(())?;
        Some(smallvec![context.add(new, &inputs, &node.scope).expect("`movable` checked its length")])
    })
}

/// A chain that subtracts 128 from an input in front of the first step that reads it.
fn decreased(chain: &Chain, inputs: usize, input: usize) -> Chain {
    let first = chain.steps.iter().position(|step| step.reads(input)).unwrap_or(0);
    let (before, after) = chain.steps.split_at(first);
    let known = inputs + before.len();
    let new = [ChainStep::Constant(128.0), ChainStep::Binary(Function2::Sub, input, known)];
    let operand = |of: usize| match of {
        of if of == input => known + 1,
        of if of < known => of,
        of => of + new.len(),
    };
    let after = after.iter().map(|step| step.with_operands(operand));
    Chain { steps: before.iter().copied().chain(new).chain(after).collect(), result: chain.result }
}

/// `(q - zero) * scale`
fn dequantize(zero: f32, scale: f32) -> Chain {
    use ChainStep::Constant as Number;
    let binary = |function, a, b| ChainStep::Binary(function, a, b);
    let steps = vec![Number(zero), binary(Function2::Sub, 0, 1), Number(scale), binary(Function2::Mul, 2, 3)];
    Chain { steps, result: None }
}

/// The `i8` values that can be `u8`: written by a chain or moved from such values, and read by chains or moved to such values. A
/// chain that dequantizes has a scalar scale. The largest such set.
fn movable(graph: &Graph) -> Map<ValueId, bool> {
    let uses = Uses::new(graph);
    let mut may: Map<ValueId, bool> = Map::filled(graph.values().len(), false);
    graph.nodes().values().flat_map(|node| &node.outputs).for_each(|&out| may[out] = true);
    let stays = |may: &Map<ValueId, bool>, id: NodeId| {
        let (node, out) = (graph.node(id), graph.node(id).outputs[0]);
        let is_moved = || graph.ty(out).dtype == DType::I8 && node.inputs.iter().all(|&input| may[input]);
        let is_made = matches!(node.op, Op::Chain(Chain { result: Some(DType::I8), .. }) if may_be_longer(node))
            || (moves_bytes(&node.op) && is_moved());
        let is_read = |&reader: &NodeId| {
            if moves_bytes(&graph.node(reader).op) {
                return may[graph.node(reader).outputs[0]];
            }
            let is_chain = may_be_longer(graph.node(reader));
            Dequantized::of(graph, reader).map_or(is_chain, |numbers| numbers.q == out && numbers.scalars().is_some())
        };
        is_made && !graph.is_output(out) && uses.readers(out).iter().all(is_read)
    };
    loop {
        let mut changed = false;
        for id in graph.nodes().keys() {
            let outs = &graph.node(id).outputs;
            if may[outs[0]] && !(outs.len() == 1 && stays(&may, id)) {
                outs.iter().for_each(|&out| may[out] = false);
                changed = true;
            }
        }
        if !changed {
            return may;
        }
    }
}

/// Whether a node is a chain with room for a constant and a step for each input and for the result.
fn may_be_longer(node: &Node) -> bool {
    let Op::Chain(chain) = &node.op else { return false };
    let (inputs, steps) = (node.inputs.len(), chain.steps.len());
    inputs + steps + 2 * (inputs + 1) <= Chain::MAX_OPERANDS
}

/// Whether an op's results are elements of its operands, without constants.
fn moves_bytes(op: &Op) -> bool {
    // Padding is not among them: its constant is a number, not a byte.
    matches!(op, Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Concat(_))
        || matches!(op, Op::Pool(Pool { kind: PoolKind::Max, .. }))
}

#[cfg(test)]
mod tests {
    use ir::evaluate;
    use ir::ops::Unary;
    use types::pointwise::Unary as Function;
    use types::{Random, Scope};

    use super::*;

    #[test]
    fn chains_of_unsigned_values_compute_the_same() {
        let add = |a, b| ChainStep::Binary(Function2::Add, a, b);
        let chain = |steps: &[ChainStep], result| Chain { steps: steps.to_vec(), result };
        let affine = |scale, of| ChainStep::Unary(Function::Affine { scale, shift: -3.0 }, of);
        let mut graph = Graph::new("signed");
        let [x, y] = ["x", "y"].map(|name| graph.add_input(name, DType::F32, Shape::from([40])));
        let mut node =
            |op: Op, inputs: &[ValueId], name| graph.add1(op, inputs, Scope::new(name)).expect("it is accepted");
        let [a, b] = [x, y].map(|of| node(chain(&[affine(9.0, 0)], Some(DType::I8)).into(), &[of], "made"));
        let read_twice = chain(&[add(0, 1), add(0, 2), affine(0.5, 3)], Some(DType::I8));
        let both = node(read_twice.into(), &[a, b], "sum");
        let numbers = node(dequantize(7.0, 0.25).into(), &[both], "numbers");
        let output = node(chain(&[affine(2.0, 1), add(2, 0)], None).into(), &[a, both], "output");
        let negative = node(Unary(Function::Neg).into(), &[numbers], "negative");
        graph.set_outputs(vec![("negative".into(), negative), ("output".into(), output)]);

        let moved = unsigned(&graph);
        let signed = moved.values().values().filter(|value| value.ty.dtype == DType::I8).count();
        assert_eq!(signed, 0, "all three values are unsigned");
        let mut random = Random::new(3);
        let inputs = [0, 1].map(|_| Tensor::from_fn(Shape::from([40]), |_| random.uniform(-20.0, 20.0)));
        let results = [&graph, &moved].map(|graph| evaluate(graph, &inputs).expect("it is computed"));
        assert_eq!(results[0], results[1]);
    }
}
