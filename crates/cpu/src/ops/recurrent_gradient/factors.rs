//! Step 1 of a gradient through time: from the operands or the values of gates to factors, sixteen units at a time.

use std::ops::Range;

use types::pointwise::Unary;
use types::recurrent::{Cell, Reset};

use super::Walk;
use crate::ops::recurrent::Lanes;
use crate::simd::vector::{LANES, Vector};
use crate::simd::{Isa, math};
use crate::threads::shared_slice::SharedMut;

/// The slices that tasks of step 1 share. A task has some units of a row of the batch.
pub(super) struct Factors<'a> {
    /// The steps that are computed.
    pub(super) chunk: &'a Range<usize>,
    pub(super) states: &'a [f32],
    /// Of the group that is computed.
    pub(super) products: &'a [f32],
    pub(super) gates: SharedMut<'a, f32>,
    pub(super) planes: SharedMut<'a, f32>,
    pub(super) memory: SharedMut<'a, f32>,
}

/// A vector of units of a row at a step.
struct Units<'a> {
    walk: &'a Walk<'a>,
    parts: &'a Factors<'a>,
    step: usize,
    row: usize,
    unit: usize,
    lanes: usize,
}

/// The factors of some units of a row at all steps of a chunk. Unless `is_last`, of a GRU that resets before the product: both
/// gates, and the states times their reset gates.
#[inline(always)]
pub(super) fn factors<V: Vector>(walk: &Walk, parts: &Factors, row: usize, units: Range<usize>, is_last: bool) {
    let (start, end) = (units.start, units.end);
    let places = parts.chunk.clone().flat_map(|step| (start..end).step_by(LANES).map(move |unit| (step, unit)));
    for (step, unit) in places {
        let units = Units { walk, parts, step, row, unit, lanes: LANES.min(end - unit) };
        match &walk.kernel.cell {
            Cell::Lstm { activation, .. } if walk.kernel.values => lstm_of_values::<V>(&units, activation),
            Cell::Lstm { activation, peepholes } => lstm::<V>(&units, activation, *peepholes),
            Cell::Gru { activation, reset: Reset::AfterProduct } => gru::<V>(&units, activation),
            Cell::Gru { activation: [f, _], .. } if !is_last => gru_gates::<V>(&units, *f),
            Cell::Gru { activation: [_, g], .. } => gru_candidate::<V>(&units, *g),
            Cell::Rnn { activation } => {
                let (_, d) = both::<V>(*activation, units.gate(0));
                units.set_gate(0, d);
            }
        }
    }
}

