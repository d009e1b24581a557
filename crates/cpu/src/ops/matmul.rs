//! [`MatMul`]: matrix products. The left operand is read in place, the right one in strips of 32 columns.
//!
//! ```text
//!                          strip
//!                     +------+------+--+
//!               block | 1024 |      |  |   B: a block of a strip (128 kB; 384 rows if it is packed)
//!                     |  x32 |      |  |      is used by all panels of a task
//!                     +------+------+--+
//!                     |      |      |  |
//!        +------+---+ +------+------+--+
//!  panel | rows |   | | tile |      |  |   up to 14 rows; later blocks accumulate in the output
//!        +------+---+ +------+------+--+
//! ```

mod few_rows;
mod few_terms;
mod narrow;
mod thin;

use std::array::from_fn;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::WeightFormat;
use types::pointwise::Unary;

use self::few_rows::few_rows;
use self::thin::Thin;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::finish;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::saturation::{self, Marks, mark_words};
use crate::gemm::tile::{self, Compact, Dequant, Init, KLoop, Loop, Repeat, Row, STRIDED_ROWS_MAX, Tile, Word};
use crate::gemm::weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements, input, input_or_in_place, product};
use crate::movement::strips::{self, STRIP};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, storage};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, StackBuffer};

/// Most rows of a block that is packed in a run; several fit a second-level cache.
const DEPTH: usize = 384;
/// Up to this many rows are multiplied without tiles: the right operand is then streamed once, at memory bandwidth.
const FEW_ROWS: usize = 4;
/// Bytes of the right operand per task in that case.
const FEW_ROWS_BYTES: usize = 1 << 16;
/// From this many panels on, a block is packed first although it could be read in place.
const COPY_PANELS: usize = 6;
/// From this many panels on, the next block is prefetched; with fewer, memory latency cannot be hidden.
const PREFETCHING_PANELS: usize = 4;
/// Multiplications and additions that justify a task: some microseconds.
const TASK_FLOPS: f64 = 1e6;
/// Tasks per thread, so that a late or interrupted thread leaves its tasks to others.
const TASKS_PER_THREAD: usize = 8;

/// Format of the right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MatMulB {
    /// One constant matrix, packed by [`MatMul::pack`].
    Packed,
    /// Row-major matrices.
    Dynamic,
    /// Row-major matrices `[n, k]`, whose transposes are multiplied.
    Transposed,
}

/// `a: [matrices, m, k]` times `b: [matrices, k, n]`, with matrices selected by `batch` and strides, of which 0
/// broadcasts; the epilogue then adds a bias `[n]` and a residual. Output: `[batch.., m, n]`. The bias is `f32` and is
/// added before rounding.
///
/// For int8, `a` is `u8` and `b` is `i8`, and the `i32` sums are exact. With a scale they are converted to floating
/// point; without one they are the result.
///
/// A packed `b` of `f32` products may be stored in fewer bits; it is widened when it is loaded.
///
/// Refuses: half-precision and int8 operands whose columns of `a` do not fill 32-bit words; half-precision or int8
/// operands or results with an unpacked `b`; int8 sums with a residual; int8 sums without a scale but with other
/// epilogue steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// Extents of the batch; empty for one product.
    pub batch: Vec<usize>,
    /// Stride of `a` along each batch extent, in matrices.
    pub a_strides: Vec<usize>,
    /// The same for `b`; all 0 if it is packed.
    pub b_strides: Vec<usize>,
    /// Rows of `a`.
    pub m: usize,
    /// Columns of `a`, rows of `b`.
    pub k: usize,
    /// Columns of `b`.
    pub n: usize,
    /// Format of the right operand.
    pub b: MatMulB,
    /// Storage type of both operands; if it is `u8`, the right one is `i8`.
    pub operands: StorageType,
    /// The stored form of a packed `b` of `f32`, if it is not `f32`.
    pub weights: Option<WeightFormat>,
    /// Zero point of `a`, which is subtracted from each of its elements.
    pub zero_point: u8,
    /// Storage type of the residual and the results.
    pub result: StorageType,
    /// Arithmetic fused behind the product.
    pub epilogue: Epilogue,
}

/// A matrix of `f32` by the distances of its rows and of its columns.
#[derive(Clone, Copy)]
pub(crate) struct MatrixView<'a> {
    items: &'a [f32],
    row_step: usize,
    column_step: usize,
}

