//! [`Marks`]: where packed int8 weights are too large for `vpmaddubsw`.
//!
//! That instruction multiplies four bytes of a row by four weights and adds neighboring products in 16 bits, with
//! saturation. Of bytes up to 255, two products leave that range if the weights have one sign and magnitudes that add up
//! to more than 128. Few weights of trained networks do. Packed weights are followed by a bit for each eight words, the lanes of
//! a register, that is set if one of them has such a pair; `bytes_avx2.rs` computes their products again.

use crate::gemm::operands::Word;

/// Weights of a bit.
pub(crate) const MARKED: usize = 8;
/// The largest sum of two magnitudes whose products with bytes fit 16 bits.
const LARGEST: i32 = 128;
/// Words behind the bits, so that those of any position can be loaded at once.
const SPARE: usize = 2;

/// Packed weights and their marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks<'a> {
    weights: &'a [Word],
    bits: &'a [u8],
}

impl<'a> Marks<'a> {
    /// The marks that follow packed weights.
    ///
    /// # Panics
    /// If their number is not [`mark_words`].
    pub(crate) fn new(weights: &'a [Word], marks: &'a [Word]) -> Marks<'a> {
        assert_eq!(Some(marks.len()), mark_words(weights.len()), "there must be a mark for each eight weights");
        Marks { weights, bits: marks.as_flattened() }
    }

    /// The marks of eight words from `place` words behind `start` on, which are among the weights, and of those behind
    /// them: at least 57.
    pub(crate) fn from(&self, start: *const Word, place: usize) -> u64 {
        let first = (start.addr() - self.weights.as_ptr().addr()) / size_of::<Word>() + place;
        let bit = first / MARKED;
        let bits = self.bits[bit / 8..].first_chunk().expect("there are words behind the last mark");
        u64::from_le_bytes(*bits) >> (bit % 8)
    }
}

/// Words that the marks of `words` words of weights take; `None` on overflow.
pub(crate) fn mark_words(words: usize) -> Option<usize> {
    words.div_ceil(MARKED * 32).checked_add(SPARE)
}

/// The marks of packed weights, four bytes to a word.
pub(crate) fn marks(weights: &[u8]) -> Vec<u8> {
    let words = weights.len() / size_of::<Word>();
    let mut bits = vec![0; 4 * mark_words(words).expect("it is less than the weights")];
    for (ix, weights) in weights.chunks(size_of::<Word>() * MARKED).enumerate() {
        let is_large = weights.as_chunks::<2>().0.iter().any(|pair| {
            let [first, second] = pair.map(|byte| i32::from(byte.cast_signed()));
            first.signum() == second.signum() && LARGEST < (first + second).abs()
        });
        bits[ix / 8] |= u8::from(is_large) << (ix % 8);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_saturate_are_marked() {
        for first in i8::MIN..=i8::MAX {
            for second in i8::MIN..=i8::MAX {
                let fits = [(0, 0), (0, 255), (255, 0), (255, 255)]
                    .iter()
                    .all(|&(x, y)| i16::try_from(x * i32::from(first) + y * i32::from(second)).is_ok());
                let mut weights = [0u8; 4 * MARKED * 9];
                weights[4 * MARKED * 8 + 6] = first.cast_unsigned();
                weights[4 * MARKED * 8 + 7] = second.cast_unsigned();
                let bits = marks(&weights);
                assert_eq!(bits.len(), 4 * mark_words(MARKED * 9).unwrap());
                assert_eq!(bits[1] == 1, !fits, "{first} {second}");
            }
        }
    }
}
