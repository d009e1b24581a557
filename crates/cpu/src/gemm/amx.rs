//! Products by AMX, the matrix unit of x86-64: words of two `bf16` or four bytes, in tile registers of sixteen rows of
//! 64 bytes.
//!
//! ```text
//!   equal steps                         tmm6   tmm7     weights: a row per word, sixteen lanes
//!     tmm4  pixels, a row each          tmm0   tmm1     sums of the first half of the rows
//!     tmm5                              tmm2   tmm3     sums of the second, if there are more than sixteen
//!
//!   other depths                        tmm4   tmm5     weights of sixteen words
//!     tmm2  sixteen words               tmm0   tmm1     sums
//!     tmm3  the remaining words         tmm6   tmm7     their weights
//! ```
//!
//! Rows of a tile register must have one stride. Each thread sets the registers' shapes when they change. Subnormal
//! numbers count as 0, as with AVX512-BF16.

use std::arch::asm;

use crate::gemm::tile::{Accumulators, Init, Row, STRIDED_ROWS_MAX, Tile, strided_rows_max, words_per_step};
use crate::simd::StorageType;
use crate::simd::amx_unit::{WORDS, configure};
use crate::simd::vector::LANES;
use crate::simd::vector::x86::Avx512;

/// Where the sums of a tile are stored: the first one, and the elements to those of the next row and the next vector.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    start: *mut f32,
    row: usize,
    vector: usize,
}

impl Sums {
    /// In a buffer of their own.
    pub(crate) fn in_buffer(sums: &mut Accumulators) -> Sums {
        Sums { start: sums.start().cast(), row: LANES, vector: STRIDED_ROWS_MAX * LANES }
    }

    /// In the tile's output, if they are its results and its rows have one stride there.
    pub(crate) fn in_output(tile: &Tile) -> Option<Sums> {
        let is_plain = tile.result == StorageType::F32 && tile.residual.is_none() && tile.limits.is_none();
        if !is_plain || matches!(tile.init, Init::Dequant(_)) {
            return None;
        }
        let step = |pair: &[Row]| pair[1].out.wrapping_sub(pair[0].out);
        let row = tile.rows.get(..2).map_or(LANES, step);
        let is_even = tile.rows.windows(2).all(|pair| step(pair) == row);
        let start = tile.out.cast::<f32>().wrapping_add(tile.rows[0].out);
        is_even.then_some(Sums { start, row, vector: tile.vector_stride })
    }

    /// Those of the rows after the first `rows`.
    fn after_rows(self, rows: usize) -> Sums {
        Sums { start: self.start.wrapping_add(rows.wrapping_mul(self.row)), ..self }
    }

    /// Those of the second vector.
    fn second_vector(self) -> Sums {
        Sums { start: self.start.wrapping_add(self.vector), ..self }
    }

    /// Bytes from one row to the next.
    fn row_bytes(self) -> usize {
        self.row.wrapping_mul(size_of::<f32>())
    }
}

/// The stride of a tile's rows in words, if the matrix unit can compute it.
pub(crate) fn row_step(tile: &Tile) -> Option<isize> {
    let [k_loop] = tile.k_loops else { return None };
    let words = matches!(tile.operands, StorageType::Bf16 | StorageType::U8);
    // For few words the vector unit is faster than the latency of the matrix unit.
    let all: usize = k_loop.depth * k_loop.loops.iter().map(|each| each.iterations).product::<usize>();
    let is_worth_it = words_per_step(k_loop.depth).is_some() || WORDS < all;
    let can_start = !matches!(tile.init, Init::Accumulate) || Sums::in_output(tile).is_some();
    let possible = words && is_worth_it && k_loop.depth != 0 && can_start;
    let step = |pair: &[Row]| pair[1].x.wrapping_sub(pair[0].x).cast_signed();
    let first = tile.rows.get(..2).map_or(0, step);
    (possible && tile.rows.windows(2).all(|pair| step(pair) == first)).then_some(first)
}

