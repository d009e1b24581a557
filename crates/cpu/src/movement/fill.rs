//! [`Fill`]: a constant in every element.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes};
use crate::threads::Pool;

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

    fn run(&self, args: Args, _pool: &Pool) {
        let pattern = &self.pattern[..self.element_size];
        args.outputs[0].chunks_exact_mut(self.element_size).for_each(|element| element.copy_from_slice(pattern));
    }
}
