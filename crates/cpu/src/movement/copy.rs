//! [`Copy`]: strided copies: transpose, slice, broadcast, concatenation, padding.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::movement::pieces::copy_items;
use crate::movement::sixteen::Sixteen;
use crate::simd::Isa;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Approximate size of a task.
const TASK_BYTES: usize = 1 << 15;
/// Rows or columns of a tile that are too few for vectors, and columns of eight bytes.
const FEW: usize = 4;
const FEW_PAIRS: usize = 11;
/// Rows of the result that are transposed at a time, and elements if rows are short.
const BAND: usize = 2 * LANES;
const BAND_ELEMENTS: usize = 1 << 14;

/// `out[out_offset + index . out_strides] = x[in_offset + index . in_strides]` for every index of `shape`. Other
/// elements of the output are unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// Element size in bytes: 1, 2, 4 or 8.
    pub element_size: usize,
    /// Extents of the copied block.
    pub shape: Vec<usize>,
    /// Length of the input, in elements.
    pub in_elements: usize,
    /// Position of the first element in the input.
    pub in_offset: usize,
    /// Strides in the input, in elements; 0 broadcasts, a negative stride reverses.
    pub in_strides: Vec<isize>,
    /// Length of the output, in elements.
    pub out_elements: usize,
    /// Position of the first element in the output.
    pub out_offset: usize,
    /// Strides in the output, in elements. Two indices must never map to one element: sorted by size, each stride must
    /// exceed the reach of all smaller ones.
    pub out_strides: Vec<usize>,
}

impl Copy {
    /// `Some` if the lowest and the highest input position are in bounds.
    fn check_input(&self) -> Option<()> {
        let (mut low, mut high) = (self.in_offset as i128, self.in_offset as i128);
        for (&extent, &stride) in self.shape.iter().zip(&self.in_strides) {
            let reach = (extent as i128 - 1) * stride as i128;
            (low, high) = (low + reach.min(0), high + reach.max(0));
        }
        (0 <= low && high < self.in_elements as i128).then_some(())
    }

    /// `Some` if all output positions are in bounds and distinct: sorted by size, each stride exceeds the reach of the
    /// smaller ones.
    fn check_output(&self) -> Option<()> {
        let mut axes: Vec<(usize, usize)> = self
            .out_strides
            .iter()
            .copied()
            .zip(self.shape.iter().copied())
            .filter(|&(_, extent)| 1 < extent)
            .collect();
        axes.sort_unstable();
        let mut reach = 0u128;
        for (stride, extent) in axes {
            if stride as u128 <= reach {
                return None;
            }
            reach += stride as u128 * (extent as u128 - 1);
        }
        (reach + (self.out_offset as u128) < self.out_elements as u128).then_some(())
    }
}

impl KernelFn for Copy {
    const NAME: &'static str = "copy";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if ![1, 2, 4, 8].contains(&self.element_size) {
            return Err(InvalidKernel("`element_size` must be 1, 2, 4 or 8"));
        }
        if [self.in_strides.len(), self.out_strides.len()] != [self.shape.len(); 2] {
            return Err(InvalidKernel("there must be one input and one output stride per extent"));
        }
        let moved = product(&self.shape).ok_or(InvalidKernel("the number of elements must fit in an address"))?;
        if moved != 0 && (self.check_input().is_none() || self.check_output().is_none()) {
            return Err(InvalidKernel("strides must stay within the operands and write each element at most once"));
        }
        Sizes::new(&[Some(self.in_elements)], Some(self.out_elements), self.element_size)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        self.element_size
    }

    fn run(&self, args: Args, pool: &Pool) {
        if let Some(transpose) = self.transpose() {
            return match self.element_size {
                1 => transpose.run(args, pool, transpose_bytes),
                4 => transpose.run(args, pool, transpose_numbers),
                _ => transpose.run(args, pool, transpose_pairs),
            };
        }
        match self.element_size {
            1 => self.run_typed::<u8>(args, pool, turn_bytes),
            2 => self.run_typed::<u16>(args, pool, turn_items),
            4 => self.run_typed::<f32>(args, pool, turn_numbers),
            _ => self.run_typed::<u64>(args, pool, turn_items),
        }
    }
}

