//! A translation network of LSTMs with dot attention, as Sockeye 1.12 to 1.18 builds it (Hieber et al. 2017), at fixed
//! lengths of source and target. Parameters are called as in its symbols.
//!
//! The encoder walks the source both ways. The decoder walks the target and takes the attention of the step before,
//! so that its steps are a graph of their own each.

use ir::ValueId;
use ir::ops::{Binary, Cast, Compare};
use types::{DType, Shape, Tensor, pointwise};

use super::recurrent::{self, DirectionWeights, Layer};
use super::transformer::NEVER;
use crate::{Builder, ZooError};

/// The sizes of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    source_words: usize,
    target_words: usize,
    embed: usize,
    hidden: usize,
}

/// Embeddings of 256 and states of 512, for 30 000 words and the one that pads.
pub(crate) fn published(b: &mut Builder, inputs: &[ValueId]) -> Result<ValueId, ZooError> {
    build(b, inputs, Sizes { source_words: 30_001, target_words: 30_001, embed: 256, hidden: 512 })
}

/// Ids of words `source: [batch, s]` and `target: [batch, t]`, 0 behind the end -> probabilities of the word behind each
/// of the target, `[batch t, words]`.
fn build(b: &mut Builder, inputs: &[ValueId], sizes: Sizes) -> Result<ValueId, ZooError> {
    let (source, target) = (inputs[0], inputs[1]);
    let present = present(b, source)?;
    let encoded = encode(b, source, present, sizes)?;
    let hidden = decode(b, target, &encoded, sizes)?;
    let rows = b.shape(hidden)[0] * b.shape(hidden)[1];
    let hidden = b.reshape(hidden, [rows, sizes.hidden], "decoder_rnn_hidden_rows")?;
    let logits = b.linear(hidden, "target_output", sizes.target_words)?;
    b.softmax(logits, "softmax")
}

/// 1 for words, 0 behind the end: `[batch, s]`.
fn present(b: &mut Builder, source: ValueId) -> Result<ValueId, ZooError> {
    let zero = b.graph.add_constant("no_word", Tensor::full(Shape::scalar(), 0i64));
    let present = b.node(Compare(pointwise::Compare::Greater), &[source, zero], "source_present")?;
    b.node(Cast { to: DType::F32 }, &[present], "source_present_cast")
}

/// The inputs of the decoder.
struct Encoded {
    /// States of the encoder, `[batch, s, hidden]`.
    states: ValueId,
    /// The same as keys, `[batch, hidden, s]`.
    keys: ValueId,
    /// Those at each sentence's last word, `[batch, hidden]`.
    last: ValueId,
    /// The mask, added to scores: `[batch, 1, s]`.
    mask: ValueId,
}

fn encode(b: &mut Builder, source: ValueId, present: ValueId, sizes: Sizes) -> Result<Encoded, ZooError> {
    let (batch, length) = (b.shape(source)[0], b.shape(source)[1]);
    let absent = b.one_minus(present, "source_absent")?;
    let x = b.embedding(source, "source_embed", sizes.source_words, sizes.embed)?;
    let x = b.transpose(x, &[1, 0, 2], "source_time_first")?;
    let closed = b.transpose(absent, &[1, 0], "source_absent_time_first")?;
    let closed = b.reshape(closed, [length, batch, 1], "source_closed")?;
    let layer = Layer::lstm(sizes.hidden / 2);
    let directions = [
        DirectionWeights::take(b, "encoder_birnn_forward_l0", &layer, sizes.embed)?,
        DirectionWeights::take(b, "encoder_birnn_reverse_l0", &layer, sizes.embed)?,
    ];
    let x = recurrent::bidirectional(b, x, "encoder_birnn", &layer, &directions, Some(closed))?;
    let states = b.transpose(x, &[1, 0, 2], "encoder_batch_first")?;
    let keys = b.transpose(x, &[1, 2, 0], "attention_keys")?;
    // A word is the last one if the next position is empty.
    let last = match length {
        1 => present,
        _ => {
            let next = b.slice(present, 1, 1, length - 1, "source_next")?;
            let none = b.graph.add_constant("source_after_end", Tensor::full(Shape::from([batch, 1]), 0.0f32));
            let next = b.concat(&[next, none], "source_next_or_none")?;
            b.node(Binary(pointwise::Binary::Sub), &[present, next], "source_last")?
        }
    };
    let last = b.reshape(last, [batch, 1, length], "source_last_row")?;
    let last = b.matmul(last, states, "encoder_last_of_each")?;
    let last = b.reshape(last, [batch, sizes.hidden], "encoder_last")?;
    let mask = b.times(absent, NEVER, "attention_mask")?;
    let mask = b.reshape(mask, [batch, 1, length], "attention_mask_row")?;
    Ok(Encoded { states, keys, last, mask })
}

