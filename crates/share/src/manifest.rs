//! [`Manifest`]: where the tensors of a model are. The daemon keeps it in sealed memory and hands it out first when the
//! granularity is `layer`.

use std::collections::BTreeMap;

use crate::memory::{HUGE_PAGE, PAGE, Segment};

const MAGIC: [u8; 4] = *b"uprm";
const VERSION: u32 = 2;
const HEADER: usize = 32;
const SEGMENT: usize = 32;
const TENSOR: usize = 64;

/// The most bytes of a manifest.
pub const MANIFEST_MAX: u64 = 64 << 20;

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    /// Its offset in the executable's constants section; its position for files of tensors.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its offset in the mapped range.
    pub at: u64,
    /// BLAKE3 of its bytes.
    pub digest: [u8; 32],
    /// Type and name, as `f32[64,3] conv1.weight`; empty for executables.
    pub label: String,
}

/// The tensors of a model, by offset, and the segments that make one range of addresses of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Bytes of the range.
    pub length: u64,
    /// The mappings.
    pub segments: Vec<Segment>,
    /// The tensors, by offset and size.
    pub tensors: Vec<TensorPlace>,
}

impl Manifest {
    /// Makes the mappings for tensors in extents: `(position of the extent, offset there, size)` each. Neighbors within
    /// `gap` bytes share a mapping. Returns the segments, the offset of each tensor in the range, and the range's length.
    pub fn segments(places: &[(u32, u64, u64)], gap: u64) -> (Vec<Segment>, Vec<u64>, u64) {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_unstable_by_key(|&ix| places[ix]);
        let (mut segments, mut at, mut length) = (Vec::<Segment>::new(), vec![0; places.len()], 0);
        let mut sizes = BTreeMap::<u32, u64>::new();
        for (extent, _, size) in places {
            *sizes.entry(*extent).or_default() += size;
        }
        for ix in order {
            let (extent, offset, size) = places[ix];
            let (start, end) = (offset / PAGE * PAGE, (offset + size).next_multiple_of(PAGE));
            match segments.last_mut() {
                Some(last) if last.extent == extent && start <= last.from + last.length + gap => {
                    last.length = last.length.max(end - last.from);
                }
                _ => {
                    // Large segments are as far from a huge page's start as in the extent.
                    if HUGE_PAGE <= end - start || HUGE_PAGE <= sizes.get(&extent).copied().unwrap_or(0) {
                        length += (start.wrapping_sub(length)) % HUGE_PAGE;
                    }
                    segments.push(Segment { extent, from: start, to: length, length: end - start });
                }
            }
            let last = segments.last().expect("one was pushed");
            at[ix] = last.to + (offset - last.from);
            length = last.to + last.length;
        }
        (segments, at, length)
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let labels: usize = self.tensors.iter().map(|tensor| tensor.label.len()).sum();
        let mut to = Vec::with_capacity(HEADER + SEGMENT * self.segments.len() + TENSOR * self.tensors.len() + labels);
        to.extend_from_slice(&MAGIC);
        for number in [VERSION, self.segments.len() as u32, self.tensors.len() as u32] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(&self.length.to_le_bytes());
        to.extend_from_slice(&(labels as u64).to_le_bytes());
        for segment in &self.segments {
            for number in [segment.extent.into(), segment.from, segment.to, segment.length] {
                to.extend_from_slice(&number.to_le_bytes());
            }
        }
        let mut label_at = 0u32;
        for tensor in &self.tensors {
            for number in [tensor.offset, tensor.size, tensor.at] {
                to.extend_from_slice(&number.to_le_bytes());
            }
            to.extend_from_slice(&tensor.digest);
            to.extend_from_slice(&label_at.to_le_bytes());
            to.extend_from_slice(&(tensor.label.len() as u32).to_le_bytes());
            label_at += tensor.label.len() as u32;
        }
        self.tensors.iter().for_each(|tensor| to.extend_from_slice(tensor.label.as_bytes()));
        to
    }

