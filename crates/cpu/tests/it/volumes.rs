//! Convolution of volumes and images without workspace against plain loops in `f64`.

use prestow_cpu::{ConvUnbuffered, Window};
use types::Random;

use super::blocked::{cells, check_convolution, epilogue, numbers, pick, planes, wide, window, window_over};
use super::common::{cases, pools};

/// A window over the depth of volumes.
fn depth(random: &mut Random) -> Window {
    let planes = pick(random, &[1, 3, 6]);
    let rows = window_over(random, [planes, 1]);
    let first = |pair: [usize; 2], one: usize| [pair[0], one];
    Window {
        input: first(rows.input, 1),
        output: first(rows.output, 1),
        kernel: first(rows.kernel, 1),
        stride: first(rows.stride, 1),
        dilation: first(rows.dilation, 1),
        pad: first(rows.pad, 0),
    }
}

/// The results of a group: of `x: [ins, planes, rows, columns]`. A transposed convolution adds to the cells that the window reads.
fn convolve(x: &[f64], weights: &[f32], [ins, outs]: [usize; 2], conv: &ConvUnbuffered) -> Vec<f64> {
    let ([deep_small, deep_large], [small, large]) = (planes(&conv.depth), planes(&conv.window));
    let (from, to) = match conv.transposed {
        true => (deep_large * large, deep_small * small),
        false => (deep_small * small, deep_large * large),
    };
    let taps = conv.window.kernel[0] * conv.window.kernel[1];
    let all_taps = conv.depth.kernel[0] * taps;
    let mut sums = vec![0.0; outs * to];
    for oz in 0..deep_large {
        for (deep_tap, iz) in cells(&conv.depth, oz, 0) {
            for pixel in 0..large {
                for (tap, cell) in cells(&conv.window, pixel / conv.window.output[1], pixel % conv.window.output[1]) {
                    let sides = [iz * small + cell, oz * large + pixel];
                    let [read, written] = if conv.transposed { [sides[1], sides[0]] } else { sides };
                    for (channel, out) in (0..ins).flat_map(|channel| (0..outs).map(move |out| (channel, out))) {
                        let matrix = if conv.transposed { channel * outs + out } else { out * ins + channel };
                        let weight = weights[matrix * all_taps + deep_tap * taps + tap];
                        sums[out * to + written] += x[channel * from + read] * f64::from(weight);
                    }
                }
            }
        }
    }
    sums
}

/// Images and volumes of all shapes, rows of more sums than there are at a time, more channels and taps than are added in turn.
#[test]
fn unbuffered_convolution_matches_its_definition() {
    let (pools, mut random) = (pools([1, 2, 3]), Random::new(14));
    for case in 0..cases(80) {
        let (groups, transposed) = (pick(&mut random, &[1, 1, 2, 3]), case % 2 == 0);
        let (mut over, ins) = match case % 5 {
            0 => (window_over(&mut random, [1, 515]), pick(&mut random, &[1, 3])),
            1 => (window_over(&mut random, [32, 32]), pick(&mut random, &[9, 17])),
            _ => (window(&mut random), pick(&mut random, &[1, 3, 8, 33])),
        };
        if case % 7 == 0 {
            // More taps than have a place of their own, or a stride over all sums.
            (over.kernel[1], over.stride[1]) = pick(&mut random, &[(19, 1), (4, 300)]);
        }
        let depth = if case % 3 == 0 { depth(&mut random) } else { Window::ONE };
        let (batch, outs) = (pick(&mut random, &[1, 2]), pick(&mut random, &[1, 2, 3, 4, 9]));
        let epilogue = epilogue(&mut random, true);
        let kernel = ConvUnbuffered {
            batch,
            in_channels: groups * ins,
            out_channels: groups * outs,
            groups,
            depth,
            window: over,
            transposed,
            epilogue: epilogue.clone(),
        };
        let ([deep_in, deep_out], [plane_in, plane_out]) = (planes(&depth), planes(&over));
        let mut volumes = [deep_in * plane_in, deep_out * plane_out];
        if transposed {
            volumes.reverse();
        }
        let [from, to] = volumes;
        let x = numbers(&mut random, batch * groups * ins * from, false);
        let taps = depth.kernel[0] * over.kernel[0] * over.kernel[1];
        let weights = numbers(&mut random, groups * outs * ins * taps, false);
        let bias = numbers(&mut random, groups * outs, false);
        let residual = numbers(&mut random, batch * groups * outs * to, false);
        let (of_image, of_group) = (wide(&x), weights.len() / groups);
        let results = of_image
            .chunks(ins * from)
            .enumerate()
            .map(|(at, x)| convolve(x, &weights[at % groups * of_group..][..of_group], [ins, outs], &kernel));
        let want = results.collect::<Vec<_>>().concat();
        check_convolution(kernel.into(), &epilogue, [x, weights, bias, residual], want, to, &pools);
    }
}
