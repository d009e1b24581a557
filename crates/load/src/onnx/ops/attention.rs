//! Attention: `Attention` of opset 23 and later, and the fused attention of domain `com.microsoft`. Sources: ONNX,
//! docs/Operators.md; onnxruntime, docs/ContribOperators.md.
//!
//! Past and present keys and values have static extents. Where the number of keys in use depends on a run-time input, the
//! others are hidden: their bytes must be finite numbers.

use ir::ops::{ReduceKind, Slice};
use ir::{Refusal, ops};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use super::fused::scaled;
use super::quantized::integer_product;
use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// Queries, keys and values `[batch, heads, tokens, width]`, and the arithmetic on their products.
pub(super) struct Heads {
    pub(super) q: Operand,
    pub(super) k: Operand,
    pub(super) v: Operand,
    pub(super) scale: f32,
    /// Products are bounded to this magnitude by a hyperbolic tangent.
    pub(super) softcap: f32,
    /// Added to the products; minus infinity hides a key.
    pub(super) bias: Option<Operand>,
    /// The product of each head with a key whose value is zero.
    pub(super) sink: Option<Operand>,
}

/// The steps of attention that a model may ask for.
pub(super) struct Attended {
    pub(super) y: Operand,
    pub(super) products: Operand,
    pub(super) capped: Operand,
    pub(super) biased: Operand,
    pub(super) weights: Operand,
}

/// A tensor of rank 4.
pub(super) fn extents(node: &ImportedNode, x: Operand, name: &str) -> Result<[usize; 4], Refusal> {
    match node.shape(x)[..] {
        [batch, heads, tokens, width] => Ok([batch, heads, tokens, width]),
        _ => refuse!("{name} must have rank 4, got {}", node.shape(x)),
    }
}

/// `[batch, tokens, heads * width]` as `[batch, heads, tokens, width]`.
pub(super) fn split_heads(node: &mut ImportedNode, x: Operand, heads: usize, name: &str) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let [batch, tokens, all] = shape[..] else { refuse!("{name} must have rank 3, got {shape}") };
    if heads == 0 || !all.is_multiple_of(heads) {
        refuse!("{name} {shape} must have a multiple of {heads} heads");
    }
    let x = node.reshape(x, Shape::from([batch, tokens, heads, all / heads]))?;
    node.transpose(x, &[0, 2, 1, 3])
}

/// `[batch, heads, tokens, width]` as `[batch, tokens, heads * width]`.
pub(super) fn join_heads(node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
    let [batch, heads, tokens, width] = extents(node, x, "the result")?;
    let x = node.transpose(x, &[0, 2, 1, 3])?;
    node.reshape(x, Shape::from([batch, tokens, heads * width]))
}

/// Each head of keys or values for as many heads of queries.
pub(super) fn repeat_heads(node: &mut ImportedNode, x: Operand, q_heads: usize) -> Result<Operand, Refusal> {
    let [batch, heads, tokens, width] = extents(node, x, "keys and values")?;
    if heads == q_heads {
        return Ok(x);
    }
    if heads == 0 || !q_heads.is_multiple_of(heads) {
        refuse!("{q_heads} heads of queries must be a multiple of {heads} heads of keys");
    }
    let each = q_heads / heads;
    let x = node.reshape(x, Shape::from([batch, heads, 1, tokens, width]))?;
    let x = node.expand(x, Shape::from([batch, heads, each, tokens, width]))?;
    node.reshape(x, Shape::from([batch, q_heads, tokens, width]))
}

/// `softmax(q k^T * scale + bias) v`; queries whose keys are all hidden have results of 0.
fn attend(node: &mut ImportedNode, heads: Heads) -> Result<Attended, Refusal> {
    attend_if(node, heads, true)
}

