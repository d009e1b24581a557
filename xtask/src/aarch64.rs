//! [`Emulator`]: how the tests for aarch64 run on another processor, and what that takes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{cargo, check, target};

/// What is compiled for.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// GNU's linker for it, the emulator, and where the libraries for it lie, as Debian's and Ubuntu's packages have them.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
const LOADER: &str = "lib/ld-linux-aarch64.so.1";

/// QEMU's emulator of one process, with a linker and libraries.
pub(crate) struct Emulator {
    /// The command and its first words.
    words: String,
}

impl Emulator {
    /// The emulator, or everything that is missing and how to get it.
    pub(crate) fn find() -> Result<Emulator, String> {
        if cfg!(target_arch = "aarch64") {
            return Err("this machine is one: `cargo xtask test` runs them".into());
        }
        let mut missing = Vec::new();
        for (program, package) in [(QEMU, "qemu-user"), (LINKER, "gcc-aarch64-linux-gnu")] {
            if !answers(Command::new(program).arg("--version")) {
                missing.push(format!("`{program}` (apt install {package})"));
            }
        }
        if !Path::new(LIBRARIES).join(LOADER).exists() {
            missing.push(format!("`{LIBRARIES}/{LOADER}` (apt install libc6-dev-arm64-cross)"));
        }
        if !has_standard_library() {
            missing.push(format!("Rust's standard library (rustup target add {TARGET})"));
        }
        match missing.is_empty() {
            true => Ok(Emulator { words: format!("{QEMU} -L {LIBRARIES}") }),
            false => Err(format!("there is no {}", missing.join(", no "))),
        }
    }

    /// The tests of the rooms that run where the executable runs; of random cases a fifth, as every number takes long.
    pub(crate) fn test_rooms(&self) -> Result<(), String> {
        let mut command = self.cargo(&["test", "--release"]);
        command.args(["-p", "prestow-types", "-p", "prestow-cpu", "-p", "prestow-plan", "-p", "prestow-runtime"]);
        command.args(["--lib", "--test", "it", "--no-fail-fast"]).env("PRESTOW_FUZZ", "0.2");
        check("the tests for aarch64", &mut command)
    }

    /// The networks alone.
    pub(crate) fn test_networks(&self) -> Result<u8, String> {
        check("the build", cargo().args(["build", "--release", "-p", "prestow-cli", "-p", "prestow-runner"]))?;
        let mut command = cargo();
        command.args(["test", "--release", "-p", "prestow-tests", "--test", "it", "aarch64::"]);
        self.name_for_networks(&mut command)?;
        check("networks for aarch64", &mut command)?;
        Ok(0)
    }

    /// Builds the runner, and names it and the emulator for the tests of networks.
    pub(crate) fn name_for_networks(&self, command: &mut Command) -> Result<(), String> {
        check("the runner for aarch64", &mut self.cargo(&["build", "--release", "-p", "prestow-runner"]))?;
        let runner: PathBuf = target().join(TARGET).join("release/prestow-runner");
        command.env("PRESTOW_AARCH64_EMULATOR", &self.words).env("PRESTOW_AARCH64_RUNNER", runner);
        Ok(())
    }

    /// Cargo, for the target.
    fn cargo(&self, words: &[&str]) -> Command {
        let mut command = cargo();
        command.args(words).args(["--target", TARGET]);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &self.words);
        command
    }
}

fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn has_standard_library() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    said.is_ok_and(|said| Path::new(String::from_utf8_lossy(&said.stdout).trim()).is_dir())
}
