//! Files at the edge: outputs that are complete or absent, inputs of bounded size.
//!
//! [`write()`] and [`write_all`] write to a temporary file in the destination's folder, flush it to disk and rename it, so
//! that a reader sees the old file or the new one and never a part. Devices, FIFOs and sockets cannot be replaced by a
//! rename and are written through; a symbolic link keeps pointing at its target, which is replaced.
//!
//! [`read()`] stops at a limit, so that `/dev/zero` or a file of another kind cannot exhaust memory. [`open_regular`] refuses
//! everything but regular files, so that opening cannot wait for another process. [`memory_limit`] is the memory that a
//! process may take at all.
//!
//! [`print()`] prints results and never into an output of the same process.
//!
//! After [`protect_inputs`], a file that was read is never replaced, nor is an output of [`protect_output`]. [`file_names`]
//! makes names of files from names that a model gives.
//!
//! After [`fail_above_size_limit`], a write above the process's limit of file sizes is an error and no signal.
//!
//! ```
//! use prestow_files::{read, write};
//! use types::Bytes;
//!
//! let folder = std::env::temp_dir().join(format!("prestow-files-{}", std::process::id()));
//! let path = folder.join("new").join("table.csv");
//! write(&path, b"id,size\n").unwrap();
//! assert_eq!(read(&path, Bytes(100)).unwrap(), b"id,size\n");
//! assert!(read(&path, Bytes(3)).is_err(), "the file is longer than the limit");
//! # std::fs::remove_dir_all(folder).unwrap();
//! ```

mod input;
mod limit;
mod memory;
mod names;
mod output;
mod protect;
mod standard_output;

pub use input::{is_same, open_regular, read, read_regular, read_text};
pub use limit::fail_above_size_limit;
pub use memory::memory_limit;
pub use names::file_names;
pub use output::{Kind, is_same_output, write, write_all, write_with};
pub use protect::{check_output, protect_inputs, protect_output};
pub use standard_output::print;

use std::io;
use std::path::Path;

/// An operation on a file failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} `{path}`: {error}")]
pub struct FileError {
    /// The operation, as a verb: `read` or `write`.
    pub operation: &'static str,
    /// The file.
    pub path: String,
    /// The reason.
    pub error: io::Error,
}

impl FileError {
    fn new(operation: &'static str, path: &Path, error: io::Error) -> FileError {
        FileError { operation, path: path.display().to_string(), error }
    }
}
