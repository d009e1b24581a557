//! [`RecurrentGradient`]: backpropagation through time.
//!
//! The states before all steps are known, so only the gradient of the state passes from step to step. Everything else is
//! computed for several steps at a time, a *chunk*:
//!
//! 1. *Gates*: a product of a chunk's states by the weights gives its gates again. From them come, for each gate, the factor
//!    between the gradient of the state (of an LSTM, of the cell) and that of the gate. All exponentials are here. If the
//!    factor follows from the state after a step, there is no product.
//! 2. *Walk*: from the last step to the first, the gradient of the state times these factors gives the gradients of the
//!    gates; their product by the weights is the gradient of the state before the step.
//! 3. *Weights*: products of the transposed gradients of a chunk's gates by its states, added up.
//!
//! The first output holds the gates, then the factors, then the gradients. A cell that does not save its gates has the
//! gradients of its states there, in the layout of `y`, until all directions are done. So the output takes the bytes of an
//! operand, and the workspace is a few chunks, plus the intermediate results of some cells ([`Room`]).
//!
//! A GRU that resets before the product has the candidate's product by itself in all three, because it multiplies other
//! states. Results do not depend on the number of threads.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::Unary;
use types::recurrent::{Cell, Direction, Reset};

use crate::gemm::epilogue::Epilogue;
use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements_mut, input, input_or_in_place, product};
use crate::ops::matmul::{MatMul, MatMulB};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, math};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

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
}

/// Units that are computed at a time, on the stack.
const BLOCK: usize = 64;
/// Rows (steps times batch) of a chunk: enough that its products are fast, whose weights are read once a chunk.
const CHUNK_ROWS: usize = 512;
/// Elements of a state that justify another thread in a step of the walk.
const PART: usize = 1 << 12;

/// Elements that are copied at a time.
const COPY: usize = 1 << 16;

type Block = [f32; BLOCK];

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

    /// Elements of the workspace, part by part.
    fn parts(&self) -> Option<[usize; 6]> {
        let steps = product(&[self.seq, self.batch, self.units])?;
        let state = product(&[self.batch, self.units])?;
        let chunk = product(&[self.chunk(), self.batch, self.units])?;
        let (planes, memory, between) = match &self.cell {
            Cell::Lstm { .. } => (2, steps.checked_add(state)?, state),
            Cell::Gru { reset: Reset::BeforeProduct, .. } => (2, steps, state),
            Cell::Gru { .. } => (2, 0, 0),
            Cell::Rnn { .. } => (0, 0, 0),
        };
        let group = self.groups().iter().map(Range::len).max().unwrap_or(0);
        let gates = chunk.checked_mul(group)?.max(state.checked_mul(self.cell.gates())?);
        Some([chunk, gates, steps.checked_mul(planes)?, memory, state.checked_mul(2)?, between])
    }
}

