//! [`CudaTarget`]: the candidates of library calls and emitted kernels.

use std::collections::BTreeMap;
use std::rc::Rc;

use cuda_driver::MathMode;
use cuda_driver::cublas::Product;
use cuda_driver::cudnn::Planner;
use ir::ops::ReduceKind;
use ir::{Candidate, Formats, Graph, NoKernel, NodeId, Op, Query, Target, UNLIMITED, ValueId};
use types::{Bytes, DType, Layout};

use super::emit::{ALIGNMENT, ELEMENTS_MAX};
use super::layout::{ConvKernel, FOUR_CHANNELS};
use super::select::Selected;
use super::tiling::TensorCores;
use super::{CUDNN_CONV, cublas_matmul, cudnn_conv, layout, windows};
use crate::NodeView;
use crate::half_precision::{follows, is_of_numbers};

/// The arithmetic and limits of cuBLASLt products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cublas {
    /// How sums of products of `f32` may be computed.
    pub math: MathMode,
    /// The most workspace that a product has.
    pub workspace: Bytes,
    /// Which algorithm is taken for a product, where that is not the first one.
    pub preferred: Rc<BTreeMap<Product, u32>>,
}

/// Plans for GPUs of one architecture.
#[derive(Clone, Debug)]
pub struct CudaTarget {
    pub(super) arch: &'static str,
    pub(super) dtype: DType,
    /// Whether operands of `f32` are rounded where tensor cores can multiply them.
    pub(super) rounds: bool,
    pub(super) cudnn: Option<Rc<Planner>>,
    pub(super) cublas: Option<Cublas>,
    /// The least number of large tiles that groups of warps multiply.
    groups_from: usize,
    /// Which kernel a node has if a library and an emitted one can do its work.
    pub(super) origin: KernelOrigin,
    /// By layer of a library the measured times of the library and of an emitted kernel, in picoseconds.
    pub(super) measured: Rc<BTreeMap<String, [u64; 2]>>,
}

/// Which kernel does a node's work if a library and an emitted kernel can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelOrigin {
    /// The faster one: as measured, or else as modelled.
    #[default]
    Faster,
    /// The library's.
    Library,
    /// The emitted one.
    Emitted,
}

/// The default on architectures that have the instructions: fewer tiles do not occupy the multiprocessors.
const GROUPS_FROM: usize = 96;

