//! [`convert_to_half`]: values between kernels in half precision.
//!
//! What a graph takes and gives stays `f32`. In between, whatever a target's kernels read and write as `f16` or `bf16` is
//! stored so; casts stand where a kernel cannot. Kernels compute in `f32` all the same and round their results once, so
//! that only what is stored loses bits: weights, when the plan is written, and results.

use ir::ops::{Binary, Cast, Chain, ChainStep, Unary};
use ir::{
    Candidate, Formats, Graph, Node, NodeId, Op, Output, Query, Rewrite, Target, ValueDef, ValueId, Work, rewrite,
};
use smallvec::SmallVec;
use types::{DType, Map, Role, Scope};

use crate::training::save_in_half;

/// How the kernels of a node support half precision.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HalfSupport {
    /// Not at all.
    None,
    /// These operands must be in half precision. The result may be or not, and a residual has its dtype; other operands are
    /// `f32`.
    Operands(SmallVec<[usize; 2]>),
    /// The result has the dtype of the first operand, or of one of those of a concatenation or of attention's factors.
    /// Chains take any mixture of dtypes.
    Follow,
}

impl HalfSupport {
    fn of(graph: &Graph, id: NodeId, candidates: &[Candidate], half: DType) -> HalfSupport {
        let is_float = |candidate: &&Candidate| candidate.result.dtype == graph.ty(graph.node(id).outputs[0]).dtype;
        match candidates.iter().find(is_float) {
            Some(Candidate { operands, .. }) => {
                HalfSupport::Operands((0..operands.len()).filter(|&ix| operands[ix].dtype == half).collect())
            }
            None if candidates.is_empty() => HalfSupport::None,
            None => HalfSupport::Follow,
        }
    }
}

/// Stores the values between kernels in the target's precision, if it is `f16` or `bf16` and its kernels support that. Of a
/// training step, only what the backward pass reads is stored so.
///
/// # Panics
/// An operator rejects operands that a candidate of the target has.
pub fn convert_to_half(graph: &Graph, target: &dyn Target) -> Graph {
    let dtype = target.precision();
    if !dtype.is_half() {
        return graph.clone();
    }
    if graph.states().iter().any(|&state| graph.value(state).role() == Role::Weight) {
        // Kernels of gradients compute with `f32`, and so do trained weights.
        return save_in_half(graph, dtype);
    }
    let query = Query::of(Formats::Half(dtype));
    let support = |id| HalfSupport::of(graph, id, &target.candidates(graph, &[id], &query).unwrap_or_default(), dtype);
    let kinds: Map<NodeId, HalfSupport> = graph.nodes().keys().map(support).collect();
    let wanted = wanted(graph, &kinds);
    let mut writer = Writer { graph, dtype, wanted: &wanted, twin: Map::filled(graph.values().len(), None) };
    let mut new = rewrite(graph, |context, id| match &kinds[id] {
        HalfSupport::None => Some(writer.as_it_was(context, id)),
        HalfSupport::Operands(operands) => Some(writer.with_halves(context, id, operands)),
        HalfSupport::Follow => Some(writer.like_its_operands(context, id)),
    });
    let outputs = graph.outputs().iter().zip(new.outputs().to_vec()).map(|(old, own)| {
        let narrowed = new.ty(own.value).dtype != graph.ty(old.value).dtype;
        match narrowed {
            true => Output { value: cast(&mut new, own.value, DType::F32, &scope_of(graph, old.value)), ..own },
            false => own,
        }
    });
    let outputs = outputs.collect();
    new.replace_outputs(outputs);
    new
}

