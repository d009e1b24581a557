//! [`Epilogue`]: what is done to an output element while it is still in a register or in the nearest cache.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::Unary;

use crate::isa::Isa;
use crate::kernel::{Fit, Sizes, floats};
use crate::math;

/// `out = activation(result + bias + residual)`.
///
/// The operands follow the kernel's own in this order: bias, residual.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// Whether there is a bias operand; its extent is the kernel's to say.
    pub bias: bool,
    /// Whether there is a residual operand, of the output's shape. It may be in place.
    pub residual: bool,
    /// Functions that are applied one after the other.
    pub activation: SmallVec<[Unary; 2]>,
}

impl Epilogue {
    /// Appends the sizes of the epilogue's operands.
    pub(crate) fn push_sizes(&self, sizes: &mut Sizes, bias: usize) -> Fit<()> {
        if self.bias {
            sizes.inputs.push(floats(&[bias])?);
        }
        if self.residual {
            sizes.inputs.push(sizes.outputs[0]);
        }
        Ok(())
    }

    /// The number of the residual operand of a kernel with `own` operands.
    pub(crate) fn residual_input(&self, own: usize) -> Option<usize> {
        self.residual.then_some(own + usize::from(self.bias))
    }

    /// Applies the activation.
    #[inline]
    pub(crate) fn activate(&self, isa: Isa, items: &mut [f32]) {
        for &f in &self.activation {
            math::unary(isa, f, items);
        }
    }
}
