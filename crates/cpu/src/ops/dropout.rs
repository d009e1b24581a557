//! [`Dropout`]: zeros at random positions, computed from a counter.

use serde::{Deserialize, Serialize};
use types::{Element, Philox};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements_mut, input_or_in_place, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Elements of a task.
const TASK: usize = 1 << 14;
/// Elements of sixteen blocks of random numbers.
const PIECE: usize = LANES * Philox::BLOCK;

/// `x` and `key: [2]` of `i64`, a seed and the number of the step, to `x / (1 - rate)` with elements replaced by 0 with
/// probability `rate`. `f32`; the operand may be in place.
///
/// Refuses: a rate outside `[0, 1)`, 2^34 elements or more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The number of elements.
    pub elements: usize,
    /// The probability of a zero.
    pub rate: f32,
    /// The stream of random numbers.
    pub stream: u32,
}

impl KernelFn for Dropout {
    const NAME: &'static str = "dropout";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if !(0.0..1.0).contains(&self.rate) {
            return Err(InvalidKernel("`rate` must be in [0, 1)"));
        }
        if 1 << 34 <= self.elements as u64 {
            return Err(InvalidKernel("there must be less than 2^34 elements"));
        }
        let elements = product(&[self.elements]);
        Sizes::new(&[elements, Some(4)], elements, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        input == 0
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: Option<&[f32]> = input_or_in_place(&args, 0);
        let Operand::Bytes(key) = args.inputs[1] else { return };
        let number = |bytes: &[u8]| <i64 as Element>::from_le(bytes).cast_unsigned();
        let philox = Philox { seed: number(&key[..8]), step: number(&key[8..16]), stream: self.stream };
        let (threshold, scale) = (Philox::threshold(self.rate), 1.0 / (1.0 - self.rate));
        for_each_chunk(pool, elements_mut(args.outputs[0]), TASK, &|number, cells: &mut [f32]| {
            let first = number * TASK;
            if let Some(x) = x {
                cells.copy_from_slice(&x[first..first + cells.len()]);
            }
            let block = (first / Philox::BLOCK) as u32;
            with_vector!(pool.isa(), drop_elements(
                philox: Philox, block: u32, threshold: u32, scale: f32, cells: &mut [f32]
            ));
        });
    }
}

/// Drops elements of a task, which begins with a block. The vector type only selects the instruction set.
#[inline(always)]
fn drop_elements<V: Vector>(philox: Philox, first: u32, threshold: u32, scale: f32, cells: &mut [f32]) {
    for (piece, cells) in cells.chunks_mut(PIECE).enumerate() {
        let bits = blocks(philox, first.wrapping_add((piece * LANES) as u32));
        for (ix, cell) in cells.iter_mut().enumerate() {
            let own = bits[ix % Philox::BLOCK][ix / Philox::BLOCK];
            *cell = if own < threshold { 0.0 } else { *cell * scale };
        }
    }
}

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// [`Philox::block`] of sixteen neighboring blocks, a lane each.
#[inline(always)]
fn blocks(philox: Philox, first: u32) -> [[u32; LANES]; 4] {
    let mut key = [philox.seed as u32, (philox.seed >> 32) as u32];
    let mut counter = [
        std::array::from_fn(|lane| first.wrapping_add(lane as u32)),
        [philox.stream; LANES],
        [philox.step as u32; LANES],
        [(philox.step >> 32) as u32; LANES],
    ];
    for round in 0..10 {
        if 0 < round {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let [a, b]: [[u64; LANES]; 2] = std::array::from_fn(|ix| {
            std::array::from_fn(|lane| u64::from(MULTIPLIERS[ix]) * u64::from(counter[2 * ix][lane]))
        });
        counter = [
            std::array::from_fn(|lane| (b[lane] >> 32) as u32 ^ counter[1][lane] ^ key[0]),
            b.map(|product| product as u32),
            std::array::from_fn(|lane| (a[lane] >> 32) as u32 ^ counter[3][lane] ^ key[1]),
            a.map(|product| product as u32),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_the_numbers_of_single_blocks() {
        let philox = Philox { seed: 0x1234_5678_9abc_def0, step: 77, stream: 3 };
        let all = blocks(philox, u32::MAX - 5);
        for lane in 0..LANES {
            let block = philox.block((u32::MAX - 5).wrapping_add(lane as u32));
            assert_eq!(all.map(|numbers| numbers[lane]), block);
        }
    }
}
