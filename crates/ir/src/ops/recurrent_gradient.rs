//! [`RecurrentGradient`]: the gradients of a recurrent layer, through time.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Unary;
use types::recurrent::{Cell, Reset};
use types::{DType, Shape, Tensor};

use super::Recurrent;
use super::common::from_f64;
use super::recurrent::Step;
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Walks the sequence backwards and adds the contribution of each step to the gradients of gates, weights and states.
///
/// The operands of [`Recurrent`], without `gates` unless [`Cell::saves_gates`], then its result `y`, then the gradients of its
/// results: `dy: [seq, d, batch, u]`, `dh: [d, batch, u]` and for an LSTM `dc` -> one gradient for each operand of the layer, of
/// its type. All `f32`. Gates and cells are computed again from the states in `y`, or only cells if `values` is set. Refuses
/// operands of other types, and `values` of cells that have no such operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecurrentGradient {
    /// The layer.
    pub recurrent: Recurrent,
    /// Whether `gates` are the values that [`RecurrentWithGates`](super::RecurrentWithGates) returns, not the layer's operand.
    pub values: bool,
}

/// The gradients of one row of a batch while the sequence is walked.
struct RowGradient<'a> {
    h: Vec<f64>,
    c: Vec<f64>,
    /// Of the step's gates, `[g, u]`.
    gates: &'a mut [f64],
    /// `[g, u, u]`, summed over steps and rows.
    weight: &'a mut [f64],
    extra: &'a mut [f64],
}

/// The value and the derivative of a function.
fn both(function: Unary, x: f64) -> (f64, f64) {
    let y = function.eval(x);
    (y, function.derivative().map_or(0.0, |term| term.eval(x, f64::NAN, y)))
}

/// A value of a function and the derivative there.
fn with_slope(function: Unary, y: f64) -> (f64, f64) {
    (y, function.derivative().map_or(0.0, |term| term.eval(f64::NAN, f64::NAN, y)))
}

impl RowGradient<'_> {
    /// Adds the contribution of `h R` of a gate's unit with the gradient `dz`.
    fn product(&mut self, step: &Step, gate: usize, unit: usize, dz: f64, h: &[f64], dh: &mut [f64]) {
        let row = (gate * h.len() + unit) * h.len();
        for (k, &item) in h.iter().enumerate() {
            self.weight[row + k] += dz * item;
            dh[k] += dz * step.weight[row + k];
        }
    }

    /// Replaces the gradients of the states `after` a step by those of the states before it, `h` and `c`.
    fn step(&mut self, op: &RecurrentGradient, step: &Step, [h, c]: [&[f64]; 2], after: &[f64]) {
        let cell = &op.recurrent.cell;
        let units = h.len();
        let mut dh = vec![0.0; units];
        match cell {
            Cell::Lstm { activation: [f, g, out], .. } => {
                let has_peepholes = !step.extra.is_empty();
                for (unit, &before) in c.iter().enumerate() {
                    let peephole =
                        |gate: usize| if has_peepholes && gate < 3 { step.extra[gate * units + unit] } else { 0.0 };
                    let gate = |function: Unary, gate: usize, cell: f64| match op.values {
                        true => with_slope(function, step.gates[gate * units + unit]),
                        false => both(function, step.sum(gate, unit, h) + peephole(gate) * cell),
                    };
                    let ((input, d_input), (forget, d_forget)) = (gate(*f, 0, before), gate(*f, 2, before));
                    let (new, d_new) = gate(*g, 3, 0.0);
                    let memory = forget * before + input * new;
                    let (shown, d_shown) = both(*out, memory);
                    let (output, d_output) = gate(*f, 1, memory);
                    let dz_output = self.h[unit] * shown * d_output;
                    let dc = self.c[unit] + self.h[unit] * output * d_shown + dz_output * peephole(1);
                    let dz = [dc * new * d_input, dz_output, dc * before * d_forget, dc * input * d_new];
                    self.c[unit] = dc * forget + dz[0] * peephole(0) + dz[2] * peephole(2);
                    if has_peepholes {
                        for (gate, cell) in [before, memory, before].into_iter().enumerate() {
                            self.extra[gate * units + unit] += dz[gate] * cell;
                        }
                    }
                    for (gate, dz) in dz.into_iter().enumerate() {
                        self.gates[gate * units + unit] = dz;
                        self.product(step, gate, unit, dz, h, &mut dh);
                    }
                }
            }
            Cell::Gru { activation: [f, g], reset } => {
                let resets: Vec<(f64, f64)> = (0..units).map(|unit| both(*f, step.sum(1, unit, h))).collect();
                let kept: Vec<f64> = h.iter().zip(&resets).map(|(item, gate)| item * gate.0).collect();
                let mut d_resets = vec![0.0; units];
                let mut d_kept = vec![0.0; units];
                for unit in 0..units {
                    let product = step.product(2, unit, h) + step.extra.get(unit).copied().unwrap_or_default();
                    let sum = match reset {
                        Reset::BeforeProduct => step.sum(2, unit, &kept),
                        Reset::AfterProduct => step.gates[2 * units + unit] + resets[unit].0 * product,
                    };
                    let (new, d_new) = both(*g, sum);
                    let (update, d_update) = both(*f, step.sum(0, unit, h));
                    let dz_update = self.h[unit] * (h[unit] - new) * d_update;
                    let dz_new = self.h[unit] * (1.0 - update) * d_new;
                    dh[unit] += self.h[unit] * update;
                    self.gates[unit] = dz_update;
                    self.gates[2 * units + unit] = dz_new;
                    self.product(step, 0, unit, dz_update, h, &mut dh);
                    match reset {
                        Reset::BeforeProduct => self.product(step, 2, unit, dz_new, &kept, &mut d_kept),
                        Reset::AfterProduct => {
                            d_resets[unit] += dz_new * product;
                            self.extra[unit] += dz_new * resets[unit].0;
                            self.product(step, 2, unit, dz_new * resets[unit].0, h, &mut dh);
                        }
                    }
                }
                for unit in 0..units {
                    dh[unit] += d_kept[unit] * resets[unit].0;
                    let dz_reset = (d_resets[unit] + d_kept[unit] * h[unit]) * resets[unit].1;
                    self.gates[units + unit] = dz_reset;
                    self.product(step, 1, unit, dz_reset, h, &mut dh);
                }
            }
            Cell::Rnn { activation } => {
                for (unit, &y) in after.iter().enumerate() {
                    let x = if cell.saves_gates() { step.sum(0, unit, h) } else { f64::NAN };
                    let slope = activation.derivative().map_or(0.0, |term| term.eval(x, f64::NAN, y));
                    let dz = self.h[unit] * slope;
                    self.gates[unit] = dz;
                    self.product(step, 0, unit, dz, h, &mut dh);
                }
            }
        }
        self.h = dh;
    }
}

