//! The first inputs of each target: small, valid, and different in form.

use std::collections::BTreeMap;

use onnx_suite::model::{Attr, Dim, Model, info, node};
use types::{DType, Random, Shape, Tensor};
use weights::TensorForm;

/// Tensors of several dtypes.
fn tensors() -> BTreeMap<String, Tensor> {
    let floats = Tensor::from_fn(Shape::from([2, 3]), |ix| ix as f32 * 0.5 - 1.0);
    BTreeMap::from([
        ("a.weight".to_string(), floats.clone()),
        ("b".to_string(), floats.cast(DType::F16)),
        ("c".to_string(), Tensor::vector(vec![1i64, -2, 3])),
        ("empty".to_string(), Tensor::from_fn(Shape::from([0, 4]), |_| 0.0f32)),
        ("d".to_string(), Tensor::scalar(7u8)),
    ])
}

fn written(form: TensorForm) -> Vec<Vec<u8>> {
    let all = tensors();
    let one: BTreeMap<String, Tensor> = all.clone().into_iter().take(1).collect();
    // A form that has no place for one of the tensors still has one for the first.
    [all, one].iter().filter_map(|tensors| weights::write(form, tensors).ok()).collect()
}

pub(crate) fn safetensors() -> Vec<Vec<u8>> {
    written(TensorForm::Safetensors)
}

pub(crate) fn npz() -> Vec<Vec<u8>> {
    written(TensorForm::Npz)
}

pub(crate) fn params() -> Vec<Vec<u8>> {
    let fixtures: [&[u8]; 4] = [
        include_bytes!("../../crates/weights/src/fixtures/dtypes.params"),
        include_bytes!("../../crates/weights/src/fixtures/sparse.params"),
        include_bytes!("../../crates/weights/src/fixtures/legacy_v0.params"),
        include_bytes!("../../crates/weights/src/fixtures/legacy_v1.params"),
    ];
    let mut seeds = written(TensorForm::Params);
    seeds.extend(fixtures.map(<[u8]>::to_vec));
    seeds
}

pub(crate) fn npy() -> Vec<Vec<u8>> {
    tensors().values().map(weights::npy::write).collect()
}

pub(crate) fn pickles() -> Vec<Vec<u8>> {
    let fixtures: [&[u8]; 6] = [
        include_bytes!("../../crates/weights/src/fixtures/protocol0.pkl"),
        include_bytes!("../../crates/weights/src/fixtures/protocol1.pkl"),
        include_bytes!("../../crates/weights/src/fixtures/protocol2.pkl"),
        include_bytes!("../../crates/weights/src/fixtures/protocol3.pkl"),
        include_bytes!("../../crates/weights/src/fixtures/protocol4.pkl"),
        include_bytes!("../../crates/weights/src/fixtures/protocol5.pkl"),
    ];
    fixtures.map(<[u8]>::to_vec).to_vec()
}

/// Models of one operator, exported from the cases; a handmade one with attributes and a subgraph.
pub(crate) fn onnx() -> Vec<Vec<u8>> {
    let x = info("x", DType::F32, &[Dim::Is(1), Dim::Is(1), Dim::Is(4), Dim::Is(4)]);
    let pool =
        [("kernel_shape", Attr::Ints(vec![3, 3])), ("pads", Attr::Ints(vec![1; 4])), ("ceil_mode", Attr::Int(1))];
    let nodes = vec![
        node("Conv", &["x", "w"], &["a"], &[("pads", Attr::Ints(vec![1; 4]))]),
        node("MaxPool", &["a"], &["b"], &pool),
        node("Reshape", &["b", "shape"], &["c"], &[]),
        node("Gemm", &["c", "m"], &["d"], &[("alpha", Attr::Float(0.5))]),
        node("Softmax", &["d"], &["y"], &[("axis", Attr::Int(-1))]),
    ];
    let handmade = Model::new(17, vec![x], nodes, "y")
        .with("w", &Tensor::full(Shape::from([1, 1, 3, 3]), 0.5f32))
        .with("shape", &Tensor::vector(vec![1i64, -1]))
        .with("m", &Tensor::full(Shape::from([16, 3]), 0.1f32));
    let mut seeds = vec![handmade.write()];
    let exported = cases::all().into_iter().filter_map(|case| export::onnx(&case.graph).ok());
    seeds.extend(exported.filter(|bytes| bytes.len() < 2000));
    seeds
}

