//! Handmade models: one behavior each.

use std::path::{Path, PathBuf};

use ir::{Graph, text};
use prestow_load::UnsupportedNode;
use prestow_load::onnx::{self, LoadError, Options};
use types::{DType, Shape, Tensor};

use onnx_suite::model::{Attr, Dim, Message, Model, info, node, tensor};

fn load(model: &Model) -> Result<Graph, LoadError> {
    onnx::load(&model.write(), None, &Options::default())
}

/// Loads, verifies and evaluates a model.
#[track_caller]
pub(crate) fn run(model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
    let graph = load(model).unwrap_or_else(|error| panic!("{error}"));
    ir::verify(&graph).unwrap_or_else(|errors| panic!("{errors:?}\n{}", text::print(&graph)));
    ir::evaluate(&graph, inputs).expect("the inputs fit")
}

#[track_caller]
pub(crate) fn check(model: &Model, inputs: &[Tensor], want: &[f64]) {
    let got = run(model, inputs);
    assert_eq!(got[0].to_f64(), want);
}

/// The error message of a model that is refused.
#[track_caller]
pub(crate) fn refusal(model: &Model) -> String {
    load(model).expect_err("the model is refused").to_string()
}

pub(crate) fn x(dims: &[i64]) -> Message {
    info("x", DType::F32, &dims.iter().map(|&extent| Dim::Is(extent)).collect::<Vec<_>>())
}

pub(crate) fn floats(shape: &[usize], items: &[f32]) -> Tensor {
    Tensor::new(shape.into(), items.to_vec()).expect("the items fill the shape")
}

pub(crate) fn ints(items: &[i64]) -> Tensor {
    Tensor::vector(items.to_vec())
}

/// A small network with shape arithmetic.
pub(crate) fn small() -> Model {
    let weight = Tensor::from_fn(Shape::from([2, 1, 3, 3]), |at| at as f32 / 18.0);
    let dense = Tensor::from_fn(Shape::from([3, 8]), |at| at as f32 / 24.0);
    let nodes = vec![
        node("Conv", &["x", "weight", "bias"], &["a"], &[("pads", Attr::Ints(vec![1; 4]))]),
        node("BatchNormalization", &["a", "scale", "bias", "bias", "scale"], &["b"], &[("epsilon", Attr::Float(1e-3))]),
        node("Relu", &["b"], &["c"], &[]),
        node(
            "MaxPool",
            &["c"],
            &["d"],
            &[("kernel_shape", Attr::Ints(vec![2, 2])), ("strides", Attr::Ints(vec![2, 2]))],
        ),
        node("Constant", &[], &["minus"], &[("value", Attr::Tensor(ints(&[-1])))]),
        node("Shape", &["d"], &["e"], &[]),
        node("Gather", &["e", "zero"], &["f"], &[("axis", Attr::Int(0))]),
        node("Concat", &["f", "minus"], &["g"], &[("axis", Attr::Int(0))]),
        node("Reshape", &["d", "g"], &["h"], &[]),
        node("Gemm", &["h", "dense", "offset"], &["i"], &[("transB", Attr::Int(1)), ("alpha", Attr::Float(0.5))]),
        node("Softmax", &["i"], &["y"], &[("axis", Attr::Int(1))]),
    ];
    Model::new(13, vec![x(&[1, 1, 4, 4])], nodes, "y")
        .with("weight", &weight)
        .with("bias", &floats(&[2], &[0.5, -0.5]))
        .with("scale", &floats(&[2], &[1.0, 2.0]))
        .with("zero", &ints(&[0]))
        .with("dense", &dense)
        .with("offset", &floats(&[3], &[0.0, 1.0, 2.0]))
}

/// The corpus of the fuzzer: models that load.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let pad = Model::new(
        13,
        vec![info("x", DType::F32, &[Dim::Named("N"), Dim::Is(3)])],
        vec![node("Pad", &["x", "pads"], &["y"], &[("mode", Attr::Text("reflect"))])],
        "y",
    )
    .with("pads", &ints(&[0, 1, 0, 1]));
    vec![("small.onnx", small().write()), ("pad.onnx", pad.write()), ("branch.onnx", branch(true).write())]
}

