//! [`build`]: a model becomes two graphs, the step that trains it and the evaluation.
//!
//! The step is the forward part in its training form, the loss, its gradients, and an [`Update`] for each weight. Weights,
//! running statistics and the optimizer's moments are states. The evaluation has the inference form, with states of the same
//! names. With [`Recipe::accumulate`] the forward part is in the step several times, for parts of its inputs; gradients of all
//! parts add up.

use std::collections::BTreeMap;

use ir::ops::{
    BatchNormTraining, Binary, Compare, Concat, Reduce, ReduceKind, Select, Slice, Transpose, Unary, Update,
};
use ir::{Graph, LossForm, LossTerm, Moving, Multipliers, Node, NodeId, Op, Refusal, Trainable, ValueDef, ValueId};
use smallvec::SmallVec;
use types::pointwise::{Binary as Function, Compare as Relation, Unary as Of};
use types::{DType, Map, Role, Scope, Shape, Tensor};

use super::deferred::Deferred;
use super::differentiate::{GradientError, differentiate};
use super::loss::{self, Losses};
use super::recipe::{Optimizer, Recipe, matches};

/// The two graphs of a model that is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingGraphs {
    /// One step: inputs are those of the model, labels, `learning_rate`, and `step` and `key` if they are read. The first
    /// result is `loss`, the second the prediction.
    pub step: Graph,
    /// The model's results and `loss` by row, from the states of the step.
    pub evaluation: Graph,
    /// The names of the inputs that are labels.
    pub labels: Vec<String>,
    /// The weights whose files have rows and columns exchanged.
    pub transposed: Vec<String>,
    /// The name of the result that is compared with the labels.
    pub prediction: Option<String>,
    /// The label of rows that count for nothing.
    pub ignored: Option<i64>,
    /// The losses by name.
    pub loss: String,
}

/// Why a model cannot be trained as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum TrainingError {
    #[error("the model states no loss; choose one with --loss")]
    NoLoss,
    #[error("the model has no output to compare with labels")]
    NoOutput,
    #[error("loss {loss} needs a prediction {want}, got {got}")]
    Prediction { loss: &'static str, want: &'static str, got: String },
    #[error("the loss is refused: {0}")]
    Loss(Refusal),
    #[error("weight `{name}` must be f32 to be trained, got {dtype}")]
    WeightDType { name: String, dtype: DType },
    #[error("two weights are named `{name}`; names must be distinct, since states are kept by name")]
    TwoWeights { name: String },
    #[error("the model has an input `{name}`, which is a name of the training step; rename it")]
    ReservedInput { name: String },
    #[error("the model has an output `{name}`, which is a name of the training step; rename it")]
    ReservedOutput { name: String },
    #[error("--freeze `{pattern}` matches no weight; the weights are {known}")]
    NothingFrozen { pattern: String, known: String },
    #[error("the loss depends on no weight that is trained")]
    NothingTrained,
    #[error(transparent)]
    Gradient(#[from] GradientError),
    #[error("internal error: {0}")]
    Node(Refusal),
}

/// Names of inputs and results that the step itself has; `plan::Training` has the same.
const RESERVED: [&str; 3] = ["learning_rate", "step", "key"];
const LOSS: &str = "loss";

