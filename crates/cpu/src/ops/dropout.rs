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

/// Drops elements of a task, which begins with a block. The vector type only selects the instruction set, for which plain
/// loops over arrays are compiled.
#[inline(always)]
fn drop_elements<V: Vector>(philox: Philox, first: u32, threshold: u32, scale: f32, cells: &mut [f32]) {
    for (piece, cells) in cells.chunks_mut(PIECE).enumerate() {
        let numbers = numbers(philox, first.wrapping_add((piece * LANES) as u32));
        // A loop of constant length is vectorized.
        match cells.first_chunk_mut::<PIECE>() {
            Some(cells) => drop_some(&numbers, threshold, scale, cells),
            None => drop_some(&numbers, threshold, scale, cells),
        }
    }
}

#[inline(always)]
fn drop_some(numbers: &[u32; PIECE], threshold: u32, scale: f32, cells: &mut [f32]) {
    for (cell, &number) in cells.iter_mut().zip(numbers) {
        *cell = if number < threshold { 0.0 } else { *cell * scale };
    }
}

const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
/// The half of a word that counts.
const LOW: u64 = 0xffff_ffff;

/// The numbers of sixteen neighboring blocks in their order, see [`Philox::block`].
///
/// A word is in the lower half of eight bytes and the upper half does not count, as vector instructions multiply words.
#[inline(always)]
fn numbers(philox: Philox, first: u32) -> [u32; PIECE] {
    let mut key = [philox.seed as u32, (philox.seed >> 32) as u32];
    let mut words = [[0; LANES], [u64::from(philox.stream); LANES], [philox.step; LANES], [philox.step >> 32; LANES]];
    for (lane, word) in words[0].iter_mut().enumerate() {
        *word = u64::from(first.wrapping_add(lane as u32));
    }
    for _ in 0..10 {
        let mut next = [[0; LANES]; 4];
        for lane in 0..LANES {
            let a = MULTIPLIERS[0] * (words[0][lane] & LOW);
            let b = MULTIPLIERS[1] * (words[2][lane] & LOW);
            next[0][lane] = (b >> 32) ^ words[1][lane] ^ u64::from(key[0]);
            next[1][lane] = b;
            next[2][lane] = (a >> 32) ^ words[3][lane] ^ u64::from(key[1]);
            next[3][lane] = a;
        }
        words = next;
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    let mut numbers = [0; PIECE];
    for lane in 0..LANES {
        for (number, words) in words.iter().enumerate() {
            numbers[lane * Philox::BLOCK + number] = words[lane] as u32;
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_single_blocks() {
        let philox = Philox { seed: 0x1234_5678_9abc_def0, step: 0xfedc_ba98_7654_3210, stream: 0xffff_fff3 };
        let all = numbers(philox, u32::MAX - 5);
        for (lane, numbers) in all.chunks(Philox::BLOCK).enumerate() {
            assert_eq!(numbers, philox.block((u32::MAX - 5).wrapping_add(lane as u32)));
        }
    }
}
