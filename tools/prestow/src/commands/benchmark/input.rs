//! [`Inputs`]: batches of a data set for the runs of a benchmark.

use std::sync::Arc;

use data::{
    BatchInput, BatchOptions, Batcher, Damaged, DataSpec, ImageTarget, LastBatch, OpenOptions, Position, Prefetcher,
    Shuffle,
};
use plan::Plan;

use super::Args;
use super::session::SessionSubject;

/// A prefetcher for the first input of a plan.
pub(super) struct Inputs {
    prefetcher: Prefetcher,
    damaged: usize,
}

impl Inputs {
    /// Opens a data set. Its first field is the first input; the memory of the prefetcher is stated before it starts.
    pub(super) fn open(text: &str, plan: &Plan, args: &Args) -> Result<Inputs, String> {
        let failed = |error: data::DataError| error.to_string();
        let spec: DataSpec = text.parse().map_err(failed)?;
        let [port] = &plan.inputs[..] else {
            return Err(format!("data sets need a model with one input, this one has {}", plan.inputs.len()));
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
        let options = OpenOptions { image: ImageTarget::of_sample(&shape), ..OpenOptions::default() };
        let dataset = Arc::from(spec.open(&options).map_err(failed)?);
        let input = BatchInput { normalize: spec.normalize(), ..BatchInput::new(0, port.dtype, shape) };
        let options = BatchOptions {
            batch: plan.batch as usize,
            shuffle: Shuffle::Seed(args.seed),
            last: LastBatch::Drop,
            damaged: Damaged::Skip,
            augment: spec.varies().then_some(args.seed),
            ..BatchOptions::default()
        };
        let batcher = Arc::new(Batcher::new(dataset, vec![input], options).map_err(failed)?);
        let (threads, ahead) = (args.preprocess_threads, args.prefetch_buffer);
        let memory = Prefetcher::memory(&batcher, threads, ahead);
        eprintln!("reading {text} with {threads} threads and up to {memory}");
        Ok(Inputs { prefetcher: Prefetcher::new(&batcher, Position::default(), threads, ahead), damaged: 0 })
    }

    /// Waits for the next batch and writes it to the session.
    pub(super) fn next(&mut self, subject: &mut SessionSubject) -> Result<(), String> {
        let batch = self.prefetcher.next_batch().map_err(|error| error.to_string())?;
        self.damaged += batch.fill.damaged.len();
        subject.set_input(0, &batch.inputs[0])
    }

    /// Prints the number of records that could not be read.
    pub(super) fn report(&self) {
        if 0 < self.damaged {
            eprintln!("note: {} records could not be read and were replaced", self.damaged);
        }
    }
}
