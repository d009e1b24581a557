//! Convolutions, pooling and resampling.

use ir::Refusal;
use ir::ops::{Conv, ConvTranspose, Coordinates, Epilogue, Pool, PoolKind, ReduceKind, Resize, ResizeMode, Rounding};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, counts, refuse};
use crate::mxnet::node::ImportedNode;

/// Refuses channels-last layouts.
fn check_layout(node: &ImportedNode) -> Result<(), Refusal> {
    match node.text("layout") {
        None | Some("NCW" | "NCHW" | "NCDHW") => Ok(()),
        Some(other) => refuse!("attribute `layout` must have channels as the second axis, got `{other}`"),
    }
}

/// `data`, `weight` and the bias if present, and the number of spatial axes.
fn operands(node: &ImportedNode, without_bias: bool) -> Result<(Vec<Operand>, usize), Refusal> {
    check_layout(node)?;
    // The weight determines the number of output channels.
    node.ignore(&["num_filter"]);
    let mut operands = vec![node.input(0)?, node.input(1)?];
    if !node.flag_or("no_bias", without_bias)? {
        operands.push(node.input(2)?);
    }
    let (x, weight) = (node.shape(operands[0]), node.shape(operands[1]));
    if x.rank() < 3 || weight.rank() != x.rank() {
        refuse!("input and weight must have the same number of spatial axes, at least 1, got {x} and {weight}");
    }
    let kernel = node.extents_or("kernel", 1, x.rank() - 2)?;
    if kernel[..] != weight[2..] {
        refuse!("attribute `kernel` is {kernel:?}, but the kernel of the weight is {:?}", &weight[2..]);
    }
    Ok((operands, x.rank() - 2))
}

fn groups(node: &ImportedNode) -> Result<usize, Refusal> {
    Ok(counts(&[node.int_or("num_group", 1)?], "num_group")?[0])
}

fn both_sides(pad: &[usize]) -> SmallVec<[[usize; 2]; 2]> {
    pad.iter().map(|&pad| [pad, pad]).collect()
}

pub(super) fn convolution(node: &mut ImportedNode) -> NodeResult {
    let (operands, spatial) = operands(node, false)?;
    let conv = Conv {
        stride: node.extents_or("stride", 1, spatial)?,
        dilation: node.extents_or("dilate", 1, spatial)?,
        pad: both_sides(&node.extents_or("pad", 0, spatial)?),
        groups: groups(node)?,
        zero: 0,
        epilogue: Epilogue::bias(operands.len() == 3),
    };
    Ok(vec![node.apply_f32(conv, &operands)?])
}

/// Given `target_shape`, padding is chosen to match it, with an odd cell at the end as in `adj`.
pub(super) fn deconvolution(node: &mut ImportedNode) -> NodeResult {
    let (operands, spatial) = operands(node, true)?;
    let (x, weight) = (node.shape(operands[0]), node.shape(operands[1]));
    let stride = node.extents_or("stride", 1, spatial)?;
    let dilation = node.extents_or("dilate", 1, spatial)?;
    let (mut pad, mut output_pad) = (node.extents_or("pad", 0, spatial)?, node.extents_or("adj", 0, spatial)?);
    let target = node.extents_or("target_shape", 0, spatial)?;
    if target.iter().any(|&extent| extent != 0) {
        for axis in 0..spatial {
            let reach = weight[axis + 2].saturating_sub(1).saturating_mul(dilation[axis]).saturating_add(1);
            let whole = x[axis + 2].saturating_sub(1).saturating_mul(stride[axis]).saturating_add(reach);
            let Some(excess) = whole.checked_sub(target[axis]) else {
                refuse!("`target_shape` must be at most {whole} along axis {axis}, got {target:?}");
            };
            (pad[axis], output_pad[axis]) = (excess.div_ceil(2), excess % 2);
        }
    }
    let conv = ConvTranspose {
        stride,
        dilation,
        pad: both_sides(&pad),
        output_pad,
        groups: groups(node)?,
        epilogue: Epilogue::bias(operands.len() == 3),
    };
    Ok(vec![node.apply_f32(conv, &operands)?])
}

