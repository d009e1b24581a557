//! Whole networks of other origin against what onnxruntime computed (`tests/peers/onnxruntime_reference.py`).

use ir::{Graph, Op, ops::Softmax};
use load::onnx;
use types::{Random, Shape, Tensor, npy};

use crate::support::{compiled, data, difference, open, root};

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

/// Runs a graph on the reference's input and compares with the first output, relative to the largest value.
fn check(name: &str, graph: Graph, tolerance: f64) {
    let input = uniform(7, "input", &graph.ty(graph.inputs()[0]).shape.clone(), -1.0, 1.0);
    let compiled = compiled(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    let got = open(&compiled, 2).run_tensors(&[input]).expect("the input fits");
    let want = reference(name);
    let largest = want.to_f64().into_iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
    let got = got[0].clone().reshape(want.shape().clone()).expect("as many elements");
    assert_eq!(difference(&got, &want, 0.0, tolerance * largest), None, "{name}");
}

/// A light network with seeded weights and its softmax's input for output: with the weights in the file every
/// convolution could be wrong unseen, and a softmax saturates.
fn check_light(name: &str) {
    let test = format!("reference::{name}");
    let Some(path) = data(&test, &format!("onnx-test-data/light/{name}.onnx")) else { return };
    let bytes = std::fs::read(path).expect("the file is there");
    let mut graph =
        onnx::load(&bytes, None, &onnx::Options::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    graph.replace_weights(|name, tensor| {
        // Only what the file fills with one number; its biases, and norms of ones, are real.
        let items = tensor.to_f64();
        let filled = items[0] != 0.0 && items[0] != 1.0 && items.iter().all(|&item| item == items[0]);
        filled.then(|| match tensor.shape()[..] {
            // The loader turns the second factor of `Gemm` round; the script drew it as it lies in the file.
            [rows, columns] => {
                let drawn = weight(name, &Shape::from([columns, rows]));
                let drawn = drawn.as_slice::<f32>().expect("weights are f32");
                Tensor::from_fn(Shape::from([rows, columns]), |at| drawn[at % columns * rows + at / columns])
            }
            _ => weight(name, tensor.shape()),
        })
    });
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

/// Two thirds of a GB of weights and the slowest of all: kept in a test of its own.
#[test]
fn light_vgg19() {
    check_light("light_vgg19");
}

fn check_ocr(name: &str, shape: [usize; 4]) {
    let test = format!("reference::{name}");
    let Some(path) = data(&test, &format!("models/ppocrv4/{name}.onnx")) else { return };
    let bytes = std::fs::read(path).expect("the file is there");
    let options = onnx::Options { batch: None, shapes: [("x".to_string(), Shape::from(shape))].into() };
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
