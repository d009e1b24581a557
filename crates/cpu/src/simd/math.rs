//! Elementwise functions over slices, fast enough for inner loops and without branches. Functions with exponentials use
//! [`Vector`]; the others are loops that the compiler vectorizes.
//!
//! Exponentials use range reduction and a polynomial, the hyperbolic tangent and the error function a quotient of two.
//! For every `f32`, including subnormals, infinities and NaN, results differ from the definitions in `types::pointwise` by at
//! most
//!
//! | function | error |
//! | --- | --- |
//! | exp | 2e-7 of the result |
//! | sigmoid | 3e-7 of the result |
//! | tanh | 3e-7 of the result |
//! | erf | 4e-7 of the result |
//! | silu | 4e-7 of the result |
//! | gelu, and its tanh form | 3e-7 of the argument |
//! | elu, selu, celu | 3e-7 of the result |
//! | log | 2e-7 of the result |
//! | softplus, mish | 4e-7 of the result |
//! | atan | 2e-7 of the result |
//! | sin, cos, tan, asin, acos, pow | 7e-8 of the result, with 1e-9 |
//!
//! [`apply_before_rounding`] computes sigmoid, silu, tanh, gelu and its tanh form for results that are rounded to half
//! precision within 1e-4 of the result, gelu within 1e-4 of the argument.
//!
//! Results below the least normal number, 1.2e-38, may be flushed to 0. For silu and mish this applies to the factor of the
//! argument, so results below about 1e-36 may be 0. Tests check these bounds. Functions of the last row compute in `f64`, by
//! loops that the compiler vectorizes. Functions without a fast form use their definition.

use types::pointwise::{Binary, Unary};

use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType};

/// Applies a function to each item.
pub(crate) fn apply(isa: Isa, function: Unary, items: &mut [f32]) {
    // SAFETY: the one run is the slice.
    unsafe { apply_to_runs(isa, function, items.as_mut_ptr(), &[0], items.len()) }
}

/// Applies a function to each item, for results that are then rounded to a type: less exactly for half precision.
pub(crate) fn apply_before_rounding(isa: Isa, stored: StorageType, function: Unary, items: &mut [f32]) {
    match function {
        Unary::Sigmoid | Unary::Silu | Unary::Tanh | Unary::Gelu | Unary::GeluTanh if stored.is_half() => {
            with_vector!(isa, each_by_quotient<Coarse>(function: Unary, items: &mut [f32]));
        }
        _ => apply(isa, function, items),
    }
}

/// Applies one of the functions that are quotients of polynomials or exponentials.
#[inline(always)]
fn each_by_quotient<V: Vector, P: Precision>(function: Unary, items: &mut [f32]) {
    // A macro instead of a closure: only inlined code is compiled for the ISA.
    macro_rules! lanes {
        ($x:ident => $body:expr) => {
            for items in items.chunks_mut(LANES) {
                let $x = V::read_part(items, 0.0);
                $body.write_part(items);
            }
        };
    }
    match function {
        Unary::Sigmoid => lanes!(x => P::sigmoid(x)),
        Unary::Silu => lanes!(x => x.mul(P::sigmoid(x))),
        Unary::Tanh => lanes!(x => odd_quotient::<V, P, 5>(x, TANH_END, TANH)),
        Unary::Gelu => lanes!(x => gelu::<V, P>(x)),
        Unary::GeluTanh => lanes!(x => gelu_tanh::<V, P>(x)),
        _ => unreachable!("the callers match these functions"),
    }
}

/// Applies a function to the items of runs, which start at these offsets and have one length. Compiled once per ISA,
/// however many kernels call it.
///
/// # Safety
/// Runs do not overlap, and nothing else accesses their items.
pub(crate) unsafe fn apply_to_runs(isa: Isa, function: Unary, items: *mut f32, starts: &[usize], length: usize) {
    with_vector!(isa, each(function: Unary, items: *mut f32, starts: &[usize], length: usize));
}

