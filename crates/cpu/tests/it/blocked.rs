//! Convolutions and kernels on the blocked layout against plain loops in `f64`, on every ISA and several numbers of threads. Padding
//! lanes of operands hold NaN.

use prestow_cpu::{
    Conv, DepthwiseBlocked, Epilogue, Front, ImageLayout, InvertedBottleneck, Kernel, Pool, Pool2dKind, PoolBlocked,
    Reorder, StorageType, Weights, Window,
};
use types::pointwise::Unary;
use types::{Random, WeightFormat};

use super::common::{bits, blocked, cases, numbers_of, pools, rounded, rounding, run_bytes, unblocked};

/// Runs a kernel in all pools, in some of them with its last operand in place. Results of one ISA must be
/// bit-identical. Returns one result per ISA.
pub(crate) fn run_all(
    kernel: &Kernel,
    result: StorageType,
    inputs: &[Vec<u8>],
    in_place: bool,
    pools: &[[Pool; 3]],
) -> Vec<Vec<f32>> {
    let family = |pools: &[Pool; 3]| {
        let first = run_bytes(kernel, inputs, None, 7.0, &pools[0]).swap_remove(0);
        for pool in pools {
            let other = run_bytes(kernel, inputs, in_place.then(|| inputs.len() - 1), f32::NAN, pool);
            assert!(other[0] == first, "{kernel:?} differs with {} threads", pool.threads());
        }
        numbers_of(result, &first)
    };
    pools.iter().map(family).collect()
}

/// Asserts equality up to rounding, relative to the size of the summed terms.
pub(crate) fn check(kernel: &Kernel, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{kernel:?}");
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let got = f64::from(got);
        let same =
            got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance * (1.0 + want.abs());
        assert!(same, "{kernel:?}: {got} for {want} at {at}");
    }
}

/// Random numbers; if `wild`, with infinities and NaN among them.
pub(crate) fn numbers(random: &mut Random, len: usize, wild: bool) -> Vec<f32> {
    let number = |random: &mut Random| match random.below(60) {
        0 if wild => f32::NAN,
        1 if wild => f32::INFINITY,
        2 if wild => f32::NEG_INFINITY,
        3 => -0.0,
        _ => random.uniform(-1.0, 1.0),
    };
    (0..len).map(|_| number(random)).collect()
}

pub(crate) fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

/// Windows that are common in networks, and arbitrary ones.
pub(crate) fn window(random: &mut Random) -> Window {
    let input = [0, 1].map(|_| pick(random, &[1, 2, 5, 7, 11, 14, 15, 17, 28, 31, 37]));
    window_over(random, input)
}

pub(crate) fn window_over(random: &mut Random, input: [usize; 2]) -> Window {
    let usual = random.below(2) == 0;
    let mut axis = |input: usize| {
        let (kernel, stride, dilation) = match usual {
            true => (pick(random, &[3, 5]), pick(random, &[1, 2]), 1),
            false => (1 + random.below(7) as usize, 1 + random.below(4) as usize, 1 + random.below(3) as usize),
        };
        let pad = if usual { kernel / 2 } else { random.below(5) as usize };
        let room = (input + 2 * pad).saturating_sub((kernel - 1) * dilation + 1);
        // Sometimes the window extends beyond the image.
        let output = room / stride + usize::from(!usual) * random.below(4) as usize + 1;
        [input, output, kernel, stride, dilation, pad]
    };
    let [rows, columns] = input.map(&mut axis);
    let pair = |at: usize| [rows[at], columns[at]];
    Window { input: pair(0), output: pair(1), kernel: pair(2), stride: pair(3), dilation: pair(4), pad: pair(5) }
}

/// The cells of a plane under a window, each with its tap.
pub(crate) fn cells(window: &Window, oy: usize, ox: usize) -> Vec<(usize, usize)> {
    let inside = |axis: usize, at: usize, tap: usize| {
        let place = at * window.stride[axis] + tap * window.dilation[axis];
        place.checked_sub(window.pad[axis]).filter(|&place| place < window.input[axis])
    };
    let mut cells = Vec::new();
    for ky in 0..window.kernel[0] {
        for kx in 0..window.kernel[1] {
            if let (Some(iy), Some(ix)) = (inside(0, oy, ky), inside(1, ox, kx)) {
                cells.push((ky * window.kernel[1] + kx, iy * window.input[1] + ix));
            }
        }
    }
    cells
}

pub(crate) fn planes(window: &Window) -> [usize; 2] {
    [window.input[0] * window.input[1], window.output[0] * window.output[1]]
}

