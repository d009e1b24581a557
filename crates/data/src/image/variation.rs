//! [`ImagePipeline`]: an image at the size of an input, with random variations for training.

use std::ops::Range;

use types::Random;

use super::resize::{Frame, inputs, resize_window};
use super::{Format, Part, RgbImage, View};

/// From a decoded image to the pixels of an input: resize, crop, mirror, colors.
///
/// Without a source of random numbers the crop is centered and nothing else varies. Then the pixels are those of MXNet's
/// `ImageRecordIter` with the same `resize`.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagePipeline {
    /// Rows of the result.
    pub height: usize,
    /// Columns of the result.
    pub width: usize,
    /// 3 (RGB) or 1 (luma).
    pub channels: usize,
    /// The length of the shorter side before the crop; without it the image keeps its size unless it is smaller than the
    /// result.
    pub shorter_side: Option<usize>,
    /// The crop for training.
    pub crop: Crop,
    /// Half of the images are mirrored at random.
    pub mirror: bool,
    /// Random changes of colors.
    pub jitter: Jitter,
    /// A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that is at least as large as the resized image. It is
    /// faster, and pixels differ: they are means of more than the two neighbors of bilinear interpolation.
    pub reduced: bool,
}

/// A crop for training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Crop {
    /// At the center.
    #[default]
    Center,
    /// Anywhere.
    Random,
    /// A part with 8 to 100 % of the area and an aspect ratio of 3/4 to 4/3, resized (Szegedy et al. 2015, "Going deeper
    /// with convolutions").
    RandomResized,
}

/// Random factors of colors, each uniform in `[1 - x, 1 + x]`; 0 for none. The order is brightness, contrast, saturation.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Jitter {
    /// Factor of each element.
    pub brightness: f32,
    /// Factor of the difference to the mean luma of the image.
    pub contrast: f32,
    /// Factor of the difference to the luma of the pixel.
    pub saturation: f32,
}

impl ImagePipeline {
    /// A pipeline with a centered crop.
    pub fn new(height: usize, width: usize, channels: usize) -> ImagePipeline {
        let (crop, jitter) = (Crop::Center, Jitter::default());
        ImagePipeline { height, width, channels, shorter_side: None, crop, mirror: false, jitter, reduced: false }
    }

    /// Decodes a file and writes the pixels with interleaved channels: `height * width * channels` bytes. Only the part of
    /// the image that the result depends on is made.
    ///
    /// # Errors
    /// As [`super::decode_within`].
    pub(crate) fn read(
        &self,
        bytes: &[u8],
        pixels_max: u64,
        random: Option<Random>,
        out: &mut [u8],
    ) -> Result<(), String> {
        let (mut random, mut chosen) = (random, None);
        let part = super::decode_part(bytes, pixels_max, |format, width, height| {
            let mut cut = self.cut(width, height, random.as_mut());
            if self.reduced && format == Format::Jpeg {
                cut.reduce(width, height);
            }
            let view = cut.view();
            chosen = Some(cut);
            view
        })?;
        let cut = chosen.expect("a decoded file has a size");
        self.write(cut.pixels(part), random, out);
        Ok(())
    }

    /// Writes the pixels with interleaved channels: `height * width * channels` bytes.
    pub fn apply(&self, image: &RgbImage, random: Option<Random>, out: &mut [u8]) {
        let mut random = random;
        let cut = self.cut(image.width, image.height, random.as_mut());
        let frame = Frame { x: cut.x as isize, y: cut.y as isize, width: cut.width, height: cut.height };
        self.write(cut.resized(image, frame), random, out);
    }

    fn write(&self, mut result: RgbImage, random: Option<Random>, out: &mut [u8]) {
        let mut random = random;
        if let Some(random) = &mut random {
            if self.mirror && random.below(2) == 1 {
                result.rgb.chunks_exact_mut(self.width * 3).for_each(mirror);
            }
            self.jitter.apply(&mut result.rgb, random);
        }
        match self.channels {
            1 => out.iter_mut().zip(result.rgb.as_chunks::<3>().0).for_each(|(out, pixel)| *out = luma(*pixel)),
            _ => out.copy_from_slice(&result.rgb),
        }
    }

