//! [`MatMul`]: products of row-major matrices, batched, with a constant or a computed right side.
//!
//! The left side is read as it lies. The right side is strips of 32 columns: packed at compile time, or packed by all
//! threads into the workspace, as many matrices at a time as fit a block.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::epilogue::Epilogue;
use crate::gemm::{self, COLUMNS, Panel, ROWS, Tile};
use crate::kernel::{Fit, KernelFn, Sizes, count, floats, require};
use crate::operand::{Cells, Operands};
use crate::pool::Pool;
use crate::walk::RANK;

/// Floats of packed right sides that are made in one go.
const BLOCK: usize = 1024 * 1024;

/// `out = activation(a b + bias + residual)`, batched.
///
/// Inputs: `a`, matrices of `[m, k]`; `b`, matrices of `[k, n]`, or one matrix packed by [`MatMul::pack`]; the epilogue's
/// bias `[n]` and residual. Output: `[batch.., m, n]`. Each side has as many matrices as its batch strides reach.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// Extents of the batch, outermost first; empty for a single product.
    pub batch: Vec<usize>,
    /// For each extent, the distance of neighbours in `a` in matrices; 0 repeats.
    pub a_batch_strides: Vec<usize>,
    /// For each extent, the distance of neighbours in `b` in matrices; 0 repeats. All 0 where `b` is packed.
    pub b_batch_strides: Vec<usize>,
    /// Rows of `a` and of the output.
    pub m: usize,
    /// Columns of `a`, rows of `b`.
    pub k: usize,
    /// Columns of `b` and of the output.
    pub n: usize,
    /// How `b` lies in memory.
    pub b: Right,
    /// What follows the product.
    pub epilogue: Epilogue,
}

/// How the right side of a product lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Right {
    /// One constant matrix in strips of 32 columns, see [`MatMul::pack`].
    Packed,
    /// Row-major matrices, packed at run time.
    #[default]
    Dynamic,
}

struct Layout {
    batch: usize,
    strips: usize,
    /// Floats of one packed right side.
    packed: usize,
    a_matrices: usize,
    b_matrices: usize,
    /// Whether every product has the same right side.
    one_b: bool,
    /// Right sides that are packed in one go.
    round: usize,
}

impl MatMul {
    /// Packs one row-major matrix `[k, n]` for [`Right::Packed`].
    ///
    /// # Panics
    /// Where `b` has another number of elements.
    pub fn pack(&self, b: &[f32]) -> Vec<f32> {
        assert_eq!(Some(b.len()), self.k.checked_mul(self.n), "elements of the right side");
        let mut packed = vec![0.0; self.n.div_ceil(COLUMNS) * COLUMNS * self.k];
        if 0 < self.k {
            for (index, strip) in packed.chunks_exact_mut(COLUMNS * self.k).enumerate() {
                gemm::pack_strip(b, self.n, index * COLUMNS, 0..self.k, strip);
            }
        }
        packed
    }

    fn layout(&self) -> Fit<Layout> {
        require(self.batch.len() <= RANK, "the rank is too large")?;
        let batch = count(&self.batch)?;
        let strips = self.n.div_ceil(COLUMNS);
        let packed = count(&[strips, COLUMNS, self.k])?;
        let a_matrices = crate::walk::strided_elements(&self.batch, &self.a_batch_strides)?;
        let b_matrices = crate::walk::strided_elements(&self.batch, &self.b_batch_strides)?;
        let one_b = self.b_batch_strides.iter().all(|&stride| stride == 0) || batch <= 1;
        let round = if one_b { 1 } else { (BLOCK / packed.max(1)).clamp(1, batch.max(1)) };
        require(self.b == Right::Dynamic || b_matrices <= 1, "a packed right side has one matrix")?;
        Ok(Layout { batch, strips, packed, a_matrices, b_matrices, one_b, round })
    }

    /// The matrices of `a` and `b` that product `index` takes.
    fn matrices(&self, index: usize) -> [usize; 2] {
        let mut rest = index;
        let mut at = [0, 0];
        for (axis, &extent) in self.batch.iter().enumerate().rev() {
            let position = rest % extent;
            rest /= extent;
            at[0] += position * self.a_batch_strides[axis];
            at[1] += position * self.b_batch_strides[axis];
        }
        at
    }
}

impl KernelFn for MatMul {
    const NAME: &'static str = "matmul";

