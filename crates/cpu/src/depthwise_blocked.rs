//! [`DepthwiseBlocked`]: convolution where every channel sees only itself, sixteen channels to a register.
//!
//! ```text
//!   columns of one input row      c0  c1  c2  c3  c4 ...        each is loaded once
//!   sums of one output row      s0 = c0 w0 + c1 w1 + c2 w2      fourteen stay in registers,
//!                                   s1 = c1 w0 + c2 w1 + ...    as do the weights of one kernel row
//! ```
//!
//! Rows of the kernel that leave the input are not visited, columns that do are passed over: nothing is added for padding.

use serde::{Deserialize, Serialize};

use crate::blocked::{Pixel, padded, rows_of_a_task};
use crate::epilogue::Epilogue;
use crate::kernel::{Args, KernelFn, Misfit, Sizes, elements_mut, input, input_or_in_place, product};
use crate::shared::for_each_chunk;
use crate::vector::{LANES, Vector, with_vector};
use crate::{Isa, Pool, Window};

/// Convolution of blocked `x: [batch, ceil(channels / 16), rows, columns, 16]` with packed weights, each channel with its
/// own kernel; then by the epilogue a bias and a residual. The output is blocked. All `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthwiseBlocked {
    /// Pictures.
    pub batch: usize,
    /// Channels of a picture.
    pub channels: usize,
    /// Rows and columns.
    pub window: Window,
    /// What happens to each result.
    pub epilogue: Epilogue,
}

impl DepthwiseBlocked {
    /// Weights `[channels, ..kernel]` as the kernel reads them: for each block and kernel cell its sixteen side by side,
    /// those of pads 0.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        let taps = self.window.taps();
        assert_eq!(weights.len(), self.channels * taps, "the weights have the kernel's shape");
        let mut packed = vec![0.0; self.channels.next_multiple_of(LANES) * taps];
        for (channel, cells) in weights.chunks_exact(taps).enumerate() {
            for (tap, &weight) in cells.iter().enumerate() {
                packed[(channel / LANES * taps + tap) * LANES + channel % LANES] = weight;
            }
        }
        packed
    }
}

impl KernelFn for DepthwiseBlocked {
    const NAME: &'static str = "depthwise_blocked";

    fn sizes(&self) -> Result<Sizes, Misfit> {
        self.window.check()?;
        let channels = padded(self.channels).ok_or(Misfit("its sizes overflow"))?;
        let x = product(&[self.batch, channels, self.window.input[0], self.window.input[1]]);
        let weights = product(&[channels, self.window.kernel[0], self.window.kernel[1]]);
        let output = product(&[self.batch, channels, self.window.output[0], self.window.output[1]]);
        let mut inputs = vec![x, weights];
        inputs.extend(self.epilogue.operands(channels, output));
        Sizes::new(&inputs, output, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == 2 + usize::from(self.epilogue.bias)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let planes = Planes {
            window: self.window,
            blocks: self.channels.div_ceil(LANES),
            weights: input(&args, 1),
            bias: self.epilogue.bias.then(|| input(&args, 2)),
            epilogue: &self.epilogue,
        };
        let x: &[Pixel] = input(&args, 0);
        let residual = self.epilogue.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let out: &mut [Pixel] = elements_mut(args.outputs[0]);
        let [rows, columns] = self.window.output;
        let row_bytes = size_of::<Pixel>() * columns.max(self.window.input_plane() / rows);
        let chunk = columns * rows_of_a_task(out.len() / columns, row_bytes);
        for_each_chunk(pool, out, chunk, &|number, cells| {
            let residual = match residual {
                None => Residual::None,
                Some(None) => Residual::InPlace,
                Some(Some(residual)) => Residual::Of(&residual[number * chunk..][..cells.len()]),
            };
            let (first, planes) = (number * chunk / columns, &planes);
            with_vector!(pool.isa(), run_rows(
                planes: &Planes<'_>, x: &[Pixel], first: usize, residual: Residual<'_>, cells: &mut [Pixel]
            ));
        });
    }
}

/// What all planes have in common.
pub(crate) struct Planes<'a> {
    pub(crate) window: Window,
    /// Blocks of channels.
    pub(crate) blocks: usize,
    /// For each block its kernel.
    pub(crate) weights: &'a [Pixel],
    pub(crate) bias: Option<&'a [Pixel]>,
    pub(crate) epilogue: &'a Epilogue,
}

