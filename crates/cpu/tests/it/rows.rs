//! Softmax and layer normalization against their definitions.

use prestow_cpu::{Chain, Instruction, Kernel, LayerNorm, Softmax, StorageType};
use types::Random;
use types::pointwise::{Binary, Unary};

use super::common::{assert_close, bits, numbers_of, pools, rounded, rounding, run, run_bytes};

fn softmax(kernel: &Softmax, x: &[f32]) -> Vec<f64> {
    let mut out = vec![0.0; x.len()];
    let at = |outer: usize, row: usize, lane: usize| (outer * kernel.axis + row) * kernel.inner + lane;
    for (outer, lane) in (0..kernel.outer).flat_map(|outer| (0..kernel.inner).map(move |lane| (outer, lane))) {
        let items = || (0..kernel.axis).map(|row| f64::from(x[at(outer, row, lane)]));
        let top = items().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = items().map(|item| (item - top).exp()).sum();
        for (row, item) in items().enumerate() {
            let value = if kernel.log { item - top - sum.ln() } else { (item - top).exp() / sum };
            out[at(outer, row, lane)] = value;
        }
    }
    out
}

#[test]
fn softmax_matches_its_definition() {
    let mut random = Random::new(31);
    for pools in pools([1, 2, 3]) {
        let isa = pools[0].isa();
        for (outer, axis, inner) in [
            (1, 1, 1),
            (3, 7, 1),
            (50, 2, 1),
            (37, 3, 1),
            (33, 4, 1),
            (29, 13, 1),
            (20, 20, 1),
            (200, 16, 1),
            (5, 1000, 1),
            (2, 33, 5),
            (3, 4, 16),
            (2, 21, 100),
            (4, 40, 2),
            (7, 9, 3),
            (2, 50, 5),
            (3, 1, 7),
            (3, 6, 8),
            (2, 5, 17),
            (0, 3, 3),
            (1, 40_000, 1),
        ] {
            for log in [false, true] {
                let kernel = Softmax { outer, axis, inner, log };
                let mut x: Vec<f32> = (0..outer * axis * inner).map(|_| random.uniform(-30.0, 30.0)).collect();
                for _ in 0..x.len() / 50 {
                    let at = random.below(x.len() as u64) as usize;
                    x[at] = [f32::NEG_INFINITY, f32::NAN, f32::INFINITY, -1e30][random.below(4) as usize];
                }
                let [one, two, three] = [0, 1, 2].map(|ix| run(&kernel.clone().into(), &[&x], &pools[ix]));
                assert!(bits(&one) == bits(&two) && bits(&one) == bits(&three), "{isa} {kernel:?}");
                let want = softmax(&kernel, &x);
                // A difference of up to 60 is rounded by 2e-6, which its exponential inherits, plus some units in the
                // last place. Results below the least normal number may be flushed to 0.
                let scale = |ix: usize| want[ix].abs() + if log { 10.0 } else { 1e-30 };
                assert_close(&one, &want, scale, 3e-6, &format!("{isa} {kernel:?}"));
            }
        }
    }
}

#[test]
fn softmax_propagates_nan() {
    let nan = f32::NAN;
    let nothing = f32::NEG_INFINITY;
    for [pool] in pools([1]) {
        for (axis, inner) in [(20, 1), (20, 3)] {
            let check = |x: Vec<f32>, want: Vec<f64>| {
                let each = |items: Vec<f32>| items.into_iter().flat_map(|item| vec![item; inner]).collect::<Vec<f32>>();
                let want: Vec<f64> = want.into_iter().flat_map(|item| vec![item; inner]).collect();
                let kernel = Softmax { outer: 1, axis, inner, log: false };
                let got = run(&kernel.into(), &[&each(x)], &pool);
                assert_close(&got, &want, |_| 1.0, 1e-6, "special");
            };
            check(vec![nothing; axis], vec![f64::NAN; axis]);
            check([vec![nan], vec![0.0; axis - 1]].concat(), vec![f64::NAN; axis]);
            check([vec![f32::INFINITY], vec![0.0; axis - 1]].concat(), vec![f64::NAN; axis]);
            check([vec![nothing; axis - 1], vec![3.0]].concat(), [vec![0.0; axis - 1], vec![1.0]].concat());
        }
    }
}

