//! `GroupQueryAttention` of domain `com.microsoft`, with its cache of keys and values. Source: onnxruntime,
//! docs/ContribOperators.md.

use ir::ops::Slice;
use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::{Binary, Compare};
use types::{DType, Shape};

use super::attention::{Heads, attend_if, extents, heads_attribute, join_heads, split_heads};
use super::rotary::{Rotary, rotated};
use super::{normalize, scatter};
use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// A number that hides a key without being infinite: rows without a key in use are not NaN.
const HIDDEN: f64 = -1e30;

/// `GroupQueryAttention`: queries, keys and values `[batch, tokens, heads * width]`, or all in the first operand; past keys
/// and values `[batch, kv_heads, past, width]`; for each batch element the number of keys minus one (`seqlens_k`), and the
/// largest number of keys (`total_sequence_length`); optionally cosines and sines with positions, numbers that are added to
/// the products, sinks, weights of normalizations of queries and keys, and the number of tokens of each batch element that
/// are not padding. Results: `y`, present keys and values, and the products or their softmax.
///
/// New keys are written behind those in use, so that past and present may be one state. The present ones have as many tokens
/// as the past ones, or `total_sequence_length` if that is constant and larger. Tokens that are not in use are as they were
/// in the past; those behind the last valid token of a padded chunk have any finite values.
pub(super) fn grouped_query(node: &mut ImportedNode) -> NodeResult {
    for name in ["k_quant_type", "v_quant_type"] {
        if node.text_or(name, "NONE") != "NONE" {
            refuse!("attribute `{name}` must be `NONE`: quantized keys and values are not supported");
        }
    }
    if [12, 13].into_iter().any(|ix| node.optional(ix).is_some()) {
        refuse!("scales of quantized keys and values are not supported");
    }
    if node.flag("sliding_window_cache")? {
        refuse!("attribute `sliding_window_cache` must be 0");
    }
    node.ignore(&["kv_cache_bit_width"]);
    let heads = heads_attribute(node)?;
    let kv_heads = match node.int("kv_num_heads")? {
        Some(count @ 1..=65_536) if heads.is_multiple_of(count as usize) => count as usize,
        Some(count) => refuse!("attribute `kv_num_heads` must divide {heads} heads, got {count}"),
        None => refuse!("attribute `kv_num_heads` is missing"),
    };
    let [mut q, mut k, v] = grouped_operands(node, heads, kv_heads)?;
    let [batch, _, tokens, width] = extents(node, q, "queries")?;
    if extents(node, k, "keys")?[..3] != [batch, kv_heads, tokens] || node.shape(k) != node.shape(v) {
        refuse!("keys and values must have {tokens} tokens, got {} and {}", node.shape(k), node.shape(v));
    }
    if let (Some(q_scale), Some(k_scale)) = (node.optional(14), node.optional(15)) {
        let epsilon = node.float_or("qk_norm_epsilon", 1e-6)?;
        let (q_epsilon, k_epsilon) =
            (node.float_or("q_norm_epsilon", epsilon)?, node.float_or("k_norm_epsilon", epsilon)?);
        q = normalize::rms_of(node, q, q_scale, 3, q_epsilon)?[0];
        k = normalize::rms_of(node, k, k_scale, 3, k_epsilon)?[0];
    } else if node.optional(14).is_some() || node.optional(15).is_some() {
        refuse!("weights of the normalizations of queries and keys must be given together");
    }
    node.ignore(&["qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon"]);
    let cache = Cache::of(node, [batch, kv_heads, tokens, width])?;
    if node.flag("do_rotary")? {
        let tables = [node.input(7)?, node.input(8)?];
        let turned = match node.shape(tables[0])[..] {
            [_, half] => 2 * half as i64,
            _ => refuse!("cosines and sines must be matrices, got {}", node.shape(tables[0])),
        };
        let positions = cache.positions(node, node.optional(9))?;
        let is_interleaved = node.flag("rotary_interleaved")?;
        let rotary = Rotary { tables, positions: Some(positions), is_interleaved, turned };
        q = rotated(node, q, rotary, 0)?;
        k = rotated(node, k, rotary, 0)?;
    }
    node.ignore(&["rotary_interleaved"]);
    let [present_k, present_v] = [cache.written(node, 3, k)?, cache.written(node, 4, v)?];
    // A first prompt sees its own keys only.
    let (k, v) = if cache.first.is_none() { (k, v) } else { (present_k, present_v) };
    let bias = cache.bias(node, node.shape(k)[2])?;
    let scale = match node.float_or("scale", 0.0)? {
        0.0 => 1.0 / (width as f32).sqrt(),
        scale => scale,
    };
    let softcap = node.float_or("softcap", 0.0)?;
    let sink = match (node.optional(11), node.flag("smooth_softmax")?) {
        (Some(sink), _) => Some(sink),
        (None, true) => Some(node.number(0.0, DType::F32)),
        (None, false) => None,
    };
    if node.int_or("qk_output", 0)? != 0 {
        refuse!("attribute `qk_output` must be 0: the products are not a result");
    }
    let y = attend_if(node, Heads { q, k, v, scale, softcap, bias, sink }, false)?.y;
    Ok(vec![join_heads(node, y)?, present_k, present_v])
}