/// What is added to some pixels.
#[derive(Clone, Copy)]
pub(crate) enum Residual<'a> {
    None,
    /// What the output holds.
    InPlace,
    Of(&'a [Pixel]),
}

/// Rows of the output from row `first` on, counted over all planes.
#[inline(always)]
fn run_rows<V: Vector>(planes: &Planes, x: &[Pixel], first: usize, residual: Residual, cells: &mut [Pixel]) {
    let [rows, columns] = planes.window.output;
    let input_plane = planes.window.input_plane();
    for (ix, cells) in cells.chunks_exact_mut(columns).enumerate() {
        let (plane, oy) = ((first + ix) / rows, (first + ix) % rows);
        let residual = match residual {
            Residual::Of(residual) => Residual::Of(&residual[ix * columns..][..columns]),
            other => other,
        };
        let x = &x[plane * input_plane..][..input_plane];
        run_row::<V>(planes, plane % planes.blocks, x, oy, residual, cells);
    }
}

/// One row of one block's output; `x` is the plane it reads.
#[inline(always)]
pub(crate) fn run_row<V: Vector>(
    planes: &Planes,
    block: usize,
    x: &[Pixel],
    oy: usize,
    residual: Residual,
    cells: &mut [Pixel],
) {
    let window = &planes.window;
    let limits = planes.epilogue.limits();
    let row = Row {
        window,
        x,
        oy,
        weights: &planes.weights[block * window.taps()..][..window.taps()],
        bias: planes.bias.map_or([0.0; LANES], |bias| bias[block]),
        residual,
        limits: limits.unwrap_or(Epilogue::UNLIMITED),
    };
    // Sums that leave registers for the weights and an item: 32 of AVX-512, 16 of the others, which need several for
    // one vector.
    match V::ISA {
        Isa::Avx512 => row.run::<V, 14>(cells),
        Isa::Avx2 => row.run::<V, 4>(cells),
        Isa::Portable => row.run::<V, 2>(cells),
    }
    if limits.is_none() {
        planes.epilogue.activate(cells.as_flattened_mut());
    }
}

/// One row of the output.
struct Row<'a> {
    window: &'a Window,
    x: &'a [Pixel],
    oy: usize,
    weights: &'a [Pixel],
    bias: Pixel,
    residual: Residual<'a>,
    limits: [f32; 2],
}

/// Repeats an expression for numbers as the constant `$at`.
macro_rules! unrolled {
    ($at:ident in $($number:literal)* => $body:expr) => {
        $({
            const $at: usize = $number;
            $body
        })*
    };
}