#[test]
fn layer_norm_matches_its_definition() {
    let mut random = Random::new(32);
    for pools in pools([1, 2, 3]) {
        let isa = pools[0].isa();
        for (rows, columns) in [
            (1, 1),
            (3, 7),
            (128, 384),
            (5, 64),
            (40, 100),
            (2, 20_000),
            (0, 4),
            (3, 0),
            (33, 2),
            (20, 3),
            (45, 4),
            (50, 13),
            (31, 16),
            (18, 17),
        ] {
            for (scale, bias) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut numbers = |count: usize, add: f32| -> Vec<f32> {
                    (0..count).map(|_| random.uniform(-1.0, 1.0) + add).collect()
                };
                let (x, factors, terms) = (numbers(rows * columns, 3.0), numbers(columns, 0.0), numbers(columns, 0.0));
                let stored = StorageType::ALL[(rows + columns) % 3];
                let x = rounded(stored, x);
                let kernel: Kernel = LayerNorm { rows, columns, epsilon: 1e-5, scale, bias, stored }.into();
                let mut inputs = vec![stored.bytes(&x)];
                inputs.extend(scale.then(|| StorageType::F32.bytes(&factors)));
                inputs.extend(bias.then(|| StorageType::F32.bytes(&terms)));
                let [one, two, three] = [0, 1, 2].map(|ix| run_bytes(&kernel, &inputs, None, f32::NAN, &pools[ix]));
                assert!(one == two && one == three);
                if !x.is_empty() {
                    assert_eq!(one, run_bytes(&kernel, &inputs, Some(0), f32::NAN, &pools[1]));
                }
                let one = numbers_of(stored, &one[0]);
                let mut want = Vec::new();
                for row in x.chunks(columns.max(1)) {
                    let items = || row.iter().map(|&item| f64::from(item));
                    let mean = items().sum::<f64>() / columns as f64;
                    let variance = items().map(|item| (item - mean).powi(2)).sum::<f64>() / columns as f64;
                    want.extend(items().enumerate().map(|(column, item)| {
                        let value = (item - mean) / (variance + f64::from(1e-5f32)).sqrt();
                        let value = if scale { value * f64::from(factors[column]) } else { value };
                        if bias { value + f64::from(terms[column]) } else { value }
                    }));
                }
                // The mean sums `columns` terms; in a row of one element the rounding error is divided by 0.003.
                let tolerance = if columns == 1 { 1e-3 } else { 4e-6 };
                let scale = |ix: usize| 1.0 + rounding(stored) / tolerance * want[ix].abs();
                assert_close(&one, &want, scale, tolerance, &format!("{isa} {rows} x {columns}"));
            }
        }
    }
}

