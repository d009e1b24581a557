//! Deep Speech 2 (Amodei et al. 2016) as the suite has it: two convolutions, three bidirectional recurrent layers of 2048
//! units with relu, and one set of classes a step. Its softmax has a row for each step and sentence; CTC is not part of it.

use ir::ValueId;
use types::pointwise::Unary;
use types::recurrent::Cell;

use super::{EPSILON, head};
use crate::networks::recurrent::{self, Layer};
use crate::{Builder, Window, ZooError};

/// The alphabet's pairs of letters, and the blank.
const CLASSES: usize = 29 * 29 + 1;

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let x = conv(b, x, "conv0", Window::cells(11, 41).strides(3, 2).pads(5, 20))?;
    let x = conv(b, x, "conv1", Window::cells(11, 21).strides(1, 2).pads(5, 10))?;
    let shape = b.shape(x).clone();
    // The suite reinterprets the bytes as [steps, batch, features]; above batch 1 it mixes sentences.
    let (batch, steps) = (shape[0], shape[2]);
    let x = b.reshape(x, [steps, batch, shape[1] * shape[3]], "reshape0")?;
    let cell = Cell::Rnn { activation: Unary::Relu };
    let layer = Layer { cell, order: &[0], units: 2048 };
    let x = recurrent::fused(b, x, "rnn", &layer, 3)?;
    let x = b.reshape(x, [steps * batch, 2 * layer.units], "reshape1")?;
    head(b, x, 0, CLASSES)
}

fn conv(b: &mut Builder, x: ValueId, name: &str, window: Window) -> Result<ValueId, ZooError> {
    let x = b.conv(x, &format!("{name}_conv"), 32, window)?;
    let x = b.batch_norm_with(x, &format!("{name}_bn"), EPSILON)?;
    b.relu(x, &format!("{name}_act"))
}
