//! [`Resize`]: another number of elements along some axes, by interpolation.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{DType, Shape, Tensor};

use super::common::{arity, for_each_index, from_f64, one, pick};
use crate::op::{Operator, Refusal, TensorType, refuse};

/// How a value between elements is found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeMode {
    /// The nearest element.
    Nearest(Rounding),
    /// From two elements.
    Linear,
    /// From four elements, by Keys' kernel with parameter `a`.
    Cubic {
        /// The kernel's parameter, -0.75 or -0.5.
        a: f32,
        /// Whether elements outside the tensor are left out and the other weights made to sum to 1.
        exclude_outside: bool,
    },
}

/// How a coordinate becomes an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Rounding {
    HalfDown,
    HalfUp,
    Floor,
    Ceil,
}

/// Which coordinate of the input belongs to an index of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coordinates {
    /// `(x + 0.5) / scale - 0.5`
    HalfPixel,
    /// As `HalfPixel`, from the middle of the axis outwards.
    HalfPixelSymmetric,
    /// As `HalfPixel`, but 0 for an output of one element.
    PytorchHalfPixel,
    /// `x / scale`
    Asymmetric,
    /// `x (in - 1) / (out - 1)`
    AlignCorners,
}

/// Weighted elements of an axis: output `i` is the sum over `j` of `weight[i * per_output + j] * x[index[..]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps {
    /// Indices into the input's axis.
    pub index: Vec<u32>,
    /// Their weights.
    pub weight: Vec<f32>,
    /// How many belong to one output.
    pub per_output: usize,
}

/// Resizes axes one by one.
///
/// `x: [..]` -> `shape`, same dtype; `f32` unless the mode is nearest. Refuses an empty tensor and another rank. Source:
/// ONNX `Resize` (without antialiasing and regions of interest).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// The shape of the result.
    pub shape: Shape,
    /// Output extent over input extent, as the file states it; not always the quotient of the extents.
    pub scale: SmallVec<[f32; 4]>,
    /// How a value between elements is found.
    pub mode: ResizeMode,
    /// Which coordinate belongs to an index.
    pub coordinates: Coordinates,
}

impl Resize {
    /// The elements and weights that make each output along an axis of `extent` elements.
    pub fn taps(&self, axis: usize, extent: usize) -> Taps {
        let out = self.shape[axis];
        let mut taps = Taps { index: Vec::new(), weight: Vec::new(), per_output: 1 };
        for ix in 0..out {
            let x = self.coordinate(axis, extent, ix);
            let cells: SmallVec<[(f64, f64); 4]> = match self.mode {
                ResizeMode::Nearest(rounding) => {
                    let cell = match rounding {
                        Rounding::HalfDown => (x - 0.5).ceil(),
                        Rounding::HalfUp => (x + 0.5).floor(),
                        Rounding::Floor => x.floor(),
                        Rounding::Ceil => x.ceil(),
                    };
                    [(cell, 1.0)].into_iter().collect()
                }
                ResizeMode::Linear => {
                    let part = x - x.floor();
                    [(x.floor(), 1.0 - part), (x.floor() + 1.0, part)].into_iter().collect()
                }
                ResizeMode::Cubic { a, exclude_outside } => cubic(x, extent, f64::from(a), exclude_outside),
            };
            taps.per_output = cells.len();
            for (cell, weight) in cells {
                taps.index.push(cell.clamp(0.0, extent as f64 - 1.0) as u32);
                taps.weight.push(weight as f32);
            }
        }
        taps
    }

    /// In `f32` like the runtimes that models are tested with: rounding decides what is nearest.
    fn coordinate(&self, axis: usize, extent: usize, ix: usize) -> f64 {
        let (x, scale) = (ix as f32, self.scale[axis]);
        let (from, to) = (extent as f32, self.shape[axis] as f32);
        let half_pixel = (x + 0.5) / scale - 0.5;
        f64::from(match self.coordinates {
            Coordinates::HalfPixel => half_pixel,
            Coordinates::HalfPixelSymmetric => {
                let adjustment = to / (scale * from);
                from / 2.0 * (1.0 - adjustment) + half_pixel
            }
            Coordinates::PytorchHalfPixel => {
                if to > 1.0 {
                    half_pixel
                } else {
                    0.0
                }
            }
            Coordinates::Asymmetric => x / scale,
            Coordinates::AlignCorners => {
                if to > 1.0 {
                    x * (from - 1.0) / (to - 1.0)
                } else {
                    0.0
                }
            }
        })
    }
}

