//! MXNet's five-column CSV.

use super::{ImportError, Kind, Row, role, scope};
use crate::export::mxnet::RESIDUAL;
use crate::model::{Origin, Report, Unnamed};

/// Reads the CSV, whose header was already recognized. Rows that MXNet adds for unattributed memory keep no name.
pub(super) fn read(name: &str, text: &str) -> Result<Report, ImportError> {
    let mut rows = Vec::new();
    let mut unnamed = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (number, line) in lines.skip(1) {
        let wrong = |error: &str| ImportError(format!("line {}: {error}", number + 1));
        let fields = fields(line).ok_or_else(|| wrong("a quote is not closed"))?;
        let [tag, requested, device, actual, _reuse] = &fields[..] else {
            return Err(wrong(&format!("{} columns instead of five", fields.len())));
        };
        let size = |text: &str, column: &str| {
            text.trim().parse::<u64>().map_err(|_| wrong(&format!("`{text}` in `{column}` is no number of bytes")))
        };
        let (requested, actual) = (size(requested, "Requested Size")?, size(actual, "Actual Size")?);
        if tag.starts_with(RESIDUAL) {
            // MXNet subtracts unsigned numbers: a wrapped difference was negative.
            let what = format!("device {device}: used by the process and not by the pool");
            unnamed.push(Unnamed { what, bytes: actual as i64 });
            continue;
        }
        rows.push((device.clone(), tag.clone(), requested, actual));
    }
    let several = rows.iter().any(|(device, ..)| *device != rows[0].0);
    let row = |(device, tag, requested, actual): (String, String, u64, u64)| {
        let place = if several { format!("device {device}/") } else { String::new() };
        Row { scope: place + &scope(&tag), role: role(&tag), tag, requested, actual }
    };
    super::report(Origin::MxnetCsv, name, Kind::Snapshot, rows.into_iter().map(row).collect(), unnamed)
}

/// The fields of a line, optionally quoted, with quotes doubled inside. `None` if a quote is not closed.
fn fields(line: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.trim_end_matches('\r').chars().peekable();
    while let Some(c) = chars.next() {
        let field = fields.last_mut().expect("there is a first field");
        match c {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => field.push(c),
        }
    }
    (!quoted).then_some(fields)
}
