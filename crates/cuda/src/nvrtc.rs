//! [`Compiler`]: CUDA C to machine code by NVRTC, NVIDIA's run-time compiler. Needs neither GPU nor driver.

use std::ffi::CString;

use cudarc::nvrtc::{result, sys};

use crate::library::load;
use crate::{Cubin, KernelResources, LibraryNotFound, LibraryPaths};

/// The oldest version with all needed functions, whose code the supported drivers accept.
const VERSION_MIN: (i32, i32) = (12, 0);

/// Error of NVRTC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcError {
    /// NVRTC is not found.
    #[error(transparent)]
    NotFound(#[from] LibraryNotFound),
    /// NVRTC lacks functions.
    #[error("NVRTC must be {}.{} or later, got {version}; install it with `cargo xtask fetch --nvrtc`", VERSION_MIN.0, VERSION_MIN.1)]
    TooOld {
        /// Its version.
        version: String,
    },
    /// NVRTC does not support the architecture.
    #[error(
        "NVRTC {version} must support {arch}, it supports {}; install a newer version (`cargo xtask fetch --nvrtc`), or compile \
         for one of these",
        .known.join(", ")
    )]
    Arch {
        /// The requested architecture.
        arch: String,
        /// NVRTC's version.
        version: String,
        /// The supported architectures.
        known: Vec<String>,
    },
    /// NVRTC failed unexpectedly.
    #[error("NVRTC: {0}")]
    Failed(String),
    /// The source does not compile: a bug of the code generator.
    #[error("internal error: the emitted kernels do not compile:\n{0}")]
    Source(String),
}

/// NVRTC, loaded into the process.
#[derive(Clone, Copy, Debug)]
pub struct Compiler(());

impl Compiler {
    /// Loads NVRTC.
    ///
    /// # Errors
    /// NVRTC is not found or too old.
    pub fn find(places: &LibraryPaths) -> Result<Compiler, NvrtcError> {
        // NVRTC opens this library by name when it compiles. If it is in NVRTC's folder, preloading is not needed.
        let _ = load(places, &["libnvrtc-builtins.so"], "--nvrtc");
        load(places, &["libnvrtc.so", "libnvrtc.so.13"], "--nvrtc")?;
        // SAFETY: the call only queries the system's loader for the library loaded above.
        if !unsafe { sys::is_culib_present() } {
            let tried = places.told();
            return Err(LibraryNotFound { name: "libnvrtc.so".into(), fetch: "--nvrtc", tried }.into());
        }
        let compiler = Compiler(());
        // Checked first: the table panics at functions that an older version lacks.
        match compiler.numbers()? < VERSION_MIN {
            true => Err(NvrtcError::TooOld { version: compiler.version()? }),
            false => Ok(compiler),
        }
    }

    /// NVRTC's version, such as `13.0`.
    ///
    /// # Errors
    /// NVRTC fails.
    pub fn version(self) -> Result<String, NvrtcError> {
        self.numbers().map(|(major, minor)| format!("{major}.{minor}"))
    }

    fn numbers(self) -> Result<(i32, i32), NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(failed)?;
        Ok((major, minor))
    }

    /// The supported architectures, such as `sm_90`.
    ///
    /// # Errors
    /// NVRTC fails.
    pub fn architectures(self) -> Result<Vec<String>, NvrtcError> {
        let mut count = 0;
        // SAFETY: the pointer is valid.
        unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(failed)?;
        let mut numbers = vec![0; usize::try_from(count).unwrap_or_default()];
        // SAFETY: the buffer has the length that NVRTC returned.
        unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) }.result().map_err(failed)?;
        Ok(numbers.into_iter().map(|number| format!("sm_{number}")).collect())
    }

    /// Compiles a source without includes for an architecture.
    ///
    /// # Errors
    /// The architecture is not supported, or the source does not compile.
    pub fn compile(self, source: &str, arch: &str) -> Result<Cubin, NvrtcError> {
        self.compile_with(source, arch, None).map(|(cubin, _)| cubin)
    }

    /// Compiles and returns the resources of each function.
    ///
    /// # Errors
    /// As for [`Compiler::compile`].
    pub fn measure(self, source: &str, arch: &str) -> Result<(Cubin, Vec<KernelResources>), NvrtcError> {
        let (cubin, log) = self.compile_with(source, arch, Some("--ptxas-options=-v"))?;
        Ok((cubin, KernelResources::parse(&log)))
    }

    /// Machine code and NVRTC's log.
    fn compile_with(self, source: &str, arch: &str, more: Option<&str>) -> Result<(Cubin, String), NvrtcError> {
        let known = self.architectures()?;
        if !known.iter().any(|other| other == arch) {
            return Err(NvrtcError::Arch { arch: arch.into(), version: self.version()?, known });
        }
        let source = CString::new(source).map_err(|error| NvrtcError::Source(error.to_string()))?;
        let program = Program(result::create_program(&source, None).map_err(failed)?);
        // Every GPU of compute capability 9.0 has the instructions of `sm_90a`, such as `wgmma`.
        let with_features = if arch == "sm_90" { "sm_90a" } else { arch };
        let mut options =
            vec![format!("--gpu-architecture={with_features}"), "--std=c++17".into(), "--fmad=true".into()];
        options.extend(more.map(ToString::to_string));
        // SAFETY: the program is alive.
        let compiled = unsafe { result::compile_program(program.0, &options) };
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        // `c_char` is signed on some architectures.
        let log: Vec<u8> = log.into_iter().flat_map(std::ffi::c_char::to_ne_bytes).collect();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
        compiled.map_err(|error| NvrtcError::Source(format!("{error:?}\n{log}")))?;
        let mut size = 0;
        // SAFETY: the program is alive and compiled.
        unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) }.result().map_err(failed)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the length that NVRTC returned.
        unsafe { sys::nvrtcGetCUBIN(program.0, bytes.as_mut_ptr().cast()) }.result().map_err(failed)?;
        Ok((Cubin { arch: arch.into(), bytes }, log))
    }
}

fn failed(error: result::NvrtcError) -> NvrtcError {
    NvrtcError::Failed(format!("{error:?}"))
}

/// An NVRTC program, destroyed on drop.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: this struct owns the program. A failure has no remedy.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
