//! [`Object`]: an object read at offsets through a cache of blocks.
//!
//! A request of a store takes tens of milliseconds whatever its size. Reads that continue a block fetch the next block whole;
//! other reads fetch the announced bytes only, so that shuffled records are not read many times over.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

use super::store::Store;

/// Bytes of a block.
const BLOCK_BYTES: u64 = 4 << 20;

/// Bytes between the end of a block and a read that continues it.
const GAP_BYTES: u64 = 64 << 10;

/// Bytes of the blocks that are kept. More threads than blocks exceed it, by a block each.
pub(crate) const CACHE_BYTES: u64 = 32 << 20;

/// Bytes of a thread in addition: the block that it waits for, and one that left the cache while it was copied.
pub(crate) const THREAD_BYTES: u64 = 2 * BLOCK_BYTES;

/// An object of a store.
pub(super) struct Object {
    store: Arc<Store>,
    name: String,
    size: u64,
    cache: Mutex<Cache>,
    /// Notified when a block is filled or has failed.
    filled: Condvar,
}

/// Blocks in the order of their last use.
#[derive(Default)]
struct Cache(Vec<Block>);

struct Block {
    range: Range<u64>,
    /// `None` while it is fetched.
    bytes: Option<Arc<Vec<u8>>>,
}

impl Object {
    pub(super) fn new(store: Arc<Store>, name: &str, size: u64) -> Object {
        Object { store, name: name.into(), size, cache: Mutex::default(), filled: Condvar::new() }
    }

    /// Fetches the bytes from `start` to `end`, as many as one block has.
    pub(super) fn announce(&self, start: u64, end: u64) -> Result<(), String> {
        self.block_at(start, end.min(self.size)).map(drop)
    }

    /// Fills `bytes` from an offset.
    pub(super) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), String> {
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= self.size);
        let end = end.ok_or_else(|| format!("the object has {} bytes", self.size))?;
        let mut at = offset;
        while at < end {
            let (first, block) = self.block_at(at, end)?;
            let from = (at - first) as usize;
            let count = (block.len() - from).min((end - at) as usize);
            bytes[(at - offset) as usize..][..count].copy_from_slice(&block[from..from + count]);
            at += count as u64;
        }
        Ok(())
    }

    /// A block that has the byte at `start`, with its offset. Of bytes that no block has, those up to `end` are fetched.
    fn block_at(&self, start: u64, end: u64) -> Result<(u64, Arc<Vec<u8>>), String> {
        if end <= start {
            return Ok((start, Arc::default()));
        }
        let mut cache = self.cache.lock().expect("no holder of this lock panics");
        loop {
            match cache.0.iter().position(|block| block.range.contains(&start)) {
                None => break,
                Some(ix) => {
                    if let Some(bytes) = cache.0[ix].bytes.clone() {
                        let block = cache.0.remove(ix);
                        let first = block.range.start;
                        cache.0.push(block);
                        return Ok((first, bytes));
                    }
                    cache = self.filled.wait(cache).expect("no holder of this lock panics");
                }
            }
        }
        let range = self.range_to_fetch(&cache, start, end);
        cache.make_room(range.end - range.start);
        cache.0.push(Block { range: range.clone(), bytes: None });
        drop(cache);
        let fetched = self.store.read(&self.name, range.start, range.end - range.start);
        let mut cache = self.cache.lock().expect("no holder of this lock panics");
        let ix = cache.0.iter().position(|block| block.range == range && block.bytes.is_none());
        let ix = ix.expect("a block that is fetched stays in the cache");
        let result = match fetched {
            Ok(bytes) => {
                let bytes = Arc::new(bytes);
                cache.0[ix].bytes = Some(bytes.clone());
                Ok((range.start, bytes))
            }
            Err(reason) => {
                // Those who wait for it try themselves.
                cache.0.remove(ix);
                Err(reason)
            }
        };
        drop(cache);
        self.filled.notify_all();
        result
    }

    fn range_to_fetch(&self, cache: &Cache, start: u64, end: u64) -> Range<u64> {
        let continues = |block: &Block| (block.range.end..=block.range.end + GAP_BYTES).contains(&start);
        let wanted = match cache.0.iter().any(continues) {
            true => start + BLOCK_BYTES,
            false => end.min(start + BLOCK_BYTES),
        };
        // Up to the next block that is there or on its way.
        let next = cache.0.iter().map(|block| block.range.start).filter(|&other| start < other).min();
        start..wanted.min(self.size).min(next.unwrap_or(u64::MAX))
    }
}

impl Cache {
    /// Removes filled blocks, the longest unused ones first, until `bytes` more fit.
    fn make_room(&mut self, bytes: u64) {
        let length = |block: &Block| block.range.end - block.range.start;
        let mut total: u64 = self.0.iter().map(length).sum();
        while CACHE_BYTES < total + bytes {
            let Some(ix) = self.0.iter().position(|block| block.bytes.is_some()) else { return };
            total -= length(&self.0.remove(ix));
        }
    }
}
