//! `prestow experiment`: grids of benchmarks.

use std::io::Write;
use std::path::{Path, PathBuf};

use bench_suite::ResultTable;
use bench_suite::experiment::{
    CellOutcome, Config, GridCell, GridEvent, Journal, PARAMETERS, Rerun, Runner, TableSelection, comparison,
    exploration, memory_table, scaling, search, timelines,
};
use bench_suite::lines::{self, Values};
use clap::ValueEnum;
use serde_json::{Value, json};
use types::Bytes;

use super::Answer;
use crate::progress::Progress;

/// The kinds of `prestow experiment`.
#[derive(clap::Subcommand)]
pub(crate) enum Action {
    /// Run the cells that have no result.
    Run(Run),
    /// List the cells with their command lines.
    Plan(Plan),
    /// Check an experiment file.
    Validate(Source),
    /// Print the experiment with all parameters as JSON.
    PrintConfig(Source),
    /// Describe the parameters that have all the words.
    Params(Params),
    /// Print tables of results.
    Report(Report),
    /// Read logs of DLBS, .log and .json, also .gz, to one file of results.
    Parse(Parse),
}

/// An experiment file and changes to it.
#[derive(clap::Args)]
pub(crate) struct Source {
    /// The experiment, TOML or JSON.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Set a parameter; VALUE is JSON or a text.
    #[arg(short = 'P', value_name = "NAME=VALUE")]
    parameters: Vec<String>,
    /// Set a variable to a list of values, as JSON.
    #[arg(short = 'V', value_name = "NAME=[..]")]
    variables: Vec<String>,
}

/// Flags of `run`.
#[derive(clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    source: Source,
    /// Folder of results, logs and progress.json.
    #[arg(short, long, value_name = "DIR", default_value = "experiment")]
    output: PathBuf,
    /// Cells with a result that run again.
    #[arg(long, value_name = "never|always|onfail", default_value = "never")]
    rerun: Rerun,
    /// Continue with the results in the folder; without it a folder that has results is refused.
    #[arg(long)]
    resume: bool,
    /// Print the command lines instead.
    #[arg(long)]
    dry_run: bool,
}

/// Flags of `plan`.
#[derive(clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    source: Source,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Flags of `params`.
#[derive(clap::Args)]
pub(crate) struct Params {
    /// Words of the name or the description.
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Flags of `report`.
#[derive(clap::Args)]
pub(crate) struct Report {
    /// Results, as experiment/results.jsonl, or logs of DLBS.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The table.
    #[arg(long, value_name = "KIND", default_value = "exploration")]
    kind: Kind,
    /// Parameter of the rows.
    #[arg(long, value_name = "NAME", default_value = "exp.model")]
    rows: String,
    /// Parameter of the columns; of scaling, the number of devices or threads.
    #[arg(long, value_name = "NAME", default_value = "exp.replica_batch")]
    columns: String,
    /// Key of the cells.
    #[arg(long, value_name = "KEY", default_value = "results.time")]
    value: String,
    /// Only results with this value; VALUE is JSON or a text.
    #[arg(long, value_name = "NAME=VALUE")]
    filter: Vec<String>,
    /// Earlier results to compare with.
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// The form.
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: Format,
    /// The file (default: print).
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Means by two parameters.
    Exploration,
    /// Speed-up with the batch of a device kept.
    Weak,
    /// Speed-up with the whole batch kept.
    Strong,
    /// Planned and measured memory.
    Memory,
    /// Resources over time.
    Resources,
    /// Verdicts against --before.
    Comparison,
    /// Every table.
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Csv,
    Markdown,
    Html,
}

/// Flags of `parse`.
#[derive(clap::Args)]
pub(crate) struct Parse {
    /// Logs, or folders that are searched for them.
    #[arg(value_name = "FILE|DIR", required = true)]
    inputs: Vec<PathBuf>,
    /// The file of results, one JSON object a line (default: print).
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs an action.
pub(crate) fn run(action: &Action) -> Result<Answer, String> {
    match action {
        Action::Run(args) => run_cells(args),
        Action::Plan(args) => plan(args).map(Answer::from),
        Action::Validate(source) => {
            let cells = source.cells()?;
            Ok(format!("valid: {} cells\n", cells.len()).into())
        }
        Action::PrintConfig(source) => Ok(format!("{:#}\n", source.config()?.json()).into()),
        Action::Params(args) => Ok(params(args).into()),
        Action::Report(args) => report(args).map(Answer::from),
        Action::Parse(args) => parse(args).map(Answer::from),
    }
}

impl Source {
    fn config(&self) -> Result<Config, String> {
        let in_file = |error: String| match &self.file {
            Some(path) => format!("`{}`: {error}", path.display()),
            None => error,
        };
        let mut config = match &self.file {
            None => Config::default(),
            Some(path) => {
                let bytes = files::read(path, Bytes(64 << 20)).map_err(|error| error.to_string())?;
                let text = String::from_utf8(bytes).map_err(|_| in_file("it must be UTF-8".into()))?;
                Config::parse(&text).map_err(|error| in_file(error.to_string()))?
            }
        };
        for given in &self.parameters {
            let (name, value) = assignment(given)?;
            config.set(name, value).map_err(|error| format!("-P {given}: {error}"))?;
        }
        for given in &self.variables {
            let (name, value) = assignment(given)?;
            config.vary(name, value).map_err(|error| format!("-V {given}: {error}"))?;
        }
        Ok(config)
    }