impl CudaTarget {
    /// The supported architectures by their NVRTC names: two of Ampere, Ada, Hopper and four of Blackwell.
    pub const ARCHITECTURES: [&'static str; 8] =
        ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_110", "sm_120", "sm_121"];

    /// The target with a name, as `cuda:sm_90`.
    pub fn named(name: &str) -> Option<CudaTarget> {
        let arch = CudaTarget::ARCHITECTURES.into_iter().find(|arch| name.strip_prefix("cuda:") == Some(arch))?;
        let groups_from = if arch == "sm_90" { GROUPS_FROM } else { usize::MAX };
        Some(CudaTarget {
            arch,
            dtype: DType::F32,
            rounds: false,
            cudnn: None,
            cublas: None,
            groups_from,
            origin: KernelOrigin::Faster,
            measured: Rc::default(),
        })
    }

    /// With `wgmma` for products whose result has at least this number of tiles of 128 x 128, on an architecture that has
    /// the instruction: `sm_90`.
    #[must_use]
    pub fn with_groups_from(self, tiles: usize) -> CudaTarget {
        CudaTarget { groups_from: if self.arch == "sm_90" { tiles } else { usize::MAX }, ..self }
    }

    /// With results between kernels, and the weights of products and convolutions, stored as `f16`, `bf16` or `f32`.
    ///
    /// # Panics
    /// Another dtype.
    #[must_use]
    pub fn storing(self, dtype: DType) -> CudaTarget {
        assert!(dtype == DType::F32 || dtype.is_half(), "nothing is stored as {dtype} between kernels");
        CudaTarget { dtype, ..self }
    }

    /// With operands of emitted products and convolutions rounded to eleven bits if tensor cores can multiply them
    /// (TF32). Stored values and sums stay `f32`. Libraries have a [`MathMode`] of their own.
    ///
    /// # Panics
    /// The precision is half precision, which tensor cores multiply without rounding.
    #[must_use]
    pub fn rounding(self) -> CudaTarget {
        assert!(self.dtype == DType::F32, "{} is not rounded", self.dtype);
        CudaTarget { rounds: true, ..self }
    }

    /// With cuDNN for the convolutions that it has engines for, planned for the planner's GPU.
    #[must_use]
    pub fn with_cudnn(self, planner: Rc<Planner>) -> CudaTarget {
        CudaTarget { cudnn: Some(planner), ..self }
    }

    /// With cuBLASLt for the products that it supports. `workspace` is the limit for each; the default is the size that
    /// NVIDIA recommends for the architecture (`cublasSetWorkspace`): 32 MiB from `sm_90` on, 4 MiB before.
    #[must_use]
    pub fn with_cublas(self, math: MathMode, workspace: Option<Bytes>) -> CudaTarget {
        let recommended = if self.arch.starts_with("sm_8") { Bytes(4 << 20) } else { Bytes(32 << 20) };
        let cublas = Cublas { math, workspace: workspace.unwrap_or(recommended), preferred: Rc::default() };
        CudaTarget { cublas: Some(cublas), ..self }
    }

    /// With the algorithms that were measured to be the fastest, by product with algorithm 0.
    #[must_use]
    pub fn preferring(mut self, algorithms: BTreeMap<Product, u32>) -> CudaTarget {
        if let Some(cublas) = &mut self.cublas {
            cublas.preferred = Rc::new(algorithms);
        }
        self
    }

    /// With kernels of one origin wherever there are two, to compare both.
    #[must_use]
    pub fn taking(self, origin: KernelOrigin) -> CudaTarget {
        CudaTarget { origin, ..self }
    }

    /// With the measured times of libraries and of emitted kernels, in picoseconds, by layer ([`library_layer`](super::library_layer)).
    #[must_use]
    pub fn with_measured(self, times: BTreeMap<String, [u64; 2]>) -> CudaTarget {
        CudaTarget { measured: Rc::new(times), ..self }
    }

    /// Reason that cuBLASLt does not compute a product; `None` if it does, or if it is not enabled.
    pub fn refused_by_cublas(&self, graph: &Graph, id: NodeId) -> Option<String> {
        let (Op::MatMul(product), Some(cublas)) = (&graph.node(id).op, &self.cublas) else { return None };
        cublas_matmul::calls(&NodeView::new(graph, id, &Query::GIVEN), product, cublas).err()
    }

    /// Reason that cuDNN does not compute a convolution; `None` if it does, or if it is not enabled.
    pub fn refused_by_cudnn(&self, graph: &Graph, id: NodeId) -> Option<String> {
        let (Op::Conv(conv), Some(planner)) = (&graph.node(id).op, &self.cudnn) else { return None };
        let view = NodeView::new(graph, id, &Query::GIVEN);
        match cudnn_conv::calls(&view, conv, planner, view.layout) {
            Err(reason) => Some(reason),
            Ok(_) => cudnn_conv::misaligned(&view),
        }
    }

    /// The architecture, as NVRTC calls it.
    pub fn arch(&self) -> &'static str {
        self.arch
    }
}

impl Target for CudaTarget {
    fn name(&self) -> String {
        match self.dtype {
            DType::F32 if self.rounds => format!("cuda:{}+tf32", self.arch),
            DType::F32 => format!("cuda:{}", self.arch),
            stored => format!("cuda:{}+{stored}", self.arch),
        }
    }

    fn alignment(&self) -> Bytes {
        ALIGNMENT
    }

    fn precision(&self) -> DType {
        self.dtype
    }

    fn layout(&self) -> Option<Layout> {
        // Tensor cores are fastest on channels-last values, and kernels for f32 on row-major ones.
        let library_rounds = self.cudnn.as_ref().is_some_and(|planner| planner.math() == MathMode::Tf32);
        (self.dtype.is_half() || self.rounds || library_rounds).then_some(Layout::ChannelsLast)
    }

    fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel> {
        // No kernel does the work of several nodes.
        let &[id] = nodes else { return Ok(Vec::new()) };
        match query.formats {
            Formats::Given => Ok(vec![self.given_candidate(graph, id, query).map_err(NoKernel)?]),
            Formats::Layout(layout) => Ok(self.candidate_in(graph, id, layout).into_iter().collect()),
            Formats::Int8Operands | Formats::Int8Result | Formats::Int8Residual => Ok(Vec::new()),
            Formats::Half(half) => Ok(half_candidates(graph, id, half)),
        }
    }

