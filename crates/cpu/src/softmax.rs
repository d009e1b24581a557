//! [`Softmax`]: exponentials that sum to one along an axis.

use serde::{Deserialize, Serialize};

use crate::Pool;
use crate::isa::with_isa;
use crate::kernel::{Args, KernelFn, Misfit, Sizes, elements_mut, input, product};
use crate::math;
use crate::shared::for_each_chunk;

/// `exp(x - max) / sum(exp(x - max))` along the middle axis of `x: [outer, axis, inner]`, or its logarithm. `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    /// Extents in front of the axis.
    pub outer: usize,
    /// The axis.
    pub axis: usize,
    /// Extents behind it.
    pub inner: usize,
    /// Whether the result is the logarithm.
    pub log: bool,
}

impl KernelFn for Softmax {
    const NAME: &'static str = "softmax";

    fn sizes(&self) -> Result<Sizes, Misfit> {
        let elements = product(&[self.outer, self.axis, self.inner]);
        Sizes::new(&[elements], elements, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let block = self.axis * self.inner;
        if block == 0 {
            return;
        }
        for_each_chunk(pool, out, block, &|number, cells| {
            let (kernel, items) = (self, &x[number * block..][..block]);
            with_isa!(pool.isa(), run_block(kernel: &Softmax, items: &[f32], cells: &mut [f32]));
        });
    }
}

#[inline(always)]
fn run_block(kernel: &Softmax, items: &[f32], cells: &mut [f32]) {
    for lane in 0..kernel.inner {
        let lane_items = || items[lane..].iter().step_by(kernel.inner);
        let top = lane_items().fold(f32::NEG_INFINITY, |top, &item| if item > top { item } else { top });
        if kernel.inner == 1 {
            cells.iter_mut().zip(items).for_each(|(cell, item)| *cell = item - top);
            if kernel.log {
                let sum: f32 = cells.iter().map(|&cell| math::exp(cell)).sum();
                cells.iter_mut().for_each(|cell| *cell -= sum.ln());
                continue;
            }
            cells.iter_mut().for_each(|cell| *cell = math::exp(*cell));
            let sum: f32 = cells.iter().sum();
            cells.iter_mut().for_each(|cell| *cell /= sum);
            continue;
        }
        let sum: f32 = lane_items().map(|&item| math::exp(item - top)).sum();
        for (cell, item) in cells[lane..].iter_mut().step_by(kernel.inner).zip(lane_items()) {
            *cell = if kernel.log { item - top - sum.ln() } else { math::exp(item - top) / sum };
        }
    }
}
