//! [`BatchNormTraining`] and [`BatchNormGradient`]: batch normalization by the statistics of the batch.
//!
//! Each plane of sixteen channels, or of one in row-major images, is reduced by one task; the partial results of all
//! planes of a channel are combined in the order of the images, and every plane is transformed by one task. So the bits do
//! not depend on the number of threads. Images of one pixel have channels as neighbors; there a plane is some of the images with
//! all channels (`rows.rs`).
//!
//! Means and sums of squares are computed in chunks that stay in a cache, the squares from the chunk's own mean, and
//! combined as Chan, Golub and LeVeque describe ("Updating Formulae and a Pairwise Algorithm for Computing Sample
//! Variances", 1979): memory is read once, and nothing cancels.

mod rows;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use self::rows::{GradientRows, gradient_of_rows, normalize_rows, statistics_of_rows, sums_of_rows, total_of_rows};
use crate::conv::ImageLayout;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Elements of a chunk: 32 KB.
const CHUNK: usize = 1 << 13;
/// Elements of the images that have a partial result, if these have one pixel each.
const IMAGES: usize = 1 << 15;

/// The images that both kernels work on: `[batch, channels, plane]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planes {
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Pixels of a channel.
    pub plane: usize,
    /// The order of the elements.
    pub layout: ImageLayout,
}

impl Planes {
    /// Channels whose elements are neighbors.
    pub(crate) fn lanes(&self) -> usize {
        if self.layout == ImageLayout::Blocked { LANES } else { 1 }
    }

    /// Elements of all images; `None` on overflow.
    pub(crate) fn elements(&self) -> Option<usize> {
        product(&[self.batch, self.channels.checked_next_multiple_of(self.lanes())?, self.plane])
    }

    /// The parts that statistics are computed in.
    fn parts(&self) -> Parts {
        let Planes { batch, channels, plane, layout: _ } = *self;
        // Channels are neighbors in both layouts, with padding lanes behind them in blocks.
        let are_rows = plane == 1;
        let lanes = if are_rows {
            channels.checked_next_multiple_of(self.lanes()).unwrap_or(channels).max(1)
        } else {
            self.lanes()
        };
        let images = if are_rows { (IMAGES / lanes).clamp(1, batch.max(1)) } else { 1 };
        Parts { are_rows, lanes, blocks: channels.div_ceil(lanes), images, plane, count: batch.div_ceil(images) }
    }

    /// Calls `reduce(elements, partial)` for each part and stores its two numbers for each lane, then `combine(channel,
    /// partials)` for each channel with the elements of each part and its two numbers.
    pub(crate) fn reduce(
        &self,
        pool: &Pool,
        workspace: &mut [f32],
        reduce: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
        mut combine: impl FnMut(usize, &mut dyn Iterator<Item = (f64, [f32; 2])>),
    ) {
        let parts @ Parts { lanes, blocks, images, .. } = self.parts();
        let end = self.batch * blocks * self.plane * lanes;
        for_each_chunk(pool, workspace, 2 * lanes, &|number, partial| {
            reduce(number * parts.size()..end.min((number + 1) * parts.size()), partial)
        });
        for channel in 0..self.channels {
            let (block, lane) = (channel / lanes, channel % lanes);
            let partial = |part: usize| {
                let at = (part * blocks + block) * 2 * lanes + lane;
                let pixels = images.min(self.batch - part * images) * self.plane;
                (pixels as f64, [workspace[at], workspace[at + lanes]])
            };
            combine(channel, &mut (0..parts.count).map(partial));
        }
    }
}

/// Parts of images whose statistics are computed by one task each.
#[derive(Clone, Copy)]
struct Parts {
    /// Whether channels are neighbors, and a part has all of them.
    are_rows: bool,
    /// Channels of a part, and parts of an image.
    lanes: usize,
    blocks: usize,
    /// Images of a part, and pixels of an image.
    images: usize,
    plane: usize,
    /// Parts that have the same channels.
    count: usize,
}

impl Parts {
    /// Elements of a part; the last one may have fewer.
    fn size(&self) -> usize {
        self.images * self.plane * self.lanes
    }

