//! Slices, tiles and blocks, for operators of several formats.

use ir::Refusal;
use ir::ops::Slice;
use types::Shape;

use super::{ImportedNode, Operand, refuse};

/// A range with a step along an axis. Bounds are clamped; negative ones count from the end; absent ones are the ends.
#[derive(Clone, Copy)]
pub(crate) struct StridedRange {
    pub(crate) begin: Option<i64>,
    pub(crate) end: Option<i64>,
    pub(crate) step: i64,
}

impl StridedRange {
    /// Narrows a slice to this range along an axis of `extent` elements.
    pub(crate) fn narrow(self, slice: &mut Slice, axis: usize, extent: usize) -> Result<(), Refusal> {
        let StridedRange { begin, end, step } = self;
        let extent = extent as i64;
        let counted = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
        let (start, span) = match step {
            0 => refuse!("step must not be 0"),
            1.. => {
                let start = begin.map_or(0, counted).clamp(0, extent);
                (start, end.map_or(extent, counted).clamp(0, extent) - start)
            }
            _ => {
                let start = begin.map_or(extent - 1, counted).clamp(-1, extent - 1);
                (start, start - end.map_or(-1, counted).clamp(-1, extent - 1))
            }
        };
        let size = i64::try_from(step.unsigned_abs()).unwrap_or(i64::MAX);
        let count = if span <= 0 { 0 } else { (span - 1) / size + 1 };
        slice.count[axis] = count as usize;
        slice.start[axis] = if count == 0 { 0 } else { start as usize };
        slice.step[axis] = if count <= 1 { 1 } else { step as isize };
        Ok(())
    }
}

impl<N> ImportedNode<'_, N> {
    /// `x` with an axis reversed.
    pub(crate) fn reversed(&mut self, x: Operand, axis: usize) -> Result<Operand, Refusal> {
        let shape = self.shape(x);
        let mut slice = Slice::whole(&shape);
        StridedRange { begin: None, end: None, step: -1 }.narrow(&mut slice, axis, shape[axis])?;
        self.apply(slice, &[x])
    }

    /// A tensor repeated along each axis: an axis of extent 1 is inserted before it and expanded.
    pub(crate) fn tiled(&mut self, x: Operand, repeats: &[usize]) -> Result<Operand, Refusal> {
        let shape = self.shape(x);
        let (mut split, mut repeated, mut out) = (Shape::scalar(), Shape::scalar(), Shape::scalar());
        for (&extent, &repeat) in shape.iter().zip(repeats) {
            if repeat != 1 {
                split.push(1);
                repeated.push(repeat);
            }
            split.push(extent);
            repeated.push(extent);
            out.push(extent.saturating_mul(repeat));
        }
        let x = self.reshape(x, split)?;
        let x = self.expand(x, repeated)?;
        self.reshape(x, out)
    }

    /// Extents of an image batch.
    fn image(&self, x: Operand) -> Result<[usize; 4], Refusal> {
        let shape = self.shape(x);
        match <[usize; 4]>::try_from(&shape[..]) {
            Ok(extents) => Ok(extents),
            Err(_) => refuse!("input must have rank 4, got {shape}"),
        }
    }

    /// Moves channels to blocks of `block` by `block` cells. The new channels vary slowest if `depth_first`.
    pub(crate) fn depth_to_space(&mut self, x: Operand, block: usize, depth_first: bool) -> Result<Operand, Refusal> {
        let [n, c, h, w] = self.image(x)?;
        let cells = block.saturating_mul(block);
        if !c.is_multiple_of(cells) {
            refuse!("channels must be a multiple of {block} x {block}, got {c}");
        }
        let depth = c / cells;
        let (split, order) = match depth_first {
            false => ([n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2]),
            true => ([n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3]),
        };
        let x = self.reshape(x, Shape::from(split))?;
        let x = self.transpose(x, &order)?;
        self.reshape(x, Shape::from([n, depth, h * block, w * block]))
    }

    /// The inverse of [`depth_to_space`](Self::depth_to_space).
    pub(crate) fn space_to_depth(&mut self, x: Operand, block: usize, depth_first: bool) -> Result<Operand, Refusal> {
        let [n, c, h, w] = self.image(x)?;
        if !h.is_multiple_of(block) || !w.is_multiple_of(block) {
            refuse!("height and width must be multiples of {block}, got {h} x {w}");
        }
        let x = self.reshape(x, Shape::from([n, c, h / block, block, w / block, block]))?;
        let order = if depth_first { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
        let x = self.transpose(x, &order)?;
        self.reshape(x, Shape::from([n, c * block * block, h / block, w / block]))
    }
}
