//! Weights from host bytes, from a file descriptor, and from memory of a device.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use compiler::Compiled;
use runtime::{DevicePart, Host, ImageFile, RunError, WeightSource};
use types::Tensor;

use crate::executables::folder;
use crate::support::compiled;

const ADD: &str = r#"graph "add"
v0: f32[4] = input "x"
v1: f32[4] = weight "w" {1,2,3,4}
v2: f32[4] = binary(v0, v1) "add" at "add"
output "y" v2
"#;

fn model() -> Compiled {
    compiled(ir::text::parse(ADD, |_| None).expect("the text is a graph")).expect("the host has kernels")
}

fn run(compiled: &Compiled, weights: impl Into<WeightSource>) -> Result<Vec<Tensor>, RunError> {
    let mut session = runtime::open(Arc::new(compiled.plan.clone()), weights, &Host { threads: 1 })?;
    session.run_tensors(&[Tensor::vector(vec![10.0f32, 20.0, 30.0, 40.0])])
}

/// A file with the constants behind a page of other bytes; it has no name any more.
fn file_of(compiled: &Compiled) -> Arc<File> {
    let path = folder("weight-source").join("weights");
    let bytes = [vec![0xff; 4096], compiled.constants.to_vec()].concat();
    std::fs::write(&path, bytes).expect("writable");
    let file = File::open(&path).expect("readable");
    std::fs::remove_file(&path).expect("the folder is ours");
    Arc::new(file)
}

#[test]
fn host_bytes_and_a_descriptor_give_the_same_results() {
    let compiled = model();
    let want = vec![Tensor::vector(vec![11.0f32, 22.0, 33.0, 44.0])];
    assert_eq!(run(&compiled, compiled.constants.to_vec()), Ok(want.clone()));
    assert_eq!(run(&compiled, Arc::new(compiled.constants.to_vec())), Ok(want.clone()));
    let size = compiled.constants.size().0;
    assert_eq!(run(&compiled, WeightSource::File { file: file_of(&compiled), offset: 4096, size }), Ok(want));
}

/// Seals refuse writes and truncation.
#[test]
fn weights_of_a_sealed_memfd_are_mapped() {
    use std::io::Write;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    let compiled = model();
    let descriptor = memfd_create("weights", MemfdFlags::ALLOW_SEALING).expect("Linux has memfds");
    let mut file = File::from(descriptor);
    file.write_all(&compiled.constants.to_vec()).expect("memory is left");
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("unsealed");
    let file = Arc::new(file);
    let size = compiled.constants.size().0;
    let want = vec![Tensor::vector(vec![11.0f32, 22.0, 33.0, 44.0])];
    assert_eq!(run(&compiled, WeightSource::File { file: file.clone(), offset: 0, size }), Ok(want));
    assert!((&*file).write_all(&[0]).is_err() && file.set_len(0).is_err(), "the seals hold");
}

/// Without both seals, a file can still change: it is read.
#[test]
fn weights_of_a_memfd_without_seals_are_read() {
    use std::io::Write;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    let compiled = model();
    let size = compiled.constants.size().0;
    let want = vec![Tensor::vector(vec![11.0f32, 22.0, 33.0, 44.0])];
    for seals in [SealFlags::empty(), SealFlags::SHRINK | SealFlags::GROW, SealFlags::WRITE | SealFlags::GROW] {
        let mut file = File::from(memfd_create("weights", MemfdFlags::ALLOW_SEALING).expect("Linux has memfds"));
        file.write_all(&compiled.constants.to_vec()).expect("memory is left");
        fcntl_add_seals(&file, seals).expect("unsealed");
        let file = Arc::new(file);
        let weights = WeightSource::File { file: file.clone(), offset: 0, size };
        let plan = Arc::new(compiled.plan.clone());
        let mut session = runtime::open(plan, weights, &Host { threads: 1 }).expect("it is whole");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        let mapped = format!(" {} ", file.metadata().expect("it is open").ino());
        assert!(!maps.lines().any(|line| line.contains("memfd:weights") && line.contains(&mapped)), "{seals:?}");
        let _ = file.set_len(0);
        assert_eq!(session.run_tensors(&[Tensor::vector(vec![10.0f32, 20.0, 30.0, 40.0])]), Ok(want.clone()));
    }
}

#[test]
fn sections_outside_a_file_and_unaligned_ones_are_refused() {
    let compiled = model();
    let size = compiled.constants.size().0;
    let error = |offset: u64| {
        let weights = WeightSource::File { file: file_of(&compiled), offset, size };
        run(&compiled, weights).expect_err("the section is invalid").to_string()
    };
    assert_eq!(error(64), "cannot read the weights: the offset must be a multiple of 4096, got 64");
    assert!(error(8192).starts_with(&format!("cannot read the weights: the file must have {size} bytes from 8192 on")));
    assert!(error(u64::MAX - 4095).starts_with("cannot read the weights: the file must have"));
}

#[test]
fn another_size_and_device_memory_are_refused() {
    let compiled = model();
    let want = compiled.constants.size().0;
    for got in [1, want - 1, want + 1] {
        assert_eq!(run(&compiled, vec![0; got as usize]), Err(RunError::Constants { want, got }));
    }
    let handle = OwnedFd::from(file_of(&compiled).try_clone().expect("descriptors are left"));
    let parts = Arc::new([DevicePart { handle, size: want }]);
    let error = run(&compiled, WeightSource::Device { parts, size: want }).expect_err("a CPU cannot import it");
    assert!(error.to_string().contains("give host bytes or a file descriptor"), "{error}");
}

/// Neither a signal nor another result: the bytes of a file that others may write are read when a session is opened.
#[test]
fn file_that_is_cut_off_after_opening_changes_nothing() {
    let compiled = model();
    let want = vec![Tensor::vector(vec![11.0f32, 22.0, 33.0, 44.0])];
    let x = [Tensor::vector(vec![10.0f32, 20.0, 30.0, 40.0])];
    let size = compiled.constants.size().0;
    let path = folder("cut-weights").join("weights");
    std::fs::write(&path, [vec![0xff; 4096], compiled.constants.to_vec()].concat()).expect("writable");
    let writable = File::options().read(true).write(true).open(&path).expect("the file is ours");
    let weights =
        WeightSource::File { file: Arc::new(writable.try_clone().expect("descriptors are left")), offset: 4096, size };
    let mut session =
        runtime::open(Arc::new(compiled.plan.clone()), weights, &Host { threads: 1 }).expect("it is whole");
    writable.set_len(0).expect("the file is ours");
    assert_eq!(session.run_tensors(&x), Ok(want.clone()));

    let path = folder("cut-image").join("image");
    let mut image = Vec::new();
    let plans = [compiled.plan.clone()];
    plan::image::write(&mut image, b"runner", &plans, compiled.constants.clone()).expect("memory is writable");
    std::fs::write(&path, &image).expect("writable");
    let image = ImageFile::open(&path).expect("it is whole");
    File::options().write(true).truncate(true).open(&path).expect("the file is ours");
    image.check_constants().expect("they are in memory");
    let mut session = runtime::open_all(image.plans.clone(), &image, &Host { threads: 1 }).expect("it is whole");
    assert_eq!(session.run_tensors(&x), Ok(want));
}
