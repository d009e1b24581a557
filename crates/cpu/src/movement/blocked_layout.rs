//! Blocked values, `[N, ceil(C / 16), H, W, 16]`: the words of the kernels that read and write them.
//!
//! Where channels are no multiple of 16, the last block has lanes that belong to no channel, its pads. They may hold
//! anything: kernels that mix lanes leave them out, kernels that do not carry them along.

use crate::simd::vector::LANES;

/// The channels of a block at one pixel.
pub(crate) type Pixel = [f32; LANES];

/// Bytes of a row that one task writes at most, so that several tasks' rows stay in a second-level cache.
const TASK_BYTES_MAX: usize = 32 << 10;
/// Tasks that the work is cut into at least, where it has as many rows: enough for threads that come late.
const TASKS_MIN: usize = 16;

/// Channels of a blocked value with its pads, or none where that overflows.
pub(crate) fn padded(channels: usize) -> Option<usize> {
    channels.checked_next_multiple_of(LANES)
}

/// How many of so many rows make a task, where a row's work touches so many bytes.
pub(crate) fn rows_of_a_task(rows: usize, row_bytes: usize) -> usize {
    rows.div_ceil(TASKS_MIN).min(TASK_BYTES_MAX / row_bytes.max(1)).max(1)
}