impl<'a> MatrixView<'a> {
    /// A row-major matrix of `n` columns.
    pub(crate) fn new(items: &'a [f32], n: usize) -> MatrixView<'a> {
        MatrixView { items, row_step: n, column_step: 1 }
    }

    /// The transpose of a row-major matrix of `k` columns.
    pub(crate) fn transposed(items: &'a [f32], k: usize) -> MatrixView<'a> {
        MatrixView { items, row_step: 1, column_step: k }
    }

    /// Some rows of up to 16 columns, each row in a vector of `block`.
    fn copy_block(self, rows: Range<usize>, columns: Range<usize>, block: &mut [f32]) {
        if rows.is_empty() {
            return;
        }
        if self.column_step == 1 {
            for (row, vector) in rows.zip(block.chunks_exact_mut(LANES)) {
                vector[..columns.len()].copy_from_slice(&self.items[row * self.row_step..][columns.clone()]);
            }
            return;
        }
        // Column by column: their elements are neighbors.
        for (lane, column) in columns.enumerate() {
            let from = &self.items[column * self.column_step + rows.start * self.row_step..];
            let to = block[lane..].iter_mut().step_by(LANES);
            to.zip(from.iter().step_by(self.row_step)).for_each(|(to, item)| *to = *item);
        }
    }
}

impl MatMul {
    /// Packs `b: [k, n]` into strips of 32 columns, the last one of 16 or 32, padded with zeros. In `f32` a strip has,
    /// for each part of the inner dimension, its rows of the first 16 columns and then those of the others. Otherwise it
    /// has rows of all columns; two rows are interleaved in half precision and four in int8; an int8 matrix is followed
    /// by its marks (`gemm::saturation`) and the contribution of the zero point to each column's sum, and `f32` in the form of int8 by a scale for each column.
    ///
    /// # Panics
    /// If `b` has another number of elements.
    pub fn pack(&self, b: &[f32]) -> Vec<u8> {
        assert_eq!(b.len(), self.k * self.n, "the matrix has the kernel's shape");
        if self.operands == StorageType::F32 {
            let (items, scales) = weights::levels(self.weights, b, self.n, |at| at % self.n);
            return weights::stored(
                self.weights,
                &self.pack_strips(MatrixView::new(&items, self.n), 0..self.strip_count()),
                scales,
                self.n.next_multiple_of(LANES),
            );
        }
        let per_word = self.operands.per_word();
        let mut packed = vec![0.0; self.k * self.n.next_multiple_of(LANES)];
        for (strip, cells) in packed.chunks_mut((self.k * STRIP).max(1)).enumerate() {
            let columns = STRIP.min(self.n - strip * STRIP);
            let width = columns.next_multiple_of(LANES);
            for (row, items) in b.chunks_exact(self.n).enumerate() {
                let cells = &mut cells[row / per_word * per_word * width + row % per_word..];
                for (cell, item) in cells.iter_mut().step_by(per_word).zip(&items[strip * STRIP..][..columns]) {
                    *cell = *item;
                }
            }
        }
        match self.operands {
            StorageType::U8 => {
                let mut bytes = StorageType::I8.bytes(&packed);
                bytes.extend(saturation::marks(&bytes));
                let mut shift = vec![0i32; self.n.next_multiple_of(LANES)];
                for row in b.chunks_exact(self.n.max(1)) {
                    shift.iter_mut().zip(row).for_each(|(sum, &item)| {
                        *sum = sum.wrapping_sub(i32::from(self.zero_point).wrapping_mul(item as i32));
                    });
                }
                bytes.extend(shift.into_iter().flat_map(i32::to_le_bytes));
                bytes
            }
            operands => operands.bytes(&packed),
        }
    }

    /// [`MatMul::pack`] for some strips of `f32`.
    pub(crate) fn pack_strips(&self, b: MatrixView<'_>, strips: Range<usize>) -> Vec<f32> {
        let columns = strips.start * STRIP..self.n.min(strips.end * STRIP);
        let mut packed = vec![0.0; self.k * columns.len().next_multiple_of(LANES)];
        let mut vectors = &mut packed[..];
        for first in columns.step_by(STRIP) {
            for part in 0..self.packed_parts() {
                let terms = self.packed_terms(part);
                for column in (first..self.n.min(first + STRIP)).step_by(LANES) {
                    let (block, rest) = vectors.split_at_mut(terms.len() * LANES);
                    b.copy_block(terms.clone(), column..self.n.min(column + LANES), block);
                    vectors = rest;
                }
            }
        }
        packed
    }

    /// The number of strips of a packed matrix.
    pub(crate) fn strip_count(&self) -> usize {
        self.n.div_ceil(STRIP)
    }

    /// Parts of the inner dimension. Rounded results take all terms at once.
    fn packed_parts(&self) -> usize {
        if self.result == StorageType::F32 { strips::parts(self.k) } else { 1 }
    }

    /// The terms of a part.
    fn packed_terms(&self, part: usize) -> Range<usize> {
        strips::rows(self.k, self.packed_parts(), part)
    }

    /// 32-bit words of a row of `a` and of a column of `b`.
    fn words(&self) -> usize {
        self.k / self.operands.per_word()
    }

    /// Bytes of a packed word of `b`.
    fn weight_size(&self) -> usize {
        weights::weight_size(self.weights)
    }

    /// One past the highest matrix that strides reach.
    fn reach(&self, strides: &[usize]) -> Option<usize> {
        let steps =
            self.batch.iter().zip(strides).try_fold(0usize, |sum, (&extent, &stride)| {
                sum.checked_add(extent.saturating_sub(1).checked_mul(stride)?)
            });
        steps?.checked_add(1)
    }

    fn matrix(&self, number: usize, strides: &[usize]) -> usize {
        let (mut rest, mut matrix) = (number, 0);
        for (&extent, &stride) in self.batch.iter().zip(strides).rev() {
            matrix += rest % extent * stride;
            rest /= extent;
        }
        matrix
    }
}

impl KernelFn for MatMul {
    const NAME: &'static str = "matmul";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if [self.a_strides.len(), self.b_strides.len()] != [self.batch.len(); 2] {
            return Err(InvalidKernel("there must be one stride of each operand per batch extent"));
        }
        if self.b == MatMulB::Packed && self.b_strides.iter().any(|&stride| stride != 0) {
            return Err(InvalidKernel("the strides of a packed `b` must be 0"));
        }
        if !self.k.is_multiple_of(self.operands.per_word()) {
            return Err(InvalidKernel("`k` must fill 32-bit words: even in half precision, a multiple of 4 in int8"));
        }
        if self.b != MatMulB::Packed && [self.operands, self.result] != [StorageType::F32; 2] {
            return Err(InvalidKernel("`b` must be packed if operands or results are not f32"));
        }
        let is_f32 = [self.operands, self.result] == [StorageType::F32; 2];
        if self.weights.is_some() && !(is_f32 && self.b == MatMulB::Packed) {
            return Err(InvalidKernel("`weights` must be of a packed `b`, with operands and results of f32"));
        }
        let of_bytes = self.operands.is_byte();
        if self.operands == StorageType::I8 {
            return Err(InvalidKernel("int8 operands must be u8"));
        }
        self.epilogue.check_no_int8_residual(self.operands)?;
        let is_bare = self.epilogue == Epilogue::default() && self.result == StorageType::F32;
        if (of_bytes && !self.epilogue.scale && !is_bare)
            || (!of_bytes && (self.epilogue.scale || self.zero_point != 0))
        {
            return Err(InvalidKernel("the scale must be set for int8 operands with an epilogue, and only for them"));
        }
        let count = product(&self.batch);
        let several = |matrix: Option<usize>, strides: &[usize]| match count {
            // Nothing is read if there is no product, but the operands still have their sizes.
            Some(0) => Some(0),
            _ => matrix.zip(self.reach(strides)).and_then(|(matrix, count)| matrix.checked_mul(count)),
        };
        let b = match self.b {
            MatMulB::Packed => {
                let columns = self.n.checked_next_multiple_of(LANES);
                weights::words(self.weights, columns.and_then(|columns| product(&[self.k, columns])), columns)
            }
            MatMulB::Dynamic | MatMulB::Transposed => several(product(&[self.k, self.n]), &self.b_strides),
        };
        let a = several(product(&[self.m, self.k]), &self.a_strides);
        let output = count.and_then(|count| product(&[count, self.m, self.n]));
        let bytes = |elements: Option<usize>, stored: StorageType| elements?.checked_mul(stored.size());
        let output = bytes(output, self.result);
        let mut inputs = vec![bytes(a, self.operands), bytes(b, self.operands)];
        if of_bytes {
            let shift = self.n.checked_next_multiple_of(LANES).and_then(|lanes| lanes.checked_mul(4));
            let marks = inputs[1].and_then(|bytes| mark_words(bytes / 4)?.checked_mul(4));
            let more = shift.zip(marks).and_then(|(shift, marks)| shift.checked_add(marks));
            inputs[1] = inputs[1].zip(more).and_then(|(b, more)| b.checked_add(more));
        }
        inputs.extend(self.epilogue.operand_bytes(Some(self.n), output));
        Sizes::new(&inputs, output, 1)
    }

