//! [`Update`]: an optimizer's step on one parameter, in one pass over weight, gradient and states. [`UpdateByFactors`]: the
//! same for a gradient that is a product, whose rows exist some at a time.

use serde::{Deserialize, Serialize};
use types::Element;
use types::update::{StepScalars, UpdateRule};

use super::matmul::{MatMul, MatMulB};
use crate::gemm::epilogue::Epilogue;
use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements, elements_mut, input, product};
use crate::simd::StorageType;
use crate::simd::vector::{Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Elements of a task.
const TASK: usize = 1 << 14;
/// Elements that are updated at a time: they stay in a first-level cache.
const PIECE: usize = 1 << 10;

/// Weight, gradient and a state for each of [`UpdateRule::states`], `elements` of `f32` each, the learning rate, and the
/// number of the step as `i64` if the rule reads it, to the next weight and states. Any operand may be in place of the
/// result that replaces it, and the gradient in place of the first result.
///
/// Refuses: constants that the rule does not allow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The rule with its constants.
    pub rule: UpdateRule,
    /// Elements of the parameter.
    pub elements: usize,
}

impl Update {
    fn states(&self) -> usize {
        self.rule.states().len()
    }
}

impl KernelFn for Update {
    const NAME: &'static str = "update";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.rule.check().is_err() {
            return Err(InvalidKernel("the constants must be allowed by the rule"));
        }
        let tensor = product(&[self.elements]);
        let mut inputs = vec![tensor; 2 + self.states()];
        inputs.push(Some(1));
        inputs.extend(self.rule.reads_step().then_some(Some(2)));
        let mut sizes = Sizes::new(&inputs, tensor, 4)?;
        let bytes = sizes.outputs[0];
        sizes.outputs.extend((0..self.states()).map(|_| bytes));
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        input < 2 + self.states()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let gradient = match args.inputs[1] {
            Operand::Bytes(bytes) => Some(elements::<f32>(bytes)),
            Operand::InPlace(_) => None,
        };
        Job::new(self.rule, args.inputs, args.outputs).run(0, self.elements, gradient, pool);
    }
}

/// Weight `[m, n]`, the left factor of its gradient `[m, k]`, states, learning rate and number of the step as for [`Update`],
/// and the right factor `[k, n]`, to the next weight and states. The workspace has `band` rows of the gradient.
///
/// Refuses: constants that the rule does not allow, rules that yield a direction, a band of no rows or of more than the
/// weight has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateByFactors {
    /// The rule with its constants.
    pub rule: UpdateRule,
    /// Rows of the weight.
    pub m: usize,
    /// Columns of the left factor, rows of the right one.
    pub k: usize,
    /// Columns of the weight.
    pub n: usize,
    /// Rows of the gradient that are computed at a time.
    pub band: usize,
}

impl UpdateByFactors {
    /// Bytes of the gradient that are computed at a time: they stay in the second-level caches of two threads.
    const BAND_BYTES: usize = 1 << 20;

    /// The kernel with bands that suit the caches.
    pub fn new(rule: UpdateRule, m: usize, k: usize, n: usize) -> UpdateByFactors {
        let band = (UpdateByFactors::BAND_BYTES / 4 / n.max(1)).clamp(1, m.max(1));
        UpdateByFactors { rule, m, k, n, band }
    }

    fn product(&self, rows: usize) -> MatMul {
        MatMul {
            batch: Vec::new(),
            a_strides: Vec::new(),
            b_strides: Vec::new(),
            m: rows,
            k: self.k,
            n: self.n,
            b: MatMulB::Dynamic,
            operands: StorageType::F32,
            weights: None,
            zero_point: 0,
            result: StorageType::F32,
            epilogue: Epilogue::default(),
        }
    }
}

