//! [`Recurrent`]: LSTM, GRU and plain recurrent layers.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::recurrent::{Cell, Direction, Reset};
use types::{DType, Shape, Tensor};

use super::RecurrentGradient;
use super::common::{arity, f32_only, from_f64, product};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Runs a cell over a sequence: LSTM, GRU or the plain recurrent network ([`Cell`] has their formulas).
///
/// `gates` holds the input's contribution to all gates. It does not depend on the state, so one `MatMul` computes it for all
/// steps. With `d` directions, `g` gates (in the order of [`Cell`]) and `u` units:
///
/// - `gates: [seq, batch, d g u]`, including all biases that are added before the functions;
/// - `weight: [d, g u, u]`, the recurrent weights, a row for each gate of each unit;
/// - `h: [d, batch, u]`, the state before the first step, and for an LSTM `c` of the same shape;
/// - by [`Cell::extras`]: peepholes `[d, 3 u]` of `i`, `o`, `f`, or the candidate's bias `[d, u]`.
///
/// Yields `y: [seq, d, batch, u]`, the state after each step, then the last states `h: [d, batch, u]` and for an LSTM `c`.
/// All `f32`. Refuses operands of other shapes. Source: ONNX `LSTM`, `GRU` and `RNN`, whose `clip`, `input_forget` and
/// sequences of different lengths in one batch are not part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recurrent {
    /// The function of a step.
    pub cell: Cell,
    /// The direction of the sequence.
    pub direction: Direction,
}

/// One row of a batch at one step of one direction.
pub(super) struct Step<'a> {
    /// The input's contribution to the gates, `[g, u]`.
    pub(super) gates: &'a [f64],
    /// Recurrent weights, `[g, u, u]`.
    pub(super) weight: &'a [f64],
    /// Peepholes or the candidate's bias.
    pub(super) extra: &'a [f64],
}

impl Step<'_> {
    /// `h R` of a gate's unit.
    pub(super) fn product(&self, gate: usize, unit: usize, h: &[f64]) -> f64 {
        let row = &self.weight[(gate * h.len() + unit) * h.len()..];
        h.iter().zip(row).map(|(item, weight)| item * weight).sum()
    }

    /// `x + h R` of a gate's unit.
    pub(super) fn sum(&self, gate: usize, unit: usize, h: &[f64]) -> f64 {
        self.gates[gate * h.len() + unit] + self.product(gate, unit, h)
    }

    /// Replaces the state by the state after the step; `c` is used by an LSTM only. Returns the values of the gates' functions,
    /// `[g, u]`.
    pub(super) fn apply(&self, cell: &Cell, h: &mut [f64], c: &mut [f64]) -> Vec<f64> {
        let units = h.len();
        let old = h.to_vec();
        let mut values = vec![0.0; cell.gates() * units];
        match cell {
            Cell::Lstm { activation: [f, g, out], .. } => {
                let peephole =
                    |gate: usize, unit: usize| self.extra.get(gate * units + unit).copied().unwrap_or_default();
                for unit in 0..units {
                    let input = f.eval(self.sum(0, unit, &old) + peephole(0, unit) * c[unit]);
                    let forget = f.eval(self.sum(2, unit, &old) + peephole(2, unit) * c[unit]);
                    let new = g.eval(self.sum(3, unit, &old));
                    c[unit] = forget * c[unit] + input * new;
                    let output = f.eval(self.sum(1, unit, &old) + peephole(1, unit) * c[unit]);
                    h[unit] = output * out.eval(c[unit]);
                    for (gate, value) in [input, output, forget, new].into_iter().enumerate() {
                        values[gate * units + unit] = value;
                    }
                }
            }
            Cell::Gru { activation: [f, g], reset } => {
                let reset_gate: Vec<f64> = (0..units).map(|unit| f.eval(self.sum(1, unit, &old))).collect();
                let kept: Vec<f64> = old.iter().zip(&reset_gate).map(|(item, gate)| item * gate).collect();
                for unit in 0..units {
                    let sum = match reset {
                        Reset::BeforeProduct => self.sum(2, unit, &kept),
                        Reset::AfterProduct => {
                            let product = self.product(2, unit, &old) + self.extra[unit];
                            self.gates[2 * units + unit] + reset_gate[unit] * product
                        }
                    };
                    let (update, new) = (f.eval(self.sum(0, unit, &old)), g.eval(sum));
                    h[unit] = (1.0 - update) * new + update * old[unit];
                    for (gate, value) in [update, reset_gate[unit], new].into_iter().enumerate() {
                        values[gate * units + unit] = value;
                    }
                }
            }
            Cell::Rnn { activation } => {
                (0..units).for_each(|unit| h[unit] = activation.eval(self.sum(0, unit, &old)));
                values.copy_from_slice(h);
            }
        }
        values
    }
}

