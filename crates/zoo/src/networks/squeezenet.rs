//! SqueezeNet 1.0 and 1.1 (Iandola et al. 2016), as in torchvision; and 1.1 as its Caffe weights are run.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

/// One module of `features`, at its position there.
enum Module {
    Pool,
    /// Channels after squeezing; after expanding there are eight times as many.
    Fire(usize),
}
use Module::{Fire, Pool};

pub(crate) fn v1_0(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, "features.0", 96, Window::square(7).stride(2))?;
    let modules = [Pool, Fire(16), Fire(16), Fire(32), Pool, Fire(32), Fire(48), Fire(48), Fire(64), Pool, Fire(64)];
    network(b, x, &modules, Window::square(3).stride(2).ceil())
}

const MODULES_1_1: [Module; 11] =
    [Pool, Fire(16), Fire(16), Pool, Fire(32), Fire(32), Pool, Fire(48), Fire(48), Fire(64), Fire(64)];

pub(crate) fn v1_1(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, "features.0", 64, Window::square(3).stride(2))?;
    network(b, x, &MODULES_1_1, Window::square(3).stride(2).ceil())
}

/// Version 1.1 with pools that leave out a last window that is not full, as the port that its weights are from has it.
pub(crate) fn v1_1_full_pools(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, "features.0", 64, Window::square(3).stride(2))?;
    network(b, x, &MODULES_1_1, Window::square(3).stride(2))
}

fn network(b: &mut Builder, x: ValueId, modules: &[Module], pool: Window) -> Result<ValueId, ZooError> {
    let mut x = b.relu(x, "features.1")?;
    for (ix, module) in modules.iter().enumerate() {
        let name = format!("features.{}", ix + 2);
        x = match module {
            Pool => b.max_pool(x, &name, pool)?,
            Fire(squeeze) => fire(b, x, &name, *squeeze)?,
        };
    }
    let x = b.conv_bias(x, "classifier.1", 1000, Window::square(1))?;
    let x = b.relu(x, "classifier.2")?;
    b.global_mean(x, "classifier.3")
}

fn fire(b: &mut Builder, x: ValueId, name: &str, squeeze: usize) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, &format!("{name}.squeeze"), squeeze, Window::square(1))?;
    let x = b.relu(x, &format!("{name}.squeeze_activation"))?;
    let small = b.conv_bias(x, &format!("{name}.expand1x1"), 4 * squeeze, Window::square(1))?;
    let small = b.relu(small, &format!("{name}.expand1x1_activation"))?;
    let large = b.conv_bias(x, &format!("{name}.expand3x3"), 4 * squeeze, Window::square(3).centred())?;
    let large = b.relu(large, &format!("{name}.expand3x3_activation"))?;
    b.concat(&[small, large], &format!("{name}.concat"))
}