/// An `If` with a constant condition.
fn branch(condition: bool) -> Model {
    let arm = |op: &str| Attr::Graph(Model::new(13, vec![], vec![node(op, &["x"], &["z"], &[])], "z").graph());
    let nodes = vec![node("If", &["c"], &["y"], &[("then_branch", arm("Neg")), ("else_branch", arm("Abs"))])];
    Model::new(13, vec![x(&[2])], nodes, "y").with("c", &Tensor::scalar(condition))
}

#[test]
fn corpus_matches_the_writer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/corpus");
    for (name, bytes) in seeds() {
        if crate::environment("PRESTOW_BLESS").is_some() {
            std::fs::write(folder.join(name), &bytes).expect("the corpus can be written");
        }
        assert_eq!(std::fs::read(folder.join(name)).ok(), Some(bytes), "{name}: PRESTOW_BLESS=1 writes it");
    }
}

#[test]
fn shape_arithmetic_is_folded() {
    let graph = load(&small()).unwrap();
    let ops: Vec<&str> = graph.nodes().values().map(|node| node.op.name()).collect();
    assert_eq!(ops, ["conv", "batch_norm", "unary", "pool", "reshape", "mat_mul", "softmax"]);
    assert_eq!(graph.parameters(), 18 + 2 + 2 + 24 + 3);
    let scopes: Vec<&str> = graph.nodes().values().map(|node| node.scope.as_str()).collect();
    assert_eq!(scopes[0], "Conv_0");
    assert_eq!(graph.value(graph.outputs()[0].value).name, "y");
    let gemm = graph.nodes().values().nth(5).unwrap();
    assert_eq!(gemm.inputs.len(), 3, "the offset is added by the product itself");
}

#[test]
fn initializers_listed_as_inputs_are_constants() {
    let mut model = Model::new(6, vec![x(&[2]), info("w", DType::F32, &[Dim::Is(2)])], vec![], "y")
        .with("w", &floats(&[2], &[10.0, 20.0]));
    model.ir_version = 3;
    model.nodes = vec![node("Add", &["x", "w"], &["y"], &[])];
    let graph = load(&model).unwrap();
    assert_eq!(graph.inputs().len(), 1);
    check(&model, &[floats(&[2], &[1.0, 2.0])], &[11.0, 22.0]);
}

