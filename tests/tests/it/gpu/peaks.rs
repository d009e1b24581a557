//! The kernels that measure a GPU's peaks, behind the shim: they do the operations that are counted.

use cuda::nvrtc::Compiler;
use lower::cuda::{COPY, COPY_BLOCK_BYTES, CudaTarget, PEAK_KERNELS, peak_kernels};

use crate::cuda::{SANITIZERS, compiler, run_job, shim};
use crate::executables::folder;

/// Runs one launch on two blocks of memory. Returns the final bytes of the second.
fn launched(program: &std::path::Path, entry: &str, grid: u64, first: &[u8], second: usize) -> Vec<u8> {
    let source = peak_kernels();
    let kernel = source.entries.iter().position(|other| other.name == entry).expect("it is there");
    let mut job = Vec::new();
    let number = |job: &mut Vec<u8>, number: u64| job.extend(number.to_le_bytes());
    [1, 2, first.len() as u64].iter().for_each(|&own| number(&mut job, own));
    job.extend(first);
    number(&mut job, second as u64);
    job.extend(vec![0xff; second]);
    for own in [1, kernel as u64, grid, 1, 1, 256, 1, 1, 2, 0, 0, 1, 0, 1, 1, 0, second as u64] {
        number(&mut job, own);
    }
    run_job(program, &job).unwrap_or_else(|said| panic!("{entry}: {said}"))
}

#[test]
fn peak_probes_compute_their_counted_operations() {
    let test = "gpu::peaks::peak_probes_compute_their_counted_operations";
    let Some(program) = shim(test, &folder("peak_kernels"), &peak_kernels(), &SANITIZERS) else { return };
    let bytes: Vec<u8> = (0..3 * COPY_BLOCK_BYTES).map(|ix| (ix * 7 % 251) as u8).collect();
    assert!(launched(&program, COPY, 3, &bytes, bytes.len()) == bytes, "it copies all of it");
    for kernel in PEAK_KERNELS {
        for rounds in [0u32, 1, 5] {
            let got = launched(&program, kernel.entry, 2, &rounds.to_le_bytes(), 2 * 256 * 4);
            let got: Vec<f32> = got.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            for (thread, &sum) in got.iter().enumerate() {
                let want = match kernel.sum {
                    Some(sum) => f64::from(sum * rounds),
                    // Eight sums that start at the lane's number plus their index and approach one.
                    None => (0..8)
                        .map(|ix| {
                            1.0 + ((thread % 32 + ix) as f64 - 1.0)
                                * 0.5f64.powi(20).mul_add(-1.0, 1.0).powi(rounds as i32)
                        })
                        .sum(),
                };
                assert!((f64::from(sum) - want).abs() <= 1e-6 * want.abs(), "{kernel:?} {rounds}: {sum} {want}");
            }
        }
    }
}

#[test]
fn peak_probes_compile_without_spills() {
    let Some(compiler): Option<Compiler> = compiler("gpu::peaks::peak_probes_compile_without_spills") else {
        return;
    };
    let source = peak_kernels();
    for arch in CudaTarget::ARCHITECTURES {
        let (_, resources) = compiler.measure(&source.text, arch).unwrap_or_else(|error| panic!("{arch}: {error}"));
        for entry in &source.entries {
            let own = resources.iter().find(|own| own.name == entry.name).expect("it is there");
            assert_eq!((own.spilled, own.stack), ([0, 0], 0), "{arch}: {own:?}");
        }
    }
}
