//! [`Sixteen`]: sixteen elements that a transposition moves together: a vector of numbers, or bytes.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8};

use crate::simd::vector::{LANES, Vector};

/// Sixteen elements of type `T`.
pub(crate) trait Sixteen<T>: Copy {
    /// Sixteen elements that are written over.
    fn blank() -> Self;

    fn of(items: &[T; LANES]) -> Self;

    /// Up to sixteen elements; the other ones have any value.
    fn of_some(items: &[T]) -> Self;

    fn put(self, cells: &mut [T; LANES]);

    /// Writes the first elements, at most sixteen.
    fn put_some(self, cells: &mut [T]);

    /// Element `i` of number `j` becomes element `j` of number `i`.
    fn turned(rows: [Self; LANES]) -> [Self; LANES];
}

impl<V: Vector> Sixteen<f32> for V {
    #[inline(always)]
    fn blank() -> V {
        V::zero()
    }

    #[inline(always)]
    fn of(items: &[f32; LANES]) -> V {
        V::read(items)
    }

    #[inline(always)]
    fn of_some(items: &[f32]) -> V {
        V::read_part(items, 0.0)
    }

    #[inline(always)]
    fn put(self, cells: &mut [f32; LANES]) {
        V::write(self, cells);
    }

    #[inline(always)]
    fn put_some(self, cells: &mut [f32]) {
        V::write_part(self, cells);
    }

    #[inline(always)]
    fn turned(rows: [V; LANES]) -> [V; LANES] {
        V::transpose(rows)
    }
}

impl Sixteen<u8> for [u8; LANES] {
    #[inline(always)]
    fn blank() -> Self {
        [0; LANES]
    }

    #[inline(always)]
    fn of(items: &[u8; LANES]) -> Self {
        *items
    }

    #[inline(always)]
    fn of_some(items: &[u8]) -> Self {
        let mut sixteen = [0; LANES];
        sixteen.iter_mut().zip(items).for_each(|(to, item)| *to = *item);
        sixteen
    }

    #[inline(always)]
    fn put(self, cells: &mut [u8; LANES]) {
        *cells = self;
    }

    #[inline(always)]
    fn put_some(self, cells: &mut [u8]) {
        match cells.first_chunk_mut::<LANES>() {
            Some(cells) => *cells = self,
            None => cells.iter_mut().zip(self).for_each(|(cell, item)| *cell = item),
        }
    }

    #[inline(always)]
    fn turned(mut rows: [Self; LANES]) -> [Self; LANES] {
        // Interleaving the halves rotates the bits of row and element by one: four times exchange them.
        for _ in 0..LANES.ilog2() {
            let from = rows;
            for ix in 0..LANES / 2 {
                [rows[2 * ix], rows[2 * ix + 1]] = interleaved(from[ix], from[ix + LANES / 2]);
            }
        }
        rows
    }
}

/// Elements of both in turns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn interleaved(a: [u8; LANES], b: [u8; LANES]) -> [[u8; LANES]; 2] {
    let mut both = [[0; LANES]; 2];
    // SAFETY: SSE2 is part of the architecture; each array has the sixteen bytes of a register.
    unsafe {
        let (a, b) = (_mm_loadu_si128(a.as_ptr().cast()), _mm_loadu_si128(b.as_ptr().cast()));
        _mm_storeu_si128(both[0].as_mut_ptr().cast(), _mm_unpacklo_epi8(a, b));
        _mm_storeu_si128(both[1].as_mut_ptr().cast(), _mm_unpackhi_epi8(a, b));
    }
    both
}

/// Elements of both in turns.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn interleaved(a: [u8; LANES], b: [u8; LANES]) -> [[u8; LANES]; 2] {
    let mut both = [0; 2 * LANES];
    for (ix, pair) in both.chunks_exact_mut(2).enumerate() {
        pair.copy_from_slice(&[a[ix], b[ix]]);
    }
    let (low, high) = both.split_at(LANES);
    [low, high].map(|half| *half.first_chunk().expect("a half has sixteen elements"))
}
