//! [`Bytes`]: a count of bytes as a type of its own.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A count of bytes: a size, an offset or a capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Zero.
    pub const ZERO: Bytes = Bytes(0);

    /// The least multiple of `alignment` that is >= `self`.
    ///
    /// `alignment` must be >= 1; it need not be a power of two. Saturates at `u64::MAX`.
    #[must_use]
    pub fn align_up(self, alignment: Bytes) -> Bytes {
        let step = alignment.0.max(1);
        Bytes(self.0.div_ceil(step).saturating_mul(step))
    }

    /// `self` as a `usize`, or `None` if it does not fit.
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

/// Binary units with two decimals: `1.50 MiB`.
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

/// A text that is not a count of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a number of bytes; write it as 1000000, 512KiB, 3.5MiB, 4GiB or 4GB")]
pub struct ParseBytesError(String);

/// A number with or without a unit: `B`, binary `KiB MiB GiB TiB`, decimal `kB MB GB TB`, in any case. A fraction of a
/// unit is rounded down to whole bytes.
impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let wrong = || ParseBytesError(text.to_string());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(unit).map(Bytes).ok_or_else(wrong);
        }
        let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit as f64;
        // 2^53: above it `f64` does not represent every integer.
        if unit == 1 || !(0.0..9_007_199_254_740_992.0).contains(&bytes) {
            Err(wrong())
        } else {
            Ok(Bytes(bytes as u64))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn align_up_rounds_to_the_next_multiple() {
        assert_eq!(Bytes(0).align_up(Bytes(64)), Bytes(0));
        assert_eq!(Bytes(1).align_up(Bytes(64)), Bytes(64));
        assert_eq!(Bytes(64).align_up(Bytes(64)), Bytes(64));
        assert_eq!(Bytes(65).align_up(Bytes(0)), Bytes(65));
    }

    #[test]
    fn text_with_units_is_parsed() {
        let good = [("0", 0), ("1000", 1000), ("4GiB", 4 << 30), ("3.5 MiB", 3_670_016), ("2gb", 2_000_000_000)];
        for (text, bytes) in good {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "MiB", "1.5", "-1", "1e9", "4 GiBs", "99999999TiB", "1.2.3KiB", "nan"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_print_binary_units() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
        assert_eq!(format!("{:>10}", Bytes(1 << 20)), "  1.00 MiB");
    }
}