#[test]
fn external_data_comes_from_directory_or_memory() {
    let directory = scratch("external");
    std::fs::create_dir_all(directory.join("sub")).unwrap();
    let bytes = floats(&[3], &[0.0, 5.0, 7.0]).to_le_bytes();
    std::fs::write(directory.join("sub/w.bin"), &bytes).unwrap();
    let at = |location: &str, offset: &str, length: &str| {
        let entry = |key: &str, value: &str| Message::new().text(1, key).text(2, value);
        let weight = Message::new()
            .int(1, 2)
            .int(2, 1)
            .text(8, "w")
            .message(13, &entry("location", location))
            .message(13, &entry("offset", offset))
            .message(13, &entry("length", length))
            .int(14, 1);
        let mut model = Model::new(13, vec![x(&[2])], vec![node("Add", &["x", "w"], &["y"], &[])], "y");
        model.initializers.push(weight);
        model.write()
    };
    let load = |bytes: &[u8], directory: Option<&Path>| {
        let directory = directory.map(onnx::Directory);
        let external = directory.as_ref().map(|directory| directory as &dyn onnx::ExternalData);
        onnx::load(bytes, external, &Options::default())
    };
    let graph = load(&at("sub/w.bin", "4", "8"), Some(&directory)).unwrap();
    assert_eq!(ir::evaluate(&graph, &[floats(&[2], &[1.0, 1.0])]).unwrap()[0].to_f64(), [6.0, 8.0]);

    let message = |bytes: &[u8], directory: Option<&Path>| load(bytes, directory).unwrap_err().to_string();
    let leaves = "external data of tensor `w`: `../secret`: the path leaves the directory of the model";
    assert_eq!(message(&at("../secret", "0", "8"), Some(&directory)), leaves);
    assert!(message(&at("/etc/passwd", "0", "8"), Some(&directory)).contains("leaves the directory of the model"));
    assert!(
        message(&at("sub/w.bin", "8", "8"), Some(&directory))
            .contains("8 bytes at offset 8 are required, but the file has 12 bytes")
    );
    // One byte too many, and an end beyond 64 bits.
    for offset in ["5", "18446744073709551608"] {
        let want = format!("8 bytes at offset {offset} are required, but the file has 12 bytes");
        assert!(message(&at("sub/w.bin", offset, "8"), Some(&directory)).contains(&want), "{offset}");
    }
    assert!(
        message(&at("sub/w.bin", "0", "4"), Some(&directory))
            .contains("`length` must be the size of the tensor, 8 bytes, got 4")
    );
    assert!(
        message(&at("sub/w.bin", "0", "12"), Some(&directory))
            .contains("`length` must be the size of the tensor, 8 bytes, got 12")
    );
    assert!(message(&at("sub/w.bin", "-1", "8"), Some(&directory)).contains("`offset` must be a number, got `-1`"));
    assert!(message(&at("nothing", "0", "8"), Some(&directory)).contains("`nothing`"));
    assert!(message(&at("sub/w.bin", "0", "8"), None).contains("loaded without external data"));
    #[cfg(unix)]
    {
        let _ = std::fs::remove_file(directory.join("link"));
        std::os::unix::fs::symlink("/etc/passwd", directory.join("link")).unwrap();
        assert!(message(&at("link", "0", "8"), Some(&directory)).contains("leaves the directory of the model"));
    }
    std::fs::remove_dir_all(&directory).unwrap();

    let files = |bytes: Vec<u8>| std::collections::BTreeMap::from([("sub/w.bin".to_string(), bytes)]);
    let whole = files([0.0f32, 5.0, 7.0].iter().flat_map(|number| number.to_le_bytes()).collect());
    let graph = onnx::load(&at("sub/w.bin", "4", "8"), Some(&whole), &Options::default()).unwrap();
    assert_eq!(ir::evaluate(&graph, &[floats(&[2], &[1.0, 1.0])]).unwrap()[0].to_f64(), [6.0, 8.0]);
    let error = onnx::load(&at("sub/w.bin", "4", "8"), Some(&files(vec![0; 8])), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("8 bytes at offset 4 are required, but the file has 8 bytes"), "{error}");
    assert!(onnx::load(&at("other", "4", "8"), Some(&whole), &Options::default()).is_err());
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("prestow-load-{name}-{}", std::process::id()))
}

#[test]
fn dynamic_dimensions_are_bound_by_shapes() {
    let dims = [Dim::Named("batch"), Dim::Is(3), Dim::Open, Dim::Is(-1)];
    let model = Model::new(13, vec![info("x", DType::F32, &dims)], vec![node("Relu", &["x"], &["y"], &[])], "y");
    let load = |options: Options| onnx::load(&model.write(), None, &options);
    let shapes = |shape: &[usize]| [("x".to_string(), Shape::from(shape))].into_iter().collect();
    let hint = "choose a shape such as `Nx3xHxW`";
    assert_eq!(
        load(Options::default()).unwrap_err().to_string(),
        format!(
            "input `x`: dimension 0 (`batch`) is dynamic; {hint}\n\
             input `x`: dimension 2 is dynamic; {hint}\n\
             input `x`: dimension 3 is dynamic; {hint}"
        )
    );
    let error = load(Options { batch: Some(2), ..Options::default() }).unwrap_err();
    assert!(matches!(error, LoadError::UnboundDimension(open) if open.len() == 2));
    let graph = load(Options { batch: Some(9), shapes: shapes(&[2, 3, 4, 5]), ..Options::default() }).unwrap();
    assert_eq!(graph.ty(graph.inputs()[0]).shape, Shape::from([2, 3, 4, 5]));
    assert_eq!(
        load(Options { shapes: shapes(&[2, 4, 4, 5]), ..Options::default() }).unwrap_err().to_string(),
        "input `x`: shape must match [N,3,H,W] of the model, got [2,4,4,5]; only dynamic dimensions can be chosen"
    );
    for other in [&[2, 3, 4][..], &[2, 3, 4, 5, 6]] {
        let error = load(Options { shapes: shapes(other), ..Options::default() }).unwrap_err();
        assert!(matches!(error, LoadError::ShapeConflict { .. }), "{other:?}: {error}");
    }
    assert_eq!(
        load(Options { shapes: [("z".to_string(), Shape::from([1]))].into_iter().collect(), ..Options::default() })
            .unwrap_err()
            .to_string(),
        "a shape is given for `z`, which is not an input of the model; its inputs are `x`"
    );
    let fix = |name: &str| {
        let fixed = [(name.to_string(), 1.5)].into();
        load(Options { shapes: shapes(&[2, 3, 4, 5]), fixed, ..Options::default() }).unwrap_err().to_string()
    };
    assert_eq!(fix("z"), "a value is given for `z`, which is not an input of the model; its inputs are `x`");
    assert_eq!(fix("x"), "input `x` cannot have the constant value 1.5: it must have one element, got shape [2,3,4,5]");
}

