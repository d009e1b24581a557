//! [`ImportedNode`]: one node of a model being translated, as the functions under `ops/` see it.

use std::cell::Cell;
use std::sync::Arc;

use ir::Refusal;
use types::{DType, Tensor};

use super::model::{Attribute, Node};
use super::tensor;
use crate::common::{self, NodeResult, Operand, refuse};

/// One node being translated.
pub(super) type ImportedNode<'t, 'a> = common::ImportedNode<'t, NodeSource<'t, 'a>>;

/// What a name stands for.
#[derive(Clone)]
pub(super) enum Entry {
    Operand(Operand),
    /// Tensors in a row, which may differ in shape: how many there are is known.
    Sequence(Vec<Operand>),
    /// An optional that holds nothing; one that holds something is that.
    Nothing,
    /// What a node that was refused would have yielded.
    Refused,
}

impl Entry {
    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Entry::Operand(_) => "a tensor",
            Entry::Sequence(_) => "a sequence",
            Entry::Nothing => "an optional",
            Entry::Refused => "refused",
        }
    }
}

/// A node with its operands.
pub(super) struct NodeSource<'t, 'a> {
    node: &'t Node<'a>,
    /// The version of the operator set.
    opset: i64,
    entries: Vec<Option<Entry>>,
    /// Which attributes were read, a bit each; those behind the 64th count as read.
    read: Cell<u64>,
}

impl<'t, 'a> NodeSource<'t, 'a> {
    pub(super) fn new(node: &'t Node<'a>, opset: i64, entries: Vec<Option<Entry>>) -> NodeSource<'t, 'a> {
        NodeSource { node, opset, entries, read: Cell::new(0) }
    }
}

/// Operands.
impl ImportedNode<'_, '_> {
    /// The version of the operator set.
    pub(super) fn opset(&self) -> i64 {
        self.source.opset
    }

    /// An operand that the operator cannot do without.
    pub(super) fn input(&self, ix: usize) -> Result<Operand, Refusal> {
        match self.entry(ix) {
            None => refuse!("input {ix} is missing"),
            Some(Entry::Operand(operand)) => Ok(*operand),
            Some(other) => refuse!("input {ix} is {}, not a tensor", other.kind()),
        }
    }

    /// An operand that may be left out.
    pub(super) fn optional(&self, ix: usize) -> Option<Operand> {
        match self.entry(ix) {
            Some(Entry::Operand(operand)) => Some(*operand),
            _ => None,
        }
    }

    /// What the node gets, whatever it is.
    pub(super) fn entry(&self, ix: usize) -> Option<&Entry> {
        self.source.entries.get(ix)?.as_ref()
    }

    /// The tensors of a sequence.
    pub(super) fn sequence(&self, ix: usize) -> NodeResult {
        match self.entry(ix) {
            None => refuse!("input {ix} is missing"),
            Some(Entry::Sequence(list)) => Ok(list.clone()),
            Some(other) => refuse!("input {ix} is {}, not a sequence", other.kind()),
        }
    }

    /// Refuses whatever is not a tensor.
    pub(super) fn only_tensors(&self) -> Result<(), Refusal> {
        let given = (0..self.source.entries.len()).filter(|&ix| self.entry(ix).is_some());
        given.map(|ix| self.input(ix)).try_for_each(|input| input.map(drop))
    }

    /// All operands, of which there is at least one.
    pub(super) fn all_inputs(&self) -> NodeResult {
        if self.source.entries.is_empty() {
            refuse!("takes at least one input");
        }
        (0..self.source.entries.len()).map(|ix| self.input(ix)).collect()
    }

    /// How many outputs are named.
    pub(super) fn n_outputs(&self) -> usize {
        self.source.node.outputs.len()
    }

    /// Whether something may read output `ix`.
    pub(super) fn has_output(&self, ix: usize) -> bool {
        self.source.node.outputs.get(ix).is_some_and(|name| !name.is_empty())
    }

    /// The elements of operand `ix`, which an op here needs as an attribute.
    pub(super) fn constant_input(&self, ix: usize, what: &str) -> Result<Arc<Tensor>, Refusal> {
        self.constant_value(self.input(ix)?).ok_or_else(|| {
            Refusal(format!(
                "`{what}` must be known when the model is loaded, but follows from an input; export the model with it fixed"
            ))
        })
    }

    /// [`ImportedNode::known`], where the result has as many elements as the operand's elements say.
    pub(super) fn constant_for_shape(&self, ix: usize, what: &str) -> Result<Arc<Tensor>, Refusal> {
        self.constant_value(self.input(ix)?).ok_or_else(|| {
            Refusal(format!("the shape of the result depends on the elements of `{what}`, which follow from an input"))
        })
    }

