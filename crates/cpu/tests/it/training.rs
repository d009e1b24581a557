//! Kernels of training steps against plain loops in `f64`, on every ISA and several numbers of threads. Padding lanes of
//! operands hold NaN.

use prestow_cpu::{
    BatchNormGradient, BatchNormTraining, ChannelSum, ConvAlgorithm, ConvBlocked, ConvDataGradient, ConvWeightGradient,
    DepthwiseBlocked, DepthwiseDataGradient, DepthwiseWeightGradient, DynamicConv, Epilogue, ImageLayout, Kernel,
    PackedConv, Planes, Pool2dKind, PoolGradient, PoolWithPositions, StorageType, Update, UpdateByFactors,
    WeightGradientRows, WeightOrder, Weights, Window, Winograd, groups_of_blocks,
};
use types::Random;
use types::pointwise::Unary;
use types::update::{Adam, Sgd, UpdateRule};

use super::blocked::{cells, check, finish, numbers, pick, planes, run_all, window};
use super::common::{blocked, cases, numbers_of, pools, run_bytes, unblocked};

const F32: StorageType = StorageType::F32;

/// The data gradient of a grouped convolution: `dy: [batch, outs, plane]` by weights `[outs, ins / groups, taps]`.
fn data_gradient(dy: &[f32], window: &Window, groups: usize, [ins, outs]: [usize; 2], weights: &[f32]) -> Vec<f64> {
    let ([input_plane, plane], taps) = (planes(window), window.kernel[0] * window.kernel[1]);
    let batch = dy.len() / (outs * plane);
    let (group_ins, group_outs) = (ins / groups, outs / groups);
    let mut dx = vec![0.0; batch * ins * input_plane];
    for (number, &item) in dy.iter().enumerate() {
        let (image, out, pixel) = (number / plane / outs, number / plane % outs, number % plane);
        for (tap, cell) in cells(window, pixel / window.output[1], pixel % window.output[1]) {
            for channel in 0..group_ins {
                let weight = weights[(out * group_ins + channel) * taps + tap];
                let own = out / group_outs * group_ins + channel;
                dx[(image * ins + own) * input_plane + cell] += f64::from(item) * f64::from(weight);
            }
        }
    }
    dx
}

/// A window whose output is that of a convolution: no window extends beyond the padded image.
fn fitting(random: &mut Random, stride: Option<usize>) -> Window {
    let mut window = window(random);
    for axis in 0..2 {
        if let Some(stride) = stride {
            window.stride[axis] = stride;
            window.dilation[axis] = 1;
        }
        let reach = window.dilation[axis] * (window.kernel[axis] - 1);
        window.pad[axis] = window.pad[axis].min(reach);
        if window.input[axis] + 2 * window.pad[axis] <= reach {
            window.kernel[axis] = 1;
            window.pad[axis] = 0;
        }
        let reach = window.dilation[axis] * (window.kernel[axis] - 1);
        window.output[axis] = (window.input[axis] + 2 * window.pad[axis] - reach - 1) / window.stride[axis] + 1;
    }
    window
}

fn functions(random: &mut Random) -> Epilogue {
    let activations: [&[Unary]; 3] = [&[], &[Unary::Relu], &[Unary::Relu, Unary::Sigmoid]];
    Epilogue { activation: pick(random, &activations).iter().copied().collect(), ..Epilogue::default() }
}

/// Groups, and channels on both sides: groups that fill blocks, some that are joined, and some whose number is no multiple of those.
const GROUPS: [(usize, usize, usize); 8] =
    [(2, 32, 64), (8, 16, 32), (4, 48, 16), (3, 9, 12), (7, 56, 56), (5, 20, 20), (3, 72, 72), (9, 18, 72)];

fn direct(batch: usize, [ins, outs]: [usize; 2], groups: usize, window: Window, epilogue: Epilogue) -> ConvBlocked {
    ConvBlocked {
        batch,
        in_channels: ins,
        out_channels: outs,
        groups,
        joined: groups_of_blocks(groups, ins, outs),
        window,
        layout: ImageLayout::Blocked,
        algorithm: ConvAlgorithm::InPlace,
        operands: F32,
        weights: None,
        zero_point: 0,
        result: F32,
        epilogue,
    }
}

