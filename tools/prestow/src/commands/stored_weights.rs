//! `prestow compile --weights bf16|int8`: the flags that it excludes, and how far the stored weights are from the model's.

use std::collections::BTreeMap;
use std::fmt::Write;

use compiler::gpu::Precision;
use ir::Graph;
use passes::{WeightError, weight_errors};
use serde_json::{Value, json};
use types::WeightFormat;

/// Refuses options that have no kernels for weights in fewer bits.
pub(super) fn check(
    format: WeightFormat,
    is_on_gpu: bool,
    is_trained: bool,
    precision: Precision,
) -> Result<(), String> {
    let name = format.name();
    if is_on_gpu {
        return Err(format!("--weights {name} needs a processor; leave out --target, or give --dtype bf16 for a GPU"));
    }
    if is_trained {
        return Err(format!("--weights {name} and --train exclude each other: a step changes its weights"));
    }
    if precision != Precision::F32 {
        return Err(format!("--weights {name} needs --dtype f32; leave out one of them"));
    }
    Ok(())
}

/// Compares the graphs before and after weights are rounded.
#[derive(Default)]
pub(super) struct StoredWeights {
    before: Option<Graph>,
    errors: Vec<WeightError>,
}

impl StoredWeights {
    /// Sees the graph after a pass.
    pub(super) fn watch(&mut self, pass: &'static str, graph: &Graph) {
        match pass {
            "tie_weights" => self.before = Some(graph.clone()),
            "store_weights" => {
                if let Some(before) = self.before.take() {
                    self.errors = weight_errors(&before, graph);
                }
            }
            _ => {}
        }
    }

    /// Refuses weights that have no stored form.
    pub(super) fn check(&self, format: WeightFormat) -> Result<(), String> {
        match self.errors.iter().find(|error| !error.is_finite) {
            Some(error) if format == WeightFormat::Int8 => Err(format!(
                "int8 weights must be finite, got infinite or NaN weights of node `{}`; leave out --weights int8",
                error.node
            )),
            _ => Ok(()),
        }
    }

    /// By operator: nodes, the largest error and the largest mean error.
    fn by_op(&self) -> BTreeMap<&'static str, (usize, f64, f64)> {
        let mut by_op = BTreeMap::new();
        for error in &self.errors {
            let (nodes, largest, mean) = by_op.entry(error.op).or_insert((0, 0.0f64, 0.0f64));
            (*nodes, *largest, *mean) = (*nodes + 1, largest.max(error.largest), mean.max(error.mean));
        }
        by_op
    }

    pub(super) fn as_text(&self, format: WeightFormat) -> String {
        let mut text = format!("weights as {}, errors of a layer at most:", format.name());
        for (ix, (op, (nodes, largest, mean))) in self.by_op().into_iter().enumerate() {
            let comma = if ix == 0 { "" } else { ";" };
            let _ = write!(
                text,
                "{comma} {nodes} {op} {:.3} % of the largest, {:.3} % in the mean",
                100.0 * largest,
                100.0 * mean
            );
        }
        text + "\n"
    }

    pub(super) fn as_json(&self, format: WeightFormat) -> Value {
        let layer = |error: &WeightError| json!({ "node": error.node, "op": error.op, "largest": error.largest, "mean": error.mean });
        let kind = |(op, (nodes, largest, mean)): (&str, (usize, f64, f64))| json!({ "op": op, "nodes": nodes, "largest": largest, "mean": mean });
        json!({
            "format": format.name(),
            "kinds": self.by_op().into_iter().map(kind).collect::<Vec<_>>(),
            "layers": self.errors.iter().map(layer).collect::<Vec<_>>(),
        })
    }
}