/// Multiplies words of the rows by their weights and adds the products to the sums.
macro_rules! add_words {
    ($multiply:literal: $left:literal, $right:literal, $other:literal, $vectors:expr, $x:expr, $weights:expr, $x_step:expr, $weight_step:expr) => {
        match $vectors {
            1 => asm!(
                concat!("tileloadd ", $left, ", [{x} + {xs}]"),
                concat!("tileloadd ", $right, ", [{w} + {ws}]"),
                concat!($multiply, " tmm0, ", $left, ", ", $right),
                x = in(reg) $x, xs = in(reg) $x_step, w = in(reg) $weights, ws = in(reg) $weight_step,
                options(nostack, preserves_flags, readonly),
            ),
            _ => asm!(
                concat!("tileloadd ", $left, ", [{x} + {xs}]"),
                concat!("tileloadd ", $right, ", [{w} + {ws}]"),
                concat!("tileloadd ", $other, ", [{w} + {ws} + 64]"),
                concat!($multiply, " tmm0, ", $left, ", ", $right),
                concat!($multiply, " tmm1, ", $left, ", ", $other),
                x = in(reg) $x, xs = in(reg) $x_step, w = in(reg) $weights, ws = in(reg) $weight_step,
                options(nostack, preserves_flags, readonly),
            ),
        }
    };
}

/// Multiplies the words of a step by their weights and adds the products: one half of the rows or both, one vector or
/// both.
macro_rules! add_step {
    ($multiply:literal, $both:expr, $vectors:expr, $x:expr, $more:expr, $weights:expr, $x_step:expr, $weight_step:expr) => {
        match ($both, $vectors) {
            (false, 1) => asm!(
                "tileloadd tmm6, [{w} + {ws}]",
                "tileloadd tmm4, [{x} + {xs}]",
                concat!($multiply, " tmm0, tmm4, tmm6"),
                x = in(reg) $x, xs = in(reg) $x_step, w = in(reg) $weights, ws = in(reg) $weight_step,
                options(nostack, preserves_flags, readonly),
            ),
            (false, _) => asm!(
                "tileloadd tmm6, [{w} + {ws}]",
                "tileloadd tmm4, [{x} + {xs}]",
                concat!($multiply, " tmm0, tmm4, tmm6"),
                "tileloadd tmm7, [{w} + {ws} + 64]",
                concat!($multiply, " tmm1, tmm4, tmm7"),
                x = in(reg) $x, xs = in(reg) $x_step, w = in(reg) $weights, ws = in(reg) $weight_step,
                options(nostack, preserves_flags, readonly),
            ),
            (true, 1) => asm!(
                "tileloadd tmm6, [{w} + {ws}]",
                "tileloadd tmm4, [{x} + {xs}]",
                concat!($multiply, " tmm0, tmm4, tmm6"),
                "tileloadd tmm5, [{more} + {xs}]",
                concat!($multiply, " tmm2, tmm5, tmm6"),
                x = in(reg) $x, more = in(reg) $more, xs = in(reg) $x_step,
                w = in(reg) $weights, ws = in(reg) $weight_step,
                options(nostack, preserves_flags, readonly),
            ),
            (true, _) => asm!(
                "tileloadd tmm6, [{w} + {ws}]",
                "tileloadd tmm4, [{x} + {xs}]",
                concat!($multiply, " tmm0, tmm4, tmm6"),
                "tileloadd tmm7, [{w} + {ws} + 64]",
                concat!($multiply, " tmm1, tmm4, tmm7"),
                "tileloadd tmm5, [{more} + {xs}]",
                concat!($multiply, " tmm2, tmm5, tmm6"),
                concat!($multiply, " tmm3, tmm5, tmm7"),
                x = in(reg) $x, more = in(reg) $more, xs = in(reg) $x_step,
                w = in(reg) $weights, ws = in(reg) $weight_step,
                options(nostack, preserves_flags, readonly),
            ),
        }
    };
}

