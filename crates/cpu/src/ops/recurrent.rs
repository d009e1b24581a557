//! [`Recurrent`]: LSTM, GRU and plain recurrent networks, step by step.
//!
//! A step multiplies the state by weights that are the same for all steps, so performance depends on how they come from
//! the cache. They are packed in blocks of 16 units: all gates of a block, then its activations, which complete its
//! part of the new state. Only the state passes between steps.
//!
//! ```text
//!        block of 16 units                             next block
//!   k -> | i | i | .. | o | o | .. | f | .. | c | .. |   16 lanes of a gate per k
//! ```
//!
//! Blocks are divided among threads with a barrier after each step ([`run_phases`]); the two directions of a
//! bidirectional network are independent. A unit's result does not depend on the thread that computes it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::pointwise::Unary;
use types::recurrent::{Cell, Direction, Reset};

use crate::gemm::dispatch::multiply;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::tile::{Init, KLoop, Loop, ROWS, Repeat, Row, Tile, rows_max};
use crate::gemm::weights::Weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::math;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::phases::{PARTS_MAX, Phases, run_phases};
use crate::threads::shared_slice::{SharedMut, StackBuffer};

/// `gates: [seq, batch, d g u]`, packed `weight: [d, g u, u]`, initial states `h` and for an LSTM `c`, both `[d, batch,
/// u]`, and for cells with extras `[d, extras u]`; `d` directions, `g` gates, `u` units. Outputs: states `[seq, d,
/// batch, u]`, last `h`, and for an LSTM last `c`; with `keeps_gates` in front of these the values of the gates' functions,
/// of the shape of `gates`, whose bytes they may take. All `f32`. [`Cell`] defines the formulas.
///
/// Refuses: `keeps_gates` for cells other than an LSTM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recurrent {
    /// The cell.
    pub cell: Cell,
    /// Direction of the walk over the sequence.
    pub direction: Direction,
    /// Sequence length.
    pub seq: usize,
    /// Batch size.
    pub batch: usize,
    /// Hidden units.
    pub units: usize,
    /// Format of the recurrent weights.
    pub weights: Weights,
    /// Whether the values of the gates' functions are a result.
    pub keeps_gates: bool,
}

/// Most gates of a cell.
const GATES_MAX: usize = 4;
/// Most rows of the batch that are multiplied together.
pub(super) const ROWS_MAX: usize = 4 * ROWS;
/// Bytes of weights that several tiles of rows read one after the other: half of a first-level cache.
const REPEATED_BYTES: usize = 16 << 10;
/// Products per step that justify another thread at the barrier: half a microsecond of them.
pub(super) const PART_PRODUCTS: usize = 16 * 1024;

pub(super) type Lanes = [f32; LANES];

impl Recurrent {
    /// Packs recurrent weights `[d, g u, u]`; incomplete blocks are padded with zeros.
    ///
    /// # Panics
    /// If `weight` has another number of elements.
    pub fn pack(&self, weight: &[f32]) -> Vec<f32> {
        let (directions, gates) = (self.direction.count(), self.cell.gates());
        assert_eq!(weight.len(), directions * gates * self.units * self.units, "the weights have the kernel's shape");
        let mut packed = vec![0.0; directions * gates * self.blocks() * LANES * self.units];
        self.pack_into(weight, &mut packed);
        packed
    }

    fn pack_into(&self, weight: &[f32], packed: &mut [f32]) {
        let mut cells = packed.iter_mut();
        for direction in 0..self.direction.count() {
            for gates in (0..self.phases().len()).map(|phase| self.gates(phase)) {
                for block in 0..self.blocks() {
                    for gate in gates.clone() {
                        for k in 0..self.units {
                            for unit in block * LANES..(block + 1) * LANES {
                                let row = (direction * self.cell.gates() + gate) * self.units + unit;
                                let item = if unit < self.units { weight[row * self.units + k] } else { 0.0 };
                                *cells.next().expect("the packed form has room for every block") = item;
                            }
                        }
                    }
                }
            }
        }
    }

