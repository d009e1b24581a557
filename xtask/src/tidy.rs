//! `cargo xtask tidy`: rules that no compiler checks.
//!
//! - The dependencies between crates are those of the table in ARCHITECTURE.md and point to lower levels.
//! - Crates that compute do no I/O and read no clock, environment or device.
//! - Files that documents name exist, and each row of the glossary names a standard term.
//! - Counts that may only fall (`xtask/ratchet.txt`): discouraged words, files without module documentation, imports with
//!   a leading `::`, type names that crates share.
//! - Folders of `crates/cpu/src` import only from folders below them.
//! - No `match` on `Op` has a wildcard arm, outside of tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::root;

mod matches;
mod names;
mod ratchet;
mod words;

use ratchet::Ratchet;

/// Crates that do no I/O.
const PURE: &[&str] = &["types", "ir", "arena", "plan", "passes"];
/// Rooms outside of `crates/`, with their folders.
const OUTSIDE: &[(&str, &str)] = &[("cuda-kernels", "cuda")];
/// Names that must not occur in a pure crate.
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::env", "std::process", "Instant::now", "SystemTime", "std::thread"];

/// Folders with Rust of ours.
const SOURCES: [&str; 8] = ["crates", "tools", "xtask", "tests", "benches", "interop", "examples", "fuzz"];

/// `tidy` or `tidy --bless`.
pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    match words {
        [] => check(false).map(|()| 0),
        [word] if word == "--bless" => check(true).map(|()| 0),
        _ => Err(format!("tidy takes --bless and nothing else, got `{}`", words.join(" "))),
    }
}

/// Checks every rule; with `bless`, lowers budgets first.
///
/// # Errors
/// The faults, a line each.
pub(crate) fn check(bless: bool) -> Result<(), String> {
    let mut faults = Vec::new();
    arrows(&mut faults)?;
    purity(&mut faults)?;
    links(&mut faults)?;
    glossary(&mut faults)?;
    cpu_folders(&mut faults)?;
    matches::check(&mut faults)?;
    let mut ratchet = Ratchet::read()?;
    names::check(&mut ratchet, &mut faults)?;
    words::count(&mut ratchet)?;
    heads_and_imports(&mut ratchet)?;
    if bless {
        ratchet.bless()?;
    }
    ratchet.judge(&mut faults);
    let slack = ratchet.slack();
    if !slack.is_empty() {
        println!("budgets that `cargo xtask tidy --bless` lowers:\n  {}", slack.join("\n  "));
    }
    if faults.is_empty() { Ok(()) } else { Err(format!("\n  {}", faults.join("\n  "))) }
}

/// Counts files without module documentation and imports with a leading `::`.
fn heads_and_imports(ratchet: &mut Ratchet) -> Result<(), String> {
    let (mut headless, mut imports) = (Vec::new(), Vec::new());
    for folder in SOURCES.map(|folder| root().join(folder)).iter().filter(|folder| folder.is_dir()) {
        each_file(folder, "rs", &mut |path, text| {
            if is_generated(text) {
                return;
            }
            let name = path.strip_prefix(root()).unwrap_or(path).display().to_string();
            if !text.lines().take(5).any(|line| line.starts_with("//!")) {
                headless.push(name.clone());
            }
            let is_prefixed = |line: &&str| line.trim_start().trim_start_matches("pub ").starts_with("use ::");
            imports.extend(text.lines().filter(is_prefixed).map(|line| format!("{name}: {}", line.trim())));
        })?;
    }
    ratchet.count("files without module documentation", headless.len() as f64, headless.join(", "));
    ratchet.count("imports with a leading `::`", imports.len() as f64, imports.join(", "));
    Ok(())
}

/// Whether a program wrote a file.
fn is_generated(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.starts_with("// Written by `cargo xtask"))
}

