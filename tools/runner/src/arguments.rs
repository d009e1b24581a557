//! Command lines to [`Command`]s. One table of flags ([`FLAGS`]) gives the parser and the help texts. All arguments are
//! checked before anything runs.

use std::ffi::OsString;
use std::fmt::{Display, Write};
use std::path::PathBuf;
use std::str::FromStr;

use data::DataSpec;
use lexopt::prelude::*;
use report::{ReportRequest, ViewOptions};
use train::{Metric, Schedule};

/// A parsed command line.
pub(crate) enum Command {
    Summary(Common),
    Run(Run),
    Bench { run: Run, warmup: usize, iters: usize },
    Profile { run: Run, warmup: usize, iters: usize, rows: Rows, trace: Option<PathBuf> },
    Memory(Box<Memory>),
    Train(Box<Train>),
    Evaluate(Evaluate),
    Weights(ExportWeights),
    Describe(Common),
    Help(String),
    Version,
}

/// The steps that a profile lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// This many, by time.
    Slowest(usize),
    /// Those far below the machine's peak rates.
    BelowPeak,
}

/// Flags of every command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    pub(crate) json: bool,
    pub(crate) threads: Option<usize>,
    pub(crate) device: Option<usize>,
    pub(crate) batch: Option<u64>,
}

/// One run and the use of its results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) common: Common,
    pub(crate) image: Option<PathBuf>,
    pub(crate) inputs: Vec<(String, PathBuf)>,
    pub(crate) seed: Option<u64>,
    pub(crate) output_dir: Option<PathBuf>,
    pub(crate) top: Option<usize>,
    pub(crate) values: Limit,
    pub(crate) weights_from: WeightsFrom,
}

/// Where a run takes its weights from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WeightsFrom {
    /// From a daemon if one answers, else from the executable's own file.
    #[default]
    Any,
    /// From a daemon, or the run fails.
    Daemon,
    /// From the executable's own file.
    Private,
}

/// The most elements of a result that `run --json` prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit(pub(crate) usize);

impl Default for Limit {
    fn default() -> Limit {
        Limit(1000)
    }
}

impl FromStr for Limit {
    type Err = ();

    fn from_str(text: &str) -> Result<Limit, ()> {
        if text == "all" { Ok(Limit(usize::MAX)) } else { text.parse().map(Limit).map_err(drop) }
    }
}

/// The memory report and its destinations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) common: Common,
    pub(crate) actual: bool,
    pub(crate) placement: Option<PathBuf>,
    pub(crate) request: ReportRequest,
}

/// A run of training.
pub(crate) struct Train {
    pub(crate) common: Common,
    pub(crate) data: DataSpec,
    pub(crate) validate: Option<DataSpec>,
    pub(crate) duration: Duration,
    pub(crate) learning_rate: Option<f32>,
    pub(crate) schedule: Option<Schedule>,
    pub(crate) seed: Option<u64>,
    pub(crate) metric: Option<Metric>,
    pub(crate) checkpoint: Option<PathBuf>,
    pub(crate) every: Option<u64>,
    pub(crate) resume: Option<PathBuf>,
    pub(crate) log: Option<PathBuf>,
    pub(crate) check_finite: bool,
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duration {
    Epochs(u64),
    Steps(u64),
}

/// An evaluation.
pub(crate) struct Evaluate {
    pub(crate) common: Common,
    pub(crate) data: DataSpec,
    pub(crate) metric: Option<Metric>,
    pub(crate) checkpoint: Option<PathBuf>,
}

/// An export of weights.
pub(crate) struct ExportWeights {
    pub(crate) common: Common,
    pub(crate) output: PathBuf,
    pub(crate) checkpoint: Option<PathBuf>,
}

/// The commands with their summaries; the first is the one without a name.
const COMMANDS: [(&str, &str); 11] = [
    ("", "model, one run, planned and actual memory"),
    ("run", "run once on given or synthetic inputs"),
    ("bench", "measure the latency of many runs"),
    ("profile", "time each step"),
    ("memory", "report every byte of memory; --actual compares with a run"),
    ("train", "train on a data set (needs compile --train)"),
    ("evaluate", "measure loss and metric of a data set (needs compile --train)"),
    ("weights", "write the weights for compile --weights (needs compile --train)"),
    ("describe", "show model, inputs, outputs and size of the work"),
    ("help", "show this text, or the flags of a command: help COMMAND"),
    ("version", "show the version"),
];

/// Commands that run or inspect the model.
const ALL: &[&str] = &["", "run", "bench", "profile", "memory", "train", "evaluate", "weights", "describe"];

/// Commands on a data set.
const DATA: &[&str] = &["train", "evaluate"];

/// Commands that run the model on inputs of the caller's choice.
const RUNS: &[&str] = &["run", "bench", "profile"];

/// One flag.
struct Flag {
    name: &'static str,
    /// The placeholder of the value; empty if the flag has none.
    value: &'static str,
    commands: &'static [&'static str],
    help: &'static str,
}

