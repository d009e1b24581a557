//! Damaged MXNet symbols: loading returns a graph that verifies or an error, and never panics.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use prestow_load::mxnet::{self, Options};
use serde_json::{Value, json};
use types::{Random, Shape, Tensor};

use crate::damaged::mutate;
use crate::effort;

/// A recorded file, shared with the workspace's tests.
fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/mxnet").join(name);
    std::fs::read(path).expect("recorded files are checked in")
}

fn survives(symbol: &[u8], arrays: &BTreeMap<String, Tensor>, shapes: &BTreeMap<String, Shape>, case: &str) -> bool {
    let options = Options { batch: Some(2), shapes: shapes.clone(), ..Options::default() };
    let load = || match mxnet::load(symbol, arrays.clone(), &options) {
        Ok(graph) => ir::verify(&graph).map(|()| true).map_err(|errors| format!("{errors:?}")),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Ok(false)
        }
    };
    match catch_unwind(AssertUnwindSafe(load)) {
        Ok(Ok(loaded)) => loaded,
        Ok(Err(errors)) => panic!("{case}: the graph does not verify: {errors}"),
        Err(_) => panic!("{case}: loading panicked"),
    }
}

#[test]
fn mutations_of_a_symbol_never_panic() {
    let (symbol, arrays) = (file("mnist_cnn-symbol.json"), file("mnist_cnn-0000.params"));
    let arrays = weights::read("mnist_cnn-0000.params", &arrays).expect("it is whole");
    let shapes = BTreeMap::from([("data".to_string(), Shape::from([1, 1, 28, 28]))]);
    assert!(survives(&symbol, &arrays, &shapes, "whole"));
    let mut random = Random::new(5);
    for ix in 0..2000 * effort() {
        survives(&mutate(&symbol, &mut random), &arrays, &shapes, &format!("mutation {ix}"));
    }
}

/// Every recorded operator with unusual attributes.
#[test]
fn strange_attributes_never_panic() {
    const STRANGE: [&str; 16] = [
        "",
        "-1",
        "0",
        "1",
        "7",
        "None",
        "True",
        "(0,)",
        "(1, 1)",
        "(-1, 99999999999)",
        "(3, -4, 5, -2)",
        "1e30",
        "nan",
        "9223372036854775807",
        "(0, 0, 0, 0, 0, 0, 0)",
        "avg",
    ];
    let cases: Vec<Value> = serde_json::from_slice(&file("op_cases.json")).expect("the list is JSON");
    let recorded = weights::read("op_cases.npz", &file("op_cases.npz")).expect("it is whole");
    let mut random = Random::new(6);
    let pick = |random: &mut Random, count: usize| random.below(count as u64) as usize;
    // Names of attributes of all operators.
    let mut names: Vec<&String> =
        cases.iter().filter_map(|case| case["attrs"].as_object()).flat_map(|a| a.keys()).collect();
    names.sort();
    names.dedup();
    let mut loaded = 0;
    for case in cases.iter().filter(|case| case["op"] != "optimizer") {
        let name = case["case"].as_str().expect("every case has a name");
        let inputs = case["inputs"].as_array().expect("every case has inputs");
        let mut nodes: Vec<Value> =
            inputs.iter().map(|input| json!({"op": "null", "name": input, "inputs": []})).collect();
        let entries: Vec<Value> = (0..inputs.len()).map(|ix| json!([ix, 0, 0])).collect();
        let (mut arrays, mut shapes) = (BTreeMap::new(), BTreeMap::new());
        for (ix, input) in inputs.iter().enumerate() {
            let input = input.as_str().expect("a name");
            let found = recorded.get(&format!("{name}/in/{input}"));
            let tensor = found.or_else(|| recorded.get(&format!("{name}/aux_before/{input}"))).expect("it is recorded");
            match ix {
                0 => drop(shapes.insert(input.to_string(), tensor.shape().clone())),
                _ => drop(arrays.insert(input.to_string(), tensor.clone())),
            }
        }
        nodes.push(json!({"op": case["op"], "name": "node", "attrs": {}, "inputs": entries}));
        for ix in 0..60 * effort() {
            let mut attributes = case["attrs"].clone();
            for _ in 0..=random.below(2) {
                let own: Vec<String> = attributes.as_object().expect("a map").keys().cloned().collect();
                let key = match own.is_empty() || random.below(4) == 0 {
                    true => names[pick(&mut random, names.len())].clone(),
                    false => own[pick(&mut random, own.len())].clone(),
                };
                attributes[key] = STRANGE[pick(&mut random, STRANGE.len())].into();
            }
            let last = nodes.len() - 1;
            nodes[last]["attrs"] = attributes.clone();
            let symbol = json!({"nodes": nodes, "heads": [[last, 0, 0]]}).to_string();
            let case = format!("{name}, {ix}: {attributes}");
            loaded += usize::from(survives(symbol.as_bytes(), &arrays, &shapes, &case));
        }
    }
    assert!(500 < loaded, "only {loaded} load: attributes are not read");
}

