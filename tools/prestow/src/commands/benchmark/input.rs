//! [`Inputs`]: batches of a data set for the runs of a benchmark.

use std::path::PathBuf;
use std::sync::Arc;

use data::{
    BatchInput, BatchOptions, Batcher, DataError, DataSpec, Dataset, ImageTarget, LastBatch, OpenOptions, Position,
    Prefetcher, Shuffle,
};
use plan::Plan;

use super::Args;
use super::session::SessionSubject;
use crate::say;

/// A prefetcher for the inputs of a plan.
pub(super) struct Inputs {
    prefetcher: Prefetcher,
    /// The plan's input of each input of a batch.
    ports: Vec<usize>,
    damaged: usize,
    first: Option<DataError>,
}

impl Inputs {
    /// Opens a data set. For inference its first field is the only input; for training its fields are the samples' inputs and
    /// labels. The memory of the prefetcher is stated before it starts.
    pub(super) fn open(text: &str, plan: &Plan, args: &Args) -> Result<Inputs, String> {
        let failed = |error: DataError| error.to_string();
        let spec: DataSpec = text.parse().map_err(failed)?;
        let ports = match train::is_step(plan) {
            true => train::sample_ports(plan).map_err(|error| error.to_string())?,
            false => vec![0],
        };
        let port = match (&plan.inputs[..], &ports[..]) {
            ([port], _) => port,
            (inputs, &[first, ..]) if train::is_step(plan) => &inputs[first],
            (inputs, _) => return Err(format!("data sets need a model with one input, this one has {}", inputs.len())),
        };
        let mut shape = port.shape.clone();
        if shape.rank() == 0 || shape[0] as u64 != plan.batch {
            return Err(format!(
                "the first axis of input `{}` must be the batch, its shape is {}",
                port.name, port.shape
            ));
        }
        shape.remove(0);
        if spec.is_synthetic() {
            return Err("leave out the data set for synthetic data".into());
        }
        let store = std::env::var_os("PRESTOW_STORE").map(PathBuf::from);
        let options = OpenOptions { image: ImageTarget::of_sample(&shape), store, ..OpenOptions::default() };
        let dataset: Arc<dyn Dataset> = Arc::from(spec.open(&options).map_err(failed)?);
        let inputs = match train::is_step(plan) {
            true => train::inputs_for(plan, &*dataset, &spec.normalize()).map_err(|error| error.to_string())?,
            false => vec![BatchInput { normalize: spec.normalize(), ..BatchInput::new(0, port.dtype, shape) }],
        };
        let options = BatchOptions {
            batch: plan.batch as usize,
            shuffle: Shuffle::Seed(args.seed),
            last: LastBatch::Drop,
            damaged: spec.damaged(),
            augment: spec.varies().then_some(args.seed),
            ..BatchOptions::default()
        };
        let batcher = Arc::new(Batcher::new(dataset, inputs, options).map_err(failed)?);
        let (threads, ahead) = (args.preprocess_threads, args.prefetch_buffer);
        let memory = Prefetcher::memory(&batcher, threads, ahead);
        say::line(&format!("reading {text} with {threads} threads and up to {memory}"));
        let prefetcher = Prefetcher::new(&batcher, Position::default(), threads, ahead).map_err(failed)?;
        Ok(Inputs { prefetcher, ports, damaged: 0, first: None })
    }

    /// Waits for the next batch and writes it to the session.
    pub(super) fn next(&mut self, subject: &mut SessionSubject) -> Result<(), String> {
        let batch = self.prefetcher.next_batch().map_err(|error| error.to_string())?;
        self.damaged += batch.fill.damaged.len();
        self.first = self.first.take().or_else(|| batch.fill.damaged.first().cloned());
        self.ports.iter().zip(&batch.inputs).try_for_each(|(&port, bytes)| subject.set_input(port, bytes))
    }

    /// Prints how often records that cannot be read were replaced.
    pub(super) fn report(&self) {
        if let Some(first) = &self.first {
            let times = if self.damaged == 1 { "once" } else { &format!("{} times", self.damaged) };
            say::note(&format!("a record that cannot be read was replaced {times}; the first: {first}"));
        }
    }
}
