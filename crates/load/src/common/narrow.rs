//! [`Narrow`]: element types of files that no [`DType`] has.

use types::DType;

/// Integers of 2 and 4 bits, and floats of 4 to 8 bits.
///
/// Each is read as the smallest dtype that represents all of its numbers exactly: integers as `i8` or `u8`, floats as `f32`.
/// Operands of a narrow type are marked ([`ImportedNode::narrow`](super::ImportedNode::narrow)), since rounding to the type
/// depends on its range. Sources: `onnx.proto`, `TensorProto.DataType`; OCP 8-bit Floating Point and Microscaling Formats
/// Specifications; Noune et al. 2022 for the types without negative zero (`Fnuz`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Narrow {
    I2,
    I4,
    U2,
    U4,
    F4E2M1,
    F6E2M3,
    F6E3M2,
    F8E4M3Fn,
    F8E4M3Fnuz,
    F8E5M2,
    F8E5M2Fnuz,
    /// A power of two.
    F8E8M0,
}

impl Narrow {
    /// Bits of a number. Files have the numbers in this many bits each, the first in the lowest ones.
    pub(crate) fn bits(self) -> usize {
        match self {
            Narrow::I2 | Narrow::U2 => 2,
            Narrow::I4 | Narrow::U4 | Narrow::F4E2M1 => 4,
            Narrow::F6E2M3 | Narrow::F6E3M2 => 6,
            Narrow::F8E4M3Fn | Narrow::F8E4M3Fnuz | Narrow::F8E5M2 | Narrow::F8E5M2Fnuz | Narrow::F8E8M0 => 8,
        }
    }

    /// The dtype that it is read as.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Narrow::I2 | Narrow::I4 => DType::I8,
            Narrow::U2 | Narrow::U4 => DType::U8,
            _ => DType::F32,
        }
    }

    /// The name in ONNX.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Narrow::I2 => "int2",
            Narrow::I4 => "int4",
            Narrow::U2 => "uint2",
            Narrow::U4 => "uint4",
            Narrow::F4E2M1 => "float4e2m1",
            Narrow::F6E2M3 => "float6e2m3",
            Narrow::F6E3M2 => "float6e3m2",
            Narrow::F8E4M3Fn => "float8e4m3fn",
            Narrow::F8E4M3Fnuz => "float8e4m3fnuz",
            Narrow::F8E5M2 => "float8e5m2",
            Narrow::F8E5M2Fnuz => "float8e5m2fnuz",
            Narrow::F8E8M0 => "float8e8m0",
        }
    }

    /// The least and the greatest integer; `None` for floats.
    pub(crate) fn range(self) -> Option<[i8; 2]> {
        match self {
            Narrow::I2 => Some([-2, 1]),
            Narrow::I4 => Some([-8, 7]),
            Narrow::U2 => Some([0, 3]),
            Narrow::U4 => Some([0, 15]),
            _ => None,
        }
    }

    /// The number with these low bits.
    pub(crate) fn decode(self, code: u8) -> f32 {
        let code = code & (0xff >> (8 - self.bits()));
        if let Some([least, _]) = self.range() {
            let is_negative = least < 0 && code >> (self.bits() - 1) == 1;
            return f32::from(code) - if is_negative { (1 << self.bits()) as f32 } else { 0.0 };
        }
        match self {
            Narrow::F4E2M1 => minifloat(code, [2, 1], 1),
            Narrow::F6E2M3 => minifloat(code, [2, 3], 1),
            Narrow::F6E3M2 => minifloat(code, [3, 2], 3),
            Narrow::F8E4M3Fn if code & 0x7f == 0x7f => f32::NAN,
            Narrow::F8E4M3Fn => minifloat(code, [4, 3], 7),
            Narrow::F8E4M3Fnuz | Narrow::F8E5M2Fnuz if code == 0x80 => f32::NAN,
            Narrow::F8E4M3Fnuz => minifloat(code, [4, 3], 8),
            Narrow::F8E5M2 => match code & 0x7f {
                0x7c if code < 0x80 => f32::INFINITY,
                0x7c => f32::NEG_INFINITY,
                0x7d.. => f32::NAN,
                _ => minifloat(code, [5, 2], 15),
            },
            Narrow::F8E5M2Fnuz => minifloat(code, [5, 2], 16),
            _ if code == 0xff => f32::NAN,
            _ => 2.0f32.powi(i32::from(code) - 127),
        }
    }
}

