//! [`Fill`]: a constant in every element.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Writes `pattern` to every element of the output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// Length of the output, in elements.
    pub elements: usize,
    /// Element size in bytes: 1, 2, 4 or 8.
    pub element_size: usize,
    /// The element's bytes in the first `element_size` of these.
    pub pattern: [u8; 8],
}

impl KernelFn for Fill {
    const NAME: &'static str = "fill";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if ![1, 2, 4, 8].contains(&self.element_size) {
            return Err(InvalidKernel("`element_size` must be 1, 2, 4 or 8"));
        }
        Sizes::new(&[], Some(self.elements), self.element_size)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        1
    }

    fn run(&self, args: Args, pool: &Pool) {
        for_each_chunk(pool, args.outputs[0], TASK, &|_, cells| match self.element_size {
            1 => cells.fill(self.pattern[0]),
            2 => self.fill::<2>(cells),
            4 => self.fill::<4>(cells),
            _ => self.fill::<8>(cells),
        });
    }
}

/// Bytes that a task writes, a multiple of every element size.
const TASK: usize = 1 << 16;

impl Fill {
    fn fill<const SIZE: usize>(&self, cells: &mut [u8]) {
        let element = self.pattern.first_chunk::<SIZE>().expect("an element has at most eight bytes");
        match element.iter().all(|byte| *byte == element[0]) {
            true => cells.fill(element[0]),
            false => cells.as_chunks_mut::<SIZE>().0.fill(*element),
        }
    }
}
