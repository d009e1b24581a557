//! [`Learned`]: which initializers of a model are parameters. Others are constants that an exporter wrote as initializers:
//! masks, tables of angles, scales of a normalization without parameters, numbers.
//!
//! PyTorch's exporter of `torch.export` programs states the parameters of the program (`graph_signature`), and for each value
//! that it computed ahead, such as a transposed weight, the values that it was computed from (`folded_from`). Files without
//! a signature state nothing: all initializers of floats are parameters, except scalars, which exporters write for an epsilon.
//! PyTorch's older exporter writes its own constants as nodes, or as initializers with `::` in the name.
//!
//! A value that was computed ahead from a parameter trains in the place of it. If it is the transpose of a parameter that
//! the file has too, both are one weight.

use std::collections::{BTreeMap, BTreeSet};

use types::{LoadBudget, Tensor};

use super::LoadError;
use super::model::read_entry;
use super::proto::Reader;

const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";
const FOLDED_FROM: &str = "pkg.onnxscript.optimizer.folded_from";

/// The initializers that are parameters.
pub(super) struct Learned<'a> {
    /// The parameters that the file states; `None` if it states none.
    parameters: Option<BTreeSet<&'a str>>,
    /// The first parameter that a value was computed from, by the value's name.
    sources: BTreeMap<&'a str, &'a str>,
    /// Whether scalars of names without `::` are parameters.
    has_scalars: bool,
}

impl<'a> Learned<'a> {
    /// Reads the statements of a graph about its initializers.
    pub(super) fn read(graph: &'a [u8], producer: &str, budget: &'a LoadBudget) -> Result<Learned<'a>, LoadError> {
        let has_scalars = producer == "pytorch";
        let mut reader = Reader::new(graph, "the graph", budget);
        let mut signature = None;
        while let Some((number, field)) = reader.next()? {
            if number == 16 {
                let (key, value) = read_entry(reader.nested(field, "an entry of metadata")?)?;
                signature = signature.or((key == SIGNATURE).then_some(value));
            }
        }
        let mut learned = Learned { parameters: None, sources: BTreeMap::new(), has_scalars };
        let Some(signature) = signature else { return Ok(learned) };
        let parameters: BTreeSet<&str> = signature.lines().filter_map(parameter).collect();
        let mut reader = Reader::new(graph, "the graph", budget);
        while let Some((number, field)) = reader.next()? {
            if number == 13 {
                let (name, sources) = read_sources(reader.nested(field, "a value")?)?;
                let source = sources.and_then(|sources| quoted(sources).find(|source| parameters.contains(source)));
                learned.sources.extend(source.map(|source| (name, source)));
            }
        }
        learned.parameters = Some(parameters);
        Ok(learned)
    }

    /// The parameters whose initializers are absent from the graph, as are all tensors computed from them.
    pub(super) fn missing(&self, initializers: &BTreeSet<&str>) -> impl Iterator<Item = &'a str> {
        let present = |name: &str| initializers.contains(name);
        let computed: BTreeSet<&str> =
            self.sources.iter().filter(|(name, _)| present(name)).map(|(_, &source)| source).collect();
        let stated = self.parameters.iter().flatten().copied();
        stated.filter(|name| !present(name) && !computed.contains(name)).collect::<Vec<_>>().into_iter()
    }

    /// The parameter that an initializer was computed from.
    pub(super) fn source(&self, name: &str) -> Option<&'a str> {
        self.sources.get(name).copied()
    }

    /// Whether an initializer of floats is a parameter.
    pub(super) fn contains(&self, name: &str, tensor: &Tensor) -> bool {
        if let Some(parameters) = &self.parameters {
            return parameters.contains(name) || self.sources.contains_key(name);
        }
        let is_scalar = tensor.shape().rank() == 0;
        // A weight that is not finite is of no use, but a mask has infinities.
        (!is_scalar || (self.has_scalars && !name.contains("::"))) && !has_infinity(tensor)
    }
}

/// Whether `b` is the transpose of the matrix `a`.
pub(super) fn is_transpose(a: &Tensor, b: &Tensor) -> bool {
    let ([rows, columns], [b_rows, b_columns]) = (&a.shape()[..], &b.shape()[..]) else { return false };
    let (Some(a), Some(b)) = (a.as_slice::<f32>(), b.as_slice::<f32>()) else { return false };
    let equal = |at: usize| a[at].to_bits() == b[at % columns * rows + at / columns].to_bits();
    (rows, columns) == (b_columns, b_rows) && (0..a.len()).all(equal)
}

/// The name in a line such as `p_weight: PARAMETER target='weight'`.
fn parameter(line: &str) -> Option<&str> {
    let (_, target) = line.split_once(": PARAMETER target='")?;
    target.split_once('\'').map(|(name, _)| name)
}

/// The texts between single quotes, as in `['a', 'b']`.
fn quoted(list: &str) -> impl Iterator<Item = &str> {
    list.split('\'').skip(1).step_by(2)
}

/// Name and [`FOLDED_FROM`] of a `ValueInfoProto`.
fn read_sources<'a>(mut reader: Reader<'a>) -> Result<(&'a str, Option<&'a str>), LoadError> {
    let (mut name, mut sources) = ("", None);
    while let Some((number, field)) = reader.next()? {
        match number {
            1 => name = reader.name(field)?,
            4 => {
                let (key, value) = read_entry(reader.nested(field, "an entry of metadata")?)?;
                sources = sources.or((key == FOLDED_FROM).then_some(value));
            }
            _ => {}
        }
    }
    Ok((name, sources))
}

fn has_infinity(tensor: &Tensor) -> bool {
    tensor.as_slice::<f32>().is_some_and(|items| items.iter().any(|item| item.is_infinite()))
}
