//! [`ArgExtreme`]: where the largest or the smallest element of an axis is.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::kernel::{Fit, KernelFn, Sizes, bytes, floats, require};
use crate::operand::Operands;
use crate::pool::Pool;

/// Columns that are worked on side by side.
const WIDTH: usize = 64;

/// `x [outer, axis, inner]` of `f32` to positions `[outer, inner]` of `i64`. NaN is more extreme than any number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgExtreme {
    /// Elements in front of the axis.
    pub outer: usize,
    /// Elements along the axis, at least one.
    pub axis: usize,
    /// Elements behind the axis.
    pub inner: usize,
    /// Whether the largest is wanted, or the smallest.
    pub max: bool,
    /// Whether the last of equal elements is taken, or the first.
    pub last: bool,
}

impl KernelFn for ArgExtreme {
    const NAME: &'static str = "arg_extreme";

    fn sizes(&self) -> Fit<Sizes> {
        let sizes = Sizes {
            inputs: smallvec![floats(&[self.outer, self.axis, self.inner])?],
            outputs: smallvec![bytes(&[self.outer, self.inner], 8)?],
            workspace: 0,
        };
        require(1 <= self.axis || sizes.outputs[0] == 0, "an empty axis has no extreme")?;
        Ok(sizes)
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let x = operands.input::<f32>(0);
        let out = operands.output::<i64>();
        let ArgExtreme { outer, axis, inner, .. } = *self;
        let pieces = inner.div_ceil(WIDTH);
        pool.split(outer * pieces, 8192 / axis.saturating_mul(WIDTH.min(inner)), &|tasks| {
            for task in tasks {
                let (row, start) = (task / pieces, task % pieces * WIDTH);
                let width = WIDTH.min(inner - start);
                // SAFETY: stretches do not overlap, and each has one task.
                let into = unsafe { out.write(row * inner + start, width) };
                let mut best = [0.0f32; WIDTH];
                for position in 0..axis {
                    let at = (row * axis + position) * inner + start;
                    for ((into, best), &x) in into.iter_mut().zip(&mut best).zip(&x[at..at + width]) {
                        if position == 0 || self.beats(x, *best) {
                            (*into, *best) = (position as i64, x);
                        }
                    }
                }
            }
        });
    }
}

impl ArgExtreme {
    #[inline(always)]
    fn beats(&self, x: f32, best: f32) -> bool {
        let equal = x == best || (x.is_nan() && best.is_nan());
        let more = (x.is_nan() && !best.is_nan()) || if self.max { x > best } else { x < best };
        more || (equal && self.last)
    }
}