#[test]
fn fixed_value_must_be_a_number_of_its_dtype() {
    let model = Model::new(
        13,
        vec![x(&[3]), info("n", DType::I64, &[])],
        vec![node("Cast", &["n"], &["f"], &[("to", Attr::Int(1))]), node("Mul", &["x", "f"], &["y"], &[])],
        "y",
    );
    let fixed = |value: f64| {
        let options = Options { fixed: [("n".to_string(), value)].into(), ..Options::default() };
        onnx::load(&model.write(), None, &options).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(fixed(3.0), Ok(()));
    let refused = "input `n` cannot have the constant value 0.5: its dtype i64 cannot represent the value";
    assert_eq!(fixed(0.5), Err(refused.into()));
}

#[test]
fn batch_binds_the_first_dimension() {
    let dims = [Dim::Open, Dim::Is(2)];
    let model = Model::new(13, vec![info("x", DType::F32, &dims)], vec![node("Relu", &["x"], &["y"], &[])], "y");
    assert_eq!(refusal(&model), "input `x`: dimension 0 is dynamic; choose the batch or a shape such as `Nx2`");
    let batch = |batch: usize, model: &Model| {
        onnx::load(&model.write(), None, &Options { batch: Some(batch), ..Options::default() })
    };
    let graph = batch(8, &model).unwrap();
    assert_eq!(graph.ty(graph.inputs()[0]).shape, Shape::from([8, 2]));
    let fixed = Model::new(13, vec![x(&[1, 2])], vec![node("Relu", &["x"], &["y"], &[])], "y");
    assert!(batch(1, &fixed).is_ok());
    assert_eq!(
        batch(8, &fixed).unwrap_err().to_string(),
        "input `x`: dimension 0 is 1 in the model, so the batch must be 1, got 8"
    );
}

#[test]
fn all_unsupported_nodes_are_listed_at_once() {
    let nodes = vec![
        node("Bernoulli", &["x"], &["a"], &[]).text(3, "encoder/align"),
        node("Relu", &["a"], &["b"], &[]),
        node("StringSplit", &["b"], &["c"], &[]),
        node("Gelu", &["x"], &["d"], &[("approximate", Attr::Text("fast"))]),
        node("Fused", &["x"], &["e"], &[]).text(7, "com.example"),
        node("Relu", &["x"], &["f"], &[("slope", Attr::Float(0.5))]),
        node("Relu", &["x"], &["y"], &[]),
    ];
    let mut model = Model::new(20, vec![x(&[2])], nodes, "y");
    assert_eq!(
        refusal(&model),
        "node `encoder/align` (operator `Bernoulli`, opset 20): the operator is not supported\n\
         node `StringSplit_2` (operator `StringSplit`, opset 20): the operator is not supported\n\
         node `Gelu_3` (operator `Gelu`, opset 20): attribute `approximate` must be `none` or `tanh`, got `fast`\n\
         node `Fused_4` (operator `com.example.Fused`): operators of domain `com.example` are not supported\n\
         node `Relu_5` (operator `Relu`, opset 20): attribute `slope` is not supported"
    );
    // Unsupported operators are reported before dynamic dimensions.
    model.inputs = vec![info("x", DType::F32, &[Dim::Open])];
    assert!(matches!(load(&model), Err(LoadError::Unsupported(nodes)) if nodes.len() == 3));
}

/// Two steps of a network with one unit, `h' = relu(x w + h r + 1)`, with `w` 2, `r` 3.
fn one_unit(attributes: &[(&str, Attr)]) -> Model {
    let inputs = vec![x(&[2, 1, 1]), info("lengths", DType::I32, &[Dim::Is(1)])];
    let relu = ("activations", Attr::Texts(vec!["Relu"]));
    let attributes: Vec<(&str, Attr)> = [relu].into_iter().chain(attributes.iter().cloned()).collect();
    Model::new(14, inputs, vec![node("RNN", &["x", "w", "r", "b"], &["y", "h"], &attributes)], "y")
        .with("w", &floats(&[1, 1, 1], &[2.0]))
        .with("r", &floats(&[1, 1, 1], &[3.0]))
        .with("b", &floats(&[1, 2], &[0.25, 0.75]))
}

#[test]
fn recurrent_network_becomes_one_product_and_one_op() {
    let input = [floats(&[2, 1, 1], &[1.0, 2.0]), Tensor::vector(vec![2i32])];
    check(&one_unit(&[]), &input, &[3.0, 14.0]);
    check(&one_unit(&[("direction", Attr::Text("reverse")), ("hidden_size", Attr::Int(1))]), &input, &[18.0, 5.0]);
    let ops: Vec<&str> = load(&one_unit(&[]))
        .unwrap()
        .nodes()
        .values()
        .map(|node| node.op.name())
        .filter(|name| *name != "reshape")
        .collect();
    assert_eq!(ops, ["mat_mul", "recurrent"]);
    // Batch-major layout with a batch of one.
    let mut model = one_unit(&[("layout", Attr::Int(1))]);
    model.inputs[0] = x(&[1, 2, 1]);
    model.outputs = vec!["y", "h"];
    let got = run(&model, &[floats(&[1, 2, 1], &[1.0, 2.0]), Tensor::vector(vec![2i32])]);
    assert_eq!((got[0].shape().to_string(), got[0].to_f64()), ("[1,2,1,1]".into(), vec![3.0, 14.0]));
    assert_eq!((got[1].shape().to_string(), got[1].to_f64()), ("[1,1,1]".into(), vec![14.0]));
}

#[test]
fn unsupported_recurrent_attributes_are_refused() {
    let of = |attributes: &[(&str, Attr)]| refusal(&one_unit(attributes));
    let starts = "node `RNN_0` (operator `RNN`, opset 14): ";
    assert_eq!(of(&[("clip", Attr::Float(1.0))]), format!("{starts}`clip` is not supported"));
    assert_eq!(
        of(&[("direction", Attr::Text("up"))]),
        format!("{starts}attribute `direction` must be `forward`, `reverse` or `bidirectional`, got `up`")
    );
    let units = "`hidden_size` must be 1 as in the recurrent weights, got 2";
    assert_eq!(of(&[("hidden_size", Attr::Int(2))]), format!("{starts}{units}"));
    assert_eq!(
        of(&[("activation_alpha", Attr::Float(1.0))]),
        format!("{starts}attribute `activation_alpha` is not supported")
    );
    let both = of(&[("direction", Attr::Text("bidirectional"))]);
    assert_eq!(both, format!("{starts}weights must have shape [2,1,1], got [1,1,1]"));

    let with = |names: Vec<&'static str>, operands: &[&str]| {
        let inputs = vec![x(&[2, 1, 1]), info("lengths", DType::I32, &[Dim::Is(1)])];
        let activations = [("activations", Attr::Texts(names))];
        Model::new(14, inputs, vec![node("RNN", operands, &["y"], &activations)], "y")
            .with("w", &floats(&[1, 1, 1], &[2.0]))
            .with("short", &Tensor::vector(vec![1i32]))
            .with("full", &Tensor::vector(vec![2i32]))
    };
    let three = ["x", "w", "w"];
    assert_eq!(refusal(&with(vec!["Affine"], &three)), format!("{starts}activation `Affine` is not supported"));
    let two = "`activations` must be 1 functions, equal for all directions, got [\"Tanh\", \"Relu\"]";
    assert_eq!(refusal(&with(vec!["Tanh", "Relu"], &three)), format!("{starts}{two}"));
    let lengths = |name: &'static str| with(vec!["tanh"], &["x", "w", "w", "", name]);
    let short = "`sequence_lens` must all be 2, got [1]; pad the outputs instead";
    assert_eq!(refusal(&lengths("short")), format!("{starts}{short}"));
    assert!(refusal(&lengths("lengths")).contains("`sequence_lens` must be constant"));
    assert!(load(&lengths("full")).is_ok());
}

