//! Training graphs by the evaluator: MXNet's losses and a recorded training, accumulation, clipping, frozen weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ir::ops::{Binary, Gather, MatMul, Reduce, ReduceKind};
use ir::{Graph, Trainable};
use load::mxnet;
use prestow_passes::training::{Recipe, TrainingGraphs, build};
use serde_json::Value as Json;
use types::pointwise::Binary as Function;
use types::{DType, Scope, Shape, Tensor};
use weights::npy;

/// A file that MXNet wrote.
fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/mxnet").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(recorded(name)).expect("it is in the repository")
}

/// The first difference of more than `relative` times the expected value plus `absolute`.
fn difference(got: &Tensor, want: &Tensor, relative: f64, absolute: f64) -> Option<String> {
    assert_eq!(got.shape(), want.shape());
    let mut pairs = got.to_f64().into_iter().zip(want.to_f64());
    let wrong = pairs.find(|(got, want)| (absolute + relative * want.abs() < (got - want).abs()) || got.is_nan());
    wrong.map(|(got, want)| format!("{got}, not {want}"))
}

/// A graph that is run step by step.
struct Run {
    graph: Graph,
    states: Vec<Tensor>,
}

impl Run {
    fn new(graph: Graph) -> Run {
        assert_eq!(ir::verify(&graph), Ok(()));
        Run { states: ir::initial_states(&graph), graph }
    }

    /// Runs once with inputs by name, and returns the results by name.
    fn run(&mut self, inputs: &dyn Fn(&str, Shape) -> Tensor) -> BTreeMap<String, Tensor> {
        let given: Vec<Tensor> = self
            .graph
            .inputs()
            .iter()
            .map(|&input| {
                let value = self.graph.value(input);
                inputs(&value.name, value.ty.shape.clone()).cast(value.ty.dtype)
            })
            .collect();
        let outputs = ir::evaluate_run(&self.graph, &given, &mut self.states).expect("the inputs fit");
        self.graph.results().map(|result| result.name.clone()).zip(outputs).collect()
    }

    fn states(&self) -> BTreeMap<String, Tensor> {
        let names = self.graph.states().iter().map(|&state| self.graph.value(state).name.clone());
        names.zip(self.states.iter().cloned()).collect()
    }

    /// Takes the states of the same names.
    fn copy_states(&mut self, from: &Run) {
        let other = from.states();
        for (&state, tensor) in self.graph.states().iter().zip(&mut self.states) {
            *tensor = other[&self.graph.value(state).name].clone();
        }
    }
}

fn recipe(optimizer: &str) -> Recipe {
    Recipe { optimizer: optimizer.parse().expect("an optimizer"), ..Recipe::default() }
}

fn mnist(batch: usize) -> Trainable {
    let arrays = weights::read("mnist_cnn-0000.params", &bytes("mnist_cnn-0000.params")).expect("it is whole");
    let shapes = BTreeMap::from([("data".to_string(), Shape::from([batch, 1, 28, 28]))]);
    let options = mxnet::Options { shapes, ..mxnet::Options::default() };
    mxnet::load_trainable(&bytes("mnist_cnn-symbol.json"), arrays, &options).expect("the symbol is supported")
}

fn built(model: Trainable, recipe: &Recipe) -> TrainingGraphs {
    build(model, recipe).unwrap_or_else(|error| panic!("{error}"))
}

fn with_loss(optimizer: &str) -> Recipe {
    Recipe { loss: "softmax_cross_entropy".parse().ok(), ..recipe(optimizer) }
}

