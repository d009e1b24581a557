//! [`LayerNorm`]: layer normalization over rows.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::movement::short_rows;
use crate::simd::StorageType;
use crate::simd::storage::{Item, with_fraction};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Elements per task.
const TASK: usize = 1 << 13;
/// Rows of at most this many elements are computed side by side.
const SHORT: usize = LANES;

/// `(x - mean) / sqrt(variance + epsilon) * scale + bias` for each row of `x: [rows, columns]`, with the row's mean and
/// biased variance. Operands: `x`, which may share its memory with the result, then `scale: [columns]` and `bias:
/// [columns]` in `f32` if present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// Product of the extents before the normalized ones.
    pub rows: usize,
    /// Product of the normalized extents.
    pub columns: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether there is a scale per column.
    pub scale: bool,
    /// Whether there is a bias per column.
    pub bias: bool,
    /// Storage type of `x` and the results.
    pub stored: StorageType,
}

impl KernelFn for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.stored.is_byte() {
            return Err(InvalidKernel("`stored` must be a floating-point type"));
        }
        let elements = product(&[self.rows, self.columns]);
        let output = elements.and_then(|elements| elements.checked_mul(self.stored.size()));
        let mut inputs: SmallVec<[Option<usize>; 3]> = SmallVec::from_slice(&[output]);
        inputs.extend([self.scale, self.bias].into_iter().filter(|&is| is).map(|_| self.columns.checked_mul(4)));
        Sizes::new(&inputs, output, 1)
    }

    fn alignment(&self, input: Option<usize>) -> usize {
        match input {
            Some(0) | None => self.stored.size(),
            Some(_) => 4,
        }
    }

    fn may_share(&self, input: usize) -> bool {
        // A row is read completely before its results are written.
        input == 0
    }

    fn run(&self, args: Args, pool: &Pool) {
        let scale = self.scale.then(|| &input(&args, 1)[..self.columns]);
        let bias = self.bias.then(|| &input(&args, args.inputs.len() - 1)[..self.columns]);
        let chunk = (TASK / self.columns.max(1)).max(1) * self.columns;
        with_fraction!(self.stored, T => {
            let x: Option<&[T]> = input_or_in_place(&args, 0);
            let out: &mut [T] = elements_mut(args.outputs[0]);
            for_each_chunk(pool, out, chunk, &|number, cells| {
                if let Some(x) = x {
                    // The sums then read the cells about to be written, which are in the L1 cache if a row fits.
                    cells.copy_from_slice(&x[number * chunk..][..cells.len()]);
                }
                let kernel = self;
                with_vector!(pool.isa(), run_rows<T>(
                    kernel: &LayerNorm, scale: Option<&[f32]>, bias: Option<&[f32]>, cells: &mut [T]
                ));
            });
        });
    }
}

#[inline(always)]
fn run_rows<V: Vector, T: Item>(kernel: &LayerNorm, scale: Option<&[f32]>, bias: Option<&[f32]>, cells: &mut [T]) {
    let count = kernel.columns as f32;
    if kernel.columns <= SHORT && T::STORED == StorageType::F32 {
        return side_by_side::<V>(kernel, scale, bias, bytemuck::cast_slice_mut(cells));
    }
    for row in cells.chunks_exact_mut(kernel.columns) {
        let mean = sum::<V, T>(row) / count;
        let centre = V::splat(mean);
        let factor = V::splat(1.0 / (squares::<V, T>(row, mean) / count + kernel.epsilon).sqrt());
        for (ix, cells) in row.chunks_mut(LANES).enumerate() {
            let mut items = T::read_part::<V>(cells, 0.0).sub(centre).mul(factor);
            if let Some(scale) = scale {
                items = items.mul(V::read_part(&scale[ix * LANES..][..cells.len()], 0.0));
            }
            if let Some(bias) = bias {
                items = items.add(V::read_part(&bias[ix * LANES..][..cells.len()], 0.0));
            }
            T::write_part(items, cells);
        }
    }
}

/// Short rows, sixteen at a time: each lane has a row.
#[inline(always)]
fn side_by_side<V: Vector>(kernel: &LayerNorm, scale: Option<&[f32]>, bias: Option<&[f32]>, cells: &mut [f32]) {
    let mut columns = [[0.0; LANES]; SHORT];
    let columns = &mut columns[..kernel.columns];
    let of_count = V::splat(1.0 / kernel.columns as f32);
    for cells in cells.chunks_mut(kernel.columns * LANES) {
        short_rows::read::<V>(cells, columns);
        let mut mean = V::zero();
        for column in &*columns {
            mean = mean.add(V::read(column));
        }
        let (mean, mut squares) = (mean.mul(of_count), V::zero());
        for column in &*columns {
            let difference = V::read(column).sub(mean);
            squares = difference.mul_add(difference, squares);
        }
        let mut factors = squares.mul(of_count).to_array();
        factors.iter_mut().for_each(|variance| *variance = 1.0 / (*variance + kernel.epsilon).sqrt());
        let factors = V::read(&factors);
        for (ix, column) in columns.iter_mut().enumerate() {
            let mut items = V::read(column).sub(mean).mul(factors);
            if let Some(scale) = scale {
                items = items.mul(V::splat(scale[ix]));
            }
            if let Some(bias) = bias {
                items = items.add(V::splat(bias[ix]));
            }
            items.write(column);
        }
        short_rows::write::<V>(columns, cells);
    }
}

/// Independent accumulators.
const PARTS: usize = 4;

/// The sum of a row.
#[inline(always)]
fn sum<V: Vector, T: Item>(row: &[T]) -> f32 {
    let mut parts = [V::zero(); PARTS];
    for items in row.chunks(PARTS * LANES) {
        for (part, items) in parts.iter_mut().zip(items.chunks(LANES)) {
            *part = part.add(T::read_part(items, 0.0));
        }
    }
    joined(parts)
}

/// The sum of squared differences between a row and `mean`.
#[inline(always)]
fn squares<V: Vector, T: Item>(row: &[T], from: f32) -> f32 {
    let (mut parts, centre) = ([V::zero(); PARTS], V::splat(from));
    for items in row.chunks(PARTS * LANES) {
        for (part, items) in parts.iter_mut().zip(items.chunks(LANES)) {
            let difference = T::read_part::<V>(items, from).sub(centre);
            *part = difference.mul_add(difference, *part);
        }
    }
    joined(parts)
}

#[inline(always)]
fn joined<V: Vector>(parts: [V; PARTS]) -> f32 {
    parts[0].add(parts[1]).add(parts[2].add(parts[3])).sum()
}