/// Queries, keys and values `[batch, heads, tokens, width]`.
fn grouped_operands(node: &mut ImportedNode, heads: usize, kv_heads: usize) -> Result<[Operand; 3], Refusal> {
    let x = node.input(0)?;
    if let (Some(k), Some(v)) = (node.optional(1), node.optional(2)) {
        let q = split_heads(node, x, heads, "queries")?;
        return Ok([q, split_heads(node, k, kv_heads, "keys")?, split_heads(node, v, kv_heads, "values")?]);
    }
    if node.optional(1).is_some() || node.optional(2).is_some() {
        refuse!("keys and values must be given together");
    }
    let shape = node.shape(x);
    let [_, _, all] = shape[..] else { refuse!("queries must have rank 3, got {shape}") };
    let groups = heads + 2 * kv_heads;
    if !all.is_multiple_of(groups) {
        refuse!("packed queries, keys and values {shape} must have a multiple of {groups} heads");
    }
    let width = all / groups;
    let mut part = |first: usize, count: usize, name: &str| {
        let part = node.apply(Slice::range(&shape, 2, first * width, count * width), &[x])?;
        split_heads(node, part, count, name)
    };
    Ok([part(0, heads, "queries")?, part(heads, kv_heads, "keys")?, part(heads + kv_heads, kv_heads, "values")?])
}

/// The keys and values of `GroupQueryAttention` that are in use.
struct Cache {
    batch: usize,
    /// New tokens.
    tokens: usize,
    /// Tokens of the past and present ones.
    extents: [usize; 2],
    /// The number of keys in use after this step, `[batch]`, of `i64`.
    counts: Operand,
    /// The position of the first new token, `[batch]`; `None` if it is 0, that of a first prompt.
    first: Option<Operand>,
}

impl Cache {
    /// Reads the past keys and values, the numbers of keys and the numbers of valid tokens.
    fn of(node: &mut ImportedNode, [batch, kv_heads, tokens, width]: [usize; 4]) -> Result<Cache, Refusal> {
        let counts = node.input(5)?;
        if node.shape(counts).elements() != batch {
            refuse!("`seqlens_k` must have a number for each of {batch} batch elements, got {}", node.shape(counts));
        }
        let counts = node.cast(counts, DType::I64)?;
        let counts = node.reshape(counts, Shape::from([batch]))?;
        let one = node.number(1.0, DType::I64);
        let counts = node.binary(Binary::Add, counts, one)?;
        let total = match node.constant_value(node.input(6)?) {
            Some(total) => match total.to_i64()[..] {
                [total @ 0..=0x100_0000_0000] => Some(total as usize),
                [total] => refuse!("`total_sequence_length` must be in 0..=2^40, got {total}"),
                _ => refuse!("`total_sequence_length` must have 1 element, got {}", total.shape()),
            },
            None => None,
        };
        let past = match (node.optional(3), node.optional(4)) {
            (None, None) => 0,
            (Some(k), Some(v)) => {
                let [.., past, _] = extents(node, k, "past keys")?;
                let want = Shape::from([batch, kv_heads, past, width]);
                for operand in [k, v] {
                    if node.shape(operand) != want {
                        refuse!("past keys and values must have shape {want}, got {}", node.shape(operand));
                    }
                }
                past
            }
            _ => refuse!("past keys and values must be given together"),
        };
        let valid = node.optional(16);
        let present = match total {
            _ if past == 0 => tokens,
            // With padded chunks it is an upper bound only.
            Some(_) if valid.is_some() => past,
            Some(total) => past.max(total),
            None => past,
        };
        if present < tokens || (past == 0 && total.is_some_and(|total| total != tokens)) {
            refuse!(
                "past keys of {past} tokens and `total_sequence_length` must hold {tokens} new tokens, got a total of {}",
                total.map_or("unknown".to_string(), |total| total.to_string())
            );
        }
        let first = if past == 0 || (valid.is_none() && total == Some(tokens)) {
            None
        } else {
            let new = match valid {
                Some(valid) if node.shape(valid).elements() == batch => {
                    let valid = node.cast(valid, DType::I64)?;
                    node.reshape(valid, Shape::from([batch]))?
                }
                Some(valid) => refuse!("`query_seqlens` must have shape [{batch}], got {}", node.shape(valid)),
                None => node.number(tokens as f64, DType::I64),
            };
            // A padded first prompt has fewer keys in use than tokens.
            let first = node.binary(Binary::Sub, counts, new)?;
            let zero = node.number(0.0, DType::I64);
            Some(node.binary(Binary::Max, first, zero)?)
        };
        Ok(Cache { batch, tokens, extents: [past, present], counts, first })
    }

