//! [`FlopsProbe`]: the peak arithmetic rate of a processor's vector units, to which the rates of steps are compared.

use std::env::consts::ARCH;

use cpu::{Isa, Level, Pool};
use plan::Plan;

/// Threads that compute multiply-adds on registers and nothing else.
pub struct FlopsProbe {
    pool: Pool,
}

impl FlopsProbe {
    /// A probe with the ISA of a plan's target. `None` if the target is not this machine's processor.
    pub fn new(plan: &Plan, threads: usize) -> Option<FlopsProbe> {
        let level = Level::named(plan.target.split('+').next()?).filter(|level| level.arch == ARCH)?;
        Some(FlopsProbe { pool: Pool::with_isa(threads.max(1), Isa::detect().min(level.isa)) })
    }

    /// Computes on all threads; returns the number of operations, a multiply-add counting as two.
    pub fn run(&self, rounds: usize) -> u64 {
        cpu::peak_flops_probe(&self.pool, rounds)
    }
}