impl KernelFn for RecurrentGradient {
    const NAME: &'static str = "recurrent_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if !self.functions().into_iter().all(has_derivative) {
            return Err(InvalidKernel("the functions of the cell must have a closed derivative"));
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
        let [states, gates, planes, memory, dh, between] = self.parts().expect("`sizes` computed them").map(&mut part);
        let mut room = Room { states, gates, planes, memory, dh, between };
        for direction in 0..self.direction.count() {
            let walk = Walk { kernel: self, direction, isa: pool.isa(), given: &given };
            if self.cell.saves_gates() {
                walk.gates(&mut room, &mut results, pool);
            }
            walk.back(&mut room, &mut results, pool);
            walk.weights(&mut room, &mut results, pool);
        }
        if !self.cell.saves_gates() && 1 < self.direction.count() {
            self.batch_first(results.gates, room.dh, pool);
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
    /// The states before each step of a chunk, `[steps, batch, u]`.
    states: &'a mut [f32],
    /// Gates of a chunk: the products of a group, `[steps, batch, gates of the group, u]`; in the walk, the gradients of a
    /// step, a group after the other; then the gradients of a group with steps as columns.
    gates: &'a mut [f32],
    /// Two further factors of each unit, each `[seq, batch, u]`. LSTM: from the state to the cell, and from the cell to the
    /// one before. GRU: the update gate, and the reset gate.
    planes: &'a mut [f32],
    /// LSTM: the cell before each step and after the last, `[seq + 1, batch, u]`. GRU with the reset before the product:
    /// the states times their reset gates, `[seq, batch, u]`.
    memory: &'a mut [f32],
    /// The gradient of the state after a step, then that of the state before it, both `[batch, u]`.
    dh: &'a mut [f32],
    /// The gradient of the cell, or of states times their reset gates, `[batch, u]`.
    between: &'a mut [f32],
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

    /// A gate of a row in the walk's part of the workspace, which has one step.
    fn in_step(&self, gate: usize, row: usize) -> usize {
        let (group, units) = (self.group_of(gate), self.kernel.units);
        (self.kernel.batch * group.start + row * group.len() + gate - group.start) * units
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
        if kernel.cell.has_memory() {
            room.memory[..state].copy_from_slice(&self.given.c[self.direction * state..][..state]);
        }
        for chunk in self.chunks() {
            let rows = chunk.len() * kernel.batch;
            let states = &mut room.states[..rows * kernel.units];
            self.states(states, &chunk, pool);
            for (number, group) in kernel.groups().iter().enumerate() {
                let operand = match number {
                    0 => &*states,
                    _ => &room.memory[chunk.start * state..chunk.end * state],
                };
                let weight = &self.given.weight[self.weight_range(group)];
                let extents = [rows, kernel.units, group.len() * kernel.units];
                let products = &mut room.gates[..rows * group.len() * kernel.units];
                multiply(pool, operand, weight, MatMulB::Transposed, extents, products);
                let parts = Factors {
                    states,
                    products,
                    gates: SharedMut::new(results.gates),
                    planes: SharedMut::new(room.planes),
                    memory: SharedMut::new(room.memory),
                };
                let is_last = number + 1 == kernel.groups().len();
                pool.run(kernel.batch, &|row| match is_last {
                    true => self.factors_of_row(&parts, &chunk, row),
                    false => self.reset_row(&parts, &chunk, row),
                });
            }
        }
    }

    /// The first half of a GRU that resets before the product: both gates, and the states times their reset gates.
    fn reset_row(&self, parts: &Factors, chunk: &Range<usize>, row: usize) {
        let Cell::Gru { activation: [f, _], .. } = self.kernel.cell else { return };
        for step in chunk.clone() {
            for units in self.blocks() {
                let count = units.len();
                let block = BlockOf { walk: self, parts, first: chunk.start, step, row, units };
                let (update, d_update) = both(self.isa, f, block.gate(0), count);
                let (reset, d_reset) = both(self.isa, f, block.gate(1), count);
                let h = block.h();
                block.set_gate(0, |unit| d_update[unit]);
                block.set_gate(1, |unit| h[unit] * d_reset[unit]);
                block.set_plane(0, |unit| update[unit]);
                block.set_plane(1, |unit| reset[unit]);
                block.set_memory(0, |unit| h[unit] * reset[unit]);
            }
        }
    }

    /// The factors of a row of the batch at all steps of a chunk.
    fn factors_of_row(&self, parts: &Factors, chunk: &Range<usize>, row: usize) {
        for step in chunk.clone() {
            for units in self.blocks() {
                let block = BlockOf { walk: self, parts, first: chunk.start, step, row, units };
                match &self.kernel.cell {
                    Cell::Lstm { activation, peepholes } => block.lstm(activation, *peepholes),
                    Cell::Gru { activation, reset: Reset::AfterProduct } => block.gru(activation),
                    Cell::Gru { activation: [_, g], .. } => block.gru_candidate(*g),
                    Cell::Rnn { activation } => {
                        let (_, d) = both(self.isa, *activation, block.gate(0), block.units.len());
                        block.set_gate(0, |unit| d[unit]);
                    }
                }
            }
        }
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let units = self.kernel.units;
        (0..units).step_by(BLOCK).map(move |first| first..units.min(first + BLOCK))
    }

    /// Walks back: the gradients of gates and of the first state.
    fn back(&self, room: &mut Room, results: &mut Results, pool: &Pool) {
        let (kernel, state) = (self.kernel, self.kernel.state());
        let own = self.direction * state..(self.direction + 1) * state;
        let (dh, before) = room.dh.split_at_mut(state);
        dh.copy_from_slice(&self.given.dh[own.clone()]);
        if kernel.cell.has_memory() {
            room.between.copy_from_slice(&self.given.dc[own.clone()]);
        }
        let parts = pool.threads().min(kernel.batch).min(state / PART).max(1);
        let rows = |part: usize| part * kernel.batch / parts..(part + 1) * kernel.batch / parts;
        for step in (0..kernel.seq).rev() {
            let dy = if kernel.cell.saves_gates() { &self.given.dy[self.in_y(step)..][..state] } else { &[] };
            let shared = Gradients {
                gates: SharedMut::new(room.gates),
                out: SharedMut::new(results.gates),
                dh: SharedMut::new(dh),
                before: SharedMut::new(before),
                between: SharedMut::new(room.between),
                planes: room.planes,
            };
            pool.run(parts, &|part| rows(part).for_each(|row| self.gates_of_row(&shared, step, row, dy)));
            if let [_, candidate] = kernel.groups() {
                self.through_weights(candidate, room.gates, room.between, false, pool);
                let shared = Gradients {
                    gates: SharedMut::new(room.gates),
                    out: SharedMut::new(results.gates),
                    dh: SharedMut::new(dh),
                    before: SharedMut::new(before),
                    between: SharedMut::new(room.between),
                    planes: room.planes,
                };
                pool.run(parts, &|part| rows(part).for_each(|row| self.reset_of_row(&shared, step, row)));
            }
            let adds = matches!(kernel.cell, Cell::Gru { .. });
            self.through_weights(&kernel.groups()[0], room.gates, before, adds, pool);
            dh.copy_from_slice(before);
        }
        results.h[own.clone()].copy_from_slice(dh);
        if kernel.cell.has_memory() {
            results.c[own].copy_from_slice(room.between);
        }
    }

    /// The gradients of a group of gates at a step times the weights: those of the states that were multiplied.
    fn through_weights(&self, group: &Range<usize>, gates: &[f32], out: &mut [f32], adds: bool, pool: &Pool) {
        let RecurrentGradient { batch, units, .. } = self.kernel;
        let columns = group.len() * units;
        let gates = &gates[self.in_step(group.start, 0)..][..batch * columns];
        let weight = &self.given.weight[self.weight_range(group)];
        match adds {
            false => multiply(pool, gates, weight, MatMulB::Dynamic, [*batch, columns, *units], out),
            true => multiply_add(pool, gates, weight, [*batch, columns, *units], out),
        }
    }

    /// The gradients of a row's gates from that of its state. Those of a reset before the product follow in
    /// [`Walk::reset_of_row`].
    fn gates_of_row(&self, parts: &Gradients, step: usize, row: usize, dy: &[f32]) {
        let RecurrentGradient { cell, seq, batch, units, .. } = self.kernel;
        let (at, plane) = (row * units, (step * batch + row) * units);
        let planes = |number: usize| &parts.planes[(number * seq * batch) * units + plane..][..*units];
        // SAFETY: tasks differ in rows of the batch, and no two parts below overlap.
        let [dh, before] = [&parts.dh, &parts.before].map(|of| unsafe { of.part(at, *units) });
        // SAFETY: as above; each gate of a row has its own elements.
        let copy = |gate: usize| unsafe { parts.gates.part(self.in_step(gate, row), *units) };
        // SAFETY: as above.
        let gate = |gate: usize| unsafe { parts.out.part(self.in_gates(step, row) + gate * units, *units) };
        let dy = if cell.saves_gates() { &dy[at..at + units] } else { &*gate(0) };
        for (sum, &item) in dh.iter_mut().zip(dy) {
            *sum += item;
        }
        match cell {
            Cell::Lstm { peepholes, .. } => {
                let (to_cell, kept) = (planes(0), planes(1));
                // SAFETY: as above.
                let dc = unsafe { parts.between.part(at, *units) };
                let [input, output, forget, new] = [0, 1, 2, 3].map(gate);
                for unit in 0..*units {
                    let peephole = |row: usize| if *peepholes { self.extra(row)[unit] } else { 0.0 };
                    output[unit] *= dh[unit];
                    let own = dc[unit] + dh[unit] * to_cell[unit] + output[unit] * peephole(1);
                    input[unit] *= own;
                    forget[unit] *= own;
                    new[unit] *= own;
                    dc[unit] = own * kept[unit] + input[unit] * peephole(0) + forget[unit] * peephole(2);
                }
                for (number, gate) in [input, output, forget, new].into_iter().enumerate() {
                    copy(number).copy_from_slice(gate);
                }
            }
            Cell::Gru { reset, .. } => {
                let (update, kept) = (planes(0), planes(1));
                let (first, new) = (gate(0), gate(2));
                for unit in 0..*units {
                    first[unit] *= dh[unit];
                    new[unit] *= dh[unit];
                    before[unit] = dh[unit] * update[unit];
                }
                copy(0).copy_from_slice(first);
                let of_product = copy(2);
                of_product.copy_from_slice(new);
                if *reset == Reset::AfterProduct {
                    let second = gate(1);
                    for unit in 0..*units {
                        second[unit] *= dh[unit];
                        of_product[unit] *= kept[unit];
                    }
                    copy(1).copy_from_slice(second);
                }
            }
            Cell::Rnn { activation } => {
                let only = gate(0);
                if cell.saves_gates() {
                    only.iter_mut().zip(&*dh).for_each(|(factor, dh)| *factor *= dh);
                } else {
                    let after = &self.given.y[self.in_y(step) + at..][..*units];
                    for (unit, only) in only.iter_mut().enumerate() {
                        *only = slope_of(*activation, after[unit]) * dh[unit];
                    }
                }
                copy(0).copy_from_slice(only);
            }
        }
    }

    /// The gradients of a row's reset gate, and through it of its state, from that of the reset state.
    fn reset_of_row(&self, parts: &Gradients, step: usize, row: usize) {
        let RecurrentGradient { seq, batch, units, .. } = self.kernel;
        let (at, plane) = (row * units, ((seq + step) * batch + row) * units);
        let reset = &parts.planes[plane..][..*units];
        // SAFETY: tasks differ in rows of the batch; all four parts are of different slices.
        let (before, d_kept) = unsafe { (parts.before.part(at, *units), parts.between.part(at, *units)) };
        // SAFETY: as above.
        let copy = unsafe { parts.gates.part(self.in_step(1, row), *units) };
        // SAFETY: as above.
        let gate = unsafe { parts.out.part(self.in_gates(step, row) + units, *units) };
        for unit in 0..*units {
            gate[unit] *= d_kept[unit];
            before[unit] += d_kept[unit] * reset[unit];
        }
        copy.copy_from_slice(gate);
    }

    /// The gradients of weights, peepholes and the candidate's bias.
    fn weights(&self, room: &mut Room, results: &mut Results, pool: &Pool) {
        let RecurrentGradient { cell, batch, units, .. } = self.kernel;
        let extras = cell.extras() * units;
        results.extra[self.direction * extras..][..extras].fill(0.0);
        for chunk in self.chunks() {
            let rows = chunk.len() * batch;
            let states = &mut room.states[..rows * units];
            self.states(states, &chunk, pool);
            for (number, group) in self.kernel.groups().iter().enumerate() {
                let columns = group.len() * units;
                let transposed = &mut room.gates[..rows * columns];
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
                            let dz = &room.gates[(number * units + unit) * rows..][..rows];
                            let first = (chunk.start + usize::from(number == 1)) * batch;
                            let cells = room.memory[first * units + unit..].iter().step_by(*units);
                            dz.iter().zip(cells).map(|(dz, cell)| dz * cell).sum::<f32>()
                        }
                        false => room.gates[(2 * units + unit) * rows..][..rows].iter().sum(),
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
        let &RecurrentGradient { ref cell, seq, batch, units, .. } = self.kernel;
        let resets_product = matches!(cell, Cell::Gru { reset: Reset::AfterProduct, .. });
        let (rows, blocks) = (chunk.len() * batch, units.div_ceil(LANES));
        let (out, isa) = (&SharedMut::new(out), self.isa);
        pool.run(group.len() * blocks, &|task| {
            let (gate, first) = (group.start + task / blocks, task % blocks * LANES);
            let part = first..units.min(first + LANES);
            let reset = resets_product && gate == 2;
            for start in (0..rows).step_by(LANES) {
                let ends = rows.min(start + LANES);
                let mut items = [[0.0; LANES]; LANES];
                for (row, items) in (start..ends).zip(&mut items) {
                    let (step, row) = (chunk.start + row / batch, row % batch);
                    let items = &mut items[..part.len()];
                    items.copy_from_slice(&gates[self.in_gates(step, row) + gate * units..][part.clone()]);
                    if reset {
                        let planes = &planes[((seq + step) * batch + row) * units..][part.clone()];
                        items.iter_mut().zip(planes).for_each(|(item, reset)| *item *= reset);
                    }
                }
                let items = &mut items;
                with_vector!(isa, transpose(items: &mut [[f32; LANES]; LANES]));
                for (unit, items) in part.clone().zip(&*items) {
                    let at = ((gate - group.start) * units + unit) * rows + start;
                    // SAFETY: tasks differ in gate or unit.
                    unsafe { out.part(at, ends - start) }.copy_from_slice(&items[..ends - start]);
                }
            }
        });
    }
}

#[inline(always)]
fn transpose<V: Vector>(items: &mut [[f32; LANES]; LANES]) {
    *items = V::transpose(std::array::from_fn(|row| V::read(&items[row]))).map(V::to_array);
}

/// The slices that tasks of step 1 share. A task has one row of the batch.
struct Factors<'a> {
    states: &'a [f32],
    /// Of the group that is computed.
    products: &'a [f32],
    gates: SharedMut<'a, f32>,
    planes: SharedMut<'a, f32>,
    memory: SharedMut<'a, f32>,
}

/// The slices that tasks of a step of the walk share. A task has some rows of the batch.
struct Gradients<'a> {
    gates: SharedMut<'a, f32>,
    out: SharedMut<'a, f32>,
    dh: SharedMut<'a, f32>,
    before: SharedMut<'a, f32>,
    between: SharedMut<'a, f32>,
    planes: &'a [f32],
}

