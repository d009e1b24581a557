//! Forests and linear models of domain `ai.onnx.ml`, against the results of ONNX Runtime 1.32 and against definitions.

use onnx_suite::model::{Attr, Dim, Model, info, node};
use prestow_load::onnx::{self, Options};
use types::{DType, Shape, Tensor};

use crate::models::{floats, ints};
use crate::operators::with_domain;

fn loaded(op: &str, x: &Tensor, outputs: &[&'static str], attributes: &[(&str, Attr)]) -> Result<Vec<Tensor>, String> {
    let dims: Vec<_> = x.shape().iter().map(|&extent| Dim::Is(extent as i64)).collect();
    let node = node(op, &["x"], outputs, attributes).text(7, "ai.onnx.ml");
    let mut model = Model::new(18, vec![info("x", x.dtype(), &dims)], vec![node], outputs[0]);
    model.outputs = outputs.to_vec();
    let bytes = with_domain(&model, "ai.onnx.ml", 3);
    let graph = onnx::load(&bytes, None, &Options::default()).map_err(|error| error.to_string())?;
    ir::verify(&graph).expect("the graph verifies");
    Ok(ir::evaluate(&graph, std::slice::from_ref(x)).expect("the input fits"))
}

fn list(items: &[f32]) -> Attr {
    Attr::Floats(items.to_vec())
}

/// A root and two leaves, and a tree of one leaf: features 0 `<=` 0.5.
fn trees(prefix: &'static str, weights: &[(i64, i64, i64, f32)]) -> Vec<(&'static str, Attr)> {
    let names: [&'static str; 4] = match prefix {
        "target" => ["target_treeids", "target_nodeids", "target_ids", "target_weights"],
        _ => ["class_treeids", "class_nodeids", "class_ids", "class_weights"],
    };
    vec![
        ("nodes_treeids", Attr::Ints(vec![0, 0, 0, 4])),
        ("nodes_nodeids", Attr::Ints(vec![0, 1, 2, 0])),
        ("nodes_featureids", Attr::Ints(vec![1, 0, 0, 0])),
        ("nodes_values", list(&[0.5, 0.0, 0.0, 0.0])),
        ("nodes_modes", Attr::Texts(vec!["BRANCH_LEQ", "LEAF", "LEAF", "LEAF"])),
        ("nodes_truenodeids", Attr::Ints(vec![1, 0, 0, 0])),
        ("nodes_falsenodeids", Attr::Ints(vec![2, 0, 0, 0])),
        ("nodes_missing_value_tracks_true", Attr::Ints(vec![1, 0, 0, 0])),
        (names[0], Attr::Ints(weights.iter().map(|weight| weight.0).collect())),
        (names[1], Attr::Ints(weights.iter().map(|weight| weight.1).collect())),
        (names[2], Attr::Ints(weights.iter().map(|weight| weight.2).collect())),
        (names[3], list(&weights.iter().map(|weight| weight.3).collect::<Vec<_>>())),
    ]
}

/// Below the split, above it, and a missing value, which counts as below.
fn rows() -> Tensor {
    floats(&[3, 2], &[9.0, 0.5, 9.0, 0.75, 9.0, f32::NAN])
}

#[test]
fn forests_join_the_weights_of_leaves() {
    let weights = [(0, 1, 0, 1.0), (0, 1, 1, 2.0), (0, 2, 0, -4.0), (0, 2, 1, 8.0), (4, 0, 0, 0.5), (4, 0, 1, 3.0)];
    let base = [0.25, -0.25];
    for (function, want) in [
        ("SUM", [1.5, 5.0, -3.5, 11.0]),
        ("AVERAGE", [0.75, 2.5, -1.75, 5.5]),
        ("MIN", [0.5, 2.0, -4.0, 3.0]),
        ("MAX", [1.0, 3.0, 0.5, 8.0]),
    ] {
        let mut attributes = trees("target", &weights);
        attributes.extend([
            ("n_targets", Attr::Int(2)),
            ("aggregate_function", Attr::Text(function)),
            ("base_values", list(&base)),
        ]);
        let want: Vec<f64> = [0, 1, 0]
            .iter()
            .flat_map(|&row| (0..2).map(move |target| (row, target)))
            .map(|(row, target)| want[row * 2 + target] + f64::from(base[target]))
            .collect();
        let got = loaded("TreeEnsembleRegressor", &rows(), &["y"], &attributes).expect("it is supported");
        assert_eq!(got[0].to_f64(), want, "{function}");
    }
}

#[test]
fn classes_of_forests_are_labelled() {
    let of = |weights: &[(i64, i64, i64, f32)], labels: &[i64], transform: &'static str| {
        let mut attributes = trees("class", weights);
        attributes
            .extend([("classlabels_int64s", Attr::Ints(labels.to_vec())), ("post_transform", Attr::Text(transform))]);
        let got = loaded("TreeEnsembleClassifier", &rows(), &["label", "scores"], &attributes).expect("supported");
        (got[0].to_f64(), got[1].to_f64())
    };
    let near = |got: &[f64], want: &[f64]| {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} instead of {want:?}");
    };
    // Three classes.
    let (labels, scores) = of(&[(0, 1, 0, 1.0), (0, 2, 2, 2.0), (4, 0, 1, 0.5)], &[7, 8, 9], "NONE");
    assert_eq!(labels, [7.0, 9.0, 7.0]);
    assert_eq!(scores, [1.0, 0.5, 0.0, 0.0, 0.5, 2.0, 1.0, 0.5, 0.0]);
    // One score of two classes: a number that is compared with 0, or with one half if no weight is negative.
    let signed = [(0, 1, 0, -0.45), (0, 2, 0, 0.95)];
    let (labels, scores) = of(&signed, &[5, -3], "NONE");
    assert_eq!(labels, [5.0, -3.0, 5.0]);
    near(&scores, &[0.45, -0.45, -0.95, 0.95, 0.45, -0.45]);
    near(&of(&signed, &[5, -3], "LOGISTIC").1[..4], &[0.610639, 0.389361, 0.278885, 0.721115]);
    let positive = [(0, 1, 0, 0.45), (0, 2, 0, 0.95)];
    let (labels, scores) = of(&positive, &[5, -3], "NONE");
    assert_eq!(labels, [5.0, -3.0, 5.0]);
    near(&scores, &[0.55, 0.45, 0.05, 0.95, 0.55, 0.45]);
    near(&of(&positive, &[5, -3], "LOGISTIC").1[..4], &[0.389361, 0.610639, 0.278885, 0.721115]);
    // The score of the second class itself.
    let second = [(0, 1, 1, -0.45), (0, 2, 1, 0.95)];
    near(&of(&second, &[5, -3], "NONE").1[..4], &[0.0, -0.45, 0.0, 0.95]);
    near(&of(&second, &[5, -3], "SOFTMAX").1[..4], &[0.610639, 0.389361, 0.278885, 0.721115]);
}