#[test]
fn mnist_cnn_trains_step_by_step_as_in_mxnet() {
    let graphs = built(mnist(4), &with_loss("adam:epsilon_hat"));
    assert_eq!((&graphs.labels[..], graphs.prediction.is_some()), (&["label".to_string()][..], true));
    let (mut step, mut evaluation) = (Run::new(graphs.step), Run::new(graphs.evaluation));
    let reference: Json = serde_json::from_slice(&bytes("mnist_cnn_train_ref.json")).expect("JSON");
    let numbers =
        |list: &Json| list.as_array().unwrap().iter().map(|item| item.as_f64().unwrap()).collect::<Vec<f64>>();
    let label = Tensor::vector(numbers(&reference["label"]));
    let data = npy::read(&bytes("mnist_cnn_input.npy")).expect("an npy file");
    for (number, want) in (1i64..).zip(reference["loss_per_sample_by_step"].as_array().unwrap()) {
        let inputs = |name: &str, _: Shape| match name {
            "data" => data.clone(),
            "label" => label.clone(),
            "learning_rate" => Tensor::scalar(1e-3f32),
            "step" => Tensor::scalar(number),
            other => panic!("an input `{other}`"),
        };
        evaluation.copy_states(&step);
        let want = Tensor::vector(numbers(want));
        assert_eq!(
            difference(&evaluation.run(&inputs)["loss"], &want, 1e-4, 1e-5),
            None,
            "losses before step {number}"
        );
        let mean = want.to_f64().iter().sum::<f64>() / 4.0;
        let loss = step.run(&inputs)["loss"].to_f64()[0];
        assert!((loss - mean).abs() < 1e-4 * mean, "step {number}: {loss}, not {mean}");
    }
}

/// The weights after a step on synthetic data.
fn after_a_step(model: Trainable, recipe: &Recipe) -> BTreeMap<String, Tensor> {
    let mut step = Run::new(built(model, recipe).step);
    step.run(&|name, shape| match name {
        "learning_rate" => Tensor::scalar(0.1f32),
        "step" => Tensor::scalar(1i64),
        "label" => Tensor::from_fn(shape, |at| (at * 3 % 10) as f32),
        _ => Tensor::from_fn(shape, |at| (at * 7919 % 97) as f32 / 97.0),
    });
    step.states()
}

#[test]
fn accumulated_gradients_are_those_of_one_large_batch() {
    let whole = after_a_step(mnist(4), &with_loss("sgd"));
    let parts = after_a_step(mnist(2), &Recipe { accumulate: 2, ..with_loss("sgd") });
    for (name, want) in &whole {
        assert_eq!(difference(&parts[name], want, 1e-5, 1e-7), None, "{name}");
    }
}

#[test]
fn clipped_gradients_have_the_norm() {
    let start = Run::new(built(mnist(2), &with_loss("sgd")).step).states();
    let after = after_a_step(mnist(2), &Recipe { clip_norm: Some(0.5), ..with_loss("sgd") });
    let square = |(name, old): (&String, &Tensor)| {
        old.to_f64().iter().zip(after[name].to_f64()).map(|(old, new)| ((old - new) / 0.1).powi(2)).sum::<f64>()
    };
    let norm = start.iter().map(square).sum::<f64>().sqrt();
    assert!((norm - 0.5).abs() < 1e-3, "{norm}");
}

#[test]
fn frozen_weights_stay_and_have_no_moments() {
    let freeze = vec!["conv*".to_string(), "dense0_bias".to_string()];
    let start = Run::new(built(mnist(2), &with_loss("sgd")).step).states();
    let after = after_a_step(mnist(2), &Recipe { freeze, ..with_loss("adam") });
    for (name, old) in &start {
        let is_frozen = name.starts_with("conv") || name == "dense0_bias";
        assert_eq!(after[name] == *old, is_frozen, "{name}");
        assert_eq!(after.contains_key(&format!("{name}/first_moment")), !is_frozen, "{name}");
    }
    let error = build(mnist(2), &Recipe { freeze: vec!["fc*".into()], ..with_loss("sgd") }).unwrap_err().to_string();
    assert!(error.starts_with("--freeze `fc*` matches no weight; the weights are `conv0_weight`"), "{error}");
    let error = build(mnist(2), &Recipe { freeze: vec!["*".into()], ..with_loss("sgd") }).unwrap_err().to_string();
    assert!(error.contains("no weight that is trained"), "{error}");
    let error = build(mnist(2), &recipe("sgd")).unwrap_err().to_string();
    assert!(error.contains("states no loss"), "{error}");
}

