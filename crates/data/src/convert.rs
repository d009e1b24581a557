//! Conversion of fields to the dtype, layout and scale of an executable's inputs.

use types::{DType, Shape, bf16, f16};

use crate::{Axes, DataError, DataField};

/// An input of an executable, filled from a field.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchInput {
    /// The position of the field in [`crate::Dataset::fields`].
    pub field: usize,
    /// The dtype of the input.
    pub dtype: DType,
    /// The shape of one sample: the shape of the input without its batch axis. A field of [`Axes::Pixels`] is transposed
    /// to `[channels, height, width]` if this is that shape; else only the number of elements must be the field's.
    pub shape: Shape,
    /// The normalization.
    pub normalize: Normalize,
    /// For class labels: every element must be in `0..classes`.
    pub classes: Option<u64>,
}

impl BatchInput {
    /// An input without normalization.
    pub fn new(field: usize, dtype: DType, shape: Shape) -> BatchInput {
        BatchInput { field, dtype, shape, normalize: Normalize::default(), classes: None }
    }

    /// Bytes of one sample.
    pub fn sample_bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size().0 as usize
    }
}

/// `(element * scale - mean) * (1 / std)`, in `f32` and with these roundings, which are those of MXNet's iterators. `mean`
/// and `std` have no element, one, or one for each channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// Factor before the subtraction.
    pub scale: f32,
    /// Subtracted; nothing if empty.
    pub mean: Vec<f32>,
    /// Divided by; nothing if empty.
    pub std: Vec<f32>,
}

impl Default for Normalize {
    fn default() -> Normalize {
        Normalize { scale: 1.0, mean: Vec::new(), std: Vec::new() }
    }
}

impl Normalize {
    fn is_identity(&self) -> bool {
        self.scale == 1.0 && self.mean.iter().all(|&mean| mean == 0.0) && self.std.iter().all(|&std| std == 1.0)
    }

    /// The mean, and the inverse of the standard deviation.
    fn of_channel(&self, channel: usize) -> (f32, f32) {
        let of = |values: &[f32], absent| match values {
            [] => absent,
            [one] => *one,
            many => many[channel],
        };
        (of(&self.mean, 0.0), 1.0 / of(&self.std, 1.0))
    }
}

/// The checked conversion of one field to one input.
#[derive(Clone, Debug)]
pub(crate) struct Conversion {
    from: DType,
    to: DType,
    /// The stored elements of a pixel; 1 if the field has no channels.
    channels: usize,
    /// Channels become planes.
    transpose: bool,
    /// Elements of a sample.
    elements: usize,
    /// Scale; mean and factor of each channel.
    normalize: Option<(f32, Vec<(f32, f32)>)>,
    classes: Option<u64>,
}

impl Conversion {
    pub(crate) fn new(field: &DataField, input: &BatchInput) -> Result<Conversion, DataError> {
        let refused = |reason: String| Err(DataError::Mismatch(format!("field `{}`: {reason}", field.name)));
        let elements = field.shape.elements();
        if elements != input.shape.elements() {
            return refused(format!(
                "its shape is {}, but a sample of the input has shape {}; the numbers of elements must be equal",
                field.shape, input.shape
            ));
        }
        let (mut channels, mut transpose) = (1, false);
        if field.axes == Axes::Pixels {
            let [height, width, depth] = field.shape[..] else { unreachable!("pixels have three axes") };
            channels = depth;
            transpose = 1 < depth && input.shape[..] == [depth, height, width];
            if 1 < depth && !transpose && input.shape[..] != [height, width, depth] {
                return refused(format!(
                    "a sample of the input must have shape [{depth}, {height}, {width}] or [{height}, {width}, \
                     {depth}], got {}",
                    input.shape
                ));
            }
        } else if let [depth, _, _] = field.shape[..]
            && (depth == input.normalize.mean.len() || depth == input.normalize.std.len())
        {
            // Planes: the channel of an element is its position over the size of a plane.
            return Conversion::planes(field, input, depth, elements);
        }
        let mut conversion = Conversion {
            from: field.dtype,
            to: input.dtype,
            channels,
            transpose,
            elements,
            normalize: None,
            classes: input.classes,
        };
        conversion.set_normalize(field, &input.normalize, channels)?;
        Ok(conversion)
    }

