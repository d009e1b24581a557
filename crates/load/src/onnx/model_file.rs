//! [`ModelFile`]: a model file without its large tensors, which are read one by one when they are needed.
//!
//! An ONNX file has its weights between its nodes, so that to read it whole takes its size once more than its weights do.
//! The outline is the same model with external data in the place of large tensors; the data is in the model file itself.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use files::FileError;
use types::Bytes;

use super::external::{ExternalData, check_length, open_in};

/// The location of tensors in the model file; no path is empty.
const IN_MODEL: &str = "";
/// Smaller tensors stay in the outline.
const LARGE: u64 = 1 << 16;
/// Nested messages up to the elements of an initializer, by the number of their field: the graph, the initializer.
const WAY: [u64; 2] = [7, 5];
/// Elements of a tensor as bytes.
const RAW: u64 = 9;
/// A key and its value: where external data is.
const EXTERNAL: u64 = 13;
/// Whether a tensor has external data.
const DATA_LOCATION: u64 = 14;

/// A model file that stays open.
#[derive(Debug)]
pub struct ModelFile {
    file: File,
    folder: PathBuf,
    outline: Vec<u8>,
    is_whole: bool,
}

impl ModelFile {
    /// Opens a model and reads its outline.
    ///
    /// # Errors
    /// Those of the file system; a file that is not regular; an outline of more than `limit` bytes.
    pub fn open(path: &Path, limit: Bytes) -> std::result::Result<ModelFile, FileError> {
        let file = files::open_regular(path)?;
        let mut source = Source { reader: BufReader::new(&file), at: 0, left: limit.0 };
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let copied = file.metadata().and_then(|found| {
            let mut outline = Vec::new();
            Ok((source.copy(found.len(), &WAY, &mut outline)?, outline))
        });
        let (is_whole, outline) = match copied {
            Ok(found) => found,
            // The reader of models reports the damage.
            Err(_) => (true, files::read_regular(path, limit)?),
        };
        Ok(ModelFile { file, folder, outline, is_whole })
    }

    /// The model, with large tensors as external data of this file.
    pub fn outline(&self) -> &[u8] {
        &self.outline
    }

    /// Whether no tensor was left out.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

impl ExternalData for ModelFile {
    fn open(&self, location: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>> {
        if self.is_whole || location != IN_MODEL {
            return Ok(Box::new(open_in(&self.folder, location, offset, length)?));
        }
        let mut file = &self.file;
        check_length(file.metadata()?.len(), offset, length)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Box::new(file.take(length)))
    }
}

/// A model file that is copied without its large tensors.
struct Source<'a> {
    reader: BufReader<&'a File>,
    /// Bytes that are read or left out.
    at: u64,
    /// Bytes that the outline may still grow by.
    left: u64,
}

impl Source<'_> {
    /// Copies the fields of a message of `size` bytes; of nested messages on the way, theirs. Returns whether it has all of
    /// them.
    fn copy(&mut self, size: u64, way: &[u64], out: &mut Vec<u8>) -> Result<bool> {
        let end = self.at.checked_add(size).ok_or(ErrorKind::InvalidData)?;
        let mut is_whole = true;
        while self.at < end {
            let head = self.at;
            let key = self.varint()?;
            // No field has the number 0: the zeros of a sparse file end here.
            if key >> 3 == 0 {
                return Err(ErrorKind::InvalidData.into());
            }
            let number = if matches!(key & 7, 0 | 2) { self.varint()? } else { 0 };
            // The copy of a key and its number is at most as long.
            self.spend(self.at - head)?;
            if key & 7 != 2 {
                push_varint(out, key);
                match key & 7 {
                    0 => push_varint(out, number),
                    1 => self.take(8, out)?,
                    5 => self.take(4, out)?,
                    _ => return Err(ErrorKind::InvalidData.into()),
                }
                continue;
            }
            let length = number;
            if end < self.at.saturating_add(length) {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match way {
                [next, rest @ ..] if key >> 3 == *next && LARGE < length => {
                    let mut nested = Vec::new();
                    is_whole &= self.copy(length, rest, &mut nested)?;
                    push_message(out, key >> 3, &nested);
                }
                [] if key >> 3 == RAW && LARGE < length => {
                    for (name, value) in
                        [("location", IN_MODEL), ("offset", &self.at.to_string()), ("length", &length.to_string())]
                    {
                        let mut entry = Vec::new();
                        push_message(&mut entry, 1, name.as_bytes());
                        push_message(&mut entry, 2, value.as_bytes());
                        push_message(out, EXTERNAL, &entry);
                    }
                    push_varint(out, DATA_LOCATION << 3);
                    push_varint(out, 1);
                    self.reader.seek_relative(i64::try_from(length).map_err(Error::other)?)?;
                    self.at += length;
                    is_whole = false;
                }
                // A tensor with elements in two places is for the reader of models to judge.
                [] if key >> 3 == EXTERNAL => return Err(ErrorKind::InvalidData.into()),
                _ => {
                    push_varint(out, key);
                    push_varint(out, length);
                    self.take(length, out)?;
                }
            }
        }
        if end < self.at { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(is_whole) }
    }

    /// Takes bytes of the outline before they are copied.
    fn spend(&mut self, bytes: u64) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or(ErrorKind::FileTooLarge)?;
        Ok(())
    }

    fn take(&mut self, length: u64, out: &mut Vec<u8>) -> Result<()> {
        self.spend(length)?;
        let got = (&mut self.reader).take(length).read_to_end(out)? as u64;
        self.at += got;
        if got == length { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.reader.fill_buf()?.first().ok_or(ErrorKind::UnexpectedEof)?;
            self.reader.consume(1);
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ErrorKind::InvalidData.into())
    }
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while 0x7f < value {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn push_message(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    push_varint(out, field << 3 | 2);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
