//! [`ImportedNode`] of ONNX: operands and attributes of one node, for the functions in `ops/`.

use std::cell::Cell;
use std::sync::Arc;

use ir::Refusal;
use types::{DType, Tensor};

use super::model::{Attribute, Node};
use super::ops::Random;
use super::tensor;
use crate::common::{self, Narrow, NodeResult, Operand, refuse};

/// One node being translated.
pub(super) type ImportedNode<'t, 'a> = common::ImportedNode<'t, NodeSource<'t, 'a>>;

/// The meaning of a name of the model.
#[derive(Clone)]
pub(super) enum Entry {
    Operand(Operand),
    /// An initializer of the model, by its position, that no node has read yet.
    Unread(usize),
    /// A list of tensors of any shapes, whose length is constant.
    Sequence(Vec<Operand>),
    /// Random elements, which only some operators read.
    Random(Random),
    /// An empty optional; one with an element is represented by the element.
    Nothing,
    /// An output of a node that is not supported.
    Refused,
}

impl Entry {
    /// Its kind, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Entry::Operand(_) | Entry::Unread(_) => "a tensor",
            Entry::Sequence(_) => "a sequence",
            Entry::Random(_) => "random numbers",
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
    /// A bit per attribute that was read; those from the 65th on count as read.
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

    /// A required operand.
    pub(super) fn input(&self, ix: usize) -> Result<Operand, Refusal> {
        match self.entry(ix) {
            None => refuse!("input {ix} is missing"),
            Some(Entry::Operand(operand)) => Ok(*operand),
            Some(other) => refuse!("input {ix} must be a tensor, got {}", other.kind()),
        }
    }

    /// An optional operand.
    pub(super) fn optional(&self, ix: usize) -> Option<Operand> {
        match self.entry(ix) {
            Some(Entry::Operand(operand)) => Some(*operand),
            _ => None,
        }
    }

    /// An operand of any kind.
    pub(super) fn entry(&self, ix: usize) -> Option<&Entry> {
        self.source.entries.get(ix)?.as_ref()
    }

    /// The tensors of a sequence.
    pub(super) fn sequence(&self, ix: usize) -> NodeResult {
        match self.entry(ix) {
            None => refuse!("input {ix} is missing"),
            Some(Entry::Sequence(list)) => Ok(list.clone()),
            Some(other) => refuse!("input {ix} must be a sequence, got {}", other.kind()),
        }
    }

    /// Checks that all operands are tensors.
    pub(super) fn only_tensors(&self) -> Result<(), Refusal> {
        let given = (0..self.source.entries.len()).filter(|&ix| self.entry(ix).is_some());
        given.map(|ix| self.input(ix)).try_for_each(|input| input.map(drop))
    }

    /// All operands, at least one.
    pub(super) fn all_inputs(&self) -> NodeResult {
        if self.source.entries.is_empty() {
            refuse!("at least one input is required");
        }
        (0..self.source.entries.len()).map(|ix| self.input(ix)).collect()
    }

    /// Marks the results of an operator that only moves elements as of the narrow type of its first operand.
    pub(super) fn keep_narrow(&mut self, outputs: &[Entry]) {
        // Sorted.
        const MOVES: &[&str] = &[
            "Compress",
            "Concat",
            "DepthToSpace",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Pad",
            "Reshape",
            "Slice",
            "SpaceToDepth",
            "Split",
            "Squeeze",
            "Tile",
            "Transpose",
            "Trilu",
            "Unsqueeze",
        ];
        let Some(narrow) = self.optional(0).and_then(|x| self.narrow(x)) else { return };
        if MOVES.binary_search(&self.source.node.op_type).is_err() {
            return;
        }
        for output in outputs {
            if let Entry::Operand(output) = output {
                self.mark_narrow(*output, narrow);
            }
        }
    }

    /// Number of named outputs.
    pub(super) fn n_outputs(&self) -> usize {
        self.source.node.outputs.len()
    }

    /// Whether output `ix` has a name, so that it can be read.
    pub(super) fn has_output(&self, ix: usize) -> bool {
        self.source.node.outputs.get(ix).is_some_and(|name| !name.is_empty())
    }

