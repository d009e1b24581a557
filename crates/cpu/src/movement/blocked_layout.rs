//! The blocked layout `[N, ceil(C / 16), H, W, 16]`: its pixel type and the division of its rows into tasks.
//!
//! If the channel count is not a multiple of 16, the last lanes of the last block are padding and may hold any value.
//! Kernels that mix lanes must exclude them.

use crate::simd::vector::LANES;

/// The 16 channels of a block at one pixel.
pub(crate) type Pixel = [f32; LANES];

/// Most bytes of rows in a task, so that several tasks fit in the L2 cache.
const TASK_BYTES_MAX: usize = 32 << 10;
/// Least number of tasks if there are enough rows: late threads then still find work.
const TASKS_MIN: usize = 16;

/// Channel count rounded up to whole blocks; `None` on overflow.
pub(crate) fn padded(channels: usize) -> Option<usize> {
    channels.checked_next_multiple_of(LANES)
}

/// Rows per task for `rows` rows that each touch `row_bytes` bytes.
pub(crate) fn rows_of_a_task(rows: usize, row_bytes: usize) -> usize {
    rows.div_ceil(TASKS_MIN).min(TASK_BYTES_MAX / row_bytes.max(1)).max(1)
}
