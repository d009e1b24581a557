//! Pointwise functions: names and definitions, one row each.
//!
//! `eval` is the definition, in `f64` (or `i64` for integers). Executors have faster forms and are tested against it.
//! `derivative` is an expression of the same functions ([`Term`]). A new function is one variant and one row of `eval` and
//! of `derivative`; the CPU falls back to `eval`, and for CUDA it needs a function in `cuda/pointwise.cu`.

mod derivative;

use serde::{Deserialize, Serialize};

pub use derivative::Term;

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "`eval` is the definition")]
pub enum Unary {
    Abs,
    Acos,
    Acosh,
    /// `scale x + shift`.
    Affine {
        scale: f32,
        shift: f32,
    },
    Asin,
    Asinh,
    Atan,
    Atanh,
    Ceil,
    Celu {
        alpha: f32,
    },
    /// Limits to `[min, max]`; NaN stays NaN.
    Clip {
        min: f32,
        max: f32,
    },
    Cos,
    Cosh,
    Elu {
        alpha: f32,
    },
    Erf,
    Exp,
    Floor,
    /// `x Φ(x)`, with the error function.
    Gelu,
    /// `x Φ(x)`, approximated with tanh (Hendrycks & Gimpel 2016).
    GeluTanh,
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    HardSwish,
    /// 1 for NaN, else 0.
    IsNan,
    /// 1 for an infinity of a chosen sign, else 0.
    IsInf {
        negative: bool,
        positive: bool,
    },
    LeakyRelu {
        alpha: f32,
    },
    Log,
    Mish,
    Neg,
    /// 1 for 0, else 0.
    Not,
    Reciprocal,
    Relu,
    /// To the nearest integer, ties to even.
    Round,
    Selu {
        alpha: f32,
        gamma: f32,
    },
    Sigmoid,
    Sign,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    Shrink {
        bias: f32,
        lambda: f32,
    },
    Sin,
    Sinh,
    Softplus,
    Softsign,
    Sqrt,
    Tan,
    Tanh,
    ThresholdedRelu {
        alpha: f32,
    },
}

impl Unary {
    /// Whether processors need only a few instructions for it, without a division, a root or an exponential.
    pub fn is_simple(self) -> bool {
        matches!(
            self,
            Unary::Abs
                | Unary::Affine { .. }
                | Unary::Ceil
                | Unary::Clip { .. }
                | Unary::Floor
                | Unary::HardSigmoid { .. }
                | Unary::HardSwish
                | Unary::IsInf { .. }
                | Unary::IsNan
                | Unary::LeakyRelu { .. }
                | Unary::Neg
                | Unary::Not
                | Unary::Relu
                | Unary::Round
                | Unary::Sign
        )
    }

