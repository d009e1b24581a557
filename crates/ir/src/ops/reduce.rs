//! [`Reduce`]: sums, means, extremes and norms over some axes.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::pointwise;
use types::pointwise::{Binary as Pair, Unary as Function};
use types::{DType, Shape, Tensor};

use super::common::{arity, axis_in, for_each_index, from_f64, one, position};
use super::{Cast, Compare, Select};
use crate::axes::{Along, AxisChange, AxisMap, Work, axis_with_channels_last};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// The function that reduces a list of numbers to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum ReduceKind {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    SumSquare,
    /// The sum of absolute values.
    L1,
    /// The root of the sum of squares.
    L2,
    LogSum,
    LogSumExp,
}

impl ReduceKind {
    /// The definition. An empty list gives 0, 1 for a product, and the opposite infinity for an extreme.
    pub fn eval(self, items: &[f64]) -> f64 {
        let sum = |term: &dyn Fn(f64) -> f64| items.iter().map(|&x| term(x)).sum::<f64>();
        let extreme = |start: f64, wins: &dyn Fn(f64, f64) -> bool| {
            items.iter().fold(start, |best, &x| if x.is_nan() || wins(x, best) { x } else { best })
        };
        match self {
            ReduceKind::Sum => sum(&|x| x),
            ReduceKind::Mean => sum(&|x| x) / items.len() as f64,
            ReduceKind::Max => extreme(f64::NEG_INFINITY, &|x, best| x > best),
            ReduceKind::Min => extreme(f64::INFINITY, &|x, best| x < best),
            ReduceKind::Prod => items.iter().product(),
            ReduceKind::SumSquare => sum(&|x| x * x),
            ReduceKind::L1 => sum(&f64::abs),
            ReduceKind::L2 => sum(&|x| x * x).sqrt(),
            ReduceKind::LogSum => sum(&|x| x).ln(),
            ReduceKind::LogSumExp => {
                let top = extreme(f64::NEG_INFINITY, &|x, best| x > best);
                if top.is_infinite() { top } else { top + sum(&|x| (x - top).exp()).ln() }
            }
        }
    }
}

/// Reduces `axes`, which are sorted and distinct.
///
/// `x: [..]` -> the shape with the axes removed, or as 1 with `keep`. Floats; integers for sum, mean, product and the
/// extremes, whose results are exact below 2^53. Refuses: `bool` apart from extremes, logarithms and roots of integers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// The function that reduces a list of numbers to one.
    pub kind: ReduceKind,
    /// The axes that are reduced.
    pub axes: SmallVec<[usize; 4]>,
    /// Whether reduced axes stay, with extent 1.
    pub keep: bool,
}

impl Reduce {
    fn output_shape(&self, x: &Shape) -> Shape {
        let kept = |axis: &usize| self.keep || !self.axes.contains(axis);
        (0..x.rank()).filter(kept).map(|axis| if self.axes.contains(&axis) { 1 } else { x[axis] }).collect()
    }
}

impl Reduce {
    /// The gradient of a product: for each element the product of the others, which has no division and so no exception
    /// for zeros.
    fn product_gradient(&self, backward: &mut Backward, dy: ValueId) -> Result<ValueId, Refusal> {
        let x = backward.operand(0);
        let (shape, dtype) = (backward.shape(x), backward.ty(x).dtype);
        let (kept, reduced): (Vec<usize>, Vec<usize>) = (0..shape.rank()).partition(|axis| !self.axes.contains(axis));
        let order: Vec<usize> = kept.iter().chain(&reduced).copied().collect();
        let count: usize = reduced.iter().map(|&axis| shape[axis]).product();
        let rows: usize = kept.iter().map(|&axis| shape[axis]).product();
        let ordered = backward.transpose(x, &order)?;
        let ordered_shape = backward.shape(ordered);
        let lists = backward.reshape(ordered, Shape::from([rows, 1, count]))?;
        let own = Tensor::from_fn(Shape::from([count, count]), |at| at / count.max(1) == at % count.max(1));
        let (own, one) = (backward.constant(own), backward.number(1.0, dtype));
        let others = backward.add(Select {}, &[own, one, lists])?;
        let axes = [2].into_iter().collect();
        let products = backward.add(Reduce { kind: ReduceKind::Prod, axes, keep: false }, &[others])?;
        let dy = backward.reshape(dy, Shape::from([rows, 1]))?;
        let ordered = backward.mul(products, dy)?;
        let ordered = backward.reshape(ordered, ordered_shape)?;
        let mut inverse = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
        backward.transpose(ordered, &inverse)
    }
}