/// The sums of a tile whose rows are `step` words apart; of int8 the bits of `i32`. [`Init::Accumulate`] adds the results in
/// the output, which is then the destination.
///
/// # Safety
/// As [`crate::gemm::dispatch::multiply`]; AMX is available, `row_step` returned the step, and a sum for each row and
/// vector can be written.
pub(crate) unsafe fn sums(tile: &Tile, step: isize, sums: Sums) {
    let depth = tile.k_loops[0].depth;
    assert!(tile.rows.len() <= strided_rows_max(depth), "the rows must fit the registers");
    // SAFETY: the caller's promise.
    unsafe {
        match (words_per_step(depth), tile.operands == StorageType::U8) {
            (Some(words), true) => sums_of_equal_steps::<true>(tile, words, step, sums),
            (Some(words), false) => sums_of_equal_steps::<false>(tile, words, step, sums),
            (None, _) => sums_of_words(tile, step, sums),
        }
    }
}

/// Sums over a whole number of equal steps.
///
/// # Safety
/// As [`sums`].
unsafe fn sums_of_equal_steps<const BYTES: bool>(tile: &Tile, words: usize, step: isize, sums: Sums) {
    let (k_loop, count, vectors) = (&tile.k_loops[0], tile.rows.len(), tile.vectors);
    let both = WORDS < count;
    let rows = if both { count.div_ceil(2) } else { count };
    configure(rows, count - rows, words, 0);
    let (x_step, weight_step) = (step * 4, tile.weight_stride * 4);
    let (row, more) = (sums.row_bytes(), sums.after_rows(rows));
    // SAFETY: as in `sums_of_words`; rows of the second half have the same stride.
    unsafe {
        // The same bias for all pixels, the results so far, or zeros; registers without rows must not be touched.
        macro_rules! begin {
            ($register:literal, $from:literal, $sums:expr) => {
                match tile.init {
                    Init::Bias(bias) => asm!(
                        concat!("tileloadd ", $register, ", [{} + {} + ", $from, "]"),
                        in(reg) bias, in(reg) 0usize, options(nostack, preserves_flags, readonly),
                    ),
                    Init::Accumulate => asm!(
                        concat!("tileloadd ", $register, ", [{} + {}]"),
                        in(reg) $sums.start, in(reg) row, options(nostack, preserves_flags, readonly),
                    ),
                    _ => asm!(concat!("tilezero ", $register), options(nostack, preserves_flags, nomem)),
                }
            };
        }
        begin!("tmm0", "0", sums);
        if vectors == 2 {
            begin!("tmm1", "64", sums.second_vector());
        }
        if both {
            begin!("tmm2", "0", more);
            if vectors == 2 {
                begin!("tmm3", "64", more.second_vector());
            }
        }
        let x = tile.x.add(tile.rows[0].x);
        let second = step.wrapping_mul(rows as isize);
        let (mut prefetch, [outer, middle, inner]) = (tile.prefetch, k_loop.loops);
        for turn in 0..outer.iterations {
            for turn_2 in 0..middle.iterations {
                let mut shift = k_loop.x + turn * outer.x + turn_2 * middle.x;
                let mut place = k_loop.weights + turn * outer.weights + turn_2 * middle.weights;
                for _ in 0..inner.iterations {
                    let (mut x, mut weights) = (x.wrapping_add(shift), tile.weights.add(place));
                    for _ in 0..k_loop.depth / words {
                        prefetch.step::<Avx512>();
                        let more = x.wrapping_offset(second);
                        match BYTES {
                            true => add_step!("tdpbusd", both, vectors, x, more, weights, x_step, weight_step),
                            false => add_step!("tdpbf16ps", both, vectors, x, more, weights, x_step, weight_step),
                        }
                        (x, weights) = (x.wrapping_add(words), weights.wrapping_add(words * tile.weight_stride));
                    }
                    (shift, place) = (shift + inner.x, place + inner.weights);
                }
            }
        }
        macro_rules! store {
            ($register:literal, $sums:expr) => {
                asm!(concat!("tilestored [{} + {}], ", $register), in(reg) $sums.start, in(reg) row, options(nostack, preserves_flags))
            };
        }
        store!("tmm0", sums);
        if vectors == 2 {
            store!("tmm1", sums.second_vector());
        }
        if both {
            store!("tmm2", more);
            if vectors == 2 {
                store!("tmm3", more.second_vector());
            }
        }
    }
}

