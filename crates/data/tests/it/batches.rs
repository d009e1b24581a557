//! Batches: order, shards, resumption, incomplete batches, damaged records, threads.

use std::sync::Arc;

use prestow_data::{
    Axes, BatchFill, BatchInput, BatchOptions, Batcher, Damaged, DataError, DataField, Dataset, LastBatch, Position,
    Prefetcher, Shard, Shuffle, SyntheticDataset,
};
use types::{DType, Random, Shape};

/// Records whose only field is their number; some cannot be read.
struct Numbers {
    records: usize,
    damaged: Vec<usize>,
    fields: Vec<DataField>,
}

impl Dataset for Numbers {
    fn name(&self) -> &str {
        "numbers"
    }
    fn fields(&self) -> &[DataField] {
        &self.fields
    }
    fn records(&self) -> usize {
        self.records
    }
    fn read(&self, record: usize, augment: Option<Random>, out: &mut [&mut [u8]]) -> Result<(), DataError> {
        if self.damaged.contains(&record) {
            let (source_name, reason) = ("numbers".into(), "damaged".into());
            return Err(DataError::Record { record, source_name, reason });
        }
        let noise = augment.map_or(0, |mut random| 1000 * (1 + random.below(1000)));
        out[0].copy_from_slice(&(record as u32 + noise as u32).to_le_bytes());
        Ok(())
    }
}

fn batcher(records: usize, damaged: &[usize], options: BatchOptions) -> Result<Batcher, DataError> {
    let field = DataField { name: "n".into(), dtype: DType::U32, shape: Shape::scalar(), axes: Axes::Plain };
    let dataset = Numbers { records, damaged: damaged.to_vec(), fields: vec![field] };
    Batcher::new(Arc::new(dataset), vec![BatchInput::new(0, DType::I64, Shape::scalar())], options)
}

fn filled(batcher: &Batcher, epoch: u64, batch: u64) -> (Vec<i64>, BatchFill) {
    let mut bytes = vec![0xff; batcher.batch() * 8];
    let fill = batcher.fill(Position { epoch, batch }, &mut [&mut bytes]).unwrap();
    (bytes.as_chunks::<8>().0.iter().map(|item| i64::from_le_bytes(*item)).collect(), fill)
}

fn epoch_of(batcher: &Batcher, epoch: u64) -> Vec<i64> {
    (0..batcher.batches()).flat_map(|batch| filled(batcher, epoch, batch).0).collect()
}

#[test]
fn every_record_is_in_an_epoch_once() {
    let options = BatchOptions { batch: 4, shuffle: Shuffle::Seed(1), ..BatchOptions::default() };
    let batcher = batcher(20, &[], options).unwrap();
    let (first, second) = (epoch_of(&batcher, 0), epoch_of(&batcher, 1));
    assert_ne!(first, second);
    assert_eq!(first, epoch_of(&batcher, 0), "any epoch can be read again");
    for mut epoch in [first, second] {
        epoch.sort();
        assert_eq!(epoch, (0..20).collect::<Vec<_>>());
    }
}

#[test]
fn shards_together_are_the_batches_of_one_process() {
    let options = BatchOptions { batch: 6, shuffle: Shuffle::Seed(2), ..BatchOptions::default() };
    let whole = batcher(40, &[], options.clone()).unwrap();
    let shard = |part| Shard { part, parts: 3 };
    let parts: Vec<Batcher> = (0..3)
        .map(|part| batcher(40, &[], BatchOptions { batch: 2, shard: shard(part), ..options.clone() }).unwrap())
        .collect();
    assert!(parts.iter().all(|part| part.batches() == whole.batches()), "each part has a share of every batch");
    for batch in 0..whole.batches() {
        let together: Vec<i64> = parts.iter().flat_map(|part| filled(part, 5, batch).0).collect();
        assert_eq!(together, filled(&whole, 5, batch).0);
    }
    assert!(batcher(40, &[], BatchOptions { batch: 2, shard: shard(3), ..options }).is_err());
}

#[test]
fn incomplete_batch_is_dropped_or_padded_with_zeros() {
    let options = BatchOptions { batch: 4, ..BatchOptions::default() };
    assert_eq!(batcher(10, &[], options.clone()).unwrap().batches(), 2);
    let partial = BatchOptions { last: LastBatch::Partial, ..options.clone() };
    let padded = batcher(10, &[], partial.clone()).unwrap();
    assert_eq!(padded.batches(), 3);
    let (items, fill) = filled(&padded, 0, 2);
    assert_eq!((items, fill.count), (vec![8, 9, 0, 0], 2));
    // The second of two parts has nothing left.
    let second = batcher(10, &[], BatchOptions { shard: Shard { part: 1, parts: 2 }, ..partial }).unwrap();
    assert_eq!(filled(&second, 0, 1), (vec![0; 4], BatchFill::default()));
    let error = batcher(3, &[], options).err().unwrap().to_string();
    assert_eq!(error, "`numbers` has 3 records, fewer than a batch of 4 on each of 1 parts; use a smaller batch");
}

