//! [`Softmax`]: exponentials along an axis, divided by their sum.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;
use types::pointwise::{Binary, Unary};

use crate::isa::Isa;
use crate::kernel::{Fit, KernelFn, Sizes, floats};
use crate::math;
use crate::operand::Operands;
use crate::pool::Pool;

/// Columns that are worked on side by side where the axis is not the last.
const WIDTH: usize = 64;

/// Softmax of `x [outer, axis, inner]` along the middle, or its logarithm. The largest element is subtracted first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Softmax {
    /// Elements in front of the axis.
    pub outer: usize,
    /// Elements along the axis.
    pub axis: usize,
    /// Elements behind the axis.
    pub inner: usize,
    /// Whether the logarithm is wanted.
    pub log: bool,
}

impl KernelFn for Softmax {
    const NAME: &'static str = "softmax";

    fn sizes(&self) -> Fit<Sizes> {
        let size = floats(&[self.outer, self.axis, self.inner])?;
        Ok(Sizes { inputs: smallvec![size], outputs: smallvec![size], workspace: 0 })
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let x = operands.input::<f32>(0);
        let out = operands.output::<f32>();
        let Softmax { outer, axis, inner, .. } = *self;
        if inner == 1 {
            pool.split(outer, 4096 / axis, &|rows| {
                for row in rows {
                    // SAFETY: each row is written by one task.
                    let into = unsafe { out.write(row * axis, axis) };
                    self.row(pool.isa(), &x[row * axis..(row + 1) * axis], into);
                }
            });
            return;
        }
        let pieces = inner.div_ceil(WIDTH);
        pool.split(outer * pieces, 4096 / axis.saturating_mul(WIDTH.min(inner)), &|tasks| {
            for task in tasks {
                let start = task % pieces * WIDTH;
                let width = WIDTH.min(inner - start);
                let first = task / pieces * axis * inner + start;
                self.columns(pool.isa(), x, first, width, |at| {
                    // SAFETY: each column is written by one task, and one row of it is borrowed at a time.
                    unsafe { out.write(at, width) }
                });
            }
        });
    }
}

impl Softmax {
    fn row(&self, isa: Isa, x: &[f32], into: &mut [f32]) {
        let largest = math::max(isa, x);
        let sum = math::exp_shifted(isa, x, largest, into);
        if self.log {
            into.copy_from_slice(x);
            math::add_scalar(isa, into, -largest);
            math::add_scalar(isa, into, -math::log_one(sum));
        } else {
            math::scale(isa, into, 1.0 / sum);
        }
    }

    fn columns<'a>(&self, isa: Isa, x: &[f32], first: usize, width: usize, write: impl Fn(usize) -> &'a mut [f32]) {
        let rows = (0..self.axis).map(|row| first + row * self.inner);
        let mut largest = [f32::NEG_INFINITY; WIDTH];
        let largest = &mut largest[..width];
        for at in rows.clone() {
            math::binary(isa, Binary::Max, false, largest, &x[at..at + width]);
        }
        let mut sums = [0.0f32; WIDTH];
        let sums = &mut sums[..width];
        for at in rows.clone() {
            let into = write(at);
            into.copy_from_slice(&x[at..at + width]);
            math::binary(isa, Binary::Sub, false, into, largest);
            math::unary(isa, Unary::Exp, into);
            math::binary(isa, Binary::Add, false, sums, into);
        }
        if self.log {
            math::unary(isa, Unary::Log, sums);
        }
        for at in rows {
            let into = write(at);
            if self.log {
                into.copy_from_slice(&x[at..at + width]);
                math::binary(isa, Binary::Sub, false, into, largest);
                math::binary(isa, Binary::Sub, false, into, sums);
            } else {
                math::binary(isa, Binary::Div, false, into, sums);
            }
        }
    }
}
