//! [`DepthwiseBlocked`]: convolution of channels in blocks of sixteen, each by itself or in groups of a few.
//!
//! ```text
//!   columns of one input row      c0  c1  c2  c3  c4 ...        each is loaded once
//!   sums of one output row      s0 = c0 w0 + c1 w1 + c2 w2      fourteen stay in registers,
//!                                   s1 = c1 w0 + c2 w1 + ...    as do the weights of one kernel row
//! ```
//!
//! Rows and columns of the kernel on padding are skipped. For groups of several channels the same is done for each member of a
//! group, with that member in all lanes of its group:
//!
//! ```text
//!   lanes of an item              a0 a1 a2 a3  b0 b1 b2 b3 ...  groups of four
//!   member 0                      a0 a0 a0 a0  b0 b0 b0 b0 ...  times the weights of each output channel for it
//!   member 1                      a1 a1 a1 a1  b1 b1 b1 b1 ...
//! ```

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::Unary;

use crate::conv::Window;
use crate::conv::dynamic::WeightView;
use crate::gemm::epilogue::Epilogue;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::movement::blocked_layout::{Pixel, padded, rows_of_a_task};
use crate::simd::storage::{Item, with_item};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, math};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// The most input or output channels of a group: half a block, so that all inputs of a half are in one half.
const MEMBERS_MAX: usize = LANES / 2;

/// The most int8 products whose sum is always exact in `f32`.
const BYTE_TAPS_MAX: usize = (1 << 24) / (255 * 128);

/// Convolution of blocked `x: [batch, ceil(in_channels / 16), rows, columns, 16]` with packed weights in groups of few
/// channels, usually of one; then by the epilogue a bias and a residual. The output is blocked. Weights and bias are `f32`;
/// results are rounded after the epilogue.
///
/// Int8: `x` is `u8`, weights are integers, sums are exact, and a scale dequantizes them.
///
/// Refuses: `i8` inputs; int8 without a scale or with a residual; half-precision `x` with results of another type; groups of
/// several channels unless their numbers are powers of two up to 8, with at least as many outputs as inputs, all `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthwiseBlocked {
    /// Images.
    pub batch: usize,
    /// Output channels: a multiple of those of a group.
    pub channels: usize,
    /// Input and output channels of a group.
    pub group: [usize; 2],
    /// Rows and columns.
    pub window: Window,
    /// Storage type of `x`.
    pub stored: StorageType,
    /// Subtracted from each byte of `x`. Padding counts as 0 all the same.
    pub zero_point: u8,
    /// Storage type of residual and results.
    pub result: StorageType,
    /// Applied to each result.
    pub epilogue: Epilogue,
}

impl DepthwiseBlocked {
    /// How many products each load of an input column serves.
    pub fn products_of_a_column(&self) -> usize {
        let Window { kernel: [_, columns], stride: [_, stride], .. } = self.window;
        if is_holeless(&self.window, self.group, self.stored) { columns.div_ceil(stride) } else { 1 }
    }

