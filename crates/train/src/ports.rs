//! [`Ports`]: the inputs and outputs of a step or an evaluation by their use.

use data::{Axes, BatchInput, DataField, Dataset, Normalize};
use plan::{Phase, Plan, Port, Training};
use types::{Shape, Tensor};

use crate::TrainError;
use crate::metric::{Metric, class_axis};

/// Positions of a plan's ports, and how to fill the samples' inputs.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub(crate) training: Training,
    /// The inputs of samples, in the order of a batch: those of the model, then labels.
    pub(crate) samples: Vec<usize>,
    /// The first label's position in `samples`.
    pub(crate) label: Option<usize>,
    pub(crate) learning_rate: Option<usize>,
    pub(crate) step: Option<usize>,
    pub(crate) key: Option<usize>,
    /// The output of the loss.
    pub(crate) loss: usize,
    pub(crate) prediction: Option<usize>,
}

impl Ports {
    /// The ports of a checked plan.
    pub(crate) fn of(plan: &Plan) -> Result<Ports, TrainError> {
        let Some(training) = plan.phase.training() else { return Err(TrainError::NotForTraining) };
        let input = |name: &str| plan.inputs.iter().position(|port| port.name == name);
        let output = |name: &str| plan.outputs.iter().position(|port| port.name == name);
        let is_label = |ix: &usize| training.labels.contains(&plan.inputs[*ix].name);
        let of_samples = (0..plan.inputs.len()).filter(|&ix| Training::is_of_samples(&plan.inputs[ix].name));
        let (labels, mut samples): (Vec<usize>, Vec<usize>) = of_samples.partition(is_label);
        let label = (!labels.is_empty()).then_some(samples.len());
        samples.extend(labels);
        Ok(Ports {
            samples,
            label,
            learning_rate: input(Training::LEARNING_RATE),
            step: input(Training::STEP),
            key: input(Training::KEY),
            loss: output(Training::LOSS).expect("a checked plan has the output"),
            prediction: training.prediction.as_deref().and_then(output),
            training: training.clone(),
        })
    }

    /// The metric, checked against the plan's ports; by default the one that fits them, if any.
    pub(crate) fn metric(&self, plan: &Plan, asked: Option<Metric>) -> Result<Option<Metric>, TrainError> {
        let shapes = self.prediction.zip(self.label).map(|(prediction, label)| {
            let label = &plan.inputs[self.samples[label]];
            (&plan.outputs[prediction].shape, &label.shape, !label.dtype.is_float())
        });
        match (asked, shapes) {
            (None, None) => Ok(None),
            (None, Some((prediction, label, is_integer))) => Ok(Metric::default_for(prediction, label, is_integer)),
            (Some(Metric::Perplexity), _) => Ok(asked),
            (Some(metric), None) => Err(TrainError::Setting(format!("metric {metric} needs a prediction and a label"))),
            (Some(metric), Some((prediction, label, _))) => {
                metric.check(prediction, label).map(|()| Some(metric)).map_err(TrainError::Setting)
            }
        }
    }
}

/// The conversion of a data set's fields to the inputs of a plan: a field of the input's name, else the fields in order, with
/// the labels last. `normalize` is for the first field.
///
/// # Errors
/// A plan that is not for training, or a data set with fewer fields than inputs.
pub fn inputs_for(plan: &Plan, dataset: &dyn Dataset, normalize: &Normalize) -> Result<Vec<BatchInput>, TrainError> {
    let ports = Ports::of(plan)?;
    let fields = dataset.fields();
    let needed = ports.samples.len();
    if fields.len() < needed {
        let names: Vec<String> = ports.samples.iter().map(|&ix| format!("`{}`", plan.inputs[ix].name)).collect();
        return Err(TrainError::Setting(format!(
            "`{}` has {} fields per record, but the step reads {needed}: {}",
            dataset.name(),
            fields.len(),
            names.join(", ")
        )));
    }
    let by_name = |name: &str| fields.iter().position(|field| field.name == name);
    let input = |(at, &ix): (usize, &usize)| {
        let port = &plan.inputs[ix];
        let field = by_name(&port.name).unwrap_or(at);
        let is_label = ports.label.is_some_and(|label| label <= at);
        let mut input = BatchInput::new(field, port.dtype, sample_shape(port));
        input.classes = is_label.then(|| classes(plan, &ports, port)).flatten();
        if field == 0 && !is_label {
            input.normalize = normalize.clone();
        }
        input
    };
    Ok(ports.samples.iter().enumerate().map(input).collect())
}

/// The shape of one sample of a port.
fn sample_shape(port: &Port) -> Shape {
    Shape::from(&port.shape[1.min(port.shape.rank())..])
}

/// The inputs of a plan that [`inputs_for`] fills, in its order.
///
/// # Errors
/// A plan that is not for training.
pub fn sample_ports(plan: &Plan) -> Result<Vec<usize>, TrainError> {
    Ports::of(plan).map(|ports| ports.samples)
}

/// The fields of synthetic records for a plan, each with a bound of its integers.
///
/// # Errors
/// A plan that is not for training.
pub fn synthetic_fields(plan: &Plan) -> Result<Vec<(DataField, u64)>, TrainError> {
    let ports = Ports::of(plan)?;
    let field = |(at, &ix): (usize, &usize)| {
        let port = &plan.inputs[ix];
        let is_label = ports.label.is_some_and(|label| label <= at);
        let (name, dtype, shape) = (port.name.clone(), port.dtype, sample_shape(port));
        // Two is below every number of tokens or classes.
        let bound = if is_label { classes(plan, &ports, port).unwrap_or(2) } else { 2 };
        (DataField { name, dtype, shape, axes: Axes::Plain }, bound)
    };
    Ok(ports.samples.iter().enumerate().map(field).collect())
}

/// The number of classes that an integer label must be below.
fn classes(plan: &Plan, ports: &Ports, label: &Port) -> Option<u64> {
    let prediction = &plan.outputs[ports.prediction?].shape;
    // A label that counts for nothing is not a class.
    let is_class = !label.dtype.is_float() && ports.training.ignored_label.is_none();
    class_axis(prediction, &label.shape).filter(|_| is_class).map(|axis| prediction[axis] as u64)
}

/// The tensor of a port's bytes.
pub(crate) fn tensor(port: &Port, bytes: &[u8]) -> Tensor {
    Tensor::from_le_bytes(port.dtype, port.shape.clone(), bytes).expect("a batch has the bytes of its port")
}

/// Whether a plan is a step of training.
pub fn is_step(plan: &Plan) -> bool {
    matches!(plan.phase, Phase::Training(_))
}