/// A copy whose rows are columns of the source: matrices of elements of one, four or eight bytes.
struct Transpose<'a> {
    copy: &'a Copy,
    /// Axes of the matrices.
    outer: usize,
    /// Matrices, and the rows and columns of each in the result.
    matrices: usize,
    rows: usize,
    columns: usize,
    /// Elements from one column of the source to the next.
    stride: usize,
}

impl Copy {
    /// The copy as transpositions, if the last axes are one and the result is dense.
    fn transpose(&self) -> Option<Transpose<'_>> {
        let (last, across) = (*self.shape.last()?, *self.in_strides.last()?);
        // The axes that walk at one stride with the last one are the columns, those in front of them that walk from one
        // element of the source to the next the rows.
        let (mut columns, mut outer) = (last, self.shape.len() - 1);
        while 0 < outer
            && (self.shape[outer - 1] == 1 || self.in_strides[outer - 1] == across.wrapping_mul(columns as isize))
        {
            outer -= 1;
            columns *= self.shape[outer];
        }
        let mut rows = 1;
        while 0 < outer && (self.shape[outer - 1] == 1 || self.in_strides[outer - 1] == rows as isize) {
            outer -= 1;
            rows *= self.shape[outer];
        }
        let elements: usize = self.shape.iter().product();
        let dense = {
            let mut reach = 1;
            self.shape.iter().zip(&self.out_strides).rev().all(|(&extent, &stride)| {
                let is_next = stride == reach || extent == 1;
                reach *= extent;
                is_next
            })
        };
        let stride = usize::try_from(across).ok()?;
        let is_matrix = rows <= stride && 1 < rows && 1 < columns;
        let fits =
            [1, 4, 8].contains(&self.element_size) && self.out_offset == 0 && dense && elements == self.out_elements;
        (is_matrix && fits && elements != 0).then(|| Transpose {
            copy: self,
            outer,
            matrices: self.shape[..outer].iter().product(),
            rows,
            columns,
            stride,
        })
    }
}

impl Transpose<'_> {
    /// Bytes are moved as `u8` and elements of four bytes as `f32`, which no instruction here changes.
    fn run<T: bytemuck::Pod + Send + Sync>(
        &self,
        args: Args,
        pool: &Pool,
        transpose_band: fn(Isa, &[T], [usize; 2], &mut [T]),
    ) {
        let x: &[T] = input(&args, 0);
        let out = &SharedMut::new(elements_mut::<T>(args.outputs[0]));
        let height = BAND.max((BAND_ELEMENTS / self.columns).next_multiple_of(LANES));
        let (bands, isa) = (self.rows.div_ceil(height), pool.isa());
        let together = (TASK_BYTES / (height.min(self.rows) * self.columns * self.copy.element_size)).max(1);
        let all = self.matrices * bands;
        pool.run(all.div_ceil(together), &|task| {
            for band in task * together..all.min((task + 1) * together) {
                let (matrix, row) = (band / bands, band % bands * height);
                let (mut rest, mut from) = (matrix, self.copy.in_offset as isize);
                for axis in (0..self.outer).rev() {
                    from += (rest % self.copy.shape[axis]) as isize * self.copy.in_strides[axis];
                    rest /= self.copy.shape[axis];
                }
                let rows = height.min(self.rows - row);
                // SAFETY: tasks differ in matrix or rows.
                let cells = unsafe { out.part((matrix * self.rows + row) * self.columns, rows * self.columns) };
                transpose_band(isa, &x[from as usize + row..], [self.stride, self.columns], cells);
            }
        });
    }
}

fn transpose_bytes(isa: Isa, items: &[u8], strides: [usize; 2], cells: &mut [u8]) {
    with_vector!(isa, transpose_band_of_bytes(items: &[u8], strides: [usize; 2], cells: &mut [u8]));
}

fn transpose_numbers(isa: Isa, items: &[f32], strides: [usize; 2], cells: &mut [f32]) {
    with_vector!(isa, transpose_band_of_numbers(items: &[f32], strides: [usize; 2], cells: &mut [f32]));
}

fn transpose_pairs(isa: Isa, items: &[u64], strides: [usize; 2], cells: &mut [u64]) {
    let (items, cells): (&[f32], &mut [f32]) = (bytemuck::cast_slice(items), bytemuck::cast_slice_mut(cells));
    with_vector!(isa, transpose_band_of_pairs(items: &[f32], strides: [usize; 2], cells: &mut [f32]));
}

