//! Convolutions, pools and normalisation over channels.

use prestow_cpu::{Conv, ConvTranspose, DepthwiseConv, Epilogue, Kernel, Lrn, Pool2d, PoolKind};
use types::Random;
use types::pointwise::Unary;

use crate::{Given, check, pick, pools, random_floats, run_all};

/// Sums of at most some thousand products of numbers below 1, in `f32`.
const TOLERANCE: f64 = 2e-5;

struct Judge<'a> {
    conv: &'a Conv,
    x: &'a [f32],
    weights: &'a [f32],
    bias: &'a [f32],
    residual: &'a [f32],
}

impl Judge<'_> {
    fn eval(&self) -> Vec<f64> {
        let c = self.conv;
        let [icg, ocg] = [c.in_channels / c.groups, c.out_channels / c.groups];
        let mut out = Vec::new();
        for n in 0..c.batch {
            for oc in 0..c.out_channels {
                for oy in 0..c.output[0] {
                    for ox in 0..c.output[1] {
                        let mut sum = self.bias.get(oc).map_or(0.0, |&bias| f64::from(bias));
                        sum += self.residual.get(out.len()).map_or(0.0, |&x| f64::from(x));
                        for ic in 0..icg {
                            for ky in 0..c.kernel[0] {
                                for kx in 0..c.kernel[1] {
                                    let iy = (oy * c.stride[0] + ky * c.dilation[0]) as isize - c.pad_begin[0] as isize;
                                    let ix = (ox * c.stride[1] + kx * c.dilation[1]) as isize - c.pad_begin[1] as isize;
                                    if iy < 0 || ix < 0 || iy >= c.input[0] as isize || ix >= c.input[1] as isize {
                                        continue;
                                    }
                                    let channel = oc / ocg * icg + ic;
                                    let at = ((n * c.in_channels + channel) * c.input[0] + iy as usize) * c.input[1] + ix as usize;
                                    let w = ((oc * icg + ic) * c.kernel[0] + ky) * c.kernel[1] + kx;
                                    sum += f64::from(self.x[at]) * f64::from(self.weights[w]);
                                }
                            }
                        }
                        out.push(c.epilogue.activation.iter().fold(sum, |x, f| f.eval(x)));
                    }
                }
            }
        }
        out
    }
}

fn random_epilogue(random: &mut Random) -> Epilogue {
    let activation = pick(random, &[&[][..], &[Unary::Relu], &[Unary::Silu], &[Unary::Relu, Unary::Clip { min: 0.0, max: 0.5 }]]);
    Epilogue { bias: random.below(2) == 0, residual: random.below(2) == 0, activation: activation.iter().copied().collect() }
}

fn random_conv(random: &mut Random) -> Conv {
    let groups = pick(random, &[1, 1, 1, 2, 3]);
    let two = |random: &mut Random, from: &[usize]| [pick(random, from), pick(random, from)];
    let mut conv = Conv {
        batch: pick(random, &[1, 1, 2, 3, 0]),
        in_channels: groups * pick(random, &[1, 2, 5, 37, 0]),
        out_channels: groups * pick(random, &[1, 3, 12, 13, 29]),
        groups,
        input: two(random, &[1, 2, 5, 7, 9, 14, 17]),
        kernel: two(random, &[1, 1, 2, 3, 3, 5]),
        stride: two(random, &[1, 1, 2, 3]),
        dilation: two(random, &[1, 1, 2]),
        pad_begin: two(random, &[0, 0, 1, 2, 4]),
        ..Conv::default()
    };
    if random.below(4) == 0 {
        (conv.kernel, conv.stride, conv.pad_begin) = ([1, 1], [1, 1], [0, 0]);
    }
    for axis in 0..2 {
        let padded = conv.input[axis] + conv.pad_begin[axis] + pick(random, &[0, 1, 2]);
        let reach = (conv.kernel[axis] - 1) * conv.dilation[axis] + 1;
        conv.output[axis] = if reach <= padded { (padded - reach) / conv.stride[axis] + 1 } else { 1 };
    }
    if conv.kernel == [1, 1] && random.below(2) == 0 {
        conv.output = conv.input;
    }
    conv.epilogue = random_epilogue(random);
    conv
}

