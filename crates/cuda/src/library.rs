//! Where NVIDIA's libraries are: in folders of the environment, in a toolkit, among Python's packages, or where the system
//! looks. Python is not run for that.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// Where a system has Python's packages that belong to no environment, in Python's order.
const SYSTEM: [&str; 2] = ["/usr/local", "/usr"];

/// Where to look for NVIDIA's libraries, before the system is asked: in the order of the fields. What somebody named comes
/// before what is guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryPaths {
    /// Folders with libraries.
    pub folders: Vec<PathBuf>,
    /// The root of a CUDA toolkit.
    pub toolkit: Option<PathBuf>,
    /// Roots of the packages of Python environments that were named, `site-packages`.
    pub packages: Vec<PathBuf>,
    /// Folders that the system's loader was told of.
    pub loader: Vec<PathBuf>,
    /// Roots of packages of Pythons that nobody named: of those in `PATH`, the user's and the system's.
    pub site: Vec<PathBuf>,
}

impl LibraryPaths {
    /// What an environment names, by its variables: `PRESTOW_CUDA_LIBS`, `CUDA_HOME`, `VIRTUAL_ENV` (or `CONDA_PREFIX`) and
    /// `LD_LIBRARY_PATH`; and where Pythons have packages that are not named: the environments of those in `PATH`, which is
    /// how many containers have theirs, `PYTHONUSERBASE` or `~/.local`, `/usr/local` and `/usr`.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> LibraryPaths {
        LibraryPaths::beside(variable, &SYSTEM.map(PathBuf::from))
    }

    fn beside(variable: impl Fn(&str) -> Option<OsString>, system: &[PathBuf]) -> LibraryPaths {
        let paths = |name: &str| -> Vec<PathBuf> {
            let paths: Vec<PathBuf> =
                variable(name).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default();
            paths.into_iter().filter(|path| !path.as_os_str().is_empty()).collect()
        };
        let first = |name: &str| paths(name).into_iter().next();
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(first);
        let user = first("PYTHONUSERBASE").or_else(|| first("HOME").map(|home| home.join(".local")));
        // A system's own Python sees the user's packages first.
        let own = |root: &PathBuf| !system.contains(root) && user.as_ref() != Some(root);
        let commands =
            paths("PATH").into_iter().filter(|folder| folder.is_absolute() && folder.join("python3").exists());
        let mut pythons: Vec<PathBuf> = commands.filter_map(|folder| Some(folder.parent()?.to_path_buf())).collect();
        pythons.retain(own);
        LibraryPaths {
            folders: paths("PRESTOW_CUDA_LIBS"),
            toolkit: first("CUDA_HOME"),
            packages: environments.flat_map(|root| packages(&root)).collect(),
            loader: paths("LD_LIBRARY_PATH"),
            site: pythons.iter().chain(&user).chain(system).flat_map(|root| packages(root)).collect(),
        }
    }

    /// With the packages of one more Python environment, which come first.
    #[must_use]
    pub fn with_environment(mut self, root: &Path) -> LibraryPaths {
        self.packages.splice(0..0, packages(root));
        self
    }

    /// The folders to look in.
    fn all(&self) -> Vec<PathBuf> {
        let wheels = |roots: &[PathBuf]| roots.iter().flat_map(|root| wheels(root)).collect::<Vec<_>>();
        [self.named(), wheels(&self.packages), self.loader.clone(), wheels(&self.site)].concat()
    }

    /// The same for whoever reads it: packages by their roots.
    pub(crate) fn told(&self) -> Vec<PathBuf> {
        let wheels = |roots: &[PathBuf]| roots.iter().map(|root| root.join("nvidia/*/lib")).collect::<Vec<_>>();
        [self.named(), wheels(&self.packages), self.loader.clone(), wheels(&self.site)].concat()
    }

    fn named(&self) -> Vec<PathBuf> {
        let toolkit = self.toolkit.iter();
        let toolkit = toolkit.flat_map(|root| [root.join("lib64"), root.join("lib"), root.join("extras/CUPTI/lib64")]);
        self.folders.iter().cloned().chain(toolkit).collect()
    }
}

/// The folders of Python's packages below a root; those of later versions first.
fn packages(root: &Path) -> Vec<PathBuf> {
    let versions = entries(&root.join("lib"));
    let versions = versions
        .iter()
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")));
    // Debian has its own packages apart from others'.
    let mut folders: Vec<PathBuf> =
        versions.rev().flat_map(|path| ["site-packages", "dist-packages"].map(|kind| path.join(kind))).collect();
    folders.retain(|folder| folder.is_dir());
    folders
}

/// The folders of NVIDIA's wheels among packages: those for CUDA 13 share one (`nvidia/cu13/lib`), those for 12 have one each
/// (`nvidia/cublas/lib`), as cuDNN's have for both. A later toolkit's shared one comes first.
fn wheels(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = entries(&root.join("nvidia")).iter().map(|path| path.join("lib")).collect();
    folders.retain(|folder| folder.is_dir());
    let is_shared = |folder: &PathBuf| {
        let name = folder.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        name.strip_prefix("cu").is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (mut shared, own): (Vec<_>, Vec<_>) = folders.into_iter().partition(is_shared);
    shared.reverse();
    [shared, own].concat()
}

/// What lies in a folder, by name; nothing where there is none.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A library that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot load {name}: it is not {}where the system looks; install it with `cargo xtask fetch {fetch}`, or name its \
     folder in PRESTOW_CUDA_LIBS",
    .tried.iter().map(|path| format!("in {}, nor ", path.display())).collect::<String>()
)]
pub struct LibraryNotFound {
    /// Its name.
    pub name: String,
    /// What brings it.
    pub fetch: &'static str,
    /// The folders that were looked in.
    pub tried: Vec<PathBuf>,
}

