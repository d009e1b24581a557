//! Losses as nodes: one value per row, then their mean.

use ir::ops::{
    Binary, Cast, Compare, Ctc, Expand, Reduce, ReduceKind, Reshape, Select, Softmax, SoftmaxCrossEntropy, Transpose,
    Unary,
};
use ir::{Graph, LossForm, LossMean, LossTerm, Op, Refusal, TensorType, ValueId};
use smallvec::SmallVec;
use types::pointwise::{Binary as Function, Compare as Relation, Unary as Of};
use types::{DType, Scope, Shape, Tensor};

use super::TrainingError;
use super::recipe::{Classes, Loss};

/// A graph with nodes of one scope.
struct Nodes<'a> {
    graph: &'a mut Graph,
    scope: Scope,
}

impl Nodes<'_> {
    fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<ValueId, Refusal> {
        self.graph.add1(op.into(), inputs, self.scope.clone())
    }

    fn binary(&mut self, function: Function, a: ValueId, b: ValueId) -> Result<ValueId, Refusal> {
        self.add(Binary(function), &[a, b])
    }

    fn unary(&mut self, function: Of, x: ValueId) -> Result<ValueId, Refusal> {
        self.add(Unary(function), &[x])
    }

    fn number(&mut self, number: f32) -> ValueId {
        self.graph.add_constant(self.scope.as_str(), Tensor::scalar(number))
    }

    fn shape(&self, x: ValueId) -> Shape {
        self.graph.ty(x).shape.clone()
    }

    fn as_f32(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        if self.graph.ty(x).dtype == DType::F32 { Ok(x) } else { self.add(Cast { to: DType::F32 }, &[x]) }
    }

    fn sum(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        let axes: SmallVec<[usize; 4]> = (0..self.shape(x).rank()).collect();
        if axes.is_empty() { Ok(x) } else { self.add(Reduce { kind: ReduceKind::Sum, axes, keep: false }, &[x]) }
    }

    /// `x` with one axis moved to the end.
    fn classes_last(&mut self, x: ValueId, axis: usize) -> Result<ValueId, Refusal> {
        let rank = self.shape(x).rank();
        if axis + 1 == rank {
            return Ok(x);
        }
        let order = (0..rank).filter(|&other| other != axis).chain([axis]).collect();
        self.add(Transpose { order }, &[x])
    }

    /// Labels of classes as `i32`, in the shape of the rows.
    fn class_labels(&mut self, label: ValueId, rows: &Shape) -> Result<ValueId, Refusal> {
        let mut label = label;
        if !matches!(self.graph.ty(label).dtype, DType::I32 | DType::I64) {
            label = self.add(Cast { to: DType::I32 }, &[label])?;
        }
        let shape = self.shape(label);
        match shape == *rows {
            true => Ok(label),
            false if shape.elements() == rows.elements() => self.add(Reshape { shape: rows.clone() }, &[label]),
            false => Err(Refusal(format!("labels must have the shape {rows} of the rows of scores, got {shape}"))),
        }
    }

    /// Labels that are numbers, in the shape of the prediction.
    fn number_labels(&mut self, label: ValueId, prediction: &Shape) -> Result<ValueId, Refusal> {
        let label = self.as_f32(label)?;
        let shape = self.shape(label);
        match shape == *prediction {
            true => Ok(label),
            false if shape.elements() == prediction.elements() => {
                self.add(Reshape { shape: prediction.clone() }, &[label])
            }
            false => Err(Refusal(format!("labels must have the shape {prediction} of the prediction, got {shape}"))),
        }
    }
}

/// The losses of a head.
pub(super) struct Losses {
    /// A loss for each row; a scalar if the head has no rows.
    pub(super) rows: ValueId,
    /// The sum over all rows with the head's mean and factor, `f32[]`.
    pub(super) mean: ValueId,
}

