//! `cargo xtask test`: every test of the workspace, with counts.
//!
//! A test that cannot run here (data that was not fetched) writes its reason to a file and counts as skipped.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};

use crate::aarch64::Emulator;
use crate::{cargo, check, fetch, root, target, tidy, tools};

/// The variable with the path of the file of skipped tests.
const SKIPPED: &str = "PRESTOW_SKIPPED";

/// The target of the toolchain's sanitizer.
const SANITIZED: &str = "x86_64-unknown-linux-gnu";

/// Whether the processor has AVX-512, without which kernels for it need no build.
fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Tests of the kernels under AddressSanitizer, which finds reads and writes outside operands. `RUSTC_BOOTSTRAP` enables it
/// in a stable compiler. Returns `None` if there is no sanitizer.
fn sanitized(words: &[&String]) -> Result<Option<Count>, String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        println!("skipped: the kernels under AddressSanitizer: needs {SANITIZED}");
        return Ok(None);
    }
    let mut command = cargo();
    command.args(["test", "--release", "--target", SANITIZED, "--target-dir"]).arg(target().join("sanitized"));
    command.args(["-p", "prestow-cpu", "--lib"]).args(words);
    let mut flags = "-Zsanitizer=address --cfg one_test_program".to_owned();
    if !has_avx512() {
        flags += " --cfg without_avx512";
    }
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags);
    let mut count = Count::default();
    match counted(&mut command, &mut count)?.success() {
        true => Ok(Some(count)),
        false => Err("the kernels under AddressSanitizer: a test failed".into()),
    }
}

/// Tests of the thread pool under ThreadSanitizer, with the compiler that builds everything else. Its standard library is not
/// instrumented: a race is reported in the channel by which the tests' own harness sends results, which is left out.
fn race_checked() -> Result<u8, String> {
    let folder = target().join("tsan");
    let left_out = folder.join("left_out.txt");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&left_out, "race:std::sync::mpmc\n"))
        .map_err(|error| format!("cannot write `{}`: {error}", left_out.display()))?;
    let mut command = cargo();
    command.args(["test", "--release", "--target", SANITIZED, "--target-dir"]).arg(&folder);
    command.args(["-p", "prestow-cpu", "--lib", "threads", "--", "--test-threads=1"]);
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
    command.env("TSAN_OPTIONS", format!("suppressions={}", left_out.display()));
    check("the thread pool under ThreadSanitizer", &mut command)?;
    Ok(0)
}

/// Tests under Miri, which finds undefined behavior and data races. Tests of many random cases are too slow for it.
fn interpreted() -> Result<u8, String> {
    let runs: [(&str, &[&str]); 4] = [
        ("prestow-types", &["--lib", "--", "--skip", "random"]),
        ("prestow-plan", &["--test", "it"]),
        ("prestow-arena", &["--test", "it", "broken", "--", "--skip", "random"]),
        ("prestow-cpu", &["--lib", "threads"]),
    ];
    for (package, words) in runs {
        let mut command = cargo();
        command.args(["miri", "test", "--target-dir"]).arg(target().join("miri")).args(["-p", package]).args(words);
        // Without the second flag, Miri adds random errors to sines and exponentials: equal computations then differ.
        let flags = "-Zmiri-disable-isolation -Zmiri-deterministic-floats";
        command.env("RUSTUP_TOOLCHAIN", "nightly").env("MIRIFLAGS", flags);
        check(&format!("{package} under Miri"), &mut command)?;
    }
    Ok(0)
}

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    match words {
        [word] if word == "--tsan" => return race_checked(),
        [word] if word == "--miri" => return interpreted(),
        _ => {}
    }
    if words.iter().any(|word| word == "--asan") {
        return sanitized(&words.iter().filter(|word| *word != "--asan").collect::<Vec<_>>()).map(|_| 0);
    }
    if words.iter().any(|word| word == "--aarch64") {
        let emulator = Emulator::find()?;
        emulator.test_crates()?;
        return emulator.test_networks();
    }
    everything(words, None, None)
}

