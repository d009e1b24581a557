//! [`ArgExtreme`]: the index of the largest or smallest element along an axis (argmax, argmin).

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements, product};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// The index, as `i64`, of the largest or smallest `f32` along the middle axis of `x: [outer, axis, inner]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgExtreme {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Extent of the axis; must be at least 1.
    pub axis: usize,
    /// Product of the extents after the axis.
    pub inner: usize,
    /// Whether the largest element is selected; otherwise the smallest.
    pub max: bool,
    /// Whether the last of equal elements is selected; otherwise the first.
    pub last: bool,
}

impl KernelFn for ArgExtreme {
    const NAME: &'static str = "arg_extreme";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.axis == 0 {
            return Err(InvalidKernel("`axis` must be at least 1"));
        }
        let x = product(&[self.outer, self.axis, self.inner, 4]);
        Sizes::new(&[x], product(&[self.outer, self.inner, 8]), 1)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let Operand::Bytes(bytes) = args.inputs[0] else { return };
        let x: &[f32] = elements(bytes);
        for_each_chunk(pool, args.outputs[0], 8, &|number, cell| {
            let start = number / self.inner * self.axis * self.inner + number % self.inner;
            let at = |ix: usize| x[start + ix * self.inner];
            let mut best = 0;
            for ix in 1..self.axis {
                let better = if self.max { at(ix) > at(best) } else { at(ix) < at(best) };
                if better || (self.last && at(ix) == at(best)) {
                    best = ix;
                }
            }
            cell.copy_from_slice(&(best as i64).to_le_bytes());
        });
    }
}
