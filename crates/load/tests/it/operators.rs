//! Forms of operators that the ONNX backend tests do not cover.

use prestow_load::onnx::{self, Options};
use types::{DType, Shape, Tensor};

use crate::models::{check, floats, ints, refusal, run, x};
use onnx_suite::model::{Attr, Message, Model, info, node};

/// A model that also imports another domain.
fn with_domain(model: &Model, domain: &str, version: i64) -> Vec<u8> {
    Message(model.write()).message(8, &Message::new().text(1, domain).int(2, version)).0
}

/// The result of a model with one node of `ai.onnx.ml`, or the error.
fn learned(node: Message, input: &Tensor) -> Result<Vec<f64>, String> {
    let dims: Vec<_> = input.shape().iter().map(|&extent| onnx_suite::model::Dim::Is(extent as i64)).collect();
    let model = Model::new(18, vec![info("x", input.dtype(), &dims)], vec![node.text(7, "ai.onnx.ml")], "y");
    let bytes = with_domain(&model, "ai.onnx.ml", 5);
    let graph = onnx::load(&bytes, None, &Options::default()).map_err(|error| error.to_string())?;
    ir::verify(&graph).expect("the graph verifies");
    Ok(ir::evaluate(&graph, std::slice::from_ref(input)).expect("the input fits")[0].to_f64())
}

#[test]
fn label_encoder_maps_keys_to_values() {
    let table = [
        ("keys_int64s", Attr::Ints(vec![7, -3, 5])),
        ("values_tensor", Attr::Tensor(floats(&[3], &[0.5, 1.5, 2.5]))),
        ("default_tensor", Attr::Tensor(floats(&[1], &[-1.0]))),
    ];
    let encoder = |table: &[(&str, Attr)]| node("LabelEncoder", &["x"], &["y"], table);
    assert_eq!(learned(encoder(&table), &ints(&[5, 6, 7, -3])), Ok(vec![2.5, -1.0, 0.5, 1.5]));
    let twice = [("keys_int64s", Attr::Ints(vec![7, 7, 5])), table[1].clone()];
    assert!(learned(encoder(&twice), &ints(&[5])).unwrap_err().contains("must be distinct"));
    let texts = [("keys_strings", Attr::Texts(vec!["a"])), table[1].clone()];
    assert!(learned(encoder(&texts), &ints(&[5])).unwrap_err().contains("`keys_strings`: strings are not supported"));
    assert!(learned(node("Scaler", &["x"], &["y"], &[]), &ints(&[5])).unwrap_err().contains("ai.onnx.ml.Scaler"));
}

/// Two nodes: leaf 0 if feature 0 <= 1, else leaf 1 if feature 1 > 2, else leaf 2.
fn tree(next: Vec<i64>) -> Message {
    let bytes = |items: &[u8]| Attr::Tensor(Tensor::vector(items.to_vec()));
    node(
        "TreeEnsemble",
        &["x"],
        &["y"],
        &[
            ("nodes_splits", Attr::Tensor(floats(&[2], &[1.0, 2.0]))),
            ("nodes_featureids", Attr::Ints(vec![0, 1])),
            ("nodes_modes", bytes(&[0, 3])),
            ("nodes_truenodeids", Attr::Ints(vec![0, 1])),
            ("nodes_trueleafs", Attr::Ints(vec![1, 1])),
            ("nodes_falsenodeids", Attr::Ints(next)),
            ("nodes_falseleafs", Attr::Ints(vec![0, 1])),
            ("nodes_missing_value_tracks_true", Attr::Ints(vec![0, 1])),
            ("leaf_targetids", Attr::Ints(vec![0, 1, 0])),
            ("leaf_weights", Attr::Tensor(floats(&[3], &[10.0, 20.0, 30.0]))),
            ("n_targets", Attr::Int(2)),
            ("tree_roots", Attr::Ints(vec![0])),
        ],
    )
}

#[test]
fn tree_ensemble_selects_leaves() {
    let rows = floats(&[4, 2], &[1.0, 9.0, 1.5, 2.5, 1.5, 2.0, f32::NAN, f32::NAN]);
    let want = vec![10.0, 0.0, 0.0, 20.0, 30.0, 0.0, 0.0, 20.0];
    assert_eq!(learned(tree(vec![1, 2]), &rows), Ok(want));
    // Node 0 follows itself.
    assert!(learned(tree(vec![0, 2]), &rows).unwrap_err().ends_with("the nodes must form trees"));
}

