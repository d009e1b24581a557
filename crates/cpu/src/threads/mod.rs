//! The thread pool, phases separated by barriers, and slices that several threads write.

pub(crate) mod phases;
pub(crate) mod pool;
pub(crate) mod shared_slice;

pub use self::pool::{Pool, THREADS_MAX};
