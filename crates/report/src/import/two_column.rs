//! The older CSV: `tag,MiB` per line.

use super::{ImportError, Kind, Row, role, scope};
use crate::model::{Origin, Report};

/// Reads the CSV. As in the original scripts, the tag of allocations outside the model is skipped.
pub(super) fn read(name: &str, text: &str) -> Result<Report, ImportError> {
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |error: &str| ImportError(format!("line {}: {error}", number + 1));
        let (tag, mib) = line.rsplit_once(',').ok_or_else(|| wrong("no comma between tag and MiB"))?;
        let bytes = mib.trim().parse::<f64>().ok().map(|mib| mib * f64::from(1 << 20));
        let bytes = bytes.filter(|bytes| (0.0..9.2e18).contains(bytes));
        let bytes = bytes.ok_or_else(|| wrong(&format!("`{mib}` is no number of MiB")))?.round() as u64;
        if tag == "skip me" {
            continue;
        }
        rows.push(Row { tag: tag.into(), scope: scope(tag), role: role(tag), requested: bytes, actual: bytes });
    }
    super::report(Origin::TwoColumnCsv, name, Kind::Sequence, rows, Vec::new())
}