/// Each row of a glossary's table has no empty cell and is there once.
fn glossary(faults: &mut Vec<String>) -> Result<(), String> {
    let text = read(&root().join("docs/glossary.md"))?;
    let mut terms: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('|') && !line.starts_with("| ---")) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        if cells.len() < 2 || cells.contains(&"") {
            faults.push(format!("docs/glossary.md: each cell of a row must have text, got `{line}`"));
        }
        if terms.contains(&cells[0]) {
            faults.push(format!("docs/glossary.md: `{}` has two rows; keep one", cells[0]));
        }
        terms.push(cells[0]);
    }
    Ok(())
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
    rooms.extend(OUTSIDE.iter().map(|(room, _)| room.to_string()));
    rooms.sort();
    for room in &rooms {
        let Some((level, stated)) = levels.get(room) else {
            faults.push(format!("ARCHITECTURE.md has no row for the crate `{room}`"));
            continue;
        };
        let outside = OUTSIDE.iter().find(|(outside, _)| outside == room);
        let folder = outside.map_or_else(|| root().join("crates").join(room), |(_, folder)| root().join(folder));
        let manifest = read(&folder.join("Cargo.toml"))?;
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("");
        let dependencies = dependencies.split("\n[").next().unwrap_or("");
        let names = dependencies.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        let mut found: Vec<String> =
            names.filter(|name| rooms.iter().any(|room| room == name)).map(str::to_string).collect();
        found.sort();
        if found != *stated {
            faults.push(format!("crate `{room}` uses {found:?}, ARCHITECTURE.md says {stated:?}"));
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
                    faults.push(format!("{}:{}: `{word}` in a crate that only computes", path.display(), number + 1));
                }
            }
        })?;
    }
    Ok(())
}

/// Every `path/with.ext` in backticks, or link target, that looks like a file of this repository exists.
fn links(faults: &mut Vec<String>) -> Result<(), String> {
    let mut documents = Vec::new();
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        documents.push((root().join(name), read(&root().join(name))?));
    }
    each_file(&root().join("docs"), "md", &mut |path, text| documents.push((path.to_path_buf(), text.to_string())))?;
    // Decisions and past measurements name the files of their day.
    documents.retain(|(path, _)| {
        !path.components().any(|part| part.as_os_str() == "decisions" || part.as_os_str() == "history")
    });
    for (document, text) in documents {
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

/// Folders of `crates/cpu/src` import from those below them in the table of its `lib.rs`, and nothing from the root.
fn cpu_folders(faults: &mut Vec<String>) -> Result<(), String> {
    let source = root().join("crates/cpu/src");
    let text = read(&source.join("lib.rs"))?;
    let folders: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once('`')).map(|(name, _)| name).collect();
    for (level, folder) in folders.iter().enumerate() {
        let mut check = |path: &Path, text: &str| {
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for (number, line) in code.lines().enumerate() {
                let line = line.split("//").next().unwrap_or_default();
                for name in line.split("crate::").skip(1) {
                    let name = name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
                    let used = folders.iter().position(|folder| Some(*folder) == name);
                    if used.is_none_or(|used| used < level) {
                        let (path, name) = (path.display(), name.unwrap_or_default());
                        faults.push(format!("{path}:{}: `{folder}` must not import `crate::{name}`", number + 1));
                    }
                }
            }
        };
        if source.join(folder).is_dir() {
            each_file(&source.join(folder), "rs", &mut |path, text| {
                if !path.ends_with("tests.rs") {
                    check(path, text);
                }
            })?;
        } else {
            let path = source.join(folder).with_extension("rs");
            check(&path, &read(&path)?);
        }
    }
    Ok(())
}

fn each_file(folder: &Path, extension: &str, visit: &mut dyn FnMut(&Path, &str)) -> Result<(), String> {
    for entry in fs::read_dir(folder).map_err(|error| format!("cannot list `{}`: {error}", folder.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                each_file(&path, extension, visit)?;
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            visit(&path, &read(&path)?);
        }
    }
    Ok(())
}
