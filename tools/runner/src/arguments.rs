//! Command lines to [`Command`]s. All words are judged before anything is done.

use std::path::PathBuf;

use lexopt::prelude::*;
use report::Request;

/// What is asked of an executable.
pub(crate) enum Command {
    Summary(Common),
    Run(Run),
    Bench { common: Common, warmup: usize, iters: usize },
    Profile { common: Common, warmup: usize, iters: usize, slowest: usize, trace: Option<PathBuf> },
    Memory(Box<Memory>),
    Describe(Common),
    Help,
    Version,
}

/// What every command takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    pub(crate) json: bool,
    pub(crate) threads: Option<usize>,
    pub(crate) device: Option<usize>,
    pub(crate) batch: Option<u64>,
}

/// One run and what to do with its results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) common: Common,
    pub(crate) image: Option<PathBuf>,
    pub(crate) inputs: Vec<(String, PathBuf)>,
    pub(crate) seed: Option<u64>,
    pub(crate) output_dir: Option<PathBuf>,
    pub(crate) top: Option<usize>,
}

/// The memory report and where it goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) common: Common,
    pub(crate) actual: bool,
    pub(crate) placement: Option<PathBuf>,
    pub(crate) request: Request,
}

/// What goes before and behind the flags of reports.
pub(crate) const HELP: [&str; 2] = [
    "\
usage: EXE                        what this is, one run, planned against actual memory
       EXE run                    one run on given or made-up inputs
       EXE bench                  latency over many runs
       EXE profile                where the time goes, step by step
       EXE memory                 where every byte lies; --actual compares with a run
       EXE describe               model, inputs, outputs, size of the work

run:      --image FILE            a PNG or JPEG picture, prepared as the model wants it
          --input NAME=FILE.npy   one input; repeat for several
          --synthetic seed:N      made-up inputs (the default, with seed:1)
          --output-dir DIR        write one NAME.npy per output
          --top K                 the K highest scores of the first output
bench, profile:
          --warmup W              runs that are not counted (default 10)
          --iters N               runs that are counted (default 100)
profile:  --trace FILE.json       time and memory of the steps in one trace, for Chrome and Perfetto
          --top K                 the K slowest steps (default 20)
memory:   --actual                run under observation; exit code 1 if plan and actual differ
          --placement FILE.csv    every buffer's life and place in minimalloc's form
",
    "\
all:      --batch N               which of the batches it was compiled for (default: the first)
          --threads N             threads that compute (default: the processors at hand)
          --device N              which GPU, where it is compiled for one (default 0)
          --json                  for machines
          --help, --version
",
];

/// Parses a command line.
pub(crate) fn parse(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let (mut name, mut run) = (None::<String>, Run::default());
    let (mut warmup, mut iters, mut top) = (None, None, None);
    let mut memory = Memory::default();
    let mut memory_flag = None;
    while let Some(word) = words.next().map_err(text)? {
        if let Long(flag) = &word
            && Request::takes(flag)
            && *flag != "top"
        {
            let flag = flag.to_string();
            let value = words.value().map_err(text)?;
            memory.request.set(&flag, value).map_err(|error| format!("--{flag}: {error}"))?;
            memory_flag = Some(flag);
            continue;
        }
        match word {
            Value(word) if name.is_none() => name = Some(word.string().map_err(text)?),
            Long("json") => run.common.json = true,
            Long("threads") => run.common.threads = Some(count(&mut words, "threads", 1)?),
            Long("batch") => run.common.batch = Some(count(&mut words, "batch", 1)? as u64),
            Long("device") => run.common.device = Some(count(&mut words, "device", 0)?),
            Long("image") => run.image = Some(words.value().map_err(text)?.into()),
            Long("input") => {
                let given = words.value().and_then(|word| word.string()).map_err(text)?;
                let (name, file) =
                    given.split_once('=').ok_or_else(|| format!("--input takes NAME=FILE.npy, not `{given}`"))?;
                run.inputs.push((name.to_string(), file.into()));
            }
            Long("synthetic") => {
                let given = words.value().and_then(|word| word.string()).map_err(text)?;
                let seed = given.strip_prefix("seed:").and_then(|seed| seed.parse().ok());
                run.seed = Some(seed.ok_or_else(|| format!("--synthetic takes seed:N, not `{given}`"))?);
            }
            Long("output-dir") => run.output_dir = Some(words.value().map_err(text)?.into()),
            Long("top") => top = Some(count(&mut words, "top", 1)?),
            Long("warmup") => warmup = Some(count(&mut words, "warmup", 0)?),
            Long("iters") => iters = Some(count(&mut words, "iters", 1)?),
            Long("actual") => {
                memory.actual = true;
                memory_flag = Some("actual".into());
            }
            Long("placement") => {
                memory.placement = Some(words.value().map_err(text)?.into());
                memory_flag = Some("placement".into());
            }
            Long("help") | Short('h') => return Ok(Command::Help),
            Long("version") | Short('V') => return Ok(Command::Version),
            other => return Err(text(other.unexpected())),
        }
    }
    let name = name.unwrap_or_default();
    let uses_run = run.image.is_some() || !run.inputs.is_empty() || run.seed.is_some() || run.output_dir.is_some();
    let misplaced = |flags: &str| Err(format!("{flags} does not go with `{name}`; --help lists what does"));
    if uses_run && name != "run" {
        return misplaced("an input or output flag");
    }
    if (warmup.is_some() || iters.is_some()) && !["bench", "profile"].contains(&&*name) {
        return misplaced("--warmup or --iters");
    }
    // `profile` takes one of them: a trace.
    let is_trace = |flag: &str| flag == "trace" && memory.request.files.len() == 1;
    if let Some(flag) = memory_flag
        && !(name == "memory" || name == "profile" && is_trace(&flag))
    {
        return misplaced(&format!("--{flag}"));
    }
    if top.is_some() && !["run", "profile", "memory"].contains(&&*name) {
        return misplaced("--top");
    }
    if run.common.json && !memory.request.views.is_empty() {
        return Err("--json has everything; leave out --view".into());
    }
    let ways = [run.image.is_some(), !run.inputs.is_empty(), run.seed.is_some()];
    if 1 < ways.iter().filter(|&&way| way).count() {
        return Err("--image, --input and --synthetic exclude each other".into());
    }
    let common = run.common.clone();
    match name.as_str() {
        "" => Ok(Command::Summary(common)),
        "run" => Ok(Command::Run(Run { top, ..run })),
        "bench" => Ok(Command::Bench { common, warmup: warmup.unwrap_or(10), iters: iters.unwrap_or(100) }),
        "profile" => {
            let trace = memory.request.files.pop().map(|(_, path)| path);
            let (warmup, iters, slowest) = (warmup.unwrap_or(10), iters.unwrap_or(100), top.unwrap_or(20));
            Ok(Command::Profile { common, warmup, iters, slowest, trace })
        }
        "memory" => {
            memory.request.options.rows = top.unwrap_or(memory.request.options.rows);
            Ok(Command::Memory(Box::new(Memory { common, ..memory })))
        }
        "describe" => Ok(Command::Describe(common)),
        other => Err(format!("`{other}` is not a command; there are run, bench, profile, memory and describe")),
    }
}

fn count(words: &mut lexopt::Parser, flag: &str, least: usize) -> Result<usize, String> {
    let word = words.value().and_then(|word| word.string()).map_err(|error| error.to_string())?;
    let number = word.parse().ok().filter(|&number| (least..=1_000_000).contains(&number));
    number.ok_or_else(|| format!("--{flag} takes a number from {least} to 1000000, not `{word}`"))
}