#[test]
fn convolution_by_run_time_weights_equals_packed_one() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(21));
    for round in 0..cases(150) {
        let batch = pick(&mut random, &[1, 1, 2, 5]);
        let (grouped, ins, outs) = match random.below(3) {
            0 => pick(&mut random, &GROUPS),
            _ => (1, pick(&mut random, &[1, 3, 16, 19, 40]), pick(&mut random, &[1, 16, 20, 33, 70])),
        };
        let mut window = fitting(&mut random, None);
        let epilogue =
            Epilogue { bias: random.below(2) == 0, residual: random.below(2) == 0, ..functions(&mut random) };
        let kind = round % 4;
        if kind == 1 {
            let three = Window { kernel: [3, 3], stride: [1, 1], dilation: [1, 1], pad: [1, 1], ..window };
            window = Window { output: three.input, ..three };
        }
        let (conv, groups, ins, outs) = match kind {
            0 => {
                // Groups of one, or of a few channels.
                let (groups, ins, outs) = match grouped {
                    1 => (ins, ins, ins),
                    _ => pick(&mut random, &[(7, 56, 56), (5, 20, 20), (9, 18, 72), (12, 12, 24), (11, 88, 88)]),
                };
                let conv = DepthwiseBlocked {
                    batch,
                    channels: outs,
                    group: [ins / groups, outs / groups],
                    window,
                    stored: F32,
                    zero_point: 0,
                    result: F32,
                    epilogue: epilogue.clone(),
                };
                (PackedConv::Depthwise(conv), groups, ins, outs)
            }
            1 => {
                let conv = Winograd {
                    batch,
                    in_channels: ins,
                    out_channels: outs,
                    window,
                    tile: pick(&mut random, &[2, 4, 6]),
                    epilogue: epilogue.clone(),
                    workspace_max: pick(&mut random, &[0, 10_000, Winograd::WORKSPACE_MAX]),
                };
                (PackedConv::Winograd(conv), 1, ins, outs)
            }
            _ => {
                let layout = if kind == 2 && grouped == 1 { ImageLayout::RowMajor } else { ImageLayout::Blocked };
                let conv = direct(batch, [ins, outs], grouped, window, epilogue.clone());
                (PackedConv::Direct(ConvBlocked { layout, ..conv }), grouped, ins, outs)
            }
        };
        let [input_plane, plane] = planes(&window);
        let taps = window.kernel[0] * window.kernel[1];
        let wild = kind != 1 && random.below(4) == 0;
        let x = numbers(&mut random, batch * ins * input_plane, false);
        let weights = numbers(&mut random, outs * ins / groups * taps, wild);
        let bias = numbers(&mut random, outs, false);
        let residual = numbers(&mut random, batch * outs * plane, false);
        let row_major = matches!(&conv, PackedConv::Direct(conv) if conv.layout == ImageLayout::RowMajor);
        let x = F32.bytes(&if row_major { x } else { blocked(&x, ins, input_plane, f32::NAN) });
        let packed = match &conv {
            PackedConv::Direct(conv) => conv.pack(&weights),
            PackedConv::Winograd(conv) => F32.bytes(&conv.pack(&weights)),
            PackedConv::Depthwise(conv) => F32.bytes(&conv.pack(&weights)),
        };
        let (mut given, mut constant) = (vec![x.clone(), F32.bytes(&weights)], vec![x, packed]);
        if epilogue.bias {
            given.push(F32.bytes(&bias));
            constant.push(F32.bytes(&blocked(&bias, outs, 1, 0.0)));
        }
        if epilogue.residual {
            let residual = F32.bytes(&blocked(&residual, outs, plane, f32::NAN));
            [&mut given, &mut constant].into_iter().for_each(|inputs| inputs.push(residual.clone()));
        }
        let plain: Kernel = match conv.clone() {
            PackedConv::Direct(conv) => conv.into(),
            PackedConv::Winograd(conv) => conv.into(),
            PackedConv::Depthwise(conv) => conv.into(),
        };
        let kernel = Kernel::from(DynamicConv { conv, order: WeightOrder::Forward });
        let want = run_all(&plain, F32, &constant, epilogue.residual, &pools);
        let got = run_all(&kernel, F32, &given, epilogue.residual, &pools);
        for (got, want) in got.iter().zip(&want) {
            let [got, want] = [got, want].map(|items| unblocked(items, batch, outs, plane));
            let want: Vec<f64> = want.iter().map(|&item| item.into()).collect();
            // Winograd's weights are transformed in `f32` here, and in `f64` ahead of time.
            check(&kernel, &got, &want, if kind == 1 { 1e-3 } else { 0.0 });
        }
    }
}

