//! How a convolution is divided into tasks.

use super::regions::{Region, covering_cell};
use super::{ConvBlocked, PANEL};
use crate::conv::Window;
use crate::gemm::tile::ROWS;
use crate::kernel::product;
use crate::simd::StorageType;
use crate::simd::vector::LANES;

/// Number of tasks to aim at: some for each of eight threads.
const TASKS: usize = 32;
/// Terms per output channel that make a task worth claiming: about 10 us.
const TERMS_MIN: usize = 1 << 15;
/// Pixels from which on images are large: larger than their weights.
pub(super) const PLANE_LARGE: usize = 28 * 28;
/// Elements of the input that a task of a large image reads: they stay in a second-level cache for the next panels.
const INPUT_MAX: usize = 1 << 16;
/// Images with fewer pixels, and at least this many channels, are summed tap by tap.
const PLANE_SMALL: usize = 100;
const CHANNELS_BY_TAPS: usize = 128;

/// Terms from which on the weights of a panel, 128 bytes each, do not stay in a second-level cache, and the terms of a part.
const TERMS_LARGE: usize = 1 << 11;
const TERMS_PART: usize = 1 << 8;

/// A panel of output channels.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// Its first block of output channels, and its number of blocks, 2 or 1.
    pub(super) block: usize,
    pub(super) blocks: usize,
    /// Offset of its weights.
    pub(super) weights: usize,
    /// The first word of its group's input channels.
    pub(super) in_word: usize,
    /// Words of its group's input channels.
    pub(super) in_words: usize,
}

/// Division of the outputs into parts of whole images or of rows of one.
#[derive(Clone, Copy)]
pub(super) struct Split {
    pub(super) images: usize,
    pub(super) rows: usize,
    /// Parts of the batch, and of an image's rows.
    pub(super) image_parts: usize,
    pub(super) row_parts: usize,
}

impl ConvBlocked {
    pub(super) fn panels(&self) -> usize {
        let [_, outs] = self.group_channels();
        let before_last = (self.groups - 1) * outs;
        before_last / outs.max(1) * outs.div_ceil(PANEL) + (self.out_channels - before_last).div_ceil(PANEL)
    }

    pub(super) fn panel(&self, number: usize) -> Panel {
        let ([_, outs], per_word) = (self.group_channels(), self.operands.per_word());
        let ins = if self.is_packed() { self.depth() } else { self.in_words() };
        let (group, first) = (number / outs.div_ceil(PANEL), number % outs.div_ceil(PANEL) * PANEL);
        let of_group = outs.min(self.out_channels - group * outs);
        let lanes = group * outs.next_multiple_of(LANES);
        let in_words = self.in_words().min(self.in_channels.div_ceil(per_word) - group * self.in_words());
        let own = if self.is_packed() { ins } else { in_words };
        Panel {
            block: (lanes + first) / LANES,
            blocks: (of_group - first).div_ceil(LANES).min(2),
            weights: (lanes * ins + first * own) * self.window.taps(),
            in_word: group * ins,
            in_words,
        }
    }

    /// The parts of the outputs of [`ConvBlocked::geometry`], or of the window as it is.
    pub(super) fn split(&self, window: &Window) -> Split {
        let [rows, columns] = window.output;
        let (plane, pixels) = (rows * columns, rows * columns * self.batch);
        let [ins, _] = self.group_channels();
        let terms = ins * window.taps();
        let parts = TASKS.div_ceil(self.panels());
        let least = (TERMS_MIN / terms.max(1)).max(8 * ROWS);
        let most = if plane < PLANE_LARGE {
            usize::MAX
        } else {
            // The elements of the input per output.
            let share = product(&[ins, window.stride[0], window.stride[1]]);
            INPUT_MAX / share.unwrap_or(usize::MAX).max(1)
        };
        let pixels = (pixels / parts).min(most).max(least);
        if plane <= pixels || self.by_taps() {
            let image_parts = self.batch.div_ceil((pixels / plane).max(1));
            let images = self.batch.div_ceil(image_parts);
            Split { images, rows, image_parts: self.batch.div_ceil(images), row_parts: 1 }
        } else {
            let part = rows.div_ceil(plane.div_ceil(pixels));
            let part = if columns == 1 { part.next_multiple_of(ROWS) } else { part };
            Split { images: 1, rows: part, image_parts: self.batch, row_parts: rows.div_ceil(part) }
        }
    }

    /// Whether sums run over the input channels for one tap after another, all outputs each time.
    ///
    /// Small images have many outputs at the border, and few with the same taps, so that their tiles would be low. The
    /// outputs of one tap are nearly the whole image.
    pub(super) fn by_taps(&self) -> bool {
        let window = &self.window;
        let padded = [0, 1]
            .iter()
            .any(|&axis| (0..window.kernel[axis]).any(|tap| window.inside(axis, tap) != (0..window.output[axis])));
        [self.operands, self.result] == [StorageType::F32; 2]
            && window.output_plane() < PLANE_SMALL
            && CHANNELS_BY_TAPS <= self.group_channels()[0]
            && padded
            && covering_cell(window).is_some()
    }

    /// Blocks of input channels, and rows of their taps, whose terms are summed at a time, if not all are.
    ///
    /// Sums between two parts are in the output, which must hold them exactly. The order of the terms stays the same.
    pub(super) fn part_of_terms(&self, region: &Region) -> Option<[usize; 2]> {
        let row = region.columns.taps.len() * self.pixel();
        let block = region.rows.taps.len() * row;
        let is_f32 = [self.operands, self.result] == [StorageType::F32; 2];
        // Few tiles read the weights too few times.
        if !is_f32 || region.outputs() < 3 * ROWS || region.blocks.len() * block < TERMS_LARGE {
            return None;
        }
        Some(match block <= TERMS_PART {
            true => [TERMS_PART / block, region.rows.taps.len()],
            false => [1, (TERMS_PART / row).max(1)],
        })
    }
}