/// A mean divides by the cells of the window inside the padded input, without the padding if `count_include_pad` is off.
pub(super) fn pooling(node: &mut ImportedNode) -> NodeResult {
    check_layout(node)?;
    let x = node.input(0)?;
    let shape = node.shape(x);
    if shape.rank() < 3 {
        refuse!("input must have spatial axes, got {shape}");
    }
    let spatial = shape.rank() - 2;
    let kind = node.text_or("pool_type", "max");
    let convention = node.text_or("pooling_convention", "valid");
    let include_pad = node.flag_or("count_include_pad", true)?;
    let norm = node.int_or("p_value", 2)?;
    let [kernel, stride, pad] =
        [("kernel", 1), ("stride", 1), ("pad", 0)].map(|(name, default)| node.extents_or(name, default, spatial));
    let (kernel, stride, pad) = (kernel?, stride?, pad?);
    if node.flag("global_pool")? {
        let axes = (2..shape.rank()).collect();
        let kind = match (kind, norm) {
            ("max", _) => ReduceKind::Max,
            ("avg", _) => ReduceKind::Mean,
            ("sum", _) => ReduceKind::Sum,
            ("lp", 1) => ReduceKind::L1,
            ("lp", 2) => ReduceKind::L2,
            _ => refuse!("attribute `pool_type` is `{kind}` with `p_value` {norm}"),
        };
        return Ok(vec![node.reduce(kind, x, axes, true)?]);
    }
    let ceil = match convention {
        "valid" => false,
        "full" => true,
        other => refuse!("attribute `pooling_convention` must be `valid` or `full`, got `{other}`"),
    };
    let mut pool = Pool {
        kind: PoolKind::Max,
        kernel,
        stride,
        dilation: SmallVec::from_elem(1, spatial),
        pad: both_sides(&pad),
        ceil: false,
    };
    // The last window of MXNet may begin in the end padding, which `Pool` does not allow; then padding is added to the input.
    let whole = if ceil { last_window(&pool, &shape[2..])? } else { LastWindow::None };
    match kind {
        "max" => {
            pool.ceil = ceil;
            if let LastWindow::Beyond(ends) = whole {
                (pool.ceil, pool.pad) = (false, pads(&pool, &ends));
            }
            Ok(vec![node.apply_f32(pool, &[x])?])
        }
        "avg" => {
            if matches!(whole, LastWindow::Beyond(_)) {
                refuse!("the last window of a mean must not be inside the padding");
            }
            pool.kind = if include_pad { PoolKind::MeanWithPadding } else { PoolKind::Mean };
            pool.ceil = ceil;
            Ok(vec![node.apply_f32(pool, &[x])?])
        }
        "sum" | "lp" => {
            let power = |node: &mut ImportedNode, x: Operand, power: f64| {
                let power = node.number(power, DType::F32);
                node.binary(Binary::Pow, x, power)
            };
            let mut x = x;
            if kind == "lp" {
                x = node.unary(Unary::Abs, x)?;
                x = power(node, x, norm as f64)?;
            }
            if let LastWindow::Within(ends) | LastWindow::Beyond(ends) = whole {
                pool.pad = pads(&pool, &ends);
            }
            let cells: usize = pool.kernel.iter().product();
            pool.kind = PoolKind::MeanWithPadding;
            let mean = node.apply_f32(pool, &[x])?;
            let cells = node.number(cells as f64, DType::F32);
            let sum = node.binary(Binary::Mul, mean, cells)?;
            Ok(vec![if kind == "lp" { power(node, sum, 1.0 / norm as f64)? } else { sum }])
        }
        other => refuse!("attribute `pool_type`: `{other}` is not supported"),
    }
}

/// The reach of the last windows with convention `full`.
enum LastWindow {
    /// At most to the end of the input.
    None,
    /// Beyond the end, from inside or from the front padding. With the end padding that this needs.
    Within(SmallVec<[usize; 2]>),
    /// One begins in the end padding.
    Beyond(SmallVec<[usize; 2]>),
}

fn last_window(pool: &Pool, extents: &[usize]) -> Result<LastWindow, Refusal> {
    let (mut hangs, mut beyond, mut ends) = (false, false, SmallVec::new());
    for (axis, &extent) in extents.iter().enumerate() {
        let (kernel, stride, [front, back]) = (pool.kernel[axis], pool.stride[axis], pool.pad[axis]);
        let padded = extent.saturating_add(front).saturating_add(back);
        let Some(room) = padded.checked_sub(kernel).filter(|_| stride != 0) else {
            refuse!("a window of {kernel} does not fit an extent of {extent} with padding {front}");
        };
        let last = room.div_ceil(stride) * stride;
        let end = last + kernel;
        hangs |= padded < end;
        beyond |= front + extent <= last;
        ends.push(back + end.saturating_sub(padded));
    }
    Ok(match (hangs, beyond) {
        (_, true) => LastWindow::Beyond(ends),
        (true, false) => LastWindow::Within(ends),
        (false, false) => LastWindow::None,
    })
}

