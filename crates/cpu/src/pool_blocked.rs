//! [`PoolBlocked`]: the maximum or the mean of windows, sixteen channels to a register.

use serde::{Deserialize, Serialize};

use crate::blocked::{Pixel, padded, rows_of_a_task};
use crate::kernel::{Args, KernelFn, Misfit, Sizes, elements_mut, input, product};
use crate::pool2d::check_kind;
use crate::shared::for_each_chunk;
use crate::vector::{Vector, with_vector};
use crate::{Isa, Pool, Pool2d, Pool2dKind, Window};

/// Slides a window over blocked `x: [batch, ceil(channels / 16), rows, columns, 16]`, `f32`. The output is blocked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolBlocked {
    /// What is taken.
    pub kind: Pool2dKind,
    /// Pictures.
    pub batch: usize,
    /// Channels of a picture.
    pub channels: usize,
    /// Rows and columns.
    pub window: Window,
}

impl KernelFn for PoolBlocked {
    const NAME: &'static str = "pool_blocked";

    fn sizes(&self) -> Result<Sizes, Misfit> {
        self.window.check()?;
        check_kind(self.kind)?;
        let channels = padded(self.channels).ok_or(Misfit("its sizes overflow"))?;
        let [input, output] = [self.window.input, self.window.output];
        let output = product(&[self.batch, channels, output[0], output[1]]);
        Sizes::new(&[product(&[self.batch, channels, input[0], input[1]])], output, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[Pixel] = input(&args, 0);
        let out: &mut [Pixel] = elements_mut(args.outputs[0]);
        let [rows, columns] = self.window.output;
        let row_bytes = size_of::<Pixel>() * columns.max(self.window.input_plane() / rows);
        let chunk = columns * rows_of_a_task(out.len() / columns, row_bytes);
        for_each_chunk(pool, out, chunk, &|number, cells| {
            let (first, kernel) = (number * chunk / columns, self);
            with_vector!(pool.isa(), run_rows(kernel: &PoolBlocked, x: &[Pixel], first: usize, cells: &mut [Pixel]));
        });
    }
}

/// Rows of the output from row `first` on, counted over all planes.
#[inline(always)]
fn run_rows<V: Vector>(kernel: &PoolBlocked, x: &[Pixel], first: usize, cells: &mut [Pixel]) {
    let [rows, columns] = kernel.window.output;
    let input_plane = kernel.window.input_plane();
    for (ix, cells) in cells.chunks_exact_mut(columns).enumerate() {
        let (plane, oy) = ((first + ix) / rows, (first + ix) % rows);
        let row = Row { kernel, x: &x[plane * input_plane..][..input_plane], oy };
        match kernel.kind {
            Pool2dKind::Max => row.run_max::<V>(cells),
            _ => row.run_mean::<V>(cells),
        }
    }
}

/// One row of the output; `x` is the plane it reads.
struct Row<'a> {
    kernel: &'a PoolBlocked,
    x: &'a [Pixel],
    oy: usize,
}

impl Row<'_> {
    #[inline(always)]
    fn run_max<V: Vector>(&self, cells: &mut [Pixel]) {
        self.fold::<V>(f32::NEG_INFINITY, cells, V::max_or_nan);
    }

    #[inline(always)]
    fn run_mean<V: Vector>(&self, cells: &mut [Pixel]) {
        self.fold::<V>(0.0, cells, V::add);
        let PoolBlocked { kind, window, .. } = *self.kernel;
        let counts = Pool2d { kind, planes: 1, window };
        let rows = counts.counted(0, self.oy);
        for (ox, cell) in cells.iter_mut().enumerate() {
            let count = (rows * counts.counted(1, ox)) as f32;
            cell.iter_mut().for_each(|item| *item /= count);
        }
    }

    #[inline(always)]
    fn fold<V: Vector>(&self, start: f32, cells: &mut [Pixel], take: impl Fn(V, V) -> V + Copy) {
        let window = &self.kernel.window;
        if let [cell] = cells
            && window.dilation[1] == 1
        {
            return self.fold_pixel(V::splat(start), cell, take);
        }
        match V::ISA {
            Isa::Avx512 => self.fold_tiles::<V, 14>(start, cells, take),
            Isa::Avx2 => self.fold_tiles::<V, 6>(start, cells, take),
            Isa::Portable => self.fold_tiles::<V, 2>(start, cells, take),
        }
    }

    /// Tiles of `T` neighbours in registers.
    #[inline(always)]
    fn fold_tiles<V: Vector, const T: usize>(&self, start: f32, cells: &mut [Pixel], take: impl Fn(V, V) -> V) {
        let window = &self.kernel.window;
        for (ix, cells) in cells.chunks_mut(T).enumerate() {
            let mut folds = [V::splat(start); T];
            for row in self.rows() {
                for kx in 0..window.kernel[1] {
                    // Columns in front of the picture wrap, and are as far outside as those behind it.
                    let base = (ix * T * window.stride[1] + kx * window.dilation[1]).wrapping_sub(window.pad[1]);
                    for (at, fold) in folds.iter_mut().enumerate() {
                        if let Some(item) = row.get(base.wrapping_add(at * window.stride[1])) {
                            *fold = take(*fold, V::read(item));
                        }
                    }
                }
            }
            // Over the constant `T`: folds in registers have no index at run time.
            for (at, fold) in folds.iter().enumerate() {
                if let Some(cell) = cells.get_mut(at) {
                    fold.write(cell);
                }
            }
        }
    }

    /// One window, as in global pooling: four folds at a time, so that none waits for the one before.
    #[inline(always)]
    fn fold_pixel<V: Vector>(&self, start: V, cell: &mut Pixel, take: impl Fn(V, V) -> V) {
        let window = &self.kernel.window;
        let taps = window.taps_inside(1, 0);
        let mut folds = [start; 4];
        if !taps.is_empty() {
            for row in self.rows() {
                let (fours, rest) = row[taps.start - window.pad[1]..taps.end - window.pad[1]].as_chunks::<4>();
                for four in fours {
                    for (fold, item) in folds.iter_mut().zip(four) {
                        *fold = take(*fold, V::read(item));
                    }
                }
                for item in rest {
                    folds[0] = take(folds[0], V::read(item));
                }
            }
        }
        take(take(folds[0], folds[1]), take(folds[2], folds[3])).write(cell);
    }

    /// The rows of the input that the window's rows lie on.
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = &[Pixel]> {
        let window = &self.kernel.window;
        window.taps_inside(0, self.oy).map(|ky| {
            let iy = self.oy * window.stride[0] + ky * window.dilation[0] - window.pad[0];
            &self.x[iy * window.input[1]..][..window.input[1]]
        })
    }
}
