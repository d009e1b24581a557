//! Experiments: plans, runs that are killed and resumed, failures, reports.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use prestow_bench_suite::experiment::{
    CellOutcome, Config, Journal, Rerun, RunReport, Runner, Scaling, TableSelection, comparison, exploration,
    memory_table, scaling, scaling_parameter, summary, timelines,
};
use prestow_bench_suite::{GpuMeter, GpuSample, lines};
use serde_json::{Value, json};

use crate::Folder;

fn run(folder: &Path, text: &str, rerun: Rerun) -> RunReport {
    let cells = Config::parse(text).unwrap().plan().unwrap();
    Runner::new(folder, Path::new("/absent/prestow"), rerun).run(&cells, |_| {}).unwrap()
}

fn outcomes(folder: &Path) -> Vec<CellOutcome> {
    Journal::open(&Runner::journal_path(folder)).unwrap().outcomes().to_vec()
}

#[test]
fn cells_are_all_combinations_with_their_extensions() {
    let text = r#"
        [parameters]
        "exp.model" = "a"
        "user.note" = "${exp.model} at ${exp.replica_batch}"
        [parameters.exp]
        num_batches = 5
        [variables]
        "exp.replica_batch" = [1, 2, 2]
        "exp.dtype" = ["float32", "float16"]
        [[extensions]]
        condition = { "exp.dtype" = "*16", "exp.replica_batch" = [2, 4] }
        parameters = { "exp.num_batches" = 9 }
        cases = [{ "exp.threads" = 1 }, { "exp.threads" = 2 }]
    "#;
    let cells = Config::parse(text).unwrap().plan().unwrap();
    let rows: Vec<String> = cells
        .iter()
        .map(|cell| format!("{} {} {}", cell.text("user.note"), cell.text("exp.dtype"), cell.number("exp.threads")))
        .collect();
    assert_eq!(
        rows,
        ["a at 1 float32 0", "a at 2 float32 0", "a at 1 float16 0", "a at 2 float16 1", "a at 2 float16 2"],
        "equal cells occur once"
    );
    assert_eq!(cells.iter().map(|cell| cell.number("exp.num_batches")).collect::<Vec<_>>(), [5., 5., 5., 9., 9.]);
    assert_eq!(cells[1].values["exp.effective_batch"], json!(2), "a substitution alone keeps the type");
}

#[test]
fn json_experiments_of_dlbs_are_read() {
    let text = r#"{
        "parameters": {"exp": {"model": {"val": "vgg11", "type": "str", "desc": "the model"}}},
        "variables": {"exp.replica_batch": [1, 2]},
        "extensions": [{"condition": {"exp.model": "vgg*"}, "parameters": {"exp.num_batches": 3}, "cases": []}]
    }"#;
    let cells = Config::parse(text).unwrap().plan().unwrap();
    assert_eq!((cells.len(), cells[1].number("exp.num_batches")), (2, 3.0));
}

#[test]
fn changes_of_the_command_line_replace_the_file() {
    let mut config = Config::parse("[variables]\n\"exp.model\" = [\"a\", \"b\"]\n").unwrap();
    config.set("exp.model", json!("c")).unwrap();
    config.vary("exp.replica_batch", json!([4, 8, 16])).unwrap();
    let cells = config.plan().unwrap();
    assert_eq!(cells.len(), 3);
    assert!(cells.iter().all(|cell| cell.text("exp.model") == "c"));
    assert!(config.json()["parameters"]["exp.num_batches"].is_number(), "defaults are listed");
}

