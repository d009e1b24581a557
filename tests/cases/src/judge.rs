//! Inputs of a case, and the differences from the definition that its results may have.

use std::fmt;

use ir::{EvalError, Graph, ValueId, evaluate};
use types::{DType, Random, Shape, Tensor};

use crate::forms::{map_constants, without_activation};

/// Relative and absolute tolerance: sums of several hundred products of numbers below 1, in `f32` against `f64`, in any
/// order.
pub const TOLERANCE: f64 = 4e-5;

/// The relative spacing of TF32 numbers. An operand that is rounded to TF32 is off by at most half of it, a product of
/// two operands by all of it.
pub const ELEVEN_BITS: f64 = 1.0 / 1024.0;

/// The relative spacing of the numbers of a half-precision dtype.
pub fn step(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
        other => unreachable!("{other} is no half"),
    }
}

/// Inputs for a graph: floats uniform in [-1, 1), 8-bit integers of any value, other integers in 0..3.
pub fn inputs(graph: &Graph, seed: u64) -> Vec<Tensor> {
    let tensor = |&id: &ValueId| {
        let value = graph.value(id);
        let mut random = Random::for_name(seed, &value.name);
        match value.ty.dtype.is_float() {
            true => Tensor::from_fn(value.ty.shape.clone(), |_| random.uniform(-1.0, 1.0)).cast(value.ty.dtype),
            // Other integers may be indices into a small axis.
            false => {
                let end = if matches!(value.ty.dtype, DType::U8 | DType::I8) { 256 } else { 3 };
                Tensor::from_fn(value.ty.shape.clone(), |_| random.below(end) as i64).cast(value.ty.dtype)
            }
        }
    };
    graph.inputs().iter().map(tensor).collect()
}

/// Inputs for a graph of floats: -1, 0 and 1, whose sums of products are exact in every precision if they are small.
pub fn small_integers(graph: &Graph, seed: u64) -> Vec<Tensor> {
    let tensor = |&id: &ValueId| {
        let value = graph.value(id);
        let mut random = Random::for_name(seed, &value.name);
        Tensor::from_fn(value.ty.shape.clone(), |_| random.below(3) as f32 - 1.0).cast(value.ty.dtype)
    };
    graph.inputs().iter().map(tensor).collect()
}

/// The difference that each element of a result may have.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowed {
    /// A part of the expected value, plus a constant.
    Parts {
        /// The part of the expected value.
        relative: f64,
        /// The constant.
        absolute: f64,
    },
    /// One difference for each element.
    Each(Vec<f64>),
}

impl Allowed {
    /// None at all.
    pub const NOTHING: Allowed = Allowed::Parts { relative: 0.0, absolute: 0.0 };

    /// For a result of a run that stores `f32` values between kernels as `stored`.
    pub fn of(want: &Tensor, stored: DType) -> Allowed {
        // A sum near the midpoint of two half-precision numbers may round to either, which changes results computed
        // from it.
        let relative = TOLERANCE + if want.dtype().is_half() { step(want.dtype()) } else { 0.0 };
        let largest = want.to_f64().into_iter().filter(|item| item.is_finite()).fold(0.0f64, |a, b| a.max(b.abs()));
        let between = if stored.is_half() && want.dtype() == DType::F32 { step(stored) * largest } else { 0.0 };
        Allowed::Parts { relative, absolute: TOLERANCE + between }
    }

    /// For a state of a recurrent layer whose products round weights and states to `stored`, or to TF32 if that is `f32`: four
    /// steps of the largest state. The error of a step is carried to the next ones, where gates and weights damp it.
    pub fn of_states(want: &Tensor, stored: DType) -> Allowed {
        let largest = want.to_f64().into_iter().fold(0.0f64, |a, b| a.max(b.abs()));
        let own = if stored.is_half() { step(stored) } else { ELEVEN_BITS };
        Allowed::Parts { relative: 0.0, absolute: TOLERANCE + 4.0 * own * largest }
    }

    /// For a graph of one product whose operands are rounded to TF32: `steps` times [`ELEVEN_BITS`] of the sum of the
    /// terms' magnitudes. Activations are ignored.
    ///
    /// # Errors
    /// The inputs do not match the graph's.
    pub fn of_rounded(graph: &Graph, given: &[Tensor], steps: f64) -> Result<Allowed, EvalError> {
        let sizes: Vec<Tensor> = given.iter().map(sizes).collect();
        let plain = without_activation(&map_constants(graph, self::sizes));
        let most = evaluate(&plain, &sizes)?.swap_remove(0).to_f64();
        Ok(Allowed::Each(most.into_iter().map(|most| (steps * ELEVEN_BITS + 1e-5) * most + 1e-6).collect()))
    }

    /// For a graph of one product, if a library adds the terms in any order or uses Winograd's algorithm: the usual
    /// tolerance, plus a hundred-thousandth of the sum of the terms' magnitudes. Activations at most double that part.
    ///
    /// # Errors
    /// The inputs do not match the graph's.
    pub fn of_sums(graph: &Graph, given: &[Tensor]) -> Result<Allowed, EvalError> {
        let sizes: Vec<Tensor> = given.iter().map(sizes).collect();
        let plain = without_activation(&map_constants(graph, self::sizes));
        let most = evaluate(&plain, &sizes)?.swap_remove(0).to_f64();
        Ok(Allowed::Each(most.into_iter().map(|most| 2e-5 * most + TOLERANCE).collect()))
    }

