//! Bilinear resizing with the values of OpenCV's `resize` with `INTER_LINEAR` for 8-bit images, on which MXNet's image
//! iterator is built.

use std::ops::Range;

use super::RgbImage;

/// Resizes an image. Each element is that of `cv::resize(.., INTER_LINEAR)`.
pub fn resize(image: &RgbImage, width: usize, height: usize) -> RgbImage {
    let whole = Frame { x: 0, y: 0, width: image.width, height: image.height };
    resize_window(image, whole, width, height, 0..width, 0..height)
}

/// The place of an image that is resized in the pixels at hand: they may begin before or after it, and be fewer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The column and row of the frame's first pixel, minus those of the first pixel at hand.
    pub(super) x: isize,
    pub(super) y: isize,
    /// The size of the frame.
    pub(super) width: usize,
    pub(super) height: usize,
}

/// The columns or rows of `from` that `outputs` of `to`, at least one, depend on if the image is resized.
pub(super) fn inputs(outputs: &Range<usize>, from: usize, to: usize) -> Range<usize> {
    let first = |output: usize| tap(output, from, to).0.clamp(0, from as isize - 1) as usize;
    // The second tap is read where its weight is 0, too.
    first(outputs.start)..(first(outputs.end - 1) + 2).min(from)
}

/// The pixels of `columns` and `rows` of the frame resized to `width` x `height`.
pub(super) fn resize_window(
    image: &RgbImage,
    frame: Frame,
    width: usize,
    height: usize,
    columns: Range<usize>,
    rows: Range<usize>,
) -> RgbImage {
    let mut result =
        RgbImage { width: columns.len(), height: rows.len(), rgb: vec![0; columns.len() * rows.len() * 3] };
    // Positions in the frame become positions in the row; those in use are there.
    let source = |y: usize| &image.rgb[y.strict_add_signed(frame.y) * image.width * 3..][..image.width * 3];
    let at = |x: usize| x.strict_add_signed(frame.x) * 3;
    let output = result.rgb.chunks_exact_mut(columns.len() * 3);
    if (width, height) == (frame.width, frame.height) {
        for (y, out) in rows.zip(output) {
            out.copy_from_slice(&source(y)[at(columns.start)..][..columns.len() * 3]);
        }
        return result;
    }
    if (2 * width, 2 * height) == (frame.width, frame.height) {
        // OpenCV averages where both sides are halved.
        for (y, out) in rows.zip(output) {
            let (upper, lower) = (&source(2 * y)[at(2 * columns.start)..], &source(2 * y + 1)[at(2 * columns.start)..]);
            let pairs = upper.as_chunks::<6>().0.iter().zip(lower.as_chunks::<6>().0);
            for (out, (upper, lower)) in out.as_chunks_mut::<3>().0.iter_mut().zip(pairs) {
                for c in 0..3 {
                    let sum: u16 = [upper[c], upper[c + 3], lower[c], lower[c + 3]].map(u16::from).iter().sum();
                    out[c] = ((sum + 2) >> 2) as u8;
                }
            }
        }
        return result;
    }
    let across: Vec<(usize, usize, i32, i32)> = columns
        .map(|x| {
            let (first, weight) = tap(x, frame.width, width);
            // Columns at the border have one tap; rows have two, of the same row.
            let (first, weight) = match usize::try_from(first) {
                Err(_) => (0, 0.0),
                Ok(first) if frame.width - 1 <= first => (frame.width - 1, 0.0),
                Ok(first) => (first, weight),
            };
            (at(first), at((first + 1).min(frame.width - 1)), fixed(1.0 - weight), fixed(weight))
        })
        .collect();
    let filter = |y: usize, out: &mut [i32]| {
        let source = source(y);
        for (out, &(left, right, a, b)) in out.as_chunks_mut::<3>().0.iter_mut().zip(&across) {
            for c in 0..3 {
                out[c] = (i32::from(source[left + c]) * a + i32::from(source[right + c]) * b) >> 4;
            }
        }
    };
    // The filtered rows in use, by their position modulo 2.
    let mut kept = [vec![0i32; across.len() * 3], vec![0i32; across.len() * 3]];
    let mut kept_rows = [usize::MAX; 2];
    for (y, out) in rows.zip(output) {
        let (at, weight) = tap(y, frame.height, height);
        let clipped = |row: isize| row.clamp(0, frame.height as isize - 1) as usize;
        let pair = [clipped(at), clipped(at + 1)];
        for row in pair {
            if kept_rows[row % 2] != row {
                filter(row, &mut kept[row % 2]);
                kept_rows[row % 2] = row;
            }
        }
        let (a, b) = (fixed(1.0 - weight), fixed(weight));
        let (upper, lower) = (&kept[pair[0] % 2], &kept[pair[1] % 2]);
        for ((out, &upper), &lower) in out.iter_mut().zip(upper).zip(lower) {
            *out = ((((a * upper) >> 16) + ((b * lower) >> 16) + 2) >> 2) as u8;
        }
    }
    result
}

/// The first of two input positions of an output position, and the weight of the second.
fn tap(ix: usize, from: usize, to: usize) -> (isize, f32) {
    // OpenCV computes the scale as the inverse of an inverse.
    let scale = 1.0 / (to as f64 / from as f64);
    let position = ((ix as f64 + 0.5) * scale - 0.5) as f32;
    let first = position.floor();
    (first as isize, position - first)
}

/// A weight in units of 2^-11.
fn fixed(weight: f32) -> i32 {
    (weight * 2048.0).round_ties_even() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(width: usize, height: usize) -> RgbImage {
        let mut random = types::Random::new(5);
        RgbImage { width, height, rgb: (0..width * height * 3).map(|_| random.bits() as u8).collect() }
    }

    #[test]
    fn window_is_that_part_of_the_whole() {
        let image = noise(37, 23);
        for (width, height) in [(50, 40), (20, 11), (37, 23), (74, 46), (1, 1), (30, 90)] {
            let whole = resize(&image, width, height);
            let (columns, rows) = (width / 3..width - width / 7, height / 4..height - height / 5);
            // Only the pixels on which the window depends.
            let (x, y) = (inputs(&columns, 37, width), inputs(&rows, 23, height));
            let rgb = y.clone().flat_map(|y| &image.rgb[(y * 37 + x.start) * 3..(y * 37 + x.end) * 3]).copied();
            let part = RgbImage { width: x.len(), height: y.len(), rgb: rgb.collect() };
            let frame = Frame { x: -(x.start as isize), y: -(y.start as isize), width: 37, height: 23 };
            let window = resize_window(&part, frame, width, height, columns.clone(), rows.clone());
            for (ix, y) in rows.enumerate() {
                let want = &whole.rgb[(y * width + columns.start) * 3..(y * width + columns.end) * 3];
                assert_eq!(&window.rgb[ix * columns.len() * 3..][..want.len()], want, "{width} x {height}");
            }
        }
    }

    #[test]
    fn flat_image_stays_flat() {
        let image = RgbImage { width: 9, height: 7, rgb: vec![201; 9 * 7 * 3] };
        for (width, height) in [(3, 3), (4, 5), (18, 14), (100, 1)] {
            assert!(resize(&image, width, height).rgb.iter().all(|&byte| byte == 201), "{width} x {height}");
        }
    }
}
