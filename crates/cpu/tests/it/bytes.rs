//! Int8 products: sums are exact, and their conversion matches the definition, on every ISA.

use prestow_cpu::{
    ConvAlgorithm, ConvBlocked, DepthwiseBlocked, Epilogue, ImageLayout, Kernel, MatMul, MatMulB, Pool2dKind,
    PoolBlocked, StorageType, Window, groups_of_blocks,
};
use types::Random;
use types::pointwise::{QuantizedSum, Unary};

use super::common::{blocked, blocked_bytes, cases, numbers_of, pools, run_bytes, unblocked};

fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize].clone()
}

/// Random bytes, or only the least and the greatest, whose sums overflow types that are too narrow.
fn bytes(random: &mut Random, count: usize) -> Vec<u8> {
    let extreme = random.below(4) == 0;
    (0..count).map(|_| if extreme { 255 * random.below(2) as u8 } else { random.bits() as u8 }).collect()
}

fn signed(bytes: Vec<u8>) -> Vec<f32> {
    bytes.into_iter().map(|byte| f32::from(byte.cast_signed())).collect()
}

fn epilogue(random: &mut Random) -> Epilogue {
    let functions: [&[Unary]; 5] = [
        &[],
        &[Unary::Relu],
        &[Unary::Clip { min: -3.0, max: 100.5 }],
        &[Unary::HardSwish, Unary::Affine { scale: 2.0, shift: 7.0 }],
        &[Unary::Clip { min: -20.0, max: 30.0 }, Unary::Silu],
    ];
    let activation = pick(random, &functions).iter().copied().collect();
    Epilogue { scale: true, bias: random.below(2) == 0, activation, ..Epilogue::default() }
}

/// Scales that map sums of `terms` terms to about a hundred, and biases.
fn vectors(random: &mut Random, channels: usize, terms: usize) -> [Vec<f32>; 2] {
    let scale = 100.0 / (5400.0 * (terms.max(1) as f32).sqrt());
    let scales = (0..channels).map(|_| scale * random.uniform(0.5, 1.5)).collect();
    [scales, (0..channels).map(|_| random.uniform(-20.0, 60.0)).collect()]
}

/// The conversion of a sum, in `f64`.
fn finished(sum: i64, scale: f32, bias: Option<f32>, epilogue: &Epilogue) -> f64 {
    let number = sum as f64 * f64::from(scale) + bias.map_or(0.0, f64::from);
    epilogue.activation.iter().fold(number, |number, function| function.eval(number))
}

/// The least and the greatest number that a type represents.
fn limits(stored: StorageType) -> [f64; 2] {
    match stored {
        StorageType::U8 => [0.0, 255.0],
        StorageType::I8 => [-128.0, 127.0],
        _ => [f64::NEG_INFINITY, f64::INFINITY],
    }
}

/// Asserts that results are the nearest ones that their type can represent.
fn assert_stored(got: &[f32], want: &[f64], result: StorageType, case: &str) {
    assert_eq!(got.len(), want.len(), "{case}");
    let limits = limits(result);
    for (ix, (&got, &want)) in got.iter().zip(want).enumerate() {
        let want = want.clamp(limits[0], limits[1]);
        let near = match result {
            // Half a step, and the rounding of `f32` before it.
            StorageType::U8 | StorageType::I8 => 0.5 + 1e-3,
            StorageType::F32 => 1e-5 * want.abs().max(100.0),
            // Half a step, and 1e-4 of functions before it.
            StorageType::F16 => want.abs().max(1.0) * (1.0 / 2048.0 + 1.2e-4),
            StorageType::Bf16 => want.abs().max(1.0) * (1.0 / 256.0 + 1.2e-4),
        };
        assert!((f64::from(got) - want).abs() <= near, "{case}, {ix}: {got} for {want}");
    }
}