#[inline(always)]
fn transpose_band_of_bytes<V: Vector>(items: &[u8], strides: [usize; 2], cells: &mut [u8]) {
    transpose_band::<[u8; LANES], u8>(items, strides, cells);
}

#[inline(always)]
fn transpose_band_of_numbers<V: Vector>(items: &[f32], strides: [usize; 2], cells: &mut [f32]) {
    transpose_band::<V, f32>(items, strides, cells);
}

/// The same as [`transpose_band`] for elements of eight bytes, as pairs of numbers: sixteen columns of eight elements at a time.
#[inline(always)]
fn transpose_band_of_pairs<V: Vector>(items: &[f32], [stride, columns]: [usize; 2], cells: &mut [f32]) {
    const HEIGHT: usize = LANES / 2;
    let rows = cells.len() / (2 * columns);
    for column in (0..columns).step_by(LANES) {
        let column = column.min(columns.saturating_sub(LANES));
        let width = LANES.min(columns - column);
        for row in (0..rows).step_by(HEIGHT) {
            let height = HEIGHT.min(rows - row);
            if height <= FEW || width <= FEW_PAIRS {
                let cells: &mut [[f32; 2]] = bytemuck::cast_slice_mut(cells);
                let items: &[[f32; 2]] = bytemuck::cast_slice(items);
                move_each(
                    &items[column * stride + row..],
                    stride,
                    [height, width],
                    &mut cells[row * columns + column..],
                    columns,
                );
                continue;
            }
            let mut tile = [V::zero(); LANES];
            for (lane, vector) in tile.iter_mut().enumerate().take(width) {
                // Neighbors behind the rows are read and not written.
                *vector = V::read_part(&items[2 * ((column + lane) * stride + row)..], 0.0);
            }
            let halves = V::transpose(tile);
            for ix in 0..height {
                let cells = &mut cells[2 * ((row + ix) * columns + column)..][..2 * width];
                let (low, high) = cells.split_at_mut(width.min(LANES / 2) * 2);
                let [first, second] = halves[2 * ix].zip(halves[2 * ix + 1]);
                first.write_part(low);
                second.write_part(high);
            }
        }
    }
}

/// `cells[row * columns + column] = items[column * stride + row]` for some rows and columns.
#[inline(always)]
fn move_each<T: bytemuck::Pod>(
    items: &[T],
    stride: usize,
    [height, width]: [usize; 2],
    cells: &mut [T],
    columns: usize,
) {
    for row in 0..height {
        let items = items[row..].iter().step_by(stride);
        cells[row * columns..][..width].iter_mut().zip(items).for_each(|(cell, item)| *cell = *item);
    }
}

/// `cells[row * columns + column] = items[column * stride + row]`, in tiles of sixteen by sixteen.
#[inline(always)]
fn transpose_band<S: Sixteen<T>, T: bytemuck::Pod>(items: &[T], [stride, columns]: [usize; 2], cells: &mut [T]) {
    let rows = cells.len() / columns;
    // Rows or columns of two to four elements have loops of their own, which the compiler vectorizes.
    match (columns, rows) {
        (2, _) => return interleave::<T, 2>(items, stride, cells),
        (3, _) => return interleave::<T, 3>(items, stride, cells),
        (4, _) => return interleave::<T, 4>(items, stride, cells),
        (_, 2) if stride == 2 => return separate::<T, 2>(items, cells),
        (_, 3) if stride == 3 => return separate::<T, 3>(items, cells),
        (_, 4) if stride == 4 => return separate::<T, 4>(items, cells),
        _ => {}
    }
    for column in (0..columns).step_by(LANES) {
        // The last tile overlaps the one before it, unless it is the only one.
        let column = column.min(columns.saturating_sub(LANES));
        let width = LANES.min(columns - column);
        for row in (0..rows).step_by(LANES) {
            let height = LANES.min(rows - row);
            if height.min(width) <= FEW {
                move_each(
                    &items[column * stride + row..],
                    stride,
                    [height, width],
                    &mut cells[row * columns + column..],
                    columns,
                );
                continue;
            }
            // Neighbors behind the rows are read and not written.
            let tile = read_columns::<S, T>(&items[column * stride + row..], stride, width);
            let cells = &mut cells[row * columns + column..];
            // Of eight rows or fewer, the upper half is not computed.
            if height <= LANES / 2 {
                write_rows::<S, T, { LANES / 2 }>(S::turned(tile), columns, [height, width], cells);
            } else {
                write_rows::<S, T, LANES>(S::turned(tile), columns, [height, width], cells);
            }
        }
    }
}

