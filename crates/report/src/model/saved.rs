//! [`Saved`] and [`Recomputed`]: the values of the forward pass that a training step keeps for its backward pass, who reads
//! them and why, and the values that are computed again instead.
//!
//! A step belongs to the backward pass if its scope has a part [`GRADIENT`] or [`AGAIN`]. A value is saved if a step in front of
//! these, or the caller, writes it and one of these reads it. States (weights, moments) are alive anyway and not listed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use plan::{Operand, Persistence, Phase, Place, Plan, Sharing, Step, ValueSpan};
use serde::{Deserialize, Serialize};
use types::{DType, Role};

use super::{Touch, type_text};

/// The part of a scope of nodes that a gradient added.
const GRADIENT: &str = "gradient";
/// The part of a scope of nodes that compute a value again.
const AGAIN: &str = "again";

/// A value that waits for the backward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The value's name.
    pub name: String,
    /// Its dtype.
    pub dtype: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Its size.
    pub bytes: u64,
    /// The position of its buffer.
    pub buffer: usize,
    /// The step that writes it; `None` if the caller does.
    pub writer: Option<Touch>,
    /// The steps of the backward pass that read it, in order.
    pub readers: Vec<SavedReader>,
}

/// A step of the backward pass that reads a saved value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedReader {
    /// Its position.
    pub step: u32,
    /// Its scope.
    pub scope: String,
    /// Its kernel.
    pub kernel: String,
    /// Why it reads the value.
    pub reason: String,
}

/// A value that the backward pass computes again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recomputed {
    /// The scope of the step that computes it again.
    pub scope: String,
    /// The step.
    pub step: u32,
    /// Its kernel.
    pub kernel: String,
    /// The bytes that need not be saved.
    pub bytes: u64,
}

/// The saved values of a training step, the largest first; none for other plans.
pub(crate) fn saved(plan: &Plan) -> Vec<Saved> {
    if !matches!(plan.phase, Phase::Training(_)) {
        return Vec::new();
    }
    // By buffer and position among its values.
    let mut rows: BTreeMap<(usize, usize), Saved> = BTreeMap::new();
    for (at, step) in plan.steps.iter().enumerate().filter(|(_, step)| is_backward(step)) {
        for (ix, operand) in step.inputs.iter().enumerate() {
            for (buffer, value) in read(plan, operand, at as u32) {
                let held = &plan.buffers[buffer].values[value];
                let writer = writer(plan, buffer, held);
                if writer.is_some_and(|writer| is_backward(&plan.steps[writer as usize])) {
                    continue;
                }
                let scope = writer.map(|writer| plan.steps[writer as usize].scope.to_string());
                let row = rows.entry((buffer, value)).or_insert_with(|| Saved {
                    name: held.name.clone(),
                    dtype: held.dtype.to_string(),
                    shape: held.shape.to_vec(),
                    bytes: held.size().0,
                    buffer,
                    writer: writer.zip(scope).map(|(step, scope)| Touch { step, scope }),
                    readers: Vec::new(),
                });
                let (reason, scope) = (reason(plan, step, ix, held), step.scope.to_string());
                let reader = SavedReader { step: at as u32, scope, kernel: step.kernel.clone(), reason };
                if row.readers.last() != Some(&reader) {
                    row.readers.push(reader);
                }
            }
        }
    }
    let mut rows: Vec<Saved> = rows.into_values().collect();
    rows.sort_by_key(|row| (Reverse(row.bytes), row.readers[0].step));
    rows
}

/// The values that a training step computes again, the largest first.
pub(crate) fn recomputed(plan: &Plan) -> Vec<Recomputed> {
    if !matches!(plan.phase, Phase::Training(_)) {
        return Vec::new();
    }
    let steps = plan.steps.iter().enumerate().filter(|(_, step)| has_part(step, AGAIN));
    let row = |(at, step): (usize, &Step)| Recomputed {
        scope: step.scope.to_string(),
        step: at as u32,
        kernel: step.kernel.clone(),
        bytes: step.outputs.first().map_or(0, |output| output.size.0),
    };
    let mut rows: Vec<Recomputed> = steps.map(row).collect();
    rows.sort_by_key(|row| (Reverse(row.bytes), row.step));
    rows
}

impl Saved {
    /// Dtype and shape.
    pub(crate) fn type_text(&self) -> String {
        type_text(&self.dtype, &self.shape)
    }
}

fn has_part(step: &Step, part: &str) -> bool {
    step.scope.as_str().split('/').any(|own| own == part)
}

