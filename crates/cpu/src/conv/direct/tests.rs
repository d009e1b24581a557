use types::{Random, WeightFormat};

use super::*;
use crate::kernel::Operand;
use crate::simd::storage;
use crate::table::Kernel;

/// Row-major images in blocks of sixteen channels, `pad` in the lanes without a channel.
fn block(items: &[f32], batch: usize, channels: usize, plane: usize, pad: f32) -> Vec<f32> {
    let blocks = channels.div_ceil(LANES);
    let mut blocked = vec![pad; batch * blocks * plane * LANES];
    for (ix, &item) in items.iter().enumerate() {
        let (image, channel, pixel) = (ix / plane / channels, ix / plane % channels, ix % plane);
        blocked[((image * blocks + channel / LANES) * plane + pixel) * LANES + channel % LANES] = item;
    }
    blocked
}

/// The definition, in `f64`: row-major operands, row-major results.
#[expect(clippy::needless_range_loop, reason = "an index of several slices")]
fn define(conv: &ConvBlocked, x: &[f32], weights: &[f32], bias: &[f32], residual: &[f32]) -> Vec<f64> {
    let ([ins, outs], window) = (conv.part_channels(), &conv.window);
    let [rows, columns] = window.output;
    let mut results = Vec::new();
    for ix in 0..conv.batch * conv.out_channels * rows * columns {
        let (image, out) = (ix / columns / rows / conv.out_channels, ix / columns / rows % conv.out_channels);
        let [oy, ox] = [ix / columns % rows, ix % columns];
        let mut sum = if conv.epilogue.bias { f64::from(bias[out]) } else { 0.0 };
        for (channel, tap) in (0..ins).flat_map(|channel| (0..window.taps()).map(move |tap| (channel, tap))) {
            let [ky, kx] = [tap / window.kernel[1], tap % window.kernel[1]];
            if let (Some(iy), Some(ix)) = (window.source(0, oy, ky), window.source(1, ox, kx)) {
                let plane = image * conv.in_channels + out / outs * ins + channel;
                let item = x[(plane * window.input[0] + iy) * window.input[1] + ix];
                sum += f64::from(item) * f64::from(weights[(out * ins + channel) * window.taps() + tap]);
            }
        }
        if conv.epilogue.residual {
            sum += f64::from(residual[ix]);
        }
        results.push(conv.epilogue.activation.iter().fold(sum, |sum, function| function.eval(sum)));
    }
    results
}