/// The attentional states of all steps, `[batch, t, hidden]`.
fn decode(b: &mut Builder, target: ValueId, encoded: &Encoded, sizes: Sizes) -> Result<ValueId, ZooError> {
    let (batch, length, hidden) = (b.shape(target)[0], b.shape(target)[1], sizes.hidden);
    let words = b.embedding(target, "target_embed", sizes.target_words, sizes.embed)?;
    let h = b.linear(encoded.last, "decoder_rnn_enc2decinit_0", hidden)?;
    let mut h = b.tanh(h, "decoder_rnn_init_h")?;
    let c = b.linear(encoded.last, "decoder_rnn_enc2decinit_1", hidden)?;
    let mut c = b.tanh(c, "decoder_rnn_init_c")?;
    let mut fed = b.graph.add_constant("decoder_rnn_fed", Tensor::full(Shape::from([batch, hidden]), 0.0f32));
    // The steps share their weights, which the graph has once.
    let [from_input, from_state, from_attention] = [
        Shared::take(b, "decoder_rnn_l0_i2h", sizes.embed + hidden, 4 * hidden)?,
        Shared::take(b, "decoder_rnn_l0_h2h", hidden, 4 * hidden)?,
        Shared::take(b, "decoder_rnn_hidden", 2 * hidden, hidden)?,
    ];
    let mut steps = Vec::with_capacity(length);
    for t in 0..length {
        let word = b.slice(words, 1, t, 1, &format!("target_embed_t{t}"))?;
        let word = b.reshape(word, [batch, sizes.embed], &format!("target_word_t{t}"))?;
        let x = b.concat(&[word, fed], &format!("decoder_rnn_concat_target_context_t{t}"))?;
        let x = from_input.apply(b, x, &format!("decoder_rnn_l0_t{t}_i2h"))?;
        let state = from_state.apply(b, h, &format!("decoder_rnn_l0_t{t}_h2h"))?;
        let sums = b.add(x, state, &format!("decoder_rnn_l0_t{t}_gates"))?;
        (h, c) = lstm_step(b, sums, c, &format!("decoder_rnn_l0_t{t}"))?;
        fed = attend(b, h, encoded, &from_attention, t)?;
        steps.push(b.reshape(fed, [batch, 1, hidden], &format!("decoder_rnn_hidden_t{t}"))?);
    }
    b.concat(&steps, "decoder_rnn_hidden_stack")
}

/// A linear layer that is applied several times.
struct Shared {
    weight: ValueId,
    bias: ValueId,
}

impl Shared {
    fn take(b: &mut Builder, name: &str, inputs: usize, out: usize) -> Result<Shared, ZooError> {
        let (weight, bias) = b.linear_parameters(name, inputs, out)?;
        Ok(Shared { weight, bias })
    }

    fn apply(&self, b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
        b.linear_with(x, self.weight, self.bias, name)
    }
}

