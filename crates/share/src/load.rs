//! Files to sealed memory. A file is read by descriptor and never mapped, so that a client that truncates it while it is
//! read makes an error and not a signal. [`ResidentPool`] finds tensors that are resident already.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use plan::image::{ImageError, Trailer};
use plan::{ConstantSource, Plan, separate_constants};

use crate::core::{ExtentId, Granularity, ModelKey, SourceKind};
use crate::device::DeviceFailure;
use crate::manifest::{Manifest, TensorPlace};
use crate::memory::{Extent, Filling, TENSOR_ALIGNMENT};
use crate::wire::{Code, DESCRIPTORS_MAX};
use crate::{base, recipe};

/// The most bytes of the plans' section of an executable.
const PLANS_MAX: u64 = 1 << 30;
/// Bytes that are read, digested and written at a time; they fit into the second-level cache.
const CHUNK: usize = 512 * 1024;
/// Tensors below this size are shared only within extents that larger ones of the model are shared from: a mapping of
/// their own would cost more than their bytes.
const SHARED_MIN: u64 = 16 * 1024;
/// Two tensors of one extent that are at most this far apart share a mapping; unused pages of a mapping are free.
const GAP: u64 = 16 << 20;

/// Reason why a file is not loaded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LoadFailure {
    #[error("the file must be a regular file")]
    NotRegular,
    #[error("the file must be an executable of `prestow compile`, or one of safetensors, npz, npy, params or pth")]
    Neither,
    #[error("{0}")]
    Image(#[from] ImageError),
    #[error("the file has other weights than requested; it was replaced, start the program again")]
    Stale,
    #[error("the file is damaged: {0}; copy the file again, or compile the model again")]
    Damaged(String),
    #[error("the file's tensors cannot be read: {0}")]
    Tensors(String),
    #[error("cannot read the file or make shared memory: {0}")]
    System(#[from] io::Error),
    #[error(
        "its weights are separate, and the daemon's base folder has no file of weights named `{0}`; put it there, or \
         start the daemon with --base DIR"
    )]
    NoBase(String),
    #[error("its weights are separate, and `{path}` in the daemon's base folder does not serve: {reason}")]
    Base { path: String, reason: String },
    #[error("the device does not take the weights: {0}")]
    Device(#[from] DeviceFailure),
    #[error("the load panicked")]
    Panic,
}

impl LoadFailure {
    /// The code of the reply.
    pub fn code(&self) -> Code {
        match self {
            LoadFailure::NotRegular | LoadFailure::Neither => Code::Unsupported,
            LoadFailure::Image(_) | LoadFailure::Damaged(_) | LoadFailure::Tensors(_) => Code::Damaged,
            LoadFailure::Stale | LoadFailure::Base { .. } => Code::Stale,
            LoadFailure::NoBase(_) => Code::NotFound,
            LoadFailure::System(error) if error.kind() == io::ErrorKind::UnexpectedEof => Code::Damaged,
            LoadFailure::System(error) => match error.raw_os_error() {
                // ENOMEM, ENFILE, EMFILE, EFBIG, ENOSPC.
                Some(12 | 23 | 24 | 27 | 28) => Code::Exhausted,
                _ => Code::System,
            },
            LoadFailure::Device(failure) if failure.is_full => Code::Exhausted,
            LoadFailure::Device(_) | LoadFailure::Panic => Code::System,
        }
    }
}

/// How much of the machine a load takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPace {
    /// A client waits: one thread reads, another one writes.
    Fast,
    /// No client waits: one thread.
    Behind,
}

/// The identity of a file's weights, from its end (executables) or from all of it (files of tensors). The user is 0.
///
/// # Errors
/// A file that is neither, those of the file system.
pub fn identify(file: &File, path: &Path, granularity: Granularity) -> Result<ModelKey, LoadFailure> {
    match trailer(file) {
        Ok(trailer) => Ok(key_of(&trailer, granularity)),
        Err(LoadFailure::Image(ImageError::NoTrailer)) if is_tensor_file(path) => {
            let bytes = read_all(file, file.metadata()?.len())?;
            let (digest, size) = (blake3::hash(&bytes).into(), bytes.len() as u64);
            Ok(ModelKey { user: 0, granularity: Granularity::Layer, source: SourceKind::Tensors, digest, size })
        }
        Err(LoadFailure::Image(ImageError::NoTrailer)) if !is_program(file) => Err(LoadFailure::Neither),
        Err(error) => Err(error),
    }
}

