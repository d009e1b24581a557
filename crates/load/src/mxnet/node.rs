//! [`ImportedNode`] of MXNet: operands and attributes of one node, for the functions in `ops/`.
//!
//! Attributes are texts: `True` or `1`, `(3, 3)` or `[3,3]`, `None`. Attributes that an operator does not read are refused.

use std::cell::RefCell;
use std::collections::BTreeSet;

use ir::Refusal;
use smallvec::SmallVec;
use types::{DType, Shape};

use super::symbol::Node;
use crate::common::{self, NodeResult, Operand, axis, counts, refuse};

/// One node being translated.
pub(super) type ImportedNode<'t, 'a> = common::ImportedNode<'t, NodeSource<'a>>;

/// A node with its operands.
pub(super) struct NodeSource<'a> {
    node: &'a Node,
    operands: Vec<Operand>,
    /// The labels behind them, for losses.
    label: Option<Label<'a>>,
    /// Number of outputs up to the last one that is read.
    outputs: usize,
    /// Attributes that were read.
    read: RefCell<BTreeSet<&'a str>>,
}

/// The labels of a loss.
#[derive(Clone, Copy)]
pub(super) enum Label<'a> {
    /// A variable, whose shape the loss decides.
    Named(&'a str),
    /// A value of the graph.
    Computed(Operand),
}

impl<'a> NodeSource<'a> {
    pub(super) fn new(
        node: &'a Node,
        operands: Vec<Operand>,
        label: Option<Label<'a>>,
        outputs: usize,
    ) -> NodeSource<'a> {
        NodeSource { node, operands, label, outputs, read: RefCell::default() }
    }
}

/// Operands.
impl ImportedNode<'_, '_> {
    /// A required operand.
    pub(super) fn input(&self, ix: usize) -> Result<Operand, Refusal> {
        self.source.operands.get(ix).copied().ok_or_else(|| Refusal(format!("input {ix} is missing")))
    }

    pub(super) fn inputs<const N: usize>(&self) -> Result<[Operand; N], Refusal> {
        let list: Vec<Operand> = (0..N).map(|ix| self.input(ix)).collect::<Result<_, _>>()?;
        Ok(list.try_into().expect("`N` operands were read"))
    }

    /// The labels of a loss, which have this type if they are a variable.
    pub(super) fn label(&mut self, dtype: DType, shape: Shape) -> Result<Operand, Refusal> {
        match self.source.label {
            Some(Label::Computed(operand)) => Ok(operand),
            Some(Label::Named(name)) => self.label_input(name, dtype, shape),
            None => refuse!("labels are missing"),
        }
    }

    /// All operands, at least one.
    pub(super) fn all_inputs(&self) -> NodeResult {
        // `num_args` is the number of all operands.
        self.ignore(&["num_args"]);
        if self.source.operands.is_empty() {
            refuse!("at least one input is required");
        }
        Ok(self.source.operands.clone())
    }

    /// Number of outputs up to the last one that is read.
    pub(super) fn n_outputs(&self) -> usize {
        self.source.outputs
    }
}

