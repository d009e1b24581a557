//! [`DepthwiseConv`]: convolution in which each output channel sees one input channel.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::epilogue::Epilogue;
use crate::isa::vectorised;
use crate::kernel::{Fit, KernelFn, Sizes, count, floats};
use crate::math::fma;
use crate::operand::Operands;
use crate::pool::Pool;
use crate::window::Window;

/// Outputs whose sums stay in registers.
const CHUNK: usize = 32;

/// Depthwise convolution, with the epilogue fused.
///
/// Inputs: `x [batch, channels, input]`, weights `[channels * multiplier, kernel]` as they are, the epilogue's bias
/// `[channels * multiplier]` and residual. Output: `[batch, channels * multiplier, output]`. Output channel `c` sees
/// input channel `c / multiplier`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DepthwiseConv {
    /// Images.
    pub batch: usize,
    /// Channels of the input.
    pub channels: usize,
    /// Output channels per input channel.
    pub multiplier: usize,
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance of neighbouring windows.
    pub stride: [usize; 2],
    /// Distance of neighbouring taps.
    pub dilation: [usize; 2],
    /// Zeros above and to the left.
    pub pad_begin: [usize; 2],
    /// What follows the convolution.
    pub epilogue: Epilogue,
}

impl DepthwiseConv {
    fn windows(&self) -> Fit<[Window; 2]> {
        let numbers = [self.stride, self.dilation, self.pad_begin];
        let window = |axis| Window::new(axis, self.input, self.output, self.kernel, numbers);
        Ok([window(0)?, window(1)?])
    }
}

impl KernelFn for DepthwiseConv {
    const NAME: &'static str = "depthwise_conv";

    fn sizes(&self) -> Fit<Sizes> {
        self.windows()?;
        let out_channels = count(&[self.channels, self.multiplier])?;
        let mut sizes = Sizes {
            inputs: smallvec![
                floats(&[self.batch, self.channels, self.input[0], self.input[1]])?,
                floats(&[out_channels, self.kernel[0], self.kernel[1]])?,
            ],
            outputs: smallvec![floats(&[self.batch, out_channels, self.output[0], self.output[1]])?],
            workspace: 0,
        };
        self.epilogue.push_sizes(&mut sizes, out_channels)?;
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        self.epilogue.residual_input(2) == Some(input)
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let Ok([y, x]) = self.windows() else { return };
        let input = operands.input::<f32>(0);
        let weights = operands.input::<f32>(1);
        let bias: &[f32] = if self.epilogue.bias { operands.input(2) } else { &[] };
        let residual = self.epilogue.residual_input(2).map(|input| operands.shared::<f32>(input));
        let in_place = self.epilogue.residual_input(2).is_some_and(|input| operands.in_place(input));
        let out = operands.output::<f32>();
        let channels = self.channels * self.multiplier;
        let (in_plane, taps) = (y.input * x.input, y.kernel * x.kernel);
        let rows = self.batch * channels * y.output;
        let least = 4096 / (x.output * taps).max(1);
        pool.split(rows, least, &|rows| {
            for row in rows {
                let (plane, oy) = (row / y.output, row % y.output);
                let (image, channel) = (plane / channels, plane % channels);
                let from = (image * self.channels + channel / self.multiplier) * in_plane;
                // SAFETY: each output row is written by one task.
                let sums = unsafe { out.write(row * x.output, x.output) };
                if let Some(residual) = residual.filter(|_| !in_place) {
                    // SAFETY: this residual has bytes of its own, which nobody writes.
                    sums.copy_from_slice(unsafe { residual.read(row * x.output, x.output) });
                } else if residual.is_none() {
                    sums.fill(0.0);
                }
                let start = bias.get(channel).copied().unwrap_or(0.0);
                let taps = &weights[channel * taps..(channel + 1) * taps];
                convolve_row(pool.isa(), [y, x], oy, &input[from..from + in_plane], taps, start, sums);
                self.epilogue.activate(pool.isa(), sums);
            }
        });
    }
}

vectorised! {
    /// Adds `start` and one row of the convolution to `sums`.
    fn convolve_row(windows: [Window; 2], oy: usize, plane: &[f32], taps: &[f32], start: f32, sums: &mut [f32]) {
        let [y, x] = windows;
        let rows = y.taps(oy, 0, y.input as isize);
        // The outputs whose windows lie wholly inside: the first and the last tap do.
        let all = x.outputs(0, 0..x.output);
        let last = x.outputs(x.kernel - 1, 0..x.output);
        let inner = all.start.max(last.start).min(x.output)..all.end.min(last.end);
        let inner = if inner.is_empty() { 0..0 } else { inner };
        for ox in (0..inner.start).chain(inner.end..x.output) {
            let mut sum = sums[ox] + start;
            let columns = x.taps(ox, 0, x.input as isize);
            for ky in rows.clone() {
                let row = y.at(oy, ky) as usize * x.input;
                for kx in columns.clone() {
                    sum = fma::<FMA>(taps[ky * x.kernel + kx], plane[row + x.at(ox, kx) as usize], sum);
                }
            }
            sums[ox] = sum;
        }
        match x.stride {
            1 => interior::<FMA, 1>([y, x], oy, rows, plane, taps, start, inner, sums),
            2 => interior::<FMA, 2>([y, x], oy, rows, plane, taps, start, inner, sums),
            _ => interior::<FMA, 0>([y, x], oy, rows, plane, taps, start, inner, sums),
        }
    }
}

/// The outputs `inner`, whose windows need no check along x. `STRIDE` 0 is any stride.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a loop's operands")]
fn interior<const FMA: bool, const STRIDE: usize>(
    [y, x]: [Window; 2],
    oy: usize,
    rows: Range<usize>,
    plane: &[f32],
    taps: &[f32],
    start: f32,
    inner: Range<usize>,
    sums: &mut [f32],
) {
    let stride = if STRIDE == 0 { x.stride } else { STRIDE };
    let mut ox = inner.start;
    while ox < inner.end {
        let width = (inner.end - ox).min(CHUNK);
        let into = &mut sums[ox..ox + width];
        let mut acc = [0.0f32; CHUNK];
        acc[..width].copy_from_slice(into);
        acc.iter_mut().for_each(|sum| *sum += start);
        for ky in rows.clone() {
            let row = y.at(oy, ky) as usize * x.input;
            for kx in 0..x.kernel {
                let tap = taps[ky * x.kernel + kx];
                let at = row + x.at(ox, kx) as usize;
                if width == CHUNK {
                    let from = &plane[at..=at + (CHUNK - 1) * stride];
                    for (index, sum) in acc.iter_mut().enumerate() {
                        *sum = fma::<FMA>(tap, from[index * stride], *sum);
                    }
                } else {
                    let from = plane[at..=at + (width - 1) * stride].chunks(stride);
                    for (sum, from) in acc.iter_mut().zip(from) {
                        *sum = fma::<FMA>(tap, from[0], *sum);
                    }
                }
            }
        }
        into.copy_from_slice(&acc[..width]);
        ox += width;
    }
}
