//! No wildcard arm in a `match` on `Op`: a new operator would silently get the arm's answer.
//!
//! Code that treats a few operators specially uses `if let` or `matches!`; a rule about all operators is a method of the
//! operator without default, or an exhaustive `match`. An arm that returns an error is accepted: it refuses the operator
//! by name. Tests and test modules are free. Formatted source is assumed: arms
//! are indented by four more columns than the line of their `match`.

use std::path::Path;

use super::{SOURCES, each_file};
use crate::root;

pub(super) fn check(faults: &mut Vec<String>) -> Result<(), String> {
    for folder in SOURCES.map(|folder| root().join(folder)).iter().filter(|folder| folder.is_dir()) {
        each_file(folder, "rs", &mut |path, text| {
            let name = path.strip_prefix(root()).unwrap_or(path);
            if !is_test(name) {
                let fault = |line| format!("{}:{line}: a `match` on `Op` must not have a wildcard arm", name.display());
                faults.extend(wildcard_arms(text).into_iter().map(fault));
            }
        })?;
    }
    Ok(())
}

/// Whether a file is a test: `tests/` of a crate, or the tests of whole executables.
fn is_test(path: &Path) -> bool {
    let is_tests = |part: std::path::Component| part.as_os_str() == "tests";
    path.components().skip(1).any(is_tests) || path.ends_with("tests.rs")
}

/// The lines of wildcard arms in each `match` with another arm whose pattern names a variant of `Op`.
fn wildcard_arms(text: &str) -> Vec<usize> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if !line.ends_with('{') || !line.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == "match") {
            continue;
        }
        let body = lines[at + 1..].iter().enumerate();
        let body = body.take_while(|(_, line)| line.trim().is_empty() || indent(line) > indent(lines[at]));
        let arms: Vec<(usize, &str)> = body
            .filter(|(_, arm)| indent(arm) == indent(lines[at]) + 4)
            .map(|(below, arm)| (at + 2 + below, *arm))
            .collect();
        if arms.iter().any(|(_, arm)| names_op(pattern(arm))) {
            let is_silent = |arm: &str| is_wildcard(pattern(arm)) && !arm.contains("=> Err(");
            found.extend(arms.iter().filter(|(_, arm)| is_silent(arm)).map(|&(line, _)| line));
        }
    }
    found
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The pattern of an arm without its guard; of other lines, the line.
fn pattern(line: &str) -> &str {
    let line = line.trim();
    let head = line.split("=>").next().unwrap_or_default();
    head.split(" if ").next().unwrap_or_default().trim()
}

fn names_op(pattern: &str) -> bool {
    let starts = pattern.match_indices("Op::").map(|(at, _)| at);
    starts.into_iter().any(|at| !pattern[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_'))
}

/// `_`, a tuple that begins with `_`, or a new name: patterns that accept every operator.
fn is_wildcard(pattern: &str) -> bool {
    let first = pattern.trim_start_matches('(').split([',', ')']).next().unwrap_or_default().trim();
    let is_name = |text: &str| {
        text.starts_with(|letter: char| letter.is_lowercase() || letter == '_')
            && text.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    is_name(first) && !["true", "false"].contains(&first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(arms: &str, want: &[usize]) {
        assert_eq!(wildcard_arms(&format!("    match x {{\n{arms}    }}\n")), want);
    }

    #[test]
    fn wildcard_arms_of_operators_are_found() {
        check("        Op::Conv(conv) => 1,\n        _ => 2,\n", &[3]);
        check("        Op::Conv(_) | Op::Pool(_) => {\n            f()\n        }\n        _ if a => 2,\n", &[5]);
        check("        (Op::Conv(_), true) => 1,\n        (_, false) => 2,\n", &[3]);
        check("        Op::Conv(_) => 1,\n        other => f(other),\n", &[3]);
    }

    #[test]
    fn other_matches_are_left_alone() {
        check("        Op::Conv(_) => 1,\n        Op::Pool(_) => 2,\n", &[]);
        check("        Op::Conv(_) => Ok(1),\n        other => Err(other.name()),\n", &[]);
        check("        MicroOp::Conv(_) => 1,\n        _ => 2,\n", &[]);
        check("        Some(x) => {\n            let Op::Conv(_) = y;\n        }\n        _ => 2,\n", &[]);
        assert!(
            wildcard_arms("#[cfg(test)]\nmod tests {\n    match x {\n        Op::A => 1,\n        _ => 2,\n    }")
                .is_empty()
        );
    }
}
