//! Pointwise functions on slices of `f32`, in vector form.
//!
//! `types::pointwise` is the definition. The forms here stay within 4 units in the last place or a relative 1e-6 (GELU:
//! of its argument); functions without a form of their own take the definition, in `f64`. Every loop is free of
//! branches, so that the compiler's vectoriser can have it. An element's result does not depend on its position.

use types::pointwise::{Binary, Unary};

use crate::isa::vectorised;

/// Maps each item of a slice; a macro, because a closure would not inherit the caller's vector instructions.
macro_rules! each {
    ($items:expr, $x:ident => $value:expr) => {
        for item in $items.iter_mut() {
            let $x = *item;
            *item = $value;
        }
    };
}

macro_rules! zip {
    ($into:expr, $other:expr, $a:ident, $b:ident => $value:expr) => {
        for (item, &$b) in $into.iter_mut().zip($other.iter()) {
            let $a = *item;
            *item = $value;
        }
    };
}

vectorised! {
    /// `x[i] = f(x[i])`.
    fn unary(f: Unary, x: &mut [f32]) {
        match f {
            Unary::Abs => each!(x, v => v.abs()),
            Unary::Celu { alpha } => {
                let inverse = 1.0 / alpha;
                each!(x, v => {
                    let below = alpha * exp_m1::<FMA>(v * inverse);
                    (if v < 0.0 { 0.0 } else { v }) + (if below > 0.0 { 0.0 } else { below })
                })
            }
            Unary::Clip { min, max } => each!(x, v => clip(v, min, max)),
            Unary::Elu { alpha } => each!(x, v => if v < 0.0 { alpha * exp_m1::<FMA>(v) } else { v }),
            Unary::Erf => each!(x, v => erf::<FMA>(v)),
            Unary::Exp => each!(x, v => exp::<FMA>(v)),
            Unary::Gelu => each!(x, v => 0.5 * v * (1.0 + erf::<FMA>(v * std::f32::consts::FRAC_1_SQRT_2))),
            Unary::GeluTanh => each!(x, v => {
                let inner = 0.797_884_6 * fma::<FMA>(0.044715 * v * v, v, v);
                0.5 * v * (1.0 + tanh::<FMA>(inner))
            }),
            Unary::HardSigmoid { alpha, beta } => each!(x, v => clip(fma::<FMA>(alpha, v, beta), 0.0, 1.0)),
            Unary::HardSwish => each!(x, v => v * clip(v / 6.0 + 0.5, 0.0, 1.0)),
            Unary::LeakyRelu { alpha } => each!(x, v => if v < 0.0 { alpha * v } else { v }),
            Unary::Log => each!(x, v => log::<FMA>(v)),
            Unary::Mish => each!(x, v => {
                let e = exp::<FMA>(if v > 20.0 { 20.0 } else { v });
                let n = e * (e + 2.0);
                v * (n / (n + 2.0))
            }),
            Unary::Neg => each!(x, v => -v),
            Unary::Not => each!(x, v => if v == 0.0 { 1.0 } else { 0.0 }),
            Unary::Reciprocal => each!(x, v => 1.0 / v),
            Unary::Relu => each!(x, v => if v < 0.0 { 0.0 } else { v }),
            Unary::Selu { alpha, gamma } => {
                each!(x, v => gamma * if v <= 0.0 { alpha * exp_m1::<FMA>(v) } else { v })
            }
            Unary::Sigmoid => each!(x, v => sigmoid::<FMA>(v)),
            Unary::Silu => each!(x, v => v * sigmoid::<FMA>(v)),
            Unary::Softplus => each!(x, v => softplus::<FMA>(v)),
            Unary::Softsign => each!(x, v => v / (1.0 + v.abs())),
            Unary::Sqrt => each!(x, v => v.sqrt()),
            Unary::Tanh => each!(x, v => tanh::<FMA>(v)),
            Unary::ThresholdedRelu { alpha } => each!(x, v => if v > alpha { v } else { 0.0 }),
            _ => each!(x, v => f.eval(f64::from(v)) as f32),
        }
    }
}