    /// Blocks of 16 units.
    fn blocks(&self) -> usize {
        self.units.div_ceil(LANES)
    }

    /// Gates per phase of a step. A barrier separates the phases.
    fn phases(&self) -> &'static [usize] {
        match self.cell {
            Cell::Lstm { .. } => &[4],
            Cell::Gru { reset: Reset::AfterProduct, .. } => &[3],
            // The candidate reads the states of all units times their reset gates.
            Cell::Gru { reset: Reset::BeforeProduct, .. } => &[2, 1],
            Cell::Rnn { .. } => &[1],
        }
    }

    /// The gates of a phase.
    fn gates(&self, phase: usize) -> Range<usize> {
        let first = self.phases()[..phase].iter().sum();
        first..first + self.phases()[phase]
    }

    /// Parts into which each step of a direction is divided.
    fn parts(&self, threads: usize) -> usize {
        let directions = self.direction.count();
        let products = (self.cell.gates() * self.units * self.units).saturating_mul(self.batch);
        let most = (products / PART_PRODUCTS).min(self.blocks()).min(PARTS_MAX / directions);
        threads.div_ceil(directions).min(most).max(1)
    }
}

impl KernelFn for Recurrent {
    const NAME: &'static str = "recurrent";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let (directions, gates) = (self.direction.count(), self.cell.gates());
        let padded = self.units.checked_next_multiple_of(LANES);
        let packed = padded.and_then(|padded| product(&[directions, gates, padded, self.units]));
        let plain = product(&[directions, gates, self.units, self.units]);
        let state = product(&[directions, self.batch, self.units]);
        let memories = usize::from(self.cell.has_memory());
        let (weight, workspace) = self.weights.elements([plain, packed], Some(0));
        let mut inputs = vec![product(&[self.seq, self.batch, directions, gates, self.units]), weight];
        inputs.resize(3 + memories, state);
        if 0 < self.cell.extras() {
            inputs.push(product(&[directions, self.cell.extras(), self.units]));
        }
        let y = product(&[self.seq, directions, self.batch, self.units]);
        let mut sizes = Sizes::with_workspace(&inputs, y, workspace, 4)?;
        let (gates, state) = (sizes.inputs[0], sizes.inputs[2]);
        sizes.outputs.resize(2 + memories, state);
        if self.keeps_gates {
            if !self.cell.has_memory() {
                return Err(InvalidKernel("only an LSTM keeps its gates"));
            }
            sizes.outputs.insert(0, gates);
        }
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        // The operand of a gate's function is read for the last time before the value takes its place.
        self.keeps_gates && input == 0
    }

    fn run(&self, args: Args, pool: &Pool) {
        let memories = usize::from(self.cell.has_memory());
        let first_h: &[f32] = input(&args, 2);
        let first_c: &[f32] = if 0 < memories { input(&args, 3) } else { &[] };
        let extra: &[f32] = if 0 < self.cell.extras() { input(&args, 3 + memories) } else { &[] };
        let (gates, weight): (Option<&[f32]>, &[f32]) = (input_or_in_place(&args, 0), input(&args, 1));
        let Args { outputs, workspace, .. } = args;
        let (kept, outputs) = outputs.split_at_mut(usize::from(self.keeps_gates));
        let kept: &mut [f32] = kept.first_mut().map(|kept| elements_mut(kept)).unwrap_or_default();
        let (y, last) = outputs.split_at_mut(1);
        let (h, c) = last.split_at_mut(1);
        let (y, h): (&mut [f32], &mut [f32]) = (elements_mut(y[0]), elements_mut(h[0]));
        let c: &mut [f32] = c.first_mut().map(|c| elements_mut(c)).unwrap_or_default();
        if self.seq == 0 {
            h.copy_from_slice(first_h);
            c.copy_from_slice(first_c);
            return;
        }
        let own: &mut [f32] = elements_mut(workspace);
        if self.weights == Weights::Dynamic {
            self.pack_into(weight, own);
        }
        let weight = if self.weights == Weights::Dynamic { &*own } else { weight };
        let walk = Walk {
            kernel: self,
            isa: pool.isa(),
            gates,
            kept: SharedMut::new(kept),
            weight,
            first_h,
            first_c,
            extra,
            y: SharedMut::new(y),
            c: SharedMut::new(c),
            reset: SharedMut::new(&mut *h),
        };
        let stages = self.seq * self.phases().len();
        let stages = Phases { chains: self.direction.count(), parts: self.parts(pool.threads()), phases: stages };
        run_phases(pool, stages, &|direction, part, stage| {
            let blocks = |part: usize| part * self.blocks() / stages.parts;
            walk.stage(direction, stage, blocks(part)..blocks(part + 1));
        });
        let state = self.batch * self.units;
        for (direction, h) in h.chunks_exact_mut(state).enumerate() {
            let position = self.direction.position(direction, self.seq - 1, self.seq);
            h.copy_from_slice(&y[(position * self.direction.count() + direction) * state..][..state]);
        }
    }
}