    /// The absolute position of each new token, `[batch, tokens]` or `[1, tokens]`.
    fn absolute(&self, node: &mut ImportedNode) -> Result<Operand, Refusal> {
        let numbers = node.constant_of([1, self.tokens], |at| at as i64)?;
        match self.first {
            None => Ok(numbers),
            Some(first) => {
                let first = node.reshape(first, Shape::from([self.batch, 1]))?;
                node.binary(Binary::Add, first, numbers)
            }
        }
    }

    /// The position of each new token in the tables of a rotary embedding, `[batch, tokens]`.
    fn positions(&self, node: &mut ImportedNode, given: Option<Operand>) -> Result<Operand, Refusal> {
        let shape = Shape::from([self.batch, self.tokens]);
        let Some(given) = given else {
            let positions = self.absolute(node)?;
            return node.expand(positions, shape);
        };
        if self.first.is_some() {
            if node.shape(given) != shape {
                refuse!("`position_ids` must have shape {shape}, got {}", node.shape(given));
            }
            return Ok(given);
        }
        // Of a first prompt, the position of the first token.
        let count = node.shape(given).elements();
        let flat = node.reshape(given, Shape::from([count]))?;
        let start = node.apply(Slice::range(&Shape::from([count]), 0, 0, count.min(1)), &[flat])?;
        let start = node.cast(start, DType::I64)?;
        let numbers = node.constant_of([1, self.tokens], |at| at as i64)?;
        let positions = node.binary(Binary::Add, numbers, start)?;
        node.expand(positions, shape)
    }

    /// The past keys or values in operand `ix` with the new ones written behind those in use.
    fn written(&self, node: &mut ImportedNode, ix: usize, new: Operand) -> Result<Operand, Refusal> {
        let [past, present] = self.extents;
        if past == 0 || (self.first.is_none() && present == self.tokens) {
            return Ok(new);
        }
        let mut old = node.input(ix)?;
        if past < present {
            let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], 4);
            pad[2] = [0, (present - past) as isize];
            old = node.apply(ops::Pad { mode: ops::PadMode::Constant(0.0), pad }, &[old])?;
        }
        if node.dtype(old) != node.dtype(new) {
            refuse!("past keys and values must be {}, got {}", node.dtype(new), node.dtype(old));
        }
        match self.first {
            None => node.apply(ops::Insert { axis: 2, start: 0 }, &[old, new]),
            Some(first) => scatter::written_runs(node, old, new, 2, first, false),
        }
    }

    /// Numbers that are added to the products with `keys` keys.
    fn bias(&self, node: &mut ImportedNode, keys: usize) -> Result<Option<Operand>, Refusal> {
        let window = match node.int_or("local_window_size", -1)? {
            -1 => None,
            size @ 1.. => Some(size),
            size => refuse!("attribute `local_window_size` must be -1 or at least 1, got {size}"),
        };
        let numbers = node.constant_of([1, 1, 1, keys], |at| at as i64)?;
        let is_seen = match node.int_or("causal", 1)? {
            1 => {
                let positions = self.absolute(node)?;
                let rows = node.shape(positions)[0];
                let positions = node.reshape(positions, Shape::from([rows, 1, self.tokens, 1]))?;
                let mut is_seen = node.compare(Compare::LessOrEqual, numbers, positions)?;
                if let Some(window) = window {
                    let window = node.number(window as f64, DType::I64);
                    let start = node.binary(Binary::Sub, positions, window)?;
                    let is_near = node.compare(Compare::Greater, numbers, start)?;
                    is_seen = node.binary(Binary::And, is_seen, is_near)?;
                }
                is_seen
            }
            0 if window.is_none() => {
                let counts = node.reshape(self.counts, Shape::from([self.batch, 1, 1, 1]))?;
                node.compare(Compare::Less, numbers, counts)?
            }
            0 => refuse!("attribute `local_window_size` must be -1 if `causal` is 0"),
            other => refuse!("attribute `causal` must be 0 or 1, got {other}"),
        };
        let (zero, hidden) = (node.number(0.0, DType::F32), node.number(HIDDEN, DType::F32));
        let own = node.select(is_seen, zero, hidden)?;
        let Some(added) = node.optional(10) else { return Ok(Some(own)) };
        let mut added = node.cast(added, DType::F32)?;
        let shape = node.shape(added);
        let [.., columns] = extents(node, added, "`attention_bias`")?;
        if columns < keys {
            // Keys behind are hidden.
            let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], 4);
            pad[3] = [0, (keys - columns) as isize];
            added = node.apply(ops::Pad { mode: ops::PadMode::Constant(0.0), pad }, &[added])?;
        } else if keys < columns {
            added = node.apply(Slice::range(&shape, 3, 0, keys), &[added])?;
        }
        Ok(Some(node.binary(Binary::Add, own, added)?))
    }
}