impl Operator for Reduce {
    const NAME: &'static str = "reduce";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        for &axis in &self.axes {
            axis_in(axis, &x.shape)?;
        }
        if !self.axes.windows(2).all(|pair| pair[0] < pair[1]) {
            refuse!("axes must be sorted and distinct, got {:?}", self.axes);
        }
        let extreme = matches!(self.kind, ReduceKind::Max | ReduceKind::Min);
        let exact = extreme || matches!(self.kind, ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Prod);
        if (x.dtype == DType::Bool && !extreme) || (x.dtype.is_integer() && !exact) {
            refuse!("{:?} must have an operand of another dtype, got {}; cast it first", self.kind, x.dtype);
        }
        Ok(one(TensorType { dtype: x.dtype, shape: self.output_shape(&x.shape) }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let items = x.to_f64();
        let x_strides = x.shape().row_major_strides();
        let kept: Shape = x
            .shape()
            .iter()
            .enumerate()
            .map(|(axis, &extent)| if self.axes.contains(&axis) { 1 } else { extent })
            .collect();
        let window: Shape = self.axes.iter().map(|&axis| x.shape()[axis]).collect();
        let window_strides: SmallVec<[usize; 4]> = self.axes.iter().map(|&axis| x_strides[axis]).collect();
        let mut out = Vec::new();
        let mut taken = Vec::new();
        for_each_index(&kept, |index| {
            taken.clear();
            let base = position(index, &x_strides);
            for_each_index(&window, |cell| taken.push(items[base + position(cell, &window_strides)]));
            out.push(self.kind.eval(&taken));
        });
        one(from_f64(self.output_shape(x.shape()), x.dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let (x, y) = (backward.operand(0), backward.result(0));
        let (shape, dtype) = (backward.shape(x), backward.ty(x).dtype);
        let kept: Shape =
            (0..shape.rank()).map(|axis| if self.axes.contains(&axis) { 1 } else { shape[axis] }).collect();
        let count: usize = self.axes.iter().map(|&axis| shape[axis]).product();
        let dy = backward.reshape(dy, kept.clone())?;
        let y = |backward: &mut Backward| backward.reshape(y, kept.clone());
        let dx = match self.kind {
            ReduceKind::Sum => backward.expand(dy, shape)?,
            ReduceKind::Mean => {
                let part = backward.scaled(dy, 1.0 / count as f32)?;
                backward.expand(part, shape)?
            }
            ReduceKind::SumSquare => {
                let twice = backward.scaled(dy, 2.0)?;
                backward.mul(x, twice)?
            }
            ReduceKind::L1 => {
                let sign = backward.unary(Function::Sign, x)?;
                backward.mul(sign, dy)?
            }
            ReduceKind::L2 => {
                // Elements of a list of zeros have the gradient 0.
                let y = y(backward)?;
                let y = backward.unary(Function::Clip { min: f32::MIN_POSITIVE, max: f32::INFINITY }, y)?;
                let unit = backward.binary(Pair::Div, x, y)?;
                backward.mul(unit, dy)?
            }
            ReduceKind::LogSum => {
                let y = y(backward)?;
                let sum = backward.unary(Function::Exp, y)?;
                let part = backward.binary(Pair::Div, dy, sum)?;
                backward.expand(part, shape)?
            }
            ReduceKind::LogSumExp => {
                let y = y(backward)?;
                let shifted = backward.binary(Pair::Sub, x, y)?;
                let part = backward.unary(Function::Exp, shifted)?;
                backward.mul(part, dy)?
            }
            ReduceKind::Max | ReduceKind::Min => {
                // Equal extremes have equal parts of the gradient, as in `amax` of PyTorch.
                let y = y(backward)?;
                let is_extreme = backward.add(Compare(pointwise::Compare::Equal), &[x, y])?;
                let ones = backward.add(Cast { to: dtype }, &[is_extreme])?;
                let count = backward.sum(ones, self.axes.iter().copied())?;
                let part = backward.binary(Pair::Div, dy, count)?;
                backward.mul(ones, part)?
            }
            ReduceKind::Prod => self.product_gradient(backward, dy)?,
        };
        Ok(smallvec![Some(dx)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let kept: SmallVec<[usize; 6]> =
            (0..inputs[0].shape.rank()).filter(|axis| self.keep || !self.axes.contains(axis)).collect();
        AxisMap::unary(Work::Arithmetic, output, |axis| match self.axes.contains(&kept[axis]) {
            true => Along::Whole,
            false => Along::Same(kept[axis]),
        })
    }

    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        match change {
            AxisChange::ChannelsLast if self.keep || !self.axes.iter().any(|axis| *axis < 2) => {
                let rank = inputs[0].shape.rank();
                let mut op = self.clone();
                op.axes.iter_mut().for_each(|axis| *axis = axis_with_channels_last(*axis, rank));
                op.axes.sort_unstable();
                Some(op.into())
            }
            AxisChange::ChannelsBlocked(_) if !self.axes.contains(&1) && (self.keep || !self.axes.contains(&0)) => {
                Some(self.clone().into())
            }
            AxisChange::Tile(_) => Some(self.clone().into()),
            AxisChange::ChannelsLast | AxisChange::ChannelsBlocked(_) => None,
        }
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        inputs[0].shape.elements() as u64
    }
}