    /// Numbers for each lane of all partial results, and `more` for each channel.
    fn workspace(&self, more: usize) -> Option<usize> {
        product(&[self.count.checked_mul(2)?.checked_add(more)?, self.blocks, self.lanes])
    }
}

/// `x`, `scale: [channels]`, `bias: [channels]` to `y`, `mean: [channels]` and the biased `variance: [channels]`, with `y =
/// (x - mean) / sqrt(variance + epsilon) * scale + bias`. All `f32`.
///
/// Refuses: nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormTraining {
    /// The extents of `x` and `y`.
    pub planes: Planes,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether negative results become 0.
    pub relu: bool,
}

impl KernelFn for BatchNormTraining {
    const NAME: &'static str = "batch_norm_training";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let (images, channels) = (self.planes.elements(), Some(self.planes.channels));
        let workspace = self.planes.parts().workspace(2);
        let mut sizes = Sizes::with_workspace(&[images, channels, channels], images, workspace, 4)?;
        let bytes = sizes.inputs[1];
        sizes.outputs.extend([bytes, bytes]);
        if images == Some(0) && bytes != 0 {
            return Err(InvalidKernel("the statistics of no elements are undefined"));
        }
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        // An element is read for the last time when its result takes its place.
        input == 0
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: Option<&[f32]> = input_or_in_place(&args, 0);
        let (scale, bias): (&[f32], &[f32]) = (input(&args, 1), input(&args, 2));
        let [y, mean, variance] = args.outputs else { unreachable!("`sizes` states three outputs") };
        let y: &mut [f32] = elements_mut(y);
        let (mean, variance): (&mut [f32], &mut [f32]) = (elements_mut(mean), elements_mut(variance));
        let (planes, isa) = (&self.planes, pool.isa());
        let scratch: &mut [f32] = elements_mut(args.workspace);
        let parts @ Parts { are_rows, lanes, blocks, .. } = planes.parts();
        let (partials, factors) = scratch.split_at_mut(scratch.len() - 2 * blocks * lanes);
        factors.fill(0.0);
        let read = x.unwrap_or(&*y);
        let reduce = |range: Range<usize>, partial: &mut [f32]| {
            let items = &read[range];
            match lanes {
                _ if are_rows => with_vector!(isa, statistics_of_rows(items: &[f32], partial: &mut [f32])),
                1 => with_vector!(isa, row_statistics(items: &[f32], partial: &mut [f32])),
                _ => with_vector!(isa, block_statistics(items: &[f32], partial: &mut [f32])),
            }
        };
        let epsilon = f64::from(self.epsilon);
        planes.reduce(pool, partials, &reduce, |channel, partials| {
            let (mut count, mut center, mut squares) = (0.0, 0.0, 0.0);
            for (size, [own, own_squares]) in partials.map(|(size, partial)| (size, partial.map(f64::from))) {
                let (delta, all) = (own - center, count + size);
                center += delta * size / all;
                squares += own_squares + delta * delta * count * size / all;
                count = all;
            }
            let spread = squares / count;
            (mean[channel], variance[channel]) = (center as f32, spread as f32);
            let (block, lane) = (channel / lanes, channel % lanes);
            factors[2 * block * lanes + lane] = center as f32;
            factors[(2 * block + 1) * lanes + lane] = (f64::from(scale[channel]) / (spread + epsilon).sqrt()) as f32;
        });
        let (factors, size, relu) = (&*factors, parts.size(), self.relu);
        for_each_chunk(pool, y, size, &|number, y| {
            if are_rows {
                let x = x.map(|x| &x[number * size..][..y.len()]);
                let (center, factor) = factors.split_at(lanes);
                let numbers = [center, factor, bias];
                return with_vector!(isa, normalize_rows(x: Option<&[f32]>, y: &mut [f32], numbers: [&[f32]; 3], relu: bool));
            }
            let block = number % blocks;
            let x = x.map(|x| &x[number * size..(number + 1) * size]);
            let [center, factor] = [0, 1].map(|ix| widened(&factors[(2 * block + ix) * lanes..][..lanes]));
            let end = bias.len().min((block + 1) * lanes);
            let shift = widened(&bias[block * lanes..end]);
            let lanes = [center, factor, shift];
            with_vector!(isa, normalize(x: Option<&[f32]>, y: &mut [f32], lanes: [[f32; LANES]; 3], relu: bool));
        });
    }
}

