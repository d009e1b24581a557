//! Sums of single channels: groups of few output channels do not fill the rows of a tile of the microkernel.

use std::ops::Range;

use super::{Job, STAGED, TILE};
use crate::simd::vector::{LANES, Vector};

/// Vectors whose sums the loop for few channels keeps in registers.
const FEW_VECTORS: usize = 4;
/// Partial sums of a vector, to hide the latency of a multiply-add.
const PARTIAL: usize = 4;

/// Sums of one channel, for groups whose channels do not fill a tile of the microkernel.
///
/// Called by [`Job::run_item`] only, which keeps the contract of [`Job::multiply`].
#[inline(always)]
pub(super) fn few_channels<V: Vector>(
    job: &Job<'_>,
    source: &[f32],
    weights: &[f32],
    pixels: Range<usize>,
    rows: *mut [f32; TILE + STAGED],
) {
    // SAFETY: the sums of pixels from `pixels.start` on are behind the room of a tile.
    let out = unsafe { rows.cast::<f32>().add(TILE) };
    let wide = FEW_VECTORS * LANES;
    let mut pixel = pixels.start;
    while pixel < pixels.end {
        // SAFETY: the caller's promise; reads end as those of `Job::multiply`.
        unsafe {
            if pixel + wide <= pixels.end {
                sum_vectors::<V, FEW_VECTORS, 1>(job, source, weights, pixel, out.add(pixel - pixels.start));
                pixel += wide;
            } else {
                let start = job.start_of_rest(pixel, LANES);
                let out = out.add(pixel - pixels.start).sub(pixel - start);
                sum_vectors::<V, 1, PARTIAL>(job, source, weights, start, out);
                pixel += LANES;
            }
        }
    }
}

/// Sums of N vectors of pixels, with P partial sums each.
///
/// # Safety
/// All terms can be read, and the sums written.
#[inline(always)]
unsafe fn sum_vectors<V: Vector, const N: usize, const P: usize>(
    job: &Job<'_>,
    source: &[f32],
    weights: &[f32],
    pixel: usize,
    out: *mut f32,
) {
    let part = &job.part;
    let (ins, ..) = job.conv.group();
    let (mut sums, mut weights) = ([[V::zero(); N]; P], weights);
    let [phase_rows, phase_columns] = part.block.copies;
    for number in 0..phase_rows * phase_columns {
        let (row, column) = (job.phase(0, number / phase_columns), job.phase(1, number % phase_columns));
        let start = number * part.phase_step() + row.start * part.block.pitch + column.start + pixel;
        for channel in 0..ins {
            for y in 0..row.taps {
                let at = start + channel * part.channel_step() + y * row.step * part.block.pitch;
                let Some((taps, rest)) = weights.split_at_checked(column.taps) else { return };
                weights = rest;
                // SAFETY: the caller's promise: all terms can be read.
                let first = unsafe { source.as_ptr().add(at) };
                // Constant indices leave each sum in a register.
                let (whole, rest) = taps.as_chunks::<P>();
                for (turn, taps) in whole.iter().enumerate() {
                    for (ix, (sum, &tap)) in sums.iter_mut().zip(taps).enumerate() {
                        let from = first.wrapping_add((turn * P + ix) * column.step);
                        // SAFETY: the caller's promise.
                        unsafe { add_tap(sum, tap, from) };
                    }
                }
                for (ix, sum) in sums.iter_mut().enumerate() {
                    if let Some(&weight) = rest.get(ix) {
                        let from = first.wrapping_add((whole.len() * P + ix) * column.step);
                        // SAFETY: the caller's promise.
                        unsafe { add_tap(sum, weight, from) };
                    }
                }
            }
        }
    }
    for vector in 0..N {
        let mut sum = sums[0][vector];
        for partial in &sums[1..] {
            sum = sum.add(partial[vector]);
        }
        // SAFETY: the caller's promise.
        unsafe { sum.store(out.add(vector * LANES)) };
    }
}

/// Adds one tap to N vectors of pixels.
///
/// # Safety
/// The pixels can be read.
#[inline(always)]
unsafe fn add_tap<V: Vector, const N: usize>(sums: &mut [V; N], weight: f32, from: *const f32) {
    let weight = V::splat(weight);
    for (vector, sum) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *sum = unsafe { V::load(from.add(vector * LANES)) }.mul_add(weight, *sum);
    }
}
