//! Loops, branches, sequences and optionals: resolved while loading, or refused.

use types::{DType, Tensor};

use crate::models::{check, floats, ints, refusal, x};
use onnx_suite::model::{Attr, Dim, Message, Model, info, node};

/// A loop body with inputs iteration, condition and one state of any type.
fn body(inputs: [&'static str; 3], nodes: Vec<Message>, outputs: Vec<&'static str>) -> Attr {
    let infos = vec![
        info(inputs[0], DType::I64, &[]),
        info(inputs[1], DType::Bool, &[]),
        info(inputs[2], DType::F32, &[Dim::Is(2)]),
    ];
    let mut body = Model::new(18, infos, nodes, outputs[0]);
    body.outputs = outputs;
    Attr::Graph(body.graph())
}

/// A loop of `outer` iterations of a loop of `inner` iterations that doubles a state.
fn nested(outer: i64, inner: i64) -> Model {
    let doubled = vec![node("Identity", &["d"], &["d_out"], &[]), node("Add", &["u", "u"], &["v"], &[])];
    let doubling = body(["j", "d", "u"], doubled, vec!["d_out", "v"]);
    let nodes = vec![
        node("Identity", &["c"], &["c_out"], &[]),
        node("Loop", &["inner", "", "s"], &["t"], &[("body", doubling)]).text(3, "within"),
    ];
    let around = body(["i", "c", "s"], nodes, vec!["c_out", "t"]);
    let nodes = vec![node("Loop", &["outer", "", "x"], &["y"], &[("body", around)]).text(3, "around")];
    Model::new(18, vec![x(&[2])], nodes, "y")
        .with("outer", &Tensor::scalar(outer))
        .with("inner", &Tensor::scalar(inner))
}

#[test]
fn iterations_of_nested_loops_multiply() {
    check(&nested(2, 3), &[floats(&[2], &[1.0, -1.0])], &[64.0, -64.0]);
    // Each loop alone is far below the limit. The error is reported once, at the loop that reaches it.
    let reason = "loops of the model must have at most 4096 iterations in total";
    assert_eq!(refusal(&nested(100, 100)), format!("node `within` (operator `Loop`, opset 18): {reason}"));
    assert_eq!(refusal(&nested(5000, 0)), format!("node `around` (operator `Loop`, opset 18): {reason}"));
}

#[test]
fn loop_carries_a_sequence() {
    let nodes = vec![
        node("Identity", &["c"], &["c_out"], &[]),
        node("Cast", &["i"], &["f"], &[("to", Attr::Int(1))]),
        node("Add", &["x", "f"], &["moved"], &[]),
        node("SequenceInsert", &["s", "moved", "front"], &["t"], &[]),
    ];
    let nodes = vec![
        node("SequenceEmpty", &[], &["empty"], &[]),
        node("Loop", &["turns", "", "empty"], &["all"], &[("body", body(["i", "c", "s"], nodes, vec!["c_out", "t"]))]),
        node("ConcatFromSequence", &["all"], &["y"], &[("axis", Attr::Int(-1)), ("new_axis", Attr::Int(1))]),
    ];
    let model =
        Model::new(18, vec![x(&[2])], nodes, "y").with("turns", &Tensor::scalar(3i64)).with("front", &ints(&[0]));
    check(&model, &[floats(&[2], &[1.0, 10.0])], &[3.0, 2.0, 1.0, 12.0, 11.0, 10.0]);
}

#[test]
fn sequence_map_applies_its_body() {
    let infos = vec![info("a", DType::F32, &[Dim::Open]), info("b", DType::F32, &[Dim::Open])];
    let mut body = Model::new(18, infos, vec![node("Mul", &["a", "b"], &["p"], &[])], "p");
    body.outputs = vec!["p"];
    let nodes = vec![
        node("SplitToSequence", &["x", "two"], &["parts"], &[]),
        node("SequenceMap", &["parts", "factor"], &["scaled"], &[("body", Attr::Graph(body.graph()))]),
        node("SequenceErase", &["scaled", "zero"], &["rest"], &[]),
        node("ConcatFromSequence", &["rest"], &["y"], &[("axis", Attr::Int(0))]),
    ];
    let model = Model::new(18, vec![x(&[5])], nodes, "y")
        .with("two", &Tensor::scalar(2i64))
        .with("zero", &Tensor::scalar(0i64))
        .with("factor", &floats(&[1], &[2.0]));
    check(&model, &[floats(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0])], &[6.0, 8.0, 10.0]);
}

#[test]
fn optionals_are_resolved() {
    let arm = |op: &str| Attr::Graph(Model::new(18, vec![], vec![node(op, &["x"], &["z"], &[])], "z").graph());
    let chosen = |inputs: &[&str]| {
        let nodes = vec![
            node("Optional", inputs, &["o"], &[]),
            node("OptionalHasElement", &["o"], &["c"], &[]),
            node("If", &["c"], &["y"], &[("then_branch", arm("Neg")), ("else_branch", arm("Abs"))]),
        ];
        Model::new(18, vec![x(&[1])], nodes, "y")
    };
    check(&chosen(&["x"]), &[floats(&[1], &[-2.0])], &[2.0]);
    check(&chosen(&[]), &[floats(&[1], &[-2.0])], &[2.0]);
    check(&chosen(&["x"]), &[floats(&[1], &[3.0])], &[-3.0]);
    let nodes = vec![node("Optional", &[], &["o"], &[]), node("OptionalGetElement", &["o"], &["y"], &[])];
    assert!(refusal(&Model::new(18, vec![], nodes, "y")).ends_with("the optional must not be empty"));
}

#[test]
fn invalid_uses_of_sequences_are_refused() {
    let model = |nodes: Vec<Message>| Model::new(18, vec![x(&[4])], nodes, "y").with("nine", &Tensor::scalar(9i64));
    let construct = || node("SequenceConstruct", &["x", "x"], &["s"], &[]);
    let sequence = model(vec![node("SequenceConstruct", &["x", "x"], &["y"], &[])]);
    assert_eq!(refusal(&sequence), "output `y`: must be a tensor, got a sequence");
    let at = model(vec![construct(), node("SequenceAt", &["s", "nine"], &["y"], &[])]);
    assert!(refusal(&at).ends_with("position must be within a sequence of 2, got 9"), "{}", refusal(&at));
    let tensor = model(vec![construct(), node("Relu", &["s"], &["y"], &[])]);
    assert!(refusal(&tensor).ends_with("input 0 must be a tensor, got a sequence"), "{}", refusal(&tensor));
    let other = model(vec![node("SequenceLength", &["x"], &["y"], &[])]);
    assert!(refusal(&other).ends_with("input 0 must be a sequence, got a tensor"), "{}", refusal(&other));
    let mixed = model(vec![node("SequenceConstruct", &["x", "nine"], &["y"], &[])]);
    assert!(
        refusal(&mixed).ends_with("tensors of a sequence must have one dtype, got f32 and i64"),
        "{}",
        refusal(&mixed)
    );
    let open = Model::new(
        18,
        vec![x(&[4]), info("at", DType::I64, &[])],
        vec![construct(), node("SequenceAt", &["s", "at"], &["y"], &[])],
        "y",
    );
    assert!(refusal(&open).contains("`position` must be constant"), "{}", refusal(&open));
}
