//! [`Constants`]: the constants' section of a plan, whose bytes are made when they are needed.
//!
//! Weights are most of a compiler's memory. So the section is a list of tensors and of rules that pack them.
//! [`Constants::write_to`] packs one part after another while the section is written, and releases each tensor after its last
//! part. The packed section is never in memory as a whole.
//!
//! Constants with the same bytes are stored once. Only constants of equal size whose elements have the same sum of bits are
//! compared, by the digests of their packed bytes: most packings move elements and add zeros, which keeps the sum.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use ir::Pack;
use plan::image::{ConstantBytes, digest};
use types::{Bytes, Tensor};

/// Elements of a part of a tensor that is stored as it is.
const PART_ELEMENTS: usize = 1 << 20;
/// Threads that pack, at most. More only wait for the one that writes.
const THREADS_MAX: usize = 8;

/// The constants' section of a plan, or of several plans that share it.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    /// By rising offset.
    entries: Vec<Entry>,
    /// Entries by size and sum.
    alike: BTreeMap<(Bytes, u64), Vec<usize>>,
    size: Bytes,
}

#[derive(Clone, Debug)]
struct Entry {
    offset: Bytes,
    size: Bytes,
    source: Source,
    digest: OnceLock<[u8; 32]>,
}

/// A tensor and how it is packed.
#[derive(Clone, Debug)]
struct Source {
    tensor: Arc<Tensor>,
    /// `None`: its elements, little-endian.
    pack: Option<Pack>,
}

impl Source {
    fn size(&self) -> Bytes {
        self.pack.as_ref().map_or(self.tensor.size(), |pack| pack.packer().size(&self.tensor))
    }

    fn parts(&self) -> usize {
        let elements = || self.tensor.elements().div_ceil(PART_ELEMENTS).max(1);
        self.pack.as_ref().map_or_else(elements, |pack| pack.packer().parts(&self.tensor))
    }

    fn part(&self, part: usize) -> Vec<u8> {
        match &self.pack {
            None => {
                let elements = self.tensor.elements();
                self.tensor.le_bytes_of(part * PART_ELEMENTS..elements.min((part + 1) * PART_ELEMENTS))
            }
            Some(pack) => pack.packer().pack(&self.tensor, part),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size().0 as usize);
        for part in 0..self.parts() {
            bytes.extend_from_slice(&self.part(part));
        }
        bytes
    }

    /// Whether both are the same tensor by the same rule.
    fn is(&self, other: &Source) -> bool {
        let same_rule = match (&self.pack, &other.pack) {
            (None, None) => true,
            (Some(own), Some(other)) => own.code().is_some() && own.code() == other.code(),
            _ => false,
        };
        same_rule && Arc::ptr_eq(&self.tensor, &other.tensor)
    }
}

impl Constants {
    /// Adds a tensor, packed by a rule or as it is, unless the section has its bytes. Returns their place.
    pub fn add(&mut self, tensor: &Arc<Tensor>, pack: Option<&Pack>, alignment: Bytes) -> (Bytes, Bytes) {
        self.push(Source { tensor: tensor.clone(), pack: pack.cloned() }, OnceLock::new(), alignment)
    }

    /// Adds a constant of another section, by its place there.
    ///
    /// # Panics
    /// If the other section has no constant at that place.
    pub fn add_from(&mut self, other: &Constants, place: (Bytes, Bytes), alignment: Bytes) -> (Bytes, Bytes) {
        let entry = other.entry(place);
        self.push(entry.source.clone(), entry.digest.clone(), alignment)
    }

    fn push(&mut self, source: Source, known: OnceLock<[u8; 32]>, alignment: Bytes) -> (Bytes, Bytes) {
        let size = source.size();
        let key = (size, source.tensor.bit_sum());
        let alike = self.alike.entry(key).or_default();
        let entry = Entry { offset: self.size.align_up(alignment), size, source, digest: known };
        let is_same = |ix: &&usize| {
            let other = &self.entries[**ix];
            other.source.is(&entry.source) || other.digest() == entry.digest()
        };
        if let Some(&ix) = alike.iter().find(is_same) {
            return (self.entries[ix].offset, size);
        }
        alike.push(self.entries.len());
        let place = (entry.offset, size);
        self.size = entry.offset + size;
        self.entries.push(entry);
        place
    }