/// [`attend`]; `may_hide_all` is whether the bias may hide all keys from a query.
pub(super) fn attend_if(node: &mut ImportedNode, heads: Heads, may_hide_all: bool) -> Result<Attended, Refusal> {
    let [_, q_heads, ..] = extents(node, heads.q, "queries")?;
    let (operands, dtype) = node.widen(&[heads.q, heads.k, heads.v])?;
    let k = repeat_heads(node, operands[1], q_heads)?;
    let v = repeat_heads(node, operands[2], q_heads)?;
    let k = node.transpose(k, &[0, 1, 3, 2])?;
    let products = node.mat_mul(operands[0], k)?;
    let inner = node.dtype(products);
    let scale = node.number(f64::from(heads.scale), inner);
    let products = node.binary(Binary::Mul, products, scale)?;
    let mut capped = products;
    if 0.0 < heads.softcap {
        let [cap, inverse] = [heads.softcap, 1.0 / heads.softcap].map(|number| node.number(f64::from(number), inner));
        let small = node.binary(Binary::Mul, products, inverse)?;
        let small = node.unary(Unary::Tanh, small)?;
        capped = node.binary(Binary::Mul, small, cap)?;
    }
    let mut biased = capped;
    let mut sees = None;
    if let Some(bias) = heads.bias {
        let bias = node.cast(bias, inner)?;
        biased = node.binary(Binary::Add, capped, bias)?;
        sees = if may_hide_all { sees_keys(node, bias)? } else { None };
    }
    let mut weights = match heads.sink {
        None => node.softmax(biased, 3, false)?,
        Some(sink) => softmax_with_sink(node, biased, sink)?,
    };
    let mut y = node.mat_mul(weights, v)?;
    if let Some(sees) = sees {
        let zero = node.number(0.0, inner);
        weights = node.select(sees, weights, zero)?;
        y = node.select(sees, y, zero)?;
    }
    let mut narrow = |x: Operand| node.cast(x, dtype);
    Ok(Attended {
        y: narrow(y)?,
        products: narrow(products)?,
        capped: narrow(capped)?,
        biased: narrow(biased)?,
        weights: narrow(weights)?,
    })
}

/// The softmax over the last axis and one more product, that of `sink`: a number for each head, or one for all.
fn softmax_with_sink(node: &mut ImportedNode, products: Operand, sink: Operand) -> Result<Operand, Refusal> {
    let [batch, heads, queries, keys] = extents(node, products, "the products")?;
    let sink = node.cast(sink, node.dtype(products))?;
    let sink = match node.shape(sink).elements() {
        1 => node.reshape(sink, Shape::from([1, 1, 1, 1]))?,
        count if count == heads => node.reshape(sink, Shape::from([1, heads, 1, 1]))?,
        count => refuse!("there must be a sink for each of {heads} heads, got {count}"),
    };
    let sink = node.expand(sink, Shape::from([batch, heads, queries, 1]))?;
    let all = node.apply(ops::Concat { axis: 3 }, &[products, sink])?;
    let weights = node.softmax(all, 3, false)?;
    let shape = node.shape(weights);
    node.apply(Slice::range(&shape, 3, 0, keys), &[weights])
}

/// Whether each query sees a key, `[.., queries, 1]`; `None` if all do by a constant bias.
fn sees_keys(node: &mut ImportedNode, bias: Operand) -> Result<Option<Operand>, Refusal> {
    let rank = node.shape(bias).rank();
    if rank == 0 {
        return Ok(None);
    }
    let top = node.reduce(ReduceKind::Max, bias, [rank - 1].into_iter().collect(), true)?;
    let lowest = node.number(f64::NEG_INFINITY, node.dtype(bias));
    let sees = node.compare(Compare::Greater, top, lowest)?;
    let all = node.constant_value(sees).is_some_and(|sees| sees.to_i64().iter().all(|&sees| sees != 0));
    Ok((!all).then_some(sees))
}

/// 0 where a condition holds, else minus infinity.
fn hidden_unless(node: &mut ImportedNode, condition: Operand) -> Result<Operand, Refusal> {
    let (zero, hidden) = (node.number(0.0, DType::F32), node.number(f64::NEG_INFINITY, DType::F32));
    node.select(condition, zero, hidden)
}

fn sum(node: &mut ImportedNode, a: Option<Operand>, b: Operand) -> Result<Option<Operand>, Refusal> {
    Ok(Some(match a {
        Some(a) => node.binary(Binary::Add, a, b)?,
        None => b,
    }))
}

/// A mask of booleans, or of numbers that are added, for `keys` keys; those that it lacks at the end are hidden.
fn mask_bias(node: &mut ImportedNode, mask: Operand, keys: usize) -> Result<Operand, Refusal> {
    let mut bias = match node.dtype(mask) {
        DType::Bool => hidden_unless(node, mask)?,
        dtype if dtype.is_float() => node.widen(&[mask])?.0[0],
        dtype => refuse!("`attn_mask` must be of bool or floats, got {dtype}"),
    };
    let mut shape = node.shape(bias);
    let rank = shape.rank();
    if rank != 0 && shape[rank - 1] < keys {
        shape[rank - 1] = keys - shape[rank - 1];
        let hidden = node.number(f64::NEG_INFINITY, node.dtype(bias));
        let hidden = node.expand(hidden, shape)?;
        bias = node.apply(ops::Concat { axis: rank - 1 }, &[bias, hidden])?;
    }
    Ok(bias)
}

