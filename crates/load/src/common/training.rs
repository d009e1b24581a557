//! [`Notes`]: facts of a model besides its graph that training uses, noted while it is translated.

use std::collections::{BTreeMap, BTreeSet};

use ir::ops::{BatchNorm, Dropout};
use ir::{LossForm, LossMean, LossTerm, Moving, Multipliers, Refusal, Trainable, ValueId};
use types::pointwise::{Compare, Unary};
use types::{DType, Shape};

use super::{Builder, ImportedNode, Operand, refuse};

/// Notes about the graph under construction.
#[derive(Default)]
pub(crate) struct Notes {
    heads: Vec<LossTerm>,
    moving: BTreeMap<ValueId, Moving>,
    /// The results of batch normalizations that the file has in inference mode.
    still: Vec<ValueId>,
    /// Whether the file has a batch normalization in training mode.
    has_training_mode: bool,
    /// Matrices under the names of their transposes.
    pub(super) transposed: BTreeSet<ValueId>,
    multipliers: BTreeMap<String, Multipliers>,
    folded: Vec<(String, String)>,
    missing: Vec<String>,
    key: Option<ValueId>,
    /// Dropouts so far; each draws from a stream of its own.
    dropouts: u32,
}

/// The nodes of a model for inference that its file has in training mode.
#[derive(Debug, Default)]
pub(crate) struct Modes {
    /// Whether they have their inference form.
    pub(crate) is_inference: bool,
    /// The batch normalizations that take the statistics of the batch.
    batch_statistics: Vec<String>,
    /// How many were refused.
    pub(crate) refused: usize,
}

impl Builder {
    /// A builder that gives nodes in training mode their inference form.
    pub(crate) fn for_inference(self) -> Builder {
        Builder { modes: Modes { is_inference: true, ..self.modes }, ..self }
    }

    /// A builder that keeps dropout and losses, and does not compute with weights.
    pub(crate) fn for_training(self) -> Builder {
        Builder { training: Some(Notes::default()), ..self }
    }

    /// The graph with the notes.
    pub(crate) fn into_trainable(self) -> Trainable {
        let Notes {
            heads,
            mut moving,
            still,
            has_training_mode,
            transposed,
            multipliers,
            folded,
            missing,
            key,
            dropouts: _,
        } = self.training.unwrap_or_default();
        // A file in which some normalize by the batch states which ones do; in a file for inference none does.
        for y in still.iter().filter(|_| has_training_mode) {
            moving.entry(*y).or_default().fixed = true;
        }
        let Modes { batch_statistics, .. } = self.modes;
        Trainable { graph: self.graph, heads, moving, transposed, multipliers, folded, missing, batch_statistics, key }
    }

    /// Notes a weight that a file has in the place of a parameter.
    pub(crate) fn note_folded(&mut self, weight: &str, parameter: &str) {
        if let Some(notes) = &mut self.training {
            notes.folded.push((weight.to_string(), parameter.to_string()));
        }
    }

    /// Notes a parameter that a file has no tensor of.
    pub(crate) fn note_missing(&mut self, parameter: &str) {
        if let Some(notes) = &mut self.training {
            notes.missing.push(parameter.to_string());
        }
    }

    /// Notes the multipliers of a weight.
    pub(crate) fn note_multipliers(&mut self, weight: &str, multipliers: Multipliers) {
        if let Some(notes) = &mut self.training {
            notes.multipliers.insert(weight.to_string(), multipliers);
        }
    }
}

/// A loss at the end of a symbol.
pub(crate) struct LossHead {
    pub(crate) form: LossForm,
    pub(crate) mean: LossMean,
    pub(crate) scale: f64,
    pub(crate) prediction: Operand,
    /// The result that people compare with labels.
    pub(crate) output: Operand,
    pub(crate) label: Option<Operand>,
}

