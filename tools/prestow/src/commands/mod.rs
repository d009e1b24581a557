//! A file per command: its flags ([`clap::Args`]) and its work.

pub(crate) mod arena;
pub(crate) mod benchmark;
pub(crate) mod compile;
pub(crate) mod completions;
pub(crate) mod diff;
pub(crate) mod experiment;
pub(crate) mod export;
pub(crate) mod im2rec;
pub(crate) mod models;
pub(crate) mod profile;
mod separate;
mod stored_weights;
pub(crate) mod target;
pub(crate) mod what_if;

use std::fmt;

use compiler::source::SourceError;

/// The output of a command, and whether the answer to its question is yes.
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) yes: bool,
}

impl From<String> for Answer {
    fn from(text: String) -> Answer {
        Answer { text, yes: true }
    }
}

/// The message of an error, for commands that end with one.
fn message(error: impl fmt::Display) -> String {
    error.to_string()
}

/// The message of a model that does not load, with the command that lists networks if the name is unknown.
fn load_message(error: SourceError) -> String {
    match &error {
        SourceError::Zoo(zoo) if zoo.is_unknown_name() => format!("{error}; `prestow models` lists all networks"),
        _ => crate::remedy::explain(&error),
    }
}
