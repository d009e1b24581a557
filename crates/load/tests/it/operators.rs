//! Forms of operators that the ONNX backend tests do not cover.

use prestow_load::onnx::{self, Options};
use types::{DType, Shape, Tensor};

use crate::models::{check, floats, ints, refusal, run, x};
use onnx_suite::model::{Attr, Dim, Message, Model, info, node};

/// A model that also imports another domain.
pub(crate) fn with_domain(model: &Model, domain: &str, version: i64) -> Vec<u8> {
    Message(model.write()).message(8, &Message::new().text(1, domain).int(2, version)).0
}

/// The result of a model with one node of `ai.onnx.ml`, or the error.
fn learned(node: Message, input: &Tensor) -> Result<Vec<f64>, String> {
    let dims: Vec<_> = input.shape().iter().map(|&extent| Dim::Is(extent as i64)).collect();
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
    assert!(learned(node("ZipMap", &["x"], &["y"], &[]), &ints(&[5])).unwrap_err().contains("ai.onnx.ml.ZipMap"));
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
    assert!(refusal(&model(0.5)).contains("got training mode, in which its result is random"));
}

/// `x: [2, 3, 4]` scattered by `indices` of a shape, with `updates` that count from 100.
fn scattered(kind: &'static str, indices: &[i64], updates: &[i64], reduction: &'static str) -> Model {
    let index = |name, dims: &[i64]| info(name, DType::I64, &dims.iter().map(|&at| Dim::Is(at)).collect::<Vec<_>>());
    let new = info("new", DType::F32, &updates.iter().map(|&at| Dim::Is(at)).collect::<Vec<_>>());
    let nodes = vec![node(kind, &["x", "at", "new"], &["y"], &[("reduction", Attr::Text(reduction))])];
    Model::new(18, vec![x(&[2, 3, 4]), index("at", indices), new], nodes, "y")
}

fn counted(shape: &[usize], from: f32) -> Tensor {
    Tensor::from_fn(shape.into(), |at| from + at as f32)
}

#[test]
fn scatter_by_indices_of_the_run() {
    let data = counted(&[2, 3, 4], 0.0);
    let at =
        |shape: &[usize], items: &[i64]| Tensor::new(shape.into(), items.to_vec()).expect("the items fill the shape");
    let slices = [data.clone(), at(&[2, 2], &[0, -1, 1, 0]), counted(&[2, 4], 100.0)];
    let mut want = data.to_f64();
    want[8..12].copy_from_slice(&[100.0, 101.0, 102.0, 103.0]);
    want[12..16].copy_from_slice(&[104.0, 105.0, 106.0, 107.0]);
    check(&scattered("ScatterND", &[2, 2], &[2, 4], "none"), &slices, &want);
    // Two sums for one slice.
    let twice = [data.clone(), at(&[2, 1, 2], &[1, 2, -1, -1]), counted(&[2, 1, 4], 100.0)];
    let mut want = data.to_f64();
    (0..4).for_each(|ix| want[20 + ix] += 204.0 + 2.0 * ix as f64);
    check(&scattered("ScatterND", &[2, 1, 2], &[2, 1, 4], "add"), &twice, &want);
    // Along the first axis, for fewer rows and columns than the data has.
    let elements = [data.clone(), at(&[1, 2, 2], &[1, 0, -1, -2]), counted(&[1, 2, 2], 100.0)];
    let mut want = data.to_f64();
    (want[12], want[1], want[16], want[5]) = (100.0, 101.0, 102.0, 103.0);
    check(&scattered("ScatterElements", &[1, 2, 2], &[1, 2, 2], "max"), &elements, &want);
    let wrong = refusal(&scattered("ScatterND", &[2, 2], &[2, 3], "none"));
    assert!(wrong.contains("updates must have shape [2,4], got [2,3]"), "{wrong}");
    let wide = refusal(&scattered("ScatterElements", &[1, 2, 5], &[1, 2, 5], "none"));
    assert!(wide.contains("indices of shape [1,2,5] do not fit [2,3,4]"), "{wide}");
}

#[test]
fn max_unpool_by_indices_of_the_run() {
    let attributes = [("kernel_shape", Attr::Ints(vec![2, 2])), ("strides", Attr::Ints(vec![2, 2]))];
    let nodes = vec![
        node("MaxPool", &["x"], &["largest", "at"], &attributes),
        node("MaxUnpool", &["largest", "at"], &["y"], &attributes),
    ];
    let model = Model::new(12, vec![x(&[1, 1, 2, 4])], nodes, "y");
    check(
        &model,
        &[floats(&[1, 1, 2, 4], &[1.0, 5.0, 2.0, 0.0, 3.0, 4.0, 7.0, 6.0])],
        &[0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 7.0, 0.0],
    );
}

