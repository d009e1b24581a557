//! [`Graph`], [`Node`] and [`Value`].

use std::sync::Arc;

use smallvec::SmallVec;
use types::{DType, Layout, Map, Role, Scope, Shape, Tensor, entity};

use crate::{AxisMap, Op, Refusal, TensorType};

entity!(
    /// A node of one graph.
    pub NodeId, "n"
);
entity!(
    /// A value of one graph.
    pub ValueId, "v"
);

/// A tensor of the graph: dtype, static shape, layout and definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The name in the file or the builder; need not be unique.
    pub name: String,
    /// Dtype and shape.
    pub ty: TensorType,
    /// The memory layout.
    pub layout: Layout,
    /// The definition of the value.
    pub source: ValueDef,
    /// The role of a node's result if it is no activation: a gradient, or the next value of a weight or state. Of other
    /// values it is `None`.
    pub result_role: Option<Role>,
}

impl Value {
    /// The elements of a weight or constant.
    pub fn tensor(&self) -> Option<&Arc<Tensor>> {
        match &self.source {
            ValueDef::Weight(tensor) | ValueDef::Constant(tensor) => Some(tensor),
            ValueDef::Input | ValueDef::State { .. } | ValueDef::Node { .. } => None,
        }
    }

    /// The node whose output this value is, if any.
    pub fn producer(&self) -> Option<NodeId> {
        match self.source {
            ValueDef::Node { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The role of the value's bytes, unless it is an output of the graph.
    pub fn role(&self) -> Role {
        match self.source {
            ValueDef::Input => Role::Input,
            ValueDef::State { role, .. } => role,
            ValueDef::Weight(_) => Role::Weight,
            ValueDef::Constant(_) => Role::Constant,
            ValueDef::Node { .. } => self.result_role.unwrap_or(Role::Activation),
        }
    }
}

/// The definition of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueDef {
    /// A run-time input.
    Input,
    /// A learned parameter.
    Weight(Arc<Tensor>),
    /// A constant that is not learned.
    Constant(Arc<Tensor>),
    /// State: kept between runs. [`Destination::State`] names the value that replaces it at the end of a run.
    State {
        /// The elements before the first run.
        initial: Arc<Tensor>,
        /// [`Role::State`], [`Role::OptimizerState`], or [`Role::Weight`] for a parameter that is trained.
        role: Role,
    },
    /// Output number `output` of `node`.
    Node {
        /// The node.
        node: NodeId,
        /// Which of its outputs.
        output: usize,
    },
}

/// One op applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The scope that the node was created in.
    pub scope: Scope,
    /// The op.
    pub op: Op,
    /// The operands.
    pub inputs: SmallVec<[ValueId; 4]>,
    /// The results.
    pub outputs: SmallVec<[ValueId; 1]>,
}

impl Node {
    /// The only value that moves, if the node reads or writes a part of another value: its result, or the operand that is
    /// inserted.
    pub fn moved_part(&self) -> Option<ValueId> {
        if let Op::Slice(_) = self.op {
            return Some(self.outputs[0]);
        }
        matches!(self.op, Op::Insert(_)).then(|| self.inputs[1])
    }
}

/// A value that is needed when a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name callers know it by; of an update, the name of the state.
    pub name: String,
    /// The value.
    pub value: ValueId,
    /// Where it goes.
    pub destination: Destination,
}

/// Where the value of an [`Output`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the caller: it is a result of the graph.
    Caller,
    /// Into the bytes of a state value, which the next run reads.
    State(ValueId),
}