/// A pool with other end padding.
fn pads(pool: &Pool, ends: &[usize]) -> SmallVec<[[usize; 2]; 2]> {
    pool.pad.iter().zip(ends).map(|(&[front, _], &end)| [front, end]).collect()
}

/// `nearest`, or `bilinear`, which is a transposed convolution with its own weights.
pub(super) fn up_sampling(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["num_filter", "multi_input_mode"]);
    let scale = node.count("scale")?;
    let kind = node.text_or("sample_type", "nearest");
    let x = node.input(0)?;
    let shape = node.shape(x);
    let &[n, channels, height, width] = &shape[..] else {
        refuse!("input must have rank 4, got {shape}");
    };
    match kind {
        "nearest" => {
            if node.int_or("num_args", 1)? != 1 {
                refuse!("attribute `num_args` must be 1");
            }
            let [height, width] = [height, width].map(|extent| extent.saturating_mul(scale));
            let resize = Resize {
                shape: Shape::from([n, channels, height, width]),
                scale: smallvec![1.0, 1.0, scale as f32, scale as f32],
                mode: ResizeMode::Nearest(Rounding::Floor),
                coordinates: Coordinates::Asymmetric,
                antialias: false,
                range: None,
            };
            Ok(vec![node.apply(resize, &[x])?])
        }
        "bilinear" => {
            node.ignore(&["num_args"]);
            let weight = node.input(1)?;
            let pad = (scale - 1).div_ceil(2);
            let conv = ConvTranspose {
                stride: SmallVec::from_elem(scale, 2),
                dilation: SmallVec::from_elem(1, 2),
                pad: both_sides(&[pad, pad]),
                output_pad: SmallVec::from_elem(0, 2),
                groups: channels,
                epilogue: Epilogue::default(),
            };
            Ok(vec![node.apply_f32(conv, &[x, weight])?])
        }
        other => refuse!("attribute `sample_type` must be `nearest` or `bilinear`, got `{other}`"),
    }
}

/// Means of segments: segment `i` of `n` begins at `i * extent / n`, rounded down, and ends at that of `i + 1`, rounded up.
pub(super) fn adaptive_mean(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    if shape.rank() != 4 {
        refuse!("input must have rank 4, got {shape}");
    }
    let out = match node.ints("output_size")?.unwrap_or_default()[..] {
        [] => [1, 1],
        [side] => [side, side],
        [height, width] => [height, width],
        ref other => refuse!("attribute `output_size`: {other:?} is not supported"),
    };
    let out = counts(&out, "output_size")?;
    let mut kernel: SmallVec<[usize; 2]> = SmallVec::new();
    for (axis, &parts) in out.iter().enumerate() {
        match shape[axis + 2].checked_rem(parts) {
            Some(0) => kernel.push(shape[axis + 2] / parts),
            _ => refuse!("axis {} of {shape} must be a multiple of {parts}", axis + 2),
        }
    }
    let none = Pool {
        kind: PoolKind::Mean,
        stride: kernel.clone(),
        kernel,
        dilation: smallvec![1, 1],
        pad: both_sides(&[0, 0]),
        ceil: false,
    };
    Ok(vec![node.apply_f32(none, &[x])?])
}

pub(super) fn bilinear_resize(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let &[n, channels, height, width] = &shape[..] else {
        refuse!("input must have rank 4, got {shape}");
    };
    if node.text_or("mode", "size") != "size" {
        refuse!("attribute `mode` must be `size`");
    }
    let extent = |node: &ImportedNode, name: &str, scale: &str, extent: usize| match node.float(scale)? {
        Some(scale) => Ok(counts(&[(scale * extent as f64) as i64], name)?[0]),
        None => node.count(name),
    };
    let out = [extent(node, "height", "scale_height", height)?, extent(node, "width", "scale_width", width)?];
    let aligned = node.flag_or("align_corners", true)?;
    let resize = Resize {
        shape: Shape::from([n, channels, out[0], out[1]]),
        scale: smallvec![1.0, 1.0, out[0] as f32 / height as f32, out[1] as f32 / width as f32],
        mode: ResizeMode::Linear,
        coordinates: if aligned { Coordinates::AlignCorners } else { Coordinates::HalfPixel },
        antialias: false,
        range: None,
    };
    Ok(vec![node.apply_f32(resize, &[x])?])
}
