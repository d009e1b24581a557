//! [`Kernel`]: the table of kernels. One row declares one; dispatch, names and checks come from the rows.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::operand::{Args, Operands};
use crate::pool::Pool;

/// The bytes that each operand of a kernel has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Of each input.
    pub inputs: SmallVec<[u64; 8]>,
    /// Of each output.
    pub outputs: SmallVec<[u64; 2]>,
    /// Of the workspace; a run writes all of it.
    pub workspace: u64,
}

/// The fields of a kernel contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}` is malformed: {why}")]
pub struct Misfit {
    /// The kernel's name.
    pub kernel: &'static str,
    /// What is wrong.
    pub why: &'static str,
}

/// The reason of a refusal, before the kernel's name is added.
pub(crate) type Fit<T> = Result<T, &'static str>;

/// What a kernel is to the table.
pub(crate) trait KernelFn {
    const NAME: &'static str;
    /// The sizes, or what is wrong with the fields.
    fn sizes(&self) -> Fit<Sizes>;
    /// Whether `input` may have the output's bytes.
    fn may_share(&self, _input: usize) -> bool {
        false
    }
    /// The work. `sizes` has accepted the fields, the operands have these sizes, and the output is not empty.
    fn run(&self, operands: &Operands, pool: &Pool);
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A kernel call without its operands.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Kernel {
            $($(#[$doc])* $name(crate::$name),)*
        }

        impl Kernel {
            /// The name in messages and reports.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Kernel::$name(_) => <crate::$name as KernelFn>::NAME,)*
                }
            }

            /// The bytes of each operand. Refuses fields with which a run would read or write elsewhere, or divide by zero.
            pub fn sizes(&self) -> Result<Sizes, Misfit> {
                match self {
                    $(Kernel::$name(kernel) => kernel.sizes(),)*
                }
                .map_err(|why| Misfit { kernel: self.name(), why })
            }

            /// Whether `input` may be [`Operand::InPlace(0)`](crate::Operand::InPlace).
            pub fn may_share(&self, input: usize) -> bool {
                match self {
                    $(Kernel::$name(kernel) => kernel.may_share(input),)*
                }
            }

            /// Runs the kernel.
            ///
            /// # Panics
            /// Where [`Kernel::sizes`] refuses, the operands have other sizes or are not aligned to their elements, or an
            /// input is in place that may not be.
            pub fn run(&self, args: Args, pool: &Pool) {
                let sizes = self.sizes().unwrap_or_else(|misfit| panic!("{misfit}"));
                let operands = Operands::new(args, &sizes, |input| self.may_share(input));
                if sizes.outputs[0] == 0 {
                    return;
                }
                match self {
                    $(Kernel::$name(kernel) => kernel.run(&operands, pool),)*
                }
            }
        }

        $(impl From<crate::$name> for Kernel {
            fn from(kernel: crate::$name) -> Kernel {
                Kernel::$name(kernel)
            }
        })*
    };
}

kernels! {
    /// Convolution.
    Conv,
    /// Convolution with one input channel per output channel.
    DepthwiseConv,
    /// Transposed convolution.
    ConvTranspose,
    /// Matrix product.
    MatMul,
    /// Pooling over windows.
    Pool2d,
    /// Reduction over axes.
    Reduce,
    /// Softmax along an axis.
    Softmax,
    /// Local response normalisation.
    Lrn,
    /// A pointwise program.
    Chain,
    /// One pointwise function on any dtype.
    Elementwise,
    /// A strided copy.
    Copy,
    /// A repeated pattern.
    Fill,
    /// Slices picked by index.
    Gather,
    /// Weighted taps along each axis.
    Resize,
    /// A copy through index tables.
    Remap,
    /// The position of the largest or smallest element.
    ArgExtreme,
}

impl Kernel {
    /// The first input that may share the output's bytes, if any.
    pub fn in_place(&self) -> Option<usize> {
        (0..crate::chain::MAX_INPUTS).find(|&input| self.may_share(input))
    }
}

/// The number of elements of the given extents.
pub(crate) fn count(extents: &[usize]) -> Fit<usize> {
    if extents.contains(&0) {
        return Ok(0);
    }
    let product = extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    product.filter(|&product| product <= isize::MAX as usize / 16).ok_or("a size overflows")
}

/// The bytes of `count` elements of `size` bytes each.
pub(crate) fn bytes(extents: &[usize], size: usize) -> Fit<u64> {
    Ok(count(extents)? as u64 * size as u64)
}

/// The bytes of `f32` elements.
pub(crate) fn floats(extents: &[usize]) -> Fit<u64> {
    bytes(extents, 4)
}

/// `Ok` where `holds`, else the reason.
pub(crate) fn require(holds: bool, why: &'static str) -> Fit<()> {
    if holds { Ok(()) } else { Err(why) }
}
