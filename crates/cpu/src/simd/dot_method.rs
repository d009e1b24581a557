//! [`DotMethod`]: the instructions that multiply words of two `bf16` or four bytes.

use super::{Isa, StorageType};

/// How the pairs of `bf16` or the bytes of words are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DotMethod {
    /// Each is widened first.
    Widened,
    /// In one instruction of the vector unit: AVX512-BF16 or AVX512-VNNI, and of bytes NEON's dot products. A `bf16` that is
    /// less than the least normal number counts as 0.
    Dot,
    /// By the matrix unit, where rows lie at one distance; otherwise as `Dot`.
    Matrix,
}

impl DotMethod {
    /// The fastest way of a family on this processor.
    pub(crate) fn of(isa: Isa, factors: StorageType) -> DotMethod {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx512 {
            let (dot, matrix) = match factors {
                StorageType::Bf16 => (is_x86_feature_detected!("avx512bf16"), crate::simd::amx_unit::is_available()),
                StorageType::U8 => (is_x86_feature_detected!("avx512vnni"), crate::simd::amx_unit::multiplies_int8()),
                _ => (false, false),
            };
            return if dot && matrix {
                DotMethod::Matrix
            } else if dot {
                DotMethod::Dot
            } else {
                DotMethod::Widened
            };
        }
        #[cfg(target_arch = "aarch64")]
        if isa == Isa::Neon && factors == StorageType::U8 && std::arch::is_aarch64_feature_detected!("dotprod") {
            return DotMethod::Dot;
        }
        let _ = (isa, factors);
        DotMethod::Widened
    }

    /// All ways of a family on this processor.
    #[cfg(test)]
    pub(crate) fn available(isa: Isa, factors: StorageType) -> Vec<DotMethod> {
        match DotMethod::of(isa, factors) {
            DotMethod::Widened => vec![DotMethod::Widened],
            DotMethod::Dot => vec![DotMethod::Widened, DotMethod::Dot],
            DotMethod::Matrix => vec![DotMethod::Widened, DotMethod::Dot, DotMethod::Matrix],
        }
    }
}

/// Whether the processor multiplies pairs of `bf16`; then it rounds to them in one instruction too.
#[cfg(target_arch = "x86_64")]
pub(crate) fn rounds_at_once(isa: Isa) -> bool {
    DotMethod::of(isa, StorageType::Bf16) != DotMethod::Widened
}
