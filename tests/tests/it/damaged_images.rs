//! Damaged images and invalid plans are refused without a panic.

use ir::ops::Conv;
use ir::{Graph, Op};
use plan::image::{self, ImageError};
use plan::{Plan, check};
use runtime::Host;
use std::sync::Arc;
use types::{Bytes, DType, Random, Scope, Shape, Tensor};

use crate::support::{compiled, effort};

/// A small image with a convolution: weights, steps and a workspace.
fn small() -> (Plan, Vec<u8>) {
    let mut graph = Graph::new("small");
    let x = graph.add_input("x", DType::F32, Shape::from([1, 3, 8, 8]));
    let w = graph.add_weight("w", Tensor::full(Shape::from([4, 3, 3, 3]), 0.5f32));
    let y = graph.add1(Op::Conv(Conv::square(1, 1)), &[x, w], Scope::new("conv")).expect("it fits");
    graph.set_outputs(vec![("y".into(), y)]);
    let compiled = compiled(graph).expect("it compiles");
    (compiled.plan, compiled.constants)
}

fn file(plan: &Plan, constants: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    image::write(&mut file, b"runner", std::slice::from_ref(plan), constants).expect("memory is writable");
    file
}

#[test]
fn every_truncation_is_refused() {
    let (plan, constants) = small();
    let file = file(&plan, &constants);
    assert!(image::read(&file).is_ok());
    for length in (0..file.len()).step_by(7).chain(file.len() - 100..file.len()) {
        assert!(image::read(&file[..length]).is_err(), "length {length}");
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let (plan, constants) = small();
    let file = file(&plan, &constants);
    // The runner and the padding have a checksum as well.
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(image::read(&damaged).is_err(), "byte {at}");
    }
}

#[test]
fn other_version_and_missing_image_differ() {
    let (plan, constants) = small();
    let mut file = file(&plan, &constants);
    let at = file.len() - image::Trailer::SIZE + 8;
    file[at] = 99;
    assert_eq!(image::read(&file), Err(ImageError::Version { found: 99 }));
    assert_eq!(image::read(b"\x7fELF and nothing else"), Err(ImageError::NoTrailer));
}

/// Modified plans that decode: the check or `open` refuses them, or they run without a panic.
#[test]
fn tampered_plans_are_refused_or_harmless() {
    let (plan, constants) = small();
    let weights = Arc::new(constants);
    let mut random = Random::new(9);
    let mut refused = 0;
    let count = 20_000 * effort();
    for _ in 0..count {
        let mut bad = plan.clone();
        let step = random.below(bad.steps.len() as u64) as usize;
        let small = |random: &mut Random| Bytes(random.below(5000));
        match random.below(9) {
            0 => bad.buffers[0].offset = small(&mut random),
            1 => bad.buffers[1].size = small(&mut random),
            2 => bad.arena.certificate.value = small(&mut random),
            3 => bad.steps[step].inputs[0].offset = small(&mut random),
            4 => bad.steps[step].outputs[0].size = small(&mut random),
            5 => bad.steps[step].workspace = None,
            6 => bad.steps[step].inputs.truncate(1),
            7 => bad.inputs[0].operand.size = small(&mut random),
            _ => {
                let at = random.below(bad.steps[step].code.len() as u64) as usize;
                bad.steps[step].code[at] = random.bits() as u8;
            }
        }
        if check(&bad).is_err() {
            refused += 1;
            continue;
        }
        match runtime::open(Arc::new(bad.clone()), weights.clone(), &Host { threads: 1 }) {
            Err(_) => refused += 1,
            Ok(mut session) => session.run().expect("processors do not fail"),
        }
    }
    assert!(count / 4 * 3 < refused, "only {refused} of {count} were refused");
}

#[test]
fn plans_of_different_models_are_refused() {
    let (plan, constants) = small();
    let write = |plans: &[Plan]| image::write(&mut Vec::new(), b"runner", plans, &constants).map_err(|e| e.to_string());
    assert_eq!(write(&[]), Err("there is no plan".into()));
    assert_eq!(write(&[plan.clone(), plan.clone()]), Err("two plans are for batch 1".into()));
    let other = Plan { model: "other".into(), batch: 2, ..plan.clone() };
    assert!(write(&[plan.clone(), other]).unwrap_err().contains("other"));
    let second = Plan { batch: 2, ..plan.clone() };
    assert_eq!(write(&[plan, second]), Ok(()));
}
