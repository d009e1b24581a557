//! Data sets to batches in an executable's inputs.
//!
//! - [`DataSpec`] parses `KIND:SOURCE[,OPTION=VALUE]..` and opens a [`Dataset`]: records with typed fields, read by number.
//! - [`Batcher`] orders the records of an epoch (seed, shard), and converts fields to the dtype and layout of the inputs.
//!   Its order depends on seed and epoch only, and it resumes at any [`Position`].
//! - [`Prefetcher`] runs a batcher on several threads, with the same batches in the same order.
//! - [`image`] decodes PNG and JPEG files, resizes and varies them.
//! - [`RecordFile`] and [`RecordWriter`] are MXNet's RecordIO.
//!
//! No graph, plan or device. Memory is bounded: arrays are read into memory once, images one record at a time.
//!
//! ```
//! use std::sync::Arc;
//! use prestow_data::{BatchOptions, Batcher, BatchInput, OpenOptions, Position, Shuffle};
//! use types::{DType, Shape};
//!
//! # let folder = std::env::temp_dir().join(format!("prestow-data-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! # let path = folder.join("points.csv");
//! std::fs::write(&path, "width,height,class\n1,2,0\n3,4,1\n5,6,0\n").unwrap();
//! let spec: prestow_data::DataSpec = format!("csv:{}", path.display()).parse().unwrap();
//! let dataset = Arc::from(spec.open(&OpenOptions::default()).unwrap());
//! let inputs = vec![
//!     BatchInput::new(0, DType::F32, Shape::from([2])),
//!     BatchInput::new(1, DType::I32, Shape::scalar()),
//! ];
//! let options = BatchOptions { batch: 2, shuffle: Shuffle::Seed(7), ..BatchOptions::default() };
//! let batcher = Batcher::new(dataset, inputs, options).unwrap();
//! assert_eq!(batcher.batches(), 1, "the incomplete batch is dropped");
//!
//! let (mut x, mut y) = (vec![0; 2 * 8], vec![0; 2 * 4]);
//! batcher.fill(Position { epoch: 0, batch: 0 }, &mut [&mut x, &mut y]).unwrap();
//! # std::fs::remove_dir_all(folder).unwrap();
//! ```

mod batch;
mod convert;
mod dataset;
mod format;
pub mod image;
mod order;
mod prefetch;
mod recordio;
mod source;
mod spec;

pub use batch::{BatchFill, BatchOptions, Batcher, Damaged, LastBatch, Position};
pub use convert::{BatchInput, Normalize};
pub use dataset::{Axes, DataError, DataField, Dataset};
pub use format::{ArrayDataset, FolderDataset, RecordDataset, SyntheticDataset};
pub use order::{Shard, Shuffle};
pub use prefetch::{PrefetchedBatch, Prefetcher};
pub use recordio::{ImageRecord, RecordFile, RecordWriter};
pub use spec::{DataSpec, ImageTarget, OpenOptions, Split};