/// Every instruction set and three numbers of threads against the definition; the same bits for all numbers of threads.
fn check(conv: &ConvBlocked, random: &mut Random, strange: bool) {
    let window = &conv.window;
    let (in_plane, out_plane) = (window.input_plane(), window.output_plane());
    let [ins, _] = conv.part_channels();
    let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| random.uniform(-1.0, 1.0)).collect() };
    let rounded = |stored: StorageType, items: Vec<f32>| -> Vec<f32> {
        let mut rounded = vec![0.0; items.len()];
        storage::widen(Isa::Portable, stored, &stored.bytes(&items), &mut rounded);
        rounded
    };
    let mut x = rounded(conv.operands, numbers(conv.batch * conv.in_channels * in_plane));
    let weights = rounded(conv.operands, numbers(conv.out_channels * ins * window.taps()));
    let decoded = |format: WeightFormat| format.decoded(&weights, conv.out_channels, |at| at / (ins * window.taps()));
    let weights = conv.weights.map_or(weights.clone(), decoded);
    let bias = numbers(conv.out_channels);
    let residual = rounded(conv.result, numbers(conv.batch * conv.out_channels * out_plane));
    if strange && !x.is_empty() {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let at = random.below(x.len() as u64) as usize;
            x[at] = strange;
        }
    }
    let want = define(conv, &x, &weights, &bias, &residual);
    let want_blocked: Vec<f64> = {
        let places: Vec<f32> = (0..want.len()).map(|ix| ix as f32).collect();
        let places = block(&places, conv.batch, conv.out_channels, out_plane, f32::NAN);
        places.iter().map(|&ix| if ix.is_nan() { 0.0 } else { want[ix as usize] }).collect()
    };
    let pads = block(&vec![0.0; want.len()], conv.batch, conv.out_channels, out_plane, 1.0);
    let packed = conv.pack(&weights);
    let x = if conv.reads_blocks() { block(&x, conv.batch, conv.in_channels, in_plane, f32::NAN) } else { x };
    let x = conv.operands.bytes(&x);
    let bias = block(&bias, 1, conv.out_channels, 1, 0.0);
    let residual = conv.result.bytes(&block(&residual, conv.batch, conv.out_channels, out_plane, f32::NAN));
    let kernel = Kernel::from(conv.clone());
    let sizes = kernel.sizes().expect("consistent parameters");
    let tolerance = 1e-6 * (4 + ins * window.taps()) as f64;
    let rounding = [0.0, 1.0 / 2048.0, 1.0 / 256.0][conv.result as usize];
    for isa in Isa::available() {
        let mut first: Option<Vec<u8>> = None;
        for (threads, in_place) in [(1, false), (2, true), (3, false)] {
            let pool = Pool::with_isa(threads, isa);
            let mut out = if in_place { residual.clone() } else { vec![0xff; residual.len()] };
            let mut inputs: Vec<Operand> = vec![Operand::Bytes(&x), Operand::Bytes(&packed)];
            inputs.extend(conv.epilogue.bias.then_some(Operand::Bytes(bytemuck::cast_slice(&bias))));
            if conv.epilogue.residual {
                inputs.push(if in_place { Operand::InPlace(0) } else { Operand::Bytes(&residual) });
            }
            assert_eq!(sizes.outputs[0] as usize, out.len());
            for (size, input) in sizes.inputs.iter().zip(&inputs) {
                assert!(matches!(input, Operand::InPlace(_) | Operand::Bytes(_)));
                if let Operand::Bytes(bytes) = input {
                    assert_eq!(*size as usize, bytes.len(), "{conv:?}");
                }
            }
            let mut workspace = vec![f32::NAN; sizes.workspace as usize / 4];
            let workspace = bytemuck::cast_slice_mut(&mut workspace);
            kernel.run(Args { inputs: &inputs, outputs: &mut [&mut out], workspace }, &pool);
            let mut got = vec![0.0; out.len() / conv.result.size()];
            storage::widen(Isa::Portable, conv.result, &out, &mut got);
            for (ix, ((&got, &want), &pad)) in got.iter().zip(&want_blocked).zip(&pads).enumerate() {
                let got = f64::from(got);
                let same = got.is_nan() && want.is_nan()
                    || got == want
                    || (got - want).abs() <= tolerance + rounding * want.abs();
                assert!(same || pad == 1.0, "{conv:?}, {isa}, {ix}: {got} for {want}");
            }
            let first = first.get_or_insert_with(|| out.clone());
            assert!(*first == out, "{conv:?}, {isa}: other bits on {threads} threads");
        }
    }
}

fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize].clone()
}

