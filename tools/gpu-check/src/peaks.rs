//! [`Peaks`] of the GPU at hand, measured by probes: bytes copied per second, operations per second in each precision.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use compiler::gpu::{Libraries, Precision, fill_operands, library_paths};
use cuda::cublas::{self, Execution, Handle, Product};
use cuda::driver::{DeviceCall, DeviceMemory, DriverError, Gpu, Module};
use cuda::nvrtc::Compiler;
use cuda::{FloatType, Launch, MathMode, Timer};
use lower::cuda::{COPY, COPY_BLOCK_BYTES, PEAK_KERNELS, PeakKernel, THREADS, peak_kernels};
use plan::{Plan, Step};
use types::{Bytes, DType};

use crate::arguments::Settings;
use crate::rows::{Peaks, Roofline};

/// Size of the copy: far beyond any cache.
const COPY_BYTES: usize = 1 << 30;
/// At most this fraction of free memory is copied.
const FREE_FRACTION: usize = 4;
/// Iterations of an arithmetic probe: some milliseconds.
const ITERATIONS: u32 = 1 << 14;
/// Blocks per multiprocessor of an arithmetic probe.
const BLOCKS: u32 = 8;
/// The extents of cuBLASLt's product.
const EXTENT: u32 = 8192;
/// Timed repeats, after one that is not counted. The best counts.
const REPEATS: usize = 5;
const WORKSPACE_BYTES: usize = 32 << 20;

/// Measures the peaks.
///
/// # Errors
/// NVRTC, the driver or cuBLASLt fails.
pub(crate) fn measure(gpu: &Arc<Gpu>, settings: &Settings) -> Result<Peaks, String> {
    let text = |error: DriverError| error.to_string();
    let compiler = Compiler::find(&library_paths(&settings.data)).map_err(|error| error.to_string())?;
    let cubin = compiler.compile(&peak_kernels().text, gpu.arch()).map_err(|error| error.to_string())?;
    let module = Arc::new(Module::load(gpu, &cubin.bytes).map_err(text)?);
    let (free, _) = gpu.memory().map_err(text)?;
    let copied = COPY_BYTES.min(free / FREE_FRACTION) / COPY_BLOCK_BYTES * COPY_BLOCK_BYTES;
    let memory = Arc::new(DeviceMemory::new(gpu, 2 * copied + WORKSPACE_BYTES).map_err(text)?);
    let timer = Timer::new(gpu).map_err(text)?;
    let best = |call: &DeviceCall| -> Result<f64, String> {
        let seconds = (0..=REPEATS).map(|_| timer.seconds(|| call.launch()).map_err(text));
        let seconds: Vec<f64> = seconds.collect::<Result<_, String>>()?;
        // A mock's clock may stand still; the divisor must not be 0.
        Ok(seconds[1..].iter().copied().fold(f64::INFINITY, f64::min).max(1e-9))
    };
    let call = |entry: &str, blocks: u32, offsets: &[usize]| {
        let launch = Launch {
            entry: entry.into(),
            grid: [blocks, 1, 1],
            block: [THREADS, 1, 1],
            shared: 0,
            repeat: None,
            waits: false,
        };
        module.call(&launch, &memory, offsets).map(DeviceCall::Kernel).map_err(text)
    };
    let copy = best(&call(COPY, (copied / COPY_BLOCK_BYTES) as u32, &[0, copied])?)?;
    let bytes_per_s = 2.0 * copied as f64 / copy;

    let description = gpu.describe().map_err(text)?;
    let blocks = BLOCKS * description.device.multi_processor_count.max(1);
    memory.write(0, &ITERATIONS.to_le_bytes()).map_err(text)?;
    let mut flops_per_s = BTreeMap::new();
    for PeakKernel { numbers, entry, flops, .. } in PEAK_KERNELS {
        let seconds = best(&call(entry, blocks, &[0, 256])?)?;
        flops_per_s.insert(numbers.to_string(), f64::from(blocks) * f64::from(ITERATIONS) * flops as f64 / seconds);
    }

    let mut product_flops_per_s = BTreeMap::new();
    if settings.libraries.cublas.is_some() {
        let cublas_text = |error: cublas::CublasError| error.to_string();
        let handle = Handle::new(&library_paths(&settings.data), gpu).map_err(cublas_text)?;
        for &precision in &settings.precisions {
            let product = product(precision, settings.libraries);
            let size = EXTENT as usize * EXTENT as usize * product.factors.size();
            if copied < 2 * size {
                continue;
            }
            fill_operands(&memory, 2 * size, precision.dtype()).map_err(text)?;
            let offsets = [0, size, copied];
            let own = Execution::new(&handle, &product, &memory, &offsets, Some(2 * copied)).map_err(cublas_text)?;
            let flops = 2.0 * f64::from(EXTENT).powi(3);
            product_flops_per_s.insert(precision.to_string(), flops / best(&DeviceCall::Cublas(own))?);
        }
    }
    Ok(Peaks { bytes_per_s, flops_per_s, product_extent: EXTENT, product_flops_per_s })
}

/// Compares a plan's time with the peaks.
pub(crate) fn roofline(peaks: &Peaks, plan: &Plan, precision: Precision, seconds: f64) -> Roofline {
    let moved = |step: &Step| -> Bytes { step.inputs.iter().chain(&step.outputs).map(|operand| operand.size).sum() };
    let bytes: Bytes = plan.steps.iter().map(moved).sum();
    let of = |all: &BTreeMap<String, f64>| all.get(precision.name()).copied().unwrap_or_default();
    let flops_per_s = of(&peaks.flops_per_s).max(of(&peaks.product_flops_per_s));
    let least = |step: &Step| (step.flops as f64 / flops_per_s).max(moved(step).0 as f64 / peaks.bytes_per_s);
    let least: f64 = plan.steps.iter().map(least).sum();
    Roofline {
        moved_bytes: bytes.0,
        gb_per_s: bytes.0 as f64 / seconds / 1e9,
        of_bandwidth: bytes.0 as f64 / seconds / peaks.bytes_per_s,
        of_flops: plan.flops as f64 / seconds / flops_per_s,
        roofline_ms: 1e3 * least,
        of_roofline: least / seconds,
    }
}

/// The peaks in one line.
pub(crate) fn text(peaks: &Peaks) -> String {
    let mut text = format!("peaks: {:.0} GB/s copied (read and written)", peaks.bytes_per_s / 1e9);
    for (precision, flops) in &peaks.flops_per_s {
        let _ = write!(text, ", {:.1} TFLOP/s in {precision}", flops / 1e12);
    }
    for (precision, flops) in &peaks.product_flops_per_s {
        let _ = write!(text, ", {:.1} TFLOP/s in {precision} in cuBLASLt's largest product", flops / 1e12);
    }
    text + "\n"
}

/// cuBLASLt's product of large square matrices.
fn product(precision: Precision, libraries: Libraries) -> Product {
    let number = match precision.dtype() {
        DType::F16 => FloatType::F16,
        DType::Bf16 => FloatType::Bf16,
        _ => FloatType::F32,
    };
    Product {
        factors: number,
        result: number,
        math: libraries.of(precision).cublas.unwrap_or(MathMode::Strict),
        count: 1,
        rows: EXTENT,
        columns: EXTENT,
        terms: EXTENT,
        left_step: 0,
        right_step: 0,
        bias: false,
        residual: false,
        activation: None,
        workspace: WORKSPACE_BYTES as u64,
        algorithm: 0,
    }
}
