//! Emitted kernels of whole training steps, several in a row, compared with the evaluator: losses and states.

use types::Random;
use types::update::{Adam, Lion, Sgd, UpdateRule};

use super::*;
use crate::training_step::{convolutional, dense, inputs_of};

/// Steps in a row. Each reads the states that the one before left.
const STEPS: u64 = 2;

#[test]
fn training_steps_match_the_definition_under_sanitizers() {
    let test = "cuda::training::training_steps_match_the_definition_under_sanitizers";
    let momentum = Sgd { momentum: 0.9, weight_decay: 1e-4, ..Sgd::default() };
    let graphs = [
        convolutional(UpdateRule::Sgd(momentum)),
        dense(UpdateRule::Adam(Adam::default())),
        dense(UpdateRule::Lion(Lion::default())),
    ];
    let mut compiled: Vec<Compiled> =
        graphs.iter().map(|graph| compiled(graph.clone()).expect("there are kernels")).collect();
    let source = assemble(compiled.iter_mut().map(|compiled| &mut compiled.plan));
    let Some(program) = shim(test, &folder("cuda-training"), &source, &SANITIZERS) else { return };
    let mut job = Job { source: &source, bytes: Vec::new(), runs: 0 };
    let inputs: Vec<Vec<Tensor>> = graphs.iter().map(|graph| inputs_of(graph, 1, &mut Random::new(5))).collect();
    for (compiled, inputs) in compiled.iter().zip(&inputs) {
        job.add_runs(&compiled.plan, &compiled.constants.to_vec(), inputs, STEPS);
    }
    let bytes = job.run(&program);
    let mut rest = &bytes[..];
    for ((graph, compiled), inputs) in graphs.iter().zip(&compiled).zip(&inputs) {
        let mut states = ir::initial_states(graph);
        let mut want = Vec::new();
        for _ in 0..STEPS {
            want = ir::evaluate_run(graph, inputs, &mut states).expect("the inputs fit");
        }
        let got = results(&compiled.plan.outputs, &mut rest);
        assert_eq!(difference(&got[0], &want[0], 1e-4, 1e-5), None, "{}: loss", graph.name);
        let ports: Vec<Port> = compiled.plan.states.iter().map(|state| state.port.clone()).collect();
        for (port, got) in ports.iter().zip(results(&ports, &mut rest)) {
            let ix = graph.states().iter().position(|&id| graph.value(id).name == port.name);
            let want = &states[ix.expect("the plan has the graph's states")];
            assert_eq!(difference(&got, want, 1e-3, 2e-4), None, "{}: state `{}`", graph.name, port.name);
        }
    }
    assert!(rest.is_empty(), "the program writes nothing more");
}
