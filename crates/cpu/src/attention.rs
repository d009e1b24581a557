//! [`Attention`]: the softmax of products of queries and keys, times values, with no matrix of scores in memory.
//!
//! A task has a head's group of queries. It takes the keys in blocks: scores of the block by tiles, their exponentials
//! over the largest score so far, and products of these with the values, which add up in the output. Where a block has a
//! larger score than those before, what has been summed is scaled down; at the end each row is divided by the sum of its
//! exponentials. (Milakov & Gimelshein 2018; Dao et al. 2022.)

use std::array::from_fn;
use std::mem::MaybeUninit;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::kernel::{Args, KernelFn, Misfit, Sizes, elements_mut, input, product};
use crate::matmul::transpose;
use crate::shared::{SharedMut, zeros};
use crate::tile::{self, Loop, Nest, Row, Start, Tile};
use crate::vector::{LANES, Vector, with_vector};
use crate::{Isa, Pool, math};

/// Keys of a block.
const KEYS: usize = 128;
/// Elements of a key that are transposed at once.
const DEPTH: usize = 128;
/// The most queries of a task.
const QUERIES: usize = 10 * tile::ROWS;
/// Columns of a tile.
const STRIP: usize = 2 * LANES;
/// Tasks a thread.
const TASKS_PER_THREAD: usize = 4;

/// Where a factor's vectors are, in elements: from batch to batch, from head to head, from token to token. The elements of
/// a vector are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadStrides {
    /// From batch to batch.
    pub batch: usize,
    /// From head to head.
    pub head: usize,
    /// From token to token.
    pub token: usize,
}

/// The same for numbers that are added to scores; a stride of 0 where one serves for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskStrides {
    /// From batch to batch.
    pub batch: usize,
    /// From head to head.
    pub head: usize,
    /// From query to query.
    pub query: usize,
    /// From key to key, 0 or 1.
    pub key: usize,
}

/// The order of the output's extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeadOrder {
    /// `[batch, heads, queries, value_width]`.
    HeadsFirst,
    /// `[batch, queries, heads, value_width]`.
    QueriesFirst,
}

/// `softmax(q k^T * scale + mask) v` for each batch and head. Operands: queries, keys, values, then the mask where there
/// is one. `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Batches.
    pub batch: usize,
    /// Heads of each.
    pub heads: usize,
    /// Queries of a head.
    pub queries: usize,
    /// Keys of a head, and values.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub width: usize,
    /// Elements of a value.
    pub value_width: usize,
    /// The factor of scores.
    pub scale: f32,
    /// Where queries, keys and values are.
    pub strides: [HeadStrides; 3],
    /// Where the numbers are that are added to scores.
    pub mask: Option<MaskStrides>,
    /// How the output lies.
    pub order: HeadOrder,
}

/// The elements that strides reach.
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
            HeadOrder::QueriesFirst => HeadStrides { batch, head: width, token: self.heads * width },
        }
    }
}

impl KernelFn for Attention {
    const NAME: &'static str = "attention";

    fn sizes(&self) -> Result<Sizes, Misfit> {
        if self.mask.is_some_and(|mask| 1 < mask.key) {
            return Err(Misfit("a mask's keys are neighbours"));
        }
        let Attention { batch, heads, queries, keys, width, value_width, .. } = *self;
        if 1 < keys && value_width != 0 && self.strides[2].token == 0 {
            return Err(Misfit("each value has a place of its own"));
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
            // One number that serves for several is there even where there are none of them.
            extents.iter_mut().zip(strides).filter(|(_, stride)| *stride == 0).for_each(|(extent, _)| *extent = 1);
            reach(&extents, &strides)
        }));
        Sizes::new(&inputs, product(&[batch, heads, queries, value_width]), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let [q, k, v] = from_fn(|ix| input::<f32>(&args, ix));
        let mask = self.mask.map(|strides| (strides, input(&args, 3)));
        let out = SharedMut::new(elements_mut(args.outputs[0]));
        let (batch, heads) = (self.batch, self.heads);
        if out.len() == 0 {
            return;
        }
        // As many groups as threads can use: each transposes the keys again.
        let wanted =
            (pool.threads() * TASKS_PER_THREAD).div_ceil(batch * heads).min(self.queries.div_ceil(2 * tile::ROWS));
        let groups = if pool.threads() == 1 { 1 } else { wanted.max(1) }.max(self.queries.div_ceil(QUERIES));
        let work = Work { kernel: self, q, k, v, mask, out };
        let work = &work;
        pool.run(batch * heads * groups, &|task| {
            let (head, group) = (task / groups, task % groups);
            let queries = group * self.queries / groups..(group + 1) * self.queries / groups;
            work.group(pool.isa(), head / heads, head % heads, queries);
        });
    }
}

