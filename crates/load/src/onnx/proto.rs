//! The protobuf wire format, read from a slice field by field, without copies.
//!
//! The input is not trusted: lengths are checked against the rest of the slice. Nothing here recurses; a nested message is
//! a slice that the caller reads with another [`Reader`]. Specification: <https://protobuf.dev/programming-guides/encoding/>.

use types::{Bytes, LoadBudget};

use super::LoadError;

/// Reads the fields of one message.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// Pays for the memory of the fields: some bytes of a file may become a hundred times as many.
    budget: &'a LoadBudget,
    /// Name of the message, for errors.
    message: &'static str,
}

/// The payload of one field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], message: &'static str, budget: &'a LoadBudget) -> Reader<'a> {
        Reader { bytes, message, budget }
    }

    /// The payload as a nested message.
    pub(super) fn nested(&self, field: Field<'a>, message: &'static str) -> Result<Reader<'a>, LoadError> {
        /// More than any message's own fields take, twice for vectors that grow.
        const MESSAGE: Bytes = Bytes(512);
        self.take_memory(MESSAGE)?;
        Ok(Reader::new(self.slice(field)?, message, self.budget))
    }

    fn take_memory(&self, need: Bytes) -> Result<(), LoadError> {
        let limit = |error| LoadError::Limit { at: self.message.to_string(), error };
        self.budget.take(need).map_err(limit)
    }

    /// The next field's number and payload; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, LoadError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        // A name or a number in a list, twice for vectors that grow.
        self.take_memory(Bytes(32))?;
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(self.array()?),
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| self.truncated())?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(self.array()?),
            wire => return Err(self.malformed(&format!("wire type must be 0, 1, 2 or 5, got {wire}"))),
        };
        match key >> 3 {
            0 => Err(self.malformed("field numbers must be >= 1, got 0")),
            number => Ok(Some((number, field))),
        }
    }

    fn varint(&mut self) -> Result<u64, LoadError> {
        let (value, rest) = split_varint(self.bytes).ok_or_else(|| match self.bytes.len() < 10 {
            true => self.truncated(),
            false => self.malformed("a varint must have at most 10 bytes"),
        })?;
        self.bytes = rest;
        Ok(value)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let (array, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| self.truncated())?;
        self.bytes = rest;
        Ok(*array)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], LoadError> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or_else(|| self.truncated())?;
        self.bytes = rest;
        Ok(taken)
    }

    fn truncated(&self) -> LoadError {
        LoadError::Truncated { part: self.message }
    }

    /// An error about this message.
    pub(super) fn malformed(&self, problem: &str) -> LoadError {
        LoadError::Malformed { reason: format!("{}: {problem}", self.message) }
    }

    /// The payload as a number.
    pub(super) fn int(&self, field: Field) -> Result<i64, LoadError> {
        match field {
            Field::Varint(value) => Ok(value as i64),
            _ => Err(self.malformed("a field must be a varint")),
        }
    }

    /// The payload as a single-precision number.
    pub(super) fn float(&self, field: Field) -> Result<f32, LoadError> {
        match field {
            Field::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(self.malformed("a field must be a floating-point number")),
        }
    }

    /// The payload as bytes.
    pub(super) fn slice(&self, field: Field<'a>) -> Result<&'a [u8], LoadError> {
        match field {
            Field::Bytes(bytes) => Ok(bytes),
            _ => Err(self.malformed("a field must be length-delimited")),
        }
    }

    /// The payload as text.
    pub(super) fn text(&self, field: Field<'a>) -> Result<&'a str, LoadError> {
        std::str::from_utf8(self.slice(field)?).map_err(|_| self.malformed("a name must be UTF-8"))
    }

    /// The payload as a name, which messages and reports quote in lines of their own.
    pub(super) fn name(&self, field: Field<'a>) -> Result<&'a str, LoadError> {
        let name = self.text(field)?;
        match name.contains('\n') {
            true => Err(self.malformed(&format!("a name must be one line, got {name:?}"))),
            false => Ok(name),
        }
    }

    /// Appends one number, or all numbers of a packed field.
    pub(super) fn ints(&self, field: Field<'a>, out: &mut Vec<i64>) -> Result<(), LoadError> {
        let mut rest = match field {
            Field::Bytes(bytes) => bytes,
            other => {
                out.push(self.int(other)?);
                return Ok(());
            }
        };
        self.take_memory(Bytes(16 * rest.len() as u64))?;
        while !rest.is_empty() {
            let (value, after) = split_varint(rest).ok_or_else(|| self.truncated())?;
            out.push(value as i64);
            rest = after;
        }
        Ok(())
    }

    /// Appends one number, or all numbers of a packed field.
    pub(super) fn floats(&self, field: Field<'a>, out: &mut Vec<f32>) -> Result<(), LoadError> {
        match field {
            Field::Bytes(bytes) if bytes.len().is_multiple_of(4) => {
                self.take_memory(Bytes(2 * bytes.len() as u64))?;
                out.extend(
                    bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])),
                );
                Ok(())
            }
            Field::Bytes(_) => Err(self.truncated()),
            other => {
                out.push(self.float(other)?);
                Ok(())
            }
        }
    }

    /// Appends one number, or all numbers of a packed field.
    pub(super) fn doubles(&self, field: Field<'a>, out: &mut Vec<f64>) -> Result<(), LoadError> {
        match field {
            Field::Bytes(bytes) if bytes.len().is_multiple_of(8) => {
                self.take_memory(Bytes(2 * bytes.len() as u64))?;
                let (chunks, _) = bytes.as_chunks::<8>();
                out.extend(chunks.iter().map(|chunk| f64::from_le_bytes(*chunk)));
                Ok(())
            }
            Field::Bytes(_) => Err(self.truncated()),
            Field::Fixed64(bytes) => {
                out.push(f64::from_le_bytes(bytes));
                Ok(())
            }
            _ => Err(self.malformed("a field must be a floating-point number")),
        }
    }
}

/// Splits a varint off the front.
fn split_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (ix, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * ix);
        if byte < 0x80 {
            return Some((value, &bytes[ix + 1..]));
        }
    }
    None
}