impl Units<'_> {
    /// The product of a gate of the group that is computed, without the input's contribution.
    #[inline(always)]
    fn product<V: Vector>(&self, gate: usize) -> V {
        let (group, kernel) = (self.walk.group_of(gate), self.walk.kernel);
        let row = (self.step - self.parts.chunk.start) * kernel.batch + self.row;
        let at = (row * group.len() + gate - group.start) * kernel.units + self.unit;
        V::read_part(&self.parts.products[at..][..self.lanes], 0.0)
    }

    /// The operand of a gate's function.
    #[inline(always)]
    fn gate<V: Vector>(&self, gate: usize) -> V {
        self.product::<V>(gate).add(self.x(gate))
    }

    /// The input's contribution to a gate; the factor once it was set.
    #[inline(always)]
    fn x<V: Vector>(&self, gate: usize) -> V {
        // SAFETY: only this task accesses these units of the row.
        V::read_part(unsafe { self.parts.gates.shared_part(self.in_gates(gate), self.lanes) }, 0.0)
    }

    #[inline(always)]
    fn in_gates(&self, gate: usize) -> usize {
        self.walk.in_gates(self.step, self.row) + gate * self.walk.kernel.units + self.unit
    }

    #[inline(always)]
    fn extra<V: Vector>(&self, row: usize) -> V {
        V::read_part(&self.walk.extra(row)[self.unit..][..self.lanes], 0.0)
    }

    /// The state before the step.
    #[inline(always)]
    fn h<V: Vector>(&self) -> V {
        V::read_part(&self.parts.states[self.in_plane(self.step - self.parts.chunk.start)..][..self.lanes], 0.0)
    }

    /// The first of the units in `[.., batch, u]`.
    fn in_plane(&self, step: usize) -> usize {
        (step * self.walk.kernel.batch + self.row) * self.walk.kernel.units + self.unit
    }

    /// The first of the units in a plane.
    fn in_planes(&self, number: usize) -> usize {
        let kernel = self.walk.kernel;
        number * kernel.seq * kernel.batch * kernel.units + self.in_plane(self.step)
    }

    /// The cell before the step.
    #[inline(always)]
    fn memory<V: Vector>(&self) -> V {
        // SAFETY: as in `x`.
        V::read_part(unsafe { self.parts.memory.shared_part(self.in_plane(self.step), self.lanes) }, 0.0)
    }

    #[inline(always)]
    fn plane<V: Vector>(&self, number: usize) -> V {
        // SAFETY: as in `x`.
        V::read_part(unsafe { self.parts.planes.shared_part(self.in_planes(number), self.lanes) }, 0.0)
    }

    #[inline(always)]
    fn set_gate<V: Vector>(&self, gate: usize, items: V) {
        // SAFETY: as in `x`.
        items.write_part(unsafe { self.parts.gates.part(self.in_gates(gate), self.lanes) });
    }

    #[inline(always)]
    fn set_plane<V: Vector>(&self, number: usize, items: V) {
        // SAFETY: as in `x`.
        items.write_part(unsafe { self.parts.planes.part(self.in_planes(number), self.lanes) });
    }

    /// Writes the reset state of this step, or with `later` 1 the cell before the next one.
    #[inline(always)]
    fn set_memory<V: Vector>(&self, later: usize, items: V) {
        // SAFETY: as in `x`.
        items.write_part(unsafe { self.parts.memory.part(self.in_plane(self.step + later), self.lanes) });
    }
}

#[inline(always)]
fn lstm<V: Vector>(units: &Units, [f, g, out]: &[Unary; 3], peepholes: bool) {
    let cell: V = units.memory();
    let (mut x_input, mut x_output, mut x_forget) = (units.gate::<V>(0), units.gate::<V>(1), units.gate::<V>(2));
    if peepholes {
        x_input = units.extra::<V>(0).mul_add(cell, x_input);
        x_forget = units.extra::<V>(2).mul_add(cell, x_forget);
    }
    let (input, d_input) = both(*f, x_input);
    let (forget, d_forget) = both(*f, x_forget);
    let (new, d_new) = both(*g, units.gate::<V>(3));
    let after = forget.mul_add(cell, input.mul(new));
    if peepholes {
        x_output = units.extra::<V>(1).mul_add(after, x_output);
    }
    let (output, d_output) = both(*f, x_output);
    let (shown, d_shown) = both(*out, after);
    units.set_gate(0, new.mul(d_input));
    units.set_gate(1, shown.mul(d_output));
    units.set_gate(2, cell.mul(d_forget));
    units.set_gate(3, input.mul(d_new));
    units.set_plane(0, output.mul(d_shown));
    units.set_plane(1, forget);
    units.set_memory(1, after);
}

/// The same from the values of the gates.
#[inline(always)]
fn lstm_of_values<V: Vector>(units: &Units, [f, g, out]: &[Unary; 3]) {
    let cell: V = units.memory();
    let (input, output): (V, V) = (units.x(0), units.x(1));
    let (forget, new): (V, V) = (units.x(2), units.x(3));
    let after = forget.mul_add(cell, input.mul(new));
    let (shown, d_shown) = both(*out, after);
    units.set_gate(0, new.mul(slope_of(*f, input)));
    units.set_gate(1, shown.mul(slope_of(*f, output)));
    units.set_gate(2, cell.mul(slope_of(*f, forget)));
    units.set_gate(3, input.mul(slope_of(*g, new)));
    units.set_plane(0, output.mul(d_shown));
    units.set_plane(1, forget);
    units.set_memory(1, after);
}

