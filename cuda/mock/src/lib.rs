//! Mock NVIDIA libraries, and the shim that runs emitted CUDA kernels on a processor. For tests of whole executables.
//!
//! The C++ sources are in `cpp/`. Tests build them at run time, because the driver's mock and the shim include the kernels of
//! one plan. The `cc` crate finds the compiler (`CXX`, or `c++`).

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    /// A file cannot be read or written.
    File(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::NoCompiler => f.write_str("no C++ compiler is installed"),
            BuildError::Rejected(messages) => write!(f, "the C++ compiler failed: {messages}"),
            BuildError::File(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for BuildError {}

/// The C++ compiler of this machine.
pub struct Compiler {
    tool: cc::Tool,
    /// A hash of the compiler's version and all headers: objects depend on both, apart from their source and flags.
    surroundings: u64,
    objects: PathBuf,
}

impl Compiler {
    /// Finds the compiler. It keeps each object in the folder `objects`, under a hash of everything it is compiled from, so
    /// that tests compile a mock once.
    pub fn find(objects: &Path) -> Result<Compiler, BuildError> {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut build = cc::Build::new();
        // Outside of build scripts, Cargo sets none of these.
        build.cpp(true).target(&triple).host(&triple).opt_level(2).debug(false).no_default_flags(true);
        build.cargo_output(false).cargo_metadata(false);
        let tool = build.try_get_compiler().map_err(|_| BuildError::NoCompiler)?;
        let mut hasher = DefaultHasher::new();
        run(Command::new(tool.path()).arg("--version"))?.hash(&mut hasher);
        for header in ["mock.h", "shim.h"] {
            read(&headers().join(header))?.hash(&mut hasher);
        }
        std::fs::create_dir_all(objects).map_err(|error| file(objects, &error))?;
        Ok(Compiler { tool, surroundings: hasher.finish(), objects: objects.to_path_buf() })
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
        if library == Library::Nvrtc {
            // The system's loader looks for it by this name, and it starts a compiler itself.
            all.push(format!("-Wl,-soname,{}", library.file_name()));
            all.push(format!("-DCOMPILER=\"{}\"", self.tool.path().display()));
        }
        let mut objects = vec![self.object(&library.source(), &all)?];
        if let Some(kernels) = kernels {
            let shim = headers().join("shim.h");
            let included = ["-include".into(), shim.display().to_string()];
            objects.push(self.object(kernels, &[&all[..], &included].concat())?);
        }
        let path = folder.join(library.file_name());
        self.link(&objects, &path, &all)?;
        Ok(path)
    }

    /// Builds a shared library of any C++ source.
    pub fn shared(&self, source: &Path, library: &Path, flags: &[String]) -> Result<(), BuildError> {
        let object = self.object(source, flags)?;
        self.link(&[object], library, flags)
    }

    /// Compiles a source for a shared library, unless there is an object of the same text.
    fn object(&self, source: &Path, flags: &[String]) -> Result<PathBuf, BuildError> {
        let mut hasher = DefaultHasher::new();
        (self.surroundings, read(source)?, flags).hash(&mut hasher);
        let object = self.objects.join(format!("{:016x}.o", hasher.finish()));
        if object.is_file() {
            return Ok(object);
        }
        // Another thread or process may compile the same object.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let part = self.objects.join(format!("{}-{number}.part", std::process::id()));
        let mut command = self.command();
        // Only marked functions are exported, because mocks must not see each other's symbols.
        command.args(["-fvisibility=hidden", "-fno-gnu-unique", "-std=c++17", "-O2", "-fPIC", "-c"]).args(flags);
        run(command.args(["-x", "c++"]).arg(source).arg("-o").arg(&part))?;
        std::fs::rename(&part, &object).map_err(|error| file(&object, &error))?;
        Ok(object)
    }

    fn link(&self, objects: &[PathBuf], library: &Path, flags: &[String]) -> Result<(), BuildError> {
        let mut command = self.command();
        command.args(["-static-libstdc++", "-static-libgcc", "-shared"]).args(flags).args(objects);
        run(command.arg("-o").arg(library).arg("-ldl")).map(drop)
    }

    /// Builds the program that runs a file of emitted kernels.
    pub fn shim(&self, kernels: &Path, program: &Path, flags: &[&str]) -> Result<(), BuildError> {
        let mut command = self.command();
        command.args(["-std=c++17", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-ffp-contract=off"]).args(flags);
        command.arg(format!("-DKERNELS=\"{}\"", kernels.display()));
        run(command.arg(headers().join("shim.cpp")).arg("-o").arg(program)).map(drop)
    }

    /// The path of a library of the compiler's own, such as `libasan.so`. `None` if it has no such library.
    pub fn library_path(&self, name: &str) -> Option<PathBuf> {
        let out = self.command().arg(format!("-print-file-name={name}")).output().ok()?;
        let path = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
        path.is_absolute().then_some(path)
    }

    /// The compiler without flags: those of `cc` include warnings, which `-Werror` would turn into errors.
    fn command(&self) -> Command {
        Command::new(self.tool.path())
    }
}

/// Runs the compiler. Returns its standard output.
fn run(command: &mut Command) -> Result<Vec<u8>, BuildError> {
    let out = command.output().map_err(|_| BuildError::NoCompiler)?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    Err(BuildError::Rejected(String::from_utf8_lossy(&out.stderr).chars().take(4000).collect()))
}

fn read(path: &Path) -> Result<Vec<u8>, BuildError> {
    std::fs::read(path).map_err(|error| file(path, &error))
}

fn file(path: &Path, error: &std::io::Error) -> BuildError {
    BuildError::File(format!("cannot use `{}`: {error}", path.display()))
}
