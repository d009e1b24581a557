//! AlexNet, the single-tower form (Krizhevsky 2014).

use ir::ValueId;

use super::Children;
use crate::{Builder, Window, ZooError};

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let pool = Window::square(3).stride(2);
    let x = conv(b, x, &names.next(), 64, Window::square(11).stride(4).pad(2))?;
    let x = b.max_pool(x, &names.next(), pool)?;
    let x = conv(b, x, &names.next(), 192, Window::square(5).centred())?;
    let x = b.max_pool(x, &names.next(), pool)?;
    let x = conv(b, x, &names.next(), 384, Window::square(3).centred())?;
    let x = conv(b, x, &names.next(), 256, Window::square(3).centred())?;
    let x = conv(b, x, &names.next(), 256, Window::square(3).centred())?;
    let x = b.max_pool(x, &names.next(), pool)?;
    let x = b.flatten(x, &names.next())?;
    classifier(b, x, names)
}

fn conv(b: &mut Builder, x: ValueId, name: &str, out: usize, window: Window) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, name, out, window)?;
    b.relu(x, &format!("{name}.act"))
}

/// Two wide layers with dropout behind them, and the classes.
pub(super) fn classifier(b: &mut Builder, x: ValueId, mut names: Children) -> Result<ValueId, ZooError> {
    let mut x = x;
    for _ in 0..2 {
        let name = names.next();
        x = b.linear(x, &name, 4096)?;
        x = b.relu(x, &format!("{name}.act"))?;
        names.skip();
    }
    b.linear(x, "output", 1000)
}