/// The identity of an executable's constants.
pub fn key_of(trailer: &Trailer, granularity: Granularity) -> ModelKey {
    let (digest, size) = (trailer.constants_digest, trailer.constants_size);
    ModelKey { user: 0, granularity, source: SourceKind::Image, digest, size }
}

/// The plans of an executable.
fn plans_of(file: &File, trailer: &Trailer) -> Result<Vec<Plan>, LoadFailure> {
    let length = trailer.plans.end - trailer.plans.start;
    if PLANS_MAX < length {
        return Err(LoadFailure::Damaged(format!("its plans have {length} bytes, the limit is {PLANS_MAX}")));
    }
    let mut plans = vec![0; length as usize];
    file.read_exact_at(&mut plans, trailer.plans.start)?;
    Ok(trailer.plans(&plans)?)
}

/// Adds zeros to a digest.
fn zeros(digest: &mut blake3::Hasher, count: u64) {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut left = count;
    while 0 < left {
        let part = left.min(ZEROS.len() as u64);
        digest.update(&ZEROS[..part as usize]);
        left -= part;
    }
}

/// Whether a file begins as an executable does.
fn is_program(file: &File) -> bool {
    let mut start = [0; 4];
    file.read_exact_at(&mut start, 0).is_ok() && &start == b"\x7fELF"
}

fn is_tensor_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    ["safetensors", "npz", "npy", "params", "pth", "pt"].contains(&extension)
}

/// The trailer of an executable.
///
/// # Errors
/// A file that is not regular, has no valid trailer, or cannot be read.
pub fn trailer(file: &File) -> Result<Trailer, LoadFailure> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(LoadFailure::NotRegular);
    }
    let length = metadata.len();
    let start = length.checked_sub(Trailer::SIZE as u64).ok_or(ImageError::NoTrailer)?;
    let mut end = [0; Trailer::SIZE];
    file.read_exact_at(&mut end, start)?;
    Ok(Trailer::read(&end, length)?)
}

fn read_all(file: &File, length: u64) -> Result<Vec<u8>, LoadFailure> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize).map_err(|_| io::Error::from_raw_os_error(12))?;
    bytes.resize(length as usize, 0);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// A model in sealed memory.
#[derive(Clone, Debug)]
pub struct Resident {
    /// The blocks that hold its bytes, in the order of the manifest's segments.
    pub extents: Vec<Arc<Extent>>,
    /// The manifest, for granularity `layer`.
    pub manifest: Option<Arc<Extent>>,
    /// Its content.
    pub tensors: Arc<Manifest>,
    /// Bytes of the section as the client sees it.
    pub size: u64,
    /// Bytes of tensors, shared or not.
    pub referenced: u64,
    /// Bytes of tensors that were resident already.
    pub shared: u64,
    /// BLAKE3 of the section, if it is one extent.
    pub digest: Option<[u8; 32]>,
}

/// Tensors and sections that are resident.
#[derive(Debug, Default)]
pub struct ResidentPool {
    /// The folder with the files of separate weights.
    base: Option<PathBuf>,
    next: AtomicU64,
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    tensors: BTreeMap<TensorKey, (Weak<Extent>, u64)>,
    sections: BTreeMap<SectionKey, Weak<Extent>>,
    by_extent: BTreeMap<ExtentId, Vec<TensorKey>>,
}

