//! What a case is run on, and what its results may differ by from the definition's.

use std::fmt;

use ir::{EvalError, Graph, ValueId, evaluate};
use types::{DType, Random, Shape, Tensor};

use crate::forms::{with_known, without_activation};

/// Relative and absolute difference allowed: sums of some hundred products of numbers below 1, in `f32` against `f64`, in
/// whatever order.
pub const TOLERANCE: f64 = 4e-5;

/// How far a number of eleven bits is from the next one, as a part of it: an operand that is rounded to it is off by half of
/// that at most, and a product of two by all of it.
pub const ELEVEN_BITS: f64 = 1.0 / 1024.0;

/// How far a number is from the next one of a half, as a part of it.
pub fn step(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
        other => unreachable!("{other} is no half"),
    }
}

/// Inputs for a graph: floats uniform in [-1, 1), bytes of any value, other integers in 0..3.
pub fn inputs(graph: &Graph, seed: u64) -> Vec<Tensor> {
    let tensor = |&id: &ValueId| {
        let value = graph.value(id);
        let mut random = Random::for_name(seed, &value.name);
        match value.ty.dtype.is_float() {
            true => Tensor::from_fn(value.ty.shape.clone(), |_| random.uniform(-1.0, 1.0)).cast(value.ty.dtype),
            // Others may be places in something small.
            false => {
                let end = if matches!(value.ty.dtype, DType::U8 | DType::I8) { 256 } else { 3 };
                Tensor::from_fn(value.ty.shape.clone(), |_| random.below(end) as i64).cast(value.ty.dtype)
            }
        }
    };
    graph.inputs().iter().map(tensor).collect()
}

/// How much each element of a result may differ by.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowed {
    /// So much of the wanted number, and so much beside.
    Parts {
        /// Of the wanted number.
        relative: f64,
        /// Beside.
        absolute: f64,
    },
    /// By element.
    Each(Vec<f64>),
}

impl Allowed {
    /// Of a result where `f32` between kernels are stored as `stored`.
    pub fn of(want: &Tensor, stored: DType) -> Allowed {
        // A sum on the border of two halves may become either, and what comes of it is another number.
        let relative = TOLERANCE + if want.dtype().is_half() { step(want.dtype()) } else { 0.0 };
        let largest = want.to_f64().into_iter().filter(|item| item.is_finite()).fold(0.0f64, |a, b| a.max(b.abs()));
        let between = if stored.is_half() && want.dtype() == DType::F32 { step(stored) * largest } else { 0.0 };
        Allowed::Parts { relative, absolute: TOLERANCE + between }
    }

    /// Of the one product that a graph is, where operands are rounded to eleven bits: a step of the sum of the terms' sizes,
    /// once or several times. Functions that follow are not looked at.
    ///
    /// # Errors
    /// The inputs are not the graph's.
    pub fn of_rounded(graph: &Graph, given: &[Tensor], steps: f64) -> Result<Allowed, EvalError> {
        let sizes: Vec<Tensor> = given.iter().map(sizes).collect();
        let plain = without_activation(&with_known(graph, self::sizes));
        let most = evaluate(&plain, &sizes)?.swap_remove(0).to_f64();
        Ok(Allowed::Each(most.into_iter().map(|most| (steps * ELEVEN_BITS + 1e-5) * most + 1e-6).collect()))
    }

    /// Of the one product that a graph is, where a library adds its terms in whatever order, or by Winograd's algorithm: beside
    /// the usual difference a hundred-thousandth part of the sum of the terms' sizes. Functions that follow make at most twice
    /// of it.
    ///
    /// # Errors
    /// The inputs are not the graph's.
    pub fn of_sums(graph: &Graph, given: &[Tensor]) -> Result<Allowed, EvalError> {
        let sizes: Vec<Tensor> = given.iter().map(sizes).collect();
        let plain = without_activation(&with_known(graph, self::sizes));
        let most = evaluate(&plain, &sizes)?.swap_remove(0).to_f64();
        Ok(Allowed::Each(most.into_iter().map(|most| 2e-5 * most + TOLERANCE).collect()))
    }

    /// Of the one product that a graph of halves is, where a library's result is rounded before the functions that follow:
    /// beside the usual difference a step of that result. It is off by half of one, of which functions make at most twice.
    ///
    /// # Errors
    /// The inputs are not the graph's.
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

/// A tensor of its elements' sizes.
fn sizes(tensor: &Tensor) -> Tensor {
    let items = tensor.to_f64();
    Tensor::from_fn(tensor.shape().clone(), |ix| items[ix].abs() as f32)
}

/// A result beside the wanted one.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The largest difference, as a part of what is allowed there: right up to 1.
    pub part: f64,
    /// The elements that differ by more.
    pub wrong: usize,
    /// The first of them.
    pub first: Option<Element>,
}

/// An element that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// Its place, as the elements lie in memory.
    pub at: usize,
    /// What it is.
    pub got: f64,
    /// What it should be.
    pub want: f64,
}

impl Element {
    /// Its place by axes.
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
    /// Compares element by element. What is no number has to be none, and what is endless the same.
    ///
    /// # Errors
    /// Another type, in words.
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
    fn differences_are_parts_of_what_is_allowed() {
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
