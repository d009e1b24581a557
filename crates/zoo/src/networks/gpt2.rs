//! GPT-2 small (Radford et al. 2019) over a fixed number of tokens, without a cache. Parameters are called as in the
//! Python package `transformers` (`GPT2Model`); the classes' weights are the words'.

use ir::ValueId;
use ir::ops;
use types::{Shape, Tensor, pointwise};

use super::transformer::{Heads, NEVER, projections};
use crate::builder::transposed;
use crate::{Builder, Init, ZooError};

const WIDTH: usize = 768;
const HEADS: usize = 12;
const LAYERS: usize = 12;
const WORDS: usize = 50_257;
const POSITIONS: usize = 1024;
const EPSILON: f32 = 1e-5;

/// Ids of words `[batch, tokens]` -> scores of the word behind each, `[batch, tokens, 50257]`.
pub(crate) fn small(b: &mut Builder, inputs: &[ValueId]) -> Result<ValueId, ZooError> {
    let words = inputs[0];
    let tokens = b.shape(words)[1];
    if POSITIONS < tokens {
        return b.refused(format!("it takes at most {POSITIONS} tokens"));
    }
    let table = b.table("wte", WORDS, WIDTH)?;
    let x = b.node(ops::Gather { axis: 0 }, &[table, words], "wte")?;
    let positions = b.table("wpe", POSITIONS, WIDTH)?;
    let positions = b.slice(positions, 0, 0, tokens, "wpe")?;
    let mut x = b.add(x, positions, "embed")?;
    // A token sees those in front of it and itself.
    let mask =
        Tensor::from_fn(Shape::from([1, 1, tokens, tokens]), |at| if at / tokens < at % tokens { NEVER } else { 0.0 });
    let mask = b.graph.add_constant("mask", mask);
    for layer in 0..LAYERS {
        x = block(b, x, mask, &format!("h.{layer}"))?;
    }
    let x = b.layer_norm(x, "ln_f", EPSILON)?;
    let classes = b.transpose(table, &[1, 0], "lm_head.weight")?;
    b.matmul(x, classes, "lm_head")
}

fn block(b: &mut Builder, x: ValueId, mask: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let y = b.layer_norm(x, &format!("{name}.ln_1"), EPSILON)?;
    let joint = format!("{name}.attn.c_attn");
    let [weight, bias] = weights(b, y, &joint, 3 * WIDTH)?;
    // The joint matrix has queries, keys and values in thirds of its columns.
    let [q, k, v] = projections(b, y, &joint, &transposed(&weight), &bias)?;
    let y = Heads { q, k, v, heads: HEADS }.attend(b, Some(mask), &format!("{name}.attn"))?;
    let y = conv1d(b, y, &format!("{name}.attn.c_proj"), WIDTH)?;
    let x = b.add(x, y, &format!("{name}.attn.add"))?;
    let y = b.layer_norm(x, &format!("{name}.ln_2"), EPSILON)?;
    let y = conv1d(b, y, &format!("{name}.mlp.c_fc"), 4 * WIDTH)?;
    let y = b.node(ops::Unary(pointwise::Unary::GeluTanh), &[y], &format!("{name}.mlp.act"))?;
    let y = conv1d(b, y, &format!("{name}.mlp.c_proj"), WIDTH)?;
    b.add(x, y, &format!("{name}.mlp.add"))
}

/// A linear layer whose weights are `[in, out]`.
fn conv1d(b: &mut Builder, x: ValueId, name: &str, out: usize) -> Result<ValueId, ZooError> {
    let [weight, bias] = weights(b, x, name, out)?;
    let weight = b.graph.add_weight(&format!("{name}.weight"), weight);
    let bias = b.graph.add_weight(&format!("{name}.bias"), bias);
    b.linear_with(x, weight, bias, name)
}

fn weights(b: &mut Builder, x: ValueId, name: &str, out: usize) -> Result<[Tensor; 2], ZooError> {
    let fan_in = b.shape(x)[2];
    let weight = b.take(&format!("{name}.weight"), [fan_in, out], Init::Weight { fan_in })?;
    Ok([weight, b.take(&format!("{name}.bias"), [out], Init::Bias)?])
}