    /// Weights `[channels, group inputs, ..kernel]` in the order in which the kernel reads them: for each block, row of taps,
    /// input of a group, and column of taps its sixteen, 0 in padded lanes.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        let ([_, columns], [ins, _]) = (self.window.kernel, self.group);
        let taps = self.window.taps();
        let cells = ins * taps;
        assert_eq!(weights.len(), self.channels * cells, "the weights must have the kernel's shape");
        let mut packed = vec![0.0; self.channels.next_multiple_of(LANES) * cells];
        for (channel, weights) in weights.chunks_exact(cells).enumerate() {
            for (ix, &weight) in weights.iter().enumerate() {
                let (member, row, column) = (ix / taps, ix % taps / columns, ix % columns);
                let cell = (row * ins + member) * columns + column;
                packed[(channel / LANES * cells + cell) * LANES + channel % LANES] = weight;
            }
        }
        packed
    }

    /// The same in any order, in a run.
    ///
    /// # Panics
    /// Packed weights or weights of another number.
    pub(crate) fn pack_view(&self, weights: WeightView<'_>, packed: &mut [f32], pool: &Pool) {
        let ([_, columns], [ins, outs]) = (self.window.kernel, self.group);
        let cells = ins * self.window.taps();
        assert_eq!(packed.len(), self.channels.next_multiple_of(LANES) * cells, "the packed weights have their size");
        for_each_chunk(pool, packed, cells * LANES, &|block, packed| {
            for (cell, lanes) in packed.chunks_exact_mut(LANES).enumerate() {
                let (rest, column) = (cell / columns, cell % columns);
                let (row, member) = (rest / ins, rest % ins);
                let at = weights.tap(0, row, column);
                for (channel, lane) in (block * LANES..).zip(lanes) {
                    let pair = weights.pair(channel / outs, channel % outs, member);
                    *lane = match pair.filter(|_| channel < self.channels) {
                        Some(pair) => weights.items[at + pair],
                        None => 0.0,
                    };
                }
            }
        });
    }
}

