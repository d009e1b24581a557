//! [`Resize`]: interpolation with taps that were computed at compile time.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Interpolation taps of one axis: output `i` is the sum over `j` of `weight[i * per_output + j] * x[index[..]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxisTaps {
    /// Positions along the input's axis.
    pub index: Vec<u32>,
    /// Weight of each position.
    pub weight: Vec<f32>,
    /// Taps per output; must be at least 1.
    pub per_output: usize,
}

impl AxisTaps {
    fn outputs(&self) -> usize {
        self.index.len() / self.per_output.max(1)
    }

    fn fits(&self, extent: usize) -> bool {
        self.per_output != 0
            && self.index.len() == self.weight.len()
            && self.index.len().is_multiple_of(self.per_output)
            && self.index.iter().all(|&index| (index as usize) < extent)
    }
}

/// `x: [shape..]` in `f32`, resized along each axis by its taps: each output sums the products of the taps of all axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// Extents of the input; at most 8 axes.
    pub shape: Vec<usize>,
    /// Taps of each axis.
    pub taps: Vec<AxisTaps>,
}

impl KernelFn for Resize {
    const NAME: &'static str = "resize";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.taps.len() != self.shape.len() || self.shape.is_empty() || 8 < self.shape.len() {
            return Err(InvalidKernel("there must be at most 8 axes, each with taps"));
        }
        if !self.taps.iter().zip(&self.shape).all(|(taps, &extent)| taps.fits(extent)) {
            return Err(InvalidKernel("taps must read within their axis, in groups of `per_output`"));
        }
        let out: Vec<usize> = self.taps.iter().map(AxisTaps::outputs).collect();
        Sizes::new(&[product(&self.shape)], product(&out), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let Some((columns, rows)) = self.taps.split_last() else { return };
        let width = self.shape[self.shape.len() - 1];
        for_each_chunk(pool, out, columns.outputs().max(1), &|number, cells| {
            cells.fill(0.0);
            // Each combination of the outer axes' taps selects an input row and its weight.
            let combinations: usize = rows.iter().map(|taps| taps.per_output).product();
            for combination in 0..combinations {
                let (mut place, mut choice, mut start, mut stride, mut weight) = (number, combination, 0, width, 1.0);
                for (taps, &extent) in rows.iter().zip(&self.shape).rev() {
                    let tap = place % taps.outputs() * taps.per_output + choice % taps.per_output;
                    place /= taps.outputs();
                    choice /= taps.per_output;
                    start += taps.index[tap] as usize * stride;
                    weight *= taps.weight[tap];
                    stride *= extent;
                }
                if weight == 0.0 {
                    continue;
                }
                let row = &x[start..start + width];
                for (ix, cell) in cells.iter_mut().enumerate() {
                    let window = ix * columns.per_output..(ix + 1) * columns.per_output;
                    let terms = columns.index[window.clone()].iter().zip(&columns.weight[window]);
                    *cell += weight * terms.map(|(&at, weight)| weight * row[at as usize]).sum::<f32>();
                }
            }
        });
    }
}