#[test]
fn chains_widen_and_round_once() {
    let mut random = Random::new(33);
    let program = vec![
        Instruction::Binary(Binary::Add, 0, 1),
        Instruction::Unary(Unary::Silu, 3),
        Instruction::Binary(Binary::Mul, 4, 2),
    ];
    for pools in pools([1, 2]) {
        for case in 0..60 {
            let mut stored = || StorageType::ALL[random.below(3) as usize];
            let (inputs, result) = (vec![stored(), stored(), stored()], stored());
            let (rows, columns) = [(1, 1), (3, 7), (40, 1000), (2, 16), (5, 512)][case % 5];
            // A dense operand, one value per row, one value per column.
            let strides = vec![vec![columns, 1], vec![1, 0], vec![0, 1]];
            let program = if case % 4 == 0 { vec![] } else { program.clone() };
            let chain = Chain { shape: vec![rows, columns], strides, inputs: inputs.clone(), program, result };
            let mut numbers = |stored: StorageType, count: usize| {
                rounded(stored, (0..count).map(|_| random.uniform(-4.0, 4.0)).collect())
            };
            let items = [numbers(inputs[0], rows * columns), numbers(inputs[1], rows), numbers(inputs[2], columns)];
            let want: Vec<f64> = (0..rows * columns)
                .map(|at| {
                    let [a, b, c] = [items[0][at], items[1][at / columns], items[2][at % columns]].map(f64::from);
                    if chain.program.is_empty() { c } else { Unary::Silu.eval(a + b) * c }
                })
                .collect();
            let bytes: Vec<Vec<u8>> = items.iter().zip(&inputs).map(|(items, stored)| stored.bytes(items)).collect();
            let in_place = (inputs[0] == result).then_some(0);
            let kernel: Kernel = chain.into();
            assert_eq!(kernel.may_share(0), in_place.is_some());
            let [got, other] =
                [0, 1].map(|ix| run_bytes(&kernel, &bytes, in_place.filter(|_| ix == 1), 7.0, &pools[ix]));
            assert_eq!(got, other);
            let scale = |ix: usize| 1.0 + want[ix].abs() * (1.0 + rounding(result) / 1e-6);
            assert_close(&numbers_of(result, &got[0]), &want, scale, 1e-6, &format!("{kernel:?}"));
        }
    }
}

#[test]
fn chains_read_a_number_for_each_row() {
    let mut random = Random::new(35);
    // Rows of fewer elements than a tile, and of so few that all rows are one run.
    for (rows, columns) in [(40, 289), (3, 64), (130, 100), (70, 511), (33, 20)] {
        let program = vec![
            Instruction::Binary(Binary::Mul, 0, 1),
            Instruction::Binary(Binary::Add, 3, 2),
            Instruction::Unary(Unary::Relu, 4),
        ];
        for stored in StorageType::FRACTIONS {
            let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| random.uniform(-2.0, 2.0)).collect() };
            let (x, factors, terms) = (rounded(stored, numbers(rows * columns)), numbers(rows), numbers(rows));
            let strides = vec![vec![columns, 1], vec![1, 0], vec![1, 0]];
            let inputs = vec![stored, StorageType::F32, StorageType::F32];
            let program = program.clone();
            let kernel: Kernel = Chain { shape: vec![rows, columns], strides, inputs, program, result: stored }.into();
            let want: Vec<f64> = (0..rows * columns)
                .map(|at| {
                    let [x, factor, term] = [x[at], factors[at / columns], terms[at / columns]].map(f64::from);
                    (x * factor + term).max(0.0)
                })
                .collect();
            let bytes = [stored.bytes(&x), StorageType::F32.bytes(&factors), StorageType::F32.bytes(&terms)];
            for pools in pools([1, 3]) {
                let [one, three, place] = [(0, None), (1, None), (1, Some(0))]
                    .map(|(ix, in_place)| run_bytes(&kernel, &bytes, in_place, 7.0, &pools[ix]));
                assert!(one == three && one == place, "{kernel:?}");
                let scale = |ix: usize| 4.0 + want[ix].abs() * rounding(stored) / 1e-6;
                assert_close(&numbers_of(stored, &one[0]), &want, scale, 1e-6, &format!("{kernel:?}"));
            }
        }
    }
}

