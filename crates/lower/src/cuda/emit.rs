//! [`Emitted`]: a kernel in CUDA C before it has a name, and the templates that it needs.

use cuda_driver::cublas::Product;
use cuda_driver::cudnn::CudnnPlan;
use ir::{Call, CallInput};
use serde::{Deserialize, Serialize};
use types::{Bytes, Shape};

/// The driver's alignment of allocations, which is that of the widest vector load or more.
pub(super) const ALIGNMENT: Bytes = Bytes(256);

/// The usual number of threads of a block, `THREADS` in `cuda/templates/base.cu`.
pub const THREADS: u32 = 256;
/// The most blocks along the second and third axis of a grid.
pub(super) const GRID_MAX: u32 = 65_535;
/// The C type of a launch's number.
pub(super) const ITERATION: &str = "unsigned long long";
/// Elements are counted in 31 bits.
pub(super) const ELEMENTS_MAX: usize = i32::MAX as usize;

/// The kinds of emitted kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum KernelKind {
    Pointwise,
    Conv,
    ConvEach,
    ConvTranspose,
    Pool,
    Product,
    Softmax,
    LayerNorm,
    Attention,
    Reduce,
    Search,
    Lrn,
    Move,
    Recurrent,
    BatchNorm,
    BatchNormGradient,
    Ctc,
    CtcGradient,
    Dropout,
    Loss,
    LossGradient,
    PoolGradient,
    RecurrentGradient,
    Scatter,
    ScatterAdd,
    Update,
    WeightGradient,
}

impl KernelKind {
    /// The name in plans and reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            KernelKind::Pointwise => "cuda_pointwise",
            KernelKind::Conv => "cuda_conv",
            KernelKind::ConvEach => "cuda_conv_each",
            KernelKind::ConvTranspose => "cuda_conv_transpose",
            KernelKind::Pool => "cuda_pool",
            KernelKind::Product => "cuda_product",
            KernelKind::Softmax => "cuda_softmax",
            KernelKind::LayerNorm => "cuda_layer_norm",
            KernelKind::Attention => "cuda_attention",
            KernelKind::Reduce => "cuda_reduce",
            KernelKind::Search => "cuda_search",
            KernelKind::Lrn => "cuda_lrn",
            KernelKind::Move => "cuda_move",
            KernelKind::Recurrent => "cuda_recurrent",
            KernelKind::BatchNorm => "cuda_batch_norm",
            KernelKind::BatchNormGradient => "cuda_batch_norm_gradient",
            KernelKind::Ctc => "cuda_ctc",
            KernelKind::CtcGradient => "cuda_ctc_gradient",
            KernelKind::Dropout => "cuda_dropout",
            KernelKind::Loss => "cuda_loss",
            KernelKind::LossGradient => "cuda_loss_gradient",
            KernelKind::PoolGradient => "cuda_pool_gradient",
            KernelKind::RecurrentGradient => "cuda_recurrent_gradient",
            KernelKind::Scatter => "cuda_scatter",
            KernelKind::ScatterAdd => "cuda_scatter_add",
            KernelKind::Update => "cuda_update",
            KernelKind::WeightGradient => "cuda_weight_gradient",
        }
    }

    /// The stem of the function's name in CUDA C.
    pub(super) fn stem(self) -> &'static str {
        self.name().trim_start_matches("cuda_")
    }

    /// The blocks that a multiprocessor must have room for at once; registers are limited to that. `None` for no limit.
    pub(super) fn blocks_min(self) -> Option<u32> {
        matches!(self, KernelKind::Conv | KernelKind::Product | KernelKind::WeightGradient).then_some(2)
    }
}

/// A template of the package `cuda-kernels`, in an order in which each is behind those that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Template {
    Base,
    Pointwise,
    Product,
    Tensor,
    Attention,
    Window,
    Convolution,
    ChannelsLast,
    Pool,
    Rows,
    Recurrent,
    RecurrentCores,
    RecurrentGradient,
    Training,
    Ctc,
}

