//! [`PoolBlocked`]: max and average pooling over the blocked layout, 16 channels per vector.

mod of_bytes;

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements, elements_mut, input, product};
use crate::movement::blocked_layout::{padded, rows_of_a_task};
use crate::ops::pooling::{Fold, Largest, LargestNumber, Sum, are_finite, check_kind};
use crate::ops::{Pool2d, Pool2dKind};
use crate::simd::storage::{Item, with_item};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::shared_slice::{StackBuffer, for_each_chunk};

/// The most columns, padding included, of separable pooling.
const COLUMNS: usize = 256;
/// Columns that are folded together.
const GROUP: usize = 4;

/// Slides a window over blocked `x: [batch, ceil(channels / 16), rows, columns, 16]`. The output is blocked as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolBlocked {
    /// The reduction.
    pub kind: Pool2dKind,
    /// Images in the batch.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Geometry over rows and columns.
    pub window: Window,
    /// Storage type of `x` and the results.
    pub stored: StorageType,
}

impl KernelFn for PoolBlocked {
    const NAME: &'static str = "pool_blocked";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.window.check()?;
        check_kind(self.kind)?;
        let channels = padded(self.channels).ok_or(InvalidKernel("the number of elements must fit in an address"))?;
        let [input, output] = [self.window.input, self.window.output];
        let output = product(&[self.batch, channels, output[0], output[1]]);
        Sizes::new(&[product(&[self.batch, channels, input[0], input[1]])], output, self.stored.size())
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        self.stored.size()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let [rows, columns] = self.window.output;
        let pixel = LANES * self.stored.size();
        let row_bytes = pixel * columns.max(self.window.input_plane() / rows);
        with_item!(self.stored, T => {
            let x: &[[T; LANES]] = input(&args, 0);
            let out: &mut [[T; LANES]] = elements_mut(args.outputs[0]);
            let chunk = columns * rows_of_a_task(out.len() / columns, row_bytes);
            for_each_chunk(pool, out, chunk, &|number, cells| {
                let (first, kernel) = (number * chunk / columns, self);
                with_vector!(pool.isa(), run_rows<T>(
                    kernel: &PoolBlocked, x: &[[T; LANES]], first: usize, cells: &mut [[T; LANES]]
                ));
            });
        });
    }
}

/// Output rows from row `first`, counted over all planes.
#[inline(always)]
fn run_rows<V: Vector, T: Item>(kernel: &PoolBlocked, x: &[[T; LANES]], first: usize, cells: &mut [[T; LANES]]) {
    if T::STORED.is_byte() && of_bytes::fits(&kernel.window) {
        let (x, cells): (&[u8], &mut [u8]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(cells));
        // Loops instead of a function that takes closures: only inlined code is compiled for the ISA.
        match T::STORED {
            StorageType::I8 => {
                for (row, cells) in rows_of(kernel, elements(x), first, elements_mut(cells)) {
                    of_bytes::run::<V, i8>(&row, cells);
                }
            }
            _ => {
                for (row, cells) in rows_of(kernel, elements(x), first, elements_mut(cells)) {
                    of_bytes::run::<V, u8>(&row, cells);
                }
            }
        }
        return;
    }
    let is_max = kernel.kind == Pool2dKind::Max;
    // The check reads the input once, which pays only if windows overlap much.
    let are_numbers = is_max && T::STORED == StorageType::F32 && kernel.shared_columns().is_some() && {
        let read = kernel.window.pixels_read(first, cells.len() / kernel.window.output[1]);
        are_finite::<V>(bytemuck::cast_slice(&x[read]))
    };
    for (row, cells) in rows_of(kernel, x, first, cells) {
        match (is_max, are_numbers) {
            (true, true) => row.run_max::<V, LargestNumber>(cells),
            (true, false) => row.run_max::<V, Largest>(cells),
            (false, _) => row.run_mean::<V>(cells),
        }
    }
}

impl PoolBlocked {
    /// Folds for each cell of a window: less than one if pooling is separable.
    pub fn folds_per_cell(&self) -> f64 {
        let Window { kernel: [rows, taps], stride: [_, stride], .. } = self.window;
        match self.shared_columns() {
            Some(_) => (rows * stride + taps) as f64 / (rows * taps) as f64,
            None => 1.0,
        }
    }

