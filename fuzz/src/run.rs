//! [`fuzz`]: the loop over inputs of one target.

#![expect(clippy::disallowed_methods, reason = "fuzzing runs for a time")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use types::Random;

use crate::coverage::{self, Seen};
use crate::mutate::mutate;
use crate::targets::Target;
use crate::watch::Watch;

/// How long to run a target.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    /// Until this much time has passed.
    Time(Duration),
    /// This many inputs.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests are deterministic, and count"))]
    Executions(u64),
}

/// What a run of a target found.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) executions: u64,
    /// Inputs at the start.
    pub(crate) seeds: usize,
    /// Inputs at the end: the seeds, and those that reached something new.
    pub(crate) corpus: usize,
    /// Edges that the inputs at the start reached; 0 without instrumentation, or if the time ended before the last of them.
    pub(crate) seed_edges: usize,
    /// Edges that were reached in the end.
    pub(crate) edges: usize,
    /// Messages with the names of files.
    pub(crate) failures: Vec<String>,
}

/// Different failures after which a target ends.
const FAILURES_MAX: usize = 5;

/// Runs a target on its seeds and the files of `folder`, then on mutations of them and of inputs that reached new code,
/// which are added to `folder`.
pub(crate) fn fuzz(target: &Target, limit: Limit, seed: u64, folder: Option<&Path>) -> Outcome {
    let mut random = Random::for_name(seed, target.name);
    let mut corpus = (target.seeds)();
    corpus.extend(folder.into_iter().flat_map(stored));
    let mut outcome =
        Outcome { executions: 0, seeds: corpus.len(), corpus: 0, seed_edges: 0, edges: 0, failures: Vec::new() };
    let mut seen = Seen::default();
    let mut messages: Vec<String> = Vec::new();
    let watch = Watch::start(target.name);
    let start = Instant::now();
    let mut next = 0;
    loop {
        let is_over = match limit {
            Limit::Time(time) => time <= start.elapsed(),
            Limit::Executions(count) => count <= outcome.executions,
        };
        if is_over || FAILURES_MAX <= messages.len() {
            break;
        }
        let is_seed = next < outcome.seeds;
        let input = match is_seed {
            true => corpus[next].clone(),
            false => {
                // Half of the inputs come from the newest quarter.
                let length = corpus.len() as u64;
                let newest = (length / 4).max(1);
                let from = if random.below(2) == 0 { length - 1 - random.below(newest) } else { random.below(length) };
                let other = random.below(length) as usize;
                mutate(&corpus[from as usize], &corpus[other], &mut random)
            }
        };
        next += 1;
        coverage::reset();
        watch.begin(&input);
        let failure = run_once(target, &input);
        watch.end();
        outcome.executions += 1;
        let is_new = seen.add();
        if next == outcome.seeds {
            outcome.seed_edges = seen.edges();
        }
        match failure {
            Some(message) if !messages.contains(&message) => {
                let input = smaller(target, input, &message, &mut random);
                let path = save(&failures().join(format!("{}-{:016x}", target.name, hash(&input))), &input);
                outcome.failures.push(format!("{message}: {}", path.display()));
                messages.push(message);
            }
            Some(_) => {}
            None if is_new && !is_seed => {
                if let Some(folder) = folder {
                    save(&folder.join(format!("{:016x}", hash(&input))), &input);
                }
                corpus.push(input);
            }
            None => {}
        }
    }
    (outcome.corpus, outcome.edges) = (corpus.len(), seen.edges());
    outcome
}

/// The message of a panic without numbers, so that one fault has one message.
fn run_once(target: &Target, input: &[u8]) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| (target.run)(input))).err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("a panic without a text");
    Some(text.chars().filter(|symbol| !symbol.is_ascii_digit()).take(160).collect())
}

/// Removes ranges of a failing input while its message stays the same.
fn smaller(target: &Target, mut input: Vec<u8>, message: &str, random: &mut Random) -> Vec<u8> {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end && 1 < input.len() {
        let mut shorter = input.clone();
        let at = random.below(shorter.len() as u64) as usize;
        let length = 1 + random.below(1 + shorter.len() as u64 / 4) as usize;
        shorter.drain(at..(at + length).min(input.len()));
        if run_once(target, &shorter).as_deref() == Some(message) {
            input = shorter;
        }
    }
    input
}

/// The inputs of an earlier run, in the order of their names.
fn stored(folder: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}

/// The folder of failures: beside the program, in the target folder.
pub(crate) fn failures() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let target = own.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "target"));
    target.map_or_else(|| PathBuf::from("target"), PathBuf::from).join("fuzz/failures")
}

fn hash(input: &[u8]) -> u64 {
    input.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Writes a file and its folder. Returns its path.
fn save(path: &Path, input: &[u8]) -> PathBuf {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = made.and_then(|()| std::fs::write(path, input)) {
        eprintln!("cannot write `{}`: {error}", path.display());
    }
    path.to_path_buf()
}
