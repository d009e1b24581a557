//! [`recompute`]: cheap values are computed again for the backward pass instead of being saved.
//!
//! The backward pass reads values of the forward pass, which are alive in between: they are most of a training step's memory.
//! Many of them follow from others that are saved anyway by functions of each element: a normalized and rectified
//! value from the result of the convolution in front of it. Such a value gets a second node, in front of its first reader of
//! the backward pass, and is alive for two short times instead of a long one.
//!
//! ```text
//!   conv -> x -> normalize -> relu -> r -> conv ...           saved: x, r
//!           |                         r .... weight gradient
//!           x .... gradient of normalize
//!
//!   conv -> x -> normalize -> relu -> r -> conv ...           saved: x
//!           x .... normalize -> relu -> r' -> weight gradient
//! ```
//!
//! Values in which the backward pass looks for equal elements stay saved: a second copy may be rounded in another way.
//! Copies of elements, such as concatenations and transposed values, are exact. Which of the others are computed again is
//! chosen by the planned peak ([`choose`]): values that depend on one another are alive at once when the first is needed.

mod choose;

use ir::analysis::value_size;
use ir::ops::{Binary, Conv, Epilogue, PoolKind, Reshape, Unary};
use ir::{Graph, Node, NodeId, Op, Refusal, Reuse, Rewrite, ValueDef, ValueId, rewrite};
use smallvec::SmallVec;
use types::pointwise::{Binary as Function2, Unary as Function};
use types::{DType, EntityId, Map, Role, Scope};

use choose::{Choice, Form};

use crate::uses::Uses;

/// The least bytes of a value that is worth computing again.
const BYTES_MIN: u64 = 1 << 12;

/// Computes values again that the backward pass reads and that follow elementwise from values that are saved anyway.
/// Graphs without trained weights stay as they are.
pub fn recompute(graph: &Graph) -> Graph {
    let is_trained = |&state: &ValueId| graph.value(state).role() == Role::Weight;
    if !graph.states().iter().any(is_trained) {
        return graph.clone();
    }
    let plan = RecomputePlan::of(graph);
    let mut clones: Map<ValueId, Option<ValueId>> = Map::filled(graph.values().len(), None);
    let mut again: Vec<std::ops::Range<usize>> = Vec::new();
    let mut new = rewrite(graph, |context, id| {
        let node = graph.node(id);
        let reads_clone = node.inputs.iter().any(|&input| plan.is_recomputed[input]);
        if !plan.is_backward[id] || !reads_clone {
            return None;
        }
        let first = context.new.values().len();
        let inputs: SmallVec<[ValueId; 4]> = node
            .inputs
            .iter()
            .map(|&input| match plan.is_recomputed[input] {
                true => plan.again(context, &mut clones, input),
                false => context.value(input),
            })
            .collect();
        again.push(first..context.new.values().len());
        let outputs = context.new.add(node.op.clone(), &inputs, node.scope.clone()).expect("the types stay");
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            context.new.value_mut(new).name.clone_from(&graph.value(old).name);
        }
        Some(outputs)
    });
    // They are activations like the values that they replace, not gradients like the results of their readers.
    again.into_iter().flatten().for_each(|ix| new.value_mut(ValueId::from_index(ix)).result_role = None);
    new
}

/// The values that are saved and those that are computed again.
struct RecomputePlan<'a> {
    graph: &'a Graph,
    is_backward: Map<NodeId, bool>,
    /// By value whether the backward pass reads a second copy.
    is_recomputed: Map<ValueId, bool>,
}

impl RecomputePlan<'_> {
    fn of(graph: &Graph) -> RecomputePlan<'_> {
        let uses = Uses::new(graph);
        let is_backward = backward_nodes(graph, &uses);
        let forms = forms(graph, &is_backward);
        let operands = |id| operands_again(graph.node(id)).to_vec();
        let choice = Choice::least(&uses, &is_backward, &forms, &operands);
        let mut is_recomputed = Map::filled(graph.values().len(), false);
        for (_, node) in graph.nodes().iter().filter(|(id, _)| !is_backward[*id]) {
            let output = node.outputs[0];
            is_recomputed[output] = choice.is_needed[output]
                && match forms[output] {
                    Form::Cheap => !choice.is_kept[output],
                    Form::View => is_recomputed[node.inputs[0]],
                    Form::Given | Form::Saved => false,
                };
        }
        RecomputePlan { graph, is_backward, is_recomputed }
    }

    /// A value of the copy for the backward pass.
    fn again(&self, context: &mut Rewrite, clones: &mut Map<ValueId, Option<ValueId>>, old: ValueId) -> ValueId {
        if let Some(clone) = clones[old] {
            return clone;
        }
        let ValueDef::Node { node: id, .. } = self.graph.value(old).source else { return context.value(old) };
        if !self.is_recomputed[old] {
            return context.value(old);
        }
        let node = self.graph.node(id);
        let scope = node.scope.child("again");
        let clone = if let Op::BatchNormTraining(norm) = &node.op {
            let x = self.again(context, clones, node.inputs[0]);
            let known = [node.inputs[1], node.inputs[2], node.outputs[1], node.outputs[2]];
            let known = known.map(|value| context.value(value));
            normalized(context, x, known, norm.epsilon, &scope)
        } else {
            let operands: SmallVec<[ValueId; 4]> =
                node.inputs.iter().map(|&input| self.again(context, clones, input)).collect();
            context.add(node.op.clone(), &operands, &scope)
        };
        let clone = clone.expect("the types stay");
        clones[old] = Some(clone);
        clone
    }
}