fn cubic(x: f64, extent: usize, a: f64, exclude_outside: bool) -> SmallVec<[(f64, f64); 4]> {
    let kernel = |distance: f64| {
        let d = distance.abs();
        if d <= 1.0 {
            ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
        } else {
            ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
        }
    };
    let mut cells: SmallVec<[(f64, f64); 4]> =
        (-1..=2).map(|shift| x.floor() + f64::from(shift)).map(|cell| (cell, kernel(x - cell))).collect();
    if exclude_outside {
        for (cell, weight) in &mut cells {
            if !(0.0..extent as f64).contains(cell) {
                *weight = 0.0;
            }
        }
        let sum: f64 = cells.iter().map(|(_, weight)| weight).sum();
        for (_, weight) in &mut cells {
            *weight /= sum;
        }
    }
    cells
}

impl Operator for Resize {
    const NAME: &'static str = "resize";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        if x.shape.rank() != self.shape.rank() || self.scale.len() != self.shape.rank() {
            refuse!("{} is not resized to {} with {} scales: ranks differ", x.shape, self.shape, self.scale.len());
        }
        if x.shape.elements() == 0 || self.scale.iter().any(|&scale| scale.is_nan() || scale <= 0.0) {
            refuse!("an empty tensor and scales that are not positive cannot be resized");
        }
        if x.dtype != DType::F32 && !matches!(self.mode, ResizeMode::Nearest(_)) {
            refuse!("interpolates in f32, not in {}", x.dtype);
        }
        Ok(one(TensorType { dtype: x.dtype, shape: self.shape.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        if let ResizeMode::Nearest(_) = self.mode {
            let taps: Vec<Taps> = (0..self.shape.rank()).map(|axis| self.taps(axis, x.shape()[axis])).collect();
            let strides = x.shape().row_major_strides();
            return one(pick(x, &self.shape, 0.0, |index| {
                Some((0..index.len()).map(|axis| taps[axis].index[index[axis]] as usize * strides[axis]).sum())
            }));
        }
        let (mut items, mut shape) = (x.to_f64(), x.shape().clone());
        for axis in 0..shape.rank() {
            if shape[axis] == self.shape[axis] && self.scale[axis] == 1.0 {
                continue;
            }
            let taps = self.taps(axis, shape[axis]);
            let strides = shape.row_major_strides();
            let mut next = shape.clone();
            next[axis] = self.shape[axis];
            let mut out = Vec::with_capacity(next.elements());
            for_each_index(&next, |index| {
                let base: usize =
                    (0..index.len()).filter(|&other| other != axis).map(|other| index[other] * strides[other]).sum();
                let window = index[axis] * taps.per_output..(index[axis] + 1) * taps.per_output;
                let term =
                    |tap: usize| f64::from(taps.weight[tap]) * items[base + taps.index[tap] as usize * strides[axis]];
                out.push(window.map(term).sum());
            });
            (items, shape) = (out, next);
        }
        one(from_f64(shape, DType::F32, items))
    }

    fn flops(&self, _inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let per_element = match self.mode {
            ResizeMode::Nearest(_) => 0,
            ResizeMode::Linear => 8,
            ResizeMode::Cubic { .. } => 32,
        };
        (outputs[0].shape.elements() * per_element) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 / 0.6 is 5 in `f32` and a little less in `f64`; onnxruntime 1.31.1 takes element 5.
    #[test]
    fn coordinates_are_rounded_as_runtimes_round_them() {
        let resize = Resize {
            shape: Shape::from([6]),
            scale: [0.6f32].into_iter().collect(),
            mode: ResizeMode::Nearest(Rounding::Floor),
            coordinates: Coordinates::Asymmetric,
        };
        assert_eq!(resize.taps(0, 10).index, [0, 1, 3, 5, 6, 8]);
    }
}
