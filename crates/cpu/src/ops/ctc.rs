//! [`Ctc`] and [`CtcGradient`]: connectionist temporal classification, the loss of labels that are not aligned with steps.
//!
//! A task has a sequence. Sums over alignments are logarithms in `f64`: over hundreds of steps, products of probabilities
//! leave the range of `f32`.

use serde::{Deserialize, Serialize};
use types::Element;

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

/// The sequences that loss and gradient work on, and their labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabeledSequences {
    /// Steps of a sequence.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Classes: elements of a row.
    pub classes: usize,
    /// Labels of a sequence, with padding.
    pub labels: usize,
    /// Whether labels are `i64`; otherwise `i32`.
    pub wide: bool,
    /// The class that means no label.
    pub blank: usize,
}

impl LabeledSequences {
    fn check(&self) -> Result<(), InvalidKernel> {
        if self.classes <= self.blank {
            return Err(InvalidKernel("the blank must be a class"));
        }
        Ok(())
    }

    fn logits(&self) -> Option<usize> {
        product(&[self.steps, self.batch, self.classes])
    }

    /// Elements of four bytes that the labels take.
    fn label_elements(&self) -> Option<usize> {
        product(&[self.batch, self.labels, if self.wide { 2 } else { 1 }])
    }

    /// The most states of an alignment: labels, and blanks around them.
    fn states(&self) -> Option<usize> {
        self.labels.checked_mul(2)?.checked_add(1)
    }

    /// Elements of four bytes of the workspace of a sequence: the classes of all states, numbers of eight bytes for `rows`
    /// steps with a number more each, and for two rows of states.
    fn workspace(&self, rows: usize) -> Option<usize> {
        let states = self.states()?;
        let numbers = product(&[rows, states.checked_add(1)?])?.checked_add(product(&[2, states])?)?;
        // Sequences begin at multiples of eight bytes.
        product(&[numbers, 2])?.checked_add(states.checked_next_multiple_of(2)?)
    }

    /// The states of a sequence: its labels with blanks in front of, between and behind them. Returns their number.
    fn write_states(&self, labels: &[u8], sequence: usize, states: &mut [u32]) -> usize {
        states[0] = self.blank as u32;
        let mut count = 1;
        for at in sequence * self.labels..(sequence + 1) * self.labels {
            let label = match self.wide {
                true => <i64 as Element>::from_le(&labels[at * 8..][..8]),
                false => i64::from(<i32 as Element>::from_le(&labels[at * 4..][..4])),
            };
            let class = usize::try_from(label).ok().filter(|&class| class < self.classes && class != self.blank);
            if let Some(class) = class {
                (states[count], states[count + 1]) = (class as u32, self.blank as u32);
                count += 2;
            }
        }
        count
    }

    /// By state, the logarithm of the probability of all beginnings that end in it at a step; `before` has those of the step
    /// before, if there is one.
    fn forward(&self, states: &[u32], row: &[f32], log_sum: f64, before: Option<&[f64]>, out: &mut [f64]) {
        for (state, out) in out.iter_mut().enumerate() {
            let reached = match before {
                None if state < 2 => 0.0,
                None => f64::NEG_INFINITY,
                Some(before) => {
                    let one = if 1 <= state { before[state - 1] } else { f64::NEG_INFINITY };
                    let two = if skips(self, states, state) { before[state - 2] } else { f64::NEG_INFINITY };
                    log_add([before[state], one, two])
                }
            };
            *out = reached + f64::from(row[states[state] as usize]) - log_sum;
        }
    }

    fn row<'a>(&self, logits: &'a [f32], step: usize, sequence: usize) -> &'a [f32] {
        &logits[(step * self.batch + sequence) * self.classes..][..self.classes]
    }

    /// The logarithm of the probability of all alignments from the last row of states.
    fn total(last: Option<&[f64]>, count: usize) -> f64 {
        match last {
            Some(last) => {
                let one = if 2 <= count { last[count - 2] } else { f64::NEG_INFINITY };
                log_add([last[count - 1], one, f64::NEG_INFINITY])
            }
            None if count == 1 => 0.0,
            None => f64::NEG_INFINITY,
        }
    }
}

/// Whether a state is reached from the label before, without the blank in between.
fn skips(sequences: &LabeledSequences, states: &[u32], state: usize) -> bool {
    2 <= state && states[state] != sequences.blank as u32 && states[state] != states[state - 2]
}

fn log_add(items: [f64; 3]) -> f64 {
    let top = items[0].max(items[1]).max(items[2]);
    if top == f64::NEG_INFINITY { top } else { top + items.map(|item| (item - top).exp()).iter().sum::<f64>().ln() }
}

/// `log(sum(exp(row)))`
fn log_sum(row: &[f32]) -> f64 {
    let top = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    top + row.iter().map(|&item| (f64::from(item) - top).exp()).sum::<f64>().ln()
}

/// The workspace of a sequence: the classes of its states, two rows of numbers by state, and further numbers.
fn parts(workspace: &mut [f64], states: usize) -> (&mut [u32], [&mut [f64]; 2], &mut [f64]) {
    let (classes, rest) = workspace.split_at_mut(states.div_ceil(2));
    let (one, rest) = rest.split_at_mut(states);
    let (two, rest) = rest.split_at_mut(states);
    (bytemuck::cast_slice_mut(classes), [one, two], rest)
}