/// `cells[row * N + column] = items[column * stride + row]`.
#[inline(always)]
fn interleave<T: bytemuck::Pod, const N: usize>(items: &[T], stride: usize, cells: &mut [T]) {
    let rows = cells.as_chunks_mut::<N>().0;
    let mut columns = [&items[..rows.len()]; N];
    for (ix, column) in columns.iter_mut().enumerate() {
        *column = &items[ix * stride..][..rows.len()];
    }
    for (ix, row) in rows.iter_mut().enumerate() {
        for (cell, column) in row.iter_mut().zip(&columns) {
            *cell = column[ix];
        }
    }
}

/// `cells[row * columns + column] = items[column * N + row]` for N rows.
#[inline(always)]
fn separate<T: bytemuck::Pod, const N: usize>(items: &[T], cells: &mut [T]) {
    let columns = cells.len() / N;
    let items = &items.as_chunks::<N>().0[..columns];
    for (row, cells) in cells.chunks_exact_mut(columns).enumerate() {
        for (cell, item) in cells.iter_mut().zip(items) {
            *cell = item[row];
        }
    }
}

/// Writes the first vectors, at most `N`, to rows at a distance.
#[inline(always)]
fn write_rows<S: Sixteen<T>, T, const N: usize>(
    rows: [S; LANES],
    distance: usize,
    [height, width]: [usize; 2],
    cells: &mut [T],
) {
    for (ix, vector) in rows.into_iter().enumerate().take(N) {
        if height <= ix {
            break;
        }
        let cells = &mut cells[ix * distance..];
        // Lanes behind a row that is shorter than a vector are written over by the next rows.
        match cells.first_chunk_mut::<LANES>() {
            Some(cells) => vector.put(cells),
            None => vector.put_some(&mut cells[..width]),
        }
    }
}

impl Copy {
    /// Elements of four bytes are `f32`, which are moved as they are.
    fn run_typed<T: bytemuck::Pod + Send + Sync>(&self, args: Args, pool: &Pool, turn: Turn<T>) {
        let x: &[T] = input(&args, 0);
        let out = SharedMut::new(elements_mut::<T>(args.outputs[0]));
        // The innermost axes that are dense on both sides form one contiguous run.
        let (mut axes, mut run) = (0, 1usize);
        for axis in (0..self.shape.len()).rev() {
            let dense = self.in_strides[axis] == run as isize && self.out_strides[axis] == run;
            if !dense && self.shape[axis] != 1 {
                break;
            }
            axes += 1;
            run *= self.shape[axis];
        }
        let outer = &self.shape[..self.shape.len() - axes];
        // Without such a run the innermost axis becomes a loop over single elements.
        let (looped, rows) = match outer.split_last() {
            Some((&extent, rest)) if run == 1 => (extent, rest),
            _ => (1, outer),
        };
        let loop_axis = outer.len().wrapping_sub(1);
        let (in_step, out_step) = match looped {
            1 => (0, 0),
            _ => (self.in_strides[loop_axis], self.out_strides[loop_axis]),
        };
        let n_rows: usize = rows.iter().product();
        if n_rows * looped * run == 0 {
            return;
        }
        // Elements that are neighbors in the input along another axis than in the output: a transpose.
        let turned = (0..rows.len()).find(|&axis| self.in_strides[axis] == 1 && BLOCK / 2 <= self.shape[axis]);
        if let (1, 1, 1.., Some(turned)) = (run, out_step, in_step, turned) {
            return self.run_transposed(x, &out, pool, turned, turn);
        }
        let rows_per_task = (TASK_BYTES / (run * looped * self.element_size).max(1)).max(1);
        // Rows that differ in the last two axes alone are walked without divisions.
        let (rows, two) = rows.split_at(rows.len().saturating_sub(2));
        let axis_of = |from_end: usize| match two.len().checked_sub(from_end) {
            Some(ix) => (two[ix], self.in_strides[rows.len() + ix], self.out_strides[rows.len() + ix]),
            None => (1, 0, 0),
        };
        let ((extent, in_row, out_row), (others, in_other, out_other)) = (axis_of(1), axis_of(2));
        pool.run(n_rows.div_ceil(rows_per_task), &|task| {
            let end = n_rows.min((task + 1) * rows_per_task);
            let mut row = task * rows_per_task;
            while row < end {
                let (mut rest, mut from, mut to) = (row / (extent * others), self.in_offset as isize, self.out_offset);
                for axis in (0..rows.len()).rev() {
                    let ix = rest % rows[axis];
                    rest /= rows[axis];
                    from += ix as isize * self.in_strides[axis];
                    to += ix * self.out_strides[axis];
                }
                let (mut ix, mut other) = (row % extent, row / extent % others);
                while other < others && row < end {
                    let count = (extent - ix).min(end - row);
                    let (from, to) = (from + other as isize * in_other, to + other * out_other);
                    for ix in ix..ix + count {
                        let (from, to) = (from + ix as isize * in_row, to + ix * out_row);
                        // SAFETY: `sizes` rejects strides that map two indices to one element, so no other row writes the
                        // elements of this one.
                        unsafe { copy_row(x, from, in_step, &out, to, out_step, looped, run) };
                    }
                    (row, other, ix) = (row + count, other + 1, 0);
                }
            }
        });
    }

