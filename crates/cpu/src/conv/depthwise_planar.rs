//! [`DepthwiseConv`]: convolution where every channel sees only itself.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::gemm::epilogue::Epilogue;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::vector::{Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Convolution of `x: [batch, channels, rows, columns]` with `weights: [channels * multiplier, ..kernel]`, output channel
/// `c` reading input channel `c / multiplier`; then by the epilogue a bias and a residual. All `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthwiseConv {
    /// Pictures.
    pub batch: usize,
    /// Channels of a picture.
    pub channels: usize,
    /// Output channels of each.
    pub multiplier: usize,
    /// Rows and columns.
    pub window: Window,
    /// What happens to each result.
    pub epilogue: Epilogue,
}

impl KernelFn for DepthwiseConv {
    const NAME: &'static str = "depthwise_conv";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.window.check()?;
        let channels = product(&[self.channels, self.multiplier]).ok_or(InvalidKernel("its sizes overflow"))?;
        let x = product(&[self.batch, self.channels, self.window.input[0], self.window.input[1]]);
        let weights = product(&[channels, self.window.kernel[0], self.window.kernel[1]]);
        let output = product(&[self.batch, channels, self.window.output[0], self.window.output[1]]);
        let mut inputs = vec![x, weights];
        self.epilogue.check_unscaled()?;
        inputs.extend(self.epilogue.operands(channels, output));
        Sizes::new(&inputs, output, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == 2 + usize::from(self.epilogue.bias)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let weights: &[f32] = input(&args, 1);
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(&args, 2));
        let residual = self.epilogue.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let channels = self.channels * self.multiplier;
        let (plane, taps) = (self.window.output_plane(), self.window.taps());
        if plane == 0 {
            return;
        }
        for_each_chunk(pool, out, plane, &|number, cells| {
            let (image, channel) = (number / channels, number % channels);
            let input_plane = self.window.input_plane();
            let task = Plane {
                kernel: self,
                source: &x[(image * self.channels + channel / self.multiplier) * input_plane..][..input_plane],
                weights: &weights[channel * taps..][..taps],
                bias: bias.map_or(0.0, |bias| bias[channel]),
                residual: residual.map(|residual| residual.map(|items| &items[number * plane..][..plane])),
            };
            let task = &task;
            with_vector!(pool.isa(), run_plane(task: &Plane<'_>, cells: &mut [f32]));
        });
    }
}

/// One plane of the output.
struct Plane<'a> {
    kernel: &'a DepthwiseConv,
    source: &'a [f32],
    weights: &'a [f32],
    bias: f32,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [f32]>>,
}

#[inline(always)]
fn run_plane<V: Vector>(task: &Plane<'_>, cells: &mut [f32]) {
    let window = &task.kernel.window;
    let [_, columns] = window.output;
    for (oy, row) in cells.chunks_exact_mut(columns).enumerate() {
        match task.residual {
            Some(Some(residual)) => row.copy_from_slice(&residual[oy * columns..][..columns]),
            Some(None) => {}
            None => row.fill(0.0),
        }
        row.iter_mut().for_each(|cell| *cell += task.bias);
        for ky in 0..window.kernel[0] {
            let Some(iy) = window.source(0, oy, ky) else { continue };
            let source = &task.source[iy * window.input[1]..][..window.input[1]];
            for kx in 0..window.kernel[1] {
                let inside = window.inside(1, kx);
                if inside.is_empty() {
                    continue;
                }
                let weight = task.weights[ky * window.kernel[1] + kx];
                let start = inside.start * window.stride[1] + kx * window.dilation[1] - window.pad[1];
                let cells = &mut row[inside];
                match window.stride[1] {
                    1 => {
                        let source = &source[start..start + cells.len()];
                        cells.iter_mut().zip(source).for_each(|(cell, item)| *cell += weight * item);
                    }
                    stride => {
                        let source = source[start..].iter().step_by(stride);
                        cells.iter_mut().zip(source).for_each(|(cell, item)| *cell += weight * item);
                    }
                }
            }
        }
        task.kernel.epilogue.activate(V::ISA, row);
    }
}