/// A run's operands.
struct Work<'a> {
    kernel: &'a Attention,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    mask: Option<(MaskStrides, &'a [f32])>,
    out: SharedMut<'a, f32>,
}

/// What a task knows about its queries.
struct Scores<'a> {
    /// A row of `KEYS` for each query: scores of the block, then their exponentials.
    rows: &'a mut [f32],
    /// The largest score of each query so far.
    top: [f32; QUERIES],
    /// The sum of its exponentials.
    sum: [f32; QUERIES],
}

/// A block of keys for a group of queries.
struct Block<'a> {
    keys: Range<usize>,
    /// The numbers to be added to the scores of the group's first query, and how far it is from query to query.
    mask: Option<(&'a [f32], MaskStrides)>,
    /// Results so far, from the group's first query on.
    out: &'a SharedMut<'a, f32>,
    out_start: usize,
    out_stride: usize,
    value_width: usize,
    scale: f32,
}

impl Work<'_> {
    fn group(&self, isa: Isa, batch: usize, head: usize, queries: Range<usize>) {
        let Attention { keys, width, value_width, .. } = *self.kernel;
        let at = |strides: HeadStrides| batch * strides.batch + head * strides.head;
        let [q_strides, k_strides, v_strides] = self.kernel.strides;
        let out_strides = self.kernel.output_strides();
        let count = queries.len();
        if count == 0 {
            return;
        }
        // Operands without elements are empty, whatever their strides are.
        let q = self.q.get(at(q_strides) + queries.start * q_strides.token..).unwrap_or_default();
        let k = self.k.get(at(k_strides)..).unwrap_or_default();
        let v = self.v.get(at(v_strides)..).unwrap_or_default();
        assert!(width == 0 || (count - 1) * q_strides.token + width <= q.len(), "the queries lie in their operand");
        assert!(keys == 0 || (keys - 1) * v_strides.token + value_width <= v.len(), "the values lie in their operand");
        let out_start = at(out_strides) + queries.start * out_strides.token;
        assert!(
            out_start + (count - 1) * out_strides.token + value_width <= self.out.len(),
            "results lie in the output"
        );
        let mut key_cells = [const { MaybeUninit::uninit() }; DEPTH * KEYS];
        let mut score_cells = [const { MaybeUninit::uninit() }; QUERIES * KEYS];
        // Transposed keys, a row for each of their elements; later columns of values, where they fill no vector.
        let key_count = width.min(DEPTH) * keys.min(KEYS).next_multiple_of(LANES);
        let value_count = if value_width % LANES == 0 { 0 } else { keys.min(KEYS) * STRIP };
        let room = zeros(&mut key_cells, key_count.max(value_count));
        let rows = zeros(&mut score_cells, count * KEYS);
        let mut scores = Scores { rows, top: [f32::NEG_INFINITY; QUERIES], sum: [0.0; QUERIES] };
        let panels = count.div_ceil(tile::ROWS);
        let panel = |ix: usize| ix * count / panels..(ix + 1) * count / panels;
        let blocks = keys.div_ceil(KEYS).max(1);
        for block in 0..blocks {
            let range = block * KEYS..keys.min((block + 1) * KEYS);
            let (first, columns) = (range.start, range.len());
            let padded = columns.next_multiple_of(LANES);
            // Scores.
            for part in 0..width.div_ceil(DEPTH).max(1) {
                let elements = part * DEPTH..width.min((part + 1) * DEPTH);
                let depth = elements.len();
                if columns != 0 && depth != 0 {
                    let (items, stride) = (&k[first * k_strides.token + elements.start..], k_strides.token);
                    let cells = &mut room[..depth * padded];
                    with_vector!(isa, transpose(
                        items: &[f32], stride: usize, columns: usize, depth: usize, cells: &mut [f32]
                    ));
                }
                let rows: [Row; tile::ROWS] = from_fn(|row| Row { x: row * q_strides.token, out: row * KEYS });
                for (panel, column) in
                    (0..panels).map(panel).flat_map(|panel| (0..padded).step_by(STRIP).map(move |c| (panel.clone(), c)))
                {
                    let start = if part == 0 { Start::Zero } else { Start::Output };
                    let x = q.get(panel.start * q_strides.token + elements.start..).unwrap_or_default();
                    let cells = &mut scores.rows[panel.start * KEYS + column..];
                    // SAFETY: queries have `width` elements (asserted), transposed keys `depth` rows of `padded`, and
                    // scores a row of `KEYS` for each query, which is at least `padded`.
                    unsafe {
                        tile::multiply(
                            isa,
                            &Tile {
                                x: x.as_ptr(),
                                weights: room[column.min(room.len())..].as_ptr(),
                                weight_stride: padded,
                                out: cells.as_mut_ptr(),
                                rows: &rows[..panel.len()],
                                vectors: STRIP.min(padded - column) / LANES,
                                vector_stride: LANES,
                                nests: &[Nest { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth }],
                                start,
                                residual: None,
                                limits: None,
                            },
                        );
                    }
                }
            }
            // Exponentials.
            let mask = self.mask.map(|(strides, items)| {
                let start = batch * strides.batch + head * strides.head + queries.start * strides.query;
                (items.get(start + first * strides.key..).unwrap_or_default(), strides)
            });
            let block = Block {
                keys: range.clone(),
                mask,
                out: &self.out,
                out_start,
                out_stride: out_strides.token,
                value_width,
                scale: self.kernel.scale,
            };
            let (scores, block) = (&mut scores, &block);
            with_vector!(isa, exponentials(block: &Block<'_>, count: usize, scores: &mut Scores<'_>));
            // Values.
            let v = v.get(first * v_strides.token..).unwrap_or_default();
            for column in (0..value_width).step_by(STRIP) {
                let filled = STRIP.min(value_width - column);
                let whole = filled % LANES == 0;
                let vectors = filled.div_ceil(LANES);
                let (mut weights, mut weight_stride) = (v.get(column..).unwrap_or_default(), v_strides.token);
                if !whole {
                    for (row, cells) in room.chunks_exact_mut(vectors * LANES).enumerate().take(columns) {
                        cells[..filled].copy_from_slice(&v[row * v_strides.token + column..][..filled]);
                    }
                    (weights, weight_stride) = (&*room, vectors * LANES);
                }
                for panel in (0..panels).map(panel) {
                    let place = out_start + panel.start * out_strides.token + column;
                    let mut beside = [[0.0; STRIP]; tile::ROWS];
                    // SAFETY: a group's rows of a head are its task's own.
                    let cells = |row: usize| unsafe { self.out.part(place + row * out_strides.token, filled) };
                    if !whole && first != 0 {
                        (0..panel.len()).for_each(|row| beside[row][..filled].copy_from_slice(cells(row)));
                    }
                    let out_row = if whole { out_strides.token } else { STRIP };
                    let rows: [Row; tile::ROWS] = from_fn(|row| Row { x: row * KEYS, out: row * out_row });
                    // SAFETY: a row has a score for each key of the block; as many rows of values are there, each with
                    // `vectors` whole vectors; the results are this task's part of the output (asserted), or `beside`.
                    unsafe {
                        let out = if whole { self.out.start().add(place) } else { beside.as_mut_ptr().cast() };
                        tile::multiply(
                            isa,
                            &Tile {
                                x: scores.rows[panel.start * KEYS..].as_ptr(),
                                weights: weights.as_ptr(),
                                weight_stride,
                                out,
                                rows: &rows[..panel.len()],
                                vectors,
                                vector_stride: LANES,
                                nests: &[Nest { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth: columns }],
                                start: if first == 0 { Start::Zero } else { Start::Output },
                                residual: None,
                                limits: None,
                            },
                        );
                    }
                    if !whole {
                        (0..panel.len()).for_each(|row| cells(row).copy_from_slice(&beside[row][..filled]));
                    }
                }
            }
        }
        let (sums, out) = (&scores.sum[..count], &self.out);
        let stride = out_strides.token;
        // A sum of nothing is 0 and stays so.
        if keys != 0 {
            with_vector!(isa, divide(
                sums: &[f32], out: &SharedMut<'_, f32>, out_start: usize, stride: usize, value_width: usize
            ));
        }
    }
}

