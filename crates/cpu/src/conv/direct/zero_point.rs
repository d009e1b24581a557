//! The contribution of the input's zero point to the sums of a region.

use std::ops::Range;

use super::partition::Panel;
use super::{ConvBlocked, PANEL};
use crate::gemm::tile::Word;
use crate::kernel::product;
use crate::simd::vector::LANES;

impl ConvBlocked {
    /// The contribution to the sum over all taps above and left of each corner of the kernel, for each lane. Four
    /// corners give the contribution to any rectangle of taps (a summed-area table; Crow 1984).
    pub(super) fn shifts(&self, weights: &[f32]) -> Vec<i32> {
        if self.zero_point == 0 {
            return Vec::new();
        }
        let (ins, taps) = (self.in_channels / self.groups, self.window.taps());
        let ([rows, columns], lanes) = (self.window.kernel, self.lanes());
        let mut corners = vec![0; (rows + 1) * (columns + 1) * lanes];
        for (channel, weights) in weights.chunks_exact((ins * taps).max(1)).enumerate() {
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let cell = weights.iter().skip(row * columns + column).step_by(taps);
                // Weights of int8 do not overflow; others, which no model has, wrap as those of products do.
                let sum = cell.fold(0i32, |sum, &weight| sum.wrapping_add(weight as i32));
                let own = sum.wrapping_mul(-i32::from(self.zero_point));
                let corner = |row: usize, column: usize| (row * (columns + 1) + column) * lanes + channel;
                corners[corner(row + 1, column + 1)] = own
                    .wrapping_add(corners[corner(row, column + 1)])
                    .wrapping_add(corners[corner(row + 1, column)])
                    .wrapping_sub(corners[corner(row, column)]);
            }
        }
        corners
    }

    /// Words of [`ConvBlocked::shifts`].
    pub(super) fn shift_words(&self) -> Option<usize> {
        let [rows, columns] = self.window.kernel;
        match self.zero_point {
            0 => Some(0),
            _ => product(&[rows.checked_add(1)?, columns.checked_add(1)?, self.lanes()]),
        }
    }

    /// The contribution to the sums of a panel over a rectangle of taps.
    pub(super) fn shift(
        &self,
        corners: &[Word],
        panel: Panel,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> [i32; PANEL] {
        let mut shift = [0; PANEL];
        if corners.is_empty() {
            return shift;
        }
        let (width, lanes) = (self.window.kernel[1] + 1, self.lanes());
        for (row, column, sign) in [
            (rows.end, columns.end, 1),
            (rows.start, columns.end, -1),
            (rows.end, columns.start, -1),
            (rows.start, columns.start, 1),
        ] {
            let corner = &corners[(row * width + column) * lanes + panel.block * LANES..][..panel.blocks * LANES];
            shift.iter_mut().zip(corners_of(corner)).for_each(|(shift, corner): (&mut i32, i32)| {
                *shift = shift.wrapping_add(corner.wrapping_mul(sign));
            });
        }
        shift
    }
}

/// Words as integers.
fn corners_of(words: &[Word]) -> impl Iterator<Item = i32> {
    words.iter().map(|&bytes| i32::from_ne_bytes(bytes))
}
