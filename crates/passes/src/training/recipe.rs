//! [`Recipe`]: how a model is trained, and the texts of the command line for it.

use std::str::FromStr;

use serde_json::Value;
use types::update::{Adadelta, Adagrad, Adam, Lamb, Lion, RmsProp, Sgd, UpdateRule};

/// How a model is trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recipe {
    /// The loss; the model's own if none is given.
    pub loss: Option<Loss>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The largest norm of all gradients together; a larger one is scaled to it.
    pub clip_norm: Option<f32>,
    /// The batches whose gradients one step adds up; 0 is 1.
    pub accumulate: usize,
    /// Patterns of the names of weights that are not trained: `*` is any text.
    pub freeze: Vec<String>,
}

/// A loss that compares the first result of a model with labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Softmax and cross entropy of classes: `softmax_cross_entropy:axis=1,ignore=-100,smoothing=0.1`. A softmax at the end
    /// of the model is part of it.
    SoftmaxCrossEntropy(Classes, f32),
    /// Cross entropy of probabilities and classes: `cross_entropy_index`. A softmax at the end is fused with it.
    CrossEntropyIndex(Classes),
    /// Negative log likelihood of log probabilities and classes: `nll`.
    Nll(Classes),
    /// The mean square of differences: `mse`.
    Mse,
    /// The mean distance: `l1`.
    L1,
    /// Squares up to `delta`, then distances: `huber:delta=1`.
    Huber(f32),
    /// Binary cross entropy of logits and labels in `0..=1`: `bce`. A sigmoid at the end of the model is part of it.
    Bce,
    /// Connectionist temporal classification of logits and sequences of labels: `ctc:blank=0,time=1,labels=20`. A softmax at
    /// the end of the model is part of it.
    Ctc {
        /// The class that means no label.
        blank: usize,
        /// The axis of the steps, 0 or 1.
        time: usize,
        /// Labels of a sequence, with padding; as many as steps by default.
        labels: Option<usize>,
    },
    /// The first result is the loss, or losses whose mean is the loss: `output`. There are no labels but inputs of the model.
    Output,
}

/// Labels that are classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// The axis of the classes; by default the second of images, else the last.
    pub axis: Option<usize>,
    /// The label of rows that count for nothing.
    pub ignored: Option<i64>,
}

impl Loss {
    /// The name, without options.
    pub fn name(&self) -> &'static str {
        match self {
            Loss::SoftmaxCrossEntropy(..) => "softmax_cross_entropy",
            Loss::CrossEntropyIndex(_) => "cross_entropy_index",
            Loss::Nll(_) => "nll",
            Loss::Mse => "mse",
            Loss::L1 => "l1",
            Loss::Huber(_) => "huber",
            Loss::Bce => "bce",
            Loss::Ctc { .. } => "ctc",
            Loss::Output => "output",
        }
    }
}

/// Names of all losses.
const LOSSES: &str = "softmax_cross_entropy, cross_entropy_index, nll, mse, l1, huber, bce, ctc, output";

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Loss, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let options = options_of(options)?;
        let only = |known: &[&str]| match options.iter().find(|(key, _)| !known.contains(key)) {
            Some((key, _)) if known.is_empty() => Err(format!("loss {name} has no option, got `{key}`")),
            Some((key, _)) => Err(format!("options of loss {name} must be {}, got `{key}`", known.join(", "))),
            None => Ok(()),
        };
        let classes = |more: &[&str]| {
            only(&[&["axis", "ignore"], more].concat())?;
            let number = |key: &str| option(&options, key).map(|text| integer(key, text)).transpose();
            let axis = number("axis")?.map(|axis| match usize::try_from(axis) {
                Ok(axis) if 0 < axis => Ok(axis),
                _ => Err(format!("`axis` must be >= 1: axis 0 is the batch, got {axis}")),
            });
            Ok::<Classes, String>(Classes { axis: axis.transpose()?, ignored: number("ignore")? })
        };
        let float = |key: &str, default: f32, range: std::ops::RangeInclusive<f32>| match option(&options, key) {
            None => Ok(default),
            Some(text) => text.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| {
                format!("`{key}` must be a number from {} to {}, got `{text}`", range.start(), range.end())
            }),
        };
        match name {
            "softmax_cross_entropy" => {
                Ok(Loss::SoftmaxCrossEntropy(classes(&["smoothing"])?, float("smoothing", 0.0, 0.0..=1.0)?))
            }
            "cross_entropy_index" => classes(&[]).map(Loss::CrossEntropyIndex),
            "nll" => classes(&[]).map(Loss::Nll),
            "mse" => only(&[]).map(|()| Loss::Mse),
            "l1" => only(&[]).map(|()| Loss::L1),
            "huber" => only(&["delta"]).and_then(|()| float("delta", 1.0, 1e-6..=1e6)).map(Loss::Huber),
            "bce" => only(&[]).map(|()| Loss::Bce),
            "output" => only(&[]).map(|()| Loss::Output),
            "ctc" => {
                only(&["blank", "time", "labels"])?;
                let number = |key: &str| -> Result<Option<usize>, String> {
                    let Some(text) = option(&options, key) else { return Ok(None) };
                    let number = usize::try_from(integer(key, text)?);
                    number.map(Some).map_err(|_| format!("`{key}` must be >= 0, got `{text}`"))
                };
                let time = number("time")?.unwrap_or(1);
                if 1 < time {
                    return Err(format!("`time` must be 0 or 1, the axis of the steps, got `{time}`"));
                }
                Ok(Loss::Ctc { blank: number("blank")?.unwrap_or(0), time, labels: number("labels")? })
            }
            other => Err(format!("must be one of {LOSSES}, got `{other}`")),
        }
    }
}

