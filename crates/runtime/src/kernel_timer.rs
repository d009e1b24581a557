//! [`KernelTimer`]: the time of a kernel on its own, for choices between kernels.

use std::time::Instant;

use cpu::{Args, InvalidKernel, Kernel, Operand, Pool};
use types::Random;

/// Runs alternate between copies of the weights with at least this total size, as weights of a network come from memory.
const COLD_BYTES: usize = 64 << 20;
/// Alignment of operands in plans.
const ALIGNMENT: usize = 64;

/// A kernel with operands of its own: fractions from -1 to 1.
pub struct KernelTimer<'a> {
    kernel: &'a Kernel,
    inputs: Vec<Aligned>,
    /// Copies of operand 1, the weights.
    weights: Vec<Aligned>,
    outputs: Vec<Aligned>,
    workspace: Aligned,
    runs: usize,
    least: f64,
}

impl<'a> KernelTimer<'a> {
    /// A timer that has not run.
    ///
    /// # Errors
    /// The kernel's parameters contradict each other.
    pub fn new(kernel: &'a Kernel) -> Result<KernelTimer<'a>, InvalidKernel> {
        let sizes = kernel.sizes()?;
        let mut random = Random::new(1);
        let inputs: Vec<Aligned> =
            sizes.inputs.iter().map(|&size| Aligned::new(size, || random.uniform(-1.0, 1.0))).collect();
        let copies = |weights: &Aligned| COLD_BYTES.div_ceil(weights.len.max(1)).clamp(2, 256);
        Ok(KernelTimer {
            kernel,
            weights: inputs.get(1).map_or_else(Vec::new, |weights| vec![weights.clone(); copies(weights)]),
            inputs,
            outputs: sizes.outputs.iter().map(|&size| Aligned::zeros(size as usize)).collect(),
            workspace: Aligned::zeros(sizes.workspace as usize),
            runs: 0,
            least: f64::INFINITY,
        })
    }

    /// Runs once.
    #[expect(clippy::disallowed_methods, reason = "the time of a kernel")]
    pub fn run(&mut self, pool: &Pool) {
        let weights = self.runs % self.weights.len().max(1);
        let operand = |ix: usize| if ix == 1 { self.weights[weights].bytes() } else { self.inputs[ix].bytes() };
        let inputs: Vec<Operand> = (0..self.inputs.len()).map(|ix| Operand::Bytes(operand(ix))).collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Aligned::bytes_mut).collect();
        let args = Args { inputs: &inputs, outputs: &mut outputs, workspace: self.workspace.bytes_mut() };
        let start = Instant::now();
        self.kernel.run(args, pool);
        let seconds = start.elapsed().as_secs_f64();
        // The first run touches memory for the first time.
        if 0 < self.runs {
            self.least = self.least.min(seconds);
        }
        self.runs += 1;
    }

    /// The shortest time of all runs but the first one, in seconds; infinite without them. Disturbances only add.
    pub fn seconds(&self) -> f64 {
        self.least
    }
}

/// Bytes at an aligned address.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: u64, mut fill: impl FnMut() -> f32) -> Aligned {
        let mut new = Aligned::zeros(len as usize);
        new.bytes_mut().chunks_exact_mut(4).for_each(|item| item.copy_from_slice(&fill().to_le_bytes()));
        new
    }

    fn zeros(len: usize) -> Aligned {
        let bytes: Vec<u8> = vec![0; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Aligned { bytes, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl Clone for Aligned {
    fn clone(&self) -> Aligned {
        let mut copy = Aligned::zeros(self.len);
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_a_time_after_two_runs() {
        let kernel = Kernel::from(cpu::Reorder {
            batch: 1,
            channels: 3,
            plane: 5,
            to_blocked: true,
            stored: cpu::StorageType::F32,
        });
        let (mut timer, pool) = (KernelTimer::new(&kernel).unwrap(), Pool::new(1));
        timer.run(&pool);
        assert!(timer.seconds().is_infinite());
        timer.run(&pool);
        assert!(timer.seconds().is_finite());
    }
}
