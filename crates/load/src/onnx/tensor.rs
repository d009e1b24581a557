//! `TensorProto` to [`Tensor`], with elements in the file or in external data.

use std::io::ErrorKind;

use ir::TensorType;
use types::{Bytes, DType, LoadBudget, LoadLimitError, Shape, Tensor};

use super::external::ExternalData;
use super::{LoadError, model};
use crate::common::Narrow;

/// Why a tensor cannot be read.
pub(super) enum Problem {
    Content(String),
    External(String),
    Limit(LoadLimitError),
}

impl Problem {
    /// The error of tensor `name`.
    pub(super) fn of(self, name: &str) -> LoadError {
        let tensor = name.to_string();
        match self {
            Problem::Content(reason) => LoadError::Tensor { tensor, reason },
            Problem::External(reason) => LoadError::ExternalData { tensor, reason },
            Problem::Limit(error) => LoadError::Limit { at: format!("tensor `{tensor}`"), error },
        }
    }

    /// The message without the name of the tensor.
    pub(super) fn reason(self) -> String {
        match self {
            Problem::Content(reason) | Problem::External(reason) => reason,
            Problem::Limit(error) => error.to_string(),
        }
    }
}

/// The dtype with a number of `TensorProto.DataType`.
pub(super) fn dtype(element: i64) -> Result<DType, String> {
    Ok(match element {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::Bf16,
        0 => return Err("the element type is missing".to_string()),
        8 => return Err("strings are not supported".to_string()),
        14 | 15 => return Err("complex numbers are not supported".to_string()),
        other => {
            return Err(match narrow(other) {
                Some(narrow) => format!("{} is not supported", narrow.name()),
                None => format!("element type {other} is not supported"),
            });
        }
    })
}

/// The narrow type with a number of `TensorProto.DataType`.
pub(super) fn narrow(element: i64) -> Option<Narrow> {
    Some(match element {
        17 => Narrow::F8E4M3Fn,
        18 => Narrow::F8E4M3Fnuz,
        19 => Narrow::F8E5M2,
        20 => Narrow::F8E5M2Fnuz,
        21 => Narrow::U4,
        22 => Narrow::I4,
        23 => Narrow::F4E2M1,
        24 => Narrow::F8E8M0,
        25 => Narrow::U2,
        26 => Narrow::I2,
        27 => Narrow::F6E2M3,
        28 => Narrow::F6E3M2,
        _ => return None,
    })
}

/// Reads a tensor; numbers of a narrow type are read as its dtype.
pub(super) fn read(
    proto: &model::Tensor,
    external: Option<&dyn ExternalData>,
    budget: &LoadBudget,
) -> Result<Tensor, Problem> {
    let narrow = narrow(proto.element);
    let dtype = match narrow {
        Some(narrow) => narrow.dtype(),
        None => dtype(proto.element).map_err(Problem::Content)?,
    };
    let extents: Option<Shape> = proto.dims.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let shape = extents.ok_or_else(|| Problem::Content(format!("extents must be >= 0, got {:?}", proto.dims)))?;
    let ty = TensorType::new(dtype, shape);
    ty.check_size().map_err(|refusal| Problem::Content(refusal.0))?;
    let shape = ty.shape;
    if let Some(narrow) = narrow {
        return read_narrow(proto, external, narrow, shape, budget);
    }
    let need = if proto.is_external { dtype.size() * shape.elements() as u64 } else { size_in_file(proto, dtype) };
    budget.take(need).map_err(Problem::Limit)?;
    let content = |error: types::TensorError| Problem::Content(error.to_string());
    if proto.is_external {
        return read_external(proto, dtype, shape, external).map_err(Problem::External);
    }
    if let Some(raw) = proto.raw {
        return Tensor::from_le_bytes(dtype, shape, raw).map_err(content);
    }
    match dtype {
        DType::F32 => Tensor::new(shape, proto.floats.clone()),
        DType::F64 => Tensor::new(shape, proto.doubles.clone()),
        DType::I64 => Tensor::new(shape, proto.int64s.clone()),
        DType::U32 | DType::U64 => Tensor::new(shape, proto.uint64s.clone()).map(|tensor| tensor.cast(dtype)),
        // The low half of each integer has the bits of a 16-bit float.
        DType::F16 | DType::Bf16 => {
            let bytes: Vec<u8> = proto.int32s.iter().flat_map(|&bits| (bits as u16).to_le_bytes()).collect();
            Tensor::from_le_bytes(dtype, shape, &bytes)
        }
        DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16 | DType::Bool => {
            Tensor::new(shape, proto.int32s.clone()).map(|tensor| tensor.cast(dtype))
        }
    }
    .map_err(content)
}

