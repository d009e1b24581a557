//! Other runtimes for `cargo xtask bench cpu --peers`: Python packages by name and version, in an environment of their own
//! under `target/peers`. Nothing that users run needs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{check, target};

/// The peers that are installed where none is named.
pub(crate) const USUAL: &str = "onnxruntime,openvino";

/// What `benches/peers/speed.py` calls a peer, and its package.
const PACKAGES: [(&str, &str); 3] =
    [("onnxruntime", "onnxruntime==1.31.1"), ("openvino", "openvino==2026.4.1"), ("mnn", "MNN==3.6.1")];

/// Installs the peers of a list, apart from those that are there, and yields the Python that has them.
pub(crate) fn install(names: &str) -> Result<PathBuf, String> {
    let mut wanted = vec!["numpy==2.4.6"];
    for name in names.split(',') {
        let package = PACKAGES.iter().find(|(known, _)| *known == name);
        let (_, package) = package.ok_or_else(|| {
            let known: Vec<&str> = PACKAGES.iter().map(|(known, _)| *known).collect();
            format!("`{name}` is not a peer; there are {}", known.join(", "))
        })?;
        wanted.push(package);
    }
    environment(&target().join("peers"), &wanted)
}

/// Installs the packages that a Python environment lacks, and yields its Python.
pub(crate) fn environment(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let python = folder.join("bin/python");
    if !python.exists() {
        check("making a Python environment", Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    // One file a package, written when it is installed.
    let mark = |package: &str| folder.join(format!("{package}.installed"));
    let wanted: Vec<&&str> = packages.iter().filter(|package| !mark(package).exists()).collect();
    if !wanted.is_empty() {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]);
        check("installing packages", pip.args(&wanted))?;
        wanted.iter().try_for_each(|package| touch(&mark(package)))?;
    }
    Ok(python)
}

fn touch(path: &Path) -> Result<(), String> {
    fs::write(path, "").map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}
