//! [`PoolBlocked`]: max and average pooling over the blocked layout, 16 channels per vector.

mod of_bytes;

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements, elements_mut, input, product};
use crate::movement::blocked_layout::{padded, rows_of_a_task};
use crate::ops::pooling::{Fold, Largest, Sum, check_kind};
use crate::ops::{Pool2d, Pool2dKind};
use crate::simd::storage::{Item, with_item};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::shared_slice::{StackBuffer, for_each_chunk};

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
        if T::STORED == StorageType::I8 {
            for (row, cells) in rows_of(kernel, elements(x), first, elements_mut(cells)) {
                of_bytes::run::<V, i8>(&row, cells);
            }
        } else {
            for (row, cells) in rows_of(kernel, elements(x), first, elements_mut(cells)) {
                of_bytes::run::<V, u8>(&row, cells);
            }
        }
        return;
    }
    for (row, cells) in rows_of(kernel, x, first, cells) {
        match kernel.kind {
            Pool2dKind::Max => row.fold::<V, Largest, false>(cells, |_| 1),
            Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. } => row.fold::<V, Sum, true>(cells, row.counts()),
        }
    }
}

/// The result of a fold: its mean, or itself.
#[inline(always)]
fn finished<V: Vector, const MEAN: bool>(fold: V, count: usize) -> V {
    if MEAN { fold.div(V::splat(count as f32)) } else { fold }
}

/// The output rows from row `first` on, with their cells.
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

/// The most columns of an input whose folds windows share.
const COLUMNS: usize = 128;

/// One output row; `x` is the plane that it reads.
struct Row<'a, T> {
    kernel: &'a PoolBlocked,
    x: &'a [[T; LANES]],
    oy: usize,
}

impl<T: Item> Row<'_, T> {
    /// Folds windows; `count` has the cells of a column's window that count for a mean.
    #[inline(always)]
    fn fold<V: Vector, F: Fold, const MEAN: bool>(&self, cells: &mut [[T; LANES]], count: impl Fn(usize) -> usize) {
        let window = &self.kernel.window;
        if let [cell] = cells
            && window.dilation[1] == 1
        {
            return T::write(finished::<V, MEAN>(self.fold_pixel::<V, F>(), count(0)), cell);
        }
        // Windows that overlap share the folds of their columns, if that takes half of the steps or fewer.
        let ([height, width], stride) = (window.kernel, window.stride[1]);
        if 2 * (height * stride + width) <= height * width && window.input[1] <= COLUMNS {
            return self.fold_columns::<V, F, MEAN>(cells, count);
        }
        match V::ISA {
            Isa::Avx512 => self.fold_tiles::<V, F, 14, MEAN>(cells, count),
            Isa::Avx2 | Isa::Neon => self.fold_tiles::<V, F, 6, MEAN>(cells, count),
            Isa::Portable => self.fold_tiles::<V, F, 2, MEAN>(cells, count),
        }
    }

    /// The rows of the windows for each column of the input, then the columns of each window.
    #[inline(always)]
    fn fold_columns<V: Vector, F: Fold, const MEAN: bool>(
        &self,
        cells: &mut [[T; LANES]],
        count: impl Fn(usize) -> usize,
    ) {
        let window = &self.kernel.window;
        let mut columns = StackBuffer::<{ COLUMNS * LANES }>::new();
        let columns = columns.zeros(window.input[1] * LANES).as_chunks_mut::<LANES>().0;
        columns.fill([F::START; LANES]);
        for row in self.rows() {
            for (column, item) in columns.iter_mut().zip(row) {
                F::lanes(V::read(column), T::read(item)).write(column);
            }
        }
        for (ox, cell) in cells.iter_mut().enumerate() {
            let mut fold = V::splat(F::START);
            for kx in 0..window.kernel[1] {
                // Columns before the image wrap around and are out of bounds like those after it.
                let at = (ox * window.stride[1] + kx * window.dilation[1]).wrapping_sub(window.pad[1]);
                if let Some(column) = columns.get(at) {
                    fold = F::lanes(fold, V::read(column));
                }
            }
            T::write(finished::<V, MEAN>(fold, count(ox)), cell);
        }
    }

    /// `N` neighboring windows in registers.
    #[inline(always)]
    fn fold_tiles<V: Vector, F: Fold, const N: usize, const MEAN: bool>(
        &self,
        cells: &mut [[T; LANES]],
        count: impl Fn(usize) -> usize,
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
                    T::write(finished::<V, MEAN>(*fold, count(ix * N + at)), cell);
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
