//! [`Axes`]: extents and strides, joined where they are walked as one.

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

    /// Calls `work(start, range)` for the parts of `count` elements from a position on that lie along the innermost axis:
    /// those of `range`, counted from the position, are at `start` and on at that axis' stride.
    #[inline(always)]
    pub(crate) fn for_each_part(
        &self,
        position: usize,
        count: usize,
        mut work: impl FnMut(usize, std::ops::Range<usize>),
    ) {
        let Axis { extent, stride } = self.last();
        let (mut row, mut column) = (position / extent, position % extent);
        // The position along each other axis, so that only the first part takes divisions.
        let mut along = [0; RANK];
        let mut start = 0;
        for (along, axis) in along.iter_mut().zip(self.others()).rev() {
            *along = row % axis.extent;
            row /= axis.extent;
            start += *along * axis.stride;
        }
        let mut at = 0;
        while at < count {
            let length = (extent - column).min(count - at);
            work(start + column * stride, at..at + length);
            (at, column) = (at + length, 0);
            for (along, axis) in along.iter_mut().zip(self.others()).rev() {
                (*along, start) = (*along + 1, start + axis.stride);
                if *along < axis.extent {
                    break;
                }
                (*along, start) = (0, start - axis.extent * axis.stride);
            }
        }
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
                    axes.for_each_part(position, count, |start, range| {
                        assert_eq!(range.start, found.len());
                        found.extend((0..range.len()).map(|ix| start + ix * axes.last().stride));
                    });
                    assert_eq!(found, (position..position + count).map(element).collect::<Vec<_>>());
                }
            }
        }
    }
}
