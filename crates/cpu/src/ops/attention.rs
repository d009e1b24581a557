//! [`Attention`]: fused attention, which keeps no score matrix in memory.
//!
//! A task takes some panels of a head's queries, each as high as a tile, and iterates over blocks of keys: tiles
//! compute the block's scores, these become exponentials relative to the largest score so far, and their products with
//! the values are accumulated in the output. If a block raises the largest score, the accumulated results are scaled
//! down; at the end each row is divided by the sum of its exponentials (online softmax: Milakov and Gimelshein 2018;
//! Dao et al. 2022).

use std::array::from_fn;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::HeadOrder;

use crate::gemm::dispatch;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::tile::{self, Init, KLoop, Loop, Repeat, Row, Tile};
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::ops::matmul::transpose;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, math};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, StackBuffer};

/// Keys per block.
const KEYS: usize = 128;
/// Elements of a key that are transposed at once.
const DEPTH: usize = 128;
/// Most panels of a task.
const PANELS: usize = 10;
const QUERIES: usize = PANELS * tile::ROWS;
/// Columns of a tile.
const STRIP: usize = 2 * LANES;
/// Tasks per thread.
const TASKS_PER_THREAD: usize = 4;

/// Strides of queries, keys or values, in elements. The elements of one vector are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadStrides {
    /// Between batches.
    pub batch: usize,
    /// Between heads.
    pub head: usize,
    /// Between tokens.
    pub token: usize,
}

/// Strides of the mask, in elements; 0 broadcasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskStrides {
    /// Between batches.
    pub batch: usize,
    /// Between heads.
    pub head: usize,
    /// Between queries.
    pub query: usize,
    /// Between keys: 0 or 1.
    pub key: usize,
}

/// `softmax(q k^T * scale + mask) v` for each batch and head, in `f32`. Operands: queries, keys, values, then the mask
/// if there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Batch size.
    pub batch: usize,
    /// Heads per batch element.
    pub heads: usize,
    /// Queries per head.
    pub queries: usize,
    /// Keys, and values, per head.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub width: usize,
    /// Elements of a value.
    pub value_width: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Strides of queries, keys and values.
    pub strides: [HeadStrides; 3],
    /// Strides of the mask that is added to the scores, if there is one.
    pub mask: Option<MaskStrides>,
    /// Axis order of the output.
    pub order: HeadOrder,
}

/// Length that an operand must have for these extents and strides; `None` on overflow.
fn reach(extents: &[usize], strides: &[usize]) -> Option<usize> {
    let steps = extents.iter().zip(strides).map(|(&extent, &stride)| extent.saturating_sub(1).checked_mul(stride));
    let reach = steps.into_iter().try_fold(1usize, |sum, step| sum.checked_add(step?))?;
    Some(if extents.contains(&0) { 0 } else { reach })
}

impl Attention {
    fn output_strides(&self) -> HeadStrides {
        let (width, batch) = (self.value_width, self.heads * self.queries * self.value_width);
        match self.order {
            HeadOrder::HeadsFirst => HeadStrides { batch, head: self.queries * width, token: width },
            HeadOrder::TokensFirst => HeadStrides { batch, head: width, token: self.heads * width },
        }
    }
}

impl KernelFn for Attention {
    const NAME: &'static str = "attention";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.mask.is_some_and(|mask| 1 < mask.key) {
            return Err(InvalidKernel("the mask's stride between keys must be 0 or 1"));
        }
        let Attention { batch, heads, queries, keys, width, value_width, .. } = *self;
        if 1 < keys && value_width != 0 && self.strides[2].token == 0 {
            return Err(InvalidKernel("values of several keys must not share a stride of 0"));
        }
        let operand = |ix: usize, tokens: usize, width: usize| {
            let HeadStrides { batch: over_batch, head, token } = self.strides[ix];
            reach(&[batch, heads, tokens, width], &[over_batch, head, token, 1])
        };
        let mut inputs: SmallVec<[Option<usize>; 4]> = SmallVec::new();
        inputs.extend([operand(0, queries, width), operand(1, keys, width), operand(2, keys, value_width)]);
        inputs.extend(self.mask.map(|mask| {
            let strides = [mask.batch, mask.head, mask.query, mask.key];
            let mut extents = [batch, heads, queries, keys];
            // A broadcast element exists even if the extent that it is broadcast over is 0.
            extents.iter_mut().zip(strides).filter(|(_, stride)| *stride == 0).for_each(|(extent, _)| *extent = 1);
            reach(&extents, &strides)
        }));
        Sizes::new(&inputs, product(&[batch, heads, queries, value_width]), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let [q, k, v] = from_fn(|ix| input::<f32>(&args, ix));
        let mask = self.mask.map(|strides| (strides, input(&args, 3)));
        let out = SharedMut::new(elements_mut(args.outputs[0]));
        let heads = self.batch * self.heads;
        if out.len() == 0 {
            return;
        }
        let panels = self.queries.div_ceil(tile::ROWS);
        // As many groups as threads can use, since each group transposes the keys repeat. Panels are cut per head, so
        // that the number of groups does not influence any result.
        let wanted = if pool.threads() == 1 { 1 } else { (pool.threads() * TASKS_PER_THREAD).div_ceil(heads) };
        let groups = wanted.min(panels.div_ceil(2)).max(panels.div_ceil(PANELS));
        let work = Work { kernel: self, q, k, v, mask, out, panels };
        let work = &work;
        pool.run(heads * groups, &|task| {
            let (head, group) = (task / groups, task % groups);
            let panels = group * panels / groups..(group + 1) * panels / groups;
            work.group(pool.isa(), head / self.heads, head % self.heads, panels);
        });
    }
}

