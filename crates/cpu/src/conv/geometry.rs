//! [`Window`]: a kernel of cells that slides over a picture.

use serde::{Deserialize, Serialize};

use crate::kernel::InvalidKernel;

/// The geometry of a convolution or pooling over two dimensions, rows first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Rows and columns of the input.
    pub input: [usize; 2],
    /// Rows and columns of the output.
    pub output: [usize; 2],
    /// Cells of the kernel.
    pub kernel: [usize; 2],
    /// Steps of the kernel.
    pub stride: [usize; 2],
    /// Distance between its cells.
    pub dilation: [usize; 2],
    /// Padding in front. What is behind follows from the output.
    pub pad: [usize; 2],
}

impl Window {
    /// Refuses numbers that no picture has, so that sums of their products do not overflow.
    pub(crate) fn check(&self) -> Result<(), InvalidKernel> {
        let small = |extent: usize| extent < 1 << 28;
        let all = [self.input, self.output, self.kernel, self.stride, self.dilation, self.pad];
        if !all.iter().flatten().all(|&extent| small(extent)) {
            return Err(InvalidKernel("an extent is beyond all pictures"));
        }
        if [self.kernel, self.stride, self.dilation].iter().flatten().any(|&extent| extent == 0) {
            return Err(InvalidKernel("kernel, stride and dilation are at least 1"));
        }
        let reach =
            |axis: usize| self.output[axis].max(1) * self.stride[axis] + self.kernel[axis] * self.dilation[axis];
        // Products of two numbers below 2^28 fit 64 bits with room to spare.
        if (0..2).any(|axis| 1 << 57 < reach(axis)) {
            return Err(InvalidKernel("a window reaches too far"));
        }
        Ok(())
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

    /// The outputs along an axis for which the kernel's cell `tap` lies in the input, as a range.
    pub(crate) fn inside(&self, axis: usize, tap: usize) -> std::ops::Range<usize> {
        let (stride, shift) = (self.stride[axis], tap * self.dilation[axis]);
        let first = self.pad[axis].saturating_sub(shift).div_ceil(stride);
        let end = (self.input[axis] + self.pad[axis]).saturating_sub(shift).div_ceil(stride);
        let end = end.min(self.output[axis]);
        first.min(end)..end
    }

    /// The kernel's cells along an axis that lie in the input at output `at`, as a range.
    #[inline(always)]
    pub(crate) fn taps_inside(&self, axis: usize, at: usize) -> std::ops::Range<usize> {
        let (dilation, shift) = (self.dilation[axis], at * self.stride[axis]);
        let first = self.pad[axis].saturating_sub(shift).div_ceil(dilation);
        let end = (self.input[axis] + self.pad[axis]).saturating_sub(shift).div_ceil(dilation);
        let end = end.min(self.kernel[axis]);
        first.min(end)..end
    }

    /// The input position of the kernel's cell `tap` at output `at`, where it lies in the input.
    #[inline(always)]
    pub(crate) fn source(&self, axis: usize, at: usize, tap: usize) -> Option<usize> {
        (at * self.stride[axis] + tap * self.dilation[axis])
            .checked_sub(self.pad[axis])
            .filter(|&source| source < self.input[axis])
    }
}
