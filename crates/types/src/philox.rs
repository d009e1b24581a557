//! [`Philox`]: random numbers by counter, for dropout.

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): each block of four numbers is a function of a key and a counter, so
/// that any element can be computed alone, in any order and again.
///
/// Keyed by a seed; the counter has the number of the block, a stream and a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    /// The seed.
    pub seed: u64,
    /// The step of the training.
    pub step: u64,
    /// The stream: one for each operator that draws numbers.
    pub stream: u32,
}

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// The golden ratio and the square root of 3.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

impl Philox {
    /// Numbers in a block.
    pub const BLOCK: usize = 4;

    /// Four numbers of 32 random bits: elements `4 block .. 4 block + 4` of the stream.
    #[inline]
    pub fn block(self, block: u32) -> [u32; 4] {
        let mut key = [self.seed as u32, (self.seed >> 32) as u32];
        let mut counter = [block, self.stream, self.step as u32, (self.step >> 32) as u32];
        for round in 0..10 {
            if 0 < round {
                key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
            }
            let product = |at: usize| u64::from(MULTIPLIERS[at / 2]) * u64::from(counter[at]);
            let (a, b) = (product(0), product(2));
            counter =
                [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        }
        counter
    }

    /// The number below which an element is dropped with probability `rate`, which is in `[0, 1)`.
    pub fn threshold(rate: f32) -> u32 {
        // The product is below 2^32 for each rate below 1.
        (f64::from(rate) * 4_294_967_296.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_numbers() {
        // Known answers of Random123: counter and key of zeros, and of ones.
        let zeros = Philox { seed: 0, step: 0, stream: 0 };
        assert_eq!(zeros.block(0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Philox { seed: u64::MAX, step: u64::MAX, stream: u32::MAX };
        assert_eq!(ones.block(u32::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn a_quarter_is_below_the_threshold_of_a_quarter() {
        let philox = Philox { seed: 7, step: 3, stream: 1 };
        let below =
            (0..4096).flat_map(|block| philox.block(block)).filter(|&bits| bits < Philox::threshold(0.25)).count();
        assert!((3900..4300).contains(&below), "{below} of 16384");
        assert_eq!(Philox::threshold(0.0), 0);
    }
}
