//! Models that are loaded for training: which initializers are weights, and under which names.

use std::collections::BTreeMap;

use ir::{Trainable, ValueDef};
use onnx_suite::model::{Attr, Dim, Message, Model, info, node};
use prestow_load::onnx::{self, Options};
use types::{DType, Shape, Tensor};

fn numbers(shape: &[usize], factor: f32) -> Tensor {
    Tensor::from_fn(Shape::from(shape), |ix| factor * (ix as f32 + 1.0))
}

fn input() -> Message {
    info("x", DType::F32, &[Dim::Is(2), Dim::Is(3)])
}

fn transpose(from: &str, to: &str) -> Message {
    node("Transpose", &[from], &[to], &[("perm", Attr::Ints(vec![1, 0]))])
}

/// The file with the producer, and with the parameters and folded values that PyTorch's exporter states.
fn exported(model: &Model, parameters: &[&str], folded: &[(&str, &str)]) -> Vec<u8> {
    let entry = |key: &str, value: &str| Message::new().text(1, key).text(2, value);
    let lines = parameters.iter().map(|name| format!("p_{name}: PARAMETER target='{name}'\n")).collect::<String>();
    let signature = format!("\n# inputs\n{lines}x: USER_INPUT\n");
    let mut graph = model.graph().message(16, &entry("pkg.torch.export.ExportedProgram.graph_signature", &signature));
    for (name, source) in folded {
        let sources = entry("pkg.onnxscript.optimizer.folded_from", &format!("['{source}', 'val_9']"));
        graph = graph.message(13, &Message::new().text(1, name).message(4, &sources));
    }
    let opset = Message::new().text(1, "").int(2, model.opset);
    Message::new().int(1, model.ir_version).text(2, "pytorch").message(7, &graph).message(8, &opset).0
}

