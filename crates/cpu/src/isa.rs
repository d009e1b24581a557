//! [`Isa`]: the vector instructions that kernels use, found once per pool.
//!
//! `vectorised!` compiles one plain loop three times, so that the compiler's vectoriser sees each instruction set.

/// A family of vector instructions.
///
/// Results of two families are close but not equal: the portable one has no fused multiply-add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the compiler's baseline has.
    Portable,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Isa {
    /// The best family that this machine has.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }
}

/// Declares a function with a first argument `isa: Isa` whose body is compiled for each family.
///
/// Inside the body the constant `FMA` says whether fused multiply-add is an instruction. Only a [`Pool`](crate::Pool)
/// hands out an `Isa`, and only one that the machine has.
macro_rules! vectorised {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "a loop's operands")]
        pub(crate) fn $name(isa: $crate::isa::Isa, $($arg: $type),*) $(-> $result)? {
            #[inline(always)]
            #[allow(unused_variables, clippy::too_many_arguments, clippy::extra_unused_type_parameters, reason = "not every loop multiplies")]
            fn body<const FMA: bool>($($arg: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "a loop's operands")]
            fn avx2($($arg: $type),*) $(-> $result)? {
                body::<true>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "a loop's operands")]
            fn avx512($($arg: $type),*) $(-> $result)? {
                body::<true>($($arg),*)
            }
            match isa {
                // SAFETY: a pool hands out `Avx2` only where `Isa::detect` found these features.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: a pool hands out `Avx512` only where `Isa::detect` found these features.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
                _ => body::<false>($($arg),*),
            }
        }
    };
}
pub(crate) use vectorised;