/// Adds the loss of a head to a graph.
pub(super) fn attach(graph: &mut Graph, head: &LossTerm) -> Result<Losses, Refusal> {
    let mut nodes = Nodes { graph, scope: Scope::new("loss") };
    let prediction = nodes.as_f32(head.prediction)?;
    let label = || head.label.ok_or_else(|| Refusal("the loss needs labels".into()));
    let mut counted = None;
    let rows = match head.form {
        LossForm::CrossEntropy { axis, ignored, smoothing } => {
            let logits = nodes.classes_last(prediction, axis)?;
            let rows = rows_of(&nodes.shape(logits));
            let labels = nodes.class_labels(label()?, &rows)?;
            counted = ignored.map(|ignored| (labels, ignored));
            nodes.add(SoftmaxCrossEntropy { ignore: ignored, smoothing }, &[logits, labels])?
        }
        LossForm::Likelihood { axis, ignored, log } => {
            let mut scores = nodes.classes_last(prediction, axis)?;
            if !log {
                scores = nodes.unary(Of::Log, scores)?;
            }
            let rows = rows_of(&nodes.shape(scores));
            let labels = nodes.class_labels(label()?, &rows)?;
            counted = ignored.map(|ignored| (labels, ignored));
            likelihood(&mut nodes, scores, labels, ignored)?
        }
        LossForm::Squared => {
            let distance = difference(&mut nodes, prediction, label()?)?;
            nodes.binary(Function::Mul, distance, distance)?
        }
        LossForm::Absolute => {
            let distance = difference(&mut nodes, prediction, label()?)?;
            nodes.unary(Of::Abs, distance)?
        }
        LossForm::Huber { delta } => {
            let distance = difference(&mut nodes, prediction, label()?)?;
            let size = nodes.unary(Of::Abs, distance)?;
            let square = nodes.binary(Function::Mul, distance, distance)?;
            let square = nodes.unary(Of::Affine { scale: 0.5, shift: 0.0 }, square)?;
            let linear = nodes.unary(Of::Affine { scale: delta, shift: -0.5 * delta * delta }, size)?;
            let limit = nodes.number(delta);
            let is_near = nodes.add(Compare(Relation::LessOrEqual), &[size, limit])?;
            nodes.add(Select {}, &[is_near, square, linear])?
        }
        LossForm::Logistic => {
            // softplus(x) - x y has the gradient sigmoid(x) - y everywhere.
            let shape = nodes.shape(prediction);
            let label = nodes.number_labels(label()?, &shape)?;
            let product = nodes.binary(Function::Mul, prediction, label)?;
            let softplus = nodes.unary(Of::Softplus, prediction)?;
            nodes.binary(Function::Sub, softplus, product)?
        }
        LossForm::Margin { margin, squared } => {
            let rows = rows_of(&nodes.shape(prediction));
            let labels = nodes.class_labels(label()?, &rows)?;
            margins(&mut nodes, prediction, labels, margin, squared)?
        }
        LossForm::Ctc { blank, time } => {
            let logits = match time {
                0 => prediction,
                _ => nodes.add(Transpose { order: SmallVec::from_slice(&[1, 0, 2]) }, &[prediction])?,
            };
            let mut labels = label()?;
            if !matches!(nodes.graph.ty(labels).dtype, DType::I32 | DType::I64) {
                labels = nodes.add(Cast { to: DType::I32 }, &[labels])?;
            }
            nodes.add(Ctc { blank }, &[logits, labels])?
        }
        LossForm::Given => prediction,
    };
    let mean = mean(&mut nodes, head, rows, counted)?;
    Ok(Losses { rows, mean })
}

fn rows_of(scores: &Shape) -> Shape {
    Shape::from(&scores[..scores.rank() - 1])
}

fn difference(nodes: &mut Nodes, prediction: ValueId, label: ValueId) -> Result<ValueId, Refusal> {
    let shape = nodes.shape(prediction);
    let label = nodes.number_labels(label, &shape)?;
    nodes.binary(Function::Sub, prediction, label)
}

/// The negative of the score `[.., classes]` at the label.
fn likelihood(nodes: &mut Nodes, scores: ValueId, labels: ValueId, ignored: Option<i64>) -> Result<ValueId, Refusal> {
    let shape = nodes.shape(scores);
    let last = shape.rank() - 1;
    let is_label = at_label(nodes, labels, shape)?;
    let zero = nodes.number(0.0);
    let chosen = nodes.add(Select {}, &[is_label, scores, zero])?;
    let rows =
        nodes.add(Reduce { kind: ReduceKind::Sum, axes: [last].into_iter().collect(), keep: false }, &[chosen])?;
    let rows = nodes.unary(Of::Neg, rows)?;
    match ignored {
        None => Ok(rows),
        Some(ignored) => {
            let is_ignored = equal(nodes, labels, ignored)?;
            nodes.add(Select {}, &[is_ignored, zero, rows])
        }
    }
}