    /// Moves blocks of `BLOCK` x `BLOCK` elements: neighbors in the input are those along axis `turned`, neighbors in the
    /// output those along the last axis of more than one element.
    fn run_transposed<T: bytemuck::Pod + Send + Sync>(
        &self,
        x: &[T],
        out: &SharedMut<'_, T>,
        pool: &Pool,
        turned: usize,
        turn: Turn<T>,
    ) {
        let isa = pool.isa();
        let Some(last) = self.shape.iter().rposition(|&extent| extent != 1) else { return };
        let (height, width) = (self.shape[turned], self.shape[last]);
        let bands = height.div_ceil(BLOCK);
        let all = bands * (0..last).filter(|&axis| axis != turned).map(|axis| self.shape[axis]).product::<usize>();
        let together = (TASK_BYTES / (BLOCK * width * self.element_size)).max(1);
        pool.run(all.div_ceil(together), &|task| {
            for band in task * together..all.min((task + 1) * together) {
                let (mut rest, first) = (band / bands, band % bands * BLOCK);
                let (mut from, mut to) = (self.in_offset as isize, self.out_offset);
                for axis in (0..last).rev().filter(|&axis| axis != turned) {
                    let ix = rest % self.shape[axis];
                    rest /= self.shape[axis];
                    from += ix as isize * self.in_strides[axis];
                    to += ix * self.out_strides[axis];
                }
                let rows = Rows {
                    out,
                    start: to + first * self.out_strides[turned],
                    stride: self.out_strides[turned],
                    count: BLOCK.min(height - first),
                };
                // SAFETY: `sizes` rejects strides that map two indices to one element, so no other task writes these rows.
                unsafe { turn(isa, &x[from as usize + first..], self.in_strides[last] as usize, rows, width) };
            }
        });
    }
}

/// A function that moves columns of the source to rows of the result: element `row + column * stride` of the source to each row
/// and column.
///
/// # Safety
/// No other task accesses the rows.
type Turn<T> = unsafe fn(Isa, &[T], usize, Rows<'_, T>, usize);

/// Rows of the result: at most [`BLOCK`].
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    out: &'a SharedMut<'a, T>,
    /// The first element of the first row, and the distance from each row to the next.
    start: usize,
    stride: usize,
    count: usize,
}

/// [`Turn`] for elements of any size.
///
/// # Safety
/// See [`Turn`].
unsafe fn turn_items<T: bytemuck::Pod>(_: Isa, items: &[T], stride: usize, rows: Rows<'_, T>, width: usize) {
    for column in (0..width).step_by(BLOCK) {
        let count = BLOCK.min(width - column);
        for row in 0..rows.count {
            // SAFETY: the caller's promise.
            let cells = unsafe { rows.out.part(rows.start + row * rows.stride + column, count) };
            let items = items[row + column * stride..].iter().step_by(stride);
            cells.iter_mut().zip(items).for_each(|(cell, item)| *cell = *item);
        }
    }
}