/// Called by [`apply_to_runs`] only, whose caller promises items that no one else accesses.
#[inline(always)]
fn each<V: Vector>(function: Unary, items: *mut f32, starts: &[usize], length: usize) {
    // SAFETY: the caller's promise.
    let run = |start: usize| unsafe { std::slice::from_raw_parts_mut(items.add(start), length) };
    // Not for functions that leave some items as they are: these would be compiled to masked stores, which are slow.
    macro_rules! each_item {
        ($x:ident => $body:expr) => {
            for &start in starts {
                run(start).iter_mut().for_each(|item| {
                    let $x = *item;
                    *item = $body;
                })
            }
        };
    }
    // Macros instead of closures: only inlined code is compiled for the ISA.
    macro_rules! lanes {
        ($x:ident => $body:expr) => {
            for &start in starts {
                for items in run(start).chunks_mut(LANES) {
                    let $x = V::read_part(items, 0.0);
                    $body.write_part(items);
                }
            }
        };
    }
    match function {
        Unary::Abs => each_item!(x => x.abs()),
        Unary::Affine { scale, shift } => each_item!(x => scale * x + shift),
        Unary::Clip { min, max } => {
            let [min, max] = [V::splat(min), V::splat(max)];
            lanes!(x => x.at_least(min).at_most(max));
        }
        Unary::Ceil => each_item!(x => x.ceil()),
        Unary::Exp => lanes!(x => exp(x)),
        Unary::Floor => each_item!(x => x.floor()),
        Unary::Erf => lanes!(x => erf(x)),
        Unary::HardSigmoid { alpha, beta } => {
            let [alpha, beta] = [V::splat(alpha), V::splat(beta)];
            lanes!(x => alpha.mul(x).add(beta).at_least(V::zero()).at_most(V::splat(1.0)));
        }
        Unary::HardSwish => lanes!(x => hard_swish(x)),
        Unary::Celu { alpha } if 0.0 < alpha => {
            let [scale, inverse] = [V::splat(alpha), V::splat(1.0 / alpha)];
            lanes!(x => x.if_less(V::zero(), scale.mul(exp_minus_one(x.mul(inverse))), x));
        }
        Unary::Elu { alpha } => {
            let alpha = V::splat(alpha);
            lanes!(x => x.if_less(V::zero(), alpha.mul(exp_minus_one(x)), x));
        }
        Unary::Selu { alpha, gamma } => {
            let [alpha, gamma] = [V::splat(alpha), V::splat(gamma)];
            lanes!(x => gamma.mul(x.if_less(V::zero(), alpha.mul(exp_minus_one(x)), x)));
        }
        Unary::Log => each_item!(x => log(x)),
        Unary::Softplus => lanes!(x => softplus(x)),
        Unary::Mish => lanes!(x => mish(x)),
        Unary::Softsign => lanes!(x => softsign(x)),
        Unary::ThresholdedRelu { alpha } => {
            let alpha = V::splat(alpha);
            lanes!(x => alpha.if_less(x, x, V::zero()));
        }
        Unary::Atan => lanes!(x => atan(x)),
        Unary::Asin => each_item!(x => wide::asin(f64::from(x)) as f32),
        Unary::Acos => each_item!(x => wide::acos(f64::from(x)) as f32),
        Unary::Sin | Unary::Cos | Unary::Tan => {
            for &start in starts {
                for items in run(start).chunks_mut(LANES) {
                    // Larger arguments are reduced by the definition.
                    if items.iter().all(|x| x.abs() <= wide::TURNS_MAX) {
                        match function {
                            Unary::Sin => items.iter_mut().for_each(|x| *x = wide::sin(f64::from(*x)) as f32),
                            Unary::Cos => items.iter_mut().for_each(|x| *x = wide::cos(f64::from(*x)) as f32),
                            _ => items.iter_mut().for_each(|x| *x = wide::tan(f64::from(*x)) as f32),
                        }
                    } else {
                        items.iter_mut().for_each(|x| *x = function.eval(f64::from(*x)) as f32);
                    }
                }
            }
        }
        Unary::LeakyRelu { alpha } => {
            let alpha = V::splat(alpha);
            lanes!(x => x.if_less(V::zero(), alpha.mul(x), x));
        }
        Unary::Neg => each_item!(x => -x),
        Unary::Reciprocal => each_item!(x => 1.0 / x),
        Unary::Relu => lanes!(x => x.at_least(V::zero())),
        Unary::Round => each_item!(x => x.round_ties_even()),
        Unary::Sigmoid | Unary::Silu | Unary::Tanh | Unary::Gelu | Unary::GeluTanh => {
            for &start in starts {
                each_by_quotient::<V, Exact>(function, run(start));
            }
        }
        Unary::Sign => lanes!(x => sign(x)),
        Unary::Sqrt => each_item!(x => x.sqrt()),
        _ => each_item!(x => function.eval(f64::from(x)) as f32),
    }
}

