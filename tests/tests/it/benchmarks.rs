//! `prestow benchmark`, `experiment` and `im2rec` as processes.

use std::path::Path;
use std::process::{Command, Output};

use bench_suite::lines::{self, Values};
use data::{ImageRecord, RecordFile};
use serde_json::{Value, json};

use crate::executables::{folder, output_of, program, text};
use crate::support::root;

fn prestow(words: &[&str]) -> Output {
    output_of(Command::new(program("prestow")).args(words).current_dir(root()))
}

fn refused(words: &[&str]) -> String {
    let done = prestow(words);
    assert_eq!(done.status.code(), Some(2), "{words:?}: {}", text(&done.stdout));
    text(&done.stderr)
}

/// The values of a benchmark, and whether all rows ran.
fn benchmark(words: &[&str]) -> (Values, bool) {
    let done = prestow(&[&["benchmark"], words].concat());
    assert!(done.status.code().is_some_and(|code| code < 2), "{words:?}: {}", text(&done.stderr));
    let (values, malformed) = lines::parse(&text(&done.stdout));
    assert_eq!(malformed, 0);
    (values, done.status.success())
}

#[test]
fn benchmark_of_the_earlier_generation_prints_the_documented_lines() {
    let words = [
        "--model=lenet",
        "--forward_only=true",
        "--batch_size=4",
        "--num_batches=5",
        "--num_warmup_batches=2",
        "--num_gpus=1",
        "--device=cpu",
        "--kv_store=device",
        "--dtype=float32",
        "--data_dir=",
        "--preprocess_threads=4",
        "--prefetch_buffer=10",
    ];
    let (values, yes) = benchmark(&words);
    assert!(yes);
    let times: Vec<f64> =
        values["results.time_data"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
    let (mean, rate) = (values["results.time"].as_f64().unwrap(), values["results.throughput"].as_u64().unwrap());
    assert_eq!(times.len(), 5);
    assert!((mean - times.iter().sum::<f64>() / 5.0).abs() < 1e-9);
    assert_eq!(rate, (4.0 / (mean / 1e3)) as u64);
    assert!(values["exp.model_title"].is_string() && values["exp.framework_ver"].is_string());
    assert!(!values.contains_key("results.status"));
}

#[test]
fn names_that_only_networks_of_dlbs_have_need_no_prefix() {
    let (values, yes) = benchmark(&["--model=sensor_net", "--batch_size=2", "--num_batches=1"]);
    assert!(yes, "{values:?}");
    assert_eq!((&values["exp.model"], &values["exp.model_title"]), (&json!("sensor_net"), &json!("SensorNet")));
}

#[test]
fn sweep_has_no_times_of_an_earlier_row_after_a_failure() {
    let (values, yes) = benchmark(&["lenet", "--batch_size=1,64", "--num_batches=1", "--memory=1MiB"]);
    assert!(!yes);
    assert_eq!((&values["results.time"], &values["results.time_data"]), (&json!(-1), &json!([])));
    let (values, _) = benchmark(&["lenet", "--batch_size=64,1", "--num_batches=1", "--memory=1MiB"]);
    assert_eq!((&values["results.status"], &values["results.status_msg"]), (&json!("ok"), &json!("")));
    assert!(values["results.time"].is_number());
}

#[test]
fn damaged_images_are_errors_or_are_skipped_and_counted() {
    let folder = folder("benchmark-damaged");
    let mut bytes = std::fs::read(root().join("crates/data/tests/data/tiny.rec")).unwrap();
    // The first byte of the first image.
    bytes[32] = 0;
    let file = folder.join("one.rec");
    std::fs::write(&file, bytes).unwrap();
    let exe = crate::executables::compile(&folder, &["squeezenet1_1", "--batch", "1"]);
    let run = |policy: &str| {
        let data = format!("rec:{}{policy}", file.display());
        let words =
            ["benchmark", exe.to_str().unwrap(), "--num_batches", "3", "--num_warmup_batches", "0", "--data", &data];
        let done = prestow(&words);
        (done.status.success(), text(&done.stderr))
    };
    let reason = format!("record 0 of `{}`: not a PNG or JPEG image", file.display());
    let (is_done, said) = run("");
    assert!(!is_done && said.contains(&format!("failure: {reason}")), "{said}");
    let (is_done, said) = run(",damaged=skip");
    assert!(is_done && said.contains(&format!("cannot be read was replaced once; the first: {reason}")), "{said}");
}

#[test]
fn training_is_measured_in_whole_steps_on_synthetic_and_real_data() {
    let common = ["--model", "mnist_cnn", "--batch_size", "4", "--num_batches", "2"];
    let (values, yes) = benchmark(&[&common[..], &["--forward_only", "false", "--", "--optimizer", "sgd"]].concat());
    assert!(yes);
    assert_eq!((&values["exp.phase"], values["results.time_data"].as_array().unwrap().len()), (&json!("training"), 2));
    let digits = root().join("tests/data/mnist10k");
    let data = format!("idx:{},records=16", digits.display());
    let (values, yes) = benchmark(&[&common[..], &["--phase", "training", "--data", &data]].concat());
    assert!(yes, "{values:?}");
    let (values, _) = benchmark(&[&common[..], &["--phase", "training", "--memory", "1MiB"]].concat());
    assert!(values["results.status_msg"].as_str().unwrap().starts_with("does not fit: needs"), "{values:?}");
    let training = [&["benchmark"], &common[..], &["--phase", "training", "--scenario", "offline"]].concat();
    assert!(refused(&training).contains("training is measured in a plain loop"));
}

#[test]
fn rows_that_do_not_fit_are_failures_and_larger_ones_are_skipped() {
    let (values, _) = benchmark(&["lenet", "--batch_size", "8", "--num_batches", "1"]);
    let memory = values["results.planned_bytes"].to_string();
    let folder = folder("benchmark-memory");
    let results = folder.join("results.json");
    let words = [
        "benchmark",
        "--model",
        "lenet",
        "--batch_size",
        "8,64,128",
        "--phase",
        "inference",
        "--gpus",
        "",
        "--num_batches",
        "1",
        "--memory",
        &memory,
        "--json",
        results.to_str().unwrap(),
    ];
    let done = prestow(&words);
    assert_eq!(done.status.code(), Some(1));
    let reasons: Vec<Values> = text(&done.stdout).lines().map(|line| lines::parse(line).0).collect();
    let reasons: Vec<&str> =
        reasons.iter().filter_map(|values| values.get("results.status_msg").and_then(Value::as_str)).collect();
    assert!(reasons[0].starts_with("does not fit: needs "), "{reasons:?}");
    assert_eq!(reasons[1..], ["skipped: batch 64 does not fit"]);
    let rows = std::fs::read_to_string(results).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[0]["batch"], &rows[0]["schema"]), (1, &json!(8), &json!(1)));
    assert!(rows[0]["digest"].as_str().unwrap().len() == 16 && rows[0]["machine"]["processors"].is_u64());
}