/// Sixteen lanes of a block's, or of one number.
fn widened(items: &[f32]) -> [f32; LANES] {
    let mut lanes = [items[0]; LANES];
    if 1 < items.len() {
        lanes[..items.len()].copy_from_slice(items);
    }
    lanes
}

/// Mean and sum of squared distances of each lane.
#[inline(always)]
fn block_statistics<V: Vector>(items: &[f32], partial: &mut [f32]) {
    let (mut count, mut mean, mut squares) = (0.0, V::zero(), V::zero());
    for chunk in items.chunks(CHUNK) {
        let own = (chunk.len() / LANES) as f32;
        let mut sums = [V::zero(); 4];
        for (ix, item) in chunk.chunks_exact(LANES).enumerate() {
            sums[ix % 4] = sums[ix % 4].add(V::read(item));
        }
        let center = sums[0].add(sums[1]).add(sums[2].add(sums[3])).mul(V::splat(1.0 / own));
        let mut sums = [V::zero(); 4];
        for (ix, item) in chunk.chunks_exact(LANES).enumerate() {
            let distance = V::read(item).sub(center);
            sums[ix % 4] = distance.mul_add(distance, sums[ix % 4]);
        }
        let (delta, all) = (center.sub(mean), count + own);
        mean = delta.mul_add(V::splat(own / all), mean);
        squares = squares.add(sums[0].add(sums[1]).add(sums[2].add(sums[3])));
        squares = delta.mul(delta).mul_add(V::splat(count * own / all), squares);
        count = all;
    }
    mean.write(&mut partial[..LANES]);
    squares.write(&mut partial[LANES..]);
}

/// Mean and sum of squared distances of all elements.
#[inline(always)]
fn row_statistics<V: Vector>(items: &[f32], partial: &mut [f32]) {
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for chunk in items.chunks(CHUNK) {
        let own = chunk.len() as f32;
        let (vectors, rest) = chunk.as_chunks::<LANES>();
        let mut sums = [V::zero(); 4];
        for (ix, item) in vectors.iter().enumerate() {
            sums[ix % 4] = sums[ix % 4].add(V::read(item));
        }
        let sum = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum() + rest.iter().sum::<f32>();
        let center = sum / own;
        let mut sums = [V::zero(); 4];
        for (ix, item) in vectors.iter().enumerate() {
            let distance = V::read(item).sub(V::splat(center));
            sums[ix % 4] = distance.mul_add(distance, sums[ix % 4]);
        }
        let own_squares = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
            + rest.iter().map(|item| (item - center) * (item - center)).sum::<f32>();
        let (delta, all) = (center - mean, count + own);
        mean += delta * (own / all);
        squares += own_squares + delta * delta * (count * own / all);
        count = all;
    }
    partial.copy_from_slice(&[mean, squares]);
}

/// `(x - center) * factor + shift`.
struct Affine<V> {
    center: V,
    factor: V,
    shift: V,
}

// Methods and no closures: one that is not inlined is not compiled for the instruction set.
impl<V: Vector> Affine<V> {
    #[inline(always)]
    fn new([center, factor, shift]: [[f32; LANES]; 3]) -> Affine<V> {
        Affine { center: V::read(&center), factor: V::read(&factor), shift: V::read(&shift) }
    }

    #[inline(always)]
    fn of(&self, x: V) -> V {
        x.sub(self.center).mul_add(self.factor, self.shift)
    }

    /// `x - center`, and `dy` where the result is positive, or everywhere without `relu`.
    #[inline(always)]
    fn slope(&self, dy: V, x: V, relu: bool) -> [V; 2] {
        let distance = x.sub(self.center);
        let dy = match relu {
            true => V::zero().if_less(distance.mul_add(self.factor, self.shift), dy, V::zero()),
            false => dy,
        };
        [distance, dy]
    }
}

