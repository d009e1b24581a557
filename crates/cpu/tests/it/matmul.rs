use prestow_cpu::{Epilogue, Kernel, MatMul, MatMulB, Operand, Pool, StorageType};
use smallvec::SmallVec;
use types::pointwise::Unary;
use types::{Random, WeightFormat};

use super::common::{assert_close, bits, cases, numbers_of, pools, rounded, rounding, run_bytes};

fn below(random: &mut Random, count: usize) -> usize {
    random.below(count as u64) as usize
}

fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[below(random, of.len())].clone()
}

fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.uniform(-1.0, 1.0)).collect()
}

fn plain(m: usize, k: usize, n: usize, b: MatMulB) -> MatMul {
    let epilogue = Epilogue::default();
    let (operands, result) = (StorageType::F32, StorageType::F32);
    MatMul {
        batch: vec![],
        a_strides: vec![],
        b_strides: vec![],
        m,
        k,
        n,
        b,
        operands,
        weights: None,
        zero_point: 0,
        result,
        epilogue,
    }
}

struct Case {
    kernel: MatMul,
    a: Vec<f32>,
    /// Row-major, as in the definition.
    b: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

fn case(random: &mut Random) -> Case {
    let extents = [0, 1, 1, 2, 3, 4, 5, 7, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 48, 49, 65, 100, 131];
    let [m, n] = [0, 1].map(|_| pick(random, &extents));
    let k: usize = pick(random, &[0, 1, 2, 3, 5, 16, 17, 31, 64, 255, 256, 257, 515, 600, 1024]);
    let form = pick(random, &[MatMulB::Packed, MatMulB::Dynamic, MatMulB::Transposed]);
    let batch: Vec<usize> = pick(random, &[vec![], vec![], vec![1], vec![3], vec![2, 2], vec![0], vec![2, 1, 3]]);
    let mut strides = |never: bool| -> Vec<usize> {
        let mut stride = 1;
        let strides = batch.iter().rev().map(|&extent| {
            let own = if never || below(random, 3) == 0 { 0 } else { stride };
            stride *= if own == 0 { 1 } else { extent };
            own
        });
        let mut strides: Vec<usize> = strides.collect();
        strides.reverse();
        strides
    };
    let (a_strides, b_strides) = (strides(false), strides(form == MatMulB::Packed));
    let nan = f32::NAN;
    let functions: [&[Unary]; 6] = [
        &[],
        &[],
        &[Unary::Relu],
        &[Unary::Clip { min: -0.5, max: 0.75 }],
        &[Unary::Clip { min: nan, max: 1.0 }, Unary::Neg],
        &[Unary::Abs, Unary::Relu],
    ];
    let activation: SmallVec<[Unary; 2]> = pick(random, &functions).iter().copied().collect();
    let [bias, residual] = [0, 1].map(|_| below(random, 2) == 0);
    let epilogue = Epilogue { bias, residual, activation, ..Epilogue::default() };
    let operands = match form {
        MatMulB::Packed if k.is_multiple_of(2) => pick(random, &StorageType::FRACTIONS),
        _ => StorageType::F32,
    };
    let result = if form == MatMulB::Packed { pick(random, &StorageType::FRACTIONS) } else { StorageType::F32 };
    let is_f32 = form == MatMulB::Packed && [operands, result] == [StorageType::F32; 2];
    let weights = if is_f32 { pick(random, &[None, Some(WeightFormat::Bf16), Some(WeightFormat::Int8)]) } else { None };
    let kernel =
        MatMul { batch, a_strides, b_strides, m, k, n, b: form, operands, weights, zero_point: 0, result, epilogue };
    let plain = MatMul {
        b: MatMulB::Dynamic,
        operands: StorageType::F32,
        weights: None,
        result: StorageType::F32,
        ..kernel.clone()
    };
    let sizes = Kernel::from(plain).sizes().unwrap();
    let [a, b] = [0, 1].map(|ix| sizes.inputs[ix] as usize / 4);
    let out = sizes.outputs[0] as usize / 4;
    let items = rounded(operands, numbers(random, if form == MatMulB::Packed { k * n } else { b }));
    Case {
        a: rounded(operands, numbers(random, a)),
        b: weights.map_or(items.clone(), |format| format.decoded(&items, n, |at| at % n)),
        bias: numbers(random, n),
        residual: rounded(result, numbers(random, out)),
        kernel,
    }
}

impl Case {
    /// The definition, and the sum of the absolute terms.
    fn judge(&self) -> Vec<(f64, f64)> {
        let MatMul { ref batch, m, k, n, ref epilogue, .. } = self.kernel;
        let matrix = |number: usize, strides: &[usize]| {
            let (mut rest, mut at) = (number, 0);
            for (&extent, &stride) in batch.iter().zip(strides).rev() {
                (at, rest) = (at + rest % extent * stride, rest / extent);
            }
            at
        };
        let mut results = Vec::new();
        for number in 0..batch.iter().product() {
            let a = matrix(number, &self.kernel.a_strides) * m * k;
            let b = matrix(number, &self.kernel.b_strides) * k * n;
            for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
                let mut sum = [0.0f64; 2];
                let mut add = |term: f64| sum = [sum[0] + term, sum[1] + term.abs()];
                for p in 0..k {
                    let b = match self.kernel.b {
                        MatMulB::Transposed => self.b[b + column * k + p],
                        _ => self.b[b + p * n + column],
                    };
                    add(f64::from(self.a[a + row * k + p]) * f64::from(b));
                }
                if epilogue.bias {
                    add(f64::from(self.bias[column]));
                }
                if epilogue.residual {
                    add(f64::from(self.residual[results.len()]));
                }
                let value = epilogue.activation.iter().fold(sum[0], |x, function| function.eval(x));
                results.push((value, sum[1] + 1e-30));
            }
        }
        results
    }

