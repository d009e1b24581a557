//! Step 2 of a gradient through time: from the gradients of states to those of gates, sixteen units at a time.

use std::ops::Range;

use types::recurrent::{Cell, Reset};

use super::factors::slope_of;
use super::{RecurrentGradient, Walk};
use crate::ops::recurrent::Lanes;
use crate::simd::vector::{LANES, Vector};
use crate::threads::shared_slice::SharedMut;

/// The slices that parts of a phase of the walk share. A part has some blocks of units, of all rows of the batch.
pub(super) struct Gradients<'a> {
    /// Packed.
    pub(super) weight: &'a [f32],
    /// The gradients of the products of two steps.
    pub(super) steps: SharedMut<'a, f32>,
    pub(super) gates: SharedMut<'a, f32>,
    pub(super) carried: SharedMut<'a, f32>,
    /// The gradient of the first state.
    pub(super) h: SharedMut<'a, f32>,
    pub(super) planes: &'a [f32],
}

/// Some rows of a block of units in a phase of the walk.
pub(super) struct Place {
    /// The steps behind this one; as many as there are steps after the walk's end.
    pub(super) turn: usize,
    /// Whether this is the second phase of the step.
    pub(super) second: bool,
    /// The first unit.
    pub(super) first: usize,
    /// Vectors of units.
    pub(super) vectors: usize,
    pub(super) rows: Range<usize>,
}

/// Completes the gradients of states from their products, and computes those of gates.
#[inline(always)]
pub(super) fn gradients<V: Vector>(walk: &Walk, parts: &Gradients, place: &Place, sums: &[Lanes]) {
    let RecurrentGradient { ref cell, seq, batch, units, .. } = *walk.kernel;
    for (row, sums) in place.rows.clone().zip(sums.chunks_exact(place.vectors)) {
        for (vector, sum) in sums.iter().enumerate() {
            let unit = place.first + vector * LANES;
            // At the end of the walk, the gradient that the first step carried.
            let step = seq - 1 - place.turn.min(seq - 1);
            let own = Own { walk, parts, step, row, unit, lanes: LANES.min(units - unit) };
            let sum = V::read(sum);
            if place.second {
                reset_gate::<V>(&own, sum);
                continue;
            }
            let mut dh = match place.turn {
                0 => {
                    let at = (walk.direction * batch + row) * units + unit;
                    V::read_part(&walk.given.dh[at..][..own.lanes], 0.0)
                }
                _ if matches!(cell, Cell::Gru { .. }) => sum.add(own.carried()),
                _ => sum,
            };
            if place.turn == seq {
                // SAFETY: parts differ in units.
                dh.write_part(unsafe { parts.h.part(row * units + unit, own.lanes) });
                continue;
            }
            dh = dh.add(match cell.saves_gates() {
                true => V::read_part(&walk.given.dy[walk.in_y(step) + row * units + unit..][..own.lanes], 0.0),
                false => own.factor(0),
            });
            own.gates(dh);
        }
    }
}

/// A vector of units of a row at a step of the walk.
struct Own<'a> {
    walk: &'a Walk<'a>,
    parts: &'a Gradients<'a>,
    step: usize,
    row: usize,
    unit: usize,
    lanes: usize,
}