    /// Columns that the windows of an output row read, padding included, if folding rows first takes fewer operations than
    /// folding each window (separable pooling). `None` otherwise, or if they exceed the buffer.
    fn shared_columns(&self) -> Option<usize> {
        let Window { kernel: [rows, taps], stride: [_, stride], dilation: [_, dilation], .. } = self.window;
        let [input, outputs] = [self.window.input[1], self.window.output[1]];
        let read = outputs.checked_sub(1)? * stride + (taps - 1) * dilation + 1;
        let columns = read.max(self.window.pad[1] + input);
        (rows * stride + taps < rows * taps && columns <= COLUMNS).then_some(columns)
    }
}

/// A fold divided by a number of cells, if there is one. A closure would not be inlined, and not compiled for the ISA.
#[inline(always)]
fn mean<V: Vector>(fold: V, count: Option<usize>) -> V {
    match count {
        Some(count) => fold.div(V::splat(count as f32)),
        None => fold,
    }
}

/// Each output row, with its cells.
#[inline(always)]
fn rows_of<'a, T>(
    kernel: &'a PoolBlocked,
    x: &'a [[T; LANES]],
    first: usize,
    cells: &'a mut [[T; LANES]],
) -> impl Iterator<Item = (Row<'a, T>, &'a mut [[T; LANES]])> {
    let [rows, columns] = kernel.window.output;
    let input_plane = kernel.window.input_plane();
    cells.chunks_exact_mut(columns).enumerate().map(move |(ix, cells)| {
        let (plane, oy) = ((first + ix) / rows, (first + ix) % rows);
        (Row { kernel, x: &x[plane * input_plane..][..input_plane], oy }, cells)
    })
}

/// One output row; `x` is the plane that it reads.
struct Row<'a, T> {
    kernel: &'a PoolBlocked,
    x: &'a [[T; LANES]],
    oy: usize,
}

