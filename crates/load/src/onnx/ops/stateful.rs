//! Layers that carry a state of constant size from token to token: `CausalConvWithState` and `LinearAttention` of opset 27 and
//! of domain `com.microsoft`. Sources: ONNX, docs/Operators.md; onnxruntime, docs/ContribOperators.md.

use ir::ops::{self, Slice};
use ir::{Refusal, TensorType};
use smallvec::smallvec;
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use super::attention;
use crate::common::{NodeResult, Operand, counts, refuse};
use crate::onnx::node::ImportedNode;

/// Refuses attributes of `com.microsoft` with another value than their default.
fn only_default(node: &ImportedNode, defaults: &[(&str, i64)]) -> Result<(), Refusal> {
    for &(name, default) in defaults {
        match node.int_or(name, default)? {
            value if value == default => {}
            value => refuse!("attribute `{name}` must be {default}, got {value}"),
        }
    }
    Ok(())
}

/// `CausalConvWithState`: each channel of `x: [batch, channels, tokens]` convolved with its row of `weight: [channels, 1, k]`
/// over itself and earlier tokens; then a bias `[channels]` and SiLU, if any. The past state has the `(k - 1) * dilation`
/// tokens in front, zeros if absent. Results: `y` of the shape of `x`, and the present state. With `channels_last`, `x` and
/// the states are `[batch, tokens, ..channels]`.
pub(super) fn causal_conv(node: &mut ImportedNode) -> NodeResult {
    only_default(
        node,
        &[
            ("ndim", 1),
            ("state_window", 0),
            ("state_channels_last", -1),
            ("state_length", 0),
            ("state_update_capacity", 0),
            ("input_channels", 0),
            ("input_channel_offset", 0),
        ],
    )?;
    let is_last = node.flag("channels_last")?;
    let dilation = counts(&[node.int_or("dilation", 1)?], "dilation")?[0];
    let is_activated = match node.text_or("activation", "none") {
        "none" => false,
        "silu" | "swish" => true,
        other => refuse!("attribute `activation` must be `none`, `silu` or `swish`, got `{other}`"),
    };
    let (x, weight, bias, past) = (node.input(0)?, node.input(1)?, node.optional(2), node.optional(3));
    let (given, dtype) = (node.shape(x), node.dtype(x));
    let [channels, 1, k] = node.shape(weight)[..] else {
        refuse!("weight must have shape [channels, 1, k], got {}", node.shape(weight));
    };
    if k == 0 || dilation == 0 || given.rank() < 3 || (!is_last && given.rank() != 3) {
        refuse!("input {given}, weight {} and dilation {dilation} must fit", node.shape(weight));
    }
    // Tokens along the last axis.
    let first = |node: &mut ImportedNode, x: Operand, name: &str| {
        let shape = node.shape(x);
        let x = match is_last {
            true if 3 <= shape.rank() => {
                let flat = Shape::from([shape[0], shape[1], shape[2..].iter().product()]);
                let x = node.reshape(x, flat)?;
                node.transpose(x, &[0, 2, 1])?
            }
            _ => x,
        };
        match node.shape(x)[..] {
            [_, own, _] if own == channels => Ok(x),
            _ => refuse!("{name} must have {channels} channels, got shape {shape}"),
        }
    };
    let x = first(node, x, "input")?;
    let [batch, _, tokens] = node.shape(x)[..] else { refuse!("input must have rank 3") };
    let length = (k - 1).saturating_mul(dilation);
    let state = Shape::from([batch, channels, length]);
    let past = match past {
        Some(past) => first(node, past, "the past state")?,
        None => {
            TensorType::new(dtype, state.clone()).check_size()?;
            let zero = node.number(0.0, dtype);
            node.expand(zero, state.clone())?
        }
    };
    if node.shape(past) != state {
        refuse!("the past state must have {length} tokens, got shape {}", node.shape(past));
    }
    let all = if length == 0 { x } else { node.apply(ops::Concat { axis: 2 }, &[past, x])? };
    let conv = ops::Conv {
        stride: smallvec![1],
        dilation: smallvec![dilation],
        pad: smallvec![[0, 0]],
        groups: channels,
        zero: 0,
        epilogue: ops::Epilogue::bias(bias.is_some()),
    };
    let operands: Vec<Operand> = [all, weight].into_iter().chain(bias).collect();
    let (wide, _) = node.widen(&operands)?;
    let mut y = node.apply(conv, &wide)?;
    if is_activated {
        let gate = node.unary(Unary::Sigmoid, y)?;
        y = node.binary(Binary::Mul, y, gate)?;
    }
    let y = node.cast(y, dtype)?;
    let present =
        node.apply(Slice::range(&Shape::from([batch, channels, length + tokens]), 2, tokens, length), &[all])?;
    if !is_last {
        return Ok(vec![y, present]);
    }
    let back = |node: &mut ImportedNode, x: Operand| {
        let x = node.transpose(x, &[0, 2, 1])?;
        let mut shape = given.clone();
        shape[1] = node.shape(x)[1];
        node.reshape(x, shape)
    };
    Ok(vec![back(node, y)?, back(node, present)?])
}

