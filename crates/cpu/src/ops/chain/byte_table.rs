//! [`map`]: a function of bytes, such as the activation of a quantized network, as a table of its 256 results.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi8,
    _mm512_storeu_si512,
};

use crate::simd::Isa;

/// The number of bytes from which on a table pays: each of its results is computed first.
pub(super) const BYTES_MIN: usize = 1 << 12;

/// A result for each byte.
pub(super) type Table = [u8; 256];

/// Replaces each byte by its result: those of `from`, or without it those of `to`.
///
/// # Panics
/// Fewer bytes in `from` than in `to`.
pub(super) fn map(isa: Isa, table: &Table, from: Option<&[u8]>, to: &mut [u8]) {
    if let Some(from) = from {
        to.copy_from_slice(&from[..to.len()]);
    }
    let rest = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512bw") => {
            let (vectors, rest) = to.as_chunks_mut::<64>();
            // SAFETY: the processor has these instructions.
            unsafe { map_vectors(table, vectors) };
            rest
        }
        _ => {
            let _ = isa;
            to
        }
    };
    rest.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn map_vectors(table: &Table, vectors: &mut [[u8; 64]]) {
    let (quarters, _) = table.as_chunks::<64>();
    // SAFETY: each quarter of the table, and each vector, has 64 bytes.
    let load = |bytes: &[u8; 64]| -> __m512i { unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) } };
    let quarters: [__m512i; 4] = std::array::from_fn(|ix| load(&quarters[ix]));
    for vector in vectors {
        let bytes = load(vector);
        // Bits 0 to 6 select from two quarters, bit 7 selects the half.
        let low = _mm512_permutex2var_epi8(quarters[0], bytes, quarters[1]);
        let high = _mm512_permutex2var_epi8(quarters[2], bytes, quarters[3]);
        let results = _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high);
        // SAFETY: the vector has 64 bytes.
        unsafe { _mm512_storeu_si512(vector.as_mut_ptr().cast(), results) };
    }
}
