//! Layers with a state, cumulative products, shifts of signed integers, and forms of the newest operator sets.

use onnx_suite::model::{Attr, Dim, Model, info, node};
use types::{DType, Shape, Tensor};

use crate::attention::{assert_near, fused, loaded, numbers, results};
use crate::models::{check, floats, ints, refusal, x};

/// All update rules, with more queries than keys and the reverse, against the recurrence in `f64`.
#[test]
fn linear_attention_follows_its_recurrence() {
    let (batch, tokens, dk, dv) = (2, 3, 2, 3);
    for (rule, q_heads, kv_heads) in [("linear", 4, 2), ("gated", 2, 2), ("delta", 1, 3), ("gated_delta", 4, 2)] {
        let (is_gated, is_delta) = (rule.starts_with("gated"), rule.ends_with("delta"));
        let mut operands = vec![
            ("q", numbers(&[batch, tokens, q_heads * dk], 1)),
            ("k", numbers(&[batch, tokens, kv_heads * dk], 2)),
            ("v", numbers(&[batch, tokens, kv_heads * dv], 3)),
            ("past", numbers(&[batch, kv_heads, dk, dv], 4)),
        ];
        let mut names = vec!["q", "k", "v", "past", "", ""];
        if is_gated {
            names[4] = "decay";
            operands.push(("decay", numbers(&[batch, tokens, kv_heads * dk], 5)));
        }
        if is_delta {
            names[5] = "beta";
            operands.push(("beta", numbers(&[batch, tokens, kv_heads], 6)));
        }
        let items =
            |name: &str| operands.iter().find(|own| own.0 == name).map(|own| own.1.to_f64()).unwrap_or_default();
        let [q, k, v, decay, beta] = ["q", "k", "v", "decay", "beta"].map(items);
        let mut state = items("past");
        let heads = q_heads.max(kv_heads);
        let mut want = vec![0.0; batch * tokens * heads * dv];
        for (b, t) in (0..batch).flat_map(|b| (0..tokens).map(move |t| (b, t))) {
            for h in 0..kv_heads {
                let (row, own) =
                    ((b * tokens + t) * kv_heads + h, &mut state[(b * kv_heads + h) * dk * dv..][..dk * dv]);
                if is_gated {
                    own.iter_mut().enumerate().for_each(|(at, item)| *item *= decay[row * dk + at / dv].exp());
                }
                let mut value = v[row * dv..][..dv].to_vec();
                if is_delta {
                    for (m, value) in value.iter_mut().enumerate() {
                        *value = beta[row] * (*value - (0..dk).map(|d| own[d * dv + m] * k[row * dk + d]).sum::<f64>());
                    }
                }
                own.iter_mut().enumerate().for_each(|(at, item)| *item += k[row * dk + at / dv] * value[at % dv]);
            }
            for h in 0..heads {
                let (q_head, kv_head) = (h * q_heads / heads, h * kv_heads / heads);
                let own = &state[(b * kv_heads + kv_head) * dk * dv..][..dk * dv];
                let query = &q[((b * tokens + t) * q_heads + q_head) * dk..][..dk];
                for m in 0..dv {
                    let sum: f64 = (0..dk).map(|d| query[d] * own[d * dv + m]).sum();
                    want[((b * tokens + t) * heads + h) * dv + m] = sum / (dk as f64).sqrt();
                }
            }
        }
        let attributes = [
            ("q_num_heads", Attr::Int(q_heads as i64)),
            ("kv_num_heads", Attr::Int(kv_heads as i64)),
            ("update_rule", Attr::Text(rule)),
        ];
        let got = results(fused("LinearAttention", &names, &["y", "s"], &attributes), &operands, &[], &["y", "s"]);
        assert_near(&got[0], &[batch, tokens, heads * dv], &want);
        assert_near(&got[1], &[batch, kv_heads, dk, dv], &state);
    }
    let operands = [("q", numbers(&[1, 1, 4], 1)), ("k", numbers(&[1, 1, 4], 2)), ("v", numbers(&[1, 1, 4], 3))];
    let attributes = [("q_num_heads", Attr::Int(2)), ("kv_num_heads", Attr::Int(2))];
    let node = node("LinearAttention", &["q", "k", "v"], &["y", "s"], &attributes);
    let error = loaded(node, &operands, &[], &["y", "s"]).expect_err("there is no decay").to_string();
    assert!(error.ends_with("`decay` is missing"), "{error}");
}

