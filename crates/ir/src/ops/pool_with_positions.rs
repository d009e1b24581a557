//! [`PoolWithPositions`]: the maximum of windows, and the place of each.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Tensor};

use super::common::{arity, f32_or_half, for_each_index, from_f64};
use super::pool_gradient::largest_cell;
use super::{Pool, PoolGradient, PoolKind};
use crate::axes::{AxisChange, AxisMap};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// A maximum [`Pool`] with a second result for its gradient: the number of the largest cell in its window, in row-major
/// order of the window, as `u8`.
///
/// `x: [n, c, ..spatial]` of `f32`, `f16` or `bf16` -> the maxima, and positions of the same shape. Of equal cells the
/// first counts; a NaN has no position, though it is the result. Refuses: means, windows of more than 256 cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolWithPositions {
    /// The pool.
    pub pool: Pool,
}

impl PoolWithPositions {
    /// The most cells of a window.
    pub const CELLS_MAX: usize = 256;
}

impl Operator for PoolWithPositions {
    const NAME: &'static str = "pool_with_positions";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        f32_or_half(inputs)?;
        let mut results = self.pool.infer(inputs)?;
        let cells = self.pool.kernel.iter().fold(1, |cells: usize, &extent| cells.saturating_mul(extent));
        if self.pool.kind != PoolKind::Max || PoolWithPositions::CELLS_MAX < cells {
            refuse!("the pool must be a maximum of at most 256 cells, got {:?} of {cells}", self.pool.kind);
        }
        results.push(TensorType { dtype: DType::U8, shape: results[0].shape.clone() });
        Ok(results)
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (x, mut results) = (inputs[0], self.pool.eval(inputs));
        let items = x.to_f64();
        let shape = results[0].shape().clone();
        let mut positions = Vec::with_capacity(shape.elements());
        for_each_index(&shape, |index| {
            positions.push(largest_cell(&self.pool, x.shape(), index, &items).map_or(0.0, |(tap, _)| tap as f64));
        });
        results.push(from_f64(shape, DType::U8, positions));
        results
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let extents = backward.shape(backward.operand(0))[2..].into();
        let op = PoolGradient { pool: self.pool.clone(), extents, positions: true };
        let positions = backward.result(1);
        Ok(smallvec![Some(backward.add(op, &[dy, positions])?)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        self.pool.axes(inputs, output)
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        self.pool.flops(inputs, outputs)
    }
}
