//! [`Term`]: the derivatives of pointwise functions, one row each, as expressions of the same functions.
//!
//! A gradient is made of these functions, so that fusion, kernels and tests of functions apply to it. A row reads the
//! result where the result determines the derivative (ReLU, the sigmoid, tanh): the operand's bytes then need not be kept.
//! At a kink the derivative is one of the two one-sided ones, that of PyTorch unless a comment at the row names another;
//! of a maximum and minimum it is a half for each operand.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use super::{Binary, Unary};

/// An expression of the operands and the result of a function.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    /// The first operand.
    A,
    /// The second operand.
    B,
    /// The result.
    Y,
    /// A number.
    Number(f32),
    /// A function of a term.
    Unary(Unary, Box<Term>),
    /// A function of two terms.
    Binary(Binary, Box<[Term; 2]>),
}

use Term::{A, B, Number, Y};

impl Term {
    /// The value of the expression.
    pub fn eval(&self, a: f64, b: f64, y: f64) -> f64 {
        match self {
            A => a,
            B => b,
            Y => y,
            Number(number) => f64::from(*number),
            Term::Unary(function, term) => function.eval(term.eval(a, b, y)),
            Term::Binary(function, terms) => function.eval(terms[0].eval(a, b, y), terms[1].eval(a, b, y)),
        }
    }

    fn unary(self, function: Unary) -> Term {
        Term::Unary(function, Box::new(self))
    }

    /// `scale x + shift`.
    fn affine(self, scale: f32, shift: f32) -> Term {
        self.unary(Unary::Affine { scale, shift })
    }

    fn neg(self) -> Term {
        self.unary(Unary::Neg)
    }

    /// 1 where the term is positive, else 0.
    fn positive(self) -> Term {
        self.unary(Unary::Sign).unary(Unary::Relu)
    }

    /// 1 where the term is inside an open interval, 0 at its ends. The term must not be outside.
    fn between(self, min: f32, max: f32) -> Term {
        let (low, high) = (self.clone().affine(1.0, -min), self.affine(-1.0, max));
        match (min.is_finite(), max.is_finite()) {
            (true, true) => (low * high).unary(Unary::Sign),
            (true, false) => low.unary(Unary::Sign),
            (false, true) => high.unary(Unary::Sign),
            (false, false) => Number(1.0),
        }
    }

    /// `one` where `flag` is 1, `other` where it is 0.
    fn choose(flag: Term, one: f32, other: Term) -> Term {
        flag.clone().affine(one, 0.0) + flag.affine(-1.0, 1.0) * other
    }
}

impl std::ops::Add for Term {
    type Output = Term;
    fn add(self, other: Term) -> Term {
        Term::Binary(Binary::Add, Box::new([self, other]))
    }
}

impl std::ops::Sub for Term {
    type Output = Term;
    fn sub(self, other: Term) -> Term {
        Term::Binary(Binary::Sub, Box::new([self, other]))
    }
}

impl std::ops::Mul for Term {
    type Output = Term;
    fn mul(self, other: Term) -> Term {
        Term::Binary(Binary::Mul, Box::new([self, other]))
    }
}

impl std::ops::Div for Term {
    type Output = Term;
    fn div(self, other: Term) -> Term {
        Term::Binary(Binary::Div, Box::new([self, other]))
    }
}

