//! Pooling of bytes: windows are folded along rows, then along columns, both in integers. Results are those of `f32`, as sums
//! are exact in both.

use std::marker::PhantomData;
use std::ops::Add;

use super::Row;
use crate::conv::Window;
use crate::ops::Pool2dKind;
use crate::simd::storage::Item;
use crate::simd::vector::{LANES, Vector};

/// Input columns that are folded along rows at once.
const COLUMNS: usize = 64;
/// The most cells of a window whose sum fits in 16 bits.
const CELLS_MAX: usize = 255;

/// A byte and the type of its sums.
pub(super) trait Byte: Item + Ord {
    /// The identity of the maximum.
    const LEAST: Self;
    type Sum: Copy + Default + Add<Output = Self::Sum>;
    fn wide(self) -> Self::Sum;
    fn number(sum: Self::Sum) -> f32;
}

macro_rules! byte {
    ($byte:ty, $sum:ty) => {
        impl Byte for $byte {
            const LEAST: $byte = <$byte>::MIN;
            type Sum = $sum;

            #[inline(always)]
            fn wide(self) -> $sum {
                self.into()
            }

            #[inline(always)]
            fn number(sum: $sum) -> f32 {
                sum.into()
            }
        }
    };
}

byte!(u8, u16);
byte!(i8, i16);

/// Whether windows are so small that these functions compute them.
pub(super) fn fits(window: &Window) -> bool {
    window.taps() <= CELLS_MAX && reach(window).is_some_and(|reach| reach <= COLUMNS)
}

/// Input columns from the first to the last one of a window.
fn reach(window: &Window) -> Option<usize> {
    window.kernel[1].checked_sub(1)?.checked_mul(window.dilation[1])?.checked_add(1)
}

/// One output row.
#[inline(always)]
pub(super) fn run<V: Vector, T: Byte>(row: &Row<'_, T>, cells: &mut [[T; LANES]]) {
    if row.kernel.kind == Pool2dKind::Max {
        return fold(row, cells, T::LEAST, |item| item, T::max, &Most);
    }
    let mean = Mean::<V, _> { count: row.counts(), vector: PhantomData };
    fold(row, cells, T::Sum::default(), T::wide, T::Sum::add, &mean);
}

/// A fold as a result. No closure: one that is not inlined is not compiled for the instruction set.
trait Finish<T, F> {
    /// Writes the fold of the window at a column.
    fn write(&self, column: usize, fold: &[F; LANES], cell: &mut [T; LANES]);
}

struct Most;

impl<T: Byte> Finish<T, T> for Most {
    #[inline(always)]
    fn write(&self, _: usize, fold: &[T; LANES], cell: &mut [T; LANES]) {
        *cell = *fold;
    }
}

struct Mean<V, C> {
    /// The divisor at a column.
    count: C,
    vector: PhantomData<V>,
}

impl<V: Vector, T: Byte, C: Fn(usize) -> usize> Finish<T, T::Sum> for Mean<V, C> {
    #[inline(always)]
    fn write(&self, column: usize, fold: &[T::Sum; LANES], cell: &mut [T; LANES]) {
        let mut numbers = [0.0; LANES];
        for (number, &sum) in numbers.iter_mut().zip(fold) {
            *number = T::number(sum);
        }
        T::write(V::read(&numbers).div(V::splat((self.count)(column) as f32)), cell);
    }
}

/// Folds windows and turns each fold, with its column, into a result.
#[inline(always)]
fn fold<T: Byte, F: Copy>(
    row: &Row<'_, T>,
    cells: &mut [[T; LANES]],
    start: F,
    widen: impl Fn(T) -> F,
    join: impl Fn(F, F) -> F,
    finish: &impl Finish<T, F>,
) {
    let window = &row.kernel.window;
    let (stride, dilation, width) = (window.stride[1], window.dilation[1], window.input[1]);
    let reach = reach(window).expect("`fits` checked it");
    let at_once = (COLUMNS - reach) / stride + 1;
    let mut columns = [[start; LANES]; COLUMNS];
    for (ix, cells) in cells.chunks_mut(at_once).enumerate() {
        // Columns of the padded input.
        let first = ix * at_once * stride;
        let columns = &mut columns[..(cells.len() - 1) * stride + reach];
        columns.fill([start; LANES]);
        let [from, to] =
            [first, first + columns.len()].map(|column| column.clamp(window.pad[1], window.pad[1] + width));
        for items in row.rows() {
            let items = &items[from - window.pad[1]..to - window.pad[1]];
            for (column, item) in columns.iter_mut().skip(from.saturating_sub(first)).zip(items) {
                for (fold, &item) in column.iter_mut().zip(item) {
                    *fold = join(*fold, widen(item));
                }
            }
        }
        for (at, cell) in cells.iter_mut().enumerate() {
            let mut fold = columns[at * stride];
            for tap in 1..window.kernel[1] {
                for (fold, &item) in fold.iter_mut().zip(&columns[at * stride + tap * dilation]) {
                    *fold = join(*fold, item);
                }
            }
            finish.write(ix * at_once + at, &fold, cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_limited_by_their_reach_and_their_cells() {
        let window = |kernel, dilation| Window {
            input: [900; 2],
            output: [1; 2],
            kernel,
            stride: [1; 2],
            dilation: [1, dilation],
            pad: [0; 2],
        };
        assert!(fits(&window([15, 17], 1)));
        assert!(!fits(&window([16, 16], 1)), "255 * 256 has 17 bits");
        assert!(fits(&window([1, 64], 1)) && !fits(&window([1, 65], 1)));
        assert!(fits(&window([1, 22], 3)) && !fits(&window([1, 23], 3)));
        assert!(!fits(&window([1, 2], usize::MAX)));
    }
}
