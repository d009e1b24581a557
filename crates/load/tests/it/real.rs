//! Real networks load, verify, and have the published number of parameters.

use prestow_load::onnx::{self, Options};
use types::Shape;

use crate::data;

/// Loads a file and describes the graph.
fn describe(test: &str, path: &str, shape: Option<(&str, [usize; 4])>) -> Option<String> {
    let found = data(test, path)?;
    let bytes = std::fs::read(found).expect("readable");
    let shapes = shape.map(|(name, shape)| (name.to_string(), Shape::from(shape))).into_iter().collect();
    let graph = onnx::load(&bytes, None, &Options { shapes, ..Options::default() })
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    ir::verify(&graph).unwrap_or_else(|errors| panic!("{path}: {errors:?}"));
    let outputs: Vec<String> = graph.outputs().iter().map(|output| graph.ty(output.value).to_string()).collect();
    Some(format!(
        "{} inputs, {} nodes, {} parameters -> {}",
        graph.inputs().len(),
        graph.nodes().len(),
        graph.parameters(),
        outputs.join(", ")
    ))
}

/// File, the shape of its dynamic input, description.
type Case = (&'static str, Option<(&'static str, [usize; 4])>, &'static str);

#[track_caller]
fn check(test: &str, cases: &[Case]) {
    let mut wrong = String::new();
    for &(path, shape, want) in cases {
        if let Some(got) = describe(test, path, shape)
            && got != want
        {
            wrong.push_str(&format!("{path}: {got}\n"));
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn light_models() {
    check(
        "light_models",
        &[
            (
                "onnx-test-data/light/light_bvlc_alexnet.onnx",
                None,
                "1 inputs, 22 nodes, 60965224 parameters -> f32[1,1000]",
            ),
            (
                "onnx-test-data/light/light_densenet121.onnx",
                None,
                "1 inputs, 668 nodes, 8146152 parameters -> f32[1,1000,1,1]",
            ),
            (
                "onnx-test-data/light/light_inception_v1.onnx",
                None,
                "1 inputs, 142 nodes, 6998552 parameters -> f32[1,1000]",
            ),
            (
                "onnx-test-data/light/light_inception_v2.onnx",
                None,
                "1 inputs, 371 nodes, 11234792 parameters -> f32[1,1000]",
            ),
            (
                "onnx-test-data/light/light_resnet50.onnx",
                None,
                "1 inputs, 176 nodes, 25610152 parameters -> f32[1,1000]",
            ),
            (
                "onnx-test-data/light/light_shufflenet.onnx",
                None,
                "1 inputs, 203 nodes, 1420152 parameters -> f32[1,1000]",
            ),
            (
                "onnx-test-data/light/light_squeezenet.onnx",
                None,
                "1 inputs, 65 nodes, 1235496 parameters -> f32[1,1000,1,1]",
            ),
            ("onnx-test-data/light/light_vgg19.onnx", None, "1 inputs, 44 nodes, 143667240 parameters -> f32[1,1000]"),
            (
                "onnx-test-data/light/light_zfnet512.onnx",
                None,
                "1 inputs, 22 nodes, 87250536 parameters -> f32[1,1000]",
            ),
        ],
    );
}

#[test]
fn text_recognition() {
    check(
        "text_recognition",
        &[
            (
                "models/ppocrv4/ch_PP-OCRv4_det_infer.onnx",
                Some(("x", [1, 3, 64, 64])),
                "1 inputs, 330 nodes, 1171616 parameters -> f32[1,1,64,64]",
            ),
            (
                "models/ppocrv4/ch_PP-OCRv4_rec_infer.onnx",
                Some(("x", [1, 3, 48, 64])),
                "1 inputs, 403 nodes, 2690109 parameters -> f32[1,8,6625]",
            ),
            (
                "models/ppocrv4/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                Some(("x", [1, 3, 48, 192])),
                "1 inputs, 233 nodes, 133628 parameters -> f32[1,2]",
            ),
        ],
    );
}
