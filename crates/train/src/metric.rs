//! [`Metric`]: how well predictions fit labels, summed over batches.

use std::fmt;
use std::str::FromStr;

use types::{Shape, Tensor};

/// A measure besides the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The share of labels that have the highest score.
    Accuracy,
    /// The share of labels among the five highest scores.
    Top5,
    /// The exponential of the mean loss, which must be a cross entropy.
    Perplexity,
    /// The mean square of prediction minus label.
    Mse,
}

/// Names of the metrics.
const NAMES: [(&str, Metric); 4] =
    [("accuracy", Metric::Accuracy), ("top5", Metric::Top5), ("perplexity", Metric::Perplexity), ("mse", Metric::Mse)];

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = NAMES.iter().find(|(_, metric)| metric == self).expect("every metric has a name");
        f.write_str(name)
    }
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Metric, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text).map(|(_, metric)| *metric);
        found.ok_or_else(|| format!("must be {}, got `{text}`", NAMES.map(|(name, _)| name).join(", ")))
    }
}

/// A sum over samples, from which a mean follows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// The sum.
    pub sum: f64,
    /// The number of summands.
    pub count: f64,
}

impl Tally {
    /// Adds `count` summands.
    pub fn add(&mut self, sum: f64, count: f64) {
        self.sum += sum;
        self.count += count;
    }

    /// The mean; `None` without summands.
    pub fn mean(&self) -> Option<f64> {
        (0.0 < self.count).then(|| self.sum / self.count)
    }
}

impl Metric {
    /// Whether a larger value is better.
    pub fn grows(self) -> bool {
        matches!(self, Metric::Accuracy | Metric::Top5)
    }

    /// The metric of predictions and labels that can be compared with it: accuracy for scores of several classes, the mean
    /// square for a value per label. One column is a value and not the score of a class.
    pub fn default_for(prediction: &Shape, label: &Shape, label_is_integer: bool) -> Option<Metric> {
        match class_axis(prediction, label) {
            Some(axis) if 1 < prediction[axis] => Some(Metric::Accuracy),
            _ if has_value_per_label(prediction, label) && !label_is_integer => Some(Metric::Mse),
            _ => None,
        }
    }

    /// Whether the metric can be computed for these shapes.
    ///
    /// # Errors
    /// What is required.
    pub fn check(self, prediction: &Shape, label: &Shape) -> Result<(), String> {
        match self {
            Metric::Accuracy | Metric::Top5 if class_axis(prediction, label).is_none() => Err(format!(
                "metric {self} needs scores [batch, classes, ..] and one label per score row, got scores {prediction} and \
                 labels {label}"
            )),
            Metric::Mse if !has_value_per_label(prediction, label) => {
                Err(format!("metric mse needs a prediction for each label, got {prediction} and {label}"))
            }
            _ => Ok(()),
        }
    }

    /// The value of a mean.
    pub fn value(self, tally: Tally) -> Option<f64> {
        let mean = tally.mean()?;
        Some(if self == Metric::Perplexity { mean.exp() } else { mean })
    }

    /// Adds the first `samples` samples of a batch. `loss` has the losses that [`Metric::Perplexity`] averages. Labels equal
    /// to `ignored` count for nothing.
    pub fn add(
        self,
        tally: &mut Tally,
        prediction: &Tensor,
        label: &Tensor,
        loss: Tally,
        samples: usize,
        ignored: Option<i64>,
    ) {
        match self {
            Metric::Perplexity => tally.add(loss.sum, loss.count),
            Metric::Mse => {
                let batch = prediction.shape().first().copied().unwrap_or(1).max(1);
                let used = prediction.elements() / batch * samples;
                let (a, b) = (prediction.to_f64(), label.to_f64());
                let squares = a.iter().zip(&b).take(used).map(|(a, b)| (a - b) * (a - b));
                tally.add(squares.sum(), used as f64);
            }
            Metric::Accuracy | Metric::Top5 => {
                let rank = if self == Metric::Top5 { 5 } else { 1 };
                hits(tally, prediction, label, rank, samples, ignored);
            }
        }
    }
}

/// Whether the shapes are the same but for extents of 1, so that elements at the same position belong together.
fn has_value_per_label(prediction: &Shape, label: &Shape) -> bool {
    let long = |shape: &Shape| shape.iter().copied().filter(|&extent| extent != 1).collect::<Vec<_>>();
    long(prediction) == long(label)
}

/// The axis of the classes: the last or the second, if the other axes are those of the labels.
pub(crate) fn class_axis(prediction: &Shape, label: &Shape) -> Option<usize> {
    let label: Vec<usize> = match &label[..] {
        // A column of labels.
        [rows @ .., 1] if label.rank() == prediction.rank() => rows.to_vec(),
        all => all.to_vec(),
    };
    let without = |axis: usize| {
        let mut rest = prediction.to_vec();
        rest.remove(axis);
        rest == label
    };
    let rank = prediction.rank();
    [rank.wrapping_sub(1), 1].into_iter().find(|&axis| 1 <= axis && axis < rank && without(axis))
}

