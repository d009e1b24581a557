//! [`Insert`]: an operand copied into a part of another.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes};
use crate::movement::copy::Copy;
use crate::movement::pieces::copy_items;
use crate::threads::Pool;

/// The second operand, which may be in place, with the elements of the first copied over some of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Insert {
    /// The copy of the first operand.
    pub copy: Copy,
}

impl KernelFn for Insert {
    const NAME: &'static str = "insert";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let mut sizes = self.copy.sizes()?;
        sizes.inputs.push(sizes.outputs[0]);
        Ok(sizes)
    }

    fn alignment(&self, input: Option<usize>) -> usize {
        self.copy.alignment(input)
    }

    fn may_share(&self, input: usize) -> bool {
        input == 1
    }

    fn run(&self, args: Args, pool: &Pool) {
        if let Operand::Bytes(whole) = args.inputs[1] {
            copy_items(whole, args.outputs[0]);
        }
        self.copy.run(Args { inputs: &args.inputs[..1], ..args }, pool);
    }
}
