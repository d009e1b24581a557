//! [`Reduce`]: reduction along some axes.

use serde::{Deserialize, Serialize};
use types::{DType, Element};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::movement::axes::{Axes, Axis, RANK};
use crate::ops::elementwise::with_element;
use crate::simd::math;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// The reduction of many elements to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ReduceFn {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    SumSquare,
    L1,
    L2,
    LogSum,
    LogSumExp,
}

impl ReduceFn {
    /// The reductions that give the result, one after the other.
    fn steps(self) -> &'static [Step] {
        match self {
            ReduceFn::Sum | ReduceFn::Mean | ReduceFn::LogSum => &[Step::Sum],
            ReduceFn::Max => &[Step::Max],
            ReduceFn::Min => &[Step::Min],
            ReduceFn::Prod => &[Step::Product],
            ReduceFn::SumSquare | ReduceFn::L2 => &[Step::Square],
            ReduceFn::L1 => &[Step::Abs],
            ReduceFn::LogSumExp => &[Step::Max, Step::Exp],
        }
    }
}

/// Reduces the axes marked in `reduced` of a row-major tensor. Sums are accumulated in `f64`, in an order that depends on
/// the shape alone; for maxima and minima the order does not matter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// The reduction.
    pub function: ReduceFn,
    /// The dtype of elements and results.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// Whether each axis is reduced.
    pub reduced: Vec<bool>,
}

impl Reduce {
    fn part(&self, reduced: bool) -> impl Iterator<Item = usize> + '_ {
        self.shape.iter().zip(&self.reduced).filter(move |(_, flag)| **flag == reduced).map(|(&extent, _)| extent)
    }
}

impl KernelFn for Reduce {
    const NAME: &'static str = "reduce";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.reduced.len() != self.shape.len() || RANK < self.shape.len() {
            return Err(InvalidKernel("there must be at most 16 extents, each with a flag"));
        }
        let kept: Vec<usize> = self.part(false).collect();
        let gone: Vec<usize> = self.part(true).collect();
        product(&gone).ok_or(InvalidKernel("the number of elements must fit in an address"))?;
        let sizes = Sizes::new(&[product(&self.shape)], product(&kept), self.dtype.size().0 as usize)?;
        Ok(sizes)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        1
    }

    fn run(&self, args: Args, pool: &Pool) {
        let &[Operand::Bytes(x)] = args.inputs else { return };
        let job = &Job::new(self, x);
        // Windows of neighboring outputs are reduced together, so that a task reads whole cache lines.
        let chunk = match job.kept.last() {
            Axis { stride: 1, extent } => (WORK / job.window.max(1)).next_multiple_of(LANES).max(extent.min(ACROSS)),
            _ => (WORK / job.window.max(1)).max(1),
        };
        let size = self.dtype.size().0 as usize;
        let outputs = args.outputs[0].len() / size;
        let parts = job.parts(outputs);
        if outputs.div_ceil(chunk) < parts {
            return job.run_parts(parts, args.outputs[0], pool);
        }
        let chunk = chunk * size;
        for_each_chunk(pool, args.outputs[0], chunk, &|number, cells| {
            let first = number * chunk / size;
            with_vector!(pool.isa(), run_outputs(job: &Job<'_>, first: usize, cells: &mut [u8]));
        });
    }
}

/// The maximum or minimum of items; NaN if one is NaN, and an infinity without items.
#[inline(always)]
fn extreme_of_row<V: Vector>(items: &[f32], is_min: bool) -> f32 {
    if items.len() < LANES {
        let (mut best, sign) = (f32::NEG_INFINITY, if is_min { -1.0 } else { 1.0 });
        for item in items {
            let x = item * sign;
            best = if x.is_nan() || x > best { x } else { best };
        }
        return best * sign;
    }
    // The minimum is the negated maximum of the negated items.
    let (sign, worst) = if is_min { (V::splat(-1.0), f32::INFINITY) } else { (V::splat(1.0), f32::NEG_INFINITY) };
    let mut best = V::splat(f32::NEG_INFINITY);
    let mut chunks = items.chunks_exact(4 * LANES);
    if 4 * LANES <= items.len() {
        // Four maxima hide the latency.
        let mut parts = [best; 4];
        for items in &mut chunks {
            for (part, items) in parts.iter_mut().zip(items.chunks_exact(LANES)) {
                *part = part.max_or_nan(V::read(items).mul(sign));
            }
        }
        best = parts[0].max_or_nan(parts[1]).max_or_nan(parts[2].max_or_nan(parts[3]));
    }
    for items in chunks.remainder().chunks(LANES) {
        best = best.max_or_nan(V::read_part(items, worst).mul(sign));
    }
    let mut best = best.to_array();
    let mut count = LANES;
    while 1 < count {
        count /= 2;
        for lane in 0..count {
            let x = best[lane + count];
            best[lane] = if x.is_nan() || x > best[lane] { x } else { best[lane] };
        }
    }
    if is_min { -best[0] } else { best[0] }
}

/// Elements that a task reduces.
const WORK: usize = 1 << 14;
/// Outputs whose results are on the stack at a time, and elements that are converted at a time.
const TILE: usize = 256;
/// Partial results of a run of reduced elements: element `i` goes to number `i % PARTIAL`.
const PARTIAL: usize = 16;
/// Neighboring outputs that a task reduces at least, where there are as many.
const ACROSS: usize = 64;
/// The most neighboring outputs whose windows are reduced by blocks, one after the other.
const NARROW: usize = 48;
/// The most elements of a row that is read together with its neighbors.
const SHORT: usize = 64;
/// Short rows that are reduced in turns.
const ROWS: usize = 8;
/// The most parts of the reduced elements that are reduced in parallel, and the most results of all parts.
const PARTS: usize = 32;
const RESULTS: usize = 2048;

/// A reduction of elements in memory.
struct Job<'a> {
    kernel: &'a Reduce,
    x: &'a [u8],
    /// The same as `f32`, if they are that and aligned; otherwise nothing.
    numbers: &'a [f32],
    kept: Axes,
    reduced: Axes,
    /// Elements of an output.
    window: usize,
}

