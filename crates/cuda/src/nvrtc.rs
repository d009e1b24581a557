//! [`Compiler`]: CUDA C to machine code by NVRTC, NVIDIA's compiler as a library. It needs no GPU and no driver.

use std::ffi::CString;

use cudarc::nvrtc::{result, sys};

use crate::library::load;
use crate::{Cubin, KernelResources, LibraryNotFound, LibraryPaths};

/// The oldest version whose functions are all there, and whose code the drivers that we run on take.
const VERSION_MIN: (i32, i32) = (12, 0);

/// Why there is no machine code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcError {
    /// NVRTC is not there.
    #[error(transparent)]
    NotFound(#[from] LibraryNotFound),
    /// NVRTC lacks what we ask of it.
    #[error("NVRTC {version} is too old; {}.{} or later is needed, which `cargo xtask fetch --nvrtc` brings", VERSION_MIN.0, VERSION_MIN.1)]
    TooOld {
        /// Its version.
        version: String,
    },
    /// NVRTC does not know an architecture.
    #[error(
        "NVRTC {version} has no code for {arch}, but for {}; install a later version (`cargo xtask fetch --nvrtc`), or compile \
         for one of these",
        .known.join(", ")
    )]
    Arch {
        /// Which.
        arch: String,
        /// NVRTC's version.
        version: String,
        /// Those it knows.
        known: Vec<String>,
    },
    /// NVRTC failed at something that cannot fail, or its memory is full.
    #[error("NVRTC: {0}")]
    Failed(String),
    /// The source is not CUDA C: a bug of whoever wrote it.
    #[error("internal error: the emitted kernels do not compile:\n{0}")]
    Source(String),
}

/// NVRTC, loaded into the process.
#[derive(Clone, Copy, Debug)]
pub struct Compiler(());

impl Compiler {
    /// Finds NVRTC.
    ///
    /// # Errors
    /// It is nowhere, and which folders were looked in; or it is too old.
    pub fn find(places: &LibraryPaths) -> Result<Compiler, NvrtcError> {
        // NVRTC opens this one by its name when it compiles; where it lies beside NVRTC that works without us.
        let _ = load(places, &["libnvrtc-builtins.so"], "--nvrtc");
        load(places, &["libnvrtc.so", "libnvrtc.so.13"], "--nvrtc")?;
        // SAFETY: it asks the system's loader for the library that was loaded above.
        if !unsafe { sys::is_culib_present() } {
            let tried = places.told();
            return Err(LibraryNotFound { name: "libnvrtc.so".into(), fetch: "--nvrtc", tried }.into());
        }
        let compiler = Compiler(());
        // Before anything else is asked: what an older version lacks, its table would panic at.
        match compiler.numbers()? < VERSION_MIN {
            true => Err(NvrtcError::TooOld { version: compiler.version()? }),
            false => Ok(compiler),
        }
    }

    /// NVRTC's version, as `13.0`.
    ///
    /// # Errors
    /// NVRTC fails.
    pub fn version(self) -> Result<String, NvrtcError> {
        self.numbers().map(|(major, minor)| format!("{major}.{minor}"))
    }

    fn numbers(self) -> Result<(i32, i32), NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both numbers can be written.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(failed)?;
        Ok((major, minor))
    }

    /// The architectures that it has code for, as `sm_90`.
    ///
    /// # Errors
    /// NVRTC fails.
    pub fn architectures(self) -> Result<Vec<String>, NvrtcError> {
        let mut count = 0;
        // SAFETY: the number can be written.
        unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(failed)?;
        let mut numbers = vec![0; usize::try_from(count).unwrap_or_default()];
        // SAFETY: there is room for as many as NVRTC said.
        unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) }.result().map_err(failed)?;
        Ok(numbers.into_iter().map(|number| format!("sm_{number}")).collect())
    }

    /// Compiles a source without includes for an architecture.
    ///
    /// # Errors
    /// An architecture that NVRTC does not know; a source that is not CUDA C, with NVRTC's messages.
    pub fn compile(self, source: &str, arch: &str) -> Result<Cubin, NvrtcError> {
        self.compile_with(source, arch, None).map(|(cubin, _)| cubin)
    }

    /// The same, with what each function takes.
    ///
    /// # Errors
    /// As above.
    pub fn measure(self, source: &str, arch: &str) -> Result<(Cubin, Vec<KernelResources>), NvrtcError> {
        let (cubin, log) = self.compile_with(source, arch, Some("--ptxas-options=-v"))?;
        Ok((cubin, KernelResources::parse(&log)))
    }

    /// Machine code, and what NVRTC says meanwhile.
    fn compile_with(self, source: &str, arch: &str, more: Option<&str>) -> Result<(Cubin, String), NvrtcError> {
        let known = self.architectures()?;
        if !known.iter().any(|other| other == arch) {
            return Err(NvrtcError::Arch { arch: arch.into(), version: self.version()?, known });
        }
        let source = CString::new(source).map_err(|error| NvrtcError::Source(error.to_string()))?;
        let program = Program(result::create_program(&source, None).map_err(failed)?);
        let mut options = vec![format!("--gpu-architecture={arch}"), "--std=c++17".into(), "--fmad=true".into()];
        options.extend(more.map(ToString::to_string));
        // SAFETY: the program is alive.
        let compiled = unsafe { result::compile_program(program.0, &options) };
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        // Of some architectures a C character has a sign.
        let log: Vec<u8> = log.into_iter().flat_map(std::ffi::c_char::to_ne_bytes).collect();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
        compiled.map_err(|error| NvrtcError::Source(format!("{error:?}\n{log}")))?;
        let mut size = 0;
        // SAFETY: the program is alive and compiled.
        unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) }.result().map_err(failed)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: there is room for as many bytes as NVRTC said.
        unsafe { sys::nvrtcGetCUBIN(program.0, bytes.as_mut_ptr().cast()) }.result().map_err(failed)?;
        Ok((Cubin { arch: arch.into(), bytes }, log))
    }
}

fn failed(error: result::NvrtcError) -> NvrtcError {
    NvrtcError::Failed(format!("{error:?}"))
}

/// A program of NVRTC's, which goes when we go.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is alive, and nobody else has it. What could be said of a failure helps nobody.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
