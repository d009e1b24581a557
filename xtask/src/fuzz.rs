//! `cargo xtask fuzz`: builds `fuzz/` with coverage counters and runs its targets.

use std::process::Command;

use crate::{cargo, check, target};

/// LLVM's counters on every edge; a stable compiler has them.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters";

/// The target is named, so that build scripts are without counters.
const TRIPLE: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

/// `[TARGET]... [--minutes N] [--seed N] [--corpus DIR]`, or `TARGET FILE` for one input.
pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    if !cfg!(target_os = "linux") {
        return Err("fuzzing needs Linux".into());
    }
    let mut words = words.to_vec();
    if let Some(at) = words.iter().position(|word| word == "--minutes") {
        let minutes: f64 = words.get(at + 1).and_then(|text| text.parse().ok()).ok_or("--minutes must be a number")?;
        words.splice(at..at + 2, ["--seconds".to_string(), format!("{:.0}", minutes * 60.0)]);
    }
    let folder = target().join("fuzz");
    let mut build = cargo();
    build.args(["build", "--release", "-p", "prestow-fuzz", "--target", TRIPLE, "--target-dir"]).arg(&folder);
    // Kernels are compiled in a third of the time; their speed does not matter here.
    build.args(["--config", "profile.release.package.prestow-cpu.opt-level=1"]);
    // A number that wraps is a failure here, even where its result would be refused later.
    build.args(["--config", "profile.release.overflow-checks=true"]);
    check("the build of the fuzz targets", build.env("RUSTFLAGS", COVERAGE))?;
    let program = folder.join(TRIPLE).join("release/prestow-fuzz");
    let status = Command::new(&program).args(&words).status();
    let status = status.map_err(|error| format!("cannot run `{}`: {error}", program.display()))?;
    Ok(status.code().map_or(1, |code| code as u8))
}