/// Builds the step and the evaluation of a model.
///
/// # Errors
/// A model that has no loss, or cannot be trained.
pub fn build(mut model: Trainable, recipe: &Recipe) -> Result<TrainingGraphs, TrainingError> {
    if let Some(name) = reserved_input(&model) {
        return Err(TrainingError::ReservedInput { name });
    }
    if let Some(loss) = &recipe.loss {
        model.heads = vec![loss::chosen(&mut model.graph, loss)?];
    }
    if model.heads.is_empty() {
        return Err(TrainingError::NoLoss);
    }
    if has_other_loss(&model) {
        return Err(TrainingError::ReservedOutput { name: LOSS.to_string() });
    }
    let result_name = |value: ValueId| {
        let mut results = model.graph.results();
        results.find(|result| result.value == value).map(|result| result.name.clone())
    };
    let first = &model.heads[0];
    let name_of = |value: &ValueId| model.graph.value(*value).name.clone();
    let ignored = match first.form {
        LossForm::CrossEntropy { ignored, .. } | LossForm::Likelihood { ignored, .. } => ignored,
        _ => None,
    };
    Ok(TrainingGraphs {
        step: step(&model, recipe)?,
        evaluation: evaluation(&model)?,
        labels: model.heads.iter().filter_map(|head| head.label.as_ref().map(name_of)).collect(),
        transposed: {
            let plain = plain_weights(&model);
            model.transposed.iter().map(name_of).filter(|name| !plain.contains_key(name)).collect()
        },
        prediction: first.output.and_then(result_name),
        ignored,
        loss: recipe.loss.map_or_else(|| "model".to_string(), |loss| loss.name().to_string()),
    })
}

/// The weights that are read in the order of the file, by name.
fn plain_weights(model: &Trainable) -> BTreeMap<String, ValueId> {
    let values = model.graph.values().iter();
    let plain = values.filter(|(id, value)| {
        matches!(value.source, ValueDef::Weight(_)) && value.ty.dtype.is_float() && !model.transposed.contains(id)
    });
    plain.map(|(id, value)| (value.name.clone(), id)).collect()
}

fn reserved_input(model: &Trainable) -> Option<String> {
    let own = model.graph.inputs().iter().filter(|&&input| Some(input) != model.key);
    let mut names = own.map(|&input| &model.graph.value(input).name);
    names.find(|name| RESERVED.contains(&name.as_str())).cloned()
}

/// Whether the model has an output with the name of the loss that is another value.
fn has_other_loss(model: &Trainable) -> bool {
    let given = match &model.heads[..] {
        [LossTerm { form: LossForm::Given, prediction, .. }] => Some(*prediction),
        _ => None,
    };
    model.graph.results().any(|result| result.name == LOSS && Some(result.value) != given)
}

/// How nodes are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Statistics of the batch, dropout.
    Training,
    /// Running statistics, no dropout.
    Evaluation,
}

/// A graph under construction from parts of a model.
struct Assembly<'a> {
    model: &'a Trainable,
    graph: Graph,
    /// States by the model's value, in order of first use.
    states: BTreeMap<ValueId, ValueId>,
    weights: Vec<ValueId>,
    /// The running statistics after the parts so far, by state.
    moved: BTreeMap<ValueId, ValueId>,
    /// The operands of batch normalizations that are running statistics.
    statistics: Vec<ValueId>,
    plain: BTreeMap<String, ValueId>,
    /// The functions of the training form that run behind a maximum pool instead of in front of it.
    deferred: Deferred,
}

impl<'a> Assembly<'a> {
    /// The multipliers of a weight.
    fn multipliers(&self, weight: &str) -> Multipliers {
        self.model.multipliers.get(weight).copied().unwrap_or_default()
    }

