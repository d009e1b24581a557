//! [`Location`]: a file, a folder, or objects at a URL; [`SourceFile`]: one of them open for reads at offsets.
//!
//! Everything that this crate reads comes through here. Local paths use the file system. URLs of object stores are read by the
//! program `prestow-store`, whose client is [`Store`]; a URL `file://` is a local path.

mod object;
mod store;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use types::Bytes;

use crate::DataError;
use object::Object;
use store::Store;

pub(crate) use object::{CACHE_BYTES, THREAD_BYTES};

/// The schemes of URLs that `prestow-store` reads.
const SCHEMES: [&str; 10] = ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"];

/// A file, a folder, or the objects below a URL.
#[derive(Clone)]
pub(crate) enum Location {
    Local(PathBuf),
    /// An object by its name below the store's URL; all of them if the name is empty.
    Remote {
        store: Arc<Store>,
        name: String,
    },
}

impl Location {
    /// The location of a text. A URL is opened as the objects below it if `is_folder`, else as one object; `program` is the
    /// file of `prestow-store`, by default in the folder of this program or in PATH.
    ///
    /// # Errors
    /// A scheme that is not supported; a store that cannot be opened.
    pub(crate) fn open(text: &str, is_folder: bool, program: Option<&Path>) -> Result<Location, DataError> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(Location::Local(text.into())) };
        let refused = |reason: String| DataError::Source { path: text.to_string(), reason };
        if scheme == "file" {
            return match rest.starts_with('/') {
                true => Ok(Location::Local(rest.into())),
                false => Err(refused("a URL file:// must have an absolute path, as file:///data/x.rec".into())),
            };
        }
        if !SCHEMES.contains(&scheme) {
            let known = SCHEMES.join(", ");
            return Err(refused(format!("`{scheme}` is not a scheme of a URL; the schemes are file, {known}")));
        }
        if rest.contains(['?', '#']) {
            return Err(refused("a URL must not have a query or a fragment".into()));
        }
        let (url, name) = match text.rsplit_once('/') {
            Some((url, name)) if !is_folder && url.contains("://") && !name.is_empty() => (url, name),
            _ if is_folder => (text, ""),
            _ => return Err(refused("a URL of one object must have its name, as s3://bucket/x.rec".into())),
        };
        let name = decoded(name).ok_or_else(|| refused("its name must be percent-encoded UTF-8".into()))?;
        let store = Store::open(url, program).map_err(refused)?;
        Ok(Location::Remote { store: Arc::new(store), name })
    }

    /// The location with another extension.
    pub(crate) fn with_extension(&self, extension: &str) -> Location {
        match self {
            Location::Local(path) => Location::Local(path.with_extension(extension)),
            Location::Remote { store, name } => {
                let name = Path::new(name).with_extension(extension).to_string_lossy().into_owned();
                Location::Remote { store: store.clone(), name }
            }
        }
    }

    /// Whether it is a folder, or all objects below a URL.
    pub(crate) fn is_folder(&self) -> bool {
        match self {
            Location::Local(path) => path.is_dir(),
            Location::Remote { name, .. } => name.is_empty(),
        }
    }

    /// A file in a folder, or in the folder of a file.
    pub(crate) fn named(&self, name: &str) -> Location {
        match self {
            Location::Local(path) if path.is_dir() => Location::Local(path.join(name)),
            Location::Local(path) => Location::Local(path.with_file_name(name)),
            Location::Remote { store, .. } => Location::Remote { store: store.clone(), name: name.into() },
        }
    }

    /// The last part of the name.
    pub(crate) fn file_name(&self) -> String {
        match self {
            Location::Local(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Location::Remote { name, .. } => name.rsplit('/').next().unwrap_or_default().into(),
        }
    }

    /// Whether it is a file or an object. An object that may not be read counts as absent: some stores deny access to every
    /// object that does not exist.
    ///
    /// # Errors
    /// A store that does not answer.
    pub(crate) fn exists(&self) -> Result<bool, DataError> {
        match self {
            Location::Local(path) => Ok(path.exists()),
            Location::Remote { store, name } => match store.size(name) {
                Ok(_) => Ok(true),
                Err(reason) if reason.starts_with("not found") || reason.starts_with("access denied") => Ok(false),
                Err(reason) => Err(self.failed(reason)),
            },
        }
    }

    /// The names in a folder, sorted; of a store, of all objects below its URL, with `/` in them.
    ///
    /// # Errors
    /// A folder that cannot be read; a store that does not answer.
    pub(crate) fn names(&self) -> Result<Vec<String>, DataError> {
        match self {
            Location::Local(path) => {
                let failed = |error: io::Error| self.failed(error.to_string());
                let entries = fs::read_dir(path).map_err(failed)?;
                let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
                let mut names: Vec<String> = entries.map(name).collect::<io::Result<_>>().map_err(failed)?;
                names.sort();
                Ok(names)
            }
            Location::Remote { store, .. } => {
                let rows = store.list().map_err(|reason| self.failed(reason))?;
                Ok(rows.into_iter().map(|(_, name)| name).collect())
            }
        }
    }

    /// The folders in a folder, or the first parts of the names below a URL, each with the names of its files; all sorted.
    ///
    /// # Errors
    /// As [`Location::names`].
    pub(crate) fn folders(&self) -> Result<Vec<(String, Vec<String>)>, DataError> {
        let mut folders: Vec<(String, Vec<String>)> = Vec::new();
        match self {
            Location::Local(path) => {
                for class in self.names()?.into_iter().filter(|name| path.join(name).is_dir()) {
                    let names = Location::Local(path.join(&class)).names()?;
                    folders.push((class, names));
                }
            }
            Location::Remote { .. } => {
                for name in self.names()? {
                    let Some((class, name)) = name.split_once('/').filter(|(_, name)| !name.contains('/')) else {
                        continue;
                    };
                    match folders.last_mut() {
                        Some((last, names)) if last == class => names.push(name.into()),
                        _ => folders.push((class.into(), vec![name.into()])),
                    }
                }
            }
        }
        Ok(folders)
    }

    /// The whole content of a regular file or an object.
    ///
    /// # Errors
    /// More than `limit` bytes; an object or file that cannot be read; a FIFO or a device, which has no end.
    pub(crate) fn read(&self, limit: Bytes) -> Result<Vec<u8>, DataError> {
        match self {
            Location::Local(path) => Ok(files::read_regular(path, limit)?),
            Location::Remote { store, name } => {
                let failed = |reason: String| self.failed(reason);
                let size = store.size(name).map_err(failed)?;
                if limit.0 < size {
                    return Err(failed(format!("it has {}, the limit is {limit}", Bytes(size))));
                }
                store.read_all(name, size).map_err(failed)
            }
        }
    }

    /// An error of this location.
    pub(crate) fn failed(&self, reason: impl ToString) -> DataError {
        DataError::Source { path: self.to_string(), reason: reason.to_string() }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Location::Local(path) => path.display().fmt(f),
            Location::Remote { store, name } if name.is_empty() => f.write_str(store.url()),
            Location::Remote { store, name } => write!(f, "{}/{name}", store.url().trim_end_matches('/')),
        }
    }
}

