//! [`RecurrentGradient`]: backpropagation through time.
//!
//! The states before all steps are known, so only the gradient of the state passes from step to step. Everything else is
//! computed for several steps at a time, a *chunk*:
//!
//! 1. *Gates*: a product of a chunk's states by the weights gives its gates again. From them come, for each gate, the factor
//!    between the gradient of the state (of an LSTM, of the cell) and that of the gate. All exponentials are here. If the
//!    factor follows from the state after a step, there is no product, and none if the values of the gates were kept.
//! 2. *Walk*: from the last step to the first, the gradient of the state times these factors gives the gradients of the
//!    gates; their product by the weights is the gradient of the state before the step. Blocks of units are divided among
//!    threads with a barrier after each step ([`run_phases`]), as in the layer itself; the weights are packed for it.
//! 3. *Weights*: products of the transposed gradients of a chunk's gates by its states, added up.
//!
//! The first output holds the gates, then the factors, then the gradients. A cell that does not save its gates has the
//! gradients of its states there, in the layout of `y`, until all directions are done. So the output takes the bytes of an
//! operand, and the workspace is a few chunks, plus the intermediate results of some cells ([`Room`]).
//!
//! A GRU that resets before the product has the candidate's product by itself in all three, because it multiplies other
//! states. Results do not depend on the number of threads.

mod factors;
mod gates;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::Unary;
use types::recurrent::{Cell, Direction, Reset};

use self::factors::{Factors, factors, has_derivative};
use self::gates::{Gradients, Place, gradients};
use crate::gemm::epilogue::Epilogue;
use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements_mut, input, input_or_in_place, product};
use crate::ops::matmul::{MatMul, MatMulB};
use crate::ops::recurrent::{Lanes, PART_PRODUCTS, ROWS_MAX, multiply_rows};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::phases::{PARTS_MAX, Phases, run_phases};
use crate::threads::shared_slice::{SharedMut, StackBuffer, for_each_chunk};

/// The operands of [`Recurrent`](crate::Recurrent) with unpacked weights and, if the cell does not save them, without gates,
/// then `y: [seq, d, batch, u]`, and the gradients `dy` of the same shape, `dh: [d, batch, u]` and for an LSTM `dc`. Outputs: a
/// gradient for each operand of the layer, in their order and shapes. All `f32`.
///
/// Refuses: functions other than those of [`types::recurrent::Cell`] in ONNX that have a closed derivative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecurrentGradient {
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
    /// Whether the gates are the values that [`Recurrent`](crate::Recurrent) keeps, of an LSTM whose functions are
    /// [`Cell::gradient_follows_from_gates`].
    pub values: bool,
}

/// Vectors of units whose products the walk computes at a time.
const BLOCK_VECTORS: usize = 2;
/// Units of a block.
const BLOCK: usize = BLOCK_VECTORS * LANES;
/// Rows (steps times batch) of a chunk: enough that its products are fast, whose weights are read once a chunk.
const CHUNK_ROWS: usize = 512;

/// Units of a row whose factors a task computes, step by step: enough that it reads whole pages.
const TOGETHER: usize = 16 * LANES;
/// Elements that are copied at a time.
const COPY: usize = 1 << 16;

