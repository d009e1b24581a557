//! Linear models and preparations of features of domain `ai.onnx.ml`, which converters of scikit-learn write. Sources: ONNX,
//! docs/Operators-ml.md; onnxruntime, `core/providers/cpu/ml`.

use ir::ops::{self, ReduceKind, Slice};
use ir::{Refusal, TensorType};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape, Tensor};

use super::scores::{self, Labels, PostTransform};
use crate::common::{NodeResult, Operand, counts, refuse};
use crate::onnx::node::ImportedNode;

/// The input as a matrix of floats, `f32` unless it is `f64`; a vector is one row.
pub(super) fn features(node: &mut ImportedNode) -> Result<Operand, Refusal> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let x = match shape[..] {
        [_, _] => x,
        [features] => node.reshape(x, Shape::from([1, features]))?,
        _ => refuse!("input must be a matrix, got {shape}"),
    };
    let dtype = if node.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
    node.cast(x, dtype)
}

fn floats(node: &ImportedNode, name: &str) -> Result<Vec<f32>, Refusal> {
    Ok(node.floats(name)?.map(<[f32]>::to_vec).unwrap_or_default())
}

/// `x w + b` in `f32`, for `rows` rows of coefficients.
fn product(node: &mut ImportedNode, rows: usize) -> Result<Operand, Refusal> {
    let x = features(node)?;
    let x = node.cast(x, DType::F32)?;
    let columns = node.shape(x)[1];
    let (coefficients, intercepts) = (floats(node, "coefficients")?, floats(node, "intercepts")?);
    if rows == 0 || coefficients.len() != rows.saturating_mul(columns) {
        refuse!("attribute `coefficients` must have {rows} rows of {columns} numbers, got {}", coefficients.len());
    }
    let weights =
        Tensor::new(Shape::from([rows, columns]), coefficients).map_err(|error| Refusal(error.to_string()))?;
    let weights = node.constant_of_file(weights);
    let weights = node.transpose(weights, &[1, 0])?;
    let y = node.mat_mul(x, weights)?;
    if intercepts.is_empty() {
        return Ok(y);
    }
    if intercepts.len() != rows {
        refuse!("attribute `intercepts` must have {rows} numbers, got {}", intercepts.len());
    }
    let intercepts = node.constant_of_file(Tensor::vector(intercepts));
    node.binary(Binary::Add, y, intercepts)
}

/// `LinearRegressor`: `x: [rows, features]` -> `[rows, targets]` of `f32`.
pub(super) fn regressor(node: &mut ImportedNode) -> NodeResult {
    let targets = counts(&[node.int_or("targets", 1)?], "targets")?[0];
    let transform = PostTransform::read(node)?;
    let y = product(node, targets)?;
    Ok(vec![if targets == 1 { y } else { transform.apply(node, y)? }])
}

/// `LinearClassifier`: `x: [rows, features]` -> the label of each row, and `[rows, classes]` scores of `f32`. The label is that
/// of the largest score.
pub(super) fn classifier(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["multi_class"]);
    let labels = Labels::read(node, "classlabels_ints")?;
    let rows = floats(node, "intercepts")?.len();
    if rows != labels.count {
        refuse!("there must be an intercept for each of {} labels, got {rows}", labels.count);
    }
    let transform = PostTransform::read(node)?;
    let y = product(node, rows)?;
    scores::multiclass(node, y, &labels, transform)
}

/// A list of one number, or of one for each of `columns`, as a constant.
fn by_column(node: &mut ImportedNode, list: Vec<f32>, name: &str, columns: usize) -> Result<Operand, Refusal> {
    match list.len() {
        1 => Ok(node.constant(Tensor::scalar(list[0]))),
        count if count == columns => Ok(node.constant_of_file(Tensor::vector(list))),
        count => refuse!("attribute `{name}` must have 1 or {columns} numbers, got {count}"),
    }
}

/// `Scaler`: `(x - offset) * scale` along the last axis, in `f32`.
pub(super) fn scaler(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let Some(&columns) = shape.last() else { refuse!("input must have rank >= 1, got {shape}") };
    let mut y = node.cast(x, DType::F32)?;
    for (name, function) in [("offset", Binary::Sub), ("scale", Binary::Mul)] {
        let list = floats(node, name)?;
        if list.is_empty() {
            refuse!("attribute `{name}` is missing");
        }
        let part = by_column(node, list, name, columns)?;
        y = node.binary(function, y, part)?;
    }
    Ok(vec![y])
}