    fn alignment(&self, input: Option<usize>) -> usize {
        match input {
            Some(0 | 1) => self.operands.size(),
            Some(ix) if ix < self.epilogue.residual_at() => 4,
            _ => self.result.size(),
        }
    }

    fn may_share(&self, input: usize) -> bool {
        // An element of the residual is read before the result replaces it.
        self.epilogue.residual && input == self.epilogue.residual_at()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let a: &[Word] = input(&args, 0);
        let b: &[Word] = input(&args, 1);
        let scale: Option<&[f32]> = self.epilogue.scale.then(|| input(&args, 2));
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(&args, self.epilogue.bias_at()));
        let residual: Option<Option<&[u8]>> =
            self.epilogue.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let out: SharedMut<u8> = SharedMut::new(args.outputs[0]);
        if out.len() == 0 {
            return;
        }
        let matrices = out.len() / (self.m * self.n * self.result.size());
        let fits = |have: usize, count: usize| assert_eq!(have, count, "operands have the sizes stated");
        scale.iter().chain(&bias).for_each(|vector| fits(vector.len(), self.n));
        let shifts = if self.operands.is_byte() { self.n.next_multiple_of(LANES) } else { 0 };
        let (b, shift) = b.split_at(b.len() - shifts);
        fits(shift.len(), shifts);
        let (b, marks) = match self.operands.is_byte() {
            true => {
                let (b, marks) = b.split_at(self.k / 4 * self.n.next_multiple_of(LANES));
                (b, Some(Marks::new(b, marks)))
            }
            false => (b, None),
        };
        let (b, scales) = b.split_at(b.len() - weights::scale_words(self.weights, self.n.next_multiple_of(LANES)));
        let (packed, scales): (&[u8], &[f32]) = (bytemuck::cast_slice(b), numbers(scales));
        residual.iter().flatten().for_each(|residual| fits(residual.len(), out.len()));
        let (limits, functions) = self.epilogue.limits_and_functions();
        let work =
            Product { kernel: self, a, b, packed, scales, marks, shift, scale, bias, residual, out, limits, functions };
        let work = &work;
        if narrow::is_narrow(self) {
            return narrow::run(work, matrices, pool);
        }
        if few_terms::has_few_terms(work) {
            return few_terms::run(work, matrices, pool);
        }
        if self.m <= FEW_ROWS && self.b == MatMulB::Packed && self.operands == StorageType::F32 {
            let strips = self.n.div_ceil(STRIP);
            let strips_per_task = (FEW_ROWS_BYTES / STRIP / self.weight_size() / self.k.max(1)).clamp(1, strips);
            let tasks = strips.div_ceil(strips_per_task);
            pool.run(matrices * tasks, &|task| {
                let (matrix, first) = (task / tasks, task % tasks * strips_per_task);
                for strip in first..strips.min(first + strips_per_task) {
                    with_vector!(pool.isa(), few_rows(work: &Product<'_>, matrix: usize, strip: usize));
                }
            });
            return;
        }
        if let Some(thin) = Thin::of(self) {
            return thin.run(work, matrices, pool);
        }
        let split = Split::new(self, matrices, pool.threads(), pool.isa());
        pool.run(split.tasks(), &|task| split.each(task, &|part| work.part(pool.isa(), part)));
    }
}

/// Division of the work into tasks of nearly equal size. Their number does not influence any result.
struct Split {
    matrices: usize,
    matrices_per_task: usize,
    panels: usize,
    panels_per_task: usize,
    strips: usize,
    strips_per_task: usize,
}

/// Tiles of one matrix.
struct Part {
    matrix: usize,
    panels: Range<usize>,
    strips: Range<usize>,
}

impl Split {
    fn new(kernel: &MatMul, matrices: usize, threads: usize, isa: Isa) -> Split {
        let flops = 2.0 * kernel.m as f64 * kernel.n as f64 * kernel.k as f64;
        let tasks = (matrices as f64 * flops / TASK_FLOPS).clamp(1.0, (threads * TASKS_PER_THREAD) as f64) as usize;
        let panels = kernel.m.div_ceil(kernel.panel_rows(isa));
        let strips = kernel.n.div_ceil(STRIP);
        // Strips first: a task then reads only its part of B, and each block serves many panels.
        let tasks_per_matrix = tasks.div_ceil(matrices);
        let strips_per_task = strips.div_ceil(tasks_per_matrix);
        let panel_tasks = tasks_per_matrix.div_ceil(strips.div_ceil(strips_per_task));
        let panels_per_task = panels.div_ceil(panel_tasks);
        let matrices_per_task = matrices.div_ceil(tasks);
        Split { matrices, matrices_per_task, panels, panels_per_task, strips, strips_per_task }
    }