vectorised! {
    /// `a[i] = f(a[i], b[i])`, or `f(b[i], a[i])` where `swapped`.
    fn binary(f: Binary, swapped: bool, a: &mut [f32], b: &[f32]) {
        match (f, swapped) {
            (Binary::Add, _) => zip!(a, b, x, y => x + y),
            (Binary::Mul, _) => zip!(a, b, x, y => x * y),
            (Binary::Sub, false) => zip!(a, b, x, y => x - y),
            (Binary::Sub, true) => zip!(a, b, x, y => y - x),
            (Binary::Div, false) => zip!(a, b, x, y => x / y),
            (Binary::Div, true) => zip!(a, b, x, y => y / x),
            (Binary::Max, false) => zip!(a, b, x, y => if x.is_nan() || x > y { x } else { y }),
            (Binary::Max, true) => zip!(a, b, x, y => if y.is_nan() || y > x { y } else { x }),
            (Binary::Min, false) => zip!(a, b, x, y => if x.is_nan() || x < y { x } else { y }),
            (Binary::Min, true) => zip!(a, b, x, y => if y.is_nan() || y < x { y } else { x }),
            (Binary::PRelu, false) => zip!(a, b, x, y => if x < 0.0 { x * y } else { x }),
            (Binary::PRelu, true) => zip!(a, b, x, y => if y < 0.0 { y * x } else { y }),
            (Binary::Pow, false) => zip!(a, b, x, y => power(x, y)),
            (Binary::Pow, true) => zip!(a, b, x, y => power(y, x)),
            (_, false) => zip!(a, b, x, y => f.eval(f64::from(x), f64::from(y)) as f32),
            (_, true) => zip!(a, b, x, y => f.eval(f64::from(y), f64::from(x)) as f32),
        }
    }
}

vectorised! {
    /// `a[i] = a[i] b[i] + c[i]`, rounded once where the instructions can.
    fn multiply_add(a: &mut [f32], b: &[f32], c: &[f32]) {
        for ((x, &y), &z) in a.iter_mut().zip(b).zip(c) {
            *x = fma::<FMA>(*x, y, z);
        }
    }
}

vectorised! {
    /// `x[i] = x[i] + y`.
    fn add_scalar(x: &mut [f32], y: f32) {
        each!(x, v => v + y)
    }
}

vectorised! {
    /// `x[i] = x[i] y`.
    fn scale(x: &mut [f32], y: f32) {
        each!(x, v => v * y)
    }
}

vectorised! {
    /// `y[i] += x[i]²`.
    fn add_squares(x: &[f32], y: &mut [f32]) {
        zip!(y, x, sum, v => fma::<FMA>(v, v, sum))
    }
}

vectorised! {
    /// `y[i] = x[i] (bias + factor y[i])^-beta`.
    fn normalise(x: &[f32], factor: f32, bias: f32, beta: f32, y: &mut [f32]) {
        zip!(y, x, sum, v => v * exp::<FMA>(-beta * log::<FMA>(fma::<FMA>(factor, sum, bias))))
    }
}

vectorised! {
    /// The largest item, NaN where there is one, -inf where there is none.
    fn max(x: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; 32];
        let (chunks, rest) = x.as_chunks::<32>();
        for chunk in chunks {
            zip!(lanes, chunk, a, b => if a.is_nan() || a > b { a } else { b });
        }
        zip!(lanes, rest, a, b => if a.is_nan() || a > b { a } else { b });
        lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if a.is_nan() || a > b { a } else { b })
    }
}

vectorised! {
    /// The sum of the items, in 32 interleaved sums.
    fn sum(x: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 32];
        let (chunks, rest) = x.as_chunks::<32>();
        for chunk in chunks {
            zip!(lanes, chunk, a, b => a + b);
        }
        zip!(lanes, rest, a, b => a + b);
        total(&lanes)
    }
}

