//! The network for handwritten digits of FASRC's page on MXNet: two convolutions and two linear layers, each with tanh, also
//! behind the last. Named as gluon's export of it.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let halved = Window::square(2).stride(2);
    let x = b.conv_bias(x, "conv0", 20, Window::square(5))?;
    let x = b.tanh(x, "tanh0")?;
    let x = b.max_pool(x, "pool0", halved)?;
    let x = b.conv_bias(x, "conv1", 50, Window::square(5))?;
    let x = b.tanh(x, "tanh1")?;
    let x = b.max_pool(x, "pool1", halved)?;
    let x = b.flatten(x, "flatten")?;
    let x = b.linear(x, "dense0", 500)?;
    let x = b.tanh(x, "tanh2")?;
    let x = b.linear(x, "dense1", 10)?;
    b.tanh(x, "tanh3")
}