impl Unary {
    /// The derivative; `None` if it is 0 or the result is no number.
    pub fn derivative(self) -> Option<Term> {
        // For `x` below 0, `alpha gamma exp(x)`, which is `y + alpha gamma` where the result has the sign of the operand.
        let exponential = |alpha: f32, gamma: f32| {
            let end = alpha * gamma;
            if 0.0 < alpha && 0.0 < gamma {
                let below = Y.unary(Unary::Clip { min: f32::NEG_INFINITY, max: 0.0 }).affine(1.0, end);
                return Term::choose(Y.positive(), gamma, below);
            }
            let below = A.unary(Unary::Clip { min: f32::NEG_INFINITY, max: 0.0 }).unary(Unary::Exp).affine(end, 0.0);
            Term::choose(A.positive(), gamma, below)
        };
        Some(match self {
            Unary::Abs => A.unary(Unary::Sign),
            Unary::Acos => Number(-1.0) / (A * A).affine(-1.0, 1.0).unary(Unary::Sqrt),
            Unary::Acosh => Number(1.0) / (A * A).affine(1.0, -1.0).unary(Unary::Sqrt),
            Unary::Affine { scale, .. } => Number(scale),
            Unary::Asin => Number(1.0) / (A * A).affine(-1.0, 1.0).unary(Unary::Sqrt),
            Unary::Asinh => Number(1.0) / (A * A).affine(1.0, 1.0).unary(Unary::Sqrt),
            Unary::Atan => Number(1.0) / (A * A).affine(1.0, 1.0),
            Unary::Atanh => Number(1.0) / (A * A).affine(-1.0, 1.0),
            Unary::Ceil | Unary::Floor | Unary::Round | Unary::Sign | Unary::Not => return None,
            Unary::IsNan | Unary::IsInf { .. } => return None,
            Unary::Celu { alpha } => Y.unary(Unary::Clip { min: f32::NEG_INFINITY, max: 0.0 }).affine(1.0 / alpha, 1.0),
            Unary::Clip { min, max } if min < max => Y.between(min, max),
            Unary::Clip { .. } => return None,
            Unary::Cos => A.unary(Unary::Sin).neg(),
            Unary::Cosh => A.unary(Unary::Sinh),
            Unary::Elu { alpha } => exponential(alpha, 1.0),
            Unary::Erf => (A * A).neg().unary(Unary::Exp).affine(FRAC_2_SQRT_PI, 0.0),
            Unary::Exp => Y,
            Unary::Gelu => {
                let part = A.affine(FRAC_1_SQRT_2, 0.0).unary(Unary::Erf).affine(0.5, 0.5);
                let density =
                    (A * A).affine(-0.5, 0.0).unary(Unary::Exp).affine(FRAC_1_SQRT_2 * FRAC_2_SQRT_PI / 2.0, 0.0);
                part + A * density
            }
            Unary::GeluTanh => {
                let root = (2.0 / PI).sqrt();
                let square = || A * A;
                let tanh = || (A * square().affine(root * 0.044715, root)).unary(Unary::Tanh);
                let inner = square().affine(3.0 * root * 0.044715, root);
                tanh().affine(0.5, 0.5) + (A * (tanh() * tanh()).affine(-0.5, 0.5)) * inner
            }
            Unary::HardSigmoid { alpha, .. } => Y.between(0.0, 1.0).affine(alpha, 0.0),
            Unary::HardSwish => {
                let part = || A.unary(Unary::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 });
                part() + A.affine(1.0 / 6.0, 0.0) * part().between(0.0, 1.0)
            }
            Unary::LeakyRelu { alpha } => {
                let has_sign = 0.0 <= alpha;
                if has_sign { Y } else { A }.positive().affine(1.0 - alpha, alpha)
            }
            Unary::Log => Number(1.0) / A,
            Unary::Mish => {
                let tanh = || A.unary(Unary::Softplus).unary(Unary::Tanh);
                tanh() + (A * (tanh() * tanh()).affine(-1.0, 1.0)) * A.unary(Unary::Sigmoid)
            }
            Unary::Neg => Number(-1.0),
            Unary::Reciprocal => (Y * Y).neg(),
            // Not negative, so its sign is 0 or 1.
            Unary::Relu => Y.unary(Unary::Sign),
            Unary::Selu { alpha, gamma } => exponential(alpha, gamma),
            Unary::Sigmoid => Y * Y.affine(-1.0, 1.0),
            Unary::Silu => {
                let part = || A.unary(Unary::Sigmoid);
                part() * (A * part().affine(-1.0, 1.0)).affine(1.0, 1.0)
            }
            Unary::Shrink { lambda, .. } => A.unary(Unary::Abs).affine(1.0, -lambda).positive(),
            Unary::Sin => A.unary(Unary::Cos),
            Unary::Sinh => A.unary(Unary::Cosh),
            Unary::Softplus => A.unary(Unary::Sigmoid),
            Unary::Softsign => {
                let part = || Y.unary(Unary::Abs).affine(-1.0, 1.0);
                part() * part()
            }
            Unary::Sqrt => Number(0.5) / Y,
            Unary::Tan => (Y * Y).affine(1.0, 1.0),
            Unary::Tanh => (Y * Y).affine(-1.0, 1.0),
            Unary::ThresholdedRelu { alpha } if 0.0 <= alpha => Y.unary(Unary::Sign),
            Unary::ThresholdedRelu { alpha } => A.affine(1.0, -alpha).positive(),
        })
    }
}

