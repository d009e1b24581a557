//! [`PoolGradient`]: the gradient of a pool for its operand.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{Shape, Tensor};

use super::common::{arity, f32_or_half, for_each_index, from_f64, one};
use super::{Pool, PoolKind};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Gives each window's gradient back to its cells: to the first of its largest ones, or in equal parts to all that counted.
///
/// Of means `dy: [n, c, ..out]`; of maxima `dy`, `x: [n, c, ..extents]` and `y = pool(x)` -> `[n, c, ..extents]`. All of
/// one dtype, `f32`, `f16` or `bf16`. The largest cell of a window is found again by comparing with `y`, first in
/// row-major order of the window, so that no indices are stored. Refuses: a `dy` whose extents are not those of the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolGradient {
    /// The pool.
    pub pool: Pool,
    /// The spatial extents of the pool's operand.
    pub extents: SmallVec<[usize; 2]>,
}

impl PoolGradient {
    fn output_shape(&self, dy: &Shape) -> Shape {
        dy[..2].iter().chain(&self.extents).copied().collect()
    }

    /// Calls `visit` with the position in the operand of each cell of a window that is inside it, in order. Returns the
    /// number of cells inside the operand and its padding.
    fn for_each_cell(&self, shape: &Shape, index: &[usize], mut visit: impl FnMut(usize)) -> usize {
        let (pool, strides) = (&self.pool, shape.row_major_strides());
        let mut padded = 0;
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
            at.into_iter().for_each(&mut visit);
        });
        padded
    }
}

impl Operator for PoolGradient {
    const NAME: &'static str = "pool_gradient";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let is_max = self.pool.kind == PoolKind::Max;
        arity(inputs, if is_max { 3 } else { 1 })?;
        f32_or_half(inputs)?;
        let dy = inputs[0];
        if dy.shape.rank() < 2 {
            refuse!("the gradient must have a channel axis, got {}", dy.shape);
        }
        let x = TensorType { dtype: dy.dtype, shape: self.output_shape(&dy.shape) };
        let want = self.pool.infer(&[&x])?;
        if want[0] != *dy {
            refuse!("the gradient must be {}, the result of the pool, got {dy}", want[0]);
        }
        if is_max && (*inputs[1] != x || inputs[2] != dy) {
            refuse!("operand and result of the pool must be {x} and {dy}, got {} and {}", inputs[1], inputs[2]);
        }
        Ok(one(x))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let dy = inputs[0];
        let shape = self.output_shape(dy.shape());
        let gradient = dy.to_f64();
        let mut out = vec![0.0; shape.elements()];
        let mut next = 0;
        let operands = (self.pool.kind == PoolKind::Max).then(|| (inputs[1].to_f64(), inputs[2].to_f64()));
        for_each_index(dy.shape(), |index| {
            match &operands {
                Some((x, y)) => {
                    let mut first = None;
                    self.for_each_cell(&shape, index, |at| {
                        if first.is_none() && (x[at] == y[next] || x[at].is_nan()) {
                            first = Some(at);
                        }
                    });
                    if let Some(at) = first {
                        out[at] += gradient[next];
                    }
                }
                None => {
                    let mut cells = Vec::new();
                    let padded = self.for_each_cell(&shape, index, |at| cells.push(at));
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
    use types::DType;

    use super::*;

    #[test]
    fn first_of_equal_cells_takes_the_gradient() {
        let op = PoolGradient { pool: Pool::square(PoolKind::Max, 2, 1, 0), extents: SmallVec::from_elem(3, 2) };
        let x = Tensor::new(Shape::from([1, 1, 3, 3]), vec![1.0f32, 2.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0]).unwrap();
        let y = op.pool.eval(&[&x]).remove(0);
        let dy = Tensor::new(Shape::from([1, 1, 2, 2]), vec![1.0f32, 10.0, 100.0, 1000.0]).unwrap();
        assert_eq!(op.eval(&[&dy, &x, &y])[0].to_f64(), [0.0, 11.0, 0.0, 0.0, 1100.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn gradients_of_other_extents_are_refused() {
        let op = PoolGradient { pool: Pool::square(PoolKind::Mean, 2, 2, 0), extents: SmallVec::from_elem(6, 2) };
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        assert_eq!(op.infer(&[&ty(&[2, 3, 3, 3])]), Ok(one(ty(&[2, 3, 6, 6]))));
        assert!(op.infer(&[&ty(&[2, 3, 4, 3])]).is_err());
        assert!(op.infer(&[&ty(&[2, 3, 3, 3]), &ty(&[2, 3, 6, 6]), &ty(&[2, 3, 3, 3])]).is_err());
    }
}
