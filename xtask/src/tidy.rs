//! `cargo xtask tidy`: what must be absent, and so must be looked for.
//!
//! - Arrows between crates are those of ARCHITECTURE.md, read from its table, and the manifests say the same.
//! - Rooms that compute do no I/O and read no clock, environment or device.
//! - Files that documents name exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::root;

/// Rooms that do no I/O.
const PURE: &[&str] = &["types", "ir", "arena", "plan", "passes"];
/// What a pure room must not name.
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::env", "std::process", "Instant::now", "SystemTime", "std::thread"];

pub(crate) fn run() -> Result<u8, String> {
    let mut faults = Vec::new();
    arrows(&mut faults)?;
    purity(&mut faults)?;
    links(&mut faults)?;
    if faults.is_empty() { Ok(0) } else { Err(format!("\n  {}", faults.join("\n  "))) }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))
}

/// The rows `| 3 | ir | types |` of ARCHITECTURE.md against the manifests, and that arrows point down.
fn arrows(faults: &mut Vec<String>) -> Result<(), String> {
    let text = read(&root().join("ARCHITECTURE.md"))?;
    let mut levels: BTreeMap<String, (u32, Vec<String>)> = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [level, room, uses, ..] = cells[..] else { continue };
        let Ok(level) = level.parse() else { continue };
        let room = room.trim_matches('`').to_string();
        let mut uses: Vec<String> = uses
            .split([',', ' '])
            .map(|word| word.trim_matches('`').to_string())
            .filter(|word| !word.is_empty() && word != "-")
            .collect();
        uses.sort();
        levels.insert(room, (level, uses));
    }
    let mut rooms: Vec<String> = Vec::new();
    for entry in fs::read_dir(root().join("crates")).map_err(|error| format!("cannot list crates/: {error}"))? {
        rooms.push(entry.map_err(|error| error.to_string())?.file_name().to_string_lossy().into_owned());
    }
    rooms.sort();
    for room in &rooms {
        let Some((level, stated)) = levels.get(room) else {
            faults.push(format!("ARCHITECTURE.md has no row for the room `{room}`"));
            continue;
        };
        let manifest = read(&root().join("crates").join(room).join("Cargo.toml"))?;
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("");
        let dependencies = dependencies.split("\n[").next().unwrap_or("");
        let names = dependencies.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        let mut found: Vec<String> =
            names.filter(|name| rooms.iter().any(|room| room == name)).map(str::to_string).collect();
        found.sort();
        if found != *stated {
            faults.push(format!("room `{room}` uses {found:?}, ARCHITECTURE.md says {stated:?}"));
        }
        for used in &found {
            if levels.get(used).is_some_and(|(below, _)| level <= below) {
                faults.push(format!("the arrow from `{room}` to `{used}` does not point down"));
            }
        }
    }
    Ok(())
}

fn purity(faults: &mut Vec<String>) -> Result<(), String> {
    for room in PURE {
        each_file(&root().join("crates").join(room).join("src"), "rs", &mut |path, text| {
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or("");
                for word in IMPURE.iter().filter(|word| code.contains(**word)) {
                    faults.push(format!("{}:{}: `{word}` in a room that only computes", path.display(), number + 1));
                }
            }
        })?;
    }
    Ok(())
}

/// Every `path/with.ext` in backticks, or link target, that looks like a file of this repository exists.
fn links(faults: &mut Vec<String>) -> Result<(), String> {
    let mut documents = vec!["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .into_iter()
        .map(|name| root().join(name))
        .collect::<Vec<_>>();
    for entry in fs::read_dir(root().join("docs")).map_err(|error| format!("cannot list docs/: {error}"))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            documents.push(path);
        }
    }
    for document in documents {
        let text = read(&document)?;
        for word in text.split(['`', '(', ')', ' ', '\n', '|']) {
            let is_ours =
                ["crates/", "tools/", "xtask/", "docs/", "tests/", "benches/", "targets/", "cuda/", "interop/"]
                    .iter()
                    .any(|top| word.starts_with(top));
            if is_ours
                && word.contains('.')
                && !word.contains(['*', '<', '{'])
                && !root().join(word.trim_end_matches(['.', ','])).exists()
            {
                faults.push(format!("{} names `{word}`, which does not exist", document.display()));
            }
        }
    }
    Ok(())
}

fn each_file(folder: &Path, extension: &str, visit: &mut dyn FnMut(&Path, &str)) -> Result<(), String> {
    for entry in fs::read_dir(folder).map_err(|error| format!("cannot list `{}`: {error}", folder.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            each_file(&path, extension, visit)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            visit(&path, &read(&path)?);
        }
    }
    Ok(())
}