/// The values that some node reads as halves, or hands on to one that does.
fn wanted(graph: &Graph, kinds: &Map<NodeId, HalfSupport>) -> Map<ValueId, bool> {
    let mut wanted: Map<ValueId, bool> = Map::filled(graph.values().len(), false);
    for (id, node) in graph.nodes().iter().rev() {
        let is_wanted = wanted[node.outputs[0]];
        match &kinds[id] {
            HalfSupport::None => {}
            HalfSupport::Operands(operands) => operands.iter().for_each(|&ix| wanted[node.inputs[ix]] = true),
            HalfSupport::Follow if is_wanted => {
                followed(graph, node).iter().for_each(|&ix| wanted[node.inputs[ix]] = true)
            }
            HalfSupport::Follow => {}
        }
        if is_wanted && kinds[id] != HalfSupport::None {
            residual(node).into_iter().for_each(|ix| wanted[node.inputs[ix]] = true);
        }
    }
    wanted
}

/// The operands that the result of a node is stored like.
fn followed(graph: &Graph, node: &Node) -> SmallVec<[usize; 4]> {
    if graph.node_axes(node).work == Work::Elementwise || matches!(node.op, Op::Concat(_)) {
        return (0..node.inputs.len()).collect();
    }
    // A mask keeps its dtype.
    let count = if matches!(node.op, Op::Attention(_)) { 3 } else { 1 };
    (0..count).collect()
}

fn residual(node: &Node) -> Option<usize> {
    node.op.epilogue().filter(|epilogue| epilogue.residual).map(|_| node.inputs.len() - 1)
}

struct Writer<'a> {
    graph: &'a Graph,
    dtype: DType,
    wanted: &'a Map<ValueId, bool>,
    /// By old value: the new value in the other dtype than its own, once there is one.
    twin: Map<ValueId, Option<ValueId>>,
}

type Outputs = SmallVec<[ValueId; 1]>;

impl Writer<'_> {
    fn as_it_was(&mut self, context: &mut Rewrite, id: NodeId) -> Outputs {
        self.write(context, id, self.graph.node(id).op.clone(), |_| false)
    }

    fn with_halves(&mut self, context: &mut Rewrite, id: NodeId, operands: &[usize]) -> Outputs {
        let node = self.graph.node(id);
        let to_half = self.wanted[node.outputs[0]];
        let op = if to_half { self.to_half(node) } else { node.op.clone() };
        self.write(context, id, op, |ix| operands.contains(&ix) || (to_half && residual(node) == Some(ix)))
    }

    fn like_its_operands(&mut self, context: &mut Rewrite, id: NodeId) -> Outputs {
        let node = self.graph.node(id);
        let (followed, wanted) = (followed(self.graph, node), self.wanted[node.outputs[0]]);
        let is_half = |ix: &usize| self.is_half(context, node.inputs[*ix]);
        // A table that is looked up is stored as it is wanted.
        let known = followed.iter().all(|&ix| self.graph.value(node.inputs[ix]).tensor().is_some());
        let to_half = (known && wanted) || followed.iter().any(is_half);
        if !to_half {
            return self.as_it_was(context, id);
        }
        let steps = if let Op::Chain(chain) = &node.op {
            chain.steps.clone()
        } else if let Op::Unary(Unary(function)) = &node.op {
            vec![ChainStep::Unary(*function, 0)]
        } else if let Op::Binary(Binary(function)) = &node.op {
            vec![ChainStep::Binary(*function, 0, 1)]
        } else {
            let like = |ix: usize| followed.contains(&ix) || residual(node) == Some(ix);
            return self.write(context, id, self.to_half(node), like);
        };
        let chain = Chain { steps, result: wanted.then_some(self.dtype) };
        let halves: SmallVec<[bool; 4]> = node.inputs.iter().map(|&old| self.is_half(context, old)).collect();
        self.write(context, id, chain.into(), |ix| halves[ix])
    }

    /// A node's op with a result of halves.
    fn to_half(&self, node: &Node) -> Op {
        let mut op = node.op.clone();
        if let Some(epilogue) = op.epilogue_mut() {
            epilogue.result = Some(self.dtype);
        }
        op
    }

    /// Adds `op` in a node's place, with these operands as halves.
    fn write(&mut self, context: &mut Rewrite, id: NodeId, op: Op, is_half: impl Fn(usize) -> bool) -> Outputs {
        let node = self.graph.node(id);
        let inputs: SmallVec<[ValueId; 4]> =
            node.inputs.iter().enumerate().map(|(ix, &old)| self.read(context, old, is_half(ix))).collect();
        let outputs = context.new.add(op, &inputs, node.scope.clone()).expect("there are kernels for it");
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            context.new.value_mut(new).name.clone_from(&self.graph.value(old).name);
        }
        outputs
    }

    /// Whether the new value of an old one that is no half is one.
    fn is_half(&self, context: &mut Rewrite, old: ValueId) -> bool {
        let value = self.graph.value(old);
        value.tensor().is_none() && {
            let new = context.value(old);
            context.new.ty(new).dtype != value.ty.dtype
        }
    }

    /// A value as a half or as it was.
    fn read(&mut self, context: &mut Rewrite, old: ValueId, half: bool) -> ValueId {
        if self.is_half(context, old) == half {
            return context.value(old);
        }
        if let Some(twin) = self.twin[old] {
            return twin;
        }
        let value = self.graph.value(old);
        let rounded = || value.tensor().map(|tensor| tensor.cast(self.dtype));
        let twin = match &value.source {
            ValueDef::Weight(_) => context.new.add_weight(&value.name, rounded().expect("it is known")),
            ValueDef::Constant(_) => context.new.add_constant(&value.name, rounded().expect("it is known")),
            ValueDef::Input | ValueDef::State { .. } | ValueDef::Node { .. } => {
                let (own, to) = (context.value(old), if half { self.dtype } else { value.ty.dtype });
                cast(&mut context.new, own, to, &scope_of(self.graph, old))
            }
        };
        self.twin[old] = Some(twin);
        twin
    }
}