impl KernelFn for UpdateByFactors {
    const NAME: &'static str = "update_by_factors";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.rule.yields_direction() {
            return Err(InvalidKernel("the rule must yield the next weight"));
        }
        if self.band == 0 || self.m.max(1) < self.band {
            return Err(InvalidKernel("a band must have from one to all rows"));
        }
        let elements = product(&[self.m, self.n]).ok_or(InvalidKernel("sizes must not overflow"))?;
        let mut sizes = Update { rule: self.rule, elements }.sizes()?;
        let of_product = self.product(self.m).sizes()?;
        sizes.inputs[1] = of_product.inputs[0];
        sizes.inputs.push(of_product.inputs[1]);
        sizes.workspace = self.product(self.band).sizes()?.outputs[0];
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        input != 1 && input < 2 + self.rule.states().len()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let left: &[f32] = input(&args, 1);
        let right = args.inputs[args.inputs.len() - 1];
        let job = Job::new(self.rule, args.inputs, args.outputs);
        for row in (0..self.m).step_by(self.band) {
            let rows = self.band.min(self.m - row);
            let left = bytemuck::cast_slice(&left[row * self.k..][..rows * self.k]);
            let band = &mut args.workspace[..rows * self.n * size_of::<f32>()];
            let inputs = [Operand::Bytes(left), right];
            self.product(rows).run(Args { inputs: &inputs, outputs: &mut [&mut *band], workspace: &mut [] }, pool);
            job.run(row * self.n, rows * self.n, Some(elements(band)), pool);
        }
    }
}

/// A result and the operand that it replaces; `None` if that is in place.
struct Tensor<'a> {
    before: Option<&'a [f32]>,
    cells: SharedMut<'a, f32>,
}

struct Job<'a> {
    rule: UpdateRule,
    scalars: StepScalars,
    results: [Option<Tensor<'a>>; 1 + UpdateRule::MAX_STATES],
    states: usize,
}

impl<'a> Job<'a> {
    /// The step of a rule on the operands of a kernel: the weight, one that is not read here, states, and scalars.
    fn new(rule: UpdateRule, inputs: &[Operand<'a>], outputs: &'a mut [&mut [u8]]) -> Job<'a> {
        let states = rule.states().len();
        let bytes = |ix: usize| match inputs[ix] {
            Operand::Bytes(bytes) => Some(bytes),
            Operand::InPlace(_) => None,
        };
        let rate = bytes(2 + states).map_or(0.0, <f32 as Element>::from_le);
        let step = if rule.reads_step() { bytes(3 + states).map_or(1, <i64 as Element>::from_le) } else { 1 };
        let mut outputs = outputs.iter_mut();
        let results = std::array::from_fn(|ix| {
            let cells = elements_mut(outputs.next()?);
            // The operand that the result replaces, unless it is in place.
            let before = bytes(if ix == 0 { 0 } else { ix + 1 }).map(elements);
            Some(Tensor { before, cells: SharedMut::new(cells) })
        });
        Job { rule, scalars: rule.scalars(rate, step), results, states }
    }

    /// Updates `count` elements from `first` on, whose gradients these are; `None`: they are in place of the first result.
    fn run(&self, first: usize, count: usize, gradient: Option<&[f32]>, pool: &Pool) {
        let job = self;
        pool.run(count.div_ceil(TASK), &|task| {
            let (start, end) = (task * TASK, count.min((task + 1) * TASK));
            let gradient = gradient.map(|gradient| &gradient[start..end]);
            let (start, end) = (first + start, first + end);
            with_vector!(pool.isa(), run_task(job: &Job<'_>, start: usize, end: usize, gradient: Option<&[f32]>));
        });
    }
}

/// Updates the elements of a task, whose gradients these are. The vector type only selects the instruction set: the rule is
/// scalar code, which the compiler vectorizes without changing a bit.
#[inline(always)]
fn run_task<V: Vector>(job: &Job<'_>, first: usize, end: usize, gradient: Option<&[f32]>) {
    let mut held = [0.0; PIECE];
    for start in (first..end).step_by(PIECE) {
        let count = PIECE.min(end - start);
        let part = |ix: usize| -> &mut [f32] {
            let tensor = job.results[ix].as_ref().expect("a rule has as many results as states, and the weight");
            // SAFETY: tasks and pieces are disjoint, and each result is taken once for a piece.
            unsafe { tensor.cells.part(start, count) }
        };
        let copied = |ix: usize, cells: &mut [f32]| {
            if let Some(before) = job.results[ix].as_ref().and_then(|tensor| tensor.before) {
                cells.copy_from_slice(&before[start..start + count]);
            }
        };
        let weight = part(0);
        let gradient = match gradient {
            Some(gradient) => &gradient[start - first..][..count],
            None => {
                held[..count].copy_from_slice(weight);
                &held[..count]
            }
        };
        copied(0, weight);
        let mut states: [&mut [f32]; UpdateRule::MAX_STATES] = std::array::from_fn(|ix| match ix < job.states {
            true => {
                let cells = part(ix + 1);
                copied(ix + 1, cells);
                cells
            }
            false => &mut [],
        });
        job.rule.apply(job.scalars, weight, gradient, &mut states[..job.states]);
    }
}
