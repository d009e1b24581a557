//! [`Copy`]: strided copies: transpose, slice, broadcast, concatenation, padding.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Approximate size of a task.
const TASK_BYTES: usize = 1 << 15;

/// `out[out_offset + index . out_strides] = x[in_offset + index . in_strides]` for every index of `shape`. Other
/// elements of the output are unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// Element size in bytes: 1, 2, 4 or 8.
    pub element_size: usize,
    /// Extents of the copied block.
    pub shape: Vec<usize>,
    /// Length of the input, in elements.
    pub in_elements: usize,
    /// Position of the first element in the input.
    pub in_offset: usize,
    /// Strides in the input, in elements; 0 broadcasts, a negative stride reverses.
    pub in_strides: Vec<isize>,
    /// Length of the output, in elements.
    pub out_elements: usize,
    /// Position of the first element in the output.
    pub out_offset: usize,
    /// Strides in the output, in elements. Two indices must never map to one element: sorted by size, each stride must
    /// exceed the reach of all smaller ones.
    pub out_strides: Vec<usize>,
}

impl Copy {
    /// `Some` if the lowest and the highest input position are in bounds.
    fn check_input(&self) -> Option<()> {
        let (mut low, mut high) = (self.in_offset as i128, self.in_offset as i128);
        for (&extent, &stride) in self.shape.iter().zip(&self.in_strides) {
            let reach = (extent as i128 - 1) * stride as i128;
            (low, high) = (low + reach.min(0), high + reach.max(0));
        }
        (0 <= low && high < self.in_elements as i128).then_some(())
    }

    /// `Some` if all output positions are in bounds and distinct: sorted by size, each stride exceeds the reach of the
    /// smaller ones.
    fn check_output(&self) -> Option<()> {
        let mut axes: Vec<(usize, usize)> = self
            .out_strides
            .iter()
            .copied()
            .zip(self.shape.iter().copied())
            .filter(|&(_, extent)| 1 < extent)
            .collect();
        axes.sort_unstable();
        let mut reach = 0u128;
        for (stride, extent) in axes {
            if stride as u128 <= reach {
                return None;
            }
            reach += stride as u128 * (extent as u128 - 1);
        }
        (reach + (self.out_offset as u128) < self.out_elements as u128).then_some(())
    }
}

impl KernelFn for Copy {
    const NAME: &'static str = "copy";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if ![1, 2, 4, 8].contains(&self.element_size) {
            return Err(InvalidKernel("`element_size` must be 1, 2, 4 or 8"));
        }
        if [self.in_strides.len(), self.out_strides.len()] != [self.shape.len(); 2] {
            return Err(InvalidKernel("there must be one input and one output stride per extent"));
        }
        let moved = product(&self.shape).ok_or(InvalidKernel("the number of elements must fit in an address"))?;
        if moved != 0 && (self.check_input().is_none() || self.check_output().is_none()) {
            return Err(InvalidKernel("strides must stay within the operands and write each element at most once"));
        }
        Sizes::new(&[Some(self.in_elements)], Some(self.out_elements), self.element_size)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        self.element_size
    }

    fn run(&self, args: Args, pool: &Pool) {
        match self.element_size {
            1 => self.run_typed::<u8>(args, pool),
            2 => self.run_typed::<u16>(args, pool),
            4 => self.run_typed::<u32>(args, pool),
            _ => self.run_typed::<u64>(args, pool),
        }
    }
}

impl Copy {
    fn run_typed<T: bytemuck::Pod + Send + Sync>(&self, args: Args, pool: &Pool) {
        let x: &[T] = input(&args, 0);
        let out = SharedMut::new(elements_mut::<T>(args.outputs[0]));
        // The innermost axes that are dense on both sides form one contiguous run.
        let (mut axes, mut run) = (0, 1usize);
        for axis in (0..self.shape.len()).rev() {
            let dense = self.in_strides[axis] == run as isize && self.out_strides[axis] == run;
            if !dense && self.shape[axis] != 1 {
                break;
            }
            axes += 1;
            run *= self.shape[axis];
        }
        let outer = &self.shape[..self.shape.len() - axes];
        // Without such a run the innermost axis becomes a loop over single elements.
        let (looped, rows) = match outer.split_last() {
            Some((&extent, rest)) if run == 1 => (extent, rest),
            _ => (1, outer),
        };
        let loop_axis = outer.len().wrapping_sub(1);
        let (in_step, out_step) = match looped {
            1 => (0, 0),
            _ => (self.in_strides[loop_axis], self.out_strides[loop_axis]),
        };
        let n_rows: usize = rows.iter().product();
        if n_rows * looped * run == 0 {
            return;
        }
        let rows_per_task = (TASK_BYTES / (run * looped * self.element_size).max(1)).max(1);
        pool.run(n_rows.div_ceil(rows_per_task), &|task| {
            for row in task * rows_per_task..n_rows.min((task + 1) * rows_per_task) {
                let (mut rest, mut from, mut to) = (row, self.in_offset as isize, self.out_offset);
                for axis in (0..rows.len()).rev() {
                    let ix = rest % rows[axis];
                    rest /= rows[axis];
                    from += ix as isize * self.in_strides[axis];
                    to += ix * self.out_strides[axis];
                }
                for step in 0..looped {
                    let from = (from + step as isize * in_step) as usize;
                    // SAFETY: `sizes` rejects strides that map two indices to one element, so no other row or step
                    // writes this run.
                    let cells = unsafe { out.part(to + step * out_step, run) };
                    cells.copy_from_slice(&x[from..from + run]);
                }
            }
        });
    }
}
