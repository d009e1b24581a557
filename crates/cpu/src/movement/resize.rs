//! [`Resize`]: interpolation with taps that were computed at compile time.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Interpolation taps of one axis: output `i` is the sum over `j` of `weight[i * per_output + j] * x[index[..]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxisTaps {
    /// Positions along the input's axis.
    pub index: Vec<u32>,
    /// Weight of each position.
    pub weight: Vec<f32>,
    /// Taps per output; must be at least 1.
    pub per_output: usize,
}

impl AxisTaps {
    fn outputs(&self) -> usize {
        self.index.len() / self.per_output.max(1)
    }

    fn fits(&self, extent: usize) -> bool {
        self.per_output != 0
            && self.index.len() == self.weight.len()
            && self.index.len().is_multiple_of(self.per_output)
            && self.index.iter().all(|&index| (index as usize) < extent)
    }
}

/// `x: [shape..]` in `f32`, resized along each axis by its taps: each output sums the products of the taps of all axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// Extents of the input; at most 8 axes.
    pub shape: Vec<usize>,
    /// Taps of each axis.
    pub taps: Vec<AxisTaps>,
}

impl KernelFn for Resize {
    const NAME: &'static str = "resize";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.taps.len() != self.shape.len() || self.shape.is_empty() || 8 < self.shape.len() {
            return Err(InvalidKernel("there must be at most 8 axes, each with taps"));
        }
        if !self.taps.iter().zip(&self.shape).all(|(taps, &extent)| taps.fits(extent)) {
            return Err(InvalidKernel("taps must read within their axis, in groups of `per_output`"));
        }
        let out: Vec<usize> = self.taps.iter().map(AxisTaps::outputs).collect();
        Sizes::new(&[product(&self.shape)], product(&out), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        if out.is_empty() {
            return;
        }
        let sides = Sides::of(self);
        let width = sides.columns.outputs() * sides.run;
        let rows = (TASK / width).max(1);
        for_each_chunk(pool, out, rows * width, &|number, cells| {
            let (sides, first) = (&sides, number * rows);
            with_vector!(pool.isa(), resize_rows(sides: &Sides, x: &[f32], first: usize, cells: &mut [f32]));
        });
    }
}

/// Elements per task.
const TASK: usize = 1 << 12;
/// Elements of input rows that are blended at a time.
const BLEND: usize = 2048;

/// The axes of a [`Resize`] by what happens to them. The outermost and innermost ones mostly stay as they are: planes, and
/// runs of neighbors that have the same taps, such as the channels of a block.
struct Sides<'a> {
    /// The axes between planes and columns, and their extents.
    rows: &'a [AxisTaps],
    extents: &'a [usize],
    /// The innermost axis that is resized, and its extent.
    columns: &'a AxisTaps,
    width: usize,
    /// Elements of all axes within that one.
    run: usize,
}

