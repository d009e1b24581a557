//! [`DotMethod`]: instructions that multiply 32-bit words of two `bf16` or four int8 values.

use super::{Isa, StorageType};

/// How the elements of a word are multiplied and added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DotMethod {
    /// Each element is widened to `f32` or 16 bits first.
    Widened,
    /// By a dot-product instruction: AVX512-BF16, AVX512-VNNI, or NEON's int8 dot product. Subnormal `bf16` count as 0.
    Dot,
    /// By AMX if rows have a constant stride; otherwise as `Dot`.
    Matrix,
}

impl DotMethod {
    /// The fastest method of `isa` on this processor.
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

    /// All methods of `isa` on this processor.
    #[cfg(test)]
    pub(crate) fn available(isa: Isa, factors: StorageType) -> Vec<DotMethod> {
        match DotMethod::of(isa, factors) {
            DotMethod::Widened => vec![DotMethod::Widened],
            DotMethod::Dot => vec![DotMethod::Widened, DotMethod::Dot],
            DotMethod::Matrix => vec![DotMethod::Widened, DotMethod::Dot, DotMethod::Matrix],
        }
    }
}

/// Whether the processor has AVX512-BF16, which also rounds to `bf16` in one instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) fn rounds_at_once(isa: Isa) -> bool {
    DotMethod::of(isa, StorageType::Bf16) != DotMethod::Widened
}
