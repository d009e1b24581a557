//! [`Attention`]: fused attention, which keeps no score matrix in memory.
//!
//! A task takes some panels of a head's queries, each as high as a tile, and iterates over blocks of keys: tiles
//! compute the block's scores, these become exponentials relative to the largest score so far, and their products with
//! the values are accumulated in the output. If a block raises the largest score, the accumulated results are scaled
//! down; at the end each row is divided by the sum of its exponentials (online softmax: Milakov and Gimelshein 2018;
//! Dao et al. 2022).
//!
//! In half precision two neighbors of a query or key are one word, as everywhere in products; the exponentials of two keys
//! are one word too, and so are the values that they are multiplied by. Scores and accumulated results are `f32`. For the
//! matrix unit, keys are padded to whole registers of words, with exponentials of 0.

use std::array::from_fn;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::HeadOrder;

use crate::gemm::finish;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::tile::{self, Init, KLoop, Loop, Repeat, Row, STRIDED_ROWS_MAX, Tile};
use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements, elements_mut, input, product};
use crate::movement::strips::{self, STRIP};
use crate::ops::matmul::transpose;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, math, storage};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, StackBuffer};

/// Keys per block.
const KEYS: usize = 128;
/// Elements of a key that are transposed at once.
const DEPTH: usize = 128;
/// Most panels of a task, and most queries.
const PANELS: usize = 10;
const QUERIES: usize = PANELS * tile::ROWS;
/// From this many panels on, values are copied although they could be read in place, where their rows map to few sets of the
/// first-level cache.
const COPY_PANELS: usize = 3;
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

/// `softmax(q k^T * scale + mask) v` for each batch and head. Operands: queries, keys, values, all stored like the result,
/// then the mask in `f32` if there is one.
///
/// Refuses: bytes; in half precision an odd width, odd strides of queries or keys, and values wider than 128.
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
    /// Storage type of queries, keys, values and results.
    pub stored: StorageType,
}

/// Length that an operand must have for these extents and strides; `None` on overflow.
fn reach(extents: &[usize], strides: &[usize]) -> Option<usize> {
    let steps = extents.iter().zip(strides).map(|(&extent, &stride)| extent.saturating_sub(1).checked_mul(stride));
    let reach = steps.into_iter().try_fold(1usize, |sum, step| sum.checked_add(step?))?;
    Some(if extents.contains(&0) { 0 } else { reach })
}

impl Attention {
    /// Whether a task with some panels copies values.
    fn copies_values(&self, panels: usize) -> bool {
        !self.value_width.is_multiple_of(LANES) || self.stored.is_half() || COPY_PANELS <= panels
    }

    /// The widest value in half precision, whose accumulated results lie on the stack.
    pub const HALF_VALUE_MAX: usize = 128;

    /// Elements of a word.
    fn per_word(&self) -> usize {
        4 / self.stored.size()
    }

    /// Most rows of a panel. Microkernels with fewer rows divide it equally.
    fn panel_rows(&self, isa: Isa) -> usize {
        let words = self.width / self.per_word();
        match tile::prefers_strided_rows(isa, self.stored) {
            true => tile::strided_rows_max(words),
            false => tile::ROWS / tile::rows_max(isa) * tile::rows_max(isa),
        }
    }

