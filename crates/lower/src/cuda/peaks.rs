//! Kernels that measure one peak of a GPU each, as the roofline of plans.

use super::emit::{THREADS, Template};
use super::{Entry, Source};

/// A kernel of arithmetic on registers: its parameters are the number of rounds (`u32`), and an `f32` for each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// The dtype of the factors: `f32`, `tf32`, `f16` or `bf16`.
    pub numbers: &'static str,
    /// The function's name.
    pub entry: &'static str,
    /// Operations of a block in a round, a multiply-add counting as two.
    pub flops: u64,
    /// The result of each thread after one round, for tests; `None` if it is rounded.
    pub sum: Option<u32>,
}

/// Those that there are.
pub const BURSTS: [Burst; 4] = [
    Burst { numbers: "f32", entry: "ceiling_f32", flops: THREADS as u64 * 8 * 2, sum: None },
    of_cores("tf32", "ceiling_tf32", 8),
    of_cores("f16", "ceiling_f16", 16),
    of_cores("bf16", "ceiling_bf16", 16),
];

/// Eight products of 16 x `terms` with `terms` x 8 a warp and round.
const fn of_cores(numbers: &'static str, entry: &'static str, terms: u32) -> Burst {
    let warps = THREADS as u64 / 32;
    Burst { numbers, entry, flops: warps * 8 * 16 * 8 * terms as u64 * 2, sum: Some(8 * 4 * terms) }
}

/// The function that copies, whose parameters are from where and to where.
pub const COPY: &str = "ceiling_copy";
/// The bytes that a block of it copies.
pub const COPIED: usize = THREADS as usize * 4 * 16;

/// What the kernels are made of.
const NEEDS: [Template; 3] = [Template::Base, Template::Product, Template::Tensor];

/// All of them as one source.
pub fn ceilings() -> Source {
    let templates = Template::ALL.into_iter().filter(|(own, _)| NEEDS.contains(own));
    let mut text: String = templates.map(|(_, text)| format!("{text}\n")).collect();
    text.push_str(cuda_kernels::PEAK);
    let entry = |name: &str, parameters: [&str; 2]| Entry {
        name: name.into(),
        parameters: parameters.map(str::to_string).to_vec(),
    };
    let mut entries = vec![entry(COPY, ["const Line*", "Line*"])];
    entries.extend(BURSTS.iter().map(|burst| entry(burst.entry, ["const unsigned*", "float*"])));
    Source { text, entries }
}
