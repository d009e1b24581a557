//! Scores and labels of the classifiers of domain `ai.onnx.ml`. Source: onnxruntime, `ml_common.h`.

use ir::ops::{self, Softmax};
use ir::{Refusal, ops::ReduceKind};
use smallvec::smallvec;
use types::pointwise::{self, Compare, Unary};
use types::{DType, Shape, Tensor};

use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// The function of the scores of a row.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum PostTransform {
    None,
    Softmax,
    /// A softmax in which scores of 0 stay 0.
    SoftmaxZero,
    Logistic,
}

impl PostTransform {
    pub(super) fn read(node: &ImportedNode) -> Result<PostTransform, Refusal> {
        Ok(match node.text_or("post_transform", "NONE") {
            "NONE" => PostTransform::None,
            "SOFTMAX" => PostTransform::Softmax,
            "SOFTMAX_ZERO" => PostTransform::SoftmaxZero,
            "LOGISTIC" => PostTransform::Logistic,
            other => refuse!("attribute `post_transform`: `{other}` is not supported"),
        })
    }

    /// `scores: [rows, classes]`.
    pub(super) fn apply(self, node: &mut ImportedNode, scores: Operand) -> Result<Operand, Refusal> {
        match self {
            PostTransform::None => Ok(scores),
            PostTransform::Logistic => node.unary(Unary::Sigmoid, scores),
            PostTransform::Softmax => node.apply(Softmax { axis: 1, log: false }, &[scores]),
            PostTransform::SoftmaxZero => {
                // A score of 0 has the power of 0 in place of its own.
                let least = node.number(1e-7, DType::F32);
                let size = node.unary(Unary::Abs, scores)?;
                let counts = node.compare(Compare::Greater, size, least)?;
                let top = node.reduce(ReduceKind::Max, scores, smallvec![1], true)?;
                let shifted = node.binary(pointwise::Binary::Sub, scores, top)?;
                let powers = node.unary(Unary::Exp, shifted)?;
                let negative = node.unary(Unary::Neg, top)?;
                let unit = node.unary(Unary::Exp, negative)?;
                let small = node.binary(pointwise::Binary::Mul, scores, unit)?;
                let powers = node.select(counts, powers, small)?;
                let sum = node.reduce(ReduceKind::Sum, powers, smallvec![1], true)?;
                node.binary(pointwise::Binary::Div, powers, sum)
            }
        }
    }
}

/// Adds one number to each column, or one to all.
pub(super) fn shifted(node: &mut ImportedNode, scores: Operand, base: &[f64]) -> Result<Operand, Refusal> {
    let columns = node.shape(scores)[1];
    if base.is_empty() {
        return Ok(scores);
    }
    if base.len() != columns && base.len() != 1 {
        refuse!("attribute `base_values` must have {columns} numbers, got {}", base.len());
    }
    let base = Tensor::vector(base.to_vec()).cast(node.dtype(scores));
    let base = node.constant_of_file(base);
    node.binary(pointwise::Binary::Add, scores, base)
}

/// The labels of classes.
pub(super) struct Labels {
    /// Number of classes.
    pub(super) count: usize,
    numbers: Vec<i64>,
}

impl Labels {
    /// From attribute `name`; texts are refused if a node reads the labels.
    pub(super) fn read(node: &ImportedNode, name: &str) -> Result<Labels, Refusal> {
        if let Some(texts) = node.texts("classlabels_strings")?
            && !texts.is_empty()
        {
            if node.has_output(0) {
                refuse!("attribute `classlabels_strings`: strings are not supported");
            }
            return Ok(Labels { count: texts.len(), numbers: (0..texts.len() as i64).collect() });
        }
        let numbers = node.ints(name)?.unwrap_or_default();
        Ok(Labels { count: numbers.len(), numbers })
    }

    /// The labels of classes by number, `[rows]`.
    fn of(&self, node: &mut ImportedNode, classes: Operand) -> Result<Operand, Refusal> {
        let table = node.constant(Tensor::vector(self.numbers.clone()));
        node.rows(table, classes)
    }
}

/// The label of the largest score, and the scores; `scores: [rows, classes]`.
pub(super) fn multiclass(
    node: &mut ImportedNode,
    scores: Operand,
    labels: &Labels,
    transform: PostTransform,
) -> NodeResult {
    if labels.count != node.shape(scores)[1] {
        refuse!("there must be a label for each of {} classes, got {}", node.shape(scores)[1], labels.count);
    }
    let best = node.apply(ops::ArgExtreme { axis: 1, keep: false, max: true, last: false }, &[scores])?;
    let label = labels.of(node, best)?;
    Ok(vec![label, transform.apply(node, scores)?])
}

/// A score of two classes.
#[derive(Clone, Copy)]
pub(super) struct Binary {
    /// Whether all weights are positive, so that the score is compared with one half.
    pub(super) is_probability: bool,
    /// Whether the file has the score as that of the first class; the first class then has the opposite score, else 0.
    pub(super) of_first: bool,
}

/// The label and two scores from the score of the second of two classes, `[rows, 1]`.
pub(super) fn binary(
    node: &mut ImportedNode,
    score: Operand,
    labels: &Labels,
    binary: Binary,
    transform: PostTransform,
) -> NodeResult {
    let rows = node.shape(score)[0];
    let threshold = node.number(if binary.is_probability { 0.5 } else { 0.0 }, DType::F32);
    let is_second = node.compare(Compare::Greater, score, threshold)?;
    let is_second = node.reshape(is_second, Shape::from([rows]))?;
    let pair = match labels.numbers[..] {
        [first, second] => [first, second],
        ref other => refuse!("there must be 2 labels, got {}", other.len()),
    };
    let [first, second] = pair.map(|label| node.constant(Tensor::scalar(label)));
    let label = node.select(is_second, second, first)?;
    let is_logistic = transform == PostTransform::Logistic;
    let other = match binary {
        Binary { of_first: false, .. } => {
            let zero = node.number(0.0, DType::F32);
            node.expand(zero, Shape::from([rows, 1]))?
        }
        Binary { is_probability: true, .. } if !is_logistic => {
            let one = node.number(1.0, DType::F32);
            node.binary(pointwise::Binary::Sub, one, score)?
        }
        _ => node.unary(Unary::Neg, score)?,
    };
    let both = node.apply(ops::Concat { axis: 1 }, &[other, score])?;
    // Of one score, ONNX Runtime transforms only by the logistic function.
    let both = if binary.of_first && !is_logistic { both } else { transform.apply(node, both)? };
    Ok(vec![label, both])
}