    /// A field that has planes already: each plane is one "pixel" of the transposed layout, so it keeps its order.
    fn planes(field: &DataField, input: &BatchInput, depth: usize, elements: usize) -> Result<Conversion, DataError> {
        let mut conversion = Conversion {
            from: field.dtype,
            to: input.dtype,
            channels: 0,
            transpose: false,
            elements,
            normalize: None,
            classes: input.classes,
        };
        conversion.set_normalize(field, &input.normalize, depth)?;
        Ok(conversion)
    }

    fn set_normalize(&mut self, field: &DataField, normalize: &Normalize, channels: usize) -> Result<(), DataError> {
        if normalize.is_identity() {
            return Ok(());
        }
        for (name, values) in [("mean", &normalize.mean), ("std", &normalize.std)] {
            if 1 < values.len() && values.len() != channels {
                return Err(DataError::Mismatch(format!(
                    "field `{}` has {channels} channels, but `{name}` has {} values",
                    field.name,
                    values.len()
                )));
            }
        }
        if normalize.std.contains(&0.0) {
            return Err(DataError::Mismatch(format!("field `{}`: `std` must not be 0", field.name)));
        }
        let per_channel = (0..channels).map(|channel| normalize.of_channel(channel)).collect();
        self.normalize = Some((normalize.scale, per_channel));
        Ok(())
    }

    /// Converts one sample.
    ///
    /// # Errors
    /// A label outside of the classes: the label.
    pub(crate) fn apply(&self, from: &[u8], to: &mut [u8]) -> Result<(), String> {
        if let Some(classes) = self.classes {
            for ix in 0..self.elements {
                let label = load(self.from, from, ix);
                if label < 0.0 || classes as f64 <= label || label.fract() != 0.0 {
                    return Err(format!("its label must be an integer in 0..{classes}, got {label}"));
                }
            }
        }
        if self.normalize.is_none() && self.from == self.to && !self.transpose {
            to.copy_from_slice(from);
            return Ok(());
        }
        if self.from == DType::U8 {
            // A table of 256 results for each channel makes the conversion a lookup.
            match self.to {
                DType::F32 if self.channels == 3 && self.transpose => {
                    let plain = [(0.0, 1.0)];
                    let (scale, channels) =
                        self.normalize.as_ref().map_or((1.0, &plain[..]), |(scale, channels)| (*scale, channels));
                    let of = |channel: usize| channels[channel.min(channels.len() - 1)];
                    planes(from.as_chunks::<3>().0, scale, [of(0), of(1), of(2)], to.as_chunks_mut::<4>().0);
                    return Ok(());
                }
                DType::F32 => return self.convert_bytes(from, to, |value| value.to_le_bytes()),
                DType::F16 => return self.convert_bytes(from, to, |value| f16::from_f32(value).to_le_bytes()),
                DType::Bf16 => return self.convert_bytes(from, to, |value| bf16::from_f32(value).to_le_bytes()),
                _ => {}
            }
        }
        for ix in 0..self.elements {
            let source = self.source_of(ix);
            let value = load(self.from, from, source);
            let value = match &self.normalize {
                None => value,
                Some((scale, channels)) => {
                    let (mean, factor) = channels[self.channel_of(ix, channels.len())];
                    f64::from((value as f32 * scale - mean) * factor)
                }
            };
            store(self.to, to, ix, value);
        }
        Ok(())
    }

    /// The position in the field of element `ix` of the input.
    fn source_of(&self, ix: usize) -> usize {
        if !self.transpose {
            return ix;
        }
        let plane = self.elements / self.channels;
        (ix % plane) * self.channels + ix / plane
    }

    fn channel_of(&self, ix: usize, count: usize) -> usize {
        match self.channels {
            0 => ix / (self.elements / count),
            channels if self.transpose => ix / (self.elements / channels),
            channels => ix % channels,
        }
    }

    fn convert_bytes<const N: usize>(
        &self,
        from: &[u8],
        to: &mut [u8],
        encode: impl Fn(f32) -> [u8; N],
    ) -> Result<(), String> {
        let value = |byte: usize, (mean, factor)| match &self.normalize {
            None => byte as f32,
            Some((scale, _)) => (byte as f32 * scale - mean) * factor,
        };
        let plain = [(0.0, 1.0)];
        let channels = self.normalize.as_ref().map_or(&plain[..], |(_, channels)| channels);
        let table = |channel: usize| -> [[u8; N]; 256] {
            std::array::from_fn(|byte| encode(value(byte, channels[channel.min(channels.len() - 1)])))
        };
        let to = to.as_chunks_mut::<N>().0;
        if self.channels == 0 {
            let plane = self.elements / channels.len();
            for (channel, (to, from)) in to.chunks_exact_mut(plane).zip(from.chunks_exact(plane)).enumerate() {
                let table = table(channel);
                to.iter_mut().zip(from).for_each(|(to, &byte)| *to = table[usize::from(byte)]);
            }
            return Ok(());
        }
        for channel in 0..self.channels {
            let table = table(channel);
            let from = from.iter().skip(channel).step_by(self.channels);
            if self.transpose {
                let plane = self.elements / self.channels;
                let to = &mut to[channel * plane..(channel + 1) * plane];
                to.iter_mut().zip(from).for_each(|(to, &byte)| *to = table[usize::from(byte)]);
            } else {
                let to = to.iter_mut().skip(channel).step_by(self.channels);
                to.zip(from).for_each(|(to, &byte)| *to = table[usize::from(byte)]);
            }
        }
        Ok(())
    }
}

