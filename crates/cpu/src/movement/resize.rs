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
        if self.taps.len() != self.shape.len() || self.shape.is_empty() || RANK < self.shape.len() {
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
        let rows = if sides.are_narrow() { rows.next_multiple_of(LANES) } else { rows };
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
/// Columns of input rows that are interpolated sixteen rows at a time.
const TOGETHER: usize = 512;
/// Combinations of the outer axes' taps of such rows.
const COMBINATIONS: usize = 16;
/// With fewer rows, lanes without a row would take longer than the rows one by one.
const ROWS_MIN: usize = 4;

/// The most axes.
const RANK: usize = 8;

/// The axes of a [`Resize`] by what happens to them. The outermost and innermost ones mostly stay as they are: planes, and
/// runs of neighbors that have the same taps, such as the channels of a block.
struct Sides<'a> {
    /// The axes between planes and columns, and their extents.
    rows: &'a [AxisTaps],
    extents: &'a [usize],
    /// Outputs of each of them, and of all.
    outputs: [usize; RANK],
    rows_of_plane: usize,
    /// Elements of a plane of the input.
    plane: usize,
    /// Combinations of their taps: each selects an input row and its weight.
    combinations: usize,
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
        let rows = &kernel.taps[first..last];
        let mut outputs = [1; RANK];
        outputs.iter_mut().zip(rows).for_each(|(outputs, taps)| *outputs = taps.outputs());
        Sides {
            rows,
            extents: &kernel.shape[first..last],
            outputs,
            rows_of_plane: outputs.iter().product(),
            plane: kernel.shape[first..].iter().product(),
            combinations: rows.iter().map(|taps| taps.per_output).product(),
            columns: &kernel.taps[last],
            width: kernel.shape[last],
            run: kernel.shape[last + 1..].iter().product(),
        }
    }

    /// Whether rows are so narrow that sixteen are interpolated together.
    fn are_narrow(&self) -> bool {
        self.run == 1 && self.width <= TOGETHER && self.combinations <= COMBINATIONS
    }

    /// The position of an output row.
    fn place(&self, row: usize) -> Place {
        let (mut rest, mut along) = (row % self.rows_of_plane, [0; RANK]);
        for (along, outputs) in along.iter_mut().zip(&self.outputs).take(self.rows.len()).rev() {
            *along = rest % outputs;
            rest /= outputs;
        }
        Place { plane: row / self.rows_of_plane, along }
    }

    /// The position of the next row.
    #[inline(always)]
    fn advance(&self, place: &mut Place) {
        for (along, &outputs) in place.along.iter_mut().zip(&self.outputs).take(self.rows.len()).rev() {
            *along += 1;
            if *along < outputs {
                return;
            }
            *along = 0;
        }
        place.plane += 1;
    }

    /// The input rows that an output row is blended from.
    #[inline(always)]
    fn sources(&self, place: &Place) -> Sources<'_> {
        let mut taps = [0; RANK];
        for ((first, &along), axis) in taps.iter_mut().zip(&place.along).zip(self.rows) {
            *first = along * axis.per_output;
        }
        Sources { sides: self, start: place.plane * self.plane, taps, choice: [0; RANK], left: self.combinations }
    }
}

/// An output row: its plane, and its positions along the axes of rows.
struct Place {
    plane: usize,
    along: [usize; RANK],
}

/// An iterator over the first elements of input rows and their weights.
struct Sources<'a> {
    sides: &'a Sides<'a>,
    /// The first element of the plane.
    start: usize,
    /// The first tap of each axis, and the choice of one.
    taps: [usize; RANK],
    choice: [usize; RANK],
    left: usize,
}

impl Iterator for Sources<'_> {
    type Item = (usize, f32);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, f32)> {
        self.left = self.left.checked_sub(1)?;
        let Sides { rows, extents, width, run, .. } = *self.sides;
        let (mut start, mut stride, mut weight) = (self.start, width * run, 1.0);
        let mut carries = true;
        for (axis, taps) in rows.iter().enumerate().rev() {
            let tap = self.taps[axis] + self.choice[axis];
            start += taps.index[tap] as usize * stride;
            weight *= taps.weight[tap];
            stride *= extents[axis];
            if carries {
                self.choice[axis] += 1;
                carries = self.choice[axis] == taps.per_output;
                if carries {
                    self.choice[axis] = 0;
                }
            }
        }
        Some((start, weight))
    }
}

