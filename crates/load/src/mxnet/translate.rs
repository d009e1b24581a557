//! Translates node by node: entries become operands, and all unsupported nodes are collected into one error.

use std::collections::BTreeMap;
use std::rc::Rc;

use ir::{Multipliers, Refusal, TensorType, Trainable};
use types::{LoadBudget, Scope, Shape, Tensor};

use super::node::{ImportedNode, Label, NodeSource};
use super::symbol::{Entry, Node, Symbol};
use super::{LoadError, Options, Purpose, UnknownVariable, ops};
use crate::UnsupportedNode;
use crate::common::{Builder, Operand};

/// Translates a symbol.
pub(super) fn translate(
    symbol: &Symbol,
    arrays: BTreeMap<String, Tensor>,
    options: &Options,
    purpose: Purpose,
    budget: &Rc<LoadBudget>,
) -> Result<Trainable, LoadError> {
    let builder = Builder::new("model", budget.clone());
    let mut translator = Translator {
        symbol,
        options,
        builder: if purpose == Purpose::Training { builder.for_training() } else { builder },
        arrays,
        outputs: Vec::new(),
        unsupported: Vec::new(),
        unknown: Vec::new(),
    };
    translator.refuse_shapes_of_arrays()?;
    for (node, reads) in symbol.nodes.iter().zip(reads(symbol, purpose)) {
        let outputs = match (reads, node.is_variable()) {
            (0, _) => NodeOutputs::Unread,
            (_, true) => translator.variable(node)?,
            (_, false) => translator.outputs(node, reads)?,
        };
        if let Some(error) = budget.exceeded() {
            return Err(LoadError::Limit { at: format!("node `{}`", node.name), error: error.clone() });
        }
        translator.outputs.push(outputs);
    }
    translator.finish()
}

/// Number of outputs of each node up to the last one that inference reads; 0 if it reads none.
fn reads(symbol: &Symbol, purpose: Purpose) -> Vec<usize> {
    let mut reads = vec![0; symbol.nodes.len()];
    let note = |reads: &mut Vec<usize>, entry: &Entry| {
        reads[entry.node] = reads[entry.node].max(entry.output.saturating_add(1));
    };
    symbol.heads.iter().for_each(|head| note(&mut reads, head));
    // Nodes are in topological order.
    for (ix, node) in symbol.nodes.iter().enumerate().rev() {
        if reads[ix] != 0 {
            let read = node.inputs.iter().take(ops::operands_read(&node.op));
            // A label that is a variable gets its shape from the loss; a computed one is translated.
            let labels = node.inputs.iter().skip(ops::operands_read(&node.op));
            let is_computed = |entry: &&Entry| purpose == Purpose::Training && !symbol.nodes[entry.node].is_variable();
            read.chain(labels.filter(is_computed)).for_each(|entry| note(&mut reads, entry));
        }
    }
    reads
}

/// The outputs of a node of the symbol.
enum NodeOutputs {
    Operands(Vec<Operand>),
    /// The node is not supported, or reads a node that is not.
    Refused,
    /// The node is not translated, since inference does not read it.
    Unread,
}

struct Translator<'a> {
    symbol: &'a Symbol,
    options: &'a Options,
    builder: Builder,
    arrays: BTreeMap<String, Tensor>,
    outputs: Vec<NodeOutputs>,
    unsupported: Vec<UnsupportedNode>,
    unknown: Vec<UnknownVariable>,
}