/// An element as it is read.
trait Number {
    fn number(&self) -> f64;
}

impl Number for f64 {
    #[inline(always)]
    fn number(&self) -> f64 {
        *self
    }
}

/// The bytes of an `f32`.
impl Number for [u8; 4] {
    #[inline(always)]
    fn number(&self) -> f64 {
        f64::from(f32::from_le_bytes(*self))
    }
}

/// The larger number, or NaN if one is NaN. Selecting `a` or `b` would be compiled to masked stores, which are slow.
#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { a + b } else { a.max(b) }
}

/// The arithmetic on a result for each element.
#[derive(Clone, Copy)]
enum Step {
    Sum,
    Square,
    Abs,
    Product,
    Max,
    Min,
    /// The exponential of the distance to a result of [`Step::Max`].
    Exp,
}

impl Step {
    fn start(self) -> f64 {
        match self {
            Step::Sum | Step::Square | Step::Abs | Step::Exp => 0.0,
            Step::Product => 1.0,
            Step::Max => f64::NEG_INFINITY,
            Step::Min => f64::INFINITY,
        }
    }

    /// An element that changes no result of sums and products; exponentials have none.
    fn neutral(self) -> Option<f32> {
        match self {
            Step::Sum | Step::Square | Step::Abs => Some(0.0),
            Step::Product => Some(1.0),
            Step::Max | Step::Min | Step::Exp => None,
        }
    }

    fn is_extreme(self) -> bool {
        matches!(self, Step::Max | Step::Min)
    }

    /// `sums[i] = step(sums[i], items[i])`, each with its top.
    #[inline(always)]
    fn add<T: Number>(self, sums: &mut [f64], items: &[T], tops: &[f64]) {
        macro_rules! each {
            ($sum:ident, $x:ident => $value:expr) => {
                for (cell, item) in sums.iter_mut().zip(items) {
                    let ($sum, $x) = (*cell, item.number());
                    *cell = $value;
                }
            };
        }
        match self {
            Step::Sum => each!(sum, x => sum + x),
            Step::Square => each!(sum, x => sum + x * x),
            Step::Abs => each!(sum, x => sum + x.abs()),
            Step::Product => each!(sum, x => sum * x),
            Step::Max => each!(sum, x => larger(sum, x)),
            Step::Min => each!(sum, x => -larger(-sum, -x)),
            Step::Exp => {
                for ((sum, x), &top) in sums.iter_mut().zip(items).zip(tops) {
                    *sum += (x.number() - top).exp();
                }
            }
        }
    }