impl<'a> Sides<'a> {
    fn of(kernel: &'a Resize) -> Sides<'a> {
        let changes = |axis: &usize| !kernel.taps[*axis].is_identity(kernel.shape[*axis]);
        let axes = 0..kernel.taps.len();
        let last = axes.clone().rev().find(changes).unwrap_or(axes.end - 1);
        let first = (0..last).find(changes).unwrap_or(last);
        Sides {
            rows: &kernel.taps[first..last],
            extents: &kernel.shape[first..last],
            columns: &kernel.taps[last],
            width: kernel.shape[last],
            run: kernel.shape[last + 1..].iter().product(),
        }
    }
}

/// Some output rows, from row `first` of all on.
#[inline(always)]
fn resize_rows<V: Vector>(sides: &Sides, x: &[f32], first: usize, cells: &mut [f32]) {
    let &Sides { rows, extents, columns, run, .. } = sides;
    let width = sides.width * run;
    // Each combination of the outer axes' taps selects an input row and its weight. Blended first, rows are gathered
    // from once.
    let combinations: usize = rows.iter().map(|taps| taps.per_output).product();
    let blends = 1 < combinations && width <= BLEND;
    let rows_of_plane: usize = rows.iter().map(AxisTaps::outputs).product();
    let plane = extents.iter().product::<usize>() * width;
    let mut blended = [0.0; BLEND];
    for (ix, cells) in cells.chunks_exact_mut(columns.outputs() * run).enumerate() {
        cells.fill(0.0);
        if blends {
            blended[..width].fill(0.0);
        }
        for combination in 0..combinations {
            let (number, mut place) = ((first + ix) / rows_of_plane, (first + ix) % rows_of_plane);
            let (mut choice, mut start, mut stride, mut weight) = (combination, number * plane, width, 1.0);
            for (taps, &extent) in rows.iter().zip(extents).rev() {
                let tap = place % taps.outputs() * taps.per_output + choice % taps.per_output;
                place /= taps.outputs();
                choice /= taps.per_output;
                start += taps.index[tap] as usize * stride;
                weight *= taps.weight[tap];
                stride *= extent;
            }
            if weight == 0.0 {
                continue;
            }
            let row = &x[start..start + width];
            match blends {
                true => add_scaled::<V>(&mut blended[..width], weight, row),
                false => columns.add::<V>(row, run, weight, cells),
            }
        }
        if blends {
            columns.add::<V>(&blended[..width], run, 1.0, cells);
        }
    }
}

/// Adds `weight * row`.
#[inline(always)]
fn add_scaled<V: Vector>(sums: &mut [f32], weight: f32, row: &[f32]) {
    let scale = V::splat(weight);
    let ((sums, sums_rest), (row, row_rest)) = (sums.as_chunks_mut::<LANES>(), row.as_chunks::<LANES>());
    for (sums, items) in sums.iter_mut().zip(row) {
        V::read(sums).add(V::read(items).mul(scale)).write(sums);
    }
    for (sum, item) in sums_rest.iter_mut().zip(row_rest) {
        *sum += weight * item;
    }
}

impl AxisTaps {
    /// Whether each output is the element of its number.
    fn is_identity(&self, extent: usize) -> bool {
        let own = |(ix, (&index, &weight)): (usize, (&u32, &f32))| index as usize == ix && weight == 1.0;
        self.per_output == 1 && self.index.len() == extent && self.index.iter().zip(&self.weight).enumerate().all(own)
    }

    /// Adds the weighted sums of each output's taps in a row, whose elements are runs of `run` neighbors.
    #[inline(always)]
    fn add<V: Vector>(&self, row: &[f32], run: usize, weight: f32, cells: &mut [f32]) {
        match (run, self.per_output) {
            (1, 1) => self.add_some::<1>(row, weight, cells),
            (1, 2) => self.add_some::<2>(row, weight, cells),
            (1, 4) => self.add_some::<4>(row, weight, cells),
            (1, taps) => {
                let taps = self.index.chunks_exact(taps).zip(self.weight.chunks_exact(taps));
                for (cell, (index, weights)) in cells.iter_mut().zip(taps) {
                    let terms = index.iter().zip(weights);
                    *cell += weight * terms.map(|(&at, weight)| weight * row[at as usize]).sum::<f32>();
                }
            }
            (LANES, taps) => {
                let taps = self.index.chunks_exact(taps).zip(self.weight.chunks_exact(taps));
                for (cells, (index, weights)) in cells.as_chunks_mut::<LANES>().0.iter_mut().zip(taps) {
                    let mut sum = V::read(cells);
                    for (&at, tap) in index.iter().zip(weights) {
                        let items = V::read(&row[at as usize * LANES..][..LANES]);
                        sum = sum.add(items.mul(V::splat(weight * tap)));
                    }
                    sum.write(cells);
                }
            }
            (_, taps) => {
                let taps = self.index.chunks_exact(taps).zip(self.weight.chunks_exact(taps));
                for (cells, (index, weights)) in cells.chunks_exact_mut(run).zip(taps) {
                    for (&at, tap) in index.iter().zip(weights) {
                        add_scaled::<V>(cells, weight * tap, &row[at as usize * run..][..run]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn add_some<const TAPS: usize>(&self, row: &[f32], weight: f32, cells: &mut [f32]) {
        let taps = self.index.as_chunks::<TAPS>().0.iter().zip(self.weight.as_chunks::<TAPS>().0);
        for (cell, (index, weights)) in cells.iter_mut().zip(taps) {
            let mut sum = 0.0;
            for tap in 0..TAPS {
                sum += weights[tap] * row[index[tap] as usize];
            }
            *cell += weight * sum;
        }
    }
}