    fn new(model: &'a Trainable) -> Assembly<'a> {
        let normalizations = model.graph.nodes().values().filter(|node| matches!(node.op, Op::BatchNorm(_)));
        let statistics = normalizations.flat_map(|node| node.inputs[3..].iter().copied()).collect();
        let graph = Graph::new(&model.graph.name);
        let deferred = Deferred::of(&model.graph);
        let (states, moved) = (BTreeMap::new(), BTreeMap::new());
        let plain = plain_weights(model);
        Assembly { model, graph, states, weights: Vec::new(), moved, statistics, plain, deferred }
    }

    /// The copy of a value that is no result of a node: a state, a constant, or an input that is mapped already.
    fn leaf(&mut self, old: ValueId) -> Result<ValueId, TrainingError> {
        if let Some(&state) = self.states.get(&old) {
            return Ok(state);
        }
        let value = self.model.graph.value(old);
        let is_statistic = self.statistics.contains(&old);
        let tensor = value.tensor().expect("inputs and results are mapped before they are read").clone();
        let is_weight = matches!(value.source, ValueDef::Weight(_)) && value.ty.dtype.is_float();
        if !is_statistic && !is_weight {
            return Ok(self.graph.add_constant(&value.name, tensor));
        }
        if value.ty.dtype != DType::F32 {
            return Err(TrainingError::WeightDType { name: value.name.clone(), dtype: value.ty.dtype });
        }
        // A matrix that is read both as it is and transposed is one weight, in the order of the file.
        if let (true, Some(&plain)) = (self.model.transposed.contains(&old), self.plain.get(&value.name)) {
            let state = self.leaf(plain)?;
            return self.add(Transpose { order: SmallVec::from_slice(&[1, 0]) }, &[state], &value.name);
        }
        if self.states.values().any(|&state| self.graph.value(state).name == value.name) {
            return Err(TrainingError::TwoWeights { name: value.name.clone() });
        }
        let role = if is_statistic { Role::State } else { Role::Weight };
        let state = self.graph.add_state(&value.name, tensor, role);
        self.states.insert(old, state);
        if !is_statistic {
            self.weights.push(state);
        }
        Ok(state)
    }

    /// Copies all nodes for given inputs. `part` counts the copies. Returns the copies of all values.
    fn copy(
        &mut self,
        form: Form,
        inputs: &[(ValueId, ValueId)],
        part: u32,
    ) -> Result<Map<ValueId, Option<ValueId>>, TrainingError> {
        let model = self.model;
        let mut map: Map<ValueId, Option<ValueId>> = Map::filled(model.graph.values().len(), None);
        inputs.iter().for_each(|&(old, new)| map[old] = Some(new));
        for node in model.graph.nodes().values() {
            let mut operands: SmallVec<[ValueId; 4]> = SmallVec::new();
            for &input in &node.inputs {
                if let (Form::Evaluation, Op::Dropout(_), 1) = (form, &node.op, operands.len()) {
                    break;
                }
                let new = match map[input] {
                    Some(new) => new,
                    None => self.leaf(input)?,
                };
                map[input] = Some(new);
                operands.push(new);
            }
            let outputs = self.node(form, node, &operands, part)?;
            for (&old, new) in node.outputs.iter().zip(outputs) {
                let name = &model.graph.value(old).name;
                self.graph.value_mut(new).name.clone_from(name);
                map[old] = Some(new);
            }
        }
        Ok(map)
    }

    /// One node in its form.
    fn node(
        &mut self,
        form: Form,
        node: &Node,
        operands: &[ValueId],
        part: u32,
    ) -> Result<SmallVec<[ValueId; 1]>, TrainingError> {
        let add = |graph: &mut Graph, op: Op, inputs: &[ValueId]| {
            graph.add(op, inputs, node.scope.clone()).map_err(TrainingError::Node)
        };
        if let Op::Dropout(dropout) = &node.op {
            if form == Form::Evaluation {
                return Ok([operands[0]].into_iter().collect());
            }
            let mut dropout = dropout.clone();
            // Each part draws numbers of its own.
            dropout.stream = dropout.stream.wrapping_add(part.wrapping_mul(1 << 20));
            return add(&mut self.graph, dropout.into(), operands);
        }
        if form == Form::Training && self.deferred.skipped.contains(&node.outputs[0]) {
            return Ok([operands[0]].into_iter().collect());
        }
        if let (Some(function), Form::Training) = (self.deferred.behind.get(&node.outputs[0]), form) {
            let pooled = add(&mut self.graph, node.op.clone(), operands)?;
            return add(&mut self.graph, function.clone(), &pooled);
        }
        let moving = self.model.moving.get(&node.outputs[0]).copied().unwrap_or_default();
        if let (Op::BatchNorm(norm), Form::Training, false) = (&node.op, form, moving.fixed) {
            let training = BatchNormTraining { epsilon: norm.epsilon };
            let outputs = add(&mut self.graph, training.into(), &operands[..3])?;
            let x = &self.graph.ty(operands[0]).shape;
            let count = x.elements() / x[1].max(1);
            for (ix, unbiased) in [(1, false), (2, moving.unbiased)] {
                // Statistics that are inputs or results of nodes have no state to move.
                if !matches!(self.graph.value(operands[2 + ix]).source, ValueDef::State { .. }) {
                    continue;
                }
                let correction = if unbiased && 1 < count { count as f64 / (count - 1) as f64 } else { 1.0 };
                self.average(operands[2 + ix], outputs[ix], moving, correction, &node.scope)?;
            }
            return Ok([outputs[0]].into_iter().collect());
        }
        add(&mut self.graph, node.op.clone(), operands)
    }

    /// Moves a running statistic towards that of a batch.
    fn average(
        &mut self,
        state: ValueId,
        batch: ValueId,
        moving: Moving,
        correction: f64,
        scope: &Scope,
    ) -> Result<(), TrainingError> {
        let scope = scope.child("statistics");
        let old = self.moved.get(&state).copied().unwrap_or(state);
        let mut times = |value: ValueId, scale: f64| {
            let op = Unary(Of::Affine { scale: scale as f32, shift: 0.0 });
            self.graph.add1(op.into(), &[value], scope.clone()).map_err(TrainingError::Node)
        };
        let momentum = f64::from(moving.momentum);
        let (kept, new) = (times(old, momentum)?, times(batch, (1.0 - momentum) * correction)?);
        let next = self.graph.add1(Binary(Function::Add).into(), &[kept, new], scope).map_err(TrainingError::Node)?;
        for value in [kept, new, next] {
            self.graph.value_mut(value).result_role = Some(Role::State);
        }
        self.moved.insert(state, next);
        Ok(())
    }

    /// The losses of the heads on the copies of their values.
    fn losses(&mut self, map: &Map<ValueId, Option<ValueId>>) -> Result<Vec<Losses>, TrainingError> {
        let mut losses = Vec::with_capacity(self.model.heads.len());
        for head in &self.model.heads {
            let mut copy = |old: ValueId| map[old].map_or_else(|| self.leaf(old), Ok);
            let (prediction, label) = (copy(head.prediction)?, head.label.map(&mut copy).transpose()?);
            let head = LossTerm { prediction, label, ..head.clone() };
            losses.push(loss::attach(&mut self.graph, &head).map_err(TrainingError::Loss)?);
        }
        Ok(losses)
    }

    fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId], scope: &str) -> Result<ValueId, TrainingError> {
        self.graph.add1(op.into(), inputs, Scope::new(scope)).map_err(TrainingError::Node)
    }

    /// The sum of values times a factor.
    fn sum(&mut self, values: &[ValueId], factor: f32, scope: &str) -> Result<ValueId, TrainingError> {
        let mut sum = values[0];
        for &value in &values[1..] {
            sum = self.add(Binary(Function::Add), &[sum, value], scope)?;
        }
        match factor {
            1.0 => Ok(sum),
            factor => self.add(Unary(Of::Affine { scale: factor, shift: 0.0 }), &[sum], scope),
        }
    }
}

