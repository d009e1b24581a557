//! [`Dataset`]: records with typed fields.

use types::{DType, Random, Shape};

/// Records that are read by number, in any order and from any thread.
pub trait Dataset: Send + Sync {
    /// The source, for messages.
    fn name(&self) -> &str;

    /// The fields of every record.
    fn fields(&self) -> &[DataField];

    /// The number of records.
    fn records(&self) -> usize;

    /// Writes the fields of a record: one slice for each field, of [`DataField::size_bytes`] bytes.
    ///
    /// `augment` is the source of random crops and other variations; without it the record is always the same.
    ///
    /// # Errors
    /// A record that cannot be read or decoded.
    fn read(&self, record: usize, augment: Option<Random>, out: &mut [&mut [u8]]) -> Result<(), DataError>;

    /// The most bytes that one call of [`Dataset::read`] allocates, as far as the format bounds it.
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// Bytes that all threads share, in addition to the bytes that the data set has from its start.
    fn shared_bytes(&self) -> u64 {
        0
    }
}

/// A field of every record.
#[derive(Clone, Debug, PartialEq)]
pub struct DataField {
    /// The name in the source.
    pub name: String,
    /// The dtype of the elements.
    pub dtype: DType,
    /// The shape in one record.
    pub shape: Shape,
    /// The meaning of the axes.
    pub axes: Axes,
}

impl DataField {
    /// Bytes of the field in one record.
    pub fn size_bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size().0 as usize
    }
}

/// The meaning of a field's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axes {
    /// None that matters here.
    Plain,
    /// `[height, width, channels]`: pixels with interleaved channels.
    Pixels,
}

/// Why data cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// The text of a [`crate::DataSpec`] is malformed.
    #[error("data `{text}`: {reason}")]
    Spec {
        /// The text.
        text: String,
        /// The reason.
        reason: String,
    },
    /// A source cannot be opened.
    #[error("`{path}`: {reason}")]
    Source {
        /// The file or folder.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A record cannot be read.
    #[error("record {record} of `{source_name}`: {reason}")]
    Record {
        /// The number of the record, from 0.
        record: usize,
        /// The name of the data set.
        source_name: String,
        /// The reason.
        reason: String,
    },
    /// Fields and inputs do not match, or options exclude each other.
    #[error("{0}")]
    Mismatch(String),
}

impl DataError {
    pub(crate) fn record(dataset: &dyn Dataset, record: usize, reason: impl ToString) -> DataError {
        DataError::Record { record, source_name: dataset.name().to_string(), reason: reason.to_string() }
    }
}

impl From<files::FileError> for DataError {
    fn from(error: files::FileError) -> DataError {
        DataError::Source { path: error.path, reason: format!("cannot {} it: {}", error.operation, error.error) }
    }
}