#[test]
fn every_optimizer_lowers_the_loss() {
    for optimizer in ["sgd:momentum=0.9,nesterov", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "lamb", "lion"] {
        let recipe = with_loss(optimizer);
        // The first steps of rmsprop are large: its mean square begins at 0.
        let rate = match optimizer {
            "adadelta" => 1.0,
            "rmsprop" => 2e-4,
            _ => 2e-3f32,
        };
        let mut step = Run::new(built(mnist(2), &recipe).step);
        let mut losses = Vec::new();
        for number in 1..=4i64 {
            let results = step.run(&|name, shape| match name {
                "learning_rate" => Tensor::scalar(rate),
                "step" => Tensor::scalar(number),
                "label" => Tensor::from_fn(shape, |at| at as f32),
                _ => Tensor::from_fn(shape, |at| (at * 7919 % 97) as f32 / 97.0),
            });
            losses.push(results["loss"].to_f64()[0]);
        }
        assert!(losses[3] < losses[0], "{optimizer}: {losses:?}");
    }
}

/// The gradient of `data` in a step of a symbol that is a head alone. MXNet's `Module` divides gradients by the batch unless
/// the loss does; here this division is undone.
fn gradient_of_head(name: &str, op: &str, attributes: &Json, data: &Tensor, label: Option<&Tensor>) -> Tensor {
    let inputs = if label.is_some() { &["data", "label"][..] } else { &["data"] };
    let variables = inputs.iter().map(|input| serde_json::json!({"op": "null", "name": input, "inputs": []}));
    let entries: Vec<Json> = (0..inputs.len()).map(|ix| serde_json::json!([ix, 0, 0])).collect();
    let head = serde_json::json!({"op": op, "name": "head", "attrs": attributes, "inputs": entries});
    let nodes: Vec<Json> = variables.chain([head]).collect();
    let symbol = serde_json::json!({
        "nodes": nodes, "arg_nodes": [], "heads": [[inputs.len(), 0, 0]], "attrs": {"mxnet_version": ["int", 10901]},
    });
    let trained = BTreeMap::from([("data".to_string(), data.clone())]);
    let model = mxnet::load_trainable(symbol.to_string().as_bytes(), trained, &mxnet::Options::default());
    let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut step = Run::new(built(model, &recipe("sgd")).step);
    step.run(&|input, shape| match input {
        "learning_rate" => Tensor::scalar(1.0f32),
        _ => {
            let label = label.unwrap_or_else(|| panic!("{name} has no `{input}`"));
            Tensor::from_le_bytes(label.dtype(), shape, &label.to_le_bytes()).expect("a label")
        }
    });
    let averages = matches!(attributes["normalization"].as_str(), Some("batch" | "valid"));
    let factor = if averages { 1.0 } else { data.shape()[0] as f64 };
    let gradient =
        data.to_f64().into_iter().zip(step.states[0].to_f64()).map(|(old, new)| ((old - new) * factor) as f32);
    Tensor::new(data.shape().clone(), gradient.collect::<Vec<f32>>()).expect("one element each")
}

