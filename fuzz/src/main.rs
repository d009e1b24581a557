//! Fuzzing: `prestow-fuzz [TARGET]... [--seconds N] [--seed N] [--corpus DIR]` runs each target on mutated inputs and keeps
//! those that reach new code. With `--corpus`, `DIR/TARGET` has the inputs that earlier runs kept, so that runs add up.
//!
//! `cargo xtask fuzz` builds this program with coverage counters ([`coverage`]). Without them, as in its own tests, inputs
//! are mutated blindly. A failure is a panic, an input of more than ten seconds of processor time, or a signal; its input is
//! written to `target/fuzz/failures/TARGET-HASH` and then made smaller. Each of several targets is a process of its own, so
//! that one which ends early does not end the others. `prestow-fuzz TARGET FILE` runs one input again.

mod coverage;
mod forge;
mod models;
mod mutate;
mod run;
mod seeds;
mod targets;
mod watch;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use run::{Limit, Outcome, fuzz};
use targets::{TARGETS, Target};

fn main() -> ExitCode {
    match asked(std::env::args().skip(1)) {
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::from(2)
        }
        Ok(Asked { targets, file: Some(file), .. }) => match std::fs::read(&file) {
            Ok(bytes) => {
                (targets[0].run)(&bytes);
                println!("{}: no failure", targets[0].name);
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: cannot read `{}`: {error}", file.display());
                ExitCode::from(2)
            }
        },
        Ok(Asked { targets, seconds, seed, corpus: folder, file: None }) => {
            let one = match targets.as_slice() {
                [target] => target,
                targets => return each(targets, seconds, seed, folder.as_deref()),
            };
            let folder = folder.map(|folder| folder.join(one.name));
            let outcome = fuzz(one, Limit::Time(Duration::from_secs(seconds)), seed, folder.as_deref());
            let Outcome { executions, seeds, corpus, seed_edges, edges, failures } = &outcome;
            println!("{:<20} {executions:>10} {seeds:>8} {corpus:>8} {seed_edges:>8} {edges:>8}", one.name);
            failures.iter().for_each(|failure| println!("  {failure}"));
            ExitCode::from(u8::from(!failures.is_empty()))
        }
    }
}

/// Runs each target in a process of its own, one after the other.
fn each(targets: &[&Target], seconds: u64, seed: u64, folder: Option<&Path>) -> ExitCode {
    // Inputs and edges, each at the start and in the end.
    println!("{:<20} {:>10} {:>8} {:>8} {:>8} {:>8}", "target", "inputs", "seeds", "corpus", "edges", "edges");
    let mut failed = false;
    for target in targets {
        let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "prestow-fuzz".into()));
        command.args([target.name, "--seconds", &seconds.to_string(), "--seed", &seed.to_string()]);
        command.args(folder.into_iter().flat_map(|folder| [OsStr::new("--corpus"), folder.as_os_str()]));
        let status = command.status();
        match &status {
            Ok(status) if status.success() => {}
            Ok(status) if status.code() == Some(1) => println!("{:<20} failed", target.name),
            Ok(status) => println!("{:<20} ended with {status}; its input is in `failures`", target.name),
            Err(error) => println!("{:<20} did not start: {error}", target.name),
        }
        failed |= !status.is_ok_and(|status| status.success());
    }
    ExitCode::from(u8::from(failed))
}

/// A command line.
struct Asked {
    targets: Vec<&'static Target>,
    seconds: u64,
    seed: u64,
    /// The folder of inputs that earlier runs kept.
    corpus: Option<PathBuf>,
    file: Option<PathBuf>,
}

fn asked(words: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked { targets: Vec::new(), seconds: 3, seed: 1, corpus: None, file: None };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut number = |name: &str| -> Result<u64, String> {
            let text = words.next().unwrap_or_default();
            text.parse().map_err(|_| format!("{name} must be a number, got `{text}`"))
        };
        match word.as_str() {
            "--seconds" => asked.seconds = number("--seconds")?,
            "--seed" => asked.seed = number("--seed")?,
            "--corpus" => asked.corpus = Some(words.next().ok_or("--corpus must name a folder")?.into()),
            name => match TARGETS.iter().find(|target| target.name == name) {
                Some(target) => asked.targets.push(target),
                None if asked.targets.len() == 1 && asked.file.is_none() => asked.file = Some(name.into()),
                None => {
                    let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                    return Err(format!("`{name}` is not a target; the targets are {}", known.join(", ")));
                }
            },
        }
    }
    if asked.targets.is_empty() {
        asked.targets = TARGETS.iter().collect();
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without coverage, from one seed: the same inputs every time.
    #[test]
    fn mutated_inputs_of_every_target_do_not_fail() {
        for target in &TARGETS {
            let outcome = fuzz(target, Limit::Executions(target.executions), 1, None);
            assert!(outcome.failures.is_empty(), "{}: {:?}", target.name, outcome.failures);
            assert!(0 < outcome.seeds, "{} has no seeds", target.name);
        }
    }

    /// Without coverage nothing reaches new code, so that nothing is added.
    #[test]
    fn inputs_of_an_earlier_run_are_seeds() {
        let target = TARGETS.iter().find(|target| target.name == "npy").expect("it is a target");
        let folder = std::env::temp_dir().join(format!("prestow-fuzz-corpus-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder for temporary files is writable");
        std::fs::write(folder.join("0"), "an input of an earlier run").expect("the folder is ours");
        let outcome = fuzz(target, Limit::Executions(50), 1, Some(&folder));
        assert_eq!(outcome.seeds, (target.seeds)().len() + 1);
        let files = std::fs::read_dir(&folder).expect("it is there").count();
        assert_eq!(files, 1 + outcome.corpus - outcome.seeds);
        std::fs::remove_dir_all(&folder).expect("the folder is ours");
    }

    #[test]
    fn seeds_of_readers_are_read() {
        for target in &TARGETS {
            let accepted = (target.seeds)().iter().filter(|seed| (target.run)(seed)).count();
            assert!(0 < accepted, "{}: no seed is accepted", target.name);
        }
    }
}
