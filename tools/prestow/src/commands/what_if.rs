//! `prestow what-if`: one model planned for several batches and dtypes, and the largest batch that fits.

use std::path::PathBuf;

use compiler::gpu::{Precision, library_paths, with_libraries};
use compiler::source;
use lower::Target;
use lower::cuda::CudaTarget;
use passes::training::Recipe;
use report::{Form, Largest, Page, Report, Variant};
use serde_json::json;

use super::profile::write;
use super::{Answer, load_message};
use crate::flags::{BATCH_MAX, ModelFlags, ReportFlags, TargetFlags, TargetSelection, TrainFlags, WhatIfReport};
use crate::progress::Progress;

/// Flags of `prestow what-if`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Model")]
    model: ModelFlags,
    #[command(flatten, next_help_heading = "Training")]
    train: TrainFlags,
    #[command(flatten, next_help_heading = "Target")]
    target: TargetFlags,
    #[command(flatten, next_help_heading = "Report")]
    report: ReportFlags<WhatIfReport>,
}

/// Plans every batch, and by bisection those between the largest that fits and the smallest that does not. The answer is
/// no if a given batch does not fit.
pub(crate) fn run(args: &Args) -> Result<Answer, String> {
    let target = args.target.select()?;
    let request = args.model.request_in_f32()?;
    let recipe = args.train.recipe(&request);
    if recipe.is_some() {
        target.precisions.iter().try_for_each(|&precision| target.check_training(precision))?;
    }
    if recipe.as_ref().is_some_and(|recipe| 1 < recipe.accumulate) {
        return Err("what-if plans one batch per step; leave out --accumulate".into());
    }
    let mut batches: Vec<u64> = args.model.batches()?.iter().map(|batch| *batch as u64).collect();
    batches.sort_unstable();
    if batches.is_empty() {
        return Err("what-if needs batches: --batch 1,2,4,8".into());
    }
    let report_request = &args.report.request;
    let capacity = report_request.fits.map(|bytes| bytes.0);
    let progress = Progress::spinner("planning");
    let (mut variants, mut largest, mut reports) = (Vec::new(), Vec::new(), Vec::new());
    for &precision in &target.precisions {
        let gpu = gpu(&target, &request, precision)?;
        let mut planner = Planner {
            request: &request,
            recipe: recipe.as_ref(),
            target: &target,
            gpu,
            precision,
            capacity,
            progress: &progress,
            variants: Vec::new(),
            report: None,
        };
        for &batch in &batches {
            planner.plan(batch, Reason::Given)?;
        }
        let is_largest = planner.bisect()?;
        let fitting = planner.variants.iter().filter(|variant| variant.fits == Some(true));
        largest.push(Largest {
            dtype: precision.name().to_string(),
            batch: fitting.map(|variant| variant.batch).max(),
            is_largest,
        });
        variants.append(&mut planner.variants);
        reports.extend(planner.report);
    }
    drop(progress);
    // The page shows the plan of the largest batch, of the first dtype that has it.
    let report = reports.into_iter().rev().max_by_key(|report| report.batch).expect("at least one batch was planned");
    let name = match &target.gpu {
        Some(gpu) => gpu.target.name(),
        None => target.level.name.to_string(),
    };
    let what_if =
        report::WhatIf { model: report.model.clone(), target: name, capacity_bytes: capacity, variants, largest };

    let mut files: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    for (form, path) in &report_request.files {
        let bytes = match form {
            Form::Csv => what_if.csv(),
            Form::Svg => what_if.svg(),
            _ => Page { what_if: Some(&what_if), ..Page::new(&report, &report_request.options) }.html(),
        };
        files.push((path.clone(), bytes.into_bytes()));
    }
    write(&files)?;
    let text = match args.json {
        true => format!("{:#}\n", json!(what_if)),
        false => what_if.text(report_request.options.width),
    };
    Ok(Answer { text, yes: what_if.all_fit() })
}

/// The CUDA target for a precision, or `None` for a processor.
fn gpu(
    target: &TargetSelection,
    request: &source::Request,
    precision: Precision,
) -> Result<Option<CudaTarget>, String> {
    let Some(gpu) = &target.gpu else { return Ok(None) };
    let device = gpu.facts.as_ref().map(|(_, facts)| &facts.device);
    let (libraries, places) = (target.libraries.of(precision), library_paths(&request.data));
    with_libraries(precision.configure(gpu.target.clone()), libraries, device, &places).map(|(target, _)| Some(target))
}

/// Reason to plan a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Given,
    Bisection,
}

/// Plans of one precision.
struct Planner<'a> {
    request: &'a source::Request,
    /// How the model is trained, if its step is planned.
    recipe: Option<&'a Recipe>,
    target: &'a TargetSelection,
    /// `None`: a processor.
    gpu: Option<CudaTarget>,
    precision: Precision,
    capacity: Option<u64>,
    progress: &'a Progress,
    /// By batch.
    variants: Vec<Variant>,
    /// Of the largest batch that fits, or of the smallest batch if none fits.
    report: Option<Report>,
}

impl Planner<'_> {
    /// Plans one batch. Returns whether it fits.
    fn plan(&mut self, batch: u64, reason: Reason) -> Result<bool, String> {
        self.progress.message(format!("planning batch {batch}, {}", self.precision.name()));
        let processor = self.target.cpu(self.precision);
        let request = source::Request { batch: usize::try_from(batch).ok(), ..self.request.clone() };
        let failed = |error| format!("batch {batch}: {}", load_message(error));
        let target: &dyn Target = match &self.gpu {
            Some(gpu) => gpu,
            None => &processor,
        };
        let done = match self.recipe {
            None => {
                compiler::compile(source::load(&request).map_err(failed)?, target, compiler::Goal::default(), |_, _| {})
            }
            Some(recipe) => {
                let model = source::load_trainable(&request).map_err(failed)?;
                compiler::compile_training(model, recipe, target, compiler::Goal::default(), |_, _| {})
                    .map(|[step, _]| step)
            }
        };
        let report = Report::new(&done.map_err(|error| format!("batch {batch}: {error}"))?.plan);
        if report.batch != batch {
            return Err(format!(
                "`{}` has inputs of a fixed shape: expected a plan for batch {batch}, got one for {}; give a model with \
                 an open batch",
                report.model, report.batch
            ));
        }
        let variant = Variant::new(&report, self.precision.name(), self.capacity, reason == Reason::Given);
        let fits = variant.fits != Some(false);
        let at = self.variants.partition_point(|other| other.batch < batch);
        self.variants.insert(at, variant);
        let best = self.report.as_ref().map_or(0, |report| report.batch);
        if self.report.is_none() || fits && best < batch {
            self.report = Some(report);
        }
        Ok(fits)
    }

    /// Bisects between the largest batch that fits and the smallest above it that does not. Returns whether there is such
    /// a pair.
    fn bisect(&mut self) -> Result<bool, String> {
        loop {
            let fitting = self.variants.iter().filter(|variant| variant.fits == Some(true));
            let Some(most) = fitting.map(|variant| variant.batch).max() else { return Ok(false) };
            let above = self.variants.iter().filter(|variant| variant.fits == Some(false) && most < variant.batch);
            let Some(least) = above.map(|variant| variant.batch).min().filter(|batch| *batch <= BATCH_MAX) else {
                return Ok(false);
            };
            if least == most + 1 {
                return Ok(true);
            }
            self.plan(most + (least - most) / 2, Reason::Bisection)?;
        }
    }
}
