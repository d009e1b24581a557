//! [`Resize`]: another number of elements along some axes, by interpolation.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Layout, Shape, Tensor};

use super::MatMul;
use super::common::{arity, for_each_index, from_f64, one, pick, product};
use crate::axes::{Along, AxisChange, AxisMap, Band, Tile, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// How values between elements are interpolated.
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

/// The function from output indices to input coordinates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// As `AlignCorners`, from one relative position on the axis to another, 0 and 1 being its ends: a pair for each axis.
    /// Coordinates outside the tensor are clamped.
    Region(SmallVec<[[f32; 2]; 4]>),
}

/// Weighted elements of an axis: output `i` is the sum over `j` of `weight[i * per_output + j] * x[index[..]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps {
    /// Indices into the input's axis.
    pub index: Vec<u32>,
    /// Their weights.
    pub weight: Vec<f32>,
    /// Taps of one output.
    pub per_output: usize,
}

/// The largest extent whose rows are looked at one by one. No kernel takes more than 2^24, and no image is as large.
const BAND_EXTENT_MAX: usize = 1 << 16;

/// A range of a larger result, from a range of a larger input, along one axis. Coordinates are those of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeRange {
    /// The axis.
    pub axis: usize,
    /// The first index of the result in the whole one, and the extent of the whole one.
    pub output: [usize; 2],
    /// The first index of the input in the whole one, and the extent of the whole one.
    pub input: [usize; 2],
}

/// Resizes axes one by one.
///
/// `x: [..]` -> `shape`, same dtype; `f32` unless the mode is nearest. Refuses an empty tensor and another rank. ValueDef:
/// ONNX `Resize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// The shape of the result.
    pub shape: Shape,
    /// Output extent over input extent, as the file states it; not always the quotient of the extents.
    pub scale: SmallVec<[f32; 4]>,
    /// How values between elements are interpolated.
    pub mode: ResizeMode,
    /// The function from output indices to input coordinates.
    pub coordinates: Coordinates,
    /// Whether the kernel is stretched along axes that shrink, so that each element contributes.
    #[serde(default)]
    pub antialias: bool,
    /// The part of a larger result that is computed, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<ResizeRange>,
}

impl Resize {
    /// Whether an axis of `extent` elements is copied unchanged.
    pub fn keeps(&self, axis: usize, extent: usize) -> bool {
        if self.range_along(axis).is_some() {
            return false;
        }
        let whole = match &self.coordinates {
            Coordinates::Region(parts) => parts[axis] == [0.0, 1.0],
            _ => true,
        };
        whole && self.shape[axis] == extent && self.scale[axis] == 1.0
    }

    /// Whether the coordinate of output `ix` is outside an axis of `extent` elements: possible for a region only.
    pub fn is_outside(&self, axis: usize, extent: usize, ix: usize) -> bool {
        match &self.coordinates {
            Coordinates::Region(parts) => {
                let whole = self.whole(axis, extent);
                let x = self.coordinate_in(parts[axis], whole, whole.output[0] + ix);
                !(0.0..=whole.input[1] as f32 - 1.0).contains(&x)
            }
            _ => false,
        }
    }

    /// The elements and weights of each output along an axis of `extent` elements.
    pub fn taps(&self, axis: usize, extent: usize) -> Taps {
        let mut taps = self.taps_in_whole(axis, extent);
        let first = self.whole(axis, extent).input[0] as u32;
        taps.index.iter_mut().for_each(|at| *at -= first);
        taps
    }

    /// The same with indices of the whole input, if this is a part.
    fn taps_in_whole(&self, axis: usize, extent: usize) -> Taps {
        let whole = self.whole(axis, extent);
        let extent = whole.input[1];
        let mut taps = Taps { index: Vec::new(), weight: Vec::new(), per_output: 1 };
        for ix in 0..self.shape[axis] {
            let x = self.coordinate(axis, whole, whole.output[0] + ix);
            let shrink = if self.antialias { f64::from(self.scale[axis]).min(1.0) } else { 1.0 };
            let found: SmallVec<[(f64, f64); 4]> = match self.mode {
                ResizeMode::Nearest(rounding) => {
                    let cell = match rounding {
                        Rounding::HalfDown => (x - 0.5).ceil(),
                        Rounding::HalfUp => (x + 0.5).floor(),
                        Rounding::Floor => x.floor(),
                        Rounding::Ceil => x.ceil(),
                    };
                    [(cell, 1.0)].into_iter().collect()
                }
                ResizeMode::Linear if shrink < 1.0 => {
                    normalised(cells(x, 1.0, shrink, |distance| (1.0 - distance).max(0.0)))
                }
                ResizeMode::Linear => {
                    let part = x - x.floor();
                    [(x.floor(), 1.0 - part), (x.floor() + 1.0, part)].into_iter().collect()
                }
                ResizeMode::Cubic { a, exclude_outside } => {
                    let mut near = cells(x, 2.0, shrink, |distance| keys(distance, f64::from(a)));
                    if exclude_outside {
                        let is_outside = |cell: f64| !(0.0..extent as f64).contains(&cell);
                        near.iter_mut().filter(|(cell, _)| is_outside(*cell)).for_each(|(_, weight)| *weight = 0.0);
                    }
                    if exclude_outside || shrink < 1.0 { normalised(near) } else { near }
                }
            };
            taps.per_output = found.len();
            for (cell, weight) in found {
                taps.index.push(cell.clamp(0.0, extent as f64 - 1.0) as u32);
                taps.weight.push(weight as f32);
            }
        }
        taps
    }

