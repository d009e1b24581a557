//! Every kernel against a slow and obvious judge in `f64`, for one, two and three threads and every instruction set.

mod fuzz;
mod images;
mod matrices;
mod movers;
mod pointwise;
mod reductions;
mod speed;

use cpu::{Args, Isa, Kernel, Operand, Pool};
use prestow_cpu as cpu;
use types::Random;

/// An operand as a test gives it.
#[derive(Clone, Debug)]
pub(crate) enum Given {
    F32(Vec<f32>),
    Bytes(Vec<u8>),
    /// These `f32` are put into the output, and the input is in place.
    InPlace(Vec<f32>),
}

impl From<Vec<f32>> for Given {
    fn from(items: Vec<f32>) -> Given {
        Given::F32(items)
    }
}

/// Runs a kernel with operands of exactly the sizes it asks for.
pub(crate) fn run_on(pool: &Pool, kernel: &Kernel, inputs: &[Given]) -> Vec<u8> {
    let sizes = kernel.sizes().unwrap_or_else(|misfit| panic!("{misfit}: {kernel:?}"));
    // Words of 8 bytes, so that every element is aligned.
    let words = |bytes: u64| vec![0x7fc0_0001_7fc0_0001u64; (bytes as usize).div_ceil(8)];
    let mut out = words(sizes.outputs[0]);
    let out: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut out)[..sizes.outputs[0] as usize];
    let mut workspace = words(sizes.workspace);
    let workspace: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut workspace)[..sizes.workspace as usize];
    let copies: Vec<Vec<u64>> = inputs
        .iter()
        .map(|given| {
            let bytes: &[u8] = match given {
                Given::F32(items) | Given::InPlace(items) => bytemuck::cast_slice(items),
                Given::Bytes(bytes) => bytes,
            };
            let mut copy = words(bytes.len() as u64);
            bytemuck::cast_slice_mut::<u64, u8>(&mut copy)[..bytes.len()].copy_from_slice(bytes);
            copy
        })
        .collect();
    let operands: Vec<Operand> = inputs
        .iter()
        .zip(&copies)
        .map(|(given, copy)| {
            let bytes: &[u8] = bytemuck::cast_slice(copy);
            match given {
                Given::F32(items) => Operand::Bytes(&bytes[..items.len() * 4]),
                Given::Bytes(items) => Operand::Bytes(&bytes[..items.len()]),
                Given::InPlace(items) => {
                    out.copy_from_slice(&bytes[..items.len() * 4]);
                    Operand::InPlace(0)
                }
            }
        })
        .collect();
    kernel.run(Args { inputs: &operands, outputs: &mut [&mut *out], workspace }, pool);
    out.to_vec()
}

/// Pools of one, two and three threads for every instruction set that the machine has.
pub(crate) fn pools() -> Vec<[Pool; 3]> {
    [Isa::Portable, Isa::Avx2, Isa::Avx512]
        .into_iter()
        .filter(|&isa| isa <= Isa::detect())
        .map(|isa| [1, 2, 3].map(|threads| Pool::with_isa(threads, isa)))
        .collect()
}

/// Runs a kernel everywhere: equal bit for bit for every number of threads. One result per instruction set.
pub(crate) fn run_all(pools: &[[Pool; 3]], kernel: &Kernel, inputs: &[Given]) -> Vec<Vec<u8>> {
    pools
        .iter()
        .map(|[one, two, three]| {
            let result = run_on(one, kernel, inputs);
            assert!(result == run_on(two, kernel, inputs), "two threads differ: {kernel:?}");
            assert!(result == run_on(three, kernel, inputs), "three threads differ: {kernel:?}");
            result
        })
        .collect()
}

/// Runs a kernel everywhere and compares `f32` results with the judge's. `tolerance` is relative to 1 + |want|.
pub(crate) fn check(pools: &[[Pool; 3]], kernel: impl Into<Kernel>, inputs: &[Given], want: &[f64], tolerance: f64) {
    let kernel = kernel.into();
    for result in run_all(pools, &kernel, inputs) {
        let got: Vec<f32> = bytemuck::pod_collect_to_vec(&result);
        assert_eq!(got.len(), want.len(), "{kernel:?}");
        for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
            let same = got as f64 == want || (got.is_nan() && want.is_nan());
            let close = (f64::from(got) - want).abs() <= tolerance * (1.0 + want.abs());
            assert!(same || close, "element {index} is {got}, not {want}: {kernel:?}");
        }
    }
}

pub(crate) fn random_floats(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.uniform(-1.0, 1.0)).collect()
}

/// One of the given numbers.
pub(crate) fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}
