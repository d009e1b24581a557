//! [`ConvTranspose`]: transposed convolution, as a product into the workspace and a gather from it.
//!
//! The product gives each input position its contribution to each tap; an output then gathers the taps that meet it.
//! Gathering, unlike scattering, gives each output to one task with a fixed order of additions.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::epilogue::Epilogue;
use crate::gemm::{self, COLUMNS, Panel, ROWS, Tile};
use crate::isa::vectorised;
use crate::kernel::{Fit, KernelFn, Sizes, count, floats, require};
use crate::operand::Operands;
use crate::pool::Pool;
use crate::window::Window;

/// Transposed convolution, with the epilogue fused.
///
/// Inputs: `x [batch, in_channels, input]`, weights packed by [`ConvTranspose::pack`], the epilogue's bias
/// `[out_channels]` and residual. Output: `[batch, out_channels, output]`. Input `i` meets output
/// `i * stride + tap * dilation - pad_begin`; outputs that meet nothing are the bias.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConvTranspose {
    /// Images.
    pub batch: usize,
    /// Channels of the input, over all groups.
    pub in_channels: usize,
    /// Channels of the output, over all groups.
    pub out_channels: usize,
    /// Groups; divides both numbers of channels.
    pub groups: usize,
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance in the output of neighbouring inputs.
    pub stride: [usize; 2],
    /// Distance in the output of neighbouring taps.
    pub dilation: [usize; 2],
    /// Rows and columns that are cut off above and to the left.
    pub pad_begin: [usize; 2],
    /// What follows the product.
    pub epilogue: Epilogue,
}

struct Layout {
    /// The windows of the convolution that this transposes: its input is our output.
    windows: [Window; 2],
    /// Input channels and output channels of a group.
    channels: [usize; 2],
    taps: usize,
    /// Input positions.
    plane: usize,
    /// Rows of the product: output channels of a group times taps.
    rows: usize,
    /// Floats of the packed input of a group, and of the product.
    packed: usize,
    product: usize,
}

impl ConvTranspose {
    /// Packs weights `[in_channels, out_channels / groups, kernel]` for [`Kernel::run`](crate::Kernel::run).
    ///
    /// # Panics
    /// Where the fields are malformed or `weights` has another number of elements.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        let layout = self.layout().expect("`sizes` accepts the fields");
        let (depth, rows) = (layout.channels[0], layout.rows);
        assert_eq!(weights.len(), self.in_channels * rows, "weights of a transposed convolution");
        (0..self.groups)
            .flat_map(|group| gemm::pack_panels(rows, depth, |row, k| weights[(group * depth + k) * rows + row]))
            .collect()
    }

    fn layout(&self) -> Fit<Layout> {
        require(1 <= self.groups, "no groups")?;
        let divides = self.in_channels.is_multiple_of(self.groups) && self.out_channels.is_multiple_of(self.groups);
        require(divides, "groups do not divide the channels")?;
        let numbers = [self.stride, self.dilation, self.pad_begin];
        let window = |axis| Window::new(axis, self.output, self.input, self.kernel, numbers);
        let windows = [window(0)?, window(1)?];
        let channels = [self.in_channels / self.groups, self.out_channels / self.groups];
        let taps = count(&self.kernel)?;
        let plane = count(&self.input)?;
        let rows = count(&[channels[1], taps])?;
        let packed = count(&[plane.div_ceil(COLUMNS), COLUMNS, channels[0]])?;
        let product = count(&[rows, plane])?;
        Ok(Layout { windows, channels, taps, plane, rows, packed, product })
    }
}

impl KernelFn for ConvTranspose {
    const NAME: &'static str = "conv_transpose";

