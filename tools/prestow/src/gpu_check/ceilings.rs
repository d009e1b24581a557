//! What the GPU at hand does at most, measured: how many bytes it copies, and how many operations it does on numbers of each
//! kind. What networks reach is held against that.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use cuda::cublas::{Execution, Handle, Product};
use cuda::driver::{Call, Gpu, Memory, Module};
use cuda::nvrtc::Compiler;
use cuda::{Launch, Math, Number, Timer};
use lower::cuda::{BURSTS, Burst, COPIED, COPY, THREADS, ceilings};
use plan::Plan;
use serde_json::{Value as Json, json};
use types::{Bytes, DType};

use crate::arguments::{GpuCheck, Libraries, Numbers};
use crate::device::places;
use crate::tune_gpu::fill;

/// What is copied, where there is room for it twice: many times what caches hold.
const COPIED_MOST: usize = 1 << 30;
/// Of what is free, one part of so many is copied at most.
const PARTS: usize = 4;
/// Rounds of a burst: some milliseconds.
const ROUNDS: u32 = 1 << 14;
/// Blocks of a burst for each multiprocessor.
const BLOCKS: u32 = 8;
/// The extents of cuBLASLt's product.
const EXTENT: u32 = 8192;
/// Times of which the best counts, behind one that does not.
const TIMES: usize = 5;

/// The most that was seen.
pub(super) struct Ceilings {
    /// Bytes read and written in a second.
    bytes_per_s: f64,
    /// Operations in a second, by what is multiplied, of kernels of ours that do nothing else.
    bursts: BTreeMap<&'static str, f64>,
    /// The same of cuBLASLt's product of large matrices, where it was asked for.
    products: BTreeMap<&'static str, f64>,
}

impl Ceilings {
    /// Measures all of it.
    ///
    /// # Errors
    /// The compiler, the driver or cuBLASLt fails.
    pub(super) fn measure(gpu: &Arc<Gpu>, asked: &GpuCheck) -> Result<Ceilings, String> {
        let told = |error: cuda::driver::DriverError| error.to_string();
        let compiler = Compiler::find(&places(&asked.data)).map_err(|error| error.to_string())?;
        let cubin = compiler.compile(&ceilings().text, gpu.arch()).map_err(|error| error.to_string())?;
        let module = Arc::new(Module::load(gpu, &cubin.bytes).map_err(told)?);
        let (free, _) = gpu.memory().map_err(told)?;
        let copied = COPIED_MOST.min(free / PARTS) / COPIED * COPIED;
        let workspace = 32 << 20;
        let memory = Arc::new(Memory::new(gpu, 2 * copied + workspace).map_err(told)?);
        let timer = Timer::new(gpu).map_err(told)?;
        let best = |call: &Call| -> Result<f64, String> {
            let seconds = (0..=TIMES).map(|_| timer.seconds(|| call.launch()).map_err(told));
            let seconds: Vec<f64> = seconds.collect::<Result<_, String>>()?;
            // A clock that stands still is no reason to divide by zero.
            Ok(seconds[1..].iter().copied().fold(f64::INFINITY, f64::min).max(1e-9))
        };
        let call = |entry: &str, blocks: u32, places: &[usize]| {
            let launch = Launch { entry: entry.into(), grid: [blocks, 1, 1], block: [THREADS, 1, 1], turns: None };
            module.call(&launch, &memory, places).map(Call::Kernel).map_err(told)
        };
        let copy = best(&call(COPY, (copied / COPIED) as u32, &[0, copied])?)?;
        let bytes_per_s = 2.0 * copied as f64 / copy;

        let facts = gpu.facts().map_err(told)?;
        let blocks = BLOCKS * facts.device.multi_processor_count.max(1);
        memory.write(0, &ROUNDS.to_le_bytes()).map_err(told)?;
        let mut bursts = BTreeMap::new();
        for Burst { numbers, entry, flops, .. } in BURSTS {
            let seconds = best(&call(entry, blocks, &[0, 256])?)?;
            bursts.insert(numbers, f64::from(blocks) * f64::from(ROUNDS) * flops as f64 / seconds);
        }

        let mut products = BTreeMap::new();
        if asked.libraries.cublas.is_some() {
            let told_by_driver = told;
            let told = |error: cuda::cublas::CublasError| error.to_string();
            let handle = Handle::new(&places(&asked.data), gpu).map_err(told)?;
            for &numbers in &asked.dtypes {
                let product = product(numbers, asked.libraries, workspace as u64);
                let size = EXTENT as usize * EXTENT as usize * product.factors.size();
                if copied < 2 * size {
                    continue;
                }
                fill(&memory, 2 * size, numbers.dtype()).map_err(told_by_driver)?;
                let at = [0, size, copied];
                let own = Execution::new(&handle, &product, &memory, &at, Some(2 * copied)).map_err(told)?;
                let flops = 2.0 * f64::from(EXTENT).powi(3);
                products.insert(numbers.name(), flops / best(&Call::Cublas(own))?);
            }
        }
        Ok(Ceilings { bytes_per_s, bursts, products })
    }

