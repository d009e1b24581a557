//! Parts of images of one pixel, `[images, channels]`: lanes are neighboring channels.

use super::{Affine, CHUNK, GradientStep};
use crate::simd::vector::{LANES, Vector};

/// Images that are read twice while they are in a cache.
fn rows_of_a_chunk(channels: usize) -> usize {
    (CHUNK / channels).max(1)
}

/// Sixteen elements, or as many as there are. Those behind the channels of a row are not used.
#[inline(always)]
fn read_at<V: Vector>(items: &[f32], at: usize) -> V {
    V::read_part(&items[at..], 0.0)
}

/// The sum over the rows of sixteen channels from `first` on.
#[inline(always)]
fn sum_at<V: Vector>(items: &[f32], channels: usize, first: usize) -> V {
    let mut sum = V::zero();
    for row in (0..items.len()).step_by(channels) {
        sum = sum.add(read_at::<V>(items, row + first));
    }
    sum
}

/// The mean and the sum of squared distances of each channel: `partial` has the means, then the sums.
#[inline(always)]
pub(super) fn statistics_of_rows<V: Vector>(items: &[f32], partial: &mut [f32]) {
    let channels = partial.len() / 2;
    let (means, squares) = partial.split_at_mut(channels);
    means.fill(0.0);
    squares.fill(0.0);
    let mut count = 0.0;
    for chunk in items.chunks(rows_of_a_chunk(channels) * channels) {
        let own = (chunk.len() / channels) as f32;
        let all = count + own;
        for first in (0..channels).step_by(LANES) {
            let end = channels.min(first + LANES);
            let center = sum_at::<V>(chunk, channels, first).mul(V::splat(1.0 / own));
            let mut sum = V::zero();
            for row in (0..chunk.len()).step_by(channels) {
                let distance = read_at::<V>(chunk, row + first).sub(center);
                sum = distance.mul_add(distance, sum);
            }
            let (mean, square) = (V::read_part(&means[first..end], 0.0), V::read_part(&squares[first..end], 0.0));
            let delta = center.sub(mean);
            delta.mul_add(V::splat(own / all), mean).write_part(&mut means[first..end]);
            let between = delta.mul(delta).mul(V::splat(count * own / all));
            square.add(sum).add(between).write_part(&mut squares[first..end]);
        }
        count = all;
    }
}

/// `y = (x - center) * factor + shift` with these three numbers of each channel; `x` may be `y`.
#[inline(always)]
pub(super) fn normalize_rows<V: Vector>(x: Option<&[f32]>, y: &mut [f32], numbers: [&[f32]; 3], relu: bool) {
    let low = V::splat(if relu { 0.0 } else { f32::NEG_INFINITY });
    let channels = numbers[0].len();
    for row in (0..y.len()).step_by(channels) {
        for first in (0..channels).step_by(LANES) {
            let affine = Affine::<V>::of_channels(numbers, first);
            let at = row + first;
            let x = read_at::<V>(x.unwrap_or(&*y), at);
            affine.of(x).at_least(low).write_part(&mut y[at..row + channels.min(first + LANES)]);
        }
    }
}

impl<V: Vector> Affine<V> {
    #[inline(always)]
    fn of_channels([center, factor, shift]: [&[f32]; 3], first: usize) -> Affine<V> {
        Affine { center: read_at(center, first), factor: read_at(factor, first), shift: read_at(shift, first) }
    }
}

/// Images of `x`, and the numbers of their channels.
pub(super) struct GradientRows<'a> {
    x: &'a [f32],
    channels: usize,
    /// Five for each channel: see [`super::BatchNormGradient`].
    factors: &'a [f32],
    /// The shift of the operand of a ReLU, if there was one.
    bias: Option<&'a [f32]>,
}

impl<'a> GradientRows<'a> {
    pub(super) fn new(x: &'a [f32], factors: &'a [f32], bias: Option<&'a [f32]>) -> Self {
        GradientRows { x, channels: factors.len() / 5, factors, bias }
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.factors[row * self.channels..][..self.channels]
    }

    #[inline(always)]
    fn affine<V: Vector>(&self, first: usize) -> Affine<V> {
        Affine::of_channels([self.row(0), self.row(2), self.bias.unwrap_or(self.row(0))], first)
    }
}

/// Sums of `dy` and of `dy * (x - center)` of each channel: `partial` has the first ones, then the others.
#[inline(always)]
pub(super) fn sums_of_rows<V: Vector>(rows: &GradientRows<'_>, dy: &[f32], partial: &mut [f32]) {
    let (channels, relu) = (rows.channels, rows.bias.is_some());
    let (sums, products) = partial.split_at_mut(channels);
    sums.fill(0.0);
    products.fill(0.0);
    let chunk = rows_of_a_chunk(channels) * channels;
    for (dy, x) in dy.chunks(chunk).zip(rows.x.chunks(chunk)) {
        for first in (0..channels).step_by(LANES) {
            let (affine, end) = (rows.affine::<V>(first), channels.min(first + LANES));
            let (mut sum, mut product) = (V::zero(), V::zero());
            for row in (0..dy.len()).step_by(channels) {
                let [distance, dy] = affine.slope(read_at(dy, row + first), read_at(x, row + first), relu);
                sum = sum.add(dy);
                product = dy.mul_add(distance, product);
            }
            let (sums, products) = (&mut sums[first..end], &mut products[first..end]);
            sum.add(V::read_part(sums, 0.0)).write_part(sums);
            product.add(V::read_part(products, 0.0)).write_part(products);
        }
    }
}

/// `dx = dy * factor + offset + (x - center) * slope`; `dy` may be `dx`.
#[inline(always)]
pub(super) fn gradient_of_rows<V: Vector>(rows: &GradientRows<'_>, dy: Option<&[f32]>, dx: &mut [f32]) {
    let (channels, relu) = (rows.channels, rows.bias.is_some());
    for row in (0..dx.len()).step_by(channels) {
        for first in (0..channels).step_by(LANES) {
            let (offset, slope) = (read_at(rows.row(3), first), read_at(rows.row(4), first));
            let step = GradientStep::<V> { affine: rows.affine(first), offset, slope, relu };
            let at = row + first;
            let dy = read_at(dy.unwrap_or(&*dx), at);
            step.of(dy, read_at(rows.x, at)).write_part(&mut dx[at..row + channels.min(first + LANES)]);
        }
    }
}

/// The sum of each channel, and as many zeros.
#[inline(always)]
pub(super) fn total_of_rows<V: Vector>(items: &[f32], partial: &mut [f32]) {
    let channels = partial.len() / 2;
    partial.fill(0.0);
    for chunk in items.chunks(rows_of_a_chunk(channels) * channels) {
        for first in (0..channels).step_by(LANES) {
            let sums = &mut partial[first..channels.min(first + LANES)];
            sum_at::<V>(chunk, channels, first).add(V::read_part(sums, 0.0)).write_part(sums);
        }
    }
}
