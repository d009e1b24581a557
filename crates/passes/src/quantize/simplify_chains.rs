//! [`shortened()`]: fewer steps in chains that read or write int8.

use ir::ops::{Chain, ChainStep};
use ir::{Graph, Op, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary as Function2, Unary as Function};

use super::is_byte;

/// Chains that read or write int8 with fewer steps: sums and products with constants become one affine step, and a rounding
/// in front of the result's own rounding goes.
pub(super) fn shortened(graph: &Graph) -> Graph {
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let Op::Chain(chain) = &node.op else { return None };
        let mut values = node.inputs.iter().chain(&node.outputs);
        if !values.any(|&value| is_byte(graph.ty(value).dtype)) {
            return None;
        }
        let chain = shorter(chain, node.inputs.len());
        if let ([ChainStep::Unary(Function::Affine { scale, shift }, 0)], [x]) = (&chain.steps[..], &node.inputs[..])
            && (scale - 1.0).abs() < 1e-4
            && shift.abs() < 1e-2
            && graph.ty(*x) == graph.ty(node.outputs[0])
        {
            // Requantizing with (almost) the same scale is the identity: at q = 255 the error is below half a step.
            return Some(smallvec![context.value(*x)]);
        }
        let operands: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&old| context.value(old)).collect();
        Some(smallvec![context.add(chain, &operands, &node.scope).ok()?])
    })
}

fn shorter(chain: &Chain, inputs: usize) -> Chain {
    // By operand: how many steps read it; the number that it is.
    let mut readers = vec![0; inputs + chain.steps.len()];
    let mut numbers: Vec<Option<f32>> = vec![None; inputs];
    for step in &chain.steps {
        match *step {
            ChainStep::Unary(_, a) => readers[a] += 1,
            ChainStep::Binary(_, a, b) => [a, b].into_iter().for_each(|operand| readers[operand] += 1),
            ChainStep::Constant(_) => {}
        }
        numbers.push(if let ChainStep::Constant(number) = *step { Some(number) } else { None });
    }
    let mut steps: Vec<ChainStep> = Vec::new();
    // By old operand: the new one.
    let mut place: Vec<usize> = (0..inputs).collect();
    for step in &chain.steps {
        let affine = match *step {
            ChainStep::Binary(function, a, b) => affine_of(function, numbers[a], numbers[b]).map(|affine| {
                let own = if numbers[a].is_none() { a } else { b };
                (own, affine)
            }),
            ChainStep::Unary(Function::Affine { scale, shift }, a) if numbers[a].is_none() => Some((a, [scale, shift])),
            _ => None,
        };
        let Some((a, [scale, shift])) = affine else {
            if let ChainStep::Constant(_) = step {
                // Emitted where it is read.
                place.push(usize::MAX);
                continue;
            }
            let step = step.with_operands(|old| {
                if let Some(number) = numbers[old] {
                    steps.push(ChainStep::Constant(number));
                    return inputs + steps.len() - 1;
                }
                place[old]
            });
            steps.push(step);
            place.push(inputs + steps.len() - 1);
            continue;
        };
        let is_alone = readers[a] == 1 && place[a] + 1 == inputs + steps.len();
        push_affine(&mut steps, inputs, place[a], [scale, shift], is_alone);
        place.push(inputs + steps.len() - 1);
    }
    // An integer may be added before rounding.
    if chain.result.is_some_and(is_byte)
        && let [.., ChainStep::Unary(Function::Round, before), ChainStep::Unary(Function::Affine { scale, shift }, a)] =
            steps[..]
        && scale == 1.0
        && shift.fract() == 0.0
        && a + 2 == inputs + steps.len()
    {
        steps.truncate(steps.len() - 2);
        let follows = before + 1 == inputs + steps.len();
        push_affine(&mut steps, inputs, before, [scale, shift], follows);
    }
    if chain.result.is_some_and(is_byte)
        && 1 < steps.len()
        && let Some(&ChainStep::Unary(Function::Round, before)) = steps.last()
        && before + 1 == inputs + steps.len() - 1
    {
        steps.pop();
    }
    Chain { steps, result: chain.result }
}