    fn tasks(&self) -> usize {
        let [panels, strips] = self.parts();
        self.matrices.div_ceil(self.matrices_per_task) * panels * strips
    }

    /// Parts of a matrix: panels and strips.
    fn parts(&self) -> [usize; 2] {
        [self.panels.div_ceil(self.panels_per_task), self.strips.div_ceil(self.strips_per_task)]
    }

    fn each(&self, task: usize, work: &dyn Fn(Part)) {
        let cut = |number: usize, size: usize, end: usize| number * size..(number * size + size).min(end);
        let [panel_parts, strip_parts] = self.parts();
        let (rest, panel_part) = (task / panel_parts, task % panel_parts);
        for matrix in cut(rest / strip_parts, self.matrices_per_task, self.matrices) {
            work(Part {
                matrix,
                panels: cut(panel_part, self.panels_per_task, self.panels),
                strips: cut(rest % strip_parts, self.strips_per_task, self.strips),
            });
        }
    }
}

impl MatMul {
    /// Most rows of a panel. Rows whose stride is a multiple of 4 kB map to the same few sets of the L1 cache.
    fn panel_rows(&self, isa: Isa) -> usize {
        match self.k.is_multiple_of(1024) {
            _ if tile::prefers_strided_rows(isa, self.operands) => tile::strided_rows_max(self.words()),
            true => tile::rows_max(isa).min(10),
            false => tile::rows_max(isa),
        }
    }
}

/// The operands of a run, whose sizes were checked.
struct Product<'a> {
    kernel: &'a MatMul,
    a: &'a [Word],
    b: &'a [Word],
    /// The bytes of `b`, and the scales of its columns if it is stored as int8 for products of `f32`.
    packed: &'a [u8],
    scales: &'a [f32],
    marks: Option<Marks<'a>>,
    /// Contribution of the zero point to each column's int8 sum.
    shift: &'a [Word],
    scale: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    /// `Some(None)`: the residual is in the output.
    residual: Option<Option<&'a [u8]>>,
    out: SharedMut<'a, u8>,
    limits: Option<[f32; 2]>,
    /// Functions after the clip.
    functions: &'a [Unary],
}