/// `Attention`: operands `q, k, v`, and optionally a mask, past keys and values, and the number of keys of each batch
/// element; results: `y`, present keys and values, and the products after one of the steps.
pub(super) fn attention(node: &mut ImportedNode) -> NodeResult {
    // Softmax is computed in f32 or f64.
    node.ignore(&["softmax_precision"]);
    let [q, k, v] = [node.input(0)?, node.input(1)?, node.input(2)?];
    let is_flat = node.shape(q).rank() == 3;
    let count = |node: &ImportedNode, name: &str| match node.int(name)? {
        Some(count @ 1..=65_536) => Ok(Some(count as usize)),
        Some(count) => refuse!("attribute `{name}`: {count} is not supported"),
        None => Ok(None),
    };
    let (q_heads, kv_heads) = (count(node, "q_num_heads")?, count(node, "kv_num_heads")?);
    let (q, k, v) = match (is_flat, q_heads, kv_heads) {
        (false, ..) => (q, k, v),
        (true, Some(q_heads), Some(kv_heads)) => (
            split_heads(node, q, q_heads, "queries")?,
            split_heads(node, k, kv_heads, "keys")?,
            split_heads(node, v, kv_heads, "values")?,
        ),
        _ => refuse!("attributes `q_num_heads` and `kv_num_heads` are missing"),
    };
    let [_, _, queries, width] = extents(node, q, "queries")?;
    let (k, v, past) = match (node.optional(4), node.optional(5)) {
        (Some(past_key), Some(past_value)) => {
            let [_, _, past, _] = extents(node, past_key, "past keys")?;
            let k = node.apply(ops::Concat { axis: 2 }, &[past_key, k])?;
            (k, node.apply(ops::Concat { axis: 2 }, &[past_value, v])?, past)
        }
        (None, None) => (k, v, 0),
        _ => refuse!("past keys and values must be given together"),
    };
    let [batch, _, keys, _] = extents(node, k, "keys")?;
    let counts = node.optional(6);
    let mut bias = match node.optional(3) {
        Some(mask) => Some(mask_bias(node, mask, keys)?),
        None => None,
    };
    let is_causal = node.flag("is_causal")?;
    let window = |node: &ImportedNode, name: &str| match node.int_or(name, -1)? {
        -1 => Ok(None),
        size @ 0.. => Ok(Some(size)),
        size => refuse!("attribute `{name}` must be -1 or more, got {size}"),
    };
    let (left, right) = (window(node, "left_window_size")?, window(node, "right_window_size")?);
    let counts = match counts {
        Some(counts) => {
            let counts = node.cast(counts, DType::I64)?;
            Some(node.reshape(counts, Shape::from([batch, 1, 1, 1]))?)
        }
        None => None,
    };
    if is_causal || left.is_some() || right.is_some() {
        // How far each key is behind its query.
        let mut behind = node.constant_of([queries, keys], |at| {
            (at / keys.max(1)) as i64 + if counts.is_none() { past as i64 } else { 0 } - (at % keys.max(1)) as i64
        })?;
        if let Some(counts) = counts {
            // The last query is at the last key.
            let queries = node.number(queries as f64, DType::I64);
            let shift = node.binary(Binary::Sub, counts, queries)?;
            behind = node.binary(Binary::Add, behind, shift)?;
        }
        let ahead = if is_causal { Some(0) } else { None }.into_iter().chain(right).min();
        for (bound, function) in [(left, Compare::LessOrEqual), (ahead.map(|ahead| -ahead), Compare::GreaterOrEqual)] {
            let Some(bound) = bound else { continue };
            let bound = node.number(bound as f64, DType::I64);
            let is_seen = node.compare(function, behind, bound)?;
            let hidden = hidden_unless(node, is_seen)?;
            bias = sum(node, bias, hidden)?;
        }
    }
    if let Some(counts) = counts {
        let numbers = node.constant_of([1, 1, 1, keys], |at| at as i64)?;
        let is_seen = node.compare(Compare::Less, numbers, counts)?;
        let hidden = hidden_unless(node, is_seen)?;
        bias = sum(node, bias, hidden)?;
    }
    let scale = node.float("scale")?.unwrap_or(1.0 / (width as f32).sqrt());
    let softcap = node.float_or("softcap", 0.0)?;
    let mode = node.int_or("qk_matmul_output_mode", 0)?;
    let Attended { y, products, capped, biased, weights } =
        attend(node, Heads { q, k, v, scale, softcap, bias, sink: None })?;
    let step = match mode {
        0 => products,
        1 => capped,
        2 => biased,
        3 => weights,
        mode => refuse!("attribute `qk_matmul_output_mode` must be from 0 to 3, got {mode}"),
    };
    let y = if is_flat { join_heads(node, y)? } else { y };
    Ok(vec![y, k, v, step])
}