impl<T: Item> Row<'_, T> {
    #[inline(always)]
    fn run_max<V: Vector, F: Fold>(&self, cells: &mut [[T; LANES]]) {
        self.fold::<V, F>(cells, &|_| None);
    }

    #[inline(always)]
    fn run_mean<V: Vector>(&self, cells: &mut [[T; LANES]]) {
        let count = self.counts();
        self.fold::<V, Sum>(cells, &|ox| Some(count(ox)));
    }

    /// Folds windows; divides each fold by the count at its column, if there are counts.
    #[inline(always)]
    fn fold<V: Vector, F: Fold>(&self, cells: &mut [[T; LANES]], count: &impl Fn(usize) -> Option<usize>) {
        let window = &self.kernel.window;
        if let [cell] = cells
            && window.dilation[1] == 1
        {
            return T::write(mean(self.fold_pixel::<V, F>(), count(0)), cell);
        }
        let columns = self.kernel.shared_columns();
        match V::ISA {
            Isa::Avx512 => self.fold_row::<V, F, 14>(columns, cells, count),
            Isa::Avx2 | Isa::Neon => self.fold_row::<V, F, 6>(columns, cells, count),
            Isa::Portable => self.fold_row::<V, F, 2>(columns, cells, count),
        }
    }

    /// `N` neighboring windows in registers.
    #[inline(always)]
    fn fold_row<V: Vector, F: Fold, const N: usize>(
        &self,
        columns: Option<usize>,
        cells: &mut [[T; LANES]],
        count: &impl Fn(usize) -> Option<usize>,
    ) {
        match columns {
            Some(columns) => self.fold_columns::<V, F, N>(columns, cells, count),
            None => self.fold_tiles::<V, F, N>(cells, count),
        }
    }

    /// Separable pooling: folds the rows of each column, then the columns of each window.
    #[inline(always)]
    fn fold_columns<V: Vector, F: Fold, const N: usize>(
        &self,
        columns: usize,
        cells: &mut [[T; LANES]],
        count: &impl Fn(usize) -> Option<usize>,
    ) {
        let Window { stride: [_, stride], kernel: [_, taps], dilation: [_, dilation], pad, input, .. } =
            self.kernel.window;
        let mut buffer = StackBuffer::<{ COLUMNS * LANES }>::new();
        let columns = buffer.zeros(columns * LANES).as_chunks_mut::<LANES>().0;
        let (front, columns_of_input) = columns.split_at_mut(pad[1]);
        let (inner, behind) = columns_of_input.split_at_mut(input[1]);
        [front, behind].into_iter().for_each(|padding| padding.fill([F::START; LANES]));
        let (groups, rest) = inner.as_chunks_mut::<GROUP>();
        let first = groups.len() * GROUP;
        for (group, columns) in groups.iter_mut().enumerate() {
            let mut folds = [V::splat(F::START); GROUP];
            for row in self.rows() {
                let items: &[[T; LANES]; GROUP] = row[group * GROUP..].first_chunk().expect("rows have the width");
                for (fold, item) in folds.iter_mut().zip(items) {
                    *fold = F::lanes(*fold, T::read(item));
                }
            }
            for (fold, column) in folds.into_iter().zip(columns) {
                fold.write(column);
            }
        }
        for (at, column) in rest.iter_mut().enumerate() {
            let mut fold = V::splat(F::START);
            for row in self.rows() {
                fold = F::lanes(fold, T::read(&row[first + at]));
            }
            fold.write(column);
        }
        let (whole, rest) = cells.as_chunks_mut::<N>();
        let last = whole.len() * N;
        for (tile, cells) in whole.iter_mut().enumerate() {
            let mut folds = [V::splat(F::START); N];
            for tap in 0..taps {
                let columns = &columns[tile * N * stride + tap * dilation..];
                for (at, fold) in folds.iter_mut().enumerate() {
                    *fold = F::lanes(*fold, V::read(&columns[at * stride]));
                }
            }
            for (at, (fold, cell)) in folds.into_iter().zip(cells).enumerate() {
                T::write(mean(fold, count(tile * N + at)), cell);
            }
        }
        for (at, cell) in rest.iter_mut().enumerate() {
            let mut fold = V::splat(F::START);
            for column in columns[(last + at) * stride..].iter().step_by(dilation).take(taps) {
                fold = F::lanes(fold, V::read(column));
            }
            T::write(mean(fold, count(last + at)), cell);
        }
    }

    /// All cells of each window.
    #[inline(always)]
    fn fold_tiles<V: Vector, F: Fold, const N: usize>(
        &self,
        cells: &mut [[T; LANES]],
        count: &impl Fn(usize) -> Option<usize>,
    ) {
        let window = &self.kernel.window;
        for (ix, cells) in cells.chunks_mut(N).enumerate() {
            let mut folds = [V::splat(F::START); N];
            for row in self.rows() {
                for kx in 0..window.kernel[1] {
                    // Columns before the image wrap around and are out of bounds like those after it.
                    let base = (ix * N * window.stride[1] + kx * window.dilation[1]).wrapping_sub(window.pad[1]);
                    for (at, fold) in folds.iter_mut().enumerate() {
                        if let Some(item) = row.get(base.wrapping_add(at * window.stride[1])) {
                            *fold = F::lanes(*fold, T::read(item));
                        }
                    }
                }
            }
            // A loop over the constant `N`, so that folds in registers have no run-time index.
            for (at, fold) in folds.iter().enumerate() {
                if let Some(cell) = cells.get_mut(at) {
                    T::write(mean(*fold, count(ix * N + at)), cell);
                }
            }
        }
    }

    /// One window, as in global pooling, with four independent folds.
    #[inline(always)]
    fn fold_pixel<V: Vector, F: Fold>(&self) -> V {
        let window = &self.kernel.window;
        let taps = window.taps_inside(1, 0);
        let mut folds = [V::splat(F::START); 4];
        if !taps.is_empty() {
            for row in self.rows() {
                let (fours, rest) = row[taps.start - window.pad[1]..taps.end - window.pad[1]].as_chunks::<4>();
                for four in fours {
                    for (fold, item) in folds.iter_mut().zip(four) {
                        *fold = F::lanes(*fold, T::read(item));
                    }
                }
                for item in rest {
                    folds[0] = F::lanes(folds[0], T::read(item));
                }
            }
        }
        F::lanes(F::lanes(folds[0], folds[1]), F::lanes(folds[2], folds[3]))
    }

    /// The cells that count for the mean of the window at each output column.
    #[inline(always)]
    fn counts(&self) -> impl Fn(usize) -> usize {
        let PoolBlocked { kind, window, .. } = *self.kernel;
        let counts = Pool2d { kind, planes: 1, window };
        let (rows, columns) = (counts.counted(0, self.oy), window.kernel[1]);
        // Most windows are inside the image; `counted` divides.
        let [first, last] = [0, columns - 1].map(|tap| window.inside(1, tap));
        let inside = first.start.max(last.start)..first.end.min(last.end);
        move |ox| rows * if inside.contains(&ox) { columns } else { counts.counted(1, ox) }
    }

    /// The input rows that the window's rows map to.
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = &[[T; LANES]]> {
        let window = &self.kernel.window;
        window.taps_inside(0, self.oy).map(|ky| {
            let iy = self.oy * window.stride[0] + ky * window.dilation[0] - window.pad[0];
            &self.x[iy * window.input[1]..][..window.input[1]]
        })
    }
}