    /// The most operations in a second on numbers of a kind.
    fn flops_per_s(&self, numbers: Numbers) -> f64 {
        let of = |all: &BTreeMap<&'static str, f64>| all.get(numbers.name()).copied().unwrap_or_default();
        of(&self.bursts).max(of(&self.products))
    }

    /// What a plan reaches in so many seconds: its part of both ceilings, and the part that a GPU would take which reached one
    /// of them in each step.
    pub(super) fn reached(&self, plan: &Plan, numbers: Numbers, seconds: f64) -> Json {
        let moved =
            |step: &plan::Step| -> Bytes { step.inputs.iter().chain(&step.outputs).map(|operand| operand.size).sum() };
        let bytes: Bytes = plan.steps.iter().map(moved).sum();
        let flops_per_s = self.flops_per_s(numbers);
        let least = |step: &plan::Step| (step.flops as f64 / flops_per_s).max(moved(step).0 as f64 / self.bytes_per_s);
        let least: f64 = plan.steps.iter().map(least).sum();
        json!({
            "moved_bytes": bytes.0,
            "gb_per_s": bytes.0 as f64 / seconds / 1e9,
            "of_bandwidth": bytes.0 as f64 / seconds / self.bytes_per_s,
            "of_flops": plan.flops as f64 / seconds / flops_per_s,
            "least_ms": 1e3 * least,
            "of_least": least / seconds,
        })
    }

    /// In words.
    pub(super) fn text(&self) -> String {
        let mut text = format!("at most {:.0} GB/s copied (read and written)", self.bytes_per_s / 1e9);
        for (numbers, flops) in &self.bursts {
            let _ = write!(text, ", {:.1} TFLOP/s of {numbers}", flops / 1e12);
        }
        for (numbers, flops) in &self.products {
            let _ = write!(text, ", {:.1} TFLOP/s of {numbers} in cuBLASLt's largest product", flops / 1e12);
        }
        text + "\n"
    }

    /// For machines.
    pub(super) fn json(&self) -> Json {
        json!({
            "bytes_per_s": self.bytes_per_s,
            "flops_per_s": self.bursts,
            "product_extent": EXTENT,
            "product_flops_per_s": self.products,
        })
    }
}

/// cuBLASLt's product of large matrices.
fn product(numbers: Numbers, libraries: Libraries, workspace: u64) -> Product {
    let number = match numbers.dtype() {
        DType::F16 => Number::F16,
        DType::Bf16 => Number::Bf16,
        _ => Number::F32,
    };
    let math = libraries.of(numbers).cublas.unwrap_or(Math::Strict);
    let (rows, columns, terms) = (EXTENT, EXTENT, EXTENT);
    let (left_step, right_step) = (0, 0);
    let (bias, residual, activation, algorithm) = (false, false, None, 0);
    let (factors, result, count) = (number, number, 1);
    Product {
        factors,
        result,
        math,
        count,
        rows,
        columns,
        terms,
        left_step,
        right_step,
        bias,
        residual,
        activation,
        workspace,
        algorithm,
    }
}
