//! Unary, binary and comparison functions.

use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape, Tensor};

use crate::attribute::Attribute;
use crate::translate::Made;

/// A unary function that is one ONNX operator: the operator and its attributes.
pub(crate) fn plain(function: Unary) -> Option<(&'static str, Vec<Attribute>)> {
    let float = |name: &str, value: f32| Attribute::float(name, value);
    Some(match function {
        Unary::Abs => ("Abs", vec![]),
        Unary::Acos => ("Acos", vec![]),
        Unary::Acosh => ("Acosh", vec![]),
        Unary::Asin => ("Asin", vec![]),
        Unary::Asinh => ("Asinh", vec![]),
        Unary::Atan => ("Atan", vec![]),
        Unary::Atanh => ("Atanh", vec![]),
        Unary::Ceil => ("Ceil", vec![]),
        Unary::Celu { alpha } => ("Celu", vec![float("alpha", alpha)]),
        Unary::Cos => ("Cos", vec![]),
        Unary::Cosh => ("Cosh", vec![]),
        Unary::Elu { alpha } => ("Elu", vec![float("alpha", alpha)]),
        Unary::Erf => ("Erf", vec![]),
        Unary::Exp => ("Exp", vec![]),
        Unary::Floor => ("Floor", vec![]),
        Unary::Gelu => ("Gelu", vec![]),
        Unary::GeluTanh => ("Gelu", vec![Attribute::text("approximate", "tanh")]),
        Unary::HardSigmoid { alpha, beta } => ("HardSigmoid", vec![float("alpha", alpha), float("beta", beta)]),
        Unary::HardSwish => ("HardSwish", vec![]),
        Unary::IsNan => ("IsNaN", vec![]),
        Unary::IsInf { negative, positive } => {
            ("IsInf", vec![Attribute::flag("detect_negative", negative), Attribute::flag("detect_positive", positive)])
        }
        Unary::LeakyRelu { alpha } => ("LeakyRelu", vec![float("alpha", alpha)]),
        Unary::Log => ("Log", vec![]),
        Unary::Mish => ("Mish", vec![]),
        Unary::Neg => ("Neg", vec![]),
        Unary::Reciprocal => ("Reciprocal", vec![]),
        Unary::Relu => ("Relu", vec![]),
        Unary::Round => ("Round", vec![]),
        Unary::Selu { alpha, gamma } => ("Selu", vec![float("alpha", alpha), float("gamma", gamma)]),
        Unary::Shrink { bias, lambda } => ("Shrink", vec![float("bias", bias), float("lambd", lambda)]),
        Unary::Sigmoid => ("Sigmoid", vec![]),
        Unary::Sign => ("Sign", vec![]),
        Unary::Sin => ("Sin", vec![]),
        Unary::Sinh => ("Sinh", vec![]),
        Unary::Softplus => ("Softplus", vec![]),
        Unary::Softsign => ("Softsign", vec![]),
        Unary::Sqrt => ("Sqrt", vec![]),
        Unary::Tan => ("Tan", vec![]),
        Unary::Tanh => ("Tanh", vec![]),
        Unary::ThresholdedRelu { alpha } => ("ThresholdedRelu", vec![float("alpha", alpha)]),
        Unary::Affine { .. } | Unary::Clip { .. } | Unary::Not | Unary::Silu => return None,
    })
}

impl Made<'_> {
    /// A unary function on values of a dtype.
    pub(crate) fn unary(&mut self, function: Unary, x: String, dtype: DType) -> String {
        if let Some((kind, attributes)) = plain(function) {
            return self.push(kind, [x], attributes);
        }
        match function {
            Unary::Affine { scale, shift } => {
                let [scale, shift] = [scale, shift].map(|number| self.constant(Tensor::scalar(number).cast(dtype)));
                let product = self.push("Mul", [x, scale], vec![]);
                self.push("Add", [product, shift], vec![])
            }
            Unary::Clip { min, max } => {
                let limits = [min, max].map(|limit| self.constant(Tensor::scalar(limit).cast(dtype)));
                let [min, max] = limits;
                self.push("Clip", [x, min, max], vec![])
            }
            Unary::Silu => {
                let gate = self.push("Sigmoid", [x.clone()], vec![]);
                self.push("Mul", [x, gate], vec![])
            }
            _ if dtype == DType::Bool => self.push("Not", [x], vec![]),
            _ => {
                let x = self.cast(x, DType::Bool);
                let x = self.push("Not", [x], vec![]);
                self.cast(x, dtype)
            }
        }
    }

    /// A binary function; `left` and `out` are the shapes of the first operand and of the result. `None` if ONNX has none
    /// for the dtype.
    pub(crate) fn binary(
        &mut self,
        function: Binary,
        [a, b]: [String; 2],
        dtype: DType,
        [left, out]: [&Shape; 2],
    ) -> Option<String> {
        let logical = dtype == DType::Bool;
        let kind = match function {
            Binary::Add => "Add",
            Binary::And if logical => "And",
            Binary::And => "BitwiseAnd",
            Binary::Div => "Div",
            Binary::Max => "Max",
            Binary::Min => "Min",
            Binary::Mod if dtype.is_float() => return Some(self.floored_remainder([a, b], dtype)),
            Binary::Mod => return Some(self.push("Mod", [a, b], vec![])),
            Binary::Mul => "Mul",
            Binary::Or if logical => "Or",
            Binary::Or => "BitwiseOr",
            Binary::Pow => "Pow",
            Binary::PRelu if left == out => "PRelu",
            Binary::PRelu => {
                let negative = self.is_negative(a.clone(), dtype);
                let product = self.push("Mul", [a.clone(), b], vec![]);
                return Some(self.push("Where", [negative, product, a], vec![]));
            }
            Binary::Rem => return Some(self.push("Mod", [a, b], vec![Attribute::flag("fmod", true)])),
            Binary::ShiftLeft | Binary::ShiftRight => {
                if ![DType::U8, DType::U16, DType::U32, DType::U64].contains(&dtype) {
                    return None;
                }
                let direction = if function == Binary::ShiftLeft { "LEFT" } else { "RIGHT" };
                return Some(self.push("BitShift", [a, b], vec![Attribute::text("direction", direction)]));
            }
            Binary::Sub => "Sub",
            Binary::Xor if logical => "Xor",
            Binary::Xor => "BitwiseXor",
        };
        Some(self.push(kind, [a, b], vec![]))
    }

    fn is_negative(&mut self, x: String, dtype: DType) -> String {
        let zero = self.constant(Tensor::scalar(0.0f32).cast(dtype));
        self.push("Less", [x, zero], vec![])
    }

    /// The float remainder with the divisor's sign: C's `fmod`, plus the divisor if the signs differ.
    fn floored_remainder(&mut self, [a, b]: [String; 2], dtype: DType) -> String {
        let rest = self.push("Mod", [a, b.clone()], vec![Attribute::flag("fmod", true)]);
        let product = self.push("Mul", [rest.clone(), b.clone()], vec![]);
        let differs = self.is_negative(product, dtype);
        let other = self.push("Add", [rest.clone(), b], vec![]);
        self.push("Where", [differs, other, rest], vec![])
    }
}

/// The operator of a comparison.
pub(crate) fn comparison(function: Compare) -> &'static str {
    match function {
        Compare::Equal => "Equal",
        Compare::Greater => "Greater",
        Compare::GreaterOrEqual => "GreaterOrEqual",
        Compare::Less => "Less",
        Compare::LessOrEqual => "LessOrEqual",
    }
}