/// A library by the names that it may have: from the first folder that has one of the files, or from where the system
/// looks.
fn open(places: &LibraryPaths, names: &[&str], flags: i32, fetch: &'static str) -> Result<Library, LibraryNotFound> {
    let folders = places.all();
    let candidates = folders.iter().flat_map(|folder| {
        let fits = |path: &&PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(names[0]));
        entries(folder).iter().find(fits).cloned()
    });
    // What the system finds by itself comes last.
    let mut paths = candidates.chain(names.iter().map(PathBuf::from));
    let found = paths.find_map(|path| {
        // SAFETY: NVIDIA's libraries run no code at their loading that asks anything of the process.
        unsafe { Library::open(Some(path), RTLD_NOW | flags) }.ok()
    });
    drop(paths);
    found.ok_or_else(|| LibraryNotFound { name: names[0].to_string(), fetch, tried: places.told() })
}

/// Loads a library into the process for good, so that whoever asks the system for it by its name finds it.
///
/// # Errors
/// It is nowhere.
pub(crate) fn load(places: &LibraryPaths, names: &[&str], fetch: &'static str) -> Result<(), LibraryNotFound> {
    open(places, names, RTLD_GLOBAL, fetch).map(std::mem::forget)
}

/// A library whose functions only its table sees.
///
/// # Errors
/// It is nowhere.
pub(crate) fn table(
    places: &LibraryPaths,
    names: &[&str],
    fetch: &'static str,
) -> Result<libloading::Library, LibraryNotFound> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Folders below one of this test's own, made here.
    fn made(root: &Path, folders: &[&str]) -> Vec<PathBuf> {
        let folders: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
        folders.iter().for_each(|folder| std::fs::create_dir_all(folder).expect("the folder is ours"));
        folders
    }

    #[test]
    fn what_is_named_comes_before_what_is_found() {
        let root = std::env::temp_dir().join(format!("prestow-places-{}", std::process::id()));
        let wheels = made(
            &root,
            &[
                // Of an environment, for CUDA 13.
                "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
                "venv/lib/python3.12/site-packages/nvidia/cudnn/lib",
                // Of the user, for CUDA 12, and for two versions of Python.
                "home/.local/lib/python3.12/site-packages/nvidia/cublas/lib",
                "home/.local/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
                "home/.local/lib/python3.11/site-packages/nvidia/cu13/lib",
                // Of the system.
                "usr/local/lib/python3.11/dist-packages/nvidia/cudnn/lib",
                "usr/lib/python3/dist-packages/nvidia/cu13/lib",
            ],
        );
        // No libraries, no packages, no Python.
        made(
            &root,
            &["venv/lib/python3.12/site-packages/nvidia/cudnn/include", "venv/lib/other/site-packages/nvidia/cu13/lib"],
        );
        let join = |names: &[&str]| std::env::join_paths(names.iter().map(|name| root.join(name))).ok();
        let variable = |name: &str| match name {
            "PRESTOW_CUDA_LIBS" => join(&["first", "second"]),
            "CUDA_HOME" => join(&["toolkit"]),
            "VIRTUAL_ENV" => join(&["venv"]),
            "LD_LIBRARY_PATH" => join(&["loader"]),
            "HOME" => join(&["home"]),
            _ => None,
        };
        let places = LibraryPaths::beside(variable, &[root.join("usr/local"), root.join("usr")]);
        let named = ["first", "second", "toolkit/lib64", "toolkit/lib", "toolkit/extras/CUPTI/lib64"];
        let named: Vec<PathBuf> = named.iter().map(|name| root.join(name)).collect();
        let want = [&named, &wheels[..2], &[root.join("loader")], &wheels[2..]].concat();
        assert_eq!(places.all(), want);

        // All of it is told of what is nowhere.
        let error = open(&places, &["libnonesuch.so.1"], RTLD_LOCAL, "--nvrtc").expect_err("there is none");
        let said = error.to_string();
        for folder in ["first", "toolkit/lib64", "loader", "venv/lib/python3.12/site-packages/nvidia/*/lib"] {
            assert!(said.contains(&format!("in {}, nor ", root.join(folder).display())), "{folder}: {said}");
        }
        for folder in ["home/.local/lib/python3.11/site-packages", "usr/lib/python3/dist-packages"] {
            assert!(said.contains(&format!("in {}/nvidia/*/lib, nor ", root.join(folder).display())), "{said}");
        }

        // What nobody named but is the `python3` of a shell, before the user's. A folder without that command is none, and
        // what is looked in anyway has its own turn.
        made(&root, &["venv/bin", "usr/bin", "toolkit/bin"]);
        for python in ["venv/bin/python3", "usr/bin/python3"] {
            std::fs::write(root.join(python), "").expect("the folder is ours");
        }
        let variable = |name: &str| match name {
            "PATH" => join(&["usr/bin", "toolkit/bin", "nowhere", "venv/bin"]),
            "HOME" => join(&["home"]),
            _ => None,
        };
        let places = LibraryPaths::beside(variable, &[root.join("usr/local"), root.join("usr")]);
        assert_eq!(places.all(), wheels);

        // Another base for the user's, and an environment of conda's.
        let variable = |name: &str| match name {
            "PYTHONUSERBASE" => join(&["venv"]),
            "HOME" | "CONDA_PREFIX" => join(&["home/.local"]),
            _ => None,
        };
        assert_eq!(LibraryPaths::beside(variable, &[]).all(), [&wheels[2..5], &wheels[..2]].concat());
        std::fs::remove_dir_all(&root).expect("the folder is ours");
    }
}
