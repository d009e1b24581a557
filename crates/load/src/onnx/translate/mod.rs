//! Translates node by node: names become operands, and all unsupported nodes are collected into one error.

mod call;
mod unroll;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ir::{Refusal, TensorType, Trainable};
use types::{Bytes, DType, LoadBudget, Scope, Tensor};

use self::call::{Frame, FunctionId};
use super::bind::bind;
use super::external::ExternalData;
use super::learned::{self, Learned};
use super::model::{self, Model, Node, Opset};
use super::node::{Entry, ImportedNode, NodeSource};
use super::{LoadError, Options, Purpose, ops, tensor};
use crate::UnsupportedNode;
use crate::common::{Builder, ConstantId, Fold, Operand, refuse, transpose_matrix};

/// The newest supported opset of the default domain. Since opset 22, existing operators got element types and attributes,
/// and kept the meaning of all others; new operators are refused by name.
const OPSET_NEWEST: i64 = 28;

/// Translates a model.
pub(super) fn translate<'a>(
    model: &'a Model<'a>,
    external: Option<&dyn ExternalData>,
    options: &Options,
    purpose: Purpose,
    budget: &Rc<LoadBudget>,
) -> Result<Trainable, LoadError> {
    let graph = &model.graph;
    let builder = Builder::new(graph.name, budget.clone());
    let mut translator = Translator {
        builder: match purpose {
            Purpose::AsWritten => builder,
            Purpose::Inference => builder.for_inference(),
            Purpose::Training => builder.for_training(),
        },
        weights: &options.weights,
        learned: match purpose == Purpose::Training || !options.weights.is_empty() {
            true => Some(Learned::read(model.graph_bytes, model.producer, budget)?),
            false => None,
        },
        budget,
        initializers: &graph.initializers,
        names: BTreeMap::new(),
        names_of: BTreeMap::new(),
        defined: Vec::new(),
        functions: call::functions(model),
        frame: Frame::default(),
        opset: default_opset(model)?,
        opsets: model.opsets.iter().map(|opset| (opset.domain, opset.version)).collect(),
        external,
        unsupported: Vec::new(),
        depth: 0,
        iterations: 0,
    };
    // Before IR version 4, every initializer was also listed as an input.
    let initializers: BTreeSet<&str> = graph.initializers.iter().map(|tensor| tensor.name).collect();
    if let Some(name) = options.weights.keys().find(|name| !initializers.contains(name.as_str())) {
        return Err(LoadError::UnknownWeight { name: name.clone() });
    }
    let missing = translator.learned.as_ref().map(|learned| learned.missing(&initializers));
    for name in missing.into_iter().flatten() {
        translator.builder.note_missing(name);
    }
    let infos: Vec<_> = graph.inputs.iter().filter(|info| !initializers.contains(info.name)).collect();
    let inputs = match bind(&infos, options) {
        Ok(inputs) => inputs,
        // Unsupported operators are reported first: choosing shapes would not help.
        Err(error) => return Err(translator.unknown_operators(graph).unwrap_or(error)),
    };
    for input in inputs {
        let operand = match input.fixed {
            Some(tensor) => translator.builder.add_constant(input.name, tensor, false),
            None => Operand::Value(translator.builder.graph.add_input(input.name, input.dtype, input.shape)),
        };
        if let Some(narrow) = input.narrow {
            translator.builder.narrow.insert(operand, narrow);
        }
        translator.define(input.name, Entry::Operand(operand))?;
    }
    let outputs = translator.model_graph(graph)?;
    if !translator.unsupported.is_empty() {
        return Err(match translator.builder.modes.refused == translator.unsupported.len() {
            true => LoadError::TrainingMode(translator.unsupported),
            false => LoadError::Unsupported(translator.unsupported),
        });
    }
    let mut named: Vec<(String, ir::ValueId)> = Vec::new();
    for (info, entry) in graph.outputs.iter().zip(outputs) {
        let operand = match entry {
            Entry::Operand(operand) => operand,
            Entry::Refused => unreachable!("refused nodes are in the list of unsupported nodes"),
            Entry::Unread(_) => unreachable!("an output is read"),
            Entry::Sequence(_) | Entry::Random(_) | Entry::Nothing => {
                let reason = format!("must be a tensor, got {}", entry.kind());
                return Err(LoadError::Output { output: info.name.to_string(), reason });
            }
        };
        if named.iter().any(|(name, _)| name == info.name) {
            return Err(malformed(format!("output names must be distinct, got `{}` twice", info.name)));
        }
        named.push((info.name.to_string(), translator.builder.value(operand)));
    }
    if named.is_empty() {
        return Err(malformed("the graph must have at least one output".to_string()));
    }
    translator.builder.graph.set_outputs(named);
    Ok(translator.builder.into_trainable())
}

