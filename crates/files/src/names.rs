//! Names from models as names of files.

use std::collections::BTreeSet;

/// Longest name, in bytes. File systems allow 255; the rest is for numbers, extensions and temporary files.
const LENGTH_MAX: usize = 200;

/// A file name for each name, in the same order: distinct (without regard to case), at most 255 bytes long with
/// `extension`, and with `_` instead of characters that a file system or a shell may refuse.
///
/// `extension` begins with its dot and has at most 16 bytes.
pub fn file_names<'a>(names: impl IntoIterator<Item = &'a str>, extension: &str) -> Vec<String> {
    let names: Vec<String> = names.into_iter().map(plain).collect();
    // A number must not make the name that another output has by itself.
    let own: BTreeSet<String> = names.iter().map(|name| name.to_lowercase()).collect();
    let mut taken = BTreeSet::new();
    let distinct = |name: String| {
        let (mut chosen, mut number) = (name.clone(), 1);
        while !taken.insert(chosen.to_lowercase()) {
            chosen.clone_from(&name);
            while own.contains(&chosen.to_lowercase()) || taken.contains(&chosen.to_lowercase()) {
                number += 1;
                chosen = format!("{name}_{number}");
            }
        }
        chosen + extension
    };
    names.into_iter().map(distinct).collect()
}

/// The name without special characters, not hidden, not empty and not too long.
fn plain(name: &str) -> String {
    let is_special = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    let mut plain: String = name.chars().map(|c| if is_special(c) { '_' } else { c }).collect();
    if plain.is_empty() || plain.starts_with('.') {
        plain.insert(0, '_');
    }
    while !plain.is_char_boundary(plain.len().min(LENGTH_MAX)) || LENGTH_MAX < plain.len() {
        plain.pop();
    }
    if plain.ends_with(['.', ' ']) {
        plain.push('_');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], want: &[&str]) {
        assert_eq!(file_names(names.iter().copied(), ".npy"), want);
    }

    #[test]
    fn names_that_collide_get_numbers() {
        check(&["a/b", "a_b", "A_B", "c"], &["a_b.npy", "a_b_2.npy", "A_B_3.npy", "c.npy"]);
        check(&["x:", "x/", "x__2"], &["x_.npy", "x__3.npy", "x__2.npy"]);
    }

    #[test]
    fn names_stay_in_their_folder_and_are_visible() {
        check(
            &["../../etc/passwd", "", ".", "tab\tline\n"],
            &["_.._.._etc_passwd.npy", "_.npy", "_._.npy", "tab_line_.npy"],
        );
    }

    #[test]
    fn long_names_are_cut_at_a_character_and_stay_distinct() {
        let long = "é".repeat(300);
        let names = file_names([long.as_str(), long.as_str()], ".npy");
        assert_eq!(names[0], "é".repeat(100) + ".npy");
        assert_eq!(names[1], "é".repeat(100) + "_2.npy");
    }
}
