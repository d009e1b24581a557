//! RecordIO: MXNet's container of records, and its records of images.
//!
//! A record is one or several parts: the magic number, the kind (3 bits) and length (29 bits) of the part, its bytes, zeros up
//! to a multiple of 4. Where the bytes of a record have the magic number at a multiple of 4, the writer omits it and starts a
//! new part; readers put it back. An `.idx` file has a line `KEY<TAB>OFFSET` for each record. Source:
//! `3rdparty/dmlc-core/include/dmlc/recordio.h` and `python/mxnet/recordio.py` of MXNet 1.9.1.

use std::io::{self, Write};
use std::path::Path;

use crate::DataError;
use crate::source::{Location, SourceFile};

const MAGIC: u32 = 0xced7_230a;

/// The most bytes of a part.
const PART_MAX: usize = (1 << 29) - 1;

/// Writes records.
pub struct RecordWriter<W> {
    out: W,
    offset: u64,
}

impl<W: Write> RecordWriter<W> {
    /// A writer at the start of a file.
    pub fn new(out: W) -> RecordWriter<W> {
        RecordWriter { out, offset: 0 }
    }

    /// Writes a record. Returns its offset, for the `.idx` file.
    ///
    /// # Errors
    /// Those of the writer; a part of 2^29 bytes or more.
    pub fn write(&mut self, record: &[u8]) -> io::Result<u64> {
        let start = self.offset;
        let parts = split(record);
        let count = parts.len();
        for (ix, part) in parts.into_iter().enumerate() {
            let kind = match (ix, count) {
                (0, 1) => 0,
                (0, _) => 1,
                (ix, count) if ix + 1 == count => 3,
                _ => 2,
            };
            if PART_MAX < part.len() {
                let reason = format!("a record must have < 2^29 bytes, got {}", record.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
            let head = [MAGIC, kind << 29 | part.len() as u32];
            self.put(&head.map(u32::to_le_bytes).concat())?;
            self.put(part)?;
            self.put(&[0; 3][..part.len().next_multiple_of(4) - part.len()])?;
        }
        Ok(start)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.offset += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// The writer below.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// The record without its aligned magic numbers.
fn split(record: &[u8]) -> Vec<&[u8]> {
    let magic = MAGIC.to_le_bytes();
    let (mut parts, mut start) = (Vec::new(), 0);
    for at in (0..record.len() / 4 * 4).step_by(4) {
        if record[at..at + 4] == magic {
            parts.push(&record[start..at]);
            start = at + 4;
        }
    }
    parts.push(&record[start..]);
    parts
}

/// A file of records, read at offsets from any thread.
pub struct RecordFile {
    file: SourceFile,
    path: String,
    size: u64,
    offsets: Vec<u64>,
    /// The end of the last record that is kept.
    end: u64,
}

impl RecordFile {
    /// Opens `path`. The offsets come from the `.idx` file of the same name if there is one, else from a pass over the heads
    /// of all parts. Records are in the order of their offsets.
    ///
    /// # Errors
    /// A file that cannot be read; a malformed `.idx` file; damaged or truncated records, if there is no `.idx` file.
    pub fn open(path: &Path) -> Result<RecordFile, DataError> {
        RecordFile::at(&Location::Local(path.to_path_buf()))
    }

    /// [`RecordFile::open`] for a file or an object.
    pub(crate) fn at(location: &Location) -> Result<RecordFile, DataError> {
        let file = SourceFile::open(location)?;
        let size = file.size();
        let mut records = RecordFile { file, path: location.to_string(), size, offsets: vec![], end: size };
        let index = location.with_extension("idx");
        records.offsets = match index.exists()? {
            true => records.read_index(&index)?,
            false => records.scan().map_err(|reason| location.failed(reason))?,
        };
        match records.offsets.len() {
            0 => Err(location.failed("it must have at least one record, found none")),
            _ => Ok(records),
        }
    }

    fn read_index(&self, index: &Location) -> Result<Vec<u64>, DataError> {
        let bytes = index.read(types::Bytes(1 << 32))?;
        let text = std::str::from_utf8(&bytes).map_err(|_| index.failed("it must be text"))?;
        let mut offsets = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let offset = line.split_once('\t').and_then(|(key, offset)| {
                key.trim().parse::<u64>().ok()?;
                offset.trim().parse::<u64>().ok()
            });
            let refused = |reason| Err(index.failed(format!("line {}: {reason}", number + 1)));
            match offset {
                None => return refused(format!("must be KEY<TAB>OFFSET, found `{line}`")),
                Some(offset) if self.size < offset.saturating_add(8) => {
                    return refused(format!(
                        "offset {offset} is outside of the {} bytes of `{}`",
                        self.size, self.path
                    ));
                }
                Some(offset) => offsets.push(offset),
            }
        }
        offsets.sort_unstable();
        offsets.dedup();
        Ok(offsets)
    }

    /// The offsets of all records.
    fn scan(&self) -> Result<Vec<u64>, String> {
        let (mut offsets, mut at) = (Vec::new(), 0);
        while at < self.size {
            offsets.push(at);
            loop {
                let head = self.head(at)?;
                at = head.end;
                if head.is_last {
                    break;
                }
            }
        }
        Ok(offsets)
    }

    /// The number of records.
    pub fn records(&self) -> usize {
        self.offsets.len()
    }

    /// Keeps the first `count` records.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.end = self.offsets.get(count).copied().unwrap_or(self.end);
        self.offsets.truncate(count);
    }

    /// The offset of each record.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The path as opened.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The file.
    pub(crate) fn file(&self) -> &SourceFile {
        &self.file
    }

    /// The bytes of a record.
    ///
    /// # Errors
    /// A record that is damaged or truncated.
    pub fn read(&self, record: usize) -> Result<Vec<u8>, String> {
        let mut at = *self.offsets.get(record).ok_or_else(|| format!("the file has {} records", self.offsets.len()))?;
        let end = self.offsets.get(record + 1).copied().unwrap_or(self.end);
        self.file.announce(at, end).map_err(|error| format!("byte {at}: {error}"))?;
        let mut bytes = Vec::new();
        let mut first = true;
        loop {
            let head = self.head(at)?;
            if head.is_first != first {
                return Err(format!(
                    "byte {at}: the part must be {}",
                    if first { "a first one" } else { "a later one" }
                ));
            }
            if !first {
                bytes.extend_from_slice(&MAGIC.to_le_bytes());
            }
            let start = bytes.len();
            // The length is within the file.
            bytes.try_reserve_exact(head.length).map_err(|error| error.to_string())?;
            bytes.resize(start + head.length, 0);
            self.file.read_at(&mut bytes[start..], at + 8).map_err(|error| format!("byte {at}: {error}"))?;
            (at, first) = (head.end, false);
            if head.is_last {
                return Ok(bytes);
            }
        }
    }

    fn head(&self, at: u64) -> Result<Head, String> {
        let mut head = [0; 8];
        if self.size < at + 8 {
            return Err(format!("byte {at}: the file is truncated in the head of a record"));
        }
        self.file.read_at(&mut head, at).map_err(|error| format!("byte {at}: {error}"))?;
        let (magic, word) = (u32_at(&head, 0), u32_at(&head, 4));
        if magic != MAGIC {
            return Err(format!("byte {at}: a record must begin with 0x{MAGIC:08x}, found 0x{magic:08x}"));
        }
        let (kind, length) = (word >> 29, (word as usize) & PART_MAX);
        let end = at + 8 + length.next_multiple_of(4) as u64;
        if 3 < kind {
            return Err(format!("byte {at}: the kind of a part must be in 0..4, found {kind}"));
        }
        // The last record of a file may lack its padding.
        if self.size < at + 8 + length as u64 {
            return Err(format!(
                "byte {at}: the record states {length} bytes, the file ends after {}",
                self.size - at - 8
            ));
        }
        Ok(Head { length, end, is_first: kind < 2, is_last: kind == 0 || kind == 3 })
    }
}

/// The head of a part.
struct Head {
    length: usize,
    /// The offset of the next part.
    end: u64,
    is_first: bool,
    is_last: bool,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// The content of an image record.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageRecord<'a> {
    /// One label or several.
    pub labels: Vec<f32>,
    /// The number of the image in its list.
    pub id: u64,
    /// The encoded image.
    pub image: &'a [u8],
}

impl<'a> ImageRecord<'a> {
    /// Parses a record: `u32` number of labels (0: the label is in the head), `f32` label, `u64` id, `u64` second id, the
    /// labels, the image.
    ///
    /// # Errors
    /// A record that is shorter than its head or its labels.
    pub fn parse(record: &'a [u8]) -> Result<ImageRecord<'a>, String> {
        let short = || format!("an image record must have >= 24 bytes and its labels, got {}", record.len());
        let (head, rest) = record.split_first_chunk::<24>().ok_or_else(short)?;
        let count = u32_at(head, 0) as usize;
        let float = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        let id = u64::from(u32_at(head, 8)) | u64::from(u32_at(head, 12)) << 32;
        if count == 0 {
            return Ok(ImageRecord { labels: vec![f32::from_bits(u32_at(head, 4))], id, image: rest });
        }
        let (labels, image) = count.checked_mul(4).and_then(|bytes| rest.split_at_checked(bytes)).ok_or_else(short)?;
        Ok(ImageRecord { labels: labels.as_chunks::<4>().0.iter().map(float).collect(), id, image })
    }

    /// The record as bytes. One label is in the head, several follow it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (count, label) = match self.labels[..] {
            [label] => (0, label),
            _ => (self.labels.len() as u32, 0.0),
        };
        let mut bytes = Vec::with_capacity(24 + 4 * self.labels.len() + self.image.len());
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&label.to_le_bytes());
        bytes.extend_from_slice(&self.id.to_le_bytes());
        bytes.extend_from_slice(&0u64.to_le_bytes());
        if count != 0 {
            self.labels.iter().for_each(|label| bytes.extend_from_slice(&label.to_le_bytes()));
        }
        bytes.extend_from_slice(self.image);
        bytes
    }
}