/// MXNet's gradients of its losses, recorded for the gradient of `data` alone.
#[test]
fn losses_of_symbols_have_the_gradients_of_mxnet() {
    let cases: Vec<Json> = serde_json::from_slice(&bytes("op_cases.json")).expect("JSON");
    let arrays = weights::read("op_cases.npz", &bytes("op_cases.npz")).expect("it is whole");
    let mut checked = 0;
    for case in &cases {
        let (name, op) = (case["case"].as_str().expect("a name"), case["op"].as_str().expect("an operator"));
        const LOSSES: [&str; 5] =
            ["SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "MakeLoss"];
        if !LOSSES.contains(&op) || case["attrs"]["out_grad"] == "True" {
            continue;
        }
        let inputs: Vec<&str> =
            case["inputs"].as_array().unwrap().iter().map(|input| input.as_str().unwrap()).collect();
        let label = inputs.get(1).map(|label| &arrays[&format!("{name}/in/{label}")]);
        let data = &arrays[&format!("{name}/in/{}", inputs[0])];
        let gradient = gradient_of_head(name, op, &case["attrs"], data, label);
        let want = &arrays[&format!("{name}/grad/{}", inputs[0])];
        assert_eq!(difference(&gradient, want, 1e-4, 2e-6), None, "{name}");
        checked += 1;
    }
    assert!(6 <= checked, "only {checked} cases are recorded");
}

#[test]
fn head_that_takes_a_gradient_from_outside_is_refused() {
    let symbol = serde_json::json!({
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {"op": "null", "name": "label", "inputs": []},
            {"op": "SoftmaxOutput", "name": "head", "attrs": {"out_grad": "True"}, "inputs": [[0, 0, 0], [1, 0, 0]]},
        ],
        "arg_nodes": [], "heads": [[2, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]},
    });
    let trained = BTreeMap::from([("data".to_string(), Tensor::full(Shape::from([2, 3]), 1.0f32))]);
    let model = mxnet::load_trainable(symbol.to_string().as_bytes(), trained, &mxnet::Options::default());
    assert!(model.expect_err("it is refused").to_string().contains("`out_grad` must be False"));
}

/// All parameters of the losses, as `tests/peers/mxnet_heads.py` recorded them.
#[test]
fn parameters_of_losses_have_the_effect_of_mxnet() {
    let rows: Vec<Json> = serde_json::from_slice(&bytes("heads.json")).expect("JSON");
    for row in &rows {
        let numbers = |key: &str| -> Vec<f32> {
            row[key].as_array().expect("a list").iter().map(|item| item.as_f64().expect("a number") as f32).collect()
        };
        let shape: Shape = numbers("shape").into_iter().map(|extent| extent as usize).collect();
        let (op, name) = (row["op"].as_str().expect("an operator"), row["attrs"].to_string());
        let label = row["label"].is_array().then(|| match op {
            "SoftmaxOutput" | "SVMOutput" => Tensor::vector(numbers("label")).cast(DType::I32),
            _ => Tensor::vector(numbers("label")),
        });
        let data = Tensor::new(shape.clone(), numbers("data")).expect("an element each");
        let want = Tensor::new(shape, numbers("gradient")).expect("an element each");
        let gradient = gradient_of_head(&name, op, &row["attrs"], &data, label.as_ref());
        assert_eq!(difference(&gradient, &want, 1e-4, 2e-6), None, "{op} {name}");
    }
    assert_eq!(rows.len(), 100);
}

/// A table `w: f32[5, 4]` whose rows are read, and whose transpose gives scores of its five rows.
fn tied() -> Trainable {
    let mut graph = Graph::new("tied");
    let index = graph.add_input("index", DType::I32, Shape::from([2]));
    let table = Tensor::from_fn(Shape::from([5, 4]), |at| at as f32 / 20.0);
    let turned = Tensor::from_fn(Shape::from([4, 5]), |at| (at % 5 * 4 + at / 5) as f32 / 20.0);
    let turned = graph.add_weight("w", turned);
    let table = graph.add_weight("w", table);
    // The transpose is read first.
    let bias = Reduce { kind: ReduceKind::Sum, axes: [0].into_iter().collect(), keep: false };
    let bias = graph.add1(bias.into(), &[turned], Scope::new("bias")).unwrap();
    let rows = graph.add1(Gather { axis: 0 }.into(), &[table, index], Scope::new("rows")).unwrap();
    let scores = graph.add1(MatMul::default().into(), &[rows, turned], Scope::new("scores")).unwrap();
    let y = graph.add1(Binary(Function::Add).into(), &[scores, bias], Scope::new("y")).unwrap();
    graph.set_outputs(vec![("y".into(), y)]);
    Trainable { transposed: [turned].into_iter().collect(), ..Trainable::from(graph) }
}