/// Bias and residual as operands; the residual in place now and then.
fn push_epilogue(random: &mut Random, epilogue: &Epilogue, inputs: &mut Vec<Given>, bias: usize, out: usize) -> [Vec<f32>; 2] {
    let mut result = [Vec::new(), Vec::new()];
    if epilogue.bias {
        result[0] = random_floats(random, bias);
        inputs.push(result[0].clone().into());
    }
    if epilogue.residual {
        result[1] = random_floats(random, out);
        let items = result[1].clone();
        inputs.push(if random.below(2) == 0 { Given::F32(items) } else { Given::InPlace(items) });
    }
    result
}

fn check_conv(pools: &[[prestow_cpu::Pool; 3]], random: &mut Random, conv: Conv) {
    let x = random_floats(random, conv.batch * conv.in_channels * conv.input[0] * conv.input[1]);
    let weights =
        random_floats(random, conv.out_channels * (conv.in_channels / conv.groups) * conv.kernel[0] * conv.kernel[1]);
    let mut inputs = vec![x.clone().into(), conv.pack(&weights).into()];
    let out = conv.batch * conv.out_channels * conv.output[0] * conv.output[1];
    let [bias, residual] = push_epilogue(random, &conv.epilogue, &mut inputs, conv.out_channels, out);
    let want = Judge { conv: &conv, x: &x, weights: &weights, bias: &bias, residual: &residual }.eval();
    check(pools, conv, &inputs, &want, TOLERANCE);
}

#[test]
fn convolutions_of_random_shapes() {
    let (pools, mut random) = (pools(), Random::new(11));
    for _ in 0..250 {
        let conv = random_conv(&mut random);
        check_conv(&pools, &mut random, conv);
    }
}

#[test]
fn convolutions_over_several_blocks() {
    let (pools, mut random) = (pools(), Random::new(12));
    for (channels, side, kernel, batch) in [(150, 9, 3, 1), (700, 4, 1, 2), (97, 30, 3, 1), (3, 70, 7, 2)] {
        let conv = Conv {
            batch,
            in_channels: channels,
            out_channels: 14,
            groups: 1,
            input: [side; 2],
            output: [side; 2],
            kernel: [kernel; 2],
            stride: [1; 2],
            dilation: [1; 2],
            pad_begin: [kernel / 2; 2],
            epilogue: Epilogue { bias: true, residual: true, activation: Default::default() },
        };
        check_conv(&pools, &mut random, conv);
    }
}

#[test]
fn a_residual_in_place_gives_the_same_bits() {
    let (pools, mut random) = (pools(), Random::new(13));
    let conv = Conv {
        batch: 1,
        in_channels: 400,
        out_channels: 13,
        groups: 1,
        input: [6, 6],
        output: [6, 6],
        kernel: [1, 1],
        stride: [1, 1],
        dilation: [1, 1],
        pad_begin: [0, 0],
        epilogue: Epilogue { residual: true, ..Epilogue::default() },
    };
    let x = random_floats(&mut random, 400 * 36);
    let weights = conv.pack(&random_floats(&mut random, 400 * 13));
    let residual = random_floats(&mut random, 13 * 36);
    let kernel = Kernel::from(conv);
    assert_eq!(kernel.in_place(), Some(2));
    let apart = run_all(&pools, &kernel, &[x.clone().into(), weights.clone().into(), residual.clone().into()]);
    let inside = run_all(&pools, &kernel, &[x.into(), weights.into(), Given::InPlace(residual)]);
    assert_eq!(apart, inside);
}