    /// For a graph of one product in half precision, if a library rounds the product before its activation: the usual
    /// tolerance, plus one step of the product. Rounding is off by half a step, and activations at most double that.
    ///
    /// # Errors
    /// The inputs do not match the graph's.
    pub fn of_rounded_between(graph: &Graph, given: &[Tensor], stored: DType) -> Result<Allowed, EvalError> {
        let between = evaluate(&without_activation(graph), given)?.swap_remove(0).to_f64();
        let want = evaluate(graph, given)?.swap_remove(0);
        let usual = Allowed::of(&want, stored);
        let want = want.to_f64();
        let own = |(ix, between): (usize, &f64)| usual.at(ix, want[ix]) + step(stored) * between.abs();
        Ok(Allowed::Each(between.iter().enumerate().map(own).collect()))
    }

    fn at(&self, ix: usize, want: f64) -> f64 {
        match self {
            Allowed::Parts { relative, absolute } => absolute + relative * want.abs(),
            Allowed::Each(each) => each[ix],
        }
    }
}

/// The absolute values of a tensor's elements.
fn sizes(tensor: &Tensor) -> Tensor {
    let items = tensor.to_f64();
    Tensor::from_fn(tensor.shape().clone(), |ix| items[ix].abs() as f32)
}

/// A result compared with the expected one.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The largest difference, as a part of the allowed difference; a correct result is at most 1.
    pub part: f64,
    /// The number of elements that exceed the allowed difference.
    pub wrong: usize,
    /// The first such element.
    pub first: Option<Element>,
}

/// An element that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// Its position in row-major order.
    pub at: usize,
    /// The computed value.
    pub got: f64,
    /// The expected value.
    pub want: f64,
}

impl Element {
    /// Its index along each axis.
    pub fn index(&self, shape: &Shape) -> Vec<usize> {
        let mut rest = self.at;
        let mut index: Vec<usize> = shape
            .iter()
            .rev()
            .map(|&extent| {
                let own = rest % extent;
                rest /= extent;
                own
            })
            .collect();
        index.reverse();
        index
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} is {}, not {}", self.at, self.got, self.want)
    }
}

impl Verdict {
    /// Compares element by element. A NaN matches only a NaN, an infinity only the same infinity.
    ///
    /// # Errors
    /// The dtypes or shapes differ.
    pub fn of(got: &Tensor, want: &Tensor, allowed: &Allowed) -> Result<Verdict, String> {
        if (got.dtype(), got.shape()) != (want.dtype(), want.shape()) {
            return Err(format!("{}{} not {}{}", got.dtype(), got.shape(), want.dtype(), want.shape()));
        }
        let mut verdict = Verdict { part: 0.0, wrong: 0, first: None };
        for (at, (got, want)) in got.to_f64().into_iter().zip(want.to_f64()).enumerate() {
            if got == want || (got.is_nan() && want.is_nan()) {
                continue;
            }
            let part = match got.is_finite() && want.is_finite() {
                true => (got - want).abs() / allowed.at(at, want),
                false => f64::INFINITY,
            };
            verdict.part = verdict.part.max(part);
            if 1.0 < part {
                verdict.wrong += 1;
                verdict.first.get_or_insert(Element { at, got, want });
            }
        }
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(items: &[f32]) -> Tensor {
        Tensor::vector(items.to_vec())
    }

    #[test]
    fn differences_are_fractions_of_the_tolerance() {
        let allowed = Allowed::Parts { relative: 0.125, absolute: 0.25 };
        let of = |got: &[f32], want: &[f32]| Verdict::of(&vector(got), &vector(want), &allowed).expect("types agree");
        assert_eq!(of(&[2.25, -2.0], &[2.0, -2.0]), Verdict { part: 0.5, wrong: 0, first: None });
        let wrong = of(&[2.0, 3.0, 0.0], &[2.0, 2.0, 4.0]);
        assert_eq!((wrong.part, wrong.wrong), (4.0 / 0.75, 2));
        assert_eq!(wrong.first, Some(Element { at: 1, got: 3.0, want: 2.0 }));
        for (got, want, part) in [
            (f32::NAN, f32::NAN, 0.0),
            (f32::INFINITY, f32::INFINITY, 0.0),
            (f32::NAN, 1.0, f64::INFINITY),
            (1.0, f32::NAN, f64::INFINITY),
            (f32::INFINITY, f32::NEG_INFINITY, f64::INFINITY),
            (f32::MAX, f32::INFINITY, f64::INFINITY),
        ] {
            assert_eq!(of(&[got], &[want]).part, part, "{got} and {want}");
        }
        let other = Verdict::of(&vector(&[1.0]), &vector(&[1.0, 2.0]), &allowed);
        assert!(other.is_err_and(|said| said.contains("f32[1] not f32[2]")));
    }

    #[test]
    fn places_are_told_by_axes() {
        let shape = Shape::from([2, 3, 5]);
        let index = |at: usize| Element { at, got: 0.0, want: 0.0 }.index(&shape);
        assert_eq!((index(0), index(7), index(29)), (vec![0, 0, 0], vec![0, 1, 2], vec![1, 2, 4]));
        assert_eq!(Element { at: 0, got: 0.0, want: 0.0 }.index(&Shape::from([])), Vec::<usize>::new());
    }

    #[test]
    fn halves_are_allowed_a_step_of_theirs() {
        let f32s = vector(&[1.0, -4.0]);
        let of = |want: &Tensor, stored| match Allowed::of(want, stored) {
            Allowed::Parts { relative, absolute } => [relative, absolute].map(|part| part - TOLERANCE),
            Allowed::Each(_) => unreachable!("it is by parts"),
        };
        assert_eq!(of(&f32s, DType::F32), [0.0, 0.0]);
        assert!((of(&f32s, DType::F16)[1] - 4.0 / 1024.0).abs() < 1e-12);
        assert!((of(&f32s.cast(DType::Bf16), DType::Bf16)[0] - 1.0 / 128.0).abs() < 1e-12);
    }
}
