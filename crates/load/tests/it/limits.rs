//! Small files that ask for much memory, work or arithmetic beyond any tensor are refused, with the node and the need.

use std::collections::BTreeMap;
use std::io::{Error, Read, Result as IoResult};

use prestow_load::mxnet;
use prestow_load::onnx::{self, ExternalData, Options};
use types::{Bytes, LoadLimit, Shape, Tensor};

use crate::models::{floats, ints, x};
use onnx_suite::model::{Attr, Message, Model, node};

/// The error of a model that is loaded with 1 MiB.
#[track_caller]
fn refusal(model: &Model) -> String {
    let options = Options { limit: LoadLimit::of(Bytes(1 << 20)), ..Options::default() };
    let loaded = onnx::load(&model.write(), None, &options);
    loaded.expect_err("the model is refused").to_string()
}

#[track_caller]
fn refused_for_memory(nodes: Vec<Message>, node: &str) {
    let error = refusal(&Model::new(17, vec![x(&[1, 1, 4, 4])], nodes, "y").with("big", &ints(&[1 << 30])));
    assert!(error.contains(node) && error.contains("at most 1.00 MiB of memory"), "{error}");
}

#[test]
fn constants_beyond_the_limit_are_refused_with_their_node() {
    refused_for_memory(vec![node("ConstantOfShape", &["big"], &["y"], &[])], "node `ConstantOfShape_0`");
    let range = |delta: f32| Attr::Tensor(Tensor::scalar(delta));
    let parts = [("start", range(0.0)), ("limit", range(1e9)), ("delta", range(1.0))];
    let mut nodes: Vec<Message> =
        parts.iter().map(|(name, value)| node("Constant", &[], &[name], &[("value", value.clone())])).collect();
    nodes.push(node("Range", &["start", "limit", "delta"], &["y"], &[]));
    refused_for_memory(nodes, "node `Range_3`");
    let attributes = [("size", Attr::Int(0))];
    refused_for_memory(
        vec![
            node("Constant", &[], &["length"], &[("value_int", Attr::Int(1 << 30))]),
            node("HannWindow", &["length"], &["y"], &attributes[..0]),
        ],
        "node `HannWindow_1`",
    );
}

#[test]
fn constants_that_double_are_refused() {
    let mut nodes = vec![node("Constant", &[], &["c0"], &[("value", Attr::Tensor(ints(&[1; 1024])))])];
    for ix in 0..30 {
        let (from, to) = (format!("c{ix}"), format!("c{}", ix + 1));
        nodes.push(node("Concat", &[&from, &from], &[&to], &[("axis", Attr::Int(0))]));
    }
    nodes.push(node("Identity", &["c30"], &["y"], &[]));
    refused_for_memory(nodes, "node `Concat_");
}

#[test]
fn many_small_constants_are_refused_together() {
    let mut nodes = Vec::new();
    for ix in 0..64 {
        let shape = Attr::Tensor(ints(&[1 << 14]));
        nodes.push(node("Constant", &[], &[&format!("s{ix}")], &[("value", shape)]));
        nodes.push(node("ConstantOfShape", &[&format!("s{ix}")], &[&format!("c{ix}")], &[]));
    }
    nodes.push(node("Identity", &["c0"], &["y"], &[]));
    refused_for_memory(nodes, "node `ConstantOfShape_");
}

#[test]
fn repeated_work_on_one_constant_is_refused() {
    let mut nodes =
        vec![node("Constant", &[], &["c"], &[("value", Attr::Tensor(Tensor::full(Shape::from([1 << 16]), 1i64)))])];
    for ix in 0..100 {
        nodes.push(node("ReduceSum", &["c"], &[&format!("r{ix}")], &[("keepdims", Attr::Int(0))]));
    }
    nodes.push(node("Identity", &["r0"], &["y"], &[]));
    let limit = LoadLimit { memory: Bytes(64 << 20), work: 1 << 20 };
    let model = Model::new(17, vec![x(&[1])], nodes, "y");
    let loaded = onnx::load(&model.write(), None, &Options { limit, ..Options::default() });
    let error = loaded.expect_err("the work is too much").to_string();
    assert!(error.starts_with("node `ReduceSum_") && error.contains("at most 1048576 operations"), "{error}");
}

#[test]
fn unrolled_loops_are_refused_beyond_the_limit() {
    let nodes = vec![node("Relu", &["carried"], &["next"], &[]), node("Identity", &["going"], &["still"], &[])];
    let body = Model::new(17, vec![], nodes, "still").graph();
    let body = body
        .message(11, &onnx_suite::model::info("iteration", types::DType::I64, &[]))
        .message(11, &onnx_suite::model::info("going", types::DType::Bool, &[]))
        .message(11, &onnx_suite::model::info("carried", types::DType::F32, &[onnx_suite::model::Dim::Is(4)]))
        .message(12, &Message::new().text(1, "next"));
    let nodes = vec![
        node("Identity", &["x"], &["v"], &[]),
        node("Constant", &[], &["trips"], &[("value_int", Attr::Int(4000))]),
        node("Loop", &["trips", "", "v"], &["y"], &[("body", Attr::Graph(body))]),
    ];
    let options = Options { limit: LoadLimit::of(Bytes(100 << 10)), ..Options::default() };
    let error = onnx::load(&Model::new(17, vec![x(&[4])], nodes, "y").write(), None, &options);
    let error = error.expect_err("the loop does not fit").to_string();
    assert!(error.contains("at most 100.00 KiB of memory"), "{error}");
}