    /// Moves all constants to multiples of `alignment`, in the same order. Returns the new offset by the old place.
    pub fn realign(&mut self, alignment: Bytes) -> BTreeMap<(Bytes, Bytes), Bytes> {
        let mut moved = BTreeMap::new();
        self.size = Bytes::ZERO;
        for entry in &mut self.entries {
            let offset = self.size.align_up(alignment);
            moved.insert((entry.offset, entry.size), offset);
            entry.offset = offset;
            self.size = offset + entry.size;
        }
        moved
    }

    /// The size of the section.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The bytes of one constant, by its place.
    ///
    /// # Panics
    /// If the section has no constant at that place.
    pub fn bytes(&self, place: (Bytes, Bytes)) -> Vec<u8> {
        self.entry(place).source.bytes()
    }

    /// The bytes of the section.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut section = Vec::with_capacity(self.size.0 as usize);
        let written = self.clone().write_to(&mut |bytes| {
            section.extend_from_slice(bytes);
            Ok(())
        });
        written.expect("memory takes all bytes");
        section
    }

    fn entry(&self, (offset, size): (Bytes, Bytes)) -> &Entry {
        let first = self.entries.partition_point(|entry| entry.offset < offset);
        let at = self.entries[first..].iter().take_while(|entry| entry.offset == offset);
        at.into_iter().find(|entry| entry.size == size).expect("the section has a constant there")
    }
}

impl Entry {
    fn digest(&self) -> &[u8; 32] {
        self.digest.get_or_init(|| digest(&self.source.bytes()))
    }
}