struct Translator<'a> {
    builder: Builder,
    /// Replacements of initializers.
    weights: &'a BTreeMap<String, Tensor>,
    /// The parameters among the initializers; `None` in inference with the model's own weights.
    learned: Option<Learned<'a>>,
    budget: &'a LoadBudget,
    /// Those of the model.
    initializers: &'a [model::Tensor<'a>],
    names: BTreeMap<&'a str, Entry>,
    /// By constant, the names that have it and may still be read.
    names_of: BTreeMap<ConstantId, usize>,
    /// The keys of `names`, in the order of definition.
    defined: Vec<&'a str>,
    functions: BTreeMap<FunctionId<'a>, &'a model::Function<'a>>,
    frame: Frame<'a>,
    /// The version of the default domain.
    opset: i64,
    opsets: BTreeMap<&'a str, i64>,
    external: Option<&'a dyn ExternalData>,
    unsupported: Vec<UnsupportedNode>,
    depth: usize,
    /// Loop iterations unrolled so far.
    iterations: usize,
}

impl<'a> Translator<'a> {
    /// Initializers, nodes and outputs of a graph whose inputs are defined.
    fn graph(&mut self, graph: &model::Graph<'a>) -> Result<Vec<Entry>, LoadError> {
        if graph.sparse {
            return Err(malformed("sparse initializers are not supported".to_string()));
        }
        for proto in &graph.initializers {
            let operand = self.initializer(proto)?;
            self.define(proto.name, Entry::Operand(operand))?;
        }
        for proto in &graph.initializers {
            self.tie(proto.name)?;
        }
        for (ix, node) in graph.nodes.iter().enumerate() {
            self.node(ix, node)?;
        }
        self.results(graph)
    }

    /// As [`Translator::graph`], for the main graph. Initializers are read at their first use and released after their last,
    /// so that a transposed or folded weight and its original are not both in memory. Training reads all of them.
    fn model_graph(&mut self, graph: &'a model::Graph<'a>) -> Result<Vec<Entry>, LoadError> {
        // A subgraph may read any name.
        let has_subgraphs =
            graph.nodes.iter().flat_map(|node| &node.attributes).any(|attribute| attribute.graph.is_some());
        if self.builder.training.is_some() || graph.sparse || has_subgraphs {
            return self.graph(graph);
        }
        let mut readers: BTreeMap<&str, usize> = BTreeMap::new();
        let inputs = graph.nodes.iter().flat_map(|node| &node.inputs).copied();
        for name in inputs.chain(graph.outputs.iter().map(|info| info.name)) {
            *readers.entry(name).or_default() += 1;
        }
        for (ix, proto) in graph.initializers.iter().enumerate() {
            self.define(proto.name, Entry::Unread(ix))?;
        }
        for (ix, node) in graph.nodes.iter().enumerate() {
            self.node(ix, node)?;
            for name in &node.inputs {
                let left = readers.get_mut(name).expect("the inputs of all nodes are counted");
                *left -= 1;
                if *left == 0 {
                    self.release(name);
                }
            }
        }
        let results = self.results(graph)?;
        // A damaged tensor is an error even if nothing reads it.
        for proto in
            self.initializers.iter().filter(|proto| matches!(self.names.get(proto.name), Some(Entry::Unread(_))))
        {
            tensor::read(proto, self.external, self.budget).map_err(|problem| problem.of(proto.name))?;
        }
        Ok(results)
    }

    fn results(&mut self, graph: &model::Graph<'a>) -> Result<Vec<Entry>, LoadError> {
        graph.outputs.iter().map(|info| self.lookup(info.name, "an output of the graph")).collect()
    }

