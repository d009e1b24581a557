//! [`Batcher`]: batches of an epoch in the memory of an executable's inputs.

use std::sync::{Arc, Mutex};

use types::Random;

use crate::convert::Conversion;
use crate::order::{Order, augmentation};
use crate::{BatchInput, DataError, Dataset, Shard, Shuffle};

/// How a batcher goes through a data set.
#[derive(Clone, Debug, Default)]
pub struct BatchOptions {
    /// Samples of a batch, >= 1.
    pub batch: usize,
    /// The order of the records.
    pub shuffle: Shuffle,
    /// The part of the data set.
    pub shard: Shard,
    /// The use of the records that do not fill a batch.
    pub last: LastBatch,
    /// The treatment of records that cannot be read.
    pub damaged: Damaged,
    /// The seed of random crops and other variations; without it every record is always the same.
    pub augment: Option<u64>,
}

/// The use of the records at the end of an epoch that do not fill a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LastBatch {
    /// They are left out: for training.
    #[default]
    Drop,
    /// A batch with a smaller [`BatchFill::count`]; its other samples are zero. For evaluation.
    Partial,
}

/// The treatment of records that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Damaged {
    /// The error ends the batch.
    #[default]
    Fail,
    /// With [`LastBatch::Drop`] the next readable record of the data set replaces it. With [`LastBatch::Partial`] it is
    /// left out, and [`BatchFill::count`] is smaller.
    Skip,
}

/// A batch of an epoch: the state of a batcher, from which it resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The batch in the epoch, from 0.
    pub batch: u64,
}

/// The content of a filled batch.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BatchFill {
    /// Samples with a record; they precede the others.
    pub count: usize,
    /// Records that could not be read, with the reasons.
    pub damaged: Vec<DataError>,
}

/// Batches of a data set as an executable's inputs.
pub struct Batcher {
    dataset: Arc<dyn Dataset>,
    inputs: Vec<BatchInput>,
    conversions: Vec<Conversion>,
    options: BatchOptions,
    batches: u64,
    /// The order of the epoch that was used last, since batches mostly follow each other.
    order: Mutex<(u64, Arc<Order>)>,
}

impl Batcher {
    /// A batcher of `dataset` for `inputs`.
    ///
    /// # Errors
    /// If a field does not fit its input, or an epoch has no batch.
    pub fn new(
        dataset: Arc<dyn Dataset>,
        inputs: Vec<BatchInput>,
        options: BatchOptions,
    ) -> Result<Batcher, DataError> {
        let refused = |reason: String| Err(DataError::Mismatch(reason));
        let Shard { part, parts } = options.shard;
        if options.batch == 0 {
            return refused("a batch must have >= 1 samples, got 0".into());
        }
        if parts <= part {
            return refused(format!("the part of a shard must be in 0..{parts}, got {part}"));
        }
        let fields = dataset.fields();
        let conversion = |input: &BatchInput| match fields.get(input.field) {
            Some(field) => Conversion::new(field, input),
            None => {
                let (name, count) = (dataset.name(), fields.len());
                Err(DataError::Mismatch(format!("`{name}` has {count} fields, an input needs field {}", input.field)))
            }
        };
        let conversions = inputs.iter().map(conversion).collect::<Result<_, _>>()?;
        let (records, global) = (dataset.records(), options.batch.saturating_mul(parts));
        let batches = match options.last {
            LastBatch::Drop => records / global,
            LastBatch::Partial => records.div_ceil(global),
        } as u64;
        if batches == 0 {
            return refused(format!(
                "`{}` has {records} records, fewer than a batch of {} on each of {parts} parts; use a smaller batch",
                dataset.name(),
                options.batch
            ));
        }
        let order = Mutex::new((0, Arc::new(Order::new(records, options.shuffle, 0)?)));
        Ok(Batcher { dataset, inputs, conversions, options, batches, order })
    }

    /// Batches of an epoch.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Samples of a batch.
    pub fn batch(&self) -> usize {
        self.options.batch
    }

    /// The data set.
    pub fn dataset(&self) -> &Arc<dyn Dataset> {
        &self.dataset
    }

    /// Bytes of one batch of each input.
    pub fn batch_bytes(&self) -> Vec<usize> {
        self.inputs.iter().map(|input| input.sample_bytes() * self.options.batch).collect()
    }