    /// The definition.
    pub fn eval(self, x: f64) -> f64 {
        let flag = |yes: bool| if yes { 1.0 } else { 0.0 };
        match self {
            Unary::Abs => x.abs(),
            Unary::Acos => x.acos(),
            Unary::Acosh => x.acosh(),
            Unary::Affine { scale, shift } => f64::from(scale) * x + f64::from(shift),
            Unary::Asin => x.asin(),
            Unary::Asinh => x.asinh(),
            Unary::Atan => x.atan(),
            Unary::Atanh => x.atanh(),
            Unary::Ceil => x.ceil(),
            Unary::Celu { alpha } => {
                if x < 0.0 {
                    f64::from(alpha) * (x / f64::from(alpha)).exp_m1()
                } else {
                    x
                }
            }
            Unary::Clip { min, max } => clip(x, f64::from(min), f64::from(max)),
            Unary::Cos => x.cos(),
            Unary::Cosh => x.cosh(),
            Unary::Elu { alpha } => {
                if x < 0.0 {
                    f64::from(alpha) * x.exp_m1()
                } else {
                    x
                }
            }
            Unary::Erf => libm::erf(x),
            Unary::Exp => x.exp(),
            Unary::Floor => x.floor(),
            Unary::Gelu => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Unary::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Unary::HardSigmoid { alpha, beta } => clip(f64::from(alpha) * x + f64::from(beta), 0.0, 1.0),
            Unary::HardSwish => x * clip(x / 6.0 + 0.5, 0.0, 1.0),
            Unary::IsNan => flag(x.is_nan()),
            Unary::IsInf { negative, positive } => {
                flag((positive && x == f64::INFINITY) || (negative && x == f64::NEG_INFINITY))
            }
            Unary::LeakyRelu { alpha } => {
                if x < 0.0 {
                    f64::from(alpha) * x
                } else {
                    x
                }
            }
            Unary::Log => x.ln(),
            Unary::Mish => x * softplus(x).tanh(),
            Unary::Neg => -x,
            Unary::Not => flag(x == 0.0),
            Unary::Reciprocal => 1.0 / x,
            Unary::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Unary::Round => x.round_ties_even(),
            Unary::Selu { alpha, gamma } => f64::from(gamma) * if x <= 0.0 { f64::from(alpha) * x.exp_m1() } else { x },
            Unary::Sigmoid => sigmoid(x),
            Unary::Sign => {
                if x > 0.0 {
                    1.0
                } else if x < 0.0 {
                    -1.0
                } else {
                    x
                }
            }
            Unary::Silu => x * sigmoid(x),
            Unary::Shrink { bias, lambda } => {
                let (bias, lambda) = (f64::from(bias), f64::from(lambda));
                if x < -lambda {
                    x + bias
                } else if x > lambda {
                    x - bias
                } else {
                    0.0
                }
            }
            Unary::Sin => x.sin(),
            Unary::Sinh => x.sinh(),
            Unary::Softplus => softplus(x),
            Unary::Softsign => x / (1.0 + x.abs()),
            Unary::Sqrt => x.sqrt(),
            Unary::Tan => x.tan(),
            Unary::Tanh => x.tanh(),
            Unary::ThresholdedRelu { alpha } => {
                if x > f64::from(alpha) {
                    x
                } else {
                    0.0
                }
            }
        }
    }

    /// The definition for integers and booleans; `None` if the function has none.
    pub fn eval_i64(self, x: i64) -> Option<i64> {
        match self {
            Unary::Abs => Some(x.wrapping_abs()),
            Unary::Neg => Some(x.wrapping_neg()),
            Unary::Not => Some(i64::from(x == 0)),
            Unary::Relu => Some(x.max(0)),
            Unary::Sign => Some(x.signum()),
            Unary::Clip { min, max } => Some(if x as f64 <= f64::from(min) {
                min as i64
            } else if f64::from(max) <= x as f64 {
                max as i64
            } else {
                x
            }),
            Unary::Ceil | Unary::Floor | Unary::Round => Some(x),
            _ => None,
        }
    }

    /// The name in messages and dumps.
    pub fn name(self) -> &'static str {
        match self {
            Unary::Abs => "abs",
            Unary::Acos => "acos",
            Unary::Acosh => "acosh",
            Unary::Affine { .. } => "affine",
            Unary::Asin => "asin",
            Unary::Asinh => "asinh",
            Unary::Atan => "atan",
            Unary::Atanh => "atanh",
            Unary::Ceil => "ceil",
            Unary::Celu { .. } => "celu",
            Unary::Clip { .. } => "clip",
            Unary::Cos => "cos",
            Unary::Cosh => "cosh",
            Unary::Elu { .. } => "elu",
            Unary::Erf => "erf",
            Unary::Exp => "exp",
            Unary::Floor => "floor",
            Unary::Gelu => "gelu",
            Unary::GeluTanh => "gelu_tanh",
            Unary::HardSigmoid { .. } => "hard_sigmoid",
            Unary::HardSwish => "hard_swish",
            Unary::IsNan => "is_nan",
            Unary::IsInf { .. } => "is_inf",
            Unary::LeakyRelu { .. } => "leaky_relu",
            Unary::Log => "log",
            Unary::Mish => "mish",
            Unary::Neg => "neg",
            Unary::Not => "not",
            Unary::Reciprocal => "reciprocal",
            Unary::Relu => "relu",
            Unary::Round => "round",
            Unary::Selu { .. } => "selu",
            Unary::Sigmoid => "sigmoid",
            Unary::Sign => "sign",
            Unary::Silu => "silu",
            Unary::Shrink { .. } => "shrink",
            Unary::Sin => "sin",
            Unary::Sinh => "sinh",
            Unary::Softplus => "softplus",
            Unary::Softsign => "softsign",
            Unary::Sqrt => "sqrt",
            Unary::Tan => "tan",
            Unary::Tanh => "tanh",
            Unary::ThresholdedRelu { .. } => "thresholded_relu",
        }
    }
}