#[test]
fn sums_of_bytes_round_once() {
    let mut random = Random::new(34);
    for pools in pools([1, 2]) {
        for case in 0..40 {
            let stored = [StorageType::U8, StorageType::I8][case % 2];
            let (rows, columns) = [(1, 1), (3, 7), (40, 1000), (2, 16), (5, 513)][case / 2 % 5];
            let join = [Binary::Add, Binary::Mul][case / 4 % 2];
            let mut affine = |scale: f32| [random.uniform(0.01, scale), random.uniform(-3.0, 3.0)];
            let [first, second, last] = [affine(0.2), affine(0.2), affine(4.0)];
            let by = |[scale, shift]: [f32; 2], x| Instruction::Unary(Unary::Affine { scale, shift }, x);
            let operands = if case % 3 == 0 { [2, 3] } else { [3, 2] };
            let joined = Instruction::Binary(join, operands[0], operands[1]);
            let program = vec![by(first, 0), by(second, 1), joined, by(last, 4)];
            let strides = vec![vec![columns, 1]; 2];
            let chain = Chain { shape: vec![rows, columns], strides, inputs: vec![stored; 2], program, result: stored };
            let low = if stored == StorageType::U8 { 0.0 } else { -128.0 };
            let mut numbers =
                || -> Vec<f32> { (0..rows * columns).map(|_| (low + random.below(256) as f64) as f32).collect() };
            let items = [numbers(), numbers()];
            let scaled = |[scale, shift]: [f32; 2], x: f32| x * scale + shift;
            let want: Vec<f64> = (0..rows * columns)
                .map(|at| {
                    let [a, b] = [scaled(first, items[0][at]), scaled(second, items[1][at])];
                    let joined = if join == Binary::Add { a + b } else { a * b };
                    f64::from(scaled(last, joined).clamp(low as f32, low as f32 + 255.0).round_ties_even())
                })
                .collect();
            let bytes: Vec<Vec<u8>> = items.iter().map(|items| stored.bytes(items)).collect();
            let kernel: Kernel = chain.into();
            for in_place in [None, Some(0), Some(1)] {
                let got = run_bytes(&kernel, &bytes, in_place, 7.0, &pools[case % 2]);
                let got: Vec<f64> = numbers_of(stored, &got[0]).iter().map(|&item| f64::from(item)).collect();
                assert_eq!(got, want, "{kernel:?} {in_place:?}");
            }
        }
    }
}

#[test]
fn functions_of_many_bytes_are_those_of_each() {
    let affine = |scale: f32, shift: f32, x| Instruction::Unary(Unary::Affine { scale, shift }, x);
    for pools in pools([1, 3]) {
        for (case, function) in [Unary::Sigmoid, Unary::Silu, Unary::Abs, Unary::Neg].into_iter().enumerate() {
            let (from, to) = [
                (StorageType::U8, StorageType::U8),
                (StorageType::I8, StorageType::I8),
                (StorageType::U8, StorageType::I8),
                (StorageType::I8, StorageType::U8),
            ][case];
            let program = vec![affine(0.05, -3.0, 0), Instruction::Unary(function, 1), affine(90.0, 7.0, 2)];
            let chain = |shape: Vec<usize>| -> Kernel {
                let strides = vec![vec![shape[1], 1]];
                Chain { shape, strides, inputs: vec![from], program: program.clone(), result: to }.into()
            };
            // Too few for a table, so each is computed.
            let all: Vec<u8> = (0..=255).collect();
            let [each] = &run_bytes(&chain(vec![1, 256]), &[all], None, 7.0, &pools[0])[..] else { panic!() };
            for (rows, columns) in [(1, 4096), (3, 1500), (40, 1000), (5, 4097)] {
                let bytes: Vec<u8> = (0..rows * columns).map(|ix| (ix * 7 + ix / 256) as u8).collect();
                let want: Vec<u8> = bytes.iter().map(|&byte| each[usize::from(byte)]).collect();
                for (pool, in_place) in pools.iter().flat_map(|pool| [(pool, None), (pool, (from == to).then_some(0))])
                {
                    let got = run_bytes(&chain(vec![rows, columns]), std::slice::from_ref(&bytes), in_place, 7.0, pool);
                    assert_eq!(got[0], want, "{function:?} of {from:?} to {to:?}, {rows} x {columns}, {in_place:?}");
                }
            }
        }
    }
}