/// Counts labels that fewer than `rank` classes outscore; of equal scores the class with the lower number is first.
fn hits(tally: &mut Tally, prediction: &Tensor, label: &Tensor, rank: usize, samples: usize, ignored: Option<i64>) {
    let shape = prediction.shape();
    let Some(axis) = class_axis(shape, label.shape()) else { return };
    let (classes, inner): (usize, usize) = (shape[axis], shape[axis + 1..].iter().product());
    let rows_per_sample: usize = shape[1..axis].iter().product();
    let scores = prediction.to_f64();
    let labels = label.to_i64();
    let outer = samples * rows_per_sample;
    for (at, &label) in labels.iter().enumerate().take(outer * inner) {
        if Some(label) == ignored {
            continue;
        }
        let base = at / inner * classes * inner + at % inner;
        let score = |class: usize| scores[base + class * inner];
        let is_hit = usize::try_from(label).is_ok_and(|label| {
            label < classes && !score(label).is_nan() && {
                let better =
                    |class: &usize| score(label) < score(*class) || score(label) == score(*class) && *class < label;
                (0..classes).filter(better).count() < rank
            }
        });
        tally.add(f64::from(u8::from(is_hit)), 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(shape: &[usize], items: Vec<f32>) -> Tensor {
        Tensor::new(Shape::from(shape), items).unwrap()
    }

    fn value(metric: Metric, prediction: &Tensor, label: &Tensor, samples: usize, ignored: Option<i64>) -> f64 {
        let mut tally = Tally::default();
        metric.check(prediction.shape(), label.shape()).unwrap();
        metric.add(&mut tally, prediction, label, Tally { sum: 3.0, count: 2.0 }, samples, ignored);
        metric.value(tally).unwrap()
    }

    #[test]
    fn accuracy_counts_the_highest_score() {
        let prediction = scores(&[3, 2], vec![0.9, 0.1, 0.2, 0.8, 0.5, 0.5]);
        let label = Tensor::vector(vec![0i64, 0, 0]);
        assert_eq!(value(Metric::Accuracy, &prediction, &label, 3, None), 2.0 / 3.0);
        assert_eq!(value(Metric::Accuracy, &prediction, &label, 2, None), 0.5, "the third sample only fills the batch");
        let label = Tensor::vector(vec![0i64, 1, 1]);
        assert_eq!(
            value(Metric::Accuracy, &prediction, &label, 3, None),
            2.0 / 3.0,
            "of equal scores the first counts"
        );
        assert_eq!(value(Metric::Accuracy, &prediction, &Tensor::vector(vec![1.0f32, 1.0, 0.0]), 3, Some(0)), 0.5);
    }

    #[test]
    fn accuracy_finds_the_axis_of_classes() {
        // Two rows of three scores, and three classes at two positions.
        let rows = scores(&[1, 2, 3], vec![0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
        let label = Tensor::new(Shape::from([1, 2]), vec![1i32, 0]).unwrap();
        assert_eq!(value(Metric::Accuracy, &rows, &label, 1, None), 1.0);
        let planes = scores(&[1, 3, 2], vec![0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(value(Metric::Accuracy, &planes, &label, 1, None), 1.0);
    }

    #[test]
    fn top5_counts_five_ranks() {
        let prediction = scores(&[2, 7], (0..14).map(|ix| (ix % 7) as f32).collect());
        assert_eq!(value(Metric::Top5, &prediction, &Tensor::vector(vec![2i64, 1]), 2, None), 0.5);
    }

    #[test]
    fn other_metrics_follow_their_formulas() {
        let prediction = scores(&[2, 2], vec![1.0, 2.0, 3.0, 4.0]);
        let label = scores(&[2, 2], vec![1.0, 0.0, 9.0, 9.0]);
        assert_eq!(value(Metric::Mse, &prediction, &label, 1, None), 2.0);
        assert_eq!(value(Metric::Perplexity, &prediction, &label, 2, None), 1.5f64.exp());
    }

    #[test]
    fn metric_that_does_not_fit_is_refused() {
        let error = Metric::Accuracy.check(&Shape::from([4, 10]), &Shape::from([4, 3])).unwrap_err();
        assert!(error.contains("got scores [4,10] and labels [4,3]"), "{error}");
        assert_eq!("f1".parse::<Metric>().unwrap_err(), "must be accuracy, top5, perplexity, mse, got `f1`");
        assert_eq!(Metric::default_for(&Shape::from([4, 3]), &Shape::from([4, 3]), false), Some(Metric::Mse));
    }

    #[test]
    fn one_column_is_a_value_and_several_are_scores() {
        let default = |prediction: &[usize], label: &[usize], is_integer| {
            Metric::default_for(&Shape::from(prediction), &Shape::from(label), is_integer)
        };
        for (prediction, label) in
            [(&[4, 1][..], &[4, 1][..]), (&[4, 1], &[4]), (&[4], &[4, 1]), (&[4, 1, 5, 5], &[4, 5, 5])]
        {
            assert_eq!(default(prediction, label, false), Some(Metric::Mse), "{prediction:?} {label:?}");
            assert_eq!(default(prediction, label, true), None, "{prediction:?} {label:?}");
        }
        assert_eq!(default(&[4, 2], &[4], false), Some(Metric::Accuracy), "labels of classes may be floats");
        assert_eq!(default(&[4, 2], &[4, 1], true), Some(Metric::Accuracy));
        let (prediction, label) = (scores(&[2, 1], vec![1.0, 2.0]), Tensor::vector(vec![1.0f32, 4.0]));
        assert_eq!(Metric::Mse.check(prediction.shape(), label.shape()), Ok(()));
        assert_eq!(value(Metric::Mse, &prediction, &label, 2, None), 2.0);
    }
}
