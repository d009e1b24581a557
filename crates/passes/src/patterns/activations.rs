//! [`match_activations`]: the nodes that exporters write for GELU, SiLU, hard sigmoid and hard swish become one operator.

use ir::ops::{Binary, Unary};
use ir::{Graph, Op, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary as Function2, Unary as Function};

use crate::uses::Uses;

/// Matches hard sigmoid (`clip(x + 3, 0, 6) / 6`), hard swish (`x` times that, the division before or behind the product),
/// SiLU (`x sigmoid(x)`) and both forms of GELU (`x / 2 * (1 + erf(x / sqrt 2))`, factors in any order). Unread
/// nodes are left to `dce`.
pub fn match_activations(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let (x, function) = find(&uses, graph.node(id).outputs[0])?;
        let x = context.value(x);
        Some(smallvec![context.add(Unary(function), &[x], &graph.node(id).scope).ok()?])
    })
}

const HARD_SIGMOID: Function = Function::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 };

/// The argument and the function whose pattern ends in `value`.
fn find(uses: &Uses, value: ValueId) -> Option<(ValueId, Function)> {
    let (_, node) = uses.producer(value)?;
    let Op::Binary(Binary(function)) = node.op else { return None };
    if let Some(found) = gelu(uses, value) {
        return Some(found);
    }
    if let Some(scaled) = by_sixth(uses, value) {
        if let Some(x) = shifted_clip(uses, scaled) {
            return Some((x, HARD_SIGMOID));
        }
        // x * clip(x + 3, 0, 6), divided as a whole.
        let (_, product) = uses.producer(scaled)?;
        if let Op::Binary(Binary(Function2::Mul)) = product.op {
            return gated(&product.inputs, |gate| shifted_clip(uses, gate)).map(|x| (x, Function::HardSwish));
        }
        return None;
    }
    if function != Function2::Mul {
        return None;
    }
    let hard_sigmoid = |gate| {
        let spelled = find(uses, gate).filter(|found| found.1 == HARD_SIGMOID).map(|found| found.0);
        spelled.or_else(|| uses.argument(gate, HARD_SIGMOID))
    };
    let sigmoid = |gate| uses.argument(gate, Function::Sigmoid);
    gated(&node.inputs, hard_sigmoid)
        .map(|x| (x, Function::HardSwish))
        .or_else(|| gated(&node.inputs, sigmoid).map(|x| (x, Function::Silu)))
}

/// The maximum nesting of factors in a GELU pattern.
const FACTORS_MAX: usize = 4;

/// `x / 2 * (1 + erf(x / sqrt 2))`, or with tanh.
fn gelu(uses: &Uses, value: ValueId) -> Option<(ValueId, Function)> {
    let (gate, x, function) = gelu_gate(uses, value, FACTORS_MAX)?;
    let factor = product_of(uses, value, &mut smallvec![x, gate])?;
    (is_near(factor, 0.5) && uses.graph.ty(x) == uses.graph.ty(value)).then_some((x, function))
}

/// The factor of a product that is `1 + erf(x / sqrt 2)` or `1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))`, and its `x`.
fn gelu_gate(uses: &Uses, value: ValueId, depth: usize) -> Option<(ValueId, ValueId, Function)> {
    if depth == 0 {
        return None;
    }
    if let Some(argument) = one_plus(uses, value) {
        let erf = uses.argument(argument, Function::Erf);
        let x = erf.and_then(|scaled| divided(uses, scaled, std::f32::consts::FRAC_1_SQRT_2));
        let tanh = || uses.argument(argument, Function::Tanh);
        let root = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
        let cubed = || tanh().and_then(|scaled| divided(uses, scaled, root)).and_then(|sum| with_cube(uses, sum));
        return x.map(|x| (value, x, Function::Gelu)).or_else(|| cubed().map(|x| (value, x, Function::GeluTanh)));
    }
    let (_, node) = uses.producer(value)?;
    let Op::Binary(Binary(Function2::Mul | Function2::Div)) = node.op else { return None };
    node.inputs.iter().find_map(|&factor| gelu_gate(uses, factor, depth - 1))
}

fn is_near(number: f32, want: f32) -> bool {
    (number - want).abs() < 1e-5 * want.abs()
}

/// `x` of `1 + x`.
fn one_plus(uses: &Uses, value: ValueId) -> Option<ValueId> {
    uses.with_constant(value, Function2::Add).filter(|(_, number)| *number == 1.0).map(|(x, _)| x)
}

