//! Every operator through compiler and runtime, against its definition, with the cases of `prestow-cases`.
//!
//! Results must be bit-identical on 1, 2 and 3 threads, and each run must pass the audit.

use cases::Case;
use cases::judge::inputs;
use ir::evaluate;
use runtime::{audit, heap};
use types::Tensor;

use crate::support::{compiled, difference, open, try_open};

/// Relative tolerance: sums of some hundred products of numbers below 1, in f32 against f64.
const RELATIVE: f64 = 2e-5;
/// Absolute tolerance.
const ABSOLUTE: f64 = 2e-5;

fn check(case: &Case) {
    let name = &case.name;
    let graph = &case.graph;
    let inputs = inputs(graph, 3);
    let want = evaluate(graph, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    let compiled = compiled(graph.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
    let mut first = None;
    for threads in [1, 2, 3] {
        let mut session = try_open(&compiled, threads).unwrap_or_else(|error| panic!("{name}: {error}"));
        let got = session.run_tensors(&inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (got, want) in got.iter().zip(&want) {
            if let Some(difference) = difference(got, want, RELATIVE, ABSOLUTE) {
                panic!("{name}, {threads} threads: {difference}");
            }
        }
        let bits: Vec<Vec<u8>> = got.iter().map(Tensor::to_le_bytes).collect();
        assert_eq!(*first.get_or_insert(bits.clone()), bits, "{name}: {threads} threads give other bits");
        let audit = audit::audit(&mut session, &bytes).expect("the host sees its arena");
        assert!(audit.is_equal(), "{name}: {audit:?}");
    }
}

fn check_all(cases: &[Case]) {
    assert!(!cases.is_empty());
    cases.iter().for_each(check);
}

#[test]
fn pointwise_functions_match_their_definitions() {
    check_all(&cases::pointwise::all());
}

#[test]
fn quantized_operators_match_their_definitions() {
    check_all(&cases::bytes::all());
}

#[test]
fn convolutions_match_their_definition() {
    check_all(&cases::windows::convolutions());
}

#[test]
fn pools_and_reductions_match_their_definitions() {
    check_all(&cases::reductions::all());
}

#[test]
fn moves_match_their_definitions() {
    check_all(&cases::moves::all());
}

#[test]
fn matrix_products_match_their_definition() {
    check_all(&cases::products::all());
}

#[test]
fn operators_of_training_match_their_definitions() {
    check_all(&[cases::training::all(), cases::training::kept_gates(), cases::training::updates_by_factors()].concat());
}

#[test]
fn recurrent_networks_match_their_definition() {
    check_all(&cases::recurrent::all());
}

#[test]
fn transformer_operators_match_their_definitions() {
    check_all(&cases::transformers::all());
}

/// The counter is global and other tests allocate, so runs repeat until one sees no allocation.
#[test]
fn run_does_not_allocate() {
    assert!(heap::is_counting());
    let case = cases::windows::convolutions().into_iter().find(|case| case.name == "deep conv").expect("it is there");
    let compiled = compiled(case.graph.clone()).expect("it compiles");
    let mut session = open(&compiled, 2);
    let bytes: Vec<Vec<u8>> = inputs(&case.graph, 1).iter().map(Tensor::to_le_bytes).collect();
    let alone = (0..10_000).any(|_| {
        let before = heap::allocations();
        session.write_input(0, &bytes[0]).expect("processors do not fail");
        session.run().expect("processors do not fail");
        before == heap::allocations()
    });
    assert!(alone, "10000 runs, each with an allocation in the process");
}