/// A function of two numbers of one dtype, with a result of the same dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "`eval` is the definition")]
pub enum Binary {
    Add,
    /// Bitwise for integers, logical for `bool`.
    And,
    /// Integers truncate towards zero.
    Div,
    Max,
    Min,
    /// The remainder with the divisor's sign (Python's `%`).
    Mod,
    Mul,
    /// Bitwise for integers, logical for `bool`.
    Or,
    Pow,
    /// `a` if it is not negative, else `a b`.
    PRelu,
    /// The remainder with the dividend's sign (C's `fmod`).
    Rem,
    ShiftLeft,
    /// Logical shift; operands must not be negative.
    ShiftRight,
    Sub,
    /// Bitwise for integers, logical for `bool`.
    Xor,
}

impl Binary {
    /// The definition for floats. `Max` and `Min` propagate NaN; the bitwise ones return NaN.
    pub fn eval(self, a: f64, b: f64) -> f64 {
        match self {
            Binary::Add => a + b,
            Binary::Div => a / b,
            Binary::Max => {
                if a.is_nan() || a > b {
                    a
                } else {
                    b
                }
            }
            Binary::Min => {
                if a.is_nan() || a < b {
                    a
                } else {
                    b
                }
            }
            Binary::Mod => {
                let rest = a % b;
                if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
            }
            Binary::Mul => a * b,
            Binary::Pow => a.powf(b),
            Binary::PRelu => {
                if a < 0.0 {
                    a * b
                } else {
                    a
                }
            }
            Binary::Rem => a % b,
            Binary::Sub => a - b,
            Binary::And | Binary::Or | Binary::Xor | Binary::ShiftLeft | Binary::ShiftRight => f64::NAN,
        }
    }

    /// The definition for integers and booleans: wrapping; division by zero is 0.
    pub fn eval_i64(self, a: i64, b: i64) -> i64 {
        match self {
            Binary::Add => a.wrapping_add(b),
            Binary::And => a & b,
            Binary::Div => a.checked_div(b).unwrap_or(0),
            Binary::Max => a.max(b),
            Binary::Min => a.min(b),
            Binary::Mod => {
                let rest = a.checked_rem(b).unwrap_or(0);
                if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
            }
            Binary::Mul => a.wrapping_mul(b),
            Binary::Or => a | b,
            Binary::Pow => match u32::try_from(b) {
                Ok(exponent) => a.wrapping_pow(exponent),
                Err(_) => match a {
                    1 => 1,
                    -1 => {
                        if b % 2 == 0 {
                            1
                        } else {
                            -1
                        }
                    }
                    _ => 0,
                },
            },
            Binary::PRelu => {
                if a < 0 {
                    a.wrapping_mul(b)
                } else {
                    a
                }
            }
            Binary::Rem => a.checked_rem(b).unwrap_or(0),
            Binary::ShiftLeft => u32::try_from(b).ok().and_then(|by| a.checked_shl(by)).unwrap_or(0),
            Binary::ShiftRight => u32::try_from(b).ok().and_then(|by| (a as u64).checked_shr(by)).unwrap_or(0) as i64,
            Binary::Sub => a.wrapping_sub(b),
            Binary::Xor => a ^ b,
        }
    }

