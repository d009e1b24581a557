//! [`prepare`]: an image as the input of a model that states its preprocessing.

use types::{ChannelOrder, Filter, Preprocess};

use super::RgbImage;

/// The image as one sample of the model's input: three normalized planes in the model's channel order.
pub fn prepare(image: &RgbImage, preprocess: &Preprocess) -> Vec<f32> {
    let side = image.width.min(image.height) as f64 * f64::from(preprocess.crop_fraction);
    let across = Taps::new(crop(image.width, side), preprocess.width, preprocess.filter);
    let kept = crop(image.height, side);
    let down = Taps::new(0..kept.len(), preprocess.height, preprocess.filter);

    // Rows first, then columns, each rounded to 8 bits, like common image libraries. Rows outside the crop have no effect.
    let mut rows = vec![0u8; kept.len() * preprocess.width * 3];
    for y in 0..kept.len() {
        for x in 0..preprocess.width {
            for c in 0..3 {
                let pixel = |at: usize| image.rgb[((kept.start + y) * image.width + at) * 3 + c];
                rows[(y * preprocess.width + x) * 3 + c] = across.apply(x, pixel);
            }
        }
    }
    let mut input = Vec::with_capacity(3 * preprocess.height * preprocess.width);
    for plane in 0..3 {
        let c = match preprocess.channel_order {
            ChannelOrder::Rgb => plane,
            ChannelOrder::Bgr => 2 - plane,
        };
        for y in 0..preprocess.height {
            for x in 0..preprocess.width {
                let pixel = down.apply(y, |at| rows[(at * preprocess.width + x) * 3 + c]);
                input.push((f32::from(pixel) - preprocess.mean[plane]) / preprocess.scale[plane]);
            }
        }
    }
    input
}

/// The centered `side` of `extent` pixels, with both ends rounded down to whole pixels.
fn crop(extent: usize, side: f64) -> std::ops::Range<usize> {
    let (start, end) = ((extent as f64 - side) / 2.0, (extent as f64 + side) / 2.0);
    let start = (start.max(0.0) as usize).min(extent - 1);
    start..(end as usize).clamp(start + 1, extent)
}

/// For each output position, the input positions that contribute, with weights that sum to one.
struct Taps {
    first: Vec<usize>,
    weights: Vec<Vec<f64>>,
}

impl Taps {
    /// Taps to resize the pixels of `range` to `out`. The filter widens when it shrinks an image.
    fn new(range: std::ops::Range<usize>, out: usize, filter: Filter) -> Taps {
        let scale = range.len() as f64 / out as f64;
        let widening = scale.max(1.0);
        let support = widening
            * match filter {
                Filter::Bilinear => 1.0,
                Filter::Bicubic => 2.0,
            };
        let mut taps = Taps { first: Vec::new(), weights: Vec::new() };
        for ix in 0..out {
            let center = (ix as f64 + 0.5) * scale;
            let first = ((center - support + 0.5).max(0.0) as usize).min(range.len() - 1);
            let last = ((center + support + 0.5) as usize).min(range.len()).max(first + 1);
            let mut weights: Vec<f64> =
                (first..last).map(|at| kernel(filter, (at as f64 + 0.5 - center) / widening)).collect();
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
            taps.first.push(range.start + first);
            taps.weights.push(weights);
        }
        taps
    }

    fn apply(&self, ix: usize, pixel: impl Fn(usize) -> u8) -> u8 {
        let terms =
            self.weights[ix].iter().enumerate().map(|(at, weight)| weight * f64::from(pixel(self.first[ix] + at)));
        terms.sum::<f64>().round().clamp(0.0, 255.0) as u8
    }
}

fn kernel(filter: Filter, distance: f64) -> f64 {
    let d = distance.abs();
    match filter {
        Filter::Bilinear => (1.0 - d).max(0.0),
        Filter::Bicubic if d < 1.0 => (1.5 * d - 2.5) * d * d + 1.0,
        Filter::Bicubic if d < 2.0 => ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0,
        Filter::Bicubic => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preprocess(side: usize, filter: Filter) -> Preprocess {
        Preprocess {
            height: side,
            width: side,
            crop_fraction: 1.0,
            filter,
            channel_order: ChannelOrder::Bgr,
            mean: [0.0; 3],
            scale: [1.0; 3],
        }
    }

    #[test]
    fn the_same_size_keeps_every_pixel_and_reorders_channels() {
        let image = RgbImage { width: 2, height: 2, rgb: (0..12).collect() };
        for filter in [Filter::Bilinear, Filter::Bicubic] {
            let input = prepare(&image, &preprocess(2, filter));
            assert_eq!(input, [2.0, 5.0, 8.0, 11.0, 1.0, 4.0, 7.0, 10.0, 0.0, 3.0, 6.0, 9.0]);
        }
    }

    #[test]
    fn narrow_image_is_resized_in_the_rows_of_its_crop() {
        // All rows of the result would take 700 MB.
        let image = RgbImage { width: 1, height: 1 << 20, rgb: vec![7; 3 << 20] };
        let input = prepare(&image, &preprocess(224, Filter::Bilinear));
        assert_eq!(input, vec![7.0; 3 * 224 * 224]);
    }

    #[test]
    fn wide_image_is_cropped_at_its_center() {
        let rgb = [10, 20, 30, 40, 50].into_iter().flat_map(|grey| [grey; 3]).collect();
        let input = prepare(&RgbImage { width: 5, height: 1, rgb }, &preprocess(1, Filter::Bilinear));
        assert_eq!(input[0], 30.0);
    }
}