#[test]
fn depthwise_convolutions_of_random_shapes() {
    let (pools, mut random) = (pools(), Random::new(14));
    for round in 0..250 {
        let mut conv = random_conv(&mut random);
        if round % 4 == 0 {
            conv.input[1] = pick(&mut random, &[33, 66, 79, 130]);
            let reach = (conv.kernel[1] - 1) * conv.dilation[1] + 1;
            conv.output[1] = (conv.input[1] + 2 * conv.pad_begin[1] - reach) / conv.stride[1] + 1;
        }
        let multiplier = pick(&mut random, &[1, 1, 2, 3]);
        conv.in_channels = pick(&mut random, &[1, 2, 5]);
        conv.out_channels = conv.in_channels * multiplier;
        conv.groups = conv.in_channels;
        let kernel = DepthwiseConv {
            batch: conv.batch,
            channels: conv.in_channels,
            multiplier,
            input: conv.input,
            output: conv.output,
            kernel: conv.kernel,
            stride: conv.stride,
            dilation: conv.dilation,
            pad_begin: conv.pad_begin,
            epilogue: conv.epilogue.clone(),
        };
        let x = random_floats(&mut random, conv.batch * conv.in_channels * conv.input[0] * conv.input[1]);
        let weights = random_floats(&mut random, conv.out_channels * conv.kernel[0] * conv.kernel[1]);
        let mut inputs = vec![x.clone().into(), weights.clone().into()];
        let out = conv.batch * conv.out_channels * conv.output[0] * conv.output[1];
        let [bias, residual] = push_epilogue(&mut random, &conv.epilogue, &mut inputs, conv.out_channels, out);
        let want = Judge { conv: &conv, x: &x, weights: &weights, bias: &bias, residual: &residual }.eval();
        check(&pools, kernel, &inputs, &want, TOLERANCE);
    }
}

#[test]
fn transposed_convolutions_of_random_shapes() {
    let (pools, mut random) = (pools(), Random::new(15));
    for _ in 0..200 {
        let like = random_conv(&mut random);
        let mut conv = ConvTranspose {
            batch: like.batch,
            in_channels: like.in_channels,
            out_channels: like.out_channels,
            groups: like.groups,
            input: like.input,
            output: [0; 2],
            kernel: like.kernel,
            stride: like.stride,
            dilation: like.dilation,
            pad_begin: like.pad_begin,
            epilogue: like.epilogue.clone(),
        };
        for axis in 0..2 {
            let full = (conv.input[axis] - 1) * conv.stride[axis] + (conv.kernel[axis] - 1) * conv.dilation[axis] + 1;
            conv.output[axis] = (full + pick(&mut random, &[0, 1, 2])).saturating_sub(2 * conv.pad_begin[axis]);
        }
        let [ih, iw] = conv.input;
        let [oh, ow] = conv.output;
        let [kh, kw] = conv.kernel;
        let [icg, ocg] = [conv.in_channels / conv.groups, conv.out_channels / conv.groups];
        let x = random_floats(&mut random, conv.batch * conv.in_channels * ih * iw);
        let weights = random_floats(&mut random, conv.in_channels * ocg * kh * kw);
        let mut inputs = vec![x.clone().into(), conv.pack(&weights).into()];
        let out = conv.batch * conv.out_channels * oh * ow;
        let [bias, residual] = push_epilogue(&mut random, &conv.epilogue, &mut inputs, conv.out_channels, out);
        let mut want = vec![0.0f64; out];
        for n in 0..conv.batch {
            for ic in 0..conv.in_channels {
                for (iy, ix) in (0..ih).flat_map(|iy| (0..iw).map(move |ix| (iy, ix))) {
                    for (ky, kx) in (0..kh).flat_map(|ky| (0..kw).map(move |kx| (ky, kx))) {
                        let oy = (iy * conv.stride[0] + ky * conv.dilation[0]) as isize - conv.pad_begin[0] as isize;
                        let ox = (ix * conv.stride[1] + kx * conv.dilation[1]) as isize - conv.pad_begin[1] as isize;
                        if oy < 0 || ox < 0 || oy >= oh as isize || ox >= ow as isize {
                            continue;
                        }
                        for o in 0..ocg {
                            let oc = ic / icg * ocg + o;
                            let at = ((n * conv.out_channels + oc) * oh + oy as usize) * ow + ox as usize;
                            let value = x[((n * conv.in_channels + ic) * ih + iy) * iw + ix];
                            want[at] += f64::from(value) * f64::from(weights[((ic * ocg + o) * kh + ky) * kw + kx]);
                        }
                    }
                }
            }
        }
        for (at, want) in want.iter_mut().enumerate() {
            *want += bias.get(at / (oh * ow) % conv.out_channels).map_or(0.0, |&x| f64::from(x));
            *want += residual.get(at).map_or(0.0, |&x| f64::from(x));
            *want = conv.epilogue.activation.iter().fold(*want, |x, f| f.eval(x));
        }
        check(&pools, conv, &inputs, &want, TOLERANCE);
    }
}