impl RecurrentGradient {
    /// The gates whose products read the same states.
    #[expect(clippy::single_range_in_vec_init, reason = "groups of gates, not a list of their numbers")]
    fn groups(&self) -> &'static [Range<usize>] {
        match self.cell {
            Cell::Lstm { .. } => &[0..4],
            Cell::Gru { reset: Reset::AfterProduct, .. } => &[0..3],
            Cell::Gru { reset: Reset::BeforeProduct, .. } => &[0..2, 2..3],
            Cell::Rnn { .. } => &[0..1],
        }
    }

    /// The functions of the cell.
    fn functions(&self) -> SmallVec<[Unary; 3]> {
        match &self.cell {
            Cell::Lstm { activation, .. } => activation.iter().copied().collect(),
            Cell::Gru { activation, .. } => activation.iter().copied().collect(),
            Cell::Rnn { activation } => [*activation].into_iter().collect(),
        }
    }

    /// The number of the layer's operands that are absent: the gates.
    fn absent(&self) -> usize {
        usize::from(!self.cell.saves_gates())
    }

    /// Elements of a state of one direction.
    fn state(&self) -> usize {
        self.batch * self.units
    }

    /// The steps of a chunk; the last one may have fewer.
    fn chunk(&self) -> usize {
        (CHUNK_ROWS / self.batch.max(1)).clamp(1, self.seq.max(1))
    }

    /// The operand whose bytes the first output may take.
    fn shared_operand(&self) -> usize {
        // The gates; if absent, the gradient of `y`, after weights, state and `y`.
        if self.cell.saves_gates() { 0 } else { 3 }
    }

    /// Elements of the packed weights of a direction.
    fn packed(&self) -> Option<usize> {
        let columns = self.units.checked_next_multiple_of(LANES)?;
        product(&[self.cell.gates(), self.units, columns])
    }

    /// Elements of the workspace, part by part.
    fn parts(&self) -> Option<[usize; 4]> {
        let steps = product(&[self.seq, self.batch, self.units])?;
        let state = product(&[self.batch, self.units])?;
        let (planes, memory) = match &self.cell {
            Cell::Lstm { .. } => (2, steps.checked_add(state)?),
            Cell::Gru { reset: Reset::BeforeProduct, .. } => (2, steps),
            Cell::Gru { .. } => (2, 0),
            Cell::Rnn { .. } => (0, 0),
        };
        let group = self.groups().iter().map(Range::len).max().unwrap_or(0);
        let of_chunk = product(&[self.chunk(), state, 1 + group])?;
        let of_walk = self.packed()?.checked_add(product(&[self.seq.min(2), state, self.cell.gates()])?)?;
        let carried = if matches!(self.cell, Cell::Rnn { .. }) { 0 } else { state };
        Some([of_chunk.max(of_walk), steps.checked_mul(planes)?, memory, carried])
    }
}

