//! [`fused()`]: the sum of an int8 convolution's result and a residual becomes its epilogue.

use ir::ops::{Chain, ChainStep};
use ir::{Formats, Graph, NodeId, Op, Target, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::Map;
use types::pointwise::{Binary as Function2, QuantizedSum, Unary as Function};

use super::has_kernel;
use crate::uses::Uses;

/// The convolution that a sum becomes part of, and its further operand.
#[derive(Clone, Copy)]
struct Fusion {
    conv: NodeId,
    residual: ValueId,
    sum: QuantizedSum,
}

/// Moves the residual sum of an int8 convolution into its epilogue, if nothing else reads the convolution's result and the
/// target has a kernel for both. The new node has the position of the sum.
pub(super) fn fused(graph: &Graph, target: &dyn Target) -> Graph {
    let uses = Uses::new(graph);
    // By sum.
    let mut fusions: Map<NodeId, Option<Fusion>> = Map::filled(graph.nodes().len(), None);
    let mut taken: Map<NodeId, bool> = Map::filled(graph.nodes().len(), false);
    for id in graph.nodes().keys() {
        fusions[id] = fusion(graph, &uses, id, target);
        if let Some(Fusion { conv, .. }) = fusions[id] {
            taken[conv] = true;
        }
    }
    rewrite(graph, |context, id| {
        if taken[id] {
            return Some(SmallVec::new());
        }
        let Fusion { conv, residual, sum } = fusions[id]?;
        let node = graph.node(conv);
        let mut op = node.op.clone();
        let epilogue = op.epilogue_mut().expect("it is a convolution");
        (epilogue.residual, epilogue.quantized_sum) = (true, Some(sum));
        let operands: SmallVec<[ValueId; 4]> =
            node.inputs.iter().chain([&residual]).map(|&old| context.value(old)).collect();
        Some(smallvec![context.add(op, &operands, &node.scope).expect("the residual has the type of the result")])
    })
}

/// How a node that adds two quantized values becomes part of the convolution that yields one of them.
fn fusion(graph: &Graph, uses: &Uses, id: NodeId, target: &dyn Target) -> Option<Fusion> {
    let node = graph.node(id);
    let Op::Chain(chain) = &node.op else { return None };
    let &[left, right] = &node.inputs[..] else { return None };
    let sum = quantized_sum(chain)?;
    let swapped = QuantizedSum { own: sum.residual, residual: sum.own, ..sum };
    [(left, right, sum), (right, left, swapped)].into_iter().find_map(|(own, residual, sum)| {
        let (conv, producer) = uses.producer(own)?;
        let Op::Conv(operator) = &producer.op else { return None };
        let fits = operator.epilogue.scale
            && !operator.epilogue.residual
            && uses.only_reader(own) == Some(id)
            && own != residual
            && [own, residual].iter().all(|&value| graph.ty(value) == graph.ty(node.outputs[0]))
            && graph.value(residual).tensor().is_none()
            && has_kernel(target, graph, conv, Formats::Int8Residual);
        fits.then_some(Fusion { conv, residual, sum })
    })
}

/// The sum of two quantized values that a chain computes, if it computes nothing but that and a clamp.
fn quantized_sum(chain: &Chain) -> Option<QuantizedSum> {
    const INPUTS: usize = 2;
    let limits = chain.result?.byte_limits()?;
    let step = |at: usize| at.checked_sub(INPUTS).map(|ix| chain.steps[ix]);
    // A step as an affine function of an operand.
    let affine = |at: usize| match step(at) {
        Some(ChainStep::Unary(Function::Affine { scale, shift }, of)) => (of, [scale, shift]),
        _ => (at, [1.0, 0.0]),
    };
    let (clamped, result) = affine((INPUTS + chain.steps.len()).checked_sub(1)?);
    let (sum, clamp) = match step(clamped)? {
        ChainStep::Unary(Function::Relu, of) => (of, Some([0.0, f32::INFINITY])),
        ChainStep::Unary(Function::Clip { min, max }, of) => (of, Some([min, max])),
        _ => (clamped, None),
    };
    let [scale, shift] = result;
    let limits = match clamp {
        // The clamp of the results of an increasing function.
        Some(clamp) if 0.0 < scale => [0, 1].map(|ix| match scale * clamp[ix] + shift {
            bound if bound.is_nan() => limits[ix],
            bound => bound.clamp(limits[0], limits[1]),
        }),
        Some(_) => return None,
        None => limits,
    };
    let ChainStep::Binary(Function2::Add, a, b) = step(sum)? else { return None };
    match [affine(a), affine(b)] {
        [(0, own), (1, residual)] | [(1, residual), (0, own)] => {
            Some(QuantizedSum::of_affine(own, residual, result, limits))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use types::DType;

    use super::*;

    #[test]
    fn only_sums_of_two_scaled_operands_match() {
        let affine = |scale: f32, of: usize| ChainStep::Unary(Function::Affine { scale, shift: 1.0 }, of);
        let of = |steps: &[ChainStep]| quantized_sum(&Chain { steps: steps.into(), result: Some(DType::U8) });
        let add = |a, b| ChainStep::Binary(Function2::Add, a, b);
        let found = QuantizedSum { own: 1.0, residual: 1.5, shift: 2.0, limits: [0.0, 255.0] };
        assert_eq!(of(&[affine(2.0, 0), affine(3.0, 1), add(2, 3), affine(0.5, 4)]), Some(found));
        assert_eq!(of(&[affine(3.0, 1), affine(2.0, 0), add(2, 3), affine(0.5, 4)]), Some(found));
        let plain = QuantizedSum { own: 1.0, residual: 3.0, shift: 1.0, limits: [0.0, 255.0] };
        assert_eq!(of(&[affine(3.0, 1), add(0, 2)]), Some(plain));
        assert_eq!(of(&[affine(3.0, 0), add(0, 2)]), None, "one operand twice");
        assert_eq!(of(&[add(0, 1), affine(3.0, 2), add(2, 3)]), None, "a sum of a sum");
        assert_eq!(of(&[ChainStep::Binary(Function2::Mul, 0, 1)]), None);
        let clip = |min: f32, max: f32| ChainStep::Unary(Function::Clip { min, max }, 2);
        let limits = |first, steps: &[ChainStep]| of(&[&[add(0, 1), first], steps].concat()).map(|sum| sum.limits);
        assert_eq!(limits(ChainStep::Unary(Function::Relu, 2), &[affine(2.0, 3)]), Some([1.0, 255.0]));
        assert_eq!(limits(clip(-5.0, 6.0), &[affine(2.0, 3)]), Some([0.0, 13.0]));
        assert_eq!(limits(clip(-5.0, 6.0), &[]), Some([0.0, 6.0]));
        assert_eq!(limits(clip(f32::NAN, 6.0), &[]), Some([0.0, 6.0]), "no lower limit");
        assert_eq!(limits(clip(1.0, f32::NAN), &[]), Some([1.0, 255.0]), "no upper limit");
        assert_eq!(limits(clip(-5.0, 6.0), &[affine(-2.0, 3)]), None, "a decreasing function");
        assert_eq!(limits(ChainStep::Unary(Function::Sigmoid, 2), &[affine(2.0, 3)]), None);
        assert_eq!(of(&[]), None);
        let floats = Chain { steps: [add(0, 1)].as_slice().into(), result: None };
        assert_eq!(quantized_sum(&floats), None);
    }
}