    /// The elements that each output reads along an axis of `extent` elements.
    fn band(&self, axis: usize, extent: usize) -> Band {
        let (taps, whole) = (self.taps(axis, extent), self.whole(axis, extent));
        let reads = taps.index.iter().enumerate().map(|(ix, &at)| [ix / taps.per_output, at as usize]);
        Band::around(axis, [whole.input[1], whole.output[1]], reads)
    }

    fn range_along(&self, axis: usize) -> Option<ResizeRange> {
        self.range.filter(|range| range.axis == axis)
    }

    /// The range along an axis of `extent` elements: everything, unless the result is a part.
    fn whole(&self, axis: usize, extent: usize) -> ResizeRange {
        let everything = ResizeRange { axis, output: [0, self.shape[axis]], input: [0, extent] };
        self.range_along(axis).unwrap_or(everything)
    }

    /// In `f32` as in the reference runtimes: rounding decides which element is nearest. `ix` is an index of the whole result.
    fn coordinate(&self, axis: usize, whole: ResizeRange, ix: usize) -> f64 {
        let (x, scale) = (ix as f32, self.scale[axis]);
        let (from, to) = (whole.input[1] as f32, whole.output[1] as f32);
        let half_pixel = (x + 0.5) / scale - 0.5;
        f64::from(match &self.coordinates {
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
            Coordinates::Region(parts) => self.coordinate_in(parts[axis], whole, ix).clamp(0.0, from - 1.0),
        })
    }

    /// The coordinate of output `ix` of the whole result for a region from `start` to `end`.
    fn coordinate_in(&self, [start, end]: [f32; 2], whole: ResizeRange, ix: usize) -> f32 {
        let (last, out) = (whole.input[1] as f32 - 1.0, whole.output[1] as f32);
        if out <= 1.0 {
            return 0.5 * (start + end) * last;
        }
        start * last + ix as f32 * (end - start) * last / (out - 1.0)
    }
}

/// The cells in reach of a kernel at `x`, with its weights. The kernel is stretched by `1 / shrink`.
fn cells(x: f64, reach: f64, shrink: f64, kernel: impl Fn(f64) -> f64) -> SmallVec<[(f64, f64); 4]> {
    let half = (reach / shrink).ceil() as i64;
    let cell = |shift: i64| x.floor() + shift as f64;
    (1 - half..=half).map(|shift| (cell(shift), kernel((x - cell(shift)).abs() * shrink))).collect()
}

/// Keys' kernel (1981), which is 0 from 2 on.
fn keys(d: f64, a: f64) -> f64 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}

/// Weights that sum to 1.
fn normalised(mut cells: SmallVec<[(f64, f64); 4]>) -> SmallVec<[(f64, f64); 4]> {
    let sum: f64 = cells.iter().map(|(_, weight)| weight).sum();
    cells.iter_mut().for_each(|(_, weight)| *weight /= sum);
    cells
}