impl KernelFn for RecurrentGradient {
    const NAME: &'static str = "recurrent_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if !self.functions().into_iter().all(has_derivative) {
            return Err(InvalidKernel("the functions of the cell must have a closed derivative"));
        }
        if self.values && !self.cell.gradient_follows_from_gates() {
            return Err(InvalidKernel("the gradient must follow from the values of the gates"));
        }
        let overflow = InvalidKernel("sizes must not overflow");
        let (directions, n_gates) = (self.direction.count(), self.cell.gates());
        let gates = product(&[self.seq, self.batch, directions, n_gates, self.units]);
        let weight = product(&[directions, n_gates, self.units, self.units]);
        let (state, y) =
            (product(&[directions, self.batch, self.units]), product(&[self.seq, directions, self.batch, self.units]));
        let extra = product(&[directions, self.cell.extras(), self.units]);
        let memories = usize::from(self.cell.has_memory());
        let mut layer: SmallVec<[Option<usize>; 8]> = SmallVec::from_slice(&[gates, weight]);
        layer.resize(3 + memories, state);
        layer.extend((0 < self.cell.extras()).then_some(extra));
        let mut inputs: SmallVec<[Option<usize>; 8]> = SmallVec::from_slice(&layer[self.absent()..]);
        inputs.extend([y, y]);
        inputs.resize(inputs.len() + 1 + memories, state);
        let mut workspace = Some(0usize);
        for part in self.parts().ok_or(overflow)? {
            workspace = workspace.and_then(|sum| sum.checked_add(part));
        }
        let mut sizes = Sizes::with_workspace(&inputs, gates, workspace, 4)?;
        let others = &sizes.inputs[1 - self.absent()..][..layer.len() - 1];
        sizes.outputs = sizes.outputs[..1].iter().chain(others).copied().collect();
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        // A gate, or an element of `dy`, is read for the last time when its factor or its gradient takes its place.
        input == self.shared_operand()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let memories = usize::from(self.cell.has_memory());
        let extras = usize::from(0 < self.cell.extras());
        let operands = 3 + memories + extras;
        // Positions as if all operands were there.
        let input = |ix: usize| -> &[f32] { input(&args, ix - self.absent()) };
        let optional = |is_there: bool, ix: usize| -> &[f32] { if is_there { input(ix) } else { &[] } };
        let given = Given {
            weight: input(1),
            h: input(2),
            c: optional(0 < memories, 3),
            extra: optional(0 < extras, 3 + memories),
            y: input(operands),
            dy: optional(self.cell.saves_gates(), operands + 1),
            dh: input(operands + 2),
            dc: optional(0 < memories, operands + 3),
        };
        let shared: Option<&[f32]> = input_or_in_place(&args, self.shared_operand());
        let mut outputs = args.outputs.iter_mut().map(|bytes| elements_mut(bytes));
        let mut next = |is_there: bool| -> &mut [f32] {
            if is_there { outputs.next().expect("the sizes have a row for each output") } else { &mut [] }
        };
        let (gates, weight, h) = (next(true), next(true), next(true));
        let mut results = Results { gates, weight, h, c: next(0 < memories), extra: next(0 < extras) };
        let mut rest: &mut [f32] = elements_mut(args.workspace);
        let mut part = |size: usize| -> &mut [f32] {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(if given.y.is_empty() { 0 } else { size });
            rest = after;
            part
        };
        if given.y.is_empty() {
            results.weight.fill(0.0);
            results.extra.fill(0.0);
            results.h.copy_from_slice(given.dh);
            results.c.copy_from_slice(given.dc);
            return;
        }
        if let Some(shared) = shared {
            for_each_chunk(pool, results.gates, COPY, &|number, out| {
                out.copy_from_slice(&shared[number * COPY..][..out.len()]);
            });
        }
        let [shared, planes, memory, carried] = self.parts().expect("`sizes` computed them").map(&mut part);
        let mut room = Room { shared, planes, memory, carried };
        for direction in 0..self.direction.count() {
            let walk = Walk { kernel: self, direction, isa: pool.isa(), given: &given };
            if self.cell.saves_gates() {
                walk.gates(&mut room, &mut results, pool);
            }
            walk.back(&mut room, &mut results, pool);
            walk.weights(&mut room, &mut results, pool);
        }
        if !self.cell.saves_gates() && 1 < self.direction.count() {
            self.batch_first(results.gates, &mut room.shared[..2 * self.state()], pool);
        }
    }
}

impl RecurrentGradient {
    /// From `[seq, d, batch, u]`, the layout of states, to `[seq, batch, d, u]`, that of gates.
    fn batch_first(&self, gates: &mut [f32], buffer: &mut [f32], pool: &Pool) {
        let (directions, units) = (self.direction.count(), self.units);
        for position in gates.chunks_exact_mut(directions * self.state()) {
            buffer.copy_from_slice(position);
            for_each_chunk(pool, position, units * directions, &|row, out| {
                for (direction, out) in out.chunks_exact_mut(units).enumerate() {
                    out.copy_from_slice(&buffer[(direction * self.batch + row) * units..][..units]);
                }
            });
        }
    }
}

/// The operands of a run.
struct Given<'a> {
    weight: &'a [f32],
    h: &'a [f32],
    c: &'a [f32],
    extra: &'a [f32],
    y: &'a [f32],
    /// Empty if the cell does not save gates: then the first output holds it.
    dy: &'a [f32],
    dh: &'a [f32],
    dc: &'a [f32],
}

/// The outputs of a run.
struct Results<'a> {
    /// In the layout of `dy` if the cell does not save gates.
    gates: &'a mut [f32],
    weight: &'a mut [f32],
    h: &'a mut [f32],
    c: &'a mut [f32],
    extra: &'a mut [f32],
}

