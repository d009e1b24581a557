//! [`Preprocess`]: how a picture becomes a model's input. It belongs to the model and travels in its executable.

use serde::{Deserialize, Serialize};

/// From an 8-bit RGB picture to one `f32` input of shape `[1, 3, height, width]`.
///
/// The steps, in this order: take the centred part of the picture whose side is `crop_fraction` of the shorter side, its
/// ends rounded down to whole pixels; resize it to `height` x `width` with `filter`, columns first, each pass rounded to
/// 8 bits; reorder channels; then `(pixel - mean) / scale` for each channel in the new order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preprocess {
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// The side of the centred square kept, as a part of the picture's shorter side, in `(0, 1]`.
    pub crop_fraction: f32,
    /// How pixels are interpolated.
    pub filter: Filter,
    /// Which channel comes first.
    pub channel_order: ChannelOrder,
    /// Subtracted, in units of 0..=255, in the order of the input's channels.
    pub mean: [f32; 3],
    /// Divided by, in units of 0..=255, in the order of the input's channels.
    pub scale: [f32; 3],
}

/// An interpolation filter. All of them widen when the picture shrinks (antialiasing).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// Triangle.
    Bilinear,
    /// Catmull-Rom, cubic with a = -0.5.
    Bicubic,
}

/// The order of an image's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelOrder {
    /// Red first.
    Rgb,
    /// Blue first, as Caffe's networks have it.
    Bgr,
}