    fn run(&self, pool: &Pool) -> Vec<f32> {
        let MatMul { operands, result, ref epilogue, .. } = self.kernel;
        let b = match self.kernel.b {
            MatMulB::Packed => self.kernel.pack(&self.b),
            _ => operands.bytes(&self.b),
        };
        let mut inputs = vec![operands.bytes(&self.a), b];
        inputs.extend(epilogue.bias.then(|| StorageType::F32.bytes(&self.bias)));
        inputs.extend(epilogue.residual.then(|| result.bytes(&self.residual)));
        let kernel = self.kernel.clone().into();
        let out = run_bytes(&kernel, &inputs, None, f32::NAN, pool);
        if epilogue.residual && !out[0].is_empty() {
            let shared = run_bytes(&kernel, &inputs, Some(inputs.len() - 1), f32::NAN, pool);
            assert!(shared == out, "{:?}: in place", self.kernel);
        }
        numbers_of(result, &out[0])
    }
}

#[test]
fn matmul_matches_its_definition() {
    let mut random = Random::new(11);
    let pools = pools([1, 2, 3]);
    for _ in 0..cases(500) {
        let case = case(&mut random);
        let (want, scale): (Vec<f64>, Vec<f64>) = case.judge().into_iter().unzip();
        for pools in &pools {
            let [one, two, three] = pools.each_ref().map(|pool| case.run(pool));
            let name = format!("{} {:?}", pools[0].isa(), case.kernel);
            assert!(bits(&one) == bits(&two) && bits(&one) == bits(&three), "{name}: threads");
            // Sums of up to 1024 terms with a rounding per addition, and the rounding of the result.
            let scale = |ix: usize| scale[ix] + 1e6 * rounding(case.kernel.result) * want[ix].abs();
            assert_close(&one, &want, scale, 1e-6, &name);
        }
    }
}

#[test]
fn large_matmul_matches_its_definition() {
    let mut random = Random::new(12);
    let forms = [
        (MatMulB::Packed, None),
        (MatMulB::Packed, Some(WeightFormat::Bf16)),
        (MatMulB::Packed, Some(WeightFormat::Int8)),
        (MatMulB::Dynamic, None),
        (MatMulB::Transposed, None),
    ];
    let few_terms = [(22, 4, 2786), (97, 16, 1100)];
    let shapes = [(129, 384, 1536), (49, 512, 2048), (3, 5000, 1000), (1, 4099, 1000), (700, 70, 33)];
    for (m, k, n) in shapes.into_iter().chain(few_terms) {
        for (b, weights) in forms {
            let kernel = MatMul { weights, ..plain(m, k, n, b) };
            let (a, items) = (numbers(&mut random, m * k), numbers(&mut random, k * n));
            let items = weights.map_or(items.clone(), |format| format.decoded(&items, n, |at| at % n));
            let case = Case { kernel, a, b: items, bias: vec![], residual: vec![] };
            let (want, scale): (Vec<f64>, Vec<f64>) = case.judge().into_iter().unzip();
            let got = case.run(&Pool::new(2));
            assert_close(&got, &want, |ix| scale[ix], 1e-6, &format!("{:?}", case.kernel));
        }
    }
}

#[test]
fn matmul_keeps_nan_in_its_row_and_column() {
    let pools = pools([2]);
    for (b, m) in
        [MatMulB::Packed, MatMulB::Dynamic, MatMulB::Transposed].into_iter().flat_map(|b| [1, 3, 40].map(|m| (b, m)))
    {
        for [pool] in &pools {
            let (k, n) = (300, 50);
            let mut kernel = plain(m, k, n, b);
            kernel.epilogue.activation.push(Unary::Relu);
            let (mut a, mut items) = (vec![1.0; m * k], vec![1.0; k * n]);
            a[(m - 1) * k + 299] = f32::NAN;
            // Column 49 of row 0 of `b`, or the corresponding element of its transpose.
            items[if b == MatMulB::Transposed { 49 * k } else { 49 }] = f32::NEG_INFINITY;
            let packed = if b == MatMulB::Packed { kernel.pack(&items) } else { StorageType::F32.bytes(&items) };
            let out = run_bytes(&kernel.into(), &[StorageType::F32.bytes(&a), packed], None, f32::NAN, pool);
            let out = numbers_of(StorageType::F32, &out[0]);
            for (ix, got) in out.into_iter().enumerate() {
                let (row, column) = (ix / n, ix % n);
                match (row == m - 1, column == 49) {
                    (true, _) => assert!(got.is_nan(), "{} {b:?} {m}", pool.isa()),
                    (false, true) => assert_eq!(got, 0.0),
                    (false, false) => assert_eq!(got, 300.0),
                }
            }
        }
    }
}

#[test]
fn operands_of_wrong_size_are_refused() {
    let kernel: Kernel = plain(20, 300, 40, MatMulB::Packed).into();
    let sizes = kernel.sizes().unwrap();
    for short in 0..2 {
        let inputs: Vec<Vec<u8>> =
            (0..2).map(|ix| vec![0; sizes.inputs[ix] as usize - if ix == short { 64 } else { 0 }]).collect();
        let run = || {
            let mut out = vec![0u8; sizes.outputs[0] as usize];
            let inputs: Vec<Operand> = inputs.iter().map(|bytes| Operand::Bytes(bytes)).collect();
            let outputs = &mut [&mut out[..]];
            kernel.run(prestow_cpu::Args { inputs: &inputs, outputs, workspace: &mut [] }, &Pool::new(1));
        };
        assert!(std::panic::catch_unwind(run).is_err());
    }
}
