//! Runs of kernels on elements, and judges' comparisons.

use prestow_cpu::{Args, Isa, Kernel, Operand, Pool};

/// The families of instructions that this machine has.
pub(crate) fn families() -> impl Iterator<Item = Isa> {
    [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| *isa <= Isa::detect())
}

/// The output of a kernel that has one, over memory that holds NaN.
pub(crate) fn run(kernel: &Kernel, inputs: &[&[f32]], pool: &Pool) -> Vec<f32> {
    let sizes = kernel.sizes().expect("the case is consistent");
    let mut out = vec![f32::NAN; sizes.outputs[0] as usize / 4];
    let inputs: Vec<Operand> = inputs.iter().map(|input| Operand::Bytes(bytemuck::cast_slice(input))).collect();
    run_over(kernel, &inputs, &mut out, pool);
    out
}

/// Runs a kernel over an output that may hold an operand.
pub(crate) fn run_over(kernel: &Kernel, inputs: &[Operand], out: &mut [f32], pool: &Pool) {
    let sizes = kernel.sizes().expect("the case is consistent");
    for (ix, (input, &size)) in inputs.iter().zip(&sizes.inputs).enumerate() {
        match input {
            Operand::Bytes(bytes) => assert_eq!(bytes.len() as u64, size, "the size of input {ix}"),
            Operand::InPlace(_) => assert!(kernel.may_share(ix)),
        }
    }
    assert_eq!(inputs.len(), sizes.inputs.len());
    let mut workspace = vec![f32::NAN; sizes.workspace as usize / 4];
    let outputs = &mut [bytemuck::cast_slice_mut(out)];
    kernel.run(Args { inputs, outputs, workspace: bytemuck::cast_slice_mut(&mut workspace) }, pool);
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