#[test]
fn random_shapes_agree_with_the_definition() {
    let mut random = Random::new(17);
    for case in 0..160 {
        let random = &mut random;
        let two = |random: &mut Random, of: &[usize]| [pick(random, of), pick(random, of)];
        let (is_blocked, groups) = (random.below(4) != 0, pick(random, &[1, 1, 1, 1, 4, 8, 20]));
        let counts = if is_blocked { [1, 3, 15, 16, 17, 24, 32, 40, 53] } else { [0, 1, 2, 3, 3, 3, 4, 5, 17] };
        // Groups that fill blocks alone, or joined; the last block may have fewer.
        let joined = if groups == 1 { 1 } else { pick(random, &[1, 1, 2, 4]) };
        let (in_channels, out_channels) = match (groups, is_blocked) {
            (1, _) => (pick(random, &counts), pick(random, &[1, 8, 16, 17, 31, 32, 33, 48, 64, 100])),
            (_, true) => (groups * pick(random, &[16, 32]) / joined, groups * pick(random, &[16, 32, 48]) / joined),
            (_, false) => (groups * pick(random, &[1, 2]), groups * pick(random, &[16, 32, 48]) / joined),
        };
        let (kernel, stride) = (two(random, &[1, 1, 2, 3, 3, 5, 7]), two(random, &[1, 1, 1, 2, 3]));
        let (dilation, pad) = (two(random, &[1, 1, 1, 2, 3]), two(random, &[0, 0, 1, 1, 2, 3, 9]));
        let input = two(random, &[1, 2, 5, 7, 7, 13, 14, 17]);
        let behind = two(random, &[0, 0, 1, 1, 2, 3, 9]);
        let output = [0, 1].map(|axis| {
            let room = input[axis] + pad[axis] + behind[axis];
            room.checked_sub((kernel[axis] - 1) * dilation[axis] + 1).map_or(1, |room| room / stride[axis] + 1)
        });
        let activations =
            [&[][..], &[Unary::Relu], &[Unary::Clip { min: -0.5, max: 0.5 }, Unary::Silu], &[Unary::HardSwish]];
        let pairs = if is_blocked { in_channels / groups * joined % 2 == 0 } else { groups == 1 };
        let operands = if pairs { pick(random, &StorageType::FRACTIONS) } else { StorageType::F32 };
        // Row-major halves must be packed.
        let is_packed = match (groups, operands, is_blocked) {
            (1, StorageType::F32, _) | (1, _, true) => random.below(2) == 0,
            (groups, _, _) => groups == 1 && operands != StorageType::F32,
        };
        let result = pick(random, &StorageType::FRACTIONS);
        let is_f32 = [operands, result] == [StorageType::F32; 2];
        let formats = [None, Some(WeightFormat::Bf16), Some(WeightFormat::Int8)];
        let conv = ConvBlocked {
            operands,
            weights: if is_f32 { pick(random, &formats) } else { None },
            zero_point: 0,
            result,
            batch: pick(random, &[1, 1, 2, 5]),
            in_channels,
            out_channels,
            groups,
            joined,
            window: Window { input, output, kernel, stride, dilation, pad },
            layout: if is_blocked { ImageLayout::Blocked } else { ImageLayout::RowMajor },
            algorithm: if is_packed { ConvAlgorithm::Packed } else { ConvAlgorithm::InPlace },
            epilogue: Epilogue {
                bias: random.below(2) == 0,
                residual: random.below(2) == 0,
                activation: pick(random, &activations).iter().copied().collect(),
                ..Epilogue::default()
            },
        };
        // Joined groups have products by zero in common.
        check(&conv, random, joined == 1 && case % 3 == 0);
    }
}

/// A plain convolution with padding that keeps the size at stride 1.
fn plain(channels: [usize; 2], input: [usize; 2], kernel: [usize; 2], stride: usize) -> ConvBlocked {
    let pad = kernel.map(|cells| cells / 2);
    ConvBlocked {
        batch: 1,
        in_channels: channels[0],
        out_channels: channels[1],
        groups: 1,
        joined: 1,
        window: Window {
            input,
            output: input.map(|extent| extent.div_ceil(stride)),
            kernel,
            stride: [stride; 2],
            dilation: [1; 2],
            pad,
        },
        layout: if LANES <= channels[0] { ImageLayout::Blocked } else { ImageLayout::RowMajor },
        algorithm: ConvAlgorithm::InPlace,
        operands: StorageType::F32,
        weights: None,
        zero_point: 0,
        result: StorageType::F32,
        epilogue: Epilogue { bias: true, activation: [Unary::Relu].into_iter().collect(), ..Epilogue::default() },
    }
}

