//! Winograd convolution against the definition in `f64`.

use prestow_cpu::{Epilogue, Pool, Window, Winograd};
use types::Random;
use types::pointwise::Unary;

use super::common::{bits, blocked, cases, pools, run_over, unblocked};

/// Row-major operands: `[batch, channels, rows, columns]`.
struct Case {
    kernel: Winograd,
    x: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

/// Approximately normal: mean 0, variance 1.
fn normal(random: &mut Random) -> f32 {
    (0..12).map(|_| random.unit()).sum::<f32>() - 6.0
}

fn three_by_three(input: [usize; 2], output: [usize; 2], pad: [usize; 2]) -> Window {
    Window { input, output, kernel: [3, 3], stride: [1, 1], dilation: [1, 1], pad }
}

impl Case {
    fn new(kernel: Winograd, random: &mut Random) -> Case {
        let Winograd { batch, in_channels, out_channels, window, .. } = &kernel;
        let mut numbers = |len: usize, scale: f32| -> Vec<f32> { (0..len).map(|_| scale * normal(random)).collect() };
        let x = numbers(batch * in_channels * window.input[0] * window.input[1], 1.0);
        let weights = numbers(out_channels * in_channels * 9, (2.0 / (9 * in_channels.max(&1)) as f32).sqrt());
        let bias = numbers(*out_channels, 1.0);
        let residual = numbers(batch * out_channels * window.output[0] * window.output[1], 1.0);
        Case { x, weights, bias, residual, kernel }
    }

    /// The definition.
    fn want(&self) -> Vec<f64> {
        let Winograd { batch, in_channels, out_channels, window, epilogue, .. } = &self.kernel;
        let mut out = Vec::new();
        for (image, channel) in (0..*batch).flat_map(|image| (0..*out_channels).map(move |channel| (image, channel))) {
            for (row, column) in (0..window.output[0]).flat_map(|row| (0..window.output[1]).map(move |c| (row, c))) {
                let mut sum = 0.0;
                for (c, tap) in (0..*in_channels).flat_map(|c| (0..9).map(move |tap| (c, tap))) {
                    let at = [row + tap / 3, column + tap % 3];
                    let (Some(y), Some(x)) = (at[0].checked_sub(window.pad[0]), at[1].checked_sub(window.pad[1]))
                    else {
                        continue;
                    };
                    if y < window.input[0] && x < window.input[1] {
                        let item = self.x[((image * in_channels + c) * window.input[0] + y) * window.input[1] + x];
                        sum += f64::from(item) * f64::from(self.weights[(channel * in_channels + c) * 9 + tap]);
                    }
                }
                if epilogue.bias {
                    sum += f64::from(self.bias[channel]);
                }
                if epilogue.residual {
                    sum += f64::from(self.residual[out.len()]);
                }
                out.push(epilogue.activation.iter().fold(sum, |sum, function| function.eval(sum)));
            }
        }
        out
    }

    /// The kernel's result with padding lanes; padding lanes of the operands hold `pad`.
    fn run(&self, pool: &Pool, pad: f32, before: f32, in_place: bool) -> Vec<f32> {
        let kernel = &self.kernel;
        let [input, output] = [kernel.window.input, kernel.window.output].map(|[rows, columns]| rows * columns);
        let mut operands = vec![blocked(&self.x, kernel.in_channels, input, pad), kernel.pack(&self.weights)];
        assert_eq!(operands[1].len(), kernel.packed_elements());
        operands.extend(kernel.epilogue.bias.then(|| blocked(&self.bias, self.bias.len(), 1, 0.0)));
        let residual = kernel.epilogue.residual.then(|| blocked(&self.residual, kernel.out_channels, output, pad));
        let in_place = (in_place && residual.is_some()).then_some(operands.len());
        operands.extend(residual);
        let operands: Vec<&[f32]> = operands.iter().map(Vec::as_slice).collect();
        run_over(&kernel.clone().into(), &operands, in_place, before, pool).swap_remove(0)
    }

