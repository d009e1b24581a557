//! Readers of tensor files: safetensors, NumPy `.npy` and `.npz`, PyTorch `.pth` (zip archive and legacy), MXNet
//! `.params`, and pickles of NumPy arrays.
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

use std::collections::BTreeMap;

use npy::NpyError;
use types::Tensor;

/// Reads all tensors of a file whose content is `bytes`. `path_name` serves for its extension and for messages.
///
/// # Errors
/// A file that is none of the formats, damaged, larger than it has a right to be, or one that asks to call something
/// that does not make a tensor.
pub fn read(path_name: &str, bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, WeightsError> {
    let tensors = read_any(path_name, bytes).and_then(|tensors| match tensors.is_empty() {
        true => Err(Problem::Empty),
        false => Ok(tensors),
    });
    tensors.map_err(|problem| WeightsError { file: path_name.to_string(), problem: problem.into() })
}

/// What is wrong with a file of weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{file}`: {problem}")]
pub struct WeightsError {
    /// The file's name, as it was given.
    pub file: String,
    /// What is wrong with it.
    pub problem: Box<Problem>,
}

/// One way in which a file of weights can be wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Problem {
    #[error("neither safetensors nor .npz nor .pth nor .params nor a pickle of arrays")]
    Unknown,
    #[error("the file holds no tensors")]
    Empty,
    #[error("the file ends in the middle of {what}")]
    Truncated { what: &'static str },
    #[error("the file wants to call `{name}`, which is not a tensor")]
    Forbidden { name: String },
    #[error("byte {at}: the pickle instruction 0x{opcode:02x} has no place in a file of tensors")]
    Opcode { opcode: u8, at: usize },
    #[error("byte {at}: {what}")]
    Malformed { at: usize, what: &'static str },
    #[error("{0}")]
    Content(String),
    #[error("element type `{name}` is not supported")]
    ElementType { name: String },
    #[error("the file asks for more than {limit} {what}")]
    Limit { limit: u64, what: &'static str },
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

/// What reading one file may still allocate, in bytes.
///
/// Archives can unfold to a thousand times their length and a pickle can name one storage a million times; neither
/// happens in a file of weights.
struct Budget {
    limit: u64,
    left: u64,
}

impl Budget {
    /// For a file of `length` bytes.
    fn for_file(length: usize) -> Budget {
        const FLOOR: u64 = 64 << 20;
        let limit = FLOOR + 16 * length as u64;
        Budget { limit, left: limit }
    }

    /// Takes `size_bytes` or refuses.
    fn take(&mut self, size_bytes: u64) -> Result<(), Problem> {
        let refused = Problem::Limit { limit: self.limit, what: "bytes" };
        self.left = self.left.checked_sub(size_bytes).ok_or(refused)?;
        Ok(())
    }
}

fn read_any(path_name: &str, bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, Problem> {
    let mut budget = Budget::for_file(bytes.len());
    if bytes.starts_with(b"PK\x03\x04") {
        return archive::read(bytes, &mut budget);
    }
    if bytes.starts_with(b"\x93NUMPY") {
        let tensor = npy::read(bytes).map_err(|error| Problem::Npy { entry: path_name.to_string(), error })?;
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
    // Pickles of protocol 2 and later say so; earlier ones are only told by the extension.
    if matches!(bytes, [0x80, 2..=5, ..]) {
        return read_pickle(bytes, &mut budget);
    }
    match extension(path_name).as_str() {
        "pkl" | "pickle" => read_pickle(bytes, &mut budget),
        "safetensors" => safetensors::read(bytes, &mut budget),
        _ => Err(Problem::Unknown),
    }
}

fn read_pickle(bytes: &[u8], budget: &mut Budget) -> Result<BTreeMap<String, Tensor>, Problem> {
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
