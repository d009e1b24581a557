//! `prestow experiment`: grids of benchmarks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bench_suite::experiment::{
    CellOutcome, Config, GridCell, GridEvent, Journal, PARAMETERS, Rerun, ResultSelection, Runner, Scaling,
    TableSelection, comparison, exploration, memory_table, nearest_of, scaling, scaling_parameter, search, summary,
    timelines,
};
use bench_suite::lines::{self, Values};
use bench_suite::{GpuMeter, GpuSample, ResultTable};
use clap::ValueEnum;
use cuda::LibraryPaths;
use cuda::nvml::Meter;
use serde_json::{Value, json};
use types::Bytes;

use super::Answer;
use crate::progress::Progress;
use crate::say;

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
    /// Read logs of DLBS, .log and .json, also .gz, or results, to one file of results.
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
    /// Run the cells in this image: the parameter exp.container. exp.launcher is the program: docker, podman or apptainer.
    #[arg(long, value_name = "IMAGE")]
    container: Option<String>,
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

/// The key of a table's cells, which benchmarks that failed lack.
const DEFAULT_VALUE: &str = "results.time";

/// Flags of `report`.
#[derive(clap::Args)]
pub(crate) struct Report {
    /// Results, as experiment/results.jsonl, or logs of DLBS.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The table.
    #[arg(long, value_name = "KIND", default_value = "exploration")]
    kind: Kind,
    /// Parameters of the rows (default: the model and the parameters in which results differ).
    #[arg(long, value_name = "NAME[,NAME..]", value_delimiter = ',')]
    rows: Vec<String>,
    /// Parameter of the columns (default: exp.replica_batch). Of scaling, the number of devices or threads (default:
    /// exp.num_gpus if it varies, else exp.threads).
    #[arg(long, value_name = "NAME")]
    columns: Option<String>,
    /// Key of the cells.
    #[arg(long, value_name = "KEY", default_value = DEFAULT_VALUE)]
    value: String,
    #[command(flatten)]
    selected: Selected,
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

/// The results that are read, and changes to them.
#[derive(clap::Args)]
struct Selected {
    /// Only results with this value; VALUE is JSON or a text, in which `*` is any text.
    #[arg(long, value_name = "NAME=VALUE")]
    filter: Vec<String>,
    /// Only results that match: `{"NAME": VALUE, "NAME": [VALUE, ..]}`, or a list of names that must exist.
    #[arg(long, value_name = "JSON")]
    select: Option<String>,
    /// Set a value in all results.
    #[arg(long, value_name = "NAME=VALUE")]
    update: Vec<String>,
}

impl Selected {
    fn apply(&self, outcomes: Vec<CellOutcome>) -> Result<Vec<CellOutcome>, String> {
        let mut selection = ResultSelection::default();
        for given in &self.filter {
            let (name, value) = assignment(given)?;
            selection.wants(name, value);
        }
        if let Some(query) = &self.select {
            selection.query(query).map_err(|error| format!("--select: {error}"))?;
        }
        for given in &self.update {
            let (name, value) = assignment(given)?;
            selection.update(name, value);
        }
        let count = outcomes.len();
        let selected = selection.apply(outcomes);
        match selected.is_empty() && 0 < count {
            true => Err(format!("none of the {count} results is selected")),
            false => Ok(selected),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Counts, and the values of parameters.
    Summary,
    /// Means by two parameters.
    Exploration,
    /// Speed-up with the batch of each device or thread kept.
    Weak,
    /// Speed-up with the whole batch kept.
    Strong,
    /// Planned and measured memory.
    Memory,
    /// Resources over time.
    Resources,
    /// Verdicts against --before.
    Comparison,
    /// Every table that has rows.
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
    #[command(flatten)]
    selected: Selected,
    /// The file of results: .json or .json.gz in the form of DLBS's bench_data.py, else one JSON object a line (default: print).
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
            let (name, mut value) = assignment(given)?;
            // `-P exp.gpus=0` is a text.
            let is_text = PARAMETERS.iter().any(|own| own.name == name && own.kind == "str");
            if let (true, false, Some((_, text))) = (is_text, value.is_string(), given.split_once('=')) {
                value = json!(text);
            }
            config.set(name, value).map_err(|error| format!("-P {given}: {error}"))?;
        }
        for given in &self.variables {
            let (name, value) = assignment(given)?;
            config.vary(name, value).map_err(|error| format!("-V {given}: {error}"))?;
        }
        if let Some(image) = &self.container {
            config.set("exp.container", json!(image)).map_err(|error| format!("--container {image}: {error}"))?;
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
    Ok(Runner::new(folder, &own, rerun).with_gpus(open_gpus))
}

/// NVML for the monitor of an experiment.
struct Gpus(Meter);

impl GpuMeter for Gpus {
    fn names(&self) -> Vec<String> {
        self.0.names().to_vec()
    }

    fn sample(&mut self) -> Vec<GpuSample> {
        let sample = |own: cuda::nvml::Reading| GpuSample {
            percent: own.percent.map(f64::from),
            bytes: own.used,
            watts: own.watts,
        };
        self.0.read().into_iter().map(sample).collect()
    }
}

fn open_gpus() -> Result<Box<dyn GpuMeter>, String> {
    let meter = Meter::start(&LibraryPaths::of(|name| std::env::var_os(name)));
    meter.map(|meter| Box::new(Gpus(meter)) as Box<dyn GpuMeter>).map_err(|error| error.to_string())
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
    if cells.iter().any(|cell| 0.0 < cell.number("monitor.frequency"))
        && let Err(reason) = open_gpus()
    {
        say::note(&format!("GPUs are not monitored: {reason}"));
    }
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
        "" => format!("{}, batch {}", cell.text("exp.command"), cell.number("exp.replica_batch")),
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
    let found = lines::read_file(path)?;
    if 0 < found.malformed {
        say::note(&format!("`{}`: {} result lines have a value that is not JSON", path.display(), found.malformed));
    }
    let outcome = |(ix, values): (usize, Values)| CellOutcome {
        id: format!("{}:{ix}", path.display()),
        succeeded: lines::succeeded(&values),
        values,
    };
    Ok(found.benchmarks.into_iter().enumerate().map(outcome).collect())
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<CellOutcome>, String> {
    let read = paths.iter().map(|path| read(path));
    Ok(read.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Refuses a key of no result, which would make an empty table.
fn check_key(name: &str, outcomes: &[CellOutcome]) -> Result<(), String> {
    if outcomes.iter().any(|outcome| outcome.values.contains_key(name)) {
        return Ok(());
    }
    let known: BTreeSet<&str> = outcomes.iter().flat_map(|own| own.values.keys().map(String::as_str)).collect();
    let nearest = nearest_of(name, known.into_iter()).join(", ");
    Err(format!("no result has the key `{name}`; the nearest are {nearest}"))
}

fn report(args: &Report) -> Result<String, String> {
    let outcomes = read_all(&args.files)?;
    if outcomes.is_empty() {
        return Err("the files have no results".into());
    }
    let outcomes = args.selected.apply(outcomes)?;
    let value = Some(&args.value).filter(|value| *value != DEFAULT_VALUE);
    let chosen = args.rows.iter().chain(&args.columns).chain(value);
    chosen.map(String::as_str).try_for_each(|name| check_key(name, &outcomes))?;
    let before = args.before.as_deref().map(read).transpose()?;
    let columns = |default: &str| args.columns.clone().unwrap_or_else(|| default.to_string());
    let (rows, value) = (args.rows.clone(), args.value.clone());
    let select = TableSelection { rows, columns: columns("exp.replica_batch"), value };
    // Of all tables, the columns are those of the exploration.
    let over = match args.kind {
        Kind::All => scaling_parameter(&outcomes).to_string(),
        _ => columns(scaling_parameter(&outcomes)),
    };
    let table = |kind| {
        Ok(match kind {
            Kind::Summary => summary(&outcomes),
            Kind::Exploration => exploration(&outcomes, &select),
            Kind::Weak => scaling(&outcomes, &over, Scaling::Weak),
            Kind::Strong => scaling(&outcomes, &over, Scaling::Strong),
            Kind::Memory => memory_table(&outcomes),
            Kind::Resources => timelines(&outcomes),
            Kind::Comparison | Kind::All => {
                comparison(before.as_ref().ok_or("a comparison needs --before FILE")?, &outcomes)
            }
        })
    };
    let tables: Vec<ResultTable> = match args.kind {
        Kind::All => {
            let always = [Kind::Summary, Kind::Exploration, Kind::Weak, Kind::Strong, Kind::Memory, Kind::Resources];
            let kinds = always.into_iter().chain(before.is_some().then_some(Kind::Comparison));
            let tables: Vec<ResultTable> = kinds.map(table).collect::<Result<_, String>>()?;
            tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
        }
        kind => vec![table(kind)?],
    };
    if let [table] = &tables[..]
        && table.rows.is_empty()
    {
        let why = match args.kind {
            Kind::Weak => format!("no benchmarks differ in `{over}` with one batch for each; see --columns"),
            Kind::Strong => format!("no benchmarks differ in `{over}` with one whole batch; see --columns"),
            Kind::Resources => "no cell was monitored; see monitor.frequency".to_string(),
            _ => "it has no rows".to_string(),
        };
        say::note(&format!("{}: {why}", table.title));
    }
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
    let outcomes = args.selected.apply(read_all(&paths)?)?;
    if let Some(path) = args.output.as_deref().filter(|path| is_of_dlbs(path)) {
        let benchmarks: Vec<Values> = outcomes.into_iter().map(|outcome| outcome.values).collect();
        lines::write_file(path, &benchmarks)?;
        return Ok(format!("wrote {}\n", path.display()));
    }
    let mut text = String::new();
    for outcome in outcomes {
        text.push_str(&serde_json::to_string(&outcome).map_err(|error| error.to_string())?);
        text.push('\n');
    }
    deliver(args.output.as_deref(), text)
}

/// Whether a name is that of a file of `bench_data.py`.
fn is_of_dlbs(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".json") || name.ends_with(".json.gz")
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