const fn flag(name: &'static str, value: &'static str, commands: &'static [&'static str], help: &'static str) -> Flag {
    Flag { name, value, commands, help }
}

/// Every flag except those of memory reports ([`ReportRequest::FLAGS`]). A name may have one row per command.
const FLAGS: [Flag; 34] = [
    flag("image", "FILE", RUNS, "a PNG or JPEG image, preprocessed as the model requires"),
    flag("input", "NAME=FILE.npy", RUNS, "one input; repeat for several"),
    flag("synthetic", "seed:N", RUNS, "random inputs (the default, with seed:1)"),
    flag("output-dir", "DIR", &["run"], "write one NAME.npy for each output"),
    flag("top", "K", &["run"], "the K highest scores of the first output"),
    flag("values", "N|all", &["run"], "with --json, the most elements of a result to print (default 1000)"),
    flag(
        "weights-from",
        "SOURCE",
        &["run"],
        "uprd: wait for the daemon's weights or fail; private: use none (default: the daemon's if it has them)",
    ),
    flag("warmup", "W", &["bench", "profile"], "runs before the counted ones (default 10)"),
    flag("iters", "N", &["bench", "profile"], "counted runs (default 100)"),
    flag("trace", "FILE.json", &["profile"], "write time and memory of the steps for Chrome and Perfetto"),
    flag("top", "K", &["profile"], "the K slowest steps (default 20)"),
    flag("slow", "", &["profile"], "only steps below 25 % of their bound that take over 2 % of the time, worst first"),
    flag("actual", "", &["memory"], "run and audit; exit code 1 if plan and actual differ"),
    flag("placement", "FILE.csv", &["memory"], "write every buffer's lifetime and offset in minimalloc's form"),
    flag("data", "SPEC", DATA, "idx:DIR, npz:FILE, csv:FILE, images:DIR, rec:FILE or synthetic:SEED"),
    flag("validate", "SPEC", &["train"], "data to evaluate after each epoch"),
    flag("epochs", "N", &["train"], "epochs of the whole run"),
    flag("steps", "N", &["train"], "steps of the whole run, instead of --epochs"),
    flag("lr", "X", &["train"], "the learning rate (default: the optimizer's)"),
    flag("schedule", "SPEC", &["train"], "constant, step:every=N,factor=F, cosine:.. or linear-warmup:steps=N"),
    flag("seed", "N", &["train"], "seed of the order of the data and of dropout (default 1)"),
    flag("metric", "NAME", DATA, "accuracy, top5, perplexity or mse (default: the one that fits the labels)"),
    flag("checkpoint", "DIR", &["train"], "write checkpoints to this folder"),
    flag("every", "N", &["train"], "steps between checkpoints (default: an epoch)"),
    flag("resume", "DIR|FILE", &["train"], "continue from a checkpoint; a folder without one starts anew"),
    flag("log", "FILE.jsonl", &["train"], "write a JSON line for each step and epoch"),
    flag("check-finite", "", &["train"], "check every value of every step for NaN and infinity"),
    flag("checkpoint", "DIR|FILE", &["evaluate", "weights"], "take the weights from a checkpoint"),
    flag("output", "FILE", &["weights"], "FILE.safetensors, FILE.npz or FILE.params; also -o"),
    flag("batch", "N", ALL, "the compiled batch to use (default: the first)"),
    flag("threads", "N", ALL, "threads that compute (default: all processors)"),
    flag("device", "N", ALL, "the GPU, for plans of a cuda target (default 0)"),
    flag("json", "", ALL, "print JSON"),
    flag("help", "", ALL, "show the flags of the command"),
];