#[test]
fn malformed_experiments_are_refused() {
    let refused = |text: &str| match Config::parse(text).and_then(|config| config.plan()) {
        Ok(cells) => panic!("{} cells", cells.len()),
        Err(error) => error.to_string(),
    };
    let error = refused("[parameters]\n\"exp.modle\" = \"a\"\n");
    assert!(error.starts_with("`exp.modle` is not a parameter; the nearest are exp.model"), "{error}");
    assert!(refused("[parameters]\n\"exp.num_batches\" = \"x\"\n").contains("must be of type int, got \"x\""));
    assert!(refused("[variables]\n\"exp.model\" = \"a\"\n").contains("must be a list"));
    assert!(refused("[variables]\n\"exp.model\" = []\n").contains("at least one value"));
    assert!(refused("[other]\nx = 1\n").contains("`other` is not a table of an experiment"));
    assert!(
        refused("[parameters]\n\"exp.model\" = \"${exp.data}\"\n\"exp.data\" = \"${exp.model}\"\n").contains("cycle")
    );
    assert!(refused("[parameters]\n\"exp.model\" = \"${user.x}\"\n").contains("no parameter of this name"));
    assert!(refused("[parameters]\n\"exp.model\" = \"${exp.data\"\n").contains("without"));
    assert!(refused("[parameters]\n").contains("must have `exp.model` or `exp.command`"));
    assert!(refused("[[extensions]]\nconditions = 1\n").contains("`conditions` is not a part of an extension"));
    assert!(
        refused("[parameters]\n\"exp.model\" = \"a\"\n\"exp.phase\" = \"traning\"\n")
            .contains("takes inference, training, got `traning`")
    );
    for (name, number, range) in [
        ("exp.num_batches", "0", "from 1 to 10000000, got 0"),
        ("exp.num_batches", "\"${user.count}\"", "from 1 to 10000000, got -3"),
        ("exp.replica_batch", "65537", "from 1 to 65536"),
        ("exp.threads", "-1", "from 0 to 1024"),
        ("exp.timeout", "-0.5", "from 0 to"),
        ("exp.timeout", "nan", "exp.timeout"),
        ("monitor.frequency", "1e9", "from 0 to 1000"),
    ] {
        let text = format!("[parameters]\n\"exp.model\" = \"a\"\n\"user.count\" = -3\n\"{name}\" = {number}\n");
        assert!(refused(&text).contains(range), "{name} = {number}: {}", refused(&text));
        let is_own = ["exp.timeout", "monitor.frequency"].contains(&name);
        let label = Config::parse(&text.replace("exp.model", "exp.command")).and_then(|config| config.plan());
        assert_eq!(label.is_err(), is_own, "values are labels to another program, other than those of the experiment");
    }
    let peers = "[parameters]\n\"exp.model\" = \"a\"\n[variables]\n\"exp.framework\" = [\"tract\", \"caffe2\"]\n";
    assert!(refused(peers).contains("got `caffe2`"));
    let labels = Config::parse(&peers.replace("exp.model", "exp.command")).unwrap().plan().unwrap();
    assert_eq!(labels[1].text("exp.framework"), "caffe2", "another program may have any name");
    let arguments = "[parameters]\n\"exp.model\" = \"a\"\n\"exp.args\" = \"--seed 1 --batch_size=4\"\n";
    assert!(refused(arguments).contains("must not have --batch_size: set `exp.replica_batch`"));
    assert!(refused("x = ").contains("expected"));
    assert!(refused("{").contains("EOF"));
}

/// A shell as the benchmark.
const ECHO: &str = r#"
    [parameters]
    "exp.command" = "echo noise; echo __results.time__=${exp.replica_batch}.5; echo '__results.time_data__=[1.5, 1.25]'"
    [variables]
    "exp.replica_batch" = [1, 2, 4]
"#;

