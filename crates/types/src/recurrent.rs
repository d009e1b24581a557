//! [`Cell`] and [`Direction`]: the recurrent networks, and the order in which they walk a sequence.

use serde::{Deserialize, Serialize};

use crate::pointwise::Unary;

/// One step: the state after it from the input's part of the gates, `x`, and the state before it, `h` (and `c`). `R` are
/// the recurrent weights of a gate; `*` is elementwise. Sources: Hochreiter & Schmidhuber 1997, Gers & Schmidhuber 2000
/// (peepholes), Cho et al. 2014, in ONNX's forms and orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Long short-term memory, with gates `i`, `o`, `f`, `c` and functions `f`, `g`, `h`:
    ///
    /// ```text
    /// i = f(x_i + h R_i + p_i * c)      f = f(x_f + h R_f + p_f * c)      g = g(x_c + h R_c)
    /// c' = f * c + i * g                o = f(x_o + h R_o + p_o * c')     h' = o * h(c')
    /// ```
    Lstm {
        /// `f`, `g` and `h`; usually the sigmoid, tanh and tanh.
        activation: [Unary; 3],
        /// Whether the gates see the cell through the weights `p`.
        peepholes: bool,
    },
    /// Gated recurrent unit, with gates `z`, `r`, `h` and functions `f`, `g`:
    ///
    /// ```text
    /// z = f(x_z + h R_z)    r = f(x_r + h R_r)    n = by `reset`    h' = (1 - z) * n + z * h
    /// ```
    Gru {
        /// `f` and `g`; usually the sigmoid and tanh.
        activation: [Unary; 2],
        /// How the reset gate enters the candidate.
        reset: Reset,
    },
    /// The simple recurrent network, `h' = f(x + h R)`.
    Rnn {
        /// `f`; usually tanh.
        activation: Unary,
    },
}

/// Where the reset gate `r` of a GRU enters its candidate `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    /// `n = g(x_h + (r * h) R_h)`.
    BeforeProduct,
    /// `n = g(x_h + r * (h R_h + b))`, with a separate bias `b`.
    AfterProduct,
}

impl Cell {
    /// The LSTM with the sigmoid and tanh.
    pub const LSTM: Cell = Cell::Lstm { activation: [Unary::Sigmoid, Unary::Tanh, Unary::Tanh], peepholes: false };

    /// The GRU with the sigmoid and tanh.
    pub fn gru(reset: Reset) -> Cell {
        Cell::Gru { activation: [Unary::Sigmoid, Unary::Tanh], reset }
    }

    /// The name in messages and labels.
    pub fn name(&self) -> &'static str {
        match self {
            Cell::Lstm { .. } => "lstm",
            Cell::Gru { .. } => "gru",
            Cell::Rnn { .. } => "rnn",
        }
    }

    /// The number of gates of a unit.
    pub fn gates(&self) -> usize {
        match self {
            Cell::Lstm { .. } => 4,
            Cell::Gru { .. } => 3,
            Cell::Rnn { .. } => 1,
        }
    }

    /// Whether it has a second state, `c`.
    pub fn has_memory(&self) -> bool {
        matches!(self, Cell::Lstm { .. })
    }

    /// Whether the backward pass needs the gates. The slope of the simple network's usual functions follows from its state.
    pub fn saves_gates(&self) -> bool {
        !matches!(self, Cell::Rnn { activation } if slope_follows(*activation))
    }

    /// Whether the backward pass needs no more of the gates than the values of their functions, as for an LSTM with the usual
    /// ones. Of a GRU that resets after the product, it would also need that product.
    pub fn gradient_follows_from_gates(&self) -> bool {
        matches!(self, Cell::Lstm { activation: [f, g, _], .. } if slope_follows(*f) && slope_follows(*g))
    }

    /// The number of further parameters of a unit: 3 for peepholes (of `i`, `o`, `f`), 1 for the candidate's bias
    /// of a GRU that resets after the product.
    pub fn extras(&self) -> usize {
        match self {
            Cell::Lstm { peepholes: true, .. } => 3,
            Cell::Gru { reset: Reset::AfterProduct, .. } => 1,
            _ => 0,
        }
    }
}

/// Whether the derivative of a function follows from its value.
fn slope_follows(function: Unary) -> bool {
    matches!(function, Unary::Relu | Unary::Sigmoid | Unary::Tanh)
}

/// The order in which a recurrent operator walks its sequence, as ONNX's attribute `direction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From first to last.
    Forward,
    /// From last to first.
    Reverse,
    /// Both, with weights of their own; the forward half comes first in weights and results.
    Bidirectional,
}

impl Direction {
    /// The number of directions: 1 or 2.
    pub fn count(self) -> usize {
        match self {
            Direction::Forward | Direction::Reverse => 1,
            Direction::Bidirectional => 2,
        }
    }

    /// The position in a sequence of length `seq` that direction `ix` visits at `step`.
    pub fn position(self, ix: usize, step: usize, seq: usize) -> usize {
        if self == Direction::Reverse || ix == 1 { seq - 1 - step } else { step }
    }
}
