//! [`write_plan`]: steps, buffers and constants of a graph whose kernels are chosen.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::analysis::alias::{AliasKind, AliasObstacle, AliasSets, Location, concat_starts};
use ir::analysis::value_size;
use ir::{Call, CallInput, CallSizes, Candidate, Graph, NodeId, Op, Pack, Target, ValueDef, ValueId};
use plan::{
    Arena, Buffer, BufferIx, Constant, ConstantIx, ConstantRecipe, Initial, KernelChoice, Operand, Persistence, Place,
    Plan, Port, RefusedReason, RefusedSharing, Sharing, StatePort, Step, ValueSpan,
};
use types::{Bytes, Role, Scope, Tag, Tensor};

use crate::{Constants, LowerError, Selection, state};

/// A plan without offsets, and the bytes of its constants.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The plan; the offsets of its buffers and its arena are still undecided.
    pub plan: Plan,
    /// The constants' section.
    pub constants: Constants,
}

/// The plan of a graph with the chosen kernels, in the order of its nodes.
///
/// # Errors
/// The target has no kernel for the copy that updates a state, or a kernel requires operands of other sizes than it has.
pub fn write_plan(graph: &Graph, target: &dyn Target, selection: &Selection) -> Result<Lowered, LowerError> {
    written(graph, target, selection, false)
}

/// The plan without constants: its buffers can be placed, and it takes a small part of the time because no weights are
/// packed. Operands that are constants have no bytes, and no sizes are compared with those that kernels require.
///
/// # Errors
/// The target has no kernel for the copy that updates a state.
pub fn draft_plan(graph: &Graph, target: &dyn Target, selection: &Selection) -> Result<Plan, LowerError> {
    Ok(written(graph, target, selection, true)?.plan)
}

fn written(graph: &Graph, target: &dyn Target, selection: &Selection, is_draft: bool) -> Result<Lowered, LowerError> {
    let (graph, selection) = &state::with_copies(graph, target, selection)?;
    let mut writer = PlanWriter::new(graph, target, selection.alias_sets(graph), is_draft);
    for id in graph.nodes().keys() {
        if let Some(candidate) = selection.candidate(id) {
            writer.choice(id, candidate);
        }
        for call in selection.calls(id) {
            writer.step(id, call, target)?;
        }
    }
    Ok(writer.finish())
}

/// The name of a value in reports: that of its node, or its own.
fn name(graph: &Graph, value: ValueId) -> String {
    let data = graph.value(value);
    data.producer().map_or_else(|| data.name.clone(), |node| graph.node(node).scope.to_string())
}

fn sharing(kind: AliasKind) -> Sharing {
    match kind {
        AliasKind::Own => Sharing::Own,
        AliasKind::View => Sharing::View,
        AliasKind::ConcatSlice => Sharing::ConcatSlice,
        AliasKind::InPlace => Sharing::InPlace,
    }
}

/// Writes steps, and the buffers and constants they touch.
struct PlanWriter<'a> {
    graph: &'a Graph,
    alignment: Bytes,
    sets: AliasSets,
    plan: Plan,
    constants: Constants,
    /// Whether constants are left out.
    is_draft: bool,
    /// The buffer of a class, by its root.
    buffer_of: BTreeMap<ValueId, BufferIx>,
    /// By value that a step reads or writes: its index among the values of its buffer.
    held_at: BTreeMap<ValueId, usize>,
    /// By value: its packings that are constants already.
    constants_of: BTreeMap<ValueId, Vec<ConstantIx>>,
    /// The concatenation whose steps were written last, with the offset of each operand in bytes.
    starts: Option<(NodeId, Vec<u64>)>,
}