    /// `sums[i] = step(sums[i], item)` for each item of row `i`, each sum with its top.
    #[inline(always)]
    fn add_rows<T: Number>(self, sums: &mut [f64], items: &[T], tops: &[f64]) {
        let length = items.len() / sums.len();
        macro_rules! each {
            ($sum:ident, $x:ident, $top:ident => $value:expr) => {{
                let (whole, rest) = sums.as_chunks_mut::<ROWS>();
                let (whole_tops, rest_tops) = tops.as_chunks::<ROWS>();
                let (whole_items, rest_items) = items.split_at(whole.len() * ROWS * length);
                // The rows take turns, so that a sum does not wait for the one before it.
                for ((cells, tops), items) in
                    whole.iter_mut().zip(whole_tops).zip(whole_items.chunks_exact(ROWS * length))
                {
                    let mut rows = [items; ROWS];
                    for (row, slice) in rows.iter_mut().enumerate() {
                        *slice = &items[row * length..][..length];
                    }
                    let mut sums = *cells;
                    for column in 0..length {
                        for row in 0..ROWS {
                            let ($sum, $x, $top) = (sums[row], rows[row][column].number(), tops[row]);
                            sums[row] = $value;
                        }
                    }
                    *cells = sums;
                }
                for ((cell, &$top), items) in rest.iter_mut().zip(rest_tops).zip(rest_items.chunks_exact(length)) {
                    for item in items {
                        let ($sum, $x) = (*cell, item.number());
                        *cell = $value;
                    }
                }
            }};
        }
        match self {
            Step::Sum => each!(sum, x, _top => sum + x),
            Step::Square => each!(sum, x, _top => sum + x * x),
            Step::Abs => each!(sum, x, _top => sum + x.abs()),
            Step::Product => each!(sum, x, _top => sum * x),
            Step::Max => each!(sum, x, _top => larger(sum, x)),
            Step::Min => each!(sum, x, _top => -larger(-sum, -x)),
            Step::Exp => each!(sum, x, top => sum + (x - top).exp()),
        }
    }

    /// Reduces `f32` that lie one after the other, as `add` does with [`PARTIAL`] results.
    #[inline(always)]
    fn reduce_numbers(self, items: &[[u8; 4]], top: f64) -> f64 {
        macro_rules! partial {
            ($type:ty, $sum:ident, $x:ident => $value:expr) => {{
                let mut partial = [self.start() as $type; PARTIAL];
                let (whole, rest) = items.as_chunks::<PARTIAL>();
                let step = |$sum: $type, bytes: &[u8; 4]| {
                    let $x = <$type>::from(f32::from_le_bytes(*bytes));
                    $value
                };
                for items in whole {
                    for ix in 0..PARTIAL {
                        partial[ix] = step(partial[ix], &items[ix]);
                    }
                }
                if whole.is_empty() {
                    let sum = rest.iter().fold(self.start() as $type, step);
                    return f64::from(sum);
                }
                for (sum, bytes) in partial.iter_mut().zip(rest) {
                    *sum = step(*sum, bytes);
                }
                self.join_all(partial.map(f64::from))
            }};
        }
        match self {
            Step::Sum => partial!(f64, sum, x => sum + x),
            Step::Square => partial!(f64, sum, x => sum + x * x),
            Step::Abs => partial!(f64, sum, x => sum + x.abs()),
            Step::Product => partial!(f64, sum, x => sum * x),
            Step::Max => partial!(f32, sum, x => if x.is_nan() || x > sum { x } else { sum }),
            Step::Min => partial!(f32, sum, x => if x.is_nan() || x < sum { x } else { sum }),
            Step::Exp => partial!(f64, sum, x => sum + (x - top).exp()),
        }
    }