/// Past and new keys or values, joined along the tokens; both `[batch, heads, tokens, width]`.
fn joined(node: &mut ImportedNode, past: Option<Operand>, new: Operand) -> Result<Operand, Refusal> {
    match past {
        None => Ok(new),
        Some(past) => node.apply(ops::Concat { axis: 2 }, &[past, new]),
    }
}

/// Part `ix` of `count` parts that are packed along axis 3 of `[batch, tokens, heads, count, width]`, as `[batch, heads,
/// tokens, width]`.
fn packed_part(node: &mut ImportedNode, x: Operand, ix: usize, count: usize) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let [batch, tokens, heads, parts, width] = shape[..] else { refuse!("{shape} must have rank 5") };
    if parts != count {
        refuse!("axis 3 of packed input {shape} must have {count} elements");
    }
    let part = node.apply(Slice::range(&shape, 3, ix, 1), &[x])?;
    let part = node.reshape(part, Shape::from([batch, tokens, heads, width]))?;
    node.transpose(part, &[0, 2, 1, 3])
}

/// `MultiHeadAttention`: queries, keys and values `[batch, tokens, heads * width]`, and optionally their biases in one
/// vector, a mask of keys, numbers that are added to the products, and past keys and values. Keys and values may have the
/// heads apart, `[batch, heads, tokens, width]`, or be packed: all three `[batch, tokens, heads, 3, width]`, or keys and
/// values `[batch, tokens, heads, 2, width]`. Results: `y`, and present keys and values.
pub(super) fn multi_head(node: &mut ImportedNode) -> NodeResult {
    if (8..10).any(|ix| node.optional(ix).is_some()) {
        refuse!("past keys in a buffer that is shared with the present ones are not supported");
    }
    let heads = heads_attribute(node)?;
    let (query, key, value) = (node.input(0)?, node.optional(1), node.optional(2));
    let bias = node.optional(3);
    // The operands of rank 3, and where their part of the bias begins.
    let mut first = 0;
    let mut apart = |node: &mut ImportedNode, x: Operand, name: &str| -> Result<Operand, Refusal> {
        let shape = node.shape(x);
        let [_, _, width] = shape[..] else { refuse!("{name} must have rank 3, got {shape}") };
        let mut x = x;
        if let Some(bias) = bias {
            let part = vector_part(node, bias, first, width)?;
            x = node.binary(Binary::Add, x, part)?;
        }
        first += width;
        split_heads(node, x, heads, name)
    };
    let rank = |node: &ImportedNode, x: Option<Operand>| x.map_or(0, |x| node.shape(x).rank());
    let operands = match (rank(node, Some(query)), rank(node, key), rank(node, value)) {
        (5, 0, 0) if bias.is_none() => {
            [packed_part(node, query, 0, 3)?, packed_part(node, query, 1, 3)?, packed_part(node, query, 2, 3)?]
        }
        (3, 5, 0) if bias.is_none() => {
            let key = node.input(1)?;
            [apart(node, query, "queries")?, packed_part(node, key, 0, 2)?, packed_part(node, key, 1, 2)?]
        }
        (3, 4, 4) => [apart(node, query, "queries")?, node.input(1)?, node.input(2)?],
        (3, 3, 3) => {
            let (key, value) = (node.input(1)?, node.input(2)?);
            [apart(node, query, "queries")?, apart(node, key, "keys")?, apart(node, value, "values")?]
        }
        (q, k, v) => {
            refuse!("queries of rank {q} with keys of rank {k}, values of rank {v} and their bias are not supported")
        }
    };
    let past = [node.optional(6), node.optional(7)];
    if past[0].is_some() != past[1].is_some() {
        refuse!("past keys and values must be given together");
    }
    let [q, k, v] = operands;
    let (k, v) = (joined(node, past[0], k)?, joined(node, past[1], v)?);
    let past = past[0].map_or(0, |past| node.shape(past)[2]);
    let y = masked(node, [q, k, v], past, node.optional(4), node.optional(5))?;
    Ok(vec![y, k, v])
}