/// User, digest and size of a section.
type SectionKey = (u32, [u8; 32], u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TensorKey {
    user: u32,
    digest: [u8; 32],
    size: u64,
}

impl ResidentPool {
    /// An empty pool. `base` is the folder with the files of separate weights.
    pub fn new(base: Option<PathBuf>) -> ResidentPool {
        ResidentPool { base, ..ResidentPool::default() }
    }

    /// Forgets an extent that was dropped.
    pub fn forget(&self, extent: ExtentId) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        for key in index.by_extent.remove(&extent).unwrap_or_default() {
            if index.tensors.get(&key).is_some_and(|(weak, _)| weak.strong_count() == 0) {
                index.tensors.remove(&key);
            }
        }
        index.sections.retain(|_, weak| 0 < weak.strong_count());
    }

    /// Loads a file. `name` is for the format of tensor files.
    ///
    /// # Errors
    /// A file other than the key's, a damaged one, those of the system.
    pub fn load(&self, file: &File, key: &ModelKey, name: &str, pace: LoadPace) -> Result<Resident, LoadFailure> {
        match key.source {
            SourceKind::Image => self.load_image(file, key, pace),
            SourceKind::Tensors => self.load_tensors(file, key, name),
        }
    }

    pub(crate) fn number(&self) -> ExtentId {
        ExtentId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn load_image(&self, file: &File, key: &ModelKey, pace: LoadPace) -> Result<Resident, LoadFailure> {
        let trailer = trailer(file)?;
        if key_of(&trailer, key.granularity) != (ModelKey { user: 0, ..*key }) {
            return Err(LoadFailure::Stale);
        }
        let section = (key.user, key.digest, key.size);
        let memory = match self.resident_section(section) {
            // Resident for granularity `model`: its tensors are found where they are.
            Some(extent) => Memory::Sealed(extent),
            None => {
                let filling = Filling::new("uprd-section", key.size)?;
                let digest = match trailer.is_separate() {
                    true => self.pack(file, &trailer, &filling)?,
                    false => copy(file, trailer.constants.start, &filling, key.size, pace)?,
                };
                if digest != key.digest {
                    return Err(LoadFailure::Damaged("the constants' digest is wrong".into()));
                }
                Memory::Filling(filling)
            }
        };
        let memory = match (key.granularity, memory) {
            (Granularity::Model, memory) => {
                let extent = memory.seal(self)?;
                self.add_section(section, &extent);
                return Ok(whole(extent, key));
            }
            (Granularity::Layer, memory) => memory,
        };
        let plans = plans_of(file, &trailer)?;
        let mut ranges: Vec<(u64, u64)> = plans
            .iter()
            .flat_map(|plan| &plan.constants)
            .map(|constant| (constant.offset.0, constant.size.0))
            .filter(|(_, size)| 0 < *size)
            .collect();
        ranges.sort_unstable();
        ranges.dedup();
        let tensors = ranges.into_iter().map(|(offset, size)| (offset, size, offset, String::new())).collect();
        let resident = self.share(memory, tensors, key.user)?;
        // A section without shared tensors serves granularity `model` as well.
        if let [extent] = &resident.extents[..]
            && extent.bytes == key.size
            && resident.shared == 0
        {
            self.add_section(section, extent);
        }
        Ok(resident)
    }

    /// Packs the constants of an executable with separate weights. Returns their digest.
    fn pack(&self, file: &File, trailer: &Trailer, filling: &Filling) -> Result<[u8; 32], LoadFailure> {
        let plans = plans_of(file, trailer)?;
        let name = plan::image::weights_name(&plans);
        let path = self.base.as_ref().and_then(|base| base::find_tensors(base, &name));
        let path = path.ok_or(LoadFailure::NoBase(name))?;
        let wrong = |reason: String| LoadFailure::Base { path: path.display().to_string(), reason };
        let mut kept = vec![0; (trailer.constants.end - trailer.constants.start) as usize];
        file.read_exact_at(&mut kept, trailer.constants.start)?;
        trailer.check_constants(&kept)?;
        let separate = separate_constants(&plans).map_err(LoadFailure::Damaged)?;

        let weights = File::open(&path).map_err(|error| wrong(error.to_string()))?;
        let length = weights.metadata()?.len();
        let bytes = read_all(&weights, length).map_err(|error| wrong(error.to_string()))?;
        let tensors = weights::read(&path.display().to_string(), &bytes).map_err(|error| wrong(error.to_string()))?;
        drop(bytes);
        let (mut digest, mut end) = (blake3::Hasher::new(), 0);
        for (constant, source) in &separate.rows {
            let packed;
            let bytes = match source {
                ConstantSource::Stored(at) => {
                    let range = at.0 as usize..(at.0 + constant.size.0) as usize;
                    kept.get(range).ok_or_else(|| LoadFailure::Damaged("a constant is outside the file".into()))?
                }
                ConstantSource::Recipe(recipe) => {
                    let applied = recipe::apply(recipe, constant.size.0, &tensors);
                    packed = applied.map_err(|reason| wrong(format!("constant `{}`: {reason}", constant.tag.scope)))?;
                    &packed
                }
            };
            zeros(&mut digest, constant.offset.0 - end);
            digest.update(bytes);
            filling.write(bytes, constant.offset.0)?;
            end = constant.offset.0 + constant.size.0;
        }
        zeros(&mut digest, trailer.constants_size.saturating_sub(end));
        let digest: [u8; 32] = digest.finalize().into();
        match digest == trailer.constants_digest {
            true => Ok(digest),
            false => Err(wrong("it has other weights than the executable was compiled with".into())),
        }
    }

    fn add_section(&self, section: SectionKey, extent: &Arc<Extent>) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        index.sections.insert(section, Arc::downgrade(extent));
    }

    fn resident_section(&self, section: SectionKey) -> Option<Arc<Extent>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).sections.get(&section)?.upgrade()
    }

    fn load_tensors(&self, file: &File, key: &ModelKey, name: &str) -> Result<Resident, LoadFailure> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(LoadFailure::NotRegular);
        }
        if metadata.len() != key.size {
            return Err(LoadFailure::Stale);
        }
        let bytes = read_all(file, key.size)?;
        if *blake3::hash(&bytes).as_bytes() != key.digest {
            return Err(LoadFailure::Stale);
        }
        let tensors = weights::read(name, &bytes).map_err(|error| LoadFailure::Tensors(error.to_string()))?;
        let mut size = 0;
        let mut places = Vec::with_capacity(tensors.len());
        for (ix, (name, tensor)) in tensors.iter().enumerate() {
            let bytes = tensor.to_le_bytes().len() as u64;
            places.push((ix as u64, bytes, size, format!("{}{} {name}", tensor.dtype(), tensor.shape())));
            size = (size + bytes).next_multiple_of(TENSOR_ALIGNMENT);
        }
        let filling = Filling::new("uprd-tensors", size)?;
        for ((_, _, at, _), tensor) in places.iter().zip(tensors.values()) {
            filling.write(&tensor.to_le_bytes(), *at)?;
        }
        self.share(Memory::Filling(filling), places, key.user)
    }

    /// Finds tensors of a section in other extents. `tensors`: offset in the manifest, size, offset in the
    /// section, label. Without any, the section becomes the extent; otherwise one with the others alone is made.
    fn share(&self, memory: Memory, tensors: Vec<(u64, u64, u64, String)>, user: u32) -> Result<Resident, LoadFailure> {
        let digests: io::Result<Vec<[u8; 32]>> =
            tensors.iter().map(|(_, size, at, _)| digest(|bytes, at| memory.read(bytes, at), *at, *size)).collect();
        let digests = digests?;
        let key = |ix: usize| TensorKey { user, digest: digests[ix], size: tensors[ix].1 };

        // The lock is held until new tensors are in the index, so that two loads at a time share their common tensors.
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let mut extents: Vec<Arc<Extent>> = Vec::new();
        let mut found: Vec<Option<(u32, u64)>> = vec![None; tensors.len()];
        // A section that is resident is used as it is.
        let passes: &[bool] = if matches!(memory, Memory::Filling(_)) { &[true, false] } else { &[] };
        for &is_large in passes {
            for ix in (0..tensors.len()).filter(|&ix| (SHARED_MIN <= tensors[ix].1) == is_large) {
                let Some((weak, offset)) = index.tensors.get(&key(ix)) else { continue };
                let Some(extent) = weak.upgrade() else { continue };
                let known = extents.iter().position(|other| other.id == extent.id);
                let may_add = is_large && extents.len() + 3 < DESCRIPTORS_MAX;
                if known.is_some() || may_add {
                    let position = known.unwrap_or_else(|| {
                        extents.push(extent);
                        extents.len() - 1
                    });
                    found[ix] = Some((position as u32, *offset));
                }
            }
        }
        let own = extents.len() as u32;
        let places: Vec<(u32, u64, u64)> = if extents.is_empty() {
            extents.push(memory.seal(self)?);
            tensors.iter().map(|(_, size, at, _)| (0, *at, *size)).collect()
        } else {
            let mut end = 0;
            let places: Vec<(u32, u64, u64)> = tensors
                .iter()
                .zip(&found)
                .map(|((_, size, _, _), found)| match *found {
                    Some((extent, offset)) => (extent, offset, *size),
                    None => {
                        let at = end;
                        end = (end + size).next_multiple_of(TENSOR_ALIGNMENT);
                        (own, at, *size)
                    }
                })
                .collect();
            if 0 < end {
                let rest = Filling::new("uprd-tensors", end)?;
                for ((extent, to, size), (_, _, from, _)) in places.iter().zip(&tensors) {
                    if *extent == own {
                        each_chunk(*size, |at, bytes| {
                            memory.read(bytes, from + at)?;
                            rest.write(bytes, to + at)
                        })?;
                    }
                }
                extents.push(Arc::new(rest.seal(self.number())?));
            }
            places
        };
        let mut shared = 0;
        for (ix, (extent, at, size)) in places.iter().enumerate() {
            if found[ix].is_some() {
                shared += size;
                continue;
            }
            let extent = &extents[*extent as usize];
            let known = index.tensors.get(&key(ix)).is_some_and(|(weak, _)| 0 < weak.strong_count());
            if !known {
                index.tensors.insert(key(ix), (Arc::downgrade(extent), *at));
            }
            index.by_extent.entry(extent.id).or_default().push(key(ix));
        }
        drop(index);

        let (segments, at, length) = Manifest::segments(&places, GAP);
        let place = |(ix, (offset, size, _, label)): (usize, (u64, u64, u64, String))| TensorPlace {
            offset,
            size,
            at: at[ix],
            digest: digests[ix],
            label,
        };
        let manifest = Manifest { length, segments, tensors: tensors.into_iter().enumerate().map(place).collect() };
        let bytes = manifest.encode();
        let memory = Filling::new("uprd-manifest", bytes.len() as u64)?;
        memory.write(&bytes, 0)?;
        Ok(Resident {
            extents,
            manifest: Some(Arc::new(memory.seal(self.number())?)),
            referenced: places.iter().map(|(_, _, size)| size).sum(),
            tensors: Arc::new(manifest),
            size: length,
            shared,
            digest: None,
        })
    }
}

