//! [`DepthwiseBlocked`]: convolution where every channel sees only itself, sixteen channels to a register.
//!
//! ```text
//!   columns of one input row      c0  c1  c2  c3  c4 ...        each is loaded once
//!   sums of one output row      s0 = c0 w0 + c1 w1 + c2 w2      fourteen stay in registers,
//!                                   s1 = c1 w0 + c2 w1 + ...    as do the weights of one kernel row
//! ```
//!
//! Rows of the kernel that leave the input are not visited, columns that do are passed over: nothing is added for padding.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::pointwise::Unary;

use crate::conv::Window;
use crate::gemm::epilogue::Epilogue;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::movement::blocked_layout::{Pixel, padded, rows_of_a_task};
use crate::simd::storage::{Item, with_item};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, math};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Products of bytes whose sum an `f32` holds in any case.
const BYTE_TAPS_MAX: usize = (1 << 24) / (255 * 128);

/// Convolution of blocked `x: [batch, ceil(channels / 16), rows, columns, 16]` with packed weights, each channel with its
/// own kernel; then by the epilogue a bias and a residual. The output is blocked. Weights and bias are `f32`, and what a
/// result is before it is rounded.
///
/// Of bytes, weights are whole numbers, the sums are exact, and a scale makes numbers of them.
///
/// Refuses: bytes with a sign, sums of bytes without a scale or with a residual, results of another type than `x` in halves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthwiseBlocked {
    /// Pictures.
    pub batch: usize,
    /// Channels of a picture.
    pub channels: usize,
    /// Rows and columns.
    pub window: Window,
    /// How `x` is stored.
    pub stored: StorageType,
    /// What is subtracted from each byte of `x`; padding counts 0 all the same.
    pub zero_point: u8,
    /// How the residual and the results are stored.
    pub result: StorageType,
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

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.window.check()?;
        let channels = padded(self.channels).ok_or(InvalidKernel("its sizes overflow"))?;
        let x = product(&[self.batch, channels, self.window.input[0], self.window.input[1]]);
        let weights = product(&[channels, self.window.kernel[0], self.window.kernel[1]]);
        let output = product(&[self.batch, channels, self.window.output[0], self.window.output[1]]);
        let bytes = |elements: Option<usize>, stored: StorageType| elements?.checked_mul(stored.size());
        let output = bytes(output, self.result);
        let mut inputs = vec![bytes(x, self.stored), bytes(weights, StorageType::F32)];
        let of_bytes = self.stored.is_byte();
        if self.stored == StorageType::I8 || (of_bytes && self.epilogue.residual) {
            return Err(InvalidKernel("bytes have no sign, and their sums no residual"));
        }
        if of_bytes && BYTE_TAPS_MAX < self.window.taps() {
            return Err(InvalidKernel("sums of so many bytes are not exact"));
        }
        if self.epilogue.scale != of_bytes || (!of_bytes && self.zero_point != 0) {
            return Err(InvalidKernel("sums of bytes have a scale, and no others; nor has anything else a zero point"));
        }
        if self.stored != self.result && (self.stored.is_half() || self.epilogue.residual) {
            return Err(InvalidKernel("results of another type are those of numbers or bytes, and have no residual"));
        }
        inputs.extend(self.epilogue.operand_bytes(Some(channels), output));
        Sizes::new(&inputs, output, 1)
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == self.epilogue.residual_at()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[u8] = input(&args, 0);
        let weights: &[Pixel] = input(&args, 1);
        let scale: Option<&[Pixel]> = self.epilogue.scale.then(|| input(&args, 2));
        let bias: Option<&[Pixel]> = self.epilogue.bias.then(|| input(&args, self.epilogue.bias_at()));
        let residual: Option<Option<&[u8]>> =
            self.epilogue.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let (pixel_in, pixel) = (LANES * self.stored.size(), LANES * self.result.size());
        let limits = self.epilogue.limits();
        // Of `f32` a whole task's results at a time, of others before they are rounded.
        let functions = match limits {
            None if self.result != StorageType::F32 => &self.epilogue.activation[..],
            _ => &[],
        };
        let (window, blocks) = (&self.window, self.channels.div_ceil(LANES));
        let ([rows, columns], taps) = (window.output, window.taps());
        let row_bytes = (pixel * columns).max(pixel_in * window.input_plane() / rows);
        let out: &mut [u8] = args.outputs[0];
        let chunk = rows_of_a_task(out.len() / pixel / columns, row_bytes);
        for_each_chunk(pool, out, chunk * columns * pixel, &|number, mut cells: &mut [u8]| {
            // Rows are counted over all planes; a task may have the end of one plane and the start of the next.
            let mut first = number * chunk;
            while !cells.is_empty() {
                let (plane, row) = (first / rows, first % rows);
                let count = (rows - row).min(cells.len() / pixel / columns);
                let (part, rest) = cells.split_at_mut(count * columns * pixel);
                let residual: Option<*const u8> = residual.map(|residual| match residual {
                    Some(residual) => residual[first * columns * pixel..][..part.len()].as_ptr(),
                    None => part.as_ptr(),
                });
                let block = plane % blocks;
                let plane_bytes = window.input_plane() * pixel_in;
                let rows = Rows {
                    window,
                    stored: self.stored,
                    zero_point: self.zero_point,
                    result: self.result,
                    x: x[plane * plane_bytes..][..plane_bytes].as_ptr(),
                    weights: weights[block * taps..][..taps].as_ptr(),
                    scale: scale.map_or([1.0; LANES], |scale| scale[block]),
                    bias: bias.map_or([0.0; LANES], |bias| bias[block]),
                    residual,
                    limits: limits.unwrap_or(Epilogue::UNLIMITED),
                    functions,
                    rows: row..row + count,
                    out: part.as_mut_ptr(),
                };
                // SAFETY: the plane read, its block's kernel, the cells and their residual are slices of the sizes that
                // the window states, and the cells are this task's alone.
                unsafe { rows.run(pool.isa()) };
                if limits.is_none() && functions.is_empty() {
                    self.epilogue.activate(pool.isa(), elements_mut(part));
                }
                (cells, first) = (rest, first + count);
            }
        });
    }
}