#[test]
fn constant_operand_that_depends_on_an_input_is_refused() {
    let inputs = vec![x(&[4]), info("s", DType::I64, &[Dim::Is(2)])];
    let model = Model::new(13, inputs, vec![node("Reshape", &["x", "s"], &["y"], &[])], "y");
    let Err(LoadError::Unsupported(nodes)) = load(&model) else { panic!("the shape is not known") };
    let reason = "`shape` must be constant, but depends on a run-time input; export the model with it constant";
    let (node, operator) = ("Reshape_0".to_string(), "Reshape".to_string());
    let want = UnsupportedNode { node, operator, opset: Some(13), reason: reason.to_string() };
    assert_eq!(nodes, [want]);
}

#[test]
fn softmax_flattens_before_opset_13() {
    let at = |opset: i64| {
        Model::new(opset, vec![x(&[1, 2, 2])], vec![node("Softmax", &["x"], &["y"], &[("axis", Attr::Int(1))])], "y")
    };
    check(&at(12), &[floats(&[1, 2, 2], &[0.0; 4])], &[0.25; 4]);
    check(&at(13), &[floats(&[1, 2, 2], &[0.0; 4])], &[0.5; 4]);
}

#[test]
fn attributes_of_old_opsets_are_operands_of_new_ones() {
    let x4 = || vec![x(&[4])];
    let input = floats(&[4], &[1.0, 2.0, 3.0, 4.0]);
    let starts = || vec![("starts", Attr::Ints(vec![1])), ("ends", Attr::Ints(vec![-1]))];
    check(
        &Model::new(9, x4(), vec![node("Slice", &["x"], &["y"], &starts())], "y"),
        std::slice::from_ref(&input),
        &[2.0, 3.0],
    );
    let model = Model::new(10, x4(), vec![node("Slice", &["x", "s", "e", "", "t"], &["y"], &[])], "y")
        .with("s", &ints(&[-1]))
        .with("e", &ints(&[i64::MIN]))
        .with("t", &ints(&[-2]));
    check(&model, std::slice::from_ref(&input), &[4.0, 2.0]);

    let limits = [("min", Attr::Float(2.0)), ("max", Attr::Float(3.0))];
    let clip = Model::new(10, x4(), vec![node("Clip", &["x"], &["y"], &limits)], "y");
    check(&clip, std::slice::from_ref(&input), &[2.0, 2.0, 3.0, 3.0]);
    let clip = Model::new(11, x4(), vec![node("Clip", &["x", "", "max"], &["y"], &[])], "y")
        .with("max", &Tensor::scalar(3.0f32));
    check(&clip, std::slice::from_ref(&input), &[1.0, 2.0, 3.0, 3.0]);
    let old = Model::new(11, x4(), vec![node("Clip", &["x"], &["y"], &limits)], "y");
    assert_eq!(refusal(&old), "node `Clip_0` (operator `Clip`, opset 11): attribute `min` is not supported");

    let axes = [("axes", Attr::Ints(vec![0])), ("keepdims", Attr::Int(0))];
    check(
        &Model::new(12, x4(), vec![node("ReduceSum", &["x"], &["y"], &axes)], "y"),
        std::slice::from_ref(&input),
        &[10.0],
    );
    let sum = Model::new(13, x4(), vec![node("ReduceSum", &["x", "a"], &["y"], &[])], "y").with("a", &ints(&[0]));
    check(&sum, std::slice::from_ref(&input), &[10.0]);
    let mean = Model::new(17, x4(), vec![node("ReduceMean", &["x"], &["y"], &axes)], "y");
    check(&mean, &[input], &[2.5]);
}

