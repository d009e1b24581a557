//! [`Cli`]: every command and flag, declared once with clap.
//!
//! The parser, the help texts, shell completions and `docs/reference/cli.md` ([`crate::reference`]) come from it.

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    arena, benchmark, compile, completions, diff, experiment, export, im2rec, models, profile, target, what_if,
};

/// Neural networks compiled ahead of time: one planned executable per model.
#[derive(Parser)]
#[command(name = "prestow", version, args_override_self = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// A command with its flags. The first line of each comment is its help.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Compile a model to one executable.
    Compile(Box<compile::Args>),
    /// List the networks of the zoo.
    Models(models::Args),
    /// Write a model as ONNX.
    Export(Box<export::Args>),
    /// Plan a model for several batches and dtypes; find the largest batch that fits.
    WhatIf(Box<what_if::Args>),
    /// Compare the plans of two executables or reports; exit code 1 if they differ.
    Diff(diff::Args),
    /// Place the buffers of a table in one arena.
    Arena(arena::Args),
    /// Show the profile of an executable, a report's JSON, MXNet's CSV or TBD's log.
    #[command(subcommand)]
    Profile(profile::Action),
    /// Measure a model, with the flags and result lines of DLBS.
    Benchmark(Box<benchmark::Args>),
    /// Run grids of benchmarks and report their results.
    #[command(subcommand)]
    Experiment(Box<experiment::Action>),
    /// Pack image files into RecordIO, with the flags of MXNet's im2rec.
    Im2rec(Box<im2rec::Args>),
    /// Describe the GPU of this machine, to compile for it elsewhere.
    #[command(subcommand)]
    Target(target::Action),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Print the version.
    Version,
    /// Print the reference of commands (`docs/reference/cli.md`).
    #[command(hide = true)]
    Reference,
}

/// Columns of a flag's description.
const HELP_WIDTH: usize = 72;

/// The command tree, with descriptions broken into lines.
pub(crate) fn command() -> clap::Command {
    let mut command = wrapped(Cli::command());
    command.build();
    command
}

/// Breaks descriptions into lines: clap's own wrapping needs the size of the terminal.
fn wrapped(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_help().map(ToString::to_string) {
        Some(help) => argument.help(wrap(&help)),
        None => argument,
    });
    let names: Vec<String> = command.get_subcommands().map(|own| own.get_name().to_string()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, wrapped))
}

/// A text in lines of at most [`HELP_WIDTH`] columns, if its words are no longer.
fn wrap(text: &str) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is a first line");
        match last.is_empty() {
            true => last.push_str(word),
            false if last.chars().count() + 1 + word.chars().count() <= HELP_WIDTH => *last += &format!(" {word}"),
            false => lines.push(word.into()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_tree_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_has_a_description() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }

    #[test]
    fn last_value_of_a_flag_wins() {
        let words = ["prestow", "arena", "a.csv", "--capacity", "1", "--capacity", "2"];
        let Ok(Cli { command: Some(Command::Arena(args)) }) = Cli::try_parse_from(words) else {
            panic!("arena takes a capacity");
        };
        assert_eq!(args.capacity, Some(2));
    }
}