#[test]
fn int8_matmul_is_exact() {
    let mut random = Random::new(31);
    for _ in 0..cases(if cfg!(debug_assertions) { 60 } else { 400 }) {
        let [m, n] = [0, 1].map(|_| pick(&mut random, &[0, 1, 2, 5, 14, 15, 16, 17, 31, 32, 33, 48, 65, 100]));
        let k: usize = pick(&mut random, &[0, 4, 8, 12, 60, 64, 68, 256, 388, 1024, 2052]);
        let bare = random.below(4) == 0;
        let result = if bare { StorageType::F32 } else { pick(&mut random, &StorageType::ALL) };
        let kernel = MatMul {
            batch: vec![],
            a_strides: vec![],
            b_strides: vec![],
            m,
            k,
            n,
            b: MatMulB::Packed,
            operands: StorageType::U8,
            weights: None,
            zero_point: pick(&mut random, &[0, 0, 1, 128, 255, 77]),
            result,
            epilogue: if bare { Epilogue::default() } else { epilogue(&mut random) },
        };
        let a = bytes(&mut random, m * k);
        let b = signed(bytes(&mut random, k * n));
        let [scale, bias] = vectors(&mut random, n, k);
        let biased = kernel.epilogue.bias;
        let mut inputs = vec![a.clone(), kernel.pack(&b)];
        inputs.extend((!bare).then(|| StorageType::F32.bytes(&scale)));
        inputs.extend(biased.then(|| StorageType::F32.bytes(&bias)));
        let sum = |row: usize, column: usize| -> i64 {
            let term = |p: usize| (i64::from(a[row * k + p]) - i64::from(kernel.zero_point)) * b[p * n + column] as i64;
            (0..k).map(term).sum()
        };
        let cells = (0..m).flat_map(|row| (0..n).map(move |column| (row, column)));
        let sums: Vec<i64> = cells.map(|(row, column)| sum(row, column)).collect();
        let case = format!("{kernel:?}");
        for [one, three] in pools([1, 3]) {
            let run = |pool| run_bytes(&Kernel::from(kernel.clone()), &inputs, None, f32::NAN, pool).swap_remove(0);
            let got = run(&one);
            assert_eq!(got, run(&three), "{case}");
            if bare {
                let got: Vec<i64> =
                    got.chunks_exact(4).map(|c| i32::from_ne_bytes([c[0], c[1], c[2], c[3]]).into()).collect();
                assert_eq!(got, sums, "{case}");
                continue;
            }
            let want = |at: usize| finished(sums[at], scale[at % n], biased.then(|| bias[at % n]), &kernel.epilogue);
            let want: Vec<f64> = (0..m * n).map(want).collect();
            assert_stored(&numbers_of(result, &got), &want, result, &case);
        }
    }
}

