//! Nodes that move elements: one thread an element of the result.

use ir::ops::{Insert, Pad, PadMode, Resize, ResizeMode, Scatter, Slice};
use ir::{Call, CallInput, Reuse};
use types::{DType, Layout, Shape};

use super::c_source::{binary, computed, ctype, number, place};
use super::emit::{Block, Emitted, KernelKind, Template, around, blocks, call};
use super::layout::FOUR_CHANNELS;
use super::pointwise::head;
use super::tiling::mark;
use crate::NodeView;

fn signed(strides: &[usize]) -> Vec<isize> {
    strides.iter().map(|&stride| stride as isize).collect()
}

/// Where the elements of a shape are in memory.
struct Walk {
    strides: Vec<isize>,
    offset: isize,
}

impl Walk {
    fn row_major(shape: &[usize]) -> Walk {
        Walk { strides: signed(&Shape::from(shape).row_major_strides()), offset: 0 }
    }

    fn place(&self, shape: &[usize]) -> String {
        place(shape, &self.strides, self.offset)
    }
}

/// The largest power of two, up to `most`, of neighbouring elements that are neighbours in both walks and begin at a multiple
/// of as many.
fn together(shape: &[usize], walks: [&Walk; 2], most: usize) -> usize {
    let mut run = 1;
    let mut axes = shape.iter().enumerate().rev().filter(|(_, extent)| **extent != 1).peekable();
    while let Some((_, extent)) = axes.next_if(|&(axis, _)| walks.iter().all(|walk| walk.strides[axis] == run as isize))
    {
        run *= extent;
    }
    let rest = axes.flat_map(|(axis, _)| walks.map(|walk| walk.strides[axis]));
    let offsets = walks.map(|walk| walk.offset);
    let steps = rest.chain(offsets).map(isize::unsigned_abs).chain([run]).filter(|&step| step != 0);
    steps.fold(most, |most, step| most.min(1 << step.trailing_zeros().min(8)))
}

/// `y[to] = a[from]` for each element of a shape. Neighbours are copied in pieces of up to 16 bytes, if the addresses permit it.
fn moved(node: &NodeView, ix: usize, shape: &[usize], from: &Walk, to: &Walk, label: String) -> Call {
    let elements: usize = shape.iter().product();
    let (size, ty) = (node.output().dtype.size().0 as usize, ctype(node.output().dtype));
    let run = together(shape, [from, to], 16 / size);
    let (bytes, from, to) = (run * size, from.place(shape), to.place(shape));
    if bytes < 4 || run == 1 {
        let body = format!("{}    y[{to}] = a{ix}[{from}];\n", head(elements));
        return emitted(node, &[ix], body, elements, label);
    }
    // The only operand is the first one, and the result is behind it.
    let aligned = [0, 1].map(|ix| format!("{bytes} <= {}", mark(16, ix))).join(" && ");
    let body = format!(
        "    const int i = element() * {run};\n    if ({elements} <= i) return;\n    const {ty}* source = a{ix} + ({from});\n    {ty}* \
         target = y + ({to});\n    if constexpr ({aligned}) *(PieceOf<{bytes}>::Type*)target = *(const \
         PieceOf<{bytes}>::Type*)source;\n    else for (int ix = 0; ix < {run}; ix++) target[ix] = source[ix];\n"
    );
    emitted(node, &[ix], body, elements / run, label)
}

fn emitted(node: &NodeView, operands: &[usize], body: String, elements: usize, label: String) -> Call {
    let (kind, parameters) = (KernelKind::Move, node.parameters(operands));
    call(
        Emitted {
            kind,
            parameters,
            body,
            grid: blocks(elements),
            block: Block::USUAL,
            iterations: None,
            needs: Vec::new(),
        },
        label,
        operands,
        &[],
    )
}

fn strided(node: &NodeView, strides: &[isize], offset: isize) -> Vec<Call> {
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let from = Walk { strides: strides.to_vec(), offset };
    vec![moved(node, 0, out, &from, &Walk::row_major(out), format!("{x} to {out}"))]
}

