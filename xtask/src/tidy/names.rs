//! Public types of different crates with one name. `xtask/shared_names.txt` lists those that have a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::ratchet::Ratchet;
use super::{each_file, is_generated, read};
use crate::root;

/// Counts the names that are shared without a reason, and adds a fault for each row that is stale.
///
/// # Errors
/// A file that cannot be read, or a row of another form than `NAME: REASON`.
pub(super) fn check(ratchet: &mut Ratchet, faults: &mut Vec<String>) -> Result<(), String> {
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).map_err(|error| format!("cannot list crates/: {error}"))? {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        each_file(&entry.path().join("src"), "rs", &mut |_, source| {
            for ty in source.lines().filter(|_| !is_generated(source)).filter_map(public_type) {
                crates.entry(ty.to_string()).or_default().insert(name.clone());
            }
        })?;
    }
    crates.retain(|_, crates| 1 < crates.len());
    let text = read(&root().join("xtask/shared_names.txt"))?;
    for row in text.lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let (name, _) = row
            .split_once(": ")
            .ok_or_else(|| format!("`xtask/shared_names.txt`: a row must be `NAME: REASON`, got `{row}`"))?;
        if crates.remove(name).is_none() {
            faults.push(format!("xtask/shared_names.txt: `{name}` is a type of fewer than two crates; remove its row"));
        }
    }
    let detail = |(name, crates): (&String, &BTreeSet<String>)| {
        format!("`{name}` in {}", crates.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
    };
    let details: Vec<String> = crates.iter().map(detail).collect();
    ratchet.count("type names shared by crates without a reason", crates.len() as f64, details.join("; "));
    Ok(())
}

/// The name of a public type that a line declares.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    ["struct", "enum", "trait", "type", "union"].contains(&kind).then_some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_types_are_found() {
        assert_eq!(public_type("pub struct Conv<'a> {"), Some("Conv"));
        assert_eq!(public_type("    pub unsafe trait Slot: Copy {"), Some("Slot"));
        assert_eq!(public_type("pub(crate) struct Conv;"), None);
        assert_eq!(public_type("pub fn conv() {}"), None);
    }
}
