//! [`Lrn`]: local response normalisation over neighbouring channels.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::kernel::{Fit, KernelFn, Sizes, floats, require};
use crate::math;
use crate::operand::Operands;
use crate::pool::Pool;

/// Elements whose sums of squares are kept at a time.
const WIDTH: usize = 256;

/// `y[c] = x[c] / (bias + alpha / size * Σ x[i]²)^beta` of `x [batch, channels, inner]`, as ONNX defines it.
///
/// The sum is over the channels `c - (size - 1) / 2 ..= c + size / 2` that exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lrn {
    /// Images.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Elements of a channel.
    pub inner: usize,
    /// Channels of a sum.
    pub size: usize,
    /// The factor of the sum.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// What is added to the sum.
    pub bias: f32,
}

impl KernelFn for Lrn {
    const NAME: &'static str = "lrn";

    fn sizes(&self) -> Fit<Sizes> {
        require(1 <= self.size && self.size < 1 << 31, "a sum over no channels or too many")?;
        let size = floats(&[self.batch, self.channels, self.inner])?;
        Ok(Sizes { inputs: smallvec![size], outputs: smallvec![size], workspace: 0 })
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let x = operands.input::<f32>(0);
        let out = operands.output::<f32>();
        let Lrn { batch, channels, inner, size, .. } = *self;
        let pieces = inner.div_ceil(WIDTH);
        pool.split(batch * channels * pieces, 4096 / WIDTH.min(inner), &|tasks| {
            for task in tasks {
                let (row, start) = (task / pieces, task % pieces * WIDTH);
                let (image, channel) = (row / channels, row % channels);
                let width = WIDTH.min(inner - start);
                // SAFETY: each piece of a channel is written by one task.
                let into = unsafe { out.write(row * inner + start, width) };
                into.fill(0.0);
                let first = channel.saturating_sub((size - 1) / 2);
                for other in first..(channel + size / 2 + 1).min(channels) {
                    let at = (image * channels + other) * inner + start;
                    math::add_squares(pool.isa(), &x[at..at + width], into);
                }
                let at = row * inner + start;
                math::normalise(pool.isa(), &x[at..at + width], self.alpha / size as f32, self.bias, self.beta, into);
            }
        });
    }
}