impl Operator for Resize {
    const NAME: &'static str = "resize";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        if x.shape.rank() != self.shape.rank() || self.scale.len() != self.shape.rank() {
            refuse!(
                "input, result and scales must have one rank, got {}, {} and {} scales",
                x.shape,
                self.shape,
                self.scale.len()
            );
        }
        if x.shape.elements() == 0 || self.scale.iter().any(|&scale| scale.is_nan() || scale <= 0.0) {
            refuse!("input must not be empty and scales must be positive, got {} and {:?}", x.shape, self.scale);
        }
        if let Coordinates::Region(parts) = &self.coordinates
            && (parts.len() != self.shape.rank() || parts.iter().flatten().any(|part| !part.is_finite()))
        {
            refuse!("region must have finite ends for each of {} axes, got {parts:?}", self.shape.rank());
        }
        if self.antialias && matches!(self.mode, ResizeMode::Nearest(_)) {
            refuse!("`antialias` must be off with mode nearest, which has one tap");
        }
        if let Some(ResizeRange { axis, output, input }) = self.range {
            let fits = |[start, extent]: [usize; 2], count: usize| {
                start.checked_add(count).is_some_and(|end| end <= extent && extent <= TensorType::ELEMENTS_MAX)
            };
            if x.shape.rank() <= axis || !fits(output, self.shape[axis]) || !fits(input, x.shape[axis]) {
                refuse!(
                    "range must be a part of the whole result and of the whole input, got {:?} for {}",
                    self.range,
                    x.shape
                );
            }
            let held = input[0]..input[0] + x.shape[axis];
            if !self.taps_in_whole(axis, x.shape[axis]).index.iter().all(|&at| held.contains(&(at as usize))) {
                refuse!("range must have all elements that it reads, got {:?} for {}", self.range, x.shape);
            }
        }
        if x.dtype != DType::F32 && !matches!(self.mode, ResizeMode::Nearest(_)) {
            refuse!("input must be f32 to be interpolated, got {}; cast it first", x.dtype);
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
            if self.keeps(axis, shape[axis]) {
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
        one(from_f64(shape, x.dtype(), items))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        // The sums along each axis, transposed.
        let Some(mut dy) = outputs[0] else { return Ok(backward.none()) };
        let x = backward.shape(backward.operand(0));
        for axis in (0..x.rank()).filter(|&axis| !self.keeps(axis, x[axis])) {
            let (extent, taps, shape) = (x[axis], self.taps(axis, x[axis]), backward.shape(dy));
            let count = shape[axis];
            let (outer, inner) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
            let mut next = shape;
            next[axis] = extent;
            let repeats = count / extent;
            let is_repeated = taps.per_output == 1
                && count.is_multiple_of(extent)
                && taps.index.iter().enumerate().all(|(ix, &at)| at as usize == ix / repeats);
            let sums = if is_repeated {
                let parts = backward.reshape(dy, Shape::from([outer, extent, repeats, inner]))?;
                backward.sum(parts, [2])?
            } else {
                let mut matrix = vec![0.0f32; count * extent];
                for (tap, (&at, weight)) in taps.index.iter().zip(&taps.weight).enumerate() {
                    // Transposed unless the axis is the last.
                    let out = tap / taps.per_output;
                    matrix[if inner == 1 { out * extent + at as usize } else { at as usize * count + out }] += weight;
                }
                let dims = if inner == 1 { [count, extent] } else { [extent, count] };
                let matrix = Tensor::new(Shape::from(dims), matrix).expect("the extents are those of the matrix");
                let matrix = backward.constant(matrix.cast(backward.ty(dy).dtype));
                if inner == 1 {
                    let rows = backward.reshape(dy, Shape::from([outer, count]))?;
                    backward.add(MatMul::default(), &[rows, matrix])?
                } else {
                    let planes = backward.reshape(dy, Shape::from([outer, count, inner]))?;
                    backward.add(MatMul::default(), &[matrix, planes])?
                }
            };
            dy = backward.reshape(sums, next)?;
        }
        Ok(smallvec![Some(dy)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let work = if let ResizeMode::Nearest(_) = self.mode { Work::Movement } else { Work::Arithmetic };
        let x = &inputs[0].shape;
        let along = |axis| match (self.keeps(axis, x[axis]), self.shape[axis].max(x[axis]) <= BAND_EXTENT_MAX) {
            (true, _) => Along::Same(axis),
            (false, true) => Along::Band(self.band(axis, x[axis])),
            (false, false) => Along::Whole,
        };
        AxisMap::unary(work, output, along)
    }

    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        match change {
            AxisChange::Tile(Tile { axis, start, count, read, .. }) => {
                let extent = inputs[0].shape[axis];
                let mut op = self.clone();
                op.shape[axis] = count;
                if !self.keeps(axis, extent) {
                    let whole = self.whole(axis, extent);
                    if self.range.is_some_and(|range| range.axis != axis) {
                        return None;
                    }
                    let [output, input] = [whole.output[0] + start, whole.input[0] + read[0]];
                    op.range =
                        Some(ResizeRange { axis, output: [output, whole.output[1]], input: [input, whole.input[1]] });
                }
                Some(op.into())
            }
            AxisChange::ChannelsBlocked(block) if self.keeps(1, inputs[0].shape[1]) => {
                let shape = Layout::ChannelsBlocked(block).physical(&self.shape);
                let mut op = Resize { shape, ..self.clone() };
                op.scale.push(1.0);
                if let Coordinates::Region(parts) = &mut op.coordinates {
                    parts.push([0.0, 1.0]);
                }
                Some(op.into())
            }
            AxisChange::ChannelsBlocked(_) | AxisChange::ChannelsLast => None,
        }
    }

    fn flops(&self, _inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let per_element = match self.mode {
            ResizeMode::Nearest(_) => 0,
            ResizeMode::Linear => 8,
            ResizeMode::Cubic { .. } => 32,
        };
        product([outputs[0].shape.elements(), per_element])
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
            antialias: false,
            range: None,
        };
        assert_eq!(resize.taps(0, 10).index, [0, 1, 3, 5, 6, 8]);
    }
}
