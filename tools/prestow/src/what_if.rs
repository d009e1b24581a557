//! `prestow what-if`: one model planned for several batches and dtypes, each exactly, and the largest that fits.

use std::path::PathBuf;

use compiler::gpu::{Precision, library_places, with_libraries};
use compiler::source;
use lower::Target;
use lower::cpu::CpuTarget;
use lower::cuda::CudaTarget;
use report::{Form, Largest, Page, Report, Variant};
use serde_json::json;

use crate::Answer;
use crate::arguments::WhatIf;
use crate::profiles::write;

/// No batch above this is tried.
const BATCH_MAX: u64 = 65_536;

/// Plans every batch; where some fit and others do not, those between as well, by halves, until the largest is known. The
/// answer is no where one that was asked for does not fit.
pub(crate) fn what_if(asked: &WhatIf) -> Result<Answer, String> {
    let capacity = asked.report.fits.map(|bytes| bytes.0);
    let mut batches: Vec<u64> = asked.compile.batches.iter().map(|batch| *batch as u64).collect();
    batches.sort_unstable();
    if batches.is_empty() {
        return Err("name the batches with --batch, as 1,2,4,8".into());
    }
    let (mut variants, mut largest, mut reports) = (Vec::new(), Vec::new(), Vec::new());
    for &numbers in &asked.compile.dtypes {
        let gpu = gpu(asked, numbers)?;
        let mut planner = Planner { asked, gpu, numbers, capacity, variants: Vec::new(), report: None };
        for &batch in &batches {
            planner.plan(batch, true)?;
        }
        let is_largest = planner.search()?;
        let fitting = planner.variants.iter().filter(|variant| variant.fits == Some(true));
        largest.push(Largest {
            dtype: numbers.name().to_string(),
            batch: fitting.map(|variant| variant.batch).max(),
            is_largest,
        });
        variants.append(&mut planner.variants);
        reports.extend(planner.report);
    }
    // The page shows the plan of the largest batch, of the first dtype that has it.
    let report = reports.into_iter().rev().max_by_key(|report| report.batch).expect("at least one batch was planned");
    let target = match &asked.compile.device {
        Some(gpu) => gpu.target.name(),
        None => asked.compile.level.name.to_string(),
    };
    let what_if = report::WhatIf { model: report.model.clone(), target, capacity_bytes: capacity, variants, largest };

    let mut files: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    for (form, path) in &asked.report.files {
        let bytes = match form {
            Form::Csv => what_if.csv(),
            Form::Svg => what_if.svg(),
            _ => Page { what_if: Some(&what_if), ..Page::new(&report, &asked.report.options) }.html(),
        };
        files.push((path.clone(), bytes.into_bytes()));
    }
    write(&files)?;
    let text = match asked.compile.json {
        true => format!("{:#}\n", json!(what_if)),
        false => what_if.text(asked.report.options.width),
    };
    Ok(Answer { text, yes: what_if.all_fit() })
}

/// The GPUs to plan for, where it is not processors.
fn gpu(asked: &WhatIf, numbers: Precision) -> Result<Option<CudaTarget>, String> {
    let Some(gpu) = &asked.compile.device else { return Ok(None) };
    let device = gpu.facts.as_ref().map(|(_, facts)| &facts.device);
    let (libraries, data) = (asked.compile.libraries.of(numbers), &asked.compile.source.data);
    with_libraries(numbers.configure(gpu.target.clone()), libraries, device, &library_places(data))
        .map(|(target, _)| Some(target))
}

struct Planner<'a> {
    asked: &'a WhatIf,
    /// Where it is not for processors.
    gpu: Option<CudaTarget>,
    numbers: Precision,
    capacity: Option<u64>,
    /// By batch.
    variants: Vec<Variant>,
    /// Of the largest batch that fits, or of the smallest where none does.
    report: Option<Report>,
}

impl Planner<'_> {
    /// Plans one batch exactly; whether it fits.
    fn plan(&mut self, batch: u64, asked: bool) -> Result<bool, String> {
        let compile = &self.asked.compile;
        let dtype = self.numbers.dtype();
        let target = CpuTarget { level: compile.level, exact: compile.exact, dtype, ..CpuTarget::new() };
        let request = source::Request { batch: usize::try_from(batch).ok(), ..compile.source.clone() };
        let model = source::load(&request).map_err(|error| format!("batch {batch}: {error}"))?;
        let target: &dyn Target = match &self.gpu {
            Some(gpu) => gpu,
            None => &target,
        };
        let done = compiler::compile(model, target, None, |_, _| {});
        let report = Report::new(&done.map_err(|error| format!("batch {batch}: {error}"))?.plan);
        if report.batch != batch {
            return Err(format!(
                "`{}` was planned for batch {} and not for {batch}: its inputs have shapes of their own; leave them open",
                report.model, report.batch
            ));
        }
        let variant = Variant::new(&report, self.numbers.name(), self.capacity, asked);
        let fits = variant.fits != Some(false);
        let at = self.variants.partition_point(|other| other.batch < batch);
        self.variants.insert(at, variant);
        let best = self.report.as_ref().map_or(0, |report| report.batch);
        if self.report.is_none() || fits && best < batch {
            self.report = Some(report);
        }
        Ok(fits)
    }

    /// Halves what lies between the largest batch that fits and the smallest above it that does not, until nothing is
    /// between; whether there is such a pair.
    fn search(&mut self) -> Result<bool, String> {
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
            self.plan(most + (least - most) / 2, false)?;
        }
    }
}
