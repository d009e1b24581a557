//! Bilinear resizing with the values of OpenCV's `resize` with `INTER_LINEAR` for 8-bit images, on which MXNet's image
//! iterator is built.

use std::ops::Range;

use super::RgbImage;

/// Resizes an image. Each element is that of `cv::resize(.., INTER_LINEAR)`.
pub fn resize(image: &RgbImage, width: usize, height: usize) -> RgbImage {
    resize_window(image, width, height, 0..width, 0..height)
}

/// The pixels of `columns` and `rows` of the image resized to `width` x `height`.
pub(super) fn resize_window(
    image: &RgbImage,
    width: usize,
    height: usize,
    columns: Range<usize>,
    rows: Range<usize>,
) -> RgbImage {
    let mut result =
        RgbImage { width: columns.len(), height: rows.len(), rgb: vec![0; columns.len() * rows.len() * 3] };
    let source = |y: usize| &image.rgb[y * image.width * 3..(y + 1) * image.width * 3];
    let output = result.rgb.chunks_exact_mut(columns.len() * 3);
    if (width, height) == (image.width, image.height) {
        for (y, out) in rows.zip(output) {
            out.copy_from_slice(&source(y)[columns.start * 3..columns.end * 3]);
        }
        return result;
    }
    if (2 * width, 2 * height) == (image.width, image.height) {
        // OpenCV averages where both sides are halved.
        for (y, out) in rows.zip(output) {
            let (upper, lower) = (source(2 * y), source(2 * y + 1));
            for (at, out) in out.iter_mut().enumerate() {
                let left = (columns.start + at / 3) * 6 + at % 3;
                let sum =
                    [upper[left], upper[left + 3], lower[left], lower[left + 3]].map(u16::from).iter().sum::<u16>();
                *out = ((sum + 2) >> 2) as u8;
            }
        }
        return result;
    }
    let across: Vec<(usize, usize, i32, i32)> = columns
        .map(|x| {
            let (at, weight) = tap(x, image.width, width);
            // Columns at the border have one tap; rows have two, of the same row.
            let (at, weight) = match usize::try_from(at) {
                Err(_) => (0, 0.0),
                Ok(at) if image.width - 1 <= at => (image.width - 1, 0.0),
                Ok(at) => (at, weight),
            };
            (at * 3, (at + 1).min(image.width - 1) * 3, fixed(1.0 - weight), fixed(weight))
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
        let (at, weight) = tap(y, image.height, height);
        let clipped = |row: isize| row.clamp(0, image.height as isize - 1) as usize;
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
        for (width, height) in [(50, 40), (20, 11), (37, 23), (74, 46), (1, 1)] {
            let whole = resize(&image, width, height);
            let (columns, rows) = (width / 3..width, height / 4..height - height / 5);
            let window = resize_window(&image, width, height, columns.clone(), rows.clone());
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