/// The graph of the evaluation.
fn evaluation(model: &Trainable) -> Result<Graph, TrainingError> {
    let mut assembly = Assembly::new(model);
    let mut inputs = Vec::new();
    for &old in model.graph.inputs() {
        if Some(old) != model.key {
            let value = model.graph.value(old);
            inputs.push((old, assembly.graph.add_input(&value.name, value.ty.dtype, value.ty.shape.clone())));
        }
    }
    let map = assembly.copy(Form::Evaluation, &inputs, 0)?;
    let losses = assembly.losses(&map)?;
    let loss = match &losses[..] {
        [one] => one.rows,
        several => {
            let means: Vec<ValueId> = several.iter().map(|losses| losses.mean).collect();
            assembly.sum(&means, 1.0, LOSS)?
        }
    };
    let mut outputs = Vec::new();
    // An output with the name of the loss is the loss.
    for result in model.graph.results().filter(|result| result.name != LOSS) {
        let value = match map[result.value] {
            Some(value) => value,
            None => assembly.leaf(result.value)?,
        };
        outputs.push((result.name.clone(), value));
    }
    outputs.push((LOSS.to_string(), loss));
    assembly.graph.set_outputs(outputs);
    Ok(assembly.graph)
}

/// The graph of a step.
fn step(model: &Trainable, recipe: &Recipe) -> Result<Graph, TrainingError> {
    let parts = recipe.accumulate.max(1);
    let mut assembly = Assembly::new(model);
    let mut whole = Vec::new();
    for &old in model.graph.inputs() {
        let value = model.graph.value(old);
        let mut shape = value.ty.shape.clone();
        if Some(old) != model.key
            && let Some(batch) = shape.first_mut()
        {
            *batch *= parts;
        }
        whole.push((old, assembly.graph.add_input(&value.name, value.ty.dtype, shape)));
    }
    let learning_rate = assembly.graph.add_input(RESERVED[0], DType::F32, Shape::scalar());
    let rule = &recipe.optimizer.rule;
    let number = rule.reads_step().then(|| assembly.graph.add_input(RESERVED[1], DType::I64, Shape::scalar()));

    let output = model.heads[0].output;
    let (mut means, mut predictions) = (Vec::new(), Vec::new());
    for part in 0..parts {
        let inputs = part_of(&mut assembly, model, &whole, part, parts)?;
        let map = assembly.copy(Form::Training, &inputs, part as u32)?;
        means.extend(assembly.losses(&map)?.iter().map(|losses| losses.mean));
        predictions.extend(output.and_then(|output| map[output]));
    }
    let loss = assembly.sum(&means, 1.0 / parts as f32, LOSS)?;
    let prediction = match &predictions[..] {
        [] => None,
        [one] => Some(*one),
        several => Some(assembly.add(Concat { axis: 0 }, several, "prediction")?),
    };
    let trained = trained(&assembly, recipe, loss)?;
    if trained.is_empty() {
        return Err(TrainingError::NothingTrained);
    }
    let gradients = differentiate(&mut assembly.graph, loss, &trained)?;
    let mut pairs: Vec<(ValueId, ValueId)> = trained.into_iter().zip(gradients).collect();
    if let Some(limit) = recipe.clip_norm {
        clip(&mut assembly, &mut pairs, limit)?;
    }
    update(&mut assembly, &recipe.optimizer, &pairs, learning_rate, number)?;
    let moved = std::mem::take(&mut assembly.moved);
    moved.into_iter().for_each(|(state, next)| assembly.graph.update_state(state, next));

    let name = model.graph.results().find(|result| Some(result.value) == output).map(|result| result.name.clone());
    let mut outputs = vec![(LOSS.to_string(), loss)];
    outputs.extend(name.zip(prediction));
    assembly.graph.set_outputs(outputs);
    Ok(assembly.graph)
}

