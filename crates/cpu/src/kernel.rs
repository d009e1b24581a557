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

/// The largest size of a slice.
const BYTES_MAX: usize = isize::MAX as usize;

/// Parameters that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidKernel(pub &'static str);

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

    /// The alignment of an input, or with `None` of outputs and workspace.
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