    /// The largest difference relative to the largest result.
    fn error(&self, got: &[f32]) -> f64 {
        let output = self.kernel.window.output[0] * self.kernel.window.output[1];
        let got = unblocked(got, self.kernel.batch, self.kernel.out_channels, output);
        let want = self.want();
        assert_eq!(got.len(), want.len());
        let differences = got.iter().zip(&want).map(|(&got, want)| {
            assert!(!got.is_nan(), "a number is wanted");
            (f64::from(got) - want).abs()
        });
        differences.fold(0.0, f64::max) / want.iter().fold(1.0, |most: f64, want| most.max(want.abs()))
    }
}

/// Accepted errors for tiles of 2, 4 and 6.
fn tolerance(tile: usize) -> f64 {
    [2e-6, 1e-5, 5e-5][tile / 2 - 1]
}

fn random_kernel(random: &mut Random) -> Winograd {
    let mut below = |count: u64| random.below(count) as usize;
    let channels = [0, 1, 3, 16, 17, 31, 32, 48, 65];
    let input = [0, 1].map(|_| below(31));
    let window = three_by_three(input, [0, 1].map(|axis| below(input[axis] as u64 + 4)), [0, 1].map(|_| below(4)));
    let activations = [&[][..], &[Unary::Relu], &[Unary::Clip { min: -0.5, max: 0.75 }], &[Unary::Relu, Unary::Tanh]];
    Winograd {
        batch: [1, 1, 1, 2, 3, 0][below(6)],
        in_channels: channels[below(9)],
        out_channels: channels[below(9)],
        window,
        tile: [2, 4, 6][below(3)],
        epilogue: Epilogue {
            bias: below(2) == 0,
            residual: below(2) == 0,
            activation: activations[below(4)].iter().copied().collect(),
            ..Epilogue::default()
        },
        workspace_max: [0, 5_000, 50_000, Winograd::WORKSPACE_MAX][below(4)],
    }
}

#[test]
fn winograd_matches_its_definition() {
    let mut random = Random::new(17);
    let pools = pools([1, 2, 3]);
    for _ in 0..cases(150) {
        let case = Case::new(random_kernel(&mut random), &mut random);
        for [pool, two, three] in &pools {
            let first = case.run(pool, f32::NAN, 1.0, false);
            let error = case.error(&first);
            assert!(error <= tolerance(case.kernel.tile), "{}: {error:e} in {:?}", pool.isa(), case.kernel);
            for (other, in_place) in [(two, false), (three, true)] {
                let again = case.run(other, f32::NAN, f32::NAN, in_place);
                assert!(bits(&first) == bits(&again), "{} threads: {:?}", other.threads(), case.kernel);
            }
        }
    }
}

#[test]
fn many_channels_stay_within_the_documented_error() {
    let mut random = Random::new(5);
    for [pool] in pools([2]) {
        let isa = pool.isa();
        for (tile, channels) in [2, 4, 6].into_iter().flat_map(|tile| [64, 256, 512].map(|channels| (tile, channels))) {
            let kernel = Winograd {
                batch: 1,
                in_channels: channels,
                out_channels: 32,
                window: three_by_three([14, 14], [14, 14], [1, 1]),
                tile,
                epilogue: Epilogue::default(),
                workspace_max: Winograd::WORKSPACE_MAX,
            };
            let case = Case::new(kernel, &mut random);
            let error = case.error(&case.run(&pool, f32::NAN, 0.0, false));
            eprintln!("{isa} F({tile}) {channels} channels: {error:.1e} of the largest result");
            assert!(error <= tolerance(tile), "{isa} F({tile}) {channels} channels: {error:e}");
        }
    }
}

#[test]
fn winograd_keeps_nan_within_its_tile() {
    let mut random = Random::new(7);
    for (tile, wrong) in [2, 4, 6].into_iter().flat_map(|tile| [f32::NAN, f32::INFINITY].map(|wrong| (tile, wrong))) {
        let kernel = Winograd {
            batch: 1,
            in_channels: 16,
            out_channels: 16,
            window: three_by_three([24, 24], [24, 24], [1, 1]),
            tile,
            epilogue: Epilogue { activation: [Unary::Relu].into_iter().collect(), ..Epilogue::default() },
            workspace_max: 0,
        };
        let mut case = Case::new(kernel, &mut random);
        let whole = case.run(&Pool::new(1), 0.0, 0.0, false);
        let (row, column) = (11, 12);
        case.x[3 * 24 * 24 + row * 24 + column] = wrong;
        let got = case.run(&Pool::new(1), 0.0, 0.0, false);
        for (ix, (got, whole)) in got.iter().zip(&whole).enumerate() {
            let at = [ix / 16 / 24, ix / 16 % 24];
            let sees = |axis: usize, pixel: usize| {
                at[axis] / tile * tile <= pixel + 1 && pixel < at[axis] / tile * tile + tile + 1
            };
            let near = |axis: usize, pixel: usize| at[axis].abs_diff(pixel) <= 1;
            if near(0, row) && near(1, column) {
                assert!(got.is_nan() || !wrong.is_nan(), "F({tile}) at {at:?}");
            } else if !(sees(0, row) && sees(1, column)) {
                assert_eq!(got, whole, "F({tile}) at {at:?}");
            }
        }
    }
}
