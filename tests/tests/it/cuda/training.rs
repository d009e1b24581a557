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

/// The norm of a difference, relative to the norm.
fn norm_of_difference(got: &Tensor, want: &Tensor) -> f64 {
    let (got, want) = (got.to_f64(), want.to_f64());
    let norm = |items: &mut dyn Iterator<Item = f64>| items.map(|item| item * item).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(&want).map(|(got, want)| got - want)) / norm(&mut want.iter().copied()).max(1e-9)
}

/// A network whose step amplifies rounding: emitted kernels are as near to the definition as the processor's.
#[test]
fn training_step_of_a_network_is_as_near_as_the_processor() {
    let test = "cuda::training::training_step_of_a_network_is_as_near_as_the_processor";
    let shapes = [("input".to_string(), types::Shape::from([4, 3, 32, 32]))].into_iter().collect();
    let request = compiler::source::Request { model: "resnet18".into(), shapes, ..Default::default() };
    let recipe = passes::training::Recipe {
        loss: Some("softmax_cross_entropy".parse().expect("it is a loss")),
        optimizer: "sgd:momentum=0.9,lr=0.01".parse().expect("it is an optimizer"),
        ..passes::training::Recipe::default()
    };
    let model = || compiler::source::load_trainable(&request).expect("it is in the zoo");
    let step = |target: &dyn lower::Target| {
        let steps = compiler::compile_training(model(), &recipe, target, compiler::Goal::default(), |_, _| {});
        let [step, _] = steps.expect("there are kernels");
        step
    };
    let graph = passes::training::build(model().trainable, &recipe).expect("it is trainable").step;
    let mut emitted = step(&target(DType::F32));
    let source = assemble([&mut emitted.plan]);
    let Some(program) = shim(test, &folder("cuda-training-network"), &source, &["-O2"]) else { return };
    let inputs = runtime::synthetic_inputs(&emitted.plan, 1);
    let mut session = crate::support::open(&step(&lower::cpu::CpuTarget::new()), 2);
    let (mut states, constants) = (ir::initial_states(&graph), emitted.constants.to_vec());
    let ports: Vec<Port> = emitted.plan.states.iter().map(|state| state.port.clone()).collect();
    for number in 1..=STEPS {
        let want = ir::evaluate_run(&graph, &inputs, &mut states).expect("the inputs fit");
        let processor = session.run_tensors(&inputs).expect("the inputs fit");
        let mut job = Job { source: &source, bytes: Vec::new(), runs: 0 };
        job.add_runs(&emitted.plan, &constants, &inputs, number);
        let bytes = job.run(&program);
        let mut rest = &bytes[..];
        let got = results(&emitted.plan.outputs, &mut rest);
        let losses = [&got, &processor].map(|of| norm_of_difference(&of[0], &want[0]));
        let mut rows: Vec<(String, [f64; 2])> = vec![("loss".into(), losses)];
        for (port, got) in ports.iter().zip(results(&ports, &mut rest)) {
            let ix = graph.states().iter().position(|&id| graph.value(id).name == port.name);
            let want = &states[ix.expect("the plan has the graph's states")];
            let processor = session.state(&port.name).expect("it has the state");
            rows.push((port.name.clone(), [&got, &processor].map(|of| norm_of_difference(of, want))));
        }
        rows.sort_by(|a, b| b.1[0].total_cmp(&a.1[0]));
        let most = rows.iter().map(|(_, [_, processor])| *processor).fold(0.0, f64::max);
        let middle = rows[rows.len() / 2].1;
        println!("step {number}: {:?}, processor at most {most:.1e}, median {middle:?}", &rows[..4]);
        assert!(rows[0].1[0] <= (4.0 * most).max(1e-3), "step {number}: {:?}, processor {most}", rows[0]);
        assert!(middle[0] <= (4.0 * middle[1]).max(1e-5), "step {number}: {middle:?}");
    }
}
