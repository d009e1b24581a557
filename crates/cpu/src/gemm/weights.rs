//! [`Weights`]: whether an operand was packed when the plan was written. Functions for packed weights of `f32` products that
//! are stored in fewer bits ([`WeightFormat`]): their elements take the place of words, and scales follow them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use types::{WeightFormat, int8_level, int8_scales};

use crate::simd::StorageType;

/// Where a kernel's weights are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weights {
    /// Packed by the kernel's `pack`, when the plan was written.
    Packed,
    /// In the order of the model; each run packs them into the workspace.
    Dynamic,
}

impl Weights {
    /// Elements of the operand and of the workspace, given the operand's elements `[plain, packed]` and the elements that the
    /// workspace has apart from packed weights.
    pub(crate) fn elements(
        self,
        [plain, packed]: [Option<usize>; 2],
        workspace: Option<usize>,
    ) -> (Option<usize>, Option<usize>) {
        match self {
            Weights::Packed => (packed, workspace),
            Weights::Dynamic => {
                (plain, workspace.zip(packed).and_then(|(workspace, packed)| workspace.checked_add(packed)))
            }
        }
    }
}

/// Bytes of a packed weight of an `f32` product.
pub(crate) fn weight_size(format: Option<WeightFormat>) -> usize {
    format.map_or(size_of::<f32>(), WeightFormat::size)
}

/// Words of `elements` packed weights, a multiple of 16, and of their scales for `lanes` channels.
pub(crate) fn words(format: Option<WeightFormat>, elements: Option<usize>, lanes: Option<usize>) -> Option<usize> {
    match format {
        None => elements,
        Some(WeightFormat::Bf16) => Some(elements? / 2),
        Some(WeightFormat::Int8) => (elements? / 4).checked_add(lanes?),
    }
}

/// Words of scales behind packed weights for `lanes` channels.
pub(crate) fn scale_words(format: Option<WeightFormat>, lanes: usize) -> usize {
    if format == Some(WeightFormat::Int8) { lanes } else { 0 }
}

/// The numbers that are stored for weights, and the scales of their channels if the format has any. `channel` is the channel
/// of a weight by its position.
pub(crate) fn levels(
    format: Option<WeightFormat>,
    weights: &[f32],
    channels: usize,
    channel: impl Fn(usize) -> usize,
) -> (Cow<'_, [f32]>, Vec<f32>) {
    if format != Some(WeightFormat::Int8) {
        return (Cow::Borrowed(weights), Vec::new());
    }
    let scales = int8_scales(weights, channels, &channel);
    let level = |(at, &weight): (usize, &f32)| int8_level(weight, scales[channel(at)]);
    (Cow::Owned(weights.iter().enumerate().map(level).collect()), scales)
}

/// The bytes of packed weights and of their scales for `lanes` channels; the last ones may have none.
pub(crate) fn stored(format: Option<WeightFormat>, packed: &[f32], mut scales: Vec<f32>, lanes: usize) -> Vec<u8> {
    match format {
        None => StorageType::F32.bytes(packed),
        Some(WeightFormat::Bf16) => StorageType::Bf16.bytes(packed),
        Some(WeightFormat::Int8) => {
            scales.resize(lanes, 0.0);
            let mut bytes = StorageType::I8.bytes(packed);
            bytes.extend(StorageType::F32.bytes(&scales));
            bytes
        }
    }
}