#[test]
fn causal_convolution_carries_its_last_tokens() {
    let (batch, channels, tokens, k, dilation) = (2, 3, 4, 3, 2);
    let length = (k - 1) * dilation;
    let (input, weight, bias) =
        (numbers(&[batch, channels, tokens], 1), numbers(&[channels, 1, k], 2), numbers(&[channels], 3));
    let past = numbers(&[batch, channels, length], 4);
    let line = |at: usize| -> Vec<f64> {
        [&past.to_f64()[at * length..][..length], &input.to_f64()[at * tokens..][..tokens]].concat()
    };
    let lines: Vec<Vec<f64>> = (0..batch * channels).map(line).collect();
    let value = |at: usize| {
        let (row, token) = (at / tokens, at % tokens);
        let channel = row % channels;
        let sum: f64 = (0..k).map(|tap| lines[row][token + tap * dilation] * weight.to_f64()[channel * k + tap]).sum();
        let sum = sum + bias.to_f64()[channel];
        sum / (1.0 + (-sum).exp())
    };
    let want: Vec<f64> = (0..batch * channels * tokens).map(value).collect();
    let present: Vec<f64> = lines.iter().flat_map(|line| line[tokens..].to_vec()).collect();
    let attributes = [("activation", Attr::Text("silu")), ("dilation", Attr::Int(dilation as i64))];
    let operands = [("x", input.clone()), ("w", weight), ("b", bias), ("past", past.clone())];
    let names = ["x", "w", "b", "past"];
    let got = results(fused("CausalConvWithState", &names, &["y", "s"], &attributes), &operands, &["w"], &["y", "s"]);
    assert_near(&got[0], &[batch, channels, tokens], &want);
    assert_near(&got[1], &[batch, channels, length], &present);
    // Tokens first, and channels in two axes.
    let swapped = |x: &Tensor| {
        let [b, c, t] = x.shape()[..] else { unreachable!("it has rank 3") };
        Tensor::from_fn(Shape::from([b, t, c]), |at| x.to_f64()[(at / (t * c) * c + at % c) * t + at / c % t] as f32)
    };
    let last = |x: &Tensor| {
        let swapped = swapped(x);
        let [b, t, c] = swapped.shape()[..] else { unreachable!("it has rank 3") };
        swapped.reshape(Shape::from([b, t, 1, c])).expect("as many elements")
    };
    let operands = [("x", last(&input)), operands[1].clone(), operands[2].clone(), ("past", last(&past))];
    let attributes = [attributes.to_vec(), vec![("channels_last", Attr::Int(1))]].concat();
    let again = results(fused("CausalConvWithState", &names, &["y", "s"], &attributes), &operands, &["w"], &["y", "s"]);
    assert_near(&again[0], &[batch, tokens, 1, channels], &swapped(&got[0]).to_f64());
    assert_near(&again[1], &[batch, length, 1, channels], &swapped(&got[1]).to_f64());
    let refused = |name: &'static str, value: i64| {
        let node = fused("CausalConvWithState", &names, &["y", "s"], &[(name, Attr::Int(value))]);
        loaded(node, &operands, &["w"], &["y", "s"]).expect_err("it is refused").to_string()
    };
    assert!(refused("ndim", 2).ends_with("attribute `ndim` must be 1, got 2"));
    assert!(refused("state_window", 3).ends_with("attribute `state_window` must be 0, got 3"));
}

#[test]
fn cumulative_products_go_both_ways() {
    let input = floats(&[2, 5], &[1.0, 2.0, -3.0, 0.5, 4.0, 2.0, 2.0, 0.0, 3.0, 5.0]);
    for (exclusive, reverse) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let attributes = [("exclusive", Attr::Int(exclusive)), ("reverse", Attr::Int(reverse))];
        let model = Model::new(26, vec![x(&[2, 5])], vec![node("CumProd", &["x", "axis"], &["y"], &attributes)], "y")
            .with("axis", &Tensor::scalar(-1i64));
        let items = input.to_f64();
        let want: Vec<f64> = (0..10)
            .map(|at| {
                let (row, column) = (at / 5, at % 5);
                let range = match (exclusive, reverse) {
                    (0, 0) => 0..column + 1,
                    (0, _) => column..5,
                    (_, 0) => 0..column,
                    _ => column + 1..5,
                };
                items[row * 5..][range].iter().product()
            })
            .collect();
        check(&model, std::slice::from_ref(&input), &want);
    }
}