/// Applies bias, residual and functions; `plane` results per channel.
pub(crate) fn finish(sums: &mut [f64], plane: usize, epilogue: &Epilogue, bias: &[f32], residual: &[f32]) {
    for (at, sum) in sums.iter_mut().enumerate() {
        *sum += if epilogue.bias { f64::from(bias[at / plane % bias.len()]) } else { 0.0 };
        *sum += if epilogue.residual { f64::from(residual[at]) } else { 0.0 };
        *sum = epilogue.activation.iter().fold(*sum, |sum, function| function.eval(sum));
    }
}

/// Checks a row-major convolution of `x` by weights, with a bias and a residual for the epilogue. `sums` are those of the definition.
pub(crate) fn check_convolution(
    kernel: Kernel,
    epilogue: &Epilogue,
    [x, weights, bias, residual]: [Vec<f32>; 4],
    mut sums: Vec<f64>,
    plane: usize,
    pools: &[[Pool; 3]],
) {
    finish(&mut sums, plane, epilogue, &bias, &residual);
    let mut inputs = vec![x, weights];
    inputs.extend(epilogue.bias.then_some(bias));
    inputs.extend(epilogue.residual.then_some(residual));
    let inputs: Vec<Vec<u8>> = inputs.iter().map(|items| StorageType::F32.bytes(items)).collect();
    for got in run_all(&kernel, StorageType::F32, &inputs, epilogue.residual, pools) {
        // Up to two thousand terms.
        check(&kernel, &got, &sums, 5e-5);
    }
}

/// Convolution of `[.., inputs, plane]` to `[.., channels, plane]` in groups of `ins` by `outs` channels.
fn in_groups(x: &[f64], window: &Window, channels: usize, [ins, outs]: [usize; 2], weights: &[f32]) -> Vec<f64> {
    let ([input_plane, plane], taps) = (planes(window), window.kernel[0] * window.kernel[1]);
    let sum = |at: usize| -> f64 {
        let (channel, pixel) = (at / plane, at % plane);
        let cells = cells(window, pixel / window.output[1], pixel % window.output[1]);
        let of_member = |member: usize| {
            let x = &x[(channel / outs * ins + member) * input_plane..];
            let weights = &weights[(channel % channels * ins + member) * taps..];
            cells.iter().map(|&(tap, cell)| x[cell] * f64::from(weights[tap])).sum::<f64>()
        };
        (0..ins).map(of_member).sum()
    };
    (0..x.len() / input_plane / ins * outs * plane).map(sum).collect()
}

/// The window of a 1x1 convolution.
fn pointwise(plane: [usize; 2]) -> Window {
    Window { input: plane, output: plane, kernel: [1, 1], stride: [1, 1], dilation: [1, 1], pad: [0, 0] }
}

pub(crate) fn wide(items: &[f32]) -> Vec<f64> {
    items.iter().map(|&item| item.into()).collect()
}

pub(crate) fn epilogue(random: &mut Random, residual: bool) -> Epilogue {
    let activations: [&[Unary]; 5] = [
        &[],
        &[Unary::Relu],
        &[Unary::Clip { min: 0.0, max: 0.75 }],
        &[Unary::HardSwish],
        &[Unary::Relu, Unary::Sigmoid],
    ];
    Epilogue {
        scale: false,
        bias: random.below(2) == 0,
        residual: residual && random.below(2) == 0,
        quantized_sum: None,
        activation: pick(random, &activations).iter().copied().collect(),
    }
}

#[test]
fn reorder_moves_every_element() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(5));
    for round in 0..60 {
        let batch = pick(&mut random, &[1, 1, 2, 3]);
        let channels = pick(&mut random, &[1, 3, 15, 16, 17, 32, 40, 131]);
        let plane = pick(&mut random, &[1, 2, 16, 49, 63, 196, 511, 512, 513, 1037]);
        let (batch, channels, plane) = if round == 0 { (0, 3, 5) } else { (batch, channels, plane) };
        let stored = pick(&mut random, &StorageType::ALL);
        let rows = rounded(stored, numbers(&mut random, batch * channels * plane, true));
        let to_blocked = Kernel::from(Reorder { batch, channels, plane, to_blocked: true, stored });
        let back = Kernel::from(Reorder { batch, channels, plane, to_blocked: false, stored });
        for got in run_all(&to_blocked, stored, &[stored.bytes(&rows)], false, &pools) {
            assert!(bits(&got) == bits(&blocked(&rows, channels, plane, 0.0)), "{to_blocked:?}");
        }
        let pixels = stored.bytes(&blocked(&rows, channels, plane, f32::NAN));
        for got in run_all(&back, stored, &[pixels], false, &pools) {
            assert!(bits(&got) == bits(&rows), "{back:?}");
        }
    }
}