impl ConstantBytes for Constants {
    fn write_to(self, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        // Parts in the order of the section. Each thread packs every n-th, at most one ahead of the one that is written.
        let parts: Vec<(usize, usize)> = (self.entries.iter().enumerate())
            .flat_map(|(ix, entry)| (0..entry.source.parts()).map(move |part| (ix, part)))
            .collect();
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX).min(parts.len());
        let places: Vec<(Bytes, Bytes)> = self.entries.iter().map(|entry| (entry.offset, entry.size)).collect();
        let sources: Vec<Mutex<Option<Source>>> =
            self.entries.into_iter().map(|entry| Mutex::new(Some(entry.source))).collect();
        let lock = |ix: usize| sources[ix].lock().expect("no thread panics while it holds the lock");
        let source = |ix: usize| lock(ix).clone().expect("it is released behind its last part");
        thread::scope(|scope| {
            let start = |first: usize| {
                let (send, receive) = sync_channel(1);
                let (parts, source) = (&parts, &source);
                let work = move || {
                    for &(ix, part) in parts.iter().skip(first).step_by(threads) {
                        // The receiver is gone if a part could not be written.
                        if send.send(source(ix).part(part)).is_err() {
                            return;
                        }
                    }
                };
                // The parts of a thread that the system does not start are packed by this one.
                thread::Builder::new().spawn_scoped(scope, work).ok().map(|_| receive)
            };
            let packed: Vec<Option<Receiver<Vec<u8>>>> = (0..threads).map(start).collect();
            let (mut end, mut written) = (Bytes::ZERO, Bytes::ZERO);
            for (number, &(ix, part)) in parts.iter().enumerate() {
                let (offset, size) = places[ix];
                if part == 0 {
                    out(&vec![0; (offset - end).0 as usize])?;
                    (end, written) = (offset + size, offset);
                }
                let bytes = match &packed[number % threads] {
                    Some(packed) => packed.recv().expect("the thread sends all of its parts"),
                    None => source(ix).part(part),
                };
                written += Bytes(bytes.len() as u64);
                out(&bytes)?;
                if parts.get(number + 1).is_none_or(|(next, _)| *next != ix) {
                    assert_eq!(written, end, "a packed constant has the size that its rule states");
                    *lock(ix) = None;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use ir::Packer;
    use types::Shape;

    use super::*;

    const ALIGNMENT: Bytes = Bytes(64);

    /// Packs the bytes of the elements, each part in a byte of its own.
    struct Bytewise;

    impl Packer for Bytewise {
        fn size(&self, tensor: &Tensor) -> Bytes {
            tensor.size()
        }

        fn parts(&self, tensor: &Tensor) -> usize {
            tensor.size().0 as usize
        }

        fn pack(&self, tensor: &Tensor, part: usize) -> Vec<u8> {
            vec![tensor.to_le_bytes()[part]]
        }
    }

    fn tensor(items: &[u8]) -> Arc<Tensor> {
        Arc::new(Tensor::vector(items.to_vec()))
    }

    #[test]
    fn bytes_follow_each_other_at_aligned_offsets() {
        let mut constants = Constants::default();
        let places = [
            constants.add(&tensor(&[1, 2, 3]), None, ALIGNMENT),
            constants.add(&tensor(&[]), None, ALIGNMENT),
            constants.add(&tensor(&[4, 5]), Some(&Pack::new(Bytewise)), ALIGNMENT),
        ];
        assert_eq!(places.map(|(offset, size)| (offset.0, size.0)), [(0, 3), (64, 0), (64, 2)]);
        let want = [&[1, 2, 3][..], &[0; 61], &[4, 5]].concat();
        assert_eq!((constants.to_vec(), constants.size()), (want.clone(), Bytes(66)));
        let bytes: Vec<Vec<u8>> = places.iter().map(|place| constants.bytes(*place)).collect();
        assert_eq!(bytes, [&[1, 2, 3][..], &[], &[4, 5]]);
        let moved = constants.realign(Bytes(4096));
        assert_eq!(places.map(|place| moved[&place].0), [0, 4096, 4096]);
        assert_eq!(constants.to_vec()[4096..], [4, 5]);
    }

    #[test]
    fn large_tensor_is_written_in_parts() {
        let tensor = Arc::new(Tensor::from_fn(Shape::from([2 * PART_ELEMENTS + 3]), |at| at as u8));
        let mut constants = Constants::default();
        let place = constants.add(&tensor, None, ALIGNMENT);
        assert!(constants.bytes(place) == tensor.to_le_bytes() && constants.to_vec() == tensor.to_le_bytes());
        let mut sizes = Vec::new();
        let done = constants.write_to(&mut |bytes| {
            sizes.push(bytes.len());
            Ok(())
        });
        assert_eq!((done.is_ok(), sizes), (true, vec![0, PART_ELEMENTS, PART_ELEMENTS, 3]));
    }

    #[test]
    fn equal_bytes_are_stored_once() {
        let mut constants = Constants::default();
        let first = constants.add(&tensor(&[1, 2]), None, ALIGNMENT);
        assert_eq!(constants.add(&tensor(&[1, 2]), Some(&Pack::new(Bytewise)), ALIGNMENT), first, "the same bytes");
        let other = constants.add(&tensor(&[2, 1]), None, ALIGNMENT);
        assert_ne!(other, first, "the same sum");
        let mut second = Constants::default();
        assert_eq!(second.add_from(&constants, other, ALIGNMENT).0, Bytes::ZERO);
        assert_eq!(second.add_from(&constants, first, ALIGNMENT).0, Bytes(64));
        assert_eq!(second.add_from(&constants, other, ALIGNMENT).0, Bytes::ZERO, "it is there");
        assert_eq!(second.size(), Bytes(66));
    }

    #[test]
    fn tensors_are_released_when_they_are_written() {
        let mut constants = Constants::default();
        let tensors: Vec<Arc<Tensor>> =
            (0..20).map(|item| Arc::new(Tensor::full(Shape::from([8]), item as f32))).collect();
        for tensor in &tensors {
            constants.add(tensor, Some(&Pack::new(Bytewise)), ALIGNMENT);
        }
        let (mut written, mut held) = (0, Vec::new());
        let done = constants.write_to(&mut |bytes| {
            written += bytes.len();
            held.push(tensors.iter().filter(|tensor| 1 < Arc::strong_count(tensor)).count());
            Ok(())
        });
        assert_eq!((done.is_ok(), written), (true, 19 * 64 + 32));
        assert!(held[held.len() / 2] <= 12 && held[held.len() - 1] <= 2, "{held:?}");
    }

    #[test]
    fn an_error_ends_the_writing() {
        let mut constants = Constants::default();
        for item in 0..20 {
            constants.add(&tensor(&[item, 1, 7]), Some(&Pack::new(Bytewise)), ALIGNMENT);
        }
        let mut calls = 0;
        let done = constants.write_to(&mut |_| {
            calls += 1;
            if calls < 5 { Ok(()) } else { Err(io::Error::other("the disk is full")) }
        });
        assert_eq!((done.map_err(|error| error.to_string()), calls), (Err("the disk is full".into()), 5));
    }
}
