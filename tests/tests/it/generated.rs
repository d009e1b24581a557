//! Generated networks: arenas compared with naive plans, and results with the definition.

use cases::naive::naive_arena;
use cases::networks::{Family, Scale};
use compiler::{Compiled, Model, Optimize, compile};
use ir::Graph;
use lower::cpu::CpuTarget;
use types::{Bytes, Random, Tensor};

use crate::support::{difference, effort, open};

fn compiled(graph: &Graph, optimize: Optimize) -> Compiled {
    let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
    let compiled = compile(model, &CpuTarget::new(), optimize.into(), |_, _| {});
    compiled.unwrap_or_else(|error| panic!("{}: {error}", graph.name))
}

fn networks(seeds: u64) -> impl Iterator<Item = Graph> {
    let seeds = 1..=seeds * effort() as u64;
    seeds.flat_map(|seed| Family::ALL.into_iter().map(move |family| family.network(seed, Scale::Small)))
}

#[test]
fn arenas_for_memory_are_never_above_the_naive_plan() {
    let mut above: Vec<String> = Vec::new();
    for graph in networks(6) {
        let [time, balanced, memory] = [Optimize::Time, Optimize::Balanced, Optimize::Memory]
            .map(|optimize| compiled(&graph, optimize).plan.arena.size());
        let naive = Bytes(naive_arena(&graph));
        if naive < memory || time < balanced || time < memory {
            above.push(format!("{}: naive {naive}, time {time}, balanced {balanced}, memory {memory}", graph.name));
        }
    }
    assert!(above.is_empty(), "{}", above.join("\n"));
}

/// With buffers that are live as a whole, no placement of these steps would be as small.
#[test]
fn buffers_of_u_nets_lie_in_slices_that_are_not_written_yet() {
    for seed in 1..=3 {
        let plan = compiled(&Family::UNet.network(seed, Scale::Small), Optimize::Memory).plan;
        let whole = |step: u32| -> Bytes {
            let alive = plan.buffers.iter().filter(|buffer| (buffer.first_step..=buffer.last_step).contains(&step));
            alive.map(|buffer| buffer.size.align_up(plan.arena.alignment)).sum()
        };
        let peak = (0..plan.step_count()).map(whole).max().expect("it has steps");
        assert!(plan.arena.size() < peak, "{}: arena {}, whole buffers {peak}", plan.model, plan.arena.size());
    }
}

#[test]
fn bound_over_kernels_holds_for_every_choice_of_kernels() {
    let mut reached = 0;
    for graph in networks(3) {
        let plans = [Optimize::Time, Optimize::Balanced, Optimize::Memory].map(|goal| compiled(&graph, goal).plan);
        // Chains of convolutions are fused steps, which other goals may not have.
        let is_fused = |plan: &plan::Plan| plan.steps.iter().any(|step| step.kernel.contains("bottleneck"));
        if plans.iter().any(is_fused) {
            continue;
        }
        for (bound, arena) in plans.iter().flat_map(|a| plans.iter().map(|b| (a.any_kernels, b.arena.size()))) {
            assert!(bound <= arena, "{}: bound {bound}, arena {arena}", graph.name);
            reached += usize::from(bound == arena);
        }
    }
    assert!(0 < reached, "some arena is as small as the bound over all kernels");
}

#[test]
fn results_of_every_goal_match_the_definition() {
    for graph in networks(2) {
        let mut random = Random::for_name(7, &graph.name);
        let shapes = graph.inputs().iter().map(|&input| graph.ty(input).shape.clone());
        let inputs: Vec<Tensor> = shapes.map(|shape| Tensor::from_fn(shape, |_| random.uniform(-1.0, 1.0))).collect();
        let want = ir::evaluate(&graph, &inputs).expect("the inputs fit");
        for optimize in [Optimize::Balanced, Optimize::Memory] {
            let got = open(&compiled(&graph, optimize), 2).run_tensors(&inputs).expect("the inputs fit");
            for (got, want) in got.iter().zip(&want) {
                let scale = want.to_f64().iter().fold(1.0, |most: f64, item| most.max(item.abs()));
                // Winograd's algorithm rounds by about 1e-5 of the largest result, layer by layer.
                if let Some(difference) = difference(got, want, 1e-3, 1e-3 * scale) {
                    panic!("{} for {optimize:?}: {difference}", graph.name);
                }
            }
        }
    }
}