#[test]
fn depthwise_matches_its_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(9));
    for case in 0..cases(400) {
        let batch = pick(&mut random, &[1, 1, 2]);
        let several = [[2, 2], [4, 4], [8, 8], [1, 2], [1, 4], [1, 8], [2, 4], [2, 8], [4, 8]];
        let group = if case % 2 == 0 { [1, 1] } else { pick(&mut random, &several) };
        let [ins, outs] = group;
        let channels = pick(&mut random, &[1usize, 7, 16, 24, 33, 50]).next_multiple_of(outs);
        let in_channels = channels / outs * ins;
        let (window, wild) = (window(&mut random), random.below(4) == 0);
        let epilogue = epilogue(&mut random, true);
        let stored = if group == [1, 1] { pick(&mut random, &StorageType::FRACTIONS) } else { StorageType::F32 };
        let kernel = DepthwiseBlocked {
            batch,
            channels,
            group,
            window,
            stored,
            zero_point: 0,
            result: stored,
            epilogue: epilogue.clone(),
        };
        let [input_plane, plane] = planes(&window);
        let taps = window.kernel[0] * window.kernel[1];
        let x = rounded(stored, numbers(&mut random, batch * in_channels * input_plane, wild));
        let weights = numbers(&mut random, channels * ins * taps, wild);
        let bias = numbers(&mut random, channels, false);
        let residual = rounded(stored, numbers(&mut random, batch * channels * plane, false));
        let mut want = in_groups(&wide(&x), &window, channels, group, &weights);
        finish(&mut want, plane, &epilogue, &bias, &residual);
        let x = stored.bytes(&blocked(&x, in_channels, input_plane, f32::NAN));
        let mut inputs = vec![x, StorageType::F32.bytes(&kernel.pack(&weights))];
        if epilogue.bias {
            inputs.push(StorageType::F32.bytes(&blocked(&bias, channels, 1, 0.0)));
        }
        if epilogue.residual {
            inputs.push(stored.bytes(&blocked(&residual, channels, plane, f32::NAN)));
        }
        let kernel = Kernel::from(kernel);
        for got in run_all(&kernel, stored, &inputs, epilogue.residual, &pools) {
            check(&kernel, &unblocked(&got, batch, channels, plane), &want, 1e-5 + rounding(stored));
        }
    }
}

/// Images of all shapes, and long rows of many channels, whose columns are divided.
#[test]
fn row_major_convolution_matches_its_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(10));
    for case in 0..cases(80) {
        let groups = pick(&mut random, &[1, 1, 2, 3]);
        let is_long = case % 4 == 0;
        let input = [pick(&mut random, &[1, 1, 3]), pick(&mut random, &[290, 515, 1100])];
        let (window, ins) = match is_long {
            true => (window_over(&mut random, input), pick(&mut random, &[3, 64, 70])),
            false => (window(&mut random), pick(&mut random, &[1, 3, 8, 65])),
        };
        let (batch, outs) = (pick(&mut random, &[1, 1, 2]), pick(&mut random, &[1, 2, 5, 13]));
        let workspace_max = pick(&mut random, &[0, 20_000, Conv::WORKSPACE_MAX]);
        let epilogue = epilogue(&mut random, true);
        let kernel = Conv {
            batch,
            in_channels: groups * ins,
            out_channels: groups * outs,
            groups,
            window,
            weights: Weights::Packed,
            epilogue: epilogue.clone(),
            workspace_max,
        };
        let [input_plane, plane] = planes(&window);
        let x = numbers(&mut random, batch * groups * ins * input_plane, false);
        let weights = numbers(&mut random, groups * outs * ins * window.kernel[0] * window.kernel[1], false);
        let bias = numbers(&mut random, groups * outs, false);
        let residual = numbers(&mut random, batch * groups * outs * plane, false);
        // Each image and group on its own.
        let (of_image, of_group) = (wide(&x), weights.len() / groups);
        let results = of_image.chunks(ins * input_plane).enumerate().map(|(at, x)| {
            let weights = &weights[at % groups * of_group..][..of_group];
            in_groups(x, &window, outs, [ins, outs], weights)
        });
        let want = results.collect::<Vec<_>>().concat();
        let inputs = [x, kernel.pack(&weights), bias, residual];
        check_convolution(kernel.into(), &epilogue, inputs, want, plane, &pools);
    }
}

