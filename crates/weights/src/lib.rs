//! Readers of tensor files: safetensors, NumPy `.npy` and `.npz`, PyTorch `.pth` (zip archive and legacy), MXNet
//! `.params`, and pickles of NumPy arrays. [`write()`] is the way back for three of them.
//!
//! [`read`] detects the format by the first bytes, and by the file extension only if those are ambiguous. It does no I/O,
//! never calls the functions that a pickle names, and bounds its allocations by a multiple of the file's length.
//!
//! Tensors in nested containers are named by the path to them: keys and list positions joined by `.`.
//!
//! ```
//! use prestow_weights::npy;
//! use types::{Shape, Tensor};
//!
//! let bias = Tensor::new(Shape::from([2]), vec![0.5f32, -0.5]).unwrap();
//! let bytes = npy::write(&bias);
//! assert_eq!(npy::read(&bytes).unwrap(), bias);
//!
//! // A `.npy` file holds one tensor, which is named after the file.
//! let tensors = prestow_weights::read("bias.npy", &bytes).unwrap();
//! assert_eq!(tensors["bias"], bias);
//! ```

mod archive;
mod flatten;
pub mod npy;
mod object;
pub mod params;
mod pickle;
mod pth;
mod safetensors;
mod write;

use std::collections::BTreeMap;

use npy::NpyError;
use types::{Bytes, LoadBudget, LoadLimit, LoadLimitError, Tensor};

pub use safetensors::metadata;
pub use write::{TensorForm, write, write_safetensors};

/// Reads all tensors of a file with content `bytes`. `path_name` is used for its extension and in messages.
///
/// # Errors
/// If the format is not supported, the file is damaged or empty, it needs more memory than its length allows, or a pickle
/// calls a function that does not build a tensor.
pub fn read(path_name: &str, bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, WeightsError> {
    read_within(path_name, bytes, &LoadBudget::new(LoadLimit::UNLIMITED))
}

/// [`read`], with memory from a budget as well.
///
/// # Errors
/// As [`read`], and if the budget is exceeded.
pub fn read_within(path_name: &str, bytes: &[u8], load: &LoadBudget) -> Result<BTreeMap<String, Tensor>, WeightsError> {
    let tensors = read_any(path_name, bytes, load).and_then(|tensors| match tensors.is_empty() {
        true => Err(FormatError::Empty),
        false => Ok(tensors),
    });
    tensors.map_err(|problem| WeightsError { file: path_name.to_string(), problem: problem.into() })
}

/// Why a file of tensors cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{file}`: {problem}")]
pub struct WeightsError {
    /// The file's name as passed in.
    pub file: String,
    /// The reason.
    pub problem: Box<FormatError>,
}

/// Reason why a file of tensors cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum FormatError {
    #[error("must be safetensors, .npz, .npy, .pth, .params or a pickle of arrays")]
    Unknown,
    #[error("must contain at least one tensor, found none")]
    Empty,
    #[error("the file is truncated in {part}; copy it again")]
    Truncated { part: &'static str },
    #[error("the pickle calls `{name}`, which does not build tensors; convert the file to safetensors")]
    Forbidden { name: String },
    #[error("byte {at}: pickle opcode 0x{opcode:02x} is not supported in files of tensors")]
    Opcode { opcode: u8, at: usize },
    #[error("byte {at}: {reason}")]
    Malformed { at: usize, reason: &'static str },
    #[error("{0}")]
    Content(String),
    #[error("element type `{name}` is not supported")]
    ElementType { name: String },
    #[error("the file needs more than {limit} {unit}, the limit for its length")]
    Limit { limit: u64, unit: &'static str },
    #[error(transparent)]
    Load(#[from] LoadLimitError),
    #[error("two tensors are named `{name}`")]
    Duplicate { name: String },
    #[error("tensor `{name}`: {problem}")]
    Tensor { name: String, problem: String },
    #[error("zip archive: {0}")]
    Zip(String),
    #[error("safetensors: {0}")]
    SafeTensors(String),
    #[error("entry `{entry}`: {error}")]
    Npy { entry: String, error: NpyError },
}

/// Bytes that reading one file may still allocate.
///
/// A hostile archive can inflate to a thousand times its length, and a hostile pickle can view one storage a million times.
struct Budget<'a> {
    limit: u64,
    left: u64,
    /// The caller's, which bounds large files as well.
    load: &'a LoadBudget,
}

impl Budget<'_> {
    /// The budget of a file with `length` bytes.
    fn for_file(length: usize, load: &LoadBudget) -> Budget<'_> {
        const FLOOR: u64 = 64 << 20;
        let limit = FLOOR + 16 * length as u64;
        Budget { limit, left: limit, load }
    }

    /// The bytes left.
    fn left(&self) -> u64 {
        self.left.min(self.load.memory_left().0)
    }

    /// Takes `size_bytes` from the budget.
    ///
    /// # Errors
    /// If less is left.
    fn take(&mut self, size_bytes: u64) -> Result<(), FormatError> {
        let refused = FormatError::Limit { limit: self.limit, unit: "bytes" };
        self.left = self.left.checked_sub(size_bytes).ok_or(refused)?;
        Ok(self.load.take(Bytes(size_bytes))?)
    }
}

fn read_any(path_name: &str, bytes: &[u8], load: &LoadBudget) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let mut budget = Budget::for_file(bytes.len(), load);
    if bytes.starts_with(b"PK\x03\x04") {
        return archive::read(bytes, &mut budget);
    }
    if bytes.starts_with(b"\x93NUMPY") {
        budget.take(bytes.len() as u64)?;
        let tensor = npy::read(bytes).map_err(|error| FormatError::Npy { entry: path_name.to_string(), error })?;
        return Ok(BTreeMap::from([(stem(path_name).to_string(), tensor)]));
    }
    if bytes.starts_with(params::MAGIC) {
        return params::read(bytes, &mut budget);
    }
    if bytes.starts_with(pth::LEGACY_MAGIC) {
        return pth::read_legacy(bytes, &mut budget);
    }
    if safetensors::matches(bytes) {
        return safetensors::read(bytes, &mut budget);
    }
    // Pickles begin with their protocol since protocol 2; earlier ones are detected by extension.
    if matches!(bytes, [0x80, 2..=5, ..]) {
        return read_pickle(bytes, &mut budget);
    }
    match extension(path_name).as_str() {
        "pkl" | "pickle" => read_pickle(bytes, &mut budget),
        "safetensors" => safetensors::read(bytes, &mut budget),
        _ => Err(FormatError::Unknown),
    }
}

fn read_pickle(bytes: &[u8], budget: &mut Budget) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let pickle = pickle::load(bytes, budget)?;
    flatten::flatten(&pickle, &BTreeMap::new(), budget)
}

fn file_name(path_name: &str) -> &str {
    path_name.rsplit(['/', '\\']).next().unwrap_or(path_name)
}

fn stem(path_name: &str) -> &str {
    let name = file_name(path_name);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

fn extension(path_name: &str) -> String {
    file_name(path_name).rsplit_once('.').map_or(String::new(), |(_, extension)| extension.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
