//! Attention, rotary embeddings and the fused operators of ONNX Runtime, against their definitions in `f64`.

use ir::Graph;
use onnx_suite::model::{Attr, Dim, Message, Model, info, node};
use prestow_load::onnx::{self, LoadError, Options};
use types::{DType, Shape, Tensor};

use crate::models::{floats, ints, refusal};
use crate::operators::with_domain;

/// A model with one node, whose operands named in `known` are constants.
pub(crate) fn loaded(
    node: Message,
    operands: &[(&'static str, Tensor)],
    known: &[&str],
    outputs: &[&'static str],
) -> Result<Graph, LoadError> {
    let dims = |tensor: &Tensor| tensor.shape().iter().map(|&extent| Dim::Is(extent as i64)).collect::<Vec<_>>();
    let (known, given): (Vec<_>, Vec<_>) = operands.iter().partition(|(name, _)| known.contains(name));
    let infos = given.iter().map(|(name, tensor)| info(name, tensor.dtype(), &dims(tensor))).collect();
    let mut model = Model::new(24, infos, vec![node], outputs[0]);
    model.outputs = outputs.to_vec();
    for (name, tensor) in known {
        model = model.with(name, tensor);
    }
    onnx::load(&with_domain(&model, "com.microsoft", 1), None, &Options::default())
}

/// The results of such a model.
pub(crate) fn results(
    node: Message,
    operands: &[(&'static str, Tensor)],
    known: &[&str],
    outputs: &[&'static str],
) -> Vec<Tensor> {
    let graph = loaded(node, operands, known, outputs).unwrap_or_else(|error| panic!("{error}"));
    ir::verify(&graph).unwrap_or_else(|errors| panic!("{errors:?}"));
    let given = operands.iter().filter(|(name, _)| !known.contains(name));
    let given: Vec<Tensor> = given.map(|(_, tensor)| tensor.clone()).collect();
    ir::evaluate(&graph, &given).expect("the inputs fit")
}

#[track_caller]
pub(crate) fn assert_near(got: &Tensor, shape: &[usize], want: &[f64]) {
    assert_eq!(got.shape()[..], *shape);
    for (at, (got, want)) in got.to_f64().iter().zip(want).enumerate() {
        assert!((got - want).abs() < 1e-5 || got == want, "element {at}: {got} instead of {want}");
    }
}

pub(crate) fn numbers(shape: &[usize], seed: u64) -> Tensor {
    let mut random = types::Random::new(seed);
    let count = shape.iter().product();
    floats(shape, &(0..count).map(|_| random.uniform(-1.0, 1.0)).collect::<Vec<_>>())
}

/// Extents of an attention: batch, heads of queries and of keys, queries, keys, and widths of keys and values.
#[derive(Clone, Copy)]
struct Extents {
    batch: usize,
    heads: [usize; 2],
    queries: usize,
    keys: usize,
    widths: [usize; 2],
}

/// The definition, of operands `[batch, heads, tokens, width]`: results, and products after each step.
fn defined(
    extents: Extents,
    [q, k, v]: [&[f64]; 3],
    scale: f64,
    cap: f64,
    bias: impl Fn([usize; 4]) -> f64,
) -> (Vec<f64>, [Vec<f64>; 4]) {
    let Extents { batch, heads: [q_heads, kv_heads], queries, keys, widths: [width, value_width] } = extents;
    let (mut y, mut steps) = (Vec::new(), [const { Vec::new() }; 4]);
    for at in 0..batch * q_heads * queries {
        let (b, h, i) = (at / queries / q_heads, at / queries % q_heads, at % queries);
        let kv = (b * kv_heads + h / (q_heads / kv_heads)) * keys;
        let product = |j: usize| (0..width).map(|w| q[at * width + w] * k[(kv + j) * width + w]).sum::<f64>() * scale;
        let products: Vec<f64> = (0..keys).map(product).collect();
        let capped: Vec<f64> = products.iter().map(|x| if cap == 0.0 { *x } else { cap * (x / cap).tanh() }).collect();
        let biased: Vec<f64> = (0..keys).map(|j| capped[j] + bias([b, h, i, j])).collect();
        let top = biased.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> =
            biased.iter().map(|x| if top == f64::NEG_INFINITY { 0.0 } else { (x - top).exp() }).collect();
        let sum: f64 = powers.iter().sum();
        let weights: Vec<f64> = powers.iter().map(|x| if sum == 0.0 { 0.0 } else { x / sum }).collect();
        y.extend((0..value_width).map(|w| (0..keys).map(|j| weights[j] * v[(kv + j) * value_width + w]).sum::<f64>()));
        for (step, row) in steps.iter_mut().zip([products, capped, biased, weights]) {
            step.extend(row);
        }
    }
    (y, steps)
}

/// `[batch, heads, tokens, width]` as `[batch, tokens, heads * width]`, or back.
pub(crate) fn regrouped(x: &[f64], [batch, first, second, width]: [usize; 4]) -> Vec<f64> {
    let mut y = Vec::new();
    for (b, s, f) in (0..batch).flat_map(|b| (0..second).flat_map(move |s| (0..first).map(move |f| (b, s, f)))) {
        y.extend_from_slice(&x[((b * first + f) * second + s) * width..][..width]);
    }
    y
}

fn hidden(is_seen: bool) -> f64 {
    if is_seen { 0.0 } else { f64::NEG_INFINITY }
}

#[test]
fn attention_follows_its_definition() {
    let extents = Extents { batch: 2, heads: [4, 2], queries: 3, keys: 5, widths: [6, 7] };
    let Extents { batch, heads: [q_heads, kv_heads], queries, keys, widths: [width, value_width] } = extents;
    let past = 2;
    let [q, k, v] = [
        numbers(&[batch, queries, q_heads * width], 1),
        numbers(&[batch, kv_heads, keys, width], 2),
        numbers(&[batch, kv_heads, keys, value_width], 3),
    ];
    // Keys and values in two parts, those of the past and the new ones.
    let part = |x: &Tensor, width: usize, range: std::ops::Range<usize>| {
        let items = x.to_f64();
        let rows = (0..batch * kv_heads).flat_map(|head| range.clone().map(move |key| head * keys + key));
        let items: Vec<f32> = rows.flat_map(|row| items[row * width..][..width].iter().map(|&x| x as f32)).collect();
        floats(&[batch, kv_heads, range.len(), width], &items)
    };
    let flat = |x: &Tensor, width: usize| {
        let items = regrouped(&x.to_f64(), [batch, kv_heads, keys - past, width]);
        floats(&[batch, keys - past, kv_heads * width], &items.iter().map(|&x| x as f32).collect::<Vec<_>>())
    };
    // One query sees no key.
    let seen = |[_, h, i, j]: [usize; 4]| (h, i) != (1, 2) && (h + i + j) % 4 != 1;
    let mask = Tensor::from_fn(Shape::from([q_heads, queries, keys]), |at| {
        seen([0, at / keys / queries, at / keys % queries, at % keys])
    });
    let operands = [
        ("q", q.clone()),
        ("k", flat(&part(&k, width, past..keys), width)),
        ("v", flat(&part(&v, value_width, past..keys), value_width)),
        ("mask", mask),
        ("past_k", part(&k, width, 0..past)),
        ("past_v", part(&v, value_width, 0..past)),
    ];
    let q_split = regrouped(&q.to_f64(), [batch, queries, q_heads, width]);
    for (mode, known) in [(0, vec![]), (1, vec!["mask"]), (2, vec![]), (3, vec!["mask"])] {
        let attributes = [
            ("q_num_heads", Attr::Int(q_heads as i64)),
            ("kv_num_heads", Attr::Int(kv_heads as i64)),
            ("is_causal", Attr::Int(1)),
            ("scale", Attr::Float(0.75)),
            ("softcap", Attr::Float(0.5)),
            ("qk_matmul_output_mode", Attr::Int(mode)),
        ];
        let names = ["q", "k", "v", "mask", "past_k", "past_v"];
        let node = node("Attention", &names, &["y", "all_k", "all_v", "step"], &attributes);
        let got = results(node, &operands, &known, &["y", "all_k", "all_v", "step"]);
        let bias = |at: [usize; 4]| hidden(seen(at) && at[3] <= at[2] + past);
        let (y, steps) = defined(extents, [&q_split, &k.to_f64(), &v.to_f64()], 0.75, 0.5, bias);
        let y = regrouped(&y, [batch, q_heads, queries, value_width]);
        assert_near(&got[0], &[batch, queries, q_heads * value_width], &y);
        assert_near(&got[1], &[batch, kv_heads, keys, width], &k.to_f64());
        assert_near(&got[2], &[batch, kv_heads, keys, value_width], &v.to_f64());
        assert_near(&got[3], &[batch, q_heads, queries, keys], &steps[mode as usize]);
    }
}

#[test]
fn attention_sees_a_window_of_the_keys_that_there_are() {
    let extents = Extents { batch: 2, heads: [1, 1], queries: 3, keys: 8, widths: [4, 4] };
    let Extents { batch, queries, keys, widths: [width, _], .. } = extents;
    let [q, k, v] = [
        numbers(&[batch, 1, queries, width], 4),
        numbers(&[batch, 1, keys, width], 5),
        numbers(&[batch, 1, keys, width], 6),
    ];
    // Numbers for the first keys alone: the others are hidden.
    let added = numbers(&[queries, 7], 7);
    let counts = [8, 5];
    let operands =
        [("q", q.clone()), ("k", k.clone()), ("v", v.clone()), ("mask", added.clone()), ("counts", ints(&[8, 5]))];
    let attributes =
        [("is_causal", Attr::Int(1)), ("left_window_size", Attr::Int(3)), ("right_window_size", Attr::Int(2))];
    let node = node("Attention", &["q", "k", "v", "mask", "", "", "counts"], &["y"], &attributes);
    let got = results(node, &operands, &[], &["y"]);
    let added = added.to_f64();
    let bias = |[b, _, i, j]: [usize; 4]| {
        let behind = (i + counts[b]) as i64 - queries as i64 - j as i64;
        let is_seen = j < counts[b] && j < 7 && (0..=3).contains(&behind);
        if is_seen { added[i * 7 + j] } else { f64::NEG_INFINITY }
    };
    let (y, _) = defined(extents, [&q.to_f64(), &k.to_f64(), &v.to_f64()], 0.5, 0.0, bias);
    assert_near(&got[0], &[batch, 1, queries, width], &y);
}

#[test]
fn mask_of_one_key_hides_the_others() {
    let operands = [
        ("q", numbers(&[1, 1, 2, 4], 26)),
        ("k", numbers(&[1, 1, 3, 4], 27)),
        ("v", numbers(&[1, 1, 3, 4], 28)),
        ("mask", numbers(&[2, 1], 29)),
    ];
    let got = results(node("Attention", &["q", "k", "v", "mask"], &["y"], &[]), &operands, &[], &["y"]);
    let first = &operands[2].1.to_f64()[..4];
    assert_near(&got[0], &[1, 1, 2, 4], &[first, first].concat());
}

#[test]
fn attention_that_cannot_be_read_is_refused() {
    let x = |name: &str, dims: &[i64]| {
        info(name, DType::F32, &dims.iter().map(|&extent| Dim::Is(extent)).collect::<Vec<_>>())
    };
    let model = |k: &[i64], attributes: &[(&str, Attr)]| {
        let inputs = vec![x("q", &[1, 3, 8]), x("k", k), x("v", k)];
        refusal(&Model::new(24, inputs, vec![node("Attention", &["q", "k", "v"], &["y"], attributes)], "y"))
    };
    let heads = |q: i64, kv: i64| [("q_num_heads", Attr::Int(q)), ("kv_num_heads", Attr::Int(kv))];
    assert!(model(&[1, 3, 8], &[]).ends_with("attributes `q_num_heads` and `kv_num_heads` are missing"));
    assert!(model(&[1, 3, 8], &heads(3, 1)).ends_with("queries [1,3,8] must have a multiple of 3 heads"));
    assert!(model(&[1, 3, 6], &heads(4, 3)).ends_with("4 heads of queries must be a multiple of 3 heads of keys"));
    assert!(model(&[1, 3, 8], &heads(-1, 1)).ends_with("attribute `q_num_heads`: -1 is not supported"));
}

#[test]
fn rotary_embeddings_turn_pairs() {
    let (batch, heads, tokens, width) = (2, 3, 4, 6);
    let x = numbers(&[batch, heads, tokens, width], 8);
    let flat = regrouped(&x.to_f64(), [batch, heads, tokens, width]);
    let flat = floats(&[batch, tokens, heads * width], &flat.iter().map(|&x| x as f32).collect::<Vec<_>>());
    let positions = Tensor::from_fn(Shape::from([batch, tokens]), |at| (at as i64 * 5) % 9);
    for (interleaved, turned) in [(0, 6), (1, 6), (0, 4), (1, 4)] {
        let half = turned / 2;
        let angle = |position: usize, pair: usize| (position * 2 + pair) as f64 * 0.3;
        let table = |function: fn(f64) -> f64| {
            Tensor::from_fn(Shape::from([9, half]), |at| function(angle(at / half, at % half)) as f32)
        };
        let (cosines, sines) = (table(f64::cos), table(f64::sin));
        let items = x.to_f64();
        let want: Vec<f64> = (0..items.len())
            .map(|at| {
                let (row, lane) = (at / width, at % width);
                let position = (row / (heads * tokens) * tokens + row % tokens) * 5 % 9;
                if turned <= lane {
                    return items[at];
                }
                let (pair, is_second) =
                    if interleaved == 1 { (lane / 2, lane % 2 == 1) } else { (lane % half, half <= lane) };
                let [a, b] = if interleaved == 1 { [2 * pair, 2 * pair + 1] } else { [pair, pair + half] };
                let (a, b) = (items[row * width + a], items[row * width + b]);
                let (sin, cos) = angle(position, pair).sin_cos();
                if is_second { a * sin + b * cos } else { a * cos - b * sin }
            })
            .collect();
        let attributes = [
            ("interleaved", Attr::Int(interleaved)),
            ("rotary_embedding_dim", Attr::Int(turned as i64)),
            ("num_heads", Attr::Int(heads as i64)),
        ];
        let tables = [("cos", cosines), ("sin", sines), ("at", positions.clone())];
        let names = ["x", "cos", "sin", "at"];
        let of = |x: &Tensor| [vec![("x", x.clone())], tables.to_vec()].concat();
        let got = results(node("RotaryEmbedding", &names, &["y"], &attributes), &of(&x), &["cos"], &["y"]);
        assert_near(&got[0], &[batch, heads, tokens, width], &want);
        let want = regrouped(&want, [batch, heads, tokens, width]);
        let got = results(node("RotaryEmbedding", &names, &["y"], &attributes), &of(&flat), &[], &["y"]);
        assert_near(&got[0], &[batch, tokens, heads * width], &want);
        let fused = node("RotaryEmbedding", &["x", "at", "cos", "sin"], &["y"], &attributes).text(7, "com.microsoft");
        assert_near(&results(fused, &of(&flat), &[], &["y"])[0], &[batch, tokens, heads * width], &want);
    }
}

/// A node of ONNX Runtime.
pub(crate) fn fused(op: &str, operands: &[&str], outputs: &[&str], attributes: &[(&str, Attr)]) -> Message {
    node(op, operands, outputs, attributes).text(7, "com.microsoft")
}

#[test]
fn fused_attention_projects_and_masks() {
    let extents = Extents { batch: 2, heads: [2, 2], queries: 4, keys: 4, widths: [3, 3] };
    let (inputs, all) = (5, 6);
    let [x, weights, bias] = [numbers(&[2, 4, inputs], 9), numbers(&[inputs, 3 * all], 10), numbers(&[3 * all], 11)];
    let (items, w, b) = (x.to_f64(), weights.to_f64(), bias.to_f64());
    let projected = |part: usize| -> Vec<f64> {
        let of = |token: usize, column: usize| {
            b[column] + (0..inputs).map(|ix| items[token * inputs + ix] * w[ix * 3 * all + column]).sum::<f64>()
        };
        let rows: Vec<f64> = (0..8)
            .flat_map(|token| (0..all).map(move |column| (token, part * all + column)))
            .map(|(t, c)| of(t, c))
            .collect();
        regrouped(&rows, [2, 4, 2, 3])
    };
    let [q, k, v] = [projected(0), projected(1), projected(2)];
    let scale = 1.0 / 3f64.sqrt();
    let check = |mask: Option<Tensor>, unidirectional: i64, bias_at: &dyn Fn([usize; 4]) -> f64| {
        let mut operands = vec![("x", x.clone()), ("w", weights.clone()), ("b", bias.clone())];
        operands.extend(mask.map(|mask| ("mask", mask)));
        let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
        let attributes = [("num_heads", Attr::Int(2)), ("unidirectional", Attr::Int(unidirectional))];
        let got = results(fused("Attention", &names, &["y"], &attributes), &operands, &["w", "b"], &["y"]);
        let (y, _) = defined(extents, [&q, &k, &v], scale, 0.0, bias_at);
        assert_near(&got[0], &[2, 4, all], &regrouped(&y, [2, 2, 4, 3]));
    };
    let hidden_by = |is_seen: bool| if is_seen { 0.0 } else { -10_000.0 };
    check(None, 0, &|_| 0.0);
    check(None, 1, &|[_, _, i, j]| hidden(j <= i));
    let lengths = Tensor::vector(vec![2i32, 4]);
    check(Some(lengths), 0, &|[b, _, _, j]| hidden_by(j < [2, 4][b]));
    let mask = |rows: usize| {
        let shape = if rows == 1 { Shape::from([2, 4]) } else { Shape::from([2, 4, 4]) };
        Tensor::from_fn(shape, |at| i32::from(at % 3 != 1))
    };
    check(Some(mask(1)), 1, &|[b, _, i, j]| hidden_by((b * 4 + j) % 3 != 1) + hidden(j <= i));
    check(Some(mask(4)), 0, &|[b, _, i, j]| hidden_by(((b * 4 + i) * 4 + j) % 3 != 1));

    // The same from queries, keys and values with their biases, and numbers that are added.
    let rows = |x: &[f64], part: usize| {
        let rows = regrouped(x, [2, 2, 4, 3]);
        let less = |at: usize| (rows[at] - b[part * all + at % all]) as f32;
        floats(&[2, 4, all], &(0..rows.len()).map(less).collect::<Vec<_>>())
    };
    let added = numbers(&[2, 1, 4, 4], 12);
    let operands =
        [("q", rows(&q, 0)), ("k", rows(&k, 1)), ("v", rows(&v, 2)), ("b", bias.clone()), ("added", added.clone())];
    let node = fused("MultiHeadAttention", &["q", "k", "v", "b", "", "added"], &["y"], &[("num_heads", Attr::Int(2))]);
    let got = results(node, &operands, &["b"], &["y"]);
    let added = added.to_f64();
    let (y, _) = defined(extents, [&q, &k, &v], scale, 0.0, |[b, _, i, j]| added[(b * 4 + i) * 4 + j]);
    assert_near(&got[0], &[2, 4, all], &regrouped(&y, [2, 2, 4, 3]));
}

#[test]
fn fused_normalizations_add_first() {
    let (rows, width) = (3, 5);
    let [x, skip, scale, shift, bias] = [
        numbers(&[1, rows, width], 13),
        numbers(&[1, rows, width], 14),
        numbers(&[width], 15),
        numbers(&[width], 16),
        numbers(&[width], 17),
    ];
    let (a, b, c) = (x.to_f64(), skip.to_f64(), bias.to_f64());
    let sum: Vec<f64> = (0..rows * width).map(|at| a[at] + b[at] + c[at % width]).collect();
    let (scales, shifts) = (scale.to_f64(), shift.to_f64());
    let normalized = |of: &[f64], is_centered: bool| -> Vec<f64> {
        let row = |row: &[f64]| {
            let mean = if is_centered { row.iter().sum::<f64>() / row.len() as f64 } else { 0.0 };
            let square = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
            let shift = |lane: usize| if is_centered { shifts[lane] } else { 0.0 };
            row.iter()
                .enumerate()
                .map(|(lane, x)| (x - mean) / (square + 1e-3).sqrt() * scales[lane] + shift(lane))
                .collect()
        };
        of.chunks(width).flat_map(|of| -> Vec<f64> { row(of) }).collect()
    };
    let operands = [("x", x.clone()), ("skip", skip), ("scale", scale), ("shift", shift), ("bias", bias)];
    let epsilon = [("epsilon", Attr::Float(1e-3))];
    let layer =
        fused("SkipLayerNormalization", &["x", "skip", "scale", "shift", "bias"], &["y", "", "", "sum"], &epsilon);
    let got = results(layer, &operands, &["scale"], &["y", "sum"]);
    assert_near(&got[0], &[1, rows, width], &normalized(&sum, true));
    assert_near(&got[1], &[1, rows, width], &sum);
    let some = [0, 1, 2, 4].map(|ix| operands[ix].clone());
    let square =
        fused("SkipSimplifiedLayerNormalization", &["x", "skip", "scale", "bias"], &["y", "", "", "sum"], &epsilon);
    let got = results(square, &some, &[], &["y", "sum"]);
    assert_near(&got[0], &[1, rows, width], &normalized(&sum, false));
    assert_near(&got[1], &[1, rows, width], &sum);
    let some = [0, 2].map(|ix| operands[ix].clone());
    let got = results(node("RMSNormalization", &["x", "scale"], &["y"], &epsilon), &some, &[], &["y"]);
    assert_near(&got[0], &[1, rows, width], &normalized(&a, false));
}

#[test]
fn fused_products_and_activations() {
    let [a, b, c] = [numbers(&[2, 3], 18), numbers(&[4, 2], 19), numbers(&[4], 20)];
    let (x, y, z) = (a.to_f64(), b.to_f64(), c.to_f64());
    // a^T b^T
    let product = |row: usize, column: usize| (0..2).map(|k| x[k * 3 + row] * y[column * 2 + k]).sum::<f64>();
    let operands = [("a", a), ("b", b), ("c", c)];
    let transposed = [("transA", Attr::Int(1)), ("transB", Attr::Int(1))];
    let with = |more: &[(&'static str, Attr)]| [&transposed[..], more].concat();
    let node = fused("FusedMatMul", &["a", "b"], &["y"], &with(&[("alpha", Attr::Float(0.5))]));
    let want: Vec<f64> = (0..12).map(|at| 0.5 * product(at / 4, at % 4)).collect();
    assert_near(&results(node, &operands[..2], &[], &["y"])[0], &[3, 4], &want);
    let leaky = [("activation", Attr::Text("LeakyRelu")), ("activation_alpha", Attr::Float(0.25))];
    let node = fused("FusedGemm", &["a", "b", "c"], &["y"], &with(&leaky));
    let leak = |x: f64| if x < 0.0 { 0.25 * x } else { x };
    let want: Vec<f64> = (0..12).map(|at| leak(product(at / 4, at % 4) + z[at % 4])).collect();
    assert_near(&results(node, &operands, &["b"], &["y"])[0], &[3, 4], &want);
    let node = fused("FusedGemm", &["a", "b", "c"], &["y"], &with(&[("activation", Attr::Text("Softplus"))]));
    let text = loaded(node, &operands, &[], &["y"]).expect_err("it is refused").to_string();
    assert!(text.contains("attribute `activation`: `Softplus` is not supported"), "{text}");
}

#[test]
fn fused_embeddings_are_summed_and_counted() {
    let [words, positions, segments] = [numbers(&[6, 4], 21), numbers(&[5, 4], 22), numbers(&[2, 4], 23)];
    let ids = |items: [i32; 6]| Tensor::new(Shape::from([2, 3]), items.to_vec()).expect("six");
    let (word, segment, mask) = (ids([1, 5, 0, 3, 3, 2]), ids([0, 1, 1, 0, 0, 1]), ids([1, 1, 0, 1, 1, 1]));
    let one = floats(&[4], &[1.0; 4]);
    let operands = [
        ("word", word.clone()),
        ("segment", segment.clone()),
        ("words", words.clone()),
        ("positions", positions.clone()),
        ("segments", segments.clone()),
        ("scale", one.clone()),
        ("shift", floats(&[4], &[0.0; 4])),
        ("mask", mask),
    ];
    let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
    let known = ["words", "positions", "segments", "scale", "shift"];
    let node = fused("EmbedLayerNormalization", &names, &["y", "count", "sum"], &[("epsilon", Attr::Float(1e-5))]);
    let got = results(node, &operands, &known, &["count", "sum"]);
    assert_eq!(got[0].to_f64(), [2.0, 3.0]);
    let (w, p, s) = (words.to_f64(), positions.to_f64(), segments.to_f64());
    let (word, segment) = (word.to_f64(), segment.to_f64());
    let want: Vec<f64> = (0..24)
        .map(|at| {
            let (token, lane) = (at / 4, at % 4);
            w[word[token] as usize * 4 + lane] + p[token % 3 * 4 + lane] + s[segment[token] as usize * 4 + lane]
        })
        .collect();
    assert_near(&got[1], &[2, 3, 4], &want);
}

#[test]
fn fused_products_of_bytes_are_scaled() {
    let bytes = |shape: &[usize], seed: u64| {
        let mut random = types::Random::new(seed);
        Tensor::from_fn(shape.into(), |_| random.bits() as u8)
    };
    let (b, zero) = (bytes(&[4, 3], 24), Tensor::vector(vec![7u8, 130, 200]));
    let (scales, bias) = (floats(&[3], &[0.5, 0.25, 2.0]), floats(&[3], &[1.0, -1.0, 0.0]));
    let (weights, zeros) = (b.to_f64(), zero.to_f64());
    let (scale, shift) = (scales.to_f64(), bias.to_f64());
    let column = |a: &dyn Fn(usize) -> f64, j: usize| {
        (0..4).map(|k| a(k) * (weights[k * 3 + j] - zeros[j])).sum::<f64>() * scale[j]
    };
    let a = bytes(&[2, 4], 25);
    let items = a.to_f64();
    let operands = [
        ("a", a),
        ("b", b.clone()),
        ("a_scale", Tensor::scalar(0.125f32)),
        ("b_scale", scales.clone()),
        ("a_zero", Tensor::scalar(9u8)),
        ("b_zero", zero.clone()),
        ("bias", bias.clone()),
    ];
    let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
    let got = results(fused("MatMulIntegerToFloat", &names, &["y"], &[]), &operands, &names[1..], &["y"]);
    let want: Vec<f64> =
        (0..6).map(|at| 0.125 * column(&|k| items[at / 3 * 4 + k] - 9.0, at % 3) + shift[at % 3]).collect();
    assert_near(&got[0], &[2, 3], &want);

    // Of a range from 0 to 255 the bytes are the numbers.
    let numbers = floats(&[1, 4], &[0.0, 255.0, 17.0, 100.0]);
    let operands = [("a", numbers), ("b", b), ("b_scale", scales), ("b_zero", zero), ("bias", bias)];
    let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
    let got = results(fused("DynamicQuantizeMatMul", &names, &["y"], &[]), &operands, &names[1..], &["y"]);
    let want: Vec<f64> = (0..3).map(|j| column(&|k| [0.0, 255.0, 17.0, 100.0][k], j) + shift[j]).collect();
    assert_near(&got[0], &[1, 3], &want);
}

/// The operands of `GroupQueryAttention` without positions, and the extents of a test.
struct Grouped {
    batch: usize,
    tokens: usize,
    past: usize,
    heads: [usize; 2],
    width: usize,
}

impl Grouped {
    fn operands(&self) -> Vec<(&'static str, Tensor)> {
        let Grouped { batch, tokens, past, heads: [q_heads, kv_heads], width } = *self;
        vec![
            ("q", numbers(&[batch, tokens, q_heads * width], 31)),
            ("k", numbers(&[batch, tokens, kv_heads * width], 32)),
            ("v", numbers(&[batch, tokens, kv_heads * width], 33)),
            ("past_k", numbers(&[batch, kv_heads, past, width], 34)),
            ("past_v", numbers(&[batch, kv_heads, past, width], 35)),
        ]
    }

    /// The keys or values in use after a step: `[batch, heads, extent, width]`, zeros behind `counts`.
    fn present(&self, new: &Tensor, past: &Tensor, counts: &[usize], extent: usize) -> Vec<f64> {
        let Grouped { batch, tokens, past: n_past, heads: [_, kv_heads], width } = *self;
        let new = regrouped(&new.to_f64(), [batch, tokens, kv_heads, width]);
        let past = past.to_f64();
        let mut present = vec![0.0; batch * kv_heads * extent * width];
        for (line, row) in (0..batch * kv_heads).flat_map(|line| (0..extent).map(move |row| (line, row))) {
            let first = counts[line / kv_heads].saturating_sub(tokens);
            let from = match row.checked_sub(first) {
                Some(step) if step < tokens => &new[(line * tokens + step) * width..][..width],
                _ if row < n_past.min(first) => &past[(line * n_past + row) * width..][..width],
                _ => continue,
            };
            present[(line * extent + row) * width..][..width].copy_from_slice(from);
        }
        present
    }
}

/// A step with a cache of its own length, one that grows, and a first prompt with padding.
#[test]
fn grouped_attention_appends_to_its_cache() {
    for (tokens, past, counts, total, window, cap) in [
        (1, 6, [4usize, 6], 6, -1, 0.0),
        (1, 6, [4, 6], 6, 2, 1.5),
        (1, 5, [6, 3], 6, 3, 0.0),
        (3, 8, [7, 7], 8, -1, 0.0),
        (4, 6, [4, 3], 4, -1, 0.0),
    ] {
        let grouped = Grouped { batch: 2, tokens, past, heads: [4, 2], width: 4 };
        let Grouped { batch, heads: [q_heads, kv_heads], width, .. } = grouped;
        let mut operands = grouped.operands();
        let ends: Vec<i32> = counts.iter().map(|&count| count as i32 - 1).collect();
        operands.push(("ends", Tensor::vector(ends)));
        operands.push(("total", Tensor::vector(vec![total])));
        let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
        let attributes = [
            ("num_heads", Attr::Int(q_heads as i64)),
            ("kv_num_heads", Attr::Int(kv_heads as i64)),
            ("local_window_size", Attr::Int(window)),
            ("softcap", Attr::Float(cap)),
        ];
        let outputs = ["y", "present_k", "present_v"];
        let got = results(fused("GroupQueryAttention", &names, &outputs, &attributes), &operands, &["total"], &outputs);
        let extent = past.max(total as usize);
        let k = grouped.present(&operands[1].1, &operands[3].1, &counts, extent);
        let v = grouped.present(&operands[2].1, &operands[4].1, &counts, extent);
        let in_use = |items: &[f64]| -> Vec<f64> {
            let row = |at: usize| at / width % extent < counts[at / (kv_heads * extent * width)];
            items.iter().enumerate().map(|(at, &item)| if row(at) { item } else { 0.0 }).collect()
        };
        for (got, want) in [(&got[1], &k), (&got[2], &v)] {
            assert_eq!(got.shape()[..], [batch, kv_heads, extent, width]);
            assert_eq!(in_use(&got.to_f64()), in_use(want), "{tokens} tokens behind {past}");
        }
        let q = regrouped(&operands[0].1.to_f64(), [batch, tokens, q_heads, width]);
        let extents = Extents { batch, heads: [q_heads, kv_heads], queries: tokens, keys: extent, widths: [width; 2] };
        let seen = |[b, _, i, j]: [usize; 4]| {
            let position = counts[b].saturating_sub(tokens) + i;
            hidden(j <= position && (window < 0 || (position as i64) < j as i64 + window))
        };
        let (want, _) = defined(extents, [&q, &k, &v], 0.5, f64::from(cap), seen);
        let want = regrouped(&want, [batch, q_heads, tokens, width]);
        // Rows of padding have any numbers.
        let is_padding = |at: usize| counts[at / (tokens * q_heads * width)] <= at / (q_heads * width) % tokens;
        for (at, (got, want)) in got[0].to_f64().iter().zip(&want).enumerate() {
            let is_valid = tokens <= counts[0].min(counts[1]) || !is_padding(at);
            assert!(!is_valid || (got - want).abs() < 1e-5, "element {at}: {got} instead of {want}");
        }
    }
}

/// Packed operands, rotations, normalizations of queries and keys, and sinks, each against the separate operators.
#[test]
fn grouped_attention_prepares_queries_and_keys() {
    let grouped = Grouped { batch: 2, tokens: 3, past: 0, heads: [2, 1], width: 4 };
    let operands = grouped.operands();
    let (q, k, v) = (&operands[0].1, &operands[1].1, &operands[2].1);
    let rows = [q, k, v].map(|x| x.to_f64());
    let packed: Vec<f32> = (0..6)
        .flat_map(|row| {
            [(0, 8), (1, 4), (2, 4)].map(|(ix, width): (usize, usize)| rows[ix][row * width..][..width].to_vec())
        })
        .flatten()
        .map(|x| x as f32)
        .collect();
    let angle = |at: usize| (at / 2) as f64 * 0.4 + (at % 2) as f64 * 0.1;
    let (cosines, sines) = (
        Tensor::from_fn(Shape::from([8, 2]), |at| angle(at).cos() as f32),
        Tensor::from_fn(Shape::from([8, 2]), |at| angle(at).sin() as f32),
    );
    let given = |first: (&'static str, Tensor)| {
        vec![
            first,
            ("ends", Tensor::vector(vec![2i32, 2])),
            ("total", Tensor::vector(vec![3i32])),
            ("cos", cosines.clone()),
            ("sin", sines.clone()),
            ("sink", floats(&[2], &[0.5, -1.0])),
            ("q_scale", floats(&[4], &[1.0, 2.0, 0.5, 1.5])),
            ("k_scale", floats(&[4], &[0.5, 1.0, 3.0, 1.0])),
        ]
    };
    let names = ["x", "", "", "", "", "ends", "total", "cos", "sin", "", "", "sink", "", "", "q_scale", "k_scale"];
    let attributes = [("num_heads", Attr::Int(2)), ("kv_num_heads", Attr::Int(1)), ("do_rotary", Attr::Int(1))];
    let operands = given(("x", floats(&[2, 3, 16], &packed)));
    let got = results(fused("GroupQueryAttention", &names, &["y"], &attributes), &operands, &["total", "sink"], &["y"]);
    let prepared = |x: &[f64], heads: usize, scale: [f64; 4]| -> Vec<f64> {
        let mut y = Vec::new();
        for (at, row) in x.chunks(4).enumerate() {
            let root = (row.iter().map(|x| x * x).sum::<f64>() / 4.0 + 1e-6).sqrt();
            let row: Vec<f64> = row.iter().zip(scale).map(|(x, scale)| x / root * scale).collect();
            let position = at / heads % 3;
            let turned = |pair: usize| {
                let (sin, cos) = angle(position * 2 + pair).sin_cos();
                [row[pair] * cos - row[pair + 2] * sin, row[pair] * sin + row[pair + 2] * cos]
            };
            let [a, b] = [turned(0), turned(1)];
            y.extend([a[0], b[0], a[1], b[1]]);
        }
        regrouped(&y, [2, 3, heads, 4])
    };
    let (q, k) = (prepared(&rows[0], 2, [1.0, 2.0, 0.5, 1.5]), prepared(&rows[1], 1, [0.5, 1.0, 3.0, 1.0]));
    let v = regrouped(&rows[2], [2, 3, 1, 4]);
    let mut want = Vec::new();
    for at in 0..2 * 2 * 3 {
        let (b, head, i) = (at / 6, at / 3 % 2, at % 3);
        let product = |j: usize| (0..4).map(|w| q[at * 4 + w] * k[(b * 3 + j) * 4 + w]).sum::<f64>() * 0.5;
        let powers: Vec<f64> = (0..=i).map(|j| product(j).exp()).collect();
        let sum = powers.iter().sum::<f64>() + [0.5f64, -1.0][head].exp();
        want.extend((0..4).map(|w| (0..=i).map(|j| powers[j] / sum * v[(b * 3 + j) * 4 + w]).sum::<f64>()));
    }
    assert_near(&got[0], &[2, 3, 8], &regrouped(&want, [2, 2, 3, 4]));
}

#[test]
fn grouped_attention_that_cannot_be_read_is_refused() {
    let grouped = Grouped { batch: 1, tokens: 2, past: 4, heads: [2, 1], width: 2 };
    let refused = |total: i32, more: (&'static str, Attr)| {
        let mut operands = grouped.operands();
        operands.push(("ends", Tensor::vector(vec![3i32])));
        operands.push(("total", Tensor::vector(vec![total])));
        let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
        let attributes = [("num_heads", Attr::Int(2)), ("kv_num_heads", Attr::Int(1)), more];
        let node = fused("GroupQueryAttention", &names, &["y"], &attributes);
        loaded(node, &operands, &["total"], &["y"]).expect_err("it is refused").to_string()
    };
    assert!(refused(4, ("sliding_window_cache", Attr::Int(1))).ends_with("`sliding_window_cache` must be 0"));
    assert!(refused(4, ("k_quant_type", Attr::Text("PER_TENSOR"))).contains("attribute `k_quant_type` must be `NONE`"));
    assert!(refused(4, ("local_window_size", Attr::Int(0))).contains("must be -1 or at least 1, got 0"));
    assert!(refused(4, ("qk_output", Attr::Int(1))).contains("attribute `qk_output` must be 0"));
    let text = refused(4, ("causal", Attr::Int(2)));
    assert!(text.ends_with("attribute `causal` must be 0 or 1, got 2"), "{text}");
}

/// Past keys and values of both attentions; packed operands are those of separate ones.
#[test]
fn fused_attention_joins_past_and_packed_keys() {
    let extents = Extents { batch: 2, heads: [2, 2], queries: 2, keys: 5, widths: [3, 3] };
    let (q, k, v) = (numbers(&[2, 2, 6], 41), numbers(&[2, 2, 6], 42), numbers(&[2, 2, 6], 43));
    let past = numbers(&[2, 2, 2, 3, 3], 44);
    let items = past.to_f64();
    let (past_k, past_v) = items.split_at(2 * 2 * 3 * 3);
    let joined = |past: &[f64], new: &Tensor| -> Vec<f64> {
        let new = regrouped(&new.to_f64(), [2, 2, 2, 3]);
        (0..4).flat_map(|line| [&past[line * 9..][..9], &new[line * 6..][..6]].concat()).collect()
    };
    let (all_k, all_v) = (joined(past_k, &k), joined(past_v, &v));
    let queries = regrouped(&q.to_f64(), [2, 2, 2, 3]);
    let causal = |[_, _, i, j]: [usize; 4]| hidden(j <= i + 3);
    let (want, _) = defined(extents, [&queries, &all_k, &all_v], 1.0 / 3f64.sqrt(), 0.0, causal);
    let want = regrouped(&want, [2, 2, 2, 3]);
    let part = |items: &[f64]| floats(&[2, 2, 3, 3], &items.iter().map(|&x| x as f32).collect::<Vec<_>>());
    let operands = [("q", q.clone()), ("k", k.clone()), ("v", v.clone()), ("pk", part(past_k)), ("pv", part(past_v))];
    let attributes = [("num_heads", Attr::Int(2)), ("unidirectional", Attr::Int(1))];
    let names = ["q", "k", "v", "", "", "", "pk", "pv"];
    let outputs = ["y", "present_k", "present_v"];
    let got = results(fused("MultiHeadAttention", &names, &outputs, &attributes), &operands, &[], &outputs);
    assert_near(&got[0], &[2, 2, 6], &want);
    assert_near(&got[1], &[2, 2, 5, 3], &all_k);
    assert_near(&got[2], &[2, 2, 5, 3], &all_v);
    // `Attention` with the identity as weights of each part.
    let x =
        Tensor::from_fn(Shape::from([2, 2, 18]), |at| [&q, &k, &v][at % 18 / 6].to_f64()[at / 18 * 6 + at % 6] as f32);
    let identity = Tensor::from_fn(Shape::from([18, 18]), |at| if at / 18 == at % 18 { 1.0f32 } else { 0.0 });
    let operands = [("x", x.clone()), ("w", identity), ("past", past)];
    let node = fused("Attention", &["x", "w", "", "", "past"], &["y", "present"], &attributes);
    let got = results(node, &operands, &["w"], &["y", "present"]);
    assert_near(&got[0], &[2, 2, 6], &want);
    assert_near(&got[1], &[2, 2, 2, 5, 3], &[all_k, all_v].concat());
    // All three in one operand.
    let packed = Tensor::from_fn(Shape::from([2, 2, 2, 3, 3]), |at| {
        let (row, head, part, lane) = (at / 18, at / 9 % 2, at / 3 % 3, at % 3);
        x.to_f64()[row * 18 + part * 6 + head * 3 + lane] as f32
    });
    let attributes = [("num_heads", Attr::Int(2))];
    let got = results(fused("MultiHeadAttention", &["x"], &["y"], &attributes), &[("x", packed)], &[], &["y"]);
    let operands = [("q", q), ("k", k), ("v", v)];
    let want = results(fused("MultiHeadAttention", &["q", "k", "v"], &["y"], &attributes), &operands, &[], &["y"]);
    assert_near(&got[0], &[2, 2, 6], &want[0].to_f64());
}

#[test]
fn rotary_embeddings_have_a_position_for_each_section() {
    // One section is the rotation by that section's positions.
    let (x, cosines, sines) = (numbers(&[1, 2, 3, 8], 51), numbers(&[9, 4], 52), numbers(&[9, 4], 53));
    let streams: Vec<i64> = vec![0, 1, 2, 5, 3, 8, 7, 4, 6];
    let of = |sections: [i64; 3], layout: i64| {
        let operands =
            [("x", x.clone()), ("at", Tensor::new([1, 3].into(), vec![0i64; 3]).unwrap()), ("cos", cosines.clone())];
        let positions = Tensor::new([3, 1, 3].into(), streams.clone()).unwrap();
        let operands = [operands[0].clone(), ("at", positions), operands[2].clone(), ("sin", sines.clone())];
        let attributes = [("mrope_section", Attr::Ints(sections.to_vec())), ("mrope_layout", Attr::Int(layout))];
        let node = fused("MRotaryEmbedding", &["x", "at", "cos", "sin"], &["y"], &attributes);
        results(node, &operands, &[], &["y"])[0].to_f64()
    };
    let rows = x.to_f64();
    let want = |stream_of: &dyn Fn(usize) -> usize| -> Vec<f64> {
        let (cosines, sines) = (cosines.to_f64(), sines.to_f64());
        (0..rows.len())
            .map(|at| {
                let (token, lane, row) = (at / 8 % 3, at % 8, at / 8 * 8);
                let pair = lane % 4;
                let place = streams[stream_of(pair) * 3 + token] as usize * 4 + pair;
                let (a, b) = (rows[row + pair], rows[row + pair + 4]);
                if lane < 4 { a * cosines[place] - b * sines[place] } else { a * sines[place] + b * cosines[place] }
            })
            .collect()
    };
    for (sections, layout, stream_of) in [
        ([4, 0, 0], 0, [0, 0, 0, 0]),
        ([0, 0, 4], 0, [2, 2, 2, 2]),
        ([1, 2, 1], 0, [0, 1, 1, 2]),
        ([2, 1, 1], 1, [0, 1, 2, 0]),
        ([3, 1, 0], 1, [0, 1, 0, 0]),
    ] {
        let got = of(sections, layout);
        let want = want(&|pair| stream_of[pair]);
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{sections:?} {layout}");
    }
}

#[test]
fn runs_of_a_cache_are_replaced() {
    let cache = Tensor::from_fn(Shape::from([2, 2, 4, 1]), |at| at as f32);
    let updates = Tensor::from_fn(Shape::from([2, 2, 3, 1]), |at| 100.0 + at as f32);
    let operands = [("cache", cache.clone()), ("updates", updates), ("starts", ints(&[1, 0]))];
    for (mode, starts, known) in
        [("linear", [1, 0], vec![]), ("linear", [0, 1], vec!["starts"]), ("circular", [3, 2], vec![])]
    {
        let mut operands = operands.clone();
        operands[2].1 = ints(&starts);
        let node = node("TensorScatter", &["cache", "updates", "starts"], &["y"], &[("mode", Attr::Text(mode))]);
        let mut want = cache.to_f64();
        for (b, h, i) in (0..2).flat_map(|b| (0..2).flat_map(move |h| (0..3).map(move |i| (b, h, i)))) {
            want[(b * 2 + h) * 4 + (starts[b] as usize + i) % 4] = 100.0 + ((b * 2 + h) * 3 + i) as f64;
        }
        assert_near(&results(node, &operands, &known, &["y"])[0], &[2, 2, 4, 1], &want);
    }
    let plain = node("TensorScatter", &["cache", "updates"], &["y"], &[]);
    let got = results(plain, &operands[..2], &[], &["y"]);
    assert_eq!(got[0].to_f64()[..5], [100.0, 101.0, 102.0, 3.0, 103.0]);
    let along_batch = node("TensorScatter", &["cache", "updates"], &["y"], &[("axis", Attr::Int(0))]);
    let text = loaded(along_batch, &operands[..2], &[], &["y"]).expect_err("it is refused").to_string();
    assert!(text.contains("must fit [2,2,4,1]"), "{text}");
}