/// A sign, an exponent with a bias, and a significand, as IEEE 754 has them, without infinities and NaN.
fn minifloat(code: u8, [exponent_bits, significand_bits]: [u32; 2], bias: i32) -> f32 {
    let code = u32::from(code);
    let significand = code & ((1 << significand_bits) - 1);
    let exponent = (code >> significand_bits) & ((1 << exponent_bits) - 1);
    let unit = 2.0f32.powi(exponent.max(1) as i32 - bias - significand_bits as i32);
    let hidden = if exponent == 0 { 0 } else { 1 << significand_bits };
    let magnitude = (significand + hidden) as f32 * unit;
    if code >> (exponent_bits + significand_bits) & 1 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_their_range() {
        for (narrow, numbers) in [
            (Narrow::I2, vec![0, 1, -2, -1]),
            (Narrow::U2, vec![0, 1, 2, 3]),
            (Narrow::I4, vec![0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]),
        ] {
            for (code, &number) in numbers.iter().enumerate() {
                // Bits above those of the number belong to its neighbors.
                assert_eq!(narrow.decode(code as u8), number as f32);
                assert_eq!(narrow.decode(code as u8 | (0xff << narrow.bits() as u32) as u8), number as f32);
            }
            let range = narrow.range().expect("it is an integer");
            assert_eq!(numbers.iter().min(), Some(&i32::from(range[0])));
            assert_eq!(numbers.iter().max(), Some(&i32::from(range[1])));
        }
    }

    /// The largest, least positive and other landmarks of the specifications.
    #[test]
    fn floats_have_the_values_of_their_specifications() {
        for (narrow, code, number) in [
            (Narrow::F4E2M1, 0x7, 6.0),
            (Narrow::F4E2M1, 0x9, -0.5),
            (Narrow::F6E2M3, 0x1f, 7.5),
            (Narrow::F6E2M3, 0x01, 0.125),
            (Narrow::F6E3M2, 0x1f, 28.0),
            (Narrow::F6E3M2, 0x21, -0.0625),
            (Narrow::F8E4M3Fn, 0x7e, 448.0),
            (Narrow::F8E4M3Fn, 0x01, 0.001953125),
            (Narrow::F8E4M3Fn, 0xb8, -1.0),
            (Narrow::F8E4M3Fnuz, 0x7f, 240.0),
            (Narrow::F8E4M3Fnuz, 0x01, 0.0009765625),
            (Narrow::F8E5M2, 0x7b, 57344.0),
            (Narrow::F8E5M2, 0x01, 2.0f32.powi(-16)),
            (Narrow::F8E5M2, 0xfc, f32::NEG_INFINITY),
            (Narrow::F8E5M2Fnuz, 0x7f, 57344.0),
            (Narrow::F8E5M2Fnuz, 0x01, 2.0f32.powi(-17)),
            (Narrow::F8E8M0, 0x00, 2.0f32.powi(-127)),
            (Narrow::F8E8M0, 0x80, 2.0),
        ] {
            assert_eq!(narrow.decode(code), number, "{} {code:#x}", narrow.name());
        }
        for (narrow, code) in [
            (Narrow::F8E4M3Fn, 0xff),
            (Narrow::F8E4M3Fnuz, 0x80),
            (Narrow::F8E5M2, 0x7d),
            (Narrow::F8E5M2Fnuz, 0x80),
            (Narrow::F8E8M0, 0xff),
        ] {
            assert!(narrow.decode(code).is_nan(), "{} {code:#x}", narrow.name());
        }
        assert!(Narrow::F8E4M3Fn.decode(0x80).is_sign_negative());
    }
}