    /// Keys of a block, with those that are added so that its words fill the registers of the matrix unit.
    fn padded_keys(&self, isa: Isa, keys: usize) -> usize {
        match tile::prefers_strided_rows(isa, self.stored) {
            true => keys.next_multiple_of(LANES * self.per_word()),
            false => keys.next_multiple_of(LANES),
        }
    }

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
        let size = self.stored.size();
        match self.stored {
            StorageType::F32 => {}
            StorageType::F16 | StorageType::Bf16 => {
                let strides = self.strides[..2].iter().flat_map(|strides| [strides.batch, strides.head, strides.token]);
                if strides.chain([width]).any(|count| count % 2 != 0) || Attention::HALF_VALUE_MAX < value_width {
                    return Err(InvalidKernel(
                        "half precision needs even widths and strides, and values of at most 128",
                    ));
                }
            }
            StorageType::U8 | StorageType::I8 => return Err(InvalidKernel("attention does not compute with bytes")),
        }
        for (ix, elements) in inputs.iter_mut().enumerate() {
            *elements = elements.and_then(|elements| elements.checked_mul(if ix == 3 { 4 } else { size }));
        }
        Sizes::new(&inputs, product(&[batch, heads, queries, value_width, size]), 1)
    }

    fn run(&self, args: Args, pool: &Pool) {
        // Halves of keys and queries are read as words of two, values as they are.
        let [q, k, v] = from_fn(|ix| match args.inputs[ix] {
            Operand::Bytes(bytes) => bytes,
            Operand::InPlace(_) => &[],
        });
        let [q, k] = [q, k].map(|bytes| elements::<f32>(&bytes[..bytes.len() / 4 * 4]));
        let mask = self.mask.map(|strides| (strides, input(&args, 3)));
        let out = SharedMut::new(&mut *args.outputs[0]);
        let heads = self.batch * self.heads;
        if out.len() == 0 {
            return;
        }
        let panel_rows = self.panel_rows(pool.isa());
        let (panels, panels_max) = (self.queries.div_ceil(panel_rows), PANELS.min(QUERIES / panel_rows));
        // As many groups as threads can use, since each group transposes the keys repeat. Panels are cut per head, so
        // that the number of groups does not influence any result.
        let wanted = if pool.threads() == 1 { 1 } else { (pool.threads() * TASKS_PER_THREAD).div_ceil(heads) };
        let groups = wanted.min(panels.div_ceil(2)).max(panels.div_ceil(panels_max));
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
    /// Words, as those of the keys.
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [u8],
    mask: Option<(MaskStrides, &'a [f32])>,
    out: SharedMut<'a, u8>,
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
    v: &'a [u8],
    /// The mask from the first query and key of the group, and its strides.
    mask: Option<(&'a [f32], MaskStrides)>,
    out: &'a SharedMut<'a, u8>,
    /// In elements.
    out_start: usize,
    /// Stride between queries in the output.
    out_stride: usize,
    /// In half precision: the accumulated results of each query, in whole vectors.
    sums: Option<&'a mut [f32]>,
}

/// State of the online softmax of a group's queries.
struct Scores<'a> {
    /// A row per query: the block's scores, then their exponentials.
    rows: &'a mut [f32],
    /// The exponentials in half precision, two in a word.
    halves: &'a mut [f32],
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
        let (stored, per_word) = (self.kernel.stored, self.kernel.per_word());
        let mut sum_cells = StackBuffer::<{ QUERIES * Attention::HALF_VALUE_MAX }>::new();
        let sums = match stored {
            StorageType::F32 => None,
            _ => Some(sum_cells.zeros(count * value_width.next_multiple_of(LANES))),
        };
        // Operands without elements are empty, whatever their strides.
        let mut group = Group {
            isa,
            kernel: self.kernel,
            panels: panels.map(|panel| start(panel) - first..start(panel + 1) - first).collect(),
            q: self.q.get((at(q_strides) + first * q_strides.token) / per_word..).unwrap_or_default(),
            k: self.k.get(at(k_strides) / per_word..).unwrap_or_default(),
            v: self.v.get(at(v_strides) * stored.size()..).unwrap_or_default(),
            mask: self.mask.map(|(strides, items)| {
                let start = batch * strides.batch + head * strides.head + first * strides.query;
                (items.get(start..).unwrap_or_default(), strides)
            }),
            out: &self.out,
            out_start: at(out_strides) + first * out_strides.token,
            out_stride: out_strides.token,
            sums,
        };
        let reach = |tokens: usize, stride: usize, width: usize| (tokens - 1) * stride + width;
        let queries_end = reach(count, q_strides.token, width).div_ceil(per_word);
        assert!(width == 0 || queries_end <= group.q.len(), "queries lie in their operand");
        let values_end = reach(keys.max(1), v_strides.token, value_width) * stored.size();
        assert!(keys == 0 || values_end <= group.v.len(), "values lie in their operand");
        let end = group.out_start + reach(count, group.out_stride, value_width);
        assert!(end * stored.size() <= self.out.len(), "results lie in the output");

        let (mut key_cells, mut score_cells) =
            (StackBuffer::<{ DEPTH * KEYS }>::new(), StackBuffer::<{ QUERIES * KEYS }>::new());
        let mut half_cells = StackBuffer::<{ QUERIES * KEYS / 2 }>::new();
        // Holds transposed keys, one row per word; later values.
        let key_count = width.min(DEPTH) * keys.min(KEYS).next_multiple_of(LANES);
        let copies = self.kernel.copies_values(group.panels.len());
        let pitch = self.kernel.padded_keys(isa, keys.clamp(1, KEYS));
        let value_count = if copies { pitch * STRIP } else { 0 };
        let room = key_cells.zeros(key_count.max(value_count));
        let rows = score_cells.zeros(count * pitch);
        let halves = half_cells.zeros(if self.kernel.stored.is_half() { count * pitch / 2 } else { 0 });
        let mut scores = Scores { rows, halves, pitch, top: [f32::NEG_INFINITY; QUERIES], sum: [0.0; QUERIES] };
        for first in (0..keys.max(1)).step_by(KEYS) {
            let (block, scores) = (first..keys.min(first + KEYS), &mut scores);
            group.scores(block.clone(), room, scores);
            let (group, keys) = (&mut group, block.clone());
            with_vector!(isa, exponentials(group: &mut Group<'_>, keys: Range<usize>, scores: &mut Scores<'_>));
            match stored {
                StorageType::F32 => group.values(block, room, scores),
                _ => {
                    storage::narrow(isa, stored, scores.rows, bytemuck::cast_slice_mut(scores.halves));
                    group.half_values(block, room, scores);
                }
            }
        }
        // Without keys the results stay 0.
        if keys != 0 {
            let (group, sums) = (&mut group, &scores.sum[..count]);
            with_vector!(isa, divide(group: &mut Group<'_>, sums: &[f32]));
        }
        if group.sums.is_some() {
            (0..count).for_each(|query| group.store_halves(query));
        }
    }
}

impl Group<'_> {
    /// The accumulated results of a query: its output cells, or in half precision those of the buffer.
    fn results(&mut self, query: usize, columns: Range<usize>) -> &mut [f32] {
        if let Some(sums) = &mut self.sums {
            let pitch = self.kernel.value_width.next_multiple_of(LANES);
            return &mut sums[query * pitch..][columns];
        }
        let start = self.out_start + query * self.out_stride + columns.start;
        // SAFETY: the rows of a group belong to one task, which borrows one row at a time.
        elements_mut(unsafe { self.out.part(start * 4, columns.len() * 4) })
    }

    /// Rounds the results of a query to the output.
    fn store_halves(&mut self, query: usize) {
        let (width, stored) = (self.kernel.value_width, self.kernel.stored);
        let start = (self.out_start + query * self.out_stride) * stored.size();
        let out = self.out;
        // SAFETY: the rows of a group belong to one task, which borrows one row at a time.
        let cells = unsafe { out.part(start, width * stored.size()) };
        storage::narrow(self.isa, stored, self.results(query, 0..width), cells);
    }

    /// Scores of a block of keys, whose words are transposed into `room`.
    fn scores(&self, block: Range<usize>, room: &mut [f32], scores: &mut Scores) {
        let (isa, columns, per_word) = (self.isa, block.len(), self.kernel.per_word());
        // In words.
        let width = self.kernel.width / per_word;
        let stride = |strides: HeadStrides| if width == 0 { 0 } else { strides.token / per_word };
        let [q_stride, k_stride, _] = self.kernel.strides.map(stride);
        let padded = columns.next_multiple_of(LANES);
        let is_half = self.kernel.stored.is_half();
        let rows: [Row; STRIDED_ROWS_MAX] =
            from_fn(|row| Row { x: row.wrapping_mul(q_stride), out: row * scores.pitch });
        // With width 0 there is one empty part, whose products are 0.
        for first in (0..width.max(1)).step_by(DEPTH) {
            let depth = DEPTH.min(width - first);
            // Words of a key and a vector of keys, and of the next vector: neighbors in half precision.
            let steps @ [weight_stride, weight_vector] = if is_half { [padded, LANES] } else { [LANES, depth * LANES] };
            if columns != 0 && depth != 0 {
                let (items, stride) = (&self.k[block.start * k_stride + first..], k_stride);
                let cells = &mut room[..depth * padded];
                with_vector!(isa, transpose(
                    items: &[f32], stride: usize, columns: usize, depth: usize, steps: [usize; 2], cells: &mut [f32]
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
                        operands: self.kernel.stored,
                        x: x.as_ptr().cast(),
                        weights: room[(column / LANES * weight_vector).min(room.len())..].as_ptr().cast(),
                        compact: None,
                        weight_stride,
                        weight_vector,
                        result: StorageType::F32,
                        out: scores.rows[panel.start * scores.pitch + column..].as_mut_ptr().cast(),
                        rows: &rows[..panel.len()],
                        vectors: STRIP.min(padded - column) / LANES,
                        vector_stride: LANES,
                        k_loops: &[KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth }],
                        init: if first == 0 { Init::Zero } else { Init::Accumulate },
                        residual: None,
                        limits: None,
                        marks: None,
                        read_back: false,
                        prefetch: Prefetch::NONE,
                        repeat: Repeat { iterations, x: 0, weights: STRIP / LANES * weight_vector, out: STRIP },
                    };
                    // SAFETY: queries have `width` elements (asserted), transposed keys have `depth` words of `padded` keys,
                    // and scores have a row of `pitch` per query, which is at least `padded`.
                    unsafe { finish::multiply(isa, &tile, &[]) };
                }
            }
        }
    }

    /// Accumulates the products of a block's exponentials and values. Values for several panels, and value columns that do not
    /// fill a vector, are copied to `room`.
    fn values(&mut self, block: Range<usize>, room: &mut [f32], scores: &Scores) {
        let (value_width, stride) = (self.kernel.value_width, self.kernel.strides[2].token);
        let start = if block.start == 0 { Init::Zero } else { Init::Accumulate };
        let v: &[f32] = elements(self.v.get(block.start * stride * 4..).unwrap_or_default());
        for column in (0..value_width).step_by(STRIP) {
            let columns = column..value_width.min(column + STRIP);
            let whole = columns.len() % LANES == 0;
            let vectors = columns.len().div_ceil(LANES);
            let (mut weights, mut steps) = (v.get(column..).unwrap_or_default(), [stride, LANES]);
            if self.kernel.copies_values(self.panels.len()) {
                if !block.is_empty() {
                    strips::copy(weights, stride, columns.len(), &mut room[..block.len() * vectors * LANES]);
                }
                (weights, steps) = (&*room, [LANES, block.len() * LANES]);
            }
            let [weight_stride, weight_vector] = steps;
            let out_row = if whole { self.out_stride } else { STRIP };
            let rows: [Row; STRIDED_ROWS_MAX] =
                from_fn(|row| Row { x: row * scores.pitch, out: row.wrapping_mul(out_row) });
            for panel in self.panels.clone() {
                let mut accumulators = [[0.0; STRIP]; STRIDED_ROWS_MAX];
                if !whole && block.start != 0 {
                    for (query, row) in panel.clone().zip(&mut accumulators) {
                        row[..columns.len()].copy_from_slice(self.results(query, columns.clone()));
                    }
                }
                // SAFETY: the results are within the output (asserted).
                let results =
                    unsafe { self.out.start().add((self.out_start + panel.start * self.out_stride + column) * 4) };
                let tile = Tile {
                    operands: StorageType::F32,
                    x: scores.rows[panel.start * scores.pitch..].as_ptr().cast(),
                    weights: weights.as_ptr().cast(),
                    compact: None,
                    weight_stride,
                    weight_vector,
                    result: StorageType::F32,
                    out: if whole { results.cast() } else { accumulators.as_mut_ptr().cast() },
                    rows: &rows[..panel.len()],
                    vectors,
                    vector_stride: LANES,
                    k_loops: &[KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth: block.len() }],
                    init: start,
                    residual: None,
                    limits: None,
                    marks: None,
                    read_back: false,
                    prefetch: Prefetch::NONE,
                    repeat: Repeat::ONCE,
                };
                // SAFETY: a row has a score for each key of the block, there are as many rows of values, each with
                // `vectors` full vectors, and the results are this task's part of the output, or a local buffer.
                unsafe { finish::multiply(self.isa, &tile, &[]) };
                if !whole {
                    for (query, row) in panel.zip(&accumulators) {
                        self.results(query, columns.clone()).copy_from_slice(&row[..columns.len()]);
                    }
                }
            }
        }
    }
}