/// `out = function(a, b)` for each pair of items. Compiled as [`apply`] is.
pub(crate) fn combine(isa: Isa, function: Binary, a: &[f32], b: &[f32], out: &mut [f32]) {
    with_vector!(isa, each_pair(function: Binary, a: &[f32], b: &[f32], out: &mut [f32]));
}

#[inline(always)]
fn each_pair<V: Vector>(function: Binary, a: &[f32], b: &[f32], out: &mut [f32]) {
    macro_rules! each_item {
        ($x:ident, $y:ident => $body:expr) => {
            out.iter_mut().zip(a.iter().zip(b)).for_each(|(item, (&$x, &$y))| *item = $body)
        };
    }
    match function {
        Binary::Add => each_item!(x, y => x + y),
        Binary::Sub => each_item!(x, y => x - y),
        Binary::Mul => each_item!(x, y => x * y),
        Binary::Div => each_item!(x, y => x / y),
        Binary::Max => each_item!(x, y => if x.is_nan() || x > y { x } else { y }),
        Binary::Min => each_item!(x, y => if x.is_nan() || x < y { x } else { y }),
        Binary::PRelu => each_item!(x, y => if x < 0.0 { x * y } else { x }),
        Binary::Pow => {
            for ((out, a), b) in out.chunks_mut(LANES).zip(a.chunks(LANES)).zip(b.chunks(LANES)) {
                let is_plain = |x: &f32| x.is_normal();
                let is_exponent = |y: &f32| y.is_finite();
                match a.iter().all(is_plain) && b.iter().all(is_exponent) {
                    true => out.iter_mut().zip(a).zip(b).for_each(|((item, &x), &y)| {
                        *item = wide::pow(f64::from(x), f64::from(y)) as f32;
                    }),
                    false => out.iter_mut().zip(a).zip(b).for_each(|((item, &x), &y)| {
                        *item = function.eval(f64::from(x), f64::from(y)) as f32;
                    }),
                }
            }
        }
        _ => each_item!(x, y => function.eval(f64::from(x), f64::from(y)) as f32),
    }
}

/// 1, -1, or the argument itself if it is 0 or NaN.
#[inline(always)]
pub(crate) fn sign<V: Vector>(x: V) -> V {
    let other = x.if_less(V::zero(), V::splat(-1.0), x);
    V::zero().if_less(x, V::splat(1.0), other)
}

/// `x clip(x / 6 + 1 / 2, 0, 1)`.
#[inline(always)]
pub(crate) fn hard_swish<V: Vector>(x: V) -> V {
    let factor = x.mul(V::splat(1.0 / 6.0)).add(V::splat(0.5));
    x.mul(factor.at_least(V::zero()).at_most(V::splat(1.0)))
}

/// `x / (1 + |x|)`.
#[inline(always)]
pub(crate) fn softsign<V: Vector>(x: V) -> V {
    x.div(V::splat(1.0).add(x.abs()))
}

const LOG2E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts, so that `n * ln 2` is exact enough.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
const ROUNDER: f32 = 12_582_912.0;
/// Polynomial of `e^r`. All coefficients are listed from the highest power down; they have the least relative error on
/// the interval, found by reweighted least squares (Lawson 1961).
const EXP: [f32; 7] = [1.381_454_5e-3, 8.368_746e-3, 4.166_839e-2, 1.666_652e-1, 4.999_999_3e-1, 1.0, 1.0];
/// The same within 3e-6.
const EXP_COARSE: [f32; 5] = [4.145_805e-2, 1.679_116_2e-1, 5.000_437_5e-1, 9.999_633e-1, 9.999_993e-1];
/// Numerator and denominator of `tanh x / x` in `x^2`, for `x` up to [`TANH_END`]. All are positive: nothing cancels.
const TANH: [[f32; 5]; 2] = [
    [1.331_781_2e-8, 2.058_257_4e-5, 3.493_980_3e-3, 1.337_967_3e-1, 1.0],
    [7.761_503e-7, 3.283_003_3e-4, 2.587_086_9e-2, 4.671_299e-1, 1.0],
];
/// From here on the hyperbolic tangent is 1 in `f32`.
const TANH_END: f32 = 9.02;
/// The same of the error function.
const ERF: [[f32; 6]; 2] = [
    [2.025_859_4e-6, 2.846_666_5e-4, 3.807_663_3e-3, 5.287_387_6e-2, 1.915_401_3e-1, std::f32::consts::FRAC_2_SQRT_PI],
    [3.783_019e-5, 1.170_586_4e-3, 1.505_41e-2, 1.145_552_1e-1, 5.030_807e-1, 1.0],
];
const ERF_END: f32 = 3.95;

