//! [`Log`]: one JSON object per step, epoch, checkpoint and damaged batch, as lines of a file.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use types::Bytes;

use crate::run::{Event, Scores};
use crate::{Metric, TrainError};

/// The largest log that is continued.
const SIZE_MAX: Bytes = Bytes(4 << 30);

/// A file of JSON lines.
pub struct Log {
    path: PathBuf,
    file: std::fs::File,
}

impl Log {
    /// Opens a log. Lines of an earlier run up to `after` steps stay if the run continues; others are removed.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path, after: u64) -> Result<Log, TrainError> {
        let mut kept = Vec::new();
        if 0 < after && path.is_file() {
            let text = files::read_regular(path, SIZE_MAX)?;
            for line in text.split(|&byte| byte == b'\n') {
                let step = serde_json::from_slice::<Value>(line).ok().and_then(|line| line["step"].as_u64());
                if step.is_some_and(|step| step <= after) {
                    kept.extend_from_slice(line);
                    kept.push(b'\n');
                }
            }
        }
        files::write(path, &kept)?;
        let file = std::fs::OpenOptions::new().append(true).open(path);
        Ok(Log { path: path.to_path_buf(), file: file.map_err(|error| failed(path, error))? })
    }

    /// Appends a line for an event, `seconds` after the start.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&mut self, event: &Event<'_>, metric: Option<Metric>, seconds: f64) -> Result<(), TrainError> {
        use std::io::Write;
        let mut line = line(event, metric);
        line.insert("seconds".into(), json!((seconds * 1e3).round() / 1e3));
        let text = Value::Object(line).to_string() + "\n";
        self.file.write_all(text.as_bytes()).map_err(|error| failed(&self.path, error))
    }
}

fn failed(path: &Path, error: std::io::Error) -> TrainError {
    TrainError::Setting(format!("cannot write `{}`: {error}", path.display()))
}

/// The fields of a line.
fn line(event: &Event<'_>, metric: Option<Metric>) -> Map<String, Value> {
    let fields = match event {
        Event::Step { position, loss, learning_rate, samples } => json!({
            "event": "step",
            "step": position.step,
            "epoch": position.epoch + 1,
            "loss": loss,
            "lr": learning_rate,
            "samples": samples,
        }),
        Event::Epoch { position, epoch, training, validation } => json!({
            "event": "epoch",
            "step": position.step,
            "epoch": epoch,
            "training": scores_json(training, metric),
            "validation": validation.as_ref().map(|scores| scores_json(scores, metric)),
        }),
        Event::Damaged { step, epoch, errors } => json!({
            "event": "damaged",
            "step": step,
            "epoch": epoch,
            "errors": errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
        Event::Checkpoint { path, step } => json!({ "event": "checkpoint", "step": step, "path": path }),
    };
    match fields {
        Value::Object(fields) => fields,
        _ => unreachable!("every event is an object"),
    }
}

/// Scores as a JSON object; the metric has its own name.
pub(crate) fn scores_json(scores: &Scores, metric: Option<Metric>) -> Value {
    let mut fields = json!({ "loss": scores.loss, "samples": scores.samples });
    if 0 < scores.damaged {
        fields["damaged"] = json!(scores.damaged);
    }
    if let (Some(metric), Some(value)) = (metric, scores.metric) {
        fields[metric.to_string()] = json!(value);
    }
    fields
}
