//! MXNet `.params`: lists of arrays as `mx.nd.save` writes them, all four versions.
//!
//! Source: `src/ndarray/ndarray.cc` of MXNet 1.9.1 (`NDArray::Save`, `Load`, `LegacyLoad`). Numbers are little-endian:
//!
//! ```text
//! u64 0x112, u64 0, u64 n, n arrays, u64 m (0 or n), m names (u64 length, bytes)
//! array: u32 magic, [i32 storage], shape, i32 device type, i32 device id, i32 dtype, elements
//! ```
//!
//! A sparse array has the shape of its stored elements before its own shape. After the dtype follow dtype and shape of each
//! index list, then the elements, then the index lists. It is read to its end, so that the error can name it.

use std::collections::BTreeMap;

use types::{DType, Shape, Tensor};

use crate::{Budget, FormatError};

/// The first bytes of a `.params` file.
pub(super) const MAGIC: &[u8] = &0x112u64.to_le_bytes();

/// Magic numbers of arrays; the oldest version has none and begins with the rank.
const V1: u32 = 0xF993_FAC8;
const V2: u32 = 0xF993_FAC9;
const V3: u32 = 0xF993_FACA;

/// Most dimensions of an array.
const RANK_MAX: i64 = 32;

/// The arrays of a file by name, without the prefixes `arg:` and `aux:`; by position if it has no names.
pub(super) fn read(bytes: &[u8], budget: &mut Budget) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let mut reader = Reader { bytes, at: 0 };
    reader.u64("the head")?;
    reader.u64("the head")?;
    let count = reader.u64("the number of arrays")?;
    let mut arrays = Vec::new();
    for ix in 0..count {
        // More than an array without elements and its name take.
        budget.take(256)?;
        arrays.push(reader.array(budget).map_err(|problem| problem.of(ix))?);
    }
    let names = reader.u64("the number of names")?;
    if names != 0 && names != count {
        return Err(FormatError::Content(format!(
            "the number of names must be 0 or that of the arrays, {count}, got {names}"
        )));
    }
    let mut tensors = BTreeMap::new();
    for (ix, array) in arrays.into_iter().enumerate() {
        let name = if names == 0 { ix.to_string() } else { reader.name()? };
        let short = name.strip_prefix("arg:").or_else(|| name.strip_prefix("aux:")).unwrap_or(&name);
        let array = match array {
            Array::Dense(tensor) => tensor,
            Array::Empty => continue,
            Array::Sparse(kind) => {
                let problem = format!("must be dense, got {kind}; save it with `.tostype('default')`");
                return Err(FormatError::Tensor { name: short.to_string(), problem });
            }
        };
        if tensors.insert(short.to_string(), array).is_some() {
            return Err(FormatError::Duplicate { name: short.to_string() });
        }
    }
    if reader.at != bytes.len() {
        return Err(FormatError::Malformed { at: reader.at, reason: "the file must end after the last name" });
    }
    Ok(tensors)
}

/// A file of arrays in the form of MXNet 1.x, version 2 with names; scalars have version 3, in which rank 0 has an element.
pub(super) fn write(tensors: &BTreeMap<String, Tensor>) -> Vec<u8> {
    let mut file = [MAGIC, &0u64.to_le_bytes(), &(tensors.len() as u64).to_le_bytes()].concat();
    let mut number = |bytes: &[u8]| file.extend_from_slice(bytes);
    for tensor in tensors.values() {
        let shape = tensor.shape();
        number(&if shape.rank() == 0 { V3 } else { V2 }.to_le_bytes());
        // Dense storage.
        number(&0i32.to_le_bytes());
        number(&(shape.rank() as i32).to_le_bytes());
        shape.iter().for_each(|&extent| number(&(extent as i64).to_le_bytes()));
        // Device 0 of kind 1, the processor.
        number(&1i32.to_le_bytes());
        number(&0i32.to_le_bytes());
        let at = DTYPES.iter().position(|&dtype| dtype == tensor.dtype()).expect("MXNet has a number for every dtype");
        number(&(at as i32).to_le_bytes());
        number(&tensor.to_le_bytes());
    }
    number(&(tensors.len() as u64).to_le_bytes());
    for name in tensors.keys() {
        number(&(name.len() as u64).to_le_bytes());
        number(name.as_bytes());
    }
    file
}

/// The element types in the order of MXNet's numbers (`mshadow::TypeFlag`).
const DTYPES: [DType; 13] = {
    use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    [F32, F64, F16, U8, I32, I8, I64, Bool, I16, U16, U32, U64, Bf16]
};

/// The element type with MXNet's number `number` (`mshadow::TypeFlag`); `None` if there is no such number.
pub fn dtype(number: i64) -> Option<DType> {
    DTYPES.get(usize::try_from(number).ok()?).copied()
}