/// Enough weights for two parts; the last one ends with half a panel.
#[test]
fn winograd_weights_are_packed_in_parts() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(31));
    let (batch, [ins, outs], extent) = (2, [272, 325], [5, 7]);
    let one = [1, 1];
    let window = Window { input: extent, output: extent, kernel: [3, 3], stride: one, dilation: one, pad: one };
    let plane = extent[0] * extent[1];
    let epilogue = Epilogue { bias: true, residual: true, ..Epilogue::default() };
    let conv =
        Winograd { batch, in_channels: ins, out_channels: outs, window, tile: 6, epilogue, workspace_max: 20_000 };
    assert!(conv.packed_at_once() < conv.packed_elements());
    let x = F32.bytes(&blocked(&numbers(&mut random, batch * ins * plane, false), ins, plane, 0.0));
    let weights = numbers(&mut random, outs * ins * 9, false);
    let bias = numbers(&mut random, outs, false);
    let residual = numbers(&mut random, batch * outs * plane, false);
    let residual = F32.bytes(&blocked(&residual, outs, plane, 0.0));
    let constant =
        [x.clone(), F32.bytes(&conv.pack(&weights)), F32.bytes(&blocked(&bias, outs, 1, 0.0)), residual.clone()];
    let given = [x, F32.bytes(&weights), F32.bytes(&bias), residual];
    let want = run_all(&Kernel::from(conv.clone()), F32, &constant, true, &pools);
    let conv = PackedConv::Winograd(conv);
    let kernel = Kernel::from(DynamicConv { conv, order: WeightOrder::Forward });
    let got = run_all(&kernel, F32, &given, true, &pools);
    for (got, want) in got.iter().zip(&want) {
        let [got, want] = [got, want].map(|items| unblocked(items, batch, outs, plane));
        let want: Vec<f64> = want.iter().map(|&item| item.into()).collect();
        check(&kernel, &got, &want, 1e-3);
    }
}

#[test]
fn data_gradient_matches_its_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(22));
    let (mut drawn, mut ran) = (0, 0);
    // Some parameters are refused; a fifth of the cases may have too many of them.
    while drawn < cases(200) || ran <= cases(100) {
        assert!(drawn < cases(400), "{ran} kernels ran");
        let batch = pick(&mut random, &[1, 1, 2, 5]);
        let (groups, ins, outs) = match random.below(4) {
            0 => pick(&mut random, &GROUPS),
            _ => (1, pick(&mut random, &[1, 3, 16, 19, 40]), pick(&mut random, &[1, 16, 20, 33, 70])),
        };
        let strided = drawn % 2 == 0;
        drawn += 1;
        let stride = if strided { pick(&mut random, &[2, 2, 3, 4]) } else { 1 };
        let plain = strided || random.below(2) == 0;
        let window = fitting(&mut random, plain.then_some(stride));
        let strided = window.stride != [1, 1];
        let epilogue = functions(&mut random);
        let depthwise = !strided && random.below(4) == 0;
        let (groups, ins, outs) = match depthwise {
            // One channel or a few in a group.
            true => {
                let (groups, of_group) = (pick(&mut random, &[1, 3, 16, 19]), pick(&mut random, &[1, 1, 2, 4, 8]));
                (groups, groups * of_group, groups * pick(&mut random, &[1, of_group]))
            }
            false => (groups, ins, outs),
        };
        let mirrored = || Window {
            input: window.output,
            output: window.input,
            pad: [0, 1].map(|axis| window.dilation[axis] * (window.kernel[axis] - 1) - window.pad[axis]),
            ..window
        };
        let [input_plane, plane] = planes(&window);
        let kernel: Kernel = if strided {
            let epilogue = epilogue.clone();
            let weights = Weights::Dynamic;
            ConvDataGradient { batch, in_channels: outs, out_channels: ins, groups, window, weights, epilogue }.into()
        } else {
            let conv = match depthwise {
                true => PackedConv::Depthwise(DepthwiseBlocked {
                    batch,
                    channels: ins,
                    group: [outs / groups, ins / groups],
                    window: mirrored(),
                    stored: F32,
                    zero_point: 0,
                    result: F32,
                    epilogue: epilogue.clone(),
                }),
                false => PackedConv::Direct(direct(batch, [outs, ins], groups, mirrored(), epilogue.clone())),
            };
            DynamicConv { conv, order: WeightOrder::Gradient }.into()
        };
        if kernel.sizes().is_err() {
            continue;
        }
        ran += 1;
        let taps = window.kernel[0] * window.kernel[1];
        let dy = numbers(&mut random, batch * outs * plane, false);
        let weights = numbers(&mut random, outs * ins / groups * taps, false);
        let mut want = data_gradient(&dy, &window, groups, [ins, outs], &weights);
        finish(&mut want, input_plane, &epilogue, &[], &[]);
        let inputs = [F32.bytes(&blocked(&dy, outs, plane, f32::NAN)), F32.bytes(&weights)];
        for got in run_all(&kernel, F32, &inputs, false, &pools) {
            check(&kernel, &unblocked(&got, batch, ins, input_plane), &want, 1e-4);
        }
    }
}

