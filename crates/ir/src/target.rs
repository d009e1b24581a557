//! [`Target`]: the one interface between passes and kernels.
//!
//! A target answers one question, [`Target::candidates`]: which kernels do the work of this node? Each [`Candidate`] has
//! the formats of its operands and result, its workspace, its modelled cost and its kernel calls. The formats in question
//! are those that the graph's values have ([`Formats::Given`]), or formats that a pass considers: another layout, int8 or
//! half-precision operands. So layouts, quantization, precision, fusion and memory budgets all choose from the same list,
//! and a new kernel is visible to each of them when its candidate is.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use types::{Bytes, DType, Layout, Tensor, WeightFormat};

use crate::{Graph, NodeId, ValueId};

/// The kernels of one kind of device.
pub trait Target {
    /// The name that plans carry, as in `cpu:x86-64-v4`, or `cpu:x86-64-v4+bf16` with the precision of stored values.
    fn name(&self) -> String;

    /// The alignment of buffers and constants.
    fn alignment(&self) -> Bytes;

    /// The dtype of values between kernels that support it: `f32`, `f16` or `bf16`.
    fn precision(&self) -> DType;

    /// The form in which constant weights of convolutions, products and embeddings of `f32` are stored
    /// ([`weight_operand`](crate::weight_operand)), if it is not `f32`.
    fn weight_format(&self) -> Option<WeightFormat> {
        None
    }

    /// The layout that some kernels are faster with than row-major, if there is one.
    fn layout(&self) -> Option<Layout>;

    /// The kernels that do the work of a node, best first: by measurement if there is one, otherwise by the model. For
    /// several nodes, each of which alone reads the result of the one before it: the kernels that do all of their work in
    /// one step and are faster than separate steps.
    ///
    /// Nodes whose result is a view ([`Reuse::Alias`](crate::Reuse::Alias)) need no kernel and are never queried with
    /// [`Formats::Given`].
    ///
    /// # Errors
    /// The reason that there is no kernel. If the query is about other formats than the given ones, the list may also be
    /// empty.
    fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel>;

    /// Checks a call whose operands have their sizes: in bytes, of inputs, outputs and workspace. A plan is written only of
    /// calls that pass.
    ///
    /// # Errors
    /// The kernel, the size that it requires and the one that it got.
    fn check_call(&self, _code: &[u8], _sizes: CallSizes) -> Result<(), String> {
        Ok(())
    }

    /// The modelled cost of converting a value between row-major and [`Target::layout`].
    fn relayout_cost(&self, graph: &Graph, value: ValueId) -> u64;
}

/// The formats in question and the memory that kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The formats of operands and result.
    pub formats: Formats,
    /// The limit for workspaces. A kernel that needs more takes as little as it can.
    pub workspace: Bytes,
    /// Workspace that is free at the node because the peak is elsewhere. Kernels that are faster in more workspace
    /// (split-K) take no more than this.
    pub slack: Bytes,
}

impl Query {
    /// Kernels for the formats that the graph has, with as much workspace as is fastest, and no slack.
    pub const GIVEN: Query = Query { formats: Formats::Given, workspace: UNLIMITED, slack: Bytes::ZERO };

    /// The same for other formats.
    pub const fn of(formats: Formats) -> Query {
        Query { formats, ..Query::GIVEN }
    }
}

/// No limit for workspaces.
pub const UNLIMITED: Bytes = Bytes(u64::MAX);

/// The reduced axis of an 8-bit integer matrix product must be a multiple of this: the products that one instruction adds.
pub const INT8_TERMS: usize = 4;

/// Formats of a node's operands and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// Those that the graph's values have.
    Given,
    /// The result in this layout; dtypes as given.
    Layout(Layout),
    /// 8-bit integer operands: a `u8` left one and a constant `i8` right one for products. The given ones may be floats.
    /// A target accepts any reduced axis; passes pad it to a multiple of [`INT8_TERMS`].
    Int8Operands,
    /// An 8-bit integer result; operands as given.
    Int8Result,
    /// An 8-bit integer residual that is added to an 8-bit integer result of 8-bit integer operands. The given node has none.
    Int8Residual,
    /// Operands and result in this half-precision dtype, as far as the kernel supports it. The given ones are `f32`.
    Half(DType),
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The dtype of its elements.
    pub dtype: DType,
    /// The order of its elements.
    pub layout: Layout,
}

impl Format {
    /// The format that a value has.
    pub fn of(graph: &Graph, value: ValueId) -> Format {
        Format { dtype: graph.ty(value).dtype, layout: graph.value(value).layout }
    }
}

/// A kernel, or several in sequence, for the work of a node.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The formats of the operands. Constant operands are packed and keep the format that they have.
    pub operands: SmallVec<[Format; 4]>,
    /// The format of the first result.
    pub result: Format,
    /// The formats of the other results.
    pub further: SmallVec<[Format; 2]>,
    /// The largest workspace of the calls.
    pub workspace: Bytes,
    /// The modelled time. Costs of one target have the same unit, and only their relations matter.
    pub cost: u64,
    /// Whether there is a faster kernel that needs slack ([`Query::slack`]).
    pub wants_slack: bool,
    /// The kernel calls, in order. Empty if the query is about several nodes, or about other formats than the graph has.
    pub calls: Vec<Call>,
    /// The kernel of another origin that was not taken, if there is one: an emitted kernel instead of a library's, or the
    /// reverse.
    pub rejected: Option<RejectedKernel>,
}

