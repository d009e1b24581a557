//! Convolutions.

use ir::{Refusal, ops};
use smallvec::SmallVec;

use super::window::{Pad, Window};
use crate::onnx::builder::Operand;
use crate::onnx::call::{Call, counts, refuse};

type Yield = Result<Vec<Operand>, Refusal>;

fn groups(call: &Call) -> Result<usize, Refusal> {
    Ok(counts(&[call.int_or("group", 1)?], "group")?[0])
}

pub(super) fn conv(call: &mut Call) -> Yield {
    let mut inputs = vec![call.input(0)?, call.input(1)?];
    inputs.extend(call.optional(2));
    let (x, weight) = (call.shape(inputs[0]), call.shape(inputs[1]));
    if x.rank() < 3 || weight.rank() != x.rank() {
        refuse!("input {x} and weight {weight} do not have the same spatial dimensions, at least one");
    }
    let window = Window::read(call, Some(&weight[2..]))?;
    let pad = window.pads(&x[2..])?;
    let epilogue = ops::Epilogue::bias(inputs.len() == 3);
    let groups = groups(call)?;
    let conv = ops::Conv { stride: window.stride, dilation: window.dilation, pad, groups, epilogue };
    Ok(vec![call.apply_f32(conv, &inputs)?])
}

pub(super) fn conv_transpose(call: &mut Call) -> Yield {
    let mut inputs = vec![call.input(0)?, call.input(1)?];
    inputs.extend(call.optional(2));
    let (x, weight) = (call.shape(inputs[0]), call.shape(inputs[1]));
    if x.rank() < 3 || weight.rank() != x.rank() {
        refuse!("input {x} and weight {weight} do not have the same spatial dimensions, at least one");
    }
    let spatial = x.rank() - 2;
    let window = Window::read(call, Some(&weight[2..]))?;
    let list = |name: &str| -> Result<Option<SmallVec<[usize; 4]>>, Refusal> {
        let list = call.ints(name)?.map(|list| counts(&list, name)).transpose()?;
        match list {
            // The shape may be given with batch and channels.
            Some(list) if name == "output_shape" && list.len() == spatial + 2 => Ok(Some(list[2..].into())),
            Some(list) if list.len() != spatial => refuse!("attribute `{name}` is {list:?}, for {spatial} dimensions"),
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
                // More is wanted than the kernel reaches: the rest is padding of the output.
                output_pad[axis] += wanted[axis].saturating_sub(full);
                let upper = matches!(rule, Pad::SameUpper);
                pads.push(if upper { [total / 2, total - total / 2] } else { [total - total / 2, total / 2] });
            }
            pads
        }
    };
    let (epilogue, groups) = (ops::Epilogue::bias(inputs.len() == 3), groups(call)?);
    let (stride, dilation) = (window.stride, window.dilation);
    Ok(vec![call.apply_f32(ops::ConvTranspose { stride, dilation, pad, output_pad, groups, epilogue }, &inputs)?])
}