impl Recurrent {
    /// Evaluates the layer. `visit` gets the values of the gates' functions of each step and row, and where they are in
    /// `gates`.
    pub(super) fn walk(&self, inputs: &[&Tensor], mut visit: impl FnMut(usize, &[f64])) -> SmallVec<[Tensor; 1]> {
        let shape = inputs[0].shape();
        let (seq, batch, units) = (shape[0], shape[1], inputs[1].shape()[2]);
        let (directions, n_gates) = (self.direction.count(), self.cell.gates());
        let (gates, weight, mut h) = (inputs[0].to_f64(), inputs[1].to_f64(), inputs[2].to_f64());
        // Cells without a memory have one of zeros.
        let (mut c, extra) = match self.cell.has_memory() {
            true => (inputs[3].to_f64(), inputs.get(4)),
            false => (vec![0.0; h.len()], inputs.get(3)),
        };
        let extra = extra.map(|extra| extra.to_f64()).unwrap_or_default();
        let (gate_rows, extras) = (n_gates * units, self.cell.extras() * units);
        let mut y = vec![0.0; seq * h.len()];
        for step in 0..seq {
            for direction in 0..directions {
                let position = self.direction.position(direction, step, seq);
                for row in 0..batch {
                    let first = ((position * batch + row) * directions + direction) * gate_rows;
                    let of_row = Step {
                        gates: &gates[first..][..gate_rows],
                        weight: &weight[direction * gate_rows * units..][..gate_rows * units],
                        extra: &extra[direction * extras..][..extras],
                    };
                    let at = (direction * batch + row) * units;
                    let states = (&mut h[at..at + units], &mut c[at..at + units]);
                    visit(first, &of_row.apply(&self.cell, states.0, states.1));
                    y[position * directions * batch * units + at..][..units].copy_from_slice(&h[at..at + units]);
                }
            }
        }
        let state = inputs[2].shape();
        let mut outputs: SmallVec<[Tensor; 1]> = smallvec![
            from_f64(Shape::from([seq, directions, batch, units]), inputs[0].dtype(), y),
            from_f64(state.clone(), inputs[0].dtype(), h)
        ];
        if self.cell.has_memory() {
            outputs.push(from_f64(state.clone(), inputs[0].dtype(), c));
        }
        outputs
    }
}