/// `coefficients[0] * x^n + ... + coefficients[n]`.
#[inline(always)]
fn polynomial<V: Vector, const N: usize>(x: V, coefficients: [f32; N]) -> V {
    let mut sum = V::splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = sum.mul_add(x, V::splat(*coefficient));
    }
    sum
}

/// `e^x`: 0 below -104, infinite above 88.72, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<V: Vector>(x: V) -> V {
    let (power, rounded) = exp_parts(x, -104.0);
    power.scale(rounded.sub(V::splat(ROUNDER)))
}

/// The least argument whose exponential is a normal number.
const LEAST_NORMAL: f32 = -87.3365;

/// `e^x` for terms of sums: 0 where the result would be subnormal, infinite above 88.37. Subnormal arithmetic is about a
/// hundred times slower, and masked scores produce nothing else.
#[inline(always)]
pub(crate) fn exp_or_zero<V: Vector>(x: V) -> V {
    x.if_less(V::splat(LEAST_NORMAL), V::zero(), normal_exp(x))
}

/// The same with the least normal number instead of 0.
#[inline(always)]
fn normal_exp<V: Vector>(x: V) -> V {
    let (power, rounded) = exp_parts(x, LEAST_NORMAL);
    power.mul(rounded.power_of_two())
}

/// `e^x` of `x` clamped to at least `least`, as `(e^r, n + ROUNDER)` with `x = n ln 2 + r`.
#[inline(always)]
fn exp_parts<V: Vector>(x: V, least: f32) -> (V, V) {
    let (rounded, r) = exp_reduced(x, least);
    (polynomial(r, EXP), rounded)
}

/// `(n + ROUNDER, r)` with `x = n ln 2 + r`, of `x` clamped to at least `least`.
#[inline(always)]
fn exp_reduced<V: Vector>(x: V, least: f32) -> (V, V) {
    // NaN passes the clamp.
    let clamped = x.at_least(V::splat(least)).at_most(V::splat(89.0));
    let rounded = clamped.mul_add(V::splat(LOG2E), V::splat(ROUNDER));
    let n = rounded.sub(V::splat(ROUNDER));
    (rounded, n.mul_add(V::splat(-LN2_LOW), n.mul_add(V::splat(-LN2_HIGH), clamped)))
}

/// `e^x - 1` without cancellation, for `x` up to 88.
#[inline(always)]
fn exp_minus_one<V: Vector>(x: V) -> V {
    let (rounded, r) = exp_reduced(x, LEAST_NORMAL);
    let (_, without_last) = EXP.split_last().expect("the polynomial has a constant");
    let power = rounded.power_of_two();
    // 2^n (e^r - 1) + (2^n - 1)
    let less_one = r.mul(polynomial(r, *without_last.first_chunk::<6>().expect("it has seven coefficients")));
    power.mul_add(less_one, power.sub(V::splat(1.0)))
}

/// `ln x`: the reduction to `f` near 0 with `x = 2^k (1 + f)`, and the polynomial in `s = f / (2 + f)`, of fdlibm's `logf`.
#[inline(always)]
fn log(x: f32) -> f32 {
    let is_subnormal = x < f32::MIN_POSITIVE;
    let (scaled, shift) = if is_subnormal { (x * 8_388_608.0, -23.0) } else { (x, 0.0) };
    // Bits of the square root of 1/2: from there to twice that the exponent is 0.
    const LEAST: i32 = 0x3f35_04f3;
    let above = (scaled.to_bits() as i32).wrapping_sub(LEAST);
    let k = (above >> 23) as f32 + shift;
    let f = f32::from_bits((above & 0x007f_ffff).wrapping_add(LEAST) as u32) - 1.0;
    let s = f / (2.0 + f);
    let (z, half) = (s * s, 0.5 * f * f);
    let w = z * z;
    let rest = z * (0.666_666_6 + w * 0.284_987_87) + w * (0.400_009_72 + w * 0.242_790_79);
    let y = s * (half + rest) + k * 9.058_001e-6 - half + f + k * 0.693_138_1;
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 || x.is_nan() { f32::NAN } else { y }
}

