//! Other programs open the exports: Python's json and pickle, PyTorch's own viewer, protoc.

use std::io::Write;
use std::process::{Command, Stdio};

use prestow_report::Report;

use crate::plans::{folder, random, run, skip, small};

/// Runs a Python script on files; `None` if the test is skipped because Python is missing.
fn python(test: &str, script: &str, files: &[&str]) -> Option<String> {
    let mut words = vec!["-c", script];
    words.extend(files);
    let output = run(test, "python3", &words)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

#[test]
fn python_reads_the_same_from_json_and_pickle() {
    let test = "report::python_reads_the_same_from_json_and_pickle";
    let folder = folder("pickle");
    // More events than a pickle appends at once.
    let report = Report::new(&random(5, 400, 1500));
    let (json, pickle) = (folder.join("s.json"), folder.join("s.pickle"));
    std::fs::write(&json, report.snapshot_json()).expect("writable");
    std::fs::write(&pickle, report.snapshot_pickle()).expect("writable");
    let script = "import json, pickle, sys\n\
        a = json.load(open(sys.argv[1])); b = pickle.load(open(sys.argv[2], 'rb'))\n\
        assert a == b\n\
        assert open(sys.argv[2], 'rb').read(2) == b'\\x80\\x02'\n\
        print(sum(s['total_size'] for s in b['segments']))";
    let files = [json.to_str().expect("UTF-8"), pickle.to_str().expect("UTF-8")];
    let Some(total) = python(test, script, &files) else { return };
    assert_eq!(total, report.planned_bytes().to_string());
}

#[test]
fn python_reads_the_tables() {
    let test = "report::python_reads_the_tables";
    let folder = folder("tables");
    let report = Report::new(&small());
    let (five, two, tbd) = (folder.join("five.csv"), folder.join("two.csv"), folder.join("x_ANALYSIS"));
    std::fs::write(&five, report.mxnet_csv()).expect("writable");
    std::fs::write(&two, report.two_column_csv()).expect("writable");
    std::fs::write(&tbd, report.tbd_analysis()).expect("writable");
    let script = "import csv, json, sys\n\
        five = list(csv.DictReader(open(sys.argv[1])))\n\
        two = [(tag, float(mib)) for tag, mib in csv.reader(open(sys.argv[2]))]\n\
        tbd = json.load(open(sys.argv[3]))\n\
        print(sum(int(r['Actual Size']) for r in five), int(sum(m for _, m in two) * 2**20),\
         int(sum(v[0] for v in tbd.values())), {r['Device'] for r in five}, {r['Reuse?'] for r in five} <= {'0', '1'})";
    let files = [&five, &two, &tbd].map(|path| path.to_str().expect("UTF-8"));
    let Some(said) = python(test, script, &files) else { return };
    assert_eq!(said, "1232 1232 1232 {'0'} True");
}

#[test]
fn pytorch_opens_the_snapshot() {
    let test = "report::pytorch_opens_the_snapshot";
    let Some(found) = python(test, "import importlib.util as u; print(u.find_spec('torch') is not None)", &[]) else {
        return;
    };
    if found != "True" {
        skip(test, "Python has no `torch`");
        return;
    }
    let path = folder("torch").join("s.pickle");
    let report = Report::new(&small());
    std::fs::write(&path, report.snapshot_pickle()).expect("writable");
    // The pages, the list of events, and the lines from which PyTorch draws its flame graphs.
    let script = "import pickle, sys\n\
        from torch.cuda import _memory_viz as viz\n\
        snapshot = pickle.load(open(sys.argv[1], 'rb'))\n\
        assert len(viz.trace_plot(snapshot)) > 1000 and len(viz.segment_plot(snapshot)) > 1000\n\
        events = snapshot['device_traces'][0]\n\
        assert f'{len(events)} entries' in viz.trace(snapshot)\n\
        assert 'segments: 2' in viz.segsum(snapshot)\n\
        lines = viz.memory(snapshot, lambda lines: lines).splitlines()\n\
        assert any('block1/conv1:activation' in line for line in lines)\n\
        print(sum(int(line.rsplit(' ', 1)[1]) for line in lines if line))";
    let said = python(test, script, &[path.to_str().expect("UTF-8")]);
    assert_eq!(said, Some(report.planned_bytes().to_string()));
}

#[test]
fn protoc_reads_the_pprof_profile() {
    let test = "report::protoc_reads_the_pprof_profile";
    let mut profile = Vec::new();
    let bytes = Report::new(&small()).pprof();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut profile).expect("gzip");
    let child = Command::new("protoc").arg("--decode_raw").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        skip(test, "`protoc` is not installed");
        return;
    };
    child.stdin.take().expect("it was piped").write_all(&profile).expect("protoc reads");
    let output = child.wait_with_output().expect("protoc ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("6: \"block1/conv1\"") && text.contains("6: \"byte-steps\""),
        "{text}"
    );
}
