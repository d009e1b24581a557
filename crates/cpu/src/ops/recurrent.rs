//! [`Recurrent`]: LSTM, GRU and plain recurrent networks, step by step.
//!
//! A step multiplies the state by weights that are the same for all steps, so what counts is how they come from the
//! cache. They are packed in blocks of sixteen units: all gates of a block, then its functions, and its part of the new
//! state is done; nothing but the state itself goes from step to step.
//!
//! ```text
//!        block of 16 units                     next block
//!   k -> | i o | i o | .. | f c | f c | .. |   two gates of 16 lanes beside each other for each k: one tile's weights
//! ```
//!
//! Blocks are shared out over threads that meet after each step ([`run_phases`]); the directions of a network that walks both
//! ways meet nowhere. Each unit is computed in the same way whoever does it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::pointwise::Unary;
use types::recurrent::{Cell, Reset, Sweep};

use crate::gemm::tile::{Again, Ahead, Loop, Nest, ROWS, Row, Start, Tile, multiply, rows_max};
use crate::gemm::weight_panels::Weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::simd::math;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::phases::{PARTS_MAX, Phases, run_phases};
use crate::threads::shared_slice::SharedMut;

/// `gates: [seq, batch, d g u]`, `weight: [d, g u, u]` in its form, first states `h` and for an LSTM `c`, both
/// `[d, batch, u]`, and where the cell has extras `[d, extras u]`; for `d` directions, `g` gates, `u` units. Outputs: states
/// `[seq, d, batch, u]`, last `h`, and for an LSTM last `c`. All `f32`. [`Cell`] has the formulas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recurrent {
    /// What a step computes.
    pub cell: Cell,
    /// Which way the sequence is walked.
    pub sweep: Sweep,
    /// Steps.
    pub seq: usize,
    /// Sequences.
    pub batch: usize,
    /// Units.
    pub units: usize,
    /// How the recurrent weights come.
    pub weights: Weights,
}

/// Gates of a tile.
const TILE_GATES: usize = 2;
/// The most gates of a cell.
const GATES_MAX: usize = 4;
/// A thread more is worth meeting for so many products in each step: half a microsecond of them.
const PART_PRODUCTS: usize = 16 * 1024;

type Lanes = [f32; LANES];

impl Recurrent {
    /// Recurrent weights `[d, g u, u]` as the kernel reads them; blocks are filled up with zeros.
    ///
    /// # Panics
    /// Another number of elements.
    pub fn pack(&self, weight: &[f32]) -> Vec<f32> {
        let (directions, gates) = (self.sweep.directions(), self.cell.gates());
        assert_eq!(weight.len(), directions * gates * self.units * self.units, "the weights have the kernel's shape");
        let mut packed = vec![0.0; directions * gates * self.blocks() * LANES * self.units];
        self.pack_into(weight, &mut packed);
        packed
    }