/// By value how it can be there during the backward pass.
fn forms(graph: &Graph, is_backward: &Map<NodeId, bool>) -> Map<ValueId, Form> {
    let is_compared = compared(graph, is_backward);
    let mut forms = Map::filled(graph.values().len(), Form::Given);
    for (id, node) in graph.nodes().iter() {
        for (number, &output) in node.outputs.iter().enumerate() {
            let is_exact = !is_compared[output] || is_movement(&node.op);
            let is_worth = BYTES_MIN <= value_size(graph, output) && !graph.is_output(output);
            forms[output] = if is_backward[id] || 0 < number {
                Form::Saved
            } else if is_view(graph, node) {
                Form::View
            } else if is_worth && is_exact && is_cheap_here(graph, node) {
                Form::Cheap
            } else {
                Form::Saved
            };
        }
    }
    forms
}

/// The operands from which the first result of a node is computed again. Statistics of a batch are small: they are saved.
fn operands_again(node: &Node) -> &[ValueId] {
    if let Op::BatchNormTraining(_) = node.op { &node.inputs[..1] } else { &node.inputs }
}

/// Whether a node is cheap enough to be computed again.
fn is_cheap_here(graph: &Graph, node: &Node) -> bool {
    let is_f32 = node.inputs.iter().chain(&node.outputs).all(|&value| graph.ty(value).dtype == DType::F32);
    // Normalization is computed again by a convolution, over one or two spatial axes.
    let is_spatial = |value: ValueId| (3..=4).contains(&graph.ty(value).shape.rank());
    let norm_fits = !matches!(node.op, Op::BatchNormTraining(_)) || is_spatial(node.inputs[0]);
    is_f32 && norm_fits && (is_cheap(&node.op) || is_movement(&node.op))
}

/// Normalization by known statistics, as a convolution of each channel by one weight: its kernels take vectors that are
/// computed in the same run, and fuse the functions behind it.
fn normalized(
    context: &mut Rewrite,
    x: ValueId,
    [scale, shift, mean, variance]: [ValueId; 4],
    epsilon: f32,
    scope: &Scope,
) -> Result<ValueId, Refusal> {
    let shape = context.new.ty(x).shape.clone();
    let (channels, spatial) = (shape[1], shape.rank() - 2);
    let shifted = context.add(Unary(Function::Affine { scale: 1.0, shift: epsilon }), &[variance], scope)?;
    let deviation = context.add(Unary(Function::Sqrt), &[shifted], scope)?;
    let factor = context.add(Binary(Function2::Div), &[scale, deviation], scope)?;
    let moved = context.add(Binary(Function2::Mul), &[mean, factor], scope)?;
    let bias = context.add(Binary(Function2::Sub), &[shift, moved], scope)?;
    let weight = [channels, 1].into_iter().chain(std::iter::repeat_n(1, spatial)).collect();
    let weight = context.add(Reshape { shape: weight }, &[factor], scope)?;
    let conv = Conv {
        stride: std::iter::repeat_n(1, spatial).collect(),
        dilation: std::iter::repeat_n(1, spatial).collect(),
        pad: std::iter::repeat_n([0, 0], spatial).collect(),
        groups: channels,
        zero: 0,
        epilogue: Epilogue { bias: true, ..Epilogue::default() },
    };
    context.add(conv, &[x, weight, bias], scope)
}

/// By value whether the backward pass looks for equal elements in it: a copy that is rounded in another way has none.
pub(crate) fn compared(graph: &Graph, is_backward: &Map<NodeId, bool>) -> Map<ValueId, bool> {
    let mut is_compared = Map::filled(graph.values().len(), false);
    for (id, node) in graph.nodes().iter().rev() {
        let compares = is_backward[id] && matches!(node.op, Op::Compare(_) | Op::ArgExtreme(_));
        let views = (is_view(graph, node) || is_movement(&node.op)) && is_compared[node.outputs[0]];
        if compares || views {
            node.inputs.iter().for_each(|&input| is_compared[input] = true);
        }
    }
    is_compared
}