#[test]
fn results_are_kept_or_run_again_by_the_policy() {
    let folder = Folder::new("rerun");
    let counts = |report: RunReport| (report.succeeded, report.failed, report.kept);
    assert_eq!(counts(run(&folder.0, ECHO, Rerun::Never)), (3, 0, 0));
    assert_eq!(counts(run(&folder.0, ECHO, Rerun::Never)), (0, 0, 3));
    assert_eq!(counts(run(&folder.0, ECHO, Rerun::Always)), (3, 0, 0));
    assert_eq!(outcomes(&folder.0).len(), 6);
    let failing = ECHO.replace(
        "echo noise;",
        "test ${exp.replica_batch} -ne 2 || { echo 'error: two'; echo 'more information'; exit 7; };",
    );
    let other = Folder::new("onfail");
    assert_eq!(counts(run(&other.0, &failing, Rerun::Never)), (2, 1, 0));
    assert_eq!(counts(run(&other.0, &failing, Rerun::OnFail)), (0, 1, 2));
    let failed = outcomes(&other.0).into_iter().find(|outcome| !outcome.succeeded).unwrap();
    assert_eq!(failed.values["results.status_msg"], json!("the process ended with exit status: 7: error: two"));
    let progress: Value = serde_json::from_slice(&std::fs::read(other.0.join("progress.json")).unwrap()).unwrap();
    assert_eq!((&progress["done"], &progress["cells"]), (&json!(3), &json!(3)));
}

#[test]
fn log_of_a_cell_is_that_of_dlbs() {
    let folder = Folder::new("logs");
    run(
        &folder.0,
        &ECHO.replace("[parameters]", "[parameters]\n\"monitor.frequency\" = 50").replace("echo noise", "sleep 0.7"),
        Rerun::Never,
    );
    for outcome in outcomes(&folder.0) {
        let rows = lines::read_file(&folder.0.join(format!("logs/{}.log", outcome.id))).unwrap();
        assert_eq!(rows.benchmarks, std::slice::from_ref(&outcome.values), "the log has all values of the result");
        assert!(outcome.values["results.start_time"].as_f64() < outcome.values["results.end_time"].as_f64());
        let rss = outcome.values["results.use.rss_bytes"].as_array().unwrap();
        assert!(2 <= rss.len() && rss.iter().all(|bytes| 10_000 < bytes.as_u64().unwrap()), "{rss:?}");
    }
    assert!(2 <= timelines(&outcomes(&folder.0)).rows.len());
}

/// A GPU whose utilization grows and whose power is not readable.
struct Meter(f64);

impl GpuMeter for Meter {
    fn names(&self) -> Vec<String> {
        vec!["a GPU".into()]
    }

    fn sample(&mut self) -> Vec<GpuSample> {
        self.0 += 10.0;
        vec![GpuSample { percent: Some(self.0), bytes: Some(3 << 20), watts: None }]
    }
}

#[test]
fn monitor_samples_gpus_or_has_the_reason() {
    let folder = Folder::new("gpus");
    let text = ECHO.replace("[parameters]", "[parameters]\n\"monitor.frequency\" = 50").replace("[1, 2, 4]", "[1]");
    let text = text.replace("echo noise", "sleep 0.7");
    let cells = Config::parse(&text).unwrap().plan().unwrap();
    let runner = || Runner::new(&folder.0, Path::new("/absent"), Rerun::Always);
    runner().with_gpus(|| Ok(Box::new(Meter(0.0)))).run(&cells, |_| {}).unwrap();
    let values = outcomes(&folder.0)[0].values.clone();
    let rows = values["results.use.gpu_percent"].as_array().unwrap();
    assert!(2 <= rows.len() && rows.len() == values["results.use.seconds"].as_array().unwrap().len(), "{rows:?}");
    assert_eq!((&rows[1], &values["results.use.gpu_names"]), (&json!([20.0]), &json!(["a GPU"])));
    let table = timelines(&outcomes(&folder.0));
    assert_eq!(table.columns[table.columns.len() - 2..], ["GPU %", "GPU MiB"], "columns without values are left out");
    assert_eq!(memory_table(&outcomes(&folder.0)).rows[0][3], "3.0");
    runner().with_gpus(|| Err("no library".into())).run(&cells, |_| {}).unwrap();
    let values = outcomes(&folder.0)[1].values.clone();
    assert_eq!(values["results.use.gpu_status"], json!("no library"));
    assert!(!values.contains_key("results.use.gpu_names"));
}

