//! Lowering: a graph becomes kernel calls over buffers, for a [`Target`].
//!
//! What is the same for every target lives here: which values share bytes (`alias`), when buffers live, where constants
//! lie, which tag every byte carries. What differs lives in one folder a target: which kernel does a node's work, how its
//! weights are packed, how much workspace it takes.
//!
//! [`lower`] yields a [`Plan`] whose buffers have sizes and lifetimes but no offsets yet, and the bytes of its constants.
//!
//! ```
//! use ir::{Graph, Op, ops::Unary};
//! use prestow_lower::{cpu::CpuTarget, lower};
//! use types::{DType, Scope, Shape, pointwise};
//!
//! let mut graph = Graph::new("one");
//! let x = graph.add_input("x", DType::F32, Shape::from([100]));
//! let y = graph.add1(Op::Unary(Unary(pointwise::Unary::Relu)), &[x], Scope::new("relu")).unwrap();
//! graph.set_outputs(vec![("y".into(), y)]);
//! let plan = lower(&graph, &CpuTarget::new()).unwrap().plan;
//! assert_eq!(plan.steps.len(), 1);
//! assert_eq!(plan.buffers.len(), 1, "the result takes the bytes of the input");
//! ```

mod alias;
pub mod cpu;
pub mod cuda;
mod halves;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use ir::{Graph, HalfSupport, Node, NodeId, Reuse, ValueDef, ValueId};
use plan::{
    Arena, Buffer, BufferIx, Constant, ConstantIx, Initial, Operand, Persistence, Place, Plan, Port, RefusedSharing,
    StatePort, Step, ValueSpan,
};
use smallvec::SmallVec;
use types::{Bytes, DType, Layout, Map, Role, Scope, Tag, Tensor};

use crate::alias::{Classes, Home};

/// What is compiled for: the choice of kernels.
pub trait Target {
    /// The name that plans carry, as in `cpu:x86-64-v4`, or `cpu:x86-64-v4+bf16` with what is stored between kernels.
    fn name(&self) -> String;

    /// What buffers and constants are aligned to.
    fn alignment(&self) -> Bytes;

    /// The kernel calls that do a node's work, in order. Nodes whose result is an alias are not asked for.
    ///
    /// A kernel that can do with less workspace takes no more than `scratch`, or the least it can.
    ///
    /// # Errors
    /// What the target has no kernel for, with the node's scope.
    fn calls(&self, graph: &Graph, node: NodeId, scratch: Bytes) -> Result<Vec<Call>, LowerError>;

    /// The layout that some kernels like better than row-major, where there is one.
    fn blocked(&self) -> Option<Layout> {
        None
    }

    /// The modelled time of a node whose result has a layout, in picoseconds; none where there is no kernel for that.
    fn time(&self, _graph: &Graph, _node: NodeId, layout: Layout) -> Option<u64> {
        (layout == Layout::RowMajor).then_some(0)
    }

    /// Whether a node with a blocked result reads this operand blocked.
    fn reads_blocked(&self, _graph: &Graph, _node: NodeId, _input: usize) -> bool {
        false
    }

    /// What is stored between kernels where there are kernels for it: `f32`, `f16` or `bf16`.
    fn dtype(&self) -> DType {
        DType::F32
    }

    /// Whether there is a kernel for a product like this one of bytes: a left factor of `u8`, a right one of `i8` that is known
    /// before the run; or for a maximum of bytes. The node's operands may still be numbers.
    fn multiplies_bytes(&self, _graph: &Graph, _node: NodeId) -> bool {
        false
    }

    /// Whether the kernel of a product of `f32` can write its results as bytes.
    fn writes_bytes(&self, _graph: &Graph, _node: NodeId) -> bool {
        false
    }

    /// How there are kernels for a node of `f32` values that take them as [`Target::dtype`].
    fn halves(&self, _graph: &Graph, _node: NodeId) -> HalfSupport {
        HalfSupport::None
    }

    /// The scratch of convolutions in a row, each read by the next alone and in their final layouts, as one step; none where
    /// that is not faster.
    fn fuses(&self, _graph: &Graph, _run: &[NodeId]) -> Option<Bytes> {
        None
    }

    /// The target with kernels that are faster in workspace, where the arena has that to spare in the order in which the graph's
    /// nodes are; none where there are no such kernels.
    fn filling(&self) -> Option<Box<dyn Target>> {
        None
    }

