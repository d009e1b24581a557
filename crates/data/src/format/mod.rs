//! Sources of records: arrays in memory, encoded images, generated records.

mod arrays;
mod csv;
mod idx;
mod images;
mod synthetic;

pub use arrays::ArrayDataset;
pub use images::{FolderDataset, RecordDataset};
pub use synthetic::SyntheticDataset;

pub(crate) use idx::open as open_idx;