#[test]
fn hanging_or_missing_program_is_a_failure_with_its_reason() {
    let folder = Folder::new("hanging");
    // The shell's own process is not the one that hangs.
    let text = "[parameters]\n\"exp.timeout\" = 0.2\n[variables]\n\"exp.command\" = [\"sleep 60; true\", \"\"]\n\
                \"exp.model\" = [\"a\"]\n";
    let report = run(&folder.0, text, Rerun::Never);
    assert_eq!((report.succeeded, report.failed), (0, 2));
    let reasons: Vec<String> =
        outcomes(&folder.0).iter().map(|own| own.values["results.status_msg"].as_str().unwrap().to_string()).collect();
    assert!(reasons.contains(&"the process was ended after 0.2 s".to_string()), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.starts_with("cannot start `/absent/prestow`")), "{reasons:?}");
    assert_eq!(processes_of(&folder.0), 0, "the shell's children have ended too");
}

/// The processes of the experiment in a folder.
fn processes_of(folder: &Path) -> usize {
    let journal = std::fs::canonicalize(Runner::journal_path(folder)).unwrap();
    let mark = format!("PRESTOW_EXPERIMENT={}\0", journal.display()).into_bytes();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
    environments.filter(|found| found.windows(mark.len()).any(|part| part == mark)).count()
}

#[test]
fn larger_batches_do_not_run_after_one_that_does_not_fit() {
    let folder = Folder::new("fits");
    let text = r#"
        [parameters]
        "exp.command" = "test ${exp.replica_batch} -lt 4 && echo __results.time__=1 || echo '__results.status_msg__=\"does not fit: needs 9 GiB of 8 GiB\"'"
        [variables]
        "exp.replica_batch" = [2, 4, 8, 16]
    "#;
    assert_eq!(run(&folder.0, text, Rerun::Never).failed, 3);
    let reasons: Vec<Value> =
        outcomes(&folder.0).iter().skip(1).map(|own| own.values["results.status_msg"].clone()).collect();
    let skipped = json!("skipped: batch 4 does not fit");
    assert_eq!(reasons, [json!("does not fit: needs 9 GiB of 8 GiB"), skipped.clone(), skipped]);
}

#[test]
fn names_that_a_result_line_cannot_have_are_refused() {
    let planned = |name: &str| {
        let mut config = Config::parse("[parameters]\n\"exp.model\" = \"a\"\n").unwrap();
        config.set(name, json!(1)).map_err(|error| error.to_string())
    };
    for name in ["user.", "user.a b", "user.a=b", "user.a\n", "user.a__b", "user.a_", "user.${x}"] {
        assert!(planned(name).unwrap_err().contains("is not a name"), "{name:?}");
    }
    for name in ["user.größe", "user.a_b-c.d", "user.1"] {
        planned(name).unwrap();
    }
}

#[test]
fn parameters_that_collide_are_refused() {
    let refused = |text: &str| Config::parse(text).unwrap_err().to_string();
    let both = "[parameters]\n\"exp.model\" = \"a\"\n[variables]\n\"exp.model\" = [\"b\"]\n";
    assert!(refused(both).contains("`exp.model` is a parameter and a variable"));
    let twice = "[parameters]\n\"exp.model\" = \"a\"\n[parameters.exp]\nmodel = \"b\"\n";
    assert!(refused(twice).contains("`exp.model` is given twice"));
}

/// A later version may have more parameters; results of an earlier one still count.
#[test]
fn ids_of_cells_cover_only_values_that_are_no_defaults() {
    let id = |text: &str| Config::parse(text).unwrap().plan().unwrap()[0].id.clone();
    let plain = id("[parameters]\n\"exp.model\" = \"a\"\n");
    assert_eq!(plain, id("[parameters]\n\"exp.model\" = \"a\"\n\"exp.threads\" = 0\n\"exp.container\" = \"\"\n"));
    assert_ne!(plain, id("[parameters]\n\"exp.model\" = \"a\"\n\"exp.threads\" = 1\n"));
}