    /// `partial[i % 16] = step(partial[i % 16], items[i])`, for steps with a neutral element.
    #[inline(always)]
    fn add_vectors<V: Vector>(self, partial: &mut [f64; PARTIAL], items: &[f32], neutral: f32) {
        macro_rules! each {
            ($sum:ident, $x:ident => $value:expr) => {{
                let mut sums = *partial;
                let (whole, rest) = items.as_chunks::<PARTIAL>();
                for items in whole {
                    for ix in 0..PARTIAL {
                        let ($sum, $x) = (sums[ix], f64::from(items[ix]));
                        sums[ix] = $value;
                    }
                }
                if !rest.is_empty() {
                    let items = V::read_part(rest, neutral).to_array();
                    for ix in 0..PARTIAL {
                        let ($sum, $x) = (sums[ix], f64::from(items[ix]));
                        sums[ix] = $value;
                    }
                }
                *partial = sums;
            }};
        }
        match self {
            Step::Square => each!(sum, x => sum + x * x),
            Step::Abs => each!(sum, x => sum + x.abs()),
            Step::Product => each!(sum, x => sum * x),
            Step::Sum | Step::Max | Step::Min | Step::Exp => each!(sum, x => sum + x),
        }
    }

    /// Joins partial results pair by pair.
    #[inline(always)]
    fn join_all(self, mut partial: [f64; PARTIAL]) -> f64 {
        let mut count = PARTIAL;
        while 1 < count {
            count /= 2;
            let (low, high) = partial.split_at_mut(count);
            match self {
                Step::Square | Step::Abs | Step::Exp => Step::Sum.add(low, &high[..count], &[]),
                step => step.add(low, &high[..count], &[]),
            }
        }
        partial[0]
    }

    /// Joins two partial results.
    fn join(self, a: f64, b: f64) -> f64 {
        let mut sum = [a];
        match self {
            Step::Square | Step::Abs | Step::Exp => Step::Sum.add(&mut sum, &[b], &[]),
            step => step.add(&mut sum, &[b], &[]),
        }
        sum[0]
    }
}

/// Up to sixteen maxima of `f32`, as lanes.
#[inline(always)]
fn lanes_of<V: Vector>(tops: &[f64]) -> V {
    let mut lanes = [0.0; LANES];
    lanes.iter_mut().zip(tops).for_each(|(lane, &top)| *lane = top as f32);
    V::read(&lanes)
}

/// The sum of the exponentials of distances to a maximum, which is an `f32`.
#[inline(always)]
fn sum_of_exponentials<V: Vector>(items: &[f32], top: f64) -> f64 {
    let (top, mut partial) = (V::splat(top as f32), [0.0; PARTIAL]);
    for items in items.chunks(LANES) {
        // Lanes without an element add nothing.
        let terms = math::exp_or_zero(V::read_part(items, f32::NEG_INFINITY).sub(top)).to_array();
        partial.iter_mut().zip(terms).for_each(|(sum, term)| *sum += f64::from(term));
    }
    Step::Sum.join_all(partial)
}

/// `sums[i] += e^(items[i] - tops[i])`; maxima are `f32`.
#[inline(always)]
fn add_exponentials<V: Vector>(sums: &mut [f64], items: &[f32], tops: &[f64]) {
    for ((sums, items), tops) in sums.chunks_mut(LANES).zip(items.chunks(LANES)).zip(tops.chunks(LANES)) {
        let terms = math::exp_or_zero(V::read_part(items, 0.0).sub(lanes_of(tops))).to_array();
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += f64::from(term));
    }
}

