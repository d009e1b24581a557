//! Arrival times of the server scenario: those of MLPerf's LoadGen for the same seed, to the nanosecond.
//!
//! LoadGen draws the distances from `std::exponential_distribution` over `std::mt19937`, as GCC's library computes them.

use crate::ScenarioLimits;

/// Arrival times in nanoseconds: a Poisson process of `rate` queries a second that begins with a query at 0. `seed` is
/// LoadGen's `schedule_rng_seed`. The first arrival at or after the minimum duration is the last one, unless more queries are
/// required.
pub fn poisson_arrivals(rate: f64, seed: u64, limits: ScenarioLimits) -> Vec<u64> {
    // Seeds of the generator have 32 bits.
    let mut random = MersenneTwister::new(seed as u32);
    let (mut arrivals, mut at, last_ns) = (Vec::new(), 0u64, (limits.seconds * 1e9) as u64);
    loop {
        arrivals.push(at);
        if limits.queries <= arrivals.len() && last_ns <= at {
            return arrivals;
        }
        at = at.saturating_add((-(1.0 - random.unit()).ln() / rate * 1e9) as u64);
    }
}

const STATE: usize = 624;

/// `std::mt19937`.
struct MersenneTwister {
    state: [u32; STATE],
    next: usize,
}

impl MersenneTwister {
    fn new(seed: u32) -> MersenneTwister {
        let mut state = [seed; STATE];
        for ix in 1..STATE {
            let before = state[ix - 1];
            state[ix] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(ix as u32);
        }
        MersenneTwister { state, next: STATE }
    }

    fn bits(&mut self) -> u32 {
        if self.next == STATE {
            for ix in 0..STATE {
                let joined = self.state[ix] & 0x8000_0000 | self.state[(ix + 1) % STATE] & 0x7fff_ffff;
                let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[ix] = self.state[(ix + 397) % STATE] ^ (joined >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut bits = self.state[self.next];
        self.next += 1;
        bits ^= bits >> 11;
        bits ^= (bits << 7) & 0x9d2c_5680;
        bits ^= (bits << 15) & 0xefc6_0000;
        bits ^ (bits >> 18)
    }

    /// `std::generate_canonical<double, 53>`: in `[0, 1)`, from 64 bits, the lower ones first.
    fn unit(&mut self) -> f64 {
        let (low, high) = (f64::from(self.bits()), f64::from(self.bits()));
        ((low + high * 4_294_967_296.0) / 18_446_744_073_709_551_616.0).min(1.0f64.next_down())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_is_that_of_the_standard() {
        // The C++ standard states the 10000th value of a default `std::mt19937`, [rand.predef].
        let mut random = MersenneTwister::new(5489);
        let last = (0..10_000).map(|_| random.bits()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