/// New `h` and `c` from the sums of the gates i, f, c, o.
fn lstm_step(b: &mut Builder, sums: ValueId, c: ValueId, name: &str) -> Result<(ValueId, ValueId), ZooError> {
    let units = b.shape(c)[1];
    let mut gate = |ix: usize, letter: &str| {
        let sum = b.slice(sums, 1, ix * units, units, &format!("{name}_slice_{letter}"))?;
        if letter == "c" { b.tanh(sum, &format!("{name}_c")) } else { b.sigmoid(sum, &format!("{name}_{letter}")) }
    };
    let (i, f, new, o) = (gate(0, "i")?, gate(1, "f")?, gate(2, "c")?, gate(3, "o")?);
    let kept = b.multiply(f, c, &format!("{name}_kept"))?;
    let added = b.multiply(i, new, &format!("{name}_added"))?;
    let c = b.add(kept, added, &format!("{name}_state"))?;
    let shown = b.tanh(c, &format!("{name}_shown"))?;
    let h = b.multiply(o, shown, &format!("{name}_out"))?;
    Ok((h, c))
}

/// The attentional state of a step: `tanh(W [query, sum of states by softmax of their products with the query])`.
fn attend(b: &mut Builder, query: ValueId, encoded: &Encoded, layer: &Shared, t: usize) -> Result<ValueId, ZooError> {
    let (batch, hidden) = (b.shape(query)[0], b.shape(query)[1]);
    let row = b.reshape(query, [batch, 1, hidden], &format!("attention_query_t{t}"))?;
    let scores = b.matmul(row, encoded.keys, &format!("attention_scores_t{t}"))?;
    let scores = b.add(scores, encoded.mask, &format!("attention_masked_t{t}"))?;
    let weights = b.softmax(scores, &format!("attention_softmax_t{t}"))?;
    let context = b.matmul(weights, encoded.states, &format!("attention_context_t{t}"))?;
    let context = b.reshape(context, [batch, hidden], &format!("attention_t{t}"))?;
    let x = b.concat(&[query, context], &format!("decoder_rnn_hidden_concat_t{t}"))?;
    let x = layer.apply(b, x, &format!("decoder_rnn_hidden_fc_t{t}"))?;
    b.tanh(x, &format!("decoder_rnn_next_hidden_t{t}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use types::{DType, Tensor};

    use super::*;
    use crate::Named;
    use crate::builder::Dialect;

    /// Sockeye's own network of small sizes, as MXNet 1.9.1 computed it for sentences of different lengths.
    #[test]
    fn translations_match_sockeye() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/mxnet");
        let read = |name: &str| {
            let bytes = std::fs::read(folder.join(name)).expect("recorded results are checked in");
            ::weights::read(name, &bytes).expect("MXNet and NumPy wrote them")
        };
        let (mut weights, recorded) = (Named::new(read("seq2seq_tiny-0000.params")), read("seq2seq_tiny_ref.npz"));
        let mut b = Builder::new("sockeye", Dialect::Symbol, &mut weights);
        let inputs = ["source", "target"].map(|name| b.graph.add_input(name, DType::I64, Shape::from([2, 7])));
        let sizes = Sizes { source_words: 24, target_words: 24, embed: 16, hidden: 32 };
        let output = build(&mut b, &inputs, sizes).expect("the parameters fit");
        let mut graph = b.graph;
        graph.set_outputs(vec![("probabilities".into(), output)]);
        assert_eq!(weights.unused().count(), 0);
        let ids = ["source", "target"].map(|name| {
            let ids = recorded[name].to_f64();
            Tensor::from_fn(Shape::from([2, 7]), |at| ids[at] as i64)
        });
        let got = ir::evaluate(&graph, &ids).expect("the inputs fit")[0].to_f64();
        let want = recorded["softmax_output"].to_f64();
        assert_eq!(got.len(), want.len());
        let far = got.iter().zip(&want).position(|(got, want)| 1e-6 + 1e-4 * want.abs() < (got - want).abs());
        assert_eq!(far, None, "{got:?} instead of {want:?}");
    }
}
