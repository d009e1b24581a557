//! Functions of the model: a call is replaced by the nodes of the function.

use std::collections::{BTreeMap, BTreeSet};

use super::{Entry, Translator, default_version, is_default_domain, malformed, node_name};
use crate::onnx::LoadError;
use crate::onnx::model::{self, Attribute, Node};

/// Deepest nesting of calls.
const CALLS_MAX: usize = 32;

/// Domain, name and overload of a function.
pub(super) type FunctionId<'a> = (&'a str, &'a str, &'a str);

/// The surroundings of the nodes of a function; those of the graph are empty.
#[derive(Default)]
pub(super) struct Frame<'a> {
    /// The calls, each with a slash behind it.
    pub(super) prefix: String,
    /// Values of the function's attributes.
    attributes: Vec<Attribute<'a>>,
    /// Inputs that the call lacks.
    pub(super) absent: BTreeSet<&'a str>,
    calls: usize,
}

/// The functions of a model; of two with one identity the first.
pub(super) fn functions<'a>(model: &'a model::Model<'a>) -> BTreeMap<FunctionId<'a>, &'a model::Function<'a>> {
    let id = |function: &'a model::Function<'a>| id(function.domain, function.name, function.overload);
    model.functions.iter().rev().map(|function| (id(function), function)).collect()
}

pub(super) fn id<'n>(domain: &'n str, name: &'n str, overload: &'n str) -> FunctionId<'n> {
    (if is_default_domain(domain) { "" } else { domain }, name, overload)
}

impl<'a> Translator<'a> {
    /// Translates the nodes of a function with these inputs, in names, attributes and operator sets of their own.
    pub(super) fn call(
        &mut self,
        ix: usize,
        node: &Node<'a>,
        function: &'a model::Function<'a>,
        inputs: Vec<Option<Entry>>,
    ) -> Result<Option<Vec<Entry>>, LoadError> {
        let name = node_name(ix, node);
        if function.inputs.len() < inputs.len() || function.outputs.len() < node.outputs.len() {
            let (takes, yields) = (function.inputs.len(), function.outputs.len());
            return Err(malformed(format!(
                "node `{name}` must have at most {takes} inputs and {yields} outputs, those of function `{}`",
                function.name
            )));
        }
        if CALLS_MAX <= self.frame.calls {
            return Err(malformed(format!(
                "calls of functions must be nested at most {CALLS_MAX} deep, at function `{}`; none may call itself",
                function.name
            )));
        }
        let mut attributes = node.attributes.clone();
        for default in &function.defaults {
            if attributes.iter().all(|given| given.name != default.name) {
                attributes.push(default.clone());
            }
        }
        let mut given = inputs.into_iter();
        let given: Vec<_> = function.inputs.iter().map(|&name| (name, given.next().flatten())).collect();
        let frame = Frame {
            prefix: format!("{}{name}/", self.frame.prefix),
            attributes,
            absent: given.iter().filter(|(_, entry)| entry.is_none()).map(|&(name, _)| name).collect(),
            calls: self.frame.calls + 1,
        };
        let opset = match function.opsets.is_empty() {
            true => self.opset,
            false => default_version(&function.opsets, &function.nodes)?,
        };
        let mut opsets = self.opsets.clone();
        opsets.extend(function.opsets.iter().map(|opset| (opset.domain, opset.version)));
        let outer = (
            std::mem::take(&mut self.names),
            std::mem::take(&mut self.defined),
            std::mem::replace(&mut self.frame, frame),
            std::mem::replace(&mut self.opset, opset),
            std::mem::replace(&mut self.opsets, opsets),
        );
        for (name, entry) in given {
            if let Some(entry) = entry {
                self.define(name, entry)?;
            }
        }
        for (ix, node) in function.nodes.iter().enumerate() {
            self.node(ix, node)?;
        }
        let reader = format!("an output of function `{}`", function.name);
        let outputs = function.outputs.iter().map(|name| self.lookup(name, &reader)).collect::<Result<_, _>>()?;
        (self.names, self.defined, self.frame, self.opset, self.opsets) = outer;
        Ok(Some(outputs))
    }

    /// A node of a function with the values of attributes that refer to the function's; `None` if none does. Those that the
    /// call lacks are absent.
    pub(super) fn with_attributes(&self, node: &Node<'a>) -> Option<Node<'a>> {
        if node.attributes.iter().all(|attribute| attribute.of_function.is_none()) {
            return None;
        }
        let value = |attribute: &Attribute<'a>| {
            let Some(source) = attribute.of_function else { return Some(attribute.clone()) };
            let value = self.frame.attributes.iter().find(|value| value.name == source)?;
            Some(Attribute { name: attribute.name, of_function: None, ..value.clone() })
        };
        Some(Node { attributes: node.attributes.iter().filter_map(value).collect(), ..node.clone() })
    }
}
