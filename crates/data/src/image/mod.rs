//! Images: decoding of PNG and JPEG files, resizing, random variations, and a model's own preprocessing.

mod jpeg;
mod preprocess;
mod resize;
mod variation;

pub use preprocess::prepare;
pub use resize::resize;
pub use variation::{Crop, ImagePipeline, Jitter};

use std::io::Cursor;

/// Interleaved 8-bit RGB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbImage {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Three bytes for each pixel, row by row.
    pub rgb: Vec<u8>,
}

/// The most pixels of an image that [`decode`] accepts: 67 million. A few bytes can describe any number of pixels, and a
/// progressive JPEG takes up to 12 bytes for each.
const PIXELS_MAX: u64 = 1 << 26;

/// Decodes a file; its first bytes determine the format.
///
/// # Errors
/// A file of another format; a damaged or truncated one; colors other than gray and RGB; more than 2^26 pixels.
pub fn decode(bytes: &[u8]) -> Result<RgbImage, String> {
    decode_within(bytes, PIXELS_MAX)
}

/// As [`decode`], with another limit of pixels. It is checked before decoding, to bound memory.
///
/// # Errors
/// As [`decode`].
pub fn decode_within(bytes: &[u8], pixels_max: u64) -> Result<RgbImage, String> {
    if bytes.starts_with(b"\x89PNG") {
        decode_png(bytes, pixels_max)
    } else if bytes.starts_with(b"\xff\xd8") {
        jpeg::decode(bytes, pixels_max)
    } else {
        Err("not a PNG or JPEG image".into())
    }
}

fn decode_png(bytes: &[u8], pixels_max: u64) -> Result<RgbImage, String> {
    let damaged = |error: png::DecodingError| format!("the PNG image cannot be read: {error}");
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    // Palettes and low bit depths become 8-bit samples; 16-bit samples lose their low byte.
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(damaged)?;
    let (width, height) = reader.info().size();
    check_size(width.into(), height.into(), pixels_max)?;
    let mut samples = vec![0; reader.output_buffer_size().ok_or("the PNG image is too large")?];
    let frame = reader.next_frame(&mut samples).map_err(damaged)?;
    let channels = frame.color_type.samples();
    to_rgb(width as usize, height as usize, channels, &samples[..frame.buffer_size()])
}

fn check_size(width: u64, height: u64, pixels_max: u64) -> Result<(), String> {
    if width == 0 || height == 0 || pixels_max < width.saturating_mul(height) {
        return Err(format!("an image must have 1 to {pixels_max} pixels, got {width} x {height}; scale it down"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_of_too_many_pixels_is_refused_before_it_is_decoded() {
        // The header of a gray progressive JPEG of 65,500 x 65,500 pixels.
        let jpeg = b"\xff\xd8\xff\xc2\0\x0b\x08\xff\xdc\xff\xdc\x01\x01\x11\0\xff\xda\0\x08\x01\x01\0\0\0\0";
        let error = decode(jpeg).expect_err("it is too large");
        assert_eq!(error, "an image must have 1 to 67108864 pixels, got 65500 x 65500; scale it down");
    }

    #[test]
    fn file_without_image_is_refused() {
        assert!(decode(b"GIF89a").is_err());
        assert!(decode(b"\x89PNG\r\n\x1a\nrubbish").is_err());
        assert!(decode(b"\xff\xd8\xff rubbish").is_err());
    }
}