#[test]
fn transposed_convolution_by_packed_weights_matches_its_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(27));
    let mut ran = 0;
    for _ in 0..cases(160) {
        let batch = pick(&mut random, &[1, 1, 2, 5]);
        let (groups, ins, outs) = match random.below(4) {
            0 => pick(&mut random, &GROUPS),
            _ => (1, pick(&mut random, &[1, 3, 16, 19, 40]), pick(&mut random, &[1, 16, 20, 33, 70])),
        };
        let stride = pick(&mut random, &[1, 2, 2, 3, 4]);
        let window = fitting(&mut random, Some(stride));
        let (weights, of) = (Weights::Packed, functions(&mut random));
        let epilogue = Epilogue { bias: random.below(2) == 0, residual: random.below(2) == 0, ..of };
        let (in_channels, out_channels) = (outs, ins);
        let kernel = ConvDataGradient { batch, in_channels, out_channels, groups, window, weights, epilogue };
        if Kernel::from(kernel.clone()).sizes().is_err() {
            continue;
        }
        ran += 1;
        let [input_plane, plane] = planes(&window);
        let taps = window.kernel[0] * window.kernel[1];
        let dy = numbers(&mut random, batch * outs * plane, false);
        let weights = numbers(&mut random, outs * ins / groups * taps, false);
        let bias = if kernel.epilogue.bias { numbers(&mut random, ins, false) } else { Vec::new() };
        let residual = numbers(&mut random, batch * ins * input_plane, false);
        let residual = if kernel.epilogue.residual { residual } else { Vec::new() };
        let mut want = data_gradient(&dy, &window, groups, [ins, outs], &weights);
        finish(&mut want, input_plane, &kernel.epilogue, &bias, &residual);
        let mut inputs = vec![F32.bytes(&blocked(&dy, outs, plane, f32::NAN)), F32.bytes(&kernel.pack(&weights))];
        if kernel.epilogue.bias {
            inputs.push(F32.bytes(&blocked(&bias, ins, 1, 0.0)));
        }
        let in_place = kernel.epilogue.residual;
        if in_place {
            inputs.push(F32.bytes(&blocked(&residual, ins, input_plane, 0.0)));
        }
        let kernel = Kernel::from(kernel);
        for got in run_all(&kernel, F32, &inputs, in_place, &pools) {
            check(&kernel, &unblocked(&got, batch, ins, input_plane), &want, 1e-4);
        }
    }
    assert!(cases(60) < ran, "{ran} kernels ran");
}

#[test]
fn winograd_data_gradient_matches_its_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(23));
    for _ in 0..cases(40) {
        let batch = pick(&mut random, &[1, 2, 3]);
        let (ins, outs) = (pick(&mut random, &[1, 16, 19, 40]), pick(&mut random, &[1, 16, 33]));
        let input = [0, 1].map(|_| pick(&mut random, &[3, 7, 12, 15]));
        let pad = pick(&mut random, &[0, 1]);
        let output = input.map(|extent| extent + 2 * pad - 2);
        let window = Window { input, output, kernel: [3, 3], stride: [1, 1], dilation: [1, 1], pad: [pad, pad] };
        let conv = Winograd {
            batch,
            in_channels: outs,
            out_channels: ins,
            window: Window { input: output, output: input, pad: [2 - pad, 2 - pad], ..window },
            tile: pick(&mut random, &[2, 4]),
            epilogue: Epilogue::default(),
            workspace_max: Winograd::WORKSPACE_MAX,
        };
        let kernel = Kernel::from(DynamicConv { conv: PackedConv::Winograd(conv), order: WeightOrder::Gradient });
        let [input_plane, plane] = planes(&window);
        let dy = numbers(&mut random, batch * outs * plane, false);
        let weights = numbers(&mut random, outs * ins * 9, false);
        let want = data_gradient(&dy, &window, 1, [ins, outs], &weights);
        let inputs = [F32.bytes(&blocked(&dy, outs, plane, f32::NAN)), F32.bytes(&weights)];
        for got in run_all(&kernel, F32, &inputs, false, &pools) {
            check(&kernel, &unblocked(&got, batch, ins, input_plane), &want, 2e-4);
        }
    }
}

