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