/// `Attention` of `com.microsoft`: tokens `[batch, tokens, inputs]`, weights `[inputs, 3 * heads * width]` and biases, and
/// optionally a mask, past keys and values `[2, batch, heads, tokens, width]` and numbers that are added to the products.
/// Results: `y`, and present keys and values.
pub(super) fn of_microsoft(node: &mut ImportedNode) -> NodeResult {
    let (x, weights) = (node.input(0)?, node.input(1)?);
    let mut projected = node.mat_mul(x, weights)?;
    if let Some(bias) = node.optional(2) {
        projected = node.binary(Binary::Add, projected, bias)?;
    }
    if node.optional(6).is_some() {
        refuse!("past keys in a buffer that is shared with the present ones are not supported");
    }
    projected_attention(node, projected, node.optional(3), node.optional(4), node.optional(5))
}

/// `QAttention`: as `Attention`, of tokens and weights in bytes with their scales and zero points.
pub(super) fn quantized(node: &mut ImportedNode) -> NodeResult {
    let (x, weights) = (node.input(0)?, node.input(1)?);
    let sums = integer_product(node, x, weights, node.optional(6), node.optional(7))?;
    let (x_scale, weight_scale) = (node.input(3)?, node.input(4)?);
    let projected = scaled(node, sums, x_scale, weight_scale, node.optional(2))?.swap_remove(0);
    projected_attention(node, projected, node.optional(5), node.optional(8), None)
}

/// Attention of queries, keys and values that are side by side in `[batch, tokens, ..]`.
fn projected_attention(
    node: &mut ImportedNode,
    projected: Operand,
    mask: Option<Operand>,
    past: Option<Operand>,
    added: Option<Operand>,
) -> NodeResult {
    if node.flag("do_rotary")? || node.flag("past_present_share_buffer")? {
        refuse!("attributes `do_rotary` and `past_present_share_buffer` must be 0");
    }
    node.ignore(&["rotary_embedding_dim"]);
    let heads = heads_attribute(node)?;
    let shape = node.shape(projected);
    let [_, _, columns] = shape[..] else { refuse!("tokens must have rank 3, got {shape}") };
    let widths = match node.ints("qkv_hidden_sizes")? {
        Some(sizes) => sizes,
        None => vec![columns as i64 / 3; 3],
    };
    let widths: Vec<usize> = widths.into_iter().map(|width| usize::try_from(width).unwrap_or(0)).collect();
    if widths.len() != 3 || widths.iter().fold(0, |sum: usize, &width| sum.saturating_add(width)) != columns {
        refuse!("the widths of queries, keys and values must add up to {columns}");
    }
    let mut operands = [projected; 3];
    let mut first = 0;
    for (operand, width) in operands.iter_mut().zip(widths) {
        let part = node.apply(Slice::range(&shape, 2, first, width), &[projected])?;
        *operand = split_heads(node, part, heads, "input")?;
        first += width;
    }
    let [q, mut k, mut v] = operands;
    let mut n_past = 0;
    if let Some(past) = past {
        let shape = node.shape(past);
        let [2, batch, heads, tokens, width] = shape[..] else {
            refuse!("past keys and values must have shape [2, batch, heads, tokens, width], got {shape}")
        };
        n_past = tokens;
        for (ix, operand) in [&mut k, &mut v].into_iter().enumerate() {
            let part = node.apply(Slice::range(&shape, 0, ix, 1), &[past])?;
            let part = node.reshape(part, Shape::from([batch, heads, tokens, width]))?;
            *operand = joined(node, Some(part), *operand)?;
        }
    }
    let y = masked(node, [q, k, v], n_past, mask, added)?;
    if !node.has_output(1) {
        return Ok(vec![y]);
    }
    let mut both = Vec::new();
    for operand in [k, v] {
        let mut shape = node.shape(operand);
        shape.insert(0, 1);
        both.push(node.reshape(operand, shape)?);
    }
    let present = node.apply(ops::Concat { axis: 0 }, &both)?;
    Ok(vec![y, present])
}