/// The flags of a command, from both tables: name, placeholder, description.
fn flags_of(command: &str) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let is_own = move |flag: &&Flag| flag.commands.contains(&command);
    let own = FLAGS.iter().filter(is_own).map(|flag| (flag.name, flag.value, flag.help));
    let report = ReportRequest::FLAGS.iter().filter(move |_| command == "memory");
    own.chain(report.map(|flag| (flag.name, flag.value, flag.help)))
}

/// The help text of a command, or of the program if the name is empty.
fn help(command: &str) -> String {
    let mut text = String::new();
    let (_, summary) = COMMANDS.iter().find(|(name, _)| *name == command).expect("a command of the table");
    if command.is_empty() {
        text.push_str("usage: EXE [COMMAND] [FLAGS]\n\n");
        for (name, summary) in COMMANDS {
            let _ = writeln!(text, "  {:<20}{summary}", format!("EXE {name}"));
        }
        text.push_str("\nflags of every command:\n");
    } else {
        let _ = writeln!(text, "usage: EXE {command} [FLAGS]\n\n{summary}\n\nflags:");
    }
    for (name, value, help) in flags_of(command) {
        let _ = writeln!(text, "  {:<26}{help}", format!("--{name} {value}"));
    }
    if command.is_empty() {
        text.push_str("\nEXE COMMAND --help shows the flags of a command.\n");
    }
    text
}

/// Parses a command line.
pub(crate) fn parse(mut words: lexopt::Parser) -> Result<Command, String> {
    let (command, given) = collect(&mut words)?;
    if command == "version" {
        return Ok(Command::Version);
    }
    if given.iter().any(|(name, _)| name == "help") {
        return Ok(Command::Help(help(&command)));
    }
    let (mut run, mut memory) = (Run::default(), Memory::default());
    if command == "memory" {
        memory.request.options = ViewOptions::of_terminal();
    }
    let mut training = Training::default();
    let (mut warmup, mut iters, mut top, mut trace, mut slow) = (10, 100, None, None, false);
    for (name, value) in given {
        if command == "memory" && ReportRequest::takes(&name) {
            memory.request.set(&name, value).map_err(|error| format!("--{name}: {error}"))?;
            continue;
        }
        let text = || value.to_str().ok_or_else(|| format!("--{name} takes text"));
        match &name[..] {
            "json" => run.common.json = true,
            "threads" => run.common.threads = Some(number(&name, text()?, 1, runtime::THREADS_MAX)?),
            "batch" => run.common.batch = Some(number(&name, text()?, 1, NUMBER_MAX)? as u64),
            "device" => run.common.device = Some(number(&name, text()?, 0, NUMBER_MAX)?),
            "image" => run.image = Some(value.into()),
            "input" => {
                let given = text()?;
                let (name, file) =
                    given.split_once('=').ok_or_else(|| format!("--input takes NAME=FILE.npy, got `{given}`"))?;
                run.inputs.push((name.to_string(), file.into()));
            }
            "synthetic" => {
                let given = text()?;
                let seed = given.strip_prefix("seed:").and_then(|seed| seed.parse().ok());
                run.seed = Some(seed.ok_or_else(|| format!("--synthetic takes seed:N, got `{given}`"))?);
            }
            "output-dir" => run.output_dir = Some(value.into()),
            "top" => top = Some(number(&name, text()?, 1, NUMBER_MAX)?),
            "values" => {
                let given = text()?;
                run.values = given.parse().map_err(|()| format!("--values takes a number or `all`, got `{given}`"))?;
            }
            "weights-from" => {
                run.weights_from = match text()? {
                    "uprd" => WeightsFrom::Daemon,
                    "private" => WeightsFrom::Private,
                    given => return Err(format!("--weights-from takes `uprd` or `private`, got `{given}`")),
                }
            }
            "warmup" => warmup = number(&name, text()?, 0, NUMBER_MAX)?,
            "iters" => iters = number(&name, text()?, 1, NUMBER_MAX)?,
            "trace" => trace = Some(value.into()),
            "slow" => slow = true,
            "actual" => memory.actual = true,
            "placement" => memory.placement = Some(value.into()),
            name if training.set(name, &value)? => {}
            other => unreachable!("`{other}` is in the table of flags and has an arm here"),
        }
    }
    if run.common.json && !memory.request.views.is_empty() {
        return Err("--json has everything; leave out --view".into());
    }
    if slow && top.is_some() {
        return Err("--slow and --top exclude each other".into());
    }
    let sources = [run.image.is_some(), !run.inputs.is_empty(), run.seed.is_some()];
    if 1 < sources.iter().filter(|&&is_given| is_given).count() {
        return Err("--image, --input and --synthetic exclude each other".into());
    }
    let common = run.common.clone();
    Ok(match &command[..] {
        "" => Command::Summary(common),
        "run" => Command::Run(Run { top, ..run }),
        "bench" => Command::Bench { run, warmup, iters },
        "profile" => {
            let rows = if slow { Rows::BelowPeak } else { Rows::Slowest(top.unwrap_or(20)) };
            Command::Profile { run, warmup, iters, rows, trace }
        }
        "train" => Command::Train(Box::new(training.train(common)?)),
        "evaluate" => {
            let (data, metric, checkpoint) = (training.data()?, training.metric, training.checkpoint);
            Command::Evaluate(Evaluate { common, data, metric, checkpoint })
        }
        "weights" => {
            let output = training.output.ok_or("weights needs a file: -o FILE.safetensors, .npz or .params")?;
            Command::Weights(ExportWeights { common, output, checkpoint: training.checkpoint })
        }
        "memory" => Command::Memory(Box::new(Memory { common, ..memory })),
        _ => Command::Describe(common),
    })
}

