//! safetensors files.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};
use types::{DType, Tensor};

use crate::{Budget, FormatError};

/// Whether `bytes` begin with a header length that fits the file, followed by JSON.
pub(super) fn matches(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return false };
    rest.first() == Some(&b'{') && u64::from_le_bytes(*length) <= rest.len() as u64
}

pub(super) fn read(bytes: &[u8], budget: &mut Budget) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| FormatError::SafeTensors(error.to_string()))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.tensors() {
        let dtype =
            dtype(view.dtype()).ok_or_else(|| FormatError::ElementType { name: format!("{:?}", view.dtype()) })?;
        budget.take(view.data().len() as u64)?;
        let tensor = Tensor::from_le_bytes(dtype, view.shape().into(), view.data())
            .map_err(|error| FormatError::Tensor { name: name.clone(), problem: error.to_string() })?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// The texts by name in the `__metadata__` of a safetensors file; empty if it has none or is of another form.
pub fn metadata(bytes: &[u8]) -> BTreeMap<String, String> {
    let header = SafeTensors::read_metadata(bytes).ok();
    let texts = header.and_then(|(_, header)| header.metadata().clone());
    texts.into_iter().flatten().collect()
}

fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}