/// Scores of a block become exponentials; where a query's largest score grows, its results and its sum so far shrink.
#[inline(always)]
fn exponentials<V: Vector>(block: &Block<'_>, count: usize, scores: &mut Scores<'_>) {
    let (scale, length, nothing) = (V::splat(block.scale), block.keys.len(), f32::NEG_INFINITY);
    for query in 0..count {
        let row = &mut scores.rows[query * KEYS..][..length];
        let mut top = V::splat(nothing);
        for (ix, cells) in row.chunks_mut(LANES).enumerate() {
            let mut items = V::read_part(cells, 0.0).mul(scale);
            if let Some((numbers, strides)) = block.mask {
                let numbers = &numbers[query * strides.query + ix * LANES * strides.key..];
                let more = match strides.key {
                    0 => V::splat(numbers[0]),
                    _ => V::read_part(&numbers[..cells.len()], 0.0),
                };
                items = items.add(more);
            }
            items.write_part(cells);
            // Lanes behind the last key have a score of nothing.
            let items = if cells.len() == LANES { items } else { V::read_part(cells, nothing) };
            top = items.max(top);
        }
        let old_top = scores.top[query];
        let new_top = top.largest().max(old_top);
        // Where all scores so far are minus infinity, so that their exponentials are 0 over any number.
        let shift = if new_top == nothing { 0.0 } else { new_top };
        let mut sum = V::zero();
        for cells in row.chunks_mut(LANES) {
            let power = math::exp(V::read_part(cells, nothing).sub(V::splat(shift)));
            sum = sum.add(power);
            power.write_part(cells);
        }
        let shrink = math::exp(V::splat(old_top - shift));
        scores.sum[query] = scores.sum[query] * shrink.to_array()[0] + sum.sum();
        scores.top[query] = new_top;
        if block.keys.start != 0 && old_top != new_top {
            // SAFETY: a group's rows of a head are its task's own.
            let results = unsafe { block.out.part(block.out_start + query * block.out_stride, block.value_width) };
            for cells in results.chunks_mut(LANES) {
                V::read_part(cells, 0.0).mul(shrink).write_part(cells);
            }
        }
    }
}

/// Divides each row of results by its sum.
#[inline(always)]
fn divide<V: Vector>(sums: &[f32], out: &SharedMut<'_, f32>, start: usize, stride: usize, value_width: usize) {
    for (query, sum) in sums.iter().enumerate() {
        let factor = V::splat(1.0 / sum);
        // SAFETY: a group's rows of a head are its task's own.
        let results = unsafe { out.part(start + query * stride, value_width) };
        for cells in results.chunks_mut(LANES) {
            V::read_part(cells, 0.0).mul(factor).write_part(cells);
        }
    }
}