/// Sums over sixteen words at a time and a remainder.
///
/// # Safety
/// As [`sums`].
unsafe fn sums_of_words(tile: &Tile, step: isize, sums: Sums) {
    let k_loop = &tile.k_loops[0];
    let (rows, vectors) = (tile.rows.len(), tile.vectors);
    let (full, rest) = (k_loop.depth / WORDS, k_loop.depth % WORDS);
    let bytes = tile.operands == StorageType::U8;
    configure(rows, 0, WORDS, rest);
    let zeros = [0.0f32; 2 * LANES];
    let row = sums.row_bytes();
    // The same bias or zeros for all pixels, or the results so far.
    let (start, start_step, start_second): (*const f32, usize, usize) = match tile.init {
        Init::Bias(bias) => (bias, 0, LANES),
        Init::Accumulate => (sums.start, row, sums.vector),
        _ => (zeros.as_ptr(), 0, LANES),
    };
    let (x_step, weight_step) = (step * 4, tile.weight_stride * 4);
    // SAFETY: the caller's promise: `start` has a number for each lane, each register row is part of a tile's row, and
    // all words and weights that the loops reach can be read. The registers belong to this thread, no other code uses
    // them, and `configure` set their shapes.
    unsafe {
        asm!("tileloadd tmm0, [{} + {}]", in(reg) start, in(reg) start_step, options(nostack, preserves_flags, readonly));
        if vectors == 2 {
            let start = start.wrapping_add(start_second);
            asm!("tileloadd tmm1, [{} + {}]", in(reg) start, in(reg) start_step, options(nostack, preserves_flags, readonly));
        }
        let x = tile.x.add(tile.rows[0].x);
        let (mut prefetch, [outer, middle, inner]) = (tile.prefetch, k_loop.loops);
        for turn in 0..outer.iterations {
            for turn_2 in 0..middle.iterations {
                let mut shift = k_loop.x + turn * outer.x + turn_2 * middle.x;
                let mut place = k_loop.weights + turn * outer.weights + turn_2 * middle.weights;
                for _ in 0..inner.iterations {
                    let (mut x, mut weights) = (x.add(shift), tile.weights.add(place));
                    for _ in 0..full {
                        prefetch.step::<Avx512>();
                        match bytes {
                            true => {
                                add_words!("tdpbusd": "tmm2", "tmm4", "tmm5", vectors, x, weights, x_step, weight_step)
                            }
                            false => {
                                add_words!("tdpbf16ps": "tmm2", "tmm4", "tmm5", vectors, x, weights, x_step, weight_step)
                            }
                        }
                        (x, weights) = (x.wrapping_add(WORDS), weights.wrapping_add(WORDS * tile.weight_stride));
                    }
                    prefetch.step::<Avx512>();
                    match bytes {
                        true => {
                            add_words!("tdpbusd": "tmm3", "tmm6", "tmm7", vectors, x, weights, x_step, weight_step)
                        }
                        false => {
                            add_words!("tdpbf16ps": "tmm3", "tmm6", "tmm7", vectors, x, weights, x_step, weight_step)
                        }
                    }
                    (shift, place) = (shift + inner.x, place + inner.weights);
                }
            }
        }
        asm!("tilestored [{} + {}], tmm0", in(reg) sums.start, in(reg) row, options(nostack, preserves_flags));
        if vectors == 2 {
            let to = sums.second_vector().start;
            asm!("tilestored [{} + {}], tmm1", in(reg) to, in(reg) row, options(nostack, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::amx_unit::{Config, is_available};
    use crate::threads::Pool;

    #[test]
    fn others_may_use_the_unit_between_runs() {
        if !is_available() {
            return;
        }
        for _ in 0..2 {
            Pool::new(1).run(1, &|_| configure(5, 0, WORDS, 3));
            let mut found = Config { palette: 0, start_row: 0, zero: [0; 14], bytes: [0; 16], rows: [0; 16] };
            // SAFETY: AMX is available; the first instruction writes these 64 bytes, and the second is how a library
            // ends its use of the unit.
            unsafe {
                asm!("sttilecfg [{}]", in(reg) &mut found, options(nostack));
                asm!("tilerelease", options(nostack, nomem));
            }
            assert_eq!((found.palette, found.rows[0], found.bytes[3]), (1, 5, 12));
        }
    }
}
