//! The shapes of the model's inputs: declared in the file, with dynamic dimensions chosen by the caller.

use ir::TensorType;
use types::{DType, Shape, Tensor};

use super::model::{Dim, Type, ValueInfo};
use super::{LoadError, Options, Unbound, tensor};
use crate::common::Narrow;

/// An input with a static type.
pub(super) struct Input<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: DType,
    /// Its element type in the file: each number of few bits takes a byte at run time.
    pub(super) narrow: Option<Narrow>,
    pub(super) shape: Shape,
    /// Its value, if the caller makes it a constant.
    pub(super) fixed: Option<Tensor>,
}

/// Binds all inputs, or returns every dimension that stays dynamic.
pub(super) fn bind<'a>(infos: &[&ValueInfo<'a>], options: &Options) -> Result<Vec<Input<'a>>, LoadError> {
    let named = [("shape", options.shapes.keys().collect::<Vec<_>>()), ("value", options.fixed.keys().collect())];
    for (given, names) in named {
        if let Some(name) = names.into_iter().find(|name| !infos.iter().any(|info| info.name == name.as_str())) {
            let inputs = infos.iter().map(|info| info.name.to_string()).collect();
            return Err(LoadError::UnknownInput { given, name: name.clone(), inputs });
        }
    }
    let mut inputs = Vec::new();
    let mut open = Vec::new();
    for info in infos {
        let refused = |reason: String| LoadError::Input { input: info.name.to_string(), reason };
        let (element, dims) = match &info.ty {
            Type::Tensor { element, dims } => (*element, dims.as_deref()),
            Type::Other(kind) => return Err(refused(format!("must be a tensor, got {kind}"))),
            Type::Missing => return Err(refused("has no type".to_string())),
        };
        let narrow = tensor::narrow(element).filter(|narrow| narrow.range().is_some());
        let dtype = match narrow {
            Some(narrow) => narrow.dtype(),
            None => tensor::dtype(element).map_err(refused)?,
        };
        match shape(info.name, dims, options)? {
            Ok(shape) => {
                let ty = TensorType::new(dtype, shape);
                ty.check_size().map_err(|refusal| refused(refusal.0))?;
                let shape = ty.shape;
                let fixed = options.fixed.get(info.name).map(|&value| fixed(info.name, value, dtype, narrow, &shape));
                inputs.push(Input { name: info.name, dtype, narrow, fixed: fixed.transpose()?, shape });
            }
            Err(unbound) => open.extend(unbound),
        }
    }
    if open.is_empty() { Ok(inputs) } else { Err(LoadError::UnboundDimension(open)) }
}

/// The tensor of an input that the caller makes a constant.
fn fixed(name: &str, value: f64, dtype: DType, narrow: Option<Narrow>, shape: &Shape) -> Result<Tensor, LoadError> {
    let refused = |reason: String| Err(LoadError::Fixed { input: name.to_string(), value, reason });
    if shape.elements() != 1 {
        return refused(format!("it must have one element, got shape {shape}"));
    }
    if let Some([least, most]) = narrow.and_then(Narrow::range)
        && !(f64::from(least)..=f64::from(most)).contains(&value)
    {
        return refused(format!("it must be in {least}..={most}"));
    }
    let tensor = Tensor::full(shape.clone(), value).cast(dtype);
    match dtype.is_float() || tensor.to_f64() == [value] {
        true => Ok(tensor),
        false => refused(format!("its dtype {dtype} cannot represent the value")),
    }
}

/// The shape of one input, or its dynamic dimensions.
fn shape(name: &str, dims: Option<&[Dim]>, options: &Options) -> Result<Result<Shape, Vec<Unbound>>, LoadError> {
    if let Some(given) = options.shapes.get(name) {
        let fits = |dims: &[Dim]| {
            let agree = |(dim, &extent): (&Dim, &usize)| match dim {
                Dim::Extent(declared) => usize::try_from(*declared) == Ok(extent),
                _ => true,
            };
            dims.len() == given.rank() && dims.iter().zip(given.iter()).all(agree)
        };
        return match dims {
            Some(dims) if !fits(dims) => {
                let declared = format!("[{}]", describe(dims).join(","));
                Err(LoadError::ShapeConflict { input: name.to_string(), given: given.clone(), declared })
            }
            _ => Ok(Ok(given.clone())),
        };
    }
    let Some(dims) = dims else {
        let (input, example) = (name.to_string(), "1x3x224x224".to_string());
        return Ok(Err(vec![Unbound { input, dimension: None, name: None, example, is_batch: false }]));
    };
    let mut shape = Shape::scalar();
    let mut open = Vec::new();
    for (dimension, dim) in dims.iter().enumerate() {
        match (dim, options.batch.filter(|_| dimension == 0)) {
            (Dim::Extent(extent), Some(batch)) if usize::try_from(*extent) != Ok(batch) => {
                return Err(LoadError::BatchConflict { input: name.to_string(), extent: *extent, batch });
            }
            // An extent that does not fit saturates; it is then refused for its number of elements.
            (Dim::Extent(extent), _) => shape.push(usize::try_from(*extent).unwrap_or(usize::MAX)),
            (_, Some(batch)) => shape.push(batch),
            (Dim::Named(_) | Dim::Unknown, None) => open.push(dimension),
        }
    }
    if open.is_empty() {
        return Ok(Ok(shape));
    }
    let is_batch = open == [0];
    let unbound = |dimension: usize| Unbound {
        input: name.to_string(),
        dimension: Some(dimension),
        name: match dims[dimension] {
            Dim::Named(name) => Some(name.to_string()),
            _ => None,
        },
        example: describe(dims).join("x"),
        is_batch,
    };
    Ok(Err(open.into_iter().map(unbound).collect()))
}

/// Extents as text, with letters for dynamic ones.
fn describe(dims: &[Dim]) -> Vec<String> {
    let letter = |ix: usize| match (dims.len(), ix) {
        (_, 0) => "N",
        (4, 1) => "C",
        (4, 2) => "H",
        (4, 3) => "W",
        _ => "L",
    };
    let text = |(ix, dim): (usize, &Dim)| match dim {
        Dim::Extent(extent) => extent.to_string(),
        _ => letter(ix).to_string(),
    };
    dims.iter().enumerate().map(text).collect()
}
