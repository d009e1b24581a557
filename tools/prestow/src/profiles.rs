//! `prestow profile`: the views of profiles that lie in files, of ours and of other programs.

use std::path::{Path, PathBuf};

use report::{Analysis, Page, Report};
use runtime::ImageFile;
use serde_json::json;

use crate::Answer;
use crate::arguments::{Action, Profile};

/// Reads, shows, writes. The answer is no where something was to fit and does not.
pub(crate) fn profile(asked: &Profile) -> Result<Answer, String> {
    let mut request = asked.report.clone();
    if let Some(path) = &asked.report.groups {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
        request.set_groups(path, &text)?;
    }
    let reports: Result<Vec<Report>, String> = asked.files.iter().map(|path| read(path, asked.batch)).collect();
    let reports = reports?;
    if 1 < reports.len() && !request.files.is_empty() {
        return Err("files are written for one profile at a time; name one".into());
    }
    let report = &reports[0];
    write(&request.files(&Page::new(report, &request.options)))?;
    let text = match asked.action {
        Action::Analysis => {
            let all: Vec<Analysis> = reports.iter().map(Analysis::new).collect();
            match asked.json {
                true => format!("{:#}\n", json!(all)),
                false => all.iter().map(Analysis::text).collect(),
            }
        }
        _ if asked.json => format!("{:#}\n", request.json(report)),
        Action::Import => request.text(report),
        Action::Entries => report.entries(&request.options),
    };
    Ok(Answer { text, yes: request.fit(report).is_none_or(|fit| fit.fits()) })
}

/// The report of a file: an executable's plan, a report's JSON, another program's profile.
pub(crate) fn read(path: &Path, batch: Option<u64>) -> Result<Report, String> {
    let name = path.display();
    let io = |error: std::io::Error| format!("cannot read `{name}`: {error}");
    let mut start = [0; 4];
    let mut file = std::fs::File::open(path).map_err(io)?;
    let is_program = std::io::Read::read_exact(&mut file, &mut start).is_ok() && &start == b"\x7fELF";
    if is_program {
        let image = ImageFile::open(path).map_err(|error| error.to_string())?;
        let plan = match batch {
            None => image.plans.first(),
            Some(batch) => image.plans.iter().find(|plan| plan.batch == batch),
        };
        let batches: Vec<String> = image.plans.iter().map(|plan| plan.batch.to_string()).collect();
        let missing = || format!("`{name}` has no plan for that batch; it has {}", batches.join(", "));
        return Ok(Report::new(plan.ok_or_else(missing)?));
    }
    if batch.is_some() {
        return Err(format!("`{name}` is no executable of several batches; leave out --batch"));
    }
    let bytes = std::fs::read(path).map_err(io)?;
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'{') {
        return report::read(&bytes).map_err(|error| format!("`{name}`: {error}"));
    }
    let title = path.file_name().map_or_else(|| name.to_string(), |name| name.to_string_lossy().into_owned());
    report::import(&title, &bytes).map_err(|error| format!("`{name}`: {error}"))
}

/// Writes files, each whole or not at all.
pub(crate) fn write(files: &[(PathBuf, Vec<u8>)]) -> Result<(), String> {
    files.iter().try_for_each(|(path, bytes)| files::write(path, bytes).map_err(|error| error.to_string()))
}
