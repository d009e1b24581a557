//! Packs the input of convolutions: all channels of a pixel as neighbors (NHWC), with padding.

use super::ConvBlocked;
use crate::conv::Window;
use crate::gemm::tile::Word;
use crate::kernel::product;
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// The most pixels and words that a task packs.
const PACKED_PIXELS: usize = 256;
const PACKED_WORDS: usize = 1 << 14;

/// Where the pixels of a packed row are in the input.
#[derive(Clone, Copy)]
struct Source {
    image: usize,
    row: usize,
    /// The column of the first pixel, and columns from one to the next.
    column: usize,
    step: usize,
}

impl ConvBlocked {
    /// The window over a packed image, which starts with its padding and ends with the last pixel in use.
    pub(super) fn padded(&self) -> Window {
        let Window { output, kernel, dilation, .. } = self.window;
        let step = self.packed_step();
        let stride = [0, 1].map(|axis| self.window.stride[axis] / step[axis]);
        let reach = |axis: usize| (output[axis].max(1) - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1;
        Window { input: [reach(0), reach(1)], stride, pad: [0, 0], ..self.window }
    }

    /// Rows and columns of the input from one packed pixel to the next: a kernel of one tap uses only the pixels at its stride.
    fn packed_step(&self) -> [usize; 2] {
        let Window { kernel, stride, .. } = self.window;
        [0, 1].map(|axis| if kernel[axis] == 1 { stride[axis] } else { 1 })
    }

    /// Words of the workspace.
    pub(super) fn packed_words(&self) -> Option<usize> {
        let [rows, columns] = self.padded().input;
        if self.is_packed() { product(&[self.batch, self.pixel(), rows, columns]) } else { Some(0) }
    }

    /// Words of an image that tiles read.
    pub(super) fn read_image(&self) -> usize {
        if self.is_packed() { self.pixel() * self.padded().input_plane() } else { self.input_image() }
    }

    /// Packs all channels of each pixel, rows with their padding.
    pub(super) fn pack_input(&self, x: &[u8], packed: &mut [Word], pool: &Pool) {
        let Window { input, pad, .. } = self.window;
        let (extents, pixel, step) = (self.padded().input, self.pixel(), self.packed_step());
        let [rows, columns] = extents;
        if packed.is_empty() {
            return;
        }
        let of_picture = |axis: usize| {
            let end = (pad[axis] + input[axis]).div_ceil(step[axis]).min(extents[axis]);
            pad[axis].div_ceil(step[axis]).min(end)..end
        };
        let (inner_rows, inner_columns) = (of_picture(0), of_picture(1));
        let line = columns * pixel;
        let lines = PACKED_PIXELS.div_ceil(columns).min((PACKED_WORDS / line).max(1));
        for_each_chunk(pool, packed, lines * line, &|number, cells| {
            for (ix, cells) in cells.chunks_exact_mut(line).enumerate() {
                let (image, row) = ((number * lines + ix) / rows, (number * lines + ix) % rows);
                // Padding has the value of the zero point; channels that fill up are multiplied by weights of 0.
                cells.fill([self.zero_point; 4]);
                if inner_rows.contains(&row) && !inner_columns.is_empty() {
                    let cells = &mut cells[inner_columns.start * pixel..inner_columns.end * pixel];
                    let (row, column) = (row * step[0] - pad[0], inner_columns.start * step[1] - pad[1]);
                    let source = Source { image, row, column, step: step[1] };
                    match (self.reads_blocks(), self.operands.per_word()) {
                        (true, 1) => self.pack_blocks::<16>(x, source, cells),
                        (true, 2) => self.pack_blocks::<8>(x, source, cells),
                        (true, _) => self.pack_blocks::<4>(x, source, cells),
                        (false, 1) => self.pack_planes::<4>(x, source, cells),
                        (false, 2) => self.pack_planes::<2>(x, source, cells),
                        (false, _) => self.pack_planes::<1>(x, source, cells),
                    }
                }
            }
        });
    }

    /// Packs pixels of a row from channels in blocks of `BLOCK` words.
    fn pack_blocks<const BLOCK: usize>(&self, x: &[u8], source: Source, pixels: &mut [Word]) {
        let (plane, words) = (self.window.input_plane(), self.in_words());
        let x: &[Word] = bytemuck::cast_slice(x);
        let (x, _) = x[source.image * self.input_image()..].as_chunks::<BLOCK>();
        let first = source.row * self.window.input[1] + source.column;
        for (number, cells) in pixels.chunks_exact_mut(self.pixel()).enumerate() {
            let at = first + number * source.step;
            let (whole, rest) = cells[..words].as_chunks_mut::<BLOCK>();
            for (number, cells) in whole.iter_mut().enumerate() {
                *cells = x[number * plane + at];
            }
            if !rest.is_empty() {
                rest.copy_from_slice(&x[words / BLOCK * plane + at][..rest.len()]);
            }
        }
    }

    /// Packs the same from row-major channels, of elements of `SIZE` bytes.
    fn pack_planes<const SIZE: usize>(&self, x: &[u8], source: Source, pixels: &mut [Word]) {
        let [rows, columns] = self.window.input;
        let (x, _) = x.as_chunks::<SIZE>();
        let line = |channel: usize| {
            let start = ((source.image * self.in_channels + channel) * rows + source.row) * columns;
            &x[start + source.column..start + columns]
        };
        for word in 0..self.in_words() {
            // An image behind the pixels in use has none.
            let Some(cells) = pixels.get_mut(word..) else { continue };
            let first = word * self.operands.per_word();
            let steps = [source.step, self.pixel()];
            match self.in_channels.min(first + self.operands.per_word()) - first {
                1 => interleave([line(first)], cells, steps),
                2 => interleave([0, 1].map(|ix| line(first + ix)), cells, steps),
                3 => interleave([0, 1, 2].map(|ix| line(first + ix)), cells, steps),
                _ => interleave([0, 1, 2, 3].map(|ix| line(first + ix)), cells, steps),
            }
        }
    }
}

/// Packs an element of each line into a word, and fills the word with zeros. `steps`: elements from one column that is read
/// to the next, and words from one that is written to the next.
fn interleave<const SIZE: usize, const LINES: usize>(
    lines: [&[[u8; SIZE]]; LINES],
    to: &mut [Word],
    steps: [usize; 2],
) {
    let word = |column: usize| {
        let mut word = 0;
        for (ix, line) in lines.iter().enumerate() {
            let mut bytes = [0; 4];
            bytes[..SIZE].copy_from_slice(&line[column]);
            word |= u32::from_le_bytes(bytes) << (8 * SIZE * ix);
        }
        word.to_le_bytes()
    };
    let columns = 0..lines[0].len();
    match steps {
        // The compiler vectorizes this loop.
        [1, 1] => to.iter_mut().zip(columns).for_each(|(cell, column)| *cell = word(column)),
        [from, step] => {
            let cells = to.iter_mut().step_by(step);
            cells.zip(columns.step_by(from)).for_each(|(cell, column)| *cell = word(column));
        }
    }
}
