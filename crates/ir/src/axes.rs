//! [`AxisMap`]: how the axes of an operator's first output relate to the axes of its operands.
//!
//! The map is the one place that states which elements an output depends on. Tiling, physical forms, half precision and
//! constant folding derive their rules from it, so that a new operator cannot be forgotten in any of them:
//! [`Operator::axes`](crate::Operator::axes) and [`Operator::with_axes`](crate::Operator::with_axes) have no default.
//!
//! ```text
//! conv   out [n, m, y, x]   input  [Same(0), Whole,   Window(2), Window(3)]
//!                           weight [Broadcast, Same(0), Broadcast, Broadcast]
//! ```
//!
//! A test in `tests/cases` changes single elements of operands and checks that only outputs that the map admits change.

use std::ops::Range;

use smallvec::SmallVec;
use types::Shape;

use crate::TensorType;

/// How the first output of a node depends on its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisMap {
    /// What is computed for each output element.
    pub work: Work,
    /// For each operand and each output axis: the elements that an index along the axis depends on.
    pub operands: SmallVec<[OperandAxes; 4]>,
}

/// For each output axis: the dependence of one operand.
pub type OperandAxes = SmallVec<[Along; 6]>;

/// What an operator computes for each output element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A function of the operands' elements at the same position, after NumPy broadcasting.
    Elementwise,
    /// A copy of one element of operand 0 (or of any operand, for a concatenation), or a constant.
    Movement,
    /// A function of the element at the same position and of statistics of its row.
    Normalization,
    /// Anything else: sums of products, reductions, interpolation.
    Arithmetic,
}

/// The elements of an operand that index `i` of an output axis depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Elements with index `i` along the given operand axis, whose extent is that of the output axis.
    Same(usize),
    /// Elements inside a window along an operand axis.
    Window(Window),
    /// Elements inside a band along an operand axis.
    Band(Band),
    /// The same elements for every `i`: the operand has no such axis, or an extent of 1.
    Broadcast,
    /// Any element.
    Whole,
}

/// A window that slides along an operand axis. Output index `i` reads indices `i * stride + tap * dilation - front` for each
/// `tap` below `kernel`; indices outside the axis are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The operand axis.
    pub axis: usize,
    /// Taps.
    pub kernel: usize,
    /// Distance between neighboring windows.
    pub stride: usize,
    /// Distance between neighboring taps.
    pub dilation: usize,
    /// Padding in front of the axis.
    pub front: usize,
}

/// Elements between two lines along an operand axis. Output index `i` reads indices from `(i * rise + low) / run` to
/// `(i * rise + high) / run`, both rounded down and clamped to the axis. Fewer may be read, never others.
///
/// ```text
/// resize to twice the rows   rise 1, run 2     row 5 of the result reads rows 2 and 3
/// padding of two rows        rise 1, run 1     row 5 of the result reads row 3
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// The operand axis.
    pub axis: usize,
    /// Operand indices that both lines rise by in [`Band::run`] output indices.
    pub rise: i64,
    /// See [`Band::rise`]; positive.
    pub run: i64,
    /// The start of the lower line, in parts of `run`.
    pub low: i64,
    /// The start of the upper line, in parts of `run`.
    pub high: i64,
}

/// A change of the axes of a node's values, see [`Operator::with_axes`](crate::Operator::with_axes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisChange {
    /// Axis 1, the channels, becomes the last axis of every operand and of the output.
    ChannelsLast,
    /// Axis 1 has blocks of this many channels, and the channel inside a block becomes an axis behind all others.
    ChannelsBlocked(u16),
    /// Only part of the output is computed.
    Tile(Tile),
}

/// A range of output indices along one axis, from operands that are cut to the elements it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The output axis.
    pub axis: usize,
    /// The first output index.
    pub start: usize,
    /// Output indices.
    pub count: usize,
    /// The first index of the cut operand, and the number of its indices, for an axis with a [`Window`] or a [`Band`].
    pub read: [usize; 2],
    /// Padding that remains in front of and behind the cut operand, for an axis with a [`Window`].
    pub pad: [usize; 2],
}

impl AxisMap {
    /// The map of an elementwise operator: operands broadcast as in NumPy.
    pub(crate) fn elementwise(inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let operands = inputs.iter().map(|input| broadcast_axes(&input.shape, &output.shape)).collect();
        AxisMap { work: Work::Elementwise, operands }
    }

