//! [`TrainFlags`]: whether and how a model is compiled for training.

use clap::Args;
use clap::builder::RangedU64ValueParser;
use compiler::source::Request;
use passes::training::{Loss, Optimizer, Recipe};

/// The optimizer of a step that names none.
const OPTIMIZER: &str = "adam";

/// The batch of a network of the zoo without `--batch`.
const BATCH: usize = 32;

/// Flags of `compile --train` and `what-if --train`.
#[derive(Args)]
pub(crate) struct TrainFlags {
    /// Compile the step that trains the model, and its evaluation: `EXE train --data SPEC --epochs N`.
    #[arg(long)]
    train: bool,
    /// The loss: softmax_cross_entropy, cross_entropy_index, nll, mse, l1, huber, bce or ctc, with options as huber:delta=2,
    /// or output if the model's first output is its loss (default: the symbol's own; softmax_cross_entropy for networks of
    /// the zoo).
    #[arg(long, value_name = "SPEC", requires = "train")]
    loss: Option<Loss>,
    /// The optimizer: sgd, adam, adamw, rmsprop, adagrad, adadelta, lamb or lion, with options as
    /// sgd:momentum=0.9,nesterov,weight_decay=1e-4 (default adam).
    #[arg(long, value_name = "SPEC", requires = "train")]
    optimizer: Option<Optimizer>,
    /// Scale the gradients so that their common norm is at most X.
    #[arg(long, value_name = "X", requires = "train", value_parser = parse_norm)]
    clip_norm: Option<f32>,
    /// Add up the gradients of N batches in one step, which reads N times --batch samples.
    #[arg(long, value_name = "N", requires = "train")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    accumulate: Option<usize>,
    /// Weights that are not trained, by name; `*` is any text. Repeat for several.
    #[arg(long, value_name = "GLOB", requires = "train")]
    freeze: Vec<String>,
}

impl TrainFlags {
    /// The recipe, or `None` without `--train`.
    pub(crate) fn recipe(&self, request: &Request) -> Option<Recipe> {
        if !self.train {
            return None;
        }
        let of_zoo = request.is_of_zoo().then(|| "softmax_cross_entropy".parse().expect("it is a loss"));
        Some(Recipe {
            loss: self.loss.or(of_zoo),
            optimizer: self.optimizer.clone().unwrap_or_else(|| OPTIMIZER.parse().expect("it is an optimizer")),
            clip_norm: self.clip_norm,
            accumulate: self.accumulate.unwrap_or(1),
            freeze: self.freeze.clone(),
        })
    }

    /// The batch if none is given: networks of the zoo are trained on several samples.
    pub(crate) fn default_batch(&self, request: &Request) -> Option<usize> {
        (self.train && request.is_of_zoo() && request.shapes.is_empty()).then_some(BATCH)
    }
}

fn parse_norm(given: &str) -> Result<f32, String> {
    let norm = given.parse().ok().filter(|norm: &f32| norm.is_finite() && 0.0 < *norm);
    norm.ok_or_else(|| "expected a number above 0".into())
}
