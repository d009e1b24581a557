//! [`Builder`]: layers by name, from which networks are written.
//!
//! A layer's name is its module path (`layer1.0.conv1`): its parameters are called `{name}.weight` and so on, as its
//! family's [`Dialect`] has it; its scope is the same path with `/`.

use std::collections::BTreeSet;

use ir::ops::{
    BatchNorm, Binary, Concat, Conv, Epilogue, Gather, LayerNorm, MatMul, Pool, PoolKind, Reduce, ReduceKind, Reshape,
    Slice, Softmax, Transpose,
};
use ir::{Graph, Op, ValueId, ops};
use smallvec::{SmallVec, smallvec};
use types::{Scope, Shape, Tensor, TensorFunction, pointwise};

use crate::{Init, ParameterSource, ZooError};

/// How a family of networks calls its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Torch's `state_dict`: `layer1.0.conv1.weight`; a norm has `weight`, `bias`, `running_mean`, `running_var`.
    Torch,
    /// Gluon's `save_parameters`: `features.0.weight`; a norm has `gamma`, `beta`, `running_mean`, `running_var`.
    Gluon,
    /// MXNet's symbols: `conv0_weight`; a norm has `gamma`, `beta`, `moving_mean`, `moving_var`.
    Symbol,
}

/// The kind of a parameter in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Weight,
    Bias,
    Scale,
    Shift,
    Mean,
    Variance,
}

impl Dialect {
    fn parameter(self, layer: &str, part: Part) -> String {
        let part = match (self, part) {
            (_, Part::Weight) | (Dialect::Torch, Part::Scale) => "weight",
            (_, Part::Bias) | (Dialect::Torch, Part::Shift) => "bias",
            (_, Part::Scale) => "gamma",
            (_, Part::Shift) => "beta",
            (Dialect::Symbol, Part::Mean) => "moving_mean",
            (Dialect::Symbol, Part::Variance) => "moving_var",
            (_, Part::Mean) => "running_mean",
            (_, Part::Variance) => "running_var",
        };
        match self {
            Dialect::Torch | Dialect::Gluon => format!("{layer}.{part}"),
            Dialect::Symbol => format!("{layer}_{part}"),
        }
    }
}

/// A window over images: kernel, stride and padding of a convolution or pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    kernel: [usize; 2],
    stride: [usize; 2],
    /// In front of and behind rows and columns.
    pad: [[usize; 2]; 2],
    ceil: bool,
}

impl Window {
    /// `side` by `side` cells, stride 1, no padding.
    pub const fn square(side: usize) -> Window {
        Window::cells(side, side)
    }

    /// `rows` by `columns` cells, stride 1, no padding.
    pub const fn cells(rows: usize, columns: usize) -> Window {
        Window { kernel: [rows, columns], stride: [1, 1], pad: [[0, 0]; 2], ceil: false }
    }

    /// With a stride in both directions.
    #[must_use]
    pub const fn stride(self, stride: usize) -> Window {
        self.strides(stride, stride)
    }

    /// With a stride along rows and one along columns.
    #[must_use]
    pub const fn strides(self, down: usize, across: usize) -> Window {
        Window { stride: [down, across], ..self }
    }

    /// With padding on all four sides.
    #[must_use]
    pub const fn pad(self, pad: usize) -> Window {
        self.pads(pad, pad)
    }

    /// With padding above and below, and padding on both sides.
    #[must_use]
    pub const fn pads(self, rows: usize, columns: usize) -> Window {
        Window { pad: [[rows; 2], [columns; 2]], ..self }
    }

    /// With the padding that keeps the extents at stride 1, half of it on each side; kernels are odd.
    #[must_use]
    pub fn centred(self) -> Window {
        Window { pad: self.kernel.map(|cells| [cells / 2, cells / 2]), ..self }
    }