#[test]
fn int8_convolution_is_exact() {
    let mut random = Random::new(32);
    for _ in 0..cases(if cfg!(debug_assertions) { 40 } else { 250 }) {
        let groups = pick(&mut random, &[1, 1, 1, 2, 3, 8]);
        let is_blocked = 1 < groups || random.below(4) != 0;
        let [ins, outs] = match groups {
            1 if !is_blocked => [pick(&mut random, &[1, 2, 3, 3, 5, 17]), pick(&mut random, &[7, 16, 40, 64])],
            1 => [pick(&mut random, &[4, 8, 12, 16, 20, 32, 48, 64]), pick(&mut random, &[1, 7, 16, 24, 32, 40, 64])],
            _ => [pick(&mut random, &[4, 6, 8, 16, 24, 32]), pick(&mut random, &[8, 16, 24, 48])],
        };
        let mut two = |of: &[usize]| [pick(&mut random, of), pick(&mut random, of)];
        let kernel = two(&[1, 1, 2, 3, 3, 5]);
        let (stride, dilation) = (two(&[1, 1, 2]), two(&[1, 1, 2]));
        let pad = two(&[0, 0, 1, 2]);
        let input = two(&[5, 9, 14, 17]).map(|extent| extent + 4);
        let output = [0, 1]
            .map(|axis| (input[axis] + 2 * pad[axis] - (kernel[axis] - 1) * dilation[axis] - 1) / stride[axis] + 1);
        let window = Window { input, output, kernel, stride, dilation, pad };
        let conv = ConvBlocked {
            batch: pick(&mut random, &[1, 1, 3]),
            in_channels: groups * ins,
            out_channels: groups * outs,
            groups,
            joined: groups_of_blocks(groups, groups * ins, groups * outs),
            window,
            layout: if is_blocked { ImageLayout::Blocked } else { ImageLayout::RowMajor },
            algorithm: match !is_blocked || (groups == 1 && random.below(2) == 0) {
                true => ConvAlgorithm::Packed,
                false => ConvAlgorithm::InPlace,
            },
            operands: StorageType::U8,
            weights: None,
            zero_point: pick(&mut random, &[0, 0, 1, 128, 255, 77]),
            result: pick(&mut random, &StorageType::ALL),
            epilogue: epilogue(&mut random),
        };
        let conv = if random.below(3) == 0 { with_quantized_sum(&mut random, conv) } else { conv };
        let (in_plane, out_plane) = (input[0] * input[1], output[0] * output[1]);
        let x = bytes(&mut random, conv.batch * conv.in_channels * in_plane);
        let weights = signed(bytes(&mut random, conv.out_channels * ins * kernel[0] * kernel[1]));
        let [scale, bias] = vectors(&mut random, conv.out_channels, ins * kernel[0] * kernel[1]);
        let lanes = |vector: &[f32]| {
            let mut lanes = vector.to_vec();
            lanes.resize(vector.len().next_multiple_of(16), 0.0);
            StorageType::F32.bytes(&lanes)
        };
        // Padding of the last channel block must not be read.
        let as_read = if is_blocked { blocked_bytes(&x, conv.in_channels, in_plane, 0xa5) } else { x.clone() };
        let mut inputs = vec![as_read, conv.pack(&weights), lanes(&scale)];
        inputs.extend(conv.epilogue.bias.then(|| lanes(&bias)));
        let want = define(&conv, &x, &weights, &scale, &bias);
        let residual = bytes(&mut random, conv.batch * conv.out_channels * out_plane);
        let residual_at = conv.epilogue.residual.then_some(inputs.len());
        inputs.extend(residual_at.map(|_| blocked_bytes(&residual, conv.out_channels, out_plane, 0x5a)));
        let case = format!("{conv:?}");
        for [one, three] in pools([1, 3]) {
            let run = |in_place, pool| {
                run_bytes(&Kernel::from(conv.clone()), &inputs, in_place, f32::NAN, pool).swap_remove(0)
            };
            let stored = run(None, &one);
            assert_eq!(stored, run(residual_at, &three), "{case}");
            let got = numbers_of(conv.result, &stored);
            let got = unblocked(&got, conv.batch, conv.out_channels, out_plane);
            let Some(sum) = conv.epilogue.quantized_sum else {
                assert_stored(&got, &want, conv.result, &case);
                continue;
            };
            let residual = numbers_of(conv.result, &residual);
            for ((&got, &own), &residual) in got.iter().zip(&want).zip(&residual) {
                // A first result near the middle between two integers may be rounded to either.
                let [low, high] = limits(conv.result);
                let [least, most] = [own - 1e-3, own + 1e-3]
                    .map(|own| sum.eval(own.clamp(low, high).round_ties_even(), residual.into()).clamp(low, high));
                assert!(
                    least - 0.501 <= got.into() && f64::from(got) <= most + 0.501,
                    "{case}: {got} for {least}..{most}"
                );
            }
        }
    }
}

/// The same convolution with bytes as results, and a residual that is added to them.
fn with_quantized_sum(random: &mut Random, conv: ConvBlocked) -> ConvBlocked {
    let [own, residual] = [0, 1].map(|_| random.uniform(0.1, 1.5));
    let limits = pick(random, &[[-500.0, 500.0], [0.0, 255.0], [-128.0, 127.0], [3.25, 99.0]]);
    let sum = QuantizedSum { own, residual, shift: random.uniform(-90.0, 90.0), limits };
    let mut epilogue = Epilogue { residual: true, quantized_sum: Some(sum), ..conv.epilogue };
    epilogue.activation.retain(|function| matches!(function, Unary::Relu | Unary::Clip { .. }));
    ConvBlocked { result: pick(random, &[StorageType::U8, StorageType::I8]), epilogue, ..conv }
}

