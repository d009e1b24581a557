//! Writers of named tensors: safetensors with metadata, NumPy `.npz`, MXNet `.params`. The same tensors give the same bytes.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use types::{DType, Tensor};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::{extension, npy, params};

/// A form in which named tensors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorForm {
    /// safetensors.
    Safetensors,
    /// A zip archive of `.npy` files, without compression.
    Npz,
    /// MXNet's list of arrays.
    Params,
}

impl TensorForm {
    /// The form of a file by its extension: `.safetensors`, `.npz` or `.params`.
    pub fn of(path_name: &str) -> Option<TensorForm> {
        match extension(path_name).as_str() {
            "safetensors" => Some(TensorForm::Safetensors),
            "npz" => Some(TensorForm::Npz),
            "params" => Some(TensorForm::Params),
            _ => None,
        }
    }
}

/// The bytes of a file with these tensors, which [`crate::read`] reads back under the same names.
///
/// # Errors
/// An archive of more than 4 GiB, which the plain form of zip cannot index.
pub fn write(form: TensorForm, tensors: &BTreeMap<String, Tensor>) -> Result<Vec<u8>, String> {
    match form {
        TensorForm::Safetensors => Ok(write_safetensors(tensors, &BTreeMap::new())),
        TensorForm::Npz => write_npz(tensors).map_err(|error| error.to_string()),
        TensorForm::Params => Ok(params::write(tensors)),
    }
}

/// A safetensors file with texts by name in its `__metadata__`.
pub fn write_safetensors(tensors: &BTreeMap<String, Tensor>, metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut fields = Vec::with_capacity(tensors.len() + 1);
    if !metadata.is_empty() {
        let entries: Vec<String> =
            metadata.iter().map(|(key, text)| format!("{}:{}", quoted(key), quoted(text))).collect();
        fields.push(format!("\"__metadata__\":{{{}}}", entries.join(",")));
    }
    let mut at = 0;
    for (name, tensor) in tensors {
        let extents: Vec<String> = tensor.shape().iter().map(ToString::to_string).collect();
        let end = at + tensor.size().0;
        fields.push(format!(
            "{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{at},{end}]}}",
            quoted(name),
            dtype_name(tensor.dtype()),
            extents.join(",")
        ));
        at = end;
    }
    let mut header = format!("{{{}}}", fields.join(","));
    // The elements begin at a multiple of eight bytes.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = Vec::with_capacity(8 + header.len() + at as usize);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    tensors.values().for_each(|tensor| file.extend_from_slice(&tensor.to_le_bytes()));
    file
}

/// The dtype's name in a safetensors header.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::F16 => "F16",
        DType::Bf16 => "BF16",
        DType::I8 => "I8",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::U16 => "U16",
        DType::U32 => "U32",
        DType::U64 => "U64",
        DType::Bool => "BOOL",
    }
}

fn write_npz(tensors: &BTreeMap<String, Tensor>) -> zip::result::ZipResult<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, tensor) in tensors {
        archive.start_file(format!("{name}.npy"), stored)?;
        archive.write_all(&npy::write(tensor))?;
    }
    Ok(archive.finish()?.into_inner())
}
