//! C expressions for types, numbers, functions and indices.

use ir::ops::Epilogue;
use types::DType;
use types::pointwise::{Binary, Compare, Unary};

/// The C type of a dtype. `cuda/templates/base.cu` defines `f16` and `bf16`.
pub(super) fn ctype(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        DType::U16 => "unsigned short",
        DType::I8 => "signed char",
        DType::I16 => "short",
        DType::I32 => "int",
        DType::I64 => "long long",
        DType::U8 => "unsigned char",
        DType::U32 => "unsigned int",
        DType::U64 => "unsigned long long",
        DType::Bool => "bool",
    }
}

/// The C type of its arithmetic.
pub(super) fn computed(dtype: DType) -> &'static str {
    if dtype.is_half() { "float" } else { ctype(dtype) }
}

/// A number as a C literal with all its bits.
pub(super) fn number(number: f32) -> String {
    match number {
        _ if number.is_nan() => "(PRESTOW_INFINITY - PRESTOW_INFINITY)".into(),
        f32::INFINITY => "PRESTOW_INFINITY".into(),
        f32::NEG_INFINITY => "(-PRESTOW_INFINITY)".into(),
        _ if number < 0.0 => format!("({number:?}f)"),
        _ => format!("{number:?}f"),
    }
}

/// A function of a float of type `float` or `double`.
pub(super) fn unary(function: Unary, x: &str, ty: &str) -> String {
    let number = |value: f32| format!("{ty}({})", number(value));
    let more = match function {
        Unary::Affine { scale, shift } => vec![number(scale), number(shift)],
        Unary::Celu { alpha }
        | Unary::Elu { alpha }
        | Unary::LeakyRelu { alpha }
        | Unary::ThresholdedRelu { alpha } => {
            vec![number(alpha)]
        }
        Unary::Clip { min, max } => vec![number(min), number(max)],
        Unary::HardSigmoid { alpha, beta } => vec![number(alpha), number(beta)],
        Unary::IsInf { negative, positive } => vec![negative.to_string(), positive.to_string()],
        Unary::Selu { alpha, gamma } => vec![number(alpha), number(gamma)],
        Unary::Shrink { bias, lambda } => vec![number(bias), number(lambda)],
        _ => Vec::new(),
    };
    let arguments = [vec![x.to_string()], more].concat().join(", ");
    format!("f_{}({arguments})", function.name())
}

/// The last function of an epilogue. Those that would cost as much as the sums before them have a form for half precision.
fn last_unary(function: Unary, x: &str, epilogue: &Epilogue) -> String {
    match function {
        Unary::Gelu | Unary::GeluTanh | Unary::Sigmoid | Unary::Silu if epilogue.result.is_some_and(DType::is_half) => {
            format!("h_{}({x})", function.name())
        }
        _ => unary(function, x, "float"),
    }
}

/// The functions of an epilogue, applied to a variable in turn.
fn activations(epilogue: &Epilogue, x: &str, indent: &str) -> String {
    let Some((&last, before)) = epilogue.activation.split_last() else { return String::new() };
    let before = before.iter().map(|&function| unary(function, x, "float"));
    let line = |value: String| format!("{indent}{x} = {value};\n");
    before.chain([last_unary(last, x, epilogue)]).map(line).collect()
}

/// A function of an integer, which is computed in 64 bits.
pub(super) fn unary_of_integer(function: Unary, x: &str) -> String {
    match function {
        Unary::Clip { min, max } => format!("i_clip({x}, {}, {})", number(min), number(max)),
        Unary::Ceil | Unary::Floor | Unary::Round => format!("i_same({x})"),
        _ => format!("i_{}({x})", function.name()),
    }
}

/// A function of two numbers of one type: floats, or integers in 64 bits.
pub(super) fn binary(function: Binary, a: &str, b: &str, of: char) -> String {
    format!("{of}_{}({a}, {b})", function.name())
}