#[test]
fn shifts_of_signed_integers_extend_the_sign() {
    let of = |direction: &'static str| {
        let ports = ["x", "by"].map(|name| info(name, DType::I8, &[Dim::Is(5)]));
        let attributes = [("direction", Attr::Text(direction))];
        Model::new(28, ports.to_vec(), vec![node("BitShift", &["x", "by"], &["y"], &attributes)], "y")
    };
    let bytes = |items: [i8; 5]| Tensor::vector(items.to_vec());
    let inputs = [bytes([-128, 127, -3, 5, -1]), bytes([1, 1, -1, 8, 7])];
    check(&of("RIGHT"), &inputs, &[-64.0, 63.0, -1.0, 0.0, -1.0]);
    check(&of("LEFT"), &inputs, &[0.0, -2.0, 0.0, 0.0, -128.0]);
}

#[test]
fn forms_of_the_newest_operator_sets() {
    // The norm of zeros is 0.
    let model = Model::new(22, vec![x(&[2, 2])], vec![node("LpNormalization", &["x"], &["y"], &[])], "y");
    check(&model, &[floats(&[2, 2], &[0.0, 0.0, 3.0, 4.0])], &[0.0, 0.0, 0.6000000238418579, 0.800000011920929]);
    // No booleans: the least and the greatest.
    for (op, want) in [("ReduceMax", 0.0), ("ReduceMin", 1.0)] {
        let given = info("x", DType::Bool, &[Dim::Open, Dim::Open]);
        let model =
            Model::new(20, vec![given], vec![node(op, &["x", "axes"], &["y"], &[])], "y").with("axes", &ints(&[0]));
        let options = prestow_load::onnx::Options {
            shapes: [("x".to_string(), Shape::from([0, 2]))].into_iter().collect(),
            ..Default::default()
        };
        let graph = prestow_load::onnx::load(&model.write(), None, &options).expect("it is supported");
        let empty = Tensor::new(Shape::from([0, 2]), Vec::<bool>::new()).expect("there is no element");
        assert_eq!(ir::evaluate(&graph, &[empty]).expect("the input fits")[0].to_f64(), [want; 2]);
    }
    // Blocks of cells, or of depth.
    let input = floats(&[1, 2, 2, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    for (mode, want) in
        [("DCR", [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]), ("CRD", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])]
    {
        let attributes = [("blocksize", Attr::Int(2)), ("mode", Attr::Text(mode))];
        let nodes = vec![node("SpaceToDepth", &["x"], &["y"], &attributes)];
        check(&Model::new(28, vec![x(&[1, 2, 2, 2])], nodes, "y"), std::slice::from_ref(&input), &want);
    }
    let nodes = vec![node("SwiGLU", &["x", "x"], &["y"], &[("alpha", Attr::Float(2.0))])];
    let got = crate::models::run(&Model::new(28, vec![x(&[1])], nodes.clone(), "y"), &[floats(&[1], &[0.5])]);
    assert!((got[0].to_f64()[0] - 0.25 / (1.0 + (-1f64).exp())).abs() < 1e-6);
    let model = Model::new(28, vec![x(&[1]), info("z", DType::F32, &[Dim::Is(2)])], nodes, "y");
    let model = Model { nodes: vec![node("SwiGLU", &["x", "z"], &["y"], &[])], ..model };
    assert!(refusal(&model).contains("operands must have equal shapes, got [1] and [2]"));
}

/// The softmax of `f64` is computed from its definition.
#[test]
fn softmax_of_doubles_is_not_rounded_to_singles() {
    let input = Tensor::new(Shape::from([1, 3]), vec![1.0f64, 2.0, 1e3]).expect("three elements");
    for (op, log) in [("Softmax", false), ("LogSoftmax", true)] {
        let given = info("x", DType::F64, &[Dim::Is(1), Dim::Is(3)]);
        let model = Model::new(13, vec![given], vec![node(op, &["x"], &["y"], &[])], "y");
        let items = [1.0f64, 2.0, 1e3];
        let sum: f64 = items.iter().map(|x| (x - 1e3).exp()).sum();
        let want = items.map(|x| if log { x - 1e3 - sum.ln() } else { (x - 1e3).exp() / sum });
        check(&model, std::slice::from_ref(&input), &want);
    }
}
