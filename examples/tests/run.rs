//! Runs each example as a program.

use std::path::PathBuf;
use std::process::Command;

/// The output of an example, which cargo built next to this test.
fn run(example: &str) -> String {
    let test = std::env::current_exe().expect("a test is a file");
    let profile = test.ancestors().nth(2).expect("cargo writes tests to PROFILE/deps");
    let program: PathBuf = profile.join("examples").join(example);
    let done = Command::new(&program).output().expect("cargo test builds examples");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("examples print text")
}

#[test]
fn compile_onnx_names_its_output() {
    let text = run("compile_onnx");
    assert!(text.contains("arena ") && text.contains("logits: f32[1,10]"), "{text}");
}

#[test]
fn embed_classifies_three_inputs() {
    let text = run("embed");
    assert_eq!(text.lines().filter(|line| line.starts_with("input ")).count(), 3, "{text}");
}

#[test]
fn arena_csv_reaches_the_lower_bound() {
    let text = run("arena_csv");
    assert!(text.ends_with("arena 18432 bytes, lower bound 18432\n"), "{text}");
}
