//! Where NVIDIA's libraries are: in folders of the environment, in a toolkit, among Python's packages, or where the system
//! looks.

use std::path::PathBuf;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// A library that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot load {name}: it is not in {}where the system looks; install it with `cargo xtask fetch --cuda`, or name its \
     folder in PRESTOW_CUDA_LIBS",
    .tried.iter().map(|path| format!("{}, nor ", path.display())).collect::<String>()
)]
pub struct NotFound {
    /// Its name.
    pub name: String,
    /// The folders that were looked in.
    pub tried: Vec<PathBuf>,
}

/// Loads libraries into the process for good, so that whoever asks the system for one by its name finds it. The first
/// folder that has one of the files of each decides; what it needs stands in front of it.
///
/// # Errors
/// The first that is nowhere.
pub(crate) fn load(folders: &[PathBuf], wanted: &[&str]) -> Result<(), NotFound> {
    for name in wanted {
        let candidates = folders.iter().filter_map(|folder| {
            let entries = std::fs::read_dir(folder).ok()?;
            let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            files.sort();
            let fits = |path: &&PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name));
            files.iter().find(fits).cloned()
        });
        // What the system finds by itself comes last.
        let mut paths: Vec<PathBuf> = candidates.collect();
        paths.push(PathBuf::from(name));
        let loaded = paths.iter().any(|path| {
            // SAFETY: NVIDIA's libraries run no code at their loading that asks anything of the process.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
            // It stays for as long as the process does.
            library.map(std::mem::forget).is_ok()
        });
        if !loaded {
            return Err(NotFound { name: (*name).to_string(), tried: folders.to_vec() });
        }
    }
    Ok(())
}

/// The folders to look in, by what the caller knows of the environment: folders that were named, the root of a toolkit, and
/// the roots of Python's packages.
pub(crate) fn folders(named: &[PathBuf], toolkit: Option<&PathBuf>, packages: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = named.to_vec();
    folders.extend(toolkit.iter().flat_map(|root| [root.join("lib64"), root.join("lib")]));
    for root in packages {
        // As wheels for CUDA 13 lay it out, and as those for 12 did.
        for folder in ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"] {
            folders.push(root.join(folder));
        }
    }
    folders
}
