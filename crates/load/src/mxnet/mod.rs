//! MXNet's symbols to graphs: `NET-symbol.json` of versions 0.8 to 1.9, with the arrays of `NET-0000.params`.
//!
//! [`load`] reads the file (`symbol`), brings what old versions wrote into today's form, and translates node by node
//! (`translate`) through one flat table of operators (`ops`), for inference: dropout, losses and labels leave no trace.
//!
//! A variable is a parameter where an array has its name, else an input, whose shape the caller states unless the file has
//! it. Variables that nothing reads in inference, such as labels, are no inputs. `node_row_ptr` is not read: what it counts
//! depends on how MXNet was built. A 0 in the shape of a constant made by the graph means that MXNet infers it; it becomes
//! an extent of 1, which broadcasts.

mod node;
mod ops;
mod symbol;
mod translate;

use std::collections::BTreeMap;
use std::fmt;

use ir::Graph;
use types::{Shape, Tensor};

use crate::{UnsupportedNode, lines, quoted};

/// What the caller decides about the inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The first extent of the inputs whose shape the file has with that extent open: `--batch 8`.
    pub batch: Option<usize>,
    /// Shapes by input: `--shape data=1x3x224x224`.
    pub shapes: BTreeMap<String, Shape>,
}

/// Reads a symbol to a graph with static shapes. `arrays` are its parameters and auxiliary states by name, without the
/// prefixes `arg:` and `aux:`, as `weights::read` yields them.
///
/// # Errors
/// A file that is no symbol or is damaged, variables that are neither arrays nor inputs with a shape, and all nodes that
/// have no translation.
pub fn load(symbol: &[u8], arrays: BTreeMap<String, Tensor>, options: &Options) -> Result<Graph, LoadError> {
    translate::translate(&symbol::Symbol::read(symbol)?, arrays, options)
}

/// Why a symbol cannot be loaded. All of it is about the files or about what the caller said of the inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LoadError {
    #[error("not an MXNet symbol: {reason}")]
    NotSymbol { reason: String },
    #[error("{what}")]
    Malformed { what: String },
    #[error("{}", lines(.0))]
    Unsupported(Vec<UnsupportedNode>),
    #[error("{}", lines(.0))]
    Unknown(Vec<UnknownVariable>),
    #[error("`--shape {name}=`: no operator reads such an input; the variables without an array are {}", quoted(.inputs))]
    UnknownInput { name: String, inputs: Vec<String> },
    #[error("`--shape {name}=`: the params file has this array, so that it is no input")]
    ShapeOfArray { name: String },
    #[error("`--shape {input}=` gives {given}, but the file has {declared}; only extents of 0 can be chosen")]
    ShapeConflict { input: String, given: Shape, declared: String },
    #[error("array `{name}`: the file says {declared}, the params file has {found}; is it another network's?")]
    ArrayShape { name: String, declared: String, found: Shape },
}

/// A variable that is neither an array nor an input with a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// What the file knows of its shape, 0 where it is open.
    pub declared: Option<String>,
    /// The node that reads it.
    pub reader: String,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownVariable { name, declared, reader } = self;
        write!(f, "variable `{name}` (read by `{reader}`")?;
        if let Some(declared) = declared {
            write!(f, ", shape {declared}")?;
        }
        write!(f, ") is not among the arrays of the params file; if it is an input, say `--shape {name}=1x3x224x224`")
    }
}