#[test]
fn scenarios_cold_starts_and_data_sets_have_their_results() {
    let folder = folder("benchmark-scenarios");
    let exe = crate::executables::compile(&folder, &["lenet", "--batch", "2"]);
    let exe = exe.to_str().unwrap();
    let common = [exe, "--num_batches", "3", "--min-duration", "0.05", "--min-queries", "20"];
    let scenario = |words: &[&str]| benchmark(&[&common[..], words].concat()).0;
    let server = scenario(&["--scenario", "server", "--latency-bound", "1000", "--rate", "200", "--concurrency", "2"]);
    assert_eq!((&server["results.scenario"], &server["results.scenario_valid"]), (&json!("server"), &json!(true)));
    let raw = folder.join("raw.jsonl");
    let words = ["--scenario", "offline", "--cold", "2", "--against", exe, "--raw", raw.to_str().unwrap()];
    let offline = scenario(&words);
    assert!(0.0 < offline["results.scenario_throughput"].as_f64().unwrap());
    assert_eq!(offline["results.cold_data"].as_array().unwrap().len(), 2);
    assert!(offline["results.verdict"].is_string());
    assert_eq!(std::fs::read_to_string(&raw).unwrap().lines().count(), 3);
    assert!(folder.join("raw.query.jsonl").exists());
    scenario(&["--threads", "1,2", "--raw", raw.to_str().unwrap()]);
    let rows: Vec<Value> =
        std::fs::read_to_string(&raw).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let threads: Vec<u64> = rows.iter().filter_map(|row| row["threads"].as_u64()).collect();
    assert_eq!(threads, [1, 1, 1, 2, 2, 2], "the times of every row are in the file");
    for flags in [["--json", exe], ["--raw", exe]] {
        let error = refused(&[&["benchmark", exe, "--num_batches", "1"][..], &flags].concat());
        assert!(error.contains("it is an input"), "{error}");
    }
    let images = root().join("crates/data/tests/data/tiny-images-idx3-ubyte");
    let (values, yes) = benchmark(&[exe, "--num_batches", "4", "--data", &format!("idx:{}", images.display())]);
    assert!(yes && values["results.time"].is_number());
}