pub(super) fn comparison(function: Compare) -> &'static str {
    match function {
        Compare::Equal => "==",
        Compare::Greater => ">",
        Compare::GreaterOrEqual => ">=",
        Compare::Less => "<",
        Compare::LessOrEqual => "<=",
    }
}

/// The index of the operand's element for element `i` of a result, from the result's extents and the operand's strides
/// along them.
pub(super) fn place(extents: &[usize], strides: &[isize], offset: isize) -> String {
    // Neighboring axes that are contiguous are merged.
    let mut axes: Vec<(usize, isize)> = Vec::new();
    for (&extent, &stride) in extents.iter().zip(strides).rev().filter(|(extent, _)| **extent != 1) {
        match axes.last_mut() {
            Some((run, own)) if stride == *own * *run as isize => *run *= extent,
            _ => axes.push((extent, stride)),
        }
    }
    let (mut terms, mut below) = (Vec::new(), 1);
    for (ix, &(extent, stride)) in axes.iter().enumerate() {
        let quotient = if below == 1 { "i".to_string() } else { format!("i / {below}") };
        let at = if ix + 1 == axes.len() { quotient } else { format!("{quotient} % {extent}") };
        below *= extent;
        match stride {
            0 => {}
            1 => terms.push(at),
            stride if at == "i" => terms.push(format!("i * {stride}")),
            stride => terms.push(format!("({at}) * {stride}")),
        }
    }
    if offset != 0 || terms.is_empty() {
        terms.push(offset.to_string());
    }
    terms.join(" + ")
}

/// `const auto finish = ..`: the epilogue of a sum, given its channel and its index in the output. The operands of the
/// epilogue are `a2` and on.
pub(super) fn finish(epilogue: &Epilogue) -> String {
    let mut lines = String::from("    const auto finish = [=](float v, int channel, size_t at) {\n");
    if epilogue.bias {
        lines.push_str("        v += a2[channel];\n");
    }
    if epilogue.residual {
        lines.push_str(&format!("        v += a{}[at];\n", 2 + usize::from(epilogue.bias)));
    }
    lines.push_str(&activations(epilogue, "v", "        "));
    lines.push_str("        return v;\n    };\n");
    lines
}

/// `const auto finish_eight = ..`: the same for the sums of eight neighboring channels, whose operands are aligned.
pub(super) fn finish_eight(epilogue: &Epilogue) -> String {
    let mut lines = String::from("    const auto finish_eight = [=](float (&v)[8], int channel, size_t at) {\n");
    if epilogue.bias {
        lines.push_str("        add_eight(a2 + channel, v);\n");
    }
    if epilogue.residual {
        lines.push_str(&format!("        add_eight(a{} + at, v);\n", 2 + usize::from(epilogue.bias)));
    }
    if !epilogue.activation.is_empty() {
        lines.push_str("#pragma unroll\n        for (int ix = 0; ix < 8; ix++) {\n");
        lines.push_str(&activations(epilogue, "v[ix]", "            "));
        lines.push_str("        }\n");
    }
    lines + "    };\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_short() {
        assert_eq!(place(&[2, 3, 4], &[12, 4, 1], 0), "i");
        assert_eq!(place(&[2, 3, 4], &[0, 0, 0], 0), "0");
        assert_eq!(place(&[2, 3, 4], &[0, 1, 0], 0), "i / 4 % 3");
        assert_eq!(place(&[2, 3, 4], &[4, 8, 1], 5), "i % 4 + (i / 4 % 3) * 8 + (i / 12) * 4 + 5");
        assert_eq!(place(&[], &[], 0), "0");
        assert_eq!(place(&[7], &[-1], 6), "i * -1 + 6");
    }

    #[test]
    fn numbers_keep_their_bits() {
        assert_eq!(number(0.1), "0.1f");
        assert_eq!(number(-1e-30), "(-1e-30f)");
        assert_eq!(number(f32::NEG_INFINITY), "(-PRESTOW_INFINITY)");
    }
}
