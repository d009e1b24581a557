//! Training steps compared with others.
//!
//! - `cargo xtask bench training [--peers[=NAME,...]] [--rounds=N] [--threads=N] [--optimize=GOAL]
//!   [NETWORK:BATCH[:OPTIMIZER]]...` measures steps and peak resident memory compared with PyTorch, TensorFlow and MXNet
//!   (`benches/peers/training.py`, which also exports networks called `torch/NAME` and `timm/NAME` from PyTorch). All run
//!   interleaved, one at a time, and ratios are taken within a round, so that other load of the machine affects all alike.
//! - `cargo xtask bench training memory [NETWORK]...` compares planned bytes with those of MXNet 1.9.1. Nothing runs.

mod memory;
mod speed;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let done = match words.split_first() {
        Some((first, networks)) if first == "memory" => memory::table(networks),
        _ => speed::Options::parse(&words).and_then(|options| speed::table(&options)),
    };
    if let Err(error) = done {
        eprintln!("error: {error}");
        std::process::exit(2);
    }
}

/// The middle of some numbers, the upper one of two.
fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