#[test]
fn int8_depthwise_is_exact() {
    let mut random = Random::new(33);
    for _ in 0..cases(if cfg!(debug_assertions) { 40 } else { 250 }) {
        let channels: usize = pick(&mut random, &[1, 7, 16, 24, 40]);
        let mut two = |of: &[usize]| [pick(&mut random, of), pick(&mut random, of)];
        let (kernel, stride) = (two(&[1, 2, 3, 3, 5]), two(&[1, 1, 2]));
        let (dilation, pad) = (two(&[1, 1, 2]), two(&[0, 1, 2]));
        let input = two(&[9, 18, 35]);
        let output = [0, 1]
            .map(|axis| (input[axis] + 2 * pad[axis] - (kernel[axis] - 1) * dilation[axis] - 1) / stride[axis] + 1);
        let conv = DepthwiseBlocked {
            batch: pick(&mut random, &[1, 2]),
            channels,
            group: [1, 1],
            window: Window { input, output, kernel, stride, dilation, pad },
            stored: StorageType::U8,
            zero_point: pick(&mut random, &[0, 1, 128, 255]),
            result: pick(&mut random, &StorageType::ALL),
            epilogue: epilogue(&mut random),
        };
        let (in_plane, out_plane, taps) = (input[0] * input[1], output[0] * output[1], kernel[0] * kernel[1]);
        let x = bytes(&mut random, conv.batch * channels * in_plane);
        let weights = signed(bytes(&mut random, channels * taps));
        let [scale, bias] = vectors(&mut random, channels, taps);
        let lanes = |vector: &[f32]| StorageType::F32.bytes(&blocked(vector, channels, 1, 0.0));
        let packed = StorageType::F32.bytes(&conv.pack(&weights));
        let mut inputs = vec![blocked_bytes(&x, channels, in_plane, 0xa5), packed, lanes(&scale)];
        inputs.extend(conv.epilogue.bias.then(|| lanes(&bias)));
        // The same as a grouped convolution.
        let grouped = ConvBlocked {
            batch: conv.batch,
            in_channels: channels,
            out_channels: channels,
            groups: channels,
            joined: 1,
            window: conv.window,
            layout: ImageLayout::Blocked,
            algorithm: ConvAlgorithm::InPlace,
            operands: StorageType::U8,
            weights: None,
            zero_point: conv.zero_point,
            result: conv.result,
            epilogue: conv.epilogue.clone(),
        };
        let want = define(&grouped, &x, &weights, &scale, &bias);
        let case = format!("{conv:?}");
        for [one, three] in pools([1, 3]) {
            let run = |pool| run_bytes(&Kernel::from(conv.clone()), &inputs, None, f32::NAN, pool).swap_remove(0);
            let got = run(&one);
            assert_eq!(got, run(&three), "{case}");
            let got = unblocked(&numbers_of(conv.result, &got), conv.batch, channels, out_plane);
            assert_stored(&got, &want, conv.result, &case);
        }
    }
}

#[test]
fn int8_pooling_equals_float_pooling() {
    let mut random = Random::new(34);
    for _ in 0..cases(if cfg!(debug_assertions) { 40 } else { 250 }) {
        let mut two = |of: &[usize]| [0, 1].map(|_| pick(&mut random, of));
        let (kernel, stride, dilation) = (two(&[1, 2, 3, 3, 5, 17, 70]), two(&[1, 1, 2, 3, 90]), two(&[1, 1, 2, 7]));
        let (input, pad) = (two(&[1, 13, 18, 71, 130]), two(&[0, 1, 1, 2, 60, 99]));
        let reach = [0, 1].map(|axis| (kernel[axis] - 1) * dilation[axis] + 1);
        // The last windows may begin behind the image.
        let output = [0, 1].map(|axis| (input[axis] + 2 * pad[axis]).saturating_sub(reach[axis]) / stride[axis] + 1);
        let window = Window { input, output, kernel, stride, dilation, pad };
        let with_padding = Pool2dKind::MeanWithPadding { pad_end: two(&[0, 1, 2]) };
        let (batch, channels) = (pick(&mut random, &[1, 2]), pick(&mut random, &[7, 16, 40]));
        let kind = pick(&mut random, &[Pool2dKind::Max, Pool2dKind::Mean, with_padding]);
        let stored = pick(&mut random, &[StorageType::U8, StorageType::I8]);
        let pool = |stored| Kernel::from(PoolBlocked { kind, batch, channels, window, stored });
        if pool(stored).sizes().is_err() {
            continue;
        }
        let x = bytes(&mut random, batch * channels.next_multiple_of(16) * input[0] * input[1]);
        let wide = StorageType::F32.bytes(&numbers_of(stored, &x));
        let case = format!("{:?}", pool(stored));
        for [one, three] in pools([1, 3]) {
            let got = run_bytes(&pool(stored), std::slice::from_ref(&x), None, f32::NAN, &one).swap_remove(0);
            let again = run_bytes(&pool(stored), std::slice::from_ref(&x), None, f32::NAN, &three).swap_remove(0);
            assert_eq!(got, again, "{case}");
            let want =
                run_bytes(&pool(StorageType::F32), std::slice::from_ref(&wide), None, f32::NAN, &one).swap_remove(0);
            // Rounded and saturated as bytes are stored.
            assert_eq!(got, stored.bytes(&numbers_of(StorageType::F32, &want)), "{case}");
        }
    }
}