#[test]
fn operands_broadcast_from_an_axis_before_opset_7() {
    let attributes = [("broadcast", Attr::Int(1)), ("axis", Attr::Int(0))];
    let model = Model::new(6, vec![x(&[2, 2])], vec![node("Mul", &["x", "w"], &["y"], &attributes)], "y")
        .with("w", &floats(&[2], &[1.0, 10.0]));
    check(&model, &[floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0])], &[1.0, 2.0, 30.0, 40.0]);
    let model = Model::new(6, vec![x(&[2, 2])], vec![node("Mul", &["x", "w"], &["y"], &[])], "y")
        .with("w", &floats(&[2], &[1.0, 10.0]));
    assert!(refusal(&model).contains("must have equal shapes without attribute `broadcast`"));
}

#[test]
fn auto_pad_determines_the_padding() {
    let pool = |rule: &'static str| {
        let attributes =
            [("kernel_shape", Attr::Ints(vec![2])), ("strides", Attr::Ints(vec![1])), ("auto_pad", Attr::Text(rule))];
        Model::new(13, vec![x(&[1, 1, 3])], vec![node("MaxPool", &["x"], &["y"], &attributes)], "y")
    };
    let input = floats(&[1, 1, 3], &[3.0, 2.0, 1.0]);
    check(&pool("SAME_UPPER"), std::slice::from_ref(&input), &[3.0, 2.0, 1.0]);
    check(&pool("SAME_LOWER"), std::slice::from_ref(&input), &[3.0, 3.0, 2.0]);
    check(&pool("VALID"), &[input], &[3.0, 2.0]);
    assert!(refusal(&pool("SAME")).contains("attribute `auto_pad`: `SAME` is not supported"));
}

