//! [`StepsReport`]: time of a run by step, with roofline fractions.

use plan::{Operand, Place, Plan};
use serde::Serialize;
use types::Bytes;

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// The node's scope.
    pub scope: String,
    /// The kernel's name.
    pub kernel: String,
    /// A readable description of the kernel.
    pub label: String,
    /// Shortest time in milliseconds.
    pub ms: f64,
    /// Fraction of the total time, from 0 to 1.
    pub share: f64,
    /// Arithmetic operations of the direct algorithm, whatever the kernel uses; a multiply-add counts as two.
    pub flops: u64,
    /// Billions of operations per second.
    pub gflop_per_s: f64,
    /// Fraction of peak arithmetic, from 0 to 1; above 1 if the kernel needs fewer operations than the direct
    /// algorithm.
    pub of_peak: f64,
    /// Bytes of its operands in the arena.
    pub arena_bytes: u64,
    /// Bytes of its constants.
    pub constant_bytes: u64,
    /// Billions of bytes per second, arena and constants.
    pub gb_per_s: f64,
    /// Fraction of memory bandwidth, from 0 to 1; above 1 if operands are in caches.
    pub of_bandwidth: f64,
    /// The time that the step would take at peak arithmetic or at memory bandwidth, whichever is longer, as a fraction
    /// of its time: the larger of `of_peak` and `of_bandwidth`.
    pub of_bound: f64,
}

/// Steps below this fraction of their bound are listed as slow.
const FAR: f64 = 0.25;
/// The least fraction of the total time that matters.
const SHARE_MIN: f64 = 0.02;

/// Peak rates of the machine, measured along with the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Arithmetic operations per second of the vector units.
    pub flop_per_s: f64,
    /// Bytes per second of main memory.
    pub bytes_per_s: f64,
}

/// `of` as a fraction of `peak`; 0 if the peak is unknown.
fn part(of: f64, peak: f64) -> f64 {
    if 0.0 < peak { of / peak } else { 0.0 }
}

/// The output of `profile`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepsReport {
    /// The steps in order.
    pub steps: Vec<StepReport>,
    /// Total time in milliseconds.
    pub ms: f64,
    /// Peak arithmetic of all threads in billions of operations per second; 0 if unknown, as on a GPU.
    pub peak_gflop_per_s: f64,
    /// Bandwidth of a copy by all threads in billions of bytes per second, read and written.
    pub peak_gb_per_s: f64,
    /// Number of runs; times are the shortest per step.
    pub iters: usize,
    /// Threads that computed.
    pub threads: usize,
}

impl StepsReport {
    /// Creates a report from the shortest seconds of each step and the peak rates.
    pub fn new(plan: &Plan, seconds: &[f64], peaks: Peaks, iters: usize, threads: usize) -> StepsReport {
        let all: f64 = seconds.iter().sum();
        let steps = plan.steps.iter().zip(seconds).map(|(step, &seconds)| {
            let operands = || step.inputs.iter().chain(&step.outputs).chain(&step.workspace);
            let bytes = |of: fn(&Operand) -> bool| {
                operands().filter(|operand| of(operand)).map(|operand| operand.size).sum::<Bytes>().0
            };
            let arena_bytes = bytes(|operand| matches!(operand.place, Place::Buffer(_)));
            let constant_bytes = bytes(|operand| matches!(operand.place, Place::Constant(_)));
            let per_second = |count: u64| count as f64 / seconds.max(1e-9);
            let of_peak = part(per_second(step.flops), peaks.flop_per_s);
            let of_bandwidth = part(per_second(arena_bytes + constant_bytes), peaks.bytes_per_s);
            StepReport {
                scope: step.scope.to_string(),
                kernel: step.kernel.clone(),
                label: step.label.clone(),
                ms: seconds * 1e3,
                share: seconds / all.max(1e-9),
                flops: step.flops,
                gflop_per_s: per_second(step.flops) / 1e9,
                of_peak,
                arena_bytes,
                constant_bytes,
                gb_per_s: per_second(arena_bytes + constant_bytes) / 1e9,
                of_bandwidth,
                of_bound: of_peak.max(of_bandwidth),
            }
        });
        StepsReport {
            steps: steps.collect(),
            ms: all * 1e3,
            peak_gflop_per_s: peaks.flop_per_s / 1e9,
            peak_gb_per_s: peaks.bytes_per_s / 1e9,
            iters,
            threads,
        }
    }