/// The weight gradient of a grouped convolution.
fn weight_gradient(x: &[f32], dy: &[f32], window: &Window, groups: usize, [ins, outs]: [usize; 2]) -> Vec<f64> {
    let ([input_plane, plane], taps) = (planes(window), window.kernel[0] * window.kernel[1]);
    let (group_ins, group_outs) = (ins / groups, outs / groups);
    let mut weights = vec![0.0; outs * group_ins * taps];
    for (number, &item) in dy.iter().enumerate() {
        let (image, out, pixel) = (number / plane / outs, number / plane % outs, number % plane);
        for (tap, cell) in cells(window, pixel / window.output[1], pixel % window.output[1]) {
            for channel in 0..group_ins {
                let own = out / group_outs * group_ins + channel;
                let x = x[(image * ins + own) * input_plane + cell];
                weights[(out * group_ins + channel) * taps + tap] += f64::from(item) * f64::from(x);
            }
        }
    }
    weights
}

#[test]
fn weight_gradient_matches_its_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(24));
    for round in 0..cases(200) {
        let batch = pick(&mut random, &[1, 1, 2, 5]);
        let (groups, ins, outs) = match round % 4 {
            0 => pick(
                &mut random,
                &[(2, 32, 64), (8, 32, 16), (4, 48, 32), (7, 28, 28), (9, 18, 27), (3, 24, 24), (5, 40, 40)],
            ),
            1 => (3, 3 * pick(&mut random, &[1, 2, 5]), 3 * pick(&mut random, &[1, 4])),
            _ => (1, pick(&mut random, &[1, 3, 16, 19, 40, 130]), pick(&mut random, &[1, 16, 20, 33, 70, 130])),
        };
        // Many channels on one side at a time: blocks and their tails are those of one side.
        let outs = if 40 < ins && 33 < outs { pick(&mut random, &[16, 20, 33]) } else { outs };
        let batch = if 40 < ins.max(outs) { batch.min(2) } else { batch };
        let window = window(&mut random);
        let [input_plane, plane] = planes(&window);
        let x = numbers(&mut random, batch * ins * input_plane, false);
        let dy = numbers(&mut random, batch * outs * plane, false);
        let want = weight_gradient(&x, &dy, &window, groups, [ins, outs]);
        let (in_channels, out_channels) = (ins, outs);
        let rows =
            Kernel::from(WeightGradientRows { batch, in_channels, out_channels, groups, depth: Window::ONE, window });
        let mut kernels = vec![(rows, [F32.bytes(&x), F32.bytes(&dy)])];
        let blocked_dy = F32.bytes(&blocked(&dy, outs, plane, f32::NAN));
        for layout in [ImageLayout::RowMajor, ImageLayout::Blocked] {
            let kernel = ConvWeightGradient { batch, in_channels, out_channels, groups, window, layout };
            let x = match layout {
                ImageLayout::RowMajor => x.clone(),
                ImageLayout::Blocked => blocked(&x, ins, input_plane, f32::NAN),
            };
            kernels.push((kernel.into(), [F32.bytes(&x), blocked_dy.clone()]));
        }
        for (kernel, inputs) in kernels.iter().filter(|(kernel, _)| kernel.sizes().is_ok()) {
            for got in run_all(kernel, F32, inputs, false, &pools) {
                check(kernel, &got, &want, 1e-4);
            }
        }
    }
}