/// `Normalizer`: each row divided by its largest element, or by the sum of its magnitudes or squares, in `f32`. A divisor of 0
/// counts as 1.
pub(super) fn normalizer(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let Some(last) = shape.rank().checked_sub(1).filter(|&last| last <= 1) else {
        refuse!("input must be a vector or a matrix, got {shape}")
    };
    let x = node.cast(x, DType::F32)?;
    let kind = match node.text_or("norm", "MAX") {
        "MAX" => ReduceKind::Max,
        "L1" => ReduceKind::L1,
        "L2" => ReduceKind::L2,
        other => refuse!("attribute `norm` must be `MAX`, `L1` or `L2`, got `{other}`"),
    };
    let divisor = node.reduce(kind, x, smallvec![last], true)?;
    let (zero, one) = (node.number(0.0, DType::F32), node.number(1.0, DType::F32));
    let is_zero = node.compare(Compare::Equal, divisor, zero)?;
    let divisor = node.select(is_zero, one, divisor)?;
    Ok(vec![node.binary(Binary::Div, x, divisor)?])
}

/// `Imputer`: the value of missing elements is replaced, by one number or by that of its column.
pub(super) fn imputer(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let (shape, dtype) = (node.shape(x), node.dtype(x));
    let Some(&columns) = shape.last() else { refuse!("input must have rank >= 1, got {shape}") };
    let (values, replaced) = if dtype.is_float() {
        node.ignore(&["imputed_value_int64s", "replaced_value_int64"]);
        let values = floats(node, "imputed_value_floats")?;
        (Tensor::vector(values).cast(dtype), f64::from(node.float_or("replaced_value_float", 0.0)?))
    } else {
        node.ignore(&["imputed_value_floats", "replaced_value_float"]);
        let values = node.ints("imputed_value_int64s")?.unwrap_or_default();
        (Tensor::vector(values).cast(dtype), node.int_or("replaced_value_int64", 0)? as f64)
    };
    if ![1, columns].contains(&values.elements()) {
        refuse!("there must be 1 or {columns} imputed values of the kind of {dtype}, got {}", values.elements());
    }
    let values = node.constant_of_file(values);
    let is_missing = if replaced.is_nan() {
        let equal = node.compare(Compare::Equal, x, x)?;
        node.unary(Unary::Not, equal)?
    } else {
        let replaced = node.number(replaced, dtype);
        node.compare(Compare::Equal, x, replaced)?
    };
    Ok(vec![node.select(is_missing, values, x)?])
}

/// `OneHotEncoder`: a new last axis with 1 at the category of each element, in `f32`. An element of no category has zeros;
/// with attribute `zeros` 0 it would be an error at run time, which is refused.
pub(super) fn one_hot(node: &mut ImportedNode) -> NodeResult {
    if node.texts("cats_strings")?.is_some_and(|texts| !texts.is_empty()) {
        refuse!("attribute `cats_strings`: strings are not supported");
    }
    if node.int_or("zeros", 1)? == 0 {
        refuse!("attribute `zeros` must be 1: elements of no category have zeros");
    }
    let categories = node.ints("cats_int64s")?.unwrap_or_default();
    if categories.is_empty() {
        refuse!("attribute `cats_int64s` is missing");
    }
    let mut sorted = categories.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        refuse!("categories must be distinct");
    }
    let x = node.input(0)?;
    let x = node.cast(x, DType::I64)?;
    let shape = node.shape(x).iter().copied().chain([1]).collect();
    let x = node.reshape(x, shape)?;
    let categories = node.constant(Tensor::vector(categories));
    let hot = node.compare(Compare::Equal, x, categories)?;
    Ok(vec![node.cast(hot, DType::F32)?])
}

/// `FeatureVectorizer`: matrices side by side, in `f32`; each is cut or filled with zeros to its number of columns.
pub(super) fn vectorizer(node: &mut ImportedNode) -> NodeResult {
    let inputs = node.all_inputs()?;
    let wanted = counts(&node.ints("inputdimensions")?.unwrap_or_default(), "inputdimensions")?;
    if wanted.len() != inputs.len() {
        refuse!("attribute `inputdimensions` must have {} numbers, got {}", inputs.len(), wanted.len());
    }
    let mut parts = Vec::new();
    for (&input, &columns) in inputs.iter().zip(&wanted) {
        let mut x = node.cast(input, DType::F32)?;
        let shape = node.shape(x);
        let own = match shape[..] {
            [_, own] => own,
            [rows] => {
                x = node.reshape(x, Shape::from([rows, 1]))?;
                1
            }
            _ => refuse!("inputs must be vectors or matrices, got {shape}"),
        };
        if columns < own {
            let shape = node.shape(x);
            x = node.apply(Slice::range(&shape, 1, 0, columns), &[x])?;
        } else if own < columns {
            TensorType::new(DType::F32, Shape::from([shape[0], columns])).check_size()?;
            let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], 2);
            pad[1] = [0, (columns - own) as isize];
            x = node.apply(ops::Pad { mode: ops::PadMode::Constant(0.0), pad }, &[x])?;
        }
        parts.push(x);
    }
    match parts[..] {
        [x] => Ok(vec![x]),
        _ => Ok(vec![node.apply(ops::Concat { axis: 1 }, &parts)?]),
    }
}

