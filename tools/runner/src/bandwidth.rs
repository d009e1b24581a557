//! The peak memory bandwidth of this machine, the reference for the bandwidths of steps.

use crate::commands::timed;

/// Bytes that one thread copies per try: far larger than caches.
const BLOCK: usize = 32 << 20;
/// The number of tries; the best counts.
const TRIES: usize = 5;

/// Bytes read and written per second if all threads copy.
pub(crate) fn measure(threads: usize) -> f64 {
    let threads = threads.max(1);
    let mut blocks: Vec<(Vec<u8>, Vec<u8>)> = (0..threads).map(|_| (vec![1; BLOCK], vec![2; BLOCK])).collect();
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let copy = || {
            std::thread::scope(|scope| {
                for (from, to) in &mut blocks {
                    scope.spawn(|| std::hint::black_box(&mut to[..]).copy_from_slice(std::hint::black_box(from)));
                }
            });
        };
        best = best.min(timed(copy).1);
    }
    (2 * BLOCK * threads) as f64 / best
}