impl Own<'_> {
    /// The factor of a gate.
    #[inline(always)]
    fn factor<V: Vector>(&self, gate: usize) -> V {
        // SAFETY: parts differ in units, and rows and gates have their own.
        V::read_part(unsafe { self.parts.gates.shared_part(self.in_gates(gate), self.lanes) }, 0.0)
    }

    #[inline(always)]
    fn in_gates(&self, gate: usize) -> usize {
        self.walk.in_gates(self.step, self.row) + gate * self.walk.kernel.units + self.unit
    }

    /// Stores the gradient of a gate and that of its product with the state.
    #[inline(always)]
    fn set<V: Vector>(&self, gate: usize, gradient: V, of_product: V) {
        // SAFETY: as in `factor`.
        gradient.write_part(unsafe { self.parts.gates.part(self.in_gates(gate), self.lanes) });
        let at = self.walk.in_step(self.step, gate, self.row) + self.unit;
        // SAFETY: as in `factor`; products read the other step, or another group of gates.
        of_product.write_part(unsafe { self.parts.steps.part(at, self.lanes) });
    }

    #[inline(always)]
    fn plane<V: Vector>(&self, number: usize) -> V {
        let RecurrentGradient { seq, batch, units, .. } = self.walk.kernel;
        let at = ((number * seq + self.step) * batch + self.row) * units + self.unit;
        V::read_part(&self.parts.planes[at..][..self.lanes], 0.0)
    }

    #[inline(always)]
    fn carried<V: Vector>(&self) -> V {
        let at = self.row * self.walk.kernel.units + self.unit;
        // SAFETY: as in `factor`.
        V::read_part(unsafe { self.parts.carried.shared_part(at, self.lanes) }, 0.0)
    }

    #[inline(always)]
    fn set_carried<V: Vector>(&self, items: V) {
        let at = self.row * self.walk.kernel.units + self.unit;
        // SAFETY: as in `factor`.
        items.write_part(unsafe { self.parts.carried.part(at, self.lanes) });
    }

    #[inline(always)]
    fn extra<V: Vector>(&self, row: usize) -> V {
        V::read_part(&self.walk.extra(row)[self.unit..][..self.lanes], 0.0)
    }

    /// The gradients of gates from that of the state. A reset before the product follows in [`reset_gate`].
    #[inline(always)]
    fn gates<V: Vector>(&self, dh: V) {
        match &self.walk.kernel.cell {
            Cell::Lstm { peepholes, .. } => {
                let output = self.factor::<V>(1).mul(dh);
                let mut dc = dh.mul_add(self.plane(0), self.carried());
                if *peepholes {
                    dc = output.mul_add(self.extra(1), dc);
                }
                let (input, forget) = (self.factor::<V>(0).mul(dc), self.factor::<V>(2).mul(dc));
                let new = self.factor::<V>(3).mul(dc);
                let mut before = dc.mul(self.plane(1));
                if *peepholes {
                    before = input.mul_add(self.extra(0), before);
                    before = forget.mul_add(self.extra(2), before);
                }
                self.set_carried(before);
                self.set(0, input, input);
                self.set(1, output, output);
                self.set(2, forget, forget);
                self.set(3, new, new);
            }
            Cell::Gru { reset, .. } => {
                let (update, new) = (self.factor::<V>(0).mul(dh), self.factor::<V>(2).mul(dh));
                self.set_carried(dh.mul(self.plane(0)));
                self.set(0, update, update);
                match reset {
                    Reset::BeforeProduct => self.set(2, new, new),
                    Reset::AfterProduct => {
                        let gate = self.factor::<V>(1).mul(dh);
                        self.set(1, gate, gate);
                        self.set(2, new, new.mul(self.plane(1)));
                    }
                }
            }
            Cell::Rnn { activation } => {
                let slope: V = match self.walk.kernel.cell.saves_gates() {
                    true => self.factor(0),
                    false => {
                        let at = self.walk.in_y(self.step) + self.row * self.walk.kernel.units + self.unit;
                        slope_of(*activation, V::read_part(&self.walk.given.y[at..][..self.lanes], 0.0))
                    }
                };
                let gate = slope.mul(dh);
                self.set(0, gate, gate);
            }
        }
    }
}

/// The gradient of a reset gate, and through it of its state, from that of the reset state.
#[inline(always)]
fn reset_gate<V: Vector>(own: &Own, d_kept: V) {
    let gate = own.factor::<V>(1).mul(d_kept);
    own.set(1, gate, gate);
    own.set_carried(d_kept.mul_add(own.plane(1), own.carried()));
}