#[test]
fn shapes_of_networks_agree_with_the_definition() {
    let mut random = Random::new(18);
    for conv in [
        plain([64, 64], [56, 56], [1, 1], 1),
        plain([16, 40], [57, 57], [3, 3], 1),
        ConvBlocked { weights: Some(WeightFormat::Bf16), ..plain([128, 64], [7, 7], [3, 3], 1) },
        ConvBlocked { weights: Some(WeightFormat::Int8), ..plain([128, 64], [7, 7], [3, 3], 1) },
        ConvBlocked { weights: Some(WeightFormat::Int8), ..plain([256, 72], [14, 14], [3, 3], 1) },
        plain([32, 32], [28, 28], [3, 3], 2),
        plain([256, 64], [14, 14], [1, 1], 1),
        plain([64, 64], [7, 7], [3, 3], 1),
        plain([32, 96], [17, 17], [1, 7], 1),
        plain([128, 64], [7, 7], [3, 3], 1),
        plain([137, 24], [13, 14], [3, 3], 2),
        ConvBlocked {
            batch: 3,
            epilogue: Epilogue {
                bias: true,
                residual: true,
                activation: [Unary::Clip { min: -0.5, max: 6.0 }, Unary::Silu].into_iter().collect(),
                ..Epilogue::default()
            },
            ..plain([144, 48], [5, 8], [5, 3], 1)
        },
        plain([3, 64], [60, 60], [7, 7], 2),
        // Joined groups of 24, 24 to 40, 56, 20, 4 and 5 to 13 channels, also of row-major images; the last ones fewer.
        ConvBlocked { groups: 6, joined: 2, ..plain([144, 144], [14, 14], [3, 3], 1) },
        ConvBlocked { groups: 2, joined: 2, ..plain([48, 80], [9, 14], [3, 3], 2) },
        ConvBlocked { groups: 3, joined: 2, weights: Some(WeightFormat::Int8), ..plain([168, 168], [7, 7], [3, 3], 1) },
        ConvBlocked { groups: 4, joined: 4, ..plain([80, 80], [14, 14], [5, 5], 1) },
        ConvBlocked { groups: 8, joined: 4, ..plain([32, 32], [14, 14], [3, 3], 1) },
        ConvBlocked { groups: 3, joined: 2, ..plain([72, 72], [28, 28], [3, 3], 1) },
        ConvBlocked { groups: 3, joined: 16, ..plain([15, 39], [28, 28], [3, 3], 1) },
        ConvBlocked { groups: 3, joined: 2, layout: ImageLayout::RowMajor, ..plain([72, 72], [14, 14], [3, 3], 1) },
        ConvBlocked { batch: 32, ..plain([64, 64], [3, 3], [1, 1], 1) },
        ConvBlocked { batch: 9, ..plain([24, 32], [8, 8], [3, 3], 1) },
        ConvBlocked { operands: StorageType::Bf16, result: StorageType::Bf16, ..plain([256, 64], [14, 14], [3, 3], 1) },
        ConvBlocked { operands: StorageType::F16, result: StorageType::F16, ..plain([256, 64], [14, 14], [1, 1], 1) },
        ConvBlocked { operands: StorageType::Bf16, ..plain([128, 64], [7, 7], [3, 3], 1) },
        // Taps that read the image for no output, tap by tap.
        {
            let conv = plain([128, 16], [4, 4], [3, 3], 1);
            ConvBlocked { window: Window { dilation: [4, 4], pad: [4, 4], ..conv.window }, ..conv }
        },
        // Enough terms to sum a part of them at a time: some channels, and some taps of one.
        ConvBlocked {
            epilogue: Epilogue { residual: true, ..plain([1, 1], [1, 1], [1, 1], 1).epilogue },
            ..plain([2104, 40], [5, 5], [1, 1], 1)
        },
        plain([300, 32], [12, 13], [3, 3], 1),
        {
            let conv = plain([3, 48], [96, 224], [32, 32], 32);
            ConvBlocked { window: Window { pad: [0, 0], ..conv.window }, ..conv }
        },
        {
            let conv = plain([20, 16], [64, 160], [16, 16], 16);
            ConvBlocked { batch: 2, window: Window { pad: [0, 0], ..conv.window }, ..conv }
        },
        // Rows that are computed as one strip: at stride 1 and 2, of several images.
        ConvBlocked {
            operands: StorageType::Bf16,
            algorithm: ConvAlgorithm::Packed,
            batch: 2,
            ..plain([128, 64], [7, 7], [3, 3], 1)
        },
        ConvBlocked {
            operands: StorageType::Bf16,
            algorithm: ConvAlgorithm::Packed,
            ..plain([64, 40], [14, 14], [3, 3], 2)
        },
        ConvBlocked {
            operands: StorageType::Bf16,
            algorithm: ConvAlgorithm::Packed,
            ..plain([3, 64], [60, 60], [7, 7], 2)
        },
        // Packed `f32`: every second row and column, padding and terms in two parts, stored int8 weights, a first layer.
        ConvBlocked { algorithm: ConvAlgorithm::Packed, batch: 2, ..plain([512, 40], [14, 14], [1, 1], 2) },
        ConvBlocked { algorithm: ConvAlgorithm::Packed, ..plain([300, 32], [7, 7], [3, 3], 1) },
        ConvBlocked {
            algorithm: ConvAlgorithm::Packed,
            weights: Some(WeightFormat::Int8),
            ..plain([72, 96], [13, 14], [3, 3], 2)
        },
        ConvBlocked { algorithm: ConvAlgorithm::Packed, ..plain([3, 64], [60, 60], [7, 7], 2) },
    ] {
        check(&conv, &mut random, false);
    }
}

