//! `EXE memory`: the report, its printed views, and its files.

use report::{Page, Report, View, placement_csv};

use crate::arguments::Memory;
use crate::commands::{Answer, chosen, measure, open_image, open_session, print_json};
use crate::say;
use crate::weights::Loaded;

/// Makes the report, writes its files, prints its views. The answer is no if plan and actual differ or a limit is exceeded.
pub(crate) fn memory(asked: &Memory) -> Result<Answer, String> {
    let mut request = asked.request.clone();
    if let Some(path) = &asked.request.groups {
        let text = files::read_text(path, report::GROUPS_MAX).map_err(|error| error.to_string())?;
        request.set_groups(path, &text)?;
    }
    let plan = chosen(&open_image()?, &asked.common)?;
    let report = if asked.actual {
        let loaded = Loaded::new(&asked.common)?;
        let mut session = open_session(&loaded, &asked.common)?;
        let tensors = runtime::synthetic_inputs(session.plan(), 1);
        measure(&loaded.image, &mut session, &tensors)?
    } else {
        Report::new(&plan)
    };
    let mut files = request.files(&Page::new(&report, &request.options));
    files.extend(asked.placement.iter().map(|path| (path.clone(), placement_csv(&plan).into_bytes())));
    files::write_all(&files).map_err(|error| error.to_string())?;
    if asked.common.json {
        print_json(&request.json(&report));
    } else {
        say::out(&request.text(&report));
        if asked.actual && request.views.is_empty() && files.is_empty() {
            say::out(&report.text(View::Actual, &request.options));
        }
    }
    let fits = request.fit(&report).is_none_or(|fit| fit.fits());
    Ok(if report.agrees() && fits { Answer::Yes } else { Answer::No })
}
