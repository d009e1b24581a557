//! SqueezeNet 1.0 and 1.1 (Iandola et al. 2016).

use ir::ValueId;

use super::Children;
use crate::{Builder, Window, ZooError};

/// A module behind the first convolution.
enum Module {
    Pool,
    /// Channels after squeezing; each of the two expansions has four times as many.
    Fire(usize),
}
use Module::{Fire, Pool};

pub(crate) fn v1_0(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let modules = [Pool, Fire(16), Fire(16), Fire(32), Pool, Fire(32), Fire(48), Fire(48), Fire(64), Pool, Fire(64)];
    network(b, x, 96, Window::square(7).stride(2), &modules)
}

pub(crate) fn v1_1(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let modules = [Pool, Fire(16), Fire(16), Pool, Fire(32), Fire(32), Pool, Fire(48), Fire(48), Fire(64), Fire(64)];
    network(b, x, 64, Window::square(3).stride(2), &modules)
}

fn network(b: &mut Builder, x: ValueId, stem: usize, window: Window, modules: &[Module]) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let x = b.conv_bias(x, &names.next(), stem, window)?;
    let mut x = b.relu(x, &names.next())?;
    for module in modules {
        let name = names.next();
        x = match module {
            Pool => b.max_pool(x, &name, Window::square(3).stride(2).ceil())?,
            Fire(squeeze) => {
                let x = conv(b, x, &format!("{name}.0"), *squeeze, Window::square(1))?;
                let small = conv(b, x, &format!("{name}.1.0"), 4 * squeeze, Window::square(1))?;
                let large = conv(b, x, &format!("{name}.1.1"), 4 * squeeze, Window::square(3).centred())?;
                b.concat(&[small, large], &format!("{name}.concat"))?
            }
        };
    }
    let x = b.conv_bias(x, "output.0", 1000, Window::square(1))?;
    let x = b.relu(x, "output.1")?;
    let x = b.mean_pool(x, "output.2", Window::square(13).stride(13))?;
    b.flatten(x, "output.3")
}

fn conv(b: &mut Builder, x: ValueId, name: &str, out: usize, window: Window) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, &format!("{name}.0"), out, window)?;
    b.relu(x, &format!("{name}.1"))
}