/// `y = (x - center) * factor + shift` of a plane; `x` may be `y`.
#[inline(always)]
fn normalize<V: Vector>(x: Option<&[f32]>, y: &mut [f32], lanes: [[f32; LANES]; 3], relu: bool) {
    let affine = Affine::<V>::new(lanes);
    let low = V::splat(if relu { 0.0 } else { f32::NEG_INFINITY });
    let whole = y.len() / LANES * LANES;
    let (vectors, rest) = y.split_at_mut(whole);
    match x {
        Some(x) => {
            for (y, x) in vectors.chunks_exact_mut(LANES).zip(x.chunks_exact(LANES)) {
                affine.of(V::read(x)).at_least(low).write(y);
            }
        }
        None => {
            for y in vectors.chunks_exact_mut(LANES) {
                affine.of(V::read(y)).at_least(low).write(y);
            }
        }
    }
    if !rest.is_empty() {
        let last = V::read_part(x.map_or(&*rest, |x| &x[whole..]), 0.0);
        affine.of(last).at_least(low).write_part(rest);
    }
}

/// `dy`, `x`, `scale: [channels]`, `mean: [channels]` and the biased `variance: [channels]` to `dx`, `dscale: [channels]`
/// and `dbias: [channels]`: the gradient of [`BatchNormTraining`]. With `relu`, `bias: [channels]` is one more operand, from
/// which the sign of each result is computed again. All `f32`.
///
/// Refuses: nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormGradient {
    /// The extents of `dy`, `x` and `dx`.
    pub planes: Planes,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether negative results had become 0.
    pub relu: bool,
}

