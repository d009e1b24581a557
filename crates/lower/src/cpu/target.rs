//! [`CpuTarget`]: the candidates of CPU kernels.

use cpu::{Isa, Kernel, Level, PackedConv, Sizes};
use ir::{
    CallSizes, Candidate, Formats, Graph, INT8_TERMS, NoKernel, Node, NodeId, Op, Query, Target, ValueId,
    weight_operand,
};
use smallvec::SmallVec;
use types::{Bytes, DType, Layout, WeightFormat};

use super::select::select;
use super::times::Times;
use super::tuned::{Tuned, images, of_images};
use super::{blocked, bottleneck, costs, half_precision, training};
use crate::NodeView;

/// Plans for CPUs. Packed weights are the same for all ISAs; the ISA is chosen at `open`.
#[derive(Clone, Debug)]
pub struct CpuTarget {
    /// The processors.
    pub level: Level,
    /// Whether Winograd's algorithms are excluded. They need fewer multiplications for 3 x 3 convolutions, with some
    /// more rounding: about 1e-5 of the largest result.
    pub exact: bool,
    /// Measured times of kernels; those of all others are modelled.
    pub tuned: Tuned,
    /// The dtype of values between kernels that support it: `f32`, `f16` or `bf16`.
    pub dtype: DType,
    /// The form of constant weights of convolutions, products and embeddings of `f32`, if it is not `f32`.
    pub weights: Option<WeightFormat>,
    /// The number of images that weights are read for at once, if it is not the graph's own batch: the smallest of
    /// several batches, so that all choose alike and share their packed weights.
    pub images: Option<usize>,
}

impl CpuTarget {
    /// Any processor of this machine's architecture, or of x86-64 if there are no kernels for it.
    pub fn new() -> CpuTarget {
        let level = Level::here().unwrap_or(Level::ALL[0]);
        CpuTarget { level, exact: false, tuned: Tuned::default(), dtype: DType::F32, weights: None, images: None }
    }
}

impl Default for CpuTarget {
    fn default() -> CpuTarget {
        CpuTarget::new()
    }
}

impl Target for CpuTarget {
    fn name(&self) -> String {
        match self.dtype {
            DType::F32 => self.level.name.to_string(),
            dtype => format!("{}+{dtype}", self.level.name),
        }
    }

    fn alignment(&self) -> Bytes {
        // A cache line, and the widest vector.
        Bytes(64)
    }

    fn precision(&self) -> DType {
        self.dtype
    }

    fn weight_format(&self) -> Option<WeightFormat> {
        self.weights
    }

    fn layout(&self) -> Option<Layout> {
        Some(blocked::LAYOUT)
    }

    fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel> {
        let &[id] = nodes else {
            let workspace = bottleneck::fused_workspace(graph, nodes, self.weights);
            let candidate = |workspace| Candidate { workspace, ..Candidate::given(graph, nodes[nodes.len() - 1]) };
            return Ok(workspace.map(candidate).into_iter().collect());
        };
        let node = graph.node(id);
        let given_if = |has_kernel: bool| has_kernel.then(|| Candidate::given(graph, id)).into_iter();
        match query.formats {
            Formats::Given => self.given_candidates(graph, id, query).map_err(NoKernel),
            Formats::Layout(layout) => Ok(costs::candidates_in(graph, id, layout, query, self)),
            Formats::Int8Operands => Ok(given_if(multiplies_int8(graph, node))
                .map(|mut candidate| {
                    let int8 = [DType::U8, DType::I8];
                    candidate.operands.iter_mut().zip(int8).for_each(|(operand, dtype)| operand.dtype = dtype);
                    candidate
                })
                .collect()),
            Formats::Int8Result => Ok(given_if(writes_int8(graph, node))
                .map(|mut candidate| {
                    candidate.result.dtype = DType::U8;
                    candidate
                })
                .collect()),
            Formats::Int8Residual => Ok(given_if(adds_int8(graph, node)).collect()),
            Formats::Half(half) => Ok(half_precision::candidates(graph, id, half)),
        }
    }

