//! Models from memory, and the remedies that errors of sources propose.

use std::collections::BTreeMap;
use std::path::PathBuf;

use compiler::source::{Field, Remedy, Request, SourceError, WeightSpec, load, load_mxnet, load_onnx};
use load::{mxnet, onnx};
use onnx_suite::model::{Dim, Model, info, node};
use types::{DType, Shape};

use crate::support::root;

fn mnist(end: &str) -> PathBuf {
    root().join(format!("tests/data/mxnet/mnist_cnn{end}"))
}

#[test]
fn mxnet_bytes_load_like_files() {
    let shapes = BTreeMap::from([("data".to_string(), Shape::from([1, 1, 28, 28]))]);
    let read = |end: &str| std::fs::read(mnist(end)).expect("recorded files are checked in");
    let options = mxnet::Options { shapes: shapes.clone(), ..Default::default() };
    let mut bytes = load_mxnet(&read("-symbol.json"), &read("-0000.params"), &options).expect("it loads").graph;
    let model = mnist("-symbol.json").display().to_string();
    let request = Request { model, params: Some(mnist("-0000.params")), shapes, ..Request::default() };
    let file = load(&request).expect("it loads").graph;
    bytes.name.clone_from(&file.name);
    assert_eq!(ir::text::print(&bytes), ir::text::print(&file));
    let damaged = load_mxnet(&read("-symbol.json"), b"", &options);
    assert!(matches!(damaged, Err(SourceError::Weights(_))));
}

#[test]
fn errors_propose_remedies() {
    let remedies = |request: Request| load(&request).expect_err("it is refused").remedies();
    let symbol = || Request { model: mnist("-symbol.json").display().to_string(), ..Request::default() };
    let shape = Remedy::Set(Field::Shapes, "data=1x3x224x224".into());
    assert_eq!(remedies(symbol()), [Remedy::Set(Field::Params, "NET-0000.params".into()), shape.clone()]);
    let without_shape = Request { params: Some(mnist("-0000.params")), ..symbol() };
    assert_eq!(remedies(without_shape), [shape]);
    let weights = Request { weights: WeightSpec::Seed(7), pretrained: true, ..symbol() };
    assert_eq!(remedies(weights), [Remedy::Remove(Field::Weights), Remedy::Remove(Field::Pretrained)]);
    let names = Request { model: "lenet".into(), names: Some("names".into()), ..Request::default() };
    assert_eq!(remedies(names), [Remedy::Set(Field::Weights, "FILE".into())]);

    let inputs = vec![info("x", DType::F32, &[Dim::Open, Dim::Is(2)])];
    let model = Model::new(13, inputs, vec![node("Relu", &["x"], &["y"], &[])], "y").write();
    let error = load_onnx(&model, None, &onnx::Options::default()).expect_err("the batch is dynamic");
    let error = SourceError::Onnx { path: "model.onnx".into(), error: Box::new(error) };
    let batch = Remedy::Set(Field::Batch, "N".into());
    assert_eq!(error.remedies(), [Remedy::Set(Field::Shapes, "x=Nx2".into()), batch]);
}