/// The inputs of one part: slices of the whole batch.
fn part_of(
    assembly: &mut Assembly,
    model: &Trainable,
    whole: &[(ValueId, ValueId)],
    part: usize,
    parts: usize,
) -> Result<Vec<(ValueId, ValueId)>, TrainingError> {
    if parts == 1 {
        return Ok(whole.to_vec());
    }
    let mut inputs = Vec::with_capacity(whole.len());
    for &(old, new) in whole {
        let shape = model.graph.ty(old).shape.clone();
        if Some(old) == model.key || shape.rank() == 0 {
            inputs.push((old, new));
            continue;
        }
        let mut start: SmallVec<[usize; 4]> = SmallVec::from_elem(0, shape.rank());
        start[0] = part * shape[0];
        let slice = Slice { start, step: SmallVec::from_elem(1, shape.rank()), count: shape };
        inputs.push((old, assembly.add(slice, &[new], &format!("batch{part}"))?));
    }
    Ok(inputs)
}

/// The weights that are trained: those that reach the loss and are not frozen.
fn trained(assembly: &Assembly, recipe: &Recipe, loss: ValueId) -> Result<Vec<ValueId>, TrainingError> {
    let name = |weight: &ValueId| assembly.graph.value(*weight).name.as_str();
    for pattern in &recipe.freeze {
        if !assembly.weights.iter().any(|weight| matches(pattern, name(weight))) {
            let known: Vec<String> =
                assembly.weights.iter().take(8).map(|weight| format!("`{}`", name(weight))).collect();
            let more = if 8 < assembly.weights.len() { ", .." } else { "" };
            return Err(TrainingError::NothingFrozen { pattern: pattern.clone(), known: known.join(", ") + more });
        }
    }
    let is_frozen = |weight: &ValueId| recipe.freeze.iter().any(|pattern| matches(pattern, name(weight)));
    let mut reaches: Map<ValueId, bool> = Map::filled(assembly.graph.values().len(), false);
    reaches[loss] = true;
    let nodes: Vec<&Node> = assembly.graph.nodes().values().collect();
    for node in nodes.into_iter().rev() {
        if node.outputs.iter().any(|&output| reaches[output]) {
            node.inputs.iter().for_each(|&input| reaches[input] = true);
        }
    }
    let stands = |weight: &ValueId| assembly.multipliers(name(weight)).learning_rate == 0.0;
    let is_trained = |weight: &ValueId| reaches[*weight] && !is_frozen(weight) && !stands(weight);
    Ok(assembly.weights.iter().copied().filter(is_trained).collect())
}