pub(super) fn transposed(node: &NodeView, order: &[usize]) -> Vec<Call> {
    let strides = node.input(0).shape.row_major_strides();
    strided(node, &order.iter().map(|&axis| strides[axis] as isize).collect::<Vec<_>>(), 0)
}

/// From row-major to channels that are neighbours, or back.
pub(super) fn laid_out(node: &NodeView) -> Vec<Call> {
    let shape = &node.output().shape;
    if node.layout == FOUR_CHANNELS {
        return vec![four_channels(node)];
    }
    let last = Layout::ChannelsLast.physical(shape);
    // Elements are written in order and read with the strides of the other layout.
    let (to, strides): (Shape, Vec<usize>) = match node.layout {
        Layout::ChannelsLast => {
            let own = shape.row_major_strides();
            let order = [0].into_iter().chain(2..shape.rank()).chain([1]);
            (last, order.map(|axis| own[axis]).collect())
        }
        _ => {
            let own = last.row_major_strides();
            let order = [0, shape.rank() - 1].into_iter().chain(1..shape.rank() - 1);
            (shape.clone(), order.map(|axis| own[axis]).collect())
        }
    };
    let from = Walk { strides: signed(&strides), offset: 0 };
    vec![moved(node, 0, &to, &from, &Walk::row_major(&to), format!("{shape} to {}", node.layout))]
}

/// Pixels with their channels padded to four, a pixel a thread.
fn four_channels(node: &NodeView) -> Call {
    let (shape, ty) = (&node.output().shape, ctype(node.output().dtype));
    let [images, channels, pixels] = around(shape, 1);
    let items = (0..4).map(|channel| match channel < channels {
        true => format!("from[{}]", channel * pixels),
        false => format!("{ty}(0)"),
    });
    let body = format!(
        "{}    const {ty}* from = a0 + (size_t)(i / {pixels}) * {} + i % {pixels};\n    struct alignas(4 * sizeof({ty})) Pixel {{ \
         {ty} channels[4]; }};\n    ((Pixel*)y)[i] = Pixel{{{{{}}}}};\n",
        head(images * pixels),
        channels * pixels,
        items.collect::<Vec<_>>().join(", ")
    );
    emitted(node, &[0], body, images * pixels, format!("{shape} to {}", node.layout))
}

pub(super) fn sliced(node: &NodeView, slice: &Slice) -> Vec<Call> {
    let own = node.input(0).shape.row_major_strides();
    let strides: Vec<isize> = own.iter().zip(&slice.step).map(|(&stride, step)| stride as isize * step).collect();
    let offset: usize = slice.start.iter().zip(&own).map(|(start, stride)| start * stride).sum();
    strided(node, &strides, offset as isize)
}

pub(super) fn expanded(node: &NodeView, shape: &Shape) -> Vec<Call> {
    let x = &node.input(0).shape;
    let (own, missing) = (x.row_major_strides(), shape.rank() - x.rank());
    let stride = |axis: usize| match axis.checked_sub(missing) {
        Some(axis) if x[axis] != 1 => own[axis] as isize,
        _ => 0,
    };
    strided(node, &(0..shape.rank()).map(stride).collect::<Vec<_>>(), 0)
}

/// One copy an operand: into its window where that is contiguous, else into its rows of the whole result.
pub(super) fn concatenated(node: &NodeView, axis: usize) -> Vec<Call> {
    let in_parts = matches!(node.graph.reuse(node.node), Reuse::ConcatSlices(_));
    let out = &node.output().shape;
    let strides = signed(&out.row_major_strides());
    let mut start = 0;
    (0..node.operand_count())
        .map(|ix| {
            let x = &node.input(ix).shape;
            let to = match in_parts {
                true => Walk::row_major(x),
                false => Walk { strides: strides.clone(), offset: start as isize * strides[axis] },
            };
            start += x[axis];
            let call = moved(node, ix, x, &Walk::row_major(x), &to, format!("part {ix} of {out}"));
            Call { slice: in_parts.then_some(ix), ..call }
        })
        .collect()
}

