//! Attention and rotary embeddings: `Attention`, `RotaryEmbedding` and `TensorScatter` of opsets 23 and 24, and the fused
//! attention of domain `com.microsoft`. Sources: ONNX, docs/Operators.md; onnxruntime, docs/ContribOperators.md.

use ir::ops::{ReduceKind, Slice, Softmax};
use ir::{Refusal, ops};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// Queries, keys and values `[batch, heads, tokens, width]`, and the arithmetic on their products.
struct Heads {
    q: Operand,
    k: Operand,
    v: Operand,
    scale: f32,
    /// Products are bounded to this magnitude by a hyperbolic tangent.
    softcap: f32,
    /// Added to the products; minus infinity hides a key.
    bias: Option<Operand>,
}

/// The steps of attention that a model may ask for.
struct Attended {
    y: Operand,
    products: Operand,
    capped: Operand,
    biased: Operand,
    weights: Operand,
}

/// A tensor of rank 4.
fn extents(node: &ImportedNode, x: Operand, name: &str) -> Result<[usize; 4], Refusal> {
    match node.shape(x)[..] {
        [batch, heads, tokens, width] => Ok([batch, heads, tokens, width]),
        _ => refuse!("{name} must have rank 4, got {}", node.shape(x)),
    }
}

/// `[batch, tokens, heads * width]` as `[batch, heads, tokens, width]`.
fn split_heads(node: &mut ImportedNode, x: Operand, heads: usize, name: &str) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let [batch, tokens, all] = shape[..] else { refuse!("{name} must have rank 3, got {shape}") };
    if heads == 0 || !all.is_multiple_of(heads) {
        refuse!("{name} {shape} must have a multiple of {heads} heads");
    }
    let x = node.reshape(x, Shape::from([batch, tokens, heads, all / heads]))?;
    node.transpose(x, &[0, 2, 1, 3])
}

/// `[batch, heads, tokens, width]` as `[batch, tokens, heads * width]`.
fn join_heads(node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
    let [batch, heads, tokens, width] = extents(node, x, "the result")?;
    let x = node.transpose(x, &[0, 2, 1, 3])?;
    node.reshape(x, Shape::from([batch, tokens, heads * width]))
}

/// Each head of keys or values for as many heads of queries.
fn repeat_heads(node: &mut ImportedNode, x: Operand, q_heads: usize) -> Result<Operand, Refusal> {
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
        sees = sees_keys(node, bias)?;
    }
    let mut weights = node.apply(Softmax { axis: 3, log: false }, &[biased])?;
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
    let Attended { y, products, capped, biased, weights } = attend(node, Heads { q, k, v, scale, softcap, bias })?;
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

/// `RotaryEmbedding`: `x` `[batch, heads, tokens, width]` or `[batch, tokens, heads * width]`, cosines and sines
/// `[positions, width / 2]` with the positions of tokens, or `[batch, tokens, width / 2]`.
pub(super) fn rotary(node: &mut ImportedNode) -> NodeResult {
    let (x, cosines, sines) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let positions = node.optional(3);
    let heads = node.int_or("num_heads", 0)?;
    Ok(vec![rotated(node, x, [cosines, sines], positions, heads)?])
}

/// `RotaryEmbedding` of `com.microsoft`: `x`, positions, cosines and sines.
pub(super) fn rotary_of_microsoft(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["is_packed_batching", "scale"]);
    let (x, positions, cosines, sines) = (node.input(0)?, node.input(1)?, node.input(2)?, node.input(3)?);
    let shape = node.shape(x);
    let (batch, tokens) = match shape[..] {
        [batch, tokens, _] | [batch, _, tokens, _] => (batch, tokens),
        _ => refuse!("input must have rank 3 or 4, got {shape}"),
    };
    // One number is the position of the first token.
    let positions = match node.shape(positions).elements() {
        1 if (batch, tokens) != (1, 1) => {
            let first = node.reshape(positions, Shape::scalar())?;
            let numbers = node.constant_of([1, tokens], |at| at as i64)?;
            let positions = node.binary(Binary::Add, numbers, first)?;
            node.expand(positions, Shape::from([batch, tokens]))?
        }
        _ => positions,
    };
    let heads = match (node.int_or("num_heads", 0)?, shape[..].last()) {
        (0, Some(&all)) if shape.rank() == 3 => (all / (2 * node.shape(cosines)[1]).max(1)) as i64,
        (heads, _) => heads,
    };
    Ok(vec![rotated(node, x, [cosines, sines], Some(positions), heads)?])
}

