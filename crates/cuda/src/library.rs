//! Search for NVIDIA's libraries: folders of the environment, a CUDA toolkit, Python packages, the system's loader. Python is
//! not run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// Prefixes of the system's Python packages, in Python's order.
const SYSTEM: [&str; 2] = ["/usr/local", "/usr"];

/// Folders that are searched for NVIDIA's libraries before the system's loader, in the order of the fields: explicit settings
/// come before guesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryPaths {
    /// Folders with libraries.
    pub folders: Vec<PathBuf>,
    /// The root of a CUDA toolkit.
    pub toolkit: Option<PathBuf>,
    /// `site-packages` of active Python environments.
    pub packages: Vec<PathBuf>,
    /// Folders of `LD_LIBRARY_PATH`.
    pub loader: Vec<PathBuf>,
    /// `site-packages` of other Pythons: those in `PATH`, the user's and the system's.
    pub site: Vec<PathBuf>,
}

impl LibraryPaths {
    /// Reads the variables `PRESTOW_CUDA_LIBS`, `CUDA_HOME`, `VIRTUAL_ENV` (or `CONDA_PREFIX`) and `LD_LIBRARY_PATH`. Adds the
    /// packages of each `python3` in `PATH` (common in containers), links followed, of `PYTHONUSERBASE` or `~/.local`, of `/usr/local` and `/usr`.
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
        // The user's and the system's packages have their own position in the search order.
        let own = |root: &PathBuf| !system.contains(root) && user.as_ref() != Some(root);
        let commands =
            paths("PATH").into_iter().filter(|folder| folder.is_absolute() && folder.join("python3").exists());
        // The interpreter may be a link into an environment elsewhere, whose packages it imports.
        let root_of = |program: &Path| Some(program.parent()?.parent()?.to_path_buf());
        let roots_of = |folder: PathBuf| {
            let program = folder.join("python3");
            let real = program.canonicalize().ok();
            [root_of(&program), real.and_then(|real| root_of(&real))]
        };
        let mut pythons: Vec<PathBuf> = Vec::new();
        for root in commands.flat_map(roots_of).flatten().filter(own) {
            if !pythons.contains(&root) {
                pythons.push(root);
            }
        }
        LibraryPaths {
            folders: paths("PRESTOW_CUDA_LIBS"),
            toolkit: first("CUDA_HOME"),
            packages: environments.flat_map(|root| packages(&root)).collect(),
            loader: paths("LD_LIBRARY_PATH"),
            site: pythons.iter().chain(&user).chain(system).flat_map(|root| packages(root)).collect(),
        }
    }

    /// Adds the packages of one more Python environment at the front.
    #[must_use]
    pub fn with_environment(mut self, root: &Path) -> LibraryPaths {
        self.packages.splice(0..0, packages(root));
        self
    }

    /// All folders in search order.
    fn all(&self) -> Vec<PathBuf> {
        let wheels = |roots: &[PathBuf]| roots.iter().flat_map(|root| wheels(root)).collect::<Vec<_>>();
        [self.named(), wheels(&self.packages), self.loader.clone(), wheels(&self.site)].concat()
    }

    /// The same for error messages: packages by their roots.
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

/// The folders of Python packages below a root, later versions first.
fn packages(root: &Path) -> Vec<PathBuf> {
    let versions = entries(&root.join("lib"));
    let versions = versions
        .iter()
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")));
    // Debian installs its own packages in `dist-packages`.
    let mut folders: Vec<PathBuf> =
        versions.rev().flat_map(|path| ["site-packages", "dist-packages"].map(|kind| path.join(kind))).collect();
    folders.retain(|folder| folder.is_dir());
    folders
}

/// The library folders of NVIDIA's wheels among packages. Wheels for CUDA 13 share one (`nvidia/cu13/lib`); those for CUDA 12,
/// and cuDNN's, have one each (`nvidia/cublas/lib`). The shared folder of the latest toolkit comes first.
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

/// The entries of a folder, sorted by name. Empty if there is no folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A library was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot find {name} {}or by the system's loader; install it with `cargo xtask fetch {fetch}`, or set its folder in \
     PRESTOW_CUDA_LIBS",
    .tried.iter().map(|path| format!("in {}, ", path.display())).collect::<String>()
)]
pub struct LibraryNotFound {
    /// The library's name.
    pub name: String,
    /// The option of `cargo xtask fetch` that installs it.
    pub fetch: &'static str,
    /// The folders that were searched.
    pub tried: Vec<PathBuf>,
}