impl Translator<'_> {
    fn refuse_shapes_of_arrays(&self) -> Result<(), LoadError> {
        match self.options.shapes.keys().find(|name| self.arrays.contains_key(*name)) {
            Some(name) => Err(LoadError::ShapeOfArray { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// A variable: its array, or an input with a shape.
    fn variable(&mut self, node: &Node) -> Result<NodeOutputs, LoadError> {
        let declared = declared(node)?;
        if let Some(tensor) = self.arrays.remove(&node.name) {
            if let Some((text, _)) = declared.filter(|(_, declared)| !agree(declared, tensor.shape())) {
                let (name, found) = (node.name.clone(), tensor.shape().clone());
                return Err(LoadError::ArrayShape { name, declared: text.to_string(), found });
            }
            let is_learned = tensor.dtype().is_float();
            if node.multipliers.iter().any(Option::is_some) {
                let multipliers = multipliers(node)?;
                self.builder.note_multipliers(&node.name, multipliers);
            }
            return Ok(NodeOutputs::Operands(vec![self.builder.add_constant(&node.name, tensor, is_learned)]));
        }
        let Some(shape) = self.shape(node)? else {
            let reads =
                |reader: &&Node| reader.inputs.iter().any(|entry| self.symbol.nodes[entry.node].name == node.name);
            let reader = self.symbol.nodes.iter().find(reads).map_or("the outputs", |reader| &reader.name);
            let declared = declared.map(|(text, _)| text.to_string());
            self.unknown.push(UnknownVariable { name: node.name.clone(), declared, reader: reader.to_string() });
            return Ok(NodeOutputs::Refused);
        };
        let number =
            node.dtype.as_deref().map_or(Some(0), |number| number.parse().ok()).and_then(weights::params::dtype);
        let Some(dtype) = number else {
            let reason = format!(
                "variable `{}`: dtype {} is not supported",
                node.name,
                node.dtype.as_deref().unwrap_or_default()
            );
            return Err(LoadError::Malformed { reason });
        };
        let ty = TensorType::new(dtype, shape);
        ty.check_size()
            .map_err(|refusal| LoadError::Malformed { reason: format!("input `{}`: {}", node.name, refusal.0) })?;
        let input = self.builder.graph.add_input(&node.name, dtype, ty.shape);
        Ok(NodeOutputs::Operands(vec![Operand::Value(input)]))
    }

    /// The shape of an input: chosen by the caller, or from the file with the batch filled in.
    fn shape(&self, node: &Node) -> Result<Option<Shape>, LoadError> {
        let filled = |extents: &[usize]| {
            let mut shape = Shape::from(extents);
            if let (Some(first @ 0), Some(batch)) = (shape.first_mut(), self.options.batch) {
                *first = batch;
            }
            shape
        };
        let declared = declared(node)?;
        let Some(given) = self.options.shapes.get(&node.name) else {
            let shape = declared.map(|(_, declared)| filled(&declared));
            return Ok(shape.filter(|shape| !shape.contains(&0) && 0 < shape.rank()));
        };
        let given = filled(given);
        match declared {
            Some((text, declared)) if !agree(&declared, &given) => {
                Err(LoadError::ShapeConflict { input: node.name.clone(), given, declared: text.to_string() })
            }
            _ => Ok(Some(given)),
        }
    }

    /// The outputs of an operator.
    fn outputs(&mut self, node: &Node, reads: usize) -> Result<NodeOutputs, LoadError> {
        let Some(function) = ops::find(&node.op) else {
            let custom =
                node.op == "Custom" || node.op.starts_with("_sg_") || node.op.starts_with("_contrib_quantized");
            let reason =
                if custom { "the operator has no definition outside MXNet" } else { "the operator is not supported" };
            return Ok(self.refuse(node, reason.to_string()));
        };
        let mut operands = Vec::new();
        for entry in node.inputs.iter().take(ops::operands_read(&node.op)) {
            // The node that was refused has reported the reason.
            let NodeOutputs::Operands(outputs) = &self.outputs[entry.node] else { return Ok(NodeOutputs::Refused) };
            let missing = || {
                let (own, other) = (&node.name, &self.symbol.nodes[entry.node].name);
                let (n, count) = (entry.output, outputs.len());
                let reason = format!("node `{own}` reads output {n} of `{other}`, which has {count}");
                LoadError::Malformed { reason }
            };
            operands.push(outputs.get(entry.output).copied().ok_or_else(missing)?);
        }
        let label = node.inputs.get(ops::operands_read(&node.op)).and_then(|entry| match &self.outputs[entry.node] {
            NodeOutputs::Operands(outputs) => outputs.get(entry.output).copied().map(Label::Computed),
            NodeOutputs::Unread | NodeOutputs::Refused => {
                let variable = &self.symbol.nodes[entry.node];
                variable.is_variable().then_some(Label::Named(&variable.name))
            }
        });
        let first_new = self.builder.graph.values().len();
        let mut call =
            ImportedNode::new(&mut self.builder, NodeSource::new(node, operands, label, reads), Scope::new(&node.name));
        let outputs = function(&mut call).and_then(|outputs| {
            call.refuse_unread_attributes()?;
            match outputs.len() < reads {
                true => Err(Refusal(format!("output {} is read, but does not exist in inference", reads - 1))),
                false => Ok(outputs),
            }
        });
        Ok(match outputs {
            Ok(outputs) => {
                self.rename(node, &outputs, first_new);
                NodeOutputs::Operands(outputs)
            }
            Err(refusal) => self.refuse(node, refusal.0),
        })
    }

    /// Names the values that a node created after it; values that it passed through keep their names.
    fn rename(&mut self, node: &Node, outputs: &[Operand], first_new: usize) {
        use types::EntityId;
        for operand in outputs {
            if let Operand::Value(id) = operand
                && first_new <= id.index()
            {
                self.builder.graph.value_mut(*id).name = node.name.clone();
            }
        }
    }

    fn refuse(&mut self, node: &Node, reason: String) -> NodeOutputs {
        let (node, operator) = (node.name.clone(), node.op.clone());
        self.unsupported.push(UnsupportedNode { node, operator, opset: None, reason });
        NodeOutputs::Refused
    }

    fn finish(mut self) -> Result<Trainable, LoadError> {
        let symbol = self.symbol;
        if !self.unsupported.is_empty() {
            return Err(LoadError::Unsupported(self.unsupported));
        }
        if !self.unknown.is_empty() {
            return Err(LoadError::Unknown(self.unknown));
        }
        let is_input =
            |name: &str| self.builder.graph.inputs().iter().any(|&id| self.builder.graph.value(id).name == name);
        if let Some(name) = self.options.shapes.keys().find(|name| !is_input(name)) {
            let without_array = |(node, outputs): &(&Node, &NodeOutputs)| {
                let is_unread = matches!(outputs, NodeOutputs::Unread) && !self.arrays.contains_key(&node.name);
                node.is_variable() && (is_unread || is_input(&node.name))
            };
            let variables = symbol.nodes.iter().zip(&self.outputs).filter(without_array);
            let inputs = variables.map(|(node, _)| node.name.clone()).collect();
            return Err(LoadError::UnknownInput { name: name.clone(), inputs });
        }
        let mut named: Vec<(String, ir::ValueId)> = Vec::new();
        for head in &symbol.heads {
            let NodeOutputs::Operands(operands) = &self.outputs[head.node] else {
                unreachable!("refused nodes are in one of the lists")
            };
            let name = output_name(symbol, *head, operands.len());
            let Some(&operand) = operands.get(head.output) else {
                let reason = format!("output `{name}` of the symbol does not exist: a variable has one output");
                return Err(LoadError::Malformed { reason });
            };
            let count = named.iter().filter(|(other, _)| *other == name).count();
            let name = if count == 0 { name } else { format!("{name}_{}", count + 1) };
            named.push((name, self.builder.value(operand)));
        }
        self.builder.graph.set_outputs(named);
        Ok(self.builder.into_trainable())
    }
}

/// As in MXNet's `list_outputs`.
fn output_name(symbol: &Symbol, head: Entry, outputs: usize) -> String {
    let node = &symbol.nodes[head.node];
    match (node.is_variable(), outputs) {
        (true, _) => node.name.clone(),
        (false, 1) => format!("{}_output", node.name),
        (false, _) => format!("{}_output{}", node.name, head.output),
    }
}

/// The factors of a variable's learning rate and weight decay.
fn multipliers(node: &Node) -> Result<Multipliers, LoadError> {
    let number = |ix: usize, name: &str| match &node.multipliers[ix] {
        None => Ok(1.0),
        Some(text) => text.parse().ok().filter(|number: &f32| number.is_finite() && 0.0 <= *number).ok_or_else(|| {
            let reason = format!("variable `{}`: {name} must be a number >= 0, got `{text}`", node.name);
            LoadError::Malformed { reason }
        }),
    };
    Ok(Multipliers { learning_rate: number(0, "lr_mult")?, weight_decay: number(1, "wd_mult")? })
}

/// The shape of a variable in the file, with 0 for dynamic extents.
fn declared(node: &Node) -> Result<Option<(&str, Vec<usize>)>, LoadError> {
    let Some(text) = &node.shape else { return Ok(None) };
    let inner = text.trim().trim_matches(|c| matches!(c, '(' | ')' | '[' | ']'));
    let extents =
        inner.split(',').map(|extent| extent.trim().trim_end_matches('L')).filter(|extent| !extent.is_empty());
    // -1 is dynamic as well.
    let extents = extents.map(|extent| if extent == "-1" { Some(0) } else { extent.parse().ok() });
    match extents.collect::<Option<Vec<usize>>>() {
        Some(extents) if extents.is_empty() => Ok(None),
        Some(extents) => Ok(Some((text, extents))),
        None => Err(LoadError::Malformed { reason: format!("variable `{}`: shape `{text}` is malformed", node.name) }),
    }
}

fn agree(declared: &[usize], shape: &Shape) -> bool {
    declared.len() == shape.rank() && declared.iter().zip(&shape[..]).all(|(&a, &b)| a == 0 || a == b)
}