    fn check_call(&self, code: &[u8], sizes: CallSizes) -> Result<(), String> {
        let kernel: Kernel = postcard::from_bytes(code).map_err(|error| format!("unknown kernel: {error}"))?;
        let found = Sizes {
            inputs: SmallVec::from_slice(sizes.inputs),
            outputs: SmallVec::from_slice(sizes.outputs),
            workspace: sizes.workspace,
        };
        kernel.check_sizes(&found).map_err(|mismatch| mismatch.to_string())
    }

    fn relayout_cost(&self, graph: &Graph, value: ValueId) -> u64 {
        costs::relayout_time(graph, value, self)
    }
}

impl CpuTarget {
    /// The model of times. It depends on the level alone, so that the same input gives the same executable on any machine: a
    /// level that covers processors with and without AVX-512 has the times of AVX2.
    pub(super) fn times(&self) -> &'static Times {
        Times::of(if self.level == Level::ALL[0] { Isa::Avx2 } else { self.level.isa })
    }

    /// The time of a kernel in picoseconds, measured if it is known, otherwise modelled; `None` if neither. Proportional to the
    /// number of images if weights are read for a given number, so that plans for several batches choose alike.
    pub(super) fn time(&self, kernel: &Kernel) -> Option<u64> {
        let batch = images(kernel);
        if let Some(time) = self.tuned.get(kernel) {
            return Some(time.saturating_mul(batch.unwrap_or(1) as u64));
        }
        match (self.images, batch) {
            (Some(images), Some(batch)) if images != batch && 0 < images => {
                let time = self.times().of_kernel(&of_images(kernel, images))?;
                Some((u128::from(time) * batch as u128 / images as u128) as u64)
            }
            _ => self.times().of_kernel(kernel),
        }
    }

    /// Sorts kernels of a node by their times. Winograd's algorithm with the largest tiles rounds more and is a choice by
    /// measurement alone. Kernels without a time are left out if others have one.
    pub(super) fn fastest_first<T>(&self, kernels: Vec<T>, kernel: impl Fn(&T) -> Kernel) -> Vec<T> {
        let time = |item: T| {
            let kernel = kernel(&item);
            let rounds_more = matches!(&kernel, Kernel::Winograd(kernel) if 4 < kernel.tile)
                || matches!(&kernel, Kernel::DynamicConv(dynamic) if matches!(&dynamic.conv, PackedConv::Winograd(kernel) if 4 < kernel.tile));
            (!rounds_more || self.tuned.get(&kernel).is_some()).then(|| (self.time(&kernel).unwrap_or(u64::MAX), item))
        };
        let mut timed: Vec<(u64, T)> = kernels.into_iter().filter_map(time).collect();
        timed.sort_by_key(|&(time, _)| time);
        let least = timed.first().map_or(0, |&(time, _)| time);
        timed.retain(|&(time, _)| time == least || time < u64::MAX);
        timed.into_iter().map(|(_, item)| item).collect()
    }

    /// The stored form of a node's weights, if it is not theirs.
    pub(super) fn weights_of(&self, graph: &Graph, node: &Node) -> Option<WeightFormat> {
        self.weights.filter(|_| weight_operand(graph, node).is_some())
    }

    fn given_candidates(&self, graph: &Graph, id: NodeId, query: &Query) -> Result<Vec<Candidate>, String> {
        if let Some(layout) = blocked::unsupported_layout(graph, graph.node(id)) {
            return Err(format!("a value in layout {layout}"));
        }
        let is_blocked = training::works_on_blocks(graph, graph.node(id));
        let layout = if is_blocked { blocked::LAYOUT } else { Layout::RowMajor };
        let ways = select(&NodeView::new(graph, id, query), self)?;
        let costs = costs::costs(graph, id, layout, query, self);
        let cost = |way: usize| costs.get(way).or(costs.last()).map_or(0, |&(cost, _)| cost);
        let given = |(way, calls)| Candidate { cost: cost(way), ..Candidate::given(graph, id) }.with_calls(calls);
        Ok(ways.into_iter().enumerate().map(given).collect())
    }
}

/// The least depth of an int8 product that is padded to whole groups; below, an exact `f32` product is faster.
const PADDED_TERMS_MIN: usize = 64;