/// Most tokens of one run: each adds some nodes to the graph.
const TOKENS_MAX: usize = 4096;

/// `LinearAttention`: a matrix for each head, to which the outer product of a token's key and value is added, and which the
/// token's query multiplies. By `update_rule`, the matrix decays before (`gated`), and the value is replaced by `beta` times
/// its difference from the value that the matrix has for the key (`delta`).
///
/// `query: [batch, tokens, q_heads * dk]`, `key: [batch, tokens, kv_heads * dk]`, `value: [batch, tokens, kv_heads * dv]`,
/// optionally a past state `[batch, kv_heads, dk, dv]`, logarithms of decays `[batch, tokens, kv_heads]` or `[batch, tokens,
/// kv_heads * dk]`, and `beta` `[batch, tokens, kv_heads]` or `[batch, tokens, 1]`. Results: `[batch, tokens, heads * dv]`
/// with the larger number of heads, and the present state. Tokens are unrolled, so that a run has at most 4096.
pub(super) fn linear_attention(node: &mut ImportedNode) -> NodeResult {
    // A hint.
    node.ignore(&["chunk_size"]);
    only_default(node, &[("state_window", 0)])?;
    let (is_gated, is_delta) = match node.text_or("update_rule", "gated_delta") {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => refuse!("attribute `update_rule`: `{other}` is not supported"),
    };
    let mut heads = [0; 2];
    for (heads, name) in heads.iter_mut().zip(["q_num_heads", "kv_num_heads"]) {
        *heads = match node.int(name)? {
            Some(count @ 1..=65_536) => count as usize,
            other => refuse!("attribute `{name}` must be in 1..=65536, got {}", other.unwrap_or(0)),
        };
    }
    let [q_heads, kv_heads] = heads;
    if !q_heads.is_multiple_of(kv_heads) && !kv_heads.is_multiple_of(q_heads) {
        refuse!("of {q_heads} heads of queries and {kv_heads} of keys, one must be a multiple of the other");
    }
    let (query, key, value) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let dtype = node.dtype(query);
    // `[batch, tokens, heads, width]`, in `f32`.
    let apart = |node: &mut ImportedNode, x: Operand, heads: usize, name: &str| {
        let shape = node.shape(x);
        let [batch, tokens, all] = shape[..] else { refuse!("{name} must have rank 3, got {shape}") };
        if !all.is_multiple_of(heads) {
            refuse!("{name} {shape} must have a multiple of {heads} heads");
        }
        let x = node.cast(x, DType::F32)?;
        node.reshape(x, Shape::from([batch, tokens, heads, all / heads]))
    };
    let query = apart(node, query, q_heads, "queries")?;
    let (key, value) = (apart(node, key, kv_heads, "keys")?, apart(node, value, kv_heads, "values")?);
    let [batch, tokens, _, dk] = node.shape(query)[..] else { refuse!("queries must have rank 3") };
    let dv = node.shape(value)[3];
    let want = [Shape::from([batch, tokens, kv_heads, dk]), Shape::from([batch, tokens, kv_heads, dv])];
    for (operand, want) in [key, value].into_iter().zip(&want) {
        if node.shape(operand) != *want {
            refuse!("keys and values must have the shape {want} with heads apart, got {}", node.shape(operand));
        }
    }
    if TOKENS_MAX < tokens {
        refuse!("at most {TOKENS_MAX} tokens are supported, got {tokens}");
    }
    let decay = match (is_gated, node.optional(4)) {
        (true, Some(decay)) => {
            let decay = apart(node, decay, kv_heads, "`decay`")?;
            match node.shape(decay)[..] {
                [b, t, _, width] if (b, t) == (batch, tokens) && (width == 1 || width == dk) => {}
                _ => refuse!("`decay` must have 1 or {dk} numbers for each head, got {}", node.shape(decay)),
            }
            Some(node.unary(Unary::Exp, decay)?)
        }
        (false, None) => None,
        (true, None) => refuse!("`decay` is missing"),
        (false, Some(_)) => refuse!("`decay` must be absent for this `update_rule`"),
    };
    let beta = match (is_delta, node.optional(5)) {
        (true, Some(beta)) => {
            let shape = node.shape(beta);
            let [_, _, own] = shape[..] else { refuse!("`beta` must have rank 3, got {shape}") };
            let beta = apart(node, beta, own.max(1), "`beta`")?;
            match node.shape(beta)[..] {
                [b, t, own, 1] if (b, t) == (batch, tokens) && (own == 1 || own == kv_heads) => Some(beta),
                _ => refuse!("`beta` must have 1 or {kv_heads} numbers for each token, got {shape}"),
            }
        }
        (false, None) => None,
        (true, None) => refuse!("`beta` is missing"),
        (false, Some(_)) => refuse!("`beta` must be absent for this `update_rule`"),
    };
    let want = Shape::from([batch, kv_heads, dk, dv]);
    let (mut state, state_dtype) = match node.optional(3) {
        Some(past) if node.shape(past) == want => (node.cast(past, DType::F32)?, node.dtype(past)),
        Some(past) => refuse!("the past state must have shape {want}, got {}", node.shape(past)),
        None => {
            let zero = node.number(0.0, DType::F32);
            (node.expand(zero, want)?, dtype)
        }
    };
    let scale = match node.float_or("scale", 0.0)? {
        0.0 => 1.0 / (dk as f32).sqrt(),
        scale => scale,
    };
    let scale = node.number(f64::from(scale), DType::F32);
    let query = node.binary(Binary::Mul, query, scale)?;
    // Several queries read the matrix of one key, or several keys have one query.
    let (rows, repeats) = (q_heads.div_ceil(kv_heads), kv_heads.div_ceil(q_heads));
    let of_token = |node: &mut ImportedNode, x: Operand, at: usize, extents: [usize; 4]| {
        let shape = node.shape(x);
        let part = node.apply(Slice::range(&shape, 1, at, 1), &[x])?;
        node.reshape(part, Shape::from(extents))
    };
    let mut results = Vec::new();
    for at in 0..tokens {
        if let Some(decay) = decay {
            let [_, _, heads, width] = node.shape(decay)[..] else { refuse!("`decay` must have rank 4") };
            let decay = of_token(node, decay, at, [batch, heads, width, 1])?;
            state = node.binary(Binary::Mul, state, decay)?;
        }
        let mut value = of_token(node, value, at, [batch, kv_heads, 1, dv])?;
        if let Some(beta) = beta {
            let row = of_token(node, key, at, [batch, kv_heads, 1, dk])?;
            let known = node.mat_mul(row, state)?;
            let difference = node.binary(Binary::Sub, value, known)?;
            let heads = node.shape(beta)[2];
            let beta = of_token(node, beta, at, [batch, heads, 1, 1])?;
            value = node.binary(Binary::Mul, difference, beta)?;
        }
        let column = of_token(node, key, at, [batch, kv_heads, dk, 1])?;
        let product = node.binary(Binary::Mul, column, value)?;
        state = node.binary(Binary::Add, state, product)?;
        let mut q = of_token(node, query, at, [batch, q_heads.min(kv_heads), rows, dk])?;
        if 1 < repeats {
            q = attention::repeat_heads(node, q, kv_heads)?;
        }
        let y = node.mat_mul(q, state)?;
        results.push(node.reshape(y, Shape::from([batch, 1, q_heads.max(kv_heads) * dv]))?);
    }
    let y = match results[..] {
        [] => {
            let zero = node.number(0.0, DType::F32);
            node.expand(zero, Shape::from([batch, 0, q_heads.max(kv_heads) * dv]))?
        }
        [y] => y,
        _ => node.apply(ops::Concat { axis: 1 }, &results)?,
    };
    Ok(vec![node.cast(y, dtype)?, node.cast(state, state_dtype)?])
}
