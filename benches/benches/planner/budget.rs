//! `budget`: arenas under a budget, and the time that they cost.
//!
//! For each network the arena without a budget, the smallest arena that the search finds, and for parts of the arena without a
//! budget (`percent=50,30`) the arena and the time of a run. Times are the least of interleaved rounds of both plans on
//! one thread (`rounds=5`; `rounds=0` measures nothing). Results of both plans are compared. Without names: every network of
//! the zoo. Names are those of the zoo, and families of generated networks with `seeds=`.

use std::sync::Arc;
use std::time::Instant;

use cases::judge::inputs;
use cases::networks::{Family, Scale};
use compiler::source::{Request, load, models};
use compiler::{CompileError, Compiled, Goal, Model};
use lower::cpu::CpuTarget;
use runtime::{Host, Session};
use types::{Bytes, Tensor};

use crate::{number, option, seeds, timed};

/// Runs of a round take at least this long.
const ROUND_S: f64 = 0.05;
/// The largest difference of results, of their largest element: kernels of stripes may sum in another order.
const DIFFERENCE: f64 = 1e-3;

pub(crate) fn budget(words: &[String]) {
    let percents: Vec<u64> = option(words, "percent=").unwrap_or("50").split(',').map(number).collect();
    let rounds = option(words, "rounds=").map_or(5, number);
    print!("| network | arena | smallest found | of the arena | s |");
    percents.iter().for_each(|percent| print!(" at {percent} % | time | modelled | s |"));
    println!("\n|{}", " --- |".repeat(5 + 4 * percents.len()));
    let families: Vec<Family> =
        Family::ALL.into_iter().filter(|family| words.iter().any(|word| word == family.name())).collect();
    for family in &families {
        for seed in seeds(words).unwrap_or(1..=1) {
            row(&model_of(family.network(seed, scale(words))), &percents, rounds);
        }
    }
    let models = models();
    let names = models.iter().map(|model| model.name);
    let asked: Vec<&str> = names.clone().filter(|name| words.iter().any(|word| word == name)).collect();
    let names: Vec<&str> = if asked.is_empty() && families.is_empty() { names.collect() } else { asked };
    for name in names {
        let request = Request { model: name.into(), batch: Some(1), ..Request::default() };
        let mut model = load(&request).expect("the zoo has it");
        model.graph.name = name.to_string();
        row(&model, &percents, rounds);
    }
    println!();
}

/// `nodes=1000`: the number of nodes of generated networks.
fn scale(words: &[String]) -> Scale {
    option(words, "nodes=").map_or(Scale::Full, |count| Scale::Nodes(number(count) as usize))
}

fn model_of(graph: ir::Graph) -> Model {
    Model { graph, preprocess: None, labels: Vec::new() }
}

fn row(model: &Model, percents: &[u64], rounds: u64) {
    let compile = |goal: Goal| timed(|| compiler::compile(model.clone(), &CpuTarget::new(), goal, |_, _| {}));
    let free = compile(Goal::default()).0.expect("it compiles");
    let arena = free.plan.arena.size();
    // No plan fits a byte: the answer is the smallest arena that the search has found.
    let (smallest, smallest_s) = match compile(Goal::within(Bytes(1))) {
        (Err(CompileError::Budget { smallest, .. }), seconds) => (smallest, seconds),
        (Err(error), _) => panic!("{}: {error}", model.graph.name),
        (Ok(_), _) => panic!("{}: a plan fits a byte", model.graph.name),
    };
    let of_arena = |bytes: Bytes| format!("{:.1} %", 100.0 * bytes.0 as f64 / arena.0.max(1) as f64);
    print!("| {} | {} | {} | {} | {smallest_s:.1} |", model.graph.name, arena.0, smallest.0, of_arena(smallest));
    for percent in percents {
        let (outcome, seconds) = compile(Goal::within(Bytes(arena.0 * percent / 100)));
        match outcome {
            Ok(within) => {
                let time = ratio(model, &free, &within, rounds).map_or("-".into(), |ratio| format!("{ratio:.2}"));
                let modelled = within.fit.as_ref().map_or("-".into(), |fit| format!("{:.2}", fit.cost));
                print!(" {} | {time} | {modelled} | {seconds:.1} |", of_arena(within.plan.arena.size()));
            }
            Err(CompileError::Budget { smallest, .. }) => print!(" no, {} | | | {seconds:.1} |", of_arena(smallest)),
            Err(error) => panic!("{}: {error}", model.graph.name),
        }
    }
    println!();
}

/// The time of a run of the second plan in that of the first; `None` without rounds.
fn ratio(model: &Model, free: &Compiled, within: &Compiled, rounds: u64) -> Option<f64> {
    let inputs = inputs(&model.graph, 3);
    let mut sessions = [free, within].map(|compiled| {
        let (plan, weights) = (Arc::new(compiled.plan.clone()), Arc::new(compiled.constants.to_vec()));
        runtime::open(plan, weights, &Host { threads: 1 }).expect("a compiled plan opens")
    });
    let results = sessions.each_mut().map(|session| session.run_tensors(&inputs).expect("processors do not fail"));
    compare(&model.graph.name, &results);
    let mut least = [f64::INFINITY; 2];
    let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
    for _ in 0..rounds {
        for (session, least) in sessions.iter_mut().zip(&mut least) {
            *least = least.min(seconds_of_a_run(session, &bytes));
        }
    }
    (0 < rounds).then(|| least[1] / least[0])
}

fn compare(name: &str, [want, got]: &[Vec<Tensor>; 2]) {
    for (want, got) in want.iter().zip(got) {
        let (want, got) = (want.to_f64(), got.to_f64());
        let largest = want.iter().fold(1e-6f64, |largest, item| largest.max(item.abs()));
        let differs = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(differs <= DIFFERENCE * largest, "{name}: results differ by {differs} of {largest}");
    }
}

/// The least seconds of a run. A plan may overwrite its inputs: they are written before each.
#[expect(clippy::disallowed_methods, reason = "benches measure time")]
fn seconds_of_a_run(session: &mut Session, inputs: &[Vec<u8>]) -> f64 {
    let (mut least, mut all) = (f64::INFINITY, 0.0);
    while all < ROUND_S {
        inputs
            .iter()
            .enumerate()
            .for_each(|(ix, bytes)| session.write_input(ix, bytes).expect("processors do not fail"));
        let start = Instant::now();
        session.run().expect("processors do not fail");
        let seconds = start.elapsed().as_secs_f64();
        (least, all) = (least.min(seconds), all + seconds);
    }
    least
}
