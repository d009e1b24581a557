//! Logs and results as the scripts of the Deep Learning Benchmarking Suite (DLBS) read them.
//!
//! [`DlbsLog`] restates the rules of its `logparser.py`, `bench_data.py` and `summary_builder.py`, and shares no code with
//! `bench_suite::lines`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::executables::{folder, output_of, program, text};
use crate::support::root;

/// The values of one benchmark as DLBS reads them.
struct DlbsLog(BTreeMap<String, Value>);

impl DlbsLog {
    /// The rules of a line: blanks or tabs; `__`; a name of at least one character, which ends at the first `__` that blanks or
    /// tabs and `=` follow; the rest of the line, which is not empty. Other lines are ignored. Values must be JSON, or the
    /// file is refused; the last value of a name counts.
    fn read(log: &str) -> DlbsLog {
        let mut values = BTreeMap::new();
        for line in log.split('\n') {
            let Some(rest) = line.trim_start_matches([' ', '\t']).strip_prefix("__") else { continue };
            let end = (1..rest.len()).filter(|&at| rest.is_char_boundary(at)).find_map(|at| {
                let behind = rest[at..].strip_prefix("__")?.trim_start_matches([' ', '\t']).strip_prefix('=')?;
                Some((&rest[..at], behind)).filter(|_| !behind.is_empty())
            });
            let Some((name, value)) = end else { continue };
            let value = match value.trim() {
                "" => Value::Null,
                value => serde_json::from_str(value).unwrap_or_else(|error| panic!("DLBS refuses `{line}`: {error}")),
            };
            values.insert(name.trim().to_string(), value);
        }
        DlbsLog(values)
    }

    /// The state by both of its rules, which must agree: a positive throughput, a positive time.
    fn is_ok(&self) -> bool {
        let positive = |key: &str| self.0.get(key).and_then(Value::as_f64).is_some_and(|number| 0.0 < number);
        let (time, throughput) = (positive("results.time"), positive("results.throughput"));
        assert_eq!(time, throughput, "{:?}", self.0);
        time
    }

    /// Its reports index these keys without a check, or sort their values, which needs one type in all benchmarks.
    fn check_keys_of_reports(&self) {
        for text in [
            "exp.model",
            "exp.model_title",
            "exp.device_type",
            "exp.gpus",
            "exp.dtype",
            "exp.phase",
            "exp.framework_title",
        ] {
            assert!(self.0.get(text).is_some_and(Value::is_string), "{text}: {:?}", self.0);
        }
        for count in ["exp.replica_batch", "exp.effective_batch", "exp.num_gpus"] {
            assert!(self.0.get(count).is_some_and(Value::is_u64), "{count}: {:?}", self.0);
        }
    }
}

fn prestow(words: &[&str]) -> String {
    let done = output_of(Command::new(program("prestow")).args(words).current_dir(root()));
    assert!(done.status.code().is_some_and(|code| code < 2), "{words:?}: {}", text(&done.stderr));
    text(&done.stdout)
}

/// A launcher keeps both streams as the log.
fn benchmark(words: &[&str]) -> DlbsLog {
    let command = Command::new(program("prestow")).arg("benchmark").args(words).current_dir(root()).output().unwrap();
    DlbsLog::read(&(text(&command.stderr) + &text(&command.stdout)))
}

#[test]
fn logs_of_benchmarks_are_read_by_dlbs() {
    let earlier =
        ["--model=lenet", "--forward_only=true", "--batch_size=2", "--num_batches=3", "--num_gpus=1", "--device=cpu"];
    let later =
        ["--model=mnist_cnn", "--phase=training", "--batch_size=2", "--num_batches=3", "--gpus=", "--model_opts={}"];
    for words in [&earlier[..], &later] {
        let log = benchmark(words);
        assert!(log.is_ok(), "{:?}", log.0);
        log.check_keys_of_reports();
        assert_eq!(log.0["results.time_data"].as_array().unwrap().len(), 3);
    }
    assert_eq!(benchmark(&later).0["exp.phase"], json!("training"));
    for (words, reason) in [
        (&["lenet", "--batch_size=8", "--memory=4KiB"][..], "does not fit: needs"),
        (&["nowhere.onnx", "--batch_size=8"], "nowhere.onnx"),
        // The first row has times, which the second must not have.
        (&["lenet", "--batch_size=1,64", "--num_batches=1", "--memory=1MiB"], "does not fit: needs"),
    ] {
        let log = benchmark(words);
        assert!(!log.is_ok(), "{words:?}: {:?}", log.0);
        log.check_keys_of_reports();
        assert_eq!(log.0["results.status"], json!("failure"));
        let why = log.0["results.status_msg"].as_str().unwrap();
        assert!(why.contains(reason), "{words:?}: {why}");
    }
}

/// The files of a folder with an ending.
fn files_of(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
}