/// Scales all gradients so that their common norm is at most `limit`.
fn clip(assembly: &mut Assembly, pairs: &mut [(ValueId, ValueId)], limit: f32) -> Result<(), TrainingError> {
    const SCOPE: &str = "clip_norm";
    let mut squares = Vec::with_capacity(pairs.len());
    for &(_, gradient) in pairs.iter() {
        squares.push(square_sum(assembly, gradient, SCOPE)?);
    }
    let norm = assembly.sum(&squares, 1.0, SCOPE)?;
    let norm = assembly.add(Unary(Of::Sqrt), &[norm], SCOPE)?;
    // As in PyTorch: the smaller of 1 and limit / (norm + 1e-6).
    let norm = assembly.add(Unary(Of::Affine { scale: 1.0, shift: 1e-6 }), &[norm], SCOPE)?;
    let factor = assembly.add(Unary(Of::Reciprocal), &[norm], SCOPE)?;
    let factor = assembly.add(Unary(Of::Affine { scale: limit, shift: 0.0 }), &[factor], SCOPE)?;
    let factor = assembly.add(Unary(Of::Clip { min: 0.0, max: 1.0 }), &[factor], SCOPE)?;
    for (_, gradient) in pairs {
        *gradient = assembly.add(Binary(Function::Mul), &[*gradient, factor], SCOPE)?;
        assembly.graph.value_mut(*gradient).result_role = Some(Role::WeightGradient);
    }
    Ok(())
}

/// The sum of all squares, `f32[]`.
fn square_sum(assembly: &mut Assembly, x: ValueId, scope: &str) -> Result<ValueId, TrainingError> {
    let axes: SmallVec<[usize; 4]> = (0..assembly.graph.ty(x).shape.rank()).collect();
    match axes.is_empty() {
        true => assembly.add(Binary(Function::Mul), &[x, x], scope),
        false => assembly.add(Reduce { kind: ReduceKind::SumSquare, axes, keep: false }, &[x], scope),
    }
}