/// `ln(1 + e^x)`.
#[inline(always)]
fn softplus<V: Vector>(x: V) -> V {
    // Of the negative magnitude, which does not overflow.
    let u = exp(V::zero().sub(x.abs()));
    let mut logs = u.to_array();
    for u in &mut logs {
        let above_one = 1.0 + *u;
        // The second term is the error of the sum.
        *u = log(above_one) + (*u - (above_one - 1.0)) / above_one;
    }
    x.at_least(V::zero()).add(V::read(&logs))
}

/// `x tanh(softplus x) = x n / (n + 2)` with `n = e^x (e^x + 2)`.
#[inline(always)]
fn mish<V: Vector>(x: V) -> V {
    let power = exp(x.at_most(V::splat(30.0)));
    let n = power.mul(power.add(V::splat(2.0)));
    x.mul(n.div(n.add(V::splat(2.0))))
}

/// Polynomial of `(atan u / u - 1) / u^2` in `u^2`, up to the tangent of an eighth of pi.
const ATAN: [f32; 4] = [8.051_277e-2, -1.387_697_5e-1, 1.997_765e-1, -3.333_294_7e-1];
/// The tangent of an eighth of pi, and its reciprocal.
const TAN_EIGHTH: f32 = 0.414_213_56;
const TAN_THREE_EIGHTHS: f32 = 2.414_213_6;

/// The arc tangent: `a pi / 4 + atan u`, where `u` is the magnitude of `x`, that of the angle to 45 degrees, or that to 90
/// degrees.
#[inline(always)]
fn atan<V: Vector>(x: V) -> V {
    use std::f32::consts::{FRAC_PI_2, FRAC_PI_4};
    let (one, size) = (V::splat(1.0), x.abs());
    let (middle, large) = (V::splat(TAN_EIGHTH), V::splat(TAN_THREE_EIGHTHS));
    let above = middle.if_less(size, large.if_less(size, V::splat(-1.0), size.sub(one)), size);
    let below = middle.if_less(size, large.if_less(size, size, size.add(one)), one);
    let base = middle.if_less(size, large.if_less(size, V::splat(FRAC_PI_2), V::splat(FRAC_PI_4)), V::zero());
    let u = above.div(below);
    let square = u.mul(u);
    let angle = base.add(u.mul(square).mul_add(polynomial(square, ATAN), u));
    angle.mul(sign(x))
}

