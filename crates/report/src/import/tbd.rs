//! TBD's log: lines `[mem] Allocate N bytes GPU memory (TAG).` among other output of a program.

use super::{ImportError, Kind, Row, role, scope};
use crate::model::{Origin, Report, Unnamed};

/// Whether a line reports an allocation, in bytes or in MB.
pub(super) fn is_allocation(line: &str) -> bool {
    parse(line).is_some()
}

/// Reads the log. Releases have neither size nor tag, so they are only counted.
pub(super) fn read(name: &str, text: &str) -> Result<Report, ImportError> {
    let mut rows = Vec::new();
    let mut released = 0u64;
    for (number, line) in text.lines().enumerate() {
        released += u64::from(line.contains("[mem] Release GPU memory"));
        let Some((bytes, tag)) = parse(line) else { continue };
        let bytes = bytes.ok_or_else(|| ImportError(format!("line {}: more bytes than there can be", number + 1)))?;
        rows.push(Row { tag: tag.into(), scope: scope(tag), role: role(tag), requested: bytes, actual: bytes });
    }
    let mut unnamed = Vec::new();
    if 0 < released {
        unnamed.push(Unnamed { what: format!("{released} releases without a size in the log"), bytes: 0 });
    }
    super::report(Origin::TbdLog, name, Kind::Sequence, rows, unnamed)
}

/// Bytes and tag of an allocation; `None` for the bytes if they overflow.
fn parse(line: &str) -> Option<(Option<u64>, &str)> {
    let (_, rest) = line.split_once("Allocate ")?;
    let (number, rest) = rest.split_once(' ')?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (unit, rest) = rest.split_once(" GPU memory (")?;
    let (tag, _) = rest.rsplit_once(')')?;
    let unit = match unit {
        "bytes" => 1,
        "MB" => 1 << 20,
        _ => return None,
    };
    Some((number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)), tag))
}
