//! [`Panels`]: the left factor of a product as the microkernel reads it, packed ahead of time or at the beginning of a run.

use serde::{Deserialize, Serialize};

use crate::gemm::planar::ROWS;
use crate::kernel::product;
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// How a kernel's weights come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weights {
    /// Packed by the kernel's `pack`, when the plan was written.
    Packed,
    /// As the model has them; each run packs them into the scratch.
    Dynamic,
}

impl Weights {
    /// The elements of the operand, and of the scratch with what is packed into it, from the elements `[plain, packed]` and
    /// what else the scratch holds.
    pub(crate) fn elements(
        self,
        [plain, packed]: [Option<usize>; 2],
        scratch: Option<usize>,
    ) -> (Option<usize>, Option<usize>) {
        match self {
            Weights::Packed => (packed, scratch),
            Weights::Dynamic => (plain, scratch.zip(packed).and_then(|(scratch, packed)| scratch.checked_add(packed))),
        }
    }
}

/// Matrices of `m` rows by `k`, one a group, in panels of 12 rows (the last filled up with zeros); in each panel for each
/// `k` its 12 elements side by side.
///
/// Before they are packed, element `(group, row, k)` is number `group * m * k + row * row_stride + k * k_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    pub(crate) groups: usize,
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) row_stride: usize,
    pub(crate) k_stride: usize,
}

impl Panels {
    /// Elements of a panel.
    pub(crate) fn panel(&self) -> usize {
        ROWS * self.k
    }

    /// Panels of a group.
    pub(crate) fn count(&self) -> usize {
        self.m.div_ceil(ROWS)
    }

    /// Elements before they are packed, and after that; nothing where they are too many to count.
    pub(crate) fn elements(groups: usize, m: Option<usize>, k: Option<usize>) -> [Option<usize>; 2] {
        let of = |rows: Option<usize>| rows.zip(k).and_then(|(rows, k)| product(&[groups, rows, k]));
        [of(m), of(m.and_then(|m| m.checked_next_multiple_of(ROWS)))]
    }

    /// All panels.
    ///
    /// # Panics
    /// Another number of weights.
    pub(crate) fn pack(&self, weights: &[f32]) -> Vec<f32> {
        let mut packed = vec![0.0; self.groups * self.count() * self.panel()];
        if 0 < self.panel() {
            packed
                .chunks_exact_mut(self.panel())
                .enumerate()
                .for_each(|(ix, panel)| self.pack_panel(weights, ix, panel));
        }
        packed
    }

    /// The panels that a kernel reads: those it was given, or its weights packed into its share of the scratch.
    pub(crate) fn ready<'a>(&self, how: Weights, weights: &'a [f32], own: &'a mut [f32], pool: &Pool) -> &'a [f32] {
        match how {
            Weights::Packed => weights,
            Weights::Dynamic => {
                let pack = |ix: usize, panel: &mut [f32]| self.pack_panel(weights, ix, panel);
                for_each_chunk(pool, own, self.panel().max(1), &pack);
                own
            }
        }
    }

    fn pack_panel(&self, weights: &[f32], ix: usize, panel: &mut [f32]) {
        let size = self.m * self.k;
        assert_eq!(weights.len(), self.groups * size, "the weights have the kernel's shape");
        let (group, first) = (ix / self.count(), ix % self.count() * ROWS);
        let matrix = &weights[group * size..(group + 1) * size];
        for (k, cells) in panel.chunks_exact_mut(ROWS).enumerate() {
            for (row, cell) in (first..).zip(cells) {
                *cell = if row < self.m { matrix[row * self.row_stride + k * self.k_stride] } else { 0.0 };
            }
        }
    }
}
