//! `--sass`: the time of each kernel of a network by a model of its machine code, without a GPU.
//!
//! A step takes the longest of four times, and as long as a launch:
//!
//! - *tensor*: its operations at the tensor cores' rate, if it uses them;
//! - *shared*: the bytes of shared memory that its instructions read and write, 128 of them per clock and multiprocessor;
//! - *issue*: its instructions; a multiprocessor issues four per clock;
//! - *bytes*: its operands and results at the bandwidth of device memory.
//!
//! A main loop on tensor cores runs as often as the step's operations require. Other loops count once, which makes the time a
//! lower bound. The first three grow by the multiprocessors that have no block in the last turn. Nothing that these times cannot
//! overlap with each other is part of the model: measured times are longer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use compiler::gpu::{Precision, library_paths};
use compiler::source::{self, Request};
use cuda::nvrtc::Compiler;
use cuda::{DeviceDescription, KernelResources, Launch, StepCode};
use lower::cuda::{CudaTarget, assemble};
use plan::{Plan, Step};

use crate::arguments::Settings;
use crate::machine_code::{MachineCode, disassemble, find_disassembler};

/// The target.
const TARGET: &str = "cuda:sm_90";
/// The description of the GPU whose clock and multiprocessors the model has.
const DEVICE: &str = include_str!("../../../targets/cuda-sm_90-h100.json");
/// The bandwidth of its memory, in bytes per second: the largest that a copy reached.
const BANDWIDTH: f64 = 2.97e12;
/// Its clock under load.
const CLOCK: f64 = 1.755e9;
/// Operations of half precision per multiprocessor and clock on tensor cores: of `wgmma`, and of `mma.sync`, which reaches
/// 62 % of it.
const GROUP_FLOPS: f64 = 8.0 * 512.0;
const WARP_FLOPS: f64 = 0.62 * GROUP_FLOPS;
/// Instructions that a multiprocessor issues per clock, and bytes of its shared memory.
const ISSUED: f64 = 4.0;
const SHARED: f64 = 128.0;
/// Seconds between the ends of two launches at least.
const LAUNCH: f64 = 1.5e-6;

/// A kernel of a plan.
struct Row<'a> {
    step: &'a Step,
    launch: Launch,
    code: MachineCode,
    resources: KernelResources,
    bytes: u64,
}

/// The modelled times of a step, in seconds.
struct Times {
    tensor: f64,
    shared: f64,
    issue: f64,
    bytes: f64,
    all: f64,
}

impl Row<'_> {
    fn times(&self, multiprocessors: f64) -> Times {
        let Launch { grid, block, repeat, .. } = &self.launch;
        let launches = f64::from(repeat.unwrap_or(1));
        let warps = grid.iter().chain(block).map(|&extent| f64::from(extent)).product::<f64>() / 32.0 * launches;
        let blocks = grid.iter().map(|&extent| f64::from(extent)).product::<f64>() / multiprocessors;
        // Clocks of all multiprocessors that have a block in each turn.
        let (per_second, flops) = (multiprocessors * CLOCK * blocks / blocks.ceil(), self.step.flops as f64);
        let by_groups = 0 < self.code.all.hgmma;
        let (mut issued, mut moved) = (self.code.all.all as f64, self.code.all.shared_bytes as f64);
        let mut tensor = 0.0;
        if 0 < self.code.all.tensor_flops {
            tensor = flops / (per_second * if by_groups { GROUP_FLOPS } else { WARP_FLOPS });
            // Operations of a turn by each warp: four compute those of a group together.
            let turn = self.code.main_loop.map_or(0, |counts| counts.tensor_flops) as f64;
            let turn = if by_groups { turn / 4.0 } else { turn };
            if let Some(main_loop) = self.code.main_loop.filter(|_| 0.0 < turn) {
                let further = (flops / (turn * warps) - 1.0).max(0.0);
                issued += main_loop.all as f64 * further;
                moved += main_loop.shared_bytes as f64 * further;
            }
        }
        let issue = issued * warps / (per_second * ISSUED);
        let shared = moved * warps / (per_second * SHARED);
        let bytes = self.bytes as f64 / BANDWIDTH;
        let all = tensor.max(shared).max(issue).max(bytes) + LAUNCH * launches;
        Times { tensor, shared, issue, bytes, all }
    }

    /// Instructions of the main loop for 32 products of 16 x 8 x 16.
    fn of_32(&self) -> Option<f64> {
        let main_loop = self.code.main_loop.filter(|counts| 0 < counts.hmma)?;
        Some(main_loop.all as f64 * (32 * 4096) as f64 / main_loop.tensor_flops as f64)
    }
}

/// Prints the model of each network. Returns whether no function spills registers.
///
/// # Errors
/// A network, NVRTC or the disassembler fails.
pub(crate) fn run(settings: &Settings) -> Result<bool, String> {
    if settings.models.is_empty() {
        return Err("--sass needs a network: --sass resnet50".into());
    }
    let tool = find_disassembler()?;
    let device = DeviceDescription::parse(DEVICE).map_err(|error| error.to_string())?;
    let compiler = Compiler::find(&library_paths(&settings.data)).map_err(|error| error.to_string())?;
    let multiprocessors = f64::from(device.device.multi_processor_count);
    let mut passed = true;
    for model in &settings.models {
        for &batch in settings.batches.as_deref().unwrap_or(&[1]) {
            for &precision in &settings.precisions {
                let plan = planned(settings, model, batch, precision)?;
                let (text, is_clean) = report(plan, &compiler, &tool, multiprocessors)?;
                let head = format!("{model}, batch {batch}, {precision}, on {}\n", device.device.device_name);
                files::print(&(head + &text)).map_err(|error| format!("cannot write to standard output: {error}"))?;
                passed &= is_clean;
            }
        }
    }
    Ok(passed)
}

