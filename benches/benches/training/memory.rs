//! Planned bytes of training steps compared with MXNet's plans (`benches/data/training/mxnet_plan_mib.csv`).
//!
//! MXNet's plan has neither parameters nor their gradients and the states of the optimizer. So it is compared with two
//! numbers of ours: the most bytes that are live without weights, states and gradients of weights, and the most without
//! weights and states, but with gradients, which MXNet does not count. Workspaces count in ours only. *Everything* is our
//! arena, which has the weights and momentum, and MXNet's plan with parameters, gradients and momentum.

use std::collections::BTreeMap;
use std::path::Path;

use compiler::source::{Request, load_trainable};
use lower::cpu::CpuTarget;
use passes::training::Recipe;
use report::Report;

use crate::median;

const MIB: f64 = (1 << 20) as f64;
const BATCH: usize = 32;

/// Prints the table for some networks of the file, or for all.
pub(crate) fn table(networks: &[String]) -> Result<(), String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/training/mxnet_plan_mib.csv");
    let text = std::fs::read_to_string(&file).map_err(|error| format!("cannot read `{}`: {error}", file.display()))?;
    println!(
        "| network | MXNet's plan, MiB | ours | ratio | with gradients of weights | ratio | everything, MXNet | ours | \
         ratio | proof |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut ratios: [Vec<f64>; 3] = Default::default();
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let [name, plan, parameters] = cells[..] else { return Err(format!("expected three cells, got `{line}`")) };
        if !networks.is_empty() && !networks.iter().any(|network| network == name) {
            continue;
        }
        let number = |cell: &str| cell.parse::<f64>().map_err(|error| format!("`{line}`: {error}"));
        let (plan, parameters) = (number(plan)?, number(parameters)?);
        let own = match planned(name) {
            Ok(own) => own,
            Err(error) => {
                println!("| {name} | {plan} | {error} | | | | | | | |");
                continue;
            }
        };
        let everything = plan + 3.0 * parameters;
        let pairs = [(own.without_gradients, plan), (own.with_gradients, plan), (own.arena, everything)];
        // Plans are rounded to MiB: small ones have no ratio.
        let cells = pairs.map(|(own, plan)| if plan < 10.0 { None } else { Some(own / plan) });
        for (ratios, cell) in ratios.iter_mut().zip(cells) {
            ratios.extend(cell);
        }
        let cell = |ix: usize| cells[ix].map_or("-".to_string(), |ratio| format!("{ratio:.3}"));
        println!(
            "| {name} | {plan:.0} | {:.1} | {} | {:.1} | {} | {everything:.0} | {:.1} | {} | {} |",
            own.without_gradients,
            cell(0),
            own.with_gradients,
            cell(1),
            own.arena,
            cell(2),
            own.proof
        );
    }
    let cell = |ix: usize| median(&ratios[ix]).map_or("-".to_string(), |ratio| format!("{ratio:.3}"));
    println!("| median | | | {} | | {} | | | {} | |", cell(0), cell(1), cell(2));
    Ok(())
}

/// A step's memory, in MiB.
struct Own {
    without_gradients: f64,
    with_gradients: f64,
    arena: f64,
    proof: String,
}

fn planned(network: &str) -> Result<Own, String> {
    let request = Request { model: network.into(), batch: Some(BATCH), ..Request::default() };
    let model = load_trainable(&request).map_err(|error| error.to_string())?;
    let recipe = Recipe {
        loss: Some("softmax_cross_entropy".parse().expect("it is a loss")),
        optimizer: "sgd:momentum=0.9".parse().expect("it is an optimizer"),
        clip_norm: None,
        accumulate: 1,
        freeze: Vec::new(),
    };
    let compiled = compiler::compile_training(model, &recipe, &CpuTarget::new(), compiler::Goal::default(), |_, _| {});
    let [step, _] = compiled.map_err(|error| error.to_string())?;
    let planned = Report::new(&step.plan).planned;
    let most = |left_out: &[&str]| most(&planned.timeline, left_out);
    let states = ["weight", "optimizer_state", "state", "constant", "free"];
    Ok(Own {
        without_gradients: most(&[&states[..], &["weight_gradient"]].concat()),
        with_gradients: most(&states),
        arena: planned.arena_bytes as f64 / MIB,
        proof: match planned.optimal {
            true => "optimal".into(),
            false => format!("at most {:.2} MiB above", (planned.arena_bytes - planned.least_bytes) as f64 / MIB),
        },
    })
}

/// The most live bytes of all roles but some, in MiB.
fn most(timeline: &BTreeMap<String, Vec<u64>>, left_out: &[&str]) -> f64 {
    let roles: Vec<&Vec<u64>> =
        timeline.iter().filter(|(role, _)| !left_out.contains(&role.as_str())).map(|(_, bytes)| bytes).collect();
    let steps = roles.iter().map(|bytes| bytes.len()).max().unwrap_or(0);
    let live = |step: usize| roles.iter().filter_map(|bytes| bytes.get(step)).sum::<u64>();
    (0..steps).map(live).max().unwrap_or(0) as f64 / MIB
}