impl Binary {
    /// The derivatives for both operands; `None` for functions of integers.
    pub fn derivatives(self) -> Option<[Term; 2]> {
        Some(match self {
            Binary::Add => [Number(1.0), Number(1.0)],
            Binary::Div => [Number(1.0) / B, (Y / B).neg()],
            Binary::Max => [(A - B).unary(Unary::Sign).affine(0.5, 0.5), (A - B).unary(Unary::Sign).affine(-0.5, 0.5)],
            Binary::Min => [(A - B).unary(Unary::Sign).affine(-0.5, 0.5), (A - B).unary(Unary::Sign).affine(0.5, 0.5)],
            Binary::Mod | Binary::Rem => [Number(1.0), (Y - A) / B],
            Binary::Mul => [B, A],
            Binary::Pow => {
                let lower = Term::Binary(Binary::Pow, Box::new([A, B.affine(1.0, -1.0)]));
                // 0 and not -inf for a base of 0.
                let is_zero = A.unary(Unary::Abs).unary(Unary::Sign).affine(-1.0, 1.0);
                [B * lower, Y * (A + is_zero).unary(Unary::Log)]
            }
            Binary::PRelu => {
                [Term::choose(A.positive(), 1.0, B), A.unary(Unary::Clip { min: f32::NEG_INFINITY, max: 0.0 })]
            }
            Binary::Sub => [Number(1.0), Number(-1.0)],
            Binary::And | Binary::Or | Binary::Xor | Binary::ShiftLeft | Binary::ShiftRight => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each function, with parameters on both sides of every case.
    fn functions() -> Vec<Unary> {
        use Unary::*;
        let plain = [
            Abs, Acos, Acosh, Asin, Asinh, Atan, Atanh, Ceil, Cos, Cosh, Erf, Exp, Floor, Gelu, GeluTanh, HardSwish,
            IsNan, Log, Mish, Neg, Not, Reciprocal, Relu, Round, Sigmoid, Sign, Silu, Sin, Sinh, Softplus, Softsign,
            Sqrt, Tan, Tanh,
        ];
        let others = [
            Affine { scale: -2.0, shift: 0.5 },
            Celu { alpha: 0.5 },
            Celu { alpha: -0.5 },
            Clip { min: -0.3, max: 0.4 },
            Clip { min: f32::NEG_INFINITY, max: 0.4 },
            Clip { min: -0.3, max: f32::INFINITY },
            Clip { min: f32::NEG_INFINITY, max: f32::INFINITY },
            Clip { min: 0.4, max: -0.3 },
            Elu { alpha: 0.7 },
            Elu { alpha: -0.7 },
            HardSigmoid { alpha: 0.9, beta: 0.4 },
            IsInf { negative: true, positive: true },
            LeakyRelu { alpha: 0.1 },
            LeakyRelu { alpha: -0.1 },
            Selu { alpha: 1.67, gamma: 1.05 },
            Selu { alpha: -1.67, gamma: 1.05 },
            Shrink { bias: 0.1, lambda: 0.3 },
            ThresholdedRelu { alpha: 0.3 },
            ThresholdedRelu { alpha: -0.3 },
        ];
        plain.into_iter().chain(others).collect()
    }

    #[test]
    fn derivatives_match_central_differences() {
        let step = 1e-6;
        let mut compared = 0;
        for function in functions() {
            let mut of_function = 0;
            // No point is within a step of a kink.
            for at in -28..=28 {
                let x = f64::from(at) / 10.0 + 0.0137;
                let (low, high) = (function.eval(x - step), function.eval(x + step));
                if low.is_nan() || high.is_nan() {
                    continue;
                }
                let want = (high - low) / (2.0 * step);
                let got = function.derivative().map_or(0.0, |term| term.eval(x, f64::NAN, function.eval(x)));
                assert!((got - want).abs() <= 2e-6 * want.abs().max(1.0), "{function:?} at {x}: {got} is not {want}");
                of_function += 1;
            }
            assert!(9 <= of_function, "{function:?}: {of_function} points");
            compared += of_function;
        }
        assert!(2500 < compared, "{compared}");
        use Binary::*;
        for function in [Add, Div, Max, Min, Mod, Mul, Pow, PRelu, Rem, Sub] {
            let terms = function.derivatives().expect("it is a function of floats");
            for (ix, term) in terms.iter().enumerate() {
                for a in [-1.37, -0.21, 0.43, 2.9] {
                    for b in [-0.81, 0.3, 1.7] {
                        let [low, high] = [-step, step].map(|step| match ix {
                            0 => function.eval(a + step, b),
                            _ => function.eval(a, b + step),
                        });
                        if low.is_nan() || high.is_nan() {
                            assert!(function == Pow && a < 0.0);
                            continue;
                        }
                        let (want, got) = ((high - low) / (2.0 * step), term.eval(a, b, function.eval(a, b)));
                        let near = (got - want).abs() <= 2e-6 * want.abs().max(1.0);
                        assert!(near, "{function:?} of {a} and {b}, operand {ix}: {got} is not {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn derivatives_at_kinks_are_the_stated_ones() {
        let at = |function: Unary, x: f64| function.derivative().unwrap().eval(x, f64::NAN, function.eval(x));
        assert_eq!(at(Unary::Relu, 0.0), 0.0);
        assert_eq!(at(Unary::Clip { min: 0.0, max: 6.0 }, 0.0), 0.0);
        assert_eq!(at(Unary::LeakyRelu { alpha: 0.25 }, 0.0), 0.25);
        assert_eq!(at(Unary::Abs, 0.0), 0.0);
        let [a, b] = Binary::Max.derivatives().unwrap();
        assert_eq!([a.eval(1.0, 1.0, 1.0), b.eval(1.0, 1.0, 1.0)], [0.5, 0.5]);
        let [_, exponent] = Binary::Pow.derivatives().unwrap();
        assert_eq!(exponent.eval(0.0, 2.0, 0.0), 0.0);
    }
}
