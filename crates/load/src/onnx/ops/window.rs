//! [`Window`]: kernel, strides, dilations and padding of convolutions and pools.

use ir::Refusal;
use smallvec::SmallVec;

use crate::common::{counts, refuse};
use crate::onnx::node::ImportedNode;

/// A window over the spatial axes; each field has an entry per axis.
pub(super) struct Window {
    pub(super) kernel: SmallVec<[usize; 2]>,
    pub(super) stride: SmallVec<[usize; 2]>,
    pub(super) dilation: SmallVec<[usize; 2]>,
    pub(super) pad: Pad,
}

/// Padding, or the rule to compute it.
pub(super) enum Pad {
    Explicit(SmallVec<[[usize; 2]; 2]>),
    /// For an output of `input / stride` cells, rounded up; an odd cell is at the end.
    SameUpper,
    /// Likewise, with an odd cell at the beginning.
    SameLower,
}

impl Window {
    /// Reads the attributes. `kernel` is that of the weight, if there is one.
    pub(super) fn read(node: &ImportedNode, kernel: Option<&[usize]>) -> Result<Window, Refusal> {
        let given = node.ints("kernel_shape")?.map(|list| counts(&list, "kernel_shape")).transpose()?;
        let kernel: SmallVec<[usize; 2]> = match (kernel, given) {
            (Some(kernel), Some(given)) if given[..] != *kernel => {
                refuse!("attribute `kernel_shape` must be {kernel:?} as in the weight, got {given:?}")
            }
            (Some(kernel), _) => kernel.into(),
            (None, Some(given)) => given[..].into(),
            (None, None) => refuse!("attribute `kernel_shape` is missing"),
        };
        let spatial = kernel.len();
        if kernel.iter().fold(1, |cells: usize, &extent| cells.saturating_mul(extent.max(1))) > 1 << 30 {
            refuse!("attribute `kernel_shape`: {kernel:?} is not supported");
        }
        let steps = |name: &str| -> Result<SmallVec<[usize; 2]>, Refusal> {
            let Some(list) = node.ints(name)? else { return Ok(SmallVec::from_elem(1, spatial)) };
            let list = counts(&list, name)?;
            if list.len() != spatial || list.contains(&0) {
                refuse!("attribute `{name}` must have {spatial} positive numbers, got {list:?}");
            }
            Ok(list[..].into())
        };
        Ok(Window { stride: steps("strides")?, dilation: steps("dilations")?, pad: Pad::read(node, spatial)?, kernel })
    }

    /// Number of cells from the first to the last cell of the kernel, with dilation.
    pub(super) fn reach(&self, axis: usize) -> usize {
        self.kernel[axis].saturating_sub(1).saturating_mul(self.dilation[axis]).saturating_add(1)
    }

    /// The padding for these spatial extents.
    pub(super) fn pads(&self, extents: &[usize]) -> Result<SmallVec<[[usize; 2]; 2]>, Refusal> {
        let upper = match &self.pad {
            Pad::Explicit(pads) => return Ok(pads.clone()),
            Pad::SameUpper => true,
            Pad::SameLower => false,
        };
        if extents.len() != self.kernel.len() {
            refuse!("the window must have a number per spatial axis, got {} for {}", self.kernel.len(), extents.len());
        }
        let pad = |axis: usize| {
            let places = extents[axis].div_ceil(self.stride[axis]);
            let covered = places.saturating_sub(1).saturating_mul(self.stride[axis]).saturating_add(self.reach(axis));
            let total = covered.saturating_sub(extents[axis]);
            if upper { [total / 2, total - total / 2] } else { [total - total / 2, total / 2] }
        };
        Ok((0..extents.len()).map(pad).collect())
    }
}

impl Pad {
    fn read(node: &ImportedNode, spatial: usize) -> Result<Pad, Refusal> {
        let pads = node.ints("pads")?;
        match node.text_or("auto_pad", "NOTSET") {
            // Some exporters write the default as empty text.
            "NOTSET" | "" => {}
            "VALID" => return Ok(Pad::Explicit(SmallVec::from_elem([0, 0], spatial))),
            "SAME_UPPER" => return Ok(Pad::SameUpper),
            "SAME_LOWER" => return Ok(Pad::SameLower),
            other => refuse!("attribute `auto_pad`: `{other}` is not supported"),
        }
        let Some(pads) = pads else { return Ok(Pad::Explicit(SmallVec::from_elem([0, 0], spatial))) };
        let pads = counts(&pads, "pads")?;
        if pads.len() != 2 * spatial {
            refuse!("attribute `pads` must have two numbers per spatial axis, got {} for {spatial}", pads.len());
        }
        Ok(Pad::Explicit((0..spatial).map(|axis| [pads[axis], pads[spatial + axis]]).collect()))
    }
}