    /// Steps below 25 % of their bound that take over 2 % of the time, the one furthest from its bound first. None on a
    /// device whose peak rates are unknown.
    pub fn below_peak(&self) -> Vec<&StepReport> {
        let is_known = 0.0 < self.peak_gflop_per_s || 0.0 < self.peak_gb_per_s;
        let is_far = |step: &&StepReport| is_known && step.of_bound < FAR && SHARE_MIN < step.share;
        let mut far: Vec<&StepReport> = self.steps.iter().filter(is_far).collect();
        far.sort_by(|a, b| a.of_bound.total_cmp(&b.of_bound));
        far
    }

    /// A table of [`StepsReport::below_peak`].
    pub fn below_peak_text(&self) -> String {
        let far = self.below_peak();
        let mut text = format!("{:>6} {:>9} {:>6}  {:<17} step\n", "bound", "ms", "share", "kernel");
        for step in &far {
            text.push_str(&format!(
                "{:5.1}% {:9.4} {:5.1}%  {:<17} {}  {}\n",
                100.0 * step.of_bound,
                step.ms,
                100.0 * step.share,
                step.kernel,
                step.scope,
                step.label
            ));
        }
        text.push_str(&format!(
            "{} of {} steps below {:.0} % of their bound and above {:.0} % of {:.4} ms, {} threads: {:.1} GFLOP/s, memory moves {:.1} GB/s\n",
            far.len(),
            self.steps.len(),
            100.0 * FAR,
            100.0 * SHARE_MIN,
            self.ms,
            self.threads,
            self.peak_gflop_per_s,
            self.peak_gb_per_s
        ));
        text
    }

    /// Tables of the slowest steps and of the sum of each kernel. Columns of unknown peak rates are left out.
    pub fn text(&self, slowest: usize) -> String {
        let [arithmetic, bandwidth] = [self.peak_gflop_per_s, self.peak_gb_per_s].map(|peak| 0.0 < peak);
        let column = |is_known: bool, text: String| if is_known { text } else { String::new() };
        let percent = |is_known: bool, part: f64| column(is_known, format!(" {:5.0}%", 100.0 * part));
        let heads = [arithmetic, bandwidth].map(|is_known| column(is_known, format!(" {:>6}", "peak")));
        let mut text = format!(
            "{:>9} {:>6} {:>9}{} {:>9} {:>7}{}  {:>5} {:<17} step\n",
            "ms", "share", "GFLOP/s", heads[0], "MiB", "GB/s", heads[1], "at", "kernel"
        );
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        let mut order: Vec<(usize, &StepReport)> = self.steps.iter().enumerate().collect();
        order.sort_by(|a, b| b.1.ms.total_cmp(&a.1.ms).then(a.0.cmp(&b.0)));
        for (at, step) in order.iter().take(slowest) {
            text.push_str(&format!(
                "{:9.4} {:5.1}% {:9.1}{} {:9.2} {:7.1}{}  {at:5} {:<17} {}  {}\n",
                step.ms,
                100.0 * step.share,
                step.gflop_per_s,
                percent(arithmetic, step.of_peak),
                mib(step.arena_bytes + step.constant_bytes),
                step.gb_per_s,
                percent(bandwidth, step.of_bandwidth),
                step.kernel,
                step.scope,
                step.label
            ));
        }
        if slowest < order.len() {
            let rest = &order[slowest..];
            let ms: f64 = rest.iter().map(|(_, step)| step.ms).sum();
            let share = 100.0 * ms / self.ms.max(1e-9);
            text.push_str(&format!("{ms:9.4} {share:5.1}%  in {} faster steps; --top K shows more\n", rest.len()));
        }
        text.push('\n');
        for (kernel, ms, flops) in self.kernels() {
            let gflop_per_s = flops as f64 / 1e6 / ms.max(1e-9);
            text.push_str(&format!(
                "{ms:9.4} {:5.1}% {gflop_per_s:9.1}{}  {kernel}\n",
                100.0 * ms / self.ms.max(1e-9),
                percent(arithmetic, part(gflop_per_s, self.peak_gflop_per_s))
            ));
        }
        let flops: u64 = self.steps.iter().map(|step| step.flops).sum();
        let runs =
            format!("{:9.4} ms in {} steps, the shortest of {} runs each", self.ms, self.steps.len(), self.iters);
        let rate = format!("{:.1}", flops as f64 / 1e6 / self.ms.max(1e-9));
        // A device without known peaks has no threads either.
        text.push_str(&match arithmetic || bandwidth {
            true => format!(
                "{runs}, {} threads: {rate} of {:.1} GFLOP/s, memory moves {:.1} GB/s\n",
                self.threads, self.peak_gflop_per_s, self.peak_gb_per_s
            ),
            false => format!("{runs}: {rate} GFLOP/s\n"),
        });
        text
    }

