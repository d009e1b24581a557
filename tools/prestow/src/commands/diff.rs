//! `prestow diff`: the differences between two plans.

use std::path::PathBuf;

use report::{Diff, Page};

use super::Answer;
use super::profile::{read, write};
use crate::flags::{DiffReport, ReportFlags};

/// Flags of `prestow diff`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// An executable, a report's JSON or another program's profile.
    a: PathBuf,
    /// The file that is compared with it.
    b: PathBuf,
    /// The batch, for executables with several (default: the first).
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Report")]
    report: ReportFlags<DiffReport>,
}

/// Compares two plans. The answer is no if they differ.
pub(crate) fn run(args: &Args) -> Result<Answer, String> {
    let request = &args.report.request;
    let (a, b) = (read(&args.a, args.batch)?, read(&args.b, args.batch)?);
    let diff = Diff::new(&a, &b);
    let page = Page { diff: Some(&diff), ..Page::new(&b, &request.options) };
    write(&request.files(&page))?;
    let text = match args.json {
        true => format!("{:#}\n", serde_json::json!(diff)),
        false => diff.text(request.options.width, request.options.rows),
    };
    Ok(Answer { text, yes: diff.is_same() })
}