/// The command and its flags with their values. Every flag is in a table.
fn collect(words: &mut lexopt::Parser) -> Result<(String, Vec<(String, OsString)>), String> {
    let text = |error: lexopt::Error| format!("{error}; see --help");
    let (mut command, mut given) = (None::<String>, Vec::new());
    while let Some(word) = words.next().map_err(text)? {
        let name = match word {
            Value(word) if command.as_deref() == Some("help") => {
                command = Some(word.string().map_err(text)?);
                "help".to_string()
            }
            Value(word) if command.is_none() => {
                command = Some(word.string().map_err(text)?);
                continue;
            }
            Short('h') => "help".into(),
            Short('o') => "output".into(),
            Short('V') => "version".into(),
            Long(name) => name.to_string(),
            other => return Err(text(other.unexpected())),
        };
        let known = ALL.iter().flat_map(|command| flags_of(command)).find(|(own, ..)| *own == name);
        let value = match known {
            _ if name == "version" => {
                command = Some(name);
                continue;
            }
            None => return Err(format!("`--{name}` is not a flag; see --help")),
            Some((_, "", _)) => OsString::new(),
            Some(_) => words.value().map_err(text)?,
        };
        given.push((name, value));
    }
    let mut command = command.unwrap_or_default();
    if !COMMANDS.iter().any(|(name, _)| *name == command) {
        let names: Vec<&str> = COMMANDS.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        return Err(format!("`{command}` is not a command; the commands are {}", names.join(", ")));
    }
    if command == "help" {
        command.clear();
        given = vec![("help".into(), OsString::new())];
    }
    if let Some((name, _)) = given.iter().find(|(name, _)| !flags_of(&command).any(|(own, ..)| own == name))
        && command != "version"
    {
        let users: Vec<&str> = ALL.iter().copied().filter(|user| flags_of(user).any(|(own, ..)| own == name)).collect();
        let users = users.join(", ");
        return Err(match command.is_empty() {
            true => format!("--{name} needs a command: {users}"),
            false => format!("--{name} is not a flag of `{command}`, but of {users}; see {command} --help"),
        });
    }
    Ok((command, given))
}