/// Opens a library by its possible names, from the first folder that has it, or by the system's loader.
fn open(places: &LibraryPaths, names: &[&str], flags: i32, fetch: &'static str) -> Result<Library, LibraryNotFound> {
    let folders = places.all();
    let candidates = folders.iter().flat_map(|folder| {
        let fits = |path: &&PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(names[0]));
        entries(folder).iter().find(fits).cloned()
    });
    // The system's loader comes last.
    let mut paths = candidates.chain(names.iter().map(PathBuf::from));
    let found = paths.find_map(|path| {
        // SAFETY: the initializers of NVIDIA's libraries have no requirements on the process.
        unsafe { Library::open(Some(path), RTLD_NOW | flags) }.ok()
    });
    drop(paths);
    found.ok_or_else(|| LibraryNotFound { name: names[0].to_string(), fetch, tried: places.told() })
}

/// Loads a library permanently and globally, so that later lookups by its name find it.
///
/// # Errors
/// The library is not found.
pub(crate) fn load(places: &LibraryPaths, names: &[&str], fetch: &'static str) -> Result<(), LibraryNotFound> {
    open(places, names, RTLD_GLOBAL, fetch).map(std::mem::forget)
}

/// Loads a library for a function table, without exporting its symbols.
///
/// # Errors
/// The library is not found.
pub(crate) fn table(
    places: &LibraryPaths,
    names: &[&str],
    fetch: &'static str,
) -> Result<libloading::Library, LibraryNotFound> {
    open(places, names, RTLD_LOCAL, fetch).map(Into::into)
}

/// A function of a bindgen table, or an error with the name of the missing function.
macro_rules! function {
    ($table:expr, $name:ident, $error:ident) => {
        *$table.$name.as_ref().map_err(|_| $error::Lacks(stringify!($name)))?
    };
}
pub(crate) use function;

/// Formats a library's version number: 91900 as 9.19.0.
pub(crate) fn dotted(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates folders below a root.
    fn made(root: &Path, folders: &[&str]) -> Vec<PathBuf> {
        let folders: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
        folders.iter().for_each(|folder| std::fs::create_dir_all(folder).expect("the folder is ours"));
        folders
    }

    #[test]
    fn explicit_folders_come_before_guesses() {
        let root = std::env::temp_dir().join(format!("prestow-places-{}", std::process::id()));
        let wheels = made(
            &root,
            &[
                // An environment's, for CUDA 13.
                "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
                "venv/lib/python3.12/site-packages/nvidia/cudnn/lib",
                // The user's, for CUDA 12, for two versions of Python.
                "home/.local/lib/python3.12/site-packages/nvidia/cublas/lib",
                "home/.local/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
                "home/.local/lib/python3.11/site-packages/nvidia/cu13/lib",
                // The system's.
                "usr/local/lib/python3.11/dist-packages/nvidia/cudnn/lib",
                "usr/lib/python3/dist-packages/nvidia/cu13/lib",
            ],
        );
        // Folders without libraries, packages or Python.
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

        // The error of a missing library names every folder.
        let error = open(&places, &["libnonesuch.so.1"], RTLD_LOCAL, "--nvrtc").expect_err("there is none");
        let said = error.to_string();
        for folder in ["first", "toolkit/lib64", "loader", "venv/lib/python3.12/site-packages/nvidia/*/lib"] {
            assert!(said.contains(&format!("in {}, ", root.join(folder).display())), "{folder}: {said}");
        }
        for folder in ["home/.local/lib/python3.11/site-packages", "usr/lib/python3/dist-packages"] {
            assert!(said.contains(&format!("in {}/nvidia/*/lib, ", root.join(folder).display())), "{said}");
        }

        // Packages of a `python3` in `PATH` come before the user's. Folders without `python3` are skipped, and the system's keep
        // their own position.
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

        // A `python3` that is a link into an environment.
        made(&root, &["links"]);
        std::os::unix::fs::symlink(root.join("venv/bin/python3"), root.join("links/python3"))
            .expect("the folder is ours");
        let variable = |name: &str| if name == "PATH" { join(&["links", "venv/bin"]) } else { None };
        let linked = LibraryPaths::beside(variable, &[]).all();
        let real = |folder: &PathBuf| folder.canonicalize().expect("it is there");
        assert_eq!(linked.iter().map(real).collect::<Vec<_>>(), wheels[..2].iter().map(real).collect::<Vec<_>>());

        // `PYTHONUSERBASE` and a conda environment.
        let variable = |name: &str| match name {
            "PYTHONUSERBASE" => join(&["venv"]),
            "HOME" | "CONDA_PREFIX" => join(&["home/.local"]),
            _ => None,
        };
        assert_eq!(LibraryPaths::beside(variable, &[]).all(), [&wheels[2..5], &wheels[..2]].concat());
        std::fs::remove_dir_all(&root).expect("the folder is ours");
    }
}