impl KernelFn for DepthwiseBlocked {
    const NAME: &'static str = "depthwise_blocked";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.window.check()?;
        let [ins, outs] = self.group;
        let fits = |members: usize| members.is_power_of_two() && members <= MEMBERS_MAX;
        if !fits(ins) || !fits(outs) || outs < ins || !self.channels.is_multiple_of(outs) {
            return Err(InvalidKernel("`group` must have powers of two up to 8, its outputs must divide the channels"));
        }
        if self.group != [1, 1] && [self.stored, self.result] != [StorageType::F32; 2] {
            return Err(InvalidKernel("groups of several channels must be f32"));
        }
        let overflow = InvalidKernel("sizes must not overflow");
        let channels = padded(self.channels).ok_or(overflow)?;
        let in_channels = padded(self.channels / outs * ins).ok_or(overflow)?;
        let x = product(&[self.batch, in_channels, self.window.input[0], self.window.input[1]]);
        let weights = product(&[channels, ins, self.window.kernel[0], self.window.kernel[1]]);
        let output = product(&[self.batch, channels, self.window.output[0], self.window.output[1]]);
        let bytes = |elements: Option<usize>, stored: StorageType| elements?.checked_mul(stored.size());
        let output = bytes(output, self.result);
        let mut inputs: SmallVec<[Option<usize>; 8]> =
            SmallVec::from_slice(&[bytes(x, self.stored), bytes(weights, StorageType::F32)]);
        let of_bytes = self.stored.is_byte();
        if self.stored == StorageType::I8 {
            return Err(InvalidKernel("int8 input must be u8"));
        }
        self.epilogue.check_no_int8_residual(self.stored)?;
        if of_bytes && BYTE_TAPS_MAX < self.window.taps() {
            return Err(InvalidKernel("kernels of u8 input must have so few taps that sums are exact"));
        }
        if self.epilogue.scale != of_bytes || (!of_bytes && self.zero_point != 0) {
            return Err(InvalidKernel("u8 input requires a scale; only it may have a scale and a zero point"));
        }
        if self.stored != self.result && (self.stored.is_half() || self.epilogue.residual) {
            return Err(InvalidKernel("results of another type require f32 or u8 input and no residual"));
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
        // `f32` results a task at a time, others before they are rounded.
        let functions = match limits {
            None if self.result != StorageType::F32 => &self.epilogue.activation[..],
            _ => &[],
        };
        let (window, blocks, [ins, outs]) = (&self.window, self.channels.div_ceil(LANES), self.group);
        let in_blocks = (self.channels / outs * ins).div_ceil(LANES);
        let ([rows, columns], taps) = (window.output, ins * window.taps());
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
                let (image, block) = (plane / blocks, plane % blocks);
                // A group has as many outputs as inputs or more, so that a block's inputs are in one block.
                let first_in = block * LANES / outs * ins;
                let in_plane = image * in_blocks + first_in / LANES;
                let plane_bytes = window.input_plane() * pixel_in;
                let rows = Rows {
                    window,
                    stored: self.stored,
                    zero_point: self.zero_point,
                    result: self.result,
                    x: x[in_plane * plane_bytes..][..plane_bytes].as_ptr(),
                    group: self.group,
                    first_lane: first_in % LANES,
                    weights: weights[block * taps..][..taps].as_ptr(),
                    scale: scale.map_or([1.0; LANES], |scale| scale[block]),
                    bias: bias.map_or([0.0; LANES], |bias| bias[block]),
                    residual,
                    limits: limits.unwrap_or(Epilogue::UNLIMITED),
                    functions,
                    rows: row..row + count,
                    out: part.as_mut_ptr(),
                };
                // SAFETY: the plane, its block's kernel, the cells and their residual are slices of the sizes that the
                // window states, and the cells belong to this task.
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
    /// Storage type of images, zero point of int8 ones, and storage type of results.
    pub(crate) stored: StorageType,
    pub(crate) zero_point: u8,
    pub(crate) result: StorageType,
    /// The plane that is read; it needs only the rows that the window reaches from `rows`.
    pub(crate) x: *const u8,
    /// Input and output channels of a group, and the input lane of the block's first group.
    pub(crate) group: [usize; 2],
    pub(crate) first_lane: usize,
    /// The block's kernel.
    pub(crate) weights: *const Pixel,
    /// Of int8 sums.
    pub(crate) scale: Pixel,
    pub(crate) bias: Pixel,
    /// Added to the sums; has the layout of the output, and may be the output.
    pub(crate) residual: Option<*const u8>,
    /// Bounds of the results, the lower first.
    pub(crate) limits: [f32; 2],
    /// Functions after the bounds.
    pub(crate) functions: &'a [Unary],
    pub(crate) rows: Range<usize>,
    /// Address of the first of the rows.
    pub(crate) out: *mut u8,
}

impl Rows<'_> {
    /// Computes the rows.
    ///
    /// # Safety
    /// The processor has the instruction set (a pool's always). The rows of `x` that the window reaches, the kernel and
    /// the residual can be read, the output can be written, and no other task uses it meanwhile.
    pub(crate) unsafe fn run(&self, isa: Isa) {
        let window = self.window;
        let rows = self;
        // Each is compiled on its own, so that its loops have all registers.
        let is_holeless = is_holeless(window, self.group, self.stored);
        if self.group != [1, 1] {
            return match (is_holeless, window.kernel[1], window.stride[1]) {
                (true, 3, 1) => with_vector!(isa, grouped_three(rows: &Rows<'_>)),
                (true, 3, 2) => with_vector!(isa, grouped_three_by_twos(rows: &Rows<'_>)),
                (true, 5, 1) => with_vector!(isa, grouped_five(rows: &Rows<'_>)),
                _ => with_vector!(isa, grouped_any(rows: &Rows<'_>)),
            };
        }
        if is_holeless && window.kernel[1] == 7 {
            return with_vector!(isa, seven(rows: &Rows<'_>));
        }
        with_item!(self.stored, T => match (is_holeless, window.kernel[1], window.stride[1]) {
            (true, 3, 1) => with_vector!(isa, three<T>(rows: &Rows<'_>)),
            (true, 3, 2) => with_vector!(isa, three_by_twos<T>(rows: &Rows<'_>)),
            (true, 5, 1) => with_vector!(isa, five<T>(rows: &Rows<'_>)),
            (true, 5, 2) => with_vector!(isa, five_by_twos<T>(rows: &Rows<'_>)),
            _ => with_vector!(isa, any<T>(rows: &Rows<'_>)),
        });
    }

    /// The lane of an input block that each lane of the output block multiplies, by member of the group.
    #[inline(always)]
    fn lanes_of(&self, member: usize) -> [u8; LANES] {
        let ([ins, outs], mut lanes) = (self.group, [0; LANES]);
        for (lane, from) in lanes.iter_mut().enumerate() {
            *from = (self.first_lane + lane / outs * ins + member) as u8;
        }
        lanes
    }
}

/// Whether rows are computed by [`Holeless`], which is compiled for common kernels only.
fn is_holeless(window: &Window, group: [usize; 2], stored: StorageType) -> bool {
    let [kernel, stride, pad, dilation] = [window.kernel, window.stride, window.pad, window.dilation].map(|of| of[1]);
    let are_single = group == [1, 1];
    let is_common = match (kernel, stride) {
        (3, 1 | 2) | (5, 1) => true,
        (5, 2) => are_single,
        (7, 1) => are_single && stored == StorageType::F32,
        _ => false,
    };
    is_common && pad < kernel && dilation == 1
}

/// Repeats an expression for the constants `$at`: sums in registers cannot be indexed at run time.
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
fn seven<V: Vector>(rows: &Rows) {
    holeless::<V, f32, 7, 1>(rows);
}

#[inline(always)]
fn holeless<V: Vector, T: Item, const K: usize, const S: usize>(rows: &Rows) {
    let add = Holeless::<K, S>;
    let items = AllLanes(V::splat(f32::from(rows.zero_point)));
    // Sums that leave registers for the weights and an item: of 32 of AVX-512, of 16 of AVX2 for half of the lanes at a time.
    match V::ISA {
        Isa::Avx512 => run::<V, T, _, 14>(rows, add, &[items]),
        Isa::Avx2 => run::<V, T, _, 7>(rows, add, &[items]),
        Isa::Neon => run::<V, T, _, 4>(rows, add, &[items]),
        Isa::Portable => run::<V, T, _, 2>(rows, add, &[items]),
    }
}

#[inline(always)]
fn any<V: Vector, T: Item>(rows: &Rows) {
    let add = AnyKernel(rows.window);
    let items = AllLanes(V::splat(f32::from(rows.zero_point)));
    match V::ISA {
        Isa::Avx512 => run::<V, T, _, 14>(rows, add, &[items]),
        Isa::Avx2 => run::<V, T, _, 4>(rows, add, &[items]),
        Isa::Neon => run::<V, T, _, 6>(rows, add, &[items]),
        Isa::Portable => run::<V, T, _, 2>(rows, add, &[items]),
    }
}

#[inline(always)]
fn grouped_three<V: Vector>(rows: &Rows) {
    grouped::<V, _>(rows, Holeless::<3, 1>);
}

#[inline(always)]
fn grouped_three_by_twos<V: Vector>(rows: &Rows) {
    grouped::<V, _>(rows, Holeless::<3, 2>);
}

#[inline(always)]
fn grouped_five<V: Vector>(rows: &Rows) {
    grouped::<V, _>(rows, Holeless::<5, 1>);
}

#[inline(always)]
fn grouped_any<V: Vector>(rows: &Rows) {
    grouped::<V, _>(rows, AnyKernel(rows.window));
}

#[inline(always)]
fn grouped<V: Vector, K: KernelRow>(rows: &Rows, kernel: K) {
    let mut members = [Member::<V>(V::choice(rows.lanes_of(0))); MEMBERS_MAX];
    let members = &mut members[..rows.group[0]];
    for (ix, member) in members.iter_mut().enumerate() {
        *member = Member(V::choice(rows.lanes_of(ix)));
    }
    match V::ISA {
        Isa::Avx512 => run::<V, f32, _, 14>(rows, kernel, members),
        Isa::Avx2 if K::BY_PARTS => run::<V, f32, _, 7>(rows, kernel, members),
        Isa::Avx2 => run::<V, f32, _, 4>(rows, kernel, members),
        Isa::Neon => run::<V, f32, _, 4>(rows, kernel, members),
        Isa::Portable => run::<V, f32, _, 2>(rows, kernel, members),
    }
}

/// Computes rows in tiles of `N` sums, from the items of each member of a group. Called by [`Rows::run`] only, whose caller
/// promises valid addresses.
#[inline(always)]
fn run<V: Vector, T: Item, K: KernelRow, const N: usize>(task: &Rows, kernel: K, members: &[impl Items<V>]) {
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
        let row_weights = task.weights.wrapping_add(taps.start * members.len() * kernel_columns);
        for ox in (0..columns).step_by(N) {
            let base = (ox * stride).wrapping_sub(pad);
            // A base in front of the image has wrapped.
            let inside = base <= width && reach <= width - base;
            let is_byte = T::STORED.is_byte();
            let mut sums = [if is_byte { V::zero() } else { V::read(&task.bias) }; N];
            unrolled! { PART in 0 1 => if PART < if K::BY_PARTS { V::PARTS } else { 1 } {
                let (mut source, mut weights) = (x, row_weights);
                for _ in taps.clone() {
                    for &items in members {
                        // SAFETY: the row is in the image, and only its items are read.
                        unsafe {
                            match inside {
                                true => kernel.add::<V, T, N, true, PART>(source, items, base, width, weights, &mut sums),
                                false => kernel.add::<V, T, N, false, PART>(source, items, base, width, weights, &mut sums),
                            }
                        }
                        weights = weights.wrapping_add(kernel_columns);
                    }
                    source = source.wrapping_add(window.dilation[0] * width);
                }
            } }
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
                sums = applied(task.functions, task.result, sums);
            }
            for sum in &mut sums {
                *sum = sum.at_least(low).at_most(high);
            }
            // SAFETY: the row has `count` more outputs.
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

/// Stores the first `count` of some items consecutively.
///
/// # Safety
/// `out` has room for them.
#[inline(always)]
unsafe fn store_some<V: Vector, T: Item, const N: usize>(items: &[V; N], count: usize, out: *mut T) {
    unrolled! { IX in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 =>
        if IX < N && IX < count {
            // SAFETY: the caller's promise.
            unsafe { T::store(items[IX], out.add(IX * LANES)) };
        }
    }
}

/// Applies functions to sums through memory, for results of a type.
#[inline(always)]
fn applied<V: Vector, const N: usize>(functions: &[Unary], stored: StorageType, mut sums: [V; N]) -> [V; N] {
    let mut cells = [[0.0; LANES]; N];
    cells.iter_mut().zip(sums).for_each(|(cell, sum)| sum.write(cell));
    for &function in functions {
        math::apply_before_rounding(V::ISA, stored, function, cells.as_flattened_mut());
    }
    sums.iter_mut().zip(&cells).for_each(|(sum, cell)| *sum = V::read(cell));
    sums
}

/// The lanes of items that are multiplied.
trait Items<V: Vector>: Copy {
    /// Loads those of an item.
    ///
    /// # Safety
    /// `from` must be readable for 16 elements.
    unsafe fn load<T: Item>(self, from: *const [T; LANES]) -> V;
}

/// All lanes, minus the zero point, which only int8 has.
#[derive(Clone, Copy)]
struct AllLanes<V>(V);

impl<V: Vector> Items<V> for AllLanes<V> {
    #[inline(always)]
    unsafe fn load<T: Item>(self, from: *const [T; LANES]) -> V {
        // SAFETY: the caller's promise.
        let item: V = unsafe { T::load(from.cast()) };
        if T::STORED.is_byte() { item.sub(self.0) } else { item }
    }
}

/// A member of each group, in all lanes of the group. Items are `f32`.
#[derive(Clone, Copy)]
struct Member<V: Vector>(V::Choice);

impl<V: Vector> Items<V> for Member<V> {
    #[inline(always)]
    unsafe fn load<T: Item>(self, from: *const [T; LANES]) -> V {
        // SAFETY: the caller's promise; no other items have groups of several members.
        unsafe { V::load_chosen(from.cast(), self.0) }
    }
}

/// Adds a row of the kernel to neighboring sums.
trait KernelRow: Copy {
    /// Whether [`KernelRow::add`] adds to one part of the sums, so that it is called for each; otherwise `PART` is 0.
    const BY_PARTS: bool;

    /// Adds the products of one row of the kernel to the sums. The first tap of the first sum is at column `base` of
    /// the row at `row` (in front of it if `base` has wrapped); columns outside of `width` are skipped.
    ///
    /// # Safety
    /// The row and the weights can be read. `INSIDE`: no column is outside.
    unsafe fn add<V: Vector, T: Item, const N: usize, const INSIDE: bool, const PART: usize>(
        self,
        row: *const [T; LANES],
        items: impl Items<V>,
        base: usize,
        width: usize,
        weights: *const Pixel,
        sums: &mut [V; N],
    );
}

/// Kernels of `K` columns without dilation, with stride `S` and less padding than `K`: each column of the input is
/// loaded once for all its sums.
#[derive(Clone, Copy)]
struct Holeless<const K: usize, const S: usize>;

impl<const K: usize, const S: usize> KernelRow for Holeless<K, S> {
    const BY_PARTS: bool = true;

    #[inline(always)]
    #[expect(clippy::absurd_extreme_comparisons, reason = "one of the unrolled columns is 0")]
    unsafe fn add<V: Vector, T: Item, const N: usize, const INSIDE: bool, const PART: usize>(
        self,
        row: *const [T; LANES],
        items: impl Items<V>,
        base: usize,
        width: usize,
        weights: *const Pixel,
        sums: &mut [V; N],
    ) {
        let mut kernel = [V::zero(); K];
        for (ix, weight) in kernel.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *weight = unsafe { V::load(weights.add(ix).cast()) };
        }
        let source = row.wrapping_add(base);
        // Columns from `start` to `end` are in the row; a base in front of it is less than a kernel away.
        let (start, end) = (base.wrapping_neg() as isize, (width as isize).wrapping_sub(base as isize));
        unrolled! { AT in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 =>
            if AT < (N - 1) * S + K {
                let lies = (K - 1 <= AT || start <= AT as isize) && (AT as isize) < end;
                if INSIDE || lies {
                    // SAFETY: the column is in the row, by the comparisons or the caller's promise.
                    let item = unsafe { items.load(source.wrapping_add(AT)) };
                    for (kx, &weight) in kernel.iter().enumerate() {
                        if kx <= AT && (AT - kx).is_multiple_of(S) && (AT - kx) / S < N {
                            let sum = &mut sums[(AT - kx) / S];
                            *sum = item.mul_add_part::<PART>(weight, *sum);
                        }
                    }
                }
            }
        }
    }
}

/// Any kernel, tap by tap.
#[derive(Clone, Copy)]
struct AnyKernel<'a>(&'a Window);

impl KernelRow for AnyKernel<'_> {
    const BY_PARTS: bool = false;

    #[inline(always)]
    unsafe fn add<V: Vector, T: Item, const N: usize, const INSIDE: bool, const PART: usize>(
        self,
        row: *const [T; LANES],
        items: impl Items<V>,
        base: usize,
        width: usize,
        weights: *const Pixel,
        sums: &mut [V; N],
    ) {
        let window = self.0;
        for kx in 0..window.kernel[1] {
            // SAFETY: the caller's promise.
            let weight: V = unsafe { V::load(weights.add(kx).cast()) };
            let mut column = base.wrapping_add(kx * window.dilation[1]);
            for sum in sums.iter_mut() {
                if INSIDE || column < width {
                    // SAFETY: the column is in the row.
                    let item = unsafe { items.load(row.add(column)) };
                    *sum = item.mul_add(weight, *sum);
                }
                column = column.wrapping_add(window.stride[1]);
            }
        }
    }
}