    /// The position after `at`. The epoch follows its predecessor.
    pub fn after(&self, at: Position) -> Position {
        match at.batch + 1 < self.batches {
            true => Position { batch: at.batch + 1, ..at },
            false => Position { epoch: at.epoch + 1, batch: 0 },
        }
    }

    /// The records of a batch in their order.
    ///
    /// # Errors
    /// A batch that the epoch does not have.
    pub fn records(&self, at: Position) -> Result<Vec<usize>, DataError> {
        if self.batches <= at.batch {
            let reason = format!("an epoch has {} batches, there is no batch {}", self.batches, at.batch);
            return Err(DataError::Mismatch(reason));
        }
        let order = self.order_of(at.epoch)?;
        let (batch, Shard { part, parts }) = (self.options.batch, self.options.shard);
        let start = (at.batch as usize * parts + part) * batch;
        let end = (start + batch).min(self.dataset.records());
        Ok((start..end.max(start)).map(|ix| order.at(ix)).collect())
    }

    fn order_of(&self, epoch: u64) -> Result<Arc<Order>, DataError> {
        let mut kept = self.order.lock().expect("no holder of this lock panics");
        if kept.0 != epoch {
            *kept = (epoch, Arc::new(Order::new(self.dataset.records(), self.options.shuffle, epoch)?));
        }
        Ok(kept.1.clone())
    }

    /// Fills one batch: a slice for each input, of [`Batcher::batch_bytes`] bytes.
    ///
    /// # Errors
    /// A batch that the epoch does not have; a record that cannot be read, unless [`Damaged::Skip`] is set; a label
    /// outside of the classes.
    ///
    /// # Panics
    /// If a slice has another length.
    pub fn fill(&self, at: Position, out: &mut [&mut [u8]]) -> Result<BatchFill, DataError> {
        let lengths: Vec<usize> = out.iter().map(|bytes| bytes.len()).collect();
        assert_eq!(lengths, self.batch_bytes(), "one slice for each input, of the size of a batch");
        let mut fill = BatchFill::default();
        let mut raw: Vec<Vec<u8>> = self.dataset.fields().iter().map(|field| vec![0; field.size_bytes()]).collect();
        for record in self.records(at)? {
            match self.read(record, at.epoch, &mut raw) {
                Ok(()) => {}
                Err(error) if self.options.damaged == Damaged::Fail => return Err(error),
                Err(error) => {
                    fill.damaged.push(error);
                    if self.options.last == LastBatch::Partial || !self.replace(record, at.epoch, &mut raw) {
                        continue;
                    }
                }
            }
            self.convert(record, &raw, fill.count, out)?;
            fill.count += 1;
        }
        if self.options.last == LastBatch::Drop && fill.count < self.options.batch {
            let reason = format!("no record of `{}` can be read; the first error: {}", self.dataset.name(), {
                fill.damaged.first().map_or_else(String::new, ToString::to_string)
            });
            return Err(DataError::Mismatch(reason));
        }
        for (bytes, input) in out.iter_mut().zip(&self.inputs) {
            bytes[fill.count * input.sample_bytes()..].fill(0);
        }
        Ok(fill)
    }

    /// Reads the first readable record after `record`. Returns false if no record can be read.
    fn replace(&self, record: usize, epoch: u64, raw: &mut [Vec<u8>]) -> bool {
        let records = self.dataset.records();
        (1..records).any(|step| self.read((record + step) % records, epoch, raw).is_ok())
    }

    fn read(&self, record: usize, epoch: u64, raw: &mut [Vec<u8>]) -> Result<(), DataError> {
        let augment: Option<Random> = self.options.augment.map(|seed| augmentation(seed, epoch, record));
        let mut slices: Vec<&mut [u8]> = raw.iter_mut().map(Vec::as_mut_slice).collect();
        self.dataset.read(record, augment, &mut slices)
    }

    fn convert(&self, record: usize, raw: &[Vec<u8>], sample: usize, out: &mut [&mut [u8]]) -> Result<(), DataError> {
        for ((input, conversion), bytes) in self.inputs.iter().zip(&self.conversions).zip(out) {
            let size = input.sample_bytes();
            conversion
                .apply(&raw[input.field], &mut bytes[sample * size..(sample + 1) * size])
                .map_err(|reason| DataError::record(&*self.dataset, record, reason))?;
        }
        Ok(())
    }
}
