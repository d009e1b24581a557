//! [`ArgExtreme`]: the index of the largest or smallest element along an axis (argmax, argmin).

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// The index, as `i64`, of the largest or smallest `f32` along the middle axis of `x: [outer, axis, inner]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgExtreme {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Extent of the axis; must be at least 1.
    pub axis: usize,
    /// Product of the extents after the axis.
    pub inner: usize,
    /// Whether the largest element is selected; otherwise the smallest.
    pub max: bool,
    /// Whether the last of equal elements is selected; otherwise the first.
    pub last: bool,
}

impl KernelFn for ArgExtreme {
    const NAME: &'static str = "arg_extreme";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if !(1..=u32::MAX as usize).contains(&self.axis) {
            return Err(InvalidKernel("`axis` must be 1 to 2^32 - 1"));
        }
        let x = product(&[self.outer, self.axis, self.inner, 4]);
        Sizes::new(&[x], product(&[self.outer, self.inner, 8]), 1)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let Operand::Bytes(bytes) = args.inputs[0] else { return };
        let x: &[f32] = elements(bytes);
        // Neighboring results read neighboring elements.
        let chunk = (WORK / self.axis).clamp(1, if self.inner == 1 { WORK } else { COLUMNS });
        let outputs = self.outer * self.inner;
        for_each_chunk(pool, args.outputs[0], 8 * chunk, &|number, cells| {
            let mut number = number * chunk;
            let mut cells = &mut cells.as_chunks_mut::<8>().0[..];
            while !cells.is_empty() && number < outputs {
                let (outer, column) = (number / self.inner, number % self.inner);
                let together = if self.inner == 1 { outputs - number } else { self.inner - column };
                let (own, rest) = cells.split_at_mut(cells.len().min(together));
                let x = &x[outer * self.axis * self.inner + column..];
                let (kernel, count) = (self, own.len());
                with_vector!(pool.isa(), search(kernel: &ArgExtreme, x: &[f32], own: &mut [[u8; 8]]));
                (number, cells) = (number + count, rest);
            }
        });
    }
}

/// Elements that a task searches.
const WORK: usize = 1 << 14;
/// Columns that are searched at a time.
const COLUMNS: usize = 64;
/// Fewer columns are searched one by one.
const COLUMNS_MIN: usize = 4;
/// Elements that are compared at a time.
const BLOCK: usize = LANES;

/// The best elements so far, and their indices: NaN is never better than another.
struct Best<const N: usize> {
    items: [f32; N],
    found: [u32; N],
}

impl<const N: usize> Best<N> {
    fn new(kernel: &ArgExtreme) -> Best<N> {
        Best { items: [if kernel.max { f32::NEG_INFINITY } else { f32::INFINITY }; N], found: [0; N] }
    }

    #[inline(always)]
    fn add<V: Vector>(&mut self, kernel: &ArgExtreme, items: &[f32], number: u32) {
        macro_rules! each {
            ($item:ident, $best:ident => $better:expr) => {{
                // Blocks are stored whole: single elements would be compiled to masked stores, which are slow.
                let blocks = self.items.as_chunks_mut::<BLOCK>().0.iter_mut();
                let blocks = blocks.zip(self.found.as_chunks_mut::<BLOCK>().0).zip(items.chunks(BLOCK));
                for ((best_items, best_found), items) in blocks {
                    let (mut bests, mut founds) = (*best_items, *best_found);
                    // NaN, which lanes behind the items have, is never better.
                    let items = V::read_part(items, f32::NAN).to_array();
                    for lane in 0..BLOCK {
                        let ($item, $best) = (items[lane], bests[lane]);
                        let better = $better;
                        bests[lane] = if better { $item } else { $best };
                        founds[lane] = if better { number } else { founds[lane] };
                    }
                    (*best_items, *best_found) = (bests, founds);
                }
            }};
        }
        match (kernel.max, kernel.last) {
            (true, false) => each!(item, best => item > best),
            (true, true) => each!(item, best => item >= best),
            (false, false) => each!(item, best => item < best),
            (false, true) => each!(item, best => item <= best),
        }
    }
}

/// The results of neighboring columns of `x`, or of rows if the axis is the last.
#[inline(always)]
fn search<V: Vector>(kernel: &ArgExtreme, x: &[f32], own: &mut [[u8; 8]]) {
    // The first element stays the best if it is NaN.
    let index = |first: f32, found: u32| if first.is_nan() { 0 } else { i64::from(found) };
    if kernel.inner == 1 {
        for (cell, row) in own.iter_mut().zip(x.chunks_exact(kernel.axis)) {
            *cell = index(row[0], search_row::<V>(kernel, row)).to_le_bytes();
        }
        return;
    }
    if own.len() < COLUMNS_MIN {
        for (column, cell) in own.iter_mut().enumerate() {
            let items = x[column..].iter().step_by(kernel.inner).take(kernel.axis);
            *cell = index(x[column], search_items(kernel, items)).to_le_bytes();
        }
        return;
    }
    let mut best = Best::<COLUMNS>::new(kernel);
    for (number, row) in x.chunks(kernel.inner).take(kernel.axis).enumerate() {
        best.add::<V>(kernel, &row[..own.len()], number as u32);
    }
    for ((cell, found), first) in own.iter_mut().zip(best.found).zip(x) {
        *cell = index(*first, found).to_le_bytes();
    }
}

/// The index among some items, one after the other.
#[inline(always)]
fn search_items<'a>(kernel: &ArgExtreme, items: impl Iterator<Item = &'a f32>) -> u32 {
    let (mut found, worst) = (0, if kernel.max { f32::NEG_INFINITY } else { f32::INFINITY });
    macro_rules! each {
        ($item:ident, $best:ident => $better:expr) => {{
            let mut $best = worst;
            for (number, &$item) in items.enumerate() {
                let better = $better;
                $best = if better { $item } else { $best };
                found = if better { number as u32 } else { found };
            }
        }};
    }
    match (kernel.max, kernel.last) {
        (true, false) => each!(item, best => item > best),
        (true, true) => each!(item, best => item >= best),
        (false, false) => each!(item, best => item < best),
        (false, true) => each!(item, best => item <= best),
    }
    found
}

/// The index in a row, searched in sixteen lanes.
#[inline(always)]
fn search_row<V: Vector>(kernel: &ArgExtreme, row: &[f32]) -> u32 {
    if row.len() < 8 * LANES {
        return search_items(kernel, row.iter());
    }
    let mut best = Best::<LANES>::new(kernel);
    for (number, items) in row.chunks(LANES).enumerate() {
        best.add::<V>(kernel, items, number as u32);
    }
    // Of equal elements the first or the last of the row.
    let is_better = |a: f32, b: f32| if kernel.max { a > b } else { a < b };
    let (mut item, mut index) = (best.items[0], best.found[0] * LANES as u32);
    for lane in 1..LANES {
        let (own, at) = (best.items[lane], best.found[lane] * LANES as u32 + lane as u32);
        let is_equal = own == item && (if kernel.last { at > index } else { at < index });
        if is_better(own, item) || is_equal {
            (item, index) = (own, at);
        }
    }
    index
}
