//! Images: decoding of PNG and JPEG files, resizing, random variations, and a model's own preprocessing.

mod jpeg;
mod preprocess;
mod resize;
mod variation;

pub use preprocess::prepare;
pub use resize::resize;
pub use variation::{Crop, ImagePipeline, Jitter};

use std::io::Cursor;
use std::ops::Range;

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

/// The pixels of a file to decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The sides of the image are divided by 1, 2, 4 or 8, rounded up; only a JPEG can be reduced.
    reduction: usize,
    /// Columns and rows of the reduced image, none of them empty.
    columns: Range<usize>,
    rows: Range<usize>,
}

/// A part of an image.
pub(crate) struct Part {
    image: RgbImage,
    /// The column and row of its first pixel in the (reduced) image.
    at: (usize, usize),
}

/// The formats that are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Png,
    Jpeg,
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
    let whole = |_, width, height| View { reduction: 1, columns: 0..width, rows: 0..height };
    Ok(decode_part(bytes, pixels_max, whole)?.image)
}

/// The view of an image that `choose` returns for its format, columns and rows.
///
/// # Errors
/// As [`decode_within`]; damage outside of the view is an error too.
fn decode_part(
    bytes: &[u8],
    pixels_max: u64,
    mut choose: impl FnMut(Format, usize, usize) -> View,
) -> Result<Part, String> {
    if bytes.starts_with(b"\x89PNG") {
        let image = decode_png(bytes, pixels_max)?;
        let View { columns, rows, .. } = choose(Format::Png, image.width, image.height);
        if (columns.len(), rows.len()) == (image.width, image.height) {
            return Ok(Part { image, at: (0, 0) });
        }
        let rgb = image.rgb.chunks_exact(3 * image.width).skip(rows.start).take(rows.len());
        let rgb = rgb.flat_map(|row| &row[3 * columns.start..3 * columns.end]).copied().collect();
        let at = (columns.start, rows.start);
        Ok(Part { image: RgbImage { width: columns.len(), height: rows.len(), rgb }, at })
    } else if bytes.starts_with(b"\xff\xd8") {
        jpeg::decode(bytes, pixels_max, &mut |width, height| choose(Format::Jpeg, width, height))
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

    fn arrays(name: &str) -> std::collections::BTreeMap<String, types::Tensor> {
        let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
        weights::read(name, &std::fs::read(path).unwrap()).unwrap().into_iter().collect()
    }

    /// The pixels are those of Pillow's `draft`, which is libjpeg-turbo's `scale_denom`.
    #[test]
    fn reduced_pixels_are_those_of_libjpeg() {
        let (files, reduced) = (arrays("libjpeg.npz"), arrays("libjpeg_reduced.npz"));
        assert_eq!(reduced.len(), 39);
        for (name, want) in reduced {
            let (file, reduction) = name.rsplit_once('_').unwrap();
            let reduction = reduction.parse().unwrap();
            let file = files[&format!("{file}_file")].as_slice::<u8>().unwrap();
            let whole = |_, width: usize, height: usize| View {
                reduction,
                columns: 0..width.div_ceil(reduction),
                rows: 0..height.div_ceil(reduction),
            };
            let found = decode_part(file, PIXELS_MAX, whole).unwrap().image;
            assert_eq!([found.height, found.width, 3], want.shape()[..], "{name}");
            let differ = found.rgb.iter().zip(want.as_slice::<u8>().unwrap()).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{name}: samples that differ");
        }
    }

    #[test]
    fn view_is_that_part_of_the_whole_image() {
        let mut random = types::Random::new(4);
        for (name, file) in arrays("libjpeg.npz").iter().filter(|(name, _)| name.ends_with("_file")) {
            let file = file.as_slice::<u8>().unwrap();
            for round in 0..200 {
                let reduction = [1, 2, 4, 8][round % 4];
                let mut part = |extent: usize| {
                    let start = random.below(extent as u64) as usize;
                    start..start + 1 + random.below((extent - start) as u64) as usize
                };
                let mut views = Vec::new();
                let whole = decode_part(file, PIXELS_MAX, |_, width, height| {
                    let (width, height) = (width.div_ceil(reduction), height.div_ceil(reduction));
                    views.push(View { reduction, columns: part(width), rows: part(height) });
                    View { reduction, columns: 0..width, rows: 0..height }
                });
                let (whole, view) = (whole.unwrap().image, views.remove(0));
                let found = decode_part(file, PIXELS_MAX, |_, _, _| view.clone()).unwrap();
                assert_eq!(found.at, (view.columns.start, view.rows.start));
                let rows = view.rows.clone().map(|y| &whole.rgb[y * whole.width * 3..][..whole.width * 3]);
                let want: Vec<u8> =
                    rows.flat_map(|row| &row[view.columns.start * 3..view.columns.end * 3]).copied().collect();
                assert!(found.image.rgb == want, "{name}: {view:?}");
            }
        }
    }

    #[test]
    fn file_without_image_is_refused() {
        assert!(decode(b"GIF89a").is_err());
        assert!(decode(b"\x89PNG\r\n\x1a\nrubbish").is_err());
        assert!(decode(b"\xff\xd8\xff rubbish").is_err());
    }
}