/// One array of a file.
enum Array {
    Dense(Tensor),
    /// An array that was never filled and has no shape.
    Empty,
    /// A sparse array of this kind, which is not supported.
    Sparse(&'static str),
}

/// An error that still needs the name of its array.
enum ArrayError {
    Array(String),
    File(FormatError),
}

impl ArrayError {
    fn of(self, ix: u64) -> FormatError {
        match self {
            ArrayError::Array(problem) => FormatError::Tensor { name: ix.to_string(), problem },
            ArrayError::File(problem) => problem,
        }
    }
}

impl From<FormatError> for ArrayError {
    fn from(problem: FormatError) -> ArrayError {
        ArrayError::File(problem)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: u64, part: &'static str) -> Result<&'a [u8], FormatError> {
        let rest = &self.bytes[self.at..];
        let count = usize::try_from(count).ok().filter(|&count| count <= rest.len());
        let taken = &rest[..count.ok_or(FormatError::Truncated { part })?];
        self.at += taken.len();
        Ok(taken)
    }

    fn number<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], FormatError> {
        Ok(self.take(N as u64, part)?.try_into().expect("`N` bytes were taken"))
    }

    fn u32(&mut self, part: &'static str) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.number(part)?))
    }

    fn i32(&mut self, part: &'static str) -> Result<i32, FormatError> {
        Ok(i32::from_le_bytes(self.number(part)?))
    }

    fn u64(&mut self, part: &'static str) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.number(part)?))
    }

    fn name(&mut self) -> Result<String, FormatError> {
        let (at, length) = (self.at, self.u64("a name")?);
        let name = self.take(length, "a name")?;
        String::from_utf8(name.to_vec()).map_err(|_| FormatError::Malformed { at, reason: "a name must be UTF-8" })
    }

    fn array(&mut self, budget: &mut Budget) -> Result<Array, ArrayError> {
        let magic = self.u32("an array")?;
        let shape = match magic {
            V2 | V3 => match self.i32("an array")? {
                0 => self.shape()?,
                1 => return self.sparse("row_sparse", 1),
                2 => return self.sparse("csr", 2),
                storage => return Err(ArrayError::Array(format!("storage type must be 0, 1 or 2, got {storage}"))),
            },
            V1 => self.shape()?,
            rank => self.extents(i64::from(rank), |reader| Ok(i64::from(reader.u32("a shape")?)))?,
        };
        // Rank 0 is an empty array up to V2, and a scalar since V3.
        let Some(shape) = shape.filter(|shape| magic == V3 || shape.rank() != 0) else { return Ok(Array::Empty) };
        let dtype = self.device_and_dtype()?;
        let elements = self.elements(dtype, &shape)?;
        budget.take(elements.len() as u64)?;
        let tensor = Tensor::from_le_bytes(dtype, shape, elements);
        tensor.map(Array::Dense).map_err(|error| ArrayError::Array(error.to_string()))
    }

    fn sparse(&mut self, kind: &'static str, lists: usize) -> Result<Array, ArrayError> {
        let stored = self.shape()?.unwrap_or_default();
        if self.shape()?.is_none_or(|shape| shape.rank() == 0) {
            return Ok(Array::Empty);
        }
        let mut parts = vec![(self.device_and_dtype()?, stored)];
        for _ in 0..lists {
            parts.push((self.dtype()?, self.shape()?.unwrap_or_default()));
        }
        for (dtype, shape) in parts {
            self.elements(dtype, &shape)?;
        }
        Ok(Array::Sparse(kind))
    }

    /// Skips the device and reads the dtype.
    fn device_and_dtype(&mut self) -> Result<DType, ArrayError> {
        self.take(8, "an array")?;
        self.dtype()
    }

    fn dtype(&mut self) -> Result<DType, ArrayError> {
        let number = self.i32("an array")?;
        dtype(i64::from(number)).ok_or_else(|| ArrayError::Array(format!("element type {number} is not supported")))
    }

    fn elements(&mut self, dtype: DType, shape: &Shape) -> Result<&'a [u8], ArrayError> {
        let elements = shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent as u64));
        let size = elements.and_then(|elements| elements.checked_mul(dtype.size().0));
        Ok(self.take(size.ok_or(FormatError::Truncated { part: "an array's elements" })?, "an array's elements")?)
    }

    fn shape(&mut self) -> Result<Option<Shape>, ArrayError> {
        let rank = self.i32("a shape")?;
        self.extents(i64::from(rank), |reader| Ok(i64::from_le_bytes(reader.number("a shape")?)))
    }

    fn extents(
        &mut self,
        rank: i64,
        mut next: impl FnMut(&mut Self) -> Result<i64, FormatError>,
    ) -> Result<Option<Shape>, ArrayError> {
        if rank == -1 {
            return Ok(None);
        }
        if !(0..=RANK_MAX).contains(&rank) {
            return Err(ArrayError::Array(format!("rank must be at most {RANK_MAX}, got {rank}")));
        }
        let mut shape = Shape::scalar();
        for _ in 0..rank {
            let extent = next(self)?;
            match usize::try_from(extent) {
                Ok(extent) => shape.push(extent),
                Err(_) => return Err(ArrayError::Array(format!("extents must be >= 0, got {extent}"))),
            }
        }
        Ok(Some(shape))
    }
}