#[test]
fn copies_of_strided_taps_match_the_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(12));
    // Columns of the kernel, stride, dilation, padding, input channels and input columns.
    for [columns, stride, dilation, pad, ins, width] in [
        [16, 4, 1, 7, 8, 100],
        [16, 4, 1, 0, 1, 3000],
        [9, 3, 2, 5, 3, 40],
        [8, 2, 1, 3, 4, 33],
        [12, 4, 6, 30, 2, 9],
        [5, 2, 2, 4, 2, 50],
        [16, 5, 1, 40, 1, 6],
        [7, 4, 3, 0, 2, 200],
    ] {
        let (batch, outs) = (2, 5);
        let output = (width + 2 * pad - (columns - 1) * dilation - 1) / stride + 1;
        let window = Window {
            input: [3, width],
            output: [2, output],
            kernel: [2, columns],
            stride: [1, stride],
            dilation: [1, dilation],
            pad: [0, pad],
        };
        for workspace_max in [0, Conv::WORKSPACE_MAX] {
            let kernel = Conv {
                batch,
                in_channels: ins,
                out_channels: outs,
                groups: 1,
                window,
                weights: Weights::Packed,
                epilogue: Epilogue::default(),
                workspace_max,
            };
            let x = numbers(&mut random, batch * ins * 3 * width, false);
            let weights = numbers(&mut random, outs * ins * 2 * columns, false);
            let images = wide(&x);
            let results = images.chunks(ins * 3 * width).map(|x| in_groups(x, &window, outs, [ins, outs], &weights));
            let want = results.collect::<Vec<_>>().concat();
            let inputs = [x, kernel.pack(&weights)].map(|items| StorageType::F32.bytes(&items));
            let kernel = Kernel::from(kernel);
            for got in run_all(&kernel, StorageType::F32, &inputs, false, &pools) {
                check(&kernel, &got, &want, 5e-5);
            }
        }
    }
}

#[test]
fn pooling_matches_its_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(11));
    for round in 0..cases(250) {
        let batch = pick(&mut random, &[1, 1, 2]);
        let channels = pick(&mut random, &[1, 7, 16, 24, 33]);
        let mut window = window(&mut random);
        if round % 5 == 0 {
            // Global average pooling.
            window = Window {
                output: [1, 1],
                kernel: window.input,
                stride: [1, 1],
                dilation: [1, 1],
                pad: [0, 0],
                ..window
            };
        }
        let pad_end = [random.below(3) as usize, random.below(3) as usize];
        let kinds = [Pool2dKind::Max, Pool2dKind::Mean, Pool2dKind::MeanWithPadding { pad_end }];
        let kind = pick(&mut random, &kinds);
        let [input_plane, plane] = planes(&window);
        let wild = random.below(2) == 0;
        let stored = pick(&mut random, &StorageType::FRACTIONS);
        let x = rounded(stored, numbers(&mut random, batch * channels * input_plane, wild));
        let counted = |axis: usize, at: usize| {
            let reach = |tap: usize| at * window.stride[axis] + tap * window.dilation[axis];
            let end = window.pad[axis] + window.input[axis] + pad_end[axis];
            (0..window.kernel[axis]).filter(|&tap| reach(tap) < end).count()
        };
        let mut want = Vec::new();
        for number in 0..batch * channels * plane {
            let (oy, ox) = (number % plane / window.output[1], number % window.output[1]);
            let cells = cells(&window, oy, ox);
            let items = cells.iter().map(|&(_, cell)| f64::from(x[number / plane * input_plane + cell]));
            want.push(match kind {
                Pool2dKind::Max => items.fold(f64::NEG_INFINITY, |a, b| if a.is_nan() || b < a { a } else { b }),
                Pool2dKind::Mean => items.sum::<f64>() / cells.len() as f64,
                Pool2dKind::MeanWithPadding { .. } => items.sum::<f64>() / (counted(0, oy) * counted(1, ox)) as f64,
            });
        }
        let kernel = Kernel::from(PoolBlocked { kind, batch, channels, window, stored });
        let pictures = stored.bytes(&blocked(&x, channels, input_plane, f32::NAN));
        for got in run_all(&kernel, stored, &[pictures], false, &pools) {
            check(&kernel, &unblocked(&got, batch, channels, plane), &want, 1e-6 + rounding(stored));
        }
    }
}