/// The operands of a run. A part of a phase writes only its own units at its own position; results of earlier phases
/// are only read.
struct Walk<'a> {
    kernel: &'a Recurrent,
    isa: Isa,
    /// Absent if the values of the gates take its place.
    gates: Option<&'a [f32]>,
    /// Values of the gates, if they are a result.
    kept: SharedMut<'a, f32>,
    /// Packed weights.
    weight: &'a [f32],
    first_h: &'a [f32],
    first_c: &'a [f32],
    extra: &'a [f32],
    y: SharedMut<'a, f32>,
    c: SharedMut<'a, f32>,
    /// States times their reset gates, `[d, batch, u]`, between the phases of a step: in the bytes of the last state, which is
    /// written at the end.
    reset: SharedMut<'a, f32>,
}

/// Position of a tile's rows: a batch range and a block of units at a phase of a direction.
struct Place {
    direction: usize,
    step: usize,
    /// Position in the sequence.
    position: usize,
    phase: usize,
    block: usize,
    rows: Range<usize>,
}

impl Walk<'_> {
    /// Computes some blocks of units in one phase.
    fn stage(&self, direction: usize, stage: usize, blocks: Range<usize>) {
        let kernel = self.kernel;
        let phases = kernel.phases();
        let (step, phase) = (stage / phases.len(), stage % phases.len());
        let gates = kernel.gates(phase);
        let position = kernel.direction.position(direction, step, kernel.seq);
        let state = kernel.batch * kernel.units;
        let x = match phase {
            0 => self.state(direction, step),
            // SAFETY: the reset states were written in the previous phase, and no part writes them in this one.
            _ => unsafe { self.reset.shared_part(direction * state, state) },
        };
        // Odd steps walk the blocks backwards, so that the weights read last, which are still in the L1 cache, come
        // first.
        let of_direction = direction * kernel.cell.gates() + gates.start;
        let block_weights = gates.len() * LANES * kernel.units;
        let mut sums = StackBuffer::<{ ROWS_MAX * GATES_MAX * LANES }>::new();
        let sums: &mut [Lanes] = sums.zeros(kernel.batch.min(ROWS_MAX) * gates.len() * LANES).as_chunks_mut().0;
        for turn in blocks.clone() {
            let block = if step % 2 == 0 { turn } else { blocks.start + blocks.end - 1 - turn };
            let at = of_direction * kernel.blocks() * LANES * kernel.units + block * block_weights;
            let weight = &self.weight[at..][..block_weights];
            for first in (0..kernel.batch).step_by(ROWS_MAX) {
                let rows = first..kernel.batch.min(first + ROWS_MAX);
                let x = &x[first * kernel.units..rows.end * kernel.units];
                let sums = &mut sums[..rows.len() * gates.len()];
                multiply_rows(self.isa, x, kernel.units, weight, sums);
                let place = Place { direction, step, position, phase, block, rows };
                let (walk, place, sums) = (self, &place, &*sums);
                with_vector!(self.isa, finish(walk: &Walk<'_>, place: &Place, sums: &[Lanes]));
            }
        }
    }

    /// The state before a step, `[batch, u]`.
    fn state(&self, direction: usize, step: usize) -> &[f32] {
        let kernel = self.kernel;
        let state = kernel.batch * kernel.units;
        if step == 0 {
            return &self.first_h[direction * state..][..state];
        }
        let position = kernel.direction.position(direction, step - 1, kernel.seq);
        // SAFETY: it was written in the previous step, and no part writes that position in this one.
        unsafe { self.y.shared_part((position * kernel.direction.count() + direction) * state, state) }
    }
}

/// `sums[row][vector]`: rows of `depth` elements, at most [`ROWS_MAX`], times packed weights `[vectors, depth, 16]`.
///
/// Tiles of rows read the weights one after the other, in parts of the depth that stay in the first-level cache.
pub(super) fn multiply_rows(isa: Isa, x: &[f32], depth: usize, weights: &[f32], sums: &mut [Lanes]) {
    let (n_rows, vectors) = (x.len() / depth, weights.len() / (depth * LANES));
    assert_eq!(sums.len(), n_rows * vectors, "there is a sum for each row and vector");
    let tiles = n_rows.div_ceil(rows_max(isa));
    // Instruction sets with few registers compute the vectors of a tile one by one: several tiles read each before the next.
    let together = if isa == Isa::Avx512 || tiles == 1 { 2 } else { 1 };
    for vector in (0..vectors).step_by(together) {
        let vectors = vector..vectors.min(vector + together);
        let part = if tiles == 1 { depth } else { REPEATED_BYTES / size_of::<Lanes>() / vectors.len() };
        for first in (0..depth).step_by(part) {
            for tile in 0..tiles {
                let rows = tile * n_rows / tiles..(tile + 1) * n_rows / tiles;
                let part = Part { rows, vectors: vectors.clone(), terms: first..depth.min(first + part) };
                multiply_part(isa, x, depth, weights, sums, part);
            }
        }
    }
}

/// A part of a product: a tile of its sums, and some of their terms.
struct Part {
    rows: Range<usize>,
    vectors: Range<usize>,
    terms: Range<usize>,
}

/// Adds some terms of a tile to its sums; the first terms replace them.
fn multiply_part(isa: Isa, x: &[f32], depth: usize, weights: &[f32], sums: &mut [Lanes], part: Part) {
    let Part { rows, vectors, terms } = part;
    let all = weights.len() / (depth * LANES);
    let mut places = [Row::default(); ROWS];
    for (ix, place) in places[..rows.len()].iter_mut().enumerate() {
        *place = Row { x: ix * depth, out: ix * all * LANES };
    }
    let x = &x[rows.start * depth + terms.start..(rows.end - 1) * depth + terms.end];
    let weights =
        &weights[(vectors.start * depth + terms.start) * LANES..((vectors.end - 1) * depth + terms.end) * LANES];
    let sums = &mut sums[rows.start * all + vectors.start..(rows.end - 1) * all + vectors.end];
    let k_loops = [KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth: terms.len() }];
    let tile = Tile {
        operands: StorageType::F32,
        x: x.as_ptr().cast(),
        weights: weights.as_ptr().cast(),
        compact: None,
        weight_stride: LANES,
        weight_vector: depth * LANES,
        result: StorageType::F32,
        out: sums.as_mut_ptr().cast(),
        rows: &places[..rows.len()],
        vectors: vectors.len(),
        vector_stride: LANES,
        k_loops: &k_loops,
        init: if terms.start == 0 { Init::Zero } else { Init::Accumulate },
        residual: None,
        limits: None,
        marks: None,
        read_back: false,
        prefetch: Prefetch::NONE,
        repeat: Repeat::ONCE,
    };
    // SAFETY: the processor has the pool's ISA. `x` has these terms of the rows, and the weights have them of the vectors
    // (sliced above). The sums, borrowed here, have room for the vectors of the last row (sliced above).
    unsafe { multiply(isa, &tile) };
}

