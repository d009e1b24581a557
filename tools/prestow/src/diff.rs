//! `prestow diff`: what one plan does otherwise than another.

use report::{Diff, Page};

use crate::Answer;
use crate::arguments::Compare;
use crate::profiles::{read, write};

/// Reads both, says how they differ. The answer is no where they do.
pub(crate) fn diff(asked: &Compare) -> Result<Answer, String> {
    let [a, b] = &asked.files;
    let (a, b) = (read(a, asked.batch)?, read(b, asked.batch)?);
    let diff = Diff::new(&a, &b);
    let page = Page { diff: Some(&diff), ..Page::new(&b, &asked.report.options) };
    write(&asked.report.files(&page))?;
    let text = match asked.json {
        true => format!("{:#}\n", serde_json::json!(diff)),
        false => diff.text(asked.report.options.width, asked.report.options.rows),
    };
    Ok(Answer { text, yes: diff.is_same() })
}
