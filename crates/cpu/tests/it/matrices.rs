//! Matrix products.

use prestow_cpu::{Epilogue, MatMul, Right};
use types::Random;
use types::pointwise::Unary;

use crate::{Given, check, pick, pools, random_floats};

#[test]
fn products_of_random_shapes() {
    let (pools, mut random) = (pools(), Random::new(21));
    for _ in 0..300 {
        let batch: Vec<usize> = match random.below(4) {
            0 => vec![],
            1 => vec![pick(&mut random, &[0, 1, 3])],
            _ => vec![pick(&mut random, &[1, 2]), pick(&mut random, &[1, 3])],
        };
        let strides = |random: &mut Random| -> Vec<usize> {
            let mut stride = 1;
            let mut strides: Vec<usize> = batch
                .iter()
                .rev()
                .map(|&extent| {
                    let own = if random.below(3) == 0 { 0 } else { stride };
                    stride *= if own == 0 { 1 } else { extent };
                    own
                })
                .collect();
            strides.reverse();
            strides
        };
        let b = pick(&mut random, &[Right::Packed, Right::Dynamic]);
        let kernel = MatMul {
            a_batch_strides: strides(&mut random),
            b_batch_strides: if b == Right::Packed { vec![0; batch.len()] } else { strides(&mut random) },
            m: pick(&mut random, &[0, 1, 1, 2, 11, 12, 13, 40]),
            k: pick(&mut random, &[0, 1, 3, 17, 128]),
            n: pick(&mut random, &[1, 5, 31, 32, 33, 100, 0]),
            b,
            epilogue: Epilogue {
                bias: random.below(2) == 0,
                residual: random.below(2) == 0,
                activation: pick(&mut random, &[&[][..], &[Unary::Gelu]]).iter().copied().collect(),
            },
            batch: batch.clone(),
        };
        let matrices = |strides: &[usize]| -> usize {
            batch.iter().zip(strides).filter(|&(_, &stride)| stride != 0).map(|(&extent, _)| extent).product()
        };
        let MatMul { m, k, n, .. } = kernel;
        let a = random_floats(&mut random, matrices(&kernel.a_batch_strides) * m * k);
        let b = random_floats(&mut random, matrices(&kernel.b_batch_strides) * k * n);
        let total: usize = batch.iter().product();
        let mut inputs: Vec<Given> = vec![a.clone().into()];
        inputs.push(if kernel.b == Right::Packed { kernel.pack(&b).into() } else { b.clone().into() });
        let bias = random_floats(&mut random, n);
        let residual = random_floats(&mut random, total * m * n);
        if kernel.epilogue.bias {
            inputs.push(bias.clone().into());
        }
        if kernel.epilogue.residual {
            let items = residual.clone();
            inputs.push(if random.below(2) == 0 { Given::F32(items) } else { Given::InPlace(items) });
        }
        let mut want = Vec::new();
        for index in 0..total {
            let (mut rest, mut at) = (index, [0, 0]);
            for axis in (0..batch.len()).rev() {
                at[0] += rest % batch[axis] * kernel.a_batch_strides[axis];
                at[1] += rest % batch[axis] * kernel.b_batch_strides[axis];
                rest /= batch[axis];
            }
            for row in 0..m {
                for column in 0..n {
                    let mut sum: f64 = (0..k)
                        .map(|k_ix| {
                            f64::from(a[(at[0] * m + row) * k + k_ix]) * f64::from(b[(at[1] * k + k_ix) * n + column])
                        })
                        .sum();
                    if kernel.epilogue.bias {
                        sum += f64::from(bias[column]);
                    }
                    if kernel.epilogue.residual {
                        sum += f64::from(residual[want.len()]);
                    }
                    want.push(kernel.epilogue.activation.iter().fold(sum, |x, f| f.eval(x)));
                }
            }
        }
        // Sums of at most 128 products of numbers below 1.
        check(&pools, kernel, &inputs, &want, 1e-5);
    }
}

#[test]
fn right_sides_over_several_rounds() {
    let (pools, mut random) = (pools(), Random::new(22));
    let kernel = MatMul {
        batch: vec![5],
        a_batch_strides: vec![1],
        b_batch_strides: vec![1],
        m: 2,
        k: 700,
        n: 600,
        b: Right::Dynamic,
        epilogue: Epilogue::default(),
    };
    let a = random_floats(&mut random, 5 * 2 * 700);
    let b = random_floats(&mut random, 5 * 700 * 600);
    let mut want = vec![0.0f64; 5 * 2 * 600];
    for (at, want) in want.iter_mut().enumerate() {
        let (index, row, column) = (at / 1200, at / 600 % 2, at % 600);
        for k in 0..700 {
            *want += f64::from(a[(index * 2 + row) * 700 + k]) * f64::from(b[(index * 700 + k) * 600 + column]);
        }
    }
    check(&pools, kernel, &[a.into(), b.into()], &want, 3e-5);
}
