//! [`Window`]: kernel, strides, dilations and padding, as convolutions and pools share them.

use ir::Refusal;
use smallvec::SmallVec;

use crate::common::{counts, refuse};
use crate::onnx::node::ImportedNode;

/// A window over the spatial dimensions; one entry a dimension in each field.
pub(super) struct Window {
    pub(super) kernel: SmallVec<[usize; 2]>,
    pub(super) stride: SmallVec<[usize; 2]>,
    pub(super) dilation: SmallVec<[usize; 2]>,
    pub(super) pad: Pad,
}

/// Padding, or the rule that it follows from.
pub(super) enum Pad {
    Explicit(SmallVec<[[usize; 2]; 2]>),
    /// As much that the output has `input / stride` cells, rounded up; an odd cell stands behind.
    SameUpper,
    /// The same with an odd cell in front.
    SameLower,
}

impl Window {
    /// Reads the attributes. `kernel` is the weight's, where there is one.
    pub(super) fn read(node: &ImportedNode, kernel: Option<&[usize]>) -> Result<Window, Refusal> {
        let given = node.ints("kernel_shape")?.map(|list| counts(&list, "kernel_shape")).transpose()?;
        let kernel: SmallVec<[usize; 2]> = match (kernel, given) {
            (Some(kernel), Some(given)) if given[..] != *kernel => {
                refuse!("attribute `kernel_shape` is {given:?}, but the weight has {kernel:?}")
            }
            (Some(kernel), _) => kernel.into(),
            (None, Some(given)) => given[..].into(),
            (None, None) => refuse!("attribute `kernel_shape` is missing"),
        };
        let spatial = kernel.len();
        if kernel.iter().fold(1, |cells: usize, &extent| cells.saturating_mul(extent.max(1))) > 1 << 30 {
            refuse!("attribute `kernel_shape` is {kernel:?}");
        }
        let steps = |name: &str| -> Result<SmallVec<[usize; 2]>, Refusal> {
            let Some(list) = node.ints(name)? else { return Ok(SmallVec::from_elem(1, spatial)) };
            let list = counts(&list, name)?;
            if list.len() != spatial || list.contains(&0) {
                refuse!("attribute `{name}` is {list:?}; it has a positive number for each of {spatial} dimensions");
            }
            Ok(list[..].into())
        };
        Ok(Window { stride: steps("strides")?, dilation: steps("dilations")?, pad: Pad::read(node, spatial)?, kernel })
    }

    /// Cells between the first and the last that the kernel covers, both included.
    pub(super) fn reach(&self, axis: usize) -> usize {
        self.kernel[axis].saturating_sub(1).saturating_mul(self.dilation[axis]).saturating_add(1)
    }

    /// The padding for an input with these spatial extents.
    pub(super) fn pads(&self, extents: &[usize]) -> Result<SmallVec<[[usize; 2]; 2]>, Refusal> {
        let upper = match &self.pad {
            Pad::Explicit(pads) => return Ok(pads.clone()),
            Pad::SameUpper => true,
            Pad::SameLower => false,
        };
        if extents.len() != self.kernel.len() {
            refuse!("a window of {} dimensions does not slide over {}", self.kernel.len(), extents.len());
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
            // Some exporters write the default as an empty text.
            "NOTSET" | "" => {}
            "VALID" => return Ok(Pad::Explicit(SmallVec::from_elem([0, 0], spatial))),
            "SAME_UPPER" => return Ok(Pad::SameUpper),
            "SAME_LOWER" => return Ok(Pad::SameLower),
            other => refuse!("attribute `auto_pad` is `{other}`"),
        }
        let Some(pads) = pads else { return Ok(Pad::Explicit(SmallVec::from_elem([0, 0], spatial))) };
        let pads = counts(&pads, "pads")?;
        if pads.len() != 2 * spatial {
            refuse!("attribute `pads` has {} numbers, not two for each of {spatial} dimensions", pads.len());
        }
        Ok(Pad::Explicit((0..spatial).map(|axis| [pads[axis], pads[spatial + axis]]).collect()))
    }
}