/// An optimizer: the rule of one step, and the learning rate if the run chooses none.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule with its constants.
    pub rule: UpdateRule,
    /// The learning rate.
    pub learning_rate: f32,
    /// The text that it was read from.
    pub text: String,
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        "sgd".parse().expect("a row of the table")
    }
}

/// The optimizers: name, rule with its defaults, learning rate.
fn optimizers() -> [(&'static str, UpdateRule, f32); 8] {
    [
        ("adadelta", UpdateRule::Adadelta(Adadelta::default()), 1.0),
        ("adagrad", UpdateRule::Adagrad(Adagrad::default()), 0.01),
        ("adam", UpdateRule::Adam(Adam::default()), 1e-3),
        ("adamw", UpdateRule::Adam(Adam { decoupled: true, weight_decay: 0.01, ..Adam::default() }), 1e-3),
        ("lamb", UpdateRule::Lamb(Lamb::default()), 1e-3),
        ("lion", UpdateRule::Lion(Lion::default()), 1e-4),
        ("rmsprop", UpdateRule::RmsProp(RmsProp::default()), 0.01),
        ("sgd", UpdateRule::Sgd(Sgd::default()), 0.01),
    ]
}

/// `NAME[:KEY=VALUE|FLAG,..]`: the keys are the fields of the rule, and `lr`.
impl FromStr for Optimizer {
    type Err = String;

    fn from_str(text: &str) -> Result<Optimizer, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let table = optimizers();
        let Some((_, rule, mut learning_rate)) = table.iter().copied().find(|(own, ..)| *own == name) else {
            return Err(format!("must be one of {}, got `{name}`", table.map(|(name, ..)| name).join(", ")));
        };
        // The fields of a rule are its options: `{"sgd": {"momentum": 0.0, ..}}`.
        let mut json = serde_json::to_value(rule).expect("a rule is plain data");
        let fields =
            json.as_object_mut().and_then(|variants| variants.values_mut().next()).and_then(Value::as_object_mut);
        let fields = fields.expect("a rule is a struct in an enum");
        for (key, value) in options_of(options)? {
            if key == "lr" {
                learning_rate = number(key, value)?;
                continue;
            }
            let known: Vec<String> = fields.keys().cloned().collect();
            match fields.get_mut(key) {
                Some(field @ Value::Bool(_)) => {
                    *field = match value {
                        "" | "true" => Value::Bool(true),
                        "false" => Value::Bool(false),
                        _ => return Err(format!("`{key}` of {name} must be true or false, got `{value}`")),
                    };
                }
                Some(field) => *field = Value::from(number(key, value)?),
                None => return Err(format!("options of {name} must be lr, {}, got `{key}`", known.join(", "))),
            }
        }
        let rule: UpdateRule = serde_json::from_value(json).map_err(|error| format!("{name}: {error}"))?;
        rule.check()?;
        Ok(Optimizer { rule, learning_rate, text: text.to_string() })
    }
}