/// A copy of the whole, which falls away in place, and one of the part over it.
pub(super) fn inserted(node: &NodeView, insert: &Insert) -> Vec<Call> {
    let out = &node.output().shape;
    let strides = signed(&out.row_major_strides());
    let (whole, part) = (&node.input(0).shape, &node.input(1).shape);
    let to = place(part, &strides, insert.start as isize * strides[insert.axis]);
    let rows = Walk::row_major(whole);
    let copy = moved(node, 0, whole, &rows, &rows, format!("{whole}"));
    let whole = Call { slice: Some(0), in_place: [0].into_iter().collect(), ..copy };
    let (elements, mut parameters) = (part.elements(), node.parameters(&[1]));
    // The result holds the rest already: it is an operand in place.
    parameters.insert(1, (format!("const {}*", ctype(node.output().dtype)), "same".into()));
    let body = format!("{}    y[{to}] = a1[i];\n", head(elements));
    let (kind, grid) = (KernelKind::Move, blocks(elements));
    let over = Emitted { kind, parameters, body, grid, block: Block::USUAL, iterations: None, needs: Vec::new() };
    let mut over = call(over, format!("{part} in {out}"), &[1], &[]);
    over.inputs.push(CallInput::Result);
    vec![whole, over]
}

/// Rows of the first operand, which may be in place, joined with updates by index, one block a row.
pub(super) fn scattered(node: &NodeView, scatter: &Scatter) -> Vec<Call> {
    let (out, count) = (node.output(), node.input(1).shape.elements());
    let [_, rows, inner] = around(&out.shape, 0);
    let ty = ctype(out.dtype);
    let joined = match scatter.function {
        None => "item".to_string(),
        Some(function) => {
            let (of, wide) = if out.dtype.is_float() { ('f', computed(out.dtype)) } else { ('i', "long long") };
            format!("({ty}){}", binary(function, &format!("({wide})own"), &format!("({wide})item"), of))
        }
    };
    let body = match inner {
        0 => String::new(),
        _ => format!(
            "    scatter<{count}, {rows}, {inner}>(a0, a1, a2, y0, []({ty} own, {ty} item) {{ return {joined}; }});\n"
        ),
    };
    let (kind, needs) = (KernelKind::Scatter, vec![Template::Pointwise, Template::Rows]);
    let grid = [rows.max(1) as u32, 1, 1];
    let emitted =
        Emitted { kind, parameters: node.all_parameters(), body, grid, block: Block::USUAL, iterations: None, needs };
    vec![call(emitted, format!("{count} rows to {}", out.shape), &[0, 1, 2], &[0])]
}

/// The coordinates of element `i` of the result: `i / below % extent` for each axis.
fn coordinates(shape: &Shape) -> String {
    let (mut text, mut below) = (String::new(), 1);
    for axis in (0..shape.rank()).rev() {
        text.push_str(&format!("    const int i{axis} = i / {below} % {};\n", shape[axis].max(1)));
        below *= shape[axis].max(1);
    }
    text
}

fn table(name: &str, ty: &str, items: impl Iterator<Item = String>) -> String {
    format!("    static const {ty} {name}[] = {{{}}};\n", items.collect::<Vec<_>>().join(", "))
}

pub(super) fn padded(node: &NodeView, pad: &Pad) -> Vec<Call> {
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let strides = x.row_major_strides();
    let mut body = head(out.elements()) + &coordinates(out);
    let (mut terms, mut inside) = (Vec::new(), Vec::new());
    for axis in 0..x.rank() {
        let front = pad.pad[axis][0];
        let at = match pad.mode {
            PadMode::Constant(_) => {
                inside.push(format!("{front} <= i{axis} && i{axis} - ({front}) < {}", x[axis]));
                format!("(i{axis} - ({front}))")
            }
            _ => {
                let places = (0..out[axis]).map(|ix| pad.source(axis, x[axis], ix).unwrap_or(0).to_string());
                body.push_str(&table(&format!("t{axis}"), "int", places));
                format!("t{axis}[i{axis}]")
            }
        };
        terms.push(format!("{at} * {}", strides[axis]));
    }
    let at = if terms.is_empty() { "0".into() } else { terms.join(" + ") };
    match pad.mode {
        PadMode::Constant(value) => {
            let inside = if inside.is_empty() { "true".into() } else { inside.join(" && ") };
            let dtype = node.output().dtype;
            let value = constant(dtype, value);
            body.push_str(&format!("    y[i] = {inside} ? a0[{at}] : {value};\n"));
        }
        _ => body.push_str(&format!("    y[i] = a0[{at}];\n")),
    }
    vec![emitted(node, &[0], body, out.elements(), format!("{x} to {out}"))]
}

