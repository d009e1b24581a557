//! Recurrent networks: one matrix product for the inputs of all gates and steps, then one op for the recurrence.

use ir::{Refusal, ops};
use types::Shape;
use types::pointwise::Binary;
use types::recurrent::{Cell, Direction, Reset};

use super::{ImportedNode, NodeResult, Operand, refuse};

/// A network and its weights, gates in the order of [`Cell`]. All `f32`.
pub(crate) struct Network {
    pub(crate) cell: Cell,
    pub(crate) direction: Direction,
    /// `[seq, batch, in]`
    pub(crate) x: Operand,
    /// `[d, g u, in]`, weights of the input.
    pub(crate) w: Operand,
    /// `[d, g u, u]`, weights of the state.
    pub(crate) r: Operand,
    /// `[d, g u]` each, biases of the input product and of the state product.
    pub(crate) biases: Option<[Operand; 2]>,
    /// The initial state `[d, batch, u]`; zeros if absent.
    pub(crate) h: Option<Operand>,
    /// The initial memory of an LSTM, likewise.
    pub(crate) c: Option<Operand>,
    /// `[d, 3 u]`, if the cell has them.
    pub(crate) peepholes: Option<Operand>,
}

struct Sizes {
    seq: usize,
    batch: usize,
    inputs: usize,
    units: usize,
    directions: usize,
    /// Rows of the weights of one direction.
    rows: usize,
}

impl Network {
    fn sizes<N>(&self, node: &ImportedNode<N>) -> Result<Sizes, Refusal> {
        let [x, w, r] = [self.x, self.w, self.r].map(|operand| node.shape(operand));
        let ([seq, batch, inputs], [_, _, units]) = (&x[..], &r[..]) else {
            refuse!("input and recurrent weights must have rank 3, got {x} and {r}");
        };
        let (directions, rows) = (self.direction.count(), self.cell.gates().saturating_mul(*units));
        for (got, want) in
            [(w, Shape::from([directions, rows, *inputs])), (r.clone(), Shape::from([directions, rows, *units]))]
        {
            if got != want {
                refuse!("weights must have shape {want}, got {got}");
            }
        }
        Ok(Sizes { seq: *seq, batch: *batch, inputs: *inputs, units: *units, directions, rows })
    }
}

impl<N> ImportedNode<'_, N> {
    /// The states of all steps `[seq, d, batch, u]`, the last states `[d, batch, u]`, and the last memory of an LSTM.
    pub(crate) fn recurrent(&mut self, network: Network) -> NodeResult {
        let sizes = network.sizes(self)?;
        let (bias, own) = self.joined_biases(&network, &sizes)?;
        let mut operands = vec![self.input_product(&network, &sizes, bias)?, network.r];
        operands.push(self.initial_state(&sizes, network.h)?);
        if network.cell.has_memory() {
            operands.push(self.initial_state(&sizes, network.c)?);
        }
        operands.extend(network.peepholes);
        operands.extend(own);
        self.apply_all(ops::Recurrent { cell: network.cell, direction: network.direction }, &operands)
    }

    /// The bias of the input product `[d g u]`, and the bias of a GRU candidate that is applied after its product, `[d, u]`.
    /// Both biases are added to the input product unless the GRU resets after the product.
    fn joined_biases(
        &mut self,
        network: &Network,
        sizes: &Sizes,
    ) -> Result<(Option<Operand>, Option<Operand>), Refusal> {
        let (directions, units, rows) = (sizes.directions, sizes.units, sizes.rows);
        let apart = matches!(network.cell, Cell::Gru { reset: Reset::AfterProduct, .. });
        let zeros = |node: &mut Self| node.constant_of([directions, units], |_| 0.0f32);
        let Some([input, mut recurrent]) = network.biases else {
            return Ok((None, if apart { Some(zeros(self)?) } else { None }));
        };
        let shape = Shape::from([directions, rows]);
        if [input, recurrent].iter().any(|&bias| self.shape(bias) != shape) {
            refuse!("biases must have shape {shape}, got {} and {}", self.shape(input), self.shape(recurrent));
        }
        let mut own = None;
        if apart {
            own = Some(self.apply_folded(ops::Slice::range(&shape, 1, rows - units, units), &[recurrent])?);
            let first = self.apply_folded(ops::Slice::range(&shape, 1, 0, rows - units), &[recurrent])?;
            let zeros = zeros(self)?;
            recurrent = self.apply_folded(ops::Concat { axis: 1 }, &[first, zeros])?;
        }
        let sum = self.apply_folded(ops::Binary(Binary::Add), &[input, recurrent])?;
        Ok((Some(self.reshape(sum, Shape::from([directions * rows]))?), own))
    }

    /// `X W' + bias` for all steps and directions at once, `[seq, batch, d g u]`.
    fn input_product(&mut self, network: &Network, sizes: &Sizes, bias: Option<Operand>) -> Result<Operand, Refusal> {
        let rows = sizes.directions * sizes.rows;
        let w = self.reshape(network.w, Shape::from([rows, sizes.inputs]))?;
        let w = self.transpose(w, &[1, 0])?;
        let x = self.reshape(network.x, Shape::from([sizes.seq * sizes.batch, sizes.inputs]))?;
        let epilogue = ops::Epilogue::bias(bias.is_some());
        let factors: Vec<Operand> = [x, w].into_iter().chain(bias).collect();
        let gates = self.apply(ops::MatMul { epilogue, ..ops::MatMul::default() }, &factors)?;
        self.reshape(gates, Shape::from([sizes.seq, sizes.batch, rows]))
    }

    fn initial_state(&mut self, sizes: &Sizes, state: Option<Operand>) -> Result<Operand, Refusal> {
        if let Some(state) = state {
            return Ok(state);
        }
        self.constant_of([sizes.directions, sizes.batch, sizes.units], |_| 0.0f32)
    }
}
