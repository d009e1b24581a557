//! [`Window`]: the geometry of a convolution or pooling.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::kernel::InvalidKernel;

/// The geometry of a convolution or pooling over two dimensions, rows first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Rows and columns of the input.
    pub input: [usize; 2],
    /// Rows and columns of the output.
    pub output: [usize; 2],
    /// Taps of the kernel.
    pub kernel: [usize; 2],
    /// Stride of the kernel.
    pub stride: [usize; 2],
    /// Dilation: distance of its taps.
    pub dilation: [usize; 2],
    /// Padding in front; padding behind follows from the output.
    pub pad: [usize; 2],
}

/// Refuses groups that do not divide the channels.
pub(crate) fn check_groups(groups: usize, in_channels: usize, out_channels: usize) -> Result<(), InvalidKernel> {
    match 0 < groups && in_channels.is_multiple_of(groups) && out_channels.is_multiple_of(groups) {
        true => Ok(()),
        false => Err(InvalidKernel("`groups` must be >= 1 and divide the input and output channels")),
    }
}

impl Window {
    /// The window of one tap over one pixel.
    pub const ONE: Window =
        Window { input: [1, 1], output: [1, 1], kernel: [1, 1], stride: [1, 1], dilation: [1, 1], pad: [0, 0] };

    /// Refuses extents so large that sums of their products could overflow.
    pub(crate) fn check(&self) -> Result<(), InvalidKernel> {
        let small = |extent: usize| extent < 1 << 28;
        let all = [self.input, self.output, self.kernel, self.stride, self.dilation, self.pad];
        if !all.iter().flatten().all(|&extent| small(extent)) {
            return Err(InvalidKernel("extents must be below 2^28"));
        }
        if [self.kernel, self.stride, self.dilation].iter().flatten().any(|&extent| extent == 0) {
            return Err(InvalidKernel("kernel, stride and dilation must be >= 1"));
        }
        let reach =
            |axis: usize| self.output[axis].max(1) * self.stride[axis] + self.kernel[axis] * self.dilation[axis];
        // Products of two numbers below 2^28 fit 64 bits with a margin.
        if (0..2).any(|axis| 1 << 57 < reach(axis)) {
            return Err(InvalidKernel("stride times output and dilation times kernel must be below 2^57"));
        }
        Ok(())
    }

    /// Refuses other windows than those along the depth of volumes, whose planes are rows of one column.
    pub(crate) fn check_is_depth(&self) -> Result<(), InvalidKernel> {
        match [self.input[1], self.output[1], self.kernel[1], self.pad[1]] {
            [1, 1, 1, 0] => Ok(()),
            _ => Err(InvalidKernel("`depth` must have one column")),
        }
    }

    pub(crate) fn input_plane(&self) -> usize {
        self.input[0] * self.input[1]
    }

    pub(crate) fn output_plane(&self) -> usize {
        self.output[0] * self.output[1]
    }

    pub(crate) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// The outputs along an axis for which the kernel's tap is in the input.
    pub(crate) fn inside(&self, axis: usize, tap: usize) -> Range<usize> {
        let (stride, shift) = (self.stride[axis], tap * self.dilation[axis]);
        let first = self.pad[axis].saturating_sub(shift).div_ceil(stride);
        let end = (self.input[axis] + self.pad[axis]).saturating_sub(shift).div_ceil(stride);
        let end = end.min(self.output[axis]);
        first.min(end)..end
    }

    /// The outputs along an axis for which all taps of the kernel are in the input.
    pub(crate) fn interior(&self, axis: usize) -> Range<usize> {
        let (first, last) = (self.inside(axis, 0), self.inside(axis, self.kernel[axis] - 1));
        let start = first.start.max(last.start);
        start.min(first.end.min(last.end))..first.end.min(last.end)
    }

    /// The kernel's taps along an axis that are in the input at output `at`.
    #[inline(always)]
    pub(crate) fn taps_inside(&self, axis: usize, at: usize) -> Range<usize> {
        let (dilation, shift) = (self.dilation[axis], at * self.stride[axis]);
        let first = self.pad[axis].saturating_sub(shift).div_ceil(dilation);
        let end = (self.input[axis] + self.pad[axis]).saturating_sub(shift).div_ceil(dilation);
        let end = end.min(self.kernel[axis]);
        first.min(end)..end
    }

    /// The pixels between the first and the last row of the input that `count` output rows from `first` on read. Rows are counted
    /// over all planes.
    #[inline(always)]
    pub(crate) fn pixels_read(&self, first: usize, count: usize) -> Range<usize> {
        let (height, reach) = (self.output[0], (self.kernel[0] - 1) * self.dilation[0] + 1);
        let pixel = |row: usize, more: usize| {
            let in_plane = (row % height * self.stride[0] + more).saturating_sub(self.pad[0]).min(self.input[0]);
            (row / height * self.input[0] + in_plane) * self.input[1]
        };
        pixel(first, 0)..pixel(first + count - 1, reach)
    }

    /// The input position of the kernel's tap at output `at`, if it is in the input.
    #[inline(always)]
    pub(crate) fn source(&self, axis: usize, at: usize, tap: usize) -> Option<usize> {
        (at * self.stride[axis] + tap * self.dilation[axis])
            .checked_sub(self.pad[axis])
            .filter(|&source| source < self.input[axis])
    }
}
