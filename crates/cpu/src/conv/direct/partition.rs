//! How a convolution is divided into tasks.

use std::ops::Range;

use super::regions::{Region, cells_by_cover, covering_cell, lengths_of_runs};
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

/// Neighboring blocks of output channels of a unit, of joined groups, that read the same input channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Its first block in the unit, and its number of blocks.
    pub(super) first: usize,
    pub(super) blocks: usize,
    /// Words of the unit's input channels.
    pub(super) words: Range<usize>,
}

impl Span {
    fn panels(&self) -> usize {
        self.blocks.div_ceil(PANEL / LANES)
    }
}

/// Blocks of output channels, and the input channels that they read.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockTerms {
    /// Blocks of sixteen output channels.
    pub blocks: usize,
    /// Input channels, counted for each block that reads them.
    pub all: usize,
    /// Those of blocks that are alone in their panel.
    pub single: usize,
}

/// A panel of output channels.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// Its first block of output channels, and its number of blocks, 2 or 1.
    pub(super) block: usize,
    pub(super) blocks: usize,
    /// Offset of its weights.
    pub(super) weights: usize,
    /// The first word of the input channels that it reads, and their number.
    pub(super) in_word: usize,
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
    /// The spans of joined groups, in order. All units but the last have the same.
    pub(super) fn spans(&self, unit: usize) -> impl Iterator<Item = Span> {
        let ([ins, outs], [part_ins, part_outs]) = (self.unit_channels(), self.part_channels());
        let (per_word, in_block) = (self.operands.per_word(), self.in_block());
        let of_unit = |all: usize, channels: usize| channels.min(all - unit * channels);
        let (ins, outs) = (of_unit(self.in_channels, ins), of_unit(self.out_channels, outs));
        let mut lane = 0;
        std::iter::from_fn(move || {
            let rest = outs.checked_sub(lane).filter(|&rest| rest != 0)?;
            let parts = lane / part_outs..outs.min(lane + LANES).div_ceil(part_outs);
            // Whole blocks in one group, or the rest of the unit in its last one.
            let in_part = parts.end * part_outs - lane;
            let blocks = match (parts.len(), in_part < rest) {
                (1, true) => (in_part / LANES).max(1),
                (1, false) => rest.div_ceil(LANES),
                _ => 1,
            };
            let words = match self.is_packed() {
                true => 0..self.depth(),
                // Blocks are read whole.
                false => {
                    let first = parts.start * part_ins / per_word;
                    first - first % in_block..ins.min(parts.end * part_ins).div_ceil(per_word)
                }
            };
            let span = Span { first: lane / LANES, blocks, words };
            lane += blocks * LANES;
            Some(span)
        })
    }

    /// A block of output channels of joined groups in packed weights: the words in front of it for each tap, and the words of the
    /// input channels that it reads.
    pub(super) fn packed_block(&self, unit: usize, block: usize) -> Option<(usize, Range<usize>)> {
        let [_, words] = self.panels_and_words(0)?;
        let mut start = unit * words;
        for span in self.spans(unit) {
            let own = LANES * span.words.len();
            if block < span.first + span.blocks {
                return Some((start + (block - span.first) * own, span.words));
            }
            start += span.blocks * own;
        }
        None
    }

    /// The input channels that blocks of output channels read.
    pub fn block_terms(&self) -> BlockTerms {
        let add = |mut sum: BlockTerms, span: Span| {
            let channels = span.words.len() * self.operands.per_word();
            sum.blocks += span.blocks;
            sum.all += span.blocks * channels;
            sum.single += span.blocks % (PANEL / LANES) * channels;
            sum
        };
        let first = self.spans(0).fold(BlockTerms::default(), add);
        let last = self.spans(self.units() - 1).fold(BlockTerms::default(), add);
        let sum = |part: fn(&BlockTerms) -> usize| part(&first) * (self.units() - 1) + part(&last);
        BlockTerms { blocks: sum(|terms| terms.blocks), all: sum(|terms| terms.all), single: sum(|terms| terms.single) }
    }

    /// The number of tiles of at most `rows` pixels for a block of output channels, and the sum of their taps.
    pub fn tiles(&self, rows: usize) -> [f64; 2] {
        let window = self.geometry();
        let images = self.split(&window).images.max(1);
        let tiles = |outputs: usize| (images * outputs).div_ceil(rows) as f64 * self.batch as f64 / images as f64;
        if self.by_taps() {
            let inside = |axis: usize, tap: usize| window.inside(axis, tap).len();
            let cells = cells_by_cover(&window).map(|cell| inside(0, cell[0]) * inside(1, cell[1]));
            return [cells.map(tiles).sum(); 2];
        }
        let runs = [0, 1].map(|axis| lengths_of_runs(&window, axis));
        let pairs = runs[0].iter().flat_map(|row| runs[1].iter().map(move |column| (row, column)));
        pairs.fold([0.0; 2], |[count, taps], (row, column)| {
            let own = tiles(row.0 * column.0);
            [count + own, taps + own * (row.1 * column.1) as f64]
        })
    }

    /// Panels of a unit, and words of its weights for each tap.
    fn panels_and_words(&self, unit: usize) -> Option<[usize; 2]> {
        self.spans(unit).try_fold([0usize; 2], |[panels, words], span| {
            let own = product(&[span.blocks, LANES, span.words.len()])?;
            Some([panels.checked_add(span.panels())?, words.checked_add(own)?])
        })
    }

    /// Words of all weights.
    pub(crate) fn weight_words(&self) -> Option<usize> {
        let [_, first] = self.panels_and_words(0)?;
        let [_, last] = self.panels_and_words(self.units() - 1)?;
        product(&[first, self.units() - 1])?.checked_add(last)?.checked_mul(self.window.taps())
    }

    pub(super) fn panels(&self) -> usize {
        let panels = |unit: usize| self.panels_and_words(unit).expect("`sizes` computed it")[0];
        panels(0) * (self.units() - 1) + panels(self.units() - 1)
    }

    pub(super) fn panel(&self, number: usize) -> Panel {
        let ([ins, outs], taps) = (self.unit_channels(), self.window.taps());
        let [panels, words] = self.panels_and_words(0).expect("`sizes` computed it");
        let (unit, mut rest) = (number / panels, number % panels);
        let first_word = if self.is_packed() { 0 } else { unit * ins / self.operands.per_word() };
        let mut weights = unit * words;
        let mut spans = self.spans(unit);
        loop {
            let span = spans.next().expect("the panel must be one of the unit's");
            let own = LANES * span.words.len();
            if rest < span.panels() {
                let first = rest * PANEL / LANES;
                return Panel {
                    block: unit * outs.div_ceil(LANES) + span.first + first,
                    blocks: (span.blocks - first).min(PANEL / LANES),
                    weights: (weights + first * own) * taps,
                    in_word: first_word + span.words.start,
                    in_words: span.words.len(),
                };
            }
            weights += span.blocks * own;
            rest -= span.panels();
        }
    }

    /// The parts of the outputs of [`ConvBlocked::geometry`], or of the window as it is.
    pub(super) fn split(&self, window: &Window) -> Split {
        let [rows, columns] = window.output;
        let (plane, pixels) = (rows * columns, rows * columns * self.batch);
        let [ins, _] = self.unit_channels();
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
            && !self.is_packed()
            && window.output_plane() < PLANE_SMALL
            && CHANNELS_BY_TAPS <= self.unit_channels()[0]
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
