//! BERT base (Devlin et al. 2019), uncased, with the pooler. Parameters are called as in the Python package
//! `transformers` (`BertModel`).

use ir::ValueId;
use ir::ops::{self, Cast};
use types::{DType, pointwise};

use super::transformer::{Heads, NEVER};
use crate::{Builder, ZooError};

const WIDTH: usize = 768;
const HEADS: usize = 12;
const LAYERS: usize = 12;
const WORDS: usize = 30_522;
const POSITIONS: usize = 512;
const EPSILON: f32 = 1e-12;

/// Inputs `[batch, tokens]`: ids of words, 0 or 1 for the first or second sentence, and 1 for words, 0 for padding. Yields
/// `[batch, tokens, 768]`; the output `pooler_output` `[batch, 768]` is made of the first token.
pub(crate) fn base(b: &mut Builder, inputs: &[ValueId]) -> Result<ValueId, ZooError> {
    let [words, kinds, present] = inputs else { unreachable!("the list gives it three inputs") };
    let (batch, tokens) = (b.shape(*words)[0], b.shape(*words)[1]);
    if POSITIONS < tokens || inputs.iter().any(|&input| b.shape(input) != b.shape(*words)) {
        return b.refused(format!("its inputs are of one length, at most {POSITIONS} tokens"));
    }
    let x = b.embedding(*words, "embeddings.word_embeddings", WORDS, WIDTH)?;
    let kinds = b.embedding(*kinds, "embeddings.token_type_embeddings", 2, WIDTH)?;
    let positions = b.table("embeddings.position_embeddings", POSITIONS, WIDTH)?;
    let positions = b.slice(positions, 0, 0, tokens, "embeddings.positions")?;
    let x = b.add(x, kinds, "embeddings.add_kinds")?;
    let x = b.add(x, positions, "embeddings.add_positions")?;
    let mut x = b.layer_norm(x, "embeddings.LayerNorm", EPSILON)?;
    let mask = mask(b, *present, [batch, 1, 1, tokens])?;
    for layer in 0..LAYERS {
        x = encoder_layer(b, x, mask, &format!("encoder.layer.{layer}"))?;
    }
    let first = b.slice(x, 1, 0, 1, "pooler.first")?;
    let first = b.reshape(first, [batch, WIDTH], "pooler.token")?;
    let pooled = b.linear(first, "pooler.dense", WIDTH)?;
    let pooled = b.tanh(pooled, "pooler.activation")?;
    b.also("pooler_output", pooled);
    Ok(x)
}

/// 0 for words and [`NEVER`] for padding.
fn mask(b: &mut Builder, present: ValueId, shape: [usize; 4]) -> Result<ValueId, ZooError> {
    let present = b.node(Cast { to: DType::F32 }, &[present], "mask.cast")?;
    let absent = b.one_minus(present, "mask.absent")?;
    let mask = b.times(absent, NEVER, "mask.scale")?;
    b.reshape(mask, shape, "mask.shape")
}

fn encoder_layer(b: &mut Builder, x: ValueId, mask: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let part = |b: &mut Builder, part: &str| b.linear(x, &format!("{name}.attention.self.{part}"), WIDTH);
    let (q, k, v) = (part(b, "query")?, part(b, "key")?, part(b, "value")?);
    let y = Heads { q, k, v, heads: HEADS }.attend(b, Some(mask), &format!("{name}.attention.self"))?;
    let y = b.linear(y, &format!("{name}.attention.output.dense"), WIDTH)?;
    let x = b.add(y, x, &format!("{name}.attention.output.add"))?;
    let x = b.layer_norm(x, &format!("{name}.attention.output.LayerNorm"), EPSILON)?;
    let y = b.linear(x, &format!("{name}.intermediate.dense"), 4 * WIDTH)?;
    let y = b.node(ops::Unary(pointwise::Unary::Gelu), &[y], &format!("{name}.intermediate.gelu"))?;
    let y = b.linear(y, &format!("{name}.output.dense"), WIDTH)?;
    let x = b.add(y, x, &format!("{name}.output.add"))?;
    b.layer_norm(x, &format!("{name}.output.LayerNorm"), EPSILON)
}
