//! PyTorch files: legacy ones with five pickles before raw data, and zip archives with one pickle and raw data.
//!
//! Source: `torch/serialization.py`. Big-endian files are refused.

use std::borrow::Cow;
use std::collections::BTreeMap;

use types::{DType, Tensor};

use crate::archive::Archive;
use crate::flatten::{Storages, flatten};
use crate::object::Object;
use crate::pickle::{self, Pickle};
use crate::{Budget, FormatError};

/// The first pickle of a legacy file: protocol 2, the integer 0x1950a86a20f9469cfc6c.
pub(super) const LEGACY_MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

/// Reads a file of PyTorch before 1.6: magic, version, system information, objects, keys of storages; then for each key
/// the number of elements and the elements.
pub(super) fn read_legacy(bytes: &[u8], budget: &mut Budget) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let mut rest = bytes;
    let mut next = |budget: &mut Budget| {
        let pickle = pickle::load(rest, budget)?;
        rest = &rest[pickle.size_bytes..];
        Ok::<_, FormatError>(pickle)
    };
    next(budget)?;
    let version = next(budget)?;
    if !matches!(version.heap.get(version.root), Object::Int(1001)) {
        return Err(FormatError::Content("the version of the PyTorch file must be 1001".into()));
    }
    check_byte_order(&next(budget)?)?;
    let objects = next(budget)?;
    let keys = next(budget)?;

    let dtypes = storage_dtypes(&objects)?;
    let mut storages = Storages::new();
    let (Object::List(ids) | Object::Tuple(ids)) = keys.heap.get(keys.root) else {
        return Err(FormatError::Content("the keys of the storages must be a list".into()));
    };
    for &id in ids {
        let entry = keys.heap.text(id).and_then(|key| Some((key, *dtypes.get(key)?)));
        let (key, dtype) = entry.ok_or_else(|| FormatError::Content("every storage must belong to a tensor".into()))?;
        let (data, after) = split_storage(rest, dtype).ok_or(FormatError::Truncated { part: "a storage" })?;
        storages.insert(key.to_string(), Cow::Borrowed(data));
        rest = after;
    }
    flatten(&objects, &storages, budget)
}

/// Reads an archive of PyTorch 1.6 and later, whose pickle is `{prefix}data.pkl` and whose storages are `{prefix}data/N`.
pub(super) fn read_archive(
    archive: &mut Archive,
    prefix: &str,
    budget: &mut Budget,
) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let byte_order = format!("{prefix}byteorder");
    if archive.has(&byte_order) && archive.entry(&byte_order, budget)? != b"little" {
        return Err(big_endian());
    }
    let bytes = archive.entry(&format!("{prefix}data.pkl"), budget)?;
    let objects = pickle::load(&bytes, budget)?;
    let mut storages = Storages::new();
    for key in storage_dtypes(&objects)?.into_keys() {
        let data = archive.entry(&format!("{prefix}data/{key}"), budget)?;
        storages.insert(key, Cow::Owned(data));
    }
    flatten(&objects, &storages, budget)
}

fn big_endian() -> FormatError {
    FormatError::Content("the file must be little-endian; save it again on a little-endian machine".into())
}

fn check_byte_order(system: &Pickle) -> Result<(), FormatError> {
    let Object::Dict(pairs) = system.heap.get(system.root) else {
        return Err(FormatError::Content("the system information must be a dictionary".into()));
    };
    let little = pairs.iter().find(|(key, _)| system.heap.text(*key) == Some("little_endian"));
    match little.map(|(_, value)| system.heap.get(*value)) {
        Some(Object::Bool(true)) | None => Ok(()),
        _ => Err(big_endian()),
    }
}

/// The element type of each storage that a tensor refers to.
fn storage_dtypes(objects: &Pickle) -> Result<BTreeMap<String, DType>, FormatError> {
    let mut dtypes = BTreeMap::new();
    for object in objects.heap.objects() {
        if let Object::Storage(storage) = object
            && dtypes.insert(storage.key.clone(), storage.dtype).is_some_and(|other| other != storage.dtype)
        {
            return Err(FormatError::Content(format!("storage `{}` must have one element type, got two", storage.key)));
        }
    }
    Ok(dtypes)
}

/// Splits a count and its elements off the front.
fn split_storage(bytes: &[u8], dtype: DType) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first_chunk::<8>()?;
    let count = usize::try_from(i64::from_le_bytes(*count)).ok()?;
    rest.split_at_checked(count.checked_mul(dtype.size().0 as usize)?)
}
