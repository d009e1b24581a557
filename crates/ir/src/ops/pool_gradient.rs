//! [`PoolGradient`]: the gradient of a pool for its operand.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{DType, Shape, Tensor};

use super::common::{arity, f32_or_half, for_each_index, from_f64, one};
use super::{Pool, PoolKind};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Gives each window's gradient back to its cells: to the first of its largest ones, or in equal parts to all that counted.
///
/// Of means `dy: [n, c, ..out]`; of maxima `dy` and `x: [n, c, ..extents]`, or `dy` and the positions that
/// [`PoolWithPositions`](super::PoolWithPositions) yields -> `[n, c, ..extents]`. All floats of one dtype, `f32`, `f16` or
/// `bf16`. Without positions, the largest cell of each window is searched again in `x`. Refuses: a `dy` whose extents are
/// not those of the pool, positions of a mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolGradient {
    /// The pool.
    pub pool: Pool,
    /// The spatial extents of the pool's operand.
    pub extents: SmallVec<[usize; 2]>,
    /// Whether a maximum reads the positions of the largest cells instead of the pool's operand.
    pub positions: bool,
}

impl PoolGradient {
    fn output_shape(&self, dy: &Shape) -> Shape {
        dy[..2].iter().chain(&self.extents).copied().collect()
    }
}

/// Calls `visit` with the number of each cell of a window that is inside the operand, in row-major order of the window,
/// and with the position of that cell in the operand. Returns the number of cells inside the operand and its padding.
pub(super) fn for_each_cell(pool: &Pool, shape: &Shape, index: &[usize], mut visit: impl FnMut(usize, usize)) -> usize {
    let strides = shape.row_major_strides();
    let (mut padded, mut number) = (0, 0);
    for_each_index(&pool.kernel, |tap| {
        let mut at = Some(index[0] * strides[0] + index[1] * strides[1]);
        let mut in_padding = true;
        for axis in 0..tap.len() {
            let reach = index[axis + 2] * pool.stride[axis] + tap[axis] * pool.dilation[axis];
            let ([front, back], extent) = (pool.pad[axis], shape[axis + 2]);
            in_padding &= reach < front + extent + back;
            let cell = reach.checked_sub(front).filter(|&cell| cell < extent);
            at = at.zip(cell).map(|(at, cell)| at + cell * strides[axis + 2]);
        }
        padded += usize::from(in_padding);
        at.into_iter().for_each(|at| visit(number, at));
        number += 1;
    });
    padded
}

/// The largest cell of a window: its number in the window and its position in the operand. The first of equal ones; a NaN
/// is not larger than any cell. `None` if no cell is inside the operand.
pub(super) fn largest_cell(pool: &Pool, shape: &Shape, index: &[usize], x: &[f64]) -> Option<(usize, usize)> {
    let mut largest: Option<(usize, usize)> = None;
    let mut most = f64::NEG_INFINITY;
    for_each_cell(pool, shape, index, |tap, at| {
        if largest.is_none() || most < x[at] {
            largest = Some((tap, at));
            most = if x[at].is_nan() { most } else { x[at] };
        }
    });
    largest
}

impl Operator for PoolGradient {
    const NAME: &'static str = "pool_gradient";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let is_max = self.pool.kind == PoolKind::Max;
        if self.positions && !is_max {
            refuse!("only a maximum has positions");
        }
        arity(inputs, if is_max { 2 } else { 1 })?;
        f32_or_half(if self.positions { &inputs[..1] } else { inputs })?;
        let dy = inputs[0];
        if dy.shape.rank() < 2 {
            refuse!("the gradient must have a channel axis, got {}", dy.shape);
        }
        let x = TensorType { dtype: dy.dtype, shape: self.output_shape(&dy.shape) };
        let want = self.pool.infer(&[&x])?;
        if want[0] != *dy {
            refuse!("the gradient must be {}, the result of the pool, got {dy}", want[0]);
        }
        let largest = match self.positions {
            true => TensorType { dtype: DType::U8, shape: dy.shape.clone() },
            false => x.clone(),
        };
        if is_max && *inputs[1] != largest {
            let name = if self.positions { "positions" } else { "the operand of the pool" };
            refuse!("{name} must be {largest}, got {}", inputs[1]);
        }
        Ok(one(x))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let dy = inputs[0];
        let shape = self.output_shape(dy.shape());
        let gradient = dy.to_f64();
        let mut out = vec![0.0; shape.elements()];
        let mut next = 0;
        let operand = (self.pool.kind == PoolKind::Max).then(|| inputs[1].to_f64());
        for_each_index(dy.shape(), |index| {
            match &operand {
                Some(positions) if self.positions => {
                    for_each_cell(&self.pool, &shape, index, |tap, at| {
                        if tap as f64 == positions[next] {
                            out[at] += gradient[next];
                        }
                    });
                }
                Some(x) => {
                    if let Some((_, at)) = largest_cell(&self.pool, &shape, index, x) {
                        out[at] += gradient[next];
                    }
                }
                None => {
                    let mut cells = Vec::new();
                    let padded = for_each_cell(&self.pool, &shape, index, |_, at| cells.push(at));
                    let count = if self.pool.kind == PoolKind::Mean { cells.len() } else { padded };
                    cells.into_iter().for_each(|at| out[at] += gradient[next] / count as f64);
                }
            }
            next += 1;
        });
        one(from_f64(shape, dy.dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_second()
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let along = |axis| if axis < 2 { Along::Same(axis) } else { Along::Whole };
        let operand: OperandAxes = (0..output.shape.rank()).map(along).collect();
        AxisMap { work: Work::Arithmetic, operands: inputs.iter().map(|_| operand.clone()).collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        (inputs[0].shape.elements() * self.pool.kernel.iter().product::<usize>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::PoolWithPositions;

    #[test]
    fn first_of_equal_cells_takes_the_gradient() {
        let pool = Pool::square(PoolKind::Max, 2, 1, 0);
        let op = PoolGradient { pool: pool.clone(), extents: SmallVec::from_elem(3, 2), positions: false };
        let x = Tensor::new(Shape::from([1, 1, 3, 3]), vec![1.0f32, 2.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0]).unwrap();
        let dy = Tensor::new(Shape::from([1, 1, 2, 2]), vec![1.0f32, 10.0, 100.0, 1000.0]).unwrap();
        let want = [0.0, 11.0, 0.0, 0.0, 1100.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(op.eval(&[&dy, &x])[0].to_f64(), want);
        let results = PoolWithPositions { pool }.eval(&[&x]);
        assert_eq!(results[1].to_f64(), [1.0, 0.0, 1.0, 0.0]);
        assert_eq!(PoolGradient { positions: true, ..op }.eval(&[&dy, &results[1]])[0].to_f64(), want);
    }

    #[test]
    fn gradients_of_other_extents_are_refused() {
        let pool = Pool::square(PoolKind::Mean, 2, 2, 0);
        let op = PoolGradient { pool, extents: SmallVec::from_elem(6, 2), positions: false };
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        assert_eq!(op.infer(&[&ty(&[2, 3, 3, 3])]), Ok(one(ty(&[2, 3, 6, 6]))));
        assert!(op.infer(&[&ty(&[2, 3, 4, 3])]).is_err());
        assert!(op.infer(&[&ty(&[2, 3, 3, 3]), &ty(&[2, 3, 6, 6])]).is_err());
        assert!(PoolGradient { positions: true, ..op }.infer(&[&ty(&[2, 3, 3, 3])]).is_err());
    }
}