/// Flags of training as they are read.
#[derive(Default)]
struct Training {
    data: Option<DataSpec>,
    validate: Option<DataSpec>,
    epochs: Option<u64>,
    steps: Option<u64>,
    learning_rate: Option<f32>,
    schedule: Option<Schedule>,
    seed: Option<u64>,
    metric: Option<Metric>,
    checkpoint: Option<PathBuf>,
    every: Option<u64>,
    resume: Option<PathBuf>,
    log: Option<PathBuf>,
    check_finite: bool,
    output: Option<PathBuf>,
}

impl Training {
    /// Sets a flag. Returns whether there is one of this name.
    fn set(&mut self, name: &str, value: &OsString) -> Result<bool, String> {
        let text = || value.to_str().ok_or_else(|| format!("--{name} takes text"));
        let path = || Some(PathBuf::from(value));
        let count = || {
            let count = text()?.parse().ok().filter(|count| (1..=1u64 << 40).contains(count));
            let wrong = || format!("--{name} takes a number from 1 to 2^40, got `{}`", value.to_string_lossy());
            count.map(Some).ok_or_else(wrong)
        };
        match name {
            "data" => self.data = Some(parsed(name, text()?)?),
            "validate" => self.validate = Some(parsed(name, text()?)?),
            "schedule" => self.schedule = Some(parsed(name, text()?)?),
            "metric" => self.metric = Some(parsed(name, text()?)?),
            "epochs" => self.epochs = count()?,
            "steps" => self.steps = count()?,
            "every" => self.every = count()?,
            "seed" => {
                let seed = text()?.parse().map_err(|_| {
                    format!("--seed takes a number from 0 to 2^64 - 1, got `{}`", value.to_string_lossy())
                });
                self.seed = Some(seed?);
            }
            "lr" => {
                let rate = text()?.parse().ok().filter(|rate: &f32| rate.is_finite() && 0.0 <= *rate);
                let wrong = || format!("--lr takes a number from 0 to 3.4e38, got `{}`", value.to_string_lossy());
                self.learning_rate = Some(rate.ok_or_else(wrong)?);
            }
            "checkpoint" => self.checkpoint = path(),
            "resume" => self.resume = path(),
            "log" => self.log = path(),
            "output" => self.output = path(),
            "check-finite" => self.check_finite = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn data(&mut self) -> Result<DataSpec, String> {
        self.data
            .take()
            .ok_or_else(|| "a data set is needed: --data idx:DIR, npz:FILE, csv:FILE, images:DIR or another".into())
    }

    fn train(mut self, common: Common) -> Result<Train, String> {
        let data = self.data()?;
        let duration = match (self.epochs, self.steps) {
            (Some(epochs), None) => Duration::Epochs(epochs),
            (None, Some(steps)) => Duration::Steps(steps),
            (None, None) => return Err("the length of the run is needed: --epochs N or --steps N".into()),
            (Some(_), Some(_)) => return Err("--epochs and --steps exclude each other".into()),
        };
        if self.every.is_some() && self.checkpoint.is_none() && self.resume.is_none() {
            return Err("--every needs --checkpoint DIR".into());
        }
        // A run that continues goes on to write where it reads.
        let folder = self.resume.as_ref().filter(|path| !path.is_file()).cloned();
        Ok(Train {
            common,
            data,
            validate: self.validate,
            duration,
            learning_rate: self.learning_rate,
            schedule: self.schedule,
            seed: self.seed,
            metric: self.metric,
            checkpoint: self.checkpoint.or(folder),
            every: self.every,
            resume: self.resume,
            log: self.log,
            check_finite: self.check_finite,
        })
    }
}

fn parsed<T: FromStr<Err: Display>>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("--{flag}: {error}"))
}

fn number(flag: &str, text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("--{flag} takes a number from {least} to {most}, got `{text}`"))
}