/// A program without control flow. Nodes are in topological order, which is the order of execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The model's name.
    pub name: String,
    nodes: Map<NodeId, Node>,
    values: Map<ValueId, Value>,
    inputs: Vec<ValueId>,
    states: Vec<ValueId>,
    outputs: Vec<Output>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: &str) -> Graph {
        Graph { name: name.to_string(), ..Graph::default() }
    }

    /// Adds an input of the graph.
    pub fn add_input(&mut self, name: &str, dtype: DType, shape: Shape) -> ValueId {
        let ty = TensorType { dtype, shape };
        let id = self.add_known(name, ty, ValueDef::Input);
        self.inputs.push(id);
        id
    }

    /// Adds a value that is kept between runs. It stays `initial` until [`Graph::update_state`] names a replacement.
    pub fn add_state(&mut self, name: &str, initial: impl Into<Arc<Tensor>>, role: Role) -> ValueId {
        let initial = initial.into();
        let id = self.add_known(name, TensorType::of(&initial), ValueDef::State { initial, role });
        self.states.push(id);
        id
    }

    /// Adds a learned parameter.
    pub fn add_weight(&mut self, name: &str, tensor: impl Into<Arc<Tensor>>) -> ValueId {
        let tensor = tensor.into();
        self.add_known(name, TensorType::of(&tensor), ValueDef::Weight(tensor))
    }

    /// Adds a constant that is not learned.
    pub fn add_constant(&mut self, name: &str, tensor: impl Into<Arc<Tensor>>) -> ValueId {
        let tensor = tensor.into();
        self.add_known(name, TensorType::of(&tensor), ValueDef::Constant(tensor))
    }

    fn add_known(&mut self, name: &str, ty: TensorType, source: ValueDef) -> ValueId {
        self.values.push(Value { name: name.to_string(), ty, layout: Layout::default(), source, result_role: None })
    }

    /// Adds a node behind all others; its outputs' dtypes and shapes are inferred.
    ///
    /// # Errors
    /// The op rejects the operands.
    pub fn add(&mut self, op: Op, inputs: &[ValueId], scope: Scope) -> Result<SmallVec<[ValueId; 1]>, Refusal> {
        let output_types = op.infer(&inputs.iter().map(|&id| self.ty(id)).collect::<SmallVec<[_; 4]>>())?;
        let node = NodeId::from_index_of(&self.nodes);
        let outputs: SmallVec<[ValueId; 1]> = output_types
            .into_iter()
            .enumerate()
            .map(|(output, ty)| {
                let name = Graph::output_name(&scope, output);
                self.add_known(&name, ty, ValueDef::Node { node, output })
            })
            .collect();
        self.nodes.push(Node { scope, op, inputs: inputs.into(), outputs: outputs.clone() });
        Ok(outputs)
    }

    /// The default name of an output: the scope, and its number unless it is the first.
    pub(crate) fn output_name(scope: &Scope, output: usize) -> String {
        if output == 0 { scope.to_string() } else { format!("{scope}:{output}") }
    }

    /// [`Graph::add`] for ops with one output.
    pub fn add1(&mut self, op: Op, inputs: &[ValueId], scope: Scope) -> Result<ValueId, Refusal> {
        self.add(op, inputs, scope).map(|outputs| outputs[0])
    }

    /// Sets the named results of the graph. Updates of states stay.
    pub fn set_outputs(&mut self, outputs: Vec<(String, ValueId)>) {
        let results = outputs.into_iter().map(|(name, value)| Output { name, value, destination: Destination::Caller });
        let updates = std::mem::take(&mut self.outputs).into_iter().filter(|output| output.state().is_some());
        self.outputs = results.chain(updates).collect();
    }

    /// Names the value that replaces a state at the end of each run.
    pub fn update_state(&mut self, state: ValueId, next: ValueId) {
        let name = self.values[state].name.clone();
        self.outputs.push(Output { name, value: next, destination: Destination::State(state) });
    }

    /// Replaces results and updates alike, as passes do.
    pub fn replace_outputs(&mut self, outputs: Vec<Output>) {
        self.outputs = outputs;
    }

    /// The inputs, in the callers' order.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The values that are kept between runs.
    pub fn states(&self) -> &[ValueId] {
        &self.states
    }

    /// The values that are needed when a run ends: results first, then updates of states.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The results, which callers read.
    pub fn results(&self) -> impl Iterator<Item = &Output> {
        self.outputs.iter().filter(|output| output.state().is_none())
    }

    /// The nodes in order of execution.
    pub fn nodes(&self) -> &Map<NodeId, Node> {
        &self.nodes
    }

    /// All values.
    pub fn values(&self) -> &Map<ValueId, Value> {
        &self.values
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// One value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id]
    }

    /// One value, to rename it or to change its layout or role. Callers must not change its type or definition.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id]
    }

    /// The dtype and shape of a value.
    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.values[id].ty
    }

    /// For each value the nodes that read it, in order; a node that reads it twice is listed twice.
    pub fn readers(&self) -> Map<ValueId, SmallVec<[NodeId; 2]>> {
        let mut readers = Map::filled(self.values.len(), SmallVec::new());
        for (id, node) in self.nodes.iter() {
            for &input in &node.inputs {
                readers[input].push(id);
            }
        }
        readers
    }

    /// Whether a value is needed when a run ends.
    pub fn is_output(&self, id: ValueId) -> bool {
        self.outputs.iter().any(|output| output.value == id)
    }

    /// The parameter count: elements of all weights.
    pub fn parameters(&self) -> u64 {
        let is_parameter = |value: &&Value| value.role() == Role::Weight && value.producer().is_none();
        let weights = self.values.values().filter(is_parameter);
        weights.map(|value| value.ty.shape.elements() as u64).sum()
    }

    /// Arithmetic operations of one run; a multiply-add counts as two.
    pub fn flops(&self) -> u64 {
        self.nodes.values().map(|node| self.node_flops(node)).fold(0, u64::saturating_add)
    }

    /// Arithmetic operations of one node.
    pub fn node_flops(&self, node: &Node) -> u64 {
        let inputs: SmallVec<[&TensorType; 4]> = node.inputs.iter().map(|&id| self.ty(id)).collect();
        let outputs: SmallVec<[&TensorType; 1]> = node.outputs.iter().map(|&id| self.ty(id)).collect();
        node.op.flops(&inputs, &outputs)
    }

    /// How the first output of a node depends on its operands.
    pub fn node_axes(&self, node: &Node) -> AxisMap {
        let inputs: SmallVec<[&TensorType; 4]> = node.inputs.iter().map(|&id| self.ty(id)).collect();
        node.op.axes(&inputs, self.ty(node.outputs[0]))
    }
}

impl Output {
    /// The state that the value replaces, if it is an update.
    pub fn state(&self) -> Option<ValueId> {
        match self.destination {
            Destination::Caller => None,
            Destination::State(state) => Some(state),
        }
    }
}

impl NodeId {
    fn from_index_of(nodes: &Map<NodeId, Node>) -> NodeId {
        types::EntityId::from_index(nodes.len())
    }
}
