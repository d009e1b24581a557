//! Convolutions.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::Shape;

use super::window::{Pad, Window};
use crate::common::{NodeResult, counts, refuse};
use crate::onnx::node::ImportedNode;

fn groups(node: &ImportedNode) -> Result<usize, Refusal> {
    Ok(counts(&[node.int_or("group", 1)?], "group")?[0])
}

/// A convolution without epilogue.
pub(super) fn read(node: &ImportedNode, x: &Shape, weight: &Shape) -> Result<ops::Conv, Refusal> {
    if x.rank() < 3 || weight.rank() != x.rank() {
        refuse!("input and weight must have the same number of spatial axes, at least 1, got {x} and {weight}");
    }
    let window = Window::read(node, Some(&weight[2..]))?;
    let pad = window.pads(&x[2..])?;
    let epilogue = ops::Epilogue::default();
    Ok(ops::Conv { stride: window.stride, dilation: window.dilation, pad, groups: groups(node)?, zero: 0, epilogue })
}

pub(super) fn conv(node: &mut ImportedNode) -> NodeResult {
    let mut inputs = vec![node.input(0)?, node.input(1)?];
    inputs.extend(node.optional(2));
    let mut conv = read(node, &node.shape(inputs[0]), &node.shape(inputs[1]))?;
    conv.epilogue = ops::Epilogue::bias(inputs.len() == 3);
    Ok(vec![node.apply_f32(conv, &inputs)?])
}

/// `x: [n, c * cells, positions]`, windows at all positions -> the image `[n, c, ..]` of their sums: a transposed
/// convolution with a channel per cell of the window.
pub(super) fn col2im(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let extents = |node: &ImportedNode, ix: usize, name: &str| counts(&node.constant_ints(ix, name)?, name);
    let (image, block) = (extents(node, 1, "image_shape")?, extents(node, 2, "block_shape")?);
    let spatial = image.len();
    let window = Window::read(node, Some(&block))?;
    let pad = window.pads(&image)?;
    let shape = node.shape(x);
    let cells: usize = block.iter().product();
    let &[n, blocks, places] = &shape[..] else { refuse!("input must have rank 3, got {shape}") };
    if cells == 0 || !blocks.is_multiple_of(cells) || block.len() != spatial {
        refuse!("channels must be a multiple of the cells of {block:?}, got {blocks}");
    }
    let mut rows = Shape::from([n, blocks]);
    let mut output_pad = SmallVec::new();
    for axis in 0..spatial {
        let padded = image[axis] + pad[axis][0] + pad[axis][1];
        let Some(room) = padded.checked_sub(window.reach(axis)) else {
            refuse!("a window of {block:?} does not fit an image of {image:?}");
        };
        rows.push(room / window.stride[axis] + 1);
        output_pad.push(room % window.stride[axis]);
    }
    if rows[2..].iter().product::<usize>() != places {
        refuse!("the number of windows must match image {image:?}, got {places}");
    }
    let channels = blocks / cells;
    let weight: Shape = [blocks, 1].into_iter().chain(block.iter().copied()).collect();
    let weight = node.constant_of(weight, |at| if at / cells % cells == at % cells { 1.0f32 } else { 0.0 })?;
    let x = node.reshape(x, rows)?;
    let (stride, dilation) = (window.stride, window.dilation);
    let epilogue = ops::Epilogue::default();
    let conv = ops::ConvTranspose { stride, dilation, pad, output_pad, groups: channels, epilogue };
    Ok(vec![node.apply_f32(conv, &[x, weight])?])
}

pub(super) fn conv_transpose(node: &mut ImportedNode) -> NodeResult {
    let mut inputs = vec![node.input(0)?, node.input(1)?];
    inputs.extend(node.optional(2));
    let (x, weight) = (node.shape(inputs[0]), node.shape(inputs[1]));
    if x.rank() < 3 || weight.rank() != x.rank() {
        refuse!("input and weight must have the same number of spatial axes, at least 1, got {x} and {weight}");
    }
    let spatial = x.rank() - 2;
    let window = Window::read(node, Some(&weight[2..]))?;
    let list = |name: &str| -> Result<Option<SmallVec<[usize; 4]>>, Refusal> {
        let list = node.ints(name)?.map(|list| counts(&list, name)).transpose()?;
        match list {
            // The shape may include batch and channels.
            Some(list) if name == "output_shape" && list.len() == spatial + 2 => Ok(Some(list[2..].into())),
            Some(list) if list.len() != spatial => {
                refuse!("attribute `{name}` must have {spatial} numbers, got {list:?}")
            }
            list => Ok(list),
        }
    };
    let mut output_pad: SmallVec<[usize; 2]> =
        list("output_padding")?.map_or_else(|| SmallVec::from_elem(0, spatial), |list| list[..].into());
    let same = !matches!(window.pad, Pad::Explicit(_));
    let wanted = match list("output_shape")? {
        None if same => Some((0..spatial).map(|axis| x[axis + 2].saturating_mul(window.stride[axis])).collect()),
        wanted => wanted,
    };
    let pad = match (wanted, &window.pad) {
        (None, Pad::Explicit(pad)) => pad.clone(),
        (None, _) => SmallVec::from_elem([0, 0], spatial),
        (Some(wanted), rule) => {
            let mut pads = SmallVec::new();
            for axis in 0..spatial {
                let full = (x[axis + 2].saturating_sub(1).saturating_mul(window.stride[axis]))
                    .saturating_add(window.reach(axis))
                    .saturating_add(output_pad[axis]);
                let total = full.saturating_sub(wanted[axis]);
                // The requested extent exceeds the kernel's reach: the rest is output padding.
                output_pad[axis] += wanted[axis].saturating_sub(full);
                let upper = matches!(rule, Pad::SameUpper);
                pads.push(if upper { [total / 2, total - total / 2] } else { [total - total / 2, total / 2] });
            }
            pads
        }
    };
    let (epilogue, groups) = (ops::Epilogue::bias(inputs.len() == 3), groups(node)?);
    let (stride, dilation) = (window.stride, window.dilation);
    Ok(vec![node.apply_f32(ops::ConvTranspose { stride, dilation, pad, output_pad, groups, epilogue }, &inputs)?])
}
