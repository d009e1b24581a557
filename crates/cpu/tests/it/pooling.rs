//! Max and average pooling over row-major images and volumes against their definitions.

use prestow_cpu::{Kernel, Pool2d, Pool2dKind, PoolBlocked, PoolVolumes, StorageType, Window};
use types::Random;

use super::common::{assert_close, bits, blocked, cases, pools, run, unblocked};

fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize].clone()
}

/// The positions of the input in the window of an output along an axis.
fn sources(window: &Window, axis: usize, at: usize) -> Vec<usize> {
    let reach = |tap: usize| at * window.stride[axis] + tap * window.dilation[axis];
    let inside = |place: usize| place.checked_sub(window.pad[axis]).filter(|&place| place < window.input[axis]);
    (0..window.kernel[axis]).filter_map(|tap| inside(reach(tap))).collect()
}

/// The taps of an output along an axis that count for a mean with padding.
fn counted(window: &Window, axis: usize, at: usize, pad_end: usize) -> usize {
    let end = window.pad[axis] + window.input[axis] + pad_end;
    (0..window.kernel[axis]).filter(|tap| at * window.stride[axis] + tap * window.dilation[axis] < end).count()
}

fn pooled(kernel: &PoolVolumes, x: &[f32]) -> Vec<f64> {
    let PoolVolumes { kind, volumes, depth, depth_pad_end, window } = kernel;
    let [height, width] = window.input;
    let mut want = Vec::new();
    for number in 0..volumes * depth.output[0] * window.output[0] * window.output[1] {
        let (ox, row) = (number % window.output[1], number / window.output[1]);
        let (oy, plane) = (row % window.output[0], row / window.output[0]);
        let (oz, volume) = (plane % depth.output[0], plane / depth.output[0]);
        let mut items = Vec::new();
        for z in sources(depth, 0, oz) {
            for y in sources(window, 0, oy) {
                for x_at in sources(window, 1, ox) {
                    items.push(f64::from(x[((volume * depth.input[0] + z) * height + y) * width + x_at]));
                }
            }
        }
        want.push(match *kind {
            Pool2dKind::Max => items.iter().fold(f64::NEG_INFINITY, |a, &b| if a.is_nan() || b < a { a } else { b }),
            Pool2dKind::Mean => items.iter().sum::<f64>() / items.len() as f64,
            Pool2dKind::MeanWithPadding { pad_end } => {
                let plane = counted(window, 0, oy, pad_end[0]) * counted(window, 1, ox, pad_end[1]);
                items.iter().sum::<f64>() / (plane * counted(depth, 0, oz, *depth_pad_end)) as f64
            }
        });
    }
    want
}

#[test]
fn pools_of_images_and_volumes_match_their_definition() {
    let (pools, mut random) = (pools([1, 3]), Random::new(61));
    for case in 0..cases(300) {
        let is_volume = case % 2 == 0;
        let mut axis = |extents: &[usize]| {
            let (kernel, dilation) = (pick(&mut random, &[1, 2, 3, 3, 5, 7]), pick(&mut random, &[1, 1, 1, 2]));
            let (input, stride) = (pick(&mut random, extents), pick(&mut random, &[1, 1, 2, 3]));
            let pad = random.below(kernel as u64) as usize;
            let reach = (kernel - 1) * dilation + 1;
            let output = (input + 2 * pad).saturating_sub(reach) / stride + 1;
            [input, output, kernel, stride, dilation, pad]
        };
        let (z, y, x) = (axis(&[1, 3, 6]), axis(&[1, 4, 9, 12]), axis(&[1, 3, 5, 16, 17, 33, 70, 1100]));
        let window = |rows: [usize; 6], columns: [usize; 6]| {
            let [input, output, kernel, stride, dilation, pad] = std::array::from_fn(|ix| [rows[ix], columns[ix]]);
            Window { input, output, kernel, stride, dilation, pad }
        };
        let depth = if is_volume { window(z, [1, 1, 1, 1, 1, 0]) } else { Window::ONE };
        let pad_end = [random.below(3) as usize, random.below(3) as usize];
        let kinds = [Pool2dKind::Max, Pool2dKind::Max, Pool2dKind::Mean, Pool2dKind::MeanWithPadding { pad_end }];
        let own = PoolVolumes {
            kind: pick(&mut random, &kinds),
            volumes: pick(&mut random, &[1, 2, 5]),
            depth,
            depth_pad_end: if is_volume { random.below(2) as usize } else { 0 },
            window: window(y, x),
        };
        let elements = own.volumes * depth.input[0] * own.window.input[0] * own.window.input[1];
        let mut items: Vec<f32> = (0..elements).map(|_| random.uniform(-9.0, 9.0)).collect();
        if case % 3 == 0 {
            for _ in 0..elements.div_ceil(40) {
                let special = pick(&mut random, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
                items[random.below(elements as u64) as usize] = special;
            }
        }
        let kernel: Kernel = match is_volume {
            true => own.clone().into(),
            false => Pool2d { kind: own.kind, planes: own.volumes, window: own.window }.into(),
        };
        for [one, three] in &pools {
            let [got, other] = [one, three].map(|pool| run(&kernel, &[&items], pool));
            assert_eq!(bits(&got), bits(&other), "{} {kernel:?}", one.isa());
            let want = pooled(&own, &items);
            assert_close(&got, &want, |_| 9.0, 1e-6, &format!("{} {kernel:?}", one.isa()));
            if is_volume {
                continue;
            }
            let Window { input, output, .. } = own.window;
            let (channels, stored) = (own.volumes, StorageType::F32);
            let kernel = PoolBlocked { kind: own.kind, batch: 1, channels, window: own.window, stored };
            let pictures = blocked(&items, channels, input[0] * input[1], f32::NAN);
            let got = run(&kernel.clone().into(), &[&pictures], three);
            let got = unblocked(&got, 1, channels, output[0] * output[1]);
            assert_close(&got, &want, |_| 9.0, 1e-6, &format!("{} {kernel:?}", one.isa()));
        }
    }
}
