//! [`Trainable`]: a graph with the facts that only training uses.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Graph, ValueId};

/// A graph from which a training step is built. It keeps the parts that inference removes: dropout, and the losses at the end of
/// a symbol.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trainable {
    /// The graph with dropout. Batch normalization has its inference form. Labels are inputs that no node reads.
    pub graph: Graph,
    /// The losses that the model's file states; none in a model for inference.
    pub heads: Vec<LossTerm>,
    /// How the running statistics of a batch normalization move, by its result. [`Moving::default`] for others.
    pub moving: BTreeMap<ValueId, Moving>,
    /// Matrices that files hold with rows and columns exchanged, under the same name.
    pub transposed: BTreeSet<ValueId>,
    /// The multipliers of weights by name, where the model's file states some.
    pub multipliers: BTreeMap<String, Multipliers>,
    /// Weights that an exporter computed from a parameter, with the parameter: they train in its place.
    pub folded: Vec<(String, String)>,
    /// Parameters that the file states and has no tensor of: the exporter merged those that were equal, or removed them.
    pub missing: Vec<String>,
    /// Batch normalizations of a graph for inference that take the statistics of the batch, as their file states.
    pub batch_statistics: Vec<String>,
    /// The input `i64[2]` that dropout draws from, if there is any.
    pub key: Option<ValueId>,
}

impl From<Graph> for Trainable {
    fn from(graph: Graph) -> Trainable {
        Trainable { graph, ..Trainable::default() }
    }
}

/// Factors of a weight's learning rate and weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Of the learning rate; a weight with 0 is not trained.
    pub learning_rate: f32,
    /// Of the optimizer's weight decay.
    pub weight_decay: f32,
}

impl Default for Multipliers {
    fn default() -> Multipliers {
        Multipliers { learning_rate: 1.0, weight_decay: 1.0 }
    }
}

/// How running statistics follow those of batches: `momentum * old + (1 - momentum) * batch`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moving {
    /// The share of the old value that stays.
    pub momentum: f32,
    /// Whether the variance of a batch is divided by one less than its elements, as PyTorch does; MXNet does not.
    pub unbiased: bool,
    /// Whether the running statistics normalize in training too and do not move.
    pub fixed: bool,
}

impl Default for Moving {
    fn default() -> Moving {
        Moving { momentum: 0.9, unbiased: true, fixed: false }
    }
}

/// A loss at the end of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct LossTerm {
    /// The formula.
    pub form: LossForm,
    /// What the losses of rows are divided by.
    pub mean: LossMean,
    /// The factor of the loss.
    pub scale: f32,
    /// The value that the formula reads: logits, probabilities or numbers.
    pub prediction: ValueId,
    /// The result of the graph that people compare with labels, if it is one.
    pub output: Option<ValueId>,
    /// The input with the labels; none for [`LossForm::Given`].
    pub label: Option<ValueId>,
}

/// The formula of a loss for one row: a label, or an element where labels are numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossForm {
    /// The negative log probability of the label, from logits.
    CrossEntropy {
        /// The axis of the classes.
        axis: usize,
        /// The label of rows that count for nothing.
        ignored: Option<i64>,
        /// The share of the target that is spread over all classes.
        smoothing: f32,
    },
    /// The negative log probability of the label, from probabilities or, with `log`, from their logarithms.
    Likelihood {
        /// The axis of the classes.
        axis: usize,
        /// The label of rows that count for nothing.
        ignored: Option<i64>,
        /// Whether the prediction is a logarithm.
        log: bool,
    },
    /// `(p - y)^2`.
    Squared,
    /// `|p - y|`.
    Absolute,
    /// `(p - y)^2 / 2` up to a distance of `delta`, then `delta (|p - y| - delta / 2)`.
    Huber {
        /// Where the square ends.
        delta: f32,
    },
    /// `-y log(s) - (1 - y) log(1 - s)` of `s = sigmoid(p)`.
    Logistic,
    /// The sum over classes of `max(0, margin - t p)`, or of its square, where `t` is 1 for the label and -1 for others.
    Margin {
        /// The distance from 0 at which a score costs nothing.
        margin: f32,
        /// Whether distances are squared.
        squared: bool,
    },
    /// The negative log probability of a sequence of labels under all alignments, from logits.
    Ctc {
        /// The class that means no label.
        blank: usize,
        /// The axis of the steps, 0 or 1; the other one is the batch.
        time: usize,
    },
    /// The prediction is the loss.
    Given,
}

/// What the sum of the losses of all rows is divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossMean {
    /// The number of rows.
    Rows,
    /// The number of samples: the first extent.
    Samples,
    /// The number of rows whose label is not ignored, at least 1.
    Counted,
    /// The number of rows with a loss above this threshold, at least 1.
    Above(f32),
}