/// Attributes.
impl<'a> ImportedNode<'_, 'a> {
    fn attribute(&self, name: &str) -> Option<&'a str> {
        let (key, text) = self.source.node.attributes.get_key_value(name)?;
        self.source.read.borrow_mut().insert(key);
        // `None` means absent.
        Some(text.trim()).filter(|text| *text != "None")
    }

    /// Marks attributes as read that have no effect here.
    pub(super) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    /// Refuses attributes that were not read, since they may change the result.
    pub(super) fn refuse_unread_attributes(&self) -> Result<(), Refusal> {
        // Settings of MXNet's executor.
        self.ignore(&["cudnn_off", "cudnn_tune", "workspace", "ctx", "__profiler_scope__"]);
        let read = self.source.read.borrow();
        match self.source.node.attributes.iter().find(|(key, _)| !read.contains(key.as_str())) {
            Some((key, value)) => refuse!("attribute `{key}` (`{value}`) is not supported"),
            None => Ok(()),
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.attribute(name)
    }

    pub(super) fn text_or(&self, name: &str, default: &'a str) -> &'a str {
        self.text(name).unwrap_or(default)
    }

    /// `True`, `1`, `False` or `0`.
    pub(super) fn flag_or(&self, name: &str, default: bool) -> Result<bool, Refusal> {
        match self.attribute(name) {
            None => Ok(default),
            Some("True" | "true" | "1") => Ok(true),
            Some("False" | "false" | "0") => Ok(false),
            Some(other) => refuse!("attribute `{name}` must be `True` or `False`, got `{other}`"),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        self.flag_or(name, false)
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f64>, Refusal> {
        let Some(text) = self.attribute(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => refuse!("attribute `{name}` must be a number, got `{text}`"),
        }
    }

    pub(super) fn float_or(&self, name: &str, default: f64) -> Result<f64, Refusal> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, Refusal> {
        self.attribute(name).map(|text| int(name, text)).transpose()
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, Refusal> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// A required number >= 1.
    pub(super) fn count(&self, name: &str) -> Result<usize, Refusal> {
        match self.int(name)? {
            None => refuse!("attribute `{name}` is missing"),
            Some(number @ 1..) => Ok(counts(&[number], name)?[0]),
            Some(number) => refuse!("attribute `{name}` must be >= 1, got {number}"),
        }
    }

    /// `(1, 2)`, `[1,2]`, or one number; entries may be `None`.
    pub(super) fn open_ints(&self, name: &str) -> Result<Option<Vec<Option<i64>>>, Refusal> {
        let Some(text) = self.attribute(name) else { return Ok(None) };
        let inner = text.trim_matches(|c| matches!(c, '(' | ')' | '[' | ']'));
        let entries = inner.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries
            .map(|entry| if entry == "None" { Ok(None) } else { int(name, entry).map(Some) })
            .collect::<Result<_, _>>()
            .map(Some)
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Refusal> {
        let Some(list) = self.open_ints(name)? else { return Ok(None) };
        match list.into_iter().collect() {
            Some(list) => Ok(Some(list)),
            None => refuse!("attribute `{name}` must not contain `None`"),
        }
    }

    pub(super) fn axis_or(&self, name: &str, default: i64, rank: usize) -> Result<usize, Refusal> {
        axis(self.int_or(name, default)?, rank)
    }

    /// A number per spatial dimension.
    pub(super) fn extents_or(
        &self,
        name: &str,
        default: usize,
        spatial: usize,
    ) -> Result<SmallVec<[usize; 2]>, Refusal> {
        let list = self.ints(name)?.unwrap_or_default();
        if list.is_empty() {
            return Ok(SmallVec::from_elem(default, spatial));
        }
        let list = counts(&list, name)?;
        if list.len() != spatial {
            refuse!("attribute `{name}` must have {spatial} numbers, got {list:?}");
        }
        Ok(list[..].into())
    }

    /// A dtype by its NumPy name.
    pub(super) fn dtype_attribute(&self, name: &str) -> Result<Option<DType>, Refusal> {
        let Some(text) = self.attribute(name) else { return Ok(None) };
        match dtype(text) {
            Some(dtype) => Ok(Some(dtype)),
            None => refuse!("attribute `{name}`: element type `{text}` is not supported"),
        }
    }
}

/// An integer; old files have `1L`.
fn int(name: &str, text: &str) -> Result<i64, Refusal> {
    let digits = text.strip_suffix('L').unwrap_or(text);
    // Some exporters write integers as `1.0`.
    let whole = || digits.parse::<f64>().ok().filter(|number| number.fract() == 0.0 && number.abs() < 9e15);
    match digits.parse().ok().or_else(|| whole().map(|number| number as i64)) {
        Some(number) => Ok(number),
        None => refuse!("attribute `{name}` must be an integer, got `{text}`"),
    }
}

/// An element type by its NumPy name.
pub(super) fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "uint16" => DType::U16,
        "int32" => DType::I32,
        "uint32" => DType::U32,
        "int64" => DType::I64,
        "uint64" => DType::U64,
        "bool" => DType::Bool,
        _ => return None,
    })
}
