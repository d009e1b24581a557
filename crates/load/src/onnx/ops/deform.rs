//! Deformable convolution: samples each cell of the window at its offset, then a matrix product.

use ir::ops;
use smallvec::SmallVec;
use types::pointwise::Binary;
use types::{DType, Shape};

use super::conv;
use super::grid::{Mode, OutsideMode, Sampler};
use crate::common::{NodeResult, Operand, counts, refuse};
use crate::onnx::node::ImportedNode;

/// `x: [n, c, h, w]`, `weight: [o, c / group, kh, kw]`, `offset: [n, offset_group kh kw 2, oh, ow]` in cells, then
/// optionally `bias: [o]` and `mask: [n, offset_group kh kw, oh, ow]` -> `[n, o, oh, ow]`.
pub(super) fn conv(node: &mut ImportedNode) -> NodeResult {
    let (x, weight, offset) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (shape, kernel) = (node.shape(x), node.shape(weight));
    let (&[n, channels, height, width], &[outputs, depth, rows, columns]) = (&shape[..], &kernel[..]) else {
        refuse!("input and weight must have two spatial axes, got {shape} and {kernel}");
    };
    if [x, weight, offset].iter().any(|&operand| node.dtype(operand) != DType::F32) || shape.elements() == 0 {
        refuse!("input must be f32 and not empty, got {}{shape}", node.dtype(x));
    }
    let window = conv::read(node, &shape, &kernel)?;
    let parts = counts(&[node.int_or("offset_group", 1)?], "offset_group")?[0];
    if parts == 0 || !channels.is_multiple_of(parts) {
        refuse!("channels must be a multiple of {parts} offset groups, got {channels}");
    }
    let (cells, taps) = (rows * columns, [rows, columns]);
    let mut out = [0; 2];
    for (axis, extent) in [height, width].into_iter().enumerate() {
        let reach = taps[axis].saturating_sub(1).saturating_mul(window.dilation[axis]).saturating_add(1);
        let Some(room) = (extent + window.pad[axis][0] + window.pad[axis][1]).checked_sub(reach) else {
            refuse!("a window of {rows} x {columns} does not fit input {shape}");
        };
        out[axis] = room / window.stride[axis] + 1;
    }
    let numbers = parts.saturating_mul(cells).saturating_mul(2);
    if node.shape(offset)[..] != [n, numbers, out[0], out[1]] {
        refuse!("offsets must fit {cells} cells at {out:?} positions, got shape {}", node.shape(offset));
    }
    // Each offset group is a separate image.
    let places = Shape::from([n * parts, cells, out[0], out[1]]);
    let spread = Shape::from([n * parts, cells, 2, out[0], out[1]]);
    let offset = node.reshape(offset, spread.clone())?;
    let mut chosen = Vec::new();
    for axis in 0..2 {
        let moved = node.apply(ops::Slice::range(&spread, 2, axis, 1), &[offset])?;
        let moved = node.reshape(moved, places.clone())?;
        // Positions of the cells without offsets.
        let mut base = Shape::from([1, cells, 1, 1]);
        base[2 + axis] = out[axis];
        let base = node.constant_of(base, |at| {
            let (cell, place) = (at / out[axis], at % out[axis]);
            let tap = if axis == 0 { cell / columns } else { cell % columns };
            (place * window.stride[axis] + tap * window.dilation[axis]) as f32 - window.pad[axis][0] as f32
        })?;
        let at = node.binary(Binary::Add, moved, base)?;
        chosen.push(Mode::Linear.taps(node, at)?);
    }
    let images = node.reshape(x, Shape::from([n * parts, channels / parts, height, width]))?;
    let batch = node.positions(n * parts, 0, places.rank())?;
    let sampler = Sampler::new(node, images, batch, OutsideMode::Zeros, &places, Mode::Linear)?;
    let mut sampled = sampler.sampled(node, &chosen, &places, Binary::Add)?;
    if let Some(mask) = node.optional(4) {
        if node.shape(mask)[..] != [n, parts * cells, out[0], out[1]] {
            refuse!("the mask must fit {cells} cells at {out:?} positions, got shape {}", node.shape(mask));
        }
        let mut spread = places;
        spread.push(1);
        let mask = node.reshape(mask, spread)?;
        sampled = node.binary(Binary::Mul, sampled, mask)?;
    }
    // Each cell of the window becomes a channel: a 1x1 convolution remains.
    let sampled = node.transpose(sampled, &[0, 4, 1, 2, 3])?;
    let sampled = node.reshape(sampled, Shape::from([n, channels * cells, out[0], out[1]]))?;
    let weight = node.reshape(weight, Shape::from([outputs, depth * cells, 1, 1]))?;
    let bias = node.optional(3);
    let flat = ops::Conv {
        stride: SmallVec::from_elem(1, 2),
        dilation: SmallVec::from_elem(1, 2),
        pad: SmallVec::from_elem([0, 0], 2),
        groups: window.groups,
        zero: 0,
        epilogue: ops::Epilogue::bias(bias.is_some()),
    };
    let inputs: Vec<Operand> = [sampled, weight].into_iter().chain(bias).collect();
    Ok(vec![node.apply(flat, &inputs)?])
}
