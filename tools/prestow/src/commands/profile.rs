//! `prestow profile`: the views of profiles in files, of prestow and of other programs.

use std::path::{Path, PathBuf};

use report::{Analysis, Page, Report, ReportRequest, ViewOptions};
use runtime::ImageFile;
use serde_json::json;

use super::{Answer, message};
use crate::flags::{AllReports, ReportFlags};

/// The kinds of `prestow profile`.
#[derive(clap::Subcommand)]
pub(crate) enum Action {
    /// Show the views of a profile.
    Import(OneFile),
    /// Print TBD's sums by keyword.
    Analysis(Files),
    /// List the largest entries by category.
    Entries(OneFile),
}

/// A profile.
#[derive(clap::Args)]
pub(crate) struct OneFile {
    /// An executable, a report's JSON, MXNet's CSV (two or five columns) or TBD's log.
    file: PathBuf,
    #[command(flatten)]
    shared: Shared,
}

/// Profiles.
#[derive(clap::Args)]
pub(crate) struct Files {
    /// Executables, reports' JSON, MXNet's CSV (two or five columns) or TBD's logs.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    shared: Shared,
}

/// Flags of every kind.
#[derive(clap::Args)]
pub(crate) struct Shared {
    /// The batch, for an executable with several (default: the first).
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Report")]
    report: ReportFlags<AllReports>,
}

/// Rows of `profile entries`, unless `--top` is given.
const ENTRIES: usize = 20;

/// Reads, shows, writes. The answer is no if the report does not fit `--fits`.
pub(crate) fn run(action: &Action) -> Result<Answer, String> {
    let (files, shared): (&[PathBuf], &Shared) = match action {
        Action::Import(OneFile { file, shared }) | Action::Entries(OneFile { file, shared }) => {
            (std::slice::from_ref(file), shared)
        }
        Action::Analysis(Files { files, shared }) => (files, shared),
    };
    let request = request(shared)?;
    let reports: Result<Vec<Report>, String> = files.iter().map(|path| read(path, shared.batch)).collect();
    let reports = reports?;
    if 1 < reports.len() && !request.files.is_empty() {
        return Err("reports are written for one profile at a time; name one file".into());
    }
    let report = &reports[0];
    write(&request.files(&Page::new(report, &request.options)))?;
    let text = match action {
        Action::Analysis(_) => {
            let all: Vec<Analysis> = reports.iter().map(Analysis::new).collect();
            match shared.json {
                true => format!("{:#}\n", json!(all)),
                false => all.iter().map(Analysis::text).collect(),
            }
        }
        _ if shared.json => format!("{:#}\n", request.json(report)),
        Action::Import(_) => request.text(report),
        Action::Entries(_) if request.options.rows == ViewOptions::default().rows => {
            report.entries(&ViewOptions { rows: ENTRIES, ..request.options.clone() })
        }
        Action::Entries(_) => report.entries(&request.options),
    };
    Ok(Answer { text, yes: request.fit(report).is_none_or(|fit| fit.fits()) })
}

/// The request, with the groups of its file.
fn request(shared: &Shared) -> Result<ReportRequest, String> {
    let mut request = shared.report.request.clone();
    if let Some(path) = request.groups.clone() {
        let text = files::read_text(&path, report::GROUPS_MAX).map_err(message)?;
        request.set_groups(&path, &text)?;
    }
    Ok(request)
}

/// The report of a file: an executable's plan, a report's JSON, another program's profile.
pub(crate) fn read(path: &Path, batch: Option<u64>) -> Result<Report, String> {
    let name = path.display();
    let mut start = [0; 4];
    // A pipe cannot be read twice, and is no executable.
    let mut file = files::open_regular(path).map_err(message)?;
    let is_program = std::io::Read::read_exact(&mut file, &mut start).is_ok() && &start == b"\x7fELF";
    if is_program {
        let plans = ImageFile::read_plans(path).map_err(message)?;
        let plan = match batch {
            None => plans.first(),
            Some(batch) => plans.iter().find(|plan| plan.batch == batch),
        };
        let batches: Vec<String> = plans.iter().map(|plan| plan.batch.to_string()).collect();
        let missing = || format!("`{name}` has no plan for that batch; it has {}", batches.join(", "));
        return Ok(Report::new(plan.ok_or_else(missing)?));
    }
    if batch.is_some() {
        return Err(format!("`{name}` is no executable of several batches; leave out --batch"));
    }
    let bytes = files::read(path, report::PROFILE_MAX).map_err(message)?;
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'{') {
        return report::read(&bytes).map_err(|error| format!("`{name}`: {error}"));
    }
    let title = path.file_name().map_or_else(|| name.to_string(), |name| name.to_string_lossy().into_owned());
    report::import(&title, &bytes).map_err(|error| format!("`{name}`: {error}"))
}

/// Writes all files or none.
pub(crate) fn write(files: &[(PathBuf, Vec<u8>)]) -> Result<(), String> {
    files::write_all(files).map_err(message)
}
