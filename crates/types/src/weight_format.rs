//! [`WeightFormat`]: weights of `f32` that are stored in fewer bits, and the numbers that are decoded from them.
//!
//! Rounding is a projection: decoded weights, encoded again, give the same bits. A compiler can therefore round the weights of
//! a graph, and a kernel's packing can encode them again without a second copy of codes and scales.

use serde::{Deserialize, Serialize};

use crate::{DType, bf16};

/// The stored form of weights that kernels multiply as `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeightFormat {
    /// Rounded to `bf16`, to nearest even.
    Bf16,
    /// Integers from -127 to 127, times one scale for each channel.
    Int8,
}

/// The largest integer of an int8 weight.
const LEVEL_MAX: f32 = 127.0;
/// Low bits of a scale's significand that are 0, so that its products with integers of seven bits are exact.
const FREE_BITS: u32 = 7;
/// Channels whose weights are all smaller become 0: their scale would be subnormal.
const LARGEST_MIN: f32 = 1e-30;

impl WeightFormat {
    /// All formats.
    pub const ALL: [WeightFormat; 2] = [WeightFormat::Bf16, WeightFormat::Int8];

    /// The name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Int8 => "int8",
        }
    }

    /// The dtype of a stored weight.
    pub fn dtype(self) -> DType {
        match self {
            WeightFormat::Bf16 => DType::Bf16,
            WeightFormat::Int8 => DType::I8,
        }
    }

    /// Bytes of a stored weight.
    pub fn size(self) -> usize {
        self.dtype().size().0 as usize
    }

    /// The numbers that are decoded from stored weights. `channel` is the channel of a weight by its position.
    pub fn decoded(self, weights: &[f32], channels: usize, channel: impl Fn(usize) -> usize) -> Vec<f32> {
        match self {
            WeightFormat::Bf16 => weights.iter().map(|&weight| bf16::from_f32(weight).to_f32()).collect(),
            WeightFormat::Int8 => {
                let scales = int8_scales(weights, channels, &channel);
                let decoded = |(at, &weight): (usize, &f32)| {
                    let scale = scales[channel(at)];
                    int8_level(weight, scale) * scale
                };
                weights.iter().enumerate().map(decoded).collect()
            }
        }
    }
}

/// The scale of each channel: a 127th of its largest weight, towards zero. Products of a scale and a level are exact.
pub fn int8_scales(weights: &[f32], channels: usize, channel: impl Fn(usize) -> usize) -> Vec<f32> {
    let mut scales = vec![0.0f32; channels];
    weights.iter().enumerate().for_each(|(at, weight)| {
        let largest = &mut scales[channel(at)];
        *largest = largest.max(weight.abs());
    });
    for scale in &mut scales {
        let exact = if LARGEST_MIN <= *scale { *scale / LEVEL_MAX } else { 0.0 };
        *scale = f32::from_bits(exact.to_bits() >> FREE_BITS << FREE_BITS);
    }
    scales
}

/// The integer of a weight, as `f32`: the nearest multiple of the scale.
pub fn int8_level(weight: f32, scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { (weight / scale).round_ties_even().clamp(-LEVEL_MAX, LEVEL_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn rounding_is_a_projection_within_half_a_step() {
        let mut random = Random::new(3);
        for channels in [1, 3, 64] {
            for magnitude in [1e-29f32, 1e-6, 1.0, 3e38] {
                let weights: Vec<f32> = (0..channels * 97).map(|_| random.uniform(-1.0, 1.0) * magnitude).collect();
                let channel = |at: usize| at % channels;
                for format in WeightFormat::ALL {
                    let once = format.decoded(&weights, channels, channel);
                    let twice = format.decoded(&once, channels, channel);
                    assert!(once.iter().zip(&twice).all(|(a, b)| a.to_bits() == b.to_bits()), "{format:?} {magnitude}");
                    let scales = int8_scales(&weights, channels, channel);
                    for (at, (&weight, &decoded)) in weights.iter().zip(&once).enumerate() {
                        let error = f64::from(weight) - f64::from(decoded);
                        let most = match format {
                            WeightFormat::Bf16 => f64::from(weight.abs()) / 256.0,
                            // Scales are rounded too, which moves the largest weight.
                            WeightFormat::Int8 => 0.502 * f64::from(scales[channel(at)]),
                        };
                        assert!(error.abs() <= most, "{format:?}: {weight} became {decoded}");
                    }
                }
            }
        }
    }

    #[test]
    fn channel_of_zeros_or_of_tiny_weights_is_zero() {
        for weight in [0.0, 1e-31, -1e-38] {
            assert_eq!(WeightFormat::Int8.decoded(&[weight; 4], 1, |_| 0), [0.0; 4]);
        }
    }

    #[test]
    fn levels_are_exact_products() {
        let weights = [0.3f32, -1.7, 0.9, 1.699];
        let decoded = WeightFormat::Int8.decoded(&weights, 1, |_| 0);
        let scale = int8_scales(&weights, 1, |_| 0)[0];
        for (&weight, &decoded) in weights.iter().zip(&decoded) {
            let level = f64::from(int8_level(weight, scale));
            assert_eq!(f64::from(decoded), level * f64::from(scale));
        }
    }
}