/// `y = x * w`, with attributes of the variables.
fn product(x: &str, w: &str) -> String {
    format!(
        r#"{{"nodes": [
        {{"op": "null", "name": "x", "inputs": [], "attrs": {{{x}}}}},
        {{"op": "null", "name": "w", "inputs": [], "attrs": {{{w}}}}},
        {{"op": "broadcast_mul", "name": "y", "inputs": [[0, 0, 0], [1, 0, 0]]}}
    ], "heads": [[2, 0, 0]]}}"#
    )
}

/// Loads the product with an array `[3,4]`; returns the shape of the input or the message.
fn loaded(symbol: &str, shapes: &[(&str, &[usize])], batch: Option<usize>) -> Result<Shape, String> {
    let arrays = BTreeMap::from([("w".to_string(), Tensor::full(Shape::from([3, 4]), 0.5f32))]);
    let shapes = shapes.iter().map(|(name, shape)| (name.to_string(), Shape::from(*shape))).collect();
    let graph = mxnet::load(symbol.as_bytes(), arrays, &Options { batch, shapes, ..Options::default() });
    let graph = graph.map_err(|error| error.to_string())?;
    Ok(graph.ty(graph.inputs()[0]).shape.clone())
}

#[test]
fn array_of_another_shape_than_the_symbol_declares_is_refused() {
    let x = r#""__shape__": "(3, 4)""#;
    assert_eq!(loaded(&product(x, x), &[], None), Ok(Shape::from([3, 4])));
    assert_eq!(loaded(&product(x, r#""__shape__": "(0, 4)""#), &[], None), Ok(Shape::from([3, 4])));
    for other in ["(4, 3)", "(1, 4)", "(3,)"] {
        let error = loaded(&product(x, &format!(r#""__shape__": "{other}""#)), &[], None).expect_err(other);
        assert!(error.starts_with(&format!("array `w`: shape must be {other}, got [3,4]")), "{error}");
    }
}

#[test]
fn shape_of_an_input_agrees_with_the_symbol() {
    let declared = |text: &str| product(&format!(r#""__shape__": "{text}""#), "");
    assert_eq!(loaded(&declared("(0, 4)"), &[("x", &[3, 4])], None), Ok(Shape::from([3, 4])));
    // Another spelling of an extent that is dynamic.
    assert_eq!(loaded(&declared("(-1, 4)"), &[], Some(3)), Ok(Shape::from([3, 4])));
    for other in ["(1, 4)", "(0, 1)", "(0, 4, 1)"] {
        let error = loaded(&declared(other), &[("x", &[3, 4])], None).expect_err(other);
        assert!(error.starts_with(&format!("input `x`: shape must match {other} of the symbol, got [3,4]")), "{error}");
    }
    let error = loaded(&declared("(3, 4)"), &[("w", &[3, 4])], None).expect_err("`w` is an array");
    assert_eq!(error, "a shape is given for `w`, which is an array of the params file and not an input");
}

#[test]
fn multipliers_are_numbers_from_zero_on() {
    let x = r#""__shape__": "(3, 4)""#;
    let with = |text: &str| loaded(&product(x, &format!(r#""__lr_mult__": "{text}""#)), &[], None);
    assert!(with("0").is_ok() && with("2.5").is_ok());
    for text in ["-1", "-0.5", "inf", "nan", "fast"] {
        assert_eq!(with(text), Err(format!("variable `w`: lr_mult must be a number >= 0, got `{text}`")));
    }
}

/// An index behind the end is the last one.
#[test]
fn index_is_clamped_to_the_last_element() {
    let symbol = r#"{"nodes": [
        {"op": "null", "name": "x", "inputs": [], "attrs": {"__shape__": "(4, 3)"}},
        {"op": "null", "name": "at", "inputs": [], "attrs": {"__shape__": "(4,)"}},
        {"op": "pick", "name": "y", "inputs": [[0, 0, 0], [1, 0, 0]], "attrs": {"axis": "1"}}
    ], "heads": [[2, 0, 0]]}"#;
    let graph = mxnet::load(symbol.as_bytes(), BTreeMap::new(), &Options::default()).expect("it is whole");
    let rows = Tensor::from_fn(Shape::from([4, 3]), |at| at as f32 + 1.0);
    let inputs = [rows, Tensor::vector(vec![-1.0f32, 0.0, 2.0, 9.0])];
    assert_eq!(ir::evaluate(&graph, &inputs).expect("the inputs fit")[0].to_f64(), [1.0, 4.0, 9.0, 12.0]);
}