vectorised! {
    /// `y[i] = exp(x[i] - shift)`; gives the sum of all `y`.
    fn exp_shifted(x: &[f32], shift: f32, y: &mut [f32]) -> f32 {
        let mut lanes = [0.0f32; 32];
        let (from, from_rest) = x.as_chunks::<32>();
        let (into, into_rest) = y.as_chunks_mut::<32>();
        for (from, into) in from.iter().zip(into) {
            for ((lane, into), &from) in lanes.iter_mut().zip(into).zip(from) {
                *into = exp::<FMA>(from - shift);
                *lane += *into;
            }
        }
        for ((lane, into), &from) in lanes.iter_mut().zip(into_rest).zip(from_rest) {
            *into = exp::<FMA>(from - shift);
            *lane += *into;
        }
        total(&lanes)
    }
}

/// The natural logarithm of one number.
pub(crate) fn log_one(x: f32) -> f32 {
    f64::from(x).ln() as f32
}

#[inline(always)]
fn total(lanes: &[f32; 32]) -> f32 {
    let mut lanes = *lanes;
    for half in [16, 8, 4, 2, 1] {
        for index in 0..half {
            lanes[index] += lanes[index + half];
        }
    }
    lanes[0]
}

/// `a b + c`, in one instruction where `FMA` says that there is one.
#[inline(always)]
pub(crate) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn clip(x: f32, min: f32, max: f32) -> f32 {
    let low = if x < min { min } else { x };
    if low > max { max } else { low }
}

