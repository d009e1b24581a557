//! Driver allocations in a run, from CUPTI's mock next to the driver's mock.

use std::process::Output;

use cuda_mock::Library;
use serde_json::Value as Json;

use crate::executables::text;
use crate::gpu::{How, Mocked, NO_COMPILER, build_empty, build_mock, without_libraries};
use crate::support::skip;

fn measured(mocked: &Mocked, words: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = without_libraries(&mocked.exe);
    command.args(["memory", "--actual"]).args(words).env("LD_LIBRARY_PATH", &mocked.folder);
    command.env("PRESTOW_MOCK_TRACE", mocked.folder.join("trace")).envs(variables.iter().copied());
    let out = command.output().expect("it is there");
    let said = text(&out.stderr);
    assert!(!said.contains("panicked"), "{variables:?}: {said}");
    assert!(!mocked.trace().contains("leaked"), "{variables:?}: {}", mocked.trace());
    out
}

fn report(mocked: &Mocked, variables: &[(&str, &str)]) -> (Option<i32>, Json) {
    let out = measured(mocked, &["--json"], variables);
    let report = serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&out.stderr)));
    (out.status.code(), report)
}

#[test]
fn allocations_in_a_run_are_recorded() {
    let test = "gpu::cupti::allocations_in_a_run_are_recorded";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-cupti", graph, How::default()) else { return };
    let library = mocked.folder.join("libcupti.so.13");
    if !build_mock(Library::Cupti, &mocked.folder) {
        return skip(test, NO_COMPILER);
    }
    let told = |report: &Json| -> Vec<(String, u64)> {
        let rows = report["actual"]["device_processes"].as_array().cloned().unwrap_or_default();
        let row = |row: &Json| Some((row["what"].as_str()?.to_string(), row["bytes"].as_u64()?));
        rows.iter().filter_map(row).filter(|(what, _)| what.contains("in a run, ")).collect()
    };
    // A run allocates nothing.
    let (code, nothing) = report(&mocked, &[]);
    assert_eq!((code, &nothing["verdict"]), (Some(0), &Json::from("equal")));
    assert_eq!(told(&nothing), [("allocated in a run, 0 times".into(), 0)]);
    // An allocation that is freed before free memory is read is recorded all the same, and the verdict is `allocates`.
    let (code, some) = report(&mocked, &[("PRESTOW_MOCK_ALLOCATE", "4096")]);
    assert_eq!((code, &some["verdict"]), (Some(1), &Json::from("allocates")));
    assert_eq!(told(&some), [("allocated in a run, 1 time".into(), 4096)]);
    // Pinned memory of the host has its own row, and it counts as an allocation, too.
    let (code, host) = report(&mocked, &[("PRESTOW_MOCK_ALLOCATE", "4096"), ("PRESTOW_MOCK_CUPTI_PINNED", "1")]);
    assert_eq!((code, &host["verdict"]), (Some(1), &Json::from("allocates")));
    let rows =
        [("allocated in a run, 0 times".into(), 0), ("allocated pinned host memory in a run, 1 time".into(), 4096)];
    assert_eq!(told(&host), rows);
    let words = text(&measured(&mocked, &["--view", "actual"], &[]).stdout);
    assert!(words.contains("allocated in a run, 0 times (CUPTI,"), "{words}");

    // Missing figures are reported with the reason.
    let untold = |variables: &[(&str, &str)], why: &str| {
        let (code, report) = report(&mocked, variables);
        assert_eq!((code, &report["verdict"]), (Some(0), &Json::from("equal")), "{variables:?}");
        assert_eq!(told(&report), [], "{variables:?}");
        let rows = report["actual"]["device_unavailable"].as_array().cloned().unwrap_or_default();
        let own = rows.iter().find(|row| row["what"] == "allocations in a run").expect("it is told");
        assert!(own["why"].as_str().is_some_and(|text| text.contains(why)), "{variables:?}: {own}");
    };
    for (call, what) in [
        ("cuptiGetVersion", "initialization"),
        ("cuptiActivityRegisterCallbacks", "initialization"),
        ("cuptiActivityEnable", "recording"),
        ("cuptiActivityDisable", "ending a recording"),
        ("cuptiActivityFlushAll", "flushing its records"),
        ("cuptiActivityGetNumDroppedRecords", "counting dropped records"),
    ] {
        let why = format!("CUPTI failed at {what}: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES");
        untold(&[("PRESTOW_MOCK_FAIL", &format!("{call}:1:35"))], &why);
    }
    // A record that cannot be read is not taken for the end of the list.
    let fault = [("PRESTOW_MOCK_ALLOCATE", "4096"), ("PRESTOW_MOCK_FAIL", "cuptiActivityGetNextRecord:2:35")];
    let (_, report) = report(&mocked, &fault);
    let rows = report["actual"]["device_unavailable"].to_string();
    assert!(told(&report).is_empty() && rows.contains("CUPTI failed at reading a record"), "{rows}");
    untold(&[("PRESTOW_MOCK_CUPTI_DROPPED", "3")], "CUPTI dropped 3 records");
    untold(&[("PRESTOW_MOCK_CUPTI_VERSION", "26")], "got interface 26");
    // A run that fails while it is recorded is a failure: the third launch, after the one at `open` and the counted
    // one.
    let out = measured(&mocked, &[], &[("PRESTOW_MOCK_FAIL", "cuGraphLaunch:3:719")]);
    assert!(out.status.code() == Some(2) && text(&out.stderr).contains("the GPU was lost"), "{}", text(&out.stderr));
    std::fs::remove_file(&library).expect("it was built");
    assert!(build_empty(&library));
    untold(&[], "must have the function `cuptiGetVersion`");
    std::fs::remove_file(&library).expect("it was built");
    if !crate::gpu::system_has_wheels(test) {
        untold(&[], "cannot find libcupti.so");
    }
}