/// Applies the activations of a block: from the sums to the new state.
#[inline(always)]
fn finish<V: Vector>(walk: &Walk<'_>, place: &Place, sums: &[Lanes]) {
    let gates = walk.kernel.phases()[place.phase];
    for (row, sums) in place.rows.clone().zip(sums.chunks_exact(gates)) {
        let cells = Cells::new(walk, place, row);
        match &walk.kernel.cell {
            Cell::Lstm { activation, peepholes } => lstm::<V>(&cells, sums, activation, *peepholes),
            Cell::Gru { activation, reset: Reset::AfterProduct } => gru::<V>(&cells, sums, activation),
            Cell::Gru { activation: [f, _], .. } if place.phase == 0 => gru_gates::<V>(&cells, sums, *f),
            Cell::Gru { activation: [_, g], .. } => gru_candidate::<V>(&cells, sums, *g),
            Cell::Rnn { activation } => cells.write_h(activate(*activation, cells.gate(0, V::read(&sums[0])))),
        }
    }
}

/// One batch row of a block of units.
struct Cells<'a> {
    walk: &'a Walk<'a>,
    /// Units of the block.
    lanes: usize,
    step: usize,
    direction: usize,
    /// First unit of the block.
    unit: usize,
    /// Offset of the block in the first gate.
    gates: usize,
    /// Offset of the block in a state.
    state: usize,
    /// Offset of the block in the output.
    y: usize,
}