/// The operands of a run.
struct Work<'a> {
    kernel: &'a Attention,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    mask: Option<(MaskStrides, &'a [f32])>,
    out: SharedMut<'a, f32>,
    /// Panels per head, each as high as a tile.
    panels: usize,
}

/// A task's part of a head: operands from the head's first vector, queries and results from the group's first.
struct Group<'a> {
    isa: Isa,
    kernel: &'a Attention,
    /// Rows of each panel, relative to the group's first query.
    panels: SmallVec<[Range<usize>; PANELS]>,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    /// The mask from the first query and key of the group, and its strides.
    mask: Option<(&'a [f32], MaskStrides)>,
    out: &'a SharedMut<'a, f32>,
    out_start: usize,
    /// Stride between queries in the output.
    out_stride: usize,
}

/// State of the online softmax of a group's queries.
struct Scores<'a> {
    /// A row per query: the block's scores, then their exponentials.
    rows: &'a mut [f32],
    /// Elements of a row: whole vectors, at most [`KEYS`].
    pitch: usize,
    /// The largest score of each query so far.
    top: [f32; QUERIES],
    /// The sum of exponentials of each query so far.
    sum: [f32; QUERIES],
}

impl Work<'_> {
    fn group(&self, isa: Isa, batch: usize, head: usize, panels: Range<usize>) {
        let Attention { queries, keys, width, value_width, .. } = *self.kernel;
        let start = |panel: usize| panel * queries / self.panels;
        let (first, count) = (start(panels.start), start(panels.end) - start(panels.start));
        let at = |strides: HeadStrides| batch * strides.batch + head * strides.head;
        let [q_strides, k_strides, v_strides] = self.kernel.strides;
        let out_strides = self.kernel.output_strides();
        // Operands without elements are empty, whatever their strides.
        let mut group = Group {
            isa,
            kernel: self.kernel,
            panels: panels.map(|panel| start(panel) - first..start(panel + 1) - first).collect(),
            q: self.q.get(at(q_strides) + first * q_strides.token..).unwrap_or_default(),
            k: self.k.get(at(k_strides)..).unwrap_or_default(),
            v: self.v.get(at(v_strides)..).unwrap_or_default(),
            mask: self.mask.map(|(strides, items)| {
                let start = batch * strides.batch + head * strides.head + first * strides.query;
                (items.get(start..).unwrap_or_default(), strides)
            }),
            out: &self.out,
            out_start: at(out_strides) + first * out_strides.token,
            out_stride: out_strides.token,
        };
        let reach = |tokens: usize, stride: usize, width: usize| (tokens - 1) * stride + width;
        assert!(width == 0 || reach(count, q_strides.token, width) <= group.q.len(), "queries lie in their operand");
        assert!(keys == 0 || reach(keys, v_strides.token, value_width) <= group.v.len(), "values lie in their operand");
        let end = group.out_start + reach(count, group.out_stride, value_width);
        assert!(end <= self.out.len(), "results lie in the output");

        let (mut key_cells, mut score_cells) =
            (StackBuffer::<{ DEPTH * KEYS }>::new(), StackBuffer::<{ QUERIES * KEYS }>::new());
        // Holds transposed keys, one row per element; later the value columns that do not fill a vector.
        let key_count = width.min(DEPTH) * keys.min(KEYS).next_multiple_of(LANES);
        let value_count = if value_width % LANES == 0 { 0 } else { keys.min(KEYS) * STRIP };
        let room = key_cells.zeros(key_count.max(value_count));
        let pitch = keys.min(KEYS).next_multiple_of(LANES).max(LANES);
        let rows = score_cells.zeros(count * pitch);
        let mut scores = Scores { rows, pitch, top: [f32::NEG_INFINITY; QUERIES], sum: [0.0; QUERIES] };
        for first in (0..keys.max(1)).step_by(KEYS) {
            let (block, scores) = (first..keys.min(first + KEYS), &mut scores);
            group.scores(block.clone(), room, scores);
            let (group, keys) = (&mut group, block.clone());
            with_vector!(isa, exponentials(group: &mut Group<'_>, keys: Range<usize>, scores: &mut Scores<'_>));
            group.values(block, room, scores);
        }
        // Without keys the results stay 0.
        if keys != 0 {
            let (group, sums) = (&mut group, &scores.sum[..count]);
            with_vector!(isa, divide(group: &mut Group<'_>, sums: &[f32]));
        }
    }
}

impl Group<'_> {
    /// Output cells of a query.
    fn results(&mut self, query: usize, columns: Range<usize>) -> &mut [f32] {
        // SAFETY: the rows of a group belong to one task, which borrows one row at a time.
        unsafe { self.out.part(self.out_start + query * self.out_stride + columns.start, columns.len()) }
    }

    /// Scores of a block of keys, which are transposed into `room`.
    fn scores(&self, block: Range<usize>, room: &mut [f32], scores: &mut Scores) {
        let (isa, width, columns) = (self.isa, self.kernel.width, block.len());
        let [q_stride, k_stride, _] = self.kernel.strides.map(|strides| if width == 0 { 0 } else { strides.token });
        let padded = columns.next_multiple_of(LANES);
        let rows: [Row; tile::ROWS] = from_fn(|row| Row { x: row.wrapping_mul(q_stride), out: row * scores.pitch });
        // With width 0 there is one empty part, whose products are 0.
        for first in (0..width.max(1)).step_by(DEPTH) {
            let depth = DEPTH.min(width - first);
            if columns != 0 && depth != 0 {
                let (items, stride) = (&self.k[block.start * k_stride + first..], k_stride);
                let cells = &mut room[..depth * padded];
                with_vector!(isa, transpose(
                    items: &[f32], stride: usize, columns: usize, depth: usize, cells: &mut [f32]
                ));
            }
            for panel in &self.panels {
                let x = self.q.get(panel.start * q_stride + first..).unwrap_or_default();
                // Strips of keys; the last one may be a single vector wide.
                let whole = padded / STRIP;
                for (first_strip, iterations) in [(0, whole), (whole, 1)] {
                    let column = first_strip * STRIP;
                    if iterations == 0 || padded <= column {
                        continue;
                    }
                    let tile = Tile {
                        operands: StorageType::F32,
                        x: x.as_ptr().cast(),
                        weights: room[column.min(room.len())..].as_ptr().cast(),
                        compact: None,
                        weight_stride: padded,
                        weight_vector: LANES,
                        result: StorageType::F32,
                        out: scores.rows[panel.start * scores.pitch + column..].as_mut_ptr().cast(),
                        rows: &rows[..panel.len()],
                        vectors: STRIP.min(padded - column) / LANES,
                        vector_stride: LANES,
                        k_loops: &[KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth }],
                        init: if first == 0 { Init::Zero } else { Init::Accumulate },
                        residual: None,
                        limits: None,
                        prefetch: Prefetch::NONE,
                        repeat: Repeat { iterations, x: 0, weights: STRIP, out: STRIP },
                    };
                    // SAFETY: queries have `width` elements (asserted), transposed keys have `depth` rows of `padded`,
                    // and scores have a row of `pitch` per query, which is at least `padded`.
                    unsafe { dispatch::multiply(isa, &tile) };
                }
            }
        }
    }

    /// Accumulates the products of a block's exponentials and values. Value columns that do not fill a vector are
    /// copied to `room`.
    fn values(&mut self, block: Range<usize>, room: &mut [f32], scores: &Scores) {
        let (value_width, stride) = (self.kernel.value_width, self.kernel.strides[2].token);
        let start = if block.start == 0 { Init::Zero } else { Init::Accumulate };
        let v = self.v.get(block.start * stride..).unwrap_or_default();
        for column in (0..value_width).step_by(STRIP) {
            let columns = column..value_width.min(column + STRIP);
            let whole = columns.len() % LANES == 0;
            let vectors = columns.len().div_ceil(LANES);
            let (mut weights, mut weight_stride) = (v.get(column..).unwrap_or_default(), stride);
            if !whole {
                for (row, cells) in room.chunks_exact_mut(vectors * LANES).enumerate().take(block.len()) {
                    cells[..columns.len()].copy_from_slice(&v[row * stride + column..][..columns.len()]);
                }
                (weights, weight_stride) = (&*room, vectors * LANES);
            }
            let out_row = if whole { self.out_stride } else { STRIP };
            let rows: [Row; tile::ROWS] = from_fn(|row| Row { x: row * scores.pitch, out: row.wrapping_mul(out_row) });
            for panel in self.panels.clone() {
                let mut accumulators = [[0.0; STRIP]; tile::ROWS];
                if !whole && block.start != 0 {
                    for (query, row) in panel.clone().zip(&mut accumulators) {
                        row[..columns.len()].copy_from_slice(self.results(query, columns.clone()));
                    }
                }
                // SAFETY: the results are within the output (asserted).
                let results = unsafe { self.out.start().add(self.out_start + panel.start * self.out_stride + column) };
                let tile = Tile {
                    operands: StorageType::F32,
                    x: scores.rows[panel.start * scores.pitch..].as_ptr().cast(),
                    weights: weights.as_ptr().cast(),
                    compact: None,
                    weight_stride,
                    weight_vector: LANES,
                    result: StorageType::F32,
                    out: if whole { results.cast() } else { accumulators.as_mut_ptr().cast() },
                    rows: &rows[..panel.len()],
                    vectors,
                    vector_stride: LANES,
                    k_loops: &[KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth: block.len() }],
                    init: start,
                    residual: None,
                    limits: None,
                    prefetch: Prefetch::NONE,
                    repeat: Repeat::ONCE,
                };
                // SAFETY: a row has a score for each key of the block, there are as many rows of values, each with
                // `vectors` full vectors, and the results are this task's part of the output, or a local buffer.
                unsafe { dispatch::multiply(self.isa, &tile) };
                if !whole {
                    for (query, row) in panel.zip(&accumulators) {
                        self.results(query, columns.clone()).copy_from_slice(&row[..columns.len()]);
                    }
                }
            }
        }
    }
}

