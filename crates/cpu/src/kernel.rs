//! [`KernelFn`]: the contract of a kernel, its operands and their sizes.

use smallvec::SmallVec;

pub(crate) use crate::simd::storage::{elements, elements_mut};
use crate::threads::Pool;

/// An operand that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// Its bytes.
    Bytes(&'a [u8]),
    /// The bytes of the output of this number, which hold the operand until the kernel writes over it.
    InPlace(usize),
}

/// What a kernel runs on. Every slice has the size that [`crate::Kernel::sizes`] states.
pub struct Args<'a, 'b> {
    /// What it reads.
    pub inputs: &'b [Operand<'a>],
    /// What it writes.
    pub outputs: &'b mut [&'a mut [u8]],
    /// Scratch; what it holds before is never read.
    pub workspace: &'a mut [u8],
}

/// The exact bytes of each operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of each input.
    pub inputs: SmallVec<[u64; 8]>,
    /// Of each output.
    pub outputs: SmallVec<[u64; 2]>,
    /// Of the scratch; a run writes all of it.
    pub workspace: u64,
}

impl Sizes {
    /// Sizes in elements of `element` bytes, one output and no scratch.
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
                .ok_or(InvalidKernel("its sizes overflow"))
        };
        // Nothing is computed where nothing is to be written.
        let workspace = if output == Some(0) { Some(0) } else { workspace };
        Ok(Sizes {
            inputs: inputs.iter().map(|&elements| bytes(elements)).collect::<Result<_, _>>()?,
            outputs: [bytes(output)?].into_iter().collect(),
            workspace: bytes(workspace)?,
        })
    }
}

/// No slice is larger.
const BYTES_MAX: usize = isize::MAX as usize;

/// Parameters that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidKernel(pub &'static str);

/// What every kernel says about itself and does.
pub trait KernelFn {
    /// The name in plans and reports.
    const NAME: &'static str;

    /// The exact bytes of each operand.
    ///
    /// # Errors
    /// Parameters that contradict each other. Whatever is accepted, `run` handles without a panic.
    fn sizes(&self) -> Result<Sizes, InvalidKernel>;

    /// Computes. `args` have the sizes that `sizes` states.
    fn run(&self, args: Args, pool: &Pool);

    /// What the address of an input is a multiple of, or that of outputs and workspace.
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

/// The elements of an operand, or none where they are the output's.
pub(crate) fn input_or_in_place<'a, T: bytemuck::AnyBitPattern>(args: &Args<'a, '_>, ix: usize) -> Option<&'a [T]> {
    match args.inputs[ix] {
        Operand::Bytes(bytes) => Some(elements(bytes)),
        Operand::InPlace(_) => None,
    }
}

/// The product of extents, or none where it overflows; those beside an extent of 0 count too, so that strides fit.
pub(crate) fn product(extents: &[usize]) -> Option<usize> {
    let product = extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent.max(1)))?;
    Some(if extents.contains(&0) { 0 } else { product })
}