/// Numbers of few bits, one behind the other from the lowest bits of a byte on, or in the lowest bits of an integer for each
/// byte (for each number, if those have 6 bits).
fn read_narrow(
    proto: &model::Tensor,
    external: Option<&dyn ExternalData>,
    narrow: Narrow,
    shape: Shape,
    budget: &LoadBudget,
) -> Result<Tensor, Problem> {
    let (count, bits) = (shape.elements(), narrow.bits());
    let size = (count * bits).div_ceil(8);
    let apart = proto.raw.is_none() && !proto.is_external;
    let found: std::borrow::Cow<[u8]> = match proto.raw {
        _ if proto.is_external => {
            budget.take(Bytes(size as u64)).map_err(Problem::Limit)?;
            read_external(proto, DType::U8, Shape::from([size]), external)
                .map_err(Problem::External)?
                .to_le_bytes()
                .into()
        }
        Some(raw) => raw.into(),
        None => {
            budget.take(Bytes(proto.int32s.len() as u64)).map_err(Problem::Limit)?;
            proto.int32s.iter().map(|&bits| bits as u8).collect()
        }
    };
    let step = if apart && bits == 6 { 8 } else { bits };
    if found.len() != (count * step).div_ceil(8) {
        let want = (count * step).div_ceil(8);
        let reason = format!("{count} numbers of {} must be in {want} bytes, got {}", narrow.name(), found.len());
        return Err(Problem::Content(reason));
    }
    budget.take(narrow.dtype().size() * count as u64).map_err(Problem::Limit)?;
    let table: Vec<f32> = (0..=255).map(|code| narrow.decode(code)).collect();
    // A number of 6 bits may lie in two bytes.
    let code = |ix: usize| {
        let at = ix * step;
        let next = found.get(at / 8 + 1).copied().unwrap_or(0);
        (u16::from_le_bytes([found[at / 8], next]) >> (at % 8)) as u8
    };
    let number = |ix: usize| table[usize::from(code(ix))];
    Ok(match narrow.dtype() {
        DType::I8 => Tensor::from_fn(shape, |ix| number(ix) as i8),
        DType::U8 => Tensor::from_fn(shape, |ix| number(ix) as u8),
        _ => Tensor::from_fn(shape, number),
    })
}

/// The size of the elements that the file has, for any shape.
fn size_in_file(proto: &model::Tensor, dtype: DType) -> Bytes {
    let lists = [proto.floats.len(), proto.doubles.len(), proto.int32s.len(), proto.int64s.len(), proto.uint64s.len()];
    match proto.raw {
        Some(raw) => Bytes(raw.len() as u64),
        None => dtype.size() * lists.into_iter().max().unwrap_or(0) as u64,
    }
}

/// A tensor whose elements are in external data.
fn read_external(
    proto: &model::Tensor,
    dtype: DType,
    shape: Shape,
    external: Option<&dyn ExternalData>,
) -> Result<Tensor, String> {
    let size_bytes = dtype.size().0 * shape.elements() as u64;
    let entry = |key: &str| proto.external.iter().find(|entry| entry.0 == key).map(|entry| entry.1);
    let number = |key: &str, default: u64| match entry(key) {
        None => Ok(default),
        Some(text) => text.parse::<u64>().map_err(|_| format!("`{key}` must be a number, got `{text}`")),
    };
    let location = entry("location").ok_or("`location` is missing")?;
    let external = external
        .ok_or_else(|| format!("its elements are in `{location}`, but the model was loaded without external data"))?;
    let offset = number("offset", 0)?;
    let length = number("length", size_bytes)?;
    if length != size_bytes {
        return Err(format!("`length` must be the size of the tensor, {size_bytes} bytes, got {length}"));
    }
    let failed = |error: std::io::Error| format!("`{location}`: {error}");
    let mut bytes = external.open(location, offset, length).map_err(failed)?;
    Tensor::read_le(dtype, shape, &mut bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => format!("`{location}`: the file became shorter while it was read"),
        _ => failed(error),
    })
}
