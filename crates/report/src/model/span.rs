//! [`Span`]: the value that occupies a range of a buffer for some steps. At every step, spans tile the bytes that the buffer
//! occupies.

use super::{BufferRow, PieceRow};

/// Bytes of a buffer that one value occupies, or that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The buffer's value; `None` if no value occupies these bytes, such as a concat slice that is yet to be written or
    /// was read for the last time.
    pub(crate) value: Option<usize>,
    /// Its offset in the buffer.
    pub(crate) offset: u64,
    /// The number of bytes.
    pub(crate) bytes: u64,
    /// The first step.
    pub(crate) first_step: u32,
    /// The last step, inclusive.
    pub(crate) last_step: u32,
}

/// The spans of a buffer, by time and then by offset. If values share bytes at a step, the bytes belong to the latest.
pub(crate) fn spans(buffer: &BufferRow) -> Vec<Span> {
    let mut times: Vec<u32> = vec![buffer.first_step, buffer.last_step + 1];
    for value in &buffer.values {
        times.extend([value.first_step, value.held_until + 1]);
    }
    times.extend(buffer.pieces.iter().flat_map(|piece| [piece.first_step, piece.last_step + 1]));
    times.sort_unstable();
    times.dedup();
    let mut by_birth: Vec<usize> = (0..buffer.values.len()).collect();
    by_birth.sort_by_key(|&ix| (buffer.values[ix].first_step, ix));

    let mut done: Vec<Span> = Vec::new();
    let mut open: Vec<Span> = Vec::new();
    for time in times.windows(2) {
        let (first_step, last_step) = (time[0], time[1] - 1);
        let is_alive = |ix: &&usize| {
            let value = &buffer.values[**ix];
            value.first_step <= first_step && last_step <= value.held_until
        };
        let alive: Vec<usize> = by_birth.iter().filter(is_alive).copied().collect();
        let Some(piece) = buffer.piece_at(first_step) else {
            done.append(&mut open);
            continue;
        };
        let now = tile(buffer, &alive, piece).into_iter().map(|(value, offset, bytes)| Span {
            value,
            offset,
            bytes,
            first_step,
            last_step,
        });
        // Merge with the same span of the previous interval.
        let mut next = Vec::new();
        for mut span in now {
            let same = |old: &Span| (old.value, old.offset, old.bytes) == (span.value, span.offset, span.bytes);
            if let Some(at) = open.iter().position(same) {
                span.first_step = open.swap_remove(at).first_step;
            }
            next.push(span);
        }
        done.append(&mut open);
        open = next;
    }
    done.append(&mut open);
    done.sort_by_key(|span| (span.first_step, span.offset));
    done
}

/// The bytes that a buffer occupies, cut into ranges, each with the last of `alive` that covers it.
fn tile(buffer: &BufferRow, alive: &[usize], piece: PieceRow) -> Vec<(Option<usize>, u64, u64)> {
    let (low, high) = (piece.offset, piece.end().min(buffer.bytes));
    let mut cuts = vec![low, high.max(low)];
    for &ix in alive {
        let value = &buffer.values[ix];
        cuts.extend([value.offset, value.offset + value.bytes].map(|cut| cut.clamp(low, high.max(low))));
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut tiles: Vec<(Option<usize>, u64, u64)> = Vec::new();
    for cut in cuts.windows(2) {
        let covers = |ix: &&usize| {
            let value = &buffer.values[**ix];
            value.offset <= cut[0] && cut[1] <= value.offset + value.bytes
        };
        let value = alive.iter().rev().find(covers).copied();
        match tiles.last_mut() {
            Some((last, _, bytes)) if *last == value => *bytes += cut[1] - cut[0],
            _ => tiles.push((value, cut[0], cut[1] - cut[0])),
        }
    }
    tiles
}