#[test]
fn depthwise_gradients_match_their_definitions() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(25));
    for _ in 0..cases(100) {
        let batch = pick(&mut random, &[1, 1, 2, 5]);
        let channels = pick(&mut random, &[1, 7, 16, 33]);
        let window = window(&mut random);
        let ([input_plane, plane], taps) = (planes(&window), window.kernel[0] * window.kernel[1]);
        let x = numbers(&mut random, batch * channels * input_plane, false);
        let dy = numbers(&mut random, batch * channels * plane, false);
        let weights = numbers(&mut random, channels * taps, false);
        let blocked_dy = F32.bytes(&blocked(&dy, channels, plane, f32::NAN));
        let kernel = Kernel::from(DepthwiseWeightGradient { batch, channels, window });
        let want = weight_gradient(&x, &dy, &window, channels, [channels, channels]);
        let inputs = [F32.bytes(&blocked(&x, channels, input_plane, f32::NAN)), blocked_dy.clone()];
        for got in run_all(&kernel, F32, &inputs, false, &pools) {
            check(&kernel, &got, &want, 1e-4);
        }
        let kernel = Kernel::from(DepthwiseDataGradient { batch, channels, window });
        let want = data_gradient(&dy, &window, channels, [channels, channels], &weights);
        for got in run_all(&kernel, F32, &[blocked_dy, F32.bytes(&weights)], false, &pools) {
            check(&kernel, &unblocked(&got, batch, channels, input_plane), &want, 1e-4);
        }
    }
}

/// All results of a kernel in all pools, with the first operand in place in some. Results of one ISA must be bit-identical.
fn run_outputs(kernel: &Kernel, inputs: &[Vec<u8>], in_place: bool) -> Vec<Vec<Vec<f32>>> {
    let family = |pools: &[prestow_cpu::Pool; 3]| {
        let first = run_bytes(kernel, inputs, None, 7.0, &pools[0]);
        for pool in pools {
            let other = run_bytes(kernel, inputs, in_place.then_some(0), f32::NAN, pool);
            assert!(other == first, "{kernel:?} differs with {} threads", pool.threads());
        }
        first.iter().map(|bytes| numbers_of(F32, bytes)).collect()
    };
    pools([1, 2, 3]).iter().map(family).collect()
}

/// `[batch, channels, plane]` in a layout.
fn laid(items: &[f32], planes: &Planes) -> Vec<u8> {
    match planes.layout {
        ImageLayout::RowMajor => F32.bytes(items),
        // Lanes without a channel hold anything, but a kernel must not trap on them.
        ImageLayout::Blocked => F32.bytes(&blocked(items, planes.channels, planes.plane, 0.5)),
    }
}

fn unlaid(items: &[f32], planes: &Planes) -> Vec<f32> {
    match planes.layout {
        ImageLayout::RowMajor => items.to_vec(),
        ImageLayout::Blocked => unblocked(items, planes.batch, planes.channels, planes.plane),
    }
}