/// A block of a strip as the microkernel reads it.
#[derive(Clone, Copy)]
struct Block {
    start: *const Word,
    /// Words between rows.
    stride: usize,
    /// Words from the first vector of a row to the second.
    vector: usize,
}

/// Position of a tile.
struct Place<'a> {
    /// Rows of the left operand.
    a: &'a [Word],
    /// First element in the output.
    start: usize,
    /// Rows per tile and number of consecutive tiles of that height.
    rows: &'a [Row],
    iterations: usize,
    strip: usize,
    /// The range of the inner dimension that is accumulated now, in words.
    terms: Range<usize>,
    prefetch: Prefetch,
}

impl<'a> Product<'a> {
    fn a(&self, matrix: usize) -> &'a [Word] {
        let size = self.kernel.m * self.kernel.words();
        &self.a[self.kernel.matrix(matrix, &self.kernel.a_strides) * size..][..size]
    }

    fn b(&self, matrix: usize) -> &'a [Word] {
        if self.kernel.b == MatMulB::Packed {
            return self.b;
        }
        let size = self.kernel.k * self.kernel.n;
        &self.b[self.kernel.matrix(matrix, &self.kernel.b_strides) * size..][..size]
    }

    /// Columns of a strip.
    fn columns(&self, strip: usize) -> usize {
        STRIP.min(self.kernel.n - strip * STRIP)
    }

    fn part(&self, isa: Isa, part: Part) {
        let MatMul { m, n, b: form, .. } = *self.kernel;
        let (a, b, k) = (self.a(part.matrix), self.b(part.matrix), self.kernel.words());
        // Rounded sums, int8 sums and AMX sums cannot be resumed from the output, so the inner dimension is not
        // divided.
        let whole = self.kernel.operands.is_byte() || tile::prefers_strided_rows(isa, self.kernel.operands);
        let goes_on = self.kernel.result == StorageType::F32 && !whole;
        let depth = match form {
            _ if !goes_on => k,
            MatMulB::Packed => strips::PART_ROWS,
            MatMulB::Dynamic | MatMulB::Transposed => DEPTH,
        };
        let rows: [Row; STRIDED_ROWS_MAX] = from_fn(|row| Row { x: row * k, out: row * n });
        // The first panels may be one row taller than the others.
        let [(_, tall), (low, _)] = tile::heights(m, self.kernel.panel_rows(isa));
        let mut room = StackBuffer::<{ DEPTH * STRIP }>::new();
        let room = room.zeros(if form == MatMulB::Packed { 0 } else { k.min(DEPTH) * STRIP });
        for strip in part.strips {
            let blocks = k.div_ceil(depth.max(1)).max(1);
            for number in 0..blocks {
                let terms = number * k / blocks..(number + 1) * k / blocks;
                let block = self.block(isa, b, strip, terms.clone(), part.panels.len(), room);
                let asks = form == MatMulB::Packed && PREFETCHING_PANELS <= part.panels.len();
                let size = if asks { terms.len() * self.columns(strip).next_multiple_of(LANES) } else { 0 };
                let bytes = size * self.kernel.weight_size();
                // The next block follows this one in memory. If only its first panel prefetched, it would stall on
                // every cache line, so each panel prefetches a part of it.
                let steps = part.panels.len() * Prefetch::steps(1, terms.len());
                let mut prefetch =
                    Prefetch::new(block.start.wrapping_byte_add(bytes), bytes / size_of::<Word>(), steps);
                for panels in
                    [part.panels.start..part.panels.end.min(tall), part.panels.start.max(tall)..part.panels.end]
                {
                    if panels.is_empty() {
                        continue;
                    }
                    let [first, end] = [panels.start, panels.end].map(|panel| panel * low + panel.min(tall));
                    let iterations = panels.len();
                    let place = Place {
                        a: &a[first * k..end * k],
                        start: (part.matrix * m + first) * n + strip * STRIP,
                        rows: &rows[..(end - first) / iterations],
                        iterations,
                        strip,
                        terms: terms.clone(),
                        prefetch: prefetch.portion(iterations * Prefetch::steps(1, terms.len())),
                    };
                    // SAFETY: `block` has the rows of `terms` for this strip, and the tile belongs to this task alone.
                    unsafe { self.tile(isa, &place, block) };
                }
            }
        }
    }

    /// The rows `terms` of a strip of `b`, in place or packed into `room`.
    fn block(&self, isa: Isa, b: &[Word], strip: usize, terms: Range<usize>, panels: usize, room: &mut [f32]) -> Block {
        let MatMul { n, b: form, .. } = *self.kernel;
        let k = self.kernel.words();
        let (first, columns) = (strip * STRIP, self.columns(strip));
        let stride = columns.next_multiple_of(LANES);
        match form {
            _ if terms.is_empty() => return Block { start: b.as_ptr(), stride, vector: LANES },
            MatMulB::Packed => {
                let size = self.kernel.weight_size();
                let rows = first * k + terms.start * stride..first * k + terms.end * stride;
                let start = self.packed[rows.start * size..rows.end * size].as_ptr().cast();
                return match self.kernel.operands {
                    StorageType::F32 => Block { start, stride: LANES, vector: terms.len() * LANES },
                    _ => Block { start, stride, vector: LANES },
                };
            }
            MatMulB::Dynamic if columns % LANES == 0 && panels < COPY_PANELS => {
                let rows = &b[terms.start * n + first..(terms.end - 1) * n + first + columns];
                return Block { start: rows.as_ptr(), stride: n, vector: LANES };
            }
            MatMulB::Dynamic => {
                strips::copy(&numbers(b)[terms.start * n + first..], n, columns, &mut room[..terms.len() * stride])
            }
            MatMulB::Transposed => {
                let (rows, depth) = (numbers(&b[first * k + terms.start..]), terms.len());
                let (room, steps) = (&mut room[..depth * stride], [LANES, depth * LANES]);
                with_vector!(isa, transpose(
                    rows: &[f32], k: usize, columns: usize, depth: usize, steps: [usize; 2], room: &mut [f32]
                ));
            }
        }
        Block { start: room.as_ptr().cast(), stride: LANES, vector: terms.len() * LANES }
    }

    /// Computes a tile, or accumulates further terms into it.
    ///
    /// # Safety
    /// `block` must have as many rows as `place` has terms, each with the strip's columns padded to full vectors. No
    /// other task may use the tile's part of the output.
    unsafe fn tile(&self, isa: Isa, place: &Place, block: Block) {
        let MatMul { n, operands, result, .. } = *self.kernel;
        let (k, size) = (self.kernel.words(), result.size());
        let (column, columns) = (place.strip * STRIP, self.columns(place.strip));
        let (start, count, iterations, vectors) =
            (place.start, place.rows.len(), place.iterations, columns.div_ceil(LANES));
        // Checked, since the bounds of the pointers below rest on it.
        let rows = count.checked_mul(iterations);
        let read = rows.and_then(|rows| rows.checked_mul(k));
        let written =
            rows.and_then(|rows| rows.checked_sub(1)?.checked_mul(n)?.checked_add(start + columns)?.checked_mul(size));
        assert!(read.is_some_and(|read| read <= place.a.len()), "a tile reads its operand");
        assert!(written.is_some_and(|end| end <= self.out.len()), "a tile writes its output");
        let (is_first, is_last) = (place.terms.start == 0, place.terms.end == k);
        let k_loops = [KLoop { x: place.terms.start, weights: 0, loops: [Loop::ONCE; 3], depth: place.terms.len() }];
        let limits = self.limits.filter(|_| is_last);
        let functions = if is_last { self.functions } else { &[] };
        let mut tile = Tile {
            operands,
            x: place.a.as_ptr(),
            weights: block.start,
            compact: Compact::of(self.kernel.weights, self.scales, column),
            weight_stride: block.stride,
            weight_vector: block.vector,
            result,
            // SAFETY: an element of the output (asserted above).
            out: unsafe { self.out.start().add(start * size) },
            rows: place.rows,
            vectors,
            vector_stride: LANES,
            k_loops: &k_loops,
            init: Init::Accumulate,
            residual: None,
            limits,
            marks: self.marks,
            read_back: false,
            prefetch: place.prefetch,
            repeat: Repeat { iterations, x: count * k, weights: 0, out: count * n },
        };
        let mut whole = WholeStrip::ZERO;
        if operands.is_byte() {
            whole.fill(self, column, columns);
            tile.init = Init::Dequant(whole.start(self.scale.is_some(), self.bias.is_some()));
        }
        if columns == vectors * LANES {
            if is_first && !operands.is_byte() {
                tile.init = self.bias.map_or(Init::Zero, |bias| Init::Bias(bias[column..][..columns].as_ptr()));
                let residual = |residual: Option<&[u8]>| residual.map(|residual| residual[start * size..].as_ptr());
                tile.residual = self.residual.map(|items| residual(items).unwrap_or(tile.out.cast_const()));
            }
            // SAFETY: rows of `a` and the block have all terms (guaranteed by the caller), and the tile is within the
            // output (asserted), whose length matches bias and residual (asserted in `run`).
            unsafe { finish::multiply(isa, &tile, functions) };
            return;
        }
        // The last vectors are wider than the output: such tiles are computed in a local buffer.
        for (turn, tile) in tile.iterations().enumerate() {
            for first in (0..count).step_by(tile::ROWS) {
                let (start, count) = (start + (turn * count + first) * n, tile::ROWS.min(count - first));
                let mut cells = [[0.0; STRIP]; tile::ROWS];
                for (row, cells) in cells.iter_mut().enumerate().take(count) {
                    let start = start + row * n;
                    // SAFETY: the tile belongs to this task.
                    let results = unsafe { self.out.part(start * size, columns * size) };
                    match is_first {
                        _ if operands.is_byte() => {}
                        true if self.bias.is_none() && self.residual.is_none() => {}
                        true => self.begin(isa, start, column, results, &mut cells[..columns]),
                        false => storage::widen(isa, result, results, &mut cells[..columns]),
                    }
                }
                let rows: [Row; tile::ROWS] = from_fn(|row| Row { x: (first + row) * k, out: row * STRIP });
                let tile =
                    Tile { rows: &rows[..count], out: cells.as_mut_ptr().cast(), result: StorageType::F32, ..tile };
                // SAFETY: as above; the results go to `cells`.
                unsafe { finish::multiply(isa, &tile, functions) };
                for (row, cells) in cells.iter().enumerate().take(count) {
                    // SAFETY: the tile belongs to this task.
                    let results = unsafe { self.out.part((start + row * n) * size, columns * size) };
                    match result {
                        StorageType::F32 => results.copy_from_slice(bytemuck::cast_slice(&cells[..columns])),
                        _ => storage::narrow(isa, result, &cells[..columns], results),
                    }
                }
            }
        }
    }

    /// Adds bias and residual to the sums of neighboring columns, applies the functions, and writes the results from `start`
    /// on.
    ///
    /// # Safety
    /// No other task may use these results.
    unsafe fn finish(&self, isa: Isa, start: usize, column: usize, sums: &mut [f32]) {
        let result = self.kernel.result;
        for (part, sums) in sums.chunks_mut(STRIP).enumerate() {
            let (start, column) = (start + part * STRIP, column + part * STRIP);
            // SAFETY: the caller's promise.
            let results = unsafe { self.out.part(start * result.size(), sums.len() * result.size()) };
            let mut cells = [0.0; STRIP];
            let cells = &mut cells[..sums.len()];
            self.begin(isa, start, column, results, cells);
            sums.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += *cell);
            self.kernel.epilogue.activate(isa, sums);
            storage::narrow(isa, result, sums, results);
        }
    }

    /// Initial values of the accumulators: bias and residual. An in-place residual is read from the results.
    fn begin(&self, isa: Isa, start: usize, column: usize, results: &[u8], cells: &mut [f32]) {
        let result = self.kernel.result;
        if let Some(residual) = self.residual {
            let own = start * result.size()..(start + cells.len()) * result.size();
            let residual = residual.map_or(results, |residual| &residual[own]);
            storage::widen(isa, result, residual, cells);
        }
        match self.bias {
            // Cells of several rows.
            Some(&[bias]) => cells.iter_mut().for_each(|cell| *cell += bias),
            Some(bias) => cells.iter_mut().zip(&bias[column..]).for_each(|(cell, bias)| *cell += bias),
            None => {}
        }
    }
}