impl<N> ImportedNode<'_, N> {
    pub(crate) fn is_training(&self) -> bool {
        self.builder.training.is_some()
    }

    /// Whether nodes in training mode have their inference form.
    pub(crate) fn is_inference(&self) -> bool {
        self.builder.modes.is_inference
    }

    /// The refusal of a node in training mode.
    pub(crate) fn refuse_mode<T>(&mut self, computes: &str) -> Result<T, Refusal> {
        self.builder.modes.refused += 1;
        refuse!("must be in inference mode, got training mode, in which {computes}; export the model for inference");
    }

    /// Notes that the node takes the statistics of the batch in inference.
    pub(crate) fn note_batch_statistics(&mut self) {
        let name = self.scope.as_str().to_string();
        self.builder.modes.batch_statistics.push(name);
    }

    /// `x` in inference; in training zeros at random places, and the other elements scaled.
    pub(crate) fn dropout(&mut self, x: Operand, rate: f64) -> Result<Operand, Refusal> {
        self.drop_together([x], rate).map(|[x]| x)
    }

    /// [`ImportedNode::dropout`], and which elements stay.
    pub(crate) fn dropout_with_mask(&mut self, x: Operand, rate: f64) -> Result<[Operand; 2], Refusal> {
        let ones = self.constant_of(self.shape(x), |_| 1.0f32)?;
        let [x, scaled] = self.drop_together([x, ones], rate)?;
        let zero = self.number(0.0, DType::F32);
        let is_zero = self.compare(Compare::Equal, scaled, zero)?;
        Ok([x, self.unary(Unary::Not, is_zero)?])
    }

    /// Dropout of values of one shape at the same places.
    fn drop_together<const COUNT: usize>(
        &mut self,
        values: [Operand; COUNT],
        rate: f64,
    ) -> Result<[Operand; COUNT], Refusal> {
        let Some(notes) = &mut self.builder.training else { return Ok(values) };
        if rate == 0.0 {
            return Ok(values);
        }
        let stream = notes.dropouts;
        notes.dropouts += 1;
        let key = match notes.key {
            Some(key) => key,
            None => {
                let key = self.builder.graph.add_input("key", DType::I64, Shape::from([2]));
                *notes.key.insert(key)
            }
        };
        let mut dropped = values;
        for x in &mut dropped {
            *x = self.apply_f32(Dropout { rate: rate as f32, stream }, &[*x, Operand::Value(key)])?;
        }
        Ok(dropped)
    }

    /// Batch normalization with running statistics, and how these move in training.
    pub(crate) fn batch_norm(
        &mut self,
        operands: &[Operand],
        epsilon: f32,
        moving: Moving,
    ) -> Result<Operand, Refusal> {
        let y = self.apply_f32(BatchNorm { epsilon }, operands)?;
        if let (Some(notes), Operand::Value(y)) = (&mut self.builder.training, y) {
            notes.moving.insert(y, moving);
        }
        Ok(y)
    }

    /// Whether a node of the graph yields the operand.
    pub(crate) fn is_computed(&self, operand: Operand) -> bool {
        matches!(operand, Operand::Value(value) if self.builder.graph.value(value).producer().is_some())
    }

    /// Notes whether the file has the batch normalization with the result `y` in training mode.
    pub(crate) fn note_mode(&mut self, y: Operand, is_training: bool) {
        let Some(notes) = &mut self.builder.training else { return };
        notes.has_training_mode |= is_training;
        if let (Operand::Value(y), false) = (y, is_training) {
            notes.still.push(y);
        }
    }

    /// Notes a loss.
    pub(crate) fn note_head(&mut self, head: LossHead) {
        let LossHead { form, mean, scale, prediction, output, label } = head;
        let (prediction, output) = (self.builder.value(prediction), self.builder.value(output));
        let label = label.map(|label| self.builder.value(label));
        let head = LossTerm { form, mean, scale: scale as f32, prediction, output: Some(output), label };
        if let Some(notes) = &mut self.builder.training {
            notes.heads.push(head);
        }
    }

    /// An input for labels that the file names without a shape.
    pub(crate) fn label_input(&mut self, name: &str, dtype: DType, shape: Shape) -> Result<Operand, Refusal> {
        let graph = &mut self.builder.graph;
        let found = graph.inputs().iter().copied().find(|&input| graph.value(input).name == name);
        match found {
            None => Ok(Operand::Value(graph.add_input(name, dtype, shape))),
            Some(input) if graph.ty(input).shape == shape && graph.ty(input).dtype == dtype => {
                Ok(Operand::Value(input))
            }
            Some(input) => {
                refuse!("labels `{name}` must be {dtype}{shape} here, but are {} elsewhere", graph.ty(input))
            }
        }
    }
}