impl<'a> Cells<'a> {
    #[inline(always)]
    fn new(walk: &'a Walk<'a>, place: &Place, row: usize) -> Cells<'a> {
        let Recurrent { cell, direction, batch, units, .. } = walk.kernel;
        let (directions, direction) = (direction.count(), place.direction);
        let unit = place.block * LANES;
        Cells {
            walk,
            lanes: LANES.min(units - unit),
            step: place.step,
            direction,
            unit,
            gates: ((place.position * batch + row) * directions + direction) * cell.gates() * units + unit,
            state: (direction * batch + row) * units + unit,
            y: ((place.position * directions + direction) * batch + row) * units + unit,
        }
    }

    /// A gate's product plus the input's contribution.
    #[inline(always)]
    fn gate<V: Vector>(&self, gate: usize, sum: V) -> V {
        let at = self.gates + gate * self.walk.kernel.units;
        let items = match self.walk.gates {
            Some(gates) => &gates[at..][..self.lanes],
            // SAFETY: each unit of a row and position is accessed by one part of one phase.
            None => unsafe { self.walk.kept.shared_part(at, self.lanes) },
        };
        V::read_part(items, 0.0).add(sum)
    }

    /// Stores the value of a gate's function.
    #[inline(always)]
    fn keep<V: Vector>(&self, gate: usize, value: V) {
        let at = self.gates + gate * self.walk.kernel.units;
        // SAFETY: as in `gate`.
        value.write_part(unsafe { self.walk.kept.part(at, self.lanes) });
    }

    /// A row of peephole weights, or the candidate's bias.
    #[inline(always)]
    fn extra<V: Vector>(&self, row: usize) -> V {
        let kernel = self.walk.kernel;
        let at = (self.direction * kernel.cell.extras() + row) * kernel.units + self.unit;
        V::read_part(&self.walk.extra[at..][..self.lanes], 0.0)
    }

    /// The state before the step.
    #[inline(always)]
    fn h<V: Vector>(&self) -> V {
        let kernel = self.walk.kernel;
        let at = self.state - self.direction * kernel.batch * kernel.units;
        V::read_part(&self.walk.state(self.direction, self.step)[at..][..self.lanes], 0.0)
    }

    #[inline(always)]
    fn write_h<V: Vector>(&self, h: V) {
        // SAFETY: each unit of a batch row, direction and position is written by one part of one phase.
        h.write_part(unsafe { self.walk.y.part(self.y, self.lanes) });
    }

    /// Stores the update gate, in the place of the new state, and the reset state for the next phase.
    #[inline(always)]
    fn write_between<V: Vector>(&self, update: V, reset: V) {
        self.write_h(update);
        // SAFETY: as in `write_h`, of the only position.
        reset.write_part(unsafe { self.walk.reset.part(self.state, self.lanes) });
    }

    /// The update gate that the previous phase stored.
    #[inline(always)]
    fn update<V: Vector>(&self) -> V {
        // SAFETY: it was written in the previous phase, and no part writes it in this one.
        V::read_part(unsafe { self.walk.y.shared_part(self.y, self.lanes) }, 0.0)
    }
}