    /// [`ImportedNode::known`], for integers.
    pub(super) fn constant_ints(&self, ix: usize, what: &str) -> Result<Vec<i64>, Refusal> {
        let tensor = self.constant_input(ix, what)?;
        if !tensor.dtype().is_integer() {
            refuse!("`{what}` is {}, not integer", tensor.dtype());
        }
        Ok(tensor.to_i64())
    }

    /// [`ImportedNode::known`], for one number.
    pub(super) fn constant_number(&self, ix: usize, what: &str) -> Result<f64, Refusal> {
        match self.constant_input(ix, what)?.to_f64()[..] {
            [number] => Ok(number),
            ref numbers => refuse!("`{what}` has {} elements, not 1", numbers.len()),
        }
    }
}

/// Attributes.
impl ImportedNode<'_, '_> {
    fn attribute(&self, name: &str) -> Option<&Attribute<'_>> {
        let ix = self.source.node.attributes.iter().position(|attribute| attribute.name == name)?;
        self.source.read.set(self.source.read.get() | 1u64.checked_shl(ix as u32).unwrap_or(0));
        Some(&self.source.node.attributes[ix])
    }

    /// Attributes that change nothing here.
    pub(super) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    /// Refuses what nobody asked for: it would mean something.
    pub(super) fn refuse_unread_attributes(&self) -> Result<(), Refusal> {
        // A hint to an executor of 2017.
        self.ignore(&["consumed_inputs"]);
        let unread = |ix: &usize| *ix < 64 && self.source.read.get() & (1 << ix) == 0;
        match (0..self.source.node.attributes.len()).find(unread) {
            Some(ix) => refuse!("attribute `{}` is not supported", self.source.node.attributes[ix].name),
            None => Ok(()),
        }
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            // Protobuf leaves a 0 away.
            Some(attribute) if attribute.kind == 2 || attribute.kind == 0 => Ok(Some(attribute.int.unwrap_or(0))),
            Some(_) => refuse!("attribute `{name}` is not an integer"),
        }
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, Refusal> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer that is 0 or 1.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        Ok(self.int_or(name, 0)? != 0)
    }

    pub(super) fn float_or(&self, name: &str, default: f32) -> Result<f32, Refusal> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f32>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 1 || attribute.kind == 0 => Ok(Some(attribute.float.unwrap_or(0.0))),
            Some(_) => refuse!("attribute `{name}` is not a floating-point number"),
        }
    }

    pub(super) fn floats(&self, name: &str) -> Result<Option<&[f32]>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 6 || attribute.kind == 0 => Ok(Some(&attribute.floats)),
            Some(_) => refuse!("attribute `{name}` is not a list of floating-point numbers"),
        }
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 7 || attribute.kind == 0 => Ok(Some(attribute.ints.clone())),
            Some(_) => refuse!("attribute `{name}` is not a list of integers"),
        }
    }

    /// A text; what is not UTF-8 is never one of the words that an operator knows.
    pub(super) fn text_or<'c>(&'c self, name: &str, default: &'c str) -> &'c str {
        match self.attribute(name) {
            None => default,
            Some(attribute) => std::str::from_utf8(attribute.text.unwrap_or(b"")).unwrap_or("?"),
        }
    }

    /// A list of texts.
    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<&str>>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 8 || attribute.kind == 0 => {
                Ok(Some(attribute.texts.iter().map(|text| std::str::from_utf8(text).unwrap_or("?")).collect()))
            }
            Some(_) => refuse!("attribute `{name}` is not a list of texts"),
        }
    }

    pub(super) fn tensor_attribute(&self, name: &str) -> Result<Option<Tensor>, Refusal> {
        let Some(attribute) = self.attribute(name) else { return Ok(None) };
        let Some(proto) = &attribute.tensor else { refuse!("attribute `{name}` is not a tensor") };
        match tensor::read(proto, None) {
            Ok(tensor) => Ok(Some(tensor)),
            Err(tensor::Problem::Content(reason) | tensor::Problem::External(reason)) => {
                refuse!("attribute `{name}`: {reason}")
            }
        }
    }

    /// The dtype that an attribute names by its number.
    pub(super) fn dtype_attribute(&self, name: &str) -> Result<Option<DType>, Refusal> {
        let number = self.int(name)?;
        number.map(tensor::dtype).transpose().map_err(|reason| Refusal(format!("attribute `{name}`: {reason}")))
    }

    /// An integer attribute up to opset `last`, an operand (number `ix`) from then on.
    pub(super) fn ints_or_input(&self, name: &str, ix: usize, last: i64) -> Result<Option<Vec<i64>>, Refusal> {
        if self.source.opset <= last {
            return self.ints(name);
        }
        match self.optional(ix) {
            None => Ok(None),
            Some(_) => self.constant_ints(ix, name).map(Some),
        }
    }
}
