//! [`copy_items`]: copies of runs of any length.

/// Bytes of a piece.
const PIECE_BYTES: usize = 2048;
/// Bytes from which on a copy is limited by the memory, so that pieces gain nothing.
const WHOLE_BYTES: usize = 1 << 20;

/// Copies `from` to `to`, which must have the same length.
///
/// A few items are moved without a call. Many are copied in pieces: the C library moves a few thousand bytes or more with one
/// instruction, which takes fifteen times as long on AMD's processors if the destination is a few bytes ahead of the source
/// modulo the size of a page.
#[inline]
pub(crate) fn copy_items<T: Copy>(from: &[T], to: &mut [T]) {
    assert_eq!(from.len(), to.len(), "both sides must have the same length");
    match from.len() {
        0..4 => to.iter_mut().zip(from).for_each(|(to, item)| *to = *item),
        4..8 => copy_ends::<T, 4>(from, to),
        8..16 => copy_ends::<T, 8>(from, to),
        16..=32 => copy_ends::<T, 16>(from, to),
        _ if (PIECE_BYTES + 1..WHOLE_BYTES).contains(&size_of_val(from)) => {
            let piece = PIECE_BYTES / size_of::<T>();
            to.chunks_mut(piece).zip(from.chunks(piece)).for_each(|(to, from)| to.copy_from_slice(from));
        }
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first `N` items and the last `N`, which may overlap and must be all.
#[inline(always)]
fn copy_ends<T: Copy, const N: usize>(from: &[T], to: &mut [T]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *to = *from;
    }
    if let (Some(from), Some(to)) = (from.last_chunk::<N>(), to.last_chunk_mut::<N>()) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_any_length_are_copied() {
        for count in (0..70).chain([255, 256, 257, 2000, 2049, 70_000, 300_000]) {
            let from: Vec<u64> = (0..count).collect();
            let mut to = vec![u64::MAX; from.len()];
            copy_items(&from, &mut to);
            assert_eq!(from, to);
        }
    }
}
