//! Lines about a run for people.

use serde_json::{Value, json};

use crate::Metric;
use crate::checkpoint::Position;
use crate::log::scores_json;
use crate::run::{Outcome, Scores};

/// The length of a run, and the part that is done since it started or continued.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// All steps of the run.
    pub steps: u64,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Samples of a step.
    pub batch: u64,
    /// Steps since the start of this process.
    pub done: u64,
    /// Seconds since the start of this process.
    pub seconds: f64,
}

impl Pace {
    /// Samples per second.
    pub fn samples_per_second(&self) -> f64 {
        (self.done * self.batch) as f64 / self.seconds.max(1e-9)
    }

    /// Seconds until the end at this pace.
    fn left(&self, step: u64) -> f64 {
        self.steps.saturating_sub(step) as f64 * self.seconds / self.done.max(1) as f64
    }
}

/// The line that a terminal shows while steps run.
pub fn step_line(pace: &Pace, position: &Position, metric: Option<Metric>) -> String {
    let epochs = pace.steps.div_ceil(pace.steps_per_epoch.max(1));
    let mut text = format!(
        "epoch {}/{epochs}  step {}/{}  loss {:.4}",
        (position.epoch + 1).min(epochs),
        position.step,
        pace.steps,
        position.loss.mean().unwrap_or_default()
    );
    if let Some((metric, value)) = metric.and_then(|metric| Some((metric, metric.value(position.metric)?))) {
        text += &format!("  {metric} {value:.4}");
    }
    text + &format!("  {:.0} samples/s  {} left", pace.samples_per_second(), duration(pace.left(position.step)))
}

/// The line at the end of an epoch.
pub fn epoch_line(
    pace: &Pace,
    epoch: u64,
    training: &Scores,
    validation: Option<&Scores>,
    metric: Option<Metric>,
) -> String {
    let epochs = pace.steps.div_ceil(pace.steps_per_epoch.max(1));
    let mut text = format!("epoch {epoch}/{epochs}: {}", scores_text(training, metric));
    if let Some(validation) = validation {
        text += &format!("; validation {}", scores_text(validation, metric));
    }
    text + &format!("; {:.0} samples/s", pace.samples_per_second())
}

/// Loss and metric in words.
pub fn scores_text(scores: &Scores, metric: Option<Metric>) -> String {
    let mut text = format!("loss {:.4}", scores.loss);
    if let (Some(metric), Some(value)) = (metric, scores.metric) {
        text += &format!(", {metric} {value:.4}");
    }
    if 0 < scores.damaged {
        text += &format!(", damaged records {}", scores.damaged);
    }
    text
}

/// The result of a run as JSON.
pub fn outcome_json(outcome: &Outcome, pace: &Pace) -> Value {
    let scores = |scores: &Option<Scores>| scores.as_ref().map(|scores| scores_json(scores, outcome.metric));
    json!({
        "steps": outcome.position.step,
        "epochs": outcome.position.epoch,
        "training": scores(&outcome.training),
        "validation": scores(&outcome.validation),
        "seconds": pace.seconds,
        "samples_per_s": pace.samples_per_second(),
    })
}

/// The scores of an evaluation as JSON.
pub fn evaluation_json(scores: &Scores, metric: Option<Metric>) -> Value {
    scores_json(scores, metric)
}

/// `42 s`, `3 min 20 s`, `2 h 5 min`.
fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5999 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tally;

    #[test]
    fn lines_have_epoch_loss_metric_pace_and_time_left() {
        let pace = Pace { steps: 100, steps_per_epoch: 50, batch: 10, done: 20, seconds: 2.0 };
        let position = Position {
            step: 60,
            epoch: 1,
            batch: 10,
            loss: Tally { sum: 1.0, count: 4.0 },
            metric: Tally { sum: 3.0, count: 4.0 },
        };
        assert_eq!(
            step_line(&pace, &position, Some(Metric::Accuracy)),
            "epoch 2/2  step 60/100  loss 0.2500  accuracy 0.7500  100 samples/s  4 s left"
        );
        let scores = Scores { loss: 0.5, metric: Some(0.9), samples: 4, damaged: 0 };
        let validation = Scores { damaged: 2, ..scores };
        assert_eq!(
            epoch_line(&pace, 1, &scores, Some(&validation), Some(Metric::Top5)),
            "epoch 1/2: loss 0.5000, top5 0.9000; validation loss 0.5000, top5 0.9000, damaged records 2; 100 samples/s"
        );
        assert_eq!([duration(99.0), duration(200.0), duration(7500.0)], ["99 s", "3 min 20 s", "2 h 5 min"]);
    }
}