impl<'a> Job<'a> {
    fn new(kernel: &'a Reduce, x: &'a [u8]) -> Job<'a> {
        let (mut kept, mut reduced) = (Axes::NONE, Axes::NONE);
        let mut stride = kernel.shape.iter().product::<usize>();
        for (&extent, &gone) in kernel.shape.iter().zip(&kernel.reduced) {
            stride /= extent.max(1);
            (if gone { &mut reduced } else { &mut kept }).push(Axis { extent, stride });
        }
        let numbers = if kernel.dtype == DType::F32 { bytemuck::try_cast_slice(x).unwrap_or_default() } else { &[] };
        Job { kernel, x, numbers, kept, reduced, window: kernel.part(true).product() }
    }

    /// The number of parts into which the outermost reduced axis is divided if there are few outputs: it depends on the shape
    /// alone, so that results do not depend on the number of threads.
    fn parts(&self, outputs: usize) -> usize {
        match outputs {
            1..=TILE => PARTS.min(RESULTS / outputs).min(outputs * self.window / WORK).min(self.reduced.first().extent),
            _ => 1,
        }
    }

    /// The reduction of one of the parts.
    fn part(&self, part: usize, parts: usize) -> Job<'a> {
        let Axis { extent, stride } = self.reduced.first();
        let [begin, end] = [part, part + 1].map(|part| extent * part / parts);
        Job {
            x: &self.x[begin * stride * self.kernel.dtype.size().0 as usize..],
            numbers: self.numbers.get(begin * stride..).unwrap_or_default(),
            reduced: self.reduced.with_first(end - begin),
            ..*self
        }
    }

    /// Reduces all parts and joins their results.
    fn run_parts(&self, parts: usize, cells: &mut [u8], pool: &Pool) {
        let outputs = cells.len() / self.kernel.dtype.size().0 as usize;
        let mut all = [0.0; RESULTS];
        let (mut sums, mut tops) = ([0.0; TILE], [0.0; TILE]);
        for &step in self.kernel.function.steps() {
            tops = sums;
            for_each_chunk(pool, &mut all[..parts * outputs], outputs, &|part, sums| {
                let (job, tops) = (&self.part(part, parts), &tops[..outputs]);
                with_vector!(pool.isa(), reduce_part(job: &Job<'_>, step: Step, sums: &mut [f64], tops: &[f64]));
            });
            sums.fill(step.start());
            for part in all[..parts * outputs].chunks_exact(outputs) {
                sums.iter_mut().zip(part).for_each(|(sum, &other)| *sum = step.join(*sum, other));
            }
        }
        self.finish(&mut sums[..outputs], &tops[..outputs], cells);
    }

    /// Reduces the windows of some outputs.
    #[inline(always)]
    fn reduce<V: Vector>(&self, step: Step, first: usize, sums: &mut [f64], tops: &[f64]) {
        sums.fill(step.start());
        if self.window == 0 {
            return;
        }
        let (inner, window) = (self.kept.last(), self.reduced.last());
        let mut items = [0.0; TILE];
        let mut at = 0;
        while at < sums.len() {
            let (row, column) = ((first + at) / inner.extent, (first + at) % inner.extent);
            let count = (inner.extent - column).min(sums.len() - at);
            let start = self.kept.at(row) + column * inner.stride;
            let tops = &tops[at..at + count];
            let sums = &mut sums[at..at + count];
            at += count;
            // Neighboring outputs have neighboring elements, or an output has elements at one stride.
            let across = inner.stride == 1;
            if across && !self.numbers.is_empty() && count <= NARROW {
                for ((number, sums), tops) in sums.chunks_mut(LANES).enumerate().zip(tops.chunks(LANES)) {
                    self.reduce_block::<V>(step, start + number * LANES, sums, tops);
                }
                continue;
            }
            // Short contiguous rows are read several at a time. Maxima and exponentials of `f32` rows are vectorized.
            let is_f32 = self.kernel.dtype == DType::F32;
            let (length, is_dense) = match across {
                true => (count, !is_f32 && window.stride == count),
                false => (window.extent, window.stride == 1 && inner.stride == window.extent),
            };
            let has_vectors = is_f32 && (step.is_extreme() || matches!(step, Step::Exp)) && LANES <= length;
            let is_together = is_dense
                && length <= SHORT
                && !has_vectors
                && (across || ROWS <= count || length < PARTIAL || self.numbers.is_empty());
            if let Some(neutral) = step.neutral()
                && !across
                && !is_together
                && !self.numbers.is_empty()
                && window.stride == 1
                && PARTIAL <= window.extent
            {
                // Partial results are joined once for all rows of an output.
                for (turn, sum) in sums.iter_mut().enumerate() {
                    let mut partial = [step.start(); PARTIAL];
                    for outer in 0..self.reduced.outer() {
                        let row = start + turn * inner.stride + self.reduced.at(outer);
                        step.add_vectors::<V>(&mut partial, &self.numbers[row..row + window.extent], neutral);
                    }
                    *sum = step.join_all(partial);
                }
                continue;
            }
            for outer in 0..self.reduced.outer() {
                let start = start + self.reduced.at(outer);
                if is_together && is_f32 {
                    step.add_rows(sums, &self.x.as_chunks::<4>().0[start..start + count * length], tops);
                    continue;
                }
                if is_together {
                    let rows = if across { window.extent } else { count };
                    for first in (0..rows).step_by(TILE / length) {
                        let rows = (TILE / length).min(rows - first);
                        let items = &mut items[..rows * length];
                        self.read(start + first * length, 1, items);
                        match across {
                            true => items.chunks_exact(length).for_each(|items| step.add(sums, items, tops)),
                            false => step.add_rows(&mut sums[first..][..rows], items, &tops[first..][..rows]),
                        }
                    }
                    continue;
                }
                if across {
                    for turn in 0..window.extent {
                        let start = start + turn * window.stride;
                        if let (Step::Exp, Some(items)) = (step, self.numbers.get(start..start + count)) {
                            add_exponentials::<V>(sums, items, tops);
                            continue;
                        }
                        if is_f32 {
                            step.add(sums, &self.x.as_chunks::<4>().0[start..start + count], tops);
                            continue;
                        }
                        let items = &mut items[..count];
                        self.read(start, 1, items);
                        step.add(sums, items, tops);
                    }
                    continue;
                }
                for (turn, (sum, &top)) in sums.iter_mut().zip(tops).enumerate() {
                    let row = start + turn * inner.stride;
                    *sum = step.join(*sum, self.reduce_row::<V>(step, row, window, top));
                }
            }
        }
    }

    /// Reduces the windows of up to sixteen neighboring outputs, of `f32`.
    #[inline(always)]
    fn reduce_block<V: Vector>(&self, step: Step, start: usize, sums: &mut [f64], tops: &[f64]) {
        let (axis, count) = (self.reduced.last(), sums.len());
        // Few outputs whose rows lie one after the other: the lanes are several rows.
        let rows = if axis.stride == count { LANES / count } else { 1 };
        let (mut all, mut lane_tops) = ([step.start(); LANES], [0.0; LANES]);
        for lane_tops in lane_tops.chunks_exact_mut(count).take(rows) {
            lane_tops.copy_from_slice(tops);
        }
        let whole = Axis { extent: axis.extent / rows, stride: axis.stride * rows };
        self.add_block::<V>(step, start, whole, &mut all, &lane_tops[..rows * count]);
        for row in 1..rows {
            for lane in 0..count {
                all[lane] = step.join(all[lane], all[row * count + lane]);
            }
        }
        let rest = Axis { extent: axis.extent % rows, ..axis };
        if rest.extent != 0 {
            self.add_block::<V>(step, start + whole.extent * whole.stride, rest, &mut all, tops);
        }
        sums.copy_from_slice(&all[..count]);
    }

    /// Adds rows of up to sixteen elements along `axis`, which replaces the innermost reduced one, to results that stay in
    /// registers. Lanes behind `tops` have results that are not read.
    #[inline(always)]
    fn add_block<V: Vector>(&self, step: Step, start: usize, axis: Axis, all: &mut [f64; LANES], tops: &[f64]) {
        macro_rules! rows {
            ($items:ident => $add:expr) => {
                for outer in 0..self.reduced.outer() {
                    let start = start + self.reduced.at(outer);
                    for turn in 0..axis.extent {
                        let rest = &self.numbers[start + turn * axis.stride..];
                        let mut part = [0.0; LANES];
                        let $items: &[f32; LANES] = match rest.first_chunk() {
                            Some(items) => items,
                            None => {
                                part[..rest.len()].copy_from_slice(rest);
                                &part
                            }
                        };
                        $add;
                    }
                }
            };
        }
        if let Step::Max | Step::Min = step {
            let sign = V::splat(if let Step::Min = step { -1.0 } else { 1.0 });
            let mut best = V::read(&all.map(|best| best as f32)).mul(sign);
            rows!(items => best = best.max_or_nan(V::read(items).mul(sign)));
            for (sum, best) in all.iter_mut().zip(best.mul(sign).to_array()) {
                *sum = f64::from(best);
            }
            return;
        }
        macro_rules! each {
            ($sum:ident, $x:ident => $value:expr) => {
                rows!(items => for lane in 0..LANES {
                    let ($sum, $x) = (all[lane], f64::from(items[lane]));
                    all[lane] = $value;
                })
            };
        }
        match step {
            Step::Sum => each!(sum, x => sum + x),
            Step::Square => each!(sum, x => sum + x * x),
            Step::Abs => each!(sum, x => sum + x.abs()),
            Step::Product => each!(sum, x => sum * x),
            Step::Exp => {
                let top: V = lanes_of(tops);
                rows!(items => {
                    let terms = math::exp_or_zero(V::read(items).sub(top)).to_array();
                    all.iter_mut().zip(terms).for_each(|(sum, term)| *sum += f64::from(term));
                });
            }
            Step::Max | Step::Min => unreachable!("they were computed in `f32`"),
        }
    }

    /// Reduces elements from one on along an axis.
    #[inline(always)]
    fn reduce_row<V: Vector>(&self, step: Step, start: usize, axis: Axis, top: f64) -> f64 {
        if step.is_extreme()
            && axis.stride == 1
            && let Some(items) = self.numbers.get(start..start + axis.extent)
        {
            return f64::from(extreme_of_row::<V>(items, matches!(step, Step::Min)));
        }
        if let Step::Exp = step
            && axis.stride == 1
            && let Some(items) = self.numbers.get(start..start + axis.extent)
        {
            return sum_of_exponentials::<V>(items, top);
        }
        if self.kernel.dtype == DType::F32 && axis.stride == 1 {
            let (items, _) = self.x.as_chunks::<4>();
            return step.reduce_numbers(&items[start..start + axis.extent], top);
        }
        let mut partial = [step.start(); PARTIAL];
        let mut room = [0.0; TILE];
        for first in (0..axis.extent).step_by(TILE) {
            let items = &mut room[..TILE.min(axis.extent - first)];
            self.read(start + first * axis.stride, axis.stride, items);
            for items in items.chunks(PARTIAL) {
                step.add(&mut partial[..items.len()], items, &[top; PARTIAL]);
            }
        }
        step.join_all(partial)
    }

    /// Converts elements at a stride.
    #[inline(always)]
    fn read(&self, start: usize, stride: usize, to: &mut [f64]) {
        with_element!(self.kernel.dtype, T => {
            let (items, _) = self.x.as_chunks::<{ size_of::<T>() }>();
            match stride {
                0 | 1 => {
                    for (to, item) in to.iter_mut().zip(&items[start..]) {
                        *to = <T as Element>::from_le(item).to_f64();
                    }
                }
                _ => {
                    for (to, item) in to.iter_mut().zip(items[start..].iter().step_by(stride)) {
                        *to = <T as Element>::from_le(item).to_f64();
                    }
                }
            }
        });
    }
}

impl Job<'_> {
    /// The outputs of results, with those of a step before.
    fn finish(&self, sums: &mut [f64], tops: &[f64], cells: &mut [u8]) {
        let Reduce { function, dtype, .. } = *self.kernel;
        if function == ReduceFn::LogSumExp {
            for (sum, &top) in sums.iter_mut().zip(tops) {
                *sum = if top.is_infinite() { top } else { top + sum.ln() };
            }
        }
        match function {
            ReduceFn::Mean => sums.iter_mut().for_each(|sum| *sum /= self.window as f64),
            ReduceFn::L2 => sums.iter_mut().for_each(|sum| *sum = sum.sqrt()),
            ReduceFn::LogSum => sums.iter_mut().for_each(|sum| *sum = sum.ln()),
            _ => {}
        }
        with_element!(dtype, T => {
            let (cells, _) = cells.as_chunks_mut::<{ size_of::<T>() }>();
            for (cell, &sum) in cells.iter_mut().zip(&*sums) {
                <T as Element>::from_f64(sum).write_le(cell);
            }
        });
    }
}

#[inline(always)]
fn run_outputs<V: Vector>(job: &Job<'_>, first: usize, cells: &mut [u8]) {
    let size = job.kernel.dtype.size().0 as usize;
    let (mut sums, mut tops) = ([0.0; TILE], [0.0; TILE]);
    for (tile, cells) in cells.chunks_mut(TILE * size).enumerate() {
        let count = cells.len() / size;
        for &step in job.kernel.function.steps() {
            // The results of the step before this one.
            tops = sums;
            job.reduce::<V>(step, first + tile * TILE, &mut sums[..count], &tops[..count]);
        }
        job.finish(&mut sums[..count], &tops[..count], cells);
    }
}

#[inline(always)]
fn reduce_part<V: Vector>(job: &Job<'_>, step: Step, sums: &mut [f64], tops: &[f64]) {
    job.reduce::<V>(step, 0, sums, tops);
}