    fn pack_into(&self, weight: &[f32], packed: &mut [f32]) {
        let mut cells = packed.iter_mut();
        for direction in 0..self.sweep.directions() {
            for gates in (0..self.phases().len()).map(|phase| self.gates(phase)) {
                for block in 0..self.blocks() {
                    for first in gates.clone().step_by(TILE_GATES) {
                        for k in 0..self.units {
                            for column in 0..(gates.end - first).min(TILE_GATES) * LANES {
                                let (gate, unit) = (first + column / LANES, block * LANES + column % LANES);
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

    /// Blocks of units.
    fn blocks(&self) -> usize {
        self.units.div_ceil(LANES)
    }

    /// How many gates come before all units of the next ones may begin, one after the other.
    fn phases(&self) -> &'static [usize] {
        match self.cell {
            Cell::Lstm { .. } => &[4],
            Cell::Gru { reset: Reset::AfterProduct, .. } => &[3],
            // The candidate reads the state of all units times their reset gates.
            Cell::Gru { reset: Reset::BeforeProduct, .. } => &[2, 1],
            Cell::Rnn { .. } => &[1],
        }
    }

    /// The gates of a phase.
    fn gates(&self, phase: usize) -> Range<usize> {
        let first = self.phases()[..phase].iter().sum();
        first..first + self.phases()[phase]
    }

    /// How many parts each step of a direction is cut into.
    fn parts(&self, threads: usize) -> usize {
        let directions = self.sweep.directions();
        let products = (self.cell.gates() * self.units * self.units).saturating_mul(self.batch);
        let most = (products / PART_PRODUCTS).min(self.blocks()).min(PARTS_MAX / directions);
        threads.div_ceil(directions).min(most).max(1)
    }
}

impl KernelFn for Recurrent {
    const NAME: &'static str = "recurrent";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let (directions, gates) = (self.sweep.directions(), self.cell.gates());
        let padded = self.units.checked_next_multiple_of(LANES);
        let packed = padded.and_then(|padded| product(&[directions, gates, padded, self.units]));
        let plain = product(&[directions, gates, self.units, self.units]);
        let state = product(&[directions, self.batch, self.units]);
        let memories = usize::from(self.cell.has_memory());
        // The update gates and the states that are reset, between the phases.
        let between = if 1 < self.phases().len() { product(&[2, directions, self.batch, self.units]) } else { Some(0) };
        let (weight, workspace) = self.weights.elements([plain, packed], between);
        let mut inputs = vec![product(&[self.seq, self.batch, directions, gates, self.units]), weight];
        inputs.resize(3 + memories, state);
        if 0 < self.cell.extras() {
            inputs.push(product(&[directions, self.cell.extras(), self.units]));
        }
        let y = product(&[self.seq, directions, self.batch, self.units]);
        let mut sizes = Sizes::with_workspace(&inputs, y, workspace, 4)?;
        let state = sizes.inputs[2];
        sizes.outputs.resize(2 + memories, state);
        Ok(sizes)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let memories = usize::from(self.cell.has_memory());
        let first_h: &[f32] = input(&args, 2);
        let first_c: &[f32] = if 0 < memories { input(&args, 3) } else { &[] };
        let extra: &[f32] = if 0 < self.cell.extras() { input(&args, 3 + memories) } else { &[] };
        let (gates, weight): (&[f32], &[f32]) = (input(&args, 0), input(&args, 1));
        let Args { outputs, workspace, .. } = args;
        let (y, last) = outputs.split_at_mut(1);
        let (h, c) = last.split_at_mut(1);
        let (y, h): (&mut [f32], &mut [f32]) = (elements_mut(y[0]), elements_mut(h[0]));
        let c: &mut [f32] = c.first_mut().map(|c| elements_mut(c)).unwrap_or_default();
        if self.seq == 0 {
            h.copy_from_slice(first_h);
            c.copy_from_slice(first_c);
            return;
        }
        let scratch: &mut [f32] = elements_mut(workspace);
        let between = if 1 < self.phases().len() { 2 * h.len() } else { 0 };
        let (between, own) = scratch.split_at_mut(between);
        if self.weights == Weights::Dynamic {
            self.pack_into(weight, own);
        }
        let weight = if self.weights == Weights::Dynamic { &*own } else { weight };
        let walk = Walk {
            kernel: self,
            isa: pool.isa(),
            gates,
            weight,
            first_h,
            first_c,
            extra,
            y: SharedMut::new(y),
            c: SharedMut::new(c),
            between: SharedMut::new(between),
        };
        let stages = self.seq * self.phases().len();
        let stages = Phases { chains: self.sweep.directions(), parts: self.parts(pool.threads()), phases: stages };
        run_phases(pool, stages, &|direction, part, stage| {
            let blocks = |part: usize| part * self.blocks() / stages.parts;
            walk.stage(direction, stage, blocks(part)..blocks(part + 1));
        });
        let state = self.batch * self.units;
        for (direction, h) in h.chunks_exact_mut(state).enumerate() {
            let position = self.sweep.position(direction, self.seq - 1, self.seq);
            h.copy_from_slice(&y[(position * self.sweep.directions() + direction) * state..][..state]);
        }
    }
}

/// A run. Parts of a stage write only their own units, of their own position; what was written at the stages before is
/// only read.
struct Walk<'a> {
    kernel: &'a Recurrent,
    isa: Isa,
    gates: &'a [f32],
    /// Packed.
    weight: &'a [f32],
    first_h: &'a [f32],
    first_c: &'a [f32],
    extra: &'a [f32],
    y: SharedMut<'a, f32>,
    c: SharedMut<'a, f32>,
    /// Update gates `[d, batch, u]`, then states times their reset gates.
    between: SharedMut<'a, f32>,
}

/// A tile's rows of a batch and block of units, at a stage of a direction.
struct Place {
    direction: usize,
    step: usize,
    /// In the sequence.
    position: usize,
    phase: usize,
    block: usize,
    rows: Range<usize>,
}

impl Walk<'_> {
    /// Some blocks of units at a stage.
    fn stage(&self, direction: usize, stage: usize, blocks: Range<usize>) {
        let kernel = self.kernel;
        let phases = kernel.phases();
        let (step, phase) = (stage / phases.len(), stage % phases.len());
        let gates = kernel.gates(phase);
        let position = kernel.sweep.position(direction, step, kernel.seq);
        let state = kernel.batch * kernel.units;
        let x = match phase {
            0 => self.state(direction, step),
            // SAFETY: what is reset was written at the stage before, and nobody writes it at this one.
            _ => unsafe { self.between.shared_part((kernel.sweep.directions() + direction) * state, state) },
        };
        // The weights that were read last are read first: they are still in the nearest cache.
        let of_direction = direction * kernel.cell.gates() + gates.start;
        let block_weights = gates.len() * LANES * kernel.units;
        let mut sums = [[0.0; LANES]; ROWS * GATES_MAX];
        for turn in blocks.clone() {
            let block = if step % 2 == 0 { turn } else { blocks.start + blocks.end - 1 - turn };
            let at = of_direction * kernel.blocks() * LANES * kernel.units + block * block_weights;
            let weight = &self.weight[at..][..block_weights];
            for first in (0..kernel.batch).step_by(rows_max(self.isa)) {
                let rows = first..kernel.batch.min(first + rows_max(self.isa));
                self.multiply(&x[first * kernel.units..rows.end * kernel.units], weight, gates.len(), &mut sums);
                let place = Place { direction, step, position, phase, block, rows };
                let (walk, place, sums) = (self, &place, &sums[..]);
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
        let position = kernel.sweep.position(direction, step - 1, kernel.seq);
        // SAFETY: it was written at the step before, and nobody writes to that position at this one.
        unsafe { self.y.shared_part((position * kernel.sweep.directions() + direction) * state, state) }
    }

    /// `sums[row * gates + gate]` = rows of `x` times the gates' weights of a block.
    fn multiply(&self, x: &[f32], weight: &[f32], gates: usize, sums: &mut [Lanes; ROWS * GATES_MAX]) {
        let units = self.kernel.units;
        let n_rows = x.len() / units;
        let mut rows = [Row::default(); ROWS];
        for (ix, row) in rows[..n_rows].iter_mut().enumerate() {
            *row = Row { x: ix * units, out: ix * gates * LANES };
        }
        let nests = [Nest { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth: units }];
        for first in (0..gates).step_by(TILE_GATES) {
            let vectors = (gates - first).min(TILE_GATES);
            let weights = &weight[first * LANES * units..][..vectors * LANES * units];
            let tile = Tile {
                factors: StorageType::F32,
                x: x.as_ptr().cast(),
                weights: weights.as_ptr().cast(),
                weight_stride: vectors * LANES,
                result: StorageType::F32,
                out: sums[first..].as_mut_ptr().cast(),
                rows: &rows[..n_rows],
                vectors,
                vector_stride: LANES,
                nests: &nests,
                start: Start::Zero,
                residual: None,
                limits: None,
                ahead: Ahead::NOTHING,
                again: Again::ONCE,
            };
            // SAFETY: the pool's family is one the processor has. `x` has `n_rows` rows of `units` elements and the
            // weights have `units` rows of the tile's vectors (both sliced so above); the sums have room for `ROWS` rows
            // of at most `GATES_MAX` gates, of which `first` and those behind it are written, and they are borrowed here.
            unsafe { multiply(self.isa, &tile) };
        }
    }
}

/// The functions of a block: from the sums to the new state.
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

/// A row of a batch, at a block of units.
struct Cells<'a> {
    walk: &'a Walk<'a>,
    /// Units of the block.
    lanes: usize,
    step: usize,
    direction: usize,
    /// The block's first unit.
    unit: usize,
    /// Of the block, in the first gate.
    gates: usize,
    /// Of the block, in a state.
    state: usize,
    /// Of the block, in the results.
    y: usize,
}

impl<'a> Cells<'a> {
    #[inline(always)]
    fn new(walk: &'a Walk<'a>, place: &Place, row: usize) -> Cells<'a> {
        let Recurrent { cell, sweep, batch, units, .. } = walk.kernel;
        let (directions, direction) = (sweep.directions(), place.direction);
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

    /// A gate's sum and the input's part of it.
    #[inline(always)]
    fn gate<V: Vector>(&self, gate: usize, sum: V) -> V {
        let at = self.gates + gate * self.walk.kernel.units;
        V::read_part(&self.walk.gates[at..][..self.lanes], 0.0).add(sum)
    }

    /// A row of the peepholes, or the candidate's bias.
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
        // SAFETY: units of a block, a row, a direction and a position are written by one part of one stage.
        h.write_part(unsafe { self.walk.y.part(self.y, self.lanes) });
    }

    /// Keeps the update gate, and the state that is reset, for the next phase.
    #[inline(always)]
    fn write_between<V: Vector>(&self, update: V, reset: V) {
        let between = &self.walk.between;
        // SAFETY: as in `write_h`; both halves have the form of a state.
        update.write_part(unsafe { between.part(self.state, self.lanes) });
        // SAFETY: as above.
        reset.write_part(unsafe { between.part(between.len() / 2 + self.state, self.lanes) });
    }

    /// The update gate that was kept.
    #[inline(always)]
    fn update<V: Vector>(&self) -> V {
        // SAFETY: it was written at the stage before, and nobody writes it at this one.
        V::read_part(unsafe { self.walk.between.shared_part(self.state, self.lanes) }, 0.0)
    }
}

#[inline(always)]
fn lstm<V: Vector>(cells: &Cells, sums: &[Lanes], [f, g, out]: &[Unary; 3], peepholes: bool) {
    let mut input: V = cells.gate(0, V::read(&sums[0]));
    let mut output: V = cells.gate(1, V::read(&sums[1]));
    let mut forget: V = cells.gate(2, V::read(&sums[2]));
    let candidate: V = cells.gate(3, V::read(&sums[3]));
    // SAFETY: units of a block, a row and a direction are touched by one part of a stage, and stages come after another.
    let memory = unsafe { cells.walk.c.part(cells.state, cells.lanes) };
    let before = if cells.step == 0 { &cells.walk.first_c[cells.state..][..cells.lanes] } else { &*memory };
    let mut c = V::read_part(before, 0.0);
    if peepholes {
        input = cells.extra::<V>(0).mul_add(c, input);
        forget = cells.extra::<V>(2).mul_add(c, forget);
    }
    let new = activate(*f, input).mul(activate(*g, candidate));
    c = activate(*f, forget).mul_add(c, new);
    if peepholes {
        output = cells.extra::<V>(1).mul_add(c, output);
    }
    c.write_part(memory);
    cells.write_h(activate(*f, output).mul(activate(*out, c)));
}

/// A GRU that resets after the product.
#[inline(always)]
fn gru<V: Vector>(cells: &Cells, sums: &[Lanes], [f, g]: &[Unary; 2]) {
    let update: V = activate(*f, cells.gate(0, V::read(&sums[0])));
    let reset: V = activate(*f, cells.gate(1, V::read(&sums[1])));
    let product = V::read(&sums[2]).add(cells.extra(0));
    let candidate = activate(*g, cells.gate(2, reset.mul(product)));
    cells.write_h(mix(update, cells.h(), candidate));
}

/// The first phase of a GRU that resets before the product.
#[inline(always)]
fn gru_gates<V: Vector>(cells: &Cells, sums: &[Lanes], f: Unary) {
    let update: V = activate(f, cells.gate(0, V::read(&sums[0])));
    let reset: V = activate(f, cells.gate(1, V::read(&sums[1])));
    cells.write_between(update, reset.mul(cells.h()));
}

/// The second phase of a GRU that resets before the product.
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

/// The usual functions stay in registers.
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