impl KernelFn for BatchNormGradient {
    const NAME: &'static str = "batch_norm_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let (images, channels) = (self.planes.elements(), Some(self.planes.channels));
        let mut inputs = vec![images, images, channels, channels, channels];
        inputs.extend(self.relu.then_some(channels));
        let workspace = self.planes.parts().workspace(5);
        let mut sizes = Sizes::with_workspace(&inputs, images, workspace, 4)?;
        let bytes = sizes.inputs[2];
        sizes.outputs.extend([bytes, bytes]);
        if images == Some(0) && bytes != 0 {
            return Err(InvalidKernel("the statistics of no elements are undefined"));
        }
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        // An element of `dy` is read for the last time when `dx` takes its place.
        input == 0
    }

    fn run(&self, args: Args, pool: &Pool) {
        let dy: Option<&[f32]> = input_or_in_place(&args, 0);
        let x: &[f32] = input(&args, 1);
        let [scale, mean, variance] = [2, 3, 4].map(|ix| input::<f32>(&args, ix));
        let bias: Option<&[f32]> = self.relu.then(|| input(&args, 5));
        let [dx, dscale, dbias] = args.outputs else { unreachable!("`sizes` states three outputs") };
        let dx: &mut [f32] = elements_mut(dx);
        let (dscale, dbias): (&mut [f32], &mut [f32]) = (elements_mut(dscale), elements_mut(dbias));
        let (planes, isa) = (&self.planes, pool.isa());
        let parts @ Parts { are_rows, lanes, blocks, .. } = planes.parts();
        let scratch: &mut [f32] = elements_mut(args.workspace);
        let (partials, factors) = scratch.split_at_mut(2 * parts.count * blocks * lanes);
        // For each block: center, deviation's inverse, and for ReLU the result's factor and shift; then slopes.
        factors.fill(0.0);
        let at = |channel: usize, row: usize| (channel / lanes * 5 + row) * lanes + channel % lanes;
        for channel in 0..planes.channels {
            let inverse = 1.0 / (f64::from(variance[channel]) + f64::from(self.epsilon)).sqrt();
            factors[at(channel, 0)] = mean[channel];
            factors[at(channel, 1)] = inverse as f32;
            factors[at(channel, 2)] = (f64::from(scale[channel]) * inverse) as f32;
        }
        let bias_of = |block: usize| match bias {
            Some(bias) => widened(&bias[block * lanes..bias.len().min((block + 1) * lanes)]),
            None => [0.0; LANES],
        };
        let of_block =
            |factors: &[f32], block: usize, row: usize| widened(&factors[(block * 5 + row) * lanes..][..lanes]);
        let size = parts.size();
        {
            let (read, factors) = (dy.unwrap_or(&*dx), &*factors);
            let reduce = |range: Range<usize>, partial: &mut [f32]| {
                if are_rows {
                    let (dy, rows) = (&read[range.clone()], GradientRows::new(&x[range], factors, bias));
                    let rows = &rows;
                    return with_vector!(isa, sums_of_rows(rows: &GradientRows<'_>, dy: &[f32], partial: &mut [f32]));
                }
                let block = range.start / size % blocks;
                let plane = GradientPlane {
                    x: &x[range.clone()],
                    center: of_block(factors, block, 0),
                    factor: of_block(factors, block, 2),
                    shift: bias_of(block),
                    relu: bias.is_some(),
                };
                let dy = &read[range];
                let plane = &plane;
                with_vector!(isa, sums_of_plane(plane: &GradientPlane<'_>, dy: &[f32], partial: &mut [f32]));
            };
            let mut all = |channel: usize, partials: &mut dyn Iterator<Item = (f64, [f32; 2])>| {
                let (mut sum, mut product) = (0.0, 0.0);
                for (_, [own, own_product]) in partials {
                    (sum, product) = (sum + f64::from(own), product + f64::from(own_product));
                }
                dbias[channel] = sum as f32;
                dscale[channel] = (product * f64::from(factors[at(channel, 1)])) as f32;
            };
            planes.reduce(pool, partials, &reduce, &mut all);
        }
        let count = (planes.batch * planes.plane) as f64;
        for channel in 0..planes.channels {
            let [inverse, factor] = [1, 2].map(|row| f64::from(factors[at(channel, row)]));
            factors[at(channel, 3)] = (-factor * f64::from(dbias[channel]) / count) as f32;
            factors[at(channel, 4)] = (-factor * inverse * f64::from(dscale[channel]) / count) as f32;
        }
        let factors = &*factors;
        for_each_chunk(pool, dx, size, &|number, dx| {
            let block = number % blocks;
            let range = number * size..number * size + dx.len();
            if are_rows {
                let (rows, dy) = (GradientRows::new(&x[range.clone()], factors, bias), dy.map(|dy| &dy[range]));
                let rows = &rows;
                return with_vector!(isa, gradient_of_rows(rows: &GradientRows<'_>, dy: Option<&[f32]>, dx: &mut [f32]));
            }
            let plane = GradientPlane {
                x: &x[range.clone()],
                center: of_block(factors, block, 0),
                factor: of_block(factors, block, 2),
                shift: bias_of(block),
                relu: bias.is_some(),
            };
            let (plane, dy) = (&plane, dy.map(|dy| &dy[range]));
            let slopes = [3, 4].map(|row| of_block(factors, block, row));
            with_vector!(isa, gradient_of_plane(
                plane: &GradientPlane<'_>, dy: Option<&[f32]>, slopes: [[f32; LANES]; 2], dx: &mut [f32]
            ));
        });
    }
}

/// A plane of `x` and the numbers of its channels.
struct GradientPlane<'a> {
    x: &'a [f32],
    center: [f32; LANES],
    factor: [f32; LANES],
    shift: [f32; LANES],
    relu: bool,
}

/// Sums of `dy` and of `dy * (x - center)`: of each lane of a block, or of all elements.
#[inline(always)]
fn sums_of_plane<V: Vector>(plane: &GradientPlane<'_>, dy: &[f32], partial: &mut [f32]) {
    let affine = Affine::<V>::new([plane.center, plane.factor, plane.shift]);
    let (mut total, mut total_products) = (V::zero(), V::zero());
    // Chunks keep the rounding errors of long sums small.
    for (dy, x) in dy.chunks(CHUNK).zip(plane.x.chunks(CHUNK)) {
        let (mut sums, mut products) = ([V::zero(); 2], [V::zero(); 2]);
        // Two sums each, to hide the latency of additions.
        for (dy, x) in dy.chunks(2 * LANES).zip(x.chunks(2 * LANES)) {
            let vectors = dy.chunks(LANES).zip(x.chunks(LANES));
            for ((dy, x), (sum, product)) in vectors.zip(sums.iter_mut().zip(&mut products)) {
                let [distance, dy] = affine.slope(V::read_part(dy, 0.0), V::read_part(x, 0.0), plane.relu);
                *sum = sum.add(dy);
                *product = dy.mul_add(distance, *product);
            }
        }
        total = total.add(sums[0].add(sums[1]));
        total_products = total_products.add(products[0].add(products[1]));
    }
    match partial.len() {
        2 => partial.copy_from_slice(&[total.sum(), total_products.sum()]),
        _ => {
            total.write(&mut partial[..LANES]);
            total_products.write(&mut partial[LANES..]);
        }
    }
}

/// The numbers of [`gradient_of_plane`].
struct GradientStep<V> {
    affine: Affine<V>,
    offset: V,
    slope: V,
    relu: bool,
}

impl<V: Vector> GradientStep<V> {
    #[inline(always)]
    fn of(&self, dy: V, x: V) -> V {
        let [distance, dy] = self.affine.slope(dy, x, self.relu);
        dy.mul_add(self.affine.factor, distance.mul_add(self.slope, self.offset))
    }
}

/// `dx = dy * factor + slopes[0] + (x - center) * slopes[1]`; `dy` may be `dx`.
#[inline(always)]
fn gradient_of_plane<V: Vector>(
    plane: &GradientPlane<'_>,
    dy: Option<&[f32]>,
    slopes: [[f32; LANES]; 2],
    dx: &mut [f32],
) {
    let step = GradientStep {
        affine: Affine::<V>::new([plane.center, plane.factor, plane.shift]),
        offset: V::read(&slopes[0]),
        slope: V::read(&slopes[1]),
        relu: plane.relu,
    };
    let whole = dx.len() / LANES * LANES;
    let (vectors, rest) = dx.split_at_mut(whole);
    let x = plane.x.chunks_exact(LANES);
    match dy {
        Some(dy) => {
            for ((dx, dy), x) in vectors.chunks_exact_mut(LANES).zip(dy.chunks_exact(LANES)).zip(x) {
                step.of(V::read(dy), V::read(x)).write(dx);
            }
        }
        None => {
            for (dx, x) in vectors.chunks_exact_mut(LANES).zip(x) {
                step.of(V::read(dx), V::read(x)).write(dx);
            }
        }
    }
    if !rest.is_empty() {
        let last = V::read_part(dy.map_or(&*rest, |dy| &dy[whole..]), 0.0);
        step.of(last, V::read_part(&plane.x[whole..], 0.0)).write_part(rest);
    }
}

/// The sum over images and pixels of each channel: `[channels]`, as of a bias's gradient. All `f32`.
///
/// Refuses: nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelSum {
    /// The extents of the operand.
    pub planes: Planes,
}

impl KernelFn for ChannelSum {
    const NAME: &'static str = "channel_sum";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let Planes { channels, .. } = self.planes;
        let partials = self.planes.parts().workspace(0);
        let elements = self.planes.elements();
        let workspace = if elements == Some(0) { Some(0) } else { partials };
        Sizes::with_workspace(&[elements], Some(channels), workspace, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        if x.is_empty() {
            return out.fill(0.0);
        }
        let (isa, are_rows) = (pool.isa(), self.planes.parts().are_rows);
        let reduce = |range: Range<usize>, partial: &mut [f32]| {
            let items = &x[range];
            if are_rows {
                return with_vector!(isa, total_of_rows(items: &[f32], partial: &mut [f32]));
            }
            with_vector!(isa, sum_of_plane(items: &[f32], partial: &mut [f32]));
        };
        self.planes.reduce(pool, elements_mut(args.workspace), &reduce, |channel, partials| {
            out[channel] = partials.map(|(_, [sum, _])| f64::from(sum)).sum::<f64>() as f32;
        });
    }
}

/// The sum of each lane of a block, or of all elements, and as many zeros.
#[inline(always)]
fn sum_of_plane<V: Vector>(items: &[f32], partial: &mut [f32]) {
    let mut total = V::zero();
    for chunk in items.chunks(CHUNK) {
        let mut sums = [V::zero(); 4];
        for items in chunk.chunks(4 * LANES) {
            for (sum, items) in sums.iter_mut().zip(items.chunks(LANES)) {
                *sum = sum.add(V::read_part(items, 0.0));
            }
        }
        total = total.add(sums[0].add(sums[1]).add(sums[2].add(sums[3])));
    }
    partial.fill(0.0);
    match partial.len() {
        2 => partial[0] = total.sum(),
        _ => total.write(&mut partial[..LANES]),
    }
}
