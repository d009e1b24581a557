//! Pointwise nodes: one thread an element.

use ir::ops::ChainStep;
use ir::{Call, CallInput, Op};
use types::DType;
use types::pointwise::{Binary, Unary};

use super::c_source::{binary, comparison, computed, ctype, number, place, unary, unary_of_integer};
use super::emit::{Block, Emitted, KernelKind, Template, blocks, call};
use super::tiling::{EIGHT, is_aligned};
use crate::NodeView;

/// The call for a pointwise node.
pub(super) fn lower(node: &NodeView) -> Result<Call, String> {
    let (output, operands) = (node.output(), (0..node.operand_count()).collect::<Vec<usize>>());
    let places: Vec<String> = operands.iter().map(|&ix| operand_place(node, ix)).collect();
    let in_place: Vec<usize> =
        operands.iter().copied().filter(|&ix| places[ix] == "i" && node.input(ix).dtype == output.dtype).collect();
    let elements = output.shape.elements();
    // Chains compute with the values of 8-bit integers as floats; a selection only copies.
    let [is_chain, is_select] = [matches!(node.op(), Op::Chain(_)), matches!(node.op(), Op::Select(_))];
    let ty = |ix: usize| match node.input(ix).dtype {
        _ if is_chain => "float",
        dtype if is_select => ctype(dtype),
        dtype => computed(dtype),
    };
    let eight = is_float(output.dtype) && elements.is_multiple_of(EIGHT) && 0 < elements;
    // Operands whose neighbours in the result are neighbours in memory.
    let in_runs = |ix: usize| {
        eight && is_float(node.input(ix).dtype) && ty(ix) == "float" && runs(&output.shape, &operand_strides(node, ix))
    };
    let runs: Vec<usize> = operands.iter().copied().filter(|&ix| in_runs(ix)).collect();
    let mut body = String::new();
    if runs.is_empty() {
        body.push_str(&head(elements));
    } else {
        body.push_str(&format!("    const int first = element() * {EIGHT};\n    if ({elements} <= first) return;\n"));
        for &ix in &runs {
            let (aligned, place) = (is_aligned(ix), places[ix].replace('i', "first"));
            body.push_str(&format!("    float x{ix}[{EIGHT}];\n    load_run<{aligned}>(a{ix} + ({place}), x{ix});\n"));
        }
        body.push_str(&format!(
            "    float results[{EIGHT}];\n#pragma unroll\n    for (int lane = 0; lane < {EIGHT}; lane++) {{\n"
        ));
        if operands.iter().any(|ix| !runs.contains(ix) && places[*ix].contains('i')) {
            body.push_str("    const int i = first + lane;\n");
        }
    }
    for (ix, place) in places.iter().enumerate() {
        let ty = ty(ix);
        body.push_str(&match runs.contains(&ix) {
            true => format!("    const {ty} r{ix} = x{ix}[lane];\n"),
            false => format!("    const {ty} r{ix} = a{ix}[{place}];\n"),
        });
    }
    let (what, result) = result(node, &mut body)?;
    let threads = if runs.is_empty() { elements } else { elements / EIGHT };
    body.push_str(&match runs.is_empty() {
        true => format!("    y[i] = {result};\n"),
        false => format!(
            "    results[lane] = {result};\n    }}\n    store_run<{}>(results, y + first);\n",
            is_aligned(operands.len())
        ),
    });
    let emitted = Emitted {
        kind: KernelKind::Pointwise,
        parameters: node.parameters(&operands),
        body,
        grid: blocks(threads),
        block: Block::USUAL,
        iterations: None,
        needs: vec![Template::Pointwise],
    };
    Ok(call(emitted, format!("{what} on {}", output.shape), &operands, &in_place))
}

/// Whether numbers are read and stored eight at once.
fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || dtype.is_half()
}

/// Whether the elements of an operand for eight neighbours in the result, from a multiple of eight on, are neighbours and begin
/// at a multiple of eight.
fn runs(extents: &[usize], strides: &[isize]) -> bool {
    let (mut run, mut is_inner) = (1, true);
    for (&extent, &stride) in extents.iter().zip(strides).rev().filter(|(extent, _)| **extent != 1) {
        is_inner &= stride == run as isize;
        match is_inner {
            true => run *= extent,
            false if !run.is_multiple_of(EIGHT) || stride % EIGHT as isize != 0 => return false,
            false => {}
        }
    }
    run.is_multiple_of(EIGHT)
}

/// Activations on a library's result, in place.
pub(super) fn go_on(node: &NodeView, functions: &[Unary]) -> Call {
    let (elements, ty) = (node.output().shape.elements(), ctype(node.output().dtype));
    let mut body = head(elements) + "    float v = y[i];\n";
    for &function in functions {
        body.push_str(&format!("    v = {};\n", unary(function, "v", "float")));
    }
    body.push_str("    y[i] = v;\n");
    let emitted = Emitted {
        kind: KernelKind::Pointwise,
        // The operand and the result are the same bytes.
        parameters: vec![(format!("{ty}*"), "y".into()), (format!("{ty}*"), "same".into())],
        body,
        grid: blocks(elements),
        block: Block::USUAL,
        iterations: None,
        needs: vec![Template::Pointwise],
    };
    let names: Vec<&str> = functions.iter().map(|function| function.name()).collect();
    let label = format!("{} on {}", names.join(" "), node.output().shape);
    Call { inputs: vec![CallInput::Result], ..call(emitted, label, &[], &[]) }
}

/// `i`, the element of the thread, if there is one.
pub(super) fn head(elements: usize) -> String {
    format!("    const int i = element();\n    if ({elements} <= i) return;\n")
}

