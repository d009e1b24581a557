//! `windows`: how near arenas of networks with concatenations come to the bytes of their parts.
//!
//! The *parts* of a buffer are the ranges of bytes between the ends of all operands of steps; a part is live from the first
//! step that touches it to the last. A buffer occupies the range from its lowest to its highest live part. No placement of
//! the same steps in the same order needs less than the fullest step by parts: the difference to the arena is the most that
//! several ranges a buffer, or a better placement, would save. For other orders, the bound of the order counts by part as
//! well.

use std::collections::BTreeMap;

use cases::networks::{Family, Scale};
use compiler::source::{Request, load, models};
use compiler::{Model, Optimize};
use lower::cpu::CpuTarget;
use plan::{BufferIx, Operand, Place, Plan, Sharing};

use crate::seeds;

/// The goals that are compared: the default, and the one that gives everything for bytes.
const GOALS: [Optimize; 2] = [Optimize::Balanced, Optimize::Memory];

pub(crate) fn windows(words: &[String]) {
    println!(
        "| network | parts | arena, balanced | by parts | at most less | arena, memory | by parts | at most less |"
    );
    println!("|{}", " --- |".repeat(8));
    let is_named = |name: &str| words.iter().any(|word| word == name);
    let is_any_named = Family::ALL.iter().any(|family| is_named(family.name()));
    let of_zoo: Vec<&str> = models().iter().map(|model| model.name).filter(|name| is_named(name)).collect();
    for family in
        Family::ALL.into_iter().filter(|family| is_named(family.name()) || (!is_any_named && of_zoo.is_empty()))
    {
        for seed in seeds(words).unwrap_or(1..=4) {
            let graph = family.network(seed, Scale::Full);
            row(&Model { graph, preprocess: None, labels: Vec::new() });
        }
    }
    let all = models().into_iter().map(|model| model.name).filter(|_| !is_any_named && of_zoo.is_empty());
    for name in all.chain(of_zoo.iter().copied()) {
        let request = Request { model: name.into(), batch: Some(1), ..Request::default() };
        let mut model = load(&request).expect("the zoo has it");
        model.graph.name = name.to_string();
        row(&model);
    }
    println!();
}

/// Networks without concatenations in place have no row.
fn row(model: &Model) {
    let plans = GOALS.map(|goal| {
        compiler::compile(model.clone(), &CpuTarget::new(), goal.into(), |_, _| {}).expect("it compiles").plan
    });
    let parts = |plan: &Plan| {
        let values = plan.buffers.iter().flat_map(|buffer| &buffer.values);
        values.filter(|value| value.sharing == Sharing::ConcatSlice).count()
    };
    if plans.iter().all(|plan| parts(plan) == 0) {
        return;
    }
    print!("| {} | {} |", model.graph.name, parts(&plans[0]));
    for plan in &plans {
        let (arena, least) = (plan.arena.size().0, fullest_by_parts(plan));
        print!(" {arena} | {least} | {:.2} % |", 100.0 * arena.saturating_sub(least) as f64 / arena.max(1) as f64);
    }
    println!();
}

/// The most bytes that are live at a step, by parts of buffers.
fn fullest_by_parts(plan: &Plan) -> u64 {
    let last = plan.step_count() - 1;
    // By buffer: where its operands are used.
    let mut uses: Vec<Vec<(Operand, u32)>> = vec![Vec::new(); plan.buffers.len()];
    let mut add = |operand: &Operand, step: u32| {
        if let Place::Buffer(BufferIx(ix)) = operand.place {
            uses[ix as usize].push((*operand, step));
        }
    };
    plan.inputs.iter().for_each(|port| add(&port.operand, 0));
    plan.outputs.iter().for_each(|port| add(&port.operand, last));
    plan.states.iter().for_each(|state| [0, last].into_iter().for_each(|step| add(&state.port.operand, step)));
    for (at, step) in plan.steps.iter().enumerate() {
        step.inputs.iter().chain(&step.outputs).chain(&step.workspace).for_each(|operand| add(operand, at as u32));
    }
    let mut changes: BTreeMap<u32, i64> = BTreeMap::new();
    for uses in &uses {
        let mut ends: Vec<u64> =
            uses.iter().flat_map(|(operand, _)| [operand.offset.0, operand.offset.0 + operand.size.0]).collect();
        ends.sort_unstable();
        ends.dedup();
        for part in ends.windows(2) {
            let of_part = uses
                .iter()
                .filter(|(operand, _)| operand.offset.0 <= part[0] && part[1] <= operand.offset.0 + operand.size.0);
            let steps: Vec<u32> = of_part.map(|&(_, step)| step).collect();
            if let (Some(first), Some(last)) = (steps.iter().min(), steps.iter().max()) {
                *changes.entry(*first).or_default() += (part[1] - part[0]) as i64;
                *changes.entry(last + 1).or_default() -= (part[1] - part[0]) as i64;
            }
        }
    }
    let live = changes.values().scan(0i64, |sum, change| {
        *sum += change;
        Some(*sum)
    });
    live.max().unwrap_or(0) as u64
}
