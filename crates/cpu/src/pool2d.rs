//! [`Pool2d`]: the largest element or the average of windows.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::isa::{Isa, vectorised};
use crate::kernel::{Fit, KernelFn, Sizes, floats, require};
use crate::math;
use crate::operand::Operands;
use crate::pool::Pool;
use crate::window::Window;

/// What is made of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolKind {
    /// The largest element; NaN where there is one, -inf where the window holds no element.
    #[default]
    Max,
    /// The sum divided by a number of cells; 0 where that number is 0.
    Average {
        /// Whether pads count as cells. What a window reaches beyond the pads never counts.
        count_include_pad: bool,
    },
}

/// Pooling: `x [batch, channels, input]` to `[batch, channels, output]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pool2d {
    /// What is made of a window.
    pub kind: PoolKind,
    /// Images.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
    /// Height and width of the window.
    pub kernel: [usize; 2],
    /// Distance of neighbouring windows.
    pub stride: [usize; 2],
    /// Distance of neighbouring taps.
    pub dilation: [usize; 2],
    /// Cells above and to the left.
    pub pad_begin: [usize; 2],
    /// Cells below and to the right.
    pub pad_end: [usize; 2],
}

impl Pool2d {
    fn windows(&self) -> Fit<[Window; 2]> {
        require(self.pad_end.iter().all(|&pad| pad < 1 << 31), "an extent is too large")?;
        let numbers = [self.stride, self.dilation, self.pad_begin];
        let window = |axis| Window::new(axis, self.input, self.output, self.kernel, numbers);
        Ok([window(0)?, window(1)?])
    }

    /// The cells that count along one axis.
    fn cells(&self, axis: usize, window: Window, output: usize, include_pad: bool) -> usize {
        let input = window.input as isize;
        let (low, high) =
            if include_pad { (-(window.pad as isize), input + self.pad_end[axis] as isize) } else { (0, input) };
        window.taps(output, low, high).len()
    }
}

impl KernelFn for Pool2d {
    const NAME: &'static str = "pool2d";

    fn sizes(&self) -> Fit<Sizes> {
        self.windows()?;
        Ok(Sizes {
            inputs: smallvec![floats(&[self.batch, self.channels, self.input[0], self.input[1]])?],
            outputs: smallvec![floats(&[self.batch, self.channels, self.output[0], self.output[1]])?],
            workspace: 0,
        })
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let Ok([y, x]) = self.windows() else { return };
        let input = operands.input::<f32>(0);
        let out = operands.output::<f32>();
        let plane = y.input * x.input;
        // Wide windows are reduced one by one, narrow ones tap by tap along the row.
        let wide = x.dilation == 1 && (8 <= x.kernel || x.output == 1);
        let rows = self.batch * self.channels * y.output;
        pool.split(rows, 8192 / (x.output * x.kernel * y.kernel).max(1), &|rows| {
            for row in rows {
                let (nth, oy) = (row / y.output, row % y.output);
                let from = &input[nth * plane..(nth + 1) * plane];
                // SAFETY: each output row is written by one task.
                let into = unsafe { out.write(row * x.output, x.output) };
                let largest = self.kind == PoolKind::Max;
                if wide {
                    wide_row(pool.isa(), largest, [y, x], oy, from, into);
                } else {
                    narrow_row(pool.isa(), largest, [y, x], oy, from, into);
                }
                if let PoolKind::Average { count_include_pad } = self.kind {
                    let height = self.cells(0, y, oy, count_include_pad);
                    for (ox, sum) in into.iter_mut().enumerate() {
                        let cells = height * self.cells(1, x, ox, count_include_pad);
                        *sum = if cells == 0 { 0.0 } else { *sum / cells as f32 };
                    }
                }
            }
        });
    }
}

fn wide_row(isa: Isa, largest: bool, [y, x]: [Window; 2], oy: usize, plane: &[f32], into: &mut [f32]) {
    let rows = y.taps(oy, 0, y.input as isize);
    for (ox, result) in into.iter_mut().enumerate() {
        let columns = x.taps(ox, 0, x.input as isize);
        *result = if largest { f32::NEG_INFINITY } else { 0.0 };
        if columns.is_empty() {
            continue;
        }
        let first = x.at(ox, columns.start) as usize;
        let mut reduce = |items: &[f32]| {
            if largest {
                let other = math::max(isa, items);
                *result = if result.is_nan() || *result > other { *result } else { other };
            } else {
                *result += math::sum(isa, items);
            }
        };
        if columns.len() == x.input && y.dilation == 1 && !rows.is_empty() {
            // Whole rows follow each other: one stretch.
            let start = y.at(oy, rows.start) as usize * x.input;
            reduce(&plane[start..start + rows.len() * x.input]);
            continue;
        }
        for ky in rows.clone() {
            let start = y.at(oy, ky) as usize * x.input + first;
            reduce(&plane[start..start + columns.len()]);
        }
    }
}

vectorised! {
    fn narrow_row(largest: bool, windows: [Window; 2], oy: usize, plane: &[f32], into: &mut [f32]) {
        let [y, x] = windows;
        into.fill(if largest { f32::NEG_INFINITY } else { 0.0 });
        for ky in y.taps(oy, 0, y.input as isize) {
            let row = y.at(oy, ky) as usize * x.input;
            for kx in 0..x.kernel {
                let outputs = x.outputs(kx, 0..x.output);
                if outputs.is_empty() {
                    continue;
                }
                let first = row + x.at(outputs.start, kx) as usize;
                let into = &mut into[outputs];
                let from = &plane[first..=first + (into.len() - 1) * x.stride];
                match (x.stride, largest) {
                    (1, true) => combine::<1>(into, from, 1, larger),
                    (2, true) => combine::<2>(into, from, 2, larger),
                    (_, true) => combine::<0>(into, from, x.stride, larger),
                    (1, false) => combine::<1>(into, from, 1, plus),
                    (2, false) => combine::<2>(into, from, 2, plus),
                    (_, false) => combine::<0>(into, from, x.stride, plus),
                }
            }
        }
    }
}

#[inline(always)]
fn combine<const STRIDE: usize>(into: &mut [f32], from: &[f32], stride: usize, join: impl Fn(f32, f32) -> f32) {
    if STRIDE == 1 {
        into.iter_mut().zip(from).for_each(|(into, &from)| *into = join(*into, from));
        return;
    }
    let stride = if STRIDE == 0 { stride } else { STRIDE };
    for (into, from) in into.iter_mut().zip(from.chunks(stride)) {
        *into = join(*into, from[0]);
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || a > b { a } else { b }
}

#[inline(always)]
fn plus(a: f32, b: f32) -> f32 {
    a + b
}