/// The cell of an LSTM after a step, from the values of its gates.
fn advance(gates: &[f64], c: &mut [f64]) {
    let units = c.len();
    for (unit, cell) in c.iter_mut().enumerate() {
        let gate = |gate: usize| gates[gate * units + unit];
        *cell = gate(2) * *cell + gate(0) * gate(3);
    }
}

impl RecurrentGradient {
    /// The number of operands of the layer that are operands here: those in front of `y`.
    pub fn layer_operands(&self) -> usize {
        let cell = &self.recurrent.cell;
        2 + usize::from(cell.saves_gates()) + usize::from(cell.has_memory()) + usize::from(0 < cell.extras())
    }

    /// The number of the layer's operands that are absent: the gates.
    fn absent(&self) -> usize {
        usize::from(!self.recurrent.cell.saves_gates())
    }
}

impl Operator for RecurrentGradient {
    const NAME: &'static str = "recurrent_gradient";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let operands = self.layer_operands();
        let Some(y) = inputs.get(operands) else {
            refuse!("expected {operands} operands of the layer and its result first, got {} inputs", inputs.len());
        };
        let [seq, directions, batch, units] = y.shape[..] else {
            refuse!("the layer's result must have rank 4, got {}", y.shape);
        };
        let columns = directions.saturating_mul(units).saturating_mul(self.recurrent.cell.gates());
        let gates = TensorType::new(DType::F32, [seq, batch, columns]);
        let layer: Vec<&TensorType> = [&gates][..self.absent()].iter().chain(&inputs[..operands]).copied().collect();
        let results = self.recurrent.infer(&layer)?;
        if self.values && !self.recurrent.cell.gradient_follows_from_gates() {
            refuse!("the gradient of `{:?}` does not follow from the values of its gates", self.recurrent.cell);
        }
        let want: Vec<&TensorType> = results.iter().take(1).chain(&results).collect();
        if inputs[operands..] != want[..] {
            let print = |types: &[&TensorType]| types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ");
            refuse!("result and gradients must be {}, got {}", print(&want), print(&inputs[operands..]));
        }
        Ok(layer.into_iter().cloned().collect())
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let Recurrent { cell, direction } = &self.recurrent;
        let [seq, directions, batch, units] = inputs[self.layer_operands()].shape()[..] else {
            unreachable!("infer refuses other ranks")
        };
        // The operands of the layer in their order; absent gates are empty.
        let mut items: Vec<Vec<f64>> = inputs.iter().map(|input| input.to_f64()).collect();
        items.splice(0..0, vec![Vec::new(); self.absent()]);
        let operands = self.layer_operands() + self.absent();
        let (memory, extra) = match cell.has_memory() {
            true => (Some(3), items[..operands].get(4)),
            false => (None, items[..operands].get(3)),
        };
        let (gate_rows, extras) = (cell.gates() * units, cell.extras() * units);
        let mut out: Vec<Vec<f64>> = items[..operands].iter().map(|items| vec![0.0; items.len()]).collect();
        out[0] = vec![0.0; seq * batch * directions * gate_rows];
        for direction_ix in 0..directions {
            for row in 0..batch {
                let at = (direction_ix * batch + row) * units;
                let place = |step: usize| direction.position(direction_ix, step, seq);
                let gates_at = |step: usize| ((place(step) * batch + row) * directions + direction_ix) * gate_rows;
                let of_step = |step: usize| Step {
                    gates: if cell.saves_gates() { &items[0][gates_at(step)..][..gate_rows] } else { &[] },
                    weight: &items[1][direction_ix * gate_rows * units..][..gate_rows * units],
                    extra: extra.map_or(&[][..], |extra| &extra[direction_ix * extras..][..extras]),
                };
                let state_after =
                    |step: usize| &items[operands][place(step) * directions * batch * units + at..][..units];
                // The states before each step.
                let mut h = items[2][at..at + units].to_vec();
                let mut c = memory.map_or(vec![0.0; units], |ix| items[ix][at..at + units].to_vec());
                let mut before = Vec::new();
                for step in 0..seq {
                    before.push((h.clone(), c.clone()));
                    match cell.saves_gates() {
                        true if self.values => advance(of_step(step).gates, &mut c),
                        true => drop(of_step(step).apply(cell, &mut h, &mut c)),
                        false => {}
                    }
                    h.copy_from_slice(state_after(step));
                }
                let dh = items[operands + 2][at..at + units].to_vec();
                let dc = memory.map_or(vec![0.0; units], |_| items[operands + 3][at..at + units].to_vec());
                let (mut weight, mut extra) = (vec![0.0; gate_rows * units], vec![0.0; extras]);
                let mut gates = vec![0.0; gate_rows];
                let mut gradient =
                    RowGradient { h: dh, c: dc, gates: &mut gates, weight: &mut weight, extra: &mut extra };
                for step in (0..seq).rev() {
                    let dy = &items[operands + 1][place(step) * directions * batch * units + at..][..units];
                    gradient.h.iter_mut().zip(dy).for_each(|(h, dy)| *h += dy);
                    let (h, c) = &before[step];
                    gradient.step(self, &of_step(step), [h, c], state_after(step));
                    out[0][gates_at(step)..][..gate_rows].copy_from_slice(gradient.gates);
                }
                let RowGradient { h, c, .. } = gradient;
                out[2][at..at + units].copy_from_slice(&h);
                if let Some(ix) = memory {
                    out[ix][at..at + units].copy_from_slice(&c);
                }
                let sums = out[1][direction_ix * gate_rows * units..].iter_mut().zip(weight);
                sums.for_each(|(sum, part)| *sum += part);
                if 0 < extras {
                    let sums = out[operands - 1][direction_ix * extras..].iter_mut().zip(extra);
                    sums.for_each(|(sum, part)| *sum += part);
                }
            }
        }
        let gates = Shape::from([seq, batch, directions * gate_rows]);
        let others = inputs[1 - self.absent()..].iter().map(|input| input.shape().clone());
        let shapes = [gates].into_iter().chain(others);
        out.into_iter().zip(shapes).map(|(items, shape)| from_f64(shape, inputs[0].dtype(), items)).collect()
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_second()
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        // `[seq, batch, columns]`: the gradient of a row depends on all of its steps.
        let rank = output.shape.rank();
        let along =
            |axis: Along| -> OperandAxes { (0..rank).map(|at| if at == 1 { axis } else { Along::Whole }).collect() };
        let memories = usize::from(self.recurrent.cell.has_memory());
        let operands = self.layer_operands();
        let operand = |ix: usize| match ix + self.absent() {
            0 => along(Along::Same(1)),
            ix if (2..3 + memories).contains(&ix) => along(Along::Same(1)),
            ix if ix < operands + self.absent() => along(Along::Broadcast),
            ix if ix < operands + self.absent() + 2 => along(Along::Same(2)),
            _ => along(Along::Same(1)),
        };
        AxisMap { work: Work::Arithmetic, operands: (0..inputs.len()).map(operand).collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // The gates, or the gradient of the states of a cell with one gate: one factor or gradient for each element.
        let replaced = if self.recurrent.cell.saves_gates() { 0 } else { self.layer_operands() + 1 };
        Reuse::InPlace(smallvec![replaced])
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        let (y, cell) = (&inputs[self.layer_operands()].shape, &self.recurrent.cell);
        // The products for the weight and for the state, and the one that computes gates again.
        let products = 2 + usize::from(cell.saves_gates() && !self.values);
        (y.elements() * cell.gates() * (2 * products * y[3] + 8)) as u64
    }
}