    fn cut(&self, width: usize, height: usize, random: Option<&mut Random>) -> Cut {
        let crop = if random.is_some() { self.crop } else { Crop::Center };
        let whole = |to: (usize, usize), x: usize, y: usize| {
            let (columns, rows) = (x..x + self.width, y..y + self.height);
            Cut { reduction: 1, x: 0, y: 0, width, height, to, columns, rows }
        };
        let Some(random) = random.filter(|_| crop != Crop::Center) else {
            let to = self.covering(width, height);
            return whole(to, (to.0 - self.width) / 2, (to.1 - self.height) / 2);
        };
        if crop == Crop::RandomResized
            && let Some((x, y, width, height)) = random_part(width, height, random)
        {
            let (columns, rows) = (0..self.width, 0..self.height);
            return Cut { reduction: 1, x, y, width, height, to: (self.width, self.height), columns, rows };
        }
        let to = self.covering(width, height);
        let mut place = |extent: usize, crop: usize| random.below((extent - crop) as u64 + 1) as usize;
        let (x, y) = (place(to.0, self.width), place(to.1, self.height));
        whole(to, x, y)
    }

    /// The size to which an image is resized before the crop: integer arithmetic as in MXNet's `image_aug_default.cc`.
    fn covering(&self, width: usize, height: usize) -> (usize, usize) {
        let (mut width, mut height) = match self.shorter_side {
            Some(side) if width < height => (side, side * height / width),
            Some(side) => (side * width / height, side),
            None => (width, height),
        };
        if height < self.height {
            width = (self.height as f32 / height as f32 * width as f32) as usize;
            height = self.height;
        }
        if width < self.width {
            height = (self.width as f32 / width as f32 * height as f32) as usize;
            width = self.width;
        }
        (width.max(self.width), height.max(self.height))
    }
}

/// The source of the pixels of a result: `columns` and `rows` of a part of the image after it is resized.
struct Cut {
    /// The sides of the image are divided by it, rounded up, before all else.
    reduction: usize,
    /// The part.
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    /// The size to which the part is resized.
    to: (usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
}

impl Cut {
    /// Chooses the largest reduction of an image of `width` x `height` pixels that leaves the part as large as the
    /// resized part.
    fn reduce(&mut self, width: usize, height: usize) {
        let fits = |by: &usize| self.to.0 * by <= self.width && self.to.1 * by <= self.height;
        let Some(by) = [8, 4, 2].into_iter().find(fits) else { return };
        let ends = ((self.x + self.width).div_ceil(by), (self.y + self.height).div_ceil(by));
        (self.reduction, self.x, self.y) = (by, self.x / by, self.y / by);
        (self.width, self.height) = (ends.0.min(width.div_ceil(by)) - self.x, ends.1.min(height.div_ceil(by)) - self.y);
    }

    /// The pixels of the (reduced) image on which the result depends.
    fn view(&self) -> View {
        let keeps = self.to == (self.width, self.height);
        let inputs = |outputs: &Range<usize>, start: usize, from: usize, to: usize| {
            let Range { start: first, end } = if keeps { outputs.clone() } else { inputs(outputs, from, to) };
            start + first..start + end
        };
        let columns = inputs(&self.columns, self.x, self.width, self.to.0);
        View { reduction: self.reduction, columns, rows: inputs(&self.rows, self.y, self.height, self.to.1) }
    }

    /// The result, from the view.
    fn pixels(&self, part: Part) -> RgbImage {
        if self.to == (self.width, self.height) {
            return part.image;
        }
        let (x, y) = (self.x as isize - part.at.0 as isize, self.y as isize - part.at.1 as isize);
        self.resized(&part.image, Frame { x, y, width: self.width, height: self.height })
    }

