//! Files that PyTorch exported in training mode, for each purpose.

use std::collections::BTreeMap;
use std::path::Path;

use ir::Trainable;
use onnx_suite::model::{Attr, Dim, Model, info, node};
use prestow_load::onnx::{self, LoadError, Options, Purpose, load_for};
use types::{DType, Tensor};

/// Files of the older exporter by operator set, and one of the newer exporter.
const FILES: [&str; 6] = ["modes_9", "modes_11", "modes_12", "modes_14", "modes_17", "modes_dynamo"];

fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/torch").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn arrays() -> BTreeMap<String, Tensor> {
    weights::read("modes.npz", &file("modes.npz")).expect("it is in the repository")
}

fn load(name: &str, purpose: Purpose) -> Result<Trainable, LoadError> {
    load_for(&file(&format!("{name}.onnx")), None, &Options::default(), purpose)
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    a.to_f64().iter().zip(b.to_f64()).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()))
}

#[test]
fn inference_form_computes_what_the_network_computes_in_inference_mode() {
    let arrays = arrays();
    for name in FILES {
        let model = load(name, Purpose::Inference).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(model.batch_statistics, [""; 0], "{name}");
        let y = ir::evaluate(&model.graph, &[arrays["x"].clone()]).expect("the input fits");
        assert_eq!(y.len(), 1, "{name}");
        assert!(distance(&y[0], &arrays[name]) < 1e-6, "{name}: {:?} instead of {:?}", y[0], arrays[name]);
    }
}

#[test]
fn file_in_training_mode_is_refused_with_its_nodes_where_inference_mode_is_not_asked_for() {
    for name in FILES {
        let Err(LoadError::TrainingMode(nodes)) = load(name, Purpose::AsWritten) else {
            panic!("{name} must be refused for its mode");
        };
        let first =
            if ["modes_14", "modes_17", "modes_dynamo"].contains(&name) { "Dropout" } else { "BatchNormalization" };
        assert_eq!(nodes[0].operator, first, "{name}");
        assert!(nodes[0].reason.starts_with("must be in inference mode, got training mode"), "{}", nodes[0].reason);
        assert!(load(name, Purpose::Training).expect(name).key.is_some(), "{name}: the elements are dropped");
    }
}

/// A normalization in training mode, and an operator that does not exist if `other` is set.
fn normalization(other: bool) -> Vec<u8> {
    let attributes = [("training_mode", Attr::Int(1))];
    let mut nodes = vec![node("BatchNormalization", &["x", "scale", "shift", "mean", "variance"], &["y"], &attributes)];
    if other {
        let dropout = node("Dropout", &["y", "ratio", "mode"], &["z"], &[]);
        nodes.extend([dropout, node("Unheard", &["z"], &["w"], &[])]);
    }
    let x = info("x", DType::F32, &[Dim::Is(2), Dim::Is(1)]);
    let model = Model::new(17, vec![x], nodes, if other { "w" } else { "y" });
    let one = |value: f32| Tensor::vector(vec![value]);
    let model = model.with("scale", &one(1.0)).with("shift", &one(0.0)).with("mean", &one(3.0));
    let model = model.with("variance", &one(4.0)).with("ratio", &Tensor::scalar(0.5f32));
    model.with("mode", &Tensor::scalar(true)).write()
}

#[test]
fn normalization_in_training_mode_takes_the_batch_and_is_noted() {
    let x = Tensor::from_fn([2, 1].into(), |row| [1.0f32, 9.0][row]);
    let run = |purpose| {
        let model = load_for(&normalization(false), None, &Options::default(), purpose).expect("it is valid");
        let y = ir::evaluate(&model.graph, std::slice::from_ref(&x)).expect("the input fits")[0].to_f64();
        (y, model.batch_statistics.len())
    };
    let near = |got: Vec<f64>, want: [f64; 2]| got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-4);
    let (y, noted) = run(Purpose::AsWritten);
    assert!(near(y, [-1.0, 1.0]) && noted == 1, "mean 5, deviation 4");
    let (y, noted) = run(Purpose::Inference);
    assert!(near(y, [-1.0, 3.0]) && noted == 0, "mean 3, deviation 2");
}

