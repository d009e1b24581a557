//! [`ReportFlags`]: the flags of memory reports, from the table of the crate `report`, which the runner uses too.

use std::ffi::OsString;
use std::marker::PhantomData;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use report::{Flag, ReportRequest, ViewOptions};

/// A choice of the table's flags.
pub(crate) trait Subset {
    /// Whether the command has the flag.
    fn has(name: &str) -> bool;

    /// Value and description of a flag that differ from the table's.
    fn override_help(_name: &str) -> Option<(&'static str, &'static str)> {
        None
    }
}

/// All flags: `profile`.
pub(crate) struct AllReports;

impl Subset for AllReports {
    fn has(_: &str) -> bool {
        true
    }
}

/// The flags of a page: `diff`.
pub(crate) struct DiffReport;

impl Subset for DiffReport {
    fn has(name: &str) -> bool {
        ["top", "width", "html"].contains(&name)
    }
}

/// The flags of a table over batches: `what-if`.
pub(crate) struct WhatIfReport;

impl Subset for WhatIfReport {
    fn has(name: &str) -> bool {
        ["fits", "top", "width", "html", "csv", "svg"].contains(&name)
    }

    fn override_help(name: &str) -> Option<(&'static str, &'static str)> {
        match name {
            "fits" => Some(("BYTES", "find the largest batch that fits, as 8GiB; exit code 1 if a given one does not")),
            "html" => Some(("FILE", "write a page with table, curve and the largest plan that fits")),
            "csv" => Some(("FILE", "write the table")),
            "svg" => Some(("FILE", "write the curve")),
            _ => None,
        }
    }
}

/// The request that the flags of a subset make.
pub(crate) struct ReportFlags<S> {
    pub(crate) request: ReportRequest,
    subset: PhantomData<S>,
}

fn flags<S: Subset>() -> impl Iterator<Item = &'static Flag> {
    ReportRequest::FLAGS.iter().filter(|flag| S::has(flag.name))
}

/// A description with an upper-case first letter, as clap's own have.
fn sentence(help: &str) -> String {
    let mut letters = help.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

impl<S: Subset> Args for ReportFlags<S> {
    fn augment_args(command: Command) -> Command {
        flags::<S>().fold(command, |command, flag| {
            let (value, help) = S::override_help(flag.name).unwrap_or((flag.value, flag.help));
            let argument = Arg::new(flag.name).long(flag.name).value_name(value).help(sentence(help));
            command.arg(argument.action(ArgAction::Append).value_parser(ValueParser::os_string()))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Subset> FromArgMatches for ReportFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut request = ReportRequest { options: ViewOptions::of_terminal(), ..ReportRequest::default() };
        for flag in flags::<S>() {
            for value in matches.get_many::<OsString>(flag.name).into_iter().flatten() {
                request
                    .set(flag.name, value.clone())
                    .map_err(|error| Error::raw(ErrorKind::ValueValidation, format!("--{}: {error}\n", flag.name)))?;
            }
        }
        Ok(ReportFlags { request, subset: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