/// Some rows of one block's output.
pub(crate) struct Rows<'a> {
    pub(crate) window: &'a Window,
    /// How pictures are stored, the zero point of those of bytes, and how results are.
    pub(crate) stored: StorageType,
    pub(crate) zero_point: u8,
    pub(crate) result: StorageType,
    /// The plane that is read; only the rows that the kernel reaches from `rows` need to be there.
    pub(crate) x: *const u8,
    /// The block's kernel.
    pub(crate) weights: *const Pixel,
    /// Of sums of bytes.
    pub(crate) scale: Pixel,
    pub(crate) bias: Pixel,
    /// Added to the sums; lies like the output, and may be the output.
    pub(crate) residual: Option<*const u8>,
    /// Limits of the results, the lower first.
    pub(crate) limits: [f32; 2],
    /// What is applied after that.
    pub(crate) functions: &'a [Unary],
    pub(crate) rows: Range<usize>,
    /// Where the first of the rows goes.
    pub(crate) out: *mut u8,
}

impl Rows<'_> {
    /// Computes the rows.
    ///
    /// # Safety
    /// The processor has the family (a pool's it has). The rows of `x` that the window reaches, the kernel and the residual
    /// can be read, the output can be written, and nobody else uses it meanwhile.
    pub(crate) unsafe fn run(&self, isa: Isa) {
        let window = self.window;
        let rows = self;
        // Each is compiled on its own, so that its loops get all registers.
        let near = window.pad[1] < window.kernel[1] && window.dilation[1] == 1;
        with_item!(self.stored, T => match (near, window.kernel[1], window.stride[1]) {
            (true, 3, 1) => with_vector!(isa, three<T>(rows: &Rows<'_>)),
            (true, 3, 2) => with_vector!(isa, three_by_twos<T>(rows: &Rows<'_>)),
            (true, 5, 1) => with_vector!(isa, five<T>(rows: &Rows<'_>)),
            (true, 5, 2) => with_vector!(isa, five_by_twos<T>(rows: &Rows<'_>)),
            _ => with_vector!(isa, any<T>(rows: &Rows<'_>)),
        });
    }
}

/// Repeats an expression for numbers as the constant `$at`: sums in registers have no index at run time.
macro_rules! unrolled {
    ($at:ident in $($number:literal)* => $body:expr) => {
        $({
            const $at: usize = $number;
            $body
        })*
    };
}

#[inline(always)]
fn three<V: Vector, T: Item>(rows: &Rows) {
    holeless::<V, T, 3, 1>(rows);
}

#[inline(always)]
fn three_by_twos<V: Vector, T: Item>(rows: &Rows) {
    holeless::<V, T, 3, 2>(rows);
}

#[inline(always)]
fn five<V: Vector, T: Item>(rows: &Rows) {
    holeless::<V, T, 5, 1>(rows);
}

#[inline(always)]
fn five_by_twos<V: Vector, T: Item>(rows: &Rows) {
    holeless::<V, T, 5, 2>(rows);
}

#[inline(always)]
fn holeless<V: Vector, T: Item, const K: usize, const S: usize>(rows: &Rows) {
    let add = Holeless::<K, S>;
    // Sums that leave registers for the weights and an item: of 32 of AVX-512, of 16 of the others, which need several
    // for one vector.
    match V::ISA {
        Isa::Avx512 => run::<V, T, 14>(rows, add),
        Isa::Avx2 => run::<V, T, 4>(rows, add),
        Isa::Neon => run::<V, T, 4>(rows, add),
        Isa::Portable => run::<V, T, 2>(rows, add),
    }
}

#[inline(always)]
fn any<V: Vector, T: Item>(rows: &Rows) {
    match V::ISA {
        Isa::Avx512 => run::<V, T, 14>(rows, AnyKernel(rows.window)),
        Isa::Avx2 => run::<V, T, 4>(rows, AnyKernel(rows.window)),
        Isa::Neon => run::<V, T, 6>(rows, AnyKernel(rows.window)),
        Isa::Portable => run::<V, T, 2>(rows, AnyKernel(rows.window)),
    }
}

/// Goes over rows in tiles of `N` sums. Called by [`Rows::run`] alone, whose callers promise that all addresses hold.
#[inline(always)]
fn run<V: Vector, T: Item, const N: usize>(task: &Rows, kernel: impl KernelRow) {
    let window = task.window;
    let ([_, width], [_, columns], [_, kernel_columns]) = (window.input, window.output, window.kernel);
    let (stride, pad) = (window.stride[1], window.pad[1]);
    let (low, high) = (V::splat(task.limits[0]), V::splat(task.limits[1]));
    let reach = (N - 1) * stride + (kernel_columns - 1) * window.dilation[1] + 1;
    let mut at = 0;
    for oy in task.rows.clone() {
        let taps = window.taps_inside(0, oy);
        let iy = (oy * window.stride[0] + taps.start * window.dilation[0]).wrapping_sub(window.pad[0]);
        let x = task.x.cast::<[T; LANES]>().wrapping_add(iy.wrapping_mul(width));
        let row_weights = task.weights.wrapping_add(taps.start * kernel_columns);
        for ox in (0..columns).step_by(N) {
            let base = (ox * stride).wrapping_sub(pad);
            // A base in front of the picture has wrapped.
            let inside = base <= width && reach <= width - base;
            let (mut source, mut weights) = (x, row_weights);
            let is_byte = T::STORED.is_byte();
            let zero = V::splat(f32::from(task.zero_point));
            let mut sums = [if is_byte { V::zero() } else { V::read(&task.bias) }; N];
            for _ in taps.clone() {
                // SAFETY: the row is one that the kernel's row lies on, and its items are read inside of it alone.
                unsafe {
                    match inside {
                        true => kernel.add::<V, T, N, true>(source, zero, base, width, weights, &mut sums),
                        false => kernel.add::<V, T, N, false>(source, zero, base, width, weights, &mut sums),
                    }
                }
                source = source.wrapping_add(window.dilation[0] * width);
                weights = weights.wrapping_add(kernel_columns);
            }
            let count = N.min(columns - ox);
            if is_byte {
                let (scale, bias) = (V::read(&task.scale), V::read(&task.bias));
                for sum in &mut sums {
                    *sum = sum.mul_add(scale, bias);
                }
            }
            if let Some(residual) = task.residual {
                let residual = residual.cast::<T>().wrapping_add(at * LANES);
                unrolled! { IX in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 =>
                    if IX < N && IX < count {
                        // SAFETY: the residual has an item for each output.
                        sums[IX] = sums[IX].add(unsafe { T::load(residual.add(IX * LANES)) });
                    }
                }
            }
            if !task.functions.is_empty() {
                sums = applied(task.functions, sums);
            }
            for sum in &mut sums {
                *sum = sum.at_least(low).at_most(high);
            }
            // SAFETY: there are `count` outputs more in this row.
            unsafe {
                match task.result == T::STORED {
                    true => store_some::<V, T, N>(&sums, count, task.out.cast::<T>().add(at * LANES)),
                    false => with_item!(task.result, U => {
                        store_some::<V, U, N>(&sums, count, task.out.cast::<U>().add(at * LANES));
                    }),
                }
            };
            at += count;
        }
    }
}

/// The first `count` of some items, one behind the other.
///
/// # Safety
/// There is room for them at `out`.
#[inline(always)]
unsafe fn store_some<V: Vector, T: Item, const N: usize>(items: &[V; N], count: usize, out: *mut T) {
    unrolled! { IX in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 =>
        if IX < N && IX < count {
            // SAFETY: the caller's promise.
            unsafe { T::store(items[IX], out.add(IX * LANES)) };
        }
    }
}

/// Functions of sums, by way of memory.
#[inline(always)]
fn applied<V: Vector, const N: usize>(functions: &[Unary], mut sums: [V; N]) -> [V; N] {
    let mut cells = [[0.0; LANES]; N];
    cells.iter_mut().zip(sums).for_each(|(cell, sum)| sum.write(cell));
    functions.iter().for_each(|&function| math::apply(V::ISA, function, cells.as_flattened_mut()));
    sums.iter_mut().zip(&cells).for_each(|(sum, cell)| *sum = V::read(cell));
    sums
}

/// An item without the zero point, which bytes alone have.
#[inline(always)]
fn centred<V: Vector, T: Item>(item: V, zero: V) -> V {
    if T::STORED.is_byte() { item.sub(zero) } else { item }
}

/// How a row of the kernel is added to sums of neighbours.
trait KernelRow: Copy {
    /// Adds what one row of the kernel gives to the sums. The first tap of the first sum lies on column `base` of the row
    /// at `row` (in front of it where `base` has wrapped); columns outside of its `width` give nothing.
    ///
    /// # Safety
    /// The row and the weights can be read. `INSIDE`: no column is outside.
    unsafe fn add<V: Vector, T: Item, const N: usize, const INSIDE: bool>(
        self,
        row: *const [T; LANES],
        zero: V,
        base: usize,
        width: usize,
        weights: *const Pixel,
        sums: &mut [V; N],
    );
}

/// Kernels of `K` columns without holes, in steps of `S`, with less padding than `K`: each column of the input is loaded
/// once for all its sums.
#[derive(Clone, Copy)]
struct Holeless<const K: usize, const S: usize>;

impl<const K: usize, const S: usize> KernelRow for Holeless<K, S> {
    #[inline(always)]
    #[expect(clippy::absurd_extreme_comparisons, reason = "one of the unrolled columns is 0")]
    unsafe fn add<V: Vector, T: Item, const N: usize, const INSIDE: bool>(
        self,
        row: *const [T; LANES],
        zero: V,
        base: usize,
        width: usize,
        weights: *const Pixel,
        sums: &mut [V; N],
    ) {
        let mut kernel = [V::zero(); K];
        for (ix, register) in kernel.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *register = unsafe { V::load(weights.add(ix).cast()) };
        }
        let source = row.wrapping_add(base);
        // Columns from `start` to `end` lie in the row; a base in front of it is less than a kernel away.
        let (start, end) = (base.wrapping_neg() as isize, (width as isize).wrapping_sub(base as isize));
        unrolled! { AT in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 =>
            if AT < (N - 1) * S + K {
                let lies = (K - 1 <= AT || start <= AT as isize) && (AT as isize) < end;
                if INSIDE || lies {
                    // SAFETY: the column lies in the row, as the comparisons say or the caller.
                    let item = centred::<V, T>(unsafe { T::load(source.wrapping_add(AT).cast()) }, zero);
                    for (kx, &weight) in kernel.iter().enumerate() {
                        if kx <= AT && (AT - kx).is_multiple_of(S) && (AT - kx) / S < N {
                            let sum = &mut sums[(AT - kx) / S];
                            *sum = item.mul_add(weight, *sum);
                        }
                    }
                }
            }
        }
    }
}

/// Any kernel: tap by tap.
#[derive(Clone, Copy)]
struct AnyKernel<'a>(&'a Window);

impl KernelRow for AnyKernel<'_> {
    #[inline(always)]
    unsafe fn add<V: Vector, T: Item, const N: usize, const INSIDE: bool>(
        self,
        row: *const [T; LANES],
        zero: V,
        base: usize,
        width: usize,
        weights: *const Pixel,
        sums: &mut [V; N],
    ) {
        let window = self.0;
        for kx in 0..window.kernel[1] {
            // SAFETY: the caller's promise.
            let weight = unsafe { V::load(weights.add(kx).cast()) };
            let mut column = base.wrapping_add(kx * window.dilation[1]);
            for sum in sums.iter_mut() {
                if INSIDE || column < width {
                    // SAFETY: the column lies in the row.
                    let item = centred::<V, T>(unsafe { T::load(row.add(column).cast()) }, zero);
                    *sum = item.mul_add(weight, *sum);
                }
                column = column.wrapping_add(window.stride[1]);
            }
        }
    }
}