    /// The map of an operator with one operand of the output's rank: `along` gives the dependence of each axis.
    pub(crate) fn unary(work: Work, output: &TensorType, along: impl FnMut(usize) -> Along) -> AxisMap {
        AxisMap { work, operands: [(0..output.shape.rank()).map(along).collect()].into_iter().collect() }
    }
}

/// The axes of an operand that is broadcast to `out`, aligned on the right.
pub(crate) fn broadcast_axes(shape: &Shape, out: &Shape) -> OperandAxes {
    let missing = out.rank() - shape.rank();
    (0..out.rank())
        .map(|axis| match axis.checked_sub(missing) {
            Some(own) if shape[own] == out[axis] => Along::Same(own),
            _ => Along::Broadcast,
        })
        .collect()
}

/// The axes of a vector along one output axis.
pub(crate) fn vector_axes(axis: usize, rank: usize) -> OperandAxes {
    (0..rank).map(|at| if at == axis { Along::Same(0) } else { Along::Broadcast }).collect()
}

/// The axes of an operand of the output's shape that is read element by element.
pub(crate) fn same_axes(rank: usize) -> OperandAxes {
    (0..rank).map(Along::Same).collect()
}

impl Window {
    /// The indices of an axis of `extent` elements that the outputs `range` read, and the padding that remains in front of
    /// and behind them. `None` if they read padding only.
    pub fn read(&self, extent: usize, range: &Range<usize>) -> Option<(Range<usize>, [usize; 2])> {
        let first = range.start * self.stride;
        let end = (range.end - 1) * self.stride + (self.kernel - 1) * self.dilation + 1;
        // Counted from the first cell of the padding.
        let cells = first.max(self.front)..end.min(self.front + extent);
        if cells.is_empty() {
            return None;
        }
        Some((cells.start - self.front..cells.end - self.front, [cells.start - first, end - cells.end]))
    }

    /// Whether output `index` reads element `at`.
    pub fn reads(&self, index: usize, at: usize) -> bool {
        (0..self.kernel).any(|tap| index * self.stride + tap * self.dilation == at + self.front)
    }
}

impl Band {
    /// The narrowest band of this slope around pairs of an output index and an operand index that it reads.
    pub(crate) fn around(axis: usize, [rise, run]: [usize; 2], reads: impl Iterator<Item = [usize; 2]>) -> Band {
        let (rise, run) = (rise as i64, run.max(1) as i64);
        let start = |[index, at]: [usize; 2]| at as i64 * run - index as i64 * rise;
        let (low, high) = reads.map(start).fold((i64::MAX, i64::MIN), |(low, high), at| (low.min(at), high.max(at)));
        // Nothing is read: any band.
        if low <= high { Band { axis, rise, run, low, high } } else { Band { axis, rise, run, low: 0, high: 0 } }
    }

    /// The indices of an axis of `extent` elements, at least one, that the outputs `range` read. `None` if the axis or the range
    /// is empty.
    pub fn read(&self, extent: usize, range: &Range<usize>) -> Option<Range<usize>> {
        let last = extent.checked_sub(1)? as i64;
        let at =
            |index: usize, start: i64| (index as i64 * self.rise + start).div_euclid(self.run).clamp(0, last) as usize;
        (!range.is_empty()).then(|| at(range.start, self.low)..at(range.end - 1, self.high) + 1)
    }

    /// Whether output `index` may read element `at` of an axis of `extent` elements.
    pub fn reads(&self, extent: usize, index: usize, at: usize) -> bool {
        self.read(extent, &(index..index + 1)).is_some_and(|range| range.contains(&at))
    }
}

/// The position of axis `axis` of `rank` axes when channels are last.
pub(crate) fn axis_with_channels_last(axis: usize, rank: usize) -> usize {
    match axis {
        0 => 0,
        1 => rank - 1,
        axis => axis - 1,
    }
}

/// One item for each axis, in the order that the axes have when channels are last.
pub(crate) fn with_channels_last<T: Clone>(items: &[T]) -> impl Iterator<Item = T> {
    let mut items = items.to_vec();
    let channels = items.remove(1);
    items.into_iter().chain([channels])
}
