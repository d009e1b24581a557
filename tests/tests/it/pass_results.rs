//! Passes preserve the results of a graph; the text form round-trips.

use std::collections::BTreeMap;
use std::sync::Arc;

use cases::judge::inputs;
use ir::ops::*;
use ir::{Graph, Op, ValueId, evaluate, text, verify};
use types::{Bytes, DType, Random, Scope, Shape, Tensor, pointwise};

use crate::support::{compiled, difference, open};

/// A random network of convolutions, normalizations, sums, concatenations, pointwise functions and moves.
pub(crate) fn random_graph(seed: u64) -> Graph {
    let mut random = Random::new(seed);
    let mut graph = Graph::new(&format!("random {seed}"));
    let channels = 1 + random.below(6) as usize;
    let mut known: Vec<ValueId> =
        vec![graph.add_input("x", DType::F32, Shape::from([1 + random.below(2) as usize, channels, 6, 5]))];
    for ix in 0..14 {
        let scope = Scope::new(&format!("block/{ix}"));
        let x = known[known.len() - 1 - random.below(known.len().min(3) as u64) as usize];
        let shape = graph.ty(x).shape.clone();
        let mut weight = |graph: &mut Graph, name: &str, shape: &[usize], low: f32| {
            let tensor = Tensor::from_fn(Shape::from(shape), |_| random.uniform(low, 1.0));
            graph.add_weight(&format!("{ix}.{name}"), tensor)
        };
        let channels = shape[1];
        let (op, operands): (Op, Vec<ValueId>) = match seed.wrapping_mul(31).wrapping_add(ix * 7) % 9 {
            0 | 1 => {
                let w = weight(&mut graph, "w", &[channels, channels, 3, 3], -0.5);
                (Conv::square(1, 1).into(), vec![x, w])
            }
            2 => {
                let parts = [("scale", 0.5), ("shift", -0.2), ("mean", -0.2), ("variance", 0.5)];
                let mut operands = vec![x];
                operands.extend(parts.map(|(name, low)| weight(&mut graph, name, &[channels], low)));
                (BatchNorm { epsilon: 1e-5 }.into(), operands)
            }
            3 => (Unary(pointwise::Unary::Relu).into(), vec![x]),
            4 => (Unary(pointwise::Unary::Sigmoid).into(), vec![x]),
            5 => {
                let other = known.iter().copied().rfind(|&other| graph.ty(other) == graph.ty(x)).unwrap_or(x);
                (Binary(pointwise::Binary::Add).into(), vec![x, other])
            }
            6 => {
                let s = weight(&mut graph, "s", &[channels, 1, 1], 0.5);
                (Binary(pointwise::Binary::Mul).into(), vec![x, s])
            }
            7 => {
                let other = known[0];
                (Concat { axis: 1 }.into(), vec![x, other])
            }
            _ => (Slice::range(&shape, 1, 0, channels.div_ceil(2)).into(), vec![x]),
        };
        known.push(graph.add1(op, &operands, scope).expect("the generator makes operands that fit"));
    }
    let last = *known.last().expect("there is an input");
    let mut outputs = vec![("y".to_string(), last)];
    if seed.is_multiple_of(3) {
        outputs.push(("middle".into(), known[known.len() / 2]));
    }
    graph.set_outputs(outputs);
    graph
}

#[test]
fn every_pass_preserves_results_of_random_graphs() {
    for seed in 0..60 {
        let graph = random_graph(seed);
        let inputs = inputs(&graph, seed);
        let want = evaluate(&graph, &inputs).expect("the graph verifies");
        passes::run(graph, |pass, graph| {
            let got = evaluate(graph, &inputs).expect("verified by the pipeline");
            for (got, want) in got.iter().zip(&want) {
                // Folded weights round differently; values are between 1 and 100.
                let difference = difference(got, want, 1e-4, 1e-4);
                assert_eq!(difference, None, "seed {seed}, after {pass}");
            }
        })
        .expect("no pass breaks a graph");
    }
}