#[test]
fn batch_norm_and_its_gradient_match_their_definitions() {
    let mut random = Random::new(26);
    for round in 0..cases(60) {
        let planes = Planes {
            batch: pick(&mut random, &[1, 2, 5]),
            channels: pick(&mut random, &[1, 7, 16, 33]),
            plane: pick(&mut random, &[1, 5, 16, 49, 600, 3000]),
            layout: pick(&mut random, &[ImageLayout::RowMajor, ImageLayout::Blocked]),
        };
        // Images of one pixel are summed in parts of some thousand.
        let planes = match planes.plane {
            1 => Planes { batch: pick(&mut random, &[1, 5, 1500]), ..planes },
            _ => planes,
        };
        let Planes { batch, channels, plane, .. } = planes;
        let (epsilon, relu) = (1e-3, round % 2 == 0);
        // A mean far from 0 shows cancellation.
        let x: Vec<f32> =
            numbers(&mut random, batch * channels * plane, false).iter().map(|item| item + 30.0).collect();
        let dy = numbers(&mut random, x.len(), false);
        let [scale, bias] = [0, 1].map(|_| numbers(&mut random, channels, false));
        let count = (batch * plane) as f64;
        let channel = |at: usize| at / plane % channels;
        let sums = |of: &dyn Fn(usize) -> f64| {
            let mut sums = vec![0.0; channels];
            (0..x.len()).for_each(|at| sums[channel(at)] += of(at));
            sums
        };
        let mean: Vec<f64> = sums(&|at| f64::from(x[at])).iter().map(|sum| sum / count).collect();
        let variance = sums(&|at| (f64::from(x[at]) - mean[channel(at)]).powi(2));
        let variance: Vec<f64> = variance.iter().map(|sum| sum / count).collect();
        let deviation = |at: usize| (variance[channel(at)] + f64::from(epsilon)).sqrt();
        let normal = |at: usize| (f64::from(x[at]) - mean[channel(at)]) / deviation(at);
        let plain = |at: usize| normal(at) * f64::from(scale[channel(at)]) + f64::from(bias[channel(at)]);
        let y: Vec<f64> = (0..x.len()).map(|at| if relu { plain(at).max(0.0) } else { plain(at) }).collect();
        let kernel = Kernel::from(BatchNormTraining { planes, epsilon, relu });
        let inputs = [laid(&x, &planes), F32.bytes(&scale), F32.bytes(&bias)];
        for got in run_outputs(&kernel, &inputs, true) {
            check(&kernel, &unlaid(&got[0], &planes), &y, 2e-3);
            check(&kernel, &got[1], &mean, 1e-6);
            check(&kernel, &got[2], &variance, 1e-5);
        }
        let given = |at: usize| if relu && plain(at) <= 0.0 { 0.0 } else { f64::from(dy[at]) };
        let dbias = sums(&given);
        let dscale = sums(&|at| given(at) * normal(at));
        let dx: Vec<f64> = (0..x.len())
            .map(|at| {
                let ix = channel(at);
                f64::from(scale[ix]) / deviation(at) * (given(at) - dbias[ix] / count - normal(at) * dscale[ix] / count)
            })
            .collect();
        let kernel = Kernel::from(BatchNormGradient { planes, epsilon, relu });
        let narrow = |items: &[f64]| F32.bytes(&items.iter().map(|&item| item as f32).collect::<Vec<_>>());
        let mut inputs =
            vec![laid(&dy, &planes), laid(&x, &planes), F32.bytes(&scale), narrow(&mean), narrow(&variance)];
        if relu {
            inputs.push(F32.bytes(&bias));
        }
        // Results next to the kink may fall on either side.
        if relu && (0..x.len()).any(|at| plain(at).abs() < 1e-4) {
            continue;
        }
        for got in run_outputs(&kernel, &inputs, true) {
            check(&kernel, &unlaid(&got[0], &planes), &dx, 5e-3);
            check(&kernel, &got[1], &dscale, 1e-3);
            check(&kernel, &got[2], &dbias, 1e-3);
        }
        let kernel = Kernel::from(ChannelSum { planes });
        for got in run_outputs(&kernel, &[laid(&dy, &planes)], false) {
            check(&kernel, &got[0], &sums(&|at| f64::from(dy[at])), 1e-4);
        }
    }
}

#[test]
fn pool_gradient_matches_its_definition() {
    let mut random = Random::new(27);
    for _ in 0..cases(100) {
        let window = window(&mut random);
        let [input_plane, plane] = planes(&window);
        let pad_end = [random.below(3) as usize, random.below(3) as usize];
        let kinds = [Pool2dKind::Max, Pool2dKind::Mean, Pool2dKind::MeanWithPadding { pad_end }];
        let kind = pick(&mut random, &kinds);
        let planes = Planes {
            batch: pick(&mut random, &[1, 2]),
            channels: pick(&mut random, &[1, 7, 16, 33]),
            plane,
            layout: pick(&mut random, &[ImageLayout::RowMajor, ImageLayout::Blocked]),
        };
        let images = Planes { plane: input_plane, ..planes };
        let all = planes.batch * planes.channels;
        // Few different numbers, so that maxima meet.
        let x: Vec<f32> = (0..all * input_plane).map(|_| random.below(4) as f32).collect();
        let dy = numbers(&mut random, all * plane, false);
        let (mut y, mut want) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        for (at, &slope) in dy.iter().enumerate() {
            let (oy, ox) = (at % plane / window.output[1], at % window.output[1]);
            let cells = cells(&window, oy, ox);
            let base = at / plane * input_plane;
            let counted = |axis: usize, at: usize| {
                let reach = |tap: usize| at * window.stride[axis] + tap * window.dilation[axis];
                let end = window.pad[axis] + window.input[axis] + pad_end[axis];
                (0..window.kernel[axis]).filter(|&tap| reach(tap) < end).count()
            };
            y[at] = cells.iter().map(|&(_, cell)| x[base + cell]).fold(f32::NEG_INFINITY, f32::max);
            match kind {
                Pool2dKind::Max => {
                    if let Some(&(_, cell)) = cells.iter().find(|&&(_, cell)| x[base + cell] == y[at]) {
                        want[base + cell] += f64::from(slope);
                    }
                }
                Pool2dKind::Mean => {
                    cells.iter().for_each(|&(_, cell)| want[base + cell] += f64::from(slope) / cells.len() as f64);
                }
                Pool2dKind::MeanWithPadding { .. } => {
                    let count = (counted(0, oy) * counted(1, ox)) as f64;
                    cells.iter().for_each(|&(_, cell)| want[base + cell] += f64::from(slope) / count);
                }
            }
        }
        let kernel = Kernel::from(PoolGradient { kind, planes, window, positions: false });
        let mut inputs = vec![laid(&dy, &planes)];
        if kind == Pool2dKind::Max {
            inputs.push(laid(&x, &images));
        }
        for got in run_outputs(&kernel, &inputs, false) {
            check(&kernel, &unlaid(&got[0], &images), &want, 1e-5);
        }
        if kind != Pool2dKind::Max {
            continue;
        }
        // The same by way of positions.
        let (forward, backward) = (
            Kernel::from(PoolWithPositions { planes, window }),
            Kernel::from(PoolGradient { kind, planes, window, positions: true }),
        );
        for pool in pools([1, 2, 3]).iter().flatten() {
            let results = run_bytes(&forward, &[laid(&x, &images)], None, 7.0, pool);
            let maxima = unlaid(&numbers_of(F32, &results[0]), &planes);
            assert_eq!(maxima, y, "{forward:?}");
            let dx = run_bytes(&backward, &[laid(&dy, &planes), results[1].clone()], None, 7.0, pool);
            check(&backward, &unlaid(&numbers_of(F32, &dx[0]), &images), &want, 1e-5);
        }
    }
}