/// `[scale, shift]` of a sum, difference, product or quotient of something and a number.
pub(super) fn affine_of(function: Function2, a: Option<f32>, b: Option<f32>) -> Option<[f32; 2]> {
    match (function, a, b) {
        (Function2::Add, None, Some(number)) | (Function2::Add, Some(number), None) => Some([1.0, number]),
        (Function2::Sub, None, Some(number)) => Some([1.0, -number]),
        (Function2::Mul, None, Some(number)) | (Function2::Mul, Some(number), None) => Some([number, 0.0]),
        (Function2::Div, None, Some(number)) if (1.0 / number).is_finite() => Some([1.0 / number, 0.0]),
        _ => None,
    }
}

/// Applies `scale x + shift` to an operand, merged with the affine step that yields it if that has no other reader.
fn push_affine(steps: &mut Vec<ChainStep>, inputs: usize, operand: usize, [scale, shift]: [f32; 2], is_alone: bool) {
    if is_alone
        && inputs <= operand
        && let Some(ChainStep::Unary(Function::Affine { scale: before, shift: offset }, _)) = steps.last_mut()
    {
        (*before, *offset) = (scale * *before, scale * *offset + shift);
        return;
    }
    steps.push(ChainStep::Unary(Function::Affine { scale, shift }, operand));
}

#[cfg(test)]
mod tests {
    use types::{DType, Random, Shape, Tensor};

    use super::*;

    /// A random chain over int8 and floats that ends in the steps of a quantizer.
    fn program(random: &mut Random, inputs: usize) -> Chain {
        let mut steps = Vec::new();
        let number = |steps: &mut Vec<ChainStep>, number: f32| {
            steps.push(ChainStep::Constant(number));
            inputs + steps.len() - 1
        };
        for _ in 0..random.below(5) {
            let known = random.below((inputs + steps.len()) as u64) as usize;
            let other = random.below((inputs + steps.len()) as u64) as usize;
            match random.below(5) {
                0 => steps.push(ChainStep::Binary(Function2::Add, known, other)),
                1 => steps.push(ChainStep::Unary(Function::Relu, known)),
                2 => {
                    let by = number(&mut steps, random.uniform(0.3, 1.3));
                    steps.push(ChainStep::Binary(Function2::Mul, by, known));
                }
                3 => {
                    let by = number(&mut steps, random.uniform(-9.0, 9.0));
                    steps.push(ChainStep::Binary(Function2::Sub, known, by));
                }
                _ => steps.push(ChainStep::Unary(Function::Affine { scale: 0.7, shift: 1.3 }, known)),
            }
        }
        let x = inputs + steps.len() - 1;
        let scale = number(&mut steps, random.uniform(1.0, 3.0));
        steps.push(ChainStep::Binary(Function2::Div, x, scale));
        steps.push(ChainStep::Unary(Function::Round, inputs + steps.len() - 1));
        let rounded = inputs + steps.len() - 1;
        let zero = number(&mut steps, random.below(200) as f32);
        steps.push(ChainStep::Binary(Function2::Add, rounded, zero));
        if random.below(2) == 0 {
            // The shift of a converted `i8`.
            let moved = inputs + steps.len() - 1;
            let by = number(&mut steps, 128.0);
            steps.push(ChainStep::Binary(Function2::Add, moved, by));
        }
        Chain { steps, result: Some(DType::U8) }
    }

    #[test]
    fn simplified_chains_match_within_rounding() {
        let mut random = Random::new(12);
        let mut shortened = 0;
        for _ in 0..500 {
            let chain = program(&mut random, 2);
            let short = shorter(&chain, 2);
            assert!(short.steps.len() < chain.steps.len(), "{chain:?}");
            shortened += chain.steps.len() - short.steps.len();
            let bytes = Tensor::from_fn(Shape::from([64]), |_| random.bits() as u8);
            let numbers = Tensor::from_fn(Shape::from([64]), |_| random.uniform(-50.0, 300.0));
            let [want, got] =
                [&chain, &short].map(|chain| Op::from(chain.clone()).eval(&[&bytes, &numbers])[0].to_f64());
            for (got, want) in got.iter().zip(&want) {
                // Ties may round to the other neighbor.
                assert!((got - want).abs() <= 1.0, "{got} for {want}: {chain:?}, {short:?}");
            }
            let others = got.iter().zip(&want).filter(|(got, want)| got != want).count();
            assert!(others <= 2, "{others} others: {chain:?}, {short:?}");
        }
        assert!(2000 < shortened, "{shortened}");
    }
}
