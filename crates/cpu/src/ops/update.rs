//! [`Update`]: an optimizer's step on one parameter, in one pass over weight, gradient and states.

use serde::{Deserialize, Serialize};
use types::Element;
use types::update::{StepScalars, UpdateRule};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements, elements_mut, input, product};
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
        let states = self.states();
        let rate: &[f32] = input(&args, 2 + states);
        let step = match args.inputs.get(3 + states) {
            Some(Operand::Bytes(bytes)) => <i64 as Element>::from_le(bytes),
            _ => 1,
        };
        let scalars = self.rule.scalars(rate[0], step);
        // The operand that a result replaces, unless it is in place.
        let mut outputs = args.outputs.iter_mut();
        let result = |ix: usize| match args.inputs[if ix == 0 { 0 } else { ix + 1 }] {
            Operand::Bytes(bytes) => Some(elements::<f32>(bytes)),
            Operand::InPlace(_) => None,
        };
        let gradient = match args.inputs[1] {
            Operand::Bytes(bytes) => Some(elements::<f32>(bytes)),
            Operand::InPlace(_) => None,
        };
        let results: [Option<Tensor<'_>>; 1 + UpdateRule::MAX_STATES] = std::array::from_fn(|ix| {
            let cells = elements_mut(outputs.next()?);
            Some(Tensor { before: result(ix), cells: SharedMut::new(cells) })
        });
        let job = &Job { rule: self.rule, scalars, gradient, results, states };
        pool.run(self.elements.div_ceil(TASK), &|task| {
            let (first, end) = (task * TASK, self.elements.min((task + 1) * TASK));
            with_vector!(pool.isa(), run_task(job: &Job<'_>, first: usize, end: usize));
        });
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
    /// `None`: it is in place of the first result.
    gradient: Option<&'a [f32]>,
    results: [Option<Tensor<'a>>; 1 + UpdateRule::MAX_STATES],
    states: usize,
}

/// Updates the elements of a task. The vector type only selects the instruction set: the rule is scalar code, which the
/// compiler vectorizes without changing a bit.
#[inline(always)]
fn run_task<V: Vector>(job: &Job<'_>, first: usize, end: usize) {
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
        let gradient = match job.gradient {
            Some(gradient) => &gradient[start..start + count],
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
