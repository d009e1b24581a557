//! State that is kept between runs: plans run several times, compared with the evaluator run by run.

use std::sync::Arc;

use runtime::audit::audit;
use runtime::{Host, RunError, Session};
use types::{Random, Role, Tensor};

use crate::support::{compiled, open};

pub(crate) fn graph(text: &str) -> ir::Graph {
    let graph = ir::text::parse(text, |_| None).expect("the text is a graph");
    ir::verify(&graph).expect("the graph is valid");
    graph
}

/// Runs a graph's plan and the evaluator on the same inputs, five times each, and compares results, states and the audit.
fn check_against_evaluator(text: &str) -> Session {
    let graph = graph(text);
    let compiled = compiled(graph.clone()).unwrap_or_else(|error| panic!("{text}{error}"));
    let mut session = open(&compiled, 2);
    let mut states = ir::initial_states(&graph);
    let mut random = Random::new(7);
    for run in 0..5 {
        let inputs = graph.inputs().iter().map(|&id| {
            let tensor = Tensor::from_fn(graph.ty(id).shape.clone(), |_| random.uniform(-1.0, 1.0));
            tensor.cast(graph.ty(id).dtype)
        });
        let inputs: Vec<Tensor> = inputs.collect();
        if run == 2 {
            let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
            let audit = audit(&mut session, &bytes).expect("the host sees its arena");
            assert!(audit.is_equal(), "{text}{audit:?}\n{}", plan::dump(session.plan()));
        }
        let want = ir::evaluate_run(&graph, &inputs, &mut states).expect("the inputs fit");
        let got = session.run_tensors(&inputs).expect("the inputs fit");
        assert_eq!(got, want, "results of run {run}\n{text}{}", plan::dump(session.plan()));
        for (&id, want) in graph.states().iter().zip(&states) {
            let name = &graph.value(id).name;
            let got = session.state(name).expect("the plan has the graph's states");
            assert_eq!(got, *want, "state `{name}` behind run {run}\n{text}{}", plan::dump(session.plan()));
        }
    }
    session
}

pub(crate) const ACCUMULATE: &str = r#"graph "accumulate"
v0: f32[4] = input "x"
v1: f32[4] = state "sum" {1,2,3,4}
v2: f32[4] = binary(v0, v1) "add" at "add"
v3: f32[4] = unary(v2) "relu" at "relu"
output "y" v3
update v1 v2
"#;

#[test]
fn accumulator_equals_the_evaluator_and_updates_in_place() {
    let session = check_against_evaluator(ACCUMULATE);
    let plan = session.plan();
    assert_eq!(plan.steps.len(), 2, "no copy is needed:\n{}", plan::dump(plan));
    let state = &plan.states[0];
    let plan::Place::Buffer(ix) = state.port.operand.place else { panic!("a state is in the arena") };
    let buffer = &plan.buffers[ix.0 as usize];
    assert_eq!((buffer.persistence, buffer.tag.role), (plan::Persistence::Session, Role::State));
    assert!(matches!(state.initial, plan::Initial::Constant(_)));
    assert!(plan::dump(plan).contains("state `sum` f32[4] = b"), "{}", plan::dump(plan));
    let report = report::Report::new(plan);
    assert_eq!(report.planned.by_role["state"], 16);
    let why = report.planned.alive_at_peak.iter().find(|row| row.tag == "sum:state").map(|row| row.why.kind);
    assert_eq!(why, Some(report::WhyKind::State));
}

#[test]
fn states_are_reset_read_and_written_by_name() {
    let mut session = check_against_evaluator(ACCUMULATE);
    session.reset_states().expect("the host does not fail");
    let initial = Tensor::new(types::Shape::from([4]), vec![1.0f32, 2.0, 3.0, 4.0]).expect("four elements");
    assert_eq!(session.state("sum"), Ok(initial.clone()));
    let other = initial.to_f64().iter().map(|x| *x as f32 * 2.0).collect::<Vec<f32>>();
    let other = Tensor::new(types::Shape::from([4]), other).expect("four elements");
    session.set_state("sum", &other).expect("the type fits");
    assert_eq!(session.state("sum"), Ok(other));
    let error = session.state("total").expect_err("there is no such state");
    assert_eq!(error.to_string(), "there is no state named `total`; the states are `sum`");
    let error =
        session.set_state("sum", &Tensor::from_fn(types::Shape::from([3]), |_| 0.0f32)).expect_err("3 elements");
    assert!(matches!(error, RunError::InputType { .. }), "{error}");
}

#[test]
fn updates_that_need_copies_equal_the_evaluator() {
    // The old value is read behind the update's node, so that the update cannot be in place.
    let read_later = check_against_evaluator(
        r#"graph "read later"
v0: f32[4] = input "x"
v1: f32[4] = state "s" {0,0,0,0}
v2: f32[4] = binary(v0, v1) "add" at "next"
v3: f32[4] = unary(v2) "exp" at "exp"
v4: f32[4] = binary(v3, v1) "mul" at "old"
output "y" v4
update v1 v2
"#,
    );
    assert_eq!(read_later.plan().states[0].initial, plan::Initial::Zeros);
    // A shift register, a swap, a result that is the old value, and an input as the next value.
    check_against_evaluator(
        r#"graph "shift"
v0: f32[3] = input "x"
v1: f32[3] = state "a" {1,2,3}
v2: f32[3] = state "b" {4,5,6}
v3: f32[3] = state "c" {7,8,9}
v4: f32[3] = unary(v1) "neg" at "neg"
output "old" v3
output "y" v4
update v3 v2
update v2 v1
update v1 v0
"#,
    );
    check_against_evaluator(
        r#"graph "swap"
v0: f32[3] = input "x"
v1: f32[3] = state "a" {1,2,3}
v2: f32[3] = state "b" {4,5,6}
v3: f32[3] = binary(v1, v0) "add" at "add"
v4: f32[1,3] = reshape(v3) {"shape":[1,3]} at "view"
v5: f32[3] = reshape(v4) {"shape":[3]} at "back"
output "y" v5
update v1 v2
update v2 v5
"#,
    );
}

#[test]
fn scalars_shared_values_and_constant_states_equal_the_evaluator() {
    check_against_evaluator(
        r#"graph "scalars"
v0: f32[] = input "x"
v1: f32[] = optimizer_state "count" {0}
v2: f32[] = trained_weight "w" {0.5}
v3: f32[] = state "fixed" {3}
v4: f32[] = binary(v1, v3) "add" at "count"
v5: f32[] = binary(v4, v0) "mul" at "mul"
v6: f32[] = binary(v5, v2) "sub" at "sub"
output "y" v6
output "count" v1
update v1 v4
update v2 v6
"#,
    );
    check_against_evaluator(
        r#"graph "shared"
v0: f32[4] = input "x"
v1: f32[4] = state "a" {1,1,1,1}
v2: f32[4] = state "b" {2,2,2,2}
v3: f32[4] = binary(v1, v0) "add" at "a"
v4: f32[8] = concat(v3, v2) {"axis":0} at "both"
output "y" v4
update v1 v3
update v2 v3
"#,
    );
}

#[test]
fn plans_with_state_are_not_opened_together() {
    let compiled = compiled(graph(ACCUMULATE)).expect("the host has kernels");
    let plan = Arc::new(compiled.plan);
    let error = runtime::open_all(vec![plan.clone(), plan], compiled.constants.to_vec(), &Host { threads: 1 }).err();
    assert_eq!(error, Some(RunError::SeveralPlansWithState(2)));
}