/// The sum over classes of the distances to the right side of a margin.
fn margins(
    nodes: &mut Nodes,
    scores: ValueId,
    labels: ValueId,
    margin: f32,
    squared: bool,
) -> Result<ValueId, Refusal> {
    let shape = nodes.shape(scores);
    let axes = [shape.rank() - 1].into_iter().collect();
    let is_label = at_label(nodes, labels, shape)?;
    let negative = nodes.unary(Of::Neg, scores)?;
    let wrong = nodes.add(Select {}, &[is_label, negative, scores])?;
    let distance = nodes.unary(Of::Affine { scale: 1.0, shift: margin }, wrong)?;
    let cost = nodes.unary(Of::Relu, distance)?;
    let kind = if squared { ReduceKind::SumSquare } else { ReduceKind::Sum };
    nodes.add(Reduce { kind, axes, keep: false }, &[cost])
}

/// For scores of `shape: [.., classes]` whether each is that of its row's label.
fn at_label(nodes: &mut Nodes, labels: ValueId, shape: Shape) -> Result<ValueId, Refusal> {
    let classes = shape[shape.rank() - 1];
    let dtype = nodes.graph.ty(labels).dtype;
    let mut column = nodes.shape(labels);
    column.push(1);
    let column = nodes.add(Reshape { shape: column }, &[labels])?;
    let column = nodes.add(Expand { shape: shape.clone() }, &[column])?;
    let numbers = Tensor::vector((0..classes as i64).collect::<Vec<i64>>()).cast(dtype);
    let numbers = nodes.graph.add_constant("classes", numbers);
    let numbers = nodes.add(Expand { shape }, &[numbers])?;
    nodes.add(Compare(Relation::Equal), &[column, numbers])
}

fn equal(nodes: &mut Nodes, labels: ValueId, label: i64) -> Result<ValueId, Refusal> {
    let dtype = nodes.graph.ty(labels).dtype;
    let label = nodes.graph.add_constant("ignored", Tensor::scalar(label).cast(dtype));
    nodes.add(Compare(Relation::Equal), &[labels, label])
}

/// The sum of the rows over the head's divisor, times its factor.
fn mean(
    nodes: &mut Nodes,
    head: &LossTerm,
    rows: ValueId,
    counted: Option<(ValueId, i64)>,
) -> Result<ValueId, Refusal> {
    let shape = nodes.shape(rows);
    let sum = nodes.sum(rows)?;
    let divisor = match (head.mean, counted) {
        (LossMean::Counted, Some((labels, ignored))) => {
            let is_ignored = equal(nodes, labels, ignored)?;
            let is_ignored = nodes.as_f32(is_ignored)?;
            let ignored = nodes.sum(is_ignored)?;
            let count = nodes.unary(Of::Affine { scale: -1.0, shift: shape.elements() as f32 }, ignored)?;
            return over_count(nodes, sum, count, head.scale);
        }
        (LossMean::Above(threshold), _) => {
            let threshold = nodes.number(threshold);
            let is_above = nodes.add(Compare(Relation::Greater), &[rows, threshold])?;
            let is_above = nodes.as_f32(is_above)?;
            let count = nodes.sum(is_above)?;
            return over_count(nodes, sum, count, head.scale);
        }
        (LossMean::Samples, _) => shape.first().copied().unwrap_or(1),
        (LossMean::Rows | LossMean::Counted, _) => shape.elements(),
    };
    let scale = (f64::from(head.scale) / divisor.max(1) as f64) as f32;
    nodes.unary(Of::Affine { scale, shift: 0.0 }, sum)
}

/// `scale sum / count`, with 1 for a smaller count.
fn over_count(nodes: &mut Nodes, sum: ValueId, count: ValueId, scale: f32) -> Result<ValueId, Refusal> {
    let count = nodes.unary(Of::Clip { min: 1.0, max: f32::MAX }, count)?;
    let sum = nodes.unary(Of::Affine { scale, shift: 0.0 }, sum)?;
    nodes.binary(Function::Div, sum, count)
}

