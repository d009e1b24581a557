//! [`compile_training`]: a model becomes two plans, the step that trains it and the evaluation.

use ir::{Graph, Target};
use passes::training::{Recipe, TrainingGraphs, build};
use plan::{Phase, Training};

use crate::source::TrainableModel;
use crate::{CompileError, Compiled, Goal, Model, Program, compile};

/// Compiles the step of a training, and the evaluation of its weights. The goal's budget is for the arena of the step.
///
/// # Errors
/// The model cannot be trained as asked; else as [`compile`].
pub fn compile_training(
    model: TrainableModel,
    recipe: &Recipe,
    target: &dyn Target,
    goal: Goal,
    mut watch: impl FnMut(&'static str, &Graph),
) -> Result<[Compiled; 2], CompileError> {
    let TrainableModel { trainable, preprocess, labels } = model;
    let TrainingGraphs { step, evaluation, labels: of_samples, transposed, prediction, ignored, loss } =
        build(trainable, recipe)?;
    let training = Training {
        loss,
        optimizer: recipe.optimizer.text.clone(),
        learning_rate: recipe.optimizer.learning_rate,
        labels: of_samples,
        transposed,
        prediction,
        ignored_label: ignored,
        accumulate: u32::try_from(recipe.accumulate.max(1)).unwrap_or(u32::MAX),
    };
    let model = |graph| Model { graph, preprocess: preprocess.clone(), labels: labels.clone() };
    let mut step = compile(model(step), target, goal, &mut watch)?;
    let mut evaluation = compile(model(evaluation), target, goal.optimize.into(), |_, _| {})?;
    // The evaluation has the layers of the step, whose count of parameters is the model's.
    evaluation.plan.parameters = step.plan.parameters;
    step.plan.phase = Phase::Training(training.clone());
    evaluation.plan.phase = Phase::Evaluation(training);
    for compiled in [&step, &evaluation] {
        plan::check(&compiled.plan).map_err(CompileError::Plan)?;
    }
    Ok([step, evaluation])
}

/// The program of a model that is trained.
pub fn training_program(compiled: [Compiled; 2]) -> Program {
    Program::join(compiled.into())
}