fn is_backward(step: &Step) -> bool {
    has_part(step, GRADIENT) || has_part(step, AGAIN)
}

/// The scope of the forward node that a step of the backward pass belongs to.
fn forward_scope(step: &Step) -> String {
    let parts = step.scope.as_str().split('/').take_while(|part| *part != GRADIENT && *part != AGAIN);
    parts.collect::<Vec<_>>().join("/")
}

/// The values, as buffer and position, whose bytes a step reads through an operand. Views are read as the value behind them.
fn read(plan: &Plan, operand: &Operand, at: u32) -> Vec<(usize, usize)> {
    let Place::Buffer(ix) = operand.place else { return Vec::new() };
    let ix = ix.0 as usize;
    let buffer = &plan.buffers[ix];
    if buffer.persistence == Persistence::Session {
        return Vec::new();
    }
    let (start, end) = (operand.offset.0, operand.offset.0 + operand.size.0);
    let overlaps = |held: &ValueSpan| {
        held.offset.0 < end && start < held.offset.0 + held.size().0 && held.sharing != Sharing::View
    };
    let before: Vec<usize> = (0..buffer.values.len())
        .filter(|&ix| buffer.values[ix].first_step < at && overlaps(&buffer.values[ix]))
        .collect();
    // A later value has overwritten the bytes of an earlier one, unless it is a part of it.
    let is_kept = |&own: &usize| {
        let own = &buffer.values[own];
        let covers = |other: &ValueSpan| {
            own.first_step < other.first_step && other.offset <= own.offset && own.size() <= other.size()
        };
        !before.iter().any(|&other| covers(&buffer.values[other]))
    };
    before.iter().copied().filter(is_kept).map(|value| (ix, value)).collect()
}

/// The step that writes a value.
fn writer(plan: &Plan, buffer: usize, held: &ValueSpan) -> Option<u32> {
    let step = plan.steps.get(held.first_step as usize)?;
    let is_here = |output: &&Operand| {
        matches!(output.place, Place::Buffer(ix) if ix.0 as usize == buffer)
            && output.offset.0 < held.offset.0 + held.size().0
            && held.offset.0 < output.offset.0 + output.size.0
    };
    step.outputs.iter().find(is_here).map(|_| held.first_step)
}

/// Why a step of the backward pass reads a value of the forward pass as operand `ix`.
fn reason(plan: &Plan, step: &Step, ix: usize, held: &ValueSpan) -> String {
    let node = forward_scope(step);
    if has_part(step, AGAIN) {
        return format!("`{node}` is computed again from it");
    }
    let kernel = step.kernel.trim_start_matches("cuda_");
    let is = |part: &str| kernel.contains(part);
    let role = step.outputs.first().and_then(|output| match output.place {
        Place::Buffer(ix) => Some(plan.buffers[ix.0 as usize].tag.role),
        Place::Constant(_) => None,
    });
    match () {
        () if is("weight_gradient") => {
            format!("input of `{node}`: the gradient of its weight is a sum of products with it")
        }
        () if is("batch_norm_gradient") && ix == 1 => format!("operand of `{node}`, which is normalized again"),
        () if is("batch_norm_gradient") => format!("statistics and scale of `{node}`"),
        () if is("pool_gradient") && held.dtype == DType::U8 => format!("positions of the maxima of `{node}`"),
        () if is("pool_gradient") => format!("operand of `{node}`, in which the maxima are searched again"),
        () if (is("cross_entropy") || is("loss_gradient") || is("ctc")) && held.dtype.is_float() => {
            format!("logits of `{node}`: the gradient is their softmax without the target")
        }
        () if is("cross_entropy") || is("loss_gradient") || is("ctc") => format!("labels of `{node}`"),
        () if is("recurrent_gradient") => {
            format!("gates and states of `{node}`, from which its cells are computed again")
        }
        () if is("dropout") => format!("key of `{node}`: its mask is drawn again"),
        () if is("scatter_add") || is("gather") => format!("indices of `{node}`"),
        () if (is("gemm") || is("product") || is("matmul")) && role == Some(Role::WeightGradient) => {
            format!("input of `{node}`: the gradient of its weight is a product with it")
        }
        () if is("gemm") || is("product") || is("matmul") => {
            format!("factor of `{node}`: the gradient of the other factor is a product with it")
        }
        // A function and its gradient have one scope; its result then has the name of that.
        () if held.name == node => format!("result of `{node}`, from which its derivative follows"),
        () => format!("operand of `{node}`, which its derivative reads"),
    }
}