/// `x` of `x` times a number, in one step or several.
fn divided(uses: &Uses, mut value: ValueId, number: f32) -> Option<ValueId> {
    let mut factor = 1.0;
    for _ in 0..FACTORS_MAX {
        let (inner, next) = uses.scaled_by_constant(value)?;
        (value, factor) = (inner, factor * next);
        if is_near(factor, number) {
            return Some(value);
        }
    }
    None
}

/// `x` of `x + 0.044715 x^3`.
fn with_cube(uses: &Uses, sum: ValueId) -> Option<ValueId> {
    let [a, b] = uses.operands(sum, Function2::Add)?;
    let is_cube = |x: ValueId, cube: ValueId| {
        let power = || uses.operands(divided(uses, cube, 0.044_715)?, Function2::Pow);
        let product = product_of(uses, cube, &mut smallvec![x, x, x]);
        product.is_some_and(|factor| is_near(factor, 0.044_715))
            || power().is_some_and(|[base, exponent]| base == x && uses.scalar_constant(exponent) == Some(3.0))
    };
    if is_cube(a, b) {
        return Some(a);
    }
    is_cube(b, a).then_some(b)
}

/// The scalar factor of a product in which each of `factors` occurs once; factors found are removed from the list.
fn product_of(uses: &Uses, value: ValueId, factors: &mut SmallVec<[ValueId; 3]>) -> Option<f32> {
    fn walk(uses: &Uses, value: ValueId, factors: &mut SmallVec<[ValueId; 3]>) -> Option<f32> {
        if let Some(ix) = factors.iter().position(|&factor| factor == value) {
            factors.remove(ix);
            return Some(1.0);
        }
        if let Some((inner, number)) = uses.scaled_by_constant(value) {
            return Some(walk(uses, inner, factors)? * number);
        }
        let (_, node) = uses.producer(value)?;
        let Op::Binary(Binary(Function2::Mul)) = node.op else { return None };
        Some(walk(uses, node.inputs[0], factors)? * walk(uses, node.inputs[1], factors)?)
    }
    walk(uses, value, factors).filter(|_| factors.is_empty())
}

/// `x` of a product whose factors are `x` and a gate of `x`, in either order.
fn gated(factors: &[ValueId], gate: impl Fn(ValueId) -> Option<ValueId>) -> Option<ValueId> {
    let [a, b] = *factors else { return None };
    if gate(a) == Some(b) {
        return Some(b);
    }
    (gate(b) == Some(a)).then_some(a)
}

/// `x` of `x / 6` or `x * (1 / 6)`.
fn by_sixth(uses: &Uses, value: ValueId) -> Option<ValueId> {
    uses.scaled_by_constant(value).filter(|(_, number)| is_near(*number, 1.0 / 6.0)).map(|(x, _)| x)
}

/// `x` of `clip(x + 3, 0, 6)`.
fn shifted_clip(uses: &Uses, value: ValueId) -> Option<ValueId> {
    let sum = uses.argument(value, Function::Clip { min: 0.0, max: 6.0 })?;
    let (x, _) = uses.with_constant(sum, Function2::Add).filter(|(_, number)| *number == 3.0)?;
    (uses.graph.ty(x) == uses.graph.ty(sum)).then_some(x)
}

#[cfg(test)]
mod tests {
    use ir::evaluate;
    use types::{DType, Scope, Shape, Tensor};

    use super::*;