#[test]
fn forests_that_are_no_trees_are_refused() {
    let changed = |name: &str, value: Attr| {
        let mut attributes = trees("target", &[(0, 1, 0, 1.0), (0, 2, 0, 1.0), (4, 0, 0, 1.0)]);
        attributes.push(("n_targets", Attr::Int(1)));
        for own in attributes.iter_mut().filter(|own| own.0 == name) {
            own.1 = value.clone();
        }
        loaded("TreeEnsembleRegressor", &rows(), &["y"], &attributes).expect_err("it is refused")
    };
    assert!(changed("nodes_falsenodeids", Attr::Ints(vec![1, 0, 0, 0])).contains("the nodes must form trees"));
    assert!(changed("nodes_falsenodeids", Attr::Ints(vec![0, 0, 0, 0])).contains("2 of 4 follow no root"));
    assert!(changed("nodes_falsenodeids", Attr::Ints(vec![9, 0, 0, 0])).contains("the nodes must form trees"));
    assert!(changed("nodes_featureids", Attr::Ints(vec![2, 0, 0, 0])).contains("must have numbers in 0..2, got 2"));
    assert!(changed("nodes_nodeids", Attr::Ints(vec![0, 1, 1, 0])).contains("got 1 of tree 0 twice"));
    assert!(changed("nodes_values", list(&[0.5])).contains("attributes of nodes must have 4 entries"));
    assert!(changed("target_nodeids", Attr::Ints(vec![0, 2, 0])).contains("only leaves must have weights, got node 0"));
    assert!(changed("target_ids", Attr::Ints(vec![1, 0, 0])).contains("must have numbers in 0..1, got 1"));
    let modes = Attr::Texts(vec!["BRANCH_MEMBER", "LEAF", "LEAF", "LEAF"]);
    assert!(changed("nodes_modes", modes).contains("`BRANCH_MEMBER` is not supported"));
}

#[test]
fn linear_models_multiply_and_label() {
    let x = floats(&[2, 2], &[1.0, 2.0, -1.0, 0.5]);
    let attributes = [("coefficients", list(&[1.0, 2.0, -1.0, 4.0])), ("intercepts", list(&[0.5, -0.5]))];
    let regressor = [attributes.to_vec(), vec![("targets", Attr::Int(2))]].concat();
    let got = loaded("LinearRegressor", &x, &["y"], &regressor).expect("it is supported");
    assert_eq!(got[0].to_f64(), [5.5, 6.5, 0.5, 2.5]);
    let labels = vec![("classlabels_ints", Attr::Ints(vec![4, 2]))];
    let classifier = [attributes.to_vec(), labels].concat();
    let got = loaded("LinearClassifier", &x, &["label", "scores"], &classifier).expect("it is supported");
    assert_eq!(got[0].to_f64(), [2.0, 2.0]);
    assert_eq!(got[1].to_f64(), [5.5, 6.5, 0.5, 2.5]);
    let error = loaded("LinearRegressor", &x, &["y"], &attributes).expect_err("one target has two numbers");
    assert!(error.contains("attribute `coefficients` must have 1 rows of 2 numbers, got 4"), "{error}");
}