/// The workspace, for one direction at a time. Steps are in the order of the walk.
struct Room<'a> {
    /// For gates and weights, of a chunk: the states before each step, `[steps, batch, u]`, then the products of a group,
    /// `[steps, batch, gates of the group, u]`, or its gradients with steps as columns. For the walk: the packed weights, then
    /// the gradients of the products of two steps, a group after the other.
    shared: &'a mut [f32],
    /// Two further factors of each unit, each `[seq, batch, u]`. LSTM: from the state to the cell, and from the cell to the
    /// one before. GRU: the update gate, and the reset gate.
    planes: &'a mut [f32],
    /// LSTM: the cell before each step and after the last, `[seq + 1, batch, u]`. GRU with the reset before the product:
    /// the states times their reset gates, `[seq, batch, u]`.
    memory: &'a mut [f32],
    /// What passes from a step to the one before it, except through products, `[batch, u]`. LSTM: the gradient of the cell.
    /// GRU: the part of the state's gradient.
    carried: &'a mut [f32],
}

/// One direction of a run.
struct Walk<'a> {
    kernel: &'a RecurrentGradient,
    direction: usize,
    isa: Isa,
    given: &'a Given<'a>,
}

impl Walk<'_> {
    /// The position of a step in the sequence.
    fn position(&self, step: usize) -> usize {
        self.kernel.direction.position(self.direction, step, self.kernel.seq)
    }

    /// The first element of a direction at a position of `y`.
    fn in_y(&self, step: usize) -> usize {
        (self.position(step) * self.kernel.direction.count() + self.direction) * self.kernel.state()
    }

    /// The first gate of a row at a step, in the first output.
    #[inline(always)]
    fn in_gates(&self, step: usize, row: usize) -> usize {
        let RecurrentGradient { cell, direction, batch, units, .. } = self.kernel;
        if !cell.saves_gates() {
            return self.in_y(step) + row * units;
        }
        ((self.position(step) * batch + row) * direction.count() + self.direction) * cell.gates() * units
    }

    fn group_of(&self, gate: usize) -> &'static Range<usize> {
        let mut groups = self.kernel.groups().iter();
        groups.find(|group| group.contains(&gate)).expect("groups have all gates")
    }

    /// A gate of a row in the walk's part of the workspace, which has two steps: one is read while the next is written.
    fn in_step(&self, step: usize, gate: usize, row: usize) -> usize {
        let (group, RecurrentGradient { cell, batch, units, .. }) = (self.group_of(gate), self.kernel);
        (batch * (step % 2 * cell.gates() + group.start) + row * group.len() + gate - group.start) * units
    }

    /// The chunks of steps, in the order of the walk.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (seq, chunk) = (self.kernel.seq, self.kernel.chunk());
        (0..seq).step_by(chunk).map(move |first| first..seq.min(first + chunk))
    }

    /// Copies the states before each step of a chunk.
    fn states(&self, states: &mut [f32], chunk: &Range<usize>, pool: &Pool) {
        let state = self.kernel.state();
        for_each_chunk(pool, states, state, &|number, states| {
            let before = match chunk.start + number {
                0 => &self.given.h[self.direction * state..][..state],
                step => &self.given.y[self.in_y(step - 1)..][..state],
            };
            states.copy_from_slice(before);
        });
    }

    /// The weights of a group of gates, `[gates u, u]`.
    fn weight_range(&self, group: &Range<usize>) -> Range<usize> {
        let RecurrentGradient { cell, units, .. } = self.kernel;
        let row = |gate: usize| (self.direction * cell.gates() + gate) * units * units;
        row(group.start)..row(group.end)
    }

    /// A row of peepholes, or the candidate's bias.
    fn extra(&self, row: usize) -> &[f32] {
        let RecurrentGradient { cell, units, .. } = self.kernel;
        if cell.extras() == 0 {
            return &[];
        }
        &self.given.extra[(self.direction * cell.extras() + row) * units..][..*units]
    }

    /// Replaces the gates by their factors, and fills planes and memory.
    fn gates(&self, room: &mut Room, results: &mut Results, pool: &Pool) {
        let (kernel, state) = (self.kernel, self.kernel.state());
        let (units, parts_of_row) = (kernel.units, kernel.units.div_ceil(TOGETHER));
        if kernel.cell.has_memory() {
            room.memory[..state].copy_from_slice(&self.given.c[self.direction * state..][..state]);
        }
        for chunk in self.chunks() {
            let rows = chunk.len() * kernel.batch;
            let (states, products) = room.shared.split_at_mut(rows * units);
            if !kernel.values {
                self.states(states, &chunk, pool);
            }
            for (number, group) in kernel.groups().iter().enumerate() {
                let operand = match number {
                    0 => &*states,
                    _ => &room.memory[chunk.start * state..chunk.end * state],
                };
                let weight = &self.given.weight[self.weight_range(group)];
                let extents = [rows, units, group.len() * units];
                let products = &mut products[..rows * group.len() * units];
                if !kernel.values {
                    multiply(pool, operand, weight, MatMulB::Transposed, extents, products);
                }
                let parts = Factors {
                    chunk: &chunk,
                    states,
                    products,
                    gates: SharedMut::new(results.gates),
                    planes: SharedMut::new(room.planes),
                    memory: SharedMut::new(room.memory),
                };
                let is_last = number + 1 == kernel.groups().len();
                pool.run(kernel.batch * parts_of_row, &|task| {
                    let (walk, parts, row) = (self, &parts, task / parts_of_row);
                    let first = task % parts_of_row * TOGETHER;
                    let units = first..units.min(first + TOGETHER);
                    with_vector!(
                        self.isa,
                        factors(walk: &Walk<'_>, parts: &Factors<'_>, row: usize, units: Range<usize>, is_last: bool)
                    );
                });
            }
        }
    }

    /// Walks back: the gradients of gates and of the first state.
    fn back(&self, room: &mut Room, results: &mut Results, pool: &Pool) {
        let (kernel, state) = (self.kernel, self.kernel.state());
        let own = self.direction * state..(self.direction + 1) * state;
        if kernel.cell.has_memory() {
            room.carried.copy_from_slice(&self.given.dc[own.clone()]);
        }
        let (weight, steps) = room.shared.split_at_mut(kernel.packed().expect("`sizes` computed it"));
        self.pack(weight, pool);
        let parts = Gradients {
            weight,
            steps: SharedMut::new(steps),
            gates: SharedMut::new(results.gates),
            carried: SharedMut::new(room.carried),
            h: SharedMut::new(&mut results.h[own.clone()]),
            planes: room.planes,
        };
        let blocks = kernel.units.div_ceil(BLOCK);
        let products = product(&[kernel.cell.gates(), kernel.units, kernel.units, kernel.batch]).unwrap_or(usize::MAX);
        let most = (products / PART_PRODUCTS).min(blocks).min(PARTS_MAX);
        let n_parts = pool.threads().min(most).max(1);
        // The state before the first step follows from the gates of that step.
        let phases = kernel.seq * kernel.groups().len() + 1;
        run_phases(pool, Phases { chains: 1, parts: n_parts, phases }, &|_, part, phase| {
            for block in part * blocks / n_parts..(part + 1) * blocks / n_parts {
                self.phase(&parts, phase, block);
            }
        });
        if kernel.cell.has_memory() {
            results.c[own].copy_from_slice(room.carried);
        }
    }

    /// Packs the weights of each group in vectors of columns, `[gates of the group u, 16]`; columns beyond the units are zeros.
    fn pack(&self, packed: &mut [f32], pool: &Pool) {
        let units = self.kernel.units;
        let mut rest = packed;
        for group in self.kernel.groups() {
            let (rows, weight) = (group.len() * units, &self.given.weight[self.weight_range(group)]);
            let (packed, after) = rest.split_at_mut(rows * units.next_multiple_of(LANES));
            rest = after;
            for_each_chunk(pool, packed, rows * LANES, &|vector, packed| {
                let columns = vector * LANES..units.min((vector + 1) * LANES);
                for (to, from) in packed.chunks_exact_mut(LANES).zip(weight.chunks_exact(units)) {
                    let (to, padding) = to.split_at_mut(columns.len());
                    to.copy_from_slice(&from[columns.clone()]);
                    padding.fill(0.0);
                }
            });
        }
    }

    /// One phase of a block of units: its part of the gradient of a state, and from that the gradients of its gates. With two
    /// groups, the second phase of a step multiplies by the weights of the second group.
    fn phase(&self, parts: &Gradients, phase: usize, block: usize) {
        let RecurrentGradient { seq, batch, units, .. } = *self.kernel;
        let groups = self.kernel.groups();
        let (turn, second) = (phase / groups.len(), phase % groups.len() == 1);
        let group = &groups[usize::from(second)];
        // The step whose gates are multiplied: the one behind, or in a second phase the same.
        let from = match second {
            true => Some(seq - 1 - turn),
            false => (0 < turn).then(|| seq - turn),
        };
        let (depth, first) = (group.len() * units, block * BLOCK);
        let vectors = (units - first).min(BLOCK).div_ceil(LANES);
        let at = group.start * units * units.next_multiple_of(LANES) + depth * first;
        let weight = &parts.weight[at..][..depth * vectors * LANES];
        let mut sums = StackBuffer::<{ ROWS_MAX * BLOCK_VECTORS * LANES }>::new();
        let sums: &mut [Lanes] = sums.zeros(batch.min(ROWS_MAX) * vectors * LANES).as_chunks_mut().0;
        for start in (0..batch).step_by(ROWS_MAX) {
            let rows = start..batch.min(start + ROWS_MAX);
            let sums = &mut sums[..rows.len() * vectors];
            if let Some(step) = from {
                // SAFETY: an earlier phase wrote the gradients of that step, and no part of this one writes them.
                let x = unsafe { parts.steps.shared_part(self.in_step(step, group.start, start), rows.len() * depth) };
                multiply_rows(self.isa, x, depth, weight, sums);
            }
            let place = &Place { turn, second, first, vectors, rows };
            let (walk, sums) = (self, &*sums);
            with_vector!(
                self.isa,
                gradients(walk: &Walk<'_>, parts: &Gradients<'_>, place: &Place, sums: &[Lanes])
            );
        }
    }

    /// The gradients of weights, peepholes and the candidate's bias.
    fn weights(&self, room: &mut Room, results: &mut Results, pool: &Pool) {
        let RecurrentGradient { cell, batch, units, .. } = self.kernel;
        let extras = cell.extras() * units;
        results.extra[self.direction * extras..][..extras].fill(0.0);
        for chunk in self.chunks() {
            let rows = chunk.len() * batch;
            let (states, gates) = room.shared.split_at_mut(rows * units);
            self.states(states, &chunk, pool);
            for (number, group) in self.kernel.groups().iter().enumerate() {
                let columns = group.len() * units;
                let transposed = &mut gates[..rows * columns];
                self.transpose(group, &chunk, results.gates, room.planes, transposed, pool);
                let states = match number {
                    0 => &*states,
                    _ => &room.memory[chunk.start * batch * units..][..rows * units],
                };
                let out = &mut results.weight[self.weight_range(group)];
                let extents = [columns, rows, *units];
                match chunk.start {
                    0 => multiply(pool, transposed, states, MatMulB::Dynamic, extents, out),
                    _ => multiply_add(pool, transposed, states, extents, out),
                }
            }
            // Cells with such parameters have one group of gates.
            for (number, out) in
                results.extra[self.direction * extras..][..extras].chunks_exact_mut((*units).max(1)).enumerate()
            {
                for (unit, sum) in out.iter_mut().enumerate() {
                    *sum += match cell.has_memory() {
                        // The input and forget gates see the cell before the step, the output gate the one after it.
                        true => {
                            let dz = &gates[(number * units + unit) * rows..][..rows];
                            let first = (chunk.start + usize::from(number == 1)) * batch;
                            let cells = room.memory[first * units + unit..].iter().step_by(*units);
                            dz.iter().zip(cells).map(|(dz, cell)| dz * cell).sum::<f32>()
                        }
                        false => gates[(2 * units + unit) * rows..][..rows].iter().sum(),
                    };
                }
            }
        }
    }

    /// The gradients of a chunk's products of a group, `[gates of the group u, steps batch]`.
    fn transpose(
        &self,
        group: &Range<usize>,
        chunk: &Range<usize>,
        gates: &[f32],
        planes: &[f32],
        out: &mut [f32],
        pool: &Pool,
    ) {
        let (rows, units) = (chunk.len() * self.kernel.batch, self.kernel.units);
        let vectors = units.div_ceil(LANES);
        let parts = &Transposed { chunk, group, gates, planes, out: SharedMut::new(out) };
        pool.run(group.len() * vectors, &|task| {
            let (walk, gate, unit) = (self, group.start + task / vectors, task % vectors * LANES);
            with_vector!(
                self.isa,
                transpose(walk: &Walk<'_>, parts: &Transposed<'_>, gate: usize, unit: usize, rows: usize)
            );
        });
    }
}

