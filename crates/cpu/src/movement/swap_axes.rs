//! [`SwapAxes`]: two neighboring axes change places within blocks, in place if the operand is not read again.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input_or_in_place, product};
use crate::movement::pieces::copy_items;
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// `[blocks, rows, columns, bytes]` -> `[blocks, columns, rows, bytes]`. In place, the workspace has one block at a time, which stays
/// in a cache between its two copies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwapAxes {
    /// The number of blocks.
    pub blocks: usize,
    /// The first of the two axes.
    pub rows: usize,
    /// The second one.
    pub columns: usize,
    /// Bytes that stay together.
    pub bytes: usize,
}

/// Bytes that justify another task.
const TASK_BYTES: usize = 1 << 15;

impl SwapAxes {
    /// The kernel of a transposition with large blocks behind several leading axes that stay, if it is one.
    pub fn of(shape: &[usize], order: &[usize], element_size: usize) -> Option<SwapAxes> {
        let mut moved = order.iter().enumerate().filter(|&(to, &from)| to != from);
        let (first, last) = (moved.next()?.0, moved.next_back()?.0);
        // The axes in between come from two groups that exchange places.
        let (between, split) = (&order[first..=last], order[first]);
        let swapped = (split..=last).chain(first..split);
        let extent = |axes: std::ops::Range<usize>| -> usize { shape[axes].iter().product() };
        between.iter().copied().eq(swapped).then(|| SwapAxes {
            blocks: extent(0..first),
            rows: extent(first..split),
            columns: extent(split..last + 1),
            bytes: extent(last + 1..shape.len()) * element_size,
        })
    }

    fn block(&self) -> Option<usize> {
        product(&[self.rows, self.columns, self.bytes])
    }
}

impl KernelFn for SwapAxes {
    const NAME: &'static str = "swap_axes";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let all = product(&[self.blocks, self.rows, self.columns, self.bytes]);
        Sizes::with_workspace(&[all], all, self.block(), 1)
    }

    fn alignment(&self, _input: Option<usize>) -> usize {
        1
    }

    fn may_share(&self, _input: usize) -> bool {
        true
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: Option<&[u8]> = input_or_in_place(&args, 0);
        let out: &mut [u8] = elements_mut(args.outputs[0]);
        let block: &mut [u8] = elements_mut(args.workspace);
        let SwapAxes { rows, columns, bytes, .. } = *self;
        if block.is_empty() {
            return;
        }
        for (number, out) in out.chunks_exact_mut(block.len()).enumerate() {
            let from: &[u8] = match x {
                Some(x) => &x[number * block.len()..][..block.len()],
                None => {
                    let own = &*out;
                    for_each_chunk(pool, block, TASK_BYTES, &|task, block| {
                        copy_items(&own[task * TASK_BYTES..][..block.len()], block);
                    });
                    block
                }
            };
            // A task has whole columns.
            let together = (TASK_BYTES / (rows * bytes)).max(1);
            for_each_chunk(pool, out, together * rows * bytes, &|task, out| {
                for (place, out) in out.chunks_exact_mut(bytes).enumerate() {
                    let (column, row) = (task * together + place / rows, place % rows);
                    copy_items(&from[(row * columns + column) * bytes..][..bytes], out);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighboring_groups_of_axes_are_recognized() {
        let of = |order: &[usize]| {
            let kernel = SwapAxes::of(&[2, 3, 5, 7], order, 4)?;
            Some([kernel.blocks, kernel.rows, kernel.columns, kernel.bytes])
        };
        assert_eq!(of(&[0, 2, 1, 3]), Some([2, 3, 5, 28]));
        assert_eq!(of(&[0, 3, 1, 2]), Some([2, 15, 7, 4]));
        assert_eq!(of(&[2, 3, 0, 1]), Some([1, 6, 35, 4]));
        assert_eq!(of(&[0, 1, 2, 3]), None);
        assert_eq!(of(&[0, 3, 2, 1]), None);
        assert_eq!(of(&[1, 0, 3, 2]), None);
    }
}