/// `logits: [steps, batch, classes]` and `labels: [batch, labels]` to the negative log probability of each sequence's
/// labels, summed over all alignments: `[batch]`. All `f32`, except integer labels. Labels that are the blank or no class
/// are skipped.
///
/// Refuses: a blank that is no class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ctc {
    /// The sequences.
    pub sequences: LabeledSequences,
}

impl KernelFn for Ctc {
    const NAME: &'static str = "ctc";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let sequences = &self.sequences;
        sequences.check()?;
        let workspace = sequences.workspace(0).and_then(|own| product(&[sequences.batch, own]));
        Sizes::with_workspace(&[sequences.logits(), sequences.label_elements()], Some(sequences.batch), workspace, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let (logits, labels): (&[f32], &[u8]) = (input(&args, 0), input(&args, 1));
        let (sequences, losses) = (&self.sequences, elements_mut::<f32>(args.outputs[0]));
        let workspace = SharedMut::new(elements_mut::<f64>(args.workspace));
        let own = workspace.len() / sequences.batch.max(1);
        for_each_chunk(pool, losses, 1, &|sequence, loss| {
            // SAFETY: each sequence is claimed once, and the parts of different sequences are disjoint.
            let room = unsafe { workspace.part(sequence * own, own) };
            // Sequences with few labels leave a part unused.
            room.fill(0.0);
            let (states, [mut before, mut now], _) = parts(room, 2 * sequences.labels + 1);
            let count = sequences.write_states(labels, sequence, states);
            for step in 0..sequences.steps {
                let row = sequences.row(logits, step, sequence);
                let given = (0 < step).then_some(&before[..count]);
                sequences.forward(states, row, log_sum(row), given, &mut now[..count]);
                std::mem::swap(&mut before, &mut now);
            }
            let last = (0 < sequences.steps).then_some(&before[..count]);
            loss[0] = -LabeledSequences::total(last, count) as f32;
        });
    }
}

/// `dloss: [batch]`, `logits: [steps, batch, classes]` and `labels: [batch, labels]` to `dloss (softmax(logits) - p)`, where
/// `p` is the probability that an alignment emits a class at a step; 0 for sequences without an alignment. All `f32`, except
/// integer labels.
///
/// Refuses: a blank that is no class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CtcGradient {
    /// The sequences.
    pub sequences: LabeledSequences,
}

impl KernelFn for CtcGradient {
    const NAME: &'static str = "ctc_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let sequences = &self.sequences;
        sequences.check()?;
        let (logits, batch) = (sequences.logits(), Some(sequences.batch));
        let workspace = sequences.workspace(sequences.steps).and_then(|own| product(&[sequences.batch, own]));
        Sizes::with_workspace(&[batch, logits, sequences.label_elements()], logits, workspace, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let (slopes, logits): (&[f32], &[f32]) = (input(&args, 0), input(&args, 1));
        let (labels, out): (&[u8], &mut [f32]) = (input(&args, 2), elements_mut(args.outputs[0]));
        let (sequences, out) = (&self.sequences, SharedMut::new(out));
        let workspace = SharedMut::new(elements_mut::<f64>(args.workspace));
        let own = workspace.len() / sequences.batch.max(1);
        let classes = sequences.classes;
        pool.run(if out.len() == 0 { 0 } else { sequences.batch }, &|sequence| {
            // SAFETY: each sequence is claimed once, and the parts of different sequences are disjoint.
            let room = unsafe { workspace.part(sequence * own, own) };
            // Sequences with few labels leave a part unused.
            room.fill(0.0);
            let all = 2 * sequences.labels + 1;
            let (states, [after, next], rest) = parts(room, all);
            let count = sequences.write_states(labels, sequence, states);
            let states = &states[..count];
            let (sums, forward) = rest.split_at_mut(sequences.steps);
            for (step, sum) in sums.iter_mut().enumerate() {
                let row = sequences.row(logits, step, sequence);
                *sum = log_sum(row);
                let (before, now) = forward.split_at_mut(step * all);
                let before = step.checked_sub(1).map(|step| &before[step * all..][..count]);
                sequences.forward(states, row, *sum, before, &mut now[..count]);
            }
            let total = LabeledSequences::total(Some(&forward[(sequences.steps - 1) * all..][..count]), count);
            let slope = f64::from(slopes[sequence]);
            for (state, cell) in after[..count].iter_mut().enumerate() {
                *cell = if count <= state + 2 { 0.0 } else { f64::NEG_INFINITY };
            }
            for step in (0..sequences.steps).rev() {
                // SAFETY: rows of different sequences are disjoint.
                let cells = unsafe { out.part((step * sequences.batch + sequence) * classes, classes) };
                if total == f64::NEG_INFINITY {
                    cells.fill(0.0);
                    continue;
                }
                let (row, sum) = (sequences.row(logits, step, sequence), sums[step]);
                for (cell, &item) in cells.iter_mut().zip(row) {
                    *cell = (slope * (f64::from(item) - sum).exp()) as f32;
                }
                for (state, &class) in states.iter().enumerate() {
                    let here = forward[step * all + state] + after[state] - total;
                    cells[class as usize] -= (slope * here.exp()) as f32;
                    next[state] = after[state] + f64::from(row[class as usize]) - sum;
                }
                for state in 0..count {
                    let reached = |to: usize, may: bool| if may { next[to] } else { f64::NEG_INFINITY };
                    let one = reached(state + 1, state + 1 < count);
                    let two = reached(state + 2, state + 2 < count && skips(sequences, states, state + 2));
                    after[state] = log_add([next[state], one, two]);
                }
            }
        });
    }
}
