//! Commands of `prestow` and `prestow-gpu-check`: builds the programs and passes the arguments on.

use std::path::PathBuf;
use std::process::Command;

use crate::{cargo, check, root, target};

/// The commands of `prestow`.
pub(crate) const COMMANDS: [&str; 12] = [
    "compile",
    "models",
    "export",
    "what-if",
    "diff",
    "arena",
    "profile",
    "benchmark",
    "experiment",
    "im2rec",
    "target",
    "completions",
];

/// Packages with a program that users run.
pub(crate) const PRODUCT: [&str; 2] = ["prestow-cli", "prestow-runner"];
pub(crate) const GPU_CHECK: &str = "prestow-gpu-check";
pub(crate) const UPRD: &str = "prestow-uprd";
/// The folder of `prestow-store`, which is a workspace of its own.
pub(crate) const STORE: &str = "tools/store";

/// Runs a command of `prestow`. Help comes from `docs/reference/cli.md`, without a build.
pub(crate) fn run(command: &str, arguments: &[String]) -> Result<u8, String> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        let sub = arguments.first().filter(|argument| !argument.starts_with('-'));
        let path = root().join("docs/reference/cli.md");
        let text =
            std::fs::read_to_string(&path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
        let name = format!("prestow {command}");
        let help = sub.and_then(|sub| section(&text, &format!("{name} {sub}"))).or_else(|| section(&text, &name));
        if let Some(help) = help {
            println!("{help}");
            return Ok(0);
        }
    }
    build(&PRODUCT)?;
    run_program(Command::new(target().join("release/prestow")).arg(command).args(arguments))
}

/// Builds `prestow-store` from its own workspace into the folder of the other programs. Returns its path.
pub(crate) fn store() -> Result<PathBuf, String> {
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "--manifest-path"]).arg(root().join(STORE).join("Cargo.toml"));
    check("the build of prestow-store", build.arg("--target-dir").arg(target().join("store")))?;
    let name = format!("prestow-store{}", std::env::consts::EXE_SUFFIX);
    let (built, path) = (target().join("store/release").join(&name), target().join("release").join(&name));
    let failed = |error: std::io::Error| format!("cannot copy `{}`: {error}", built.display());
    std::fs::create_dir_all(target().join("release")).map_err(failed)?;
    // Another name first: a program that runs cannot be written.
    let part = path.with_extension("part");
    std::fs::copy(&built, &part).and_then(|_| std::fs::rename(&part, &path)).map_err(failed)?;
    Ok(path)
}

/// Runs `prestow-gpu-check`.
pub(crate) fn gpu_check(arguments: &[String]) -> Result<u8, String> {
    build(&[GPU_CHECK])?;
    run_program(Command::new(target().join("release").join(GPU_CHECK)).args(arguments))
}

/// Builds packages in release mode. The first build takes minutes, so cargo's progress is shown.
pub(crate) fn build(packages: &[&str]) -> Result<(), String> {
    let is_first = !target().join("release/prestow").exists();
    if is_first {
        eprintln!("building {} (four to six minutes the first time)", packages.join(" and "));
    }
    let mut build = cargo();
    build.args(["build", "--release"]);
    build.args(packages.iter().flat_map(|package| ["-p", package]));
    check("the build", &mut build)
}

fn run_program(program: &mut Command) -> Result<u8, String> {
    let status = program.status().map_err(|error| format!("cannot run {program:?}: {error}"))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2))
}

/// The block of text below a heading.
fn section<'a>(text: &'a str, heading: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("\n## {heading}\n"))?;
    let (_, rest) = rest.split_once("```text\n")?;
    rest.split_once("\n```").map(|(block, _)| block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_is_the_block_below_its_heading() {
        let text = "# Title\n\n## prestow a\n\n```text\nUsage: a\n```\n\n## prestow a b\n\n```text\nUsage: a b\n```\n";
        assert_eq!(section(text, "prestow a"), Some("Usage: a"));
        assert_eq!(section(text, "prestow a b"), Some("Usage: a b"));
        assert_eq!(section(text, "prestow c"), None);
    }

    #[test]
    fn every_command_has_a_section_in_the_reference() {
        let text = std::fs::read_to_string(root().join("docs/reference/cli.md")).expect("it is checked in");
        for command in COMMANDS {
            assert!(section(&text, &format!("prestow {command}")).is_some(), "{command}");
        }
    }
}