/// Adds the update of each weight.
fn update(
    assembly: &mut Assembly,
    optimizer: &Optimizer,
    pairs: &[(ValueId, ValueId)],
    learning_rate: ValueId,
    number: Option<ValueId>,
) -> Result<(), TrainingError> {
    let readers = assembly.graph.readers();
    // By factor the learning rate times it.
    let mut rates: Vec<(f32, ValueId)> = vec![(1.0, learning_rate)];
    for &(weight, gradient) in pairs {
        let value = assembly.graph.value(weight);
        let (name, shape) = (value.name.clone(), value.ty.shape.clone());
        let multipliers = assembly.multipliers(&name);
        let rule = optimizer.rule.with_weight_decay(optimizer.rule.weight_decay() * multipliers.weight_decay);
        let learning_rate = match rates.iter().find(|(factor, _)| *factor == multipliers.learning_rate) {
            Some(&(_, rate)) => rate,
            None => {
                let scaled = Of::Affine { scale: multipliers.learning_rate, shift: 0.0 };
                let rate = assembly.add(Unary(scaled), &[learning_rate], "learning_rate")?;
                rates.push((multipliers.learning_rate, rate));
                rate
            }
        };
        let reader: Option<&NodeId> = readers[weight].first();
        let scope = reader.map_or_else(|| Scope::new(&name), |&node| assembly.graph.node(node).scope.clone());
        let scope = scope.child("update");
        let mut operands = vec![weight, gradient];
        for state in rule.states() {
            let zeros = Tensor::full(shape.clone(), 0.0f32);
            operands.push(assembly.graph.add_state(&format!("{name}/{state}"), zeros, Role::OptimizerState));
        }
        let states = operands[2..].to_vec();
        operands.push(learning_rate);
        operands.extend(number);
        let outputs = assembly
            .graph
            .add(Update { rule, factors: false }.into(), &operands, scope.clone())
            .map_err(TrainingError::Node)?;
        for (&state, &next) in states.iter().zip(&outputs[1..]) {
            assembly.graph.value_mut(next).result_role = Some(Role::OptimizerState);
            assembly.graph.update_state(state, next);
        }
        let next = match rule.yields_direction() {
            true => {
                assembly.graph.value_mut(outputs[0]).result_role = Some(Role::WeightGradient);
                scaled_by_norms(assembly, weight, outputs[0], learning_rate, scope.as_str())?
            }
            false => outputs[0],
        };
        assembly.graph.value_mut(next).result_role = Some(Role::Weight);
        assembly.graph.update_state(weight, next);
    }
    Ok(())
}

/// LAMB's second stage: `w - rate |w| / |r| r`, with 1 for the ratio where a norm is 0.
fn scaled_by_norms(
    assembly: &mut Assembly,
    weight: ValueId,
    direction: ValueId,
    learning_rate: ValueId,
    scope: &str,
) -> Result<ValueId, TrainingError> {
    let norm = |assembly: &mut Assembly, x: ValueId| {
        let squares = square_sum(assembly, x, scope)?;
        assembly.add(Unary(Of::Sqrt), &[squares], scope)
    };
    let (of_weight, of_direction) = (norm(assembly, weight)?, norm(assembly, direction)?);
    let ratio = assembly.add(Binary(Function::Div), &[of_weight, of_direction], scope)?;
    let product = assembly.add(Binary(Function::Mul), &[of_weight, of_direction], scope)?;
    let zero = assembly.graph.add_constant("zero", Tensor::scalar(0.0f32));
    let one = assembly.graph.add_constant("one", Tensor::scalar(1.0f32));
    let has_norms = assembly.add(Compare(Relation::Greater), &[product, zero], scope)?;
    let ratio = assembly.add(Select {}, &[has_norms, ratio, one], scope)?;
    let rate = assembly.add(Binary(Function::Mul), &[ratio, learning_rate], scope)?;
    let change = assembly.add(Binary(Function::Mul), &[direction, rate], scope)?;
    assembly.graph.value_mut(change).result_role = Some(Role::WeightGradient);
    assembly.add(Binary(Function::Sub), &[weight, change], scope)
}