    /// Releases the constants of a name that nothing reads any more, unless another name has them.
    fn release(&mut self, name: &str) {
        let Some(entry) = self.names.get(name) else { return };
        for id in constants_of(entry) {
            let names = self.names_of.entry(id).or_default();
            *names = names.saturating_sub(1);
            if *names == 0 {
                self.builder.release(id);
            }
        }
    }

    /// The constant of an initializer, or of the tensor that replaces it.
    fn initializer(&mut self, proto: &model::Tensor<'a>) -> Result<Operand, LoadError> {
        let tensor = tensor::read(proto, self.external, self.budget).map_err(|problem| problem.of(proto.name))?;
        // Weights may be stored as int8.
        let in_bytes = matches!(tensor.dtype(), DType::I8 | DType::U8) && 1 < tensor.shape().rank();
        let learned = self.learned.as_ref().filter(|_| self.builder.training.is_some());
        let is_parameter = learned.is_none_or(|learned| learned.contains(proto.name, &tensor));
        let is_learned = (tensor.dtype().is_float() && is_parameter) || in_bytes;
        let tensor = match self.weights.get(proto.name) {
            None => self.retied(proto.name, tensor)?,
            Some(other) if (other.dtype(), other.shape()) == (tensor.dtype(), tensor.shape()) => other.clone(),
            Some(other) => {
                let (want, got) = (TensorType::of(&tensor), TensorType::of(other));
                let reason = format!("must be {want} as in the model, got {got} in the file of weights");
                return Err(LoadError::Tensor { tensor: proto.name.to_string(), reason });
            }
        };
        let operand = self.builder.add_constant(proto.name, tensor, is_learned);
        if let Some(narrow) = tensor::narrow(proto.element) {
            self.builder.narrow.insert(operand, narrow);
        }
        Ok(operand)
    }

    /// The transpose of a parameter's replacement for an initializer that is the transpose of the parameter; else `tensor`.
    fn retied(&self, name: &str, tensor: Tensor) -> Result<Tensor, LoadError> {
        let source = self.learned.as_ref().and_then(|learned| learned.source(name));
        let Some((source, new)) = source.and_then(|source| Some((source, self.weights.get(source)?))) else {
            return Ok(tensor);
        };
        let Some(proto) = self.initializers.iter().find(|proto| proto.name == source) else { return Ok(tensor) };
        let old = tensor::read(proto, self.external, self.budget).map_err(|problem| problem.of(source))?;
        Ok(if learned::is_transpose(&old, &tensor) { transpose_matrix(new) } else { tensor })
    }

    /// Makes an initializer that was computed from a parameter that parameter, if it is its transpose; else notes the two.
    fn tie(&mut self, name: &'a str) -> Result<(), LoadError> {
        let learned = self.learned.as_ref().filter(|_| self.builder.training.is_some());
        let Some(source) = learned.and_then(|learned| learned.source(name)) else { return Ok(()) };
        let operand = |name: &str| match self.names.get(name) {
            Some(&Entry::Operand(operand)) => self.builder.tensor(operand).cloned().map(|tensor| (operand, tensor)),
            _ => None,
        };
        let Some((_, folded)) = operand(name) else { return Ok(()) };
        if let Some((operand, parameter)) = operand(source)
            && learned::is_transpose(&parameter, &folded)
        {
            let op = ir::ops::Transpose { order: smallvec::smallvec![1, 0] };
            let scope = Scope::new(name);
            let limit = |refusal: Refusal| malformed(refusal.0);
            let transposed = self.builder.apply(op.into(), &[operand], &scope, Fold::Always).map_err(limit)?;
            self.names.insert(name, Entry::Operand(transposed));
            return Ok(());
        }
        if folded.dtype().is_float() {
            self.builder.note_folded(name, source);
        }
        Ok(())
    }

    fn define(&mut self, name: &'a str, entry: Entry) -> Result<(), LoadError> {
        self.defined.push(name);
        for id in constants_of(&entry) {
            *self.names_of.entry(id).or_default() += 1;
        }
        match self.names.insert(name, entry) {
            None => Ok(()),
            Some(_) => Err(malformed(format!("names must be distinct, got `{name}` twice"))),
        }
    }

