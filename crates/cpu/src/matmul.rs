//! [`MatMul`]: products of matrices, the right factor in strips of 32 columns.

use serde::{Deserialize, Serialize};

use crate::Pool;
use crate::epilogue::Epilogue;
use crate::gemm::{COLUMNS, ROWS, Rows, multiply};
use crate::isa::with_isa;
use crate::kernel::{Args, KernelFn, Misfit, Sizes, elements_mut, input, input_or_in_place, product};
use crate::shared::{SharedMut, for_each_chunk};

/// How the right factor comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MatMulB {
    /// One constant matrix, packed by [`MatMul::pack`].
    Packed,
    /// Row-major matrices, packed into the scratch one by one.
    Dynamic,
}

/// `a: [matrices, m, k]` times `b: [matrices, k, n]`, matrices numbered by `batch` with strides of 0 where one serves for
/// several; then by the epilogue a bias `[n]` and a residual. Output: `[batch.., m, n]`. All `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// Extents of the batch; empty for one product.
    pub batch: Vec<usize>,
    /// Distance between matrices of `a` along each extent, in matrices.
    pub a_strides: Vec<usize>,
    /// The same for `b`; all 0 for a packed one.
    pub b_strides: Vec<usize>,
    /// Rows of `a`.
    pub m: usize,
    /// Columns of `a`, rows of `b`.
    pub k: usize,
    /// Columns of `b`.
    pub n: usize,
    /// How the right factor comes.
    pub b: MatMulB,
    /// What happens to each result.
    pub epilogue: Epilogue,
}

impl MatMul {
    /// A matrix `[k, n]` as the kernel reads it: strips of 32 columns, the last filled up with zeros.
    ///
    /// # Panics
    /// Another number of elements.
    pub fn pack(&self, b: &[f32]) -> Vec<f32> {
        assert_eq!(b.len(), self.k * self.n, "the matrix has the kernel's shape");
        let mut packed = vec![0.0; self.packed_elements()];
        let strip_elements = (self.k * COLUMNS).max(1);
        packed.chunks_mut(strip_elements).enumerate().for_each(|(strip, cells)| self.pack_strip(b, strip, cells));
        packed
    }

    fn pack_strip(&self, b: &[f32], strip: usize, cells: &mut [f32]) {
        let first = strip * COLUMNS;
        let columns = COLUMNS.min(self.n - first);
        for (row, cells) in cells.chunks_exact_mut(COLUMNS).enumerate() {
            cells[..columns].copy_from_slice(&b[row * self.n + first..][..columns]);
            cells[columns..].fill(0.0);
        }
    }

    fn packed_elements(&self) -> usize {
        self.k * self.n.div_ceil(COLUMNS) * COLUMNS
    }

    /// One past the highest matrix that strides reach.
    fn reach(&self, strides: &[usize]) -> Option<usize> {
        let steps =
            self.batch.iter().zip(strides).try_fold(0usize, |sum, (&extent, &stride)| {
                sum.checked_add(extent.saturating_sub(1).checked_mul(stride)?)
            });
        steps?.checked_add(1)
    }

    fn matrix(&self, number: usize, strides: &[usize]) -> usize {
        let (mut rest, mut matrix) = (number, 0);
        for (&extent, &stride) in self.batch.iter().zip(strides).rev() {
            matrix += rest % extent * stride;
            rest /= extent;
        }
        matrix
    }
}

impl KernelFn for MatMul {
    const NAME: &'static str = "matmul";

