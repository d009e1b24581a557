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
    let mut copied = threads;
    for _ in 0..TRIES {
        let copy = || {
            std::thread::scope(|scope| {
                let [(own_from, own_to), others @ ..] = &mut blocks[..] else { return 0 };
                let mut copied = 1;
                for (from, to) in others {
                    // The system may start fewer threads.
                    let started = std::thread::Builder::new().spawn_scoped(scope, || copy_block(from, to));
                    copied += usize::from(started.is_ok());
                }
                copy_block(own_from, own_to);
                copied
            })
        };
        let (blocks, seconds) = timed(copy);
        (best, copied) = (best.min(seconds), copied.min(blocks));
    }
    (2 * BLOCK * copied) as f64 / best
}

fn copy_block(from: &[u8], to: &mut [u8]) {
    std::hint::black_box(to).copy_from_slice(std::hint::black_box(from));
}
