//! BERT (Devlin et al. 2019), uncased, with the pooler: base, and MiniLM's size (Wang et al. 2020), of which
//! all-MiniLM-L6-v2 makes embeddings of sentences (Reimers and Gurevych 2019). Parameters are called as in the Python
//! package `transformers` (`BertModel`).

use ir::ValueId;
use ir::ops::{self, Binary, Cast, Reduce, ReduceKind};
use types::{DType, pointwise};

use super::transformer::{Heads, NEVER};
use crate::{Builder, ZooError};

const WORDS: usize = 30_522;
const POSITIONS: usize = 512;
const HEADS: usize = 12;
const EPSILON: f32 = 1e-12;

/// Inputs `[batch, tokens]`: ids of words, 0 or 1 for the first or second sentence, and 1 for words, 0 for padding. Yields
/// `[batch, tokens, 768]`; the output `pooler_output` `[batch, 768]` is made of the first token.
pub(crate) fn base(b: &mut Builder, inputs: &[ValueId]) -> Result<ValueId, ZooError> {
    build(b, inputs, 768, 12)
}

/// As [`base`], with a width of 384. One more output, `sentence_embedding` `[batch, 384]`: the mean of the results of the words,
/// of length 1.
pub(crate) fn all_minilm_l6_v2(b: &mut Builder, inputs: &[ValueId]) -> Result<ValueId, ZooError> {
    const WIDTH: usize = 384;
    let x = build(b, inputs, WIDTH, 6)?;
    let (batch, tokens) = (b.shape(x)[0], b.shape(x)[1]);
    let present = b.node(Cast { to: DType::F32 }, &[inputs[2]], "embedding.present")?;
    let present = b.reshape(present, [batch, 1, tokens], "embedding.words")?;
    // Of the sum, which has the mean's direction.
    let sum = b.matmul(present, x, "embedding.sum")?;
    let sum = b.reshape(sum, [batch, WIDTH], "embedding.of_words")?;
    let length = Reduce { kind: ReduceKind::L2, axes: [1].into_iter().collect(), keep: true };
    let length = b.node(length, &[sum], "embedding.length")?;
    // Without a word there is no direction.
    let least = ops::Unary(pointwise::Unary::Clip { min: EPSILON, max: f32::INFINITY });
    let length = b.node(least, &[length], "embedding.least")?;
    let embedding = b.node(Binary(pointwise::Binary::Div), &[sum, length], "embedding")?;
    b.also("sentence_embedding", embedding);
    Ok(x)
}

fn build(b: &mut Builder, inputs: &[ValueId], width: usize, layers: usize) -> Result<ValueId, ZooError> {
    let [words, kinds, present] = inputs else { unreachable!("the list gives it three inputs") };
    let (batch, tokens) = (b.shape(*words)[0], b.shape(*words)[1]);
    if POSITIONS < tokens || inputs.iter().any(|&input| b.shape(input) != b.shape(*words)) {
        return b.refused(format!("its inputs are of one length, at most {POSITIONS} tokens"));
    }
    let x = b.embedding(*words, "embeddings.word_embeddings", WORDS, width)?;
    let kinds = b.embedding(*kinds, "embeddings.token_type_embeddings", 2, width)?;
    let positions = b.table("embeddings.position_embeddings", POSITIONS, width)?;
    let positions = b.slice(positions, 0, 0, tokens, "embeddings.positions")?;
    let x = b.add(x, kinds, "embeddings.add_kinds")?;
    let x = b.add(x, positions, "embeddings.add_positions")?;
    let mut x = b.layer_norm(x, "embeddings.LayerNorm", EPSILON)?;
    let mask = mask(b, *present, [batch, 1, 1, tokens])?;
    for layer in 0..layers {
        x = encoder_layer(b, x, mask, &format!("encoder.layer.{layer}"))?;
    }
    let first = b.slice(x, 1, 0, 1, "pooler.first")?;
    let first = b.reshape(first, [batch, width], "pooler.token")?;
    let pooled = b.linear(first, "pooler.dense", width)?;
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
    let width = b.shape(x)[2];
    let part = |b: &mut Builder, part: &str| b.linear(x, &format!("{name}.attention.self.{part}"), width);
    let (q, k, v) = (part(b, "query")?, part(b, "key")?, part(b, "value")?);
    let y = Heads { q, k, v, heads: HEADS }.attend(b, Some(mask), &format!("{name}.attention.self"))?;
    let y = b.linear(y, &format!("{name}.attention.output.dense"), width)?;
    let x = b.add(y, x, &format!("{name}.attention.output.add"))?;
    let x = b.layer_norm(x, &format!("{name}.attention.output.LayerNorm"), EPSILON)?;
    let y = b.linear(x, &format!("{name}.intermediate.dense"), 4 * width)?;
    let y = b.node(ops::Unary(pointwise::Unary::Gelu), &[y], &format!("{name}.intermediate.gelu"))?;
    let y = b.linear(y, &format!("{name}.output.dense"), width)?;
    let x = b.add(y, x, &format!("{name}.output.add"))?;
    b.layer_norm(x, &format!("{name}.output.LayerNorm"), EPSILON)
}