#[inline(always)]
fn power(a: f32, b: f32) -> f32 {
    if b == 2.0 { a * a } else { f64::from(a).powf(f64::from(b)) as f32 }
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has trailing zeros, so that its product with a small integer is exact.
const LN2_HIGH: f32 = 0.693_145_75;
const LN2_LOW: f32 = 1.428_606_8e-6;
/// Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
const ROUND: f32 = 12_582_912.0;

/// `(n, r, q)` with `x = n ln 2 + r` and `q = exp(r) - 1`; `x` is within ±150.
#[inline(always)]
fn reduce_exp<const FMA: bool>(x: f32) -> (i32, f32) {
    let shifted = fma::<FMA>(x, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma::<FMA>(n, -LN2_HIGH, x);
    let r = fma::<FMA>(n, -LN2_LOW, r);
    // The series of (exp(r) - 1 - r) / r² up to r^7: |r| <= 0.35, remainder below 1e-9.
    let p = fma::<FMA>(r, 1.0 / 5040.0, 1.0 / 720.0);
    let p = fma::<FMA>(r, p, 1.0 / 120.0);
    let p = fma::<FMA>(r, p, 1.0 / 24.0);
    let p = fma::<FMA>(r, p, 1.0 / 6.0);
    let p = fma::<FMA>(r, p, 0.5);
    let q = fma::<FMA>(r * r, p, r);
    ((shifted.to_bits() as i32).wrapping_sub(0x4b40_0000), q)
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    let (n, q) = reduce_exp::<FMA>(clip(x, -104.0, 89.0));
    // In two steps, because 2^n itself may be out of range.
    let half = n >> 1;
    (1.0 + q) * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn exp_m1<const FMA: bool>(x: f32) -> f32 {
    let (n, q) = reduce_exp::<FMA>(clip(x, -25.0, 88.0));
    // 2^n / 2 stays in range for n = 128 where 2^n does not.
    let half = power_of_two(n.wrapping_sub(1));
    let result = 2.0 * fma::<FMA>(half, q, half - 0.5);
    if x > 88.0 { exp::<FMA>(x) } else { result }
}

#[inline(always)]
fn tanh<const FMA: bool>(x: f32) -> f32 {
    let doubled = 2.0 * x.abs();
    let e = exp_m1::<FMA>(if doubled > 20.0 { 20.0 } else { doubled });
    (e / (e + 2.0)).copysign(x)
}

#[inline(always)]
fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let e = exp::<FMA>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

#[inline(always)]
fn softplus<const FMA: bool>(x: f32) -> f32 {
    let e = exp::<FMA>(-x.abs());
    let u = 1.0 + e;
    // log(1 + e) = log(u) + what rounding to u lost.
    let log1p = log::<FMA>(u) + (e - (u - 1.0)) / u;
    (if x < 0.0 { 0.0 } else { x }) + log1p
}

/// After FreeBSD's `e_logf.c`: `log(2^k (1 + f))` with a series in `f / (2 + f)`.
#[inline(always)]
fn log<const FMA: bool>(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits().wrapping_add(0x3f80_0000 - 0x3f35_04f3);
    let k = (bits >> 23) as i32 - 127 - if tiny { 23 } else { 0 };
    let f = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let k = k as f32;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let odd = w * fma::<FMA>(w, 0.242_790_79, 0.400_009_72);
    let even = z * fma::<FMA>(w, 0.284_987_87, 0.666_666_63);
    let half = 0.5 * f * f;
    let result = s * (half + (even + odd)) + k * 9.058_000_6e-6 - half + f + k * 0.693_138_12;
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    let result = if x < 0.0 { f32::NAN } else { result };
    if x == f32::INFINITY || x.is_nan() { x } else { result }
}

/// After N. Juffa's `my_erff`, below 1 ulp with fused multiply-add: an odd polynomial in the middle, `1 - exp(p)` outside.
#[inline(always)]
fn erf<const FMA: bool>(x: f32) -> f32 {
    let t = x.abs();
    let t = if t > 4.0 { 4.0 } else { t };
    let s = t * t;
    let r = fma::<FMA>(-1.728_534_7e-5, t, 3.831_972_6e-4);
    let u = fma::<FMA>(-3.883_964_4e-3, t, 2.425_462e-2);
    let r = fma::<FMA>(r, s, u);
    let r = fma::<FMA>(r, t, -1.067_778_77e-1);
    let r = fma::<FMA>(r, t, -6.348_467e-1);
    let r = fma::<FMA>(r, t, -1.287_175_1e-1);
    let r = fma::<FMA>(r, t, -t);
    let outer = (1.0 - exp::<FMA>(r)).copysign(x);
    let p = fma::<FMA>(-5.967_617e-4, s, 4.991_194_2e-3);
    let p = fma::<FMA>(p, s, -2.676_813_5e-2);
    let p = fma::<FMA>(p, s, 1.128_199_25e-1);
    let p = fma::<FMA>(p, s, -3.761_253_4e-1);
    let p = fma::<FMA>(p, s, 1.283_791_7e-1);
    let inner = fma::<FMA>(p, x, x);
    if t > 0.927_734_4 { outer } else { inner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    const FUNCTIONS: &[Unary] = &[
        Unary::Abs,
        Unary::Acos,
        Unary::Atan,
        Unary::Ceil,
        Unary::Celu { alpha: 1.5 },
        Unary::Clip { min: -1.0, max: 6.0 },
        Unary::Cos,
        Unary::Elu { alpha: 0.7 },
        Unary::Erf,
        Unary::Exp,
        Unary::Floor,
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::HardSigmoid { alpha: 0.2, beta: 0.5 },
        Unary::HardSwish,
        Unary::IsNan,
        Unary::LeakyRelu { alpha: 0.01 },
        Unary::Log,
        Unary::Mish,
        Unary::Neg,
        Unary::Not,
        Unary::Reciprocal,
        Unary::Relu,
        Unary::Round,
        Unary::Selu { alpha: 1.67, gamma: 1.05 },
        Unary::Sigmoid,
        Unary::Sign,
        Unary::Silu,
        Unary::Softplus,
        Unary::Softsign,
        Unary::Sqrt,
        Unary::Tanh,
        Unary::ThresholdedRelu { alpha: 0.3 },
    ];

    /// Values of every size and sign, and the special ones.
    fn samples() -> Vec<f32> {
        let mut samples = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-40, f32::MAX];
        samples.extend([-104.5, -103.0, -88.0, 87.5, 88.5, 88.8, 20.0, -20.0, 9.5, 1.0, -1.0, 0.5, 2.5]);
        let mut random = types::Random::new(3);
        for _ in 0..4000 {
            samples.push(random.uniform(-12.0, 12.0));
            samples.push(random.uniform(-1.0, 1.0));
            samples.push(random.uniform(-100.0, 100.0));
            samples.push(random.uniform(-30.0, 30.0).exp2() * if random.below(2) == 0 { 1.0 } else { -1.0 });
        }
        samples
    }

    #[test]
    fn vector_forms_agree_with_the_definition() {
        let samples = samples();
        for &f in FUNCTIONS {
            for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
                if Isa::detect() < isa {
                    continue;
                }
                let mut got = samples.clone();
                unary(isa, f, &mut got);
                for (&x, &got) in samples.iter().zip(&got) {
                    let want = f.eval(f64::from(x)) as f32;
                    if want.is_nan() || want.is_infinite() || got.is_nan() || got.is_infinite() {
                        assert!(got == want || (got.is_nan() && want.is_nan()), "{f:?}({x}) = {got}, not {want} ({isa:?})");
                        continue;
                    }
                    // GELU and its kin lose digits where the tails cancel; there the argument is the scale. The
                    // smallest normal number is the absolute floor; without FMA the error of erf grows a little.
                    let scale = match f {
                        Unary::Gelu | Unary::GeluTanh => want.abs().max(x.abs()),
                        _ => want.abs(),
                    };
                    let tolerance = 1.2e-6 * scale + 1e-37;
                    let cancels = match f {
                        Unary::HardSigmoid { .. } | Unary::HardSwish => 1e-6 * x.abs().min(4.0),
                        _ => 0.0,
                    };
                    assert!((got - want).abs() <= tolerance + cancels, "{f:?}({x}) = {got}, not {want} ({isa:?})");
                }
            }
        }
    }

    #[test]
    fn binary_forms_agree_with_the_definition() {
        let a = samples();
        let mut b = a.clone();
        b.rotate_left(17);
        b[0] = f32::NAN;
        b[30] = 2.0;
        for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min, Binary::PRelu, Binary::Pow, Binary::Mod] {
            for swapped in [false, true] {
                let mut got = a.clone();
                binary(Isa::detect(), f, swapped, &mut got, &b);
                for ((&x, &y), &got) in a.iter().zip(&b).zip(&got) {
                    let (x, y) = if swapped { (y, x) } else { (x, y) };
                    let want = f.eval(f64::from(x), f64::from(y)) as f32;
                    assert!(got == want || (got.is_nan() && want.is_nan()), "{f:?}({x}, {y}) = {got}, not {want}");
                }
            }
        }
    }

    #[test]
    fn a_result_does_not_depend_on_its_position() {
        let samples = samples();
        for &f in FUNCTIONS {
            let mut all = samples.clone();
            unary(Isa::detect(), f, &mut all);
            for start in [1, 5, 13] {
                let mut part = samples[start..start + 37].to_vec();
                unary(Isa::detect(), f, &mut part);
                assert!(part.iter().zip(&all[start..]).all(|(a, b)| a.to_bits() == b.to_bits()), "{f:?}");
            }
        }
    }

    #[test]
    fn sums_and_maxima() {
        for count in [0, 1, 31, 32, 33, 100] {
            let x: Vec<f32> = (0..count).map(|index| ((index * 37) % 101) as f32).collect();
            for isa in [Isa::Portable, Isa::detect()] {
                assert_eq!(sum(isa, &x), x.iter().sum::<f32>());
                assert_eq!(max(isa, &x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            }
        }
        assert!(max(Isa::detect(), &[1.0, f32::NAN, 2.0]).is_nan());
    }
}
