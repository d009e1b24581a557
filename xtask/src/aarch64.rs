//! [`Emulator`]: tests for aarch64 on another processor, in QEMU.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{cargo, check, target, tools};

/// The target triple.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// GNU's linker, the emulator and the folder of libraries, as in the packages of Debian and Ubuntu.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
const LOADER: &str = "lib/ld-linux-aarch64.so.1";

/// QEMU's emulator of one process, with a linker and libraries.
pub(crate) struct Emulator {
    /// The command and its first arguments.
    command: String,
}

impl Emulator {
    /// Finds the emulator.
    ///
    /// # Errors
    /// Everything that is missing, and the packages to install.
    pub(crate) fn find() -> Result<Emulator, String> {
        if cfg!(target_arch = "aarch64") {
            return Err("this machine is aarch64: `cargo xtask test` runs the tests".into());
        }
        let mut missing = Vec::new();
        for (program, package) in [(QEMU, "qemu-user"), (LINKER, "gcc-aarch64-linux-gnu")] {
            if !succeeds(Command::new(program).arg("--version")) {
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
            true => Ok(Emulator { command: format!("{QEMU} -L {LIBRARIES}") }),
            false => Err(format!("missing: {}", missing.join(", "))),
        }
    }

    /// Tests the crates of the run time, with a fifth of the random cases: emulation is slow.
    pub(crate) fn test_crates(&self) -> Result<(), String> {
        let mut command = self.cargo(&["test", "--release"]);
        command.args(["-p", "prestow-types", "-p", "prestow-cpu", "-p", "prestow-plan", "-p", "prestow-runtime"]);
        command.args(["--lib", "--test", "it", "--no-fail-fast"]).env("PRESTOW_FUZZ", "0.2");
        check("the tests for aarch64", &mut command)
    }

    /// Tests the networks.
    pub(crate) fn test_networks(&self) -> Result<u8, String> {
        tools::build(&tools::PRODUCT)?;
        let mut command = cargo();
        command.args(["test", "--release", "-p", "prestow-tests", "--test", "it", "aarch64::"]);
        self.configure(&mut command)?;
        check("networks for aarch64", &mut command)?;
        Ok(0)
    }

    /// Builds the runner, and passes it and the emulator to the tests of networks.
    pub(crate) fn configure(&self, command: &mut Command) -> Result<(), String> {
        check("the runner for aarch64", &mut self.cargo(&["build", "--release", "-p", "prestow-runner"]))?;
        let runner: PathBuf = target().join(TARGET).join("release/prestow-runner");
        command.env("PRESTOW_AARCH64_EMULATOR", &self.command).env("PRESTOW_AARCH64_RUNNER", runner);
        Ok(())
    }

    /// Cargo, for the target.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo();
        command.args(arguments).args(["--target", TARGET]);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &self.command);
        command
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn has_standard_library() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}
