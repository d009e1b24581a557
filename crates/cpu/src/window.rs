//! [`Window`]: where the windows of convolutions and pools lie along one axis.

use std::ops::Range;

use crate::kernel::{Fit, require};

/// No extent, stride, pad or dilation is larger, so that positions never overflow.
const LIMIT: usize = 1 << 31;

/// Windows along one axis: tap `k` of output `o` reads input `o * stride + k * dilation - pad`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    pub(crate) pad: usize,
}

impl Window {
    /// The windows along `axis`, after a check of every number.
    pub(crate) fn new(
        axis: usize,
        input: [usize; 2],
        output: [usize; 2],
        kernel: [usize; 2],
        [stride, dilation, pad]: [[usize; 2]; 3],
    ) -> Fit<Window> {
        let window = Window {
            input: input[axis],
            output: output[axis],
            kernel: kernel[axis],
            stride: stride[axis],
            dilation: dilation[axis],
            pad: pad[axis],
        };
        let Window { input, output, kernel, stride, dilation, pad } = window;
        require(1 <= kernel && 1 <= stride && 1 <= dilation, "an empty kernel, or a stride or dilation of zero")?;
        let largest = [input, output, kernel, stride, dilation, pad].into_iter().max().unwrap_or(0);
        require(largest < LIMIT, "an extent is too large")?;
        Ok(window)
    }

    /// The input position of tap `k` of output `o`; it may lie in the pads.
    #[inline(always)]
    pub(crate) fn at(self, output: usize, tap: usize) -> isize {
        (output * self.stride + tap * self.dilation) as isize - self.pad as isize
    }

    /// The input position of tap `k` of output `o` where it lies inside the input.
    #[inline(always)]
    pub(crate) fn inside(self, output: usize, tap: usize) -> Option<usize> {
        usize::try_from(self.at(output, tap)).ok().filter(|&at| at < self.input)
    }

    /// The outputs of `range` whose tap `k` lies inside the input.
    #[inline(always)]
    pub(crate) fn outputs(self, tap: usize, range: Range<usize>) -> Range<usize> {
        let shift = (tap * self.dilation) as isize - self.pad as isize;
        let stride = self.stride;
        let (first, end) = if stride == 1 {
            ((-shift).max(0) as usize, (self.input as isize - shift).max(0) as usize)
        } else {
            let first = ((-shift).max(0) as usize).div_ceil(stride);
            (first, ((self.input as isize - shift).max(0) as usize).div_ceil(stride))
        };
        let first = first.max(range.start);
        first..end.min(range.end).max(first)
    }

    /// The taps of output `o` whose position lies in `low..high`.
    pub(crate) fn taps(self, output: usize, low: isize, high: isize) -> Range<usize> {
        let start = self.at(output, 0);
        let dilation = self.dilation as isize;
        let first = ((low - start).max(0) as usize).div_ceil(dilation as usize).min(self.kernel);
        let end = ((high - start).max(0) as usize).div_ceil(dilation as usize).min(self.kernel);
        first..end.max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_with_a_count() {
        for stride in 1..4 {
            for dilation in 1..4 {
                for pad in 0..5 {
                    let window = Window { input: 6, output: 9, kernel: 4, stride, dilation, pad };
                    for tap in 0..4 {
                        let want: Vec<usize> = (2..8).filter(|&output| window.inside(output, tap).is_some()).collect();
                        assert_eq!(window.outputs(tap, 2..8).collect::<Vec<_>>(), want);
                    }
                    for output in 0..9 {
                        let want: Vec<usize> =
                            (0..4).filter(|&tap| (-2..7).contains(&window.at(output, tap))).collect();
                        assert_eq!(window.taps(output, -2, 7).collect::<Vec<_>>(), want);
                    }
                }
            }
        }
    }
}