    /// The modelled time it takes to turn a value from one layout to the other, in picoseconds.
    fn relayout_time(&self, _graph: &Graph, _value: ValueId) -> u64 {
        0
    }
}

/// A kernel call, before anything has a place.
#[derive(Clone, Debug)]
pub struct Call {
    /// The kernel's name.
    pub kernel: &'static str,
    /// What it does, for eyes.
    pub label: String,
    /// The kernel in the target's encoding.
    pub code: Vec<u8>,
    /// What it reads.
    pub inputs: Vec<CallInput>,
    /// Scratch it needs.
    pub workspace: Bytes,
    /// Operands of the node whose bytes its result may take.
    pub in_place: SmallVec<[usize; 2]>,
    /// `Some(i)` for a call that only puts operand `i` of the node where it belongs in the result; it falls away where
    /// the operand is there already.
    pub part: Option<usize>,
}

impl Call {
    /// Whether it goes on with the result of the call in front of it, in place, and reads nothing else.
    fn goes_on(&self) -> bool {
        matches!(self.inputs[..], [CallInput::Result])
    }
}

/// What a call reads.
#[derive(Clone, Debug)]
pub enum CallInput {
    /// An operand of the node, as it is.
    Value(usize),
    /// A known operand of the node, packed for the kernel.
    Packed {
        /// The operand.
        input: usize,
        /// How.
        pack: Pack,
    },
    /// The node's own result, as the call in front of this one has written it. It is all that the call reads.
    Result,
}

/// How a known tensor becomes the bytes that a kernel reads. Done when a plan is written, not when kernels are compared.
#[derive(Clone)]
pub struct Pack(Rc<PackFn>);

type PackFn = dyn Fn(&Tensor) -> Vec<u8>;

impl Pack {
    /// By a function, which gives the same bytes each time.
    pub fn new(pack: impl Fn(&Tensor) -> Vec<u8> + 'static) -> Pack {
        Pack(Rc::new(pack))
    }
}

impl fmt::Debug for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pack")
    }
}

/// Why a graph cannot be compiled for a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// There is no kernel for a node.
    #[error("node `{scope}`: {target} has no kernel for `{op}`: {reason}")]
    Unsupported {
        /// The node.
        scope: String,
        /// Its op.
        op: &'static str,
        /// The target.
        target: String,
        /// What about it has no kernel.
        reason: String,
    },
    /// There are no kernels for several nodes.
    #[error("{} nodes have no kernel:{}", .0.len(), .0.iter().map(|error| format!("\n  {error}")).collect::<String>())]
    Several(Vec<LowerError>),
}

/// A plan without offsets, and the bytes of its constants.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The plan; its buffers' offsets and its arena are yet to be decided.
    pub plan: Plan,
    /// The constants' section.
    pub constants: Vec<u8>,
}

/// As much workspace as kernels like best.
pub const FREE_SCRATCH: Bytes = Bytes(u64::MAX);

/// Lowers a graph for a target, with the kernels that are fastest.
///
/// # Errors
/// The first node that the target has no kernel for.
pub fn lower(graph: &Graph, target: &dyn Target) -> Result<Lowered, LowerError> {
    lower_within(graph, target, |_| FREE_SCRATCH)
}

/// Lowers a graph for a target; `scratch` is the most workspace that a node's kernels should take.
///
/// # Errors
/// The first node that the target has no kernel for.
pub fn lower_within(
    graph: &Graph,
    target: &dyn Target,
    scratch: impl Fn(NodeId) -> Bytes,
) -> Result<Lowered, LowerError> {
    let graph = &*state::with_copies(graph);
    let mut calls: Map<NodeId, Vec<Call>> = Map::new();
    for id in graph.nodes().keys() {
        calls.push(calls_of(graph, target, id, scratch(id))?);
    }
    let classes = alias::decide(graph, &calls);
    let mut writer = Writer::new(graph, target, classes);
    for (id, calls) in calls.iter() {
        calls.iter().for_each(|call| writer.step(id, call));
    }
    Ok(writer.finish())
}