    /// Reads the bytes of [`Manifest::encode`]. `None` for anything else; tensors outside the range are refused.
    pub fn decode(bytes: &[u8]) -> Option<Manifest> {
        let small = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if bytes.get(..4)? != MAGIC || small(4)? != VERSION {
            return None;
        }
        let (n_segments, n_tensors) = (small(8)? as usize, small(12)? as usize);
        let (length, labels) = (number(16)?, usize::try_from(number(24)?).ok()?);
        let tensors_at = HEADER.checked_add(SEGMENT.checked_mul(n_segments)?)?;
        let labels_at = tensors_at.checked_add(TENSOR.checked_mul(n_tensors)?)?;
        if labels_at.checked_add(labels)? != bytes.len() {
            return None;
        }
        let segment = |ix: usize| {
            let at = HEADER + SEGMENT * ix;
            let extent = u32::try_from(number(at)?).ok()?;
            Some(Segment { extent, from: number(at + 8)?, to: number(at + 16)?, length: number(at + 24)? })
        };
        let tensor = |ix: usize| {
            let at = tensors_at + TENSOR * ix;
            let label = labels_at.checked_add(small(at + 56)? as usize)?;
            let label = bytes.get(label..label.checked_add(small(at + 60)? as usize)?)?;
            let tensor = TensorPlace {
                offset: number(at)?,
                size: number(at + 8)?,
                at: number(at + 16)?,
                digest: bytes.get(at + 24..at + 56)?.try_into().ok()?,
                label: std::str::from_utf8(label).ok()?.to_string(),
            };
            (tensor.at.checked_add(tensor.size)? <= length).then_some(tensor)
        };
        // Every attach decodes a manifest: one allocation, of a size that the length of the bytes bounds.
        let (mut segments, mut tensors) = (Vec::with_capacity(n_segments), Vec::with_capacity(n_tensors));
        for ix in 0..n_segments {
            segments.push(segment(ix)?);
        }
        for ix in 0..n_tensors {
            tensors.push(tensor(ix)?);
        }
        Some(Manifest { length, segments, tensors })
    }

    /// The offset in the range of the tensor that is at `offset` with `size` bytes in the executable's section.
    pub fn find(&self, offset: u64, size: u64) -> Option<u64> {
        let found = self.tensors.binary_search_by_key(&(offset, size), |tensor| (tensor.offset, tensor.size));
        found.ok().map(|ix| self.tensors[ix].at)
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    fn example() -> Manifest {
        let places = [(0, 0, 5000), (1, 8192, 100), (0, 5120, 300), (1, 1 << 30, 4096)];
        let (segments, at, length) = Manifest::segments(&places, 0);
        let tensor = |ix: usize| TensorPlace {
            offset: 256 * ix as u64,
            size: places[ix].2,
            at: at[ix],
            digest: [77 + ix as u8; 32],
            label: ["", "f32[2] a", "é", "x"][ix].to_string(),
        };
        Manifest { length, segments, tensors: (0..4).map(tensor).collect() }
    }

    #[test]
    fn neighbors_in_one_extent_share_a_segment() {
        let manifest = example();
        assert_eq!(
            manifest.segments,
            [
                Segment { extent: 0, from: 0, to: 0, length: 8192 },
                Segment { extent: 1, from: 8192, to: 8192, length: 4096 },
                Segment { extent: 1, from: 1 << 30, to: 12288, length: 4096 },
            ]
        );
        let at: Vec<u64> = manifest.tensors.iter().map(|tensor| tensor.at).collect();
        assert_eq!((at, manifest.length), (vec![0, 8192, 5120, 12288], 16384));
        assert_eq!(manifest.find(512, 300), Some(5120));
        assert_eq!(manifest.find(512, 301), None);
    }

    #[test]
    fn other_versions_and_other_lengths_are_refused() {
        let bytes = example().encode();
        assert!(Manifest::decode(&[&bytes[..], &[0]].concat()).is_none(), "a byte behind its end");
        assert!(Manifest::decode(&bytes[..bytes.len() - 1]).is_none());
        for version in [VERSION - 1, VERSION + 1] {
            let mut other = bytes.clone();
            other[4..8].copy_from_slice(&version.to_le_bytes());
            assert!(Manifest::decode(&other).is_none(), "version {version}");
        }
    }

    #[test]
    fn manifest_decodes_to_itself_and_damage_is_refused_or_harmless() {
        let (manifest, mut random) = (example(), Random::new(5));
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes).as_ref(), Some(&manifest));
        let mut refused = 0;
        for _ in 0..50_000 {
            let mut damaged = bytes.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(damaged.len() as u64) as usize;
                damaged[at] = random.below(256) as u8;
            }
            damaged.truncate(damaged.len() - (random.below(4) / 3 * random.below(60)) as usize);
            match Manifest::decode(&damaged) {
                None => refused += 1,
                Some(read) => {
                    assert!(read.tensors.iter().all(|tensor| tensor.at + tensor.size <= read.length));
                }
            }
        }
        assert!(1000 < refused, "{refused}");
    }
}