pub(super) fn heads_attribute(node: &ImportedNode) -> Result<usize, Refusal> {
    match node.int("num_heads")? {
        Some(heads @ 1..=65_536) => Ok(heads as usize),
        Some(heads) => refuse!("attribute `num_heads`: {heads} is not supported"),
        None => refuse!("attribute `num_heads` is missing"),
    }
}

fn vector_part(node: &mut ImportedNode, x: Operand, first: usize, count: usize) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    match shape[..] {
        [all] if first + count <= all => {}
        _ => refuse!("biases must be a vector of at least {} elements, got {shape}", first + count),
    }
    let mut slice = Slice::whole(&shape);
    (slice.start[0], slice.count[0]) = (first, count);
    node.apply(slice, &[x])
}

/// Attention with the masks of `com.microsoft`, joined to `[batch, tokens, heads * width]`: a mask of zeros and ones for
/// keys, `[batch, keys]`, or `[batch, queries, keys]`, the number of keys of each batch element, or those numbers and behind
/// them the first key of each. With attribute `unidirectional`, queries see the `past` keys, earlier ones and their own.
fn masked(
    node: &mut ImportedNode,
    [q, k, v]: [Operand; 3],
    past: usize,
    mask: Option<Operand>,
    added: Option<Operand>,
) -> Result<Operand, Refusal> {
    let [batch, _, queries, width] = extents(node, q, "queries")?;
    let [_, _, keys, _] = extents(node, k, "keys")?;
    let hidden = f64::from(node.float_or("mask_filter_value", -10_000.0)?);
    let mut bias = match added {
        Some(added) => Some(node.widen(&[added])?.0[0]),
        None => None,
    };
    if let Some(mask) = mask {
        let shape = node.shape(mask);
        let zero = node.number(0.0, node.dtype(mask));
        let is_seen = match shape[..] {
            [count] if count == batch => {
                let counts = node.reshape(mask, Shape::from([batch, 1, 1, 1]))?;
                let counts = node.cast(counts, DType::I64)?;
                let numbers = node.constant_of([1, 1, 1, keys], |at| at as i64)?;
                node.compare(Compare::Less, numbers, counts)?
            }
            [count] if count == 2 * batch => {
                // The ends of the keys in use, then their starts.
                let mask = node.cast(mask, DType::I64)?;
                let numbers = node.constant_of([1, 1, 1, keys], |at| at as i64)?;
                let mut part = |first: usize, function: Compare| {
                    let part = node.apply(Slice::range(&Shape::from([count]), 0, first, batch), &[mask])?;
                    let part = node.reshape(part, Shape::from([batch, 1, 1, 1]))?;
                    node.compare(function, numbers, part)
                };
                let (is_before, is_after) = (part(0, Compare::Less)?, part(batch, Compare::GreaterOrEqual)?);
                node.binary(Binary::And, is_before, is_after)?
            }
            [_, columns] if columns == keys => {
                let mask = node.reshape(mask, Shape::from([shape[0], 1, 1, keys]))?;
                node.compare(Compare::Greater, mask, zero)?
            }
            [_, rows, columns] if (rows, columns) == (queries, keys) => {
                let mask = node.reshape(mask, Shape::from([shape[0], 1, rows, keys]))?;
                node.compare(Compare::Greater, mask, zero)?
            }
            _ => refuse!("a mask of shape {shape} is not supported"),
        };
        let (zero, hidden) = (node.number(0.0, DType::F32), node.number(hidden, DType::F32));
        let own = node.select(is_seen, zero, hidden)?;
        bias = sum(node, bias, own)?;
    }
    if node.flag("unidirectional")? {
        if past + queries != keys {
            refuse!(
                "attribute `unidirectional` requires as many new keys as queries, got {} and {queries}",
                keys - past
            );
        }
        let is_seen = node.constant_of([queries, keys], |at| at % keys.max(1) <= at / keys.max(1) + past)?;
        let own = hidden_unless(node, is_seen)?;
        bias = sum(node, bias, own)?;
    }
    let scale = match node.float_or("scale", 0.0)? {
        0.0 => 1.0 / (width as f32).sqrt(),
        scale => scale,
    };
    let y = attend(node, Heads { q, k, v, scale, softcap: 0.0, bias, sink: None })?.y;
    join_heads(node, y)
}