/// Pixels to planes: `(element * scale - mean) * factor`, as [`Conversion::apply`] computes it for one element.
fn planes(pixels: &[[u8; 3]], scale: f32, channels: [(f32, f32); 3], to: &mut [[u8; 4]]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[expect(unsafe_code, reason = "the function is compiled for another processor")]
        // SAFETY: the processor has AVX2.
        return unsafe { planes_avx2(pixels, scale, channels, to) };
    }
    planes_of(pixels, scale, channels, to);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn planes_avx2(pixels: &[[u8; 3]], scale: f32, channels: [(f32, f32); 3], to: &mut [[u8; 4]]) {
    planes_of(pixels, scale, channels, to);
}

#[inline(always)]
fn planes_of(pixels: &[[u8; 3]], scale: f32, channels: [(f32, f32); 3], to: &mut [[u8; 4]]) {
    let (red, rest) = to.split_at_mut(pixels.len());
    let (green, blue) = rest.split_at_mut(pixels.len());
    let value = |byte: u8, (mean, factor): (f32, f32)| ((f32::from(byte) * scale - mean) * factor).to_le_bytes();
    for (((pixel, red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
        *red = value(pixel[0], channels[0]);
        *green = value(pixel[1], channels[1]);
        *blue = value(pixel[2], channels[2]);
    }
}

/// Element `ix` of little-endian elements.
pub(crate) fn load(dtype: DType, bytes: &[u8], ix: usize) -> f64 {
    fn item<const N: usize>(bytes: &[u8], ix: usize) -> [u8; N] {
        bytes[ix * N..(ix + 1) * N].try_into().expect("N bytes")
    }
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(item(bytes, ix))),
        DType::F64 => f64::from_le_bytes(item(bytes, ix)),
        DType::F16 => f16::from_le_bytes(item(bytes, ix)).to_f64(),
        DType::Bf16 => bf16::from_le_bytes(item(bytes, ix)).to_f64(),
        DType::I8 => f64::from(i8::from_le_bytes(item(bytes, ix))),
        DType::I16 => f64::from(i16::from_le_bytes(item(bytes, ix))),
        DType::I32 => f64::from(i32::from_le_bytes(item(bytes, ix))),
        DType::I64 => i64::from_le_bytes(item(bytes, ix)) as f64,
        DType::U8 => f64::from(bytes[ix]),
        DType::U16 => f64::from(u16::from_le_bytes(item(bytes, ix))),
        DType::U32 => f64::from(u32::from_le_bytes(item(bytes, ix))),
        DType::U64 => u64::from_le_bytes(item(bytes, ix)) as f64,
        DType::Bool => f64::from(u8::from(bytes[ix] != 0)),
    }
}

