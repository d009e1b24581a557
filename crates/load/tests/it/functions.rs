//! Functions of the model.

use onnx_suite::model::{Attr, Message, Model, node};
use prestow_load::onnx::{self, Options};
use types::Tensor;

use crate::models::{floats, x};

/// `FunctionProto` in domain `own`.
fn function(name: &str, inputs: &[&str], outputs: &[&str], opset: i64, nodes: &[Message]) -> Message {
    let mut function = Message::new().text(1, name).text(10, "own");
    for input in inputs {
        function = function.text(4, input);
    }
    for output in outputs {
        function = function.text(5, output);
    }
    function = nodes.iter().fold(function, |function, node| function.message(7, node));
    let import = |domain: &str, version: i64| Message::new().text(1, domain).int(2, version);
    function.message(9, &import("", opset)).message(9, &import("own", 1))
}

fn call(name: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Attr)]) -> Message {
    node(name, inputs, outputs, attributes).text(7, "own")
}

/// A node whose attribute `name`, of a kind of `AttributeProto`, is an attribute of the function.
fn with_reference(node: Message, name: &str, kind: i64, source: &str) -> Message {
    node.message(5, &Message::new().text(1, name).int(20, kind).text(21, source))
}

fn result(nodes: Vec<Message>, functions: &[Message], input: &Tensor) -> Result<Vec<f64>, String> {
    let dims: Vec<i64> = input.shape().iter().map(|&extent| extent as i64).collect();
    let model = Model::new(18, vec![x(&dims)], nodes, "y");
    let own = Message::new().text(1, "own").int(2, 1);
    let file = functions.iter().fold(Message(model.write()).message(8, &own), |file, each| file.message(25, each));
    let graph = onnx::load(&file.0, None, &Options::default()).map_err(|error| error.to_string())?;
    ir::verify(&graph).expect("the graph verifies");
    Ok(ir::evaluate(&graph, std::slice::from_ref(input)).expect("the input fits")[0].to_f64())
}

#[test]
fn calls_are_replaced_by_nodes() {
    // Names of the body are its own, also `x` and `y`; the function is called twice, and calls another.
    let twice = function("Twice", &["y"], &["x"], 18, &[node("Add", &["y", "y"], &["x"], &[])]);
    let next = function(
        "TwiceLess",
        &["a", "b"],
        &["c", "d"],
        18,
        &[call("Twice", &["a"], &["y"], &[]), node("Sub", &["y", "b"], &["c"], &[]), node("Neg", &["c"], &["d"], &[])],
    );
    let nodes = vec![
        call("TwiceLess", &["x", "x"], &["p", "q"], &[]),
        call("TwiceLess", &["p", "q"], &["", "r"], &[]),
        node("Identity", &["r"], &["y"], &[]),
    ];
    let got = result(nodes, &[next, twice], &floats(&[2], &[1.0, -2.5]));
    // p = 2 x - x, q = -p, r = -(2 p - q).
    assert_eq!(got, Ok(vec![-3.0, 7.5]));
}

#[test]
fn attributes_have_the_values_of_the_call() {
    let leaky = with_reference(node("LeakyRelu", &["v"], &["w"], &[]), "alpha", 1, "slope");
    let default = Message::new().text(1, "slope").float(2, 0.5).int(20, 1);
    let with_default = function("Leak", &["v"], &["w"], 18, std::slice::from_ref(&leaky)).message(11, &default);
    let without = function("Leak", &["v"], &["w"], 18, &[leaky]).text(6, "slope");
    let model = |attributes: &[(&str, Attr)]| vec![call("Leak", &["x"], &["y"], attributes)];
    let input = floats(&[2], &[4.0, -4.0]);
    let slope = [("slope", Attr::Float(0.25))];
    assert_eq!(result(model(&slope), std::slice::from_ref(&with_default), &input), Ok(vec![4.0, -1.0]));
    assert_eq!(result(model(&[]), &[with_default], &input), Ok(vec![4.0, -2.0]));
    // Without a value the operator has its own.
    let got = result(model(&[]), &[without], &input).expect("it loads");
    assert!((got[1] + 0.04).abs() < 1e-6);
}

#[test]
fn functions_have_their_own_operator_sets_and_optional_inputs() {
    // Before opset 13 the axes are an attribute.
    let axes = [("axes", Attr::Ints(vec![0]))];
    let sum = node("ReduceSum", &["a"], &["s"], &axes);
    let clip = node("Clip", &["s", "", "high"], &["b"], &[]);
    let body = function("Bounded", &["a", "high"], &["b"], 12, &[sum, clip]);
    let high = node("Constant", &[], &["three"], &[("value_float", Attr::Float(3.0))]);
    let input = floats(&[2, 2], &[1.0, 2.0, 3.0, -5.0]);
    let with = vec![high, call("Bounded", &["x", "three"], &["y"], &[])];
    assert_eq!(result(with, std::slice::from_ref(&body), &input), Ok(vec![3.0, -3.0]));
    let without = vec![call("Bounded", &["x"], &["y"], &[])];
    assert_eq!(result(without, &[body], &input), Ok(vec![4.0, -3.0]));
}

#[test]
fn calls_that_cannot_be_translated_are_refused() {
    let input = floats(&[2], &[1.0, 2.0]);
    let one = || vec![call("F", &["x"], &["y"], &[])];
    let itself = function("F", &["a"], &["b"], 18, &[call("F", &["a"], &["b"], &[])]);
    let error = result(one(), &[itself], &input).expect_err("it is refused");
    assert!(error.contains("nested at most 32 deep, at function `F`; none may call itself"), "{error}");
    let unknown = function("F", &["a"], &["b"], 18, &[node("Unheard", &["a"], &["b"], &[])]);
    let error = result(one(), &[unknown], &input).expect_err("it is refused");
    assert!(
        error.contains("node `F_0/Unheard_0` (operator `Unheard`, opset 18): the operator is not supported"),
        "{error}"
    );
    let identity = function("F", &["a"], &["b"], 18, &[node("Identity", &["a"], &["b"], &[])]);
    let error = result(vec![call("F", &["x", "x"], &["y"], &[])], std::slice::from_ref(&identity), &input);
    assert!(error.expect_err("it is refused").contains("at most 1 inputs and 1 outputs, those of function `F`"));
    let outer = function("F", &["a"], &["b"], 18, &[node("Identity", &["x"], &["b"], &[])]);
    let error = result(one(), &[outer], &input).expect_err("names of the graph are not those of a function");
    assert!(error.contains("reads `x`, which is not defined before it"), "{error}");
    let error = result(vec![call("G", &["x"], &["y"], &[])], &[identity], &input).expect_err("it is refused");
    assert!(error.contains("own.G"), "{error}");
}