impl<'a> PlanWriter<'a> {
    fn new(graph: &'a Graph, target: &dyn Target, sets: AliasSets, is_draft: bool) -> PlanWriter<'a> {
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
        let mut writer = PlanWriter {
            graph,
            alignment: target.alignment(),
            sets,
            plan,
            constants: Constants::default(),
            is_draft,
            buffer_of: BTreeMap::new(),
            held_at: BTreeMap::new(),
            constants_of: BTreeMap::new(),
            starts: None,
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

    /// Records a choice between kernels of two origins.
    fn choice(&mut self, id: NodeId, candidate: &Candidate) {
        let (Some(rejected), Some(call)) = (candidate.rejected, candidate.calls.first()) else { return };
        self.plan.choices.push(KernelChoice {
            scope: self.graph.node(id).scope.clone(),
            taken: call.kernel.to_string(),
            other: rejected.kernel.to_string(),
            times: [rejected.taken_time, rejected.time],
            measured: rejected.measured,
        });
    }

    fn step(&mut self, id: NodeId, call: &Call, target: &dyn Target) -> Result<(), LowerError> {
        let node = self.graph.node(id);
        let at = self.plan.steps.len() as u32;
        let part = call.slice.map(|part| (part, self.part_offset(id, part)));
        if let Some((part, offset)) = part
            && self.sets.is_at(node.inputs[part], node.outputs[0], offset)
        {
            return Ok(());
        }
        let mut output = self.operand(node.outputs[0], at);
        if let Some((part, offset)) = part {
            output.offset += Bytes(offset);
            output.size = Bytes(value_size(self.graph, node.inputs[part]));
        }
        let inputs: Vec<Operand> = call
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
        let bytes = |operands: &[Operand]| operands.iter().map(|operand| operand.size.0).collect::<Vec<u64>>();
        let sizes = CallSizes { inputs: &bytes(&inputs), outputs: &bytes(&outputs), workspace: call.workspace.0 };
        let mismatch = |reason| LowerError::Operands { scope: node.scope.to_string(), reason };
        if !self.is_draft {
            target.check_call(&call.code, sizes).map_err(mismatch)?;
        }
        self.plan.steps.push(Step {
            scope: node.scope.clone(),
            kernel: call.kernel.to_string(),
            label: call.label.clone(),
            code: call.code.clone(),
            inputs,
            outputs,
            workspace,
            flops: if call.slice.is_some() || call.is_postprocessing() { 0 } else { self.graph.node_flops(node) },
        });
        Ok(())
    }

    /// The offset in the result of an operand that is copied as it is, in bytes: in a concatenation, that of its slice.
    fn part_offset(&mut self, id: NodeId, part: usize) -> u64 {
        if let Op::Insert(_) = self.graph.node(id).op {
            return 0;
        }
        if self.starts.as_ref().is_none_or(|(known, _)| *known != id) {
            let starts = concat_starts(self.graph, self.graph.node(id));
            self.starts = Some((id, starts.expect("only results made of contiguous parts have calls for them")));
        }
        self.starts.as_ref().map_or(0, |(_, starts)| starts[part])
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
        self.plan.constants_size = self.constants.size();
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
        let initial =
            match self.is_draft || initial.bit_sum() == 0 && initial.to_le_bytes().iter().all(|byte| *byte == 0) {
                true => Initial::Zeros,
                false => Initial::Constant(self.constant(value, initial, None).0),
            };
        let port = self.port(&self.graph.value(value).name, value, 0);
        if let Place::Buffer(ix) = port.operand.place {
            self.plan.buffers[ix.0 as usize].persistence = Persistence::Session;
        }
        StatePort { port, initial }
    }

    /// The operand that a value is at a step, until which its buffer lives.
    fn operand(&mut self, value: ValueId, step: u32) -> Operand {
        let length = Bytes(value_size(self.graph, value));
        match self.sets.location(value) {
            Location::Constant { value: known, offset } => {
                let tensor = self.graph.value(known).tensor().expect("a known value holds a tensor");
                let (ix, _) = self.constant(known, tensor, None);
                Operand { place: Place::Constant(ix), offset: Bytes(offset), size: length }
            }
            Location::Buffer { root, offset } => {
                let ix = match self.buffer_of.get(&root) {
                    Some(&ix) => ix,
                    None => {
                        let ix = self.push_buffer(self.tag(root), Bytes(self.sets.size(root)), step);
                        self.buffer_of.insert(root, ix);
                        ix
                    }
                };
                self.touch(value, ix, Bytes(offset), step);
                Operand { place: Place::Buffer(ix), offset: Bytes(offset), size: length }
            }
        }
    }

    /// Records that a step reads or writes a value: its buffer lives until then, and holds it.
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
            sharing: sharing(self.sets.kind(value)),
        });
    }

    fn push_buffer(&mut self, tag: Tag, size: Bytes, step: u32) -> BufferIx {
        let (first_step, last_step) = (step, step);
        let (values, refused) = (Vec::new(), Vec::new());
        let (offset, persistence) = (Bytes::ZERO, Persistence::Run);
        self.plan.buffers.push(Buffer { tag, size, offset, first_step, last_step, persistence, values, refused });
        BufferIx(self.plan.buffers.len() as u32 - 1)
    }

    /// Records at every buffer the sharing that would have made it unnecessary.
    fn note_refusals(&mut self) {
        for refused in self.sets.refusals() {
            let Location::Buffer { root, .. } = self.sets.location(refused.child) else { continue };
            let Some(ix) = self.buffer_of.get(&root) else { continue };
            let refused = RefusedSharing {
                node: self.graph.node(refused.node).scope.clone(),
                of: name(self.graph, refused.of),
                sharing: sharing(refused.kind),
                reason: self.reason(&refused.reason),
            };
            self.plan.buffers[ix.0 as usize].refused.push(refused);
        }
    }

    fn reason(&self, obstacle: &AliasObstacle) -> RefusedReason {
        match *obstacle {
            AliasObstacle::ReadLater(node) => RefusedReason::ReadLater { by: self.graph.node(node).scope.clone() },
            AliasObstacle::Output => RefusedReason::Output,
            AliasObstacle::Given => RefusedReason::Given,
            AliasObstacle::Kernel => RefusedReason::Kernel,
            AliasObstacle::Occupied => RefusedReason::Occupied,
            AliasObstacle::Peak(more) => RefusedReason::Peak { more },
        }
    }

    /// The name of a set's bytes: a state's, else results of the graph come first, then inputs, then the root's own node.
    fn tag(&self, root: ValueId) -> Tag {
        let graph = self.graph;
        let members = || self.sets.members(root).iter().copied();
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
        Tag { scope: graph.node(node).scope.clone(), role: root_value.role() }
    }