fn cast(graph: &mut Graph, value: ValueId, to: DType, scope: &Scope) -> ValueId {
    graph.add1(Cast { to }.into(), &[value], scope.child(to.name())).expect("it takes anything")
}

/// The scope of the node that makes a value, or the name of an input.
fn scope_of(graph: &Graph, value: ValueId) -> Scope {
    let value = graph.value(value);
    value.producer().map_or_else(|| Scope::new(&value.name), |node| graph.node(node).scope.clone())
}

#[cfg(test)]
mod tests {
    use ir::ops::{Concat, Conv, Gather, MatMul, Pool, PoolKind, Softmax};
    use types::pointwise::{Binary as Function2, Unary as Function};
    use types::{Random, Shape, Tensor};

    use super::*;
    use crate::fuse_epilogues;
    use crate::test_target::TestTarget;

    /// A target with kernels for everything.
    fn target(precision: DType) -> impl Target {
        let candidates = move |graph: &Graph, nodes: &[NodeId], _: &Query| {
            let id = nodes[0];
            match &graph.node(id).op {
                Op::Conv(_) if graph.ty(graph.node(id).inputs[0]).shape[1] == 3 => {
                    Candidate::with_half_operands(graph, id, precision, &[])
                }
                Op::Conv(_) | Op::MatMul(_) => Candidate::with_half_operands(graph, id, precision, &[0, 1]),
                Op::Softmax(_) => Vec::new(),
                _ => Candidate::in_half(graph, id, precision),
            }
        };
        TestTarget { precision, ..TestTarget::new(candidates) }
    }

    fn random(shape: &[usize], random: &mut Random) -> Tensor {
        Tensor::from_fn(Shape::from(shape), |_| random.uniform(-1.0, 1.0))
    }