#[test]
fn second_run_of_one_folder_at_a_time_is_refused() {
    let folder = Folder::new("locked");
    let path = Runner::journal_path(&folder.0);
    let journal = Journal::open(&path).unwrap();
    assert!(Journal::open(&path).err().unwrap().ends_with("is in use by another run of the experiment"));
    drop(journal);
    assert!(Journal::open(&path).is_ok());
}

#[test]
fn incomplete_last_line_is_removed_and_a_malformed_one_refused() {
    let folder = Folder::new("torn");
    run(&folder.0, ECHO, Rerun::Never);
    let path = Runner::journal_path(&folder.0);
    let whole = std::fs::read(&path).unwrap();
    for cut in [1, 20, 100] {
        let torn = &whole[..whole.len() - cut];
        std::fs::write(&path, torn).unwrap();
        // A line without its end may be whole.
        assert_eq!(Journal::read(&path).unwrap().len(), if cut == 1 { 3 } else { 2 }, "cut by {cut}");
        assert_eq!(std::fs::read(&path).unwrap(), torn, "a report does not change results");
        assert_eq!(outcomes(&folder.0).len(), 2, "cut by {cut}");
        assert_eq!(run(&folder.0, ECHO, Rerun::Never).succeeded, 1);
        assert_eq!(outcomes(&folder.0).len(), 3);
    }
    let error = Journal::open(Path::new("/dev/zero")).err().unwrap();
    assert_eq!(error, "`/dev/zero` must be a regular file");
    std::fs::write(&path, b"{}\n").unwrap();
    assert!(Journal::open(&path).err().unwrap().contains("line 1: missing field"));
}

/// The folder of an experiment that this program runs as a child of itself, and the experiment.
const CHILD: &str = "PRESTOW_SUITE_TEST_EXPERIMENT";
const CHILD_TEXT: &str = "PRESTOW_SUITE_TEST_TEXT";

/// 60 cells of a few milliseconds.
fn grid() -> String {
    let batches: Vec<String> = (1..=60).map(|batch| batch.to_string()).collect();
    format!(
        "[parameters]\n\"exp.command\" = \"sleep 0.02; echo __results.time__=1\"\n[variables]\n\"exp.replica_batch\" = [{}]\n",
        batches.join(", ")
    )
}

/// Not a test of its own: the process that [`killed_grid_resumes_without_loss_or_repetition`] kills.
#[test]
#[expect(clippy::disallowed_methods, reason = "the parent passes the folder")]
fn child_of_the_killed_grid() {
    let (Ok(folder), Ok(text)) = (std::env::var(CHILD), std::env::var(CHILD_TEXT)) else { return };
    let cells = Config::parse(&text).unwrap().plan().unwrap();
    let runner = Runner::new(Path::new(&folder), Path::new("/absent"), Rerun::Never);
    runner.stop_on_signal().unwrap();
    let report = runner.run(&cells, |_| {}).unwrap();
    std::process::exit(if report.stopped { 9 } else { 0 });
}

fn spawn(folder: &Path, text: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "experiments::child_of_the_killed_grid"]).env(CHILD, folder).env(CHILD_TEXT, text);
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

fn spawn_grid(folder: &Path) -> Child {
    spawn(folder, &grid())
}

fn wait_until(event: &str, is_so: impl Fn() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited too long until {event}");
}

/// Waits until the journal has this number of lines.
fn wait_for(folder: &Path, lines: usize) {
    let count = || std::fs::read_to_string(Runner::journal_path(folder)).unwrap_or_default().lines().count();
    wait_until("the journal grows", || lines <= count());
}

