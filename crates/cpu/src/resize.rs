//! [`Resize`]: interpolation as weighted taps along each axis; the tables are the caller's.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::kernel::{Fit, KernelFn, Sizes, count, floats, require};
use crate::operand::Operands;
use crate::pool::Pool;
use crate::walk::RANK;

/// The taps of one axis: output `o` is the sum over `t` of `weight[i] * input[index[i]]`, `i = o * per_output + t`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taps {
    /// Positions in the input.
    pub index: Vec<u32>,
    /// Their weights.
    pub weight: Vec<f32>,
    /// Taps of each output.
    pub per_output: usize,
}

/// Interpolation of `x` of shape `in_shape`; an axis without taps stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// The input's extents.
    pub in_shape: Vec<usize>,
    /// The taps of each axis.
    pub axes: Vec<Option<Taps>>,
}

impl Resize {
    fn out_extent(&self, axis: usize) -> usize {
        self.axes[axis].as_ref().map_or(self.in_shape[axis], |taps| taps.index.len() / taps.per_output)
    }

    /// Taps of each output along an axis.
    fn taps(&self, axis: usize) -> usize {
        self.axes[axis].as_ref().map_or(1, |taps| taps.per_output)
    }

    fn tap(&self, axis: usize, output: usize, tap: usize) -> (usize, f32) {
        match &self.axes[axis] {
            Some(taps) => {
                let at = output * taps.per_output + tap;
                (taps.index[at] as usize, taps.weight[at])
            }
            None => (output, 1.0),
        }
    }
}

impl KernelFn for Resize {
    const NAME: &'static str = "resize";

    fn sizes(&self) -> Fit<Sizes> {
        let rank = self.in_shape.len();
        require(1 <= rank && rank <= RANK, "a rank of 0 or too large")?;
        require(self.axes.len() == rank, "taps for another rank")?;
        let mut out = [0; RANK];
        let mut combinations = [1; RANK];
        for (axis, taps) in self.axes.iter().enumerate() {
            if let Some(taps) = taps {
                require(1 <= taps.per_output, "outputs without taps")?;
                let whole = taps.index.len().is_multiple_of(taps.per_output) && taps.weight.len() == taps.index.len();
                require(whole, "tables of different lengths")?;
                let inside = taps.index.iter().all(|&index| (index as usize) < self.in_shape[axis]);
                require(inside, "a tap leaves the input")?;
                combinations[axis] = taps.per_output;
            }
            out[axis] = self.out_extent(axis);
        }
        count(&combinations)?;
        Ok(Sizes { inputs: smallvec![floats(&self.in_shape)?], outputs: smallvec![floats(&out[..rank])?], workspace: 0 })
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let x = operands.input::<f32>(0);
        let out = operands.output::<f32>();
        let last = self.in_shape.len() - 1;
        let (in_row, out_row) = (self.in_shape[last], self.out_extent(last));
        let combinations: usize = (0..last).map(|axis| self.taps(axis)).product();
        let least = 4096 / out_row.saturating_mul(combinations);
        pool.split(out.len() / out_row, least, &|rows| {
            for row in rows {
                // SAFETY: each output row is written by one task.
                let into = unsafe { out.write(row * out_row, out_row) };
                into.fill(0.0);
                // Every choice of one tap along each outer axis is one row of the input with one weight.
                for combination in 0..combinations {
                    let (mut outputs, mut choice, mut stride) = (row, combination, 1);
                    let (mut from, mut weight) = (0, 1.0f32);
                    for axis in (0..last).rev() {
                        let (extent, taps) = (self.out_extent(axis), self.taps(axis));
                        let (index, factor) = self.tap(axis, outputs % extent, choice % taps);
                        from += index * stride;
                        weight *= factor;
                        (outputs, choice) = (outputs / extent, choice / taps);
                        stride *= self.in_shape[axis];
                    }
                    if weight != 0.0 {
                        add_row(self.axes[last].as_ref(), weight, &x[from * in_row..(from + 1) * in_row], into);
                    }
                }
            }
        });
    }
}

/// Adds `weight` times an input row, interpolated along itself.
fn add_row(taps: Option<&Taps>, weight: f32, row: &[f32], into: &mut [f32]) {
    fn fixed<const N: usize>(taps: &Taps, weight: f32, row: &[f32], into: &mut [f32]) {
        let tables = taps.index.as_chunks::<N>().0.iter().zip(taps.weight.as_chunks::<N>().0);
        for (into, (index, weights)) in into.iter_mut().zip(tables) {
            let mut sum = 0.0;
            for (&index, &weight) in index.iter().zip(weights) {
                sum += weight * row[index as usize];
            }
            *into += weight * sum;
        }
    }
    let Some(taps) = taps else {
        into.iter_mut().zip(row).for_each(|(into, &x)| *into += weight * x);
        return;
    };
    match taps.per_output {
        1 => fixed::<1>(taps, weight, row, into),
        2 => fixed::<2>(taps, weight, row, into),
        4 => fixed::<4>(taps, weight, row, into),
        count => {
            let tables = taps.index.chunks_exact(count).zip(taps.weight.chunks_exact(count));
            for (into, (index, weights)) in into.iter_mut().zip(tables) {
                let sum = index.iter().zip(weights).fold(0.0, |sum, (&index, &tap)| sum + tap * row[index as usize]);
                *into += weight * sum;
            }
        }
    }
}