    #[test]
    fn results_between_kernels_are_half_precision() {
        let (mut graph, mut numbers) = (Graph::new("residual"), Random::new(1));
        let x = graph.add_input("x", DType::F32, Shape::from([1, 3, 8, 8]));
        let mut weight =
            |graph: &mut Graph, name: &str, shape: &[usize]| graph.add_weight(name, random(shape, &mut numbers));
        let add = |graph: &mut Graph, op: Op, inputs: &[ValueId], name: &str| {
            graph.add1(op, inputs, Scope::new(name)).unwrap()
        };
        let stem = weight(&mut graph, "stem", &[8, 3, 3, 3]);
        let a = add(&mut graph, Conv::square(1, 1).into(), &[x, stem], "a");
        let middle = weight(&mut graph, "middle", &[8, 8, 3, 3]);
        let b = add(&mut graph, Conv::square(1, 1).into(), &[a, middle], "b");
        let sum = add(&mut graph, Binary(Function2::Add).into(), &[b, a], "sum");
        let relu = add(&mut graph, Unary(Function::Relu).into(), &[sum], "relu");
        let both = add(&mut graph, Concat { axis: 1 }.into(), &[relu, a], "both");
        let pool = Pool {
            kind: PoolKind::Max,
            kernel: [2, 2].into_iter().collect(),
            stride: [2, 2].into_iter().collect(),
            dilation: [1, 1].into_iter().collect(),
            pad: [[0, 0]; 2].into_iter().collect(),
            ceil: false,
        };
        let pooled = add(&mut graph, pool.into(), &[both], "pooled");
        let last = weight(&mut graph, "last", &[4, 16, 1, 1]);
        let c = add(&mut graph, Conv::square(1, 0).into(), &[pooled, last], "c");
        let y = add(&mut graph, Softmax { axis: 1, log: false }.into(), &[c], "y");
        graph.set_outputs(vec![("y".into(), y), ("features".into(), pooled)]);
        let graph = fuse_epilogues(&graph);
        for dtype in [DType::F16, DType::Bf16] {
            let new = convert_to_half(&graph, &target(dtype));
            ir::verify(&new).unwrap();
            let stored: Vec<(String, DType)> =
                new.nodes().values().map(|node| (node.scope.to_string(), new.ty(node.outputs[0]).dtype)).collect();
            let half = |name: &str| (name.to_string(), dtype);
            let full = |name: &str| (name.to_string(), DType::F32);
            let widened = full("pooled/f32");
            assert_eq!(stored, [half("a"), half("b"), half("both"), half("pooled"), full("c"), full("y"), widened]);
            let dtypes: Vec<DType> = new.outputs().iter().map(|output| new.ty(output.value).dtype).collect();
            assert_eq!(dtypes, [DType::F32; 2], "what a graph gives stays as it was");

            let x = [random(&[1, 3, 8, 8], &mut Random::new(2))];
            let [got, want] = [&new, &graph].map(|graph| ir::evaluate(graph, &x).unwrap());
            for (got, want) in got.iter().zip(&want) {
                let (got, want) = (got.to_f64(), want.to_f64());
                let largest = want.iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
                for (got, want) in got.iter().zip(&want) {
                    assert!((got - want).abs() < 0.02 * largest, "{dtype}: {got} for {want}");
                }
            }
            assert!(got.iter().zip(&want).any(|(got, want)| got.to_f64() != want.to_f64()), "something was rounded");
        }
    }

    #[test]
    fn gathered_tables_are_half_precision() {
        let mut graph = Graph::new("words");
        let ids = graph.add_input("ids", DType::I64, Shape::from([1, 5]));
        let table = graph.add_weight("table", random(&[10, 8], &mut Random::new(3)));
        let weight = graph.add_weight("weight", random(&[8, 8], &mut Random::new(4)));
        let words = graph.add1(Gather { axis: 0 }.into(), &[table, ids], Scope::new("words")).unwrap();
        let y = graph.add1(MatMul::default().into(), &[words, weight], Scope::new("y")).unwrap();
        graph.set_outputs(vec![("y".into(), y)]);
        let new = convert_to_half(&graph, &target(DType::Bf16));
        ir::verify(&new).unwrap();
        let dtypes: Vec<DType> = new.nodes().values().map(|node| new.ty(node.outputs[0]).dtype).collect();
        assert_eq!(dtypes, [DType::Bf16, DType::F32]);
        assert!(new.values().values().filter_map(|value| value.tensor()).all(|tensor| tensor.dtype() == DType::Bf16));
    }
}
