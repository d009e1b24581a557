//! Experiments: plans, runs that are killed and resumed, failures, reports.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use prestow_bench_suite::experiment::{
    CellOutcome, Config, Journal, Rerun, RunReport, Runner, TableSelection, comparison, exploration, memory_table,
    scaling, timelines,
};
use prestow_bench_suite::lines;
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
    let failing = ECHO.replace("echo noise;", "test ${exp.replica_batch} -ne 2 || exit 7;");
    let other = Folder::new("onfail");
    assert_eq!(counts(run(&other.0, &failing, Rerun::Never)), (2, 1, 0));
    assert_eq!(counts(run(&other.0, &failing, Rerun::OnFail)), (0, 1, 2));
    let failed = outcomes(&other.0).into_iter().find(|outcome| !outcome.succeeded).unwrap();
    assert_eq!(failed.values["results.status_msg"], json!("the process ended with exit status: 7"));
    let progress: Value = serde_json::from_slice(&std::fs::read(other.0.join("progress.json")).unwrap()).unwrap();
    assert_eq!((&progress["done"], &progress["cells"]), (&json!(3), &json!(3)));
}

#[test]
fn log_of_a_cell_is_that_of_dlbs() {
    let folder = Folder::new("logs");
    run(
        &folder.0,
        &ECHO.replace("[parameters]", "[parameters]\n\"monitor.frequency\" = 50").replace("echo noise", "sleep 0.2"),
        Rerun::Never,
    );
    for outcome in outcomes(&folder.0) {
        let rows = lines::read_file(&folder.0.join(format!("logs/{}.log", outcome.id))).unwrap();
        assert_eq!(rows, std::slice::from_ref(&outcome.values), "the log has all values of the result");
        assert!(outcome.values["results.start_time"].as_f64() < outcome.values["results.end_time"].as_f64());
        let rss = outcome.values["results.use.rss_bytes"].as_array().unwrap();
        assert!(2 <= rss.len() && rss.iter().all(|bytes| 10_000 < bytes.as_u64().unwrap()), "{rss:?}");
    }
    assert!(2 <= timelines(&outcomes(&folder.0)).rows.len());
}

#[test]
fn hanging_or_missing_program_is_a_failure_with_its_reason() {
    let folder = Folder::new("hanging");
    let text = "[parameters]\n\"exp.timeout\" = 0.2\n[variables]\n\"exp.command\" = [\"exec sleep 60\", \"\"]\n\
                \"exp.model\" = [\"a\"]\n";
    let report = run(&folder.0, text, Rerun::Never);
    assert_eq!((report.succeeded, report.failed), (0, 2));
    let reasons: Vec<String> =
        outcomes(&folder.0).iter().map(|own| own.values["results.status_msg"].as_str().unwrap().to_string()).collect();
    assert!(reasons.contains(&"the process was ended after 0.2 s".to_string()), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.starts_with("cannot start `/absent/prestow`")), "{reasons:?}");
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

/// The folder of an experiment that this program runs as a child of itself.
const CHILD: &str = "PRESTOW_SUITE_TEST_EXPERIMENT";

fn grid() -> String {
    // 60 cells of a few milliseconds; each leaves a line in a file when it runs to its end.
    let batches: Vec<String> = (1..=60).map(|batch| batch.to_string()).collect();
    format!(
        "[parameters]\n\"exp.command\" = \"sleep 0.02; echo __results.time__=1\"\n[variables]\n\"exp.replica_batch\" = [{}]\n",
        batches.join(", ")
    )
}

/// Not a test of its own: the process that [`killed_grid_resumes_without_loss_or_repetition`] kills.
#[test]
fn child_of_the_killed_grid() {
    #[expect(clippy::disallowed_methods, reason = "the parent passes the folder")]
    let Ok(folder) = std::env::var(CHILD) else { return };
    let cells = Config::parse(&grid()).unwrap().plan().unwrap();
    let runner = Runner::new(Path::new(&folder), Path::new("/absent"), Rerun::Never);
    runner.stop_on_signal().unwrap();
    let report = runner.run(&cells, |_| {}).unwrap();
    std::process::exit(if report.stopped { 9 } else { 0 });
}

fn spawn_grid(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "experiments::child_of_the_killed_grid"]).env(CHILD, folder);
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// Waits until the journal has this number of lines.
fn wait_for(folder: &Path, lines: usize) {
    for _ in 0..3000 {
        let text = std::fs::read_to_string(Runner::journal_path(folder)).unwrap_or_default();
        if lines <= text.lines().count() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the journal of {} does not grow", folder.display());
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

/// A limit of file sizes has the effect of a full disk: results up to it are whole, and the run continues when there is room.
#[test]
fn full_disk_loses_no_result() {
    let folder = Folder::new("full");
    let own = std::env::current_exe().unwrap();
    // Blocks of 512 or 1024 bytes; the shell ignores the signal so that writing is an error.
    let script =
        format!("trap '' XFSZ; ulimit -f 16; exec '{}' --exact experiments::child_of_the_killed_grid", own.display());
    let ended = Command::new("sh").arg("-c").arg(script).env(CHILD, &folder.0).output().unwrap();
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
    let select = TableSelection {
        rows: "exp.model".into(),
        columns: "exp.threads".into(),
        value: "results.time".into(),
        ..TableSelection::default()
    };
    assert_eq!(exploration(&runs, &select).csv(), "exp.model,1,2,10\na,80.000,50.000,\nb,,,does not fit\n");
    let only = TableSelection { filter: lines::Values::from([("exp.model".into(), json!("b"))]), ..select };
    assert_eq!(exploration(&runs, &only).rows.len(), 1);
    let table = scaling(&runs, "exp.threads", false);
    assert_eq!(table.rows[1][2..], ["50.00", "160.00", "1.60", "80.00"]);
    assert_eq!(memory_table(&runs).rows[2], ["b", "8", "3.0", "", "does not fit"]);
    let names: Vec<String> = memory_table(&runs).rows.into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(names, ["a, threads 1", "a, threads 2", "b"], "cells of one model and batch have names of their own");
    let after = vec![outcome("a", 1, Some(40.0)), outcome("a", 2, Some(50.0)), outcome("b", 10, Some(1.0))];
    let verdicts: Vec<String> = comparison(&runs, &after).rows.into_iter().map(|row| row[4].clone()).collect();
    assert!(verdicts[0].starts_with("faster 2.00x"), "{verdicts:?}");
    assert!(verdicts[1].starts_with("no difference shown"), "{verdicts:?}");
    assert_eq!(verdicts[2], "failed before");
}