/// Turns a block's scores into exponentials. If a query's largest score grows, its accumulated results and sum are
/// scaled down.
#[inline(always)]
fn exponentials<V: Vector>(group: &mut Group<'_>, keys: Range<usize>, scores: &mut Scores<'_>) {
    let (scale, nothing) = (V::splat(group.kernel.scale), f32::NEG_INFINITY);
    let numbers: [f32; LANES] = from_fn(|lane| lane as f32);
    let lane_numbers = V::read(&numbers);
    for (query, row) in scores.rows.chunks_exact_mut(scores.pitch).enumerate() {
        let row = &mut row[..keys.len().next_multiple_of(LANES)];
        let mut top = V::splat(nothing);
        for (ix, cells) in row.chunks_exact_mut(LANES).enumerate() {
            let mut items = V::read(cells).mul(scale);
            if let Some((numbers, strides)) = group.mask {
                let numbers = &numbers[query * strides.query + (keys.start + ix * LANES) * strides.key..];
                let more = match strides.key {
                    0 => V::splat(numbers[0]),
                    _ => V::read_part(numbers, 0.0),
                };
                items = items.add(more);
            }
            // Lanes after the last key get the score minus infinity.
            let rest = keys.len() - ix * LANES;
            if rest < LANES {
                items = lane_numbers.if_less(V::splat(rest as f32), items, V::splat(nothing));
            }
            items.write(cells);
            top = items.max(top);
        }
        let old_top = scores.top[query];
        let new_top = top.largest().max(old_top);
        // If all scores so far are minus infinity, any finite shift gives exponentials of 0.
        let shift = if new_top == nothing { 0.0 } else { new_top };
        let mut sum = V::zero();
        for cells in row.chunks_exact_mut(LANES) {
            let power = math::exp_or_zero(V::read(cells).sub(V::splat(shift)));
            sum = sum.add(power);
            power.write(cells);
        }
        let shrink = math::exp_or_zero(V::splat(old_top - shift));
        scores.sum[query] = scores.sum[query] * shrink.to_array()[0] + sum.sum();
        scores.top[query] = new_top;
        if keys.start != 0 && old_top != new_top {
            for cells in group.results(query, 0..group.kernel.value_width).chunks_mut(LANES) {
                V::read_part(cells, 0.0).mul(shrink).write_part(cells);
            }
        }
    }
}

/// Divides each query's results by its sum of exponentials.
#[inline(always)]
fn divide<V: Vector>(group: &mut Group<'_>, sums: &[f32]) {
    for (query, sum) in sums.iter().enumerate() {
        let factor = V::splat(1.0 / sum);
        for cells in group.results(query, 0..group.kernel.value_width).chunks_mut(LANES) {
            V::read_part(cells, 0.0).mul(factor).write_part(cells);
        }
    }
}
