//! Functions of numbers over slices, fast enough for inner loops: branch-free, so that they become vector code.
//!
//! Exponentials are range reduction and a polynomial (the coefficients of Cephes' `expf`, Moshier 1992). Compared with the
//! definitions in `types::pointwise`, results differ by at most some units in the last place; tests state how many. What
//! has no fast form here is computed by its definition.

use types::pointwise::{Binary, Unary};

/// Applies a function to each item.
#[inline(always)]
pub(crate) fn apply(function: Unary, items: &mut [f32]) {
    macro_rules! each {
        ($x:ident => $body:expr) => {
            items.iter_mut().for_each(|item| {
                let $x = *item;
                *item = $body;
            })
        };
    }
    match function {
        Unary::Abs => each!(x => x.abs()),
        Unary::Clip { min, max } => each!(x => clip(x, min, max)),
        Unary::Exp => each!(x => exp(x)),
        Unary::Gelu => each!(x => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))),
        Unary::Erf => each!(x => erf(x)),
        Unary::HardSigmoid { alpha, beta } => each!(x => clip(alpha * x + beta, 0.0, 1.0)),
        Unary::HardSwish => each!(x => x * clip(x * (1.0 / 6.0) + 0.5, 0.0, 1.0)),
        Unary::LeakyRelu { alpha } => each!(x => if x < 0.0 { alpha * x } else { x }),
        Unary::Neg => each!(x => -x),
        Unary::Reciprocal => each!(x => 1.0 / x),
        Unary::Relu => each!(x => if x < 0.0 { 0.0 } else { x }),
        Unary::Sigmoid => each!(x => sigmoid(x)),
        Unary::Silu => each!(x => x * sigmoid(x)),
        Unary::Sqrt => each!(x => x.sqrt()),
        Unary::Tanh => each!(x => tanh(x)),
        _ => each!(x => function.eval(f64::from(x)) as f32),
    }
}

/// `a = function(a, b)` for each pair of items.
#[inline(always)]
pub(crate) fn combine(function: Binary, a: &mut [f32], b: &[f32]) {
    macro_rules! each {
        ($x:ident, $y:ident => $body:expr) => {
            a.iter_mut().zip(b).for_each(|(item, &$y)| {
                let $x = *item;
                *item = $body;
            })
        };
    }
    match function {
        Binary::Add => each!(x, y => x + y),
        Binary::Sub => each!(x, y => x - y),
        Binary::Mul => each!(x, y => x * y),
        Binary::Div => each!(x, y => x / y),
        Binary::Max => each!(x, y => if x.is_nan() || x > y { x } else { y }),
        Binary::Min => each!(x, y => if x.is_nan() || x < y { x } else { y }),
        Binary::PRelu => each!(x, y => if x < 0.0 { x * y } else { x }),
        _ => each!(x, y => function.eval(f64::from(x), f64::from(y)) as f32),
    }
}

#[inline(always)]
fn clip(x: f32, min: f32, max: f32) -> f32 {
    let low = if x < min { min } else { x };
    if low > max { max } else { low }
}

/// `e^x`: 0 below -104, infinite above 88.72, NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOG2E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, so that n * ln 2 is exact enough.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Rounds to nearest by the addition of 1.5 * 2^23.
    const ROUNDER: f32 = 12_582_912.0;
    let clamped = clip(x, -104.0, 89.0);
    let n = (clamped * LOG2E + ROUNDER) - ROUNDER;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let value = p * r * r + r + 1.0;
    // 2^n in two steps: n may leave the range of one exponent.
    let half = (n * 0.5) as i32;
    let rest = n as i32 - half;
    let scale = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    value * scale(half) * scale(rest)
}

#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Odd polynomial near 0 (Cephes' `tanhf`), exponentials further out.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let z = x * x;
    let mut p = -5.704_988_7e-3;
    p = p * z + 2.063_909e-2;
    p = p * z - 5.373_971_6e-2;
    p = p * z + 1.333_144_2e-1;
    p = p * z - 3.333_328e-1;
    let near = p * z * x + x;
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    let far = if x < 0.0 { -far } else { far };
    if x.abs() < 0.625 { near } else { far }
}

/// Abramowitz & Stegun 7.1.26 is too coarse near 0: a Taylor series below 0.5, theirs with an error of 1.5e-7 above.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let mut p = -7.575_757_6e-4;
    p = p * z + 4.629_629_6e-3;
    p = p * z - 2.380_952_4e-2;
    p = p * z + 0.1;
    p = p * z - 0.333_333_34;
    let near = std::f32::consts::FRAC_2_SQRT_PI * (p * z * x + x);
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let mut q = 1.061_405_4;
    q = q * t - 1.453_152;
    q = q * t + 1.421_413_7;
    q = q * t - 0.284_496_74;
    q = q * t + 0.254_829_6;
    let far = 1.0 - q * t * exp(-z);
    let far = if x < 0.0 { -far } else { far };
    if x.is_nan() {
        x
    } else if a < 0.5 {
        near
    } else {
        far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every function with a form of its own, against its definition: relative error, or absolute below 1.
    #[test]
    fn fast_forms_keep_to_the_definitions() {
        let functions = [
            (Unary::Exp, 3e-7),
            (Unary::Sigmoid, 3e-7),
            (Unary::Silu, 4e-7),
            (Unary::Tanh, 3e-7),
            (Unary::Erf, 6e-7),
            (Unary::Gelu, 1e-6),
            (Unary::HardSwish, 2e-7),
            (Unary::HardSigmoid { alpha: 0.2, beta: 0.5 }, 2e-7),
            (Unary::LeakyRelu { alpha: 0.1 }, 2e-7),
        ];
        for (function, tolerance) in functions {
            for step in -20_000..20_000 {
                let x = step as f32 / 500.0;
                let want = function.eval(f64::from(x));
                let mut got = [x];
                apply(function, &mut got);
                let error = (f64::from(got[0]) - want).abs() / want.abs().max(1.0);
                assert!(error <= tolerance, "{}({x}) = {} not {want}", function.name(), got[0]);
            }
        }
    }

    #[test]
    fn the_ends_behave() {
        for function in [Unary::Exp, Unary::Sigmoid, Unary::Tanh, Unary::Relu, Unary::Erf] {
            for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 200.0, -200.0, f32::MAX, f32::MIN] {
                let want = function.eval(f64::from(x)) as f32;
                let mut got = [x];
                apply(function, &mut got);
                assert!(got[0] == want || (got[0].is_nan() && want.is_nan()), "{}({x}) = {}", function.name(), got[0]);
            }
        }
    }
}
