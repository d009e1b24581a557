//! Images: decoding of PNG and JPEG files, and their preprocessing for a model's input.

use std::io::Cursor;

use types::{ChannelOrder, Filter, Preprocess};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

/// Interleaved 8-bit RGB.
pub(crate) struct RgbImage {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) rgb: Vec<u8>,
}

/// The most pixels of an image. The limit is checked before decoding, to bound memory.
const PIXELS_MAX: u64 = 1 << 28;

/// Decodes a file; its first bytes determine the format.
pub(crate) fn decode(bytes: &[u8]) -> Result<RgbImage, String> {
    if bytes.starts_with(b"\x89PNG") {
        decode_png(bytes)
    } else if bytes.starts_with(b"\xff\xd8") {
        decode_jpeg(bytes)
    } else {
        Err("not a PNG or JPEG image".into())
    }
}

fn decode_png(bytes: &[u8]) -> Result<RgbImage, String> {
    let damaged = |error: png::DecodingError| format!("the PNG image cannot be read: {error}");
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    // Palettes and low bit depths become 8-bit samples; 16-bit samples lose their low byte.
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(damaged)?;
    let (width, height) = reader.info().size();
    check_size(width.into(), height.into())?;
    let mut samples = vec![0; reader.output_buffer_size().ok_or("the PNG image is too large")?];
    let frame = reader.next_frame(&mut samples).map_err(damaged)?;
    let channels = frame.color_type.samples();
    to_rgb(width as usize, height as usize, channels, &samples[..frame.buffer_size()])
}

fn decode_jpeg(bytes: &[u8]) -> Result<RgbImage, String> {
    let damaged = |error: DecodeErrors| format!("the JPEG image cannot be read: {error}");
    // The decoder's default limits bound each dimension; `PIXELS_MAX` bounds their product.
    let options = DecoderOptions::default().set_max_width(usize::MAX).set_max_height(usize::MAX).set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(damaged)?;
    let (width, height) = decoder.dimensions().ok_or("the JPEG image has no size")?;
    check_size(width as u64, height as u64)?;
    let (output, channels) = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => (ColorSpace::Luma, 1),
        Some(ColorSpace::YCbCr | ColorSpace::RGB) => (ColorSpace::RGB, 3),
        other => return Err(format!("JPEG colors must be RGB or gray, got {other:?}; save the image as RGB")),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(output));
    let samples = decoder.decode().map_err(damaged)?;
    to_rgb(width, height, channels, &samples)
}

fn check_size(width: u64, height: u64) -> Result<(), String> {
    if width == 0 || height == 0 || PIXELS_MAX < width * height {
        return Err(format!("an image of {width} x {height} pixels is not supported"));
    }
    Ok(())
}

/// Gray becomes RGB; alpha is ignored.
fn to_rgb(width: usize, height: usize, channels: usize, samples: &[u8]) -> Result<RgbImage, String> {
    if samples.len() < width * height * channels {
        return Err("the image is truncated".into());
    }
    let pixels = samples.chunks_exact(channels).take(width * height);
    let rgb = match channels {
        1 | 2 => pixels.flat_map(|pixel| [pixel[0]; 3]).collect(),
        _ => pixels.flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
    };
    Ok(RgbImage { width, height, rgb })
}

/// The image as one sample of the model's input: three normalized planes in the model's channel order.
pub(crate) fn prepare(image: &RgbImage, preprocess: &Preprocess) -> Vec<f32> {
    let side = image.width.min(image.height) as f64 * f64::from(preprocess.crop_fraction);
    let across = Taps::new(crop(image.width, side), preprocess.width, preprocess.filter);
    let down = Taps::new(crop(image.height, side), preprocess.height, preprocess.filter);

    // Rows first, then columns, each rounded to 8 bits, like common image libraries.
    let mut rows = vec![0u8; image.height * preprocess.width * 3];
    for y in 0..image.height {
        for x in 0..preprocess.width {
            for c in 0..3 {
                let pixel = |at: usize| image.rgb[(y * image.width + at) * 3 + c];
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
    fn wide_image_is_cropped_at_its_center() {
        let rgb = [10, 20, 30, 40, 50].into_iter().flat_map(|grey| [grey; 3]).collect();
        let input = prepare(&RgbImage { width: 5, height: 1, rgb }, &preprocess(1, Filter::Bilinear));
        assert_eq!(input[0], 30.0);
    }

    #[test]
    fn file_without_image_is_refused() {
        assert!(decode(b"GIF89a").is_err());
        assert!(decode(b"\x89PNG\r\n\x1a\nrubbish").is_err());
        assert!(decode(b"\xff\xd8\xff rubbish").is_err());
    }
}