/// Writes element `ix`. Integers saturate.
pub(crate) fn store(dtype: DType, bytes: &mut [u8], ix: usize, value: f64) {
    fn put<const N: usize>(bytes: &mut [u8], ix: usize, item: [u8; N]) {
        bytes[ix * N..(ix + 1) * N].copy_from_slice(&item);
    }
    match dtype {
        DType::F32 => put(bytes, ix, (value as f32).to_le_bytes()),
        DType::F64 => put(bytes, ix, value.to_le_bytes()),
        DType::F16 => put(bytes, ix, f16::from_f32(types::odd_f32(value)).to_le_bytes()),
        DType::Bf16 => put(bytes, ix, bf16::from_f32(types::odd_f32(value)).to_le_bytes()),
        DType::I8 => put(bytes, ix, (value as i8).to_le_bytes()),
        DType::I16 => put(bytes, ix, (value as i16).to_le_bytes()),
        DType::I32 => put(bytes, ix, (value as i32).to_le_bytes()),
        DType::I64 => put(bytes, ix, (value as i64).to_le_bytes()),
        DType::U8 => put(bytes, ix, [value as u8]),
        DType::U16 => put(bytes, ix, (value as u16).to_le_bytes()),
        DType::U32 => put(bytes, ix, (value as u32).to_le_bytes()),
        DType::U64 => put(bytes, ix, (value as u64).to_le_bytes()),
        DType::Bool => put(bytes, ix, [u8::from(value != 0.0)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(channels: usize) -> DataField {
        let shape = Shape::from([2, 2, channels]);
        DataField { name: "image".into(), dtype: DType::U8, shape, axes: Axes::Pixels }
    }

    fn converted(field: &DataField, input: &BatchInput, from: &[u8]) -> Vec<f64> {
        let mut to = vec![0; input.sample_bytes()];
        Conversion::new(field, input).unwrap().apply(from, &mut to).unwrap();
        (0..input.shape.elements()).map(|ix| load(input.dtype, &to, ix)).collect()
    }

    #[test]
    fn pixels_become_planes_with_normalized_channels_in_every_float() {
        let normalize = Normalize { scale: 2.0, mean: vec![2.0, 4.0, 6.0], std: vec![1.0, 2.0, 4.0] };
        let bytes: Vec<u8> = (0..12).collect();
        for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F64] {
            let input =
                BatchInput { normalize: normalize.clone(), ..BatchInput::new(0, dtype, Shape::from([3, 2, 2])) };
            let want = [-2., 4., 10., 16., -1., 2., 5., 8., -0.5, 1., 2.5, 4.];
            assert_eq!(converted(&pixels(3), &input, &bytes), want, "{dtype}");
            let input = BatchInput { shape: Shape::from([2, 2, 3]), ..input };
            assert_eq!(converted(&pixels(3), &input, &bytes)[..4], [-2., -1., -0.5, 4.], "{dtype}");
        }
    }

    #[test]
    fn one_channel_takes_any_shape_of_its_size() {
        let input = BatchInput::new(0, DType::F32, Shape::from([4]));
        assert_eq!(converted(&pixels(1), &input, &[9, 8, 7, 6]), [9., 8., 7., 6.]);
    }

    #[test]
    fn planes_are_normalized_by_channel() {
        let field = DataField { shape: Shape::from([3, 2, 2]), axes: Axes::Plain, ..pixels(3) };
        let normalize = Normalize { scale: 1.0, mean: vec![0.0, 4.0, 8.0], std: vec![] };
        for dtype in [DType::F32, DType::I32] {
            let input =
                BatchInput { normalize: normalize.clone(), ..BatchInput::new(0, dtype, Shape::from([3, 2, 2])) };
            let want = [0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3.];
            assert_eq!(converted(&field, &input, &(0..12).collect::<Vec<u8>>()), want);
        }
    }

    #[test]
    fn mismatches_are_refused() {
        let refused = |input: BatchInput| Conversion::new(&pixels(3), &input).unwrap_err().to_string();
        let text = refused(BatchInput::new(0, DType::F32, Shape::from([3, 2, 3])));
        assert!(text.ends_with("the numbers of elements must be equal"), "{text}");
        let text = refused(BatchInput::new(0, DType::F32, Shape::from([12])));
        assert!(text.contains("must have shape [3, 2, 2] or [2, 2, 3]"), "{text}");
        let normalize = Normalize { mean: vec![1.0, 2.0], ..Normalize::default() };
        let text = refused(BatchInput { normalize, ..BatchInput::new(0, DType::F32, Shape::from([3, 2, 2])) });
        assert_eq!(text, "field `image` has 3 channels, but `mean` has 2 values");
        let normalize = Normalize { std: vec![0.0], ..Normalize::default() };
        assert!(
            refused(BatchInput { normalize, ..BatchInput::new(0, DType::F32, Shape::from([3, 2, 2])) })
                .contains("not be 0")
        );
    }

    #[test]
    fn label_outside_of_the_classes_is_refused() {
        let field = DataField { name: "y".into(), dtype: DType::U8, shape: Shape::scalar(), axes: Axes::Plain };
        let input = BatchInput { classes: Some(10), ..BatchInput::new(0, DType::I64, Shape::scalar()) };
        let conversion = Conversion::new(&field, &input).unwrap();
        let mut to = [0; 8];
        conversion.apply(&[9], &mut to).unwrap();
        assert_eq!(i64::from_le_bytes(to), 9);
        assert_eq!(conversion.apply(&[10], &mut to), Err("its label must be an integer in 0..10, got 10".into()));
    }
}