#[inline(always)]
fn lstm<V: Vector>(cells: &Cells, sums: &[Lanes], [f, g, out]: &[Unary; 3], peepholes: bool) {
    let mut input: V = cells.gate(0, V::read(&sums[0]));
    let mut output: V = cells.gate(1, V::read(&sums[1]));
    let mut forget: V = cells.gate(2, V::read(&sums[2]));
    let candidate: V = cells.gate(3, V::read(&sums[3]));
    // SAFETY: each unit of a batch row and direction is accessed by one part of a phase, and a barrier separates
    // phases.
    let memory = unsafe { cells.walk.c.part(cells.state, cells.lanes) };
    let before = if cells.step == 0 { &cells.walk.first_c[cells.state..][..cells.lanes] } else { &*memory };
    let mut c = V::read_part(before, 0.0);
    if peepholes {
        input = cells.extra::<V>(0).mul_add(c, input);
        forget = cells.extra::<V>(2).mul_add(c, forget);
    }
    let (input, candidate, forget) = (activate(*f, input), activate(*g, candidate), activate(*f, forget));
    c = forget.mul_add(c, input.mul(candidate));
    if peepholes {
        output = cells.extra::<V>(1).mul_add(c, output);
    }
    let output = activate(*f, output);
    c.write_part(memory);
    cells.write_h(output.mul(activate(*out, c)));
    if cells.walk.kernel.keeps_gates {
        cells.keep(0, input);
        cells.keep(1, output);
        cells.keep(2, forget);
        cells.keep(3, candidate);
    }
}

/// A GRU with the reset after the product.
#[inline(always)]
fn gru<V: Vector>(cells: &Cells, sums: &[Lanes], [f, g]: &[Unary; 2]) {
    let update: V = activate(*f, cells.gate(0, V::read(&sums[0])));
    let reset: V = activate(*f, cells.gate(1, V::read(&sums[1])));
    let product = V::read(&sums[2]).add(cells.extra(0));
    let candidate = activate(*g, cells.gate(2, reset.mul(product)));
    cells.write_h(mix(update, cells.h(), candidate));
}

/// The first phase of a GRU with the reset before the product.
#[inline(always)]
fn gru_gates<V: Vector>(cells: &Cells, sums: &[Lanes], f: Unary) {
    let update: V = activate(f, cells.gate(0, V::read(&sums[0])));
    let reset: V = activate(f, cells.gate(1, V::read(&sums[1])));
    cells.write_between(update, reset.mul(cells.h()));
}

/// The second phase of a GRU with the reset before the product.
#[inline(always)]
fn gru_candidate<V: Vector>(cells: &Cells, sums: &[Lanes], g: Unary) {
    let candidate: V = activate(g, cells.gate(2, V::read(&sums[0])));
    cells.write_h(mix(cells.update(), cells.h(), candidate));
}

/// `(1 - update) * candidate + update * h`.
#[inline(always)]
fn mix<V: Vector>(update: V, h: V, candidate: V) -> V {
    V::splat(1.0).sub(update).mul_add(candidate, update.mul(h))
}

/// Evaluates common activations in registers.
#[inline(always)]
fn activate<V: Vector>(function: Unary, x: V) -> V {
    match function {
        Unary::Sigmoid => math::sigmoid(x),
        Unary::Tanh => math::tanh(x),
        _ => {
            let mut lanes = x.to_array();
            math::apply(V::ISA, function, &mut lanes);
            V::read(&lanes)
        }
    }
}