/// `SVMRegressor`: sums of a kernel of `x: [rows, features]` and each support vector, `[rows, 1]` of `f32`; the sign of them if
/// there is one class only.
pub(super) fn svm_regressor(node: &mut ImportedNode) -> NodeResult {
    let x = features(node)?;
    let x = node.cast(x, DType::F32)?;
    let columns = node.shape(x)[1];
    let coefficients = floats(node, "coefficients")?;
    let rho = match floats(node, "rho")?[..] {
        [rho] => rho,
        ref other => refuse!("attribute `rho` must have 1 number, got {}", other.len()),
    };
    if node.text_or("post_transform", "NONE") != "NONE" {
        refuse!("attribute `post_transform` must be `NONE`");
    }
    let supports = counts(&[node.int_or("n_supports", 0)?], "n_supports")?[0];
    let vectors = floats(node, "support_vectors")?;
    let matrix = |items: Vec<f32>, shape: [usize; 2]| {
        Tensor::new(Shape::from(shape), items).map_err(|error| Refusal(error.to_string()))
    };
    let kernels = if supports == 0 {
        node.ignore(&["kernel_type", "kernel_params"]);
        x
    } else {
        if vectors.len() != supports.saturating_mul(columns) {
            refuse!("attribute `support_vectors` must have {supports} x {columns} numbers, got {}", vectors.len());
        }
        kernel(node, x, matrix(vectors, [supports, columns])?)?
    };
    let terms = node.shape(kernels)[1];
    if coefficients.len() != terms {
        refuse!("attribute `coefficients` must have {terms} numbers, got {}", coefficients.len());
    }
    let coefficients = node.constant_of_file(matrix(coefficients, [terms, 1])?);
    let y = node.mat_mul(kernels, coefficients)?;
    let rho = node.number(f64::from(rho), DType::F32);
    let y = node.binary(Binary::Add, y, rho)?;
    if !node.flag("one_class")? {
        return Ok(vec![y]);
    }
    let [zero, inside, outside] = [0.0, 1.0, -1.0].map(|number| node.number(number, DType::F32));
    let is_inside = node.compare(Compare::Greater, y, zero)?;
    Ok(vec![node.select(is_inside, inside, outside)?])
}

/// The kernel of each row of `x` and each support vector, `[rows, supports]`.
fn kernel(node: &mut ImportedNode, x: Operand, vectors: Tensor) -> Result<Operand, Refusal> {
    let parameters = floats(node, "kernel_params")?;
    let [gamma, shift, degree] = match parameters[..] {
        [] => [0.0; 3],
        [gamma, shift, degree] => [gamma, shift, degree],
        _ => refuse!("attribute `kernel_params` must have 3 numbers, got {}", parameters.len()),
    };
    let name = node.text_or("kernel_type", "LINEAR").to_string();
    let squares: Vec<f32> = {
        let columns = vectors.shape()[1].max(1);
        let items = vectors.as_slice::<f32>().unwrap_or_default();
        items.chunks(columns).map(|row| row.iter().map(|item| item * item).sum()).collect()
    };
    let vectors = node.constant_of_file(vectors);
    let transposed = node.transpose(vectors, &[1, 0])?;
    let products = node.mat_mul(x, transposed)?;
    let scaled = |node: &mut ImportedNode| {
        let gamma = node.number(f64::from(gamma), DType::F32);
        let scaled = node.binary(Binary::Mul, products, gamma)?;
        let shift = node.number(f64::from(shift), DType::F32);
        node.binary(Binary::Add, scaled, shift)
    };
    match name.as_str() {
        "LINEAR" => Ok(products),
        "POLY" => {
            let sum = scaled(node)?;
            let degree = node.number(f64::from(degree), DType::F32);
            node.binary(Binary::Pow, sum, degree)
        }
        "SIGMOID" => {
            let sum = scaled(node)?;
            node.unary(Unary::Tanh, sum)
        }
        "RBF" => {
            // |x - v|^2 = |x|^2 - 2 x v + |v|^2
            let own = node.reduce(ReduceKind::SumSquare, x, smallvec![1], true)?;
            let others = node.constant_of_file(Tensor::vector(squares));
            let two = node.number(2.0, DType::F32);
            let twice = node.binary(Binary::Mul, products, two)?;
            let sum = node.binary(Binary::Sub, own, twice)?;
            let sum = node.binary(Binary::Add, sum, others)?;
            let zero = node.number(0.0, DType::F32);
            // Rounding may leave less than no distance.
            let sum = node.binary(Binary::Max, sum, zero)?;
            let gamma = node.number(-f64::from(gamma), DType::F32);
            let power = node.binary(Binary::Mul, sum, gamma)?;
            node.unary(Unary::Exp, power)
        }
        other => refuse!("attribute `kernel_type`: `{other}` is not supported"),
    }
}
