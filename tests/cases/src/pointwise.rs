//! Elementwise functions, comparisons, casts and chains of them.

use ir::ops::*;
use types::{DType, pointwise};

use crate::{Case, F, case};

/// All cases of this kind.
pub fn all() -> Vec<Case> {
    use pointwise::{Binary as B, Compare as C, Unary as U};
    let unary = [
        U::Abs,
        U::Affine { scale: 1.7, shift: -0.3 },
        U::Atan,
        U::Ceil,
        U::Celu { alpha: 0.7 },
        U::Clip { min: -0.3, max: 0.4 },
        U::Cos,
        U::Elu { alpha: 1.2 },
        U::Erf,
        U::Exp,
        U::Floor,
        U::Gelu,
        U::GeluTanh,
        U::HardSigmoid { alpha: 0.2, beta: 0.5 },
        U::HardSwish,
        U::LeakyRelu { alpha: 0.1 },
        U::Mish,
        U::Neg,
        U::Relu,
        U::Round,
        U::Selu { alpha: 1.67, gamma: 1.05 },
        U::Sigmoid,
        U::Sign,
        U::Silu,
        U::Shrink { bias: 0.1, lambda: 0.2 },
        U::Sin,
        U::Softplus,
        U::Softsign,
        U::Tan,
        U::Tanh,
        U::ThresholdedRelu { alpha: 0.2 },
        U::IsNan,
        U::IsInf { negative: true, positive: true },
    ];
    let mut cases: Vec<Case> = unary.iter().map(|&f| case(f.name(), Unary(f), &[(F, &[3, 7, 5])])).collect();
    for f in [B::Add, B::Sub, B::Mul, B::Div, B::Max, B::Min, B::PRelu, B::Pow, B::Mod, B::Rem] {
        for (a, b) in [(&[2, 3, 4][..], &[2, 3, 4][..]), (&[2, 3, 4], &[4]), (&[3, 1], &[2, 1, 5]), (&[], &[3])] {
            cases.push(case(&format!("{} {a:?} {b:?}", f.name()), Binary(f), &[(F, a), (F, b)]));
        }
        cases.push(case(&format!("{} i64", f.name()), Binary(f), &[(DType::I64, &[2, 5]), (DType::I64, &[5])]));
    }
    for f in [B::And, B::Or, B::Xor] {
        cases.push(case(f.name(), Binary(f), &[(DType::Bool, &[4, 3]), (DType::Bool, &[3])]));
    }
    for f in [C::Equal, C::Greater, C::GreaterOrEqual, C::Less, C::LessOrEqual] {
        for dtype in [F, DType::I32, DType::U8] {
            cases.push(case(&format!("{} {dtype}", f.name()), Compare(f), &[(dtype, &[4, 3]), (dtype, &[4, 1])]));
        }
    }
    // Several registers of elements, and runs that end within one.
    let (a, b): (&[usize], &[usize]) = (&[3, 150, 3], &[150, 1]);
    for dtype in [DType::I8, DType::U8, DType::I32, DType::I64, DType::U64, DType::F64] {
        let two = [(dtype, a), (dtype, b)];
        cases.push(case(&format!("less {dtype} {a:?}"), Compare(C::Less), &two));
        cases.push(case(&format!("add {dtype} {a:?}"), Binary(B::Add), &two));
        cases.push(case(&format!("mul {dtype} {a:?}"), Binary(B::Mul), &two));
        let three = [(DType::Bool, a), (dtype, b), (dtype, a)];
        cases.push(case(&format!("select {dtype} {a:?}"), Select {}, &three));
        cases.push(case(&format!("neg {dtype}"), Unary(U::Neg), &[(dtype, &[7, 43])]));
        for to in [DType::Bool, DType::U8, DType::I32, DType::I64, DType::F64].into_iter().filter(|&to| to != dtype) {
            cases.push(case(&format!("{dtype} to {to}"), Cast { to }, &[(dtype, &[7, 43])]));
        }
    }
    cases.push(case("one-hot", Compare(C::Equal), &[(DType::I64, &[9, 1]), (DType::I64, &[257])]));
    cases.push(case("select", Select {}, &[(DType::Bool, &[2, 1]), (F, &[3]), (F, &[2, 3])]));
    for to in DType::ALL {
        cases.push(case(&format!("cast to {to}"), Cast { to }, &[(F, &[5])]));
        cases.push(case(&format!("cast from {to}"), Cast { to: F }, &[(to, &[5])]));
    }
    let steps = vec![
        ChainStep::Constant(0.5),
        ChainStep::Binary(B::Mul, 0, 2),
        ChainStep::Binary(B::Add, 3, 1),
        ChainStep::Unary(U::Tanh, 4),
    ];
    for (a, b) in [
        (&[3, 1, 5][..], &[1, 7, 1][..]),
        (&[1], &[129, 3]),
        (&[2, 3, 4, 5], &[3, 1, 1]),
        (&[5, 1, 3, 1], &[4, 1, 65]),
        (&[257], &[3, 257]),
        (&[3, 257], &[3, 1]),
        (&[255], &[255]),
        (&[256], &[1]),
        (&[70_001], &[70_001]),
    ] {
        cases.push(case(&format!("spread {a:?} {b:?}"), Binary(B::Sub), &[(F, a), (F, b)]));
    }
    for (a, b) in [(&[2, 3, 70][..], &[3, 1][..]), (&[2, 3, 70], &[70]), (&[600], &[600]), (&[1, 1], &[2, 300])] {
        cases.push(case(
            &format!("chain {a:?} {b:?}"),
            Chain { steps: steps.clone(), result: None },
            &[(F, a), (F, b)],
        ));
    }
    cases
}