/// Symbols of one and of several nodes.
pub(crate) fn symbols() -> Vec<Vec<u8>> {
    let layers = [
        ("Convolution", r#"{"kernel": "(3, 3)", "num_filter": "2", "pad": "(1, 1)", "no_bias": "True"}"#, 1),
        ("Pooling", r#"{"kernel": "(2, 2)", "pool_type": "max", "stride": "(2, 2)"}"#, 0),
        ("FullyConnected", r#"{"num_hidden": "3", "no_bias": "True", "flatten": "True"}"#, 1),
        ("SoftmaxOutput", r#"{"multi_output": "False"}"#, 0),
        ("transpose", r#"{"axes": "(0, 2, 3, 1)"}"#, 0),
        ("slice", r#"{"begin": "(0, 1)", "end": "(None, 2)"}"#, 0),
        ("mean", r#"{"axis": "(1, 2)", "keepdims": "True"}"#, 0),
        ("Activation", r#"{"act_type": "relu"}"#, 0),
    ];
    let symbol = |(op, attributes, weights): (&str, &str, usize)| {
        let mut nodes = vec![r#"{"op": "null", "name": "data", "inputs": []}"#.to_string()];
        let mut inputs = vec!["[0, 0, 0]".to_string()];
        if 0 < weights {
            nodes.push(r#"{"op": "null", "name": "w", "inputs": []}"#.into());
            inputs.push("[1, 0, 0]".into());
        }
        let last = nodes.len();
        nodes.push(format!(
            r#"{{"op": "{op}", "name": "y", "attrs": {attributes}, "inputs": [{}]}}"#,
            inputs.join(", ")
        ));
        format!(r#"{{"nodes": [{}], "arg_nodes": [0], "heads": [[{last}, 0, 0]]}}"#, nodes.join(", ")).into_bytes()
    };
    layers.into_iter().map(symbol).collect()
}

/// A picture of a gradient with noise.
fn pixels(width: u32, height: u32, channels: u32) -> Vec<u8> {
    let mut random = Random::new(3);
    (0..width * height * channels).map(|at| (at / channels % width * 8 + random.below(20) as u32) as u8).collect()
}

pub(crate) fn png() -> Vec<Vec<u8>> {
    let kinds = [(png::ColorType::Rgb, 3), (png::ColorType::Grayscale, 1), (png::ColorType::Rgba, 4)];
    let encode = |(color, channels): (png::ColorType, u32)| {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 13, 9);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().expect("memory is writable");
        writer.write_image_data(&pixels(13, 9, channels)).expect("memory is writable");
        drop(writer);
        bytes
    };
    kinds.into_iter().map(encode).collect()
}

pub(crate) fn jpeg() -> Vec<Vec<u8>> {
    use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
    let mut seeds = Vec::new();
    for progressive in [false, true] {
        for (color, channels) in [(ColorType::Rgb, 3), (ColorType::Luma, 1), (ColorType::Cmyk, 4)] {
            let mut bytes = Vec::new();
            let mut encoder = Encoder::new(&mut bytes, 60);
            encoder.set_progressive(progressive);
            encoder.set_restart_interval(if progressive { 0 } else { 2 });
            encoder.set_sampling_factor(SamplingFactor::F_2_2);
            encoder.encode(&pixels(19, 17, channels), 19, 17, color).expect("memory is writable");
            seeds.push(bytes);
        }
    }
    seeds
}

pub(crate) fn recordio() -> Vec<Vec<u8>> {
    let mut writer = data::RecordWriter::new(Vec::new());
    // The magic number in a record splits it into parts.
    let records: [&[u8]; 3] = [b"one", &[0x0a, 0x23, 0xd7, 0xce, 1, 2, 3, 4], &[0; 40]];
    for record in records {
        writer.write(record).expect("memory is writable");
    }
    vec![writer.into_inner()]
}

/// An index, then its records, as one input of two files.
pub(crate) fn index() -> Vec<Vec<u8>> {
    let with = |text: &str| {
        let mut seed = (text.len() as u16).to_le_bytes().to_vec();
        seed.extend(text.as_bytes());
        seed.extend(recordio().concat());
        seed
    };
    ["0\t0\n1\t12\n2\t40\n", "7\t40\n3\t12\n", "0\t0\r\n"].map(with).to_vec()
}

pub(crate) fn csv() -> Vec<Vec<u8>> {
    [&b"a,b,label\n1,2,0\n3.5,-4e3,1\n"[..], b"1,2\n3,4\n", b"\"x\",\"y\"\r\n1,2\r\n"].map(<[u8]>::to_vec).to_vec()
}

/// Images, then labels behind them, as one input of two files.
pub(crate) fn idx() -> Vec<Vec<u8>> {
    let images = [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8];
    let labels = [0, 0, 8, 1, 0, 0, 0, 2, 3, 4];
    let mut seed = vec![images.len() as u8];
    seed.extend(images);
    seed.extend(labels);
    vec![seed]
}

/// Plans in the encoding of an executable.
pub(crate) fn plans() -> Vec<Vec<u8>> {
    let small = |case: &cases::Case| case.graph.values().values().all(|value| value.ty.shape.elements() < 200);
    let plan = |case: cases::Case| {
        let compiled = crate::models::compile(case.graph)?;
        postcard::to_allocvec([compiled.plan].as_slice()).ok()
    };
    cases::all().into_iter().filter(small).step_by(7).take(20).filter_map(plan).collect()
}

/// Whole files of an image.
pub(crate) fn images() -> Vec<Vec<u8>> {
    let case = cases::all().into_iter().find(|case| case.graph.parameters() != 0).expect("there are convolutions");
    let Some(compiled) = crate::models::compile(case.graph) else { return Vec::new() };
    let mut file = Vec::new();
    let _ = plan::image::write(&mut file, b"runner", &[compiled.plan], compiled.constants);
    vec![file]
}

/// The name of the file of weights of executables with separate ones.
pub(crate) const WEIGHTS: &str = "weights";

/// Executables, one with separate weights; each with a file of weights behind it.
pub(crate) fn executables() -> Vec<Vec<u8>> {
    let convolutions =
        cases::all().into_iter().filter(|case| case.graph.parameters() != 0 && case.graph.states().is_empty());
    let small = |case: &cases::Case| case.graph.values().values().all(|value| value.ty.shape.elements() < 2000);
    let mut seeds = Vec::new();
    for case in convolutions.filter(small).step_by(5).take(8) {
        let graph = crate::models::with_stored_weights(&case);
        let tensors = crate::models::stored(&graph);
        let Some(compiled) = crate::models::compile(graph) else { continue };
        let plans = [plan::Plan { weights_name: WEIGHTS.into(), ..compiled.plan }];
        let mut together = Vec::new();
        let _ = plan::image::write(&mut together, b"runner", &plans, compiled.constants.clone());
        let mut separate = Vec::new();
        let _ = plan::image::write_separate(&mut separate, b"runner", &plans, compiled.constants);
        for image in [together, separate] {
            let mut seed = (image.len() as u32).to_le_bytes().to_vec();
            seed.extend(image);
            seed.extend(weights::write(TensorForm::Safetensors, &tensors).unwrap_or_default());
            seeds.push(seed);
        }
    }
    seeds
}

pub(crate) fn devices() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../targets/cuda-sm_90-h200.json").to_vec()]
}

pub(crate) fn profiles() -> Vec<Vec<u8>> {
    let texts = [
        "\"Attribute Name\",\"Requested Size\",\"Device\",\"Actual Size\",\"Reuse?\"\n\"arg:conv0_weight\",\"1024\",\"0\",\"4096\",\"0\"\n",
        "conv0,1.5\nrelu,0.25\n",
        "start\n[mem] Allocate 4096 bytes GPU memory (weights).\n[mem] Allocate 3 MB GPU memory (forward_features:conv1).\n[mem] Release GPU memory\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Memory reports of plans as JSON.
pub(crate) fn reports() -> Vec<Vec<u8>> {
    let plan = |seed: Vec<u8>| postcard::from_bytes::<Vec<plan::Plan>>(&seed).ok()?.pop();
    plans()
        .into_iter()
        .filter_map(plan)
        .step_by(5)
        .map(|plan| report::Report::new(&plan).to_json().into_bytes())
        .collect()
}

/// Files of groups.
pub(crate) fn groups() -> Vec<Vec<u8>> {
    let texts = [
        "[layer]\nRNN = [\"rnn\", \"lstm\"]\nOutput = [\"fc\"]\n[data_structure]\n\"Feature Maps\" = [\"data_entry:\"]\n",
        "data_structure = { Weights = [\"arg:\"], Workspace = [\"workspace\"] }\n",
        "",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// The places of three tensors in two segments.
fn manifest() -> share::manifest::Manifest {
    use share::manifest::{Manifest, TensorPlace};
    let places = [(0, 0, 5000), (1, 8192, 100), (0, 5120, 300)];
    let (segments, at, length) = Manifest::segments(&places, 0);
    let tensor = |ix: usize| TensorPlace {
        offset: 256 * ix as u64,
        size: places[ix].2,
        at: at[ix],
        digest: [ix as u8; 32],
        label: ["f32[2] a", "", "\u{e9}"][ix].to_string(),
    };
    Manifest { length, segments, tensors: (0..3).map(tensor).collect() }
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    use share::wire::{Ask, Code, Reply};
    vec![
        Ask::Close { lease: 3 }.encode(1),
        Ask::Unpin { model: "resnet".into() }.encode(2),
        Reply::Done.encode(3),
        Reply::Text { text: "{}".into(), next: 7 }.encode(4),
        Reply::Refused { code: Code::NotFound, message: "no".into() }.encode(5),
        share::manifest::Manifest::default().encode(),
        manifest().encode(),
    ]
}

/// Constants of every packing, with the extents of their tensors.
pub(crate) fn recipes() -> Vec<Vec<u8>> {
    let encoded = |packing: Vec<u8>, extents: Vec<u8>| {
        let recipe = plan::ConstantRecipe { tensor: types::Derivation::stored("w"), packing };
        postcard::to_allocvec(&(recipe, extents)).expect("it is plain data")
    };
    let mut seeds = vec![encoded(Vec::new(), vec![3, 4])];
    // Some of each kind: the first byte is the variant.
    let mut counts = BTreeMap::<u8, usize>::new();
    for (packing, shape) in crate::models::packings() {
        let Ok(extents) = shape.iter().map(|&extent| u8::try_from(extent)).collect() else { continue };
        let count = counts.entry(packing[0]).or_default();
        *count += 1;
        if *count <= 6 && shape.rank() <= 4 {
            seeds.push(encoded(packing, extents));
        }
    }
    seeds
}

/// Checkpoints of a run with and without states.
pub(crate) fn checkpoints() -> Vec<Vec<u8>> {
    let position = train::checkpoint::Position { step: 7, epoch: 1, batch: 2, ..Default::default() };
    let settings = BTreeMap::from([("lr".to_string(), "0.1".to_string())]);
    let full = train::Checkpoint { position, settings, states: tensors() };
    [full, train::Checkpoint::default()].map(|checkpoint| checkpoint.to_bytes()).to_vec()
}

pub(crate) fn experiments() -> Vec<Vec<u8>> {
    let texts = [
        "[parameters]\n\"exp.model\" = \"lenet\"\n[variables]\n\"exp.replica_batch\" = [1, 2, 4]\n",
        "{\"parameters\": {\"exp.model\": \"a${exp.replica_batch}\", \"exp.replica_batch\": 2}, \"variables\": {\"user.x\": [1, 2]}}",
        "[parameters.exp]\nmodel = \"lenet\"\n[[extensions]]\n[extensions.condition]\n\"exp.model\" = \"lenet\"\n[extensions.parameters]\n\"exp.replica_batch\" = 3\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(crate) fn tables() -> Vec<Vec<u8>> {
    let texts =
        ["id,lower,upper,size,alignment\na,0,3,64,8\nb,1,2,32,1\n", "id,start,end,size,gaps\nx,0,9,4,3-5@0:2\n"];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Text forms of graphs.
pub(crate) fn texts() -> Vec<Vec<u8>> {
    let cases = cases::all().into_iter().filter(|case| case.graph.parameters() == 0).step_by(9).take(30);
    cases.map(|case| ir::text::print(&case.graph).into_bytes()).collect()
}

/// Choices of the generator of models.
pub(crate) fn choices() -> Vec<Vec<u8>> {
    let mut random = Random::new(11);
    (0..32).map(|_| (0..48).map(|_| random.bits() as u8).collect()).collect()
}