    /// With TensorFlow's padding "same" for an input of `rows` by `columns`: the padding for `ceil(extent / stride)`
    /// places, the odd cell behind.
    #[must_use]
    pub fn same(self, [rows, columns]: [usize; 2]) -> Window {
        let pad = |extent: usize, kernel: usize, stride: usize| {
            let reach = (extent.div_ceil(stride) - 1) * stride + kernel;
            let missing = reach.saturating_sub(extent);
            [missing / 2, missing - missing / 2]
        };
        let pad = [pad(rows, self.kernel[0], self.stride[0]), pad(columns, self.kernel[1], self.stride[1])];
        Window { pad, ..self }
    }

    /// With a last place that may hang over the end (pooling only).
    #[must_use]
    pub fn ceil(self) -> Window {
        Window { ceil: true, ..self }
    }
}

/// A graph that grows layer by layer, and the weights for it.
pub struct Builder<'w> {
    pub(crate) graph: Graph,
    network: &'static str,
    dialect: Dialect,
    weights: &'w mut dyn ParameterSource,
    /// Outputs besides the one that a network yields.
    pub(crate) also: Vec<(&'static str, ValueId)>,
    /// Matrices that are the transposes of the parameters of their names.
    pub(crate) transposed: BTreeSet<ValueId>,
}

