//! CUDA targets with the tools that compile for them: NVRTC, cuDNN's planner, cuBLASLt.
//!
//! [`GpuCompiler::find`] loads them, [`crate::compile`] plans with [`GpuCompiler::target`], and [`GpuCompiler::finish`] puts
//! machine code into the plan. [`tune`] measures the libraries' algorithms on a GPU.

mod libraries;
mod precision;
mod tune;

use std::path::Path;
use std::rc::Rc;

use cuda::cudnn::Planner;
use cuda::nvrtc::Compiler;
use cuda::{DeviceProperties, LibraryPaths};
use lower::cuda::{CudaTarget, assemble};
use plan::{DeviceCode, Plan};

pub use libraries::Libraries;
pub use precision::{ParsePrecisionError, Precision};
pub use tune::{PlansFor, TuneOptions, fill_operands, tune};

/// A CUDA target with its compiler.
pub struct GpuCompiler {
    /// The target, with the libraries that it may use.
    pub target: CudaTarget,
    compiler: Compiler,
    /// cuDNN's planner, if cuDNN is enabled and the GPU is described.
    pub planner: Option<Rc<Planner>>,
    /// The GPU's name, if the target is one GPU and not all of an architecture.
    pub device_name: Option<String>,
}

impl GpuCompiler {
    /// Loads NVRTC, and cuDNN if it is enabled and `device` describes the GPU.
    ///
    /// # Errors
    /// A library is missing, or cuDNN rejects the device.
    pub fn find(
        target: CudaTarget,
        libraries: Libraries,
        device: Option<&DeviceProperties>,
        paths: &LibraryPaths,
    ) -> Result<GpuCompiler, String> {
        let compiler = Compiler::find(paths).map_err(|error| error.to_string())?;
        let (target, planner) = with_libraries(target, libraries, device, paths)?;
        let device_name = device.map(|device| device.device_name.clone());
        Ok(GpuCompiler { target, compiler, planner, device_name })
    }

    /// The version of NVRTC.
    ///
    /// # Errors
    /// NVRTC fails.
    pub fn nvrtc_version(&self) -> Result<String, String> {
        self.compiler.version().map_err(|error| error.to_string())
    }

    /// The version of cuDNN, if its planner is loaded.
    pub fn cudnn_version(&self) -> Option<String> {
        self.planner.as_ref().map(|planner| planner.version())
    }

    /// A function that compiles a source for an architecture. It may be called by several threads at once.
    pub fn code(&self) -> impl Fn(&str, &str) -> Result<DeviceCode, String> + Sync + use<> {
        let compiler = self.compiler;
        move |source, arch| {
            let cubin = compiler.compile(source, arch).map_err(|error| error.to_string())?;
            Ok(DeviceCode { arch: cubin.arch, code: cubin.bytes })
        }
    }

    /// Compiles the kernels of a plan into the plan. Returns their source.
    ///
    /// # Errors
    /// NVRTC rejects the source.
    pub fn finish(&self, plan: &mut Plan) -> Result<String, String> {
        let source = assemble([&mut *plan]);
        plan.modules.push(self.code()(&source.text, self.target.arch())?);
        Ok(source.text)
    }
}

/// A target with the enabled libraries, and cuDNN's planner. cuDNN plans here, if `device` describes the GPU; cuBLASLt
/// chooses its algorithms when a plan is opened.
///
/// # Errors
/// cuDNN is missing or rejects the device.
pub fn with_libraries(
    mut target: CudaTarget,
    libraries: Libraries,
    device: Option<&DeviceProperties>,
    paths: &LibraryPaths,
) -> Result<(CudaTarget, Option<Rc<Planner>>), String> {
    if let Some(math) = libraries.cublas {
        target = target.with_cublas(math, libraries.cublas_workspace);
    }
    let Some((device, math)) = device.zip(libraries.cudnn) else { return Ok((target, None)) };
    let planner = Rc::new(Planner::new(paths, device, math).map_err(|error| error.to_string())?);
    Ok((target.with_cudnn(planner.clone()), Some(planner)))
}

/// Folders that are searched for NVIDIA's libraries: those of the environment, and `cuda/` in `data`, where `cargo xtask
/// fetch --cuda` puts them.
pub fn library_paths(data: &Path) -> LibraryPaths {
    LibraryPaths::of(|name| std::env::var_os(name)).with_environment(&data.join("cuda"))
}