    fn resized(&self, image: &RgbImage, frame: Frame) -> RgbImage {
        resize_window(image, frame, self.to.0, self.to.1, self.columns.clone(), self.rows.clone())
    }
}

/// Position and size of a random part, after at most 10 draws.
fn random_part(width: usize, height: usize, random: &mut Random) -> Option<(usize, usize, usize, usize)> {
    for _ in 0..10 {
        let area = (width * height) as f32 * random.uniform(0.08, 1.0);
        let ratio = random.uniform((3.0f32 / 4.0).ln(), (4.0f32 / 3.0).ln()).exp();
        let part = ((area * ratio).sqrt().round() as usize, (area / ratio).sqrt().round() as usize);
        if (1..=width).contains(&part.0) && (1..=height).contains(&part.1) {
            let x = random.below((width - part.0) as u64 + 1) as usize;
            let y = random.below((height - part.1) as u64 + 1) as usize;
            return Some((x, y, part.0, part.1));
        }
    }
    None
}

fn mirror(row: &mut [u8]) {
    let pixels = row.as_chunks_mut::<3>().0;
    pixels.reverse();
}

/// ITU-R BT.601 luma.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((19_595 * u32::from(r) + 38_470 * u32::from(g) + 7_471 * u32::from(b) + 0x8000) >> 16) as u8
}