/// A GRU with the reset after the product.
#[inline(always)]
fn gru<V: Vector>(units: &Units, [f, g]: &[Unary; 2]) {
    let h: V = units.h();
    let (update, d_update) = both(*f, units.gate::<V>(0));
    let (reset, d_reset) = both(*f, units.gate::<V>(1));
    let product = units.product::<V>(2).add(units.extra(0));
    let (new, d_new) = both(*g, reset.mul_add(product, units.x(2)));
    let to_new = V::splat(1.0).sub(update).mul(d_new);
    units.set_gate(0, h.sub(new).mul(d_update));
    units.set_gate(1, to_new.mul(product).mul(d_reset));
    units.set_gate(2, to_new);
    units.set_plane(0, update);
    units.set_plane(1, reset);
}

/// The first half of a GRU that resets before the product.
#[inline(always)]
fn gru_gates<V: Vector>(units: &Units, f: Unary) {
    let h: V = units.h();
    let (update, d_update) = both(f, units.gate::<V>(0));
    let (reset, d_reset) = both(f, units.gate::<V>(1));
    units.set_gate(0, d_update);
    units.set_gate(1, h.mul(d_reset));
    units.set_plane(0, update);
    units.set_plane(1, reset);
    units.set_memory(0, h.mul(reset));
}

/// The second half of it.
#[inline(always)]
fn gru_candidate<V: Vector>(units: &Units, g: Unary) {
    let (update, d_update): (V, V) = (units.plane(0), units.x(0));
    let (new, d_new) = both(g, units.gate::<V>(2));
    units.set_gate(0, units.h::<V>().sub(new).mul(d_update));
    units.set_gate(2, V::splat(1.0).sub(update).mul(d_new));
}

/// Whether [`both`] has the derivative of a function.
pub(super) fn has_derivative(function: Unary) -> bool {
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

/// Values and derivatives of a function. At kinks as [`Unary::derivative`].
#[inline(always)]
fn both<V: Vector>(function: Unary, x: V) -> (V, V) {
    match function {
        Unary::Sigmoid => {
            let y = math::sigmoid(x);
            (y, slope_of(function, y))
        }
        Unary::Tanh => {
            let y = math::tanh(x);
            (y, slope_of(function, y))
        }
        _ => {
            let (y, d) = both_of_lanes(V::ISA, function, &x.to_array());
            (V::read(&y), V::read(&d))
        }
    }
}

/// The same for functions that few cells have.
#[inline(never)]
fn both_of_lanes(isa: Isa, function: Unary, x: &Lanes) -> (Lanes, Lanes) {
    let mut y = *x;
    math::apply(isa, function, &mut y);
    let d = match function {
        Unary::Affine { scale, .. } => [scale; LANES],
        Unary::HardSigmoid { alpha, .. } => y.map(|y| if 0.0 < y && y < 1.0 { alpha } else { 0.0 }),
        Unary::LeakyRelu { alpha } => x.map(|x| if x <= 0.0 { alpha } else { 1.0 }),
        Unary::Relu => y.map(|y| if 0.0 < y { 1.0 } else { 0.0 }),
        Unary::Softplus => y.map(|y| 1.0 - (-y).exp()),
        Unary::Softsign => y.map(|y| (1.0 - y.abs()) * (1.0 - y.abs())),
        _ => unreachable!("`sizes` refuses other functions"),
    };
    (y, d)
}

/// The derivative of a function where it yields `y`, for those of cells that do not save gates.
#[inline(always)]
pub(super) fn slope_of<V: Vector>(function: Unary, y: V) -> V {
    let one = V::splat(1.0);
    match function {
        Unary::Relu => V::zero().if_less(y, one, V::zero()),
        Unary::Sigmoid => y.mul(one.sub(y)),
        _ => one.sub(y.mul(y)),
    }
}
