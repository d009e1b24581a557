//! Gradients of loaded networks against those of MXNet 1.9.1 and of PyTorch, and steps of optimizers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ir::ops::{BatchNorm, BatchNormTraining, Binary, Reduce, ReduceKind, SoftmaxCrossEntropy, Unary, Update};
use ir::{Graph, Op, ValueId, evaluate, rewrite};
use passes::training::differentiate;
use prestow_load::{mxnet, onnx};
use serde_json::{Value, json};
use types::pointwise::{Binary as Pair, Unary as Function};
use types::update::{Adagrad, RmsProp, Sgd, UpdateRule};
use types::{DType, Scope, Tensor};

fn file(folder: &str, name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(folder).join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn arrays(folder: &str, name: &str) -> BTreeMap<String, Tensor> {
    weights::read(name, &file(folder, name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn add(graph: &mut Graph, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
    graph.add1(op.into(), inputs, Scope::new("loss")).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// The sum over results of the results times constants.
fn linear_loss(graph: &mut Graph, factors: &[Tensor]) -> ValueId {
    let results: Vec<ValueId> = graph.results().map(|output| output.value).collect();
    let mut loss = None;
    for (result, factors) in results.into_iter().zip(factors) {
        let factors = graph.add_constant("factors", factors.clone());
        let product = add(graph, Binary(Pair::Mul), &[result, factors]);
        let axes = (0..graph.ty(product).shape.rank()).collect();
        let sum = add(graph, Reduce { kind: ReduceKind::Sum, axes, keep: false }, &[product]);
        loss = Some(loss.map_or(sum, |loss| add(graph, Binary(Pair::Add), &[loss, sum])));
    }
    loss.expect("there is a result")
}

/// The gradients of a loss for values.
fn gradients(name: &str, mut graph: Graph, loss: ValueId, of: &[ValueId], inputs: &[Tensor]) -> Vec<Tensor> {
    let found = differentiate(&mut graph, loss, of).unwrap_or_else(|error| panic!("{name}: {error}"));
    let named = found.iter().enumerate().map(|(ix, &gradient)| (format!("gradient {ix}"), gradient)).collect();
    graph.set_outputs(named);
    assert_eq!(ir::verify(&graph), Ok(()), "{name}");
    evaluate(&graph, inputs).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Panics if an element is further from the expected one than a part of it plus a part of the largest. A tensor of zeros, such
/// as the gradient of a bias in front of a normalization, has rounding errors of larger terms.
fn assert_near(name: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!(got.elements(), want.elements(), "{name}: {} is not {}", got.shape(), want.shape());
    let (got, want) = (got.to_f64(), want.to_f64());
    let largest = want.iter().fold(1e-2f64, |largest, item| largest.max(item.abs()));
    for (at, (got, want)) in got.iter().zip(&want).enumerate() {
        let near = (got - want).abs() <= tolerance * (want.abs() + largest);
        assert!(near, "{name}: element {at} is {got}, not {want}; the largest is {largest}");
    }
}

/// The graph with normalizations by the statistics of the batch.
fn in_training(graph: &Graph) -> Graph {
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let Op::BatchNorm(BatchNorm { epsilon }) = node.op else { return None };
        let inputs: Vec<ValueId> = node.inputs[..3].iter().map(|&input| context.value(input)).collect();
        let outputs = context.new.add(BatchNormTraining { epsilon }.into(), &inputs, node.scope.clone());
        Some([outputs.expect("the operands fit")[0]].into_iter().collect())
    })
}

/// Cases whose gradient in MXNet is no derivative of the result: averages divide windows that overhang by the whole kernel,
/// although the result does not, and that of SELU below 0 is `gamma (y + alpha)` for `y + gamma alpha`.
const INCONSISTENT: [&str; 3] = ["pool_avg_full", "pool_avg_full_pad", "lrelu_selu"];

/// Every recorded operator with a gradient. Losses have gradients of their own in MXNet, which ignore that of the result:
/// the head of a training step translates them.
#[test]
fn gradients_of_operators_match_mxnet() {
    let heads = BTreeSet::from(["LinearRegressionOutput", "MakeLoss", "SoftmaxOutput"]);
    let cases: Vec<Value> = serde_json::from_slice(&file("mxnet", "op_cases.json")).expect("the list is JSON");
    let recorded = arrays("mxnet", "op_cases.npz");
    let (mut operators, mut compared, mut others) = (0, 0, Vec::new());
    for case in &cases {
        let text = |key: &str| case[key].as_str().expect("every case has it");
        let (name, op) = (text("case"), text("op"));
        let prefix = format!("{name}/grad/");
        let wanted: BTreeMap<&str, &Tensor> =
            recorded.iter().filter_map(|(key, tensor)| Some((key.strip_prefix(&prefix)?, tensor))).collect();
        if wanted.is_empty() || heads.contains(op) || INCONSISTENT.contains(&name) {
            others.push(name);
            continue;
        }
        let names: Vec<&str> = case["inputs"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        let tensor = |input: &str| {
            let found = recorded.get(&format!("{name}/in/{input}"));
            found.or_else(|| recorded.get(&format!("{name}/aux_before/{input}"))).expect("it is recorded").clone()
        };
        let outputs = case["num_outputs"].as_u64().expect("a number") as usize;
        let mut nodes: Vec<Value> =
            names.iter().map(|name| json!({"op": "null", "name": name, "inputs": []})).collect();
        let entries: Vec<Value> = (0..names.len()).map(|ix| json!([ix, 0, 0])).collect();
        nodes.push(json!({"op": op, "name": "node", "attrs": case["attrs"], "inputs": entries}));
        let heads: Vec<Value> = (0..outputs).map(|output| json!([names.len(), output, 0])).collect();
        let symbol = json!({"nodes": nodes, "heads": heads}).to_string();
        let shapes = names.iter().map(|&input| (input.to_string(), tensor(input).shape().clone())).collect();
        let options = mxnet::Options { shapes, ..mxnet::Options::default() };
        let graph = mxnet::load(symbol.as_bytes(), BTreeMap::new(), &options);
        let mut graph = graph.unwrap_or_else(|error| panic!("{name}: {error}"));
        let is_global = case["attrs"]["use_global_stats"] == "True";
        if op == "BatchNorm" && !is_global {
            graph = in_training(&graph);
        }
        let inputs: Vec<Tensor> = graph.inputs().iter().map(|&id| tensor(&graph.value(id).name)).collect();
        let factors: Vec<Tensor> = (0..outputs).map(|ix| recorded[&format!("{name}/headgrad/{ix}")].clone()).collect();
        let loss = linear_loss(&mut graph, &factors);
        let by_name: BTreeMap<&str, ValueId> =
            graph.inputs().iter().map(|&id| (&graph.value(id).name[..], id)).collect();
        for (input, want) in wanted {
            let named = format!("{name}, gradient for {input}");
            let is_zero = want.to_f64().iter().all(|&item| item == 0.0);
            let mut with = graph.clone();
            let got = match differentiate(&mut with, loss, &[by_name[input]]) {
                Ok(_) => gradients(&named, graph.clone(), loss, &[by_name[input]], &inputs).remove(0),
                // No way to the loss is a gradient of zero.
                Err(_) if is_zero => continue,
                Err(error) => panic!("{named}: {error}"),
            };
            assert_near(&named, &got, want, 1e-4);
            compared += 1;
        }
        operators += 1;
    }
    println!("{operators} operators, {compared} gradients; without one or heads: {others:?}");
    assert!(89 <= operators && 131 <= compared, "{operators} operators, {compared} gradients");
    assert_eq!(others.len(), 18, "{others:?}");
}

/// Three steps of each recorded optimizer, with the gradient `t g` at step `t`. Gradients are clipped before the rule.
#[test]
fn steps_of_optimizers_match_mxnet() {
    let recorded = arrays("mxnet", "op_cases.npz");
    let sgd = |weight_decay| Sgd { weight_decay, ..Sgd::default() };
    let nesterov = Sgd { momentum: 0.9, nesterov: true, ..sgd(0.01) };
    let cases = [
        ("opt_sgd", UpdateRule::Sgd(sgd(0.02)), 0.05, f32::INFINITY),
        ("opt_sgd_clip", UpdateRule::Sgd(sgd(0.01)), 0.1, 0.3),
        ("opt_nag", UpdateRule::Sgd(nesterov), 0.1, f32::INFINITY),
        (
            "opt_rmsprop",
            UpdateRule::RmsProp(RmsProp { rho: 0.9, epsilon_in_root: true, ..RmsProp::default() }),
            0.01,
            f32::INFINITY,
        ),
        (
            "opt_adagrad",
            UpdateRule::Adagrad(Adagrad { epsilon: 1e-7, epsilon_in_root: true, ..Adagrad::default() }),
            0.1,
            f32::INFINITY,
        ),
    ];
    for (name, rule, rate, limit) in cases {
        let array = |key: &str| recorded[&format!("{name}/{key}")].clone();
        let mut graph = Graph::new(name);
        let shape = array("w0").shape().clone();
        let [w, g] = ["w", "g"].map(|name| graph.add_input(name, DType::F32, shape.clone()));
        let clipped = add(&mut graph, Unary(Function::Clip { min: -limit, max: limit }), &[g]);
        let mut operands = vec![w, clipped];
        for state in rule.states() {
            operands.push(graph.add_input(state, DType::F32, shape.clone()));
        }
        operands.push(graph.add_constant("rate", Tensor::scalar::<f32>(rate)));
        let outputs = graph
            .add(Update { rule, factors: false }.into(), &operands, Scope::new("update"))
            .expect("the operands fit");
        graph.set_outputs(outputs.iter().enumerate().map(|(ix, &output)| (format!("y{ix}"), output)).collect());
        let zeros = rule.states().iter().map(|_| Tensor::full(shape.clone(), 0.0f32));
        let mut values: Vec<Tensor> = [array("w0")].into_iter().chain(zeros).collect();
        for step in 1..=3 {
            let items = array("g").to_f64();
            let gradient = Tensor::from_fn(shape.clone(), |at| step as f32 * items[at] as f32);
            values.insert(1, gradient);
            values = evaluate(&graph, &values).expect("the operands fit");
            let want = array(&format!("w{step}"));
            let moved = |to: &Tensor| {
                let from = array("w0").to_f64();
                Tensor::from_fn(shape.clone(), |at| (to.to_f64()[at] - from[at]) as f32)
            };
            // From the second step on, the decay of earlier weights enters MXNet's Nesterov momentum in another way.
            let tolerance = if name == "opt_nag" && 1 < step { 1e-3 } else { 2e-6 };
            assert_near(&format!("{name}, step {step}"), &moved(&values[0]), &moved(&want), tolerance);
        }
    }
}

/// The whole network of source document 004's MNIST, with the cross-entropy of four labels behind its logits.
#[test]
fn gradients_of_the_mnist_network_match_mxnet() {
    let input = weights::npy::read(&file("mxnet", "mnist_cnn_input.npy")).expect("recorded by NumPy");
    let shapes = BTreeMap::from([("data".to_string(), input.shape().clone())]);
    let options = mxnet::Options { shapes, ..mxnet::Options::default() };
    let parameters = arrays("mxnet", "mnist_cnn-0000.params");
    let graph = mxnet::load(&file("mxnet", "mnist_cnn-symbol.json"), parameters, &options);
    let mut graph = graph.expect("the network is supported");
    let logits = graph.outputs()[0].value;
    let labels = graph.add_constant("labels", Tensor::vector(vec![3i64, 1, 4, 1]));
    let losses = add(&mut graph, SoftmaxCrossEntropy { ignore: None, smoothing: 0.0 }, &[logits, labels]);
    let axes = [0].into_iter().collect();
    let loss = add(&mut graph, Reduce { kind: ReduceKind::Sum, axes, keep: false }, &[losses]);
    let want = arrays("mxnet", "mnist_cnn_grads_step0.npz");
    let named: Vec<(ValueId, &Tensor)> = graph
        .values()
        .iter()
        .filter_map(|(id, value)| Some((id, want.iter().find(|(key, _)| value.name.ends_with(&key[..]))?.1)))
        .collect();
    assert_eq!(named.len(), 5, "all recorded gradients are of parameters");
    let of: Vec<ValueId> = named.iter().map(|(id, _)| *id).collect();
    let names: Vec<String> = of.iter().map(|&id| graph.value(id).name.clone()).collect();
    let got = gradients("mnist_cnn", graph, loss, &of, &[input]);
    for ((name, got), (_, want)) in names.iter().zip(&got).zip(&named) {
        assert_near(name, got, want, 1e-4);
    }
}

/// Every parameter of networks of different structures, recorded by `tests/peers/torch_gradients.py`.
#[test]
fn gradients_of_networks_match_pytorch() {
    let networks = [
        ("residual", 18),
        ("residual_training", 18),
        ("mobile", 15),
        ("inception", 13),
        ("unet", 12),
        ("words", 14),
        ("recurrent", 27),
        ("sound", 9),
        ("volume", 7),
    ];
    for (name, count) in networks {
        let recorded = arrays("torch", &format!("{name}.npz"));
        let graph = onnx::load(&file("torch", &format!("{name}.onnx")), None, &onnx::Options::default());
        let mut graph = graph.unwrap_or_else(|error| panic!("{name}: {error}"));
        if name.ends_with("training") {
            graph = in_training(&graph);
        }
        let input = |&id: &ValueId| recorded[&format!("in/{}", graph.value(id).name)].clone();
        let inputs: Vec<Tensor> = graph.inputs().iter().map(input).collect();
        let y = evaluate(&graph, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_near(&format!("{name}: result"), &y[0], &recorded["y"], 1e-4);
        let loss = linear_loss(&mut graph, &[recorded["factors"].clone()]);
        let want: Vec<(ValueId, String)> = graph
            .inputs()
            .iter()
            .map(|&id| (id, format!("grad/{}", graph.value(id).name)))
            .filter(|(_, key)| recorded.contains_key(key))
            .collect();
        let recorded_count = recorded.keys().filter(|key| key.starts_with("grad/")).count();
        assert_eq!((want.len(), recorded_count), (count, count), "{name}: gradients");
        let of: Vec<ValueId> = want.iter().map(|(id, _)| *id).collect();
        let got = gradients(name, graph, loss, &of, &inputs);
        for (got, (_, key)) in got.iter().zip(&want) {
            assert_near(&format!("{name}: {key}"), got, &recorded[key], 1e-4);
        }
    }
}
