//! [`Lrn`]: local response normalization across channels.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// `x / (bias + alpha / size * sum of squares over the nearest size channels) ^ beta`, `x: [batch, channels, inner]`, `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lrn {
    /// Batch size.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Elements per channel.
    pub inner: usize,
    /// Channels in the window; must be at least 1.
    pub size: usize,
    /// Weight of the mean of squares.
    pub alpha: f32,
    /// Exponent.
    pub beta: f32,
    /// Added before exponentiation.
    pub bias: f32,
}

impl KernelFn for Lrn {
    const NAME: &'static str = "lrn";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.size == 0 {
            return Err(InvalidKernel("`size` must be at least 1"));
        }
        let elements = product(&[self.batch, self.channels, self.inner]);
        Sizes::new(&[elements], elements, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        if self.inner == 0 {
            return;
        }
        for_each_chunk(pool, out, self.inner, &|number, cells| {
            let (image, channel) = (number / self.channels, number % self.channels);
            let first = channel.saturating_sub((self.size - 1) / 2);
            let last = self.channels.min((channel + self.size / 2).saturating_add(1));
            cells.fill(0.0);
            for other in first..last {
                let items = &x[(image * self.channels + other) * self.inner..][..self.inner];
                cells.iter_mut().zip(items).for_each(|(sum, item)| *sum += item * item);
            }
            let scale = self.alpha / self.size as f32;
            let items = &x[number * self.inner..][..self.inner];
            for (cell, item) in cells.iter_mut().zip(items) {
                let norm = self.bias + scale * *cell;
                // 0.75, which nearly all networks use, needs no logarithm.
                let power = if self.beta == 0.75 { norm.sqrt() * norm.sqrt().sqrt() } else { norm.powf(self.beta) };
                *cell = item / power;
            }
        });
    }
}
