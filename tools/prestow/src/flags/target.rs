//! [`TargetFlags`]: processor or GPU, precision and NVIDIA's libraries.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use compiler::gpu::{Libraries, Precision};
use cpu::Level;
use cuda::{DeviceDescription, MathMode};
use lower::cpu::CpuTarget;
use lower::cuda::CudaTarget;
use types::Bytes;

use super::repeated;

/// The target of a plan.
#[derive(Args)]
pub(crate) struct TargetFlags {
    /// cpu (every processor of this architecture), cpu:native, cpu:x86-64, cpu:x86-64-v3, cpu:x86-64-v4, cpu:aarch64;
    /// cuda:sm_80, sm_86, sm_89, sm_90, sm_100, sm_110, sm_120, sm_121 (`cargo xtask fetch --nvrtc` brings the compiler); or FILE.json,
    /// the description of one GPU, as targets/cuda-sm_90-h200.json.
    #[arg(long, value_name = "TARGET", default_value = "cpu")]
    target: String,
    /// Precision of weights and of values between kernels: f32, f16 or bf16, and tf32 for GPUs. Kernels accumulate in
    /// f32; inputs and outputs keep their dtype. tf32 is f32 in memory, with the operands of products and convolutions
    /// rounded for tensor cores.
    #[arg(long = "dtype", value_name = "DTYPE", default_value = "f32", value_delimiter = ',')]
    precisions: Vec<Precision>,
    /// Leave out algorithms that trade rounding for speed (Winograd).
    #[arg(long)]
    exact: bool,
    /// Convolutions by cuDNN where it has an engine, planned without the GPU that `--target FILE.json` describes. The
    /// executable needs the library (`cargo xtask fetch --cudnn`). tf32: operands are rounded for tensor cores.
    #[arg(long, value_name = "tf32", num_args = 0..=1, require_equals = true, hide_possible_values = true)]
    cudnn: Option<Option<Rounding>>,
    /// Matrix products by cuBLASLt, which chooses algorithms when the executable is opened. The executable needs the
    /// library (`cargo xtask fetch --cublas`). tf32: operands are rounded for tensor cores.
    #[arg(long, value_name = "tf32", num_args = 0..=1, require_equals = true, hide_possible_values = true)]
    cublas: Option<Option<Rounding>>,
    /// Largest workspace of a cuBLASLt product (default 32MiB; 4MiB for sm_80).
    #[arg(long, value_name = "BYTES", requires = "cublas")]
    cublas_workspace: Option<Bytes>,
    /// Print each layer that cuDNN or cuBLASLt does not compute, with the reason.
    #[arg(long)]
    verbose: bool,
}

/// The value of `--cudnn=tf32`.
#[derive(Clone, Copy, ValueEnum)]
enum Rounding {
    Tf32,
}

/// A target that is checked: options that contradict each other are refused.
pub(crate) struct TargetSelection {
    /// Of the processor, or of the host of a GPU.
    pub(crate) level: Level,
    /// `None`: a processor.
    pub(crate) gpu: Option<Gpu>,
    pub(crate) libraries: Libraries,
    /// At least one, distinct.
    pub(crate) precisions: Vec<Precision>,
    pub(crate) exact: bool,
    pub(crate) verbose: bool,
}

/// The GPUs of an architecture, or one of them.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(crate) target: CudaTarget,
    /// The description of one GPU and its file. `None`: the plan is for all GPUs of the architecture.
    pub(crate) facts: Option<(PathBuf, DeviceDescription)>,
}

impl TargetFlags {
    /// Resolves the target.
    ///
    /// # Errors
    /// An unknown target, a file without a description, or options that exclude each other.
    pub(crate) fn select(&self) -> Result<TargetSelection, String> {
        let (level, gpu) = parse_target(&self.target)?;
        if let Some(precision) = repeated(self.precisions.iter().copied()) {
            return Err(format!("each --dtype must be given once, got {precision} twice"));
        }
        let math = |rounding: Option<Rounding>| match rounding {
            None => MathMode::Strict,
            Some(Rounding::Tf32) => MathMode::Tf32,
        };
        let libraries = Libraries {
            cudnn: self.cudnn.map(math),
            cublas: self.cublas.map(math),
            cublas_workspace: self.cublas_workspace,
        };
        if libraries.cudnn.is_some() && gpu.as_ref().is_none_or(|gpu| gpu.facts.is_none()) {
            return Err(
                "--cudnn needs the description of one GPU: --target FILE.json, as targets/cuda-sm_90-h200.json; \
                        `prestow target probe` writes one on a machine with the GPU"
                    .into(),
            );
        }
        if libraries.cublas.is_some() && gpu.is_none() {
            return Err(format!("--cublas needs a GPU: --target {} or FILE.json", architectures()));
        }
        if self.verbose && !libraries.any() {
            return Err("--verbose needs --cudnn or --cublas".into());
        }
        if self.precisions.contains(&Precision::Tf32) {
            if gpu.is_none() {
                return Err(format!("--dtype tf32 needs a GPU: --target {} or FILE.json", architectures()));
            }
            if self.exact {
                return Err("--dtype tf32 and --exact exclude each other".into());
            }
        }
        let libraries = libraries.resolve(self.exact, &self.precisions)?;
        let precisions = self.precisions.clone();
        Ok(TargetSelection { level, gpu, libraries, precisions, exact: self.exact, verbose: self.verbose })
    }
}