    /// The ops of the graph that `spell` builds after the pass, which must keep the results.
    fn found(spell: impl Fn(&mut Builder, ValueId) -> ValueId) -> Vec<&'static str> {
        let mut graph = Graph::new("idiom");
        let x = graph.add_input("x", DType::F32, Shape::from([9]));
        let mut builder = Builder { graph };
        let y = spell(&mut builder, x);
        let mut graph = builder.graph;
        graph.set_outputs(vec![("y".into(), y)]);
        let short = crate::dce(&match_activations(&graph));
        let input = Tensor::vector((0..9).map(|ix| ix as f32 - 4.5).collect());
        let [before, after] =
            [&graph, &short].map(|graph| evaluate(graph, std::slice::from_ref(&input)).unwrap()[0].to_f64());
        before
            .iter()
            .zip(after)
            .for_each(|(before, after)| assert!((before - after).abs() < 1e-5, "{after} for {before}"));
        short
            .nodes()
            .values()
            .map(|node| match &node.op {
                Op::Unary(Unary(function)) => function.name(),
                other => other.name(),
            })
            .collect()
    }

    struct Builder {
        graph: Graph,
    }

    impl Builder {
        fn number(&mut self, number: f32) -> ValueId {
            self.graph.add_constant("number", Tensor::scalar(number))
        }

        fn two(&mut self, function: Function2, a: ValueId, b: ValueId) -> ValueId {
            self.graph.add1(Binary(function).into(), &[a, b], Scope::new("node")).unwrap()
        }

        fn one(&mut self, function: Function, x: ValueId) -> ValueId {
            self.graph.add1(Unary(function).into(), &[x], Scope::new("node")).unwrap()
        }

        fn scaled(&mut self, x: ValueId, factor: f32) -> ValueId {
            let number = self.number(factor);
            self.two(Function2::Mul, number, x)
        }

        fn plus_one(&mut self, x: ValueId) -> ValueId {
            let number = self.number(1.0);
            self.two(Function2::Add, x, number)
        }

        fn erf_gate(&mut self, x: ValueId) -> ValueId {
            let root = self.number(std::f32::consts::SQRT_2);
            let inner = self.two(Function2::Div, x, root);
            let erf = self.one(Function::Erf, inner);
            self.plus_one(erf)
        }

        fn tanh_gate(&mut self, x: ValueId, cube: ValueId, factor: f32) -> ValueId {
            let small = self.scaled(cube, factor);
            let sum = self.two(Function2::Add, x, small);
            let inner = self.scaled(sum, 0.797_884_6);
            let tanh = self.one(Function::Tanh, inner);
            self.plus_one(tanh)
        }
    }

    #[test]
    fn gelu_matches_in_any_order_of_factors() {
        let first_gate = |b: &mut Builder, x| {
            let gate = b.erf_gate(x);
            let product = b.two(Function2::Mul, x, gate);
            b.scaled(product, 0.5)
        };
        let first_half = |b: &mut Builder, x| {
            let gate = b.erf_gate(x);
            let half = b.scaled(x, 0.5);
            b.two(Function2::Mul, half, gate)
        };
        let halved_gate = |b: &mut Builder, x| {
            let gate = b.erf_gate(x);
            let two = b.number(2.0);
            let half = b.two(Function2::Div, gate, two);
            b.two(Function2::Mul, half, x)
        };
        assert_eq!(found(first_gate), ["gelu"]);
        assert_eq!(found(first_half), ["gelu"]);
        assert_eq!(found(halved_gate), ["gelu"]);
        // Of a product of its own.
        assert_eq!(
            found(|b, x| {
                let double = b.scaled(x, 2.0);
                first_half(b, double)
            }),
            ["binary", "gelu"]
        );
    }

    #[test]
    fn gelu_with_tanh_matches() {
        let by_power = |b: &mut Builder, x| {
            let three = b.number(3.0);
            let cube = b.two(Function2::Pow, x, three);
            let gate = b.tanh_gate(x, cube, 0.044_715);
            let half = b.scaled(x, 0.5);
            b.two(Function2::Mul, half, gate)
        };
        let by_products = |b: &mut Builder, x| {
            let square = b.two(Function2::Mul, x, x);
            let cube = b.two(Function2::Mul, square, x);
            let gate = b.tanh_gate(x, cube, 0.044_715);
            let product = b.two(Function2::Mul, gate, x);
            b.scaled(product, 0.5)
        };
        assert_eq!(found(by_power), ["gelu_tanh"]);
        assert_eq!(found(by_products), ["gelu_tanh"]);
    }

    #[test]
    fn other_constants_do_not_match() {
        let other = |b: &mut Builder, x| {
            let gate = b.erf_gate(x);
            let product = b.two(Function2::Mul, x, gate);
            b.scaled(product, 0.51)
        };
        assert!(!found(other).contains(&"gelu"));
        let other = |b: &mut Builder, x| {
            let square = b.two(Function2::Mul, x, x);
            let cube = b.two(Function2::Mul, square, x);
            let gate = b.tanh_gate(x, cube, 0.05);
            let half = b.scaled(x, 0.5);
            b.two(Function2::Mul, half, gate)
        };
        assert!(!found(other).contains(&"gelu_tanh"));
    }
}
