//! A whole session of `prestow-gpu-check` on the mocks, as on a machine that is rented for a short time: operators, networks and
//! a training step in one report, stopped by a limit of time and resumed until nothing remains.

use std::path::Path;

use serde_json::Value as Json;

use super::operators::tools;
use super::*;

/// Exit code, text, and the report.
struct Said {
    code: Option<i32>,
    text: String,
    report: Json,
}

impl Said {
    fn rows(&self, part: &str) -> &[Json] {
        self.report[part].as_array().map_or(&[], Vec::as_slice)
    }

    fn verdicts(&self, part: &str) -> Vec<&str> {
        self.rows(part).iter().map(|row| row["verdict"].as_str().unwrap_or("none")).collect()
    }

    fn remaining(&self) -> u64 {
        self.report["remaining"].as_u64().expect("it is counted")
    }
}

fn check(mocks: &Path, words: &[&str], variables: &[(&str, &str)]) -> Said {
    let file = mocks.join("report.json");
    let mut command = without_libraries(&program("prestow-gpu-check"));
    command.args(words).args(["--iters", "1", "--data"]).arg(mocks.join("nothing")).arg("-o").arg(&file);
    command.env("PATH", crate::environment("PATH").unwrap_or_default());
    command.env("LD_LIBRARY_PATH", mocks).env("PRESTOW_CUDA_LIBS", mocks);
    // Without probes of peaks, which would run for minutes on a processor.
    command.env("PRESTOW_MOCK_NVRTC_REPLACE", "peak_=>probe_");
    command.env("PRESTOW_MOCK_NVRTC_SHIM", cuda_mock::headers()).envs(variables.iter().copied());
    let out = command.output().expect("it is built");
    let report = std::fs::read(&file).map_or(Json::Null, |bytes| serde_json::from_slice(&bytes).expect("it is JSON"));
    let text = text(&out.stdout) + &text(&out.stderr);
    assert!(!text.contains("panicked"), "{text}");
    Said { code: out.status.code(), text, report }
}

const SESSION: [&str; 13] = [
    "lenet",
    "mnist_cnn",
    "--train",
    "--batch",
    "2",
    "--only",
    "hard_swish",
    "--only",
    "softmax of rows [3, 257]",
    "--dtype",
    "f16,f32",
    "--peers",
    "none",
];

#[test]
fn a_session_stops_resumes_and_ends() {
    let test = "gpu::session::a_session_stops_resumes_and_ends";
    let Some(mocks) = tools(test, "gpu-session") else { return };
    let with = |more: &[&'static str]| [&SESSION[..], more].concat();

    // A limit that is over at once: every row remains, and nothing ran.
    let stopped = check(&mocks, &with(&["--minutes", "0.0000001"]), &[]);
    assert_eq!(stopped.code, Some(0), "{}", stopped.text);
    assert!(stopped.text.contains("stopped by --minutes") && stopped.text.contains("--resume"), "{}", stopped.text);
    let all = stopped.remaining();
    assert!(["operators", "networks", "training"].iter().all(|part| stopped.rows(part).is_empty()), "{}", stopped.text);

    // Longer and longer limits until no row remains. Each run keeps the rows of the runs before it.
    let mut before: Vec<usize> = vec![0; 3];
    let mut ended = None;
    for seconds in [4.0, 8.0, 16.0, 32.0, 600.0] {
        let minutes = format!("{}", seconds / 60.0);
        let words: Vec<&str> = SESSION.iter().copied().chain(["--resume", "--minutes", &minutes]).collect();
        let said = check(&mocks, &words, &[]);
        assert_eq!(said.code, Some(0), "{}", said.text);
        let now: Vec<usize> = ["operators", "networks", "training"].map(|part| said.rows(part).len()).into();
        assert!(before.iter().zip(&now).all(|(before, now)| before <= now), "{before:?}, then {now:?}");
        // Networks come first within a limit, operators before training steps.
        assert!(now[0] == 0 || now[1] == 4, "{now:?}: {}", said.text);
        before = now;
        if said.remaining() == 0 {
            ended = Some(said);
            break;
        }
    }
    let ended = ended.expect("ten minutes are enough");
    assert_eq!(ended.verdicts("networks"), ["equal"; 4], "{}", ended.text);
    assert_eq!(ended.verdicts("training"), ["equal"; 2], "{}", ended.text);
    assert!(ended.verdicts("operators").iter().all(|verdict| *verdict == "equal"), "{}", ended.text);
    let cases = ended.rows("operators_summary").iter().map(|sum| sum["cases"].as_u64().unwrap_or(0)).sum::<u64>();
    assert!(4 <= cases && cases as usize == ended.rows("operators").len(), "{}", ended.text);
    // All rows remained at first: one for each network, batch and precision; one for each training step; cases of operators.
    assert!(4 + 2 < all, "{all}");

    // Nothing remains: nothing is compiled for a row, and the report keeps every row.
    let again = check(&mocks, &with(&["--resume"]), &[("PRESTOW_MOCK_FAIL", "cuModuleLoadData:1:999")]);
    assert_eq!(again.code, Some(0), "{}", again.text);
    for part in ["operators", "networks", "training"] {
        assert_eq!(again.report[part], ended.report[part], "{part}");
    }
}

/// Rows that failed are made again, and a fault in one part does not hide the others.
#[test]
fn a_failed_row_is_made_again() {
    let test = "gpu::session::a_failed_row_is_made_again";
    let Some(mocks) = tools(test, "gpu-session-failed") else { return };
    let words =
        ["lenet", "--only", "hard_swish", "--dtype", "f32", "--batch", "2", "--peers", "none", "--minutes", "30"];
    let failed = check(&mocks, &words, &[("PRESTOW_MOCK_FAIL", "cuGraphLaunch:1:999")]);
    assert_eq!((failed.code, failed.verdicts("networks")), (Some(1), vec!["FAILED"]), "{}", failed.text);
    assert_eq!(failed.verdicts("operators"), ["equal"], "{}", failed.text);
    let again = check(&mocks, &[&words[..], &["--resume"]].concat(), &[]);
    assert_eq!((again.code, again.verdicts("networks")), (Some(0), vec!["equal"]), "{}", again.text);
}

/// Audits and baselines can be left out, which the rows state.
#[test]
fn audits_and_baselines_can_be_left_out() {
    let test = "gpu::session::audits_and_baselines_can_be_left_out";
    let Some(mocks) = tools(test, "gpu-session-short") else { return };
    let words = [
        "lenet",
        "--train",
        "--only",
        "hard_swish",
        "--dtype",
        "f32",
        "--batch",
        "1",
        "--baselines",
        "none",
        "--no-audit",
    ];
    let said = check(&mocks, &words, &[]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    for part in ["operators", "networks", "training"] {
        assert_eq!(said.verdicts(part), ["right"], "{part}: {}", said.text);
    }
    assert_eq!(said.rows("networks")[0]["not_audited"], "--no-audit");
    assert_eq!(said.rows("networks")[0]["baselines"], serde_json::json!([]));
    assert!(said.text.contains("memory not audited: --no-audit") && !said.text.contains("baseline "), "{}", said.text);
}