#[test]
fn contradicting_flags_are_refused() {
    for (words, reason) in [
        (&["--model", "lenet", "--num_gpus", "2"][..], "one device"),
        (&["--model", "lenet", "--gpus", "0,1"], "one device"),
        (&["--model", "lenet", "--scenario", "server"], "--latency-bound"),
        (&["--model", "lenet", "--model_opts", "{\"layers\": 3}"], "--model_opts"),
        (&["--model", "lenet", "--dtype", "float13"], "--dtype takes"),
        (&["--model", "lenet", "--framework", "caffe2"], "--framework takes"),
        (&["--model", "lenet", "--batch_size", "0"], "0 is not in"),
    ] {
        let error = refused(&[&["benchmark"], words].concat());
        assert!(error.contains(reason), "{words:?}: {error}");
    }
    let (values, yes) = benchmark(&["--model", "no_such_network", "--batch_size", "1"]);
    assert!(!yes && values["results.status_msg"].as_str().unwrap().contains("no_such_network"));
}

#[test]
fn experiment_runs_resumes_and_reports() {
    let folder = folder("experiment");
    let file = folder.join("grid.toml");
    let grid = "[parameters]\n\"exp.model\" = \"lenet\"\n\"exp.num_batches\" = 2\n[variables]\n\"exp.replica_batch\" = [1, 2]\n";
    std::fs::write(&file, grid).unwrap();
    let (file, out) = (file.to_str().unwrap(), folder.join("runs"));
    let out = out.to_str().unwrap();
    let experiment = |words: &[&str]| {
        let done = prestow(&[&["experiment"], words].concat());
        assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    assert_eq!(experiment(&["validate", file, "-V", "exp.threads=[1,2]"]), "valid: 4 cells\n");
    assert!(experiment(&["plan", file]).contains("benchmark --model lenet --phase inference --batch_size 2"));
    assert!(experiment(&["run", file, "-o", out]).starts_with("2 cells: 2 done, 0 failed, 0 kept"));
    assert!(experiment(&["run", file, "-o", out, "--resume"]).starts_with("2 cells: 0 done, 0 failed, 2 kept"));
    assert!(refused(&["experiment", "run", file, "-o", out]).contains("add --resume"));
    let results = format!("{out}/results.jsonl");
    let before = std::fs::read(&results).unwrap();
    assert!(refused(&["experiment", "report", &results, "-o", &results]).contains("it is an input"));
    assert_eq!(std::fs::read(&results).unwrap(), before);
    let page = folder.join("report.html");
    experiment(&["report", &results, "--kind", "all", "--format", "html", "-o", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("lenet") && !page.contains("src="));
    let parsed = folder.join("parsed.jsonl");
    // Links that lead back are not followed.
    for name in ["a", "b"] {
        std::os::unix::fs::symlink(".", Path::new(out).join("logs").join(name)).unwrap();
    }
    experiment(&["parse", &format!("{out}/logs"), "-o", parsed.to_str().unwrap()]);
    let table = experiment(&["report", parsed.to_str().unwrap(), "--format", "csv"]);
    assert!(table.starts_with("exp.model,1,2\nlenet,"), "{table}");
    assert!(experiment(&["params", "container"]).contains("exp.launcher"));
    assert!(refused(&["experiment", "validate", file, "-P", "exp.modle=a"]).contains("the nearest are exp.model"));
    for flag in ["--rows", "--columns", "--value"] {
        let error = refused(&["experiment", "report", parsed.to_str().unwrap(), flag, "exp.modle"]);
        assert!(error.contains("no result has the key `exp.modle`; the nearest are exp.model"), "{error}");
    }
}

#[test]
fn numbers_of_scenarios_that_no_run_can_have_are_refused() {
    let scenario = ["benchmark", "lenet", "--scenario", "server", "--latency-bound=1"];
    for flag in ["--rate", "--latency-bound", "--min-duration"] {
        for number in ["nan", "inf", "-1", "1e300", "x"] {
            let given = format!("{flag}={number}");
            let error = refused(&[&scenario[..4], &[&given[..], "--num_batches=1"]].concat());
            assert!(error.contains("expected a number from"), "{flag}={number}: {error}");
        }
    }
    // The arrivals of a week.
    let words = [&scenario[..], &["--rate=1e6", "--min-duration=604800", "--num_batches=1"]].concat();
    let (values, yes) = benchmark(&words[1..]);
    let reason = values["results.status_msg"].as_str().unwrap();
    assert!(!yes && reason.contains("lower the rate, the shortest duration"), "{reason}");
}

#[test]
fn container_without_its_program_is_a_failed_cell() {
    let folder = folder("benchmark-container");
    let file = folder.join("grid.toml");
    std::fs::write(&file, "[parameters]\n\"exp.model\" = \"lenet\"\n\"exp.launcher\" = \"podman\"\n").unwrap();
    let mut command = Command::new(program("prestow"));
    command.args(["experiment", "run", "--container", "image", "-o"]).arg(folder.join("runs")).arg(&file);
    let done = output_of(command.env("PATH", &folder));
    assert_eq!(done.status.code(), Some(1));
    let words = text(&done.stderr);
    assert!(words.contains("cannot start `podman`: ") && words.contains("install it, or set exp.launcher"), "{words}");
}

/// The images of a RecordIO file of MXNet, as files in folders of their labels.
fn unpack(folder: &Path) -> Vec<Vec<u8>> {
    let records = RecordFile::open(&root().join("crates/data/tests/data/tiny.rec")).unwrap();
    let records: Vec<Vec<u8>> = (0..records.records()).map(|ix| records.read(ix).unwrap()).collect();
    for record in &records {
        let record = ImageRecord::parse(record).unwrap();
        let class = folder.join(format!("images/class{}", record.labels[0]));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join("0.jpg"), record.image).unwrap();
    }
    records
}

#[test]
fn im2rec_makes_the_records_of_mxnet() {
    let folder = folder("im2rec");
    let mut records = unpack(&folder);
    let images = folder.join("images");
    let (prefix, images) = (folder.join("tiny"), images.to_str().unwrap());
    let prefix = prefix.to_str().unwrap();
    let im2rec = |words: &[&str]| {
        let done = prestow(&[&["im2rec", prefix, images], words].concat());
        assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
        (text(&done.stdout), std::fs::read(folder.join("tiny.rec")).unwrap_or_default())
    };
    im2rec(&["--list", "--recursive", "--no-shuffle"]);
    let list = std::fs::read_to_string(folder.join("tiny.lst")).unwrap();
    assert_eq!(list.lines().next(), Some("0\t0.000000\tclass0/0.jpg"));
    // The fixture has the order of a shuffled list.
    records.reverse();
    let (_, bytes) = im2rec(&["--pass-through"]);
    let mut writer = data::RecordWriter::new(Vec::new());
    records.iter().for_each(|record| _ = writer.write(record).unwrap());
    assert_eq!(bytes, writer.into_inner());
    let one = im2rec(&["--resize", "24", "--quality", "90"]).1;
    assert_eq!(im2rec(&["--resize", "24", "--quality", "90", "--num-thread", "3"]).1, one);
    let small = RecordFile::open(&folder.join("tiny.rec")).unwrap();
    let image = data::image::decode(ImageRecord::parse(&small.read(0).unwrap()).unwrap().image).unwrap();
    assert_eq!(image.width.min(image.height), 24);
    for side in ["100000", "4294967296", "18446744073709551615"] {
        let error = refused(&["im2rec", prefix, images, "--resize", side, "--strict"]);
        assert!(error.contains("makes more than 67108864 pixels"), "{error}");
    }

    std::fs::write(folder.join("images/class1/0.jpg"), b"\xff\xd8 damaged").unwrap();
    assert!(im2rec(&[]).0.contains("skipped 1 images that cannot be read; the first: "));
    assert!(refused(&["im2rec", prefix, images, "--strict"]).contains("class1/0.jpg"));
    // Devices without an end, and FIFOs without a writer, are no images.
    let fifo = Command::new("mkfifo").arg(folder.join("images/fifo.jpg")).status();
    assert!(fifo.is_ok_and(|status| status.success()), "mkfifo makes a FIFO");
    std::fs::write(folder.join("tiny.lst"), "0\t0\tclass0/0.jpg\n1\t1\tfifo.jpg\n2\t1\t/dev/zero\n").unwrap();
    let special = im2rec(&[]).0;
    assert!(
        special.contains("1 records\nskipped 2 images") && special.contains("it is not a regular file"),
        "{special}"
    );
    std::fs::remove_file(folder.join("images/fifo.jpg")).unwrap();
    std::fs::write(folder.join("tiny.lst"), "0\t1\t2\tx.jpg\n").unwrap();
    assert!(refused(&["im2rec", prefix, images]).contains("--pack-label takes several"));
    im2rec(&["--list", "--recursive", "--train-ratio", "0.34", "--test-ratio", "0.34"]);
    assert!(folder.join("tiny_train.lst").exists() && folder.join("tiny_val.lst").exists());
}
