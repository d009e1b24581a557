//! Samples to pixels: the triangle filter for chroma (`jdsample.c`) and the color conversion (`jdcolor.c`) of libjpeg.

use std::ops::Range;

/// The samples of a component from which the pixels of a view are made.
pub(super) struct Plane {
    pub(super) samples: Vec<u8>,
    /// Samples of a row of [`Plane::samples`].
    pub(super) stride: usize,
    /// The column and row of the first sample.
    pub(super) at: (usize, usize),
    /// Columns and rows of the component in the image.
    pub(super) width: usize,
    pub(super) height: usize,
    /// Pixels of the image between two samples, across and down.
    pub(super) ratio: (usize, usize),
    /// Whether chroma is interpolated.
    pub(super) is_smooth: bool,
}

/// The columns or rows of a component that pixels depend on: those at the pixels and a neighbor on each side.
pub(super) fn needed(pixels: &Range<usize>, ratio: usize, extent: usize) -> Range<usize> {
    let margin = usize::from(1 < ratio);
    let first = (pixels.start / ratio).saturating_sub(margin).min(extent - 1);
    first..(pixels.end.div_ceil(ratio) + margin).clamp(first + 1, extent)
}

/// Rows of a plane at the distance of pixels.
pub(super) struct Upsampler<'a> {
    plane: &'a Plane,
    /// The columns of samples in use.
    samples: Range<usize>,
    /// The position of the first pixel in [`Upsampler::row`].
    offset: usize,
    row: Vec<u8>,
    /// Sums of two rows, with the first and the last one twice.
    sums: Vec<u16>,
}

impl<'a> Upsampler<'a> {
    /// Rows of the pixels in `columns`.
    pub(super) fn new(plane: &'a Plane, columns: &Range<usize>) -> Upsampler<'a> {
        let samples = needed(columns, plane.ratio.0, plane.width);
        let offset = columns.start - samples.start * plane.ratio.0;
        let length = (samples.len() * plane.ratio.0).max(offset + columns.len());
        Upsampler { plane, offset, row: vec![0; length], sums: vec![0; samples.len() + 2], samples }
    }

    /// The samples of row `y` of the image, one for each pixel.
    #[inline(always)]
    pub(super) fn row(&mut self, y: usize) -> &[u8] {
        let plane = self.plane;
        let (start, length) = (self.samples.start - plane.at.0, self.samples.len());
        let row = |row: usize| &plane.samples[(row - plane.at.1) * plane.stride + start..][..length];
        // The other row that a pixel between two rows depends on; rows outside of the image equal those at its border.
        let far_row = |row: usize| match y % 2 {
            0 => row.saturating_sub(1),
            _ => (row + 1).min(plane.height - 1),
        };
        let is_smooth = plane.is_smooth;
        match plane.ratio {
            (1, 1) => return &row(y)[self.offset..],
            (2, 1) if is_smooth && 2 < plane.width => {
                for (sum, &sample) in self.sums[1..].iter_mut().zip(row(y)) {
                    *sum = sample.into();
                }
                triangle::<2, 1, 2>(&mut self.sums, &mut self.row);
            }
            (1, 2) if is_smooth => {
                let bias = if y.is_multiple_of(2) { 1 } else { 2 };
                for ((out, &near), &far) in self.row.iter_mut().zip(row(y / 2)).zip(row(far_row(y / 2))) {
                    *out = ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8;
                }
            }
            (2, 2) if is_smooth && 2 < plane.width => {
                let rows = row(y / 2).iter().zip(row(far_row(y / 2)));
                for (sum, (&near, &far)) in self.sums[1..].iter_mut().zip(rows) {
                    *sum = 3 * u16::from(near) + u16::from(far);
                }
                triangle::<4, 8, 7>(&mut self.sums, &mut self.row);
            }
            (h, v) => {
                for (out, &sample) in self.row.chunks_mut(h).zip(row(y / v)) {
                    out.fill(sample);
                }
            }
        }
        &self.row[self.offset..]
    }
}

/// Two pixels for each sum but the first and the last: 3/4 of it and 1/4 of its neighbor on that side. A border has itself
/// as its neighbor.
#[inline(always)]
fn triangle<const SHIFT: u32, const LEFT: u16, const RIGHT: u16>(sums: &mut [u16], out: &mut [u8]) {
    let last = sums.len() - 1;
    (sums[0], sums[last]) = (sums[1], sums[last - 1]);
    let (before, near, after) = (&sums[..last - 1], &sums[1..last], &sums[2..]);
    for (((pair, &before), &near), &after) in out.as_chunks_mut::<2>().0.iter_mut().zip(before).zip(near).zip(after) {
        *pair = [((3 * near + before + LEFT) >> SHIFT) as u8, ((3 * near + after + RIGHT) >> SHIFT) as u8];
    }
}

/// Writes the pixels of `rows`, interleaved: gray if there is one plane, else of luma, blue and red difference, or of red,
/// green and blue if `is_rgb`.
pub(super) fn write(planes: &[Plane], is_rgb: bool, columns: &Range<usize>, rows: Range<usize>, rgb: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[expect(unsafe_code, reason = "the function is compiled for another processor")]
        // SAFETY: the processor has AVX2.
        return unsafe { write_avx2(planes, is_rgb, columns, rows, rgb) };
    }
    write_rows(planes, is_rgb, columns, rows, rgb);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn write_avx2(planes: &[Plane], is_rgb: bool, columns: &Range<usize>, rows: Range<usize>, rgb: &mut [u8]) {
    write_rows(planes, is_rgb, columns, rows, rgb);
}

#[inline(always)]
fn write_rows(planes: &[Plane], is_rgb: bool, columns: &Range<usize>, rows: Range<usize>, rgb: &mut [u8]) {
    let lines = rows.zip(rgb.chunks_exact_mut(columns.len() * 3));
    match planes {
        [gray] => {
            let mut gray = Upsampler::new(gray, columns);
            for (y, out) in lines {
                for (pixel, &value) in out.as_chunks_mut::<3>().0.iter_mut().zip(gray.row(y)) {
                    *pixel = [value; 3];
                }
            }
        }
        [a, b, c] => {
            let [mut a, mut b, mut c] = [a, b, c].map(|plane| Upsampler::new(plane, columns));
            for (y, out) in lines {
                let pixels = out.as_chunks_mut::<3>().0;
                let (a, b, c) = (a.row(y), b.row(y), c.row(y));
                let samples = pixels.iter_mut().zip(a).zip(b).zip(c);
                match is_rgb {
                    true => samples.for_each(|(((pixel, &a), &b), &c)| *pixel = [a, b, c]),
                    false => samples.for_each(|(((pixel, &a), &b), &c)| *pixel = color(a, b, c)),
                }
            }
        }
        _ => unreachable!("a frame has 1 or 3 components"),
    }
}

/// The color of a pixel, with 16 fractional bits: the values of libjpeg's tables.
#[inline(always)]
fn color(luma: u8, blue: u8, red: u8) -> [u8; 3] {
    let (luma, blue, red) = (i32::from(luma), i32::from(blue) - 128, i32::from(red) - 128);
    [
        luma + ((91_881 * red + 32_768) >> 16),
        luma + ((-22_554 * blue - 46_802 * red + 32_768) >> 16),
        luma + ((116_130 * blue + 32_768) >> 16),
    ]
    .map(|value| value.clamp(0, 255) as u8)
}