#[test]
fn gemm_folds_factors_and_bias() {
    let attributes =
        [("alpha", Attr::Float(2.0)), ("beta", Attr::Float(3.0)), ("transA", Attr::Int(1)), ("transB", Attr::Int(1))];
    let model = Model::new(13, vec![x(&[2, 1])], vec![node("Gemm", &["x", "b", "c"], &["y"], &attributes)], "y")
        .with("b", &floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]))
        .with("c", &Tensor::scalar(1.0f32));
    check(&model, &[floats(&[2, 1], &[1.0, 10.0])], &[45.0, 89.0]);
    let graph = load(&model).unwrap();
    let ops: Vec<&str> = graph.nodes().values().map(|node| node.op.name()).collect();
    assert_eq!(ops, ["transpose", "mat_mul"]);
}

#[test]
fn vectors_are_multiplied_as_matrices() {
    let model = Model::new(13, vec![x(&[2])], vec![node("MatMul", &["x", "b"], &["y"], &[])], "y")
        .with("b", &floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    assert_eq!(run(&model, &[floats(&[2], &[1.0, 10.0])])[0], floats(&[2], &[31.0, 42.0]));
    let model = Model::new(13, vec![x(&[2])], vec![node("MatMul", &["x", "x"], &["y"], &[])], "y");
    assert_eq!(run(&model, &[floats(&[2], &[3.0, 4.0])])[0], Tensor::scalar(25.0f32));
}

#[test]
fn constant_condition_selects_its_branch() {
    check(&branch(true), &[floats(&[2], &[1.0, -2.0])], &[-1.0, 2.0]);
    check(&branch(false), &[floats(&[2], &[1.0, -2.0])], &[1.0, 2.0]);
}

#[test]
fn filled_tensor_can_be_a_weight() {
    let nodes = vec![
        node("ConstantOfShape", &["s"], &["w"], &[("value", Attr::Tensor(floats(&[1], &[0.5])))]),
        node("MatMul", &["x", "w"], &["y"], &[]),
    ];
    let model = Model::new(9, vec![x(&[1, 64])], nodes, "y").with("s", &ints(&[64, 128]));
    let graph = load(&model).unwrap();
    assert_eq!(graph.parameters(), 64 * 128);
    assert!(graph.values().values().any(|value| value.name == "w"));
    let nodes = vec![node("ConstantOfShape", &["s"], &["y"], &[])];
    let model = Model::new(9, vec![], nodes, "y").with("s", &ints(&[1 << 20, 1 << 19]));
    assert!(refusal(&model).contains("2048.00 GiB needed"));
}

/// Elements of constants are released behind their last reader, which may know them by another name.
#[test]
fn constant_with_several_names_can_be_read_by_all_of_them() {
    let matrix = floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let nodes = vec![
        node("Identity", &["w"], &["v"], &[]),
        node("SequenceConstruct", &["w", "w"], &["list"], &[]),
        node("MatMul", &["x", "w"], &["a"], &[]),
        node("Transpose", &["v"], &["t"], &[]),
        node("MatMul", &["a", "t"], &["b"], &[]),
        node("SequenceAt", &["list", "one"], &["u"], &[]),
        node("Transpose", &["u"], &["s"], &[]),
        node("MatMul", &["b", "s"], &["y"], &[]),
    ];
    let model = Model::new(13, vec![x(&[1, 2])], nodes, "y").with("w", &matrix).with("one", &Tensor::scalar(1i64));
    check(&model, &[floats(&[1, 2], &[1.0, 0.0])], &[27.0, 59.0]);
}

#[test]
fn malformed_models_have_specific_errors() {
    assert_eq!(onnx::load(b"", None, &Options::default()).unwrap_err(), LoadError::NotOnnx);
    assert_eq!(onnx::load(b"PK\x03\x04", None, &Options::default()).unwrap_err(), LoadError::NotOnnx);
    let relu = || vec![node("Relu", &["x"], &["y"], &[])];
    let twice = Model::new(13, vec![x(&[1])], [relu(), relu()].concat(), "y");
    assert_eq!(refusal(&twice), "names must be distinct, got `y` twice");
    let unknown = Model::new(13, vec![x(&[1])], vec![node("Relu", &["z"], &["y"], &[])], "y");
    assert_eq!(refusal(&unknown), "node `Relu_0` reads `z`, which is not defined before it");
    let unknown = Model::new(13, vec![x(&[1])], relu(), "z");
    assert_eq!(refusal(&unknown), "an output of the graph reads `z`, which is not defined before it");
    let newer = Model::new(99, vec![x(&[1])], relu(), "y");
    assert_eq!(refusal(&newer), "operator set must be 1 to 28, got 99; export the model with an older one");
    let short = Message::new().int(1, 3).int(2, 1).text(8, "w").bytes(9, &[0; 8]);
    let mut model = Model::new(13, vec![x(&[1])], relu(), "y");
    model.initializers.push(short);
    assert_eq!(refusal(&model), "tensor `w`: a tensor of f32[3] must have 12 bytes, got 8");
}

#[test]
fn tensors_are_read_from_every_field() {
    let read = |message: Message| onnx::tensor(&message.0).unwrap();
    for dtype in DType::ALL {
        let want = Tensor::vector(vec![0.0f32, 1.0, 2.0]).cast(dtype);
        assert_eq!(read(tensor("t", &want)), want);
    }
    let typed = |element: i64| Message::new().int(1, 2).int(2, element);
    assert_eq!(read(typed(1).float(4, 1.0).float(4, 2.0)), floats(&[2], &[1.0, 2.0]));
    assert_eq!(read(typed(1).bytes(4, &floats(&[2], &[1.0, 2.0]).to_le_bytes())), floats(&[2], &[1.0, 2.0]));
    assert_eq!(read(typed(7).int(7, -1).bytes(7, &[5])), ints(&[-1, 5]));
    assert_eq!(read(typed(3).int(5, -1).int(5, 127)), Tensor::vector(vec![-1i8, 127]));
    assert_eq!(read(typed(9).int(5, 1).int(5, 0)), Tensor::vector(vec![true, false]));
    assert_eq!(read(typed(13).int(11, -1).int(11, 0)), Tensor::vector(vec![u64::MAX, 0]));
    assert_eq!(read(typed(11).bytes(10, &Tensor::vector(vec![1.5f64, 2.5]).to_le_bytes())).to_f64(), [1.5, 2.5]);
    assert_eq!(read(typed(10).int(5, 0x3c00).int(5, 0xc000)).to_f64(), [1.0, -2.0]);
    let refused = |message: Message| onnx::tensor(&message.0).unwrap_err().to_string();
    assert_eq!(refused(typed(8).text(8, "s")), "tensor `s`: strings are not supported");
    assert!(refused(Message::new().int(1, 1 << 40).int(1, 2).int(2, 1)).contains("at most 2^40 elements"));
    assert!(refused(Message::new().int(1, 1 << 62).int(1, 0).int(2, 1)).contains("at most 2^40 elements"));
    assert!(refused(Message::new().int(1, -1).int(2, 1)).contains("must be >= 0"));
}