    /// Name, milliseconds and operations of each kernel, most time first.
    fn kernels(&self) -> Vec<(&str, f64, u64)> {
        let mut kernels: Vec<(&str, f64, u64)> = Vec::new();
        for step in &self.steps {
            match kernels.iter_mut().find(|(name, ..)| *name == step.kernel) {
                Some((_, ms, flops)) => {
                    *ms += step.ms;
                    *flops += step.flops;
                }
                None => kernels.push((&step.kernel, step.ms, step.flops)),
            }
        }
        kernels.sort_by(|a, b| b.1.total_cmp(&a.1));
        kernels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{BufferIx, ConstantIx, Step};
    use types::Scope;

    #[test]
    fn rates_are_per_second() {
        let operand = |place: Place, size: u64| Operand { place, offset: Bytes(0), size: Bytes(size) };
        let step = Step {
            scope: Scope::new("conv1"),
            kernel: "conv".into(),
            label: "3x3".into(),
            code: Vec::new(),
            inputs: vec![operand(Place::Buffer(BufferIx(0)), 1000), operand(Place::Constant(ConstantIx(0)), 500)],
            outputs: vec![operand(Place::Buffer(BufferIx(1)), 500)],
            workspace: None,
            flops: 4_000_000,
        };
        let plan = Plan { steps: vec![step.clone(), Step { flops: 0, ..step }], ..Plan::default() };
        let report = StepsReport::new(&plan, &[1e-3, 3e-3], Peaks { flop_per_s: 8e9, bytes_per_s: 4e6 }, 5, 2);
        let first = &report.steps[0];
        assert_eq!((first.arena_bytes, first.constant_bytes), (1500, 500));
        assert!((first.gflop_per_s - 4.0).abs() < 1e-9 && (first.of_peak - 0.5).abs() < 1e-9);
        assert!((first.share - 0.25).abs() < 1e-9 && (first.gb_per_s - 2e-3).abs() < 1e-9);
        assert!((first.of_bandwidth - 0.5).abs() < 1e-9);
        let slow = StepsReport::new(&plan, &[1e-3, 3e-3], Peaks { flop_per_s: 4e10, bytes_per_s: 4e7 }, 5, 2);
        let far: Vec<f64> = slow.below_peak().iter().map(|step| step.of_bound).collect();
        assert!(far.len() == 2 && (far[0] - 2e6 / 1.2e8).abs() < 1e-9 && (far[1] - 0.1).abs() < 1e-9, "{far:?}");
        assert!(report.below_peak().iter().all(|step| step.flops == 0), "half of peak is not far");
        assert!(slow.below_peak_text().contains("2 of 2 steps below 25 % of their bound"));
        let text = report.text(1);
        assert!(text.contains(" peak") && text.contains("2 threads: 1.0 of 8.0 GFLOP/s"), "{text}");
        let text = StepsReport::new(&plan, &[1e-3, 3e-3], Peaks { flop_per_s: 0.0, bytes_per_s: 0.0 }, 5, 1).text(1);
        let unknown = ["peak", "%  conv", "of 0.0", "threads"];
        assert!(unknown.iter().all(|word| !text.contains(word)) && text.ends_with("each: 1.0 GFLOP/s\n"), "{text}");
        let text = report.text(1);
        assert!(text.contains("conv1  3x3") && text.contains("4.0000 ms in 2 steps") && text.contains("1 faster"));
    }
}