/// Initial values and conversion of a strip's int8 sums.
struct WholeStrip {
    shift: [i32; STRIP],
    scale: [f32; STRIP],
    bias: [f32; STRIP],
}

impl WholeStrip {
    const ZERO: WholeStrip = WholeStrip { shift: [0; STRIP], scale: [0.0; STRIP], bias: [0.0; STRIP] };

    fn fill(&mut self, work: &Product, column: usize, columns: usize) {
        let shift = work.shift[column..].iter().map(|&bytes| i32::from_ne_bytes(bytes));
        self.shift.iter_mut().zip(shift).for_each(|(own, shift)| *own = shift);
        for (own, vector) in [(&mut self.scale, work.scale), (&mut self.bias, work.bias)] {
            vector.iter().for_each(|vector| own[..columns].copy_from_slice(&vector[column..][..columns]));
        }
    }

    fn start(&self, scaled: bool, biased: bool) -> Dequant {
        let (start, scale, bias) = (self.shift.as_ptr(), self.scale.as_ptr(), self.bias.as_ptr());
        Dequant { start, scale: scaled.then_some(scale), bias: biased.then_some(bias), quantized_sum: None }
    }
}

/// Reinterprets words as `f32`.
fn numbers(words: &[Word]) -> &[f32] {
    elements(bytemuck::cast_slice(words))
}

/// Transposes `columns` rows of `depth` elements, with `stride` between rows, into `depth` rows of full vectors. `steps`: from one
/// of these rows to the next, and from one vector of a row to the next.
#[inline(always)]
pub(crate) fn transpose<V: Vector>(
    items: &[f32],
    stride: usize,
    columns: usize,
    depth: usize,
    [next_row, next_vector]: [usize; 2],
    out: &mut [f32],
) {
    for first in (0..columns).step_by(LANES) {
        // Lanes after the last column repeat it.
        let rows: [&[f32]; LANES] = from_fn(|lane| &items[(first + lane).min(columns - 1) * stride..][..depth]);
        let out = &mut out[first / LANES * next_vector..];
        for at in (0..depth / LANES * LANES).step_by(LANES) {
            let mut vectors = [V::zero(); LANES];
            for (vector, row) in vectors.iter_mut().zip(rows) {
                *vector = V::read(&row[at..]);
            }
            for (ix, vector) in V::transpose(vectors).iter().enumerate() {
                vector.write(&mut out[(at + ix) * next_row..]);
            }
        }
        for at in depth / LANES * LANES..depth {
            for (lane, row) in rows.iter().enumerate() {
                out[at * next_row + lane] = row[at];
            }
        }
    }
}
