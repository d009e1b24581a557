//! [`Gather`]: slices picked by index along one axis.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;
use types::DType;

use crate::kernel::{Fit, KernelFn, Sizes, bytes, require};
use crate::operand::Operands;
use crate::pool::Pool;

/// `data [outer, axis, inner]` and `indices [n]` to `[outer, n, inner]`.
///
/// A negative index counts from the end. An index that is still outside is taken as the nearest that exists: indices
/// are data, and data must not make a run fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gather {
    /// Elements in front of the axis.
    pub outer: usize,
    /// Slices to pick from.
    pub axis: usize,
    /// Bytes of a slice.
    pub inner_bytes: usize,
    /// Slices to pick.
    pub indices: usize,
    /// The dtype of the indices: `i32` or `i64`.
    pub index_dtype: DType,
}

impl KernelFn for Gather {
    const NAME: &'static str = "gather";

    fn sizes(&self) -> Fit<Sizes> {
        require(matches!(self.index_dtype, DType::I32 | DType::I64), "indices that are neither i32 nor i64")?;
        let sizes = Sizes {
            inputs: smallvec![
                bytes(&[self.outer, self.axis, self.inner_bytes], 1)?,
                bytes(&[self.indices], self.index_dtype.size().0 as usize)?
            ],
            outputs: smallvec![bytes(&[self.outer, self.indices, self.inner_bytes], 1)?],
            workspace: 0,
        };
        require(1 <= self.axis || sizes.outputs[0] == 0, "nothing to pick from")?;
        Ok(sizes)
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        if self.index_dtype == DType::I32 {
            let indices = operands.input::<i32>(1);
            self.gather(operands, pool, |nth| i64::from(indices[nth]));
        } else {
            let indices = operands.input::<i64>(1);
            self.gather(operands, pool, |nth| indices[nth]);
        }
    }
}

impl Gather {
    fn gather(&self, operands: &Operands, pool: &Pool, index: impl Fn(usize) -> i64 + Sync) {
        let data = operands.input::<u8>(0);
        let out = operands.output::<u8>();
        let Gather { outer, axis, inner_bytes: inner, indices, .. } = *self;
        pool.split(outer * indices, 16384 / inner, &|slices| {
            for slice in slices {
                let wanted = index(slice % indices);
                let wanted = if wanted < 0 { wanted.saturating_add(axis as i64) } else { wanted };
                let picked = wanted.clamp(0, axis as i64 - 1) as usize;
                let from = (slice / indices * axis + picked) * inner;
                // SAFETY: slices do not overlap, and each has one task.
                let into = unsafe { out.write(slice * inner, inner) };
                copy(&data[from..from + inner], into);
            }
        });
    }
}

/// Copies an element without a call where it is one number.
fn copy(from: &[u8], into: &mut [u8]) {
    match (<[u8; 4]>::try_from(from), <[u8; 8]>::try_from(from)) {
        (Ok(four), _) => into.copy_from_slice(&four),
        (_, Ok(eight)) => into.copy_from_slice(&eight),
        _ => into.copy_from_slice(from),
    }
}