#[test]
fn damaged_records_fail_or_are_skipped_and_counted() {
    let options = BatchOptions { batch: 4, ..BatchOptions::default() };
    let mut bytes = vec![0; 32];
    let strict = batcher(8, &[2, 3], options.clone()).unwrap();
    let error = strict.fill(Position::default(), &mut [&mut bytes]).unwrap_err();
    assert_eq!(error.to_string(), "record 2 of `numbers`: damaged");

    let skip = BatchOptions { damaged: Damaged::Skip, ..options };
    let (items, fill) = filled(&batcher(8, &[2, 3], skip.clone()).unwrap(), 0, 0);
    assert_eq!((items, fill.count, fill.damaged.len()), (vec![0, 1, 4, 4], 4, 2));
    let partial = BatchOptions { last: LastBatch::Partial, ..skip.clone() };
    let (items, fill) = filled(&batcher(8, &[2], partial).unwrap(), 0, 0);
    assert_eq!((items, fill.count, fill.damaged.len()), (vec![0, 1, 3, 0], 3, 1));
    let none = batcher(4, &[0, 1, 2, 3], skip).unwrap();
    let error = none.fill(Position::default(), &mut [&mut bytes]).unwrap_err().to_string();
    assert!(error.starts_with("no record of `numbers` can be read; the first error: record 0"), "{error}");
}

#[test]
fn variations_depend_on_seed_epoch_and_record_only() {
    let options = BatchOptions { batch: 5, augment: Some(9), ..BatchOptions::default() };
    let plain = batcher(10, &[], options.clone()).unwrap();
    let shuffled = batcher(10, &[], BatchOptions { shuffle: Shuffle::Seed(4), ..options.clone() }).unwrap();
    let sorted = |mut items: Vec<i64>| {
        items.sort();
        items
    };
    assert_eq!(sorted(epoch_of(&plain, 3)), sorted(epoch_of(&shuffled, 3)));
    let variations: std::collections::BTreeSet<i64> = epoch_of(&plain, 3).iter().map(|item| item / 1000).collect();
    assert!(8 <= variations.len(), "records of one epoch vary differently: {variations:?}");
    assert_ne!(sorted(epoch_of(&plain, 3)), sorted(epoch_of(&plain, 4)));
    let other = batcher(10, &[], BatchOptions { augment: Some(10), ..options }).unwrap();
    assert_ne!(sorted(epoch_of(&plain, 3)), sorted(epoch_of(&other, 3)));
}

#[test]
fn any_number_of_threads_yields_the_same_batches_from_any_position() {
    let options = BatchOptions {
        batch: 4,
        shuffle: Shuffle::Seed(3),
        damaged: Damaged::Skip,
        augment: Some(1),
        ..BatchOptions::default()
    };
    let batcher = Arc::new(batcher(30, &[7, 8], options).unwrap());
    let start = Position { epoch: 1, batch: 5 };
    for threads in [1, 2, 3, 5] {
        let mut prefetcher = Prefetcher::new(&batcher, start, threads, 4).unwrap();
        let mut position = start;
        for _ in 0..20 {
            let batch = prefetcher.next_batch().unwrap();
            let (_, fill) = filled(&batcher, position.epoch, position.batch);
            let mut want = vec![0; 32];
            batcher.fill(position, &mut [&mut want]).unwrap();
            assert_eq!((batch.position, &batch.inputs[0], &batch.fill), (position, &want, &fill), "{threads} threads");
            position = batcher.after(position);
        }
    }
}

#[test]
fn error_in_a_thread_belongs_to_its_batch() {
    let batcher = Arc::new(batcher(6, &[2], BatchOptions { batch: 2, ..BatchOptions::default() }).unwrap());
    let mut prefetcher = Prefetcher::new(&batcher, Position::default(), 2, 4).unwrap();
    for _ in 0..3 {
        assert!(prefetcher.next_batch().is_ok());
        assert!(prefetcher.next_batch().is_err(), "record 2");
        assert!(prefetcher.next_batch().is_ok());
    }
    // 2 lanes of 2 batches of 2 samples of 8 bytes, and a record of 4 bytes for each.
    assert_eq!(Prefetcher::memory(&batcher, 2, 4).0, 2 * (2 * 16 + 4));
}

#[test]
fn synthetic_records_depend_on_the_seed_only() {
    let fields = || {
        let x = DataField { name: "x".into(), dtype: DType::F32, shape: Shape::from([3]), axes: Axes::Plain };
        let y = DataField { name: "y".into(), dtype: DType::I32, shape: Shape::scalar(), axes: Axes::Plain };
        vec![(x, 0), (y, 10)]
    };
    let read = |seed, record| {
        let dataset = SyntheticDataset::new(seed, 5, fields());
        let (mut x, mut y) = (vec![0; 12], vec![0; 4]);
        dataset.read(record, None, &mut [&mut x, &mut y]).unwrap();
        (x, i32::from_le_bytes(y.try_into().unwrap()))
    };
    assert_eq!(read(1, 2), read(1, 2));
    assert_ne!(read(1, 2), read(1, 3));
    assert_ne!(read(1, 2), read(2, 2));
    assert!((0..5).all(|record| (0..10).contains(&read(1, record).1)));
}