impl Jitter {
    fn apply(&self, rgb: &mut [u8], random: &mut Random) {
        let mut factor =
            |range: f32| if range == 0.0 { 1.0 } else { random.uniform(1.0 - range, 1.0 + range).max(0.0) };
        let (brightness, contrast, saturation) =
            (factor(self.brightness), factor(self.contrast), factor(self.saturation));
        let blend =
            |value: u8, with: f32, factor: f32| (factor * f32::from(value) + (1.0 - factor) * with).round() as u8;
        if brightness != 1.0 {
            rgb.iter_mut().for_each(|value| *value = blend(*value, 0.0, brightness));
        }
        let pixels = rgb.as_chunks_mut::<3>().0;
        if contrast != 1.0 {
            let sum: u64 = pixels.iter().map(|pixel| u64::from(luma(*pixel))).sum();
            let mean = sum as f32 / pixels.len().max(1) as f32;
            pixels.iter_mut().flatten().for_each(|value| *value = blend(*value, mean, contrast));
        }
        if saturation != 1.0 {
            for pixel in pixels {
                let gray = f32::from(luma(*pixel));
                *pixel = pixel.map(|value| blend(value, gray, saturation));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(width: usize, height: usize) -> RgbImage {
        let rgb = (0..width * height).flat_map(|at| [(at % width) as u8, (at / width) as u8, 7]).collect();
        RgbImage { width, height, rgb }
    }

    fn applied(pipeline: &ImagePipeline, image: &RgbImage, seed: Option<u64>) -> Vec<u8> {
        let mut out = vec![0; pipeline.height * pipeline.width * pipeline.channels];
        pipeline.apply(image, seed.map(Random::new), &mut out);
        out
    }

    /// A pipeline makes only a part of an encoded image; the result is that of the whole one.
    #[test]
    fn encoded_image_gives_the_same_pixels_as_the_decoded_one() {
        let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/libjpeg.npz")).unwrap();
        let files = weights::read("libjpeg.npz", &bytes).unwrap();
        let mut random = Random::new(6);
        let mut reductions = 0;
        for (name, file) in files.iter().filter(|(name, _)| name.ends_with("_file")) {
            let file = file.as_slice::<u8>().unwrap();
            let image = super::super::decode(file).unwrap();
            for round in 0..120 {
                let mut side = || 1 + random.below(40) as usize;
                let mut pipeline = ImagePipeline::new(side(), side(), 3);
                pipeline.crop = [Crop::Center, Crop::Random, Crop::RandomResized][round % 3];
                pipeline.shorter_side = (round % 2 == 0).then(|| pipeline.width.max(pipeline.height) + side());
                let mut out = vec![0; pipeline.height * pipeline.width * 3];
                let seed = random.bits();
                pipeline.read(file, 1 << 20, Some(Random::new(seed)), &mut out).unwrap();
                assert!(out == applied(&pipeline, &image, Some(seed)), "{name}: {pipeline:?}");

                let full = out.clone();
                let reduced = ImagePipeline { reduced: true, ..pipeline };
                reduced.read(file, 1 << 20, Some(Random::new(seed)), &mut out).unwrap();
                let mean =
                    |pixels: &[u8]| pixels.iter().map(|&byte| f64::from(byte)).sum::<f64>() / pixels.len() as f64;
                // Noise of the files is averaged, not moved.
                assert!(out.len() < 300 || (mean(&full) - mean(&out)).abs() < 40.0, "{name}: {reduced:?}");
                reductions += usize::from(full != out);
            }
        }
        assert!(30 < reductions, "{reductions}");
    }

    #[test]
    fn largest_reduction_leaves_the_part_as_large_as_the_result() {
        let cut = |width: usize, height: usize, side: usize| {
            let pipeline = ImagePipeline { shorter_side: Some(side), ..ImagePipeline::new(side, side, 3) };
            let mut cut = pipeline.cut(width, height, None);
            cut.reduce(width, height);
            (cut.reduction, cut.width, cut.height)
        };
        assert_eq!(cut(2000, 1500, 224), (4, 500, 375));
        assert_eq!(cut(449, 448, 224), (2, 225, 224));
        assert_eq!(cut(447, 447, 224), (1, 447, 447));
        assert_eq!(cut(8001, 8001, 32), (8, 1001, 1001));
    }

    #[test]
    fn crop_is_centered_without_random_numbers() {
        let pipeline = ImagePipeline { crop: Crop::Random, mirror: true, ..ImagePipeline::new(2, 3, 3) };
        let out = applied(&pipeline, &gradient(8, 7), None);
        assert_eq!(out[..9], [2, 2, 7, 3, 2, 7, 4, 2, 7]);
    }

    #[test]
    fn every_random_crop_is_a_part_of_the_image() {
        let pipeline = ImagePipeline { crop: Crop::Random, ..ImagePipeline::new(2, 3, 3) };
        let image = gradient(8, 7);
        let starts: std::collections::BTreeSet<_> = (0..500)
            .map(|seed| {
                let out = applied(&pipeline, &image, Some(seed));
                assert_eq!((out[3], out[9]), (out[0] + 1, out[0]), "a part of the gradient");
                (out[0], out[1])
            })
            .collect();
        assert_eq!(starts.len(), 6 * 6, "every position occurs");
    }

    #[test]
    fn mirrored_half_of_the_images_has_reversed_rows() {
        let pipeline = ImagePipeline { mirror: true, ..ImagePipeline::new(1, 3, 3) };
        let image = gradient(3, 1);
        let mirrored = (0..1000).filter(|&seed| applied(&pipeline, &image, Some(seed))[0] == 2).count();
        assert!((400..600).contains(&mirrored), "{mirrored}");
    }

    #[test]
    fn random_resized_parts_differ_and_stay_inside() {
        let pipeline = ImagePipeline { crop: Crop::RandomResized, ..ImagePipeline::new(8, 8, 3) };
        let image = gradient(64, 48);
        let outs: std::collections::BTreeSet<_> = (0..50).map(|seed| applied(&pipeline, &image, Some(seed))).collect();
        assert!(40 < outs.len());
        assert!(outs.iter().flat_map(|out| out.as_chunks::<3>().0).all(|pixel| pixel[0] < 64 && pixel[1] < 48));
    }

    #[test]
    fn jitter_scales_colors_within_its_range() {
        let gray = RgbImage { width: 1, height: 1, rgb: vec![100, 100, 100] };
        let jitter = Jitter { brightness: 0.5, contrast: 0.9, saturation: 0.9 };
        let pipeline = ImagePipeline { jitter, ..ImagePipeline::new(1, 1, 3) };
        for seed in 0..100 {
            let out = applied(&pipeline, &gray, Some(seed));
            assert!((50..=150).contains(&out[0]), "{out:?}");
            assert!(out[0] == out[1] && out[1] == out[2], "gray stays gray: {out:?}");
        }
    }

    #[test]
    fn smaller_image_is_enlarged_and_one_channel_is_luma() {
        let red = RgbImage { width: 1, height: 2, rgb: vec![255, 0, 0, 255, 0, 0] };
        assert_eq!(applied(&ImagePipeline::new(5, 4, 1), &red, None), [76; 20]);
    }
}