impl Template {
    pub(super) const ALL: [(Template, &'static str); 15] = [
        (Template::Base, cuda_kernels::BASE),
        (Template::Pointwise, cuda_kernels::POINTWISE),
        (Template::Product, cuda_kernels::PRODUCT),
        (Template::Tensor, cuda_kernels::TENSOR),
        (Template::Attention, cuda_kernels::ATTENTION),
        (Template::Window, cuda_kernels::WINDOW),
        (Template::Convolution, cuda_kernels::CONVOLUTION),
        (Template::ChannelsLast, cuda_kernels::CHANNELS_LAST),
        (Template::Pool, cuda_kernels::POOL),
        (Template::Rows, cuda_kernels::ROWS),
        (Template::Recurrent, cuda_kernels::RECURRENT),
        (Template::RecurrentCores, cuda_kernels::RECURRENT_CORES),
        (Template::RecurrentGradient, cuda_kernels::RECURRENT_GRADIENT),
        (Template::Training, cuda_kernels::TRAINING),
        (Template::Ctc, cuda_kernels::CTC),
    ];
}

/// The implementation of a step, before functions have names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Chosen {
    Emitted(Emitted),
    Cudnn(CudnnPlan),
    Cublas(Product),
}

/// A step before functions have names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Draft {
    /// Its implementation.
    pub(super) chosen: Chosen,
    /// The layer of a library that does the same work, if there are both.
    pub(super) layer: Option<String>,
}

impl Draft {
    /// The code of a step with an implementation.
    pub(super) fn code_of(chosen: Chosen) -> Vec<u8> {
        Draft { chosen, layer: None }.code()
    }

    pub(super) fn code(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("steps are plain data")
    }
}

/// A block of threads along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Block {
    /// The number of threads.
    pub(super) threads: u32,
    /// Dynamic shared memory, as in [`cuda_driver::Launch`].
    pub(super) shared: Bytes,
}

impl Block {
    /// [`THREADS`] threads without dynamic shared memory.
    pub(super) const USUAL: Block = Block::of(THREADS);

    /// A number of threads without dynamic shared memory.
    pub(super) const fn of(threads: u32) -> Block {
        Block { threads, shared: Bytes::ZERO }
    }
}

/// A kernel in CUDA C, before it has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Emitted {
    pub(super) kind: KernelKind,
    /// C types and names.
    pub(super) parameters: Vec<(String, String)>,
    /// The text between the braces.
    pub(super) body: String,
    pub(super) grid: [u32; 3],
    pub(super) block: Block,
    /// As in [`cuda_driver::Launch`].
    pub(super) iterations: Option<u32>,
    pub(super) needs: Vec<Template>,
}

impl Emitted {
    /// The parameters, with the number of the launch if there are several.
    pub(super) fn all_parameters(&self) -> impl Iterator<Item = (String, String)> {
        let iteration = self.iterations.map(|_| (ITERATION.to_string(), "iteration".to_string()));
        self.parameters.clone().into_iter().chain(iteration)
    }
}

/// The grid of blocks for a number of elements, one for each thread.
pub(super) fn blocks(elements: usize) -> [u32; 3] {
    [(elements.max(1) as u32).div_ceil(THREADS), 1, 1]
}

/// A call of an emitted kernel that reads these operands.
pub(super) fn call(emitted: Emitted, label: String, operands: &[usize], in_place: &[usize]) -> Call {
    Call {
        kernel: emitted.kind.name(),
        label,
        code: Draft::code_of(Chosen::Emitted(emitted)),
        inputs: operands.iter().map(|&ix| CallInput::Value(ix)).collect(),
        workspace: Bytes::ZERO,
        in_place: in_place.iter().copied().collect(),
        slice: None,
    }
}

/// The extents in front of an axis, of it, and behind it.
pub(super) fn around(shape: &Shape, axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}
