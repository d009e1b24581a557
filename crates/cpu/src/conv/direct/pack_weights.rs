//! The order in which the kernel reads weights.

use super::{ConvBlocked, PANEL};
use crate::simd::StorageType;
use crate::simd::vector::LANES;

impl ConvBlocked {
    /// Weights `[out_channels, in_channels / groups, ..kernel]` as the kernel reads them: for each group panels of 32
    /// output channels (the last may have 16, and is filled up with zeros); in each panel for each block of 16 input
    /// channels, kernel cell, and channel of the block its 32 weights. For row-major inputs a block is one channel, for
    /// gathered ones all of a group. Of halves the weights of two channels are neighbours, of bytes those of four. Where `x`
    /// has a zero point, there follows what it adds to sums.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<u8> {
        let (ins, outs) = (self.in_channels / self.groups, self.out_channels / self.groups);
        let (taps, per_word) = (self.window.taps(), self.operands.per_word());
        let in_block = if self.is_packed() { self.depth().max(1) * per_word } else { self.in_block() * per_word };
        assert_eq!(weights.len(), self.out_channels * ins * taps, "the weights have the kernel's shape");
        let mut packed = Vec::with_capacity(self.groups * outs.next_multiple_of(LANES) * ins * taps);
        // Gathered pixels are filled up with words of zeros.
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
