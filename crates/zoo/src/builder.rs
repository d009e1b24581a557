//! [`Builder`]: layers by name, from which networks are written.
//!
//! A layer's name is its module path (`layer1.0.conv1`): its parameters are called `{name}.weight` and so on, its scope
//! is the same path with `/`.

use ir::ops::{
    BatchNorm, Binary, Concat, Conv, Epilogue, MatMul, Pool, PoolKind, Reduce, ReduceKind, Reshape, Softmax,
};
use ir::{Graph, Op, ValueId, ops};
use smallvec::{SmallVec, smallvec};
use types::{Scope, Shape, Tensor, pointwise};

use crate::{Init, Weights, ZooError};

/// A window over images: kernel, stride and padding of a convolution or pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    kernel: [usize; 2],
    stride: usize,
    /// In front of and behind rows and columns.
    pad: [[usize; 2]; 2],
    ceil: bool,
}

impl Window {
    /// `side` by `side` cells, stride 1, no padding.
    pub fn square(side: usize) -> Window {
        Window::cells(side, side)
    }

    /// `rows` by `columns` cells, stride 1, no padding.
    pub fn cells(rows: usize, columns: usize) -> Window {
        Window { kernel: [rows, columns], stride: 1, pad: [[0, 0]; 2], ceil: false }
    }

    /// With a stride in both directions.
    #[must_use]
    pub fn stride(self, stride: usize) -> Window {
        Window { stride, ..self }
    }

    /// With padding on all four sides.
    #[must_use]
    pub fn pad(self, pad: usize) -> Window {
        Window { pad: [[pad, pad]; 2], ..self }
    }

    /// With the padding that keeps the extents at stride 1, half of it on each side; kernels are odd.
    #[must_use]
    pub fn centred(self) -> Window {
        Window { pad: self.kernel.map(|cells| [cells / 2, cells / 2]), ..self }
    }

    /// With TensorFlow's padding "same" for an input of `rows` by `columns`: what is missing for `ceil(extent / stride)`
    /// places, the odd cell behind.
    #[must_use]
    pub fn same(self, [rows, columns]: [usize; 2]) -> Window {
        let pad = |extent: usize, kernel: usize| {
            let reach = (extent.div_ceil(self.stride) - 1) * self.stride + kernel;
            let missing = reach.saturating_sub(extent);
            [missing / 2, missing - missing / 2]
        };
        Window { pad: [pad(rows, self.kernel[0]), pad(columns, self.kernel[1])], ..self }
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
    weights: &'w mut dyn Weights,
}

impl<'w> Builder<'w> {
    pub(crate) fn new(network: &'static str, weights: &'w mut dyn Weights) -> Builder<'w> {
        Builder { graph: Graph::new(network), network, weights }
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
        operands.push(self.weight(
            name,
            "weight",
            Shape::from([out, group_in, rows, columns]),
            Init::Weight { fan_in },
        )?);
        if bias {
            operands.push(self.weight(name, "bias", Shape::from([out]), Init::Bias)?);
        }
        let conv = Conv {
            stride: smallvec![window.stride; 2],
            dilation: smallvec![1; 2],
            pad: window.pad.into_iter().collect(),
            groups,
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

    /// The last batch normalisation of a residual branch.
    pub fn branch_norm(&mut self, x: ValueId, name: &str, epsilon: f32) -> Result<ValueId, ZooError> {
        self.normalize(x, name, epsilon, Init::BranchScale)
    }

    fn normalize(&mut self, x: ValueId, name: &str, epsilon: f32, scale: Init) -> Result<ValueId, ZooError> {
        let shape = Shape::from([self.channels(x)]);
        let operands = [
            x,
            self.weight(name, "weight", shape.clone(), scale)?,
            self.weight(name, "bias", shape.clone(), Init::Shift)?,
            self.statistic(name, "running_mean", &shape, Init::Mean)?,
            self.statistic(name, "running_var", &shape, Init::Variance)?,
        ];
        self.node(BatchNorm { epsilon }, &operands, name)
    }

    /// `x W^T + b` with `out` results. The graph holds `W^T`, under the name of `W`.
    pub fn linear(&mut self, x: ValueId, name: &str, out: usize) -> Result<ValueId, ZooError> {
        let fan_in = self.channels(x);
        let path = format!("{name}.weight");
        let weight = self.weights.take(&path, &Shape::from([out, fan_in]), Init::Weight { fan_in })?;
        let weight = self.graph.add_weight(&path, transposed(&weight));
        let bias = self.weight(name, "bias", Shape::from([out]), Init::Bias)?;
        self.node(MatMul { epilogue: Epilogue::bias(true) }, &[x, weight, bias], name)
    }

    /// `max(x, 0)`
    pub fn relu(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(ops::Unary(pointwise::Unary::Relu), &[x], name)
    }

    /// `min(max(x, 0), 6)`
    pub fn relu6(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(ops::Unary(pointwise::Unary::Clip { min: 0.0, max: 6.0 }), &[x], name)
    }

    /// The sum of two values of one shape.
    pub fn add(&mut self, a: ValueId, b: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(Binary(pointwise::Binary::Add), &[a, b], name)
    }

    /// Channels one behind the other.
    pub fn concat(&mut self, parts: &[ValueId], name: &str) -> Result<ValueId, ZooError> {
        self.node(Concat { axis: 1 }, parts, name)
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
            stride: smallvec![window.stride; 2],
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
            return Err(ZooError::Input { network: self.network, problem });
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
        self.node(Reshape { shape }, &[x], name)
    }

    /// Probabilities of classes: `[n, c]` -> `[n, c]`
    pub fn softmax(&mut self, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        self.node(Softmax { axis: 1, log: false }, &[x], name)
    }

    fn weight(&mut self, layer: &str, part: &str, shape: Shape, init: Init) -> Result<ValueId, ZooError> {
        let name = format!("{layer}.{part}");
        let tensor = self.weights.take(&name, &shape, init)?;
        Ok(self.graph.add_weight(&name, tensor))
    }

    /// What training leaves behind but does not learn.
    fn statistic(&mut self, layer: &str, part: &str, shape: &Shape, init: Init) -> Result<ValueId, ZooError> {
        let name = format!("{layer}.{part}");
        let tensor = self.weights.take(&name, shape, init)?;
        Ok(self.graph.add_constant(&name, tensor))
    }

    fn node(&mut self, op: impl Into<Op>, operands: &[ValueId], name: &str) -> Result<ValueId, ZooError> {
        let scope = Scope::new(&name.replace('.', "/"));
        self.graph.add1(op.into(), operands, scope.clone()).map_err(|refusal| ZooError::Refused { scope, refusal })
    }
}

/// A matrix of `f32` with rows and columns exchanged, in tiles that stay in the cache.
fn transposed(matrix: &Tensor) -> Tensor {
    const TILE: usize = 16;
    let (rows, columns) = (matrix.shape()[0], matrix.shape()[1]);
    let items: &[f32] = matrix.as_slice().expect("`Weights::take` gives f32");
    let mut out = vec![0.0f32; items.len()];
    for row_start in (0..rows).step_by(TILE) {
        for column_start in (0..columns).step_by(TILE) {
            for column in column_start..columns.min(column_start + TILE) {
                let row_end = rows.min(row_start + TILE);
                let to = &mut out[column * rows + row_start..column * rows + row_end];
                let from = items[row_start * columns + column..].iter().step_by(columns);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
    Tensor::new(Shape::from([columns, rows]), out).expect("as many elements as before")
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