/// Whether there is a kernel for the node with int8 operands. The given ones may be floats.
fn multiplies_int8(graph: &Graph, node: &Node) -> bool {
    if let Op::Conv(conv) = &node.op {
        return blocked::multiplies_int8(graph, node, conv);
    }
    if let Op::Pool(pool) = &node.op {
        return blocked::has_pool_kernel(graph, node, pool);
    }
    if !matches!(node.op, Op::MatMul(_)) {
        return false;
    }
    let (a, b) = (graph.ty(node.inputs[0]), graph.value(node.inputs[1]));
    // A given int8 operand must be a constant; a float one is made of a constant.
    let is_constant = b.ty.dtype == DType::F32 || (b.ty.dtype == DType::I8 && b.tensor().is_some());
    let &[terms, _] = &b.ty.shape[..] else { return false };
    let is_worth_padding = terms.is_multiple_of(INT8_TERMS) || PADDED_TERMS_MIN <= terms;
    is_worth_padding
        && terms.next_multiple_of(INT8_TERMS) <= blocked::INT8_TERMS_MAX
        && is_constant
        && a.dtype != DType::I8
}

/// Whether the kernel of an int8 product can add an int8 residual to its results.
fn adds_int8(graph: &Graph, node: &Node) -> bool {
    if let Op::Conv(conv) = &node.op { blocked::adds_int8(graph, node, conv) } else { false }
}

/// Whether the kernel of a product of floats can write its results as int8.
fn writes_int8(graph: &Graph, node: &Node) -> bool {
    if let Op::Conv(conv) = &node.op {
        return blocked::writes_int8(graph, node, conv);
    }
    let is_matrix = |value: ValueId| graph.value(value).tensor().is_some_and(|tensor| tensor.shape().rank() == 2);
    matches!(node.op, Op::MatMul(_)) && is_matrix(node.inputs[1])
}

#[cfg(test)]
mod tests {
    use ir::ops::ConvWeightGradient;
    use types::{Scope, Shape};

    use super::*;

    #[test]
    fn selected_weight_gradient_has_the_time_of_its_layout() {
        let target = CpuTarget::new();
        let cost = |layout: Layout, formats: Formats| {
            let mut graph = Graph::new("gradient");
            let x = graph.add_input("x", DType::F32, Shape::from([8, 24, 16, 16]));
            let dy = graph.add_input("dy", DType::F32, Shape::from([8, 40, 16, 16]));
            let op = ConvWeightGradient {
                stride: [1; 2].into_iter().collect(),
                dilation: [1; 2].into_iter().collect(),
                pad: [[1; 2]; 2].into_iter().collect(),
                groups: 1,
                kernel: [3; 2].into_iter().collect(),
            };
            [x, dy].into_iter().for_each(|value| graph.value_mut(value).layout = layout);
            let dw = graph.add1(op.into(), &[x, dy], Scope::new("gradient")).expect("the types fit");
            let node = graph.value(dw).producer().expect("it was added");
            target.candidates(&graph, &[node], &Query::of(formats)).expect("there is a kernel")[0].cost
        };
        for layout in [Layout::RowMajor, blocked::LAYOUT] {
            assert_eq!(cost(layout, Formats::Given), cost(layout, Formats::Layout(layout)));
        }
        assert_ne!(cost(Layout::RowMajor, Formats::Given), cost(blocked::LAYOUT, Formats::Given));
    }

    #[test]
    fn kernel_without_a_time_is_left_out_if_another_has_one() {
        let target = CpuTarget::new();
        let timed: Kernel =
            cpu::Reorder { batch: 1, channels: 3, plane: 5, to_blocked: true, stored: cpu::StorageType::F32 }.into();
        let untimed: Kernel = cpu::LayerNorm {
            rows: 2,
            columns: 3,
            epsilon: 1e-5,
            scale: false,
            bias: false,
            stored: cpu::StorageType::F32,
        }
        .into();
        assert!(target.time(&timed).is_some() && target.time(&untimed).is_none());
        let chosen = |kernels: Vec<Kernel>| target.fastest_first(kernels, Kernel::clone);
        assert_eq!(chosen(vec![untimed.clone(), timed.clone()]), std::slice::from_ref(&timed));
        assert_eq!(chosen(vec![untimed.clone()]), std::slice::from_ref(&untimed));
    }
}
