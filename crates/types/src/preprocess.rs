//! [`Preprocess`]: how an image becomes a model's input. Part of the model, stored in its plan.

use serde::{Deserialize, Serialize};

/// From an 8-bit RGB image to one `f32` input of shape `[1, 3, height, width]`.
///
/// The steps, in this order: crop the centered square whose side is `crop_fraction` of the shorter side, its ends
/// rounded down to whole pixels; resize it to `height` x `width` with `filter`, columns first, each pass rounded to
/// 8 bits; reorder channels; then `(pixel - mean) / scale` for each channel in the new order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preprocess {
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// The side of the centered crop, as a fraction of the image's shorter side, in `(0, 1]`.
    pub crop_fraction: f32,
    /// The interpolation filter.
    pub filter: Filter,
    /// The order of the input's channels.
    pub channel_order: ChannelOrder,
    /// Subtracted, in units of 0..=255, in the order of the input's channels.
    pub mean: [f32; 3],
    /// Divided by, in units of 0..=255, in the order of the input's channels.
    pub scale: [f32; 3],
}

/// An interpolation filter. Filters widen when the image shrinks (antialiasing).
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
    /// Blue first, as in Caffe.
    Bgr,
}
