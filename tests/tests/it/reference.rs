//! Published networks against results of ONNX Runtime (`tests/peers/onnxruntime_reference.py`).

use ir::{Graph, Op, ops::Softmax};
use load::onnx;
use onnx_suite::model::{self, Message};
use types::{Random, Shape, Tensor};
use weights::npy;

use crate::support::{compiled, data, difference, open, root};

// Field numbers of `onnx.proto`.
const MODEL_GRAPH: u64 = 7;
const GRAPH_NODE: u64 = 1;
const GRAPH_INITIALIZER: u64 = 5;
const NODE_INPUT: u64 = 1;
const NODE_OUTPUT: u64 = 2;
const NODE_OP: u64 = 4;
const TENSOR_NAME: u64 = 8;
const TENSOR_RAW: u64 = 9;

fn uniform(seed: u64, name: &str, shape: &Shape, low: f32, high: f32) -> Tensor {
    let mut random = Random::for_name(seed, name);
    Tensor::from_fn(shape.clone(), |_| random.uniform(low, high))
}

/// The seeded weights of the reference script.
fn weight(name: &str, shape: &Shape) -> Tensor {
    if shape.rank() < 2 {
        return uniform(1, name, shape, 0.5, 1.0);
    }
    let fan_in: usize = shape[1..].iter().product();
    let bound = (6.0f32 / fan_in as f32).sqrt();
    uniform(1, name, shape, -bound, bound)
}

fn reference(name: &str) -> Tensor {
    let path = root().join("tests/data/onnxruntime").join(format!("{name}.npy"));
    npy::read(&std::fs::read(path).expect("recorded results are checked in")).expect("they are npy files")
}

/// Runs a graph on the reference input and compares the first output, relative to the largest value.
fn check(name: &str, graph: Graph, tolerance: f64) {
    let input = uniform(7, "input", &graph.ty(graph.inputs()[0]).shape.clone(), -1.0, 1.0);
    let compiled = compiled(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    let got = open(&compiled, 2).run_tensors(&[input]).expect("the input fits");
    let want = reference(name);
    // Probabilities near zero are compared on a scale of 0.01.
    let largest = want.to_f64().into_iter().fold(0.01f64, |largest, item| largest.max(item.abs()));
    let got = got[0].clone().reshape(want.shape().clone()).expect("as many elements");
    assert_eq!(difference(&got, &want, 0.0, tolerance * largest), None, "{name}");
}

/// The model file with each `ConstantOfShape` replaced by an initializer of seeded weights, as in the script.
fn reweighted(model: &[u8]) -> Vec<u8> {
    let mut parts = Vec::new();
    let model = model::fields(model);
    let (_, graph) = model.iter().find(|(field, _)| *field == MODEL_GRAPH).expect("a model has a graph");
    let graph = model::fields(graph);
    for (field, payload) in &graph {
        let node = if *field == GRAPH_NODE { model::fields(payload) } else { Vec::new() };
        let text = |wanted| node.iter().find(|(field, _)| *field == wanted).map(|(_, text)| *text);
        if text(NODE_OP) != Some(b"ConstantOfShape") {
            parts.push((*field, payload.to_vec()));
            continue;
        }
        let shapes =
            graph.iter().filter(|(field, _)| *field == GRAPH_INITIALIZER).map(|(_, tensor)| model::fields(tensor));
        let shape = shapes
            .filter(|tensor| {
                tensor.iter().any(|(field, name)| *field == TENSOR_NAME && Some(*name) == text(NODE_INPUT))
            })
            .find_map(|tensor| tensor.iter().find(|(field, _)| *field == TENSOR_RAW).map(|(_, raw)| *raw));
        let extent = |raw: &[u8]| u64::from_le_bytes(raw.try_into().expect("eight bytes each")) as usize;
        let shape: Vec<usize> = shape.expect("the shape is an initializer").chunks(8).map(extent).collect();
        let name = std::str::from_utf8(text(NODE_OUTPUT).expect("the node has an output")).expect("names are UTF-8");
        parts.push((GRAPH_INITIALIZER, model::tensor(name, &weight(name, &Shape::from(&shape[..]))).0));
    }
    let graph = parts.iter().fold(Message::new(), |graph, (field, payload)| graph.bytes(*field, payload));
    let kept = model.iter().filter(|(field, _)| *field != MODEL_GRAPH);
    kept.fold(Message::new().int(1, 3).message(MODEL_GRAPH, &graph), |out, (field, payload)| out.bytes(*field, payload))
        .0
}

/// A light network with seeded weights and the input of its softmax as output: the weights in the file would hide wrong
/// convolutions, and a softmax saturates.
fn check_light(name: &str) {
    let test = format!("reference::{name}");
    let Some(path) = data(&test, &format!("onnx-test-data/light/{name}.onnx")) else { return };
    let bytes = reweighted(&std::fs::read(path).expect("the file is there"));
    let mut graph =
        onnx::load(&bytes, None, &onnx::Options::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let softmax = graph.nodes().values().rev().find(|node| matches!(node.op, Op::Softmax(Softmax { .. })));
    if let Some(node) = softmax {
        let value = node.inputs[0];
        graph.set_outputs(vec![("logits".into(), value)]);
    }
    // Sums in another order, through up to 120 layers.
    check(name, graph, 2e-5);
}

macro_rules! light {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            check_light(stringify!($name));
        })*
    };
}
light!(
    light_bvlc_alexnet,
    light_densenet121,
    light_inception_v1,
    light_inception_v2,
    light_resnet50,
    light_shufflenet,
    light_squeezenet,
    light_zfnet512
);

