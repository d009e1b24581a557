//! Command lines to [`Command`]s. All words are judged before anything is done.

use std::path::PathBuf;

use lexopt::prelude::*;

/// What is asked of an executable.
pub(crate) enum Command {
    Summary(Common),
    Run(Run),
    Bench { common: Common, warmup: usize, iters: usize },
    Profile { common: Common, warmup: usize, iters: usize },
    Memory { common: Common, actual: bool, placement: Option<PathBuf> },
    Describe(Common),
    Help,
    Version,
}

/// What every command takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    pub(crate) json: bool,
    pub(crate) threads: Option<usize>,
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

pub(crate) const HELP: &str = "\
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
memory:   --placement FILE.csv    write every buffer's life and place in minimalloc's form
          --actual                run under observation; exit code 1 if plan and actual differ
all:      --batch N               which of the batches it was compiled for (default: the first)
          --threads N             threads that compute (default: the processors at hand)
          --json                  for machines
          --help, --version
";

/// Parses a command line.
pub(crate) fn parse(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let (mut name, mut run) = (None::<String>, Run::default());
    let (mut warmup, mut iters, mut actual, mut placement) = (None, None, false, None);
    while let Some(word) = words.next().map_err(text)? {
        match word {
            Value(word) if name.is_none() => name = Some(word.string().map_err(text)?),
            Long("json") => run.common.json = true,
            Long("threads") => run.common.threads = Some(count(&mut words, "threads", 1)?),
            Long("batch") => run.common.batch = Some(count(&mut words, "batch", 1)? as u64),
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
            Long("top") => run.top = Some(count(&mut words, "top", 1)?),
            Long("warmup") => warmup = Some(count(&mut words, "warmup", 0)?),
            Long("iters") => iters = Some(count(&mut words, "iters", 1)?),
            Long("actual") => actual = true,
            Long("placement") => placement = Some(PathBuf::from(words.value().map_err(text)?)),
            Long("help") | Short('h') => return Ok(Command::Help),
            Long("version") | Short('V') => return Ok(Command::Version),
            other => return Err(text(other.unexpected())),
        }
    }
    let name = name.unwrap_or_default();
    let uses_run = run.image.is_some()
        || !run.inputs.is_empty()
        || run.seed.is_some()
        || run.output_dir.is_some()
        || run.top.is_some();
    let misplaced = |flags: &str| Err(format!("{flags} does not go with `{name}`; --help lists what does"));
    if uses_run && name != "run" {
        return misplaced("an input or output flag");
    }
    if (warmup.is_some() || iters.is_some()) && !["bench", "profile"].contains(&&*name) {
        return misplaced("--warmup or --iters");
    }
    if (actual || placement.is_some()) && name != "memory" {
        return misplaced("--actual or --placement");
    }
    let ways = [run.image.is_some(), !run.inputs.is_empty(), run.seed.is_some()];
    if 1 < ways.iter().filter(|&&way| way).count() {
        return Err("--image, --input and --synthetic exclude each other".into());
    }
    let common = run.common.clone();
    match name.as_str() {
        "" => Ok(Command::Summary(common)),
        "run" => Ok(Command::Run(run)),
        "bench" => Ok(Command::Bench { common, warmup: warmup.unwrap_or(10), iters: iters.unwrap_or(100) }),
        "profile" => Ok(Command::Profile { common, warmup: warmup.unwrap_or(10), iters: iters.unwrap_or(100) }),
        "memory" => Ok(Command::Memory { common, actual, placement }),
        "describe" => Ok(Command::Describe(common)),
        other => Err(format!("`{other}` is not a command; there are run, bench, profile, memory and describe")),
    }
}

fn count(words: &mut lexopt::Parser, flag: &str, least: usize) -> Result<usize, String> {
    let word = words.value().and_then(|word| word.string()).map_err(|error| error.to_string())?;
    let number = word.parse().ok().filter(|&number| (least..=1_000_000).contains(&number));
    number.ok_or_else(|| format!("--{flag} takes a number from {least} to 1000000, not `{word}`"))
}