#[test]
fn features_are_prepared() {
    let x = floats(&[2, 2], &[3.0, -4.0, 0.0, 0.0]);
    let of = |op: &str, x: &Tensor, attributes: &[(&str, Attr)]| {
        loaded(op, x, &["y"], attributes).map(|results| results[0].to_f64())
    };
    let scaler = [("offset", list(&[1.0])), ("scale", list(&[2.0, 0.5]))];
    assert_eq!(of("Scaler", &x, &scaler), Ok(vec![4.0, -2.5, -2.0, -0.5]));
    for (norm, divisor) in [("MAX", 3.0), ("L1", 7.0), ("L2", 5.0)] {
        let got = of("Normalizer", &x, &[("norm", Attr::Text(norm))]).expect("it is supported");
        let want = [3.0 / divisor, -4.0 / divisor, 0.0, 0.0];
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{norm}: {got:?}");
    }
    let imputer = [("imputed_value_floats", list(&[7.0, 8.0])), ("replaced_value_float", Attr::Float(f32::NAN))];
    let missing = floats(&[2, 2], &[1.0, f32::NAN, f32::NAN, 2.0]);
    assert_eq!(of("Imputer", &missing, &imputer), Ok(vec![1.0, 8.0, 7.0, 2.0]));
    let imputer = [("imputed_value_int64s", Attr::Ints(vec![9])), ("replaced_value_int64", Attr::Int(-1))];
    assert_eq!(of("Imputer", &ints(&[-1, 5]), &imputer), Ok(vec![9.0, 5.0]));
    let categories = [("cats_int64s", Attr::Ints(vec![2, -1]))];
    assert_eq!(of("OneHotEncoder", &ints(&[-1, 0, 2]), &categories), Ok(vec![0.0, 1.0, 0.0, 0.0, 1.0, 0.0]));
    let strict = [categories[0].clone(), ("zeros", Attr::Int(0))];
    assert!(of("OneHotEncoder", &ints(&[1]), &strict).unwrap_err().contains("attribute `zeros` must be 1"));
    assert_eq!(
        of("FeatureVectorizer", &x, &[("inputdimensions", Attr::Ints(vec![3]))]),
        Ok(vec![3.0, -4.0, 0.0, 0.0, 0.0, 0.0])
    );
    assert_eq!(of("FeatureVectorizer", &x, &[("inputdimensions", Attr::Ints(vec![1]))]), Ok(vec![3.0, 0.0]));
}

#[test]
fn support_vectors_are_summed_by_their_kernel() {
    let x = floats(&[1, 2], &[1.0, -0.5]);
    let vectors = [0.5f32, 0.25, -1.0, 2.0];
    let (coefficients, rho) = ([2.0f32, -0.5], 0.1f32);
    let [gamma, shift] = [0.3f64, 0.2];
    for kernel in ["LINEAR", "POLY", "SIGMOID", "RBF"] {
        let value = |row: usize| {
            let own = [f64::from(vectors[row * 2]), f64::from(vectors[row * 2 + 1])];
            let dot = own[0] - 0.5 * own[1];
            let distance = (1.0 - own[0]).powi(2) + (-0.5 - own[1]).powi(2);
            match kernel {
                "LINEAR" => dot,
                "POLY" => (gamma * dot + shift).powi(2),
                "SIGMOID" => (gamma * dot + shift).tanh(),
                _ => (-gamma * distance).exp(),
            }
        };
        let want = 2.0 * value(0) - 0.5 * value(1) + 0.1;
        let mut attributes = vec![
            ("coefficients", list(&coefficients)),
            ("rho", list(&[rho])),
            ("support_vectors", list(&vectors)),
            ("n_supports", Attr::Int(2)),
            ("kernel_type", Attr::Text(kernel)),
            ("kernel_params", list(&[0.3, 0.2, 2.0])),
        ];
        let got = loaded("SVMRegressor", &x, &["y"], &attributes).expect("it is supported");
        assert!((got[0].to_f64()[0] - want).abs() < 1e-5, "{kernel}");
        attributes.push(("one_class", Attr::Int(1)));
        let got = loaded("SVMRegressor", &x, &["y"], &attributes).expect("it is supported");
        assert_eq!(got[0].to_f64(), [if 0.0 < want { 1.0 } else { -1.0 }], "{kernel}");
        assert_eq!((got[0].shape(), got[0].dtype()), (&Shape::from([1, 1]), DType::F32));
    }
}
