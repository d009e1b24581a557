//! Model files whose large tensors are read when they are needed.

use std::io::ErrorKind;
use std::path::PathBuf;

use onnx_suite::model::{Dim, Model, info, node};
use prestow_load::onnx::{ExternalData, ModelFile, Options, load};
use types::{Bytes, DType, Shape, Tensor};

/// `y = x w`, with as many columns, in a file.
fn written(name: &str, columns: usize, edit: impl Fn(Vec<u8>) -> Vec<u8>) -> PathBuf {
    let weight = Tensor::from_fn(Shape::from([3, columns]), |at| at as f32);
    let nodes = vec![node("MatMul", &["x", "w"], &["y"], &[])];
    let x = info("x", DType::F32, &[Dim::Is(2), Dim::Is(3)]);
    let model = Model::new(17, vec![x], nodes, "y").with("w", &weight);
    let path = std::env::temp_dir().join(format!("prestow-model-file-{}-{name}", std::process::id()));
    std::fs::write(&path, edit(model.write())).expect("a folder for temporary files");
    path
}

#[test]
fn large_tensors_are_read_from_the_file() {
    for (columns, is_whole) in [(10, true), (7000, false)] {
        let path = written("large", columns, |bytes| bytes);
        let bytes = std::fs::read(&path).expect("it was written");
        let file = ModelFile::open(&path, Bytes(1 << 20)).expect("it is readable");
        assert_eq!(file.is_whole(), is_whole);
        assert_eq!(file.outline() == bytes, is_whole);
        assert!(file.outline().len() < 1000);
        let outlined = load(file.outline(), Some(&file), &Options::default()).expect("it loads");
        let graph = load(&bytes, None, &Options::default()).expect("it loads");
        let inputs = [Tensor::full(Shape::from([2, 3]), 0.5f32)];
        assert_eq!(ir::evaluate(&outlined, &inputs), ir::evaluate(&graph, &inputs));
        std::fs::remove_file(&path).expect("the file is ours");
    }
}

#[test]
fn file_that_becomes_shorter_is_an_error() {
    let path = written("shorter", 7000, |bytes| bytes);
    let file = ModelFile::open(&path, Bytes(1 << 20)).expect("it is readable");
    std::fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(500)).expect("it is ours");
    let error = load(file.outline(), Some(&file), &Options::default()).expect_err("the weight is missing");
    assert!(error.to_string().contains("the file has 500 bytes"), "{error}");
    std::fs::remove_file(&path).expect("the file is ours");
}

#[test]
fn damaged_file_is_whole() {
    for cut in [1, 100, 84_000] {
        let path = written("damaged", 7000, |bytes| bytes[..bytes.len() - cut].to_vec());
        let file = ModelFile::open(&path, Bytes(1 << 20)).expect("it is readable");
        assert!(file.is_whole(), "without {cut} bytes");
        assert_eq!(file.outline(), std::fs::read(&path).expect("it was written"));
        std::fs::remove_file(&path).expect("the file is ours");
    }
}

#[test]
fn location_without_a_name_is_refused_in_a_whole_file() {
    let path = written("location", 10, |bytes| bytes);
    let file = ModelFile::open(&path, Bytes(1 << 20)).expect("it is readable");
    assert!(file.open("", 0, 4).err().is_some_and(|error| error.kind() == ErrorKind::PermissionDenied));
    std::fs::remove_file(&path).expect("the file is ours");
}

#[test]
fn outline_stays_within_its_limit() {
    let path = std::env::temp_dir().join(format!("prestow-model-file-{}-limit", std::process::id()));
    let zeros = std::fs::File::create(&path).and_then(|file| file.set_len(1 << 40));
    zeros.expect("a folder for temporary files, with sparse files");
    // No field has the number 0, so that the file is refused for its size before it is read.
    let error = ModelFile::open(&path, Bytes(1 << 20)).expect_err("the file is larger").to_string();
    assert!(error.ends_with("it has 1024.00 GiB, the limit is 1.00 MiB"), "{error}");
    // The version, repeated: fields without a length count as the others do.
    for (count, is_read) in [(400, true), (600, false)] {
        std::fs::write(&path, [8, 1].repeat(count)).expect("the file is ours");
        assert_eq!(ModelFile::open(&path, Bytes(1000)).is_ok(), is_read, "{count}");
    }
    // Initializers of 100 KB each, of fields without a length.
    let tensor = [0x2a, 0xa0, 0x8d, 0x06].into_iter().chain([16, 1].repeat(50_000)).collect::<Vec<u8>>();
    let graph = tensor.repeat(10);
    let model = [&[0x3a][..], &varint(graph.len()), &graph].concat();
    std::fs::write(&path, &model).expect("the file is ours");
    assert!(ModelFile::open(&path, Bytes(model.len() as u64)).is_ok());
    assert!(ModelFile::open(&path, Bytes(model.len() as u64 - 1)).is_err());
    std::fs::remove_file(&path).expect("the file is ours");
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while 0x7f < value {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
