//! The order in which the kernel reads weights.

use std::ops::Range;

use super::ConvBlocked;
use crate::conv::dynamic::WeightView;
use crate::gemm::{saturation, weights};
use crate::simd::StorageType;
use crate::simd::vector::LANES;
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Packed weights of some output channels that joined groups have, and of the input channels that they read.
pub(crate) struct PackedPanel {
    unit: usize,
    channels: Range<usize>,
    lanes: Range<usize>,
}

impl ConvBlocked {
    /// Weights `[out_channels, channels of a group, ..kernel]` in the order in which the kernel reads them. Joined groups
    /// have blocks of output channels, filled up with zeros: of 16 in `f32`, otherwise of 32, the last of 16 or 32. A block
    /// has, for each block of 16 input channels, tap, and channel of that block, its 16 or 32 weights. A row-major input
    /// has blocks of one channel, a packed one a single block. In half precision the weights of two channels are
    /// neighbors, in int8 those of four. Blocks have only the weights of the input channels that they read, with zeros
    /// between joined groups. Int8 weights are followed by their marks (`gemm::saturation`), and with a zero point by its
    /// contributions to sums; in int8 for `f32` operands, a scale
    /// for each lane.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<u8> {
        let ([ins, _], taps) = (self.part_channels(), self.window.taps());
        assert_eq!(weights.len(), self.out_channels * ins * taps, "the weights must have the kernel's shape");
        let (levels, scales) = weights::levels(self.weights, weights, self.out_channels, |at| at / (ins * taps));
        let weights = &*levels;
        let packed = self.pack_panels(weights, &self.packed_panels());
        match self.operands {
            StorageType::U8 => {
                let mut bytes = StorageType::I8.bytes(&packed);
                bytes.extend(saturation::marks(&bytes));
                bytes.extend(self.shifts(weights).into_iter().flat_map(i32::to_le_bytes));
                bytes
            }
            StorageType::F32 => weights::stored(self.weights, &packed, scales, self.lanes()),
            operands => operands.bytes(&packed),
        }
    }

    /// The panels of packed weights, in their order.
    pub(crate) fn packed_panels(&self) -> Vec<PackedPanel> {
        let per_word = self.operands.per_word();
        let mut panels = Vec::new();
        for (unit, span) in (0..self.units()).flat_map(|unit| self.spans(unit).map(move |span| (unit, span))) {
            let lanes = span.first * LANES..(span.first + span.blocks) * LANES;
            let channels = span.words.start * per_word..span.words.end * per_word;
            panels.extend(lanes.clone().step_by(self.packed_lanes()).map(|first| PackedPanel {
                unit,
                channels: channels.clone(),
                lanes: first..lanes.end.min(first + self.packed_lanes()),
            }));
        }
        panels
    }

    /// The elements of some panels, before they are rounded.
    pub(crate) fn pack_panels(&self, weights: &[f32], panels: &[PackedPanel]) -> Vec<f32> {
        let ([_, outs], [ins, part_outs]) = (self.unit_channels(), self.part_channels());
        let (taps, per_word) = (self.window.taps(), self.operands.per_word());
        let in_block = if self.is_packed() { self.depth().max(1) * per_word } else { self.in_block() * per_word };
        let size = |panel: &PackedPanel| panel.lanes.len() * panel.channels.len() * taps;
        let mut packed = Vec::with_capacity(panels.iter().map(size).sum());
        for PackedPanel { unit, channels, lanes } in panels {
            let weights = &weights[unit * outs * ins * taps..];
            let outs = outs.min(self.out_channels - unit * outs);
            for block in channels.clone().step_by(in_block) {
                for tap in 0..taps {
                    for word in (block..channels.end.min(block + in_block)).step_by(per_word) {
                        for out in lanes.clone() {
                            // Joined groups have no weights in common.
                            let part = out / part_outs.max(1) * ins;
                            packed.extend((word..word + per_word).map(|channel| {
                                match out < outs && (part..part + ins).contains(&channel) {
                                    true => weights[(out * ins + channel - part) * taps + tap],
                                    false => 0.0,
                                }
                            }));
                        }
                    }
                }
            }
        }
        packed
    }

    /// The same for `f32` weights in any order, on the threads of a run.
    ///
    /// # Panics
    /// Packed weights or weights of another number.
    pub(crate) fn pack_view(&self, weights: WeightView<'_>, packed: &mut [f32], pool: &Pool) {
        let (ins, outs) = (self.in_channels / self.groups, self.out_channels / self.groups);
        let [rows, columns] = self.window.kernel;
        let (taps, out_blocks) = (rows * columns, outs.div_ceil(LANES));
        let block = if self.reads_blocks() { LANES } else { ins };
        let order = if self.reads_blocks() { 1 } else { taps };
        let blocks = ins.div_ceil(block.max(1));
        let lanes = outs.next_multiple_of(LANES);
        assert_eq!(packed.len(), self.groups * lanes * ins * taps, "the packed weights must have their size");
        let packed = SharedMut::new(packed);
        pool.run(self.groups * out_blocks * blocks, &|task| {
            let (rest, first_in) = (task / blocks, task % blocks * block);
            let (group, first) = (rest / out_blocks, rest % out_blocks * LANES);
            let (width, count) = (LANES, block.min(ins - first_in));
            let start = (group * lanes + first) * ins * taps + first_in * taps * width;
            // SAFETY: tasks differ in the block of output or of input channels, and each has its own part.
            let cells = unsafe { packed.part(start, count * taps * width) };
            let filled = width.min(outs - first);
            if filled < width {
                cells.fill(0.0);
            }
            // Rows of weights are of a tap and an input channel. Row-major inputs have the taps of a channel together.
            let [tap_step, channel_step] = if order == 1 { [count * width, width] } else { [width, taps * width] };
            let copy = |lane: usize, channel: usize| {
                let mut to = channel * channel_step + lane;
                let Some(at) = weights.pair(group, first + lane, first_in + channel) else {
                    for _ in 0..taps {
                        cells[to] = 0.0;
                        to += tap_step;
                    }
                    return;
                };
                for row in 0..rows {
                    let mut from = at + weights.tap(0, row, 0);
                    for _ in 0..columns {
                        cells[to] = weights.items[from];
                        to += tap_step;
                        from = from.wrapping_add_signed(weights.column);
                    }
                }
            };
            copy_pairs([filled, count], weights.out < weights.channel, copy);
        });
    }
}

/// Calls `copy(lane, channel)` for all pairs. Neighbors in memory follow each other: lanes, or else channels.
#[inline(always)]
fn copy_pairs([lanes, channels]: [usize; 2], lanes_are_neighbors: bool, mut copy: impl FnMut(usize, usize)) {
    let (outer, inner) = if lanes_are_neighbors { (channels, lanes) } else { (lanes, channels) };
    for far in 0..outer {
        for near in 0..inner {
            let (lane, channel) = if lanes_are_neighbors { (near, far) } else { (far, near) };
            copy(lane, channel);
        }
    }
}
