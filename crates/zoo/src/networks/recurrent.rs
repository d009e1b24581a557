//! Recurrent layers from weights as MXNet keeps them: a matrix of the input and one of the state for each direction, a
//! row for each gate of each unit, and a bias for each matrix.

use ir::ops::Recurrent;
use ir::{Op, ValueId};
use types::recurrent::{Cell, Direction};
use types::{Scope, Shape, Tensor, TensorFunction};

use crate::builder::transposed;
use crate::{Builder, Init, ZooError};

/// The properties shared by the directions of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) cell: Cell,
    /// For each gate of ours, its place among MXNet's.
    pub(crate) order: &'static [usize],
    pub(crate) units: usize,
}

impl Layer {
    /// MXNet's LSTM has its gates in the order i, f, c, o.
    pub(crate) fn lstm(units: usize) -> Layer {
        Layer { cell: Cell::LSTM, order: &[0, 3, 1, 2], units }
    }

    fn rows(&self) -> usize {
        self.order.len() * self.units
    }
}

/// The weights of one direction, gates in MXNet's order.
pub(crate) struct DirectionWeights {
    /// `[g u, in]`
    input: Tensor,
    /// `[g u, u]`
    state: Tensor,
    /// `[g u]`, of the input's product and of the state's.
    biases: [Tensor; 2],
}

impl DirectionWeights {
    /// The parameters `{name}_i2h_weight` and so on.
    pub(crate) fn take(
        b: &mut Builder,
        name: &str,
        layer: &Layer,
        inputs: usize,
    ) -> Result<DirectionWeights, ZooError> {
        let (rows, units) = (layer.rows(), layer.units);
        let weight = |fan_in: usize| Init::Weight { fan_in };
        Ok(DirectionWeights {
            input: b.take(&format!("{name}_i2h_weight"), [rows, inputs], weight(inputs))?,
            state: b.take(&format!("{name}_h2h_weight"), [rows, units], weight(units))?,
            biases: [
                b.take(&format!("{name}_i2h_bias"), [rows], Init::Bias)?,
                b.take(&format!("{name}_h2h_bias"), [rows], Init::Bias)?,
            ],
        })
    }
}

/// A layer that walks both ways: `[steps, batch, in]` -> `[steps, batch, 2 u]`, forward states first.
///
/// `closed: [steps, batch, 1]` is 1 where a sentence has ended. There the backward direction's input gates are shut, so
/// that its state is still zero when it comes to the sentence's last word: sentences of different lengths in one batch are
/// walked as if each were alone. This is for an LSTM whose memory begins as zeros.
pub(crate) fn bidirectional(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    layer: &Layer,
    directions: &[DirectionWeights; 2],
    closed: Option<ValueId>,
) -> Result<ValueId, ZooError> {
    let shape = b.shape(x).clone();
    let (steps, batch, units) = (shape[0], shape[1], layer.units);
    let width = 2 * layer.rows();
    let input = transposed(&gates_in_order(layer, directions, |direction| &direction.input));
    let input = b.graph.add_weight(&format!("{name}_i2h_weight"), input);
    let state = gates_in_order(layer, directions, |direction| &direction.state);
    let state = derived(TensorFunction::Reshape(Shape::from([2, layer.rows(), units])), &[&state]);
    let state = b.graph.add_weight(&format!("{name}_h2h_weight"), state);
    let [i2h, h2h] = [0, 1].map(|which| {
        let bias = gates_in_order(layer, directions, |direction| &direction.biases[which]);
        let part = ["i2h", "h2h"][which];
        b.graph.add_weight(&format!("{name}_{part}_bias"), bias)
    });
    // Both biases are constants, and so is their sum.
    let bias = b.add(i2h, h2h, &format!("{name}_bias"))?;
    let mut gates = b.linear_with(x, input, bias, &format!("{name}_i2h"))?;
    if let Some(closed) = closed {
        // The sigmoid of this is 0 in f32.
        const SHUT: f32 = -1e4;
        let first = layer.rows();
        let shut =
            Tensor::from_fn(Shape::from([width]), |at| if (first..first + units).contains(&at) { SHUT } else { 0.0 });
        let shut = b.graph.add_constant(&format!("{name}_shut"), shut);
        let shut = b.multiply(closed, shut, &format!("{name}_closed"))?;
        gates = b.add(gates, shut, &format!("{name}_gates"))?;
    }
    let zeros =
        b.graph.add_constant(&format!("{name}_begin_state"), Tensor::full(Shape::from([2, batch, units]), 0.0f32));
    let mut operands = vec![gates, state, zeros];
    if layer.cell.has_memory() {
        operands.push(zeros);
    }
    let op = Op::from(Recurrent { cell: layer.cell.clone(), direction: Direction::Bidirectional });
    let scope = Scope::new(name);
    let outputs = b.graph.add(op, &operands, scope.clone()).map_err(|refusal| ZooError::Refused { scope, refusal })?;
    let y = b.transpose(outputs[0], &[0, 2, 1, 3], &format!("{name}_batch_first"))?;
    b.reshape(y, [steps, batch, 2 * units], &format!("{name}_concat"))
}

/// Layers one behind the other whose parameters are one vector, `{name}parameters`: for each layer and direction the
/// input's weights and the state's, and behind all of them for each layer and direction the two biases (MXNet's `RNN`).
pub(crate) fn fused(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    layer: &Layer,
    layers: usize,
) -> Result<ValueId, ZooError> {
    let (rows, units) = (layer.rows(), layer.units);
    let widths: Vec<usize> = (0..layers).map(|ix| if ix == 0 { b.shape(x)[2] } else { 2 * units }).collect();
    let weights: usize = widths.iter().map(|width| 2 * rows * (width + units)).sum();
    let flat =
        b.take(&format!("{name}parameters"), [weights + layers * 4 * rows], Init::Weight { fan_in: 2 * units })?;
    let (mut x, mut weight, mut bias) = (x, 0, weights);
    for (ix, width) in widths.into_iter().enumerate() {
        let directions = [0, 1].map(|_| DirectionWeights {
            input: cut(&flat, &mut weight, [rows, width]),
            state: cut(&flat, &mut weight, [rows, units]),
            biases: [cut(&flat, &mut bias, [rows]), cut(&flat, &mut bias, [rows])],
        });
        x = bidirectional(b, x, &format!("{name}_l{ix}"), layer, &directions, None)?;
    }
    Ok(x)
}

/// Takes the tensor at a position of a vector, which moves behind it.
fn cut(flat: &Tensor, at: &mut usize, shape: impl Into<Shape>) -> Tensor {
    let shape = shape.into();
    let part = derived(TensorFunction::Rows { first: *at, count: shape.elements() }, &[flat]);
    *at += shape.elements();
    derived(TensorFunction::Reshape(shape), &[&part])
}

/// The rows of both directions, gates in our order.
fn gates_in_order(
    layer: &Layer,
    directions: &[DirectionWeights; 2],
    part: impl Fn(&DirectionWeights) -> &Tensor,
) -> Tensor {
    let gate = |from: usize, of: &Tensor| {
        derived(TensorFunction::Rows { first: from * layer.units, count: layer.units }, &[of])
    };
    let gates: Vec<Tensor> = directions
        .iter()
        .flat_map(|direction| layer.order.iter().map(|&from| gate(from, part(direction))).collect::<Vec<_>>())
        .collect();
    derived(TensorFunction::Concat, &gates.iter().collect::<Vec<_>>())
}

fn derived(function: TensorFunction, operands: &[&Tensor]) -> Tensor {
    Tensor::derived(function, operands).expect("`ParameterSource::take` gives f32 of the shapes")
}