/// A section: being filled, or resident already.
enum Memory {
    Filling(Filling),
    Sealed(Arc<Extent>),
}

impl Memory {
    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Memory::Filling(filling) => filling.read(bytes, offset),
            Memory::Sealed(extent) => extent.file.read_exact_at(bytes, offset),
        }
    }

    fn seal(self, pool: &ResidentPool) -> io::Result<Arc<Extent>> {
        match self {
            Memory::Filling(filling) => Ok(Arc::new(filling.seal(pool.number())?)),
            Memory::Sealed(extent) => Ok(extent),
        }
    }
}

/// A model that is one extent.
fn whole(extent: Arc<Extent>, key: &ModelKey) -> Resident {
    Resident {
        extents: vec![extent],
        manifest: None,
        tensors: Arc::default(),
        size: key.size,
        referenced: key.size,
        shared: 0,
        digest: Some(key.digest),
    }
}

impl Resident {
    /// Compares the resident bytes with their digests.
    ///
    /// # Errors
    /// Those of the system.
    pub fn verify(&self) -> io::Result<bool> {
        if let (Some(digest), [extent]) = (self.digest, &self.extents[..]) {
            let mut hash = blake3::Hasher::new();
            each_chunk(self.size, |at, bytes| {
                extent.file.read_exact_at(bytes, at)?;
                hash.update(bytes);
                Ok(())
            })?;
            return Ok(*hash.finalize().as_bytes() == digest);
        }
        for tensor in &self.tensors.tensors {
            let segment = self
                .tensors
                .segments
                .iter()
                .find(|segment| segment.to <= tensor.at && tensor.at + tensor.size <= segment.to + segment.length);
            let Some(segment) = segment else { return Ok(false) };
            let extent = &self.extents[segment.extent as usize];
            let from = segment.from + (tensor.at - segment.to);
            if digest(|bytes, at| extent.file.read_exact_at(bytes, at), from, tensor.size)? != tensor.digest {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Calls `each` with the offset of every chunk and a buffer of its length.
fn each_chunk(size: u64, mut each: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK.min(size as usize)];
    let mut at = 0;
    while at < size {
        let length = (size - at).min(CHUNK as u64) as usize;
        each(at, &mut buffer[..length])?;
        at += length as u64;
    }
    Ok(())
}

/// Bytes that the system is told to read ahead.
const AHEAD: u64 = 16 << 20;
/// Chunks between the thread that reads and the thread that writes.
const CHUNKS_AHEAD: usize = 8;

/// Copies a part of a file and returns BLAKE3 of the bytes. At [`LoadPace::Fast`] a second thread writes, since new memory is
/// slower than most disks.
fn copy(file: &File, from: u64, to: &Filling, size: u64, pace: LoadPace) -> io::Result<[u8; 32]> {
    let read_ahead = |at: u64| {
        let length = std::num::NonZeroU64::new(AHEAD.min(size.saturating_sub(at)));
        if length.is_some() {
            // A hint only.
            let _ = rustix::fs::fadvise(file, from + at, length, rustix::fs::Advice::WillNeed);
        }
    };
    let mut hash = blake3::Hasher::new();
    if size <= 4 * CHUNK as u64 || pace == LoadPace::Behind {
        each_chunk(size, |at, bytes| {
            if at % (AHEAD / 2) == 0 {
                read_ahead(at);
            }
            file.read_exact_at(bytes, from + at)?;
            hash.update(bytes);
            to.write(bytes, at)
        })?;
        return Ok(hash.finalize().into());
    }
    read_ahead(0);
    std::thread::scope(|scope| {
        let (full, to_write) = sync_channel::<(u64, Vec<u8>)>(CHUNKS_AHEAD);
        let (empty, to_fill) = channel::<Vec<u8>>();
        let writer = std::thread::Builder::new().spawn_scoped(scope, move || -> io::Result<()> {
            for (at, bytes) in to_write {
                to.write(&bytes, at)?;
                // The reader may have ended.
                let _ = empty.send(bytes);
            }
            Ok(())
        })?;
        let read = (0..size).step_by(CHUNK).try_for_each(|at| -> io::Result<()> {
            if at % (AHEAD / 2) == 0 {
                read_ahead(at + AHEAD / 2);
            }
            let mut bytes = to_fill.try_recv().unwrap_or_default();
            bytes.resize(CHUNK.min((size - at) as usize), 0);
            file.read_exact_at(&mut bytes, from + at)?;
            hash.update(&bytes);
            // A writer that failed has closed the channel; its error is reported below.
            full.send((at, bytes)).map_err(|_| io::Error::other("the writer ended"))
        });
        drop(full);
        let written = writer.join().map_err(|_| io::Error::other("the writer panicked"))?;
        written.and(read).map(|()| hash.finalize().into())
    })
}

fn digest(read: impl Fn(&mut [u8], u64) -> io::Result<()>, from: u64, size: u64) -> io::Result<[u8; 32]> {
    let mut hash = blake3::Hasher::new();
    each_chunk(size, |at, bytes| {
        read(bytes, from + at)?;
        hash.update(bytes);
        Ok(())
    })?;
    Ok(hash.finalize().into())
}
