//! The order of the records in an epoch: shuffling and sharding.

use types::Random;

use crate::DataError;

/// The order of the records in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Shuffle {
    /// As in the source.
    #[default]
    None,
    /// A permutation that depends on the seed and the epoch.
    Seed(u64),
    /// As `Seed`, but only blocks of `window` consecutive records are permuted, and the records inside each: reads stay
    /// close together.
    Window {
        /// The seed.
        seed: u64,
        /// Records of a block, >= 1.
        window: usize,
    },
}

/// The part of every global batch that one of several processes reads.
///
/// Part `p` of `n` with batch `b` reads records `p * b..(p + 1) * b` of each group of `n * b`: the parts together train on
/// the batches of one process with batch `n * b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The number of this part, less than `parts`.
    pub part: usize,
    /// The number of parts, >= 1.
    pub parts: usize,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard { part: 0, parts: 1 }
    }
}

/// The records of an epoch in their order.
#[derive(Debug)]
pub(crate) struct Order(Option<Vec<u32>>);

impl Order {
    pub(crate) fn new(records: usize, shuffle: Shuffle, epoch: u64) -> Result<Order, DataError> {
        let count = u32::try_from(records)
            .map_err(|_| DataError::Mismatch(format!("a data set must have < 2^32 records, got {records}")))?;
        Ok(Order(match shuffle {
            Shuffle::None => None,
            Shuffle::Seed(seed) => {
                let mut order: Vec<u32> = (0..count).collect();
                permute(&mut order, &mut of_epoch(seed, epoch));
                Some(order)
            }
            Shuffle::Window { window: 0, .. } => {
                return Err(DataError::Mismatch("the window of a shuffle must be >= 1, got 0".into()));
            }
            Shuffle::Window { seed, window } => {
                let mut random = of_epoch(seed, epoch);
                let mut starts: Vec<usize> = (0..records).step_by(window).collect();
                permute(&mut starts, &mut random);
                let mut order = Vec::with_capacity(records);
                for start in starts {
                    let first = order.len();
                    order.extend(start as u32..(start.saturating_add(window)).min(records) as u32);
                    permute(&mut order[first..], &mut random);
                }
                Some(order)
            }
        }))
    }

    pub(crate) fn at(&self, ix: usize) -> usize {
        self.0.as_ref().map_or(ix, |order| order[ix] as usize)
    }
}

fn of_epoch(seed: u64, epoch: u64) -> Random {
    // Hashed, so that epoch `e` of seed `s` is not epoch `e - 1` of seed `s + 1`.
    Random::new(Random::new(seed).bits() ^ Random::new(!epoch).bits())
}

/// The source of the variations of one record in one epoch.
pub(crate) fn augmentation(seed: u64, epoch: u64, record: usize) -> Random {
    let mut random = of_epoch(seed, epoch);
    Random::new(random.bits() ^ Random::new(record as u64).bits())
}

/// Fisher and Yates' shuffle.
fn permute<T>(items: &mut [T], random: &mut Random) {
    for ix in (1..items.len()).rev() {
        items.swap(ix, random.below(ix as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(records: usize, shuffle: Shuffle, epoch: u64) -> Vec<usize> {
        let order = Order::new(records, shuffle, epoch).unwrap();
        (0..records).map(|ix| order.at(ix)).collect()
    }

    #[test]
    fn every_shuffle_is_a_permutation_of_its_seed_and_epoch() {
        for shuffle in [Shuffle::Seed(3), Shuffle::Window { seed: 3, window: 7 }] {
            let order = listed(100, shuffle, 0);
            let mut sorted = order.clone();
            sorted.sort();
            assert_eq!(sorted, (0..100).collect::<Vec<_>>());
            assert_ne!(order, sorted);
            assert_eq!(order, listed(100, shuffle, 0));
            assert_ne!(order, listed(100, shuffle, 1));
        }
        assert_ne!(listed(100, Shuffle::Seed(3), 1), listed(100, Shuffle::Seed(4), 0));
        assert_eq!(listed(5, Shuffle::None, 9), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn window_shuffle_keeps_blocks_together() {
        let order = listed(100, Shuffle::Window { seed: 1, window: 10 }, 0);
        for block in order.chunks(10) {
            assert!(block.iter().all(|record| record / 10 == block[0] / 10), "{block:?}");
        }
        let blocks: Vec<usize> = order.chunks(10).map(|block| block[0] / 10).collect();
        assert!(!blocks.is_sorted(), "the blocks are permuted: {blocks:?}");
        let sorted = order.chunks(10).filter(|block| block.is_sorted()).count();
        assert_eq!(sorted, 0, "the records of each block are permuted");
        assert!(Order::new(5, Shuffle::Window { seed: 1, window: 0 }, 0).is_err());
    }

    /// Each of the six orders of three records, as often as the others.
    #[test]
    fn every_permutation_is_as_likely_as_the_others() {
        let mut counts = std::collections::BTreeMap::<Vec<usize>, usize>::new();
        for epoch in 0..6000 {
            *counts.entry(listed(3, Shuffle::Seed(5), epoch)).or_default() += 1;
        }
        // The standard deviation of each count is 29.
        assert_eq!(counts.len(), 6, "{counts:?}");
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
