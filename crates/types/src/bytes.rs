//! [`Bytes`]: a count of bytes, never a bare integer.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

use serde::{Deserialize, Serialize};

/// A count of bytes: a size, an offset or a capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes at all.
    pub const ZERO: Bytes = Bytes(0);

    /// The least multiple of `alignment` that holds `self`.
    ///
    /// `alignment` is at least one byte; it need not be a power of two. Saturates at `u64::MAX`.
    #[must_use]
    pub fn align_up(self, alignment: Bytes) -> Bytes {
        let step = alignment.0.max(1);
        Bytes(self.0.div_ceil(step).saturating_mul(step))
    }

    /// `self` as an index into memory of this machine, or `None` where it does not fit.
    pub fn index(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, count: u64) -> Bytes {
        Bytes(self.0 * count)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        Bytes(sizes.map(|size| size.0).sum())
    }
}

/// Binary units with two decimals, for people: `1.50 MiB`. Machines read the number.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..=1023 => return f.pad(&format!("{} B", self.0)),
            1024..=1_048_575 => (1024.0, "KiB"),
            1_048_576..=1_073_741_823 => (1_048_576.0, "MiB"),
            _ => (1_073_741_824.0, "GiB"),
        };
        f.pad(&format!("{:.2} {name}", self.0 as f64 / unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_up_to_the_next_multiple() {
        assert_eq!(Bytes(0).align_up(Bytes(64)), Bytes(0));
        assert_eq!(Bytes(1).align_up(Bytes(64)), Bytes(64));
        assert_eq!(Bytes(64).align_up(Bytes(64)), Bytes(64));
        assert_eq!(Bytes(65).align_up(Bytes(0)), Bytes(65));
    }

    #[test]
    fn prints_binary_units() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
        assert_eq!(format!("{:>10}", Bytes(1 << 20)), "  1.00 MiB");
    }
}