    fn sizes(&self) -> Result<Sizes, Misfit> {
        if [self.a_strides.len(), self.b_strides.len()] != [self.batch.len(); 2] {
            return Err(Misfit("strides are given for each extent of the batch"));
        }
        if self.b == MatMulB::Packed && self.b_strides.iter().any(|&stride| stride != 0) {
            return Err(Misfit("a packed factor is one matrix"));
        }
        let count = product(&self.batch);
        let several = |matrix: Option<usize>, strides: &[usize]| match count {
            // Nothing is read where there is no product, but the factors have their sizes all the same.
            Some(0) => Some(0),
            _ => matrix.zip(self.reach(strides)).and_then(|(matrix, count)| matrix.checked_mul(count)),
        };
        let columns = self.n.checked_next_multiple_of(COLUMNS);
        let packed = columns.and_then(|columns| product(&[self.k, columns]));
        let (b, workspace) = match self.b {
            MatMulB::Packed => (packed, Some(0)),
            MatMulB::Dynamic => {
                let nothing = count == Some(0) || self.m == 0;
                (several(product(&[self.k, self.n]), &self.b_strides), if nothing { Some(0) } else { packed })
            }
        };
        let a = several(product(&[self.m, self.k]), &self.a_strides);
        let output = count.and_then(|count| product(&[count, self.m, self.n]));
        let mut inputs = vec![a, b];
        inputs.extend(self.epilogue.operands(self.n, output));
        Sizes::with_workspace(&inputs, output, workspace, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == 2 + usize::from(self.epilogue.bias)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let a: &[f32] = input(&args, 0);
        let b: &[f32] = input(&args, 1);
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(&args, 2));
        let residual = self.epilogue.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let Args { outputs, workspace, .. } = args;
        let out = SharedMut::new(elements_mut(outputs[0]));
        let scratch: &mut [f32] = elements_mut(workspace);
        if out.len() == 0 {
            return;
        }
        let store = Store { kernel: self, bias, residual };
        let (strips, panels) = (self.n.div_ceil(COLUMNS), self.m.div_ceil(ROWS));
        let strip_elements = self.k * COLUMNS;
        let mut packed_matrix = None;
        for number in 0..out.len() / (self.m * self.n) {
            let a_start = self.matrix(number, &self.a_strides) * self.m * self.k;
            let b_matrix = self.matrix(number, &self.b_strides);
            if self.b == MatMulB::Dynamic && packed_matrix != Some(b_matrix) {
                let b = &b[b_matrix * self.k * self.n..][..self.k * self.n];
                for_each_chunk(pool, scratch, strip_elements, &|strip, cells| self.pack_strip(b, strip, cells));
                packed_matrix = Some(b_matrix);
            }
            let packed = if self.b == MatMulB::Dynamic { &*scratch } else { b };
            pool.run(strips * panels, &|task| {
                let (strip, panel) = (task / panels, task % panels);
                let rows = ROWS.min(self.m - panel * ROWS);
                let left = Rows { items: a, start: a_start + panel * ROWS * self.k, row_stride: self.k, k_stride: 1 };
                let mut tile = [[0.0; COLUMNS]; ROWS];
                let cells = &packed[strip * strip_elements..(strip + 1) * strip_elements];
                multiply(pool.isa(), rows, self.k, left, cells, &mut tile);
                let (store, tile, out) = (&store, &mut tile[..rows], &out);
                let row = number * self.m + panel * ROWS;
                let column = strip * COLUMNS;
                with_isa!(pool.isa(), store_tile(
                    store: &Store<'_>, row: usize, column: usize, tile: &mut [[f32; COLUMNS]], out: &SharedMut<'_, f32>
                ));
            });
        }
    }
}

struct Store<'a> {
    kernel: &'a MatMul,
    bias: Option<&'a [f32]>,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [f32]>>,
}

#[inline(always)]
fn store_tile(store: &Store<'_>, row: usize, column: usize, tile: &mut [[f32; COLUMNS]], out: &SharedMut<'_, f32>) {
    let columns = COLUMNS.min(store.kernel.n - column);
    for (ix, items) in tile.iter_mut().enumerate() {
        let start = (row + ix) * store.kernel.n + column;
        let items = &mut items[..columns];
        // SAFETY: a tile's rows and columns are its own: no other task of this job has them.
        let cells = unsafe { out.part(start, columns) };
        if let Some(bias) = store.bias {
            items.iter_mut().zip(&bias[column..]).for_each(|(item, bias)| *item += bias);
        }
        match store.residual {
            Some(Some(residual)) => items.iter_mut().zip(&residual[start..]).for_each(|(item, more)| *item += more),
            Some(None) => items.iter_mut().zip(&*cells).for_each(|(item, more)| *item += more),
            None => {}
        }
        store.kernel.epilogue.activate(items);
        cells.copy_from_slice(items);
    }
}
