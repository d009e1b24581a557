//! MXNet files and operators against results of MXNet 1.9.1, with the evaluator and with compiled plans.

use std::collections::BTreeMap;

use ir::{Graph, evaluate};
use load::mxnet;
use serde_json::{Value, json};
use types::{Shape, Tensor};
use weights::npy;

use crate::support::{compiled, difference, open, root, skip};

fn file(name: &str) -> Vec<u8> {
    std::fs::read(root().join("tests/data/mxnet").join(name)).expect("recorded results are checked in")
}

fn arrays(name: &str) -> BTreeMap<String, Tensor> {
    weights::read(name, &file(name)).unwrap_or_else(|error| panic!("{error}"))
}

/// Loads a network of the fixtures.
fn network(name: &str, shapes: &[(&str, &Shape)]) -> Graph {
    let shapes = shapes.iter().map(|(name, shape)| (name.to_string(), (*shape).clone())).collect();
    let options = mxnet::Options { shapes, ..Default::default() };
    mxnet::load(&file(&format!("{name}-symbol.json")), arrays(&format!("{name}-0000.params")), &options)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Compares evaluated and compiled results of a graph with the expected outputs.
fn check(name: &str, graph: &Graph, inputs: &[Tensor], want: &[Tensor], relative: f64, absolute: f64) {
    let mut results = vec![("eval", evaluate(graph, inputs).unwrap_or_else(|error| panic!("{name}: {error}")))];
    let compiled = compiled(graph.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let run = open(&compiled, 2).run_tensors(inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    results.push(("executable", run));
    let file = export::onnx(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    let again = load::onnx::load(&file, None, &load::onnx::Options::default());
    let again = again.unwrap_or_else(|error| panic!("{name}, written as ONNX: {error}"));
    results.push(("eval of ONNX", evaluate(&again, inputs).unwrap_or_else(|error| panic!("{name}: {error}"))));
    for (by, got) in results {
        assert_eq!(got.len(), want.len(), "{name}: outputs");
        for (ix, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(difference(got, want, relative, absolute), None, "{name}: output {ix} by {by}");
        }
    }
}

#[test]
fn networks_match_mxnet() {
    for (name, tolerance) in [("mnist_cnn", 1e-4), ("mini_resnet_v1", 1e-4), ("mini_densenet", 1e-4)] {
        let [input, want] =
            ["input", "output"].map(|port| npy::read(&file(&format!("{name}_{port}.npy"))).expect("recorded by NumPy"));
        let graph = network(name, &[("data", input.shape())]);
        let largest = want.to_f64().into_iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
        check(name, &graph, &[input], &[want], tolerance, tolerance * largest);
    }
}

/// One network per family of the Gluon model zoo, exported now, if MXNet is installed.
#[test]
fn fresh_exports_match_mxnet() {
    const NETWORKS: [&str; 9] = [
        "densenet121",
        "inceptionv3",
        "mobilenet0.25",
        "mobilenetv2_1.0",
        "resnet18_v1",
        "resnet50_v1",
        "resnet50_v2",
        "squeezenet1.1",
        "vgg11_bn",
    ];
    let python = root().join("data/mxnet/bin/python");
    if !python.exists() {
        skip("fresh_exports_match_mxnet", "MXNet is missing; run `cargo xtask fetch --with-mxnet`");
        return;
    }
    let folder = std::env::temp_dir().join(format!("prestow-mxnet-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder of temporary files is writable");
    let script = root().join("tests/peers/mxnet_reference.py");
    let done = std::process::Command::new(python).arg(script).arg(&folder).args(NETWORKS).status();
    assert!(done.is_ok_and(|status| status.success()), "MXNet exports its networks");
    let read = |name: String| std::fs::read(folder.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for name in NETWORKS {
        let [input, want] =
            ["input", "output"].map(|port| npy::read(&read(format!("{name}_{port}.npy"))).expect("npy"));
        let params = format!("{name}-0000.params");
        let arrays = weights::read(&params, &read(params.clone())).unwrap_or_else(|error| panic!("{error}"));
        let shapes = BTreeMap::from([("data".to_string(), input.shape().clone())]);
        let options = mxnet::Options { shapes, ..Default::default() };
        let graph = mxnet::load(&read(format!("{name}-symbol.json")), arrays, &options)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        // The same network built by the zoo, with the parameters that Gluon saves.
        let params = format!("{name}.params");
        let saved = weights::read(&params, &read(params.clone())).unwrap_or_else(|error| panic!("{error}"));
        let mut saved = zoo::Named::new(saved);
        let ours = zoo::build(&format!("gluon/{name}"), 1, &mut saved, &zoo::NetworkOptions::default());
        let ours = ours.unwrap_or_else(|error| panic!("{name}: {error}")).graph;
        assert_eq!(saved.unused().count(), 0, "{name}");
        let largest = want.to_f64().into_iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
        for (source, graph) in [("its export", graph), ("the zoo", ours)] {
            let compiled = compiled(graph).unwrap_or_else(|error| panic!("{name} of {source}: {error}"));
            let got = open(&compiled, 2).run_tensors(std::slice::from_ref(&input)).expect("the input fits");
            // Hundreds of layers, computed by other algorithms.
            assert_eq!(difference(&got[0], &want, 1e-3, 1e-3 * largest), None, "{name} of {source}");
        }
    }
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// Sockeye's unrolled translation network: LSTM cells, attention, sequences of different lengths.
#[test]
fn translation_network_matches_mxnet() {
    let reference = arrays("seq2seq_tiny_ref.npz");
    let (source, target) = (&reference["source"], &reference["target"]);
    let graph = network("seq2seq_tiny", &[("source", source.shape()), ("target", target.shape())]);
    let inputs: Vec<Tensor> = graph.inputs().iter().map(|&id| reference[&graph.value(id).name].clone()).collect();
    check("seq2seq_tiny", &graph, &inputs, &[reference["softmax_output"].clone()], 1e-4, 1e-6);
}

/// The symbol of one operator whose inputs are variables.
fn symbol(op: &str, attributes: &Value, inputs: &[String], outputs: usize) -> Vec<u8> {
    let variables = inputs.iter().map(|name| json!({"op": "null", "name": name, "inputs": []}));
    let mut nodes: Vec<Value> = variables.collect();
    let entries: Vec<Value> = (0..inputs.len()).map(|ix| json!([ix, 0, 0])).collect();
    nodes.push(json!({"op": op, "name": "node", "attrs": attributes, "inputs": entries}));
    let heads: Vec<Value> = (0..outputs).map(|output| json!([inputs.len(), output, 0])).collect();
    json!({"nodes": nodes, "arg_nodes": [], "heads": heads, "attrs": {"mxnet_version": ["int", 10901]}})
        .to_string()
        .into_bytes()
}

/// Every recorded operator, with run-time inputs only, and with all inputs but the first as parameters.
#[test]
fn operators_match_mxnet() {
    let cases: Vec<Value> = serde_json::from_slice(&file("op_cases.json")).expect("the list is JSON");
    let recorded = arrays("op_cases.npz");
    let mut count = 0;
    for case in cases.iter().filter(|case| case["op"] != "optimizer") {
        let text = |key: &str| case[key].as_str().expect("every case has it");
        let name = text("case");
        let inputs: Vec<String> = case["inputs"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|name| name.as_str().expect("a name").into())
            .collect();
        // Auxiliary states are recorded separately.
        let tensor = |input: &String| {
            let found = recorded.get(&format!("{name}/in/{input}"));
            let found = found.or_else(|| recorded.get(&format!("{name}/aux_before/{input}")));
            found.unwrap_or_else(|| panic!("{name} has no `{input}`")).clone()
        };
        let outputs = case["num_outputs"].as_u64().expect("a number") as usize;
        let want: Vec<Tensor> = (0..outputs).map(|ix| recorded[&format!("{name}/infer/{ix}")].clone()).collect();
        let symbol = symbol(text("op"), &case["attrs"], &inputs, outputs);
        let reads_others = |graph: &Graph| graph.inputs().len() == 1;
        for parameters in [false, true] {
            let (mut arrays, mut shapes) = (BTreeMap::new(), BTreeMap::new());
            for (ix, input) in inputs.iter().enumerate() {
                let tensor = tensor(input);
                match parameters && ix != 0 {
                    true => drop(arrays.insert(input.clone(), tensor)),
                    // An operand that inference does not read is not an input.
                    false if is_label(text("op"), ix) => {}
                    false => drop(shapes.insert(input.clone(), tensor.shape().clone())),
                }
            }
            let graph = mxnet::load(&symbol, arrays, &mxnet::Options { shapes, ..Default::default() })
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!parameters || reads_others(&graph), "{name}");
            let values: Vec<Tensor> = graph.inputs().iter().map(|&id| tensor(&graph.value(id).name)).collect();
            check(name, &graph, &values, &want, 1e-4, 1e-5);
            count += 1;
        }
    }
    assert_eq!(count, 2 * 102, "a case is missing");
}

/// Labels of losses, which inference does not read.
fn is_label(op: &str, ix: usize) -> bool {
    ix == 1 && (op.ends_with("Output") || op == "Softmax")
}

fn refusal(symbol: &str, arrays: BTreeMap<String, Tensor>, shapes: &[(&str, Shape)]) -> String {
    let shapes = shapes.iter().map(|(name, shape)| (name.to_string(), shape.clone())).collect();
    let options = mxnet::Options { shapes, ..Default::default() };
    mxnet::load(symbol.as_bytes(), arrays, &options).expect_err("it is refused").to_string()
}

#[test]
fn all_unsupported_nodes_are_listed() {
    let symbol = r#"{"nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "Custom", "name": "own", "attrs": {"op_type": "mine"}, "inputs": [[0, 0, 0]]},
        {"op": "ROIPooling", "name": "roi", "inputs": [[0, 0, 0]]},
        {"op": "relu", "name": "behind", "inputs": [[2, 0, 0]]},
        {"op": "clip", "name": "wrong", "attrs": {"a_min": "x", "a_max": "6"}, "inputs": [[0, 0, 0]]},
        {"op": "relu", "name": "more", "attrs": {"shade": "blue"}, "inputs": [[0, 0, 0]]}
    ], "heads": [[3, 0, 0], [4, 0, 0], [1, 0, 0], [5, 0, 0]]}"#;
    let shape = Shape::from([2, 3]);
    assert_eq!(
        refusal(symbol, BTreeMap::new(), &[("data", shape.clone())]),
        "node `own` (operator `Custom`): the operator has no definition outside MXNet\n\
         node `roi` (operator `ROIPooling`): the operator is not supported\n\
         node `wrong` (operator `clip`): attribute `a_min` must be a number, got `x`\n\
         node `more` (operator `relu`): attribute `shade` (`blue`) is not supported"
    );
}

#[test]
fn all_variables_without_shape_are_listed() {
    let symbol = r#"{"nodes": [
        {"op": "null", "name": "data", "attrs": {"__shape__": "(0, 3)"}, "inputs": []},
        {"op": "null", "name": "fc_weight", "inputs": []},
        {"op": "null", "name": "fc_bias", "inputs": []},
        {"op": "FullyConnected", "name": "fc", "attrs": {"num_hidden": "4"},
         "inputs": [[0, 0, 0], [1, 0, 0], [2, 0, 0]]},
        {"op": "null", "name": "label", "inputs": []},
        {"op": "SoftmaxOutput", "name": "softmax", "inputs": [[3, 0, 0], [4, 0, 0]]}
    ], "heads": [[5, 0, 0]]}"#;
    let weight = || BTreeMap::from([("fc_weight".to_string(), Tensor::full(Shape::from([4, 3]), 1.0f32))]);
    let shape = Shape::from([2, 3]);
    assert_eq!(
        refusal(symbol, weight(), &[]),
        "variable `data` (read by `fc`, shape (0, 3)) is not an array of the params file; if it is an input, choose its \
         shape\n\
         variable `fc_bias` (read by `fc`) is not an array of the params file; if it is an input, choose its shape"
    );
    let missing = refusal(symbol, weight(), &[("data", shape.clone())]);
    assert!(missing.starts_with("variable `fc_bias` (read by `fc`)"), "{missing}");
    let arrays = || {
        let mut arrays = weight();
        arrays.insert("fc_bias".into(), Tensor::full(Shape::from([4]), 0.0f32));
        arrays
    };
    let unread = refusal(symbol, arrays(), &[("data", shape.clone()), ("label", Shape::from([2]))]);
    assert_eq!(
        unread,
        "a shape is given for `label`, which is not an input; the variables without an array are `data`, `label`"
    );
    let other = refusal(symbol, arrays(), &[("data", Shape::from([2, 5]))]);
    assert_eq!(
        other,
        "input `data`: shape must match (0, 3) of the symbol, got [2,5]; only extents of 0 can be chosen"
    );
    let array = refusal(symbol, arrays(), &[("data", shape.clone()), ("fc_bias", Shape::from([4]))]);
    assert_eq!(array, "a shape is given for `fc_bias`, which is an array of the params file and not an input");

    // The batch replaces dynamic extents of the file.
    let options = mxnet::Options { batch: Some(2), ..Default::default() };
    let graph = mxnet::load(symbol.as_bytes(), arrays(), &options).expect("all is known");
    assert_eq!(graph.ty(graph.inputs()[0]).shape, shape);
    assert_eq!(graph.outputs()[0].name, "softmax_output");
}