/// The index of a broadcast operand's element for element `i` of the result.
fn operand_place(node: &NodeView, ix: usize) -> String {
    place(&node.output().shape, &operand_strides(node, ix), 0)
}

/// The strides of a broadcast operand along the axes of the result.
fn operand_strides(node: &NodeView, ix: usize) -> Vec<isize> {
    let (own, out) = (&node.input(ix).shape, &node.output().shape);
    let missing = out.rank() - own.rank();
    let strides = own.row_major_strides();
    let stride = |axis: usize| match axis.checked_sub(missing) {
        Some(axis) if own[axis] != 1 => strides[axis] as isize,
        _ => 0,
    };
    (0..out.rank()).map(stride).collect()
}

/// A description of a node's function, and its result in C. `body` gets the lines before it.
fn result(node: &NodeView, body: &mut String) -> Result<(String, String), String> {
    let to = node.output().dtype;
    match node.op() {
        Op::Chain(chain) => {
            let stored = |dtype: DType| matches!(dtype, DType::F32 | DType::U8 | DType::I8) || dtype.is_half();
            let mut dtypes = (0..node.operand_count()).map(|ix| node.input(ix).dtype).chain([to]);
            if let Some(other) = dtypes.find(|&dtype| !stored(dtype)) {
                return Err(format!("its kernel computes in f32, not with {other}"));
            }
            let mut names = Vec::new();
            for (ix, step) in chain.steps.iter().enumerate() {
                let value = match *step {
                    ChainStep::Unary(function, a) => {
                        names.push(function.name());
                        unary(function, &format!("r{a}"), "float")
                    }
                    ChainStep::Binary(function, a, b) => {
                        names.push(function.name());
                        binary(function, &format!("r{a}"), &format!("r{b}"), 'f')
                    }
                    ChainStep::Constant(value) => number(value),
                };
                body.push_str(&format!("    const float r{} = {value};\n", node.operand_count() + ix));
            }
            let last = format!("r{}", node.operand_count() + chain.steps.len() - 1);
            Ok((names.join(" "), rounded(&last, to)))
        }
        Op::Unary(function) => {
            let (name, dtype) = (function.0.name().to_string(), node.input(0).dtype);
            match kind(dtype) {
                Kind::Float if function.0 == Unary::Not => Err("`not` is for bool".into()),
                Kind::Float => Ok((name, unary(function.0, "r0", computed(dtype)))),
                Kind::Integer => Ok((name, cast_integer(&unary_of_integer(function.0, "r0"), to))),
            }
        }
        Op::Binary(function) => {
            let (name, dtype) = (function.0.name().to_string(), node.input(0).dtype);
            let bitwise =
                [Binary::And, Binary::Or, Binary::Xor, Binary::ShiftLeft, Binary::ShiftRight].contains(&function.0);
            match kind(dtype) {
                Kind::Float if bitwise => Err(format!("`{name}` is for integers")),
                Kind::Float => Ok((name, binary(function.0, "r0", "r1", 'f'))),
                Kind::Integer => Ok((name, cast_integer(&binary(function.0, "r0", "r1", 'i'), to))),
            }
        }
        Op::Compare(function) => Ok((function.0.name().into(), format!("r0 {} r1", comparison(function.0)))),
        Op::Select(_) => Ok(("select".into(), "r0 ? r1 : r2".into())),
        Op::Cast(cast) => {
            let from = node.input(0).dtype;
            Ok((format!("{from} to {}", cast.to), converted(from, cast.to)))
        }
        other => Err(format!("`{}` is not pointwise", other.name())),
    }
}

/// A number as it is stored: in a byte the nearest that this holds, of two the even one.
fn rounded(value: &str, to: DType) -> String {
    let (low, high) = match to {
        DType::U8 => ("0.0f", "255.0f"),
        DType::I8 => ("-128.0f", "127.0f"),
        _ => return value.to_string(),
    };
    let number = format!("({value} == {value} ? {value} : 0.0f)");
    format!("({})rintf(fminf(fmaxf({number}, {low}), {high}))", ctype(to))
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Float,
    Integer,
}

fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => Kind::Float,
        _ => Kind::Integer,
    }
}

/// An integer of 64 bits as one of a dtype: it wraps.
fn cast_integer(value: &str, to: DType) -> String {
    match to {
        DType::Bool => format!("({value}) != 0"),
        _ => format!("({})({value})", ctype(to)),
    }
}

/// `r0` in another dtype.
fn converted(from: DType, to: DType) -> String {
    match (kind(from), kind(to), to) {
        (_, _, DType::Bool) => "r0 != 0".into(),
        (Kind::Integer, Kind::Integer, _) => cast_integer("r0", to),
        (Kind::Float, Kind::Float, _) => format!("({})r0", ctype(to)),
        (_, Kind::Float, _) => format!("({})(double)r0", ctype(to)),
        (Kind::Float, Kind::Integer, DType::U64) => "truncated_unsigned(r0)".into(),
        (Kind::Float, Kind::Integer, _) => {
            let [low, high] = match to {
                DType::I8 => [-128, 127],
                DType::I16 => [-32_768, 32_767],
                DType::I32 => [i64::from(i32::MIN), i64::from(i32::MAX)],
                DType::U8 => [0, 255],
                DType::U16 => [0, 65_535],
                DType::U32 => [0, i64::from(u32::MAX)],
                _ => return "truncated(r0)".into(),
            };
            format!("({})truncated(r0, {low}ll, {high}ll)", ctype(to))
        }
    }
}
