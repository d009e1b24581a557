//! AlexNet (Krizhevsky et al. 2012) without groups, its form of one tower (Krizhevsky 2014), and Overfeat's fast network
//! (Sermanet et al. 2014).

use ir::ValueId;
use ir::ops::Lrn;

use super::head;
use crate::{Builder, Window, ZooError};

/// Local response normalisation over 5 channels, as in the paper.
pub(super) const LRN: Lrn = Lrn { size: 5, alpha: 1e-4, beta: 0.75, bias: 2.0 };

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    tower(b, x, [96, 256, 384, 384, 256], true)
}

pub(crate) fn owt(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    tower(b, x, [64, 192, 384, 256, 256], false)
}

/// `normalize`: whether responses are normalised behind the first two convolutions.
fn tower(b: &mut Builder, x: ValueId, channels: [usize; 5], normalize: bool) -> Result<ValueId, ZooError> {
    let three = Window::square(3).centred();
    let windows = [Window::square(11).stride(4), Window::square(5).centred(), three, three, three];
    let mut x = x;
    for (number, (out, window)) in (1..).zip(channels.into_iter().zip(windows)) {
        x = conv(b, x, number, out, window)?;
        if normalize && number <= 2 {
            x = b.node(LRN, &[x], &format!("norm{number}"))?;
        }
        if [1, 2, 5].contains(&number) {
            x = b.max_pool(x, &format!("pool{number}"), Window::square(3).stride(2))?;
        }
    }
    let x = b.flatten(x, "flatten0")?;
    classifier(b, x, [4096, 4096])
}

pub(crate) fn overfeat(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let three = Window::square(3).centred();
    let windows = [Window::square(11).stride(4), Window::square(5), three, three, three];
    let mut x = x;
    for (number, (out, window)) in (1..).zip([96, 256, 512, 1024, 1024].into_iter().zip(windows)) {
        x = conv(b, x, number, out, window)?;
        if [1, 2, 5].contains(&number) {
            x = b.max_pool(x, &format!("pool{number}"), Window::square(2).stride(2))?;
        }
    }
    let x = b.flatten(x, "flatten0")?;
    classifier(b, x, [3072, 4096])
}

fn conv(b: &mut Builder, x: ValueId, number: usize, out: usize, window: Window) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, &format!("conv{number}"), out, window)?;
    b.relu(x, &format!("relu{number}"))
}

/// Layers 6 and 7, and the classes.
pub(super) fn classifier(b: &mut Builder, x: ValueId, widths: [usize; 2]) -> Result<ValueId, ZooError> {
    let mut x = x;
    for (number, width) in (6..).zip(widths) {
        x = b.linear(x, &format!("fc{number}"), width)?;
        x = b.relu(x, &format!("relu{number}"))?;
    }
    head(b, x, 0, 1000)
}
