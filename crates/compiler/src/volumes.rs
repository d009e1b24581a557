//! [`best_of_forms`]: the plan of a graph with windows over volumes, in the form that is best for the goal.
//!
//! A convolution over three axes is computed as convolutions over planes, which have fast kernels: between stored planes of
//! zeros, or the planes at the ends apart ([`passes::Volumes`]). Volumes are transposed to planes and back. Kernels over whole
//! volumes read the values of the file as they are and need no workspace, so that a plan by them needs no more than a naive one;
//! they are slower.

use ir::{Graph, Target};
use passes::Volumes;
use types::Bytes;

use crate::search::{Best, best, in_balance};
use crate::{BudgetChanges, CompileError, Goal, Optimize, prepared};

/// A form of the graph with its plan.
struct Form {
    graph: Graph,
    best: Best,
    /// The graphs after its passes.
    seen: Vec<(&'static str, Graph)>,
}

impl Form {
    fn new(graph: &Graph, volumes: Volumes, target: &dyn Target, goal: Goal) -> Result<Form, CompileError> {
        let mut seen = Vec::new();
        let mut record = |pass: &'static str, graph: &Graph| seen.push((pass, graph.clone()));
        let graph = prepared(graph.clone(), volumes, target, &mut record)?;
        let best = best(&graph, target, goal, record)?;
        Ok(Form { graph, best, seen })
    }

    fn arena(&self) -> Bytes {
        self.best.compiled.plan.arena.size()
    }
}

/// The best plan for the goal, apart from stripes, and the graph that it was made from.
pub(crate) fn best_of_forms(
    graph: &Graph,
    target: &dyn Target,
    goal: Goal,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<(Graph, Best), CompileError> {
    let mut forms = vec![Form::new(graph, Volumes::Padded, target, goal)?];
    // A target that models no time has nothing to compare.
    if forms[0].best.least_time != 0 {
        forms.push(Form::new(graph, Volumes::Apart, target, goal)?);
        let are_too_large = goal.budget.is_some_and(|budget| forms.iter().all(|form| budget < form.arena()));
        if are_too_large || (goal.budget.is_none() && goal.optimize == Optimize::Memory) {
            match Form::new(graph, Volumes::Whole, target, goal) {
                Ok(form) => forms.push(form),
                // Not all dtypes have such kernels.
                Err(CompileError::Lower(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    // Each bound holds for the kernels of one form.
    let whole = prepared(graph.clone(), Volumes::Whole, target, |_, _| {})?;
    let bounds = forms.iter().map(|form| &form.graph).chain([&whole]).map(passes::least_of_any_kernels);
    let any_kernels = bounds.min().expect("there is a form");

    let fastest = forms.iter().min_by_key(|form| form.best.least_time).expect("there is a form");
    let (unlimited, least_time) = (fastest.best.unlimited, fastest.best.least_time);
    let rank = |form: &Form| {
        let (bytes, time) = (form.arena().0, form.best.time);
        match (goal.budget, goal.optimize) {
            (Some(budget), _) if budget.0 < bytes => (1, bytes, time),
            (Some(_), _) | (None, Optimize::Time) => (0, time, bytes),
            (None, Optimize::Balanced) if in_balance(least_time) < time => (1, time, bytes),
            (None, Optimize::Balanced | Optimize::Memory) => (0, bytes, time),
        }
    };
    let Form { graph, mut best, seen } = forms.into_iter().min_by_key(rank).expect("there is a form");
    seen.iter().for_each(|(pass, graph)| watch(pass, graph));
    let plan = &mut best.compiled.plan;
    plan.any_kernels = plan.any_kernels.min(any_kernels);
    if least_time != 0 && goal.budget.is_some_and(|budget| budget < unlimited) {
        let cost = best.time as f64 / least_time as f64;
        best.compiled.fit = Some(BudgetChanges { unlimited, regions: Vec::new(), cost });
    }
    Ok((graph, Best { unlimited, least_time, ..best }))
}
