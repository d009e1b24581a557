//! [`Isa`]: the vector instructions of a processor; [`Level`]: those that a plan may use.

use std::fmt;

/// An instruction set. All of them read the same packed weights; their results agree up to rounding. Those of one
/// architecture are ordered from the least to the most capable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The baseline of the architecture.
    Portable,
    /// NEON, which is mandatory on aarch64.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F.
    Avx512,
}

impl Isa {
    /// Whether the kernels are compiled for AVX-512. `--cfg without_avx512` leaves them out of tests on a processor without it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const HAS_AVX512: bool = cfg!(not(without_avx512));

    /// The most capable ISA of this processor.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if Isa::HAS_AVX512 && avx2 && is_x86_feature_detected!("avx512f") {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        if cfg!(target_arch = "aarch64") { Isa::Neon } else { Isa::Portable }
    }

    /// All ISAs of this processor, the least capable first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let known: &[Isa] = match cfg!(target_arch = "aarch64") {
            true => &[Isa::Portable, Isa::Neon],
            false => &[Isa::Portable, Isa::Avx2, Isa::Avx512],
        };
        known.iter().copied().filter(|isa| *isa <= Isa::detect())
    }

    /// The most capable ISA of this processor that does not exceed `self`.
    pub(crate) fn clamp_to_host(self) -> Isa {
        Isa::available().filter(|isa| *isa <= self).last().unwrap_or(Isa::Portable)
    }
}

/// The processors that a plan targets: an architecture and the most capable ISA that its kernels use. A processor with
/// less uses the best ISA it has. Packed weights are the same bytes for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The name in plans.
    pub name: &'static str,
    /// The architecture, as in [`std::env::consts::ARCH`].
    pub arch: &'static str,
    /// The most capable ISA that kernels use.
    pub isa: Isa,
}

impl Level {
    /// All levels; the first of an architecture covers all of its processors. The names of x86-64 levels are those of
    /// its psABI.
    pub const ALL: [Level; 4] = [
        Level { name: "cpu:x86-64", arch: "x86_64", isa: Isa::Avx512 },
        Level { name: "cpu:x86-64-v3", arch: "x86_64", isa: Isa::Avx2 },
        Level { name: "cpu:x86-64-v4", arch: "x86_64", isa: Isa::Avx512 },
        Level { name: "cpu:aarch64", arch: "aarch64", isa: Isa::Neon },
    ];

    /// The level called `name`.
    pub fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name == name)
    }

    /// The level that covers all processors of this architecture; `None` if it has no kernels.
    pub fn here() -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.arch == std::env::consts::ARCH)
    }

    /// The last level of this architecture whose ISA this processor has.
    pub fn native() -> Option<Level> {
        let fits = |level: &Level| level.arch == std::env::consts::ARCH && level.isa <= Isa::detect();
        Level::ALL.into_iter().rfind(fits).or_else(Level::here)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_found_by_its_name() {
        for level in Level::ALL {
            assert_eq!(Level::named(level.name), Some(level));
        }
        assert_eq!(Level::named("cpu:sparc"), None);
        let (here, native) = (Level::here().unwrap(), Level::native().unwrap());
        assert_eq!((here.arch, native.arch), (std::env::consts::ARCH, std::env::consts::ARCH));
        assert!(native.isa <= Isa::detect() || native == here);
    }

    #[test]
    fn isa_is_clamped_to_processor_and_request() {
        let available: Vec<Isa> = Isa::available().collect();
        assert_eq!((available[0], available.last()), (Isa::Portable, Some(&Isa::detect())));
        assert!(available.iter().all(|isa| isa.clamp_to_host() == *isa), "an available ISA is kept");
        for isa in [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512] {
            assert!(available.contains(&isa.clamp_to_host()) && isa.clamp_to_host() <= isa, "{isa}");
        }
        // An ISA of another architecture is never selected, whatever its position in the order.
        let here = Level::here().unwrap();
        for level in Level::ALL.into_iter().filter(|level| level.arch != here.arch) {
            assert_ne!(level.isa.clamp_to_host(), level.isa);
        }
        assert_eq!(Isa::detect().clamp_to_host(), Isa::detect());
    }
}