#[test]
fn model_that_inference_mode_does_not_accept_either_is_unsupported() {
    let error = onnx::load(&normalization(true), None, &Options::default()).expect_err("an operator does not exist");
    assert!(matches!(&error, LoadError::Unsupported(nodes) if nodes.len() == 2), "{error}");
}

/// Stochastic depth as PyTorch writes it: rows of `x` times a random mask of `keep`, over `divisor`.
fn stochastic_depth(keep: f32, divisor: f32, reader: &'static str) -> Vec<u8> {
    let nodes = vec![
        node("RandomUniformLike", &["like"], &["random"], &[("dtype", Attr::Int(1))]),
        node("CastLike", &["keep", "random"], &["limit"], &[]),
        node(reader, &["random", "limit"], &["less"], &[]),
        node("Cast", &["less"], &["mask"], &[("to", Attr::Int(1))]),
        node("Div", &["mask", "divisor"], &["factor"], &[]),
        node("Mul", &["x", "factor"], &["y"], &[]),
    ];
    let x = info("x", DType::F32, &[Dim::Is(400), Dim::Is(2)]);
    let model = Model::new(17, vec![x], nodes, "y").with("like", &Tensor::from_fn([400, 1].into(), |_| 0.0f32));
    model.with("keep", &Tensor::scalar(keep)).with("divisor", &Tensor::scalar(divisor)).write()
}

#[test]
fn stochastic_depth_drops_rows_in_training_and_none_in_inference() {
    let load = |file: &[u8], purpose| load_for(file, None, &Options::default(), purpose);
    let file = stochastic_depth(0.8, 0.8, "Less");
    let x = Tensor::from_fn([400, 2].into(), |ix| ix as f32 + 1.0);
    let inference = load(&file, Purpose::Inference).expect("a mask over its probability is 1");
    assert_eq!(
        ir::evaluate(&inference.graph, std::slice::from_ref(&x)).expect("the input fits")[0].to_f64(),
        x.to_f64()
    );

    let training = load(&file, Purpose::Training).expect("a mask may be random");
    assert!(training.key.is_some());
    let key = Tensor::vector(vec![3i64, 4]);
    let is_key = |&input: &ir::ValueId| Some(input) == training.key;
    let given: Vec<Tensor> =
        training.graph.inputs().iter().map(|input| if is_key(input) { key.clone() } else { x.clone() }).collect();
    let y = ir::evaluate(&training.graph, &given).expect("the inputs fit")[0].to_f64();
    let factors: Vec<f64> = y.iter().zip(x.to_f64()).map(|(y, x)| y / x).collect();
    assert!(factors.chunks(2).all(|row| (row[0] - row[1]).abs() < 1e-6), "a row is dropped whole");
    assert!(factors.iter().all(|factor| *factor == 0.0 || (factor - 1.25).abs() < 1e-6));
    let kept = factors.iter().filter(|factor| 0.0 < **factor).count() / 2;
    assert!((280..=360).contains(&kept), "{kept} of 400 rows with probability 0.8");

    assert!(matches!(load(&file, Purpose::AsWritten), Err(LoadError::TrainingMode(_))));
    let reason = |file: Vec<u8>, purpose| load(&file, purpose).expect_err("it must be refused").to_string();
    for purpose in [Purpose::Inference, Purpose::Training] {
        let other = reason(stochastic_depth(0.8, 0.5, "Less"), purpose);
        assert!(other.contains("must be divided by it, got 0.5"), "{other}");
        let other = reason(stochastic_depth(0.8, 0.8, "Greater"), purpose);
        assert!(other.contains("must be a tensor, got random numbers"), "{other}");
        let none = reason(stochastic_depth(0.0, 0.8, "Less"), purpose);
        assert!(none.contains("must be a probability above 0, got 0"), "{none}");
    }
}
