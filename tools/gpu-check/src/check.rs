//! The run: operators, then peaks, baselines and networks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use compiler::gpu::{GpuCompiler, Libraries, Precision, library_paths};
use cuda::cublas::CublasLtLibrary;
use cuda::driver::Gpu;
use cuda::{DeviceProperties, MathMode};
use lower::cuda::CudaTarget;
use types::Bytes;

use crate::arguments::Settings;
use crate::baselines::Baselines;
use crate::networks::NetworkCheck;
use crate::output::Output;
use crate::rows::{Head, LibraryRow, PeaksRow};
use crate::{networks, operators, peaks, training};

/// Checks everything that the settings name. Returns whether nothing is wrong.
///
/// # Errors
/// There is no GPU, a library is missing, or the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<bool, String> {
    let deadline = Deadline::new(settings.minutes);
    let cases = settings.operators.as_deref().map(operators::chosen).transpose()?;
    let gpu = Gpu::open(settings.device).map_err(|error| error.to_string())?;
    let targets = Targets::new(settings, &gpu)?;
    let (head, text) = head(settings, &gpu, &targets)?;
    let mut output = Output::new(settings, head)?;
    output.show(&text);
    let (mut passed, mut networks) = (true, None);
    for part in parts(deadline.is_set()) {
        match part {
            Part::Operators => {
                if let Some(cases) = &cases {
                    passed &= operators::check(&targets, cases, &deadline, &mut output)?;
                }
            }
            Part::Networks(_) | Part::Training if !settings.networks => {}
            Part::Networks(worth) => {
                let check = match networks.take() {
                    Some(check) => check,
                    None => prepared(&targets, &mut output)?,
                };
                passed &= networks::check(networks.insert(check), *worth, &deadline, &mut output)?;
            }
            Part::Training => passed &= training::check(&targets, &deadline, &mut output)?,
        }
    }
    if 0 < output.report.remaining {
        let remaining = output.report.remaining;
        output.show(&format!("stopped by --minutes: {remaining} rows remain; --resume with -o continues\n"));
        output.save()?;
    }
    output.finish()?;
    Ok(passed)
}

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Operators,
    Networks(Worth),
    Training,
}

/// The networks of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    All,
    /// Named ones, or those that are compared with baselines.
    First,
    /// The others.
    Later,
}

/// The parts in order. Within a limit of time, the most important networks come first: operators take minutes.
fn parts(is_limited: bool) -> &'static [Part] {
    match is_limited {
        false => &[Part::Operators, Part::Networks(Worth::All), Part::Training],
        true => &[Part::Networks(Worth::First), Part::Operators, Part::Networks(Worth::Later), Part::Training],
    }
}

/// The check of networks, with the GPU's peaks and the baselines.
fn prepared<'a>(targets: &'a Targets<'a>, output: &mut Output) -> Result<NetworkCheck<'a>, String> {
    let settings = targets.settings;
    let measured = peaks::measure(&targets.gpu, settings);
    let (peaks, row, text) = match measured {
        Ok(peaks) => (Some(peaks.clone()), PeaksRow::Measured(peaks.clone()), peaks::text(&peaks)),
        Err(why) => {
            let text = format!("peaks not measured: {why}\n");
            (None, PeaksRow::Unavailable { not_measured: why }, text)
        }
    };
    output.report.peaks = Some(row);
    output.show(&text);
    output.save()?;
    let mut baselines = None;
    if !settings.baselines.is_empty() {
        let found = Baselines::find(settings)?;
        output.report.baselines = found.states().clone();
        output.show(&found.text());
        output.save()?;
        baselines = found.any().then_some(found);
    }
    Ok(NetworkCheck { settings, targets, peaks, baselines })
}

/// The end of `--minutes`.
pub(crate) struct Deadline(Option<(Instant, Duration)>);

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "the time limit is the user's option")]
    fn new(minutes: Option<f64>) -> Deadline {
        let limit = minutes.map(|minutes| Duration::try_from_secs_f64(minutes * 60.0).unwrap_or(Duration::ZERO));
        Deadline(limit.map(|limit| (Instant::now(), limit)))
    }

    /// Whether no further row may begin.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_some_and(|(start, limit)| limit <= start.elapsed())
    }

    /// Whether there is one.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }
}

