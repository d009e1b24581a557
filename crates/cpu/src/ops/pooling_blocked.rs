//! [`PoolBlocked`]: max and average pooling over the blocked layout, 16 channels per vector.

mod of_bytes;

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements, elements_mut, input, product};
use crate::movement::blocked_layout::{padded, rows_of_a_task};
use crate::ops::pooling::check_kind;
use crate::ops::{Pool2d, Pool2dKind};
use crate::simd::storage::{Item, with_item};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

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
        return match T::STORED {
            StorageType::I8 => {
                for_each_row(kernel, elements(x), first, elements_mut(cells), of_bytes::run::<V, i8>);
            }
            _ => for_each_row(kernel, elements(x), first, elements_mut(cells), of_bytes::run::<V, u8>),
        };
    }
    for_each_row(kernel, x, first, cells, |row, cells| match kernel.kind {
        Pool2dKind::Max => row.run_max::<V>(cells),
        _ => row.run_mean::<V>(cells),
    });
}

#[inline(always)]
fn for_each_row<T>(
    kernel: &PoolBlocked,
    x: &[[T; LANES]],
    first: usize,
    cells: &mut [[T; LANES]],
    run: impl Fn(&Row<T>, &mut [[T; LANES]]),
) {
    let [rows, columns] = kernel.window.output;
    let input_plane = kernel.window.input_plane();
    for (ix, cells) in cells.chunks_exact_mut(columns).enumerate() {
        let (plane, oy) = ((first + ix) / rows, (first + ix) % rows);
        run(&Row { kernel, x: &x[plane * input_plane..][..input_plane], oy }, cells);
    }
}

/// One output row; `x` is the plane that it reads.
struct Row<'a, T> {
    kernel: &'a PoolBlocked,
    x: &'a [[T; LANES]],
    oy: usize,
}

impl<T: Item> Row<'_, T> {
    #[inline(always)]
    fn run_max<V: Vector>(&self, cells: &mut [[T; LANES]]) {
        self.fold::<V>(f32::NEG_INFINITY, cells, V::max_or_nan, |fold, _| fold);
    }

    #[inline(always)]
    fn run_mean<V: Vector>(&self, cells: &mut [[T; LANES]]) {
        let count = self.counts();
        self.fold::<V>(0.0, cells, V::add, |fold, ox| fold.div(V::splat(count(ox) as f32)));
    }

    /// Folds windows and turns each fold, with its column, into a result.
    #[inline(always)]
    fn fold<V: Vector>(
        &self,
        start: f32,
        cells: &mut [[T; LANES]],
        take: impl Fn(V, V) -> V + Copy,
        finish: impl Fn(V, usize) -> V,
    ) {
        let window = &self.kernel.window;
        if let [cell] = cells
            && window.dilation[1] == 1
        {
            return T::write(finish(self.fold_pixel(V::splat(start), take), 0), cell);
        }
        match V::ISA {
            Isa::Avx512 => self.fold_tiles::<V, 14>(start, cells, take, finish),
            Isa::Avx2 | Isa::Neon => self.fold_tiles::<V, 6>(start, cells, take, finish),
            Isa::Portable => self.fold_tiles::<V, 2>(start, cells, take, finish),
        }
    }

    /// `N` neighboring windows in registers.
    #[inline(always)]
    fn fold_tiles<V: Vector, const N: usize>(
        &self,
        start: f32,
        cells: &mut [[T; LANES]],
        take: impl Fn(V, V) -> V,
        finish: impl Fn(V, usize) -> V,
    ) {
        let window = &self.kernel.window;
        for (ix, cells) in cells.chunks_mut(N).enumerate() {
            let mut folds = [V::splat(start); N];
            for row in self.rows() {
                for kx in 0..window.kernel[1] {
                    // Columns before the image wrap around and are out of bounds like those after it.
                    let base = (ix * N * window.stride[1] + kx * window.dilation[1]).wrapping_sub(window.pad[1]);
                    for (at, fold) in folds.iter_mut().enumerate() {
                        if let Some(item) = row.get(base.wrapping_add(at * window.stride[1])) {
                            *fold = take(*fold, T::read(item));
                        }
                    }
                }
            }
            // A loop over the constant `N`, so that folds in registers have no run-time index.
            for (at, fold) in folds.iter().enumerate() {
                if let Some(cell) = cells.get_mut(at) {
                    T::write(finish(*fold, ix * N + at), cell);
                }
            }
        }
    }

    /// One window, as in global pooling, with four independent folds.
    #[inline(always)]
    fn fold_pixel<V: Vector>(&self, start: V, take: impl Fn(V, V) -> V) -> V {
        let window = &self.kernel.window;
        let taps = window.taps_inside(1, 0);
        let mut folds = [start; 4];
        if !taps.is_empty() {
            for row in self.rows() {
                let (fours, rest) = row[taps.start - window.pad[1]..taps.end - window.pad[1]].as_chunks::<4>();
                for four in fours {
                    for (fold, item) in folds.iter_mut().zip(four) {
                        *fold = take(*fold, T::read(item));
                    }
                }
                for item in rest {
                    folds[0] = take(folds[0], T::read(item));
                }
            }
        }
        take(take(folds[0], folds[1]), take(folds[2], folds[3]))
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
