//! [`Random`]: pseudorandom numbers that depend on a seed only.

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, seekable by seed, equal on every machine.
///
/// Not for secrets. Used for weights from a seed, synthetic inputs and test cases.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A stream from a seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// A stream for a name, so that the elements of a tensor do not depend on other tensors.
    pub fn for_name(seed: u64, name: &str) -> Random {
        // FNV-1a, 64 bits.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Random::new(seed ^ hash)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`, with 24 random bits.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 16_777_216.0
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..count`; `count` must be >= 1.
    pub fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(count)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_follows_the_published_sequence() {
        // Reference values of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn random_stays_in_range() {
        let mut random = Random::for_name(1, "conv1.weight");
        for _ in 0..1000 {
            assert!((-2.0..3.0).contains(&random.uniform(-2.0, 3.0)));
            assert!(random.below(7) < 7);
        }
    }
}