/// A plan of a network without machine code.
fn planned(settings: &Settings, model: &str, batch: usize, precision: Precision) -> Result<Plan, String> {
    let request =
        Request { model: model.into(), batch: Some(batch), data: settings.data.clone(), ..Request::default() };
    let model = source::load(&request).map_err(|error| error.to_string())?;
    let target = precision.configure(CudaTarget::named(TARGET).expect("it is a target"));
    let compiled = compiler::compile(model, &target, compiler::Goal::default(), |_, _| {});
    compiled.map(|compiled| compiled.plan).map_err(|error| error.to_string())
}

/// The table of a plan, and whether none of its functions has a stack frame or spills.
fn report(mut plan: Plan, compiler: &Compiler, tool: &Path, multiprocessors: f64) -> Result<(String, bool), String> {
    let source = assemble([&mut plan]);
    let arch = TARGET.trim_start_matches("cuda:");
    let (cubin, resources) = compiler.measure(&source.text, arch).map_err(|error| error.to_string())?;
    let functions = disassemble(tool, &cubin.bytes)?;
    let rows: Vec<Row> =
        plan.steps.iter().map(|step| row(step, &functions, &resources)).collect::<Result<_, String>>()?;
    let mut timed: Vec<(Times, &Row)> = rows.iter().map(|row| (row.times(multiprocessors), row)).collect();
    timed.sort_by(|(a, _), (b, _)| b.all.total_cmp(&a.all));
    let mut text = format!(
        "{:>8} {:>8} {:>8} {:>8} {:>8} {:>5} {:>5} {:>6} {:>6} {:>7}  {:<16} step\n",
        "us", "tensor", "shared", "issue", "bytes", "regs", "stack", "spill", "code", "of 32", "function"
    );
    let micro = |seconds: f64| format!("{:.1}", seconds * 1e6);
    for (times, row) in &timed {
        let KernelResources { registers, stack, spilled, .. } = row.resources;
        let of_32 = row.of_32().map_or(String::new(), |count| format!("{count:.0}"));
        // Other loops than the main one may run more often than once.
        let bound = if row.code.has_other_loops { ">" } else { "" };
        let _ = writeln!(
            text,
            "{:>8} {:>8} {:>8} {:>8} {:>8} {registers:>5} {stack:>5} {:>6} {:>6} {of_32:>7}  {:<16} {} {}",
            bound.to_string() + &micro(times.all),
            micro(times.tensor),
            micro(times.shared),
            micro(times.issue),
            micro(times.bytes),
            spilled[0] + spilled[1],
            row.code.all.all,
            row.launch.entry,
            row.step.scope,
            row.step.label,
        );
    }
    let sum: f64 = timed.iter().map(|(times, _)| times.all).sum();
    let spilling: BTreeSet<&str> = rows
        .iter()
        .filter(|row| row.resources.spilled != [0, 0] || 0 < row.code.all.local)
        .map(|row| &row.launch.entry[..])
        .collect();
    let spills = match spilling.is_empty() {
        true => "no function spills registers".into(),
        false => format!("registers are spilled by {}", spilling.iter().copied().collect::<Vec<_>>().join(", ")),
    };
    let (steps, arena) = (rows.len(), plan.arena.size());
    let _ = writeln!(text, "{:.3} ms in {steps} steps, arena {arena}; {spills}\n", sum * 1e3);
    Ok((text, spilling.is_empty()))
}

/// A step with its function.
fn row<'a>(
    step: &'a Step,
    functions: &BTreeMap<String, MachineCode>,
    resources: &[KernelResources],
) -> Result<Row<'a>, String> {
    let Some(StepCode::Launch(launch)) = StepCode::from_code(&step.code) else {
        return Err(format!("the step of {} calls a library", step.scope));
    };
    let missing = || format!("the machine code has no function {}", launch.entry);
    let code = *functions.get(&launch.entry).ok_or_else(missing)?;
    let resources = resources.iter().find(|own| own.name == launch.entry).cloned().ok_or_else(missing)?;
    let bytes = step.inputs.iter().chain(&step.outputs).map(|operand| operand.size.0).sum();
    Ok(Row { step, launch, code, resources, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine_code::Counts;

    /// Two warps execute three instructions each outside of the loop, and eight in each of eight turns.
    #[test]
    fn main_loop_runs_as_often_as_operations_require() {
        let main_loop = Counts { all: 8, hmma: 1, tensor_flops: 4096, ..Counts::default() };
        let all = Counts { all: 11, ..main_loop };
        let step = Step {
            scope: types::Scope::new("y"),
            kernel: "cuda_product".into(),
            label: String::new(),
            code: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            workspace: None,
            flops: 2 * 8 * 4096,
        };
        let launch =
            Launch { entry: "product_0".into(), grid: [1; 3], block: [64, 1, 1], shared: 0, repeat: None, waits: true };
        let code = MachineCode { all, main_loop: Some(main_loop), has_other_loops: false };
        let row = Row { step: &step, launch, code, resources: KernelResources::default(), bytes: 0 };
        let times = row.times(1.0);
        let instructions = 2.0 * (3.0 + 8.0 * 8.0);
        assert!((times.issue * CLOCK * ISSUED / instructions - 1.0).abs() < 1e-9, "{}", times.issue);
        assert!((times.all - times.tensor.max(times.issue) - LAUNCH).abs() < 1e-12);
        assert_eq!(row.of_32(), Some(256.0));
    }
}