    /// The elements of operand `ix`, called `name` in messages, which must be constant.
    pub(super) fn constant_input(&self, ix: usize, name: &str) -> Result<Arc<Tensor>, Refusal> {
        self.constant_value(self.input(ix)?).ok_or_else(|| {
            Refusal(format!(
                "`{name}` must be constant, but depends on a run-time input; export the model with it constant"
            ))
        })
    }

    /// [`ImportedNode::constant_input`], for an operand that determines the shape of the result.
    pub(super) fn constant_for_shape(&self, ix: usize, name: &str) -> Result<Arc<Tensor>, Refusal> {
        self.constant_value(self.input(ix)?).ok_or_else(|| {
            Refusal(format!(
                "`{name}` determines the shape of the result and must be constant, but depends on a run-time input"
            ))
        })
    }

    /// [`ImportedNode::constant_input`], for integers.
    pub(super) fn constant_ints(&self, ix: usize, name: &str) -> Result<Vec<i64>, Refusal> {
        let tensor = self.constant_input(ix, name)?;
        if !tensor.dtype().is_integer() {
            refuse!("`{name}` must be integer, got {}", tensor.dtype());
        }
        Ok(tensor.to_i64())
    }

    /// [`ImportedNode::constant_input`], for one number.
    pub(super) fn constant_number(&self, ix: usize, name: &str) -> Result<f64, Refusal> {
        match self.constant_input(ix, name)?.to_f64()[..] {
            [number] => Ok(number),
            ref numbers => refuse!("`{name}` must have 1 element, got {}", numbers.len()),
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

    /// Marks attributes as read that have no effect here.
    pub(super) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    /// Refuses attributes that were not read, since they may change the result.
    pub(super) fn refuse_unread_attributes(&self) -> Result<(), Refusal> {
        // A hint for an executor of 2017.
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
            // Protobuf omits zeros.
            Some(attribute) if attribute.kind == 2 || attribute.kind == 0 => Ok(Some(attribute.int.unwrap_or(0))),
            Some(_) => refuse!("attribute `{name}` must be an integer"),
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
            Some(_) => refuse!("attribute `{name}` must be a floating-point number"),
        }
    }

    pub(super) fn floats(&self, name: &str) -> Result<Option<&[f32]>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 6 || attribute.kind == 0 => Ok(Some(&attribute.floats)),
            Some(_) => refuse!("attribute `{name}` must be a list of floating-point numbers"),
        }
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Refusal> {
        match self.attribute(name) {
            None => Ok(None),
            Some(attribute) if attribute.kind == 7 || attribute.kind == 0 => Ok(Some(attribute.ints.clone())),
            Some(_) => refuse!("attribute `{name}` must be a list of integers"),
        }
    }

    /// A text. Bytes that are not UTF-8 become `?`, which no operator accepts.
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
            Some(_) => refuse!("attribute `{name}` must be a list of texts"),
        }
    }

    /// The narrow element type of an attribute that is a tensor.
    pub(super) fn narrow_tensor(&self, name: &str) -> Option<Narrow> {
        tensor::narrow(self.attribute(name)?.tensor.as_ref()?.element)
    }

    pub(super) fn tensor_attribute(&self, name: &str) -> Result<Option<Tensor>, Refusal> {
        let Some(attribute) = self.attribute(name) else { return Ok(None) };
        let Some(proto) = &attribute.tensor else { refuse!("attribute `{name}` must be a tensor") };
        match tensor::read(proto, None, self.budget()) {
            Ok(tensor) => Ok(Some(tensor)),
            Err(problem) => refuse!("attribute `{name}`: {}", problem.reason()),
        }
    }

    /// The dtype of an attribute that is a number of `TensorProto.DataType`.
    pub(super) fn dtype_attribute(&self, name: &str) -> Result<Option<DType>, Refusal> {
        let number = self.int(name)?;
        number.map(tensor::dtype).transpose().map_err(|reason| Refusal(format!("attribute `{name}`: {reason}")))
    }

    /// The narrow element type of an attribute that is a number of `TensorProto.DataType`.
    pub(super) fn narrow_attribute(&self, name: &str) -> Result<Option<Narrow>, Refusal> {
        Ok(self.int(name)?.and_then(tensor::narrow))
    }

    /// A list of integers: an attribute up to opset `last`, operand `ix` from then on.
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
