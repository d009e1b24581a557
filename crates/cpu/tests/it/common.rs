//! Runs kernels on operands between guard pages, and compares results.

use prestow_cpu::{Args, Isa, Kernel, Operand, Pool, StorageType};
use types::{bf16, f16};

use super::guarded::{Guarded, Touch};

/// Pools with these numbers of threads, for every ISA of this machine.
pub(crate) fn pools<const N: usize>(threads: [usize; N]) -> Vec<[Pool; N]> {
    Isa::available().map(|isa| threads.map(|threads| Pool::with_isa(threads, isa))).collect()
}

/// Number of random cases, `usual` scaled by `PRESTOW_FUZZ`: 50 for a long run, 0.2 on an emulated processor.
#[expect(clippy::disallowed_methods, reason = "a switch of the test run")]
pub(crate) fn cases(usual: usize) -> usize {
    let times: f64 = std::env::var("PRESTOW_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    (usual as f64 * times).ceil() as usize
}

/// The bits of elements, with which NaN equals itself.
pub(crate) fn bits(items: &[f32]) -> &[u32] {
    bytemuck::cast_slice(items)
}

/// The output of a kernel that has one, over memory that holds NaN.
pub(crate) fn run(kernel: &Kernel, inputs: &[&[f32]], pool: &Pool) -> Vec<f32> {
    run_over(kernel, inputs, None, f32::NAN, pool).swap_remove(0)
}

/// The outputs of a kernel over memory that holds `before`; operand `in_place` shares its memory with the first output.
/// All memory ends at a guard page.
pub(crate) fn run_over(
    kernel: &Kernel,
    inputs: &[&[f32]],
    in_place: Option<usize>,
    before: f32,
    pool: &Pool,
) -> Vec<Vec<f32>> {
    let inputs: Vec<Vec<u8>> = inputs.iter().map(|input| StorageType::F32.bytes(input)).collect();
    let outputs = run_bytes(kernel, &inputs, in_place, before, pool);
    outputs.iter().map(|output| numbers_of(StorageType::F32, output)).collect()
}

/// The elements of an operand, widened to `f32`.
pub(crate) fn numbers_of(stored: StorageType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.chunks_exact(2).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    match stored {
        StorageType::F32 => {
            bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
        }
        StorageType::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        StorageType::Bf16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        StorageType::U8 => bytes.iter().map(|&byte| f32::from(byte)).collect(),
        StorageType::I8 => bytes.iter().map(|&byte| f32::from(byte.cast_signed())).collect(),
    }
}

/// Numbers rounded to a storage type and widened again.
pub(crate) fn rounded(stored: StorageType, items: Vec<f32>) -> Vec<f32> {
    numbers_of(stored, &stored.bytes(&items))
}

/// The relative rounding error of a storage type.
pub(crate) fn rounding(stored: StorageType) -> f64 {
    match stored {
        StorageType::F32 => 0.0,
        StorageType::F16 => 1.0 / 2048.0,
        StorageType::Bf16 => 1.0 / 256.0,
        StorageType::U8 | StorageType::I8 => 0.5,
    }
}

/// [`run_over`] with operands of any type.
pub(crate) fn run_bytes(
    kernel: &Kernel,
    inputs: &[Vec<u8>],
    in_place: Option<usize>,
    before: f32,
    pool: &Pool,
) -> Vec<Vec<u8>> {
    let sizes = kernel.sizes().expect("the case is consistent");
    let got: Vec<u64> = inputs.iter().map(|input| input.len() as u64).collect();
    assert_eq!(got, sizes.inputs[..], "{kernel:?}");
    let guarded: Vec<Guarded> = inputs.iter().map(|input| Guarded::of(input, Touch::Behind)).collect();
    let mut operands: Vec<Operand> = guarded.iter().map(|input| Operand::Bytes(input.bytes())).collect();
    let holds_before = |&size: &u64| {
        let mut bytes = Guarded::filled(size as usize, 0, Touch::Behind);
        let cells = bytes.bytes_mut().chunks_mut(4);
        cells.for_each(|cell| cell.copy_from_slice(&before.to_ne_bytes()[4 - cell.len()..]));
        bytes
    };
    let mut outputs: Vec<Guarded> = sizes.outputs.iter().map(holds_before).collect();
    let mut workspace = holds_before(&sizes.workspace);
    if let Some(ix) = in_place {
        assert!(kernel.may_share(ix), "{kernel:?}");
        outputs[0].bytes_mut().copy_from_slice(guarded[ix].bytes());
        operands[ix] = Operand::InPlace(0);
    }
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Guarded::bytes_mut).collect();
    kernel.run(Args { inputs: &operands, outputs: &mut slices, workspace: workspace.bytes_mut() }, pool);
    outputs.iter().map(|output| output.bytes().to_vec()).collect()
}

/// Converts `[batch, channels, plane]` to blocks of 16 channels; padding lanes hold `pad`.
pub(crate) fn blocked(rows: &[f32], channels: usize, plane: usize, pad: f32) -> Vec<f32> {
    let batch = rows.len().checked_div(channels * plane).unwrap_or(0);
    let mut out = vec![pad; batch * channels.next_multiple_of(16) * plane];
    for (at, &item) in rows.iter().enumerate() {
        out[blocked_place(at, channels, plane)] = item;
    }
    out
}

/// The same for bytes.
pub(crate) fn blocked_bytes(rows: &[u8], channels: usize, plane: usize, pad: u8) -> Vec<u8> {
    let numbers: Vec<f32> = rows.iter().map(|&byte| f32::from(byte)).collect();
    StorageType::U8.bytes(&blocked(&numbers, channels, plane, f32::from(pad)))
}

/// Converts a blocked value to `[batch, channels, plane]`.
pub(crate) fn unblocked(items: &[f32], batch: usize, channels: usize, plane: usize) -> Vec<f32> {
    (0..batch * channels * plane).map(|at| items[blocked_place(at, channels, plane)]).collect()
}

fn blocked_place(at: usize, channels: usize, plane: usize) -> usize {
    let (image, channel, pixel) = (at / plane / channels, at / plane % channels, at % plane);
    ((image * channels.div_ceil(16) + channel / 16) * plane + pixel) * 16 + channel % 16
}

/// Asserts that results differ by at most `tolerance * scale`, where `scale` is the magnitude of the terms of each. NaN
/// must be NaN; infinities must be equal.
pub(crate) fn assert_close(got: &[f32], want: &[f64], scale: impl Fn(usize) -> f64, tolerance: f64, case: &str) {
    assert_eq!(got.len(), want.len(), "{case}");
    for (ix, (&got, &want)) in got.iter().zip(want).enumerate() {
        let got = f64::from(got);
        let near = (got - want).abs() <= tolerance * scale(ix);
        assert!(near || got == want || got.is_nan() && want.is_nan(), "{case}: {got} for {want} at {ix}");
    }
}
