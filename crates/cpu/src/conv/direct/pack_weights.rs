//! The order in which the kernel reads weights.

use super::{ConvBlocked, PANEL};
use crate::simd::StorageType;
use crate::simd::vector::LANES;

impl ConvBlocked {
    /// Weights `[out_channels, in_channels / groups, ..kernel]` in the order in which the kernel reads them. Each group
    /// has panels of 32 output channels (the last may have 16, filled up with zeros); a panel has, for each block of 16
    /// input channels, tap, and channel of the block, its 32 weights. A row-major input has blocks of one channel, a
    /// packed one a single block. In half precision the weights of two channels are neighbors, in int8 those of four.
    /// With a zero point, its contributions to sums follow.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<u8> {
        let (ins, outs) = (self.in_channels / self.groups, self.out_channels / self.groups);
        let (taps, per_word) = (self.window.taps(), self.operands.per_word());
        let in_block = if self.is_packed() { self.depth().max(1) * per_word } else { self.in_block() * per_word };
        assert_eq!(weights.len(), self.out_channels * ins * taps, "the weights must have the kernel's shape");
        let mut packed = Vec::with_capacity(self.groups * outs.next_multiple_of(LANES) * ins * taps);
        // Packed pixels are filled up with words of zeros.
        let filled = if self.is_packed() { self.depth() * per_word } else { ins };
        for group in 0..self.groups {
            for first in (0..outs).step_by(PANEL) {
                let width = PANEL.min(outs.next_multiple_of(LANES) - first);
                for block in (0..filled).step_by(in_block) {
                    for tap in 0..taps {
                        for word in (block..filled.min(block + in_block)).step_by(per_word) {
                            for out in first..first + width {
                                packed.extend((word..word + per_word).map(|channel| {
                                    match out < outs && channel < ins {
                                        true => weights[((group * outs + out) * ins + channel) * taps + tap],
                                        false => 0.0,
                                    }
                                }));
                            }
                        }
                    }
                }
            }
        }
        match self.operands {
            StorageType::U8 => {
                let mut bytes = StorageType::I8.bytes(&packed);
                bytes.extend(self.shifts(weights).into_iter().flat_map(i32::to_le_bytes));
                bytes
            }
            operands => operands.bytes(&packed),
        }
    }
}