/// Some output rows, from row `first` of all on.
#[inline(always)]
fn resize_rows<V: Vector>(sides: &Sides, x: &[f32], first: usize, cells: &mut [f32]) {
    let length = sides.columns.outputs() * sides.run;
    let is_narrow = sides.are_narrow();
    let mut columns = [[0.0; LANES]; TOGETHER];
    for (group, cells) in cells.chunks_mut(LANES * length).enumerate() {
        let first = first + group * LANES;
        match is_narrow && ROWS_MIN * length <= cells.len() {
            true => resize_together::<V>(sides, x, first, &mut columns, cells),
            false => resize_each::<V>(sides, x, first, cells),
        }
    }
}

/// Up to sixteen rows: each lane has a row, so that taps at any distance are whole vectors.
#[inline(always)]
fn resize_together<V: Vector>(
    sides: &Sides,
    x: &[f32],
    first: usize,
    columns: &mut [[f32; LANES]; TOGETHER],
    cells: &mut [f32],
) {
    let outputs = sides.columns.outputs();
    let mut sources = [[(0, 0.0); COMBINATIONS]; LANES];
    let rows = cells.len() / outputs;
    let mut place = sides.place(first);
    for sources in &mut sources[..rows] {
        sources.iter_mut().zip(sides.sources(&place)).for_each(|(to, source)| *to = source);
        sides.advance(&mut place);
    }
    for (block, columns) in columns[..sides.width].chunks_mut(LANES).enumerate() {
        let mut blended = [V::zero(); LANES];
        for (sum, sources) in blended.iter_mut().zip(&sources[..rows]) {
            for &(start, weight) in &sources[..sides.combinations] {
                // A weight of zero takes no part, whatever it would multiply.
                if weight != 0.0 {
                    // Elements behind the row are in columns that are not written.
                    let items = V::read_part(&x[start + block * LANES..], 0.0);
                    *sum = items.mul_add(V::splat(weight), *sum);
                }
            }
        }
        for (items, column) in V::transpose(blended).iter().zip(columns) {
            items.write(column);
        }
    }
    for start in (0..outputs).step_by(LANES) {
        let count = LANES.min(outputs - start);
        let mut sums = [V::zero(); LANES];
        match sides.columns.per_output {
            1 => sides.columns.add_columns::<V, 1>(columns, start, &mut sums[..count]),
            2 => sides.columns.add_columns::<V, 2>(columns, start, &mut sums[..count]),
            4 => sides.columns.add_columns::<V, 4>(columns, start, &mut sums[..count]),
            taps => {
                for (output, sum) in sums[..count].iter_mut().enumerate() {
                    let first = (start + output) * taps;
                    let terms = sides.columns.index[first..].iter().zip(&sides.columns.weight[first..]);
                    for (&at, &weight) in terms.take(taps) {
                        *sum = V::read(&columns[at as usize]).mul_add(V::splat(weight), *sum);
                    }
                }
            }
        }
        for (row, items) in V::transpose(sums).iter().enumerate().take(rows) {
            items.write_part(&mut cells[row * outputs + start..][..count]);
        }
    }
}

/// Rows one by one.
#[inline(always)]
fn resize_each<V: Vector>(sides: &Sides, x: &[f32], first: usize, cells: &mut [f32]) {
    let &Sides { columns, run, .. } = sides;
    let width = sides.width * run;
    // Blended first, rows are gathered from once.
    let blends = 1 < sides.combinations && width <= BLEND;
    let mut blended = [0.0; BLEND];
    let mut place = sides.place(first);
    for cells in cells.chunks_exact_mut(columns.outputs() * run) {
        cells.fill(0.0);
        if blends {
            blended[..width].fill(0.0);
        }
        for (start, weight) in sides.sources(&place) {
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
        sides.advance(&mut place);
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

    /// Adds the weighted sums of taps of some neighboring outputs: of each column, the rows in its lanes.
    #[inline(always)]
    fn add_columns<V: Vector, const TAPS: usize>(&self, columns: &[[f32; LANES]], first: usize, sums: &mut [V]) {
        let (index, weight) = (self.index.as_chunks::<TAPS>().0, self.weight.as_chunks::<TAPS>().0);
        for ((sum, index), weight) in sums.iter_mut().zip(&index[first..]).zip(&weight[first..]) {
            for tap in 0..TAPS {
                *sum = V::read(&columns[index[tap] as usize]).mul_add(V::splat(weight[tap]), *sum);
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
