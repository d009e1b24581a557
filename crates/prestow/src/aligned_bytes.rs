//! [`AlignedBytes`]: the constants of a plan in memory, aligned for vector loads.

use types::Bytes;

/// Bytes that begin at an aligned address: `bytes[start..]`.
pub(crate) struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBytes {
    /// Moves the bytes within one allocation to the next aligned address.
    pub(crate) fn new(mut bytes: Vec<u8>, alignment: Bytes) -> AlignedBytes {
        let (size, alignment) = (bytes.len(), alignment.0 as usize);
        bytes.resize(size + alignment, 0);
        let start = bytes.as_ptr().align_offset(alignment);
        bytes.copy_within(..size, start);
        bytes.truncate(start + size);
        AlignedBytes { bytes, start }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_and_aligned() {
        for size in [0, 1, 100] {
            let bytes: Vec<u8> = (0..size).collect();
            let constants = AlignedBytes::new(bytes.clone(), Bytes(64));
            assert_eq!(constants.as_ref(), bytes);
            assert_eq!(constants.as_ref().as_ptr().align_offset(64), 0);
        }
    }
}