/// Functions of `f32` computed in `f64`, without branches.
mod wide {
    use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4, LN_2, LOG2_E, PI, SQRT_2};

    /// The largest argument of sine, cosine and tangent: the error of the reduction is below 1e-9.
    pub(super) const TURNS_MAX: f32 = 1e5;
    /// Adding and subtracting 1.5 * 2^52 rounds to the nearest integer, which the sum's last bits hold.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;

    /// `coefficients[0] * x^n + ... + coefficients[n]`.
    #[inline(always)]
    fn polynomial<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
        let mut sum = coefficients[0];
        for coefficient in &coefficients[1..] {
            sum = sum * x + coefficient;
        }
        sum
    }

    /// Sine and cosine of `x - n pi / 2`, and the last bits of `n`.
    #[inline(always)]
    fn within_eighth(x: f64) -> (f64, f64, u64) {
        let rounded = x * FRAC_2_PI + ROUNDER;
        let r = x - (rounded - ROUNDER) * FRAC_PI_2;
        let z = r * r;
        // Taylor series.
        const SIN: [f64; 6] = [-1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0];
        const COS: [f64; 6] = [-1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0];
        (r * polynomial(z, SIN), polynomial(z, COS), rounded.to_bits())
    }

    /// The sine after `quarters` more quarters of a turn.
    #[inline(always)]
    fn turned(x: f64, quarters: u64) -> f64 {
        let (sin, cos, n) = within_eighth(x);
        let n = n.wrapping_add(quarters);
        let size = if n & 1 == 0 { sin } else { cos };
        if n & 2 == 0 { size } else { -size }
    }

    #[inline(always)]
    pub(super) fn sin(x: f64) -> f64 {
        turned(x, 0)
    }

    #[inline(always)]
    pub(super) fn cos(x: f64) -> f64 {
        turned(x, 1)
    }

    #[inline(always)]
    pub(super) fn tan(x: f64) -> f64 {
        let (sin, cos, n) = within_eighth(x);
        let (above, below) = if n & 1 == 0 { (sin, cos) } else { (-cos, sin) };
        above / below
    }

    #[inline(always)]
    pub(super) fn atan(x: f64) -> f64 {
        let size = x.abs();
        let is_large = size > 1.0;
        let inner = if is_large { 1.0 / size } else { size };
        // From tan(pi / 8) on, the angle to 45 degrees.
        let is_far = inner > SQRT_2 - 1.0;
        let u = if is_far { (inner - 1.0) / (inner + 1.0) } else { inner };
        const ODD: [f64; 11] = [
            1.0 / 21.0,
            -1.0 / 19.0,
            1.0 / 17.0,
            -1.0 / 15.0,
            1.0 / 13.0,
            -1.0 / 11.0,
            1.0 / 9.0,
            -1.0 / 7.0,
            1.0 / 5.0,
            -1.0 / 3.0,
            1.0,
        ];
        let angle = u * polynomial(u * u, ODD) + if is_far { FRAC_PI_4 } else { 0.0 };
        (if is_large { FRAC_PI_2 - angle } else { angle }).copysign(x)
    }

    #[inline(always)]
    pub(super) fn asin(x: f64) -> f64 {
        atan(x / ((1.0 - x) * (1.0 + x)).sqrt())
    }

    #[inline(always)]
    pub(super) fn acos(x: f64) -> f64 {
        let angle = 2.0 * atan(((1.0 - x) / (1.0 + x)).sqrt());
        // The quotient of -1 may be a negative infinity.
        if x == -1.0 { PI } else { angle }
    }

    /// `x^y` of `x` that is normal in `f32` and finite `y`.
    #[inline(always)]
    pub(super) fn pow(x: f64, y: f64) -> f64 {
        const LEAST: u64 = 0x3fe6_a09e_667f_3bcd;
        // The exponent, in the last bits of a number that is 2^52 with it.
        const BIAS: u64 = 0x4330_0000_0000_0000 + (1 << 11);
        let above = x.abs().to_bits().wrapping_sub(LEAST);
        let k = f64::from_bits(((above >> 52) & 0xfff).wrapping_add(1 << 11) & 0xfff | 0x4330_0000_0000_0000)
            - f64::from_bits(BIAS);
        let f = f64::from_bits((above & 0x000f_ffff_ffff_ffff).wrapping_add(LEAST)) - 1.0;
        let s = f / (2.0 + f);
        const ODD: [f64; 8] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
        let exponent = y * (k + 2.0 * s * polynomial(s * s, ODD) * LOG2_E);
        // 2^exponent, beyond the range of `f32` on both sides.
        let clamped = exponent.clamp(-200.0, 200.0);
        let rounded = clamped + ROUNDER;
        let r = (clamped - (rounded - ROUNDER)) * LN_2;
        const EXP: [f64; 9] =
            [1.0 / 40_320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
        let power = f64::from_bits(rounded.to_bits().wrapping_shl(52).wrapping_add(0x3ff0_0000_0000_0000));
        let size = polynomial(r, EXP) * power;
        let half = 0.5 * y;
        let is_odd = y == y.trunc() && half != half.trunc();
        let signed = if is_odd { -size } else { size };
        let of_negative = if y == y.trunc() { signed } else { f64::NAN };
        if x < 0.0 { of_negative } else { size }
    }
}

/// How exactly quotients are computed.
trait Precision {
    /// `a / b`.
    fn quotient<V: Vector>(a: V, b: V) -> V;

    /// `1 / (1 + e^-x)`.
    fn sigmoid<V: Vector>(x: V) -> V;
}

/// Within the bounds of the table above.
struct Exact;

/// Within 1e-4, for results that are rounded to half precision.
struct Coarse;

impl Precision for Exact {
    #[inline(always)]
    fn quotient<V: Vector>(a: V, b: V) -> V {
        a.div(b)
    }

    #[inline(always)]
    fn sigmoid<V: Vector>(x: V) -> V {
        let one = V::splat(1.0);
        // `normal_exp` gives the least normal number where `e^-x` is less; adding either to 1 gives 1.
        one.div(one.add(normal_exp(V::zero().sub(x))))
    }
}

impl Precision for Coarse {
    #[inline(always)]
    fn quotient<V: Vector>(a: V, b: V) -> V {
        a.div_coarsely(b)
    }