#[test]
fn random_graphs_match_the_evaluator_and_their_plan() {
    for seed in 0..60 {
        let graph = random_graph(seed);
        let inputs = inputs(&graph, seed);
        let want = evaluate(&graph, &inputs).expect("the graph verifies");
        let compiled = compiled(graph).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(compiled.plan.arena.certificate.lower_bound <= compiled.plan.arena.size());
        // A bound over all orders that exceeds the placed buffers is invalid and not part of the plan.
        assert!(Bytes(0) < compiled.plan.order.lower_bound, "seed {seed}: {}", plan::dump(&compiled.plan));
        let mut session = open(&compiled, 2);
        let got = session.run_tensors(&inputs).expect("the inputs fit");
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(difference(got, want, 1e-4, 1e-4), None, "seed {seed}");
        }
        let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
        let audit = runtime::audit::audit(&mut session, &bytes).expect("the host sees its arena");
        assert!(audit.is_equal(), "seed {seed}: {audit:?}\n{}", plan::dump(&compiled.plan));
    }
}

#[test]
fn text_form_round_trips_after_every_pass() {
    for seed in 0..20 {
        passes::run(random_graph(seed), |pass, graph| {
            let tensors: BTreeMap<u64, Arc<Tensor>> = graph
                .values()
                .values()
                .filter_map(|value| value.tensor())
                .map(|tensor| (text::tensor_hash(tensor), tensor.clone()))
                .collect();
            let printed = text::print(graph);
            let parsed = text::parse(&printed, |hash| tensors.get(&hash).cloned());
            let parsed = parsed.unwrap_or_else(|error| panic!("seed {seed}, after {pass}: {error}\n{printed}"));
            assert!(verify(&parsed).is_ok());
            assert_eq!(text::print(&parsed), printed, "seed {seed}, after {pass}");
        })
        .expect("no pass breaks a graph");
    }
}

#[test]
fn compilation_is_reproducible() {
    let image = || {
        let compiled = compiled(random_graph(4)).expect("it compiles");
        let mut file = Vec::new();
        plan::image::write(&mut file, b"runner", std::slice::from_ref(&compiled.plan), compiled.constants)
            .expect("memory is writable");
        file
    };
    assert_eq!(image(), image());
}

#[test]
fn dense_block_concatenates_without_a_copy() {
    let mut graph = Graph::new("dense");
    let mut features = vec![graph.add_input("x", DType::F32, Shape::from([1, 16, 8, 8]))];
    let relu = Op::Unary(Unary(pointwise::Unary::Relu));
    features[0] = graph.add1(relu, &features, Scope::new("stem")).expect("relu takes anything");
    for layer in 0..4 {
        let all = match features.len() {
            1 => features[0],
            _ => graph.add1(Concat { axis: 1 }.into(), &features, Scope::new(&format!("cat{layer}"))).expect("fits"),
        };
        let channels = graph.ty(all).shape[1];
        let w = graph.add_weight("w", Tensor::full(Shape::from([16, channels, 3, 3]), 0.01f32));
        features
            .push(graph.add1(Conv::square(1, 1).into(), &[all, w], Scope::new(&format!("conv{layer}"))).expect("fits"));
    }
    let last = graph.add1(Concat { axis: 1 }.into(), &features, Scope::new("cat")).expect("fits");
    let w = graph.add_weight("w", Tensor::full(Shape::from([16, 80, 1, 1]), 0.01f32));
    let y = graph.add1(Conv::square(1, 0).into(), &[last, w], Scope::new("y")).expect("fits");
    graph.set_outputs(vec![("y".into(), y)]);
    let compiled = compiled(graph).expect("it compiles");
    let copies = compiled.plan.steps.iter().filter(|step| step.kernel == "copy").count();
    assert_eq!(copies, 0, "{}", plan::dump(&compiled.plan));
}