/// [`Turn`] for bytes.
///
/// # Safety
/// See [`Turn`].
unsafe fn turn_bytes(isa: Isa, items: &[u8], stride: usize, rows: Rows<'_, u8>, width: usize) {
    with_vector!(isa, turn_blocks_of_bytes(items: &[u8], stride: usize, rows: Rows<'_, u8>, width: usize));
}

/// [`Turn`] for elements of four bytes.
///
/// # Safety
/// See [`Turn`].
unsafe fn turn_numbers(isa: Isa, items: &[f32], stride: usize, rows: Rows<'_, f32>, width: usize) {
    with_vector!(isa, turn_blocks_of_numbers(items: &[f32], stride: usize, rows: Rows<'_, f32>, width: usize));
}

/// Called by [`turn_bytes`] only. Compiled for an instruction set, as all code of vectors.
#[inline(always)]
fn turn_blocks_of_bytes<V: Vector>(items: &[u8], stride: usize, rows: Rows<'_, u8>, width: usize) {
    turn_blocks::<[u8; LANES], u8>(items, stride, rows, width);
}

/// Called by [`turn_numbers`] only.
#[inline(always)]
fn turn_blocks_of_numbers<V: Vector>(items: &[f32], stride: usize, rows: Rows<'_, f32>, width: usize) {
    turn_blocks::<V, f32>(items, stride, rows, width);
}

/// Called for [`turn_bytes`] and [`turn_numbers`] only, whose callers promise rows that no other task accesses.
#[inline(always)]
fn turn_blocks<S: Sixteen<T>, T>(items: &[T], stride: usize, rows: Rows<'_, T>, width: usize) {
    for column in (0..width).step_by(LANES) {
        // The last block overlaps the one before it, unless it is the only one.
        let column = column.min(width.saturating_sub(LANES));
        let count = LANES.min(width - column);
        let columns = read_columns::<S, T>(&items[column * stride..], stride, count);
        for (row, vector) in S::turned(columns).into_iter().enumerate().take(rows.count) {
            // SAFETY: the caller's promise.
            let cells = unsafe { rows.out.part(rows.start + row * rows.stride + column, count) };
            vector.put_some(cells);
        }
    }
}

/// Up to sixteen columns of the source at a distance, each with sixteen neighbors or as many as there are.
#[inline(always)]
fn read_columns<S: Sixteen<T>, T>(items: &[T], stride: usize, count: usize) -> [S; LANES] {
    let mut columns = [S::blank(); LANES];
    match count == LANES && items.get((LANES - 1) * stride..).is_some_and(|last| LANES <= last.len()) {
        // Whole vectors, in a loop of a constant length.
        true => {
            for (lane, column) in columns.iter_mut().enumerate() {
                *column =
                    S::of(items[lane * stride..].first_chunk::<LANES>().expect("the last column has sixteen elements"));
            }
        }
        false => {
            for (lane, column) in columns.iter_mut().enumerate().take(count) {
                let items = &items[lane * stride..];
                *column = match items.first_chunk::<LANES>() {
                    Some(items) => S::of(items),
                    None => S::of_some(items),
                };
            }
        }
    }
    columns
}

/// Copies `count` runs of `run` elements, from `from` on at a step in the input, to `to` on at a step in the output.
///
/// # Safety
/// No other task writes the elements of the output that this one writes.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "both sides have a start and a step")]
unsafe fn copy_row<T: bytemuck::Pod>(
    x: &[T],
    from: isize,
    in_step: isize,
    out: &SharedMut<'_, T>,
    to: usize,
    out_step: usize,
    count: usize,
    run: usize,
) {
    if run == 1 && out_step == 1 {
        // SAFETY: the caller's promise.
        let cells = unsafe { out.part(to, count) };
        // The lowest position that is read.
        let low = (from + (count as isize - 1) * in_step.min(0)) as usize;
        let items = &x[low..];
        match in_step {
            0 => cells.fill(items[0]),
            -1 => cells.iter_mut().zip(items[..count].iter().rev()).for_each(|(cell, item)| *cell = *item),
            1.. => {
                let items = items.iter().step_by(in_step as usize);
                cells.iter_mut().zip(items).for_each(|(cell, item)| *cell = *item);
            }
            _ => {
                let items = items.iter().step_by(in_step.unsigned_abs());
                cells.iter_mut().rev().zip(items).for_each(|(cell, item)| *cell = *item);
            }
        }
        return;
    }
    for step in 0..count {
        let from = (from + step as isize * in_step) as usize;
        // SAFETY: the caller's promise.
        let cells = unsafe { out.part(to + step * out_step, run) };
        let items = &x[from..from + run];
        copy_items(items, cells);
    }
}

/// Rows and columns of a block: a cache line of each is read and written whole while it is in the first-level cache.
const BLOCK: usize = 16;
