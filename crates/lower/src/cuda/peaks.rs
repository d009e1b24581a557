//! Kernels that measure one peak of a GPU each, as the roofline of plans.

use super::emit::{THREADS, Template};
use super::{Entry, Source};

/// A kernel of arithmetic on registers: its parameters are the number of rounds (`u32`), and an `f32` for each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakKernel {
    /// The dtype of the factors: `f32`, `tf32`, `f16` or `bf16`.
    pub numbers: &'static str,
    /// The function's name.
    pub entry: &'static str,
    /// Operations of a block in a round, a multiply-add counting as two.
    pub flops: u64,
    /// The result of each thread after one round, for tests; `None` if it is rounded.
    pub sum: Option<u32>,
}

/// The kernels, by dtype.
pub const PEAK_KERNELS: [PeakKernel; 4] = [
    PeakKernel { numbers: "f32", entry: "peak_f32", flops: THREADS as u64 * 8 * 2, sum: None },
    of_cores("tf32", "peak_tf32", 8),
    of_cores("f16", "peak_f16", 16),
    of_cores("bf16", "peak_bf16", 16),
];

/// Eight products of 16 x `terms` with `terms` x 8 a warp and round.
const fn of_cores(numbers: &'static str, entry: &'static str, terms: u32) -> PeakKernel {
    let warps = THREADS as u64 / 32;
    PeakKernel { numbers, entry, flops: warps * 8 * 16 * 8 * terms as u64 * 2, sum: Some(8 * 4 * terms) }
}

/// The name of the copy kernel; parameters: source, destination.
pub const COPY: &str = "peak_copy";
/// Bytes that a block of the copy kernel copies.
pub const COPY_BLOCK_BYTES: usize = THREADS as usize * 4 * 16;

/// The templates of the kernels.
const NEEDS: [Template; 3] = [Template::Base, Template::Product, Template::Tensor];

/// All kernels as one source.
pub fn peak_kernels() -> Source {
    let templates = Template::ALL.into_iter().filter(|(own, _)| NEEDS.contains(own));
    let mut text: String = templates.map(|(_, text)| format!("{text}\n")).collect();
    text.push_str(cuda_kernels::PEAK);
    let entry = |name: &str, parameters: [&str; 2]| Entry {
        name: name.into(),
        parameters: parameters.map(str::to_string).to_vec(),
    };
    let mut entries = vec![entry(COPY, ["const Line*", "Line*"])];
    entries.extend(PEAK_KERNELS.iter().map(|kernel| entry(kernel.entry, ["const unsigned*", "float*"])));
    Source { text, entries }
}
