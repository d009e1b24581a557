//! [`Prefetcher`]: batches made by threads ahead of their use.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use types::Bytes;

use crate::{BatchFill, Batcher, DataError, Position};

/// A batch in memory of the prefetcher, which takes the memory back when the batch is dropped.
pub struct PrefetchedBatch {
    /// The position of the batch.
    pub position: Position,
    /// The bytes of each input.
    pub inputs: Vec<Vec<u8>>,
    /// The content.
    pub fill: BatchFill,
    free: Sender<Vec<Vec<u8>>>,
}

impl Drop for PrefetchedBatch {
    fn drop(&mut self) {
        // The prefetcher may have ended before.
        let _ = self.free.send(std::mem::take(&mut self.inputs));
    }
}

/// Threads that fill the batches from a position on, in the order of the batcher and without end.
///
/// Thread `t` of `n` makes batches `t`, `t + n` and so on: order and content do not depend on the number of threads. The
/// memory of the batches is allocated once. The threads end when the prefetcher is dropped.
pub struct Prefetcher {
    lanes: Vec<Lane>,
    /// The lane of the next batch.
    next: usize,
}

/// A batch that a thread filled, or the reason why it could not.
struct Made {
    position: Position,
    inputs: Vec<Vec<u8>>,
    fill: Result<BatchFill, DataError>,
}

/// A thread as its receiver sees it.
struct Lane {
    made: Receiver<Made>,
    free: Sender<Vec<Vec<u8>>>,
}

impl Prefetcher {
    /// Bytes of a prefetcher: its batches, for each thread one record and the scratch of its decoder, and the cache of a store.
    pub fn memory(batcher: &Batcher, threads: usize, ahead: usize) -> Bytes {
        let threads = threads.max(1);
        let batch: usize = batcher.batch_bytes().iter().sum();
        let record: usize = batcher.dataset().fields().iter().map(|field| field.size_bytes()).sum();
        let of_thread = (buffers(threads, ahead) * batch + record) as u64 + batcher.dataset().scratch_bytes();
        Bytes(threads as u64 * of_thread + batcher.dataset().shared_bytes())
    }

    /// Starts `threads` threads (at least one) that are together about `ahead` batches ahead, at least one each.
    ///
    /// # Errors
    /// A system that starts no more threads.
    pub fn new(batcher: &Arc<Batcher>, start: Position, threads: usize, ahead: usize) -> Result<Prefetcher, DataError> {
        let threads = threads.max(1);
        let mut position = start;
        let lane = |_| -> Result<Lane, DataError> {
            let first = position;
            position = batcher.after(position);
            let ((free, buffer), (made, receiver)) = (channel(), sync_channel(buffers(threads, ahead)));
            for _ in 0..buffers(threads, ahead) {
                let inputs: Vec<Vec<u8>> = batcher.batch_bytes().into_iter().map(|bytes| vec![0; bytes]).collect();
                free.send(inputs).expect("the receiver is alive");
            }
            let batcher = batcher.clone();
            let name = std::thread::Builder::new().name("prestow-data".into());
            let started = name.spawn(move || work(&batcher, first, threads, &buffer, &made));
            started.map_err(|error| DataError::Mismatch(format!("cannot start a thread that reads data: {error}")))?;
            Ok(Lane { made: receiver, free })
        };
        Ok(Prefetcher { lanes: (0..threads).map(lane).collect::<Result<_, _>>()?, next: 0 })
    }

    /// The next batch; waits until it is made.
    ///
    /// # Errors
    /// As [`Batcher::fill`], for this batch; the next call returns the batch after it.
    pub fn next_batch(&mut self) -> Result<PrefetchedBatch, DataError> {
        let lane = &self.lanes[self.next];
        self.next = (self.next + 1) % self.lanes.len();
        let stopped = |_| DataError::Mismatch("a thread that reads data has stopped".into());
        let Made { position, inputs, fill } = lane.made.recv().map_err(stopped)?;
        let mut batch = PrefetchedBatch { position, inputs, fill: BatchFill::default(), free: lane.free.clone() };
        batch.fill = fill?;
        Ok(batch)
    }
}

/// Batches of one thread. A single thread has two: one is filled while the other is used.
fn buffers(threads: usize, ahead: usize) -> usize {
    ahead.div_ceil(threads).max(if threads == 1 { 2 } else { 1 })
}

/// Fills every `stride`-th batch until the prefetcher is dropped, which closes both channels.
fn work(
    batcher: &Batcher,
    mut position: Position,
    stride: usize,
    buffer: &Receiver<Vec<Vec<u8>>>,
    made: &SyncSender<Made>,
) {
    while let Ok(mut inputs) = buffer.recv() {
        let mut slices: Vec<&mut [u8]> = inputs.iter_mut().map(Vec::as_mut_slice).collect();
        let fill = batcher.fill(position, &mut slices);
        if made.send(Made { position, inputs, fill }).is_err() {
            return;
        }
        (0..stride).for_each(|_| position = batcher.after(position));
    }
}