/// The definition, in integers up to the scale.
fn define(conv: &ConvBlocked, x: &[u8], weights: &[f32], scale: &[f32], bias: &[f32]) -> Vec<f64> {
    let Window { input, output, kernel, stride, dilation, pad } = conv.window;
    let (ins, outs) = (conv.in_channels / conv.groups, conv.out_channels / conv.groups);
    let mut want = Vec::new();
    for (image, out) in (0..conv.batch).flat_map(|image| (0..conv.out_channels).map(move |out| (image, out))) {
        for (oy, ox) in (0..output[0]).flat_map(|oy| (0..output[1]).map(move |ox| (oy, ox))) {
            let mut sum = 0i64;
            for channel in 0..ins {
                let plane = image * conv.in_channels + out / outs * ins + channel;
                for (ky, kx) in (0..kernel[0]).flat_map(|ky| (0..kernel[1]).map(move |kx| (ky, kx))) {
                    let place = |axis: usize, o: usize, k: usize| {
                        (o * stride[axis] + k * dilation[axis]).checked_sub(pad[axis]).filter(|&at| at < input[axis])
                    };
                    let (Some(y), Some(column)) = (place(0, oy, ky), place(1, ox, kx)) else { continue };
                    let item = x[(plane * input[0] + y) * input[1] + column];
                    let weight = weights[((out * ins + channel) * kernel[0] + ky) * kernel[1] + kx];
                    sum += (i64::from(item) - i64::from(conv.zero_point)) * weight as i64;
                }
            }
            want.push(finished(sum, scale[out], conv.epilogue.bias.then(|| bias[out]), &conv.epilogue));
        }
    }
    want
}

#[test]
fn invalid_int8_parameters_are_refused() {
    let epilogue = Epilogue { scale: true, bias: true, ..Epilogue::default() };
    let matmul = MatMul {
        batch: vec![],
        a_strides: vec![],
        b_strides: vec![],
        m: 3,
        k: 8,
        n: 5,
        b: MatMulB::Packed,
        operands: StorageType::U8,
        weights: None,
        zero_point: 3,
        result: StorageType::U8,
        epilogue: epilogue.clone(),
    };
    let refused = |kernel: MatMul| Kernel::from(kernel).sizes().is_err();
    assert!(!refused(matmul.clone()));
    assert!(refused(MatMul { k: 6, ..matmul.clone() }));
    assert!(refused(MatMul { operands: StorageType::I8, ..matmul.clone() }));
    assert!(refused(MatMul { operands: StorageType::F32, ..matmul.clone() }));
    assert!(refused(MatMul { b: MatMulB::Dynamic, ..matmul.clone() }));
    assert!(refused(MatMul { epilogue: Epilogue { residual: true, ..epilogue.clone() }, ..matmul.clone() }));
    assert!(refused(MatMul { epilogue: Epilogue { scale: false, ..epilogue.clone() }, ..matmul.clone() }));
    assert!(refused(MatMul { epilogue: Epilogue::default(), ..matmul.clone() }));
    assert!(!refused(MatMul { epilogue: Epilogue::default(), result: StorageType::F32, ..matmul.clone() }));

    let sum = QuantizedSum { own: 1.0, residual: 1.0, shift: 0.0, limits: [0.0, 255.0] };
    let added = Epilogue { residual: true, quantized_sum: Some(sum), ..epilogue.clone() };
    assert!(refused(MatMul { epilogue: added.clone(), ..matmul }));
    let plane = [3, 5];
    let window = Window { input: plane, output: plane, kernel: [1; 2], stride: [1; 2], dilation: [1; 2], pad: [0; 2] };
    let conv = ConvBlocked {
        batch: 1,
        in_channels: 16,
        out_channels: 16,
        groups: 1,
        joined: 1,
        window,
        layout: ImageLayout::Blocked,
        algorithm: ConvAlgorithm::InPlace,
        operands: StorageType::U8,
        weights: None,
        zero_point: 3,
        result: StorageType::I8,
        epilogue: added.clone(),
    };
    let refused = |kernel: ConvBlocked| Kernel::from(kernel).sizes().is_err();
    let with = |epilogue: Epilogue| ConvBlocked { epilogue, ..conv.clone() };
    assert!(!refused(conv.clone()));
    assert!(refused(ConvBlocked { result: StorageType::F32, ..conv.clone() }));
    assert!(refused(with(Epilogue { residual: false, ..added.clone() })));
    assert!(refused(with(Epilogue { quantized_sum: None, ..added.clone() })));
    assert!(refused(with(Epilogue { activation: [Unary::Silu].as_slice().into(), ..added.clone() })));
    let of_numbers = Epilogue { scale: false, ..added };
    assert!(refused(ConvBlocked { operands: StorageType::F32, zero_point: 0, ..with(of_numbers) }));
}