#[test]
fn message_of_many_empty_parts_is_refused() {
    // An empty node takes two bytes of the file and far more in memory.
    let empty = [0x0a, 0x00].repeat(100_000);
    let bytes = Message::new().int(1, 8).0.into_iter().chain(Message::new().message(7, &Message(empty)).0);
    let options = Options { limit: LoadLimit::of(Bytes(1 << 20)), ..Options::default() };
    let error = onnx::load(&bytes.collect::<Vec<u8>>(), None, &options).expect_err("it is too large").to_string();
    assert!(error.contains("at most 1.00 MiB of memory"), "{error}");
}

/// External data of any length.
struct Endless;

impl ExternalData for Endless {
    fn open(&self, _: &str, _: u64, _: u64) -> IoResult<Box<dyn Read + '_>> {
        Err(Error::other("nothing must be read"))
    }
}

#[test]
fn external_data_beyond_the_limit_is_not_read() {
    let entry = |key: &str, value: &str| Message::new().text(1, key).text(2, value);
    let tensor =
        Message::new().int(1, 1 << 34).int(2, 1).text(8, "w").message(13, &entry("location", "w.bin")).int(14, 1);
    let model = Model::new(17, vec![x(&[1])], vec![node("Add", &["x", "w"], &["y"], &[])], "y");
    let graph = model.graph().message(5, &tensor);
    let bytes = Message::new().int(1, 8).message(8, &Message::new().int(2, 17)).message(7, &graph).0;
    let error = onnx::load(&bytes, Some(&Endless), &Options::default()).expect_err("64 GiB are too much").to_string();
    assert!(error.starts_with("tensor `w`: ") && error.contains("64.00 GiB needed"), "{error}");
}

#[test]
fn external_data_in_the_current_directory_is_found() {
    // The parent of a bare file name is the empty path.
    let folder = onnx::Directory(std::path::Path::new(""));
    let mut bytes = Vec::new();
    let opened = folder.open("Cargo.toml", 0, 9).expect("tests run in the folder of their crate");
    opened.take(10).read_to_end(&mut bytes).expect("it is readable");
    assert_eq!(bytes, b"[package]");
}

#[cfg(unix)]
#[test]
fn external_data_that_is_no_regular_file_is_refused() {
    let folder = std::env::temp_dir().join(format!("prestow-load-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let path = folder.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(made.success());
    let error = onnx::Directory(&folder).open("fifo", 0, 4).err().expect("a FIFO has no writer");
    assert!(error.to_string().contains("not a regular file"), "{error}");
    std::fs::remove_dir_all(folder).expect("the folder is ours");
}

#[test]
fn windows_beyond_any_tensor_are_refused() {
    for op in ["MaxPool", "AveragePool"] {
        for (name, value) in [("strides", vec![1 << 28; 2]), ("strides", vec![1 << 40; 2]), ("pads", vec![1 << 40; 4])]
        {
            let attributes =
                [("kernel_shape", Attr::Ints(vec![2, 2])), ("ceil_mode", Attr::Int(1)), (name, Attr::Ints(value))];
            let model = Model::new(17, vec![x(&[1, 1, 4, 4])], vec![node(op, &["x"], &["y"], &attributes)], "y");
            let error = crate::models::refusal(&model);
            assert!(error.contains("must be below 2^28"), "{error}");
        }
    }
}

#[test]
fn tensors_beyond_any_memory_are_refused() {
    let expand = vec![node("Expand", &["x", "shape"], &["y"], &[])];
    let shape = ints(&[1 << 20, 1 << 20, 1 << 20]);
    let error = crate::models::refusal(&Model::new(17, vec![x(&[1])], expand, "y").with("shape", &shape));
    assert!(error.contains("at most 2^40 elements"), "{error}");
    for extents in [[1usize << 32, 1 << 32], [9_999_999, 9_999_999]] {
        let open = onnx_suite::model::Dim::Named("N");
        let input = onnx_suite::model::info("x", types::DType::F32, &[open, open]);
        let model = Model::new(17, vec![input], vec![node("Relu", &["x"], &["y"], &[])], "y");
        let options = Options { shapes: BTreeMap::from([("x".into(), Shape::from(extents))]), ..Options::default() };
        let error = onnx::load(&model.write(), None, &options).expect_err("no memory is so large").to_string();
        assert!(error.contains("input `x`: a tensor must have at most 2^40 elements"), "{error}");
    }
}

#[test]
fn output_that_a_variable_lacks_is_refused() {
    let symbol = br#"{"nodes": [
        {"op": "null", "name": "x", "inputs": [], "attrs": {"__shape__": "(2,)"}},
        {"op": "relu", "name": "y", "inputs": [[0, 1, 0]]}
    ], "heads": [[1, 0, 0]]}"#;
    let error =
        mxnet::load(symbol, BTreeMap::new(), &mxnet::Options::default()).expect_err("a variable has one output");
    assert_eq!(error.to_string(), "node `y` reads output 1 of `x`, which has 1");
}

