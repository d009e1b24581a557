//! [`KernelFn`]: the contract of a kernel, its operands and their sizes.

use smallvec::SmallVec;

pub(crate) use crate::simd::storage::{elements, elements_mut};
use crate::threads::Pool;

/// An operand that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// Its bytes.
    Bytes(&'a [u8]),
    /// The bytes of the output with this index, which hold the operand until the kernel overwrites it.
    InPlace(usize),
}

/// The memory a kernel runs on. Every slice has the size that [`crate::Kernel::sizes`] states.
pub struct Args<'a, 'b> {
    /// Operands to read.
    pub inputs: &'b [Operand<'a>],
    /// Memory to write.
    pub outputs: &'b mut [&'a mut [u8]],
    /// Workspace; its initial contents are never read.
    pub workspace: &'a mut [u8],
}

/// The exact bytes of each operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of each input.
    pub inputs: SmallVec<[u64; 8]>,
    /// Of each output.
    pub outputs: SmallVec<[u64; 2]>,
    /// Of the workspace; a run writes all of it.
    pub workspace: u64,
}

impl Sizes {
    /// Sizes in elements of `element` bytes, with one output and no workspace.
    pub(crate) fn new(inputs: &[Option<usize>], output: Option<usize>, element: usize) -> Result<Sizes, InvalidKernel> {
        Sizes::with_workspace(inputs, output, Some(0), element)
    }

    pub(crate) fn with_workspace(
        inputs: &[Option<usize>],
        output: Option<usize>,
        workspace: Option<usize>,
        element: usize,
    ) -> Result<Sizes, InvalidKernel> {
        let bytes = |elements: Option<usize>| {
            let bytes = elements.and_then(|elements| elements.checked_mul(element));
            bytes
                .filter(|&bytes| bytes <= BYTES_MAX)
                .map(|bytes| bytes as u64)
                .ok_or(InvalidKernel("sizes must not overflow"))
        };
        // An empty output needs no computation.
        let workspace = if output == Some(0) { Some(0) } else { workspace };
        Ok(Sizes {
            inputs: inputs.iter().map(|&elements| bytes(elements)).collect::<Result<_, _>>()?,
            outputs: [bytes(output)?].into_iter().collect(),
            workspace: bytes(workspace)?,
        })
    }
}

/// An operand whose size is not the one that its kernel requires.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeMismatch {
    /// The parameters of the kernel contradict each other.
    #[error("kernel `{kernel}`: {reason}")]
    Kernel {
        /// The kernel.
        kernel: &'static str,
        /// The contradiction.
        reason: InvalidKernel,
    },
    /// Another number of operands.
    #[error("kernel `{kernel}` requires {required} {operands}, got {found}")]
    Count {
        /// The kernel.
        kernel: &'static str,
        /// `inputs` or `outputs`.
        operands: &'static str,
        /// The number that the kernel requires.
        required: usize,
        /// The number given.
        found: usize,
    },
    /// Another size.
    #[error("kernel `{kernel}` requires {required} bytes of {operand}, got {found}")]
    Bytes {
        /// The kernel.
        kernel: &'static str,
        /// As in `input 1`.
        operand: String,
        /// The bytes that the kernel requires.
        required: u64,
        /// The bytes given.
        found: u64,
    },
}

impl Sizes {
    /// Refuses operands that do not have exactly these sizes.
    pub(crate) fn check(&self, kernel: &'static str, found: &Sizes) -> Result<(), SizeMismatch> {
        let lists = [("input", &self.inputs[..], &found.inputs[..]), ("output", &self.outputs, &found.outputs)];
        for (name, required, found) in lists {
            if required.len() != found.len() {
                let operands = if name == "input" { "inputs" } else { "outputs" };
                return Err(SizeMismatch::Count { kernel, operands, required: required.len(), found: found.len() });
            }
            for (ix, (&required, &found)) in required.iter().zip(found).enumerate() {
                if required != found {
                    return Err(SizeMismatch::Bytes { kernel, operand: format!("{name} {ix}"), required, found });
                }
            }
        }
        if self.workspace != found.workspace {
            let (required, found) = (self.workspace, found.workspace);
            return Err(SizeMismatch::Bytes { kernel, operand: "workspace".into(), required, found });
        }
        Ok(())
    }
}

/// The largest size of a slice.
const BYTES_MAX: usize = isize::MAX as usize;

/// Parameters that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidKernel(pub &'static str);

/// The alignment of a workspace in bytes: kernels keep numbers of up to eight bytes in theirs.
pub const WORKSPACE_ALIGNMENT: usize = 8;

/// The contract of a kernel.
pub trait KernelFn {
    /// The name in plans and reports.
    const NAME: &'static str;

    /// The exact bytes of each operand.
    ///
    /// # Errors
    /// Parameters that contradict each other. `run` must not panic on any that are accepted.
    fn sizes(&self) -> Result<Sizes, InvalidKernel>;

    /// Computes the outputs. `args` must have the sizes that `sizes` states.
    fn run(&self, args: Args, pool: &Pool);

    /// The alignment of an input, or with `None` of outputs, in bytes. That of the workspace is [`WORKSPACE_ALIGNMENT`].
    fn alignment(&self, _input: Option<usize>) -> usize {
        4
    }

    /// Whether an input may be in place.
    fn may_share(&self, _input: usize) -> bool {
        false
    }
}

/// The elements of an operand that is not in place.
pub(crate) fn input<'a, T: bytemuck::AnyBitPattern>(args: &Args<'a, '_>, ix: usize) -> &'a [T] {
    input_or_in_place(args, ix).unwrap_or_default()
}

/// The elements of an operand; `None` if it is in place.
pub(crate) fn input_or_in_place<'a, T: bytemuck::AnyBitPattern>(args: &Args<'a, '_>, ix: usize) -> Option<&'a [T]> {
    match args.inputs[ix] {
        Operand::Bytes(bytes) => Some(elements(bytes)),
        Operand::InPlace(_) => None,
    }
}

/// The product of extents, or `None` if it overflows. Extents next to a 0 count too, so that strides fit.
pub(crate) fn product(extents: &[usize]) -> Option<usize> {
    let product = extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent.max(1)))?;
    Some(if extents.contains(&0) { 0 } else { product })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operand_of_another_size_is_refused() {
        let sizes = |inputs: &[u64], outputs: &[u64], workspace| Sizes {
            inputs: SmallVec::from_slice(inputs),
            outputs: SmallVec::from_slice(outputs),
            workspace,
        };
        let required = sizes(&[8, 12], &[8, 4], 64);
        let text = |found: Sizes| required.check("k", &found).map_err(|error| error.to_string());
        assert_eq!(text(required.clone()), Ok(()));
        let refused = [
            (sizes(&[8], &[8, 4], 64), "kernel `k` requires 2 inputs, got 1"),
            (sizes(&[8, 12, 0], &[8, 4], 64), "kernel `k` requires 2 inputs, got 3"),
            (sizes(&[8, 8], &[8, 4], 64), "kernel `k` requires 12 bytes of input 1, got 8"),
            (sizes(&[8, 12], &[8], 64), "kernel `k` requires 2 outputs, got 1"),
            (sizes(&[8, 12], &[8, 8], 64), "kernel `k` requires 4 bytes of output 1, got 8"),
            (sizes(&[8, 12], &[8, 4], 0), "kernel `k` requires 64 bytes of workspace, got 0"),
        ];
        for (found, expected) in refused {
            assert_eq!(text(found), Err(expected.to_string()));
        }
    }
}
