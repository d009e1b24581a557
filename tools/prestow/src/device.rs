//! GPUs to compile for: the emitted kernels of a plan become machine code in it.

use std::path::{Path, PathBuf};

use cuda::nvrtc::{Compiler, Places};
use lower::cuda::{CudaTarget, assemble};
use plan::{Module, Plan};

/// A target with its compiler.
pub(crate) struct Device {
    pub(crate) target: CudaTarget,
    compiler: Compiler,
}

impl Device {
    /// Finds the compiler: in folders of the environment, where `cargo xtask fetch --cuda` put it, or where the system looks.
    pub(crate) fn find(target: &CudaTarget, data: &Path) -> Result<Device, String> {
        let paths = |name: &str| -> Vec<PathBuf> {
            std::env::var_os(name).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
        };
        let mut packages = packages(&data.join("cuda"));
        packages.extend(paths("VIRTUAL_ENV").iter().flat_map(|root| self::packages(root)));
        let toolkit = paths("CUDA_HOME").into_iter().next();
        let places = Places { folders: paths("PRESTOW_CUDA_LIBS"), toolkit, packages };
        let compiler = Compiler::find(&places).map_err(|error| error.to_string())?;
        Ok(Device { target: target.clone(), compiler })
    }

    /// The compiler's version.
    pub(crate) fn version(&self) -> Result<String, String> {
        self.compiler.version().map_err(|error| error.to_string())
    }

    /// Compiles the kernels of a plan and puts them into it; their source.
    pub(crate) fn finish(&self, plan: &mut Plan) -> Result<String, String> {
        let source = assemble([&mut *plan]);
        let cubin = self.compiler.compile(&source.text, self.target.arch()).map_err(|error| error.to_string())?;
        plan.modules.push(Module { arch: cubin.arch, code: cubin.bytes });
        Ok(source.text)
    }
}

/// The folders of Python's packages in an environment.
fn packages(root: &Path) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("site-packages")).collect();
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    folders
}