/// Makes compilers for the GPU, on whichever thread compiles.
pub(crate) struct Targets<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) gpu: Arc<Gpu>,
    /// The target's name.
    name: String,
    /// The GPU's properties, if cuDNN plans for it.
    properties: Option<DeviceProperties>,
}

impl Targets<'_> {
    fn new<'a>(settings: &'a Settings, gpu: &Arc<Gpu>) -> Result<Targets<'a>, String> {
        let name = format!("cuda:{}", gpu.arch());
        if CudaTarget::named(&name).is_none() {
            let (own, arch, all) = (gpu.name(), gpu.arch(), CudaTarget::ARCHITECTURES.join(", "));
            return Err(format!("{own} is {arch}, for which there are no kernels; supported are {all}"));
        }
        let description =
            settings.libraries.cudnn.map(|_| gpu.describe()).transpose().map_err(|error| error.to_string())?;
        let properties = description.map(|description| description.device);
        Ok(Targets { settings, gpu: gpu.clone(), name, properties })
    }

    /// A compiler for one precision.
    ///
    /// # Errors
    /// A library is missing.
    pub(crate) fn compiler(&self, precision: Precision) -> Result<GpuCompiler, String> {
        let target = CudaTarget::named(&self.name).expect("`new` checked the name");
        let libraries = self.settings.libraries.of(precision);
        let paths = library_paths(&self.settings.data);
        GpuCompiler::find(precision.configure(target), libraries, self.properties.as_ref(), &paths)
    }
}

/// The report's head, and its line.
fn head(settings: &Settings, gpu: &Gpu, targets: &Targets) -> Result<(Head, String), String> {
    let (free, total) = gpu.memory().map_err(|error| error.to_string())?;
    // Every precision's compiler is loaded before anything runs, so that a missing library fails early.
    let compilers = settings.precisions.iter().map(|&precision| targets.compiler(precision));
    let compilers: Vec<GpuCompiler> = compilers.collect::<Result<_, String>>()?;
    let nvrtc = compilers[0].nvrtc_version()?;
    // The arithmetic of a library may depend on the precision.
    let maths = |of: fn(Libraries) -> Option<MathMode>| -> String {
        let all = settings.precisions.iter().filter_map(|&precision| of(settings.libraries.of(precision)));
        let mut names: Vec<&str> = all.map(MathMode::name).collect();
        names.dedup();
        names.join(", ")
    };
    let cudnn = settings.libraries.cudnn.and_then(|_| compilers[0].cudnn_version());
    let cudnn = cudnn.map(|version| LibraryRow { version, math: maths(|own| own.cudnn) });
    let cublas = match settings.libraries.cublas {
        Some(_) => {
            let library = CublasLtLibrary::find(&library_paths(&settings.data)).map_err(|error| error.to_string())?;
            Some(LibraryRow { version: library.version(), math: maths(|own| own.cublas) })
        }
        None => None,
    };
    let named = |what: &str, library: &Option<LibraryRow>| match library {
        Some(LibraryRow { version, math }) => format!(", {what} {version} ({math})"),
        None => String::new(),
    };
    let libraries = named("cuDNN", &cudnn) + &named("products by cuBLASLt", &cublas);
    let (name, arch) = (gpu.name(), gpu.arch());
    let (free_text, total_text) = (Bytes(free as u64), Bytes(total as u64));
    let text = format!("{name} ({arch}), {free_text} of {total_text} free, NVRTC {nvrtc}{libraries}\n");
    let head = Head {
        format: "prestow-gpu-check".into(),
        gpu: name.to_string(),
        arch: arch.to_string(),
        memory_bytes: total,
        free_bytes: free,
        nvrtc,
        cudnn,
        cublas,
        dtypes: settings.precisions.clone(),
        only: settings.operators.clone().unwrap_or_default(),
    };
    Ok((head, text))
}