impl Row<'_> {
    /// Goes over the row in tiles of `T` pixels.
    #[inline(always)]
    fn run<V: Vector, const T: usize>(&self, cells: &mut [Pixel]) {
        let window = self.window;
        match (window.dilation[1], window.kernel[1], window.stride[1]) {
            (1, 3, 1) => self.run_columns::<V, 3, 1, T>(cells),
            (1, 3, 2) => self.run_columns::<V, 3, 2, T>(cells),
            (1, 5, 1) => self.run_columns::<V, 5, 1, T>(cells),
            (1, 5, 2) => self.run_columns::<V, 5, 2, T>(cells),
            _ => self.run_taps::<V, T>(cells),
        }
    }

    /// Kernels of `K` columns without holes: each column of the input is loaded once for all sums that it is part of.
    #[inline(always)]
    fn run_columns<V: Vector, const K: usize, const S: usize, const T: usize>(&self, cells: &mut [Pixel]) {
        for (ix, cells) in cells.chunks_mut(T).enumerate() {
            let mut sums = [V::read(&self.bias); T];
            let base = (ix * T * S).wrapping_sub(self.window.pad[1]);
            let end = base.wrapping_add((T - 1) * S + K);
            // Columns in front of the picture have wrapped: they are larger than `end`.
            let inside = base < end && end <= self.window.input[1];
            for (row, weights) in self.kernel_rows() {
                let weights: &[Pixel; K] = weights.try_into().expect("the kernel has so many columns");
                let mut registers = [V::zero(); K];
                for (register, weights) in registers.iter_mut().zip(weights) {
                    *register = V::read(weights);
                }
                if inside {
                    columns::<V, K, S, T>(&row[base..end], 0, &registers, &mut sums);
                } else {
                    columns::<V, K, S, T>(row, base, &registers, &mut sums);
                }
            }
            self.finish(ix * T, sums, cells);
        }
    }

    /// Any kernel: tap by tap.
    #[inline(always)]
    fn run_taps<V: Vector, const T: usize>(&self, cells: &mut [Pixel]) {
        let window = self.window;
        for (ix, cells) in cells.chunks_mut(T).enumerate() {
            let mut sums = [V::read(&self.bias); T];
            for (row, weights) in self.kernel_rows() {
                for (kx, weights) in weights.iter().enumerate() {
                    let weights = V::read(weights);
                    let base = (ix * T * window.stride[1] + kx * window.dilation[1]).wrapping_sub(window.pad[1]);
                    for (at, sum) in sums.iter_mut().enumerate() {
                        if let Some(item) = row.get(base.wrapping_add(at * window.stride[1])) {
                            *sum = V::read(item).mul_add(weights, *sum);
                        }
                    }
                }
            }
            self.finish(ix * T, sums, cells);
        }
    }

    /// The rows of the input that the kernel's rows lie on, and those rows' weights.
    #[inline(always)]
    fn kernel_rows(&self) -> impl Iterator<Item = (&[Pixel], &[Pixel])> {
        let window = self.window;
        window.taps_inside(0, self.oy).map(|ky| {
            let iy = self.oy * window.stride[0] + ky * window.dilation[0] - window.pad[0];
            let row = &self.x[iy * window.input[1]..][..window.input[1]];
            (row, &self.weights[ky * window.kernel[1]..][..window.kernel[1]])
        })
    }

    /// Stores the sums of the pixels from `start` on; there may be fewer cells than sums.
    #[inline(always)]
    fn finish<V: Vector, const T: usize>(&self, start: usize, mut sums: [V; T], cells: &mut [Pixel]) {
        // All loops run over the constant `T`: sums in registers have no index at run time.
        let residual = match self.residual {
            Residual::None => None,
            Residual::InPlace => Some(&*cells),
            Residual::Of(residual) => Some(&residual[start..]),
        };
        if let Some(residual) = residual {
            for (at, sum) in sums.iter_mut().enumerate() {
                if let Some(item) = residual.get(at) {
                    *sum = sum.add(V::read(item));
                }
            }
        }
        let (low, high) = (V::splat(self.limits[0]), V::splat(self.limits[1]));
        for (at, sum) in sums.iter().enumerate() {
            if let Some(cell) = cells.get_mut(at) {
                high.min(low.max(*sum)).write(cell);
            }
        }
    }
}

/// Adds what the columns of `row` from `base` on give to the sums of `T` neighbours; those outside of the row (a
/// wrapped `base` is in front of it) give nothing.
#[inline(always)]
fn columns<V: Vector, const K: usize, const S: usize, const T: usize>(
    row: &[Pixel],
    base: usize,
    weights: &[V; K],
    sums: &mut [V; T],
) {
    unrolled! { AT in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 =>
        if AT < (T - 1) * S + K && let Some(item) = row.get(base.wrapping_add(AT)) {
            let item = V::read(item);
            for (kx, &weight) in weights.iter().enumerate() {
                if kx <= AT && (AT - kx).is_multiple_of(S) && (AT - kx) / S < T {
                    let sum = &mut sums[(AT - kx) / S];
                    *sum = item.mul_add(weight, *sum);
                }
            }
        }
    }
}