impl TargetSelection {
    /// Refuses a precision in which no step of training is compiled for the target.
    ///
    /// # Errors
    /// Half precision on a GPU. On a processor it is the form of saved values, and tf32 is refused for all models.
    pub(crate) fn check_training(&self, precision: Precision) -> Result<(), String> {
        match precision {
            Precision::F32 | Precision::Tf32 => Ok(()),
            Precision::F16 | Precision::Bf16 if self.gpu.is_none() => Ok(()),
            Precision::F16 | Precision::Bf16 => {
                Err("--train needs --dtype f32 or tf32 on a GPU; f16 and bf16 are for processors".into())
            }
        }
    }

    /// The CPU target, with one of the precisions.
    pub(crate) fn cpu(&self, precision: Precision) -> CpuTarget {
        CpuTarget { level: self.level, exact: self.exact, dtype: precision.dtype(), ..CpuTarget::new() }
    }

    /// Whether the plan is for a processor with values of `f32` between kernels.
    pub(crate) fn is_cpu_f32(&self) -> bool {
        self.gpu.is_none() && self.precisions == [Precision::F32]
    }
}

/// A GPU's runner is for the processors of this architecture.
fn parse_target(given: &str) -> Result<(Level, Option<Gpu>), String> {
    let here = CpuTarget::new().level;
    let found = match given {
        "cpu" => Some((here, None)),
        "cpu:native" => Level::native().map(|level| (level, None)),
        file if file.ends_with(".json") => return Ok((here, Some(read_facts(file.into())?))),
        name => match CudaTarget::named(name) {
            Some(target) => Some((here, Some(Gpu { target, facts: None }))),
            None => Level::named(name).map(|level| (level, None)),
        },
    };
    let cpus = || Level::ALL.map(|level| level.name).join(", ");
    found.ok_or_else(|| {
        let gpus = architectures();
        format!("--target must be cpu, cpu:native, {}, {gpus} or FILE.json, got `{given}`", cpus())
    })
}

fn architectures() -> String {
    CudaTarget::ARCHITECTURES.map(|arch| format!("cuda:{arch}")).join(", ")
}

/// The largest description of a GPU.
const DESCRIPTION_MAX: Bytes = Bytes(1 << 24);

/// Reads the description of a GPU.
fn read_facts(file: PathBuf) -> Result<Gpu, String> {
    let failed =
        |error: &dyn std::fmt::Display, advice: &str| format!("--target {}: {error}; {advice}", file.display());
    let text = files::read_text(&file, DESCRIPTION_MAX).map_err(|error| {
        failed(&error.error, "`prestow target probe -o FILE.json` writes such a file on a machine with the GPU")
    })?;
    let facts = DeviceDescription::parse(&text)
        .map_err(|error| failed(&error, "add it, or record the file again with `prestow target probe`"))?;
    let name = format!("cuda:{}", facts.arch);
    let target = CudaTarget::named(&name).ok_or_else(|| {
        failed(&format!("no kernels for {}", facts.arch), &format!("there are kernels for {}", architectures()))
    })?;
    Ok(Gpu { target, facts: Some((file, facts)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_of_every_name_is_found() {
        for name in ["cpu", "cpu:x86-64-v3", "cpu:aarch64", "cuda:sm_80", "cuda:sm_89", "cuda:sm_121"] {
            assert!(parse_target(name).is_ok(), "{name}");
        }
        let error = parse_target("tpu").err().expect("there is no such target");
        assert!(error.ends_with("or FILE.json, got `tpu`"), "{error}");
    }

    #[test]
    fn missing_description_names_the_command_that_writes_one() {
        let error = parse_target("/no/such.json").err().expect("there is no such file");
        assert!(error.contains("prestow target probe"), "{error}");
    }
}