fn trainable(file: &[u8]) -> Trainable {
    onnx::load_trainable(file, None, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// The names of the weights that nodes read, with their shapes, in order of the graph.
fn weights(model: &Trainable) -> Vec<(String, Vec<usize>)> {
    let of = |value: &ir::Value| matches!(value.source, ValueDef::Weight(_)).then(|| value.name.clone());
    let values = model.graph.values().values();
    values.filter_map(|value| Some((of(value)?, value.ty.shape.to_vec()))).collect()
}

#[test]
fn transposed_weight_keeps_its_name_and_is_one_weight_for_all_readers() {
    let nodes = vec![
        transpose("w", "turned"),
        node("MatMul", &["x", "turned"], &["a"], &[]),
        transpose("w", "again"),
        node("MatMul", &["a", "again"], &["b"], &[]),
        node("MatMul", &["b", "w"], &["y"], &[]),
    ];
    let model = Model::new(17, vec![input()], nodes, "y").with("w", &numbers(&[3, 3], 0.5));
    let model = trainable(&model.write());
    let found = weights(&model);
    assert_eq!(found, [("w".to_string(), vec![3, 3]), ("w".to_string(), vec![3, 3])]);
    assert_eq!(model.transposed.len(), 1, "one of the two is the file's matrix");
}

#[test]
fn constants_that_an_exporter_wrote_as_initializers_are_not_trained() {
    let nodes = vec![
        node("Mul", &["x", "scale"], &["a"], &[]),
        node("Mul", &["a", "table"], &["b"], &[]),
        node("MatMul", &["b", "val_1"], &["y"], &[]),
    ];
    let model = Model::new(17, vec![input()], nodes, "y")
        .with("scale", &Tensor::scalar(2.0f32))
        .with("table", &numbers(&[3], 0.1))
        .with("val_1", &numbers(&[3, 4], 0.2));
    let named = |file: &[u8]| weights(&trainable(file)).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(named(&model.write()), ["table", "val_1"], "nothing is stated: all but scalars");
    let file = exported(&model, &["scale", "linear.weight"], &[("val_1", "linear.weight"), ("table", "arange")]);
    assert_eq!(named(&file), ["scale", "val_1"], "parameters, and tensors computed from parameters");
    let folded = trainable(&file).folded;
    assert_eq!(folded, [("val_1".to_string(), "linear.weight".to_string())]);

    let mask = Tensor::vector(vec![0.0, f32::NEG_INFINITY, 0.0]);
    let nodes = vec![node("Add", &["x", "mask"], &["a"], &[]), node("MatMul", &["a", "w"], &["y"], &[])];
    let model = Model::new(17, vec![input()], nodes, "y").with("mask", &mask).with("w", &numbers(&[3, 4], 0.2));
    assert_eq!(named(&model.write()), ["w"], "a weight is finite");
}

#[test]
fn weight_and_its_folded_transpose_are_one_weight() {
    let turned = Tensor::from_fn(Shape::from([3, 2]), |ix| 0.5 * ((ix % 2 * 3 + ix / 2) as f32 + 1.0));
    let nodes = vec![node("MatMul", &["x", "val_0"], &["a"], &[]), node("MatMul", &["a", "w"], &["y"], &[])];
    let model = Model::new(17, vec![input()], nodes, "y").with("val_0", &turned).with("w", &numbers(&[2, 3], 0.5));
    let file = exported(&model, &["w"], &[("val_0", "w")]);
    let found = trainable(&file);
    assert_eq!(weights(&found).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["w", "w"]);
    assert_eq!((found.transposed.len(), found.folded.len()), (1, 0));

    // Trained weights replace both in inference.
    let new = numbers(&[2, 3], -1.0);
    let x = numbers(&[2, 3], 1.0);
    let run = |options: &Options| {
        let graph = onnx::load(&file, None, options).unwrap_or_else(|error| panic!("{error}"));
        ir::evaluate(&graph, std::slice::from_ref(&x)).unwrap()[0].to_f64()
    };
    let old = run(&Options::default());
    let weights = BTreeMap::from([("w".to_string(), new)]);
    let doubled = run(&Options { weights, ..Options::default() });
    // Twice the weights with the other sign: four times the product of both.
    assert_eq!(doubled, old.iter().map(|item| item * 4.0).collect::<Vec<_>>());
}

/// A normalization of `from` by the statistics `mean` and `variance`, in a mode.
fn normalization(from: &str, [mean, variance]: [&str; 2], to: &str, is_training: bool) -> Message {
    let attributes = [("training_mode", Attr::Int(i64::from(is_training)))];
    node("BatchNormalization", &[from, "scale", "shift", mean, variance], &[to], &attributes)
}

/// Whether each normalization of a model keeps its statistics in training.
fn fixed(nodes: Vec<Message>) -> Vec<bool> {
    let vector = |factor: f32| numbers(&[3], factor);
    let model = Model::new(17, vec![input()], nodes, "y").with("scale", &vector(0.5)).with("shift", &vector(0.2));
    let model = model.with("mean", &vector(0.1)).with("variance", &vector(1.0));
    trainable(&model.write()).moving.values().map(|moving| moving.fixed).collect()
}

#[test]
fn normalization_in_inference_mode_beside_one_in_training_mode_keeps_its_statistics() {
    let two = |first: bool, second: bool| {
        let running = ["mean", "variance"];
        vec![normalization("x", running, "a", first), normalization("a", running, "y", second)]
    };
    assert_eq!(fixed(two(true, true)), [false, false]);
    assert_eq!(fixed(two(true, false)), [false, true]);
    assert_eq!(fixed(two(false, false)), [false, false], "a file for inference does not state the mode of training");
}

#[test]
fn computed_statistics_are_operands_of_a_normalization_in_inference_mode() {
    let of_batch = |is_training: bool| {
        let axes = [("axes", Attr::Ints(vec![0])), ("keepdims", Attr::Int(0))];
        vec![node("ReduceMean", &["x"], &["m"], &axes), normalization("x", ["m", "variance"], "y", is_training)]
    };
    assert_eq!(fixed(of_batch(false)), [true]);
    assert_eq!(fixed(of_batch(true)), [false]);
}

/// PyTorch's older exporter names the mask of every dropout, and it may be read.
#[test]
fn mask_of_a_dropout_is_that_of_its_result() {
    let dropout = node("Dropout", &["x", "ratio", "mode"], &["dropped", "mask"], &[]);
    let with = |model: Model| {
        let model = model.with("ratio", &Tensor::scalar(0.5f32)).with("mode", &Tensor::scalar(true));
        trainable(&model.with("w", &numbers(&[3, 1], 1.0)).write())
    };
    let last = node("MatMul", &["dropped", "w"], &["y"], &[]);
    let unread = with(Model::new(17, vec![input()], vec![dropout.clone(), last], "y"));
    assert!(unread.key.is_some(), "the elements are dropped");

    let nodes = vec![
        dropout,
        node("Cast", &["mask"], &["flags"], &[("to", Attr::Int(1))]),
        node("Mul", &["x", "flags"], &["kept"], &[]),
        node("Add", &["kept", "kept"], &["twice"], &[]),
        node("Sub", &["dropped", "twice"], &["zero"], &[]),
        node("Concat", &["zero", "flags"], &["y"], &[("axis", Attr::Int(1))]),
    ];
    let read = with(Model::new(17, vec![input()], nodes, "y"));
    let key = Tensor::vector(vec![3i64, 4]);
    let x = numbers(&[2, 3], 1.0);
    let is_key = |&input: &ir::ValueId| Some(input) == read.key;
    let given: Vec<Tensor> =
        read.graph.inputs().iter().map(|input| if is_key(input) { key.clone() } else { x.clone() }).collect();
    let y = ir::evaluate(&read.graph, &given).expect("the inputs fit")[0].to_f64();
    let (zero, flags): (Vec<_>, Vec<_>) = y.chunks(3).enumerate().partition(|(ix, _)| ix % 2 == 0);
    assert!(zero.iter().all(|(_, row)| row.iter().all(|&item| item == 0.0)), "{y:?}");
    let kept: f64 = flags.iter().flat_map(|(_, row)| row.iter()).sum();
    assert!(0.0 < kept && kept < 6.0, "some elements stay: {flags:?}");
}