#[test]
fn update_by_factors_equals_a_product_and_an_update() {
    let mut random = Random::new(41);
    for case in 0..cases(60) {
        let rules = [
            UpdateRule::Sgd(Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() }),
            UpdateRule::Adam(Adam::default()),
            UpdateRule::Sgd(Sgd::default()),
        ];
        let rule = pick(&mut random, &rules);
        let m = pick(&mut random, &[1, 7, 30, 97]);
        let k = pick(&mut random, &[1, 4, 17, 100]);
        let n = pick(&mut random, &[1, 15, 64, 130]);
        let band = 1 + random.below(m as u64) as usize;
        let by_factors = Kernel::from(UpdateByFactors { rule, m, k, n, band });
        let whole = UpdateByFactors { rule, m, k, n, band: m };
        let update = Kernel::from(Update { rule, elements: m * n });
        let mut numbers_in = |count: usize| numbers(&mut random, count, false);
        let (weight, left, right) = (numbers_in(m * n), numbers_in(m * k), numbers_in(k * n));
        let states: Vec<Vec<f32>> = rule.states().iter().map(|_| numbers_in(m * n)).collect();
        let bytes = |items: &[f32]| F32.bytes(items);
        let states = states.iter().map(|state| bytes(&state.iter().map(|item| item * item).collect::<Vec<_>>()));
        let mut inputs = vec![bytes(&weight), bytes(&left)];
        inputs.extend(states);
        inputs.push(bytes(&[0.125]));
        if rule.reads_step() {
            inputs.push(3i64.to_le_bytes().to_vec());
        }
        let gradient: Vec<f64> = (0..m * n)
            .map(|at| (0..k).map(|term| f64::from(left[at / n * k + term]) * f64::from(right[term * n + at % n])).sum())
            .collect();
        let mut of_gradient = inputs.clone();
        of_gradient[1] = bytes(&gradient.iter().map(|&item| item as f32).collect::<Vec<_>>());
        inputs.push(bytes(&right));
        let want = run_outputs(&update, &of_gradient, false);
        // Adam divides by roots of squares, which magnifies the rounding of a small gradient.
        let tolerance = if rule.reads_step() { 1e-3 } else { 1e-5 };
        for kernel in [by_factors, whole.into()] {
            for (got, want) in run_outputs(&kernel, &inputs, case % 2 == 0).iter().zip(&want) {
                for (got, want) in got.iter().zip(want) {
                    let want: Vec<f64> = want.iter().map(|&item| f64::from(item)).collect();
                    check(&kernel, got, &want, tolerance);
                }
            }
        }
    }
}
