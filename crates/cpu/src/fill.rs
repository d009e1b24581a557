//! [`Fill`]: one element, repeated.

use bytemuck::Pod;
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::kernel::{Fit, KernelFn, Sizes, bytes, require};
use crate::operand::Operands;
use crate::pool::Pool;

/// Fills the output with one element.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// Elements of the output.
    pub elements: usize,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub element_size: usize,
    /// The element's bytes, little-endian; the first `element_size` count.
    pub pattern: [u8; 8],
}

impl KernelFn for Fill {
    const NAME: &'static str = "fill";

    fn sizes(&self) -> Fit<Sizes> {
        require(matches!(self.element_size, 1 | 2 | 4 | 8), "an element size other than 1, 2, 4 and 8")?;
        Ok(Sizes { outputs: smallvec![bytes(&[self.elements], self.element_size)?], ..Sizes::default() })
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let [a, b, c, d, ..] = self.pattern;
        match self.element_size {
            1 => fill(operands, pool, a),
            2 => fill(operands, pool, u16::from_le_bytes([a, b])),
            4 => fill(operands, pool, u32::from_le_bytes([a, b, c, d])),
            _ => fill(operands, pool, u64::from_le_bytes(self.pattern)),
        }
    }
}

fn fill<T: Pod + Send + Sync>(operands: &Operands, pool: &Pool, element: T) {
    let out = operands.output::<T>();
    pool.split(out.len(), 1 << 15, &|range| {
        // SAFETY: ranges do not overlap, and each has one task.
        unsafe { out.write(range.start, range.len()) }.fill(element);
    });
}