fn rotated(
    node: &mut ImportedNode,
    x: Operand,
    tables: [Operand; 2],
    positions: Option<Operand>,
    heads: i64,
) -> Result<Operand, Refusal> {
    let is_interleaved = node.flag("interleaved")?;
    let turned = node.int_or("rotary_embedding_dim", 0)?;
    let is_flat = node.shape(x).rank() == 3;
    let x = match (is_flat, usize::try_from(heads)) {
        (false, _) => x,
        (true, Ok(heads @ 1..)) => split_heads(node, x, heads, "input")?,
        _ => refuse!("attribute `num_heads` must be positive for an input of rank 3"),
    };
    let [batch, heads, tokens, width] = extents(node, x, "input")?;
    let turned = match usize::try_from(turned) {
        Ok(0) => width,
        Ok(turned) if turned <= width && turned % 2 == 0 => turned,
        _ => refuse!("attribute `rotary_embedding_dim` must be even and at most {width}, got {turned}"),
    };
    let (operands, dtype) = node.widen(&[x, tables[0], tables[1]])?;
    let half = turned / 2;
    let mut angles = [operands[1], operands[2]];
    for table in &mut angles {
        if let Some(positions) = positions {
            *table = node.apply(ops::Gather { axis: 0 }, &[*table, positions])?;
        }
        let shape = node.shape(*table);
        if shape[..] != [batch, tokens, half] {
            refuse!("cosines and sines must have the shape [{batch}, {tokens}, {half}], got {shape}");
        }
        *table = node.reshape(*table, Shape::from([batch, 1, tokens, half]))?;
    }
    let [cosines, sines] = angles;
    let part = |node: &mut ImportedNode, first: usize, count: usize, step: isize| {
        let mut slice = Slice::whole(&Shape::from([batch, heads, tokens, width]));
        (slice.start[3], slice.count[3], slice.step[3]) = (first, count, if count <= 1 { 1 } else { step });
        node.apply(slice, &[operands[0]])
    };
    let (a, b) = match is_interleaved {
        true => (part(node, 0, half, 2)?, part(node, 1, half, 2)?),
        false => (part(node, 0, half, 1)?, part(node, half, half, 1)?),
    };
    let product = |node: &mut ImportedNode, x: Operand, y: Operand| node.binary(Binary::Mul, x, y);
    let (ac, bs) = (product(node, a, cosines)?, product(node, b, sines)?);
    let real = node.binary(Binary::Sub, ac, bs)?;
    let (a_s, bc) = (product(node, a, sines)?, product(node, b, cosines)?);
    let imaginary = node.binary(Binary::Add, a_s, bc)?;
    let mut parts = vec![real, imaginary];
    if is_interleaved {
        let shape = Shape::from([batch, heads, tokens, half, 1]);
        let pair = [node.reshape(real, shape.clone())?, node.reshape(imaginary, shape)?];
        let pairs = node.apply(ops::Concat { axis: 4 }, &pair)?;
        parts = vec![node.reshape(pairs, Shape::from([batch, heads, tokens, turned]))?];
    }
    if turned < width {
        parts.push(part(node, turned, width - turned, 1)?);
    }
    let y = if parts.len() == 1 { parts[0] } else { node.apply(ops::Concat { axis: 3 }, &parts)? };
    let y = node.cast(y, dtype)?;
    if is_flat { join_heads(node, y) } else { Ok(y) }
}