#[test]
fn assignment_to_a_slice_is_an_insertion() {
    // `x[:, 1:, 1:3] = new`, with indices as a constant and as a grid of ranges.
    let grid = [[0, 1, 1], [0, 1, 2], [0, 2, 1], [0, 2, 2], [1, 1, 1], [1, 1, -2], [1, 2, 1], [1, -1, 2]].concat();
    let nodes = vec![node("ScatterND", &["x", "at", "new"], &["y"], &[])];
    let known = |grid: &[i64]| {
        let new = info("new", DType::F32, &[Dim::Is(2), Dim::Is(2), Dim::Is(2)]);
        let at = Tensor::new(Shape::from([2, 2, 2, 3]), grid.to_vec()).expect("the items fill the shape");
        Model::new(18, vec![x(&[2, 3, 4]), new], nodes.clone(), "y").with("at", &at)
    };
    let (data, new) = (counted(&[2, 3, 4], 0.0), counted(&[2, 2, 2], 100.0));
    let mut want = data.to_f64();
    for (at, to) in [5, 6, 9, 10, 17, 18, 21, 22].into_iter().enumerate() {
        want[to] = 100.0 + at as f64;
    }
    let inputs = [data, new];
    let insertions = |model: &Model| {
        let graph = onnx::load(&model.write(), None, &Options::default()).expect("it loads");
        graph.nodes().iter().filter(|(_, node)| matches!(node.op, ir::Op::Insert(_))).count()
    };
    check(&known(&grid), &inputs, &want);
    assert_eq!(insertions(&known(&grid)), 2);
    // Two places exchanged: the same elements in another order.
    let mut other = grid.clone();
    other[..6].rotate_left(3);
    want.swap(5, 6);
    check(&known(&other), &inputs, &want);
    assert_eq!(insertions(&known(&other)), 0);
}

#[test]
fn grid_of_indices_is_read_by_its_ranges() {
    // `x[1:, 1:] = new`, of too many elements for the grid to be computed.
    let side = 1100i64;
    let range = |name| node("Range", &["one", "end", "one"], &[name], &[]);
    let apart = |from, axes, to| node("Unsqueeze", &[from, axes], &[to], &[]);
    let nodes = vec![
        range("range"),
        apart("range", "last", "rows"),
        node("Expand", &["rows", "extents"], &["all_rows"], &[]),
        node("Expand", &["range", "extents"], &["all_columns"], &[]),
        apart("all_rows", "last", "i"),
        apart("all_columns", "last", "j"),
        node("Concat", &["i", "j"], &["at"], &[("axis", Attr::Int(-1))]),
        node("ScatterND", &["x", "at", "new"], &["y"], &[]),
    ];
    let new = info("new", DType::F32, &[Dim::Is(side - 1), Dim::Is(side - 1)]);
    let model = Model::new(18, vec![x(&[side, side]), new], nodes, "y")
        .with("one", &Tensor::scalar(1i64))
        .with("end", &Tensor::scalar(side))
        .with("last", &ints(&[-1]))
        .with("extents", &ints(&[side - 1, side - 1]));
    let extent = side as usize;
    let got = run(&model, &[counted(&[extent, extent], 0.0), counted(&[extent - 1, extent - 1], -1e6)]);
    let got = got[0].to_f64();
    assert_eq!(
        [got[extent], got[extent + 1], got[extent + 2], got[2 * extent + 1]],
        [1100.0, -1e6, -999_999.0, -998_901.0]
    );
    let graph = onnx::load(&model.write(), None, &Options::default()).expect("it loads");
    assert!(graph.nodes().iter().any(|(_, node)| matches!(node.op, ir::Op::Insert(_))));
}

#[test]
fn few_samples_are_those_of_a_dense_grid() {
    // An infinite cell shows whether it is multiplied by 0 for positions outside.
    let mut cells = crate::attention::numbers(&[2, 3, 9, 8], 5).as_slice::<f32>().expect("they are f32").to_vec();
    cells[0] = f32::INFINITY;
    let images = floats(&[2, 3, 9, 8], &cells);
    let position = [[0.3, -0.9], [-1.3, 1.2]];
    let sampled = |[height, width]: [usize; 2], mode: &'static str, padding: &'static str| {
        let items: Vec<f32> = position.iter().flat_map(|own| own.repeat(height * width)).collect();
        let grid = floats(&[2, height, width, 2], &items);
        let attributes = [("mode", Attr::Text(mode)), ("padding_mode", Attr::Text(padding))];
        let sample = node("GridSample", &["x", "grid"], &["y"], &attributes);
        crate::attention::results(sample, &[("x", images.clone()), ("grid", grid)], &[], &["y"]).swap_remove(0).to_f64()
    };
    for mode in ["linear", "nearest", "cubic"] {
        for padding in ["zeros", "border", "reflection"] {
            let (few, many) = (sampled([1, 1], mode, padding), sampled([9, 8], mode, padding));
            assert!(few.iter().any(|number| number.is_finite()));
            for (at, few) in few.iter().enumerate() {
                let many = many[at * 72];
                let is_same = (few - many).abs() < 1e-6 || few == &many || (few.is_nan() && many.is_nan());
                assert!(is_same, "{mode}, {padding}, result {at}: {few} instead of {many}");
            }
        }
    }
}