/// The slices that tasks of [`Walk::transpose`] share. A task has some units of a gate.
struct Transposed<'a> {
    chunk: &'a Range<usize>,
    group: &'a Range<usize>,
    gates: &'a [f32],
    planes: &'a [f32],
    out: SharedMut<'a, f32>,
}

#[inline(always)]
fn transpose<V: Vector>(walk: &Walk, parts: &Transposed, gate: usize, unit: usize, rows: usize) {
    let &RecurrentGradient { ref cell, seq, batch, units, .. } = walk.kernel;
    let lanes = LANES.min(units - unit);
    let resets = gate == 2 && matches!(cell, Cell::Gru { reset: Reset::AfterProduct, .. });
    for start in (0..rows).step_by(LANES) {
        let count = LANES.min(rows - start);
        let mut items = [V::zero(); LANES];
        for (number, item) in items[..count].iter_mut().enumerate() {
            let (step, row) = (parts.chunk.start + (start + number) / batch, (start + number) % batch);
            *item = V::read_part(&parts.gates[walk.in_gates(step, row) + gate * units + unit..][..lanes], 0.0);
            if resets {
                let at = ((seq + step) * batch + row) * units + unit;
                *item = item.mul(V::read_part(&parts.planes[at..][..lanes], 0.0));
            }
        }
        for (number, item) in V::transpose(items)[..lanes].iter().enumerate() {
            let at = ((gate - parts.group.start) * units + unit + number) * rows + start;
            // SAFETY: tasks differ in gate or units.
            item.write_part(unsafe { parts.out.part(at, count) });
        }
    }
}