#[test]
fn matrix_that_is_read_both_ways_is_one_state_in_the_order_of_the_file() {
    let graphs = built(tied(), &with_loss("sgd"));
    assert_eq!(graphs.transposed, [""; 0], "the state is the file's matrix");
    for graph in [&graphs.step, &graphs.evaluation] {
        let states: Vec<_> = graph.states().iter().map(|&state| graph.ty(state).shape.to_vec()).collect();
        assert_eq!(states, [[5, 4]]);
    }
}

#[test]
fn first_output_is_the_loss_if_the_recipe_says_so() {
    let mut graph = Graph::new("own loss");
    let x = graph.add_input("x", DType::F32, Shape::from([2, 3]));
    let target = graph.add_input("target", DType::F32, Shape::from([2, 3]));
    let w = graph.add_weight("w", Tensor::full(Shape::from([3]), 0.5f32));
    let product = graph.add1(Binary(Function::Mul).into(), &[x, w], Scope::new("product")).unwrap();
    let distance = graph.add1(Binary(Function::Sub).into(), &[product, target], Scope::new("distance")).unwrap();
    let axes = [1].into_iter().collect();
    let loss = Reduce { kind: ReduceKind::SumSquare, axes, keep: false };
    let loss = graph.add1(loss.into(), &[distance], Scope::new("loss")).unwrap();
    graph.set_outputs(vec![("y".into(), loss)]);
    let graphs = built(Trainable::from(graph), &Recipe { loss: "output".parse().ok(), ..recipe("sgd") });
    assert_eq!((graphs.labels.len(), graphs.prediction), (0, None));
    let mut step = Run::new(graphs.step);
    let results = step.run(&|name, shape| match name {
        "learning_rate" => Tensor::scalar(1.0f32),
        "x" => Tensor::from_fn(shape, |at| at as f32),
        _ => Tensor::full(shape, 1.0f32),
    });
    // Distances are x / 2 - 1: -1, -0.5, 0, 0.5, 1, 1.5.
    assert_eq!(results["loss"].to_f64(), [4.75 / 2.0]);
    // The mean over two samples of 2 x (x / 2 - 1).
    assert_eq!(step.states()["w"].to_f64(), [0.5 - 1.5, 0.5 - 3.5, 0.5 - 7.5]);
}

/// `x w` with a mean of it; the outputs are named by the caller.
fn with_outputs(names: [&str; 2]) -> Trainable {
    let mut graph = Graph::new("named");
    let x = graph.add_input("x", DType::F32, Shape::from([2, 3]));
    let w = graph.add_weight("w", Tensor::full(Shape::from([3]), 0.5f32));
    let product = graph.add1(Binary(Function::Mul).into(), &[x, w], Scope::new("product")).unwrap();
    let mean = Reduce { kind: ReduceKind::Mean, axes: [0, 1].into_iter().collect(), keep: false };
    let mean = graph.add1(mean.into(), &[product], Scope::new("mean")).unwrap();
    graph.set_outputs(vec![(names[0].into(), mean), (names[1].into(), product)]);
    Trainable::from(graph)
}

#[test]
fn output_with_the_name_of_the_loss_is_the_loss_or_refused() {
    let own = Recipe { loss: "output".parse().ok(), ..recipe("sgd") };
    let graphs = built(with_outputs(["loss", "y"]), &own);
    for graph in [&graphs.step, &graphs.evaluation] {
        ir::verify(graph).expect("names of outputs are distinct");
        assert_eq!(graph.outputs().iter().filter(|output| output.name == "loss").count(), 1);
    }
    let other = Recipe { loss: "mse".parse().ok(), ..recipe("sgd") };
    for (names, recipe) in [(["y", "loss"], &own), (["loss", "y"], &other), (["y", "loss"], &other)] {
        let error = build(with_outputs(names), recipe).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("the model has an output `loss`, which is a name of the training step"), "{error}");
    }
}