#[test]
fn pools_of_random_shapes() {
    let (pools, mut random) = (pools(), Random::new(16));
    for round in 0..300 {
        let like = random_conv(&mut random);
        let kinds = [PoolKind::Max, PoolKind::Average { count_include_pad: true }, PoolKind::Average { count_include_pad: false }];
        let mut kernel = Pool2d {
            kind: pick(&mut random, &kinds),
            batch: like.batch,
            channels: pick(&mut random, &[1, 3, 0]),
            input: like.input,
            output: like.output,
            kernel: like.kernel,
            stride: like.stride,
            dilation: like.dilation,
            pad_begin: like.pad_begin,
            pad_end: [pick(&mut random, &[0, 1, 2]), pick(&mut random, &[0, 1])],
        };
        if round % 5 == 0 {
            (kernel.kernel, kernel.output, kernel.dilation, kernel.pad_begin) = (kernel.input, [1, 1], [1, 1], [0, 0]);
        }
        if round % 5 == 1 {
            kernel.kernel[1] = 11;
        }
        let [ih, iw] = kernel.input;
        let x = random_floats(&mut random, kernel.batch * kernel.channels * ih * iw);
        let mut want = Vec::new();
        for plane in 0..kernel.batch * kernel.channels {
            for oy in 0..kernel.output[0] {
                for ox in 0..kernel.output[1] {
                    let (mut cells, mut sum, mut largest) = (0, 0.0, f64::NEG_INFINITY);
                    for ky in 0..kernel.kernel[0] {
                        for kx in 0..kernel.kernel[1] {
                            let iy = (oy * kernel.stride[0] + ky * kernel.dilation[0]) as isize - kernel.pad_begin[0] as isize;
                            let ix = (ox * kernel.stride[1] + kx * kernel.dilation[1]) as isize - kernel.pad_begin[1] as isize;
                            let real = 0 <= iy && 0 <= ix && iy < ih as isize && ix < iw as isize;
                            let padded = iy < (ih + kernel.pad_end[0]) as isize && ix < (iw + kernel.pad_end[1]) as isize;
                            let include = kernel.kind == (PoolKind::Average { count_include_pad: true });
                            cells += usize::from(if include { padded } else { real });
                            if real {
                                let value = f64::from(x[(plane * ih + iy as usize) * iw + ix as usize]);
                                sum += value;
                                largest = largest.max(value);
                            }
                        }
                    }
                    want.push(if kernel.kind == PoolKind::Max { largest } else { sum / cells.max(1) as f64 });
                }
            }
        }
        check(&pools, kernel, &[x.into()], &want, TOLERANCE);
    }
}

#[test]
fn lrn_of_random_shapes() {
    let (pools, mut random) = (pools(), Random::new(17));
    for _ in 0..60 {
        let kernel = Lrn {
            batch: pick(&mut random, &[0, 1, 2]),
            channels: pick(&mut random, &[1, 2, 7, 20]),
            inner: pick(&mut random, &[1, 9, 300]),
            size: pick(&mut random, &[1, 2, 3, 5]),
            alpha: 0.1,
            beta: 0.75,
            bias: pick(&mut random, &[1.0, 2.0]),
        };
        let x = random_floats(&mut random, kernel.batch * kernel.channels * kernel.inner);
        let mut want = Vec::new();
        for at in 0..x.len() {
            let (image, channel, inner) =
                (at / (kernel.channels * kernel.inner), at / kernel.inner % kernel.channels, at % kernel.inner);
            let low = channel as isize - (kernel.size as isize - 1) / 2;
            let high = channel + kernel.size / 2;
            let sum: f64 = (0..kernel.channels)
                .filter(|&other| low <= other as isize && other <= high)
                .map(|other| f64::from(x[(image * kernel.channels + other) * kernel.inner + inner]).powi(2))
                .sum();
            let scale = f64::from(kernel.bias) + f64::from(kernel.alpha) / kernel.size as f64 * sum;
            want.push(f64::from(x[at]) / scale.powf(0.75));
        }
        check(&pools, kernel, &[x.into()], &want, 1e-6);
    }
}
