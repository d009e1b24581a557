//! [`Reduce`]: reduction along some axes.

use serde::{Deserialize, Serialize};
use types::{DType, Element};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// The reduction of many elements to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ReduceFn {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    SumSquare,
    L1,
    L2,
    LogSum,
    LogSumExp,
}

/// Reduces the axes marked in `reduced` of a row-major tensor. Sums are accumulated in `f64`, in row-major order; for
/// maxima and minima the order does not matter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// The reduction.
    pub function: ReduceFn,
    /// The dtype of elements and results.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// Whether each axis is reduced.
    pub reduced: Vec<bool>,
}

impl Reduce {
    fn part(&self, reduced: bool) -> impl Iterator<Item = usize> + '_ {
        self.shape.iter().zip(&self.reduced).filter(move |(_, flag)| **flag == reduced).map(|(&extent, _)| extent)
    }
}

impl KernelFn for Reduce {
    const NAME: &'static str = "reduce";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.reduced.len() != self.shape.len() || 16 < self.shape.len() {
            return Err(InvalidKernel("there must be at most 16 extents, each with a flag"));
        }
        let kept: Vec<usize> = self.part(false).collect();
        let gone: Vec<usize> = self.part(true).collect();
        product(&gone).ok_or(InvalidKernel("the number of elements must fit in an address"))?;
        let sizes = Sizes::new(&[product(&self.shape)], product(&kept), self.dtype.size().0 as usize)?;
        Ok(sizes)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        1
    }

    fn run(&self, args: Args, pool: &Pool) {
        macro_rules! typed {
            ($($dtype:ident: $type:ty),*) => {
                match self.dtype {
                    $(DType::$dtype => self.run_typed::<$type>(args, pool)),*
                }
            };
        }
        if let (ReduceFn::Max | ReduceFn::Min, DType::F32, &[Operand::Bytes(x)]) =
            (self.function, self.dtype, args.inputs)
            && let Ok(items) = bytemuck::try_cast_slice::<u8, f32>(x)
            && args.outputs[0].len() == 4
            && !items.is_empty()
        {
            let extreme = extreme_of_all(items, self.function == ReduceFn::Min, pool);
            args.outputs[0].copy_from_slice(&extreme.to_le_bytes());
            return;
        }
        typed!(F32: f32, F64: f64, F16: types::f16, Bf16: types::bf16, I8: i8, I16: i16, I32: i32, I64: i64, U8: u8,
               U16: u16, U32: u32, U64: u64, Bool: bool)
    }
}

/// Parts of a tensor whose extremes are computed in parallel.
const PARTS: usize = 32;

/// The maximum or minimum of all items; NaN if one is NaN.
fn extreme_of_all(items: &[f32], is_min: bool, pool: &Pool) -> f32 {
    let mut extremes = [[0u8; 4]; PARTS];
    let chunk = items.len().div_ceil(PARTS).next_multiple_of(LANES);
    let parts = items.len().div_ceil(chunk);
    for_each_chunk(pool, extremes[..parts].as_flattened_mut(), 4, &|number, cell| {
        let items = &items[number * chunk..items.len().min((number + 1) * chunk)];
        let cell: &mut [u8] = cell;
        with_vector!(pool.isa(), extreme(items: &[f32], is_min: bool, cell: &mut [u8]));
    });
    let extremes = extremes[..parts].iter().map(|bytes| f32::from_le_bytes(*bytes));
    let better = |best: f32, x: f32| x.is_nan() || (if is_min { x < best } else { x > best });
    extremes
        .fold(if is_min { f32::INFINITY } else { f32::NEG_INFINITY }, |best, x| if better(best, x) { x } else { best })
}

#[inline(always)]
fn extreme<V: Vector>(items: &[f32], is_min: bool, cell: &mut [u8]) {
    // The minimum is the negated maximum of the negated items.
    let sign = V::splat(if is_min { -1.0 } else { 1.0 });
    let mut best = [V::splat(f32::NEG_INFINITY); 4];
    let mut chunks = items.chunks_exact(4 * LANES);
    for items in &mut chunks {
        for (best, items) in best.iter_mut().zip(items.chunks_exact(LANES)) {
            *best = best.max_or_nan(V::read(items).mul(sign));
        }
    }
    for items in chunks.remainder().chunks(LANES) {
        best[0] =
            best[0].max_or_nan(V::read_part(items, if is_min { f32::INFINITY } else { f32::NEG_INFINITY }).mul(sign));
    }
    let best = best[0].max_or_nan(best[1]).max_or_nan(best[2].max_or_nan(best[3])).to_array();
    let best = best.into_iter().fold(f32::NEG_INFINITY, |best, x| if x.is_nan() || x > best { x } else { best });
    cell.copy_from_slice(&(if is_min { -best } else { best }).to_le_bytes());
}

impl Reduce {
    fn run_typed<T: Element>(&self, args: Args, pool: &Pool) {
        let Operand::Bytes(x) = args.inputs[0] else { return };
        let size = T::DTYPE.size().0 as usize;
        let rank = self.shape.len();
        let mut strides = [1usize; 16];
        for axis in (0..rank.saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * self.shape[axis + 1];
        }
        let window: usize = self.part(true).product();
        // Innermost reduced axes are walked as one contiguous run.
        let run: usize = self
            .shape
            .iter()
            .zip(&self.reduced)
            .rev()
            .take_while(|(_, flag)| **flag)
            .map(|(&extent, _)| extent)
            .product();
        for_each_chunk(pool, args.outputs[0], size, &|number, cell| {
            let position = |mut rest: usize, reduced: bool| {
                let mut at = 0;
                for axis in (0..rank).rev().filter(|&axis| self.reduced[axis] == reduced) {
                    at += rest % self.shape[axis] * strides[axis];
                    rest /= self.shape[axis];
                }
                at
            };
            let base = position(number, false);
            let fold = |start: f64, step: &dyn Fn(f64, f64) -> f64| {
                let mut sum = start;
                for first in (0..window).step_by(run.max(1)) {
                    let at = (base + position(first, true)) * size;
                    let items = x[at..at + run * size].chunks_exact(size).map(T::from_le);
                    sum = items.fold(sum, |sum, item| step(sum, item.to_f64()));
                }
                sum
            };
            let sum = || fold(0.0, &|sum, x| sum + x);
            let max = || fold(f64::NEG_INFINITY, &|best, x| if x.is_nan() || x > best { x } else { best });
            let value = match self.function {
                ReduceFn::Sum => sum(),
                ReduceFn::Mean => sum() / window as f64,
                ReduceFn::Max => max(),
                ReduceFn::Min => fold(f64::INFINITY, &|best, x| if x.is_nan() || x < best { x } else { best }),
                ReduceFn::Prod => fold(1.0, &|product, x| product * x),
                ReduceFn::SumSquare => fold(0.0, &|sum, x| sum + x * x),
                ReduceFn::L1 => fold(0.0, &|sum, x| sum + x.abs()),
                ReduceFn::L2 => fold(0.0, &|sum, x| sum + x * x).sqrt(),
                ReduceFn::LogSum => sum().ln(),
                ReduceFn::LogSumExp => {
                    let top = max();
                    if top.is_infinite() { top } else { top + fold(0.0, &|sum, x| sum + (x - top).exp()).ln() }
                }
            };
            T::from_f64(value).write_le(cell);
        });
    }
}
