//! NumPy's `.npy` format, versions 1 to 3, as bytes in memory.
//!
//! Specification: NumPy Enhancement Proposal 1 (`numpy.lib.format`). Written files are version 1, little-endian, C order.

use types::{DType, Shape, Tensor, TensorError};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Why a `.npy` file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NpyError {
    /// The file does not start with NumPy's magic bytes.
    #[error("not a .npy file: it must begin with \\x93NUMPY")]
    Magic,
    /// The file ends too early.
    #[error("the .npy file is truncated")]
    Truncated,
    /// The header is malformed.
    #[error("the .npy header is malformed: {0}")]
    Header(String),
    /// The element type is not supported.
    #[error("the .npy element type `{0}` is not supported")]
    DType(String),
    /// The size of the data differs from the shape in the header.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Reads a tensor. Big-endian and Fortran-ordered files are converted.
pub fn read(bytes: &[u8]) -> Result<Tensor, NpyError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(NpyError::Magic)?;
    let (version, rest) = rest.split_at_checked(2).ok_or(NpyError::Truncated)?;
    let length_size = if version[0] == 1 { 2 } else { 4 };
    let (length, rest) = rest.split_at_checked(length_size).ok_or(NpyError::Truncated)?;
    let length = length.iter().rev().fold(0usize, |sum, &byte| (sum << 8) | usize::from(byte));
    let (header, data) = rest.split_at_checked(length).ok_or(NpyError::Truncated)?;
    let header = std::str::from_utf8(header).map_err(|_| NpyError::Header("it must be UTF-8".into()))?;

    let descr = field(header, "descr")?.trim_matches(['\'', '"']);
    let (big_endian, dtype) = parse_descr(descr)?;
    let shape = parse_shape(field(header, "shape")?)?;
    let fortran = field(header, "fortran_order")?.starts_with("True");

    let size = dtype.size().0 as usize;
    let need = shape.elements().saturating_mul(size);
    let data = data.get(..need).ok_or(NpyError::Truncated)?;
    let swapped: Vec<u8>;
    let data = if big_endian && size > 1 {
        swapped = data.chunks_exact(size).flat_map(|item| item.iter().rev().copied()).collect();
        &swapped[..]
    } else {
        data
    };
    if !fortran {
        return Ok(Tensor::from_le_bytes(dtype, shape, data)?);
    }
    let mut row_major = Vec::with_capacity(need);
    let mut index = vec![0; shape.rank()];
    for _ in 0..shape.elements() {
        let position = index.iter().zip(&shape[..]).rev().fold(0, |sum, (&ix, &extent)| sum * extent + ix);
        row_major.extend_from_slice(&data[position * size..(position + 1) * size]);
        for axis in (0..shape.rank()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(Tensor::from_le_bytes(dtype, shape, &row_major)?)
}

/// Writes a tensor. `bf16` is written as `f32`, since NumPy does not support it.
pub fn write(tensor: &Tensor) -> Vec<u8> {
    if tensor.dtype() == DType::Bf16 {
        return write(&tensor.cast(DType::F32));
    }
    let descr = match tensor.dtype() {
        DType::F32 | DType::Bf16 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::Bool => "|b1",
    };
    let extents: String = tensor.shape().iter().map(|extent| format!("{extent}, ")).collect();
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", extents.trim_end_matches(' '));
    // The data starts at a multiple of 64 bytes; the header ends with a newline.
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');

    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(
        &u16::try_from(header.len()).expect("a shape has few dimensions, so the header is short").to_le_bytes(),
    );
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&tensor.to_le_bytes());
    bytes
}

/// The value of field `name` of the header.
fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, NpyError> {
    let missing = || NpyError::Header(format!("`{name}` is missing in {header:?}"));
    let at = header.find(&format!("'{name}'")).ok_or_else(missing)?;
    let value = header[at + name.len() + 2..].trim_start().strip_prefix(':').ok_or_else(missing)?.trim_start();
    let end = match value.starts_with('(') {
        true => value.find(')').map(|end| end + 1),
        false => value.find([',', '}']),
    };
    Ok(&value[..end.ok_or_else(missing)?])
}

/// The dtype of NumPy's type code without its byte order, such as `f4`.
pub(crate) fn dtype_of_code(code: &str) -> Option<DType> {
    let dtype = match code {
        "f4" => DType::F32,
        "f8" => DType::F64,
        "f2" => DType::F16,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "b1" => DType::Bool,
        _ => return None,
    };
    Some(dtype)
}

fn parse_descr(descr: &str) -> Result<(bool, DType), NpyError> {
    let unknown = || NpyError::DType(descr.to_string());
    let mut chars = descr.chars();
    let order = chars.next().ok_or_else(unknown)?;
    let dtype = dtype_of_code(chars.as_str()).ok_or_else(unknown)?;
    match order {
        '<' | '|' | '=' => Ok((false, dtype)),
        '>' => Ok((true, dtype)),
        _ => Err(unknown()),
    }
}

fn parse_shape(text: &str) -> Result<Shape, NpyError> {
    let extents =
        text.trim_start_matches('(').trim_end_matches(')').split(',').map(str::trim).filter(|part| !part.is_empty());
    extents.map(|part| part.parse().map_err(|_| NpyError::Header(format!("shape {text}")))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_tensors_are_read_back() {
        for shape in [Shape::scalar(), Shape::from([3]), Shape::from([2, 0]), Shape::from([2, 3, 4])] {
            for dtype in DType::ALL {
                let tensor = Tensor::from_fn(shape.clone(), |ix| (ix % 2) as f32).cast(dtype);
                let bytes = write(&tensor);
                assert_eq!(
                    bytes.len() % 64,
                    (tensor.size().0 as usize * if dtype == DType::Bf16 { 2 } else { 1 }) % 64
                );
                assert_eq!(read(&bytes).unwrap().to_f64(), tensor.to_f64());
            }
        }
    }

    #[test]
    fn fortran_order_and_big_endian_are_converted() {
        let header = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n";
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0, header.len() as u8, 0]);
        bytes.extend(header.bytes());
        bytes.extend([0, 0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5]);
        assert_eq!(read(&bytes).unwrap().to_i64(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn truncation_at_every_length_is_refused() {
        let bytes = write(&Tensor::vector(vec![1.0f32, 2.0]));
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "length {length}");
        }
        assert_eq!(read(b"PK\x03\x04"), Err(NpyError::Magic));
    }
}