/// Every test: those of the kernels under the sanitizer, for aarch64 if there is an emulator, and all others.
pub(crate) fn ci() -> Result<u8, String> {
    let kernels = sanitized(&[])?;
    let emulator = match Emulator::find() {
        Ok(emulator) => Some(emulator),
        Err(missing) => {
            println!("skipped: the tests for aarch64: {missing}");
            None
        }
    };
    if let Some(emulator) = &emulator {
        emulator.test_crates()?;
    }
    everything(&[], emulator.as_ref(), kernels)
}

/// Every test of the workspace. If tests of the `kernels` have run, only the example in their documentation is left of them.
fn everything(words: &[String], emulator: Option<&Emulator>, kernels: Option<Count>) -> Result<u8, String> {
    let (cuda, words): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| *word == "--cuda-tools");
    if !cuda.is_empty() {
        fetch::cuda()?;
    }
    let tidy = tidy::check(false);
    let skips = root().join("target/skipped.txt");
    std::fs::create_dir_all(root().join("target")).map_err(|error| format!("cannot make target/: {error}"))?;
    std::fs::write(&skips, "").map_err(|error| format!("cannot write `{}`: {error}", skips.display()))?;

    // Tests run whole executables.
    tools::build(&[tools::PRODUCT[0], tools::PRODUCT[1], tools::GPU_CHECK])?;
    tools::store()?;
    let run = |more: &[&str], count: &mut Count| {
        let mut command = cargo();
        command.args(["test", "--release", "--workspace", "--exclude", "prestow-benches", "--no-fail-fast"]);
        command.args(more).args(&words).env(SKIPPED, &skips);
        if let Some(emulator) = emulator {
            emulator.configure(&mut command)?;
        }
        counted(&mut command, count)
    };
    let (mut count, mut statuses) = (Count::default(), Vec::new());
    if let Some(kernels) = kernels {
        count = kernels;
        statuses.push(run(&["--exclude", "prestow-cpu"], &mut count)?);
        statuses.push(run(&["--doc", "crates/cpu"], &mut count)?);
    } else {
        statuses.push(run(&[], &mut count)?);
    }

    let text = std::fs::read_to_string(&skips).unwrap_or_default();
    let mut reasons: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    println!();
    reasons.iter().for_each(|reason| println!("skipped: {reason}"));
    if let Err(error) = &tidy {
        println!("failed: tidy: {error}");
    }
    let failure = statuses.iter().find(|status| !status.success() && count.failed == 0);
    if let Some(status) = failure {
        println!("failed: cargo test ended with {status} outside its tests");
    }
    let failed = count.failed + u64::from(tidy.is_err()) + u64::from(failure.is_some());
    let skipped = reasons.len() as u64 + count.ignored;
    let passed = (count.passed + u64::from(tidy.is_ok())).saturating_sub(reasons.len() as u64);
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(u8::from(0 < failed))
}

/// Runs `cargo test`, passes its output on, and adds its results to a count.
fn counted(command: &mut Command, count: &mut Count) -> Result<ExitStatus, String> {
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    let output = child.stdout.take().ok_or("cargo test has no output")?;
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| format!("cannot read the output of cargo test: {error}"))?;
        count.add(&line);
        println!("{line}");
    }
    child.wait().map_err(|error| format!("cargo test: {error}"))
}

/// Reports that a test of the build tool was skipped.
#[cfg(test)]
pub(crate) fn skip(test: &str, reason: &str) {
    use std::io::Write;
    let line = format!("{test}: {reason}");
    println!("skipped: {line}");
    if let Some(path) = std::env::var_os(SKIPPED) {
        let file = std::fs::OpenOptions::new().append(true).open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{line}"));
    }
}

/// The sum of the lines `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
#[derive(Default)]
struct Count {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Count {
    fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result:") else { return };
        let number = |word: &str| -> u64 {
            let part = rest.split([';', '.']).find(|part| part.trim_end().ends_with(word));
            part.and_then(|part| part.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        self.passed += number("passed");
        self.failed += number("failed");
        self.ignored += number("ignored");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_result_lines() {
        let mut count = Count::default();
        count.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        count.add("test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        count.add("running 3 tests");
        assert_eq!((count.passed, count.failed, count.ignored), (5, 4, 1));
    }
}