impl Group<'_> {
    /// The same in half precision: words of the values of two keys are copied to `room`, a strip of columns at a time.
    fn half_values(&mut self, block: Range<usize>, room: &mut [f32], scores: &Scores) {
        let (value_width, stride) = (self.kernel.value_width, self.kernel.strides[2].token);
        let init = if block.start == 0 { Init::Zero } else { Init::Accumulate };
        let pitch = value_width.next_multiple_of(LANES);
        let words = self.kernel.padded_keys(self.isa, block.len()) / 2;
        let rows: [Row; STRIDED_ROWS_MAX] = from_fn(|row| Row { x: row * scores.pitch / 2, out: row * pitch });
        for column in (0..value_width).step_by(STRIP) {
            let columns = STRIP.min(value_width - column);
            let vectors = columns.div_ceil(LANES);
            for (pair, cells) in room.chunks_exact_mut(vectors * LANES).enumerate().take(words) {
                // Keys and columns behind the last are 0.
                let row = |key: usize| {
                    if block.len() <= key {
                        return &[0; STRIP][..columns];
                    }
                    let start = ((block.start + key) * stride + column) * 2;
                    elements::<u16>(&self.v[start..start + columns * 2])
                };
                let (first, second) = (row(2 * pair), row(2 * pair + 1));
                for ((cell, &low), &high) in cells.iter_mut().zip(first).zip(second) {
                    *cell = f32::from_bits(u32::from(low) | u32::from(high) << 16);
                }
                cells[columns..].fill(0.0);
            }
            let Some(sums) = &mut self.sums else { return };
            for panel in &self.panels {
                let tile = Tile {
                    operands: self.kernel.stored,
                    x: scores.halves[panel.start * scores.pitch / 2..].as_ptr().cast(),
                    weights: room.as_ptr().cast(),
                    compact: None,
                    weight_stride: vectors * LANES,
                    weight_vector: LANES,
                    result: StorageType::F32,
                    out: sums[panel.start * pitch + column..].as_mut_ptr().cast(),
                    rows: &rows[..panel.len()],
                    vectors,
                    vector_stride: LANES,
                    k_loops: &[KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth: words }],
                    init,
                    residual: None,
                    limits: None,
                    marks: None,
                    read_back: false,
                    prefetch: Prefetch::NONE,
                    repeat: Repeat::ONCE,
                };
                // SAFETY: a row has a word for each two keys of the block, as many rows of `vectors` full vectors of words
                // were copied to `room`, and the sums have a row of whole vectors for each query.
                unsafe { finish::multiply(self.isa, &tile, &[]) };
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
    let padded = group.kernel.padded_keys(group.isa, keys.len()).min(scores.pitch);
    for (query, row) in scores.rows.chunks_exact_mut(scores.pitch).enumerate() {
        let (row, behind) = row[..padded].split_at_mut(keys.len().next_multiple_of(LANES));
        behind.fill(0.0);
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
