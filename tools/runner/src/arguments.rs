//! Command lines to [`Command`]s. One table of flags ([`FLAGS`]) gives the parser and the help texts. All arguments are
//! checked before anything runs.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;

use lexopt::prelude::*;
use report::Request;

/// A parsed command line.
pub(crate) enum Command {
    Summary(Common),
    Run(Run),
    Bench { common: Common, warmup: usize, iters: usize },
    Profile { common: Common, warmup: usize, iters: usize, slowest: usize, trace: Option<PathBuf> },
    Memory(Box<Memory>),
    Describe(Common),
    Help(String),
    Version,
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
    pub(crate) request: Request,
}

/// The commands with their summaries; the first is the one without a name.
const COMMANDS: [(&str, &str); 8] = [
    ("", "model, one run, planned and actual memory"),
    ("run", "run once on given or synthetic inputs"),
    ("bench", "measure the latency of many runs"),
    ("profile", "time each step"),
    ("memory", "report every byte of memory; --actual compares with a run"),
    ("describe", "show model, inputs, outputs and size of the work"),
    ("help", "show this text, or the flags of a command: help COMMAND"),
    ("version", "show the version"),
];

/// Commands that run or inspect the model.
const ALL: &[&str] = &["", "run", "bench", "profile", "memory", "describe"];

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

/// Every flag except those of memory reports ([`Request::FLAGS`]). A name may have one row per command.
const FLAGS: [Flag; 17] = [
    flag("image", "FILE", &["run"], "a PNG or JPEG image, preprocessed as the model requires"),
    flag("input", "NAME=FILE.npy", &["run"], "one input; repeat for several"),
    flag("synthetic", "seed:N", &["run"], "random inputs (the default, with seed:1)"),
    flag("output-dir", "DIR", &["run"], "write one NAME.npy for each output"),
    flag("top", "K", &["run"], "the K highest scores of the first output"),
    flag("values", "N|all", &["run"], "with --json, the most elements of a result to print (default 1000)"),
    flag("warmup", "W", &["bench", "profile"], "runs before the counted ones (default 10)"),
    flag("iters", "N", &["bench", "profile"], "counted runs (default 100)"),
    flag("trace", "FILE.json", &["profile"], "write time and memory of the steps for Chrome and Perfetto"),
    flag("top", "K", &["profile"], "the K slowest steps (default 20)"),
    flag("actual", "", &["memory"], "run and audit; exit code 1 if plan and actual differ"),
    flag("placement", "FILE.csv", &["memory"], "write every buffer's lifetime and offset in minimalloc's form"),
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
    let report = Request::FLAGS.iter().filter(move |_| command == "memory");
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
    let (mut warmup, mut iters, mut top, mut trace) = (10, 100, None, None);
    for (name, value) in given {
        if command == "memory" && Request::takes(&name) {
            memory.request.set(&name, value).map_err(|error| format!("--{name}: {error}"))?;
            continue;
        }
        let text = || value.to_str().ok_or_else(|| format!("--{name} takes text"));
        match &name[..] {
            "json" => run.common.json = true,
            "threads" => run.common.threads = Some(number(&name, text()?, 1)?),
            "batch" => run.common.batch = Some(number(&name, text()?, 1)? as u64),
            "device" => run.common.device = Some(number(&name, text()?, 0)?),
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
            "top" => top = Some(number(&name, text()?, 1)?),
            "values" => {
                let given = text()?;
                run.values = given.parse().map_err(|()| format!("--values takes a number or `all`, got `{given}`"))?;
            }
            "warmup" => warmup = number(&name, text()?, 0)?,
            "iters" => iters = number(&name, text()?, 1)?,
            "trace" => trace = Some(value.into()),
            "actual" => memory.actual = true,
            "placement" => memory.placement = Some(value.into()),
            other => unreachable!("`{other}` is in the table of flags and has an arm here"),
        }
    }
    if run.common.json && !memory.request.views.is_empty() {
        return Err("--json has everything; leave out --view".into());
    }
    let sources = [run.image.is_some(), !run.inputs.is_empty(), run.seed.is_some()];
    if 1 < sources.iter().filter(|&&is_given| is_given).count() {
        return Err("--image, --input and --synthetic exclude each other".into());
    }
    let common = run.common.clone();
    Ok(match &command[..] {
        "" => Command::Summary(common),
        "run" => Command::Run(Run { top, ..run }),
        "bench" => Command::Bench { common, warmup, iters },
        "profile" => Command::Profile { common, warmup, iters, slowest: top.unwrap_or(20), trace },
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

fn number(flag: &str, text: &str, least: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=1_000_000).contains(number));
    number.ok_or_else(|| format!("--{flag} takes a number from {least} to 1000000, got `{text}`"))
}

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
            assert!(!text.contains("--image") && !text.contains("--html"), "{text}");
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
                    "by" => "peak",
                    "width" => "100",
                    _ if value.is_empty() => "",
                    _ => "1",
                };
                let flag = if value.is_empty() { format!("--{name}") } else { format!("--{name}={value}") };
                let arguments = [*command, &flag];
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
        assert_eq!(error(&["--image", "x.png"]), "--image needs a command: run");
        assert_eq!(error(&["run", "--fast"]), "`--fast` is not a flag; see --help");
        assert_eq!(error(&["run", "--values", "x"]), "--values takes a number or `all`, got `x`");
        assert!(error(&["fly"]).starts_with("`fly` is not a command; the commands are run, bench,"));
    }
}