impl Operator for Recurrent {
    const NAME: &'static str = "recurrent";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let (directions, n_gates) = (self.direction.count(), self.cell.gates());
        let (memories, extras) = (usize::from(self.cell.has_memory()), self.cell.extras());
        arity(inputs, 3 + memories + usize::from(0 < extras))?;
        f32_only(inputs)?;
        let ([seq, batch, columns], [_, rows, units]) = (&inputs[0].shape[..], &inputs[1].shape[..]) else {
            refuse!("gates and weights must have rank 3, got {} and {}", inputs[0].shape, inputs[1].shape);
        };
        let wide = units.checked_mul(n_gates).and_then(|rows| rows.checked_mul(directions));
        if inputs[1].shape[0] != directions || rows.checked_mul(directions) != wide || Some(*columns) != wide {
            refuse!(
                "gates and weights must have extents for {directions} directions of {n_gates} gates, got {} and {}",
                inputs[0].shape,
                inputs[1].shape
            );
        }
        let state = Shape::from([directions, *batch, *units]);
        if let Some(other) = inputs[2..3 + memories].iter().find(|ty| ty.shape != state) {
            refuse!("an initial state must have shape {state}, got {}", other.shape);
        }
        if let Some(extra) = inputs.get(3 + memories)
            && extra.shape[..] != [directions, extras * units]
        {
            let name = if self.cell.has_memory() { "peepholes" } else { "the candidate's bias" };
            refuse!("{name} must have shape [{directions},{}], got {}", extras * units, extra.shape);
        }
        let state = TensorType { dtype: DType::F32, shape: state };
        let y = TensorType::new(DType::F32, [*seq, directions, *batch, *units]);
        Ok([y].into_iter().chain(vec![state; 1 + memories]).collect())
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        self.walk(inputs, |_, _| {})
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let first = usize::from(!self.cell.saves_gates());
        let mut operands: Vec<ValueId> = (first..backward.operands()).map(|ix| backward.operand(ix)).collect();
        operands.push(backward.result(0));
        for (ix, &gradient) in outputs.iter().enumerate() {
            operands.push(backward.or_zeros(gradient, ix));
        }
        let gradients = backward.add_all(RecurrentGradient { recurrent: self.clone(), values: false }, &operands)?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn axes(&self, inputs: &[&TensorType], _output: &TensorType) -> AxisMap {
        // `[seq, direction, batch, unit]`: a state depends on all earlier steps and on all units.
        let axes =
            |direction, batch| -> OperandAxes { [Along::Whole, direction, batch, Along::Whole].into_iter().collect() };
        let (gates, state) = (axes(Along::Whole, Along::Same(1)), axes(Along::Same(0), Along::Same(1)));
        let parameter = axes(Along::Same(0), Along::Broadcast);
        let states = 1 + usize::from(self.cell.has_memory());
        let operands = (0..inputs.len()).map(|ix| match ix {
            0 => gates.clone(),
            ix if (2..2 + states).contains(&ix) => state.clone(),
            _ => parameter.clone(),
        });
        AxisMap { work: Work::Arithmetic, operands: operands.collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let (units, n_gates) = (inputs[1].shape[2], self.cell.gates());
        // Each gate of a unit: its product, an addition, a function, and about one operation to update the state.
        product([outputs[0].shape.elements(), n_gates, 2 * units + 3])
    }
}

#[cfg(test)]
mod tests {
    use types::pointwise::Unary;

    use super::*;

    fn tensor(shape: &[usize], items: &[f32]) -> Tensor {
        Tensor::new(Shape::from(shape), items.to_vec()).expect("as many elements as the shape has")
    }

    /// One unit, two steps, both directions, by hand: `h' = x + h w`.
    #[test]
    fn both_directions_match_hand_computed_states() {
        let op = Recurrent { cell: Cell::Rnn { activation: Unary::Abs }, direction: Direction::Bidirectional };
        let gates = tensor(&[2, 1, 2], &[1.0, 10.0, 2.0, 20.0]);
        let (weight, h) = (tensor(&[2, 1, 1], &[3.0, 0.5]), tensor(&[2, 1, 1], &[1.0, 2.0]));
        let got = op.eval(&[&gates, &weight, &h]);
        assert_eq!(got[0].to_f64(), [4.0, 20.5, 14.0, 21.0]);
        assert_eq!(got[1].to_f64(), [14.0, 20.5]);
    }

    #[test]
    fn operands_of_other_shapes_are_refused() {
        let op = Recurrent { cell: Cell::LSTM, direction: Direction::Forward };
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let fits = [ty(&[5, 2, 12]), ty(&[1, 12, 3]), ty(&[1, 2, 3]), ty(&[1, 2, 3])];
        let outputs = op.infer(&fits.iter().collect::<Vec<_>>()).expect("they fit");
        let shapes: Vec<String> = outputs.iter().map(|ty| ty.shape.to_string()).collect();
        assert_eq!(shapes, ["[5,1,2,3]", "[1,2,3]", "[1,2,3]"]);
        for ix in 0..fits.len() {
            for wrong in [&[5, 2, 13][..], &[1, 12, 4], &[2, 2, 3], &[2, 3]] {
                let mut types: Vec<TensorType> = fits.to_vec();
                types[ix] = ty(wrong);
                assert!(op.infer(&types.iter().collect::<Vec<_>>()).is_err(), "operand {ix} of {wrong:?}");
            }
        }
        assert!(op.infer(&fits[..3].iter().collect::<Vec<_>>()).is_err(), "no cell");
    }
}
