//! [`Kernel`]: the table of all kernels.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, SizeMismatch, Sizes};
use crate::threads::Pool;

macro_rules! kernels {
    ($($kernel:ident),* $(,)?) => {
        /// A kernel with its parameters.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "each variant is documented at its struct")]
        pub enum Kernel {
            $($kernel(crate::$kernel)),*
        }

        /// The kernels without their parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each variant is documented at its struct")]
        pub enum KernelKind {
            $($kernel),*
        }

        impl KernelKind {
            /// All of them, in the order of the table.
            pub const ALL: &[KernelKind] = &[$(KernelKind::$kernel),*];
        }

        impl Kernel {
            /// The name in plans and reports.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Kernel::$kernel(_) => <crate::$kernel as KernelFn>::NAME),*
                }
            }

            /// See [`KernelFn::sizes`].
            ///
            /// # Errors
            /// Parameters that contradict each other.
            pub fn sizes(&self) -> Result<Sizes, InvalidKernel> {
                match self {
                    $(Kernel::$kernel(kernel) => kernel.sizes()),*
                }
            }

            /// Checks the sizes of operands: they must be exactly [`Kernel::sizes`].
            ///
            /// # Errors
            /// The first operand with another size, or parameters that contradict each other.
            pub fn check_sizes(&self, found: &Sizes) -> Result<(), SizeMismatch> {
                let kernel = self.name();
                self.sizes().map_err(|reason| SizeMismatch::Kernel { kernel, reason })?.check(kernel, found)
            }

            /// See [`KernelFn::run`]. Returns at once if all outputs are empty.
            pub fn run(&self, args: Args, pool: &Pool) {
                if args.outputs.iter().all(|output| output.is_empty()) {
                    return;
                }
                match self {
                    $(Kernel::$kernel(kernel) => kernel.run(args, pool)),*
                }
            }

            /// See [`KernelFn::alignment`].
            pub fn alignment(&self, input: Option<usize>) -> usize {
                match self {
                    $(Kernel::$kernel(kernel) => kernel.alignment(input)),*
                }
            }

            /// See [`KernelFn::may_share`].
            pub fn may_share(&self, input: usize) -> bool {
                match self {
                    $(Kernel::$kernel(kernel) => kernel.may_share(input)),*
                }
            }
        }

        $(
            impl From<crate::$kernel> for Kernel {
                fn from(kernel: crate::$kernel) -> Kernel {
                    Kernel::$kernel(kernel)
                }
            }
        )*
    };
}

// One row per kernel. Plans store kernels by position: append new rows, or raise the plan format's version.
kernels! {
    ArgExtreme,
    Chain,
    Conv,
    ConvTranspose,
    Copy,
    Elementwise,
    Fill,
    Gather,
    Lrn,
    MatMul,
    Pool2d,
    Reduce,
    Remap,
    Resize,
    Softmax,
    Reorder,
    DepthwiseBlocked,
    PoolBlocked,
    ConvBlocked,
    Winograd,
    InvertedBottleneck,
    Recurrent,
    LayerNorm,
    Attention,
    DynamicConv,
    ConvDataGradient,
    ConvWeightGradient,
    DepthwiseWeightGradient,
    DepthwiseDataGradient,
    WeightGradientRows,
    BatchNormTraining,
    BatchNormGradient,
    ChannelSum,
    PoolGradient,
    Update,
    Dropout,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGradient,
    ScatterAdd,
    RecurrentGradient,
    PoolWithPositions,
    Ctc,
    CtcGradient,
    ConvUnbuffered,
    TopK,
    CompactConv,
    CumulativeSum,
    Insert,
    Scatter,
    SwapAxes,
    PoolVolumes,
    UpdateByFactors,
}
