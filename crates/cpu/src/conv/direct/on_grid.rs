//! A convolution whose outputs are some pixels of larger planes: a phase of a strided data gradient.

use super::{ConvBlocked, Job};
use crate::conv::dynamic::OutputGrid;
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

impl ConvBlocked {
    /// Convolves `x` by packed weights into the pixels of a grid. `Some(None)`: the output holds the residual.
    ///
    /// # Panics
    /// Operands of another size; operands and results other than `f32`; a grid that leaves its planes.
    #[expect(clippy::too_many_arguments, reason = "the operands of a kernel")]
    pub(crate) fn run_on_grid(
        &self,
        x: &[f32],
        weights: &[f32],
        grid: OutputGrid,
        bias: Option<&[f32]>,
        residual: Option<Option<&[f32]>>,
        out: &mut [f32],
        pool: &Pool,
    ) {
        assert_eq!([self.operands, self.result], [StorageType::F32; 2], "a grid must be f32");
        assert_eq!(x.len(), self.batch * self.input_image(), "x must have its size");
        assert_eq!(Some(weights.len()), self.weight_words(), "weights must have their size");
        if self.batch * self.lanes() * self.window.output_plane() == 0 {
            return;
        }
        self.check_grid(grid, bias, residual, out);
        let (limits, functions) = self.epilogue.limits_and_functions();
        let job = Job {
            conv: self,
            window: self.window,
            isa: pool.isa(),
            by_taps: self.by_taps(),
            x: bytemuck::cast_slice(x),
            weights: bytemuck::cast_slice(weights),
            scales: &[],
            marks: None,
            corners: &[],
            scale: None,
            bias,
            residual: residual.map(|items| items.map(bytemuck::cast_slice)),
            limits,
            functions,
            out: &SharedMut::new(bytemuck::cast_slice_mut(out)),
            out_plane: grid.plane,
            out_row: grid.row,
            out_column: grid.column,
            origin: grid.first * LANES,
        };
        job.run_all(pool);
    }

    /// The results of a kernel without taps.
    pub(crate) fn fill_grid(
        &self,
        grid: OutputGrid,
        bias: Option<&[f32]>,
        residual: Option<Option<&[f32]>>,
        out: &mut [f32],
        pool: &Pool,
    ) {
        if self.batch * self.lanes() * self.window.output_plane() == 0 {
            return;
        }
        self.check_grid(grid, bias, residual, out);
        let [rows, columns] = self.window.output;
        for_each_chunk(pool, out, grid.plane * LANES, &|number, plane| {
            let block = number % self.out_blocks() * LANES;
            let mut start = [0.0; LANES];
            if let Some(bias) = bias {
                start.copy_from_slice(&bias[block..block + LANES]);
            }
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let at = (grid.first + row * grid.row + column * grid.column) * LANES;
                let cells = &mut plane[at..at + LANES];
                let mut value = start;
                let added = residual.map(|items| match items {
                    Some(items) => &items[number * grid.plane * LANES + at..][..LANES],
                    None => &*cells,
                });
                if let Some(added) = added {
                    value.iter_mut().zip(added).for_each(|(value, added)| *value += added);
                }
                self.epilogue.activate(Isa::Portable, &mut value);
                cells.copy_from_slice(&value);
            }
        });
    }

    fn check_grid(&self, grid: OutputGrid, bias: Option<&[f32]>, residual: Option<Option<&[f32]>>, out: &[f32]) {
        let [rows, columns] = self.window.output;
        let last = grid.first + (rows - 1) * grid.row + (columns - 1) * grid.column;
        assert!(last < grid.plane, "the outputs must be in their planes");
        assert_eq!(out.len(), self.batch * self.lanes() * grid.plane, "the output must have its size");
        assert!(bias.is_none_or(|bias| bias.len() == self.lanes()), "the bias must have an element for each lane");
        let residual = residual.flatten().map_or(out.len(), <[f32]>::len);
        assert_eq!(residual, out.len(), "the residual must have the output's size");
    }
}