#[test]
fn killed_grid_resumes_without_loss_or_repetition() {
    let folder = Folder::new("killed");
    for lines in [7, 23] {
        let mut child = spawn_grid(&folder.0);
        wait_for(&folder.0, lines);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // The third run stops by the signal, the fourth ends.
    let mut child = spawn_grid(&folder.0);
    wait_for(&folder.0, 40);
    let signal = Command::new("sh").arg("-c").arg(format!("kill -USR1 {}", child.id())).status().unwrap();
    assert!(signal.success());
    assert_eq!(child.wait().unwrap().code(), Some(9));
    let stopped = outcomes(&folder.0).len();
    assert!((40..60).contains(&stopped), "{stopped}");
    assert_eq!(spawn_grid(&folder.0).wait().unwrap().code(), Some(0));
    let mut batches: Vec<u64> =
        outcomes(&folder.0).iter().map(|own| own.values["exp.replica_batch"].as_u64().unwrap()).collect();
    batches.sort();
    assert_eq!(batches, (1..=60).collect::<Vec<_>>());
}

/// The process of a cell outlives its killed run; the next run ends it before it measures.
#[test]
fn process_of_a_killed_run_is_ended_by_the_next() {
    let folder = Folder::new("orphan");
    let hanging = "[parameters]\n\"exp.command\" = \"test -e ${user.flag} || { touch ${user.flag}; sleep 60; true; }; \
                   echo __results.time__=1\"\n\"user.flag\" = \"FLAG\"\n";
    let flag = folder.0.join("flag");
    let text = hanging.replace("FLAG", &flag.display().to_string());
    let mut child = spawn(&folder.0, &text);
    wait_until("the cell starts", || flag.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(0 < processes_of(&folder.0));
    assert_eq!(run(&folder.0, &text, Rerun::Never).succeeded, 1);
    assert_eq!(processes_of(&folder.0), 0);
    assert_eq!(outcomes(&folder.0).len(), 1);
}

#[test]
fn interrupted_cell_has_no_result_and_no_process() {
    let folder = Folder::new("interrupted");
    for signal in ["INT", "TERM", "HUP"] {
        let mut child = spawn(&folder.0, "[parameters]\n\"exp.command\" = \"sleep 60; true\"\n");
        let journal = Runner::journal_path(&folder.0);
        wait_until("the cell starts", || journal.exists() && 0 < processes_of(&folder.0));
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{signal} {}", child.id())).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(9), "{signal}");
        assert_eq!((outcomes(&folder.0).len(), processes_of(&folder.0)), (0, 0), "{signal}");
    }
}

/// A limit of file sizes has the effect of a full disk: results up to it are whole, and the run continues when there is room.
#[test]
fn full_disk_loses_no_result() {
    let folder = Folder::new("full");
    let own = std::env::current_exe().unwrap();
    // Blocks of 512 or 1024 bytes; the shell ignores the signal so that writing is an error.
    let script =
        format!("trap '' XFSZ; ulimit -f 16; exec '{}' --exact experiments::child_of_the_killed_grid", own.display());
    let ended = Command::new("sh").arg("-c").arg(script).env(CHILD, &folder.0).env(CHILD_TEXT, grid()).output();
    let ended = ended.unwrap();
    assert!(!ended.status.success());
    let text = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(text.contains("cannot append to") && text.contains("all earlier results are in it"), "{text}");
    let kept = std::fs::read_to_string(Runner::journal_path(&folder.0)).unwrap();
    assert!(kept.ends_with('\n') && (2..60).contains(&kept.lines().count()), "{} lines", kept.lines().count());
    assert_eq!(spawn_grid(&folder.0).wait().unwrap().code(), Some(0));
    assert_eq!(outcomes(&folder.0).len(), 60);
}

fn outcome(model: &str, threads: u64, ms: Option<f64>) -> CellOutcome {
    let mut values = lines::Values::from([
        ("exp.model".into(), json!(model)),
        ("exp.threads".into(), json!(threads)),
        ("exp.effective_batch".into(), json!(8)),
        ("exp.replica_batch".into(), json!(8)),
        ("results.planned_bytes".into(), json!(3 << 20)),
    ]);
    match ms {
        Some(ms) => values.extend([
            ("results.time".into(), json!(ms)),
            ("results.throughput".into(), json!(8000.0 / ms)),
            ("results.time_data".into(), json!([ms, ms, ms])),
        ]),
        None => values.extend([("results.status_msg".into(), json!("does not fit"))]),
    }
    CellOutcome { id: format!("{model}{threads}"), succeeded: ms.is_some(), values }
}

/// A file of a few lines must not ask for unlimited memory or time.
#[test]
fn experiments_that_grow_without_bound_are_refused() {
    let refused = |text: &str| Config::parse(text).and_then(|config| config.plan()).unwrap_err().to_string();
    let doubled = |last: &str| {
        let links = (0..60).map(|ix| format!("\"user.a{ix}\" = \"${{user.a{}}}${{user.a{}}}\"\n", ix + 1, ix + 1));
        format!("[parameters]\n\"exp.model\" = \"a\"\n{}\"user.a60\" = \"{last}\"\n", links.collect::<String>())
    };
    assert!(refused(&doubled("x")).contains("at most 65536 bytes after substitution"));
    // No text, but 2^60 substitutions.
    assert_eq!(Config::parse(&doubled("")).unwrap().plan().unwrap()[0].text("user.a0"), "");
    for text in [format!("a = {}", "[".repeat(50_000)), format!("[{}a]\nx = 1", "a.".repeat(20_000))] {
        assert!(refused(&text).contains("must be nested at most 127 times"));
    }
    let list = (0..100).map(|ix| ix.to_string()).collect::<Vec<_>>().join(", ");
    let grid: String = (0..8).map(|ix| format!("\"user.v{ix}\" = [{list}]\n")).collect();
    assert!(refused(&format!("[variables]\n{grid}")).contains("at most 10000 cells"));
    let cases: String = (0..40)
        .map(|ix| {
            format!("[[extensions]]\ncondition = {{}}\ncases = [{{ \"user.x{ix}\" = 1 }}, {{ \"user.x{ix}\" = 2 }}]\n")
        })
        .collect();
    assert!(refused(&format!("[parameters]\n\"exp.model\" = \"a\"\n{cases}")).contains("at most 10000 cells"));
}

#[test]
fn reports_have_times_scaling_memory_and_verdicts() {
    let runs = vec![outcome("a", 1, Some(80.0)), outcome("a", 2, Some(50.0)), outcome("b", 10, None)];
    let select =
        TableSelection { rows: vec!["exp.model".into()], columns: "exp.threads".into(), value: "results.time".into() };
    assert_eq!(exploration(&runs, &select).csv(), "exp.model,1,2,10\na,80.000,50.000,\nb,,,does not fit\n");
    assert_eq!(memory_table(&runs).rows[2], ["b", "8", "3.0", "does not fit"]);
    let names: Vec<String> = memory_table(&runs).rows.into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(names, ["a, threads 1", "a, threads 2", "b"], "cells of one model and batch have names of their own");
    let after = vec![outcome("a", 1, Some(40.0)), outcome("a", 2, Some(50.0)), outcome("b", 10, Some(1.0))];
    let verdicts: Vec<String> = comparison(&runs, &after).rows.into_iter().map(|row| row[4].clone()).collect();
    assert!(verdicts[0].starts_with("faster 2.00x"), "{verdicts:?}");
    assert!(verdicts[1].starts_with("no difference shown"), "{verdicts:?}");
    assert_eq!(verdicts[2], "failed before");
    let absent = comparison(&runs, &[outcome("c", 1, Some(1.0))]);
    assert_eq!(absent.rows[0][4], "not in the earlier results");
    let counts: Vec<String> = summary(&runs).rows.iter().take(3).map(|row| row[1].clone()).collect();
    assert_eq!(counts, ["3", "2", "1"]);
}

/// Two engines on one model are two rows, not their mean.
#[test]
fn rows_of_an_exploration_are_told_apart_by_default() {
    let of = |framework: &str, ms: f64| {
        let mut own = outcome("a", 1, Some(ms));
        own.id = framework.into();
        own.values.insert("exp.framework".into(), json!(framework));
        own
    };
    let select = TableSelection { columns: "exp.replica_batch".into(), value: "results.time".into(), rows: vec![] };
    let table = exploration(&[of("prestow", 1.0), of("tract", 3.0)], &select);
    assert_eq!(table.csv(), "exp.model,8\n\"a, framework prestow\",1.000\n\"a, framework tract\",3.000\n");
}

#[test]
fn weak_scaling_keeps_the_batch_of_each_and_strong_the_whole() {
    let of = |framework: &str, threads: u64, batch: u64, ms: f64| CellOutcome {
        id: format!("{framework}{threads}-{batch}-{ms}"),
        succeeded: true,
        values: lines::Values::from([
            ("exp.model".into(), json!("a")),
            ("exp.framework".into(), json!(framework)),
            ("exp.threads".into(), json!(threads)),
            ("exp.replica_batch".into(), json!(batch)),
            ("exp.effective_batch".into(), json!(batch)),
            ("results.time".into(), json!(ms)),
        ]),
    };
    // The two results of two threads and batch 8 are repetitions.
    let runs =
        [of("x", 1, 4, 40.0), of("x", 1, 8, 80.0), of("x", 2, 8, 40.0), of("x", 2, 8, 60.0), of("y", 2, 8, 10.0)];
    assert_eq!(scaling_parameter(&runs), "exp.threads");
    let strong = scaling(&runs, "exp.threads", Scaling::Strong);
    let [first, second] = &strong.rows[..] else { panic!("{strong:?}") };
    assert_eq!(first[..3], ["a, framework x, batch 8", "1", "80.00"]);
    // The mean of 200 and 133.3 samples per second over 100.
    assert_eq!(second[..], ["a, framework x, batch 8", "2", "50.00", "166.67", "1.67", "83.33"]);
    let weak = scaling(&runs, "exp.threads", Scaling::Weak);
    let [first, second] = &weak.rows[..] else { panic!("{weak:?}") };
    assert_eq!((&first[0][..], &first[4][..]), ("a, framework x, batch 4 each", "1.00"));
    assert_eq!(second[1..], ["2", "50.00", "166.67", "1.67", "83.33"]);
    // Lists of devices, as DLBS has them.
    let on = |gpus: &str, ms: f64| {
        let mut own = of("x", 1, 16, ms);
        own.values.extend([
            ("exp.gpus".into(), json!(gpus)),
            ("exp.num_gpus".into(), json!(gpus.split(',').count())),
            ("exp.effective_batch".into(), json!(16 * gpus.split(',').count())),
        ]);
        own.id = gpus.into();
        own
    };
    let runs = [on("0", 913.0), on("0,1", 1029.0), on("0,1,2,3", 1065.0)];
    assert_eq!(scaling_parameter(&runs), "exp.num_gpus");
    for over in ["exp.num_gpus", "exp.gpus"] {
        let efficiency: Vec<String> =
            scaling(&runs, over, Scaling::Weak).rows.into_iter().map(|row| row[5].clone()).collect();
        assert_eq!(efficiency, ["100.00", "88.73", "85.73"], "{over}");
    }
}

/// The keys of DLBS's own monitor.
#[test]
fn series_of_dlbs_are_time_lines() {
    let mut own = outcome("a", 1, Some(1.0));
    own.values.extend([
        ("results.use.time".into(), json!(["2018-11-26:23:59:59:500", "2018-11-27:00:00:00:750"])),
        ("results.use.cpu".into(), json!([101.5, 99.0])),
        ("results.use.mem_res".into(), json!([2048.0, 4096.0])),
        ("results.use.power".into(), json!([-1.0, -1.0])),
        ("results.use.gpus".into(), json!([[30.5, 31.5], [40.0, 41.0]])),
    ]);
    let table = timelines(&[own.clone()]);
    assert_eq!(
        table.csv(),
        "cell,second,cpu %,resident MiB,GPU watts\n\"a, batch 8\",0.00,101.5,2.0,62.0\n\"a, batch 8\",1.25,99.0,4.0,81.0\n"
    );
    assert_eq!(memory_table(&[own]).rows[0][3], "4.0");
}