#[test]
fn symbol_beyond_the_limit_is_refused() {
    let symbol = |op: &str| {
        format!(
            r#"{{"nodes": [{{"op": "{op}", "name": "y", "inputs": [], "attrs": {{"shape": "(100000000,)", "stop": "1e8"}}}}],
            "heads": [[0, 0, 0]]}}"#
        )
    };
    let options = mxnet::Options { limit: LoadLimit::of(Bytes(1 << 20)), ..mxnet::Options::default() };
    for op in ["_zeros", "_ones"] {
        let symbol = symbol(op).replace(r#", "stop": "1e8""#, "");
        let error = mxnet::load(symbol.as_bytes(), BTreeMap::new(), &options).expect_err("400 MB are too much");
        assert!(error.to_string().starts_with("node `y`: loading must take at most 1.00 MiB"), "{error}");
    }
    let arange = r#"{"nodes": [{"op": "_arange", "name": "y", "inputs": [], "attrs": {"start": "1e8"}}],
        "heads": [[0, 0, 0]]}"#;
    let error = mxnet::load(arange.as_bytes(), BTreeMap::new(), &options).expect_err("400 MB are too much");
    assert!(error.to_string().starts_with("node `y`: loading must take at most 1.00 MiB"), "{error}");
}

/// The parsed text of a file takes more memory than the text.
#[test]
fn text_of_a_symbol_is_within_the_limit() {
    let symbol =
        br#"{"nodes": [{"op": "null", "name": "x", "inputs": [], "attrs": {"__shape__": "(2,)"}}], "heads": [[0, 0]]}"#;
    let load = |limit: u64| {
        let options = mxnet::Options { limit: LoadLimit::of(Bytes(limit)), ..mxnet::Options::default() };
        mxnet::load(symbol, BTreeMap::new(), &options).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(load(1 << 20), Ok(()));
    let error = load(symbol.len() as u64 * 8).expect_err("the parsed file is larger");
    assert!(error.starts_with("the file: loading must take at most"), "{error}");
}

/// Eight bytes of memory for each byte of a packed list.
#[test]
fn packed_numbers_beyond_the_limit_are_refused() {
    // Field 8 of an attribute has integers; this text is as many bytes of 1.
    let perm = Message::new().text(1, "perm").text(8, &"\u{1}".repeat(20_000)).int(20, 7);
    let nodes = vec![node("Transpose", &["x"], &["y"], &[]).message(5, &perm)];
    let model = Model::new(17, vec![x(&[3])], nodes, "y").write();
    let load = |limit: u64| {
        let options = Options { limit: LoadLimit::of(Bytes(limit)), ..Options::default() };
        onnx::load(&model, None, &options).expect_err("there are no such axes").to_string()
    };
    let error = load(100_000);
    assert!(error.contains("an attribute: loading must take at most"), "{error}");
    let error = load(64 << 20);
    assert!(!error.contains("loading must take"), "{error}");
}

#[test]
fn operator_sets_23_to_28_are_read() {
    for opset in 23..=28 {
        let cast = [("to", Attr::Int(1)), ("round_mode", Attr::Text("up"))];
        let nodes = vec![
            node("Relu", &["x"], &["a"], &[]),
            node("Cast", &["a"], &["b"], if opset < 24 { &cast[..1] } else { &cast }),
            node("QuantizeLinear", &["b", "scale"], &["q"], &[("precision", Attr::Int(0))]),
            node("DequantizeLinear", &["q", "scale"], &["y"], &[("output_dtype", Attr::Int(1))]),
        ];
        let model = Model::new(opset, vec![x(&[3])], nodes, "y").with("scale", &Tensor::scalar(0.5f32));
        crate::models::check(&model, &[floats(&[3], &[-1.0, 0.5, 2.2])], &[0.0, 0.5, 2.0]);
        let model = Model::new(opset, vec![x(&[3])], vec![node("BitCast", &["x"], &["y"], &[])], "y");
        assert!(crate::models::refusal(&model).contains("operator `BitCast`"));
    }
}

#[test]
fn top_k_of_a_hundred_is_found() {
    let items: Vec<f32> = (0..200).map(|at| ((at * 37) % 200) as f32).collect();
    let nodes = vec![node("TopK", &["x", "k"], &["y", "places"], &[("axis", Attr::Int(0))])];
    let model = |k: i64| Model::new(17, vec![x(&[200])], nodes.clone(), "y").with("k", &ints(&[k]));
    let want: Vec<f64> = (100..200).rev().map(f64::from).collect();
    crate::models::check(&model(100), &[floats(&[200], &items)], &want);
    assert!(crate::models::refusal(&model(201)).contains("`k` must be at most the extent of axis 0 of [200], got 201"));
}