fn number(key: &str, text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && 0.0 <= *number);
    number.ok_or_else(|| format!("`{key}` must be a number >= 0, got `{text}`"))
}

fn integer(key: &str, text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("`{key}` must be an integer, got `{text}`"))
}

/// `KEY=VALUE` pairs with commas between them; a flag has an empty value. No key is given twice.
fn options_of(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let pairs: Vec<(&str, &str)> = text
        .split(',')
        .filter(|part| !part.is_empty())
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .collect();
    for (ix, (key, _)) in pairs.iter().enumerate() {
        if pairs[..ix].iter().any(|(other, _)| other == key) {
            return Err(format!("`{key}` is given twice"));
        }
    }
    Ok(pairs)
}

fn option<'a>(options: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    options.iter().find(|(own, _)| *own == key).map(|(_, text)| *text)
}

/// Whether a pattern with `*` for any text matches a whole name.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            (0..=tail.len()).filter(|&at| tail.is_char_boundary(at)).any(|at| matches(rest, &tail[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_an_optimizer_are_the_fields_of_its_rule() {
        let optimizer: Optimizer = "sgd:momentum=0.9,nesterov,weight_decay=1e-4,lr=0.1".parse().unwrap();
        let sgd = Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4, ..Sgd::default() };
        assert_eq!((optimizer.rule, optimizer.learning_rate), (UpdateRule::Sgd(sgd), 0.1));
        let optimizer: Optimizer = "adamw:beta1=0.8".parse().unwrap();
        assert!(matches!(optimizer.rule, UpdateRule::Adam(Adam { decoupled: true, beta1: 0.8, beta2: 0.999, .. })));
        for (name, rule, _) in optimizers() {
            assert_eq!(name.parse::<Optimizer>().unwrap().rule, rule);
        }
    }

    #[test]
    fn invalid_optimizer_is_refused_with_the_requirement() {
        let error = |text: &str| text.parse::<Optimizer>().unwrap_err();
        assert!(error("adagard").starts_with("must be one of adadelta, adagrad, adam,"));
        assert!(
            error("adam:momentum=1").starts_with("options of adam must be lr, beta1, beta2,"),
            "{}",
            error("adam:momentum=1")
        );
        assert_eq!(error("adam:beta1=x"), "`beta1` must be a number >= 0, got `x`");
        assert_eq!(error("adam:beta1=1,beta1=2"), "`beta1` is given twice");
        assert_eq!(error("adam:beta1=1"), "beta1 of adam must be in [0, 1), got 1");
        assert_eq!(error("adam:decoupled=3"), "`decoupled` of adam must be true or false, got `3`");
    }

    #[test]
    fn losses_are_read_with_their_options() {
        let classes = Classes { axis: Some(1), ignored: Some(-100) };
        assert_eq!(
            "softmax_cross_entropy:axis=1,ignore=-100,smoothing=0.1".parse(),
            Ok(Loss::SoftmaxCrossEntropy(classes, 0.1))
        );
        assert_eq!("huber:delta=2".parse(), Ok(Loss::Huber(2.0)));
        assert_eq!("ctc:time=0,labels=9".parse(), Ok(Loss::Ctc { blank: 0, time: 0, labels: Some(9) }));
        for name in LOSSES.split(", ") {
            assert_eq!(name.parse::<Loss>().unwrap().name(), name);
        }
        let error = |text: &str| text.parse::<Loss>().unwrap_err();
        assert_eq!(error("ctc:time=2"), "`time` must be 0 or 1, the axis of the steps, got `2`");
        assert_eq!(error("ctc:blank=-1"), "`blank` must be >= 0, got `-1`");
        assert_eq!(error("mse:delta=1"), "loss mse has no option, got `delta`");
        assert_eq!(error("nll:axis=0"), "`axis` must be >= 1: axis 0 is the batch, got 0");
        assert_eq!(error("huber:delta=0"), "`delta` must be a number from 0.000001 to 1000000, got `0`");
    }

    #[test]
    fn patterns_match_whole_names() {
        assert!(matches("layer*.weight", "layer1.0.conv1.weight"));
        assert!(matches("*", "") && matches("a*b*c", "abbc"));
        assert!(!matches("layer", "layer1") && !matches("*bias", "bias2"));
    }
}