    fn sizes(&self) -> Fit<Sizes> {
        let layout = self.layout()?;
        let weights = floats(&[self.groups, layout.rows.div_ceil(ROWS), ROWS, layout.channels[0]])?;
        let mut sizes = Sizes {
            inputs: smallvec![floats(&[self.batch, self.in_channels, layout.plane])?, weights],
            outputs: smallvec![floats(&[self.batch, self.out_channels, self.output[0], self.output[1]])?],
            workspace: floats(&[layout.packed])?.checked_add(floats(&[layout.product])?).ok_or("a size overflows")?,
        };
        if sizes.outputs[0] == 0 {
            sizes.workspace = 0;
        }
        self.epilogue.push_sizes(&mut sizes, self.out_channels)?;
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        self.epilogue.residual_input(2) == Some(input)
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let Ok(layout) = self.layout() else { return };
        let x = operands.input::<f32>(0);
        let weights = operands.input::<f32>(1);
        let workspace = operands.workspace::<f32>();
        let bias: &[f32] = if self.epilogue.bias { operands.input(2) } else { &[] };
        let residual = self.epilogue.residual_input(2).map(|input| operands.shared::<f32>(input));
        let in_place = self.epilogue.residual_input(2).is_some_and(|input| operands.in_place(input));
        let out = operands.output::<f32>();
        let [depth, out_channels] = layout.channels;
        let (plane, strip_len) = (layout.plane, COLUMNS * depth);
        let strips = plane.div_ceil(COLUMNS);
        let panels = layout.rows.div_ceil(ROWS);
        let [oh, ow] = self.output;
        for index in 0..self.batch * self.groups {
            let (image, group) = (index / self.groups, index % self.groups);
            let matrix = &x[index * depth * plane..][..depth * plane];
            pool.split(strips, 16384 / strip_len.max(1), &|range| {
                for strip in range {
                    // SAFETY: each strip is packed once, and nobody reads before `split` returns.
                    let into = unsafe { workspace.write(strip * strip_len, strip_len) };
                    gemm::pack_strip(matrix, plane, strip * COLUMNS, 0..depth, into);
                }
            });
            // SAFETY: packing is over; the product is written behind these elements.
            let packed = unsafe { workspace.read(0, layout.packed) };
            pool.split(strips * panels, 65536 / (strip_len * ROWS).max(1), &|range| {
                for task in range {
                    let (strip, panel) = (task / panels, task % panels);
                    let rows = ROWS.min(layout.rows - panel * ROWS);
                    let items = &weights[(group * panels + panel) * ROWS * depth..][..ROWS * depth];
                    let mut tile = Tile([0.0; ROWS * COLUMNS]);
                    let strip_items = &packed[strip * strip_len..][..strip_len];
                    gemm::multiply(pool.isa(), depth, Panel::packed(items, rows), strip_items, &mut tile);
                    let width = COLUMNS.min(plane - strip * COLUMNS);
                    for (row, sums) in tile.0.as_chunks::<COLUMNS>().0.iter().take(rows).enumerate() {
                        let start = layout.packed + (panel * ROWS + row) * plane + strip * COLUMNS;
                        // SAFETY: each tile belongs to one task, and nobody reads before `split` returns.
                        unsafe { workspace.write(start, width) }.copy_from_slice(&sums[..width]);
                    }
                }
            });
            // SAFETY: the product is complete, and nobody writes before the next group.
            let product = unsafe { workspace.read(layout.packed, layout.product) };
            pool.split(out_channels * oh, 4096 / (ow * layout.taps).max(1), &|range| {
                for task in range {
                    let (channel, oy) = (task / oh, task % oh);
                    let of_all = group * out_channels + channel;
                    let start = ((image * self.out_channels + of_all) * oh + oy) * ow;
                    // SAFETY: each output row is written by one task.
                    let sums = unsafe { out.write(start, ow) };
                    if let Some(residual) = residual.filter(|_| !in_place) {
                        // SAFETY: this residual has bytes of its own, which nobody writes.
                        sums.copy_from_slice(unsafe { residual.read(start, ow) });
                    } else if residual.is_none() {
                        sums.fill(0.0);
                    }
                    let first = bias.get(of_all).copied().unwrap_or(0.0);
                    let taps = &product[channel * layout.taps * plane..][..layout.taps * plane];
                    gather_row(pool.isa(), layout.windows, oy, taps, first, sums);
                    self.epilogue.activate(pool.isa(), sums);
                }
            });
        }
    }
}

vectorised! {
    /// Adds `first` and all contributions to output row `oy` to `sums`. `taps` holds one input plane per tap.
    fn gather_row(windows: [Window; 2], oy: usize, taps: &[f32], first: f32, sums: &mut [f32]) {
        let [y, x] = windows;
        sums.iter_mut().for_each(|sum| *sum += first);
        let plane = y.output * x.output;
        for ky in 0..y.kernel {
            // Input row iy meets us where iy * stride + ky * dilation - pad = oy.
            let shifted = oy + y.pad;
            let Some(lifted) = shifted.checked_sub(ky * y.dilation) else { break };
            let iy = lifted / y.stride;
            if lifted % y.stride != 0 || y.output <= iy {
                continue;
            }
            for kx in 0..x.kernel {
                let inputs = x.outputs(kx, 0..x.output);
                if inputs.is_empty() {
                    continue;
                }
                let ox = x.at(inputs.start, kx) as usize;
                let row = &taps[(ky * x.kernel + kx) * plane + iy * x.output..][..x.output];
                let from = &row[inputs];
                if x.stride == 1 {
                    sums[ox..ox + from.len()].iter_mut().zip(from).for_each(|(sum, from)| *sum += from);
                } else {
                    sums[ox..].iter_mut().step_by(x.stride).zip(from).for_each(|(sum, from)| *sum += from);
                }
            }
        }
    }
}
