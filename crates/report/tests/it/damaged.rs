//! Damaged files give an error that names the line or the field, and never a panic.

use prestow_report::{Flame, Measure, Page, Report, View, ViewOptions, import, read};
use types::Random;

use crate::plans::{random, small, small_measured};

/// Calls every function that uses a report.
fn use_all(report: &Report) {
    let options = ViewOptions::default();
    View::ALL.iter().for_each(|view| {
        report.text(*view, &options);
        report.svg(*view, &options);
    });
    Flame::new(report, Measure::ByteSteps);
    report.entries(&options);
    let texts = [report.mxnet_csv(), report.two_column_csv(), report.tbd_analysis(), report.trace_json(None)];
    let others = [report.snapshot_pickle(), report.pprof(), Page::new(report, &options).html().into_bytes()];
    assert!(!texts.is_empty() && others.iter().all(|bytes| !bytes.is_empty()));
    report.to_json();
}

#[test]
fn damaged_profiles_of_others_are_refused_or_harmless() {
    let whole = small_measured();
    let texts = [
        whole.mxnet_csv(),
        whole.two_column_csv(),
        "[mem] Allocate 99 bytes GPU memory (in_arg:w).\n[mem] Release GPU memory.\n".repeat(3),
    ];
    let mut random = Random::new(3);
    for text in texts {
        for _ in 0..400 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes.truncate(at.max(1)),
                    1 => bytes[at] = random.bits() as u8,
                    2 => bytes.insert(at, b'9'),
                    _ => bytes.splice(at..at, *b"99999999999999999999").for_each(drop),
                }
            }
            if let Ok(report) = import("damaged", &bytes) {
                use_all(&report);
            }
        }
    }
}

#[test]
fn unknown_profile_is_refused_with_the_supported_formats() {
    for (bytes, says) in [
        (&b""[..], "neither"),
        (b"\xff\xfe\x00", "neither"),
        (b"hello, world", "neither"),
        (b"tag,1\nother,x\n", "line 2"),
        (b"tag,-1\n", "line 1"),
        (b"tag,1e300\n", "line 1"),
        (b"tag,8e12\nother,8e12\n", "2^63"),
        (b"Attribute Name,Requested Size,Device,Actual Size,Reuse?\n", "no allocation"),
        (b"\"Attribute Name\",\"Requested Size\",\"Device\",\"Actual Size\",\"Reuse?\"\na,1,0\n", "line 2: 3 columns"),
        (b"\"Attribute Name\",\"Requested Size\",\"Device\",\"Actual Size\",\"Reuse?\"\n\"a,1,0,1,0\n", "quote"),
        (b"[mem] Allocate 99999999999999999999 bytes GPU memory (x).", "line 1"),
    ] {
        let error = import("x", bytes).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn damaged_reports_are_refused_or_harmless() {
    let plans = [small(), random(4, 9, 20)];
    let texts: Vec<String> =
        plans.iter().map(|plan| Report::new(plan).to_json()).chain([small_measured().to_json()]).collect();
    let mut random = Random::new(11);
    let (mut refused, mut tried) = (0, 0);
    for text in &texts {
        for _ in 0..700 {
            let mut bytes = text.clone().into_bytes();
            let at = random.below(bytes.len() as u64) as usize;
            // Changed digits keep the JSON valid but make the report's numbers false.
            match (bytes[at].is_ascii_digit(), random.below(3)) {
                (true, 0) => bytes.splice(at..at, *b"99999999").for_each(drop),
                (true, _) => bytes[at] = b'0' + random.below(10) as u8,
                (false, 0) => bytes.truncate(at),
                (false, _) => bytes[at] = random.bits() as u8,
            }
            tried += 1;
            match read(&bytes) {
                Ok(report) => use_all(&report),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
    }
    assert!(tried / 4 < refused, "{refused} of {tried}");
}

#[test]
fn rows_that_contradict_themselves_are_refused() {
    let text = Report::new(&small()).to_json();
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    read(text.as_bytes()).expect("it is not damaged");
    for (list, field, value) in [
        ("alive_at_peak", "padded_bytes", 0u64),
        ("alive_at_peak", "bytes", u64::MAX),
        ("alive_at_peak", "buffer", 1 << 30),
        ("constants", "bytes", u64::MAX),
        ("constants", "own_bytes", u64::MAX),
        ("buffers", "padded_bytes", 0),
    ] {
        let mut damaged = report.clone();
        damaged["planned"][list][0][field] = value.into();
        let error = read(damaged.to_string().as_bytes()).expect_err(field).to_string();
        assert!(error.contains("contradict") || error.contains("buffer") || error.contains("constant"), "{error}");
    }
}

#[test]
fn other_json_and_other_versions_are_told_apart() {
    let says = |text: &str| read(text.as_bytes()).expect_err(text).to_string();
    assert!(says("{}").contains("--json"));
    assert!(says("[1").contains("not a memory report"));
    let newer = Report::new(&small()).to_json().replace("\"version\":2", "\"version\":7");
    assert!(says(&newer).contains("version 7"), "{}", says(&newer));
}