/// A number as an element of a dtype.
fn constant(dtype: DType, value: f64) -> String {
    let tensor = types::Tensor::scalar(value).cast(dtype);
    match dtype {
        DType::F32 => number(value as f32),
        DType::F64 => format!("double({value:?})"),
        DType::F16 | DType::Bf16 => format!("{}({})", ctype(dtype), number(tensor.to_f64()[0] as f32)),
        _ => format!("({})({}ll)", ctype(dtype), tensor.to_i64()[0]),
    }
}

pub(super) fn gathered(node: &NodeView, axis: usize) -> Vec<Call> {
    let (table, index) = (&node.input(0).shape, &node.input(1).shape);
    let [_, extent, inner] = around(table, axis);
    let (count, out) = (index.elements(), &node.output().shape);
    let mut body = head(out.elements());
    // Indices below 0 count from the end; those outside are clamped.
    body.push_str(&format!(
        "    long long row = a1[i / {inner} % {count}];\n    row += row < 0 ? {extent} : 0;\n    row = row < 0 ? 0 : row < \
         {extent} ? row : {extent} - 1;\n    y[i] = a0[(i / {}) * {} + row * {inner} + i % {inner}];\n",
        (inner * count).max(1),
        extent * inner,
    ));
    let body = body.replace("/ 0 %", "/ 1 %").replace("% 0]", "% 1]").replace("% 0;", "% 1;").replace("% 0]", "% 1]");
    vec![emitted(node, &[0, 1], body, out.elements(), format!("{count} rows"))]
}

pub(super) fn resized(node: &NodeView, resize: &Resize) -> Result<Vec<Call>, String> {
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let strides = x.row_major_strides();
    let nearest = matches!(resize.mode, ResizeMode::Nearest(_));
    if !nearest {
        node.all_f32()?;
    }
    let mut body = head(out.elements()) + &coordinates(out);
    let (mut terms, mut loops, mut weights) = (Vec::new(), String::new(), Vec::new());
    for axis in 0..x.rank() {
        if resize.keeps(axis, x[axis]) {
            terms.push(format!("i{axis} * {}", strides[axis]));
            continue;
        }
        let taps = resize.taps(axis, x[axis]);
        body.push_str(&table(&format!("t{axis}"), "int", taps.index.iter().map(ToString::to_string)));
        if nearest {
            terms.push(format!("t{axis}[i{axis}] * {}", strides[axis]));
            continue;
        }
        body.push_str(&table(&format!("w{axis}"), "float", taps.weight.iter().map(|&weight| number(weight))));
        let (count, place) = (taps.per_output, format!("i{axis} * {} + k{axis}", taps.per_output));
        loops.push_str(&format!("    for (int k{axis} = 0; k{axis} < {count}; k{axis}++)\n"));
        terms.push(format!("t{axis}[{place}] * {}", strides[axis]));
        weights.push(format!("w{axis}[{place}]"));
    }
    let at = if terms.is_empty() { "0".into() } else { terms.join(" + ") };
    match nearest {
        true => body.push_str(&format!("    y[i] = a0[{at}];\n")),
        false => {
            weights.push(format!("a0[{at}]"));
            let weights = weights.join(" * ");
            body.push_str(&format!("    float sum = 0.0f;\n{loops}    sum += {weights};\n    y[i] = sum;\n"));
        }
    }
    let call = emitted(node, &[0], body, out.elements(), format!("{x} to {out}"));
    Ok(vec![call])
}