#[test]
fn contradictions_are_refused() {
    let conv = plain([32, 32], [8, 8], [3, 3], 1);
    let refused = |conv: &ConvBlocked| conv.sizes().is_err();
    assert!(!refused(&conv) && !refused(&ConvBlocked { groups: 2, ..conv.clone() }));
    assert!(refused(&ConvBlocked { groups: 0, ..conv.clone() }));
    assert!(refused(&ConvBlocked { groups: 4, ..conv.clone() }));
    assert!(refused(&ConvBlocked { groups: 3, ..conv.clone() }));
    for joined in [0, 17, usize::MAX] {
        assert!(refused(&ConvBlocked { joined, ..conv.clone() }));
    }
    let joined = ConvBlocked { groups: 4, joined: 2, ..conv.clone() };
    assert!(!refused(&joined) && !refused(&ConvBlocked { operands: StorageType::Bf16, ..joined.clone() }));
    assert!(refused(&ConvBlocked { in_channels: 36, ..joined.clone() }));
    assert!(refused(&ConvBlocked { groups: 8, ..joined }));
    assert!(refused(&ConvBlocked { batch: usize::MAX / 64, ..conv.clone() }));
    assert!(refused(&ConvBlocked { out_channels: usize::MAX, ..conv }));
}

#[test]
fn lengths_of_runs_are_those_of_the_walk() {
    let mut random = Random::new(19);
    for _ in 0..500 {
        let random = &mut random;
        let [input, kernel] = [pick(random, &[1, 2, 5, 7, 14, 40]), pick(random, &[1, 2, 3, 5, 7, 31])];
        let (stride, dilation) = (pick(random, &[1, 1, 2, 3]), pick(random, &[1, 1, 2, 3]));
        let (pad, output) = (pick(random, &[0, 1, 2, 9, 15]), pick(random, &[1, 3, 7, 14, 40]));
        let both = |extent: usize| [extent; 2];
        let window = Window {
            input: both(input),
            output: both(output),
            kernel: both(kernel),
            stride: both(stride),
            dilation: both(dilation),
            pad: both(pad),
        };
        let (mut walked, mut at) = (Vec::new(), 0);
        while at < output {
            let run = Run::new(&window, 0, at..output);
            at = run.range.end;
            walked.push((run.range.len(), run.taps.len()));
        }
        assert_eq!(regions::lengths_of_runs(&window, 0), walked, "{window:?}");
    }
}