/// The head of a loss that the caller chose: it compares the first result with a new input, the labels.
pub(super) fn chosen(graph: &mut Graph, loss: &Loss) -> Result<LossTerm, TrainingError> {
    let Some(output) = graph.results().next().map(|output| output.value) else { return Err(TrainingError::NoOutput) };
    let producer = graph.value(output).producer().map(|node| graph.node(node).clone());
    // A softmax or sigmoid at the end, with its operand.
    let mut softmax: Option<(Softmax, ValueId)> = None;
    let mut sigmoid: Option<ValueId> = None;
    if let Some(node) = &producer {
        if let Op::Softmax(op) = &node.op {
            softmax = Some((op.clone(), node.inputs[0]));
        }
        if let Op::Unary(Unary(Of::Sigmoid)) = &node.op {
            sigmoid = Some(node.inputs[0]);
        }
    }
    let classes = |classes: &Classes, shape: &Shape| -> Result<usize, TrainingError> {
        let rank = shape.rank();
        let axis = classes.axis.unwrap_or(if 4 <= rank { 1 } else { rank.saturating_sub(1) });
        if rank < 2 || rank <= axis {
            return Err(TrainingError::Prediction {
                loss: loss.name(),
                want: "[batch, classes, ..]",
                got: graph.ty(output).to_string(),
            });
        }
        Ok(axis)
    };
    let shape = graph.ty(output).shape.clone();
    let (form, prediction, mean) = match *loss {
        Loss::Output => {
            let (form, mean) = (LossForm::Given, LossMean::Rows);
            return Ok(LossTerm { form, mean, scale: 1.0, prediction: output, output: None, label: None });
        }
        Loss::SoftmaxCrossEntropy(of, smoothing) => {
            let (axis, logits) = match softmax.filter(|_| of.axis.is_none()) {
                Some((softmax, logits)) => (softmax.axis, logits),
                None => (classes(&of, &shape)?, output),
            };
            (LossForm::CrossEntropy { axis, ignored: of.ignored, smoothing }, logits, LossMean::Counted)
        }
        Loss::CrossEntropyIndex(of) | Loss::Nll(of) => {
            let log = matches!(loss, Loss::Nll(_));
            let ignored = of.ignored;
            let fused = softmax.filter(|(own, _)| own.log == log && of.axis.is_none_or(|axis| axis == own.axis));
            let (form, prediction) = match fused {
                Some((own, logits)) => (LossForm::CrossEntropy { axis: own.axis, ignored, smoothing: 0.0 }, logits),
                None => (LossForm::Likelihood { axis: classes(&of, &shape)?, ignored, log }, output),
            };
            (form, prediction, LossMean::Counted)
        }
        Loss::Mse => (LossForm::Squared, output, LossMean::Rows),
        Loss::L1 => (LossForm::Absolute, output, LossMean::Rows),
        Loss::Huber(delta) => (LossForm::Huber { delta }, output, LossMean::Rows),
        Loss::Ctc { blank, time, .. } => {
            let [_, _, classes] = shape[..] else {
                let want = "[batch, steps, classes] or, with time=0, [steps, batch, classes]";
                let got = graph.ty(output).to_string();
                return Err(TrainingError::Prediction { loss: loss.name(), want, got });
            };
            if classes <= blank {
                let refusal = Refusal(format!("blank must be one of {classes} classes, got {blank}"));
                return Err(TrainingError::Loss(refusal));
            }
            let logits = softmax.filter(|(softmax, _)| softmax.axis == 2).map_or(output, |(_, logits)| logits);
            (LossForm::Ctc { blank, time }, logits, LossMean::Rows)
        }
        Loss::Bce => (LossForm::Logistic, sigmoid.unwrap_or(output), LossMean::Rows),
    };
    let ty = match form {
        LossForm::CrossEntropy { axis, .. } | LossForm::Likelihood { axis, .. } => {
            let mut rows = graph.ty(prediction).shape.clone();
            rows.remove(axis);
            TensorType { dtype: DType::I32, shape: rows }
        }
        LossForm::Ctc { time, .. } => {
            let Loss::Ctc { labels, .. } = *loss else { unreachable!("no other loss has this form") };
            let labels = labels.unwrap_or(shape[time]);
            TensorType { dtype: DType::I32, shape: [shape[1 - time], labels].into() }
        }
        _ => TensorType { dtype: DType::F32, shape },
    };
    let label = graph.add_input("label", ty.dtype, ty.shape);
    // Classes of steps are not compared with labels of sequences.
    let output = Some(output).filter(|_| !matches!(form, LossForm::Ctc { .. }));
    Ok(LossTerm { form, mean, scale: 1.0, prediction, output, label: Some(label) })
}
