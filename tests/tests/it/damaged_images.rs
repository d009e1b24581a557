//! Damaged images and invalid plans are refused without a panic.

use ir::ops::{Conv, MatMul};
use ir::{Graph, Op};
use plan::image::{self, ImageError};
use plan::{Operand, Plan, check};
use runtime::{Host, ImageFile, OpenError};
use std::sync::Arc;
use types::{Bytes, DType, Random, Scope, Shape, Tensor};

use crate::executables::folder;
use crate::support::{compiled, effort};

/// A small image with a convolution: weights, steps and a workspace.
fn small() -> (Plan, Vec<u8>) {
    let mut graph = Graph::new("small");
    let x = graph.add_input("x", DType::F32, Shape::from([1, 3, 8, 8]));
    let w = graph.add_weight("w", Tensor::full(Shape::from([4, 3, 3, 3]), 0.5f32));
    let y = graph.add1(Op::Conv(Conv::square(1, 1)), &[x, w], Scope::new("conv")).expect("it fits");
    graph.set_outputs(vec![("y".into(), y)]);
    let compiled = compiled(graph).expect("it compiles");
    (compiled.plan, compiled.constants.to_vec())
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

/// A product of equal sizes: `y = x w`.
fn product() -> (Plan, Vec<u8>) {
    let mut graph = Graph::new("product");
    let x = graph.add_input("x", DType::F32, Shape::from([16, 16]));
    let w = graph.add_weight("w", Tensor::full(Shape::from([16, 16]), 0.5f32).stored_as("w"));
    let y = graph.add1(MatMul::default().into(), &[x, w], Scope::new("product")).expect("it fits");
    graph.set_outputs(vec![("y".into(), y)]);
    let compiled = compiled(graph).expect("it compiles");
    (Plan { weights_name: "weights".into(), ..compiled.plan }, compiled.constants.to_vec())
}

/// The device has rules of its own, also for plans that were not checked.
#[test]
fn operands_that_a_kernel_cannot_take_are_refused() {
    let refused = |change: fn(&mut Plan)| {
        let (mut plan, constants) = product();
        assert_eq!(plan.steps.len(), 1, "one product");
        change(&mut plan);
        let opened = runtime::open(Arc::new(plan), constants, &Host { threads: 1 });
        opened.map(drop).expect_err("the kernel cannot take its operands").to_string()
    };
    let error = refused(|plan| plan.steps[0].inputs[0].offset = Bytes(2));
    assert!(error.contains("needs an operand aligned to 4 bytes"), "{error}");
    let error = refused(|plan| plan.steps[0].inputs[0].size = Bytes(1020));
    assert!(error.starts_with("step 0 (`product`): "), "{error}");
    let error = refused(|plan| plan.steps[0].outputs[0] = plan.steps[0].inputs[0]);
    assert!(error.contains("cannot have operand 0 in place"), "{error}");
    let error = refused(|plan| {
        let step = &mut plan.steps[0];
        let output = step.outputs[0];
        // Half of the result and as many bytes behind it.
        step.inputs[0] = Operand { offset: output.offset + Bytes(512), ..output };
        plan.arena.certificate.value += Bytes(1024);
    });
    assert!(error.contains("an operand overlaps a result"), "{error}");
    let error = refused(|plan| plan.target = format!("cpu:{}", other_architecture()));
    assert!(error.starts_with("the plan is for `cpu:"), "{error}");
}

fn other_architecture() -> &'static str {
    if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86-64" }
}

#[test]
fn results_that_share_bytes_are_refused() {
    let (mut plan, constants) = small();
    let step = plan.steps.iter_mut().find(|step| step.workspace.is_some()).expect("a convolution has workspace");
    let size = step.workspace.expect("it was found").size;
    step.workspace = Some(Operand { size, ..step.outputs[0] });
    plan.arena.certificate.value += size;
    let error = runtime::open(Arc::new(plan), constants, &Host { threads: 1 }).map(drop).expect_err("they overlap");
    assert!(error.to_string().contains("two results share bytes"), "{error}");
}

#[test]
fn input_of_another_shape_is_refused() {
    let (plan, constants) = small();
    let mut session = runtime::open(Arc::new(plan), constants, &Host { threads: 1 }).expect("it is whole");
    let mut error = |shape: [usize; 4], dtype: DType| {
        let input = Tensor::full(Shape::from(shape), 1.0f32).cast(dtype);
        session.run_tensors(&[input]).map(drop).expect_err("it does not fit").to_string()
    };
    assert_eq!(error([1, 8, 8, 3], DType::F32), "`x` must be f32[1,3,8,8], got f32[1,8,8,3]");
    assert_eq!(error([1, 3, 8, 8], DType::I32), "`x` must be f32[1,3,8,8], got i32[1,3,8,8]");
}

#[test]
fn separate_weights_are_not_in_the_file() {
    let (plan, constants) = product();
    let mut file = Vec::new();
    image::write_separate(&mut file, b"runner", &[plan], &constants).expect("its weight has a recipe");
    let path = folder("separate-image").join("image");
    std::fs::write(&path, &file).expect("writable");
    let plans = ImageFile::read_plans(&path).expect("its plans are in the file");
    assert_eq!(plans.len(), 1);
    match ImageFile::open(&path) {
        Err(OpenError::Image { error: ImageError::Separate { weights }, .. }) => assert_eq!(weights, "weights"),
        other => panic!("{:?}", other.map(|image| image.plans.len())),
    }
}

/// To open a FIFO would wait for its writer.
#[test]
fn fifo_is_no_image() {
    let fifo = folder("fifo-image").join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("POSIX has mkfifo").success());
    let error = ImageFile::read_plans(&fifo).map(drop).expect_err("it is no regular file").to_string();
    assert!(error.ends_with("it is not a regular file"), "{error}");
}