impl<'w> Builder<'w> {
    pub(crate) fn new(network: &'static str, dialect: Dialect, weights: &'w mut dyn ParameterSource) -> Builder<'w> {
        Builder { graph: Graph::new(network), network, dialect, weights, also: Vec::new(), transposed: BTreeSet::new() }
    }

    /// Makes a value an output of the network, besides the one that it yields.
    pub fn also(&mut self, name: &'static str, x: ValueId) {
        self.also.push((name, x));
    }

    /// The error for an input that the network does not take.
    pub fn refused<T>(&self, problem: String) -> Result<T, ZooError> {
        Err(ZooError::Input { network: self.network, problem })
    }

    /// The shape of a value.
    pub fn shape(&self, x: ValueId) -> &Shape {
        &self.graph.ty(x).shape
    }

    /// The channels of a value.
    pub fn channels(&self, x: ValueId) -> usize {
        self.shape(x)[1]
    }

    /// The rows and columns of a value.
    pub fn extent(&self, x: ValueId) -> [usize; 2] {
        [self.shape(x)[2], self.shape(x)[3]]
    }

    /// Convolution to `out` channels, without bias.
    pub fn conv(&mut self, x: ValueId, name: &str, out: usize, window: Window) -> Result<ValueId, ZooError> {
        self.convolve(x, name, out, window, 1, false)
    }

    /// Convolution to `out` channels, with bias.
    pub fn conv_bias(&mut self, x: ValueId, name: &str, out: usize, window: Window) -> Result<ValueId, ZooError> {
        self.convolve(x, name, out, window, 1, true)
    }

    /// Convolution of each channel by itself, without bias.
    pub fn depthwise(&mut self, x: ValueId, name: &str, window: Window) -> Result<ValueId, ZooError> {
        let channels = self.channels(x);
        self.convolve(x, name, channels, window, channels, false)
    }

    fn convolve(
        &mut self,
        x: ValueId,
        name: &str,
        out: usize,
        window: Window,
        groups: usize,
        bias: bool,
    ) -> Result<ValueId, ZooError> {
        let group_in = self.channels(x) / groups;
        let [rows, columns] = window.kernel;
        let fan_in = group_in * rows * columns;
        let mut operands: SmallVec<[ValueId; 4]> = smallvec![x];
        let shape = Shape::from([out, group_in, rows, columns]);
        operands.push(self.parameter(name, Part::Weight, shape, Init::Weight { fan_in })?);
        if bias {
            operands.push(self.parameter(name, Part::Bias, Shape::from([out]), Init::Bias)?);
        }
        let conv = Conv {
            stride: window.stride.into_iter().collect(),
            dilation: smallvec![1; 2],
            pad: window.pad.into_iter().collect(),
            groups,
            zero: 0,
            epilogue: Epilogue::bias(bias),
        };
        self.node(conv, &operands, name)
    }

    /// Batch normalisation with torch's epsilon, 1e-5.
    pub fn batch_norm(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.normalize(x, name, 1e-5, Init::Scale)
    }

    /// Batch normalisation with another epsilon.
    pub fn batch_norm_with(&mut self, x: ValueId, name: &str, epsilon: f32) -> Result<ValueId, ZooError> {
        self.normalize(x, name, epsilon, Init::Scale)
    }

    /// Batch normalization with a scale of 1, regardless of the file (MXNet's `fix_gamma`).
    pub fn batch_norm_unscaled(&mut self, x: ValueId, name: &str, epsilon: f32) -> Result<ValueId, ZooError> {
        self.normalize(x, name, epsilon, Init::One)
    }

    /// The last batch normalisation of a residual branch.
    pub fn branch_norm(&mut self, x: ValueId, name: &str, epsilon: f32) -> Result<ValueId, ZooError> {
        self.normalize(x, name, epsilon, Init::BranchScale)
    }

    fn normalize(&mut self, x: ValueId, name: &str, epsilon: f32, scale: Init) -> Result<ValueId, ZooError> {
        let shape = Shape::from([self.channels(x)]);
        let operands = [
            x,
            self.parameter(name, Part::Scale, shape.clone(), scale)?,
            self.parameter(name, Part::Shift, shape.clone(), Init::Shift)?,
            self.statistic(name, Part::Mean, &shape, Init::Mean)?,
            self.statistic(name, Part::Variance, &shape, Init::Variance)?,
        ];
        self.node(BatchNorm { epsilon }, &operands, name)
    }

    /// Layer normalisation over the last dimension.
    pub fn layer_norm(&mut self, x: ValueId, name: &str, epsilon: f32) -> Result<ValueId, ZooError> {
        let axis = self.shape(x).rank() - 1;
        let shape = Shape::from([self.shape(x)[axis]]);
        let operands = [
            x,
            self.parameter(name, Part::Scale, shape.clone(), Init::Scale)?,
            self.parameter(name, Part::Shift, shape, Init::Shift)?,
        ];
        self.node(LayerNorm { axis, epsilon, scale: true, shift: true }, &operands, name)
    }

    /// `x W^T + b` along the last dimension, with `out` results. The graph holds `W^T`, under the name of `W`.
    pub fn linear(&mut self, x: ValueId, name: &str, out: usize) -> Result<ValueId, ZooError> {
        let inputs = *self.shape(x).last().expect("what is multiplied has dimensions");
        let (weight, bias) = self.linear_parameters(name, inputs, out)?;
        self.linear_with(x, weight, bias, name)
    }

    /// `W^T` and `b` of a linear layer.
    pub fn linear_parameters(&mut self, name: &str, inputs: usize, out: usize) -> Result<(ValueId, ValueId), ZooError> {
        let path = self.dialect.parameter(name, Part::Weight);
        let weight = self.weights.take(&path, &Shape::from([out, inputs]), Init::Weight { fan_in: inputs })?;
        let weight = self.graph.add_weight(&path, transposed(&weight));
        self.transposed.insert(weight);
        Ok((weight, self.parameter(name, Part::Bias, Shape::from([out]), Init::Bias)?))
    }

    /// A linear layer with parameters that the graph has already.
    pub fn linear_with(&mut self, x: ValueId, weight: ValueId, bias: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(MatMul { epilogue: Epilogue::bias(true), ..MatMul::default() }, &[x, weight, bias], name)
    }

    /// `max(x, 0)`
    pub fn relu(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(ops::Unary(pointwise::Unary::Relu), &[x], name)
    }

    /// `min(max(x, 0), 6)`
    pub fn relu6(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(ops::Unary(pointwise::Unary::Clip { min: 0.0, max: 6.0 }), &[x], name)
    }

    /// The logistic function.
    pub fn sigmoid(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(ops::Unary(pointwise::Unary::Sigmoid), &[x], name)
    }

    /// The hyperbolic tangent.
    pub fn tanh(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(ops::Unary(pointwise::Unary::Tanh), &[x], name)
    }

    /// The product of two values whose shapes broadcast.
    pub fn multiply(&mut self, a: ValueId, b: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(Binary(pointwise::Binary::Mul), &[a, b], name)
    }

    /// `1 - x`
    pub fn one_minus(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        let one = self.graph.add_constant(&format!("{name}.one"), Tensor::scalar(1.0f32));
        self.node(Binary(pointwise::Binary::Sub), &[one, x], name)
    }

    /// The product with a number.
    pub fn times(&mut self, x: ValueId, factor: f32, name: &str) -> Result<ValueId, ZooError> {
        let factor = self.graph.add_constant(&format!("{name}.factor"), Tensor::scalar(factor));
        self.multiply(x, factor, name)
    }

    /// The sum of two values whose shapes broadcast.
    pub fn add(&mut self, a: ValueId, b: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(Binary(pointwise::Binary::Add), &[a, b], name)
    }

    /// Channels one behind the other.
    pub fn concat(&mut self, parts: &[ValueId], name: &str) -> Result<ValueId, ZooError> {
        self.concat_along(1, parts, name)
    }

    /// Values one behind the other along an axis.
    pub fn concat_along(&mut self, axis: usize, parts: &[ValueId], name: &str) -> Result<ValueId, ZooError> {
        self.node(Concat { axis }, parts, name)
    }

    /// `count` elements along an axis, from `start` on.
    pub fn slice(
        &mut self,
        x: ValueId,
        axis: usize,
        start: usize,
        count: usize,
        name: &str,
    ) -> Result<ValueId, ZooError> {
        self.node(Slice::range(self.shape(x), axis, start, count), &[x], name)
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: ValueId, shape: impl Into<Shape>, name: &str) -> Result<ValueId, ZooError> {
        self.node(Reshape { shape: shape.into() }, &[x], name)
    }

    /// Dimensions in another order.
    pub fn transpose(&mut self, x: ValueId, order: &[usize], name: &str) -> Result<ValueId, ZooError> {
        self.node(Transpose { order: order.into() }, &[x], name)
    }

    /// The matrix product of the last two dimensions.
    pub fn matmul(&mut self, a: ValueId, b: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(MatMul::default(), &[a, b], name)
    }

    /// Rows of a table of `rows` by `width` parameters: ids of any shape get one dimension more.
    pub fn embedding(&mut self, ids: ValueId, name: &str, rows: usize, width: usize) -> Result<ValueId, ZooError> {
        let table = self.table(name, rows, width)?;
        self.node(Gather { axis: 0 }, &[table, ids], name)
    }

    /// The table of an embedding.
    pub fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<ValueId, ZooError> {
        self.parameter(name, Part::Weight, Shape::from([rows, width]), Init::Table)
    }

    /// The largest cell of each window.
    pub fn max_pool(&mut self, x: ValueId, name: &str, window: Window) -> Result<ValueId, ZooError> {
        self.pool(x, name, window, PoolKind::Max)
    }

    /// The mean of each window, padding counted as zeros.
    pub fn mean_pool(&mut self, x: ValueId, name: &str, window: Window) -> Result<ValueId, ZooError> {
        self.pool(x, name, window, PoolKind::MeanWithPadding)
    }

    fn pool(&mut self, x: ValueId, name: &str, window: Window, kind: PoolKind) -> Result<ValueId, ZooError> {
        let pool = Pool {
            kind,
            kernel: window.kernel.into_iter().collect(),
            stride: window.stride.into_iter().collect(),
            dilation: smallvec![1; 2],
            pad: window.pad.into_iter().collect(),
            ceil: window.ceil,
        };
        self.node(pool, &[x], name)
    }

    /// Torch's `AdaptiveAvgPool2d(side)`, for extents that `side` divides: nothing where they are `side` already.
    pub fn adaptive_mean_pool(&mut self, x: ValueId, name: &str, side: usize) -> Result<ValueId, ZooError> {
        let [rows, columns] = self.extent(x);
        if [rows, columns] == [side, side] {
            return Ok(x);
        }
        if rows != columns || !rows.is_multiple_of(side) {
            let problem = format!("`{name}` pools to {side}x{side}, which does not divide {rows}x{columns}");
            return self.refused(problem);
        }
        self.mean_pool(x, name, Window::square(rows / side).stride(rows / side))
    }

    /// The mean of each channel: `[n, c, h, w]` -> `[n, c]`.
    pub fn global_mean(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(Reduce { kind: ReduceKind::Mean, axes: smallvec![2, 3], keep: false }, &[x], name)
    }

    /// `[n, c, h, w]` -> `[n, c * h * w]`
    pub fn flatten(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        let shape = self.shape(x);
        let shape = Shape::from([shape[0], shape[1..].iter().product()]);
        self.reshape(x, shape, name)
    }

    /// Probabilities along the last dimension.
    pub fn softmax(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        let axis = self.shape(x).rank() - 1;
        self.node(Softmax { axis, log: false }, &[x], name)
    }

    /// A parameter as the file has it, for layers that are put together by hand.
    pub fn take(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor, ZooError> {
        self.weights.take(name, &shape.into(), init)
    }

    fn parameter(&mut self, layer: &str, part: Part, shape: Shape, init: Init) -> Result<ValueId, ZooError> {
        let name = self.dialect.parameter(layer, part);
        let mut tensor = self.weights.take(&name, &shape, init)?;
        if init == Init::One {
            tensor = Tensor::full(shape, 1.0f32);
        }
        Ok(self.graph.add_weight(&name, tensor))
    }

    /// Training state that is not learned (running statistics).
    fn statistic(&mut self, layer: &str, part: Part, shape: &Shape, init: Init) -> Result<ValueId, ZooError> {
        let name = self.dialect.parameter(layer, part);
        let tensor = self.weights.take(&name, shape, init)?;
        Ok(self.graph.add_constant(&name, tensor))
    }

    /// Any operator with one result.
    pub fn node(&mut self, op: impl Into<Op>, operands: &[ValueId], name: &str) -> Result<ValueId, ZooError> {
        let scope = Scope::new(&name.replace('.', "/"));
        self.graph.add1(op.into(), operands, scope.clone()).map_err(|refusal| ZooError::Refused { scope, refusal })
    }
}

/// A matrix of `f32` with rows and columns exchanged.
pub(crate) fn transposed(matrix: &Tensor) -> Tensor {
    let exchange = TensorFunction::Transpose([1, 0].as_slice().into());
    Tensor::derived(exchange, &[matrix]).expect("`ParameterSource::take` gives f32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposes_matrices() {
        let matrix = Tensor::from_fn(Shape::from([37, 70]), |ix| ix as f32);
        let out = transposed(&matrix);
        assert_eq!(*out.shape(), Shape::from([70, 37]));
        let items: &[f32] = out.as_slice().unwrap();
        assert!((0..37 * 70).all(|ix| items[ix % 70 * 37 + ix / 70] == ix as f32));
    }

    #[test]
    fn pads_like_tensorflow() {
        let pad = |window: Window, side: usize| window.same([side, side]).pad[0];
        assert_eq!(pad(Window::square(3), 7), [1, 1]);
        assert_eq!(pad(Window::square(3).stride(2), 224), [0, 1]);
        assert_eq!(pad(Window::square(3).stride(2), 225), [1, 1]);
        assert_eq!(pad(Window::square(5).stride(2), 56), [1, 2]);
        assert_eq!(pad(Window::square(1).stride(2), 8), [0, 0]);
    }
}