/// The largest number that a flag takes.
const NUMBER_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Command, String> {
        parse(lexopt::Parser::from_args(arguments))
    }

    fn help_of(arguments: &[&str]) -> String {
        match parsed(arguments) {
            Ok(Command::Help(text)) => text,
            _ => panic!("{arguments:?} does not show help"),
        }
    }

    #[test]
    fn help_and_version_are_words_and_flags() {
        for arguments in [&["help"][..], &["--help"], &["-h"]] {
            assert!(help_of(arguments).contains("EXE bench"), "{arguments:?}");
        }
        for arguments in [&["version"][..], &["--version"], &["-V"]] {
            assert!(matches!(parsed(arguments), Ok(Command::Version)), "{arguments:?}");
        }
    }

    #[test]
    fn help_of_a_command_has_its_flags_alone() {
        for arguments in [&["bench", "--help"][..], &["help", "bench"]] {
            let text = help_of(arguments);
            assert!(text.contains("--warmup W") && text.contains("--json"), "{text}");
            assert!(!text.contains("--top") && !text.contains("--html"), "{text}");
        }
        assert!(help_of(&["memory", "-h"]).contains("--html FILE"));
    }

    #[test]
    fn every_flag_of_the_table_is_parsed() {
        for command in ALL {
            for (name, value, _) in flags_of(command).filter(|(name, ..)| *name != "help") {
                let value = match name {
                    "input" => "x=y.npy",
                    "synthetic" => "seed:3",
                    "view" => "map",
                    "weights-from" => "uprd",
                    "by" => "peak",
                    "width" => "100",
                    "data" | "validate" => "npz:a.npz",
                    "schedule" => "cosine",
                    "metric" => "top5",
                    _ if value.is_empty() => "",
                    _ => "1",
                };
                let flag = if value.is_empty() { format!("--{name}") } else { format!("--{name}={value}") };
                // Words that the command needs besides the flag.
                let needed: &[&str] = match (*command, name) {
                    ("train", "steps" | "epochs") => &["--data=idx:a"],
                    ("train", "every") => &["--data=idx:a", "--epochs=1", "--checkpoint=a"],
                    ("train", _) => &["--data=idx:a", "--epochs=1"],
                    ("evaluate", _) => &["--data=idx:a"],
                    ("weights", _) => &["-o", "a.npz"],
                    _ => &[],
                };
                let arguments: Vec<&str> =
                    [*command].into_iter().chain(needed.iter().copied()).chain([&flag[..]]).collect();
                let arguments = if command.is_empty() { &arguments[1..] } else { &arguments };
                assert!(parsed(arguments).is_ok(), "{arguments:?}: {:?}", parsed(arguments).err());
            }
        }
    }

    #[test]
    fn flags_of_other_commands_are_refused_with_their_commands() {
        let error = |arguments: &[&str]| parsed(arguments).err().unwrap_or_default();
        assert_eq!(
            error(&["run", "--iters", "3"]),
            "--iters is not a flag of `run`, but of bench, profile; see run --help"
        );
        assert_eq!(error(&["--image", "x.png"]), "--image needs a command: run, bench, profile");
        assert_eq!(error(&["profile", "--slow", "--top", "3"]), "--slow and --top exclude each other");
        assert_eq!(
            error(&["bench", "--input", "x=y.npy", "--synthetic", "seed:1"]),
            "--image, --input and --synthetic exclude each other"
        );
        assert_eq!(error(&["run", "--fast"]), "`--fast` is not a flag; see --help");
        assert_eq!(error(&["run", "--values", "x"]), "--values takes a number or `all`, got `x`");
        assert_eq!(
            error(&["train", "--epochs", "1"]),
            "a data set is needed: --data idx:DIR, npz:FILE, csv:FILE, images:DIR or another"
        );
        assert_eq!(error(&["train", "--data", "idx:a"]), "the length of the run is needed: --epochs N or --steps N");
        assert!(
            error(&["train", "--data", "x:a", "--epochs", "1"]).starts_with("--data: data `x:a`: `x` is not a kind")
        );
        assert!(error(&["fly"]).starts_with("`fly` is not a command; the commands are run, bench,"));
    }
}