    /// The name in messages and dumps.
    pub fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::And => "and",
            Binary::Div => "div",
            Binary::Max => "max",
            Binary::Min => "min",
            Binary::Mod => "mod",
            Binary::Mul => "mul",
            Binary::Or => "or",
            Binary::Pow => "pow",
            Binary::PRelu => "prelu",
            Binary::Rem => "rem",
            Binary::ShiftLeft => "shift_left",
            Binary::ShiftRight => "shift_right",
            Binary::Sub => "sub",
            Binary::Xor => "xor",
        }
    }
}

/// The sum of two quantized values, quantized again: `own * x + residual * y + shift` within limits. The residual sum of a
/// quantized network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantizedSum {
    /// The scale of the first value, divided by the result's.
    pub own: f32,
    /// The scale of the second value, divided by the result's.
    pub residual: f32,
    /// The result for two zeros.
    pub shift: f32,
    /// The least and the greatest result.
    pub limits: [f32; 2],
}

impl QuantizedSum {
    /// `result(own(x) + residual(y))`, each an affine function given by its scale and shift.
    pub fn of_affine(own: [f32; 2], residual: [f32; 2], result: [f32; 2], limits: [f32; 2]) -> QuantizedSum {
        let [own, residual, [scale, shift]] = [own, residual, result].map(|affine| affine.map(f64::from));
        QuantizedSum {
            own: (scale * own[0]) as f32,
            residual: (scale * residual[0]) as f32,
            shift: (scale * (own[1] + residual[1]) + shift) as f32,
            limits,
        }
    }

    /// The sum before it is rounded to the nearest integer, ties to even.
    pub fn eval(&self, own: f64, residual: f64) -> f64 {
        let sum = f64::from(self.own) * own + f64::from(self.residual) * residual + f64::from(self.shift);
        let [least, most] = self.limits.map(f64::from);
        sum.max(least).min(most)
    }
}

/// A comparison of two numbers of one dtype; the result is `bool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "`eval` is the definition")]
pub enum Compare {
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Compare {
    /// The definition, for any ordered type. Comparisons with NaN are false.
    pub fn eval<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Compare::Equal => a == b,
            Compare::Greater => a > b,
            Compare::GreaterOrEqual => a >= b,
            Compare::Less => a < b,
            Compare::LessOrEqual => a <= b,
        }
    }

    /// The name in messages and dumps.
    pub fn name(self) -> &'static str {
        match self {
            Compare::Equal => "equal",
            Compare::Greater => "greater",
            Compare::GreaterOrEqual => "greater_or_equal",
            Compare::Less => "less",
            Compare::LessOrEqual => "less_or_equal",
        }
    }
}

fn clip(x: f64, min: f64, max: f64) -> f64 {
    // The upper limit wins if the limits cross, as in ONNX and NumPy.
    let low = if x < min { min } else { x };
    if low > max { max } else { low }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_propagates() {
        for function in [Unary::Relu, Unary::Clip { min: 0.0, max: 6.0 }, Unary::Sigmoid, Unary::Abs] {
            assert!(function.eval(f64::NAN).is_nan(), "{}", function.name());
        }
        assert!(Binary::Max.eval(f64::NAN, 1.0).is_nan());
        assert!(Binary::Max.eval(1.0, f64::NAN).is_nan());
    }

    #[test]
    fn remainders_have_the_documented_sign() {
        assert_eq!(Binary::Mod.eval_i64(-7, 3), 2);
        assert_eq!(Binary::Rem.eval_i64(-7, 3), -1);
        assert_eq!(Binary::Mod.eval(-7.5, 3.0), 1.5);
    }

    #[test]
    fn integers_never_trap() {
        for function in [Binary::Div, Binary::Rem, Binary::Mod, Binary::Pow, Binary::ShiftLeft, Binary::ShiftRight] {
            for (a, b) in [(1, 0), (i64::MIN, -1), (i64::MAX, i64::MAX), (0, i64::MIN)] {
                function.eval_i64(a, b);
            }
        }
    }
}