    fn sizes(&self) -> Fit<Sizes> {
        let layout = self.layout()?;
        let b = match self.b {
            Right::Packed => floats(&[layout.packed])?,
            Right::Dynamic => floats(&[layout.b_matrices, self.k, self.n])?,
        };
        let mut sizes = Sizes {
            inputs: smallvec![floats(&[layout.a_matrices, self.m, self.k])?, b],
            outputs: smallvec![floats(&[layout.batch, self.m, self.n])?],
            workspace: 0,
        };
        if self.b == Right::Dynamic && sizes.outputs[0] != 0 {
            sizes.workspace = floats(&[layout.round, layout.packed])?;
        }
        self.epilogue.push_sizes(&mut sizes, self.n)?;
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        self.epilogue.residual_input(2) == Some(input)
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let Ok(layout) = self.layout() else { return };
        let a = operands.input::<f32>(0);
        let b = operands.input::<f32>(1);
        let workspace = operands.workspace::<f32>();
        let bias: &[f32] = if self.epilogue.bias { operands.input(2) } else { &[] };
        let residual = self.epilogue.residual_input(2).map(|input| operands.shared::<f32>(input));
        let out = operands.output::<f32>();
        let strip_len = COLUMNS * self.k;
        let round = if layout.one_b { layout.batch } else { layout.round };
        for first in (0..layout.batch).step_by(round) {
            let end = (first + round).min(layout.batch);
            let packed = match self.b {
                Right::Packed => b,
                Right::Dynamic => {
                    let sides = if layout.one_b { 1 } else { end - first };
                    pool.split(sides * layout.strips, 16384 / strip_len.max(1), &|strips| {
                        for task in strips {
                            let side = self.matrices(first + task / layout.strips)[1];
                            let matrix = &b[side * self.k * self.n..][..self.k * self.n];
                            // SAFETY: each strip is packed once, and nobody reads before `split` returns.
                            let strip = unsafe { workspace.write(task * strip_len, strip_len) };
                            gemm::pack_strip(matrix, self.n, task % layout.strips * COLUMNS, 0..self.k, strip);
                        }
                    });
                    // SAFETY: packing is over, and nobody writes before the next round.
                    unsafe { workspace.read(0, sides * layout.packed) }
                }
            };
            let product = Product { matmul: self, a, packed, bias, residual, out };
            // A task is a stretch of strips of one product, or a stretch of panels where the strips are few.
            let panels = self.m.div_ceil(ROWS);
            let wanted = (8 * pool.threads()).div_ceil(end - first);
            let by_strip = layout.strips.div_ceil((16384 / strip_len.max(1)).clamp(1, layout.strips)).min(wanted);
            let by_panel = wanted.div_ceil(by_strip).min(panels);
            let (strip_step, panel_step) = (layout.strips.div_ceil(by_strip), panels.div_ceil(by_panel));
            pool.run((end - first) * by_strip * by_panel, &|task| {
                let index = first + task / (by_strip * by_panel);
                let side = if layout.one_b { 0 } else { index - first };
                let start = task / by_panel % by_strip * strip_step;
                let panel_start = task % by_panel * panel_step;
                for strip in start..(start + strip_step).min(layout.strips) {
                    let items = &product.packed[side * layout.packed + strip * strip_len..][..strip_len];
                    for panel in panel_start..(panel_start + panel_step).min(panels) {
                        product.tile(index, panel, strip, items, pool);
                    }
                }
            });
        }
    }
}

struct Product<'a> {
    matmul: &'a MatMul,
    a: &'a [f32],
    packed: &'a [f32],
    bias: &'a [f32],
    residual: Option<Cells<'a, f32>>,
    out: Cells<'a, f32>,
}

impl Product<'_> {
    fn tile(&self, index: usize, panel: usize, strip: usize, items: &[f32], pool: &Pool) {
        let MatMul { m, k, n, .. } = *self.matmul;
        let rows = ROWS.min(m - panel * ROWS);
        let column = strip * COLUMNS;
        let width = COLUMNS.min(n - column);
        let start = |row: usize| (index * m + panel * ROWS + row) * n + column;
        let mut tile = Tile([0.0; ROWS * COLUMNS]);
        for (row, sums) in tile.0.as_chunks_mut::<COLUMNS>().0.iter_mut().take(rows).enumerate() {
            if let Some(residual) = self.residual {
                // SAFETY: these are this task's own output elements, or the residual's at the same place.
                let from = unsafe { residual.read(start(row), width) };
                sums[..width].copy_from_slice(from);
            }
            if !self.bias.is_empty() {
                sums.iter_mut().zip(&self.bias[column..column + width]).for_each(|(sum, bias)| *sum += bias);
            }
        }
        let a = (self.matmul.matrices(index)[0] * m + panel * ROWS) * k;
        let view = Panel { items: &self.a[a..a + rows * k], rows, row_stride: k, k_stride: 1 };
        gemm::multiply(pool.isa(), k, view, items, &mut tile);
        self.matmul.epilogue.activate(pool.isa(), &mut tile.0[..rows * COLUMNS]);
        for (row, sums) in tile.0.as_chunks::<COLUMNS>().0.iter().take(rows).enumerate() {
            // SAFETY: a tile belongs to one task, and the reads above are over.
            let into = unsafe { self.out.write(start(row), width) };
            into.copy_from_slice(&sums[..width]);
        }
    }
}
