//! Rectangles of outputs that use the same taps, and the addresses they read and write.

use std::ops::Range;

use super::Job;
use super::partition::Panel;
use crate::conv::Window;
use crate::gemm::tile::Row;
use crate::simd::vector::LANES;

/// Neighboring outputs along an axis, and the taps they use.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) range: Range<usize>,
    pub(super) taps: Range<usize>,
}

impl Run {
    /// The first outputs of a range that use the same taps.
    pub(super) fn new(window: &Window, axis: usize, range: Range<usize>) -> Run {
        let (mut taps, mut end) = (0..0, range.end);
        for tap in 0..window.kernel[axis] {
            let inside = window.inside(axis, tap);
            if inside.contains(&range.start) {
                taps = if taps.is_empty() { tap } else { taps.start }..tap + 1;
            }
            for border in [inside.start, inside.end] {
                if range.start < border {
                    end = end.min(border);
                }
            }
        }
        Run { range: range.start..end, taps }
    }
}

/// The outputs and the taps of each [`Run`] along an axis, without a walk over all taps for each.
pub(super) fn lengths_of_runs(window: &Window, axis: usize) -> Vec<(usize, usize)> {
    let inside: Vec<Range<usize>> = (0..window.kernel[axis]).map(|tap| window.inside(axis, tap)).collect();
    let sorted = |mut places: Vec<usize>| {
        places.sort_unstable();
        places
    };
    let starts = sorted(inside.iter().map(|range| range.start).collect());
    let ends = sorted(inside.iter().map(|range| range.end).collect());
    let mut borders = sorted([&[0, window.output[axis]], &*starts, &*ends].concat());
    borders.dedup();
    let before = |places: &[usize], at: usize| places.partition_point(|&place| place <= at);
    borders.array_windows().map(|&[at, end]| (end - at, before(&starts, at) - before(&ends, at))).collect()
}

/// A tap that reads the input for every output.
pub(super) fn covering_cell(window: &Window) -> Option<[usize; 2]> {
    let covers = |axis: usize, tap: usize| window.inside(axis, tap) == (0..window.output[axis]);
    let cover = |axis: usize| (0..window.kernel[axis]).find(|&tap| covers(axis, tap));
    Some([cover(0)?, cover(1)?])
}

/// All taps; first one that reads the input for every output, if there is one.
pub(super) fn cells_by_cover(window: &Window) -> impl Iterator<Item = [usize; 2]> {
    let first = covering_cell(window);
    let columns = window.kernel[1];
    let cells = (0..window.taps()).map(move |cell| [cell / columns, cell % columns]);
    first.into_iter().chain(cells.filter(move |&cell| Some(cell) != first))
}

/// A rectangle of outputs, in each of some images, that use the same taps of some blocks of input channels.
pub(super) struct Region {
    pub(super) images: Range<usize>,
    pub(super) rows: Run,
    pub(super) columns: Run,
    pub(super) blocks: Range<usize>,
}

impl Region {
    pub(super) fn outputs(&self) -> usize {
        self.images.len() * self.rows.range.len() * self.columns.range.len()
    }
}

/// The addresses that the outputs of a region read and write, row by row.
pub(super) struct Walk {
    /// Outputs of a row, and rows of an image.
    pub(super) line: usize,
    pub(super) lines: usize,
    /// Position in the row, and the row in the image.
    pub(super) at: usize,
    pub(super) line_ix: usize,
    /// Addresses of the current output, of the first one of its row, and of its image.
    pub(super) place: Row,
    pub(super) line_place: Row,
    pub(super) image_place: Row,
    /// Steps to the next output, row and image.
    pub(super) step: Row,
    pub(super) line_step: Row,
    pub(super) image_step: Row,
}

impl Walk {
    pub(super) fn new(job: &Job, panel: Panel, region: &Region) -> Walk {
        let (conv, window) = (job.conv, &job.window);
        let pixel = conv.pixel();
        let image_step = Row { x: conv.read_image(), out: conv.out_blocks() * job.out_plane * LANES };
        let row_step = Row { x: window.stride[0] * window.input[1] * pixel, out: job.out_row * LANES };
        let column_step = Row { x: window.stride[1] * pixel, out: job.out_column * LANES };
        let (image, rows, columns) = (region.images.start, &region.rows, &region.columns);
        // Without taps nothing is read.
        let source = |axis: usize, run: &Run| window.source(axis, run.range.start, run.taps.start).unwrap_or(0);
        let [y, x] = [source(0, rows), source(1, columns)];
        let out = panel.block * job.out_plane + rows.range.start * job.out_row + columns.range.start * job.out_column;
        let place = Row {
            x: image * image_step.x + (y * window.input[1] + x) * pixel,
            out: job.origin.wrapping_add(image * image_step.out + out * LANES),
        };
        // A single column counts as a row.
        let (line, lines, step, line_step) = match columns.range.len() {
            1 => (rows.range.len(), 1, row_step, row_step),
            line => (line, rows.range.len(), column_step, row_step),
        };
        let (line_place, image_place) = (place, place);
        Walk { line, lines, at: 0, line_ix: 0, place, line_place, image_place, step, line_step, image_step }
    }

    /// Address of an image.
    pub(super) fn image(&self, image: usize) -> Row {
        let Row { x, out } = self.image_place;
        Row { x: x + image * self.image_step.x, out: out + image * self.image_step.out }
    }

    /// Positions from the start of a row to the start of the next, at the stride of neighbors, if that is a whole
    /// number and tiles over the strip are fewer than those over rows.
    pub(super) fn positions(&self, rows_max: usize) -> Option<usize> {
        let positions = self.line_step.x / self.step.x.max(1);
        let all = (self.lines - 1) * positions + self.line;
        let (in_one, by_lines) = (all.div_ceil(rows_max), self.lines * self.line.div_ceil(rows_max));
        let is_whole = positions * self.step.x == self.line_step.x && self.line <= positions;
        (is_whole && 5 * in_one < 4 * by_lines).then_some(positions)
    }

    /// The first output from a position on, and the positions of a tile that ends with an output.
    pub(super) fn next_positions(&self, at: usize, positions: usize, rows_max: usize) -> Option<(usize, usize)> {
        let wanted = |at: usize| at % positions < self.line;
        let first = if wanted(at) { at } else { at.next_multiple_of(positions) };
        let rest = ((self.lines - 1) * positions + self.line).checked_sub(first).filter(|&rest| rest != 0)?;
        let mut count = rest.div_ceil(rest.div_ceil(rows_max));
        while !wanted(first + count - 1) {
            count -= 1;
        }
        Some((first, count))
    }

    /// Outputs left in the row.
    pub(super) fn line_rest(&self) -> usize {
        self.line - self.at
    }

    /// Advances by some outputs of a row. Returns the address of the first of them.
    pub(super) fn skip(&mut self, count: usize) -> Row {
        let place = self.place;
        let after = |place: Row, step: Row| Row { x: place.x + step.x, out: place.out + step.out };
        self.at += count;
        self.place = Row { x: place.x + count * self.step.x, out: place.out + count * self.step.out };
        if self.at == self.line {
            (self.at, self.line_ix) = (0, self.line_ix + 1);
            if self.line_ix == self.lines {
                self.line_ix = 0;
                self.image_place = after(self.image_place, self.image_step);
                self.line_place = self.image_place;
            } else {
                self.line_place = after(self.line_place, self.line_step);
            }
            self.place = self.line_place;
        }
        place
    }
}
