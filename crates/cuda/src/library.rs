//! Where NVIDIA's libraries are: in folders of the environment, in a toolkit, among Python's packages, or where the system
//! looks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// Where to look for NVIDIA's libraries, before the system is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Folders with libraries.
    pub folders: Vec<PathBuf>,
    /// The root of a CUDA toolkit.
    pub toolkit: Option<PathBuf>,
    /// Roots of Python's packages, `site-packages`.
    pub packages: Vec<PathBuf>,
}

impl Places {
    /// What an environment names, by its variables: `PRESTOW_CUDA_LIBS`, `CUDA_HOME` and `VIRTUAL_ENV`.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Places {
        let paths = |name: &str| -> Vec<PathBuf> {
            variable(name).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
        };
        let packages = paths("VIRTUAL_ENV").iter().flat_map(|root| packages(root)).collect();
        Places { folders: paths("PRESTOW_CUDA_LIBS"), toolkit: paths("CUDA_HOME").into_iter().next(), packages }
    }

    /// With the packages of one more Python environment, which come first.
    #[must_use]
    pub fn with_environment(mut self, root: &Path) -> Places {
        self.packages.splice(0..0, packages(root));
        self
    }

    /// The folders to look in.
    fn all(&self) -> Vec<PathBuf> {
        let mut folders = self.folders.clone();
        folders.extend(
            self.toolkit
                .iter()
                .flat_map(|root| [root.join("lib64"), root.join("lib"), root.join("extras/CUPTI/lib64")]),
        );
        for root in &self.packages {
            // As wheels for CUDA 13 lay it out, and as those for 12 did.
            for folder in ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cudnn/lib"] {
                folders.push(root.join(folder));
            }
        }
        folders
    }
}

/// The folders of Python's packages in an environment.
fn packages(root: &Path) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("site-packages")).collect();
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    folders
}

/// A library that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot load {name}: it is not {}where the system looks; install it with `cargo xtask fetch {fetch}`, or name its \
     folder in PRESTOW_CUDA_LIBS",
    .tried.iter().map(|path| format!("in {}, nor ", path.display())).collect::<String>()
)]
pub struct NotFound {
    /// Its name.
    pub name: String,
    /// What brings it.
    pub fetch: &'static str,
    /// The folders that were looked in.
    pub tried: Vec<PathBuf>,
}

/// A library by the names that it may have: from the first folder that has one of the files, or from where the system
/// looks.
fn open(places: &Places, names: &[&str], flags: i32, fetch: &'static str) -> Result<Library, NotFound> {
    let folders = places.all();
    let candidates = folders.iter().flat_map(|folder| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.sort();
        let fits = |path: &&PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(names[0]));
        files.iter().find(fits).cloned()
    });
    // What the system finds by itself comes last.
    let mut paths = candidates.chain(names.iter().map(PathBuf::from));
    let found = paths.find_map(|path| {
        // SAFETY: NVIDIA's libraries run no code at their loading that asks anything of the process.
        unsafe { Library::open(Some(path), RTLD_NOW | flags) }.ok()
    });
    drop(paths);
    found.ok_or_else(|| NotFound { name: names[0].to_string(), fetch, tried: folders })
}

/// Loads a library into the process for good, so that whoever asks the system for it by its name finds it.
///
/// # Errors
/// It is nowhere.
pub(crate) fn load(places: &Places, names: &[&str], fetch: &'static str) -> Result<(), NotFound> {
    open(places, names, RTLD_GLOBAL, fetch).map(std::mem::forget)
}

/// A library whose functions only its table sees.
///
/// # Errors
/// It is nowhere.
pub(crate) fn table(places: &Places, names: &[&str], fetch: &'static str) -> Result<libloading::Library, NotFound> {
    open(places, names, RTLD_LOCAL, fetch).map(Into::into)
}

/// A function of a table as bindgen writes it; or an error by which one is missing.
macro_rules! function {
    ($table:expr, $name:ident, $error:ident) => {
        *$table.$name.as_ref().map_err(|_| $error::Lacks(stringify!($name)))?
    };
}
pub(crate) use function;

/// A version as a library tells it, 91900, as people write it, 9.19.0.
pub(crate) fn dotted(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}