    fn cells(&self) -> Result<Vec<GridCell>, String> {
        self.config()?.plan().map_err(|error| error.to_string())
    }
}

/// `NAME=VALUE` with JSON or a text.
fn assignment(given: &str) -> Result<(&str, Value), String> {
    let (name, value) = given.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, got `{given}`"))?;
    Ok((name, serde_json::from_str(value).unwrap_or_else(|_| json!(value))))
}

fn runner(folder: &Path, rerun: Rerun) -> Result<Runner, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
    Ok(Runner::new(folder, &own, rerun))
}

/// The answer is no if a cell failed or a signal stopped the run.
fn run_cells(args: &Run) -> Result<Answer, String> {
    let cells = args.source.cells()?;
    let runner = runner(&args.output, args.rerun)?;
    if args.dry_run {
        return Ok(cells.iter().map(|cell| runner.dry_run(cell) + "\n").collect::<String>().into());
    }
    let path = Runner::journal_path(&args.output);
    if path.exists() && !args.resume && args.rerun == Rerun::Never {
        return Err(format!("`{}` has results; add --resume, or name another folder with -o", path.display()));
    }
    #[cfg(unix)]
    runner.stop_on_signal()?;
    let progress = Progress::bar(cells.len(), "experiment");
    let report = runner.run(&cells, |event| match event {
        GridEvent::Start(cell) => progress.message(name(cell)),
        GridEvent::End(cell, outcome) => progress.item(&line(cell, outcome)),
    })?;
    drop(progress);
    let stopped = if report.stopped { "; stopped by a signal" } else { "" };
    let text = format!(
        "{} cells: {} done, {} failed, {} kept{stopped}; results in {}\n",
        report.cells,
        report.succeeded,
        report.failed,
        report.kept,
        path.display()
    );
    Ok(Answer { text, yes: report.failed == 0 && !report.stopped })
}

fn name(cell: &GridCell) -> String {
    match cell.text("exp.model") {
        "" => cell.text("exp.command").to_string(),
        model => format!("{} {model}, batch {}", cell.text("exp.framework"), cell.number("exp.replica_batch")),
    }
}

fn line(cell: &GridCell, outcome: &CellOutcome) -> String {
    let time = outcome.values.get("results.time").and_then(Value::as_f64);
    let status = outcome.values.get("results.status_msg").and_then(Value::as_str);
    match time.filter(|_| outcome.succeeded) {
        Some(ms) => format!("{}: {ms:.3} ms", name(cell)),
        None => format!("{}: failed: {}", name(cell), status.unwrap_or("no time")),
    }
}

fn plan(args: &Plan) -> Result<String, String> {
    let (cells, runner) = (args.source.cells()?, runner(Path::new("experiment"), Rerun::Never)?);
    if args.json {
        let row = |cell: &GridCell| json!({ "id": cell.id, "values": cell.values, "command": runner.dry_run(cell) });
        return Ok(format!("{:#}\n", json!(cells.iter().map(row).collect::<Vec<_>>())));
    }
    let rows: String = cells.iter().map(|cell| format!("{}  {}\n", cell.id, runner.dry_run(cell))).collect();
    Ok(format!("{rows}{} cells\n", cells.len()))
}

fn params(args: &Params) -> String {
    let found = match args.words.is_empty() {
        true => PARAMETERS.iter().collect(),
        false => search(&args.words.join(" ")),
    };
    if args.json {
        return format!("{:#}\n", json!(found.iter().map(|own| own.json()).collect::<Vec<_>>()));
    }
    found.iter().map(|own| format!("{:<24} {:<6} {:<24} {}\n", own.name, own.kind, own.default, own.help)).collect()
}

/// Results of a journal, or of a log of DLBS.
fn read(path: &Path) -> Result<Vec<CellOutcome>, String> {
    if path.extension().is_some_and(|extension| extension == "jsonl") {
        return Journal::read(path);
    }
    let outcome = |(ix, values): (usize, Values)| CellOutcome {
        id: format!("{}:{ix}", path.display()),
        succeeded: values.get("results.time").or(values.get("results.throughput")).is_some_and(Value::is_number),
        values,
    };
    Ok(lines::read_file(path)?.into_iter().enumerate().map(outcome).collect())
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<CellOutcome>, String> {
    let read = paths.iter().map(|path| read(path));
    Ok(read.collect::<Result<Vec<_>, _>>()?.concat())
}

fn report(args: &Report) -> Result<String, String> {
    let outcomes = read_all(&args.files)?;
    if outcomes.is_empty() {
        return Err("the files have no results".into());
    }
    let filter = args.filter.iter().map(|given| assignment(given).map(|(name, value)| (name.to_string(), value)));
    let filter: Values = filter.collect::<Result<_, _>>()?;
    let select =
        TableSelection { filter, rows: args.rows.clone(), columns: args.columns.clone(), value: args.value.clone() };
    let before = args.before.as_deref().map(read).transpose()?;
    let table = |kind| {
        Ok(match kind {
            Kind::Exploration => exploration(&outcomes, &select),
            Kind::Weak => scaling(&outcomes, &args.columns, true),
            Kind::Strong => scaling(&outcomes, &args.columns, false),
            Kind::Memory => memory_table(&outcomes),
            Kind::Resources => timelines(&outcomes),
            _ => comparison(before.as_ref().ok_or("a comparison needs --before FILE")?, &outcomes),
        })
    };
    let kinds = match args.kind {
        Kind::All if before.is_some() => vec![Kind::Exploration, Kind::Memory, Kind::Resources, Kind::Comparison],
        Kind::All => vec![Kind::Exploration, Kind::Memory, Kind::Resources],
        kind => vec![kind],
    };
    let tables: Vec<ResultTable> = kinds.into_iter().map(table).collect::<Result<_, String>>()?;
    let text = match args.format {
        Format::Text => tables.iter().map(ResultTable::text).collect::<Vec<_>>().join("\n"),
        Format::Csv => tables.iter().map(ResultTable::csv).collect::<Vec<_>>().join("\n"),
        Format::Markdown => tables.iter().map(ResultTable::markdown).collect(),
        Format::Html => ResultTable::page("Benchmarks", &tables),
    };
    deliver(args.output.as_deref(), text)
}

fn parse(args: &Parse) -> Result<String, String> {
    let mut paths = Vec::new();
    for input in &args.inputs {
        find_logs(input, &mut paths)?;
    }
    let mut text = Vec::new();
    for outcome in read_all(&paths)? {
        let row = serde_json::to_string(&outcome).map_err(|error| error.to_string())?;
        writeln!(text, "{row}").map_err(|error| error.to_string())?;
    }
    deliver(args.output.as_deref(), String::from_utf8_lossy(&text).into_owned())
}

fn deliver(output: Option<&Path>, text: String) -> Result<String, String> {
    match output {
        None => Ok(text),
        Some(path) => {
            files::write(path, text.as_bytes()).map_err(|error| error.to_string())?;
            Ok(format!("wrote {}\n", path.display()))
        }
    }
}

/// A file, or the logs of a folder and those below it, sorted. Links to folders inside of it are not followed: they may lead
/// back.
fn find_logs(path: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    if !path.is_dir() {
        found.push(path.to_path_buf());
        return Ok(());
    }
    let failed = |error: std::io::Error| format!("`{}`: {error}", path.display());
    let entries = std::fs::read_dir(path).map_err(failed)?;
    let kind = |entry: std::io::Result<std::fs::DirEntry>| entry.and_then(|own| Ok((own.path(), own.file_type()?)));
    let mut entries: Vec<_> = entries.map(kind).collect::<Result<_, _>>().map_err(failed)?;
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (entry, kind) in entries {
        let name = entry.to_string_lossy();
        let is_log = [".log", ".log.gz", ".json.gz"].iter().any(|suffix| name.ends_with(suffix));
        if kind.is_dir() || (is_log && !entry.is_dir()) {
            find_logs(&entry, found)?;
        }
    }
    Ok(())
}