/// Some units of a row at a step.
struct BlockOf<'a> {
    walk: &'a Walk<'a>,
    parts: &'a Factors<'a>,
    /// The first step of the chunk.
    first: usize,
    step: usize,
    row: usize,
    units: Range<usize>,
}

impl BlockOf<'_> {
    /// The product of a gate of the group that is computed, without the input's contribution.
    fn product(&self, gate: usize) -> Block {
        let (group, kernel) = (self.walk.group_of(gate), self.walk.kernel);
        let row = (self.step - self.first) * kernel.batch + self.row;
        let at = (row * group.len() + gate - group.start) * kernel.units + self.units.start;
        first(&self.parts.products[at..][..self.units.len()])
    }

    /// The operand of a gate's function.
    fn gate(&self, gate: usize) -> Block {
        let (mut sums, x) = (self.product(gate), self.x(gate));
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        sums
    }

    /// The input's contribution to a gate; the factor once it was set.
    fn x(&self, gate: usize) -> Block {
        // SAFETY: only this task accesses the row.
        first(unsafe { self.parts.gates.shared_part(self.in_gates(gate), self.units.len()) })
    }

    fn in_gates(&self, gate: usize) -> usize {
        self.walk.in_gates(self.step, self.row) + gate * self.walk.kernel.units + self.units.start
    }

    fn extra(&self, row: usize) -> &[f32] {
        &self.walk.extra(row)[self.units.clone()]
    }

    /// The state before the step.
    fn h(&self) -> &[f32] {
        &self.parts.states[self.in_plane(self.step - self.first)..][..self.units.len()]
    }

    /// The first of the units in `[.., batch, u]`.
    fn in_plane(&self, step: usize) -> usize {
        (step * self.walk.kernel.batch + self.row) * self.walk.kernel.units + self.units.start
    }

    /// The cell after some steps, or the reset state.
    fn memory(&self, step: usize) -> Block {
        // SAFETY: only this task accesses the row.
        first(unsafe { self.parts.memory.shared_part(self.in_plane(step), self.units.len()) })
    }

    fn plane(&self, number: usize) -> Block {
        let kernel = self.walk.kernel;
        let at = number * kernel.seq * kernel.batch * kernel.units + self.in_plane(self.step);
        // SAFETY: only this task accesses the row.
        first(unsafe { self.parts.planes.shared_part(at, self.units.len()) })
    }

    fn set_gate(&self, gate: usize, item: impl Fn(usize) -> f32) {
        // SAFETY: only this task accesses the row, and all of the row's blocks that it read are copies.
        fill(unsafe { self.parts.gates.part(self.in_gates(gate), self.units.len()) }, item);
    }

    fn set_plane(&self, number: usize, item: impl Fn(usize) -> f32) {
        let kernel = self.walk.kernel;
        let at = number * kernel.seq * kernel.batch * kernel.units + self.in_plane(self.step);
        // SAFETY: as in `set_gate`.
        fill(unsafe { self.parts.planes.part(at, self.units.len()) }, item);
    }

    /// Writes the cell or reset state of this step, or with `later` 1 of the next one.
    fn set_memory(&self, later: usize, item: impl Fn(usize) -> f32) {
        // SAFETY: as in `set_gate`.
        fill(unsafe { self.parts.memory.part(self.in_plane(self.step + later), self.units.len()) }, item);
    }

    fn lstm(&self, [f, g, out]: &[Unary; 3], peepholes: bool) {
        let (isa, count) = (self.walk.isa, self.units.len());
        let cell = self.memory(self.step);
        let with_peephole = |gate: usize, cell: &Block| {
            let mut sums = self.gate(gate);
            if peepholes {
                let weights = self.extra(gate);
                (0..count).for_each(|unit| sums[unit] += weights[unit] * cell[unit]);
            }
            sums
        };
        let (input, d_input) = both(isa, *f, with_peephole(0, &cell), count);
        let (forget, d_forget) = both(isa, *f, with_peephole(2, &cell), count);
        let (new, d_new) = both(isa, *g, self.gate(3), count);
        let mut after = [0.0; BLOCK];
        (0..count).for_each(|unit| after[unit] = forget[unit] * cell[unit] + input[unit] * new[unit]);
        let (output, d_output) = both(isa, *f, with_peephole(1, &after), count);
        let (shown, d_shown) = both(isa, *out, after, count);
        self.set_gate(0, |unit| new[unit] * d_input[unit]);
        self.set_gate(1, |unit| shown[unit] * d_output[unit]);
        self.set_gate(2, |unit| cell[unit] * d_forget[unit]);
        self.set_gate(3, |unit| input[unit] * d_new[unit]);
        self.set_plane(0, |unit| output[unit] * d_shown[unit]);
        self.set_plane(1, |unit| forget[unit]);
        self.set_memory(1, |unit| after[unit]);
    }

    /// A GRU with the reset after the product.
    fn gru(&self, [f, g]: &[Unary; 2]) {
        let (isa, count, h) = (self.walk.isa, self.units.len(), self.h());
        let (update, d_update) = both(isa, *f, self.gate(0), count);
        let (reset, d_reset) = both(isa, *f, self.gate(1), count);
        let (mut product, bias, x) = (self.product(2), self.extra(0), self.x(2));
        let mut sums = [0.0; BLOCK];
        for unit in 0..count {
            product[unit] += bias[unit];
            sums[unit] = x[unit] + reset[unit] * product[unit];
        }
        let (new, d_new) = both(isa, *g, sums, count);
        let to_new = |unit: usize| (1.0 - update[unit]) * d_new[unit];
        self.set_gate(0, |unit| (h[unit] - new[unit]) * d_update[unit]);
        self.set_gate(1, |unit| to_new(unit) * product[unit] * d_reset[unit]);
        self.set_gate(2, to_new);
        self.set_plane(0, |unit| update[unit]);
        self.set_plane(1, |unit| reset[unit]);
    }

    /// The second half of a GRU that resets before the product.
    fn gru_candidate(&self, g: Unary) {
        let h = self.h();
        let (update, d_update) = (self.plane(0), self.x(0));
        let (new, d_new) = both(self.walk.isa, g, self.gate(2), self.units.len());
        self.set_gate(0, |unit| (h[unit] - new[unit]) * d_update[unit]);
        self.set_gate(2, |unit| (1.0 - update[unit]) * d_new[unit]);
    }
}

