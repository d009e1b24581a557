//! [`Axes`]: extents and strides, joined where they are walked as one.

use std::ops::Range;

/// The most extents.
pub(crate) const RANK: usize = 16;

/// An axis: its extent and its stride in elements.
#[derive(Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) extent: usize,
    pub(crate) stride: usize,
}

/// Some axes, the outermost first.
#[derive(Clone, Copy)]
pub(crate) struct Axes {
    all: [Axis; RANK],
    rank: usize,
}

impl Axes {
    pub(crate) const NONE: Axes = Axes { all: [Axis { extent: 1, stride: 0 }; RANK], rank: 0 };

    /// The axes of an operand with these strides; at most [`RANK`] extents may differ from 1.
    pub(crate) fn of(shape: &[usize], strides: &[usize]) -> Axes {
        let mut axes = Axes::NONE;
        shape.iter().zip(strides).for_each(|(&extent, &stride)| axes.push(Axis { extent, stride }));
        axes
    }

    /// Adds an axis within the others. It continues the last one if both are walked at one stride.
    pub(crate) fn push(&mut self, axis: Axis) {
        if axis.extent == 1 {
            return;
        }
        if let Some(last) = self.all[..self.rank].last_mut()
            && last.stride == axis.extent * axis.stride
        {
            *last = Axis { extent: last.extent * axis.extent, stride: axis.stride };
            return;
        }
        self.all[self.rank] = axis;
        self.rank += 1;
    }

    /// The innermost axis; without axes, one of extent 1.
    pub(crate) fn last(&self) -> Axis {
        self.all[..self.rank].last().copied().unwrap_or(Axis { extent: 1, stride: 0 })
    }

    /// The outermost axis; without axes, one of extent 1.
    pub(crate) fn first(&self) -> Axis {
        self.all[..self.rank].first().copied().unwrap_or(Axis { extent: 1, stride: 0 })
    }

    /// The same with another extent of the outermost axis.
    pub(crate) fn with_first(mut self, extent: usize) -> Axes {
        if let Some(first) = self.all[..self.rank].first_mut() {
            first.extent = extent;
        }
        self
    }

    fn others(&self) -> &[Axis] {
        &self.all[..self.rank.saturating_sub(1)]
    }

    /// The positions of all axes but the innermost.
    pub(crate) fn outer(&self) -> usize {
        self.others().iter().map(|axis| axis.extent).product()
    }

    /// The element at a position of all axes but the innermost.
    pub(crate) fn at(&self, mut position: usize) -> usize {
        let mut at = 0;
        for axis in self.others().iter().rev() {
            at += position % axis.extent * axis.stride;
            position /= axis.extent;
        }
        at
    }

    /// The parts of `count` elements from a position on that lie along the innermost axis, as groups of equal ones.
    #[inline(always)]
    pub(crate) fn parts(&self, position: usize, count: usize) -> Parts<'_> {
        let Axis { extent, .. } = self.last();
        let (mut row, column) = (position / extent, position % extent);
        let mut along = [0; RANK];
        let mut start = 0;
        for (along, axis) in along.iter_mut().zip(self.others()).rev() {
            *along = row % axis.extent;
            row /= axis.extent;
            start += *along * axis.stride;
        }
        Parts { axes: self, along, start, column, at: 0, count }
    }
}

/// Neighboring parts of one length along the innermost axis: those along the axis around it, or a single one.
pub(crate) struct Group {
    /// The positions of their elements, counted from the first element of all groups.
    pub(crate) range: Range<usize>,
    /// Elements of a part.
    pub(crate) length: usize,
    /// The element where the first part begins, and the distance from each part to the next. The other elements of a part
    /// follow at the stride of the innermost axis.
    pub(crate) start: usize,
    pub(crate) step: usize,
}

/// An iterator over groups of parts: an inner loop over a group needs no carries from axis to axis.
pub(crate) struct Parts<'a> {
    axes: &'a Axes,
    /// The position along each axis but the innermost, so that only the first part takes divisions, and its element.
    along: [usize; RANK],
    start: usize,
    /// The position along the innermost axis.
    column: usize,
    at: usize,
    count: usize,
}

impl Iterator for Parts<'_> {
    type Item = Group;

    #[inline(always)]
    fn next(&mut self) -> Option<Group> {
        let left = self.count - self.at;
        if left == 0 {
            return None;
        }
        let Axis { extent, stride } = self.axes.last();
        let others = self.axes.others();
        let (length, parts) = match (self.column, others.last()) {
            (0, Some(axis)) if extent <= left => {
                (extent, (left / extent).min(axis.extent - self.along[others.len() - 1]))
            }
            (column, _) => ((extent - column).min(left), 1),
        };
        let range = self.at..self.at + parts * length;
        let step = others.last().map_or(0, |axis| axis.stride);
        let group = Group { range, length, start: self.start + self.column * stride, step };
        (self.at, self.column) = (group.range.end, 0);
        let mut more = parts;
        for (along, axis) in self.along.iter_mut().zip(others).rev() {
            (*along, self.start) = (*along + more, self.start + more * axis.stride);
            if *along < axis.extent {
                break;
            }
            (*along, self.start, more) = (0, self.start - axis.extent * axis.stride, 1);
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_elements_in_order() {
        // Dense; a broadcast middle axis; a column; strides beyond the extents.
        let cases: [(&[usize], &[usize]); 5] = [
            (&[2, 3, 5], &[15, 5, 1]),
            (&[2, 3, 5], &[5, 0, 1]),
            (&[4, 3, 7], &[3, 1, 0]),
            (&[2, 1, 3, 4], &[100, 7, 20, 3]),
            (&[], &[]),
        ];
        for (shape, strides) in cases {
            let all: usize = shape.iter().product();
            let element = |mut position: usize| {
                shape.iter().zip(strides).rev().fold(0, |at, (&extent, &stride)| {
                    let along = position % extent;
                    position /= extent;
                    at + along * stride
                })
            };
            let axes = Axes::of(shape, strides);
            for position in 0..all {
                for count in 0..=all - position {
                    let mut found = Vec::new();
                    for Group { range, length, start, step } in axes.parts(position, count) {
                        assert_eq!(range.start, found.len());
                        found.extend(
                            (0..range.len()).map(|ix| start + ix / length * step + ix % length * axes.last().stride),
                        );
                    }
                    assert_eq!(found, (position..position + count).map(element).collect::<Vec<_>>());
                }
            }
        }
    }
}
