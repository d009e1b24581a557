//! `RNN`, the fused recurrent network in cuDNN's layout.

use ir::Refusal;
use ir::ops::{Concat, Slice};
use types::Shape;
use types::pointwise::Unary;
use types::recurrent::{Cell, Direction, Reset};

use crate::common::{Network, NodeResult, Operand, refuse};
use crate::mxnet::node::ImportedNode;

/// `data: [seq, batch, in]`, all parameters as one vector, initial states `[layers * d, batch, u]`.
///
/// Parameters: per layer and direction the weights of the input, `[g u, in]`, and of the state, `[g u, u]`; then per layer
/// and direction both biases, `[g u]`. Returns `[seq, batch, d u]`, and with `state_outputs` the last states.
pub(super) fn rnn(node: &mut ImportedNode) -> NodeResult {
    let dropout = node.float_or("p", 0.0)?;
    if node.is_training() && dropout != 0.0 && 1 < node.count("num_layers")? {
        refuse!("attribute `p` must be 0 in training, got {dropout}: dropout between layers is not supported");
    }
    node.ignore(&["lstm_state_clip_nan"]);
    for name in ["projection_size", "lstm_state_clip_min", "lstm_state_clip_max"] {
        if let Some(value) = node.float(name)? {
            refuse!("attribute `{name}` ({value}) is not supported");
        }
    }
    if node.flag("use_sequence_length")? {
        refuse!("attribute `use_sequence_length` is not supported");
    }
    // Gates of `Cell` by their position in MXNet: LSTM i, f, c, o; GRU r, z, n.
    let (cell, order): (Cell, &[usize]) = match node.text_or("mode", "") {
        "lstm" => (Cell::LSTM, &[0, 3, 1, 2]),
        "gru" => (Cell::gru(Reset::AfterProduct), &[1, 0, 2]),
        "rnn_tanh" => (Cell::Rnn { activation: Unary::Tanh }, &[0]),
        "rnn_relu" => (Cell::Rnn { activation: Unary::Relu }, &[0]),
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    let direction = if node.flag("bidirectional")? { Direction::Bidirectional } else { Direction::Forward };
    let (units, layers) = (node.count("state_size")?, node.count("num_layers")?);
    let with_states = node.flag("state_outputs")?;
    let [mut x, parameters, h] = node.inputs()?;
    let c = if cell.has_memory() { Some(node.input(3)?) } else { None };
    let &[seq, batch, mut inputs] = &node.shape(x)[..] else {
        refuse!("input must have rank 3, got {}", node.shape(x))
    };
    let directions = direction.count();
    let rows = cell.gates().saturating_mul(units);
    let weights = |inputs: usize| directions.saturating_mul(rows).saturating_mul(inputs.saturating_add(units));
    let first_bias = (1..layers)
        .fold(weights(inputs), |sum: usize, _| sum.saturating_add(weights(directions.saturating_mul(units))));
    let all = first_bias.saturating_add(layers.saturating_mul(directions).saturating_mul(2).saturating_mul(rows));
    if node.shape(parameters)[..] != [all] {
        refuse!("parameters must be a vector of {all} elements, got {}", node.shape(parameters));
    }
    let mut places = Positions { parameters, shape: node.shape(parameters), weight: 0, bias: first_bias };
    let (mut last_h, mut last_c) = (Vec::new(), Vec::new());
    for layer in 0..layers {
        let mut w = Vec::new();
        let mut r = Vec::new();
        for _ in 0..directions {
            w.push(places.weights(node, order, units, inputs)?);
            r.push(places.weights(node, order, units, units)?);
        }
        let mut biases = [Vec::new(), Vec::new()];
        for _ in 0..directions {
            for bias in &mut biases {
                bias.push(places.biases(node, order, units)?);
            }
        }
        let w = stacked(node, &w, Shape::from([1, rows, inputs]))?;
        let r = stacked(node, &r, Shape::from([1, rows, units]))?;
        let [input_bias, state_bias] = biases;
        let biases =
            [stacked(node, &input_bias, Shape::from([1, rows]))?, stacked(node, &state_bias, Shape::from([1, rows]))?];
        let h = states(node, h, layer * directions, directions)?;
        let c = match c {
            Some(c) => Some(states(node, c, layer * directions, directions)?),
            None => None,
        };
        let network =
            Network { cell: cell.clone(), direction, x, w, r, biases: Some(biases), h: Some(h), c, peepholes: None };
        let yielded = node.recurrent(network)?;
        // `[seq, d, batch, u]` to `[seq, batch, d u]`.
        let y = node.transpose(yielded[0], &[0, 2, 1, 3])?;
        inputs = directions * units;
        x = node.reshape(y, Shape::from([seq, batch, inputs]))?;
        last_h.push(yielded[1]);
        last_c.extend(yielded.get(2));
    }
    let mut outputs = vec![x];
    if with_states {
        for states in [last_h, last_c] {
            match states[..] {
                [] => {}
                [state] => outputs.push(state),
                _ => outputs.push(node.apply(Concat { axis: 0 }, &states)?),
            }
        }
    }
    Ok(outputs)
}

/// The position of the next parameters.
struct Positions {
    parameters: Operand,
    shape: Shape,
    weight: usize,
    bias: usize,
}

impl Positions {
    /// The next weights, with gates of `units` rows of `columns` permuted.
    fn part(
        &self,
        node: &mut ImportedNode,
        start: usize,
        order: &[usize],
        units: usize,
        columns: usize,
    ) -> Result<Operand, Refusal> {
        let size = units * columns;
        let mut gates = Vec::new();
        for gate in order {
            let slice = Slice::range(&self.shape, 0, start + gate * size, size);
            gates.push(node.apply_folded(slice, &[self.parameters])?);
        }
        match gates[..] {
            [gate] => Ok(gate),
            _ => node.apply_folded(Concat { axis: 0 }, &gates),
        }
    }

    fn weights(
        &mut self,
        node: &mut ImportedNode,
        order: &[usize],
        units: usize,
        columns: usize,
    ) -> Result<Operand, Refusal> {
        let part = self.part(node, self.weight, order, units, columns)?;
        self.weight += order.len() * units * columns;
        Ok(part)
    }

    fn biases(&mut self, node: &mut ImportedNode, order: &[usize], units: usize) -> Result<Operand, Refusal> {
        let part = self.part(node, self.bias, order, units, 1)?;
        self.bias += order.len() * units;
        Ok(part)
    }
}

/// Stacks the parts of all directions along their first axis, of extent 1.
fn stacked(node: &mut ImportedNode, parts: &[Operand], shape: Shape) -> Result<Operand, Refusal> {
    let mut shaped = Vec::new();
    for &part in parts {
        shaped.push(node.reshape(part, shape.clone())?);
    }
    match shaped[..] {
        [part] => Ok(part),
        _ => node.apply_folded(Concat { axis: 0 }, &shaped),
    }
}

/// The states of a layer.
fn states(node: &mut ImportedNode, all: Operand, first: usize, directions: usize) -> Result<Operand, Refusal> {
    let shape = node.shape(all);
    match shape.first() {
        Some(&count) if count == directions => Ok(all),
        Some(&count) if first + directions <= count => node.apply(Slice::range(&shape, 0, first, directions), &[all]),
        _ => refuse!("states must have one row per layer and direction, got shape {shape}"),
    }
}
