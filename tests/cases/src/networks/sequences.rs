//! Networks over sequences: gated dilated convolutions, attention, recurrent layers, mixers.

use ir::ValueId;
use ir::ops::{Conv, Epilogue, LayerNorm, MatMul, Recurrent, Slice, Softmax};
use types::recurrent::{Cell, Direction, Reset};
use types::{Scope, Shape, Tensor, pointwise};

use super::Net;
use crate::{F, dims};

impl Net {
    /// Convolutions of one axis with growing dilation behind gates, whose results are summed.
    pub(super) fn waves(&mut self, full: bool) -> String {
        let width = self.pick(&[5, 12, 18]);
        let (length, layers) = if full { (2000, 8) } else { (self.between(40, 70), 3) };
        let x = self.graph.add_input("x", F, Shape::from([1, 1, length]));
        let mut x = self.conv_of_rows(x, width, 1, 1);
        let mut sum = None;
        for layer in 0..layers {
            let both = self.conv_of_rows(x, 2 * width, 2, 1 << layer);
            let [filter, gate] = [0, width].map(|start| {
                let slice = Slice::range(&self.graph.ty(both).shape, 1, start, width);
                self.add(slice, &[both])
            });
            let filter = self.unary(filter, pointwise::Unary::Tanh);
            let gate = self.unary(gate, pointwise::Unary::Sigmoid);
            let gated = self.product(filter, gate);
            let skip = self.conv_of_rows(gated, width + 3, 1, 1);
            sum = Some(sum.map_or(skip, |sum| self.sum(sum, skip)));
            let own = self.conv_of_rows(gated, width, 1, 1);
            x = self.sum(x, own);
        }
        let active = self.relu(sum.expect("it has layers"));
        let y = self.conv_of_rows(active, 9, 1, 1);
        self.output(y);
        format!("{layers} layers of width {width}, {length} samples")
    }

    /// A convolution of one axis that reads no later samples.
    fn conv_of_rows(&mut self, x: ValueId, out: usize, kernel: usize, dilation: usize) -> ValueId {
        let (weight, bias) = (self.weight(&[out, self.channels(x), kernel]), self.weight(&[out]));
        let conv = Conv {
            stride: dims(&[1]),
            dilation: dims(&[dilation]),
            pad: dims(&[[(kernel - 1) * dilation, 0]]),
            epilogue: Epilogue::bias(true),
            ..Conv::square(1, 0)
        };
        self.add(conv, &[x, weight, bias])
    }

    /// Attention and two products a layer, as exporters write them.
    pub(super) fn encoder(&mut self, full: bool) -> String {
        let (heads, each) = (self.pick(&[2, 3]), self.pick(&[5, 8, 12]));
        let (tokens, layers) = if full { (96, 4) } else { (self.between(7, 14), 1) };
        let width = heads * each;
        let mut x = self.graph.add_input("x", F, Shape::from([1, tokens, width]));
        for _ in 0..layers {
            let normal = self.layer_norm(x);
            let [queries, keys, values] = [[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]].map(|order| {
                let rows = self.linear(normal, width);
                let apart = self.reshape(rows, &[1, tokens, heads, each]);
                self.transpose(apart, &order)
            });
            let scores = self.add(MatMul::default(), &[queries, keys]);
            let scale = (each as f32).sqrt().recip();
            let scores = self.unary(scores, pointwise::Unary::Affine { scale, shift: 0.0 });
            let scores = self.add(Softmax { axis: 3, log: false }, &[scores]);
            let mixed = self.add(MatMul::default(), &[scores, values]);
            let mixed = self.transpose(mixed, &[0, 2, 1, 3]);
            let mixed = self.reshape(mixed, &[1, tokens, width]);
            let mixed = self.linear(mixed, width);
            x = self.sum(x, mixed);
            let normal = self.layer_norm(x);
            x = self.perceptron(normal, x, 3 * width + 1);
        }
        self.output(x);
        format!("{layers} layers of {heads} heads of {each}, {tokens} tokens")
    }

    /// Products along the tokens and along the channels.
    pub(super) fn mixer(&mut self, full: bool) -> String {
        let width = self.pick(&[7, 16, 22]);
        let (tokens, layers) = if full { (98, 4) } else { (self.between(9, 16), 2) };
        let mut x = self.graph.add_input("x", F, Shape::from([1, tokens, width]));
        for _ in 0..layers {
            let normal = self.layer_norm(x);
            let (across, along) = (self.transpose(normal, &[0, 2, 1]), self.transpose(x, &[0, 2, 1]));
            let mixed = self.perceptron(across, along, tokens + 5);
            x = self.transpose(mixed, &[0, 2, 1]);
            let normal = self.layer_norm(x);
            x = self.perceptron(normal, x, 4 * width);
        }
        self.output(x);
        format!("{layers} layers of width {width}, {tokens} tokens")
    }

    /// Recurrent layers and a classifier of their last states.
    pub(super) fn recurrent(&mut self, full: bool) -> String {
        let (units, batch) = (self.pick(&[5, 16, 21]), self.between(1, 3));
        let (steps, layers) = if full { (60, 3) } else { (self.between(4, 9), 2) };
        let cell = [Cell::LSTM, Cell::gru(Reset::BeforeProduct), Cell::Rnn { activation: pointwise::Unary::Tanh }]
            [self.between(0, 2)]
        .clone();
        let direction = [Direction::Forward, Direction::Bidirectional][self.between(0, 1)];
        let directions = direction.count();
        let mut x = self.graph.add_input("x", F, Shape::from([steps, batch, 9]));
        let mut last = x;
        for _ in 0..layers {
            let gates = self.linear(x, directions * cell.gates() * units);
            let weight = self.weight(&[directions, cell.gates() * units, units]);
            let zeros = Tensor::from_fn(Shape::from([directions, batch, units]), |_| 0.0f32);
            let state = self.graph.add_constant(&format!("state{}", self.nodes), zeros);
            let mut operands = vec![gates, weight, state];
            operands.extend(cell.has_memory().then_some(state));
            self.nodes += 1;
            let op = Recurrent { cell: cell.clone(), direction };
            let scope = Scope::new(&format!("recurrent{}", self.nodes));
            let results = self.graph.add(op.into(), &operands, scope).expect("a generated node is valid");
            let rows = self.transpose(results[0], &[0, 2, 1, 3]);
            x = self.reshape(rows, &[steps, batch, directions * units]);
            last = results[1];
        }
        let rows = self.transpose(last, &[1, 0, 2]);
        let rows = self.reshape(rows, &[batch, directions * units]);
        let scores = self.linear(rows, 7);
        let y = self.add(Softmax { axis: 1, log: false }, &[scores]);
        self.output(y);
        format!("{layers} {} of {units} units, {steps} steps of {batch}", cell.name())
    }

    /// Two products with a function between them, added to `skip`.
    fn perceptron(&mut self, x: ValueId, skip: ValueId, width: usize) -> ValueId {
        let out = *self.graph.ty(skip).shape.last().expect("it has columns");
        let wide = self.linear(x, width);
        let active = self.unary(wide, pointwise::Unary::Gelu);
        let narrow = self.linear(active, out);
        self.sum(skip, narrow)
    }

    fn layer_norm(&mut self, x: ValueId) -> ValueId {
        let width = *self.graph.ty(x).shape.last().expect("it has columns");
        let (scale, shift) = (self.weight(&[width]), self.weight(&[width]));
        let axis = self.graph.ty(x).shape.rank() - 1;
        self.add(LayerNorm { axis, epsilon: 1e-5, scale: true, shift: true }, &[x, scale, shift])
    }
}
