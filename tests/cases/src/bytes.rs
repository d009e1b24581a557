//! Int8 products, convolutions and pools, and chains that quantize and dequantize.

use ir::ops::*;
use ir::{Graph, Op};
use types::{DType, Random, Scope, Shape, Tensor, pointwise};

use crate::{Case, F, case};

/// All cases of this kind.
pub fn all() -> Vec<Case> {
    let scaled = |bias: bool| Epilogue { scale: true, bias, ..Epilogue::default() };
    let mut cases = Vec::new();
    for (zero, k) in [(0, 4), (128, 64), (7, 300)] {
        let product = |epilogue: Epilogue| MatMul { zero, epilogue, ..MatMul::default() };
        cases.push(of_bytes(&format!("sums {zero} {k}"), product(Epilogue::default()), &[9, k], &[k, 21], &[]));
        cases.push(of_bytes(&format!("scaled {zero} {k}"), product(scaled(true)), &[9, k], &[k, 21], &[21, 21]));
        let to_bytes = Epilogue { result: Some(DType::U8), ..scaled(false) };
        cases.push(of_bytes(&format!("to bytes {zero} {k}"), product(to_bytes), &[2, 9, k], &[k, 33], &[33]));
        for stride in [1, 2] {
            let conv = Conv { zero, epilogue: scaled(true), ..Conv::square(stride, 1) };
            let name = format!("images {zero} {k} {stride}");
            cases.push(of_bytes(&name, conv, &[2, 20, 9, 11], &[40, 20, 3, 3], &[40, 40]));
            let each = Conv { zero, groups: 20, epilogue: scaled(false), ..Conv::square(stride, 1) };
            cases.push(of_bytes(&format!("each {name}"), each, &[2, 20, 9, 11], &[20, 1, 3, 3], &[20]));
        }
    }
    use pointwise::{Binary as B, Unary as U};
    let affine = |x: usize, scale: f32, shift: f32| ChainStep::Unary(U::Affine { scale, shift }, x);
    for to in [None, Some(DType::U8), Some(DType::I8)] {
        let steps = vec![affine(0, 0.2531, -7.0013), affine(1, 3.3017, 1.0), ChainStep::Binary(B::Add, 2, 3)];
        let chain = Chain { steps, result: to };
        for (a, b) in [(DType::U8, DType::I8), (F, DType::U8), (DType::I8, F)] {
            let name = format!("chain of {a} and {b} to {to:?}");
            cases.push(case(&name, chain.clone(), &[(a, &[2, 20, 3, 5]), (b, &[20, 1, 1])]));
        }
    }
    let pool = Pool::square(PoolKind::Max, 3, 2, 1);
    cases.push(case("maximum of bytes", pool, &[(DType::U8, &[2, 20, 9, 9])]));
    cases
}

/// A case of one op on a `u8` input, an `i8` weight and `f32` vectors.
fn of_bytes(name: &str, op: impl Into<Op>, x: &[usize], weight: &[usize], vectors: &[usize]) -> Case {
    let mut graph = Graph::new(name);
    let mut random = Random::for_name(6, name);
    let mut ids = vec![graph.add_input("x", DType::U8, x.into())];
    let bytes = Tensor::from_fn(Shape::from(weight), |_| (random.bits() as u8).cast_signed());
    ids.push(graph.add_weight("weight", bytes));
    for (ix, &extent) in vectors.iter().enumerate() {
        let tensor = Tensor::from_fn(Shape::from([extent]), |_| random.uniform(0.5e-4, 1e-4));
        ids.push(graph.add_weight(&format!("v{ix}"), tensor));
    }
    let y = graph.add1(op.into(), &ids, Scope::new("node")).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    graph.set_outputs(vec![("y".into(), y)]);
    Case { name: name.into(), graph }
}