/// The most bytes alive at once that a graph comes to when it is lowered, workspaces included; nothing is packed for it.
///
/// # Errors
/// The first node that the target has no kernel for.
pub fn peak(graph: &Graph, target: &dyn Target, scratch: Bytes) -> Result<Bytes, LowerError> {
    let graph = &*state::with_copies(graph);
    let mut calls: Map<NodeId, Vec<Call>> = Map::new();
    for id in graph.nodes().keys() {
        calls.push(calls_of(graph, target, id, scratch)?);
    }
    Ok(alias::peak(graph, &calls, target.alignment()))
}

/// Whether there are kernels for all nodes.
///
/// # Errors
/// All nodes that the target has no kernel for.
pub fn check(graph: &Graph, target: &dyn Target) -> Result<(), LowerError> {
    let refused = graph.nodes().keys().filter_map(|id| calls_of(graph, target, id, FREE_SCRATCH).err());
    let mut refused: Vec<LowerError> = refused.collect();
    match refused.len() {
        0 => Ok(()),
        1 => Err(refused.swap_remove(0)),
        _ => Err(LowerError::Several(refused)),
    }
}

/// The workspace of a node whose kernels should take no more than `scratch`.
///
/// # Errors
/// A node that the target has no kernel for.
pub fn workspace(graph: &Graph, target: &dyn Target, node: NodeId, scratch: Bytes) -> Result<Bytes, LowerError> {
    let calls = calls_of(graph, target, node, scratch)?;
    Ok(calls.iter().map(|call| call.workspace).max().unwrap_or_default())
}

fn calls_of(graph: &Graph, target: &dyn Target, id: NodeId, scratch: Bytes) -> Result<Vec<Call>, LowerError> {
    match graph.reuse(graph.node(id)) {
        Reuse::Alias { .. } => Ok(Vec::new()),
        _ => target.calls(graph, id, scratch),
    }
}

/// The bytes of a value.
pub(crate) fn size(graph: &Graph, value: ValueId) -> u64 {
    let value = graph.value(value);
    value.layout.size(&value.ty.shape, value.ty.dtype).0
}

/// What a value is called in reports: by the node that yields it, or by its own name.
fn name(graph: &Graph, value: ValueId) -> String {
    let data = graph.value(value);
    data.producer().map_or_else(|| data.name.clone(), |node| graph.node(node).scope.to_string())
}

