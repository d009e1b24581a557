//! A convolution whose outputs are some pixels of larger planes: a phase of a strided data gradient.

use super::{ConvBlocked, Job};
use crate::conv::dynamic::OutputGrid;
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

impl ConvBlocked {
    /// Convolves `x` by packed weights into planes of `out_plane` pixels. The epilogue has functions only.
    ///
    /// # Panics
    /// Operands of another size; operands and results other than `f32`; a grid that leaves its planes.
    pub(crate) fn run_on_grid(
        &self,
        x: &[f32],
        weights: &[f32],
        grid: OutputGrid,
        out_plane: usize,
        out: &mut [f32],
        pool: &Pool,
    ) {
        assert_eq!([self.operands, self.result], [StorageType::F32; 2], "a grid must be f32");
        assert_eq!(x.len(), self.batch * self.input_image(), "x must have its size");
        assert_eq!(Some(weights.len()), self.weight_words(), "weights must have their size");
        if self.batch * self.lanes() * self.window.output_plane() == 0 {
            return;
        }
        self.check_grid(grid, out_plane, out);
        let (limits, functions) = self.epilogue.limits_and_functions();
        let job = Job {
            conv: self,
            window: self.window,
            isa: pool.isa(),
            by_taps: self.by_taps(),
            x: bytemuck::cast_slice(x),
            weights: bytemuck::cast_slice(weights),
            scales: &[],
            corners: &[],
            scale: None,
            bias: None,
            residual: None,
            limits,
            functions,
            out: &SharedMut::new(bytemuck::cast_slice_mut(out)),
            out_plane,
            out_row: grid.row,
            out_column: grid.column,
            origin: grid.first * LANES,
        };
        job.run_all(pool);
    }

    /// The results of a kernel without taps.
    pub(crate) fn fill_grid(&self, grid: OutputGrid, out_plane: usize, out: &mut [f32], pool: &Pool) {
        let mut value = [0.0; LANES];
        self.epilogue.activate(Isa::Portable, &mut value);
        if self.batch * self.lanes() * self.window.output_plane() == 0 {
            return;
        }
        self.check_grid(grid, out_plane, out);
        let [rows, columns] = self.window.output;
        for_each_chunk(pool, out, out_plane * LANES, &|_, plane| {
            for row in 0..rows {
                for column in 0..columns {
                    let at = grid.first + row * grid.row + column * grid.column;
                    plane[at * LANES..][..LANES].copy_from_slice(&value);
                }
            }
        });
    }

    fn check_grid(&self, grid: OutputGrid, out_plane: usize, out: &[f32]) {
        let [rows, columns] = self.window.output;
        let last = grid.first + (rows - 1) * grid.row + (columns - 1) * grid.column;
        assert!(last < out_plane, "the outputs must be in their planes");
        assert_eq!(out.len(), self.batch * self.lanes() * out_plane, "the output must have its size");
    }
}