    fn packed(&mut self, value: ValueId, pack: &Pack) -> Operand {
        let tensor = self.graph.value(value).tensor().expect("only known operands are packed");
        let (ix, size) = self.constant(value, tensor, Some(pack));
        Operand { place: Place::Constant(ix), offset: Bytes::ZERO, size }
    }

    /// A constant with the tensor of `value`, packed or as it is, and its size. Equal packings of one value are one constant.
    fn constant(&mut self, value: ValueId, tensor: &Arc<Tensor>, pack: Option<&Pack>) -> (ConstantIx, Bytes) {
        if self.is_draft {
            return (ConstantIx(0), Bytes::ZERO);
        }
        let (offset, size) = self.constants.add(tensor, pack, self.alignment);
        let known = self.constants_of.entry(value).or_default();
        let is_equal = |ix: &&ConstantIx| {
            let constant = &self.plan.constants[ix.0 as usize];
            (constant.offset, constant.size) == (offset, size)
        };
        if let Some(&ix) = known.iter().find(is_equal) {
            return (ix, size);
        }
        let data = self.graph.value(value);
        // The role of a state is that of its buffer; its initial bytes are a constant.
        let role = if data.role() == Role::Weight { Role::Weight } else { Role::Constant };
        let tag = Tag { scope: Scope::new(&data.name), role };
        let dtype = pack.and_then(Pack::dtype).unwrap_or(data.ty.dtype);
        let derivation = data.tensor().and_then(|tensor| tensor.derivation().cloned());
        let code = pack.map_or(Some(&[][..]), Pack::code);
        let recipe = derivation.zip(code).map(|(tensor, code)| ConstantRecipe { tensor, packing: code.to_vec() });
        self.plan.constants.push(Constant { tag, dtype, shape: data.ty.shape.clone(), offset, size, recipe });
        let ix = ConstantIx(self.plan.constants.len() as u32 - 1);
        known.push(ix);
        (ix, size)
    }
}

#[cfg(test)]
mod tests {
    use ir::ops::{Binary, Unary};
    use ir::{Candidate, NoKernel, Op, Query};
    use types::{DType, Layout, Shape, pointwise};

    use super::*;
    use crate::cpu::CpuTarget;

    /// The CPU target with one error in the calls of a node.
    struct Wrong(CpuTarget, fn(&mut Call));

    impl Target for Wrong {
        fn name(&self) -> String {
            self.0.name()
        }

        fn alignment(&self) -> Bytes {
            self.0.alignment()
        }

        fn precision(&self) -> DType {
            self.0.precision()
        }

        fn layout(&self) -> Option<Layout> {
            self.0.layout()
        }

        fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel> {
            let mut candidates = self.0.candidates(graph, nodes, query)?;
            if nodes.iter().any(|&id| graph.node(id).scope.to_string() == "wrong") {
                candidates.iter_mut().flat_map(|candidate| &mut candidate.calls).for_each(self.1);
            }
            Ok(candidates)
        }

        fn check_call(&self, code: &[u8], sizes: CallSizes) -> Result<(), String> {
            self.0.check_call(code, sizes)
        }

        fn relayout_cost(&self, graph: &Graph, value: ValueId) -> u64 {
            self.0.relayout_cost(graph, value)
        }
    }

    /// The error of a plan of two nodes, the second with the error.
    fn error(wrong: fn(&mut Call)) -> Option<String> {
        let mut graph = Graph::new("two");
        let [x, row] = [("x", [3, 100]), ("row", [1, 100])]
            .map(|(name, shape)| graph.add_input(name, DType::F32, Shape::from(shape)));
        let y =
            graph.add1(Op::Unary(Unary(pointwise::Unary::Relu)), &[x], Scope::new("right")).expect("it is accepted");
        let add = Op::Binary(Binary(pointwise::Binary::Add));
        let y = graph.add1(add, &[y, row], Scope::new("wrong")).expect("it is accepted");
        graph.set_outputs(vec![("y".into(), y)]);
        crate::lower(&graph, &Wrong(CpuTarget::new(), wrong)).err().map(|error| error.to_string())
    }

    #[test]
    fn operands_of_other_sizes_than_the_kernel_requires_are_refused_by_node_and_kernel() {
        assert_eq!(error(|_| ()), None);
        let kernel: &[fn(&mut Call)] = &[
            |call| call.inputs.reverse(),
            |call| drop(call.inputs.pop()),
            |call| call.inputs.push(CallInput::Value(0)),
            |call| call.workspace += Bytes(64),
            |call| call.code.truncate(call.code.len() - 1),
        ];
        let found: Vec<String> = kernel.iter().map(|&wrong| error(wrong).expect("it is refused")).collect();
        let expected = [
            "requires 1200 bytes of input 0, got 400",
            "requires 2 inputs, got 1",
            "requires 2 inputs, got 3",
            "requires 0 bytes of workspace, got 64",
            "unknown kernel: ",
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with("node `wrong`: ") && found.contains(expected), "{found}");
        }
    }
}