    #[inline(always)]
    fn sigmoid<V: Vector>(x: V) -> V {
        let (one, (rounded, r)) = (V::splat(1.0), exp_reduced(V::zero().sub(x), LEAST_NORMAL));
        one.div_coarsely(polynomial(r, EXP_COARSE).mul_add(rounded.power_of_two(), one))
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<V: Vector>(x: V) -> V {
    Exact::sigmoid(x)
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<V: Vector>(x: V) -> V {
    odd_quotient::<V, Exact, 5>(x, TANH_END, TANH)
}

/// The error function.
#[inline(always)]
fn erf<V: Vector>(x: V) -> V {
    odd_quotient::<V, Exact, 6>(x, ERF_END, ERF)
}

/// `x p(x^2) / q(x^2)`, within -1 and 1, of `x` clamped to `-end` and `end`.
#[inline(always)]
fn odd_quotient<V: Vector, P: Precision, const N: usize>(x: V, end: f32, [p, q]: [[f32; N]; 2]) -> V {
    let x = x.at_least(V::splat(-end)).at_most(V::splat(end));
    let z = x.mul(x);
    let quotient = P::quotient(x.mul(polynomial(z, p)), polynomial(z, q));
    quotient.at_least(V::splat(-1.0)).at_most(V::splat(1.0))
}

#[inline(always)]
fn gelu<V: Vector, P: Precision>(x: V) -> V {
    let half = V::splat(0.5).mul(x);
    half.mul_add(odd_quotient::<V, P, 6>(x.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2)), ERF_END, ERF), half)
}

#[inline(always)]
fn gelu_tanh<V: Vector, P: Precision>(x: V) -> V {
    // sqrt(2 / pi) (x + 0.044715 x^3)
    let inner = x.mul(x).mul_add(V::splat(0.035_677_407), V::splat(0.797_884_6)).mul(x);
    let half = V::splat(0.5).mul(x);
    half.mul_add(odd_quotient::<V, P, 5>(inner, TANH_END, TANH), half)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of every ISA of this machine, before they are rounded to a type.
    fn results_by_isa(stored: StorageType, function: Unary, items: &[f32]) -> Vec<(Isa, Vec<f32>)> {
        let available = Isa::available();
        let run = |isa| {
            let mut results = items.to_vec();
            apply_before_rounding(isa, stored, function, &mut results);
            (isa, results)
        };
        available.map(run).collect()
    }

    /// Numbers of all magnitudes and both signs, and -120 to 120 in small steps.
    fn numbers() -> Vec<f32> {
        let sizes = (0..=u32::MAX).step_by(39_989).map(f32::from_bits);
        let steps = (-60_000..=60_000).map(|step| step as f32 / 500.0);
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, f32::MIN, 1e-45, -1e-45];
        sizes.chain(steps).chain(special).collect()
    }

    /// Compares every fast form with its definition. `error` returns the tolerance for `[x, result]`.
    fn check(function: Unary, error: impl Fn(f64, f64) -> f64) {
        check_before_rounding(StorageType::F32, function, error);
    }

    fn check_before_rounding(stored: StorageType, function: Unary, error: impl Fn(f64, f64) -> f64) {
        let items = numbers();
        for (isa, results) in results_by_isa(stored, function, &items) {
            for (&x, got) in items.iter().zip(results) {
                let want = function.eval(f64::from(x));
                let near = (f64::from(got) - want).abs() <= error(f64::from(x), want) + f64::from(f32::MIN_POSITIVE);
                let same = got == want as f32 || got.is_nan() && want.is_nan();
                assert!(near || same, "{isa}: {}({x}) = {got} not {want}", function.name());
            }
        }
    }

    #[test]
    fn exponentials_stay_within_their_error_bounds() {
        check(Unary::Exp, |_, result| 2e-7 * result);
        check(Unary::Sigmoid, |_, result| 3e-7 * result);
        check(Unary::Tanh, |_, result| 3e-7 * result.abs());
        check(Unary::Erf, |_, result| 4e-7 * result.abs());
        // A sigmoid below the least normal number may be flushed to 0.
        check(Unary::Silu, |x, result| 4e-7 * result.abs() + x.abs() * f64::from(f32::MIN_POSITIVE));
        check(Unary::Gelu, |x, _| 3e-7 * x.abs());
        check(Unary::GeluTanh, |x, _| 3e-7 * x.abs());
    }

