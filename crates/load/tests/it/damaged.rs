//! Damaged files: whatever is read, the answer is a graph that verifies or an error, never a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use prestow_load::onnx::{self, Options};
use types::Random;

use crate::models::small;
use crate::{data, effort};

/// Loads bytes and, if they are a model, verifies it.
#[track_caller]
fn survives(bytes: &[u8], options: &Options, case: &str) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(|| match onnx::load(bytes, None, options) {
        Ok(graph) => ir::verify(&graph).map(|()| true).map_err(|errors| format!("{errors:?}")),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Ok(false)
        }
    }));
    match outcome {
        Ok(Ok(loaded)) => loaded,
        Ok(Err(errors)) => panic!("{case}: the graph does not verify: {errors}"),
        Err(_) => panic!("{case}: loading panicked"),
    }
}

pub(crate) fn mutate(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = |random: &mut Random, length: usize| random.below(length.max(1) as u64) as usize;
        let place = at(random, out.len());
        match random.below(7) {
            _ if out.is_empty() => out.push(random.bits() as u8),
            0 => out[place] ^= 1 << random.below(8),
            1 => out[place] = random.bits() as u8,
            2 => out.insert(place, random.bits() as u8),
            3 => out.truncate(place),
            4 => {
                let end = (place + 1 + at(random, 16)).min(out.len());
                out.drain(place..end);
            }
            5 => {
                let end = (place + 1 + at(random, 64)).min(out.len());
                let copy = out[place..end].to_vec();
                let to = at(random, out.len());
                out.splice(to..to, copy);
            }
            // Small numbers become large ones and negative ones.
            _ => {
                let value = [0x7f, 0x80, 0xff, 0x00][at(random, 4)];
                let end = (place + 1 + at(random, 4)).min(out.len());
                out[place..end].fill(value);
            }
        }
    }
    out
}

fn mutations(bytes: &[u8], options: &Options, count: usize, seed: u64, name: &str) {
    let mut random = Random::for_name(seed, name);
    let (count, mut loaded) = (count * effort(), 0);
    for ix in 0..count {
        let mutant = mutate(bytes, &mut random);
        loaded += usize::from(survives(&mutant, options, &format!("{name}, mutation {ix}")));
    }
    eprintln!("{name}: {loaded} of {count} mutations load");
}

#[test]
fn a_model_cut_anywhere_is_an_error() {
    let bytes = small().write();
    for end in 0..bytes.len() {
        let loaded = survives(&bytes[..end], &Options::default(), &format!("cut at {end}"));
        assert!(!loaded, "cut at {end} of {}", bytes.len());
    }
    assert!(survives(&bytes, &Options::default(), "whole"));
}

#[test]
fn mutations_of_a_small_model_never_panic() {
    mutations(&small().write(), &Options::default(), 20_000, 1, "small");
}

#[test]
fn mutations_of_real_models_never_panic() {
    // Weights that are filled in while loading take time; these are the three smallest in memory.
    let real = [
        ("onnx-test-data/light/light_squeezenet.onnx", "data_0", [1, 3, 224, 224]),
        ("onnx-test-data/light/light_shufflenet.onnx", "gpu_0/data_0", [1, 3, 224, 224]),
        ("models/ppocrv4/ch_ppocr_mobile_v2.0_cls_infer.onnx", "x", [1, 3, 48, 192]),
    ];
    for (path, input, shape) in real {
        let Some(found) = data("mutations_of_real_models_never_panic", path) else { continue };
        let bytes = std::fs::read(found).expect("readable");
        let options = Options { batch: None, shapes: [(input.to_string(), shape.into())].into_iter().collect() };
        mutations(&bytes, &options, 1000, 2, path);
        // Where the input's name is hit, a model with static shapes still goes on without this.
        mutations(&bytes, &Options::default(), 300, 3, path);
    }
}