#[test]
fn max_pool_indices_are_never_in_the_padding() {
    let pool = |order: i64| {
        let attributes = [
            ("kernel_shape", Attr::Ints(vec![2, 2])),
            ("pads", Attr::Ints(vec![1; 4])),
            ("storage_order", Attr::Int(order)),
        ];
        let nodes = vec![node("MaxPool", &["x"], &["largest", "y"], &attributes)];
        Model::new(12, vec![x(&[1, 2, 2, 3])], nodes, "y")
    };
    let nothing = floats(&[1, 2, 2, 3], &[f32::NEG_INFINITY; 12]);
    let first = [0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 3.0, 3.0, 4.0, 5.0];
    let second = first.map(|place| place + 6.0);
    check(&pool(0), std::slice::from_ref(&nothing), &[first, second].concat());
    let first = [0.0, 0.0, 2.0, 4.0, 0.0, 0.0, 2.0, 4.0, 1.0, 1.0, 3.0, 5.0];
    let second = first.map(|place| place + 6.0);
    check(&pool(1), &[nothing], &[first, second].concat());
}

#[test]
fn last_block_of_scales_may_be_shorter() {
    let attributes = [("axis", Attr::Int(1)), ("block_size", Attr::Int(2))];
    let model = |scales: &[f32]| {
        let nodes = vec![node("DequantizeLinear", &["q", "scale"], &["y"], &attributes)];
        Model::new(21, vec![], nodes, "y")
            .with("q", &Tensor::new(Shape::from([1, 5]), vec![1i8, 2, 3, 4, 5]).expect("five"))
            .with("scale", &floats(&[1, scales.len()], scales))
    };
    check(&model(&[1.0, 10.0, 100.0]), &[], &[1.0, 2.0, 30.0, 40.0, 500.0]);
    assert!(refusal(&model(&[1.0, 10.0])).contains("must fit blocks of 2 along axis 1 of [1,5]"));
}

#[test]
fn data_dependent_shape_is_refused() {
    let nodes = vec![node("Unique", &["x"], &["y"], &[])];
    let reason = "`X` determines the shape of the result and must be constant, but depends on a run-time input";
    assert!(refusal(&Model::new(11, vec![x(&[3])], nodes, "y")).ends_with(reason));
    let unsorted = vec![node("Unique", &["numbers"], &["u", "first", "y", "n"], &[("sorted", Attr::Int(0))])];
    let model = Model::new(11, vec![], unsorted, "y").with("numbers", &ints(&[5, 1, 5, i64::MAX, i64::MAX - 1]));
    check(&model, &[], &[0.0, 1.0, 0.0, 2.0, 3.0]);
}

#[test]
fn resize_of_a_region() {
    let attributes = [
        ("coordinate_transformation_mode", Attr::Text("tf_crop_and_resize")),
        ("mode", Attr::Text("linear")),
        ("extrapolation_value", Attr::Float(-1.0)),
    ];
    let nodes = vec![node("Resize", &["x", "roi", "", "sizes"], &["y"], &attributes)];
    let model = Model::new(13, vec![x(&[5])], nodes, "y").with("sizes", &ints(&[5]));
    let from = floats(&[5], &[0.0, 10.0, 20.0, 30.0, 40.0]);
    // The same extent, but another region: from the middle to half a tensor beyond the end.
    let half = model.clone().with("roi", &floats(&[2], &[0.5, 1.5]));
    check(&half, std::slice::from_ref(&from), &[20.0, 30.0, 40.0, -1.0, -1.0]);
    let turned = model.with("roi", &floats(&[2], &[1.0, 0.0]));
    check(&turned, &[from], &[40.0, 30.0, 20.0, 10.0, 0.0]);
}

#[test]
fn training_dropout_needs_ratio_zero() {
    let model = |ratio: f32| {
        let nodes = vec![node("Dropout", &["x", "ratio", "training"], &["y"], &[])];
        let model = Model::new(13, vec![x(&[2])], nodes, "y");
        model.with("ratio", &Tensor::scalar(ratio)).with("training", &Tensor::scalar(true))
    };
    assert_eq!(run(&model(0.0), &[floats(&[2], &[1.0, 2.0])])[0].dtype(), DType::F32);
    assert!(refusal(&model(0.5)).contains("training mode is not supported"));
}
