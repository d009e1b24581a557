//! Rotary embeddings (Su et al. 2021, RoFormer): `RotaryEmbedding` of opset 23 and of domain `com.microsoft`, and
//! `MRotaryEmbedding`. Sources: ONNX, docs/Operators.md; onnxruntime, docs/ContribOperators.md.

use ir::ops::Slice;
use ir::{Refusal, ops};
use types::Shape;
use types::pointwise::Binary;

use super::attention::{extents, join_heads, split_heads};
use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// `RotaryEmbedding`: `x` `[batch, heads, tokens, width]` or `[batch, tokens, heads * width]`, cosines and sines
/// `[positions, width / 2]` with the positions of tokens, or `[batch, tokens, width / 2]`.
pub(super) fn rotary(node: &mut ImportedNode) -> NodeResult {
    let (x, cosines, sines) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let positions = node.optional(3);
    let heads = node.int_or("num_heads", 0)?;
    let rotary = Rotary::of_attributes(node, [cosines, sines], positions)?;
    Ok(vec![rotated(node, x, rotary, heads)?])
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
    let rotary = Rotary::of_attributes(node, [cosines, sines], Some(positions))?;
    Ok(vec![rotated(node, x, rotary, heads)?])
}

/// `MRotaryEmbedding` of `com.microsoft`: as `RotaryEmbedding`, with three positions for each token, `[3, batch, tokens]`;
/// `mrope_section` and `mrope_layout` state which of them each angle has.
pub(super) fn rotary_of_sections(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["is_packed_batching", "scale"]);
    let (x, positions, tables) = (node.input(0)?, node.input(1)?, [node.input(2)?, node.input(3)?]);
    let shape = node.shape(positions);
    let [3, batch, tokens] = shape[..] else { refuse!("positions must have shape [3, batch, tokens], got {shape}") };
    let [_, half] = node.shape(tables[0])[..] else { refuse!("cosines and sines must be matrices") };
    let sections = match node.ints("mrope_section")?.as_deref() {
        Some(&[t, h, w]) => [t, h, w].map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
        _ => refuse!("attribute `mrope_section` must have 3 numbers"),
    };
    if sections.iter().fold(0, |sum: usize, &count| sum.saturating_add(count)) != half {
        refuse!("the numbers of `mrope_section` must add up to {half}, got {sections:?}");
    }
    let [t, h, w] = sections;
    // The number of the position that an angle has.
    let source = move |is_interleaved: bool, at: usize| match (is_interleaved, at % 3) {
        (false, _) => usize::from(t <= at) + usize::from(t + h <= at),
        (true, 1) if at < 3 * h => 1,
        (true, 2) if at < 3 * w => 2,
        (true, _) => 0,
    };
    let is_interleaved = match node.int_or("mrope_layout", 0)? {
        0 => false,
        1 => true,
        other => refuse!("attribute `mrope_layout` must be 0 or 1, got {other}"),
    };
    let mut angles = tables;
    for table in &mut angles {
        let of_streams = node.apply(ops::Gather { axis: 0 }, &[*table, positions])?;
        let all = node.shape(of_streams);
        let mut chosen = None;
        for stream in 0..3 {
            let part = node.apply(Slice::range(&all, 0, stream, 1), &[of_streams])?;
            let part = node.reshape(part, Shape::from([batch, tokens, half]))?;
            chosen = Some(match chosen {
                None => part,
                Some(others) => {
                    let is_own = node.constant_of([half], |at| source(is_interleaved, at) == stream)?;
                    node.select(is_own, part, others)?
                }
            });
        }
        *table = chosen.ok_or_else(|| Refusal("positions are missing".into()))?;
    }
    let heads = match (node.int_or("num_heads", 0)?, node.shape(x)[..].last()) {
        (0, Some(&all)) if node.shape(x).rank() == 3 => (all / (2 * half).max(1)) as i64,
        (heads, _) => heads,
    };
    let rotary = Rotary::of_attributes(node, angles, None)?;
    Ok(vec![rotated(node, x, rotary, heads)?])
}

/// A rotary embedding.
#[derive(Clone, Copy)]
pub(super) struct Rotary {
    /// Cosines and sines.
    pub(super) tables: [Operand; 2],
    /// The rows of the tables for each token, `[batch, tokens]`; without them the tables are `[batch, tokens, ..]`.
    pub(super) positions: Option<Operand>,
    /// Whether the parts of a complex number are neighbors.
    pub(super) is_interleaved: bool,
    /// Elements that are turned; 0 for all.
    pub(super) turned: i64,
}

impl Rotary {
    /// With the attributes of the operator.
    fn of_attributes(node: &ImportedNode, tables: [Operand; 2], positions: Option<Operand>) -> Result<Rotary, Refusal> {
        let (is_interleaved, turned) = (node.flag("interleaved")?, node.int_or("rotary_embedding_dim", 0)?);
        Ok(Rotary { tables, positions, is_interleaved, turned })
    }
}

/// `x` of rank 4, or of rank 3 with these heads, turned.
pub(super) fn rotated(node: &mut ImportedNode, x: Operand, rotary: Rotary, heads: i64) -> Result<Operand, Refusal> {
    let Rotary { tables, positions, is_interleaved, turned } = rotary;
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
