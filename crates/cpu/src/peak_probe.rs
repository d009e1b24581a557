//! [`peak_flops_probe`]: measures the peak FLOPS of the vector units, to compare kernels with.

use std::hint::black_box;

use crate::simd::Isa;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;

/// Runs multiply-adds on registers only, on every thread. Returns the floating-point operations of all threads, two per
/// multiply-add: some hundred thousand per round and thread.
pub fn peak_flops_probe(pool: &Pool, rounds: usize) -> u64 {
    pool.run(pool.threads(), &|_| {
        with_vector!(pool.isa(), turns(rounds: usize));
    });
    let sums = if pool.isa() == Isa::Avx512 { WIDE } else { NARROW };
    2 * (sums * LANES * TURNS * rounds * pool.threads()) as u64
}

/// Steps of a round.
const TURNS: usize = 1 << 10;
/// Sums that hide the latency of a multiply-add and leave registers for its operands.
const WIDE: usize = 16;
const NARROW: usize = 6;

#[inline(always)]
fn turns<V: Vector>(rounds: usize) {
    match V::ISA {
        Isa::Avx512 => multiply_add::<V, WIDE>(rounds),
        _ => multiply_add::<V, NARROW>(rounds),
    }
}

#[inline(always)]
fn multiply_add<V: Vector, const SUMS: usize>(rounds: usize) {
    for _ in 0..rounds {
        let (factor, mut sums) = (V::splat(black_box(0.999)), [V::splat(black_box(1.0)); SUMS]);
        for _ in 0..TURNS {
            // Not a closure, which would not be compiled for the instruction set.
            for sum in &mut sums {
                *sum = sum.mul_add(factor, factor);
            }
        }
        for sum in sums {
            // All lanes are used, or the compiler would drop registers.
            black_box(sum.to_array());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted() {
        for threads in [1, 2] {
            let pool = Pool::new(threads);
            assert_eq!(peak_flops_probe(&pool, 4), 4 * peak_flops_probe(&pool, 1));
        }
    }
}
