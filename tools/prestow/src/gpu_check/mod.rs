//! `prestow gpu-check`: operators and networks on the GPU at hand: results, memory and speed, in one report and one file.
//! This file has the command and the head of the report; `operators` the cases of operators, beside their definitions, and
//! `trials` what they are in which numbers; `networks` the rows of networks, beside this machine's processor.

mod networks;
mod operators;
mod trials;

use cuda::Math;
use cuda::cublas::CublasLt;
use lower::cuda::CudaTarget;
use serde_json::json;
use types::Bytes;

use crate::Answer;
use crate::arguments::{GpuCheck, Libraries, Numbers};
use crate::device::{Device, places};

/// Checks all operators and networks asked for, one after the other. The answer is no where one is wrong, or uses other
/// memory than was planned.
pub(crate) fn gpu_check(asked: &GpuCheck) -> Result<Answer, String> {
    let cases = asked.operators.as_deref().map(operators::chosen).transpose()?;
    let gpu = cuda::driver::Gpu::open(asked.device).map_err(|error| error.to_string())?;
    let name = format!("cuda:{}", gpu.arch());
    let target = CudaTarget::named(&name).ok_or_else(|| {
        let known = CudaTarget::ARCHITECTURES.join(", ");
        format!("{} is {}, for which there are no kernels; there are some for {known}", gpu.name(), gpu.arch())
    })?;
    let (free, total) = gpu.memory().map_err(|error| error.to_string())?;
    let facts = asked.libraries.cudnn.map(|_| gpu.facts()).transpose().map_err(|error| error.to_string())?;
    let properties = facts.as_ref().map(|facts| &facts.device);
    let on = |numbers: Numbers| -> Result<On, String> {
        let device = Device::find(numbers.on(target.clone()), asked.libraries.of(numbers), properties, &asked.data)?;
        Ok(On { numbers, device })
    };
    let all: Result<Vec<On>, String> = asked.dtypes.iter().map(|&numbers| on(numbers)).collect();
    let (all, libraries) = (all?, asked.libraries);
    let version = all[0].device.version()?;
    let cudnn = libraries.cudnn.and(all[0].device.cudnn.clone());
    let found = || CublasLt::find(&places(&asked.data)).map_err(|error| error.to_string());
    let cublas = libraries.cublas.map(|_| Ok::<_, String>(found()?.version())).transpose()?;
    // How a library computes may depend on what is stored.
    let maths = |of: fn(Libraries) -> Option<Math>| -> Vec<&str> {
        let mut names: Vec<&str> =
            asked.dtypes.iter().filter_map(|&numbers| of(libraries.of(numbers))).map(Math::name).collect();
        names.dedup();
        names
    };
    let (cudnn_maths, cublas_maths) = (maths(|own| own.cudnn), maths(|own| own.cublas));
    let named = |what: &str, library: &Option<String>, maths: &[&str]| match library {
        Some(version) => format!(", {what} {version} ({})", maths.join(", ")),
        None => String::new(),
    };
    let (by_cudnn, by_cublas) =
        (named("cuDNN", &cudnn, &cudnn_maths), named("products by cuBLASLt", &cublas, &cublas_maths));
    let mut text = format!(
        "{} ({}), {} of {} free, NVRTC {version}{by_cudnn}{by_cublas}\n",
        gpu.name(),
        gpu.arch(),
        Bytes(free as u64),
        Bytes(total as u64)
    );
    let operators = cases.map(|cases| operators::check(asked, &gpu, &all, &cases));
    text.extend(operators.iter().map(|report| &report.text[..]));
    let (rows, right) = match asked.networks {
        true => networks::rows(asked, &all, &mut text),
        false => (Vec::new(), true),
    };
    let yes = right && operators.as_ref().is_none_or(|report| report.yes);
    let (cases, sums) = operators.map(|report| (report.rows, report.sums)).unzip();
    let library = |library: Option<String>, maths: &[&str]| {
        library.map(|version| json!({ "version": version, "math": maths.join(", ") }))
    };
    let dtypes: Vec<&str> = asked.dtypes.iter().map(|numbers| numbers.name()).collect();
    let report = json!({
        "format": "prestow-gpu-check",
        "gpu": gpu.name(),
        "arch": gpu.arch(),
        "memory_bytes": total,
        "free_bytes": free,
        "nvrtc": version,
        "cudnn": library(cudnn, &cudnn_maths),
        "cublas": library(cublas, &cublas_maths),
        "dtypes": dtypes,
        "operators": cases.unwrap_or_default(),
        "operators_summary": sums.unwrap_or_default(),
        "networks": rows,
    });
    if let Some(path) = &asked.output {
        let bytes = format!("{report:#}\n");
        compiler::write_whole(path, |file| std::io::Write::write_all(file, bytes.as_bytes()))
            .map_err(|error| error.to_string())?;
    }
    let text = if asked.json { format!("{report:#}\n") } else { text };
    Ok(Answer { text, yes })
}

/// A GPU as a target for one kind of numbers.
struct On {
    numbers: Numbers,
    device: Device,
}
