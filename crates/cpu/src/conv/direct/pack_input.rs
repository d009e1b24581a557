//! Packs the input of half-precision and int8 convolutions: all channels of a pixel as neighbors (NHWC), with padding.

use super::ConvBlocked;
use crate::conv::Window;
use crate::gemm::tile::Word;
use crate::kernel::product;
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Pixels that a task packs.
const PACKED_PIXELS: usize = 256;

impl ConvBlocked {
    /// The window over a packed image, which starts with its padding and ends with the last pixel in use.
    pub(super) fn padded(&self) -> Window {
        let Window { output, kernel, stride, dilation, .. } = self.window;
        let reach = |axis: usize| (output[axis].max(1) - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1;
        Window { input: [reach(0), reach(1)], pad: [0, 0], ..self.window }
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
        let ([rows, columns], pixel) = (self.padded().input, self.pixel());
        if packed.is_empty() {
            return;
        }
        let of_picture = pad[1].min(columns)..(pad[1] + input[1]).min(columns);
        let (line, lines) = (columns * pixel, PACKED_PIXELS.div_ceil(columns));
        for_each_chunk(pool, packed, lines * line, &|number, cells| {
            for (ix, cells) in cells.chunks_exact_mut(line).enumerate() {
                let (image, row) = ((number * lines + ix) / rows, (number * lines + ix) % rows);
                // Padding has the value of the zero point; channels that fill up are multiplied by weights of 0.
                cells.fill([self.zero_point; 4]);
                if let Some(row) = row.checked_sub(pad[0]).filter(|&row| row < input[0]) {
                    let cells = &mut cells[of_picture.start * pixel..of_picture.end * pixel];
                    match (self.reads_blocks(), self.operands.per_word()) {
                        (true, 2) => self.pack_blocks::<8>(x, image, row, cells),
                        (true, _) => self.pack_blocks::<4>(x, image, row, cells),
                        (false, 2) => self.pack_planes::<2>(x, image, row, cells),
                        (false, _) => self.pack_planes::<1>(x, image, row, cells),
                    }
                }
            }
        });
    }

    /// Packs pixels from the first of a row on, from channels in blocks of `BLOCK` words.
    fn pack_blocks<const BLOCK: usize>(&self, x: &[u8], image: usize, row: usize, pixels: &mut [Word]) {
        let (plane, words) = (self.window.input_plane(), self.in_words());
        let x: &[Word] = bytemuck::cast_slice(x);
        let (x, _) = x[image * self.input_image()..].as_chunks::<BLOCK>();
        for (column, cells) in pixels.chunks_exact_mut(self.pixel()).enumerate() {
            let at = row * self.window.input[1] + column;
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
    fn pack_planes<const SIZE: usize>(&self, x: &[u8], image: usize, row: usize, pixels: &mut [Word]) {
        let [rows, columns] = self.window.input;
        let (x, _) = x.as_chunks::<SIZE>();
        let line = |channel: usize| &x[((image * self.in_channels + channel) * rows + row) * columns..][..columns];
        for word in 0..self.in_words() {
            // An image behind the pixels in use has none.
            let Some(cells) = pixels.get_mut(word..) else { continue };
            let first = word * self.operands.per_word();
            match self.in_channels.min(first + self.operands.per_word()) - first {
                1 => interleave([line(first)], cells, self.pixel()),
                2 => interleave([0, 1].map(|ix| line(first + ix)), cells, self.pixel()),
                3 => interleave([0, 1, 2].map(|ix| line(first + ix)), cells, self.pixel()),
                _ => interleave([0, 1, 2, 3].map(|ix| line(first + ix)), cells, self.pixel()),
            }
        }
    }
}

/// Writes a word for each column, `step` words apart: an element of each line, then zeros.
fn interleave<const SIZE: usize, const LINES: usize>(lines: [&[[u8; SIZE]]; LINES], to: &mut [Word], step: usize) {
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
    match step {
        // The compiler vectorizes this loop.
        1 => to.iter_mut().zip(columns).for_each(|(cell, column)| *cell = word(column)),
        _ => to.iter_mut().step_by(step).zip(columns).for_each(|(cell, column)| *cell = word(column)),
    }
}