fn is_view(graph: &Graph, node: &Node) -> bool {
    matches!(graph.reuse(node), Reuse::Alias { .. })
}

/// Operators that copy elements.
fn is_movement(op: &Op) -> bool {
    matches!(op, Op::Concat(_) | Op::Slice(_) | Op::Transpose(_))
}

/// Functions of each element that take few processor instructions, and maxima of windows.
fn is_cheap(op: &Op) -> bool {
    if let Op::Unary(Unary(function)) = op {
        return matches!(
            function,
            Function::Relu
                | Function::Clip { .. }
                | Function::LeakyRelu { .. }
                | Function::Affine { .. }
                | Function::Neg
                | Function::Abs
                | Function::HardSigmoid { .. }
                | Function::HardSwish
        );
    }
    if let Op::Binary(Binary(function)) = op {
        return matches!(function, Function2::Add | Function2::Sub | Function2::Mul);
    }
    matches!(op, Op::BatchNormTraining(_)) || matches!(op, Op::Pool(pool) if pool.kind == PoolKind::Max)
}

/// The nodes behind the loss: those that yield gradients or updates, and those that only they read.
pub(crate) fn backward_nodes(graph: &Graph, uses: &Uses) -> Map<NodeId, bool> {
    let is_gradient =
        |&value: &ValueId| matches!(graph.value(value).role(), Role::ActivationGradient | Role::WeightGradient);
    let yields = |node: &Node| matches!(node.op, Op::Update(_)) || node.outputs.iter().any(is_gradient);
    let mut is_backward: Map<NodeId, bool> = graph.nodes().values().map(yields).collect();
    for (id, node) in graph.nodes().iter().rev() {
        let mut readers = node.outputs.iter().flat_map(|&output| uses.readers(output)).peekable();
        let only_they = readers.peek().is_some() && readers.all(|&reader| is_backward[reader]);
        let is_result = node.outputs.iter().any(|&output| graph.is_output(output));
        is_backward[id] |= only_they && !is_result;
    }
    is_backward
}

#[cfg(test)]
mod tests {
    use ir::ops::{BatchNormTraining, Concat, ConvWeightGradient, Reduce, ReduceKind};
    use types::{Random, Shape, Tensor};

    use super::*;

    fn tensor(random: &mut Random, shape: &Shape) -> Tensor {
        Tensor::from_fn(shape.clone(), |_| random.uniform(-1.0, 1.0))
    }

    const BLOCKS: usize = 12;

    /// Blocks of normalization, ReLU and a sum with the value in front, and a backward pass that reads the results of all but
    /// the last block, and what is normalized.
    fn trained(random: &mut Random) -> Graph {
        let mut graph = Graph::new("trained");
        let shape = Shape::from([2, 16, 8, 8]);
        let mut value = graph.add_input("x", DType::F32, shape.clone());
        let mut saved = Vec::new();
        for block in 0..BLOCKS {
            let scope = Scope::new(&format!("block{block}"));
            let mut state = |graph: &mut Graph, name: &str, shape: &[usize]| {
                let initial = tensor(random, &shape.into());
                graph.add_state(&format!("{name}{block}"), initial, Role::Weight)
            };
            let weight = state(&mut graph, "weight", &[16, 16, 3, 3]);
            let (scale, shift) = (state(&mut graph, "scale", &[16]), state(&mut graph, "shift", &[16]));
            let conv = graph.add1(Conv::square(1, 1).into(), &[value, weight], scope.child("conv")).unwrap();
            saved.push((value, conv));
            let norm = BatchNormTraining { epsilon: 1e-3 };
            let norm = graph.add(norm.into(), &[conv, scale, shift], scope.child("norm")).unwrap();
            let sum = graph.add1(Binary(Function2::Add).into(), &[norm[0], value], scope.child("sum")).unwrap();
            value = graph.add1(Unary(Function::Relu).into(), &[sum], scope.child("relu")).unwrap();
        }
        let op = ConvWeightGradient {
            stride: SmallVec::from_slice(&[1, 1]),
            dilation: SmallVec::from_slice(&[1, 1]),
            pad: SmallVec::from_slice(&[[1, 1]; 2]),
            groups: 1,
            kernel: SmallVec::from_slice(&[3, 3]),
        };
        let mut outputs = vec![("y".to_string(), value)];
        let mut dy = graph.add_input("dy", DType::F32, shape);
        for (block, (x, conv)) in saved.into_iter().enumerate().rev() {
            let scope = Scope::new(&format!("block{block}/gradient"));
            dy = graph.add1(Binary(Function2::Mul).into(), &[dy, conv], scope.clone()).unwrap();
            graph.value_mut(dy).result_role = Some(Role::ActivationGradient);
            let dw = graph.add1(op.clone().into(), &[x, dy], scope).unwrap();
            graph.value_mut(dw).result_role = Some(Role::WeightGradient);
            outputs.push((format!("dw{block}"), dw));
        }
        graph.set_outputs(outputs);
        graph
    }