/// The slowest network, with 2/3 GB of weights: a test of its own.
#[test]
fn light_vgg19() {
    check_light("light_vgg19");
}

/// As PyTorch exports it (`tests/peers/torch_export.py`): shape arithmetic and `Pad` before each convolution, separate batch
/// normalization. The weights of the checkpoint replace the other inputs of the graph.
#[test]
fn efficientnet_exported_by_pytorch() {
    let name = "efficientnet_lite0";
    let checkpoint = "efficientnet-lite0-57934424.pth";
    let Some(path) = data("reference::efficientnet_exported_by_pytorch", &format!("models/{checkpoint}")) else {
        return;
    };
    let file = std::fs::read(root().join(format!("tests/data/onnxruntime/{name}.onnx"))).expect("it is checked in");
    let weights = weights::read(checkpoint, &std::fs::read(path).expect("the file is there"));
    let weights = weights.expect("it is a checkpoint");
    let names = model::input_names(&file);
    let known: Vec<(&str, &Tensor)> =
        names.iter().skip(1).map(|name| (name.as_str(), weights.get(name).expect("the checkpoint has it"))).collect();
    let graph = onnx::load(&model::fix_inputs(&file, &known), None, &onnx::Options::default());
    check(name, graph.unwrap_or_else(|error| panic!("{name}: {error}")), 1e-5);
}

fn check_ocr(name: &str, shape: [usize; 4]) {
    let test = format!("reference::{name}");
    let Some(path) = data(&test, &format!("models/ppocrv4/{name}.onnx")) else { return };
    let bytes = std::fs::read(path).expect("the file is there");
    let options = onnx::Options { shapes: [("x".to_string(), Shape::from(shape))].into(), ..onnx::Options::default() };
    let graph = onnx::load(&bytes, None, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    check(name, graph, 1e-4);
}

#[test]
fn ocr_detection() {
    check_ocr("ch_PP-OCRv4_det_infer", [1, 3, 64, 96]);
}

#[test]
fn ocr_recognition() {
    check_ocr("ch_PP-OCRv4_rec_infer", [1, 3, 48, 64]);
}

#[test]
fn ocr_orientation() {
    check_ocr("ch_ppocr_mobile_v2.0_cls_infer", [1, 3, 48, 192]);
}

/// Runs a network on inputs seeded by their names and compares each output, relative to its largest value.
fn check_all_outputs(name: &str, bytes: &[u8], options: &onnx::Options, tolerance: f64) {
    let graph = onnx::load(bytes, None, options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let inputs: Vec<Tensor> = graph
        .inputs()
        .iter()
        .map(|&input| uniform(7, &graph.value(input).name, &graph.ty(input).shape.clone(), -1.0, 1.0))
        .collect();
    let outputs = graph.outputs().len();
    let compiled = compiled(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    let got = open(&compiled, 2).run_tensors(&inputs).expect("the inputs fit");
    assert_eq!(got.len(), outputs);
    for (ix, got) in got.iter().enumerate() {
        let want = reference(&format!("{name}.{ix}"));
        let largest = want.to_f64().into_iter().fold(0.01f64, |largest, item| largest.max(item.abs()));
        assert_eq!(difference(got, &want, 0.0, tolerance * largest), None, "{name}, output {ix}");
    }
}

/// Networks whose files are checked in with the results.
fn check_recurrent(name: &str) {
    let path = root().join("tests/data/onnxruntime").join(format!("{name}.onnx"));
    let bytes = std::fs::read(path).expect("the network is checked in");
    check_all_outputs(name, &bytes, &onnx::Options::default(), 1e-5);
}

#[test]
fn recurrent_lstm() {
    check_recurrent("recurrent_lstm");
}

#[test]
fn recurrent_gru() {
    check_recurrent("recurrent_gru");
}

#[test]
fn speech_detection() {
    let name = "silero_vad_16k_sequence";
    let Some(path) = data("reference::speech_detection", &format!("models/silero/{name}.onnx")) else { return };
    let bytes = std::fs::read(path).expect("the file is there");
    let options =
        onnx::Options { shapes: [("input".to_string(), Shape::from([20, 576]))].into(), ..onnx::Options::default() };
    check_all_outputs(name, &bytes, &options, 2e-5);
}