/// `MultiHeadAttention`: queries, keys and values `[batch, tokens, heads * width]`, and optionally their biases in one
/// vector, a mask of keys and numbers that are added to the products.
pub(super) fn multi_head(node: &mut ImportedNode) -> NodeResult {
    if (6..8).any(|ix| node.optional(ix).is_some()) || (1..3).any(|ix| node.has_output(ix)) {
        refuse!("past and present keys are not supported");
    }
    let heads = heads_attribute(node)?;
    let mut operands = [node.input(0)?, node.input(1)?, node.input(2)?];
    if operands.iter().any(|&operand| node.shape(operand).rank() != 3) {
        refuse!("packed queries, keys and values are not supported");
    }
    if let Some(bias) = node.optional(3) {
        let mut first = 0;
        for operand in &mut operands {
            let width = node.shape(*operand)[2];
            let part = vector_part(node, bias, first, width)?;
            *operand = node.binary(Binary::Add, *operand, part)?;
            first += width;
        }
    }
    for operand in &mut operands {
        *operand = split_heads(node, *operand, heads, "input")?;
    }
    let y = masked(node, operands, node.optional(4), node.optional(5))?;
    Ok(vec![y])
}

/// `Attention` of `com.microsoft`: tokens `[batch, tokens, inputs]`, weights `[inputs, 3 * heads * width]` and biases, and
/// optionally a mask and numbers that are added to the products.
pub(super) fn of_microsoft(node: &mut ImportedNode) -> NodeResult {
    if node.optional(4).is_some() || node.has_output(1) {
        refuse!("past and present keys are not supported");
    }
    let heads = heads_attribute(node)?;
    let (x, weights) = (node.input(0)?, node.input(1)?);
    let columns = match node.shape(weights)[..] {
        [_, columns] => columns,
        _ => refuse!("weights must be a matrix, got {}", node.shape(weights)),
    };
    let widths = match node.ints("qkv_hidden_sizes")? {
        Some(sizes) => sizes,
        None => vec![columns as i64 / 3; 3],
    };
    let widths: Vec<usize> = widths.into_iter().map(|width| usize::try_from(width).unwrap_or(0)).collect();
    if widths.len() != 3 || widths.iter().sum::<usize>() != columns {
        refuse!("the widths of queries, keys and values must add up to {columns}");
    }
    let mut projected = node.mat_mul(x, weights)?;
    if let Some(bias) = node.optional(2) {
        projected = node.binary(Binary::Add, projected, bias)?;
    }
    let mut operands = [projected; 3];
    let mut first = 0;
    for (operand, width) in operands.iter_mut().zip(widths) {
        let mut slice = Slice::whole(&node.shape(projected));
        (slice.start[2], slice.count[2]) = (first, width);
        let part = node.apply(slice, &[projected])?;
        *operand = split_heads(node, part, heads, "input")?;
        first += width;
    }
    let y = masked(node, operands, node.optional(3), node.optional(5))?;
    Ok(vec![y])
}

fn heads_attribute(node: &ImportedNode) -> Result<usize, Refusal> {
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
/// keys, `[batch, keys]`, or `[batch, queries, keys]`, or the number of keys of each batch element.
fn masked(
    node: &mut ImportedNode,
    [q, k, v]: [Operand; 3],
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
        let first = keys.saturating_sub(queries);
        let is_seen = node.constant_of([queries, keys], |at| at % keys.max(1) <= at / keys.max(1) + first)?;
        let own = hidden_unless(node, is_seen)?;
        bias = sum(node, bias, own)?;
    }
    let scale = match node.float_or("scale", 0.0)? {
        0.0 => 1.0 / (width as f32).sqrt(),
        scale => scale,
    };
    let y = attend(node, Heads { q, k, v, scale, softcap: 0.0, bias })?.y;
    join_heads(node, y)
}