    fn peak(graph: &Graph) -> u64 {
        crate::live_bytes(graph, &crate::MemoryModel::bare(graph)).into_iter().max().unwrap().0
    }

    #[test]
    fn long_rows_of_rectified_values_are_partly_computed_again() {
        let mut random = Random::new(3);
        let graph = trained(&mut random);
        let new = recompute(&graph);
        ir::verify(&new).unwrap();
        let gradients = new.nodes().values().filter(|node| matches!(node.op, Op::ConvWeightGradient(_)));
        let reads = gradients.filter_map(|node| new.value(node.inputs[0]).producer());
        let is_again = |&id: &NodeId| new.node(id).scope.to_string().ends_with("again");
        let again = reads.filter(is_again).count();
        // The input of the first block is no result of a node.
        assert!((2..BLOCKS - 1).contains(&again), "{again} of {} are computed again", BLOCKS - 1);
        // Weights and their gradients are the most of both.
        let (before, after, value) = (peak(&graph), peak(&new), 4 * 2 * 16 * 8 * 8);
        assert!(after + 5 * value <= before, "the peak is {after}, was {before}; a value is {value}");

        let inputs: Vec<Tensor> =
            graph.inputs().iter().map(|&input| tensor(&mut random, &graph.ty(input).shape)).collect();
        let run = |graph: &Graph| ir::evaluate_run(graph, &inputs, &mut ir::initial_states(graph)).unwrap();
        for (want, got) in run(&graph).iter().zip(run(&new)) {
            for (want, got) in want.to_f64().into_iter().zip(got.to_f64()) {
                assert!((want - got).abs() <= 1e-3 * (1.0 + want.abs()), "{got} is not {want}");
            }
        }
    }

    /// Each layer of a dense block appends channels to what is in front; the backward pass reads each concatenation.
    #[test]
    fn parts_of_growing_concatenations_are_saved_instead() {
        let mut random = Random::new(4);
        let mut graph = Graph::new("dense");
        let mut value = graph.add_input("x", DType::F32, Shape::from([2, 16, 8, 8]));
        let mut joined = Vec::new();
        for layer in 0..6 {
            let scope = Scope::new(&format!("layer{layer}"));
            let channels = 16 * (layer + 1);
            let weight = tensor(&mut random, &Shape::from([16, channels, 1, 1]));
            let weight = graph.add_state(&format!("weight{layer}"), weight, Role::Weight);
            let new = graph.add1(Conv::square(1, 0).into(), &[value, weight], scope.child("conv")).unwrap();
            value = graph.add1(Concat { axis: 1 }.into(), &[value, new], scope.child("concat")).unwrap();
            joined.push(value);
        }
        let mut outputs = vec![("y".to_string(), value)];
        joined.pop();
        for (layer, &value) in joined.iter().enumerate().rev() {
            let scope = Scope::new(&format!("layer{layer}/gradient"));
            let square = graph.add1(Binary(Function2::Mul).into(), &[value, value], scope.clone()).unwrap();
            let axes = (0..4).collect();
            let dw = Reduce { kind: ReduceKind::Sum, axes, keep: false };
            let dw = graph.add1(dw.into(), &[square], scope).unwrap();
            graph.value_mut(square).result_role = Some(Role::ActivationGradient);
            graph.value_mut(dw).result_role = Some(Role::WeightGradient);
            outputs.push((format!("dw{layer}"), dw));
        }
        graph.set_outputs(outputs);
        let new = recompute(&graph);
        ir::verify(&new).unwrap();
        let (before, after) = (peak(&graph), peak(&new));
        // Weights are a third of both.
        assert!(after * 6 <= before * 5, "the peak is {after}, was {before}");
        let inputs = [tensor(&mut random, &Shape::from([2, 16, 8, 8]))];
        let run = |graph: &Graph| ir::evaluate_run(graph, &inputs, &mut ir::initial_states(graph)).unwrap();
        assert_eq!(run(&graph), run(&new), "copies are exact");
    }

    #[test]
    fn graphs_without_trained_weights_stay() {
        let mut graph = Graph::new("plain");
        let x = graph.add_input("x", DType::F32, Shape::from([4, 2000]));
        let y = graph.add1(Unary(Function::Relu).into(), &[x], Scope::new("relu")).unwrap();
        let g = graph.add1(Binary(Function2::Mul).into(), &[y, x], Scope::new("gradient")).unwrap();
        graph.value_mut(g).result_role = Some(Role::ActivationGradient);
        graph.set_outputs(vec![("y".into(), y), ("g".into(), g)]);
        assert_eq!(recompute(&graph), graph);
    }
}