/// Writes steps, and the buffers and constants they touch.
struct Writer<'a> {
    graph: &'a Graph,
    alignment: Bytes,
    classes: Classes,
    plan: Plan,
    constants: Vec<u8>,
    /// The buffer of a class, by its root.
    buffer_of: BTreeMap<ValueId, BufferIx>,
    /// Where among its buffer's values a value stands that some step touches.
    held_at: BTreeMap<ValueId, usize>,
    /// Constants already written: of a value, packed in some way (0: as it is).
    constant_of: BTreeMap<(ValueId, u64), ConstantIx>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph, target: &dyn Target, classes: Classes) -> Writer<'a> {
        let batch = graph.inputs().first().and_then(|&input| graph.ty(input).shape.first().copied()).unwrap_or(1);
        let plan = Plan {
            model: graph.name.clone(),
            target: target.name(),
            batch: batch as u64,
            parameters: graph.parameters(),
            flops: graph.flops(),
            arena: Arena { alignment: target.alignment(), ..Arena::default() },
            ..Plan::default()
        };
        let mut writer = Writer {
            graph,
            alignment: target.alignment(),
            classes,
            plan,
            constants: Vec::new(),
            buffer_of: BTreeMap::new(),
            held_at: BTreeMap::new(),
            constant_of: BTreeMap::new(),
        };
        for &input in graph.inputs() {
            let port = writer.port(&graph.value(input).name, input, 0);
            writer.plan.inputs.push(port);
        }
        for &state in graph.states() {
            let state = writer.state(state);
            writer.plan.states.push(state);
        }
        writer
    }

    fn step(&mut self, id: NodeId, call: &Call) {
        let node = self.graph.node(id);
        let at = self.plan.steps.len() as u32;
        let part = call.part.map(|part| (part, self.part_offset(node, part)));
        if let Some((part, offset)) = part
            && self.is_in_place(node.inputs[part], node.outputs[0], offset)
        {
            return;
        }
        let mut output = self.operand(node.outputs[0], at);
        if let Some((part, offset)) = part {
            output.offset += Bytes(offset);
            output.size = Bytes(size(self.graph, node.inputs[part]));
        }
        let inputs = call
            .inputs
            .iter()
            .map(|input| match input {
                CallInput::Value(ix) => self.operand(node.inputs[*ix], at),
                CallInput::Packed { input, pack } => self.packed(node.inputs[*input], pack),
                CallInput::Result => self.operand(node.outputs[0], at),
            })
            .collect();
        let mut outputs = vec![output];
        outputs.extend(node.outputs[1..].iter().map(|&output| self.operand(output, at)).collect::<Vec<_>>());
        let workspace = (call.workspace != Bytes::ZERO).then(|| {
            let tag = Tag { scope: node.scope.clone(), role: Role::Workspace };
            let ix = self.push_buffer(tag, call.workspace, at);
            Operand { place: Place::Buffer(ix), offset: Bytes::ZERO, size: call.workspace }
        });
        self.plan.steps.push(Step {
            scope: node.scope.clone(),
            kernel: call.kernel.to_string(),
            label: call.label.clone(),
            code: call.code.clone(),
            inputs,
            outputs,
            workspace,
            flops: if call.part.is_some() || call.goes_on() { 0 } else { self.graph.node_flops(node) },
        });
    }

    /// Where in a result made of contiguous parts an operand belongs, in bytes.
    fn part_offset(&self, node: &Node, part: usize) -> u64 {
        let Reuse::ConcatSlices(starts) = self.graph.reuse(node) else {
            unreachable!("only results made of contiguous parts have calls for them")
        };
        starts[part] as u64 * self.graph.ty(node.outputs[0]).dtype.size().0
    }

    /// Whether an operand lies `offset` bytes behind the start of a result.
    fn is_in_place(&self, operand: ValueId, result: ValueId, offset: u64) -> bool {
        match (self.classes.home(operand), self.classes.home(result)) {
            (Home::Buffer { root: a, offset: own }, Home::Buffer { root: b, offset: start }) => {
                a == b && own == start + offset
            }
            _ => false,
        }
    }

    fn finish(mut self) -> Lowered {
        let last = self.plan.steps.len().saturating_sub(1) as u32;
        let graph = self.graph;
        for &state in graph.states() {
            self.operand(state, last);
        }
        for output in graph.results() {
            let port = self.port(&output.name, output.value, last);
            self.plan.outputs.push(port);
        }
        self.note_refusals();
        self.plan.constants_size = Bytes(self.constants.len() as u64);
        Lowered { plan: self.plan, constants: self.constants }
    }

    fn port(&mut self, name: &str, value: ValueId, step: u32) -> Port {
        let data = self.graph.value(value);
        let (dtype, shape, layout) = (data.ty.dtype, data.ty.shape.clone(), data.layout);
        Port { name: name.to_string(), dtype, shape, layout, operand: self.operand(value, step) }
    }

    /// A state, whose buffer lives through the whole run.
    fn state(&mut self, value: ValueId) -> StatePort {
        let ValueDef::State { initial, .. } = &self.graph.value(value).source else {
            unreachable!("a verified graph lists its states")
        };
        let bytes = initial.to_le_bytes();
        let initial = match bytes.iter().all(|&byte| byte == 0) {
            true => Initial::Zeros,
            false => Initial::Constant(self.constant(value, 0, &bytes)),
        };
        let port = self.port(&self.graph.value(value).name, value, 0);
        if let Place::Buffer(ix) = port.operand.place {
            self.plan.buffers[ix.0 as usize].persistence = Persistence::Session;
        }
        StatePort { port, initial }
    }

    /// Where a value lies; its buffer lives at `step`.
    fn operand(&mut self, value: ValueId, step: u32) -> Operand {
        let length = Bytes(size(self.graph, value));
        match self.classes.home(value) {
            Home::Known { value: known, offset } => {
                let tensor = self.graph.value(known).tensor().expect("a known value holds a tensor").clone();
                let ix = self.constant(known, 0, &tensor.to_le_bytes());
                Operand { place: Place::Constant(ix), offset: Bytes(offset), size: length }
            }
            Home::Buffer { root, offset } => {
                let ix = match self.buffer_of.get(&root) {
                    Some(&ix) => ix,
                    None => {
                        let ix = self.push_buffer(self.tag(root), Bytes(self.classes.size(root)), step);
                        self.buffer_of.insert(root, ix);
                        ix
                    }
                };
                self.touch(value, ix, Bytes(offset), step);
                Operand { place: Place::Buffer(ix), offset: Bytes(offset), size: length }
            }
        }
    }

    /// A step touches a value: its buffer lives until then, and holds it.
    fn touch(&mut self, value: ValueId, ix: BufferIx, offset: Bytes, step: u32) {
        let buffer = &mut self.plan.buffers[ix.0 as usize];
        buffer.last_step = buffer.last_step.max(step);
        if let Some(&at) = self.held_at.get(&value) {
            let held = &mut buffer.values[at];
            held.last_step = held.last_step.max(step);
            return;
        }
        let data = self.graph.value(value);
        self.held_at.insert(value, buffer.values.len());
        buffer.values.push(ValueSpan {
            name: name(self.graph, value),
            dtype: data.ty.dtype,
            shape: data.ty.shape.clone(),
            layout: data.layout,
            offset,
            first_step: step,
            last_step: step,
            sharing: self.classes.sharing(value),
        });
    }

    fn push_buffer(&mut self, tag: Tag, size: Bytes, step: u32) -> BufferIx {
        let (first_step, last_step) = (step, step);
        let (values, refused) = (Vec::new(), Vec::new());
        let (offset, persistence) = (Bytes::ZERO, Persistence::Run);
        self.plan.buffers.push(Buffer { tag, size, offset, first_step, last_step, persistence, values, refused });
        BufferIx(self.plan.buffers.len() as u32 - 1)
    }

    /// Notes at every buffer the sharing that would have made it needless.
    fn note_refusals(&mut self) {
        for refused in self.classes.refusals() {
            let Home::Buffer { root, .. } = self.classes.home(refused.child) else { continue };
            let Some(ix) = self.buffer_of.get(&root) else { continue };
            self.plan.buffers[ix.0 as usize].refused.push(RefusedSharing {
                node: self.graph.node(refused.node).scope.clone(),
                of: name(self.graph, refused.of),
                sharing: refused.sharing,
                reason: refused.reason.clone(),
            });
        }
    }

    /// The name of a class's bytes: a state's, else results of the graph come first, then inputs, then the root's own node.
    fn tag(&self, root: ValueId) -> Tag {
        let graph = self.graph;
        let members = || self.classes.members(root);
        let root_value = graph.value(root);
        if let ValueDef::State { role, .. } = root_value.source {
            return Tag { scope: Scope::new(&root_value.name), role };
        }
        if let Some(output) = graph.outputs().iter().find(|output| members().any(|member| member == output.value)) {
            let node = graph.value(output.value).producer().map(|node| graph.node(node).scope.clone());
            return Tag { scope: node.unwrap_or_else(|| Scope::new(&output.name)), role: Role::Output };
        }
        if let Some(input) = members().find(|&member| graph.value(member).source == ValueDef::Input) {
            return Tag { scope: Scope::new(&graph.value(input).name), role: Role::Input };
        }
        let node = graph.value(root).producer().expect("what is neither known nor given is computed");
        Tag { scope: graph.node(node).scope.clone(), role: Role::Activation }
    }

    fn packed(&mut self, value: ValueId, pack: &Pack) -> Operand {
        let tensor = self.graph.value(value).tensor().expect("only known operands are packed").clone();
        let bytes = &pack.0(&tensor)[..];
        // Equal packings of one value are stored once.
        let key = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let ix = self.constant(value, key | 1, bytes);
        Operand { place: Place::Constant(ix), offset: Bytes::ZERO, size: Bytes(bytes.len() as u64) }
    }

    fn constant(&mut self, value: ValueId, packing: u64, bytes: &[u8]) -> ConstantIx {
        if let Some(&ix) = self.constant_of.get(&(value, packing)) {
            return ix;
        }
        let start = Bytes(self.constants.len() as u64).align_up(self.alignment);
        self.constants.resize(start.0 as usize, 0);
        self.constants.extend_from_slice(bytes);
        let data = self.graph.value(value);
        // The role of a state is that of its buffer; its initial bytes are a constant.
        let role = if data.role() == Role::Weight { Role::Weight } else { Role::Constant };
        let tag = Tag { scope: Scope::new(&data.name), role };
        let (dtype, shape) = (data.ty.dtype, data.ty.shape.clone());
        self.plan.constants.push(Constant { tag, dtype, shape, offset: start, size: Bytes(bytes.len() as u64) });
        let ix = ConstantIx(self.plan.constants.len() as u32 - 1);
        self.constant_of.insert((value, packing), ix);
        ix
    }
}