#[test]
fn logs_and_results_of_experiments_are_read_by_dlbs() {
    let folder = folder("dlbs");
    let grid = "[parameters]\n\"exp.model\" = \"lenet\"\n\"exp.num_batches\" = 2\n\"exp.memory\" = \"1MiB\"\n\
                \"user.größe\" = \"ä \\\" \\\\ __x__=1 \\n\"\n\"monitor.frequency\" = 100\n\
                [variables]\n\"exp.replica_batch\" = [1, 2, 64, 128]\n";
    let file = folder.join("grid.toml");
    std::fs::write(&file, grid).unwrap();
    let (file, runs) = (file.to_str().unwrap(), folder.join("runs"));
    let said = prestow(&["experiment", "run", file, "-o", runs.to_str().unwrap()]);
    assert!(said.starts_with("4 cells: 2 done, 2 failed"), "{said}");
    let logs = files_of(&runs.join("logs"), ".log");
    let read = |path: &PathBuf| DlbsLog::read(&std::fs::read_to_string(path).unwrap());
    let logs: Vec<DlbsLog> = logs.iter().map(read).collect();
    logs.iter().for_each(DlbsLog::check_keys_of_reports);
    assert_eq!((logs.len(), logs.iter().filter(|log| log.is_ok()).count()), (4, 2), "a skipped cell has a log too");
    assert!(logs.iter().all(|log| log.0["user.größe"] == json!("ä \" \\ __x__=1 \n")));
    // Its files of results, from our results and from our logs.
    let results = runs.join("results.jsonl").display().to_string();
    let by_id = |log: &DlbsLog| (log.0["exp.id"].to_string(), log.0.clone());
    let wanted: BTreeMap<_, _> = logs.iter().map(by_id).collect();
    for input in [&results, &runs.join("logs").display().to_string()] {
        for name in ["all.json", "all.json.gz"] {
            let output = folder.join(name);
            prestow(&["experiment", "parse", input, "-o", output.to_str().unwrap()]);
            let mut bytes = std::fs::read(&output).unwrap();
            if name.ends_with(".gz") {
                let packed = std::mem::take(&mut bytes);
                GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
            }
            let mut found: Value = serde_json::from_slice(&bytes).unwrap();
            let found: Vec<BTreeMap<String, Value>> = serde_json::from_value(found["data"].take()).unwrap();
            assert_eq!(found.into_iter().map(|own| by_id(&DlbsLog(own))).collect::<BTreeMap<_, _>>(), wanted);
            // And back.
            let table = prestow(&["experiment", "report", output.to_str().unwrap(), "--format", "csv"]);
            assert!(table.starts_with("exp.model,1,2,64,128\nlenet,"), "{table}");
        }
    }
}

/// A log of DLBS's MXNet back end: the launcher's text, parameters, and the monitor's series.
const THEIRS: &str = r#"
--------------------------
Variables from python script.
--------------------------
__exp.framework__="mxnet"
__exp.framework_title__="MXNet"
__exp.model__="resnet50"
__exp.model_title__=""
__exp.phase__="training"
__exp.gpus__="0,1"
__exp.num_gpus__=2
__exp.device_type__="gpu"
__exp.replica_batch__=16
__exp.effective_batch__=32
__exp.docker__=true
__exp.env__=null
__results.start_time__= "2018-11-26:15:04:30:123"
INFO:root:Epoch[0] Batch [10]
__mxnet.version__="1.3.0"
__results.time__=1029.5
__results.throughput__=31
__exp.model_title__="ResNet50"
__results.time_data__=[1028.0, 1031.0]
__results.proc_pid__= 4711
__results.use.time__=["2018-11-26:15:04:31:000", "2018-11-26:15:04:32:000"]
__results.use.cpu__=[100.0, 50.0]
__results.use.mem_res__=[2048.0, 4096.0]
__results.use.power__=[-1.0, -1.0]
__results.use.gpus__=[[100.0, 120.0], [101.0, 119.0]]
"#;

#[test]
fn logs_of_dlbs_have_every_report() {
    let folder = folder("dlbs-logs");
    std::fs::write(folder.join("two.log"), THEIRS).unwrap();
    let one = THEIRS.replace("\"0,1\"", "\"0\"").replace("gpus__=2", "gpus__=1").replace("1029.5", "913");
    let one = one.replace("effective_batch__=32", "effective_batch__=16").replace("throughput__=31", "throughput__=17");
    std::fs::create_dir_all(folder.join("deeper")).unwrap();
    std::fs::write(folder.join("deeper/one.log"), one).unwrap();
    let lost = ["results.time__", "results.throughput__", "results.time_data__"];
    let failed = THEIRS.lines().filter(|line| !lost.iter().any(|key| line.contains(key)));
    let failed = failed.map(|line| format!("{line}\n")).collect::<String>().replace("\"resnet50\"", "\"vgg16\"");
    std::fs::write(folder.join("failed.log"), failed + "__exp.status__=\"failure\"\n__results.bad__=nan()\n").unwrap();
    let parsed = folder.join("parsed.json.gz");
    prestow(&["experiment", "parse", folder.to_str().unwrap(), "-o", parsed.to_str().unwrap()]);
    let report = |words: &[&str]| prestow(&[&["experiment", "report", parsed.to_str().unwrap()], words].concat());
    let weak = report(&["--kind", "weak", "--format", "csv"]);
    assert!(weak.contains("\"resnet50, batch 16 each\",2,1029.50,31.08,1.77,88.68\n"), "{weak}");
    let all = report(&["--kind", "all"]);
    for title in
        ["summary", "results.time by exp.model", "weak scaling over exp.num_gpus", "memory", "resources over time"]
    {
        assert!(all.contains(title), "{title}: {all}");
    }
    let summary = report(&["--kind", "summary", "--format", "csv"]);
    assert!(summary.contains("\nsuccessful,2,\nfailed,1,\n"), "{summary}");
    let selected = report(&["--format", "csv", "--select", r#"{"exp.model": "res.*", "exp.num_gpus": [2, 4]}"#]);
    assert!(selected.ends_with("\nresnet50,1029.500\n"), "{selected}");
    let of_two = report(&["--format", "csv", "--filter", "exp.num_gpus=2", "--rows", "exp.model,exp.phase"]);
    assert!(of_two.contains("\n\"resnet50, training\",1029.500\n"), "{of_two}");
    let renamed = report(&["--format", "csv", "--filter", "exp.model=vgg16", "--update", "exp.model=vgg"]);
    assert!(renamed.contains("\nvgg,"), "{renamed}");
}