    fn relayout_cost(&self, graph: &Graph, value: ValueId) -> u64 {
        layout::relayout_time(graph, value)
    }
}

impl CudaTarget {
    fn given_candidate(&self, graph: &Graph, id: NodeId, query: &Query) -> Result<Candidate, String> {
        let node = graph.node(id);
        let mut values = node.inputs.iter().chain(&node.outputs);
        if let Some(&value) = values.find(|&&value| ELEMENTS_MAX < graph.ty(value).shape.elements()) {
            return Err(format!("{} has more than 2^31 elements", graph.ty(value)));
        }
        if let Some(layout) = layout::unsupported_layout(graph, node) {
            return Err(format!("a value in layout {layout}"));
        }
        let view = NodeView::new(graph, id, query);
        let Selected { calls, rejected } = self.select(&view)?;
        let candidate = Candidate { rejected, ..Candidate::given(graph, id).with_calls(calls) };
        let is_product = matches!(node.op, Op::Conv(_) | Op::ConvWeightGradient(_) | Op::MatMul(_));
        if !is_product || query.slack != Bytes::ZERO {
            return Ok(candidate);
        }
        // Split-K: the same kernel with workspace.
        let with_slack = self.select(&NodeView { slack: UNLIMITED, ..view })?;
        let workspace = with_slack.calls.iter().map(|call| call.workspace).max().unwrap_or_default();
        Ok(Candidate { wants_slack: candidate.workspace < workspace, ..candidate })
    }

    pub(super) fn tensor_cores(&self) -> TensorCores {
        TensorCores { stored: self.dtype, rounds: self.rounds, groups_from: self.groups_from }
    }

    /// Who computes a convolution with a result in a layout.
    fn conv_kernel(&self, graph: &Graph, id: NodeId, layout: Layout) -> Option<ConvKernel> {
        let view = NodeView { layout, ..NodeView::new(graph, id, &Query::GIVEN) };
        let calls = self.select(&view).ok()?.calls;
        Some(match calls[0].kernel {
            CUDNN_CONV => ConvKernel::Cudnn(calls[0].workspace.0),
            _ => ConvKernel::Emitted,
        })
    }

    /// The candidate for a node whose result has a layout.
    fn candidate_in(&self, graph: &Graph, id: NodeId, layout: Layout) -> Option<Candidate> {
        let node = graph.node(id);
        let conv = if let Op::Conv(_) = &node.op { self.conv_kernel(graph, id, layout) } else { None };
        let cost = layout::time(graph, node, layout, conv)?;
        let mut candidate = Candidate { cost, ..Candidate::given(graph, id) };
        let is_emitted = layout == Layout::ChannelsLast && conv == Some(ConvKernel::Emitted);
        candidate.result.layout = layout;
        for (ix, operand) in candidate.operands.iter_mut().enumerate() {
            let is_last = layout == Layout::ChannelsLast && layout::reads_last(graph, node, ix);
            operand.layout = if is_last { Layout::ChannelsLast } else { Layout::RowMajor };
        }
        if let (true, Op::Conv(conv)) = (is_emitted, &node.op)
            && windows::reads_four_channels(&NodeView::new(graph, id, &Query::GIVEN), conv)
        {
            candidate.operands[0].layout = FOUR_CHANNELS;
            candidate.cost += layout::relayout_time(graph, node.inputs[0]);
        }
        Some(candidate)
    }
}

/// The candidates for a node with `f32` values whose operands or result are in half precision.
fn half_candidates(graph: &Graph, id: NodeId, half: DType) -> Vec<Candidate> {
    let node = graph.node(id);
    if !is_of_numbers(graph, node) {
        return Vec::new();
    }
    if matches!(node.op, Op::Conv(_) | Op::ConvTranspose(_) | Op::MatMul(_)) {
        return Candidate::with_half_operands(graph, id, half, &[0, 1]);
    }
    let follows = if let Op::Reduce(reduce) = &node.op {
        // Sums leave the range of half precision.
        matches!(reduce.kind, ReduceKind::Mean | ReduceKind::Max | ReduceKind::Min)
    } else {
        matches!(node.op, Op::Pool(_) | Op::Attention(_)) || follows(graph, node)
    };
    if follows { Candidate::in_half(graph, id, half) } else { Vec::new() }
}
