//! Runs of kernels on elements, between guard pages, and judges' comparisons.

use prestow_cpu::{Args, Isa, Kernel, Operand, Pool, StorageType};
use types::{bf16, f16};

use crate::guarded::{Guarded, Touch};

/// Pools with these numbers of threads, for every family of instructions that this machine has.
pub(crate) fn pools<const N: usize>(threads: [usize; N]) -> Vec<[Pool; N]> {
    Isa::available().map(|isa| threads.map(|threads| Pool::with_isa(threads, isa))).collect()
}

/// How many random cases are tried where it is usually so many: `PRESTOW_FUZZ=50 cargo test ...` for a long run, 0.2 where
/// the processor is emulated.
#[expect(clippy::disallowed_methods, reason = "a switch of the test run")]
pub(crate) fn cases(usual: usize) -> usize {
    let times: f64 = std::env::var("PRESTOW_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    (usual as f64 * times).ceil() as usize
}

/// The bits of elements, in which no number is equal to itself too.
pub(crate) fn bits(items: &[f32]) -> &[u32] {
    bytemuck::cast_slice(items)
}

/// The output of a kernel that has one, over memory that holds NaN.
pub(crate) fn run(kernel: &Kernel, inputs: &[&[f32]], pool: &Pool) -> Vec<f32> {
    run_over(kernel, inputs, None, f32::NAN, pool).swap_remove(0)
}

/// The outputs of a kernel over memory that holds `before`; the operand `in_place` lies where the first output goes. All
/// memory ends at a page that nobody may touch.
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

/// The numbers that an operand's bytes stand for.
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

/// What is left of numbers that are stored.
pub(crate) fn rounded(stored: StorageType, items: Vec<f32>) -> Vec<f32> {
    numbers_of(stored, &stored.bytes(&items))
}

/// How far a number may be from what it is rounded to, as a part of it.
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

/// `[batch, channels, plane]` in blocks of sixteen channels, whose pads are filled with `pad`.
pub(crate) fn blocked(rows: &[f32], channels: usize, plane: usize, pad: f32) -> Vec<f32> {
    let batch = rows.len().checked_div(channels * plane).unwrap_or(0);
    let mut out = vec![pad; batch * channels.next_multiple_of(16) * plane];
    for (at, &item) in rows.iter().enumerate() {
        out[blocked_place(at, channels, plane)] = item;
    }
    out
}

/// The same of bytes.
pub(crate) fn blocked_bytes(rows: &[u8], channels: usize, plane: usize, pad: u8) -> Vec<u8> {
    let numbers: Vec<f32> = rows.iter().map(|&byte| f32::from(byte)).collect();
    StorageType::U8.bytes(&blocked(&numbers, channels, plane, f32::from(pad)))
}

/// The channels of a blocked value, `[batch, channels, plane]`.
pub(crate) fn unblocked(items: &[f32], batch: usize, channels: usize, plane: usize) -> Vec<f32> {
    (0..batch * channels * plane).map(|at| items[blocked_place(at, channels, plane)]).collect()
}

fn blocked_place(at: usize, channels: usize, plane: usize) -> usize {
    let (image, channel, pixel) = (at / plane / channels, at / plane % channels, at % plane);
    ((image * channels.div_ceil(16) + channel / 16) * plane + pixel) * 16 + channel % 16
}

/// Asserts that results are the wanted ones to within `tolerance * scale`, where `scale` says how large the terms of each
/// are. What is no number has to be none; infinities have to be equal.
pub(crate) fn assert_close(got: &[f32], want: &[f64], scale: impl Fn(usize) -> f64, tolerance: f64, case: &str) {
    assert_eq!(got.len(), want.len(), "{case}");
    for (ix, (&got, &want)) in got.iter().zip(want).enumerate() {
        let got = f64::from(got);
        let near = (got - want).abs() <= tolerance * scale(ix);
        assert!(near || got == want || got.is_nan() && want.is_nan(), "{case}: {got} for {want} at {ix}");
    }
}