    #[test]
    fn functions_before_rounding_to_half_precision_stay_within_their_error_bounds() {
        for stored in [StorageType::F16, StorageType::Bf16] {
            check_before_rounding(stored, Unary::Sigmoid, |_, result| 1e-4 * result);
            check_before_rounding(stored, Unary::Silu, |x, result| {
                1e-4 * result.abs() + x.abs() * f64::from(f32::MIN_POSITIVE)
            });
            check_before_rounding(stored, Unary::Tanh, |_, result| 1e-4 * result.abs());
            check_before_rounding(stored, Unary::Gelu, |x, _| 1e-4 * x.abs());
            check_before_rounding(stored, Unary::GeluTanh, |x, _| 1e-4 * x.abs());
            check_before_rounding(stored, Unary::Exp, |_, result| 2e-7 * result);
        }
    }

    #[test]
    fn logarithms_and_their_kin_stay_within_their_error_bounds() {
        check(Unary::Elu { alpha: 0.7 }, |_, result| 3e-7 * result.abs());
        check(Unary::Selu { alpha: 1.6732632, gamma: 1.050701 }, |_, result| 3e-7 * result.abs());
        check(Unary::Celu { alpha: 2.5 }, |_, result| 3e-7 * result.abs());
        check(Unary::Log, |_, result| 2e-7 * result.abs());
        check(Unary::Softplus, |_, result| 4e-7 * result.abs());
        check(Unary::Mish, |x, result| 4e-7 * result.abs() + x.abs() * f64::from(f32::MIN_POSITIVE));
        check(Unary::Softsign, |_, result| 2e-7 * result.abs());
        check(Unary::Atan, |_, result| 2e-7 * result.abs());
        check(Unary::ThresholdedRelu { alpha: 0.3 }, |_, _| 0.0);
    }

    #[test]
    fn functions_computed_in_double_precision_are_rounded_once() {
        let bound = |_: f64, result: f64| 7e-8 * result.abs() + 1e-9;
        for function in [Unary::Sin, Unary::Cos, Unary::Asin, Unary::Acos] {
            check(function, bound);
        }
        // The tangent grows with the error of the reduction.
        check(Unary::Tan, |_, result| 7e-8 * result.abs() + 1e-9 * (1.0 + result * result));
    }

    #[test]
    fn powers_equal_their_definition() {
        let bases: Vec<f32> = numbers().into_iter().step_by(7).collect();
        for exponent in [0.0f32, 1.0, 2.0, 3.0, -1.0, -3.0, 0.5, 2.7, -0.3, 17.0, 1e-3, 1e9, -1e9, f32::INFINITY] {
            let exponents = vec![exponent; bases.len()];
            for isa in Isa::available() {
                let mut got = vec![0.0; bases.len()];
                combine(isa, Binary::Pow, &bases, &exponents, &mut got);
                for (&x, got) in bases.iter().zip(got) {
                    let want = Binary::Pow.eval(f64::from(x), f64::from(exponent)) as f32;
                    let near = (f64::from(got) - f64::from(want)).abs() <= 1.3e-7 * f64::from(want.abs()) + 1e-44;
                    assert!(
                        near || got == want || got.is_nan() && want.is_nan(),
                        "{isa}: {x}^{exponent} = {got} not {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn subnormal_exponentials_are_rounded_not_flushed() {
        let items: Vec<f32> = (0..4096).map(|step| -87.0 - step as f32 / 256.0).collect();
        for (isa, results) in results_by_isa(StorageType::F32, Unary::Exp, &items) {
            for (&x, got) in items.iter().zip(results) {
                let want = f64::from(x).exp();
                let error = (f64::from(got) - want).abs();
                // 2^-149 is the spacing of subnormal numbers.
                assert!(error <= 2e-7 * want + 1.5e-45, "{isa}: exp({x}) = {got} not {want}");
            }
        }
    }

    #[test]
    fn simple_functions_equal_their_definitions() {
        let of_argument = |x: f64, result: f64| 2e-7 * x.abs().max(result.abs()).max(1.0);
        for function in [
            Unary::Abs,
            Unary::Affine { scale: -1.7, shift: 0.3 },
            Unary::Clip { min: -0.5, max: 7.25 },
            Unary::HardSwish,
            Unary::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Unary::LeakyRelu { alpha: 0.1 },
            Unary::Neg,
            Unary::Reciprocal,
            Unary::Relu,
            Unary::Sqrt,
        ] {
            check(function, of_argument);
        }
    }
}