    fn lookup(&mut self, name: &'a str, reader: &str) -> Result<Entry, LoadError> {
        let missing = || malformed(format!("{reader} reads `{name}`, which is not defined before it"));
        let entry = self.names.get(name).cloned().ok_or_else(missing)?;
        let Entry::Unread(ix) = entry else { return Ok(entry) };
        let entry = Entry::Operand(self.initializer(&self.initializers[ix])?);
        for id in constants_of(&entry) {
            self.names_of.insert(id, 1);
        }
        self.names.insert(name, entry.clone());
        Ok(entry)
    }

    fn node(&mut self, ix: usize, node: &Node<'a>) -> Result<(), LoadError> {
        let with_attributes = self.with_attributes(node);
        let node = with_attributes.as_ref().unwrap_or(node);
        /// More than the names, entries and constants of a node take.
        const NODE: Bytes = Bytes(512);
        let reader = || format!("node `{}`", node_name(ix, node));
        let limit = |error| LoadError::Limit { at: reader(), error };
        self.budget.take(NODE).map_err(limit)?;
        let inputs: Vec<Option<Entry>> = node
            .inputs
            .iter()
            .map(|name| match name.is_empty() || self.frame.absent.contains(name) {
                true => Ok(None),
                false => self.lookup(name, &reader()).map(Some),
            })
            .collect::<Result<_, _>>()?;
        let mut outputs = self.outputs(ix, node, inputs)?.unwrap_or_default().into_iter();
        if let Some(error) = self.budget.exceeded() {
            return Err(limit(error.clone()));
        }
        for name in &node.outputs {
            let entry = outputs.next().unwrap_or(Entry::Refused);
            if let Entry::Sequence(list) = &entry {
                self.budget.take(Bytes(16 * list.len() as u64)).map_err(limit)?;
            }
            if !name.is_empty() {
                self.define(name, entry)?;
            }
        }
        Ok(())
    }

    /// The outputs of a node; `None` if it is not supported or reads an output that is not.
    fn outputs(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        inputs: Vec<Option<Entry>>,
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let function = match self.function(node) {
            Ok(function) => function,
            Err(refusal) => return Ok(self.refuse(ix, node, refusal)),
        };
        // The node that was refused has reported the reason.
        if inputs.iter().flatten().any(|input| matches!(input, Entry::Refused)) {
            return Ok(None);
        }
        let row = match function {
            Function::If => return self.inline_if(ix, node, &inputs),
            Function::Loop => return self.unroll_loop(ix, node, &inputs),
            Function::Scan => return self.unroll_scan(ix, node, &inputs),
            Function::SequenceMap => return self.map_sequence(ix, node, &inputs),
            Function::Call(function) => return self.call(ix, node, function, inputs),
            Function::Operator(row) => row,
        };
        let (values_before, constants_before) = (self.builder.graph.values().len(), self.builder.constants.len());
        let source = NodeSource::new(node, self.version(node), inputs);
        let scope = Scope::new(&format!("{}{}", self.frame.prefix, node_name(ix, node)));
        let mut call = ImportedNode::new(&mut self.builder, source, scope);
        let yielded = row.translate(&mut call).and_then(|yielded| {
            call.refuse_unread_attributes()?;
            call.keep_narrow(&yielded);
            let used = node.outputs.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1);
            match yielded.len() < used {
                true => Err(Refusal(format!("output {} (`{}`) is not supported", used - 1, node.outputs[used - 1]))),
                false => Ok(yielded),
            }
        });
        match yielded {
            Err(refusal) => Ok(self.refuse(ix, node, refusal)),
            Ok(yielded) => {
                for (name, entry) in node.outputs.iter().zip(&yielded).filter(|(name, _)| !name.is_empty()) {
                    if let Entry::Operand(operand) = entry {
                        self.rename(name, *operand, values_before, constants_before);
                    }
                }
                Ok(Some(yielded))
            }
        }
    }

    /// Names the values that a node created as in the file; values that it passed through keep their names, and so do trained
    /// weights: the transpose of one is the same weight.
    fn rename(&mut self, name: &str, operand: Operand, values_before: usize, constants_before: usize) {
        use types::EntityId;
        match operand {
            Operand::Value(id) if values_before <= id.index() => {
                self.builder.graph.value_mut(id).name = name.to_string();
            }
            Operand::Constant(id) if constants_before <= id.index() => {
                let is_trained = self.builder.training.is_some() && self.builder.constants[id].is_learned;
                if !is_trained {
                    self.builder.constants[id].name = name.to_string();
                }
            }
            _ => {}
        }
    }

    /// Records an unsupported node.
    fn refuse<T>(&mut self, ix: usize, node: &Node, refusal: Refusal) -> Option<T> {
        let domain = if is_default_domain(node.domain) { String::new() } else { format!("{}.", node.domain) };
        self.unsupported.push(UnsupportedNode {
            node: format!("{}{}", self.frame.prefix, node_name(ix, node)),
            operator: format!("{domain}{}", node.op_type),
            opset: Some(self.version(node)).filter(|&version| version != 0),
            reason: refusal.0,
        });
        None
    }

    /// The operator set version of a node; 0 if the model imports none for its domain.
    fn version(&self, node: &Node) -> i64 {
        match is_default_domain(node.domain) {
            true => self.opset,
            false => self.opsets.get(node.domain).copied().unwrap_or(0),
        }
    }

    fn function(&self, node: &Node) -> Result<Function<'a>, Refusal> {
        if let Some(function) = self.functions.get(&call::id(node.domain, node.op_type, node.overload)) {
            return Ok(Function::Call(function));
        }
        let domain = if is_default_domain(node.domain) { "" } else { node.domain };
        match (domain, node.op_type) {
            ("", "If") => return Ok(Function::If),
            ("", "Loop") => return Ok(Function::Loop),
            ("", "Scan") => return Ok(Function::Scan),
            ("", "SequenceMap") => return Ok(Function::SequenceMap),
            _ => {}
        }
        if !ops::supports_domain(domain) {
            refuse!("operators of domain `{domain}` are not supported");
        }
        if self.version(node) == 0 {
            refuse!("the model must import a version of domain `{domain}`");
        }
        match ops::find(domain, node.op_type) {
            Some(row) => Ok(Function::Operator(row)),
            None => refuse!("the operator is not supported"),
        }
    }

    /// An error with all nodes whose operator is not supported.
    fn unknown_operators(mut self, graph: &model::Graph) -> Option<LoadError> {
        for (ix, node) in graph.nodes.iter().enumerate() {
            if let Err(refusal) = self.function(node) {
                self.refuse::<()>(ix, node, refusal);
            }
        }
        (!self.unsupported.is_empty()).then_some(LoadError::Unsupported(self.unsupported))
    }
}

