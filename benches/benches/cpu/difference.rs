//! [`Difference`]: the distance of outputs from expected ones.

use types::Tensor;

/// Outputs agree if they differ by at most `ABSOLUTE + RELATIVE * |expected|`: sums of f32 in another order.
const ABSOLUTE: f64 = 1e-4;
const RELATIVE: f64 = 1e-3;

/// The distance of outputs from expected ones.
pub(crate) struct Difference {
    pub(crate) agrees: bool,
    /// The largest difference, absolute and relative to the largest expected magnitude.
    absolute: f64,
    relative: f64,
}

impl Difference {
    pub(crate) fn of(outputs: &[Tensor], expected: &[Tensor]) -> Difference {
        let mut difference = Difference { agrees: outputs.len() == expected.len(), absolute: 0.0, relative: 0.0 };
        for (output, expected) in outputs.iter().zip(expected) {
            difference.agrees &= output.shape() == expected.shape();
            let (items, expected) = (output.to_f64(), expected.to_f64());
            let largest = expected.iter().fold(f64::MIN_POSITIVE, |largest, item| largest.max(item.abs()));
            for (item, expected) in items.iter().zip(&expected) {
                let apart = (item - expected).abs();
                difference.agrees &= apart <= ABSOLUTE + RELATIVE * expected.abs();
                difference.absolute = difference.absolute.max(apart);
                difference.relative = difference.relative.max(apart / largest);
            }
        }
        difference
    }

    pub(crate) fn text(&self) -> String {
        let verdict = if self.agrees { "agrees" } else { "DIFFERS" };
        format!("{verdict}: {:.1e}, {:.1e} of the largest", self.absolute, self.relative)
    }
}