/// A product of row-major matrices, `[m, k]` by `[k, n]` or by the transpose of `[n, k]`.
fn product_of([m, k, n]: [usize; 3], b: MatMulB, epilogue: Epilogue) -> MatMul {
    MatMul {
        batch: Vec::new(),
        a_strides: Vec::new(),
        b_strides: Vec::new(),
        m,
        k,
        n,
        b,
        operands: StorageType::F32,
        weights: None,
        zero_point: 0,
        result: StorageType::F32,
        epilogue,
    }
}

/// `out = a b`.
fn multiply(pool: &Pool, a: &[f32], b: &[f32], form: MatMulB, extents: [usize; 3], out: &mut [f32]) {
    let inputs = [a, b].map(|items| Operand::Bytes(bytemuck::cast_slice(items)));
    let outputs = &mut [bytemuck::cast_slice_mut(out)];
    product_of(extents, form, Epilogue::default()).run(Args { inputs: &inputs, outputs, workspace: &mut [] }, pool);
}

/// `out += a b`.
fn multiply_add(pool: &Pool, a: &[f32], b: &[f32], extents: [usize; 3], out: &mut [f32]) {
    let [a, b] = [a, b].map(|items| Operand::Bytes(bytemuck::cast_slice(items)));
    let outputs = &mut [bytemuck::cast_slice_mut(out)];
    let epilogue = Epilogue { residual: true, ..Epilogue::default() };
    let args = Args { inputs: &[a, b, Operand::InPlace(0)], outputs, workspace: &mut [] };
    product_of(extents, MatMulB::Dynamic, epilogue).run(args, pool);
}
