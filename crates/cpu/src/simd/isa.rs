//! [`Isa`]: which vector instructions the processor has; [`Level`]: which ones a plan may use.

use std::fmt;

/// A family of vector instructions. All read the same packed weights; results of two families are close but not equal.
/// Those of one architecture stand in order, the plainest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every processor of the architecture has.
    Portable,
    /// NEON, which every aarch64 has.
    Neon,
    /// AVX2 with FMA, and F16C, which every processor that has them has.
    Avx2,
    /// AVX-512 F.
    Avx512,
}

impl Isa {
    /// The best family of this processor.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if avx2 && is_x86_feature_detected!("avx512f") {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        if cfg!(target_arch = "aarch64") { Isa::Neon } else { Isa::Portable }
    }

    /// All families that this processor has, the plainest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let families: &[Isa] = match cfg!(target_arch = "aarch64") {
            true => &[Isa::Portable, Isa::Neon],
            false => &[Isa::Portable, Isa::Avx2, Isa::Avx512],
        };
        families.iter().copied().filter(|isa| *isa <= Isa::detect())
    }

    /// The best family of this processor that is not beyond this one.
    pub(crate) fn clamp_to_host(self) -> Isa {
        Isa::available().filter(|isa| *isa <= self).last().unwrap_or(Isa::Portable)
    }
}

/// The processors that a plan is made for: an architecture, and the best family of instructions that kernels use on it.
/// Where a processor has less they use what it has. Packed weights are the same bytes for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The name that plans carry.
    pub name: &'static str,
    /// The architecture, as in [`std::env::consts::ARCH`].
    pub arch: &'static str,
    /// The best family that is used.
    pub isa: Isa,
}

impl Level {
    /// All levels; the first of an architecture stands for all of its processors. Those of x86-64 are named as in its
    /// psABI.
    pub const ALL: [Level; 4] = [
        Level { name: "cpu:x86-64", arch: "x86_64", isa: Isa::Avx512 },
        Level { name: "cpu:x86-64-v3", arch: "x86_64", isa: Isa::Avx2 },
        Level { name: "cpu:x86-64-v4", arch: "x86_64", isa: Isa::Avx512 },
        Level { name: "cpu:aarch64", arch: "aarch64", isa: Isa::Neon },
    ];

    /// The level with a name.
    pub fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name == name)
    }

    /// All processors of this machine's architecture; none where there are no kernels for it.
    pub fn here() -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.arch == std::env::consts::ARCH)
    }

    /// This machine's processor: the last level of its architecture whose family it has.
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
    fn levels_have_names() {
        for level in Level::ALL {
            assert_eq!(Level::named(level.name), Some(level));
        }
        assert_eq!(Level::named("cpu:sparc"), None);
        let (here, native) = (Level::here().unwrap(), Level::native().unwrap());
        assert_eq!((here.arch, native.arch), (std::env::consts::ARCH, std::env::consts::ARCH));
        assert!(native.isa <= Isa::detect() || native == here);
    }

    #[test]
    fn a_processor_uses_what_it_has_and_is_asked_for() {
        let families: Vec<Isa> = Isa::available().collect();
        assert_eq!((families[0], families.last()), (Isa::Portable, Some(&Isa::detect())));
        assert!(families.iter().all(|isa| isa.clamp_to_host() == *isa), "those that it has");
        for isa in [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512] {
            assert!(families.contains(&isa.clamp_to_host()) && isa.clamp_to_host() <= isa, "{isa}");
        }
        // The other architecture's families are none of its own, wherever they stand.
        let here = Level::here().unwrap();
        for level in Level::ALL.into_iter().filter(|level| level.arch != here.arch) {
            assert_ne!(level.isa.clamp_to_host(), level.isa);
        }
        assert_eq!(Isa::detect().clamp_to_host(), Isa::detect());
    }
}
