//! Mock NVIDIA libraries, and the shim that runs emitted CUDA kernels on a processor. For tests of whole executables.
//!
//! The C++ sources are in `cpp/`. Tests build them at run time, because the driver's mock and the shim include the kernels of
//! one plan. The `cc` crate finds the compiler (`CXX`, or `c++`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library of NVIDIA's that has a mock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver. Needs a file of kernels.
    Driver,
    /// cuDNN.
    Cudnn,
    /// cuBLASLt.
    Cublaslt,
    /// NVRTC. Compiles for the processor if `PRESTOW_MOCK_NVRTC_SHIM` is [`headers`].
    Nvrtc,
    /// NVML.
    Nvml,
    /// CUPTI.
    Cupti,
}

impl Library {
    /// The name under which programs load it.
    pub fn file_name(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so.1",
            Library::Cudnn => "libcudnn.so.9",
            Library::Cublaslt => "libcublasLt.so.13",
            Library::Nvrtc => "libnvrtc.so.13",
            Library::Nvml => "libnvidia-ml.so.1",
            Library::Cupti => "libcupti.so.13",
        }
    }

    fn source(self) -> PathBuf {
        headers().join(match self {
            Library::Driver => "driver.cpp",
            Library::Cudnn => "cudnn.cpp",
            Library::Cublaslt => "cublaslt.cpp",
            Library::Nvrtc => "nvrtc.cpp",
            Library::Nvml => "nvml.cpp",
            Library::Cupti => "cupti.cpp",
        })
    }
}

/// The folder with `shim.h`.
pub fn headers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp")
}

/// Reason for a missing library or program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// No C++ compiler is installed.
    NoCompiler,
    /// The compiler rejects the source; holds its messages.
    Rejected(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::NoCompiler => f.write_str("no C++ compiler is installed"),
            BuildError::Rejected(messages) => write!(f, "the C++ compiler failed: {messages}"),
        }
    }
}

impl std::error::Error for BuildError {}

/// The C++ compiler of this machine.
pub struct Compiler(cc::Tool);

impl Compiler {
    /// Finds the compiler.
    pub fn find() -> Result<Compiler, BuildError> {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut build = cc::Build::new();
        // Outside of build scripts, Cargo sets none of these.
        build.cpp(true).target(&triple).host(&triple).opt_level(2).debug(false).no_default_flags(true);
        build.cargo_output(false).cargo_metadata(false);
        let tool = build.try_get_compiler().map_err(|_| BuildError::NoCompiler)?;
        let compiler = Compiler(tool);
        compiler.run(compiler.command().arg("--version"))?;
        Ok(compiler)
    }

    /// Builds the mock of a library into a folder. `kernels` is the C++ file of emitted kernels that the driver runs.
    pub fn mock(
        &self,
        library: Library,
        folder: &Path,
        kernels: Option<&Path>,
        flags: &[&str],
    ) -> Result<PathBuf, BuildError> {
        let mut all: Vec<String> = flags.iter().map(ToString::to_string).collect();
        all.extend(kernels.map(define));
        if library == Library::Nvrtc {
            // The system's loader looks for it by this name, and it starts a compiler itself.
            all.push(format!("-Wl,-soname,{}", library.file_name()));
            all.push(format!("-DCOMPILER=\"{}\"", self.0.path().display()));
        }
        let path = folder.join(library.file_name());
        self.shared(&library.source(), &path, &all)?;
        Ok(path)
    }

    /// Builds a shared library of any C++ source.
    pub fn shared(&self, source: &Path, library: &Path, flags: &[String]) -> Result<(), BuildError> {
        let mut command = self.command();
        // Only marked functions are exported, because mocks must not see each other's symbols.
        command.args(["-fvisibility=hidden", "-fno-gnu-unique", "-static-libstdc++", "-static-libgcc"]);
        command.args(["-std=c++17", "-O2", "-shared", "-fPIC"]).args(flags);
        command.args(["-x", "c++"]).arg(source).arg("-o").arg(library).arg("-ldl");
        self.run(&mut command)
    }

    /// Builds the program that runs a file of emitted kernels.
    pub fn shim(&self, kernels: &Path, program: &Path, flags: &[&str]) -> Result<(), BuildError> {
        let mut command = self.command();
        command.args(["-std=c++17", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-ffp-contract=off"]).args(flags);
        command.arg(define(kernels)).arg(headers().join("shim.cpp")).arg("-o").arg(program);
        self.run(&mut command)
    }

    /// The path of a library of the compiler's own, such as `libasan.so`. `None` if it has no such library.
    pub fn library_path(&self, name: &str) -> Option<PathBuf> {
        let out = self.command().arg(format!("-print-file-name={name}")).output().ok()?;
        let path = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
        path.is_absolute().then_some(path)
    }

    /// The compiler without flags: those of `cc` include warnings, which `-Werror` would turn into errors.
    fn command(&self) -> Command {
        Command::new(self.0.path())
    }

    fn run(&self, command: &mut Command) -> Result<(), BuildError> {
        let out = command.output().map_err(|_| BuildError::NoCompiler)?;
        if out.status.success() {
            return Ok(());
        }
        Err(BuildError::Rejected(String::from_utf8_lossy(&out.stderr).chars().take(4000).collect()))
    }
}

fn define(kernels: &Path) -> String {
    format!("-DKERNELS=\"{}\"", kernels.display())
}
