//! MXNet symbols to graphs: `NET-symbol.json` of versions 0.8 to 1.9, with the arrays of `NET-0000.params`.
//!
//! [`load`] reads the file (`symbol`), upgrades old versions, and translates node by node (`translate`) through one table of
//! operators (`ops`). Graphs are for inference: dropout, losses and labels are
//! removed, unless [`load_trainable`] keeps them.
//!
//! A variable is a parameter if an array has its name, else an input, whose shape is in the file or chosen by the caller.
//! Variables that inference does not read, such as labels, are not inputs. `node_row_ptr` is ignored, since its unit depends
//! on the build of MXNet. MXNet infers extents of 0 in shapes of constants; here they become 1, which broadcasts.

mod node;
mod ops;
mod symbol;
mod translate;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use ir::{Graph, Trainable};
use types::{Bytes, LoadBudget, LoadLimit, LoadLimitError, Shape, Tensor};

use crate::{UnsupportedNode, lines, quoted};

/// The caller's choices for the inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The first extent of inputs whose shape is in the file with that extent dynamic.
    pub batch: Option<usize>,
    /// Shapes by input name.
    pub shapes: BTreeMap<String, Shape>,
    /// The memory and work that loading may take.
    pub limit: LoadLimit,
}

/// Reads a symbol to a graph with static shapes. `arrays` are its parameters and auxiliary states by name, without the
/// prefixes `arg:` and `aux:`, as `weights::read` yields them.
///
/// # Errors
/// If the file is not a valid symbol, a variable is neither an array nor an input with a shape, or nodes are not supported
/// (all of them are listed).
pub fn load(symbol: &[u8], arrays: BTreeMap<String, Tensor>, options: &Options) -> Result<Graph, LoadError> {
    load_for(symbol, arrays, options, Purpose::Inference).map(|trainable| trainable.graph)
}

/// As [`load`], with dropout and the losses at the end of the symbol. A label without a shape has the one that its loss
/// requires.
///
/// # Errors
/// As [`load`]; a loss that is not supported.
pub fn load_trainable(
    symbol: &[u8],
    arrays: BTreeMap<String, Tensor>,
    options: &Options,
) -> Result<Trainable, LoadError> {
    load_for(symbol, arrays, options, Purpose::Training)
}

/// The use of a loaded model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Inference,
    Training,
}

fn load_for(
    symbol: &[u8],
    arrays: BTreeMap<String, Tensor>,
    options: &Options,
    purpose: Purpose,
) -> Result<Trainable, LoadError> {
    /// Bytes of a parsed file for each byte of its text: a list of small numbers is the worst case.
    const PARSED: u64 = 64;
    let budget = Rc::new(LoadBudget::new(options.limit));
    let limit = |error| LoadError::Limit { at: "the file".to_string(), error };
    budget.take(Bytes(symbol.len() as u64 * PARSED)).map_err(limit)?;
    translate::translate(&symbol::Symbol::read(symbol)?, arrays, options, purpose, &budget)
}

/// Why a symbol cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum LoadError {
    #[error("not an MXNet symbol: {reason}")]
    NotSymbol { reason: String },
    #[error("{reason}")]
    Malformed { reason: String },
    #[error("{}", lines(.0))]
    Unsupported(Vec<UnsupportedNode>),
    #[error("{}", lines(.0))]
    Unknown(Vec<UnknownVariable>),
    #[error("a shape is given for `{name}`, which is not an input; the variables without an array are {}", quoted(.inputs))]
    UnknownInput { name: String, inputs: Vec<String> },
    #[error("a shape is given for `{name}`, which is an array of the params file and not an input")]
    ShapeOfArray { name: String },
    #[error("input `{input}`: shape must match {declared} of the symbol, got {given}; only extents of 0 can be chosen")]
    ShapeConflict { input: String, given: Shape, declared: String },
    #[error("{at}: {error}")]
    Limit { at: String, error: LoadLimitError },
    #[error(
        "array `{name}`: shape must be {declared}, got {found} in the params file; is it the file of another network?"
    )]
    ArrayShape { name: String, declared: String, found: Shape },
}

/// A variable that is neither an array nor an input with a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// Its shape in the symbol, with 0 for dynamic extents.
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
        write!(f, ") is not an array of the params file; if it is an input, choose its shape")
    }
}