/// A block that begins with some items.
fn first(items: &[f32]) -> Block {
    let mut block = [0.0; BLOCK];
    block[..items.len()].copy_from_slice(items);
    block
}

fn fill(items: &mut [f32], item: impl Fn(usize) -> f32) {
    items.iter_mut().enumerate().for_each(|(unit, cell)| *cell = item(unit));
}

/// Whether [`both`] has the derivative of a function.
fn has_derivative(function: Unary) -> bool {
    matches!(
        function,
        Unary::Affine { .. }
            | Unary::HardSigmoid { .. }
            | Unary::LeakyRelu { .. }
            | Unary::Relu
            | Unary::Sigmoid
            | Unary::Softplus
            | Unary::Softsign
            | Unary::Tanh
    )
}

/// Values and derivatives of a function at the first `count` items of `x`. At kinks as [`Unary::derivative`].
fn both(isa: Isa, function: Unary, x: Block, count: usize) -> (Block, Block) {
    let mut y = x;
    math::apply(isa, function, &mut y[..count]);
    // A loop for each function, over whole blocks: the compiler vectorizes it.
    let d = match function {
        Unary::Affine { scale, .. } => [scale; BLOCK],
        Unary::HardSigmoid { alpha, .. } => y.map(|y| if 0.0 < y && y < 1.0 { alpha } else { 0.0 }),
        Unary::LeakyRelu { alpha } => x.map(|x| if x <= 0.0 { alpha } else { 1.0 }),
        Unary::Relu => y.map(|y| if 0.0 < y { 1.0 } else { 0.0 }),
        Unary::Sigmoid => y.map(|y| y * (1.0 - y)),
        Unary::Softplus => y.map(|y| 1.0 - (-y).exp()),
        Unary::Softsign => y.map(|y| (1.0 - y.abs()) * (1.0 - y.abs())),
        Unary::Tanh => y.map(|y| 1.0 - y * y),
        _ => [0.0; BLOCK],
    };
    (y, d)
}

/// The derivative of a function where it yields `y`, for those of cells that do not save gates.
fn slope_of(function: Unary, y: f32) -> f32 {
    match function {
        Unary::Relu if 0.0 < y => 1.0,
        Unary::Sigmoid => y * (1.0 - y),
        Unary::Tanh => 1.0 - y * y,
        _ => 0.0,
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