/// The text of a part of a URL.
fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        match first {
            b'%' => {
                let (digits, tail) = tail.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = tail;
            }
            byte => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// A file or an object, read at offsets from any thread.
pub(crate) struct SourceFile {
    content: Content,
    size: u64,
}

enum Content {
    File(File),
    Object(Object),
}

impl SourceFile {
    /// Opens a regular file or an object.
    ///
    /// # Errors
    /// A file or object that cannot be read.
    pub(crate) fn open(location: &Location) -> Result<SourceFile, DataError> {
        match location {
            Location::Local(path) => {
                let file = files::open_regular(path)?;
                let size = file.metadata().map_err(|error| location.failed(error))?.len();
                Ok(SourceFile { content: Content::File(file), size })
            }
            Location::Remote { store, name } => {
                let size = store.size(name).map_err(|reason| location.failed(reason))?;
                Ok(SourceFile { content: Content::Object(Object::new(store.clone(), name, size)), size })
            }
        }
    }

    /// The number of bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Fills `bytes` from an offset.
    ///
    /// # Errors
    /// A file or object that ends before; one that cannot be read.
    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.content {
            Content::File(file) => read_at(file, bytes, offset),
            Content::Object(object) => object.read_at(bytes, offset).map_err(io::Error::other),
        }
    }

    /// Announces that the bytes from `start` to `end` are read next: one request then fetches all of them.
    pub(crate) fn announce(&self, start: u64, end: u64) -> io::Result<()> {
        match &self.content {
            Content::File(_) => Ok(()),
            Content::Object(object) => object.announce(start, end).map_err(io::Error::other),
        }
    }

    /// Whether reads use memory that all threads share, [`CACHE_BYTES`], and [`THREAD_BYTES`] for each thread.
    pub(crate) fn is_cached(&self) -> bool {
        matches!(self.content, Content::Object(_))
    }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                bytes = &mut bytes[count..];
                offset += count as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_no_store_reads_are_refused() {
        let refused = |text: &str| Location::open(text, false, None).err().unwrap().to_string();
        assert!(
            refused("hdfs://host/x.rec").contains("`hdfs` is not a scheme of a URL; the schemes are file, s3, s3a")
        );
        assert!(refused("file://x.rec").contains("must have an absolute path"));
        assert!(refused("s3://bucket").contains("must have its name"));
        assert!(refused("https://host/x.rec?sig=1").contains("must not have a query"));
        assert!(refused("s3://bucket/%zz").contains("percent-encoded"));
        assert_eq!(Location::open("file:///a/x.rec", false, None).unwrap().to_string(), "/a/x.rec");
        let missing = Location::open("s3://bucket/x.rec", false, Some(Path::new("/absent/prestow-store")));
        assert!(missing.err().unwrap().to_string().contains("cannot start `/absent/prestow-store`"));
        assert_eq!(decoded("a%20b%C3%A9"), Some("a bé".into()));
    }
}
