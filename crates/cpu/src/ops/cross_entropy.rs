//! [`SoftmaxCrossEntropy`] and [`SoftmaxCrossEntropyGradient`]: the loss of a classifier from its logits.

use serde::{Deserialize, Serialize};
use types::Element;

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::math;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Elements of a task.
const TASK: usize = 1 << 13;

/// The rows that loss and gradient work on, and their labels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabeledRows {
    /// The number of rows.
    pub rows: usize,
    /// Classes: elements of a row.
    pub classes: usize,
    /// Whether labels are `i64`; otherwise `i32`.
    pub wide: bool,
    /// The label of rows that do not count.
    pub ignore: Option<i64>,
    /// The part of the target that is spread over all classes.
    pub smoothing: f32,
}

impl LabeledRows {
    fn check(&self) -> Result<(), InvalidKernel> {
        if self.classes == 0 {
            return Err(InvalidKernel("there must be at least one class"));
        }
        if !(0.0..=1.0).contains(&self.smoothing) {
            return Err(InvalidKernel("`smoothing` must be in [0, 1]"));
        }
        Ok(())
    }

    /// Elements of four bytes that the labels take.
    fn labels(&self) -> Option<usize> {
        product(&[self.rows, if self.wide { 2 } else { 1 }])
    }

    /// The class of a row; `None` if the row does not count.
    fn class(&self, labels: &[u8], row: usize) -> Option<usize> {
        let label = match self.wide {
            true => <i64 as Element>::from_le(&labels[row * 8..][..8]),
            false => i64::from(<i32 as Element>::from_le(&labels[row * 4..][..4])),
        };
        usize::try_from(label).ok().filter(|&class| Some(label) != self.ignore && class < self.classes)
    }
}

/// `logits: [rows, classes]` and `labels: [rows]` to the loss of each row, `log(sum(exp(x))) - sum(target x)`: `[rows]`.
/// All `f32`, except integer labels.
///
/// Refuses: no class, a smoothing outside `[0, 1]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxCrossEntropy {
    /// The rows.
    pub rows: LabeledRows,
}

impl KernelFn for SoftmaxCrossEntropy {
    const NAME: &'static str = "softmax_cross_entropy";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.rows.check()?;
        let logits = product(&[self.rows.rows, self.rows.classes]);
        Sizes::new(&[logits, self.rows.labels()], Some(self.rows.rows), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let logits: &[f32] = input(&args, 0);
        let labels: &[u8] = input(&args, 1);
        let (rows, classes) = (&self.rows, self.rows.classes);
        let together = (TASK / classes).max(1);
        for_each_chunk(pool, elements_mut(args.outputs[0]), together, &|number, losses: &mut [f32]| {
            for (ix, loss) in losses.iter_mut().enumerate() {
                let row = number * together + ix;
                let items = &logits[row * classes..][..classes];
                let class = rows.class(labels, row);
                with_vector!(pool.isa(), row_loss(rows: &LabeledRows, items: &[f32], class: Option<usize>, loss: &mut f32));
            }
        });
    }
}

/// The largest element, and the sum of exponentials of distances to it.
#[inline(always)]
fn top_and_sum<V: Vector>(items: &[f32]) -> (f32, f32) {
    let nothing = f32::NEG_INFINITY;
    let mut top = V::splat(nothing);
    for items in items.chunks(LANES) {
        top = V::read_part(items, nothing).max(top);
    }
    let top = top.largest();
    let mut sum = V::zero();
    for items in items.chunks(LANES) {
        sum = sum.add(math::exp_or_zero(V::read_part(items, nothing).sub(V::splat(top))));
    }
    (top, sum.sum())
}

#[inline(always)]
fn row_loss<V: Vector>(rows: &LabeledRows, items: &[f32], class: Option<usize>, loss: &mut f32) {
    let Some(class) = class else {
        *loss = 0.0;
        return;
    };
    let (top, sum) = top_and_sum::<V>(items);
    let mut total = V::zero();
    if rows.smoothing != 0.0 {
        for items in items.chunks(LANES) {
            total = total.add(V::read_part(items, 0.0));
        }
    }
    let spread = if rows.smoothing == 0.0 { 0.0 } else { rows.smoothing * (total.sum() / items.len() as f32) };
    *loss = (top - (1.0 - rows.smoothing) * items[class] - spread) + sum.ln();
}

/// `dloss: [rows]`, `logits: [rows, classes]`, which may be in place, and `labels: [rows]` to `dloss * (softmax(logits) -
/// target)`; 0 in rows that do not count. All `f32`, except integer labels.
///
/// Refuses: no class, a smoothing outside `[0, 1]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxCrossEntropyGradient {
    /// The rows.
    pub rows: LabeledRows,
}

impl KernelFn for SoftmaxCrossEntropyGradient {
    const NAME: &'static str = "softmax_cross_entropy_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.rows.check()?;
        let logits = product(&[self.rows.rows, self.rows.classes]);
        Sizes::new(&[Some(self.rows.rows), logits, self.rows.labels()], logits, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // The sum of a row is complete before its first result is written.
        input == 1
    }

    fn run(&self, args: Args, pool: &Pool) {
        let dloss: &[f32] = input(&args, 0);
        let logits: Option<&[f32]> = input_or_in_place(&args, 1);
        let labels: &[u8] = input(&args, 2);
        let (rows, classes) = (&self.rows, self.rows.classes);
        let together = (TASK / classes).max(1);
        for_each_chunk(pool, elements_mut(args.outputs[0]), together * classes, &|number, cells: &mut [f32]| {
            let first = number * together;
            if let Some(logits) = logits {
                cells.copy_from_slice(&logits[first * classes..][..cells.len()]);
            }
            for (ix, cells) in cells.chunks_exact_mut(classes).enumerate() {
                let (class, slope) = (rows.class(labels, first + ix), dloss[first + ix]);
                with_vector!(pool.isa(), row_gradient(
                    rows: &LabeledRows, class: Option<usize>, slope: f32, cells: &mut [f32]
                ));
            }
        });
    }
}

#[inline(always)]
fn row_gradient<V: Vector>(rows: &LabeledRows, class: Option<usize>, slope: f32, cells: &mut [f32]) {
    let Some(class) = class else { return cells.fill(0.0) };
    let (top, sum) = top_and_sum::<V>(cells);
    let (factor, spread) = (V::splat(slope / sum), slope * rows.smoothing / cells.len() as f32);
    let own = cells[class];
    for cells in cells.chunks_mut(LANES) {
        let power = math::exp_or_zero(V::read_part(cells, f32::NEG_INFINITY).sub(V::splat(top)));
        power.mul_add(factor, V::splat(-spread)).write_part(cells);
    }
    // Near a probability of 1 the difference is computed from the other side: nothing cancels twice.
    let power = f32::exp(own - top) / sum;
    cells[class] = slope * (power - (1.0 - rows.smoothing)) - spread;
}