/// A kernel that does the same work as the one that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedKernel {
    /// Its name.
    pub kernel: &'static str,
    /// Its time in picoseconds, with the kernels that follow it.
    pub time: u64,
    /// The time of the kernel that was taken.
    pub taken_time: u64,
    /// Whether the choice follows a measurement on the GPU; otherwise it follows the modelled times.
    pub measured: bool,
}

impl Candidate {
    /// A candidate with the formats that a node's values have, without workspace, cost and calls.
    pub fn given(graph: &Graph, id: NodeId) -> Candidate {
        let node = graph.node(id);
        Candidate {
            operands: node.inputs.iter().map(|&input| Format::of(graph, input)).collect(),
            result: Format::of(graph, node.outputs[0]),
            further: node.outputs[1..].iter().map(|&output| Format::of(graph, output)).collect(),
            workspace: Bytes::ZERO,
            cost: 0,
            wants_slack: false,
            calls: Vec::new(),
            rejected: None,
        }
    }

    /// The candidates of a kernel that takes some operands in half precision, and gives its result in either precision.
    pub fn with_half_operands(graph: &Graph, id: NodeId, half: DType, operands: &[usize]) -> Vec<Candidate> {
        let mut single = Candidate::given(graph, id);
        operands.iter().for_each(|&ix| single.operands[ix].dtype = half);
        let mut to_half = single.clone();
        to_half.result.dtype = half;
        vec![single, to_half]
    }

    /// The candidate of a kernel whose floats are all in half precision, result included.
    pub fn in_half(graph: &Graph, id: NodeId, half: DType) -> Vec<Candidate> {
        let mut candidate = Candidate::given(graph, id);
        let formats = candidate.operands.iter_mut().chain([&mut candidate.result]);
        formats.filter(|format| format.dtype == DType::F32).for_each(|format| format.dtype = half);
        vec![candidate]
    }

    /// With calls, and the workspace that they need.
    #[must_use]
    pub fn with_calls(self, calls: Vec<Call>) -> Candidate {
        let workspace = calls.iter().map(|call| call.workspace).max().unwrap_or_default();
        Candidate { workspace, calls, ..self }
    }
}

/// Reason that a target has no kernel for a node. Callers add the node, its op and the target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoKernel(pub String);

/// The bytes of a call's operands.
#[derive(Clone, Copy, Debug)]
pub struct CallSizes<'a> {
    /// Of each input.
    pub inputs: &'a [u64],
    /// Of each output.
    pub outputs: &'a [u64],
    /// Of the workspace.
    pub workspace: u64,
}

/// A kernel call, before its operands have addresses.
#[derive(Clone, Debug)]
pub struct Call {
    /// The kernel's name.
    pub kernel: &'static str,
    /// A short description of the work, for reports.
    pub label: String,
    /// The kernel in the target's encoding.
    pub code: Vec<u8>,
    /// The operands.
    pub inputs: Vec<CallInput>,
    /// Scratch memory.
    pub workspace: Bytes,
    /// Operands of the node whose bytes the result may overwrite.
    pub in_place: SmallVec<[usize; 2]>,
    /// `Some(i)` for a call that only copies operand `i`: of a concatenation into its slice of the result, of an insertion the
    /// whole. The call falls away if the operand is in place.
    pub slice: Option<usize>,
}

impl Call {
    /// Whether this call only post-processes the previous call's result in place.
    pub fn is_postprocessing(&self) -> bool {
        matches!(self.inputs[..], [CallInput::Result])
    }
}

/// An operand of a call.
#[derive(Clone, Debug)]
pub enum CallInput {
    /// An operand of the node, as it is.
    Value(usize),
    /// A constant operand of the node, packed for the kernel.
    Packed {
        /// The operand.
        input: usize,
        /// How.
        pack: Pack,
    },
    /// The node's own result, which the previous call has written. It is the only operand of such a call.
    Result,
}

/// A rule that turns a constant into the bytes that a kernel reads. The bytes are the same each time.
pub trait Packer: Send + Sync {
    /// The size of the packed bytes.
    fn size(&self, tensor: &Tensor) -> Bytes;

    /// The number of parts of the packed bytes, at least one. Each can be made alone.
    fn parts(&self, _tensor: &Tensor) -> usize {
        1
    }

    /// The bytes of a part. Those of all parts, one after the other, are the packed constant.
    fn pack(&self, tensor: &Tensor, part: usize) -> Vec<u8>;
}

/// How a constant becomes the bytes that a kernel reads. Applied when an executable is written, not when kernels are
/// compared.
#[derive(Clone)]
pub struct Pack {
    packer: Arc<dyn Packer>,
    code: Option<Arc<[u8]>>,
    dtype: Option<DType>,
}

impl Pack {
    /// By a rule.
    pub fn new(packer: impl Packer + 'static) -> Pack {
        Pack { packer: Arc::new(packer), code: None, dtype: None }
    }

    /// The same, with the target's encoding of the rule: with it the constant can be packed elsewhere.
    #[must_use]
    pub fn with_code(self, code: &[u8]) -> Pack {
        Pack { code: Some(code.into()), ..self }
    }

    /// The same, to elements of another dtype than the constant's.
    #[must_use]
    pub fn to_dtype(self, dtype: Option<DType>) -> Pack {
        Pack { dtype, ..self }
    }

    /// The dtype of the packed elements, if it is not that of the constant.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The target's encoding of the rule, if it has one.
    pub fn code(&self) -> Option<&[u8]> {
        self.code.as_deref()
    }

    /// The rule.
    pub fn packer(&self) -> &dyn Packer {
        &*self.packer
    }
}

impl fmt::Debug for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pack")
    }
}