/// How a node is translated.
enum Function<'a> {
    Call(&'a model::Function<'a>),
    If,
    Loop,
    Scan,
    SequenceMap,
    Operator(ops::OperatorFn),
}

fn is_default_domain(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

fn default_opset(model: &Model) -> Result<i64, LoadError> {
    // Before IR version 3 there was one operator set only.
    let has_default = model.opsets.iter().any(|opset| is_default_domain(opset.domain));
    if model.ir_version < 3 && !has_default { Ok(1) } else { default_version(&model.opsets, &model.graph.nodes) }
}

/// The version of the default domain among those that a model or function imports for its nodes.
fn default_version(opsets: &[Opset], nodes: &[Node]) -> Result<i64, LoadError> {
    let version = match opsets.iter().find(|opset| is_default_domain(opset.domain)) {
        Some(opset) => opset.version,
        None if nodes.iter().all(|node| !is_default_domain(node.domain)) => 1,
        None => return Err(malformed("the model must import an operator set".to_string())),
    };
    match (1..=OPSET_NEWEST).contains(&version) {
        true => Ok(version),
        false => Err(LoadError::Opset { version, newest: OPSET_NEWEST }),
    }
}

fn node_name(ix: usize, node: &Node) -> String {
    if node.name.is_empty() { format!("{}_{ix}", node.op_type) } else { node.name.to_string() }
}

fn malformed(reason: String) -> LoadError {
    LoadError::Malformed { reason }
}

/// The constants of an entry.
fn constants_of(entry: &Entry) -> impl Iterator<Item = ConstantId> + use<> {
    let operands = match entry {
        Entry::Operand(operand) => vec![*operand],
        Entry::Sequence(operands) => operands.clone(),
        Entry::Unread(_) | Entry::Random(_) | Entry::Nothing | Entry::Refused => Vec::new(),
    };
    operands.into_iter().filter_map(|operand| match operand {
        Operand::Constant(id) => Some(id),
        Operand::Value(_) => None,
    })
}
