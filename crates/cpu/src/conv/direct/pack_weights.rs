//! The order in which the kernel reads weights.

use std::ops::Range;

use super::ConvBlocked;
use crate::conv::dynamic::WeightView;
use crate::gemm::{saturation, weights};
use crate::simd::StorageType;
use crate::simd::vector::{LANES, Vector, with_vector};
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
        let ([ins, outs], [rows, columns]) = (self.unit_channels(), self.window.kernel);
        let (taps, out_blocks) = (rows * columns, outs.div_ceil(LANES));
        let block = if self.reads_blocks() { LANES } else { ins.max(1) };
        let order = if self.reads_blocks() { 1 } else { taps };
        let blocks = ins.div_ceil(block);
        assert_eq!(Some(packed.len()), self.weight_words(), "the packed weights must have their size");
        let (packed, isa) = (SharedMut::new(packed), pool.isa());
        pool.run(self.units() * out_blocks * blocks, &|task| {
            let (rest, number) = (task / blocks, task % blocks);
            let (unit, first) = (rest / out_blocks, rest % out_blocks * LANES);
            // The last joined groups may have fewer blocks, and not all blocks of outputs read all channels.
            let Some((start, channels)) = self.packed_block(unit, first / LANES) else { return };
            let first_in = channels.start + number * block;
            let (width, count) = (LANES, block.min(channels.end.saturating_sub(first_in)));
            let start = (start + (first_in - channels.start) * width) * taps;
            if count == 0 {
                return;
            }
            // SAFETY: tasks differ in the block of output or of input channels, and each has its own part.
            let cells = unsafe { packed.part(start, count * taps * width) };
            let filled = width.min(self.out_channels - unit * outs - first);
            // Rows of weights are of a tap and an input channel. Row-major inputs have the taps of a channel together.
            let steps = if order == 1 { [count * width, width] } else { [width, taps * width] };
            let block = Block { kernel: [rows, columns], lanes: filled, channels: count, steps };
            let pair = weights.pair(unit, first, first_in).filter(|_| self.joined == 1);
            match pair.zip(weights.neighboring_taps(self.window.kernel)) {
                Some((pair, (tap, is_reversed))) => {
                    let (items, strides, block) =
                        (&weights.items[pair + tap..], [weights.out, weights.channel], &block);
                    with_vector!(isa, pack_block(
                        items: &[f32], strides: [usize; 2], is_reversed: bool, block: &Block, cells: &mut [f32]
                    ));
                }
                None => block.pack_each(&weights, [unit, first, first_in], cells),
            }
        });
    }
}

/// A block of output channels with some input channels.
struct Block {
    /// Rows and columns of taps.
    kernel: [usize; 2],
    /// Output channels, at most sixteen, and input channels.
    lanes: usize,
    channels: usize,
    /// From one tap and from one input channel to the next in the packed weights.
    steps: [usize; 2],
}

impl Block {
    /// Packs weights one by one, from the given group, output and input channel on.
    fn pack_each(&self, weights: &WeightView<'_>, [unit, first, first_in]: [usize; 3], cells: &mut [f32]) {
        let ([rows, columns], [tap_step, channel_step]) = (self.kernel, self.steps);
        if self.lanes < LANES {
            cells.fill(0.0);
        }
        let copy = |lane: usize, channel: usize| {
            let mut to = channel * channel_step + lane;
            let Some(at) = weights.pair(unit, first + lane, first_in + channel) else {
                for _ in 0..rows * columns {
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
        copy_pairs([self.lanes, self.channels], weights.out < weights.channel, copy);
    }
}

/// Packs weights whose taps are neighbors, as vectors. `strides`: from one output channel and from one input channel to the next.
#[inline(always)]
fn pack_block<V: Vector>(
    items: &[f32],
    [lane, channel]: [usize; 2],
    is_reversed: bool,
    block: &Block,
    cells: &mut [f32],
) {
    let (taps, [tap_step, channel_step]) = (block.kernel[0] * block.kernel[1], block.steps);
    // Sixteen output channels of one tap are neighbors.
    if lane == 1 && block.lanes == LANES {
        for channel_ix in 0..block.channels {
            V::read(&items[channel_ix * channel..]).write(&mut cells[channel_ix * channel_step..]);
        }
        return;
    }
    // Runs of neighbors: the taps of all channels, or of one.
    let (runs, length) =
        if channel == taps && !is_reversed { (1, block.channels * taps) } else { (block.channels, taps) };
    for run in 0..runs {
        let items = &items[run * channel..];
        let (mut tap, mut place) = (0, run * channel_step);
        for first in (0..length).step_by(LANES) {
            let mut rows = [V::zero(); LANES];
            for (ix, row) in rows.iter_mut().enumerate().take(block.lanes) {
                *row = V::read_part(&items[ix * lane + first..], 0.0);
            }
            for column in V::transpose(rows).into_iter().take(length - first) {
                let own = if is_reversed { taps - 1 - tap } else { tap };
                column.write(&mut cells[place + own * tap_step..]);
                tap += 1;
                if tap == taps {
                    (tap, place) = (0, place + channel_step);
                }
            }
        }
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