/// The numbers that weights stand for, which are rows of output channels.
fn decoded(format: Option<WeightFormat>, weights: Vec<f32>, channels: usize) -> Vec<f32> {
    let row = weights.len() / channels;
    format.map_or(weights.clone(), |format| format.decoded(&weights, channels, |at| at / row))
}

#[test]
fn bottleneck_equals_its_three_convolutions() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(13));
    for _ in 0..cases(200) {
        let batch = pick(&mut random, &[1, 1, 2, 5]);
        let [channels, outs] = [0, 1].map(|_| pick(&mut random, &[1, 7, 16, 24, 33, 48, 70]));
        let mut window = window(&mut random);
        // The first stage: absent, a 1x1 convolution over blocks, or any convolution of either layout.
        let front = match random.below(4) {
            0 => None,
            1 => Some((pointwise(window.input), true)),
            input => Some((window, input == 2)),
        };
        let front = front.map(|(own, is_blocked)| {
            window = window_over(&mut random, own.output);
            Front {
                window: own,
                layout: if is_blocked { ImageLayout::Blocked } else { ImageLayout::RowMajor },
                epilogue: epilogue(&mut random, false),
            }
        });
        let ins = if front.is_some() { pick(&mut random, &[3, 16, 19, 32]) } else { channels };
        let kernel = InvertedBottleneck {
            batch,
            in_channels: ins,
            channels,
            out_channels: outs,
            window,
            front: front.clone(),
            depthwise: epilogue(&mut random, false),
            project: epilogue(&mut random, true),
            band: pick(&mut random, &[1, 2, 3, 5, 8, 100]),
            weights: pick(&mut random, &[None, Some(WeightFormat::Bf16), Some(WeightFormat::Int8)]),
        };
        let ([input_plane, plane], taps) = (planes(&window), window.kernel[0] * window.kernel[1]);
        let read_plane = front.as_ref().map_or(input_plane, |front| planes(&front.window)[0]);
        let wild = random.below(4) == 0;
        let x = numbers(&mut random, batch * ins * read_plane, wild);
        let plain = |items: &[f32]| StorageType::F32.bytes(items);
        let in_blocks = front.as_ref().is_none_or(|front| front.layout == ImageLayout::Blocked);
        let mut inputs = vec![plain(&if in_blocks { blocked(&x, ins, read_plane, f32::NAN) } else { x.clone() })];
        let mut want = wide(&x);
        if let (Some(Front { window, epilogue, .. }), Some(own)) = (&kernel.front, kernel.front_kernel()) {
            let taps = window.kernel[0] * window.kernel[1];
            let weights = decoded(kernel.weights, numbers(&mut random, channels * ins * taps, false), channels);
            let bias = numbers(&mut random, channels, false);
            want = in_groups(&want, window, channels, [ins, channels], &weights);
            finish(&mut want, input_plane, epilogue, &bias, &[]);
            inputs.push(own.pack(&weights));
            inputs.extend(epilogue.bias.then(|| plain(&blocked(&bias, channels, 1, 0.0))));
        }
        let (weights, bias) = (numbers(&mut random, channels * taps, false), numbers(&mut random, channels, false));
        want = in_groups(&want, &window, channels, [1, 1], &weights);
        finish(&mut want, plane, &kernel.depthwise, &bias, &[]);
        inputs.push(plain(&kernel.depthwise_kernel().pack(&weights)));
        inputs.extend(kernel.depthwise.bias.then(|| plain(&blocked(&bias, channels, 1, 0.0))));
        let weights = decoded(kernel.weights, numbers(&mut random, outs * channels, false), outs);
        let bias = numbers(&mut random, outs, false);
        let residual = numbers(&mut random, batch * outs * plane, false);
        want = in_groups(&want, &pointwise(window.output), outs, [channels, outs], &weights);
        finish(&mut want, plane, &kernel.project, &bias, &residual);
        inputs.push(kernel.project_kernel().pack(&weights));
        inputs.extend(kernel.project.bias.then(|| plain(&blocked(&bias, outs, 1, 0.0))));
        inputs.extend(kernel.project.residual.then(|| plain(&blocked(&residual, outs, plane, f32::NAN))));
        let in_place = kernel.project.residual;
        let kernel = Kernel::from(kernel);
        for got in run_all(&kernel, StorageType::F32, &inputs, in_place, &pools) {
            check(&kernel, &unblocked(&got, batch, outs, plane), &want, 1e-4);
        }
    }
}
